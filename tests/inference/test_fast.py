"""The fast roads, `log_likelihood` and `mixture_predictions`, equal the plain filters, impossible and vanishing data too."""

import contextlib
import math

import numpy as np
import pytest
import torch

import hmmscope as hs
from cli_cases import SMALL
from hmmscope import registry
from hmmscope.errors import InputError
from hmmscope.inference import loop_inputs, pools
from inference_cases import SINGLE, close_logs, decoupled, mixture_cases, revived, symbols
from strategies import KINDS, Matrices, dense, likely, rows, tiny_entries

#: float32 laws with float64 sums; 100 terms of about a nat, each to some units of 2^-24.
SINGLE_PRECISION = {"rtol": 2e-6, "atol": 2e-6}


def split_states(matrices, copies):
    """Every state `copies` times with equal shares: the same observations from more states."""
    clone = np.repeat(np.arange(len(matrices.initial)), copies)
    return Matrices(
        matrices.initial[clone] / copies, matrices.transition[np.ix_(clone, clone)] / copies, matrices.emission[clone]
    )


def widened(matrices, extra):
    """With `extra` states more that are never entered."""
    size, num_symbols = matrices.emission.shape
    return Matrices(
        np.append(matrices.initial, np.zeros(extra)),
        np.block([[matrices.transition, np.zeros((size, extra))], [np.zeros((extra, size)), np.eye(extra)]]),
        np.vstack([matrices.emission, np.tile(np.eye(num_symbols)[0], (extra, 1))]),
    )


def logs_agree(found, exact, dtype):
    assert found.dtype == torch.float64
    assert not torch.isnan(found).any()
    assert torch.equal(found == -torch.inf, exact == -torch.inf)
    finite = torch.isfinite(exact)
    if dtype == torch.float64:
        close_logs(found, exact)
    else:
        np.testing.assert_allclose(found[finite], exact[finite], **SINGLE_PRECISION)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_likelihoods_of_few_and_of_many_states(dtype):
    """The compiled loop up to 16 states, matrix products above (each state of a small HMM 16 or 32 times)."""
    impossible = 0
    for matrices, observations, _ in SINGLE[::5]:
        exact = hs.filter_beliefs(hs.HMM(*matrices), observations).log_likelihood
        impossible += int((exact == -torch.inf).sum())
        for copies in (1, 32):
            hmm = hs.HMM(*split_states(matrices, copies))
            logs_agree(hs.log_likelihood(hmm, observations, dtype=dtype), exact, dtype)
    assert impossible > 20


@pytest.mark.parametrize("num_states", [3, 40])
def test_any_number_of_sequences_and_threads(num_states):
    """Lanes of 128 sequences, and what is left over."""
    rng = np.random.default_rng(num_states)
    hmm = hs.HMM(*dense(rng, num_states, 4))
    observations = symbols(rng, 300, 40, 4)
    exact = hs.filter_beliefs(hmm, observations).log_likelihood
    for batch in (0, 1, 127, 128, 129, 300):
        logs_agree(hs.log_likelihood(hmm, observations[:batch]), exact[:batch], torch.float64)
    try:
        torch.set_num_threads(2)
        assert torch.equal(hs.log_likelihood(hmm, observations), hs.log_likelihood(hmm, observations))
        logs_agree(hs.log_likelihood(hmm, observations), exact, torch.float64)
    finally:
        torch.set_num_threads(1)
    assert hs.log_likelihood(hmm, observations[:3, :0]).tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("num_states", [17, 32, 33, 70])
def test_symbols_that_nobody_expects(num_states, dtype, monkeypatch):
    """Sums of 2^-32 in a row, of which a law is divided out at once, and every road to them."""
    rng = np.random.default_rng(num_states)
    initial, transition, emission = dense(rng, num_states, 4)
    emission[:, 3], emission[:, 2] = 2.0**-32, 2.0**-20
    emission[:, 0] += 1 - emission.sum(1)
    hmm = hs.HMM(initial, transition, emission)
    tokens = torch.from_numpy(np.repeat(rng.integers(0, 4, (7, 40)), 4, axis=1))
    exact = hs.filter_beliefs(hmm, tokens).log_likelihood
    assert exact.max() < -1000
    for least in (6, 100):
        monkeypatch.setattr(loop_inputs, "SEQUENCES_FOR_SUMS", least)
        logs_agree(hs.log_likelihood(hmm, tokens, dtype=dtype), exact, dtype)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("extra", [0, 40])
