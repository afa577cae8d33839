"""Observed Markov chains."""

from dataclasses import dataclass

import numpy as np
import torch

from hmmscope import registry
from hmmscope.processes.hmm import HMM
from hmmscope.processes.mixture import Mixture
from hmmscope.processes.params import StateEmissionParams
from hmmscope.processes.random_hmm import DirichletSpec
from hmmscope.processes.stationary import stationary_law


@registry.process("markov-chain")
@dataclass(frozen=True, kw_only=True)
class MarkovChainSpec(DirichletSpec):
    """An observed Markov chain with Dirichlet rows and a stationary start.

    `num_symbols` must equal `num_states`; `emission_concentration` is ignored.
    """

    num_states: int = 5
    num_symbols: int = 5

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_square()

    def build(self) -> HMM:
        _, transition, _ = self.components(np.array([0]))
        eye = torch.eye(self.num_states, dtype=torch.float64)
        return HMM(stationary_law(transition[0]), transition[0], eye, title="Markov chain", allow_drop_tiny=True)


@registry.process("markov-mixture")
@dataclass(frozen=True, kw_only=True)
class MarkovMixtureSpec(DirichletSpec):
    """A pool of equally likely observed Markov chains with Dirichlet rows and uniform first states.

    Source: Edelman et al. 2024.
    """

    num_states: int = 5
    num_symbols: int = 5
    num_components: int = 64
    first_component: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_square()
        self.require_pool(self.num_components, self.first_component)

    def build(self) -> Mixture:
        initial, transition, _ = self.components(self.pool(self.num_components, self.first_component))
        eye = torch.eye(self.num_states, dtype=torch.float64).expand(self.num_components, -1, -1)
        weights = np.full(self.num_components, 1 / self.num_components)
        return Mixture.from_law(weights, StateEmissionParams(initial, transition, eye))
