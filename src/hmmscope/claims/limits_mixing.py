"""Claims of [Limits] on mixing: Table 1, and Figure 4, left."""

from itertools import pairwise
from typing import Any

from hmmscope.claims.old import Judgement, Tables, claim, is_above
from hmmscope.evidence.pooling import by_seed, pool_rows
from hmmscope.evidence.verdicts import Verdict

#: A window-limited predictor whose error at the end is below this has a process that forgets within the sequence.
FORGOTTEN = 0.25

#: An advantage below this is none: the smaller error rate of [Limits].
ERROR_RATE = 0.05


@claim(
    "limits-table1-values",
    source="[Limits] Table 1",
    statement="The mixing times of Eq. (A.2) are those printed in Table 1.",
    experiment="limits-table1",
)
def table1_values(tables: Tables) -> Judgement:
    """Each printed row by the interval over instances; every row has to agree."""
    rows = [row for row in tables["mixing-times"] if row["printed"] is not None]
    pooled = pool_rows(rows, ["process", "printed", "tolerance"], "capped")
    verdicts = [_within(row) for row in pooled]
    verdict: Verdict = "inconclusive"
    if "not reproduced" in verdicts:
        verdict = "not reproduced"
    elif set(verdicts) == {"reproduced"}:
        verdict = "reproduced"
    listed = "; ".join(
        f"{row['process']} {row['capped']:.2f} ({row['low']:.2f} to {row['high']:.2f}), printed {row['printed']:g}: {found}"
        for row, found in zip(pooled, verdicts, strict=True)
    )
    effect = by_seed(rows, lambda one: max(abs(row["capped"] - row["printed"]) for row in one))
    assert effect is not None
    text = f"By the definition, cut at 120 steps: {listed}."
    return Judgement(
        verdict=verdict, text=text, value=effect.value, low=effect.low, high=effect.high, unit="steps from the printed"
    )


def _within(row: dict[str, Any]) -> Verdict:
    """Whether a mean is within its tolerance of the printed one."""
    least, most = row["printed"] - row["tolerance"], row["printed"] + row["tolerance"]
    if row["seeds"] < 2:
        return "inconclusive"
    if row["high"] < least or row["low"] > most:
        return "not reproduced"
    return "reproduced" if least <= row["low"] and row["high"] <= most else "inconclusive"


@claim(
    "limits-mixing-falls",
    source="[Limits] §4.3, Table 1",
    statement="The mixing time of Cyclic-RND falls as its backward probability rises.",
    experiment="limits-table1",
)
def mixing_falls(tables: Tables) -> Judgement:
    """The smallest fall from one backward probability to the next, within an instance."""
    rows = [row for row in tables["mixing-times"] if row["process"].startswith("CR-") and row["time"] is not None]
    names = {row["process"] for row in rows}

    def smallest_fall(one: list) -> float | None:
        found = sorted((float(row["process"][3:]), row["time"]) for row in one)
        falls = [before - after for (_, before), (_, after) in pairwise(found)]
        return min(falls) if len(found) == len(names) and falls else None

    effect = by_seed(rows, smallest_fall)
    if effect is None:
        return Judgement(verdict="inconclusive", text="No instance has a mixing time at every backward probability.")
    means = "; ".join(f"{row['process']} {row['time']:.1f}" for row in pool_rows(rows, ["process"], "time"))
    text = (
        f"Mean steps: {means}. The smallest fall from one to the next within an instance is {effect.value:.1f} steps."
    )
    return is_above(effect, text, "smallest fall, steps")


# ---------------------------------------------------------------------------------------------------------------------
# Figure 4, left


def _errors(rows: list, predictor: str) -> dict[float, list[float]]:
    """Error by position 1, 2, ... for each backward probability, of the rows of one seed."""
    found: dict[float, list[tuple[int, float]]] = {}
    for row in rows:
        if row["predictor"] == predictor:
            found.setdefault(row["probability"], []).append((row["position"], row["value"]))
    return {probability: [value for _, value in sorted(pairs)] for probability, pairs in sorted(found.items())}


