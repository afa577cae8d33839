"""The forward recursion for many components and sequences at once, safe against underflow and exact about zero.

    predicted_0 = initial;  predicted_t = belief_{t-1} @ transition
    joint_t = predicted_t * emission[:, o_t];  belief_t = joint_t / sum(joint_t)

A probability is a multiple of 2^-32, so one step shrinks a positive entry by no more than 2^-64, and an entry that falls
below 1e-100 is seen, every eight steps, before it can vanish. Its row goes on in logarithms from there: a sequence is
impossible if and only if its probability is zero, never because of underflow.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from hmmscope.axes import Bool, Float64, Int64, Tensor
from hmmscope.errors import InputError

_RISKY, _CHECK_EVERY = 1e-100, 8


@dataclass
class ForwardStep:
    """What is known at one time, after the observation.

    Attributes:
        belief: law of the state (component, batch, state); zeros where the sequence has become impossible.
        log_norm: log P(o_t | o_0..o_{t-1}) (component, batch); -inf where the sequence is, or has become, impossible.
        following: law of the next state (component, batch, state); the initial law where a new sequence begins.
    """

    belief: Float64[Tensor, "component batch state"]
    log_norm: Float64[Tensor, "component batch"]
    following: Float64[Tensor, "component batch state"]


def forward_steps(
    initial_MS: Tensor,
    transition_MSS: Tensor,
    emission_MSV: Tensor,
    observations_MBT: Int64[Tensor, "component_or_1 batch time"],
    starts_T: Bool[Tensor, "time"],
) -> Iterator[ForwardStep]:
    """One step for each time; where `starts_T` the state is drawn anew, and what came before remains only in log_norm."""
    num_components, _ = initial_MS.shape
    num_steps = observations_MBT.shape[2]
    emission_MVS = emission_MSV.transpose(1, 2).contiguous()
    component_M1 = torch.arange(num_components)[:, None]
    in_logs = _LogRows(transition_MSS, emission_MVS)
    predicted = initial_MS[:, None].expand(-1, observations_MBT.shape[1], -1)
    for t in range(num_steps):
        symbols_MB = observations_MBT[:, :, t]
        belief = predicted * emission_MVS[component_M1, symbols_MB]
        norm = belief.sum(-1)
        belief /= norm.clamp_min(torch.finfo(norm.dtype).tiny)[..., None]
        log_norm = norm.log()
        if in_logs:
            in_logs.step(symbols_MB, belief, log_norm)
        if t % _CHECK_EVERY == _CHECK_EVERY - 1:
            in_logs.adopt(belief)
        if t + 1 < num_steps and starts_T[t + 1]:
            alive_MB = log_norm > -torch.inf
            following = initial_MS[:, None] * alive_MB[..., None]
            in_logs.clear()
        else:
            following = torch.bmm(belief, transition_MSS)
        yield ForwardStep(belief, log_norm, following)
        predicted = following


class _LogRows:
    """The (component, batch) rows that are carried in logarithms."""

    def __init__(self, transition_MSS: Tensor, emission_MVS: Tensor) -> None:
        self.transition_MSS, self.emission_MVS = transition_MSS, emission_MVS
        self.clear()

    def clear(self) -> None:
        self.rows = torch.empty(0, 2, dtype=torch.int64)
        self.log_belief = torch.empty(0, self.transition_MSS.shape[1], dtype=torch.float64)

    def __bool__(self) -> bool:
        return len(self.rows) > 0

    def adopt(self, belief: Tensor) -> None:
        """Take over the rows with an entry so small that it could vanish in a step to come."""
        risky = ((belief > 0) & (belief < _RISKY)).any(-1)
        if self:
            risky[self.rows[:, 0], self.rows[:, 1]] = False
        new = risky.nonzero()
        self.rows = torch.cat([self.rows, new])
        self.log_belief = torch.cat([self.log_belief, belief[new[:, 0], new[:, 1]].log()])

    def step(self, symbols_MB: Tensor, belief: Tensor, log_norm: Tensor) -> None:
        """Advance these rows and write them over what the plain recursion found."""
        m, b = self.rows.unbind(1)
        symbols = symbols_MB[m if len(symbols_MB) > 1 else torch.zeros_like(m), b]
        log_predicted = torch.logsumexp(self.log_belief[:, :, None] + self.transition_MSS[m].log(), 1)
        log_joint = log_predicted + self.emission_MVS[m, symbols].log()
        log_total = torch.logsumexp(log_joint, 1)
        possible = log_total > -torch.inf
        self.log_belief = torch.where(possible[:, None], log_joint - log_total[:, None], log_joint)
        belief[m, b], log_norm[m, b] = self.log_belief.exp(), log_total


def check_observations(
    observations: Tensor, num_symbols: int, starts: object = None
) -> tuple[Int64[Tensor, "batch time"], Bool[Tensor, "time"]]:
    """The observations as int64 and the starts as a mask; InputError names the first wrong entry."""
    observations = torch.as_tensor(observations)
    if observations.ndim != 2:
        raise InputError(f"observations: must have shape (batch, time), got {tuple(observations.shape)}")
    if observations.dtype.is_floating_point or observations.dtype.is_complex or observations.dtype == torch.bool:
        raise InputError(f"observations: must be integers, got {observations.dtype}")
    observations = observations.to(torch.int64)
    bad = ((observations < 0) | (observations >= num_symbols)).nonzero()
    if len(bad):
        b, t = bad[0].tolist()
        value = observations[b, t].item()
        raise InputError(f"observations[{b}, {t}]: symbol {value} is not in [0, {num_symbols})")
    time = observations.shape[1]
    if starts is None:
        mask = torch.zeros(time, dtype=torch.bool)
        mask[:1] = True
    else:
        mask = torch.as_tensor(starts)
        if mask.shape != (time,) or mask.dtype != torch.bool or (time and not mask[0]):
            raise InputError(f"starts: must be {time} truth values of which the first is true")
    return observations, mask
