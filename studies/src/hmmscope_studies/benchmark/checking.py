"""Verification of a submission from its stored predictions, or by running its model."""

import hashlib
import os
import tempfile
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

from torch import Tensor

from hmmscope.errors import DamagedError, InputError, RefusedError
from hmmscope.lab.model_file import ModelFile, split_name
from hmmscope.schema import parse_spec, require_path
from hmmscope.storage import disk, seals, store
from hmmscope.text import numbers_in
from hmmscope.training.schedules import training_tokens
from hmmscope_studies.benchmark.card import as_text, make_card
from hmmscope_studies.benchmark.entries import BenchmarkEntry, Declared
from hmmscope_studies.benchmark.rates import best_rate, rates_of
from hmmscope_studies.benchmark.recompute import in_child, recompute
from hmmscope_studies.benchmark.scoring import ScoredSamples, score
from hmmscope_studies.benchmark.submission import (
    CARD,
    ENTRY,
    FORMAT,
    MEASURED,
    PREDICTIONS,
    SOURCE,
    TEXT,
    WEIGHTS,
    read_measured,
    weights_digest,
    why_not_ranked,
)
from hmmscope_studies.benchmark.tasks import BUDGETS, VERSIONS, BenchmarkTask, Budget, tasks_of

#: Tensors by name: weights, or predictions.
Stored = dict[str, Tensor]
#: Tolerances of scores from the same predictions, and of probabilities from the same weights on another machine.
SAME, ALIKE = 1e-9, 1e-3
_COMPILED = {"pyc", "pyo", "so", "pyd", "dll", "dylib"}
_KINDS: dict[str, Any] = {
    **{"name": str, "track": str, "entered": list, "seeds": int, "num_steps": int, "batch_size": int, "source": str},
    **{"ranked": bool, "not_ranked": str, "training": dict, "layers": list | None, "declared": dict},
}
_MEASURED: dict[str, Any] = {
    "weights": str,
    "parameters": int,
    "seconds": float,
    "training_seconds": float,
    "scores": dict,
}


def check_submission(folder: str | Path, *, run: Any = None) -> str:
    """Score a submission again, compare all results, and return a one-line description.

    Without `run`, no code of the submission is executed. With `run`, the model gets the stored weights, and its
    predictions, number of parameters and recipe are compared with the stored ones. A model file runs in a separate
    process, and only if its SHA-256 matches the entry.

    Args:
        folder: Folder of a submission.
        run: The entered model (file or Python object) to run again, or None.

    Raises:
        InputError: The folder is not a submission, or the model fails.
        RefusedError: The benchmark version is unknown, the submission is unfinished, or `run` is not the entered model.
        DamagedError: A result differs; the message names the first difference.
        ResourceError: The subprocess that runs the model file exceeds its limit of memory or time.
    """
    path = require_path("folder", folder)
    about = store.read_json(path / ENTRY, managed=True) if (path / ENTRY).is_file() else None
    if not isinstance(about, dict) or about.get("format") != FORMAT:
        raise InputError(f"{path}: is not the folder of a submission")
    if about.get("bench") not in VERSIONS:
        raise RefusedError(
            f"{path}: belongs to HMM-bench {about.get('bench')}; this installation reads versions {', '.join(VERSIONS)}"
        )
    found = seals.seal_report(path)
    if found.kind is None:
        raise RefusedError(f"{path}: has no seal, so it is not finished; resume it with benchmark --resume")
    tasks, budget = _check_entry(path / ENTRY, about)
    _check_copy(path, about["source"])
    _refuse_bytecode(path)
    run = None if run is None else _entered(path, about, run)
    for task in tasks:
        task.require_frozen()
        for seed in range(about["seeds"]):
            _check_part(path / "tasks" / f"{task.name}-{seed}", task, seed, budget)
        _check_rates(path, task, about)
    stated = {key: value for key, value in about.items() if key not in ("format", "bench")}
    card = make_card(stated, tasks, read_measured(path, tasks, about["seeds"]))
    _same(store.read_json(path / CARD, managed=True), card, str(path / CARD))
    if _without_words(disk.read_bytes(path / TEXT, managed=True).decode(errors="replace"), tasks) != _without_words(
        as_text(card), tasks
    ):
        raise DamagedError(f"{path / TEXT}: does not follow from {CARD}")
    parts = {f"{task.name}-{seed}" for task in tasks for seed in range(about["seeds"])}
    beyond = sorted(one for one in (path / "tasks").iterdir() if one.name not in parts)
    if beyond:
        raise DamagedError(f"{beyond[0]}: is not part of the submission; remove it")
    if run is not None:
        _run_again(path, about, run, tasks, budget)
    how = f"stored predictions, {'without running its code' if run is None else 'which the model reproduces'}"
    return f"{path}: {about['name']}, {about['track']} track: {len(parts)} scores recomputed from {how}; {found}"


