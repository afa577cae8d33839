"""Trainings with the compiled engine: the same as torch's, to be resumed and handed over, and chosen by rule."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from engine_cases import DECODER, RNN, config, parts
from hmmscope import TrainOptions
from hmmscope.datasets.targets import make_target
from hmmscope.errors import InputError, NonFiniteError, RefusedError
from hmmscope.lab.sweeps.grid import config_digest
from hmmscope.models.base import HookPoint
from hmmscope.runs import pipeline
from hmmscope.runs.compile_ahead import warm_up
from hmmscope.runs.config import RunConfig
from hmmscope.runs.dry_run import as_text, estimate
from hmmscope.runs.pipeline import engine_of, load_run, model_io_of
from hmmscope.runs.training import train
from hmmscope.storage.rundir import RunDir
from hmmscope.training import engines
from hmmscope.training.compiled_steps import Compiled
from hmmscope.training.distributed import ProcessGroup
from hmmscope.training.engines import make_engine
from hmmscope.training.state import Moments
from hmmscope.training.trainer import BatchSchedule

RECIPE = {"num_steps": 12, "checkpoint_every": 4, "evaluate_every": 0, "warmup_steps": 3}


def followed(engine: str, model: dict, steps: int, dtype: torch.dtype, **options) -> tuple[list[float], torch.Tensor]:
    """Losses of the steps of a training, and the weights after them."""
    run = config(model, num_steps=steps, warmup_steps=5, engine=engine, **options)
    net, dataset, asked = parts(run, dtype)
    made, moments = make_engine(net, run.training, ProcessGroup()), Moments()
    lessons = BatchSchedule(dataset, asked, run.training)
    losses = []
    for step in range(steps):
        batch, target = lessons.batch(step, made.rows(step))
        losses.append(made.take(moments, batch, target, step)[0])
    return losses, torch.cat([parameter.detach().flatten() for parameter in net.parameters()])


@pytest.mark.long
@pytest.mark.drawn(3)
@pytest.mark.parametrize(
    "options",
    [{}, {"gradient_clip": 0.0}, {"gradient_clip": 0.05}, {"schedule": "halving"}, {"num_trajectories": 20}],
    ids=str,
)
@pytest.mark.parametrize("model", [DECODER, RNN], ids=["decoder", "rnn"])
def test_the_same_trajectory_in_float64(model: dict, options: dict) -> None:
    ours, theirs = (followed(engine, model, 60, torch.float64, **options) for engine in ("compiled", "torch"))
    assert max(abs(a - b) for a, b in zip(ours[0], theirs[0], strict=True)) < 1e-11
    assert (ours[1] - theirs[1]).abs().max() < 1e-11


@pytest.mark.parametrize("model", [DECODER, RNN], ids=["decoder", "rnn"])
def test_a_last_grain_of_fewer_samples_adds_its_gradient(model: dict) -> None:
    options = {"batch": 6, "num_grains": 2, "num_trajectories": 9}  # an epoch ends with a batch of 3: grains of 2 and 1
    ours, theirs = (followed(engine, model, 6, torch.float64, **options) for engine in ("compiled", "torch"))
    assert (ours[1] - theirs[1]).abs().max() < 1e-11


@pytest.mark.long
def test_the_same_losses_at_first_in_float32() -> None:
    """Ten steps, of several layers: later the smallest differences grow, in torch alone as well."""
    model = {**DECODER, "num_layers": 4, "width": 64, "num_heads": 8}
    ours, theirs = (followed(engine, model, 10, torch.float32, length=17)[0] for engine in ("compiled", "torch"))
    assert ours == pytest.approx(theirs, rel=1e-5)


def test_the_same_along_a_curriculum() -> None:
    options = {"length": 8, "curriculum": [2, 4, 8], "batch": 18}
    ours, theirs = (followed(engine, DECODER, 9, torch.float64, **options) for engine in ("compiled", "torch"))
    assert (ours[1] - theirs[1]).abs().max() < 1e-11


@pytest.mark.parametrize("num_grains", [1, 2])
@pytest.mark.parametrize("model", [DECODER, RNN], ids=["decoder", "rnn"])
def test_the_same_on_sequences_of_unequal_lengths(model: dict, num_grains: int, tmp_path: Path) -> None:
    """Beyond the end of a sequence nothing is asked."""
    path = tmp_path / "ragged.txt"
    path.write_text("".join(f"{'01234'[k % 5 :]}{'430' * (k % 3)}{k % 5}\n" for k in range(30)))
    options = {
        "process": {"name": "data", "path": str(path), "unit": "characters"},
        "length": 8,
        "num_grains": num_grains,
    }
    ours, theirs = (followed(engine, model, 20, torch.float64, **options) for engine in ("compiled", "torch"))
    assert max(abs(a - b) for a, b in zip(ours[0], theirs[0], strict=True)) < 1e-11
    assert (ours[1] - theirs[1]).abs().max() < 1e-11


@pytest.mark.parametrize("model", [DECODER, RNN], ids=["decoder", "rnn"])
def test_the_same_on_sequences_with_gaps(model: dict, tmp_path: Path) -> None:
    """A missing observation is a token of its own, and nothing is asked there."""
    path = tmp_path / "gaps.txt"
    path.write_text("".join(f"{'01-34'[k % 5 :]}{'4-0' * (k % 3)}{k % 5}\n" for k in range(30)))
    data = {"name": "data", "path": str(path), "unit": "characters", "missing": ["-"], "symbols": list("01234")}
    ours, theirs = (followed(engine, model, 20, torch.float64, process=data) for engine in ("compiled", "torch"))
    assert max(abs(a - b) for a, b in zip(ours[0], theirs[0], strict=True)) < 1e-11
    assert (ours[1] - theirs[1]).abs().max() < 1e-11


def run_of(model: dict, engine: str, **options) -> RunConfig:
    return config(model, **{**RECIPE, "engine": engine, **options})


class _Stop(Exception):
    pass


def weights(path: Path) -> dict[str, bytes]:
    """The files of the last checkpoint."""
    newest = sorted(path.glob("checkpoints/step-*"))[-1]
    return {file.name: file.read_bytes() for file in newest.glob("*.safetensors")}


@pytest.mark.drawn(3)
@pytest.mark.parametrize(
    "model, options",
    [(DECODER, {}), (DECODER, {"precision": "bfloat16"}), (RNN, {}), (RNN, {"precision": "bfloat16"})],
    ids=["decoder", "decoder in bfloat16", "rnn", "rnn in bfloat16"],
)
@pytest.mark.parametrize("threads", [1, 2])
def test_stopped_and_resumed_gives_the_same_bytes(model: dict, options: dict, threads: int, tmp_path: Path) -> None:
    run = run_of(model, "compiled", num_threads=threads, batch=35, **options)
    for name in ("whole", "again"):
        train(run, tmp_path / name, options=TrainOptions(num_samples=4))
    original = RunDir.save_checkpoint

    def ends(self: RunDir, step: int, *args, **options) -> None:  # type: ignore[no-untyped-def]
        original(self, step, *args, **options)
        if step == 8:
            raise _Stop

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunDir, "save_checkpoint", ends)
        with pytest.raises(_Stop):
            train(run, tmp_path / "cut", options=TrainOptions(num_samples=4))
    train(run, tmp_path / "cut", resume=True, options=TrainOptions(num_samples=4))
    assert weights(tmp_path / "whole") == weights(tmp_path / "again") == weights(tmp_path / "cut")
    lines = [(tmp_path / name / "metrics.jsonl").read_text() for name in ("whole", "again", "cut")]
    assert lines[0] == lines[1] == lines[2]


@pytest.mark.parametrize("model", [DECODER, RNN], ids=["decoder", "rnn"])
@pytest.mark.parametrize("first, then", [("compiled", "torch"), ("torch", "compiled")])
def test_one_engine_goes_on_where_the_other_stopped(model: dict, first: str, then: str) -> None:
    """Half of a training with each, in float64 and through the tensors of a checkpoint, is a training with one."""
    whole = followed("torch", model, 20, torch.float64)[1]
    run = config(model, num_steps=20, warmup_steps=5)
    net, dataset, asked = parts(run, torch.float64)
    moments = Moments()
    for begin, engine in ((0, first), (10, then)):
        spec = replace(run.training, engine=engine)
        other, _, _ = parts(run, torch.float64)
        other.load_state_dict(net.state_dict())
        moments = {name: {k: v.clone() for k, v in moments.state[p].items()} for name, p in net.named_parameters()}
        made, taken = make_engine(other, spec, ProcessGroup()), Moments()
        if begin:
            for name, parameter in other.named_parameters():
                taken.state[parameter] = moments[name] | {"step": torch.tensor(float(begin))}
        lessons = BatchSchedule(dataset, asked, spec)
        for step in range(begin, begin + 10):
            batch, target = lessons.batch(step, made.rows(step))
            made.take(taken, batch, target, step)
        net, moments = other, taken
    found = torch.cat([parameter.detach().flatten() for parameter in net.parameters()])
    assert (found - whole).abs().max() < 1e-11


@pytest.mark.parametrize("engine", ["compiled", "torch"])
@pytest.mark.parametrize(
    "model, name", [(DECODER, "head.bias"), (RNN, "layers.0.weight_hh_l0")], ids=["decoder", "rnn"]
)
def test_numbers_that_are_not_finite_end_it(model: dict, name: str, engine: str) -> None:
    run = config(model, engine=engine)
    net, dataset, target = parts(run, torch.float32)
    dict(net.named_parameters())[name].data.view(-1)[3] = torch.nan
    made, moments = make_engine(net, run.training, ProcessGroup()), Moments()
    before = [parameter.detach().clone() for parameter in net.parameters()]
    with pytest.raises(NonFiniteError, match=r"step 1: loss .* not taken; look for NaN .* in the model's outputs"):
        made.take(moments, dataset[0:6], target, 0)
    after = list(net.parameters())
    assert all(torch.equal(a, b) or a.isnan().any() for a, b in zip(before, after, strict=True))


def test_a_gradient_that_is_not_finite_is_named() -> None:
    run = config(DECODER, engine="compiled")
    net, dataset, target = parts(run, torch.float32)
    engine, moments = Compiled(net, run.training), Moments()
    gradients = engine.gradients

    def spoilt(*args):  # type: ignore[no-untyped-def]
        loss = gradients(*args)
        net.head.weight.grad[0, 0] = torch.inf
        return loss

    engine.gradients = spoilt  # type: ignore[method-assign]
    with pytest.raises(NonFiniteError, match=r"step 3: gradient of head.weight is not finite"):
        engine.take(moments, dataset[0:6], target, 2)


# --------------------------------------------------------------------------------------------------------------------


def chosen(run: RunConfig, processes: int = 1) -> engines.Choice:
    target = make_target(run.target, run.process.build(), run.layout)
    return engine_of(run, model_io_of(run, target), processes)


@pytest.mark.parametrize(
    "model, training, why",
    [
        ({**DECODER, "dropout": 0.1}, {}, "model.dropout = 0.1"),
        ({**DECODER, "causal": False}, {}, "model.causal = false"),
        ({**DECODER, "width": 24, "num_heads": 1}, {}, "model.width: must be a multiple of 16, got 24"),
        ({**DECODER, "num_heads": 4}, {}, "model.num_heads: width / num_heads must be a multiple of 8"),
        ({"name": "lstm", "width": 16}, {}, "model.name = lstm"),
        ({"name": "gru", "width": 16}, {}, "model.name = gru"),
        (
            {"name": "linear-attention", "num_layers": 1, "width": 16, "num_heads": 2},
            {},
            "model.name = linear-attention",
        ),
        (DECODER, {"compile": "true"}, "training.compile = true"),
        (DECODER, {"block_length": 2}, "training.block_length = 2"),
        (DECODER, {"device": "cuda"}, "training.device = cuda"),
    ],
)
def test_what_is_not_covered_goes_to_torch_and_says_why(model: dict, training: dict, why: str) -> None:
    run = config(model, num_steps=10**6, **training)
    assert chosen(run).engine == "torch"
    assert why in chosen(run).reason
    asked = replace(run, training=replace(run.training, engine="compiled"))
    with pytest.raises(InputError, match=r"training.engine: compiled does not support") as error:
        chosen(asked)
    assert why in str(error.value)
    assert "\n" not in str(error.value)


def test_several_processes_go_to_torch() -> None:
    assert "2 processes" in chosen(config(DECODER, num_steps=10**6), 2).reason


def test_auto_takes_what_is_faster_on_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiled engine up to a tenth slower, whose digits are those of every machine."""
    monkeypatch.delenv(engines.FIXED)
    wide = config({**DECODER, "width": 256}, num_steps=10**6, length=500)
    for torch_seconds, engine in ((0.004, "compiled"), (0.00191, "compiled"), (0.00189, "torch")):
        found = engines.Timing(0.0021, torch_seconds, 64)
        monkeypatch.setattr(pipeline, "timing", lambda run, ports, seconds, found=found: found)
        assert chosen(wide).engine == engine
    assert chosen(wide).reason == (
        "torch is 1.11 times as fast on this machine: 2.1 ms compiled, 1.89 ms with torch per step of 64 samples"
    )
    assert chosen(replace(wide, training=replace(wide.training, engine="compiled"))).engine == "compiled"
    asked = []
    monkeypatch.setattr(pipeline, "timing", lambda run, ports, seconds: asked.append(seconds))
    assert "are too short for compiling to save time" in chosen(config(DECODER, num_steps=10)).reason
    assert len(asked) == 1
    assert chosen(config(DECODER, num_steps=10**6, engine="torch")).engine == "torch"
    assert chosen(config({**DECODER, "dropout": 0.1})).engine == "torch"
    assert len(asked) == 1


