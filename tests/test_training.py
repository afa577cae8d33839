"""Training: the recipe's numbers, exact resumption after any interruption, and what it refuses."""

import json
import math
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from hmmscope import cli, store
from hmmscope.analysis.curves import evaluate
from hmmscope.config import RunConfig, config_from_data
from hmmscope.corpora.corpus import Batch, Corpus
from hmmscope.corpora.layouts import Prompts, Sequences
from hmmscope.errors import DamagedError, InputError, NonFiniteError, RefusedError, ResourceError
from hmmscope.models.make import make_model
from hmmscope.pipeline import load_run, train
from hmmscope.processes.hmm import HMM
from hmmscope.rundir import RunDir, read_journal
from hmmscope.training import trainer
from hmmscope.training.objectives import next_observation_loss
from hmmscope.training.schedules import learning_rate
from hmmscope.training.spec import TrainingSpec
from training_crash import CONFIG, EVERY, fingerprint, run

SCRIPT = Path(__file__).with_name("training_crash.py")


class Stop(BaseException):
    """Ends a run as abruptly as an exception can."""


def config(**training: Any) -> RunConfig:
    """The configuration of the crash tests, with other training numbers."""
    return config_from_data(CONFIG | {"training": CONFIG["training"] | training})


@pytest.fixture
def at_loss(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, Callable[[torch.Tensor], torch.Tensor]], None]:
    """Puts a function in place of the loss's value at its n-th computation."""
    loss = trainer.next_observation_loss

    def plant(number: int, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
        calls = 0

        def changed(*args: Any) -> torch.Tensor:
            nonlocal calls
            calls += 1
            return change(loss(*args)) if calls == number else loss(*args)

        monkeypatch.setattr(trainer, "next_observation_loss", changed)

    return plant


def stop(loss: torch.Tensor) -> torch.Tensor:
    raise Stop


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nothing interrupted."""
    path = tmp_path_factory.mktemp("whole") / "run"
    run(path)
    return path


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that ended in step 39, with checkpoints of steps 28 and 35."""
    path = tmp_path_factory.mktemp("stopped") / "run"
    with pytest.MonkeyPatch.context() as patch:
        loss, calls = trainer.next_observation_loss, 0

        def counted(*args: Any) -> torch.Tensor:
            nonlocal calls
            calls += 1
            return stop(loss(*args)) if calls == 40 else loss(*args)  # one call was the evaluation of step 20

        patch.setattr(trainer, "next_observation_loss", counted)
        with pytest.raises(Stop):
            run(path)
    assert RunDir.open(path).checkpoint_steps() == [4 * EVERY, 5 * EVERY]
    assert len(read_journal(path / "metrics.jsonl")) == 38
    return path


@pytest.fixture
def partial(stopped: Path, tmp_path: Path) -> Path:
    """A copy of it, under another name."""
    return Path(shutil.copytree(stopped, tmp_path / "copied"))


def files(path: Path) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in sorted(path.rglob("*")) if file.is_file()}


def reseal(folder: Path) -> None:
    """Make the manifest true of files that were changed: a folder made by somebody else, not a damaged one."""
    names = json.loads((folder / "manifest.json").read_text())["files"]
    aside = folder.parent / "aside"
    aside.mkdir()
    for name in names:
        shutil.copy(folder / name, aside / name)
    store.write_manifest(aside)
    shutil.copy(aside / "manifest.json", folder / "manifest.json")
    shutil.rmtree(aside)


# --------------------------------------------------------------------------------------------------------------------
# The recipe


def test_schedule_by_hand() -> None:
    spec = TrainingSpec(num_steps=9, warmup_steps=4, learning_rate=0.8, final_fraction=0.5)
    # Warm-up 1/4 .. 4/4; then 0.5 + 0.5 * (1 + cos(pi * i / 4)) / 2 for i = 0 .. 4.
    expected = [0.2, 0.4, 0.6, 0.8]
    expected += [0.8 * x for x in (1.0, 0.75 + 0.25 * math.sqrt(0.5), 0.75, 0.75 - 0.25 * math.sqrt(0.5), 0.5)]
    assert [learning_rate(spec, step) for step in range(9)] == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("warmup_steps", [0, 1, 5, 6, 100])
