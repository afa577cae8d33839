"""Instruments: chance where nothing is held, the known answer where it was planted."""

import itertools
import math
from collections import defaultdict
from collections.abc import Callable
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch import nn

from hmmscope.analysis import probes
from hmmscope.analysis.activations import capture, residual_layers
from hmmscope.analysis.attention import attention_map
from hmmscope.analysis.curves import MAX_ORDER, Score, evaluate
from hmmscope.analysis.intervals import bootstrap_means, bootstrap_ratio
from hmmscope.analysis.logistic import fit_logistic, predict_logistic
from hmmscope.analysis.probes import ProbeData, probe, probe_accuracy, probe_data
from hmmscope.analysis.shuffle import shuffle_test
from hmmscope.corpora.corpus import Batch, Corpus
from hmmscope.corpora.layouts import Layout, Prompts, Sequences
from hmmscope.errors import InputError
from hmmscope.inference.optimal import optimal_predictions
from hmmscope.kernels.ngram import ngram_predictions
from hmmscope.models.base import Tap
from hmmscope.models.make import make_model
from hmmscope.processes.base import Process
from hmmscope.processes.hmm import HMM
from hmmscope.processes.make import make_process
from hmmscope.processes.mixture import Mixture
from hmmscope.seeds import torch_generator

PROMPTS = Prompts(num_demonstrations=3, demonstration_length=5, test_length=6)


class Oracle(nn.Module):
    """The Bayes predictor as a module from tokens to log-probabilities, and what may be done to them."""

    def __init__(self, corpus: Corpus, change: Callable[[torch.Tensor], torch.Tensor] = lambda logits: logits) -> None:
        super().__init__()
        self.process, self.layout, self.change = corpus.process, corpus.layout, change

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        # What the last tokens are that were cut off makes no difference to the predictions of those before.
        whole = torch.zeros(len(tokens), self.layout.num_columns, dtype=torch.int64)
        whole[:, : tokens.shape[1]] = tokens
        observations = whole[:, self.layout.columns]
        optimum = optimal_predictions(self.process, observations, starts=torch.from_numpy(self.layout.starts))
        logits = torch.zeros(*whole.shape, self.process.num_symbols, dtype=torch.float64)
        kept = self.layout.predicted
        logits[:, self.layout.columns[kept] - 1] = optimum.predicted_observation[:, kept].log()
        return self.change(logits[:, : tokens.shape[1]])


class Function(nn.Module):
    """A module that is a function of the tokens."""

    def __init__(self, function: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, tokens: torch.Tensor) -> Any:
        return self.function(tokens)


def random_hmm(seed: int, num_states: int = 3, num_symbols: int = 4, concentration: float = 0.5) -> HMM:
    rng = np.random.default_rng(seed)
    return HMM(
        rng.dirichlet(np.ones(num_states)),
        rng.dirichlet(np.full(num_states, concentration), num_states),
        rng.dirichlet(np.full(num_symbols, concentration), num_states),
        allow_drop_tiny=True,
    )


def mixture(seed: int = 0, num_components: int = 3) -> Mixture:
    weights = np.arange(1, num_components + 1) / (num_components * (num_components + 1) / 2)
    return Mixture(weights, [random_hmm(10 * seed + i) for i in range(num_components)])


PROCESSES: dict[str, Callable[[], Process]] = {
    "hmm": lambda: random_hmm(1),
    "mixture": mixture,
    "deterministic": lambda: HMM([1, 0, 0], np.roll(np.eye(3), 1, 1), np.eye(3)),
}
LAYOUTS: dict[str, Layout] = {"sequences": Sequences(length=12), "prompts": PROMPTS}

# --------------------------------------------------------------------------------------------------------------------
# evaluate


