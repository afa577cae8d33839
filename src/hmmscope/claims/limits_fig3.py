"""Claims of [Limits] on fit lengths: Figure 3."""

import math
from collections.abc import Callable
from dataclasses import replace

from hmmscope.claims.limits_effects import (
    FORGETTING,
    HARD,
    NAMES,
    REMEMBERING,
    Rows,
    everywhere,
    in_all,
    inconclusive,
    is_below,
    listed,
    mean,
    of_task,
    per_seed,
    spread,
    tasks_of,
)
from hmmscope.claims.old import Judgement, Tables, claim, is_above
from hmmscope.evidence.pooling import Pooled, pool_values

#: The claims on growth look at this error rate.
RATE = 0.1
#: A length that does not grow with anything.
CONSTANT = 2
#: Rounding of logarithms.
_ROUNDING = 1e-9

Lengths = dict[int, float]  # by number of layers, 0 the RNN


def fitted(tables: Tables, rate: float = RATE) -> Rows:
    """The models' rows at an error rate, judged by the last epochs."""
    rows = tables["fit-lengths"]
    return [row for row in rows if (row["predictor"], row["by"], row["error_rate"]) == ("model", "epochs", rate)]


def lengths(rows: Rows) -> Lengths:
    """Fit length by number of layers, of one seed."""
    return {row["layers"]: row["value"] for row in sorted(rows, key=lambda row: row["layers"])}


def growth(rows: Rows, most: float = 1.0) -> float | None:
    """Doublings of the fit length a layer: the least-squares slope of its log2.

    Of one seed, up to the first depth that fits a share `most` of the sequence. A length of 0 counts as 1. None with
    fewer than two depths, or if the first fits as much.
    """
    points: list[tuple[int, float]] = []
    for n, value in lengths(rows).items():
        if n > 0:
            points.append((n, math.log2(max(value, 1))))
            if value >= most * rows[0]["longest"]:
                break
    if len(points) < 2:
        return None
    x, y = mean([n for n, _ in points]), mean([value for _, value in points])
    return math.fsum((n - x) * (v - y) for n, v in points) / math.fsum((n - x) ** 2 for n, _ in points)


def _pooled(rows: Rows, tasks: tuple[str, ...], measure: Callable[[Rows], float | None]) -> dict[str, Pooled]:
    found = {task: per_seed(of_task(rows, task), measure) for task in tasks}
    return {task: pool_values(values) for task, values in found.items() if values}


def _by_depth(rows: Rows, tasks: tuple[str, ...]) -> str:
    """``Cyclic-DET 8, 11, 13 of 16``: mean fit lengths by depth."""
    said = {}
    for task in tasks:
        own = [row for row in of_task(rows, task) if row["layers"] > 0]
        if own:
            depths = sorted({row["layers"] for row in own})
            means = [mean([row["value"] for row in own if row["layers"] == n]) for n in depths]
            said[task] = f"{', '.join(f'{value:.3g}' for value in means)} of {own[0]['longest']}"
    return "; ".join(f"{NAMES[task]} {text}" for task, text in said.items())


@claim(
    "limits-rnn-fits",
    source="[Limits] §4.3, Fig. 2 and 3",
    statement="The RNN has a 0.05-fit length of the whole sequence on every task.",
    experiment="limits-fig3",
)
def rnn_fits(tables: Tables) -> Judgement:
    """All seeds must fit; a task that no seed fits refutes it."""
    rows = [row for row in fitted(tables, 0.05) if row["layers"] == 0]
    shares = {task: [row["value"] / row["longest"] for row in of_task(rows, task)] for task in tasks_of(rows)}
    seen = {}
    for task in shares:
        own = of_task(rows, task)
        seen[task] = f"{mean([row['value'] for row in own]):.3g} of {own[0]['longest']}"
        starts = [row["fits_from"] for row in own if row["fits_from"] is not None]
        if starts and max(starts) > 1:
            seen[task] += f" (below 0.05 from position {max(starts)} on in {len(starts)} of {len(own)} seeds)"
    return in_all(shares, f"Mean 0.05-fit length of the RNN: {listed(seen)}.", wanted=tuple(NAMES))


@claim(
    "limits-fit-length-grows",
    source="[Limits] §4.3, Fig. 3",
    statement="On Cyclic-DET, Cyclic-RND and MatMul the fit length of Transformers grows with depth.",
    experiment="limits-fig3",
)
def grows(tables: Tables) -> Judgement:
    """The slope of log2 fit length against depth is above zero."""
    rows = fitted(tables)
    effects = _pooled(rows, REMEMBERING, growth)
    text = f"Mean 0.1-fit lengths by depth: {_by_depth(rows, REMEMBERING)}."
    return everywhere(effects, text, "doublings a layer", wanted=REMEMBERING)


