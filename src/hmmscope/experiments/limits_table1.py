"""[Limits] Table 1: mixing times, by the definition, beside the printed ones."""

from typing import Any

from hmmscope import registry
from hmmscope.evidence.figures import Bars, Figure, Series
from hmmscope.evidence.pooling import pool_rows
from hmmscope.experiments.experiment import Experiment, Finding, Measured, Tables
from hmmscope.inference.mixing import PAPER_OFFSET, mixing_time
from hmmscope.processes.make import make_process
from hmmscope.runs.pipeline import Run
from hmmscope.schema import require

SCALES: dict[str, dict[str, Any]] = {
    "smoke": {"instances": 2, "samples": 32},
    "small": {"instances": 20, "samples": 2000},
    "gpu": {"instances": 40, "samples": 10_000},
    "paper": {"instances": 5, "samples": 1_000_000},
}
#: Where the paper stops.
PAPER_CAP = 120

#: Each row with its process, its fields, and the printed number; None where the law is not the one taken for it.
ROWS: dict[str, tuple[str, dict[str, Any], float | None]] = {
    "RanHMM": ("ran-hmm", {}, 1.6),
    "RanHMM, softmax": ("ran-hmm", {"law": "softmax"}, None),
    "RanHMM, uniform": ("ran-hmm", {"law": "uniform"}, None),
    "RanLDS": ("ran-lds", {}, 3.12),
    "CR-0.01": ("cyclic-rnd", {"backward_probability": 0.01}, 120.0),
    "CR-0.03": ("cyclic-rnd", {"backward_probability": 0.03}, 69.4),
    "CR-0.05": ("cyclic-rnd", {"backward_probability": 0.05}, 42.2),
    "CR-0.1": ("cyclic-rnd", {"backward_probability": 0.1}, 21.4),
    "CR-0.15": ("cyclic-rnd", {"backward_probability": 0.15}, 14.2),
}
#: How far a mean may be from the printed one: instances differ, and the paper has five. The formula has no noise.
TOLERANCES = {"RanLDS": 0.01, "CR-0.03": 1.5}
TOLERANCE = 1.0


@registry.experiment("limits-table1")
class Table1(Experiment):
    """See the module."""

    title = "Mixing times of the processes"
    summary = (
        "How many steps it takes until two observers who disagreed about the first state agree to 1/10 in total variation, "
        "on average over sequences (Eq. A.2 of [Limits]); for the linear system ln 0.05 / ln ζ, exactly. Random instances, "
        "beside the numbers printed in Table 1. Nothing is trained."
    )
    intervals = "Means over instances of the process; intervals are 95 % intervals over instances by Student's law."
    groups = {"times": ("mixing-times",)}

    def measurements(self, scale: str) -> dict[str, Any]:
        return {"num_states": 5, "num_symbols": 5, "max_time": 240, **SCALES[scale]}

    def measure(self, runs: dict[str, Run], group: str, sizes: dict[str, Any]) -> Measured:
        require(sizes["instances"] >= 1, "measurements.instances", "must be at least 1", sizes["instances"])
        rows = []
        for label, (name, fields, printed) in ROWS.items():
            for seed in range(sizes["instances"]):
                rows.append(
                    {"seed": seed, "process": label} | _times(name, fields, seed, sizes) | _printed(label, printed)
                )
        return {"mixing-times": rows}

    def figures(self, tables: Tables) -> list[Figure]:
        return [_figure(tables["mixing-times"])]

    def notes(self, tables: Tables) -> list[Finding]:
        return [_offset_note(tables["mixing-times"])]


def _times(name: str, fields: dict[str, Any], seed: int, sizes: dict[str, Any]) -> dict[str, Any]:
    """The definition's time, cut at the paper's cap, and less the offset of its table."""
    sized = {"num_states": sizes["num_states"], "num_symbols": sizes["num_symbols"]} if name != "ran-lds" else {}
    process = make_process(name, seed=seed, **sized, **fields)
    found = mixing_time(process, num_samples=sizes["samples"], max_time=sizes["max_time"], seed=seed)
    if found.distances is None:  # a formula: no cap, no offset
        return {"time": found.time, "capped": found.time, "shifted": found.time}
    uncapped = float(sizes["max_time"]) if found.time is None else found.time
    shifted = min(uncapped - PAPER_OFFSET, float(PAPER_CAP))
    return {"time": found.time, "capped": min(uncapped, float(PAPER_CAP)), "shifted": shifted}


def _printed(label: str, printed: float | None) -> dict[str, Any]:
    return {"printed": printed, "tolerance": TOLERANCES.get(label, TOLERANCE) if printed is not None else None}


def _figure(rows: list[dict]) -> Figure:
    def panel(kept: list[str], title: str) -> Bars:
        inside = [row for row in rows if row["process"] in kept]
        pooled = {
            c: {r["process"]: r for r in pool_rows(inside, ["process"], c)} for c in ("capped", "shifted", "printed")
        }
        drawn = []
        for column, name, role in (
            ("capped", "definition", "other"),
            ("shifted", "definition less two steps", "other"),
            ("printed", "printed in [Limits]", "baseline"),
        ):
            found = [pooled[column][process] for process in kept]
            bounds = (
                {side: tuple(row[side] for row in found) for side in ("low", "high")} if column != "printed" else {}
            )
            drawn.append(Series(name=name, y=tuple(row[column] for row in found), role=role, **bounds))  # type: ignore[arg-type]
        return Bars(title=title, y_label="steps", categories=tuple(kept), series=tuple(drawn))

    shown = [label for label, (_, _, printed) in ROWS.items() if printed is not None]
    return Figure(
        name="mixing-times",
        title="Mixing times beside Table 1",
        caption=(
            "Steps until the start is forgotten: by the definition (Eq. A.2; cut at 120 as in the paper), the same less two "
            "steps, and as printed. RanLDS has a formula, and no steps are taken off. CR-p is Cyclic-RND with backward "
            "probability p. Means over instances with 95 % intervals."
        ),
        panels=(
            panel([label for label in shown if label.startswith("Ran")], "Forget quickly"),
            panel([label for label in shown if label.startswith("CR")], "Cyclic-RND"),
        ),
    )


def _offset_note(rows: list[dict]) -> Finding:
    """How many rows agree when two steps are taken off."""
    kept = [row for row in rows if row["printed"] is not None and row["process"] != "RanLDS"]
    pooled = pool_rows(kept, ["process", "printed", "tolerance"], "shifted")
    near = [row for row in pooled if abs(row["shifted"] - row["printed"]) <= row["tolerance"]]
    listed = "; ".join(f"{row['process']} {row['shifted']:.1f} ({row['printed']:g})" for row in pooled)
    text = (
        f"Less two steps, and cut at {PAPER_CAP}, {len(near)} of {len(pooled)} means are within the tolerance of the "
        f"printed ones: {listed}. The paper mentions no such offset; it is inferred from its numbers."
    )
    return Finding(title="Table 1 read as two steps less than its definition", text=text, verdict="found")
