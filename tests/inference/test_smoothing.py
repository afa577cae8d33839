"""The smoother equals exact enumeration and keeps the laws of every correct smoother; so do batches of unequal lengths."""

import functools
import math

import numpy as np
import pytest
import torch

import hmmscope as hs
import inference_cases
import oracles
from comparing import close, floats
from hmmscope.errors import InputError
from hmmscope.inference.compiled import filter_underflow_safe
from hmmscope.inference.forward import forward_steps
from hmmscope.inference.loop_inputs import tables
from hmmscope.inference.smoothing import smooth_pairs
from hmmscope.kernels import underflow_safe
from inference_cases import close_logs, decoupled, path_cases, symbols
from strategies import Matrices, as_labelled, dense, likely, rows, some_starts, tiny_entries

random_cases = functools.partial(inference_cases.random_cases, count=30, time=10)


def test_smoothing_equals_enumeration():
    impossible = 0
    for hmm, observations, starts, all_paths in path_cases(0, 160):
        time = observations.shape[1]
        result = smooth_pairs(hmm, observations, reset_mask=starts)
        close(hs.smooth_beliefs(hmm, observations, reset_mask=starts), result.beliefs)
        for b, paths in enumerate(all_paths):
            single, pairs = oracles.smoothed_from_paths(paths, hmm.num_states, time)
            close(result.beliefs[b], floats(single))
            close(result.pairs[b], np.array(floats(pairs)).reshape(time - 1, hmm.num_states, hmm.num_states))
            assert (result.impossible_at[b] >= 0) == (not paths) == (result.log_likelihood[b] == -math.inf)
            impossible += not paths
    assert 40 < impossible < 400


def test_the_last_step_is_the_filter_and_pairs_sum_to_singles():
    """M15."""
    for rng, matrices, observations in random_cases(1):
        starts = some_starts(rng, 10)
        hmm = hs.HMM(*matrices)
        result = smooth_pairs(hmm, observations, reset_mask=starts)
        possible = result.impossible_at < 0
        filtered = hs.filter_beliefs(hmm, observations, reset_mask=starts).beliefs
        assert torch.equal(result.beliefs[possible, -1], filtered[possible, -1])
        close(result.pairs.sum(3), result.beliefs[:, :-1], relative=1e-11)
        close(result.pairs.sum(2), result.beliefs[:, 1:], relative=1e-11)
        close(result.beliefs.sum(-1), possible.double()[:, None].expand(-1, 10))


def test_the_expected_filtered_future_is_the_present():
    """Averaged over what may come, the smoothed belief is the filtered one (tower)."""
    for _, matrices, observations in random_cases(2, count=10, time=4):
        hmm = hs.HMM(*matrices)
        now = hs.filter_beliefs(hmm, observations)
        expected = torch.zeros_like(now.beliefs)
        for symbol in range(hmm.num_symbols):
            longer = torch.cat([observations, torch.full((4, 1), symbol)], 1)
            expected += now.next_observation[:, -1, symbol, None, None] * hs.smooth_beliefs(hmm, longer)[:, :-1]
        close(expected, hs.smooth_beliefs(hmm, observations), relative=1e-11)


def test_renaming_splitting_and_adding_states():
    """M1, M3, M5."""
    for rng, hmm, observations in random_cases(3):
        size = len(hmm.initial)
        plain = hs.smooth_beliefs(hs.HMM(*hmm), observations)
        order = rng.permutation(size)
        renamed = Matrices(hmm.initial[order], hmm.transition[np.ix_(order, order)], hmm.emission[order])
        close(hs.smooth_beliefs(hs.HMM(*renamed), observations), plain[:, :, torch.from_numpy(order)])
        clone, share = [*range(size), 0], np.ones(size + 1)
        share[[0, -1]] = 0.25, 0.75
        split = Matrices(hmm.initial[clone] * share, hmm.transition[np.ix_(clone, clone)] * share, hmm.emission[clone])
        parts = hs.smooth_beliefs(hs.HMM(*split), observations)
        close(parts[:, :, -1], 0.75 * plain[:, :, 0])
        close(parts[:, :, 0], 0.25 * plain[:, :, 0])
        wider = Matrices(
            np.append(hmm.initial, 0),
            np.vstack([np.column_stack([hmm.transition, np.zeros(size)]), rows(rng, 1, size + 1)]),
            np.vstack([hmm.emission, rows(rng, 1, hmm.emission.shape[1])]),
        )
        close(hs.smooth_beliefs(hs.HMM(*wider), observations)[:, :, :-1], plain)


