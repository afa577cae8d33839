"""The training loop. State is (weights, AdamW moments, step); data and learning rate are functions of the step."""

import resource
import signal
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import torch

from hmmscope.datasets.layouts import SequenceLayout
from hmmscope.datasets.process_dataset import Batch, ProcessDataset
from hmmscope.datasets.targets import Target
from hmmscope.errors import InputError
from hmmscope.models.base import SequenceModel, parameter_count
from hmmscope.storage.rundir import RunDir
from hmmscope.training.distributed import ProcessGroup
from hmmscope.training.engines import make_engine
from hmmscope.training.evaluation import Evaluation
from hmmscope.training.parallel import SingleProcess, num_samples
from hmmscope.training.progress import Progress, say_beside
from hmmscope.training.schedules import learning_rate, sample_numbers
from hmmscope.training.signals import Interrupted, SignalState, WorkAbandoned, deferred_signals
from hmmscope.training.spec import TrainingSpec
from hmmscope.training.state import Moments, Restored, resolve_device, restore_weights, save_state
from hmmscope.training.trackers import FailSafeTracker, Tracker

#: A checkpoint is saved after this time at the latest, whatever the number of steps.
SECONDS_WITHOUT_CHECKPOINT = 300.0
#: Operations of a step from which on signals are answered within its backward pass, and within evaluations.
LONG_STEP = 2e10


