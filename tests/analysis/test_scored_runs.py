"""Intervals of scores are over samples; runs are scored on samples of their own; the twin is the model before training."""

import numpy as np
import pytest
import torch

from hmmscope.analysis.curves import Score, evaluate
from hmmscope.runs.config import RunConfig
from hmmscope.runs.pipeline import Run, untrained_model
from hmmscope.runs.training import train

SAMPLES, COLUMNS = 100, 40


def correlated_score() -> Score:
    """Excess and loss that are the same at all columns of a sample: there are as many independent values as samples."""
    values = np.repeat(np.random.default_rng(0).normal(1.0, 1.0, (SAMPLES, 1)), COLUMNS, 1)
    measures = {"model": {"loss": values, "excess": values}, "optimum": {"loss": values}}
    return Score(measures, np.zeros(COLUMNS, np.int64), np.arange(COLUMNS), None)


def test_the_interval_of_the_excess_is_over_samples() -> None:
    """Over tokens it would be narrower by the root of 40."""
    score = correlated_score()
    value, low, high = score.excess
    of_samples = score.measures["model"]["excess"][:, 0]
    assert value == pytest.approx(of_samples.mean())
    assert high - low == pytest.approx(2 * 1.96 * of_samples.std() / SAMPLES**0.5, rel=0.15)


def test_each_sample_of_a_curve_counts_once() -> None:
    """Counted four times, intervals would be half as wide."""
    score = correlated_score()
    of_samples = score.measures["model"]["loss"][:, 0]
    for axis in ("positions", "demonstrations"):
        for row in score.rows(axis):
            assert row["samples"] == SAMPLES
            assert row["value"] == pytest.approx(of_samples.mean())
            assert row["high"] - row["low"] == pytest.approx(2 * 1.96 * of_samples.std() / SAMPLES**0.5, rel=0.15)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    config = RunConfig(
        process={"name": "random-hmm", "num_states": 3, "num_symbols": 4},
        layout={"name": "sequences", "length": 8},
        model={"name": "roformer", "num_layers": 1, "num_heads": 1, "width": 8},
        training={"num_steps": 3, "batch_size": 4, "learning_rate": 0.05, "warmup_steps": 0, "device": "cpu"},
    )
    return train(config, tmp_path_factory.mktemp("runs") / "run")


def test_the_twin_is_the_model_before_training(run: Run) -> None:
    twin, fresh = run.untrained().state_dict(), untrained_model(run.config, run.process).state_dict()
    assert all(torch.equal(twin[name], fresh[name]) for name in fresh)
    trained = run.model.state_dict()
    assert any(not torch.equal(twin[name], trained[name]) for name in trained)


def test_a_run_is_scored_on_samples_that_are_not_trained_on(run: Run) -> None:
    assert run.summary is not None
    losses = {
        stream: evaluate(run.model, run.dataset(stream), num_samples=256, baselines=False).loss
        for stream in ("evaluate", "train", "probe")
    }
    assert run.summary["loss"] == pytest.approx(losses["evaluate"], abs=1e-6)
    assert min(abs(losses["evaluate"] - losses[other]) for other in ("train", "probe")) > 1e-4
