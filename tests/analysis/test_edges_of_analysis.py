"""Intervals and alarms by their laws, curves by hand, and options of instruments at their edges."""

import inspect
import math
from statistics import NormalDist
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import hmmscope as hs
from hmmscope.analysis import (
    belief_interventions,
    calibration,
    curves,
    fit_length,
    intervals,
    learned,
    ngrams,
    prior_pool,
)
from hmmscope.analysis.activations import BATCH
from hmmscope.analysis.attention_maps import attention_map
from hmmscope.analysis.curves import Score, evaluate
from hmmscope.analysis.decomposition import Histories
from hmmscope.analysis.fit_length import evaluation_losses
from hmmscope.analysis.geometry import geometry
from hmmscope.analysis.measures import Measures, mean_of_asked
from hmmscope.analysis.strategies import LevelCrossing, strategies
from hmmscope.analysis.strategy_weights import strategy_weights
from hmmscope.datasets.layouts import PromptLayout, SequenceLayout
from hmmscope.datasets.process_dataset import ProcessDataset
from hmmscope.errors import InputError
from hmmscope.models.base import make_model
from hmmscope.processes.files import load_process
from hmmscope.processes.make import make_process

UMBRELLA = load_process("umbrella")
CORPUS = ProcessDataset(UMBRELLA, layout=SequenceLayout(length=6))


def small(**options: Any) -> torch.nn.Module:
    return make_model("decoder", num_symbols=2, width=8, num_layers=1, num_heads=2, max_length=8, **options)


NET = small()
NO_CONTROLS = hs.InstrumentOptions(num_controls=0)


@pytest.mark.parametrize(
    ("ask", "field", "good", "bad"),
    [
        (lambda v: evaluate(NET, CORPUS, num_samples=v, baselines=False), "num_samples", [1], [0]),
        (lambda v: evaluate(NET, CORPUS, num_samples=1, observers={"b": load_process(v)}), "observers.b",
         ["umbrella"], ["letters-hmm"]),
        (lambda v: evaluate(NET, CORPUS, num_samples=1, observers={v: UMBRELLA}), "observers", ["b"], ["model", "order-9"]),
        (lambda v: strategies(NET, CORPUS, num_samples=v), "num_samples", [2], [1]),
        (lambda v: strategies(NET, CORPUS, num_samples=2, max_order=v), "max_order", [0], [-1]),
        (lambda v: attention_map(NET, CORPUS, num_samples=v), "num_samples", [1], [0]),
        (lambda v: attention_map(NET, CORPUS, num_samples=1, max_offset=v), "max_offset", [0], [-1]),
        (lambda v: geometry(NET, CORPUS, num_samples=v, options=NO_CONTROLS), "num_samples", [8], [7]),
        (lambda v: geometry(NET, CORPUS, num_samples=8, options=hs.InstrumentOptions(num_controls=v)),
         "num_controls", [0], [1]),
        (lambda v: evaluation_losses(NET, CORPUS, num_samples=v), "num_samples", [1], [0]),
        (lambda v: ngrams.TunedNgrams.tuned(CORPUS, num_samples=v, orders=0), "num_samples", [1], [0]),
        (lambda v: ngrams.TunedNgrams.tuned(CORPUS, num_samples=2, orders=v), "orders", [0, 8],
         [-1, 9]),
        (lambda v: ngrams.evaluate_ngrams(ngrams.UNTUNED, CORPUS, v), "num_samples", [1], [0]),
        (lambda v: Histories.all(UMBRELLA, v), "time", [1], [0]),
        (lambda v: Histories.sampled(UMBRELLA, v, 2), "time", [1], [0]),
        (lambda v: Histories.sampled(UMBRELLA, 1, v), "num_samples", [1], [0]),
        (lambda v: Histories.all(UMBRELLA, 3).windows(v), "memory_length", [1, 3], [0, 4]),
    ],
)  # fmt: skip
def test_an_option_is_taken_up_to_its_edge(
    ask: Any, field: str, good: list[Any], bad: list[Any], unchecked: None
) -> None:
    for value in good:
        ask(value)
    for value in bad:
        with pytest.raises(InputError, match=rf"^{field}: "):
            ask(value)


