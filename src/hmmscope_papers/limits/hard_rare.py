"""Cyclic-HARD asked as rarely as in the paper, on short sequences: once in 128 actions."""

from typing import Any

from hmmscope import registry
from hmmscope.lab import Measurement, Tables, claim
from hmmscope_papers.limits.supervision_rate import LimitsHardDose, dose_threshold


@registry.experiment("limits-hard-rare")
class LimitsHardRare(LimitsHardDose):
    """The dose of limits-hard-dose nearest to the paper's, for two layers and the RNN, after as many answers."""

    title = "Cyclic-HARD, asked once in 128 actions"
    summary = (
        "The paper asks for the state of Cyclic-HARD once in 120 actions, and finds that no Transformer fits it at any "
        "length. Here it is asked for once in 128, on sequences of 32, until as many questions are answered as in the "
        "grid, which asks once in 32: four times as many sequences, of which most ask nothing."
    )
    num_seeds = {"smoke": 2, "medium": 3}
    sizes = {scale: LimitsHardDose.sizes[scale] for scale in ("smoke", "medium")}
    shapes: dict[str, dict[str, Any]] = {
        "smoke": {"actions": [2, 8], "layers": [0, 1]},
        "medium": {"actions": [32, 128], "layers": [0, 2]},
    }


@claim("limits-hard-rare-threshold")
def rare_threshold(tables: Tables) -> Measurement:
    """As `dose_threshold`, of one depth."""
    return dose_threshold(tables)
