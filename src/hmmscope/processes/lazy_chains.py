"""Lazy noisy chains."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from hmmscope import registry
from hmmscope.axes import Tensor
from hmmscope.kernels.quantise import UNIT, quantise_rows
from hmmscope.kernels.random_arrays import dirichlet_rows, uniforms
from hmmscope.processes.hmm import HMM
from hmmscope.processes.hmm_per_sample import HMMPerSample
from hmmscope.schema import require
from hmmscope.seeds import check_seed, numpy_generator, philox_key


@registry.process("lazy-chain")
@dataclass(frozen=True, kw_only=True)
class LazyChainSpec:
    """A chain that stays in its state with probability >= `stay`, and emits its state with probability >= 1 - `noise`.

    transition = stay I + (1 - stay) D;  emission = (1 - noise) I + noise D';  all rows of D and D' ~ Dirichlet(1)

    Source: after Dai et al. 2025.
    """

    num_states: int = 4
    stay: float = 0.9
    noise: float = 0.2
    seed: int = 0

    def __post_init__(self) -> None:
        check_seed(self.seed)
        require(1 <= self.num_states <= 65536, "num_states", "must be in [1, 65536]", self.num_states)
        for field in ("stay", "noise"):
            require(0 <= getattr(self, field) <= 1, field, "must be in [0, 1]", getattr(self, field))

    def build(self) -> HMM:
        rng = numpy_generator(self.seed, "lazy-chain")
        ones, eye = np.ones(self.num_states), np.eye(self.num_states)
        transition = self.stay * eye + (1 - self.stay) * rng.dirichlet(ones, self.num_states)
        emission = (1 - self.noise) * eye + self.noise * rng.dirichlet(ones, self.num_states)
        return HMM(ones / self.num_states, transition, emission, title="lazy noisy chain", allow_drop_tiny=True)


@registry.process("fresh-lazy-chains")
@dataclass(frozen=True, kw_only=True)
class LazyChainPerSampleSpec:
    """A new chain of `LazyChainSpec` for each sample, with random `stay` and `noise`.

    stay ~ uniform on [least_stay, most_stay],  noise ~ uniform on [least_noise, most_noise]

    Source: this project.
    """

    num_states: int = 4
    least_stay: float = 0.0
    most_stay: float = 1.0
    least_noise: float = 0.0
    most_noise: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        check_seed(self.seed)
        require(1 <= self.num_states <= 65536, "num_states", "must be in [1, 65536]", self.num_states)
        for name in ("stay", "noise"):
            low, high = getattr(self, f"least_{name}"), getattr(self, f"most_{name}")
            require(0 <= low <= 1, f"least_{name}", "must be in [0, 1]", low)
            require(low <= high <= 1, f"most_{name}", f"must be in [least_{name}, 1] = [{low:g}, 1]", high)

    @property
    def num_symbols(self) -> int:
        return self.num_states

    def components(self, indices: NDArray[np.int64]) -> tuple[Tensor, Tensor, Tensor]:
        size, eye = self.num_states, np.eye(self.num_states)
        drawn = uniforms(philox_key(self.seed, "choices"), indices, 1, 2)
        stay = self.least_stay + (self.most_stay - self.least_stay) * drawn[:, :, :1]
        noise = self.least_noise + (self.most_noise - self.least_noise) * drawn[:, :, 1:]

        def rows(purpose: str, share: NDArray[np.float64]) -> Tensor:
            other = dirichlet_rows(philox_key(self.seed, purpose), indices, size, size, 1.0)
            return torch.from_numpy(quantise_rows((1 - share) * eye + share * other) / UNIT)

        initial_S = torch.from_numpy(quantise_rows(np.full(size, 1 / size)) / UNIT)
        return initial_S.expand(len(indices), -1), rows("transition", 1 - stay), rows("emission", noise)

    def build(self) -> HMMPerSample:
        return HMMPerSample(self)
