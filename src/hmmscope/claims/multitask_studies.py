"""Questions that [MultiTask] leaves open, answered by varying one thing: positions, heads, rank, size of the pool."""

from collections.abc import Mapping, Sequence
from typing import Any

from hmmscope.claims.old import Judgement, Tables, claim
from hmmscope.evidence.pooling import Pooled, by_seed, pool_rows

Rows = Sequence[Mapping[str, Any]]


@claim(
    "multitask-rotary",
    source="[MultiTask] §5 (uses rotary positions and compares none)",
    statement="Are rotary positions at least as good as the others?",
    experiment="multitask-positions",
)
def rotary(tables: Tables) -> Judgement:
    """Excess of the best other kind less that of rotary positions, the same seeds."""
    kinds = _excess(tables["end"], "positions")
    listed = _listed(kinds)
    others = [kind for kind in kinds if kind != "rotary"]
    if "rotary" not in kinds or not others:
        return Judgement(verdict="found", text=f"Excess in nats: {listed}; nothing to compare.")
    best = min(others, key=lambda kind: kinds[kind].value)
    effect = by_seed(tables["end"], lambda rows: _difference(rows, "positions", best, "rotary"))
    text = f"Excess over the optimum in nats: {listed}. {_side(effect, 'Rotary', f'the best other, {best}')}"
    return _found(text, effect, f"excess of {best} less that of rotary, nats")


@claim(
    "multitask-more-heads",
    source="[MultiTask] Theorem 1 (2p heads a layer for p symbols)",
    statement="Do more heads of the same total width help?",
    experiment="multitask-heads",
)
def more_heads(tables: Tables) -> Judgement:
    """Excess with the fewest heads less that with the most, the same seeds."""
    counts = _excess(tables["end"], "heads")
    fewest, most, symbols = min(counts), max(counts), tables["end"][0]["symbols"]
    effect = by_seed(tables["end"], lambda rows: _difference(rows, "heads", fewest, most))
    text = (
        f"Excess over the optimum in nats, by heads: {_listed(counts)}; the theorem has {2 * symbols} for {symbols} "
        f"symbols. {_side(effect, f'The model with {most}', f'that with {fewest}')}"
    )
    return _found(text, effect, f"excess with {fewest} less that with {most}, nats")


@claim(
    "multitask-layers-by-rank",
    source="[MultiTask] Assumption 1, Theorem 1 (layers without d, errors with d)",
    statement="Does a higher rank of the hidden transition need more layers?",
    experiment="multitask-rank",
)
def layers_by_rank(tables: Tables) -> Judgement:
    """What the deepest model gains over the shallowest, at the highest rank less at the lowest."""
    rows = _models(tables["end"])
    ranks, layers = (sorted({row[key] for row in rows}) for key in ("rank", "layers"))
    parts = []
    for rank in ranks:
        of_rank = _excess([row for row in tables["end"] if row["rank"] == rank], "layers")
        parts.append(f"rank {rank}: {_listed(of_rank)}")

    def gain(rows: Rows, rank: int) -> float | None:
        return _difference([row for row in rows if row["rank"] == rank], "layers", layers[0], layers[-1])

    def more(rows: Rows) -> float | None:
        high, low = gain(rows, ranks[-1]), gain(rows, ranks[0])
        return None if high is None or low is None else high - low

    effect = by_seed(tables["end"], more)
    grows = "The gain from depth is not told apart between the ranks."
    if effect is not None and effect.low > 0:
        grows = "Depth gains more at the highest rank."
    elif effect is not None and effect.high < 0:
        grows = "Depth gains more at the lowest rank."
    text = f"Excess over the optimum in nats, by layers, at {'; at '.join(parts)}. {grows}"
    unit = f"gain of {layers[-1]} over {layers[0]} layers at rank {ranks[-1]} less at rank {ranks[0]}, nats"
    return _found(text, effect, unit)


@claim(
    "multitask-switch",
    source="[MultiTask] §5 (one pool of 8192 HMMs)",
    statement="From which size of the pool on does the model estimate in context, and no longer retrieve?",
    experiment="multitask-pool-size",
)
def switch(tables: Tables) -> Judgement:
    """First pool from which on the model is nearer to the prior's mixture than to the pool's, on unseen HMMs."""
    rows = tables["end"]
    seeds = list(dict.fromkeys(row.get("seed") for row in rows))
    firsts = [switch_size([row for row in rows if row.get("seed") == seed]) for seed in seeds]
    sizes = sorted({row["components"] for row in rows})
    effect = by_seed(rows, lambda found: _nearer(found, sizes[-1]))
    means = {size: by_seed(rows, lambda found, size=size: _nearer(found, size)) for size in sizes}  # type: ignore[misc]
    listed = ", ".join(f"{size}: {mean.value:+.3f}" for size, mean in means.items() if mean)
    priors = pool_rows(tables["prior"], ["components"])
    converged = ", ".join(f"{row['components']}: {row['value']:.3f}" for row in priors)
    text = (
        "On unseen HMMs the model is nearer to the mixture of the prior than to that of its pool from this size on, by "
        f"seed: {', '.join('none' if size is None else str(size) for size in firsts)}. Total variation to the pool's less "
        f"to the prior's, by size: {listed}. The prior's mixture is over a fresh pool; its loss by the size of that: "
        f"{converged}."
    )
    return _found(text, effect, f"total variation to the pool's mixture less to the prior's, {sizes[-1]} HMMs")


def switch_size(rows: Rows) -> int | None:
    """The first size from which on, at all larger sizes too, the model is nearer to the prior's mixture; one seed."""
    found = None
    for size in sorted({row["components"] for row in rows}, reverse=True):
        nearer = _nearer(rows, size)
        if nearer is None or nearer <= 0:
            break
        found = size
    return found


def _nearer(rows: Rows, size: int) -> float | None:
    """TV(model, pool) - TV(model, prior) on unseen HMMs."""
    wanted = {
        row["of"]: row["value"]
        for row in rows
        if (row["components"], row["on"], row["metric"]) == (size, "unseen", "total_variation")
    }
    if not {"model, pool", "model, prior"} <= wanted.keys():
        return None
    return wanted["model, pool"] - wanted["model, prior"]


def _models(rows: Rows) -> list[Mapping[str, Any]]:
    return [row for row in rows if (row["predictor"], row["metric"]) == ("model", "excess")]


def _excess(rows: Rows, key: str) -> dict[Any, Pooled]:
    """The model's excess by setting, pooled over seeds."""
    return {row[key]: Pooled(row["value"], row["low"], row["high"]) for row in pool_rows(_models(rows), [key])}


def _difference(rows: Rows, key: str, one: Any, other: Any) -> float | None:
    """The model's excess at one setting less that at another, of one seed."""
    found = {row[key]: row["value"] for row in _models(rows)}
    return found[one] - found[other] if one in found and other in found else None


def _listed(found: Mapping[Any, Pooled]) -> str:
    return ", ".join(f"{name}: {one.value:.3f}" for name, one in found.items())


def _side(effect: Pooled | None, one: str, other: str) -> str:
    """Which of the two is better, if the interval tells."""
    if effect is None or effect.low <= 0 <= effect.high:
        return f"{one} and {other} are not told apart."
    return f"{one} is {'better' if effect.low > 0 else 'worse'} than {other}."


def _found(text: str, effect: Pooled | None, unit: str) -> Judgement:
    if effect is None:
        return Judgement(verdict="found", text=text)
    return Judgement(verdict="found", text=text, value=effect.value, low=effect.low, high=effect.high, unit=unit)
