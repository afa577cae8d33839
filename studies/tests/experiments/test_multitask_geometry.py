"""Belief geometry on streams of which the answer is known, and the questions on it."""

import itertools

import numpy as np
import pytest
import torch
from torch import nn

from hmmscope.analysis.geometry import (
    BELIEF,
    MIXED_BELIEF,
    PREDICTION,
    ExactBeliefs,
    belief_targets,
    belief_times,
    fit_affine,
    geometry,
    read_off,
)
from hmmscope.datasets.layouts import PromptLayout
from hmmscope.datasets.process_dataset import ProcessDataset
from hmmscope.errors import InputError
from hmmscope.inference.filtering import filter_beliefs
from hmmscope.lab.evidence.rows import Rows, Tables
from hmmscope.lab.evidence.verdicts import OF_QUESTIONS
from hmmscope.lab.experiments.experiment import experiment_named
from hmmscope.models.base import HookPoint
from hmmscope.processes.hmm_per_sample import HMMPerSampleSpec
from hmmscope.processes.mess3_mixture import Mess3MixtureSpec
from hmmscope.processes.mixture import Mixture
from hmmscope.processes.textbook import Mess3Spec, RRXORSpec
from multitask_tables import judged, seeded


class Believer(nn.Module):
    """A module whose layers hold an affine image of the exact belief, waves of it, and nothing."""

    def __init__(self, corpus: ProcessDataset) -> None:
        super().__init__()
        self.corpus = corpus
        self.belief, self.wrapped, self.nothing = HookPoint(), HookPoint(), HookPoint()
        rng = np.random.default_rng(0)
        self.map = torch.from_numpy(rng.normal(size=(corpus.process.num_states, 6)))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        beliefs = filter_beliefs(self.corpus.process, tokens).beliefs  # type: ignore[arg-type]
        held = self.belief(beliefs @ self.map + 3.0)
        self.wrapped((4 * held).cos())
        self.nothing(torch.ones_like(held))
        return held


def test_a_belief_that_is_there_is_read_exactly() -> None:
    dataset = ProcessDataset(Mess3Spec().build(), 12, stream="probe")
    rows = geometry(Believer(dataset), dataset, layers=["belief", "wrapped", "nothing"], num_samples=120)
    found = {(r["target"], r["targets"], r["layer_name"]): r for r in rows}
    assert found[BELIEF, "true", "belief"]["r2"] == pytest.approx(1.0, abs=1e-4)  # features are float32, ridge 1e-6
    assert 0.2 < found[BELIEF, "true", "wrapped"]["r2"] < 0.999
    assert found[BELIEF, "true", "nothing"]["r2"] == pytest.approx(0.0, abs=0.05)
    for target in (BELIEF, PREDICTION):
        for layer in ("belief", "wrapped"):
            assert abs(found[target, "shuffled", layer]["r2"]) < 0.05  # 1080 examples, 6 features: 6/1080 is expected
    assert len(rows) == 12
    assert all(row["low"] <= row["r2"] <= row["high"] for row in rows)


def test_mess3_cannot_tell_belief_from_prediction() -> None:
    """Its emission law is invertible and alike in all directions: R² of belief and prediction are one number."""
    dataset = ProcessDataset(Mess3Spec().build(), 12, stream="probe")
    rows = geometry(Believer(dataset), dataset, layers=["belief", "wrapped"], num_samples=80)
    by_target = [[row["r2"] for row in rows if row["target"] == name] for name in (BELIEF, PREDICTION)]
    assert by_target[0] == pytest.approx(by_target[1], abs=1e-6)
    assert all(row["from_prediction"] == pytest.approx(1.0, abs=1e-4) for row in rows)


def test_rrxor_can() -> None:
    dataset = ProcessDataset(RRXORSpec().build(), 12, stream="probe")
    rows = geometry(Believer(dataset), dataset, layers=["belief"], num_samples=200)
    belief = next(row for row in rows if row["target"] == BELIEF)
    assert belief["r2"] == pytest.approx(1.0, abs=1e-3)
    assert belief["from_prediction"] < 0.5


def test_the_regression_solves_the_normal_equations() -> None:
    rng = np.random.default_rng(1)
    x, y = (
        torch.from_numpy(rng.normal(size=(2, 300, 4)) * [1, 5, 0.1, 2] + 7),
        torch.from_numpy(rng.normal(size=(300, 2))),
    )
    fit = fit_affine(x, y, 1e-12)
    for layer in range(2):
        full = np.concatenate([x[layer].numpy(), np.ones((300, 1))], 1)
        exact = full @ np.linalg.lstsq(full, y.numpy(), rcond=None)[0]
        assert fit(x)[layer].numpy() == pytest.approx(exact, abs=1e-8)
    shrunk = fit_affine(x, y, 1e6)
    assert (shrunk(x) - y.mean(0)).abs().max() < 1e-4


def test_the_last_samples_are_held_out() -> None:
    """Features that name the sample fit the training examples, and say nothing of the others."""
    samples = torch.arange(40).repeat_interleave(3)
    target = torch.from_numpy(np.random.default_rng(2).normal(size=(40, 2)))[samples]
    found = read_off(torch.eye(40, dtype=torch.float64)[samples][None], target, 40)
    assert found.fitted[0] == pytest.approx(1.0, abs=1e-3)
    assert found.errors.shape == (10, 1)
    assert found.errors[:, 0] == pytest.approx(found.spread, rel=0.01)
    assert found.values.shape == (1, 30, 2)


