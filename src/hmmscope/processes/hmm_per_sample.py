"""Unbounded pools: a new HMM for every sample."""

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

#: Matrix entries per chunk of samples.
_ENTRIES = 2**20


@runtime_checkable
class HMMFamily(Protocol):
    """A family of numbered HMMs."""

    @property
    def num_states(self) -> int: ...
    @property
    def num_symbols(self) -> int: ...
    def components(self, indices: NDArray[np.int64], /) -> tuple[Tensor, Tensor, Tensor]:
        """Return the initial, transition and emission arrays of the HMMs with these numbers."""


class HMMPerSample(Process):
    """A process that draws a new HMM for each sample.

    Sample n uses HMM n + 2^40 * (code of the stream in `seeds.PURPOSES`). Optimal predictions have no closed form.
    """

    stored_name = "FreshHMMs"

    no_optimum_reason: ClassVar[str | None] = "the integral over all HMMs of the prior has no closed form"
    file_format = "hmmscope-fresh-hmms"
    file_fields = ("spec",)

    def __init__(self, spec: HMMFamily) -> None:
        self.spec = spec
        self.num_states, self.num_symbols = spec.num_states, spec.num_symbols

    @property
    def params(self) -> HMMParams:
        return StateEmissionParams(*self.spec.components(np.array([0])))

    @cached_property
    def params_digest(self) -> str:
        return hashlib.sha256(f"hmmscope-fresh/1/{super().params_digest}".encode()).hexdigest()

    def file_tensors(self) -> dict[str, Tensor]:
        return {}

    def file_texts(self) -> dict[str, Any]:
        name = getattr(self.spec, "name", None)
        if name is None:
            raise InputError("path: register the pool's spec with hmmscope.registry.process before you save the pool")
        return {"spec": {"name": name, **spec_to_data(self.spec)}}

    @classmethod
    def from_file(cls, data: Mapping[str, Any], *, allow_drop_tiny: bool = False) -> "HMMPerSample":
        found = registry.build_spec("process", data.get("spec", {}), "spec").build()
        if not isinstance(found, cls):
            raise InputError(f"spec: must describe an unbounded pool of HMMs, got {found!r}")
        return found

    def mixture(self, components: NDArray[np.int64]) -> Mixture:
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
    """A new HMM with Dirichlet rows for each sample: `random-mixture` with unlimited components."""

    num_states: int = 8
    num_symbols: int = 8

    def build(self) -> HMMPerSample:
        return HMMPerSample(self)


@registry.process("fresh-aliased-cycles")
@dataclass(frozen=True, kw_only=True)
class AliasedCyclesPerSampleSpec(AliasedSpec):
    """A new HMM with a noisy cycle for each sample: `aliased-cycles-mixture` with unlimited components."""

    def build(self) -> HMMPerSample:
        return HMMPerSample(self)


class MarkovChainPerSample(HMMPerSample):
    """A new observed Markov chain with Dirichlet rows for each sample; predictions are exact (module `polya_urn`).

    Attributes:
        concentration: concentration of the Dirichlet rows.
    """

    stored_name = "FreshMarkovChains"

    no_optimum_reason = None

    def __init__(self, spec: "MarkovChainPerSampleSpec") -> None:
        super().__init__(spec)
        self.concentration = spec.transition_concentration

    def observe(self, observations: Int64[Tensor, "batch time"], *, reset_mask: object = None) -> ObserverOutput:
        seen, mask = check_observations(observations, self.alphabet, reset_mask)
        longer = torch.nn.functional.pad(seen, (0, 1))  # one more, to predict the next symbol
        begins = torch.nn.functional.pad(mask, (0, 1)) if len(mask) else torch.ones(1, dtype=torch.bool)
        predicted = dirichlet_chain_predictions(longer, self.num_symbols, self.concentration, reset_mask=begins)
        return ObserverOutput.of_symbols(seen, predicted)


@registry.process("fresh-markov-chains")
@dataclass(frozen=True, kw_only=True)
class MarkovChainPerSampleSpec(DirichletSpec):
    """A new observed Markov chain with Dirichlet rows for each sample.

    The process is `markov-mixture` with infinitely many components; `emission_concentration` is ignored.

    Source: Edelman et al. 2024.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_square()

    def components(self, indices: NDArray[np.int64]) -> tuple[Tensor, Tensor, Tensor]:
        initial, transition, _ = super().components(indices)
        return initial, transition, torch.eye(self.num_states, dtype=torch.float64).expand(len(indices), -1, -1)

    def build(self) -> MarkovChainPerSample:
        return MarkovChainPerSample(self)
