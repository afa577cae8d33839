"""Claims of [MultiTask] §2 and §5 on attention: what Figures 2 and 7 show.

They rest on the tables "effects" of the experiments, which hold differences prompt by prompt, one row a seed.
"""

from typing import Any

from hmmscope.claims.old import Judgement, Tables, claim, is_above
from hmmscope.evidence.pooling import Pooled, pool_rows
from hmmscope.evidence.verdicts import Verdict


@claim(
    "multitask-upper-layers-ignore-places",
    source="[MultiTask] §2, §5, Fig. 2",
    statement="Attention logits of upper layers depend less on where the demonstrations stand.",
    experiment="multitask-fig2",
)
def upper_layers_ignore_places(tables: Tables) -> Judgement:
    """Whole demonstrations change places (mode A).

    The effect is the variation of logits, averaged over heads and over the lower half of the layers, less that of the
    upper half, paired by seed. Reproduced if it is above zero beyond its interval for centred logits and for logits as
    they are (the paper does not define its metric); not reproduced if both intervals end at zero or below; else
    inconclusive. The number is that of centred logits.
    """
    return _upper_layers(tables, "blocks", "When whole demonstrations change places")


@claim(
    "multitask-upper-layers-read-no-positions",
    source="[MultiTask] §2, §5, Fig. 2",
    statement="Upper layers themselves take less from the positions of the demonstrations.",
    experiment="multitask-fig2",
)
def upper_layers_read_no_positions(tables: Tables) -> Judgement:
    """Position ids permuted in the measured layer alone (mode C), by the rule of `upper_layers_ignore_places`."""
    return _upper_layers(tables, "layer", "When position ids are permuted in the measured layer alone")


@claim(
    "multitask-last-layer-reverts",
    source="[MultiTask] Fig. 2 (layers 9 to 15 of 16 are named, not the last)",
    statement="Does the last layer go back to positions?",
    experiment="multitask-fig2",
)
def last_layer(tables: Tables) -> Judgement:
    """An open question, so always "found": centred variation of the last layer less that of the one before, mode A."""
    centred, raw = (_effect(tables, "blocks", "last less before", metric) for metric in ("cv_centred", "cv"))
    word = "rises" if centred.low > 0 else "falls" if centred.high < 0 else "does not clearly change"
    text = (
        f"From the layer before to the last one the variation {word} when whole demonstrations change places: "
        f"{_signed(centred)} for centred logits, {_signed(raw)} as they are."
    )
    return Judgement(
        verdict="found",
        text=text,
        value=centred.value,
        low=centred.low,
        high=centred.high,
        unit="variation of centred logits, last layer less the one before",
    )


def _upper_layers(tables: Tables, mode: str, begin: str) -> Judgement:
    centred, raw = (_effect(tables, mode, "lower less upper", metric) for metric in ("cv_centred", "cv"))
    control = _effect(tables, mode, "lower less upper", "cv_centred", network="untrained")
    text = (
        f"{begin}, the variation of the lower half of the layers less that of the upper half is {_signed(centred)} for "
        f"centred logits and {_signed(raw)} for logits as they are; before training {_signed(control)} (centred). Both "
        "measures have to agree."
    )
    verdict: Verdict = "inconclusive"
    if centred.low > 0 and raw.low > 0:
        verdict = "reproduced"
    elif centred.high <= 0 and raw.high <= 0:
        verdict = "not reproduced"
    number = {"value": centred.value, "low": centred.low, "high": centred.high}
    return Judgement(verdict=verdict, text=text, unit="variation, lower less upper half", **number)


# ---------------------------------------------------------------------------------------------------------------------
# Figure 7


@claim(
    "multitask-lower-layers-look-nearby",
    source="[MultiTask] §2, §4, Fig. 7",
    statement="Lower layers attend to neighbouring tokens of the same sequence, upper layers more to the demonstrations.",
    experiment="multitask-fig7",
)
def lower_layers_look_nearby(tables: Tables) -> Judgement:
    """Attention of the last token that falls on its own sequence: lower half of the layers less upper half, by seed.

    Averaged over heads; a middle layer counts for neither half. The token itself is not counted.
    """
    effect = _seven(tables, "same sequence, lower less upper")
    control = _seven(tables, "same sequence, lower less upper", network="untrained")
    lower, upper = _seven(tables, "same sequence, lower"), _seven(tables, "same sequence, upper")
    text = (
        f"The last token gives {lower.value:.3f} of its attention to earlier tokens of its sequence in the lower half of "
        f"the layers and {upper.value:.3f} in the upper half, {_signed(effect)}; before training the difference is "
        f"{_signed(control)}."
    )
    return is_above(effect, text, "share of attention, lower less upper half")


@claim(
    "multitask-copying-heads",
    source="[MultiTask] §4, Fig. 5, Fig. 7",
    statement="Trained heads align with those of the construction that gather the last tokens.",
    experiment="multitask-fig7",
)
def copying_heads(tables: Tables) -> Judgement:
    """A gathering head of the construction puts all its attention on one token some columns back.

    Alignment is the attention that the best head of a network puts there, averaged over the gathering heads; the effect
    is that of the trained network less that of the network before training, which has as many heads to choose from.
    """
    effect = _seven(tables, "alignment, trained less untrained", network="both")
    trained, untrained = _seven(tables, "alignment"), _seven(tables, "alignment", network="untrained")
    offsets = sorted({row["offset"] for row in tables["alignment"]})
    best = "; ".join(
        f"{offset} back: {_mean(tables['alignment'], offset=offset, network='trained'):.2f} in layer "
        f"{_mean(tables['alignment'], 'layer', offset=offset, network='trained'):.1f}"
        for offset in offsets
    )
    text = (
        f"The best heads put {trained.value:.3f} of their attention where the gathering heads put all of theirs "
        f"({untrained.value:.3f} before training), {_signed(effect)}. Means over seeds, layers counted from 1: {best}."
    )
    return is_above(effect, text, "attention in common, trained less untrained")


# ---------------------------------------------------------------------------------------------------------------------


def _pooled(rows: list[dict]) -> Pooled:
    found = pool_rows(rows, [])[0]
    return Pooled(found["value"], found["low"], found["high"])


def _effect(tables: Tables, mode: str, effect: str, metric: str, network: str = "trained") -> Pooled:
    """An effect of Figure 2, pooled over seeds."""
    return _pooled(_of(tables["effects"], mode=mode, effect=effect, metric=metric, network=network))


def _seven(tables: Tables, effect: str, network: str = "trained") -> Pooled:
    """An effect of Figure 7, pooled over seeds."""
    return _pooled(_of(tables["effects"], effect=effect, network=network))


def _of(rows: list[dict], **fields: Any) -> list[dict]:
    return [row for row in rows if all(row[key] == value for key, value in fields.items())]


def _mean(rows: list[dict], column: str = "value", **fields: Any) -> float:
    chosen = [row[column] for row in _of(rows, **fields)]
    return sum(chosen) / len(chosen)


def _signed(effect: Pooled) -> str:
    return f"{effect.value:+.3f} ({effect.low:+.3f} to {effect.high:+.3f})"
