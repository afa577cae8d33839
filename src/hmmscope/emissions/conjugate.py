"""Conjugate priors of exponential-family emissions.

log P(x | state) = features(x) · natural(parameters). Sufficient statistics are weighted sums of features.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch

from hmmscope.axes import Float64, Int64, Tensor, Vectors
from hmmscope.errors import InputError
from hmmscope.reprs import Shown
from hmmscope.schema import require, unknown_name

_LOG_2PI = math.log(2 * math.pi)
#: Smallest symbol probability, so that no parameters forbid the data.
_LEAST = 1e-12


class Conjugate(Protocol):
    """Conjugate prior of the emission parameters of all states."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the arrays that `draw` returns."""

    @property
    def shared(self) -> tuple[str, ...]:
        """Names of those arrays that have no state axis."""

    def features(self, observations: Vectors) -> Float64[Tensor, "row feature"]:
        """Compute the features of each observation."""

    def natural(self, laws: Mapping[str, Tensor]) -> Float64[Tensor, "*models state feature"]:
        """Compute the natural parameters of each state."""

    def moments(self, laws: Mapping[str, Tensor]) -> Float64[Tensor, "*models state feature"]:
        """Compute E[features | state] of an observation without missing entries."""

    def draw(
        self, statistics: Float64[Tensor, "*models state feature"], random: np.random.Generator
    ) -> dict[str, Tensor]:
        """Sample emission parameters given sufficient statistics."""

    def log_marginal(self, statistics: Float64[Tensor, "*models state feature"]) -> Float64[Tensor, "*models"]:
        """Compute log P(observations with these `statistics`) under the prior."""


def members(states: Int64[Tensor, " row"], num_states: int) -> Float64[Tensor, "row state"]:
    return torch.nn.functional.one_hot(states, num_states).double()


