"""Least squares on independent windows of a known process: its exact error, and a bound.

Each demonstration gives one window x_i from the stationary distribution and its label y_i. E[y_i | x_i] = P_L(x_i) is
the best prediction from L symbols, W_L x the best linear prediction, and W_hat the least-squares solution. `regression`
defines Sigma, its smallest nonzero eigenvalue alpha, and B. Least squares and gradient descent from zero are linear in
the labels y_i:

    W^(T) x = (1/n) sum_i y_i (x_i^T f x),    f = Sigma^+ (I - (I - rate * Sigma)^T)
"""

import math
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from hmmscope import HMM, make_process, require_process_type, symmetric_channel
from hmmscope.analysis import Histories, Windows, bootstrap_means
from hmmscope.inference import fit_decay
from hmmscope.lab import MeasuredTables
from hmmscope.schema import require
from hmmscope.seeds import numpy_generator
from hmmscope_papers.constructions import LeastSquares


def sample_counts(
    windows: Windows, num_samples: int, num_draws: int, seed: int = 0
) -> Int64[Tensor, "draw window symbol"]:
    """Count how often each symbol follows each window, with windows in lexicographic order."""
    require(num_samples >= 1, "num_samples", "must be at least 1", num_samples)
    require(num_draws >= 1, "num_draws", "must be at least 1", num_draws)
    process, time = windows.process, windows.memory_length + 1
    num_symbols = process.num_symbols
    place = num_symbols ** torch.arange(time - 1, -1, -1)
    starts = np.arange(time) == 0
    counts = torch.empty(num_draws, num_symbols**time, dtype=torch.int64)
    for draw in range(num_draws):
        numbers = np.arange(draw * num_samples, (draw + 1) * num_samples)
        words = (process.sample_paths(numbers, starts, seed, "train").observations * place).sum(1)
        counts[draw] = torch.bincount(words, minlength=num_symbols**time)
    return counts.unflatten(1, (-1, num_symbols))


def counted_moments(windows: Windows, counts: Int64[Tensor, "*draw window symbol"]) -> LeastSquares:
    sizes = counts.sum((-2, -1)).flatten()
    number = int(sizes[0])
    require(number >= 1, "counts", "must contain at least one sample in each draw", number)
    require(bool((sizes == number).all()), "counts", "must contain equally many samples in each draw", sizes.tolist())
    share = counts.double() / number
    weighted = windows.features * share.sum(-1, keepdim=True)
    return LeastSquares(weighted.mT @ windows.features, share.mT @ windows.features, number)


@dataclass(frozen=True)
class ExpectedFit:
    """Mean of W x over labels, and variance E||W x - mean||^2, for each window x.

    Attributes:
        mean: Mean prediction (..., window, symbol).
        variance: Variance of the prediction (..., window).
    """

    mean: Float64[Tensor, "*draw window symbol"]
    variance: Float64[Tensor, "*draw window"]


def expected_fit(
    windows: Windows, counts: Int64[Tensor, "*draw window"], filter_FF: Float64[Tensor, "*draw feature feature"]
) -> ExpectedFit:
    """Compute the exact mean and variance over labels of W x, where W = B f.

    Args:
        windows: windows of the process.
        counts: number of occurrences of each window in the sample.
        filter_FF: matrix f, see `descent_filter`.
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
    """Return f with W^(T) = B f after `steps` steps from zero, or for least squares if `steps` is None."""
    size = problem.covariance.shape[-1]
    eye = torch.eye(size, dtype=torch.float64).expand(problem.covariance.shape)
    linear = LeastSquares(problem.covariance, eye, problem.num_samples)
    return linear.solution() if steps is None else linear.descent(steps, rate)


def expected_total(histories: Histories, windows: Windows, fit: ExpectedFit) -> Float64[Tensor, "*draw"]:
    """Return E||P - W x||^2 for exact predictions P, over histories and labels, for each draw of sample windows."""
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
    """Return a bound on the square root of E||(W_hat - W_L) x||^2 over labels, for windows x in the range of Sigma.

    sqrt((L / alpha) * (rank / n + misfit)),     misfit = (1/n) sum_i ||P_L(x_i) - W_L x_i||^2

    Proof: (W_hat - W_L) x = A Sigma^{+1/2} x with A = (W_hat - W_L) Sigma^{1/2}, E||A||^2 <= rank / n (label noise) +
    misfit (bias) and ||Sigma^{+1/2} x||^2 <= L / alpha.

    Source: [MultiTask] Theorem 1 (Appendix D) with explicit constants, for independent samples.
    """
    scale = memory_length / float(problem.alpha)
    return math.sqrt(scale * (int(problem.rank) / problem.num_samples + misfit))


@dataclass(frozen=True)
class BoundCheck:
    """Parts of an error (root mean squares) and their bounds, for one draw of samples.

    Windows outside the range of Sigma are excluded.

    Attributes:
        covered: P(window in the range of Sigma).
        total: root mean square of P - W^(T) x.
        memory, misspecification: root mean squares of P - P_L and of P_L - W_L x.
        generalisation, worst_generalisation, generalisation_bound: root mean square, maximum and bound of (W_hat - W_L)
            x.
        optimisation, worst_optimisation, optimisation_bound: those of (W_hat - W^(T)) x for the labels in the sample.
        bound: upper bound on `total`.
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
    """Compute the exact error of gradient descent on a sample, and its bound.

    ||P - W^(T) x|| <= ||P - P_L|| + ||P_L - W_L x|| + ||(W_L - W_hat) x|| + ||(W_hat - W^(T)) x||

    Source: [MultiTask] Equation 1 and Theorem 1, with explicit constants.

    Args:
        histories, windows: histories and windows of one process.
        counts: how often each window is followed by each symbol in the sample.
        steps: number of gradient steps T.
        rate: step size in (0, 1 / largest eigenvalue of Sigma].

    Raises:
        InputError: the rate is outside this range.
    """
    problem, length = counted_moments(windows, counts), windows.memory_length
    largest = float(problem.largest)
    rule = f"must be in (0, {1 / largest:g}], up to 1 / the largest eigenvalue of Sigma"
    require(0 < rate <= (1 + 1e-12) / largest, "rate", rule, rate)
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
        optimisation_bound=float(problem.optimisation_bound(length, steps, rate)),
        bound=memory + misspecification + math.sqrt(covered) * (sample_bound + steps_bound),
    )


