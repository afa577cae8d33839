"""HMMs that satisfy the assumptions of [MultiTask]: low rank and a given observability."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from hmmscope import registry
from hmmscope.axes import Float64, Tensor
from hmmscope.kernels.fixed_order import product
from hmmscope.kernels.random_arrays import dirichlet_rows
from hmmscope.processes.hmm import HMM
from hmmscope.processes.mixture import Mixture
from hmmscope.processes.params import StateEmissionParams, stack
from hmmscope.processes.random_hmm import DirichletSpec
from hmmscope.processes.stationary import stationary_law
from hmmscope.schema import require, require_count, require_real
from hmmscope.seeds import philox_key
from hmmscope.system_info import require_memory


@dataclass(frozen=True, kw_only=True)
class _LowRankFields(DirichletSpec):
    num_states: int = 8
    num_symbols: int = 8
    rank: int = 2
    observability: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require(1 <= self.rank <= self.num_states, "rank", f"must be in [1, {self.num_states}]", self.rank)
        require(0 <= self.observability <= 1, "observability", "must be in [0, 1]", self.observability)
        if self.observability > 0:
            self.require_square()

    def component(self, index: int) -> HMM:
        numbers = np.array([index])

        def rows(purpose: str, count: int, width: int) -> NDArray[np.float64]:
            key = philox_key(self.seed, purpose)
            return dirichlet_rows(key, numbers, count, width, self.transition_concentration)[0]

        left_SR = rows("left-factor", self.num_states, self.rank)
        right_RS = rows("right-factor", self.rank, self.num_states)
        transition_SS = torch.from_numpy(product(left_SR, right_RS))
        if self.observability > 0:
            emission_SV = symmetric_channel(self.num_symbols, self.observability)
        else:
            emission_SV = self.components(numbers)[2][0]
        initial_S = stationary_law(transition_SS)
        return HMM(initial_S, transition_SS, emission_SV, title=f"HMM of rank {self.rank}", allow_drop_tiny=True)


@registry.process("low-rank-hmm")
@dataclass(frozen=True, kw_only=True)
class LowRankHMMSpec(_LowRankFields):
    """A stationary HMM of S states: transition = left @ right; left (S, rank) and right (rank, S) have Dirichlet rows.

    Emissions are `symmetric_channel(S, observability)` if `observability` > 0, else Dirichlet rows.

    Source: [MultiTask] Assumptions 1, 2 and 4.
    """

    def build(self) -> HMM:
        return self.component(0)


@registry.process("low-rank-mixture")
@dataclass(frozen=True, kw_only=True)
class LowRankMixtureSpec(_LowRankFields):
    """A pool of equally likely low-rank HMMs (see `low-rank-hmm`).

    Source: [MultiTask] Assumptions 1, 2 and 4.
    """

    num_components: int = 64
    first_component: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_pool(self.num_components, self.first_component)

    def build(self) -> Mixture:
        laws = [self.component(int(m)).params for m in self.pool(self.num_components, self.first_component)]
        law = stack(laws)
        assert isinstance(law, StateEmissionParams)
        return Mixture.from_law(np.full(self.num_components, 1 / self.num_components), law)


def symmetric_channel(size: int, observability: float) -> Float64[Tensor, "state symbol"]:
    """Return observability * identity + (1 - observability) / size."""
    require_count("size", size)
    require_real("observability", observability)
    require_memory("symmetric_channel", 24 * size * size)
    return float(observability) * torch.eye(size, dtype=torch.float64) + (1 - observability) / size
