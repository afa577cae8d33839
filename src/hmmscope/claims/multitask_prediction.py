"""Claims of [MultiTask] §2 and §5 on predictions: what Figure 1 shows.

They rest on the table "effects" of the experiment multitask-fig1: differences paired within prompts, one a seed.
"""

from hmmscope.claims.old import Judgement, Tables, claim, is_above
from hmmscope.evidence.pooling import Pooled, pool_rows
from hmmscope.evidence.verdicts import Verdict


@claim(
    "multitask-accuracy-rises-with-demonstrations",
    source="[MultiTask] §5, Fig. 1",
    statement="Accuracy rises as more demonstrations are given.",
    experiment="multitask-fig1",
)
def rises_with_demonstrations(tables: Tables) -> Judgement:
    """The model's accuracy with all demonstrations less that with none, later positions of a sequence, HMMs of the pool."""
    rise, unseen = _effect(tables, "demonstrations"), _effect(tables, "demonstrations", "unseen")
    curve = _curve(tables["demonstrations"], "model", "accuracy")
    first, last = min(curve), max(curve)
    best = _curve(tables["demonstrations"], "optimum", "accuracy")
    text = (
        f"It goes from {curve[first]:.3f} with {first} demonstrations to {curve[last]:.3f} with {last}, "
        f"{_signed(rise)}; that of the Bayes mixture from {best[first]:.3f} to {best[last]:.3f}. "
        f"On HMMs never seen the model's changes by {_signed(unseen)}."
    )
    return is_above(rise, text, "rise in accuracy")


@claim(
    "multitask-accuracy-rises-with-length",
    source="[MultiTask] §5, Fig. 1",
    statement="The next observation becomes more predictable along the test sequence.",
    experiment="multitask-fig1",
)
def rises_with_length(tables: Tables) -> Judgement:
    """The model's accuracy at the last position of the test sequence less that at its first, after all demonstrations."""
    rise, later = _effect(tables, "length"), _effect(tables, "length after one")
    curve = _curve(tables["positions"], "model", "accuracy")
    first, last = min(curve), max(curve)
    text = (
        f"After all demonstrations it goes from {curve[first]:.3f} at the first observation of the test sequence to "
        f"{curve[last]:.3f} after {last} of them, {_signed(rise)}; from the second observation on it changes by "
        f"{_signed(later)}."
    )
    return is_above(rise, text, "rise in accuracy")


@claim(
    "multitask-accuracy-between-ngram-and-ceiling",
    source="[MultiTask] §5, Fig. 1",
    statement="It ends between what pairs of neighbours tell and what the filter knows that is told the HMM.",
    experiment="multitask-fig1",
)
def ends_in_between(tables: Tables) -> Judgement:
    """All demonstrations, later positions, HMMs of the pool: above the order-1 n-gram, and below the known-HMM filter.

    Reproduced if both differences are above zero beyond their intervals; not reproduced if one of them is not above zero
    beyond its interval; else inconclusive. The number is the smaller difference.
    """
    above, below = _effect(tables, "above order-1"), _effect(tables, "below the ceiling")
    text = (
        f"After all demonstrations its accuracy less that of the in-context n-gram of order 1 is {_signed(above)}, and "
        f"that of the filter that is told the HMM less its own {_signed(below)}."
    )
    return _both(above, below, text, "accuracy to the nearer bound")


