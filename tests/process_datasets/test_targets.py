"""What models are asked for: labels, exact answers, floors, in every layout."""

import math

import numpy as np
import pytest
import torch

from fake_gpu import ghost_device
from hmmscope.analysis.curves import evaluate
from hmmscope.datasets.layouts import Layout, PromptLayout, SequenceLayout
from hmmscope.datasets.process_dataset import Batch, ProcessDataset
from hmmscope.datasets.targets import make_target
from hmmscope.errors import InputError
from hmmscope.inference.filtering import filter_beliefs
from hmmscope.inference.floors import belief_floor, linear_floor
from hmmscope.processes.make import make_process
from hmmscope.training.state import move
from hmmscope.training.updates import target_loss

BELIEFS = [("cyclic-det", "law"), ("cyclic-rnd", "law"), ("ran-hmm", "law"), ("mess3", "law"), ("matmul", "vector")]
NEXT = [("cyclic-hard", "law"), ("ran-hmm", "law"), ("random-mixture", "law"), ("ran-lds", "vector")]
SIZES = {"random-mixture": {"num_components": 3, "num_states": 4, "num_symbols": 3}}


def case(name: str, layout: Layout | None = None, what: str = "observation") -> tuple:
    process = make_process(name, **SIZES.get(name, {}))
    layout = layout or SequenceLayout(length=9, placeholder=True)
    return ProcessDataset(process, layout=layout, seed=2), make_target(what, process, layout)


class Saying(torch.nn.Module):
    """Says at the judged columns what it is told to say."""

    def __init__(self, answer: torch.Tensor, columns: np.ndarray, width: int) -> None:
        super().__init__()
        said = torch.zeros(len(answer), width, answer.shape[-1], dtype=torch.float64)
        said[:, torch.from_numpy(columns)] = answer
        self.said = torch.nn.Parameter(said)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.said[: len(inputs), : inputs.shape[1]]


@pytest.mark.parametrize("name, kind", BELIEFS)
def test_beliefs_stand_after_their_observations(name: str, kind: str) -> None:
    dataset, target = case(name, what="belief")
    batch = dataset[0:5]
    answers = target.optimum(batch)
    assert target.kind == kind
    assert answers.shape == (5, 10, target.num_outputs)
    assert target.token_positions.tolist() == list(range(10))
    assert target.positions.tolist() == list(range(10))
    if kind == "law":
        exact = filter_beliefs(dataset.process, batch.observations)
        assert (answers[:, 1:] - exact.beliefs).abs().max() < 1e-13
        assert torch.equal(answers[:, 0], dataset.process.initial.expand(5, -1))
    else:
        vectors = dataset.process.vectors(batch.observations)
        assert torch.equal(answers[:, 1:], vectors)
        assert answers[:, 0].tolist() == [[1.0, 0, 0, 0, 0]] * 5


def test_beliefs_of_plain_sequences_and_prompts() -> None:
    dataset, target = case("ran-hmm", SequenceLayout(length=6), "belief")
    assert target.token_positions.tolist() == list(range(6))
    assert target.positions.tolist() == [1, 2, 3, 4, 5, 6]
    layout = PromptLayout(num_demonstrations=2, demonstration_length=2, test_length=3)
    dataset, target = case("ran-hmm", layout, "belief")
    assert target.token_positions.tolist() == list(range(10))
    assert target.positions.tolist() == [0, 1, 2, 0, 1, 2, 0, 1, 2, 3]
    assert target.sequences.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2, 2]
    answers, batch = target.optimum(dataset[0:3]), dataset[0:3]
    apart = filter_beliefs(dataset.process, batch.observations[:, 2:4]).beliefs
    assert torch.allclose(answers[:, 4:6], apart, atol=1e-14)
    assert torch.equal(answers[:, 3], dataset.process.initial.expand(3, -1))


@pytest.mark.parametrize("name, kind", NEXT)
def test_next_observations(name: str, kind: str) -> None:
    dataset, target = case(name)
    batch = dataset[0:4]
    assert (target.kind, target.num_outputs) == (kind, dataset.num_symbols)
    assert target.token_positions.tolist() == list(range(9))
    assert torch.equal(target.labels(batch), batch.observations)
    assert target.optimum(batch).shape == (4, 9, target.num_outputs)


@pytest.mark.parametrize("name, what", [(n, "belief") for n, _ in BELIEFS] + [(n, "observation") for n, _ in NEXT])
def test_the_exact_answer_has_the_floor_as_its_loss(name: str, what: str) -> None:
    dataset, target = case(name, what=what)
    batch = dataset[0:40]
    exact = target.optimum(batch)
    said = exact.log().clamp_min(-1e4) if target.kind == "law" else exact
    model = Saying(said, target.token_positions, batch.tokens.shape[1])
    floor = target.lower_bound_terms(batch)
    assert target_loss(model, batch, target).item() == pytest.approx(floor.mean().item(), rel=1e-5, abs=1e-6)
    score = evaluate(model, dataset, num_samples=40, target=what)
    assert score.loss == pytest.approx(floor.mean().item(), abs=1e-9)
    assert score.excess[0] == pytest.approx(0, abs=1e-9)
    assert score.invalid is None
    measure = "total_variation" if target.kind == "law" else "distance"
    assert score.measures["model"][measure].max() == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("name, what", [("cyclic-rnd", "belief"), ("ran-hmm", "observation"), ("matmul", "belief")])