def _root(square: Tensor) -> float:
    return math.sqrt(float(square))


# ---------------------------------------------------------------------------------------------------------------------
# Measurements of processes

#: Memory length in the instances with fitted rates.
FITTED_MEMORY = 2
#: Errors between which the decay over gradient steps is fitted, as it is geometric there and above rounding.
FITTED_ERRORS = (1e-11, 1e-6)


def reference_process(noise: float = 0.4) -> HMM:
    left = np.array([[0.9, 0.1], [0.8, 0.2], [0.2, 0.8], [0.1, 0.9]])
    right = np.array([[0.55, 0.30, 0.10, 0.05], [0.05, 0.10, 0.30, 0.55]])
    return HMM([0.3, 0.2, 0.2, 0.3], left @ right, symmetric_channel(4, 1 - noise))


def _instances(sizes: dict[str, Any]) -> list[tuple[str, HMM]]:
    found = [("reference", reference_process())]
    for seed in range(sizes["instances"]):
        low_rank = make_process(
            "low-rank-hmm",
            num_states=4,
            num_symbols=4,
            rank=2,
            observability=0.6,
            seed=seed,
            transition_concentration=0.3,
        )
        found.append((f"seed {seed}", require_process_type(low_rank, HMM)))
    return found


def part_rows(sizes: dict[str, Any]) -> list[dict]:
    hmm, rows = reference_process(), []
    histories = Histories.all(hmm, sizes["histories"])
    for length in sizes["memory_lengths"]:
        windows = Windows.all(hmm, length)
        for number in sizes["samples"]:
            counts = sample_counts(windows, number, sizes["draws"])
            problem = counted_moments(windows, counts)
            for steps in [*sizes["steps"], None]:
                weights = problem.solution() if steps is None else problem.descent(steps, 1 / length)
                parts = histories.decompose(windows, weights)
                fit = expected_fit(windows, counts.sum(-1), descent_filter(problem, steps, 1 / length))
                mean, low, high = (float(x) for x in bootstrap_means(parts.total.numpy()))
                rows.append(
                    {
                        "memory_length": length,
                        "samples": number,
                        "steps": "all" if steps is None else steps,
                        "total": mean,
                        "low": low,
                        "high": high,
                        "memory": parts.memory,
                        "misspecification": parts.misspecification,
                        "estimation": float(parts.estimation.mean()),
                        "expected": float(expected_total(histories, windows, fit).mean()),
                        "gap": float((parts.gap.abs() / parts.total).max()),
                        "draws": parts.total.tolist(),
                    }
                )
    return rows


def instance_rows(sizes: dict[str, Any]) -> list[dict]:
    rows = []
    for label, hmm in _instances(sizes):
        histories, windows = Histories.all(hmm, sizes["histories"]), Windows.all(hmm, FITTED_MEMORY)
        counts = sample_counts(windows, 1000, 1)
        parts = histories.decompose(windows, counted_moments(windows, counts).solution())
        names = {"instance": label, "memory": parts.memory, "misspecification": parts.misspecification}
        rows.append(
            names
            | {
                "estimation": float(parts.estimation[0]),
                "total": float(parts.total[0]),
                "gap": float((parts.gap.abs() / parts.total).max()),
            }
        )
    return rows


