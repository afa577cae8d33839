"""Probes, shuffles and attention maps: chance where nothing is held, the known answer where it was planted."""

import itertools
import math

import numpy as np
import pytest
import torch
from torch import nn

from analysis_cases import (
    LAYOUTS,
    PROMPTS,
    Attends,
    Held,
    assert_same_weights,
    by_metric,
    data_of,
    enumerated_posterior,
    fitted,
    mixture,
    problem,
    random_hmm,
    referee,
)
from hmmscope import InstrumentOptions
from hmmscope.analysis import logistic, probes
from hmmscope.analysis.activations import capture_activations, residual_layers
from hmmscope.analysis.attention_maps import attention_map
from hmmscope.analysis.curves import Score, evaluate
from hmmscope.analysis.logistic import fit_logistic, predict_logistic
from hmmscope.analysis.probes import ProbeData, probe
from hmmscope.analysis.shuffle import shuffle_test
from hmmscope.datasets.layouts import PromptLayout, SequenceLayout
from hmmscope.datasets.process_dataset import ProcessDataset
from hmmscope.errors import InputError
from hmmscope.models.base import HookPoint, make_model
from hmmscope.processes.hmm import HMM
from hmmscope.processes.labelled import LabelledHMM
from hmmscope.processes.make import make_process
from hmmscope.processes.mixture import Mixture
from hmmscope.seeds import torch_generator


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


