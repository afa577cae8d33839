"""An unbounded pool: every sample has an HMM of its own, never seen before or again."""

import hashlib
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray

from hmmscope import registry
from hmmscope.errors import InputError
from hmmscope.kernels.philox import MAX_SAMPLES
from hmmscope.processes.base import Paths, Process
from hmmscope.processes.laws import Law, StateEmitting
from hmmscope.processes.mixture import Mixture
from hmmscope.processes.random_hmm import DirichletSpec
from hmmscope.seeds import philox_key


class FreshHMMs(Process):
    """Sample i comes from component i of an endless pool, which is drawn for it and forgotten.

    Component numbers are sample numbers plus 2^40 times the code of the stream, so streams never share one. No predictor
    can retrieve a component here; an observer who knows them filters with `mixture(components)`.
    """

    def __init__(self, spec: "FreshHMMsSpec") -> None:
        self.spec = spec
        self.num_states, self.num_symbols = spec.num_states, spec.num_symbols
        self.weights_M = torch.ones(1, dtype=torch.float64)

    @property
    def law(self) -> Law:  # type: ignore[override]
        """The first component, which stands for the pool in digests."""
        return StateEmitting(*self.spec.components(np.array([0])))

    @cached_property
    def digest(self) -> str:
        """sha256 of the first component, marked as that of a pool."""
        return hashlib.sha256(f"hmmscope-fresh/1/{super().digest}".encode()).hexdigest()

    def mixture(self, components: NDArray[np.int64]) -> Mixture:
        """The given components as a mixture, for oracles that know them."""
        return Mixture.from_law(
            np.full(len(components), 1 / len(components)), StateEmitting(*self.spec.components(components))
        )

    def sample_paths(
        self, indices: NDArray[np.int64], starts: NDArray[np.bool_], seed: int, stream: str = "corpus"
    ) -> Paths:
        if indices.size and (indices.min() < 0 or indices.max() >= MAX_SAMPLES):
            raise InputError(f"indices: samples are numbered from 0 to 2^40 - 1, got {indices.min()}..{indices.max()}")
        _, code = philox_key(seed, stream)
        observations = torch.empty(len(indices), len(starts), dtype=torch.int64)
        states = torch.empty_like(observations)
        components = indices + (code << 40)
        for row, (index, component) in enumerate(zip(indices, components, strict=True)):
            paths = self.mixture(component[None]).sample_paths(index[None], starts, seed, stream)
            observations[row], states[row] = paths.observations[0], paths.states[0]
        return Paths(observations, states, torch.from_numpy(components))

    def __repr__(self) -> str:
        return f"FreshHMMs(num_states={self.num_states}, num_symbols={self.num_symbols})"


@registry.process("fresh-hmms")
@dataclass(frozen=True, kw_only=True)
class FreshHMMsSpec(DirichletSpec):
    """An HMM with Dirichlet rows for every sample anew: the unbounded limit of `random-mixture`."""

    num_states: int = 8
    num_symbols: int = 8

    def build(self) -> FreshHMMs:
        return FreshHMMs(self)
