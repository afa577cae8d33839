"""Curves over layers, and the judges of the claims on Figure 3 of [MultiTask], on tables of which the answer is known."""

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from hmmscope.analysis.layer_curves import (
    NUM_RESAMPLES,
    at_layer,
    cross_fitted,
    onset_layer,
    peak_layer,
    resampled_curves,
    slope,
    with_interval,
)
from hmmscope.analysis.probes import label_stream, probe_data, read_stream, reading_times
from hmmscope.claims.multitask_probes import (
    nearer_clearer,
    peak_moves_up,
    pool_effects,
    rise_and_fall,
    state_before_task,
    task_gradual,
    verdict_of_all,
)
from hmmscope.corpora.corpus import Corpus
from hmmscope.corpora.layouts import Prompts
from hmmscope.evidence.claims import claims_of
from hmmscope.evidence.pooling import Pooled
from hmmscope.experiments.multitask_fig3b import DISTANCES, gathering_layer
from hmmscope.models.base import Ports
from hmmscope.models.make import build_model
from hmmscope.models.roformer import RoFormerSpec
from hmmscope.processes.random_hmm import RandomHMMSpec

# --------------------------------------------------------------------------------------------------------------------
# Curves over layers


@pytest.mark.parametrize(
    "curve, onset, above, peak",
    [
        ([0.1, 0.5, 0.8, 1.0], 3, 3, 3),
        ([0.5, 0.85, 0.9, 1.0, 0.2], 2, 3, 3),  # 0.9 of 1.0, and 0.95 = 0.5 + 0.9 * 0.5
        ([0.3, 0.3, 0.3], 0, 0, 0),
        ([1.0, 0.2, 1.0], 0, 0, 0),
    ],
)
def test_onset_and_peak_by_hand(curve: list[float], onset: int, above: int, peak: int) -> None:
    values = np.array([curve, curve])
    assert (onset_layer(values) == onset).all()
    assert (onset_layer(values, above_first=True) == above).all()
    assert (peak_layer(values) == peak).all()
    assert (at_layer(values, peak_layer(values)) == max(curve)).all()


def test_slope_is_that_of_the_line() -> None:
    assert slope(np.array([[3.0, 5.0, 7.0, 9.0], [1.0, 1.0, 1.0, 1.0]])) == pytest.approx([2.0, 0.0])
    values = np.random.default_rng(0).normal(size=(1, 7))
    assert slope(values) == pytest.approx(np.polyfit(np.arange(7), values[0], 1)[:1])


def test_resampled_curves_are_means_and_stay_paired() -> None:
    values = np.random.default_rng(1).normal(size=(50, 3))
    curves = resampled_curves(values)
    assert curves.shape == (1 + NUM_RESAMPLES, 3)
    assert curves[0] == pytest.approx(values.mean(0))
    assert curves[1:].std(0) == pytest.approx(values.std(0) / math.sqrt(50), rel=0.1)
    assert resampled_curves(values + 1.0) - curves == pytest.approx(np.ones_like(curves))
    assert not np.allclose(resampled_curves(values, seed=1)[1:], curves[1:])


def test_noise_makes_no_fall_from_a_peak() -> None:
    """A flat curve of 12 layers: the drop from its best layer is noise, and vanishes where it is cross-fitted."""

    def fall(chosen: np.ndarray, measured: np.ndarray) -> np.ndarray:
        return at_layer(measured, peak_layer(chosen)) - measured[:, -1]

    naive, fitted = [], []
    for seed in range(200):
        by_sample = (np.random.default_rng(seed).random((60, 12)) < 0.5).astype(float)
        curve = by_sample.mean(0)
        naive.append(curve.max() - curve[-1])
        fitted.append(cross_fitted(by_sample, fall)[0])
    error = np.std(fitted) / math.sqrt(len(fitted))
    assert abs(np.mean(fitted)) < 4 * error
    assert np.mean(naive) > 10 * error  # so that the test would see a fall made by choosing