@pytest.mark.parametrize("process", PROCESSES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_optimum_has_no_excess(process: str, layout: str) -> None:
    corpus = Corpus(PROCESSES[process](), layout=LAYOUTS[layout])
    score = evaluate(Oracle(corpus), corpus, num_samples=70)
    measures = score.measures["model"]
    assert np.abs(measures["excess"]).max() < 1e-6
    assert measures["total_variation"].max() < 1e-9
    assert score.loss == pytest.approx(score.bayes_loss, abs=1e-9)
    assert score.excess == pytest.approx((0, 0, 0), abs=1e-6)
    assert np.array_equal(measures["accuracy"], score.measures["optimum"]["accuracy"])
    assert score.invalid is None
    assert all(np.isfinite(values).all() for metrics in score.measures.values() for values in metrics.values())


def test_bayes_loss_is_the_likelihood() -> None:
    corpus = Corpus(mixture(), layout=PROMPTS)
    score = evaluate(Oracle(corpus), corpus, num_samples=20)
    starts = torch.from_numpy(PROMPTS.starts)
    likelihood = optimal_predictions(corpus.process, corpus[0:20].observations, starts=starts).log_likelihood_per_token
    assert score.bayes_loss == pytest.approx(-likelihood.mean().item(), rel=1e-12)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_uniform_model(layout: str) -> None:
    corpus = Corpus(random_hmm(2), layout=LAYOUTS[layout])
    score = evaluate(Function(lambda tokens: torch.zeros(*tokens.shape, 4)), corpus, num_samples=33)
    assert score.measures["model"]["loss"] == pytest.approx(math.log(4), rel=1e-12)
    starts = torch.from_numpy(corpus.layout.starts)
    optimum = optimal_predictions(corpus.process, corpus[0:33].observations, starts=starts).predicted_observation
    p = optimum[:, corpus.layout.predicted].numpy()
    kl = math.log(4) + np.where(p > 0, p * np.log(np.where(p > 0, p, 1)), 0).sum(-1)
    assert score.measures["model"]["excess"] == pytest.approx(kl, abs=1e-12)
    assert score.measures["model"]["total_variation"] == pytest.approx(0.5 * np.abs(p - 0.25).sum(-1), abs=1e-12)
    observed = corpus[0:33].observations[:, corpus.layout.predicted].numpy()
    assert np.array_equal(score.measures["model"]["accuracy"], observed == 0)  # lowest among equals


def test_predicted_observations_are_named() -> None:
    corpus = Corpus(mixture(), layout=PROMPTS)
    score = evaluate(Oracle(corpus), corpus, num_samples=5)
    assert score.demonstrations.tolist() == [0] * 5 + [1] * 5 + [2] * 5 + [3] * 6
    assert score.positions.tolist() == [0, 1, 2, 3, 4] * 3 + [0, 1, 2, 3, 4, 5]
    assert score.measures["model"]["loss"].shape == (5, 21)
    sequences = evaluate(Oracle(Corpus(random_hmm(1), 6)), Corpus(random_hmm(1), 6), num_samples=5)
    assert sequences.positions.tolist() == [1, 2, 3, 4, 5]


def test_rows_are_means_along_an_axis() -> None:
    corpus = Corpus(mixture(), layout=PROMPTS)
    score = evaluate(Oracle(corpus, lambda x: 0.5 * x), corpus, num_samples=40)
    rows = score.rows("demonstrations")
    assert len(rows) == 4 * sum(len(metrics) for metrics in score.measures.values())
    for row in rows:
        values = score.measures[row["predictor"]][row["metric"]][:, score.demonstrations == row["x"]]
        assert row["value"] == pytest.approx(values.mean(), rel=1e-12)
        assert row["low"] <= row["value"] <= row["high"]
        assert row["samples"] == 40
    last = score.demonstrations == 3
    assert {row["x"] for row in score.rows("positions", last)} == set(range(6))


def test_pieces_of_samples_are_one_corpus() -> None:
    corpus = Corpus(mixture(), layout=PROMPTS)
    together = evaluate(Oracle(corpus), corpus, num_samples=130)
    apart = [evaluate(Oracle(corpus), corpus, num_samples=65, first=first) for first in (0, 65)]
    for name, metrics in together.measures.items():
        for metric, values in metrics.items():
            parts = np.concatenate([part.measures[name][metric] for part in apart])
            assert values == pytest.approx(parts, abs=1e-12)


def known_component_losses(corpus: Corpus, batch: Batch) -> np.ndarray:
    """-log P(o_t | o_0..o_{t-1}, component), by each component's own filter."""
    assert isinstance(corpus.process, Mixture)
    assert batch.components is not None
    starts = torch.from_numpy(corpus.layout.starts)
    filters = [corpus.process[m] for m in range(len(corpus.process))]
    laws = [optimal_predictions(hmm, batch.observations, starts=starts).log_likelihood_per_token for hmm in filters]
    return np.stack([-laws[int(m)][b].numpy() for b, m in enumerate(batch.components)])


def test_known_component_is_the_filter_of_the_component() -> None:
    corpus = Corpus(mixture(), layout=PROMPTS)
    score = evaluate(Oracle(corpus), corpus, num_samples=30)
    expected = known_component_losses(corpus, corpus[0:30])
    assert score.measures["known-component"]["loss"] == pytest.approx(expected, abs=1e-10)


# A leak


def leaking(corpus: Corpus, strength: float) -> nn.Module:
    """Sees the next token where it is not cut off."""

    def logits(tokens: torch.Tensor) -> torch.Tensor:
        following = tokens.roll(-1, 1).clamp_max(corpus.num_symbols - 1)
        leak = strength * nn.functional.one_hot(following, corpus.num_symbols).double()
        leak[:, -1] = 0
        return leak

    return Oracle(corpus, lambda x: x) if strength == 0 else Function(logits)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("seed", range(3))
def test_planted_leak_is_invalid(layout: str, seed: int) -> None:
    corpus = Corpus(random_hmm(seed, concentration=2.0), layout=LAYOUTS[layout])
    score = evaluate(leaking(corpus, 10.0), corpus, num_samples=64, baselines=False)
    assert score.invalid is not None
    assert "below the Bayes optimum by" in score.invalid


def test_a_leak_that_is_the_same_in_every_sample_is_invalid() -> None:
    """No spread between samples: uniform observations, all of them known before."""
    corpus = Corpus(HMM([1.0], [[1.0]], [[0.25] * 4]), layout=Sequences(length=9))
    seen = Function(lambda tokens: 50.0 * nn.functional.one_hot(corpus[0:8].tokens.roll(-1, 1)[:, :8], 4).double())
    score = evaluate(seen, corpus, num_samples=8, baselines=False)
    assert score.invalid is not None


class WrongOracle(Corpus):
    """Samples of one process that are judged by the optimum of another."""

    def __init__(self, true: Process, judged_by: Process, layout: Layout) -> None:
        super().__init__(judged_by, layout=layout)
        self.true = Corpus(true, layout=layout)

    def __getitem__(self, index: Any) -> Batch:
        return self.true[index]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("seed", range(3))
def test_planted_wrong_oracle_is_invalid(layout: str, seed: int) -> None:
    true, other = (random_hmm(seed + shift, concentration=2.0) for shift in (0, 100))
    corpus = WrongOracle(true, other, LAYOUTS[layout])
    score = evaluate(Oracle(corpus.true), corpus, num_samples=256, baselines=False)
    assert score.invalid is not None


def test_transposed_transition_is_a_wrong_oracle() -> None:
    transition = np.array([[0.1, 0.8, 0.1], [0.1, 0.1, 0.8], [0.8, 0.1, 0.1]])
    emission = np.eye(3) * 0.7 + 0.1
    true, transposed = HMM([1 / 3] * 3, transition, emission), HMM([1 / 3] * 3, transition.T, emission)
    corpus = WrongOracle(true, transposed, Sequences(length=20))
    assert evaluate(Oracle(corpus.true), corpus, num_samples=64, baselines=False).invalid is not None


HONEST: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "optimum": lambda logits: logits,
    "float32": lambda logits: logits.float(),
    "blunt": lambda logits: 0.9 * logits.clamp_min(-30),
    "sharp": lambda logits: 1.1 * logits.clamp_min(-30),
    "uniform": torch.zeros_like,
    "noisy": lambda logits: logits + 0.05 * torch.sin(1000 * logits.clamp_min(-30)),
}


