"""How large models are: small by their name alone, as in the papers by another name, and never large without a word."""

import math
import signal
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

import hmmscope as hs
from hmmscope import registry
from hmmscope.errors import InputError
from hmmscope.models.base import ModelIO, cost_of
from hmmscope.models.decoder import DecoderSpec, RoFormerSpec
from hmmscope.runs import resources, training
from hmmscope.runs.config import RunConfig, config_from_data
from hmmscope.storage.rundir import RunDir, read_journal
from hmmscope.training import trainer
from hmmscope.training.evaluation import Evaluation
from hmmscope.training.signals import Interrupted

PORTS = ModelIO(num_outputs=16, vocab_size=17, max_length=128)
TINY: dict[str, Any] = {
    "process": {"name": "random-hmm", "num_states": 2, "num_symbols": 3},
    "layout": {"name": "sequences", "length": 6},
    "model": {"name": "roformer", "num_layers": 1, "num_heads": 1, "width": 4},
    "training": {"num_steps": 12, "batch_size": 2, "evaluate_every": 8, "checkpoint_every": 5, "device": "cpu"},
}


def parameters(**fields: Any) -> int:
    cost = cost_of(registry.build_spec("model", fields, "model"), PORTS, 128)
    return cost.parameters


@pytest.mark.parametrize("name", sorted(set(registry.entries("model")) - {"given"}))
def test_a_name_alone_is_a_small_model(name: str) -> None:
    spec = registry.build_spec("model", {"name": name}, "model")
    assert spec.num_layers <= 4
    assert spec.width <= 128
    if cost_of(spec, PORTS, 128) is not None:
        assert parameters(name=name) < 10**6


def test_the_sizes_of_the_papers_have_names() -> None:
    assert list(registry.sizes()) == ["decoder-paper", "roformer-paper"]
    assert parameters(name="roformer-paper") == pytest.approx(201e6, rel=0.01)
    assert parameters(name="decoder-paper") == pytest.approx(12.6e6, rel=0.01)
    paper = RunConfig(model="roformer-paper")
    assert paper.model == RoFormerSpec(num_layers=16, num_heads=16, width=1024)
    assert paper.to_data()["model"]["name"] == "roformer"  # as a run has it that states the sizes
    other = config_from_data({"model": {"name": "decoder-paper", "num_layers": "7", "dropout": "0"}})
    assert other.model == DecoderSpec(num_layers=7, num_heads=8, width=512, dropout=0.0)
    small = hs.make_model("roformer-paper", num_symbols=3, num_layers=1, num_heads=1, width=4)
    assert small.head.in_features == 4
    with pytest.raises(InputError, match=r"^model\.name: unknown 'roformer-papers'; did you mean 'roformer-paper'\?"):
        RunConfig(model="roformer-papers")


@pytest.mark.parametrize("name", sorted(registry.entries("experiment")))
def test_experiments_state_their_sizes(name: str) -> None:
    """What an experiment trains does not hang on defaults."""
    experiment = registry.entries("experiment")[name]
    made = experiment() if isinstance(experiment, type) else experiment
    for scale in made.scales:
        for label, data in made.plan(scale, **made.choices(scale)).items():
            model = data.get("model", {}) if isinstance(data, dict) else {}
            if model.get("name") in ("roformer", "decoder"):
                assert {"num_layers", "num_heads", "width"} <= set(model), (scale, label)