def test_blocks_of_the_hessian_spare_steps_and_change_no_minimum(monkeypatch: pytest.MonkeyPatch) -> None:
    """Features that differ in scale; a feature that is never seen and a class that is all but certain among them."""
    x, y = problem(3, num_examples=400, num_features=8)
    x = x * np.geomspace(1, 30, 8)
    x[:, 0] = 0.0
    steps, found = [], []
    objective = logistic._Problem.objective

    def counted(self: logistic._Problem, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        steps[-1] += 1
        return objective(self, w)

    monkeypatch.setattr(logistic._Problem, "objective", counted)
    for most in (logistic._MAX_BLOCK_NUMBERS, 4 * 9**2, 4 * 9**2 - 1):
        monkeypatch.setattr(logistic, "_MAX_BLOCK_NUMBERS", most)
        steps.append(0)
        found.append(fitted(x, y, 4, 1e-3))
    assert steps[0] == steps[1] < 0.7 * steps[2]
    assert torch.equal(found[0], found[1])
    assert_same_weights(found[0][0], referee(x, y, 1e-3), 1e-4)
    assert found[0].numpy() == pytest.approx(found[2].numpy(), abs=1e-4)


def test_planted_label_is_read() -> None:
    rng = np.random.default_rng(0)
    labels, samples = rng.integers(4, size=400), np.arange(400)
    planted = np.concatenate([rng.normal(size=(400, 6)), np.eye(4)[labels]], 1)
    features = np.stack([rng.normal(size=(400, 10)), planted @ rng.normal(size=(10, 10))])
    noise, found = data_of(features, labels, samples, 4).accuracy()
    assert found == (1, 1, 1)
    # Chance is 1/4; a hundred test samples, so 0.45 is more than four standard errors away.
    assert 0.05 < noise[0] < 0.45
    shuffled = data_of(features, labels, samples, 4).accuracy(shuffle=True)
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
    ((mean, _, _),) = data_of(features, labels, samples, 2).accuracy()
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
    ((mean, low, high),) = data_of(features, labels, np.arange(200), 3).accuracy()
    fourfold = data_of(features.repeat(4, 1), labels.repeat(4), np.arange(200).repeat(4), 3)
    ((repeated, low_repeated, high_repeated),) = fourfold.accuracy()
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
    ((mean, low, high),) = data_of(x[None], labels, np.arange(100), 3).accuracy()
    test = np.bincount(labels[75:], minlength=3) / 25
    if features == "wide":
        assert mean > 0.5  # half the standard normal columns of 75 examples would fit by chance
    else:
        assert mean == pytest.approx(test[np.bincount(labels[:75]).argmax()] if features == "constant" else 1.0)
    assert low <= mean <= high


@pytest.mark.parametrize("k", range(5))
@pytest.mark.parametrize("layout", LAYOUTS)
def test_previous_observation_is_read_exactly(k: int, layout: str) -> None:
    dataset = ProcessDataset(random_hmm(5, concentration=5.0), layout=LAYOUTS[layout])
    model = Held(dataset.vocab_size, 4, columns=3)
    rows = probe(model, dataset, target=f"previous-{k}", layers=["memory", "nothing"], num_samples=400)
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
    dataset = ProcessDataset(HMM([0.25] * 4, random_hmm(6, 4, concentration=3).transition, np.eye(4)), 9)
    rows = probe(Held(4, 4, 1), dataset, target="state", layers=["memory"], num_samples=200, shuffled_labels=False)
    assert [row["accuracy"] for row in rows] == [1]
    assert rows[0]["ceiling"] == 1


def test_component_ceiling_is_the_bayes_accuracy() -> None:
    process = mixture(num_components=3)
    layout = PromptLayout(num_demonstrations=2, demonstration_length=3, test_length=4)
    dataset = ProcessDataset(process, layout=layout)
    batch = dataset[0:60]
    assert batch.components is not None
    best = [
        int(np.argmax(enumerated_posterior(process, [sample[0:3], sample[3:6], sample[6:10]])))
        for sample in batch.observations.tolist()
    ]
    data = ProbeData.read(Held(5, 4, 1), dataset, "component", ["memory"], 60)
    assert data.ceiling == pytest.approx(np.mean(np.array(best) == batch.components.numpy()), abs=1e-12)
    assert torch.equal(data.labels, batch.components)
    assert data.num_classes == 3


def test_components_with_their_own_symbols_are_read() -> None:
    components = [HMM([1.0], [[1.0]], [[0.5, 0.5, 0.0, 0.0]]), HMM([1.0], [[1.0]], [[0.0, 0.0, 0.5, 0.5]])]
    dataset = ProcessDataset(Mixture([0.5, 0.5], components), layout=PROMPTS)
    rows = probe(Held(5, 4, 1), dataset, target="component", layers=["memory"], num_samples=100, shuffled_labels=False)
    assert rows[0]["accuracy"] == rows[0]["ceiling"] == 1


def test_untrained_model_does_not_hold_the_component() -> None:
    """Components that differ in nothing: no layer can tell them apart."""
    hmm = random_hmm(7)
    dataset = ProcessDataset(Mixture([0.5, 0.5], [hmm, hmm]), layout=PROMPTS)
    model = make_model("roformer", num_symbols=4, vocab_size=5, num_layers=2, num_heads=2, width=16)
    rows = probe(model, dataset, target="component", num_samples=400)
    assert [row["layer_name"] for row in rows[:3]] == ["residual.0", "residual.1", "residual.2"]
    assert len(rows) == 6
    for row in rows:  # a hundred test samples: 0.3 is six standard errors
        assert abs(row["accuracy"] - 0.5) < 0.3
        assert row["chance"] < 0.75
        assert row["ceiling"] == pytest.approx(0.5, abs=0.2)


def test_probe_options_are_checked() -> None:
    model = make_model("roformer", num_symbols=4, vocab_size=5, num_layers=1, num_heads=1, width=4)
    single, mixed = ProcessDataset(random_hmm(1), layout=PROMPTS), ProcessDataset(mixture(), layout=PROMPTS)
    for dataset, options, message in [
        (mixed, {"target": "stat"}, "target: unknown 'stat'; did you mean 'state'"),
        (mixed, {"target": "state"}, "state needs a single HMM"),
        (single, {"target": "component"}, "component needs a mixture"),
        (single, {"target": "state", "layers": ["residual.7"]}, "no module named 'residual.7'"),
        (ProcessDataset(random_hmm(1), 4), {"target": "state"}, "needs more than 4"),
    ]:
        with pytest.raises(InputError, match=message):
            probe(model, dataset, num_samples=8, **options)
    with pytest.raises(
        InputError,
        match=r"found no residual stream in the model, which fails on tokens .*; name modules, such as inner",
    ):
        residual_layers(nn.ModuleDict({"inner": HookPoint()}))
    attends = Attends(lambda tokens: tokens.float(), 4)
    with pytest.raises(InputError, match=r"layers: must give \(batch, time, feature\)"):
        probe(attends, single, target="state", layers=["blocks.0.attention.logits"], num_samples=8)


def test_layers_of_several_widths() -> None:
    """As the one-hot input of a recurrent network and its state: each is read as it is alone."""
    dataset = ProcessDataset(random_hmm(1), layout=PROMPTS)
    model = make_model("rnn", num_symbols=4, vocab_size=5, width=8)
    options = {"target": "state", "num_samples": 40}

    def accuracies(*layers: str) -> dict:
        rows = probe(model, dataset, layers=list(layers), **options)
        return {(row["layer_name"], row["labels"]): row["accuracy"] for row in rows}

    assert accuracies("residual.0", "residual.1") == accuracies("residual.0") | accuracies("residual.1")


def test_capture_leaves_no_hooks() -> None:
    model = make_model("roformer", num_symbols=4, num_layers=1, num_heads=1, width=4)
    tokens = torch.tensor([[0, 1]])
    capture_activations(model, ["residual.0"], tokens)
    with pytest.raises(InputError):
        capture_activations(model, ["residual.0", "none"], tokens)
    assert not any(module._forward_hooks for module in model.modules())


def test_position_free_attention_does_not_move() -> None:
    dataset = ProcessDataset(mixture(), layout=PROMPTS)
    rows = by_metric(shuffle_test(Attends(lambda tokens: 1.0 + tokens.float(), 4), dataset, num_samples=20))
    assert rows["cv"]["value"] == 0
    assert rows["cv_centred"]["value"] == pytest.approx(0, abs=1e-12)
    assert rows["attention_change"]["value"] == pytest.approx(0, abs=1e-12)
    assert rows["prediction_change"]["value"] == pytest.approx(0, abs=1e-12)
    assert (rows["cv"]["layer"], rows["cv"]["head"], rows["cv"]["samples"]) == (1, 0, 20)


def test_position_only_attention_moves_as_much_as_positions() -> None:
    """The logit of a key is its column; over the permutations drawn, a key stands where its demonstration does."""
    dataset = ProcessDataset(mixture(), layout=PROMPTS)
    model = Attends(lambda tokens: torch.arange(float(tokens.shape[1])).expand(len(tokens), -1), 4)
    rows = by_metric(shuffle_test(model, dataset, num_samples=7, num_permutations=6, seed=3))
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
    dataset = ProcessDataset(mixture(), layout=PROMPTS)

    def spy(tokens: torch.Tensor) -> torch.Tensor:
        seen.append(tokens)
        return tokens.float()

    shuffle_test(Attends(spy, 4), dataset, num_samples=4, num_permutations=5)
    original = dataset[0:4].tokens
    assert any(torch.equal(tokens, original) for tokens in seen)
    assert any(not torch.equal(tokens, original) for tokens in seen)
    for tokens in (tokens for tokens in seen if len(tokens) == 4):  # fewer are rehearsed
        assert torch.equal(tokens[:, 18:], original[:, 18:])
        for shuffled, sample in zip(tokens.tolist(), original.tolist(), strict=True):
            assert sorted(shuffled[6 * d : 6 * d + 6] for d in range(3)) == sorted(
                sample[6 * d : 6 * d + 6] for d in range(3)
            )


def test_shuffle_needs_prompts_and_taps() -> None:
    model = make_model("roformer", num_symbols=4, vocab_size=5, num_layers=1, num_heads=1, width=4)
    for layout in (SequenceLayout(length=9), PromptLayout(num_demonstrations=1)):
        with pytest.raises(InputError, match="at least two demonstrations"):
            shuffle_test(model, ProcessDataset(mixture(), layout=layout), num_samples=2)
    with pytest.raises(InputError, match="num_permutations"):
        shuffle_test(model, ProcessDataset(mixture(), layout=PROMPTS), num_samples=2, num_permutations=1)
    for instrument in (shuffle_test, attention_map):
        with pytest.raises(InputError, match="found no softmax attention in Held"):
            instrument(Held(5, 4, 1), ProcessDataset(mixture(), layout=PROMPTS), num_samples=2)


def test_attention_falls_somewhere() -> None:
    dataset = ProcessDataset(mixture(), layout=PROMPTS)
    model = make_model("roformer", num_symbols=4, vocab_size=5, num_layers=2, num_heads=2, width=8)
    rows = attention_map(model, dataset, num_samples=70, max_offset=100)
    for layer, head in itertools.product((1, 2), (0, 1)):
        for kind, count in (("source", 3), ("offset", PROMPTS.context_length)):
            values = [row["value"] for row in rows if (row["layer"], row["head"], row["kind"]) == (layer, head, kind)]
            assert len(values) == count
            assert sum(values) == pytest.approx(1, abs=1e-6)  # float32 softmax
            assert min(values) >= 0


def test_attention_by_source_and_offset_of_a_known_head() -> None:
    """All weight on delimiters: 4 of 25 columns, each a quarter; the nearest is 6 columns back."""
    dataset = ProcessDataset(mixture(), layout=PROMPTS)
    model = Attends(lambda tokens: torch.where(tokens == 4, 0.0, -torch.inf), 4)
    rows = {(row["kind"], row["key"]): row["value"] for row in attention_map(model, dataset, num_samples=5)}
    assert rows["source", "delimiters"] == pytest.approx(1)
    assert rows["source", "same sequence"] == rows["source", "earlier sequences"] == 0
    assert {key: value for (kind, key), value in rows.items() if kind == "offset" and value} == {
        6: 0.25,
        12: 0.25,
        18: 0.25,
        24: 0.25,
    }
    model = Attends(lambda tokens: torch.where(torch.arange(25) >= 19, 0.0, -1e9).expand(len(tokens), -1), 4)
    rows = {(row["kind"], row["key"]): row["value"] for row in attention_map(model, dataset, num_samples=5)}
    assert rows["source", "same sequence"] == pytest.approx(1)
    assert [rows["offset", key] for key in range(7)] == pytest.approx([1 / 6] * 6 + [0])


# --------------------------------------------------------------------------------------------------------------------


def test_scores_know_what_they_are_of() -> None:
    """The losses of the model on real prompts, recomputed from its logits in a loop."""
    dataset = ProcessDataset(
        make_process("random-mixture", num_components=3, num_states=3, num_symbols=4), layout=PROMPTS
    )
    model = make_model("roformer", num_symbols=4, vocab_size=5, num_layers=1, num_heads=2, width=8, seed=4)
    score: Score = evaluate(model, dataset, num_samples=3)
    batch = dataset[0:3]
    with torch.no_grad():
        logits = model(batch.tokens).double()
    for b in range(3):
        for t, column in enumerate(PROMPTS.token_positions):
            expected = -logits[b, column - 1].log_softmax(-1)[batch.observations[b, t]]
            assert score.measures["model"]["loss"][b, t] == pytest.approx(float(expected), abs=1e-5)


def test_probability_zero_for_what_happened_is_no_number() -> None:
    """A network that gives laws may say zero: the mean loss there is infinite and has no interval, others have one."""

    class Sure(torch.nn.Module):
        outputs = "law"

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            law = torch.tensor([0.5, 0.5, 0.0]).repeat(*tokens.shape, 1)
            law[:, 2] = torch.tensor([-1.0, 3.0, 0.0])  # clipped at zero and divided by the sum
            law[:, 3] = 0.0  # says nothing
            return law

    hmm = HMM([1.0], [[1.0]], [[0.5, 0.5, 0.0]])
    score = evaluate(Sure(), ProcessDataset(hmm, length=6), num_samples=40)
    rows = {row["x"]: row for row in score.rows("positions") if (row["predictor"], row["metric"]) == ("model", "loss")}
    assert rows[3]["value"] is None
    assert rows[3]["low"] is None
    assert rows[1]["value"] == pytest.approx(math.log(2))
    assert rows[4]["value"] == pytest.approx(math.log(3))
    assert score.invalid is None


def test_what_is_read_by_default_is_what_the_process_hides() -> None:
    mess3, lds = ProcessDataset(make_process("mess3"), 8), ProcessDataset(make_process("ran-lds"), 6)
    few = {"num_samples": 16, "options": InstrumentOptions(num_controls=0), "shuffled_labels": False}
    mixed = ProcessDataset(mixture(), layout=PROMPTS)
    read = Held(3, 3, 1)
    assert probe(read, mess3, layers=["memory"], **few)[0]["target"] == "belief"
    assert (
        probe(Held(mixed.vocab_size, mixed.num_symbols, 1), mixed, layers=["memory"], **few)[0]["target"] == "component"
    )
    assert probe(Vectors(), lds, layers=["held"], **few)[0]["target"] == "belief"


class Vectors(nn.Module):
    """Holds the vectors that it reads."""

    def __init__(self) -> None:
        super().__init__()
        self.held = HookPoint()

    def forward(self, vectors: torch.Tensor) -> torch.Tensor:
        return self.held(vectors)


def test_the_belief_of_a_linear_process_is_the_mean_of_the_kalman_filter() -> None:
    """In the first step the mean is a fixed affine function of the observation; later the past counts too."""
    process = make_process("ran-lds")
    few = {"num_samples": 400, "options": InstrumentOptions(num_controls=0), "shuffled_labels": False}
    (one,) = probe(Vectors(), ProcessDataset(process, 1), layers=["held"], **few)
    (more,) = probe(Vectors(), ProcessDataset(process, 8), layers=["held"], **few)
    assert one["r2"] > 1 - 1e-6
    assert 0.2 < more["r2"] < 0.999


def test_the_state_of_a_labelled_hmm_is_that_after_the_observation() -> None:
    """Where the symbol names the state that it leads to, the state is read off the last token, not off the one before."""
    labelled = torch.zeros(3, 3, 3, dtype=torch.float64)
    for i, j in itertools.product(range(3), range(3)):
        labelled[j, i, j] = 1 / 3
    dataset = ProcessDataset(LabelledHMM([1, 0, 0], labelled), 8)
    (row,) = probe(Held(3, 3, 1), dataset, target="state", layers=["memory"], num_samples=40, shuffled_labels=False)
    assert (row["accuracy"], row["ceiling"]) == (1.0, 1.0)
    probe(Held(3, 3, 1), ProcessDataset(make_process("mess3"), 8), target="state", layers=["memory"], num_samples=16)


@pytest.mark.parametrize("target", [None, "component", "state", "belief"])
def test_a_wrong_name_of_a_layer_is_said_before_anything_about_targets(target: str | None) -> None:
    dataset = ProcessDataset(make_process("fresh-markov-chains", num_states=3, num_symbols=3), 8)
    with pytest.raises(InputError, match=r"^layers: no module named 'memry' in the model; did you mean memory\?$"):
        probe(Held(3, 3, 1), dataset, target=target, layers=["memry"])
