"""Any emission, one filter: what observations say of hidden states, as log-likelihoods by time and state.

An emission family turns observations of any kind into log P(o_t | state) (batch, time, state); the chain of the states does
the rest. Categorical emissions have a table of likelihoods with one row a symbol; all others are given to the same compiled
loops as a table with one row an observation, each divided by its largest entry. So forward filter, smoother, likeliest path,
draws and expected counts are those of symbols, as exact and nearly as fast.

Where the states of one observation differ by more than `RANGE` nats, a row does not fit in floats: then that sequence is
gone through in logarithms (`hmmscope.kernels.logarithms`), some ten times slower.
"""

import itertools
import math
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from hmmscope.axes import Bool, Float64, Int64, Tensor
from hmmscope.errors import InputError
from hmmscope.inference.compiled import run_filter
from hmmscope.inference.counts import Counts, add_counts
from hmmscope.inference.filtering import first_impossible
from hmmscope.inference.loop_inputs import FEW_STATES, flat_sequences, tables
from hmmscope.inference.paths import PathResult, most_likely_states, sample_state_paths
from hmmscope.inference.ragged import check_ragged
from hmmscope.inference.smoothing import expected_counts, smooth_beliefs
from hmmscope.kernels import logarithms
from hmmscope.processes.answers import OF_STATES
from hmmscope.processes.laws import StateEmitting
from hmmscope.processes.process import Process
from hmmscope.reprs import Shown
from hmmscope.seeds import numpy_generator
from hmmscope.sequences.encoding import Alphabet

#: Largest difference, in nats, between the states of an observation in the compiled loops.
RANGE = 600.0


@dataclass(frozen=True, repr=False)
class Chain(Shown):
    """The law of the hidden states: state_0 ~ initial, state_{t+1} ~ transition[state_t].

    Attributes:
        initial_S, transition_SS: rows sum to one.
    """

    initial_S: Float64[Tensor, "state"]
    transition_SS: Float64[Tensor, "state next_state"]


@dataclass(frozen=True, repr=False)
class StatesFiltered(Shown):
    """What is known of the states after each observation.

    Attributes:
        beliefs: P(state t | o_0..o_t) (batch, time, state).
        predicted: P(state t | o_0..o_{t-1}), before seeing o_t.
        log_likelihood_terms: log P(o_t | o_0..o_{t-1}) (batch, time), nats; -inf from an impossible observation on.
        log_likelihood: their sum (batch,).
        impossible_at: first t at which the prefix is impossible (batch,); -1 if none. Beliefs are zero from there on.
    """

    beliefs: Float64[Tensor, "batch time state"]
    predicted: Float64[Tensor, "batch time state"]
    log_likelihood_terms: Float64[Tensor, "batch time"]
    log_likelihood: Float64[Tensor, "batch"]
    impossible_at: Int64[Tensor, "batch"]


@dataclass(frozen=True, repr=False)
class StateCounts(Shown):
    """Expected numbers given all observations: what an emission family, and a chain, are fitted by.

    Attributes:
        first: of sequences that begin in a state (state,).
        transitions: of moves from a state to a state (state, state).
        visits: P(state t | all observations), the weight of o_t in the emission of each state (batch, time, state).
        log_likelihood: (batch,), nats.
    """

    first: Float64[Tensor, "state"]
    transitions: Float64[Tensor, "state next_state"]
    visits: Float64[Tensor, "batch time state"]
    log_likelihood: Float64[Tensor, "batch"]


def where_seen(
    log_likelihoods: Float64[Tensor, "batch time state"], seen: Bool[Tensor, "batch time"]
) -> Float64[Tensor, "batch time state"]:
    """The same where something is seen; zero elsewhere, for a missing observation says nothing of the state."""
    return log_likelihoods.where(seen[..., None], 0.0)


