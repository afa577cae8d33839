"""Predictors that use only the last few observations."""

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from hmmscope.axes import Float64, Int64, Tensor
from hmmscope.errors import InputError
from hmmscope.inference.compiled import Outputs, filter_underflow_safe, forward, next_step_probs, run_filter
from hmmscope.inference.filtering import FilterResult, first_impossible
from hmmscope.inference.loop_inputs import PackedSequences, tables
from hmmscope.inference.ragged import blank, check_ragged, seen_terms
from hmmscope.inference.stationary_process import stationary_distribution
from hmmscope.kernels import underflow_safe
from hmmscope.processes.capabilities import WORDS
from hmmscope.processes.generalised import without_rounding
from hmmscope.processes.make import as_process
from hmmscope.processes.observations import Symbols
from hmmscope.processes.params import ROUNDING, HMMParams, seeing, symbol_probs
from hmmscope.processes.probability_rows import as_float64
from hmmscope.processes.process import Process
from hmmscope.reprs import Shown
from hmmscope.schema import refuse_masked, require_count
from hmmscope.system_info import require_memory

#: Limit on enumerated windows or sequences.
MAX_ENUMERATED = 2**20

#: Smallest prior entry that survives the eight steps between the filter's underflow checks.
_SMALLEST_PRIOR = 1e-150


def memory_beliefs(
    hmm: Process | str, observations: Symbols, memory_length: int, prior: object = None, *, lengths: object = None
) -> FilterResult:
    """Filter only the last `memory_length` observations, starting from a prior.

    belief_t = filter of o_{t-memory_length+1}..o_t, with `prior` as the distribution of the first emitting state

    Shorter windows, at the start of a sequence, also start from `prior`.

    Source: [MultiTask] section 2, whose prior is a G-optimal design instead of the stationary distribution.

    Args:
        hmm: HMM with S states and V symbols.
        observations: Symbols in [0, V), shape (batch, time).
        memory_length: Number of observations, including the current one, at least 1.
        prior: Distribution of a window's first emitting state (state,) (default: the stationary distribution).
        lengths: See `filter_beliefs`.

    Returns:
        Filter result. `log_likelihood_terms[t]` is log P(o_t | preceding memory_length observations). Beliefs are zero
        where the window has probability zero.

    Raises:
        InputError: A symbol, `memory_length` or `prior` is invalid, or the default prior is not unique.
    """
    hmm = as_process(hmm)
    require_count("memory_length", memory_length)
    observations, _, inside = check_ragged(observations, hmm.alphabet, None, lengths)
    inside = inside.cpu()
    law = seeing(with_prior(hmm, prior), observations)
    batch, time = observations.shape
    flat, short = observations.cpu().contiguous(), min(memory_length - 1, time)
    laws, starts, counts = next_step_probs(law), torch.arange(time) == 0, torch.full((batch,), short)
    known, ahead = np.empty((batch, time, hmm.num_states)), np.empty((batch, time, hmm.num_symbols))
    filtered = run_filter(law, flat[:, :short], starts[:short], counts, predict=True)
    known[:, :short], ahead[:, :short] = filtered.beliefs, filtered.predictive
    ends = (np.arange(batch)[:, None] * time + np.arange(short, time)).ravel()
    _windows(law, flat.view(-1).numpy(), ends - short, short + 1, Outputs(known, None, laws, ahead, ends=ends))
    beliefs, next_observation = torch.from_numpy(known), torch.from_numpy(ahead)
    first_observation = torch.from_numpy(laws.opening)
    if law.signed:
        next_observation, first_observation = map(without_rounding, (next_observation, first_observation))
    before = torch.cat([first_observation.expand(batch, 1, -1), next_observation], 1)[:, :-1]
    terms_BT = blank(seen_terms(before, observations.cpu()), inside)
    forbidden = ~beliefs.any(-1) & inside
    return FilterResult(
        beliefs=blank(beliefs, inside),
        next_observation=blank(next_observation, inside),
        first_observation=first_observation,
        log_likelihood=terms_BT.sum(1),
        log_likelihood_terms=terms_BT,
        impossible_at=first_impossible(torch.where(forbidden, -torch.inf, terms_BT)),
    )


@dataclass(frozen=True, repr=False)
class MemoryTable(Shown):
    """Best predictions from all windows of the last few observations.

    Attributes:
        windows: Windows in lexicographic order (window, time), the oldest observation first.
        probability: P(window) (window,).
        next_observation: P(next observation | window) (window, symbol); zeros for windows of probability zero.
    """

    windows: Int64[Tensor, "window time"]
    probability: Float64[Tensor, " window"]
    next_observation: Float64[Tensor, "window symbol"]


def memory_table(hmm: Process, memory_length: int, prior: object = None) -> MemoryTable:
    """Compute P(next observation | window) for all windows of `memory_length` symbols."""
    require_count("memory_length", memory_length)
    params = with_prior(hmm, prior)
    windows = all_sequences(hmm.num_symbols, memory_length)
    _, following, log_probability = filter_windows(params, windows)
    return MemoryTable(windows, log_probability.exp(), following @ symbol_probs(params)[0])


