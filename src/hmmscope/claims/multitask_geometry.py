"""Whether the residual stream holds belief states: beyond the figures of [MultiTask]."""

from hmmscope.claims.multitask_probes import effect, said, verdict_of_all
from hmmscope.claims.old import Judgement, Tables, claim, is_above
from hmmscope.evidence.pooling import Pooled

#: Models of the experiment, as they are called in texts.
NAMES = {"mess3": "Mess3", "mess3-mixture": "the mixture of Mess3", "rrxor": "RRXOR"}


def of_beliefs(tables: Tables, quantity: str, target: str = "belief") -> dict[str, Pooled]:
    """A quantity of each process that has the target, pooled over seeds."""
    rows = [row for row in tables["effects"] if row["target"] == target and row["quantity"] == quantity]
    return {process: effect(rows, process=process) for process in dict.fromkeys(row["process"] for row in rows)}


@claim(
    "multitask-belief-linear",
    source="beyond [MultiTask]; Shai et al. (2024), Fig. 5",
    statement="Belief states are linearly decodable from the residual stream, better than before training.",
    experiment="multitask-geometry",
)
def belief_linear(tables: Tables) -> Judgement:
    """Held-out R² less that of the better control, of every process."""
    trained, gains = of_beliefs(tables, "trained"), of_beliefs(tables, "trained - controls")
    before, ceiling = of_beliefs(tables, "untrained"), of_beliefs(tables, "ceiling")
    least = min(gains, key=lambda process: gains[process].low)
    each = "; ".join(
        f"{NAMES[process]} {found.value:.3f} ({before[process].value:.3f} before training, at most "
        f"{ceiling[process].value:.3f})"
        for process, found in trained.items()
    )
    return Judgement(
        verdict=verdict_of_all(list(gains.values())),
        text=f"R² on held-out samples at the layer that fits the training samples best: {each}.",
        value=gains[least].value,
        low=gains[least].low,
        high=gains[least].high,
        unit=f"R² above the better control, {NAMES[least]} (the least certain)",
    )


@claim(
    "multitask-belief-beyond-prediction",
    source="beyond [MultiTask]; Shai et al. (2024), Fig. 7",
    statement="The stream holds the belief where the law of the next observation does not tell it.",
    experiment="multitask-geometry",
)
def belief_beyond_prediction(tables: Tables) -> Judgement:
    """RRXOR has five states and two symbols: an affine function of the prediction knows little of its beliefs."""
    trained, law = of_beliefs(tables, "trained")["rrxor"], of_beliefs(tables, "from the prediction")["rrxor"]
    before = of_beliefs(tables, "untrained")["rrxor"]
    text = (
        f"On RRXOR the beliefs are read off the stream with R² {said(trained, 3)}; an affine function of the exact law of "
        f"the next observation reaches {said(law, 3)}, the stream before training {said(before, 3)}."
    )
    gain = of_beliefs(tables, "trained - prediction and untrained")["rrxor"]
    return is_above(gain, text, "R² above the better of prediction and untrained model")
