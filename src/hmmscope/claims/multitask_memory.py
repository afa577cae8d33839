"""Claims of [MultiTask]'s Lemma 1, on models that see a few observations: decay in the memory, and observability."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hmmscope.claims.old import Judgement, Tables, claim, is_above
from hmmscope.evidence.pooling import Pooled, by_seed
from hmmscope.evidence.verdicts import Verdict

#: Errors below this are rounding.
_ROUNDING = 1e-12
#: Least that there has to be to know of the next observation, nats; below it, shares of it say nothing.
LEAST_KNOWN = 1e-5


@claim(
    "multitask-memory-decay",
    source="[MultiTask] Lemma 1",
    statement="What is lost by keeping only the last k observations falls exponentially in k.",
    experiment="multitask-context-length",
)
def memory_decay(tables: Tables) -> Judgement:
    """The exact error of the best predictor from k observations, total variation."""
    return _decay(tables["errors"], lambda rows: _by_memory(rows, "memory", "total_variation"), "total variation")


@claim(
    "multitask-context-decay",
    source="[MultiTask] Lemma 1",
    statement="The error of a Transformer that sees k observations falls exponentially in k, while memory limits it.",
    experiment="multitask-context-length",
)
def context_decay(tables: Tables) -> Judgement:
    """The excess of trained models, at the lengths where the exact memory error is the larger part of it."""
    return _decay(tables["errors"], limited_by_memory, "excess, where memory is the larger part of it")


@claim(
    "multitask-observability-rate",
    source="[MultiTask] Lemma 1",
    statement="The error of a memory decays faster, the better observations tell states apart.",
    experiment="multitask-observability",
)
def observability_rate(tables: Tables) -> Judgement:
    """Slope of the rate of decay of the models' excess against the observability, by seed."""
    rates = {gamma: by_seed(_with(tables, gamma), _rate) for gamma in _gammas(tables)}
    listed = ", ".join(f"{gamma:g}: {rate.value:.2f}" for gamma, rate in rates.items() if rate)
    effect = _of_several(tables["errors"], _rate_slope)
    if effect is None:
        text = f"In too few seeds does memory limit two lengths at two observabilities (rates: {listed or 'none'})."
        return Judgement(verdict="inconclusive", text=text)
    text = (
        f"Decay of the models' excess in nats an observation, by observability: {listed}; where it has no number, training "
        "limits the model and not its memory."
    )
    return is_above(effect, text, "change of the rate per unit of observability")


@claim(
    "multitask-observability-error",
    source="[MultiTask] Lemma 1, Assumption 2",
    statement="A memory of the same length misses less of what can be known, the better observations tell states apart.",
    experiment="multitask-observability",
)
def observability_error(tables: Tables) -> Judgement:
    """Share of what the past tells about the next observation that the models of the longest memory miss."""
    gammas, longest = _gammas(tables), max(row["memory"] for row in tables["errors"])

    def shares(rows: Sequence[Mapping[str, Any]]) -> dict[float, float]:
        return {gamma: share for gamma in gammas if (share := _missed(rows, gamma, longest)) is not None}

    effect = _of_several(tables["errors"], lambda rows: _ends(shares(rows)))
    if effect is None:
        text = f"In too few seeds are there two observabilities with something to know (got {len(gammas)} in all)."
        return Judgement(verdict="inconclusive", text=text)
    listed = []
    for gamma in gammas:
        share = by_seed(tables["errors"], lambda rows, gamma=gamma: _missed(rows, gamma, longest))  # type: ignore[misc]
        distance = by_seed(_with(tables, gamma), lambda rows: _by_memory(rows, "model", "total_variation").get(longest))
        if share and distance:
            listed.append(f"{gamma:g}: {share.value:.1%} ({distance.value:.4f})")
    text = (
        f"With {longest} observations seen, the model misses this share of what the whole past tells about the next "
        f"observation, by observability: {', '.join(listed)}; in brackets the total variation itself, which is small at "
        "low observability too, where there is little to know."
    )
    return is_above(effect, text, "share missed at the lowest observability, above that at the highest")


# ---------------------------------------------------------------------------------------------------------------------
# Decay


def limited_by_memory(rows: Sequence[Mapping[str, Any]]) -> dict[int, float]:
    """The model's excess by memory, at the lengths from the shortest on where memory is the larger part of it.

    excess = memory + learning, so these are the lengths where training has left less than memory has taken.
    """
    excess, exact = (_by_memory(rows, who, "excess") for who in ("model", "memory"))
    learning, found = _by_memory(rows, "model", "learning"), {}
    for k in sorted(excess):
        if exact[k] < learning[k]:
            break
        found[k] = excess[k]
    return found


def decay_of(errors: Mapping[int, float]) -> tuple[float, float] | None:
    """Slope of ln(error) against k, and by how much a straight line fits better than a power law; None below 3 points.

    The second number is the root of the mean squared deviation of ln(error) from the best line in ln(k), less that from
    the best line in k: positive if the decay is rather exponential.
    """
    points = [(k, math.log(error)) for k, error in sorted(errors.items()) if error > _ROUNDING]
    if len(points) < 3:
        return None
    y = [value for _, value in points]
    slope, straight = _line([float(k) for k, _ in points], y)
    return slope, _line([math.log(k) for k, _ in points], y)[1] - straight


