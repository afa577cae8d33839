"""The filters equal exact enumeration, keep the laws that every correct filter keeps, and know zero from tiny."""

import functools
import math

import numpy as np
import pytest
import torch
from hmmlearn.hmm import CategoricalHMM

import hmmscope as hs
import oracles
from hmmscope.errors import InputError, ResourceError
from hmmscope.inference import mixture as mixture_module
from hmmscope.inference.filtering import first_impossible
from hmmscope.inference.forward import check_observations, forward_steps
from hmmscope.inference.mixture import filter_known_component, predicted_before
from hmmscope.inference.optimal import optimal_predictions
from hmmscope.processes.laws import StateEmitting
from hmmscope.resources import require_memory
from strategies import KINDS, Matrices, dense, likely, rows, small_hmm, some_starts, tiny_entries

#: 4 T S 2^-53 for the largest case here (T = 6, S = 4) is 1.1e-14; the promise is 1e-12.
RELATIVE = 1e-12


def close(computed, exact, *, relative=RELATIVE):
    """Equal up to rounding; zeros and minus infinities exactly; never NaN."""
    computed = computed.numpy() if isinstance(computed, torch.Tensor) else np.asarray(computed)
    exact = np.asarray(exact, dtype=np.float64)
    assert computed.dtype == np.float64
    assert computed.shape == exact.shape
    assert not np.isnan(computed).any()
    sharp = (exact == 0) | np.isinf(exact)
    np.testing.assert_array_equal(computed[sharp], exact[sharp])
    np.testing.assert_allclose(computed[~sharp], exact[~sharp], rtol=relative, atol=0)


def close_logs(computed, exact):
    """As `close` for logarithms, where a probability near one leaves only its absolute error: S T 2^-53 is 3e-15."""
    computed = computed.numpy()
    exact = np.asarray(exact, dtype=np.float64)
    assert computed.shape == exact.shape
    assert not np.isnan(computed).any()
    finite = np.isfinite(exact)
    np.testing.assert_array_equal(computed[~finite], exact[~finite])
    np.testing.assert_allclose(computed[finite], exact[finite], rtol=RELATIVE, atol=1e-14)


def floats(nested):
    return [floats(item) for item in nested] if isinstance(nested, list) else float(nested)


def per_token_logs(prefix):
    """log P(o_t | o_0..o_{t-1}) from P(o_0..o_t); minus infinity from the first impossible prefix on."""
    before = [1, *prefix[:-1]]
    return [oracles.log_of(p / q) if q else -math.inf for p, q in zip(prefix, before, strict=True)]


def first_zero(prefix):
    return next((t for t, p in enumerate(prefix) if p == 0), -1)


def shifted(first, following):
    return [first, *following[:-1]]


def symbols(rng, batch, time, num_symbols):
    return torch.from_numpy(rng.integers(0, num_symbols, (batch, time)))


# ---------------------------------------------------------------------------------------------------------------------
# Against enumeration


def single_cases(seed, count):
    """Random HMMs with three random sequences each, half of them with restarts; many sequences are impossible."""
    rng = np.random.default_rng(seed)
    for _ in range(count):
        matrices = small_hmm(rng)
        time = int(rng.integers(1, 7 if len(matrices.initial) < 4 else 6))
        starts = some_starts(rng, time) if rng.random() < 0.5 else None
        yield matrices, symbols(rng, 3, time, matrices.emission.shape[1]), starts


SINGLE = list(single_cases(0, 250))


@functools.cache
def single_answers(number):
    """The answer by enumeration for each sequence of a case."""
    matrices, observations, starts = SINGLE[number]
    return [oracles.by_enumeration(oracles.exact(matrices), sequence, starts) for sequence in observations.tolist()]


def test_the_cases_are_awkward_enough():
    impossible = one_state = one_symbol = 0
    for number, (matrices, _, _) in enumerate(SINGLE):
        one_state += matrices.emission.shape[0] == 1
        one_symbol += matrices.emission.shape[1] == 1
        impossible += sum(answer.prefix[-1] == 0 for answer in single_answers(number))
    assert impossible > 100
    assert one_state > 30
    assert one_symbol > 30
    assert len(SINGLE) >= 200


def test_filter_beliefs_equals_enumeration():
    for number, (matrices, observations, starts) in enumerate(SINGLE):
        hmm, exact = hs.HMM(*matrices), oracles.exact(matrices)
        result = hs.filter_beliefs(hmm, observations, starts=starts)
        answers = single_answers(number)
        close(result.beliefs, [floats(a.belief) for a in answers])
        close(result.next_observation, [floats(a.following) for a in answers])
        close(result.first_observation, floats(oracles.first_law(exact)))
        close_logs(result.log_likelihood, [oracles.log_of(a.prefix[-1]) for a in answers])
        close_logs(result.log_likelihood_per_token, [per_token_logs(a.prefix) for a in answers])
        assert result.impossible_at.tolist() == [first_zero(a.prefix) for a in answers]
        optimal = optimal_predictions(hmm, observations, starts=starts)
        assert optimal.component_posterior is None
        first = floats(oracles.first_law(exact))
        close(optimal.predicted_observation, [shifted(first, floats(a.following)) for a in answers])
        close_logs(optimal.log_likelihood_per_token, [per_token_logs(a.prefix) for a in answers])


