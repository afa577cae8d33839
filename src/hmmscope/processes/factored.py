"""Factored processes: several Mess3 processes, independent or coupled."""

from dataclasses import dataclass
from typing import Literal

import torch

from hmmscope import registry
from hmmscope.axes import Float64, Tensor
from hmmscope.processes.labelled import LabelledHMM
from hmmscope.processes.textbook import Mess3Spec, stationary_start
from hmmscope.schema import require


@registry.process("factored-mess3")
@dataclass(frozen=True, kw_only=True)
class FactoredMess3Spec:
    """Several parallel Mess3 processes (factors); the base-3 digits of a symbol are the factors' symbols.

    Factors with the coupling ``independent`` do not interact. The `switch` of a factor takes the value `driven` when
    the previous factor emits symbol 0 (``conditional``) or moves to state 0 (``hidden``). Without ``hidden`` coupling,
    the belief is the product of the factors' beliefs.

    Source: after Shai et al. 2026.
    """

    num_factors: int = 2
    switch: float = 0.05
    emission: float = 0.75
    driven: float = 0.3
    coupling: Literal["independent", "conditional", "hidden"] = "independent"

    def __post_init__(self) -> None:
        require(1 <= self.num_factors <= 4, "num_factors", "must be in [1, 4]", self.num_factors)
        require(0 <= self.driven <= 0.5, "driven", "must be in [0, 0.5]", self.driven)
        Mess3Spec(switch=self.switch, emission=self.emission)

    def build(self) -> LabelledHMM:
        plain, driven = (
            Mess3Spec(switch=switch, emission=self.emission).build().labelled
            for switch in (self.switch, self.switch if self.coupling == "independent" else self.driven)
        )
        joint = plain
        for _ in range(self.num_factors - 1):
            size = len(joint)
            last = torch.arange(size) % 3 == 0  # symbols, and states, in which the factor before is at 0
            mask = last[:, None, None] if self.coupling == "conditional" else last[None, None, :]
            parts = [
                (joint * chosen)[:, None, :, None, :, None] * one[None, :, None, :, None, :]
                for chosen, one in ((~mask, plain), (mask, driven))
            ]
            joint = (parts[0] + parts[1]).reshape(3 * size, 3 * size, 3 * size)
        title = f"{self.num_factors} {self.coupling} Mess3 factors"
        return stationary_start(joint, title=title, source="after Shai et al. (2026)")


def factor_beliefs(
    beliefs: Float64[Tensor, "*batch state"], num_factors: int
) -> list[Float64[Tensor, "*batch factor_state"]]:
    """Return the marginal belief of each factor."""
    size = round(beliefs.shape[-1] ** (1 / num_factors))
    apart = beliefs.unflatten(-1, (size,) * num_factors)
    first = beliefs.ndim - 1
    return [
        apart.sum([first + other for other in range(num_factors) if other != factor]) if num_factors > 1 else apart
        for factor in range(num_factors)
    ]
