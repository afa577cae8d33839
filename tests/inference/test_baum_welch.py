"""Expectation maximisation: against hmmlearn, with fixed and tied parts, on streams, and as an in-context baseline."""

import itertools

import numpy as np
import pytest
import torch

import hmmscope as hs
from hmmscope.errors import InputError
from hmmscope.inference.baum_welch import baum_welch_predictions, choose_num_states, fit_baum_welch, fit_stream
from hmmscope.inference.tables import flat_sequences
from inference_cases import revived
from strategies import rows


def casino(length, count=4):
    process = hs.load_process("dishonest-casino")
    return process, hs.Corpus(process, length=length)[0:count].observations


def test_the_fit_explains_the_data_as_well_as_the_truth():
    process, observations = casino(500)
    fit = fit_baum_welch(observations, 2, 6, num_restarts=2, max_iterations=30, pseudo_count=0.0)
    assert fit.log_likelihood == pytest.approx(
        hs.filter_beliefs(fit.hmm, observations).log_likelihood.sum().item(), rel=1e-6
    )
    assert fit.log_likelihood > hs.filter_beliefs(process, observations).log_likelihood.sum().item() - 5


def test_the_same_seed_gives_the_same_fit():
    _, observations = casino(60)
    one, two = (fit_baum_welch(observations, 2, 6, num_restarts=1, max_iterations=5, seed=3) for _ in range(2))
    assert one.hmm.digest == two.hmm.digest
    assert one.num_iterations <= 5
    other = fit_baum_welch(observations, 2, 6, num_restarts=1, max_iterations=5, seed=4)
    assert other.hmm.digest != one.hmm.digest


def test_padding_is_not_seen():
    _, observations = casino(40, count=2)
    padded = torch.cat([observations, torch.full((2, 5), 99)], 1)
    one = fit_baum_welch(observations, 2, 6, num_restarts=1, max_iterations=4)
    two = fit_baum_welch(padded, 2, 6, num_restarts=1, max_iterations=4, lengths=[40, 40])
    assert one.hmm.digest == two.hmm.digest


def test_sequences_in_one_array_are_those_of_a_padded_batch():
    _, observations = casino(40, count=3)
    flat, lengths = observations.flatten().numpy()[:75], np.array([40, 0, 35])
    options = {"num_restarts": 1, "max_iterations": 4}
    one = fit_baum_welch(flat_sequences(flat, lengths), 2, 6, **options)
    two = fit_baum_welch(observations[:2], 2, 6, lengths=[40, 35], **options)
    assert one.hmm.digest == two.hmm.digest


def test_all_iterations_are_heard_of_made_or_not():
    _, observations = casino(30)
    heard = []
    options = {"num_restarts": 3, "max_iterations": 400, "tolerance": 1e-3, "heard": heard.append}
    fit = fit_baum_welch(observations, 2, 6, **options)
    assert fit.converged
    assert sum(heard) == 3 * 400
    assert heard.count(1) >= fit.num_iterations


def test_predictions_use_the_past_only():
    _, observations = casino(30, count=1)
    options = {"num_restarts": 1, "max_iterations": 4}
    predicted = baum_welch_predictions(observations, 2, 6, [0, 9, 29], **options)
    assert predicted.shape == (1, 3, 6)
    np.testing.assert_allclose(predicted.sum(-1), 1, rtol=1e-12)
    assert (predicted > 0).all()  # nothing is impossible because it has not been seen
    changed = observations.clone()
    changed[0, 10:] = 0
    again = baum_welch_predictions(changed, 2, 6, [0, 9, 29], **options)
    assert torch.equal(predicted[:, :2], again[:, :2])
    assert not torch.equal(predicted[:, 2], again[:, 2])


def fitted_by_hmmlearn(start, observations, lengths, iterations):
    """The referee: the same expectation maximisation, without priors, from the same start."""
    model = pytest.importorskip("hmmlearn.hmm").CategoricalHMM(
        n_components=start.num_states, n_features=start.num_symbols, n_iter=iterations, tol=-np.inf, init_params=""
    )
    parts = (start.initial_S, start.transition_SS, start.emission_SV)
    model.startprob_, model.transmat_, model.emissionprob_ = (part.numpy().copy() for part in parts)
    flat = torch.cat([row[:length] for row, length in zip(observations, lengths, strict=True)])[:, None].numpy()
    model.fit(flat, lengths)
    return model, model.score(flat, lengths)


