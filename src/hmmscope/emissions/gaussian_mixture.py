"""HMM with Gaussian mixture emissions."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Self

import numpy as np
import torch

from hmmscope import registry
from hmmscope.axes import Float64, Int64, Tensor, Vectors
from hmmscope.emissions.densities import (
    check_covariances,
    check_shape,
    explained_best,
    log_densities,
    scattered_centres,
    spread_of,
)
from hmmscope.emissions.emission_hmm import EmissionHMM
from hmmscope.emissions.gaussian import completed
from hmmscope.inference.free_parameters import num_free
from hmmscope.processes.probability_rows import laws_of, numbers_of
from hmmscope.schema import is_count, require


@registry.emission("gaussian-mixture")
class GaussianMixtureHMM(EmissionHMM):
    """HMM with Gaussian mixture emissions.

    observation_t ~ sum_k weights[state_t, k] N(centres[state_t, k], covariance of (state_t, k)), Y coordinates

    Source: Juang, Levinson and Sondhi (1986); covariance types as in hmmlearn.

    Attributes:
        weights: Mixture weights (state, gaussian).
        centres: Means of the Gaussians (state, gaussian, coordinate).
        covariances: Variances or covariance matrices, in the shape of `covariance_type`.
        covariance_type: "spherical" (S, K), "diag" (S, K, Y), "full" (S, K, Y, Y), or "tied" (S, Y, Y), one
            matrix per state.
        means, variances: E[o | state] and Var[o | state].

    Args:
        initial, transition: See `EmissionHMM`.
        weights: Mixture weights (S, K) of K Gaussians in S states; rows sum to 1.
        centres: Means of the Gaussians (S, K, Y).
        covariances: See above.
        covariance_type: See above (default: "diag").
        states, title, source: See `EmissionHMM`.

    Raises:
        InputError: A shape is wrong, or a covariance is not positive definite.
    """

    stored_name = "GaussianMixtureHMM"

    probability_arrays = ("initial", "transition", "weights")
    fit_options = ("covariance_type", "num_gaussians")
    file_format = "hmmscope-gaussian-mixture-hmm"
    file_arrays = ("initial", "transition", "weights", "centres", "covariances")
    file_fields = ("covariance_type", "states", "title", "source", "reading")

    def __init__(
        self,
        initial: object,
        transition: object,
        weights: object,
        centres: object,
        covariances: object,
        covariance_type: str = "diag",
        *,
        states: Sequence[str] | None = None,
        title: str = "",
        source: str = "",
    ) -> None:
        super().__init__(initial, transition, states=states, title=title, source=source)
        size = self.num_states
        self.weights = laws_of("weights", weights, (size, None))
        self.num_gaussians = parts = self.weights.shape[1]
        self.centres = numbers_of("centres", centres, (size, parts, None))
        self.num_symbols = count = self.centres.shape[2]
        self.num_draws = count + 1
        self.covariance_type = check_shape(covariance_type)
        tails = {"spherical": (parts,), "diag": (parts, count), "full": (parts, count, count), "tied": (count, count)}
        self.covariances = numbers_of("covariances", covariances, (size, *tails[covariance_type]))
        check_covariances("covariances", self.spread)

    @cached_property
    def _flat(self) -> Float64[Tensor, "law coordinate"]:
        return self.centres.flatten(0, 1)

    @cached_property
    def spread(self) -> Tensor:
        """Variances (S K, Y) or covariance matrices (S K, Y, Y) of all Gaussians, ordered by state."""
        if self.covariance_type == "tied":
            return self.covariances.repeat_interleave(self.num_gaussians, 0)
        return spread_of(self.covariance_type, self.covariances.flatten(0, 1), self._flat)

    def gaussians(self, state: int) -> list[tuple[float, Tensor, Tensor]]:
        """See `GaussianHMM.gaussians`."""
        spread = self.spread.unflatten(0, (self.num_states, -1))[state]
        matrices = spread if spread.ndim == 3 else spread.diag_embed()
        return list(zip(self.weights[state].tolist(), self.centres[state], matrices, strict=True))

    @property
    def means(self) -> Float64[Tensor, "state coordinate"]:
        return torch.einsum("sk,sky->sy", self.weights, self.centres)

    @property
    def variances(self) -> Float64[Tensor, "state coordinate"]:
        own = self.spread if self.spread.ndim == 2 else self.spread.diagonal(dim1=1, dim2=2)
        squares = own.unflatten(0, self.weights.shape) + (self.centres - self.means[:, None]).square()
        return torch.einsum("sk,sky->sy", self.weights, squares)

    def num_free(self, positive: Mapping[str, Tensor]) -> dict[str, int]:
        size, _, count = self.centres.shape
        allowed = positive.get("weights", torch.ones_like(self.weights))
        used, symmetric = int(allowed.sum()), count * (count + 1) // 2
        each = {"spherical": used, "diag": used * count, "full": used * symmetric, "tied": size * symmetric}
        spread = each[self.covariance_type]
        return {"weights": num_free(allowed.numpy()), "centres": used * count, "covariances": spread}

    @property
    def num_mixture_components(self) -> int:
        return self.num_states * self.num_gaussians

    @property
    def variance_floor_hits(self) -> Float64[Tensor, "state coordinate"]:
        own = self.spread if self.spread.ndim == 2 else self.spread.diagonal(dim1=1, dim2=2)
        return own.unflatten(0, self.weights.shape).amin(1)

    @property
    def options(self) -> dict[str, Any]:
        return {"covariance_type": self.covariance_type, "num_gaussians": self.num_gaussians}

    def _joint(self, rows: Vectors) -> Float64[Tensor, "row state gaussian"]:
        return log_densities(rows, self._flat, self.spread).unflatten(1, self.weights.shape) + self.weights.log()

    def log_likelihoods(self, observations: Float64[Tensor, "*batch coordinate"]) -> Float64[Tensor, "*batch state"]:
        found = self._joint(observations.reshape(-1, self.num_symbols)).logsumexp(2)
        found = found.masked_fill(observations.reshape(-1, self.num_symbols).isnan().all(1)[:, None], 0.0)
        return found.reshape(*observations.shape[:-1], self.num_states)

    def shares(self, rows: Vectors) -> Float64[Tensor, "row state gaussian"]:
        """Return P(gaussian | observation, state)."""
        return self._joint(rows).softmax(2)

    @cached_property
    def _factors(self) -> Tensor:
        return self.spread.sqrt().diag_embed() if self.spread.ndim == 2 else torch.linalg.cholesky(self.spread)

    def emit(
        self, states: Int64[Tensor, "*batch"], uniforms: Float64[Tensor, "*batch draw"]
    ) -> Float64[Tensor, "*batch coordinate"]:
        cumulated = self.weights.cumsum(1)
        most = (cumulated < cumulated[:, -1:]).sum(1)[states]
        chosen = torch.minimum((cumulated[states] <= uniforms[..., :1]).sum(-1), most)
        laws, normals = states * self.num_gaussians + chosen, torch.special.ndtri(uniforms[..., 1:])
        parts = [normals[..., y, None] * self._factors[:, :, y][laws] for y in range(self.num_symbols)]
        return self._flat[laws] + torch.stack(parts).sum(0)

    @classmethod
    def initialize(
        cls,
        observations: Vectors,
        num_states: int,
        random: np.random.Generator,
        *,
        covariance_type: str = "diag",
        num_gaussians: int = 2,
        min_variance: Float64[Tensor, " coordinate"],
    ) -> Self:
        filled, centre, deviation = completed(observations)
        require(is_count(num_gaussians), "num_gaussians", "must be at least 1 and whole", num_gaussians)
        scaled, total = (filled - centre) / deviation, num_states * num_gaussians
        uniforms = torch.from_numpy(random.random((num_states + 1, max(num_states, num_gaussians))))
        nearest = torch.cdist(scaled, scattered_centres(scaled, num_states, uniforms[0])).argmin(1)
        centres = []
        for state in range(num_states):
            own = scaled[nearest == state]
            centres.append(scattered_centres(own if len(own) else scaled, num_gaussians, uniforms[1 + state]))
        means = torch.cat(centres) * deviation + centre
        member = torch.nn.functional.one_hot(torch.cdist(scaled, torch.cat(centres)).argmin(1), total).double()
        wide, tied = deviation.square(), covariance_type == "tied"
        start = {"spherical": wide.mean().expand(total), "diag": wide.expand(total, -1)}
        shape = "full" if tied else check_shape(covariance_type)
        before = start.get(covariance_type, wide.diag().expand(total, -1, -1))
        means, covariances = explained_best(filled, member, shape, means, before, min_variance)
        covariances = covariances.unflatten(0, (num_states, num_gaussians))
        counts = member.sum(0).unflatten(0, (num_states, num_gaussians)) + 1
        uniform = torch.full((num_states, num_states), 1 / num_states, dtype=torch.float64)
        return cls(
            uniform[0],
            uniform,
            counts / counts.sum(1, keepdim=True),
            means.unflatten(0, (num_states, num_gaussians)),
            covariances.mean(1) if tied else covariances,
            covariance_type,
        )

    def m_step(
        self, observations: Vectors, occupancy: Float64[Tensor, "row state"], min_variance: Tensor
    ) -> dict[str, Any]:
        share_NSK = self.shares(observations) * occupancy[..., None]
        counts_SK = share_NSK.sum(0)
        total_S1 = counts_SK.sum(1, keepdim=True)
        found = {"weights": torch.where(total_S1 > 0, counts_SK / total_S1.where(total_S1 > 0, 1.0), self.weights)}
        if self.covariance_type == "tied":
            parts = [
                explained_best(
                    observations, share_NSK[:, s], "tied", self.centres[s], self.covariances[s], min_variance
                )
                if total_S1[s] > 0
                else (self.centres[s], self.covariances[s])
                for s in range(self.num_states)
            ]
            centres, covariances = (torch.stack(part) for part in zip(*parts, strict=True))
            return found | {"centres": centres, "covariances": covariances}
        before = self.covariances.flatten(0, 1)
        centres, covariances = explained_best(
            observations, share_NSK.flatten(1), self.covariance_type, self._flat, before, min_variance
        )
        return found | {
            "centres": centres.unflatten(0, self.weights.shape),
            "covariances": covariances.unflatten(0, self.weights.shape),
        }