def test_what_vanishes_is_not_impossible(extra, dtype):
    """Only the end tells which half it was; in these loops the other half has fallen to nothing by then."""
    matrices, observations = revived(400)
    hmm = hs.HMM(*widened(matrices, extra))
    batch = torch.tensor([observations, [*observations[:-1], 1], [0] * len(observations)])
    batch = batch.repeat(2, 1)  # of few sequences none goes through products
    exact = hs.filter_beliefs(hmm, batch).log_likelihood
    assert exact[0] < -400 * 20  # 400 times 2^-32
    assert exact[1] == -torch.inf
    logs_agree(hs.log_likelihood(hmm, batch, dtype=dtype), exact, dtype)
    rng = np.random.default_rng(extra)
    for _ in range(10):
        one, other = (tiny_entries(rng, 2, 3) for _ in range(2))
        both = hs.HMM(*widened(decoupled(rng, one, other), extra))
        tokens = torch.tensor([[*likely(rng, a, 45), *likely(rng, b, 15)] for a, b in ((one, other), (other, one))])
        tokens = tokens.repeat(3, 1)
        logs_agree(hs.log_likelihood(both, tokens, dtype=dtype), hs.filter_beliefs(both, tokens).log_likelihood, dtype)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_mixture_predictions_are_those_of_the_filter(dtype):
    tolerance = {"rtol": 0, "atol": 1e-12 if dtype == torch.float64 else 1e-5}
    impossible = 0
    for weights, parts, observations, starts in mixture_cases(3, 60):
        mixture = hs.Mixture(weights, [hs.HMM(*part) for part in parts])
        exact = hs.optimal_predictions(mixture, observations, reset_mask=starts)
        found = hs.mixture_predictions(mixture, observations, reset_mask=starts, dtype=dtype)
        logs_agree(found.log_likelihood_terms, exact.log_likelihood_terms, dtype)
        possible = torch.isfinite(exact.log_likelihood_terms).cumprod(1).roll(1, 1).bool()
        possible[:, 0] = True
        np.testing.assert_allclose(
            found.predicted_observation[possible], exact.predicted_observation[possible], **tolerance
        )
        assert not found.predicted_observation[~possible].any()
        impossible += int((~possible).sum())
    assert impossible > 20


def test_mixtures_with_a_component_that_vanishes():
    rng = np.random.default_rng(5)
    for _ in range(10):
        parts = [tiny_entries(rng, 2, 3) for _ in range(3)]
        mixture = hs.Mixture(rows(rng, 1, 3)[0], [hs.HMM(*part) for part in parts])
        tokens = torch.tensor([[*likely(rng, a, 45), *likely(rng, b, 15)] for a in parts for b in parts])
        exact = hs.optimal_predictions(mixture, tokens)
        found = hs.mixture_predictions(mixture, tokens, dtype=torch.float64)
        terms, expected = found.log_likelihood_terms, exact.log_likelihood_terms
        np.testing.assert_allclose(terms, expected, rtol=0, atol=1e-12)  # differences of sums of up to 10^3 nats
        np.testing.assert_allclose(found.predicted_observation, exact.predicted_observation, rtol=0, atol=1e-12)


@pytest.mark.parametrize("num_symbols", [3, 40])
def test_a_batch_of_a_mixture_is_as_its_sequences_alone(num_symbols):
    """Of many sequences components move in tiles, for some steps of time each; of few lane by lane."""
    rng = np.random.default_rng(num_symbols)
    for size in (1, 5, 12):
        parts = [KINDS[0](rng, size, num_symbols) for _ in range(4)]
        mixture = hs.Mixture(rows(rng, 1, 4)[0], [hs.HMM(*part) for part in parts])
        tokens = torch.tensor([likely(rng, parts[n % 4], 150) for n in range(33)])
        tokens[::3, 70:75] = hs.MISSING
        starts, lengths = torch.arange(150) % 61 == 0, torch.arange(33) * 4 + 20
        for given in ({}, {"reset_mask": starts}, {"lengths": lengths}):
            found = hs.filter_mixture(mixture, tokens, **given)
            for row in (0, 7, 32):
                own = {key: value[row : row + 1] if key == "lengths" else value for key, value in given.items()}
                alone = hs.filter_mixture(mixture, tokens[row : row + 1], **own)
                for field in ("component_posterior", "next_observation", "log_likelihood_terms"):
                    np.testing.assert_allclose(getattr(found, field)[row], getattr(alone, field)[0], rtol=0, atol=1e-13)


def test_mixtures_of_many_states(monkeypatch):
    """One component after another, in matrix products, as all at once; zeros, restarts, and what nearly vanishes."""
    rng = np.random.default_rng(8)
    cases = [(weights, parts, tokens, starts) for weights, parts, tokens, starts in mixture_cases(4, 40)]
    for starts in (None, torch.arange(60) % 45 == 0):
        parts = [decoupled(rng, *(tiny_entries(rng, 2, 3) for _ in range(2))) for _ in range(3)]
        tokens = torch.tensor([[*likely(rng, a, 45), *likely(rng, b, 15)] for a in parts for b in parts])
        cases.append((rows(rng, 1, 3)[0], parts, tokens, starts))
    for weights, parts, tokens, starts in cases:
        mixture, found = hs.Mixture(weights, [hs.HMM(*part) for part in parts]), []
        for few in (32, 0):
            monkeypatch.setattr(pools, "FEW_STATES", few)
            found.append(hs.filter_mixture(mixture, tokens, reset_mask=starts))
            found.append(hs.mixture_predictions(mixture, tokens, reset_mask=starts, dtype=torch.float64))
        for one, other in zip(found[:2], found[2:], strict=True):
            assert torch.equal(one.log_likelihood_terms == -torch.inf, other.log_likelihood_terms == -torch.inf)
            for field, value in vars(one).items():
                np.testing.assert_allclose(vars(other)[field], value, rtol=1e-12, atol=1e-10)


