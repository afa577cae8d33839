"""Philox, alias tables, quantisation and Dirichlet rows: known answers, exact counts, stated error rates."""

import math
from fractions import Fraction

import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given
from hypothesis import strategies as st

from hmmscope.kernels import alias, quantise
from hmmscope.kernels.alias import alias_tables, column_bits, draw
from hmmscope.kernels.philox import philox, philox_reference, philox_words
from hmmscope.kernels.quantise import UNIT, quantise_rows
from hmmscope.kernels.random_arrays import dirichlet_rows
from hmmscope.kernels.reference import draw_reference
from hmmscope.processes import stationary

# counter, key, words after 7 rounds, words after 10 rounds; Random123, tests/kat_vectors, philox4x32.
KNOWN_ANSWERS = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000",
     "5f6fb709 0d893f64 4f121f81 4f730a48", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff",
     "5207ddc2 45165e59 4d8ee751 8c52f662", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0",
     "4dfccaba 190a87f0 c47362ba b6b5242a", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]  # fmt: skip


def words_of(text: str) -> tuple[int, ...]:
    return tuple(int(word, 16) for word in text.split())


@pytest.mark.parametrize("counter, key, seven, ten", KNOWN_ANSWERS)
def test_philox_known_answers(counter, key, seven, ten):
    counter, key = words_of(counter), words_of(key)
    assert philox_reference(counter, key, rounds=7) == words_of(seven)
    assert philox_reference(counter, key) == words_of(ten)
    compiled = philox_words(np.array([counter], np.uint64), key)
    assert compiled.dtype == np.uint32
    assert tuple(compiled[0].tolist()) == words_of(ten)
    assert tuple(int(word) for word in philox(*map(np.uint64, (*counter, *key)))) == words_of(ten)


def test_philox_compiled_equals_plain():
    rng = np.random.default_rng(0)
    counters = rng.integers(0, 2**32, (1000, 4), dtype=np.uint64)
    counters[:16] = np.array(list(np.ndindex(2, 2, 2, 2))) * (2**32 - 1)
    for key in [(0, 0), (2**32 - 1, 0), (0, 2**32 - 1), (123, 16)]:
        plain = [philox_reference(tuple(counter), key) for counter in counters.tolist()]
        np.testing.assert_array_equal(philox_words(counters, key), np.array(plain, np.uint32))


def test_philox_words_of_neighbouring_counters_all_differ():
    """A permutation of counters for each key: 4096 x 4 words collide rarely, blocks of four never."""
    counters = np.zeros((4096, 4), np.uint64)
    counters[:, 0], counters[:, 2] = np.divmod(np.arange(4096), 64)
    assert len({tuple(words) for words in philox_words(counters, (7, 16)).tolist()}) == 4096


# ---------------------------------------------------------------------------------------------------------------------
# Alias tables


def random_weights(rng: np.random.Generator, num_outcomes: int, concentration: float) -> np.ndarray:
    weights = rng.multinomial(UNIT, rng.dirichlet(np.full(num_outcomes, concentration)))
    assert weights.sum() == UNIT
    return weights.astype(np.int64)


AWKWARD_WEIGHTS = [
    [UNIT],
    [UNIT, 0],
    [0, UNIT],
    [UNIT - 1, 1],
    [1, UNIT - 1],
    [2**31, 2**31],
    [2**30] * 4,
    [0, 0, UNIT, 0],
    [0, 0, 0, 0, UNIT],
    [1, 1, UNIT - 2],
    [UNIT - 4, 1, 1, 1, 1],
    [2**31 - 1, 2**31 + 1, 0],
    [2**27] * 32,
    [2**28 - 1, 2**28 + 1] * 8,
    [UNIT - 65535] + [1] * 65535,
    [2**16] * 65536,
]


def outcome_weights(table, num_outcomes):
    bits = table.shape[-1].bit_length() - 1
    capacity = 1 << (32 - bits)
    weights = np.zeros(max(num_outcomes, table.shape[-1]), np.int64)
    for column, entry in enumerate(table.tolist()):
        threshold, alias = entry >> bits, entry & (table.shape[-1] - 1)
        weights[column] += threshold
        weights[alias] += capacity - threshold
    return weights[:num_outcomes]


