"""Beliefs about each state given all observations."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from hmmscope.axes import Float64, Int, Int64, Tensor
from hmmscope.inference.history import FilterHistory, filter_history, move, move_back, steps_of
from hmmscope.machine import require_memory
from hmmscope.processes.hmm import HMM
from hmmscope.processes.labelled import LabelledHMM


@dataclass(frozen=True)
class SmoothResult:
    """What is known about states and their neighbours when all observations are seen.

    Attributes:
        beliefs: P(state t | o_0..o_{T-1}) (batch, time, state); zeros for an impossible sequence and beyond its end.
        pairs: P(state t = i, state t+1 = j | o_0..o_{T-1}) (batch, time - 1, state, state); zeros likewise. Where a new
            sequence begins at t+1 the two are independent.
        log_likelihood: log P(o_0..o_{T-1}) (batch,), nats; -inf for an impossible sequence.
        impossible_at: first t at which the prefix has probability zero (batch,); -1 if none.
    """

    beliefs: Float64[Tensor, "batch time state"]
    pairs: Float64[Tensor, "batch step state state"]
    log_likelihood: Float64[Tensor, "batch"]
    impossible_at: Int64[Tensor, "batch"]


def smooth_beliefs(
    hmm: HMM | LabelledHMM, observations: Int[Tensor, "batch time"], *, starts: object = None, lengths: object = None
) -> Float64[Tensor, "batch time state"]:
    """Belief about each state given the whole sequence (the forward-backward smoother), exact in float64.

    smoothed_{T-1} = belief_{T-1}
    smoothed_t(i) = sum_j belief_t(i) * transition[i, j] * smoothed_{t+1}(j) / (belief_t @ transition)(j)

    with labelled[o_{t+1}] in place of transition where transitions emit (state t is the state after observation t).

    Source: Rauch, Tung and Striebel (1965), for finitely many states.

    Args:
        hmm: S states, V symbols; states or transitions emit.
        observations: symbols in [0, V), shape (batch, time).
        starts: optional mask (time,), true where a new sequence begins; the first is true.
        lengths: optional number of observations of each sequence (batch,); what lies beyond is padding.

    Returns:
        P(state t | o_0..o_{T-1}) (batch, time, state). The last step is the filter's. An impossible sequence has zeros
        everywhere, because there is nothing to condition on; so has padding.

    Raises:
        InputError: a symbol outside [0, V); bad starts or lengths.

    Cost: O(batch * time * S^2). A row with positive beliefs below 1e-100 goes through logarithms, some ten times slower.
    """
    history = filter_history(hmm, observations, starts, lengths)
    smoothed_BTS = torch.zeros_like(history.filtered.beliefs)
    for t, smoothed_BS, _ in _backward(history):
        smoothed_BTS[:, t] = smoothed_BS
    return smoothed_BTS


def smooth_pairs(
    hmm: HMM | LabelledHMM, observations: Int[Tensor, "batch time"], *, starts: object = None, lengths: object = None
) -> SmoothResult:
    """Smoothed beliefs together with the joint law of each state and the next (arguments as for `smooth_beliefs`).

    pair_t(i, j) = belief_t(i) * transition[i, j] * smoothed_{t+1}(j) / (belief_t @ transition)(j)

    Summed over time these are the expected numbers of transitions, the statistics of Baum and Welch.

    Raises:
        InputError: as `smooth_beliefs`.
        ResourceError: the result, batch * (time - 1) * S^2 numbers, does not fit in memory.
    """
    history = filter_history(hmm, observations, starts, lengths)
    batch, time = history.observations.shape
    size = hmm.num_states
    require_memory("smooth_pairs", 8 * batch * max(time - 1, 0) * size**2)
    smoothed_BTS = torch.zeros_like(history.filtered.beliefs)
    pairs_BTSS = torch.zeros(batch, max(time - 1, 0), size, size, dtype=torch.float64)
    for t, smoothed_BS, ratio_BS in _backward(history):
        smoothed_BTS[:, t] = smoothed_BS
        if t == time - 1:
            continue
        steps = steps_of(history.law, history.observations[:, t + 1])
        pairs_BTSS[:, t] = history.filtered.beliefs[:, t, :, None] * steps * ratio_BS[:, None]
        if len(history.risky):
            kernel = _log_kernel(history, t).exp()
            pairs_BTSS[history.risky, t] = kernel * smoothed_BTS[history.risky, t + 1][:, None]
        apart = smoothed_BS[:, :, None] * smoothed_BTS[:, t + 1, None]  # zeros where t+1 is padding
        pairs_BTSS[:, t] = torch.where(history.last[:, t, None, None], apart, pairs_BTSS[:, t])
    return SmoothResult(smoothed_BTS, pairs_BTSS, history.filtered.log_likelihood, history.filtered.impossible_at)


def _backward(history: FilterHistory) -> Iterator[tuple[int, Tensor, Tensor]]:
    """(t, smoothed_t, smoothed_{t+1} / predicted_{t+1}) from the last time to the first; zeros where impossible."""
    beliefs_BTS = history.filtered.beliefs * history.possible[:, None, None]
    smoothed_BS = ratio_BS = torch.zeros_like(beliefs_BTS[:, 0]) if beliefs_BTS.shape[1] else beliefs_BTS
    for t in reversed(range(beliefs_BTS.shape[1])):
        belief_BS = beliefs_BTS[:, t]
        if t + 1 < beliefs_BTS.shape[1]:
            symbols_B = history.observations[:, t + 1]
            predicted_BS = move(history.law, belief_BS, symbols_B)
            ratio_BS = torch.where(predicted_BS > 0, smoothed_BS / predicted_BS, 0.0)
            earlier_BS = belief_BS * move_back(history.law, ratio_BS, symbols_B)
            if len(history.risky):
                kernel = _log_kernel(history, t).exp()
                earlier_BS[history.risky] = (kernel @ smoothed_BS[history.risky][:, :, None])[:, :, 0]
            total_B1 = earlier_BS.sum(1, keepdim=True)  # one up to rounding, which must not add up over time
            smoothed_BS = torch.where(total_B1 > 0, earlier_BS / total_B1, 0.0)
        smoothed_BS = torch.where(history.last[:, t, None], belief_BS, smoothed_BS)
        yield t, smoothed_BS, ratio_BS


def _log_kernel(history: FilterHistory, t: int) -> Tensor:
    """log P(state t = i | state t+1 = j, o_0..o_{t+1}) of the risky rows (row, i, j); -inf where j is impossible."""
    steps = steps_of(history.law, history.observations[history.risky, t + 1])
    log_joint = history.log_beliefs[:, t, :, None] + steps.log()
    total = torch.logsumexp(log_joint, 1, keepdim=True)
    return torch.where(total > -torch.inf, log_joint - total, -torch.inf)
