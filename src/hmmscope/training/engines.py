"""Which engine trains a model: the compiled one where it is covered and as fast on this machine, torch everywhere else."""

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

#: The environment variable that fixes what "auto" takes of what is covered: "compiled", "torch", or "unmeasured", which is
#: the compiled engine for all but short trainings.
FIXED = "HMMSCOPE_ENGINE"
#: Torch is taken where it is so many times as fast: the compiled engine has the same digits on every machine.
CLEARLY = 1.1
#: Seconds of a training by torch that do not pay for compiling, where nothing is known of the machine.
SHORT = 15.0
#: Operations a second of one core by torch, and seconds of each step besides.
CPU_RATE, CPU_STEP = 4e10, 2e-3


@dataclass(frozen=True)
class Choice:
    """The engine of a training, why in a few words, and what was measured, if that is why."""

    engine: Literal["compiled", "torch"]
    reason: str
    timing: "Timing | None" = None


@dataclass(frozen=True)
class Timing:
    """Seconds of a training step by each engine on the machine at hand, measured in turns; `samples` of them in a step."""

    compiled: float
    torch: float
    samples: int

    def faster(self) -> tuple[Literal["compiled", "torch"], float]:
        """Which is, and how many times."""
        times = self.torch / self.compiled
        return ("compiled", times) if times > 1 else ("torch", 1 / times)

    def __str__(self) -> str:
        name, times = self.faster()
        return (
            f"{name} is {times:.2f} times as fast on this machine: {1e3 * self.compiled:.3g} ms compiled, "
            f"{1e3 * self.torch:.3g} ms by torch for a step of {self.samples}"
        )


def uncovered(model: ModelSpec, model_io: ModelIO, spec: TrainingSpec, num_processes: int = 1) -> str | None:
    """What the compiled engine does not cover, as ``field = value (why)``; None if it covers all."""
    decoder = model.decoder if isinstance(model, RoFormerSpec) else model if type(model) is DecoderSpec else None
    name = getattr(model, "name", type(model).__name__)
    cases: list[tuple[bool, str]] = [
        (spec.device == "cuda", "training.device = cuda (it computes on the processor)"),
        (num_processes > 1, f"{num_processes} processes (it is one)"),
        (spec.compile, "training.compile = true (that compiles the other engine)"),
        (spec.block_length > 0, f"training.block_length = {spec.block_length} (nothing is fed back)"),
        (decoder is None and type(model) is not RNNSpec, f"model.name = {name} (decoder, roformer, rnn)"),
    ]
    width, heads = getattr(model, "width", 16), 0
    if decoder is not None:
        heads = decoder.num_heads
        cases += [
            (decoder.dropout > 0, f"model.dropout = {decoder.dropout} (no dropout)"),
            (not decoder.causal, "model.causal = false (causal attention only)"),
        ]
    misfit = unfit(width, heads)
    cases.append((misfit is not None, f"model.{misfit}"))
    return next((why for found, why in cases if found), None)


def torch_seconds(model: ModelSpec, model_io: ModelIO, spec: TrainingSpec, columns: int) -> float:
    """About how long torch would take on one core, by `CPU_RATE` and `CPU_STEP`."""
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
    """The engine of ``training.engine``; "auto" is the compiled one where it is covered, unless torch is clearly faster.

    Args:
        model: the architecture.
        model_io: what goes in and comes out.
        spec: the recipe; its device is known.
        columns: of a sample at full length.
        num_processes: that train together.
        timing: what is measured, or was, of this training, which torch does in about so many seconds; None if it does not
            pay for measuring.

    Raises:
        InputError: "compiled" is asked for and does not cover the training; `FIXED` is set to a word that it has not.
    """
    if spec.engine == "torch":
        return Choice("torch", "as asked for")
    why = uncovered(model, model_io, spec, num_processes)
    if spec.engine == "compiled":
        if why is not None:
            raise InputError(f"training.engine: compiled does not cover {why}; use torch or auto")
        return Choice("compiled", "as asked for")
    if why is not None:
        return Choice("torch", f"the compiled one does not cover {why}")
    fixed, seconds = os.environ.get(FIXED), torch_seconds(model, model_io, spec, columns)
    if fixed == "compiled" or (fixed == "unmeasured" and seconds >= SHORT):
        return Choice("compiled", f"{FIXED} is {fixed}")
    if fixed == "torch":
        return Choice("torch", f"{FIXED} is {fixed}")
    if fixed not in (None, "", "unmeasured"):
        raise unknown_name(FIXED, str(fixed), ("compiled", "torch", "unmeasured"))
    found = None if fixed else timing(seconds)
    if found is None:
        return Choice("torch", f"about {seconds:.0f} s of work do not pay for compiling")
    return Choice("compiled" if found.compiled <= CLEARLY * found.torch else "torch", str(found), found)


def make_engine(model: SequenceModel, spec: TrainingSpec, world: ProcessGroup) -> SingleProcess:
    """What computes the steps: by ``training.engine``, where "auto" that nobody resolved is torch, or ``parallel``."""
    if spec.engine == "compiled":
        from hmmscope.training.compiled_steps import Compiled  # whose loops take a while to load

        return Compiled(model, spec, world)
    if world.size == 1:
        return SingleProcess(model, spec, world)
    return {"exact": BitExactParallel, "ddp": DDPUpdates, "fsdp": FSDPUpdates}[spec.parallel](model, spec, world)