def test_strict_filter_names_the_first_impossible_entry():
    raised = 0
    for matrices, observations, starts in SINGLE:
        hmm = hs.HMM(*matrices)
        result = hs.filter_beliefs(hmm, observations, starts=starts)
        dead = (result.impossible_at >= 0).nonzero()[:, 0].tolist()
        if dead:
            raised += 1
            place = f"observations[{dead[0]}, {int(result.impossible_at[dead[0]])}]: "
            with pytest.raises(InputError) as caught:
                hs.filter_beliefs(hmm, observations, starts=starts, strict=True)
            assert str(caught.value).startswith(place)
        else:
            again = hs.filter_beliefs(hmm, observations, starts=starts, strict=True)
            assert torch.equal(again.beliefs, result.beliefs)
    assert 50 < raised < 200


def random_mixture(rng, zeros=0.3):
    num_components, num_states, num_symbols = (int(rng.integers(1, high)) for high in (5, 4, 4))
    weights = rows(rng, 1, num_components, zeros)[0]
    parts = [KINDS[rng.integers(len(KINDS))](rng, num_states, num_symbols) for _ in range(num_components)]
    return weights, parts


def mixture_cases(seed, count):
    rng = np.random.default_rng(seed)
    for _ in range(count):
        weights, parts = random_mixture(rng)
        time = int(rng.integers(1, 6))
        starts = some_starts(rng, time) if rng.random() < 0.6 else None
        yield weights, parts, symbols(rng, 3, time, parts[0].emission.shape[1]), starts


def test_filter_mixture_equals_enumeration():
    impossible = 0
    for weights, parts, observations, starts in mixture_cases(1, 120):
        mixture = hs.Mixture(weights, [hs.HMM(*part) for part in parts])
        (exact_weights,) = oracles.exact([weights])
        exact = [oracles.exact(part) for part in parts]
        result = hs.filter_mixture(mixture, observations, starts=starts)
        answers = [oracles.mixture_by_enumeration(exact_weights, exact, o, starts) for o in observations.tolist()]
        first = [
            float(sum(w * p for w, p in zip(exact_weights, laws, strict=True)))
            for laws in zip(*(oracles.first_law(hmm) for hmm in exact), strict=True)
        ]
        close(result.component_posterior, [floats(posterior) for _, posterior, _ in answers])
        close(result.next_observation, [floats(following) for _, _, following in answers])
        close(result.first_observation, first)
        close_logs(result.log_likelihood, [oracles.log_of(prefix[-1]) for prefix, _, _ in answers])
        close_logs(result.log_likelihood_per_token, [per_token_logs(prefix) for prefix, _, _ in answers])
        assert result.impossible_at.tolist() == [first_zero(prefix) for prefix, _, _ in answers]
        impossible += int((result.impossible_at >= 0).sum())
        optimal = optimal_predictions(mixture, observations, starts=starts)
        close(optimal.predicted_observation, [shifted(first, floats(following)) for _, _, following in answers])
        assert torch.equal(optimal.component_posterior, result.component_posterior)
    assert impossible > 30


def test_filter_known_component_equals_enumeration():
    rng = np.random.default_rng(2)
    for weights, parts, observations, starts in mixture_cases(3, 80):
        mixture = hs.Mixture(weights, [hs.HMM(*part) for part in parts])
        components = torch.from_numpy(rng.integers(0, len(parts), len(observations)))
        result = filter_known_component(mixture, observations, components, starts=starts)
        exact = [oracles.exact(parts[m]) for m in components.tolist()]
        answers = [oracles.by_enumeration(h, o, starts) for h, o in zip(exact, observations.tolist(), strict=True)]
        first = [floats(oracles.first_law(hmm)) for hmm in exact]
        close(result.beliefs, [floats(a.belief) for a in answers])
        expected = [shifted(f, floats(a.following)) for f, a in zip(first, answers, strict=True)]
        close(result.predicted_observation, expected)
        close_logs(result.log_likelihood_per_token, [per_token_logs(a.prefix) for a in answers])


def test_exact_forward_equals_enumeration():
    """The oracle of long sequences against the oracle of short ones."""
    for number, (matrices, observations, starts) in enumerate(SINGLE):
        for sequence, answer in zip(observations.tolist(), single_answers(number), strict=True):
            logs, belief = oracles.by_forward(oracles.exact(matrices), sequence, starts)
            assert belief == answer.belief[-1]
            expected = [oracles.log_of(p) for p in answer.prefix]
            np.testing.assert_allclose(logs, expected, rtol=1e-12, atol=1e-13)


def test_the_comparison_can_fail():
    close([0.5, 0.0], [0.5, 0.0])
    for wrong in ([0.5 + 1e-11, 0.0], [0.5, 1e-300], [0.5, math.nan], [math.nan, 0.0]):
        with pytest.raises(AssertionError):
            close(wrong, [0.5, 0.0])


# ---------------------------------------------------------------------------------------------------------------------
# Metamorphic relations


def random_cases(seed, count=40, time=12):
    rng = np.random.default_rng(seed)
    for _ in range(count):
        matrices = KINDS[rng.integers(len(KINDS))](rng, int(rng.integers(2, 6)), int(rng.integers(2, 5)))
        yield rng, matrices, symbols(rng, 4, time, matrices.emission.shape[1])