def test_a_true_fall_is_found() -> None:
    rng = np.random.default_rng(3)
    by_sample = (rng.random((400, 4)) < np.array([0.3, 0.9, 0.7, 0.6])).astype(float)
    found = with_interval(cross_fitted(by_sample, lambda a, b: at_layer(b, peak_layer(a)) - b[:, -1]))
    assert found["low"] < 0.3 < found["high"]
    assert found["low"] > 0.1
    assert found["error"] == pytest.approx(math.sqrt((0.9 * 0.1 + 0.6 * 0.4) / 400), rel=0.3)


def test_intervals_hold_their_value() -> None:
    draws = np.concatenate([[5.0], np.zeros(NUM_RESAMPLES)])
    assert with_interval(draws) == {"value": 5.0, "low": 0.0, "high": 5.0, "error": 0.0}


# --------------------------------------------------------------------------------------------------------------------
# One reading of the stream for many targets


def test_one_reading_serves_every_target() -> None:
    hmm = RandomHMMSpec(num_states=3, num_symbols=4).build()
    corpus = Corpus(hmm, layout=Prompts(num_demonstrations=2, demonstration_length=5, test_length=7), stream="probe")
    spec = RoFormerSpec(num_layers=2, num_heads=2, width=8)
    model = build_model(spec, Ports(num_outputs=4, num_tokens=5, max_length=64), 0)
    names = ["residual.0", "residual.2"]
    times = reading_times(corpus, "previous-0")
    assert times.tolist() == [14, 15, 16]
    stream = read_stream(model, corpus, times, names, 70)
    assert stream.shape == (2, 210, 8)
    observations = corpus[0:70].observations
    for target in ("previous-0", "previous-3", "state"):
        together = label_stream(stream, corpus, target, times)
        alone = probe_data(model, corpus, target, names, 70)
        for field in ("features", "labels", "samples"):
            assert torch.equal(getattr(together, field), getattr(alone, field))
        assert (together.ceiling, together.num_classes) == (alone.ceiling, alone.num_classes)
        if target != "state":
            back = int(target[-1])
            assert torch.equal(together.labels.view(70, 3), observations[:, 14 - back : 17 - back])


@pytest.mark.parametrize("distance, layer", list(enumerate((0, 1, 2, 2, 3))))
def test_gathering_layers_are_those_of_doubling(distance: int, layer: int) -> None:
    assert gathering_layer(distance) == layer


# --------------------------------------------------------------------------------------------------------------------
# Pooling and judging


def rows_of(values: list[float], error: float = 0.01, **columns: Any) -> list[dict]:
    """One row a seed."""
    return [
        {**columns, "seed": seed, "value": value, "low": value - 2 * error, "high": value + 2 * error, "error": error}
        for seed, value in enumerate(values)
    ]


def test_seeds_that_agree_by_chance_leave_the_noise_of_the_samples() -> None:
    found = pool_effects(rows_of([1.0, 1.0, 1.0], error=0.3))
    assert found.value == 1
    assert found.high - 1 == pytest.approx(1.96 * 0.3 / math.sqrt(3))
    assert pool_effects(rows_of([1.0], error=0.3)) == Pooled(1.0, 0.4, 1.6, 1)
    apart = pool_effects(rows_of([0.0, 1.0, 2.0]))
    assert apart.high - 1 == pytest.approx(4.3027 / math.sqrt(3), rel=1e-4)  # Student's, the wider one here


def test_all_of_several_effects() -> None:
    up, down, open_ = Pooled(1, 0.5, 1.5), Pooled(0, 0, 0), Pooled(0.1, -0.1, 0.3)
    assert verdict_of_all([up, up]) == "reproduced"
    assert verdict_of_all([up, down, open_]) == "not reproduced"
    assert verdict_of_all([up, open_]) == "inconclusive"
    assert verdict_of_all([up, Pooled(1, 1, 1, 1)]) == "inconclusive"  # one seed, and no interval