def test_intervals_of_few_samples_are_students() -> None:
    """Its quantiles from tables: 12.706 of one degree of freedom, 2.776 of four."""
    for values, quantile in (([1.0, 3.0], 12.7062), ([1.0, 2.0, 2.0, 3.0, 7.0], 2.77645)):
        given = np.array(values)
        half = quantile * given.std(ddof=1) / math.sqrt(len(given))
        mean, low, high = (float(one) for one in intervals.bootstrap_means(given))
        assert (mean, mean - low, high - mean) == pytest.approx((given.mean(), half, half), rel=1e-4)
        assert intervals.mean_row(given) == {"value": mean, "low": low, "high": high, "samples": len(given)}
        ratio = intervals.bootstrap_ratio(given, np.full(len(given), 2.0))
        assert ratio == pytest.approx((mean / 2, low / 2, high / 2))
        assert intervals.stretch(len(given)) == pytest.approx(
            math.sqrt(len(given) / (len(given) - 1)) * quantile / 1.95996, rel=1e-4
        )
    assert [intervals.stretch(count) for count in (None, 1, 100)] == [1.0, 1.0, 1.0]
    assert intervals.stretch(99) > 1.005


def test_intervals_of_many_samples_are_percentiles() -> None:
    """Near the normal law; of a table, column by column, and each as alone."""
    given = np.random.default_rng(0).normal(size=(400, 2, 1)) + np.array([[1.0], [5.0]])
    mean, low, high = intervals.bootstrap_means(given)
    assert mean.shape == low.shape == (2, 1)
    for own, interval in ((mean - low, 1.96), (high - mean, 1.96)):
        assert own == pytest.approx(interval * given.std(0, ddof=1) / 20, rel=0.15)
    assert float(intervals.bootstrap_means(given[:, 1, 0])[1]) == pytest.approx(float(low[1, 0]), rel=1e-12)
    value, least, most = intervals.bootstrap_ratio(given[:, 0, 0], given[:, 1, 0])
    assert value == pytest.approx(float(mean[0, 0] / mean[1, 0]), rel=1e-12)
    assert least < value < most
    assert most - least == pytest.approx(2 * 1.96 * (given[:, 0, 0] - value * given[:, 1, 0]).std() / 20 / 5, rel=0.15)


@pytest.mark.parametrize("alarm", [1e-6, 1e-3, 0.1])
def test_how_far_a_mean_goes_by_chance(alarm: float) -> None:
    """Student's law of one and of two degrees of freedom has closed forms; of many it is the normal one."""
    one, share = 1 / math.tan(math.pi * alarm), 1 - 2 * alarm
    assert intervals.least_z(2, alarm) == pytest.approx(one, rel=1e-3)
    assert intervals.least_z(3, alarm) == pytest.approx(share * math.sqrt(2 / (1 - share**2)), rel=1e-3)
    normal = NormalDist().inv_cdf(1 - alarm)
    assert normal < intervals.least_z(5000, alarm) == pytest.approx(normal, rel=0.01)
    assert intervals.least_z(1, alarm) == math.inf


def test_a_curve_crosses_where_it_stays_above() -> None:
    """Linear in log2 of the step, step 0 at 1/2."""
    found = LevelCrossing.of([0, 1, 2, 4, 8], [-1.0, 2.0, -1.0, 1.0, 3.0], [0.1, 0.1, 0.3, 0.4, 0.1])
    assert found is not None
    assert (found.log2_step, found.step) == pytest.approx((1.5, 2**1.5))
    assert found.error == pytest.approx(0.5 * math.hypot(0.5 * 0.3, 0.5 * 0.4))
    early = LevelCrossing.of([0, 1], [-1.0, 3.0])
    assert early is not None
    assert (early.log2_step, early.error) == (-0.75, 0.0)
    level = LevelCrossing.of([1, 2], [0.0, 1.0], level=0.25)
    assert level is not None
    assert level.log2_step == pytest.approx(0.25)
    assert LevelCrossing.of([1, 2], [0.0, 1.0]) is not None  # at the level is not above it
    for values in ([1.0, 2.0], [-1.0, 0.0], [-1.0, 1.0, -1.0][:2][::-1]):
        assert LevelCrossing.of([1, 2], values) is None


