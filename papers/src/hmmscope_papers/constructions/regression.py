"""Least squares on demonstration windows, and the closed form of its gradient descent, for [MultiTask].

    W_hat = argmin_W (1 / 2n) sum_i ‖W x_i - y_i‖²,   Sigma = (1/n) sum_i x_i x_i^T,   B = (1/n) sum_i y_i x_i^T
    W_hat = B Sigma^+  (of least norm);   W^(0) = 0,   W^(s+1) = W^(s) - rate (W^(s) Sigma - B)

x holds the one-hots of the last `memory_length` symbols, most recent first; y is the joint one-hot of the next
`num_futures` symbols. Sigma is singular if `memory_length` > 1, so "alpha" of [MultiTask] Assumption 3 is its smallest
nonzero eigenvalue.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
from torch.nn.functional import one_hot

from hmmscope.axes import Float64, Int64, Tensor
from hmmscope.reprs import Shown
from hmmscope.schema import require, require_count

Features = Literal["window", "tabular"]


def joint_index(symbols: Int64[Tensor, "*batch slot"], num_symbols: int) -> Int64[Tensor, "*batch"]:
    slots = symbols.shape[-1]
    require(num_symbols**slots <= 2**62, "num_symbols", f"to the power {slots} must be at most 2^62", num_symbols)
    powers = torch.tensor([num_symbols ** (slots - 1 - m) for m in range(slots)], device=symbols.device)
    return (symbols * powers).sum(-1)


def window_features(
    windows: Int64[Tensor, "*batch slot"], num_symbols: int, features: Features = "window"
) -> Float64[Tensor, "*batch feature"]:
    """Return the concatenated one-hots of all slots ("window"), or one one-hot of the window ("tabular")."""
    if features == "window":
        return one_hot(windows, num_symbols).flatten(-2).double()
    return one_hot(joint_index(windows, num_symbols), num_symbols ** windows.shape[-1]).double()


@dataclass(frozen=True, repr=False)
class RegressionSamples(Shown):
    """Regression samples; leading axes are independent data sets.

    Attributes:
        windows: Symbols before the label, the most recent first (..., sample, slot).
        labels: Following symbols, the next first (..., sample, future).
        num_symbols: Number of symbols V.
    """

    windows: Int64[Tensor, "*batch sample slot"]
    labels: Int64[Tensor, "*batch sample future"]
    num_symbols: int

    @classmethod
    def of(
        cls,
        demonstrations: Int64[Tensor, "*batch demonstration time"],
        num_symbols: int,
        memory_length: int,
        num_futures: int = 1,
    ) -> "RegressionSamples":
        """Cut every window and label from demonstrations; see [MultiTask] Equation 2.

        Args:
            demonstrations: Symbols (..., demonstration, time).
            num_symbols: Number of symbols V.
            memory_length: Number of symbols per window.
            num_futures: Number of symbols per label.

        Raises:
            InputError: There are no demonstrations, or they are too short.
        """
        require_count("memory_length", memory_length)
        require_count("num_futures", num_futures)
        length = demonstrations.shape[-1]
        least = memory_length + num_futures
        require(length >= least, "demonstrations", f"must have at least {least} symbols each", length)
        require(demonstrations.shape[-2] >= 1, "demonstrations", "must have at least one", demonstrations.shape[-2])
        cut = demonstrations.unfold(-1, least, 1).flatten(-3, -2)  # oldest first
        return cls(cut[..., :memory_length].flip(-1), cut[..., memory_length:], num_symbols)

    @classmethod
    def unlabelled(cls, windows: Int64[Tensor, "*batch sample slot"], num_symbols: int) -> "RegressionSamples":
        return cls(windows, windows[..., :0], num_symbols)

    @property
    def numbers(self) -> Int64[Tensor, "*batch sample"]:
        return joint_index(self.windows.flip(-1), self.num_symbols)

    def features(self, features: Features = "window") -> Float64[Tensor, "*batch sample feature"]:
        return window_features(self.windows, self.num_symbols, features)

    def targets(self) -> Float64[Tensor, "*batch sample label"]:
        return one_hot(joint_index(self.labels, self.num_symbols), self.num_symbols ** self.labels.shape[-1]).double()

    def problem(self, features: Features = "window") -> "LeastSquares":
        x, y = self.features(features), self.targets()
        count = x.shape[-2]
        return LeastSquares(x.mT @ x / count, y.mT @ x / count, count)


@dataclass(frozen=True, repr=False)
class LeastSquares(Shown):
    """Moments and solutions of regression problems; leading axes are independent problems.

    Attributes:
        covariance: Matrix Sigma (..., feature, feature).
        cross: Matrix B (..., label, feature).
        num_samples: Number of samples n.
    """

    covariance: Float64[Tensor, "*batch feature feature"]
    cross: Float64[Tensor, "*batch label feature"]
    num_samples: int

    @cached_property
    def _spectrum(self) -> tuple[Tensor, Tensor]:
        values, vectors = torch.linalg.eigh(self.covariance)
        size = self.covariance.shape[-1]
        rounding = values[..., -1:] * size * torch.finfo(values.dtype).eps
        return values.where(values > 4 * rounding, 0.0), vectors

    @property
    def eigenvalues(self) -> Float64[Tensor, "*batch feature"]:
        return self._spectrum[0]

    @property
    def rank(self) -> Int64[Tensor, "*batch"]:
        return (self.eigenvalues > 0).sum(-1)

    @property
    def alpha(self) -> Float64[Tensor, "*batch"]:
        return self.eigenvalues.where(self.eigenvalues > 0, torch.inf).amin(-1)

    @property
    def largest(self) -> Float64[Tensor, "*batch"]:
        return self.eigenvalues[..., -1]

    @property
    def condition(self) -> Float64[Tensor, "*batch"]:
        return self.largest / self.alpha

    def solution(self, ridge: float = 0.0) -> Float64[Tensor, "*batch label feature"]:
        """Return W_hat = B Sigma^+, or B (Sigma + ridge I)^-1 with a penalty."""
        return self._filtered(lambda values: torch.where(values > 0, 1 / (values + ridge), 0.0))

    def descent(
        self, num_steps: int, learning_rate: float | Tensor, ridge: float = 0.0
    ) -> Float64[Tensor, "*batch label feature"]:
        """Return the weights `solution(ridge)` (I - (I - rate (Sigma + ridge I))^num_steps) of gradient descent from zero.

        Args:
            num_steps: Number of steps.
            learning_rate: One rate, or one for each problem (...,).
            ridge: Weight of the penalty (ridge / 2) ‖W‖².
        """
        require_count("num_steps", num_steps, 0)
        rate = torch.as_tensor(learning_rate, dtype=torch.float64)[..., None]

        def gain(values: Tensor) -> Tensor:
            curvature = values + ridge
            return torch.where(values > 0, (1 - (1 - rate * curvature) ** num_steps) / curvature, 0.0)

        return self._filtered(gain)

    def iterates(
        self, num_steps: int, learning_rate: float, ridge: float = 0.0
    ) -> Float64[Tensor, "step *batch label feature"]:
        steps = [torch.zeros_like(self.cross)]
        for _ in range(num_steps):
            gradient = steps[-1] @ self.covariance - self.cross + ridge * steps[-1]
            steps.append(steps[-1] - learning_rate * gradient)
        return torch.stack(steps)

    def in_range(self, x: Float64[Tensor, "*batch sample feature"]) -> Tensor:
        """Return whether each x lies in the range of Sigma (..., sample)."""
        values, vectors = self._spectrum
        outside = (x @ vectors) * (values == 0)[..., None, :]
        return outside.norm(dim=-1) <= 1e-9 * x.norm(dim=-1)

    def optimisation_bound(
        self, memory_length: int, num_steps: int, learning_rate: float | Tensor
    ) -> Float64[Tensor, "*batch"]:
        """Bound ‖(W_hat - W^(s)) x‖ by sqrt(memory_length) ‖W_hat‖ (1 - rate alpha)^s, if rate <= 1 / `largest`."""
        contraction = 1 - torch.as_tensor(learning_rate, dtype=torch.float64) * self.alpha
        norm = torch.linalg.matrix_norm(self.solution(), 2)
        return memory_length**0.5 * norm * contraction**num_steps

    def _filtered(self, gain) -> Tensor:  # type: ignore[no-untyped-def]
        values, vectors = self._spectrum
        return ((self.cross @ vectors) * gain(values)[..., None, :]) @ vectors.mT
