"""HMM estimator with Gaussian emissions."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.cluster import KMeans

from hmmscope.axes import Float64, Tensor
from hmmscope.emissions.densities import SHAPES, far_from_zero, weighted_squares
from hmmscope.emissions.gaussian import GaussianHMM as GaussianProcess
from hmmscope.errors import InputError
from hmmscope.inference.constraints import Constraints
from hmmscope.schema import refuse_masked, require_known
from hmmscope.sklearn.encoded import Array
from hmmscope.sklearn.vector_estimator import RealValuedHMM, bounded_below, without_gaps


class GaussianHMM(RealValuedHMM):
    """HMM with Gaussian emissions, a replacement for `hmmlearn.hmm.GaussianHMM`.

    mean_i = (means_weight means_prior + sum_t w_ti x_t) / (means_weight + sum_t w_ti)
    diag:  variance_i = (covars_prior + means_weight (mean_i - means_prior)^2 + sum_t w_ti (x_t - mean_i)^2)
                        / (max(covars_weight - 1, 0) + sum_t w_ti),      w_ti = P(state t = i | X)

    Source: Rabiner (1989); interface and priors of hmmlearn 0.3.

    Args:
        n_components: Number of states S.
        covariance_type: "diag", "full", "tied" or "spherical".
        min_covar: Number added to initial variances.
        startprob_prior, transmat_prior: Concentrations of Dirichlet priors; 1 means no prior.
        means_prior, means_weight: Parameters of the prior of means, as in the formula.
        covars_prior, covars_weight: Parameters of the prior of covariances, as in the formula.
        algorithm, random_state, n_iter, tol, verbose, implementation, n_init, constraints: See `CategoricalHMM`.
        min_variance: Least variance, or least eigenvalue of a covariance matrix; 0 for no bound, as in hmmlearn.
        params, init_params: See `CategoricalHMM`, with "m" (means) and "c" (covariances) instead of "e".

    Attributes:
        startprob_, transmat_, monitor_: See `CategoricalHMM`.
        means_: Means (S, feature).
        covars_: Covariance matrices (S, feature, feature); assign the same shape if "full", (S, feature) if "diag",
            (feature, feature) if "tied", (S,) if "spherical".
    """

    parts = RealValuedHMM.parts | {"m": "means_", "c": "_covars_"}
    arrays = {"means": "means_", "covariances": "_covars_"}
    means_: Array
    _covars_: Array
    covariance_type: str
    min_covar: float
    means_prior: Any
    means_weight: Any
    covars_prior: Any
    covars_weight: float
    min_variance: float

    def __init__(
        self,
        n_components: int = 1,
        covariance_type: str = "diag",
        min_covar: float = 1e-3,
        startprob_prior: Any = 1.0,
        transmat_prior: Any = 1.0,
        means_prior: Any = 0,
        means_weight: Any = 0,
        covars_prior: Any = 1e-2,
        covars_weight: float = 1,
        algorithm: str = "viterbi",
        random_state: Any = None,
        n_iter: int = 10,
        tol: float = 1e-2,
        verbose: bool = False,
        params: str = "stmc",
        init_params: str = "stmc",
        implementation: str = "log",
        n_init: int = 1,
        min_variance: float = 0.0,
        constraints: Constraints | None = None,
    ) -> None:
        self._take(locals())

    @property
    def covars_(self) -> Array:
        spread = self.process().spread
        return (spread if spread.ndim == 3 else spread.diag_embed()).numpy().copy()

    @covars_.setter
    def covars_(self, covars: Any) -> None:
        refuse_masked("covars_", covars)
        given = np.array(covars, np.float64)
        if self.covariance_type == "spherical" and given.ndim == 2 and (given == given[:, :1]).all():
            given = given[:, 0]  # hmmlearn also accepts (S, 1)
        self._covars_ = given

    def process(self) -> GaussianProcess:
        return GaussianProcess(self.startprob_, self.transmat_, self.means_, self._covars_, self.covariance_type)

    def _check_options(self) -> None:
        super()._check_options()
        require_known("covariance_type", self.covariance_type, SHAPES)

    def _begin_emissions(self, X: NDArray[Any], random: np.random.RandomState) -> dict[str, Array]:
        filled, begun = without_gaps(X, self.n_components), dict[str, Array]()
        if "means_" in self._to_begin():
            found = KMeans(self.n_components, random_state=self.random_state, n_init=10).fit(filled)
            begun["means_"] = found.cluster_centers_
        if "_covars_" not in self._to_begin():
            return begun
        whole = np.atleast_2d(np.cov(filled.T)) + self.min_covar * np.eye(X.shape[1])
        size = self.n_components
        shapes = {"spherical": np.full(size, whole.mean()), "tied": whole, "full": np.tile(whole, (size, 1, 1))}
        return begun | {"_covars_": shapes.get(self.covariance_type, np.tile(np.diag(whole), (size, 1)))}

    def _maximise_emissions(self, X: NDArray[Any], visits: Float64[Tensor, "row state"]) -> None:
        weights, gaps = visits.numpy(), np.isnan(X)
        matrices = self.covariance_type in ("full", "tied")
        if gaps.any() and matrices and "c" in self.params:
            raise InputError(
                "X: missing entries require covariance_type diag or spherical; hmmscope.fit supports all types"
            )
        process = self.process()
        shift = far_from_zero(process.means, process.spread).numpy()
        filled = np.where(gaps, 0.0, X - shift)
        total = weights.T @ (~gaps).astype(np.float64, order="C")
        if "m" in self.params:
            sums = self.means_weight * (self.means_prior - shift) + weights.T @ filled
            weight = self.means_weight + total
            self.means_ = np.divide(sums, weight, out=self.means_ - shift, where=weight > 0) + shift
        if "c" in self.params:
            away = self.means_ - self.means_prior
            found = self._matrices(X, weights, away) if matrices else self._variances(X, weights, total, away)
            self._covars_ = bounded_below(found, self.min_variance, self.means_, self.covariance_type)

    def _variances(self, X: Array, weights: Array, total: Array, away: Array) -> Array:
        rows, own, means = (torch.from_numpy(np.asarray(part, np.float64)) for part in (X, weights, self.means_))
        squares = weighted_squares(rows, own, means).numpy()
        weight = max(self.covars_weight - 1, 0) + total
        found = (self.covars_prior + self.means_weight * away**2 + squares) / np.maximum(weight, 1e-5)
        return found.mean(1) if self.covariance_type == "spherical" else found

    def _matrices(self, X: Array, weights: Array, away: Array) -> Array:
        scatters, columns = [], np.ascontiguousarray(X.T)
        for w, mean, prior in zip(np.ascontiguousarray(weights.T), self.means_, away, strict=True):
            rows = columns - mean[:, None]
            scatters.append(self.means_weight * np.outer(prior, prior) + (rows * w) @ rows.T)
        weight = max(self.covars_weight - X.shape[1], 0)
        if self.covariance_type == "tied":
            return (self.covars_prior + np.sum(scatters, 0)) / (weight + weights.sum())
        return (self.covars_prior + np.stack(scatters)) / (weight + weights.sum(0))[:, None, None]
