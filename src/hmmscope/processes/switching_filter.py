"""The filter of switching linear systems."""

import math
from dataclasses import dataclass, fields, replace
from typing import Protocol, runtime_checkable

import torch

from hmmscope.axes import Bool, Float64, Tensor
from hmmscope.errors import InputError
from hmmscope.processes.kalman import ROUNDING, cholesky, even, no_rounding, pushed
from hmmscope.processes.observations import Observations, as_vectors
from hmmscope.reprs import Shown
from hmmscope.schema import require, shown


@runtime_checkable
class SwitchingSystem(Protocol):
    """The matrices of a switching linear system with K modes."""

    num_states: int
    num_symbols: int
    num_kept: int
    mode_initial: Float64[Tensor, " mode"]
    mode_transition: Float64[Tensor, "mode next_mode"]
    initial: Float64[Tensor, " state"]
    transition: Float64[Tensor, "mode state state"]
    output: Float64[Tensor, "mode observed state"]
    state_noise: Float64[Tensor, "mode state state"]
    output_noise: Float64[Tensor, "mode observed observed"]


@dataclass(frozen=True, repr=False)
class SwitchingResult(Shown):
    """Filtered modes and states after each observation.

    Attributes:
        mode_beliefs: P(mode_t | o_0..o_t) (batch, time, mode).
        means, covariances: mean and covariance of the state given o_0..o_t.
        predicted_observation, next_observation: E[o_t | o_0..o_{t-1}] and E[o_{t+1} | o_0..o_t].
        log_likelihood_terms: log density of o_t given the past (batch, time), nats.
        log_likelihood: sum of `log_likelihood_terms` over time (batch,).
        num_exact: number of first observations with exact results.
        error: absolute change of `log_likelihood` (batch,) with K times fewer Gaussians, usually an upper bound of its
            error; None if not requested.
    """

    mode_beliefs: Float64[Tensor, "batch time mode"]
    means: Float64[Tensor, "batch time state"]
    covariances: Float64[Tensor, "batch time state state"]
    predicted_observation: Float64[Tensor, "batch time observed"]
    next_observation: Float64[Tensor, "batch time observed"]
    log_likelihood_terms: Float64[Tensor, "batch time"]
    log_likelihood: Float64[Tensor, " batch"]
    num_exact: int
    error: Float64[Tensor, " batch"] | None


@dataclass(frozen=True)
class _Gaussians:
    weights: Float64[Tensor, "batch gaussian"]
    means: Float64[Tensor, "batch gaussian state"]
    covariances: Float64[Tensor, "batch gaussian state state"]
    rounding: Float64[Tensor, "batch gaussian row row"]

    def merged(self, groups: int) -> "_Gaussians":
        weights, means, covariances, rounding = (
            getattr(self, one.name).unflatten(1, (-1, groups)) for one in fields(self)
        )
        total = weights.logsumexp(1)
        share = (weights - total[:, None]).exp().nan_to_num(0.0)  # impossible Gaussians
        mean = (share[..., None] * means).sum(1)
        apart = means - mean[:, None]
        spread = covariances + apart[..., :, None] * apart[..., None, :]
        return _Gaussians(total, mean, *((share[..., None, None] * part).sum(1) for part in (spread, rounding)))


def num_apart(modes: int, kept: int) -> int:
    return 1 if modes == 1 else next(n for n in range(63, 0, -1) if modes**n <= kept)


def switching_filter(
    process: SwitchingSystem, observations: Observations, *, num_kept: int | None = None, error: bool = True
) -> SwitchingResult:
    """Filter the modes and the state of a switching linear system.

    The exact posterior after t steps has K^t Gaussians. Gaussians with the same last L modes are merged; L is the
    largest number with K^L <= num_kept (generalised pseudo-Bayes of order L + 1). The first L + 1 results are exact.

    Source: Ackerson and Fu (1970); Bar-Shalom and Li (1993).

    Args:
        process: switching linear system with K modes.
        observations: vectors (batch, time, m) or (time, m), with NaN for missing entries.
        num_kept: largest number of Gaussians, at least K^2.
        error: True also computes `SwitchingResult.error`.

    Raises:
        InputError: the process is not a switching linear system, the observations have a wrong shape or infinite
            entries, or `num_kept` is below K^2.

    Cost: O(batch * time * num_kept * K * (n + m)^3) for n state coordinates.
    """
    if not isinstance(process, SwitchingSystem):
        raise InputError(f"process: must be a switching linear system, got {shown(process)}")
    modes, kept = process.num_states, process.num_kept if num_kept is None else num_kept
    require_kept(modes, kept)
    observations, apart = as_vectors(observations, process.num_symbols)[0], num_apart(modes, kept)
    parts = _filtered(process, observations, apart)
    total = parts["log_likelihood_terms"].sum(1)
    changed = None
    if error:
        merges = modes > 1 and observations.shape[1] > apart
        fewer = _filtered(process, observations, apart - 1)["log_likelihood_terms"].sum(1) if merges else total
        changed = (fewer - total).abs()
    exact = observations.shape[1] if modes == 1 else min(observations.shape[1], apart + 1)
    return SwitchingResult(**parts, log_likelihood=total, num_exact=exact, error=changed)


