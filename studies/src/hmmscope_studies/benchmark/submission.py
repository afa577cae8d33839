"""Submissions: train an entry on every task, score it, and write the results with a file of checksums (the seal)."""

import hashlib
import os
import re
import time
from itertools import count
from pathlib import Path
from typing import Any

from torch import nn

from hmmscope.analysis.initialization import Controls
from hmmscope.errors import InputError, RefusedError
from hmmscope.lab.model_file import kept_running
from hmmscope.lab.tasks.plans import in_words
from hmmscope.models.base import parameter_count
from hmmscope.models.user_module import UserModuleSpec, unwrapped
from hmmscope.runs.config import RunConfig
from hmmscope.runs.pipeline import model_io_of, untrained_model
from hmmscope.runs.training import TrainOptions, train
from hmmscope.schema import require, require_path, spec_to_data
from hmmscope.storage import disk, seals, store
from hmmscope.storage.journal import read_journal
from hmmscope.text import say, tell
from hmmscope.training.schedules import training_tokens
from hmmscope_studies.benchmark.card import Card, as_text, make_card
from hmmscope_studies.benchmark.entries import BenchmarkEntry, entry_of
from hmmscope_studies.benchmark.rates import SEARCH_SEED, choose_rate
from hmmscope_studies.benchmark.scoring import SCORED, ScoredSamples, predict, score
from hmmscope_studies.benchmark.tasks import BUDGETS, TIMES, VERSION, BenchmarkTask, Budget, tasks_of
from hmmscope_studies.benchmark.trial import in_a_line, require_causal, try_entry

FORMAT = "hmmscope-submission"
ENTRY, CARD, TEXT, SOURCE = "entry.json", "card.json", "card.txt", "model.py"
WEIGHTS, PREDICTIONS, MEASURED = "weights.safetensors", "predictions.safetensors", "measured.json"


@kept_running()
def benchmark(
    model: Any,
    out: str | Path | None = None,
    *,
    track: str = "light",
    seeds: int = 1,
    tasks: tuple[str, ...] | list[str] | None = None,
    num_steps: int | None = None,
    name: str | None = None,
    resume: bool = False,
    quiet: bool = True,
) -> Card:
    """Submit a model to HMM-bench: train it on the tasks of a track, score it, and write a submission.

    Each task starts from new initial weights, with fixed numbers of steps and samples. The learning rate is the best of
    1/3, 1 and 3 times the entry's rate on a separate seed. The digest of the trained weights seeds the scored samples,
    so that nobody can train on them.

    Args:
        model: Any module, a class or function that returns one, a registered name or a mapping with its fields, FILE.py
            with a function ``build(vocab_size, num_outputs, max_length)``, or FILE.py:NAME; see `entry_of`.
        out: Folder to create (default: ``hmm-bench`` / the model's name).
        track: "light" (eight tasks) or "full".
        seeds: Number of seeds, each a new training.
        tasks: Tasks to run (default: all of the track); a submission of some tasks is not ranked.
        num_steps: Number of training steps instead of the track's; the submission is then not ranked.
        name: Name in the leaderboard.
        resume: True resumes the submission in `out` after its finished tasks and seeds.
        quiet: True hides the progress.

    Raises:
        InputError: The model is invalid or fails on a task, or the track or a task is unknown.
        RefusedError: `out` exists (without `resume`), or contains another entry.
        DamagedError: The samples of a task differ from the benchmark's.
    """
    entry, budget = entry_of(model, name=name), BUDGETS.get(track)
    path = Path("hmm-bench") / re.sub(r"[^A-Za-z0-9._-]+", "-", entry.name) if out is None else require_path("out", out)
    chosen = tasks_of(track, tasks)
    assert budget is not None
    require(bool(chosen), "tasks", "must name at least one task", tasks)
    require(type(seeds) is int and 1 <= seeds <= 100, "seeds", "must be a whole number in [1, 100]", seeds)
    if num_steps is not None:
        require(
            type(num_steps) is int and num_steps >= 1, "num_steps", "must be a whole number of at least 1", num_steps
        )
        budget = Budget(track, num_steps, budget.batch_size, budget.parameters, budget.seconds)
    for task in chosen:
        task.require_frozen()
    about = _about(entry, budget, chosen, seeds)
    if not (resume and os.path.lexists(path / seals.SEAL)):
        for task in chosen:
            try_entry(config_of(entry, task, budget, 0), task, entry.layers)
    _open(path, about, entry, resume)
    if not quiet:
        runs = f"{len(chosen) * seeds} scored runs and {3 * len(chosen)} runs to choose learning rates"
        tell(f"plan: {runs}, {len(chosen)} tasks, {in_words(range(seeds))}")
    with disk.holding(path / "lock"):
        if os.path.lexists(path / seals.SEAL):
            seals.open_sealed(path)
            return Card(store.read_json(path / CARD, managed=True), path)
        for task in chosen:
            for seed in range(seeds):
                part = path / "tasks" / f"{task.name}-{seed}"
                if not part.is_dir():
                    measured = _enter(entry, task, budget, seed, path, part)
                    if not quiet:
                        solved, rate = measured["scores"]["share_solved"], measured["learning_rate"]
                        spent = f"learning rate {rate:g}, {measured['seconds']:.1f} seconds on one core"
                        say(f"{task.name}, seed {seed}: fraction solved {solved:.3f}, {spent}")
        card = make_card(about, chosen, read_measured(path, chosen, seeds))
        store.write_json(path / CARD, card)
        store.write_text(path / TEXT, as_text(card) + "\n")
        if os.path.lexists(path / "work"):
            store.remove_folder(path / "work")
        seals.write_seal(path, "submission", {"bench": VERSION, "tasks": card["tasks"]})
    return Card(card, path)


