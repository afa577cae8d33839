"""Whole hidden paths: the likeliest one, and draws from their posterior law."""

from dataclasses import dataclass

import torch

from hmmscope.axes import Float64, Int, Int64, Tensor
from hmmscope.errors import InputError
from hmmscope.inference.history import FilterHistory, filter_history
from hmmscope.inference.mixture import CHUNK_BYTES
from hmmscope.inference.ragged import check_ragged
from hmmscope.processes.hmm import HMM
from hmmscope.processes.labelled import LabelledHMM
from hmmscope.processes.laws import EdgeEmitting, Law, StateEmitting
from hmmscope.seeds import numpy_generator


@dataclass(frozen=True)
class PathResult:
    """The likeliest path of each sequence.

    Attributes:
        states: (batch, time); -1 everywhere for an impossible sequence, and beyond the end of a shorter one.
        log_probability: log P(states, o_0..o_{T-1}) of that path (batch,), nats; -inf for an impossible sequence. Never
            above the log-likelihood, which is over all paths.
    """

    states: Int64[Tensor, "batch time"]
    log_probability: Float64[Tensor, "batch"]


def most_likely_states(
    hmm: HMM | LabelledHMM, observations: Int[Tensor, "batch time"], *, starts: object = None, lengths: object = None
) -> PathResult:
    """The path of states with the largest joint probability (Viterbi), in logarithms.

    best_0(j) = log initial[j] + log emission[j, o_0]
    best_t(j) = max_i (best_{t-1}(i) + log transition[i, j]) + log emission[j, o_t]

    Where transitions emit, log labelled[o_t][i, j] takes the place of transition and emission, and the start state,
    which is not part of the path, is summed over: best_0 = log(initial @ labelled[o_0]).

    Ties go to the lowest last state, then to the lowest state before it, and so on. They are ties of rounded sums of
    logarithms: paths whose probabilities differ by less than a relative T * 2^-52 may change places.

    Source: Viterbi (1967).

    Args:
        hmm: S states, V symbols; states or transitions emit.
        observations: symbols in [0, V), shape (batch, time).
        starts: optional mask (time,), true where a new sequence begins; the first is true.
        lengths: optional number of observations of each sequence (batch,); what lies beyond is padding.

    Raises:
        InputError: a symbol outside [0, V); bad starts or lengths.

    Cost: O(batch * time * S^2), in chunks of sequences.
    """
    checked, mask, inside = check_ragged(observations, hmm.num_symbols, starts, lengths)
    chunk = max(1, CHUNK_BYTES // (8 * hmm.num_states**2))
    states, logs = [], []
    for begin in range(0, max(len(checked), 1), chunk):
        part = slice(begin, begin + chunk)
        path, log = _viterbi(hmm.law, checked[part], mask, inside[part])
        states.append(path)
        logs.append(log)
    return PathResult(torch.cat(states), torch.cat(logs))


def _viterbi(law: Law, observations_BT: Tensor, starts_T: Tensor, inside_BT: Tensor) -> tuple[Tensor, Tensor]:
    batch, time = observations_BT.shape
    size = law.initial_MS.shape[1]
    log_steps = law.transition_MSS.log() if isinstance(law, StateEmitting) else law.labelled_MVSS[0].log()
    best_BS = torch.zeros(batch, size, dtype=torch.float64)
    earlier_BTS = torch.zeros(batch, time, size, dtype=torch.int64)
    for t in range(time):
        symbols_B = observations_BT[:, t]
        if starts_T[t]:  # all earlier states lead here alike: the best of them, its log-probability carried on
            total_B1, argmax_B1 = best_BS.max(1, keepdim=True)
            arrived_BS = total_B1 if t else torch.zeros(batch, 1, dtype=torch.float64)
            longer_BS, earlier_BS = arrived_BS + _log_first(law, symbols_B), argmax_B1.expand(-1, size)
        else:
            steps = log_steps if isinstance(law, StateEmitting) else log_steps[symbols_B]
            longer_BS, earlier_BS = (best_BS[:, :, None] + steps).max(1)
            if isinstance(law, StateEmitting):
                longer_BS = longer_BS + law.emission_MSV[0].T[symbols_B].log()
        earlier_BTS[:, t] = torch.where(inside_BT[:, t, None], earlier_BS, torch.arange(size))  # stay within padding
        best_BS = torch.where(inside_BT[:, t, None], longer_BS, best_BS)
    log_B, state_B = best_BS.max(1)
    log_B = torch.where(inside_BT.any(1), log_B, 0.0)
    path_BT = torch.empty(batch, time, dtype=torch.int64)
    for t in reversed(range(time)):
        path_BT[:, t] = state_B
        state_B = earlier_BTS[:, t].gather(1, state_B[:, None])[:, 0]
    found_BT = inside_BT & (log_B > -torch.inf)[:, None]
    return torch.where(found_BT, path_BT, -1), log_B


def _log_first(law: Law, symbols_B: Tensor) -> Tensor:
    """log P(first state, first observation) (batch, state)."""
    if isinstance(law, StateEmitting):
        return (law.initial_MS * law.emission_MSV[0].T[symbols_B]).log()
    return (law.initial_MS[0] @ law.labelled_MVSS[0])[symbols_B].log()


def sample_state_paths(
    hmm: HMM | LabelledHMM,
    observations: Int[Tensor, "batch time"],
    *,
    num_paths: int = 1,
    seed: int = 0,
    indices: object = None,
    starts: object = None,
    lengths: object = None,
) -> Int64[Tensor, "path batch time"]:
    """Draws from P(states | o_0..o_{T-1}), the law of the hidden path given all observations.

    state_{T-1} ~ belief_{T-1}
    P(state_t = i | state_{t+1} = j, o) ∝ belief_t(i) * transition[i, j]

    Source: forward filtering, backward sampling; Scott (2002), "Bayesian methods for hidden Markov models".

    Args:
        hmm, observations, starts, lengths: as for `most_likely_states`.
        num_paths: draws for each sequence; the first are the same whatever their number.
        seed: in [0, 2^32).
        indices: the number (batch,) of the stream of random numbers of each sequence; 0, 1, .. if not given. A sequence
            with the same seed and number has the same draws in any batch.

    Returns:
        (path, batch, time); -1 for an impossible sequence and beyond the end of a shorter one. A path of probability
        zero is never drawn.

    Cost: the filter's, and O(num_paths * batch * time * S).
    """
    history = filter_history(hmm, observations, starts, lengths)
    batch, time = history.observations.shape
    numbers = torch.arange(batch) if indices is None else torch.as_tensor(indices)
    if numbers.shape != (batch,) or numbers.dtype.is_floating_point or bool((numbers < 0).any()):
        raise InputError(f"indices: must be {batch} whole numbers of at least 0")
    if num_paths < 0:
        raise InputError(f"num_paths: must be at least 0, got {num_paths}")
    uniform_PBT = torch.zeros(num_paths, batch, time, dtype=torch.float64)
    for b, (number, length) in enumerate(zip(numbers.tolist(), history.inside.sum(1).tolist(), strict=True)):
        drawn = numpy_generator(seed, "state-paths", number).random((num_paths, length))
        uniform_PBT[:, b, :length] = torch.from_numpy(drawn)
    paths_PBT = torch.full((num_paths, batch, time), -1, dtype=torch.int64)
    later_PB = torch.zeros(num_paths, batch, dtype=torch.int64)
    real_BT = history.inside & history.possible[:, None]
    for t in reversed(range(time)):
        drawn_PB = _draw(_weights(history, t, later_PB), uniform_PBT[:, :, t])
        later_PB = torch.where(real_BT[:, t], drawn_PB, 0)
        paths_PBT[:, :, t] = torch.where(real_BT[:, t], drawn_PB, -1)
    return paths_PBT


def _weights(history: FilterHistory, t: int, later_PB: Tensor) -> Tensor:
    """Weights of state t given the state after it (path, batch, state)."""
    law, belief_BS = history.law, history.filtered.beliefs[:, t]
    alone = belief_BS.expand(len(later_PB), -1, -1)
    if t + 1 == history.last.shape[1]:
        return alone
    if isinstance(law, EdgeEmitting):
        columns_PBS = law.labelled_MVSS[0].transpose(1, 2)[history.observations[:, t + 1], later_PB]
    else:
        columns_PBS = law.transition_MSS[0].T[later_PB]
    weights_PBS = belief_BS * columns_PBS
    if len(history.risky):
        logs = history.log_beliefs[:, t] + columns_PBS[:, history.risky].log()
        weights_PBS[:, history.risky] = (logs - logs.amax(-1, keepdim=True)).exp()
    return torch.where(history.last[:, t, None], alone, weights_PBS)


def _draw(weights: Tensor, uniform: Tensor) -> Tensor:
    """The first state whose cumulative weight exceeds `uniform` < 1 of the total: never one of weight zero."""
    cumulative = weights.cumsum(-1)
    return torch.searchsorted(cumulative, (uniform * cumulative[..., -1])[..., None], right=True)[..., 0]
