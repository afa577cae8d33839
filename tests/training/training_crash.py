"""Training that is killed, told to stop and short of disk; run as a script: training_crash.py FOLDER MODE=NUMBER ...

One process with torch imported trains once without interruption, then forks the victims. It prints one JSON object.
"""

import hashlib
import json
import os
import random
import resource
import signal
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from hmmscope import TrainOptions
from hmmscope.errors import HmmscopeError
from hmmscope.lab import cli
from hmmscope.lab.verbs import train as verb
from hmmscope.models.decoder import RoFormerSpec
from hmmscope.runs.config import config_from_data
from hmmscope.runs.training import train
from hmmscope.storage import disk
from hmmscope.storage.rundir import RunDir, read_journal
from hmmscope.training import updates

NUM_STEPS, EVERY = 60, 7

CONFIG: dict[str, Any] = {
    "process": {"name": "random-hmm", "num_states": 3, "num_symbols": 4, "seed": 1},
    "layout": {"name": "sequences", "length": 8},
    "model": {"name": "roformer", "num_layers": 1, "num_heads": 2, "width": 8, "mlp_ratio": 2},
    "training": {
        "num_steps": NUM_STEPS,
        "batch_size": 4,
        "learning_rate": 0.01,
        "warmup_steps": 5,
        "evaluate_every": 20,
        "evaluate_samples": 8,
        "checkpoint_every": EVERY,
        "device": "cpu",
    },
    "seed": 3,
}


def run(path: Path) -> None:
    """Train to the end, from wherever the run in `path` stands."""
    train(config_from_data(CONFIG), path, resume=True, options=TrainOptions(num_samples=16))


