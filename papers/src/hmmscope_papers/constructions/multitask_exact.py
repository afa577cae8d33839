"""Exact residual-stream contents of a [MultiTask] network, computed without attention."""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch.nn.functional import one_hot

from hmmscope.axes import Float64, Int64, Tensor
from hmmscope.reprs import Shown
from hmmscope_papers.constructions.multitask_layout import Prompt, ResidualLayout


@dataclass(frozen=True, repr=False)
class ExactBlockValues(Shown):
    """Exact contents of residual-stream blocks for given tokens.

    Attributes:
        layout, prompt: Layout and prompt of the network.
        tokens: Tokens (batch, position), which may be a prefix of the prompt.
        learning_rate: Step size.
        num_samples: Number n by which gradients are divided.
        ridge: Weight of the penalty.
    """

    layout: ResidualLayout
    prompt: Prompt
    tokens: Int64[Tensor, "batch column"]
    learning_rate: float
    num_samples: int
    ridge: float = 0.0

    def shifted(self, columns: int) -> Int64[Tensor, "batch column"]:
        time = self.tokens.shape[1]
        return self.tokens[:, (torch.arange(time) - columns).clamp(0, time - 1)]

    def block_shift(self, name: str) -> int:
        kind, _, number = name.rpartition("-")
        return int(number) if kind in ("slot", "position") else -int(number)

    def slots(self, blocks: list[str]) -> Int64[Tensor, "batch column slot"]:
        return torch.stack([self.shifted(self.block_shift(name)) for name in blocks], -1)

    def joint(self, blocks: list[str]) -> Float64[Tensor, "batch column joint"]:
        found = None
        for token in self.slots(blocks).unbind(-1):
            one = one_hot(token, self.layout.num_symbols + 1)[..., :-1].double()
            found = one if found is None else (found[..., :, None] * one[..., None, :]).flatten(-2)
        assert found is not None
        return found

    def features(self, blocks: list[str]) -> Float64[Tensor, "batch column feature"]:
        """Return the window features; delimiters contribute zeros."""
        if self.layout.features == "tabular":
            return self.joint(blocks)
        return one_hot(self.slots(blocks), self.layout.num_symbols + 1)[..., :-1].flatten(-2).double()

    @cached_property
    def valid(self) -> Tensor:
        used = self.slots([*self.layout.sample_blocks, *self.layout.label_blocks])
        demonstration = torch.arange(self.tokens.shape[1]) < self.prompt.first_test_column
        return (used < self.layout.num_symbols).all(-1) & demonstration

    @cached_property
    def moments(self) -> tuple[Tensor, Tensor]:
        """Return the sums of x x^T and y x^T over the samples that each position sees, divided by `num_samples`."""
        x_BTF = self.features(self.layout.sample_blocks) * self.valid[..., None]
        y_BTQ = self.joint(self.layout.label_blocks)
        if self.layout.causal:
            outer, cross = x_BTF[..., :, None] * x_BTF[..., None, :], y_BTQ[..., :, None] * x_BTF[..., None, :]
            return outer.cumsum(1) / self.num_samples, cross.cumsum(1) / self.num_samples
        outer, cross = x_BTF.mT @ x_BTF, y_BTQ.mT @ x_BTF
        return outer[:, None] / self.num_samples, cross[:, None] / self.num_samples

    def weights(self, num_steps: int) -> list[Tensor]:
        covariance, cross = self.moments
        steps = [torch.zeros_like(cross)]
        for _ in range(num_steps):
            gradient = steps[-1] @ covariance - cross + self.ridge * steps[-1]
            steps.append(steps[-1] - self.learning_rate * gradient)
        return steps

    def prediction(self, weights: Float64[Tensor, "batch some label feature"]) -> Float64[Tensor, "batch column label"]:
        return (weights @ self.features(self.layout.query_blocks)[..., None])[..., 0]

    def block(self, name: str, positions: Float64[Tensor, "column coordinate"]) -> Tensor:
        if name.startswith(("slot-", "future-")) and not name.startswith("future-position-"):
            return one_hot(self.shifted(self.block_shift(name)), self.layout.num_symbols + 1).double()
        if name == "label":
            return self.joint(self.layout.label_blocks)
        if name == "sample-window":
            return self.joint(self.layout.sample_blocks)
        if name == "query-window":
            return self.joint(self.layout.query_blocks)
        time = self.tokens.shape[1]
        return positions[(torch.arange(time) - self.block_shift(name)).clamp(0, time - 1)][None]
