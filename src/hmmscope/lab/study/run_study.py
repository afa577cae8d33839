"""A study of sequences: entropies, and losses of n-gram baselines, HMMs and networks.

OUT/
  experiment.json  findings.json     description and findings
  hmms/<states>.json                 the fitted HMMs
  runs/<network>-seed-<s>-<steps>/   one run folder per training
  tables/<name>.jsonl                measurements
  fitted.json                        states and a decoded path of the HMM on the page
  figures/<nn-name>.json             figures as data; `report` draws them and writes the page
"""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any

from hmmscope import __version__
from hmmscope.analysis.activations import residual_layers
from hmmscope.analysis.curves import EvaluateOptions, Score, evaluate
from hmmscope.analysis.ngrams import is_ngram
from hmmscope.analysis.probes import probe
from hmmscope.analysis.untrained_controls import NUM_TWINS, InstrumentOptions
from hmmscope.errors import RefusedError
from hmmscope.lab.experiments.parts import BuildRecord
from hmmscope.lab.study import study_tables
from hmmscope.lab.study.fit_summary import tables_of_fit
from hmmscope.lab.study.fitted_hmm import fitted_hmm
from hmmscope.lab.study.study_data import Prepared, prepare
from hmmscope.lab.study.study_data import StudySpec as StudySpec
from hmmscope.lab.study.study_page import figures, findings, intervals, summary
from hmmscope.lab.study.study_tables import Curves, opponent, over_counting, per_symbol, predictor_rows, searched
from hmmscope.models.base import parameter_count
from hmmscope.processes.files import load_process
from hmmscope.processes.hmm import HMM
from hmmscope.processes.require_type import require_process_type
from hmmscope.reprs import Tabular, html_rows, plot_rows
from hmmscope.runs.fit_options import FitOptions
from hmmscope.runs.fitting import fit
from hmmscope.runs.pipeline import Run
from hmmscope.runs.training import TrainOptions, train
from hmmscope.schema import require, require_bool, require_path, spec_to_data
from hmmscope.sequences.data import READING_OPTIONS
from hmmscope.storage import disk, seals, store
from hmmscope.storage.rundir import config_difference
from hmmscope.system_info import environment, machine_line
from hmmscope.text import say as say_aloud

#: Version of the measurements; it is raised if the tables change for the same data and networks.
MEASUREMENT = 4


@dataclass(frozen=True, repr=False)
class StudyResult(Tabular):
    """A finished study.

    Attributes:
        path: Folder of the study.
        hmm: BIC's choice, unless another has lower validation loss by more than a standard error.
        run: The run of the network with the lowest validation loss.
    """

    path: Path
    hmm: HMM
    run: Run

    def table(self) -> list[dict[str, Any]]:
        """Return a row for each predictor, with its test loss in nats per observation."""
        return store.read_table(self.path / "tables" / "predictors.jsonl")

    def plot(self) -> Any:
        """Return a Matplotlib figure of test loss over the number of parameters."""
        return plot_rows(self.table(), f"Study of {self.path.name}", x="parameters", y="value", by=("family",))

    def __repr__(self) -> str:
        return f"Study({str(self.path)!r}, {len(self.table())} predictors)"

    def _repr_html_(self) -> str:
        return html_rows(repr(self), self.table())


def study(
    source: Any,
    out: str | Path,
    *,
    resume: bool = False,
    quiet: bool | None = None,
    spec: StudySpec | None = None,
    **fields: Any,
) -> StudyResult:
    """Compare n-gram baselines, HMMs of growing size and networks on sequences with unknown distribution.

    All predictors are fitted to the training part. The validation part selects the n-gram order, the number of training
    steps of each network, and the HMM. Losses are computed on the test part.

    Args:
        source: The sequences: `SequenceData`, a file path, lists or an array.
        out: A new folder, or with `resume` the folder of the same study.
        resume: Whether to resume the study in `out`.
        quiet: False prints each step; None shows progress in a terminal or notebook only; True shows nothing.
        spec: Settings of the study.
        fields: Fields of `StudySpec` in place of `spec`, and options of `SequenceData` such as `lengths`.

    Raises:
        InputError: There are too few sequences to split, or a field is out of range.
        RefusedError: `out` exists, or contains another study.
    """
    reading = {name: fields.pop(name) for name in READING_OPTIONS if name in fields}
    require(spec is None or isinstance(spec, StudySpec), "spec", "must be a StudySpec", spec)
    require_bool("resume", resume)
    path, work = require_path("out", out), prepare(source, spec or StudySpec(**fields), **reading)
    _claim(path, work, resume)
    say: Callable[[str], None] = (
        (lambda line: None) if quiet is not False else (lambda line: say_aloud(line, flush=True))
    )
    with disk.holding(path / "lock"):
        store.remove_leftovers(path)
        with disk.staying(path, "experiment.json"), seals.unsealed(path):
            return _carry_out(work, path, say, quiet)


