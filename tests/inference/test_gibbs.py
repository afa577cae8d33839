"""Gibbs sampling: paths have their exact law, ranks are uniform, a wrong sampler is found, one state has a closed form."""

import itertools

import numpy as np
import pytest
import torch

import hmmscope as hs
from calibration import FAMILIES, SHAPES, of_numbers, of_symbols, p_uniform, ranks_of
from hmmscope.errors import InputError
from hmmscope.inference.chains import effective_sizes, equal_tails, matching, r_hat, relabelled
from hmmscope.inference.gibbs import Chains, DirichletPrior
from hmmscope.kernels.state_draws import draw_paths
from inference_cases import planted

#: A sound sampler is called wrong so rarely: each of the quantities of a test gets its share.
LEVEL = 0.01
WRONG = DirichletPrior(initial=2.5, transition=2.2, emission=1.8)  # every count of the prior is one too many


def sound(p_values):
    return bool((p_values > LEVEL / len(p_values)).all())


@pytest.mark.parametrize("scale", [1.0, 1e-120])
def test_paths_have_their_exact_law(scale):
    """Every path of four steps by enumeration; likelihoods that are small go through logarithms."""
    rng = np.random.default_rng(0)
    initial, step = rng.dirichlet(np.ones(2)), rng.dirichlet(np.ones(2), 2)
    table, seen = rng.dirichlet(np.ones(3), 2).T.copy() * scale, np.array([0, 2, 1, 1])
    paths = list(itertools.product(range(2), repeat=4))
    law = []
    for path in paths:
        steps = [initial[path[0]], *(step[i, j] for i, j in itertools.pairwise(path))]
        law.append(np.prod(steps) * np.prod([table[v, s] / scale for v, s in zip(seen, path, strict=True)]))
    drawn = np.zeros(16)
    beliefs, states, first, moves = np.empty((4, 2)), np.empty(4, np.int64), np.empty(2), np.empty((2, 2))
    random = np.random.default_rng(1)
    for _ in range(4000):
        log = draw_paths(
            initial, step, table, seen, np.array([0]), np.array([4]), random, beliefs, states, first, moves
        )
        drawn[paths.index(tuple(states))] += 1
    assert log == pytest.approx(np.log(sum(law)) + 4 * np.log(scale), rel=1e-12)
    assert first.sum() == 1
    assert moves.sum() == 3
    expected = 4000 * np.array(law) / sum(law)
    square = ((drawn - expected) ** 2 / expected).sum()
    assert float(torch.special.gammaincc(torch.tensor(7.5), torch.tensor(square / 2))) > 0.001


@pytest.mark.long
def test_ranks_are_uniform_and_a_wrong_prior_is_found():
    assert sound(p_uniform(ranks_of(of_symbols(), 100), 31))
    assert not sound(p_uniform(ranks_of(of_symbols(assumed=WRONG), 100), 31))


@pytest.mark.slow
@pytest.mark.parametrize("shape", [shape for _, shape in SHAPES])
def test_ranks_of_symbols_are_uniform(shape):
    assert sound(p_uniform(ranks_of(of_symbols(num_draws=63, **shape), 2000), 63, bins=16))


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_ranks_of_numbers_are_uniform(family):
    assert sound(p_uniform(ranks_of(of_numbers(family), 400), 31))


@pytest.mark.slow
def test_a_wrong_chain_of_numbers_is_found():
    assert not sound(p_uniform(ranks_of(of_numbers("diag", wrong=True), 400), 31))


@pytest.mark.long
def test_one_state_has_the_law_in_closed_form():
    """Symbols: Dirichlet(1 + counts). Numbers: the mean is Student's around its centre."""
    flat = np.random.default_rng(0).integers(0, 3, 200)
    fit = hs.fit([flat.tolist()], 1, symbols=3)
    found = fit.posterior(1000, num_chains=2, warm_up=0)
    counts = np.bincount(flat) + 1.0
    drawn = found.arrays["emission"].flatten(0, 1)[:, 0]
    mean, total = counts / counts.sum(), counts.sum()
    error = np.sqrt(mean * (1 - mean) / (total + 1))
    assert np.abs((drawn.mean(0).numpy() - mean) / error).max() < 4 / np.sqrt(2000)
    assert drawn.std(0).numpy() == pytest.approx(error, rel=0.06)
    numbers = np.random.default_rng(1).normal(2.0, 3.0, 150)
    drawn = hs.fit(numbers, 1).posterior(1000, num_chains=2, warm_up=0).arrays["means"].flatten()
    assert float(drawn.mean()) == pytest.approx(numbers.mean(), abs=0.03)
    assert float(drawn.std()) == pytest.approx(numbers.std() / np.sqrt(150), rel=0.06)