def scaling_tables(sizes: dict[str, Any]) -> MeasuredTables:
    numbers, rows, slopes = sizes["scaling_samples"], [], []
    for i, (label, hmm) in enumerate(_instances(sizes)):
        histories, windows = Histories.all(hmm, FITTED_MEMORY), Windows.all(hmm, FITTED_MEMORY)
        errors = np.empty((sizes["scaling_draws"], len(numbers)))
        for j, number in enumerate(numbers):
            counts = sample_counts(windows, number, sizes["scaling_draws"], seed=100 * i + j)
            weights = counted_moments(windows, counts).solution()
            errors[:, j] = histories.decompose(windows, weights).estimation.numpy()
        mean, low, high = bootstrap_means(errors)
        for j, number in enumerate(numbers):
            rows.append(
                {
                    "instance": label,
                    "samples": number,
                    "estimation": float(mean[j]),
                    "low": float(low[j]),
                    "high": float(high[j]),
                    "predicted": windows.noise * windows.rank / number,
                }
            )
        slope = float(np.polyfit(np.log(numbers), np.log(mean) / 2, 1)[0])
        ratio = float((mean * numbers).mean() / (windows.noise * windows.rank))
        slopes.append({"instance": label, "slope": slope, "ratio": ratio})
    return {"scaling": rows, "slopes": slopes}


def convergence_tables(sizes: dict[str, Any]) -> MeasuredTables:
    rows, rates = [], []
    length, rate = FITTED_MEMORY, 1 / FITTED_MEMORY
    for label, hmm in _instances(sizes):
        windows = Windows.all(hmm, length)
        counts = sample_counts(windows, 1000, 1)[0]
        problem = counted_moments(windows, counts)
        covered = problem.in_range(windows.features)
        alpha, norm = float(problem.alpha), float(torch.linalg.matrix_norm(problem.solution(), ord=2))
        last = math.ceil(math.log(FITTED_ERRORS[0]) / math.log1p(-rate * alpha))
        curve: list[dict] = []
        for steps in range(0, last + 1, max(1, last // 60)):
            rest = windows.features @ (problem.solution() - problem.descent(steps, rate)).T
            square = rest.square().sum(1)
            curve.append(
                {
                    "instance": label,
                    "steps": steps,
                    "error": math.sqrt(float(windows.probability[covered] @ square[covered])),
                    "worst": math.sqrt(float(square[covered].max())),
                    "bound": math.sqrt(length) * norm * (1 - rate * alpha) ** steps,
                }
            )
        rows += curve
        fitted = [row for row in curve if FITTED_ERRORS[0] <= row["error"] <= FITTED_ERRORS[1]]
        decay = fit_decay([row["steps"] for row in fitted], [row["error"] for row in fitted], first=fitted[0]["steps"])
        stated = -math.log1p(-rate * alpha)
        rates.append({"instance": label, "rate": decay.rate, "stated": stated, "ratio": decay.rate / stated})
    return {"convergence": rows, "rates": rates}


def bound_row(number: int) -> dict:
    rng = numpy_generator(0, "bound-instance", number)
    states, symbols, length = int(rng.integers(2, 6)), int(rng.integers(2, 5)), int(rng.integers(1, 4))
    concentrations = {
        f"{matrix}_concentration": float(rng.choice([0.1, 0.3, 1.0])) for matrix in ("transition", "emission")
    }
    hmm = require_process_type(
        make_process("random-hmm", num_states=states, num_symbols=symbols, seed=number, **concentrations), HMM
    )
    samples, steps = round(math.exp(rng.uniform(math.log(10), math.log(10_000)))), int(rng.integers(0, 200))
    windows = Windows.all(hmm, length)
    counts = sample_counts(windows, samples, 1, seed=number)[0]
    problem = counted_moments(windows, counts)
    rate = float(rng.uniform(0.1, 1.0) / problem.largest)
    checked = check_bound(Histories.all(hmm, length + 2), windows, counts, steps, rate)
    sizes = {"states": states, "symbols": symbols, "memory_length": length, "samples": samples, "steps": steps}
    parts = {part.metadata.get("stored", part.name): getattr(checked, part.name) for part in fields(checked)}
    return {"instance": number} | sizes | parts | _covariance(windows, counts)


def _covariance(windows: Windows, counts: torch.Tensor) -> dict:
    problem = counted_moments(windows, counts)
    covered = problem.in_range(windows.features)
    sums = (windows.features[covered] @ problem.solution().T).sum(1)
    features, num_symbols = windows.features.shape[1], windows.next_observation.shape[1]
    return {
        "features": features,
        "rank": int(problem.rank),
        "largest_rank": windows.memory_length * (num_symbols - 1) + 1,
        "zero_eigenvalues": features - int(problem.rank),
        "smallest_nonzero": float(problem.alpha),
        "largest": float(problem.largest),
        "sum_error": float((sums - 1).abs().max()),
    }
