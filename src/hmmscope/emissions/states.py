"""What is known of hidden states, whatever they emit: the chain, and records of answers about it."""

from collections.abc import Iterator
from dataclasses import dataclass

from hmmscope.axes import Float64, Int64, Tensor
from hmmscope.reprs import Shown


@dataclass(frozen=True, repr=False)
class MarkovChainParams(Shown):
    """The law of the hidden states: state_0 ~ initial, state_{t+1} ~ transition[state_t].

    Attributes:
        initial, transition: rows sum to one.
    """

    initial: Float64[Tensor, "state"]
    transition: Float64[Tensor, "state next_state"]


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
        initial: of sequences that begin in a state (state,).
        transitions: of moves from a state to a state (state, state).
        occupancy: P(state t | all observations), the weight of o_t in the emission of each state (batch, time, state).
        log_likelihood: (batch,), nats.
    """

    initial: Float64[Tensor, "state"]
    transitions: Float64[Tensor, "state next_state"]
    occupancy: Float64[Tensor, "batch time state"]
    log_likelihood: Float64[Tensor, "batch"]


def parts_of(starts_T: Tensor, length: int) -> Iterator[slice]:
    """Where the sequences of one row begin and end."""
    begins = starts_T.nonzero()[:, 0].tolist()
    for begin, end in zip(begins, [*begins[1:], length], strict=True):
        if begin < min(end, length):
            yield slice(begin, min(end, length))
