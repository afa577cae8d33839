"""Input-output HMMs against enumeration, and their fit."""

import itertools
import math

import numpy as np
import pytest
import torch

import hmmscope
from hmmscope.emissions.multichannel import MultichannelHMM
from hmmscope.errors import InputError
from hmmscope.inference.baum_welch import fit_baum_welch
from hmmscope.inference.fit_inputs import expected_input_counts, fit_inputs
from hmmscope.inference.given_inputs import StateObserver
from hmmscope.seeds import numpy_generator


def _random(rng, num_inputs, num_states, num_symbols):
    return hmmscope.InputOutputHMM(
        rng.dirichlet(np.ones(num_states)),
        rng.dirichlet(np.ones(num_states), (num_inputs, num_states)),
        rng.dirichlet(np.ones(num_symbols), (num_inputs, num_states)),
    )


def _paths(hmm, symbols, inputs, allowed):
    for path in itertools.product(range(hmm.num_states), repeat=len(symbols)):
        probability = 1.0
        for t, state in enumerate(path):
            arrive = hmm.transition[inputs[t], path[t - 1], state] if t else hmm.initial[state]
            symbol = symbols[t]
            emit = 1.0 if symbol == hmmscope.MISSING else float(hmm.emission[inputs[t], state, symbol])
            probability *= float(arrive) * emit * bool(allowed[t, state])
        yield path, probability


def test_answers_equal_those_by_enumeration():
    rng = numpy_generator(0, "input-output")
    for _ in range(8):
        num_inputs, num_states, num_symbols, time = (int(rng.integers(1, most)) for most in (4, 4, 4, 6))
        hmm = _random(rng, num_inputs, num_states, num_symbols)
        observations = torch.from_numpy(rng.integers(0, num_symbols, (2, time)))
        observations[0, 0] = hmmscope.MISSING
        inputs = torch.from_numpy(rng.integers(0, num_inputs, (2, time)))
        allowed = torch.from_numpy(rng.random((2, time, num_states)) < 0.7)
        allowed[~allowed.any(-1)] = True
        lengths = [time, max(1, time - 1)]
        given = {"inputs": inputs, "known_states": allowed, "lengths": lengths}
        filtered = hmmscope.filter_beliefs(hmm, observations, **given)
        smoothed = hmmscope.smooth_beliefs(hmm, observations, **given)
        logs, best = (
            hmmscope.log_likelihood(hmm, observations, **given),
            hmmscope.most_likely_states(hmm, observations, **given),
        )
        counts = expected_input_counts(hmm, observations, inputs, lengths=lengths)
        moves, emitted = np.zeros_like(counts.transitions), np.zeros_like(counts.emissions)
        for b, length in enumerate(lengths):
            row, own = observations[b, :length].tolist(), inputs[b, :length].tolist()
            paths = dict(_paths(hmm, row, own, allowed[b]))
            total, posterior = sum(paths.values()), np.zeros((length, num_states))
            for path, probability in paths.items():
                posterior[range(length), path] += probability / total
            assert logs[b] == pytest.approx(math.log(total), abs=1e-12)
            np.testing.assert_allclose(smoothed[b, :length], posterior, atol=1e-12)
            np.testing.assert_allclose(filtered.beliefs[b, length - 1], posterior[-1], atol=1e-12)
            assert best.log_probability[b] == pytest.approx(math.log(max(paths.values())), abs=1e-12)
            free = dict(_paths(hmm, row, own, torch.ones_like(allowed[b])))
            for path, probability in free.items():
                for t, state in enumerate(path):
                    share = probability / sum(free.values())
                    if t:
                        moves[own[t], path[t - 1], state] += share
                    if row[t] != hmmscope.MISSING:
                        emitted[own[t], state, row[t]] += share
        np.testing.assert_allclose(counts.transitions, moves, atol=1e-12)
        np.testing.assert_allclose(counts.emissions, emitted, atol=1e-12)


