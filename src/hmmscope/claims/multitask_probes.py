"""What [MultiTask] Figure 3 says a trained model holds, layer by layer."""

import math
from collections.abc import Sequence
from typing import Any

from hmmscope.claims.old import Judgement, Tables, claim, is_above
from hmmscope.evidence.pooling import Pooled, pool_values
from hmmscope.evidence.verdicts import Verdict

_NORMAL = 1.96
DISTANCES = range(5)


def pool_effects(rows: Sequence[dict[str, Any]]) -> Pooled:
    """Mean over seeds of rows (seed, value, low, high, error) with the wider of two 95 % intervals.

    One is Student's over seeds. The other has the noise of the samples alone: seeds that agree by chance, as numbers of
    layers may, do not make an interval vanish. Of one seed it is the interval over its samples.
    """
    found = pool_values([row["value"] for row in rows], (rows[0]["low"], rows[0]["high"]) if len(rows) == 1 else None)
    if len(rows) == 1:
        return found
    half = _NORMAL * math.sqrt(sum(row["error"] ** 2 for row in rows)) / len(rows)
    return Pooled(found.value, min(found.low, found.value - half), max(found.high, found.value + half), len(rows))


def effect(rows: list[dict[str, Any]], **fields: Any) -> Pooled:
    """The rows with these values in these columns, pooled."""
    return pool_effects([row for row in rows if all(row[key] == value for key, value in fields.items())])


def verdict_of_all(effects: Sequence[Pooled]) -> Verdict:
    """Of the claim that every one of several effects is above zero."""
    if not all(found.decides for found in effects):
        return "inconclusive"
    if all(found.low > 0 for found in effects):
        return "reproduced"
    return "not reproduced" if any(found.high <= 0 for found in effects) else "inconclusive"


def said(found: Pooled, digits: int = 2) -> str:
    """A number with its interval, for a text."""
    return f"{found.value:.{digits}f} ({found.low:.{digits}f} to {found.high:.{digits}f})"


@claim(
    "multitask-state-before-task",
    source="[MultiTask] §2, Fig. 3(a)",
    statement="Within a task the hidden state is decodable in earlier layers than the task itself.",
    experiment="multitask-fig3a",
)
def state_before_task(tables: Tables) -> Judgement:
    """Layers from the onset of the hidden state to that of the component, by both ways to count an onset.

    The current symbol alone may tell most of the state, so that a curve counted from zero arrives at layer 0 with nothing
    done; counted from layer 0 it is the rise that has to arrive. The claim stands, or falls, by both.
    """
    rows = tables["onsets"]

    def later(quantity: str, model: str = "trained", target: str = "component - state") -> Pooled:
        return effect(rows, model=model, target=target, quantity=quantity)

    both = [later("onset"), later("onset above layer 0")]
    state, component = later("onset", target="state"), later("onset", target="component")
    text = (
        f"90 % of their own maximum is reached at layer {state.value:.2g} by the hidden state and at layer "
        f"{component.value:.2g} by the component, mean over seeds: {said(both[0])} layers later. Of the rise above layer 0 "
        f"the component makes 90 % {said(both[1])} layers later; its peak comes {said(later('peak'))} layers later. Before "
        f"training the first number is {said(later('onset', 'untrained'))}."
    )
    each = {verdict_of_all([found]) for found in both}
    verdict: Verdict = each.pop() if len(each) == 1 else "inconclusive"
    least = min(both, key=lambda found: found.low)
    unit = "layers from the onset of the state to that of the component, the less certain of two ways to count"
    return Judgement(verdict=verdict, text=text, value=least.value, low=least.low, high=least.high, unit=unit)