def _check_entry(path: Path, about: dict[str, Any]) -> tuple[tuple[BenchmarkTask, ...], Budget]:
    def none_has(key: str) -> DamagedError:
        return DamagedError(f"{path}: {key} is {str(about.get(key))[:60]}, which is not valid for an entry")

    for key, kind in _KINDS.items():
        if not isinstance(about.get(key), kind) or (kind is int and (type(about[key]) is bool or about[key] < 1)):
            raise none_has(key)
    try:
        tasks = tasks_of(about["track"], about["entered"], about["bench"])
        declared = parse_spec(Declared, about["declared"], "declared")
        BenchmarkEntry(name=about["name"], make=lambda ports, seed: None, training=about["training"], declared=declared)
    except (InputError, TypeError) as error:
        raise DamagedError(f"{path}: {error}") from None
    budget = replace(BUDGETS[about["track"]], num_steps=about["num_steps"])
    follows = {
        "entered": [task.name for task in tasks],
        "batch_size": budget.batch_size,
        "ranked": not why_not_ranked(budget, tasks),
    }
    for key, value in follows.items():
        if about[key] != value or not tasks:
            raise none_has(key)
    if bool(about["not_ranked"]) == about["ranked"]:
        raise none_has("not_ranked")
    return tasks, budget


def _check_copy(path: Path, digest: str) -> None:
    copy = path / SOURCE
    found = hashlib.sha256(disk.read_bytes(copy, managed=True)).hexdigest() if os.path.lexists(copy) else ""
    if found != digest:
        what = (
            "is missing"
            if not found
            else "was not part of the entry"
            if not digest
            else "is not the model file that was entered"
        )
        raise DamagedError(f"{copy}: {what}")


def _entered(path: Path, about: dict[str, Any], run: Any) -> Any:
    if isinstance(run, str | Path) and (path_of := split_name(str(run))[0]).endswith(".py"):
        run = ModelFile.read(Path(path_of), about.get("build", "build"))
    elif isinstance(run, str) and "fields" in about:
        run = {"name": run, **about["fields"]}
    digest = run.digest if isinstance(run, ModelFile) else ""
    if digest != about["source"]:
        raise RefusedError(
            f"{run.path if digest else run}: is not the model file of {path} (its SHA-256 differs); use {path / SOURCE}"
            if about["source"]
            else f"{path}: was entered from Python, not from a file; give the same object to check_submission"
        )
    return run


def _refuse_bytecode(path: Path) -> None:
    for one in sorted(path.rglob("*")):
        if one.name == "__pycache__" or not _COMPILED.isdisjoint(one.name.lower().split(".")[1:]):
            raise DamagedError(f"{one}: is bytecode or machine code, which is not allowed in a submission; remove it")


def _check_part(part: Path, task: BenchmarkTask, seed: int, budget: Budget) -> None:
    measured = store.read_json(part / MEASURED, managed=True)
    for key, kind in _MEASURED.items():
        value: Any = measured.get(key) if isinstance(measured, dict) else None
        if type(value) is not kind or (kind in (int, float) and not 0 <= value < inf):
            raise DamagedError(f"{part / MEASURED}: {key} is {str(value)[:60]}, which is not valid")
    weights = store.read_tensors(part / WEIGHTS, managed=True)
    digest = weights_digest(weights)
    if digest != measured["weights"]:
        raise DamagedError(f"{part / WEIGHTS}: contains other weights than those with the digest in {MEASURED}")
    most = sum(one.numel() for one in weights.values())
    if measured["parameters"] > most:
        raise DamagedError(
            f"{part / MEASURED}: parameters is {measured['parameters']}, but {WEIGHTS} has only {most} numbers"
        )
    samples = ScoredSamples.of(task, digest)
    config = task.config("lstm", budget, {}, seed)
    expected = {
        "task": task.name,
        "seed": seed,
        "samples": samples.trained.digest(4),
        "tokens": training_tokens(config.training, config.layout.context_length, config.layout.num_observations),
    }
    for key, value in expected.items():
        if measured.get(key) != value:
            raise DamagedError(
                f"{part / MEASURED}: {key} is {str(measured.get(key))[:60]}, but must be {str(value)[:60]}"
            )
    stored = store.read_tensors(part / PREDICTIONS, managed=True)
    try:
        again = score(task, samples, stored)
    except InputError as error:
        raise DamagedError(f"{part / PREDICTIONS}: {error}") from None
    _same(measured["scores"], again, f"{part / MEASURED}: scores")


