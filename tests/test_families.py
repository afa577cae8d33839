"""The process families: what the papers and definitions say of each, word by word and number by number."""

import itertools
import math
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import hmmscope as hs
from hmmscope.errors import InputError
from hmmscope.kernels.reference import sample_edges_reference
from hmmscope.processes.automata import automaton, multiplication_table
from hmmscope.processes.combine import as_labelled, noisy, product, uniform_noise
from hmmscope.processes.laws import EdgeEmitting, StateEmitting, stack, symbol_law
from hmmscope.processes.low_rank import symmetric_channel
from hmmscope.processes.stationary import closed_classes, stationary_law
from hmmscope.seeds import PURPOSES, philox_key
from oracles import by_enumeration, exact
from strategies import KINDS, rows, small_hmm

UNIT = 2.0**-32


def refuses(call, *parts):
    with pytest.raises(InputError) as caught:
        call()
    message = str(caught.value)
    assert "\n" not in message
    for part in parts:
        assert part in message, message


def log_likelihood(process, word):
    return float(hs.filter_beliefs(process, torch.tensor([list(word)])).log_likelihood)


def probability(process, word):
    return math.exp(log_likelihood(process, word))


def words(num_symbols, length):
    return list(itertools.product(range(num_symbols), repeat=length))


def text(word):
    return "".join(map(str, word))


def sampled(process, num_samples=200, length=40):
    return hs.Corpus(process, length=length, seed=3)[0:num_samples]


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


# Mess3 and its like ---------------------------------------------------------------------------------------------------


def test_mess3_has_the_published_matrices():
    """Shai et al. (2024) with x = 0.05, a = 0.85, so b = (1 - a) / 2 = 0.075 and y = 1 - 2 x = 0.9."""
    a, b, x, y = 0.85, 0.075, 0.05, 0.9
    published = torch.tensor(
        [
            [[a * y, b * x, b * x], [a * x, b * y, b * x], [a * x, b * x, b * y]],
            [[b * y, a * x, b * x], [b * x, a * y, b * x], [b * x, a * x, b * y]],
            [[b * y, b * x, a * x], [b * x, b * y, a * x], [b * x, b * x, a * y]],
        ],
        dtype=torch.float64,
    )
    mess3 = hs.make_process("mess3")
    assert torch.allclose(mess3.labelled_VSS, published, atol=UNIT, rtol=0)
    assert torch.allclose(mess3.initial_S, torch.full((3,), 1 / 3, dtype=torch.float64), atol=UNIT, rtol=0)


def test_mess3_is_symmetric_and_its_ends_are_simple():
    mess3 = hs.make_process("mess3", switch=0.1, emission=0.6)
    for word in words(3, 4):
        turned = [(v + 1) % 3 for v in word]
        assert probability(mess3, word) == pytest.approx(probability(mess3, turned), abs=1e-8)  # rows are rounded
    refuses(lambda: hs.make_process("mess3", switch=0.0), "3 closed classes")  # no single stationary law
    sure = hs.make_process("mess3", emission=1.0)
    batch = sampled(sure, 20)
    assert torch.equal(batch.observations, batch.states)


def structure(process):
    """{(state, symbol): {next state: probability}} by names."""
    edges = {}
    for v, i, j in (process.labelled_VSS > 0).nonzero().tolist():
        edges.setdefault((process.states[i], v), {})[process.states[j]] = float(process.labelled_VSS[v, i, j])
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


@pytest.mark.parametrize("name", STRUCTURES)
def test_structure_and_stationary_start(name):
    process = hs.make_process(name)
    assert structure(process) == STRUCTURES[name]
    for state, law in STATIONARY[name].items():
        assert float(process.initial_S[process.states.index(state)]) == pytest.approx(law, abs=UNIT)
    assert process.title
    assert process.source


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


FORMULAS = {
    "golden-mean": golden_mean,
    "even": even,
    "rrxor": rrxor,
    "z1r": z1r,
    "simple-nonunifilar": nonunifilar,
}


@pytest.mark.parametrize("length", [1, 2, 3, 5, 6])
@pytest.mark.parametrize("name", FORMULAS)
def test_word_probabilities_follow_from_the_definition(name, length):
    process = hs.make_process(name)
    total = 0.0
    for word in words(2, length):
        expected = FORMULAS[name](word)
        found = probability(process, word)
        assert (found == 0) == (expected == 0)
        assert found == pytest.approx(expected, abs=1e-9)  # the stationary law is rounded
        total += found
    assert total == pytest.approx(1, abs=1e-12)


