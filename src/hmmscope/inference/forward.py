"""The forward recursion for many components and sequences at once, safe against underflow and exact about zero.

States emit:       joint_t = following_{t-1} * emission[:, o_t];  belief_t = joint_t / sum(joint_t)
                   following_t = belief_t @ transition
Transitions emit:  joint_t = following_{t-1} @ labelled[o_t];      belief_t = following_t = joint_t / sum(joint_t)

with following_{-1} = initial: the law of the state that is about to emit.

A probability is a multiple of 2^-32, so one step shrinks a positive entry by no more than 2^-64, and an entry that falls
below 1e-100 is seen, every eight steps, before it can vanish. Its row goes on in logarithms from there: a sequence is
impossible if and only if its probability is zero, never because of underflow.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from hmmscope.axes import Bool, Float64, Int64, Tensor
from hmmscope.errors import InputError
from hmmscope.processes.laws import EdgeEmitting, Law, StateEmitting
from hmmscope.reprs import Shown
from hmmscope.schema import shown

_RISKY, _CHECK_EVERY = 1e-100, 8


@dataclass(repr=False)
class ForwardStep(Shown):
    """What is known at one time, after the observation.

    Attributes:
        belief: law of state t (component, batch, state); zeros where the sequence has become impossible.
        log_norm: log P(o_t | o_0..o_{t-1}) (component, batch); -inf where the sequence is, or has become, impossible.
        following: law of the state that emits next (component, batch, state); initial where a new sequence begins.
    """

    belief: Float64[Tensor, "component batch state"]
    log_norm: Float64[Tensor, "component batch"]
    following: Float64[Tensor, "component batch state"]


def forward_steps(
    law: Law, observations_MBT: Int64[Tensor, "component_or_1 batch time"], starts_T: Bool[Tensor, "time"]
) -> Iterator[ForwardStep]:
    """One step for each time; where `starts_T` the state is drawn anew, and what came before remains only in log_norm.

    Observations are the same for all components (first axis 1) or given for each, on the device of the law; the starts are
    on the processor.
    """
    num_steps = observations_MBT.shape[2]
    start_MBS = law.initial_MS[:, None].expand(-1, observations_MBT.shape[1], -1)
    absorb = _absorb_state(law) if isinstance(law, StateEmitting) else _absorb_edge(law)
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
            following = torch.bmm(belief, law.transition_MSS) if isinstance(law, StateEmitting) else belief
        yield ForwardStep(belief, log_norm, following)


def _absorb_state(law: StateEmitting) -> Callable[[Tensor, Tensor], Tensor]:
    emission_MVS = law.emission_MSV.transpose(1, 2).contiguous()
    component_M1 = torch.arange(len(emission_MVS), device=emission_MVS.device)[:, None]
    return lambda following, symbols_MB: following * emission_MVS[component_M1, symbols_MB]


def _absorb_edge(law: EdgeEmitting) -> Callable[[Tensor, Tensor], Tensor]:
    def absorb(following: Tensor, symbols_MB: Tensor) -> Tensor:
        if len(symbols_MB) == len(law.labelled_MVSS) and symbols_MB.shape[1] == 1:
            component_M = torch.arange(len(symbols_MB), device=symbols_MB.device)
            chosen_MSS = law.labelled_MVSS[component_M, symbols_MB[:, 0]]
            return torch.bmm(following, chosen_MSS)
        joint = torch.empty_like(following)
        for symbol in symbols_MB[0].unique().tolist():
            rows = (symbols_MB[0] == symbol).nonzero()[:, 0]
            joint[:, rows] = torch.bmm(following[:, rows], law.labelled_MVSS[:, symbol])
        return joint

    return absorb


class _LogRows:
    """The (component, batch) rows that are carried in logarithms."""

    def __init__(self, law: Law) -> None:
        self.law = law
        self.clear()

    def clear(self) -> None:
        self.rows = torch.empty(0, 2, dtype=torch.int64, device=self.law.initial_MS.device)
        self.log_belief = self.law.initial_MS.new_empty(0, self.law.initial_MS.shape[1])

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
        matrix = (
            self.law.transition_MSS[m] if isinstance(self.law, StateEmitting) else self.law.labelled_MVSS[m, symbols]
        )
        log_joint = torch.logsumexp(self.log_belief[:, :, None] + matrix.log(), 1)
        if isinstance(self.law, StateEmitting):
            log_joint = log_joint + self.law.emission_MSV[m, :, symbols].log()
        log_total = torch.logsumexp(log_joint, 1)
        possible = log_total > -torch.inf
        self.log_belief = torch.where(possible[:, None], log_joint - log_total[:, None], log_joint)
        belief[m, b], log_norm[m, b] = self.log_belief.exp(), log_total


def as_observations(observations: object) -> Tensor:
    """Anything that torch reads as numbers; InputError for names and for rows of different lengths."""
    try:
        return torch.as_tensor(observations)
    except (ValueError, TypeError, RuntimeError):
        how = "hmmscope.SequenceData(rows, symbols=hmm.symbols).padded() gives observations and lengths"
        raise InputError(
            f"observations: must be integers (batch, time), got {shown(observations)}; of names, and of rows of "
            f"different lengths, {how}"
        ) from None


def check_observations(
    observations: Tensor, num_symbols: int, starts: object = None
) -> tuple[Int64[Tensor, "batch time"], Bool[Tensor, "time"]]:
    """The observations as int64, where they are, and the starts as a mask on the processor.

    InputError names the first wrong entry.
    """
    observations = as_observations(observations)
    if observations.ndim != 2:
        raise InputError(f"observations: must have shape (batch, time), got {tuple(observations.shape)}")
    if observations.dtype.is_floating_point or observations.dtype.is_complex or observations.dtype == torch.bool:
        raise InputError(f"observations: must be integers, got {observations.dtype}")
    observations = observations.to(torch.int64)
    if observations.numel() and not 0 <= int(observations.amin()) <= int(observations.amax()) < num_symbols:
        bad = ((observations < 0) | (observations >= num_symbols)).nonzero()
        b, t = bad[0].tolist()
        value = observations[b, t].item()
        raise InputError(f"observations[{b}, {t}]: symbol {value} is not in [0, {num_symbols})")
    time = observations.shape[1]
    if starts is None:
        mask = torch.zeros(time, dtype=torch.bool)
        mask[:1] = True
    else:
        mask = torch.as_tensor(starts).cpu()
        if mask.shape != (time,) or mask.dtype != torch.bool or (time and not mask[0]):
            raise InputError(f"starts: must be {time} truth values of which the first is true")
    return observations, mask
