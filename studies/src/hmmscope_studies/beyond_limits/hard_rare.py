"""Cyclic-HARD on short sequences with about the supervision rate of the paper."""

from typing import Any

from hmmscope import registry
from hmmscope.lab import Measurement, RuleParameters, Tables, claim
from hmmscope_studies.beyond_limits.supervision_rate import LimitsHardDose, dose_threshold


@registry.experiment("limits-hard-rare")
class LimitsHardRare(LimitsHardDose):
    """Two-layer Transformers and RNNs with a state label per 128 actions, and as many labels as limits-hard-dose."""

    title = "Cyclic-HARD with one label of the state per 128 actions"
    summary = (
        "In the paper's Cyclic-HARD one in 120 actions is followed by a label of the state, and no Transformer fits it "
        "at any length. This experiment has one label per 128 actions, on sequences of 32 actions. It trains on four "
        "times as many sequences as limits-hard-dose with one label per 32 actions, for equally many labels."
    )
    num_seeds = {"smoke": 2, "medium": 3}
    sizes = {scale: LimitsHardDose.sizes[scale] for scale in ("smoke", "medium")}
    shapes: dict[str, dict[str, Any]] = {
        "smoke": {"actions": [2, 8], "layers": [0, 1]},
        "medium": {"actions": [32, 128], "layers": [0, 2]},
    }


@claim("limits-hard-rare-threshold")
def rare_threshold(tables: Tables, numbers: RuleParameters) -> Measurement:
    return dose_threshold(tables, numbers)
