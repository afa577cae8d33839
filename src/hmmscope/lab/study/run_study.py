"""A study of given sequences: entropies, n-gram baselines, HMMs and networks compared on one axis.

OUT/
  experiment.json  findings.json     description and results
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
from functools import cached_property
from pathlib import Path
from typing import Any

from hmmscope import __version__, registry
from hmmscope.analysis.activations import residual_layers
from hmmscope.analysis.curves import EvaluateOptions, Score, evaluate
from hmmscope.analysis.ngrams import is_ngram
from hmmscope.analysis.probes import probe
from hmmscope.analysis.untrained_controls import NUM_TWINS, InstrumentOptions
from hmmscope.datasets.layouts import SequenceLayout
from hmmscope.datasets.process_dataset import ProcessDataset
from hmmscope.datasets.targets import make_target
from hmmscope.errors import RefusedError
from hmmscope.lab.experiments.parts import BuildRecord
from hmmscope.lab.study import study_tables
from hmmscope.lab.study.fit_summary import tables_of_fit
from hmmscope.lab.study.fitted_hmm import fitted_hmm
from hmmscope.lab.study.study_page import SUMMARY, figures, findings, intervals
from hmmscope.lab.study.study_tables import Curves, opponent, over_counting, per_symbol, predictor_rows, searched
from hmmscope.models.base import parameter_count
from hmmscope.processes.files import load_process
from hmmscope.processes.hmm import HMM
from hmmscope.processes.recorded_sequences import RecordedSequences
from hmmscope.processes.require_type import require_process_type
from hmmscope.reprs import Tabular, html_rows, plot_rows
from hmmscope.runs.config import RunConfig
from hmmscope.runs.fit_options import FitOptions
from hmmscope.runs.fitting import fit
from hmmscope.runs.pipeline import Run, engine_of, model_io_of
from hmmscope.runs.training import TrainOptions, train
from hmmscope.schema import require, require_path, spec_to_data
from hmmscope.seeds import check_seed
from hmmscope.sequences.data import READING_OPTIONS, SequenceData, read_as
from hmmscope.storage import disk, seals, store
from hmmscope.storage.rundir import config_difference
from hmmscope.system_info import environment, machine_line
from hmmscope.text import say as say_aloud
from hmmscope.training.spec import TrainingSpec

#: Version of the measurements; raised only if tables change on the same data and networks.
MEASUREMENT = 4
#: Passes through the training part, tried in order as long as more help.
PASSES = (8, 16, 32, 64)


@dataclass(frozen=True, kw_only=True)
class StudySpec:
    """Settings of a study.

    Attributes:
        length: Maximum length of pieces, shorter if there would be fewer than 30.
        states: Numbers of states of the HMMs.
        restarts, iterations: Maxima per fit; restarts end once the best two agree in likelihood.
        order: Longest context of the n-grams and context trees.
        networks: Names of models.
        max_steps: Maximum optimizer steps per training.
        batch_size, learning_rate: Training settings.
        seeds: Trainings per network, with different weights and samples.
        split_seed: Seed of the split into training (8/10), validation (1/10) and test (1/10).
    """

    length: int = 128
    states: tuple[int, ...] = (1, 2, 4, 8, 16, 32)
    restarts: int = 12
    iterations: int = 200
    order: int = 5
    networks: tuple[str, ...] = ("rnn", "roformer")
    max_steps: int = 2000
    batch_size: int = 32
    learning_rate: float = 2e-3
    seeds: int = 1
    split_seed: int = 0

    def __post_init__(self) -> None:
        for name in ("restarts", "iterations", "max_steps", "batch_size", "seeds"):
            require(getattr(self, name) >= 1, name, "must be at least 1", getattr(self, name))
        require(self.length >= 2, "length", "must be at least 2", self.length)
        require(0 <= self.order <= 16, "order", "must be in [0, 16]", self.order)
        for name in ("states", "networks"):
            value = getattr(self, name)
            require(len(set(value)) == len(value) > 0, name, "must be one or several distinct values", value)
        for network in self.networks:
            registry.lookup("model", network, "networks")
        check_seed(self.split_seed, "split_seed")


@dataclass(frozen=True, repr=False)
class StudyResult(Tabular):
    """A finished study.

    Attributes:
        path: Folder of the study.
        hmm: The HMM compared with the networks; the table `states` has the number of states by BIC.
        run: The best network on the validation part.
    """

    path: Path
    hmm: HMM
    run: Run

    def table(self) -> list[dict[str, Any]]:
        """Return a row per predictor, with its test loss in nats per symbol."""
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

    All predictors are fitted to the training part. The validation part chooses the order of the n-gram, the training
    length of each network and the HMM compared with them. Losses are computed on the test part.

    Args:
        source: `SequenceData` or its sources: a file path, lists, an array.
        out: A new folder, or with `resume` the folder of the same study.
        resume: Resume the study in `out`.
        quiet: As for `FitOptions`.
        spec: Settings; or its `fields` (`StudySpec`), together with options of `SequenceData` such as `lengths`.

    Raises:
        InputError: No sequences, too few to split, or a field out of range.
        RefusedError: `out` exists, or contains another study.
    """
    reading = {name: fields.pop(name) for name in READING_OPTIONS if name in fields}
    path, work = require_path("out", out), prepare(source, spec or StudySpec(**fields), **reading)
    _claim(path, work, resume)
    say: Callable[[str], None] = (
        (lambda line: None) if quiet is not False else (lambda line: say_aloud(line, flush=True))
    )
    with disk.holding(path / "lock"):
        store.remove_leftovers(path)
        with disk.staying(path, "experiment.json"), seals.unsealed(path):
            return _carry_out(work, path, say, quiet)