@pytest.mark.parametrize("model", HONEST)
def test_honest_models_are_valid(model: str) -> None:
    """72 cases. False alarm of one: P(z < -5) < 3e-7 for the optimum's own noise; here by fixed seeds never."""
    cases = 0
    for seed in range(6):
        for layout in LAYOUTS.values():
            process: Process = random_hmm(seed) if seed % 2 else mixture(seed)
            corpus = Corpus(process, layout=layout, seed=seed)
            score = evaluate(Oracle(corpus, HONEST[model]), corpus, num_samples=40, baselines=False)
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
    corpus = Corpus(random_hmm(3), layout=PROMPTS)
    score = evaluate(Oracle(corpus, wrap), corpus, num_samples=6)
    assert score.loss == pytest.approx(score.bayes_loss, abs=1e-6)


@pytest.mark.parametrize(
    "output, message",
    [
        (lambda x: x[:, :-1], "must map tokens"),
        (lambda x: x[:, 0], "must map tokens"),
        (lambda x: x[:1], "must map tokens"),
        (lambda x: x[..., :3], "gives 3 logits, the corpus has 4 symbols"),
        (lambda x: SimpleNamespace(logits="none"), "must map tokens .* got str"),
        (lambda x: SimpleNamespace(scores=x), "must map tokens .* got SimpleNamespace"),
        (lambda x: None, "must map tokens .* got NoneType"),
    ],
)
def test_wrong_outputs_are_refused(output: Callable, message: str, unchecked: None) -> None:
    corpus = Corpus(random_hmm(3), layout=PROMPTS)
    with pytest.raises(InputError, match=message):
        evaluate(Oracle(corpus, output), corpus, num_samples=6)


def test_evaluate_puts_the_mode_back() -> None:
    corpus = Corpus(random_hmm(3), 6)
    model = make_model("roformer", num_symbols=4, num_layers=1, num_heads=1, width=4)
    for mode in (True, False):
        model.train(mode)
        evaluate(model, corpus, num_samples=2)
        assert model.training is mode
        assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize("num_samples", [0, -3])
def test_no_samples_are_refused(num_samples: int) -> None:
    corpus = Corpus(random_hmm(3), layout=PROMPTS)
    model = make_model("roformer", num_symbols=4, num_tokens=5, num_layers=1, num_heads=1, width=4)
    for call in (evaluate, shuffle_test, attention_map, probe):
        with pytest.raises(InputError, match="num_samples: must be at least"):
            call(model, corpus, num_samples=num_samples)
    with pytest.raises(InputError, match="observation to predict"):
        evaluate(model, Corpus(random_hmm(3), 1), num_samples=2)


# --------------------------------------------------------------------------------------------------------------------
# In-context n-grams


