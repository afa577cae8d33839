"""[MultiTask] Figure 2: how far attention depends on where the demonstrations stand, layer by layer."""

from typing import Any

import numpy as np
import torch
from torch import nn

from hmmscope import registry
from hmmscope.analysis.intervals import bootstrap_means
from hmmscope.analysis.shuffle import MODES, ShuffleValues, shuffle_rows, shuffle_values
from hmmscope.axes import Tensor
from hmmscope.constructions.multitask_network import MultiTaskTransformer
from hmmscope.evidence.figures import Figure
from hmmscope.experiments.construction_vs_trained import construct
from hmmscope.experiments.experiment import NUM_SEEDS, SEED_INTERVALS, Experiment, Measured, Tables
from hmmscope.experiments.multitask_fig2_figures import figures
from hmmscope.experiments.multitask_models import multitask_config
from hmmscope.runs.pipeline import Run, untrained_twin
from hmmscope.schema import require

#: Sizes of the measurements; the last three are of the constructed network, whose learning rate is the largest that is
#: stable on the first prompts.
SIZES: dict[str, dict[str, int]] = {
    "smoke": {"samples": 8, "permutations": 3, "construction_samples": 4, "memory_length": 2, "num_steps": 2},
    "small": {"samples": 64, "permutations": 8, "construction_samples": 8, "memory_length": 4, "num_steps": 4},
    "gpu": {"samples": 64, "permutations": 16, "construction_samples": 16, "memory_length": 4, "num_steps": 8},
    "paper": {"samples": 64, "permutations": 16, "construction_samples": 8, "memory_length": 4, "num_steps": 16},
}


@registry.experiment("multitask-fig2")
class MultiTaskFig2(Experiment):
    """See the module."""

    title = "Does attention depend on where the demonstrations stand?"
    summary = (
        "The places of the demonstrations are shuffled, and the attention logits from the last token of the test sequence "
        "are followed by the identity of their key: whole demonstrations change places (A), or the position ids of their "
        "tokens are permuted in all layers (B) or in one layer alone (C). Controls are the model before training, and the "
        "network of Theorem 1, whose gradient layers do not read positions at all."
    )
    num_seeds = NUM_SEEDS
    intervals = SEED_INTERVALS
    groups = {"shuffle": ("shuffle", "effects")}

    def plan(self, scale: str, **choices: Any) -> dict[str, dict[str, Any]]:
        return {"model": multitask_config(scale)}

    def measurements(self, scale: str) -> dict[str, Any]:
        return dict(SIZES[scale])

    def measure(self, runs: dict[str, Run], group: str, sizes: dict[str, Any]) -> Measured:
        run = runs["model"]
        corpus, tables = run.corpus("probe"), Measured(shuffle=[], effects=[])
        constructed = construct(run, {**sizes, "samples": sizes["construction_samples"]})
        networks: dict[str, nn.Module] = {"trained": run.model, "untrained": untrained_twin(run)}
        networks["constructed"] = constructed
        for network, model in networks.items():
            own = network == "constructed"
            for mode in MODES:
                values = shuffle_values(
                    model,
                    corpus,
                    num_samples=sizes["construction_samples" if own else "samples"],
                    num_permutations=sizes["permutations"],
                    mode=mode,
                    attend_at=_attend_at(constructed) if own else None,
                    first_position=sizes["memory_length"] if own else 0,
                )
                if own:
                    del values["attention_change"]  # of a softmax, and most of its layers have none
                key, last = {"network": network, "mode": mode}, max(values["cv"])
                stages = _stages(constructed) if own else {}
                tables["shuffle"] += [
                    key | {"depth": row["layer"] / last, "stage": stages.get(row["layer"], "")} | row
                    for row in shuffle_rows(values)
                ]
                if not own:
                    tables["effects"] += [key | row for row in effects(values)]
        return tables

    def figures(self, tables: Tables) -> list[Figure]:
        return figures(tables)


def _attend_at(network: MultiTaskTransformer):  # type: ignore[no-untyped-def]
    """Runs a layer of the construction with other position vectors in the stream that it reads."""

    def attend_at(attention: nn.Module, x_BTD: Tensor, positions: Tensor) -> Tensor:
        moved = x_BTD.clone()
        moved[..., network.subspaces["position"]] = network.positions[positions]
        written: Tensor = attention(moved)
        return written

    return attend_at


def _stages(network: MultiTaskTransformer) -> dict[int, str]:
    """What each layer of the construction does."""
    return {note.layer: note.stage for note in network.notes()}


def effects(values: ShuffleValues) -> list[dict]:
    """What the claims rest on, averaged over heads prompt by prompt: (effect, metric, value, low, high, samples).

    ``lower less upper``: mean of the lower half of the layers less mean of the upper half (a middle layer counts for
    neither); ``last less before``: the last layer less the one before it.
    """
    rows = []
    for metric in ("cv", "cv_centred", "attention_change"):
        by_layer = torch.stack([heads_BH.mean(1) for _, heads_BH in sorted(values[metric].items())]).numpy()
        half = len(by_layer) // 2
        require(half >= 1, "model.num_layers", "must be at least 2 to tell lower layers from upper ones", len(by_layer))
        found = {
            "lower less upper": by_layer[:half].mean(0) - by_layer[-half:].mean(0),
            "last less before": by_layer[-1] - by_layer[-2],
        }
        for effect, differences in found.items():
            mean, low, high = (float(x) for x in bootstrap_means(np.asarray(differences)))
            number = {"value": mean, "low": low, "high": high, "samples": len(differences)}
            rows.append({"effect": effect, "metric": metric} | number)
    return rows
