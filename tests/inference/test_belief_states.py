"""Beliefs by the compiled loop are those of the filter."""

import pytest
import torch

from hmmscope.datasets.process_dataset import ProcessDataset
from hmmscope.errors import InputError
from hmmscope.inference import loop_inputs as tables
from hmmscope.inference.fast import belief_states
from hmmscope.inference.filtering import filter_beliefs
from hmmscope.inference.forward import forward_steps
from hmmscope.processes.hmm import HMM
from hmmscope.processes.make import make_process

NAMES = ["cyclic-det", "cyclic-rnd", "cyclic-hard", "ran-hmm", "mess3", "rrxor", "golden-mean", "even", "random-hmm"]


@pytest.mark.long
@pytest.mark.drawn(6)
@pytest.mark.parametrize("few_states", [64, 1])
@pytest.mark.parametrize("name", NAMES)
def test_both_roads(name: str, few_states: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiled loops and the matrix products, against the plain recursion."""
    monkeypatch.setattr(tables, "FEW_STATES", few_states)
    process = make_process(name)
    observations = ProcessDataset(process, length=40, seed=3)[0:70].observations
    starts = torch.arange(40) % 13 == 0
    for mask in (torch.arange(40) == 0, starts):
        if mask is starts and name in ("rrxor", "even"):
            continue  # a restart may meet a symbol that cannot come first
        steps = forward_steps(process.params, observations[None], mask)
        expected = torch.stack([step.belief[0] for step in steps], 1)
        assert (belief_states(process, observations, reset_mask=mask) - expected).abs().max() < 1e-13


def test_impossible_observations_give_zeros() -> None:
    hmm = HMM([1.0, 0.0], [[0.5, 0.5], [0.0, 1.0]], [[1.0, 0.0], [0.0, 1.0]])
    observations = torch.tensor([[0, 1, 0, 0], [0, 0, 1, 1], [1, 0, 0, 0]])
    expected = filter_beliefs(hmm, observations).beliefs
    assert torch.equal(belief_states(hmm, observations), expected)
    assert expected[0, 2].eq(0).all()


def test_tiny_probabilities_are_gone_over_again() -> None:
    """A sum of 2^-32 at a step is far above what is doubted: nothing is lost by underflow in one step."""
    tiny = 2.0**-32
    hmm = HMM([1 - tiny, tiny], [[1 - tiny, tiny], [0.0, 1.0]], [[1.0, 0.0], [tiny, 1 - tiny]])
    observations = torch.tensor([[1] * 30 + [0] * 30])
    expected = filter_beliefs(hmm, observations).beliefs
    assert (belief_states(hmm, observations) - expected).abs().max() < 1e-13


def test_unknown_symbols_are_refused() -> None:
    with pytest.raises(InputError, match=r"observations\[0, 1\]: symbol 5 is not in"):
        belief_states(make_process("cyclic-det"), torch.tensor([[0, 5]]))
