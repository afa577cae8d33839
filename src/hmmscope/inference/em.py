"""Expectation maximization (EM) from one starting model, or from several in a batch."""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from hmmscope.errors import InputError
from hmmscope.inference.constraints import RowConstraints, row_constraints
from hmmscope.inference.counts import BLOCKS, LEAST, Counts, add_counts
from hmmscope.inference.free_parameters import maximised_rows, num_free, restricted, without_tiny
from hmmscope.inference.loop_inputs import PackedSequences, StateSets, Tables
from hmmscope.inference.one_block import OneBlock
from hmmscope.inference.restarts import EMResult, unheard
from hmmscope.kernels import simd_over_models
from hmmscope.processes.hmm import HMM

Array = NDArray[np.float64]

PARTS = ("initial", "transition", "emission")

#: Limits of batched EM: states, and belief entries of the longest sequence.
MOST_STATES, MOST_BELIEFS = 8, 2**24
#: Largest number of observations per block.
MOST = 2**22
_LANES = len(simd_over_models.BESIDE)


class Model(NamedTuple):
    """Parameters of one HMM, or of several HMMs along a leading axis.

    Attributes:
        initial, transition, emission: Probabilities (..., state), (..., state, state) and (..., state, symbol).
    """

    initial: Array
    transition: Array
    emission: Array

    @classmethod
    def of(cls, hmm: HMM) -> "Model":
        return cls(hmm.initial.numpy(), hmm.transition.numpy(), hmm.emission.numpy())

    @classmethod
    def several(cls, models: Sequence["Model"]) -> "Model":
        return cls(*map(np.stack, zip(*models, strict=True)))

    def chosen(self, which: Any) -> "Model":
        return Model(*(part[which] for part in self))

    def tables(self, *, gaps: bool = False, sets: StateSets | None = None) -> Tables:
        emission_SV = np.pad(self.emission, ((0, 0), (0, 1)), constant_values=1.0) if gaps else self.emission
        if sets is not None:
            emission_SV = emission_SV[:, sets.symbols] * sets.allowed.T
        emission_VS = np.ascontiguousarray(emission_SV.T)
        return Tables(self.initial * emission_VS, np.ascontiguousarray(self.transition[None]), emission_VS)