def require_kept(modes: int, kept: int) -> None:
    require(kept >= modes**2, "num_kept", f"must be at least {modes**2}, the square of the number of modes", kept)


def _filtered(process: SwitchingSystem, observations: Tensor, apart: int) -> dict[str, Tensor]:
    batch, time, modes, size = *observations.shape[:2], process.num_states, len(process.initial)
    shapes = {"mode_beliefs": (modes,), "means": (size,), "covariances": (size, size), "log_likelihood_terms": ()}
    shapes |= dict.fromkeys(("predicted_observation", "next_observation"), (process.num_symbols,))
    found = {name: torch.empty(batch, time, *shape, dtype=torch.float64) for name, shape in shapes.items()}
    known = _Gaussians(
        torch.zeros(batch, 1, dtype=torch.float64),
        process.initial.expand(batch, 1, size),
        nothing := torch.zeros(batch, 1, size, size, dtype=torch.float64),
        no_rounding(process.output_noise, nothing),
    )
    chances_GK, moves = process.mode_initial.log()[None], process.mode_transition.log()
    ahead = _ahead(process, known, chances_GK)
    for t in range(time):
        found["predicted_observation"][:, t] = ahead
        known = _step(process, known, chances_GK, observations[:, t], t)
        term = known.weights.logsumexp(1)
        known = replace(known, weights=known.weights - term[:, None])
        whole = known.merged(1)
        if known.weights.shape[1] > modes**apart:
            known = known.merged(modes**apart)
        chances_GK = moves.repeat(known.weights.shape[1] // modes, 1)
        ahead = _ahead(process, known, chances_GK)
        found["log_likelihood_terms"][:, t], found["next_observation"][:, t] = term, ahead
        found["means"][:, t], found["covariances"][:, t] = whole.means[:, 0], whole.covariances[:, 0]
        found["mode_beliefs"][:, t] = known.weights.unflatten(1, (-1, modes)).logsumexp(1).exp()
    return found


def _ahead(process: SwitchingSystem, known: _Gaussians, chances_GK: Tensor) -> Float64[Tensor, "batch observed"]:
    weights = (known.weights[..., None] + chances_GK).exp()
    return torch.einsum("bgk,kyi,kij,bgj->by", weights, process.output, process.transition, known.means)


def _step(process: SwitchingSystem, known: _Gaussians, chances_GK: Tensor, seen_BY: Tensor, time: int) -> _Gaussians:
    inside: Bool[Tensor, "batch observed"] = ~seen_BY.isnan()
    mask = inside.to(torch.float64)[:, None, None]
    output = process.output * mask[..., None]
    noise = process.output_noise * mask[..., None] * mask[..., None, :] + torch.diag_embed(1 - mask)
    means = torch.einsum("kij,bgj->bgki", process.transition, known.means)
    before = known.covariances[:, :, None]
    covariances = process.transition @ before @ process.transition.mT + process.state_noise
    rounding = pushed(known.rounding[:, :, None], process.transition, before, process.state_noise)
    cross = output @ covariances
    innovation = seen_BY.nan_to_num(0.0)[:, None, None] - (output @ means[..., None])[..., 0]
    weights = known.weights[..., None] + chances_GK
    possible = weights.isfinite()[..., None, None]
    spread = even(cross @ output.mT + noise).where(possible, torch.eye(process.num_symbols, dtype=torch.float64))
    factor = cholesky(spread, possible * pushed(rounding, output, covariances, noise), time)
    gain = torch.cholesky_solve(cross, factor).mT
    left = torch.eye(means.shape[-1], dtype=torch.float64) - gain @ output
    after = even(left @ covariances @ left.mT + gain @ noise @ gain.mT)
    rounding = pushed(rounding, left, covariances, after + ROUNDING * covariances)
    scaled = torch.linalg.solve_triangular(factor, innovation[..., None], upper=False)[..., 0]
    density = -0.5 * (scaled.square().sum(-1) + mask.sum(-1) * math.log(2 * math.pi))
    density = density - factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    weights = weights + density
    moved = means + (gain @ innovation[..., None])[..., 0]
    return _Gaussians(*(part.flatten(1, 2) for part in (weights, moved, after, rounding)))