@claim(
    "limits-fit-length-doubles",
    source="[Limits] §4.3, Fig. 3 (at least an exponential dependency, 2^L)",
    statement="On Cyclic-DET, Cyclic-RND and MatMul the fit length at least doubles with each layer.",
    experiment="limits-fig3",
)
def doubles(tables: Tables) -> Judgement:
    """The slope of log2 fit length against depth is at least one, where there is room to double."""
    rows = fitted(tables)
    effects = _pooled(rows, REMEMBERING, lambda own: growth(own, 0.5 + _ROUNDING))
    slopes = listed({task: spread(effect) for task, effect in effects.items()})
    text = (
        f"Doublings of the 0.1-fit length a layer, up to the first depth that fits more than half of the sequence "
        f"(it cannot double from there): {slopes or 'none'}. Mean lengths by depth: {_by_depth(rows, REMEMBERING)}."
    )
    return everywhere(effects, text, "doublings a layer", above=1 - _ROUNDING, wanted=REMEMBERING)


@claim(
    "limits-fit-length-power",
    source="[Limits] §4.2 and §4.3, Fig. 3 (a fit length of at least 2^L)",
    statement="On Cyclic-DET, Cyclic-RND and MatMul a Transformer of L layers has a fit length of at least 2^L.",
    experiment="limits-fig3",
)
def power(tables: Tables) -> Judgement:
    """At the depth where it is nearest to fail; 2^L is cut at the whole length."""

    def least(rows: Rows) -> float | None:
        found = [
            math.log2(max(value, 0.5) / min(2.0**n, rows[0]["longest"])) for n, value in lengths(rows).items() if n > 0
        ]
        return min(found, default=None)

    rows = fitted(tables)
    effects = _pooled(rows, REMEMBERING, least)
    text = f"Mean 0.1-fit lengths by depth: {_by_depth(rows, REMEMBERING)}."
    unit = "log2 of fit length over 2^L at the worst depth"
    return everywhere(effects, text, unit, above=-_ROUNDING, wanted=REMEMBERING)


@claim(
    "limits-constant-depth",
    source="[Limits] §4.3, Fig. 3",
    statement="RanHMM and RanLDS, which mix fast, are fitted at the whole length by Transformers of at most two layers.",
    experiment="limits-fig3",
)
def constant_depth(tables: Tables) -> Judgement:
    """All seeds must fit; the prefix definition is strict with RanLDS, of which the first positions are the hardest."""

    def best(rows: Rows) -> float | None:
        return max((row["value"] / row["longest"] for row in rows if 1 <= row["layers"] <= 2), default=None)

    rows = fitted(tables)
    shares = {task: per_seed(of_task(rows, task), best) for task in FORGETTING}
    starts = {}
    for task in FORGETTING:
        own = [row for row in of_task(rows, task) if row["layers"] == 2 and row["fits_from"] is not None]
        if own:
            starts[task] = f"{max(row['fits_from'] for row in own)} ({len(own)} seeds)"
    later = f" With two layers it stays below 0.1 from position: {listed(starts)}." if starts else ""
    text = f"Mean 0.1-fit lengths by depth: {_by_depth(rows, FORGETTING)}.{later}"
    found = in_all(shares, text, wanted=FORGETTING)
    failed = [task for task, values in shares.items() if values and max(values) < 1]
    deeper = [row for row in rows if row["task"] in failed and row["layers"] > 2 and row["value"] >= row["longest"]]
    if found.verdict == "not reproduced" and not deeper:
        more = "No deeper Transformer fits the whole length either, so that depth is not what is short."
        return replace(found, verdict="inconclusive", text=f"{text} {more}")
    return found


