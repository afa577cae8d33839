"""Exact answers of generalised HMMs, against sums over all words in plain loops, and of an HMM written as one."""

import itertools
import math

import pytest
import torch

import hmmscope as hs
from hmmscope.inference.entropy import block_entropies, entropy_rate
from hmmscope.inference.filtering import filter_beliefs
from hmmscope.inference.memory import memory_beliefs
from hmmscope.inference.memory_error import memory_error
from hmmscope.inference.mixed_states import mixed_states
from hmmscope.inference.process_facts import least_dimension, process_facts
from hmmscope.inference.stationary_process import stationary_distribution
from hmmscope.processes.combine import as_labelled
from hmmscope.processes.generalised import GeneralisedHMM
from hmmscope.processes.hmm import HMM

NAMES = ("bloch-walk", "post-quantum", "probability-clock")


def probability(start: torch.Tensor, process: GeneralisedHMM, word: tuple[int, ...]) -> float:
    vector = start.tolist()
    size = range(len(vector))
    for symbol in word:
        step = process.labelled[symbol].tolist()
        vector = [sum(vector[i] * step[i][j] for i in size) for j in size]
    return sum(vector)


@pytest.fixture(params=NAMES)
def process(request: pytest.FixtureRequest) -> GeneralisedHMM:
    return hs.make_process(request.param)


def test_filter_is_right_and_names_what_is_impossible(process: GeneralisedHMM) -> None:
    words = list(itertools.product(range(process.num_symbols), repeat=4))
    found = filter_beliefs(process, torch.tensor(words))
    for word, total, at in zip(words, found.log_likelihood.tolist(), found.impossible_at.tolist(), strict=True):
        exact = probability(process.initial, process, word)
        assert (math.exp(total) == pytest.approx(exact, rel=1e-9)) if at < 0 else (abs(exact) < 1e-12)
    assert not found.next_observation.isnan().any()
    assert (found.next_observation >= 0).all()


def test_what_never_follows_is_impossible() -> None:
    """After a 0 the post-quantum process begins anew, where a 0 has the weight 1 - 1 - ln 1 = 0, up to rounding."""
    for grow in (1.7, 2.0, 3.3):
        process = hs.make_process("post-quantum", grow=grow)
        found = filter_beliefs(process, torch.tensor([[1, 0, 0, 1], [1, 0, 1, 0]]))
        assert found.impossible_at.tolist() == [2, -1]
        assert found.log_likelihood[0] == -torch.inf
        assert not found.beliefs[0, 2:].any()


def test_stationary_vector_and_entropies(process: GeneralisedHMM) -> None:
    vector = stationary_distribution(process)
    torch.testing.assert_close(vector @ process.labelled.sum(0), vector, atol=1e-12, rtol=0)
    blocks = block_entropies(process, 3)
    for length in (1, 2, 3):
        words = itertools.product(range(process.num_symbols), repeat=length)
        exact = [probability(vector, process, word) for word in words]
        assert float(blocks.block[length - 1]) == pytest.approx(-sum(p * math.log(p) for p in exact if p > 1e-12))
    assert blocks.informed is None
    rate = entropy_rate(process, num_samples=50, length=60)
    assert 0 == rate.lower_bound < rate.low <= rate.value <= rate.high <= rate.upper_bound < float(blocks.block[0])


def test_memory(process: GeneralisedHMM) -> None:
    """After a window, from the stationary vector: P(next | window) = P(window, next) / P(window)."""
    vector = stationary_distribution(process)
    found = memory_beliefs(process, torch.tensor([[0, 1, 1]]), 2).next_observation[0, -1].tolist()
    known = probability(vector, process, (1, 1))
    assert found == pytest.approx([probability(vector, process, (1, 1, v)) / known for v in range(process.num_symbols)])
    errors = [memory_error(process, length, 5).total_variation for length in (1, 3)]
    assert errors[0] > errors[1] > 0


def test_a_process_with_finitely_many_mixed_states_has_an_exact_rate() -> None:
    """RRXOR in another frame, whose matrices have negative entries, and one dimension more than it needs."""
    rrxor = as_labelled(hs.make_process("rrxor"))
    turn = torch.eye(6, dtype=torch.float64) + 0.3 * torch.arange(36).view(6, 6).sin().double()
    frame = turn / turn.sum(1, keepdim=True)
    step = torch.zeros(2, 6, 6, dtype=torch.float64)
    step[:, :5, :5] = rrxor.labelled
    step[:, 5] = step[:, 0]
    start = torch.cat([rrxor.initial, torch.zeros(1)])
    end = torch.ones(6, dtype=torch.float64)
    process = GeneralisedHMM.in_frame(start, step, end, frame)
    assert float(process.labelled.min()) < -0.01
    assert least_dimension(process) == 5
    found, rate = mixed_states(process), entropy_rate(process)
    assert (found.complete, len(found.depth)) == (True, 36)
    assert rate.exact
    assert rate.value == pytest.approx(2 / 3 * math.log(2))
    assert dict(process_facts(process))["least dimension"] == "5 of 6"


def test_not_unique() -> None:
    still = GeneralisedHMM([0.5, 0.5], torch.eye(2)[None])
    with pytest.raises(hs.errors.InputError, match="process: the stationary vector is not unique"):
        stationary_distribution(still)
    assert dict(process_facts(still)) == {"fixed vector": "not unique", "least dimension": "1 of 2"}
    coin = HMM([1.0], [[1.0]], [[0.5, 0.5]])
    assert entropy_rate(GeneralisedHMM([1.0], as_labelled(coin).labelled)).value == pytest.approx(math.log(2))
