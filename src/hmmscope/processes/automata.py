"""Deterministic automata that read uniform random symbols."""

import itertools
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from hmmscope import registry
from hmmscope.axes import Int64, Tensor
from hmmscope.processes.labelled import LabelledHMM
from hmmscope.schema import require
from hmmscope.seeds import check_seed, numpy_generator


def automaton(next_state_SV: Int64[Tensor, "state symbol"], *, title: str, source: str = "") -> LabelledHMM:
    num_states, num_symbols = next_state_SV.shape
    labelled_VSS = torch.zeros(num_symbols, num_states, num_states, dtype=torch.float64)
    symbols = torch.arange(num_symbols)
    for state in range(num_states):
        labelled_VSS[symbols, state, next_state_SV[state]] = 1 / num_symbols
    initial_S = torch.zeros(num_states, dtype=torch.float64)
    initial_S[0] = 1
    return LabelledHMM(initial_S, labelled_VSS, title=title, source=source)


@registry.process("random-automaton")
@dataclass(frozen=True, kw_only=True)
class RandomAutomatonSpec:
    """A deterministic automaton with a uniform random transition table and uniform random symbols.

    Source: the semiautomata of Liu, Ash, Goel, Krishnamurthy and Zhang (2023).
    """

    num_states: int = 5
    num_symbols: int = 2
    seed: int = 0

    def __post_init__(self) -> None:
        check_seed(self.seed)
        require(1 <= self.num_states <= 4096, "num_states", "must be in [1, 4096]", self.num_states)
        require(1 <= self.num_symbols <= 4096, "num_symbols", "must be in [1, 4096]", self.num_symbols)
        size = self.num_states * self.num_symbols
        require(size <= 65536, "num_symbols", "num_symbols * num_states must be at most 65536", size)

    def build(self) -> LabelledHMM:
        drawn = numpy_generator(self.seed, "automaton").integers(
            self.num_states, size=(self.num_states, self.num_symbols)
        )
        return automaton(torch.from_numpy(drawn.astype(np.int64)), title="random deterministic automaton")


@registry.process("word-problem")
@dataclass(frozen=True, kw_only=True)
class WordProblemSpec:
    """The word problem of a finite group: symbols are group elements; the state is the product of the symbols so far.

    state_t = symbol_t * state_{t-1}, where state_{-1} is the identity (element 0). If `num_generators` > 0, symbols
    are this many random elements other than the identity, else all. The word problem of A5 or S5 is complete for NC1.

    Source: Barrington (1989); used as a test of state tracking by Merrill, Petty and Sabharwal (2024).
    """

    group: Literal["Z2", "Z60", "A5", "S5", "S3"] = "A5"
    num_generators: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        check_seed(self.seed)
        size = {"Z2": 2, "Z60": 60, "A5": 60, "S5": 120, "S3": 6}[self.group]
        ok = 0 <= self.num_generators < size
        require(ok, "num_generators", f"must be in [0, {size - 1}] for {self.group}", self.num_generators)

    def build(self) -> LabelledHMM:
        table = multiplication_table(self.group)
        chosen = np.arange(len(table))
        if self.num_generators:
            chosen = 1 + np.sort(
                numpy_generator(self.seed, "generators").choice(len(table) - 1, self.num_generators, replace=False)
            )
        return automaton(
            torch.from_numpy(table[chosen].T.copy()),
            title=f"word problem of {self.group}",
            source="Merrill, Petty and Sabharwal (2024)",
        )


def multiplication_table(group: str) -> np.ndarray:
    if group.startswith("Z"):
        order = int(group[1:])
        return np.add.outer(np.arange(order), np.arange(order)) % order
    degree = int(group[1:])
    elements = [p for p in itertools.permutations(range(degree)) if group[0] == "S" or _even(p)]
    number = {p: i for i, p in enumerate(elements)}
    return np.array([[number[tuple(a[b[i]] for i in range(degree))] for b in elements] for a in elements])


def _even(permutation: tuple[int, ...]) -> bool:
    pairs = itertools.combinations(permutation, 2)
    return sum(first > second for first, second in pairs) % 2 == 0