@pytest.mark.parametrize("weights", AWKWARD_WEIGHTS, ids=lambda w: f"{len(w)}:{w[0]}")
def test_alias_tables_hold_awkward_weights_exactly(weights):
    weights = np.array(weights, np.int64)
    table = alias_tables(weights)
    assert len(table) == 2 ** column_bits(len(weights))
    np.testing.assert_array_equal(outcome_weights(table, len(weights)), weights)
    assert outcome_weights(table, len(table)).sum() == UNIT


def test_alias_tables_hold_random_weights_exactly():
    rng = np.random.default_rng(1)
    for num_outcomes in [*range(1, 35), 63, 64, 65, 127, 128, 129, 1000, 4096]:
        for concentration in (0.01, 0.3, 1.0, 100.0):
            weights = random_weights(rng, num_outcomes, concentration)
            table = alias_tables(weights)
            np.testing.assert_array_equal(outcome_weights(table, num_outcomes), weights)


def test_alias_tables_of_a_batch_are_those_of_its_rows_compiled_or_not(monkeypatch):
    rng = np.random.default_rng(2)
    weights = np.stack([random_weights(rng, 5, 1.0) for _ in range(6)]).reshape(2, 3, 5)
    monkeypatch.setattr(alias, "_left", [48])
    tables = alias_tables(weights)
    assert tables.shape == (2, 3, 8)
    assert tables.dtype == np.uint32
    monkeypatch.setattr(alias, "_left", [0])
    for index in np.ndindex(2, 3):
        np.testing.assert_array_equal(tables[index], alias_tables(weights[index]))


def test_small_alias_tables_that_are_built_again_and_again_are_compiled(monkeypatch):
    """As those of a fresh HMM for every sample, in each step of a training."""
    plain, ways = alias._build.py_func, []

    class Build:
        def __call__(self, *args):
            ways.append("compiled")
            plain(*args)

        def py_func(self, *args):
            ways.append("plain")
            plain(*args)

    monkeypatch.setattr(alias, "_build", Build())
    monkeypatch.setattr(alias, "_left", [20])
    for _ in range(4):
        alias_tables(np.full((4, 2), 2**31))  # eight entries
    assert ways == ["plain", "plain", "compiled", "compiled"]


def test_alias_tables_refuse_more_outcomes_than_an_entry_can_name():
    weights = np.zeros(65537, np.int64)
    weights[0] = UNIT
    with pytest.raises(ValueError, match="65536"):
        alias_tables(weights)


@pytest.mark.parametrize("num_outcomes", [1, 2, 3, 5, 8, 16, 21])
def test_draws_of_all_words_have_the_weights(num_outcomes):
    """Weights that are multiples of 2^16 give thresholds that are, so the 2^16 words k * 2^16 count exactly."""
    rng = np.random.default_rng(num_outcomes)
    weights = rng.multinomial(2**16, rng.dirichlet(np.full(num_outcomes, 0.7))).astype(np.int64)
    table = alias_tables(weights << 16)
    bits = column_bits(num_outcomes)
    outcomes = [draw_reference(table, k << 16) for k in range(2**16)]
    np.testing.assert_array_equal(np.bincount(outcomes, minlength=num_outcomes), weights)
    words = rng.integers(0, 2**16, 300) << 16
    assert [int(draw(table, np.uint64(w), bits)) for w in words] == [outcomes[w >> 16] for w in words]


def test_draws_change_exactly_at_thresholds():
    """Each column draws one outcome below its threshold and one from it on; the lengths add up to the weights."""
    rng = np.random.default_rng(3)
    for num_outcomes in (1, 2, 3, 7, 16, 33):
        weights = random_weights(rng, num_outcomes, 0.5)
        table, bits = alias_tables(weights), column_bits(num_outcomes)
        capacity = 1 << (32 - bits)
        counted = np.zeros(num_outcomes, np.int64)
        for column, entry in enumerate(table.tolist()):
            first, threshold = column * capacity, entry >> bits
            for low, high in ((0, threshold), (threshold, capacity)):
                if low < high:
                    ends = {draw_reference(table, first + low), draw_reference(table, first + high - 1)}
                    compiled = {int(draw(table, np.uint64(first + r), bits)) for r in (low, high - 1)}
                    assert len(ends) == 1
                    assert compiled == ends
                    counted[ends.pop()] += high - low
        np.testing.assert_array_equal(counted, weights)