def test_lumping_states_adds_their_beliefs():
    """M4: states 0 and 1 emit alike and lead to every other set of states alike."""
    rng = np.random.default_rng(4)
    for _ in range(20):
        small = dense(rng, 2, 3)
        share = rows(rng, 3, 2, bits=8)  # of each state's way into the lump
        transition = np.zeros((3, 3))
        for state, lump in enumerate([0, 0, 1]):
            transition[state] = [*small.transition[lump, 0] * share[state], small.transition[lump, 1]]
        initial = np.array([*small.initial[0] * np.array([0.25, 0.75]), small.initial[1]])
        large = hs.HMM(initial, transition, small.emission[[0, 0, 1]])
        observations = symbols(rng, 4, 8, 3)
        fine, coarse = hs.smooth_beliefs(large, observations), hs.smooth_beliefs(hs.HMM(*small), observations)
        close(fine[:, :, :2].sum(-1), coarse[:, :, 0])


def test_renaming_and_adding_symbols():
    """M2, M6."""
    for rng, hmm, observations in random_cases(5):
        plain = hs.smooth_beliefs(hs.HMM(*hmm), observations)
        order = rng.permutation(hmm.emission.shape[1])
        renamed = hs.HMM(hmm.initial, hmm.transition, hmm.emission[:, order])
        close(hs.smooth_beliefs(renamed, torch.from_numpy(np.argsort(order))[observations]), plain)
        wider = hs.HMM(hmm.initial, hmm.transition, np.column_stack([hmm.emission, np.zeros(len(hmm.initial))]))
        close(hs.smooth_beliefs(wider, observations), plain)


def test_reversed_time_is_the_reversed_chain():
    """M11: with a doubly stochastic transition the uniform law is stationary, and the reversed chain is the transpose."""
    rng = np.random.default_rng(6)
    for _ in range(20):
        mixed = sum(w * np.eye(4)[rng.permutation(4)] for w in rows(rng, 1, 5)[0])
        emission = rows(rng, 4, 3, 0.3)
        observations = symbols(rng, 5, 9, 3)
        there = smooth_pairs(hs.HMM(np.full(4, 0.25), mixed, emission), observations)
        back = smooth_pairs(hs.HMM(np.full(4, 0.25), mixed.T, emission), observations.flip(1))
        close(back.beliefs.flip(1), there.beliefs, relative=1e-11)
        close(back.pairs.flip(1).transpose(2, 3), there.pairs, relative=1e-11)
        finite = there.log_likelihood > -math.inf
        np.testing.assert_allclose(back.log_likelihood[finite], there.log_likelihood[finite], rtol=1e-12)


def test_scaled_emissions_move_the_likelihood_only():
    """M13: symbol 0 halved in every state, the rest given to a new symbol."""
    for _, hmm, observations in random_cases(7):
        halved = np.column_stack([hmm.emission, hmm.emission[:, 0] / 2])
        halved[:, 0] /= 2
        plain, other = (
            smooth_pairs(hs.HMM(hmm.initial, hmm.transition, e), observations) for e in (hmm.emission, halved)
        )
        close(other.beliefs, plain.beliefs)
        close(other.pairs, plain.pairs)
        moved = plain.log_likelihood - (observations == 0).sum(1).double() * math.log(2)
        np.testing.assert_allclose(other.log_likelihood, moved, rtol=1e-12)


def test_a_visible_chain_is_known():
    """M8; and M7: one state."""
    rng = np.random.default_rng(8)
    path = torch.tensor([[0, 1, 2, 1, 0]])
    known = hs.smooth_beliefs(hs.HMM(rows(rng, 1, 3)[0], rows(rng, 3, 3), np.eye(3)), path)
    assert known.argmax(-1).tolist() == path.tolist()
    assert torch.equal(known.amax(-1), torch.ones(1, 5, dtype=torch.float64))
    assert (hs.smooth_beliefs(hs.HMM([1.0], [[1.0]], rows(rng, 1, 3)), path) == 1).all()


def test_the_same_process_in_the_other_form():
    for rng, matrices, observations in random_cases(9):
        starts = some_starts(rng, 10)
        plain = smooth_pairs(hs.HMM(*matrices), observations, reset_mask=starts)
        other = smooth_pairs(hs.LabelledHMM(*as_labelled(matrices)), observations, reset_mask=starts)
        close(other.beliefs[:, :, 1:], plain.beliefs)
        close(other.pairs[:, :, 1:, 1:], plain.pairs)
        assert not other.beliefs[:, :, 0].any()


def test_fishers_identity():
    """N5: the derivative of log P in log a_ij is the expected number of transitions from i to j."""
    rng = np.random.default_rng(10)
    matrices = dense(rng, 3, 3)
    observations = symbols(rng, 1, 12, 3)
    initial, transition, emission = (torch.from_numpy(m) for m in matrices)
    logs = transition.log().requires_grad_()
    belief, log_likelihood = initial * emission[:, observations[0, 0]], 0.0
    for symbol in observations[0, 1:]:
        log_likelihood = log_likelihood + belief.sum().log()
        belief = (belief / belief.sum()) @ logs.exp() * emission[:, symbol]
    (log_likelihood + belief.sum().log()).backward()
    np.testing.assert_allclose(smooth_pairs(hs.HMM(*matrices), observations).pairs.sum((0, 1)), logs.grad, rtol=1e-10)


