"""Train a run from its configuration."""

import math
import os
import time
import warnings
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from hmmscope.analysis.curves import EvaluateOptions, Score, evaluate
from hmmscope.datasets.process_dataset import ProcessDataset
from hmmscope.datasets.targets import Target, make_target
from hmmscope.errors import InputError, NonFiniteError, RefusedError
from hmmscope.models.base import ModelIO, ModelSpec, SequenceModel, build_model, cost_of, kept_modes, parameter_count
from hmmscope.models.rehearsal import rehearse_training
from hmmscope.models.user_module import UserModule, UserModuleSpec, unwrapped
from hmmscope.reprs import Shown
from hmmscope.runs.config import RunConfig, configure, pinned
from hmmscope.runs.pipeline import FIRST_WEIGHTS, OWN_PROCESS, Run, check_same, engine_of, load_run, model_io_of
from hmmscope.runs.resources import ADVICE, disk_bytes, require_memory_for, warn_if_large
from hmmscope.runs.settings import plain, settings
from hmmscope.runs.warm_start import SharedPrefix
from hmmscope.schema import options_of, require, require_bool, require_count, require_path
from hmmscope.storage import store
from hmmscope.storage.rundir import RunDir, config_difference
from hmmscope.system_info import require_disk
from hmmscope.training.distributed import ProcessGroup, joined
from hmmscope.training.optimizers import AuxiliaryLoss, Factory, make_optimizer
from hmmscope.training.parallel import check_processes
from hmmscope.training.spec import TrainingSpec
from hmmscope.training.state import load_weights, resolve_device, tensors_of, whole
from hmmscope.training.trackers import make_tracker, tracker_module
from hmmscope.training.trainer import train_model

#: Phases of a training whose processor seconds are recorded in timing.jsonl.
PHASES = ("build", "steps", "score")


@dataclass(frozen=True, kw_only=True, repr=False)
class TrainOptions(Shown):
    """Options of `hmmscope.train`: prediction target, layout, warm start and logging.

    Attributes:
        target, layout: Prediction target and arrangement of samples as tokens; see `configure`.
        warm_start: Folder of a shorter run; its steps are reused, which does not change the trained weights.
        num_samples: Number of samples of the evaluation after training.
        tracker: Service that also receives the log: "tensorboard", "wandb" or "trackio".
        optimizer: Function from the model to torch optimizers; the schedule scales their learning rates.
        auxiliary_losses: Functions (model, batch, output) -> scalar, by name; values are added to the loss and logged.
        quiet: Whether to hide the progress; see `FitOptions`.

    Raises:
        InputError: An option is out of range, or the package of the tracker is missing.
    """

    target: str | None = None
    layout: Any = None
    warm_start: str | Path | None = None
    num_samples: int = 256
    tracker: str | None = None
    optimizer: Factory | None = None
    auxiliary_losses: Mapping[str, AuxiliaryLoss] | None = None
    quiet: bool | None = None

    def __post_init__(self) -> None:
        require_count("num_samples", self.num_samples)
        if self.tracker is not None:
            tracker_module(self.tracker)
        losses = self.auxiliary_losses
        named = losses is None or (isinstance(losses, Mapping) and all(map(callable, losses.values())))
        require(named, "auxiliary_losses", "must map names to functions of model, batch and output", losses)
        require(self.optimizer is None or callable(self.optimizer), "optimizer", "must be a function", self.optimizer)

    def recorded(self, spec: TrainingSpec) -> TrainingSpec:
        names, factory = tuple(sorted(self.auxiliary_losses or ())), self.optimizer
        if spec.auxiliary_losses not in ((), names):
            raise InputError(
                f"training.auxiliary_losses: names the functions {', '.join(spec.auxiliary_losses)}; pass them in "
                "Python, TrainOptions(auxiliary_losses={...})"
            )
        made = "" if factory is None else _full_name(factory)
        if ("." in spec.optimizer or factory is not None) and spec.optimizer not in ("adamw", made):
            remedy = "pass it in Python, TrainOptions(optimizer=...)" if "." in spec.optimizer else "give only one"
            raise InputError(
                f"training.optimizer: is {spec.optimizer}, but TrainOptions.optimizer is {made or 'missing'}; {remedy}"
            )
        return replace(spec, auxiliary_losses=names, optimizer=made or spec.optimizer)


