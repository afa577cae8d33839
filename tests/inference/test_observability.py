"""The observability coefficient: closed forms, reference values, bounds from both sides, and what must not change it."""

import itertools
import math
import sys

import numpy as np
import pytest
import torch

import hmmscope as hs
from comparing import close
from hmmscope.errors import InputError, ResourceError
from hmmscope.inference.linear_programs import certificate
from hmmscope.inference.memory import all_sequences
from hmmscope.inference.observability import coefficient, numerical_rank, observability, pair_bound, step_emission
from strategies import as_labelled, dense, rows

#: A matrix of four decimals is rounded to 2^-32, which moves gamma by about its size.
QUANTISED = 5e-9


def emitting(emission, transition=None):
    size = len(emission)
    return hs.HMM(
        np.full(size, 1 / size), np.full((size, size), 1 / size) if transition is None else transition, emission
    )


REFERENCE = [
    ([[0.9, 0.1], [0.1, 0.9]], 0.8),
    (0.6 * np.eye(4) + 0.1, 0.6),
    ([[0.7, 0.2, 0.1], [0.1, 0.8, 0.1], [0.2, 0.3, 0.5]], 0.4),
    ([[0.6, 0.2, 0.1, 0.1], [0.1, 0.6, 0.2, 0.1], [0.1, 0.1, 0.2, 0.6]], 0.5),
    ([[0.8, 0.1, 0.1], [0.2, 0.2, 0.6], [0.5, 0.15, 0.35]], 0.0),
    ([[0.5, 0.5], [0.3, 0.7], [0.1, 0.9]], 0.0),
]


@pytest.mark.parametrize("emission, gamma", REFERENCE)
def test_reference_values(emission, gamma):
    for method in ("auto", "enumeration", "certificate"):
        found = hs.observability(emitting(emission), method=method)
        assert found.lower - QUANTISED <= gamma <= found.upper + QUANTISED
        assert found.upper - found.lower < QUANTISED
    assert hs.observability(emitting(emission)).exact


def test_reference_values_of_several_steps():
    """HMM B, to the ten digits printed (the matrices are rounded to 2^-32)."""
    transition = [[0.1, 0.8, 0.1], [0.1, 0.1, 0.8], [0.8, 0.1, 0.1]]
    hmm = emitting([[0.9, 0.1], [0.5, 0.5], [0.1, 0.9]], transition)
    for steps, printed in ((1, 0), (2, 0.3192523364), (3, 0.4728031646), (4, 0.4749769738)):
        found = hs.observability(hmm, steps)
        assert found.upper == pytest.approx(printed, abs=1e-9)
        assert found.exact
        assert found.steps == steps


@pytest.mark.parametrize("noise", [0.0, 0.25, 0.5, 0.875])
@pytest.mark.parametrize("size", [2, 4, 8])
def test_symmetric_channels(size, noise):
    """(1 - e) I + e / p has gamma 1 - e."""
    found = hs.observability(emitting((1 - noise) * np.eye(size) + noise / size))
    assert found.upper == pytest.approx(1 - noise, rel=1e-12)
    assert found.method == "inverse"


def random_emissions(seed, count=14):
    rng = np.random.default_rng(seed)
    for _ in range(count):
        num_states = int(rng.integers(2, 5))
        yield rng, rows(rng, num_states, int(rng.integers(num_states, 7)), 0.2)


def test_three_roads_agree():
    """Sandwich, square closed form = sign enumeration, certificate below (and, up to 4 states, always equal)."""
    for _, emission in random_emissions(0):
        exact = coefficient(torch.from_numpy(emission), method="enumeration")
        auto = coefficient(torch.from_numpy(emission))
        bounds = coefficient(torch.from_numpy(emission), method="bounds")
        certified = coefficient(torch.from_numpy(emission), method="certificate")
        assert auto.upper == pytest.approx(exact.upper, abs=1e-9)
        assert bounds.lower <= exact.upper + 1e-12
        assert exact.upper <= bounds.upper + 1e-12
        assert certified.lower <= exact.upper + 1e-9
        assert exact.upper <= certified.upper + 1e-9
        assert certified.lower == pytest.approx(exact.upper, abs=1e-7)