def test_a_model_goes_over_from_one_predictor_to_another() -> None:
    def row(predictor: str, step: int, value: float, metric: str = "kl") -> dict[str, Any]:
        return {
            "predictor": predictor,
            "step": step,
            "metric": metric,
            "value": value,
            "low": value - 0.196,
            "high": value + 0.196,
        }

    rows = [row("a", step, 1.0) for step in (1, 2, 4, 8)] + [row("b", 1, 3.0), row("b", 4, 0.0), row("b", 4, 9.0, "tv")]
    found = LevelCrossing.between(rows, "a", "b")
    assert found is not None
    assert found.log2_step == pytest.approx(4 / 3)
    assert found.error == pytest.approx(2 / 3 * math.hypot(1 / 3, 2 / 3) * 0.1 * math.sqrt(2))
    with pytest.raises(InputError, match=r"rows: must contain at least two training steps with a and b, got \[4\]"):
        LevelCrossing.between([*rows, row("a", 4, 1.0, "tv")], "a", "b", metric="tv")


def test_means_over_what_is_asked() -> None:
    values = np.array([[1.0, np.nan, 3.0], [np.nan] * 3, [2.0, 2.0, np.inf]])
    assert np.array_equal(mean_of_asked(values), [2.0, np.nan, np.inf], equal_nan=True)


def test_rows_along_an_axis_leave_out_what_has_ended() -> None:
    """An infinite mean is None; kept columns alone count; of ragged samples each position has those that reach it."""
    found = Measures(
        {"model": {"loss": np.array([[1.0, 2.0, np.inf], [3.0, 4.0, 1.0]])}}, np.array([0, 0, 1]), np.array([1, 2, 1])
    )
    rows = {row["x"]: row for row in found.rows("demonstrations")}
    assert (rows[0]["value"], rows[0]["samples"], rows[1]["value"], rows[1]["low"]) == (2.5, 2, None, None)
    kept = found.rows("positions", np.array([True, True, False]))
    assert [(row["x"], row["value"]) for row in kept] == [(1, 2.0), (2, 3.0)]
    assert found.table()[0]["predictor"] == "model"
    ragged = Measures(
        {"model": {"loss": np.array([[1.0, np.nan, np.nan], [3.0, np.inf, np.nan]])}},
        np.zeros(3, int),
        np.array([0, 1, 2]),
    )
    assert [(row["x"], row["value"], row["samples"]) for row in ragged.rows("positions")] == [(0, 2.0, 2), (1, None, 1)]


def test_the_score_of_a_table() -> None:
    loss = {"model": [[2.0, 4.0]], "optimum": [[1.0, 2.0]], "order-0": [[3.0, 3.0]], "order-1": [[2.0, 2.5]]}
    measures = {name: {"loss": np.array(values)} for name, values in loss.items()}
    score = Score(measures, np.zeros(2, int), np.arange(2), None)
    assert (score.loss, score.bayes_loss, score.baseline, score.excess) == (3.0, 1.5, ("order-1", 2.25), None)
    alone = Score({"model": measures["model"]}, np.zeros(2, int), np.arange(2), "x")
    assert (alone.bayes_loss, alone.baseline) == (None, None)
    assert repr(alone) == "Score(loss 3.0000, optimum unknown, 1 samples of 2 positions, INVALID: x)"


def test_a_model_below_the_optimum_is_told_by_how_much() -> None:
    """Of next symbols in nats in all, log(1/alarm); of other answers in standard errors; less what the prior may give."""
    edge = -math.log(calibration.FALSE_ALARM)
    floor = np.full((10, 2), 5.0)
    for above, found in ((0.01, True), (-0.01, False)):
        loss = floor - (edge + above) / 20
        assert (curves._invalid(loss, floor) is not None) is found
        assert (curves._invalid(loss - 1.0, floor, part=2.0) is not None) is found
    assert "not finite" in str(curves._invalid(floor, np.where(floor == 5, np.inf, 0)))
    for below, found in ((1e-10, False), (1e-8, True)):
        said = curves._invalid(floor - below, floor, in_order=False)
        assert (said is not None) is found
    assert "nats in every sample" in str(said)
    assert curves._invalid(floor - 1e-8, floor, part=3e-8, in_order=False) is None
    noise = np.random.default_rng(0).normal(size=(10, 2)) * 0.1
    assert "standard errors" in str(curves._invalid(floor + noise - 1.0, floor, in_order=False))
    assert curves._invalid(floor + noise, floor, in_order=False) is None
    assert curves._invalid(floor[:1] - 1.0, floor[:1], in_order=False) is None  # of one sample there is no error
    assert curves._invalid(np.full_like(floor, np.inf), floor, in_order=False) is None


