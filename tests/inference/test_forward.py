"""Filters over long, tiny, empty and impossible data: equal to the exact recursion, or refused."""

import math

import numpy as np
import pytest
import torch
from hmmlearn.hmm import CategoricalHMM

import hmmscope as hs
import oracles
from hmmscope.errors import InputError, ResourceError
from hmmscope.inference import mixture_posterior as mixture_module
from hmmscope.inference.filtering import first_impossible
from hmmscope.inference.mixture_posterior import filter_known_component
from hmmscope.inference.optimal import optimal_predictions
from hmmscope.processes.observations import check_observations
from hmmscope.processes.params import StateEmissionParams
from hmmscope.sequences.encoding import Alphabet
from hmmscope.system_info import require_memory
from inference_cases import (
    BAD_OBSERVATIONS,
    BAD_STARTS,
    NO_TIME,
    close,
    close_logs,
    decoupled,
    filtered,
    floats,
    naive_filter_dies,
    per_token_logs,
    revived,
    symbols,
    wandering,
)
from strategies import dense, likely, tiny_entries


def test_the_size_of_a_chunk_changes_nothing(monkeypatch):
    mixture = hs.make_process("random-mixture", num_components=7, num_states=5, num_symbols=3, seed=1)
    observations = symbols(np.random.default_rng(33), 23, 9, 3)
    whole = hs.filter_mixture(mixture, observations)
    for chunk_bytes in (1, 8 * 6 * 7 * 5 * 4):
        monkeypatch.setattr(mixture_module, "CHUNK_BYTES", chunk_bytes)
        parts = hs.filter_mixture(mixture, observations)
        close(parts.component_posterior, whole.component_posterior)
        close(parts.next_observation, whole.next_observation)
        close_logs(parts.log_likelihood_terms, whole.log_likelihood_terms)


def test_demonstrations_tell_the_component():
    """A prompt of a corpus through the oracle: restarts matter, and the truth wins."""
    mixture = hs.make_process("random-mixture", num_components=20, num_states=8, num_symbols=6, seed=3)
    dataset = hs.ProcessDataset(
        mixture, layout=hs.PromptLayout(num_demonstrations=12, demonstration_length=4, test_length=4), seed=2
    )
    batch = dataset[0:50]
    result = hs.filter_mixture(mixture, batch.observations, reset_mask=dataset.layout.reset_mask)
    assert (result.impossible_at == -1).all()
    truth = result.component_posterior[:, -1].gather(1, batch.components[:, None])
    assert truth.mean() > 0.95
    known = filter_known_component(mixture, batch.observations, batch.components, reset_mask=dataset.layout.reset_mask)
    assert (known.log_likelihood_terms > -math.inf).all()
    # P(o) >= P(m) P_m(o) for the true component
    bound = mixture.component_weights.log()[batch.components] + known.log_likelihood_terms.sum(1)
    assert (result.log_likelihood - bound > -1e-12).all()


@pytest.mark.parametrize("num_quiet", [1, 7, 8, 9, 15, 16, 17, 33, 60, 200])
def test_a_state_that_fell_below_every_float_comes_back(num_quiet):
    matrices, observations = revived(num_quiet)
    answer = oracles.by_enumeration(oracles.exact(matrices), observations)
    result = filtered(matrices, torch.tensor([observations, [0] * len(observations)]))
    assert naive_filter_dies(matrices, observations) == (num_quiet >= 60)
    close_logs(result.log_likelihood_terms[0], per_token_logs(answer.prefix))
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
    assert not torch.isnan(result.log_likelihood_terms).any()


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


def test_transitions_that_emit_come_back():
    """The same two states, each of which stays and emits on the way; every sequence with its own component."""
    matrices, observations = revived()
    process = hs.LabelledHMM(matrices.initial, np.stack([np.diag(column) for column in matrices.emission.T]))
    sequences = torch.tensor([observations, [0] * len(observations)])
    exact = filtered(matrices, sequences)
    known = filter_known_component(hs.Mixture([0.5, 0.5], [process, process]), sequences, torch.tensor([1, 0]))
    close_logs(known.log_likelihood_terms, exact.log_likelihood_terms)
    assert known.beliefs[0, -3:].tolist() == [[0.0, 1.0]] * 3
    close(known.beliefs[1, -1], exact.beliefs[1, -1])