@claim(
    "limits-hard-no-depth",
    source="[Limits] §4.3, Fig. 3",
    statement="No Transformer fits Cyclic-HARD even at a constant length: its 0.1-fit length is at most 2 at any depth.",
    experiment="limits-fig3",
)
def hard_no_depth(tables: Tables) -> Judgement:
    """The paper's rate of questions is 1 in 120 actions; at a reduced scale the signal is far denser."""

    def best(rows: Rows) -> float | None:
        return max((row["value"] for row in rows if row["layers"] > 0), default=None)

    rows = of_task(fitted(tables), HARD)
    values = per_seed(rows, best)
    if not values:
        return inconclusive("Cyclic-HARD was not measured.")
    recurrent = [row["value"] for row in rows if row["layers"] == 0]
    text = f"Mean 0.1-fit lengths by depth: {_by_depth(rows, (HARD,))}"
    text += f"; of the RNN: {mean(recurrent):.3g}." if recurrent else "."
    found = is_below(pool_values(values), text, "positions, best depth", below=CONSTANT + _ROUNDING)
    if found.verdict == "reproduced" and (not recurrent or mean(recurrent) <= CONSTANT):
        return replace(
            found, verdict="inconclusive", text=f"{text} Without an RNN that learns it this says nothing of depth."
        )
    if found.verdict == "not reproduced":
        denser = (
            "In short sequences the state is asked for more often than in the paper, which this does not contradict."
        )
        return replace(found, text=f"{text} {denser}")
    return found


def _both(tables: Tables, measure: Callable[[Lengths, Lengths, list[int]], float | None]) -> list[float]:
    """A number from the fit lengths of Cyclic-DET and Cyclic-HARD of the same seed."""
    rows = fitted(tables)

    def of_seed(own: Rows) -> float | None:
        det, hard = (lengths(of_task(own, task)) for task in ("cyclic-det", HARD))
        return measure(det, hard, sorted(n for n in det.keys() & hard.keys() if n > 0))

    return per_seed(rows, of_seed)


def _ratio(top: float, bottom: float) -> float:
    return math.log2(max(top, 1) / max(bottom, 1))


@claim(
    "limits-hard-below-det",
    source="[Limits] §4.3, Fig. 3",
    statement="Cyclic-HARD is the harder task: its fit length is below that of Cyclic-DET at every depth.",
    experiment="limits-fig3",
)
def hard_below_det(tables: Tables) -> Judgement:
    """The least ratio over depths, within seeds."""
    values = _both(tables, lambda det, hard, both: min((_ratio(det[n], hard[n]) for n in both), default=None))
    if not values:
        return inconclusive("Cyclic-DET and Cyclic-HARD were not both measured.")
    text = f"Mean 0.1-fit lengths by depth: {_by_depth(fitted(tables), ('cyclic-det', HARD))}."
    return is_above(pool_values(values), text, "log2 of the ratio, least depth")


@claim(
    "limits-hard-plateau",
    source="[Limits] §4.3, Fig. 3 (constant for Cyclic-HARD, growing for Cyclic-DET)",
    statement="From two layers on, depth lengthens the fit on Cyclic-DET and not, or less, on Cyclic-HARD: a plateau.",
    experiment="limits-fig3",
)
def hard_plateau(tables: Tables) -> Judgement:
    """Growth from two layers to the deepest model: that of Cyclic-DET less that of Cyclic-HARD, within seeds."""

    def gain(det: Lengths, hard: Lengths, both: list[int]) -> float | None:
        if 2 not in both or max(both) == 2:
            return None
        return _ratio(det[max(both)], det[2]) - _ratio(hard[max(both)], hard[2])

    values = _both(tables, gain)
    if not values:
        return inconclusive("Cyclic-DET and Cyclic-HARD were not both measured with two layers and more.")
    text = f"Mean 0.1-fit lengths by depth: {_by_depth(fitted(tables), ('cyclic-det', HARD))}."
    return is_above(pool_values(values), text, "doublings more than on Cyclic-HARD")


@claim(
    "limits-error-rates-close",
    source="[Limits] §4.3, Fig. 3 (the closeness of 0.05- and 0.1-fit length)",
    statement="Fit lengths for the error rates 0.05 and 0.1 are close: on average the first is more than 0.8 of the second.",
    experiment="limits-fig3",
)
def error_rates_close(tables: Tables) -> Judgement:
    """Mean over tasks and depths of Transformers that fit something at 0.1, within seeds."""
    strict, loose = ({_key(row): row["value"] for row in fitted(tables, rate)} for rate in (0.05, 0.1))

    def share(rows: Rows) -> float | None:
        keys = [_key(row) for row in rows if row["layers"] > 0 and row["value"] > 0]
        found = [strict[key] / loose[key] for key in keys if key in strict]
        return mean(found) if found else None

    values = per_seed(fitted(tables), share)
    if not values:
        return inconclusive("Nothing is fitted at 0.1, or the error rates 0.05 and 0.1 were not both measured.")
    pooled = pool_values(values)
    text = f"The 0.05-fit length is {spread(pooled, '.2f')} of the 0.1-fit length, averaged over tasks and depths."
    return is_above(pooled, text, "mean ratio", above=0.8)


def _key(row: dict) -> tuple:
    return row.get("seed"), row["task"], row["layers"]