FORBIDDEN = {
    "golden-mean": ["00"],
    "even": ["010", "01110", "0111110"],
    "simple-nonunifilar": ["11"],
    "z1r": ["000", "111"],
    "rrxor": ["11111"],  # at most 0 1 1, 1 1 0
}


@pytest.mark.parametrize("name", FORBIDDEN)
def test_forbidden_words_never_occur(name):
    process = hs.make_process(name)
    lines = [text(row) for row in sampled(process).observations.tolist()]
    for word in FORBIDDEN[name]:
        assert FORMULAS[name]([int(c) for c in word]) == 0
        assert log_likelihood(process, [int(c) for c in word]) == -math.inf
        assert not any(word in line for line in lines)
    seen = {line[t : t + 4] for line in lines for t in range(37)}
    assert seen == {text(word) for word in words(2, 4) if FORMULAS[name](word) > 0}  # and all others do


@pytest.mark.parametrize(
    "name, fields",
    [("golden-mean", {"zero_probability": 0.2}), ("even", {"zero_probability": 0.7})],
)
def test_other_chances(name, fields):
    process, p = hs.make_process(name, **fields), fields["zero_probability"]
    stay = 1 / (1 + p) if name == "golden-mean" else 1 / (2 - p)  # stationary law of A
    assert float(process.initial_S[0]) == pytest.approx(stay, abs=UNIT)
    assert probability(process, [0]) == pytest.approx(stay * p, abs=1e-9)
    refuses(lambda: hs.make_process(name, zero_probability=0), "zero_probability: must be in (0, 1), got 0")


def test_the_source_that_zeros_do_not_reveal():
    source = hs.make_process("simple-nonunifilar", leave=0.3, reset=0.6)
    a, b = 1.0, 0.0  # after a one the state is A; then each zero moves the belief
    beliefs = hs.filter_beliefs(source, torch.tensor([[0, 1, 0, 0, 0, 0]])).beliefs[0]
    for t in range(2, 6):
        a, b = a * 0.7, a * 0.3 + b * 0.4
        assert float(beliefs[t, 0]) == pytest.approx(a / (a + b), abs=1e-8)
    assert len({round(float(x), 9) for x in beliefs[2:, 0]}) == 4


def test_z1r_is_synchronised_and_rrxor_knows_its_third_bit():
    z1r = hs.make_process("z1r")
    after = hs.filter_beliefs(z1r, torch.tensor([[1, 1, 0, 1, 0, 0]]))
    assert after.beliefs[0].max(1).values[2:].tolist() == [1.0] * 4
    assert after.next_observation[0, -1].tolist() == [0.0, 1.0]
    rrxor = hs.make_process("rrxor")
    batch = sampled(rrxor, 50, 60)
    known = hs.filter_beliefs(rrxor, batch.observations).beliefs[:, -1].max(1).values
    assert (known > 0.99).float().mean() > 0.5
    for symbols, path in zip(batch.observations.tolist(), batch.states.tolist(), strict=True):
        ends = [t for t, s in enumerate(path) if rrxor.states[s] == "S" and t >= 2]
        assert all(symbols[t] == symbols[t - 1] ^ symbols[t - 2] for t in ends)
        assert len(ends) in (19, 20)


# The stationary law ---------------------------------------------------------------------------------------------------


@given(st.integers(0, 2**32 - 1))
def test_stationary_law_of_small_chains(seed):
    rng = np.random.default_rng(seed)
    transition = torch.tensor(KINDS[rng.integers(len(KINDS))](rng, int(rng.integers(1, 6)), 2).transition)
    classes = closed_classes(transition)
    assert classes
    for members in classes:  # never left, and each state reaches each other
        outside = [s for s in range(len(transition)) if s not in members]
        assert float(transition[members][:, outside].sum()) == 0
        powers = torch.linalg.matrix_power(torch.eye(len(members)).double() + transition[members][:, members], 8)
        assert (powers > 0).all()
    if len(classes) > 1:
        refuses(lambda: stationary_law(transition), f"{len(classes)} closed classes")
        return
    law = stationary_law(transition)
    assert torch.allclose(law @ transition, law, atol=1e-10)
    assert float(law.sum()) == pytest.approx(1, abs=1e-12)
    assert {s for s, p in enumerate(law.tolist()) if p > 0} == set(classes[0])  # exact zeros elsewhere