def plain_ngrams(sample: list[int], positions: list[int], num_symbols: int, max_order: int, strength: Fraction) -> list:
    """One table of counts for each context of each order; contexts do not reach beyond the start of their sequence."""
    counts: dict[tuple[int, ...], dict[int, int]] = defaultdict(lambda: defaultdict(int))
    predictions = []
    for t, symbol in enumerate(sample):
        law = [Fraction(1, num_symbols)] * num_symbols
        by_order = []
        for order in range(max_order + 1):
            if order <= positions[t]:
                seen = counts[tuple(sample[t - order : t])] if order else counts[()]
                total = sum(seen.values())
                law = [(seen[v] + strength * p) / (total + strength) for v, p in enumerate(law)]
            by_order.append([float(p) for p in law])
        predictions.append(by_order)
        for order in range(min(max_order, positions[t]) + 1):
            counts[tuple(sample[t - order : t])][symbol] += 1
    return predictions


@pytest.mark.parametrize(
    "layout", [Sequences(length=40), PROMPTS, Prompts(num_demonstrations=9, demonstration_length=2)]
)
@pytest.mark.parametrize("strength", [1.0, 0.25])
def test_ngrams_are_dictionaries(layout: Layout, strength: float) -> None:
    corpus = Corpus(random_hmm(4, num_symbols=3), layout=layout)
    observations = corpus[0:5].observations.numpy()
    found = ngram_predictions(observations, layout.position_in_sequence, 3, MAX_ORDER, strength)
    positions = layout.position_in_sequence.tolist()
    expected = [plain_ngrams(sample, positions, 3, MAX_ORDER, Fraction(strength)) for sample in observations.tolist()]
    assert found == pytest.approx(np.array(expected), abs=1e-12)
    assert found.sum(-1) == pytest.approx(1, abs=1e-12)


def test_ngrams_do_not_cross_starts() -> None:
    positions = np.array([0, 1, 0, 1])
    predictions = ngram_predictions(np.array([[0, 1, 0, 0]]), positions, 2, 1, 1.0)
    # Before observation 3 the context is 0, which was followed by 1 once; the pair (1, 0) of times 1, 2 is none.
    order_0 = (2 + 0.5) / (3 + 1)
    assert predictions[0, 3, 0, 0] == pytest.approx(order_0)
    assert predictions[0, 3, 1, 0] == pytest.approx((0 + order_0) / (1 + 1))
    assert np.array_equal(predictions[0, 2, 1], predictions[0, 2, 0])  # no context at a start
    # Before observation 3 the context is 1; the pair (1, 0) of times 0, 1 counts only if no sequence starts at time 1.
    apart, together = (
        ngram_predictions(np.array([[1, 0, 1, 0]]), np.array(p), 2, 1, 1.0) for p in ([0, 0, 1, 2], range(4))
    )
    assert apart[0, 3, 1, 0] == pytest.approx((1 + 0.5) / (3 + 1))
    assert together[0, 3, 1, 0] == pytest.approx((1 + 1.5 / 4) / (1 + 1))


def test_ngrams_in_evaluate() -> None:
    corpus = Corpus(random_hmm(4), layout=PROMPTS)
    score = evaluate(Oracle(corpus), corpus, num_samples=4)
    for b, sample in enumerate(corpus[0:4].observations.tolist()):
        plain = plain_ngrams(sample, PROMPTS.position_in_sequence.tolist(), 4, MAX_ORDER, Fraction(1))
        for order in range(MAX_ORDER + 1):
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


def test_bootstrap_is_deterministic() -> None:
    values = np.random.default_rng(7).normal(size=(30, 2, 3))
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


# --------------------------------------------------------------------------------------------------------------------
# Logistic regression


def problem(seed: int, num_examples: int = 120, num_features: int = 5, num_classes: int = 4) -> tuple:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(num_examples, num_features))
    logits = 1.5 * x @ rng.normal(size=(num_features, num_classes)) + rng.normal(size=num_classes)
    y = np.array([rng.choice(num_classes, p=p) for p in np.exp(logits) / np.exp(logits).sum(1, keepdims=True)])
    y[:num_classes] = np.arange(num_classes)
    return x, y


def referee(x: np.ndarray, y: np.ndarray, ridge: float) -> LogisticRegression:
    """Its loss is a sum over examples and its penalty |W|^2 / (2 C), so that C = 1 / (ridge * N)."""
    return LogisticRegression(C=1 / (ridge * len(y)), tol=1e-10, max_iter=20_000).fit(x, y)


def fitted(x: np.ndarray, y: np.ndarray, num_classes: int, ridge: float) -> torch.Tensor:
    features = torch.from_numpy(x if x.ndim == 3 else x[None])
    return fit_logistic(features, torch.from_numpy(y), num_classes, ridge=ridge, tolerance=1e-8, max_steps=5000)


def assert_same_weights(ours: torch.Tensor, theirs: LogisticRegression, tolerance: float) -> None:
    """Up to a shift of the biases."""
    assert ours[:-1].numpy() == pytest.approx(theirs.coef_.T, abs=tolerance)
    bias = ours[-1].numpy() - ours[-1].mean().item()
    assert bias == pytest.approx(theirs.intercept_ - theirs.intercept_.mean(), abs=tolerance)


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


def test_logistic_of_separable_data_is_finite() -> None:
    y = np.arange(90) % 3
    x = np.eye(3)[y] + 0.01 * np.random.default_rng(0).normal(size=(90, 3))
    weights = fitted(x, y, 3, 1e-3)
    assert_same_weights(weights[0], referee(x, y, 1e-3), 1e-3)
    assert np.array_equal(predict_logistic(torch.from_numpy(x[None]), weights)[0].numpy(), y)