def test_schedule_is_positive_and_never_above_its_peak(warmup_steps: int) -> None:
    spec = TrainingSpec(num_steps=6, warmup_steps=warmup_steps, learning_rate=0.3)
    rates = [learning_rate(spec, step) for step in range(6)]
    assert all(0 < rate <= 0.3 for rate in rates)
    if warmup_steps < 5:
        assert rates[-1] == pytest.approx(0.3 * spec.final_fraction)


def test_schedule_of_a_single_step() -> None:
    assert learning_rate(TrainingSpec(num_steps=1, warmup_steps=0, learning_rate=0.3), 0) == 0.3


class Constant(nn.Module):
    """Logits by column: row c of a table, whatever the tokens are."""

    def __init__(self, table: torch.Tensor) -> None:
        super().__init__()
        self.table = table

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.table[: tokens.shape[1]].expand(len(tokens), -1, -1)


def test_loss_counts_observations_and_never_delimiters() -> None:
    layout = Prompts(num_demonstrations=1, demonstration_length=2, test_length=2)
    observations = torch.tensor([[0, 1, 1, 0]])
    batch = Batch(layout.tokens(observations, 2), observations, observations, None)
    assert batch.tokens.tolist() == [[2, 0, 1, 2, 1, 0]]
    odds = torch.tensor([3.0, 1.0, 9.0, 4.0, 0.5, 77.0])  # odds of symbol 1 against 0, by column
    table = torch.stack([torch.zeros(6), odds.log()], 1)
    # Columns 0, 1, 3, 4 predict 0, 1, 1, 0; column 2 would predict the delimiter, column 5 nothing.
    by_hand = -sum(math.log(p) for p in (1 / 4, 1 / 2, 4 / 5, 2 / 3)) / 4
    assert next_observation_loss(Constant(table), batch, layout).item() == pytest.approx(by_hand, rel=1e-6)


def test_loss_of_sequences_leaves_out_the_first_observation() -> None:
    layout = Sequences(length=3)
    observations = torch.tensor([[1, 0, 1]])
    batch = Batch(observations, observations, observations, None)
    table = torch.stack([torch.zeros(2), torch.tensor([3.0, 1.0]).log()], 1)
    by_hand = -(math.log(1 / 4) + math.log(1 / 2)) / 2
    assert next_observation_loss(Constant(table), batch, layout).item() == pytest.approx(by_hand, rel=1e-6)


def test_evaluation_loss_is_the_loss_of_all_samples_at_once() -> None:
    corpus = Corpus(config().process.build(), layout=Sequences(length=8), seed=1, stream="evaluate")
    model = make_model("roformer", num_symbols=4, num_layers=1, num_heads=2, width=8)
    batch = corpus[0:150]  # in pieces of 64, 64 and 22
    expected = next_observation_loss(model, batch, corpus.layout).item()
    found = trainer.evaluation_loss(model, batch, corpus, torch.device("cpu"))
    assert found == pytest.approx(expected, rel=1e-6)


