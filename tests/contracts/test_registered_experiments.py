"""What every registered experiment must do; a new one is tested by being there."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import jaxtyping
import pytest
from markupsafe import escape

from hmmscope import registry
from hmmscope.datasets.process_dataset import ProcessDataset
from hmmscope.errors import InputError, RefusedError
from hmmscope.lab.evidence.figure import Figure
from hmmscope.lab.evidence.ledger import SCALES
from hmmscope.lab.experiments import parts
from hmmscope.lab.experiments.experiment import experiment_named
from hmmscope.lab.experiments.running import run_experiment
from hmmscope.lab.report import drawing, plots
from hmmscope.lab.verbs import run as verb
from hmmscope.lab.verbs.options import RunOptions
from hmmscope.runs.config import config_from_data
from hmmscope.storage import store
from hmmscope.storage.rundir import read_journal

EXPERIMENTS = sorted(registry.entries("experiment"))


@pytest.fixture(scope="module", autouse=True)
def unchecked() -> Iterator[None]:
    """Annotations are executed in the tests of what an experiment is made of; here they would only take time."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


def test_experiments_are_registered() -> None:
    assert "quickstart" in EXPERIMENTS


@pytest.mark.parametrize("name", EXPERIMENTS)
@pytest.mark.parametrize("scale", SCALES)
def test_plans_are_configurations(name: str, scale: str) -> None:
    experiment = experiment_named(name)
    if scale not in experiment.scales:
        with pytest.raises(InputError, match=f"has no scale {scale}; it has smoke, "):
            run_experiment(name, scale, Path("never-made"))
        return
    plan = experiment.plan(scale, **experiment.choices(scale))
    assert plan or experiment.measurements(scale)
    for data in plan.values():
        config_from_data(data)
    assert experiment.choices(scale).keys() == experiment.choices("smoke").keys()  # scales differ in numbers only
    assert plan.keys() == plan_of(name).keys() or experiment.choices(scale) != experiment.choices("smoke")
    assert not experiment.num_seeds or set(experiment.scales) <= experiment.num_seeds.keys()
    assert experiment.measurements(scale).keys() == experiment.measurements("smoke").keys()
    assert experiment.title
    assert experiment.summary


def state(folder: Path) -> dict[str, bytes]:
    """What an experiment has made, without the page, the drawings and timing."""
    kept = [
        *folder.glob("*.json"),
        *folder.rglob("runs/**/*.*"),
        *folder.rglob("tables/*"),
        *folder.rglob("parts/**/*.json"),
        *folder.glob("figures/*.json"),
    ]
    made = [path for path in sorted(kept) if path.is_file() and path.name != "added.json"]
    return {str(path.relative_to(folder)): but_for_timing(path) for path in made}


def but_for_timing(path: Path) -> bytes:
    """What is in a file; of the seal of the experiment what it says of other files than those of timing."""
    if path.name != "seal.json" or (path.parent / "config.json").exists():
        return path.read_bytes()
    sealed = json.loads(path.read_bytes())
    measured = {name: entry for name, entry in sealed["files"].items() if not name.startswith("timing/")}
    return json.dumps({"bound": sealed["bound"], "files": measured}).encode()


def plan_of(name: str) -> dict[str, dict]:
    """The plan at the smallest scale."""
    experiment = experiment_named(name)
    return experiment.plan("smoke", **experiment.choices("smoke"))


def on_cpu(name: str) -> dict[str, str]:
    """Overrides for the processor, where something is trained."""
    return {"training.device": "cpu"} if plan_of(name) else {}


def command(name: str, out: Path, **changes: Any) -> None:
    """Run an experiment by the command, at the smallest scale unless the changes name another."""
    given = {"scale": "smoke", "resume": False, "overrides": on_cpu(name)} | changes
    verb.run(RunOptions(experiment=name, out=str(out), quiet=True, **given))


#: Streams of samples that each experiment was measured on, by name.
MEASURED_ON: dict[str, set[str]] = {}


@contextmanager
def streams_noted(name: str) -> Iterator[None]:
    """Notes the streams from which samples are taken while an experiment measures, and not while it trains."""
    noted, measuring = MEASURED_ON.setdefault(name, set()), [False]
    sample, measure = ProcessDataset.__getitem__, parts._measure

    def sample_noted(corpus: ProcessDataset, index: Any) -> Any:
        if measuring[0]:
            noted.add(corpus.stream_name)
        return sample(corpus, index)

    def measure_noted(*arguments: Any) -> Any:
        measuring[0] = True
        try:
            return measure(*arguments)
        finally:
            measuring[0] = False

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ProcessDataset, "__getitem__", sample_noted)
        patch.setattr(parts, "_measure", measure_noted)
        yield