def test_the_largest_weight_may_change_hands():
    """Running sums are relative to the largest weight so far, whichever component comes when."""
    rng = np.random.default_rng(6)
    parts = [KINDS[0](rng, 40, 4) for _ in range(8)]  # of fewer states no sum runs from component to component
    tokens = torch.tensor([likely(rng, part, 60) for part in parts])
    each = [hs.filter_beliefs(hs.HMM(*part), tokens).log_likelihood_terms.cumsum(1) for part in parts]
    exact = (torch.stack(each).logsumexp(0) - math.log(8)).diff(dim=1, prepend=torch.zeros(8, 1))
    for order in (range(8), reversed(range(8))):
        mixture = hs.Mixture([1 / 8] * 8, [hs.HMM(*parts[m]) for m in order])
        found = hs.mixture_predictions(mixture, tokens, dtype=torch.float64)
        np.testing.assert_allclose(found.log_likelihood_terms, exact, rtol=0, atol=1e-12)


def test_mixtures_of_transitions_that_emit():
    mixture = hs.Mixture([0.5, 0.5], [hs.make_process("mess3"), hs.make_process("mess3", switch=0.2)])
    tokens = hs.ProcessDataset(mixture, length=12)[0:4].observations
    exact = hs.optimal_predictions(mixture, tokens)
    found = hs.mixture_predictions(mixture, tokens)
    assert torch.equal(found.log_likelihood_terms, exact.log_likelihood_terms)
    assert torch.equal(found.predicted_observation, exact.predicted_observation)


@pytest.mark.usefixtures("unchecked")
def test_bad_requests_are_refused():
    hmm = hs.HMM([1.0], [[1.0]], [[0.5, 0.5]])
    mixture = hs.Mixture([1.0], [hmm])
    for call, process in ((hs.log_likelihood, hmm), (hs.mixture_predictions, mixture)):
        for dtype in (torch.float16, [torch.float64]):
            with pytest.raises(InputError, match=r"^dtype: must be torch.float64 or torch.float32"):
                call(process, torch.zeros(1, 2, dtype=torch.int64), dtype=dtype)
        with pytest.raises(InputError, match=r"^observations\[0, 1\]: symbol 2 "):
            call(process, torch.tensor([[0, 2]]))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_the_likelihood_of_a_mixture_is_of_all_its_components(dtype):
    """By hand, in which no component stands for the others, not even the first, whatever its weight."""
    a, b, c = (hs.HMM([1.0], [[1.0]], [[p, 1 - p]]) for p in (0.75, 0.25, 1.0))
    for weights, parts, tokens, expected in (
        ([0.5, 0.5], [a, b], [[0, 0]], 0.5 * 0.75**2 + 0.5 * 0.25**2),
        ([0.0, 1.0], [a, b], [[0, 0]], 0.25**2),
        ([0.5, 0.5], [c, b], [[1]], 0.375),
    ):
        mixture = hs.Mixture(weights, parts)
        assert hs.log_likelihood(mixture, tokens, dtype=dtype).tolist() == pytest.approx([math.log(expected)])
        assert hs.observe(mixture, tokens).log_likelihood_terms.sum(1).tolist() == pytest.approx([math.log(expected)])
    ragged = hs.log_likelihood(hs.Mixture([0.5, 0.5], [a, b]), [[0, 0], [1, 0]], lengths=[2, 1], dtype=dtype)
    assert ragged.tolist() == pytest.approx([math.log(0.3125), math.log(0.5)])


@pytest.mark.parametrize("name", sorted(set(registry.entries("process")) - {"file", "data", "given"}))
def test_the_likelihood_is_what_the_observer_says(name):
    """Processes without exact predictions refuse in the same line."""
    fields = registry.entries("process")[name].__dataclass_fields__
    process = hs.make_process(name, **{key: size for key, size in SMALL.items() if key in fields})
    drawn = hs.ProcessDataset(process, length=6)[0:3].observations
    expected = None
    with contextlib.suppress(InputError):
        expected = hs.observe(process, drawn).log_likelihood_terms.sum(1)
    if expected is None:
        with pytest.raises(InputError, match="has no exact predictions"):
            hs.log_likelihood(process, drawn)
    else:
        torch.testing.assert_close(hs.log_likelihood(process, drawn), expected, rtol=1e-9, atol=1e-9)