def test_an_environment_variable_fixes_what_auto_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "timing", lambda run, ports, seconds: pytest.fail("it was measured"))
    for word, long, short in (
        ("compiled", "compiled", "compiled"),
        ("torch", "torch", "torch"),
        ("unmeasured", "compiled", "torch"),
    ):
        monkeypatch.setenv(engines.FIXED, word)
        assert chosen(config(RNN, num_steps=10**6)).engine == long
        assert chosen(config(RNN, num_steps=10)).engine == short
        assert chosen(config({**DECODER, "dropout": 0.1}, num_steps=10**6)).engine == "torch"
    monkeypatch.setenv(engines.FIXED, "numba")
    with pytest.raises(InputError, match=r"HMMSCOPE_ENGINE: unknown .numba."):
        chosen(config(RNN))


def test_the_engine_is_recorded_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_of(RNN, "auto")
    assert "engine" not in run.to_data()["training"]
    train(run, tmp_path / "short", options=TrainOptions(num_samples=4))
    assert json.loads((tmp_path / "short/config.json").read_text())["training"]["engine"] == "torch"
    monkeypatch.setenv(engines.FIXED, "compiled")
    train(run, tmp_path / "a", options=TrainOptions(num_samples=4))
    recorded = json.loads((tmp_path / "a/config.json").read_text())
    assert recorded["training"]["engine"] == "compiled"
    assert load_run(tmp_path / "a").config.training.engine == "compiled"
    monkeypatch.setenv(engines.FIXED, "torch")
    train(run, tmp_path / "a", resume=True)  # "auto" is what the run was begun with
    with pytest.raises(RefusedError, match=r"training.engine: \"compiled\" -> \"torch\""):
        train(replace(run, training=replace(run.training, engine="torch")), tmp_path / "a", resume=True)


