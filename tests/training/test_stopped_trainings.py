"""Trainings that stop: numbers that are not finite, damaged checkpoints, processes that have changed."""

import json
import math
import shutil
import signal
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from hmmscope import TrainOptions
from hmmscope.datasets.layouts import SequenceLayout
from hmmscope.datasets.process_dataset import ProcessDataset
from hmmscope.datasets.targets import make_target
from hmmscope.errors import DamagedError, InputError, NonFiniteError, RefusedError, ResourceError
from hmmscope.lab import cli
from hmmscope.lab.experiments.run_page import description
from hmmscope.models.base import make_model
from hmmscope.processes.hmm import HMM
from hmmscope.runs.config import RunConfig, config_from_data
from hmmscope.runs.pipeline import load_run
from hmmscope.runs.training import train
from hmmscope.storage import disk, store
from hmmscope.storage.rundir import RunDir, read_journal
from hmmscope.training import trainer
from hmmscope.training.signals import Interrupted, deferred_signals
from hmmscope.training.state import Moments
from training_cases import at_loss, config, own, partial, reseal, stopped, whole  # noqa: F401 - fixtures
from training_crash import CONFIG, EVERY, fingerprint, run


def test_no_update_is_taken() -> None:
    dataset = ProcessDataset(config().process.build(), layout=SequenceLayout(length=8), stream="train")
    model = make_model("roformer", num_symbols=4, num_layers=1, num_heads=2, width=8)
    moments = Moments()
    target, spec = make_target("observation", dataset.process, dataset.layout), config(warmup_steps=0).training
    trainer.train_step(model, moments, dataset[0:4], target, spec, 0)
    weights = {name: p.detach().clone() for name, p in model.named_parameters()}
    averages = [state["exp_avg"].clone() for state in moments.state.values()]
    model.head.bias.register_hook(lambda gradient: gradient * math.nan)
    with pytest.raises(NonFiniteError, match=r"step 2: gradient of head\.bias is not finite"):
        trainer.train_step(model, moments, dataset[4:8], target, spec, 1)
    assert all(torch.equal(p, weights[name]) for name, p in model.named_parameters())
    assert all(torch.equal(a["exp_avg"], b) for a, b in zip(moments.state.values(), averages, strict=True))


