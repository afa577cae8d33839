"""Noisy cycles through states that share symbols."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from hmmscope import registry
from hmmscope.axes import Float64, Int64, Tensor
from hmmscope.kernels.quantise import UNIT, quantise_rows
from hmmscope.kernels.random_arrays import random_permutations
from hmmscope.processes.hmm import HMM
from hmmscope.processes.mixture import Mixture
from hmmscope.processes.params import StateEmissionParams
from hmmscope.processes.random_hmm import DirichletSpec
from hmmscope.schema import require
from hmmscope.seeds import check_seed, philox_key
from hmmscope.system_info import require_memory


@dataclass(frozen=True, kw_only=True)
class NoisyCyclesSpec:
    """HMMs that usually follow a cycle through all S states; each of V symbols is the most likely in S/V states.

    transition[s] = follow * (one-hot successor of s on the cycle) + (1 - follow) * uniform;
    emission[s] = show * (one-hot symbol of s) + (1 - show) * uniform

    Attributes:
        num_states: number of states S, a multiple of num_symbols.
        num_symbols: number of symbols V.
        follow: weight of the successor in `transition`.
        show: weight of the state's symbol in `emission`.
        seed: seed of the cycles; cycle m depends on (seed, m) only.
    """

    num_states: int = 16
    num_symbols: int = 8
    follow: float = 0.9
    show: float = 0.95
    seed: int = 0

    def __post_init__(self) -> None:
        check_seed(self.seed)
        require(1 <= self.num_symbols <= 1024, "num_symbols", "must be in [1, 1024]", self.num_symbols)
        require(2 <= self.num_states <= 1024, "num_states", "must be in [2, 1024]", self.num_states)
        rule = f"must be a multiple of num_symbols = {self.num_symbols}"
        require(self.num_states % self.num_symbols == 0, "num_states", rule, self.num_states)
        for field in ("follow", "show"):
            require(0 <= getattr(self, field) <= 1, field, "must be in [0, 1]", getattr(self, field))

    def require_room(self, num_components: int) -> None:
        size = num_components * self.num_states * (self.num_states + self.num_symbols)
        advice = "reduce the number of components, num_states or num_symbols"
        require_memory(f"process ({num_components} components)", 8 * size, advice)

    def initial(self, num_components: int) -> Float64[Tensor, "component state"]:
        initial_S = torch.from_numpy(quantise_rows(np.full(self.num_states, 1 / self.num_states)) / UNIT)
        return initial_S.expand(num_components, -1)

    def cycles(self, numbers: NDArray[np.int64]) -> Int64[Tensor, "cycle state"]:
        """Return `[m, s]` = the state after s on cycle numbers[m]; each cycle is uniformly random."""
        order = random_permutations(philox_key(self.seed, "cycle"), numbers, 1, self.num_states)[:, 0]
        following = np.empty_like(order)
        np.put_along_axis(following, order, np.roll(order, -1, 1), 1)
        return torch.from_numpy(following)

    def transitions(self, numbers: NDArray[np.int64]) -> Float64[Tensor, "cycle state state"]:
        return mostly(self.cycles(numbers), self.num_states, self.follow)


def mostly(choices: Int64[Tensor, "*row"], num_outcomes: int, probability: float) -> Float64[Tensor, "*row outcome"]:
    """Return rows p * one_hot(choice) + (1 - p) * uniform with p = `probability`, in multiples of 2^-32."""
    other = round(UNIT * (1 - probability) / num_outcomes)
    chosen = torch.nn.functional.one_hot(choices, num_outcomes).double()
    return (other + (UNIT - num_outcomes * other) * chosen) / UNIT


@dataclass(frozen=True, kw_only=True)
class AliasedSpec(NoisyCyclesSpec):
    """HMMs with noisy cycles, in which state s usually emits symbol s mod V."""

    def components(self, numbers: NDArray[np.int64]) -> tuple[Tensor, Tensor, Tensor]:
        self.require_room(len(numbers))
        shown_S = torch.arange(self.num_states) % self.num_symbols
        emission_SV = mostly(shown_S, self.num_symbols, self.show)
        transition_MSS = self.transitions(numbers)
        return self.initial(len(numbers)), transition_MSS, emission_SV.expand(len(numbers), -1, -1)


@registry.process("aliased-cycles")
@dataclass(frozen=True, kw_only=True)
class AliasedCyclesSpec(AliasedSpec):
    """An HMM that usually follows a cycle through its S states; each of V symbols is the most likely in S/V states.

    Source: this project.
    """

    def build(self) -> HMM:
        rows = (part[0] for part in self.components(np.array([0])))
        return HMM(*rows, title="aliased cycle")


@registry.process("aliased-cycles-mixture")
@dataclass(frozen=True, kw_only=True)
class AliasedCyclesMixtureSpec(AliasedSpec):
    """A pool of equally likely HMMs with noisy cycles, in which state s usually emits symbol s mod V.

    Component m has cycle `first_component` + m; held-out and training pools must not share cycles.

    Source: this project.
    """

    num_components: int = 64
    first_component: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        DirichletSpec.require_pool(self.num_components, self.first_component)

    def build(self) -> Mixture:
        rows = self.components(DirichletSpec.pool(self.num_components, self.first_component))
        return Mixture.from_law(np.full(self.num_components, 1 / self.num_components), StateEmissionParams(*rows))