def _carry_out(work: Prepared, path: Path, say: Callable[[str], None], quiet: bool | None) -> StudyResult:
    hmms = _fit_all(work, path, say, quiet)
    runs = _train_all(work, path, say, quiet)
    best = _measure_all(work, path, hmms, runs, say)
    tables = {one.stem: store.read_table(one) for one in sorted((path / "tables").glob("*.jsonl"))}
    store.write_json(path / "fitted.json", fitted_hmm(hmms, work.parts[2], tables.get("states", []), best["states"]))
    store.make_folder(path / "figures")
    for name, data in findings_of(tables, work.spec.seeds).items():
        store.write_json(path / name, data)
    about = store.read_json(path / "experiment.json", managed=True)
    trained = [{"name": f"training of {run.path.name}", "value": repr(run)} for run in runs]
    measured = {"name": "measured on", "value": machine_line()}
    store.write_json(path / "experiment.json", about | {"facts": [*work.facts(), *trained, measured]})
    trained_here = sorted(one for one in (path / "runs").iterdir() if one.is_dir())  # including shorter attempts
    seals.write_seal(path, "experiment", {"measured_by": environment(), "runs": seals.digests(trained_here)})
    return StudyResult(path, hmms[best["states"]], next(run for run in runs if run.path.name == best["run"]))


def findings_of(tables: Any, seeds: int) -> dict[str, Any]:
    found = {f"figures/{number:02d}-{one.name}.json": one.to_data() for number, one in enumerate(figures(tables), 1)}
    return found | {"findings.json": [one.to_data() for one in findings(tables, seeds)]}


def _claim(path: Path, work: Prepared, resume: bool) -> None:
    default = spec_to_data(StudySpec())
    later = ("emission", "covariance_type", "min_variance")
    own = spec_to_data(work.spec).items()
    kept = {name: value for name, value in own if name not in later or value != default[name]}
    config = {"study": kept, "data": work.process.digest}
    if os.path.lexists(path):
        if not resume:
            raise RefusedError(f"{path}: exists; choose another --out, or add --resume (resume=True in Python)")
        before = store.read_json(path / "experiment.json", managed=True) if (path / "experiment.json").is_file() else {}
        if before.get("experiment") != "study":
            raise RefusedError(f"{path}: exists and is not the folder of a study; choose another --out")
        if difference := config_difference(before["config"], config):
            raise RefusedError(f"{path}: contains another study ({'; '.join(difference[:4])}); choose another --out")
        return
    changes = [f"--{k} {_listed(v)}" for k, v in spec_to_data(work.spec).items() if v != default[k]]
    about = {
        "format": store.FORMATS["experiment"],
        "experiment": "study",
        "title": f"A study of {work.title}",
        "summary": summary(work.counting, work.data),
        "scale": "own",
        "created": date.today().isoformat(),
        "version": __version__,
        "command": " ".join([f"hmmscope study {work.title} --out {path.name}", *changes]),
        "intervals": intervals(len(work.parts[2]), len(work.source), len(work.data)),
        "facts": work.facts(),
        "invalid": None,
        "config": config,
    }
    store.make_folder(path.parent)
    with store.new_folder(path, manifest=False) as folder:
        store.write_json(folder / "experiment.json", about)