@claim(
    "multitask-task-gradual",
    source="[MultiTask] §2, Fig. 3(a)",
    statement="The task is recognised gradually: layers after the first add to what is known of it.",
    experiment="multitask-fig3a",
)
def task_gradual(tables: Tables) -> Judgement:
    """Accuracy for the component at the last layer less that at the first."""
    rows = tables["onsets"]
    later = effect(rows, model="trained", target="component", quantity="rise from layer 1 to the last")
    first = effect(rows, model="trained", target="component", quantity="rise from layer 0 to layer 1")
    over = effect(rows, model="trained - untrained", target="component", quantity="accuracy at the last layer")
    text = (
        f"Layer 1 adds {said(first)} to the accuracy for the component, the layers after it {said(later)}. At the last "
        f"layer the model stands {said(over)} above the same model before training."
    )
    return is_above(later, text, "accuracy from layer 1 to the last layer")


@claim(
    "multitask-nearer-tokens-clearer",
    source="[MultiTask] §2, Fig. 3(b), (1)",
    statement="Previous tokens are read with decreasing accuracy as the distance grows.",
    experiment="multitask-fig3b",
)
def nearer_clearer(tables: Tables) -> Judgement:
    """Fall of the accuracy at the best layer for each step of distance."""
    rows = tables["curves"]
    best = [effect(rows, network="trained", distance=k, quantity="best accuracy").value for k in DISTANCES]
    text = (
        f"At the layer where it is best, the accuracy is {', '.join(f'{value:.2f}' for value in best)} for "
        f"{', '.join(map(str, DISTANCES))} steps back."
    )
    fall = effect(rows, network="trained", distance=None, quantity="fall of the best accuracy with distance")
    return is_above(fall, text, "accuracy lost for each step back, at the best layer")


@claim(
    "multitask-tokens-rise-and-fall",
    source="[MultiTask] §2, Fig. 3(b), (2)",
    statement="The curves of all previous tokens rise and then fall over the layers.",
    experiment="multitask-fig3b",
)
def rise_and_fall(tables: Tables) -> Judgement:
    """Every curve of a token before the last must rise to a peak and fall from it to the last layer."""
    rows = tables["curves"]

    def of(quantity: str) -> dict[int, Pooled]:
        return {k: effect(rows, network="trained", distance=k, quantity=quantity) for k in DISTANCES if k > 0}

    rises, falls = of("rise"), of("fall")
    least = min(falls, key=lambda k: falls[k].low)
    text = (
        f"From layer 0 to the peak the accuracy rises by {', '.join(f'{rises[k].value:.3f}' for k in rises)} for "
        f"{', '.join(map(str, rises))} steps back, and from there to the last layer it falls by "
        f"{', '.join(said(falls[k], 3) for k in falls)}. The current token has no rise: layer 0 is its embedding."
    )
    return Judgement(
        verdict=verdict_of_all([*rises.values(), *falls.values()]),
        text=text,
        value=falls[least].value,
        low=falls[least].low,
        high=falls[least].high,
        unit=f"accuracy from the peak to the last layer, {least} back (the least certain fall)",
    )


@claim(
    "multitask-peak-moves-up",
    source="[MultiTask] §2, Fig. 3(b), (3)",
    statement="The peak of the curves moves to higher layers with distance.",
    experiment="multitask-fig3b",
)
def peak_moves_up(tables: Tables) -> Judgement:
    """Slope of the layer of the peak on the distance."""
    rows = tables["curves"]
    peaks = [effect(rows, network="trained", distance=k, quantity="peak").value for k in DISTANCES]
    onsets = effect(rows, network="trained", distance=None, quantity="slope of the onset")
    built = [effect(rows, network="constructed", distance=k, quantity="onset").value for k in DISTANCES]
    text = (
        f"The peak is at layer {', '.join(f'{value:.2g}' for value in peaks)} for {', '.join(map(str, DISTANCES))} steps "
        f"back, mean over seeds. The layer that makes 90 % of the rise moves by {said(onsets)} a step; in the constructed "
        f"network it is {', '.join(f'{value:.0f}' for value in built)}."
    )
    slope = effect(rows, network="trained", distance=None, quantity="slope of the peak")
    return is_above(slope, text, "layers for each step back")