def test_a_run_from_before_engines_was_trained_by_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_of(RNN, "auto")
    create = RunDir.create
    with pytest.MonkeyPatch.context() as patch:

        def without(path: Path, data: dict, **options) -> RunDir:
            del data["training"]["engine"]
            return create(path, data, **options)

        patch.setattr(RunDir, "create", without)
        train(run, tmp_path / "old", options=TrainOptions(num_samples=4))
    assert "engine" not in json.loads((tmp_path / "old/config.json").read_text())["training"]
    monkeypatch.setenv(engines.FIXED, "compiled")
    train(run, tmp_path / "old", resume=True)
    with pytest.raises(RefusedError, match=r"training.engine"):
        train(replace(run, training=replace(run.training, engine="compiled")), tmp_path / "old", resume=True)


def test_the_name_of_a_run_does_not_depend_on_the_engine() -> None:
    digests = {config_digest(config(RNN, engine=engine)) for engine in ("auto", "compiled", "torch")}
    assert len(digests) == 1


def test_a_dry_run_says_which_engine_and_why() -> None:
    run = config(DECODER, num_steps=10**6)
    lines = as_text(estimate(run), run)
    assert "engine       compiled (HMMSCOPE_ENGINE is unmeasured)" in lines
    short = config({**DECODER, "dropout": 0.5}, num_steps=10)
    found = estimate(short, measure=True)
    assert any("torch (compiled does not support model.dropout = 0.5" in line for line in as_text(found, short))
    assert estimate(run, measure=True).steps_measured > 0


def test_hooked_activations_are_refused() -> None:
    run = config(DECODER, engine="compiled")
    net, _, _ = parts(run, torch.float32)
    tap = next(module for module in net.modules() if isinstance(module, HookPoint))
    tap.register_forward_hook(lambda *_: None)
    with pytest.raises(InputError, match=r"training.engine: compiled does not support forward hooks"):
        Compiled(net, run.training)


def test_warming_up_compiles_for_what_will_be_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = []
    take = Compiled.take
    monkeypatch.setattr(Compiled, "take", lambda self, *args: taken.append(type(self.model)) or take(self, *args))
    lstm = config({"name": "lstm", "width": 16}, num_steps=10**6)
    long = [config(model, num_steps=10**6) for model in (DECODER, RNN, DECODER)]
    warm_up([config(DECODER, num_steps=5), lstm, *long, config(RNN, num_steps=10**6, engine="torch")])
    assert [kind.__name__ for kind in taken] == ["Decoder", "Recurrent"]
