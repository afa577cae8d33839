"""Unbounded pools: every sample has an HMM of its own, never seen before or again."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray

from hmmscope import registry
from hmmscope.axes import Int64, Tensor
from hmmscope.errors import InputError
from hmmscope.kernels import cpu
from hmmscope.processes.aliased_cycles import AliasedSpec
from hmmscope.processes.capabilities import ObserverOutput
from hmmscope.processes.mixture import Mixture
from hmmscope.processes.observations import check_observations
from hmmscope.processes.params import HMMParams, StateEmissionParams
from hmmscope.processes.polya_urn import dirichlet_chain_predictions
from hmmscope.processes.process import Process, SampledPaths, check_samples
from hmmscope.processes.random_hmm import DirichletSpec
from hmmscope.schema import spec_to_data
from hmmscope.seeds import philox_key

#: Matrix entries that are drawn together.
_ENTRIES = 2**20


@runtime_checkable
class HMMFamily(Protocol):
    """HMMs by number."""

    @property
    def num_states(self) -> int: ...
    @property
    def num_symbols(self) -> int: ...
    def components(self, indices: NDArray[np.int64], /) -> tuple[Tensor, Tensor, Tensor]:
        """Initial, transition and emission of the given component numbers."""


class HMMPerSample(Process):
    """Sample i comes from component i of an endless pool, which is drawn for it and forgotten.

    Component numbers are sample numbers plus 2^40 times the code of the stream, so streams never share one. No predictor
    can retrieve a component here; an observer who knows them filters with `mixture(components)`.

    Nobody knows the best that an observer can do who knows the prior only.
    """

    stored_name = "FreshHMMs"

    no_optimum_reason: ClassVar[str | None] = "the integral over HMMs of the prior has no closed form"
    file_format = "hmmscope-fresh-hmms"
    file_fields = ("spec",)

    def __init__(self, spec: HMMFamily) -> None:
        self.spec = spec
        self.num_states, self.num_symbols = spec.num_states, spec.num_symbols

    @property
    def params(self) -> HMMParams:
        """The first component, which stands for the pool in digests."""
        return StateEmissionParams(*self.spec.components(np.array([0])))

    @cached_property
    def params_digest(self) -> str:
        """sha256 of the first component, marked as that of a pool."""
        return hashlib.sha256(f"hmmscope-fresh/1/{super().params_digest}".encode()).hexdigest()

    def file_tensors(self) -> dict[str, Tensor]:
        """None: a pool is a function of the fields of its spec."""
        return {}

    def file_texts(self) -> dict[str, Any]:
        name = getattr(self.spec, "name", None)
        if name is None:
            raise InputError("path: a pool of HMMs is saved as its registered spec, and this one has none")
        return {"spec": {"name": name, **spec_to_data(self.spec)}}

    @classmethod
    def from_file(cls, data: Mapping[str, Any], *, allow_drop_tiny: bool = False) -> "HMMPerSample":
        found = registry.build_spec("process", data.get("spec", {}), "spec").build()
        if not isinstance(found, cls):
            raise InputError(f"spec: must be of a pool of fresh HMMs, got {found!r}")
        return found

    def mixture(self, components: NDArray[np.int64]) -> Mixture:
        """The given components as a mixture, for oracles that know them."""
        return Mixture.from_law(
            np.full(len(components), 1 / len(components)), StateEmissionParams(*self.spec.components(components))
        )

    def select_components(self, components: Tensor) -> tuple[Process, Tensor]:
        return self.mixture(components.cpu().numpy()), torch.arange(len(components))

    def subsample_components(self, count: int) -> Mixture:
        return self.mixture(np.arange(count))

    def sample_paths(
        self, indices: NDArray[np.int64], reset_mask: NDArray[np.bool_], seed: int, stream: str = "corpus"
    ) -> SampledPaths:
        check_samples(indices)
        key = philox_key(seed, stream)
        observations = np.empty((len(indices), len(reset_mask)), np.int64)
        states = np.empty_like(observations)
        components = indices + (key[1] << 40)
        together = max(1, _ENTRIES // (self.num_states * (self.num_states + self.num_symbols)))
        for begin in range(0, len(indices), together):
            part = slice(begin, begin + together)
            tables = self.mixture(components[part]).alias_tables[1:]
            count = len(indices[part])
            observations[part], states[part] = cpu.sample_paths(
                key,
                indices[part],
                np.arange(count),
                reset_mask,
                *tables,
                num_states=self.num_states,
                num_threads=torch.get_num_threads(),
            )
        return SampledPaths(torch.from_numpy(observations), torch.from_numpy(states), torch.from_numpy(components))


@registry.process("fresh-hmms")
@dataclass(frozen=True, kw_only=True)
class HMMPerSampleSpec(DirichletSpec):
    """An HMM with Dirichlet rows for every sample anew: the unbounded limit of `random-mixture`. No optimum is known."""

    num_states: int = 8
    num_symbols: int = 8

    def build(self) -> HMMPerSample:
        return HMMPerSample(self)


@registry.process("fresh-aliased-cycles")
@dataclass(frozen=True, kw_only=True)
class AliasedCyclesPerSampleSpec(AliasedSpec):
    """A noisy cycle for every sample anew: the unbounded limit of `aliased-cycles-mixture`. No optimum is known.

    Source: ours.
    """

    def build(self) -> HMMPerSample:
        return HMMPerSample(self)


class MarkovChainPerSample(HMMPerSample):
    """A fresh pool of Markov chains that are seen directly, with Dirichlet rows and a uniform first state.

    The posterior of a row is Dirichlet again, so that the optimum is known: see `hmmscope.processes.polya_urn`.

    Attributes:
        concentration: of the Dirichlet law of the rows.
    """

    stored_name = "FreshMarkovChains"

    no_optimum_reason = None

    def __init__(self, spec: "MarkovChainPerSampleSpec") -> None:
        super().__init__(spec)
        self.concentration = spec.transition_concentration

    def observe(self, observations: Int64[Tensor, "batch time"], *, reset_mask: object = None) -> ObserverOutput:
        seen, mask = check_observations(observations, self.alphabet, reset_mask)
        longer = torch.nn.functional.pad(seen, (0, 1))  # one more, to predict what comes after the last
        begins = torch.nn.functional.pad(mask, (0, 1)) if len(mask) else torch.ones(1, dtype=torch.bool)
        predicted = dirichlet_chain_predictions(longer, self.num_symbols, self.concentration, reset_mask=begins)
        return ObserverOutput.of_symbols(seen, predicted)


@registry.process("fresh-markov-chains")
@dataclass(frozen=True, kw_only=True)
class MarkovChainPerSampleSpec(DirichletSpec):
    """A Markov chain with Dirichlet rows for every sample anew, seen directly, with a uniform first state.

    The unbounded limit of `markov-mixture`; `emission_concentration` has no meaning here. The optimum is exact.

    Source: Edelman et al. (2024), "The evolution of statistical induction heads: in-context learning Markov chains".
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_square()

    def components(self, indices: NDArray[np.int64]) -> tuple[Tensor, Tensor, Tensor]:
        initial, transition, _ = super().components(indices)
        return initial, transition, torch.eye(self.num_states, dtype=torch.float64).expand(len(indices), -1, -1)

    def build(self) -> MarkovChainPerSample:
        return MarkovChainPerSample(self)