def test_logistic_with_a_class_that_is_not_there() -> None:
    x, y = problem(5)
    y = np.where(y == 2, 0, y)
    weights = fitted(x, y, 4, 1e-2)
    theirs = referee(x, y, 1e-2)
    predicted = predict_logistic(torch.from_numpy(x[None]), weights)[0].numpy()
    assert weights.isfinite().all()
    assert np.array_equal(predicted, theirs.predict(x))


def test_logistic_of_two_classes() -> None:
    """Their two columns are opposite, so that the difference has half the penalty of a single weight vector."""
    x, y = problem(6, num_classes=2)
    weights = fitted(x, y, 2, 1e-2)
    theirs = referee(x, y, 0.5e-2)
    assert (weights[0, :-1, 1] - weights[0, :-1, 0]).numpy() == pytest.approx(theirs.coef_[0], abs=2e-4)


def test_logistic_of_one_class() -> None:
    weights = fitted(problem(0)[0], np.zeros(120, int), 1, 1e-3)
    assert (weights == 0).all()


# --------------------------------------------------------------------------------------------------------------------
# Probes


def data_of(features: np.ndarray, labels: np.ndarray, samples: np.ndarray, num_classes: int) -> ProbeData:
    return ProbeData(
        torch.from_numpy(features).float(), torch.from_numpy(labels), torch.from_numpy(samples), num_classes, 1.0
    )


def test_planted_label_is_read() -> None:
    rng = np.random.default_rng(0)
    labels, samples = rng.integers(4, size=400), np.arange(400)
    planted = np.concatenate([rng.normal(size=(400, 6)), np.eye(4)[labels]], 1)
    features = np.stack([rng.normal(size=(400, 10)), planted @ rng.normal(size=(10, 10))])
    noise, found = probe_accuracy(data_of(features, labels, samples, 4))
    assert found == (1, 1, 1)
    # Chance is 1/4; a hundred test samples, so 0.45 is more than four standard errors away.
    assert 0.05 < noise[0] < 0.45
    shuffled = probe_accuracy(data_of(features, labels, samples, 4), shuffle=True)
    assert all(mean < 0.45 for mean, _, _ in shuffled)


def test_split_is_by_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    """Labels that can only be known by remembering the sample are at chance."""
    rng = np.random.default_rng(1)
    samples = np.repeat(np.arange(80), 5)
    labels = rng.integers(2, size=80)[samples]
    features = np.eye(80)[samples][None]
    trained = []

    def spy(x: torch.Tensor, y: torch.Tensor, num_classes: int) -> torch.Tensor:
        trained.append((x, y))
        return fit_logistic(x, y, num_classes)

    monkeypatch.setattr(probes, "fit_logistic", spy)
    ((mean, _, _),) = probe_accuracy(data_of(features, labels, samples, 2))
    x, y = trained[0]
    assert x.shape == (1, 300, 80)  # three quarters, and all five examples of each
    assert (x[0].std(0)[60:] == 0).all()  # nothing of the last twenty samples
    assert torch.equal(y, torch.from_numpy(labels[:300]))
    assert 0.2 < mean < 0.8
    whole = fit_logistic(torch.eye(80)[samples][None], torch.from_numpy(labels), 2)
    assert (predict_logistic(torch.eye(80)[samples][None], whole)[0].numpy() == labels).all()  # it can be remembered


def test_accuracy_of_a_sample_counts_once() -> None:
    """Accuracy is a mean over samples, and so is its interval."""
    rng = np.random.default_rng(2)
    labels = rng.integers(3, size=200)
    features = (np.eye(3)[labels] + rng.normal(size=(200, 3)))[None]
    ((mean, low, high),) = probe_accuracy(data_of(features, labels, np.arange(200), 3))
    ((repeated, low_repeated, high_repeated),) = probe_accuracy(
        data_of(features.repeat(4, 1), labels.repeat(4), np.arange(200).repeat(4), 3)
    )
    assert repeated == pytest.approx(mean, abs=0.03)
    assert high_repeated - low_repeated == pytest.approx(high - low, abs=0.03)


@pytest.mark.parametrize("features", ["constant", "deficient", "wide"])
def test_awkward_features_have_an_answer(features: str) -> None:
    rng = np.random.default_rng(3)
    labels = rng.integers(3, size=100)
    x = {
        "constant": np.ones((100, 4)),
        "deficient": np.eye(3)[labels] @ rng.normal(size=(3, 20)),
        "wide": np.concatenate([10 * np.eye(3)[labels], rng.normal(size=(100, 300))], 1),
    }[features]
    ((mean, low, high),) = probe_accuracy(data_of(x[None], labels, np.arange(100), 3))
    test = np.bincount(labels[75:], minlength=3) / 25
    if features == "wide":
        assert mean > 0.5  # half the standard normal columns of 75 examples would fit by chance
    else:
        assert mean == pytest.approx(test[np.bincount(labels[:75]).argmax()] if features == "constant" else 1.0)
    assert low <= mean <= high


