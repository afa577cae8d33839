"""Smoothing: beliefs about each state given all observations."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from hmmscope.axes import Float64, Int64, Tensor
from hmmscope.errors import InputError
from hmmscope.inference.compiled import filter_batch
from hmmscope.inference.compiled_backward import run_smoother, smooth_underflow_safe
from hmmscope.inference.counts import Counts, add_counts
from hmmscope.inference.filtering import first_impossible
from hmmscope.inference.known_states import condition
from hmmscope.inference.loop_inputs import sequences, tables
from hmmscope.inference.mixture_posterior import by_component
from hmmscope.inference.ragged import blank, check_own, check_ragged, counted
from hmmscope.inference.weights import as_weights
from hmmscope.processes.capabilities import COMPONENTS, SMOOTHING, STATES
from hmmscope.processes.make import as_process
from hmmscope.processes.observations import Observations, Symbols
from hmmscope.processes.params import seeing
from hmmscope.processes.process import Process
from hmmscope.reprs import Shown
from hmmscope.schema import require
from hmmscope.system_info import require_memory


@dataclass(frozen=True, repr=False)
class SmoothResult(Shown):
    """Smoothed posteriors of states and adjacent pairs.

    Attributes:
        beliefs: P(state t | o_0..o_{T-1}) (batch, time, state); zeros in padding and in sequences of probability zero.
        pairs: P(state t = i, state t+1 = j | o_0..o_{T-1}) (batch, time - 1, state, state); zeros where `beliefs`
            are zero.
        log_likelihood: log P(o_0..o_{T-1}) (batch,), in nats.
        impossible_at: First t at which o_0..o_t has probability zero (batch,), or -1.
    """

    beliefs: Float64[Tensor, "batch time state"]
    pairs: Float64[Tensor, "batch step state state"]
    log_likelihood: Float64[Tensor, " batch"]
    impossible_at: Int64[Tensor, " batch"]


def smooth_beliefs(
    hmm: Process | str,
    observations: Observations,
    *,
    reset_mask: object = None,
    lengths: object = None,
    known_states: Any = None,
    inputs: Any = None,
) -> Float64[Tensor, "batch time state"]:
    """Compute the smoothed posterior of each state by the forward-backward algorithm.

    smoothed_t(i) = sum_j belief_t(i) * transition[i, j] * smoothed_{t+1}(j) / (belief_t @ transition)(j)

    For edge emissions, P(o_{t+1}, j | i) replaces transition[i, j]. A mixture averages its components, weighted by
    P(component | all observations).

    Source: Rauch, Tung and Striebel (1965), for finitely many states.

    Args:
        hmm: HMM with S states and V symbols, or a mixture.
        observations, reset_mask, lengths, known_states, inputs: See `filter_beliefs`.

    Returns:
        P(state t | o_0..o_{T-1}) (batch, time, state); zeros in padding and in sequences of probability zero.

    Raises:
        InputError: A symbol, `reset_mask` or `lengths` is invalid.
    """
    hmm = as_process(hmm)
    if known_states is not None or inputs is not None:
        given = condition(hmm, observations, known_states, inputs=inputs, reset_mask=reset_mask, lengths=lengths)
        return smooth_beliefs(given.process, given.observations, **given.options)
    if COMPONENTS in hmm.uses_hmm_inference:
        return by_component(hmm, observations, reset_mask, lengths).mean(smooth_beliefs, hmm.num_states)
    if SMOOTHING not in hmm.uses_hmm_inference:
        own, inside = check_own(hmm, observations, lengths)
        return blank(hmm.smooth(own, reset_mask=reset_mask), inside)
    filtered = filter_batch(hmm, observations, reset_mask, lengths)
    smoothed = np.zeros_like(filtered.beliefs)
    run_smoother(filtered, smoothed)
    return torch.from_numpy(smoothed)


def smooth_pairs(
    hmm: Process, observations: Symbols, *, reset_mask: object = None, lengths: object = None
) -> SmoothResult:
    """Compute the smoothed beliefs and the joint posteriors of adjacent states.

    pair_t(i, j) = belief_t(i) * transition[i, j] * smoothed_{t+1}(j) / (belief_t @ transition)(j)
    """
    hmm.require_capability(STATES)
    filtered = filter_batch(hmm, observations, reset_mask, lengths)
    batch, time, size = filtered.beliefs.shape
    require_memory("smooth_pairs", 8 * batch * max(time - 1, 0) * size**2)
    smoothed, weights = np.zeros((2, batch, time, size))
    possible = run_smoother(filtered, smoothed, weights)
    pairs = np.zeros((batch, max(time - 1, 0), size, size))
    process, work = filtered.tables, filtered.work
    symbols_BT = work.symbols.reshape(batch, time)
    for t in range(time - 1):
        if work.starts[t + 1]:
            np.multiply(smoothed[:, t, :, None], smoothed[:, t + 1, None], out=pairs[:, t])
        else:
            steps = process.step if process.states_emit else process.step[symbols_BT[:, t + 1]]
            np.multiply(filtered.beliefs[:, t, :, None] * steps, weights[:, t + 1, None], out=pairs[:, t])
    pairs[~possible] = 0.0
    for row, beliefs in filtered.underflow_risk.items():
        if possible[row]:
            length = len(beliefs.mantissa)
            smooth_underflow_safe(filtered, row, beliefs, smoothed[row, :length], pairs[row, : length - 1])
    terms_BT = torch.from_numpy(filtered.terms)
    return SmoothResult(
        torch.from_numpy(smoothed), torch.from_numpy(pairs), terms_BT.sum(1), first_impossible(terms_BT)
    )


@dataclass(frozen=True, repr=False)
class ExpectedCounts(Shown):
    """Expected counts given all observations (Baum-Welch statistics).

    Attributes:
        initial: Expected number of sequence starts in each state (state,).
        transitions: Expected number of transitions (state, state).
        emissions: Expected number of emissions (state, symbol), without missing observations.
        log_likelihood: log P(o_0..o_{T-1}) (batch,), in nats.
    """

    initial: Float64[Tensor, " state"]
    transitions: Float64[Tensor, "state next_state"]
    emissions: Float64[Tensor, "state symbol"]
    log_likelihood: Float64[Tensor, " batch"]


def expected_counts(
    hmm: Process | str,
    observations: Symbols,
    *,
    reset_mask: object = None,
    lengths: object = None,
    sequence_weights: Any = None,
    known_states: Any = None,
) -> ExpectedCounts:
    """Compute the expected counts of initial states, transitions and emissions.

    Arguments are as in `smooth_beliefs`; `sequence_weights` (batch,) multiply the counts of the sequences. After each
    reset by `reset_mask`, the state counts as an initial state.

    Raises:
        InputError: As for `smooth_beliefs`; or a sequence has probability zero, or `hmm` has emitting transitions.
    """
    hmm = as_process(hmm)
    hmm.require_capability(STATES)
    require(hmm.params.states_emit, "hmm", "must be an HMM whose states emit the observations", type(hmm).__name__)
    if known_states is not None:
        given = condition(hmm, observations, known_states, reset_mask=reset_mask, lengths=lengths)
        found = expected_counts(given.process, given.observations, sequence_weights=sequence_weights, **given.options)
        assert given.sets is not None
        by_symbol = given.sets.by_symbol(found.emissions.T.numpy(), hmm.num_symbols)
        return replace(found, emissions=torch.from_numpy(by_symbol).T.contiguous())
    checked, mask, inside = check_ragged(observations, hmm.alphabet, reset_mask, lengths)
    work = sequences(checked, mask, counted(inside))
    size, num_symbols = hmm.num_states, hmm.num_symbols
    params, visits = seeing(hmm.params, checked), np.zeros((num_symbols + 1, size))  # the last for missing observations
    counts = Counts(np.zeros(size), np.zeros((size, size)), visits, np.zeros(len(checked)))
    weights = as_weights(sequence_weights, len(checked))
    add_counts(tables(params), work if weights is None else work._replace(weights=weights[work.rows]), counts)
    dead = np.flatnonzero((counts.logs == -np.inf) & (weights is None or weights > 0))
    if len(dead):
        raise InputError(f"observations[{dead[0]}]: the sequence has probability zero, so it has no expected counts")
    first, transitions, emitted, logs = (torch.from_numpy(part) for part in counts)
    return ExpectedCounts(first, transitions, emitted[:num_symbols].T.contiguous(), logs)