def test_learns_and_does_not_beat_the_optimum(tmp_path: Path) -> None:
    hmm = HMM([0.5, 0.5, 0.0], [[0.0, 0.9, 0.1], [0.1, 0.0, 0.9], [0.9, 0.1, 0.0]], np.eye(3) * 0.85 + 0.05)
    hmm.save(tmp_path / "cycle.json")
    data = {
        "process": {"name": "file", "path": str(tmp_path / "cycle.json")},
        "layout": {"name": "sequences", "length": 24},
        "model": {"name": "roformer", "num_layers": 1, "num_heads": 2, "width": 16},
        "training": {"num_steps": 200, "batch_size": 16, "learning_rate": 0.01, "warmup_steps": 10, "device": "cpu"},
    }
    trained = train(config_from_data(data), tmp_path / "run")
    score = evaluate(trained.model, trained.corpus(), num_samples=256)

    def z(left: str, right: str) -> float:
        difference = (score.measures[left]["loss"] - score.measures[right]["loss"]).mean(1)
        return float(difference.mean() / (difference.std(ddof=1) / math.sqrt(len(difference))))

    assert z("model", "order-0") < -20
    assert z("model", "optimum") > -4
    assert score.invalid is None
    assert trained.summary is not None
    assert trained.summary["invalid"] is None
    assert trained.summary["excess_low"] <= trained.summary["excess"] <= trained.summary["excess_high"]
    records = read_journal(tmp_path / "run" / "metrics.jsonl")
    assert [record["step"] for record in records] == list(range(1, 201))
    assert records[0]["loss"] == pytest.approx(math.log(3), abs=0.1)
    assert records[-1]["loss"] < records[0]["loss"] - 0.2
    assert [record["step"] for record in records if "evaluation_loss" in record] == [100, 200]


def test_every_step_has_samples_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen = []
    loss = trainer.next_observation_loss

    def spy(model: nn.Module, batch: Batch, layout: Sequences) -> torch.Tensor:
        seen.append(batch.tokens)
        return loss(model, batch, layout)

    monkeypatch.setattr(trainer, "next_observation_loss", spy)
    trained = train(config(num_steps=5, evaluate_every=0), tmp_path / "run")
    assert torch.equal(torch.cat(seen), trained.corpus("train")[0:20].tokens)


# --------------------------------------------------------------------------------------------------------------------
# Interrupted and resumed


