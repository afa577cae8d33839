"""Process -> corpus -> model -> training -> score: a run from its configuration."""

import math
import os
import time
import warnings
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from hmmscope.analysis.curves import Score, evaluate
from hmmscope.datasets.process_dataset import ProcessDataset
from hmmscope.datasets.targets import Target, make_target
from hmmscope.errors import NonFiniteError, RefusedError
from hmmscope.models.base import ModelIO, ModelSpec, SequenceModel, build_model, cost_of, parameter_count
from hmmscope.models.rehearsal import rehearse_training
from hmmscope.models.user_module import UserModule, unwrapped
from hmmscope.runs.config import RunConfig, configure, pinned
from hmmscope.runs.pipeline import (
    FIRST_WEIGHTS,
    OWN_PROCESS,
    Run,
    check_same,
    engine_of,
    load_run,
    model_io_of,
)
from hmmscope.runs.resources import ADVICE, disk_bytes, require_memory_for, warn_if_large
from hmmscope.runs.settings import plain, settings
from hmmscope.runs.warm_start import SharedPrefix
from hmmscope.schema import require, require_path
from hmmscope.storage import store
from hmmscope.storage.rundir import RunDir, config_difference
from hmmscope.system_info import require_disk
from hmmscope.training.distributed import ProcessGroup, joined
from hmmscope.training.parallel import check_processes
from hmmscope.training.spec import TrainingSpec
from hmmscope.training.state import load_weights, resolve_device
from hmmscope.training.trackers import make_tracker, tracker_module
from hmmscope.training.trainer import train_model

#: Of a training, as timing.jsonl has them, with the seconds of a processor that they took.
PHASES = ("build", "steps", "score")


def train(
    source: Any,
    out: str | Path,
    *,
    model: Any = None,
    target: str | None = None,
    layout: Any = None,
    length: int | None = None,
    num_steps: int | None = None,
    training: Any = None,
    seed: int | None = None,
    warm_start: str | Path | None = None,
    resume: bool = False,
    quiet: bool = True,
    num_samples: int = 256,
    tracker: str | None = None,
    **reading: Any,
) -> Run:
    """Train a model on anything that generates, and score it beside its optimum.

    Given sequences (`SequenceData`) are split: their `train` part trains the model and their `validation` part judges it.
    Nobody knows their law, so there is no optimum; n-grams of the training part stand beside the model instead.

    A module that is handed over is trained in place. The folder then has its class, the shapes of its parameters and its
    weights; to go on with such a run, hand the module over again.

    Args:
        source: a process, a corpus, `SequenceData` or whatever that is made of, a `RunConfig`, or the name or path of a
            process or of sequences.
        out: a new folder for the run.
        model: a registered name, a mapping of fields, a spec, or any module from tokens (batch, time) to logits (batch,
            time, symbol), or to an object with ``.logits``.
        target, layout, length, num_steps, training, seed: see `hmmscope.runs.config.configure`.
        warm_start: the folder of a shorter run, whose steps are reused; the bits at the end are the same.
        resume: go on with the run in `out` if there is one; its configuration must be the same.
        quiet: show no progress.
        num_samples: samples of the final score.
        tracker: also tell "tensorboard", "wandb" or "trackio"; no part of what fixes the run's bits.
        reading: options of `SequenceData`, such as `column`, `missing` or `lengths`; the folder keeps what was read.

    Started by torchrun, several processes train together, as ``training.parallel`` says. Process 0 returns; the others
    do their part and end, with exit code 0 or with that of the error that ends the training.

    Raises:
        InputError: a source or a model that is none, a module that knows too few tokens or fails, a tracker that is not
            installed.
        RefusedError: `out` exists (without `resume`), is in use, or holds another configuration.
        NonFiniteError, Interrupted, ResourceError: see `train_model`.
    """
    path, clock = require_path("out", out), [time.process_time()]
    if tracker is not None:
        tracker_module(tracker)  # refused before a folder is made
    asked: dict[str, Any] = {"model": model, "target": target, "layout": layout, "length": length}
    config = configure(source, read_options=reading, num_steps=num_steps, training=training, seed=seed, **asked)
    with joined(config.training.device) as world:
        with plain():
            begun = _begin(config, path, world, resume, None if warm_start is None else Path(warm_start))
        run, spec = begun.run, begun.run.config.training
        opened = _folder(run, resume, warm_start) if world.leader else nullcontext()
        with opened as folder, settings(spec):
            if world.share(folder is not None and folder.done is not None):
                world.dismiss()
                return load_run(path, model=run.model if isinstance(begun.net, UserModule) else None)
            if isinstance(begun.net, UserModule):
                _first_weights(path, begun.net, world)
            begun.target.device = world.device(resolve_device(spec.device))
            floor = begun.target.lower_bound(begun.held_out, spec.evaluate_samples) if begun.judged else None
            clock.append(time.process_time())
            _learn(begun, world, folder, floor, quiet, tracker)
            in_parts = _in_parts(spec, world)  # asked before the others go
            world.dismiss()
            assert folder is not None
            clock.append(time.process_time())
            net, score = _judge(begun, in_parts, num_samples)
            summary = summarise(score, net, run.config, floor) | {"num_samples": num_samples}
            clock.append(time.process_time())
            for phase, begun_at, ended_at in zip(PHASES, clock[:-1], clock[1:], strict=True):
                folder.timing.append({"phase": phase, "spent": ended_at - begun_at})
            folder.mark_done(summary)
    return replace(run, model=unwrapped(net), summary=summary)


