"""Choice of the training engine: compiled if it is supported and fast on this machine, else torch."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from hmmscope.engine.sizes import unfit
from hmmscope.errors import InputError
from hmmscope.models.base import ModelIO, ModelSpec, SequenceModel, cost_of
from hmmscope.models.decoder import DecoderSpec, RoFormerSpec
from hmmscope.models.recurrent import RNNSpec
from hmmscope.schema import unknown_name
from hmmscope.training.distributed import ProcessGroup
from hmmscope.training.parallel import BitExactParallel, DDPUpdates, FSDPUpdates, SingleProcess
from hmmscope.training.spec import TrainingSpec

#: Environment variable that decides "auto" for supported models: "compiled", "torch", or "unmeasured" (compiled
#: for all but short trainings).
FIXED = "HMMSCOPE_ENGINE"
#: Speed ratio from which torch is chosen; below it, compiled gives the same digits on every machine.
CLEARLY = 1.1
#: Seconds of torch training below which compiling does not pay, without measurements.
SHORT = 15.0
#: Torch operations per second on one core, and overhead seconds per step.
CPU_RATE, CPU_STEP = 4e10, 2e-3


@dataclass(frozen=True)
class Choice:
    """The chosen training engine."""

    engine: Literal["compiled", "torch"]
    reason: str
    timing: "Timing | None" = None


@dataclass(frozen=True)
class Timing:
    """Seconds per training step of `samples` samples, measured on this machine."""

    compiled: float
    torch: float
    samples: int

    def faster(self) -> tuple[Literal["compiled", "torch"], float]:
        times = self.torch / self.compiled
        return ("compiled", times) if times > 1 else ("torch", 1 / times)

    def __str__(self) -> str:
        name, times = self.faster()
        return (
            f"{name} is {times:.2f} times as fast on this machine: {1e3 * self.compiled:.3g} ms compiled, "
            f"{1e3 * self.torch:.3g} ms with torch per step of {self.samples} samples"
        )


def uncovered(model: ModelSpec, model_io: ModelIO, spec: TrainingSpec, num_processes: int = 1) -> str | None:
    """Return the first setting that the compiled engine does not support, or None."""
    decoder = model.decoder if isinstance(model, RoFormerSpec) else model if type(model) is DecoderSpec else None
    name = getattr(model, "name", type(model).__name__)
    cases: list[tuple[bool, str]] = [
        (spec.device == "cuda", "training.device = cuda (the compiled engine runs on the CPU)"),
        (num_processes > 1, f"{num_processes} processes (the compiled engine runs in one)"),
        (spec.compile, "training.compile = true (torch.compile applies to the torch engine only)"),
        (
            spec.block_length > 0,
            f"training.block_length = {spec.block_length} (the compiled engine feeds no answers back to the model)",
        ),
        (spec.optimizer != "adamw", f"training.optimizer = {spec.optimizer} (only adamw)"),
        (bool(spec.optimizer_options), "training.optimizer_options (only adamw without options)"),
        (spec.weight_decay_on != "all", f"training.weight_decay_on = {spec.weight_decay_on} (only all)"),
        (
            bool(spec.auxiliary_losses),
            "training.auxiliary_losses (the compiled engine computes only the loss of the target)",
        ),
        (decoder is None and type(model) is not RNNSpec, f"model.name = {name} (only decoder, roformer and rnn)"),
    ]
    width, heads = getattr(model, "width", 16), 0
    if decoder is not None:
        heads = decoder.num_heads
        cases += [
            (decoder.dropout > 0, f"model.dropout = {decoder.dropout} (the compiled engine has no dropout)"),
            (not decoder.causal, "model.causal = false (the compiled engine has causal attention only)"),
        ]
    misfit = unfit(width, heads)
    cases.append((misfit is not None, f"model.{misfit}"))
    return next((why for found, why in cases if found), None)


def torch_seconds(model: ModelSpec, model_io: ModelIO, spec: TrainingSpec, columns: int) -> float:
    cost = cost_of(model, model_io, columns)
    flops = 0.0 if cost is None else cost.flops
    return spec.num_steps * (CPU_STEP + spec.batch_size * flops / CPU_RATE)


def choose_engine(
    model: ModelSpec,
    model_io: ModelIO,
    spec: TrainingSpec,
    columns: int,
    num_processes: int,
    timing: Callable[[float], Timing | None],
) -> Choice:
    if spec.engine == "torch":
        return Choice("torch", "as requested")
    why = uncovered(model, model_io, spec, num_processes)
    if spec.engine == "compiled":
        if why is not None:
            raise InputError(f"training.engine: compiled does not support {why}; use torch or auto")
        return Choice("compiled", "as requested")
    if why is not None:
        return Choice("torch", f"compiled does not support {why}")
    fixed, seconds = os.environ.get(FIXED), torch_seconds(model, model_io, spec, columns)
    if fixed == "compiled" or (fixed == "unmeasured" and seconds >= SHORT):
        return Choice("compiled", f"{FIXED} is {fixed}")
    if fixed == "torch":
        return Choice("torch", f"{FIXED} is {fixed}")
    if fixed not in (None, "", "unmeasured"):
        raise unknown_name(FIXED, str(fixed), ("compiled", "torch", "unmeasured"))
    found = None if fixed else timing(seconds)
    if found is None:
        return Choice("torch", f"about {seconds:.0f} s of training are too short for compiling to save time")
    return Choice("compiled" if found.compiled <= CLEARLY * found.torch else "torch", str(found), found)


def make_engine(model: SequenceModel, spec: TrainingSpec, world: ProcessGroup) -> SingleProcess:
    if spec.engine == "compiled":
        from hmmscope.training.compiled_steps import Compiled  # loads slowly

        return Compiled(model, spec, world)
    if world.size == 1:
        return SingleProcess(model, spec, world)
    return {"exact": BitExactParallel, "ddp": DDPUpdates, "fsdp": FSDPUpdates}[spec.parallel](model, spec, world)
