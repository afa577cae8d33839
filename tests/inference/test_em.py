"""Models that climb side by side end where each would alone, whatever stands in the other lanes."""

import numpy as np
import pytest
import torch

import hmmscope as hs
from hmmscope.errors import InputError
from hmmscope.inference import em
from hmmscope.inference.baum_welch import as_sequences, fit_baum_welch
from hmmscope.inference.em import EMRunner, Model, MStepSettings, counter_of_several, counts_of
from hmmscope.inference.loop_inputs import flat_sequences
from hmmscope.inference.one_block import OneBlock
from hmmscope.inference.restarts import climb
from inference_cases import revived
from strategies import rows

RULES = MStepSettings(0.1, frozenset(), None)


def models(count, num_states, num_symbols, zeros=0.0, seed=0):
    rng = np.random.default_rng(seed)
    shapes = (1, num_states), (num_states, num_states), (num_states, num_symbols)
    return [
        Model(*(rows(rng, *shape, zeros if shape[0] > 1 and shape == shapes[1] else 0.0) for shape in shapes))
        for _ in range(count)
    ]


def several(found):
    return Model.several([Model(one.initial[0], one.transition, one.emission) for one in found])


@pytest.mark.long
@pytest.mark.parametrize(("num_states", "count"), [(1, 2), (3, 11), (8, 8)])
def test_counts_are_those_of_each_model(num_states, count):
    """Sequences of many lengths, some observations missing, zeros among the transitions."""
    rng = np.random.default_rng(num_states)
    lengths = np.array([40, 1, 17, 1100, 9])
    work = flat_sequences(rng.integers(0, 5, lengths.sum()), lengths)  # symbol 4 is a missing one
    all_of_them = several(models(count, num_states, 4, 0.2))
    found = counter_of_several(work, num_states, 4)(all_of_them)
    for number in range(count):
        own = counts_of(all_of_them.chosen(number), work)
        for part, other in zip((found.initial, found.transitions, found.emissions), own, strict=False):
            np.testing.assert_allclose(part[number], other, rtol=1e-11, atol=1e-11)
        assert found.logs[number] == pytest.approx(own.logs.sum(), rel=1e-12)


@pytest.mark.parametrize(("num_states", "num_symbols"), [(1, 2), (3, 4), (9, 30), (33, 3)])
def test_counts_of_few_observations_have_the_bits_of_any_number(num_states, num_symbols):
    """Zeros among the probabilities, missing observations, several sequences; what needs care is left to `expect`."""
    rng = np.random.default_rng(num_states)
    lengths = np.array([50, 7]) if num_states > 32 else np.array([7, 300, 1])
    work = flat_sequences(rng.integers(0, num_symbols + 1, lengths.sum()), lengths)
    runner = EMRunner(work, RULES, 1)
    for model in models(3, num_states, num_symbols, 0.2, seed=num_states):
        model = model._replace(initial=model.initial[0])
        found, total = runner.counts(model)
        prepared = OneBlock.of(work, num_states, num_symbols).counts(model)
        expected = em.expect(model, work, 1)
        for own, alone, other in zip(found, prepared, expected, strict=True):
            np.testing.assert_array_equal(own, other)
            np.testing.assert_array_equal(alone, other)
        assert total == work.total(expected.logs)
    impossible = Model(np.ones(1), np.ones((1, 1)), np.array([[1.0, 0.0]]))
    assert OneBlock.of(flat_sequences(np.array([0, 1]), np.array([2])), 1, 2).counts(impossible) is None
    assert OneBlock.of(flat_sequences(np.zeros(2**13, np.int64), np.array([2**13])), 1, 2) is None
    assert OneBlock.of(work._replace(weights=np.ones(len(lengths))), 1, 2) is None


def test_what_floats_may_lose_is_counted_with_care():
    """One lane is in doubt and the others are not; one that forbids a sequence is refused."""
    matrices, sequence = revived()
    doubtful = Model(*(np.asarray(part, np.float64) for part in matrices))
    size, num_symbols = doubtful.emission.shape
    work = flat_sequences(np.array(sequence), np.array([len(sequence)]))
    plain = Model(
        np.full(size, 1 / size), np.full((size, size), 1 / size), np.full((size, num_symbols), 1 / num_symbols)
    )
    both = Model.several([plain, doubtful])
    found = counter_of_several(work, size, num_symbols)(both)
    for number, one in enumerate((plain, doubtful)):
        own = counts_of(one, work)
        np.testing.assert_allclose(found.transitions[number], own.transitions, rtol=1e-11)
        assert found.logs[number] == pytest.approx(own.logs.sum(), rel=1e-12)
    forbidden = flat_sequences(np.array([*sequence, 1]), np.array([len(sequence) + 1]))
    with pytest.raises(InputError, match=r"^observations\[0\]: has probability zero under start"):
        counter_of_several(forbidden, size, num_symbols)(both)


def test_where_a_model_ends_does_not_depend_on_the_others_nor_on_threads():
    rng = np.random.default_rng(3)
    work = flat_sequences(rng.integers(0, 4, 20_000), np.array([12_000, 8_000]))
    begins = [one._replace(initial=one.initial[0]) for one in models(11, 2, 4)]
    one, three = (EMRunner(work, RULES, threads).side_by_side(begins, 5, 0.0) for threads in (1, 3))
    alone = EMRunner(work, RULES, 1).side_by_side(begins[9:10], 5, 0.0)[0]
    single = climb(EMRunner(work, RULES, 1), begins[9], 5, 0.0)
    for part, other in zip(one[9].model, alone.model, strict=True):
        np.testing.assert_array_equal(part, other)
    assert [end.log_likelihood for end in one] == [end.log_likelihood for end in three]
    assert one[9].log_likelihood == pytest.approx(single.log_likelihood, rel=1e-12)
    assert (alone.num_iterations, alone.converged) == (single.num_iterations, single.converged) == (5, False)


def test_fits_are_the_same_on_both_roads(monkeypatch):
    """Tied emissions and a start among the restarts; restarts that converge leave the others to go on."""
    casino = hs.load_process("dishonest-casino")
    seen = hs.ProcessDataset(casino, length=150)[0:6].observations.where(torch.rand(6, 150) > 0.1, hs.MISSING)
    options = {"num_restarts": 4, "max_iterations": 25, "tolerance": 1e-4}
    for more in ({"start": casino, "fixed": ["initial"]}, {"tied_emissions": [0, 0]}):
        beside = fit_baum_welch(seen, 2, 6, **options, **more)
        with monkeypatch.context() as patch:
            patch.setattr(em, "MOST_STATES", 0)
            alone = fit_baum_welch(seen, 2, 6, **options, **more)
        assert beside.log_likelihood == pytest.approx(alone.log_likelihood, rel=1e-11)
        assert (beside.num_iterations, beside.num_restarts) == (alone.num_iterations, alone.num_restarts)
        np.testing.assert_allclose(beside.hmm.emission, alone.hmm.emission, atol=1e-8)


def test_long_sequences_of_many_states_go_one_model_after_the_other():
    flat = as_sequences(torch.zeros(1, 5, dtype=torch.int64), 2)
    assert em.can_run_side_by_side(8, flat)
    assert not em.can_run_side_by_side(9, flat)
    assert not em.can_run_side_by_side(8, flat._replace(lengths=np.array([10**6])))