def test_stationary_law_of_periodic_and_absorbing_chains():
    turn = torch.roll(torch.eye(4, dtype=torch.float64), 1, 1)
    assert torch.allclose(stationary_law(turn), torch.full((4,), 0.25, dtype=torch.float64))
    absorbed = torch.tensor([[0.5, 0.5], [0.0, 1.0]], dtype=torch.float64)
    assert stationary_law(absorbed).tolist() == [0.0, 1.0]
    assert closed_classes(torch.eye(2).double()) == [[0], [1]]


# Automata and groups --------------------------------------------------------------------------------------------------

ORDERS = {"Z60": 60, "A5": 60, "S5": 120, "S3": 6}


@pytest.mark.parametrize("group", ORDERS)
def test_multiplication_tables_are_groups(group):
    table = multiplication_table(group)
    order = ORDERS[group]
    assert table.shape == (order, order)
    assert (table[0] == np.arange(order)).all()
    assert (table[:, 0] == np.arange(order)).all()  # element 0 is the identity
    for line in (*table, *table.T):
        assert sorted(line) == list(range(order))  # so that inverses exist
    assert (table[table] == table[np.arange(order)[:, None, None], table[None]]).all()  # (ab)c = a(bc)
    assert (table == table.T).all() == (group == "Z60")


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


def test_a5_is_simple_and_the_others_are_not():
    """The least normal subgroup with an element is generated by its conjugates; in A5 it is everything."""
    for group, normal in (("A5", {60}), ("S5", {60, 120}), ("S3", {3, 6})):
        table = multiplication_table(group)
        sizes = {len(closure(table, conjugacy_class(table, g))) for g in range(1, len(table))}
        assert sizes == normal, group
    table = multiplication_table("A5")
    assert sorted(len(c) for c in {frozenset(conjugacy_class(table, g)) for g in range(60)}) == [1, 12, 12, 15, 20]
    commutators = {int(table[table[a, b], table[inv(table, a), inv(table, b)]]) for a in range(60) for b in range(60)}
    assert len(closure(table, commutators)) == 60  # perfect, so not solvable


def inv(table, element):
    return int((table[element] == 0).argmax())


def test_the_product_is_that_of_permutations():
    elements = list(itertools.permutations(range(3)))
    table = multiplication_table("S3")
    for (i, a), (j, b) in itertools.product(enumerate(elements), repeat=2):
        assert elements[table[i, j]] == tuple(a[b[x]] for x in range(3))


@pytest.mark.parametrize("group", ORDERS)
def test_word_problem_state_is_the_product_so_far(group):
    table = multiplication_table(group)
    batch = sampled(hs.make_process("word-problem", group=group), 20, 50)
    for symbols, states in zip(batch.observations.tolist(), batch.states.tolist(), strict=True):
        product_so_far = 0
        for symbol, state in zip(symbols, states, strict=True):
            product_so_far = table[symbol, product_so_far]
            assert state == product_so_far


def test_word_problem_generators_are_elements_other_than_the_identity():
    table = multiplication_table("A5")
    columns = {tuple(row): g for g, row in enumerate(table.tolist())}
    process = hs.make_process("word-problem", group="A5", num_generators=2, seed=4)
    assert process.num_symbols == 2
    chosen = [columns[tuple((process.labelled_VSS[v] > 0).double().argmax(1).tolist())] for v in range(2)]
    assert 0 not in chosen
    assert len(set(chosen)) == 2
    assert process.digest == hs.make_process("word-problem", group="A5", num_generators=2, seed=4).digest
    refuses(lambda: hs.make_process("word-problem", group="S3", num_generators=6), "num_generators", "[0, 5] for S3")
    refuses(lambda: hs.make_process("word-problem", group="S4"), "group", "S3", "S5")


def test_automaton_states_follow_the_table_and_symbols_are_uniform():
    process = hs.make_process("random-automaton", num_states=7, num_symbols=3, seed=5)
    chance, next_state = process.labelled_VSS.max(2)
    assert torch.allclose(
        process.labelled_VSS.sum(2), torch.full((3, 7), 1 / 3, dtype=torch.float64), atol=UNIT, rtol=0
    )
    assert ((process.labelled_VSS > 0).sum(2) == 1).all()
    batch = sampled(process, 100, 60)
    before = torch.cat([torch.zeros(100, 1, dtype=torch.int64), batch.states[:, :-1]], 1)
    assert torch.equal(batch.states, next_state[batch.observations, before])
    counts = torch.bincount(batch.observations.flatten(), minlength=3)
    assert (counts - 2000).abs().max() < 5 * math.sqrt(6000 * 2 / 9)
    result = hs.filter_beliefs(process, batch.observations)  # an observer always knows the state
    assert torch.equal(result.beliefs.argmax(2), batch.states)
    assert float(result.log_likelihood[0]) == pytest.approx(-60 * math.log(3), abs=1e-7)
    assert chance.max() < 0.34


