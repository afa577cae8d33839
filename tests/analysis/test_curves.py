"""Scores beside the optimum, n-grams and intervals: chance where nothing is held, the known answer where it was planted."""

import math
from collections.abc import Callable
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from analysis_cases import (
    HONEST,
    LAYOUTS,
    PROCESSES,
    PROMPTS,
    Function,
    Oracle,
    WrongOracle,
    assert_same_weights,
    fitted,
    known_component_losses,
    leaking,
    mixture,
    plain_ngrams,
    problem,
    random_hmm,
    referee,
)
from hmmscope import EvaluateOptions
from hmmscope.analysis.curves import MAX_ORDER, evaluate
from hmmscope.analysis.intervals import bootstrap_means, bootstrap_ratio, least_z, stretch
from hmmscope.analysis.logistic import predict_logistic
from hmmscope.analysis.ngrams import TunedNgrams
from hmmscope.datasets.layouts import Layout, PromptLayout, SequenceLayout
from hmmscope.datasets.process_dataset import ProcessDataset
from hmmscope.errors import InputError
from hmmscope.inference.optimal import optimal_predictions
from hmmscope.kernels.context_counts import context_counts, ngram_laws
from hmmscope.models.base import make_model
from hmmscope.processes.hmm import HMM
from hmmscope.processes.process import Process

# --------------------------------------------------------------------------------------------------------------------
# evaluate


