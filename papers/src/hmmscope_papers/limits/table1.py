"""[Limits] Table 1: mixing times computed by the paper's definition, compared with the printed values."""

from itertools import pairwise
from typing import Any

from hmmscope import Run, lab, make_process, mixing_time, registry
from hmmscope.schema import require
from hmmscope_papers.limits.tables import each, over_seeds, told

#: Largest mixing time in the paper, in steps.
PAPER_CAP = 120

#: Process, fields and printed number of each row; None if the matrices are drawn differently from the paper's.
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
#: Allowed distance of a mean from the printed one: the paper averages five instances. RanLDS has an exact formula.
TOLERANCES = {"RanLDS": 0.01, "CR-0.03": 1.5}
TOLERANCE = 1.0
_COMMON = {"num_states": 5, "num_symbols": 5, "max_time": 240}


#: The paper's step index minus the definition's.
PAPER_OFFSET = 2


@registry.experiment("limits-table1")
class Table1(lab.Experiment):
    """Mixing times of random instances of each process; Cyclic-RND for several backward probabilities."""

    title = "Mixing times of the processes"
    in_paper = "[Limits] Table 1", "The Cyclic-DET and Cyclic-HARD model do not have a stationary distribution."
    summary = (
        "The mixing time is the number of steps until two observers with different beliefs about the first state agree up "
        "to 1/10 in total variation, on average over sequences (Eq. A.2 of [Limits]). For the linear system (RanLDS) "
        "it is exactly ln 0.05 / ln ζ, if each step multiplies an error of the filter's mean by ζ. Random instances "
        "are compared with the numbers printed in Table 1. Nothing is trained."
    )
    intervals = (
        "Means over instances of the process; intervals are 95 % intervals over instances by Student's t distribution."
    )
    sizes = {
        "smoke": {**_COMMON, "instances": 2, "samples": 32},
        "small": {**_COMMON, "instances": 20, "samples": 2000},
        "gpu": {**_COMMON, "instances": 40, "samples": 10_000},
        "paper": {**_COMMON, "instances": 5, "samples": 1_000_000},
    }
    groups = {"times": ("mixing-times",)}

    def measure(self, runs: dict[str, Run], group: str, sizes: dict[str, Any]) -> lab.MeasuredTables:
        require(sizes["instances"] >= 1, "measurements.instances", "must be at least 1", sizes["instances"])
        rows = []
        for label, (name, fields, printed) in ROWS.items():
            facts = {"process": label, "backward": fields.get("backward_probability")}
            tolerance = TOLERANCES.get(label, TOLERANCE) if printed is not None else None
            for seed in range(sizes["instances"]):
                times = _times(name, fields, seed, sizes)
                rows.append({"seed": seed} | facts | times | {"printed": printed, "tolerance": tolerance})
        return {"mixing-times": rows}

    def figures(self, tables: lab.Tables) -> list[lab.Figure]:
        return [_figure(tables["mixing-times"])]


def _times(name: str, fields: dict[str, Any], seed: int, sizes: dict[str, Any]) -> dict[str, Any]:
    sized = {"num_states": sizes["num_states"], "num_symbols": sizes["num_symbols"]} if name != "ran-lds" else {}
    process = make_process(name, seed=seed, **sized, **fields)
    found = mixing_time(process, num_samples=sizes["samples"], max_time=sizes["max_time"], seed=seed)
    if found.distances is None:  # a formula: no cap, no offset
        return {"time": found.time, "capped": found.time, "shifted": found.time}
    uncapped = float(sizes["max_time"]) if found.time is None else found.time
    shifted = min(uncapped - PAPER_OFFSET, float(PAPER_CAP))
    return {"time": found.time, "capped": min(uncapped, float(PAPER_CAP)), "shifted": shifted}