def test_a_large_model_is_announced_before_it_is_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = config_from_data(TINY)
    target = hs.make_process("random-hmm", num_states=2, num_symbols=3)
    count = cost_of(config.model, ModelIO(num_outputs=3, vocab_size=3, max_length=6), 6).parameters  # type: ignore[union-attr]
    assert target.num_symbols == 3

    def never(*args: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(training, "_engine", never)  # which may take steps of it, and stands before `build_model`
    monkeypatch.setattr(resources, "LARGE", count - 1)
    said = rf"^model: roformer has {count} parameters; .* GiB of memory, and 12 steps take about .* seconds on this"
    with pytest.warns(UserWarning, match=said), pytest.raises(KeyboardInterrupt):
        hs.train(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()
    monkeypatch.setattr(resources, "LARGE", count)
    with warnings.catch_warnings(action="error"), pytest.raises(KeyboardInterrupt):
        hs.train(config, tmp_path / "run")


def test_python_runs_within_the_backward_pass_of_a_long_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a signal is heard there: at each parameter."""
    calls = 0

    def counted(parameter: Any) -> None:
        nonlocal calls
        calls += 1

    monkeypatch.setattr(trainer, "_pause", counted)
    short = hs.train(
        config_from_data(TINY, {"training.num_steps": "3"}), tmp_path / "short", options=hs.TrainOptions(num_samples=4)
    )
    assert calls == 0
    monkeypatch.setattr(trainer, "LONG_STEP", 0.0)
    long = hs.train(
        config_from_data(TINY, {"training.num_steps": "3"}), tmp_path / "long", options=hs.TrainOptions(num_samples=4)
    )
    assert calls == 3 * len(list(long.model.parameters()))
    assert long.summary == short.summary  # and nothing else is changed


def test_a_long_evaluation_is_left_and_its_step_is_taken_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    whole = hs.train(config_from_data(TINY), tmp_path / "whole", options=hs.TrainOptions(num_samples=4))
    monkeypatch.setattr(trainer, "LONG_STEP", 0.0)

    class Signalled(Evaluation):
        def __call__(self, *args: Any) -> dict[str, Any]:
            signal.raise_signal(signal.SIGTERM)
            raise AssertionError("not left")

    with monkeypatch.context() as patch:
        patch.setattr(trainer, "Evaluation", Signalled)
        with pytest.raises(
            Interrupted, match=r"stopped by SIGTERM after step 5; continue with --resume \(resume=True in Python\)$"
        ) as stopped:
            hs.train(config_from_data(TINY), tmp_path / "run", options=hs.TrainOptions(num_samples=4))
    assert stopped.value.exit_code == 143
    assert RunDir.open(tmp_path / "run").checkpoint_steps() == [5]
    hs.train(config_from_data(TINY), tmp_path / "run", resume=True, options=hs.TrainOptions(num_samples=4))
    for name in ("metrics.jsonl", "done.json"):
        assert (tmp_path / "run" / name).read_bytes() == (whole.path / name).read_bytes()
    assert all(math.isfinite(row["loss"]) for row in read_journal(tmp_path / "run" / "metrics.jsonl"))
    assert capsys.readouterr().err == ""


def test_a_stopped_long_step_says_that_it_saves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    """Buffers of the module are those of before the step, too."""

    class Counting(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = torch.nn.Embedding(3, 3, _weight=torch.eye(3))
            self.seen: torch.Tensor
            self.register_buffer("seen", torch.zeros(()))

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            if self.training:
                self.seen += 1
                if self.seen == stop:
                    signal.raise_signal(signal.SIGINT)
            logits: torch.Tensor = self.table(tokens)
            return logits

    def trained(path: Path, resume: bool = False) -> torch.Tensor:
        config = config_from_data(TINY | {"model": {"name": "rnn"}})
        seen: torch.Tensor = hs.train(
            config, path, model=Counting(), resume=resume, options=hs.TrainOptions(num_samples=4)
        ).model.seen
        return seen

    stop = -1
    whole = trained(tmp_path / "whole")
    monkeypatch.setattr(trainer, "LONG_STEP", 0.0)
    stop = int(whole) - 3
    with pytest.raises(Interrupted, match="stopped by SIGINT after step 8;"):
        trained(tmp_path / "run")
    assert capsys.readouterr().err == "SIGINT: saving step 8; a second signal ends the process at once\n"
    stop = -1
    assert trained(tmp_path / "run", resume=True) == whole