@dataclass(frozen=True)
class MStepSettings:
    """Settings of the M-step.

    Attributes:
        pseudo_count: Number added to each expected count.
        fixed: Names of the parameter arrays that stay unchanged.
        classes: Tied-emission class of each state, or None.
        support: Masks of entries that may be positive, or None.
        constraints: Constraints on parameter arrays.
    """

    pseudo_count: float
    fixed: frozenset[str]
    classes: NDArray[np.int64] | None = field(repr=False)
    support: tuple[NDArray[np.bool_], ...] | None = field(default=None, repr=False)
    constraints: Mapping[str, RowConstraints] = field(default_factory=dict, repr=False)

    def maximise(self, model: Model, counts: Counts) -> Model:
        """Maximize the expected log-posterior; zeros, and rows with zero counts, stay unchanged."""
        found, visits = [], np.swapaxes(counts.emissions, -1, -2)
        for part, before, count in zip(PARTS, model, (counts.initial, counts.transitions, visits), strict=True):
            if part in self.fixed:
                found.append(before)
                continue
            if part in self.constraints:
                found.append(self.constraints[part].maximise(count, self.pseudo_count, before))
                continue
            if part == "emission" and self.classes is not None:
                count = (self.classes[:, None] == self.classes).astype(np.float64) @ np.where(before > 0, count, 0.0)
            found.append(without_tiny(maximised_rows(before, count, self.pseudo_count)))
        return Model(*found)

    def tied(self, model: Model) -> Model:
        if self.classes is None or "emission" in self.fixed:
            return model
        names, first, inverse = np.unique(self.classes, return_index=True, return_inverse=True)
        allowed = np.stack([(model.emission[self.classes == name] > 0).all(0) for name in names])
        return model._replace(emission=restricted(model.emission[first], allowed)[inverse])

    def restricted(self, model: Model) -> Model:
        if self.support is None:
            return model
        return Model(*(restricted(part, allowed) for part, allowed in zip(model, self.support, strict=True)))

    def constrained(self, model: Model) -> Model:
        parts = zip(PARTS, model, strict=True)
        own = self.constraints
        return Model(*(own[part].maximise(probs) if part in own else probs for part, probs in parts))

    def num_free(self, model: Model) -> dict[str, int]:
        support = tuple(np.ones(part.shape, np.bool_) for part in model) if self.support is None else self.support
        found = {part: 0 if part in self.fixed else num_free(own) for part, own in zip(PARTS, support, strict=True)}
        if self.classes is not None and "emission" not in self.fixed:
            found["emission"] = num_free(support[2][np.unique(self.classes, return_index=True)[1]])
        found |= {part: own.num_free for part, own in self.constraints.items() if part not in self.fixed}
        return found

    def row_constraints(self, model: Model) -> dict[str, RowConstraints]:
        support = {} if self.support is None else dict(zip(PARTS, self.support, strict=True))
        return row_constraints(model._asdict(), self.constraints, self.fixed, self.classes, support)

    @property
    def num_zeros(self) -> dict[str, int]:
        if self.support is None:
            return dict.fromkeys(PARTS, 0)
        return {part: int((~own).sum()) for part, own in zip(PARTS, self.support, strict=True)}

    def kept(self, model: Model, start: HMM | None) -> Model:
        if start is None:
            return model
        parts = zip(PARTS, Model.of(start), model, strict=True)
        return Model(*(given if part in self.fixed else own for part, given, own in parts))

    def log_prior(self, model: Model) -> Array:
        kept = {*self.fixed, *self.constraints}
        free = [rows for part, rows in zip(PARTS, model, strict=True) if part not in kept]
        total = np.zeros(model.initial.shape[:-1])
        for part, own in self.constraints.items() if self.pseudo_count else ():
            if part not in self.fixed:
                total += own.log_prior(model[PARTS.index(part)])
        if self.pseudo_count and self.classes is not None and "emission" not in self.fixed:
            free[-1] = model.emission[..., np.unique(self.classes, return_index=True)[1], :]
        for rows in free if self.pseudo_count else ():
            logs = np.log(rows if rows.all() else np.where(rows > 0, rows, 1.0))
            total += np.add.reduce(logs.reshape(*total.shape, -1), -1)
        return np.asarray(self.pseudo_count * total)


