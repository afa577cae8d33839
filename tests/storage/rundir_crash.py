"""Processes that are killed, race and run out of disk; run as a script: rundir_crash.py MODE FOLDER [ARGUMENT ...].

One process with torch imported forks the victims, so a kill costs milliseconds. It prints one JSON object.
"""

import json
import os
import random
import resource
import signal
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import torch

from hmmscope.errors import DamagedError, HmmscopeError, ResourceError
from hmmscope.storage import disk
from hmmscope.storage.rundir import RunDir, read_journal, verify_folder

Tensors = dict[str, dict[str, torch.Tensor]]


def tensors_at(step: int) -> Tensors:
    """What checkpoint `step` holds; about 50 kB."""
    return {
        "model": {"weight": torch.full((64, 96), float(step)), "bias": torch.arange(96.0) + step},
        "optimizer": {"moment": torch.full((64, 96), -float(step))},
    }


def same(left: Tensors, right: Tensors) -> bool:
    """Equal names and equal values."""
    return left.keys() == right.keys() and all(
        left[group].keys() == right[group].keys()
        and all(torch.equal(left[group][name], right[group][name]) for name in left[group])
        for group in left
    )


def resume(run: RunDir) -> int:
    """What a resumed training does first; returns the step to go on from."""
    found = run.load_checkpoint()
    run.metrics.truncate(found[2]["journal_length"] if found else 0)
    return found[0] if found else 0


def train(path: Path, acknowledged: int) -> None:
    """Save checkpoints for ever; a byte says that it begins, then each step that is safe is written to the pipe."""
    run = RunDir.open(path, lock=True)
    step = resume(run)
    os.write(acknowledged, b"\n")
    while True:
        step += 1
        run.metrics.append({"step": step})
        run.save_checkpoint(step, tensors_at(step), {"note": step})
        os.write(acknowledged, b"%d\n" % step)


