"""The compiled family of exact inference: what no other module asks of it. Counts, underflow, lanes, precision, -inf."""

import gc
import math
import weakref

import numpy as np
import pytest
import torch

import hmmscope as hs
import oracles
from comparing import close, floats
from hmmscope.errors import InputError
from hmmscope.inference import loop_inputs as tables
from hmmscope.inference.forward import forward_steps
from hmmscope.inference.smoothing import expected_counts, smooth_pairs
from inference_cases import close_logs, path_cases, revived, symbols
from strategies import Matrices, as_labelled, dense, rows, some_starts, with_zeros


def summed(pairs, starts):
    """Pairs over time, restarts aside."""
    kept = torch.tensor([not start for start in starts[1:]], dtype=torch.float64)
    return (pairs * kept[:, None, None]).sum(1)


def test_expected_counts_equal_enumeration():
    checked = 0
    for hmm, observations, starts, all_paths in path_cases(7, 120):
        possible = torch.tensor([bool(paths) for paths in all_paths])
        if isinstance(hmm, hs.LabelledHMM):
            continue
        if not possible.all():
            with pytest.raises(InputError, match=r"^observations\[\d\]: the sequence has probability zero, so"):
                expected_counts(hmm, observations, reset_mask=starts)
            observations = observations[possible]
        first, visits = np.zeros(hmm.num_states), np.zeros((hmm.num_states, hmm.num_symbols))
        moves, time = np.zeros((hmm.num_states, hmm.num_states)), observations.shape[1]
        begins = starts or oracles.first_only(range(time))
        kept = [paths for paths in all_paths if paths]
        for sequence, paths in zip(observations.tolist(), kept, strict=True):
            smoothed = oracles.smoothed_from_paths(paths, hmm.num_states, time)
            single, pairs = (np.array(floats(part)) for part in smoothed)
            for t, symbol in enumerate(sequence):
                first += single[t] * begins[t]
                visits[:, symbol] += single[t]
                if t and not begins[t]:
                    moves += pairs[t - 1]
        found = expected_counts(hmm, observations, reset_mask=starts)
        close(found.initial, first)
        close(found.emissions, visits)
        close(found.transitions, moves)
        checked += len(kept)
    assert checked > 60


@pytest.mark.parametrize("num_states", [5, 40, 65])
def test_counts_are_sums_of_the_smoother(num_states):
    """Every road, unequal lengths, restarts, and sequences that are gone over again with care."""
    rng = np.random.default_rng(num_states)
    hmm = hs.HMM(*dense(rng, num_states, 3))
    observations, starts = symbols(rng, 9, 30, 3), some_starts(rng, 30)
    lengths = [30, 3, 0, 30, 17, 1, 30, 29, 12]
    found = expected_counts(hmm, observations, reset_mask=starts, lengths=lengths)
    smoothed = smooth_pairs(hmm, observations, reset_mask=starts, lengths=lengths)
    np.testing.assert_allclose(found.initial, smoothed.beliefs[:, starts].sum((0, 1)), rtol=1e-11)
    np.testing.assert_allclose(found.transitions, summed(smoothed.pairs, starts).sum(0), rtol=1e-11)
    visits = torch.stack([smoothed.beliefs[observations == v].sum(0) for v in range(3)], 1)
    np.testing.assert_allclose(found.emissions, visits, rtol=1e-11)
    close_logs(found.log_likelihood, smoothed.log_likelihood)


def test_counts_of_what_seemed_impossible():
    matrices, sequence = revived(60)
    found = expected_counts(hs.HMM(*matrices), torch.tensor([sequence, [0] * len(sequence)]))
    np.testing.assert_allclose(found.transitions.diagonal(), [62.0, 62.0], rtol=1e-9)
    np.testing.assert_allclose(found.initial, [1.0, 1.0], rtol=1e-9)


@pytest.mark.usefixtures("unchecked")
def test_counts_need_states_that_emit():
    with pytest.raises(
        InputError, match=r"^hmm: must be an HMM whose states emit the observations, got 'LabelledHMM'$"
    ):
        expected_counts(hs.make_process("mess3"), torch.zeros(1, 2, dtype=torch.int64))


