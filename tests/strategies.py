"""Small random HMMs of every awkward kind, each from a NumPy generator. All probabilities are multiples of 2^-16."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

BITS = 16


class Matrices(NamedTuple):
    initial: NDArray[np.float64]
    transition: NDArray[np.float64]
    emission: NDArray[np.float64]


def rows(rng: np.random.Generator, num_rows: int, num_columns: int, zeros: float = 0.0, bits: int = BITS) -> NDArray:
    """Stochastic rows of multiples of 2^-bits; each entry but one of a row is zero with probability `zeros`."""
    result = np.zeros((num_rows, num_columns))
    for row in result:
        support = rng.random(num_columns) >= zeros
        support[rng.integers(num_columns)] = True
        size = int(support.sum())
        law = rng.dirichlet(np.full(size, rng.choice([0.3, 1.0, 5.0])))
        row[support] = (1 + rng.multinomial(2**bits - size, law)) / 2**bits
    return result


def dense(rng: np.random.Generator, num_states: int, num_symbols: int) -> Matrices:
    initial = rows(rng, 1, num_states)[0]
    return Matrices(initial, rows(rng, num_states, num_states), rows(rng, num_states, num_symbols))


def with_zeros(rng: np.random.Generator, num_states: int, num_symbols: int) -> Matrices:
    return Matrices(
        rows(rng, 1, num_states, 0.5)[0],
        rows(rng, num_states, num_states, 0.5),
        rows(rng, num_states, num_symbols, 0.5),
    )


def deterministic(rng: np.random.Generator, num_states: int, num_symbols: int) -> Matrices:
    """Every row has a single one."""
    return Matrices(
        rows(rng, 1, num_states, 1.0)[0],
        rows(rng, num_states, num_states, 1.0),
        rows(rng, num_states, num_symbols, 1.0),
    )


def absorbing(rng: np.random.Generator, num_states: int, num_symbols: int) -> Matrices:
    """The last state is never left."""
    hmm = dense(rng, num_states, num_symbols)
    hmm.transition[-1] = np.eye(num_states)[-1]
    return hmm._replace(emission=rows(rng, num_states, num_symbols, 0.4))


def periodic(rng: np.random.Generator, num_states: int, num_symbols: int) -> Matrices:
    """State i goes to state i + 1, the last to the first."""
    hmm = dense(rng, num_states, num_symbols)
    return Matrices(hmm.initial, np.roll(np.eye(num_states), 1, axis=1), rows(rng, num_states, num_symbols, 0.4))


def left_right(rng: np.random.Generator, num_states: int, num_symbols: int) -> Matrices:
    """Starts in state 0 and never goes back."""
    transition = np.zeros((num_states, num_states))
    for state in range(num_states):
        transition[state, state:] = rows(rng, 1, num_states - state)[0]
    return Matrices(np.eye(num_states)[0], transition, rows(rng, num_states, num_symbols, 0.4))


KINDS = (dense, with_zeros, deterministic, absorbing, periodic, left_right)


def small_hmm(rng: np.random.Generator) -> Matrices:
    """One of the kinds, with one to four states and one to four symbols."""
    kind = KINDS[rng.integers(len(KINDS))]
    return kind(rng, int(rng.integers(1, 5)), int(rng.integers(1, 5)))


def small_labelled(rng: np.random.Generator) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """(initial, labelled) of a labelled HMM with one to four states and one to four symbols, dense to deterministic."""
    num_states, num_symbols = int(rng.integers(1, 5)), int(rng.integers(1, 5))
    by_state = rows(rng, num_states, num_symbols * num_states, float(rng.choice([0.0, 0.5, 0.8, 1.0])))
    labelled = by_state.reshape(num_states, num_symbols, num_states).transpose(1, 0, 2)
    return rows(rng, 1, num_states, 0.4)[0], np.ascontiguousarray(labelled)


def as_labelled(matrices: Matrices) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The same process with a state more, 0, from which it starts: move, then emit. State s becomes s + 1."""
    initial, transition, emission = matrices
    size = len(initial)
    labelled = np.zeros((emission.shape[1], size + 1, size + 1))
    labelled[:, 0, 1:] = (initial[:, None] * emission).T
    labelled[:, 1:, 1:] = transition[None] * emission.T[:, None]
    return np.eye(size + 1)[0], labelled


def tiny_entries(rng: np.random.Generator, num_states: int, num_symbols: int) -> Matrices:
    """Entries of 0, 2^-32, 2^-31 or what is left: one sequence can have a probability of 2^-64 a step."""

    def row(size: int) -> NDArray[np.float64]:
        entries = rng.choice([0.0, 2.0**-32, 2.0**-31], size)
        entries[rng.integers(size)] = 0.0
        entries[rng.integers(size)] += 1 - entries.sum()
        return entries

    return Matrices(
        row(num_states),
        np.array([row(num_states) for _ in range(num_states)]),
        np.array([row(num_symbols) for _ in range(num_states)]),
    )


def likely(rng: np.random.Generator, matrices: Matrices, time: int) -> list[int]:
    """A sequence drawn from the HMM."""
    symbols, law = [], matrices.initial
    for _ in range(time):
        state = rng.choice(len(law), p=law)
        symbols.append(int(rng.choice(matrices.emission.shape[1], p=matrices.emission[state])))
        law = matrices.transition[state]
    return symbols


def some_starts(rng: np.random.Generator, time: int) -> list[bool]:
    """Restarts at about a third of the times, and at time 0."""
    return [True, *(rng.random(time - 1) < 1 / 3).tolist()] if time else []
