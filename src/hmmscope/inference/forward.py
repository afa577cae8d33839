"""Forward recursion for many components and sequences, safe against underflow.

State emissions:  joint_t = following_{t-1} * emission[:, o_t];  belief_t = joint_t / sum(joint_t)
                  following_t = belief_t @ transition;  following_{-1} = initial
Edge emissions:   joint_t = following_{t-1} @ labelled[o_t];      belief_t = following_t = joint_t / sum(joint_t)

Probabilities are multiples of 2^-32, so one step (transition times emission) multiplies a positive belief entry by at
least 2^-64. Every eight steps, beliefs with entries below 1e-100 are converted to logarithms, so only sequences of
probability zero get the result zero.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from hmmscope.axes import Bool, Float64, Int64, Tensor
from hmmscope.processes.params import HMMParams
from hmmscope.reprs import Shown

_RISKY, _CHECK_EVERY = 1e-100, 8


@dataclass(repr=False)
class ForwardStep(Shown):
    """Filter state after one observation.

    Attributes:
        belief: Distribution of state t (component, batch, state).
        log_norm: log P(o_t | o_0..o_{t-1}) (component, batch); -inf if impossible.
        next_probs: Distribution of the next emitting state (component, batch, state).
    """

    belief: Float64[Tensor, "component batch state"]
    log_norm: Float64[Tensor, "component batch"]
    next_probs: Float64[Tensor, "component batch state"]


def forward_steps(
    law: HMMParams, observations_MBT: Int64[Tensor, "component_or_1 batch time"], starts_T: Bool[Tensor, " time"]
) -> Iterator[ForwardStep]:
    """Iterate the filter over time steps; it restarts where `starts_T` is true.

    The first axis of observations has size 1 if all components share them, else one entry per component; `starts_T` is
    on the CPU.
    """
    num_steps = observations_MBT.shape[2]
    start_MBS = law.initial_MS[:, None].expand(-1, observations_MBT.shape[1], -1)
    absorb = law.absorber()
    in_logs = _LogRows(law)
    following = start_MBS
    for t in range(num_steps):
        symbols_MB = observations_MBT[:, :, t]
        belief = absorb(following, symbols_MB)
        norm = belief.sum(-1)
        belief /= norm.clamp_min(torch.finfo(norm.dtype).tiny)[..., None]
        log_norm = norm.log()
        if in_logs:
            in_logs.step(symbols_MB, belief, log_norm)
        if t % _CHECK_EVERY == _CHECK_EVERY - 1:
            in_logs.adopt(belief)
        if t + 1 < num_steps and starts_T[t + 1]:
            following = start_MBS * (log_norm > -torch.inf)[..., None]
            in_logs.clear()
        else:
            following = law.after(belief)
        yield ForwardStep(belief, log_norm, following)


class _LogRows:
    def __init__(self, law: HMMParams) -> None:
        self.law = law
        self.clear()

    def clear(self) -> None:
        self.rows = torch.empty(0, 2, dtype=torch.int64, device=self.law.initial_MS.device)
        self.log_belief = self.law.initial_MS.new_empty(0, self.law.initial_MS.shape[1])

    def __bool__(self) -> bool:
        return len(self.rows) > 0

    def adopt(self, belief: Tensor) -> None:
        risky = ((belief > 0) & (belief < _RISKY)).any(-1)
        if self:
            risky[self.rows[:, 0], self.rows[:, 1]] = False
        new = risky.nonzero()
        self.rows = torch.cat([self.rows, new])
        self.log_belief = torch.cat([self.log_belief, belief[new[:, 0], new[:, 1]].log()])

    def step(self, symbols_MB: Tensor, belief: Tensor, log_norm: Tensor) -> None:
        m, b = self.rows.unbind(1)
        symbols = symbols_MB[m if len(symbols_MB) > 1 else torch.zeros_like(m), b]
        matrix, factor = self.law.factors(m, symbols)
        log_joint = torch.logsumexp(self.log_belief[:, :, None] + matrix.log(), 1) + factor.log()
        log_total = torch.logsumexp(log_joint, 1)
        possible = log_total > -torch.inf
        self.log_belief = torch.where(possible[:, None], log_joint - log_total[:, None], log_joint)
        belief[m, b], log_norm[m, b] = self.log_belief.exp(), log_total