# ---------------------------------------------------------------------------------------------------------------------
# Quantisation


def check_quantised(row: np.ndarray) -> None:
    weights = quantise_rows(row)
    total = sum(map(Fraction, row.tolist()))
    assert weights.sum() == UNIT
    for weight, probability in zip(weights.tolist(), row.tolist(), strict=True):
        assert weight >= 0
        assert abs(weight - Fraction(probability) / total * UNIT) < 1
        if probability == 0:
            assert weight == 0


AWKWARD_ROWS = [
    [1.0],
    [0.0, 1.0],
    [1 / 3] * 3,
    [1 / 7] * 7,
    [0.1] * 10,
    [1 - 2**-32, 2**-32],
    [1 - 2**-33, 2**-33],
    [1 - 2**-53, 2**-53],
    [2**-33] * 2 + [1 - 2**-32],
    [2**-32 * 1.5] * 3 + [1 - 2**-32 * 4.5],
    [np.nextafter(0.5, 0)] * 2,
    [np.nextafter(0.5, 1)] * 2,
    [0.5 + 5e-7, 0.5 + 5e-7],
    [0.5 - 5e-7, 0.5 - 5e-7, 0.0],
    [2**-32] * 9 + [1 - 9 * 2**-32 + 1e-6],
    [0.0, 5e-324, 1.0],
    [-0.0, 1.0],
]


@pytest.mark.parametrize("row", AWKWARD_ROWS)
def test_awkward_rows_are_quantised_within_a_unit(row):
    check_quantised(np.array(row))


@given(st.lists(st.one_of(st.just(0.0), st.floats(2**-40, 1.0)), min_size=1, max_size=40).filter(sum))
def test_rows_are_quantised_within_a_unit(entries):
    row = np.array(entries)
    check_quantised(row / row.sum())


def test_dirichlet_like_rows_are_quantised_within_a_unit():
    rng = np.random.default_rng(4)
    for concentration in (1e-3, 0.01, 0.1, 1.0, 1000.0):
        for num_columns in (2, 16, 128, 1000):
            check_quantised(rng.dirichlet(np.full(num_columns, concentration)))


