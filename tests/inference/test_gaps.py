"""Missing observations are summed over: against enumeration of all that may have been there, on every road."""

import itertools
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import hmmscope as hs
import oracles
from comparing import close, floats
from hmmscope.errors import InputError
from hmmscope.inference.baum_welch import fit_baum_welch
from hmmscope.inference.device import log_likelihood_there, mixture_predictions_there
from hmmscope.inference.fast import belief_states
from hmmscope.inference.forward import forward_steps
from hmmscope.inference.loop_inputs import over_lanes
from hmmscope.inference.smoothing import smooth_pairs
from hmmscope.processes.params import seeing
from inference_cases import close_logs, per_token_logs, planted_hmm, random_mixture
from strategies import dense, likely, small_hmm, small_labelled, tiny_entries, with_zeros

SEEDS = st.integers(0, 2**31)


def with_gaps(rng, time, num_symbols, share=0.5):
    """A sequence with None where nothing was observed."""
    return [None if rng.random() < share else int(rng.integers(num_symbols)) for _ in range(time)]


def encoded(observations):
    return torch.tensor([[hs.MISSING if seen is None else seen for seen in observations]])


def case(seed):
    """A small process of either kind, in fractions too, and a sequence with gaps."""
    rng = np.random.default_rng(seed)
    labelled = bool(rng.integers(2))
    arrays = small_labelled(rng) if labelled else small_hmm(rng)
    hmm = hs.LabelledHMM(*arrays) if labelled else hs.HMM(*arrays)
    paths = oracles.enumerate_labelled_paths if labelled else oracles.enumerate_hidden_paths
    seen = with_gaps(rng, int(rng.integers(1, 5)), hmm.num_symbols)
    starts = [True, *(bool(rng.random() < 0.2) for _ in seen[1:])]
    exact = oracles.exact(arrays)

    def joint(some):
        """P(path, what was observed of `some`) of every hidden path; the sequence may be one longer."""
        return oracles.paths_with_gaps(paths, exact, some, hmm.num_symbols, [*starts, False][: len(some)])

    return hmm, seen, starts, joint


@settings(max_examples=15, deadline=None)
@given(SEEDS)
def test_the_filter_is_that_of_all_completions(seed):
    hmm, seen, starts, joint = case(seed)
    sums = [joint(seen[: t + 1]) for t in range(len(seen))]
    prefix = [sum(paths.values(), Fraction(0)) for paths in sums]
    belief = [
        [
            sum((p for path, p in paths.items() if path[-1] == s), Fraction(0)) / (total or 1)
            for s in range(hmm.num_states)
        ]
        for paths, total in zip(sums, prefix, strict=True)
    ]
    last = [sum(joint([*seen, v]).values(), Fraction(0)) / (prefix[-1] or 1) for v in range(hmm.num_symbols)]
    mask, tokens = torch.tensor(starts), encoded(seen)
    found = hs.filter_beliefs(hmm, tokens, reset_mask=mask)
    close(found.beliefs[0], floats(belief))
    close_logs(found.log_likelihood_terms[0], per_token_logs(prefix))
    close(found.next_observation[0, -1], floats(last))
    close(belief_states(hmm, tokens, reset_mask=mask)[0], floats(belief))
    with over_lanes():
        torch.testing.assert_close(
            hs.filter_beliefs(hmm, tokens, reset_mask=mask).beliefs, found.beliefs, rtol=1e-12, atol=0
        )
    if not any(starts[1:]):
        whole = hs.log_likelihood(hmm, tokens)
        torch.testing.assert_close(whole, found.log_likelihood, rtol=1e-12, atol=1e-14)
    law = seeing(hmm.params, torch.tensor([hmm.num_symbols]))
    checked = tokens.masked_fill(tokens == hs.MISSING, hmm.num_symbols)
    steps = [step.belief[0, 0] for step in forward_steps(law, checked[None], mask)]
    torch.testing.assert_close(torch.stack(steps), found.beliefs[0], rtol=1e-12, atol=0)


