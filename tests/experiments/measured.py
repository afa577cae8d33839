"""What experiments measure on frozen tiny models, in float64: the identity of a measurement, beside its version.

    tests/experiments/measured/<experiment>.json.xz     version, and rows: of each table some, and of each column the sums

An experiment is run at the smallest scale with one seed and steps that change no weight; then every weight is moved by a
wave, so that neither the code of trainings nor the kernel that computes a gradient is in the rows. Ends of intervals and
sentences are left out: their law and wording belong to no measurement. Rows are compared within 1e-6, relative. Columns
that differ from one run to the next, such as seconds, are left out.

    python tests/experiments/measured.py                       compare, as the slow test does
    python tests/experiments/measured.py --keep [NAME ...]     keep the rows of new experiments and of raised versions
"""

import argparse
import json
import lzma
import math
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch

from hmmscope import registry
from hmmscope.analysis import probes
from hmmscope.errors import InputError
from hmmscope.lab.experiments import parts, running
from hmmscope.lab.experiments.experiment import Experiment, MeasuredTables, experiment_named
from hmmscope.lab.experiments.parts import measurement_of
from hmmscope.lab.experiments.planning import plan_of
from hmmscope.runs import settings
from hmmscope.runs.pipeline import Run
from hmmscope.storage.packed import read_tables

#: Each distribution keeps what is frozen of its experiments.
_OUTER = {"hmmscope_papers": "papers", "hmmscope_studies": "studies"}


def place(name: str) -> Path:
    """The file of an experiment."""
    package = type(experiment_named(name)).__module__.partition(".")[0]
    root = Path(__file__).parents[2] / _OUTER.get(package, "")
    return root / "tests" / "experiments" / "measured" / f"{name}.json.xz"


#: Rows of a table that are kept, evenly drawn.
DRAWN = 12
RELATIVE, ABSOLUTE = 1e-6, 1e-9
#: Columns that depend on the order in which a processor adds: rounding errors of float32, and what a search ends at that
#: goes on for as long as such sums differ.
ROUNDING = {
    "limits-theorem5.1": ("/errors/columns/error/drawn",),
    "multitask-theorem2": ("/equality/columns/weights_error/drawn",),
    "multitask-pool-size": ("/weights/columns/error/drawn",),
    "discovery": ("/coordinates/columns/value/drawn",),
}
#: Columns that belong to no measurement: ends of intervals, and sentences about twins.
ELSEWHERE = {"low", "high", "beyond_twins", "said"}


@contextmanager
def frozen() -> Iterator[None]:
    """Numbers are float64 in here, weights of what is measured follow from their places alone, probes are at their minimum.

    A probe that stops before it calls an example now this, now that, by how a processor adds.
    """
    kind, measure, fit = torch.get_default_dtype(), parts._measure, probes.fit_logistic

    def measured(experiment: Experiment, runs: dict[str, Run], group: str, sizes: dict[str, Any]) -> MeasuredTables:
        for run in runs.values():
            if not hasattr(run, "moved"):
                _move(run.model)
                object.__setattr__(run, "moved", True)
        return measure(experiment, runs, group, sizes)

    def fitted(x: torch.Tensor, labels: torch.Tensor, num_classes: int) -> torch.Tensor:
        return fit(x.double(), labels, num_classes, tolerance=1e-8, max_steps=1000).to(x.dtype)

    torch.set_default_dtype(torch.float64)
    settings.DTYPE = torch.float64
    parts._measure, probes.fit_logistic = measured, fitted
    try:
        yield
    finally:
        torch.set_default_dtype(kind)
        settings.DTYPE = torch.float32
        parts._measure, probes.fit_logistic = measure, fit


def _move(model: torch.nn.Module) -> None:
    with torch.no_grad():
        for number, weights in enumerate(model.parameters()):
            wave = torch.sin(torch.arange(weights.numel(), dtype=torch.float64) * 0.7 + number)
            weights.add_(0.1 * wave.reshape(weights.shape).to(weights.dtype))


def rows_of(name: str) -> dict[str, Any]:
    """What is compared of the tables of an experiment, by table."""
    experiment = experiment_named(name)
    options: dict[str, Any] = {"seeds": 1} if experiment.num_seeds else {}
    if experiment.plan("smoke", **experiment.choices("smoke")):
        still = {"learning_rate": "1e-30", "device": "cpu", "engine": "torch"}
        options["overrides"] = {f"training.{key}": value for key, value in still.items()}
        with suppress(InputError):  # a curriculum may need more steps than two
            plan_of(name, "smoke", fewer := options["overrides"] | {"training.num_steps": "2"}, options.get("seeds"))
            options["overrides"] = fewer
    folder = Path(tempfile.mkdtemp())
    try:
        with frozen():
            out = running.run_experiment(name, "smoke", folder / "out", quiet=True, **options)
        tables = read_tables(out)
    finally:
        shutil.rmtree(folder)
    return {table: _summary(rows) for table, rows in tables.items() if table != "runs"}


