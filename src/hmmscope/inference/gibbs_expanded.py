"""Gibbs sampling with inputs, durations, known states or tied entries."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from hmmscope.errors import InputError
from hmmscope.inference.constrained_laws import RowLaws
from hmmscope.inference.gibbs import PIECE, SPREAD, Chains, Draws, dirichlet_rows, matched
from hmmscope.inference.known_states import paired
from hmmscope.inference.loop_inputs import StateSets
from hmmscope.kernels.state_draws import draw_paths
from hmmscope.processes.process import Process
from hmmscope.reprs import Shown
from hmmscope.sequences.data import SequenceData

Array = NDArray[np.float64]
Path = NDArray[np.int64]
#: Parameters, their counts or their priors, by name.
Rows = Mapping[str, Array]


@runtime_checkable
class Expansion(Protocol):
    """HMM that expresses inputs, durations or known states by expanded states, such as (state, remaining steps)."""

    @property
    def codes(self) -> Path:
        """Index of each observation's row in the likelihoods from `arrays` (N,)."""

    def arrays(self, rows: Rows) -> tuple[Array, Array, Array]:
        """Return initial and transition probabilities, and likelihoods P(observation | expanded state) (row, state)."""

    def counts(self, first: Array, moves: Array, path: Path) -> Rows:
        """Count first states, transitions and emissions along a path of expanded states."""

    def shown(self, path: Path) -> Path:
        """Convert a path of expanded states to states of the model."""


def expanded_draws(
    expansion: Expansion,
    data: tuple[Path, Path, Path],
    start: Rows,
    priors: Rows,
    reference: Path,
    chains: Chains,
    laws: RowLaws,
    orders: NDArray[np.int64] | None = None,
) -> Draws:
    """Sample parameters given sequences, as `symbol_draws` does.

    Args:
        expansion: Model with expanded states.
        data: `expansion.codes`, and the offsets and lengths of the sequences.
        start: Parameters before the first sweep, positive where `priors` are.
        priors: Dirichlet concentrations of the parameters.
        reference, orders: See `symbol_draws`.
        chains: Settings of the Markov chains.
        laws: Priors of constrained parameter arrays, by name.
    """
    names, size = list(start), len(start["initial"])

    def chain(number: int, random: np.random.Generator) -> Sequence[Array]:
        kept = [np.empty((chains.num_draws, *start[name].shape)) for name in names]
        logs, agreement = np.empty(chains.num_draws), np.zeros((chains.num_draws, size, size))
        rows, spread, done, unheard = start, SPREAD if number else 1.0, 0, 0
        for sweep in range(-1, chains.warm_up + chains.every * (chains.num_draws - 1) + 1):
            initial, step, table = expansion.arrays(rows)
            beliefs, path = np.empty((len(data[0]), len(initial))), np.empty(len(data[0]), np.int64)
            first, moves = np.empty(len(initial)), np.empty_like(step)
            log = draw_paths(initial, step, table, *data, random, beliefs, path, first, moves)
            if log == -np.inf:
                raise InputError("start: a sequence has probability zero under this model; make zero entries positive")
            number_of, rest = divmod(sweep - chains.warm_up, chains.every)
            if number_of >= 0 and rest == 0:
                for own, name in zip(kept, names, strict=True):
                    own[number_of] = rows[name]
                logs[number_of] = log
                done = number_of + 1
                if len(reference):
                    np.add.at(agreement[number_of], (expansion.shown(path), reference), 1.0)
            counts = expansion.counts(first, moves, path)
            counts = {name: spread * counts[name] for name in names}
            rows = {
                name: laws[name].draw(counts[name][None], random, rows[name])[0]
                if name in laws
                else dirichlet_rows(priors[name] + counts[name], random)
                for name in names
            }
            spread, unheard = 1.0, (unheard + 1) % PIECE
            if unheard == 0 and chains.callback(PIECE) is True:
                return *(own[:done] for own in kept), logs[:done], agreement[:done]
        return *kept, logs, agreement

    *parts, logs, agreement = chains.run(chain)
    arrays = dict(zip(names, parts, strict=True))
    by_input = arrays["transition"].ndim == 5  # (chain, draw, input, state, next state)
    if by_input:
        arrays = {name: part if part.ndim == 3 else np.moveaxis(part, 2, -1) for name, part in arrays.items()}
    found = matched(arrays, logs, agreement if len(reference) else None, orders=orders)
    if by_input:
        back = {name: part if part.ndim == 3 else np.moveaxis(part, -1, 2) for name, part in found.arrays.items()}
        found = Draws(back, found.log_likelihood, found.relabelled_fraction)
    return found


def _emitted(path: Path, symbols: Path, num_states: int, num_symbols: int) -> Array:
    codes = path * (num_symbols + 1) + symbols
    counts = np.bincount(codes, minlength=num_states * (num_symbols + 1)).reshape(num_states, num_symbols + 1)
    return counts[:, :num_symbols].astype(np.float64)


def _with_missing(emission: Array) -> Array:
    return np.append(emission, np.ones((*emission.shape[:-1], 1)), -1)