@pytest.mark.parametrize("seed", range(5))
def test_decoupled_chains_equal_the_exact_forward_recursion(seed):
    matrices, observations = wandering(seed)
    logs, belief = oracles.by_forward(oracles.exact(matrices), observations)
    result = filtered(matrices, torch.tensor([observations]))
    assert naive_filter_dies(matrices, observations)
    close_logs(result.log_likelihood, logs[-1:])
    close_logs(result.log_likelihood_terms.cumsum(1)[0], logs)
    close(result.beliefs[0, -1], floats(belief))


def test_tiny_entries_equal_the_exact_forward_recursion():
    """Steps of up to 2^-64 in a row, after which only what seemed lost can be true; several rows at once, restarts."""
    rng = np.random.default_rng(40)
    finite = infinite = died = 0
    for _ in range(80):
        one, other = (tiny_entries(rng, int(rng.integers(1, 4)), 3) for _ in range(2))
        matrices = decoupled(rng, one, other)
        starts = [t % 51 == 0 for t in range(60)] if rng.random() < 0.3 else oracles.first_only([0] * 60)
        sequences = [[*a[:45], *b[:15]] for a, b in ((likely(rng, one, 60), likely(rng, other, 60)) for _ in range(4))]
        result = filtered(matrices, torch.tensor(sequences), reset_mask=starts)
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
            close_logs(known.log_likelihood_terms[b].sum(), logs[-1])
            close(known.beliefs[b, -1], floats(belief), relative=1e-11)
            died += logs[-1] > -math.inf and naive_filter_dies(parts[components[b]], sequence)
    assert died >= 5


def test_restarting_does_not_revive_an_impossible_sequence():
    hmm = hs.HMM([1.0], [[1.0]], [[1.0, 0.0]])
    result = hs.filter_beliefs(hmm, torch.tensor([[0, 1, 0, 0]]), reset_mask=[True, False, True, False])
    assert result.log_likelihood_terms.tolist() == [[0.0, -math.inf, -math.inf, -math.inf]]
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
    assert torch.isfinite(result.log_likelihood_terms).all()
    for laws in (result.beliefs, result.next_observation):
        assert (laws.sum(-1) - 1).abs().max() < 1e-14
    logs, belief = oracles.by_forward(oracles.exact(matrices), observations[0, :2000].tolist())
    assert result.log_likelihood_terms[0, :2000].sum().item() == pytest.approx(logs[-1], rel=1e-12)
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
    for options in ({}, {"reset_mask": starts}):
        single = hs.filter_beliefs(hmm, observations, strict=True, **options)
        assert single.beliefs.shape == (batch, time, 3)
        assert single.next_observation.shape == (batch, time, 2)
        mixed = hs.filter_mixture(mixture, observations, **options)
        assert mixed.component_posterior.shape == (batch, time, 4)
        for result in (single, mixed):
            assert result.log_likelihood.shape == (batch,)
            assert result.log_likelihood_terms.shape == (batch, time)
            assert result.impossible_at.tolist() == [-1] * batch
            if time == 0:
                assert result.log_likelihood.tolist() == [0.0] * batch
        for process in (hmm, mixture):
            predicted = optimal_predictions(process, observations, **options).predicted_observation
            assert predicted.shape == (batch, time, 2)


@pytest.mark.parametrize("batch, time", [(0, 3), (1, 1), *NO_TIME])
def test_empty_batches_and_sequences_of_known_components(batch, time):
    mixture = hs.make_process("random-mixture", num_components=4, num_states=3, num_symbols=2)
    observations = torch.zeros(batch, time, dtype=torch.int64)
    known = filter_known_component(mixture, observations, torch.zeros(batch, dtype=torch.int64))
    assert known.beliefs.shape == (batch, time, 3)
    assert known.predicted_observation.shape == (batch, time, 2)
    assert known.log_likelihood_terms.shape == (batch, time)


