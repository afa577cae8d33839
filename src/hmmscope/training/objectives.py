"""What is minimised."""

import torch.nn.functional as F
from torch import nn

from hmmscope.axes import Float, Tensor
from hmmscope.corpora.corpus import Batch
from hmmscope.corpora.layouts import Layout


def next_observation_loss(model: nn.Module, batch: Batch, layout: Layout) -> Float[Tensor, ""]:
    """Mean cross-entropy in nats over all observations that some column precedes; delimiters are never targets."""
    logits_BTV, targets_BT = next_observation_logits(model, batch, layout)
    return F.cross_entropy(logits_BTV.flatten(0, 1).float(), targets_BT.flatten())


def next_observation_logits(
    model: nn.Module, batch: Batch, layout: Layout
) -> tuple[Float[Tensor, "batch predicted symbol"], Tensor]:
    """Logits for each predicted observation, and the observations (batch, predicted)."""
    columns = layout.columns[layout.predicted] - 1
    logits_BUV = model(batch.tokens[:, : int(columns[-1]) + 1])
    return logits_BUV[:, columns], batch.observations[:, layout.predicted]
