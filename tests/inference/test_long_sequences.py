"""Log-likelihoods of 10^5 and 10^6 observations do not drift, in five families of chains, against integer arithmetic.

Budgets: relative 1e-12 in float64, and 1e-6 where the laws are float32 (their sums are float64). Probabilities are
integers over 2^32, so the reference is the forward recursion in integers of 2048 bits, with one logarithm at the end.
"""

import functools
import math

import numpy as np
import pytest
import torch

import hmmscope as hs
from hmmscope.processes.integer_rows import integer_weights

LONG, LONGER = 10**5, 10**6
KEPT_BITS = 2048
BUDGET = {torch.float64: 1e-12, torch.float32: 1e-6}

THREE = [[0.7, 0.2, 0.1], [0.1, 0.6, 0.3], [0.25, 0.05, 0.7]]
FAMILIES = {
    "mixing": ([0.5, 0.3, 0.2], [[0.4, 0.35, 0.25], [0.3, 0.3, 0.4], [0.2, 0.5, 0.3]], THREE),
    "sticky": ([1 / 3] * 3, [[0.9998, 1e-4, 1e-4], [1e-4, 0.9998, 1e-4], [1e-4, 1e-4, 0.9998]], THREE),
    "left-right": ([1, 0, 0], [[0.99995, 5e-5, 0], [0, 0.9999, 1e-4], [0, 0, 1]], THREE),
    "periodic": ([1 / 3] * 3, [[0, 1, 0], [0, 0, 1], [1, 0, 0]], THREE),
    "zeros": ([0.5, 0.5, 0], [[0, 0.5, 0.5], [1, 0, 0], [0, 1, 0]], [[0.5, 0.5, 0], [0.25, 0, 0.75], [0, 1, 0]]),
}


@functools.cache
def process(family: str) -> hs.HMM:
    return hs.HMM(*(dyadic(rows) for rows in FAMILIES[family]))


def dyadic(rows: list) -> np.ndarray:
    """Rows in multiples of 2^-20, so that a state can be split without rounding; what is left over goes to the largest."""
    units = np.round(np.atleast_2d(np.asarray(rows, dtype=np.float64)) * 2**20)
    units[np.arange(len(units)), units.argmax(1)] += 2**20 - units.sum(1)
    return (units / 2**20).reshape(np.shape(rows))


@functools.cache
def sequence(family: str, time: int) -> torch.Tensor:
    """One sequence (1, time) of the family."""
    return process(family).sample_paths(np.arange(1), np.arange(time) == 0, 3).observations


def exact_log_likelihood(hmm: hs.HMM, observations: list[int]) -> float:
    """The forward recursion in integers: weights are (probability * 2^32)^2 a step, cut to `KEPT_BITS` bits."""
    rows = (hmm.initial, hmm.transition, hmm.emission)
    initial, transition, emission = (integer_weights(part).tolist() for part in rows)
    size, shifted = len(initial), 0
    law = [p * row[observations[0]] for p, row in zip(initial, emission, strict=True)]
    into = [[(i, transition[i][j]) for i in range(size) if transition[i][j]] for j in range(size)]
    for symbol in observations[1:]:
        law = [sum(law[i] * p for i, p in into[j]) * emission[j][symbol] for j in range(size)]
        surplus = max(law).bit_length() - KEPT_BITS
        if surplus > 64 * 16:  # cut now and then
            law = [weight >> surplus for weight in law]
            shifted += surplus
    return math.log(sum(law)) + (shifted - 64 * len(observations)) * math.log(2)


@functools.cache
def reference(family: str, time: int) -> float:
    return exact_log_likelihood(process(family), sequence(family, time)[0].tolist())


def error(computed: torch.Tensor, expected: float) -> float:
    return abs(float(computed) - expected) / abs(expected)


def split_states(hmm: hs.HMM, copies: int) -> hs.HMM:
    """Every state `copies` times, entered with weights 1, 2^-1, 2^-2, .. (the last one twice): the same likelihoods."""
    share = torch.tensor([2.0 ** -(k + 1) for k in range(copies - 1)] + [2.0 ** -(copies - 1)], dtype=torch.float64)
    clone = torch.arange(hmm.num_states).repeat_interleave(copies)
    weights = share.repeat(hmm.num_states)
    rows = (hmm.initial[clone] * weights, hmm.transition[clone][:, clone] * weights, hmm.emission[clone])
    split = hs.HMM(*rows)
    assert all(torch.equal(a, b) for a, b in zip(rows, (split.initial, split.transition, split.emission), strict=True))
    return split


