"""Filter, smoother and Viterbi algorithm for any emissions, given log-likelihoods."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from hmmscope.axes import Bool, Float64, Int64, Tensor
from hmmscope.emissions import log_space_chain, many_states_table
from hmmscope.emissions.log_likelihood_loops import MOST, LogLikelihoodBatch, SufficientStatistics, law_of
from hmmscope.emissions.states import MarkovChainParams, StateCounts, StatesFiltered, parts_of
from hmmscope.errors import InputError
from hmmscope.inference.filtering import first_impossible
from hmmscope.inference.paths import PathResult, sample_state_paths
from hmmscope.inference.ragged import check_ragged, counted
from hmmscope.seeds import numpy_generator
from hmmscope.sequences.encoding import Alphabet


def where_seen(
    log_likelihoods: Float64[Tensor, "batch time state"], seen: Bool[Tensor, "batch time"]
) -> Float64[Tensor, "batch time state"]:
    return log_likelihoods.where(seen[..., None], 0.0)


def filter_states(
    chain: MarkovChainParams,
    log_likelihoods: Float64[Tensor, "batch time state"],
    *,
    reset_mask: object = None,
    lengths: object = None,
) -> StatesFiltered:
    """Run the forward filter.

    predicted_t = belief_{t-1} @ transition, or initial at a sequence start;
    belief_t ∝ exp(log_likelihoods_t) * predicted_t

    Args:
        chain: Markov chain.
        log_likelihoods: log P(o_t | state) or log densities (batch, time, state), in nats; -inf where impossible.
        reset_mask, lengths: See `filter_beliefs`.

    Raises:
        InputError: `chain` and `log_likelihoods` differ in the number of states, an entry is NaN or +inf, or
            `reset_mask` or `lengths` is invalid.
    """
    _check(chain, log_likelihoods)
    if log_likelihoods.shape[2] > MOST:
        return many_states_table.filter_many(chain, log_likelihoods, reset_mask, lengths)
    given, mask = _given(chain, log_likelihoods, reset_mask, lengths)
    found, shape = given.filtered(), log_likelihoods.shape
    known, ahead = (torch.from_numpy(part).view(shape) for part in (found.beliefs, found.predicted))
    terms_BT = torch.from_numpy(found.terms).view(shape[:2])
    for b, part in _doubtful(given, found.underflow_risk, mask):
        known[b, part], terms_BT[b, part] = log_space_chain.filtered(chain, log_likelihoods[b, part])
        ahead[b, part.start] = chain.initial
        ahead[b, part.start + 1 : part.stop] = known[b, part.start : part.stop - 1] @ chain.transition
    return StatesFiltered(known, ahead, terms_BT, terms_BT.sum(1), first_impossible(terms_BT))


def log_likelihood_of(
    chain: MarkovChainParams, log_likelihoods: Float64[Tensor, "batch time state"], *, lengths: object = None
) -> Float64[Tensor, " batch"]:
    _check(chain, log_likelihoods)
    if log_likelihoods.shape[2] > MOST:
        return many_states_table.filter_many(chain, log_likelihoods, None, lengths).log_likelihood
    given, mask = _given(chain, log_likelihoods, None, lengths)
    found, logs_B = given.total(), torch.zeros(len(log_likelihoods), dtype=torch.float64)
    found.totals[found.underflow_risk] = 0.0
    logs_B[given.work.rows] = torch.from_numpy(found.totals)
    for b, part in _doubtful(given, found.underflow_risk, mask):
        logs_B[b] += log_space_chain.filtered(chain, log_likelihoods[b, part])[1].sum()
    return logs_B


def _check(chain: MarkovChainParams, log_likelihoods: Tensor) -> None:
    if log_likelihoods.shape[-1] != len(chain.initial):
        raise InputError(f"log_likelihoods: must have {len(chain.initial)} states, got {log_likelihoods.shape[-1]}")
    if log_likelihoods.numel() and not float(log_likelihoods.max()) < torch.inf:
        raise InputError("log_likelihoods: must be finite numbers or -inf, got NaN or +inf")


def _given(
    chain: MarkovChainParams, log_likelihoods: Tensor, reset_mask: object, lengths: object
) -> tuple[LogLikelihoodBatch, Bool[Tensor, " time"]]:
    batch, time, size = log_likelihoods.shape
    params = law_of(chain.initial.numpy(), chain.transition.numpy())
    if reset_mask is None and lengths is None and time:
        mask, rows = torch.zeros(time, dtype=torch.bool), np.arange(batch)
        mask[0] = True
        flat = log_likelihoods.reshape(-1, size).numpy()
        return LogLikelihoodBatch(params, flat, rows * time, np.full(batch, time), mask.numpy(), rows), mask
    nothing = torch.zeros(1, 1, dtype=torch.int64).expand(batch, time)
    _, mask, inside = check_ragged(nothing, Alphabet(None, 1), reset_mask, lengths)
    if len(inside) != batch:
        raise InputError(f"lengths: must be {batch} integers in [0, {time}]")
    counts = counted(inside).numpy()
    rows = np.flatnonzero(counts)
    return LogLikelihoodBatch(
        params, log_likelihoods.reshape(-1, size).numpy(), rows * time, counts[rows], mask.numpy(), rows
    ), mask


def _doubtful(
    given: LogLikelihoodBatch, doubtful: NDArray[np.bool_], reset_mask: Tensor
) -> Iterator[tuple[int, slice]]:
    for n in np.flatnonzero(doubtful).tolist():
        for part in parts_of(reset_mask, int(given.work.lengths[n])):
            yield int(given.work.rows[n]), part


def smooth_states(
    chain: MarkovChainParams,
    log_likelihoods: Float64[Tensor, "batch time state"],
    *,
    reset_mask: object = None,
    lengths: object = None,
) -> Float64[Tensor, "batch time state"]:
    _check(chain, log_likelihoods)
    if log_likelihoods.shape[2] > MOST:
        return many_states_table.smooth_many(chain, log_likelihoods, reset_mask, lengths)
    return _smoothed(chain, log_likelihoods, reset_mask, lengths)[0]


def smooth_and_score(
    chain: MarkovChainParams, log_likelihoods: Float64[Tensor, "batch time state"], *, lengths: object = None
) -> tuple[Float64[Tensor, "batch time state"], Float64[Tensor, " batch"]]:
    """Compute P(state t | all observations) and the log-likelihoods of the sequences."""
    _check(chain, log_likelihoods)
    if log_likelihoods.shape[2] > MOST:
        logs_B = log_likelihood_of(chain, log_likelihoods, lengths=lengths)
        return many_states_table.smooth_many(chain, log_likelihoods, None, lengths), logs_B
    return _smoothed(chain, log_likelihoods, None, lengths)


def _smoothed(
    chain: MarkovChainParams, log_likelihoods: Tensor, reset_mask: object, lengths: object
) -> tuple[Float64[Tensor, "batch time state"], Float64[Tensor, " batch"]]:
    given, mask = _given(chain, log_likelihoods, reset_mask, lengths)
    found = given.smoothed()
    smoothed = torch.from_numpy(found.beliefs).view(log_likelihoods.shape)
    smoothed[given.work.rows[found.totals == -np.inf]] = 0.0
    found.totals[found.underflow_risk] = 0.0
    logs_B = torch.zeros(len(log_likelihoods), dtype=torch.float64)
    logs_B[given.work.rows] = torch.from_numpy(found.totals)
    for b, part in _doubtful(given, found.underflow_risk, mask):
        smoothed[b, part], _, total = log_space_chain.smoothed(chain, log_likelihoods[b, part])
        logs_B[b] += total
    return smoothed, logs_B


def viterbi_states(
    chain: MarkovChainParams,
    log_likelihoods: Float64[Tensor, "batch time state"],
    *,
    reset_mask: object = None,
    lengths: object = None,
) -> PathResult:
    _check(chain, log_likelihoods)
    if log_likelihoods.shape[2] > MOST:
        return many_states_table.viterbi_many_states(chain, log_likelihoods, reset_mask, lengths)
    given, _ = _given(chain, log_likelihoods, reset_mask, lengths)
    paths, found = given.viterbi()
    logs = torch.zeros(len(log_likelihoods), dtype=torch.float64)
    logs[given.work.rows] = torch.from_numpy(found)
    return PathResult(torch.from_numpy(paths).view(log_likelihoods.shape[:2]), logs)


def draw_states(
    chain: MarkovChainParams,
    log_likelihoods: Float64[Tensor, "batch time state"],
    *,
    num_paths: int = 1,
    seed: int = 0,
    reset_mask: object = None,
    lengths: object = None,
) -> Int64[Tensor, "path batch time"]:
    _check(chain, log_likelihoods)
    seen = many_states_table.TableLikelihoodProcess(chain, log_likelihoods)
    _, mask, inside = check_ragged(seen.rows_BT, seen.alphabet, reset_mask, lengths)
    paths = sample_state_paths(
        seen, seen.rows_BT, num_paths=num_paths, seed=seed, reset_mask=reset_mask, lengths=lengths
    )
    for b, part in seen.apart(mask, inside):
        uniforms = numpy_generator(seed, "state-paths", b).random((num_paths, inside.shape[1]))
        paths[:, b, part] = log_space_chain.drawn(chain, log_likelihoods[b, part], torch.from_numpy(uniforms)[:, part])
    return paths


def count_rows(
    chain: MarkovChainParams,
    log_likelihoods: Float64[Tensor, "row state"],
    lengths: Int64[Tensor, " sequence"],
    weights: NDArray[np.float64] | None = None,
) -> StateCounts:
    """Compute expected counts of sequences with one row per observation; the occupancy has shape (row, state).

    Args:
        chain: Markov chain.
        log_likelihoods: log P(o | state) of each row (row, state).
        lengths: Number of rows of each sequence, at least 1.
        weights: Weight of each sequence in counts and occupancies (default: 1).

    The counts are invalid if a sequence has probability zero.
    """
    _check(chain, log_likelihoods)
    if log_likelihoods.shape[1] > MOST:
        return many_states_table.count_rows_of_many(chain, log_likelihoods, lengths, weights)
    params = law_of(chain.initial.numpy(), chain.transition.numpy())
    starts, counts = np.arange(int(lengths.max())) == 0, lengths.numpy()
    about = counts.cumsum() - counts, counts, starts, np.arange(len(counts)), weights
    found = _counted(chain, LogLikelihoodBatch(params, log_likelihoods.numpy(), *about))
    if weights is None:
        return found
    return replace(found, occupancy=found.occupancy * torch.from_numpy(np.repeat(weights, counts))[:, None])


def _counted(chain: MarkovChainParams, given: LogLikelihoodBatch) -> StateCounts:
    sums = SufficientStatistics(np.zeros(len(chain.initial)), np.zeros(chain.transition.shape))
    found = given.smoothed(sums)
    first_S, moves_SS, visits_NS = (torch.from_numpy(part) for part in (*sums, found.beliefs))
    for n in np.flatnonzero(found.underflow_risk).tolist():
        own = slice(given.work.offsets[n], given.work.offsets[n] + given.work.lengths[n])
        visits_NS[own], pairs_SS, found.totals[n] = log_space_chain.smoothed(chain, torch.from_numpy(given.rows[own]))
        weight = 1.0 if given.work.weights is None else float(given.work.weights[n])
        first_S, moves_SS = first_S + weight * visits_NS[own.start], moves_SS + weight * pairs_SS
    return StateCounts(first_S, moves_SS, visits_NS, torch.from_numpy(found.totals))
