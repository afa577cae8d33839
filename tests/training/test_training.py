"""Training: the recipe's numbers, exact resumption after any interruption, and what it refuses."""

import json
import math
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import forking
from hmmscope import TrainOptions
from hmmscope.analysis.curves import evaluate
from hmmscope.datasets.layouts import PromptLayout, SequenceLayout
from hmmscope.datasets.process_dataset import Batch, ProcessDataset
from hmmscope.datasets.targets import make_target
from hmmscope.errors import InputError, NonFiniteError, RefusedError
from hmmscope.models.base import make_model
from hmmscope.processes.hmm import HMM
from hmmscope.runs.config import config_from_data
from hmmscope.runs.pipeline import load_run, untrained_model
from hmmscope.runs.training import train
from hmmscope.storage.rundir import RunDir, read_journal
from hmmscope.training import updates
from hmmscope.training.evaluation import Evaluation
from hmmscope.training.schedules import learning_rate
from hmmscope.training.spec import TrainingSpec
from hmmscope.training.state import Moments
from hmmscope.training.updates import target_loss
from training_cases import MUTATIONS, Constant, at_loss, config, crashes, files, flat, partial, stopped, whole  # noqa: F401 - fixtures
from training_crash import EVERY, fingerprint, run

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


def coin() -> HMM:
    return HMM([1.0], [[1.0]], [[0.5, 0.5]])


def test_loss_counts_observations_and_never_delimiters() -> None:
    layout = PromptLayout(num_demonstrations=1, demonstration_length=2, test_length=2)
    observations = torch.tensor([[0, 1, 1, 0]])
    batch = Batch(layout.tokens(observations, 2), observations, observations, None)
    assert batch.tokens.tolist() == [[2, 0, 1, 2, 1, 0]]
    odds = torch.tensor([3.0, 1.0, 9.0, 4.0, 0.5, 77.0])  # odds of symbol 1 against 0, by column
    table = torch.stack([torch.zeros(6), odds.log()], 1)
    # Columns 0, 1, 3, 4 predict 0, 1, 1, 0; column 2 would predict the delimiter, column 5 nothing.
    by_hand = -sum(math.log(p) for p in (1 / 4, 1 / 2, 4 / 5, 2 / 3)) / 4
    assert target_loss(Constant(table), batch, make_target("observation", coin(), layout)).item() == pytest.approx(
        by_hand, rel=1e-6
    )


def test_loss_of_sequences_leaves_out_the_first_observation() -> None:
    layout = SequenceLayout(length=3)
    observations = torch.tensor([[1, 0, 1]])
    batch = Batch(observations, observations, observations, None)
    table = torch.stack([torch.zeros(2), torch.tensor([3.0, 1.0]).log()], 1)
    by_hand = -(math.log(1 / 4) + math.log(1 / 2)) / 2
    assert target_loss(Constant(table), batch, make_target("observation", coin(), layout)).item() == pytest.approx(
        by_hand, rel=1e-6
    )


def test_evaluation_loss_is_the_loss_of_all_samples_at_once() -> None:
    dataset = ProcessDataset(config().process.build(), layout=SequenceLayout(length=8), seed=1, stream="evaluate")
    model = make_model("roformer", num_symbols=4, num_layers=1, num_heads=2, width=8)
    batch = dataset[0:150]  # in pieces of 64, 64 and 22
    target = make_target("observation", dataset.process, dataset.layout)
    spec = replace(config().training, evaluate_samples=150)
    found = Evaluation(dataset, make_target("observation", dataset.process, dataset.layout), spec)(
        model, torch.device("cpu")
    )
    assert found["evaluation_loss"] == pytest.approx(target_loss(model, batch, target).item(), rel=1e-6)
    law = model(batch.tokens[:, :-1]).detach().double().softmax(-1)
    distance = 0.5 * (law - target.optimum(batch)).abs().sum(-1).mean(0)
    assert found["distances"] == pytest.approx(distance.tolist(), rel=1e-5)  # float32 sums in another order


