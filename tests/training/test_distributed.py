"""Several processes: the same bits as one, or close; one ends, all end; and the settings that change how torch computes."""

import json
import math
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import forking
from hmmscope import TrainOptions
from hmmscope.errors import HmmscopeError, InputError, RefusedError
from hmmscope.runs.config import config_from_data
from hmmscope.runs.training import train
from hmmscope.storage.rundir import RunDir, read_journal
from hmmscope.training import distributed, parallel
from hmmscope.training.distributed import ProcessGroup, exit_code, joined
from hmmscope.training.signals import Interrupted
from hmmscope.training.spec import TrainingSpec
from hmmscope.training.state import _sum_of_bits
from training_crash import CONFIG

SCRIPT = Path(__file__).with_name("distributed_script.py")
GONE = "has ended or does not answer; continue from the last checkpoint with --resume"


class Reports(dict[str, dict]):
    """What the script saw, by mode, which runs when it is asked for."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def __missing__(self, mode: str) -> dict:
        self[mode] = {}  # a script that failed is not run again
        self[mode] = run_script(self.root / mode, mode)[mode]
        return self[mode]


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> Reports:
    return Reports(tmp_path_factory.mktemp("processes"))


def run_script(folder: Path, *modes: str) -> dict[str, dict]:
    folder.mkdir(exist_ok=True)
    done = forking.run([str(SCRIPT), str(folder), *modes], env=os.environ | forking.ONE_THREAD)
    assert done.returncode == 0, done.stderr
    found: dict[str, dict] = json.loads(done.stdout.splitlines()[-1])
    return found


# --------------------------------------------------------------------------------------------------------------------
# The bits of one process


@pytest.mark.drawn(1, of="several processes")
def test_the_same_bytes_from_any_number_of_processes(reports: Reports) -> None:
    found = reports["exact"]
    for size in (1, 2, 4):
        assert found[str(size)]["codes"] == [0] * size
        assert found[str(size)]["errors"] == []
        assert found[str(size)]["fingerprint"] == found["1"]["fingerprint"]
    assert {"metrics.jsonl", "done.json", "evaluation.jsonl"} < found["1"]["fingerprint"].keys()


@pytest.mark.drawn(1, of="several processes")
def test_numbers_of_processes_take_turns(reports: Reports) -> None:
    found = reports["in turn"]
    assert found["killed under 2"]["codes"] == [5, -signal.SIGKILL]
    assert found["killed under 2"]["errors"] == [f"error[5] torchrun: rank 1 of 2 {GONE}"]
    assert found["killed under 2"]["steps"] == [7]
    assert found["told under 4"]["codes"] == [143] * 4  # SIGTERM came to the third of them alone
    assert len(found["told under 4"]["errors"]) == 1
    said = "run: stopped by SIGTERM after step 16; continue with --resume (resume=True in Python)"
    assert found["told under 4"]["errors"][0].endswith(said)
    assert found["told under 4"]["steps"] == [14, 16]
    assert found["killed under 1"]["codes"] == [-signal.SIGKILL]
    for end in ("ended under 1", "ended under 2"):
        assert found[end]["errors"] == []
        assert found[end]["fingerprint"] == found["1"]["fingerprint"]


@pytest.mark.slow
def test_fingerprints_differ_where_bits_do(reports: Reports) -> None:
    """The comparison above can fail: DDP gives other bits."""
    found = reports["close ddp"]
    assert found["1"]["fingerprint"] != found["2"]["fingerprint"]


# --------------------------------------------------------------------------------------------------------------------
# DDP and FSDP2


@pytest.mark.drawn(1, of="several processes")
@pytest.mark.parametrize("mode", ["ddp", "fsdp"])
def test_close_to_one_process(mode: str, reports: Reports) -> None:
    found = reports[f"close {mode}"]
    for size in (1, 2, 3):
        assert found[str(size)]["codes"] == [0] * size
        assert found[str(size)]["errors"] == []
    for size in ("2", "3"):
        assert 0 < found["apart"][size]["weights"] < 1e-5
        assert 0 < found["apart"][size]["losses"] < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["ddp", "fsdp"])
def test_resumed_with_as_many_processes_gives_the_same_bytes(mode: str, reports: Reports) -> None:
    found = reports[f"resumed {mode}"]
    assert sorted(found["killed"]["codes"]) == [-signal.SIGKILL, 5, 5]
    assert found["killed"]["errors"] == [f"error[5] torchrun: rank 1 of 3 {GONE}"]
    assert found["killed"]["steps"] == [7]
    assert found["again"]["fingerprint"] == found["3"]["fingerprint"]


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["ddp", "fsdp"])
def test_resumed_with_another_number_of_processes(mode: str, reports: Reports) -> None:
    found = reports[f"resumed {mode}"]
    assert found["fewer"]["codes"] == [0]
    assert found["fewer"]["errors"] == []
    assert found["fewer"]["apart"]["weights"] < 1e-5


# --------------------------------------------------------------------------------------------------------------------
# One ends, all end


@pytest.mark.drawn(1, of="several processes")
def test_the_leader_dies(reports: Reports) -> None:
    found = reports["dies"]
    assert found["codes"] == [-signal.SIGKILL, 5, 5]
    ours = [line for line in found["errors"] if line.startswith("error[")]
    assert ours == [f"error[5] torchrun: rank 0 of 3 {GONE}"]


@pytest.mark.drawn(1, of="several processes")
def test_a_process_that_stands_still_is_noticed(reports: Reports) -> None:
    found = reports["stops"]["one stops"]
    assert found["codes"] == [5]
    assert found["errors"] == [f"error[5] torchrun: rank 1 of 2 {GONE}"]


@pytest.mark.drawn(1, of="several processes")
@pytest.mark.parametrize(
    "mode, case, code, words",
    [
        ("stops", "in use", 3, "in use by process"),
        ("stops", "differs", 3, "training.learning_rate: 0.01 -> 0.02"),
        ("unlike", "grains", 2, "training.accumulation_steps: must be a multiple of 3, the number of processes"),
        ("unlike", "other weights", 5, "step 7: the processes have different weights"),
    ],
)
def test_what_one_refuses_ends_all_with_one_line(mode: str, case: str, code: int, words: str, reports: Reports) -> None:
    found = reports[mode][case]
    assert set(found["codes"]) == {code}
    assert len(found["errors"]) == 1
    assert found["errors"][0].startswith(f"error[{code}] ")
    assert words in found["errors"][0]


@pytest.mark.drawn(1, of="several processes")
def test_nothing_is_made_when_processes_cannot_share(reports: Reports) -> None:
    assert reports["unlike"]["grains"]["made"] is False


@pytest.mark.drawn(1, of="several processes")
@pytest.mark.parametrize("mode", ["exact", "ddp", "fsdp"])
@pytest.mark.parametrize("what", ["loss", "gradient"])
def test_bad_numbers_in_one_process_stop_all(mode: str, what: str, reports: Reports) -> None:
    found = reports[f"numbers {mode} {what}"]
    assert found["codes"] == [6, 6]
    named = "loss" if what == "loss" else "gradient of embedding.weight"
    assert len(found["errors"]) == 1
    assert found["errors"][0].startswith(f"error[6] step 9: {named} is not finite")
    assert found["steps"] == [7]
    assert found["records"] == 8


# --------------------------------------------------------------------------------------------------------------------
# torchrun


def torchrun(folder: Path, *options: str, **training: Any) -> subprocess.Popen[str]:
    data = CONFIG | {"training": CONFIG["training"] | {"accumulation_steps": 2} | training}
    (folder / "config.yaml").write_text(json.dumps(data))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += ["-m", "hmmscope.lab.cli", "train", str(folder / "config.yaml")]
    command += ["--out", str(folder / "run"), "-q", *options]
    return subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


@pytest.mark.slow
def test_torchrun(tmp_path: Path) -> None:
    started = torchrun(tmp_path, num_steps=9)
    out, errors = started.communicate(timeout=300)
    assert started.returncode == 0, errors
    assert "error" not in errors
    assert out.count("run: ") == 1
    train(config_from_data(json.loads((tmp_path / "config.yaml").read_text())), tmp_path / "alone")
    for name in ("metrics.jsonl", "evaluation.jsonl", "done.json", "checkpoints/step-000000009/model.safetensors"):
        assert (tmp_path / "run" / name).read_bytes() == (tmp_path / "alone" / name).read_bytes(), name


@pytest.mark.soak
@pytest.mark.parametrize("victim", ["rank", "torchrun"])
def test_torchrun_is_stopped(victim: str, tmp_path: Path) -> None:
    """One rank is killed, or torchrun is told to end: the run can go on, and is not left hanging."""
    started = torchrun(tmp_path, num_steps=100_000)
    try:
        while not list(tmp_path.glob("run/checkpoints/step-*")):
            assert started.poll() is None
            time.sleep(0.2)
        if victim == "torchrun":
            started.terminate()
        else:
            children = Path(f"/proc/{started.pid}/task/{started.pid}/children").read_text().split()
            os.kill(int(children[-1]), signal.SIGKILL)
        _, errors = started.communicate(timeout=60)
    finally:
        started.kill()
    ours = [line for line in errors.splitlines() if line.startswith("error[")]
    assert len(ours) == 1
    assert ours[0].startswith("error[143] " if victim == "torchrun" else "error[5] ")
    assert RunDir.open(tmp_path / "run").load_checkpoint() is not None


@pytest.mark.soak
def test_torchrun_sees_one_exit_code(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    for _ in range(3):
        _, errors = torchrun(tmp_path).communicate(timeout=120)
        assert re.findall(r"exitcode  : (-?\d+)", errors) == ["3", "3"]
        fix = "choose another --out, or add --resume (resume=True in Python)"
        refused = [line for line in errors.splitlines() if line.startswith("error[")]
        assert refused == [f"error[3] {tmp_path / 'run'}: exists; {fix}"]


def node(rank: int, port: int, folder: Path, *options: str) -> subprocess.Popen[str]:
    """Start the launcher of one of two machines, as the recipe of docs/sweeps.md does."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--node-rank", str(rank)]
    command += ["--nproc-per-node", "1", "--master-addr", "127.0.0.1", "--master-port", str(port)]
    command += ["-m", "hmmscope.lab.cli", "train", str(folder / "config.yaml"), "--out", str(folder / "run"), "-q"]
    environment = os.environ | forking.ONE_THREAD | {"GLOO_SOCKET_IFNAME": "lo"}
    return subprocess.Popen(
        [*command, *options, "--training.parallel", "fsdp"],
        env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip


def free_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return int(bound.getsockname()[1])


@pytest.mark.slow
def test_two_nodes_resume_after_the_loss_of_one(tmp_path: Path) -> None:
    """Two launchers over loopback; the second node is lost with all its processes."""
    recipe = (Path(__file__).parents[2] / "docs" / "sweeps.md").read_text("utf-8")
    for option in ("--nnodes 2", "--node-rank", "--nproc-per-node", "--master-addr", "--master-port", "parallel fsdp"):
        assert option in recipe
    data = CONFIG | {"training": CONFIG["training"] | {"accumulation_steps": 2, "num_steps": 40, "checkpoint_every": 4}}
    (tmp_path / "config.yaml").write_text(json.dumps(data))
    port, started = free_port(), []
    try:
        started = [node(rank, port, tmp_path) for rank in range(2)]
        while not list(tmp_path.glob("run/checkpoints/step-*")):
            assert all(launcher.poll() is None for launcher in started), [s.communicate()[1] for s in started]
            time.sleep(0.05)
        children = Path(f"/proc/{started[1].pid}/task/{started[1].pid}/children").read_text().split()
        for process in (started[1].pid, *map(int, children)):
            os.kill(process, signal.SIGKILL)
        _, errors = started[0].communicate(timeout=200)
        assert started[0].returncode != 0
        assert f"rank 1 of 2 {GONE}" in errors
        left = RunDir.open(tmp_path / "run").load_checkpoint()
        assert left[0] < 40
        port = free_port()
        started = [node(rank, port, tmp_path, "--resume") for rank in range(2)]
        ends = [launcher.communicate(timeout=300) for launcher in started]
        assert [launcher.returncode for launcher in started] == [0, 0], ends
        assert len(read_journal(tmp_path / "run" / "metrics.jsonl")) == 40
    finally:
        for launcher in started:
            launcher.kill()


# --------------------------------------------------------------------------------------------------------------------
# Who is who


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """The environment of rank 0 of two."""
    monkeypatch.setattr(distributed, "_joined_before", False)
    for name, value in (("WORLD_SIZE", "2"), ("RANK", "0"), ("LOCAL_RANK", "0"), ("MASTER_PORT", "1")):
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    return monkeypatch


def enter() -> ProcessGroup:
    with joined("cpu") as world:
        return world


def test_without_torchrun_there_is_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    for size in ("", "1"):
        monkeypatch.setenv("WORLD_SIZE", size)
        world = enter()
        assert (world.rank, world.size, world.leader) == (0, 1, True)
        assert world.share({"a": [1]}) == {"a": [1]}
        assert world.largest(3) == 3
        assert world.agree(-7)
        assert not torch.distributed.is_initialized()


@pytest.mark.parametrize(
    "name, value, words",
    [
        ("WORLD_SIZE", "two", "WORLD_SIZE: must be a whole number"),
        ("RANK", "", "RANK: must be a whole number .*unset WORLD_SIZE"),
        ("RANK", "2", r"RANK: must be in \[0, WORLD_SIZE = 2\)"),
        ("MASTER_ADDR", "", "MASTER_ADDR: is not set; start with torchrun"),
        ("MASTER_ADDR", "8.8.8.8", "MASTER_ADDR: 8.8.8.8 is a public address"),
        ("MASTER_ADDR", "no such host", "MASTER_ADDR: no such host is not a known host"),
        ("MASTER_PORT", "-1", "MASTER_PORT: must be a whole number"),
    ],
)
def test_environments_that_are_refused(name: str, value: str, words: str, launched: pytest.MonkeyPatch) -> None:
    launched.setenv(name, value)
    with pytest.raises(InputError, match=f"^{words}"):
        enter()


def test_only_the_leader_says_what_is_wrong_with_the_environment(launched: pytest.MonkeyPatch) -> None:
    launched.setenv("RANK", "1")
    launched.setenv("MASTER_ADDR", "8.8.8.8")
    with pytest.raises(SystemExit) as ended:
        enter()
    assert ended.value.code == 2


def test_one_training_a_launch(launched: pytest.MonkeyPatch) -> None:
    launched.setattr(distributed, "_joined_before", True)
    with pytest.raises(RefusedError, match=r"^torchrun: only one training per launch"):
        enter()


@pytest.mark.parametrize(
    "grains, size, words",
    [
        (1, 2, "got 1; set it to 2, or set parallel to ddp"),
        (4, 3, "got 4; start 2 processes, or set parallel to ddp"),
        (8, 3, "got 8; start 2 processes, or set parallel to ddp"),
        (2, 4, "got 2; set it to 4, or start 2 processes, or set parallel to ddp"),
    ],
)
def test_numbers_of_processes_that_cannot_share(grains: int, size: int, words: str) -> None:
    spec = TrainingSpec(batch_size=16, accumulation_steps=grains)
    with pytest.raises(
        InputError, match=f"^training.accumulation_steps: must be a multiple of {size}, the number of processes"
    ) as refused:
        parallel.check_processes(spec, size)
    assert str(refused.value).endswith(words)
    parallel.check_processes(TrainingSpec(batch_size=16, parallel="ddp"), size)
    with pytest.raises(InputError, match=r"^training\.batch_size: must be at least 17, the number of processes"):
        parallel.check_processes(TrainingSpec(batch_size=16, parallel="fsdp"), 17)


def test_shares_are_the_whole_batch() -> None:
    """Every sample of a step belongs to one process, also where an epoch ends with a small step."""
    for count in (1, 7, 16, 90):
        spec = TrainingSpec(batch_size=16, num_trajectories=count, accumulation_steps=8, num_steps=60)
        for size in (1, 2, 4, 8):
            for step in range(spec.steps_per_epoch):
                found: list[int] = []
                for rank in range(size):
                    world = ProcessGroup()
                    world.rank, world.size = rank, size
                    rows = parallel._share(spec, world, 8 // size, step)
                    idle = parallel._first(spec, world, 8 // size, step) >= parallel.num_samples(spec, step)
                    assert rows.stop > rows.start
                    found += [] if idle else range(rows.start, rows.stop)
                assert found == list(range(parallel.num_samples(spec, step)))


def test_exit_codes_of_errors() -> None:
    lost = RuntimeError("[../third_party/gloo/gloo/transport/tcp/pair.cc:537] Connection closed by peer")
    codes = {InputError("x"): 2, Interrupted("x", signal.SIGTERM): 143, KeyboardInterrupt(): 130, MemoryError(): 5}
    codes |= {lost: 5, OSError(28, "No space left on device"): 5, ZeroDivisionError(): 70, HmmscopeError("x"): 70}
    assert {error: exit_code(error) for error in codes} == codes


def test_bits_of_weights_are_told_apart() -> None:
    weights = {"a": torch.linspace(-1, 1, 7), "b": torch.tensor([1.0, 2.0])}
    other = {"a": weights["a"].clone(), "b": torch.tensor([1.0, math.nextafter(2.0, 3.0)])}
    other["a"][3] += 1e-9
    assert _sum_of_bits(weights) == _sum_of_bits({name: value.clone() for name, value in weights.items()})
    assert _sum_of_bits(weights) != _sum_of_bits(other)


# --------------------------------------------------------------------------------------------------------------------
# How torch computes


def losses(path: Path, **training: Any) -> list[float]:
    settings = CONFIG["training"] | {"num_steps": 20} | training
    train(config_from_data(CONFIG | {"training": settings}), path, options=TrainOptions(num_samples=8))
    return [record["loss"] for record in read_journal(path / "metrics.jsonl")]


def test_bfloat16_is_near_float32(tmp_path: Path) -> None:
    plain, short = losses(tmp_path / "float32"), losses(tmp_path / "bfloat16", precision="bfloat16")
    assert short != plain
    assert short == pytest.approx(plain, rel=0.02)  # eight bits of mantissa: 0.004 at each operation
    with_grains = losses(tmp_path / "grains", precision="bfloat16", accumulation_steps=2)
    assert with_grains == pytest.approx(short, rel=0.02)


@pytest.mark.long
def test_deterministic_within_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    seen = []
    step = parallel.SingleProcess.gradients

    def spy(self: Any, *args: Any) -> torch.Tensor:
        seen.append((torch.are_deterministic_algorithms_enabled(), os.environ.get("CUBLAS_WORKSPACE_CONFIG")))
        return step(self, *args)

    monkeypatch.setattr(parallel.SingleProcess, "gradients", spy)
    plain = losses(tmp_path / "plain", num_steps=3, checkpoint_every=3)
    strict = losses(tmp_path / "strict", num_steps=3, checkpoint_every=3, deterministic=True)
    assert strict == plain  # on a processor
    assert set(seen[:3]) == {(False, None)}
    assert set(seen[3:]) == {(True, ":4096:8")}
    assert not torch.are_deterministic_algorithms_enabled()
    assert "CUBLAS_WORKSPACE_CONFIG" not in os.environ


def test_an_operation_that_is_not_deterministic_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Any, *args: Any) -> torch.Tensor:
        raise RuntimeError("put_ does not have a deterministic implementation, but you set it. You can turn it off.")

    monkeypatch.setattr(parallel.SingleProcess, "gradients", refuse)
    with pytest.raises(
        InputError, match=r"^training\.deterministic: put_ does not have a deterministic implementation"
    ):
        losses(tmp_path / "run", deterministic=True)
    assert not torch.are_deterministic_algorithms_enabled()
    with pytest.raises(RuntimeError, match="put_"):
        losses(tmp_path / "plain")


@pytest.mark.soak
def test_compiled_is_close_to_eager(tmp_path: Path) -> None:
    found = run_script(tmp_path, "compiled")["compiled"]
    assert found.keys() == {"exact 1", "exact 2", "ddp 2", "fsdp 2"}
    for report in found.values():
        assert set(report["codes"]) == {0}
        assert report["apart"]["weights"] < 1e-5
        assert 0 < report["apart"]["losses"] < 1e-5  # it was compiled