def test_bets_against_an_exact_law_and_one_that_errs() -> None:
    """Names say what would be better; a bet that is won by less than the alarm allows says nothing."""
    rng = np.random.default_rng(0)
    law = torch.tensor([0.9, 0.1], dtype=torch.float64).expand(200, 8, 2)
    exact = torch.from_numpy((rng.random((200, 8)) < 0.1).astype(np.int64))
    even = torch.from_numpy(rng.integers(0, 2, (200, 8)))
    positions = np.arange(8)
    assert calibration.miscalibrated(calibration.bet(law, exact, positions)) is None
    won = calibration.bet(law, even, positions)
    assert "the optimum is not calibrated" in str(calibration.miscalibrated(won))
    assert max(won, key=won.__getitem__).endswith(("uniform probabilities", "s probabilities to the power of 0.25"))
    assert calibration.miscalibrated(won, spare=1e9) is None
    assert "probability zero" in str(calibration.miscalibrated(calibration.bet(law.round(), even, positions)))
    assert calibration.miscalibrated({}) is None
    edge = math.log(2 / calibration.FALSE_ALARM)
    for gain, found in ((edge - 1e-6, False), (edge + 1e-6, True)):
        assert (calibration.miscalibrated({"a": gain, "b": 0.0}) is not None) is found
    assert {where: columns.tolist() for where, columns in calibration._places(positions).items()} == {
        "": list(range(8)),
        " at positions 0 to 0": [0],
        " at positions 1 to 1": [1],
        " at positions 2 to 3": [2, 3],
        " at positions 4 to 7": [4, 5, 6, 7],
    }
    apart = calibration.bet(law, even, positions, in_order=False)
    assert {name.rpartition(" at ")[2] for name in apart} == {f"column {j}" for j in range(8)}


def test_where_a_loss_is_least() -> None:
    """Number by number within bounds; equal losses stay where they are."""
    place, least = ngrams.descend(lambda x: (x[0] - 1.5) ** 2 + (x[1] + 9) ** 2, [0.0, 0.0], [(-3.0, 3.0), (-2.0, 2.0)])
    assert place[0] == pytest.approx(1.5, abs=min(ngrams.STEPS))
    assert place[1] == -2.0
    assert least == pytest.approx(49, abs=1e-2)
    assert ngrams.descend(lambda _: 1.0, [0.5], [(0.0, 1.0)]) == ([0.5], 1.0)
    assert ngrams.least_within_margin([3.0, 1.0 + ngrams.MARGIN, 1.0]) == 1
    assert ngrams.least_within_margin([3.0, 1.0 + 2 * ngrams.MARGIN, 1.0]) == 2
    falling = [1.0 - ngrams.MARGIN * 2 * step for step in range(ngrams.PATIENCE + 1)]
    assert not ngrams._at_rest(falling)
    assert not ngrams._at_rest([1.0] * ngrams.PATIENCE)
    assert ngrams._at_rest([1.0] * (ngrams.PATIENCE + 1))


def test_the_best_that_counts() -> None:
    losses = {"model": [0.0], "order-0": [2.0], "trained-order-1": [1.0], "context-tree": [1.5]}
    assert ngrams.TunedNgrams.best(losses) == "trained-order-1"
    assert ngrams.TunedNgrams.best(losses, "accuracy") == "order-0"
    with pytest.raises(InputError, match="predictors: must include an n-gram baseline"):
        ngrams.TunedNgrams.best({"model": [0.0]})


def test_weights_of_one_predictor_and_of_too_few_samples() -> None:
    law = torch.tensor([[[0.25, 0.75]]] * 2, dtype=torch.float64)
    found = strategy_weights(law, {"only": law})
    assert (found.value, found.error, found.left) == ({"only": 1.0}, {"only": 0.0}, pytest.approx(0, abs=1e-12))
    with pytest.raises(InputError, match="model: must have at least 2 samples"):
        strategy_weights(law[:1], {"only": law[:1]})
    with pytest.raises(InputError, match="predictors: must have at least one entry"):
        strategy_weights(law, {})