def test_autocast_does_not_reach_the_oracle():
    rng = np.random.default_rng(53)
    matrices, observations = dense(rng, 4, 3), symbols(rng, 3, 10, 3)
    plain = filtered(matrices, observations)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = filtered(matrices, observations)
    assert torch.equal(inside.beliefs, plain.beliefs)
    assert torch.equal(inside.next_observation, plain.next_observation)


def test_narrow_integers_whole_floats_and_booleans_are_read_as_symbols():
    rng = np.random.default_rng(54)
    matrices, observations = dense(rng, 3, 3), symbols(rng, 2, 6, 3)
    flags = observations > 1
    assert torch.equal(filtered(matrices, flags).beliefs, filtered(matrices, flags.long()).beliefs)
    for dtype in (torch.int8, torch.int16, torch.int32, torch.float16, torch.float32, torch.float64):
        assert torch.equal(filtered(matrices, observations.to(dtype)).beliefs, filtered(matrices, observations).beliefs)
    hmm = hs.HMM([1.0], [[1.0]], [[0.2, 0.3, 0.5]])
    for name in ("uint8", "uint16", ">u2", "uint32", "uint64"):
        array = observations.numpy().astype(name)
        for rows in (array, list(array)):
            assert torch.equal(hs.log_likelihood(hmm, rows), hs.log_likelihood(hmm, observations))
            assert torch.equal(hs.most_likely_states(hmm, rows).states, torch.zeros(2, 6).long())


def test_first_impossible():
    inf = math.inf
    logs = torch.tensor([[0.0, -1.0, 0.0], [0.0, -inf, -inf], [-inf, -inf, -inf], [0, 0, -inf]], dtype=torch.float64)
    assert first_impossible(logs).tolist() == [-1, 1, 0, 2]
    assert first_impossible(logs[:, :0]).tolist() == [-1] * 4
    assert first_impossible(logs[:0]).tolist() == []


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


@pytest.mark.parametrize("starts", BAD_STARTS, ids=repr)
@pytest.mark.usefixtures("unchecked")
def test_bad_starts_are_refused(starts):
    with pytest.raises(InputError, match=r"^reset_mask: must be 3 booleans, the first of them True$"):
        check_observations(torch.zeros(2, 3, dtype=torch.int64), Alphabet(None, 2), starts)


@pytest.mark.parametrize("components", [[0], [0, 2], [-1, 0], [[0, 1]]])
@pytest.mark.usefixtures("unchecked")
def test_bad_components_are_refused(components):
    mixture = hs.make_process("random-mixture", num_components=2, num_states=2, num_symbols=2)
    with pytest.raises(InputError, match=r"^components: must be 2 integers in \[0, 2\), got "):
        filter_known_component(mixture, torch.zeros(2, 3, dtype=torch.int64), torch.tensor(components))


@pytest.mark.usefixtures("unchecked")
def test_a_process_without_an_exact_filter_is_refused():
    with pytest.raises(InputError, match=r"^process: must be a process"):
        optimal_predictions(object(), torch.zeros(1, 1, dtype=torch.int64))
    known = r"; supported by .*GeneralisedHMM, HMM, LabelledHMM, LinearGaussian, Mixture.*$"
    with pytest.raises(InputError, match=r"^process: MatrixProduct has no exact predictions" + known):
        optimal_predictions(hs.make_process("matmul"), torch.zeros(1, 1, dtype=torch.int64))


def test_what_does_not_fit_is_refused_before_it_is_allocated():
    require_memory("small", 1)
    with pytest.raises(ResourceError, match=r"^large: needs 1048576\.0 GiB"):
        require_memory("large", 2**50)
    one = torch.ones(1, 1, 1, dtype=torch.float64).expand(2**16, 1, 1)
    mixture = hs.Mixture.from_law(np.full(2**16, 2**-16), StateEmissionParams(one[:, 0], one, one))
    observations = torch.zeros(2**11, 2**11, dtype=torch.int64)
    with pytest.raises(ResourceError, match=r"^filter_mixture: "):
        hs.filter_mixture(mixture, observations)