@dataclass(frozen=True, eq=False, repr=False)
class InputExpansion(Shown):
    """Expanded states (input, state); at each time, only those with the given input have positive weight.

    Attributes:
        symbols, inputs: Flat symbols, V where missing, and inputs (N,).
        num_inputs, num_states, num_symbols: Numbers U, S and V.
    """

    symbols: Path
    inputs: Path
    num_inputs: int
    num_states: int
    num_symbols: int

    @property
    def codes(self) -> Path:
        return self.inputs * (self.num_symbols + 1) + self.symbols

    def arrays(self, rows: Rows) -> tuple[Array, Array, Array]:
        size, count = len(rows["initial"]), self.num_inputs
        step = np.tile(rows["transition"].transpose(1, 0, 2).reshape(size, count * size), (count, 1))
        table = np.zeros((count, self.num_symbols + 1, count, size))
        places = np.arange(count)
        table[places, :, places] = _with_missing(rows["emission"]).swapaxes(1, 2)
        return np.tile(rows["initial"], count), step, table.reshape(-1, count * size)

    def counts(self, first: Array, moves: Array, path: Path) -> Rows:
        count, size = self.num_inputs, self.num_states
        emitted = _emitted(path, self.symbols, count * size, self.num_symbols)
        return {
            "initial": first.reshape(count, size).sum(0),
            "transition": moves.reshape(count, size, count, size).sum(0).swapaxes(0, 1),
            "emission": emitted.reshape(count, size, self.num_symbols),
        }

    def shown(self, path: Path) -> Path:
        return path % self.num_states


@dataclass(frozen=True, eq=False, repr=False)
class DurationExpansion(Shown):
    """Expanded states (state, remaining steps); `symbols` is flat (N,), V where missing."""

    symbols: Path
    longest: int
    num_symbols: int

    @property
    def codes(self) -> Path:
        return self.symbols

    def arrays(self, rows: Rows) -> tuple[Array, Array, Array]:
        durations = rows["durations"]
        size, longest = durations.shape
        step = np.zeros((size, longest, size, longest))
        step[:, 0] = rows["transition"][:, :, None] * durations
        later = np.arange(1, longest)
        for state in range(size):
            step[state, later, state, later - 1] = 1.0
        table = np.repeat(_with_missing(rows["emission"]).T, longest, axis=1)
        initial = (rows["initial"][:, None] * durations).ravel()
        return initial, step.reshape(size * longest, -1), table

    def counts(self, first: Array, moves: Array, path: Path) -> Rows:
        entered = first.reshape(-1, self.longest)
        size = len(entered)
        visits = moves.reshape(size, self.longest, size, self.longest)[:, 0]
        return {
            "initial": entered.sum(1),
            "transition": visits.sum(2),
            "durations": entered + visits.sum(0),
            "emission": _emitted(self.shown(path), self.symbols, size, self.num_symbols),
        }

    def shown(self, path: Path) -> Path:
        return path // self.longest


@dataclass(frozen=True, eq=False, repr=False)
class StateExpansion(Shown):
    """States of an HMM; `symbols` is flat (N,), V where missing."""

    symbols: Path
    num_symbols: int

    @property
    def codes(self) -> Path:
        return self.symbols

    def arrays(self, rows: Rows) -> tuple[Array, Array, Array]:
        return rows["initial"], rows["transition"], np.ascontiguousarray(_with_missing(rows["emission"]).T)

    def counts(self, first: Array, moves: Array, path: Path) -> Rows:
        emitted = _emitted(path, self.symbols, len(first), self.num_symbols)
        return {"initial": first, "transition": moves, "emission": emitted}

    def shown(self, path: Path) -> Path:
        return path


@dataclass(frozen=True, eq=False, repr=False)
class KnownExpansion(Shown):
    """Expansion `whole` given known states; each code numbers a pair (code of `whole`, allowed states)."""

    whole: Expansion
    codes: Path
    sets: StateSets

    def arrays(self, rows: Rows) -> tuple[Array, Array, Array]:
        initial, step, table = self.whole.arrays(rows)
        allowed = self.sets.allowed[:, self.shown(np.arange(len(initial)))]
        return initial, step, table[self.sets.symbols] * allowed

    def counts(self, first: Array, moves: Array, path: Path) -> Rows:
        return self.whole.counts(first, moves, path)

    def shown(self, path: Path) -> Path:
        return self.whole.shown(path)


def expansion_of(
    hmm: Process, symbols: Path, inputs: SequenceData | None, allowed: NDArray[np.bool_] | None
) -> Expansion:
    found: Expansion
    if inputs is not None:
        assert hmm.num_inputs is not None
        found = InputExpansion(symbols, inputs.flat.astype(np.int64), hmm.num_inputs, hmm.num_states, hmm.num_symbols)
    elif hmm.visits is not None:
        found = DurationExpansion(symbols, hmm.visits.durations.shape[1], hmm.num_symbols)
    else:
        found = StateExpansion(symbols, hmm.num_symbols)
    return found if allowed is None else KnownExpansion(found, *paired(found.codes, allowed))
