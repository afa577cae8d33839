"""Expectation maximisation: against hmmlearn, with fixed and tied parts, on streams, and as an in-context baseline."""

import itertools
from collections import namedtuple

import numpy as np
import pytest
import torch

import hmmscope as hs
from hmmscope.errors import InputError
from hmmscope.inference.baum_welch import baum_welch_predictions, fit_baum_welch, fit_stream
from hmmscope.inference.loop_inputs import flat_sequences
from hmmscope.inference.restarts import RestartSearch, on_threads
from inference_cases import planted, planted_hmm, revived
from strategies import rows


def casino(length, count=4):
    process = hs.load_process("dishonest-casino")
    return process, hs.ProcessDataset(process, length=length)[0:count].observations


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
    options = {"num_restarts": 3, "max_iterations": 400, "tolerance": 1e-3, "callback": heard.append}
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
    parts = (start.initial, start.transition, start.emission)
    model.startprob_, model.transmat_, model.emissionprob_ = (part.numpy().copy() for part in parts)
    flat = torch.cat([row[:length] for row, length in zip(observations, lengths, strict=True)])[:, None].numpy()
    model.fit(flat, lengths)
    return model, model.score(flat, lengths)


@pytest.mark.long
@pytest.mark.parametrize("num_states", [3, 40])
def test_the_same_optimum_as_hmmlearn(num_states):
    """Few states in compiled loops, many in matrix products; sequences of unequal lengths; zeros stay zeros."""
    true = hs.make_process("random-hmm", num_states=3, num_symbols=4)
    observations = hs.ProcessDataset(true, length=50)[0:12].observations
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
        (ours.hmm.initial, model.startprob_),
        (ours.hmm.transition, model.transmat_),
        (ours.hmm.emission, model.emissionprob_),
    ):
        np.testing.assert_allclose(found, other, rtol=0, atol=1e-8)
    assert (ours.hmm.transition[torch.from_numpy(transition == 0)] == 0).all()


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


def test_restarts_end_when_the_best_two_agree_and_that_does_not_depend_on_threads():
    _, observations = casino(300)
    kept = fit_baum_welch(observations, 2, 6)
    assert kept.restarts_agree
    assert kept.restart_gap < 0.1
    assert 3 <= kept.num_restarts < 12
    fewer = fit_baum_welch(observations, 2, 6, num_restarts=kept.num_restarts)  # those not made change nothing
    assert (fewer.hmm.digest, fewer.restart_gap, fewer.num_restarts) == (
        kept.hmm.digest,
        kept.restart_gap,
        kept.num_restarts,
    )
    if kept.num_restarts > 3:
        assert not fit_baum_welch(observations, 2, 6, num_restarts=kept.num_restarts - 1).restarts_agree
    never = fit_baum_welch(observations[:1, :50], 5, 6, num_restarts=4, max_iterations=3, num_tries=1)
    assert (never.num_restarts, never.restarts_agree) == (4, False)
    assert never.restart_gap >= 0.1
    alone = fit_baum_welch(observations, 2, 6, num_restarts=1)
    assert (alone.num_restarts, alone.restart_gap, alone.restarts_agree) == (1, np.inf, False)
    try:
        for threads in (2, 5):
            torch.set_num_threads(threads)
            again = fit_baum_welch(observations, 2, 6)
            assert (again.hmm.digest, again.num_restarts, again.bic) == (kept.hmm.digest, kept.num_restarts, kept.bic)
    finally:
        torch.set_num_threads(1)


def test_the_order_of_restarts_decides_which_count():
    """Those that ran beside each other and come after the agreement are left out, although one of them is better."""
    scores = [-9.0, -7.0, -8.0, -7.05, -1.0, -1.0]
    End = namedtuple("End", "log_likelihood")
    for threads in (1, 2, 3, 6):
        found = RestartSearch(on_threads(lambda number: End(scores[number]), threads), 6, (threads, threads), 0.1)
        assert [end.log_likelihood for end in found.ends] == scores[:4]
        assert (found.best.log_likelihood, found.restarts_agree) == (-7.0, True)
        assert found.restart_gap == pytest.approx(0.05)
    last = RestartSearch(lambda numbers: [End(scores[number]) for number in numbers], 3, (2, 2), 0.1)
    assert (len(last.ends), last.made, last.restarts_agree) == (3, 3, False)
    close = [-7000.0, -7000.000000001, -6999.999999999]  # the last bits decide nothing: the first of equals is the best
    ends = [End(score) for score in close]
    assert RestartSearch(on_threads(ends.__getitem__, 1), 3, (1, 1), 0.1).best is ends[0]


def test_a_poor_first_maximum_is_left_behind():
    """Five planted states, of which a single start at random finds four or fewer in most cases."""
    flat, lengths = planted(5, 6, seed=0)
    work = flat_sequences(flat, lengths)
    single = [fit_baum_welch(work, 5, 6, num_restarts=1, num_tries=1, seed=seed).log_likelihood for seed in range(3)]
    searched = fit_baum_welch(work, 5, 6)
    assert searched.restarts_agree
    assert searched.log_likelihood > min(single) + 50
    assert searched.log_likelihood > max(single) - 0.1
    assert (
        searched.log_likelihood
        > hs.filter_beliefs(planted_hmm(5, 6), torch.from_numpy(flat.reshape(10, -1))).log_likelihood.sum()
    )


