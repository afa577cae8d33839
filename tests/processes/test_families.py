"""The process families: what the papers and definitions say of each, word by word and number by number."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import hmmscope as hs
from comparing import refuses
from families_cases import (
    FORBIDDEN,
    FORMULAS,
    ORDERS,
    STATIONARY,
    STRUCTURES,
    UNIT,
    closure,
    conjugacy_class,
    inv,
    log_likelihood,
    probability,
    rank_of,
    sampled,
    some_process,
    structure,
    text,
    words,
)
from hmmscope.processes.automata import automaton, multiplication_table
from hmmscope.processes.combine import as_labelled, noisy, product, uniform_noise
from hmmscope.processes.stationary import closed_classes, stationary_law
from strategies import KINDS, rows, small_hmm

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
    assert torch.allclose(mess3.labelled, published, atol=UNIT, rtol=0)
    assert torch.allclose(mess3.initial, torch.full((3,), 1 / 3, dtype=torch.float64), atol=UNIT, rtol=0)


def test_mess3_is_symmetric_and_its_ends_are_simple():
    mess3 = hs.make_process("mess3", switch=0.1, emission=0.6)
    for word in words(3, 4):
        turned = [(v + 1) % 3 for v in word]
        assert probability(mess3, word) == pytest.approx(probability(mess3, turned), abs=1e-8)  # rows are rounded
    refuses(lambda: hs.make_process("mess3", switch=0.0), "3 closed sets of states")  # no single stationary law
    sure = hs.make_process("mess3", emission=1.0)
    batch = sampled(sure, 20)
    assert torch.equal(batch.observations, batch.states)


@pytest.mark.parametrize("name", STRUCTURES)
def test_structure_and_stationary_start(name):
    process = hs.make_process(name)
    assert structure(process) == STRUCTURES[name]
    for state, law in STATIONARY[name].items():
        assert float(process.initial[process.states.index(state)]) == pytest.approx(law, abs=UNIT)
    assert process.title
    assert process.source


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
    "name, fields", [("golden-mean", {"zero_probability": 0.2}), ("even", {"zero_probability": 0.7})]
)
def test_other_chances(name, fields):
    process, p = hs.make_process(name, **fields), fields["zero_probability"]
    stay = 1 / (1 + p) if name == "golden-mean" else 1 / (2 - p)  # stationary law of A
    assert float(process.initial[0]) == pytest.approx(stay, abs=UNIT)
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
        refuses(lambda: stationary_law(transition), f"{len(classes)} closed sets of states")
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
    assert (table == table.T).all() == (group in ("Z2", "Z60"))


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
    chosen = [columns[tuple((process.labelled[v] > 0).double().argmax(1).tolist())] for v in range(2)]
    assert 0 not in chosen
    assert len(set(chosen)) == 2
    assert process.digest == hs.make_process("word-problem", group="A5", num_generators=2, seed=4).digest
    refuses(lambda: hs.make_process("word-problem", group="S3", num_generators=6), "num_generators", "[0, 5] for S3")
    refuses(lambda: hs.make_process("word-problem", group="S4"), "group", "S3", "S5")


def test_automaton_states_follow_the_table_and_symbols_are_uniform():
    process = hs.make_process("random-automaton", num_states=7, num_symbols=3, seed=5)
    chance, next_state = process.labelled.max(2)
    assert torch.allclose(process.labelled.sum(2), torch.full((3, 7), 1 / 3, dtype=torch.float64), atol=UNIT, rtol=0)
    assert ((process.labelled > 0).sum(2) == 1).all()
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
        unseen = {hidden: probability(process, hidden) for hidden in words(process.num_symbols, 3)}
        for word in words(3, 3):
            expected = sum(
                p * math.prod(channel[v, w] for v, w in zip(hidden, word, strict=True)) for hidden, p in unseen.items()
            )
            assert probability(seen, word) == pytest.approx(expected, abs=1e-8)


def test_channel_and_noise_refusals():
    hmm = hs.load_process("umbrella")
    refuses(lambda: noisy(hmm, [[1.0, 0.0]]), "channel: must have shape 2 x any, got 1 x 2")
    refuses(lambda: noisy(hmm, [[0.5, 0.4], [0, 1]]), "channel[0]: row sums to 0.9")
    refuses(lambda: uniform_noise(2, 1.5), "probability: must be in [0, 1], got 1.5")
    assert torch.equal(uniform_noise(2, 0.5), torch.tensor([[0.75, 0.25], [0.25, 0.75]], dtype=torch.float64))
    assert torch.equal(noisy(hmm, uniform_noise(2, 0.0)).emission, hmm.emission)
    assert torch.equal(noisy(hmm, uniform_noise(2, 1.0)).emission, torch.full((2, 2), 0.5).double())


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


@pytest.mark.parametrize("rank", [1, 2, 3, 8])
def test_low_rank_transitions(rank):
    hmm = hs.make_process("low-rank-hmm", rank=rank, seed=1)
    assert rank_of(hmm.transition) == rank
    assert torch.allclose(hmm.initial @ hmm.transition, hmm.initial, atol=8 * UNIT, rtol=0)
    assert rank_of(hs.make_process("random-hmm", num_states=8, seed=1).transition) == 8


def test_low_rank_mixture_components_depend_on_their_number_only():
    pool = hs.make_process("low-rank-mixture", num_components=4, num_states=5, num_symbols=6)
    rest = hs.make_process("low-rank-mixture", num_components=2, num_states=5, num_symbols=6, first_component=2)
    assert [rest[m].digest for m in range(2)] == [pool[2].digest, pool[3].digest]
    alone = hs.make_process("low-rank-hmm", num_states=5, num_symbols=6)
    assert alone.digest == pool[0].digest
    assert len({pool[m].digest for m in range(4)}) == 4
    assert all(rank_of(pool[m].transition) == 2 for m in range(4))
    for m in range(4):
        assert torch.allclose(pool[m].initial @ pool[m].transition, pool[m].initial, atol=8 * UNIT, rtol=0)
