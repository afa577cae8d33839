"""States side by side in a register give the answers of lanes over sequences.

That they are those of every path by enumeration is held by the tests of each answer, whose processes have few states.
"""

import itertools
from fractions import Fraction

import numpy as np
import pytest
import torch
from numba import njit

import hmmscope as hs
import oracles
from comparing import close
from hmmscope.emissions.log_likelihood_loops import LogLikelihoodBatch, law_of
from hmmscope.inference import compiled
from hmmscope.inference import loop_inputs as tables
from hmmscope.inference.smoothing import expected_counts, smooth_pairs
from hmmscope.kernels import simd_over_states
from hmmscope.kernels.run_time_rows import LENGTHS, UpTo4, UpTo8, UpTo16, UpTo64
from hmmscope.kernels.vectors import moved, put, row_length, shared, take
from hmmscope.sklearn.encoded import UnroundedHMM
from inference_cases import close_logs, revived, symbols
from strategies import KINDS, as_labelled, dense, likely, rows, some_starts, tiny_entries, with_zeros


def over_lanes(function, *args, **options):
    """What a function answers with every sequence on a lane."""
    with tables.over_lanes():
        return function(*args, **options)


def batches(rng, num_states, num_symbols):
    """Processes, small ones of both forms; ragged sequences, some of them likely and some impossible; restarts."""
    for kind in KINDS if num_states <= 16 else [with_zeros]:
        matrices = kind(rng, num_states, num_symbols)
        observations = symbols(rng, 5, 21, num_symbols)
        observations[1] = torch.tensor(likely(rng, matrices, 21))
        observations[2] = torch.tensor(likely(rng, matrices, 21))
        lengths = torch.tensor([21, 21, 17, 0, int(rng.integers(1, 22))])
        starts = torch.tensor(some_starts(rng, 21) if rng.random() < 0.5 else oracles.first_only(range(21)))
        yield hs.HMM(*matrices), observations, {"reset_mask": starts, "lengths": lengths}
        if num_states <= 16:
            yield hs.LabelledHMM(*as_labelled(matrices)), observations, {"reset_mask": starts, "lengths": lengths}


@pytest.mark.drawn(3)
@pytest.mark.parametrize(("num_states", "num_symbols"), [(1, 1), (1, 6), (3, 1), (3, 6), (15, 6), (39, 5)])
def test_both_roads_give_one_answer(num_states, num_symbols):
    rng = np.random.default_rng([num_states, num_symbols])
    for hmm, observations, options in batches(rng, num_states, num_symbols):
        one = hs.filter_beliefs(hmm, observations, **options)
        other = over_lanes(hs.filter_beliefs, hmm, observations, **options)
        assert torch.equal(one.impossible_at, other.impossible_at)
        for name in ("beliefs", "next_observation"):
            close(getattr(one, name), getattr(other, name))
        close_logs(one.log_likelihood_terms, other.log_likelihood_terms)
        lengths = options["lengths"]
        found = hs.log_likelihood(hmm, observations, lengths=lengths)
        close_logs(found, over_lanes(hs.log_likelihood, hmm, observations, lengths=lengths))
        close(
            hs.smooth_beliefs(hmm, observations, **options), over_lanes(hs.smooth_beliefs, hmm, observations, **options)
        )
        pairs = smooth_pairs(hmm, observations, **options).pairs
        close(pairs, over_lanes(smooth_pairs, hmm, observations, **options).pairs)
        path = hs.most_likely_states(hmm, observations, **options)
        again = over_lanes(hs.most_likely_states, hmm, observations, **options)
        assert torch.equal(path.states, again.states)
        assert torch.equal(path.log_probability, again.log_probability)
        if isinstance(hmm, hs.HMM):
            kept = one.impossible_at < 0
            chosen = {"reset_mask": options["reset_mask"], "lengths": lengths[kept]}
            sums = expected_counts(hmm, observations[kept], **chosen)
            others = over_lanes(expected_counts, hmm, observations[kept], **chosen)
            for name in ("initial", "transitions", "emissions"):
                close(getattr(sums, name), getattr(others, name))
            close_logs(sums.log_likelihood, others.log_likelihood)
            close_logs(sums.log_likelihood, one.log_likelihood[kept])