@dataclass(frozen=True, eq=False)
class _CheckedTraining:
    """A training that nothing refuses, before anything of it is written.

    Attributes:
        run: with the model as the user knows it, whose weights are the first.
        net: what is trained.
        model_io: its input and output.
        target: what is asked of it.
        held_out: samples that judge it.
        judged: whether this process knows the exact answers.
    """

    run: Run
    net: SequenceModel
    model_io: ModelIO
    target: Target
    held_out: ProcessDataset
    judged: bool


def _begin(config: RunConfig, path: Path, world: ProcessGroup, resume: bool, shorter: Path | None) -> _CheckedTraining:
    """The run with its fresh model; what can be refused is refused here, before there is a folder."""
    device = resolve_device(config.training.device, config.training.engine)
    config = replace(config, training=replace(config.training, device=device))
    check_processes(config.training, world.size)
    there = world.leader and os.path.lexists(path)
    if there and not resume:
        raise RefusedError(f"{path}: exists; choose another --out or add --resume")
    world.meet()  # so that what is refused at once ends the others before they work
    process = config.process.build()
    config = pinned(config, process)
    target = make_target(config.target, process, config.layout)
    ports = model_io_of(config, target)
    require_memory_for(config, ports)
    if world.leader:
        require_disk("training", path, disk_bytes(config, ports), ADVICE)
        warn_if_large(config, ports)  # before steps of it are taken to measure engines
    engine = _engine(config, ports, path if there else shorter, world.size)
    config = replace(config, training=replace(config.training, engine=engine))
    net = build_model(config.model, ports, config.seed, trained_length=int(config.layout.num_observations))
    if isinstance(net, UserModule):
        _check_given(net, config, world)
    run = Run(path, config, process, unwrapped(net), None)
    begun = _CheckedTraining(run, net, ports, target, run.dataset("evaluate"), judged=world.leader and target.exact)
    if process.data is not None:
        run.dataset("train")[0:1]  # what cannot be split
    if begun.judged:
        target.lower_bound(begun.held_out, 1)  # a process without an exact answer
    return begun


def _check_given(net: UserModule, config: RunConfig, world: ProcessGroup) -> None:
    """InputError for what a module that was handed over cannot do."""
    spec = config.training
    require(not spec.block_length, "training.block_length", "needs a model of this library", spec.block_length)
    rule = "of a module that was handed over is exact or ddp"
    require(not _in_parts(spec, world), "training.parallel", rule, spec.parallel)
    for line in rehearse_training(net, config.layout.context_length, config.target):
        if world.leader:
            warnings.warn(line, stacklevel=5)


def _in_parts(spec: TrainingSpec, world: ProcessGroup) -> bool:
    """Whether each process holds a part of the model."""
    return world.size > 1 and spec.parallel == "fsdp"


def _learn(
    begun: _CheckedTraining,
    world: ProcessGroup,
    folder: RunDir | None,
    floor: float | None,
    quiet: bool,
    tracker: str | None,
) -> None:
    """Train the model to the last step."""
    config, tells = begun.run.config, tracker is not None and world.leader
    train_model(
        begun.net,
        begun.run.dataset("train"),
        config.training,
        folder,
        world=world,
        target=begun.target,
        held_out=begun.held_out,
        floor=floor,
        quiet=quiet,
        tracker=make_tracker(str(tracker), begun.run.path, config.to_data()) if tells else None,
        flops_of=partial(_flops, config.model, begun.model_io),
    )


