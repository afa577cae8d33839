"""Process -> corpus -> model -> training -> score: a run from its configuration, and back from its folder."""

import copy
import math
import os
import time
import warnings
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch

from hmmscope import registry
from hmmscope.analysis.curves import Score, evaluate
from hmmscope.corpora.corpus import Corpus
from hmmscope.corpora.targets import Target, corpus_of, make_target
from hmmscope.errors import DamagedError, InputError, NonFiniteError, RefusedError
from hmmscope.machine import require_disk
from hmmscope.models.base import ModelSpec, Ports, SequenceModel, cost_of, parameter_count
from hmmscope.models.block_cot import feedback_width
from hmmscope.models.build import build_model
from hmmscope.models.given import GivenModel, GivenModelSpec, model_name, unwrapped
from hmmscope.processes.files import load_process
from hmmscope.processes.process import Process
from hmmscope.reprs import html_table, plot_rows
from hmmscope.runs.config import RunConfig, config_from_data, configure, pinned
from hmmscope.runs.room import ADVICE, disk_bytes, require_memory_for, warn_if_large
from hmmscope.runs.settings import settings
from hmmscope.runs.timings import timing
from hmmscope.schema import require
from hmmscope.storage import disk, store
from hmmscope.storage.rundir import RunDir, config_difference, read_journal
from hmmscope.storage.seals import check_seal
from hmmscope.training.distributed import World, joined
from hmmscope.training.engines import Choice, choose_engine
from hmmscope.training.parallel import check_processes
from hmmscope.training.state import load_weights, resolve_device
from hmmscope.training.trackers import make_tracker
from hmmscope.training.trainer import train_model

#: A run on a user's own process keeps a copy of it, and of a module that was handed over the weights that it came with.
_OWN_PROCESS, _FIRST_WEIGHTS = "process.safetensors", "first-weights.safetensors"


@dataclass(frozen=True)
class Run:
    """A trained model with what it was trained on.

    Attributes:
        path: the run folder.
        config: its configuration.
        process: what generates.
        model: with the weights of the last checkpoint: a `SequenceModel`, or the module that was handed over.
        summary: of a finished run (``loss``, ``bayes_loss``, ``excess`` with its interval, ...), or None. Of given
            sequences, whose law nobody knows, ``bayes_loss`` and ``excess`` are None.
    """

    path: Path
    config: RunConfig
    process: Process
    model: Any
    summary: dict | None

    def __repr__(self) -> str:
        label = f"{model_name(self.config.model)} on {getattr(self.process, 'title', '') or repr(self.process)}"
        if self.summary is None:
            return f"Run({label}, not finished, path={str(self.path)!r})"
        beside = _beside(self.summary)
        return f"Run({label}, {self.summary['steps']} steps, loss {self.summary['loss']:.4f} ({beside}))"

    def _repr_html_(self) -> str:
        rows: dict[str, Any] = {
            "model": model_name(self.config.model),
            "process": repr(self.process),
            "folder": self.path,
        }
        return html_table("Run", rows | (self.summary or {"state": "not finished"}))

    def table(self) -> list[dict[str, Any]]:
        """The records of its training: step, loss, and the evaluation loss where it was evaluated."""
        return list(read_journal(self.path / "metrics.jsonl"))

    def plot(self) -> Any:
        """A Matplotlib figure of the losses over training."""
        rows = [
            {"step": row["step"], "of": name, "loss": row.get(key)}
            for name, key in (("training batch", "loss"), ("evaluation", "evaluation_loss"))
            for row in self.table()
        ]
        return plot_rows(rows, repr(self.process), x="step", y="loss", by=("of",))

    def corpus(self, stream: str = "evaluate") -> Corpus:
        """Samples of the run's process and layout; streams "evaluate" and "probe" are never trained on."""
        return Corpus(self.process, layout=self.config.layout, seed=self.config.seed, stream=stream)

    def corpus_of(self, source: Any, **reading: Any) -> Corpus:
        """Sequences of your own, to be scored beside the optimum of the run's process; see `corpus_of`."""
        return corpus_of(source, self.process, self.config.layout, seed=self.config.seed, **reading)

    @property
    def target(self) -> Target:
        """What the model is asked for."""
        return make_target(self.config.target, self.process, self.config.layout)

    def report(self, out: str | Path | None = None) -> Path:
        """Write the page of the finished run, by default ``report.html`` in its folder, and return its path.

        It is made of the run's files, as ``hmmscope report RUN`` makes it: weights are not needed, so that a run of a module
        of your own has it too.

        Raises:
            InputError: the run is not finished, or `out` does not end in .html.
        """
        page: Path = registry.lookup("page", "run")(self.path, out)
        return page