def read_measured(path: Path, tasks: tuple[BenchmarkTask, ...], seeds: int) -> dict[str, list[dict[str, Any]]]:
    folder = path / "tasks"
    return {
        task.name: [store.read_json(folder / f"{task.name}-{seed}" / MEASURED, managed=True) for seed in range(seeds)]
        for task in tasks
    }


def weights_digest(weights: dict[str, Any]) -> str:
    return hashlib.sha256(store.tensor_bytes(weights)).hexdigest()


def _about(entry: BenchmarkEntry, budget: Budget, tasks: tuple[BenchmarkTask, ...], seeds: int) -> dict[str, Any]:
    why = why_not_ranked(budget, tasks)
    return {
        "name": entry.name,
        "track": budget.track,
        "seeds": seeds,
        "entered": [task.name for task in tasks],
        "ranked": not why,
        "not_ranked": why,
        "num_steps": budget.num_steps,
        "batch_size": budget.batch_size,
        **chosen_by(entry),
        "source": entry.digest,
        **({"fields": dict(entry.fields)} if entry.fields else {}),
        **({"build": entry.build} if entry.build != "build" else {}),
    }


def why_not_ranked(budget: Budget, tasks: tuple[BenchmarkTask, ...]) -> str:
    if budget != BUDGETS[budget.track]:
        return f"{budget.num_steps} steps a task"
    return "" if tasks and tasks == tasks_of(budget.track, bench=tasks[0].bench) else "some tasks only"


def chosen_by(entry: BenchmarkEntry) -> dict[str, Any]:
    return {
        "training": {key: list(value) if isinstance(value, tuple) else value for key, value in entry.training.items()},
        "layers": None if entry.layers is None else list(entry.layers),
        "declared": spec_to_data(entry.declared),
    }


