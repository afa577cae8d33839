"""What the forward filter knew at every time, in a form from which one can go backward without losing a state.

Given the observations and state t+1, the past of state t+1 depends on nothing after it:

    P(state t = i | state t+1 = j, o_0..o_{t+1}) ∝ belief_t(i) * step_{t+1}(i, j)

with step_{t+1} = transition, or labelled[o_{t+1}] where transitions emit. A belief is a sum of positive terms, so this
has no cancellation. Rows in which a positive belief falls below 1e-100 are filtered again in logarithms, because what is
negligible at time t may be all that is left once the future is known.
"""

from dataclasses import dataclass

import torch

from hmmscope.axes import Bool, Float64, Int64, Tensor
from hmmscope.inference.filtering import FilterResult, filter_beliefs
from hmmscope.inference.mixture import CHUNK_BYTES
from hmmscope.inference.ragged import check_ragged
from hmmscope.processes.hmm import HMM
from hmmscope.processes.labelled import LabelledHMM
from hmmscope.processes.laws import EdgeEmitting, Law, StateEmitting

#: Below this a positive belief could vanish; see `hmmscope.inference.forward`.
RISKY = 1e-100


@dataclass(frozen=True)
class FilterHistory:
    """The filter of a batch, ready to be run backward.

    Attributes:
        law: of one process (component axis of size 1).
        observations: (batch, time), padding replaced by 0.
        inside: where the observations are, (batch, time).
        last: true at the final observation of each sequence, and before each restart: nothing is learnt about the state
            from what follows (batch, time).
        possible: whether the sequence has positive probability (batch,).
        filtered: the filter's answer.
        risky: rows that are kept in logarithms too (row,).
        log_beliefs: log P(state t | o_0..o_t) of these rows (row, time, state).
    """

    law: Law
    observations: Int64[Tensor, "batch time"]
    inside: Bool[Tensor, "batch time"]
    last: Bool[Tensor, "batch time"]
    possible: Bool[Tensor, "batch"]
    filtered: FilterResult
    risky: Int64[Tensor, "row"]
    log_beliefs: Float64[Tensor, "row time state"]


def filter_history(hmm: HMM | LabelledHMM, observations: Tensor, starts: object, lengths: object) -> FilterHistory:
    """Filter forward, and again in logarithms where entries could be lost."""
    checked, mask, inside = check_ragged(observations, hmm.num_symbols, starts, lengths)
    filtered = filter_beliefs(hmm, checked, starts=mask, lengths=inside.sum(1))
    possible = filtered.impossible_at < 0
    tiny = (filtered.beliefs > 0) & (filtered.beliefs < RISKY)
    risky = (tiny.flatten(1).any(1) & possible).nonzero()[:, 0]
    last = inside.clone()
    if inside.shape[1] > 1:
        last[:, :-1] = inside[:, :-1] & (~inside[:, 1:] | mask[1:])
    chunk = max(1, CHUNK_BYTES // (8 * hmm.num_states**2))
    parts = [filter_in_logs(hmm.law, checked[rows], mask) for rows in risky.split(chunk)]
    return FilterHistory(hmm.law, checked, inside, last, possible, filtered, risky, torch.cat(parts))


def filter_in_logs(
    law: Law, observations_BT: Int64[Tensor, "batch time"], starts_T: Bool[Tensor, "time"]
) -> Float64[Tensor, "batch time state"]:
    """log P(state t | o_0..o_t) with nothing but logarithms; -inf where impossible. Slow, and needs no guard."""
    log_initial_S = law.initial_MS[0].log()
    steps = []
    log_belief_BS = log_initial_S.expand(len(observations_BT), -1)
    for t in range(observations_BT.shape[1]):
        symbols_B = observations_BT[:, t]
        if starts_T[t]:
            log_belief_BS = log_initial_S.expand(len(symbols_B), -1)
        if isinstance(law, EdgeEmitting) or not starts_T[t]:
            log_belief_BS = torch.logsumexp(log_belief_BS[:, :, None] + steps_of(law, symbols_B).log(), 1)
        if isinstance(law, StateEmitting):
            log_belief_BS = log_belief_BS + law.emission_MSV[0].T[symbols_B].log()
        total_B1 = torch.logsumexp(log_belief_BS, 1, keepdim=True)
        log_belief_BS = torch.where(total_B1 > -torch.inf, log_belief_BS - total_B1, -torch.inf)
        steps.append(log_belief_BS)
    shape = (*observations_BT.shape, len(log_initial_S))
    return torch.stack(steps, 1) if steps else torch.zeros(shape, dtype=torch.float64)


def move(law: Law, left_BS: Tensor, symbols_B: Tensor) -> Tensor:
    """Sum over i of left(i) step(i, j), where `symbols_B` are seen on the way."""
    if isinstance(law, StateEmitting):
        return left_BS @ law.transition_MSS[0]
    moved = torch.empty_like(left_BS)
    for symbol in symbols_B.unique():
        rows = (symbols_B == symbol).nonzero()[:, 0]
        moved[rows] = left_BS[rows] @ law.labelled_MVSS[0, symbol]
    return moved


def move_back(law: Law, right_BS: Tensor, symbols_B: Tensor) -> Tensor:
    """Sum over j of step(i, j) right(j), where `symbols_B` are seen on the way."""
    if isinstance(law, StateEmitting):
        return right_BS @ law.transition_MSS[0].T
    moved = torch.empty_like(right_BS)
    for symbol in symbols_B.unique():
        rows = (symbols_B == symbol).nonzero()[:, 0]
        moved[rows] = right_BS[rows] @ law.labelled_MVSS[0, symbol].T
    return moved


def steps_of(law: Law, symbols_B: Tensor) -> Tensor:
    """step(i, j) of each row (batch or 1, state, state)."""
    return law.transition_MSS if isinstance(law, StateEmitting) else law.labelled_MVSS[0, symbols_B]
