"""Block chain-of-thought: two algorithms, one answer; where feedback enters; what it costs."""

from typing import Any

import pytest
import torch

from hmmscope.datasets.layouts import SequenceLayout
from hmmscope.datasets.process_dataset import ProcessDataset
from hmmscope.datasets.targets import Target, make_target
from hmmscope.models.base import ModelIO, SequenceModel, build_model
from hmmscope.models.block_cot import block_outputs, feedback_width, num_blocks, own_answers
from hmmscope.processes.make import make_process
from hmmscope.registry import build_spec
from hmmscope.runs.config import config_from_data
from hmmscope.runs.pipeline import load_run
from hmmscope.runs.training import train
from hmmscope.training.updates import target_loss

LENGTH = 17
MODELS: dict[str, dict[str, Any]] = {
    "decoder": {"num_layers": 2, "num_heads": 2, "width": 16, "dropout": 0.0},
    "roformer": {"num_layers": 2, "num_heads": 2, "width": 16},
    "rnn": {"width": 12},
    "lstm": {"width": 12},
    "gru": {"width": 12},
}
TASKS = {"cyclic-det": "belief", "matmul": "belief", "ran-hmm": "observation", "ran-lds": "observation"}


def task(name: str) -> tuple[ProcessDataset, Target]:
    process = make_process(name)
    layout = SequenceLayout(length=LENGTH, placeholder=True)
    return ProcessDataset(process, layout=layout, seed=1), make_target(TASKS[name], process, layout)


def model_for(name: str, corpus: ProcessDataset, target: Target) -> SequenceModel:
    vectors = corpus[0:1].observations.is_floating_point()
    ports = ModelIO(
        num_outputs=target.num_outputs,
        vocab_size=None if vectors else corpus.vocab_size,
        input_width=corpus.num_symbols if vectors else None,
        max_length=LENGTH + 1,
        feedback_width=feedback_width(target.num_outputs),
    )
    model = build_model(build_spec("model", {"name": name, **MODELS[name]}, "model"), ports, 3).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3.0)  # answers that differ from one another
    return model


def loss_and_gradient(
    model: SequenceModel, corpus: ProcessDataset, target: Target, **options: Any
) -> tuple[float, torch.Tensor]:
    model.zero_grad()
    loss = target_loss(model, corpus[0:6], target, **options)
    loss.backward()
    return loss.item(), torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


@pytest.mark.drawn(12)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("block_length", [1, 2, 4, 5, 8, 17, 30])
def test_algorithms_agree(name: str, block_length: int) -> None:
    dataset, target = task("cyclic-det")
    model = model_for(name, dataset, target)
    batch = dataset[0:6]
    outputs = [
        block_outputs(model, batch.tokens, kind="law", block_length=block_length, algorithm=algorithm)
        for algorithm in ("naive", "two-phase")
    ]
    assert (outputs[0] - outputs[1]).abs().max() < 1e-12
    naive, two_phase = (
        loss_and_gradient(model, dataset, target, block_length=block_length, block_algorithm=algorithm)
        for algorithm in ("naive", "two-phase")
    )
    assert abs(naive[0] - two_phase[0]) < 1e-6  # the loss is a float32 number
    assert (naive[1] - two_phase[1]).abs().max() < 1e-6 * max(1.0, float(naive[1].abs().max()))


@pytest.mark.parametrize("block_length", [1, 3, 8])
def test_gradients_agree_in_float64(block_length: int) -> None:
    dataset, target = task("cyclic-det")
    model = model_for("decoder", dataset, target)
    batch = dataset[0:6]
    labels, found = target.labels(batch), []
    for algorithm in ("naive", "two-phase"):
        model.zero_grad()
        outputs = block_outputs(model, batch.tokens, kind="law", block_length=block_length, algorithm=algorithm)
        loss = -(labels * outputs.log_softmax(-1)).sum(-1).mean()
        loss.backward()
        found.append((loss.item(), torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])))
    assert abs(found[0][0] - found[1][0]) < 1e-12
    assert (found[0][1] - found[1][1]).abs().max() < 1e-12 * max(1.0, float(found[0][1].abs().max()))


@pytest.mark.parametrize("name", TASKS)
def test_every_task_can_hear_itself(name: str) -> None:
    dataset, target = task(name)
    model = model_for("decoder", dataset, target)
    naive, two_phase = (
        loss_and_gradient(model, dataset, target, block_length=4, block_algorithm=a)[0] for a in ("naive", "two-phase")
    )
    assert abs(naive - two_phase) < 1e-6 * max(1, abs(naive))
    plain, _ = loss_and_gradient(model, dataset, target)
    assert abs(plain - two_phase) > 1e-4


