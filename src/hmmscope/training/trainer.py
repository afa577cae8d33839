"""The training loop, in which data and learning rate are functions of the step."""

import resource
import signal
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, fields, replace
from typing import Any

import torch

from hmmscope.datasets.layouts import SequenceLayout
from hmmscope.datasets.process_dataset import Batch, LabelledBatch, ProcessDataset
from hmmscope.datasets.targets import Target
from hmmscope.errors import InputError
from hmmscope.models.base import SequenceModel, parameter_count
from hmmscope.progress import Progress, say_beside
from hmmscope.storage.rundir import RunDir
from hmmscope.training import updates
from hmmscope.training.distributed import ProcessGroup
from hmmscope.training.engines import make_engine
from hmmscope.training.evaluation import Evaluation
from hmmscope.training.optimizers import AuxiliaryLoss, AuxiliaryLosses, Factory, make_optimizer
from hmmscope.training.parallel import SingleProcess, num_samples
from hmmscope.training.schedules import learning_rate, sample_numbers
from hmmscope.training.signals import Interrupted, SignalState, WorkAbandoned, deferred_signals
from hmmscope.training.spec import TrainingSpec
from hmmscope.training.state import Moments, Restored, resolve_device, restore_weights, save_state
from hmmscope.training.trackers import FailSafeTracker, Tracker

#: Longest time between checkpoints.
SECONDS_WITHOUT_CHECKPOINT = 300.0
#: Operations per step from which signals interrupt backward passes and evaluations.
LONG_STEP = 2e10


class BatchSchedule:
    """Samples and target of each step, at the curriculum's length.

    Args:
        dataset: Full-length training samples.
        target: Prediction target for these samples.

    Raises:
        InputError: The spec has a curriculum, but the layout is not `SequenceLayout` (plain sequences).
    """

    def __init__(
        self, dataset: ProcessDataset, target: Target, spec: TrainingSpec, device: torch.device | str = "cpu"
    ) -> None:
        self.dataset, self._target, self._spec, self._device = dataset, target, spec, device
        self._stages: dict[int, tuple[ProcessDataset, Target]] = {}
        if spec.curriculum and not isinstance(dataset.layout, SequenceLayout):
            raise InputError("training.curriculum: requires plain sequences; use the layout 'sequences'")
        self.at(0)

    def at(self, step: int) -> tuple[ProcessDataset, Target]:
        length = self._spec.stage_length(step, self.dataset.layout.num_observations)
        if length not in self._stages:
            layout = self.dataset.layout
            if length != layout.num_observations:
                assert isinstance(layout, SequenceLayout)
                layout = replace(layout, length=length)
            process, seed, stream = self.dataset.process, self.dataset.seed, self.dataset.stream_name
            stage = ProcessDataset(process, layout=layout, seed=seed, stream=stream, device=self._device)
            self._stages[length] = stage, self._target.on(layout)
        return self._stages[length]

    def batch(self, step: int, rows: slice) -> tuple[Batch, Target]:
        dataset, target = self.at(step)
        numbers = sample_numbers(self._spec, dataset.seed, step)[rows]
        if self._spec.num_trajectories:
            return dataset[numbers], target
        return dataset[int(numbers[0]) : int(numbers[-1]) + 1], target  # nothing to copy to the device


def labelled(batch: Batch, target: Target, labels: torch.Tensor | None = None) -> LabelledBatch:
    held = {field.name: getattr(batch, field.name) for field in fields(batch)}
    return LabelledBatch(**held, labels=target.labels(batch) if labels is None else labels)