def every_answer(hmm, observations, options):
    """Return what the kernels over states write, for symbols and for log-likelihoods of vectors."""
    paths = hs.most_likely_states(hmm, observations, **options)
    found = hs.filter_beliefs(hmm, observations, **options)
    yield from (found.beliefs, found.next_observation, found.log_likelihood_terms, paths.states, paths.log_probability)
    yield from (hs.smooth_beliefs(hmm, observations, **options), smooth_pairs(hmm, observations, **options).pairs)
    if isinstance(hmm, hs.HMM):
        sums = expected_counts(hmm, observations, **options)
        yield from (sums.initial, sums.transitions, sums.emissions, sums.log_likelihood)
        law = law_of(hmm.initial.numpy(), hmm.transition.numpy())
        rows = hmm.emission.log().numpy().T[observations.ravel()]
        given = LogLikelihoodBatch(
            law, rows, np.array([0, 21]), np.array([21, 21]), options["reset_mask"].numpy(), np.arange(2)
        )
        for one in (*given.filtered(), *given.smoothed(), *given.viterbi()):
            yield torch.from_numpy(one)


SLOW = [pytest.param(size, marks=pytest.mark.slow) for size in range(1, 33) if size not in (3, 7)]


@pytest.mark.parametrize("num_states", [3, 7, *SLOW])
def test_vectors_of_any_length_give_the_same_bits(monkeypatch, num_states):
    rng = np.random.default_rng(num_states)
    kinds = [kind for kind, most in LENGTHS.items() if num_states <= most and (kind is UpTo16 or most < 4 * num_states)]
    for kind, num_symbols in itertools.product((dense, with_zeros, tiny_entries), (3, 9)):
        matrices = kind(rng, num_states, num_symbols)
        observations = torch.tensor([likely(rng, matrices, 21) for _ in range(2)])
        starts = torch.tensor(oracles.first_only(range(21)))
        labelled = [] if kind is tiny_entries else [hs.LabelledHMM(*as_labelled(matrices))]
        for hmm in (hs.HMM(*matrices), *labelled):
            found = []
            for states in kinds:

                def own(_, size, __, states=states):  # an answer may use one more state
                    return states(size) if size <= LENGTHS[states] else shared(size)

                monkeypatch.setattr(simd_over_states, "states_of", own)
                found.append(list(every_answer(hmm, observations, {"reset_mask": starts})))
            for one, *others in zip(*found, strict=True):
                assert all(one.numpy().tobytes() == other.numpy().tobytes() for other in others)