def test_answers_equal_those_of_dynamax():
    """Values of dynamax 1.0.3 (jax 0.10.2, float64): `CategoricalRegressionHMM(2, 3, 2)`, one-hot inputs.

    Its `emission_weights` are log(emission) (state, symbol, input), its biases zero; `smoother` and `most_likely_states`.
    """
    emission = [[[0.5, 0.25, 0.25], [0.125, 0.125, 0.75]], [[0.25, 0.5, 0.25], [0.625, 0.25, 0.125]]]
    hmm = hmmscope.InputOutputHMM([0.25, 0.75], [[0.75, 0.25], [0.375, 0.625]], emission)
    symbols, inputs = [[2, 0, 1, 1, 0, 2, 2, 0, 0, 1, 2, 1]], [[0, 1, 1, 0, 0, 1, 0, 1, 1, 1, 0, 0]]
    smoothed = [0.08212854635923104, 0.28417303427392276, 0.7081318115501146, 0.8290270628490785, 0.8911679418374704]
    smoothed += [0.7375977042347847, 0.3184404432608872, 0.25362269479208277, 0.3075470027155497, 0.5721093751175291]
    filtered = [0.1, 0.2192691029900333, 0.627529210601311, 0.758013494082513, 0.8855702451250326, 0.8284148130519409]
    answers = hmmscope.filter_beliefs(hmm, symbols, inputs=inputs)
    assert float(answers.log_likelihood[0]) == pytest.approx(-12.427057759221505, abs=1e-9)
    np.testing.assert_allclose(answers.beliefs[0, :6, 0], filtered, atol=1e-9)
    np.testing.assert_allclose(hmmscope.smooth_beliefs(hmm, symbols, inputs=inputs)[0, :10, 0], smoothed, atol=1e-9)
    path = hmmscope.most_likely_states(hmm, symbols, inputs=inputs).states
    assert path[0].tolist() == [1, 1, 0, 0, 0, 0, 1, 1, 1, 1, 1, 0]


def test_fit_with_one_input_equals_baum_welch():
    symbols = torch.from_numpy(numpy_generator(1, "input-output").integers(0, 2, (10, 15)))
    symbols[0, 2] = hmmscope.MISSING
    rows = [0.4, 0.6], [[0.75, 0.25], [0.4, 0.6]], [[0.75, 0.25], [0.25, 0.75]]
    options = {"num_restarts": 1, "max_iterations": 20, "tolerance": 0.0}
    ours = fit_inputs(
        symbols, torch.zeros_like(symbols.clamp(min=0)), 2, 2, 1, start=hmmscope.InputOutputHMM(*rows), **options
    )
    other = fit_baum_welch(symbols, 2, 2, start=hmmscope.HMM(*rows, allow_drop_tiny=True), **options)
    assert ours.log_likelihood == pytest.approx(other.log_likelihood, abs=1e-6)  # HMM rounds to multiples of 2^-32
    assert ours.bic == pytest.approx(other.bic, abs=1e-6)


def test_em_never_decreases_and_finds_the_process():
    hmm = hmmscope.InputOutputHMM(
        [0.5, 0.5], [[[0.9, 0.1], [0.1, 0.9]], [[0.1, 0.9], [0.9, 0.1]]], [[0.95, 0.05], [0.05, 0.95]]
    )
    inputs = torch.from_numpy(numpy_generator(2, "input-output").integers(0, 2, (40, 25)))
    sampled, before = hmm.sample_given(inputs), -math.inf
    for iterations in (1, 2, 4, 8):
        found = fit_inputs(
            sampled.observations, inputs, 2, 2, 2, num_restarts=1, max_iterations=iterations, pseudo_count=0.0
        )
        assert found.log_likelihood >= before - 1e-9
        before = found.log_likelihood
    found = fit_inputs(sampled.observations, inputs, 2, 2, 2, num_restarts=4, max_iterations=60)
    truth = float(hmmscope.log_likelihood(hmm, sampled.observations, inputs=inputs).sum())
    assert found.log_likelihood > truth - 1
    assert found.num_free == {"initial": 1, "transition": 4, "emission": 4}


@pytest.mark.parametrize("ndim", [1, 2, 3])
def test_policy(ndim):
    random = numpy_generator(3, "input-output")
    hmm = _random(random, 2, 3, 2)
    policy = torch.from_numpy(random.dirichlet(np.ones(2), {1: (), 2: 2, 3: (2, 2)}[ndim]))
    rows = policy.expand(2, 2)[:, None].expand(-1, 2, -1) if ndim < 3 else policy
    inputs, symbols = torch.tensor([[0, 1, 1, 0]]), torch.tensor([[1, 0, 1, 1]])
    for first in (None, [0.125, 0.875]):
        begin = torch.tensor([0.5, 0.5]) if first is None else torch.tensor(first)
        if first is None and ndim < 3:
            begin = policy if ndim == 1 else torch.stack([policy[1, 0], policy[0, 1]]) / (policy[1, 0] + policy[0, 1])
        pairs = zip(inputs[0, :-1].tolist(), symbols[0, :-1].tolist(), inputs[0, 1:].tolist(), strict=True)
        chosen = begin.double()[0].log() + sum(float(rows[u, v, w].log()) for u, v, w in pairs)
        expected = float(chosen + hmmscope.log_likelihood(hmm, symbols, inputs=inputs)[0])
        tokens = torch.stack([inputs, symbols + 2], 2).reshape(1, -1)
        found = hmmscope.log_likelihood(hmm.with_policy(policy, first=first), tokens)
        assert float(found[0]) == pytest.approx(expected, abs=1e-6)
        together = hmm.with_policy(policy, first=first, together=True)
        assert float(hmmscope.log_likelihood(together, inputs * 2 + symbols)[0]) == pytest.approx(expected, abs=1e-6)
        beliefs = hmmscope.filter_beliefs(together, inputs * 2 + symbols).beliefs[0, :, 1:].view(4, -1, 3).sum(1)
        given = hmmscope.filter_beliefs(hmm, symbols, inputs=inputs).beliefs[0]
        torch.testing.assert_close(beliefs, given, atol=1e-6, rtol=0)
        vectors = MultichannelHMM.of_inputs(hmm, policy, first=first)
        both = torch.stack([inputs, symbols], 2).double()
        assert float(hmmscope.log_likelihood(vectors, both)[0]) == pytest.approx(expected, abs=1e-9)
    assert hmmscope.make_process("input-output").num_symbols == 5
    assert hmmscope.make_process("input-output", together=True).num_symbols == 6
    with pytest.raises(InputError, match=r"^policy: must have the shape \(input,\), \(input, input\) or"):
        hmm.with_policy(0.5)