def test_automaton_of_a_table():
    parity = automaton(torch.tensor([[0, 1], [1, 0]]), title="parity")
    batch = sampled(parity, 5, 20)
    assert torch.equal(batch.states, batch.observations.cumsum(1) % 2)
    assert parity.title == "parity"


# Products, channels, labelled twins -----------------------------------------------------------------------------------


def some_process(rng, labelled):
    hmm = hs.HMM(*small_hmm(rng))
    return as_labelled(hmm) if labelled else hmm


@pytest.mark.parametrize("kinds", [*itertools.product([False, True], repeat=2)], ids=str)
def test_likelihood_of_a_product_is_the_product(kinds):
    for seed in range(12):
        rng = np.random.default_rng(seed)
        first, second = (some_process(rng, labelled) for labelled in kinds)
        both = product(first, second)
        assert isinstance(both, hs.LabelledHMM if any(kinds) else hs.HMM)
        assert (both.num_states, both.num_symbols) == (
            first.num_states * second.num_states,
            first.num_symbols * second.num_symbols,
        )
        a, b = rng.integers(first.num_symbols, size=6), rng.integers(second.num_symbols, size=6)
        expected = probability(first, a) * probability(second, b)
        assert probability(both, a * second.num_symbols + b) == pytest.approx(expected, abs=1e-8)
        if expected == 0:
            assert log_likelihood(both, a * second.num_symbols + b) == -math.inf


def test_states_of_a_product_are_numbered_as_its_symbols():
    turn = hs.HMM([1, 0], [[0, 1], [1, 0]], [[1, 0], [0, 1]])
    third = hs.HMM([0, 0, 1], np.roll(np.eye(3), 1, 1), np.eye(3))
    batch = sampled(product(turn, third), 1, 12)
    assert batch.observations[0].tolist() == [(t % 2) * 3 + (t + 2) % 3 for t in range(12)]
    assert torch.equal(batch.observations, batch.states)


@pytest.mark.parametrize("labelled", [False, True])
def test_a_noisy_channel_by_enumeration(labelled):
    """P(w) = sum over v of P(v) prod channel[v_t, w_t]."""
    for seed in range(8):
        rng = np.random.default_rng(seed)
        process = some_process(rng, labelled)
        channel = rows(rng, process.num_symbols, 3, 0.3)
        seen = noisy(process, channel)
        assert type(seen) is type(process)
        for word in words(3, 3):
            expected = sum(
                probability(process, hidden) * math.prod(channel[v, w] for v, w in zip(hidden, word, strict=True))
                for hidden in words(process.num_symbols, 3)
            )
            assert probability(seen, word) == pytest.approx(expected, abs=1e-8)


def test_channel_and_noise_refusals():
    hmm = hs.load_process("umbrella")
    refuses(lambda: noisy(hmm, [[1.0, 0.0]]), "channel: must have shape 2 x any, got 1 x 2")
    refuses(lambda: noisy(hmm, [[0.5, 0.4], [0, 1]]), "channel[0]: row sums to 0.9")
    refuses(lambda: uniform_noise(2, 1.5), "probability: must be in [0, 1], got 1.5")
    assert torch.equal(uniform_noise(2, 0.5), torch.tensor([[0.75, 0.25], [0.25, 0.75]], dtype=torch.float64))
    assert torch.equal(noisy(hmm, uniform_noise(2, 0.0)).emission_SV, hmm.emission_SV)
    assert torch.equal(noisy(hmm, uniform_noise(2, 1.0)).emission_SV, torch.full((2, 2), 0.5).double())


@given(st.integers(0, 2**32 - 1))
def test_as_labelled_has_the_same_likelihood(seed):
    rng = np.random.default_rng(seed)
    hmm = hs.HMM(*small_hmm(rng))
    twin = as_labelled(hmm)
    assert as_labelled(twin) is twin
    word = rng.integers(hmm.num_symbols, size=8)
    assert probability(twin, word) == pytest.approx(probability(hmm, word), abs=1e-8)
    assert (log_likelihood(twin, word) == -math.inf) == (log_likelihood(hmm, word) == -math.inf)


def test_as_labelled_keeps_names():
    umbrella = hs.load_process("umbrella")
    twin = as_labelled(umbrella)
    assert (twin.symbols, twin.states, twin.title) == (umbrella.symbols, umbrella.states, umbrella.title)


# Low rank, Markov chains ----------------------------------------------------------------------------------------------


