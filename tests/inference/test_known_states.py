"""Known states against enumeration of all paths."""

import itertools
import math

import numpy as np
import pytest
import torch

import hmmscope
from hmmscope.errors import InputError
from hmmscope.inference.baum_welch import fit_baum_welch
from hmmscope.seeds import numpy_generator

MISSING = hmmscope.MISSING


def _random(rng, num_states, num_symbols):
    rows = (
        rng.dirichlet(np.ones(size), count) for size, count in ((num_states, num_states), (num_symbols, num_states))
    )
    return hmmscope.HMM(rng.dirichlet(np.ones(num_states)), *rows)


def _labelled(rng, num_states, num_symbols):
    rows = rng.dirichlet(np.ones(num_states * num_symbols), num_states).reshape(num_states, num_symbols, num_states)
    return hmmscope.LabelledHMM(rng.dirichlet(np.ones(num_states)), rows.swapaxes(0, 1))


def _paths(hmm, symbols, allowed):
    """P(path, observations) of each allowed path."""
    for path in itertools.product(range(hmm.num_states), repeat=len(symbols)):
        if all(allowed[t, state] for t, state in enumerate(path)):
            yield path, math.prod(_factor(hmm, symbols[t], path[:t], state) for t, state in enumerate(path))


def _factor(hmm, symbol, past, state):
    if hmm.params.states_emit:
        arrive = hmm.initial[state] if not past else hmm.transition[past[-1], state]
        return float(arrive) * (1.0 if symbol == MISSING else float(hmm.emission[state, symbol]))
    step = hmm.labelled.sum(0) if symbol == MISSING else hmm.labelled[symbol]
    return float(step[past[-1], state] if past else hmm.initial @ step[:, state])


@pytest.mark.parametrize("make", [_random, _labelled])
def test_answers_equal_those_by_enumeration(make):
    rng = numpy_generator(0, "known-states")
    for _ in range(8):
        num_states, num_symbols, time = (int(rng.integers(2, most)) for most in (4, 4, 6))
        hmm = make(rng, num_states, num_symbols)
        observations = torch.from_numpy(rng.integers(0, num_symbols, (2, time)))
        observations[0, 0] = MISSING
        allowed = torch.from_numpy(rng.random((2, time, num_states)) < 0.6)
        allowed[~allowed.any(-1)] = True
        given = {"known_states": allowed, "lengths": [time, time - 1]}
        filtered = hmmscope.filter_beliefs(hmm, observations, **given)
        smoothed = hmmscope.smooth_beliefs(hmm, observations, **given)
        logs, best = (
            hmmscope.log_likelihood(hmm, observations, **given),
            hmmscope.most_likely_states(hmm, observations, **given),
        )
        after = hmm.params.predictive_in(0)
        for b, length in enumerate(given["lengths"]):
            paths = dict(_paths(hmm, observations[b, :length].tolist(), allowed[b]))
            total, posterior = sum(paths.values()), np.zeros((length, num_states))
            for path, probability in paths.items():
                posterior[range(length), path] += probability / total
            assert logs[b] == pytest.approx(math.log(total), abs=1e-12)
            assert filtered.log_likelihood[b] == pytest.approx(math.log(total), abs=1e-12)
            np.testing.assert_allclose(smoothed[b, :length], posterior, atol=1e-12)
            np.testing.assert_allclose(filtered.beliefs[b, length - 1], posterior[-1], atol=1e-12)
            np.testing.assert_allclose(
                filtered.next_observation[b, length - 1], posterior[-1] @ after.numpy(), atol=1e-12
            )
            assert best.log_probability[b] == pytest.approx(math.log(max(paths.values())), abs=1e-12)
            drawn = hmmscope.sample_state_paths(hmm, observations, num_paths=20, **given)[:, b, :length]
            assert {tuple(path) for path in drawn.tolist()} <= set(paths)


