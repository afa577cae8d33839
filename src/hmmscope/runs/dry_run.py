"""Cost estimate of a training run: parameters, tokens, FLOPs, memory and time."""

import json
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch

from hmmscope.datasets.process_dataset import ProcessDataset
from hmmscope.datasets.targets import Target, make_target
from hmmscope.errors import DamagedError, InputError
from hmmscope.models.base import ModelIO, SequenceModel, build_model, cost_of, parameter_count
from hmmscope.models.block_cot import num_blocks
from hmmscope.runs.config import RunConfig
from hmmscope.runs.pipeline import engine_of, model_io_of
from hmmscope.runs.resources import ADVICE, disk_bytes, duration, require_memory_for
from hmmscope.runs.settings import threads
from hmmscope.system_info import free_memory, require_disk
from hmmscope.training.distributed import ProcessGroup
from hmmscope.training.engines import CPU_RATE, CPU_STEP, make_engine, uncovered
from hmmscope.training.optimizers import make_optimizer
from hmmscope.training.schedules import sample_numbers
from hmmscope.training.spec import TrainingSpec
from hmmscope.training.state import resolve_device
from hmmscope.training.trainer import BatchSchedule, train_step

#: Time limit in seconds for the timed steps of each precision (at least one step, after a warm-up step), and most
#: operations of a timed step: a step with more operations is timed on part of its samples.
_SECONDS, _STEP = 1.0, 2e9

#: Operations per second of a GPU, and overhead in seconds per step, measured on an NVIDIA H200 in bfloat16 with models
#: of one to five layers of width 256 (table "runs" of results/gpu). Wider models are faster, smaller batches slower.
GPU_RATE, GPU_STEP = 2e13, 1e-2
#: Fields with the number of HMMs of a process; the size of a model that predicts observations does not depend on it.
_COUNTS = ("num_components", "num_parts")


@dataclass(frozen=True)
class ResourceEstimate:
    """Estimated cost of a training run.

    Attributes:
        parameters: Number of trainable parameters.
        samples, tokens: Number of samples and of tokens in the whole training; repeated samples count again.
        flops: Floating-point operations of matrix products, forward and backward; None for unknown architectures.
        memory_bytes: Memory of weights, gradients, optimizer moments and activations; None for unknown architectures.
        free_bytes: Free memory; None if unknown.
        disk_bytes: Size of the stored checkpoints (weights and moments of the optimizer).
        engine, engine_reason: Engine that computes the steps, and why it was chosen.
        steps_measured: Number of timed steps; 0 without timing.
        samples_measured: Number of samples in a timed step.
        seconds: Time of all steps on this processor, without evaluations; None if unknown.
        gpu_seconds: Time of all steps on one NVIDIA H200 GPU, estimated from `flops`.
        other_precision, other_seconds: Precision (float32 or bfloat16) that the run does not use, and the time with it.
    """

    parameters: int
    samples: int
    tokens: int
    flops: float | None
    memory_bytes: int | None
    free_bytes: int | None
    disk_bytes: int
    engine: str
    engine_reason: str
    steps_measured: int
    samples_measured: int
    seconds: float | None
    other_precision: str = ""
    other_seconds: float | None = None
    gpu_seconds: float | None = None