class Held(nn.Module):
    """Its layer ``memory`` holds the tokens of the last few columns, one-hot; its layer ``nothing`` holds noise."""

    def __init__(self, num_tokens: int, num_symbols: int, columns: int, width: int = 0) -> None:
        super().__init__()
        self.num_tokens, self.num_symbols, self.held = num_tokens, num_symbols, columns
        self.width = width or num_tokens * columns
        self.memory, self.nothing = Tap(), Tap()

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hot = nn.functional.one_hot(tokens, self.num_tokens).float()
        shifted = [torch.cat([torch.zeros_like(hot[:, :k]), hot[:, : hot.shape[1] - k]], 1) for k in range(self.held)]
        self.memory(torch.cat(shifted, -1))
        self.nothing(torch.sin(1e4 * (1 + tokens.cumsum(1)[..., None]) * torch.arange(1.0, self.width + 1)))
        return torch.zeros(*tokens.shape, self.num_symbols)


@pytest.mark.parametrize("k", range(5))
@pytest.mark.parametrize("layout", LAYOUTS)
def test_previous_observation_is_read_exactly(k: int, layout: str) -> None:
    corpus = Corpus(random_hmm(5, concentration=5.0), layout=LAYOUTS[layout])
    model = Held(corpus.num_tokens, 4, columns=3)
    rows = probe(model, corpus, target=f"previous-{k}", layers=["memory", "nothing"], num_samples=400)
    by_layer = {(row["layer_name"], row["labels"]): row for row in rows}
    chance = by_layer["memory", "true"]["chance"]
    if k < 3:
        assert by_layer["memory", "true"]["accuracy"] == 1
    else:
        assert by_layer["memory", "true"]["accuracy"] < chance + 0.2
    for row in (by_layer["memory", "shuffled"], by_layer["nothing", "true"], by_layer["nothing", "shuffled"]):
        assert row["accuracy"] < chance + 0.1
    assert all(row["ceiling"] == 1 for row in rows)


def test_visible_state_is_read_exactly() -> None:
    """A Markov chain is its own state: the ceiling is one, and the current token reaches it."""
    corpus = Corpus(HMM([0.25] * 4, random_hmm(6, 4, concentration=3).transition_SS, np.eye(4)), 9)
    rows = probe(Held(4, 4, 1), corpus, target="state", layers=["memory"], num_samples=200, shuffled_labels=False)
    assert [row["accuracy"] for row in rows] == [1]
    assert rows[0]["ceiling"] == 1


def enumerated_posterior(process: Mixture, sequences: list[list[int]]) -> list[float]:
    """weights[m] * P_m(all sequences), by summing over all hidden paths."""
    joint = []
    for m in range(len(process)):
        hmm = process[m]
        a, b, start = hmm.transition_SS.numpy(), hmm.emission_SV.numpy(), hmm.initial_S.numpy()
        probability = float(process.weights_M[m])
        for symbols in sequences:
            paths = itertools.product(range(hmm.num_states), repeat=len(symbols))
            probability *= sum(
                start[path[0]]
                * math.prod(b[s, v] for s, v in zip(path, symbols, strict=True))
                * math.prod(a[i, j] for i, j in itertools.pairwise(path))
                for path in paths
            )
        joint.append(probability)
    return joint


def test_component_ceiling_is_the_bayes_accuracy() -> None:
    process = mixture(num_components=3)
    layout = Prompts(num_demonstrations=2, demonstration_length=3, test_length=4)
    corpus = Corpus(process, layout=layout)
    batch = corpus[0:60]
    assert batch.components is not None
    best = [
        int(np.argmax(enumerated_posterior(process, [sample[0:3], sample[3:6], sample[6:10]])))
        for sample in batch.observations.tolist()
    ]
    data = probe_data(Held(5, 4, 1), corpus, "component", ["memory"], 60)
    assert data.ceiling == pytest.approx(np.mean(np.array(best) == batch.components.numpy()), abs=1e-12)
    assert torch.equal(data.labels, batch.components)
    assert data.num_classes == 3


def test_components_with_their_own_symbols_are_read() -> None:
    components = [HMM([1.0], [[1.0]], [[0.5, 0.5, 0.0, 0.0]]), HMM([1.0], [[1.0]], [[0.0, 0.0, 0.5, 0.5]])]
    corpus = Corpus(Mixture([0.5, 0.5], components), layout=PROMPTS)
    rows = probe(Held(5, 4, 1), corpus, target="component", layers=["memory"], num_samples=100, shuffled_labels=False)
    assert rows[0]["accuracy"] == rows[0]["ceiling"] == 1


def test_untrained_model_does_not_hold_the_component() -> None:
    """Components that differ in nothing: no layer can tell them apart."""
    hmm = random_hmm(7)
    corpus = Corpus(Mixture([0.5, 0.5], [hmm, hmm]), layout=PROMPTS)
    model = make_model("roformer", num_symbols=4, num_tokens=5, num_layers=2, num_heads=2, width=16)
    rows = probe(model, corpus, target="component", num_samples=400)
    assert [row["layer_name"] for row in rows[:3]] == ["residual.0", "residual.1", "residual.2"]
    assert len(rows) == 6
    for row in rows:  # a hundred test samples: 0.3 is six standard errors
        assert abs(row["accuracy"] - 0.5) < 0.3
        assert row["chance"] < 0.75
        assert row["ceiling"] == pytest.approx(0.5, abs=0.2)


