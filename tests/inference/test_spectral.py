"""Observable operators: exact on exact Hankel matrices, and of processes that are no HMM."""

import pytest
import torch

from hmmscope.errors import InputError
from hmmscope.inference.filtering import filter_beliefs
from hmmscope.inference.memory import all_sequences
from hmmscope.inference.spectral import Operators, learn_operators
from hmmscope.processes.combine import product
from hmmscope.processes.make import make_process


@pytest.mark.parametrize("name, states", [("even", 2), ("golden-mean", 2), ("rrxor", 5), ("mess3", 3)])
def test_states_are_counted_and_predictions_are_exact(name: str, states: int) -> None:
    process = make_process(name)
    exact = Operators.of(process)
    found = learn_operators(exact.probabilities, process.num_symbols, length=4 if process.num_symbols == 2 else 2)
    assert len(found.start) == states
    words = all_sequences(process.num_symbols, 6)
    assert (found.probabilities(words) - exact.probabilities(words)).abs().max() < 1e-8
    possible = words[exact.probabilities(words) > 1e-6]
    told = filter_beliefs(process, possible).next_observation
    assert (found.next_observation(possible) - told).abs().max() < 1e-5  # divided by probabilities down to 1e-6


def test_dimensions_of_independent_factors_multiply() -> None:
    both = product(make_process("even"), make_process("golden-mean"))
    assert len(learn_operators(Operators.of(both).probabilities, 4, length=2).start) == 4


def test_a_process_that_is_no_hmm() -> None:
    clock = Operators.of(make_process("probability-clock"))
    words = all_sequences(2, 8)
    law = clock.probabilities(words)
    assert law.min() > 0
    assert law.sum() == pytest.approx(1, abs=1e-12)
    found = learn_operators(clock.probabilities, 2)
    assert len(found.start) == 3
    assert (found.probabilities(words) - law).abs().max() < 1e-10
    # After n ones its vector has turned by n radians: a period that no power of a non-negative 3 x 3 matrix has.
    turns = torch.linalg.eigvals(clock.step[1])
    assert turns.imag.abs().max() > 0.1
    assert turns.abs().max() == pytest.approx(turns.abs().min().item())
    ahead = clock.next_observation(torch.ones(1, 12, dtype=torch.int64))[0]
    assert torch.allclose(ahead.sum(1), torch.ones(12, dtype=torch.float64))
    assert len(set((ahead[1:, 0] > ahead[:-1, 0]).tolist())) == 2  # rises and falls


def test_a_lower_rank_is_worse_and_a_wrong_one_is_refused() -> None:
    exact = Operators.of(make_process("rrxor"))
    words = all_sequences(2, 6)
    short = learn_operators(exact.probabilities, 2, rank=3)
    assert (short.probabilities(words) - exact.probabilities(words)).abs().max() > 1e-4
    with pytest.raises(InputError, match="rank: must be at most 3"):
        learn_operators(exact.probabilities, 2, length=1, rank=4)