def _beside(summary: dict) -> str:
    """What a loss is to be compared with, in words."""
    if summary["bayes_loss"] is not None:
        return f"Bayes optimum {summary['bayes_loss']:.4f}"
    return f"no optimum is known; {summary['baseline']} {summary['baseline_loss']:.4f}"


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
    resume: bool = False,
    quiet: bool = True,
    num_samples: int = 256,
    tracker: str | None = None,
) -> Run:
    """Train a model on anything that generates, and score it beside its optimum.

    Given sequences (`SequenceData`) are split: their `train` part trains the model and their `validation` part judges it.
    Nobody knows their law, so there is no optimum; n-grams of the training part stand beside the model instead.

    A module that is handed over is trained in place. The folder then has its class, the shapes of its parameters and its
    weights; to go on with such a run, hand the module over again.

    Args:
        source: a process, a corpus, `SequenceData`, a `RunConfig`, or the name or path of a process or of sequences.
        out: a new folder for the run.
        model: a registered name, a mapping of fields, a spec, or any module from tokens (batch, time) to logits (batch,
            time, symbol), or to an object with ``.logits``.
        target, layout, length, num_steps, training, seed: see `hmmscope.runs.config.configure`.
        resume: go on with the run in `out` if there is one; its configuration must be the same.
        quiet: show no progress.
        num_samples: samples of the final score.
        tracker: also tell "tensorboard", "wandb" or "trackio"; no part of what fixes the run's bits.

    Started by torchrun, several processes train together, as ``training.parallel`` says. Process 0 returns; the others
    do their part and end, with exit code 0 or with that of the error that ends the training.

    Raises:
        InputError: a source or a model that is none, a module that knows too few tokens or fails, a tracker that is not
            installed.
        RefusedError: `out` exists (without `resume`), is in use, or holds another configuration.
        NonFiniteError, Interrupted, ResourceError: see `train_model`.
    """
    path, clock = Path(out), [time.process_time()]
    config = configure(
        source,
        model=model,
        target=target,
        layout=layout,
        length=length,
        num_steps=num_steps,
        training=training,
        seed=seed,
    )
    with joined(config.training.device) as world:
        config = replace(config, training=replace(config.training, device=resolve_device(config.training.device)))
        spec = config.training
        check_processes(spec, world.size)
        if world.leader and os.path.lexists(path) and not resume:
            raise RefusedError(f"{path}: exists; choose another --out or add --resume")
        world.meet()  # so that what is refused at once ends the others before they work
        process = config.process.build()
        config = pinned(config, process)
        asked = make_target(config.target, process, config.layout)
        ports = ports_of(config, asked)
        begun = path if resume and world.leader and os.path.lexists(path) else None
        require_memory_for(config, ports)
        config = replace(config, training=replace(spec, engine=_engine(config, ports, begun, world.size)))
        spec = config.training
        if world.leader:
            require_disk("training", path, disk_bytes(config, ports), ADVICE)
            warn_if_large(config, ports)
        net = build_model(config.model, ports, config.seed)
        if isinstance(net, GivenModel):
            require(not spec.block_length, "training.block_length", "needs a model of this library", spec.block_length)
            parts = world.size > 1 and spec.parallel == "fsdp"
            require(not parts, "training.parallel", "of a module that was handed over is exact or ddp", spec.parallel)
            net.rehearse(config.layout.num_columns)
        run = Run(path, config, process, unwrapped(net), None)
        evaluation = run.corpus("evaluate")
        if process.data is not None:
            run.corpus("train")[0:1]  # refuse what cannot be split before there is a folder
        if world.leader and asked.exact:  # refuse a process without an exact answer before there is a folder
            asked.floor(evaluation, 1)
        opened = _folder(path, config, process, resume) if world.leader else nullcontext()
        with opened as folder, settings(spec):
            if world.share(folder is not None and folder.done is not None):
                world.dismiss()
                return load_run(path, model=config.model.module if isinstance(net, GivenModel) else None)
            if isinstance(net, GivenModel):
                _first_weights(path, net, world)
            floor = asked.floor(evaluation, spec.evaluate_samples) if world.leader and asked.exact else None
            tells = tracker is not None and world.leader
            clock.append(time.process_time())
            train_model(
                net,
                run.corpus("train"),
                spec,
                folder,
                world=world,
                target=asked,
                held_out=evaluation,
                floor=floor,
                quiet=quiet,
                tracker=make_tracker(str(tracker), path, config.to_data()) if tells else None,
                flops_of=partial(_flops, config.model, ports),
            )
            in_parts = world.size > 1 and spec.parallel == "fsdp"
            world.dismiss()
            assert folder is not None
            clock.append(time.process_time())
            if in_parts:
                net = load_run(path).model.to(next(net.parameters()).device)
            score = evaluate(net, evaluation, num_samples=num_samples, target=asked, block_length=spec.block_length)
            if not math.isfinite(score.loss):
                raise NonFiniteError(f"{path}: the loss after training is not finite; lower training.learning_rate")
            summary = summarise(score, net, config, floor) | {"num_samples": num_samples}
            store.write_table(path / "evaluation.jsonl", score.rows("demonstrations") + score.rows("positions"))
            clock.append(time.process_time())
            for phase, begun_at, ended_at in zip(PHASES, clock[:-1], clock[1:], strict=True):
                folder.timing.append({"phase": phase, "spent": ended_at - begun_at})
            folder.mark_done(summary)
    return replace(run, model=unwrapped(net), summary=summary)


