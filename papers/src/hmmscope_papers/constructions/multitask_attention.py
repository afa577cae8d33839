"""Attention layers and token-wise maps, given by explicit matrices."""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import nn

from hmmscope.axes import Float, Tensor
from hmmscope.models.base import HookPoint
from hmmscope_papers.constructions.constructed import frozen

Activation = Literal["softmax", "relu", "mean relu"]

#: Bytes of attention scores held at once without hooks: about the size of a processor's cache.
SCORE_BYTES = 2**23


class AttentionHeads(nn.Module):
    """Attention heads of one shape and one activation.

    scores[i, j] = (W_Q x_i)^T (W_K x_j);   output_i = sum_j activation(scores)[i, j] W_O W_V x_j

    Activations: softmax, ReLU, or ReLU divided by the number of keys ("mean relu").

    Attributes:
        query, key: Matrices W_Q and W_K (head, head width, row); a row is a coordinate of the residual stream.
        value: Matrices W_V (head, value width, row).
        output: Matrices W_O^T (head, value width, row).
    """

    def __init__(
        self,
        activation: Activation,
        query: Float[Tensor, "head width row"],
        key: Float[Tensor, "head width row"],
        value: Float[Tensor, "head value row"],
        output: Float[Tensor, "head row value"],
        dtype: torch.dtype,
    ) -> None:
        super().__init__()
        self.activation = activation
        self.query, self.key = frozen(query, dtype), frozen(key, dtype)
        self.value, self.output = frozen(value, dtype), frozen(output.mT.contiguous(), dtype)

    @property
    def num_heads(self) -> int:
        return len(self.query)

    @property
    def dense_query_key(self) -> Float[Tensor, "head row row"]:
        """Return W_Q^T W_K of each head."""
        return self.query.mT @ self.key

    @property
    def dense_value(self) -> Float[Tensor, "head row row"]:
        return self.output.mT @ self.value

    def scores(self, x_BTD: Tensor, heads: slice, future_TU: Tensor | None) -> Tensor:
        query_BHTK, key_BHUK = _project(x_BTD, self.query[heads]), _project(x_BTD, self.key[heads])
        scores_BHTU = query_BHTK @ key_BHUK.mT
        return scores_BHTU if future_TU is None else scores_BHTU.masked_fill(future_TU, -torch.inf)

    def activate(self, scores_BHTU: Tensor) -> Tensor:
        match self.activation:
            case "softmax":
                return scores_BHTU.softmax(-1)
            case "relu":
                return scores_BHTU.relu()
        return scores_BHTU.relu() / scores_BHTU.shape[-1]

    def mix(self, pattern_BHTU: Tensor, x_BTD: Tensor, heads: slice) -> Tensor:
        mixed_BHTK = pattern_BHTU @ _project(x_BTD, self.value[heads])
        return mixed_BHTK.transpose(1, 2).flatten(2) @ self.output[heads].flatten(0, 1)


def _project(x_BTD: Tensor, matrices_HKD: Tensor) -> Tensor:
    return (x_BTD @ matrices_HKD.flatten(0, 1).T).unflatten(-1, matrices_HKD.shape[:2]).transpose(1, 2)


class ConstructedAttention(nn.Module):
    """The summed outputs of one layer's heads, with hook points ``logits`` and ``pattern``."""

    def __init__(self, groups: Sequence[AttentionHeads], causal: bool) -> None:
        super().__init__()
        self.groups = nn.ModuleList(groups)
        self.causal = causal
        self.logits, self.pattern = HookPoint(), HookPoint()

    @property
    def num_heads(self) -> int:
        return sum(group.num_heads for group in self._heads())

    def _heads(self) -> list[AttentionHeads]:
        return [group for group in self.groups if isinstance(group, AttentionHeads)]

    def forward(self, x_BTD: Tensor) -> Tensor:
        batch, time, _ = x_BTD.shape
        future_TU = torch.ones(time, time, dtype=torch.bool, device=x_BTD.device).triu(1) if self.causal else None
        if self.logits.is_hooked or self.pattern.is_hooked:
            scores = [group.scores(x_BTD, slice(None), future_TU) for group in self._heads()]
            sizes = [group.num_heads for group in self._heads()]
            scores = self.logits(torch.cat(scores, 1)).split(sizes, 1)
            patterns = [group.activate(part) for group, part in zip(self._heads(), scores, strict=True)]
            patterns = self.pattern(torch.cat(patterns, 1)).split(sizes, 1)
            written = torch.zeros_like(x_BTD)
            for group, pattern in zip(self._heads(), patterns, strict=True):
                written = written + group.mix(pattern, x_BTD, slice(None))
            return written
        cells = max(1, SCORE_BYTES // (time * time * x_BTD.element_size()))
        samples = min(batch, cells)
        return torch.cat([self._written(part, future_TU, cells // samples) for part in x_BTD.split(samples)])

    def _written(self, x_BTD: Tensor, future_TU: Tensor | None, at_once: int) -> Tensor:
        written = torch.zeros_like(x_BTD)
        for group in self._heads():
            for first in range(0, group.num_heads, at_once):
                heads = slice(first, first + at_once)
                pattern_BHTU = group.activate(group.scores(x_BTD, heads, future_TU))
                written = written + group.mix(pattern_BHTU, x_BTD, heads)
        return written


class TokenMap(nn.Module):
    """The map W_out ReLU(W_in x + b) at each position."""

    def __init__(
        self,
        hidden: Float[Tensor, "hidden row"],
        bias: Float[Tensor, " hidden"],
        output: Float[Tensor, "row hidden"],
        dtype: torch.dtype,
    ) -> None:
        super().__init__()
        self.hidden, self.bias, self.output = frozen(hidden, dtype), frozen(bias, dtype), frozen(output, dtype)

    def forward(self, x_BTD: Tensor) -> Tensor:
        return (x_BTD @ self.hidden.T + self.bias).relu() @ self.output.T


class ConstructedBlock(nn.Module):
    """The block x <- x + attention(x), then x <- x + mlp(x) if it has an MLP."""

    def __init__(self, attention: ConstructedAttention, mlp: TokenMap | None = None) -> None:
        super().__init__()
        self.attention = attention
        self.mlp = mlp

    def forward(self, x_BTD: Tensor) -> Tensor:
        x_BTD = x_BTD + self.attention(x_BTD)
        return x_BTD if self.mlp is None else x_BTD + self.mlp(x_BTD)