def test_the_certificate_need_not_be_tight():
    """8 states, 12 symbols: 1.6 % below the exact value, so its equality on small matrices is no theorem."""
    rng = np.random.default_rng(0)
    for states, symbols, count in ((4, 6, 12), (6, 8, 12), (8, 12, 2)):
        for _ in range(count):
            emission = rng.dirichlet(np.ones(symbols), states)
    exact = coefficient(torch.from_numpy(emission), method="enumeration")
    certified = coefficient(torch.from_numpy(emission), method="certificate")
    assert certified.lower < 0.99 * exact.upper
    assert certified.lower > 0.98 * exact.upper
    auto = coefficient(torch.from_numpy(emission))
    assert (auto.method, auto.upper) == ("enumeration", exact.upper)


def test_there_is_no_certificate_where_states_cannot_be_told_apart():
    assert certificate(np.array([[0.5, 0.5], [0.5, 0.5]])) == 0.0
    assert certificate(np.array([[0.75, 0.25], [0.25, 0.75]])) == pytest.approx(0.5)


def test_the_witness_attains_the_upper_bound():
    for _, emission in random_emissions(1):
        for method in ("auto", "bounds", "certificate"):
            found = coefficient(torch.from_numpy(emission), method=method)
            v = found.witness.numpy()
            assert abs(v.sum()) < 1e-12
            assert np.abs(v).sum() == pytest.approx(1, rel=1e-12)
            assert np.abs(v @ emission).sum() == pytest.approx(found.upper, rel=1e-9, abs=1e-12)


def test_no_direction_is_contracted_more():
    for rng, emission in random_emissions(2):
        found = coefficient(torch.from_numpy(emission))
        v = rng.normal(size=(4000, len(emission)))
        v -= v.mean(1, keepdims=True)
        ratios = np.abs(v @ emission).sum(1) / np.abs(v).sum(1)
        assert ratios.min() >= found.lower - 1e-9


def test_noise_after_emission_never_helps():
    """gamma(E Q) <= gamma(E) for stochastic Q; order of states and symbols does not matter (M1, M2)."""
    for rng, emission in random_emissions(3):
        gamma = coefficient(torch.from_numpy(emission)).upper
        noise = rows(rng, emission.shape[1], 5)
        assert coefficient(torch.from_numpy(emission @ noise)).lower <= gamma + 1e-9
        mixed = emission[rng.permutation(len(emission))][:, rng.permutation(emission.shape[1])]
        assert coefficient(torch.from_numpy(mixed)).upper == pytest.approx(gamma, abs=1e-9)
        wider = np.column_stack([emission, np.zeros(len(emission))])  # M6
        assert coefficient(torch.from_numpy(wider)).upper == pytest.approx(gamma, abs=1e-9)
        split = np.column_stack([emission, emission[:, 0] / 2])  # a symbol in two: nothing learnt
        split[:, 0] /= 2
        assert coefficient(torch.from_numpy(split)).upper == pytest.approx(gamma, abs=1e-9)


def test_more_steps_never_hurt():
    rng = np.random.default_rng(4)
    for _ in range(6):
        hmm = hs.HMM(*dense(rng, 3, 2))
        gammas = [hs.observability(hmm, steps).upper for steps in (1, 2, 3, 4)]
        assert gammas[0] == 0
        assert all(later >= earlier - 1e-9 for earlier, later in itertools.pairwise(gammas))


def test_clones_cannot_be_told_apart():
    """M3."""
    rng = np.random.default_rng(5)
    emission = rows(rng, 3, 6)
    assert coefficient(torch.from_numpy(emission[[0, 1, 2, 0]])).upper < 1e-12


def test_step_emission_is_the_law_of_words():
    rng = np.random.default_rng(6)
    matrices = dense(rng, 3, 2)
    hmm = hs.HMM(*matrices)
    words = step_emission(hmm, 4)
    close(words.sum(1), torch.ones(3, dtype=torch.float64))
    likelihood = hs.filter_beliefs(hmm, all_sequences(2, 4)).log_likelihood.exp()
    close(hmm.initial @ words, likelihood)
    # Marginalisation: summing over the last symbol leaves the law of one step less.
    close(words.view(3, 8, 2).sum(2), step_emission(hmm, 3))
    labelled = step_emission(hs.LabelledHMM(*as_labelled(matrices)), 4)
    close(labelled[0], likelihood)