def _summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    columns = sorted({column for row in rows for column in row} - ELSEWHERE)
    every = max(1, len(rows) // DRAWN)
    made: dict[str, Any] = {"rows": len(rows), "columns": {}}
    for column in columns:
        values = [_flat(row.get(column)) for row in rows]
        numbers = [x for value in values for x in value if isinstance(x, int | float) and not isinstance(x, bool)]
        sums = [math.fsum(numbers), math.fsum(x * x for x in numbers)] if all(map(math.isfinite, numbers)) else []
        made["columns"][column] = {"drawn": [value[:6] for value in values[::every][:DRAWN]], "sums": sums}
    return made


def _flat(value: Any) -> list[Any]:
    if isinstance(value, list):
        return [one for each in value for one in _flat(each)]
    if isinstance(value, dict):
        return [one for key in sorted(value) for one in _flat(value[key])]
    if isinstance(value, str) and len(value) > 60:  # packed points, whose grid may see the last bit
        return [f"{len(value)} characters"]
    return [float(f"{value:.9g}")] if isinstance(value, float) and math.isfinite(value) else [value]


def differences(kept: Any, now: Any, where: str = "") -> list[str]:
    """Where two summaries differ by more than 1e-6, relative."""
    if isinstance(kept, Mapping) and isinstance(now, Mapping):
        missing = [f"{where}/{key}" for key in kept.keys() ^ now.keys()]
        return missing + [
            d for key in kept.keys() & now.keys() for d in differences(kept[key], now[key], f"{where}/{key}")
        ]
    if isinstance(kept, list) and isinstance(now, list):
        if len(kept) != len(now):
            return [where]
        return [d for one, other in zip(kept, now, strict=True) for d in differences(one, other, where)]
    if isinstance(kept, float) and isinstance(now, int | float):
        return [] if math.isclose(kept, now, rel_tol=RELATIVE, abs_tol=ABSOLUTE) else [where]
    return [] if kept == now else [where]


def read(name: str) -> dict[str, Any] | None:
    """What is kept of an experiment; None of a new one."""
    path = place(name)
    return json.loads(lzma.decompress(path.read_bytes())) if path.is_file() else None


def keep(name: str, rows: Callable[[str], dict[str, Any]] = rows_of) -> None:
    """Keep what an experiment measures, without the columns that differ when it is measured twice."""
    first, again = rows(name), rows(name)
    unsteady = sorted({*differences(first, again), *ROUNDING.get(name, ())})
    for where in unsteady:
        _, table, _, column, *_ = where.split("/")
        first[table]["columns"].pop(column, None)
    place(name).parent.mkdir(parents=True, exist_ok=True)
    made = {"version": measurement_of(experiment_named(name)).version, "unsteady": unsteady, "tables": first}
    text = json.dumps(made, separators=(",", ":"), sort_keys=True).encode()
    place(name).write_bytes(lzma.compress(text, preset=9))


def complaint(name: str, kept: dict[str, Any] | None, now: dict[str, Any], version: int) -> str | None:
    """What has to be done with the version of a measurement, or None."""
    if kept is None:
        return f"{name}: is new; keep what it measures"
    left_out = [where.split("/")[1:4:2] for where in kept["unsteady"]]
    now = json.loads(json.dumps(now))
    for table, column in left_out:
        now.get(table, {}).get("columns", {}).pop(column, None)
    found = differences(kept["tables"], now)
    if found and version == kept["version"]:
        return f"{name}: {', '.join(sorted(set(found))[:4])}: other rows than version {version} had; raise the version"
    if found:
        return f"{name}: version {version} is new; keep what it measures"
    if version != kept["version"]:
        return f"{name}: measures what version {kept['version']} did; do not raise the version"
    return None


def main() -> None:
    """See above."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    for name in options.names or sorted(registry.entries("experiment")):
        kept = read(name)
        if kept is None and options.keep:
            print(name, flush=True)
            keep(name)
            continue
        said = complaint(name, kept, rows_of(name), measurement_of(experiment_named(name)).version)
        if said is not None:
            print(said, flush=True)
            if options.keep and said.endswith("keep what it measures"):
                keep(name)


if __name__ == "__main__":
    main()
