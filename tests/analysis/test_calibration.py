"""The test of the oracle itself: exact laws pass, and oracles that are off by one or ignore starts do not."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch

from analysis_cases import LAYOUTS, PROMPTS, Function, mixture, random_hmm
from hmmscope.analysis.calibration import bet, miscalibrated
from hmmscope.analysis.curves import Score, evaluate
from hmmscope.datasets.layouts import PromptLayout, SequenceLayout
from hmmscope.datasets.process_dataset import Batch, ProcessDataset
from hmmscope.datasets.targets import Belief, NextObservation
from hmmscope.inference.memory import all_sequences
from hmmscope.inference.optimal import optimal_predictions
from hmmscope.processes.hmm import HMM
from hmmscope.processes.process import Process

Answer = Callable[[NextObservation, Batch], torch.Tensor]
EXACT: Answer = NextObservation.optimum
#: Three states that go round, from the first one on.
ROUND = HMM([0.98, 0.01, 0.01], [[0.1, 0.8, 0.1], [0.1, 0.1, 0.8], [0.8, 0.1, 0.1]], (np.eye(3) * 0.7 + 0.1).tolist())


def scored(
    process: Process,
    layout: SequenceLayout | PromptLayout,
    seed: int = 0,
    target: str = "observation",
    samples: int = 200,
) -> Score:
    """A model that knows nothing beside the oracle."""
    outputs = process.num_symbols if target == "observation" else process.num_states  # type: ignore[attr-defined]
    ignorant = Function(lambda tokens: torch.zeros(*tokens.shape, outputs, dtype=torch.float64))
    return evaluate(ignorant, ProcessDataset(process, layout=layout, seed=seed), num_samples=samples, target=target)


def test_no_bet_wins_against_an_exact_law_on_average() -> None:
    """Over all sequences of four symbols, each with its probability: the mean of what a bet returns is at most one."""
    hmm = HMM([0.7, 0.3], [[0.8, 0.2], [0.1, 0.9]], [[0.9, 0.1], [0.2, 0.8]])
    sequences = all_sequences(2, 4)
    law = optimal_predictions(hmm, sequences).predicted_observation
    probability = law.gather(2, sequences[..., None])[..., 0].prod(1)
    assert float(probability.sum()) == pytest.approx(1)
    others = {"another": torch.full_like(law[:1], 0.5)}
    won = [bet(law[i : i + 1], sequences[i : i + 1], np.arange(4), others) for i in range(len(sequences))]
    means = {
        name: sum(p * math.exp(one[name]) for p, one in zip(probability.tolist(), won, strict=True)) for name in won[0]
    }
    assert len(means) > 50
    assert max(means.values()) <= 1 + 1e-9
    assert min(means.values()) > 0.5  # nothing is lost by rounding either


@pytest.mark.long
@pytest.mark.drawn(4)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("seed", range(6))
def test_exact_answers_are_calibrated(seed: int, layout: str) -> None:
    """With the beliefs below 54 evaluations; the bound allows a false alarm in one of 18,000 such suites."""
    for number in range(3):
        process: Process = mixture(seed) if number == 2 else random_hmm(seed + 10 * number)
        assert scored(process, LAYOUTS[layout], seed).invalid is None  # type: ignore[arg-type]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("seed", range(9))
def test_exact_beliefs_are_calibrated(seed: int, layout: str) -> None:
    assert scored(random_hmm(seed), LAYOUTS[layout], seed, "belief").invalid is None  # type: ignore[arg-type]


def shifted(by: int) -> Answer:
    return lambda self, batch: EXACT(self, batch).roll(by, 1)


def without_starts(self: NextObservation, batch: Batch) -> torch.Tensor:
    return optimal_predictions(self.process, batch.observations).predicted_observation[:, self.kept]


FAULTS = {"one late": shifted(1), "one early": shifted(-1), "ignores starts": without_starts}


@pytest.mark.drawn(2)
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("seed", range(3))
def test_wrong_answers_are_not(fault: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(NextObservation, "optimum", FAULTS[fault])
    for process in (mixture(seed), ROUND):
        found = scored(process, PROMPTS, seed, samples=500).invalid
        assert found is not None
        assert "the optimum is not calibrated" in found or "gives probability zero to an observed outcome" in found


def test_an_oracle_that_is_late_in_long_sequences(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loss of a model cannot see it: a model that knows nothing is far above this floor."""
    monkeypatch.setattr(NextObservation, "optimum", shifted(1))
    assert "not calibrated" in (scored(ROUND, SequenceLayout(length=40)).invalid or "")


def test_beliefs_that_are_late_are_not_calibrated(monkeypatch: pytest.MonkeyPatch) -> None:
    exact = Belief.optimum
    monkeypatch.setattr(Belief, "optimum", lambda self, batch: exact(self, batch).roll(1, 1))
    assert "not calibrated" in (scored(random_hmm(1, concentration=0.3), PROMPTS, target="belief").invalid or "")


def test_an_optimum_that_calls_what_happened_impossible_is_invalid(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the model's loss is finite and the floor is not: no comparison of losses can say so."""
    never = torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64)
    monkeypatch.setattr(NextObservation, "optimum", lambda self, batch: never.expand(*EXACT(self, batch).shape))
    found = scored(random_hmm(0, num_symbols=3), SequenceLayout(length=8)).invalid
    assert found == "the optimum gives probability zero to an observed outcome, so the optimum is wrong"


def test_an_infinite_loss_of_the_model_is_not_the_optimum_s_fault() -> None:
    dataset = ProcessDataset(random_hmm(0), layout=SequenceLayout(length=8))
    size = dataset.num_symbols
    certain = Function(lambda tokens: 1e5 * torch.nn.functional.one_hot(tokens * 0, size).double())
    score = evaluate(certain, dataset, num_samples=32)
    assert score.loss > 100
    assert score.invalid is None


def test_the_best_bet_is_named_and_a_small_gain_is_none() -> None:
    assert miscalibrated({}) is None
    assert miscalibrated({"a": 13.0}) is None  # below ln(1e6)
    assert "(a)" in (miscalibrated({"a": 20.0, "b": 1.0}) or "")
    assert miscalibrated({"a": 14.0} | {str(n): 0.0 for n in range(100)}) is None  # one of many
    assert "probability zero" in (miscalibrated({"a": math.inf}) or "")