@pytest.mark.parametrize("family", FAMILIES)
def test_reference_is_exact(family: str) -> None:
    """Against the recursion in floats, every sum exactly rounded."""
    observations = sequence(family, 60)[0].tolist()
    rows = (process(family).initial, process(family).transition, process(family).emission)
    initial, transition, emission = (part.tolist() for part in rows)
    law = initial
    terms = []
    for symbol in observations:
        joint = [p * emission[s][symbol] for s, p in enumerate(law)]
        terms.append(math.log(math.fsum(joint)))
        total = math.fsum(joint)
        law = [math.fsum(joint[i] / total * transition[i][j] for i in range(3)) for j in range(3)]
    assert exact_log_likelihood(process(family), observations) == pytest.approx(math.fsum(terms), rel=1e-13)


@pytest.mark.drawn(4)
@pytest.mark.parametrize("dtype", BUDGET)
@pytest.mark.parametrize("family", FAMILIES)
def test_hundred_thousand_observations(family: str, dtype: torch.dtype) -> None:
    found = hs.log_likelihood(process(family), sequence(family, LONG), dtype=dtype)
    measured = error(found, reference(family, LONG))
    print(f"{family}, {dtype}: relative error {measured:.1e}")
    assert measured < BUDGET[dtype]


@pytest.mark.drawn(2)
@pytest.mark.parametrize("family", FAMILIES)
def test_other_roads(family: str) -> None:
    """The filter and the mixture's running sums over the first 5000."""
    hmm, short = process(family), LONG // 20
    observations, expected = sequence(family, short), reference(family, short)
    assert error(hs.filter_beliefs(hmm, observations).log_likelihood, expected) < 1e-12
    for dtype, budget in BUDGET.items():
        twice = hs.mixture_predictions(hs.Mixture([0.5, 0.5], [hmm, hmm]), observations, dtype=dtype)
        assert error(twice.log_likelihood_terms.sum(), expected) < budget


@pytest.mark.parametrize("dtype", BUDGET)
def test_many_states(dtype: torch.dtype) -> None:
    """Each state split into twelve, five sequences: the routine of matrix products, with the same likelihood."""
    for family in ("sticky", "zeros"):
        observations = sequence(family, LONG).expand(5, -1)
        found = hs.log_likelihood(split_states(process(family), 12), observations, dtype=dtype)
        assert max(error(one, reference(family, LONG)) for one in found) < BUDGET[dtype]


def test_a_float32_sum_is_outside_the_budget() -> None:
    """What the budget is there to catch."""
    terms = hs.filter_beliefs(process("mixing"), sequence("mixing", LONG)).log_likelihood_terms[0]
    running = torch.from_numpy(np.cumsum(terms.numpy().astype(np.float32), dtype=np.float32))[-1]
    assert error(running, reference("mixing", LONG)) > BUDGET[torch.float32]
    assert error(terms.sum(), reference("mixing", LONG)) < BUDGET[torch.float64]


def test_one_wrong_term_in_a_hundred_thousand_is_outside_the_budget() -> None:
    altered = sequence("periodic", LONG).clone()
    altered[0, LONG // 2] = (altered[0, LONG // 2] + 1) % 3
    found = hs.log_likelihood(process("periodic"), altered)
    assert error(found, reference("periodic", LONG)) > BUDGET[torch.float32]


@pytest.mark.soak
@pytest.mark.parametrize("family", FAMILIES)
def test_a_million_observations(family: str) -> None:
    """G14: no drift in a million steps, in both precisions, on all roads."""
    hmm, observations, expected = process(family), sequence(family, LONGER), reference(family, LONGER)
    for dtype, budget in BUDGET.items():
        measured = error(hs.log_likelihood(hmm, observations, dtype=dtype), expected)
        split = error(hs.log_likelihood(split_states(hmm, 8), observations, dtype=dtype), expected)
        print(f"{family}, {dtype}: relative error {measured:.1e}, {split:.1e} with 24 states")
        assert max(measured, split) < budget
    assert error(hs.filter_beliefs(hmm, observations).log_likelihood, expected) < 1e-12