@pytest.fixture(scope="module", params=EXPERIMENTS)
def smoke(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """An experiment at the smallest scale, through the command; those of a test process share their trainings.

    Its figures are drawn once, and nothing is moved to where it fits, which takes as long as drawing. That it is moved, and
    that all files of a style show one drawing, is tested with the styles.
    """
    if request.param == "pretrained":
        pytest.importorskip("transformers")
    out = tmp_path_factory.getbasetemp() / "smoke" / request.param
    with streams_noted(request.param), pytest.MonkeyPatch.context() as patch:
        patch.setitem(plots.STYLES, "paper", replace(plots.STYLES["paper"], endings=("svg",)))
        patch.setattr(plots, "_lay_out", lambda canvas: canvas.set_layout_engine(None))
        command(request.param, out)
    return request.param, out


def test_nothing_is_measured_on_samples_that_are_trained_on(smoke: tuple[str, Path]) -> None:
    name, _ = smoke
    # what reads its runs' journals, or compares laws exactly, takes no samples while it measures
    sampling = name not in ("limits-fig6", "limits-depth", "multitask-context-length", "multitask-observability")
    if plan_of(name):
        assert bool(MEASURED_ON[name]) == sampling
        assert "train" not in MEASURED_ON[name]


def test_smoke_runs_end_to_end(smoke: tuple[str, Path], capsys: pytest.CaptureFixture) -> None:
    name, out = smoke
    experiment = experiment_named(name)
    page = (out / "report.html").read_text()
    assert str(escape(experiment.title)) in page
    findings = store.read_json(out / "findings.json")
    assert findings
    for finding in findings:
        assert (finding["verdict"], finding["text"][:22]) == ("not tested", "Undecided: scale smoke")
        assert "value" not in finding
        assert str(escape(finding["title"])) in page
    assert page.count('class="label not-tested"') == len(findings) + 1  # the first stands above the figures too
    assert page.count('class="label ') == len(findings) + 1
    assert page.count('class="unjudged"') == 1
    description = store.read_json(out / "experiment.json")
    assert (description["experiment"], description["scale"]) == (name, "smoke")
    assert description["invalid"] is None
    assert description["facts"]
    figures = sorted((out / "figures").glob("*.json"))
    assert figures
    for path in figures:
        figure = Figure.from_data(store.read_json(path))
        assert figure.title
        assert path.with_suffix(".svg").stat().st_size > 1000
    for tables in experiment.groups.values():
        for table in tables:
            assert store.read_table(out / "tables" / f"{table}.jsonl")
    if experiment.num_seeds:
        rows = store.read_table(out / "tables" / "runs.jsonl")
        folders = [out.parent / "trained" / "runs" / row["run"] for row in rows]
        assert {row["label"] for row in rows} == plan_of(name).keys()
        assert {row["seed"] for row in rows} == set(range(experiment.num_seeds["smoke"]))
    else:
        folders = [out / "runs" / label for label in plan_of(name)]
    for folder in folders:
        steps = [record["step"] for record in read_journal(folder / "metrics.jsonl")]
        assert steps == list(range(1, len(steps) + 1))
        assert store.read_json(folder / "done.json")["steps"] == len(steps)


def test_smoke_is_not_run_twice_into_one_folder(smoke: tuple[str, Path]) -> None:
    name, out = smoke
    before = state(out)
    with pytest.raises(RefusedError, match="exists"):
        command(name, out)
    if plan_of(name):
        with pytest.raises(RefusedError, match=r"training\.learning_rate"):
            command(name, out, resume=True, overrides=on_cpu(name) | {"training.learning_rate": "0.5"})
    with pytest.raises(RefusedError, match="another plan"):
        command(name, out, resume=True, scale=experiment_named(name).scales[1])
    assert state(out) == before


def test_smoke_resumed_uses_what_is_there(
    smoke: tuple[str, Path], capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drawing, "draw_folder", lambda folder: None)  # drawings are no part of the state
    name, out = smoke
    before = state(out)
    made = [*out.parent.rglob("runs/**/*"), *out.rglob("parts/**/*")]
    if not experiment_named(name).num_seeds:
        made += out.rglob("tables/*")  # of seeds they are put together again from the parts
    times = {path: path.stat().st_mtime_ns for path in made}
    capsys.readouterr()
    command(name, out, resume=True)
    assert state(out) == before
    kept = {path: time for path, time in times.items() if path.is_file() and path.name not in ("lock",)}
    assert {path: path.stat().st_mtime_ns for path in kept} == kept  # neither trained nor measured again
    printed = capsys.readouterr().out
    assert f"page: {out / 'report.html'}" in printed
    for finding in store.read_json(out / "findings.json"):
        assert finding["title"] in printed


@pytest.mark.drawn(16)
def test_smoke_interrupted_ends_the_same(smoke: tuple[str, Path]) -> None:
    """Before its seal, and without some of its tables and its figures, it makes them again, the same to the byte."""
    name, out = smoke
    before = state(out)
    for path in [
        out / "seal.json",
        *sorted(out.glob("tables/*"))[::2],
        *sorted(out.glob("parts/*/*"))[::2],
        *out.glob("figures/*"),
        out / "findings.json",
    ]:
        path.unlink()
    run_experiment(name, "smoke", out, overrides=on_cpu(name), resume=True, quiet=True)
    assert state(out) == before


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_experiments_refuse_what_they_cannot_measure(name: str, tmp_path: Path) -> None:
    refused = [({"measurements.nothing": "3"}, "measurements.nothing")]
    if plan_of(name):
        refused += [
            ({"training.num_step": "3"}, "did you mean 'num_steps'"),
            ({"process.name": "umbrella"}, "process.name"),
            ({"seed": "-1"}, "seed"),
            ({"plan.nothing": "3"}, "plan.nothing"),
        ]
    else:
        refused += [({"training.num_steps": "3"}, "trains no model")]
    for overrides, error in refused:
        with pytest.raises(InputError, match=error):
            command(name, tmp_path / "new", overrides=overrides)
    with pytest.raises(InputError, match="did you mean 'smoke'"):
        command(name, tmp_path / "new", scale="smok", overrides={})
    assert list(tmp_path.iterdir()) == []
