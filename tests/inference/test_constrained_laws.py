"""Posteriors and evidence under constraints: sums over all paths, closed forms, and numerical integrals."""

import itertools
import math

import numpy as np
import pytest
import torch

import hmmscope as hs
from hmmscope.inference import evidence as module
from hmmscope.inference.constrained_laws import ConstrainedRows, symmetries
from hmmscope.inference.constraints import Constraints, RowConstraints
from hmmscope.inference.evidence import evidence
from hmmscope.inference.loop_inputs import flat_sequences

#: Two sequences of symbols 0 and 1; 2 is a missing one.
SEEN, LENGTHS = np.array([0, 0, 1, 0, 2, 1, 1, 1, 1, 0]), np.array([7, 3])
QUICK = {"num_restarts": 1, "max_iterations": 20}


def laws_of(constraints, size, symbols):
    return {part: ConstrainedRows(own) for part, own in constraints.parts(size, symbols).items()}


def dirichlet_mean(row):
    """Return the mean of the product of p^count under a uniform prior, for a row of counts."""
    gammas = math.lgamma(len(row)) - math.lgamma(sum(row) + len(row))
    return math.exp(gammas + sum(math.lgamma(n + 1) for n in row))


def by_paths(initial, transition, emission, size=2):
    """log P(SEEN): sum over paths of products of means, each a function of the counts of its part."""
    total = 0.0
    for path in itertools.product(range(size), repeat=len(SEEN)):
        first, moves, visits = np.zeros(size), np.zeros((size, size)), np.zeros((size, 3))
        np.add.at(first, [path[0], path[7]], 1)
        np.add.at(moves, ([*path[:6], *path[7:9]], [*path[1:7], *path[8:]]), 1)
        np.add.at(visits, (list(path), SEEN), 1)
        total += initial(first) * transition(moves) * emission(visits[:, :2])
    return math.log(total)


LEFT_RIGHT = (
    Constraints.left_to_right(2, emission=[["a", "b"], ["b", "a"]]),
    lambda n: float(n[1] == 0),
    lambda n: dirichlet_mean(n[0]) * (n[1, 0] == 0),
    lambda n: dirichlet_mean([n[0, 0] + n[1, 1], n[0, 1] + n[1, 0]]),
)
SYMMETRIC = (
    Constraints(initial=[0.5, 0.5], transition=[["stay", None], [None, "stay"]], emission=[["e", "f"], ["f", "e"]]),
    lambda n: 0.5 ** n.sum(),
    lambda n: dirichlet_mean([n[0, 0] + n[1, 1], n[0, 1] + n[1, 0]]),
    lambda n: dirichlet_mean([n[0, 0] + n[1, 1], n[0, 1] + n[1, 0]]),
)


@pytest.mark.parametrize(("case", "orders"), [(LEFT_RIGHT, 1), (SYMMETRIC, 2)])
def test_evidence_is_the_sum_over_paths(case, orders, monkeypatch):
    constraints, *means = case
    if orders == 2:  # equal rows as one block: the second entries are tied as well
        constraints = Constraints(**vars(constraints) | {"transition": [["stay", "go"], ["go", "stay"]]})
    exact, work = by_paths(*means), flat_sequences(SEEN, LENGTHS)
    fit = hs.fit(
        hs.SequenceData([[0, 0, 1, 0], [1, 1, 0]], symbols=2), 2, options=hs.FitOptions(constraints=constraints)
    )
    laws = laws_of(constraints, 2, 2)
    assert (symmetries(laws, 2) is None) == (orders == 2)
    monkeypatch.setattr(module, "LEAST", 0)
    found = np.array([evidence(work, fit.hmm, 1, seed, laws=laws).log for seed in range(4)])
    ratios = np.exp(found - exact)
    assert abs(ratios.mean() - 1) < 4 * ratios.std(ddof=1) / 4**0.5 + 1e-3
    assert ratios.std() < 0.5


def test_one_state_with_tied_and_fixed_symbols_has_a_closed_form():
    law = laws_of(Constraints(emission=[["a", "a", 0.25, None]]), 1, 4)["emission"]
    counts = np.array([[3.0, 1.0, 2.0, 5.0]])
    grid = (np.arange(100_000) + 0.5) / 100_000
    likely = (0.75 * grid / 2) ** 4 * 0.25**2 * (0.75 * (1 - grid)) ** 5
    assert law.log_marginal(counts) == pytest.approx(math.log(likely.mean()), abs=1e-8)


