"""Which engine trains a model: the compiled one where it is covered and pays, torch everywhere else; by a written rule."""

from dataclasses import dataclass
from typing import Any, Literal

from hmmscope.engine.sizes import unfit
from hmmscope.errors import InputError
from hmmscope.models.base import ModelSpec, Ports, SequenceModel, cost_of
from hmmscope.models.decoder import DecoderSpec
from hmmscope.models.recurrent import RNNSpec
from hmmscope.models.roformer import RoFormerSpec
from hmmscope.training.distributed import World
from hmmscope.training.parallel import Exact, Replicas, Shards, Single
from hmmscope.training.spec import TrainingSpec

#: Above these the products of matrices bound everything, or the patterns of attention leave the cache: torch is as fast.
MAX_WIDTH, MAX_COLUMNS = 128, 160
#: Shorter trainings, in seconds that torch would take by `torch_seconds`, do not pay for compiling once on a new machine.
MIN_SECONDS = 15.0


@dataclass(frozen=True)
class Choice:
    """The engine of a training, and why in a few words."""

    engine: Literal["compiled", "torch"]
    reason: str


def uncovered(model: ModelSpec, ports: Ports, spec: TrainingSpec, num_processes: int = 1) -> str | None:
    """What the compiled engine does not cover, as ``field = value (why)``; None if it covers all."""
    decoder = model.decoder if isinstance(model, RoFormerSpec) else model if type(model) is DecoderSpec else None
    name = getattr(model, "name", type(model).__name__)
    cases: list[tuple[bool, str]] = [
        (spec.device == "cuda", "training.device = cuda (it computes on the processor)"),
        (num_processes > 1, f"{num_processes} processes (it is one)"),
        (spec.precision != "float32", f"training.precision = {spec.precision} (it computes in float32)"),
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


def torch_seconds(model: ModelSpec, ports: Ports, spec: TrainingSpec, columns: int) -> float:
    """About how long torch would take on one core: 2 ms a step, and 4e10 operations a second."""
    cost = cost_of(model, ports, columns)
    flops = 0.0 if cost is None else cost.flops
    return spec.num_steps * (2e-3 + spec.batch_size * flops / 4e10)


def choose_engine(model: ModelSpec, ports: Ports, spec: TrainingSpec, columns: int, num_processes: int = 1) -> Choice:
    """The engine of ``training.engine``; "auto" is the compiled one where it is covered, faster and worth compiling.

    Args:
        model: the architecture.
        ports: what goes in and comes out.
        spec: the recipe; its device is known.
        columns: of a sample at full length.
        num_processes: that train together.

    Raises:
        InputError: "compiled" is asked for and does not cover the training.
    """
    if spec.engine == "torch":
        return Choice("torch", "as asked for")
    why = uncovered(model, ports, spec, num_processes)
    if spec.engine == "compiled":
        if why is not None:
            raise InputError(f"training.engine: compiled does not cover {why}; use torch or auto")
        return Choice("compiled", "as asked for")
    if why is not None:
        return Choice("torch", f"the compiled one does not cover {why}")
    width: Any = getattr(model, "width", 0)
    if width > MAX_WIDTH:
        return Choice("torch", f"model.width is above {MAX_WIDTH}")
    if columns > MAX_COLUMNS:
        return Choice("torch", f"samples have more than {MAX_COLUMNS} columns")
    seconds = torch_seconds(model, ports, spec, columns)
    if seconds < MIN_SECONDS:
        return Choice("torch", f"about {seconds:.0f} s of work do not pay for compiling")
    return Choice("compiled", "a small model on the processor")


def make_engine(model: SequenceModel, spec: TrainingSpec, world: World) -> Single:
    """What computes the steps: by ``training.engine``, where "auto" that nobody resolved is torch, or ``parallel``."""
    if spec.engine == "compiled":
        from hmmscope.training.compiled_steps import Compiled  # whose loops take a while to load

        return Compiled(model, spec, world)
    if world.size == 1:
        return Single(model, spec, world)
    return {"exact": Exact, "ddp": Replicas, "fsdp": Shards}[spec.parallel](model, spec, world)