def filter_states(
    chain: Chain,
    log_likelihoods: Float64[Tensor, "batch time state"],
    *,
    starts: object = None,
    lengths: object = None,
) -> StatesFiltered:
    """The forward filter.

    predicted_t = belief_{t-1} @ transition, and initial where a sequence begins
    belief_t ∝ exp(log_likelihoods_t) * predicted_t

    Args:
        chain: of S states.
        log_likelihoods: log P(o_t | state), or log densities, nats; -inf where a state cannot emit it.
        starts: optional mask (time,), true where a new sequence begins; the first is true.
        lengths: optional number of observations of each sequence (batch,); what lies beyond is padding.

    Raises:
        InputError: another number of states, NaN or +inf; bad starts or lengths.

    Cost: O(batch * time * S^2).
    """
    batch, time, size = log_likelihoods.shape
    numbers = torch.arange(batch * time).view(batch, time)
    if size > FEW_STATES:
        return _filter_many(chain, log_likelihoods, starts, lengths)
    _, mask, inside = check_ragged(numbers, Alphabet(None, max(1, batch * time)), starts, lengths)
    _check_states(chain, log_likelihoods)
    logs, counts = np.ascontiguousarray(log_likelihoods.numpy()), inside.sum(1).numpy()
    (predicted, beliefs), terms = np.zeros((2, *logs.shape)), np.zeros((batch, time))
    doubtful, law = np.zeros(batch, np.bool_), [np.ascontiguousarray(part) for part in _arrays(chain)]
    good: list[bool] = []

    def run(part: slice) -> None:
        own = (array[part] for array in (predicted, beliefs, terms, doubtful))
        good.append(logarithms.filter_rows(*law, logs[part], mask.numpy(), counts[part], *own))

    _on_threads(batch, run)
    if not all(good):
        raise InputError("log_likelihoods: must be numbers or -inf")
    known, ahead, terms_BT = (torch.from_numpy(part) for part in (beliefs, predicted, terms))
    for b in np.flatnonzero(doubtful).tolist():
        for part in _parts(mask, int(counts[b])):
            known[b, part], terms_BT[b, part] = _in_logarithms(chain, log_likelihoods[b, part])
            ahead[b, part.start] = chain.initial_S
            ahead[b, part.start + 1 : part.stop] = known[b, part.start : part.stop - 1] @ chain.transition_SS
    return StatesFiltered(known, ahead, terms_BT, terms_BT.sum(1), first_impossible(terms_BT))


def _arrays(chain: Chain) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    return chain.initial_S.numpy(), chain.transition_SS.numpy()


def _filter_many(chain: Chain, log_likelihoods: Tensor, starts: object, lengths: object) -> StatesFiltered:
    """The filter of many states, by the loops that symbols go through."""
    seen = _Seen(chain, log_likelihoods)
    rows, mask, inside = check_ragged(seen.rows_BT, seen.alphabet, starts, lengths)
    found = run_filter(seen.law, rows, mask, inside.sum(1))
    beliefs, terms_BT = torch.from_numpy(found.beliefs), torch.from_numpy(found.terms)
    terms_BT = terms_BT + seen.scale_BT.where(inside & (terms_BT > -torch.inf), 0.0)
    for b, part in seen.apart(mask, inside):
        beliefs[b, part], terms_BT[b, part] = _in_logarithms(chain, log_likelihoods[b, part])
    moved = torch.cat([beliefs[:, :1], beliefs[:, :-1] @ chain.transition_SS], 1)
    predicted = torch.where(mask[:, None], chain.initial_S, moved) * inside[..., None]
    return StatesFiltered(beliefs, predicted, terms_BT, terms_BT.sum(1), first_impossible(terms_BT))


def _in_logarithms(chain: Chain, logs_TS: Tensor) -> tuple[Tensor, Tensor]:
    """Beliefs and terms of one sequence."""
    alpha_TS, total_T = _forward(chain, logs_TS)
    terms_T = torch.diff(total_T, prepend=total_T.new_zeros(1)).where(total_T > -torch.inf, -torch.inf)
    return (alpha_TS - total_T[:, None].clamp_min(-1e300)).exp(), terms_T