@pytest.mark.parametrize("num_states", [3, 40])
def test_the_same_optimum_as_hmmlearn(num_states):
    """Few states in compiled loops, many in matrix products; sequences of unequal lengths; zeros stay zeros."""
    true = hs.make_process("random-hmm", num_states=3, num_symbols=4)
    observations = hs.Corpus(true, length=50)[0:12].observations
    lengths = [50, 1, 20, 50, 7, 33, 50, 50, 2, 50, 50, 49]
    rng = np.random.default_rng(num_states)
    transition = rows(rng, num_states, num_states, 0.2)
    start = hs.HMM(rows(rng, 1, num_states)[0], transition, rows(rng, num_states, 4))
    iterations = 60 if num_states == 3 else 10
    options = {"num_restarts": 1, "max_iterations": iterations, "tolerance": 0.0, "pseudo_count": 0.0}
    ours = fit_baum_welch(observations, num_states, 4, lengths=lengths, start=start, **options)
    model, score = fitted_by_hmmlearn(start, observations, lengths, ours.num_iterations)
    assert ours.log_likelihood == pytest.approx(score, rel=1e-8)
    for found, other in (
        (ours.hmm.initial_S, model.startprob_),
        (ours.hmm.transition_SS, model.transmat_),
        (ours.hmm.emission_SV, model.emissionprob_),
    ):
        np.testing.assert_allclose(found, other, rtol=0, atol=1e-8)
    assert (ours.hmm.transition_SS[torch.from_numpy(transition == 0)] == 0).all()


def test_each_step_gains_and_the_last_is_said_to_converge():
    _, observations = casino(100)
    scores = []
    for steps in range(1, 8):
        options = {"num_restarts": 1, "max_iterations": steps, "tolerance": 0.0, "pseudo_count": 0.0}
        scores.append(fit_baum_welch(observations, 2, 6, **options).log_likelihood)
    assert all(a < b for a, b in itertools.pairwise(scores))
    early = fit_baum_welch(observations, 2, 6, num_restarts=1, max_iterations=500, tolerance=1e-4)
    assert early.converged
    assert 1 < early.num_iterations < 500
    assert not fit_baum_welch(observations, 2, 6, num_restarts=1, max_iterations=2, tolerance=0.0).converged


def test_more_restarts_are_never_worse_and_threads_change_nothing():
    _, observations = casino(80)
    options = {"max_iterations": 20, "pseudo_count": 0.0}
    one, four = (fit_baum_welch(observations, 3, 6, num_restarts=n, **options) for n in (1, 4))
    assert four.log_likelihood >= one.log_likelihood
    try:
        torch.set_num_threads(2)
        assert fit_baum_welch(observations, 3, 6, num_restarts=4, **options).hmm.digest == four.hmm.digest
    finally:
        torch.set_num_threads(1)


def test_fixed_and_tied_parts():
    process, observations = casino(200)
    options = {"num_restarts": 2, "max_iterations": 10}
    kept = fit_baum_welch(observations, 2, 6, start=process, fixed=["emission", "initial"], **options)
    assert torch.equal(kept.hmm.emission_SV, process.emission_SV)
    assert torch.equal(kept.hmm.initial_S, process.initial_S)
    assert not torch.equal(kept.hmm.transition_SS, process.transition_SS)
    tied = fit_baum_welch(observations, 3, 6, tied_emissions=[0, 1, 0], **options).hmm.emission_SV
    assert torch.equal(tied[0], tied[2])
    assert not torch.equal(tied[0], tied[1])