def test_number_of_states_under_a_function_of_constraints():
    hmm = hs.HMM([1, 0], [[0.9, 0.1], [0, 1]], [[0.9, 0.1], [0.1, 0.9]])
    x = hmm.sample(20, 20).observations.per_sequence()
    options = hs.FitOptions(constraints=hs.Constraints.left_to_right, choose="evidence", **QUICK)
    found = hs.fit(x, [1, 2], options=options)
    assert found.num_states == 2
    assert found.support.why == ""
    linked = hs.FitOptions(
        constraints=lambda size: hs.Constraints(transition=np.where(np.eye(size), "a", None)), **QUICK
    )
    assert hs.fit(x, [2, 3], options=linked).support.why.startswith("constraints tie entries of rows whose other")


def test_slices_of_linked_groups_have_the_mean_of_the_density():
    rule = RowConstraints.of("t", [["d", None, None], [None, "d", None], [None, "e", "d"]], (3, 3))
    law, random = ConstrainedRows(rule, 1.5), np.random.default_rng(0)
    counts = np.array([[4.0, 1, 0], [2, 6, 1], [0, 3, 2]])
    rows, found = rule.maximise(counts + 1), []
    for _ in range(500):
        rows = law.draw(counts[None], random, rows)[0]
        found.append(rows[[0, 0, 2], [0, 1, 1]])
    assert np.allclose(rows.sum(1), 1)
    assert rows[0, 0] == rows[1, 1] == rows[2, 2]
    # given d, rows are (1 - d) Dirichlet, so that d ~ Beta(0.5 + 12 + 1, sum over rows of (counts + 1) - 1 + 1)
    a, b = 0.5 + 12 + 1, sum(counts[i].sum() - counts[i, i] + 2 * 1.5 - 1 for i in range(3)) + 1
    expected = np.array([a, b * (1 + 1.5) / (1 + 3.0), b * (3 + 1.5) / (3 + 3.0)]) / (a + b)
    assert np.mean(found, 0) == pytest.approx(expected, abs=0.02)  # of 500 draws


def test_posterior_with_ties_fixed_parts_and_zeros_of_the_start():
    hmm = hs.HMM([0.5, 0.5], [[0.75, 0.25], [0.25, 0.75]], [[0.75, 0.25], [0.25, 0.75]])
    drawn = hmm.sample(50, 20)
    x = np.array(drawn.observations.per_sequence())
    ties = hs.Constraints(transition=[["stay", "go"], ["go", "stay"]], emission=[[0.75, 0.25], [None, None]])
    posterior = hs.fit(x, 2, options=hs.FitOptions(constraints=ties, **QUICK)).posterior(
        100, num_chains=1, warm_up=20, max_lengthening=1
    )
    transition, emission = posterior.arrays["transition"], posterior.arrays["emission"]
    assert torch.equal(transition[..., 0, 0], transition[..., 1, 1])
    assert (emission[..., 0, 0] == 0.75).all()
    assert abs(float(transition[..., 0, 0].mean()) - 0.75) < 0.1
    fixed = hs.fit(x, 2, options=hs.FitOptions(start=hmm, fixed="emission", **QUICK)).posterior(
        10, num_chains=1, warm_up=5, max_lengthening=1
    )
    assert torch.equal(fixed.arrays["emission"][0, 3], hmm.emission)
    tied = hs.fit(x, 2, options=hs.FitOptions(tied_emissions=[0, 0], **QUICK)).posterior(
        10, num_chains=1, warm_up=5, max_lengthening=1
    )
    assert torch.equal(tied.arrays["emission"][..., 0, :], tied.arrays["emission"][..., 1, :])
    start = hs.HMM([1, 0], [[0.5, 0.5], [0, 1]], [[0.5, 0.5], [0.25, 0.75]])
    zeros = hs.fit(x, 2, options=hs.FitOptions(start=start, **QUICK)).posterior(
        10, num_chains=1, warm_up=5, max_lengthening=1
    )
    assert not zeros.arrays["transition"][..., 1, 0].any()
    numbers = x + np.random.default_rng(0).normal(0, 0.1, (20, 50))
    options = hs.FitOptions(constraints=hs.Constraints(transition=ties.transition), **QUICK)
    found = hs.fit(numbers[..., None], 2, emission="gaussian", options=options)
    drawn = found.posterior(20, num_chains=1, warm_up=5, max_lengthening=1).arrays["transition"]
    assert torch.equal(drawn[..., 0, 0], drawn[..., 1, 1])


def test_symmetries_are_the_orders_that_keep_masks_values_and_ties():
    laws = laws_of(Constraints(transition=[[None, "a", "a"], ["b", None, None], ["b", None, None]]), 3, None)
    assert symmetries(laws, 3).tolist() == [[0, 1, 2], [0, 2, 1]]
    ring = Constraints(transition=np.roll(np.eye(4, dtype=bool), 1, axis=1) | np.eye(4, dtype=bool))
    assert len(symmetries(laws_of(ring, 4, None), 4)) == 4
    assert symmetries(laws_of(Constraints(transition=~np.eye(9, dtype=bool)), 9, None), 9).tolist() == [[*range(9)]]
    assert symmetries({}, 3) is None