def test_another_answer_has_a_higher_loss(name: str, what: str) -> None:
    dataset, target = case(name, what=what)
    batch = dataset[0:40]
    said = torch.zeros_like(target.optimum(batch))
    score = evaluate(Saying(said, target.token_positions, batch.tokens.shape[1]), dataset, num_samples=40, target=what)
    assert score.loss > score.bayes_loss + 0.01
    gap = score.loss - score.bayes_loss
    assert gap == pytest.approx(score.excess[0], abs=0.2 if what == "observation" else 1e-9)


def test_hand_computed_losses() -> None:
    _, target = case("cyclic-det", SequenceLayout(length=2), "belief")
    labels = torch.tensor([[[1.0, 0, 0, 0, 0], [0.5, 0.5, 0, 0, 0]]])
    logits = torch.tensor([[[0.0, 0, 0, 0, 0], [math.log(3), 0, -math.inf, -math.inf, -math.inf]]])
    logits = logits.nan_to_num(neginf=-1e4)
    expected = (math.log(5) - 0.5 * math.log(3 / 4) - 0.5 * math.log(1 / 4)) / 2
    assert target.loss(logits, labels).item() == pytest.approx(expected, rel=1e-6)
    _, target = case("matmul", SequenceLayout(length=2), "belief")
    told, said = torch.zeros(1, 2, 5), torch.tensor([[[1.0, 0, 0, 0, 0], [2.0, 1, 0, 0, 0]]])
    assert target.loss(said, told).item() == pytest.approx((1 + 5) / 10)
    assert target.loss_terms(said.double(), told.double()).tolist() == [[0.2, 1.0]]


def test_floors_are_those_of_the_processes() -> None:
    dataset, target = case("cyclic-rnd", SequenceLayout(length=60, placeholder=True), "belief")
    terms = target.lower_bound_terms(dataset[0:400])[:, 1:].mean(1)
    estimate = belief_floor(dataset.process, 60, num_samples=400)
    error = terms.std().item() / 20
    assert abs(terms.mean().item() - estimate.mean) < 5 * error + (estimate.high - estimate.low)
    dataset, target = case("ran-lds", SequenceLayout(length=40, placeholder=True))
    terms = target.lower_bound_terms(dataset[0:2000]).mean(1)
    assert abs(terms.mean().item() - linear_floor(dataset.process, 40)) < 5 * terms.std().item() / math.sqrt(2000)
    _, target = case("cyclic-det", what="belief")
    assert target.lower_bound_terms(case("cyclic-det")[0][0:9]).abs().max() == 0
    _, target = case("matmul", what="belief")
    assert target.lower_bound_terms(case("matmul", what="belief")[0][0:9]).abs().max() == 0


def test_relative_distance_of_linear_processes() -> None:
    dataset, target = case("ran-lds")
    batch = dataset[0:20]
    exact = target.optimum(batch)
    score = evaluate(Saying(0 * exact, target.token_positions, 10), dataset, num_samples=20)
    norm = exact.norm(dim=-1)
    assert score.measures["model"]["distance"] == pytest.approx((norm / norm.clamp_min(1)).numpy())


@pytest.mark.parametrize(
    "name, what, word",
    [
        ("random-mixture", "belief", "target: a Mixture has no exact belief"),
        ("ran-lds", "belief", "target: a LinearGaussian has no exact belief"),
        ("ran-hmm", "beliefs", "did you mean 'belief'"),
    ],
)
def test_what_has_no_answer_is_refused(name: str, what: str, word: str) -> None:
    with pytest.raises(InputError, match=word):
        case(name, what=what)


def test_linear_prompts_are_refused() -> None:
    with pytest.raises(InputError, match="layout: must be SequenceLayout for a linear process"):
        case("ran-lds", PromptLayout(num_demonstrations=1))


def test_only_needed_columns_are_read() -> None:
    dataset, target = case("ran-hmm", SequenceLayout(length=5))
    seen = []

    class Spy(torch.nn.Module):
        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            seen.append(tokens.shape[1])
            return torch.zeros(*tokens.shape, 5)

    batch: Batch = dataset[0:2]
    assert target_loss(Spy(), batch, target).item() == pytest.approx(math.log(5))
    assert seen == [4]


@pytest.mark.parametrize("name, what", [(n, "belief") for n, _ in BELIEFS] + [(n, "observation") for n, _ in NEXT])
def test_labels_and_loss_on_a_device(name: str, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a training step computes stays where the batch is."""
    dataset, target = case(name, what=what)
    batch = dataset[0:6]
    model = torch.nn.Linear(1, target.num_outputs)
    torch.nn.init.constant_(model.weight, 0.3)
    outputs = model(torch.arange(batch.tokens.shape[1], dtype=torch.float32)[None, :, None]).expand(6, -1, -1)
    expected = target.loss(outputs[:, torch.from_numpy(target.token_positions)], target.labels(batch)).item()
    with ghost_device(monkeypatch):
        there = move(batch, torch.device("cuda"))
        labels = target.labels(there)
        assert labels.device.type == "cuda"
        said = outputs.detach().to("cuda")
        assert target.loss(said[:, target.token_positions_on(said.device)], labels).item() == pytest.approx(
            expected, rel=1e-6
        )