def _first_weights(path: Path, model: GivenModel, world: World) -> None:
    """Keep the weights that a module came with; a run that goes on has those that it began with."""
    kept = path / _FIRST_WEIGHTS
    if world.leader and not os.path.lexists(kept):
        store.write_tensors(kept, dict(model.state_dict()))
    world.meet()
    load_weights(model, store.read_tensors(kept, own=True))


def read_run(path: str | Path) -> Run:
    """A run from its folder, without its weights: the model is None.

    Raises:
        InputError: no run folder.
        DamagedError: the folder is not as it was written.
    """
    folder = RunDir.open(Path(path))
    config = config_from_data(folder.config)
    return Run(Path(path), config, _process_of(folder, config), None, folder.done)


def load_run(path: str | Path, *, model: torch.nn.Module | None = None) -> Run:
    """A run from its folder, with the weights of its newest whole checkpoint; of a finished run that is the last one.

    Args:
        path: the folder.
        model: the module of a run on a module that was handed over; it receives the weights.

    Raises:
        InputError: no run folder, a run without a checkpoint, or one whose module is not handed over again.
        DamagedError: the folder is not as it was written, or a finished run has lost its last checkpoint.
    """
    folder, run = RunDir.open(Path(path)), read_run(path)
    config, process = run.config, run.process
    if isinstance(config.model, GivenModelSpec):
        if model is None:
            raise InputError(config.model.refusal(path))
        config = replace(config, model=config.model.with_module(model))
    elif model is not None:
        raise InputError(f"model: {path} has a model of its own, {config.model.name}")
    net = fresh_model(config, process)
    if folder.done is not None and check_seal(folder.path, milestones=False) is None:
        warnings.warn(f"{path}: has no seal, so nothing says that its files are as they were written", stacklevel=2)
    found = folder.load_checkpoint()
    if found is None:
        raise InputError(f"{path}: the run has no checkpoint yet; train it with --resume")
    if folder.done is not None and found[0] < config.training.num_steps:
        raise DamagedError(
            f"{path}: the run is finished, but its last whole checkpoint is of step {found[0]} of "
            f"{config.training.num_steps}; delete done.json there and train it again with --resume"
        )
    load_weights(net, found[1].get("model", {}))
    return Run(Path(path), config, process, unwrapped(net), folder.done)