def filtered(matrices, observations, **options):
    return hs.filter_beliefs(hs.HMM(*matrices), observations, **options)


def same_likelihood(one, other):
    assert torch.equal(one.impossible_at, other.impossible_at)
    close_logs(one.log_likelihood_per_token, other.log_likelihood_per_token)


def test_renaming_states_renames_beliefs():
    for rng, hmm, observations in random_cases(10):
        order = rng.permutation(len(hmm.initial))
        renamed = Matrices(hmm.initial[order], hmm.transition[np.ix_(order, order)], hmm.emission[order])
        plain, other = filtered(hmm, observations), filtered(renamed, observations)
        same_likelihood(other, plain)
        close(other.beliefs, plain.beliefs[:, :, torch.from_numpy(order)])
        close(other.next_observation, plain.next_observation)


def test_renaming_symbols_renames_predictions():
    for rng, hmm, observations in random_cases(11):
        order = rng.permutation(hmm.emission.shape[1])
        renamed = hmm._replace(emission=hmm.emission[:, order])
        plain, other = filtered(hmm, observations), filtered(renamed, torch.from_numpy(np.argsort(order))[observations])
        same_likelihood(other, plain)
        close(other.beliefs, plain.beliefs)
        close(other.next_observation, plain.next_observation[:, :, torch.from_numpy(order)])


def test_splitting_a_state_into_clones_splits_its_belief():
    for _, hmm, observations in random_cases(12):
        clone = [*range(len(hmm.initial)), 0]
        share = np.ones(len(clone))
        share[[0, -1]] = 0.25, 0.75
        split = Matrices(hmm.initial[clone] * share, hmm.transition[np.ix_(clone, clone)] * share, hmm.emission[clone])
        plain, other = filtered(hmm, observations), filtered(split, observations)
        same_likelihood(other, plain)
        merged = other.beliefs[:, :, :-1].clone()
        merged[:, :, 0] += other.beliefs[:, :, -1]
        close(merged, plain.beliefs)
        close(other.beliefs[:, :, -1], 0.75 * plain.beliefs[:, :, 0])
        close(other.next_observation, plain.next_observation)


def test_an_unreachable_state_changes_nothing():
    for rng, hmm, observations in random_cases(13):
        size = len(hmm.initial)
        wider = Matrices(
            np.append(hmm.initial, 0),
            np.vstack([np.column_stack([hmm.transition, np.zeros(size)]), rows(rng, 1, size + 1)]),
            np.vstack([hmm.emission, rows(rng, 1, hmm.emission.shape[1])]),
        )
        plain, other = filtered(hmm, observations), filtered(wider, observations)
        same_likelihood(other, plain)
        assert not other.beliefs[:, :, -1].any()
        close(other.beliefs[:, :, :-1], plain.beliefs)


def test_a_symbol_never_emitted_changes_nothing_but_is_impossible():
    for _, hmm, observations in random_cases(14):
        wider = hmm._replace(emission=np.column_stack([hmm.emission, np.zeros(len(hmm.initial))]))
        plain, other = filtered(hmm, observations), filtered(wider, observations)
        same_likelihood(other, plain)
        close(other.next_observation[:, :, :-1], plain.next_observation)
        assert not other.next_observation[:, :, -1].any()
        never = observations.clone()
        never[:, 5] = hmm.emission.shape[1]
        assert (filtered(wider, never).log_likelihood == -math.inf).all()


def test_one_state_is_independent_draws():
    rng = np.random.default_rng(15)
    for num_symbols in range(1, 6):
        law = rows(rng, 1, num_symbols, 0.3)
        observations = symbols(rng, 6, 9, num_symbols)
        result = filtered((np.ones(1), np.ones((1, 1)), law), observations)
        with np.errstate(divide="ignore"):
            close_logs(result.log_likelihood_per_token[:, 0], np.log(law[0])[observations[:, 0]])
            close_logs(result.log_likelihood, np.log(law[0])[observations].sum(1))


def test_identity_emission_is_a_visible_markov_chain():
    rng = np.random.default_rng(16)
    for size in range(1, 6):
        initial, transition = rows(rng, 1, size, 0.3)[0], rows(rng, size, size, 0.4)
        path = symbols(rng, 8, 7, size)
        result = filtered((initial, transition, np.eye(size)), path)
        with np.errstate(divide="ignore"):
            expected = np.log(initial)[path[:, 0]] + np.log(transition)[path[:, :-1], path[:, 1:]].sum(1)
        close_logs(result.log_likelihood, expected)
        possible = torch.from_numpy(np.isfinite(expected))
        assert torch.equal(result.beliefs[possible].argmax(-1), path[possible])
        close(result.beliefs[possible].amax(-1), np.ones((int(possible.sum()), 7)))


def test_filtering_in_chunks_with_carried_belief_is_the_whole():
    """M10, on the recursion itself, because a carried belief is no multiple of 2^-32."""
    for rng, matrices, observations in random_cases(17, count=25, time=25):
        law = hs.HMM(*matrices).law
        one = observations[:1]
        whole = filtered(matrices, one)
        cut, logs, beliefs = int(rng.integers(1, 25)), [], []
        for part in (one[:, :cut], one[:, cut:]):
            starts = torch.arange(part.shape[1]) == 0
            for step in forward_steps(law, part[None], starts):
                logs.append(step.log_norm[0])
                beliefs.append(step.belief[0])
            law = StateEmitting(step.following[:, 0], law.transition_MSS, law.emission_MSV)
        close_logs(torch.stack(logs, 1), whole.log_likelihood_per_token)
        close(torch.stack(beliefs, 1), whole.beliefs)