# ---------------------------------------------------------------------------------------------------------------------
# Underflow


def test_what_seemed_negligible_comes_back():
    """Two halves that never mix, with entries down to 2^-32: only the end tells which half it was all the time."""
    rng = np.random.default_rng(20)
    in_logs = 0
    for number in range(30):
        one, other = (tiny_entries(rng, 2, 3) for _ in range(2))
        matrices = decoupled(rng, one, other)
        sequences = [[*likely(rng, a, 45), *likely(rng, b, 15)] for a, b in ((one, other), (other, one))]
        observations = torch.tensor(sequences)
        hmm = hs.HMM(*matrices)
        result = smooth_pairs(hmm, observations)
        close(hs.smooth_beliefs(hmm, observations), result.beliefs, relative=1e-10)
        for b, sequence in enumerate(sequences):
            close(
                result.beliefs[b],
                floats(oracles.by_forward_backward(oracles.exact(matrices), sequence)),
                relative=1e-10,
            )
        close(result.pairs.sum(3), result.beliefs[:, :-1], relative=1e-10)
        beliefs = hs.filter_beliefs(hmm, observations).beliefs
        risky = ((beliefs > 0) & (beliefs < 1e-100)).flatten(1).any(1) & (result.impossible_at < 0)
        in_logs += int(risky.sum())
        if number < 5 and all((m * 2**16 % 1 == 0).all() for m in matrices):
            twin = smooth_pairs(hs.LabelledHMM(*as_labelled(matrices)), observations)
            close(twin.beliefs[:, :, 1:], result.beliefs, relative=1e-10)
    assert in_logs >= 10


def test_labelled_sequences_in_logarithms():
    quiet = np.array([[0.5, 0.0], [0.0, 2.0**-32]])
    labelled = np.stack([quiet, np.diag([0.5, 0.0]), np.diag([0.0, 1 - 2.0**-32])])
    hmm = hs.LabelledHMM([0.5, 0.5], labelled)
    result = smooth_pairs(hmm, torch.tensor([[0] * 60 + [2], [0] * 60 + [1], [1] + [0] * 59 + [2]]))
    assert result.beliefs[0].tolist() == [[0.0, 1.0]] * 61
    assert result.beliefs[1].tolist() == [[1.0, 0.0]] * 61
    assert not result.beliefs[2].any()
    assert result.pairs[0, :, 1, 1].tolist() == [1.0] * 60
    assert result.impossible_at.tolist() == [-1, -1, 60]


def test_the_careful_filter_and_the_plain_recursion_are_the_filter():
    for rng, matrices, observations in random_cases(21):
        starts = torch.tensor(some_starts(rng, 10))
        for hmm in (hs.HMM(*matrices), hs.LabelledHMM(*as_labelled(matrices))):
            fast = hs.filter_beliefs(hmm, observations, reset_mask=starts)
            for step, belief, terms in zip(
                forward_steps(hmm.params, observations[None], starts),
                fast.beliefs.transpose(0, 1),
                fast.log_likelihood_terms.T,
                strict=True,
            ):
                close(step.belief[0], belief, relative=1e-11)
                close_logs(step.log_norm[0], terms)
            for b in range(len(observations)):
                terms, beliefs = np.empty(observations.shape[1]), np.empty(fast.beliefs.shape[1:])
                weights = filter_underflow_safe(tables(hmm.params), observations[b], starts.numpy(), terms)
                underflow_safe.plain(*weights, beliefs)
                close(beliefs, fast.beliefs[b], relative=1e-11)
                close_logs(torch.from_numpy(terms), fast.log_likelihood_terms[b])


@pytest.mark.usefixtures("unchecked")
def test_long_sequences_stay_laws():
    rng = np.random.default_rng(22)
    matrices = dense(rng, 3, 4)
    observations = symbols(rng, 1, 20_000, 4)
    smoothed = hs.smooth_beliefs(hs.HMM(*matrices), observations)
    assert (smoothed.sum(-1) - 1).abs().max() < 1e-14
    # What lies 1500 steps ahead is forgotten: the end as if it were all, and the beginning as if it ended there.
    close(smoothed[0, -300:], hs.smooth_beliefs(hs.HMM(*matrices), observations[:, -1800:])[0, -300:], relative=1e-11)
    exact = oracles.by_forward_backward(oracles.exact(matrices), observations[0, :250].tolist())
    close(smoothed[0, :50], floats(exact[:50]), relative=1e-11)