def _check_rates(path: Path, task: BenchmarkTask, about: dict[str, Any]) -> None:
    found = [
        store.read_json(path / "tasks" / f"{task.name}-{seed}" / MEASURED, managed=True)
        for seed in range(about["seeds"])
    ]
    for seed, measured in enumerate(found if task.bench != "1" else []):
        where = f"{path / 'tasks' / f'{task.name}-{seed}' / MEASURED}: rates"
        rates = measured.get("rates")
        tried = rates.get("tried") if isinstance(rates, dict) else None
        if not isinstance(tried, list) or any(
            not isinstance(one, dict) or set(one) != {"learning_rate", "excess"} for one in tried
        ):
            raise DamagedError(f"{where} are missing")
        _same([one["learning_rate"] for one in tried], rates_of(about["training"]), f"{where}.tried")
        if not any(isinstance(one["excess"], float) for one in tried):
            raise DamagedError(f"{where} have no excess")
        for stored in (rates.get("learning_rate"), measured.get("learning_rate")):
            _same(stored, best_rate(tried), f"{where}.learning_rate")
        _same(rates, found[0]["rates"], where)


def _run_again(path: Path, about: dict[str, Any], run: Any, tasks: tuple[BenchmarkTask, ...], budget: Budget) -> None:
    parts = [(task, seed) for task in tasks for seed in range(about["seeds"])]
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch)
        if isinstance(run, ModelFile):
            in_child(path, run, out, [f"{task.name}-{seed}" for task, seed in parts])
        else:
            recompute(path, run, out)
        chosen = store.read_json(out / ENTRY, managed=False)
        for key in ("training", "layers", "declared"):
            _same(about[key], chosen.get(key) if isinstance(chosen, dict) else chosen, f"{path / ENTRY}: {key}")
        for task, seed in parts:
            part, again = path / "tasks" / f"{task.name}-{seed}", out / f"{task.name}-{seed}"
            measured = store.read_json(part / MEASURED, managed=True)
            _same(
                measured["parameters"],
                store.read_json(again / MEASURED, managed=False),
                f"{part / MEASURED}: parameters",
            )
            stored, found = (store.read_tensors(one / PREDICTIONS, managed=False) for one in (part, again))
            _require_alike(part, task, ScoredSamples.of(task, measured["weights"]), stored, found)


def _require_alike(part: Path, task: BenchmarkTask, samples: ScoredSamples, stored: Stored, found: Stored) -> None:
    if found.keys() != stored.keys():
        raise DamagedError(f"{part / PREDICTIONS}: has {sorted(stored)}, but the model gives {sorted(found)}")
    for name in found.keys() - {"untrained"}:
        one, other = found[name].float(), stored[name]
        if one.shape != other.shape:
            raise DamagedError(
                f"{part / PREDICTIONS}: {name} has shape {tuple(other.shape)}, but the model gives {tuple(one.shape)}"
            )
        if name != "read" and task.asked(samples.trained).kind == "law":
            one, other = one.exp(), other.exp()
        apart = (one[:1] - other[:1] if name == "read" else one - other).abs().max().item()
        if not apart <= ALIKE:
            raise DamagedError(
                f"{part / PREDICTIONS}: {name} differs by up to {apart:.2g} from the model's predictions (limit "
                f"{ALIKE:g})"
            )


def _without_words(text: str, tasks: tuple[BenchmarkTask, ...]) -> tuple[list[str], list[str], str]:
    lines = text.splitlines()
    rows = [line for line in lines if line.split(" ")[0] in {task.name for task in tasks}]
    beside = [
        line for line in lines[: max(0, len(lines) - len(rows) - 1)]
    ]  # the last line before the rows is their header
    return rows, numbers_in(" ".join(beside)), text.partition("(")[2].partition(", ")[0]


def _same(stored: Any, again: Any, where: str) -> None:
    if isinstance(stored, dict) and isinstance(again, dict) and stored.keys() == again.keys():
        for key, value in stored.items():
            _same(value, again[key], f"{where}.{key}")
    elif isinstance(stored, list) and isinstance(again, list) and len(stored) == len(again):
        for number, (one, other) in enumerate(zip(stored, again, strict=True)):
            _same(one, other, f"{where}[{number}]")
    elif isinstance(stored, float) and isinstance(again, float | int):
        if not abs(stored - again) <= SAME * max(1.0, abs(stored)):
            raise DamagedError(f"{where} is {stored}, but recomputing it gives {float(again)}")
    elif stored != again:
        raise DamagedError(f"{where} is {str(stored)[:60]}, but recomputing it gives {str(again)[:60]}")