def test_policies_of_processes_that_actions_drive():
    cyclic = hmmscope.make_process("cyclic-det", num_states=3, num_symbols=2)
    assert cyclic.with_policy([0.5, 0.5]).digest == cyclic.digest
    actions, kernels = [0, 1, 1, 0, 1], cyclic.labelled > 0
    states = [0]
    for action in actions:
        states.append(int(kernels[action, states[-1]].nonzero()))
    random = numpy_generator(5, "input-output")
    for ndim, shape in ((2, 2), (3, (2, 3))):
        policy = random.dirichlet(np.ones(2), shape)
        driven = cyclic.with_policy(policy, first=[0.25, 0.75])
        rows = policy if ndim == 3 else np.repeat(policy[:, None], 3, 1)
        steps = zip(actions[:-1], states[1:-1], actions[1:], strict=True)
        expected = math.log(0.25) + sum(math.log(rows[a, s, b]) for a, s, b in steps)
        assert float(hmmscope.log_likelihood(driven, [actions])[0]) == pytest.approx(expected, abs=1e-6)
        belief = hmmscope.filter_beliefs(driven, [actions]).beliefs[0, -1].view(3, 3).sum(0)
        assert belief.tolist() == [float(s == states[-1]) for s in range(3)]
    hard = hmmscope.LabelledHMM([1, 0], [[[0.5, 0], [0, 0]], [[0, 0.5], [0.5, 0.5]]])
    with pytest.raises(InputError, match="process: must allow every action in every state"):
        hard.with_policy([0.5, 0.5])


def _forms(hmm, policy, inputs, symbols):
    """Return the processes that a policy makes, each with the same samples."""
    hot = [torch.nn.functional.one_hot(part, count) for part, count in ((inputs, 2), (symbols, hmm.num_symbols))]
    return {
        "tokens": (hmm.with_policy(policy), torch.stack([inputs, symbols + 2], 2).flatten(1)),
        "pairs": (hmm.with_policy(policy, together=True), inputs * hmm.num_symbols + symbols),
        "vectors": (MultichannelHMM.of_inputs(hmm, policy), torch.stack([inputs, symbols], 2).double()),
        "one-hot": (MultichannelHMM.of_inputs(hmm, policy, one_hot=True), torch.cat(hot, 2).double()),
    }


@pytest.mark.parametrize("shape", [(), (2,), (2, 4)])
def test_a_state_observer_has_the_beliefs_given_the_inputs(shape):
    random = numpy_generator(7, "input-output")
    hmm, policy = _random(random, 2, 3, 4), random.dirichlet(np.ones(2), shape)
    inputs, symbols = (torch.from_numpy(random.integers(0, count, (2, 5))) for count in (2, 4))
    exact = hmmscope.filter_beliefs(hmm, symbols, inputs=inputs).beliefs
    moved = torch.einsum("bts,btsj->btj", exact[:, :-1], hmm.transition[inputs[:, 1:]])
    logs = []
    for name, (process, seen) in _forms(hmm, policy, inputs, symbols).items():
        found = hmmscope.observe(StateObserver(hmm, process), seen).belief
        if name == "tokens":
            torch.testing.assert_close(found[:, 2::2], moved, atol=1e-7, rtol=0)  # HMM rounds to multiples of 2^-32
            found = found[:, 1::2]
        torch.testing.assert_close(found, exact, atol=1e-7, rtol=0)
        logs.append(float(hmmscope.log_likelihood(process, seen).sum()))
    assert logs == pytest.approx(logs[:1] * 4, abs=1e-6)
    with pytest.raises(InputError, match=r"process: must be hmm\.with_policy\(\.\.\.\) or MultichannelHMM"):
        StateObserver(hmm, hmmscope.make_process("mess3"))


