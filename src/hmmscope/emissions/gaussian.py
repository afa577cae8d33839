"""HMM with Gaussian emissions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np
import torch

from hmmscope import registry
from hmmscope.axes import Float64, Int64, Tensor, Vectors
from hmmscope.emissions.conjugate import NormalInverseWishart, refuse_missing, refuse_others
from hmmscope.emissions.densities import (
    check_covariances,
    check_shape,
    explained_best,
    log_densities,
    scattered_centres,
    spread_of,
)
from hmmscope.emissions.emission_hmm import EmissionHMM
from hmmscope.errors import InputError
from hmmscope.kernels.random_arrays import dirichlet_rows, standard_normals
from hmmscope.processes.probability_rows import numbers_of
from hmmscope.schema import require
from hmmscope.seeds import check_seed, philox_key

#: Default covariance type by the number of axes.
_BY_AXES = {1: "spherical", 2: "diag", 3: "full"}


@registry.emission("gaussian")
class GaussianHMM(EmissionHMM):
    """HMM with Gaussian emissions.

    observation_t ~ N(means[state_t], covariance of state_t), with S states and Y coordinates

    Source: Rabiner (1989), section IV.A; covariance types as in hmmlearn.

    Attributes:
        means: Means (state, coordinate).
        covariances: Variances or covariance matrices, in the shape of `covariance_type`.
        covariance_type: "spherical" (S,), "diag" (S, Y), "full" (S, Y, Y), or "tied" (Y, Y), shared by all states.
        spread: `covariances` expanded to (S, Y) for "spherical" and "diag", (S, Y, Y) for "full" and "tied".

    Args:
        initial, transition: See `EmissionHMM`.
        means: Means (S, Y), or (S,) for one coordinate.
        covariances: See above.
        covariance_type: See above (default: inferred from the number of axes of `covariances`, never "tied").
        states, title, source: See `EmissionHMM`.

    Raises:
        InputError: A shape is wrong, or a covariance is not positive definite.
    """

    stored_name = "GaussianHMM"

    fit_options = ("covariance_type",)
    file_format = "hmmscope-gaussian-hmm"
    file_arrays = ("initial", "transition", "means", "covariances")
    file_fields = ("covariance_type", "states", "title", "source", "reading")

    def __init__(
        self,
        initial: object,
        transition: object,
        means: Any,
        covariances: Any,
        covariance_type: str | None = None,
        *,
        states: Sequence[str] | None = None,
        title: str = "",
        source: str = "",
    ) -> None:
        super().__init__(initial, transition, states=states, title=title, source=source)
        size = self.num_states
        flat = np.ndim(means) == 1
        self._means = numbers_of("means", means, (size,))[:, None] if flat else numbers_of("means", means, (size, None))
        self.num_symbols = self.num_draws = count = self._means.shape[1]
        axes = np.ndim(covariances)
        if covariance_type is None and axes not in _BY_AXES:
            raise InputError(f"covariances: must have 1 (spherical), 2 (diag) or 3 (full) axes, got {axes}")
        self.covariance_type = check_shape(covariance_type or _BY_AXES[axes])
        shapes = {"spherical": (size,), "diag": (size, count), "full": (size, count, count), "tied": (count, count)}
        self.covariances = numbers_of("covariances", covariances, shapes[self.covariance_type])
        self.spread = spread_of(self.covariance_type, self.covariances, self._means)
        check_covariances("covariances", self.spread)

    def gaussians(self, state: int) -> list[tuple[float, Tensor, Tensor]]:
        """Return weight, mean and covariance matrix of each Gaussian of a state."""
        spread = self.spread[state]
        return [(1.0, self.means[state], spread if spread.ndim == 2 else spread.diag())]

    @property
    def means(self) -> Float64[Tensor, "state coordinate"]:
        return self._means

    @property
    def variances(self) -> Float64[Tensor, "state coordinate"]:
        return self.spread if self.spread.ndim == 2 else self.spread.diagonal(dim1=1, dim2=2)

    def num_free(self, positive: Mapping[str, Tensor]) -> dict[str, int]:
        symmetric = self.num_symbols * (self.num_symbols + 1) // 2
        each = {"full": self.num_states * symmetric, "tied": symmetric}
        spread = each.get(self.covariance_type, self.covariances.numel())
        return {"means": self.means.numel(), "covariances": spread}

    @property
    def variance_floor_hits(self) -> Float64[Tensor, "state coordinate"]:
        return self.variances

    @property
    def options(self) -> dict[str, Any]:
        return {"covariance_type": self.covariance_type}

    def log_likelihoods(self, observations: Float64[Tensor, "*batch coordinate"]) -> Float64[Tensor, "*batch state"]:
        found = log_densities(observations.reshape(-1, self.num_symbols), self.means, self.spread)
        return found.reshape(*observations.shape[:-1], self.num_states)

    @cached_property
    def _factors(self) -> Tensor:
        return self.spread.sqrt().diag_embed() if self.spread.ndim == 2 else torch.linalg.cholesky(self.spread)

    def emit(
        self, states: Int64[Tensor, "*batch"], uniforms: Float64[Tensor, "*batch draw"]
    ) -> Float64[Tensor, "*batch coordinate"]:
        normals = torch.special.ndtri(uniforms)
        parts = [normals[..., y, None] * self._factors[:, :, y][states] for y in range(self.num_symbols)]
        return self.means[states] + torch.stack(parts).sum(0)  # fixed order, for equal bits in any batch

    @classmethod
    def initialize(
        cls,
        observations: Vectors,
        num_states: int,
        random: np.random.Generator,
        *,
        covariance_type: str = "diag",
        min_variance: Float64[Tensor, " coordinate"],
    ) -> Self:
        filled, centre, deviation = completed(observations)
        centres = scattered_centres(
            (filled - centre) / deviation, num_states, torch.from_numpy(random.random(num_states))
        )
        means = centres * deviation + centre
        nearest = torch.cdist((filled - centre) / deviation, centres).argmin(1)
        member = torch.nn.functional.one_hot(nearest, num_states).double()
        wide = deviation.square()
        start = {"spherical": wide.mean().expand(num_states), "diag": wide.expand(num_states, -1), "tied": wide.diag()}
        before = start.get(covariance_type, wide.diag().expand(num_states, -1, -1))
        means, covariances = explained_best(filled, member, check_shape(covariance_type), means, before, min_variance)
        uniform = torch.full((num_states, num_states), 1 / num_states, dtype=torch.float64)
        return cls(uniform[0], uniform, means, covariances, covariance_type)

    def m_step(
        self, observations: Vectors, occupancy: Float64[Tensor, "row state"], min_variance: Tensor
    ) -> dict[str, Any]:
        means, covariances = explained_best(
            observations, occupancy, self.covariance_type, self.means, self.covariances, min_variance
        )
        return {"means": means, "covariances": covariances}

    @classmethod
    def conjugate(
        cls,
        observations: Vectors,
        *,
        covariance_type: str = "diag",
        prior_strength: float = 0.1,
        degrees: float | None = None,
        share: float = 0.1,
        **others: Any,
    ) -> NormalInverseWishart:
        """Return a `NormalInverseWishart` with `centre` = mean of observations, `spread` = `share` * variances."""
        refuse_others(others, ("prior_strength", "degrees", "share"))
        refuse_missing(observations, covariance_type)
        _, centre, deviation = completed(observations)
        usual = 2.0 + (len(centre) if covariance_type in ("full", "tied") else 0)
        spread = share * deviation.square()
        return NormalInverseWishart(
            covariance_type, centre, spread, prior_strength, usual if degrees is None else degrees
        )


def completed(observations: Vectors) -> tuple[Tensor, Tensor, Tensor]:
    centre = observations.nanmean(0)
    filled = observations.where(~observations.isnan(), centre)
    return filled, centre, filled.std(0, correction=0).clamp_min(torch.finfo(torch.float64).tiny)


@registry.process("random-gaussian")
@dataclass(frozen=True, kw_only=True)
class RandomGaussianSpec:
    """A random Gaussian HMM with unit variances and a uniform initial distribution.

    transition = stay * identity + (1 - stay) * Dirichlet(1) rows; means ~ N(0, separation^2)

    Attributes:
        num_states: number of states S.
        dimension: number of coordinates Y.
        stay: Weight of the identity matrix.
        separation: Standard deviation of the means.
        seed: Random seed.
    """

    default_target: ClassVar[str] = GaussianHMM.default_target

    num_states: int = 3
    dimension: int = 2
    stay: float = 0.9
    separation: float = 2.0
    seed: int = 0

    def __post_init__(self) -> None:
        check_seed(self.seed)
        require(1 <= self.num_states <= 4096, "num_states", "must be in [1, 4096]", self.num_states)
        require(1 <= self.dimension <= 1024, "dimension", "must be in [1, 1024]", self.dimension)
        require(0 <= self.stay < 1, "stay", "must be in [0, 1)", self.stay)
        require(0 < self.separation <= 1e6, "separation", "must be in (0, 1e6]", self.separation)

    def build(self) -> GaussianHMM:
        size, key = self.num_states, philox_key(self.seed, "transition")
        rows = torch.from_numpy(dirichlet_rows(key, np.zeros(1, np.int64), size, size, 1.0)[0])
        transition = self.stay * torch.eye(size, dtype=torch.float64) + (1 - self.stay) * rows
        normals = standard_normals(philox_key(self.seed, "emission"), np.zeros(1, np.int64), size, self.dimension)[0]
        means = self.separation * torch.from_numpy(normals)
        title = f"random Gaussian HMM of {size} states in {self.dimension} dimensions"
        return GaussianHMM(
            torch.full((size,), 1 / size), transition, means, torch.ones_like(means), "diag", title=title
        )
