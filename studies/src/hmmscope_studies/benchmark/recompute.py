"""Recomputation of a submission's predictions from its model and weights.

    python -P -m hmmscope_studies.benchmark.recompute

This command runs a model file, for `hmmscope check --run`, with limits on processor time, memory and file size. The
limits are not a sandbox.
"""

import json
import os
import resource
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from hmmscope.errors import DamagedError, HmmscopeError, InputError, RefusedError, ResourceError, code_and_line
from hmmscope.lab.model_file import ModelFile, kept_running, one_line
from hmmscope.models.base import parameter_count
from hmmscope.models.user_module import unwrapped
from hmmscope.runs.pipeline import untrained_model
from hmmscope.storage import store
from hmmscope.training.state import load_weights
from hmmscope_studies.benchmark.entries import entry_of
from hmmscope_studies.benchmark.scoring import SCORED, ScoredSamples, predict
from hmmscope_studies.benchmark.submission import (
    ENTRY,
    MEASURED,
    PREDICTIONS,
    WEIGHTS,
    chosen_by,
    config_of,
    controls_of,
)
from hmmscope_studies.benchmark.tasks import BUDGETS, tasks_of
from hmmscope_studies.benchmark.trial import require_causal

#: Limits of the process of a model file: seconds on one core per task and seed, and bytes.
SECONDS, MEMORY, FILE = 600, 16 * 2**30, 2**30
_ERROR = "error.json"
_ERRORS: dict[int, type[HmmscopeError]] = {
    one.exit_code: one for one in (InputError, RefusedError, DamagedError, ResourceError)
}


def recompute(path: Path, run: Any, out: Path) -> None:
    """Write to `out` the training recipe of a submission's model, and its predictions with the stored weights.

    Raises:
        InputError: The model fails.
        DamagedError: The stored weights do not fit the model, or predictions depend on later symbols.
    """
    about = store.read_json(path / ENTRY, managed=True)
    entry = entry_of(run, name=about["name"])
    store.write_json(out / ENTRY, chosen_by(entry))
    budget = replace(BUDGETS[about["track"]], num_steps=about["num_steps"])
    for task in tasks_of(about["track"], about["entered"], about["bench"]):
        for seed in range(about["seeds"]):
            part, again = path / "tasks" / f"{task.name}-{seed}", out / f"{task.name}-{seed}"
            samples = ScoredSamples.of(task, store.read_json(part / MEASURED, managed=True)["weights"])
            model = unwrapped(untrained_model(config_of(entry, task, budget, seed), samples.trained.process))
            parameters = parameter_count(model)
            try:
                load_weights(model, store.read_tensors(part / WEIGHTS, managed=True))
            except Exception as error:
                line = " ".join(str(error).split())[:200]
                raise DamagedError(f"{part / WEIGHTS}: its weights do not fit the given model ({line})") from None
            try:
                found = predict(model, task, samples, entry.layers, controls_of(entry, task, budget, seed))
                require_causal(model, task, samples, SCORED)
            except InputError as error:
                raise DamagedError(f"{part}: {error}") from None
            store.make_folder(again)
            store.write_json(again / MEASURED, parameters)
            store.write_tensors(again / PREDICTIONS, found)


def in_child(path: Path, file: ModelFile, out: Path, parts: list[str]) -> None:
    """Run `recompute` in a separate process that executes the bytes of `file`; `parts` names its results (task-seed).

    Raises:
        InputError: The process ends before all results exist.
        ResourceError: The process exceeds its limit of memory or time.
        HmmscopeError: See `recompute`.
    """
    seconds = SECONDS * len(parts)
    message: dict[str, Any] = {"path": os.fspath(path), "file": os.fspath(file.path), "out": os.fspath(out)}
    message |= {"seconds": seconds, "memory": MEMORY, "size": FILE, "length": len(file.source), "build": file.name}
    words = [sys.executable, "-P", "-m", "hmmscope_studies.benchmark.recompute"]
    child = subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        assert child.stdin is not None
        with suppress(BrokenPipeError):  # it has ended; see its exit code
            child.stdin.write(json.dumps(message).encode() + b"\n" + file.source)
            child.stdin.flush()
        code = child.wait(timeout=4 * seconds)
    except subprocess.TimeoutExpired:  # it hangs
        code = -signal.SIGXCPU
    finally:
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
    if code in (-signal.SIGXCPU, -signal.SIGKILL):
        raise ResourceError(
            f"{file.path}: was stopped; a model file may use {seconds:,} seconds of one core, {MEMORY >> 20:,} MiB of "
            f"memory and files of {FILE >> 20:,} MiB"
        )
    if (out / _ERROR).is_file():
        told = store.read_json(out / _ERROR, managed=False)
        number, line = (told.get("code"), str(told.get("line"))) if isinstance(told, dict) else (2, str(told))
        raise _ERRORS.get(number if isinstance(number, int) else 2, InputError)(line)
    wanted = [ENTRY, *(f"{part}/{name}" for part in parts for name in (MEASURED, PREDICTIONS))]
    if missing := [name for name in wanted if not (out / name).is_file()]:
        raise InputError(f"{file.path}: ended its process (exit code {code}) before writing {missing[0]}")


def _end_with_parent() -> None:
    with suppress(OSError):
        while os.read(0, 1024):
            pass
    os.kill(os.getpid(), signal.SIGKILL)


def _limit(seconds: int, memory: int, size: int) -> None:
    limits = {"CPU": seconds, "DATA": memory, "FSIZE": size, "CORE": 0}
    for name, most in limits.items():
        kind = getattr(resource, f"RLIMIT_{name}")
        hard = resource.getrlimit(kind)[1]
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        with suppress(ValueError, OSError):
            resource.setrlimit(kind, (most, most))


def main() -> int:
    message = json.loads(sys.stdin.buffer.readline())
    source = sys.stdin.buffer.read(message["length"])
    threading.Thread(target=_end_with_parent, daemon=True).start()
    file, out = ModelFile(Path(message["file"]), source, message["build"]), Path(message["out"])
    _limit(message["seconds"], message["memory"], message["size"])
    try:
        with one_line(f"model: {file.path}"), kept_running():
            recompute(Path(message["path"]), file, out)
    except Exception as error:
        code, line = code_and_line(error)
        what = line if isinstance(error, HmmscopeError) else f"model: {file.path}: {line}"
        store.write_json(out / _ERROR, {"code": code, "line": what})
        return code
    return 0


if __name__ == "__main__":
    sys.exit(main())