def train(
    source: Any,
    out: str | Path,
    *,
    model: Any = None,
    length: int | None = None,
    num_steps: int | None = None,
    training: Any = None,
    seed: int | None = None,
    resume: bool = False,
    options: TrainOptions | None = None,
    **reading: Any,
) -> Run:
    """Train a model on a process or on sequences, and compare it with the Bayes optimum.

    For `SequenceData`, n-gram baselines replace the unknown optimum. A user's module is trained in
    place and must be passed again to resume.

    Args:
        source: A process, its name or file, a `ProcessDataset`, a `RunConfig`, or data for `SequenceData`.
        out: A new folder for the run.
        model: A model's name or spec, or a module from tokens (batch, time) to logits; see `RunConfig`.
        length, num_steps, training, seed: See `configure`.
        resume: Resume the run in `out`, if any, with the same configuration.
        options: Prediction target, layout, warm start and logging.
        reading: Options of `SequenceData`, such as `column`, `missing` or `lengths`; stored in `out`.

    Under torchrun, all processes train one model in the mode ``training.parallel``. Process 0 returns; the others exit.

    Raises:
        InputError: The source or model is invalid, or the module fails or has too small a vocabulary.
        RefusedError: `out` exists (without `resume`), is in use, or has another configuration.
        NonFiniteError: The loss or a gradient is not finite.
        Interrupted: A signal stopped the training; a checkpoint is saved.
        ResourceError: Memory, disk space or the requested device is missing.
    """
    path, clock = require_path("out", out), [time.process_time()]
    require_bool("resume", resume)
    options = options_of(options, TrainOptions, reading)
    asked: dict[str, Any] = {"model": model, "target": options.target, "layout": options.layout, "length": length}
    config = configure(source, read_options=reading, num_steps=num_steps, training=training, seed=seed, **asked)
    config = replace(config, training=options.recorded(config.training))
    given = config.model.module if isinstance(config.model, UserModuleSpec) else None
    with joined(config.training.device) as world, nullcontext() if given is None else kept_modes(given):
        with plain():
            begun = _begin(config, path, world, resume, options)
        run, spec = begun.run, begun.run.config.training
        opened = _folder(run, resume, options.warm_start) if world.leader else nullcontext()
        with opened as folder, settings(spec):
            if world.share(folder is not None and folder.done is not None):
                world.dismiss()
                return load_run(path, model=run.model if isinstance(begun.net, UserModule) else None)
            if isinstance(begun.net, UserModule):
                _first_weights(path, begun.net, world)
            begun.target.device = world.device(resolve_device(spec.device))
            floor = begun.target.lower_bound(begun.held_out, spec.evaluate_samples) if begun.judged else None
            clock.append(time.process_time())
            _learn(begun, world, folder, floor, options)
            in_parts = _in_parts(spec, world)  # before the other processes exit
            world.dismiss()
            assert folder is not None
            clock.append(time.process_time())
            net, score = _judge(begun, in_parts, options.num_samples)
            summary = summarise(score, net, run.config, floor) | {"num_samples": options.num_samples}
            clock.append(time.process_time())
            for phase, begun_at, ended_at in zip(PHASES, clock[:-1], clock[1:], strict=True):
                folder.timing.append({"phase": phase, "spent": ended_at - begun_at})
            folder.mark_done(summary)
    return replace(run, model=unwrapped(net), summary=summary)


@dataclass(frozen=True, eq=False)
class _CheckedTraining:
    run: Run
    net: SequenceModel
    model_io: ModelIO
    target: Target
    held_out: ProcessDataset
    judged: bool


def _begin(config: RunConfig, path: Path, world: ProcessGroup, resume: bool, options: TrainOptions) -> _CheckedTraining:
    shorter = None if options.warm_start is None else Path(options.warm_start)
    device = resolve_device(config.training.device, config.training.engine)
    config = replace(config, training=replace(config.training, device=device))
    check_processes(config.training, world.size)
    there = world.leader and os.path.lexists(path)
    if there and not resume:
        raise RefusedError(f"{path}: exists; choose another --out, or add --resume (resume=True in Python)")
    world.meet()  # an immediate refusal ends the other processes early
    process = config.process.build()
    config = pinned(config, process)
    target = make_target(config.target, process, config.layout)
    ports = model_io_of(config, target)
    require_memory_for(config, ports)
    if world.leader:
        require_disk("training", path, disk_bytes(config, ports), ADVICE)
        warn_if_large(config, ports)  # before engines are timed
    engine = _engine(config, ports, path if there else shorter, world.size)
    config = replace(config, training=replace(config.training, engine=engine))
    net = build_model(config.model, ports, config.seed, trained_length=int(config.layout.num_observations))
    if isinstance(net, UserModule):
        _check_given(net, config, world, target)
    make_optimizer(net, config.training, options.optimizer)  # raises before the folder exists
    run = Run(path, config, process, unwrapped(net), None)
    begun = _CheckedTraining(run, net, ports, target, run.dataset("evaluate"), judged=world.leader and target.exact)
    if process.data is not None:
        run.dataset("train")[0:1]  # raises if the data cannot be split
    if begun.judged:
        target.lower_bound(begun.held_out, 1)  # raises if the process has no exact answer
    return begun


