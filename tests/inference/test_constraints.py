"""Constraints of fits: forbidden, fixed and tied entries."""

import numpy as np
import pytest
import torch

import hmmscope
from hmmscope.errors import InputError
from hmmscope.inference.baum_welch import as_sequences, fit_baum_welch
from hmmscope.inference.constraints import Constraints
from hmmscope.inference.em import EMRunner, Model, MStepSettings, expect
from hmmscope.inference.restarts import climb
from hmmscope.seeds import numpy_generator

#: Ties across rows, a fixed entry, and tied states.
MIXED = Constraints(
    initial=[True, False, None],
    transition=[["a", "b", None], ["b", "a", "c"], [0.1, None, "c"]],
    emission=[[0.5, None, None], ["x", "y", "z"], ["x", "y", "z"]],
)


def _symbols(num_sequences=12, time=20):
    symbols = numpy_generator(0, "constraints").integers(0, 3, (num_sequences, time))
    symbols[0, 3] = hmmscope.MISSING
    return torch.from_numpy(symbols)


def _random_model(rng):
    return Model(*(rng.dirichlet(np.ones(3), size) for size in (None, 3, 3)))


def test_fit_keeps_every_kind_of_constraint():
    found = fit_baum_welch(_symbols(), 3, 3, constraints=MIXED, num_restarts=2, max_iterations=30)
    hmm, near = found.hmm, {"abs": 2.0**-30}  # HMM rounds to multiples of 2^-32
    assert hmm.initial[1] == 0
    moves = hmm.transition
    assert float(moves[0, 0]) == pytest.approx(float(moves[1, 1]), **near)
    assert float(moves[0, 1]) == pytest.approx(float(moves[1, 0]), **near)
    assert float(moves[1, 2]) == pytest.approx(float(moves[2, 2]), **near)
    assert float(moves[2, 0]) == pytest.approx(0.1, **near)
    assert float(hmm.emission[0, 0]) == pytest.approx(0.5, **near)
    assert torch.equal(hmm.emission[1], hmm.emission[2])
    # transitions: 5 groups less 3 sums; emissions: 2 + 3 groups less 2 sums
    assert found.num_free == {"initial": 1, "transition": 2, "emission": 3}
    assert found.remarks == ["free parameters: 1 initial, 2 transition, 3 emission"]


@pytest.mark.parametrize("pseudo_count", [0, 0.1])
def test_em_never_decreases(pseudo_count):
    rules = MStepSettings(float(pseudo_count), frozenset(), None, constraints=MIXED.parts(3, 3))
    work, rng = as_sequences(_symbols(), 3), numpy_generator(1, "constraints")
    for _ in range(3):
        model, before = rules.constrained(_random_model(rng)), -np.inf
        for _ in range(25):
            counts = expect(model, work, 1)
            reached = float(counts.logs.sum() + rules.log_prior(model))
            assert reached >= before - 1e-9
            model, before = rules.maximise(model, counts), reached


def test_m_step_is_the_maximum():
    rng, part = numpy_generator(2, "constraints"), MIXED.parts(3, 3)["transition"]
    counts = rng.random((3, 3)) * 10
    best = part.maximise(counts)
    for _ in range(50):
        other = part.maximise(rng.random((3, 3)))
        assert (counts * np.log(other)).sum() <= (counts * np.log(best)).sum() + 1e-12


def test_ties_of_whole_rows_equal_tied_emissions():
    rng = numpy_generator(3, "constraints")
    tied = Constraints(emission=[["a", "b", "c"], ["a", "b", "c"], [None] * 3]).parts(3, 3)
    work, start = as_sequences(_symbols(), 3), _random_model(rng)
    by_name = MStepSettings(0.1, frozenset(), None, constraints=tied)
    by_class = MStepSettings(0.1, frozenset(), np.array([0, 0, 1]))
    start = by_class.tied(start)
    ends = [climb(EMRunner(work, rules, 1), start, 10, 0.0) for rules in (by_name, by_class)]
    assert ends[0].log_likelihood == pytest.approx(ends[1].log_likelihood, abs=1e-9)
    assert by_name.num_free(start) == by_class.num_free(start)
    assert float(by_name.log_prior(start)) == pytest.approx(float(by_class.log_prior(start)))


def test_patterns():
    ahead = Constraints.left_to_right(4, 2)
    assert ahead.initial.tolist() == [True, False, False, False]
    assert ahead.transition[0].tolist() == [True, True, True, False]
    assert ahead.transition[3].tolist() == [False, False, False, True]
    assert Constraints.banded(4).transition[2].tolist() == [False, True, True, True]
    options = hmmscope.FitOptions(constraints=ahead, num_restarts=1, max_iterations=5)
    found = hmmscope.fit(_symbols(), 4, options=options)
    assert not found.hmm.transition[~torch.from_numpy(ahead.transition)].any()
    drawn = found.posterior(4, num_chains=1, warm_up=2)
    assert not drawn.arrays["transition"][..., ~torch.from_numpy(ahead.transition)].any()
    assert bool((drawn.arrays["initial"][..., 0] == 1).all())


def test_vectors():
    values = torch.from_numpy(numpy_generator(4, "constraints").normal(0, 1, (3, 20, 1)).cumsum(1))
    options = hmmscope.FitOptions(constraints=Constraints.left_to_right(3), num_restarts=1, max_iterations=10)
    found = hmmscope.fit(values, 3, emission="gaussian", options=options)
    assert found.hmm.transition[0, 2] == found.hmm.transition[1, 0] == found.hmm.initial[1] == 0
    assert found.final.num_free["transition"] == 2
    drawn = found.posterior(4, num_chains=1, warm_up=2).arrays["transition"]
    assert not drawn[..., 0, 2].any()
    assert drawn[..., 0, 1].std() > 0


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"transition": [[1, 0], [0, 1]]}, r"transition: must have the shape \(3, 3\), got \(2, 2\)"),
        ({"initial": [0.6, 0.6, None]}, "initial: row 0: the fixed entries sum to 1 or more, which leaves no "),
        ({"initial": [0.5, 0.2, 0.1]}, "initial: row 0: all entries are fixed, but do not sum to 1"),
        ({"initial": [False, False, False]}, "initial: row 0: all entries are fixed, but do not sum to 1"),
        ({"initial": [2, None, None]}, r"initial\[0\]: must be a probability, .* got 2"),
        (
            {"transition": [["a", "a", 0], ["a", None, 0.9], [None] * 3]},
            "transition: the rows cannot sum to 1 with positive tied entries; tie fewer entries",
        ),
    ],
)
def test_invalid_constraints(given, message):
    with pytest.raises(InputError, match=f"constraints.{message}"):
        fit_baum_welch(_symbols(), 3, 3, constraints=Constraints(**given))


def test_constraints_exclude_other_spellings():
    with pytest.raises(InputError, match=r"constraints: must be hmmscope\.Constraints, got 'left'"):
        hmmscope.FitOptions(constraints="left")
    with pytest.raises(InputError, match=r"constraints\.emission: cannot be used with tied_emissions"):
        fit_baum_welch(_symbols(), 3, 3, constraints=MIXED, tied_emissions=[0, 0, 1])
    with pytest.raises(InputError, match=r"constraints\.emission: must be omitted for vector emissions"):
        hmmscope.fit([0.1, 0.5, 0.3, 1.5], 3, emission="gaussian", options=hmmscope.FitOptions(constraints=MIXED))