def untrained_twin(run: Run) -> Any:
    """The run's model before training: the control of every instrument."""
    return model_at(run, 0)


def model_at(run: Run, step: int) -> Any:
    """Another copy of the run's model, with its weights after `step` steps; a checkpoint of that step must have stayed.

    Raises:
        InputError: there is none; `training.milestones` says which stay.
        DamagedError: it is not as it was written.
    """
    config, given = run.config, isinstance(run.config.model, GivenModelSpec)
    if isinstance(config.model, GivenModelSpec):
        config = replace(config, model=config.model.with_module(copy.deepcopy(run.model)))
    net = fresh_model(config, run.process)
    if step:
        found = RunDir.open(run.path).load_checkpoint(step)
        assert found is not None
        load_weights(net, found[1].get("model", {}))
    elif given:
        load_weights(net, store.read_tensors(run.path / _FIRST_WEIGHTS, own=True))
    return unwrapped(net)


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


def fresh_model(config: RunConfig, process: Process) -> SequenceModel:
    """The model with its first weights."""
    target = make_target(config.target, process, config.layout)
    return build_model(config.model, ports_of(config, target), config.seed)


def ports_of(config: RunConfig, target: Target) -> Ports:
    """The sizes of input and output that the target asks for, with its process and layout."""
    process, layout = target.process, target.layout
    vectors = process.real_valued
    return Ports(
        num_outputs=target.num_outputs,
        num_tokens=None if vectors else layout.num_tokens(process.num_symbols),
        input_width=process.num_symbols if vectors else None,
        max_length=layout.num_columns,
        feedback_width=feedback_width(target.num_outputs) if config.training.block_length else 0,
    )


def _flops(spec: ModelSpec, ports: Ports, columns: int) -> float | None:
    """Operations of a training step on one sample of so many columns, if they are known."""
    cost = cost_of(spec, ports, columns)
    return None if cost is None else cost.flops


def engine_of(config: RunConfig, ports: Ports, num_processes: int = 1) -> Choice:
    """The engine of a training whose device is known, and why; see `choose_engine`. It may take steps of each to tell."""
    columns, found = config.layout.num_columns, partial(timing, config, ports)
    return choose_engine(config.model, ports, config.training, columns, num_processes, found)


def _engine(config: RunConfig, ports: Ports, begun: Path | None, num_processes: int) -> Literal["compiled", "torch"]:
    """The engine of a run; "auto" is that of the run in the folder, if it was begun."""
    if begun is not None and config.training.engine == "auto":
        engine = _recorded(RunDir.open(begun).config)["training"]["engine"]
        config = replace(config, training=replace(config.training, engine=engine))
    return engine_of(config, ports, num_processes).engine


def _recorded(config: dict) -> dict:
    """The configuration of a run, with what older ones do not say."""
    return config | {"training": {"engine": "torch", "milestones": 0} | config.get("training", {})}


def _folder(path: Path, config: RunConfig, process: Process, resume: bool) -> RunDir:
    """The run's folder with its lock: a new one, or with `resume` the one that holds this configuration."""
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
        _check_same(folder, process)
        own = path / _OWN_PROCESS
        if getattr(config.process, "keeps_copy", False) and not os.path.lexists(own):
            process.save(own)
    except BaseException:
        folder.unlock()
        raise
    return folder


def _process_of(folder: RunDir, config: RunConfig) -> Process:
    """The process of a run: its own copy if it came from a file, else built again from the configuration."""
    own = folder.path / _OWN_PROCESS
    if os.path.lexists(own):
        os.close(disk.open_own(own, os.O_RDONLY))  # a link is refused
    process: Process = load_process(own) if os.path.lexists(own) else config.process.build()
    _check_same(folder, process)
    return process


def _check_same(folder: RunDir, process: Process) -> None:
    """DamagedError if the process is not, to the bit, the one that the run was made with."""
    expected = store.read_json(folder.path / "seeds.json", own=True).get("process_digest")
    if expected not in (process.digest, process.law_digest):  # older folders have the latter, without names
        raise DamagedError(
            f"{folder.path}: the process here differs from the one of the run ({process.digest[:12]} instead of "
            f"{str(expected)[:12]}); its file or the numerical libraries have changed"
        )