@settings(max_examples=15, deadline=None)
@given(SEEDS)
def test_all_that_is_known_given_everything(seed):
    """Smoother, pairs, likeliest path, expected counts, and the law of what was not seen."""
    hmm, seen, starts, joint = case(seed)
    paths, mask, tokens = joint(seen), torch.tensor(starts), encoded(seen)
    single, pairs = oracles.smoothed_from_paths(paths, hmm.num_states, len(seen))
    found = smooth_pairs(hmm, tokens, reset_mask=mask)
    close(found.beliefs[0], floats(single))
    apart = [t for t in range(len(seen) - 1) if not starts[t + 1]]
    close(found.pairs[0, apart], np.array(floats(pairs)).reshape(-1, hmm.num_states, hmm.num_states)[apart])
    best = hs.most_likely_states(hmm, tokens, reset_mask=mask)
    if not paths:
        assert best.states.tolist() == [[-1] * len(seen)]
        assert hs.missing_probs(hmm, tokens, reset_mask=mask).sum() == 0
        assert (hs.sample_missing(hmm, tokens, reset_mask=mask) == -1).all()
        return
    path = tuple(best.states[0].tolist())
    assert float(best.log_probability[0]) == pytest.approx(oracles.log_of(max(paths.values())), abs=1e-9)
    assert float(paths[path] / max(paths.values())) == pytest.approx(1, abs=1e-9)
    total = sum(paths.values())
    laws = [
        [
            sum(joint([*seen[:t], v, *seen[t + 1 :]]).values(), Fraction(0)) / total
            if gap is None
            else Fraction(gap == v)
            for v in range(hmm.num_symbols)
        ]
        for t, gap in enumerate(seen)
    ]
    computed = hs.missing_probs(hmm, tokens, reset_mask=mask)[0]
    torch.testing.assert_close(computed, torch.tensor(floats(laws), dtype=torch.float64), rtol=1e-10, atol=1e-13)
    assert not computed[torch.tensor(floats(laws)) == 0].any()
    for drawn in hs.sample_missing(hmm, tokens, reset_mask=mask, num_draws=3, seed=1)[:, 0].tolist():
        assert joint(drawn)
        assert all(gap is None or gap == value for gap, value in zip(seen, drawn, strict=True))
    if isinstance(hmm, hs.HMM):
        counts = hs.expected_counts(hmm, tokens, reset_mask=mask)
        beliefs = np.array(floats(single))
        visits = np.zeros((hmm.num_states, hmm.num_symbols))
        for t, symbol in enumerate(seen):
            if symbol is not None:
                visits[:, symbol] += beliefs[t]
        np.testing.assert_allclose(counts.emissions, visits, atol=1e-12)
        np.testing.assert_allclose(counts.initial, beliefs[starts].sum(0), atol=1e-12)
        moves = np.array(floats(pairs)).reshape(-1, hmm.num_states, hmm.num_states)[apart].sum(0)
        np.testing.assert_allclose(counts.transitions, moves, atol=1e-12)


def test_draws_have_the_law_of_the_gap():
    hmm = hs.HMM([0.5, 0.5], [[0.9, 0.1], [0.3, 0.7]], [[0.7, 0.2, 0.1], [0.1, 0.1, 0.8]])
    tokens = encoded([0, None, 2, None])
    drawn = hs.sample_missing(hmm, tokens, num_draws=20000, seed=3)[:, 0]
    law = hs.missing_probs(hmm, tokens)[0]
    for t in (1, 3):
        share = torch.bincount(drawn[:, t], minlength=3) / len(drawn)
        assert (share - law[t]).abs().max() < 5 * 0.5 / 20000**0.5  # five standard errors
    assert torch.equal(
        hs.sample_missing(hmm, tokens, num_draws=5, seed=3), hs.sample_missing(hmm, tokens, num_draws=9, seed=3)[:5]
    )


@settings(max_examples=10, deadline=None)
@given(SEEDS)
def test_a_finite_memory_sums_over_the_gaps_in_its_window(seed):
    hmm, seen, _, _ = case(seed)
    prior = hmm.initial
    kept = hs.memory_beliefs(hmm, encoded(seen), 2, prior=prior)
    for t in range(len(seen)):
        window = hs.filter_beliefs(hmm, encoded(seen[max(0, t - 1) : t + 1]))
        close(kept.beliefs[0, t], window.beliefs[0, -1])
        close(kept.next_observation[0, t], window.next_observation[0, -1], relative=1e-10)
    missing = torch.tensor([gap is None for gap in seen])
    assert all(term in (0, -torch.inf) for term in kept.log_likelihood_terms[0, missing].tolist())