def _on_threads(batch: int, run: Callable[[slice], None]) -> None:
    """Call `run` for as many parts of a batch as torch has threads."""
    width = max(1, min(torch.get_num_threads(), batch))
    ends = [batch * k // width for k in range(width + 1)]
    parts = [slice(begin, end) for begin, end in itertools.pairwise(ends)]
    if width == 1:
        run(parts[0])
        return
    with ThreadPoolExecutor(width) as pool:
        list(pool.map(run, parts))


def _parts(starts_T: Tensor, length: int) -> Iterator[slice]:
    """Where the sequences of one row begin and end."""
    begins = starts_T.nonzero()[:, 0].tolist()
    for begin, end in zip(begins, [*begins[1:], length], strict=True):
        if begin < min(end, length):
            yield slice(begin, min(end, length))


def _check_states(chain: Chain, log_likelihoods: Tensor) -> None:
    if log_likelihoods.shape[2] != len(chain.initial_S):
        raise InputError(f"log_likelihoods: must have {len(chain.initial_S)} states, got {log_likelihoods.shape[2]}")


def smooth_states(
    chain: Chain, log_likelihoods: Float64[Tensor, "batch time state"], *, starts: object = None, lengths: object = None
) -> Float64[Tensor, "batch time state"]:
    """P(state t | all observations); arguments as for `filter_states`. Zeros for an impossible sequence and in padding."""
    seen = _Seen(chain, log_likelihoods)
    _, mask, inside = check_ragged(seen.rows_BT, seen.alphabet, starts, lengths)
    smoothed = smooth_beliefs(seen, seen.rows_BT, starts=starts, lengths=lengths)
    for b, part in seen.apart(mask, inside):
        smoothed[b, part] = _smoothed(chain, log_likelihoods[b, part])[0]
    return smoothed


def likeliest_states(
    chain: Chain, log_likelihoods: Float64[Tensor, "batch time state"], *, starts: object = None, lengths: object = None
) -> PathResult:
    """The path of states with the largest joint probability (Viterbi), as `most_likely_states`."""
    seen = _Seen(chain, log_likelihoods)
    _, mask, inside = check_ragged(seen.rows_BT, seen.alphabet, starts, lengths)
    found = most_likely_states(seen, seen.rows_BT, starts=starts, lengths=lengths)
    states, logs = found.states, found.log_probability + seen.scale_BT.where(inside, 0.0).sum(1)
    for b in dict.fromkeys(b for b, _ in seen.apart(mask, inside)):
        logs[b] = 0.0
        for _, part in (one for one in seen.apart(mask, inside) if one[0] == b):
            states[b, part], log = _viterbi(chain, log_likelihoods[b, part])
            logs[b] += log
    return PathResult(states, logs)


def draw_states(
    chain: Chain,
    log_likelihoods: Float64[Tensor, "batch time state"],
    *,
    num_paths: int = 1,
    seed: int = 0,
    starts: object = None,
    lengths: object = None,
) -> Int64[Tensor, "path batch time"]:
    """Draws from P(states | all observations), as `sample_state_paths`; -1 where there is none."""
    seen = _Seen(chain, log_likelihoods)
    _, mask, inside = check_ragged(seen.rows_BT, seen.alphabet, starts, lengths)
    paths = sample_state_paths(seen, seen.rows_BT, num_paths=num_paths, seed=seed, starts=starts, lengths=lengths)
    for b, part in seen.apart(mask, inside):
        uniforms = numpy_generator(seed, "state-paths", b).random((num_paths, inside.shape[1]))
        paths[:, b, part] = _draws(chain, log_likelihoods[b, part], torch.from_numpy(uniforms)[:, part])
    return paths


def count_states(
    chain: Chain, log_likelihoods: Float64[Tensor, "batch time state"], *, starts: object = None, lengths: object = None
) -> StateCounts:
    """Expected counts (the step of expectation of Baum and Welch); arguments as for `filter_states`.

    Raises:
        InputError: as `filter_states`; a sequence of probability zero.
    """
    seen = _Seen(chain, log_likelihoods)
    _, mask, inside = check_ragged(seen.rows_BT, seen.alphabet, starts, lengths)
    apart = list(seen.apart(mask, inside))
    plain = torch.ones(len(inside), dtype=torch.bool)
    plain[[b for b, _ in apart]] = False
    counts = inside.sum(1).where(plain, 0)  # those in logarithms are left out, and added below
    found = expected_counts(seen, seen.rows_BT, starts=mask, lengths=counts)
    visits = found.visits.T.reshape(*inside.shape, -1).clone()
    logs = found.log_likelihood + (seen.scale_BT * inside).sum(1).where(plain, 0.0)
    first, transitions = found.first.clone(), found.transitions.clone()
    for b, part in apart:
        visits[b, part], pairs, total = _smoothed(chain, log_likelihoods[b, part])
        if total == -math.inf:
            raise InputError(f"log_likelihoods[{b}]: the sequence has probability zero")
        first, transitions, logs[b] = first + visits[b, part.start], transitions + pairs, logs[b] + total
    return StateCounts(first, transitions, visits, logs)


def count_rows(
    chain: Chain, log_likelihoods: Float64[Tensor, "row state"], lengths: Int64[Tensor, "sequence"]
) -> StateCounts:
    """`count_states` of sequences that stand one after the other; visits are (row, state).

    Args:
        chain: of S states.
        log_likelihoods: of all observations.
        lengths: of the sequences, at least 1 each; their sum is the number of rows.

    Raises:
        InputError: a sequence of probability zero.
    """
    seen = _Seen(chain, log_likelihoods[None])
    ends = lengths.cumsum(0).tolist()
    parts = [slice(begin, end) for begin, end in zip([0, *ends], ends, strict=False)]
    scale_N = seen.scale_BT[0]
    wide = [bool(seen.wide_BT[0, part].any()) for part in parts]
    counts = np.where(wide, 0, lengths.numpy())
    visits_NS, logs = torch.zeros_like(log_likelihoods), torch.zeros(len(parts), dtype=torch.float64)
    first_S, moves_SS = torch.zeros_like(chain.initial_S), torch.zeros_like(chain.transition_SS)
    if not all(wide):
        kept = np.repeat(~np.array(wide), lengths.numpy())
        work = flat_sequences(np.flatnonzero(kept), counts)
        found = Counts(first_S.numpy(), moves_SS.numpy(), visits_NS.numpy(), np.zeros(len(parts)))
        add_counts(tables(seen.law), work, found)
        logs = torch.from_numpy(found.logs)
    for number, part in enumerate(parts):
        if wide[number]:
            visits_NS[part], pairs_SS, logs[number] = _smoothed(chain, log_likelihoods[part])
            first_S, moves_SS = first_S + visits_NS[part.start], moves_SS + pairs_SS
        else:
            logs[number] += scale_N[part].sum()
        if logs[number] == -math.inf:
            raise InputError(f"observations[{number}]: the sequence has probability zero")
    return StateCounts(first_S, moves_SS, visits_NS, logs)


class _Seen(Process):
    """A chain with one symbol an observation, whose likelihoods are the rows of a table."""

    by_law = OF_STATES

    def __init__(self, chain: Chain, log_likelihoods: Tensor) -> None:
        batch, time, size = log_likelihoods.shape
        _check_states(chain, log_likelihoods)
        if bool((log_likelihoods.isnan() | (log_likelihoods == torch.inf)).any()):
            raise InputError("log_likelihoods: must be numbers or -inf")
        largest_BT = log_likelihoods.amax(2)
        self.scale_BT = largest_BT.where(largest_BT > -torch.inf, 0.0)
        least_BT = log_likelihoods.masked_fill(log_likelihoods == -torch.inf, torch.inf).amin(2)
        self.wide_BT = self.scale_BT - least_BT > RANGE
        rows_NS = (log_likelihoods - self.scale_BT[..., None]).exp().reshape(-1, size)
        rows_NS = rows_NS if len(rows_NS) else rows_NS.new_ones(1, size)
        self.num_states, self.num_symbols = size, len(rows_NS)
        self.rows_BT = torch.arange(batch * time).view(batch, time)
        self.law = StateEmitting(chain.initial_S[None], chain.transition_SS[None], rows_NS.T[None])

    def apart(self, starts_T: Tensor, inside_BT: Tensor) -> Iterator[tuple[int, slice]]:
        """The sequences that do not fit in floats: number in the batch, and where they begin and end."""
        for b in self.wide_BT.any(1).nonzero()[:, 0].tolist():
            for part in _parts(starts_T, int(inside_BT[b].sum())):
                yield b, part


def _logs(chain: Chain) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    with np.errstate(divide="ignore"):
        initial_S, moves_SS = map(np.log, _arrays(chain))
    return initial_S, moves_SS


def _forward(chain: Chain, logs_TS: Tensor) -> tuple[Tensor, Tensor]:
    """log P(o_0..o_t, state t) (T, S), and its sum over states (T,)."""
    alpha_TS, total_T = np.empty(logs_TS.shape), np.empty(len(logs_TS))
    logarithms.forward(*_logs(chain), logs_TS.contiguous().numpy(), alpha_TS, total_T)
    return torch.from_numpy(alpha_TS), torch.from_numpy(total_T)


def _smoothed(chain: Chain, logs_TS: Tensor) -> tuple[Tensor, Tensor, float]:
    """P(state t | all) (T, S), the sum of P(state t, state t + 1 | all) (S, S), and log P(all)."""
    alpha_TS, total_T = _forward(chain, logs_TS)
    found, pairs_SS, total = np.zeros(logs_TS.shape), np.zeros(chain.transition_SS.shape), float(total_T[-1])
    if total > -math.inf:
        logs = logs_TS.contiguous().numpy()
        logarithms.backward(_logs(chain)[1], logs, alpha_TS.numpy(), total, found, pairs_SS)
    return torch.from_numpy(found), torch.from_numpy(pairs_SS), total


def _viterbi(chain: Chain, logs_TS: Tensor) -> tuple[Tensor, float]:
    states, pointers = np.empty(len(logs_TS), np.int64), np.empty(logs_TS.shape, np.int64)
    total = logarithms.likeliest(*_logs(chain), logs_TS.contiguous().numpy(), pointers, states)
    return torch.from_numpy(states), float(total)


def _draws(chain: Chain, logs_TS: Tensor, uniforms_PT: Tensor) -> Tensor:
    """Paths (path, T), backward from the last state; -1 for an impossible sequence."""
    alpha_TS, total_T = _forward(chain, logs_TS)
    paths = torch.full((len(uniforms_PT), len(logs_TS)), -1)
    if total_T[-1] == -torch.inf:
        return paths
    for t in range(len(logs_TS) - 1, -1, -1):
        after = 0.0 if t == len(logs_TS) - 1 else chain.transition_SS.T.log()[paths[:, t + 1]]
        law_PS = torch.softmax((alpha_TS[t] + after).expand(len(paths), -1), 1)
        cumulated = law_PS.cumsum(1)
        drawn = torch.searchsorted(cumulated / cumulated[:, -1:], uniforms_PT[:, t : t + 1].contiguous(), right=True)[
            :, 0
        ]
        paths[:, t] = drawn.clamp(max=law_PS.shape[1] - 1)
    return paths