def test_feedback_stands_where_blocks_begin() -> None:
    dataset, target = task("cyclic-det")
    model = model_for("decoder", dataset, target)
    tokens = dataset[0:6].tokens
    feedback = own_answers(model, tokens, kind="law", block_length=5)
    told = [6, 11, 16]
    silent = [t for t in range(LENGTH + 1) if t not in told]
    assert feedback[:, told, -1].eq(1).all()
    assert feedback[:, silent].eq(0).all()
    assert torch.allclose(feedback[:, told, :-1].sum(-1), torch.ones(6, 3, dtype=torch.float64))
    with torch.no_grad():
        outputs = model(tokens, feedback=feedback)
    assert (feedback[:, told, :-1] - outputs[:, [5, 10, 15]].softmax(-1)).abs().max() < 1e-12
    assert not feedback.requires_grad


def test_vectors_are_told_as_they_are() -> None:
    dataset, target = task("matmul")
    model = model_for("decoder", dataset, target)
    tokens = dataset[0:6].tokens
    feedback = own_answers(model, tokens, kind="vector", block_length=8)
    with torch.no_grad():
        outputs = model(tokens, feedback=feedback)
    assert (feedback[:, 9, :-1] - outputs[:, 8]).abs().max() < 1e-12


@pytest.mark.parametrize("block_length", [1, 2, 4, 8, 12, 17, 40])
def test_the_naive_cost_is_a_pass_for_each_block(block_length: int) -> None:
    dataset, target = task("cyclic-det")
    model = model_for("rnn", dataset, target)
    columns: list[int] = []
    model.register_forward_hook(lambda module, args, output: columns.append(output.shape[1]))
    tokens = dataset[0:2].tokens
    block_outputs(model, tokens, kind="law", block_length=block_length, algorithm="naive")
    blocks = -(-LENGTH // block_length)
    assert num_blocks(LENGTH + 1, block_length) == blocks
    assert columns == [LENGTH + 1] * blocks
    columns.clear()
    block_outputs(model, tokens, kind="law", block_length=block_length)
    assert columns[-1] == LENGTH + 1
    assert sum(columns[:-1]) < LENGTH + 1  # each column once, with a cache, and the last block not at all


def test_no_feedback_beyond_the_sequence() -> None:
    dataset, target = task("cyclic-det")
    model = model_for("decoder", dataset, target)
    tokens = dataset[0:3].tokens
    with torch.no_grad():
        plain = model(tokens)
        for algorithm in ("naive", "two-phase"):
            heard = block_outputs(model, tokens, kind="law", block_length=LENGTH, algorithm=algorithm)
            assert torch.equal(plain, heard)


def test_an_exact_predictor_of_cyclic_hard_tells_nothing() -> None:
    """Between questions the next symbol's law does not depend on the state, so chain-of-thought cannot carry it."""
    process = make_process("cyclic-hard", prediction_rate=0.1)
    layout = SequenceLayout(length=60, placeholder=True)
    dataset, target = ProcessDataset(process, layout=layout, seed=1), make_target("observation", process, layout)
    batch = dataset[0:200]
    law = target.optimum(batch)
    acted = batch.observations[:, :-1] < 5  # the law after an action: actions are the first five symbols
    after_action = law[:, 1:][acted]
    assert len(after_action) > 1000
    assert (after_action - after_action[0]).abs().max() < 1e-12


def test_dropout_does_not_reach_the_answers() -> None:
    dataset, _ = task("cyclic-det")
    ports = ModelIO(num_outputs=5, vocab_size=6, max_length=LENGTH + 1, feedback_width=6)
    spec = build_spec("model", {"name": "decoder", **MODELS["decoder"], "dropout": 0.5}, "model")
    model = build_model(spec, ports, 3).train()
    first, again = (own_answers(model, dataset[0:4].tokens, kind="law", block_length=4) for _ in range(2))
    assert torch.equal(first, again)
    assert model.training


def test_trained_and_evaluated_with_its_own_answers(tmp_path: Any) -> None:
    data = {
        "process": {"name": "cyclic-det", "num_symbols": 2},
        "layout": {"name": "sequences", "length": 8, "placeholder": True},
        "target": "belief",
        "model": {"name": "decoder", "num_layers": 1, "num_heads": 2, "width": 16, "dropout": 0.1},
        "training": {
            "num_steps": 12,
            "batch_size": 8,
            "warmup_steps": 2,
            "block_length": 3,
            "evaluate_every": 6,
            "checkpoint_every": 5,
            "device": "cpu",
        },
    }
    runs = {
        algorithm: train(config_from_data(data, {"training.block_algorithm": algorithm}), tmp_path / algorithm)
        for algorithm in ("naive", "two-phase")
    }
    assert all(run.summary is not None and run.summary["invalid"] is None for run in runs.values())
    loaded = load_run(tmp_path / "naive")
    assert loaded.model.model_io.feedback_width == 6