@pytest.mark.parametrize("kind", ["states emit", "transitions emit"])
def test_what_a_mixture_did_not_show(kind):
    """Laws and draws of gaps, against the sum over all completions and components."""
    if kind == "states emit":
        parts = [hs.HMM(*with_zeros(np.random.default_rng(n), 2, 3)) for n in (5, 6)]
    else:
        parts = [hs.make_process("mess3", switch=switch) for switch in (0.05, 0.2)]
    mixture = hs.Mixture([0.3, 0.7], parts)
    size, seen = mixture.num_symbols, [0, None, 1, None]
    chances = {}
    for fill in itertools.product(range(size), repeat=2):
        word = torch.tensor([[0, fill[0], 1, fill[1]]])
        chances[fill] = float(hs.observe(mixture, word).log_likelihood_terms.sum().exp())
    total = sum(chances.values())
    laws = hs.missing_probs(mixture, encoded(seen))[0]
    drawn = hs.sample_missing(mixture, encoded(seen), num_draws=4000, seed=4)[:, 0]
    assert (drawn[:, [0, 2]] == torch.tensor([0, 1])).all()
    for place, t in enumerate((1, 3)):
        exact = [sum(p for fill, p in chances.items() if fill[place] == v) / total for v in range(size)]
        assert laws[t].tolist() == pytest.approx(exact, abs=1e-12)
    assert laws[0].tolist() == pytest.approx([float(v == 0) for v in range(size)], abs=1e-12)
    for fill, chance in chances.items():
        share = float((drawn[:, [1, 3]] == torch.tensor(fill)).all(1).double().mean())
        assert abs(share - chance / total) <= 4.5 * np.sqrt(chance / total / 4000)  # zero stays zero
    never = torch.tensor([[hs.MISSING, 0]])
    stuck = hs.Mixture([0.5, 0.5], [hs.HMM([1.0], [[1.0]], [[0.0, 1.0]])] * 2)
    assert hs.missing_probs(stuck, never).sum() == 0
    assert (hs.sample_missing(stuck, never) == -1).all()
    zeros = hs.HMM([1.0], [[1.0]], [[1.0, 0.0]])
    unlikely = hs.Mixture([0.0, 1.0], [zeros, hs.HMM([1.0], [[1.0]], [[0.0, 1.0]])])  # only one of weight 0 explains it
    assert (hs.sample_missing(unlikely, never) == -1).all()


@settings(max_examples=10, deadline=None)
@given(SEEDS)
def test_a_mixture_finds_its_component_across_gaps(seed):
    rng = np.random.default_rng(seed)
    weights, hmms = random_mixture(rng)[:2]
    mixture = hs.Mixture(weights, [hs.HMM(*one) for one in hmms])
    seen = with_gaps(rng, 4, mixture.num_symbols)
    found = hs.filter_mixture(mixture, encoded(seen))
    exact = [oracles.exact(one) for one in hmms]
    joint = [
        Fraction(float(w))
        * sum(oracles.paths_with_gaps(oracles.enumerate_hidden_paths, one, seen, mixture.num_symbols).values())
        for w, one in zip(mixture.component_weights, exact, strict=True)
    ]
    total = sum(joint, Fraction(0))
    close(found.component_posterior[0, -1], floats([mass / (total or 1) for mass in joint]))
    streamed = hs.mixture_predictions(mixture, encoded(seen), dtype=torch.float64)
    torch.testing.assert_close(streamed.log_likelihood_terms, found.log_likelihood_terms, rtol=1e-10, atol=1e-13)
    checked = encoded(seen).masked_fill(encoded(seen) == hs.MISSING, mixture.num_symbols)
    law, starts = seeing(mixture.params, checked), torch.arange(4) == 0
    there = mixture_predictions_there(law, mixture.component_weights, checked, starts, torch.float64)
    torch.testing.assert_close(there[0], streamed.predicted_observation, rtol=1e-10, atol=1e-13)
    torch.testing.assert_close(there[1], found.log_likelihood_terms, rtol=1e-10, atol=1e-13)


