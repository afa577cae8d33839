"""Priors of emission laws from which laws are drawn exactly, given the observations of each state."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch

from hmmscope.axes import Float64, Int64, Tensor
from hmmscope.errors import InputError
from hmmscope.reprs import Shown
from hmmscope.schema import require, unknown_name


class Conjugate(Protocol):
    """A prior of the laws of all states together."""

    @property
    def shared(self) -> tuple[str, ...]:
        """Arrays of the process that have no axis of states."""

    def draw(
        self,
        observations: Float64[Tensor, "row coordinate"],
        states: Int64[Tensor, "row"],
        num_states: int,
        random: np.random.Generator,
    ) -> dict[str, Tensor]:
        """Arrays of the laws, from their law given these observations of these states; of no rows, from the prior."""


def members(states: Int64[Tensor, "row"], num_states: int) -> Float64[Tensor, "row state"]:
    """One where a row is of a state."""
    return torch.nn.functional.one_hot(states, num_states).double()


@dataclass(frozen=True, eq=False, repr=False)
class NormalInverseWishart(Shown):
    """covariance ~ inverse Wishart(degrees, degrees * spread),  mean | covariance ~ N(centre, covariance / strength)

    Of "diag" and "spherical" covariances every variance is degrees * spread / chi-square(degrees): normal-inverse-gamma.
    Of n observations with mean m and scatter C: strength + n, degrees + n (spherical: n for each coordinate), and

        scale + C + strength n / (strength + n) (m - centre)(m - centre)^T

    Source: Gelman, Carlin, Stern, Dunson, Vehtari and Rubin (2013), sections 3.3 and 3.6.

    Attributes:
        covariance_type: "spherical", "diag", "full" or "tied", as of `GaussianHMM`.
        centre: (coordinate,).
        spread: variances (coordinate,).
        strength: observations that the centre is worth.
        degrees: observations that the spread is worth; above the number of coordinates less one.
    """

    covariance_type: str
    centre: Float64[Tensor, "coordinate"]
    spread: Float64[Tensor, "coordinate"]
    strength: float
    degrees: float

    def __post_init__(self) -> None:
        require(self.strength > 0, "strength", "must be positive", self.strength)
        count = len(self.centre) if self.covariance_type in ("full", "tied") else 1
        require(self.degrees > count - 1, "degrees", f"must be above {count - 1}", self.degrees)

    @property
    def shared(self) -> tuple[str, ...]:
        return ("covariances",) if self.covariance_type == "tied" else ()

    def draw(
        self, observations: Tensor, states: Tensor, num_states: int, random: np.random.Generator
    ) -> dict[str, Tensor]:
        """See `Conjugate`; of "full" and "tied" no entry may be missing."""
        known, member = (~observations.isnan()).double(), members(states, num_states)
        filled = observations.nan_to_num(0.0)
        count_SY = member.T @ known
        mean_SY = member.T @ filled / count_SY.clamp_min(1.0)
        away = (filled - mean_SY[states]) * known
        share_SY = self.strength * count_SY / (self.strength + count_SY)
        centre_SY = (self.strength * self.centre + count_SY * mean_SY) / (self.strength + count_SY)
        if self.covariance_type in ("spherical", "diag"):
            scatter_SY = member.T @ away.square() + share_SY * (mean_SY - self.centre).square()
            if self.covariance_type == "spherical":
                scale_S = self.degrees * self.spread.mean() + scatter_SY.sum(1)
                covariances = scale_S / _chi_squares(self.degrees + count_SY.sum(1), random)
            else:
                covariances = (self.degrees * self.spread + scatter_SY) / _chi_squares(self.degrees + count_SY, random)
            spread_SY = covariances[:, None] if self.covariance_type == "spherical" else covariances
            normals = torch.from_numpy(random.standard_normal(tuple(centre_SY.shape)))
            return {
                "means": centre_SY + normals * (spread_SY / (self.strength + count_SY)).sqrt(),
                "covariances": covariances,
            }
        apart_SY = mean_SY - self.centre
        scale_SYY = torch.stack([(away * own[:, None]).T @ away for own in member.T])
        scale_SYY = scale_SYY + share_SY[:, :1, None] * apart_SY[:, :, None] * apart_SY[:, None, :]
        prior_YY = self.degrees * self.spread.diag()
        if self.covariance_type == "tied":
            covariances = _inverse_wishart(self.degrees + len(observations), prior_YY + scale_SYY.sum(0), random)
            factors = torch.linalg.cholesky(covariances).expand(num_states, -1, -1)
        else:
            degrees_S = (self.degrees + count_SY[:, 0]).tolist()
            drawn = zip(degrees_S, scale_SYY, strict=True)
            covariances = torch.stack([_inverse_wishart(own, prior_YY + scale, random) for own, scale in drawn])
            factors = torch.linalg.cholesky(covariances)
        normals = torch.from_numpy(random.standard_normal(tuple(centre_SY.shape)))
        moved = (factors @ normals[..., None])[..., 0] / (self.strength + count_SY).sqrt()
        return {"means": centre_SY + moved, "covariances": covariances}


def _chi_squares(degrees: Tensor, random: np.random.Generator) -> Tensor:
    return torch.from_numpy(np.asarray(2 * random.standard_gamma(degrees.numpy() / 2)))


def _inverse_wishart(degrees: float, scale: Float64[Tensor, "y y"], random: np.random.Generator) -> Tensor:
    """By Bartlett's factor A of the precision: L A^-T A^-1 L^T, where L L^T is the scale."""
    size = len(scale)
    lower = np.tril(random.standard_normal((size, size)), -1)
    lower += np.diag(np.sqrt(2 * random.standard_gamma((degrees - np.arange(size)) / 2)))
    root = torch.linalg.cholesky(scale)
    half = torch.linalg.solve_triangular(torch.from_numpy(lower), root.T, upper=False)
    return half.T @ half


@dataclass(frozen=True, eq=False, repr=False)
class GammaRates(Shown):
    """rate ~ Gamma(strength, mean of strength / rate): after counts of sum x over n rows, Gamma(strength + x, rate + n).

    Attributes:
        centre: mean of the rates (coordinate,).
        strength: shape; so many counts is the prior worth.
    """

    centre: Float64[Tensor, "coordinate"]
    strength: float
    shared: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        require(self.strength > 0, "strength", "must be positive", self.strength)

    def draw(
        self, observations: Tensor, states: Tensor, num_states: int, random: np.random.Generator
    ) -> dict[str, Tensor]:
        """See `Conjugate`."""
        member = members(states, num_states)
        known_SY = member.T @ (~observations.isnan()).double()
        shape_SY = self.strength + member.T @ observations.nan_to_num(0.0)
        drawn = torch.from_numpy(random.standard_gamma(shape_SY.numpy()))
        return {"rates": drawn / (self.strength / self.centre + known_SY)}


def refuse_missing(observations: Float64[Tensor, "row coordinate"], covariance_type: str) -> None:
    """InputError where an entry is missing and covariances are matrices."""
    if covariance_type in ("full", "tied") and bool(observations.isnan().any()):
        raise InputError('posterior: with missing entries covariances must be "diag" or "spherical"')


def refuse_others(others: Mapping[str, Any], known: tuple[str, ...]) -> None:
    """InputError for an option that a prior has not."""
    for name in others:
        raise unknown_name("posterior", name, known)
