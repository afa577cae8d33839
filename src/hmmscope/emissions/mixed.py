"""HMM with numbers and symbols in each observation."""

from collections.abc import Mapping
from typing import Any, Self

import numpy as np
import torch

from hmmscope import registry
from hmmscope.axes import Float64, Tensor
from hmmscope.emissions.emission_hmm import EmissionHMM
from hmmscope.emissions.gaussian import GaussianHMM
from hmmscope.emissions.multichannel import MultichannelHMM
from hmmscope.schema import require


@registry.emission("mixed")
class MixedHMM(MultichannelHMM):
    """HMM with a Gaussian vector, then a symbol per channel; they are independent given the state.

    See `GaussianHMM` and `MultichannelHMM` for the arguments.
    """

    stored_name = "MixedHMM"

    density = "mixed"
    fit_options = ("sizes", "covariance_type")
    file_format = "hmmscope-mixed-hmm"
    file_arrays = ("initial", "transition", "means", "covariances", "emissions", "sizes")
    file_fields = ("covariance_type", *MultichannelHMM.file_fields)
    conjugate = EmissionHMM.__dict__["conjugate"]  # none

    def __init__(
        self,
        initial: object,
        transition: object,
        means: Any,
        covariances: Any,
        emissions: Any,
        sizes: Any = None,
        covariance_type: str | None = None,
        **texts: Any,
    ) -> None:
        super().__init__(initial, transition, emissions, sizes, **texts)
        self.gaussian = GaussianHMM(initial, transition, means, covariances, covariance_type)
        self.covariance_type, self.gaussians = self.gaussian.covariance_type, self.gaussian.gaussians
        self.num_symbols = self.num_draws = self.gaussian.num_symbols + len(self.channels)

    def _split(self, vectors: Tensor) -> tuple[Tensor, Tensor]:
        count = self.gaussian.num_symbols
        return vectors[..., :count], vectors[..., count:]

    @property
    def means(self) -> Float64[Tensor, "state coordinate"]:
        return torch.cat([self.gaussian.means, super().means], 1)

    @property
    def variances(self) -> Float64[Tensor, "state coordinate"]:
        return torch.cat([self.gaussian.variances, super().variances], 1)

    @property
    def variance_floor_hits(self) -> Float64[Tensor, "state coordinate"]:
        return torch.nn.functional.pad(self.gaussian.variances, (0, len(self.channels)), value=torch.inf)

    def num_free(self, positive: Mapping[str, Tensor]) -> dict[str, int]:
        return self.gaussian.num_free({}) | super().num_free(positive)

    @property
    def options(self) -> dict[str, Any]:
        return super().options | self.gaussian.options

    def file_tensors(self) -> dict[str, Tensor]:
        return self.gaussian.file_tensors() | {"emissions": self.emissions, "sizes": self.sizes}

    def emission_text(self, state: int) -> str:
        return f"{self.gaussian.emission_text(state)}; {super().emission_text(state)}"

    @classmethod
    def checked(cls, observations: Tensor) -> Tensor:
        return observations

    def log_likelihoods(self, observations: Float64[Tensor, "*batch coordinate"]) -> Float64[Tensor, "*batch state"]:
        numbers, symbols = self._split(observations)
        return self.gaussian.log_likelihoods(numbers) + super().log_likelihoods(symbols)

    def emit(self, states: Tensor, uniforms: Tensor) -> Float64[Tensor, "*batch coordinate"]:
        numbers, symbols = self._split(uniforms)
        return torch.cat([self.gaussian.emit(states, numbers), super().emit(states, symbols)], -1)

    @classmethod
    def initialize(cls, observations: Tensor, num_states: int, random: np.random.Generator, **laws: Any) -> Self:
        sizes, least, width = laws.pop("sizes", ()), laws.pop("min_variance"), observations.shape[1]
        count = width - np.size(sizes)
        require(0 < count < width, "sizes", f"must be the sizes of 1 to {width - 1} alphabets", sizes)
        numbers, symbols = observations[:, :count], MultichannelHMM.checked(observations[:, count:])
        gaussian = GaussianHMM.initialize(numbers, num_states, random, min_variance=least[:count], **laws)
        channels = MultichannelHMM.initialize(symbols, num_states, random, sizes=sizes, min_variance=least)
        arrays = gaussian.file_tensors() | channels.file_tensors()
        return cls(**arrays, covariance_type=gaussian.covariance_type)

    def m_step(self, observations: Tensor, occupancy: Tensor, min_variance: Tensor) -> dict[str, Any]:
        numbers, symbols = self._split(observations)
        found = self.gaussian.m_step(numbers, occupancy, self._split(min_variance)[0])
        return found | super().m_step(symbols, occupancy, min_variance)