@settings(max_examples=10, deadline=None)
@given(SEEDS)
def test_states_and_paths_of_a_mixture_are_over_its_components(seed):
    """Smoother, likeliest path and draws with gaps, against every path of every component."""
    rng = np.random.default_rng(seed)
    weights, hmms = random_mixture(rng)[:2]
    mixture = hs.Mixture(weights, [hs.HMM(*one) for one in hmms])
    seen = with_gaps(rng, 4, mixture.num_symbols)
    enumerated = (
        oracles.paths_with_gaps(oracles.enumerate_hidden_paths, oracles.exact(one), seen, mixture.num_symbols)
        for one in hmms
    )
    joint = {
        (m, path): Fraction(float(mixture.component_weights[m])) * mass
        for m, paths in enumerate(enumerated)
        for path, mass in paths.items()
        if mass and mixture.component_weights[m]
    }
    by_path: dict[tuple, Fraction] = {}
    for (_, path), mass in joint.items():
        by_path[path] = by_path.get(path, Fraction(0)) + mass
    beliefs = hs.smooth_beliefs(mixture, encoded(seen))[0]
    found = hs.most_likely_states(mixture, encoded(seen))
    drawn = hs.sample_state_paths(mixture, encoded(seen), num_paths=20, seed=seed)[:, 0]
    if not joint:
        assert (beliefs.any(), found.log_probability, found.component) == (False, -torch.inf, -1)
        assert (found.states == -1).all()
        assert (drawn == -1).all()
        return
    close(beliefs, floats(oracles.smoothed_from_paths(by_path, mixture.num_states, len(seen))[0]))
    assert float(found.log_probability) == pytest.approx(oracles.log_of(max(joint.values())), abs=1e-9)
    told = joint[int(found.component), tuple(found.states[0].tolist())]
    assert oracles.log_of(told) == pytest.approx(float(found.log_probability), abs=1e-9)
    assert all(tuple(path) in by_path for path in drawn.tolist())
    assert torch.equal(drawn[:7], hs.sample_state_paths(mixture, encoded(seen), num_paths=7, seed=seed)[:, 0])


def test_draws_of_a_mixture_are_of_its_components_and_of_their_number():
    """Two components that never leave their state tell which one was drawn; a sequence has its draws by its number."""
    still = [hs.HMM(first, np.eye(2), [[0.5, 0.5], [0.5, 0.5]]) for first in ([1.0, 0.0], [0.0, 1.0])]
    mixture = hs.Mixture([0.3, 0.7], still)
    seen = torch.tensor([[0, hs.MISSING, 1], [1, 1, 0]])
    drawn = hs.sample_state_paths(mixture, seen, num_paths=4000, seed=2)
    assert drawn[:, 0, 0].double().mean() == pytest.approx(0.7, abs=4.5 * np.sqrt(0.21 / 4000))
    assert (drawn == drawn[..., :1]).all()
    alone = hs.sample_state_paths(mixture, seen[1:], num_paths=4000, seed=2, indices=[1])
    assert torch.equal(alone[:, 0], drawn[:, 1])
    ragged = hs.smooth_beliefs(mixture, hs.SequenceData([[0, 1, 1], [0]]))
    assert ragged[1].tolist() == [[pytest.approx(0.3), pytest.approx(0.7)], [0, 0], [0, 0]]


@pytest.mark.parametrize("size", [3, 40])
def test_many_states_and_sequences_go_the_same_way(size):
    """The roads of one sequence, of lanes and of matrix products, and those of torch on a device, agree."""
    rng = np.random.default_rng(size)
    matrices = dense(rng, size, 5)
    hmm, law = hs.HMM(*matrices), None
    batch = torch.from_numpy(rng.integers(0, 5, (40, 12))).masked_fill(
        torch.from_numpy(rng.random((40, 12)) < 0.3), hs.MISSING
    )
    found = hs.filter_beliefs(hmm, batch)
    checked = batch.masked_fill(batch == hs.MISSING, 5)
    law, starts = seeing(hmm.params, checked), torch.arange(12) == 0
    steps = list(forward_steps(law, checked[None], starts))
    torch.testing.assert_close(
        found.beliefs, torch.stack([step.belief[0] for step in steps], 1), rtol=1e-11, atol=1e-14
    )
    torch.testing.assert_close(
        log_likelihood_there(law, checked, starts, torch.float64)[0], found.log_likelihood, rtol=1e-12, atol=0
    )
    torch.testing.assert_close(hs.log_likelihood(hmm, batch), found.log_likelihood, rtol=1e-12, atol=0)
    counts, pairs = hs.expected_counts(hmm, batch), smooth_pairs(hmm, batch)
    torch.testing.assert_close(counts.transitions, pairs.pairs.sum((0, 1)), rtol=1e-9, atol=1e-10)
    seen = torch.nn.functional.one_hot(checked, 6)[..., :5].double()
    torch.testing.assert_close(
        counts.emissions, torch.einsum("bts,btv->sv", pairs.beliefs, seen), rtol=1e-9, atol=1e-10
    )
    mixture = hs.Mixture([0.5, 0.5], [hmm, hs.HMM(*dense(rng, size, 5))])
    one = hs.filter_mixture(hs.Mixture([1.0], [hmm]), batch)
    torch.testing.assert_close(one.next_observation, found.next_observation, rtol=1e-10, atol=1e-13)
    assert hs.filter_mixture(mixture, batch).component_posterior.sum(-1).sub(1).abs().max() < 1e-12


