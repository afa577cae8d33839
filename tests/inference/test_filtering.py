"""The filters equal exact enumeration, keep the laws that every correct filter keeps, and know zero from tiny."""

import math

import numpy as np
import pytest
import torch

import hmmscope as hs
import oracles
from hmmscope.errors import InputError
from hmmscope.inference.forward import forward_steps
from hmmscope.inference.mixture_posterior import filter_known_component, predicted_before
from hmmscope.inference.optimal import optimal_predictions
from hmmscope.processes.params import StateEmissionParams
from inference_cases import (
    SINGLE,
    all_sequences,
    close,
    close_logs,
    filtered,
    first_zero,
    floats,
    mixture_cases,
    per_token_logs,
    random_cases,
    same_likelihood,
    shifted,
    single_answers,
    symbols,
)
from strategies import KINDS, Matrices, rows


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
        result = hs.filter_beliefs(hmm, observations, reset_mask=starts)
        answers = single_answers(number)
        close(result.beliefs, [floats(a.belief) for a in answers])
        close(result.next_observation, [floats(a.following) for a in answers])
        close(result.first_observation, floats(oracles.first_law(exact)))
        close_logs(result.log_likelihood, [oracles.log_of(a.prefix[-1]) for a in answers])
        close_logs(result.log_likelihood_terms, [per_token_logs(a.prefix) for a in answers])
        assert result.impossible_at.tolist() == [first_zero(a.prefix) for a in answers]
        optimal = optimal_predictions(hmm, observations, reset_mask=starts)
        assert optimal.component_posterior is None
        first = floats(oracles.first_law(exact))
        close(optimal.predicted_observation, [shifted(first, floats(a.following)) for a in answers])
        close_logs(optimal.log_likelihood_terms, [per_token_logs(a.prefix) for a in answers])


def test_strict_filter_names_the_first_impossible_entry():
    raised = 0
    for matrices, observations, starts in SINGLE:
        hmm = hs.HMM(*matrices)
        result = hs.filter_beliefs(hmm, observations, reset_mask=starts)
        dead = (result.impossible_at >= 0).nonzero()[:, 0].tolist()
        if dead:
            raised += 1
            place = f"observations[{dead[0]}, {int(result.impossible_at[dead[0]])}]: "
            with pytest.raises(InputError) as caught:
                hs.filter_beliefs(hmm, observations, reset_mask=starts, strict=True)
            assert str(caught.value).startswith(place)
        else:
            again = hs.filter_beliefs(hmm, observations, reset_mask=starts, strict=True)
            assert torch.equal(again.beliefs, result.beliefs)
    assert 50 < raised < 200


def test_filter_mixture_equals_enumeration():
    impossible = 0
    for weights, parts, observations, starts in mixture_cases(1, 120):
        mixture = hs.Mixture(weights, [hs.HMM(*part) for part in parts])
        (exact_weights,) = oracles.exact([weights])
        exact = [oracles.exact(part) for part in parts]
        result = hs.filter_mixture(mixture, observations, reset_mask=starts)
        answers = [oracles.mixture_by_enumeration(exact_weights, exact, o, starts) for o in observations.tolist()]
        first = [
            float(sum(w * p for w, p in zip(exact_weights, laws, strict=True)))
            for laws in zip(*(oracles.first_law(hmm) for hmm in exact), strict=True)
        ]
        close(result.component_posterior, [floats(posterior) for _, posterior, _ in answers])
        close(result.next_observation, [floats(following) for _, _, following in answers])
        close(result.first_observation, first)
        close_logs(result.log_likelihood, [oracles.log_of(prefix[-1]) for prefix, _, _ in answers])
        close_logs(result.log_likelihood_terms, [per_token_logs(prefix) for prefix, _, _ in answers])
        assert result.impossible_at.tolist() == [first_zero(prefix) for prefix, _, _ in answers]
        impossible += int((result.impossible_at >= 0).sum())
        optimal = optimal_predictions(mixture, observations, reset_mask=starts)
        close(optimal.predicted_observation, [shifted(first, floats(following)) for _, _, following in answers])
        assert torch.equal(optimal.component_posterior, result.component_posterior)
    assert impossible > 30


