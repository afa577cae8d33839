"""Runs of one configuration but for their seeds, trained together: the seeds and instances of a grid."""

import os
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from hmmscope.analysis.curves import evaluate
from hmmscope.errors import InputError, NonFiniteError, RefusedError
from hmmscope.runs.config import RunConfig
from hmmscope.runs.pipeline import (
    Run,
    _folder,
    _score_rows,
    _settings,
    bayes_floor,
    fresh_model,
    load_run,
    require_memory_for,
    summarise,
)
from hmmscope.schema import require
from hmmscope.storage import store
from hmmscope.storage.rundir import config_difference
from hmmscope.training.packed import Member, check_packed, train_pack
from hmmscope.training.state import resolve_device

#: What may differ between the runs of a pack: weights and samples, and the instance of the process.
MAY_DIFFER = ("seed", "process.seed")


class PackStopped(NonFiniteError):
    """Some members of a pack met a number that is not finite; the others are finished.

    Attributes:
        runs: of all members, in order; None for those that stopped.
        errors: why, in the same order; None for the finished ones.
    """

    def __init__(self, errors: Sequence[NonFiniteError | None], runs: Sequence[Run | None]) -> None:
        found = [error for error in errors if error is not None]
        super().__init__(f"{len(found)} of {len(runs)} runs stopped, the others are finished; {found[0]}")
        self.runs, self.errors = list(runs), list(errors)


def train_packed(
    configs: Sequence[RunConfig],
    outs: Sequence[str | Path],
    *,
    resume: bool = False,
    quiet: bool = True,
    num_samples: int = 256,
) -> list[Run]:
    """Train runs that differ in their seeds only, together, each into a folder of its own.

    Each folder is as `hmmscope.runs.pipeline.train` makes it: the same files, metrics and checkpoints; numbers agree to
    rounding, and the summary has ``"packed": true``. For what fixes the bits see `train_pack`.

    Args:
        configs: equal but for ``seed`` and ``process.seed``.
        outs: a folder for each.
        resume: go on with the runs that there are; finished ones are kept and only loaded.
        quiet: show no progress.
        num_samples: samples of the final score.

    Returns:
        The runs, in order.

    Raises:
        InputError: configurations that differ in more than seeds, or a model or recipe that has no packed form.
        RefusedError: a folder exists (without `resume`), is in use, or holds another configuration.
        PackStopped: numbers that are not finite in some of the runs, after the others are finished.
        Interrupted, ResourceError: see `train_pack`.
    """
    paths = [Path(out) for out in outs]
    _check(configs, paths)
    device = resolve_device(configs[0].training.device)
    configs = [replace(config, training=replace(config.training, device=device)) for config in configs]
    spec = configs[0].training
    for path in paths:
        if os.path.lexists(path) and not resume:
            raise RefusedError(f"{path}: exists; choose another folder or add --resume")
    processes = [config.process.build() for config in configs]
    whole = replace(spec, batch_size=spec.batch_size * len(configs))  # as much as one run with all samples
    require_memory_for(replace(configs[0], training=whole), processes[0])
    models = [fresh_model(config, process) for config, process in zip(configs, processes, strict=True)]
    runs = [Run(*parts, None) for parts in zip(paths, configs, processes, models, strict=True)]
    for run in runs:
        bayes_floor(run.corpus("evaluate"), 1, run.config.target)  # refuses what has no exact answer before any folder
    with ExitStack() as opened:
        folders = [opened.enter_context(_folder(run.path, run.config, run.process, resume)) for run in runs]
        opened.enter_context(_settings(spec))
        members = [
            Member(run.model, run.corpus("train"), run.corpus("evaluate"), None if folder.done is not None else folder)
            for run, folder in zip(runs, folders, strict=True)
        ]
        if any(member.run is not None for member in members):
            train_pack(members, spec, target=configs[0].target, quiet=quiet)
        finished: list[Run | None] = []
        for run, member, folder in zip(runs, members, folders, strict=True):
            if member.error is not None:
                finished.append(None)
            elif member.run is None:
                finished.append(load_run(run.path))
            else:
                floor = bayes_floor(run.corpus("evaluate"), spec.evaluate_samples, run.config.target)
                score = evaluate(
                    run.model,
                    run.corpus("evaluate"),
                    num_samples=num_samples,
                    target=run.config.target,
                    block_length=spec.block_length,
                )
                summary = summarise(score, run.model, run.config, floor) | {"packed": True}
                store.write_table(run.path / "evaluation.jsonl", _score_rows(score))
                folder.mark_done(summary)
                finished.append(replace(run, summary=summary))
    if None in finished:
        raise PackStopped([member.error for member in members], finished)
    return [run for run in finished if run is not None]


def _check(configs: Sequence[RunConfig], paths: Sequence[Path]) -> None:
    """InputError unless the runs can be trained together."""
    require(len(configs) >= 1, "configs", "must be at least one", len(configs))
    require(len(paths) == len(configs), "outs", f"must be a folder for each of {len(configs)} runs", len(paths))
    require(len(set(paths)) == len(paths), "outs", "must be different folders", [str(path) for path in paths])
    first = configs[0].to_data()
    for number, config in enumerate(configs):
        lines = [
            line for line in config_difference(first, config.to_data()) if line.partition(": ")[0] not in MAY_DIFFER
        ]
        if lines:
            rule = f"the runs of a pack differ in {' and '.join(MAY_DIFFER)} only"
            raise InputError(f"configs[{number}]: {lines[0]}; {rule}")
    check_packed(configs[0].training)