def test_a_corpus_of_many_batches_is_scored_as_its_parts() -> None:
    """Samples first to first + num_samples - 1, whichever batches they come in."""
    model = small()
    whole = evaluate(model, CORPUS, num_samples=BATCH + 3, options=hs.EvaluateOptions(first=2), baselines=False)
    parts = [
        evaluate(model, CORPUS, num_samples=n, options=hs.EvaluateOptions(first=f), baselines=False)
        for n, f in ((BATCH, 2), (3, BATCH + 2))
    ]
    joined = np.concatenate([part.measures["model"]["loss"] for part in parts])
    np.testing.assert_allclose(whole.measures["model"]["loss"], joined, rtol=1e-5)


def test_windows_are_numbered_as_words_are() -> None:
    histories = Histories.all(UMBRELLA, 3)
    assert histories.windows(3).tolist() == list(range(8))
    assert histories.windows(2).tolist() == [0, 1, 2, 3] * 2
    assert float(histories.probability.sum()) == pytest.approx(1)
    assert histories.mean(torch.ones(8, dtype=torch.float64)) == pytest.approx(1)
    sampled = Histories.sampled(UMBRELLA, 3, 5)
    assert (len(sampled.observations), sampled.exact, sampled.probability.tolist()) == (5, False, [0.2] * 5)
    assert hs.MISSING < 0
    assert PromptLayout().context_length > 0


def test_shares_of_the_way_and_intervals_by_position() -> None:
    """What is lost of what may be lost; what is left of what was there; mean +- 1.96 standard errors, from 0 on."""
    before, after, worth = (np.full(12, value) for value in (1.0, 2.0, 5.0))
    assert belief_interventions._share(before, after, worth, 0) == pytest.approx(0.25)
    assert belief_interventions._share(worth, before, None, 0) == pytest.approx(0.8)
    values = np.array([[5.0, 0.1, np.nan], [7.0, 3.0, np.nan], [9.0, np.nan, 4.0]])
    rows = fit_length._rows("model", np.array([1, 2, 3]), values)
    half = 1.96 * 2 / math.sqrt(3)
    assert [(row["position"], row["samples"]) for row in rows] == [(1, 3), (2, 2), (3, 1)]
    assert [rows[0][key] for key in ("value", "low", "high")] == pytest.approx([7.0, 7 - half, 7 + half])
    assert (rows[1]["low"], rows[2]["low"], rows[2]["high"]) == (0.0, 4.0, 4.0)


def test_pools_of_the_prior_follow_each_other() -> None:
    process = make_process("told-hmms")
    four, second = prior_pool(process, 4), prior_pool(process, 2, 1)
    for number in (0, 1):
        assert torch.equal(four[2 + number].transition, second[number].transition)
    assert not torch.equal(four[0].transition, second[0].transition)


def test_the_constant_is_the_bar_where_the_last_symbol_says_nothing_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learned, "_chain", learned._constant)
    turns = ProcessDataset(
        hs.HMM([0.5, 0.5], [[0.0, 1.0], [1.0, 0.0]], [[1.0, 0.0], [0.0, 1.0]]), layout=SequenceLayout(length=6)
    )
    found = learned.learned(NET, turns, turns, num_samples=4)
    assert found.bar == learned.CONSTANT
    assert found.at_bar - found.optimum >= learned.LEAST_GAP


@pytest.mark.parametrize("orders", [0, 1, 2])
def test_strengths_are_shown_up_to_what_is_asked_for_or_is_the_best(orders: int) -> None:
    found = ngrams.TunedNgrams.tuned(CORPUS, num_samples=40, orders=orders)
    assert len(found.strengths) == max(found.order, orders) + 1


def test_how_well_a_belief_is_fitted_is_the_share_of_its_variance() -> None:
    generator = torch.Generator().manual_seed(0)
    x_BTD = torch.randn(30, 4, 3, generator=generator, dtype=torch.float64)
    beliefs = (x_BTD[..., :2] + torch.randn(30, 4, 2, generator=generator, dtype=torch.float64)).softmax(-1)
    task: Any = SimpleNamespace(first=20, beliefs=beliefs)
    fit, fitted = inspect.unwrap(belief_interventions._fit)(x_BTD, task, 1e-3)
    known = beliefs[:20].flatten(0, 1).numpy()
    read = fit(x_BTD[:20].flatten(0, 1)[None])[0].numpy()
    assert fitted == pytest.approx(1 - ((read - known) ** 2).sum() / ((known - known.mean(0)) ** 2).sum(), rel=1e-6)
    assert 0.1 < fitted < 0.9