def test_filter_known_component_equals_enumeration():
    rng = np.random.default_rng(2)
    for weights, parts, observations, starts in mixture_cases(3, 80):
        mixture = hs.Mixture(weights, [hs.HMM(*part) for part in parts])
        components = torch.from_numpy(rng.integers(0, len(parts), len(observations)))
        result = filter_known_component(mixture, observations, components, reset_mask=starts)
        exact = [oracles.exact(parts[m]) for m in components.tolist()]
        answers = [oracles.by_enumeration(h, o, starts) for h, o in zip(exact, observations.tolist(), strict=True)]
        first = [floats(oracles.first_law(hmm)) for hmm in exact]
        close(result.beliefs, [floats(a.belief) for a in answers])
        expected = [shifted(f, floats(a.following)) for f, a in zip(first, answers, strict=True)]
        close(result.predicted_observation, expected)
        close_logs(result.log_likelihood_terms, [per_token_logs(a.prefix) for a in answers])


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
            close_logs(result.log_likelihood_terms[:, 0], np.log(law[0])[observations[:, 0]])
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
        law = hs.HMM(*matrices).params
        one = observations[:1]
        whole = filtered(matrices, one)
        cut, logs, beliefs = int(rng.integers(1, 25)), [], []
        for part in (one[:, :cut], one[:, cut:]):
            starts = torch.arange(part.shape[1]) == 0
            for step in forward_steps(law, part[None], starts):
                logs.append(step.log_norm[0])
                beliefs.append(step.belief[0])
            law = StateEmissionParams(step.next_probs[:, 0], law.transition_MSS, law.emission_MSV)
        close_logs(torch.stack(logs, 1), whole.log_likelihood_terms)
        close(torch.stack(beliefs, 1), whole.beliefs)


def test_neighbours_order_and_what_follows_do_not_matter():
    for rng, hmm, observations in random_cases(18):
        whole = filtered(hmm, observations)
        order = torch.from_numpy(rng.permutation(4))
        close(filtered(hmm, observations[order]).beliefs, whole.beliefs[order])
        for b in range(4):
            alone = filtered(hmm, observations[b : b + 1])
            close(alone.beliefs, whole.beliefs[b : b + 1])
            close_logs(alone.log_likelihood_terms, whole.log_likelihood_terms[b : b + 1])
        shorter = filtered(hmm, observations[:, :7])
        close(shorter.beliefs, whole.beliefs[:, :7])
        close(shorter.next_observation, whole.next_observation[:, :7])


def test_probabilities_of_all_sequences_sum_to_one():
    rng = np.random.default_rng(19)
    for kind in KINDS:
        for starts in (None, [True, False, True, False]):
            hmm = kind(rng, 3, 3)
            total = filtered(hmm, all_sequences(3, 4), reset_mask=starts).log_likelihood.exp().sum().item()
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
        dead = (result.log_likelihood_terms == -math.inf)[:, :, None]
        for laws in (result.beliefs, result.next_observation):
            assert (laws >= 0).all()
            close(laws.sum(-1, keepdim=True), (~dead).double())


def test_the_prediction_scores_the_next_observation():
    for _, hmm, observations in random_cases(22):
        result = filtered(hmm, observations)
        predicted = predicted_before(result.first_observation, result.next_observation)
        chosen = predicted.gather(2, observations[:, :, None])[:, :, 0]
        close_logs(chosen.log(), result.log_likelihood_terms)


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
        single = filtered(hmm, observations, reset_mask=starts)
        mixed = hs.filter_mixture(hs.Mixture([1.0], [hs.HMM(*hmm)]), observations, reset_mask=starts)
        assert torch.equal(mixed.impossible_at, single.impossible_at)
        close(mixed.next_observation, single.next_observation)
        close_logs(mixed.log_likelihood, single.log_likelihood)
        close(mixed.component_posterior[:, :, 0], (single.log_likelihood_terms > -math.inf).double())


