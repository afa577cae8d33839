"""Trainings of several processes, forked from one that has torch imported: distributed_script.py FOLDER MODE ...

Each process gets the environment that torchrun gives and runs the command line. Prints one JSON object. A process that
hangs ends with the stacks of its threads on its standard error.
"""

import atexit
import faulthandler
import hashlib
import importlib
import json
import math
import os
import shutil
import signal
import socket
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from hmmscope import TrainOptions
from hmmscope.lab import cli
from hmmscope.lab.verbs import train as verb
from hmmscope.lab.verbs.options import TrainCommandOptions
from hmmscope.runs import training
from hmmscope.runs.config import config_from_data, load_config
from hmmscope.storage import store
from hmmscope.storage.rundir import RunDir, read_journal
from hmmscope.training import parallel, trainer, updates, watch
from training_crash import CONFIG, wait

#: Seconds after which a process counts as hung.
HUNG = 150

#: Sixteen samples a step of a fixed set of 90: the last step of an epoch has ten, in three grains of the four.
NUM_STEPS = 24
TRAINING = CONFIG["training"] | {
    "num_steps": NUM_STEPS,
    "batch_size": 16,
    "num_trajectories": 90,
    "accumulation_steps": 4,
}

Work = Callable[[int], None]


def config(**training: Any) -> dict:
    """The configuration of the crash tests with numbers of its own; also ``model=``."""
    model = training.pop("model", CONFIG["model"])
    return CONFIG | {"model": model, "training": TRAINING | training}


#: Dropout, too: its masks are those of one process.
EXACT = config(model={"name": "decoder", "num_layers": 2, "num_heads": 2, "width": 8, "dropout": 0.2})


def start(folder: Path, size: int, settings: dict, *, before: Work = lambda rank: None, out: str = "run") -> list[int]:
    """Processes of a training on their way, their words in the files ``<rank>.stderr``."""
    for name in ("torch._dynamo", "torch.distributed.fsdp"):  # what DDP and FSDP2 load: once, not in every child
        importlib.import_module(name)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.yaml").write_text(json.dumps(settings))
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    return [_fork(folder, rank, size, port, before, out) for rank in range(size)]