def _carry_out(work: "Prepared", path: Path, say: Callable[[str], None], quiet: bool | None) -> StudyResult:
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
    """Return the figures and findings that follow from the tables, by file name."""
    found = {f"figures/{number:02d}-{one.name}.json": one.to_data() for number, one in enumerate(figures(tables), 1)}
    return found | {"findings.json": [one.to_data() for one in findings(tables, seeds)]}


class Prepared:
    """The data of a study, cut into pieces, and the settings.

    Attributes:
        spec: The settings.
        source: The sequences as given.
        data: All pieces.
        layout: A placeholder and a piece, so that the first symbol is also predicted.
    """

    def __init__(self, source: SequenceData, spec: StudySpec) -> None:
        self.spec, self.source = spec, source
        self.data = source.chunks(spec.length).seeded(spec.split_seed)
        self.process = RecordedSequences(self.data)
        self.layout = SequenceLayout(length=max(2, self.data.longest), placeholder=True)
        self.parts = self.data.train, self.data.validation, self.data.test  # raises if there are too few

    def corpus(self, stream: str) -> ProcessDataset:
        return ProcessDataset(self.process, layout=self.layout, stream=stream)

    def config(self, network: str, num_steps: int, seed: int) -> RunConfig:
        spec = self.spec
        training = TrainingSpec(
            num_steps=num_steps,
            batch_size=spec.batch_size,
            learning_rate=spec.learning_rate,
            warmup_steps=max(1, num_steps // 20),
            weight_decay=0.1,
            evaluate_every=max(1, num_steps // 10),
        )
        model = {"name": network} | getattr(registry.entries("model").get(network), "study_fields", {})
        return RunConfig(process=self.process, layout=self.layout, model=model, training=training, seed=seed)

    @cached_property
    def steps(self) -> tuple[int, ...]:
        each = self.parts[0].num_observations / (self.spec.batch_size * self.layout.length)
        counts = [max(50, round(passes * each)) for passes in PASSES]
        return tuple(sorted({count for count in counts if count <= self.spec.max_steps})) or (self.spec.max_steps,)

    def engine(self, network: str) -> str:
        """Return the training engine for all trainings of a network, chosen by the longest of them."""
        config = self.config(network, self.steps[-1], 0)
        config = replace(config, training=replace(config.training, device="cpu"))
        return engine_of(config, model_io_of(config, make_target(config.target, self.process, self.layout))).engine

    def facts(self) -> list[dict[str, str]]:
        train, validation, test = (f"{part.num_observations:,} symbols in {len(part):,} pieces" for part in self.parts)
        lines = self.data.describe().splitlines()
        about = {"data": lines[0], "begins": lines[1].strip().removeprefix("first: ")}
        about |= {"training": train, "validation": validation, "test": test, "seeds of networks": str(self.spec.seeds)}
        return [{"name": name, "value": value} for name, value in about.items()]


def prepare(source: Any, spec: StudySpec, **reading: Any) -> Prepared:
    """Read and split the data of a study; raise InputError if that is impossible."""
    return Prepared(read_as(source, reading), spec)


def _claim(path: Path, work: Prepared, resume: bool) -> None:
    config = {"study": spec_to_data(work.spec), "data": work.data.digest}
    if os.path.lexists(path):
        if not resume:
            raise RefusedError(f"{path}: exists; choose another --out, or add --resume (resume=True in Python)")
        before = store.read_json(path / "experiment.json", managed=True) if (path / "experiment.json").is_file() else {}
        if before.get("experiment") != "study":
            raise RefusedError(f"{path}: exists and is not the folder of a study; choose another --out")
        if difference := config_difference(before["config"], config):
            raise RefusedError(f"{path}: contains another study ({'; '.join(difference[:4])}); choose another --out")
        return
    default = spec_to_data(StudySpec())
    changes = [f"--{k} {_listed(v)}" for k, v in spec_to_data(work.spec).items() if v != default[k]]
    about = {
        "format": store.FORMATS["experiment"],
        "experiment": "study",
        "title": f"A study of {work.source.title}",
        "summary": SUMMARY,
        "scale": "own",
        "created": date.today().isoformat(),
        "version": __version__,
        "command": " ".join([f"hmmscope study {work.source.title} --out {path.name}", *changes]),
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


def _fit_all(work: Prepared, path: Path, say: Callable[[str], None], quiet: bool | None) -> dict[int, HMM]:
    spec, hmms = work.spec, {}
    store.make_folder(path / "hmms")
    for size in spec.states:
        file, search = (path / "hmms" / name for name in (f"{size}.json", f"{size}-search.json"))
        kept = require_process_type(load_process(file), HMM) if os.path.lexists(file) else None
        if kept is None or not search.is_file():  # older studies have no search records
            say(f"study: fitting an HMM of {size} state{'s' * (size != 1)}")
            most, steps = (spec.restarts, spec.iterations) if kept is None else (1, 1)
            options = FitOptions(start=kept, num_restarts=most, max_iterations=steps, quiet=quiet)
            found = fit(work.parts[0], size, seed=spec.split_seed, options=options)
            one = found.fits[size]
            store.write_json(search, searched(one))
            if kept is None:
                found.hmm.save(file)
        hmms[size] = require_process_type(load_process(file), HMM)
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
    work: Prepared, path: Path, hmms: dict[int, HMM], runs: Sequence[Run], say: Callable[[str], None]
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
    tables: dict[str, list[dict[str, Any]]] = {
        "predictors": rows,
        "states": (sizes := study_tables.num_states(searches, judged["evaluate"], hmms, work.parts[0])),
        "entropies": study_tables.entropies(work.parts[0], work.spec.order),
        "positions": list(study_tables.positions(named)),
        "contexts": study_tables.contexts(work.corpus("test"), gain),
        "beliefs": list(_beliefs(work, hmm, network)),
        **tables_of_fit(hmms[next(row["num_states"] for row in sizes if row["chosen"])], work.parts[0]),
    }
    for name, table in tables.items():
        store.write_table(path / "tables" / f"{name}.jsonl", table)
    best: dict[str, Any] = {"states": hmm.num_states, "run": network.path.name}
    best |= dict(zip(("value", "low", "high"), per_symbol(gain), strict=True))
    best |= over_counting([chosen["n-gram"], chosen["context trees"]], test, network.path.name)
    store.write_table(file, [best])
    made.note("study", [f"tables/{table.name}" for table in (path / "tables").glob("*.jsonl")])
    return best


def _searches(path: Path, hmms: dict[int, HMM]) -> dict[int, dict[str, Any]]:
    return {size: store.read_json(path / "hmms" / f"{size}-search.json", managed=True) for size in hmms}


def _losses(work: Prepared, stream: str, hmms: dict[int, HMM], runs: Sequence[Run]) -> dict[str, Curves]:
    dataset = work.corpus(stream)
    found: dict[str, Curves] = {}
    for number, run in enumerate(runs):
        observers = {f"HMM-{size}": hmm for size, hmm in hmms.items()} if number == 0 else {}
        score: Score = evaluate(
            run.model,
            dataset,
            num_samples=2**20,
            baselines=number == 0,
            observers=observers,
            options=EvaluateOptions(ngram_order=work.spec.order),
        )
        in_training = [name for name in score.measures if not is_ngram(name) or name.startswith("trained-")]
        losses = {name: score.measures[name]["loss"] for name in in_training}
        found[run.path.name] = losses.pop("model")
        found |= {name.removeprefix("trained-").replace("order", "n-gram"): loss for name, loss in losses.items()}
    return found


def _known(
    work: Prepared, hmms: dict[int, HMM], runs: Sequence[Run], test: dict[str, Curves]
) -> dict[str, dict[str, Any]]:
    num_symbols, train = work.data.num_symbols, work.parts[0]
    known = study_tables.counters(train, [order for order in range(work.spec.order + 1) if f"n-gram-{order}" in test])
    for size in hmms:
        free = size - 1 + size * (size - 1) + size * (num_symbols - 1)
        known[f"HMM-{size}"] = {"family": "HMM", "size": size, "parameters": free}
    for run in runs:
        about = {"family": "network", "size": run.config.training.num_steps, "parameters": parameter_count(run.model)}
        known[run.path.name] = about | {"network": run.config.model.name, "seed": run.config.seed}
    return known


def _beliefs(work: Prepared, hmm: HMM, run: Run) -> Iterator[dict[str, Any]]:
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