def rank_of(matrix):
    """Singular values above what rounding to 2^-32 makes: S * 2^-32."""
    return int((torch.linalg.svdvals(matrix) > len(matrix) * UNIT).sum())


@pytest.mark.parametrize("rank", [1, 2, 3, 8])
def test_low_rank_transitions(rank):
    hmm = hs.make_process("low-rank-hmm", rank=rank, seed=1)
    assert rank_of(hmm.transition_SS) == rank
    assert torch.allclose(hmm.initial_S @ hmm.transition_SS, hmm.initial_S, atol=8 * UNIT, rtol=0)
    assert rank_of(hs.make_process("random-hmm", num_states=8, seed=1).transition_SS) == 8


def test_low_rank_mixture_components_depend_on_their_number_only():
    pool = hs.make_process("low-rank-mixture", num_components=4, num_states=5, num_symbols=6)
    rest = hs.make_process("low-rank-mixture", num_components=2, num_states=5, num_symbols=6, first_component=2)
    assert [rest[m].digest for m in range(2)] == [pool[2].digest, pool[3].digest]
    alone = hs.make_process("low-rank-hmm", num_states=5, num_symbols=6)
    assert alone.digest == pool[0].digest
    assert len({pool[m].digest for m in range(4)}) == 4
    assert all(rank_of(pool[m].transition_SS) == 2 for m in range(4))
    for m in range(4):
        assert torch.allclose(pool[m].initial_S @ pool[m].transition_SS, pool[m].initial_S, atol=8 * UNIT, rtol=0)


@pytest.mark.parametrize("gamma", [0.0, 0.25, 0.5, 1.0])
def test_symmetric_channel(gamma):
    channel = symmetric_channel(4, gamma)
    assert torch.allclose(channel.sum(1), torch.ones(4, dtype=torch.float64))
    for direction in torch.eye(4, dtype=torch.float64)[1:] - torch.eye(4, dtype=torch.float64)[0]:
        assert float((direction @ channel).abs().sum() / direction.abs().sum()) == pytest.approx(gamma)
    if gamma:
        hmm = hs.make_process("low-rank-hmm", num_states=4, num_symbols=4, observability=gamma)
        assert torch.allclose(hmm.emission_SV, channel, atol=UNIT, rtol=0)
    refuses(
        lambda: hs.make_process("low-rank-hmm", num_states=4, num_symbols=3, observability=0.5),
        "num_symbols: must equal num_states = 4",
    )


def test_weakly_revealing_has_more_states_than_symbols():
    hmm = hs.make_process("low-rank-hmm", num_states=8, num_symbols=3)
    assert hmm.emission_SV.shape == (8, 3)
    assert rank_of(hmm.emission_SV.T @ hmm.emission_SV) <= 3


def test_markov_chains_are_seen():
    chain = hs.make_process("markov-chain", num_states=6, num_symbols=6, seed=2)
    batch = sampled(chain, 10)
    assert torch.equal(batch.observations, batch.states)
    assert torch.allclose(chain.initial_S @ chain.transition_SS, chain.initial_S, atol=6 * UNIT, rtol=0)
    word = batch.observations[0, :5].tolist()
    expected = chain.initial_S[word[0]] * math.prod(
        float(chain.transition_SS[a, b]) for a, b in itertools.pairwise(word)
    )
    assert probability(chain, word) == pytest.approx(float(expected), rel=1e-12)
    pool = hs.make_process("markov-mixture", num_components=3, num_states=4, num_symbols=4)
    assert torch.equal(pool[1].emission_SV, torch.eye(4).double())
    assert pool[0].initial_S.tolist() == [0.25] * 4
    assert len({pool[m].digest for m in range(3)}) == 3
    batch = sampled(pool, 10)
    assert torch.equal(batch.observations, batch.states)
    refuses(lambda: hs.make_process("markov-chain", num_states=3, num_symbols=4), "must equal num_states = 3")


# GINC -----------------------------------------------------------------------------------------------------------------