def _check_given(net: UserModule, config: RunConfig, world: ProcessGroup, target: Target) -> None:
    spec = config.training
    require(
        not spec.block_length,
        "training.block_length",
        "needs a registered model, not a module of your own",
        spec.block_length,
    )
    rule = "must be exact or ddp for a module of your own"
    require(not _in_parts(spec, world), "training.parallel", rule, spec.parallel)
    for line in rehearse_training(net, int(target.token_positions[-1]) + 1, config.target):
        if world.leader:
            warnings.warn(line, stacklevel=5)


def _in_parts(spec: TrainingSpec, world: ProcessGroup) -> bool:
    return world.size > 1 and spec.parallel == "fsdp"


def _learn(
    begun: _CheckedTraining, world: ProcessGroup, folder: RunDir | None, floor: float | None, options: TrainOptions
) -> None:
    config, tells = begun.run.config, options.tracker is not None and world.leader
    train_model(
        begun.net,
        begun.run.dataset("train"),
        config.training,
        folder,
        world=world,
        target=begun.target,
        held_out=begun.held_out,
        floor=floor,
        quiet=options.quiet,
        tracker=make_tracker(str(options.tracker), begun.run.path, config.to_data()) if tells else None,
        flops_of=partial(_flops, config.model, begun.model_io),
        optimizer=options.optimizer,
        auxiliary_losses=options.auxiliary_losses and dict(sorted(options.auxiliary_losses.items())),
    )


def _judge(begun: _CheckedTraining, in_parts: bool, num_samples: int) -> tuple[SequenceModel, Score]:
    path, spec, net = begun.run.path, begun.run.config.training, begun.net
    if in_parts:  # the other processes have exited with their parts
        net = load_run(path).model.to(next(net.parameters()).device)
    score = evaluate(
        net,
        begun.held_out,
        num_samples=num_samples,
        target=begun.target,
        options=EvaluateOptions(block_length=spec.block_length),
    )
    if not math.isfinite(score.loss):
        raise NonFiniteError(f"{path}: the loss after training is not finite; lower training.learning_rate")
    store.write_table(path / "evaluation.jsonl", score.rows("demonstrations") + score.rows("positions"))
    return net, score


def _first_weights(path: Path, model: UserModule, world: ProcessGroup) -> None:
    kept = path / FIRST_WEIGHTS
    if world.leader and not os.path.lexists(kept):
        store.write_tensors(kept, {name: whole(tensor) for name, tensor in tensors_of(model).items()})
    world.meet()
    load_weights(model, store.read_tensors(kept, managed=True))


def summarise(score: Score, model: SequenceModel, config: RunConfig, floor: float | None) -> dict:
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


def _full_name(function: Any) -> str:
    kind = function if hasattr(function, "__qualname__") else type(function)
    return f"{kind.__module__}.{kind.__qualname__}"


def _flops(spec: ModelSpec, model_io: ModelIO, columns: int) -> float | None:
    cost = cost_of(spec, model_io, columns)
    return None if cost is None else cost.flops


def _engine(
    config: RunConfig, model_io: ModelIO, begun: Path | None, num_processes: int
) -> Literal["compiled", "torch"]:
    if begun is not None and config.training.engine == "auto":
        engine = _recorded(RunDir.open(begun).config)["training"]["engine"]
        config = replace(config, training=replace(config.training, engine=engine))
    return engine_of(config, model_io, num_processes).engine


def _recorded(config: dict) -> dict:
    return config | {"training": {"engine": "torch", "milestones": 0} | config.get("training", {})}


def _folder(run: Run, resume: bool, warm_start: str | Path | None) -> RunDir:
    shorter = None if warm_start is None else SharedPrefix.of(Path(warm_start), run.config)  # before the folder exists
    path, config, process = run.path, run.config, run.process
    if resume and os.path.lexists(path):
        folder = RunDir.open(path)
        if folder.done is None or os.access(path, os.W_OK):  # a finished read-only run is only read
            folder.lock()
    else:
        folder = RunDir.create(path, config.to_data(), seeds={"run": config.seed, "process_digest": process.digest})
    try:
        recorded, asked = _recorded(folder.config), config.to_data()
        if isinstance(config.model, UserModuleSpec) and not recorded["model"].get("heads"):  # written by older versions
            asked["model"].pop("heads", None)
        if recorded["process"].get("digest") == "":  # not pinned; the process itself is compared below
            recorded["process"] = recorded["process"] | {"digest": asked["process"].get("digest")}
        difference = config_difference(recorded, asked)
        if difference:
            said = f"contains a run with another configuration ({'; '.join(difference)})"
            raise RefusedError(f"{path}: {said}; choose another --out")
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