def test_complete_labels_give_the_counted_estimate():
    rng = numpy_generator(1, "known-states")
    sampled = _random(rng, 3, 4).sample_paths(np.arange(4), np.arange(25) == 0, 0)
    states, symbols = (torch.as_tensor(part) for part in (sampled.states, sampled.observations))
    found = fit_baum_welch(symbols, 3, 4, known_states=states, pseudo_count=0.5, num_restarts=1)
    moves, emitted = np.full((3, 3), 0.5), np.full((3, 4), 0.5)
    np.add.at(moves, (states[:, :-1].ravel().numpy(), states[:, 1:].ravel().numpy()), 1)
    np.add.at(emitted, (states.ravel().numpy(), symbols.ravel().numpy()), 1)
    # HMM rounds probabilities to multiples of 2^-32
    np.testing.assert_allclose(found.hmm.transition, moves / moves.sum(1, keepdims=True), atol=2.0**-31)
    np.testing.assert_allclose(found.hmm.emission, emitted / emitted.sum(1, keepdims=True), atol=2.0**-31)
    counts = hmmscope.expected_counts(found.hmm, symbols, known_states=states)
    np.testing.assert_allclose(counts.transitions, moves - 0.5, atol=1e-10)
    np.testing.assert_allclose(counts.emissions, emitted - 0.5, atol=1e-10)


def test_vectors():
    hmm = hmmscope.GaussianHMM([0.5, 0.5], [[0.9, 0.1], [0.2, 0.8]], [[0.0], [3.0]], [[1.0], [1.0]], "diag")
    sampled = hmm.sample_paths(np.arange(3), np.arange(30) == 0, 0)
    states = torch.as_tensor(sampled.states)
    found = hmmscope.fit(
        sampled.observations, 2, emission="gaussian", options=hmmscope.FitOptions(known_states=states, num_restarts=1)
    )
    values = torch.as_tensor(sampled.observations)
    means = [float(values[states == state].mean()) for state in (0, 1)]
    assert found.hmm.means[:, 0].tolist() == pytest.approx(means, abs=1e-10)
    smoothed = hmmscope.smooth_beliefs(found.hmm, values, known_states=states)
    assert torch.equal(smoothed.argmax(-1), states)
    assert hmmscope.most_likely_states(found.hmm, values[0], known_states=[{1}] + 29 * [None]).states[0, 0] == 1


def test_lists_and_arrays_mean_the_same():
    hmm = _random(numpy_generator(2, "known-states"), 3, 2)
    allowed = torch.ones(1, 3, 3, dtype=torch.bool)
    allowed[0, 1], allowed[0, 2, 0] = torch.tensor([False, True, False]), False
    expected = hmmscope.smooth_beliefs(hmm, [0, 1, 1], known_states=allowed)
    for known in ([None, 1, {1, 2}], [[-1, 1, {1, 2}]], [[MISSING, [1], (1, 2)]], allowed[0].numpy()):
        assert torch.equal(hmmscope.smooth_beliefs(hmm, [0, 1, 1], known_states=known), expected)
    known = np.array([[-1], [1], [2]])
    assert hmmscope.smooth_beliefs(hmm, [[0], [1], [1]], lengths=[2, 1], known_states=known)[1, 0].tolist() == [0, 0, 1]


@pytest.mark.parametrize(
    ("known", "message"),
    [
        ([0, 1], r"known_states\[0\]: must have 3 entries, one per observation, got 2"),
        ([0, 1, 7], r"known_states\[0, 2\]: must be a state in \[0, 3\)"),
        ([0, "rain", 1], r"known_states\[0, 1\]: must be a state .* got 'rain'"),
        ([0, 1, set()], r"known_states\[0, 2\]: must allow at least one state"),
        (torch.zeros(2, 5), r"must have 1 sequences of states, .* got \(2, 5\)"),
        ("rain", "got 'rain'"),
        (np.ma.masked_array([0, 1, 1], [0, 1, 0]), "known_states: has masked entries"),
        (3, "got 3"),
    ],
)
def test_invalid_known_states(known, message):
    hmm = _random(numpy_generator(3, "known-states"), 3, 2)
    for ask in (hmmscope.smooth_beliefs, hmmscope.filter_beliefs, hmmscope.log_likelihood, hmmscope.most_likely_states):
        with pytest.raises(InputError, match=message):
            ask(hmm, [0, 1, 1], known_states=known)


