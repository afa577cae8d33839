"""Inference for chains with many states, as HMMs in which each observation is a distinct symbol.

A sequence is filtered in log space if the states' log-likelihoods of one observation differ by more than `RANGE` nats.
"""

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray

from hmmscope.axes import Tensor
from hmmscope.emissions import log_space_chain
from hmmscope.emissions.states import MarkovChainParams, StateCounts, StatesFiltered, parts_of
from hmmscope.inference.compiled import run_filter
from hmmscope.inference.counts import Counts, add_counts
from hmmscope.inference.filtering import first_impossible
from hmmscope.inference.loop_inputs import flat_sequences, tables
from hmmscope.inference.paths import PathResult, most_likely_states
from hmmscope.inference.ragged import check_ragged
from hmmscope.inference.smoothing import smooth_beliefs
from hmmscope.processes.capabilities import OF_STATES
from hmmscope.processes.params import StateEmissionParams
from hmmscope.processes.process import Process

#: Largest range of log-likelihoods of an observation in the compiled loops, in nats.
RANGE = 600.0


class TableLikelihoodProcess(Process):
    stored_name = "Seen"

    uses_hmm_inference = OF_STATES

    def __init__(self, chain: MarkovChainParams, log_likelihoods: Tensor) -> None:
        batch, time, size = log_likelihoods.shape
        largest_BT = log_likelihoods.amax(2)
        self.scale_BT = largest_BT.where(largest_BT > -torch.inf, 0.0)
        least_BT = log_likelihoods.masked_fill(log_likelihoods == -torch.inf, torch.inf).amin(2)
        self.wide_BT = self.scale_BT - least_BT > RANGE
        rows_NS = (log_likelihoods - self.scale_BT[..., None]).exp().reshape(-1, size)
        rows_NS = rows_NS if len(rows_NS) else rows_NS.new_ones(1, size)
        self.num_states, self.num_symbols = size, len(rows_NS)
        self.rows_BT = torch.arange(batch * time).view(batch, time)
        self.params = StateEmissionParams(chain.initial[None], chain.transition[None], rows_NS.T[None])

    def apart(self, starts_T: Tensor, inside_BT: Tensor) -> Iterator[tuple[int, slice]]:
        """Yield the batch index and the time slice of each sequence that must be filtered in log space."""
        for b in self.wide_BT.any(1).nonzero()[:, 0].tolist():
            for part in parts_of(starts_T, int(inside_BT[b].sum())):
                yield b, part


def filter_many(
    chain: MarkovChainParams, log_likelihoods: Tensor, reset_mask: object, lengths: object
) -> StatesFiltered:
    seen = TableLikelihoodProcess(chain, log_likelihoods)
    rows, mask, inside = check_ragged(seen.rows_BT, seen.alphabet, reset_mask, lengths)
    found = run_filter(seen.params, rows, mask, inside.sum(1))
    beliefs, terms_BT = torch.from_numpy(found.beliefs), torch.from_numpy(found.terms)
    terms_BT = terms_BT + seen.scale_BT.where(inside & (terms_BT > -torch.inf), 0.0)
    for b, part in seen.apart(mask, inside):
        beliefs[b, part], terms_BT[b, part] = log_space_chain.filtered(chain, log_likelihoods[b, part])
    moved = torch.cat([beliefs[:, :1], beliefs[:, :-1] @ chain.transition], 1)
    predicted = torch.where(mask[:, None], chain.initial, moved) * inside[..., None]
    return StatesFiltered(beliefs, predicted, terms_BT, terms_BT.sum(1), first_impossible(terms_BT))


def smooth_many(chain: MarkovChainParams, log_likelihoods: Tensor, reset_mask: object, lengths: object) -> Tensor:
    seen = TableLikelihoodProcess(chain, log_likelihoods)
    _, mask, inside = check_ragged(seen.rows_BT, seen.alphabet, reset_mask, lengths)
    smoothed = smooth_beliefs(seen, seen.rows_BT, reset_mask=reset_mask, lengths=lengths)
    for b, part in seen.apart(mask, inside):
        smoothed[b, part] = log_space_chain.smoothed(chain, log_likelihoods[b, part])[0]
    return smoothed


def viterbi_many_states(
    chain: MarkovChainParams, log_likelihoods: Tensor, reset_mask: object, lengths: object
) -> PathResult:
    seen = TableLikelihoodProcess(chain, log_likelihoods)
    _, mask, inside = check_ragged(seen.rows_BT, seen.alphabet, reset_mask, lengths)
    found = most_likely_states(seen, seen.rows_BT, reset_mask=reset_mask, lengths=lengths)
    states, logs = found.states, found.log_probability + seen.scale_BT.where(inside, 0.0).sum(1)
    for b in dict.fromkeys(b for b, _ in seen.apart(mask, inside)):
        logs[b] = 0.0
        for _, part in (one for one in seen.apart(mask, inside) if one[0] == b):
            states[b, part], log = log_space_chain.likeliest(chain, log_likelihoods[b, part])
            logs[b] += log
    return PathResult(states, logs)


def count_rows_of_many(
    chain: MarkovChainParams, log_likelihoods: Tensor, lengths: Tensor, weights: NDArray[np.float64] | None = None
) -> StateCounts:
    seen = TableLikelihoodProcess(chain, log_likelihoods[None])
    ends = lengths.cumsum(0).tolist()
    parts = [slice(begin, end) for begin, end in zip([0, *ends], ends, strict=False)]
    scale_N = seen.scale_BT[0]
    wide = [bool(seen.wide_BT[0, part].any()) for part in parts]
    counts = np.where(wide, 0, lengths.numpy())
    visits_NS, logs = torch.zeros_like(log_likelihoods), torch.zeros(len(parts), dtype=torch.float64)
    first_S, moves_SS = torch.zeros_like(chain.initial), torch.zeros_like(chain.transition)
    if not all(wide):
        kept = np.repeat(~np.array(wide), lengths.numpy())
        work = flat_sequences(np.flatnonzero(kept), counts)
        work = work if weights is None else work._replace(weights=weights[work.rows])
        found = Counts(first_S.numpy(), moves_SS.numpy(), visits_NS.numpy(), np.zeros(len(parts)))
        add_counts(tables(seen.params), work, found)
        logs = torch.from_numpy(found.logs)
    for number, part in enumerate(parts):
        if wide[number]:
            own_TS, pairs_SS, logs[number] = log_space_chain.smoothed(chain, log_likelihoods[part])
            weight = 1.0 if weights is None else float(weights[number])
            visits_NS[part] = weight * own_TS
            first_S, moves_SS = first_S + visits_NS[part.start], moves_SS + weight * pairs_SS
        else:
            logs[number] += scale_N[part].sum()
    return StateCounts(first_S, moves_SS, visits_NS, logs)