def test_a_target_that_does_not_vary_has_no_r2() -> None:
    found = read_off(torch.randn(1, 24, 2), torch.ones(24, 3, dtype=torch.float64), 8)
    with pytest.raises(InputError, match="target of positive variance"):
        found.r2()


def test_the_mixed_belief_is_an_average_over_components() -> None:
    mixture = Mess3MixtureSpec(num_components=3).build()
    dataset = ProcessDataset(
        mixture, layout=PromptLayout(num_demonstrations=1, demonstration_length=3, test_length=4), stream="probe"
    )
    times = belief_times(dataset)
    assert times.tolist() == [3, 4, 5, 6]
    targets = belief_targets(dataset, times, 10)
    batch, starts = dataset[0:10], torch.from_numpy(dataset.layout.reset_mask)
    each = [filter_beliefs(mixture[m], batch.observations, reset_mask=starts) for m in range(3)]
    for t in times:
        terms = torch.stack([one.log_likelihood_terms[:, : t + 1].sum(1) for one in each])
        posterior = (terms + mixture.component_weights.log()[:, None]).softmax(0)
        mixed = sum(posterior[m, :, None] * each[m].beliefs[:, t] for m in range(3))
        assert targets[MIXED_BELIEF].view(10, 4, 3)[:, t - 3].numpy() == pytest.approx(mixed.numpy(), abs=1e-12)
    assert batch.components is not None
    own = torch.stack([each[int(m)].beliefs[i, 3:] for i, m in enumerate(batch.components)])
    assert targets[BELIEF].view(10, 4, 3).numpy() == pytest.approx(own.numpy(), abs=1e-12)
    exact = ExactBeliefs.of(dataset, 10)
    assert torch.equal(exact.belief, targets[BELIEF])
    assert 0 < exact.ceiling(BELIEF) < 1
    assert exact.ceiling(MIXED_BELIEF) == 1


def test_one_component_is_no_secret() -> None:
    dataset = ProcessDataset(Mess3MixtureSpec(num_components=1).build(), 8, stream="probe")
    exact = ExactBeliefs.of(dataset, 16)
    assert exact.belief.numpy() == pytest.approx(exact.values[MIXED_BELIEF].numpy(), abs=1e-12)
    assert exact.ceiling(BELIEF) == pytest.approx(1.0)


def test_components_of_the_mixture_depend_on_their_number_alone() -> None:
    few, many = (Mess3MixtureSpec(num_components=n, seed=4).build() for n in (2, 5))
    assert isinstance(few, Mixture)
    for m in range(2):
        assert torch.equal(few[m].labelled, many[m].labelled)  # type: ignore[union-attr]
    assert not torch.equal(many[0].labelled, many[1].labelled)  # type: ignore[union-attr]
    spec = Mess3MixtureSpec(least_switch=0.1, most_switch=0.1, least_emission=0.7, most_emission=0.7, num_components=1)
    assert torch.equal(spec.build()[0].labelled, Mess3Spec(switch=0.1, emission=0.7).build().labelled)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "wrong, message",
    [
        ({"least_switch": 0.0}, "least_switch: must be positive"),
        ({"least_switch": 0.3}, "least_switch: must be at most most_switch"),
        ({"most_switch": 0.6}, "most_switch: must be at most 0.5"),
        ({"most_emission": 1.5}, "most_emission: must be at most 1"),
        ({"num_components": 0}, "num_components"),
    ],
)
def test_numbers_of_the_mixture_are_checked(wrong: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Mess3MixtureSpec(**wrong)


def test_geometry_needs_beliefs() -> None:
    dataset = ProcessDataset(HMMPerSampleSpec(num_states=3, num_symbols=3).build(), 6)
    with pytest.raises(InputError, match="HMMPerSample has no exact predictions"):
        belief_targets(dataset, belief_times(dataset), 8)


# --------------------------------------------------------------------------------------------------------------------
# Questions


def effects(**changed: list[float]) -> Tables:
    """A table of effects; `changed` by process, ``mess3_mixture``, are what the trained stream gains."""
    rows = []
    for name in ("mess3", "mess3-mixture", "rrxor"):
        gains = changed.get(name.replace("-", "_"), [0.2, 0.21, 0.19])
        values = {"trained": [0.9] * 3, "untrained": [0.3] * 3, "ceiling": [1.0] * 3, "from the prediction": [0.5] * 3}
        values |= {"trained - controls": gains, "trained - prediction and untrained": gains}
        values |= {"belief - next observation": gains}
        for target, quantity in itertools.product((BELIEF, MIXED_BELIEF), values):
            if target == BELIEF or name == "mess3-mixture":
                rows += seeded(values[quantity], 0.001, process=name, target=target, quantity=quantity)
    return {"effects": Rows(rows)}


def test_the_least_certain_process_is_shown() -> None:
    found = judged("multitask-belief-linear", effects(rrxor=[-0.1, -0.11, -0.09]))
    assert found.verdict in OF_QUESTIONS
    assert found.value == pytest.approx(-0.1)
    assert found.unit == "R² above the better control, RRXOR"
    assert "Mess3 0.900 (0.300 before training, upper bound 1.000)" in found.text


def test_geometry_without_training_has_no_gains() -> None:
    swapped = experiment_named("multitask-geometry").without_training(effects())
    assert judged("multitask-belief-linear", swapped).value == 0
    assert swapped["effects"].where(quantity="trained").values("value") == [0.3]
    assert len(swapped["effects"]) == len(effects()["effects"])