class BatchAhead:
    """The batches of a training in order; on a GPU each batch is prepared during the previous step.

    Args:
        engine: Gradient engine, which assigns each batch's samples to processes and accumulation parts.
    """

    def __init__(self, schedule: BatchSchedule, engine: SingleProcess, num_steps: int, device: torch.device) -> None:
        self._schedule, self._engine, self._num_steps = schedule, engine, num_steps
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._next = 0
        self._made: tuple[Batch, Target] | None = None

    @property
    def active(self) -> bool:
        return self._stream is not None

    def take(self, step: int) -> tuple[Batch, Target]:
        made = self._made if self._made is not None and self._next == step else self._make(step)
        self._next, self._made = step + 1, None
        if self._stream is not None:
            now = torch.cuda.current_stream(self._stream.device)
            now.wait_stream(self._stream)
            for field in fields(made[0]):
                tensor: torch.Tensor | None = getattr(made[0], field.name)
                if tensor is not None and tensor.is_cuda:
                    tensor.record_stream(now)
        return made

    def prepare(self) -> None:
        if self.active and self._next < self._num_steps:
            self._made = self._make(self._next)

    def _make(self, step: int) -> tuple[Batch, Target]:
        if not self.active:
            return self._schedule.batch(step, self._engine.rows(step))
        with torch.cuda.stream(self._stream):
            batch, target = self._schedule.batch(step, self._engine.rows(step))
            parts = updates.parts(batch, self._engine.part_size(batch, step))  # labels of each, for the same bits
            return labelled(batch, target, torch.cat([target.labels(part) for part in parts])), target


def train_model(
    model: SequenceModel,
    dataset: ProcessDataset,
    spec: TrainingSpec,
    run: RunDir | None,
    *,
    world: ProcessGroup | None = None,
    target: Target,
    held_out: ProcessDataset | None = None,
    floor: float | None = None,
    quiet: bool | None = False,
    tracker: Tracker | None = None,
    flops_of: Callable[[int], float | None] | None = None,
    optimizer: Factory | None = None,
    auxiliary_losses: Mapping[str, AuxiliaryLoss] | None = None,
) -> None:
    """Train `model` in place to the last step, resuming from the newest checkpoint of `run`.

    On the same machine type and torch build, a resumed run ends with the same bits as an uninterrupted run.
    """
    world = world or ProcessGroup()
    device = world.device(resolve_device(spec.device))
    if spec.precision == "tf32" and device.type == "cpu":
        raise InputError("training.precision: tf32 needs a CUDA device, and this training runs on cpu; use float32")
    model.to(device).train()
    lessons = BatchSchedule(dataset, target, spec, device)
    restored = restore_weights(model, run, world, adamw=spec.optimizer == "adamw" and not spec.optimizer_options)
    engine = make_engine(model, spec, world)
    engine.auxiliary = AuxiliaryLosses(auxiliary_losses, model) if auxiliary_losses else None
    evaluates = bool(spec.evaluate_every) and (world.leader or engine.in_parts)
    evaluation = Evaluation(held_out, target, spec) if held_out is not None and evaluates else None
    per_step = float(spec.batch_size * dataset.layout.context_length)
    quiet = quiet if world.leader else True
    progress = Progress(spec.num_steps, "training", unit="tokens", per_step=per_step, quiet=quiet)
    shown = beside = f" (Bayes loss {floor:.3f})" if floor is not None else ""
    with deferred_signals() as received, progress, closing(FailSafeTracker(tracker)) as told:
        course = _TrainingLoop(model, lessons, spec, run, world, engine, received, device, restored, optimizer)
        if course.alone and course.long and not spec.compile:
            _listen(model)
        for step in range(restored.step, spec.num_steps):
            record = course.take(step, flops_of)
            done = step + 1 == spec.num_steps
            if evaluation is not None and ((step + 1) % spec.evaluate_every == 0 or done):
                record |= course.evaluate(evaluation)
                shown = f"evaluation {record['evaluation_loss']:.3f}{beside}"
            if run is not None:
                run.metrics.append(record)
            told.log(record)
            signum = course.save_if_due(step + 1)
            progress.update(step + 1, f"loss {record['loss']:.3f}  {shown}")
            if signum:
                world.meet()  # the leader has saved
                raise _interrupted(signum, run, step + 1)


