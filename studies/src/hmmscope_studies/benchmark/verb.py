"""The verb `benchmark`."""

from pathlib import Path
from typing import Any

from hmmscope.errors import InputError
from hmmscope.lab.experiments.failures import Failures
from hmmscope.lab.model_file import split_name
from hmmscope.lab.verbs.output_paths import require_ours
from hmmscope.lab.verbs.seed_lists import refused
from hmmscope.storage import store
from hmmscope.text import say
from hmmscope_studies.benchmark.board import BOARD, keep_card, markdown, page, read_cards
from hmmscope_studies.benchmark.card import as_text
from hmmscope_studies.benchmark.entries import entry_of
from hmmscope_studies.benchmark.options import BenchmarkOptions
from hmmscope_studies.benchmark.submission import benchmark as enter
from hmmscope_studies.benchmark.tasks import BUDGETS, VERSION, tasks_of


def benchmark(options: BenchmarkOptions) -> None:
    """Submit models and print their cards; or read submissions and write the leaderboard."""
    if options.leaderboard is not None:
        _make_board(options, options.leaderboard)
        return
    if "seeds" in options.overrides:
        raise refused(options.overrides["seeds"], "the benchmark takes no list of seeds")
    fields = _fields(options)
    if not options.models:
        _list(options.track)
        return
    chosen = None if options.tasks is None else tuple(name.strip() for name in options.tasks.split(","))
    entered = [{"name": model, **fields} if fields else model for model in options.models]
    for one in entered:
        entry_of(one)  # refuse a wrong name before hours of training
    if len(entered) == 1:
        _enter(options, options.models[0], entered[0], chosen)
        return
    with Failures("benchmark") as failures:
        for model, one in zip(options.models, entered, strict=True):
            with failures.of(model):
                _enter(options, model, one, chosen)


def _enter(options: BenchmarkOptions, model: str, entered: Any, tasks: tuple[str, ...] | None) -> None:
    file, attribute = split_name(model)
    name = attribute or (Path(file).stem if file.endswith(".py") else model)
    alone = len(options.models) == 1 and options.out is not None
    folder = Path(options.out or "hmm-bench") if alone else Path(options.out or "hmm-bench") / name
    card = enter(
        entered,
        folder,
        track=options.track,
        seeds=options.num_seeds,
        tasks=tasks,
        num_steps=options.steps,
        resume=options.resume,
        quiet=options.quiet,
    )
    say(as_text(card.data))
    say(f"submission: {folder}")
    if options.copy_card is not None:
        say(f"card: {keep_card(folder, Path(options.copy_card))}")


def _fields(options: BenchmarkOptions) -> dict[str, str]:
    for key in options.overrides:
        if not key.startswith("model."):
            raise InputError(f"--{key}: the benchmark allows only fields of the model, such as --model.width 64")
    files = [model for model in options.models if split_name(model)[0].endswith(".py")]
    if options.overrides and (files or not options.models):
        what = f"{files[0]} builds its own model" if files else "no model is given"
        raise InputError(f"--{next(iter(options.overrides))}: is a field of a registered model, and {what}")
    return {key.removeprefix("model."): value for key, value in options.overrides.items()}


def _make_board(options: BenchmarkOptions, board: str) -> None:
    if options.models:
        raise InputError("--leaderboard: reads submissions; give no model with it")
    cards = read_cards(board, options.check)
    say(markdown(cards).rstrip())
    page_file = Path(options.out or board) / f"{BOARD}.html"
    require_ours(page_file)
    require_ours(page_file.with_suffix(".md"), markdown(cards).splitlines()[0])
    store.make_folder(page_file.parent)
    store.write_text(page_file, page(cards))
    store.write_text(page_file.with_suffix(".md"), markdown(cards))
    say(f"page: {page_file}")


def _list(track: str) -> None:
    found = tasks_of(track)
    budget = BUDGETS[track]
    steps = f"{budget.num_steps:,} steps of {budget.batch_size} samples each"
    say(f"HMM-bench {VERSION}, {track} track: {len(found)} tasks, {steps}")
    limits = f"{budget.parameters:,} parameters and {budget.seconds:,} seconds of one core"
    say(f"at most {limits} for all tasks and one seed")
    for task in found:
        say(f"{task.name:<16} {task.kind:<20} {task.about}")
