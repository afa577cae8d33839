"""Attention weights of the last token on itself and earlier tokens, by distance and kind of token."""

from functools import partial

import numpy as np
import torch
from torch import nn

from hmmscope import registry
from hmmscope.analysis.activations import BATCH, capture_activations, inference_mode
from hmmscope.analysis.intervals import bootstrap_means
from hmmscope.analysis.shuffle import attention_taps
from hmmscope.datasets.process_dataset import Batch, ProcessDataset
from hmmscope.reprs import ResultTable
from hmmscope.schema import require_count


@registry.instrument("attention")
def attention_map(
    model: nn.Module, dataset: ProcessDataset, *, num_samples: int = 256, max_offset: int = 32, seed: int = 0
) -> ResultTable:
    """Average the last token's attention weights over samples, for each layer and head.

    Args:
        model: model with hook points ``blocks.<layer>.attention.pattern`` (batch, head, query, key).
        dataset: samples.
        num_samples: number of samples; held-out recorded sequences have at most one per window.
        max_offset: largest distance, in tokens, between the last token and a key.
        seed: seed of the bootstrap.

    Returns:
        Rows (layer, head, kind, key, value, low, high, samples); layers are numbered from 1. If `kind` is ``offset``,
        `value` is the weight at distance `key`; if ``source``, the total weight on the tokens that `key` names: ``same
        sequence``, ``earlier sequences`` or ``delimiters``. The 95 % interval is over samples.

    Source: [MultiTask] Fig. 7.
    """
    require_count("max_offset", max_offset, 0)
    names = attention_taps(model, "pattern")
    layout = dataset.layout
    num_samples = dataset.different(num_samples)
    parts: dict[str, list[torch.Tensor]] = {name: [] for name in names}
    back: list[torch.Tensor] = []
    with inference_mode(model) as device:
        for begin in range(0, num_samples, BATCH):
            batch = dataset[begin : min(begin + BATCH, num_samples)]
            ends = _ends(dataset, batch)
            found = capture_activations(model, names, batch.tokens.to(device), partial(_of_queries, columns=ends))
            for name in names:
                parts[name].append(found[name])
            back.append(ends)
    columns = torch.cat(back)[:, None] - torch.arange(min(max_offset + 1, layout.context_length))
    before = (columns < 0).numpy()
    at = columns.clamp_min(0).numpy()
    sources = np.full(layout.context_length, 2)
    sources[layout.token_positions] = (layout.sequence_index < layout.sequence_index[-1]).astype(int)
    patterns = [torch.cat(parts[name]).numpy() for name in names]  # (sample, head, key), as many heads as a layer has
    rows = []
    for kind in ("offset", "source"):
        for layer, pattern_BHU in enumerate(patterns, 1):
            if kind == "source":
                labels: list = ["same sequence", "earlier sequences", "delimiters"]
                values = np.stack([pattern_BHU[..., sources == s].sum(-1) for s in range(3)], -1)
            else:
                values = np.take_along_axis(pattern_BHU, at[:, None], -1)
                values[np.broadcast_to(before[:, None], values.shape)] = 0.0
                labels = list(range(values.shape[-1]))
            mean, low, high = bootstrap_means(values, seed=seed)
            for head, key in np.ndindex(*mean.shape):
                rows.append(
                    {
                        "layer": layer,
                        "head": head,
                        "kind": kind,
                        "key": labels[key],
                        "value": float(mean[head, key]),
                        "low": float(low[head, key]),
                        "high": float(high[head, key]),
                        "samples": num_samples,
                    }
                )
    return ResultTable(rows, "Attention of the last token", x="key", y="value", by=("layer", "head"), only=("kind",))


def _ends(dataset: ProcessDataset, batch: Batch) -> torch.Tensor:
    last = dataset.layout.context_length - 1
    if dataset.process.data is None:
        return torch.full((len(batch.tokens),), last)
    columns = torch.from_numpy(dataset.layout.token_positions)
    return torch.where(batch.states >= 0, columns, 0).amax(1)


def _of_queries(pattern: torch.Tensor, *, columns: torch.Tensor) -> torch.Tensor:
    return pattern.cpu()[torch.arange(len(columns)), :, columns].double()