def test_distances_count_only_what_the_process_asks_for() -> None:
    hard = {"name": "cyclic-hard", "num_states": 3, "num_symbols": 2, "prediction_rate": 0.5}
    layout = {"name": "sequences", "length": 6, "placeholder": True}
    asked = config_from_data({"process": hard, "layout": layout, "model": {"name": "rnn", "width": 8}})
    process = asked.process.build()
    dataset = ProcessDataset(process, layout=asked.layout, seed=1, stream="evaluate")
    batch, target = dataset[0:40], make_target("observation", process, dataset.layout)
    counted = target.counted(batch)
    assert not counted[:, 0].any()
    assert torch.equal(counted[:, 1:], batch.observations[:, : counted.shape[1] - 1] == process.symbols.index("*"))
    assert 0 < counted.sum() < counted.numel()
    model = untrained_model(asked, process)
    spec = replace(asked.training, evaluate_samples=40)
    found = Evaluation(dataset, make_target("observation", dataset.process, dataset.layout), spec)(
        model, torch.device("cpu")
    )["distances"]
    law = model(batch.tokens)[:, target.token_positions].detach().double().softmax(-1)
    terms = target.distance_terms(law, target.optimum(batch))
    assert found[0] is None
    assert found[3] == pytest.approx(float(terms[:, 3][counted[:, 3]].mean()), rel=1e-5)  # float32


@pytest.mark.long
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
    score = evaluate(trained.model, trained.dataset(), num_samples=256)

    def z(left: str, right: str) -> float:
        difference = (score.measures[left]["loss"] - score.measures[right]["loss"]).mean(1)
        return float(difference.mean() / (difference.std(ddof=1) / math.sqrt(len(difference))))

    assert z("model", "order-0") < -20
    assert z("model", "optimum") > -4
    assert score.invalid is None
    assert trained.summary["invalid"] is None
    assert trained.summary["excess_low"] <= trained.summary["excess"] <= trained.summary["excess_high"]
    records = read_journal(tmp_path / "run" / "metrics.jsonl")
    assert [record["step"] for record in records] == list(range(1, 201))
    assert records[0]["loss"] == pytest.approx(math.log(3), abs=0.1)
    assert records[-1]["loss"] < records[0]["loss"] - 0.2
    assert [record["step"] for record in records if "evaluation_loss" in record] == [100, 200]


@pytest.mark.drawn(1, of="crashes")
def test_a_training_loads_no_compiler(tmp_path: Path) -> None:
    """It takes torch seconds in each new process, and its optimisers load it."""
    code = (
        "import sys; from hmmscope.lab.cli import main; code = main(sys.argv[1:]);"
        "assert code == 0 and 'torch._dynamo' not in sys.modules"
    )
    words = ["train", "umbrella", "--training.num_steps", "1", "--training.engine", "torch"]
    words += ["--layout.length", "16", "-q", "--out", str(tmp_path / "run")]
    done = forking.run(["-c", code, *words])
    assert (done.returncode, done.stderr) == (0, "")


def test_the_step_is_that_of_torch() -> None:
    """`torch.optim.AdamW`, fused, to the bit; a parameter without a gradient stays."""
    theirs, ours = (nn.Linear(3, 2), nn.Linear(3, 2))
    ours.load_state_dict(theirs.state_dict())
    spec = TrainingSpec(learning_rate=0.1, betas=(0.8, 0.9), epsilon=1e-3, weight_decay=0.2)
    reference = torch.optim.AdamW(theirs.parameters(), 0.1, (0.8, 0.9), 1e-3, 0.2, fused=True)
    moments = Moments()
    for step in range(4):
        for net in (theirs, ours):
            net.zero_grad(set_to_none=True)
            (net(torch.arange(3.0) + step) if step else net.bias).square().sum().backward()
        reference.step()
        updates.take_step([p for p in ours.parameters() if p.grad is not None], moments, spec, 0.1)
        assert all(torch.equal(a, b) for a, b in zip(theirs.parameters(), ours.parameters(), strict=True))


def test_every_step_has_samples_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen = []
    loss = updates.target_loss

    def spy(model: nn.Module, batch: Batch, *args: Any, **options: Any) -> torch.Tensor:
        seen.append(batch.tokens)
        return loss(model, batch, *args, **options)

    monkeypatch.setattr(updates, "target_loss", spy)
    trained = train(config(num_steps=5, evaluate_every=0), tmp_path / "run")
    assert torch.equal(torch.cat(seen), trained.dataset("train")[0:20].tokens)


