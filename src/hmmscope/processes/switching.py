"""Switching linear systems with Gaussian noise."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hmmscope.axes import Float64, Tensor
from hmmscope.errors import InputError
from hmmscope.kernels.random_arrays import standard_normals
from hmmscope.processes.capabilities import ObserverOutput
from hmmscope.processes.hmm import texts
from hmmscope.processes.kalman import by_parts
from hmmscope.processes.linear_gaussian import noise_factor
from hmmscope.processes.probability_rows import as_float64, laws_of, numbers_of
from hmmscope.processes.process import SampledPaths, check_samples
from hmmscope.processes.switching_filter import num_apart, require_kept, switching_filter
from hmmscope.processes.vector_process import VectorProcess
from hmmscope.seeds import philox_key

_ARRAYS = ("mode_initial", "mode_transition", "transition", "output", "initial", "state_noise", "output_noise")
#: Default of `num_kept`.
NUM_KEPT = 256


class SwitchingLinearGaussian(VectorProcess):
    """A linear system with n state and m observed coordinates; a Markov chain of K modes chooses its matrices.

    state_t = transition[mode_t] @ state_{t-1} + N(0, state_noise[mode_t]);
    observation_t = output[mode_t] @ state_t + N(0, output_noise[mode_t])

    Source: Ackerson and Fu (1970); Murphy (1998).

    Args:
        mode_transition: transition matrix of the modes (K, K); rows sum to one.
        transition, output: matrices of each mode (K, n, n) and (K, m, n).
        mode_initial: distribution of the first mode (K,) (default: uniform).
        initial: state before time 0 (n,) (default: zeros).
        state_noise, output_noise: positive semidefinite covariances (K, n, n) and (K, m, m) (default: identity).
        num_kept: largest number of Gaussians in the filter, at least K^2.
        title, source: free text.

    Raises:
        InputError: a shape, row or covariance is invalid, a number is not finite, or `num_kept` is below K^2.
    """

    stored_name = "SwitchingLinearGaussian"

    file_format = "hmmscope-switching-linear-gaussian"
    file_arrays = ("mode_transition", "transition", "output")
    file_fields = ("mode_initial", "initial", "state_noise", "output_noise", "num_kept", "title", "source")

    def __init__(
        self,
        mode_transition: object,
        transition: object,
        output: object,
        *,
        mode_initial: object = None,
        initial: object = None,
        state_noise: object = None,
        output_noise: object = None,
        num_kept: int = NUM_KEPT,
        title: str = "",
        source: str = "",
    ) -> None:
        modes = len(laws_of("mode_transition", mode_transition, (None, None)))
        self.mode_transition = laws_of("mode_transition", mode_transition, (modes, modes))
        self.mode_initial = laws_of("mode_initial", _or(mode_initial, torch.ones(modes) / modes), (modes,))
        size = numbers_of("transition", transition, (modes, None, None)).shape[1]
        self.transition = numbers_of("transition", transition, (modes, size, size))
        self.output = numbers_of("output", output, (modes, None, size))
        seen = self.output.shape[1]
        self.initial = numbers_of("initial", _or(initial, torch.zeros(size)), (size,))
        self.state_noise = _noise("state_noise", state_noise, modes, size)
        self.output_noise = _noise("output_noise", output_noise, modes, seen)
        self._factors = [
            torch.stack([noise_factor(name, one) for one in getattr(self, name)]).numpy()
            for name in ("state_noise", "output_noise")
        ]
        require_kept(modes, num_kept)
        self.num_states, self.num_symbols, self.num_kept = modes, seen, num_kept
        self.title, self.source = title, source

    @property
    def num_mixture_components(self) -> int:
        return self.num_states

    @property
    def num_exact(self) -> int | None:
        """Number of first observations for which `observe` is exact; None if unlimited."""
        return None if self.num_states == 1 else num_apart(self.num_states, self.num_kept) + 1

    def file_tensors(self) -> dict[str, Tensor]:
        return {name: getattr(self, name) for name in _ARRAYS}

    @classmethod
    def from_file(cls, data: Mapping[str, Any], *, allow_drop_tiny: bool = False) -> "SwitchingLinearGaussian":
        arrays: dict[str, Any] = {name: as_float64(name, data[name]) for name in _ARRAYS if name in data}
        kept = data.get("num_kept", NUM_KEPT)
        if not isinstance(kept, int):
            raise InputError(f"num_kept: must be an integer, got {kept!r}")
        return cls(**arrays, num_kept=kept, **texts(data))

    def sample_paths(
        self, indices: NDArray[np.int64], reset_mask: NDArray[np.bool_], seed: int, stream: str = "corpus"
    ) -> SampledPaths:
        """Draw float64 observations (batch, time, m) and modes (batch, time)."""
        check_samples(indices)
        size, time = len(self.initial), len(reset_mask)
        normals = standard_normals(philox_key(seed, stream), indices, time, size + self.num_symbols + 1)
        drawn = torch.special.ndtr(torch.from_numpy(normals[..., -1])).numpy()  # uniform
        normals = normals[..., :-1]
        first, following = (rows.numpy().cumsum(-1) for rows in (self.mode_initial, self.mode_transition))
        transition, output, begin = self.transition.numpy(), self.output.numpy(), self.initial.numpy()
        modes, observations = np.zeros(drawn.shape, np.int64), np.empty((*drawn.shape, self.num_symbols))
        state = np.broadcast_to(begin, (len(drawn), size))
        for t, begins in enumerate(reset_mask):
            edges = first if begins else following[modes[:, t - 1]]
            mode = modes[:, t] = np.minimum((drawn[:, t, None] >= edges).sum(-1), self.num_states - 1)
            state = np.broadcast_to(begin, state.shape) if begins else state
            own, other = (
                _each(factor[mode], part)
                for factor, part in zip(self._factors, np.split(normals[:, t], [size], 1), strict=True)
            )
            state = _each(transition[mode], state) + own
            observations[:, t] = _each(output[mode], state) + other
        return SampledPaths(torch.from_numpy(observations), torch.from_numpy(modes), None)

    def observe(
        self, observations: Float64[Tensor, "batch time observed"], *, reset_mask: object = None
    ) -> ObserverOutput:
        """Run `switching_filter`; the output has the "belief" of the mode, and "mean" and "covariance" of the state."""
        found = partial(switching_filter, self, error=False)
        return by_parts(found, observations, reset_mask, belief="mode_beliefs")

    def following(self, beliefs: Float64[Tensor, "*batch state"]) -> Float64[Tensor, "*batch coordinate"]:
        raise InputError(
            "process: predictions of a switching system need its continuous state, not only its mode; call observe"
        )

    def facts(self) -> list[tuple[str, str]]:
        merged = f"{self.num_exact} observations; afterwards Gaussians are merged, to at most {self.num_kept}"
        return [("exact", f"for {'any number of observations' if self.num_exact is None else merged}")]

    def facts_data(self) -> dict[str, Any]:
        return {"num_kept": self.num_kept, "num_exact": self.num_exact}


def _or(given: object, otherwise: object) -> object:
    return otherwise if given is None else given


def _noise(name: str, given: object, modes: int, size: int) -> Float64[Tensor, "mode size size"]:
    return numbers_of(name, _or(given, torch.eye(size).expand(modes, size, size)), (modes, size, size))


def _each(matrices: NDArray[np.float64], vectors: NDArray[np.float64]) -> NDArray[np.float64]:
    found: NDArray[np.float64] = sum(matrices[..., j] * vectors[..., j, None] for j in range(vectors.shape[-1]))  # type: ignore[assignment]
    return found