VERDICTS = {"reproduced": [1.0, 1.1, 0.9], "not reproduced": [-1.0, -1.1, -0.9], "inconclusive": [-1.0, 0.0, 1.2]}


def onsets(later: list[float], gradual: list[float], above: list[float] | None = None) -> dict[str, list[dict]]:
    rows = []
    for model in ("trained", "untrained"):
        for quantity in ("onset", "onset above layer 0", "peak"):
            for target in ("component", "state", "component - state"):
                found = above if above is not None and quantity == "onset above layer 0" else later
                values = found if target == "component - state" else [2.0, 2.0, 2.0]
                rows += rows_of(values, model=model, target=target, quantity=quantity)
    same = {"model": "trained", "target": "component"}
    rows += rows_of(gradual, **same, quantity="rise from layer 1 to the last")
    rows += rows_of([0.5, 0.5, 0.5], **same, quantity="rise from layer 0 to layer 1")
    both = {"model": "trained - untrained", "target": "component", "quantity": "accuracy at the last layer"}
    return {"onsets": rows + rows_of([0.1, 0.1, 0.1], **both)}


@pytest.mark.parametrize("verdict, values", VERDICTS.items())
def test_order_of_state_and_task(verdict: str, values: list[float]) -> None:
    judged = state_before_task.judge(onsets(values, VERDICTS["reproduced"]))
    assert judged.verdict == verdict
    assert judged.value == pytest.approx(np.mean(values))
    assert "at layer 2 by the hidden state" in judged.text
    assert task_gradual.judge(onsets(VERDICTS["reproduced"], values)).verdict == verdict


@pytest.mark.parametrize("onset, above", list(itertools.permutations(VERDICTS, 2)))
def test_two_ways_to_count_must_agree(onset: str, above: str) -> None:
    tables = onsets(VERDICTS[onset], VERDICTS["reproduced"], VERDICTS[above])
    assert state_before_task.judge(tables).verdict == "inconclusive"


def curves(**changed: list[float]) -> dict[str, list[dict]]:
    """Tables of Figure 3b; `changed` by quantity, with spaces as underscores, and distance at the end."""
    rows = []
    for network, distance in itertools.product(("trained", "constructed"), DISTANCES):
        for quantity in ("peak", "onset", "best accuracy", "rise", "fall"):
            values = changed.get(f"{quantity.replace(' ', '_')}_{distance}", [0.5, 0.52, 0.48])
            rows += rows_of(values, network=network, distance=distance, quantity=quantity)
    for quantity in ("slope of the peak", "slope of the onset", "fall of the best accuracy with distance"):
        values = changed.get(quantity.replace(" ", "_"), [0.5, 0.52, 0.48])
        rows += rows_of(values, network="trained", distance=None, quantity=quantity)
    return {"curves": rows}


@pytest.mark.parametrize("verdict, values", VERDICTS.items())
@pytest.mark.parametrize(
    "judge, quantity",
    [
        (nearer_clearer.judge, "fall_of_the_best_accuracy_with_distance"),
        (peak_moves_up.judge, "slope_of_the_peak"),
        (rise_and_fall.judge, "fall_4"),
        (rise_and_fall.judge, "rise_1"),
    ],
)
def test_previous_tokens(judge: Callable, quantity: str, verdict: str, values: list[float]) -> None:
    assert judge(curves(**{quantity: values})).verdict == verdict


def test_the_current_token_need_not_rise_nor_fall() -> None:
    flat = curves(fall_0=[0.0, 0.0, 0.0], rise_0=[0.0, 0.0, 0.0])
    assert rise_and_fall.judge(flat).verdict == "reproduced"
    least = rise_and_fall.judge(curves(fall_3=[0.2, 0.2, 0.2]))
    assert "3 back" in least.unit


def test_every_claim_of_the_figures_is_listed() -> None:
    assert [claim.name for claim in claims_of("multitask-fig3a")] == [
        "multitask-state-before-task",
        "multitask-task-gradual",
    ]
    assert len(claims_of("multitask-fig3b")) == 3