def _figure(rows: lab.Rows) -> lab.Figure:
    def panel(kept: list[str], title: str) -> lab.Panel:
        inside = rows.where(process=kept)
        printed = {row["process"]: row["printed"] for row in inside}
        return lab.bars(
            title,
            lab.bar(inside, "process", kept, "definition", "other", y="capped"),
            lab.bar(inside, "process", kept, "definition less two steps", "other", y="shifted"),
            lab.Series(name="printed in [Limits]", y=tuple(printed[process] for process in kept), role="baseline"),
            categories=kept,
            y_label="steps",
        )

    shown = [label for label, (_, _, printed) in ROWS.items() if printed is not None]
    return lab.Figure(
        name="mixing-times",
        title="Mixing times compared with Table 1",
        caption=(
            "Bars show three mixing times: that of the definition (Eq. A.2, cut at 120 steps as in the paper), that "
            "minus two steps (not counted in the paper), and the printed one. RanLDS has a formula: nothing is "
            "subtracted. CR-p is Cyclic-RND with probability p of a step backward. Intervals: 95 % over instances."
        ),
        panels=(
            panel([label for label in shown if label.startswith("Ran")], "Processes that forget quickly"),
            panel([label for label in shown if label.startswith("CR")], "Cyclic-RND"),
        ),
    )


# ---------------------------------------------------------------------------------------------------------------------
# Claims

#: The reference row, and the row that the paper cuts.
REFERENCE, CUT = "CR-0.15", "CR-0.01"
#: Rows that the paper prints without cutting, except for the reference.
COMPARED = ("RanHMM", "CR-0.03", "CR-0.05", "CR-0.1")


def from_printed(own: lab.Rows) -> dict[str, float]:
    return {row["process"]: row["capped"] - row["printed"] for row in own if row["process"] in (*COMPARED, REFERENCE)}


@lab.claim("limits-table1-values")
def table1_values(tables: lab.Tables) -> lab.Measurement:
    rows = tables["mixing-times"]
    effects: dict[str, lab.Effect] = {}
    for process in COMPARED:

        def apart(own: lab.Rows, process: str = process) -> float | None:
            found = from_printed(own)
            return found[process] - found[REFERENCE] if {process, REFERENCE} <= found.keys() else None

        found = over_seeds(rows, apart, "steps above the printed difference")
        effects |= {process: found} if found else {}
    known = rows.where(process=[*COMPARED, REFERENCE, CUT]).pool("process", "printed", value="capped")
    listed = "; ".join(f"{row['process']} {row['capped']:.2f}, printed {row['printed']:g}" for row in known)
    text = f"Mean mixing times by the definition, cut at {PAPER_CAP} steps: {listed}. "
    text += f"Difference from the mixing time of {REFERENCE}, computed minus printed, in steps: {told(effects)}."
    return lab.Measurement(effects, text, required=COMPARED)


@lab.claim("limits-table1-lds")
def table1_lds(tables: lab.Tables, numbers: lab.RuleParameters) -> lab.Measurement:
    rows = tables["mixing-times"].where(process="RanLDS")
    gaps = [row["capped"] - row["printed"] for row in rows]
    known = (
        lab.Effect.pooled(gaps, "steps above the printed value", resolution=lab.parameter(numbers, "printed_to"))
        if gaps
        else None
    )
    return lab.Measurement(known, f"The formula gives {rows[0]['capped']:.4f}." if rows else "")


@lab.claim("limits-mixing-falls")
def mixing_falls(tables: lab.Tables) -> lab.Measurement:
    slips = {
        label: fields["backward_probability"]
        for label, (_, fields, _) in ROWS.items()
        if "backward_probability" in fields
    }
    rows = tables["mixing-times"].where(process=list(slips))
    count = len(rows.values("process"))

    def smallest(own: lab.Rows) -> float | None:
        known = sorted((slips[row["process"]], row["time"]) for row in own if row["time"] is not None)
        falls = [before - after for (_, before), (_, after) in pairwise(known)]
        return min(falls) if len(known) == count and falls else None

    means = each(lab.Rows(row for row in rows if row["time"] is not None), "process", lambda own: float(own[0]["time"]))
    text = f"Mean mixing times in steps: {'; '.join(f'{name} {one.value:.1f}' for name, one in means.items())}."
    return lab.Measurement(over_seeds(rows, smallest, "smallest decrease of the mixing time in steps"), text)