def _decay(
    rows: Sequence[Mapping[str, Any]], errors: Callable[[Sequence[Mapping[str, Any]]], dict[int, float]], what: str
) -> Judgement:
    """Reproduced if in the mean over seeds the slope is negative and the exponential fits better."""
    counts: list[int] = []

    def part(rows: Sequence[Mapping[str, Any]], index: int) -> float | None:
        found = decay_of(errors(rows))
        return None if found is None else found[index]

    slope = _of_several(rows, lambda rows: part(rows, 0))
    better = _of_several(rows, lambda rows: part(rows, 1))
    by_seed(rows, lambda rows: counts.append(len(errors(rows))))
    used = f"lengths used by seed: {', '.join(map(str, counts))}"
    if slope is None or better is None:
        return Judgement(verdict="inconclusive", text=f"Too few seeds have three lengths to fit a decay to ({used}).")
    text = (
        f"{what.capitalize()}: factor {math.exp(slope.value):.2f} with each observation more; ln(error) is nearer to a "
        f"straight line in k than to one in ln(k) by {better.value:.2f} nats ({used})."
    )
    unit = "deviation from a power law less that from an exponential, nats"
    verdict = _both(slope, better)
    return Judgement(verdict=verdict, text=text, value=better.value, low=better.low, high=better.high, unit=unit)


def _of_several(
    rows: Sequence[Mapping[str, Any]], measure: Callable[[Sequence[Mapping[str, Any]]], float | None]
) -> Pooled | None:
    """`by_seed`, but None where all seeds but one lack the number: one of several has no interval to decide by."""
    counted: list[bool] = []

    def noted(rows: Sequence[Mapping[str, Any]]) -> float | None:
        number = measure(rows)
        counted.append(number is not None)
        return number

    pooled = by_seed(rows, noted)
    return None if len(counted) > 1 and sum(counted) == 1 else pooled


def _both(slope: Pooled, better: Pooled) -> Verdict:
    if slope.high < 0 and better.low > 0:
        return "reproduced"
    return "not reproduced" if slope.low >= 0 or better.high <= 0 else "inconclusive"


def _line(x: Sequence[float], y: Sequence[float]) -> tuple[float, float]:
    """Slope of the least-squares line, and the root of the mean squared deviation from it."""
    centre_x, centre_y = math.fsum(x) / len(x), math.fsum(y) / len(y)
    spread = math.fsum((a - centre_x) ** 2 for a in x)
    slope = math.fsum((a - centre_x) * (b - centre_y) for a, b in zip(x, y, strict=True)) / spread
    left = math.fsum((b - centre_y - slope * (a - centre_x)) ** 2 for a, b in zip(x, y, strict=True))
    return slope, math.sqrt(left / len(x))


def _by_memory(rows: Sequence[Mapping[str, Any]], predictor: str, metric: str) -> dict[int, float]:
    return {row["memory"]: row["value"] for row in rows if (row["predictor"], row["metric"]) == (predictor, metric)}


# ---------------------------------------------------------------------------------------------------------------------
# Observability


def _gammas(tables: Tables) -> list[float]:
    return sorted({row["observability"] for row in tables["errors"]})


def _with(tables: Tables, gamma: float) -> list[dict[str, Any]]:
    return [row for row in tables["errors"] if row["observability"] == gamma]


def _rate(rows: Sequence[Mapping[str, Any]]) -> float | None:
    """-d ln(excess) / dk of the rows of one seed and observability; None below two lengths that memory limits."""
    points = {k: error for k, error in limited_by_memory(rows).items() if error > _ROUNDING}
    if len(points) < 2:
        return None
    return -_line([float(k) for k in points], [math.log(error) for error in points.values()])[0]


def _rate_slope(rows: Sequence[Mapping[str, Any]]) -> float | None:
    """Slope of the rate against the observability in one seed."""
    rates = {}
    for gamma in sorted({row["observability"] for row in rows}):
        rate = _rate([row for row in rows if row["observability"] == gamma])
        if rate is not None:
            rates[gamma] = rate
    return _line(list(rates), list(rates.values()))[0] if len(rates) >= 2 else None


def _missed(rows: Sequence[Mapping[str, Any]], gamma: float, memory: int) -> float | None:
    """Excess of the model as a share of that of an observer who saw nothing, one seed; None with nothing to know."""
    here = [row for row in rows if row["observability"] == gamma]
    excess, nothing = (_by_memory(here, who, "excess").get(memory) for who in ("model", "stationary"))
    return None if excess is None or nothing is None or nothing < LEAST_KNOWN else excess / nothing


def _ends(values: Mapping[float, float]) -> float | None:
    """The value at the smallest key less that at the largest."""
    return values[min(values)] - values[max(values)] if len(values) >= 2 else None