def test_neighbours_order_and_what_follows_do_not_matter():
    for rng, hmm, observations in random_cases(18):
        whole = filtered(hmm, observations)
        order = torch.from_numpy(rng.permutation(4))
        close(filtered(hmm, observations[order]).beliefs, whole.beliefs[order])
        for b in range(4):
            alone = filtered(hmm, observations[b : b + 1])
            close(alone.beliefs, whole.beliefs[b : b + 1])
            close_logs(alone.log_likelihood_per_token, whole.log_likelihood_per_token[b : b + 1])
        shorter = filtered(hmm, observations[:, :7])
        close(shorter.beliefs, whole.beliefs[:, :7])
        close(shorter.next_observation, whole.next_observation[:, :7])


def all_sequences(num_symbols, time):
    return torch.cartesian_prod(*[torch.arange(num_symbols)] * time).reshape(-1, time)


def test_probabilities_of_all_sequences_sum_to_one():
    rng = np.random.default_rng(19)
    for kind in KINDS:
        for starts in (None, [True, False, True, False]):
            hmm = kind(rng, 3, 3)
            total = filtered(hmm, all_sequences(3, 4), starts=starts).log_likelihood.exp().sum().item()
            assert total == pytest.approx(1, abs=1e-13)


def test_the_expected_next_belief_is_the_belief_moved_on():
    """M17: sum_y P(y | past) belief(past, y) = belief(past) @ transition."""
    for _, hmm, observations in random_cases(20, time=6):
        now = filtered(hmm, observations)
        expected = torch.zeros(4, len(hmm.initial), dtype=torch.float64)
        for symbol in range(hmm.emission.shape[1]):
            longer = torch.cat([observations, torch.full((4, 1), symbol)], 1)
            expected += now.next_observation[:, -1, symbol, None] * filtered(hmm, longer).beliefs[:, -1]
        close(expected, now.beliefs[:, -1] @ torch.from_numpy(hmm.transition))


def test_predictions_are_laws_unless_impossible():
    for _, hmm, observations in random_cases(21):
        result = filtered(hmm, observations)
        dead = (result.log_likelihood_per_token == -math.inf)[:, :, None]
        for laws in (result.beliefs, result.next_observation):
            assert (laws >= 0).all()
            close(laws.sum(-1, keepdim=True), (~dead).double())


def test_the_prediction_scores_the_next_observation():
    for _, hmm, observations in random_cases(22):
        result = filtered(hmm, observations)
        predicted = predicted_before(result.first_observation, result.next_observation)
        chosen = predicted.gather(2, observations[:, :, None])[:, :, 0]
        close_logs(chosen.log(), result.log_likelihood_per_token)


# ---------------------------------------------------------------------------------------------------------------------
# Mixtures: two roads to the same number


def test_a_mixture_is_a_block_diagonal_hmm():
    rng = np.random.default_rng(30)
    for _ in range(20):
        parts = [KINDS[rng.integers(len(KINDS))](rng, 3, 3) for _ in range(3)]
        weights = rows(rng, 1, 3, 0.2, bits=8)[0]
        observations = symbols(rng, 5, 10, 3)
        blocks = np.zeros((9, 9))
        for m, part in enumerate(parts):
            blocks[3 * m : 3 * m + 3, 3 * m : 3 * m + 3] = part.transition
        joined = hs.HMM(
            np.concatenate([w * part.initial for w, part in zip(weights, parts, strict=True)]),
            blocks,
            np.vstack([part.emission for part in parts]),
        )
        mixed = hs.filter_mixture(hs.Mixture(weights, [hs.HMM(*part) for part in parts]), observations)
        single = hs.filter_beliefs(joined, observations)
        assert torch.equal(mixed.impossible_at, single.impossible_at)
        close_logs(mixed.log_likelihood, single.log_likelihood)
        # A ratio of probabilities of 10 steps, one road through logarithms: 10 more roundings of about 50 nats.
        close(mixed.component_posterior, single.beliefs.reshape(5, 10, 3, 3).sum(-1), relative=1e-11)
        close(mixed.next_observation, single.next_observation, relative=1e-11)


def test_a_mixture_of_one_is_its_component():
    for _, hmm, observations in random_cases(31):
        starts = [t % 5 == 0 for t in range(12)]
        single = filtered(hmm, observations, starts=starts)
        mixed = hs.filter_mixture(hs.Mixture([1.0], [hs.HMM(*hmm)]), observations, starts=starts)
        assert torch.equal(mixed.impossible_at, single.impossible_at)
        close(mixed.next_observation, single.next_observation)
        close_logs(mixed.log_likelihood, single.log_likelihood)
        close(mixed.component_posterior[:, :, 0], (single.log_likelihood_per_token > -math.inf).double())


