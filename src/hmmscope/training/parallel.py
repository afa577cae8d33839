"""Gradients of a batch, computed in equal parts by one or several processes."""

import inspect
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from hmmscope.axes import Float, Tensor
from hmmscope.datasets.process_dataset import Batch
from hmmscope.datasets.targets import Target
from hmmscope.errors import InputError
from hmmscope.models.base import SequenceModel, seeded_generators
from hmmscope.schema import require
from hmmscope.training import updates
from hmmscope.training.distributed import ProcessGroup
from hmmscope.training.optimizers import AuxiliaryLosses
from hmmscope.training.spec import TrainingSpec
from hmmscope.training.state import Moments

#: Gradient numbers exchanged at once.
BUCKET = 2**22


class SingleProcess:
    """Training in one process; autograd adds the gradients of the batch's parts in order.

    Attributes:
        world: Group of participating processes.
        forward: The model, possibly compiled or wrapped.
        in_parts: True if forward passes need all processes.
        before_update: Function called after the gradient is computed and before any state changes.
        meanwhile: Function called after each step (on a GPU, after queueing it).
        auxiliary: Auxiliary losses.
        terms: Values of the auxiliary losses at the last step.
    """

    in_parts: ClassVar[bool] = False

    def __init__(self, model: SequenceModel, spec: TrainingSpec, world: ProcessGroup | None = None) -> None:
        self.model, self.spec, self.world = model, spec, world or ProcessGroup()
        self.forward: Any = torch.compile(model, dynamic=False) if spec.compile else model
        self._tables = False
        self.before_update: Callable[[], object] = bool
        self.meanwhile: Callable[[], object] = bool
        self.auxiliary: AuxiliaryLosses | None = None
        self.terms: dict[str, float] = {}

    def rows(self, step: int) -> slice:
        return slice(0, num_samples(self.spec, step))

    def gradients(self, batch: Batch, target: Target, step: int) -> Float[Tensor, "*term"]:
        """Compute the gradient of a step's mean loss, and return the loss."""
        parts = updates.parts(batch, self.part_size(batch, step))
        if len(parts) == 1:
            return self._grain(batch, target, step, 0, 1.0).to(updates.loss_dtype(self.model))
        total, count = self._zeros(batch), target.num_labels(batch)
        for number, part in enumerate(parts):
            total = total + self._grain(part, target, step, number, share_of_labels(part, target, count))
        return total

    def part_size(self, batch: Batch, step: int) -> int:
        return max(1, -(-len(batch.tokens) // self.spec.accumulation_steps))

    def take(self, moments: Moments, batch: Batch, target: Target, step: int) -> tuple[float, float]:
        """Take a training step; return loss and gradient norm from before the step.

        Raises:
            NonFiniteError: See `updates.update`.
        """
        self.model.zero_grad(set_to_none=True)
        loss = self.gradients(batch, target, step)
        self.before_update()
        value, norm, *terms = updates.update(self.model, moments, self.spec, loss, step, self.world, self.meanwhile)
        self.terms = dict(zip(self.spec.auxiliary_losses, terms, strict=True))
        return value, norm

    def rest(self) -> None:
        """Reshard the weights after forward passes (FSDP only)."""

    def _grain(self, part: Batch, target: Target, step: int, number: int, weight: float) -> Tensor:
        if self.spec.compile:
            part = self._compilable(part, target)
        self.model.set_step(step, number)
        drawn = self.spec.compile and self.model.step_seed
        with seeded_generators(self.model.step_seed) if drawn else nullcontext():
            return updates.loss_of_grain(self.forward, part, target, self.spec, weight, self.auxiliary)

    def _zeros(self, batch: Batch, *shape: int) -> Tensor:
        terms = (1 + len(self.spec.auxiliary_losses),) if self.spec.auxiliary_losses else ()
        return torch.zeros((*shape, *terms), dtype=updates.loss_dtype(self.model), device=batch.tokens.device)

    def _num_labels(self, batch: Batch, target: Target, step: int, *, idle: bool) -> int:
        if not target.ragged:
            return num_samples(self.spec, step) * len(target.token_positions)
        return self.world.total(0 if idle else target.num_labels(batch))

    def _compilable(self, part: Batch, target: Target) -> Batch:
        if not self._tables:
            with torch.no_grad(), updates.autocast(self.spec, part.tokens.device):
                updates.target_loss(self.model, part, target, block_length=self.spec.block_length)
            self._tables = True
        return replace(part, tokens=part.tokens.clone())


class BitExactParallel(SingleProcess):
    """Training in several processes, with the same bits as in one: gradients g_i of batch parts are added in order.

    gradient = ((g_0 + g_1) + g_2) + ...

    Process r computes and holds k = accumulation_steps / processes gradients, g_{rk} to g_{rk + k - 1}.

    Raises:
        InputError: The number of processes does not divide `accumulation_steps`.
    """

    def __init__(self, model: SequenceModel, spec: TrainingSpec, world: ProcessGroup) -> None:
        super().__init__(model, spec, world)
        check_processes(spec, world.size)

    def rows(self, step: int) -> slice:
        return _share(self.spec, self.world, self.spec.accumulation_steps // self.world.size, step)

    def part_size(self, batch: Batch, step: int) -> int:
        return -(-num_samples(self.spec, step) // self.spec.accumulation_steps)

    def gradients(self, batch: Batch, target: Target, step: int) -> Float[Tensor, "*term"]:
        rank, size = self.world.rank, self.world.size
        count = num_samples(self.spec, step)
        each, grain = self.spec.accumulation_steps // size, self.part_size(batch, step)
        num_grains = -(-count // grain)  # the last step of an epoch may have fewer
        held = [min(each, max(0, num_grains - other * each)) for other in range(size)]
        parameters = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        own: list[list[Tensor]] = []
        losses, labels = self._zeros(batch, each), self._num_labels(batch, target, step, idle=not held[rank])
        for number, part in enumerate(updates.parts(batch, grain)[: held[rank]]):
            weight = share_of_labels(part, target, labels)
            losses[number] = self._grain(part, target, step, rank * each + number, weight)
            own.append(_taken(parameters))
        for bucket in _buckets(parameters):
            lengths = [parameters[index].numel() for index in bucket]
            mine = [torch.cat([gradients[index].reshape(-1) for index in bucket]) for gradients in own]
            total = _added_in_order(mine, held, parameters[bucket[0]], sum(lengths))
            for index, piece in zip(bucket, total.split(lengths), strict=True):
                parameters[index].grad = piece.view_as(parameters[index]).clone()
        gathered = [torch.empty_like(losses) for _ in range(size)]
        dist.all_gather(gathered, losses)
        loss = self._zeros(batch)
        for value in torch.cat(gathered)[:num_grains]:
            loss = loss + value
        return loss


class DDPUpdates(SingleProcess):
    """DistributedDataParallel: each process computes gradients of a part of the batch, and all-reduce averages them.

    Results differ from those of one process by rounding. Torch regroups gradients after the first backward pass, which
    changes rounding; repeating this pass makes resumed runs bit-identical.
    """

    def __init__(self, model: SequenceModel, spec: TrainingSpec, world: ProcessGroup) -> None:
        super().__init__(model, spec, world)
        check_processes(spec, world.size)
        self._parts = spec.accumulation_steps // world.size if spec.accumulation_steps % world.size == 0 else 1
        self._rehearsed = False
        self._wrap()

    def _wrap(self) -> None:
        on = [next(self.model.parameters()).device] if next(self.model.parameters()).is_cuda else None
        known = inspect.signature(DistributedDataParallel.__init__).parameters
        name = "forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers"  # before torch 2.13
        options: dict[str, Any] = {"device_ids": on, name: False}
        self.forward = _DDPModule(self.forward, **options)

    def rows(self, step: int) -> slice:
        return _share(self.spec, self.world, self._parts, step)

    def gradients(self, batch: Batch, target: Target, step: int) -> Float[Tensor, "*term"]:
        if not self._rehearsed:
            self._shares(batch, target, step)
            self.model.zero_grad(set_to_none=True)
            self._rehearsed = True
        total = self._shares(batch, target, step)
        dist.all_reduce(total)
        return total / self.world.size

    def _shares(self, batch: Batch, target: Target, step: int) -> Tensor:
        count = num_samples(self.spec, step)
        parts = updates.parts(batch, self.part_size(batch, step))
        idle = _first(self.spec, self.world, self._parts, step) >= count
        total, labels = self._zeros(batch), self._num_labels(batch, target, step, idle=idle)
        for number, part in enumerate(parts):
            last = number == len(parts) - 1
            weight = 0.0 if idle else share_of_labels(part, target, labels) * self.world.size
            with nullcontext() if last else self._apart():
                total = total + self._grain(part, target, step, self.world.rank * self._parts + number, weight)
        return total

    def part_size(self, batch: Batch, step: int) -> int:
        return -(-num_samples(self.spec, step) // (self._parts * self.world.size))

    def _apart(self) -> AbstractContextManager[None]:
        apart: AbstractContextManager[None] = self.forward.no_sync()
        return apart


class _DDPModule(DistributedDataParallel):
    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("module"), name)


class FSDPUpdates(DDPUpdates):
    """FSDP2: like `DDPUpdates`, but with sharded weights, gradients and moments (DTensors)."""

    in_parts = True

    def _wrap(self) -> None:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view")  # which nobody changes in place
        kind = next(self.model.parameters()).device.type
        mesh = init_device_mesh(kind, (self.world.size,))  # required on the CPU, too
        for name in ("blocks", "layers"):
            for block in getattr(self.model, name, ()):
                fully_shard(block, mesh=mesh)
        fully_shard(self.model, mesh=mesh)
        self._rehearsed = True  # buckets are fixed now

    def rest(self) -> None:
        sharded: Any = self.model
        sharded.reshard()  # unsharded outside the blocks until a backward pass

    @contextmanager
    def _apart(self) -> Iterator[None]:
        sharded: Any = self.model
        sharded.set_requires_gradient_sync(False)
        try:
            yield
        finally:
            sharded.set_requires_gradient_sync(True)


def check_processes(spec: TrainingSpec, size: int) -> None:
    if spec.parallel == "exact" and spec.accumulation_steps % size:
        grains = [count for count in range(size, spec.batch_size + 1, size) if spec.batch_size % count == 0]
        ways = [f"set it to {grains[0]}"] if grains else []
        ways += [f"start {n} processes" for n in range(size - 1, 0, -1) if spec.accumulation_steps % n == 0 and n > 1][
            :1
        ]
        rule = f"must be a multiple of {size}, the number of processes, for the same bits as with one process"
        remedy = ", or ".join([*ways, "set parallel to ddp"])
        raise InputError(f"training.accumulation_steps: {rule}, got {spec.accumulation_steps}; {remedy}")
    rule = f"must be at least {size}, the number of processes"
    require(size <= spec.batch_size, "training.batch_size", rule, spec.batch_size)


def share_of_labels(part: Batch, target: Target, count: int) -> float:
    return target.num_labels(part) / max(1, count)


def num_samples(spec: TrainingSpec, step: int) -> int:
    if not spec.num_trajectories:
        return spec.batch_size
    return min(spec.batch_size, spec.num_trajectories - step % spec.steps_per_epoch * spec.batch_size)


def _share(spec: TrainingSpec, world: ProcessGroup, parts: int, step: int) -> slice:
    count, begin = num_samples(spec, step), _first(spec, world, parts, step)
    size = -(-count // (parts * world.size)) * parts
    return slice(begin, min(begin + size, count)) if begin < count else slice(0, 1)


def _first(spec: TrainingSpec, world: ProcessGroup, parts: int, step: int) -> int:
    return world.rank * parts * -(-num_samples(spec, step) // (parts * world.size))


def _taken(parameters: Sequence[nn.Parameter]) -> list[Tensor]:
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
    for parameter in parameters:
        parameter.grad = None
    return gradients


def _buckets(parameters: Sequence[nn.Parameter]) -> Iterator[list[int]]:
    bucket: list[int] = []
    held = 0
    for index, parameter in enumerate(parameters):
        if bucket and (held + parameter.numel() > BUCKET or parameter.dtype != parameters[bucket[0]].dtype):
            yield bucket
            bucket, held = [], 0
        bucket.append(index)
        held += parameter.numel()
    if bucket:
        yield bucket


def _added_in_order(mine: Sequence[Tensor], held: Sequence[int], like: Tensor, length: int) -> Float[Tensor, " number"]:
    size = len(held)
    piece = -(-length // size)
    sent = like.new_zeros(len(mine), size * piece)
    for row, gradient in zip(sent, mine, strict=True):
        row[:length] = gradient
    sent = sent.view(len(mine), size, piece).transpose(0, 1).contiguous()
    received = like.new_empty(sum(held), piece)
    dist.all_to_all_single(
        received.view(-1), sent.view(-1), [count * piece for count in held], [len(mine) * piece] * size
    )
    total = received[0]
    for gradient in received[1:]:
        total += gradient
    pieces = [torch.empty_like(total) for _ in range(size)]
    dist.all_gather(pieces, total)
    return torch.cat(pieces)[:length]