def estimate(config: RunConfig, *, measure: bool = False, compare: bool = True, here: bool = True) -> ResourceEstimate:
    """Estimate the cost of a training run, without writing anything.

    Args:
        config: Configuration of the run.
        measure: Whether to train some steps on this machine and time them.
        compare: With `measure`, whether to time steps in the other precision too.
        here: Whether to raise an error if a step does not fit into the memory of this machine.

    Raises:
        ResourceError: A step does not fit into the free memory.
    """
    spec = replace(config.training, device=resolve_device(config.training.device, config.training.engine))
    process = config.process.build() if measure else _of_few(config).build()
    layout, target = config.layout, make_target(config.target, process, config.layout)
    ports = model_io_of(config, target)
    if here or measure:
        require_memory_for(replace(config, training=spec), ports)
    choice = engine_of(replace(config, training=spec), ports, measure=measure)
    spec = replace(spec, engine=choice.engine)
    grain = spec.batch_size // spec.accumulation_steps
    cost = cost_of(config.model, ports, layout.context_length, device=spec.device)
    samples, tokens, flops = budget(config, ports)
    model = build_model(config.model, ports, config.seed) if measure or cost is None else None
    memory = None if cost is None else cost.step_bytes(grain)
    parameters = parameter_count(model) if model is not None else cost.parameters if cost is not None else 0
    disk = _kept(spec) * (12 * parameters if model is None else _checkpoint_bytes(model))
    found = (parameters, samples, tokens, flops, memory, free_memory(), disk)
    counted = ResourceEstimate(*found, choice.engine, choice.reason, 0, 0, None)
    if flops is not None:
        gpu = spec.num_steps * GPU_STEP + flops / GPU_RATE
        cpu = (spec.num_steps * CPU_STEP + flops / CPU_RATE) / max(1, spec.num_threads)
        counted = replace(counted, seconds=cpu, gpu_seconds=gpu)
    if not measure:
        return counted
    assert model is not None
    each = 0.0 if cost is None else cost.flops
    timed = spec.batch_size if each * spec.batch_size <= _STEP else max(1, int(_STEP / each))
    timed = 1 if cost is None else timed
    known = choice.timing if timed < spec.batch_size else None  # reuse the timing that chose the engine
    timed = timed if known is None else known.samples
    grains = spec.accumulation_steps if timed == spec.batch_size else 1
    whole = replace(spec, curriculum=(), batch_size=timed, accumulation_steps=grains)
    other = replace(whole, precision="float32" if spec.precision == "bfloat16" else "bfloat16")
    if uncovered(config.model, ports, other) is not None:
        other = replace(other, engine="torch")
    with threads(spec.num_threads):
        dataset = ProcessDataset(process, layout=layout, seed=config.seed, stream="train")
        if known is None:
            steps, each_step = _time_steps(model, dataset, target, whole)
        else:
            steps, each_step = 1, known.compiled if spec.engine == "compiled" else known.torch
        each_other = _time_steps(model, dataset, target, other)[1] if compare else None
    steps_in_all = tokens / (timed * layout.context_length)
    measured = replace(counted, steps_measured=steps, samples_measured=timed, seconds=each_step * steps_in_all)
    if each_other is None:
        return measured
    return replace(measured, other_precision=other.precision, other_seconds=each_other * steps_in_all)


#: Assumed speed behind an estimate of time without timed steps.
BY_COUNT = f"assuming {CPU_RATE:.0e} operations per second and core, plus {1e3 * CPU_STEP:.0f} ms per step".replace(
    "e+", "e"
)
BY_COUNT_GPU = (
    f"assuming {GPU_RATE:.0e} operations per second, plus {1e3 * GPU_STEP:.0f} ms per step (one NVIDIA H200)".replace(
        "e+", "e"
    )
)


def _of_few(config: RunConfig) -> Any:
    process = config.process
    counts = {one.name for one in fields(process)} & {*_COUNTS} if config.target == "observation" else set()
    return replace(process, **{name: 2 for name in counts if (getattr(process, name) or 0) > 2}) if counts else process


def require_room(configs: Iterable[RunConfig], out: Path, *, here: bool) -> None:
    """Raise ResourceError unless all runs fit on the disk and, if `here`, a step of each fits into memory."""
    total, known = 0, {}
    for config in configs:
        data = config.to_data() | {"seed": 0}
        data["process"] = {key: value for key, value in data["process"].items() if key != "seed"}
        key = json.dumps([data[section] for section in ("process", "layout", "model", "target")], default=str)
        with suppress(InputError, DamagedError):
            if key not in known:
                known[key] = model_io_of(config, make_target(config.target, config.process.build(), config.layout))
            total += disk_bytes(config, known[key])
            if here and (config.training.device == "cpu" or not torch.cuda.is_available()):
                require_memory_for(replace(config, training=replace(config.training, device="cpu")), known[key])
    require_disk("trainings", out, total, ADVICE)