def fork(work: Callable[[int], None]) -> tuple[int, int]:
    """A child that runs `work(write end of a pipe)`; its process id and the read end."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(read)
            work(write)
            os._exit(0)
        except HmmscopeError as error:
            os._exit(error.exit_code)
        finally:
            os._exit(70)
    os.close(write)
    return pid, read


def violation(path: Path, acknowledged: int) -> str | None:
    """What is wrong with the run after a kill, or None."""
    with RunDir.open(path, lock=True) as run:
        if any(name.startswith(".tmp-") for name in os.listdir(path / "checkpoints") + os.listdir(path)):
            return "leftovers"
        try:
            for step in run.checkpoint_steps():
                verify_folder(path / "checkpoints" / f"step-{step:09d}")
            found = run.load_checkpoint()
        except DamagedError as error:
            return str(error)
        step, tensors, state = found or (0, {}, {"journal_length": 0})
        if step < acknowledged:
            return f"step {acknowledged} was acknowledged, {step} recovered"
        if found and not (same(tensors, tensors_at(step)) and state["note"] == step):
            return f"step {step} has other content"
        run.metrics.truncate(state["journal_length"])
        if read_journal(path / "metrics.jsonl") != [{"step": number} for number in range(1, step + 1)]:
            return f"journal at step {step} has other records"
    return None


def kills(folder: Path, number: int, seed: int, variant: str) -> dict:
    """Kill a saving process `number` times; stop at the first violation."""
    rng = random.Random(seed)
    path = folder / "run"
    with RunDir.create(path, {}) as run:
        times = []
        for step in range(1, 8):
            start = time.perf_counter()
            run.metrics.append({"step": step})
            run.save_checkpoint(step, tensors_at(step), {"note": step})
            times.append(time.perf_counter() - start)
    if variant == "in place":
        disk.temporary_sibling = lambda path: path  # type: ignore[assignment]
    interrupted, last = 0, 7
    for killed in range(1, number + 1):
        pid, read = fork(lambda write: train(path, write))
        assert os.read(read, 1) == b"\n"
        time.sleep(rng.uniform(0, 3 * statistics.median(times)))
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        with os.fdopen(read) as pipe:
            last = max([last, *(int(line) for line in pipe.read().split())])
        interrupted += any(name.startswith(".tmp-") for name in os.listdir(path / "checkpoints"))
        if wrong := violation(path, last):
            return {"killed": killed, "interrupted": interrupted, "steps": last, "violation": wrong}
    return {"killed": number, "interrupted": interrupted, "steps": last, "violation": None}


def race(folder: Path, rounds: int) -> dict:
    """Eight processes create one run, many times; counts how many won, and which codes the others ended with."""
    winners, codes = [], set()
    for number in range(rounds):
        path = folder / f"run{number}"
        hold, gate = os.pipe()

        def work(write: int, path: Path = path, hold: int = hold, gate: int = gate) -> None:
            os.close(gate)
            os.read(hold, 1)  # returns when the parent closes the gate
            RunDir.create(path, {"by": os.getpid()})

        children = [fork(work) for _ in range(8)]
        os.close(hold)
        os.close(gate)
        statuses = {pid: os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid, read in children}
        won = [pid for pid, status in statuses.items() if status == 0]
        winners.append(len(won))
        codes |= set(statuses.values())
        assert RunDir.open(path).config == {"by": won[0]}
    return {"winners": winners, "codes": sorted(codes), "names": sorted(os.listdir(folder))}


def read_while_writing(folder: Path, number: int, distinct: int) -> dict:
    """A reader without the lock beside a writer that rotates checkpoints: sees whole ones, in order.

    It reads until it has read so often and seen so many different ones.
    """
    path = folder / "run"
    RunDir.create(path, {}).unlock()
    pid, read = fork(lambda write: train(path, write))
    try:
        os.read(read, 16)
        seen = []
        while len(seen) < number or len(set(seen)) < distinct:
            found = RunDir.open(path).load_checkpoint()
            if found:
                assert same(found[1], tensors_at(found[0]))
                seen.append(found[0])
            while os.read(read, 16)[-1:] != b"\n":  # do not let the pipe fill up
                pass
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    return {"ordered": seen == sorted(seen)}


def file_size_limit(folder: Path) -> dict:
    """Save under every limit of the file size, from 0 to enough: each save fails cleanly or is whole."""
    path = folder / "run"
    run = RunDir.create(path, {})
    run.save_checkpoint(1, tensors_at(1), {})
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    refused, messages = 0, set()
    for limit in [*range(0, 400, 13), *range(400, 24_000, 1900)]:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
        try:
            run.save_checkpoint(2, tensors_at(2), {})
        except ResourceError as error:
            refused += 1
            messages.add(str(error).split(" ", 1)[1])
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
        assert run.checkpoint_steps() == [1]
        assert os.listdir(path / "checkpoints") == ["step-000000001"]
        found = run.load_checkpoint()
        assert found
        assert same(found[1], tensors_at(1))
    run.save_checkpoint(2, tensors_at(2), {})
    journal_failures = 0
    for step in range(200):
        length = run.metrics.length
        resource.setrlimit(resource.RLIMIT_FSIZE, (length + step % 40, hard))
        try:
            run.metrics.append({"step": step, "loss": 0.25})
        except ResourceError:
            journal_failures += 1
            assert (path / "metrics.jsonl").stat().st_size == length == run.metrics.length
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    data = (path / "metrics.jsonl").read_bytes()
    whole = data.endswith(b"\n") and len(read_journal(path / "metrics.jsonl")) == data.count(b"\n")
    return {"refused": refused, "messages": sorted(messages), "journal_failures": journal_failures, "whole": whole}


if __name__ == "__main__":
    torch.set_num_threads(1)
    warnings.simplefilter("error")
    mode, folder, arguments = sys.argv[1], Path(sys.argv[2]), sys.argv[3:]
    if mode == "kills":
        report = kills(folder, int(arguments[0]), int(arguments[1]), arguments[2])
    elif mode == "race":
        report = race(folder, int(arguments[0]))
    elif mode == "read":
        report = read_while_writing(folder, *map(int, arguments))
    elif mode == "limit":
        report = file_size_limit(folder)
    elif mode == "hold":
        run = RunDir.open(folder / "run", lock=True)
        print(os.getpid(), flush=True)
        signal.pause()
    print(json.dumps(report))