def test_probe_options_are_checked() -> None:
    model = make_model("roformer", num_symbols=4, num_tokens=5, num_layers=1, num_heads=1, width=4)
    single, mixed = Corpus(random_hmm(1), layout=PROMPTS), Corpus(mixture(), layout=PROMPTS)
    for corpus, options, message in [
        (mixed, {"target": "stat"}, "target: unknown 'stat'; did you mean 'state'"),
        (mixed, {"target": "state"}, "state needs a single HMM"),
        (single, {"target": "component"}, "component needs a mixture"),
        (single, {"target": "state", "layers": ["residual.7"]}, "no module named 'residual.7'"),
        (Corpus(random_hmm(1), 4), {"target": "state"}, "longer than 4"),
    ]:
        with pytest.raises(InputError, match=message):
            probe(model, corpus, num_samples=8, **options)
    with pytest.raises(InputError, match="no residual taps; name its modules, such as inner"):
        residual_layers(nn.ModuleDict({"inner": Tap()}))
    held = Held(5, 4, 2, width=8)
    with pytest.raises(InputError, match="layers: must be of one width, got memory 10, nothing 8"):
        probe(held, single, target="state", layers=["memory", "nothing"], num_samples=8)
    attends = Attends(lambda tokens: tokens.float(), 4)
    with pytest.raises(InputError, match=r"layers: must give \(batch, time, feature\)"):
        probe(attends, single, target="state", layers=["blocks.0.attention.logits"], num_samples=8)


def test_capture_leaves_no_hooks() -> None:
    model = make_model("roformer", num_symbols=4, num_layers=1, num_heads=1, width=4)
    tokens = torch.tensor([[0, 1]])
    capture(model, ["residual.0"], tokens)
    with pytest.raises(InputError):
        capture(model, ["residual.0", "none"], tokens)
    assert not any(module._forward_hooks for module in model.modules())


# --------------------------------------------------------------------------------------------------------------------
# Attention


class Attends(nn.Module):
    """One head whose logits are given by a function of the tokens; named as in models of this library."""

    def __init__(self, logits: Callable[[torch.Tensor], torch.Tensor], num_symbols: int) -> None:
        super().__init__()
        self.function, self.num_symbols = logits, num_symbols
        attention = nn.ModuleDict({"logits": Tap(), "pattern": Tap()})
        self.blocks = nn.ModuleList([nn.ModuleDict({"attention": attention})])

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        time = tokens.shape[1]
        future = torch.ones(time, time, dtype=torch.bool).triu(1)
        logits = self.function(tokens)[:, None, None].expand(-1, 1, time, -1).masked_fill(future, -torch.inf)
        taps = self.blocks[0]["attention"]
        taps["pattern"](taps["logits"](logits).softmax(-1))
        return torch.zeros(*tokens.shape, self.num_symbols)


def by_metric(rows: list[dict]) -> dict[str, dict]:
    return {row["metric"]: row for row in rows}


def test_position_free_attention_does_not_move() -> None:
    corpus = Corpus(mixture(), layout=PROMPTS)
    rows = by_metric(shuffle_test(Attends(lambda tokens: 1.0 + tokens.float(), 4), corpus, num_samples=20))
    assert rows["cv"]["value"] == 0
    assert rows["cv_centred"]["value"] == pytest.approx(0, abs=1e-12)
    assert rows["attention_change"]["value"] == pytest.approx(0, abs=1e-12)
    assert rows["prediction_change"]["value"] == pytest.approx(0, abs=1e-12)
    assert (rows["cv"]["layer"], rows["cv"]["head"], rows["cv"]["samples"]) == (1, 0, 20)


def test_position_only_attention_moves_as_much_as_positions() -> None:
    """The logit of a key is its column; over the permutations drawn, a key stands where its demonstration does."""
    corpus = Corpus(mixture(), layout=PROMPTS)
    model = Attends(lambda tokens: torch.arange(float(tokens.shape[1])).expand(len(tokens), -1), 4)
    rows = by_metric(shuffle_test(model, corpus, num_samples=7, num_permutations=6, seed=3))
    generator = torch_generator(3, "shuffle")
    orders = [[0, 1, 2]] + [torch.randperm(3, generator=generator).tolist() for _ in range(5)]
    assert len({tuple(order) for order in orders}) > 2
    # Demonstration d stands in place orders[r].index(d); place p begins at column 1 + 6 p (five observations, delimiter).
    columns = np.array(
        [[1 + 6 * order.index(d) + i for d in range(3) for i in range(5)] for order in orders], dtype=float
    )
    spread, size = columns.std(0).mean(), np.abs(columns).mean()
    assert rows["cv"]["value"] == pytest.approx(spread / size, rel=1e-12)
    centred = columns - columns.mean(1, keepdims=True)
    assert rows["cv_centred"]["value"] == pytest.approx(centred.std(0).mean() / np.abs(centred).mean(), rel=1e-12)
    weights = np.exp(columns - columns.max())
    pattern = weights / weights.sum(1, keepdims=True)
    change = 0.5 * np.abs(pattern - pattern.mean(0)).sum(1).mean()
    assert rows["attention_change"]["value"] == pytest.approx(change, rel=1e-12)
    assert rows["cv"]["low"] == pytest.approx(rows["cv"]["high"])  # the same in every prompt