def _open(path: Path, about: dict[str, Any], entry: BenchmarkEntry, resume: bool) -> None:
    document = {"format": FORMAT, "bench": VERSION, **about}
    if os.path.lexists(path):
        if not resume:
            raise RefusedError(f"{path}: exists; choose another --out, or add --resume (resume=True in Python)")
        if not os.path.lexists(path / ENTRY):
            raise InputError(f"{path}: is not the folder of a submission")
        before = store.read_json(path / ENTRY, managed=True)
        differ = [
            key for key in document if key != "not_ranked" and before.get(key) != document[key]
        ]  # shown by "ranked"
        if differ:
            raise RefusedError(f"{path}: contains another entry (different: {', '.join(differ)}); choose another --out")
        return
    store.make_folder(path.parent)
    with store.new_folder(path, manifest=False) as folder:
        store.write_json(folder / ENTRY, document)
        if entry.source is not None:
            disk.write_bytes(folder / SOURCE, entry.source)
        store.make_folder(folder / "tasks")


def config_of(
    entry: BenchmarkEntry, task: BenchmarkTask, budget: Budget, seed: int, rate: float | None = None
) -> RunConfig:
    longest = task.corpus(0, TIMES)
    sizes = model_io_of(RunConfig(process=task.process, layout=longest.layout, target=task.target), task.asked(longest))
    try:
        model = entry.make(sizes, seed)
        training = dict(entry.training) | ({} if rate is None else {"learning_rate": rate})
        return task.config(model, budget, training, seed)
    except (Exception, SystemExit) as error:
        raise in_a_line(task, error) from error


def controls_of(entry: BenchmarkEntry, task: BenchmarkTask, budget: Budget, seed: int) -> Controls | None:
    process = task.corpus(0).process
    seeds = count(seed + 1)
    if not isinstance(config_of(entry, task, budget, seed).model, UserModuleSpec):
        return None
    return lambda: unwrapped(untrained_model(config_of(entry, task, budget, next(seeds)), process))


def _enter(
    entry: BenchmarkEntry, task: BenchmarkTask, budget: Budget, seed: int, path: Path, part: Path
) -> dict[str, Any]:
    work = path / "work" / part.name
    store.make_folder(work.parent)
    rates = _rates(entry, task, budget, work.parent)
    began = time.process_time()
    config = config_of(entry, task, budget, seed, rates["learning_rate"])
    before, clock = path / "work" / f"{part.name}.json", time.process_time()
    earlier = store.read_json(before, managed=True)["seconds"] if os.path.lexists(before) else 0.0
    try:
        run = train(config, work, resume=os.path.lexists(work), options=TrainOptions(num_samples=2))
    except BaseException:  # a resumed submission counts the time used
        store.write_json(before, {"seconds": earlier + time.process_time() - clock})
        raise
    spent = sum(row["spent"] for row in read_journal(work / "timing.jsonl") if row.get("phase") == "steps")
    model: nn.Module = run.model
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    digest = weights_digest(weights)
    samples = ScoredSamples.of(task, digest)
    try:
        stored = predict(model, task, samples, entry.layers, controls_of(entry, task, budget, seed))
        require_causal(model, task, samples, SCORED)
    except InputError as error:
        raise in_a_line(task, error) from None
    columns, length = config.layout.context_length, config.layout.num_observations
    measured = {
        "task": task.name,
        "seed": seed,
        "weights": digest,
        "samples": samples.trained.digest(4),
        "learning_rate": rates["learning_rate"],
        "rates": rates,
        "parameters": parameter_count(model),
        "tokens": training_tokens(config.training, columns, length),
        "training_seconds": earlier + spent,
        "seconds": earlier + time.process_time() - began,
        "scores": score(task, samples, stored),
    }
    with store.new_folder(part, manifest=False) as folder:
        store.write_tensors(folder / WEIGHTS, weights)
        store.write_tensors(folder / PREDICTIONS, stored)
        store.write_json(folder / MEASURED, measured)
    store.remove_folder(work)
    return measured


def _rates(entry: BenchmarkEntry, task: BenchmarkTask, budget: Budget, work: Path) -> dict[str, Any]:
    kept = work / f"{task.name}-rates.json"
    if not os.path.lexists(kept):
        found = choose_rate(
            lambda rate: config_of(entry, task, budget, SEARCH_SEED, rate), task, dict(entry.training), work
        )
        store.write_json(kept, found)
    rates: dict[str, Any] = store.read_json(kept, managed=True)
    return rates