def _kept(spec: TrainingSpec) -> int:
    newest = {spec.num_steps, (spec.num_steps - 1) // spec.checkpoint_every * spec.checkpoint_every} - {0}
    return len(newest.union(spec.log_checkpoint_steps))


def _checkpoint_bytes(model: SequenceModel) -> int:
    state = sum(tensor.nbytes for tensor in model.state_dict().values())
    return state + 2 * sum(parameter.nbytes for parameter in model.parameters())


def budget(config: RunConfig, model_io: ModelIO) -> tuple[int, int, float | None]:
    """Return the numbers of samples, tokens and floating-point operations of a training run."""
    spec, layout = config.training, config.layout
    columns = _columns_of_epochs(spec, layout.num_observations, layout.context_length)
    flops: float | None = 0.0
    for width, samples in columns:
        each = cost_of(config.model, model_io, width)
        passes = num_blocks(width, spec.block_length) if spec.block_length and spec.block_algorithm == "naive" else 1
        flops = None if each is None or flops is None else flops + each.flops * samples * passes
    return sum(count for _, count in columns), sum(width * count for width, count in columns), flops


def _columns_of_epochs(spec: TrainingSpec, length: int, columns: int) -> list[tuple[int, int]]:
    if not spec.curriculum:
        return [(columns, _samples(spec, 0, spec.num_steps))]
    unit = spec.steps_per_epoch if spec.steps_per_epoch < spec.num_steps else 1
    found: dict[int, int] = {}
    for begin in range(0, spec.num_steps, unit):
        kept = spec.stage_length(begin, length)
        found[kept] = found.get(kept, 0) + _samples(spec, begin, min(begin + unit, spec.num_steps))
    return [(kept + columns - length, count) for kept, count in found.items()]


def _samples(spec: TrainingSpec, begin: int, end: int) -> int:
    if not spec.num_trajectories:
        return (end - begin) * spec.batch_size
    epochs = lambda step: divmod(step, spec.steps_per_epoch)  # noqa: E731 - one line, used twice

    def until(step: int) -> int:
        epoch, within = epochs(step)
        return epoch * spec.num_trajectories + min(within * spec.batch_size, spec.num_trajectories)

    return until(end) - until(begin)


def _time_steps(model: SequenceModel, dataset: ProcessDataset, target: Target, spec: TrainingSpec) -> tuple[int, float]:
    device = torch.device(spec.device)
    model.to(device).train()
    engine, moments = make_engine(model, spec, ProcessGroup()), make_optimizer(model, spec)
    lessons = BatchSchedule(dataset, target, spec, device)
    numbers = sample_numbers(replace(spec, num_trajectories=0), dataset.seed, 0)
    steps, begun = -1, time.perf_counter()
    while steps < 1 or (steps < 50 and time.perf_counter() - begun < _SECONDS):
        if steps == 0:
            begun = time.perf_counter()
        stage, asked = lessons.at(0)
        train_step(model, moments, stage[numbers], asked, spec, 0, engine)
        steps += 1
    return steps, (time.perf_counter() - begun) / steps


def as_text(found: ResourceEstimate, config: RunConfig) -> list[str]:
    spec = config.training
    lines = [
        f"parameters   {found.parameters:,}",
        f"steps        {spec.num_steps:,} of {spec.batch_size} samples ({spec.num_epochs:,} epochs)",
        f"tokens       {found.tokens:,} in {found.samples:,} samples",
    ]
    lines.append(f"engine       {found.engine} ({found.engine_reason})")
    if found.flops is not None:
        lines.append(f"FLOPs        {found.flops:.3g} (matrix products, forward and backward)")
    if found.memory_bytes is not None:
        free = "" if found.free_bytes is None else f", {found.free_bytes / 2**30:.1f} GiB free"
        lines.append(f"memory       about {found.memory_bytes / 2**30:.2f} GiB for a step{free}")
    kept = _kept(spec)
    lines.append(f"disk         about {found.disk_bytes / 1e6:,.1f} MB for {kept} stored checkpoints")
    if found.seconds is not None and not found.steps_measured:
        lines.append(
            f"time         about {duration(found.seconds)} on this processor, {BY_COUNT}; add --measure to time a few steps"
        )
        lines.append(f"GPU time     about {duration(found.gpu_seconds or 0.0)}, {BY_COUNT_GPU}")
    elif found.seconds is not None:
        steps = f"{found.steps_measured} step{'s' if found.steps_measured != 1 else ''}"
        if found.samples_measured < spec.batch_size:
            steps += f" of {found.samples_measured} samples"
        rate = found.tokens / found.seconds
        lines.append(f"time         about {duration(found.seconds)} ({rate:,.0f} tokens/s, measured over {steps})")
        if found.flops is not None:
            lines.append(f"speed        {found.flops / found.seconds / 1e9:,.1f} GFLOP/s")
        if found.other_seconds is not None:
            ratio = found.seconds / found.other_seconds
            lines.append(f"precision    {found.other_precision} would be {ratio:.2f} times as fast here")
    return lines
