"""The Kalman filter."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import repeat
from typing import Any, Protocol, runtime_checkable

import torch

from hmmscope.axes import Bool, Float64, Tensor
from hmmscope.errors import InputError
from hmmscope.processes.capabilities import ObserverOutput
from hmmscope.processes.observations import Observations, as_vectors
from hmmscope.reprs import Shown
from hmmscope.schema import refuse_masked, require, shown

#: Relative rounding error of products of covariances, at most.
ROUNDING = 2.0**-42


@runtime_checkable
class LinearSystem(Protocol):
    """The matrices of a linear system with Gaussian noise."""

    num_states: int
    num_symbols: int
    initial: Float64[Tensor, " state"]
    transition: Float64[Tensor, "state state"]
    output: Float64[Tensor, "observed state"]
    state_noise: Float64[Tensor, "state state"]
    output_noise: Float64[Tensor, "observed observed"]


@dataclass(frozen=True, repr=False)
class KalmanResult(Shown):
    """Filtered states and predictions after each observation.

    Attributes:
        means: E[state t | o_0..o_t] (batch, time, state).
        covariances: Cov[state t | o_0..o_t].
        predicted_observation: E[o_t | o_0..o_{t-1}].
        next_observation: E[o_{t+1} | o_0..o_t].
        innovation_covariances: Cov[o_t | o_0..o_{t-1}].
        log_likelihood_terms: log density of the observed part of o_t given the past (batch, time), nats.
        log_likelihood: sum of `log_likelihood_terms` over time (batch,).
    """

    means: Float64[Tensor, "batch time state"]
    covariances: Float64[Tensor, "batch time state state"]
    predicted_observation: Float64[Tensor, "batch time observed"]
    next_observation: Float64[Tensor, "batch time observed"]
    innovation_covariances: Float64[Tensor, "batch time observed observed"]
    log_likelihood_terms: Float64[Tensor, "batch time"]
    log_likelihood: Float64[Tensor, " batch"]


@dataclass(frozen=True, repr=False)
class KalmanStep(Shown):
    """The gain and covariances of a filter step, which do not depend on observed values.

    Attributes:
        innovation_covariance: Cov[o_t | o_0..o_{t-1}].
        gain: Kalman gain (state, observed).
        covariance: Cov[state t | o_0..o_t].
    """

    innovation_covariance: Float64[Tensor, "observed observed"]
    gain: Float64[Tensor, "state observed"]
    covariance: Float64[Tensor, "state state"]


def kalman_steps(
    process: LinearSystem,
    covariance: Float64[Tensor, "state state"],
    seen_TY: Bool[Tensor, "time observed"] | None = None,
) -> Iterator[KalmanStep]:
    """Yield the gain and covariances of each step, given transition A, output B and the initial state covariance P.

    predicted = A P A^T + state_noise;  S = B predicted B^T + output_noise;  gain K = predicted B^T S^-1;
    P = (1 - K B) predicted (1 - K B)^T + K output_noise K^T   (Joseph's form)
    """
    transition, output, noise = process.transition, process.output, process.output_noise
    eye, rounding = torch.eye(process.num_states, dtype=torch.float64), no_rounding(noise, covariance)
    for time, seen_Y in enumerate(repeat(None) if seen_TY is None else seen_TY):
        predicted = transition @ covariance @ transition.T + process.state_noise
        rounding = pushed(rounding, transition, covariance, process.state_noise)
        innovation = even(output @ predicted @ output.T + noise)
        error = pushed(rounding, output, predicted, noise)
        gain = _gain(output @ predicted, innovation, error, seen_Y, time)
        left = eye - gain @ output
        covariance = even(left @ predicted @ left.T + gain @ noise @ gain.T)
        rounding = pushed(rounding, left, predicted, covariance + ROUNDING * predicted)
        yield KalmanStep(innovation, gain, covariance)


def even(matrices: Tensor) -> Tensor:
    return (matrices + matrices.mT) / 2


def _gain(cross: Tensor, innovation: Tensor, error: Tensor, seen_Y: Tensor | None, time: int) -> Tensor:
    if seen_Y is None or bool(seen_Y.all()):
        return torch.cholesky_solve(cross, cholesky(innovation, error, time)).T
    gain = torch.zeros_like(cross.T)
    if bool(seen_Y.any()):
        error = error[seen_Y][:, seen_Y] if len(error) else error
        factor = cholesky(innovation[seen_Y][:, seen_Y], error, time)
        gain[:, seen_Y] = torch.cholesky_solve(cross[seen_Y], factor).T
    return gain


def cholesky(innovation: Tensor, error: Tensor, time: int) -> Tensor:
    """Return the Cholesky factor of an innovation's covariance; refuse one that `error` could make singular."""
    factor, failed = torch.linalg.cholesky_ex(innovation)
    if error.shape[-1]:
        failed = torch.linalg.cholesky_ex(innovation - error)[1]
    if bool(failed.any()):
        raise InputError(
            f"output_noise: the covariance of observation {time} given the earlier ones is singular or infinite, up to "
            "rounding; increase output_noise, or remove states that grow unobserved"
        )
    return factor


def no_rounding(noise: Tensor, covariance: Tensor) -> Tensor:
    """Return the rounding error of a given covariance, 0; without rows if it is not needed, for definite `noise`."""
    certain = noise * (1 - ROUNDING * torch.eye(noise.shape[-1], dtype=noise.dtype))
    return torch.zeros_like(covariance) if bool(torch.linalg.cholesky_ex(certain)[1].any()) else covariance[..., :0, :0]


def pushed(rounding: Tensor, matrix: Tensor, covariance: Tensor, noise: Tensor) -> Tensor:
    """Bound the rounding error of matrix @ covariance @ matrix^T + noise, given that of `covariance`."""
    if not rounding.shape[-1]:
        return covariance[..., :0, :0]
    widths = covariance.diagonal(dim1=-2, dim2=-1).clamp_min(0).sqrt()
    size = (matrix.abs() @ widths[..., None])[..., 0].square() + noise.diagonal(dim1=-2, dim2=-1)
    return matrix @ rounding @ matrix.mT + ROUNDING * torch.diag_embed(size)


def kalman_filter(
    process: LinearSystem, observations: Observations, *, initial: object = None, initial_covariance: object = None
) -> KalmanResult:
    """Compute the mean and covariance of the state after each observation.

    predict: mean = A mean;  update: mean = mean + K (o_t - B mean)   with A, B, K of `kalman_steps`

    Source: Kalman (1960); [Limits] Appendix C for RanLDS.

    Args:
        process: linear system with n state coordinates and m observed coordinates.
        observations: vectors (batch, time, m) or (time, m), with NaN for missing entries.
        initial: state mean before time 0, (n,) or (batch, n) (default: that of `process`).
        initial_covariance: state covariance before time 0 (n, n) (default: zero).

    Raises:
        InputError: the process is not a linear system, a shape is wrong, a number is infinite, or the earlier observations
            determine a coordinate of an observation (up to rounding).

    Cost: O(patterns * time * (n + m)^3 + batch * time * n * (n + m)) for `patterns` distinct masks of missing entries.
    """
    if not isinstance(process, LinearSystem):
        raise InputError(f"process: must be a linear system with Gaussian noise, got {shown(process)}")
    observations = as_vectors(observations, process.num_symbols, read_options=getattr(process, "read_options", None))[0]
    batch, time = observations.shape[:2]
    size = process.num_states
    refuse_masked("initial", initial)
    refuse_masked("initial_covariance", initial_covariance)
    mean = torch.as_tensor(process.initial if initial is None else initial).to(torch.float64)
    if mean.shape not in ((size,), (batch, size)):
        raise InputError(f"initial: must have shape ({size},) or ({batch}, {size}), got {tuple(mean.shape)}")
    covariance = torch.zeros(size, size, dtype=torch.float64)
    if initial_covariance is not None:
        covariance = torch.as_tensor(initial_covariance).to(torch.float64)
        require(covariance.shape == (size, size), "initial_covariance", f"must be {size} x {size}", covariance.shape)
    mean = mean.expand(batch, size)
    seen_BTY = ~observations.isnan()
    patterns, which_B = seen_BTY[:1], torch.zeros(batch, dtype=torch.int64)
    if not bool(seen_BTY.all()):
        patterns, which_B = seen_BTY.unique(dim=0, return_inverse=True)
    means = torch.empty(batch, time, size, dtype=torch.float64)
    predicted, terms_BT = torch.empty_like(observations), torch.empty(batch, time, dtype=torch.float64)
    steps = []
    for number, seen_TY in enumerate(patterns):
        steps.append(list(kalman_steps(process, covariance, seen_TY)))
        rows = which_B == number
        found = _followed(process, observations[rows], mean[rows], steps[-1], seen_TY)
        means[rows], predicted[rows], terms_BT[rows] = found
    return KalmanResult(
        means=means,
        covariances=_of_each(steps, "covariance", which_B, size),
        predicted_observation=predicted,
        next_observation=means @ (process.output @ process.transition).T,
        innovation_covariances=_of_each(steps, "innovation_covariance", which_B, process.num_symbols),
        log_likelihood_terms=terms_BT,
        log_likelihood=terms_BT.sum(1),
    )


def by_parts(
    filtered: Callable[[Tensor], Any], observations: Tensor, reset_mask: object, **probs: str
) -> ObserverOutput:
    """Filter the sequences between starts; `probs` names the fields of distributions."""
    refuse_masked("starts", reset_mask)
    begins = [] if reset_mask is None else torch.as_tensor(reset_mask).nonzero()[1:, 0].tolist()
    parts = [filtered(part) for part in observations.tensor_split(begins, 1)]

    def joined(name: str) -> Tensor:
        return torch.cat([getattr(part, name) for part in parts], 1)

    return ObserverOutput(
        joined("predicted_observation"),
        joined("next_observation"),
        joined("log_likelihood_terms"),
        {key: joined(name) for key, name in probs.items()},
        {"mean": joined("means"), "covariance": joined("covariances")},
    )


def _followed(
    process: LinearSystem,
    observations: Float64[Tensor, "batch time observed"],
    mean: Float64[Tensor, "batch state"],
    steps: list[KalmanStep],
    seen_TY: Bool[Tensor, "time observed"],
) -> tuple[Tensor, Tensor, Tensor]:
    means = torch.empty(*observations.shape[:2], process.num_states, dtype=torch.float64)
    predicted, terms_BT = torch.empty_like(observations), torch.empty(observations.shape[:2], dtype=torch.float64)
    for t, (step, seen_Y) in enumerate(zip(steps, seen_TY, strict=True)):
        mean = mean @ process.transition.T
        predicted[:, t] = mean @ process.output.T
        innovation = observations[:, t] - predicted[:, t]
        if not bool(seen_Y.all()):
            innovation = innovation.masked_fill(~seen_Y, 0.0)
        mean = mean + innovation @ step.gain.T
        means[:, t] = mean
        terms_BT[:, t] = _log_density(innovation[:, seen_Y], step.innovation_covariance[seen_Y][:, seen_Y])
    return means, predicted, terms_BT


def _of_each(steps: list[list[KalmanStep]], name: str, which_B: Tensor, size: int) -> Tensor:
    none = torch.zeros(0, size, size, dtype=torch.float64)
    each = [torch.cat([none, *(getattr(step, name)[None] for step in own)]) for own in steps]
    return torch.stack(each or [none])[which_B] if len(each) != 1 else each[0].expand(len(which_B), -1, -1, -1)


def check_vectors(observations: Float64[Tensor, "batch time observed"], size: int) -> None:
    if observations.ndim != 3 or observations.shape[2] != size:
        raise InputError(f"observations: must have shape (batch, time, {size}), got {tuple(observations.shape)}")
    bad = ~observations.isfinite()
    if bool(bad.any()):
        b, t, _ = bad.nonzero()[0].tolist()
        raise InputError(f"observations[{b}, {t}]: must be finite")


def _log_density(innovation: Float64[Tensor, "batch observed"], covariance: Tensor) -> Float64[Tensor, " batch"]:
    factor = torch.linalg.cholesky(covariance)
    scaled = torch.linalg.solve_triangular(factor, innovation.T, upper=False)
    log_determinant = 2 * factor.diagonal().log().sum()
    return -0.5 * (scaled.square().sum(0) + log_determinant + len(covariance) * math.log(2 * math.pi))


def steady_step(process: LinearSystem, *, tolerance: float = 1e-14, max_steps: int = 100_000) -> KalmanStep:
    covariance = torch.zeros(process.num_states, process.num_states, dtype=torch.float64)
    for step, _ in zip(kalman_steps(process, covariance), range(max_steps), strict=False):
        change = float((step.covariance - covariance).abs().max())
        if change <= tolerance * (1 + float(step.covariance.abs().max())):
            return step
        covariance = step.covariance
    raise InputError(
        f"process: the Kalman gain did not converge in {max_steps} steps; does an unobserved part of the state diverge?"
    )


def forgetting_factor(process: LinearSystem) -> float:
    """Compute the spectral radius of (1 - gain @ output) @ transition for the steady gain.

    In the long run each step multiplies an error in the mean by this factor. For orthogonal matrices and unit noise
    it is 1 - 1 / golden ratio.
    """
    left = torch.eye(process.num_states, dtype=torch.float64) - steady_step(process).gain @ process.output
    return float(torch.linalg.eigvals(left @ process.transition).abs().max())