def test_known_component_is_the_filter_of_that_component():
    rng = np.random.default_rng(32)
    parts = [hs.HMM(*kind(rng, 4, 3)) for kind in KINDS]
    mixture = hs.Mixture(np.full(6, 1 / 6), parts)
    observations, components = symbols(rng, 30, 20, 3), torch.from_numpy(rng.integers(0, 6, 30))
    starts = [t % 4 == 0 for t in range(20)]
    result = filter_known_component(mixture, observations, components, reset_mask=starts)
    for b, m in enumerate(components.tolist()):
        alone = hs.filter_beliefs(parts[m], observations[b : b + 1], reset_mask=starts)
        close(result.beliefs[b : b + 1], alone.beliefs)
        close_logs(result.log_likelihood_terms[b : b + 1], alone.log_likelihood_terms)
        expected = optimal_predictions(parts[m], observations[b : b + 1], reset_mask=starts).predicted_observation
        close(result.predicted_observation[b : b + 1], expected)


@pytest.mark.usefixtures("unchecked")
def test_a_column_with_the_lengths_of_its_sequences() -> None:
    """hmmlearn's X and lengths, in every answer about sequences of different lengths."""
    hmm = hs.load_process("umbrella")
    mixture = hs.Mixture([0.5, 0.5], [hmm, hmm])
    column, lengths = torch.tensor([0, 1, 1, 0, 0, 1])[:, None], [2, 1, 3]
    rows = torch.tensor([[0, 1, 0], [1, 0, 0], [0, 0, 1]])
    for ask in (hs.filter_beliefs, hs.smooth_beliefs, hs.most_likely_states, hs.log_likelihood, hs.sample_state_paths):
        found, expected = ask(hmm, column, lengths=lengths), ask(hmm, rows, lengths=lengths)
        for a, b in zip(parts_of(found), parts_of(expected), strict=True):
            assert torch.equal(a, b)
    for ask in (
        hs.filter_mixture,
        hs.optimal_predictions,
        hs.mixture_predictions,
        lambda pool, X, **given: hs.filter_known_component(pool, X, [0, 1, 0], **given),
        lambda _, X, **given: hs.memory_beliefs(hmm, X, 2, **given),
    ):
        found = ask(mixture, column, lengths=lengths)
        for a, b in zip(parts_of(found), parts_of(ask(mixture, rows, lengths=lengths)), strict=True):
            assert torch.equal(a, b)
        for b, length in enumerate(lengths):
            alone = ask(mixture, rows[[b] * 3, :length])  # three rows, as there are three components above
            for whole, own in zip(parts_of(found), parts_of(alone), strict=True):
                if whole.ndim > 1:
                    close(whole[b, :length], own[b])
                    assert not whole[b, length:].any()
    for wrong in ([2, 1], [2, 1, 4], [-1, 7], []):
        with pytest.raises(InputError, match=r"lengths: must be 6 integers in \[0, 1\], or sum to 6"):
            hs.filter_beliefs(hmm, column, lengths=wrong)


def parts_of(found: object) -> list[torch.Tensor]:
    """The tensors of a result."""
    return (
        [found] if isinstance(found, torch.Tensor) else [x for x in vars(found).values() if isinstance(x, torch.Tensor)]
    )


@pytest.mark.parametrize("num_states", [3, 70])
def test_likelihoods_of_a_ragged_batch(num_states: int) -> None:
    """Many states go another road where all lengths are equal; sequences in doubt, and empty ones, are counted right."""
    rng = np.random.default_rng(num_states)
    rows = [rng.dirichlet(np.ones(size), num_states) for size in (num_states, 4)]
    rows[1][:, 3], rows[1][:, 0] = 0, rows[1][:, 0] + rows[1][:, 3]  # the last symbol is impossible
    hmm = hs.HMM(np.full(num_states, 1 / num_states), *rows)
    observations = torch.from_numpy(rng.integers(0, 3, (40, 25)))
    lengths = torch.from_numpy(rng.integers(0, 26, 40))
    observations[0, 5], lengths[0], lengths[1] = 3, 20, 0
    observations[2, 24], lengths[2] = 3, 24  # beyond the end
    found = hs.log_likelihood(hmm, observations, lengths=lengths)
    expected = hs.filter_beliefs(hmm, observations, lengths=lengths).log_likelihood
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    assert (found[0], found[1]) == (-math.inf, 0.0)
    with pytest.raises(InputError, match="lengths: must be 40 integers"):
        hs.log_likelihood(hmm, observations, lengths=[1, 2])
