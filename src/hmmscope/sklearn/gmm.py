"""HMM estimator with Gaussian mixture emissions."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.cluster import KMeans

from hmmscope.axes import Float64, Tensor
from hmmscope.emissions.densities import SHAPES, far_from_zero
from hmmscope.emissions.gaussian_mixture import GaussianMixtureHMM as MixtureProcess
from hmmscope.errors import InputError
from hmmscope.inference.constraints import Constraints
from hmmscope.schema import require_known
from hmmscope.sklearn.encoded import Array
from hmmscope.sklearn.vector_estimator import RealValuedHMM, bounded_below, without_gaps


class GMMHMM(RealValuedHMM):
    """HMM with Gaussian mixture emissions, a replacement for `hmmlearn.hmm.GMMHMM`.

    w_tik = P(state t = i, Gaussian k | X),  n_ik = sum_t w_tik,  weight_ik ∝ weights_prior - 1 + n_ik
    mean_ik = (means_weight means_prior + sum_t w_tik x_t) / (means_weight + n_ik)
    diag:  variance_ik = (2 covars_weight + means_weight (mean_ik - means_prior)^2 + sum_t w_tik (x_t - before_ik)^2)
                         / (n_ik + 1 + 2 (covars_prior + 1)),   before_ik = the previous mean

    Source: Juang, Levinson and Sondhi (1986); interface and priors of hmmlearn 0.3.

    Args:
        n_components: Number of states S.
        n_mix: Number of Gaussians of a state, K.
        min_covar: Number added to initial variances.
        startprob_prior, transmat_prior, weights_prior: Concentrations of Dirichlet priors; 1 means no prior.
        means_prior, means_weight: Parameters of the prior of means, as in the formula.
        covars_prior, covars_weight: Parameters of the prior of covariances, as in the formula; None for no prior.
        algorithm, random_state, n_iter, tol, verbose, implementation, n_init, constraints: See `CategoricalHMM`.
        min_variance: Least variance, or least eigenvalue of a covariance matrix; 0 for no bound, as in hmmlearn.
        covariance_type: "diag", "full", "spherical", or "tied" within a state.
        params, init_params: See `CategoricalHMM`, with "m" (means), "c" (covariances) and "w" (weights) instead of "e".

    Attributes:
        startprob_, transmat_, monitor_: See `CategoricalHMM`.
        weights_: Weights of the Gaussians of each state (S, K).
        means_: Means (S, K, feature).
        covars_: Variances (S, K, feature) if "diag", (S, K) if "spherical"; covariances (S, K, feature, feature) if
            "full", (S, feature, feature) if "tied".
    """

    parts = RealValuedHMM.parts | {"m": "means_", "c": "covars_", "w": "weights_"}
    arrays = {"weights": "weights_", "centres": "means_", "covariances": "covars_"}
    laws = (*RealValuedHMM.laws, "weights_")
    weights_: Array
    means_: Array
    covars_: Array
    n_mix: int
    min_covar: float
    weights_prior: Any
    means_prior: Any
    means_weight: Any
    covars_prior: Any
    covars_weight: Any
    min_variance: float
    covariance_type: str

    def __init__(
        self,
        n_components: int = 1,
        n_mix: int = 1,
        min_covar: float = 1e-3,
        startprob_prior: Any = 1.0,
        transmat_prior: Any = 1.0,
        weights_prior: Any = 1.0,
        means_prior: Any = 0.0,
        means_weight: Any = 0.0,
        covars_prior: Any = None,
        covars_weight: Any = None,
        algorithm: str = "viterbi",
        covariance_type: str = "diag",
        random_state: Any = None,
        n_iter: int = 10,
        tol: float = 1e-2,
        verbose: bool = False,
        params: str = "stmcw",
        init_params: str = "stmcw",
        implementation: str = "log",
        n_init: int = 1,
        min_variance: float = 0.0,
        constraints: Constraints | None = None,
    ) -> None:
        self._take(locals())

    def process(self) -> MixtureProcess:
        parts = self.startprob_, self.transmat_, self.weights_, self.means_, self.covars_
        return MixtureProcess(*parts, self.covariance_type)

    def _check_options(self) -> None:
        super()._check_options()
        require_known("covariance_type", self.covariance_type, SHAPES)
        if isinstance(self.n_mix, bool) or not isinstance(self.n_mix, int | np.integer) or self.n_mix < 1:
            raise InputError(f"n_mix: must be a whole number of at least 1, got {self.n_mix!r}")

    def _begin_emissions(self, X: NDArray[Any], random: np.random.RandomState) -> dict[str, Array]:
        if not self._to_begin() & set(self.arrays.values()):
            return {}
        size, parts, features = self.n_components, self.n_mix, X.shape[1]
        filled = without_gaps(X, size)
        clusters = KMeans(size, random_state=self.random_state, n_init=10).fit(filled)
        whole = np.atleast_2d(np.cov(filled.T)) + self.min_covar * np.eye(features)
        means = []
        for label in range(size):
            own = filled[clusters.labels_ == label]
            if len(own) >= parts:
                means.append(KMeans(parts, random_state=self.random_state, n_init=10).fit(own).cluster_centers_)
            else:
                means.append(random.multivariate_normal(clusters.cluster_centers_.mean(0), whole, size=parts))
        wide = {"tied": whole, "full": whole, "diag": np.diag(whole), "spherical": whole.mean()}[self.covariance_type]
        many = (size,) if self.covariance_type == "tied" else (size, parts)
        covars = np.broadcast_to(wide, (*many, *np.shape(wide))).copy()
        return {"weights_": np.full((size, parts), 1 / parts), "means_": np.stack(means), "covars_": covars}

    def _maximise_emissions(self, X: NDArray[Any], visits: Float64[Tensor, "row state"]) -> None:
        gaps, matrices = np.isnan(X), self.covariance_type in ("full", "tied")
        if gaps.any() and matrices and "c" in self.params:
            raise InputError(
                "X: missing entries require covariance_type diag or spherical; hmmscope.fit supports all types"
            )
        process = self.process()
        shares = (process.shares(torch.from_numpy(X)) * visits[..., None]).numpy()
        shift = far_from_zero(process.means, process.variances).numpy()
        count, before = shares.sum(0), self.means_ - shift
        weighed = np.einsum("tik,tf->ikf", shares, (~gaps).astype(np.float64))  # of observed entries
        filled = np.where(gaps, 0.0, X - shift)
        if "w" in self.params:
            added = np.broadcast_to(np.asarray(self.weights_prior, np.float64) - 1, count.shape)
            added = np.where(np.asarray(self.weights_) == 0, 0.0, added)  # zero weights stay zero
            self.weights_ = (count + added) / (count.sum(1) + added.sum(1))[:, None]
        if "m" in self.params:
            prior = np.broadcast_to(np.asarray(self.means_weight, np.float64), count.shape)[..., None]
            sums = prior * (self.means_prior - shift) + np.einsum("tik,tf->ikf", shares, filled)
            self.means_ = np.divide(sums, prior + weighed, out=before.copy(), where=prior + weighed > 0) + shift
        if "c" in self.params:
            squares = [self._squares(filled, ~gaps, shares[:, i, k], before[i, k]) for i, k in np.ndindex(*count.shape)]
            found = self._covariances(np.stack(squares).reshape(*count.shape, *squares[0].shape), count, weighed)
            self.covars_ = bounded_below(found, self.min_variance, self.means_, self.covariance_type)

    def _squares(self, filled: Array, seen: NDArray[np.bool_], share: Array, mean: Array) -> Array:
        away = np.where(seen, filled - mean, 0.0)
        return (away * share[:, None]).T @ away if self.covariance_type in ("full", "tied") else share @ away**2

    def _covariances(self, squares: Array, count: Array, weighed: Array) -> Array:
        shape, parts, features = self.covariance_type, self.n_mix, weighed.shape[2]
        plain = {
            "full": (0.0, -(features + 2.0)),
            "tied": (0.0, -(parts + features + 1.0)),
            "diag": (-1.5, 0.0),
            "spherical": (-(parts + 2.0) / 2, 0.0),
        }[shape]
        given = self.covars_prior, self.covars_weight
        prior, weight = (np.asarray(p if g is None else g, np.float64) for g, p in zip(given, plain, strict=True))
        away = self.means_ - self.means_prior
        pull = np.broadcast_to(np.asarray(self.means_weight, np.float64), count.shape)
        if shape == "diag":
            sums = 2 * weight + pull[..., None] * away**2 + squares
            degrees = weighed + 1 + 2 * (prior + 1)
        elif shape == "spherical":
            sums = 2 * weight + pull * (away**2).sum(-1) + squares.sum(-1)
            degrees = weighed.sum(-1) + features + 2 * (prior + 1)
        else:
            turned = np.swapaxes(prior, -1, -2) if prior.ndim > 1 else prior
            sums = squares + pull[..., None, None] * away[..., :, None] * away[..., None, :]
            sums = turned + (sums.sum(1) if shape == "tied" else sums)
            free = count.sum(1) + parts if shape == "tied" else count + 1
            degrees = (free + weight + features + 1)[..., None, None]
        before = np.array(self.covars_, np.float64)  # for Gaussians without weight
        return np.divide(sums, degrees, out=before, where=np.broadcast_to(degrees > 0, before.shape))
