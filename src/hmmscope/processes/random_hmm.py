"""HMMs with Dirichlet rows."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch

from hmmscope import registry
from hmmscope.axes import Tensor
from hmmscope.kernels.quantise import UNIT, quantise_rows
from hmmscope.kernels.random_arrays import dirichlet_rows
from hmmscope.processes.hmm import HMM
from hmmscope.processes.mixture import Mixture
from hmmscope.processes.params import StateEmissionParams
from hmmscope.schema import require
from hmmscope.seeds import check_seed, philox_key
from hmmscope.system_info import require_memory

#: Entries per chunk, which keeps intermediate arrays small.
_CHUNK_ENTRIES = 2**20


@dataclass(frozen=True, kw_only=True)
class DirichletSpec:
    """HMMs with Dirichlet rows; HMM m depends on (seed, m) only."""

    num_states: int = 5
    num_symbols: int = 5
    transition_concentration: float = 1.0
    emission_concentration: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        check_seed(self.seed)
        for field in ("num_states", "num_symbols"):
            require(1 <= getattr(self, field) <= 65536, field, "must be in [1, 65536]", getattr(self, field))
        for field in ("transition_concentration", "emission_concentration"):
            require(1e-9 <= getattr(self, field) <= 1e6, field, "must be in [1e-9, 1e6]", getattr(self, field))

    def require_square(self) -> None:
        rule = f"must equal num_states = {self.num_states}"
        require(self.num_symbols == self.num_states, "num_symbols", rule, self.num_symbols)

    @staticmethod
    def require_pool(num_components: int, first_component: int) -> None:
        require(1 <= num_components <= 65536, "num_components", "must be in [1, 65536]", num_components)
        require(0 <= first_component < 2**40, "first_component", "must be in [0, 2^40)", first_component)

    @staticmethod
    def pool(num_components: int, first_component: int) -> np.ndarray:
        return np.arange(first_component, first_component + num_components)

    def components(self, indices: np.ndarray) -> tuple[Tensor, Tensor, Tensor]:
        size = len(indices) * self.num_states * (self.num_states + self.num_symbols + 1)
        advice = "reduce num_components, num_states or num_symbols"
        require_memory(f"process ({len(indices)} components)", 8 * size, advice)

        def rows(purpose: str, num_columns: int, concentration: float) -> Tensor:
            key = philox_key(self.seed, purpose)
            result = np.empty((len(indices), self.num_states, num_columns))
            chunk = max(1, _CHUNK_ENTRIES // (self.num_states * num_columns))

            def fill(begin: int) -> None:
                part = slice(begin, begin + chunk)
                drawn = dirichlet_rows(key, indices[part], self.num_states, num_columns, concentration)
                np.multiply(quantise_rows(drawn), 1 / UNIT, out=result[part])

            with ThreadPoolExecutor(torch.get_num_threads()) as pool:
                list(pool.map(fill, range(0, len(indices), chunk)))
            return torch.from_numpy(result)

        initial_S = torch.from_numpy(quantise_rows(np.full(self.num_states, 1 / self.num_states)) / UNIT)
        return (
            initial_S.expand(len(indices), -1),
            rows("transition", self.num_states, self.transition_concentration),
            rows("emission", self.num_symbols, self.emission_concentration),
        )


@registry.process("random-hmm")
@dataclass(frozen=True, kw_only=True)
class RandomHMMSpec(DirichletSpec):
    """One HMM with a uniform initial distribution and symmetric Dirichlet rows.

    Source: [Limits] §2.1 (RanHMM); [MultiTask].
    """

    def build(self) -> HMM:
        initial, transition, emission = self.components(np.array([0]))
        return HMM(initial[0], transition[0], emission[0], title="random HMM with Dirichlet rows")


@registry.process("random-mixture")
@dataclass(frozen=True, kw_only=True)
class RandomMixtureSpec(DirichletSpec):
    """A pool of equally likely HMMs with Dirichlet rows and uniform initial states.

    A held-out pool needs `first_component` >= `num_components` of the training pool.

    Source: [MultiTask] §5 (8192 HMMs, 128 states, 16 symbols; no concentrations stated).
    """

    num_components: int = 8192
    num_states: int = 128
    num_symbols: int = 16
    transition_concentration: float = 0.01
    emission_concentration: float = 0.01
    first_component: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_pool(self.num_components, self.first_component)

    def build(self) -> Mixture:
        indices = self.pool(self.num_components, self.first_component)
        return Mixture.from_law(np.full(len(indices), 1 / len(indices)), StateEmissionParams(*self.components(indices)))