@pytest.mark.drawn(1, of="crashes")
def test_killed_at_random_instants(crashes: Callable[[str], dict]) -> None:
    report = crashes("kills=12")
    assert report["different"] == []
    assert report["killed"] >= 12
    assert report["files"] == 7  # model, optimiser, state, manifest; metrics, evaluation, summary
    assert report["instants"] >= 4


@pytest.mark.drawn(1, of="crashes")
def test_killed_inside_a_checkpoint(crashes: Callable[[str], dict]) -> None:
    report = crashes("saves=8")
    assert report["different"] == []
    assert report["operations"] > 20
    assert [EVERY, 2 * EVERY] in report["kept"]  # killed before the commit
    assert [2 * EVERY, 3 * EVERY] in report["kept"]  # and after it


@pytest.mark.long
@pytest.mark.drawn(1, of="crashes")
def test_signals(crashes: Callable[[str], dict]) -> None:
    report = crashes("signals=3")
    assert report["wrong"] == []
    assert len(report["chosen"]) == 8
    building = report["chosen"].pop("SIGTERM building")
    assert building == {"code": -15, "error": "", "steps": None}  # there is no folder yet, and nothing to save
    for name, found in report["chosen"].items():
        assert found["same"], name
        assert "Traceback" not in found["error"]
    cases = [("SIGTERM 14", 13), ("SIGINT 14", 13), ("SIGTERM last", 59), ("SIGTERM for ever", 16)]
    for name, step in [("SIGTERM 1", 0), ("SIGINT 1", 0), *cases]:  # the step that it came in is left
        found, (signal, *_) = report["chosen"][name], name.split()
        code = {"SIGTERM": 143, "SIGINT": 130}[signal]
        assert found["code"] == code, name
        assert max(found["steps"], default=0) == step
        assert found["error"].startswith(f"error[{code}] ")
        after = f"after step {step}" if step else "before the first step was taken"
        assert found["error"].endswith(f"stopped by {signal} {after}; continue with --resume (resume=True in Python)\n")
    assert report["chosen"]["SIGTERM SIGTERM 10"]["code"] == -15  # the second one does not wait


@pytest.mark.drawn(1, of="crashes")
def test_disk_full_in_training(crashes: Callable[[str], dict]) -> None:
    results = crashes("limit=3")["results"]
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
    again = train(config(), whole, resume=True, options=TrainOptions(num_samples=16))
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
    shown = field.replace("num_grains", "accumulation_steps").replace("milestones", "num_log_checkpoints")
    assert f"{shown}: {json.dumps(before)} -> {json.dumps(MUTATIONS[field])}" in str(refused.value)
    assert "\n" not in str(refused.value)
    assert files(partial) == state


# --------------------------------------------------------------------------------------------------------------------
# Numbers that are not finite


@pytest.mark.parametrize("planted", [math.nan, math.inf, -math.inf])
def test_bad_loss_stops_before_the_update(
    planted: float, at_loss: Callable, tmp_path: Path, whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_loss(17, lambda loss: loss * planted)
    with pytest.raises(NonFiniteError, match=r"^step 17: loss is not finite .*step was not taken; lower learning_rate"):
        run(tmp_path / "run")
    assert NonFiniteError.exit_code == 6
    assert RunDir.open(tmp_path / "run").checkpoint_steps() == [7, 14]
    assert len(read_journal(tmp_path / "run" / "metrics.jsonl")) == 16
    monkeypatch.undo()
    run(tmp_path / "run")
    assert fingerprint(tmp_path / "run") == fingerprint(whole)


@pytest.mark.slow
def test_models_that_torch_compiles_have_lengths_of_their_own(tmp_path: Path) -> None:
    """Else torch would make of a second length a model for all lengths, which it cannot of some."""
    pytest.importorskip("transformers")
    code = """
import hmmscope as hs

model = {"name": "mamba2", "num_layers": 1, "width": 8, "num_heads": 2, "state_size": 4, "chunk_length": 4}
for length in (4, 6):
    for compiled in (False, True):
        training = {"compile": compiled, "engine": "torch"}
        run = hs.train("mess3", f"{length}-{compiled}", model=model, length=length, num_steps=2, training=training)
        print(run.summary["loss"])
"""
    # A process of its own, in which nothing checks the types of what torch looks into.
    told = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    losses = list(map(float, told.stdout.split()))
    assert losses[1::2] == pytest.approx(losses[::2], abs=1e-5)
    assert len(losses) == 4