def _listed(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


# ---------------------------------------------------------------------------------------------------------------------
# Fitting and training


def _fit_all(work: Prepared, path: Path, say: Callable[[str], None], quiet: bool | None) -> dict[int, Any]:
    spec, hmms = work.spec, {}
    store.make_folder(path / "hmms")
    for size in spec.states:
        file, search = (path / "hmms" / name for name in (f"{size}.json", f"{size}-search.json"))
        kept = require_process_type(load_process(file), work.kind) if os.path.lexists(file) else None
        if kept is None or not search.is_file():  # older studies have no search records
            say(f"study: fitting an HMM of {size} state{'s' * (size != 1)}")
            most, steps = (spec.restarts, spec.iterations) if kept is None else (1, 1)
            options = FitOptions(start=kept, num_restarts=most, max_iterations=steps, quiet=quiet)
            found = fit(work.parts[0], size, seed=spec.split_seed, options=options, **work.fit_options)
            one = found.fits[size]
            store.write_json(search, searched(one))
            if kept is None:
                found.hmm.save(file)
        hmms[size] = require_process_type(load_process(file), work.kind)
    return hmms


def _train_all(work: Prepared, path: Path, say: Callable[[str], None], quiet: bool | None) -> list[Run]:
    kept = []
    for network in work.spec.networks:
        engine = work.engine(network)

        def trained(num_steps: int, seed: int, network: str = network, engine: str = engine) -> Run:
            config = work.config(network, num_steps, seed)
            config = replace(config, training=replace(config.training, engine=engine))  # type: ignore[arg-type]
            folder = path / "runs" / f"{network}-seed-{seed}-{num_steps}"
            say(f"study: training {network}, seed {seed}, {num_steps} steps")
            store.make_folder(folder.parent)
            return train(config, folder, resume=True, options=TrainOptions(quiet=quiet, num_samples=2**20))

        best: tuple[int, Run] | None = None
        for num_steps in work.steps:
            run = trained(num_steps, 0)
            assert run.summary is not None
            if best is not None and run.summary["loss"] >= best[1].summary["loss"]:  # type: ignore[index]
                break
            best = num_steps, run
        assert best is not None
        kept += [best[1], *(trained(best[0], seed) for seed in range(1, work.spec.seeds))]
    return kept


# ---------------------------------------------------------------------------------------------------------------------
# Measuring


def _measure_all(
    work: Prepared, path: Path, hmms: dict[int, Any], runs: Sequence[Run], say: Callable[[str], None]
) -> dict[str, Any]:
    file = path / "tables" / "chosen.jsonl"
    made = BuildRecord(path, MEASUREMENT, [run.path for run in runs])
    if made.has("study"):
        return store.read_table(file)[0]
    say("study: measuring")
    store.make_folder(path / "tables")
    judged = {stream: _losses(work, stream, hmms, runs) for stream in ("evaluate", "test")}
    searches = _searches(path, hmms)
    known, against = _known(work, hmms, runs, judged["test"]), opponent(searches, judged["evaluate"])
    rows = predictor_rows(known, judged["evaluate"], judged["test"], against)
    chosen = {row["family"]: row for row in rows if row["chosen"]}
    network = next(run for run in runs if run.path.name == chosen["network"]["name"])
    hmm, test = hmms[chosen["HMM"]["size"]], judged["test"]
    gain = test[chosen["HMM"]["name"]] - test[network.path.name]
    named = {row["name"]: test[row["name"]] for row in chosen.values()}
    sizes = study_tables.num_states(searches, judged["evaluate"], lambda size: work.evidence_of(hmms[size]))
    tables: dict[str, list[dict[str, Any]]] = {
        "predictors": rows,
        "states": sizes,
        "positions": list(study_tables.positions(named)),
        **work.tables(gain),
        "beliefs": list(_beliefs(work, hmm, network)),
        **tables_of_fit(hmms[next(row["num_states"] for row in sizes if row["chosen"])], work.parts[0]),
    }
    for name, table in tables.items():
        store.write_table(path / "tables" / f"{name}.jsonl", table)
    best: dict[str, Any] = {"states": hmm.num_states, "run": network.path.name}
    best |= dict(zip(("value", "low", "high"), per_symbol(gain), strict=True))
    best |= over_counting([chosen[family] for family in work.counting], test, network.path.name)
    store.write_table(file, [best])
    made.note("study", [f"tables/{table.name}" for table in (path / "tables").glob("*.jsonl")])
    return best


def _searches(path: Path, hmms: dict[int, Any]) -> dict[int, dict[str, Any]]:
    return {size: store.read_json(path / "hmms" / f"{size}-search.json", managed=True) for size in hmms}


def _losses(work: Prepared, stream: str, hmms: dict[int, Any], runs: Sequence[Run]) -> dict[str, Curves]:
    dataset = work.corpus(stream)
    found: dict[str, Curves] = {}
    for number, run in enumerate(runs):
        observers = {f"HMM-{size}": hmm for size, hmm in hmms.items()} if number == 0 else {}
        score: Score = evaluate(
            run.model,
            dataset,
            num_samples=2**20,
            baselines=number == 0,
            target=work.target,
            observers=observers,
            options=EvaluateOptions(ngram_order=work.spec.order),
        )
        in_training = [name for name in score.measures if not is_ngram(name) or name.startswith("trained-")]
        losses = {name: score.measures[name]["loss"] for name in in_training}
        found[run.path.name] = losses.pop("model")
        found |= {name.removeprefix("trained-").replace("order", "n-gram"): loss for name, loss in losses.items()}
    return found


def _known(
    work: Prepared, hmms: dict[int, Any], runs: Sequence[Run], test: dict[str, Curves]
) -> dict[str, dict[str, Any]]:
    known = work.counters(test)
    for size, hmm in hmms.items():
        known[f"HMM-{size}"] = {"family": "HMM", "size": size, "parameters": work.num_parameters(hmm)}
    for run in runs:
        about = {"family": "network", "size": run.config.training.num_steps, "parameters": parameter_count(run.model)}
        known[run.path.name] = about | {"network": run.config.model.name, "seed": run.config.seed}
    return known


def _beliefs(work: Prepared, hmm: Any, run: Run) -> Iterator[dict[str, Any]]:
    dataset = work.corpus("test")
    if hmm.num_states == 1 or dataset.different(8) < 8:
        return
    for network, model in (("trained", run.model), ("untrained", run.untrained())):
        for layer, name in enumerate(residual_layers(model)):  # one by one: they may differ in width
            twins = NUM_TWINS if network == "trained" else 0
            rows = probe(
                model,
                dataset,
                target="belief",
                options=InstrumentOptions(observer=hmm, num_controls=twins),
                layers=[name],
                num_samples=1024,
            )
            kept = [row for row in rows if network == "trained" or row["labels"] == "true"]
            yield from ({"network": network} | row | {"layer": layer} for row in kept)