@claim(
    "limits-mixing-hump",
    source="[Limits] §4.3, Fig. 4 left",
    statement="Where the process forgets within the sequence, its middle positions are the hardest (by more than 0.05).",
    experiment="limits-fig4-mixing",
)
def hump(tables: Tables) -> Judgement:
    """The largest error against that at the first and at the last position, within a seed."""
    rows = tables["errors"]
    uniform = pool_rows([row for row in rows if row["predictor"] == "uniform"], ["probability", "position"])
    last = max(row["position"] for row in uniform)
    forgets = sorted({r["probability"] for r in uniform if r["position"] == last and r["value"] < FORGOTTEN})
    if not forgets:
        text = f"No backward probability is so large that the uniform law is within {FORGOTTEN} at position {last}."
        return Judgement(verdict="inconclusive", text=text)

    def height(one: list) -> float | None:
        curves = _errors(one, "model")
        return min(max(curve) - max(curve[0], curve[-1]) for p, curve in curves.items() if p in forgets)

    effect = by_seed(rows, height)
    assert effect is not None
    model = pool_rows([row for row in rows if row["predictor"] == "model"], ["probability", "position"])
    told = []
    for probability in forgets:
        curve = {
            row["position"]: row["value"] for row in model if row["probability"] == probability and row["position"]
        }
        top = max(curve, key=lambda position: curve[position])
        told.append(f"{probability:g}: {curve[top]:.3f} at position {top}, {curve[last]:.3f} at position {last}")
    text = f"Largest and last error by backward probability: {'; '.join(told)}."
    return is_above(effect, text, "smallest height of the peak over both ends", above=ERROR_RATE)


@claim(
    "limits-mixing-end",
    source="[Limits] §4.3, Fig. 4 left",
    statement="The error at the end of the sequence falls as the backward probability rises.",
    experiment="limits-fig4-mixing",
)
def end_falls(tables: Tables) -> Judgement:
    """The smallest fall from one probability to the next at the last position, within a seed."""

    def smallest_fall(one: list) -> float | None:
        ends = [curve[-1] for curve in _errors(one, "model").values()]
        return min((a - b for a, b in pairwise(ends)), default=None)

    effect = by_seed(tables["errors"], smallest_fall)
    if effect is None:
        return Judgement(verdict="inconclusive", text="There is only one backward probability.")
    last = max(row["position"] for row in tables["errors"])
    kept = [row for row in tables["errors"] if row["predictor"] == "model" and row["position"] == last]
    ends = "; ".join(f"{row['probability']:g}: {row['value']:.3f}" for row in pool_rows(kept, ["probability"]))
    return is_above(effect, f"Error at position {last} by backward probability: {ends}.", "smallest fall of the error")


@claim(
    "limits-mixing-window",
    source="[Limits] §4.3, Thm. 5.2",
    statement="Beyond 2^L positions an L-layer Transformer is no better than a window allows: than the uniform law.",
    experiment="limits-fig4-mixing",
)
def window(tables: Tables) -> Judgement:
    """How much better than the uniform law the model is at positions above 2^L, within a seed.

    A model that has learned nothing is no better anywhere, and says nothing of windows.
    """
    rows = tables["errors"]

    def advantage(one: list, beyond: bool) -> float | None:
        model, uniform, reach = _errors(one, "model"), _errors(one, "uniform"), 2 ** one[0]["layers"]
        kept = slice(reach, None) if beyond else slice(0, reach)
        found = [u - m for p in model for m, u in zip(model[p][kept], uniform[p][kept], strict=True)]
        return sum(found) / len(found) if found else None

    effect = by_seed(rows, lambda one: advantage(one, True))
    if effect is None:
        return Judgement(verdict="inconclusive", text="The sequence is not longer than 2^L positions.")
    inside = by_seed(rows, lambda one: advantage(one, False))
    if inside is None or not inside.decides or inside.low <= ERROR_RATE:
        text = f"The model is not {ERROR_RATE} better than the uniform law up to 2^L either: it has not learned the process."
        return Judgement(verdict="inconclusive", text=text)
    reach = 2 ** rows[0]["layers"]
    verdict: Verdict = "inconclusive"
    if effect.high < ERROR_RATE:
        verdict = "reproduced"
    elif effect.low > ERROR_RATE:
        verdict = "not reproduced"
    pooled = {
        (r["predictor"], r["probability"], r["position"]): r["value"]
        for r in pool_rows(rows, ["predictor", "probability", "position"])
    }
    better = [
        position
        for name, probability, position in pooled
        if name == "model"
        and pooled["uniform", probability, position] - pooled[name, probability, position] > ERROR_RATE
    ]
    text = (
        f"Beyond position {reach} the model's error is {effect.value:.3f} below that of the uniform law, on average over "
        f"positions and backward probabilities; the last position where it is more than {ERROR_RATE} better for any of them "
        f"is {max(better, default=0)}."
    )
    return Judgement(
        verdict=verdict, text=text, value=effect.value, low=effect.low, high=effect.high, unit="advantage beyond 2^L"
    )