@pytest.mark.parametrize("batch", [1, 3, 4, 5, 31, 32, 33, 70])
def test_any_number_of_lanes(batch):
    """Each sequence as if it were alone: filter, smoother, likeliest path; both forms of processes."""
    rng = np.random.default_rng(batch)
    matrices = with_zeros(rng, 4, 3)
    observations = symbols(rng, batch, 9, 3)
    for hmm in (hs.HMM(*matrices), hs.LabelledHMM(*as_labelled(matrices))):
        whole, paths = hs.filter_beliefs(hmm, observations), hs.most_likely_states(hmm, observations)
        smoothed = hs.smooth_beliefs(hmm, observations)
        for b in {0, batch // 2, batch - 1}:
            one = observations[b : b + 1]
            close(hs.filter_beliefs(hmm, one).beliefs[0], whole.beliefs[b])
            close(hs.smooth_beliefs(hmm, one)[0], smoothed[b])
            assert torch.equal(hs.most_likely_states(hmm, one).states[0], paths.states[b])


@pytest.mark.long
@pytest.mark.parametrize("num_states", [6, 40])
def test_both_roads_of_every_answer(num_states, monkeypatch):
    """Loops over lanes and matrix products give the same answers, and those of the plain recursion."""
    rng = np.random.default_rng(num_states)
    hmm, starts = hs.HMM(*with_zeros(rng, num_states, 5)), torch.tensor(some_starts(rng, 25))
    observations = hmm.sample_paths(np.arange(12), starts.numpy(), 0).observations
    observations[3] = torch.from_numpy(rng.integers(0, 5, 25))
    found = []
    for few in (1, 64):
        monkeypatch.setattr(tables, "FEW_STATES", few)
        with tables.over_lanes():
            record = smooth_pairs(hmm, observations, reset_mask=starts)
            filtered = hs.filter_beliefs(hmm, observations, reset_mask=starts)
            found.append([record.beliefs, record.pairs, filtered.beliefs])
    for one, other in zip(*found, strict=True):
        close(one, other, relative=1e-10)
    steps = forward_steps(hmm.params, observations[None], starts)
    close(found[0][2], torch.stack([step.belief[0] for step in steps], 1), relative=1e-10)


def test_products_of_any_number_of_threads_and_rows_give_the_same_digits():
    """130 sequences of several lengths are blocks of whole tiles and a rest; a sequence alone is a tile of one row."""
    rng = np.random.default_rng(8)
    hmm = hs.HMM(*with_zeros(rng, 40, 5))
    observations = hmm.sample_paths(np.arange(130), np.arange(12) == 0, 0).observations
    lengths = torch.from_numpy(rng.integers(3, 13, 130))
    found = []
    before = torch.get_num_threads()
    try:
        for num_threads in (1, 2, 5):
            torch.set_num_threads(num_threads)
            counts = expected_counts(hmm, observations, lengths=lengths)
            smoothed = hs.smooth_beliefs(hmm, observations, lengths=lengths)
            found.append([counts.transitions, counts.log_likelihood, smoothed])
    finally:
        torch.set_num_threads(before)
    for other in found[1:]:
        assert all(torch.equal(one, again) for one, again in zip(found[0], other, strict=True))
    three = slice(7, 10)
    beliefs = hs.filter_beliefs(hmm, observations, lengths=lengths).beliefs
    again = hs.filter_beliefs(hmm, observations[three], lengths=lengths[three]).beliefs
    assert torch.equal(beliefs[three], again)


def test_windows_of_many_states_by_products_and_over_lanes(monkeypatch):
    rng = np.random.default_rng(9)
    hmm = hs.HMM(*with_zeros(rng, 40, 3))
    observations = hmm.sample_paths(np.arange(20), np.arange(15) == 0, 0).observations
    found = []
    for few in (1, 64):
        monkeypatch.setattr(tables, "FEW_STATES", few)
        record = hs.memory_beliefs(hmm, observations, 5)
        found.append([record.beliefs, record.next_observation])
    for one, other in zip(*found, strict=True):
        close(one, other, relative=1e-10)


def test_tiny_likelihoods_for_a_hundred_thousand_steps():
    """Each step has probability 2^-32: far below every float, and exact all the same."""
    tiny, time = 2.0**-32, 10**5
    hmm = hs.HMM([0.5, 0.5], [[0.5, 0.5], [0.5, 0.5]], [[tiny, 1 - tiny], [tiny, 1 - tiny]])
    observations = torch.zeros(1, time, dtype=torch.int64)
    expected = -32 * math.log(2) * time
    assert hs.filter_beliefs(hmm, observations).log_likelihood.item() == pytest.approx(expected, rel=1e-12)
    assert expected_counts(hmm, observations).log_likelihood.item() == pytest.approx(expected, rel=1e-12)
    assert hs.smooth_beliefs(hmm, observations).unique().tolist() == [0.5]
    assert hs.most_likely_states(hmm, observations).log_probability.item() == pytest.approx(
        expected - time * math.log(2), rel=1e-12
    )
    apart = hs.HMM([0.5, 0.5], np.eye(2), [[0.5, 0.5, 0.0], [tiny, 0.0, 1 - tiny]])
    ended = torch.cat([torch.zeros(time, dtype=torch.int64), torch.tensor([2])])[None]
    assert hs.filter_beliefs(apart, ended).log_likelihood.item() == pytest.approx(expected + math.log(0.5 * (1 - tiny)))
    assert hs.smooth_beliefs(apart, ended)[0].unique(dim=0).tolist() == [[0.0, 1.0]]


def test_what_is_outweighed_slowly_is_not_lost():
    """No single step is unlikely, but over a thousand steps one state loses 10^600, and then wins it back."""
    emission = [[0.75, 0.25], [0.25, 0.75]]
    hmm = hs.HMM([0.5, 0.5], np.eye(2), emission)
    observations = torch.tensor([[0] * 1300 + [1] * 1400])
    log_odds = 100 * math.log(3)
    for few in (hmm, hs.HMM(*split(hmm, 32))):
        for dtype, budget in ((torch.float64, 1e-12), (torch.float32, 1e-6)):
            if dtype == torch.float32 and few is not hmm:
                continue  # matrix products in float32 notice only what vanishes in one step
            found = hs.log_likelihood(few, observations, dtype=dtype).item()
            expected = math.log(0.5) + 1300 * math.log(0.25) + 1400 * math.log(0.75) + math.log1p(math.exp(-log_odds))
            assert found == pytest.approx(expected, rel=budget)


def split(hmm, copies):
    clone = np.repeat(np.arange(hmm.num_states), copies)
    rows_of = (hmm.initial.numpy(), hmm.transition.numpy(), hmm.emission.numpy())
    return Matrices(rows_of[0][clone] / copies, rows_of[1][np.ix_(clone, clone)] / copies, rows_of[2][clone])


@pytest.mark.parametrize("num_states", [4, 40])
def test_impossible_is_exactly_so_and_said_where(num_states):
    rng = np.random.default_rng(3)
    emission = np.column_stack([rows(rng, num_states, 3), np.zeros(num_states)])
    hmm = hs.HMM(rows(rng, 1, num_states)[0], rows(rng, num_states, num_states), emission)
    observations = symbols(rng, 40, 20, 3)
    places = rng.integers(0, 20, 40)
    observations[torch.arange(40), torch.from_numpy(places)] = 3
    observations[7] = 0
    places[7] = -1
    result = hs.filter_beliefs(hmm, observations)
    assert result.impossible_at.tolist() == places.tolist()
    dead = places >= 0
    assert (result.log_likelihood[dead] == -math.inf).all()
    for answer in (*vars(result).values(), hs.smooth_beliefs(hmm, observations)):
        assert not torch.isnan(answer).any()
    assert not hs.smooth_beliefs(hmm, observations)[dead].any()
    assert (hs.most_likely_states(hmm, observations).states[dead] == -1).all()
    assert (hs.log_likelihood(hmm, observations)[dead] == -math.inf).all()


@pytest.mark.parametrize("kind", ["many", "few"])
def test_float32_within_its_budget(kind):
    hmm = hs.make_process("random-hmm", num_states=8 if kind == "few" else 64, num_symbols=5)
    observations = hs.ProcessDataset(hmm, length=2000)[0:40].observations
    exact = hs.log_likelihood(hmm, observations)
    assert ((hs.log_likelihood(hmm, observations, dtype=torch.float32) - exact) / exact).abs().max() < 1e-6


def test_mixtures_of_few_states_know_the_unlikeliest_component():
    """Posteriors far below every float come back, and both functions give one answer."""
    one, other = hs.HMM([1.0], [[1.0]], [[0.75, 0.25]]), hs.HMM([1.0], [[1.0]], [[0.25, 0.75]])
    mixture = hs.Mixture([0.5, 0.5], [one, other])
    observations = torch.tensor([[0] * 1300 + [1] * 1300, [0] * 2600])
    found = hs.filter_mixture(mixture, observations)
    close(found.component_posterior[0, -1], [0.5, 0.5], relative=1e-10)
    assert found.component_posterior[1, -1].tolist() == [1.0, 0.0]
    again = hs.mixture_predictions(mixture, observations)
    assert torch.equal(again.log_likelihood_terms, found.log_likelihood_terms)
    assert torch.equal(again.predicted_observation[:, 1:], found.next_observation[:, :-1])


def test_tables_of_a_small_process_are_kept_as_long_as_it_is():
    hmm = hs.HMM([0.5, 0.5], [[0.75, 0.25], [0.5, 0.5]], [[1.0, 0.0], [0.25, 0.75]])
    kept = weakref.ref(tables.tables(hmm.params))
    hs.log_likelihood(hmm, [[0, 1, 1]])
    assert tables.tables(hmm.params) is kept()
    assert tables.tables(hmm.params, dtype=np.float32).first.dtype == np.float32
    assert kept().least == pytest.approx(0.25)
    del hmm
    gc.collect()
    assert kept() is None