def test_ginc_symbols_and_concepts():
    properties, entities = 6, 4
    mixture = hs.make_process(
        "ginc", num_components=3, num_properties=properties, num_entities=entities, num_symbols=9, seed=2
    )
    assert mixture.num_states == properties * entities
    emission = mixture[0].emission_SV
    assert ((emission == 0) | (emission == 1)).all()  # the memory names its symbol without noise
    assert (emission[:entities].argmax(1) == 0).all()  # property 0 gives symbol 0
    assert (emission[entities:].argmax(1) > 0).all()
    for m in range(3):
        assert torch.equal(mixture[m].emission_SV, emission)  # shared by the concepts
        blocks = mixture[m].transition_SS.view(properties, entities, properties, entities)
        moves = blocks.sum(3).mean(1)  # of properties
        stays = blocks.sum(2)  # of entities, by property
        assert torch.allclose(stays, stays[:1].expand_as(stays), atol=1e-7)
        joint = torch.einsum("pq,ef->peqf", moves, stays[0])
        assert torch.allclose(blocks, joint, atol=1e-7)  # independent of each other
        assert torch.allclose(moves.sum(0), torch.ones(properties).double(), atol=1e-6)  # of permutations
        assert (stays[0].diagonal() >= 0.9 - 1e-8).all()
    first, second = (mixture[m].transition_SS.view(6, 4, 6, 4) for m in (0, 1))
    assert not torch.allclose(first.sum(3).mean(1), second.sum(3).mean(1), atol=1e-3)  # own property moves
    assert torch.allclose(first.sum(2)[0], second.sum(2)[0], atol=1e-7)  # shared entity moves


def test_ginc_fields():
    frozen = hs.make_process("ginc", stay=1.0, num_components=1, num_properties=3, num_entities=3)
    batch = sampled(frozen, 10, 20)
    assert (batch.states % 3 == batch.states[:, :1] % 3).all()  # entities keep their place
    refuses(lambda: hs.make_process("ginc", num_properties=40, num_entities=40), "num_entities: must give at most 1024")
    refuses(lambda: hs.make_process("ginc", num_symbols=1), "num_symbols: must be in [2, 65536]")
    refuses(lambda: hs.make_process("ginc", temperature=0), "temperature: must be positive")


# The fresh pool -------------------------------------------------------------------------------------------------------


def test_each_sample_has_an_hmm_of_its_own():
    fresh = hs.make_process("fresh-hmms", num_states=3, num_symbols=4, seed=6)
    starts = np.arange(12) == 0
    paths = fresh.sample_paths(np.arange(5), starts, 9)
    assert paths.components.tolist() == [i + (PURPOSES["corpus"] << 40) for i in range(5)]
    for i in range(5):
        own = fresh.mixture(paths.components[i : i + 1].numpy())
        again = own.sample_paths(np.array([i]), starts, 9)
        assert torch.equal(again.observations[0], paths.observations[i])
        assert float(hs.filter_mixture(own, paths.observations[i : i + 1]).log_likelihood[0]) > -math.inf
    assert len({fresh.mixture(np.array([c]))[0].digest for c in paths.components.tolist()}) == 5


def test_fresh_samples_do_not_depend_on_order_or_batch():
    fresh = hs.make_process("fresh-hmms", num_states=3, num_symbols=4)
    starts = np.arange(10) == 0
    indices = np.array([5, 2, 9, 2**35, 0])
    together = fresh.sample_paths(indices, starts, 1)
    for row, index in enumerate(indices):
        alone = fresh.sample_paths(np.array([index]), starts, 1)
        assert torch.equal(alone.observations[0], together.observations[row])
        assert torch.equal(alone.states[0], together.states[row])
        assert alone.components[0] == together.components[row]


def test_fresh_streams_share_no_component():
    fresh = hs.make_process("fresh-hmms", num_states=2, num_symbols=2)
    starts = np.array([True])
    last = np.array([0, 2**40 - 1])
    ranges = []
    for stream in ("corpus", "train", "evaluate", "probe", "shuffle"):
        low, high = fresh.sample_paths(last, starts, 0, stream).components.tolist()
        ranges.append((low, high))
    ranges.sort()
    assert all(a[1] < b[0] for a, b in itertools.pairwise(ranges))
    with pytest.raises(InputError):
        fresh.sample_paths(np.array([2**40]), starts, 0)
    with pytest.raises(InputError):
        fresh.sample_paths(np.array([-1]), starts, 0)
    refuses(lambda: fresh.sample_paths(np.arange(2), starts, 0, "nowhere"), "nowhere", "corpus")


def test_a_fresh_pool_is_not_its_first_component():
    sizes = {"num_states": 2, "num_symbols": 3}
    digests = {
        hs.make_process(name, seed=seed, **sizes).digest for name in ("fresh-hmms", "random-hmm") for seed in (0, 1)
    }
    assert len(digests) == 4


def test_no_samples_of_a_fresh_pool():
    fresh = hs.make_process("fresh-hmms", num_states=2, num_symbols=2)
    none = fresh.sample_paths(np.arange(0), np.array([True, False]), 0)
    assert none.observations.shape == (0, 2)
    assert none.components.shape == (0,)


