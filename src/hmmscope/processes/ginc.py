"""A mixture like GINC (generative in-context learning)."""

from dataclasses import dataclass

import numpy as np
import torch

from hmmscope import registry
from hmmscope.axes import Tensor
from hmmscope.processes.hmm import HMM
from hmmscope.processes.mixture import Mixture
from hmmscope.schema import require
from hmmscope.seeds import check_seed, numpy_generator


@registry.process("ginc")
@dataclass(frozen=True, kw_only=True)
class GINCSpec:
    """A mixture of HMMs like GINC; a random table maps pairs (property, entity), the hidden states, to symbols.

    Components (concepts) differ in the transition matrix of properties, a convex combination of random permutations.
    An entity stays with probability >= `stay`. Property 0 always emits symbol 0.

    Source: Xie, Raghunathan, Liang and Ma (2022), with smaller sizes and a uniform start.
    """

    num_components: int = 5
    num_properties: int = 10
    num_entities: int = 10
    num_symbols: int = 50
    num_permutations: int = 100
    temperature: float = 0.1
    stay: float = 0.9
    seed: int = 0

    def __post_init__(self) -> None:
        check_seed(self.seed)
        for field in ("num_components", "num_properties", "num_entities", "num_permutations"):
            require(getattr(self, field) >= 1, field, "must be at least 1", getattr(self, field))
        require(2 <= self.num_symbols <= 65536, "num_symbols", "must be in [2, 65536]", self.num_symbols)
        rule = "num_properties * num_entities must be at most 1024"
        require(self.num_properties * self.num_entities <= 1024, "num_entities", rule, self)
        require(self.temperature > 0, "temperature", "must be positive", self.temperature)
        require(0 <= self.stay <= 1, "stay", "must be in [0, 1]", self.stay)

    def build(self) -> Mixture:
        rng = numpy_generator(self.seed, "ginc")
        memory = rng.integers(1, self.num_symbols, size=(self.num_properties, self.num_entities))
        memory[0] = 0
        emission_SV = torch.nn.functional.one_hot(torch.from_numpy(memory.flatten()), self.num_symbols).double()
        size = self.num_entities
        entities = self.stay * torch.eye(size, dtype=torch.float64) + (1 - self.stay) * self._mixed(rng, size)
        count = self.num_properties * size
        hmms = [
            HMM(
                torch.full((count,), 1 / count, dtype=torch.float64),
                torch.kron(self._mixed(rng, self.num_properties), entities),
                emission_SV,
                title="GINC concept",
                allow_drop_tiny=True,
            )
            for _ in range(self.num_components)
        ]
        return Mixture([1 / self.num_components] * self.num_components, hmms)

    def _mixed(self, rng: np.random.Generator, size: int) -> Tensor:
        logits = rng.uniform(size=self.num_permutations) / self.temperature
        weights = np.exp(logits - logits.max())
        matrix = np.zeros((size, size))
        for weight in weights / weights.sum():
            matrix[np.arange(size), rng.permutation(size)] += weight
        return torch.from_numpy(matrix)