def test_the_criterion_counts_what_is_free():
    """Parts by what they are seen in: sequences, moves, observations; zeros, fixed and tied parts are not free."""
    process, observations = casino(40, count=3)
    options = {"num_restarts": 1, "max_iterations": 2}
    sequences, moves, seen = np.log(3), np.log(3 * 39), np.log(120)

    def penalty(**more):
        fit = fit_baum_welch(observations, 2, 6, **options, **more)
        return fit.bic + 2 * fit.log_likelihood

    assert penalty() == pytest.approx(sequences + 2 * moves + 10 * seen, rel=1e-12)
    assert penalty(start=process, fixed=["emission"]) == pytest.approx(sequences + 2 * moves, rel=1e-12)
    assert penalty(tied_emissions=[0, 0]) == pytest.approx(sequences + 2 * moves + 5 * seen, rel=1e-12)
    start = hs.HMM([1, 0], [[0.5, 0.5], [0, 1]], process.emission)
    assert penalty(start=start) == pytest.approx(moves + 10 * seen, rel=1e-12)
    lonely = fit_baum_welch(observations[:, :1], 2, 6, **options)  # no move at all
    assert lonely.bic + 2 * lonely.log_likelihood == pytest.approx((1 + 10) * np.log(3), rel=1e-12)


def test_fixed_and_tied_parts():
    process, observations = casino(200)
    options = {"num_restarts": 2, "max_iterations": 10}
    kept = fit_baum_welch(observations, 2, 6, start=process, fixed=["emission", "initial"], **options)
    assert torch.equal(kept.hmm.emission, process.emission)
    assert torch.equal(kept.hmm.initial, process.initial)
    assert not torch.equal(kept.hmm.transition, process.transition)
    tied = fit_baum_welch(observations, 3, 6, tied_emissions=[0, 1, 0], **options).hmm.emission
    assert torch.equal(tied[0], tied[2])
    assert not torch.equal(tied[0], tied[1])


def test_a_stream_is_fitted_nearly_as_well_as_a_batch():
    process, observations = casino(200, count=200)
    start = fit_baum_welch(observations[:1], 2, 6, num_restarts=1, max_iterations=1).hmm
    streamed = fit_stream(observations.split(10), start)
    fresh = hs.ProcessDataset(process, length=200, seed=1)[0:50].observations
    before, after, truth = (hs.log_likelihood(hmm, fresh).mean() / 200 for hmm in (start, streamed, process))
    assert after > before
    assert after > truth - 0.02
    one = fit_stream([observations], start, pseudo_count=0.0)
    step = fit_baum_welch(observations, 2, 6, start=start, num_restarts=1, max_iterations=1, pseudo_count=0.0)
    assert one.digest == step.hmm.digest  # a single batch is a step


def test_a_start_that_forbids_the_data_is_refused():
    start = hs.HMM([1.0], [[1.0]], [[1.0, 0.0]])
    with pytest.raises(
        InputError,
        match=r"^observations\[1\]: has probability zero under start, .* and EM keeps zeros; change these options$",
    ):
        fit_baum_welch(torch.tensor([[0, 0], [0, 1]]), 1, 2, start=start, num_restarts=1)
    matrices, sequence = revived()
    sequences = torch.tensor([[*sequence, 2], [*sequence, 1]])  # gone over again with care, and impossible all the same
    with pytest.raises(InputError, match=r"^observations\[1\]: has probability zero under start"):
        fit_baum_welch(sequences, 2, 3, start=hs.HMM(*matrices), num_restarts=1)


def test_bad_requests_are_refused():
    observations = torch.zeros(1, 3, dtype=torch.int64)
    for call, message in (
        (lambda: fit_baum_welch(observations, 0, 2), r"^num_states: must be at least 1, got 0$"),
        (lambda: fit_baum_welch(observations, 2, 2, pseudo_count=-1.0), r"^pseudo_count: must be at least 0"),
        (lambda: fit_baum_welch(observations + 5, 2, 2), r"^observations\[0, 0\]: symbol 5 "),
        (lambda: fit_baum_welch(observations[:, :0], 2, 2), r"^observations: must contain at least one observation"),
        (lambda: fit_baum_welch(observations, 2, 2, tolerance=-1.0), r"^tolerance: must be at least 0"),
        (lambda: fit_baum_welch(observations, 2, 2, fixed=["emission"]), r"^fixed: must be empty if start is None"),
        (lambda: fit_baum_welch(observations, 2, 2, fixed=["emissions"]), r"^fixed: must be among initial, "),
        (
            lambda: fit_baum_welch(observations, 2, 2, tied_emissions=[0, 2]),
            r"^tied_emissions: must be 2 class numbers",
        ),
        (
            lambda: fit_baum_welch(observations, 3, 2, start=hs.load_process("dishonest-casino")),
            r"^start: must be an HMM of 3 ",
        ),
        (lambda: fit_baum_welch(observations, 2, 2, num_tries=0), r"^num_tries: must be at least 1, got 0$"),
        (lambda: fit_baum_welch(observations, 2, 2, agreement=-1.0), r"^agreement: must be at least 0"),
        (lambda: fit_stream([], hs.load_process("dishonest-casino")), r"^batches: must contain at least one"),
        (lambda: fit_stream([], hs.load_process("dishonest-casino"), exponent=0.5), r"^exponent: must be in "),
        (lambda: baum_welch_predictions(observations, 2, 2, [3]), r"^positions: must be in \[0, 3\), got \[3\]$"),
    ):
        with pytest.raises(InputError, match=message):
            call()