# Labelled HMMs --------------------------------------------------------------------------------------------------------

HALVES = [[[0.5, 0.0], [0.0, 0.5]], [[0.0, 0.5], [0.5, 0.0]]]


@pytest.mark.parametrize(
    "initial, labelled, part",
    [
        ([0.5, 0.4], HALVES, "initial: row sums to 0.9"),
        ([0.5, 0.5], HALVES[0], "labelled: must have shape any x 2 x 2, got 2 x 2"),
        ([1.0], HALVES, "labelled: must have shape any x 1 x 1"),
        ([0.5, 0.5], [[[0.5, 0], [0, 0.5]], [[0, 0.4], [0.5, 0]]], "labelled"),
        ([0.5, 0.5], [[[1.5, 0], [0, 0.5]], [[0, -0.5], [0.5, 0]]], "is negative"),
        ([0.5, 0.5], [[[math.nan, 0], [0, 0.5]], [[0, 0.5], [0.5, 0]]], "is not a finite number"),
        ([0.5, 0.5], [[[0.5], [0, 0.5]], [[0, 0.5], [0.5, 0]]], "labelled"),
        ([0.5, 0.5], "text", "labelled"),
        ([0.5, 0.5], None, "labelled"),
        ([0.5, 0.5], [], "labelled"),
        ([0.5, 0.5], np.zeros((0, 2, 2)), "labelled"),
        ([0.5, 0.5], np.array(HALVES, dtype=np.float16), "float16"),
        ([0.5, 0.5], np.array(HALVES, dtype=complex), "complex"),
    ],
)
def test_bad_labelled_matrices_are_refused_in_one_line(unchecked, initial, labelled, part):
    refuses(lambda: hs.LabelledHMM(initial, labelled), part)


def test_labelled_names_and_tiny_entries():
    refuses(lambda: hs.LabelledHMM([1.0], [[[1.0]]], symbols=["a", "b"]), "symbols: must be 1 different names, got 2")
    refuses(lambda: hs.LabelledHMM([0.5, 0.5], HALVES, states=["a", "a"]), "states: must be 2 different names")
    tiny = [[[1e-12, 1 - 1e-12], [0, 1.0]]]
    refuses(lambda: hs.LabelledHMM([1, 0], tiny), "allow_drop_tiny")
    assert hs.LabelledHMM([1, 0], tiny, allow_drop_tiny=True).labelled_VSS[0, 0].tolist() == [0.0, 1.0]
    assert (
        repr(hs.LabelledHMM([1.0], [[[1.0]]], title="one")) == "LabelledHMM(num_states=1, num_symbols=1, title='one')"
    )


def random_labelled(seed):
    rng = np.random.default_rng(seed)
    states, symbols = int(rng.integers(1, 4)), int(rng.integers(1, 4))
    flat = rows(rng, states, symbols * states, float(rng.choice([0.0, 0.5, 0.8])))
    labelled = flat.reshape(states, symbols, states).transpose(1, 0, 2)
    return hs.LabelledHMM(rows(rng, 1, states, 0.3)[0], labelled), rng


@pytest.mark.parametrize("seed", range(25))
def test_labelled_filter_equals_enumeration(seed):
    process, rng = random_labelled(seed)
    word = rng.integers(process.num_symbols, size=5).tolist()
    result = hs.filter_beliefs(process, torch.tensor([word]))
    for t in range(5):
        mass, belief = edge_enumeration(process.labelled_VSS, process.initial_S, word[: t + 1])
        prefix = float(result.log_likelihood_per_token[0, : t + 1].sum())
        if mass == 0:
            assert prefix == -math.inf
            assert int(result.impossible_at[0]) <= t
            assert result.beliefs[0, t].tolist() == [0.0] * process.num_states
            continue
        assert prefix == pytest.approx(math.log(mass), abs=1e-12)
        assert result.beliefs[0, t].tolist() == pytest.approx([float(b) for b in belief], abs=1e-12)
        longer = [
            edge_enumeration(process.labelled_VSS, process.initial_S, [*word[: t + 1], v])[0]
            for v in range(process.num_symbols)
        ]
        following = [float(p / mass) for p in longer]
        assert result.next_observation[0, t].tolist() == pytest.approx(following, abs=1e-12)