def test_known_component_is_the_filter_of_that_component():
    rng = np.random.default_rng(32)
    parts = [hs.HMM(*kind(rng, 4, 3)) for kind in KINDS]
    mixture = hs.Mixture(np.full(6, 1 / 6), parts)
    observations, components = symbols(rng, 30, 20, 3), torch.from_numpy(rng.integers(0, 6, 30))
    starts = [t % 4 == 0 for t in range(20)]
    result = filter_known_component(mixture, observations, components, starts=starts)
    for b, m in enumerate(components.tolist()):
        alone = hs.filter_beliefs(parts[m], observations[b : b + 1], starts=starts)
        close(result.beliefs[b : b + 1], alone.beliefs)
        close_logs(result.log_likelihood_per_token[b : b + 1], alone.log_likelihood_per_token)
        expected = optimal_predictions(parts[m], observations[b : b + 1], starts=starts).predicted_observation
        close(result.predicted_observation[b : b + 1], expected)


def test_the_size_of_a_chunk_changes_nothing(monkeypatch):
    mixture = hs.make_process("random-mixture", num_components=7, num_states=5, num_symbols=3, seed=1)
    observations = symbols(np.random.default_rng(33), 23, 9, 3)
    whole = hs.filter_mixture(mixture, observations)
    for chunk_bytes in (1, 8 * 6 * 7 * 5 * 4):
        monkeypatch.setattr(mixture_module, "CHUNK_BYTES", chunk_bytes)
        parts = hs.filter_mixture(mixture, observations)
        close(parts.component_posterior, whole.component_posterior)
        close(parts.next_observation, whole.next_observation)
        close_logs(parts.log_likelihood_per_token, whole.log_likelihood_per_token)


def test_demonstrations_tell_the_component():
    """A prompt of a corpus through the oracle: restarts matter, and the truth wins."""
    mixture = hs.make_process("random-mixture", num_components=20, num_states=8, num_symbols=6, seed=3)
    corpus = hs.Corpus(mixture, layout=hs.Prompts(num_demonstrations=12, demonstration_length=4, test_length=4), seed=2)
    batch = corpus[0:50]
    result = hs.filter_mixture(mixture, batch.observations, starts=corpus.layout.starts)
    assert (result.impossible_at == -1).all()
    truth = result.component_posterior[:, -1].gather(1, batch.components[:, None])
    assert truth.mean() > 0.95
    known = filter_known_component(mixture, batch.observations, batch.components, starts=corpus.layout.starts)
    assert (known.log_likelihood_per_token > -math.inf).all()
    # P(o) >= P(m) P_m(o) for the true component
    bound = mixture.weights_M.log()[batch.components] + known.log_likelihood_per_token.sum(1)
    assert (result.log_likelihood - bound > -1e-12).all()


# ---------------------------------------------------------------------------------------------------------------------
# Underflow is not impossibility


def naive_filter_dies(matrices, observations):
    """Whether the recursion without logarithms ends at zero."""
    initial, transition, emission = matrices
    belief = initial * emission[:, observations[0]]
    for symbol in observations[1:]:
        total = belief.sum()
        if total == 0:
            return True
        belief = (belief / total) @ transition * emission[:, symbol]
    return belief.sum() == 0


def revived(num_quiet=60):
    """Two states that never mix. Symbol 0 is likely from state 0 and nearly impossible from 1; 2 comes from 1 only."""
    emission = np.array([[0.5, 0.5, 0.0], [2**-32, 0.0, 1 - 2**-32]])
    return Matrices(np.array([0.5, 0.5]), np.eye(2), emission), [0] * num_quiet + [2] * 3


@pytest.mark.parametrize("num_quiet", [1, 7, 8, 9, 15, 16, 17, 33, 60, 200])
def test_a_state_that_fell_below_every_float_comes_back(num_quiet):
    matrices, observations = revived(num_quiet)
    answer = oracles.by_enumeration(oracles.exact(matrices), observations)
    result = filtered(matrices, torch.tensor([observations, [0] * len(observations)]))
    assert naive_filter_dies(matrices, observations) == (num_quiet >= 60)
    close_logs(result.log_likelihood_per_token[0], per_token_logs(answer.prefix))
    close_logs(result.log_likelihood[:1], [oracles.log_of(answer.prefix[-1])])
    assert result.impossible_at.tolist() == [-1, -1]
    assert result.beliefs[0, -3:].tolist() == [[0.0, 1.0]] * 3
    close(result.beliefs[1, -1].amax(), 1.0)


def test_after_coming_back_zero_is_still_zero():
    matrices, observations = revived()
    result = filtered(matrices, torch.tensor([[*observations, 1, 2], [*observations, 2, 2]]))
    assert result.impossible_at.tolist() == [len(observations), -1]
    assert result.log_likelihood.tolist()[0] == -math.inf
    assert not result.beliefs[0, len(observations) :].any()
    assert not torch.isnan(result.log_likelihood_per_token).any()


def test_a_component_that_fell_below_every_float_comes_back():
    """The same as a mixture of one-state components, and as rows of a known component."""
    matrices, observations = revived()
    parts = [hs.HMM([1.0], [[1.0]], matrices.emission[m : m + 1]) for m in range(2)]
    mixture = hs.Mixture([0.5, 0.5], parts)
    result = hs.filter_mixture(mixture, torch.tensor([observations]))
    answer = oracles.by_enumeration(oracles.exact(matrices), observations)
    close_logs(result.log_likelihood, [oracles.log_of(answer.prefix[-1])])
    assert result.component_posterior[0, -1].tolist() == [0.0, 1.0]
    assert result.component_posterior[0, 0, 0] == pytest.approx(1 / (1 + 2**-31), rel=1e-15)


