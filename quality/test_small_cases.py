"""Answers of small cases are those that a short independent calculation gives."""

import math
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from itertools import pairwise, product
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

import hmmscope as hs
from hmmscope.analysis import (
    activations,
    attention_maps,
    belief_interventions,
    belief_map,
    belief_space,
    calibration,
    constrained_updates,
    discovery,
    fit_length,
    initialization,
    intervals,
    interventions,
    layer_curves,
    learned,
    measures,
    mechanisms,
    ngrams,
    rehearsing,
    shuffle,
    similarity,
    strategies,
    trained_ngrams,
    untrained_controls,
)
from hmmscope.analysis.activations import to_probs
from hmmscope.analysis.belief_map import BeliefMap
from hmmscope.analysis.geometry import BELIEF, MIXED_BELIEF, ExactBeliefs, Readout, fit_affine
from hmmscope.analysis.ngram_reach import ngram_reach
from hmmscope.analysis.strategy_weights import strategy_weights
from hmmscope.analysis.task_patching import task_patching
from hmmscope.analysis.untrained_controls import ExplainedFraction, InstrumentOptions, explained_beyond_controls
from hmmscope.datasets.layouts import PromptLayout, SequenceLayout
from hmmscope.datasets.process_dataset import ProcessDataset
from hmmscope.errors import InputError
from hmmscope.processes.make import make_process

DRAW = np.random.default_rng(0)
SOFT = {"num_components": 3, "num_states": 3, "num_symbols": 3, "emission_concentration": 1.0}
SOFT["transition_concentration"] = 1.0
LAYOUT = PromptLayout(num_demonstrations=2, demonstration_length=4, test_length=6)


def _prompts() -> ProcessDataset:
    return ProcessDataset(make_process("random-mixture", **SOFT), layout=LAYOUT)


def _model(dataset: ProcessDataset, layers: int = 2) -> Any:
    sizes = {"num_symbols": dataset.num_symbols, "vocab_size": dataset.vocab_size, "max_length": 32}
    return hs.make_model("roformer", num_layers=layers, num_heads=2, width=8, **sizes).eval()


# ---------------------------------------------------------------------------------------------------------------------
# Verdicts


@pytest.mark.parametrize(
    ("value", "low", "high", "verdict"),
    [
        (0.5, 1e-9, 0.9, "more"),
        (0.5, 0.0, 0.9, "no more"),
        (-0.5, -0.9, -1e-9, "less"),
        (-0.5, -0.9, 0.0, "no more"),
        (0.02, 0.01, 0.03, "more"),
        (0.019, 0.01, 0.03, "no more"),
        (-0.02, -0.03, -0.01, "less"),
        (None, None, None, "not told"),
        (0.5, None, 0.6, "not told"),
        (0.5, 0.4, None, "not told"),
    ],
)
def test_a_fraction_beyond_controls_is_more_if_its_interval_lies_above_zero(
    value: float | None, low: float | None, high: float | None, verdict: str
) -> None:
    found = ExplainedFraction(0.5, 0.1, 3, value, low, high, "the reason")
    assert found.verdict == verdict
    assert (str(found) == "the reason") == (verdict == "not told")
    assert found.columns()["twins"] == 0.1


@pytest.mark.parametrize(
    ("share", "low", "verdict"),
    [
        (0.5, 1e-9, "most"),
        (0.49, 1e-9, "part"),
        (0.02, 1e-9, "part"),
        (0.019, 1e-9, "nothing"),
        (0.5, 0.0, "nothing"),
        (None, None, "nothing to learn"),
        (0.5, None, "nothing to learn"),
        (None, 0.5, "nothing to learn"),
    ],
)
def test_most_is_learned_from_half_the_gap_on(share: float | None, low: float | None, verdict: str) -> None:
    assert learned.Learned(1.0, learned.LAST, 1.5, 0.5, share, low, 0.9).verdict == verdict


def _component_row(quantity: str, value: float, low: float, ablation: str = "mean") -> dict[str, Any]:
    return {"component": "head 1.0", "quantity": quantity, "value": value, "low": low, "ablation": ablation}


@pytest.mark.parametrize(
    ("fall", "rise", "name"),
    [(0.051, 0.0021, "induction head"), (0.05, 0.0021, "none"), (0.051, 0.002, "none"), (0.0, 0.0, "none")],
)
def test_a_head_is_named_if_it_lowers_what_is_read_and_costs_loss(fall: float, rise: float, name: str) -> None:
    rows = [_component_row("loss", 0.1, rise), _component_row("bigram", 0.3, fall), _component_row("unigram", 0.2, 0.2)]
    other = [_component_row(one, 9.0, 9.0, "resample") for one in ("loss", "belief")]
    assert mechanisms.roles([*other, *rows, {**rows[0], "component": "mlp 1"}]) == {"head 1.0": name}
    assert mechanisms.roles([*rows, *other], ablation="resample") == {"head 1.0": "belief head"}


def test_components_are_named_by_their_layer() -> None:
    made = mechanisms.components(_model(_prompts()))
    names = ["head 1.0", "head 1.1", "attention 1", "mlp 1", "head 2.0", "head 2.1", "attention 2", "mlp 2"]
    assert sorted(one.name for one in made) == sorted(names)
    assert [one.is_sender("attention") for one in made] == [one.head is not None for one in made]
    assert [one.is_sender("mlp") for one in made] == [one.name.startswith("mlp") for one in made]


def test_the_first_pass_of_an_edited_module_is_rehearsed(monkeypatch: pytest.MonkeyPatch) -> None:
    model, tokens, seen = _Counting(), torch.zeros(2, 3, dtype=torch.int64), []
    monkeypatch.setattr(interventions, "rehearsed_on", lambda _, given: seen.append(given) or ("odd",))
    with interventions.intervene(model, {"layer": lambda x: x}):
        with pytest.warns(UserWarning, match="odd"):
            model(tokens)
        model(tokens)
    assert len(seen) == 1
    assert torch.equal(seen[0], tokens)
    with interventions.intervene(torch.nn.Identity(), {}) as plain:
        for given in (tokens[None], tokens[0]):
            plain(given)
    assert len(seen) == 1


class _Blocks(torch.nn.Module):
    """A module with hook points of the given names below `blocks.0`; attention has one head."""

    def __init__(self, *names: str) -> None:
        super().__init__()
        self.blocks = torch.nn.ModuleList([torch.nn.Module()])
        if "attention" in names:
            self.blocks[0].attention = torch.nn.Module()
            self.blocks[0].attention.num_heads = 1
            self.blocks[0].attention.mixed = torch.nn.Identity()
        if "mlp" in names:
            self.blocks[0].mlp = torch.nn.Identity()


def test_a_model_without_heads_has_no_components() -> None:
    assert [one.name for one in mechanisms.components(_Blocks("attention"))] == ["head 1.0"]
    assert [one.name for one in mechanisms.components(_Blocks("attention", "mlp"))] == ["head 1.0", "mlp 1"]
    with pytest.raises(InputError, match=r"model: has no activations blocks\.<n>\.attention\.mixed"):
        mechanisms.components(_Blocks("mlp"))