def test_future_law_is_that_of_the_words_that_follow():
    """By enumeration: P(history and word) / P(history), of both forms, with a restart and with padding."""
    rng = np.random.default_rng(8)
    matrices = dense(rng, 3, 2)
    history = torch.tensor([[0, 1, 1], [1, 0, 0]])
    words = all_sequences(2, 2)
    for process in (hs.HMM(*matrices), hs.LabelledHMM(*as_labelled(matrices))):
        law = hs.future_distribution(process, history, 2)
        for t in range(3):
            for b in range(2):
                begun = history[b, : t + 1].expand(len(words), -1)
                joint = hs.filter_beliefs(process, torch.cat([begun, words], 1)).log_likelihood.exp()
                close(law[b, t], joint / hs.filter_beliefs(process, begun[:1]).log_likelihood.exp())
        close(hs.future_distribution(process, history, 1), hs.filter_beliefs(process, history).next_observation)
        close(
            hs.future_distribution(process, history, 2, reset_mask=[True, False, True])[:, 2],
            hs.future_distribution(process, history[:, 2:], 2)[:, 0],
        )
        close(hs.future_distribution(process, history, 2, lengths=[3, 2])[1, 2], torch.zeros(4, dtype=torch.float64))
    with pytest.raises(InputError, match=r"^num_futures: must be at least 1"):
        hs.future_distribution(process, history, 0)


def test_one_state_is_always_known():
    found = hs.observability(hs.HMM([1.0], [[1.0]], [[0.5, 0.5]]))
    assert (found.lower, found.upper, found.exact) == (1.0, 1.0, True)


def test_rank():
    rng = np.random.default_rng(7)
    assert numerical_rank(torch.eye(3, dtype=torch.float64)) == 3
    low = hs.make_process("low-rank-hmm")
    assert numerical_rank(low.transition) == 2  # quantised, so of full rank in the strict sense
    assert numerical_rank(torch.from_numpy(rows(rng, 5, 7))) == 5
    assert numerical_rank(torch.ones(3, 4, dtype=torch.float64)) == 1
    assert numerical_rank(torch.diag(torch.tensor([1.0, 1e-3], dtype=torch.float64)), 0.01) == 1


def test_without_scipy(monkeypatch):
    """Closed forms and bounds remain; else one line says what is missing."""
    monkeypatch.setitem(sys.modules, "scipy.optimize", None)
    wide = emitting([[0.6, 0.2, 0.1, 0.1], [0.1, 0.6, 0.2, 0.1], [0.1, 0.1, 0.2, 0.6]])
    with pytest.raises(ResourceError, match=r"^observability: needs SciPy; run pip install 'hmmscope\[hmm\]'$"):
        hs.observability(wide)
    found = hs.observability(wide, method="bounds")
    assert found.lower < 0.5 <= found.upper + QUANTISED
    assert not found.exact
    assert hs.observability(emitting(np.eye(3))).exact


@pytest.mark.usefixtures("unchecked")
def test_bad_requests_are_refused():
    hmm = emitting(np.eye(2))
    with pytest.raises(
        InputError, match=r"^method: unknown 'exact' \(known: auto, bounds, certificate, enumeration\)$"
    ):
        hs.observability(hmm, method="exact")
    with pytest.raises(InputError, match=r"^steps: must be at least 1, got 0$"):
        hs.observability(hmm, 0)
    with pytest.raises(InputError, match=r"^steps: 2\^21 words exceed the limit of"):
        hs.observability(hmm, 21)
    rng = np.random.default_rng(8)
    with pytest.raises(InputError, match=r"^method: enumeration supports at most 14 states, got 15$"):
        coefficient(torch.from_numpy(rows(rng, 15, 16)), method="enumeration")


def test_large_matrices_have_bounds():
    rng = np.random.default_rng(9)
    found = coefficient(torch.from_numpy(rng.dirichlet(np.ones(60), 20)))
    assert 0 < found.lower < found.upper < 1
    assert not found.exact
    assert math.isfinite(found.lower)


def test_the_least_distance_of_two_states_bounds_from_above():
    for number, (_, emission) in enumerate(random_emissions(5, 6)):
        process, steps = emitting(emission), 1 + number % 2
        found, bound = observability(process, steps), pair_bound(process, steps)
        words = step_emission(process, steps)
        half = min(float((a - b).abs().sum()) / 2 for a, b in itertools.combinations(words, 2))
        assert (bound.lower, bound.exact, bound.steps) == (0.0, False, steps)
        assert bound.upper == pytest.approx(half)
        assert bound.upper >= found.lower - 1e-12
        assert float((bound.witness @ words).abs().sum()) == pytest.approx(bound.upper)
        assert float(bound.witness.abs().sum()) == 1


def test_a_mixture_is_refused():
    """Its components have laws of their own."""
    h = hs.HMM([0.5, 0.5], [[0.9, 0.1], [0.2, 0.8]], [[0.9, 0.1], [0.3, 0.7]])
    with pytest.raises(InputError, match="Mixture has no probabilities of words"):
        hs.observability(hs.Mixture([0.5, 0.5], [h, h]))