@dataclass(frozen=True)
class EMRunner:
    """EM on one set of sequences.

    Attributes:
        work: Packed sequences, with the symbol V for missing observations.
        m_step: Settings of the M-step.
        num_threads: Number of threads of the E-step.
    """

    work: PackedSequences
    m_step: MStepSettings
    num_threads: int

    @property
    def num_steps(self) -> float:
        return self.work.total(self.work.lengths)

    @cached_property
    def _one_block(self) -> "dict[tuple[int, ...], OneBlock | None]":
        return {}

    def counts(self, model: Model) -> tuple[Counts, float]:
        shape = model.emission.shape
        if shape not in self._one_block:
            self._one_block[shape] = OneBlock.of(self.work, *shape)
        own = self._one_block[shape]
        counts = (None if own is None else own.counts(model)) or expect(model, self.work, self.num_threads)
        return counts, self.work.total(counts.logs)

    def maximise(self, model: Model, counts: Counts) -> Model:
        return self.m_step.maximise(model, counts)

    def log_prior(self, model: Model) -> float:
        return float(self.m_step.log_prior(model))

    def side_by_side(
        self,
        models: Sequence[Model],
        max_iterations: int,
        tolerance: float,
        callback: Callable[[int], object] = unheard,
    ) -> list[EMResult]:
        num_tokens, iteration, going, stop = int(self.work.lengths.sum()), 0, np.arange(len(models)), False
        ends: dict[int, EMResult] = {}
        history: list[list[float]] = [[] for _ in models]
        now, before = Model.several(models), np.full(len(models), -np.inf)
        _, num_states, num_symbols = now.emission.shape
        expectation = _SideBySide(self.work, num_states, num_symbols, self.num_threads)
        while True:
            counts = expectation.counts(now)
            reached = counts.logs + self.m_step.log_prior(now)
            converged = reached - before < tolerance * num_tokens
            ending = converged | stop | (iteration == max_iterations)
            for number, own in zip(going.tolist(), counts.logs.tolist(), strict=True):
                history[number].append(own)
            for place in np.flatnonzero(ending).tolist():
                number, score = int(going[place]), float(counts.logs[place])
                ended = bool(converged[place])
                ends[number] = EMResult(now.chosen(place), score, iteration, ended, tuple(history[number]))
            if ending.all():
                return [ends[number] for number in range(len(models))]
            left = ~ending
            counts = Counts(*(part[left] for part in counts))
            now, before, going = self.m_step.maximise(now.chosen(left), counts), reached[left], going[left]
            iteration += 1
            stop = callback(len(going)) is True


def counts_of(model: Model, work: PackedSequences, num_threads: int | None = None) -> Counts:
    size, num_symbols = model.emission.shape
    if work.sets is not None:
        visits = np.zeros((len(work.sets.symbols), size))
        counts = Counts(np.zeros(size), np.zeros((size, size)), visits, np.zeros(len(work.rows)))
        add_counts(model.tables(gaps=True, sets=work.sets), work, counts, num_threads)
        return counts._replace(emissions=work.sets.by_symbol(visits, num_symbols))
    gaps = int(work.symbols.max(initial=0)) == num_symbols
    visits = np.zeros((num_symbols + gaps, size))
    counts = Counts(np.zeros(size), np.zeros((size, size)), visits, np.zeros(len(work.rows)))
    add_counts(model.tables(gaps=gaps), work, counts, num_threads)
    return counts._replace(emissions=visits[:num_symbols])


def expect(model: Model, work: PackedSequences, num_threads: int) -> Counts:
    counts = counts_of(model, work, num_threads)
    require_possible(counts.logs, work.rows)
    return counts


def require_possible(logs: Array, rows: NDArray[np.int64]) -> None:
    for row in rows[logs == -np.inf].tolist():
        rule = "has probability zero under start, constraints and known_states, and EM keeps zeros"
        raise InputError(f"observations[{row}]: {rule}; change these options")


def counter_of_several(
    work: PackedSequences, num_states: int, num_symbols: int, num_threads: int | None = None
) -> Callable[[Model], Counts]:
    threads = torch.get_num_threads() if num_threads is None else num_threads
    if can_run_side_by_side(num_states, work):
        return _SideBySide(work, num_states, num_symbols, threads).counts

    def one_by_one(models: Model) -> Counts:
        each = [expect(models.chosen(number), work, threads) for number in range(len(models.initial))]
        parts = zip(*((*one[:3], np.float64(work.total(one.logs))) for one in each), strict=True)
        return Counts(*map(np.stack, parts))

    return one_by_one


def can_run_side_by_side(num_states: int, work: PackedSequences) -> bool:
    return (
        work.weights is None
        and work.sets is None
        and num_states <= MOST_STATES
        and int(work.lengths[0]) * num_states * _LANES <= MOST_BELIEFS
    )