def wandering(seed):
    """Two decoupled dense pairs of states, the second with emissions near 2^-32 of what the first says."""
    rng = np.random.default_rng(seed)
    transition = np.zeros((4, 4))
    transition[:2, :2], transition[2:, 2:] = rows(rng, 2, 2), rows(rng, 2, 2)
    rare = np.array([[1, 2, 2**32 - 3], [3, 1, 2**32 - 4]]) / 2**32
    emission = np.vstack([np.column_stack([rows(rng, 2, 2), np.zeros(2)]), rare])
    observations = [*rng.integers(0, 2, 70).tolist(), 2, 2, 0, 2, *rng.integers(0, 2, 20).tolist(), 2]
    return Matrices(rows(rng, 1, 4)[0], transition, emission), observations


@pytest.mark.parametrize("seed", range(5))
def test_decoupled_chains_equal_the_exact_forward_recursion(seed):
    matrices, observations = wandering(seed)
    logs, belief = oracles.by_forward(oracles.exact(matrices), observations)
    result = filtered(matrices, torch.tensor([observations]))
    assert naive_filter_dies(matrices, observations)
    close_logs(result.log_likelihood, logs[-1:])
    close_logs(result.log_likelihood_per_token.cumsum(1)[0], logs)
    close(result.beliefs[0, -1], floats(belief))


def decoupled(rng, first, second):
    """One HMM that is, from the start and for ever, one or the other."""
    zeros = np.zeros((len(first.initial), len(second.initial)))
    return Matrices(
        rows(rng, 1, len(first.initial) + len(second.initial))[0],
        np.block([[first.transition, zeros], [zeros.T, second.transition]]),
        np.vstack([first.emission, second.emission]),
    )


def test_tiny_entries_equal_the_exact_forward_recursion():
    """Steps of up to 2^-64 in a row, after which only what seemed lost can be true; several rows at once, restarts."""
    rng = np.random.default_rng(40)
    finite = infinite = died = 0
    for _ in range(80):
        one, other = (tiny_entries(rng, int(rng.integers(1, 4)), 3) for _ in range(2))
        matrices = decoupled(rng, one, other)
        starts = [t % 51 == 0 for t in range(60)] if rng.random() < 0.3 else oracles.first_only([0] * 60)
        sequences = [[*a[:45], *b[:15]] for a, b in ((likely(rng, one, 60), likely(rng, other, 60)) for _ in range(4))]
        result = filtered(matrices, torch.tensor(sequences), starts=starts)
        for b, sequence in enumerate(sequences):
            logs, belief = oracles.by_forward(oracles.exact(matrices), sequence, starts)
            close_logs(result.log_likelihood[b], logs[-1])
            assert int(result.impossible_at[b]) == (logs.index(-math.inf) if -math.inf in logs else -1)
            close(result.beliefs[b, -1], floats(belief), relative=1e-11)  # exp of a difference of logs of about 1000
            finite += logs[-1] > -math.inf
            infinite += logs[-1] == -math.inf
            died += starts.count(True) == 1 and logs[-1] > -math.inf and naive_filter_dies(matrices, sequence)
    assert finite > 50
    assert infinite > 50
    assert died >= 10


def test_mixtures_with_tiny_entries_equal_the_exact_forward_recursion():
    """Rows in logarithms of several components and sequences at once, also where each sequence has its own component."""
    rng = np.random.default_rng(41)
    died = 0
    for _ in range(15):
        halves = [[tiny_entries(rng, 2, 3) for _ in range(2)] for _ in range(3)]
        parts = [*(decoupled(rng, *pair) for pair in halves), dense(rng, 4, 3)]
        mixture = hs.Mixture(np.full(4, 0.25), [hs.HMM(*part) for part in parts])
        sequences = [[*likely(rng, one, 40), *likely(rng, other, 10)] for one, other in halves for _ in range(2)]
        result = hs.filter_mixture(mixture, torch.tensor(sequences))
        components = torch.from_numpy(rng.permutation([0, 0, 1, 1, 2, 2]))
        known = filter_known_component(mixture, torch.tensor(sequences), components)
        for b, sequence in enumerate(sequences):
            answers = [oracles.by_forward(oracles.exact(part), sequence) for part in parts]
            expected = np.logaddexp.reduce([logs[-1] - math.log(4) for logs, _ in answers])
            close_logs(result.log_likelihood[b], expected)
            logs, belief = answers[components[b]]
            close_logs(known.log_likelihood_per_token[b].sum(), logs[-1])
            close(known.beliefs[b, -1], floats(belief), relative=1e-11)
            died += logs[-1] > -math.inf and naive_filter_dies(parts[components[b]], sequence)
    assert died >= 5


def test_restarting_does_not_revive_an_impossible_sequence():
    hmm = hs.HMM([1.0], [[1.0]], [[1.0, 0.0]])
    result = hs.filter_beliefs(hmm, torch.tensor([[0, 1, 0, 0]]), starts=[True, False, True, False])
    assert result.log_likelihood_per_token.tolist() == [[0.0, -math.inf, -math.inf, -math.inf]]
    assert result.impossible_at.tolist() == [1]
    assert result.beliefs[0, :, 0].tolist() == [1.0, 0.0, 0.0, 0.0]
    assert result.next_observation[0, 1:].tolist() == [[0.0, 0.0]] * 3