@pytest.mark.drawn(1)
@pytest.mark.parametrize("form", ["tokens", "pairs", "vectors", "one-hot"])
def test_networks_of_inputs_and_observations(form, tmp_path):
    hmm = _random(numpy_generator(6, "input-output"), 2, 2, 2)
    process, _ = _forms(hmm, [0.5, 0.5], torch.zeros(1, 1).long(), torch.zeros(1, 1).long())[form]
    model = {"name": "rnn", "width": 4, "num_layers": 1}
    run = hmmscope.train(process, tmp_path / "run", model=model, length=4, num_steps=2)
    samples, net = run.dataset("probe"), run.model
    score = hmmscope.evaluate(net, samples, num_samples=8, baselines=False)
    assert score.loss > score.bayes_loss
    options = hmmscope.InstrumentOptions(observer=StateObserver(hmm, process), num_controls=0)
    (row, *_) = hmmscope.probe(net, samples, num_samples=16, options=options)
    assert row["target"] == "belief"
    found = hmmscope.belief_map(run, num_samples=16, options=options)
    assert found.exact.shape[1] == 2
    rows = hmmscope.belief_interventions(net, samples, num_samples=16)
    assert {row["intervention"] for row in rows} >= {"set"}
    with hmmscope.intervene(net, {"residual.0": torch.zeros_like}):
        hmmscope.evaluate(net, samples, num_samples=8, baselines=False)
    if form in ("tokens", "one-hot"):
        assert hmmscope.look(run, num_samples=8).losses


def test_file(tmp_path):
    hmm = _random(numpy_generator(4, "input-output"), 2, 3, 2)
    hmm.save(tmp_path / "hmm.json")
    again = hmmscope.load_process(tmp_path / "hmm.json")
    assert torch.equal(again.transition, hmm.transition)
    assert again.digest == hmm.digest


def test_sequences_of_one_observation():
    hmm = _random(numpy_generator(6, "input-output"), 2, 3, 2)
    symbols, inputs = torch.tensor([[0], [1]]), np.array([[1], [0]])
    expected = [float(hmm.initial @ hmm.emission[u, :, v]) for u, v in ((1, 0), (0, 1))]
    assert hmmscope.log_likelihood(hmm, symbols, inputs=inputs).exp().tolist() == pytest.approx(expected, abs=1e-12)


def test_errors():
    hmm = _random(numpy_generator(5, "input-output"), 2, 3, 2)
    for given, message in (
        ({}, r"pass inputs=, or call `with_policy` to give the inputs a distribution"),
        ({"inputs": [[0, 1]]}, r"inputs: must have the shape \(1, 3\), got \(1, 2\)"),
        ({"inputs": [[0, 1, 2]]}, r"inputs: must be in \[0, 2\)"),
        ({"inputs": [[0, 0.5, 1]]}, r"inputs: must be whole numbers without missing values, got \[0.5\]"),
        ({"inputs": np.array([[0, np.nan, 1]])}, r"inputs: must be whole numbers without missing values, got \[nan\]"),
        ({"inputs": np.ma.masked_array([[0, 1, 1]], [[0, 1, 0]])}, "inputs: has masked entries"),
        ({"inputs": [[0, None, 1]]}, "symbol 2: is None, which is not a symbol$"),
    ):
        for ask in (hmmscope.filter_beliefs, hmmscope.smooth_beliefs, hmmscope.most_likely_states):
            with pytest.raises(InputError, match=message):
                ask(hmm, [[0, 1, 1]], **given)
    with pytest.raises(InputError, match="inputs: needs an InputOutputHMM, got 'HMM'"):
        hmmscope.filter_beliefs(hmm.with_policy([0.5, 0.5]), [[0, 1]], inputs=[[0, 1]])
    with pytest.raises(InputError, match="emission: must have as many matrices as transition"):
        hmmscope.InputOutputHMM([1], [[[1]]] * 2, [[[1]]] * 3)
    with pytest.raises(InputError, match=r"transition: must have the shape \(\[input,\] state, outcome\)"):
        hmmscope.InputOutputHMM([1], [1], [[[1]]])
    with pytest.raises(InputError, match="start: must have 1 inputs, 3 states and 2 symbols"):
        fit_inputs([[0, 1]], [[0, 0]], 3, 2, 1, start=hmm)