def test_labels_are_matched_and_chains_do_not_depend_on_threads():
    flat, _ = planted(3, 6, count=4, length=150, seed=3)
    fit = hs.fit(flat.reshape(4, 150).tolist(), 3, symbols=6, options=hs.FitOptions(num_restarts=3))
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        two = fit.posterior(60, num_chains=3, warm_up=60)
    finally:
        torch.set_num_threads(1)
    one = fit.posterior(60, num_chains=3, warm_up=60)
    torch.set_num_threads(before)
    assert all(torch.equal(one.arrays[name], two.arrays[name]) for name in one.arrays)
    assert bool((one.arrays["emission"].mean((0, 1)) - fit.hmm.emission).abs().max() < 0.05)
    rows = one.table()
    assert len(rows) == 3 + 9 + 18
    assert all(row["low"] <= row["mean"] <= row["high"] for row in rows)
    assert sum(row["low"] <= row["fitted"] <= row["high"] for row in rows) >= 28
    assert one.lines()[0].startswith("posterior of 3 chains of 60 draws: largest R-hat 1.")
    assert len(one.models(5)) == 5


def test_matching_undoes_any_exchange():
    rng = np.random.default_rng(0)
    order = rng.permutation(4)
    agreement = np.full((2, 3, 4, 4), 1.0)
    agreement[..., order, np.arange(4)] = 50.0
    own = matching(agreement)
    assert (own == order).all()
    values = rng.normal(size=(2, 3, 4, 4))
    both = relabelled(values, own, 2)
    assert np.array_equal(both[1, 2], values[1, 2][np.ix_(order, order)])
    assert np.array_equal(relabelled(values, own, 1)[0, 1], values[0, 1][order])


def test_r_hat_and_effective_sizes():
    """Independent draws, and those of an autoregression, whose worth is known; chains that differ in place or in width."""
    rng = np.random.default_rng(0)
    draws = np.zeros((4, 2000, 3))
    noise = rng.normal(size=draws.shape)
    rates = np.array([0.0, 0.5, 0.9])
    for t in range(1, 2000):
        draws[:, t] = rates * draws[:, t - 1] + noise[:, t]
    bulk, tail = effective_sizes(draws)
    assert bulk == pytest.approx(8000 * (1 - rates) / (1 + rates), rel=0.15)
    assert (tail > bulk * 0.6).all()
    assert (r_hat(draws[..., :2]) < 1.01).all()
    moved, widened = draws[..., :1].copy(), draws[..., :1].copy()
    moved[0] += 1.0
    widened[0] *= 3.0
    assert r_hat(moved)[0] > 1.05
    assert r_hat(widened)[0] > 1.05
    assert np.isnan(r_hat(np.ones((2, 8, 1)))[0])


def test_ends_of_intervals_are_wider_where_draws_are_worth_few():
    """Of 79 independent draws the second from either end; of draws that are worth 19, of which no end has 2.5 %, all."""
    draws = np.random.default_rng(0).permutation(79 * 3).astype(float).reshape(3, 79).T[None]
    ordered = np.sort(draws[0], 0)
    low, high = equal_tails(draws, np.array([79.0, np.nan, 19.0]))
    assert low == pytest.approx([ordered[1, 0], ordered[1, 1], ordered[0, 2]])
    assert high == pytest.approx([ordered[77, 0], ordered[77, 1], ordered[78, 2]])
    many = np.random.default_rng(1).random((1, 59, 2000))  # each interval holds its share of the law on average
    assert np.diff(equal_tails(many, np.full(2000, 59.0)), axis=0).mean() == pytest.approx(0.95, abs=0.003)


def test_bad_requests_are_refused():
    flat, _ = planted(2, 3, count=4, length=30)
    data = flat.reshape(4, 30).tolist()
    fit = hs.fit(data, 2, options=hs.FitOptions(num_restarts=1, max_iterations=5))
    with pytest.raises(InputError, match=r"^num_draws: must be at least 4, got 2"):
        fit.posterior(2)
    with pytest.raises(InputError, match=r"^transition: must be in \[0.01, 1000\], got 0.0"):
        fit.posterior(transition=0.0)
    with pytest.raises(InputError, match=r"prior_strength"):
        fit.posterior(prior_strength=2.0)
    with pytest.raises(InputError, match=r"^posterior: supports neither sequence_weights"):
        hs.fit(
            data, 2, options=hs.FitOptions(sequence_weights=np.ones(4), num_restarts=1, max_iterations=5)
        ).posterior()
    with pytest.raises(
        InputError, match=r"^posterior: GaussianMixtureHMM has no conjugate prior; GaussianHMM, Multichannel"
    ):
        hs.fit(
            np.random.default_rng(0).normal(size=40),
            1,
            emission="gaussian-mixture",
            options=hs.FitOptions(num_restarts=1),
        ).posterior()
    assert Chains().num_chains == 4