# ---------------------------------------------------------------------------------------------------------------------
# Other people's code, long sequences, edges


def test_hmmlearn_agrees():
    rng = np.random.default_rng(50)
    for num_states, num_symbols in [(1, 2), (2, 3), (5, 4), (16, 8)]:
        matrices = dense(rng, num_states, num_symbols)
        referee = CategoricalHMM(n_components=num_states, n_features=num_symbols)
        referee.startprob_, referee.transmat_, referee.emissionprob_ = matrices
        observations = symbols(rng, 3, 200, num_symbols)
        result = filtered(matrices, observations)
        expected = [referee.score(o[:, None].numpy()) for o in observations]
        np.testing.assert_allclose(result.log_likelihood, expected, rtol=1e-11)  # its sum runs in another order
        final = [referee.predict_proba(o[:, None].numpy())[-1] for o in observations]
        np.testing.assert_allclose(result.beliefs[:, -1], final, rtol=0, atol=1e-11)


def test_the_umbrella_of_the_textbook():
    """Russell and Norvig: P(rain on day 2 | umbrella on days 1 and 2) = 0.883."""
    result = hs.filter_beliefs(hs.load_process("umbrella"), torch.tensor([[0, 0]]))
    assert result.beliefs[0, 0, 0].item() == pytest.approx(0.9 / 1.1, abs=1e-9)  # the file's decimals are quantised
    assert result.beliefs[0, 1, 0].item() == pytest.approx(0.883, abs=5e-4)


@pytest.mark.usefixtures("unchecked")  # five seconds otherwise
def test_long_sequences_stay_laws():
    """20000 steps, compared with the exact recursion after 2000."""
    rng = np.random.default_rng(51)
    matrices = dense(rng, 3, 4)
    observations = symbols(rng, 1, 20_000, 4)
    result = filtered(matrices, observations)
    assert torch.isfinite(result.log_likelihood).all()
    assert torch.isfinite(result.log_likelihood_per_token).all()
    for laws in (result.beliefs, result.next_observation):
        assert (laws.sum(-1) - 1).abs().max() < 1e-14
    logs, belief = oracles.by_forward(oracles.exact(matrices), observations[0, :2000].tolist())
    assert result.log_likelihood_per_token[0, :2000].sum().item() == pytest.approx(logs[-1], rel=1e-12)
    close(result.beliefs[0, 1999], floats(belief))


def test_long_mixtures_keep_their_posterior():
    """Two components so alike that 1500 observations do not tell them apart: rounding must not do so either."""
    rng = np.random.default_rng(52)
    base = dense(rng, 2, 3)
    shift = np.array([[1, -1, 0], [-1, 0, 1]]) / 2**9
    parts = [base, base._replace(emission=base.emission + shift)]
    observations = symbols(rng, 1, 1500, 3)
    result = hs.filter_mixture(hs.Mixture([0.5, 0.5], [hs.HMM(*part) for part in parts]), observations)
    ends = [oracles.by_forward(oracles.exact(part), observations[0].tolist())[0][-1] for part in parts]
    assert abs(ends[0] - ends[1]) < 20
    assert result.log_likelihood.item() == pytest.approx(np.logaddexp(*ends) - math.log(2), rel=1e-12)
    expected = 1 / (1 + math.exp(ends[1] - ends[0]))
    # 1500 sums of logarithms of about 2000, rounded to 2^-43 each: below 1500 * 2^-43 = 2e-10 in all.
    assert result.component_posterior[0, -1, 0].item() == pytest.approx(expected, rel=2e-10)


@pytest.mark.parametrize("batch, time", [(0, 0), (0, 3), (3, 0), (1, 1)])
def test_empty_batches_and_sequences(batch, time):
    hmm = hs.make_process("random-hmm", num_states=3, num_symbols=2)
    mixture = hs.make_process("random-mixture", num_components=4, num_states=3, num_symbols=2)
    observations = torch.zeros(batch, time, dtype=torch.int64)
    starts = torch.arange(time) == 0
    for options in ({}, {"starts": starts}):
        single = hs.filter_beliefs(hmm, observations, strict=True, **options)
        assert single.beliefs.shape == (batch, time, 3)
        assert single.next_observation.shape == (batch, time, 2)
        mixed = hs.filter_mixture(mixture, observations, **options)
        assert mixed.component_posterior.shape == (batch, time, 4)
        for result in (single, mixed):
            assert result.log_likelihood.shape == (batch,)
            assert result.log_likelihood_per_token.shape == (batch, time)
            assert result.impossible_at.tolist() == [-1] * batch
            if time == 0:
                assert result.log_likelihood.tolist() == [0.0] * batch
        for process in (hmm, mixture):
            predicted = optimal_predictions(process, observations, **options).predicted_observation
            assert predicted.shape == (batch, time, 2)


NO_TIME = [(0, 0), (3, 0)]


