"""Posterior sampling with inputs, durations and known states."""

import numpy as np
import pytest
import torch

import hmmscope as hs
from hmmscope.errors import InputError
from hmmscope.inference.gibbs_expanded import DurationExpansion, InputExpansion
from hmmscope.kernels.state_draws import draw_paths
from hmmscope.seeds import numpy_generator

QUICK = {"num_restarts": 1, "max_iterations": 5}


def _log_likelihood_and_counts(expansion, seen, rows):
    offsets, lengths = np.array([0, 9]), np.array([9, 6])
    initial, step, table = expansion.arrays(rows)
    path, first, moves = np.empty(15, np.int64), np.empty(len(initial)), np.empty_like(step)
    random, beliefs = numpy_generator(0, "expanded"), np.empty((15, len(initial)))
    log = draw_paths(initial, step, table, seen, offsets, lengths, random, beliefs, path, first, moves)
    return log, expansion.counts(first, moves, path), expansion.shown(path)


def test_expansions_have_the_likelihood_of_their_models_and_count_each_path():
    rng = numpy_generator(1, "expanded")
    x, u = rng.integers(0, 3, 15), rng.integers(0, 2, 15)
    x[4] = 2  # V marks a missing observation
    moves, emission = rng.dirichlet(np.ones(3), (2, 3)), rng.dirichlet(np.ones(2), (2, 3))
    given = {"initial": rng.dirichlet(np.ones(3)), "transition": moves, "emission": emission}
    rows = [torch.from_numpy(np.where(part == 2, hs.MISSING, part)) for part in np.split(x, [9])]
    batch = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
    inputs = torch.nn.utils.rnn.pad_sequence(list(map(torch.from_numpy, np.split(u, [9]))), batch_first=True)
    expansion = InputExpansion(x, u, 2, 3, 2)
    log, counts, states = _log_likelihood_and_counts(expansion, expansion.codes, given)
    exact = hs.log_likelihood(hs.InputOutputHMM(**given), batch, inputs=inputs, lengths=[9, 6]).sum()
    assert log == pytest.approx(float(exact), abs=1e-9)
    assert counts["transition"][u[1], states[0], states[1]] >= 1
    assert counts["transition"].sum() == 13
    assert counts["emission"].sum() == (x < 2).sum()
    assert counts["emission"][u[0], states[0], x[0]] >= x[0] < 2

    durations = {name: given[name] for name in ("initial",)}
    durations |= {"transition": np.array([[0, 0.5, 0.5], [0.25, 0, 0.75], [1, 0, 0]]), "emission": emission[0]}
    durations["durations"] = rng.dirichlet(np.ones(4), 3)
    log, counts, states = _log_likelihood_and_counts(DurationExpansion(x, 4, 2), x, durations)
    exact = hs.log_likelihood(hs.SemiMarkovHMM(**durations), batch, lengths=[9, 6]).sum()
    assert log == pytest.approx(float(exact), abs=1e-7)  # HMM rounds to multiples of 2^-32
    assert counts["durations"].sum() == counts["transition"].sum() + 2
    assert counts["initial"][states[0]] >= 1


def test_complete_labels_give_the_dirichlet_posterior():
    hmm = hs.HMM([0.5, 0.5], [[0.75, 0.25], [0.25, 0.75]], [[0.75, 0.25], [0.25, 0.75]])
    drawn = hmm.sample(20, 5)
    x, known = drawn.observations.per_sequence(), np.asarray(drawn.states).reshape(5, 20)
    fit = hs.fit(x, 2, options=hs.FitOptions(known_states=known, **QUICK))
    posterior = fit.posterior(200, warm_up=5)
    counts = np.ones((2, 2))
    np.add.at(counts, (known[:, :-1].ravel(), known[:, 1:].ravel()), 1.0)
    means = posterior.arrays["transition"].mean((0, 1)).numpy()
    np.testing.assert_allclose(means, counts / counts.sum(1, keepdims=True), atol=0.01)  # of 800 draws
    masked = hs.Constraints(transition=[[True, True], [False, True]])
    ordered = np.sort(known, axis=1)
    fit = hs.fit(x, 2, options=hs.FitOptions(known_states=ordered, constraints=masked, **QUICK))
    assert not fit.posterior(10, warm_up=2).arrays["transition"][..., 1, 0].any()