@dataclass(frozen=True, eq=False, repr=False)
class NormalInverseWishart(Shown):
    """Normal-inverse-Wishart prior of means and covariances.

    covariance ~ inverse Wishart(degrees, degrees * spread),  mean | covariance ~ N(centre, covariance / strength)

    For "diag" and "spherical" covariances this is the normal-inverse-gamma prior. For n observations x, let s be the
    sum of z = x - centre and Q the sum of z z^T. The posterior is

        covariance ~ inverse Wishart(degrees + n, degrees * spread + Q - s s^T / (strength + n));
        mean | covariance ~ N(centre + s / (strength + n), covariance / (strength + n))

    Source: Gelman, Carlin, Stern, Dunson, Vehtari and Rubin (2013), sections 3.3 and 3.6.

    Attributes:
        covariance_type: See `GaussianHMM`.
        centre: Prior mean (coordinate,).
        spread: Prior variances (coordinate,).
        prior_strength: Weight of the prior mean (strength above), as a number of observations.
        degrees: Weight of the prior variances, as a number of observations; for "full" and "tied",
            more than (number of coordinates) - 1.
    """

    covariance_type: str
    centre: Float64[Tensor, " coordinate"]
    spread: Float64[Tensor, " coordinate"]
    prior_strength: float
    degrees: float

    def __post_init__(self) -> None:
        require(self.prior_strength > 0, "prior_strength", "must be positive", self.prior_strength)
        count = len(self.centre) if self._matrices else 1
        require(self.degrees > count - 1, "degrees", f"must be above {count - 1}", self.degrees)

    @property
    def names(self) -> tuple[str, ...]:
        return "means", "covariances"

    @property
    def _matrices(self) -> bool:
        return self.covariance_type in ("full", "tied")

    @property
    def shared(self) -> tuple[str, ...]:
        return ("covariances",) if self.covariance_type == "tied" else ()

    def features(self, observations: Tensor) -> Tensor:
        """Return z^2, z and 1 per coordinate, or for covariance matrices z z^T, z and 1; z = observation - centre."""
        away = (observations - self.centre).nan_to_num(0.0)
        if self._matrices:
            squares = (away[:, :, None] * away[:, None, :]).flatten(1)
            return torch.cat([squares, away, torch.ones_like(away[:, :1])], 1)
        return torch.cat([away.square(), away, (~observations.isnan()).double()], 1)

    def _spread(self, laws: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        away, found = laws["means"] - self.centre, laws["covariances"]
        if self.covariance_type == "spherical":
            found = found[..., None].expand_as(away)
        elif self.covariance_type == "tied":
            found = found[..., None, :, :].expand(*away.shape, away.shape[-1])
        return away, found

    def natural(self, laws: Mapping[str, Tensor]) -> Tensor:
        away, spread = self._spread(laws)
        if not self._matrices:
            precision, rest = spread.reciprocal(), spread.log() + _LOG_2PI
            return torch.cat([-precision / 2, away * precision, -(away.square() * precision + rest) / 2], -1)
        factor = torch.linalg.cholesky(spread)
        precision = torch.cholesky_inverse(factor)
        weighed = (precision @ away[..., None])[..., 0]
        rest = 2 * factor.diagonal(dim1=-2, dim2=-1).log().sum(-1) + away.shape[-1] * _LOG_2PI
        alone = -((away * weighed).sum(-1) + rest)[..., None] / 2
        return torch.cat([-precision.flatten(-2) / 2, weighed, alone], -1)

    def moments(self, laws: Mapping[str, Tensor]) -> Tensor:
        away, spread = self._spread(laws)
        if not self._matrices:
            return torch.cat([away.square() + spread, away, torch.ones_like(away)], -1)
        squares = away[..., :, None] * away[..., None, :] + spread
        return torch.cat([squares.flatten(-2), away, torch.ones_like(away[..., :1])], -1)

    def _after(self, statistics: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        size = len(self.centre)
        if not self._matrices:
            squares, sums, count = statistics.split(size, -1)
            mean = sums / (self.prior_strength + count)
            scatter = (squares - sums * mean).clamp_min(0.0)
            if self.covariance_type == "diag":
                return count, mean, self.degrees * self.spread + scatter, self.degrees + count
            return count, mean, self.degrees * self.spread.mean() + scatter.sum(-1), self.degrees + count.sum(-1)
        squares, sums, count = statistics.split([size * size, size, 1], -1)
        mean = sums / (self.prior_strength + count)
        scatter = squares.unflatten(-1, (size, size)) - sums[..., :, None] * mean[..., None, :]
        count = count[..., 0]
        if self.covariance_type == "tied":
            scatter, seen = scatter.sum(-3), count.sum(-1)
        else:
            seen = count
        return count, mean, self.degrees * self.spread.diag() + scatter, self.degrees + seen

    def draw(self, statistics: Tensor, random: np.random.Generator) -> dict[str, Tensor]:
        count, mean, scale, degrees = self._after(statistics)
        if not self._matrices:
            covariances = scale / _chi_squares(degrees, random)
            spread = covariances[..., None] if self.covariance_type == "spherical" else covariances
            moved = _normals(mean, random) * (spread / (self.prior_strength + count)).sqrt()
        else:
            covariances = _inverse_wishart(degrees, scale, random)
            factors = torch.linalg.cholesky(covariances)
            factors = factors[..., None, :, :] if self.covariance_type == "tied" else factors
            moved = (factors @ _normals(mean, random)[..., None])[..., 0] / (self.prior_strength + count).sqrt()[
                ..., None
            ]
        return {"means": self.centre + mean + moved, "covariances": covariances}

    def log_marginal(self, statistics: Tensor) -> Tensor:
        count, _, scale, degrees = self._after(statistics)
        size = len(self.centre)
        if self._matrices:
            found = _log_wishart(degrees, scale) - _log_wishart(
                torch.tensor(self.degrees).double(), self.degrees * self.spread.diag()
            )
            numbers, each = count * size, count[..., None].expand(*count.shape, size)
        else:
            spread = self.spread if self.covariance_type == "diag" else self.spread.mean()
            found = torch.lgamma(degrees / 2) - degrees / 2 * (scale / 2).log()
            found = found - (math.lgamma(self.degrees / 2) - self.degrees / 2 * (self.degrees * spread / 2).log())
            found = found.sum(-1) if self.covariance_type == "diag" else found
            numbers, each = count.sum(-1), count
        of_means = (math.log(self.prior_strength) - (self.prior_strength + each).log()).sum(
            -1
        ) / 2 - numbers * _LOG_2PI / 2
        return found + of_means.sum(-1) if self.covariance_type == "tied" else (found + of_means).sum(-1)


def _normals(like: Tensor, random: np.random.Generator) -> Tensor:
    return torch.from_numpy(random.standard_normal(tuple(like.shape)))


def _chi_squares(degrees: Tensor, random: np.random.Generator) -> Tensor:
    return torch.from_numpy(np.asarray(2 * random.standard_gamma(degrees.numpy() / 2)))


def _inverse_wishart(
    degrees: Float64[Tensor, "*models"], scale: Float64[Tensor, "*models y y"], random: np.random.Generator
) -> Float64[Tensor, "*models y y"]:
    lower = (
        _normals(scale, random).tril(-1)
        + _chi_squares(degrees[..., None] - torch.arange(scale.shape[-1]), random).sqrt().diag_embed()
    )
    root = torch.linalg.cholesky(scale)
    half = torch.linalg.solve_triangular(lower, root.mT, upper=False)
    return half.mT @ half


def _log_wishart(degrees: Tensor, scale: Tensor) -> Tensor:
    size = scale.shape[-1]
    log_determinant = 2 * torch.linalg.cholesky(scale).diagonal(dim1=-2, dim2=-1).log().sum(-1)
    return torch.special.multigammaln(degrees / 2, size) - degrees / 2 * (log_determinant - size * math.log(2))


@dataclass(frozen=True, eq=False, repr=False)
class GammaRates(Shown):
    """Gamma prior of Poisson rates.

    rate ~ Gamma(shape a, rate a / centre) with a = prior_strength; after n counts x, Gamma(a + sum x, a / centre + n)

    Attributes:
        centre: Mean rates (coordinate,).
        prior_strength: Shape parameter a of the Gamma distribution.
    """

    centre: Float64[Tensor, " coordinate"]
    prior_strength: float
    names: tuple[str, ...] = ("rates",)
    shared: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        require(self.prior_strength > 0, "prior_strength", "must be positive", self.prior_strength)

    def features(self, observations: Tensor) -> Tensor:
        counts = observations.nan_to_num(0.0)
        return torch.cat([counts, (~observations.isnan()).double(), -torch.lgamma(counts + 1)], 1)

    def natural(self, laws: Mapping[str, Tensor]) -> Tensor:
        rates = laws["rates"]
        return torch.cat([rates.log(), -rates, torch.ones_like(rates)], -1)

    def moments(self, laws: Mapping[str, Tensor]) -> Tensor:
        """Compute E[features | state], with zero for log-factorials, which do not depend on the rate."""
        rates = laws["rates"]
        return torch.cat([rates, torch.ones_like(rates), torch.zeros_like(rates)], -1)

    def draw(self, statistics: Tensor, random: np.random.Generator) -> dict[str, Tensor]:
        total, seen, _ = statistics.split(len(self.centre), -1)
        drawn = torch.from_numpy(np.asarray(random.standard_gamma((self.prior_strength + total).numpy())))
        return {"rates": drawn / (self.prior_strength / self.centre + seen)}

    def log_marginal(self, statistics: Tensor) -> Tensor:
        total, seen, rest = statistics.split(len(self.centre), -1)
        shape, rate = self.prior_strength + total, self.prior_strength / self.centre
        found = torch.lgamma(shape) - shape * (rate + seen).log() + rest
        return (found - math.lgamma(self.prior_strength) + self.prior_strength * rate.log()).sum((-2, -1))


@dataclass(frozen=True, eq=False, repr=False)
class DirichletRows(Shown):
    """Dirichlet(a, ..., a) prior of each state's symbol probabilities per channel; with counts n, Dirichlet(a + n).

    Attributes:
        sizes: Number of symbols of each channel.
        prior_strength: Number a of prior counts per symbol; 1 gives a uniform prior.
    """

    sizes: tuple[int, ...]
    prior_strength: float
    names: tuple[str, ...] = ("emissions",)
    shared: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        require(self.prior_strength > 0, "prior_strength", "must be positive", self.prior_strength)

    def features(self, observations: Tensor) -> Tensor:
        parts = [
            torch.nn.functional.one_hot(own.nan_to_num(0.0).long(), size)
            .double()
            .masked_fill(own.isnan()[:, None], 0.0)
            for own, size in zip(observations.unbind(-1), self.sizes, strict=True)
        ]
        return torch.cat(parts, 1)

    def natural(self, laws: Mapping[str, Tensor]) -> Tensor:
        return laws["emissions"].clamp_min(_LEAST).log()

    def moments(self, laws: Mapping[str, Tensor]) -> Tensor:
        return laws["emissions"]

    def draw(self, statistics: Tensor, random: np.random.Generator) -> dict[str, Tensor]:
        drawn = torch.from_numpy(np.asarray(random.standard_gamma((self.prior_strength + statistics).numpy())))
        rows = [own.clamp_min(_LEAST) for own in drawn.split(self.sizes, -1)]
        return {"emissions": torch.cat([own / own.sum(-1, keepdim=True) for own in rows], -1)}

    def log_marginal(self, statistics: Tensor) -> Tensor:
        found = statistics.new_zeros(statistics.shape[:-1])
        for own, size in zip(statistics.split(self.sizes, -1), self.sizes, strict=True):
            found = (
                found
                + torch.lgamma(self.prior_strength + own).sum(-1)
                - torch.lgamma(size * self.prior_strength + own.sum(-1))
            )
            found = found + math.lgamma(size * self.prior_strength) - size * math.lgamma(self.prior_strength)
        return found.sum(-1)


def refuse_missing(observations: Vectors, covariance_type: str) -> None:
    if covariance_type in ("full", "tied") and bool(observations.isnan().any()):
        raise InputError('posterior: observations with missing entries require covariance_type "diag" or "spherical"')


def refuse_others(others: Mapping[str, Any], known: tuple[str, ...]) -> None:
    for name in others:
        raise unknown_name("posterior", name, known)