def fingerprint(path: Path) -> dict[str, str]:
    """Digests of everything that a seed fixes in a finished run: the last checkpoint, metrics, evaluation, summary."""
    last = path / "checkpoints" / f"step-{NUM_STEPS:09d}"
    files = [*sorted(last.iterdir()), *(path / name for name in ("metrics.jsonl", "evaluation.jsonl", "done.json"))]
    return {str(file.relative_to(path)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def fork(work: Callable[[], object]) -> int:
    """The process id of a child that runs `work` and ends with the code it returns, or 0."""
    pid = os.fork()
    if pid:
        return pid
    code = 70
    try:
        code = int(work() or 0)  # type: ignore[call-overload]
    except HmmscopeError as error:
        code = error.exit_code
    finally:
        os._exit(code)


def wait(pid: int) -> int:
    """How a child ended: its exit code, or minus the signal."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def command(folder: Path, path: Path) -> int:
    """The same training through the command line; what it says goes to files."""
    for stream, name in ((1, "stdout"), (2, "stderr")):
        os.dup2(os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), stream)
    return cli.main(["train", str(folder / "config.yaml"), "--out", str(path), "--resume", "-q"])


def kills(folder: Path, number: int, seed: int = 7) -> dict:
    """Kill training at random instants until `number` kills are done and the run they fell in is complete."""
    run(folder / "warm")  # imports, compiled kernels
    begun = time.perf_counter()
    run(folder / "whole")
    duration = time.perf_counter() - begun
    whole = fingerprint(folder / "whole")
    rng = random.Random(seed)
    killed, runs, found_at, wrong = 0, 0, set(), []
    while killed < number:
        path = folder / f"run{runs}"
        runs += 1
        for _ in range(200):
            pid = fork(lambda path=path: run(path))  # type: ignore[misc]
            time.sleep(rng.uniform(0, 0.7 * duration))
            os.kill(pid, signal.SIGKILL)
            code = wait(pid)
            if code == 0:
                break
            assert code == -signal.SIGKILL, code
            killed += 1
            found_at.add(len(read_journal(path / "metrics.jsonl")) if path.exists() else -1)
        else:
            run(path)
        wrong += [] if fingerprint(path) == whole else [path.name]
    return {"killed": killed, "runs": runs, "different": wrong, "instants": len(found_at), "files": len(whole)}


def saves(folder: Path, number: int) -> dict:
    """Die before each operation on the disk of the third checkpoint (which removes the first), then resume."""
    operations = ("write", "fsync", "mkdir", "rename", "unlink", "rmdir", "fsync_dir")
    real = {name: getattr(disk, name) for name in operations}
    counted: list[str] = []
    fatal, saving = -1, False

    def hooked(name: str) -> Callable:
        def operation(*args: Any) -> Any:
            if saving:
                if len(counted) == fatal:
                    os.kill(os.getpid(), signal.SIGKILL)
                counted.append(name)
            return real[name](*args)

        return operation

    save = RunDir.save_checkpoint

    def save_hooked(self: RunDir, step: int, *args: Any, **options: Any) -> None:
        nonlocal saving
        saving = step == 3 * EVERY
        try:
            save(self, step, *args, **options)
        finally:
            saving = False

    for name in operations:
        setattr(disk, name, hooked(name))
    RunDir.save_checkpoint = save_hooked  # type: ignore[method-assign]
    run(folder / "whole")
    whole, total = fingerprint(folder / "whole"), len(counted)
    wrong, kept = [], set()
    for fatal in sorted({round(i * (total - 1) / (number - 1)) for i in range(number)}):
        path = folder / f"run{fatal}"
        counted.clear()
        assert wait(fork(lambda path=path: run(path))) == -signal.SIGKILL  # type: ignore[misc]
        kept.add(tuple(step for step in RunDir.open(path).checkpoint_steps()))
        here, fatal = fatal, -1
        run(path)
        leftovers = [name for name in os.listdir(path / "checkpoints") if name.startswith(".tmp-")]
        wrong += [] if fingerprint(path) == whole and not leftovers else [here]
    for name in operations:
        setattr(disk, name, real[name])
    RunDir.save_checkpoint = save  # type: ignore[method-assign]
    return {"operations": total, "different": wrong, "kept": sorted(kept)}


def signals(folder: Path, number: int, seed: int = 11) -> dict:
    """SIGTERM and SIGINT in chosen steps, again while those are saved, in endless work, and at `number` random instants."""
    (folder / "config.yaml").write_text(json.dumps(CONFIG))
    run(folder / "warm")
    begun = time.perf_counter()
    assert wait(fork(lambda: command(folder, folder / "whole"))) == 0
    duration = time.perf_counter() - begun
    whole = fingerprint(folder / "whole")
    loss, save = updates.target_loss, RunDir.save_checkpoint

    def stopped(path: Path, step: int, *signums: int) -> dict:
        calls = 0

        def tell(*args: Any, **options: Any) -> torch.Tensor:
            nonlocal calls
            calls += 1
            if calls == step:  # of the training steps: the evaluation of step 20 comes later
                os.kill(os.getpid(), signums[0])
            return loss(*args, **options)

        def again(*args: Any, **options: Any) -> None:
            if calls == step:
                os.kill(os.getpid(), signums[-1])
            save(*args, **options)

        def work() -> int:
            updates.target_loss = tell
            if len(signums) > 1:
                RunDir.save_checkpoint = again  # type: ignore[method-assign]
            return command(folder, path)

        code, error = wait(fork(work)), (folder / "stderr").read_text()
        steps = RunDir.open(path).checkpoint_steps() if path.exists() else []
        assert wait(fork(lambda: command(folder, path))) == 0
        return {"code": code, "error": error, "steps": steps, "same": fingerprint(path) == whole}

    chosen = {
        f"{signal.Signals(signum).name} {step}": stopped(folder / f"chosen{signum}-{step}", step, signum)
        for signum in (signal.SIGTERM, signal.SIGINT)
        for step in (1, 14)
    }
    chosen["SIGTERM SIGTERM 10"] = stopped(folder / "twice", 10, signal.SIGTERM, signal.SIGTERM)
    chosen["SIGTERM last"] = stopped(folder / "last", NUM_STEPS, signal.SIGTERM)
    chosen["SIGTERM for ever"] = told(folder, folder / "for-ever", endless_step) | {"same": None}
    assert wait(fork(lambda: command(folder, folder / "for-ever"))) == 0
    chosen["SIGTERM for ever"]["same"] = fingerprint(folder / "for-ever") == whole
    chosen["SIGTERM building"] = told(folder, folder / "building", endless_building)
    rng = random.Random(seed)
    ended: dict[str, int] = {}
    wrong = []
    for repeat in range(number):
        path = folder / f"random{repeat}"
        signum = (signal.SIGTERM, signal.SIGINT)[repeat % 2]
        pid = fork(lambda path=path: command(folder, path))  # type: ignore[misc]
        time.sleep(rng.uniform(0, duration))
        os.kill(pid, signum)
        code, error = wait(pid), (folder / "stderr").read_text()
        ended[str(code)] = ended.get(str(code), 0) + 1
        again = wait(fork(lambda path=path: command(folder, path)))  # type: ignore[misc]
        assert again == 0, (repeat, code, error, again, (folder / "stderr").read_text())
        if "Traceback" in error or code not in (0, -signum, 128 + signum) or fingerprint(path) != whole:
            wrong.append([repeat, code, error])
    return {"chosen": chosen, "ended": ended, "wrong": wrong}


def endless_step(say: Callable[[], object]) -> None:
    """Step 17 never ends by itself, after it has said that it has begun."""
    loss, calls = updates.target_loss, 0

    def wait_for_ever(*args: Any, **options: Any) -> torch.Tensor:
        nonlocal calls
        calls += 1
        if calls == 17:
            say()
            time.sleep(10**6)
        return loss(*args, **options)

    updates.target_loss = wait_for_ever


def endless_building(say: Callable[[], object]) -> None:
    """A model is being built for ever."""

    def wait_for_ever(*args: Any) -> None:
        say()
        time.sleep(10**6)

    RoFormerSpec.build = wait_for_ever  # type: ignore[assignment, method-assign]


def told(folder: Path, path: Path, hinder: Callable[[Callable[[], object]], None]) -> dict:
    """SIGTERM to a training as soon as what hinders it has begun, which would last for days."""
    heard, speaking = os.pipe()

    def work() -> int:
        hinder(lambda: os.write(speaking, b"."))
        return command(folder, path)

    pid = fork(work)
    os.read(heard, 1)
    os.kill(pid, signal.SIGTERM)
    code, error = wait(pid), (folder / "stderr").read_text()
    steps = RunDir.open(path).checkpoint_steps() if path.exists() else None
    return {"code": code, "error": error, "steps": steps}


def limit(folder: Path, number: int) -> dict:
    """A file-size limit strikes after two checkpoints, at `number` sizes; then it is lifted."""
    (folder / "config.yaml").write_text(json.dumps(CONFIG))
    run(folder / "whole")
    whole = fingerprint(folder / "whole")
    size = (folder / "whole" / "checkpoints" / f"step-{NUM_STEPS:09d}" / "optimiser.safetensors").stat().st_size
    loss, hard = updates.target_loss, resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    results = []
    for bound in [size * (i + 1) // (number + 1) for i in range(number)]:
        path = folder / f"run{bound}"
        calls = 0

        def full(*args: Any, **options: Any) -> torch.Tensor:
            nonlocal calls
            calls += 1
            if calls == 2 * EVERY + 1:
                resource.setrlimit(resource.RLIMIT_FSIZE, (bound, hard))  # noqa: B023 - called before the next
            return loss(*args, **options)

        def work() -> int:
            updates.target_loss = full
            return command(folder, path)  # noqa: B023

        code, error = wait(fork(work)), (folder / "stderr").read_text()
        with RunDir.open(path) as opened:
            found = opened.load_checkpoint()
        run(path)
        results.append({"code": code, "error": error, "step": found[0], "same": fingerprint(path) == whole})
    return {"results": results}


if __name__ == "__main__":
    assert verb  # imported here once, not in every child
    torch.set_num_threads(1)
    warnings.simplefilter("error")
    modes = {"kills": kills, "saves": saves, "signals": signals, "limit": limit}
    reports = {}
    for mode, _, number in (word.partition("=") for word in sys.argv[2:]):
        folder = Path(sys.argv[1]) / mode
        folder.mkdir()
        reports[mode] = modes[mode](folder, int(number))
    sys.stdout.write(json.dumps(reports) + "\n")
