"""Task patching: test whether patching one layer transfers the mixture component (task) of another prompt."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import nn

from hmmscope import registry
from hmmscope.analysis.activations import BATCH, capture_activations, inference_mode, layers_read, model_probs
from hmmscope.analysis.belief_interventions import DISTANCES, exact_answers
from hmmscope.analysis.geometry import belief_times
from hmmscope.analysis.interventions import Edit, intervene, move_within
from hmmscope.analysis.layer_curves import Curves, resampled_curves, with_interval
from hmmscope.analysis.measures import means_of_asked
from hmmscope.axes import Float64, Int64, Tensor
from hmmscope.datasets.process_dataset import ProcessDataset
from hmmscope.errors import InputError
from hmmscope.inference.mixture_posterior import filter_known_component
from hmmscope.processes.capabilities import COMPONENTS
from hmmscope.schema import require, require_count, unknown_name
from hmmscope.seeds import torch_generator

#: Relative singular values below this are rounding.
SHARE = 1e-6


@registry.instrument("task-patching", by=("subspace", "rank", "reference"), only=("metric",))
def task_patching(
    model: nn.Module,
    dataset: ProcessDataset,
    *,
    layers: Sequence[str] | None = None,
    num_samples: int = 256,
    rank: int = 0,
    columns: str = "test",
    num_random: int = 4,
    seed: int = 0,
) -> list[dict]:
    """Patch the mixture component (task) of prompt A into the run on prompt B, one layer at a time.

    In three quarters of the pairs (A, B), A's demonstrations replace B's. The leading directions of the
    resulting change of the residual stream span the task subspace. In the other pairs, the projection of B's stream
    onto this subspace is patched: replaced by its value after A's demonstrations. Controls patch the ``whole`` stream
    and ``random`` subspaces. The value is the fraction of the distance to a reference that the patch closes, 1 -
    D(reference, patched model) / D(reference, model).

    The reference is the prediction of the exact filter with A's component on B's test sequence (``filter``), or of the
    model after A's demonstrations (``model``). D is the KL divergence in nats or the total variation, by `metric`; rows
    of infinite D are omitted. D is averaged over positions at which B's test sequence is possible under A's component.

    Args:
        model: any module.
        dataset: prompts of a mixture, with demonstrations.
        layers: module names (default: the residual stream).
        num_samples: number of prompts, each paired with a prompt of another component.
        rank: dimension of the task subspace; 0 for all directions of the change.
        columns: positions to patch: "test" (the test sequence) or "all".
        num_random: number of random subspaces over which the control ``random`` is averaged.
        seed: seed of subspaces and bootstrap.

    Returns:
        Rows (layer, layer_name, subspace, rank, reference, metric, value, low, high, error, before, after, samples).
        ``before``, ``after``: mean D of model and patched model; ``error``: standard error. The 95 % interval is
        over patched prompts.

    Raises:
        InputError: the process is not a mixture, or there are no demonstrations or fewer than two components.

    Source: this project; task vectors as in Hendel et al. (2023).
    """
    require_count("num_samples", num_samples, 16, " (three quarters find the subspace, one quarter is patched)")
    require_count("rank", rank, 0)
    names = layers_read(model, layers)
    if not isinstance(columns, str) or columns not in ("test", "all"):
        raise unknown_name("columns", columns, ("test", "all"))
    pairs, rows = _Pairs(model, dataset, num_samples, names, everywhere=columns == "all"), []
    for layer, name in enumerate(names):
        own, other = pairs.streams[name]
        moved = (other - own)[: pairs.first, pairs.columns].flatten(0, 1).double()
        sizes, directions = torch.linalg.svd(moved, full_matrices=False)[1:]
        count = int((sizes > SHARE * sizes[0]).sum())
        count = min(count, rank) if rank else count
        if not count:  # this layer does not depend on the task
            continue
        generator = torch_generator(seed, "probe")
        size = count, moved.shape[1]
        random = [torch.randn(size, generator=generator, dtype=torch.float64) for _ in range(num_random)]
        chosen = {"task": [directions[:count]], "random": random, "whole": [torch.eye(moved.shape[1]).double()]}
        for subspace, bases in chosen.items():
            after = [pairs.answers({name: pairs.edit(name, basis)}) for basis in bases]
            for (reference, metric), (before, found) in pairs.distances(after).items():
                if len(before) < 2 or not np.isfinite([before, found]).all():
                    continue
                means = resampled_curves(np.stack([before, found], 1), seed=seed)
                if not (means[:, 0] > 0).all():  # no distance to cover
                    continue
                about = {"layer": layer, "layer_name": name, "subspace": subspace, "rank": count}
                reached = with_interval(1 - means[:, 1] / means[:, 0], len(before))
                about |= {"reference": reference, "metric": metric} | reached
                numbers = {"before": before.mean().item(), "after": found.mean().item(), "samples": len(before)}
                rows.append(about | numbers)
    return rows


class _Pairs:
    def __init__(
        self, model: nn.Module, dataset: ProcessDataset, num_samples: int, names: Sequence[str], *, everywhere: bool
    ) -> None:
        process, layout = dataset.process, dataset.layout
        batch, last = dataset[0:num_samples], belief_times(dataset)
        if COMPONENTS not in process.uses_hmm_inference or batch.components is None or last[0] == 0:
            raise InputError("dataset: must be prompts of a mixture, with at least one demonstration")
        donor = _of_another_component(batch.components)
        mixed = torch.cat([batch.observations[donor][:, : last[0]], batch.observations[:, last]], 1)
        self._model, self.columns, self._everywhere = model, torch.from_numpy(layout.token_positions[last]), everywhere
        self.first = (3 * num_samples) // 4
        swapped = layout.tokens(mixed, dataset.num_symbols)
        plain, changed = (_streams(model, names, tokens) for tokens in (batch.tokens, swapped))
        self.streams = {name: (plain[name], changed[name]) for name in names}
        self._tokens, self._symbols = batch.tokens[self.first :], dataset.num_symbols
        components, test = batch.components[donor][self.first :], batch.observations[self.first :][:, last]
        known = filter_known_component(process, test, components)
        filtered = exact_answers(process.params, known.beliefs, components)
        self._references = {"filter": filtered, "model": self._answers(swapped[self.first :], {})}
        self._before = self.answers({})

    def edit(self, name: str, basis_RD: Float64[Tensor, "direction width"]) -> Edit:
        positions = None if self._everywhere else self.columns
        return move_within(basis_RD, self.streams[name][1][self.first :], positions=positions)

    def answers(self, edits: dict[str, Edit]) -> Float64[Tensor, "pair position symbol"]:
        return self._answers(self._tokens, edits)

    def _answers(self, tokens: Tensor, edits: dict[str, Edit]) -> Tensor:
        with intervene(self._model, edits):
            return model_probs(self._model, tokens, self._symbols, self.columns)

    def distances(self, after: list[Tensor]) -> dict[tuple[str, str], tuple[Curves, Curves]]:
        return {
            (reference, metric): (
                means_of_asked(distance(probs, self._before), possible).numpy(),
                torch.stack([means_of_asked(distance(probs, found), possible) for found in after]).mean(0).numpy(),
            )
            for reference, probs in self._references.items()
            for possible in (probs.sum(-1) > 0.5,)
            for metric, distance in DISTANCES.items()
        }


def _streams(model: nn.Module, names: Sequence[str], tokens: Int64[Tensor, "sample column"]) -> dict[str, Tensor]:
    parts: dict[str, list[Tensor]] = {name: [] for name in names}
    with inference_mode(model) as device:
        for part in tokens.split(BATCH):
            for name, x in capture_activations(model, names, part.to(device), lambda x: x.cpu()).items():
                parts[name].append(x)
    return {name: torch.cat(values) for name, values in parts.items()}


def _of_another_component(components: Int64[Tensor, " sample"]) -> Int64[Tensor, " sample"]:
    count = len(components)
    ahead = (torch.arange(count)[:, None] + torch.arange(1, count)) % count
    differs = components[ahead] != components[:, None]
    require(bool(differs.any(1).all()), "dataset", "must have prompts of at least two components", 1)
    return ahead[torch.arange(count), differs.int().argmax(1)]