def test_fits_that_cannot_take_known_states():
    given = {"source": [[0, 1], [1, 0]], "options": hmmscope.FitOptions(known_states=[[0, -1], [1, 1]])}
    with pytest.raises(InputError, match="known_states: needs one num_states"):
        hmmscope.fit(num_states=[2, 3], **given)
    with pytest.raises(InputError, match="known_states: cannot be used with a stream"):
        hmmscope.fit(num_states=2, stream=True, **given)
    with pytest.raises(InputError, match="known_states: must name at most 2 states, got"):
        hmmscope.fit([[0, 1, 1]], 2, options=hmmscope.FitOptions(known_states=["c", "b", "a"]))
    with pytest.raises(InputError, match="known_states: cannot be used with a mixture"):
        hmmscope.filter_beliefs("mess3-mixture", [[0, 1]], known_states=[[0, 1]])


def test_floats_with_gaps_are_known_states():
    """As in a table's column with missing entries."""
    hmm = hmmscope.HMM([0.5, 0.5], [[0.75, 0.25], [0.25, 0.75]], [[0.75, 0.25], [0.25, 0.75]])
    expected = hmmscope.log_likelihood(hmm, [[0, 1, 1]], known_states=[[1, -1, 0]])
    for known in (np.array([[1.0, np.nan, 0.0]]), [[1.0, None, 0.0]], torch.tensor([[1.0, -1.0, 0.0]])):
        assert torch.equal(hmmscope.log_likelihood(hmm, [[0, 1, 1]], known_states=known), expected)
    with pytest.raises(InputError, match=r"known_states\[0, 0\]: must be a state in \[0, 2\), .* got 0.5"):
        hmmscope.log_likelihood(hmm, [[0, 1]], known_states=[[0.5, 1]])


def test_names_of_states_stand_for_their_numbers():
    hmm = hmmscope.HMM([0.5, 0.5], [[0.75, 0.25], [0.25, 0.75]], [[0.75, 0.25], [0.5, 0.5]], states=["rain", "dry"])
    for ask in (hmmscope.smooth_beliefs, hmmscope.log_likelihood):
        expected = ask(hmm, [[0, 1, 1]], known_states=[[0, {0, 1}, -1]])
        for known in ([["rain", {"rain", 1}, None]], np.array(["rain", None, None], object), ["rain", None, None]):
            assert torch.equal(ask(hmm, [[0, 1, 1]], known_states=known), expected)
    with pytest.raises(InputError, match=r"must be a state in \[0, 2\) \(rain, dry\), .* got 'snow'"):
        hmmscope.log_likelihood(hmm, [[0, 1]], known_states=["snow", None])


@pytest.mark.parametrize("more", [{}, {"durations": 2}, {"inputs": [[0, 1, 0, 1]] * 2}, {"emission": "gaussian"}])
def test_fits_name_the_labelled_states(more):
    """Sorted names are numbers of states, unless `start` has names."""
    known, numbers = [["wet", {"dry", "wet"}, None, "dry"], [None] * 4], [[1, {0, 1}, None, 0], [-1] * 4]
    x, more = torch.tensor([[0, 1, 1, 0], [1, 1, 0, 0]]), dict(more)
    options = {"num_restarts": 1, "max_iterations": 3} | {k: more.pop(k) for k in ("durations",) if k in more}
    more |= {"axis": 1} if "emission" in more else {}
    fit = hmmscope.fit(x, 3, options=hmmscope.FitOptions(known_states=known, **options), **more)
    numbered = hmmscope.fit(x, 3, options=hmmscope.FitOptions(known_states=numbers, **options), **more)
    names = fit.hmm.states if fit.hmm.visits is None else fit.hmm.visits.names
    assert (*names,) == ("dry", "wet", "state 2")
    assert fit.log_likelihood == numbered.log_likelihood
    again = hmmscope.FitOptions(start=fit.hmm, known_states=[["wet"] + [None] * 3, [None] * 4], **options)
    found = hmmscope.fit(x, 3, options=again, **more).hmm
    assert (found.states if found.visits is None else found.visits.names)[:2] == ("state 0", "wet")
    for label, message in (("snow", "known_states: unknown 'snow'"), ("wetter", "did you mean 'wet'")):
        with pytest.raises(InputError, match=message):
            hmmscope.fit(x, 3, options=hmmscope.FitOptions(start=fit.hmm, known_states=[[label] * 4] * 2), **more)