def test_posteriors_have_the_shapes_and_zeros_of_their_models():
    rng = numpy_generator(2, "expanded")
    x, u = rng.integers(0, 2, (6, 15)), rng.integers(0, 3, (6, 15))
    posterior = hs.fit(x, 2, inputs=u, options=hs.FitOptions(**QUICK)).posterior(10, warm_up=5, max_lengthening=1)
    assert posterior.arrays["transition"].shape == (4, 10, 3, 2, 2)
    assert len(posterior.table()) == 2 + 12 + 12
    assert posterior.models(3)[0].num_inputs == 3
    fit = hs.fit(x, 3, options=hs.FitOptions(durations=2, **QUICK))
    posterior = fit.posterior(10, warm_up=5, max_lengthening=1, durations=2.0)
    assert not posterior.arrays["transition"].diagonal(dim1=-2, dim2=-1).any()
    assert posterior.forecast(x[0], 2, num_models=3).mean.shape == (2, 2)
    for options in ({"duration_family": "negative-binomial"}, {"sequence_weights": [1.0] * 6}):
        with pytest.raises(InputError, match="posterior: supports neither sequence_weights nor duration_family; fit"):
            hs.fit(x, 2, options=hs.FitOptions(durations=2, **QUICK, **options)).posterior()
    with pytest.raises(InputError, match="posterior: unknown 'degrees'"):
        fit.posterior(degrees=1.0)


@pytest.mark.parametrize(
    "options",
    [
        {"inputs": True},
        {"inputs": True, "constraints": hs.Constraints(emission=[["a", "b"], ["c", None]])},
        {"inputs": True, "known_states": True},
        {"durations": 3},
        {"durations": 3, "known_states": True, "constraints": hs.Constraints(durations=[[False, True, True]] * 2)},
        {"constraints": hs.Constraints(emission=[["a", "b"], ["b", "a"]])},
    ],
    ids=lambda options: "-".join(options),
)
def test_draws_have_their_likelihood_on_sequences_of_increasing_lengths(options):
    rng, options = numpy_generator(3, "expanded"), dict(options)
    lengths = [4, 9, 15]
    x = [np.repeat(rng.integers(0, 2, length), 3)[:length].tolist() for length in lengths]
    inputs = [rng.integers(0, 2, length).tolist() for length in lengths] if options.pop("inputs", False) else None
    known = [[0] + [-1] * (length - 1) for length in lengths] if options.pop("known_states", False) else None
    fit = hs.fit(x, 2, inputs=inputs, options=hs.FitOptions(**QUICK, **options, known_states=known))
    posterior = fit.posterior(4, num_chains=1, warm_up=3, max_lengthening=1)
    batch = torch.tensor([[*row, *[0] * (15 - len(row))] for row in x])
    given = {"lengths": lengths, "known_states": known}
    if inputs:
        given["inputs"] = torch.tensor([[*row, *[0] * (15 - len(row))] for row in inputs])
    for model, log in zip(posterior.models(4), posterior.log_likelihood[0].tolist(), strict=True):
        assert log == pytest.approx(float(hs.log_likelihood(model, batch, **given).sum()), abs=1e-6)
    if "constraints" in options and inputs:
        assert posterior.arrays["emission"][0, 0, 0, 0].tolist() == posterior.arrays["emission"][0, 0, 1, 0].tolist()
    if "durations" in options and known:
        assert not posterior.arrays["durations"][..., 0].any()
