"""Optimisers by name and factory, parameter groups, auxiliary losses; resumed to the bit."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import hmmscope as hs
from hmmscope.errors import InputError
from hmmscope.storage.rundir import read_journal
from hmmscope.training import updates
from hmmscope.training.optimizers import make_optimizer
from hmmscope.training.spec import TrainingSpec
from training_cases import Stop, files

BASE = {"num_steps": 8, "batch_size": 4, "checkpoint_every": 3, "evaluate_every": 0, "device": "cpu", "warmup_steps": 2}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.norm, self.head = nn.Embedding(2, 4), nn.LayerNorm((2, 2)), nn.Linear(4, 2)
        for number, parameter in enumerate(self.parameters()):
            nn.init.normal_(parameter, generator=torch.Generator().manual_seed(number))

    def forward(self, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        inside = self.norm(self.embedding(tokens).unflatten(-1, (2, 2))).flatten(-2)
        return self.head(inside), self.embedding.weight.square().mean()


def trained(path: Path, stop: int = 0, *, resume: bool = False, options: Any = None, **training: Any) -> Any:
    loss, calls = updates.target_loss, 0

    def counted(*args: Any, **given: Any) -> torch.Tensor:
        nonlocal calls
        calls += 1
        if calls == stop:
            raise Stop
        return loss(*args, **given)

    chosen = hs.TrainOptions(num_samples=2, **(options or {}))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(updates, "target_loss", counted)
        return hs.train(
            "golden-mean", path, model=Net(), length=5, training=BASE | training, resume=resume, options=chosen
        )


def two(model: Any) -> list[torch.optim.Optimizer]:
    return [torch.optim.SGD(model.head.parameters(), 0.1, 0.9), torch.optim.NAdam([model.embedding.weight], 0.01)]


AUXILIARY = {"b": lambda model, batch, output: model.head.bias.norm(), "a": lambda model, batch, output: output[1]}


@pytest.mark.drawn(1)
@pytest.mark.parametrize(
    ("training", "options"),
    [
        ({"optimizer": "SGD", "optimizer_options": {"momentum": 0.9, "nesterov": True}}, {}),
        ({"optimizer": "asgd", "weight_decay_on": "matrices"}, {}),
        ({"optimizer": "adagrad"}, {}),
        ({"weight_decay_on": "matrices"}, {}),
        ({}, {"optimizer": two}),
        ({"accumulation_steps": 2}, {"auxiliary_losses": AUXILIARY}),
    ],
    ids=["sgd", "asgd", "adagrad", "groups", "factory", "auxiliary"],
)
def test_resumed_to_the_bit(training: dict, options: dict, tmp_path: Path) -> None:
    run = trained(tmp_path / "whole", options=options, **training)
    with pytest.raises(Stop):
        trained(tmp_path / "halved", 6 * training.get("accumulation_steps", 1), options=options, **training)
    trained(tmp_path / "halved", resume=True, options=options, **training)
    one, other = ({n: b for n, b in files(tmp_path / run).items() if "time" not in n} for run in ("whole", "halved"))
    kept = [name for name in one if name.startswith(("checkpoints", "metrics", "config"))]
    assert len(kept) > 5
    assert [one[name] == other[name] for name in kept] == [True] * len(kept)
    records = read_journal(run.path / "metrics.jsonl")
    names = [name for name in records[-1] if name.startswith("auxiliary.")]
    assert names == (["auxiliary.a", "auxiliary.b"] if "auxiliary_losses" in options else [])
    if names:
        first = Net()
        assert records[0]["auxiliary.a"] == pytest.approx(first.embedding.weight.square().mean().item())
        assert records[0]["auxiliary.b"] == pytest.approx(first.head.bias.norm().item())


def test_groups_and_optimisers_are_those_of_torch() -> None:
    """Norms, also with several axes, and biases do not decay; a factory's learning rates follow the schedule."""
    spec = TrainingSpec(learning_rate=0.1, weight_decay=0.5, weight_decay_on="matrices")
    for named in ({}, {"optimizer_options": ("amsgrad=false",)}, {"optimizer": "sgd"}):
        net, given = Net(), TrainingSpec(**{**vars(spec), **named})  # type: ignore[arg-type]
        before = {name: p.detach().clone() for name, p in net.named_parameters()}
        moments = make_optimizer(net, given)
        for p in net.parameters():
            p.grad = torch.zeros_like(p)
        updates.take_step(list(net.parameters()), moments, given, 0.1)
        decayed = {name for name, p in net.named_parameters() if not torch.equal(p, before[name])}
        assert decayed == {"embedding.weight", "head.weight"}
    net = Net()
    moments = make_optimizer(net, TrainingSpec(learning_rate=0.1), two)
    updates.take_step(list(net.parameters()), moments, TrainingSpec(learning_rate=0.1), 0.05)
    assert [one.param_groups[0]["lr"] for one in moments.optimizers] == pytest.approx([0.05, 0.005])


@pytest.mark.parametrize(
    ("training", "options", "message"),
    [
        ({"optimizer": "lion"}, {}, "training.optimizer: unknown 'lion'"),
        ({"optimizer": "lbfgs"}, {}, "training.optimizer: unknown 'lbfgs'"),
        ({"optimizer": "sgd", "optimizer_options": {"momentun": 1}}, {}, "did you mean 'momentum'"),
        ({"optimizer": "sgd", "optimizer_options": ["momentum"]}, {}, "must be NAME=VALUE"),
        ({"optimizer": "sgd", "optimizer_options": {"momentum": -1}}, {}, "Invalid momentum value: -1"),
        ({"optimizer": "muon"}, {}, "muon does not accept this model"),
        ({"optimizer": "rprop", "weight_decay_on": "matrices"}, {}, "rprop has no weight decay"),
        ({"optimizer": "sgd", "engine": "compiled"}, {}, "compiled does not support training.optimizer = sgd"),
        ({"auxiliary_losses": ["a"]}, {}, "names the functions a; pass them in Python"),
        ({"optimizer": "my.make"}, {}, "TrainOptions.optimizer is missing"),
        ({"optimizer": "sgd"}, {"optimizer": two}, "give only one"),
        ({}, {"optimizer": torch.optim.SGD}, "pass a function of the model"),
        ({}, {"optimizer": lambda model: torch.optim.SGD(model)}, "the factory fails: 'Net' object is not iterable"),
        ({}, {"optimizer": lambda model: None}, "returned None, not a torch optimizer"),
        ({}, {"optimizer": lambda model: torch.optim.LBFGS(model.parameters())}, "LBFGS needs a closure"),
        (
            {},
            {"optimizer": lambda model: torch.optim.SGD(Net().parameters())},
            "parameter that does not belong to the model",
        ),
        ({}, {"auxiliary_losses": AUXILIARY["a"]}, "must map names to functions"),
        ({"compile": True}, {"auxiliary_losses": AUXILIARY}, "need compile = false"),
    ],
)
def test_wrong_choices_leave_no_folder(training: dict, options: dict, message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as refused:
        trained(tmp_path / "run", options=options, **training)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "run").exists()


def test_auxiliary_losses_are_scalars_and_finite(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"auxiliary_losses\['a'\]: must return a scalar tensor, got 'shape \(4, 4, 2"):
        trained(tmp_path / "one", options={"auxiliary_losses": {"a": lambda model, batch, output: output[0]}})
    nan = {"auxiliary_losses": {"a": lambda model, batch, output: output[1] * float("nan")}}
    with pytest.raises(hs.errors.NonFiniteError, match="step 1: loss is not finite"):
        trained(tmp_path / "two", options=nan)