@settings(max_examples=10, deadline=None)
@given(SEEDS)
def test_what_nearly_vanishes_is_not_lost_in_a_gap(seed):
    """Steps of 2^-64 between gaps: the careful road, by a recursion in whole numbers with a symbol of probability one."""
    rng = np.random.default_rng(seed)
    matrices = tiny_entries(rng, 3, 2)
    seen = [None if rng.random() < 0.3 else v for v in likely(rng, matrices, 40)]
    odd = rng.integers(2, size=40)
    seen = [None if v is None else int(odd[t]) for t, v in enumerate(seen)]
    wide = np.concatenate([matrices.emission, np.ones((3, 1))], 1)
    logs, belief = oracles.by_forward(oracles.exact((*matrices[:2], wide)), [2 if v is None else v for v in seen])
    found = hs.filter_beliefs(hs.HMM(*matrices, allow_drop_tiny=True), encoded(seen))
    assert float(found.log_likelihood[0]) == pytest.approx(logs[-1], rel=1e-12)
    np.testing.assert_allclose(found.beliefs[0, -1], floats(belief), rtol=1e-9)


def test_a_fit_sums_over_what_is_missing():
    """The likelihood of what was seen grows, and is that of the fitted model; a gap in each sequence changes little."""
    process = planted_hmm(2, 4)
    data = hs.ProcessDataset(process, length=60, seed=3)[0:40].observations
    gone = data.masked_fill(torch.rand(data.shape, generator=torch.Generator().manual_seed(1)) < 0.2, hs.MISSING)
    short = fit_baum_welch(gone, 2, 4, num_restarts=1, max_iterations=3)
    longer = fit_baum_welch(gone, 2, 4, num_restarts=1, max_iterations=40)
    assert longer.log_likelihood > short.log_likelihood
    # quantised to multiples of 2^-32 after the fit
    assert float(hs.log_likelihood(longer.hmm, gone).sum()) == pytest.approx(longer.log_likelihood, rel=1e-7)
    whole = fit_baum_welch(data, 2, 4, num_restarts=1, max_iterations=40)
    order = [int(whole.hmm.emission[:, 0].argmax()), int(longer.hmm.emission[:, 0].argmax())]
    assert (whole.hmm.emission[order[0]] - longer.hmm.emission[order[1]]).abs().max() < 0.05
    seen = int((gone != hs.MISSING).sum())
    free = 1 * np.log(40) + 2 * np.log(40 * 59) + 6 * np.log(seen)
    assert longer.bic == pytest.approx(free - 2 * longer.log_likelihood, rel=1e-12)
    with pytest.raises(InputError, match="observations: must contain an observation that is not missing"):
        fit_baum_welch(torch.full((2, 3), hs.MISSING), 2, 4)


UMBRELLA = hs.HMM([0.5, 0.5], [[0.7, 0.3], [0.3, 0.7]], [[0.9, 0.1], [0.2, 0.8]], symbols=["rain", "sun"])


def test_what_functions_take():
    """One sequence, lists, data already read, columns with lengths, masked arrays: the same batch."""
    exact = hs.log_likelihood(UMBRELLA, torch.tensor([[0, 1, 1], [1, 0, hs.MISSING]]))
    rows = [["rain", "sun", "sun"], ["sun", "rain", "?"]]
    data = hs.SequenceData(rows, missing="?")
    other = hs.SequenceData(rows, symbols=["sun", "rain"], missing="?")
    masked = np.ma.masked_equal(np.array([[0, 1, 1], [1, 0, 9]]), 9)
    column = np.array([[0], [1], [1], [1], [0], [hs.MISSING]])
    for given_as in (data, other, masked):
        assert torch.equal(hs.log_likelihood(UMBRELLA, given_as), exact)
    for flat in (column, column[:, 0], column.T):
        assert torch.equal(hs.log_likelihood(UMBRELLA, flat, lengths=[3, 3]), exact)
        for function in (
            hs.filter_beliefs,
            hs.smooth_beliefs,
            hs.most_likely_states,
            hs.sample_state_paths,
            hs.expected_counts,
            hs.missing_probs,
        ):
            function(UMBRELLA, flat, lengths=[3, 3])
    for one in ([0, 1, 1], ["rain", "sun", "sun"], ("rain", "sun", "sun")):
        assert torch.equal(hs.log_likelihood(UMBRELLA, one), exact[:1])
    ragged = hs.filter_beliefs(UMBRELLA, [["rain", "sun", "sun"], ["sun"]])
    assert ragged.beliefs[1, 1:].sum() == 0
    assert torch.equal(ragged.log_likelihood[:1], exact[:1])


