"""Least squares on independent windows of a known process: what its error is exactly, and a bound on it.

One window of each demonstration, started from the stationary law, so that samples (x_i, y_i) are independent and
E[y_i | x_i] = P_L(x_i). Least squares and gradient descent from zero are linear in the labels y_i:

    W^(T) x = (1/n) sum_i y_i (x_i^T f x),    f = Sigma^+ (1 - (1 - rate * Sigma)^T)

so that, given the windows, mean and variance over labels are sums over windows and nothing has to be sampled.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch

from hmmscope.analysis.decomposition import Histories, Windows, stationary_start
from hmmscope.axes import Float64, Int64, Tensor
from hmmscope.constructions.least_squares import LeastSquares, optimisation_bound
from hmmscope.processes.hmm import HMM
from hmmscope.processes.labelled import LabelledHMM
from hmmscope.schema import require


def sample_counts(
    hmm: HMM | LabelledHMM, memory_length: int, num_samples: int, num_draws: int, seed: int = 0
) -> Int64[Tensor, "draw window symbol"]:
    """How often each window is followed by each symbol in `num_samples` demonstrations of memory_length + 1 symbols.

    Windows in lexicographic order, oldest symbol first. Demonstration i of draw d is sample d * num_samples + i of the
    stream "train" of `seed`.
    """
    require(num_samples >= 1, "num_samples", "must be at least 1", num_samples)
    require(num_draws >= 1, "num_draws", "must be at least 1", num_draws)
    process, num_symbols, time = stationary_start(hmm), hmm.num_symbols, memory_length + 1
    place = num_symbols ** torch.arange(time - 1, -1, -1)
    starts = np.arange(time) == 0
    counts = torch.empty(num_draws, num_symbols**time, dtype=torch.int64)
    for draw in range(num_draws):
        numbers = np.arange(draw * num_samples, (draw + 1) * num_samples)
        words = (process.sample_paths(numbers, starts, seed, "train").observations * place).sum(1)
        counts[draw] = torch.bincount(words, minlength=num_symbols**time)
    return counts.unflatten(1, (num_symbols**memory_length, num_symbols))


def counted_moments(windows: Windows, counts: Int64[Tensor, "*draw window symbol"]) -> LeastSquares:
    """The regression problem of samples given by their counts; leading axes are independent data sets of equal size."""
    sizes = counts.sum((-2, -1)).flatten()
    number = int(sizes[0])
    require(number >= 1, "counts", "must hold a sample", number)
    require(bool((sizes == number).all()), "counts", "must hold equally many samples in each draw", sizes.tolist())
    share = counts.double() / number
    weighted = windows.features * share.sum(-1, keepdim=True)
    return LeastSquares(weighted.mT @ windows.features, share.mT @ windows.features, number)


@dataclass(frozen=True)
class ExpectedFit:
    """W x for each window x, over the labels: its mean, and E||W x - mean||^2.

    Attributes:
        mean: (..., window, symbol).
        variance: (..., window).
    """

    mean: Float64[Tensor, "*draw window symbol"]
    variance: Float64[Tensor, "*draw window"]


def expected_fit(
    windows: Windows, counts: Int64[Tensor, "*draw window"], filter_FF: Float64[Tensor, "*draw feature feature"]
) -> ExpectedFit:
    """Mean and variance over labels of W = B f, for given sample windows: exact, nothing is drawn.

    The label of a window has mean P_L and variance 1 - ||P_L||^2, as the one-hot of a draw from P_L.

    Args:
        windows: of the process.
        counts: how often each window is in the sample.
        filter_FF: f, see `descent_filter`.
    """
    kernel_NN = windows.features @ filter_FF @ windows.features.T
    number = counts.sum(-1, keepdim=True).double()
    share_N = counts.double() / number
    noise_N = 1 - windows.next_observation.square().sum(1)
    return ExpectedFit(
        mean=kernel_NN @ (share_N[..., None] * windows.next_observation),
        variance=(kernel_NN.square() @ (share_N * noise_N)[..., None])[..., 0] / number,
    )


def descent_filter(problem: LeastSquares, steps: int | None, rate: float) -> Float64[Tensor, "*draw feature feature"]:
    """f with W^(T) = B f after `steps` steps from zero; the pseudo-inverse of Sigma, least squares, for None."""
    size = problem.covariance.shape[-1]
    eye = torch.eye(size, dtype=torch.float64).expand(problem.covariance.shape)
    linear = LeastSquares(problem.covariance, eye, problem.num_samples)
    return linear.solution() if steps is None else linear.descent(steps, rate)


def expected_total(histories: Histories, windows: Windows, fit: ExpectedFit) -> Float64[Tensor, "*draw"]:
    """E||P - W x||^2 over histories and labels, for each draw of sample windows."""
    number_H = histories.windows(windows.memory_length)
    shape = fit.variance.shape[:-1]
    means = fit.mean.reshape(-1, *fit.mean.shape[-2:])
    variances = fit.variance.reshape(-1, fit.variance.shape[-1])
    totals = [
        histories.probability
        @ ((histories.next_observation - mean_NV[number_H]).square().sum(1) + variance_N[number_H])
        for mean_NV, variance_N in zip(means, variances, strict=True)
    ]
    return torch.stack(totals).reshape(shape)


def generalisation_bound(problem: LeastSquares, memory_length: int, misfit: float) -> float:
    """Bound on the root of E||(W_hat - W_L) x||^2 over labels, for every window x in the range of Sigma.

    sqrt((L / alpha_+) * (rank / n + misfit)),     misfit = (1/n) sum_i ||P_L(x_i) - W_L x_i||^2

    With b_i = P_L(x_i) - W_L x_i and label noise e_i, (W_hat - W_L) x = (1/n) sum_i (e_i + b_i) x_i^T Sigma^+ x. The noise
    has mean zero, so that its part and that of b add in square. ||Sigma^{+1/2} x||^2 <= L / alpha_+; the mean square of
    (1/n) sum_i e_i x_i^T Sigma^{+1/2} is (1/n^2) sum_i E||e_i||^2 x_i^T Sigma^+ x_i <= rank / n; and with b in place of e
    it is at most (1/n) sum_i ||b_i||^2, because the rows x_i^T Sigma^{+1/2} / sqrt(n) form a partial isometry.

    Source: the generalisation error of [MultiTask] Theorem 1 (Appendix D) with explicit constants, for independent samples.
    """
    scale = memory_length / float(problem.alpha)
    return math.sqrt(scale * (int(problem.rank) / problem.num_samples + misfit))


@dataclass(frozen=True)
class BoundCheck:
    """Norms of the parts of an error beside their bounds, for one draw of samples.

    Root mean squares are over histories whose window lies in the range of Sigma; `worst` is over such windows.

    Attributes:
        covered: P(window in the range of Sigma).
        total: of P - W^(T) x, labels included in the mean.
        memory, misspecification: of P - P_L and of P_L - W_L x.
        generalisation, worst_generalisation, generalisation_bound: of (W_hat - W_L) x, labels included in the mean.
        optimisation, worst_optimisation, optimisation_bound: of (W_hat - W^(T)) x for the labels that were drawn.
        bound: on `total`.
    """

    covered: float
    total: float
    memory: float
    misspecification: float
    generalisation: float
    worst_generalisation: float
    generalisation_bound: float
    optimisation: float
    worst_optimisation: float
    optimisation_bound: float
    bound: float


def check_bound(
    histories: Histories, windows: Windows, counts: Int64[Tensor, "window symbol"], steps: int, rate: float
) -> BoundCheck:
    """The exact error of gradient descent on a sample, and the bound on it.

    ||P - W^(T) x|| <= ||P - P_L|| + ||P_L - W_L x|| + ||(W_L - W_hat) x|| + ||(W_hat - W^(T)) x||

    The first two are what they are; the third has `generalisation_bound`; the last is at most
    sqrt(L / alpha_+) (1 - rate * alpha_+)^T whatever the labels, and with their W_hat `optimisation_bound`.

    Source: [MultiTask] Eq. (1) and Theorem 1, with explicit constants.

    Args:
        histories: of the same process.
        windows: of the same process.
        counts: the sample.
        steps: T.
        rate: in (0, 1 / largest eigenvalue of Sigma].

    Raises:
        InputError: a rate outside this range.
    """
    problem, length = counted_moments(windows, counts), windows.memory_length
    largest = float(problem.largest)
    require(0 < rate <= (1 + 1e-12) / largest, "rate", f"must be in (0, {1 / largest:g}]", rate)
    number_H, covered_N = histories.windows(length), problem.in_range(windows.features)
    kept_H = histories.probability * covered_N[number_H]
    kept_N = torch.zeros(len(covered_N), dtype=torch.float64).index_add(0, number_H, kept_H)
    windows_N = counts.sum(1)
    share_N = windows_N.double() / problem.num_samples

    last = expected_fit(windows, windows_N, descent_filter(problem, None, rate))
    final = expected_fit(windows, windows_N, descent_filter(problem, steps, rate))
    exact_HV = histories.next_observation
    memory_H = (exact_HV - windows.next_observation[number_H]).square().sum(1)
    total_H = (exact_HV - final.mean[number_H]).square().sum(1) + final.variance[number_H]
    sample_N = (last.mean - windows.linear_prediction).square().sum(1) + last.variance
    rest_N = (windows.features @ (problem.solution() - problem.descent(steps, rate)).T).square().sum(1)

    memory, misspecification = _root(kept_H @ memory_H), _root(kept_N @ windows.misfit)
    sample_bound = generalisation_bound(problem, length, float(share_N @ windows.misfit))
    alpha, covered = float(problem.alpha), float(kept_H.sum())
    steps_bound = math.sqrt(length / alpha) * (1 - rate * alpha) ** steps
    return BoundCheck(
        covered=covered,
        total=_root(kept_H @ total_H),
        memory=memory,
        misspecification=misspecification,
        generalisation=_root(kept_N @ sample_N),
        worst_generalisation=_root(sample_N[covered_N].max()),
        generalisation_bound=sample_bound,
        optimisation=_root(kept_N @ rest_N),
        worst_optimisation=_root(rest_N[covered_N].max()),
        optimisation_bound=float(optimisation_bound(problem, length, steps, rate)),
        bound=memory + misspecification + math.sqrt(covered) * (sample_bound + steps_bound),
    )


def _root(square: Tensor) -> float:
    return math.sqrt(float(square))