def with_prior(hmm: Process, prior: object = None) -> HMMParams:
    """Return an HMM's parameters with initial distribution `prior`, by default the stationary distribution."""
    hmm.require_capability(WORDS)
    law = hmm.params
    if prior is None:
        prior_S = stationary_distribution(hmm)
    else:
        refuse_masked("prior", prior)
        prior_S = torch.from_numpy(as_float64("prior", prior))
        good = prior_S.shape == (hmm.num_states,) and (law.signed or bool((prior_S >= 0).all()))
        if not good or abs(float(prior_S.sum()) - 1) > 1e-9:
            raise InputError(
                f"prior: must be {hmm.num_states} {'numbers' if law.signed else 'probabilities'} with sum 1"
            )
    if not law.signed and bool(((prior_S > 0) & (prior_S < _SMALLEST_PRIOR)).any()):
        raise InputError(f"prior: has a positive entry below {_SMALLEST_PRIOR:g}, which could underflow; set it to 0")
    return law.with_initial(prior_S[None])


def filter_windows(law: HMMParams, windows: Int64[Tensor, "window time"]) -> tuple[Tensor, Tensor, Tensor]:
    """Return beliefs and next-state distributions after each window, and log P(window)."""
    require_memory("windows", 8 * len(windows) * (2 * law.initial_MS.shape[1] + 1))
    count, time = windows.shape
    beliefs, totals, order = np.zeros((count, law.initial_MS.shape[1])), np.zeros(count), np.arange(count)
    out = Outputs(beliefs, totals=totals, ends=order)
    _windows(law, windows.contiguous().view(-1).numpy(), order * time, time, out)
    after = torch.from_numpy(beliefs)
    following = law.transition(after)
    return after, following, torch.from_numpy(totals)


def _windows(
    params: HMMParams, symbols: NDArray[np.int64], offsets: NDArray[np.int64], length: int, out: Outputs
) -> None:
    laws, ahead, totals, ends = out[2:6]
    assert out.beliefs is not None
    assert ends is not None
    process, group = tables(params), 1
    num_symbols, size = process.first.shape
    opened, openers = process.first, symbols
    while group < length and len(opened) * num_symbols <= min(len(ends) // 8, 2**12):
        moved = np.einsum("gi,kij->gkj", opened, process.step)
        opened = (moved * process.emission if process.states_emit else moved).reshape(-1, size)
        openers = np.concatenate([openers[:1], openers[:-1] * num_symbols + symbols[1:]])
        group += 1
    count = np.full(len(ends), length - group + 1)
    work = PackedSequences(symbols, offsets + group - 1, count, np.arange(len(ends)), np.arange(length) == 0)
    doubtful, beliefs = np.zeros(len(ends), np.bool_), out.beliefs.reshape(-1, size)
    forward(replace(process, first=opened), work, doubtful, out._replace(openers=openers))
    for number in np.flatnonzero(doubtful).tolist():
        window = torch.from_numpy(symbols[offsets[number] : offsets[number] + length])
        terms, row = np.empty(length), int(ends[number])
        weights = filter_underflow_safe(process, window, work.starts, terms)
        underflow_safe.plain(weights.mantissa[-1:], weights.exponent[-1:], beliefs[row : row + 1])
        if laws is not None and ahead is not None:
            laws.predict(
                beliefs[None, row : row + 1], work.starts[:1], ahead.reshape(1, len(beliefs), -1)[:, row : row + 1]
            )
        if totals is not None:
            totals[number] = terms.sum()
    if params.signed:
        never = _never(params, symbols[offsets[:, None] + np.arange(length)])
        beliefs[ends[never]] = 0.0
        if ahead is not None:
            ahead.reshape(len(beliefs), -1)[ends[never]] = 0.0
        if totals is not None:
            totals[never] = -np.inf


def _never(params: HMMParams, windows: NDArray[np.int64]) -> NDArray[np.bool_]:
    steps_VSS = params.steps()
    vectors_NS, never_N = params.initial_MS.expand(len(windows), -1), torch.zeros(len(windows), dtype=torch.bool)
    for symbol_N in torch.from_numpy(windows).T:
        moved_NS = torch.einsum("ni,nij->nj", vectors_NS, steps_VSS[symbol_N])
        norm_N1 = moved_NS.sum(1, keepdim=True)
        never_N |= norm_N1[:, 0] <= ROUNDING
        vectors_NS = moved_NS / norm_N1.masked_fill(never_N[:, None], 1.0)
    return never_N.numpy()


def all_sequences(num_symbols: int, time: int) -> Int64[Tensor, "sequence time"]:
    """Enumerate all symbol sequences of a length in lexicographic order."""
    count = num_symbols ** min(time, 64)
    if count > MAX_ENUMERATED:
        raise InputError(f"enumeration: {num_symbols}^{time} sequences exceed the limit of {MAX_ENUMERATED}")
    codes = torch.arange(count)[:, None]
    return codes // num_symbols ** torch.arange(time - 1, -1, -1) % num_symbols