# ---------------------------------------------------------------------------------------------------------------------
# Sequences of different lengths


def test_padding_does_not_matter():
    """M12 for filters, mixtures, smoothing and paths: each sequence as if it were alone, whatever the padding holds."""
    rng = np.random.default_rng(30)
    for _, matrices, observations in random_cases(31, count=8):
        hmm = hs.HMM(*matrices)
        mixture = hs.Mixture([0.25, 0.75], [hmm, hs.HMM(*dense(rng, hmm.num_states, hmm.num_symbols))])
        starts = torch.tensor(some_starts(rng, 10))
        lengths = torch.from_numpy(rng.integers(0, 11, 4))
        inside = torch.arange(10) < lengths[:, None]
        garbage = torch.where(inside, observations, torch.from_numpy(rng.integers(-9, 99, (4, 10))))
        options = {"reset_mask": starts, "lengths": lengths}
        for process, function in (
            (hmm, hs.filter_beliefs),
            (mixture, hs.filter_mixture),
            (hmm, smooth_pairs),
            (hmm, hs.most_likely_states),
            (hs.LabelledHMM(*as_labelled(matrices)), smooth_pairs),
        ):
            whole = function(process, garbage, **options)
            assert equal_records(whole, function(process, torch.where(inside, observations, 0), **options))
            for b, length in enumerate(lengths.tolist()):
                alone = function(process, observations[b : b + 1, :length], reset_mask=starts[:length])
                same_as_alone(whole, alone, b, length, length < 10 and bool(starts[length]))


def same_as_alone(whole, alone, b, length, restarts):
    """If a new sequence begins right after the end, the last prediction is of its first observation."""
    for name, value in vars(whole).items():
        if value is None:
            assert vars(alone)[name] is None
        elif name == "first_observation":
            close(value, vars(alone)[name])
        elif value.ndim == 1:
            close(value[b].double(), vars(alone)[name][0].double())
        else:
            count = max(length - 1, 0) if name == "pairs" else length
            same = count - (restarts and name == "next_observation" and count > 0)
            close(value[b, :same].double(), vars(alone)[name][0, :same].double())
            beyond = -1 if name == "states" else 0
            assert (value[b, count:] == beyond).all()


def equal_records(one, other):
    held = {name: value for name, value in vars(one).items() if value is not None}
    assert held.keys() == {name for name, value in vars(other).items() if value is not None}
    return all(torch.equal(value, vars(other)[name]) for name, value in held.items())


def test_equal_lengths_change_nothing():
    rng = np.random.default_rng(32)
    hmm = hs.HMM(*dense(rng, 3, 3))
    observations = symbols(rng, 4, 6, 3)
    assert equal_records(
        hs.filter_beliefs(hmm, observations), hs.filter_beliefs(hmm, observations, lengths=[6, 6, 6, 6])
    )


def test_strict_does_not_look_at_padding():
    hmm = hs.HMM([1.0], [[1.0]], [[1.0, 0.0]])
    observations = torch.tensor([[0, 0, 1], [0, 1, 1]])
    hs.filter_beliefs(hmm, observations, lengths=[2, 1], strict=True)
    with pytest.raises(InputError, match=r"^observations\[1, 1\]"):
        hs.filter_beliefs(hmm, observations, lengths=[2, 2], strict=True)


@pytest.mark.parametrize(
    "lengths", [[1], [1, 4], [-1, 0], [1.5, 2.0], [1.0, 4.0], [[1, 2]], [True, False], 2], ids=repr
)
@pytest.mark.usefixtures("unchecked")
def test_bad_lengths_are_refused(lengths):
    hmm = hs.HMM([1.0], [[1.0]], [[0.5, 0.5]])
    for function in (hs.filter_beliefs, hs.smooth_beliefs, hs.most_likely_states):
        with pytest.raises(InputError, match=r"^lengths: must be 2 integers in \[0, 3\]$"):
            function(hmm, torch.zeros(2, 3, dtype=torch.int64), lengths=lengths)


@pytest.mark.parametrize("batch, time", [(0, 0), (0, 3), (3, 0), (2, 1)])
def test_empty_batches_and_sequences(batch, time):
    for hmm in (hs.make_process("random-hmm", num_states=3, num_symbols=2), hs.make_process("mess3")):
        observations = torch.zeros(batch, time, dtype=torch.int64)
        result = smooth_pairs(hmm, observations, lengths=[time] * batch)
        assert result.beliefs.shape == (batch, time, 3)
        assert result.pairs.shape == (batch, max(time - 1, 0), 3, 3)
        assert hs.smooth_beliefs(hmm, observations).shape == (batch, time, 3)