def _judge(begun: _CheckedTraining, in_parts: bool, num_samples: int) -> tuple[SequenceModel, Score]:
    """The model with its last weights, and its score, which is written to the run's folder."""
    path, spec, net = begun.run.path, begun.run.config.training, begun.net
    if in_parts:  # of which the others have taken theirs along
        net = load_run(path).model.to(next(net.parameters()).device)
    score = evaluate(net, begun.held_out, num_samples=num_samples, target=begun.target, block_length=spec.block_length)
    if not math.isfinite(score.loss):
        raise NonFiniteError(f"{path}: the loss after training is not finite; lower training.learning_rate")
    store.write_table(path / "evaluation.jsonl", score.rows("demonstrations") + score.rows("positions"))
    return net, score


def _first_weights(path: Path, model: UserModule, world: ProcessGroup) -> None:
    """Keep the weights that a module came with; a run that goes on has those that it began with."""
    kept = path / FIRST_WEIGHTS
    if world.leader and not os.path.lexists(kept):
        store.write_tensors(kept, dict(model.state_dict()))
    world.meet()
    load_weights(model, store.read_tensors(kept, managed=True))


def summarise(score: Score, model: SequenceModel, config: RunConfig, floor: float | None) -> dict:
    """What a run ends with, for done.json; without an optimum the best baseline stands in its place."""
    excess, low, high = score.excess or (None, None, None)
    best = score.baseline
    compared: dict[str, str | float] = {}
    if score.bayes_loss is None and best is not None:
        compared |= {"baseline": best[0], "baseline_loss": best[1]}
    if score.no_optimum is not None:
        compared["no_optimum"] = score.no_optimum
    return {
        "steps": config.training.num_steps,
        "parameters": parameter_count(model),
        "loss": score.loss,
        "bayes_loss": score.bayes_loss,
        "excess": excess,
        "excess_low": low,
        "excess_high": high,
        "training_floor": floor,
        "invalid": score.invalid,
        **compared,
    }


def _flops(spec: ModelSpec, model_io: ModelIO, columns: int) -> float | None:
    """Operations of a training step on one sample of so many columns, if they are known."""
    cost = cost_of(spec, model_io, columns)
    return None if cost is None else cost.flops


def _engine(
    config: RunConfig, model_io: ModelIO, begun: Path | None, num_processes: int
) -> Literal["compiled", "torch"]:
    """The engine of a run; "auto" is that of the run in the folder, if it was begun."""
    if begun is not None and config.training.engine == "auto":
        engine = _recorded(RunDir.open(begun).config)["training"]["engine"]
        config = replace(config, training=replace(config.training, engine=engine))
    return engine_of(config, model_io, num_processes).engine


def _recorded(config: dict) -> dict:
    """The configuration of a run, with what older ones do not say."""
    return config | {"training": {"engine": "torch", "milestones": 0} | config.get("training", {})}


def _folder(run: Run, resume: bool, warm_start: str | Path | None) -> RunDir:
    """The run's folder with its lock: a new one, or with `resume` the one that holds this configuration.

    One without a checkpoint takes over that of the run `warm_start`.
    """
    shorter = None if warm_start is None else SharedPrefix.of(Path(warm_start), run.config)  # before there is a folder
    path, config, process = run.path, run.config, run.process
    if resume and os.path.lexists(path):
        folder = RunDir.open(path)
        if folder.done is None or os.access(path, os.W_OK):  # a finished run that cannot be written is there to be read
            folder.lock()
    else:
        folder = RunDir.create(path, config.to_data(), seeds={"run": config.seed, "process_digest": process.digest})
    try:
        recorded, asked = _recorded(folder.config), config.to_data()
        if recorded["process"].get("digest") == "":  # not pinned yet: what follows compares the process itself
            recorded["process"] = recorded["process"] | {"digest": asked["process"].get("digest")}
        difference = config_difference(recorded, asked)
        if difference:
            raise RefusedError(f"{path}: holds a run with another configuration ({'; '.join(difference)})")
        check_same(folder, process)
        own = path / OWN_PROCESS
        if getattr(config.process, "keeps_copy", False) and not os.path.lexists(own):
            process.save(own)
        if shorter is not None and not folder.checkpoint_steps():
            shorter.hand_over(folder)
    except BaseException:
        folder.unlock()
        raise
    return folder