@pytest.mark.parametrize("seed", range(8))
def test_mixtures_of_labelled_hmms(seed):
    rng = np.random.default_rng(seed)
    parts = []
    for _ in range(3):
        flat = rows(rng, 2, 6, 0.5)
        parts.append(hs.LabelledHMM(rows(rng, 1, 2)[0], flat.reshape(2, 3, 2).transpose(1, 0, 2)))
    weights = rows(rng, 1, 3)[0]
    mixture = hs.Mixture(weights, parts)
    assert [mixture[m].digest for m in range(3)] == [part.digest for part in parts]
    word = rng.integers(3, size=4).tolist()
    masses = [
        Fraction(w) * edge_enumeration(p.labelled_VSS, p.initial_S, word)[0]
        for w, p in zip(weights, parts, strict=True)
    ]
    result = hs.filter_mixture(mixture, torch.tensor([word]))
    total = sum(masses)
    if total == 0:
        assert float(result.log_likelihood[0]) == -math.inf
    else:
        assert float(result.log_likelihood[0]) == pytest.approx(math.log(total), abs=1e-12)
        assert result.component_posterior[0, -1].tolist() == pytest.approx(
            [float(x / total) for x in masses], abs=1e-12
        )
    refuses(
        lambda: hs.Mixture([0.5, 0.5], [parts[0], hs.HMM([0.5, 0.5], np.eye(2), np.full((2, 3), 1 / 3))]), "components"
    )


@pytest.mark.parametrize("seed", range(10))
def test_sampled_edges_equal_the_plain_sampler(seed):
    rng = np.random.default_rng(seed)
    parts = []
    states, symbols = int(rng.integers(1, 4)), int(rng.integers(1, 5))
    for _ in range(3):
        flat = rows(rng, states, symbols * states, 0.4)
        labelled = flat.reshape(states, symbols, states).transpose(1, 0, 2)
        parts.append(hs.LabelledHMM(rows(rng, 1, states)[0], labelled))
    mixture = hs.Mixture([0.25, 0.25, 0.5], parts)
    indices = rng.integers(2**40, size=11)
    starts = np.array([True, *(rng.random(8) < 0.3)])
    fast = mixture.sample_paths(indices, starts, seed, "probe")
    plain = sample_edges_reference(
        philox_key(seed, "probe"), indices, fast.components.numpy(), starts, *mixture.alias_tables[1:], states
    )
    assert np.array_equal(fast.observations.numpy(), plain[0])
    assert np.array_equal(fast.states.numpy(), plain[1])


def test_sampled_words_have_their_probabilities():
    process = hs.make_process("mess3")
    count = 20000
    batch = hs.Corpus(process, length=3, seed=1)[0:count]
    seen = Counter(map(tuple, batch.observations.tolist()))
    expected = np.array([probability(process, word) for word in words(3, 3)])
    observed = np.array([seen[word] for word in words(3, 3)])
    chi_square = ((observed - count * expected) ** 2 / (count * expected)).sum()
    assert chi_square < 26 + 5 * math.sqrt(52)  # 26 degrees of freedom, five deviations


# Laws -----------------------------------------------------------------------------------------------------------------


def test_laws_are_stacked_and_chosen():
    rng = np.random.default_rng(0)
    hmms = [hs.HMM(*KINDS[0](rng, 2, 3)) for _ in range(3)]
    law = stack([hmm.law for hmm in hmms])
    assert isinstance(law, StateEmitting)
    assert torch.equal(law.select(torch.tensor([2, 0])).transition_MSS[1], hmms[0].transition_SS)
    assert torch.equal(symbol_law(law)[1], hmms[1].emission_SV)
    edges = stack([as_labelled(hmm).law for hmm in hmms])
    assert isinstance(edges, EdgeEmitting)
    assert edges.labelled_MVSS.shape == (3, 3, 2, 2)
    assert torch.allclose(symbol_law(edges), symbol_law(law), atol=1e-8)
    initial, flat = edges.rows()
    assert initial.shape == (3, 2)
    assert torch.equal(flat.sum(-1), torch.ones(3, 2).double())
    assert float(flat[1, 0, 2 * 2 + 1]) == float(edges.labelled_MVSS[1, 2, 0, 1])  # symbol-major
    assert torch.equal(edges.select(torch.tensor([1])).initial_MS[0], hmms[1].initial_S)


def test_the_oracle_of_this_file_agrees_with_the_shared_one():
    """Enumeration over edges and over states, for the same HMM."""
    rng = np.random.default_rng(1)
    matrices = KINDS[0](rng, 2, 2)
    hmm = hs.HMM(*matrices)
    labelled = torch.einsum("iv,ij->vij", hmm.emission_SV, hmm.transition_SS)
    for word in words(2, 4):
        assert edge_enumeration(labelled, hmm.initial_S, word)[0] == by_enumeration(exact(matrices), word).prefix[-1]
