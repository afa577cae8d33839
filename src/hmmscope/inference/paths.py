"""Hidden paths: the Viterbi path and posterior samples."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hmmscope.axes import Float64, Int64, Tensor
from hmmscope.inference import loop_inputs
from hmmscope.inference.compiled import ScaledBeliefs, filter_batch
from hmmscope.inference.known_states import condition
from hmmscope.inference.loop_inputs import (
    NO_ENTRIES,
    PackedSequences,
    SparseEntries,
    Tables,
    in_blocks,
    one_by_one,
    padded,
    paths_side_by_side,
    sequences,
    tables,
)
from hmmscope.inference.mixture_posterior import by_component
from hmmscope.inference.ragged import check_own, check_ragged, counted, integers_of
from hmmscope.kernels import simd_over_states, sparse, underflow_safe
from hmmscope.kernels.vectors import row_length
from hmmscope.kernels.viterbi import likeliest, path_terms
from hmmscope.processes.capabilities import COMPONENTS, PATHS
from hmmscope.processes.make import as_process
from hmmscope.processes.observations import Observations
from hmmscope.processes.params import seeing
from hmmscope.processes.process import Process
from hmmscope.reprs import Shown
from hmmscope.schema import require_count
from hmmscope.seeds import numpy_generator
from hmmscope.system_info import require_memory

#: Log-probabilities of compared paths are multiples of 1 / _GRID.
_GRID = 2.0**36


@dataclass(frozen=True, repr=False)
class PathResult(Shown):
    """Most likely hidden path (Viterbi path) of each sequence.

    Attributes:
        states: Most likely states (batch, time); -1 in padding and in sequences of probability zero.
        log_probability: log P(states, o_0..o_{T-1}) (batch,), in nats; for a mixture, jointly with the component.
        component: Component of each path of a mixture (batch,), else None.
    """

    states: Int64[Tensor, "batch time"]
    log_probability: Float64[Tensor, " batch"]
    component: Int64[Tensor, " batch"] | None = None


def most_likely_states(
    hmm: Process | str,
    observations: Observations,
    *,
    reset_mask: object = None,
    lengths: object = None,
    known_states: Any = None,
    inputs: Any = None,
) -> PathResult:
    """Compute the most likely state sequence (Viterbi path).

    best_0(j) = log initial[j] + log emission[j, o_0]
    best_t(j) = max_i (best_{t-1}(i) + log transition[i, j]) + log emission[j, o_t]

    For a mixture, component and path are maximized jointly. For edge emissions, the state before the first transition
    is summed out. Among equally likely paths, the result has the lowest component, then the lowest last state, then the
    lowest state before it, and so on. Log-probabilities are compared in multiples of 2^-36.

    Source: Viterbi (1967).

    Args:
        hmm: HMM with S states and V symbols, or a mixture.
        observations, reset_mask, lengths, known_states, inputs: See `filter_beliefs`.

    Raises:
        InputError: A symbol, `reset_mask` or `lengths` is invalid.
    """
    hmm = as_process(hmm)
    if known_states is not None or inputs is not None:
        given = condition(hmm, observations, known_states, inputs=inputs, reset_mask=reset_mask, lengths=lengths)
        return most_likely_states(given.process, given.observations, **given.options)
    if COMPONENTS in hmm.uses_hmm_inference:
        return _of_mixture(hmm, observations, reset_mask, lengths)
    if PATHS not in hmm.uses_hmm_inference:
        own, inside = check_own(hmm, observations, lengths)
        states, logs = hmm.viterbi(own, reset_mask=reset_mask)
        return PathResult(states.where(inside, -1), logs)
    checked, mask, inside = check_ragged(observations, hmm.alphabet, reset_mask, lengths)
    process, work = tables(seeing(hmm.params, checked)), sequences(checked, mask, counted(inside))
    with np.errstate(divide="ignore"):
        exact = Tables(*(np.log(part) for part in process))
    rounded = Tables(*(np.rint(part * _GRID) / _GRID for part in exact))
    entries = None
    if one_by_one(process):
        entries = process.into._replace(weights=np.rint(np.log(process.into.weights) * _GRID) / _GRID)
    narrow = paths_side_by_side(process, work)
    return viterbi_paths(exact, rounded, work, checked.shape, narrow=narrow, entries=entries)


def _of_mixture(mixture: Process, observations: Observations, reset_mask: object, lengths: object) -> PathResult:
    asked = by_component(mixture, observations, reset_mask, lengths)
    states, best = torch.full_like(asked.observations, -1), torch.full(asked.weights.shape[:1], -torch.inf).double()
    component = torch.full_like(best, -1, dtype=torch.int64)
    for number in asked.likely:
        own = most_likely_states(mixture.component(number), asked.observations, **asked.options)
        joint = own.log_probability + mixture.component_weights[number].log()
        better = (joint * _GRID).round() > (best * _GRID).round()
        states, best = torch.where(better[:, None], own.states, states), torch.where(better, joint, best)
        component = component.masked_fill(better, number)
    return PathResult(states, best, component)


def viterbi_paths(
    exact: Tables,
    compared: Tables,
    work: PackedSequences,
    shape: Sequence[int],
    *,
    narrow: bool,
    highest_end: bool = False,
    entries: SparseEntries | None = None,
) -> PathResult:
    """Compute Viterbi paths from log-probabilities.

    Args:
        exact: Tables of log-probabilities that give the probability in the result.
        compared: Rounded tables that rank the paths.
        work: Packed sequences.
        shape: Shape (batch, time) of the result.
        narrow: Whether to use SIMD over states.
        highest_end: Whether the highest last state wins a tie.
        entries: Sparse transitions of `compared` by target state.
    """
    first, step, emission = compared
    batch, time = shape
    transposed = np.ascontiguousarray(step.transpose(0, 2, 1))
    size = exact.num_states
    states, found = np.full(batch * time, -1), np.empty(len(work.rows))
    longest, small = int(work.lengths.max(initial=0)), np.uint8 if size <= 256 else np.uint16

    def run(part: slice) -> None:
        own = work.part(part)
        pointers = np.empty((longest, size, min(len(work.width), len(own.rows))), small)
        likeliest(
            work.width, first, transposed, emission, *own[:3], own.starts, highest_end, pointers, states, found[part]
        )

    def run_side_by_side(part: slice) -> None:
        own, flat = work.part(part), padded(compared, kind, filling=-np.inf)
        pointers = np.empty(longest * row_length(kind), np.uint8)
        simd_over_states.likeliest(*flat, *own[:3], own.starts, highest_end, pointers, states, found[part])

    def run_by_rows(part: slice) -> None:
        own, pointers = work.part(part), np.empty((longest, size), small)
        known = *(entries or NO_ENTRIES), emission, *own[:3], own.starts, highest_end
        sparse.likeliest(first, step, *known, pointers, states, found[part])

    if entries is None and narrow:
        kind = simd_over_states.states_of(simd_over_states.likeliest, size, work.lengths)
        in_blocks(work, len(work.rows), run_side_by_side, together=1)
    elif entries is not None or loop_inputs.most_side_by_side:
        in_blocks(work, len(work.rows), run_by_rows, together=1)
    else:
        in_blocks(work, len(work.rows), run)
    terms_BT = np.zeros((batch, time))
    path_terms(*exact, *work[:3], work.starts, states, terms_BT.reshape(-1))
    return PathResult(torch.from_numpy(states.reshape(batch, time)), torch.from_numpy(terms_BT.sum(1)))


def sample_state_paths(
    hmm: Process | str,
    observations: Observations,
    *,
    num_paths: int = 1,
    seed: int = 0,
    indices: object = None,
    reset_mask: object = None,
    lengths: object = None,
    known_states: Any = None,
    inputs: Any = None,
) -> Int64[Tensor, "path batch time"]:
    """Sample hidden paths from P(states | o_0..o_{T-1}).

    state_{T-1} ~ belief_{T-1};  P(state_t = i | state_{t+1} = j, o) ∝ belief_t(i) * transition[i, j]

    For a mixture, the component is drawn first.

    Source: forward filtering, backward sampling; Scott (2002).

    Args:
        hmm, observations, reset_mask, lengths, known_states, inputs: See `most_likely_states`.
        num_paths: Number of paths per sequence.
        seed: Seed in [0, 2^32).
        indices: Index of each sequence's random stream (batch,) (default: 0, 1, ..).

    Returns:
        States (path, batch, time); -1 in padding and in sequences of probability zero.
    """
    hmm = as_process(hmm)
    if known_states is not None or inputs is not None:
        given = condition(hmm, observations, known_states, inputs=inputs, reset_mask=reset_mask, lengths=lengths)
        options = given.options | {"num_paths": num_paths, "seed": seed, "indices": indices}
        return sample_state_paths(given.process, given.observations, **options)
    if PATHS not in hmm.uses_hmm_inference:
        own, inside = check_own(hmm, observations, lengths)
        paths = hmm.sample_posterior_paths(own, num_paths=num_paths, seed=seed, reset_mask=reset_mask)
        return paths.where(inside, -1)
    require_count("num_paths", num_paths, 0)
    if COMPONENTS in hmm.uses_hmm_inference:
        asked = by_component(hmm, observations, reset_mask, lengths)
        numbers = _streams(indices, len(asked.weights))
        sample = partial(sample_state_paths, num_paths=num_paths, indices=numbers)
        return asked.draw(sample, num_paths, seed, "component-of-paths", numbers.tolist())
    filtered = filter_batch(hmm, observations, reset_mask, lengths)
    batch, time, size = filtered.beliefs.shape
    numbers = _streams(indices, batch)
    work, emits, transposed = filtered.work, filtered.tables.states_emit, filtered.tables.transposed()
    require_memory("sample_state_paths", 8 * batch * num_paths * time)
    paths_BPT = np.full((batch, num_paths, time), -1)
    possible_B: NDArray[np.bool_] = np.all(filtered.terms > -np.inf, axis=1)
    for row, offset, length in zip(work.rows.tolist(), work.offsets.tolist(), work.lengths.tolist(), strict=True):
        if possible_B[row]:
            uniforms = numpy_generator(seed, "state-paths", int(numbers[row])).random((num_paths, length))
            known = ScaledBeliefs(filtered.beliefs[row, :length], np.empty((0, size), np.int64))
            underflow_safe.draw(
                *(transposed, emits, work.symbols[offset : offset + length], work.starts),
                *(*filtered.underflow_risk.get(row, known), uniforms, paths_BPT[row, :, :length]),
            )
    return torch.from_numpy(paths_BPT).transpose(0, 1)


def _streams(indices: object, batch: int) -> Int64[Tensor, " batch"]:
    return torch.arange(batch) if indices is None else integers_of("indices", indices, batch)