@pytest.mark.parametrize(("kind", "size"), [(k, n) for k in (UpTo4, UpTo8, UpTo16) for n in range(1, LENGTHS[k] + 1)])
def test_the_order_of_partial_sums(kind, size):
    """ceil(size / 2), at most four, partial sums of every so many terms, by fused products, added by pairs."""
    rng = np.random.default_rng(size)
    states = kind(size)
    law, rows, found = rng.normal(size=size), rng.normal(size=(size, row_length(states))), np.empty(size)
    moved_by_row(states, law, rows.ravel(), found)
    for j in range(size):
        count = min(4, (size + 1) // 2)
        parts = [law[i] * rows[i, j] for i in range(count)]
        for i in range(count, size):
            fused = Fraction(law[i]) * Fraction(rows[i, j]) + Fraction(parts[i % count])
            parts[i % count] = float(fused)
        parts += [0.0] * (4 - count)
        assert found[j] == (parts[0] + parts[1]) + (parts[2] + parts[3])


@njit
def moved_by_row(states, law, rows, found):
    put(states, moved(states, take(states, law, 0), rows, 0), found, 0)


def test_short_vectors_are_compiled_for_work_that_repays_it(monkeypatch):
    monkeypatch.setattr(simd_over_states, "_missed", {})
    compiled = {"UpTo8"}
    monkeypatch.setattr(simd_over_states, "_compiled", lambda kernel: compiled)

    def chosen(size, steps):
        return type(simd_over_states.states_of(simd_over_states.forward, size, np.array([steps])))

    assert [chosen(4, 2000), chosen(40, 10**12), chosen(5, 1)] == [UpTo16, UpTo64, UpTo8]
    assert [chosen(2, 5000) for _ in range(10**4)][-1] is chosen(3, 1) is UpTo4
    compiled.remove("UpTo4")
    monkeypatch.setattr(simd_over_states, "_missed", {})
    assert chosen(4, 10**5) is UpTo4


def test_ties_go_to_the_same_states():
    """States that are copies of each other, and laws of few values: most paths tie with others."""
    rng = np.random.default_rng(0)
    tied = 0
    for size in (2, 3, 16):
        rounds = np.full((size, size), 1 / size) if size != 3 else np.eye(size)
        emission = np.repeat(rows(rng, 1, 3), size, axis=0)
        hmm = hs.HMM([1 / size] * size, rounds, emission)
        observations = symbols(rng, 3, 50, 3)
        path = hs.most_likely_states(hmm, observations)
        again = over_lanes(hs.most_likely_states, hmm, observations)
        assert torch.equal(path.states, again.states)
        tied += int((path.states[:, 0] == path.states[0, 0]).all())
    assert tied == 3


def test_nothing_is_lost_to_underflow():
    """Entries that all but vanish and come back, and steps of probability 2^-64 for thousands of steps."""
    matrices, sequence = revived(60)
    for hmm, observations in (
        (hs.HMM(*matrices), torch.tensor([sequence])),
        *((hs.HMM(*tiny_entries(np.random.default_rng(seed), 3, 3)), None) for seed in range(20)),
    ):
        given = symbols(np.random.default_rng(5), 4, 3000, 3) if observations is None else observations
        one, other = hs.filter_beliefs(hmm, given), over_lanes(hs.filter_beliefs, hmm, given)
        assert torch.equal(one.impossible_at, other.impossible_at)
        close_logs(one.log_likelihood, other.log_likelihood)
        close(hs.smooth_beliefs(hmm, given), over_lanes(hs.smooth_beliefs, hmm, given), relative=1e-10)


@pytest.mark.parametrize("least", [1e-12, 1e-13, 1e-30, 1e-49, 1e-51, 1e-99, 1e-101, 1e-150])
@pytest.mark.parametrize("steps", [1, 2, 3, 7, 8, 9, 20])
def test_probabilities_of_any_size_stay_in_registers(monkeypatch, least, steps):
    """What expectation maximisation drives towards zero: divided out more often, and not taken to a slower road."""

    def slow(*_):
        raise AssertionError("one sequence goes over lanes")

    monkeypatch.setattr(compiled.simd_over_sequences, "forward", slow)
    matrices = np.array([0.5, 0.5]), np.eye(2), np.array([[0.5, 0.5 - least, least], [least, 1 - 2 * least, least]])
    back = np.array([[1 - least, least], [least, 1 - least]])
    for transition in (matrices[1], back):
        initial, moves, emits = oracles.exact((matrices[0], transition, matrices[2]))
        for word in ([0] * steps + [1] * (steps + 1), [0] * steps + [2, 2, 1]):
            joint = [initial[i] * emits[i][word[0]] for i in (0, 1)]
            for symbol in word[1:]:
                joint = [sum(joint[i] * moves[i][j] for i in (0, 1)) * emits[j][symbol] for j in (0, 1)]
            found = hs.filter_beliefs(UnroundedHMM(matrices[0], transition, matrices[2]), [word])
            assert float(found.log_likelihood[0]) == pytest.approx(oracles.log_of(sum(joint)), rel=1e-12)
            belief = [float(part / sum(joint)) for part in joint]
            np.testing.assert_allclose(found.beliefs[0, -1], belief, rtol=1e-9, atol=1e-290)


def test_a_renewal_at_every_step():
    rng = np.random.default_rng(2)
    hmm, observations = hs.HMM(*dense(rng, 4, 3)), symbols(rng, 1, 3000, 3)
    found = hs.filter_beliefs(hmm, observations, reset_mask=torch.ones(3000, dtype=torch.bool))
    law = (hmm.initial @ hmm.emission).log()
    assert found.log_likelihood.item() == pytest.approx(law[observations].sum().item(), rel=1e-12)
    ratio = hs.log_likelihood(hmm, observations.T[:, :1]).sum().item()
    assert found.log_likelihood.item() == pytest.approx(ratio, rel=1e-12)


@pytest.mark.parametrize("num_states", [4, 20])
def test_counts_have_the_same_digits_on_any_number_of_threads(num_states):
    rng = np.random.default_rng(num_states)
    hmm = hs.HMM(*with_zeros(rng, num_states, 5))
    observations = hmm.sample_paths(np.arange(200), np.arange(30) == 0, 0).observations
    found, before = [], torch.get_num_threads()
    try:
        for threads in (1, 2, 3, 7):
            torch.set_num_threads(threads)
            found.append(expected_counts(hmm, observations))
    finally:
        torch.set_num_threads(before)
    for other in found[1:]:
        assert torch.equal(other.transitions, found[0].transitions)
        assert torch.equal(other.emissions, found[0].emissions)
        assert torch.equal(other.initial, found[0].initial)


@pytest.mark.parametrize("num_symbols", [1, 3, 4, 5, 70, 700])
def test_predictions_of_any_number_of_symbols(num_symbols):
    """Whole vectors of symbols and what is left over; and tables that no cache holds."""
    rng = np.random.default_rng(num_symbols)
    hmm = hs.HMM(*dense(rng, 6, num_symbols))
    found = hs.filter_beliefs(hmm, symbols(rng, 2, 9, num_symbols))
    close(found.next_observation, found.beliefs @ hmm.transition @ hmm.emission)
