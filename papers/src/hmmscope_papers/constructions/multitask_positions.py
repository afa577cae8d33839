"""Position vectors and their shift matrices."""

import math
from dataclasses import dataclass

import numpy as np
import torch

from hmmscope.axes import Float64, Tensor
from hmmscope.reprs import Shown
from hmmscope.schema import require
from hmmscope.seeds import torch_generator


@dataclass(frozen=True, repr=False)
class PositionCode(Shown):
    """Unit vectors v_r of the positions r.

    Attributes:
        table: Vectors v_r (position, coordinate).
        angle: Angle between neighbouring vectors of a rotating pair, in radians; else None.
        closeness: 1 minus the largest inner product of two different vectors.
    """

    table: Float64[Tensor, "column coordinate"]
    angle: float | None
    closeness: float

    def shift(self, columns: int) -> Float64[Tensor, "coordinate coordinate"]:
        """Return the matrix that takes v_r to v_(r - columns).

        The matrix is exact for a rotating pair, else a least-squares fit.
        """
        if self.angle is not None:
            cos, sin = math.cos(columns * self.angle), math.sin(columns * self.angle)
            return torch.tensor([[cos, sin], [-sin, cos]], dtype=torch.float64)
        count = len(self.table)
        targets = self.table[(torch.arange(count) - columns).clamp(0, count - 1)]
        return torch.from_numpy(np.linalg.lstsq(self.table.numpy(), targets.numpy(), rcond=None)[0].T.copy())

    def inverse_temperature(self, gap: float) -> float:
        return gap / self.closeness

    def leak(self, gap: float) -> float:
        """Bound the softmax weight on wrong positions, for scores β cos(m angle) at distance m; β = `gap` / `closeness`."""
        assert self.angle is not None
        steps = np.arange(1, len(self.table))
        return float(2 * np.exp(-self.inverse_temperature(gap) * (1 - np.cos(steps * self.angle))).sum())


def rotating_pair(num_columns: int, largest_shift: int) -> PositionCode:
    """Return v_r = (cos r angle, sin r angle) with angle = 2 pi / (num_columns + 2 largest_shift + 1).

    Source: [MultiTask] §4; the angle is not in the paper.
    """
    angle = 2 * math.pi / (num_columns + 2 * largest_shift + 1)
    turns = torch.arange(num_columns, dtype=torch.float64) * angle
    return PositionCode(torch.stack([turns.cos(), turns.sin()], 1), angle, 1 - math.cos(angle))


def absolute_vectors(num_columns: int, width: int, seed: int) -> PositionCode:
    """Draw one random unit vector per position, like learned absolute positions."""
    require(width >= 2, "position_width", "must be at least 2", width)
    drawn = torch.randn(num_columns, width, dtype=torch.float64, generator=torch_generator(seed, "absolute-positions"))
    table = drawn / drawn.norm(dim=1, keepdim=True)
    products = table @ table.T - 2 * torch.eye(num_columns, dtype=torch.float64)
    return PositionCode(table, None, 1 - float(products.max()))