def test_exploding_rate_has_its_exit_code(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    (tmp_path / "config.yaml").write_text(json.dumps(CONFIG))
    arguments = ["train", str(tmp_path / "config.yaml"), "--out", str(tmp_path / "run"), "-q"]
    code = cli.main([*arguments, "--training.learning_rate", "1e38", "--training.warmup_steps", "0"])
    error = capsys.readouterr().err
    assert code == 6
    assert error.startswith("error[6] step ")
    assert error.count("\n") == 1
    assert "is not finite" in error
    records = read_journal(tmp_path / "run" / "metrics.jsonl")
    assert all(math.isfinite(record["loss"]) for record in records)
    with pytest.raises(InputError, match="no checkpoint"):
        load_run(tmp_path / "run")


def test_weights_that_overflow_are_not_saved(at_loss: Callable, partial: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    step = trainer.train_step

    def spoil(model: nn.Module, *args: Any) -> tuple[float, float]:
        found = step(model, *args)
        if args[-2] == 41:
            with torch.no_grad():
                model.head.bias[0] = math.inf
        return found

    monkeypatch.setattr(trainer, "train_step", spoil)
    with pytest.raises(NonFiniteError, match=r"step 42: model: tensor 'head\.bias' is not finite"):
        run(partial)
    assert RunDir.open(partial).checkpoint_steps() == [28, 35]


def test_a_signal_in_the_last_step_is_not_lost(partial: Path, whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    step = trainer.train_step

    def signalled(*given: Any) -> tuple[float, float]:
        if given[5] == config().training.num_steps - 1:
            signal.raise_signal(signal.SIGINT)
        return step(*given)

    with monkeypatch.context() as patch:
        patch.setattr(trainer, "train_step", signalled)
        with pytest.raises(Interrupted, match="stopped by SIGINT"):
            run(partial)
    assert RunDir.open(partial).done is None
    run(partial)
    assert fingerprint(partial) == fingerprint(whole)


def test_a_finished_run_that_cannot_be_written_is_read(whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.access", lambda path, mode: False)
    monkeypatch.setattr(disk, "take_lock", lambda path: pytest.fail("written"))
    assert train(config(), whole, resume=True).summary == RunDir.open(whole).done


def test_a_signal_that_nobody_answered_is_given_on() -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background of a shell ignores it
    try:
        with pytest.raises(KeyboardInterrupt), deferred_signals():
            signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_checkpoint_is_saved_by_time(tmp_path: Path, whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer, "SECONDS_WITHOUT_CHECKPOINT", -1.0)
    saved, save = [], trainer.save_state

    def counted(*given: Any) -> None:
        saved.append(given[3])
        save(*given)

    monkeypatch.setattr(trainer, "save_state", counted)
    run(tmp_path / "run")
    assert saved == list(range(1, config().training.num_steps + 1))
    assert (tmp_path / "run" / "done.json").read_bytes() == (whole / "done.json").read_bytes()


# --------------------------------------------------------------------------------------------------------------------
# Damage


@pytest.mark.long
@pytest.mark.drawn(5)
@pytest.mark.parametrize("name", ["model.safetensors", "optimiser.safetensors", "state.json", "manifest.json"])
@pytest.mark.parametrize("how", ["flipped", "short", "missing"])
def test_damaged_checkpoint_falls_back(name: str, how: str, partial: Path, whole: Path) -> None:
    file = partial / "checkpoints" / f"step-{5 * EVERY:09d}" / name
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 4
    if how == "missing":
        file.unlink()
    else:
        file.write_bytes(bytes(data) if how == "flipped" else bytes(data[: len(data) // 2]))
    with pytest.warns(UserWarning, match="skipped checkpoint: .*step-000000035"):
        found = load_run(partial)
    previous = RunDir.open(partial).load_checkpoint(4 * EVERY)
    assert torch.equal(found.model.head.weight, previous[1]["model"]["head.weight"])
    with pytest.warns(UserWarning, match=r"step-000000035") as warned:
        run(partial)
    assert any("set aside" in str(one.message) for one in warned)
    assert fingerprint(partial) == fingerprint(whole)


def test_no_whole_checkpoint(partial: Path) -> None:
    for step in (28, 35):
        (partial / "checkpoints" / f"step-{step:09d}" / "model.safetensors").write_bytes(b"?")
    with (
        pytest.warns(UserWarning, match="skipped"),
        pytest.raises(DamagedError, match="none of 2 checkpoints is complete"),
    ):
        load_run(partial)


def test_weights_of_another_shape(partial: Path) -> None:
    data = json.loads((partial / "config.json").read_text())
    data["model"]["mlp_ratio"] = 3
    (partial / "config.json").write_text(json.dumps(data))
    with pytest.raises(DamagedError, match=r"config\.json"):
        load_run(partial)
    reseal(partial)
    with pytest.raises(DamagedError, match=r"blocks\.0\.mlp\.hidden\.weight is missing, unknown or has another shape"):
        load_run(partial)


@pytest.mark.parametrize("group", ["model", "optimiser"])
@pytest.mark.parametrize("how", ["group missing", "name missing", "name unknown", "shape"])
def test_checkpoints_made_by_strangers(group: str, how: str, partial: Path) -> None:
    folder = partial / "checkpoints" / f"step-{5 * EVERY:09d}"
    file = folder / f"{group}.safetensors"
    tensors = store.read_tensors(file)
    name = next(iter(tensors))
    if how == "name missing":
        del tensors[name]
    elif how == "name unknown":
        tensors["surplus"] = torch.zeros(1)
    else:
        tensors[name] = torch.zeros(3)
    file.unlink()
    if how != "group missing":
        store.write_tensors(file, tensors)
    (folder / "manifest.json").unlink()
    store.write_manifest(folder)
    with pytest.raises(DamagedError, match=f"{group}.safetensors: .* is missing, unknown or has another shape"):
        run(partial)


def test_process_is_checked_by_its_digest(partial: Path) -> None:
    data = json.loads((partial / "seeds.json").read_text())
    true = data["process_digest"]
    data["process_digest"] = "0" * 64
    (partial / "seeds.json").write_text(json.dumps(data))
    with pytest.raises(DamagedError, match=r"seeds\.json"):
        load_run(partial)
    reseal(partial)
    for read in (lambda: load_run(partial), lambda: run(partial)):
        with pytest.raises(
            DamagedError, match=rf"process differs from that in training .*{true[:12]} instead of 0{{12}}"
        ):
            read()
    data["process_digest"] = true
    (partial / "seeds.json").write_text(json.dumps(data))
    reseal(partial)
    run(partial)  # and the lock was given back


def test_a_run_keeps_its_own_process(own: tuple[Path, RunConfig], tmp_path: Path) -> None:
    file, configured = own
    trained = train(configured, tmp_path / "run", options=TrainOptions(num_samples=8))
    file.unlink()
    shutil.move(tmp_path / "run", tmp_path / "moved")
    found = load_run(tmp_path / "moved")
    assert found.process.digest == trained.process.digest
    assert getattr(found.process, "symbols", None) == ("a", "b", "c")
    assert torch.equal(found.dataset()[0:5].tokens, trained.dataset()[0:5].tokens)
    assert all(torch.equal(a, b) for a, b in zip(found.model.parameters(), trained.model.parameters(), strict=True))


def test_its_own_process_is_kept_also_when_it_was_killed_before(own: tuple[Path, RunConfig], tmp_path: Path) -> None:
    file, configured = own
    process = configured.process.build()
    resolved = replace(configured, training=replace(configured.training, device="cpu"))
    seeds = {"run": configured.seed, "process_digest": process.digest}
    RunDir.create(tmp_path / "run", resolved.to_data(), seeds=seeds).unlock()  # and then it was killed
    train(configured, tmp_path / "run", resume=True, options=TrainOptions(num_samples=8))
    file.unlink()
    assert load_run(tmp_path / "run").process.digest == process.digest


def test_a_changed_process_file_is_noticed(own: tuple[Path, RunConfig], tmp_path: Path) -> None:
    file, configured = own
    train(configured, tmp_path / "run", options=TrainOptions(num_samples=8))
    file.unlink()
    HMM([0.5, 0.5], [[0.9, 0.1], [0.2, 0.8]], [[0.7, 0.1, 0.2], [0.1, 0.2, 0.7]]).save(file)
    with pytest.raises(RefusedError, match=r"process\.digest"):
        train(configured, tmp_path / "run", resume=True)


def test_a_damaged_own_process_is_noticed(own: tuple[Path, RunConfig], tmp_path: Path) -> None:
    _, configured = own
    train(configured, tmp_path / "run", options=TrainOptions(num_samples=8))
    copy = tmp_path / "run" / "process.safetensors"
    data = copy.read_bytes()
    copy.write_bytes(data[:-8] + bytes(8))
    with pytest.raises((DamagedError, InputError)):
        load_run(tmp_path / "run")
    copy.write_bytes(data[:100])
    with pytest.raises(DamagedError):
        load_run(tmp_path / "run")
    (tmp_path / "elsewhere").write_bytes(data)
    copy.unlink()
    copy.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(DamagedError, match="a symbolic link, which is not followed"):
        load_run(tmp_path / "run")


def test_a_linked_evaluation_is_not_read(whole: Path, tmp_path: Path) -> None:
    run = load_run(whole)
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / "evaluation.jsonl").symlink_to(whole / "evaluation.jsonl")
    with pytest.raises(DamagedError, match="a symbolic link, which is not followed"):
        description(replace(run, path=tmp_path / "linked"))


def test_nothing_is_left_of_what_cannot_begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unanswered = CONFIG | {"process": {"name": "matmul"}}
    with pytest.raises(InputError, match="no exact"):
        train(config_from_data(unanswered), tmp_path / "run")
    if not torch.cuda.is_available():
        with pytest.raises(ResourceError, match="cuda was requested"):
            train(config(device="cuda"), tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


def test_warnings_are_errors_in_an_undisturbed_run(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(config(num_steps=3), tmp_path / "run", options=TrainOptions(num_samples=4))
