"""Claims of [Limits] on block chain-of-thought: Figure 4, right, and Table 2."""

import math
from typing import Any

from hmmscope.claims.old import Judgement, Tables, claim, is_above
from hmmscope.evidence.pooling import by_seed, pool_rows
from hmmscope.evidence.verdicts import Verdict

#: How far a ratio of times may be from the ratio of passes.
TIME_TOLERANCE = 0.15

#: Least and largest time of a pass of the naive algorithm, in units of an ordinary one.
PASS_RANGE = (0.6, 1.3)


@claim(
    "limits-cot-cost",
    source="[Limits] App. C, Table 2",
    statement="Block chain-of-thought costs ceil(T / b) passes, so about 1/b of the vanilla one.",
    experiment="limits-table2",
)
def cost(tables: Tables) -> Judgement:
    """Passes are counted; of times, the ratio to block length 1 decides by its interval over rounds."""
    counted = [row for row in tables["costs"] if row["algorithm"] == "naive" and row["block_length"]]
    wrong = [row for row in counted if row["passes"] != math.ceil(row["length"] / row["block_length"])]
    naive = [row for row in tables["times"] if row["algorithm"] == "naive" and row["block_length"] > 1]
    naive = [row for row in naive if row["to_vanilla"] is not None]
    verdicts = [_agrees(row) for row in naive]
    verdict: Verdict = "inconclusive"
    if wrong or "not reproduced" in verdicts:
        verdict = "not reproduced"
    elif verdicts and set(verdicts) == {"reproduced"}:
        verdict = "reproduced"
    passes = "every" if not wrong else f"{len(counted) - len(wrong)} of {len(counted)}"
    listed = "; ".join(
        f"{row['task']} b = {row['block_length']}: {row['to_vanilla']:.3f} of the vanilla time "
        f"({_share(row):.3f} by passes), {row['to_plain']:.1f} plain passes"
        for row in naive
    )
    text = f"Passes counted: ceil(T / b) in {passes} case. Times of the naive algorithm: {listed or 'none'}."
    if not naive:
        return Judgement(verdict=verdict, text=text)
    worst = max(naive, key=lambda row: abs(math.log(row["to_vanilla"] / _share(row))))
    effect = {side: worst[f"to_vanilla{side}"] / _share(worst) for side in ("", "_low", "_high")}
    return Judgement(
        verdict=verdict,
        text=text,
        value=effect[""],
        low=effect["_low"],
        high=effect["_high"],
        unit="time over what the passes say, farthest",
    )


def _share(row: dict[str, Any]) -> float:
    """Passes as a share of those with block length 1."""
    return math.ceil(row["length"] / row["block_length"]) / row["length"]


def _agrees(row: dict[str, Any]) -> Verdict:
    """Whether a time is what the passes say, in units of vanilla and of ordinary passes."""
    low, high = (row[f"to_vanilla_{side}"] / _share(row) for side in ("low", "high"))
    passes = math.ceil(row["length"] / row["block_length"])
    each_low, each_high = (row[f"to_plain_{side}"] / passes for side in ("low", "high"))
    if high < 1 - TIME_TOLERANCE or low > 1 + TIME_TOLERANCE or each_high < PASS_RANGE[0] or each_low > PASS_RANGE[1]:
        return "not reproduced"
    inside = low >= 1 - TIME_TOLERANCE and high <= 1 + TIME_TOLERANCE
    return "reproduced" if inside and each_low >= PASS_RANGE[0] and each_high <= PASS_RANGE[1] else "inconclusive"


# ---------------------------------------------------------------------------------------------------------------------
# Figure 4, right


def _by_task(rows: list, column: str) -> dict[str, dict[int, Any]]:
    """A column by task and block length, of the rows of one seed; block length 0 is without."""
    found: dict[str, dict[int, Any]] = {}
    for row in rows:
        found.setdefault(row["task"], {})[row["block_length"]] = row[column]
    return found


def half_of_fit(lengths: list[int], fit_length: int) -> int | None:
    """The paper's choice among block lengths: the largest one up to half of the fit length, at least the smallest."""
    allowed = [length for length in lengths if 0 < length <= max(1, fit_length // 2)]
    return max(allowed, default=None)


@claim(
    "limits-cot-lowers-loss",
    source="[Limits] §4.4, Fig. 4 right",
    statement="Block chain-of-thought, with b half the fit length, lowers the evaluation loss at the end of the sequence.",
    experiment="limits-fig4-cot",
)
def lowers_loss(tables: Tables) -> Judgement:
    """Error at the chosen position without, less that with chain-of-thought, within a seed; the mean over tasks."""
    rows = tables["final"]

    def fall(one: list) -> float | None:
        errors, fits = _by_task(one, "error"), _by_task(one, "fit_0.05")
        falls = []
        for task, found in errors.items():
            chosen = half_of_fit(list(found), fits[task].get(0, 0))
            if chosen is not None and 0 in found:
                falls.append(found[0] - found[chosen])
        return sum(falls) / len(falls) if falls else None

    effect = by_seed(rows, fall)
    if effect is None:
        return Judgement(verdict="inconclusive", text="No block length is at most half of a fit length without it.")
    return is_above(effect, f"{_told(rows)}.", "fall of the error with b half the fit length")


@claim(
    "limits-cot-block-bound",
    source="[Limits] §4.4, App. C",
    statement="The block length has to be at most about the fit length without chain-of-thought.",
    experiment="limits-fig4-cot",
)
def block_bound(tables: Tables) -> Judgement:
    """Mean error with blocks longer than the fit length, less that with blocks up to half of it, within seed and task."""
    rows = tables["final"]

    def difference(one: list) -> float | None:
        errors, fits = _by_task(one, "error"), _by_task(one, "fit_0.05")
        found = []
        for task, of_task in errors.items():
            fit = fits[task].get(0, 0)
            long = [error for b, error in of_task.items() if b > max(1, fit)]
            short = [error for b, error in of_task.items() if 0 < b <= max(1, fit // 2)]
            if long and short:
                found.append(sum(long) / len(long) - sum(short) / len(short))
        return sum(found) / len(found) if found else None

    effect = by_seed(rows, difference)
    if effect is None:
        text = f"No task has block lengths on both sides of its fit length. {_told(rows)}."
        return Judgement(verdict="inconclusive", text=text)
    return is_above(effect, f"{_told(rows)}.", "error of blocks above the fit length, less that of short ones")


def _told(rows: list) -> str:
    """Mean error and fit length by task and block length."""
    position = rows[0]["chosen_position"]
    keys = ["task", "block_length"]
    fits = {(r["task"], r["block_length"]): r["fit_0.05"] for r in pool_rows(rows, keys, "fit_0.05")}
    parts = [
        f"{row['task']} {'without' if row['block_length'] == 0 else 'b = ' + str(row['block_length'])}: "
        f"{row['error']:.3f} (fit length {fits[row['task'], row['block_length']]:.1f})"
        for row in pool_rows(rows, keys, "error")
    ]
    return f"Error at position {position}: {'; '.join(parts)}"
