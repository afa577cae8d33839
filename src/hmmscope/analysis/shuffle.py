"""Position-shuffle test: how attention depends on the order of demonstrations."""

from collections.abc import Callable, Iterator

import torch
from torch import nn

from hmmscope import registry
from hmmscope.analysis.activations import capture_activations, inference_mode, model_outputs, to_probs
from hmmscope.analysis.intervals import bootstrap_means
from hmmscope.axes import Tensor
from hmmscope.datasets.layouts import PromptLayout
from hmmscope.datasets.process_dataset import Batch, ProcessDataset
from hmmscope.datasets.tokenized import TextLayout
from hmmscope.errors import InputError
from hmmscope.models.adapted import called_title
from hmmscope.reprs import ResultTable
from hmmscope.schema import require, require_count, require_known
from hmmscope.seeds import torch_generator

#: Permuted: whole demonstrations; position ids in one layer; position ids in all layers.
MODES = ("blocks", "layer", "everywhere")

#: (attention of a block, its input (batch, time, width), position ids (time,)) -> its output.
AttendAt = Callable[[nn.Module, Tensor, Tensor], Tensor]


@registry.instrument("shuffle")
def shuffle_test(
    model: nn.Module,
    dataset: ProcessDataset,
    *,
    num_samples: int = 64,
    num_permutations: int = 8,
    mode: str = "blocks",
    seed: int = 0,
) -> ResultTable:
    """Permute the demonstrations of prompts, and measure how the last token's attention logits change.

    The keys are the observations of the demonstrations.

        cv = mean_keys(std_permutations(logit)) / mean_keys,permutations(|logit|)

    Mode "blocks" (A in the paper) permutes whole demonstrations, which leaves the exact prediction unchanged. The other
    modes permute position numbers: "everywhere" (B) in all layers; "layer" (C) in one layer at a time, with its input
    unchanged.

    Args:
        model: model with hook points ``blocks.<layer>.attention.logits`` (batch, head, query, key).
        dataset: dataset in a `PromptLayout` or `TextLayout` with at least two demonstrations.
        num_samples: number of prompts.
        num_permutations: number of permutations, including the original order.

    Returns:
        Rows (layer, head, metric, value, low, high, samples); layers count from 1. Metrics: ``cv``; ``cv_centred``, the
        cv of logits minus their mean over keys; ``attention_change``, the total variation of the attention from its
        mean over permutations; and, except in mode "layer", ``prediction_change``, the total variation of the
        prediction from its mean, in a row with layer 0 and head -1. The 95 % interval is over prompts.

    Raises:
        InputError: the hook points are missing, there are fewer than two demonstrations, the mode is unknown, or mode
            "layer" is used without rotary positions.

    Source: [MultiTask] Fig. 2, which does not state the metric.
    """
    values = ShuffleValues.of(
        model, dataset, num_samples=num_samples, num_permutations=num_permutations, mode=mode, seed=seed
    )
    return ResultTable(values.rows(), "Shuffled demonstrations", x="layer", y="value", by=("metric", "head"))


class ShuffleValues(dict[str, dict[int, Tensor]]):
    """Values of `shuffle_test` by metric and layer, with axes (sample, head)."""

    @classmethod
    def of(
        cls,
        model: nn.Module,
        dataset: ProcessDataset,
        *,
        num_samples: int = 64,
        num_permutations: int = 8,
        mode: str = "blocks",
        seed: int = 0,
        attend_at: AttendAt | None = None,
        first_position: int = 0,
    ) -> "ShuffleValues":
        """Compute `shuffle_test` for each prompt.

        `attend_at` replaces the model's method that computes attention at given position numbers.
        """
        layout = dataset.layout
        if not isinstance(layout, PromptLayout | TextLayout) or layout.num_demonstrations < 2:
            raise InputError("layout: the shuffle test needs prompts with at least two demonstrations")
        require_count("num_samples", num_samples)
        require_count("num_permutations", num_permutations, 2)
        length = layout.demonstration_length
        require(0 <= first_position < length, "first_position", f"must be in [0, {length - 1}]", first_position)
        require_known("mode", mode, MODES)
        names = attention_taps(model, "logits")
        attend_at = attend_at or getattr(model, "attend_at", None)
        if mode == "layer" and attend_at is None:
            raise InputError(
                "mode: 'layer' needs a model with a method attend_at, which sets positions in one layer; use 'blocks'"
            )
        batch = dataset[0:num_samples]
        generator = torch_generator(seed, "shuffle")
        logits: dict[str, list[Tensor]] = {name: [] for name in names}
        predictions: list[Tensor] = []
        with inference_mode(model) as device:
            if mode == "layer":
                assert attend_at is not None
                inputs = _attention_inputs(model, names, batch.tokens.to(device))
                keys = _columns(layout)[:, first_position:].flatten()
                for ids in _moved_ids(layout, num_permutations, generator):
                    for name in names:
                        attention = model.get_submodule(name.removesuffix(".logits"))
                        moved = _logits_at(attention, inputs[name], ids.to(device), attend_at)
                        logits[name].append(moved[:, :, -1, keys].cpu().double())
            elif mode == "everywhere":
                tokens, keys = batch.tokens.to(device), _columns(layout)[:, first_position:].flatten()
                for ids in _moved_ids(layout, num_permutations, generator):
                    placed_ids = {"positions": ids.to(device)}
                    found = capture_activations(
                        model, names, tokens, lambda x: x[:, :, -1, keys].cpu().double(), **placed_ids
                    )
                    for name in names:
                        logits[name].append(found[name])
                    predictions.append(to_probs(model, model(tokens, **placed_ids)[:, -1, : dataset.num_symbols]))
            else:
                for tokens, columns_NM in _moved_blocks(batch, dataset, layout, num_permutations, generator):
                    tokens, keys = tokens.to(device), columns_NM[:, first_position:].flatten()
                    found = capture_activations(
                        model,
                        names,
                        tokens,
                        lambda x, keys=keys: x[:, :, -1, keys].cpu().double(),  # type: ignore[misc]
                    )
                    for name in names:
                        logits[name].append(found[name])
                    predictions.append(to_probs(model, model_outputs(model, tokens, dataset.num_symbols)[:, -1]))
        values = cls()
        if predictions:
            prediction_RBV = torch.stack(predictions)
            change_B = 0.5 * (prediction_RBV - prediction_RBV.mean(0)).abs().sum(-1).mean(0)
            values["prediction_change"] = {0: change_B[:, None]}
        stacked = {layer: torch.stack(logits[name]) for layer, name in enumerate(names, 1)}  # as many heads as it has
        for metric, measure in (("cv", _variation), ("cv_centred", _centred_variation), ("attention_change", _change)):
            values[metric] = {layer: measure(logits_RBHU) for layer, logits_RBHU in stacked.items()}
        return values

    def rows(self) -> list[dict]:
        return [
            row
            for metric, by_layer in self.items()
            for layer, values_BH in by_layer.items()
            for row in _rows(metric, values_BH, layer, first_head=0 if layer else -1)
        ]