@pytest.fixture(scope="module")
def crashes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict]:
    """Reports of the script, by mode."""
    command = [sys.executable, str(SCRIPT), str(tmp_path_factory.mktemp("crashes"))]
    command += ["kills=22", "saves=8", "signals=4", "limit=3"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_killed_at_random_instants(crashes: dict[str, dict]) -> None:
    report = crashes["kills"]
    assert report["different"] == []
    assert report["killed"] >= 22
    assert report["files"] == 7  # model, optimiser, state, manifest; metrics, evaluation, summary
    assert report["instants"] >= 4


def test_killed_inside_a_checkpoint(crashes: dict[str, dict]) -> None:
    report = crashes["saves"]
    assert report["different"] == []
    assert report["operations"] > 20
    assert [EVERY, 2 * EVERY] in report["kept"]  # killed before the commit
    assert [2 * EVERY, 3 * EVERY] in report["kept"]  # and after it


def test_signals(crashes: dict[str, dict]) -> None:
    report = crashes["signals"]
    assert report["wrong"] == []
    assert len(report["chosen"]) == 6
    for name, found in report["chosen"].items():
        assert found["same"], name
        assert "Traceback" not in found["error"]
    for signal, code in (("SIGTERM", 143), ("SIGINT", 130)):
        for step in (1, 14):
            found = report["chosen"][f"{signal} {step}"]
            assert found["code"] == code
            assert found["steps"][-1] == step
            assert found["error"].startswith(f"error[{code}] ")
            assert found["error"].endswith(f"stopped by {signal} after step {step}; go on with --resume\n")
    assert report["chosen"]["SIGTERM SIGTERM 10"]["code"] == -15  # the second one does not wait
    assert report["chosen"]["SIGTERM last"]["code"] == 0  # nothing was left to do


def test_disk_full_in_training(crashes: dict[str, dict]) -> None:
    results = crashes["limit"]["results"]
    assert len(results) == 3
    for result in results:
        assert result["code"] == 5
        assert result["error"].startswith("error[5] ")
        assert result["error"].count("\n") == 1
        assert result["step"] == 2 * EVERY
        assert result["same"]


def test_stopped_copied_and_resumed(partial: Path, whole: Path) -> None:
    run(partial)
    assert fingerprint(partial) == fingerprint(whole)


def test_fingerprints_differ_where_runs_differ(partial: Path, whole: Path) -> None:
    """The comparison of the crash tests can fail."""
    run(partial)
    (partial / "metrics.jsonl").write_bytes((partial / "metrics.jsonl").read_bytes().replace(b"7", b"8", 1))
    assert fingerprint(partial) != fingerprint(whole)


def test_a_done_run_is_loaded(whole: Path) -> None:
    before = files(whole)
    again = train(config(), whole, resume=True, num_samples=16)
    assert files(whole) == before
    assert again.summary == load_run(whole).summary
    assert all(torch.equal(a, b) for a, b in zip(again.model.parameters(), load_run(whole).model.parameters()))  # noqa: B905


def test_resume_without_a_run_begins_one(tmp_path: Path, whole: Path) -> None:
    run(tmp_path / "new")
    assert fingerprint(tmp_path / "new") == fingerprint(whole)


def test_existing_folder_is_refused_and_untouched(whole: Path, tmp_path: Path) -> None:
    before = files(whole)
    with pytest.raises(RefusedError, match="exists"):
        train(config(), whole)
    assert files(whole) == before
    (tmp_path / "file").write_text("mine")
    with pytest.raises(RefusedError, match="exists"):
        train(config(), tmp_path / "file")
    with pytest.raises(InputError, match="no such run folder"):
        train(config(), tmp_path / "file", resume=True)


def test_a_run_in_use_is_refused(partial: Path) -> None:
    with RunDir.open(partial, lock=True), pytest.raises(RefusedError, match="in use by process"):
        run(partial)
    run(partial)


MUTATIONS: dict[str, Any] = {
    "process.num_states": 4,
    "process.num_symbols": 5,
    "process.transition_concentration": 2.0,
    "process.emission_concentration": 2.0,
    "process.seed": 2,
    "layout.length": 9,
    "layout.placeholder": True,
    "model.num_layers": 2,
    "model.num_heads": 1,
    "model.width": 12,
    "model.mlp_ratio": 3,
    "model.rotary_base": 100.0,
    "training.num_steps": 61,
    "training.batch_size": 5,
    "training.learning_rate": 0.011,
    "training.warmup_steps": 6,
    "training.final_fraction": 0.1,
    "training.betas": [0.9, 0.99],
    "training.weight_decay": 0.02,
    "training.gradient_clip": 2.0,
    "training.evaluate_every": 10,
    "training.evaluate_samples": 9,
    "training.checkpoint_every": 8,
    "training.num_threads": 2,
    "seed": 4,
}


def flat(data: dict[str, Any], where: str = "") -> dict[str, Any]:
    found = {}
    for key, value in data.items():
        found |= flat(value, f"{where}{key}.") if isinstance(value, dict) else {f"{where}{key}": value}
    return found


def test_every_field_is_mutated_once() -> None:
    fields = set(flat(config().to_data())) - {"process.name", "layout.name", "model.name", "training.device"}
    assert set(MUTATIONS) == fields


@pytest.mark.parametrize("field", MUTATIONS)
def test_changed_configuration_is_refused(field: str, partial: Path) -> None:
    data = json.loads(json.dumps(config().to_data()))
    section, _, key = field.partition(".")
    before = data[section][key] if key else data[section]
    if key:
        data[section][key] = MUTATIONS[field]
    else:
        data[section] = MUTATIONS[field]
    state = files(partial)
    with pytest.raises(RefusedError) as refused:
        train(config_from_data(data), partial, resume=True)
    assert f"{field}: {json.dumps(before)} -> {json.dumps(MUTATIONS[field])}" in str(refused.value)
    assert "\n" not in str(refused.value)
    assert files(partial) == state


# --------------------------------------------------------------------------------------------------------------------
# Numbers that are not finite


@pytest.mark.parametrize("planted", [math.nan, math.inf, -math.inf])
def test_bad_loss_stops_before_the_update(
    planted: float, at_loss: Callable, tmp_path: Path, whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_loss(17, lambda loss: loss * planted)
    with pytest.raises(NonFiniteError, match=r"^step 17: loss is not finite .*step was not taken"):
        run(tmp_path / "run")
    assert NonFiniteError.exit_code == 6
    assert RunDir.open(tmp_path / "run").checkpoint_steps() == [7, 14]
    assert len(read_journal(tmp_path / "run" / "metrics.jsonl")) == 16
    monkeypatch.undo()
    run(tmp_path / "run")
    assert fingerprint(tmp_path / "run") == fingerprint(whole)


def test_no_update_is_taken() -> None:
    corpus = Corpus(config().process.build(), layout=Sequences(length=8), stream="train")
    model = make_model("roformer", num_symbols=4, num_layers=1, num_heads=2, width=8)
    optimiser = torch.optim.AdamW(model.parameters(), lr=0.1)
    trainer._step(model, optimiser, corpus[0:4], corpus, 0.1, 1.0, 0)
    weights = {name: p.detach().clone() for name, p in model.named_parameters()}
    moments = [state["exp_avg"].clone() for state in optimiser.state.values()]
    model.head.bias.register_hook(lambda gradient: gradient * math.nan)
    with pytest.raises(NonFiniteError, match=r"step 2: gradient of head\.bias is not finite"):
        trainer._step(model, optimiser, corpus[4:8], corpus, 0.1, 1.0, 1)
    assert all(torch.equal(p, weights[name]) for name, p in model.named_parameters())
    assert all(torch.equal(a["exp_avg"], b) for a, b in zip(optimiser.state.values(), moments, strict=True))


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
    step = trainer._step

    def spoil(model: nn.Module, *args: Any) -> tuple[float, float]:
        found = step(model, *args)
        if args[-1] == 41:
            with torch.no_grad():
                model.head.bias[0] = math.inf
        return found

    monkeypatch.setattr(trainer, "_step", spoil)
    with pytest.raises(NonFiniteError, match=r"step 42: model: 'head\.bias' is not finite"):
        run(partial)
    assert RunDir.open(partial).checkpoint_steps() == [28, 35]


# --------------------------------------------------------------------------------------------------------------------
# Damage


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
    with pytest.warns(UserWarning, match="checkpoint passed over: .*step-000000035"):
        found = load_run(partial)
    previous = RunDir.open(partial).load_checkpoint(4 * EVERY)
    assert previous is not None
    assert torch.equal(found.model.head.weight, previous[1]["model"]["head.weight"])
    with pytest.warns(UserWarning, match=r"step-000000035") as warned:
        run(partial)
    assert any("set aside" in str(one.message) for one in warned)
    assert fingerprint(partial) == fingerprint(whole)


def test_no_whole_checkpoint(partial: Path) -> None:
    for step in (28, 35):
        (partial / "checkpoints" / f"step-{step:09d}" / "model.safetensors").write_bytes(b"?")
    with (
        pytest.warns(UserWarning, match="passed over"),
        pytest.raises(DamagedError, match="none of 2 checkpoints is whole"),
    ):
        load_run(partial)


def test_weights_of_another_shape(partial: Path) -> None:
    data = json.loads((partial / "config.json").read_text())
    data["model"]["mlp_ratio"] = 3
    (partial / "config.json").write_text(json.dumps(data))
    with pytest.raises(DamagedError, match=r"config\.json"):
        load_run(partial)
    reseal(partial)
    with pytest.raises(DamagedError, match=r"blocks\.0\.mlp\.hidden\.weight is missing, unknown or of another shape"):
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
    with pytest.raises(DamagedError, match=f"{group}.safetensors: .* is missing, unknown or of another shape"):
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
        with pytest.raises(DamagedError, match=rf"process here differs .*{true[:12]} instead of 0{{12}}"):
            read()
    data["process_digest"] = true
    (partial / "seeds.json").write_text(json.dumps(data))
    reseal(partial)
    run(partial)  # and the lock was given back


# --------------------------------------------------------------------------------------------------------------------
# A user's own process


@pytest.fixture
def own(tmp_path: Path) -> tuple[Path, RunConfig]:
    file = tmp_path / "mine.json"
    HMM([0.5, 0.5], [[0.9, 0.1], [0.2, 0.8]], [[0.7, 0.2, 0.1], [0.1, 0.2, 0.7]], symbols=["a", "b", "c"]).save(file)
    data = CONFIG | {"process": {"name": "file", "path": str(file)}}
    return file, config_from_data(data, {"training.num_steps": "9"})


def test_a_run_keeps_its_own_process(own: tuple[Path, RunConfig], tmp_path: Path) -> None:
    file, configured = own
    trained = train(configured, tmp_path / "run", num_samples=8)
    file.unlink()
    shutil.move(tmp_path / "run", tmp_path / "moved")
    found = load_run(tmp_path / "moved")
    assert found.process.digest == trained.process.digest
    assert getattr(found.process, "symbols", None) == ("a", "b", "c")
    assert torch.equal(found.corpus()[0:5].tokens, trained.corpus()[0:5].tokens)
    assert all(torch.equal(a, b) for a, b in zip(found.model.parameters(), trained.model.parameters(), strict=True))


def test_its_own_process_is_kept_also_when_it_was_killed_before(own: tuple[Path, RunConfig], tmp_path: Path) -> None:
    file, configured = own
    process = configured.process.build()
    resolved = replace(configured, training=replace(configured.training, device="cpu"))
    seeds = {"run": configured.seed, "process_digest": process.digest}
    RunDir.create(tmp_path / "run", resolved.to_data(), seeds=seeds).unlock()  # and then it was killed
    train(configured, tmp_path / "run", resume=True, num_samples=8)
    file.unlink()
    assert load_run(tmp_path / "run").process.digest == process.digest


def test_a_changed_process_file_is_noticed(own: tuple[Path, RunConfig], tmp_path: Path) -> None:
    file, configured = own
    train(configured, tmp_path / "run", num_samples=8)
    file.unlink()
    HMM([0.5, 0.5], [[0.9, 0.1], [0.2, 0.8]], [[0.7, 0.1, 0.2], [0.1, 0.2, 0.7]]).save(file)
    with pytest.raises(DamagedError, match="process here differs"):
        train(configured, tmp_path / "run", resume=True)


def test_a_damaged_own_process_is_noticed(own: tuple[Path, RunConfig], tmp_path: Path) -> None:
    _, configured = own
    train(configured, tmp_path / "run", num_samples=8)
    copy = tmp_path / "run" / "process.safetensors"
    data = copy.read_bytes()
    copy.write_bytes(data[:-8] + bytes(8))
    with pytest.raises((DamagedError, InputError)):
        load_run(tmp_path / "run")
    copy.write_bytes(data[:100])
    with pytest.raises(DamagedError):
        load_run(tmp_path / "run")


def test_nothing_is_left_of_what_cannot_begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fresh = CONFIG | {"process": {"name": "fresh-hmms", "num_states": 2, "num_symbols": 3}}
    with pytest.raises(InputError, match="no exact"):
        train(config_from_data(fresh), tmp_path / "run")
    if not torch.cuda.is_available():
        with pytest.raises(ResourceError, match="cuda was asked for"):
            train(config(device="cuda"), tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


def test_warnings_are_errors_in_an_undisturbed_run(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(config(num_steps=3), tmp_path / "run", num_samples=4)
