"""Linear systems with Gaussian noise."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hmmscope import registry
from hmmscope.axes import Float64, Tensor
from hmmscope.errors import InputError
from hmmscope.kernels.linear import linear_paths
from hmmscope.kernels.random_arrays import standard_normals
from hmmscope.processes.capabilities import ObserverOutput
from hmmscope.processes.hmm import texts
from hmmscope.processes.kalman import by_parts, forgetting_factor, kalman_filter, steady_step
from hmmscope.processes.orthogonal import float_digest, haar_orthogonal
from hmmscope.processes.probability_rows import as_float64, numbers_of
from hmmscope.processes.process import SampledPaths, check_samples
from hmmscope.processes.vector_process import VectorProcess
from hmmscope.schema import require
from hmmscope.seeds import check_seed, philox_key
from hmmscope.ties import steady

#: Fraction of an error in the mean that is left after the mixing time: [Limits] Table 1.
LINEAR_THRESHOLD = 0.05
_ARRAYS = ("transition", "output", "initial", "state_noise", "output_noise")


class LinearGaussian(VectorProcess):
    """A linear system with Gaussian noise, filtered exactly by the Kalman filter.

    state_t = transition @ state_{t-1} + N(0, state_noise);  observation_t = output @ state_t + N(0, output_noise)

    The state has n = `num_states` coordinates, an observation m = `num_symbols`. Samples differ between platforms by
    rounding.

    Attributes:
        initial, transition, output, state_noise, output_noise: float64 arrays; the noises are covariance matrices.

    Args:
        transition, output: matrices (n, n) and (m, n).
        initial: state before time 0 (n,) (default: the first unit vector).
        state_noise, output_noise: positive semidefinite covariances (n, n) and (m, m) (default: identity).
        title, source: free text.

    Raises:
        InputError: a shape is wrong, a number is not finite, or a covariance is invalid.
    """

    stored_name = "LinearGaussian"

    file_format = "hmmscope-linear-gaussian"
    file_arrays = ("transition", "output")
    file_fields = ("initial", "state_noise", "output_noise", "title", "source")

    def __init__(
        self,
        transition: object,
        output: object,
        *,
        initial: object = None,
        state_noise: object = None,
        output_noise: object = None,
        title: str = "",
        source: str = "",
    ) -> None:
        size = len(numbers_of("transition", transition, (None, None)))
        self.transition = numbers_of("transition", transition, (size, size))
        self.output = numbers_of("output", output, (None, size))
        self.num_symbols, self.num_states = self.output.shape
        eye_SS, eye_YY = (torch.eye(n, dtype=torch.float64) for n in (self.num_states, self.num_symbols))
        self.initial = numbers_of("initial", eye_SS[0] if initial is None else initial, (size,))
        self.state_noise = numbers_of("state_noise", eye_SS if state_noise is None else state_noise, (size, size))
        self.output_noise = numbers_of(
            "output_noise", eye_YY if output_noise is None else output_noise, (self.num_symbols, self.num_symbols)
        )
        self._factors = [noise_factor(name, getattr(self, name)).numpy() for name in ("state_noise", "output_noise")]
        self.title, self.source = title, source

    @cached_property
    def params_digest(self) -> str:
        sizes = f"{self.num_states}/{self.num_symbols}"
        parts = (self.initial, self.transition, self.output, self.state_noise, self.output_noise)
        return float_digest(f"hmmscope-process/1/LinearGaussian/{sizes}", *parts)

    def file_tensors(self) -> dict[str, Tensor]:
        return {name: getattr(self, name) for name in _ARRAYS}

    @classmethod
    def from_file(cls, data: Mapping[str, Any], *, allow_drop_tiny: bool = False) -> "LinearGaussian":
        arrays: dict[str, Any] = {name: as_float64(name, data[name]) for name in _ARRAYS if name in data}
        return cls(**arrays, **texts(data))

    def sample_paths(
        self, indices: NDArray[np.int64], reset_mask: NDArray[np.bool_], seed: int, stream: str = "corpus"
    ) -> SampledPaths:
        check_samples(indices)
        size = self.num_states
        normals = standard_normals(philox_key(seed, stream), indices, len(reset_mask), size + self.num_symbols)
        for part, factor in zip((normals[..., :size], normals[..., size:]), self._factors, strict=True):
            if not np.array_equal(factor, np.eye(len(factor))):
                part[...] = sum(part[..., i, None] * factor[:, i] for i in range(len(factor)))
        observations, states = linear_paths(
            self.initial.numpy(),
            self.transition.numpy(),
            self.output.numpy(),
            np.ascontiguousarray(normals[..., :size]),
            np.ascontiguousarray(normals[..., size:]),
            reset_mask,
        )
        return SampledPaths(torch.from_numpy(observations), torch.from_numpy(states), None)

    def observe(
        self, observations: Float64[Tensor, "batch time observed"], *, reset_mask: object = None
    ) -> ObserverOutput:
        """Run the Kalman filter; the output's `vectors` are "mean" and "covariance" of the state."""
        return by_parts(partial(kalman_filter, self), observations, reset_mask)

    def following(self, beliefs: Float64[Tensor, "*batch state"]) -> Float64[Tensor, "*batch coordinate"]:
        return beliefs @ (self.output @ self.transition).T

    def mixing_time(self) -> float:
        factor = forgetting_factor(self)  # 0 if observations determine the state, 1 if an error may remain
        return math.inf if factor >= 1 else math.log(LINEAR_THRESHOLD) / math.log(factor) if factor > 0 else 0.0

    def facts(self) -> list[tuple[str, str]]:
        variance = float(steady_step(self).innovation_covariance.diagonal().mean())
        return [
            ("mixing time", f"{steady(self.mixing_time()):.6f} steps (until 5 % of an error in the mean is left)"),
            ("forgetting", f"{steady(forgetting_factor(self)):z.6f} of an error in the mean remains after one step"),
            (
                "least error",
                f"{steady(variance):z.6f} mean squared error per coordinate of the best steady-state prediction",
            ),
        ]

    def facts_data(self) -> dict[str, Any]:
        step, time = steady_step(self), self.mixing_time()
        return {
            "mixing_time": time if math.isfinite(time) else None,
            "forgetting_factor": forgetting_factor(self),
            "steady_gain": step.gain.tolist(),
            "steady_covariance": step.covariance.tolist(),
            "steady_innovation_covariance": step.innovation_covariance.tolist(),
        }