@pytest.mark.parametrize("batch, time", [(0, 3), (1, 1), *NO_TIME])
def test_empty_batches_and_sequences_of_known_components(batch, time):
    mixture = hs.make_process("random-mixture", num_components=4, num_states=3, num_symbols=2)
    observations = torch.zeros(batch, time, dtype=torch.int64)
    known = filter_known_component(mixture, observations, torch.zeros(batch, dtype=torch.int64))
    assert known.beliefs.shape == (batch, time, 3)
    assert known.predicted_observation.shape == (batch, time, 2)
    assert known.log_likelihood_per_token.shape == (batch, time)


def test_autocast_does_not_reach_the_oracle():
    rng = np.random.default_rng(53)
    matrices, observations = dense(rng, 4, 3), symbols(rng, 3, 10, 3)
    plain = filtered(matrices, observations)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = filtered(matrices, observations)
    assert torch.equal(inside.beliefs, plain.beliefs)
    assert torch.equal(inside.next_observation, plain.next_observation)


def test_narrow_integers_are_read_as_symbols():
    rng = np.random.default_rng(54)
    matrices, observations = dense(rng, 3, 3), symbols(rng, 2, 6, 3)
    for dtype in (torch.int8, torch.int16, torch.int32):
        assert torch.equal(filtered(matrices, observations.to(dtype)).beliefs, filtered(matrices, observations).beliefs)


def test_first_impossible():
    inf = math.inf
    logs = torch.tensor([[0.0, -1.0, 0.0], [0.0, -inf, -inf], [-inf, -inf, -inf], [0, 0, -inf]], dtype=torch.float64)
    assert first_impossible(logs).tolist() == [-1, 1, 0, 2]
    assert first_impossible(logs[:, :0]).tolist() == [-1] * 4
    assert first_impossible(logs[:0]).tolist() == []


# ---------------------------------------------------------------------------------------------------------------------
# Refusals


BAD_OBSERVATIONS = [
    (torch.tensor([[0, 1], [1, 2]]), r"^observations\[1, 1\]: symbol 2 is not in \[0, 2\)$"),
    (torch.tensor([[0, -1]]), r"^observations\[0, 1\]: symbol -1 "),
    (torch.tensor([[2**40]]), r"^observations\[0, 0\]: symbol 1099511627776 "),
    (torch.tensor([0, 1]), r"^observations: must have shape \(batch, time\), got \(2,\)$"),
    (torch.tensor(0), r"^observations: must have shape"),
    (torch.zeros(1, 2, 3, dtype=torch.int64), r"^observations: must have shape"),
    (torch.tensor([[0.0, 1.0]]), r"^observations: must be integers, got torch.float32$"),
    (torch.tensor([[True, False]]), r"^observations: must be integers, got torch.bool$"),
    (torch.tensor([[0j, 1j]]), r"^observations: must be integers, got torch.complex64$"),
]


@pytest.mark.parametrize("observations, message", BAD_OBSERVATIONS)
@pytest.mark.usefixtures("unchecked")
def test_bad_observations_are_refused(observations, message):
    hmm = hs.HMM([1.0], [[1.0]], [[0.5, 0.5]])
    mixture = hs.Mixture([1.0], [hmm])
    calls = [
        lambda: hs.filter_beliefs(hmm, observations),
        lambda: hs.filter_mixture(mixture, observations),
        lambda: filter_known_component(mixture, observations, torch.zeros(1, dtype=torch.int64)),
        lambda: optimal_predictions(hmm, observations),
    ]
    for call in calls:
        with pytest.raises(InputError, match=message):
            call()


BAD_STARTS = [[True], [True] * 4, [False, True, True], [1, 0, 0], torch.ones(1, 3, dtype=torch.bool), np.zeros(3, bool)]


@pytest.mark.parametrize("starts", BAD_STARTS, ids=repr)
@pytest.mark.usefixtures("unchecked")
def test_bad_starts_are_refused(starts):
    with pytest.raises(InputError, match=r"^starts: must be 3 truth values of which the first is true$"):
        check_observations(torch.zeros(2, 3, dtype=torch.int64), 2, starts)


@pytest.mark.parametrize("components", [[0], [0, 2], [-1, 0], [[0, 1]]])
@pytest.mark.usefixtures("unchecked")
def test_bad_components_are_refused(components):
    mixture = hs.make_process("random-mixture", num_components=2, num_states=2, num_symbols=2)
    with pytest.raises(InputError, match=r"^components: must be 2 numbers in \[0, 2\)$"):
        filter_known_component(mixture, torch.zeros(2, 3, dtype=torch.int64), torch.tensor(components))


@pytest.mark.usefixtures("unchecked")
def test_a_process_without_an_exact_filter_is_refused():
    with pytest.raises(InputError, match=r"^process: no exact filter for object$"):
        optimal_predictions(object(), torch.zeros(1, 1, dtype=torch.int64))


def test_what_does_not_fit_is_refused_before_it_is_allocated():
    require_memory("small", 1)
    with pytest.raises(ResourceError, match=r"^large: needs 1048576\.0 GiB"):
        require_memory("large", 2**50)
    one = torch.ones(1, 1, 1, dtype=torch.float64).expand(2**16, 1, 1)
    mixture = hs.Mixture.from_law(np.full(2**16, 2**-16), StateEmitting(one[:, 0], one, one))
    observations = torch.zeros(2**11, 2**11, dtype=torch.int64)
    with pytest.raises(ResourceError, match=r"^filter_mixture: "):
        hs.filter_mixture(mixture, observations)