def test_warnings_of_a_rehearsal_are_kept_in_rows_or_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rehearsing, "rehearsed", lambda *_: ("odd",))
    dataset, model = ProcessDataset(make_process("mess3"), length=5), _Counting()
    with pytest.warns(UserWarning, match="odd"):
        assert rehearsing.rehearse_first(model, dataset, lambda: "answer") == "answer"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert rehearsing.rehearse_first(model, dataset, lambda: [{"a": 1}]).warnings == ("odd",)
        monkeypatch.setattr(rehearsing, "rehearsed", lambda *_: ())
        rows = rehearsing.rehearse_first(model, dataset, lambda: [{"a": 1}])
    assert type(rows) is list


@pytest.mark.parametrize(("num_symbols", "rare"), [(49, 0.02), (50, 0.01), (64, 0.5 / 64)])
def test_rare_prefixes_are_rarer_than_a_symbol_by_chance(
    num_symbols: int, rare: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[float] = []

    def stop(*_: Any, rare: float, **__: Any) -> None:
        asked.append(rare)
        raise KeyError

    monkeypatch.setattr(discovery, "extract_automaton", stop)
    process = make_process("random-hmm", num_states=1, num_symbols=num_symbols)
    dataset = ProcessDataset(process, layout=SequenceLayout(length=4, placeholder=True))
    with pytest.raises(KeyError):
        discovery.automaton(_model(dataset), dataset, length=1, num_samples=2)
    assert asked == [rare]


def test_only_the_last_sequence_of_a_prompt_is_evaluated() -> None:
    layout = PromptLayout(num_demonstrations=2, demonstration_length=4, test_length=1)
    given = {"layout": layout, "num_samples": 4, "probe_samples": 16}
    assert ngram_reach(make_process("random-mixture", **SOFT), first_position=0, **given).num_samples == 4
    with pytest.raises(InputError, match="first_position: must be a predicted position in the last sequence"):
        ngram_reach(make_process("random-mixture", **SOFT), first_position=1, **given)


def test_an_unknown_layer_is_refused_before_beliefs_are_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = ProcessDataset(make_process("mess3"), length=5)
    monkeypatch.setattr(belief_map.BeliefReader, "of", lambda *_: 1 / 0)
    with pytest.raises(InputError, match="layers: no module named 'nope'"):
        hs.belief_map(_model(dataset), dataset, "nope")


@pytest.mark.parametrize(("rise", "spread", "told"), [(0.021, 0.0, True), (0.019, 0.0, False), (0.1, 0.04, False)])
def test_a_rising_loss_is_told_from_its_size_and_error(rise: float, spread: float, told: bool) -> None:
    """The last third of nine positions against the middle third; the mean of two samples has the error `spread`."""
    loss = np.full((2, 9), 0.3)
    loss[:, 6:] += rise + spread * np.array([[1.0], [-1.0]])
    loss[:, :3] += 5
    positions = np.arange(9)
    assert bool(rehearsing.rising(loss, None, positions)) is told
    assert bool(rehearsing.rising(loss + 1, np.full((2, 9), 1.0), positions)) is told
    assert rehearsing.rising(loss[:1], None, positions) == ()
    assert rehearsing.rising(loss[:, 1:], None, positions[1:]) == ()
    assert rehearsing.rising(np.where(np.arange(2)[:, None] == 0, np.nan, loss), None, positions) == ()
    if told:
        (line,) = rehearsing.rising(loss, None, positions)
        assert line.startswith(
            f"the loss rises with position: 0.300 nats in the middle third of positions, {0.3 + rise:.3f}"
        )


CALLS: list[int] = []


class _Counting(torch.nn.Module):
    """A module of one length, with a layer whose features are not on the last axis."""

    def __init__(self, length: int | None = None) -> None:
        super().__init__()
        self.layer, self.length = torch.nn.Identity(), length

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        CALLS.append(len(tokens))
        if self.length not in (None, tokens.shape[1]):
            raise ValueError("another length")
        self.layer(torch.zeros(len(tokens), 7, tokens.shape[1]))
        return torch.zeros(*tokens.shape, 2)


@pytest.mark.parametrize(("length", "refused"), [(None, True), (6, True), (5, True), (4, False)])
def test_axes_of_layers_are_checked_at_the_length_that_a_module_takes(length: int | None, refused: bool) -> None:
    tokens = torch.zeros(4, 6, dtype=torch.int64)
    with pytest.raises(InputError, match="must give") if refused else nullcontext():
        activations._require_axes(_Counting(length), ["layer"], tokens)


def test_a_module_is_rehearsed_on_tokens_alone() -> None:
    whole, model = torch.zeros(2, 3, dtype=torch.int64), _Counting()
    for tokens, calls in ((whole.double(), False), (whole[:0], False), (whole, True)):
        CALLS.clear()
        rehearsing.rehearsed_on(model, tokens)
        assert bool(CALLS) is calls
    CALLS.clear()
    with rehearsing.already_rehearsed():
        assert rehearsing.rehearsed_on(model, whole) == ()
    assert CALLS == []


# ---------------------------------------------------------------------------------------------------------------------
# Intervals


@pytest.mark.parametrize("count", [2, 5, 9, 19])
def test_intervals_of_few_samples_are_students(count: int) -> None:
    values = DRAW.normal(size=(count, 2)) + 3
    mean, low, high = intervals.bootstrap_means(values)
    ends = stats.t.interval(0.95, count - 1, values.mean(0), stats.sem(values, 0))
    np.testing.assert_allclose([mean, low, high], [values.mean(0), *ends], rtol=1e-5)
    ratio, *sides = intervals.bootstrap_ratio(values[:, 0], values[:, 1])
    half = stats.t.ppf(0.975, count - 1) * stats.sem(values[:, 0] - ratio * values[:, 1]) / values[:, 1].mean()
    np.testing.assert_allclose(
        [ratio, *sides], np.mean(values, 0)[0] / np.mean(values, 0)[1] + half * np.array([0, -1, 1]), rtol=1e-5
    )
    wider = math.sqrt(count / (count - 1)) * stats.t.ppf(0.975, count - 1) / stats.norm.ppf(0.975)
    assert intervals.stretch(count) == pytest.approx(wider, rel=1e-4)


def test_intervals_of_many_samples_are_percentiles_of_resamples() -> None:
    values = DRAW.normal(size=(400, 3)) + np.arange(3)
    mean, low, high = intervals.bootstrap_means(values)
    error = values.std(0) / 20
    np.testing.assert_allclose(low, mean - 1.96 * error, atol=0.25 * error.max())
    np.testing.assert_allclose(high, mean + 1.96 * error, atol=0.25 * error.max())
    ratio, bottom, top = intervals.bootstrap_ratio(values[:, 1] * 3, values[:, 1])
    assert [ratio, bottom, top] == pytest.approx([3, 3, 3])
    assert [intervals.stretch(count) for count in (None, 0, 1, intervals.FEW, 1000)] == [1.0] * 5
    draws = layer_curves.resampled_curves(values)
    assert draws.shape == (1001, 3)
    np.testing.assert_allclose(draws[0], values.mean(0))
    for layer in range(3):
        row = layer_curves.with_interval(draws[:, layer], 400)
        assert [row["value"], row["low"], row["high"]] == pytest.approx(
            [mean[layer], low[layer], high[layer]], abs=0.01
        )
        assert row["error"] == pytest.approx(error[layer], rel=0.1)
        few = layer_curves.with_interval(draws[:, layer], 5)
        wider = intervals.stretch(5)
        assert few["high"] - few["value"] == pytest.approx(wider * (row["high"] - row["value"]))
        assert few["value"] - few["low"] == pytest.approx(wider * (row["value"] - row["low"]))
    outside = layer_curves.with_interval(np.array([5.0, *np.linspace(0, 1, 99)]))
    assert outside["high"] == 5.0
    assert layer_curves.with_interval(np.array([-5.0, *np.linspace(0, 1, 99)]))["low"] == -5.0


@pytest.mark.parametrize(("count", "alarm"), [(2, 1e-3), (5, 1e-6), (40, 0.05), (4000, 1e-6)])
def test_the_least_t_statistic_is_a_quantile_of_students(count: int, alarm: float) -> None:
    assert intervals.least_z(count, alarm) == pytest.approx(stats.t.isf(alarm, count - 1), rel=1e-3)


def test_an_alarm_needs_two_samples() -> None:
    assert intervals.least_z(1, 0.05) == math.inf


def _beyond(left: list[float], twins: list[list[float]], num_samples: int = 10) -> ExplainedFraction:
    return explained_beyond_controls(np.array(left), np.array(twins), num_samples)


def test_the_interval_beyond_controls_is_students_on_the_log_scale() -> None:
    left, twins = [0.3, 0.28, 0.33, 0.29], [[0.6, 0.5, 0.7], [0.62, 0.5, 0.7], [0.6, 0.51, 0.7], [0.6, 0.5, 0.72]]
    means = np.mean(twins, 1)
    noise = np.var(np.array(left[1:]) / means[1:], ddof=1) / 0.5**2
    spread = np.var(twins[0], ddof=1) / means[0] ** 2 * (1 + 1 / 3)
    degrees = (noise + spread) ** 2 / (noise**2 / 9 + spread**2 / 2)
    half = stats.t.ppf(0.975, degrees) * math.sqrt(noise + spread)
    found = _beyond(left, twins)
    assert [found.read, found.controls, found.num_controls] == pytest.approx([0.7, 0.4, 3])
    assert [found.value, found.low, found.high] == pytest.approx(
        [0.5, 1 - 0.5 * math.exp(half), 1 - 0.5 * math.exp(-half)], rel=1e-4
    )


def test_fractions_beyond_controls_at_the_ends() -> None:
    """Equal controls, a network without errors, controls that reach everything, and no controls."""
    same = _beyond([0.3] * 4, [[0.6] * 3] * 4)
    assert [same.value, same.low, same.high] == pytest.approx([0.5] * 3)
    perfect = _beyond([0.0] * 4, [[0.5] * 3] * 4, 20)
    unseen = 1 - 0.025 ** (1 / 20)  # an error rate that gives 20 right answers with probability 1/40
    assert [perfect.value, perfect.low, perfect.high] == pytest.approx([1, 1 - 2 * unseen, 1])
    wide = _beyond([0.3, 1e9, 0.1, 0.2], [[0.6] * 3] * 4)
    assert wide.low == pytest.approx(1 - 0.5 * math.exp(20))
    assert _beyond([0.01] * 4, [[0.02] * 3] * 4).value == pytest.approx(0.5)
    known = _beyond([0.01] * 4, [[0.0199] * 3] * 4)
    assert known.value is None
    assert known.reason == "not identifiable: 3 untrained controls already reach 0.980, the network 0.990"
    none = explained_beyond_controls(np.array([0.3, 0.2]), np.zeros((2, 0)), 9, reason="why")
    assert none == ExplainedFraction(0.7, reason="why")


# ---------------------------------------------------------------------------------------------------------------------
# Affine maps and subspaces


def test_an_affine_map_is_the_ridge_regression_of_standardised_features() -> None:
    x, y = DRAW.normal(size=(2, 50, 3)) * [1, 5, 0.2] + [0, 1, 2], DRAW.normal(size=(50, 2))
    x[:, :, 2] = 7.0  # a constant feature
    for ridge in (1e-6, 0.5):
        fit = fit_affine(torch.from_numpy(x), torch.from_numpy(y), ridge)
        for layer in range(2):
            z = (x[layer] - x[layer].mean(0))[:, :2] / x[layer].std(0)[:2]
            weights = np.linalg.solve(z.T @ z / 50 + ridge * np.eye(2), z.T @ (y - y.mean(0)) / 50)
            np.testing.assert_allclose(fit(torch.from_numpy(x))[layer], z @ weights + y.mean(0), rtol=1e-8, atol=1e-12)


def test_changes_are_explained_on_samples_that_were_held_out() -> None:
    causes, train = DRAW.normal(size=(40, 3)), np.arange(40) % 4 > 0
    change = causes @ DRAW.normal(size=(3, 2)) + DRAW.normal(size=(40, 2))
    left, mean = similarity.explained_change(
        torch.from_numpy(change), torch.from_numpy(causes), torch.from_numpy(train)
    )
    z = (causes - causes[train].mean(0)) / causes[train].std(0, ddof=1)
    y = change - change[train].mean(0)
    weights = np.linalg.solve(z[train].T @ z[train] / 30 + 1e-3 * np.eye(3), z[train].T @ y[train] / 30)
    np.testing.assert_allclose(left, ((y - z @ weights)[~train] ** 2).sum(1))
    np.testing.assert_allclose(mean, (y[~train] ** 2).sum(1))


def test_the_alignment_of_layers_is_that_of_their_kernels() -> None:
    x, y = DRAW.normal(size=(2, 30, 3)), DRAW.normal(size=(3, 30, 5))
    found = similarity.linear_cka(torch.from_numpy(x), torch.from_numpy(y))
    grams = [[(c := one - one.mean(0)) @ c.T for one in layers] for layers in (x, y)]
    for (i, one), (j, other) in product(enumerate(grams[0]), enumerate(grams[1])):
        assert float(found[i, j]) == pytest.approx((one * other).sum() / np.sqrt((one**2).sum() * (other**2).sum()))


def test_subspaces_of_beliefs_overlap_by_their_principal_angles() -> None:
    along, across = torch.tensor([[1.0, 0.0, 0.0]]).double(), torch.tensor([[0.0, 1.0, 0.0]]).double()
    tilted = (along + across) / math.sqrt(2)
    both = torch.cat([along, across])
    pairs = [(along, along, 1), (along, across, 0), (along, tilted, 0.5), (both, tilted, 1), (both, both, 1)]
    assert [belief_space._overlap(one, other) for one, other, _ in pairs] == pytest.approx([x for _, _, x in pairs])
    assert belief_space._overlap(along[:0], along) == 0
    variances = torch.tensor([3.0, 1.0, 0.0]).double()
    assert belief_space._effective(variances) == pytest.approx(16 / 10)
    assert belief_space._effective(variances / 1000) == pytest.approx(16 / 10)
    belief = torch.tensor([[1, 0, 0], [0, 1, 0], [0, 0, 1], [0.5, 0.5, 0]]).double()
    assert belief_space._rank(belief) == 2
    assert belief_space._rank(belief[[0, 1, 3]]) == 1
    scaled = torch.stack([torch.tensor([1.0, -1, 0, 0]), torch.tensor([0, 0, 1.0, -1]) * 2e-3], 1).double()
    assert belief_space._rank(scaled) == 2
    assert belief_space._rank(scaled * torch.tensor([1, 0.4])) == 1
    map_ = torch.tensor([[1.0, 0, 0], [0, 1, 0], [0, 0, 1]]).double()
    span = belief_space._span(belief[[0, 1, 3]], map_)
    assert span.abs().numpy() == pytest.approx(np.array([[1, 1, 0]]) / math.sqrt(2))


def test_a_stream_that_beliefs_explain_moves_with_them() -> None:
    belief = torch.from_numpy(DRAW.dirichlet(np.ones(3), 60))
    map_ = torch.from_numpy(DRAW.normal(size=(3, 4)))
    share, variances, found = belief_space._moved(belief @ map_ + 5, belief)
    assert share == pytest.approx(1, abs=1e-4)
    np.testing.assert_allclose((belief - belief.mean(0)) @ found, (belief - belief.mean(0)) @ map_, atol=1e-3)
    centred = (belief - belief.mean(0)) @ map_
    np.testing.assert_allclose(variances, torch.linalg.svdvals(centred).square(), rtol=1e-3, atol=1e-6)
    noise = torch.from_numpy(DRAW.normal(size=(60, 4)))
    x, z = noise.numpy() - noise.numpy().mean(0), np.column_stack([belief.numpy()[:, :2], np.ones(60)])
    left = x - z @ np.linalg.lstsq(z, x, rcond=None)[0]
    assert belief_space._moved(noise, belief)[0] == pytest.approx(1 - (left**2).sum() / (x**2).sum(), rel=1e-3)
    assert belief_space._moved(torch.ones(60, 4).double(), belief)[0] == 0


def test_a_readout_compares_layers_by_their_training_error() -> None:
    errors, spread = np.array([[1.0, 4.0], [2.0, 2.0], [0.0, 1.0]]), np.array([4.0, 4.0, 2.0])
    read = Readout(errors, spread, np.array([0.5, 0.7]), torch.zeros(2, 3, 1).double())
    assert read.r2()[0].tolist() == pytest.approx([1 - 3 / 10, 1 - 7 / 10])
    assert read.chosen == 1
    assert [row["fitted"] for row in read.by_layer()] == [0.5, 0.7]


# ---------------------------------------------------------------------------------------------------------------------
# Belief maps and exact beliefs


def test_an_axis_without_spread_colours_only_what_lies_beside_it() -> None:
    """Of 101 beliefs in four states, all but one are equal: that one is at the upper end of the first axis."""
    exact = np.full((101, 4), 0.25)
    exact[0] = [1, 0, 0, 0]
    share = ExplainedFraction(0.5)
    colours = BeliefMap("x", exact, exact, None, 0.5, 0.4, 0.6, share, 0.1).colours()
    assert colours[1:] == pytest.approx(0.1)
    assert colours[0] == pytest.approx([0.1 + 0.75 * math.sqrt(0.75), 0.1, 0.1])
    spread = np.eye(4).repeat(30, 0)
    colours = BeliefMap("x", spread, spread, None, 0.5, 0.4, 0.6, share, 0.1).colours()
    assert [colours.min(), colours.max()] == pytest.approx([0.1, 0.85])
    assert len({tuple(row) for row in colours.round(6)}) == 4
    three = np.eye(3)
    found = BeliefMap("x", three, three, None, 0.5, 0.4, 0.6, share, 0.97)
    assert (found.colours() * 255).round().astype(int).tolist() == [[216, 27, 96], [30, 136, 229], [224, 161, 0]]
    assert found.coordinates().tolist() == [[0.5, math.sqrt(0.75)], [0, 0], [1, 0]]
    assert found.note == ""
    same = BeliefMap("x", three, three, None, 0.5, 0.4, 0.6, share, 0.98)
    assert "affine function of the prediction" in same.note
    two = np.array([[0.2, 0.8], [0.9, 0.1]])
    assert BeliefMap("x", two, two[::-1], None, 0.5, 0.4, 0.6, share, 0.1).coordinates().tolist() == [
        [0.2, 0.9],
        [0.9, 0.2],
    ]


def test_a_map_has_a_hundred_thousand_points_if_no_number_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    dataset, asked = ProcessDataset(make_process("mess3"), length=5), []

    def of(dataset: Any, num_samples: int, num_points: int, observer: Any) -> None:
        asked.append(num_points)
        raise KeyError

    monkeypatch.setattr(belief_map.BeliefReader, "of", of)
    for options in (None, InstrumentOptions(num_points=7)):
        with pytest.raises(KeyError):
            hs.belief_map(_model(dataset), dataset, options=options)
    assert asked == [100_000, 7]


def test_the_best_estimate_of_a_belief_bounds_what_can_be_read() -> None:
    exact = ExactBeliefs.of(_prompts(), 16)
    belief, mixed = exact.values[BELIEF].numpy(), exact.values[MIXED_BELIEF].numpy()
    test = np.arange(len(belief)) >= 12 * len(belief) // 16
    left = ((belief - mixed)[test] ** 2).sum() / ((belief - belief[~test].mean(0))[test] ** 2).sum()
    assert exact.ceiling(BELIEF) == pytest.approx(1 - left)
    assert 0.05 < left < 0.95
    assert exact.ceiling(MIXED_BELIEF) == 1


def test_a_layer_that_does_not_depend_on_the_task_hides_no_other() -> None:
    """At test positions, the embedding is the same whatever the demonstrations were."""
    dataset = _prompts()
    model, given = _model(dataset), {"num_samples": 16, "num_random": 1}
    alone = task_patching(model, dataset, layers=["residual.2"], **given)
    after = task_patching(model, dataset, layers=["residual.0", "residual.2"], **given)
    assert alone
    assert after == [row | {"layer": 1} for row in alone]


def test_the_first_order_of_demonstrations_is_the_original_one() -> None:
    dataset, generator = _prompts(), torch.Generator().manual_seed(0)
    ids = list(shuffle._moved_ids(LAYOUT, 4, generator))
    assert torch.equal(ids[0], torch.arange(LAYOUT.context_length))
    assert any(not torch.equal(one, ids[0]) for one in ids)
    keys = shuffle._columns(LAYOUT).flatten()
    others = np.setdiff1d(np.arange(LAYOUT.context_length), keys)
    for one in ids:
        assert sorted(one.tolist()) == list(range(LAYOUT.context_length))
        assert one[others].tolist() == others.tolist()
    batch = dataset[0:3]
    moved = list(shuffle._moved_blocks(batch, dataset, LAYOUT, 6, generator))
    assert torch.equal(moved[0][0], batch.tokens)
    assert torch.equal(moved[0][1], shuffle._columns(LAYOUT))
    for tokens, columns in moved:  # `columns` is where each demonstration went
        assert torch.equal(tokens[:, columns], batch.tokens[:, shuffle._columns(LAYOUT)])


def test_logits_vary_by_their_deviation_over_their_size() -> None:
    logits = torch.tensor([[[[1.0, 2.0]]], [[[3.0, -2.0]]]])  # (permutation, sample, head, key)
    assert float(shuffle._variation(logits)) == pytest.approx(((1 + 2) / 2) / 2)
    assert float(shuffle._centred_variation(logits)) == pytest.approx(1.5 / 1.5)
    pattern = np.exp(logits.numpy()[:, 0, 0]) / np.exp(logits.numpy()[:, 0, 0]).sum(1, keepdims=True)
    away = 0.5 * np.abs(pattern - pattern.mean(0)).sum(1).mean()
    assert float(shuffle._change(logits)) == pytest.approx(away)


# ---------------------------------------------------------------------------------------------------------------------
# Initial weights


@pytest.mark.parametrize(
    ("shape", "differs"), [((2, 500), True), ((500, 2), True), ((1, 1000), False), ((1000,), False)]
)
def test_matrices_have_two_rows_and_columns_at_least(shape: tuple[int, ...], differs: bool) -> None:
    """Training moves vectors up to a ratio of 4, and matrices up to 1.6."""
    drawn = [torch.randn(shape, generator=torch.Generator().manual_seed(seed)) for seed in range(3)]
    found = initialization.other_law({"w": 2 * drawn[0]}, [{"w": one} for one in drawn[1:]])
    assert bool(found) is differs
    assert initialization.other_law({"w": 2 * drawn[0]}, [{"w": one} for one in drawn[1:]], trained=False)


def _gaussian(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


DRAWN = [{"w": _gaussian(60, 50, seed=seed)} for seed in (1, 2, 3)]
SPIKE = torch.outer(_gaussian(60, seed=4), _gaussian(50, seed=5))


@pytest.mark.parametrize(
    ("weight", "trained", "first"),
    [
        (_gaussian(60, 50), "", ""),
        (1.2 * _gaussian(60, 50), "", ""),
        (1.3 * _gaussian(60, 50), "", "is 1.3 times the "),
        (1.5 * _gaussian(60, 50), "", "is 1.5 times the "),
        (1.7 * _gaussian(60, 50), "is 1.7 times the ", "is 1.7 times the "),
        (_gaussian(60, 50) / 1.7, "times the ", "times the "),
        (_gaussian(60, 50) + SPIKE, "", "root mean square is 1.3 times"),
        (0.5 * _gaussian(60, 50) + 2 * SPIKE, "", "median singular value is 0.51 times"),
        (torch.full((60, 50), 2.0).double(), "all its values are 2, but", "all its values are 2, but"),
        (torch.zeros(60, 50).double(), "all its values are 0, but", "all its values are 0, but"),
    ],
)
def test_trained_weights_are_compared_by_their_smaller_change_and_initial_ones_by_the_larger(
    weight: torch.Tensor, trained: str, first: str
) -> None:
    for said, is_trained in ((trained, True), (first, False)):
        found = initialization.other_law({"w": weight}, DRAWN, trained=is_trained)
        assert said in found
        assert bool(found) is bool(said)


def test_initial_weights_are_compared_at_any_scale() -> None:
    for scale in (1e-4, 1e4):
        own, others = {"w": scale * _gaussian(60, 50)}, [{"w": scale * one["w"]} for one in DRAWN]
        assert initialization.other_law(own, others, trained=False) == ""
        assert initialization.other_law(own, others) == ""
        assert "is 1.7 times" in initialization.other_law({"w": 1.7 * own["w"]}, others)


def test_weights_that_controls_share_are_compared_only_at_initialization() -> None:
    same = [{"w": torch.ones(9).double()}] * 2
    assert initialization.other_law({"w": torch.full((9,), 1.5).double()}, same) == ""
    assert "its values differ" in initialization.other_law({"w": torch.full((9,), 1.5).double()}, same, trained=False)
    assert initialization.other_law({"w": torch.ones(9).double()}, same, trained=False) == ""
    assert "4.5 times" in initialization.other_law({"w": torch.full((999,), 4.5)}, [{"w": torch.ones(999)}] * 2)
    none = [{"w": torch.zeros(9).double()}] * 2
    assert initialization.other_law({"w": _gaussian(9)}, none) == ""
    for one in (torch.ones(1), torch.arange(9)):
        assert initialization.other_law({"w": 9 * one}, [{"w": one}], trained=False) == ""


def _table_of_sinusoids(noise: float) -> torch.Tensor:
    steps = torch.arange(24.0).double()[:, None] * torch.tensor([1.0, 0.3, 0.01]).double()
    return torch.cat([steps.sin(), steps.cos()], 1) + noise * _gaussian(24, 6)


def _ramp(*broken: int) -> torch.Tensor:
    ramp = torch.arange(40.0).double()[:, None] * torch.tensor([1.0, -0.5]).double()
    ramp[list(broken)] += 7
    return ramp


@pytest.mark.parametrize(
    ("table", "follows"),
    [
        (_ramp(), True),
        (_ramp().T, True),
        (_ramp()[:3], True),
        (_ramp(20), True),
        (_ramp(10, 30), False),
        (_table_of_sinusoids(0.0), True),
        (_table_of_sinusoids(1e-5), True),
        (_table_of_sinusoids(1e-2), False),
        (torch.polar(torch.ones(9).double(), torch.arange(9.0).double() / 3), True),
        (1e4 ** (-torch.arange(4.0).double() / 4), True),
        (1e4 ** (-torch.arange(8.0).double() / 8), True),
        (_gaussian(4), False),
        (_gaussian(2, 2), False),
        (_gaussian(9, 7), False),
        (1e-9 * _gaussian(9, 7), False),
        (_gaussian(9, 7).sign(), True),
        (torch.tensor([[0.0, -math.inf], [0.0, 0.0]]).double(), True),
    ],
)
def test_tables_of_positions_are_ramps_sinusoids_or_powers(table: torch.Tensor, follows: bool) -> None:
    assert initialization._follows(table) is follows


@pytest.mark.parametrize("endless", [math.inf, -math.inf])
def test_endless_entries_of_a_table_do_not_set_its_scale(endless: float) -> None:
    """Small random numbers follow no rule of the position, whatever else their columns hold."""
    table = torch.randn(12, 3, generator=torch.Generator().manual_seed(0)) * 1e-5
    ramp = torch.arange(12.0)[:, None] * torch.tensor([1e-5, 2.0])
    table[5], ramp[5] = endless, endless
    assert not initialization._follows(table)
    assert initialization._follows(ramp)


# ---------------------------------------------------------------------------------------------------------------------
# Edits


def test_edits_change_only_their_samples_and_positions() -> None:
    x = torch.from_numpy(DRAW.normal(size=(3, 4, 6)))
    basis = torch.tensor([[1.0, 1, 0, 0, 0, 0], [2, 2, 0, 0, 0, 0], [0, 0, 3, 0, 0, 0]]).double()
    unit = torch.zeros(6, 2).double()
    unit[:2, 0], unit[2, 1] = 1 / math.sqrt(2), 1
    to, mean = torch.from_numpy(DRAW.normal(size=(3, 4, 6))), torch.arange(6.0).double()
    assert torch.allclose(interventions.span(basis) @ interventions.span(basis).T, unit @ unit.T)
    project = unit @ unit.T
    zero = x.clone()
    zero[..., 2:4] = 0
    by = x.clone()
    by[..., 2:4] = to[..., 2:4]
    cases: list[tuple[Callable[..., Any], torch.Tensor]] = [
        (lambda **at: interventions.project_out(basis, **at), x - x @ project),
        (lambda **at: interventions.project_out(basis, mean=mean, **at), x - (x - mean) @ project),
        (lambda **at: interventions.move_within(basis, to, **at), x + (to - x) @ project),
        (lambda **at: interventions.add(mean, **at), x + mean),
        (lambda **at: interventions.patch(to, **at), to),
        (lambda **at: interventions.ablate_head(1, 3, **at), zero),
        (lambda **at: interventions.ablate_head(1, 3, by=to, **at), by),
    ]
    places: list[tuple[dict[str, Any], np.ndarray]] = [
        ({}, np.ones((3, 4), bool)),
        ({"samples": 1}, np.arange(3)[:, None] == np.ones((1, 4))),
        ({"positions": [0, -1]}, np.isin(np.arange(4), [0, 3])[None].repeat(3, 0)),
        ({"samples": slice(1, 3), "positions": 2}, np.outer([0, 1, 1], [0, 0, 1, 0]) > 0),
    ]
    for make, whole in cases:
        for at, inside in places:
            expected = torch.where(torch.from_numpy(inside)[..., None], whole, x)
            assert torch.allclose(make(**at)(x), expected), at


def test_a_pattern_is_set_in_one_head_or_all() -> None:
    x, to = torch.zeros(2, 3, 2, 2), torch.ones(2, 2)
    assert interventions.set_pattern(to)(x).sum() == 24
    one = interventions.set_pattern(to, head=1)(x)
    assert one.sum((0, 2, 3)).tolist() == [0, 8, 0]
    assert interventions.set_pattern(to, head=2, samples=[1])(x).sum((1, 2, 3)).tolist() == [0, 4]


def test_the_most_likely_change_follows_the_covariance() -> None:
    read = torch.from_numpy(DRAW.normal(size=(4, 2)))
    root = torch.from_numpy(DRAW.normal(size=(4, 4)))
    covariance = root @ root.T
    found = belief_interventions.writing(read, covariance).numpy()
    expected = np.linalg.solve(read.T.numpy() @ covariance.numpy() @ read.numpy(), read.T.numpy() @ covariance.numpy())
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    np.testing.assert_allclose(found @ read.numpy(), np.eye(2), atol=1e-9)
    low = torch.cat([root[:2], root[:2] * 2])  # a covariance of rank 2
    half, inverse = belief_interventions._roots(low @ low.T)
    np.testing.assert_allclose(half @ half, low @ low.T, atol=1e-9)
    np.testing.assert_allclose(inverse, torch.linalg.pinv(half, rtol=1e-5), atol=1e-6)


def test_distances_of_probabilities() -> None:
    p, q = torch.tensor([0.5, 0.5, 0.0]).double(), torch.tensor([0.25, 0.5, 0.25]).double()
    assert float(belief_interventions.divergence(p, q)) == pytest.approx(0.5 * math.log(2))
    assert float(belief_interventions.divergence(q, p)) == math.inf
    assert float(belief_interventions.total_variation(p, q)) == pytest.approx(0.25)
    assert float(belief_interventions.squared(p, q)) == pytest.approx((0.25**2 * 2) / 3)


def test_donors_are_other_samples_of_the_same_component() -> None:
    donor, kept = belief_interventions._others(torch.tensor([0, 1, 0, 2, 0, 1]))
    assert kept.tolist() == [0, 1, 2, 4, 5]
    components = torch.tensor([0, 1, 0, 2, 0, 1])[kept]
    assert torch.equal(components[donor], components)
    assert all(int(one) != place for place, one in enumerate(donor))
    assert sorted(donor.tolist()) == [0, 1, 2, 3, 4]


# ---------------------------------------------------------------------------------------------------------------------
# Predictors


def test_outputs_become_probabilities() -> None:
    outputs = torch.tensor([[1.0, 2.0, -1.0], [0.0, -1.0, 0.0], [0.25, 0.75, 0.0]])
    law = torch.nn.Identity()
    assert torch.allclose(to_probs(law, outputs), outputs.double().softmax(-1))
    law.outputs = "law"  # type: ignore[assignment]
    assert to_probs(law, outputs).tolist() == [[1 / 3, 2 / 3, 0], [1 / 3] * 3, [0.25, 0.75, 0]]
    to_probs(law, outputs.requires_grad_())[:, 0].sum().backward()
    assert outputs.grad is not None
    assert outputs.grad[0].tolist() == pytest.approx([2 / 9, -1 / 9, 0])
    assert outputs.grad[1].tolist() == [0, 0, 0]  # not NaN


def test_bets_win_what_their_odds_say() -> None:
    p = torch.tensor([[[0.5, 0.3, 0.2], [0.1, 0.6, 0.3]], [[0.2, 0.2, 0.6], [0.7, 0.2, 0.1]]], dtype=torch.float64)
    other = torch.full_like(p, 1 / 3)
    seen = torch.tensor([[0, 1], [2, 2]])
    won = calibration.bet(p, seen, np.array([1, 2]), {"b": other})
    law, chosen = p.numpy(), np.array([[0.5, 0.6], [0.6, 0.1]])
    for power in calibration.POWERS:
        gain = ((power - 1) * np.log(chosen) - np.log((law**power).sum(2))).sum()
        assert won[f"the optimum's probabilities to the power of {power:g}"] == pytest.approx(gain)
    for name in ("b", "uniform probabilities"):
        assert won[name] == pytest.approx(np.log((chosen + 1 / 3) / 2 / chosen).sum())
    before = np.array([[0.5, 0.3], [0.6, 0.6]])  # of each outcome, by the previous prediction
    assert won["the previous prediction"] == pytest.approx(np.log((chosen + before) / 2 / chosen).sum())
    for odds, symbol in product(calibration.ODDS, range(3)):
        gain = math.log(odds) * (seen == symbol).sum() - np.log1p(law[:, :, symbol] * (odds - 1)).sum()
        assert won[f"the odds of symbol {symbol} times {odds:g}"] == pytest.approx(float(gain))
    parts = [" at positions 1 to 1", " at positions 2 to 3"]
    assert sum(won[f"b{part}"] for part in parts) == pytest.approx(won["b"])
    assert won["b at positions 1 to 1"] == pytest.approx(np.log((chosen + 1 / 3) / 2 / chosen)[:, 0].sum())
    apart = calibration.bet(p, seen, np.array([1, 2]), in_order=False)
    assert "the previous prediction" not in apart
    assert {name.rpartition(" at ")[2] for name in apart if " at " in name} == {"column 0", "column 1"}
    never = calibration.bet(torch.tensor([[[1.0, 0.0]]], dtype=torch.float64), torch.tensor([[1]]), np.array([1]))
    assert "probability zero" in str(calibration.miscalibrated(never))


def test_an_optimum_is_miscalibrated_beyond_its_threshold() -> None:
    least = math.log(2 / 1e-6)
    assert calibration.miscalibrated({"a": least, "b": 0.0}) is None
    assert "(a)" in str(calibration.miscalibrated({"a": least + 1e-6, "b": 0.0}))
    assert calibration.miscalibrated({"a": least + 1, "b": 0.0}, spare=1.0001) is None
    assert calibration.miscalibrated({}) is None


def test_a_constrained_belief_adds_one_term_for_each_observation() -> None:
    process = make_process("mess3")
    stationary, labelled = np.full(3, 1 / 3), process.params.steps().numpy().reshape(3, 3, 3)
    transition, x = labelled.sum(0), [0, 2, 1, 1]
    effects = [stationary @ labelled[v] / (stationary @ labelled[v]).sum() - stationary for v in range(3)]
    found = constrained_updates.constrained_beliefs(process, torch.tensor([x]))[0].numpy()
    for t in range(4):
        terms = [effects[x[s]] @ np.linalg.matrix_power(transition, t - s) for s in range(t + 1)]
        np.testing.assert_allclose(found[t], stationary + np.sum(terms, 0), atol=1e-12)


def test_weights_of_predictors_are_those_of_expectation_maximisation() -> None:
    """Among them one that is far off where the others are small."""
    q = DRAW.dirichlet(np.ones(4), (30, 2))
    near, far = 0.9 * q + 0.1 * DRAW.dirichlet(np.ones(4), (30, 2)), DRAW.dirichlet(np.full(4, 0.1), (30, 2))
    predictors = {"near": near, "far": 0.999 * far + 0.001 / 4, "flat": np.full((30, 2, 4), 0.25)}
    found = strategy_weights(torch.from_numpy(q), {name: torch.from_numpy(one) for name, one in predictors.items()})

    def weights(rows: np.ndarray) -> np.ndarray:
        w, p = np.full(3, 1 / 3), np.stack([one[rows].ravel() for one in predictors.values()])
        for _ in range(2000):
            w = w * (p @ (q[rows].ravel() / (w @ p))) / q[rows].sum()
        return w

    every = np.arange(30)
    best = weights(every)
    assert list(found.value.values()) == pytest.approx(best, abs=1e-3)
    left_out = np.stack([weights(every[every % 20 != part]) for part in range(20)])
    error = np.sqrt(19 / 20 * ((left_out - left_out.mean(0)) ** 2).sum(0))
    assert list(found.error.values()) == pytest.approx(error, rel=0.02, abs=1e-3)
    mixed = np.tensordot(best, np.stack(list(predictors.values())), 1)
    assert found.left == pytest.approx((q * np.log(q / mixed)).sum(-1).mean(), abs=1e-6)
    for name, one in predictors.items():
        assert found.single_kl[name] == pytest.approx((q * np.log(q / one)).sum(-1).mean())


def test_weights_below_a_billionth_are_zero() -> None:
    """The weight of the only predictor of an outcome is its probability."""
    predictors = {"a": torch.tensor([1.0, 0.0]), "b": torch.tensor([0.0, 1.0])}
    for rare, weight in ((1.5e-9, 1.5e-9), (0.7e-9, 0.0)):
        q = torch.tensor([1 - rare, rare], dtype=torch.float64).expand(2, 1, 2)
        found = strategy_weights(q, {name: one.double().expand(2, 1, 2) for name, one in predictors.items()})
        assert found.value["b"] == pytest.approx(weight, rel=1e-6, abs=1e-15)
        assert found.value["a"] == pytest.approx(1)


@pytest.mark.parametrize(("num_symbols", "levels"), [(2**16, 3), (2**31, 1), (2**31 - 1, 2), (2**20, 3)])
def test_contexts_have_numbers_below_two_to_the_62(num_symbols: int, levels: int, unchecked: None) -> None:
    flat = np.array([3, 1, 2, 1, 2, 0, 3, 1])
    data = SimpleNamespace(flat=flat, steps_since_gap=np.arange(8))
    process: Any = SimpleNamespace(num_symbols=num_symbols, part=lambda _: data)
    assert len(trained_ngrams.TrainedNgrams(process, 5)._levels) == levels


def test_trained_ngrams_back_off_by_their_strengths(unchecked: None) -> None:
    rows = [DRAW.integers(0, 2, size).tolist() for size in (40, 30, 20)]
    flat = np.concatenate(rows)
    since = np.concatenate([np.arange(len(row)) for row in rows])
    process: Any = SimpleNamespace(num_symbols=2, part=lambda _: SimpleNamespace(flat=flat, steps_since_gap=since))
    fitted = trained_ngrams.TrainedNgrams(process, 3)
    seen = [1, 0, 0, 1, 1]
    found = fitted.predictions(torch.tensor([seen]), np.arange(5))
    for order, strengths in enumerate(fitted.strengths):
        for t in range(5):
            law = np.full(2, 0.5)
            for k in range(min(order, t) + 1):
                past = seen[t - k : t]
                counts = np.array(
                    [
                        sum(row[i - k : i] == past and row[i] == v for row in rows for i in range(k, len(row)))
                        for v in range(2)
                    ]
                )
                law = (counts + strengths[k] * law) / (counts.sum() + strengths[k])
            assert found[f"trained-order-{order}"][0, t].tolist() == pytest.approx(law.tolist())


def test_a_search_ends_where_no_step_lowers_the_loss() -> None:
    least, wanted = [1.5, -2.0], 0.25
    place, loss = ngrams.descend(
        lambda at: sum(abs(a - b) for a, b in zip(at, least, strict=True)) + wanted, [0.0, 0.0], [(-8.0, 8.0)] * 2
    )
    assert (place, loss) == (least, wanted)
    place, loss = ngrams.descend(lambda at: at[0], [0.5], [(-3.0, 3.0)])
    assert place == [-3.0]
    place, loss = ngrams.descend(lambda at: -at[0], [0.5], [(-3.0, 3.0)])
    assert place == [3.0]
    assert ngrams.least_within_margin([1.0, 0.5011, 0.501, 0.5]) == 2
    assert not ngrams._at_rest([1.0, 1.0, 1.0])
    assert ngrams._at_rest([1.0, 1.0, 1.0, 1.0])
    assert ngrams._at_rest([1.0, 0.9991, 0.9995, 0.9992])
    assert not ngrams._at_rest([1.0, 1.0, 1.0, 0.998])


# ---------------------------------------------------------------------------------------------------------------------
# Tables and curves


def test_means_leave_out_what_is_not_asked() -> None:
    values = np.array([[1.0, np.nan, 3.0], [np.nan] * 3, [2.0, 4.0, 6.0]])
    np.testing.assert_equal(measures.mean_of_asked(values), [2.0, np.nan, 4.0])
    asked = torch.from_numpy(~np.isnan(values))
    given = torch.from_numpy(np.nan_to_num(values, nan=99.0))
    assert measures.means_of_asked(given, asked).tolist() == [2.0, 4.0]
    assert measures.means_of_asked(given, torch.ones(3, 3, dtype=torch.bool)).tolist() == given.mean(1).tolist()
    of = measures.Measures(
        {"a": {"loss": np.array([[1.0, 2, np.inf], [3.0, 4, 5]])}}, np.array([0, 0, 1]), np.arange(3)
    )
    rows = of.rows("demonstrations")
    assert [(row["x"], row["value"], row["samples"]) for row in rows] == [(0, 2.5, 2), (1, None, 2)]
    assert rows[0]["low"] < 2.5 < rows[0]["high"]
    assert (rows[1]["low"], rows[1]["high"]) == (None, None)
    one = measures.Measures({"a": {"loss": np.array([[1.0, 2, 4]])}}, np.zeros(3, int), np.arange(3))
    assert [(row["value"], row["low"], row["high"]) for row in one.rows("positions")] == [
        (x, None, None) for x in (1, 2, 4)
    ]
    kept = one.rows("positions", np.array([True, False, True]))
    assert [(row["x"], row["value"]) for row in kept] == [(0, 1), (2, 4)]
    gaps = measures.Measures(
        {"a": {"loss": np.array([[1.0, np.nan], [3.0, np.nan], [2.0, 5.0]])}}, np.zeros(2, int), np.arange(3)[:2]
    )
    assert [(row["x"], row["value"], row["samples"]) for row in gaps.rows("positions")] == [(0, 2, 3), (1, 5, 1)]
    assert gaps.table() == [{"predictor": "a", "loss": 11 / 4}]


@pytest.mark.parametrize(
    ("losses", "prefix", "most", "start"),
    [
        ([0.0, 0.05, 0.2, 0.05], (2, 2 + 0.05 / 0.15), (4, 4.0), 4),
        ([0.0, 0.05, 0.05, 0.05], (4, 4.0), (4, 4.0), 1),
        ([0.1, 0.05, 0.2, 0.2], (0, 1.0), (2, 2 + 0.05 / 0.15), None),
        ([0.3, 0.3, 0.3, 0.3], (0, 1 / 3), (0, 1 / 3), None),
        ([0.0, None, 0.05, 0.05], (1, 1.0), (4, 4.0), 3),
    ],
)
def test_a_fit_length_ends_at_the_error_rate(
    losses: list[float | None], prefix: tuple[int, float], most: tuple[int, float], start: int | None
) -> None:
    rows, positions = [[9.0] * 4, losses], [1, 2, 3, 4]
    for name, (length, crossing) in {"prefix": prefix, "max": most}.items():
        assert fit_length.fit_length(rows, positions, 0.1, last=1, definition=name) == length
        assert fit_length.crossing_length(rows, positions, 0.1, last=1, definition=name) == pytest.approx(crossing)
    assert fit_length.fit_start(rows, positions, 0.1, last=1) == start
    assert fit_length.fit_length(rows, positions, 0.1, last=2) == 0
    assert fit_length.fit_length(rows[::-1], positions, 0.1, last=1) == 0


def test_a_level_is_crossed_between_the_steps_around_it() -> None:
    of = strategies.LevelCrossing.of
    found = of([0, 1, 4, 16], [-2.0, -1.0, 1.0, 2.0], [0.0, 0.3, 0.4, 9.0])
    assert found is not None
    assert (found.log2_step, found.step) == (1.0, 2.0)
    assert found.error == pytest.approx(2 / 2 * math.hypot(0.15, 0.2))
    again = of([0, 1, 4, 16], [-2.0, 1.0, -1.0, 3.0])
    assert (again.log2_step, again.error) == (2.5, 0.0)
    assert of([0, 1], [-1.0, 1.0]).log2_step == -0.5  # step 0 counts as 0.5
    assert of([1, 2], [0.5, 2.0], level=1.0).log2_step == pytest.approx(1 / 3)
    assert of([1, 2], [1.0, 2.0]) is None
    assert of([1, 2], [-1.0, 0.0]) is None
    row = {"metric": "kl", "low": 0.0, "high": 0.392}
    values = {"a": [0.1, 0.2, 0.9], "b": [0.5, 0.4, 0.1]}
    rows = [
        row | {"predictor": name, "step": 2**k, "value": x} for name, xs in values.items() for k, x in enumerate(xs)
    ]
    between = strategies.LevelCrossing.between([*rows, {**rows[0], "metric": "x", "value": 9.0}], "a", "b")
    assert between.log2_step == pytest.approx(1 + 0.2 / 1.0)
    assert between.error == pytest.approx(math.hypot(0.8, 0.2) * math.hypot(0.1, 0.1))


def test_attention_is_averaged_by_distance_and_source() -> None:
    dataset = _prompts()
    model = _model(dataset, 1)
    rows = attention_maps.attention_map(model, dataset, num_samples=20, max_offset=99)
    tokens = dataset[0:20].tokens
    pattern = hs.capture_activations(model, ["blocks.0.attention.pattern"], tokens)["blocks.0.attention.pattern"][
        :, :, -1
    ]
    last, columns = LAYOUT.context_length - 1, np.asarray(LAYOUT.token_positions)
    same = columns[LAYOUT.sequence_index == LAYOUT.sequence_index[-1]]
    earlier = columns[LAYOUT.sequence_index < LAYOUT.sequence_index[-1]]
    groups = {
        "same sequence": same,
        "earlier sequences": earlier,
        "delimiters": np.setdiff1d(np.arange(last + 1), columns),
    }
    found = {(row["head"], row["kind"], row["key"]): row["value"] for row in rows}
    for head in range(2):
        for offset in range(last + 1):
            assert found[head, "offset", offset] == pytest.approx(
                float(pattern[:, head, last - offset].mean()), rel=1e-5
            )
        for name, where in groups.items():
            assert found[head, "source", name] == pytest.approx(float(pattern[:, head, where].sum(-1).mean()), rel=1e-5)
    assert {row["layer"] for row in rows} == {1}


def test_a_control_has_new_weights_of_the_same_kind() -> None:
    model = _model(_prompts(), 1)
    drawn = untrained_controls.draw_controls(model, 3, seed=1).models
    for one, other in pairwise([model, *drawn]):
        assert [p.shape for p in one.parameters()] == [p.shape for p in other.parameters()]
        assert not torch.equal(next(one.parameters()), next(other.parameters()))
    assert untrained_controls.draw_controls(model, 0).reason == "no controls were requested"


def test_a_dataset_of_sequences_has_one_belief_for_each_time() -> None:
    dataset = ProcessDataset(make_process("mess3"), layout=SequenceLayout(length=5))
    exact = ExactBeliefs.of(dataset, 8)
    assert exact.belief.shape == (40, 3)
    assert torch.allclose(exact.belief.sum(1), torch.ones(40).double())
    assert exact.inside is None