def noise_factor(name: str, covariance: Float64[Tensor, "size size"]) -> Float64[Tensor, "size size"]:
    """Return F with F F^T = covariance; raise InputError if it is not positive semidefinite."""
    factor, failed = torch.linalg.cholesky_ex(covariance)
    even = bool(torch.allclose(covariance, covariance.T))
    if even and not int(failed):
        return factor
    values, vectors = torch.linalg.eigh(covariance)
    if not even or float(values.min()) < -1e-12 * float(values.abs().max()):
        raise InputError(f"{name}: must be a symmetric positive semidefinite matrix")
    return vectors * values.clamp_min(0).sqrt()


@registry.process("ran-lds")
@dataclass(frozen=True, kw_only=True)
class RanLDSSpec:
    """A linear system with random orthogonal matrices (Haar measure), unit noise and a unit vector as initial state.

    Source: [Limits] §2.1 and Appendix C (RanLDS), where observation t is called y_{t+1}.
    """

    dimension: int = 5
    seed: int = 0

    def __post_init__(self) -> None:
        check_seed(self.seed)
        require(1 <= self.dimension <= 1024, "dimension", "must be in [1, 1024]", self.dimension)

    def build(self) -> LinearGaussian:
        transition, output = haar_orthogonal(philox_key(self.seed, "matrix"), 2, self.dimension)
        title = f"random linear system in {self.dimension} dimensions"
        return LinearGaussian(transition, output, title=title, source="[Limits], RanLDS")
