"""Where the last token looks: attention by relative offset and by source."""

import numpy as np
import torch
from torch import nn

from hmmscope import registry
from hmmscope.analysis.activations import BATCH, capture, inference_mode
from hmmscope.analysis.intervals import bootstrap_means
from hmmscope.analysis.shuffle import attention_taps
from hmmscope.corpora.corpus import Corpus
from hmmscope.reprs import Table
from hmmscope.schema import require


@registry.instrument("attention")
def attention_map(
    model: nn.Module, corpus: Corpus, *, num_samples: int = 256, max_offset: int = 32, seed: int = 0
) -> Table:
    """Mean attention of the last token, for each layer and head.

    Args:
        model: with taps ``blocks.<layer>.attention.pattern`` (batch, head, query, key).
        corpus: samples.
        num_samples: how many.
        max_offset: largest distance to a key that is listed by itself.
        seed: of the bootstrap.

    Returns:
        Rows (layer, head, kind, key, value, low, high, samples); layers count from 1. Kind ``offset``: key is the number
        of columns back (0 is the token itself). Kind ``source``: key is ``same sequence``, ``earlier sequences`` or
        ``delimiters``, and the value the attention that falls there in all. Intervals are 95 % over samples.

    Source: [MultiTask] Fig. 7.
    """
    require(num_samples >= 1, "num_samples", "must be at least 1", num_samples)
    require(max_offset >= 0, "max_offset", "must be at least 0", max_offset)
    names = attention_taps(model, "pattern")
    layout = corpus.layout
    parts: dict[str, list[torch.Tensor]] = {name: [] for name in names}
    with inference_mode(model) as device:
        for begin in range(0, num_samples, BATCH):
            tokens = corpus[begin : min(begin + BATCH, num_samples)].tokens.to(device)
            found = capture(model, names, tokens, lambda x: x[:, :, -1].cpu().double())
            for name in names:
                parts[name].append(found[name])
    sources = np.full(layout.num_columns, 2)
    sources[layout.columns] = (layout.sequence_index < layout.sequence_index[-1]).astype(int)
    patterns = [torch.cat(parts[name]).numpy() for name in names]  # (sample, head, key), as many heads as a layer has
    rows = []
    for kind in ("offset", "source"):
        for layer, pattern_BHU in enumerate(patterns, 1):
            if kind == "source":
                labels: list = ["same sequence", "earlier sequences", "delimiters"]
                values = np.stack([pattern_BHU[..., sources == s].sum(-1) for s in range(3)], -1)
            else:
                values = pattern_BHU[..., ::-1][..., : max_offset + 1]
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
    return Table(rows, "Attention of the last token", x="layer", y="value", by=("kind", "key", "head"))
