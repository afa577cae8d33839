"""What the tests of families share."""

import itertools
import math
from collections import Counter
from fractions import Fraction

import numpy as np
import torch

import hmmscope as hs
from hmmscope.processes.combine import as_labelled
from strategies import rows, small_hmm

UNIT = 2.0**-32


def log_likelihood(process, word):
    return float(hs.filter_beliefs(process, torch.tensor([list(word)])).log_likelihood)


def probability(process, word):
    return math.exp(log_likelihood(process, word))


def words(num_symbols, length):
    return list(itertools.product(range(num_symbols), repeat=length))


def text(word):
    return "".join(map(str, word))


def sampled(process, num_samples=200, length=40):
    return hs.ProcessDataset(process, length=length, seed=3)[0:num_samples]


def edge_enumeration(labelled_VSS, initial_S, word):
    """P(word) and P(state after it | word) in fractions, by summing over every path of states."""
    total, size = Counter(), len(initial_S)
    initial = [Fraction(x) for x in initial_S.tolist()]
    step = [[[Fraction(x) for x in row] for row in matrix] for matrix in labelled_VSS.tolist()]
    for path in itertools.product(range(size), repeat=len(word) + 1):
        mass = initial[path[0]]
        for t, symbol in enumerate(word):
            mass *= step[symbol][path[t]][path[t + 1]]
        total[path[-1]] += mass
    mass = sum(total.values())
    return mass, [total[s] / mass if mass else Fraction(0) for s in range(size)]


def structure(process):
    """{(state, symbol): {next state: probability}} by names."""
    edges = {}
    for v, i, j in (process.labelled > 0).nonzero().tolist():
        edges.setdefault((process.states[i], v), {})[process.states[j]] = float(process.labelled[v, i, j])
    return edges


STRUCTURES = {
    "golden-mean": {("A", 1): {"A": 0.5}, ("A", 0): {"B": 0.5}, ("B", 1): {"A": 1.0}},
    "even": {("A", 0): {"A": 0.5}, ("A", 1): {"B": 0.5}, ("B", 1): {"A": 1.0}},
    "z1r": {("Z", 0): {"O": 1.0}, ("O", 1): {"R": 1.0}, ("R", 0): {"Z": 0.5}, ("R", 1): {"Z": 0.5}},
    "simple-nonunifilar": {("A", 0): {"A": 0.5, "B": 0.5}, ("B", 0): {"B": 0.5}, ("B", 1): {"A": 0.5}},
    "rrxor": {
        ("S", 0): {"A": 0.5},
        ("S", 1): {"B": 0.5},
        ("A", 0): {"X": 0.5},
        ("A", 1): {"Y": 0.5},
        ("B", 0): {"Y": 0.5},
        ("B", 1): {"X": 0.5},
        ("X", 0): {"S": 1.0},
        ("Y", 1): {"S": 1.0},
    },
}
STATIONARY = {
    "golden-mean": {"A": 2 / 3, "B": 1 / 3},
    "even": {"A": 2 / 3, "B": 1 / 3},
    "z1r": {"Z": 1 / 3, "O": 1 / 3, "R": 1 / 3},
    "simple-nonunifilar": {"A": 1 / 2, "B": 1 / 2},
    "rrxor": {"S": 1 / 3, "A": 1 / 6, "B": 1 / 6, "X": 1 / 6, "Y": 1 / 6},
}


# P(word) from the definitions, as sums over the places where a word can begin


def golden_mean(word):
    if "00" in text(word):
        return 0.0
    chance = 1 / 3 if word[0] == 0 else 2 / 3
    for before, after in itertools.pairwise(word):
        chance *= 1.0 if before == 0 else 0.5
        assert before or after
    return chance


def even(word):
    """From A: every run of ones that a zero ends has even length, each zero and each pair costs a half."""

    def from_state(state):
        chance = 1.0
        for symbol in word:
            if state == "A":
                chance, state = chance / 2, "A" if symbol == 0 else "B"
            elif symbol == 0:
                return 0.0
            else:
                state = "A"
        return chance

    return 2 / 3 * from_state("A") + 1 / 3 * from_state("B")


def rrxor(word):
    """The mean over three phases of the share of bit pairs that give the word."""
    total = 0.0
    triples = -(-(len(word) + 2) // 3)
    for phase in range(3):
        hits = 0
        for bits in itertools.product((0, 1), repeat=2 * triples):
            stream = [x for a, b in zip(bits[::2], bits[1::2], strict=True) for x in (a, b, a ^ b)]
            hits += tuple(stream[phase : phase + len(word)]) == tuple(word)
        total += hits / 4**triples / 3
    return total


def z1r(word):
    """The mean over three phases; a random symbol is a half."""
    total = 0.0
    for phase in range(3):
        chance = 1 / 3
        for t, symbol in enumerate(word):
            place = (phase + t) % 3
            chance *= 0.5 if place == 2 else float(symbol == place)
        total += chance
    return total


def nonunifilar(word):
    """From A a run before a one is 1 + n zeros with probability n / 2^(n+1); in B each step is fair."""
    a, b = 0.5, 0.5
    for symbol in word:
        a, b = (a / 2, a / 2 + b / 2) if symbol == 0 else (b / 2, 0.0)
    return a + b


FORMULAS = {"golden-mean": golden_mean, "even": even, "rrxor": rrxor, "z1r": z1r, "simple-nonunifilar": nonunifilar}


FORBIDDEN = {
    "golden-mean": ["00"],
    "even": ["010", "01110", "0111110"],
    "simple-nonunifilar": ["11"],
    "z1r": ["000", "111"],
    "rrxor": ["11111"],  # at most 0 1 1, 1 1 0
}


# Automata and groups --------------------------------------------------------------------------------------------------

ORDERS = {"Z2": 2, "Z60": 60, "A5": 60, "S5": 120, "S3": 6}


def closure(table, generators):
    """The subgroup that the generators make."""
    found, frontier = {0}, [0]
    while frontier:
        element = frontier.pop()
        for generator in generators:
            new = int(table[generator, element])
            if new not in found:
                found.add(new)
                frontier.append(new)
    return found


def conjugacy_class(table, element):
    inverse = (table == 0).argmax(1)
    return {int(table[table[g, element], inverse[g]]) for g in range(len(table))}


def inv(table, element):
    return int((table[element] == 0).argmax())


# Products, channels, labelled twins -----------------------------------------------------------------------------------


def some_process(rng, labelled):
    hmm = hs.HMM(*small_hmm(rng))
    return as_labelled(hmm) if labelled else hmm


# Low rank, Markov chains ----------------------------------------------------------------------------------------------


def rank_of(matrix):
    """Singular values above what rounding to 2^-32 makes: S * 2^-32."""
    return int((torch.linalg.svdvals(matrix) > len(matrix) * UNIT).sum())


# Labelled HMMs --------------------------------------------------------------------------------------------------------

HALVES = [[[0.5, 0.0], [0.0, 0.5]], [[0.0, 0.5], [0.5, 0.0]]]


def random_labelled(seed):
    rng = np.random.default_rng(seed)
    states, symbols = int(rng.integers(1, 4)), int(rng.integers(1, 4))
    flat = rows(rng, states, symbols * states, float(rng.choice([0.0, 0.5, 0.8])))
    labelled = flat.reshape(states, symbols, states).transpose(1, 0, 2)
    return hs.LabelledHMM(rows(rng, 1, states, 0.3)[0], labelled), rng