class _SideBySide:
    def __init__(self, work: PackedSequences, size: int, num_symbols: int, num_threads: int) -> None:
        self.work, self.num_symbols, self.num_threads = work, num_symbols, num_threads
        rows = num_symbols + (int(work.symbols.max(initial=0)) == num_symbols)
        count = max(BLOCKS, len(work.symbols) // MOST)
        blocks = min(count, 1 + len(work.symbols) // LEAST, len(work.rows))  # independent of the number of threads
        cuts = np.linspace(0, len(work.rows), blocks + 1).round().astype(int).tolist()
        self.blocks = [work.part(slice(begin, end)).packed()[:3] for begin, end in itertools.pairwise(cuts)]
        self.shapes: list[tuple[int, ...]] = [(size,), (size, size), (rows, size), (), ()]
        self.ends = [0, *itertools.accumulate(map(math.prod, self.shapes))]
        self.room = (int(work.lengths[0]) * (size + 1) * _LANES, (size + 2) * size * _LANES)
        self.rooms: list[list[Array]] = []

    def counts(self, models: Model) -> Counts:
        count, blocks = len(models.initial), len(self.blocks)
        groups, size = -(-count // _LANES), self.ends[-1] * _LANES
        threads = max(1, min(self.num_threads, groups * blocks))
        self.rooms += [split(*self.room) for _ in range(threads - len(self.rooms))]
        tables = self._tables(models, groups)
        (whole,) = split(groups * blocks * size)
        whole[:] = 0.0
        found = whole.reshape(groups, blocks, size)
        tasks = [(group, block) for group in range(groups) for block in range(blocks)]

        def run(thread: int) -> None:
            for group, block in tasks[thread::threads]:
                ends = itertools.pairwise(self.ends)
                into = [found[group, block, begin * _LANES : end * _LANES] for begin, end in ends]
                own = [part[group] for part in tables]
                simd_over_models.counts(simd_over_models.BESIDE, *own, *self.blocks[block], *self.rooms[thread], *into)

        if threads == 1:
            run(0)
        else:
            with ThreadPoolExecutor(threads) as pool:
                list(pool.map(run, range(threads)))
        sums = sum((found[:, block] for block in range(1, blocks)), found[:, 0])
        together = sums.reshape(groups, -1, _LANES).swapaxes(1, 2).reshape(groups * _LANES, -1)[:count]
        first, pairs, visits, logs, doubts = (
            together[:, begin:end].reshape(count, *shape)
            for (begin, end), shape in zip(itertools.pairwise(self.ends), self.shapes, strict=True)
        )
        counts = Counts(first, pairs * models.transition, visits[:, : self.num_symbols], logs)
        for place in np.flatnonzero(doubts).tolist():
            careful = expect(models.chosen(place), self.work, threads)
            for part, own in zip(counts, (*careful[:3], careful.logs.sum()), strict=True):
                part[place] = own
        return counts

    def _tables(self, models: Model, groups: int) -> list[Array]:
        lanes = np.minimum(np.arange(groups * _LANES), len(models.initial) - 1)
        shapes = [(groups, *shape, _LANES) for shape in self.shapes[1:3]]
        sizes = [math.prod(shape) for shape in shapes]
        first, step, emission = split(sizes[1], *sizes)
        initial, moves, seen = (part[lanes].reshape(groups, _LANES, *part.shape[1:]) for part in models)
        table = emission.reshape(shapes[1])
        table[:, : self.num_symbols], table[:, self.num_symbols :] = seen.transpose(0, 3, 2, 1), 1.0  # or missing
        np.multiply(initial.swapaxes(1, 2)[:, None], table, out=first.reshape(shapes[1]))
        step.reshape(shapes[0])[:] = moves.transpose(0, 2, 3, 1)
        return [part.reshape(groups, -1) for part in (first, step, emission)]


def split(*counts: int) -> list[Array]:
    whole = np.empty(sum(counts) + 8)
    aligned = whole[-whole.ctypes.data // 8 % 8 :]
    ends = list(itertools.accumulate(counts))
    return [aligned[end - count : end] for end, count in zip(ends, counts, strict=True)]