def test_left_over_units_go_to_the_lowest_index_among_equals():
    assert quantise_rows(np.full(3, 1 / 3)).tolist() == [1431655766, 1431655765, 1431655765]
    sevenths = quantise_rows(np.full(7, 1 / 7))
    assert (sevenths - UNIT // 7).tolist() == [1] * (UNIT % 7) + [0] * (7 - UNIT % 7)
    half_a_unit = 2.0**-33
    assert quantise_rows(np.array([half_a_unit, 1 - 2 * half_a_unit, half_a_unit])).tolist() == [1, UNIT - 1, 0]


def test_left_over_units_go_to_the_largest_fractions():
    unit = 2.0**-32
    row = np.array([1.25 * unit, 1.75 * unit, 1.5 * unit, 0.5 * unit, 1 - 5 * unit])
    assert quantise_rows(row).tolist() == [1, 2, 2, 0, UNIT - 5]
    many = np.random.default_rng(8).dirichlet(np.ones(300))
    exact = many / sum(many) * UNIT
    rest = UNIT - np.floor(exact).sum()
    assert rest > 100
    largest = np.argsort(np.floor(exact) - exact, kind="stable")[: int(rest)]
    for rows in (many[None], np.tile(many, (60, 1))):  # 18,000 entries are rounded by the compiled loop
        assert np.flatnonzero(quantise_rows(rows)[-1] > np.floor(exact)).tolist() == sorted(largest.tolist())


def test_quantised_rows_are_their_own_quantisation():
    rng = np.random.default_rng(5)
    weights = quantise_rows(rng.dirichlet(np.full(16, 0.1), size=(5, 4)))
    np.testing.assert_array_equal(quantise_rows(weights / UNIT), weights)


# ---------------------------------------------------------------------------------------------------------------------
# Dirichlet rows


@pytest.mark.parametrize("scale", [1.0, 1e-3, 1e-9])
def test_few_rows_are_quantised_as_many_are(scale, monkeypatch):
    """Without anything compiled: ties, zeros, a certain outcome, and rows whose sum is near one."""
    rng = np.random.default_rng(3)
    rows = rng.dirichlet(np.full(7, scale), size=400)
    rows[:40] = rng.integers(0, 4, (40, 7)) + np.eye(7)[0]
    rows[:20] /= rows[:20].sum(1, keepdims=True)
    rows[20:40] = np.eye(7)[rng.integers(0, 7, 20)]
    rows[40:80] *= 1 + rng.normal(0, 1e-9, (40, 1))
    found = quantise_rows(rows)
    monkeypatch.setattr(quantise, "_SMALL", -1)
    np.testing.assert_array_equal(found, quantise_rows(rows))
    assert (found.sum(1) == UNIT).all()


def test_the_stationary_law_of_few_states_is_that_of_the_compiled_loop(monkeypatch):
    law = torch.from_numpy(np.random.default_rng(1).dirichlet(np.full(6, 0.2), size=6))
    found = stationary.stationary_law(law)
    monkeypatch.setattr(stationary, "_FEW", 0)
    assert found.equal(stationary.stationary_law(law))


def test_one_component_alone_equals_the_same_in_a_batch():
    key = (5, 2)
    numbers = np.array([9, 0, 3, 2**32 - 1, 2**32, 2**40 - 1, 1])
    batch = dirichlet_rows(key, numbers, 4, 6, 0.01)
    for index, number in enumerate(numbers):
        np.testing.assert_array_equal(dirichlet_rows(key, np.array([number]), 4, 6, 0.01)[0], batch[index])
    np.testing.assert_array_equal(dirichlet_rows(key, numbers[::-1], 4, 6, 0.01), batch[::-1])
    assert len(np.unique(batch.reshape(len(numbers), -1), axis=0)) == len(numbers)
    assert not np.array_equal(batch, dirichlet_rows((6, 2), numbers, 4, 6, 0.01))
    assert not np.array_equal(batch, dirichlet_rows((5, 3), numbers, 4, 6, 0.01))


@pytest.mark.parametrize("concentration", [1e-9, 1e-3, 0.01, 0.5, 1.0, 30.0, 1e6])
def test_dirichlet_rows_are_laws(concentration):
    rows = dirichlet_rows((1, 2), np.arange(50), 3, 17, concentration)
    assert np.isfinite(rows).all()
    assert (rows >= 0).all()
    np.testing.assert_allclose(rows.sum(-1), 1, rtol=0, atol=17 * 2**-53)


@pytest.mark.parametrize("concentration, num_columns", [(0.1, 3), (1.0, 2), (1.0, 5), (7.5, 4)])
def test_dirichlet_moments_and_marginals(concentration, num_columns):
    """Against the Beta marginal of each column over n independent rows.

    Hoeffding for mean and second moment (values in [0, 1]) and the DKW bound for the distribution function, each false
    alarm at most 1e-9; n = 60000 detects an error of 0.03 with the same rate of misses.
    """
    n, false_alarm = 60_000, 1e-9
    bound = math.sqrt(math.log(2 / false_alarm) / (2 * n))
    rows = dirichlet_rows((2, 3), np.arange(n // 4), 4, num_columns, concentration).reshape(n, num_columns)
    total = concentration * num_columns
    mean = 1 / num_columns
    variance = mean * (1 - mean) / (total + 1)
    for column in range(num_columns):
        values = rows[:, column]
        assert abs(values.mean() - mean) < bound
        assert abs((values**2).mean() - (variance + mean**2)) < bound
        law = scipy.stats.beta(concentration, total - concentration)
        assert scipy.stats.kstest(values, law.cdf).statistic < bound


def test_the_marginal_check_fails_for_another_concentration():
    n = 60_000
    bound = math.sqrt(math.log(2 / 1e-9) / (2 * n))
    values = dirichlet_rows((2, 3), np.arange(n // 4), 4, 2, 1.2).reshape(n, 2)[:, 0]
    assert scipy.stats.kstest(values, scipy.stats.beta(1.0, 1.0).cdf).statistic > bound
