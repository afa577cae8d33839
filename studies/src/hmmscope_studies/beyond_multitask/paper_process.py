"""The process of [MultiTask] at full size, with a smaller model."""

from typing import Any

from hmmscope import registry
from hmmscope.lab import Measurement, Tables, claim
from hmmscope.ties import smallest
from hmmscope.training.recipes import multitask_recipe
from hmmscope_papers.multitask.fig1 import MultiTaskFig1
from hmmscope_papers.multitask.models import CONCENTRATION
from hmmscope_papers.multitask.predictors import NGRAMS, POOLS

#: Parameters by scale: process, layout, model, training.
_NUMBERS: dict[str, dict[str, dict[str, Any]]] = {
    "smoke": {
        "process": {"num_components": 8, "num_states": 4, "num_symbols": 4},
        "layout": {"num_demonstrations": 3, "demonstration_length": 6, "test_length": 6},
        "model": {"num_layers": 2, "num_heads": 2, "width": 16},
        "training": {"num_steps": 20, "batch_size": 8, "warmup_steps": 5, "evaluate_every": 10, "checkpoint_every": 15},
    },
    "medium": {
        "process": {"num_components": 8192, "num_states": 128, "num_symbols": 16},
        "layout": {"num_demonstrations": 15, "demonstration_length": 16, "test_length": 16},
        "model": {"num_layers": 6, "num_heads": 8, "width": 128},
        "training": {
            **multitask_recipe(width=128),
            "evaluate_samples": 16,
            "evaluate_every": 256,
            "checkpoint_every": 256,
        },
    },
}


@registry.experiment("multitask-own-process")
class OwnProcess(MultiTaskFig1):
    """Figure 1 of [MultiTask] on its 8192 HMMs (128 states, 16 symbols), 16 prompts of each, with a smaller model."""

    title = "A small model trained on the paper's data"
    in_paper = None
    summary = (
        "The data of [MultiTask] are 8192 hidden Markov models of 128 states and 16 symbols, and 131,072 prompts, each "
        "read once. A model of 6 layers and width 128, which two cores can train, replaces the paper's model (16 layers, "
        "width 1024). It is compared with the exact Bayes mixture over these HMMs and with n-gram baselines."
    )
    num_seeds = {"smoke": 2, "medium": 3}
    sizes = {
        "smoke": {"samples": 32, "first_position": 4, "memory_lengths": [1, 2], "num_steps": 3},
        "medium": {"samples": 32, "first_position": 4, "memory_lengths": [2], "num_steps": 20},
    }

    def choices(self, scale: str) -> dict[str, Any]:
        return {}

    def plan(self, scale: str, **choices: Any) -> dict[str, dict[str, Any]]:
        law = {"transition_concentration": CONCENTRATION, "emission_concentration": CONCENTRATION}
        first: dict[str, dict[str, Any]] = {
            "process": {"name": "random-mixture", **law},
            "layout": {"name": "prompts"},
            "model": {"name": "roformer"},
        }
        return {"model": {key: first.get(key, {}) | numbers for key, numbers in _NUMBERS[scale].items()}}


@claim("multitask-own-process")
def own_process(tables: Tables) -> Measurement:
    rows = tables["demonstrations"].where(metric="loss")
    end = rows.where(x=max(rows.values("x")))
    parts = []
    for pool, own in end.by("pool").items():
        found = {name: one.effect() for name, one in own.by("predictor").items()}
        best = smallest((one for name in NGRAMS if (one := found.get(name))), lambda one: one.value)
        parts.append(f"{found['model']} on {POOLS[pool]} (best n-gram baseline {best}, retrieval {found['retrieval']})")
    gain = tables["effects"].where(network="trained", pool="pool", effect="gain over counting")
    return Measurement(
        gain.effect(unit="nats below the best n-gram baseline"),
        f"The loss of the model is, in nats, {'; '.join(parts)}.",
    )
