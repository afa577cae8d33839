"""The parallel-scan filter is the sequential filter, for any length, for impossible data, and far below every float."""

import math

import numpy as np
import pytest
import torch

import hmmscope as hs
import oracles
from comparing import close, floats
from hmmscope.inference.scan import scan_beliefs
from inference_cases import decoupled
from strategies import KINDS, as_labelled, dense, likely, some_starts, tiny_entries


def agree(one, other):
    assert torch.equal(one.impossible_at, other.impossible_at)
    assert torch.equal(one.beliefs > 0, other.beliefs > 0)
    assert not any(torch.isnan(value).any() for value in vars(one).values())
    np.testing.assert_allclose(one.beliefs, other.beliefs, rtol=0, atol=1e-11)
    np.testing.assert_allclose(one.next_observation, other.next_observation, rtol=0, atol=1e-11)
    np.testing.assert_allclose(one.log_likelihood, other.log_likelihood, rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(one.log_likelihood_terms, other.log_likelihood_terms, rtol=1e-11, atol=1e-13)
    close(one.first_observation, other.first_observation)


@pytest.mark.drawn(5)
@pytest.mark.parametrize("time", [0, 1, 2, 3, 4, 5, 7, 8, 64, 1000, 4097])
def test_scan_equals_loop(time):
    """N2."""
    rng = np.random.default_rng(time)
    impossible = 0
    for number in range(24 if time < 100 else 6 if time < 2000 else 2):
        matrices = KINDS[number % 6](rng, int(rng.integers(1, 5)), int(rng.integers(1, 4)))
        hmm = hs.HMM(*matrices) if number % 4 else hs.LabelledHMM(*as_labelled(matrices))
        random = rng.integers(0, hmm.num_symbols, time).tolist()
        observations = torch.tensor([likely(rng, matrices, time), random], dtype=torch.int64).reshape(2, time)
        starts = some_starts(rng, time) if number % 3 == 0 and time else None
        lengths = [time, int(rng.integers(0, time + 1))] if number % 2 else None
        expected = hs.filter_beliefs(hmm, observations, reset_mask=starts, lengths=lengths)
        agree(scan_beliefs(hmm, observations, reset_mask=starts, lengths=lengths), expected)
        impossible += int((expected.impossible_at >= 0).sum())
    assert time < 3 or time > 100 or impossible > 0


def test_what_vanishes_in_products_goes_the_sequential_way():
    """Two halves that never mix, with steps down to 2^-64: only the end tells which it was."""
    rng = np.random.default_rng(1)
    finite = 0
    for _ in range(25):
        one, other = (tiny_entries(rng, 2, 3) for _ in range(2))
        matrices = decoupled(rng, one, other)
        sequences = [[*likely(rng, a, 45), *likely(rng, b, 15)] for a, b in ((one, other), (other, one))]
        result = scan_beliefs(hs.HMM(*matrices), torch.tensor(sequences))
        for b, sequence in enumerate(sequences):
            logs, belief = oracles.by_forward(oracles.exact(matrices), sequence)
            np.testing.assert_allclose(result.log_likelihood[b], logs[-1], rtol=1e-12, atol=1e-13)
            close(result.beliefs[b, -1], floats(belief), relative=1e-11)
            finite += logs[-1] > -math.inf
    assert finite > 10


def test_a_hundred_thousand_steps():
    """Every belief a law, and the loop of `log_likelihood` and the exact recursion agree."""
    rng = np.random.default_rng(2)
    matrices = dense(rng, 3, 4)
    observations = torch.from_numpy(rng.integers(0, 4, (1, 100_000)))
    hmm = hs.HMM(*matrices)
    result = scan_beliefs(hmm, observations)
    assert torch.isfinite(result.log_likelihood_terms).all()
    assert (result.beliefs.sum(-1) - 1).abs().max() < 1e-14
    assert (result.next_observation.sum(-1) - 1).abs().max() < 1e-14
    loop = hs.filter_beliefs(hmm, observations[:, :5000])
    np.testing.assert_allclose(result.beliefs[:, :5000], loop.beliefs, rtol=0, atol=1e-11)
    # The filter forgets where it began: from the middle on, a filter started later says the same.
    late = hs.filter_beliefs(hmm, observations[:, 96_000:])
    np.testing.assert_allclose(result.beliefs[:, -2000:], late.beliefs[:, -2000:], rtol=0, atol=1e-11)
    logs, _ = oracles.by_forward(oracles.exact(matrices), observations[0, :1000].tolist())
    assert result.log_likelihood_terms[0, :1000].sum().item() == pytest.approx(logs[-1], rel=1e-12)


def test_the_comparison_can_fail():
    hmm = hs.make_process("mess3")
    observations = hs.ProcessDataset(hmm, length=8)[0:2].observations
    right, wrong = scan_beliefs(hmm, observations), hs.filter_beliefs(hmm, (observations + 1) % 3)
    with pytest.raises(AssertionError):
        agree(right, wrong)