class BatchSchedule:
    """The batches of a training as functions of the step: which samples, how long, and what is asked.

    Attributes:
        dataset: training samples at full length.

    Args:
        dataset: see above.
        target: what is asked of samples at full length.
        spec: the recipe.
        device: where batches are made.

    Raises:
        InputError: a curriculum for a layout that is not of plain sequences.
    """

    def __init__(
        self, dataset: ProcessDataset, target: Target, spec: TrainingSpec, device: torch.device | str = "cpu"
    ) -> None:
        self.dataset, self._target, self._spec, self._device = dataset, target, spec, device
        self._stages: dict[int, tuple[ProcessDataset, Target]] = {}
        if spec.curriculum and not isinstance(dataset.layout, SequenceLayout):
            raise InputError("training.curriculum: cuts plain sequences; use the layout sequences")
        self.at(0)

    def at(self, step: int) -> tuple[ProcessDataset, Target]:
        """The corpus, cut to the stage of the curriculum, and its target."""
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
        """The samples of a step, or some of them."""
        dataset, target = self.at(step)
        numbers = sample_numbers(self._spec, dataset.seed, step)[rows]
        if self._spec.num_trajectories:
            return dataset[numbers], target
        return dataset[int(numbers[0]) : int(numbers[-1]) + 1], target  # nothing to copy to the device


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
    quiet: bool = False,
    tracker: Tracker | None = None,
    flops_of: Callable[[int], float | None] | None = None,
) -> None:
    """Train `model` in place from the newest checkpoint of `run`, or from its fresh weights, to the last step.

    A run that was killed at any instant and resumed ends with the same weights and metrics, bit for bit, on the same
    machine type and torch build: nothing depends on when it was interrupted.

    Args:
        model: its parameters are the start of a new run.
        dataset: training samples.
        spec: the recipe.
        run: holds the lock; receives metrics (step, loss, learning_rate, gradient_norm; and those of `Evaluation`)
            and checkpoints. None in processes that do not lead.
        world: the processes that train together. With ``training.parallel`` = "fsdp" the parameters of `model` are left
            in parts; the checkpoint of the last step has them whole.
        target: what is asked.
        held_out: corpus of the evaluation loss during training.
        floor: least possible loss of the evaluation samples, shown beside the loss.
        quiet: no progress.
        tracker: is told the metrics too.
        flops_of: floating-point operations of a training step on one sample of so many columns, for timing.jsonl.

    Raises:
        InputError: a curriculum that does not fit the layout.
        NonFiniteError: a loss or gradient is not finite; the step is not taken, and earlier checkpoints stay.
        Interrupted: SIGINT or SIGTERM. A process alone leaves the step that it is in, unless it has begun to change the
            weights, and saves the steps before; several finish the step together, whichever received it, and save it.
        ResourceError: the disk does not take a checkpoint, or another process has ended.
    """
    world = world or ProcessGroup()
    device = world.device(resolve_device(spec.device))
    model.to(device).train()
    lessons = BatchSchedule(dataset, target, spec, device)
    restored = restore_weights(model, run, world)
    engine = make_engine(model, spec, world)
    evaluates = bool(spec.evaluate_every) and (world.leader or engine.in_parts)
    evaluation = Evaluation(held_out, target, spec) if held_out is not None and evaluates else None
    per_step = float(spec.batch_size * dataset.layout.context_length)
    quiet = quiet or not world.leader
    progress = Progress(spec.num_steps, "training", unit="tokens", per_step=per_step, quiet=quiet)
    shown = beside = f" (Bayes floor {floor:.3f})" if floor is not None else ""
    with deferred_signals() as received, progress, closing(FailSafeTracker(tracker)) as told:
        course = _TrainingLoop(model, lessons, spec, run, world, engine, received, device, restored)
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
    """A training as it goes: its steps, and what has been saved of them.

    Attributes:
        restored: where it goes on.
        alone: whether no other process takes part, so that a step may be left where it is.
        long: whether a signal is to be answered within a step and an evaluation.
        tokens, flops: read and done since it went on.
        begun: when that was, by the clock and by the time of this process.
        saved, saved_step: when there was a checkpoint last, and of which step.
    """

    model: SequenceModel
    schedule: BatchSchedule
    spec: TrainingSpec
    run: RunDir | None
    world: ProcessGroup
    engine: SingleProcess
    received: SignalState
    device: torch.device
    restored: Restored

    def __post_init__(self) -> None:
        self.moments = Moments()
        self.restored.into(self.model, self.moments)
        self.alone, self.long = self.world.size == 1, _long_steps(self.model, self.spec, self.schedule.dataset)
        self.tokens, self.flops = 0, 0.0
        self.begun = time.monotonic(), time.process_time()
        self.saved, self.saved_step = self.begun[0], self.restored.step
        self._buffers, self._milestones = list(self.model.buffers()), self.spec.log_checkpoint_steps
        self.engine.before_update = self.received.hold

    def take(self, step: int, flops_of: Callable[[int], float | None] | None) -> dict[str, Any]:
        """Take a step, or leave it and save those before it; its record."""
        before = [buffer.clone() for buffer in self._buffers]
        try:
            with self.received.at_once(self.alone):
                batch, asked = self.schedule.batch(step, self.engine.rows(step))
                samples, columns = num_samples(self.spec, step), batch.tokens.shape[1]
                loss, norm = train_step(self.model, self.moments, batch, asked, self.spec, step, self.engine)
        except WorkAbandoned:
            if step > self.saved_step:
                if self.long and self.run is not None:
                    name = signal.Signals(self.received[0]).name
                    say_beside(f"{name}: saving step {step}; a second signal ends at once")
                for buffer, own in zip(self._buffers, before, strict=True):
                    buffer.copy_(own)
                self._save(step)
            raise _interrupted(self.received[0], self.run, step) from None
        self.tokens += samples * columns
        self.flops += samples * (flops_of(columns) or 0.0) if flops_of else 0.0
        rate = learning_rate(self.spec, step)
        return {"step": step + 1, "loss": loss, "learning_rate": rate, "gradient_norm": norm}

    def evaluate(self, evaluation: Evaluation) -> dict[str, Any]:
        """What belongs to the record of a step that has just been taken."""
        try:
            with self.received.at_once(self.alone and self.long):
                found = evaluation(self.model, self.device)
        except WorkAbandoned:  # the step cannot be saved without its record: the checkpoint before it stands
            raise _interrupted(self.received[0], self.run, self.saved_step) from None
        self.engine.rest()
        return found

    def save_if_due(self, step: int) -> int:
        """Save where a checkpoint is due, or the training is to stop: the signal that asks for it, or 0."""
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
    """What to raise when so many steps are saved."""
    name, where = signal.Signals(signum).name, "" if run is None else f"{run.path}: "
    after = f"after step {step}" if step else "before the first step was taken"
    return Interrupted(f"{where}stopped by {name} {after}; go on with --resume", signum)


def _long_steps(model: torch.nn.Module, spec: TrainingSpec, dataset: ProcessDataset) -> bool:
    """Whether a step is more than about half a second of work for a core: 6 operations for each parameter and token."""
    return 6.0 * parameter_count(model) * spec.batch_size * dataset.layout.context_length > LONG_STEP


def _listen(model: torch.nn.Module) -> None:
    """Let Python run, and with it the handlers of signals, each time that the backward pass has reached a parameter."""
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.register_post_accumulate_grad_hook(_pause)


def _pause(parameter: torch.Tensor) -> None:
    """Python runs."""


def train_step(
    model: SequenceModel,
    moments: Moments,
    batch: Batch,
    target: Target,
    spec: TrainingSpec,
    step: int,
    engine: SingleProcess | None = None,
) -> tuple[float, float]:
    """One update; loss and gradient norm before it.

    Args:
        batch: the samples of the step that this process computes.
        engine: what computes the gradient of the whole step; by default this process alone.
    """
    return (engine or SingleProcess(model, spec)).take(moments, batch, target, step)


def _timing(step: int, tokens: int, flops: float, begun: tuple[float, float], device: torch.device) -> dict[str, Any]:
    """How fast, and in how much memory, since the loop began by the clock and by the time of this process."""
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
