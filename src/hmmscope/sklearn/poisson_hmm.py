"""HMM estimator with Poisson emissions."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.utils import Tags

from hmmscope.axes import Float64, Tensor
from hmmscope.emissions.poisson import PoissonHMM as PoissonProcess
from hmmscope.errors import InputError
from hmmscope.inference.constraints import Constraints
from hmmscope.sklearn.encoded import Array
from hmmscope.sklearn.vector_estimator import RealValuedHMM


class PoissonHMM(RealValuedHMM):
    """HMM with Poisson emissions, a replacement for `hmmlearn.hmm.PoissonHMM`.

    lambda_i = (lambdas_prior + n mean_i) / (lambdas_weight + n),   mean_i = sum_t w_ti x_t / sum_t w_ti,
    w_ti = P(state t = i | X),   n = number of rows of X

    Source: Zucchini, MacDonald and Langrock (2016); interface and prior of hmmlearn 0.3.

    Args:
        n_components: Number of states S.
        startprob_prior, transmat_prior: Concentrations of Dirichlet priors; 1 means no prior.
        lambdas_prior, lambdas_weight: Parameters of the prior of rates, as in the formula.
        algorithm, random_state, n_iter, tol, verbose, implementation, n_init, constraints: See `CategoricalHMM`.
        params, init_params: See `CategoricalHMM`, with "l" (mean counts) instead of "e".

    Attributes:
        startprob_, transmat_, monitor_: See `CategoricalHMM`.
        lambdas_: Mean counts of each state (S, feature).
    """

    parts = RealValuedHMM.parts | {"l": "lambdas_"}
    arrays = {"rates": "lambdas_"}
    lambdas_: Array
    lambdas_prior: Any
    lambdas_weight: Any

    def __init__(
        self,
        n_components: int = 1,
        startprob_prior: Any = 1.0,
        transmat_prior: Any = 1.0,
        lambdas_prior: Any = 0.0,
        lambdas_weight: Any = 0.0,
        algorithm: str = "viterbi",
        random_state: Any = None,
        n_iter: int = 10,
        tol: float = 1e-2,
        verbose: bool = False,
        params: str = "stl",
        init_params: str = "stl",
        implementation: str = "log",
        n_init: int = 1,
        constraints: Constraints | None = None,
    ) -> None:
        self._take(locals())

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.positive_only = True
        return tags

    def process(self) -> PoissonProcess:
        return PoissonProcess(self.startprob_, self.transmat_, self.lambdas_)

    def _check_emissions(self) -> None:
        self.lambdas_ = np.atleast_2d(self.lambdas_)
        super()._check_emissions()

    def _read(self, X: Any, *, fitting: bool) -> Array:
        found = super()._read(X, fitting=fitting)
        PoissonProcess.checked(torch.from_numpy(found))
        return found

    def _begin_emissions(self, X: NDArray[Any], random: np.random.RandomState) -> dict[str, Array]:
        mean, variance, shape = np.nanmean(X), np.nanvar(X), (self.n_components, X.shape[1])
        if not mean and not np.any(self.lambdas_prior):
            raise InputError("X: every count is 0, but a Poisson rate must be positive; set lambdas_prior")
        if not variance:  # all counts are equal
            return {"lambdas_": np.full(shape, mean or 1e-300)}
        return {"lambdas_": random.gamma(shape=mean**2 / variance, scale=variance / mean, size=shape)}

    def _maximise_emissions(self, X: NDArray[Any], visits: Float64[Tensor, "row state"]) -> None:
        if "l" in self.params:
            weights, gaps = visits.numpy(), np.isnan(X)
            total, count = weights.T @ (~gaps).astype(np.float64), weights.sum()
            sums = weights.T @ np.where(gaps, 0.0, X)
            mean = np.divide(sums, total, out=np.array(self.lambdas_, np.float64), where=total > 0)
            self.lambdas_ = np.maximum((self.lambdas_prior + count * mean) / (self.lambdas_weight + count), 1e-300)