@dataclass(eq=False)
class _TrainingLoop:
    model: SequenceModel
    schedule: BatchSchedule
    spec: TrainingSpec
    run: RunDir | None
    world: ProcessGroup
    engine: SingleProcess
    received: SignalState
    device: torch.device
    restored: Restored
    optimizer: Factory | None

    def __post_init__(self) -> None:
        self.moments = make_optimizer(self.model, self.spec, self.optimizer)
        self.restored.into(self.model, self.moments)
        self.alone, self.long = self.world.size == 1, _long_steps(self.model, self.spec, self.schedule.dataset)
        self.tokens, self.flops = 0, 0.0
        self.begun = time.monotonic(), time.process_time()
        self.saved, self.saved_step = self.begun[0], self.restored.step
        self._buffers, self._milestones = list(self.model.buffers()), self.spec.log_checkpoint_steps
        self.engine.before_update = self.received.hold
        self.ahead = BatchAhead(self.schedule, self.engine, self.spec.num_steps, self.device)
        self.engine.meanwhile = self.ahead.prepare

    def take(self, step: int, flops_of: Callable[[int], float | None] | None) -> dict[str, Any]:
        before = [buffer.clone() for buffer in self._buffers]
        try:
            with self.received.at_once(self.alone):
                batch, asked = self.ahead.take(step)
                samples, columns = num_samples(self.spec, step), batch.tokens.shape[1]
                loss, norm = train_step(self.model, self.moments, batch, asked, self.spec, step, self.engine)
        except WorkAbandoned:
            if step > self.saved_step:
                if self.long and self.run is not None:
                    name = signal.Signals(self.received[0]).name
                    say_beside(f"{name}: saving step {step}; a second signal ends the process at once")
                for buffer, own in zip(self._buffers, before, strict=True):
                    buffer.copy_(own)
                self._save(step)
            raise _interrupted(self.received[0], self.run, step) from None
        self.tokens += samples * columns
        self.flops += samples * (flops_of(columns) or 0.0) if flops_of else 0.0
        rate = learning_rate(self.spec, step)
        return {"step": step + 1, "loss": loss, "learning_rate": rate, "gradient_norm": norm} | {
            f"auxiliary.{name}": value for name, value in self.engine.terms.items()
        }

    def evaluate(self, evaluation: Evaluation) -> dict[str, Any]:
        try:
            with self.received.at_once(self.alone and self.long):
                found = evaluation(self.model, self.device)
        except WorkAbandoned:  # without its record the step cannot be saved: the previous checkpoint stands
            raise _interrupted(self.received[0], self.run, self.saved_step) from None
        self.engine.rest()
        return found

    def save_if_due(self, step: int) -> int:
        overdue = self.run is not None and time.monotonic() - self.saved > SECONDS_WITHOUT_CHECKPOINT
        asked_to = self.world.largest(
            self.received[0] if self.received else int(overdue)
        )  # no signal is 1 (SIGHUP) here
        planned = step % self.spec.checkpoint_every == 0 or step in self._milestones
        if planned or asked_to or step == self.spec.num_steps:
            self.saved, self.saved_step = time.monotonic(), step
            self._save(step)
        return asked_to if asked_to > 1 else 0

    def _save(self, step: int) -> None:
        save_state(self.model, self.moments, self.run, step, self.world, self._milestones)
        if self.run is not None:
            self.run.timing.append(_timing(step, self.tokens, self.flops, self.begun, self.device))


def _interrupted(signum: int, run: RunDir | None, step: int) -> Interrupted:
    name, where = signal.Signals(signum).name, "" if run is None else f"{run.path}: "
    after = f"after step {step}" if step else "before the first step was taken"
    return Interrupted(f"{where}stopped by {name} {after}; continue with --resume (resume=True in Python)", signum)


def _long_steps(model: torch.nn.Module, spec: TrainingSpec, dataset: ProcessDataset) -> bool:
    return 6.0 * parameter_count(model) * spec.batch_size * dataset.layout.context_length > LONG_STEP


def _listen(model: torch.nn.Module) -> None:
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.register_post_accumulate_grad_hook(_pause)


def _pause(parameter: torch.Tensor) -> None:
    """Do nothing; as a hook, it lets Python handle signals during the backward pass."""


def train_step(
    model: SequenceModel,
    moments: Moments,
    batch: Batch,
    target: Target,
    spec: TrainingSpec,
    step: int,
    engine: SingleProcess | None = None,
) -> tuple[float, float]:
    return (engine or SingleProcess(model, spec)).take(moments, batch, target, step)


def _timing(step: int, tokens: int, flops: float, begun: tuple[float, float], device: torch.device) -> dict[str, Any]:
    seconds = max(time.monotonic() - begun[0], 1e-9)
    record: dict[str, Any] = {"step": step, "seconds": seconds, "processor_seconds": time.process_time() - begun[1]}
    record["tokens_per_second"] = tokens / seconds
    if flops:
        record["flops_per_second"] = flops / seconds
    if device.type == "cuda":
        record["peak_memory_bytes"] = torch.cuda.max_memory_allocated(device)
    else:
        record["peak_memory_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return record