def test_the_number_of_states_by_held_out_likelihood():
    process, observations = casino(400, count=12)
    choice = choose_num_states(observations[:8], observations[8:], [1, 2, 6], 6, max_iterations=200)
    assert set(choice.held_out) == set(choice.fits) == {1, 2, 6}
    assert choice.held_out[choice.num_states] == max(choice.held_out.values())
    truth = hs.log_likelihood(process, observations[8:]).sum().item() / observations[8:].numel()
    assert choice.held_out[2] > choice.held_out[1]
    assert choice.held_out[2] == pytest.approx(truth, abs=0.02)
    assert choice.held_out[2] == pytest.approx(
        hs.log_likelihood(choice.fits[2].hmm, observations[8:]).mean().item() / 400, rel=1e-12
    )


def test_a_stream_is_fitted_nearly_as_well_as_a_batch():
    process, observations = casino(200, count=200)
    start = fit_baum_welch(observations[:1], 2, 6, num_restarts=1, max_iterations=1).hmm
    streamed = fit_stream(observations.split(10), start)
    fresh = hs.Corpus(process, length=200, seed=1)[0:50].observations
    before, after, truth = (hs.log_likelihood(hmm, fresh).mean() / 200 for hmm in (start, streamed, process))
    assert after > before
    assert after > truth - 0.02
    one = fit_stream([observations], start, pseudo_count=0.0)
    step = fit_baum_welch(observations, 2, 6, start=start, num_restarts=1, max_iterations=1, pseudo_count=0.0)
    assert one.digest == step.hmm.digest  # a single batch is a step


def test_a_start_that_forbids_the_data_is_refused():
    start = hs.HMM([1.0], [[1.0]], [[1.0, 0.0]])
    with pytest.raises(
        InputError, match=r"^start: forbids observations\[1\], and expectation maximisation keeps zeros$"
    ):
        fit_baum_welch(torch.tensor([[0, 0], [0, 1]]), 1, 2, start=start, num_restarts=1)
    matrices, sequence = revived()
    sequences = torch.tensor([[*sequence, 2], [*sequence, 1]])  # gone over again with care, and impossible all the same
    with pytest.raises(InputError, match=r"^start: forbids observations\[1\]"):
        fit_baum_welch(sequences, 2, 3, start=hs.HMM(*matrices), num_restarts=1)


def test_bad_requests_are_refused():
    observations = torch.zeros(1, 3, dtype=torch.int64)
    for call, message in (
        (lambda: fit_baum_welch(observations, 0, 2), r"^num_states: must be at least 1, got 0$"),
        (lambda: fit_baum_welch(observations, 2, 2, pseudo_count=-1.0), r"^pseudo_count: must be at least 0"),
        (lambda: fit_baum_welch(observations + 5, 2, 2), r"^observations\[0, 0\]: symbol 5 "),
        (lambda: fit_baum_welch(observations[:, :0], 2, 2), r"^observations: must hold at least one"),
        (lambda: fit_baum_welch(observations, 2, 2, tolerance=-1.0), r"^tolerance: must be at least 0"),
        (lambda: fit_baum_welch(observations, 2, 2, fixed=["emission"]), r"^fixed: needs a start"),
        (lambda: fit_baum_welch(observations, 2, 2, fixed=["emissions"]), r"^fixed: must be among initial, "),
        (
            lambda: fit_baum_welch(observations, 2, 2, tied_emissions=[0, 2]),
            r"^tied_emissions: must be 2 class numbers",
        ),
        (
            lambda: fit_baum_welch(observations, 3, 2, start=hs.load_process("dishonest-casino")),
            r"^start: must have 3 ",
        ),
        (lambda: choose_num_states(observations, observations, [], 2), r"^candidates: must hold at least one"),
        (lambda: choose_num_states(observations, observations[:0], [1], 2), r"^held_out: must hold at least one"),
        (lambda: fit_stream([], hs.load_process("dishonest-casino")), r"^batches: must hold at least one"),
        (lambda: fit_stream([], hs.load_process("dishonest-casino"), exponent=0.5), r"^exponent: must be in "),
        (lambda: baum_welch_predictions(observations, 2, 2, [3]), r"^positions: must be in \[0, 3\), got \[3\]$"),
    ):
        with pytest.raises(InputError, match=message):
            call()