def attention_taps(model: nn.Module, what: str) -> list[str]:
    """Return the name of each layer's hook point of attention "logits" or weights ("pattern").

    Raises:
        InputError: the model has no softmax attention.
    """
    names = [name for name, _ in model.named_modules() if name.endswith(f".attention.{what}")]
    if not names:
        raise InputError(f"model: found no softmax attention in {called_title(model)}, so there is no attention {what}")
    return names


# Permutations


def _columns(layout: PromptLayout | TextLayout) -> Tensor:
    shape = (layout.num_demonstrations, layout.demonstration_length)
    return torch.from_numpy(layout.token_positions[: shape[0] * shape[1]]).view(shape)


def _moved_blocks(
    batch: Batch,
    dataset: ProcessDataset,
    layout: PromptLayout | TextLayout,
    num_permutations: int,
    generator: torch.Generator,
) -> Iterator[tuple[Tensor, Tensor]]:
    columns_NM = _columns(layout)
    number, count = len(columns_NM), columns_NM.numel()
    demonstrations = batch.observations[:, :count].unflatten(1, columns_NM.shape)
    for repeat in range(num_permutations):
        order = torch.arange(number) if repeat == 0 else torch.randperm(number, generator=generator)
        observations = batch.observations.clone()
        observations[:, :count] = demonstrations[:, order].flatten(1)
        yield layout.tokens(observations, dataset.num_symbols), columns_NM[order.argsort()]


def _moved_ids(
    layout: PromptLayout | TextLayout, num_permutations: int, generator: torch.Generator
) -> Iterator[Tensor]:
    keys = _columns(layout).flatten()
    for repeat in range(num_permutations):
        ids = torch.arange(layout.context_length)
        if repeat > 0:
            ids[keys] = keys[torch.randperm(len(keys), generator=generator)]
        yield ids


def _attention_inputs(model: nn.Module, names: list[str], tokens: Tensor) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    handles = []
    for name in names:

        def keep(module: nn.Module, args: tuple, name: str = name) -> None:
            found[name] = args[0].detach()

        handles.append(model.get_submodule(name.removesuffix(".logits")).register_forward_pre_hook(keep))
    try:
        model(tokens)
    finally:
        for handle in handles:
            handle.remove()
    return found


def _logits_at(attention: nn.Module, x_BTD: Tensor, positions: Tensor, attend_at: AttendAt) -> Tensor:
    found = []
    handle = attention.get_submodule("logits").register_forward_hook(lambda module, args, output: found.append(output))
    try:
        attend_at(attention, x_BTD, positions)
    finally:
        handle.remove()
    return found[0]


# Metrics


def _variation(logits_RBHU: Tensor) -> Tensor:
    spread = logits_RBHU.std(0, correction=0).mean(-1)
    return spread / logits_RBHU.abs().mean((0, -1)).clamp_min(1e-12)


def _centred_variation(logits_RBHU: Tensor) -> Tensor:
    return _variation(logits_RBHU - logits_RBHU.mean(-1, keepdim=True))


def _change(logits_RBHU: Tensor) -> Tensor:
    pattern = logits_RBHU.softmax(-1)
    return 0.5 * (pattern - pattern.mean(0)).abs().sum(-1).mean(0)


def _rows(metric: str, values_BH: Tensor, layer: int, first_head: int) -> list[dict]:
    mean, low, high = bootstrap_means(values_BH.numpy())
    return [
        {
            "layer": layer,
            "head": head + first_head,
            "metric": metric,
            "value": float(mean[head]),
            "low": float(low[head]),
            "high": float(high[head]),
            "samples": values_BH.shape[0],
        }
        for head in range(len(mean))
    ]