@pytest.mark.usefixtures("unchecked")
def test_a_column_is_one_sequence_as_it_is_for_a_fit():
    """(time, 1) of NumPy is read as `SequenceData` reads it; lists of one symbol are refused with both readings."""
    exact = hs.smooth_beliefs(UMBRELLA, [0, 1, 1])
    names = np.array([["rain"], ["sun"], ["sun"]])
    for column in (np.array([[0], [1], [1]]), names, names[:, 0], np.ma.masked_equal([[0], [1], [1]], 7)):
        assert torch.equal(hs.smooth_beliefs(UMBRELLA, column), exact)
        assert torch.equal(hs.observe(UMBRELLA, column).probs["belief"], hs.filter_beliefs(UMBRELLA, [0, 1, 1]).beliefs)
    assert hs.filter_beliefs(UMBRELLA, torch.tensor([[0], [1], [1]])).beliefs.shape == (3, 1, 2)  # (batch, time)
    both = r"3 lists of one symbol can be read in two ways: .* one sequence of 3 symbols.* 3 sequences of one symbol"
    with pytest.raises(InputError, match=both):
        hs.log_likelihood(UMBRELLA, [[0], [1], [1]])
    cut = hs.log_likelihood(UMBRELLA, [[0], [1], [1]], lengths=[2, 1])
    assert torch.equal(cut, hs.log_likelihood(UMBRELLA, [[0, 1], [1]]))


def test_an_observer_of_different_lengths_knows_nothing_beyond_their_end():
    mixture = hs.Mixture([0.5, 0.5], [UMBRELLA, hs.HMM([0.5, 0.5], np.eye(2), [[0.9, 0.1], [0.2, 0.8]])])
    for process in (UMBRELLA, mixture):
        found, alone = (
            hs.observe(process, np.array([[0], [1], [1], [0]]), lengths=[3, 1]),
            hs.observe(process, torch.tensor([[0]])),
        )
        for name in ("predicted_observation", "next_observation", "log_likelihood_terms"):
            close(getattr(found, name)[1, :1], getattr(alone, name)[0])
            assert not getattr(found, name)[1, 1:].any()
    with pytest.raises(
        InputError, match="lengths: must be omitted for a MarkovChainPerSample; pass sequences of equal length"
    ):
        hs.observe(hs.make_process("fresh-markov-chains"), torch.tensor([[0, 1]]), lengths=[1])


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("observations", "words"),
    [
        (
            [[0, -1]],
            r"observations\[0, 1\]: symbol -1 is not in \[0, 2\); write a missing observation as hmmscope.MISSING",
        ),
        (np.array([[0, np.nan]]), r"observations\[0, 1\]: is NaN; hmmscope.SequenceData\(X, missing='nan', axis=1\)"),
        ([[0, None]], r"sequence 1, symbol 2: is None, which is not a symbol; .*missing='none'"),
        ([["rain", "snow"], ["sun"]], "'snow' is not one of rain, sun"),
        (hs.SequenceData([["snow"]]), "'snow' is not one of the symbols rain, sun"),
    ],
)
def test_a_gap_that_nobody_named_is_refused(observations, words):
    with pytest.raises(InputError, match=words):
        hs.filter_beliefs(UMBRELLA, observations)


def test_where_no_gap_can_be_answered_for():
    with pytest.raises(
        InputError, match=r"observations\[0, 1\]: is missing, but this function accepts no missing observations"
    ):
        hs.observe(hs.make_process("fresh-markov-chains"), torch.tensor([[0, hs.MISSING]]))
    with pytest.raises(InputError, match="lengths: must be omitted, because these observations already have lengths"):
        hs.filter_beliefs(UMBRELLA, hs.SequenceData([[0, 1]]), lengths=[2])