@pytest.mark.long
@pytest.mark.parametrize("process", PROCESSES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_optimum_has_no_excess(process: str, layout: str) -> None:
    dataset = ProcessDataset(PROCESSES[process](), layout=LAYOUTS[layout])
    score = evaluate(Oracle(dataset), dataset, num_samples=70)
    measures = score.measures["model"]
    assert np.abs(measures["excess"]).max() < 1e-6
    assert measures["total_variation"].max() < 1e-9
    assert score.loss == pytest.approx(score.bayes_loss, abs=1e-9)
    assert score.excess == pytest.approx((0, 0, 0), abs=1e-6)
    assert np.array_equal(measures["accuracy"], score.measures["optimum"]["accuracy"])
    assert score.invalid is None
    assert all(np.isfinite(values).all() for metrics in score.measures.values() for values in metrics.values())


def test_bayes_loss_is_the_likelihood() -> None:
    dataset = ProcessDataset(mixture(), layout=PROMPTS)
    score = evaluate(Oracle(dataset), dataset, num_samples=20)
    starts = torch.from_numpy(PROMPTS.reset_mask)
    likelihood = optimal_predictions(
        dataset.process, dataset[0:20].observations, reset_mask=starts
    ).log_likelihood_terms
    assert score.bayes_loss == pytest.approx(-likelihood.mean().item(), rel=1e-12)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_uniform_model(layout: str) -> None:
    dataset = ProcessDataset(random_hmm(2), layout=LAYOUTS[layout])
    score = evaluate(Function(lambda tokens: torch.zeros(*tokens.shape, 4)), dataset, num_samples=33)
    assert score.measures["model"]["loss"] == pytest.approx(math.log(4), rel=1e-12)
    starts = torch.from_numpy(dataset.layout.reset_mask)
    optimum = optimal_predictions(dataset.process, dataset[0:33].observations, reset_mask=starts).predicted_observation
    p = optimum[:, dataset.layout.predicted_observations].numpy()
    kl = math.log(4) + np.where(p > 0, p * np.log(np.where(p > 0, p, 1)), 0).sum(-1)
    assert score.measures["model"]["excess"] == pytest.approx(kl, abs=1e-12)
    assert score.measures["model"]["total_variation"] == pytest.approx(0.5 * np.abs(p - 0.25).sum(-1), abs=1e-12)
    observed = dataset[0:33].observations[:, dataset.layout.predicted_observations].numpy()
    assert np.array_equal(score.measures["model"]["accuracy"], observed == 0)  # lowest among equals


def test_predicted_observations_are_named() -> None:
    dataset = ProcessDataset(mixture(), layout=PROMPTS)
    score = evaluate(Oracle(dataset), dataset, num_samples=5)
    assert score.demonstrations.tolist() == [0] * 5 + [1] * 5 + [2] * 5 + [3] * 6
    assert score.positions.tolist() == [0, 1, 2, 3, 4] * 3 + [0, 1, 2, 3, 4, 5]
    assert score.measures["model"]["loss"].shape == (5, 21)
    sequences = evaluate(Oracle(ProcessDataset(random_hmm(1), 6)), ProcessDataset(random_hmm(1), 6), num_samples=5)
    assert sequences.positions.tolist() == [1, 2, 3, 4, 5]


def test_rows_are_means_along_an_axis() -> None:
    dataset = ProcessDataset(mixture(), layout=PROMPTS)
    score = evaluate(Oracle(dataset, lambda x: 0.5 * x), dataset, num_samples=40)
    rows = score.rows("demonstrations")
    assert len(rows) == 4 * sum(len(metrics) for metrics in score.measures.values())
    for row in rows:
        values = score.measures[row["predictor"]][row["metric"]][:, score.demonstrations == row["x"]]
        assert row["value"] == pytest.approx(values.mean(), rel=1e-12)
        assert row["low"] <= row["value"] <= row["high"]
        assert row["samples"] == 40
    last = score.demonstrations == 3
    assert {row["x"] for row in score.rows("positions", last)} == set(range(6))


@pytest.mark.long
def test_pieces_of_samples_are_one_corpus() -> None:
    dataset = ProcessDataset(mixture(), layout=PROMPTS)
    together = evaluate(Oracle(dataset), dataset, num_samples=130)
    apart = [
        evaluate(Oracle(dataset), dataset, num_samples=65, options=EvaluateOptions(first=first)) for first in (0, 65)
    ]
    for name, metrics in together.measures.items():
        for metric, values in metrics.items():
            parts = np.concatenate([part.measures[name][metric] for part in apart])
            assert values == pytest.approx(parts, abs=1e-12)


def test_known_component_is_the_filter_of_the_component() -> None:
    dataset = ProcessDataset(mixture(), layout=PROMPTS)
    score = evaluate(Oracle(dataset), dataset, num_samples=30)
    expected = known_component_losses(dataset, dataset[0:30])
    assert score.measures["known-component"]["loss"] == pytest.approx(expected, abs=1e-10)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("seed", range(3))
def test_planted_leak_is_invalid(layout: str, seed: int) -> None:
    dataset = ProcessDataset(random_hmm(seed, concentration=2.0), layout=LAYOUTS[layout])
    score = evaluate(leaking(dataset, 10.0), dataset, num_samples=64, baselines=False)
    assert score.invalid is not None
    assert "below the loss of the Bayes optimum by" in score.invalid


def test_a_leak_that_is_the_same_in_every_sample_is_invalid() -> None:
    """No spread between samples: uniform observations, all of them known before."""
    dataset = ProcessDataset(HMM([1.0], [[1.0]], [[0.25] * 4]), layout=SequenceLayout(length=9))
    seen = Function(
        lambda tokens: 50.0 * nn.functional.one_hot(dataset[0:8].tokens.roll(-1, 1)[: len(tokens), :8], 4).double()
    )
    score = evaluate(seen, dataset, num_samples=8, baselines=False)
    assert score.invalid is not None


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("seed", range(3))
def test_planted_wrong_oracle_is_invalid(layout: str, seed: int) -> None:
    true, other = (random_hmm(seed + shift, concentration=2.0) for shift in (0, 100))
    dataset = WrongOracle(true, other, LAYOUTS[layout])
    score = evaluate(Oracle(dataset.true), dataset, num_samples=256, baselines=False)
    assert score.invalid is not None


def test_transposed_transition_is_a_wrong_oracle() -> None:
    transition = np.array([[0.1, 0.8, 0.1], [0.1, 0.1, 0.8], [0.8, 0.1, 0.1]])
    emission = np.eye(3) * 0.7 + 0.1
    true, transposed = HMM([1 / 3] * 3, transition, emission), HMM([1 / 3] * 3, transition.T, emission)
    dataset = WrongOracle(true, transposed, SequenceLayout(length=20))
    assert evaluate(Oracle(dataset.true), dataset, num_samples=64, baselines=False).invalid is not None


@pytest.mark.parametrize("samples", [2, 3, 40])
def test_a_model_that_never_expects_what_is_rare_is_no_leak(samples: int) -> None:
    """Where it does not happen, such a model is a little better in every sample, without any spread."""
    process = HMM([1.0], [[1.0]], [[0.999, 0.001]])
    dataset = ProcessDataset(process, layout=SequenceLayout(length=6))
    assert int(dataset[0:samples].observations.sum()) == 0
    score = evaluate(
        Oracle(dataset, lambda x: x - torch.tensor([0.0, 20.0])), dataset, num_samples=samples, baselines=False
    )
    assert score.bayes_loss is not None
    assert score.loss < score.bayes_loss - 5e-4
    assert score.invalid is None


def test_vectors_are_compared_in_standard_errors_of_few_samples() -> None:
    """Tables of Student's law: one-sided, with 1, 4 and 30 degrees of freedom."""
    assert least_z(1, 1e-6) == math.inf
    for count, alarm, value in ((2, 0.001, 318.309), (5, 0.001, 7.17318), (5, 1e-6, 41.5779), (31, 0.0005, 3.64596)):
        assert least_z(count, alarm) == pytest.approx(value, rel=1e-4)


@pytest.mark.parametrize("model", HONEST)
def test_honest_models_are_valid(model: str) -> None:
    """72 cases, each with a false alarm of at most 1e-6; here by fixed seeds never."""
    cases = 0
    for seed in range(6):
        for layout in LAYOUTS.values():
            process: Process = random_hmm(seed) if seed % 2 else mixture(seed)
            dataset = ProcessDataset(process, layout=layout, seed=seed)
            score = evaluate(Oracle(dataset, HONEST[model]), dataset, num_samples=40, baselines=False)
            assert score.invalid is None, (seed, layout)
            cases += 1
    assert cases * len(HONEST) >= 50


# Outputs that models may have


@pytest.mark.parametrize(
    "wrap",
    [
        lambda x: x,
        lambda x: SimpleNamespace(logits=x),
        lambda x: (x, None),
        lambda x: torch.cat([x, 9 + x[..., :1]], -1),  # a delimiter among the outputs
        lambda x: x.float(),
    ],
    ids=["tensor", "logits", "tuple", "delimiter", "float32"],
)
def test_any_module_is_accepted(wrap: Callable[[torch.Tensor], Any]) -> None:
    dataset = ProcessDataset(random_hmm(3), layout=PROMPTS)
    score = evaluate(Oracle(dataset, wrap), dataset, num_samples=6)
    assert score.loss == pytest.approx(score.bayes_loss, abs=1e-6)


@pytest.mark.parametrize(
    "output, message",
    [
        (lambda x: x[:, :-1], "must map tokens"),
        (lambda x: x[:, 0], "must map tokens"),
        (lambda x: x[:1], "must map tokens"),
        (lambda x: x[..., :3], "returns 3 logits, but the dataset has 4 symbols"),
        (lambda x: SimpleNamespace(logits="none"), "must map tokens .* got str"),
        (lambda x: SimpleNamespace(scores=x), "must map tokens .* got SimpleNamespace"),
        (lambda x: None, "must map tokens .* got NoneType"),
    ],
)
def test_wrong_outputs_are_refused(output: Callable, message: str, unchecked: None) -> None:
    dataset = ProcessDataset(random_hmm(3), layout=PROMPTS)
    with pytest.raises(InputError, match=message):
        evaluate(Oracle(dataset, output), dataset, num_samples=6)


def test_evaluate_puts_the_mode_back() -> None:
    dataset = ProcessDataset(random_hmm(3), 6)
    model = make_model("roformer", num_symbols=4, num_layers=1, num_heads=1, width=4)
    for mode in (True, False):
        model.train(mode)
        evaluate(model, dataset, num_samples=2)
        assert model.training is mode
        assert all(p.grad is None for p in model.parameters())


def test_nothing_to_predict_and_no_samples_are_refused() -> None:
    model = make_model("roformer", num_symbols=4, vocab_size=5, num_layers=1, num_heads=1, width=4)
    with pytest.raises(InputError, match="num_samples: must be at least"):
        evaluate(model, ProcessDataset(random_hmm(3), layout=PROMPTS), num_samples=0)
    with pytest.raises(InputError, match="layout: must have an observation for the model to predict"):
        evaluate(model, ProcessDataset(random_hmm(3), 1), num_samples=2)


@pytest.mark.parametrize(
    "layout", [SequenceLayout(length=40), PROMPTS, PromptLayout(num_demonstrations=9, demonstration_length=2)]
)
@pytest.mark.parametrize("strength", [1.0, 0.25])
def test_ngrams_are_dictionaries(layout: Layout, strength: float) -> None:
    dataset = ProcessDataset(random_hmm(4, num_symbols=3), layout=layout)
    observations = dataset[0:5].observations.numpy()
    counts = context_counts(observations, layout.position_in_sequence, 3, MAX_ORDER)
    strengths = [strength * (order + 1) for order in range(MAX_ORDER + 1)]
    found = ngram_laws(counts, strengths)
    positions = layout.position_in_sequence.tolist()
    exact = list(map(Fraction, strengths))
    expected = [plain_ngrams(sample, positions, 3, exact) for sample in observations.tolist()]
    assert found == pytest.approx(np.array(expected), abs=1e-12)
    assert found.sum(-1) == pytest.approx(1, abs=1e-12)


def test_ngrams_do_not_cross_starts() -> None:
    positions = np.array([0, 1, 0, 1])
    predictions = ngram_laws(context_counts(np.array([[0, 1, 0, 0]]), positions, 2, 1), [1.0, 1.0])
    # Before observation 3 the context is 0, which was followed by 1 once; the pair (1, 0) of times 1, 2 is none.
    order_0 = (2 + 0.5) / (3 + 1)
    assert predictions[0, 3, 0, 0] == pytest.approx(order_0)
    assert predictions[0, 3, 1, 0] == pytest.approx((0 + order_0) / (1 + 1))
    assert np.array_equal(predictions[0, 2, 1], predictions[0, 2, 0])  # no context at a start
    # Before observation 3 the context is 1; the pair (1, 0) of times 0, 1 counts only if no sequence starts at time 1.
    apart, together = (
        ngram_laws(context_counts(np.array([[1, 0, 1, 0]]), np.array(reach), 2, 1), [1.0, 1.0])
        for reach in ([0, 0, 1, 2], range(4))
    )
    assert apart[0, 3, 1, 0] == pytest.approx((1 + 0.5) / (3 + 1))
    assert together[0, 3, 1, 0] == pytest.approx((1 + 1.5 / 4) / (1 + 1))


def test_ngrams_in_evaluate() -> None:
    dataset = ProcessDataset(random_hmm(4), layout=PROMPTS)
    counting = TunedNgrams(((2.0,), (2.0, 0.5), (4.0, 1.0, 0.25)), 1, False, 2, 0.5, 0.5, False, 8)
    score = evaluate(Oracle(dataset), dataset, num_samples=4, options=EvaluateOptions(ngrams=counting))
    for b, sample in enumerate(dataset[0:4].observations.tolist()):
        for order, strengths in enumerate(counting.strengths):
            positions = PROMPTS.position_in_sequence.tolist()
            plain = plain_ngrams(sample, positions, 4, [Fraction(strength) for strength in strengths])
            losses = [-math.log(plain[t][order][symbol]) for t, symbol in enumerate(sample)]
            assert score.measures[f"order-{order}"]["loss"][b] == pytest.approx(losses, rel=1e-10)


# --------------------------------------------------------------------------------------------------------------------
# Intervals


def test_bootstrap_covers_the_mean() -> None:
    """4000 intervals from 100 skewed samples each: expected coverage 94 %; binomial error 0.4 %, so that the bounds

    fail by chance with probability below 1e-5; an interval for one standard error would cover 68 %."""
    values = np.random.default_rng(5).exponential(size=(100, 4000))
    mean, low, high = bootstrap_means(values)
    assert mean == pytest.approx(values.mean(0), rel=1e-12)
    covered = ((low <= 1) & (high >= 1)).mean()
    assert 0.92 < covered < 0.965
    assert 0.1 < (high < 1).mean() / 0.05 < 1.4
    assert ((low <= mean) & (mean <= high)).all()


def test_bootstrap_width_is_that_of_the_mean() -> None:
    values = np.random.default_rng(6).normal(size=(400, 300))
    _, low, high = bootstrap_means(values)
    assert (high - low).mean() == pytest.approx(2 * 1.96 / 20, rel=0.03)


def test_few_samples_have_students_interval() -> None:
    """By hand: 1, 2, 6 have mean 3, standard error sqrt(7/3), and Student's quantile of two degrees is 4.302653."""
    mean, low, high = bootstrap_means(np.array([1.0, 2.0, 6.0]))
    half = 4.302653 * math.sqrt(7 / 3)
    assert [float(mean), float(low), float(high)] == pytest.approx([3, 3 - half, 3 + half], rel=1e-5)
    ratio = bootstrap_ratio(np.array([1.0, 2.0, 6.0]), np.full(3, 2.0))
    assert ratio == pytest.approx((1.5, 1.5 - half / 2, 1.5 + half / 2), rel=1e-5)
    assert [float(x) for x in bootstrap_means(np.array([2.0]))] == [2, 2, 2]
    assert stretch(3) == pytest.approx(math.sqrt(1.5) * 4.302653 / 1.959964, rel=1e-4)
    assert [stretch(count) for count in (None, 1, 100, 5000)] == [1, 1, 1, 1]


def test_bootstrap_is_deterministic() -> None:
    values = np.random.default_rng(7).normal(size=(130, 2, 3))
    first, again, other = (bootstrap_means(values, seed=seed) for seed in (1, 1, 2))
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert first[1].shape == (2, 3)
    assert not np.array_equal(first[1], other[1])


def test_bootstrap_resamples_samples_not_numbers() -> None:
    """Columns that are equal within a sample stay equal in every resample."""
    values = np.random.default_rng(8).normal(size=(25, 1)) * np.ones((1, 4))
    _, low, high = bootstrap_means(values)
    assert len(set(low)) == len(set(high)) == 1


def test_bootstrap_of_constants_and_of_one_sample() -> None:
    assert [float(x) for x in bootstrap_means(np.full(9, 0.5))] == [0.5, 0.5, 0.5]
    assert [float(x) for x in bootstrap_means(np.array([3.0]))] == [3.0, 3.0, 3.0]


def test_bootstrap_ratio_resamples_pairs() -> None:
    bottom = np.random.default_rng(9).uniform(1, 5, 50)
    assert bootstrap_ratio(3 * bottom, bottom) == pytest.approx((3, 3, 3))
    value, low, high = bootstrap_ratio(np.random.default_rng(10).uniform(1, 5, 50), bottom)
    assert low < value < high


@pytest.mark.drawn(4)
@pytest.mark.parametrize("ridge", [1e-3, 1e-1, 3.0])
@pytest.mark.parametrize("seed", range(3))
def test_logistic_agrees_with_scikit_learn(ridge: float, seed: int) -> None:
    x, y = problem(seed)
    weights = fitted(x, y, 4, ridge)
    theirs = referee(x, y, ridge)
    assert_same_weights(weights[0], theirs, 1e-4)
    predicted = predict_logistic(torch.from_numpy(x[None]), weights)[0].numpy()
    assert np.array_equal(predicted, theirs.predict(x))


def test_logistic_of_many_layers_at_once() -> None:
    """Layers of very different scales; each has the weights that it has alone."""
    y = problem(0)[1]
    layers = np.stack([problem(seed)[0] * scale for seed, scale in enumerate([1.0, 0.01, 30.0, 1.0, 3.0])])
    weights = fitted(layers, y, 4, 1e-2)
    for layer, x in enumerate(layers):
        assert_same_weights(weights[layer], referee(x, y, 1e-2), 2e-4)


def test_logistic_with_rank_deficient_features() -> None:
    """The penalty makes the answer unique: equal columns share their weight."""
    x, y = problem(3)
    deficient = np.concatenate([x, x[:, :2], np.zeros((len(x), 1)), np.ones((len(x), 1))], 1)
    weights = fitted(deficient, y, 4, 1e-2)
    assert_same_weights(weights[0], referee(deficient, y, 1e-2), 2e-4)
    assert weights[0, :2].numpy() == pytest.approx(weights[0, 5:7].numpy(), abs=1e-6)
    assert weights[0, 7].abs().max() == 0


def test_logistic_with_more_features_than_examples() -> None:
    x, y = problem(4, num_examples=20, num_features=50, num_classes=3)
    weights = fitted(x, y, 3, 1e-2)
    assert_same_weights(weights[0], referee(x, y, 1e-2), 2e-4)
