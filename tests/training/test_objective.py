"""The objective is the mean over the labels of a whole step, however the step is divided: into parts, among processes."""

from typing import Any

import numpy as np
import pytest
import torch

import hmmscope as hs
from hmmscope.datasets.targets import PADDING, make_target
from hmmscope.errors import InputError
from hmmscope.models.base import SequenceModel, make_model
from hmmscope.processes.recorded_sequences import RecordedSequences
from hmmscope.training import parallel
from hmmscope.training.compiled_steps import Compiled
from hmmscope.training.distributed import ProcessGroup
from hmmscope.training.evaluation import Evaluation
from hmmscope.training.parallel import BitExactParallel, DDPUpdates, SingleProcess
from hmmscope.training.spec import TrainingSpec
from test_edges_of_training import Post
from test_worlds import Machine, Wrapped

#: Twelve sequences; samples are taken by decreasing number of labels, so that of four parts two have none.
DRAWN = np.random.default_rng(0)
LENGTHS = [9, 5, 7, 2, 3, 2, 1, 1, 1, 2, 2, 2]
ROWS = [DRAWN.integers(0, 3, length).tolist() for length in LENGTHS]
for gap in ((0, 4), (4, 2), (9, 1), (10, 1), (11, 1)):
    ROWS[gap[0]][gap[1]] = -1
DATA = RecordedSequences(hs.SequenceData(ROWS, missing=-1, symbols=3))
CORPUS = hs.ProcessDataset(DATA, length=9)
TARGET = make_target("observation", DATA, CORPUS.layout)
ORDER = TARGET.evaluated(CORPUS[0:12]).sum(1).argsort(descending=True, stable=True)
BATCH = CORPUS[ORDER]
MODELS: dict[str, dict[str, Any]] = {
    "decoder": {"num_layers": 1, "num_heads": 2, "width": 16, "dropout": 0.0, "max_length": 9},
    "rnn": {"width": 16},
    "gru": {"width": 8},
}


def fresh(name: str) -> SequenceModel:
    return make_model(name, num_symbols=CORPUS.vocab_size, **MODELS[name]).double()


def recipe(**fields: Any) -> TrainingSpec:
    return TrainingSpec(num_steps=2, batch_size=12, **fields)


def found_by(engine: SingleProcess) -> list[torch.Tensor]:
    """Loss and gradients of the samples of a step that the engine computes."""
    loss = engine.gradients(CORPUS[ORDER[engine.rows(0)]], TARGET, 0)
    return [loss.double(), *(p.grad.clone() for p in engine.model.parameters() if p.grad is not None)]


def test_two_parts_have_no_label() -> None:
    assert TARGET.evaluated(BATCH).unflatten(0, (4, 3)).sum((1, 2)).tolist() == [17, 3, 0, 0]


def by_hand(name: str) -> list[torch.Tensor]:
    """The mean over all labels, without the library's loss."""
    model, labels = fresh(name), TARGET.labels(BATCH)
    laws = model(BATCH.tokens[:, :-1]).log_softmax(-1)
    where = (labels != PADDING).nonzero()
    loss = -torch.stack([laws[b, t, labels[b, t]] for b, t in where.tolist()]).mean()
    loss.backward()
    return [loss.detach(), *(p.grad for p in model.parameters() if p.grad is not None)]


def assert_equal(found: list[torch.Tensor], wanted: list[torch.Tensor]) -> None:
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("num_grains", [1, 4, 12])
@pytest.mark.parametrize(
    ("engine", "name"), [(SingleProcess, "gru"), (SingleProcess, "decoder"), (Compiled, "decoder"), (Compiled, "rnn")]
)
def test_parts_of_one_process(engine: type[SingleProcess], name: str, num_grains: int) -> None:
    assert_equal(found_by(engine(fresh(name), recipe(accumulation_steps=num_grains))), by_hand(name))


@pytest.mark.parametrize(
    ("kind", "size", "num_grains"),
    [(BitExactParallel, 2, 4), (BitExactParallel, 4, 4), (DDPUpdates, 3, 1), (DDPUpdates, 2, 4), (DDPUpdates, 4, 4)],
)
def test_processes(kind: type[SingleProcess], size: int, num_grains: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The gradient of replicas is the mean of theirs."""
    machine: Post = Machine(size)
    monkeypatch.setattr(parallel, "dist", machine)
    monkeypatch.setattr(parallel, "_DDPModule", Wrapped)
    spec = recipe(accumulation_steps=num_grains, parallel="exact" if kind is BitExactParallel else "ddp")

    def work(world: ProcessGroup) -> list[torch.Tensor]:
        return found_by(kind(fresh("rnn"), spec, world))

    each = machine.run(work)
    assert_equal([torch.stack(same).mean(0) for same in zip(*each, strict=True)], by_hand("rnn"))


@pytest.mark.parametrize("engine", [SingleProcess, Compiled])
def test_a_step_without_labels_has_no_gradient(engine: type[SingleProcess]) -> None:
    made = engine(fresh("rnn"), recipe(accumulation_steps=2))
    assert made.gradients(CORPUS[ORDER[6:]], TARGET, 0).item() == 0
    assert all(not p.grad.any() for p in made.model.parameters() if p.grad is not None)


def test_the_evaluation_is_the_mean_over_labels() -> None:
    """Samples are evaluated in parts, and these do not have equally many labels."""
    rows = [DRAWN.integers(0, 3, length).tolist() for length in [2] * 70 + [9] * 26]
    dataset = hs.ProcessDataset(RecordedSequences(hs.SequenceData(rows)), length=9, stream="evaluate")
    target, model = make_target("observation", dataset.process, dataset.layout), fresh("gru")
    batch = dataset[0:96]
    with torch.no_grad():
        expected = target.loss(model(batch.tokens[:, :-1]), target.labels(batch)).item()
    found = Evaluation(dataset, target, recipe(evaluate_samples=96))(model, torch.device("cpu"))
    assert found["evaluation_loss"] == pytest.approx(expected, rel=1e-12)


def test_an_evaluation_without_labels_is_refused() -> None:
    process = RecordedSequences(hs.SequenceData([[-1], [-1, -1], [0, 1]], missing=-1, symbols=3))
    datasets = [hs.ProcessDataset(process, length=2, seed=seed) for seed in range(20)]
    target = make_target("observation", process, datasets[0].layout)
    empty = next(dataset for dataset in datasets if not target.num_labels(dataset[0:1]))
    with pytest.raises(InputError, match=r"^training\.evaluate_samples: all observations"):
        Evaluation(empty, target, recipe(evaluate_samples=1))