def test_shuffled_prompts_hold_the_same_demonstrations() -> None:
    seen = []
    corpus = Corpus(mixture(), layout=PROMPTS)

    def spy(tokens: torch.Tensor) -> torch.Tensor:
        seen.append(tokens)
        return tokens.float()

    shuffle_test(Attends(spy, 4), corpus, num_samples=4, num_permutations=5)
    original = corpus[0:4].tokens
    assert any(torch.equal(tokens, original) for tokens in seen)
    assert any(not torch.equal(tokens, original) for tokens in seen)
    for tokens in seen:
        assert torch.equal(tokens[:, 18:], original[:, 18:])
        for shuffled, sample in zip(tokens.tolist(), original.tolist(), strict=True):
            assert sorted(shuffled[6 * d : 6 * d + 6] for d in range(3)) == sorted(
                sample[6 * d : 6 * d + 6] for d in range(3)
            )


def test_shuffle_needs_prompts_and_taps() -> None:
    model = make_model("roformer", num_symbols=4, num_tokens=5, num_layers=1, num_heads=1, width=4)
    for layout in (Sequences(length=9), Prompts(num_demonstrations=1)):
        with pytest.raises(InputError, match="at least two demonstrations"):
            shuffle_test(model, Corpus(mixture(), layout=layout), num_samples=2)
    with pytest.raises(InputError, match="num_permutations"):
        shuffle_test(model, Corpus(mixture(), layout=PROMPTS), num_samples=2, num_permutations=1)
    for instrument in (shuffle_test, attention_map):
        with pytest.raises(InputError, match="has no taps"):
            instrument(Held(5, 4, 1), Corpus(mixture(), layout=PROMPTS), num_samples=2)


def test_attention_falls_somewhere() -> None:
    corpus = Corpus(mixture(), layout=PROMPTS)
    model = make_model("roformer", num_symbols=4, num_tokens=5, num_layers=2, num_heads=2, width=8)
    rows = attention_map(model, corpus, num_samples=70, max_offset=100)
    for layer, head in itertools.product((1, 2), (0, 1)):
        for kind, count in (("source", 3), ("offset", PROMPTS.num_columns)):
            values = [row["value"] for row in rows if (row["layer"], row["head"], row["kind"]) == (layer, head, kind)]
            assert len(values) == count
            assert sum(values) == pytest.approx(1, abs=1e-6)  # float32 softmax
            assert min(values) >= 0


def test_attention_by_source_and_offset_of_a_known_head() -> None:
    """All weight on delimiters: 4 of 25 columns, each a quarter; the nearest is 6 columns back."""
    corpus = Corpus(mixture(), layout=PROMPTS)
    model = Attends(lambda tokens: torch.where(tokens == 4, 0.0, -torch.inf), 4)
    rows = {(row["kind"], row["key"]): row["value"] for row in attention_map(model, corpus, num_samples=5)}
    assert rows["source", "delimiters"] == pytest.approx(1)
    assert rows["source", "same sequence"] == rows["source", "earlier sequences"] == 0
    assert {key: value for (kind, key), value in rows.items() if kind == "offset" and value} == {
        6: 0.25,
        12: 0.25,
        18: 0.25,
        24: 0.25,
    }
    model = Attends(lambda tokens: torch.where(torch.arange(25) >= 19, 0.0, -1e9).expand(len(tokens), -1), 4)
    rows = {(row["kind"], row["key"]): row["value"] for row in attention_map(model, corpus, num_samples=5)}
    assert rows["source", "same sequence"] == pytest.approx(1)
    assert [rows["offset", key] for key in range(7)] == pytest.approx([1 / 6] * 6 + [0])


# --------------------------------------------------------------------------------------------------------------------


def test_scores_know_what_they_are_of() -> None:
    """The losses of the model on real prompts, recomputed from its logits in a loop."""
    corpus = Corpus(make_process("random-mixture", num_components=3, num_states=3, num_symbols=4), layout=PROMPTS)
    model = make_model("roformer", num_symbols=4, num_tokens=5, num_layers=1, num_heads=2, width=8, seed=4)
    score: Score = evaluate(model, corpus, num_samples=3)
    batch = corpus[0:3]
    with torch.no_grad():
        logits = model(batch.tokens).double()
    for b in range(3):
        for t, column in enumerate(PROMPTS.columns):
            expected = -logits[b, column - 1].log_softmax(-1)[batch.observations[b, t]]
            assert score.measures["model"]["loss"][b, t] == pytest.approx(float(expected), abs=1e-5)
