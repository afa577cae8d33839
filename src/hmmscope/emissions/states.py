"""Markov chain parameters and posteriors of states, for any emission family."""

from collections.abc import Iterator
from dataclasses import dataclass

from hmmscope.axes import Float64, Int64, Tensor
from hmmscope.reprs import Shown


@dataclass(frozen=True, repr=False)
class MarkovChainParams(Shown):
    """Markov chain: state_0 ~ initial;  state_{t+1} ~ transition[state_t].

    Attributes:
        initial, transition: Probabilities (state,) and (state, state); rows sum to one.
    """

    initial: Float64[Tensor, " state"]
    transition: Float64[Tensor, "state next_state"]


@dataclass(frozen=True, repr=False)
class StatesFiltered(Shown):
    """Result of the forward filter.

    Attributes:
        beliefs: P(state t | o_0..o_t) (batch, time, state).
        predicted: P(state t | o_0..o_{t-1}).
        log_likelihood_terms: log P(o_t | o_0..o_{t-1}), in nats.
        log_likelihood: Sum of `log_likelihood_terms` over time (batch,).
        impossible_at: First t at which o_0..o_t has probability zero (batch,), or -1.
    """

    beliefs: Float64[Tensor, "batch time state"]
    predicted: Float64[Tensor, "batch time state"]
    log_likelihood_terms: Float64[Tensor, "batch time"]
    log_likelihood: Float64[Tensor, " batch"]
    impossible_at: Int64[Tensor, " batch"]


@dataclass(frozen=True, repr=False)
class StateCounts(Shown):
    """Expected counts given all observations.

    Attributes:
        initial: Expected number of sequence starts in each state (state,).
        transitions: Expected number of transitions (state, state).
        occupancy: P(state t | all observations) (batch, time, state).
        log_likelihood: Log-likelihood of each sequence (batch,), in nats.
    """

    initial: Float64[Tensor, " state"]
    transitions: Float64[Tensor, "state next_state"]
    occupancy: Float64[Tensor, "batch time state"]
    log_likelihood: Float64[Tensor, " batch"]


def parts_of(starts_T: Tensor, length: int) -> Iterator[slice]:
    begins = starts_T.nonzero()[:, 0].tolist()
    for begin, end in zip(begins, [*begins[1:], length], strict=True):
        if begin < min(end, length):
            yield slice(begin, min(end, length))