def _fork(folder: Path, rank: int, size: int, port: int, before: Work, out: str) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 70
    try:
        for stream, name in ((1, "stdout"), (2, "stderr")):
            os.dup2(os.open(folder / f"{rank}.{name}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), stream)
        faulthandler.dump_traceback_later(HUNG, exit=True, file=2)
        os.environ |= {
            "WORLD_SIZE": str(size),
            "LOCAL_WORLD_SIZE": str(size),
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
        }
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        before(rank)
        code = cli.main(["train", str(folder / "config.yaml"), "--out", str(folder / out), "--resume", "-q"])
    except SystemExit as ended:
        code = int(ended.code or 0)
    finally:
        atexit._run_exitfuncs()
        sys.stderr.flush()
        os._exit(code)


def train(folder: Path, size: int, settings: dict, *, before: Work = lambda rank: None) -> dict:
    """What came of a training: exit codes, the lines on standard error of all, and seconds."""
    begun = time.monotonic()
    codes = [wait(pid) for pid in start(folder, size, settings, before=before)]
    return {"codes": codes, "errors": errors(folder, size), "seconds": time.monotonic() - begun}


def errors(folder: Path, size: int) -> list[str]:
    """The lines on standard error; but not that torch found no name for an address, as it says where there is no network."""
    lines = [line for rank in range(size) for line in (folder / f"{rank}.stderr").read_text().splitlines()]
    return [line for line in lines if "hostname of the client socket cannot be retrieved" not in line]


def fingerprint(path: Path, last: int) -> dict[str, str]:
    """Digests of everything that a seed fixes in a finished run."""
    folder = path / "checkpoints" / f"step-{last:09d}"
    files = [*sorted(folder.iterdir()), *(path / name for name in ("metrics.jsonl", "evaluation.jsonl", "done.json"))]
    return {str(file.relative_to(path)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def at_step(step: int, on: int, act: Callable[[], Any]) -> Work:
    """Process `on` acts before it takes a step (counted from 1)."""

    def before(rank: int) -> None:
        real = trainer.train_step

        def acting(*args: Any) -> tuple[float, float]:
            if rank == on and args[-2] == step - 1:
                act()
            return real(*args)

        trainer.train_step = acting

    return before


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def steps(path: Path) -> list[int]:
    return RunDir.open(path).checkpoint_steps()


def exact(folder: Path, *sizes: str) -> dict:
    """The same bytes from 1, 2 and 4 processes, or from so many."""

    def small_buckets(rank: int) -> None:
        parallel.BUCKET = 100

    found = {}
    for size in sizes or ("1", "2", "4"):
        report = train(folder / size, int(size), EXACT, before=small_buckets)
        found[size] = report | {"fingerprint": fingerprint(folder / size / "run", NUM_STEPS)}
    return found


def in_turn(folder: Path) -> dict:
    """The same bytes from a run that several numbers of processes took turns at."""
    found, turns = exact(folder, "1"), folder / "turns"
    found["killed under 2"] = train(turns, 2, EXACT, before=at_step(10, 1, die)) | {"steps": steps(turns / "run")}
    told = at_step(16, 2, lambda: os.kill(os.getpid(), signal.SIGTERM))
    found["told under 4"] = train(turns, 4, EXACT, before=told) | {"steps": steps(turns / "run")}
    found["ended under 1"] = train(turns, 1, EXACT) | {"fingerprint": fingerprint(turns / "run", NUM_STEPS)}
    back = folder / "back"
    found["killed under 1"] = train(back, 1, EXACT, before=at_step(10, 0, die)) | {"steps": steps(back / "run")}
    found["ended under 2"] = train(back, 2, EXACT) | {"fingerprint": fingerprint(back / "run", NUM_STEPS)}
    return found


def dies(folder: Path) -> dict:
    """How all processes end when their leader does."""
    return train(folder / "leader", 3, config(accumulation_steps=1, parallel="ddp"), before=at_step(9, 0, die))


def stops(folder: Path) -> dict:
    """How all processes end when one stands still, and what is refused afterwards."""

    def impatient(rank: int) -> None:
        watch.PERIOD, watch.MISSED = 0.2, 10
        at_step(9, 1, lambda: os.kill(os.getpid(), signal.SIGSTOP))(rank)

    begun = time.monotonic()
    leader, stopped = start(folder / "stopped", 2, config(), before=impatient)
    code = wait(leader)
    seconds = time.monotonic() - begun
    os.kill(stopped, signal.SIGKILL)
    wait(stopped)
    found = {"one stops": {"codes": [code], "errors": errors(folder / "stopped", 2), "seconds": seconds}}
    again = folder / "stopped"
    with RunDir.open(again / "run", lock=True):
        found["in use"] = train(again, 2, config())
    found["differs"] = train(again, 2, config(learning_rate=0.02))
    return found


def unlike(folder: Path) -> dict:
    """How all processes end that cannot share their work, or that have different weights."""
    found = {"grains": train(folder / "grains", 3, config())}
    found["grains"]["made"] = (folder / "grains" / "run").exists()

    def decay(number: int) -> None:
        real = updates.take_step
        updates.take_step = lambda parameters, moments, spec, *rest: real(
            parameters, moments, replace(spec, weight_decay=0.01 * (1 + number)), *rest
        )

    found["other weights"] = train(folder / "unlike", 2, config(), before=decay) | {
        "steps": steps(folder / "unlike" / "run")
    }
    return found


def numbers(folder: Path, mode: str, what: str) -> dict:
    """Numbers that are not finite in one process."""

    def spoil() -> None:
        real = updates.target_loss

        def spoilt(*args: Any, **options: Any) -> torch.Tensor:
            loss = real(*args, **options)
            return loss * math.nan if what == "loss" else loss + (loss * 0).sqrt()  # whose slope is infinite

        updates.target_loss = spoilt

    path = folder / "spoilt"
    report = train(path, 2, config(parallel=mode), before=at_step(9, 1, spoil))
    return report | {"steps": steps(path / "run"), "records": len(read_journal(path / "run" / "metrics.jsonl"))}


def close(folder: Path, mode: str) -> dict:
    """DDP or FSDP2 beside one process, on sequences of unequal lengths: a part of a step has more labels than another."""
    found, path = {}, folder / "ragged.txt"
    path.write_text("".join(f"{'0123'[k % 4 :]}{'130' * (k % 3)}{k % 4}\n" for k in range(40)))
    settings = layers_of(mode) | {"process": {"name": "data", "path": str(path), "unit": "characters"}}
    for size in (1, 2, 3):
        report = train(folder / str(size), size, settings)
        found[str(size)] = report | {"fingerprint": fingerprint(folder / str(size) / "run", NUM_STEPS)}
    found["apart"] = {size: distances(folder / "1" / "run", folder / size / "run") for size in ("2", "3")}
    return found


def resumed(folder: Path, mode: str) -> dict:
    """DDP or FSDP2, killed and resumed with as many processes and with fewer."""
    found, settings = {}, layers_of(mode)
    for size in (1, 3):
        assert train(folder / str(size), size, settings)["codes"] == [0] * size
    found["3"] = {"fingerprint": fingerprint(folder / "3" / "run", NUM_STEPS)}
    turns, fewer = folder / "turns", folder / "fewer"
    found["killed"] = train(turns, 3, settings, before=at_step(10, 1, die)) | {"steps": steps(turns / "run")}
    shutil.copytree(turns, fewer)
    found["fewer"] = train(fewer, 1, settings) | {"apart": distances(folder / "1" / "run", fewer / "run")}
    found["again"] = train(turns, 3, settings) | {"fingerprint": fingerprint(turns / "run", NUM_STEPS)}
    return found


def layers_of(mode: str) -> dict:
    """Two layers, so that FSDP2 has something to divide."""
    return config(parallel=mode, model=CONFIG["model"] | {"num_layers": 2})


def compiled(folder: Path) -> dict:
    """Compiled models beside the same ones as they are, in each mode."""
    found = {}
    warnings.simplefilter("ignore")  # the compiler's own
    for mode, size in (("exact", 1), ("exact", 2), ("ddp", 2), ("fsdp", 2)):
        pair = [folder / f"{mode}-{size}-{name}" for name in ("plain", "compiled")]
        for path in pair:
            settings = config(
                parallel=mode, accumulation_steps=2, num_trajectories=0, compile=path.name.endswith("compiled")
            )
            report = train(path, size, settings)
        apart = distances(pair[0] / "run", pair[1] / "run") if report["codes"] == [0] * size else None
        found[f"{mode} {size}"] = report | {"apart": apart}
    return found


def distances(one: Path, other: Path) -> dict[str, float]:
    """Relative distances of weights (of all together) and losses (the largest) of two finished runs."""
    first, second = (
        store.read_tensors(run / "checkpoints" / f"step-{NUM_STEPS:09d}" / "model.safetensors") for run in (one, other)
    )
    apart = sum(float((first[name].double() - second[name].double()).square().sum()) for name in first)
    length = sum(float(first[name].double().square().sum()) for name in first)
    losses = [[record["loss"] for record in read_journal(run / "metrics.jsonl")] for run in (one, other)]
    return {"weights": math.sqrt(apart / length), "losses": max(abs(a - b) / a for a, b in zip(*losses, strict=True))}


def trained(asked: TrainCommandOptions) -> None:
    """What the verb does, without a page and with a short score."""
    assert asked.out is not None
    config = load_config(Path(asked.config), asked.overrides)
    training.train(config, asked.out, resume=asked.resume, options=TrainOptions(num_samples=16))


if __name__ == "__main__":
    verb.train = trained
    torch.set_num_threads(1)
    warnings.simplefilter("error")
    modes = {
        "exact": exact,
        "in turn": in_turn,
        "dies": dies,
        "stops": stops,
        "unlike": unlike,
        "numbers": numbers,
        "compiled": compiled,
    }
    modes |= {"close": close, "resumed": resumed}
    reports = {}
    for mode in sys.argv[2:]:
        folder = Path(sys.argv[1]) / mode
        folder.mkdir()
        training.train(
            config_from_data(config(num_steps=2)), folder / "warm", options=TrainOptions(num_samples=16)
        )  # compiled once, not in every child
        name = mode if mode in modes else mode.split()[0]
        reports[mode] = modes[name](folder, *mode.removeprefix(name).split())
    sys.stdout.write(json.dumps(reports) + "\n")