@claim(
    "multitask-retrieval-or-estimation",
    source="[MultiTask] Fig. 1 (the paper does not say on which HMMs)",
    statement="Does it retrieve an HMM of its pool, or estimate in context?",
    experiment="multitask-fig1",
)
def retrieval_or_estimation(tables: Tables) -> Judgement:
    """An open question, so always "found"; the effect is the loss above the ceiling on HMMs never seen less on the pool.

    It knows its pool if that is above zero. It estimates in context if, on HMMs never seen, its loss is below that of the
    Bayes mixture over the pool with the smoothing that suits these prompts best: what retrieval alone can do there.
    """
    gap = {pool: _rows(tables, "loss above the ceiling", pool) for pool in ("pool", "unseen")}
    difference = _difference(gap["unseen"], gap["pool"])
    retrieval, ngram = _effect(tables, "gain over retrieval", "unseen"), _effect(tables, "gain over order-1", "unseen")
    knows = "It knows its pool" if difference.low > 0 else "That it knows its pool does not show"
    estimates = (
        "and it estimates in context"
        if retrieval.low > 0
        else "and what it does beyond the pool is no better than retrieval"
        if retrieval.high <= 0
        else "and whether it estimates in context is open"
    )
    if estimates.startswith("and it") and difference.low <= 0:
        estimates = "but it estimates in context"
    means = {pool: pool_rows(rows, [])[0]["value"] for pool, rows in gap.items()}
    text = (
        f"{knows}, {estimates}: its loss is {means['pool']:.3f} nats above that of the filter that is told the HMM on the "
        f"pool and {means['unseen']:.3f} on HMMs never seen ({_signed(difference)}). There it gains "
        f"{_signed(retrieval)} nats over the smoothed Bayes mixture of the pool, and {_signed(ngram)} over the n-gram of "
        f"order 1{', which needs no training' if ngram.high < 0 else ''}."
    )
    return Judgement(
        verdict="found",
        text=text,
        value=difference.value,
        low=difference.low,
        high=difference.high,
        unit="nats more above the ceiling on HMMs never seen",
    )


# ---------------------------------------------------------------------------------------------------------------------


def _rows(tables: Tables, effect: str, pool: str = "pool") -> list[dict]:
    return [row for row in tables["effects"] if row["effect"] == effect and row["pool"] == pool]


def _effect(tables: Tables, effect: str, pool: str = "pool") -> Pooled:
    """An effect, pooled over seeds."""
    return _pooled(_rows(tables, effect, pool))


def _pooled(rows: list[dict]) -> Pooled:
    found = pool_rows(rows, [])[0]
    return Pooled(found["value"], found["low"], found["high"])


def _difference(rows: list[dict], less: list[dict]) -> Pooled:
    """Of two effects on different prompts, seed by seed; with one seed their intervals are added as variances are."""
    others = {row.get("seed"): row for row in less}
    paired = []
    for row in rows:
        other = others[row.get("seed")]
        value = row["value"] - other["value"]
        down = ((row["value"] - row["low"]) ** 2 + (other["high"] - other["value"]) ** 2) ** 0.5
        up = ((row["high"] - row["value"]) ** 2 + (other["value"] - other["low"]) ** 2) ** 0.5
        paired.append({"seed": row.get("seed"), "value": value, "low": value - down, "high": value + up})
    return _pooled(paired)


def _both(one: Pooled, other: Pooled, text: str, unit: str) -> Judgement:
    """Of a claim that holds if both numbers are above zero; the smaller is shown."""
    smaller = min(one, other, key=lambda number: number.value)
    verdict: Verdict = "inconclusive"
    if one.low > 0 and other.low > 0:
        verdict = "reproduced"
    elif one.high <= 0 or other.high <= 0:
        verdict = "not reproduced"
    return Judgement(verdict=verdict, text=text, value=smaller.value, low=smaller.low, high=smaller.high, unit=unit)


def _curve(rows: list[dict], predictor: str, metric: str) -> dict[int, float]:
    """Means over seeds by x, HMMs of the pool."""
    chosen = [r for r in rows if (r["pool"], r["predictor"], r["metric"]) == ("pool", predictor, metric)]
    return {row["x"]: row["value"] for row in pool_rows(chosen, ["x"])}


def _signed(effect: Pooled) -> str:
    return f"{effect.value:+.3f} ({effect.low:+.3f} to {effect.high:+.3f})"
