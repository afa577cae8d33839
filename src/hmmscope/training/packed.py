"""Many trainings of one recipe in one loop: models as one (`Pack`), samples, metrics and checkpoints of their own.

A training that stops, because a number is not finite, stays in the pack: it is computed and not updated. So the shapes,
and with them the bits of the others, are the same with and without it, and before and after an interruption.
"""

import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import nn

from hmmscope.axes import Float, Tensor
from hmmscope.corpora.corpus import Batch, Corpus
from hmmscope.corpora.targets import Labels, Target
from hmmscope.errors import InputError, NonFiniteError
from hmmscope.models.base import SequenceModel
from hmmscope.models.packed import Pack
from hmmscope.storage.rundir import RunDir
from hmmscope.training.evaluation import Evaluation
from hmmscope.training.objectives import judged_outputs
from hmmscope.training.progress import Progress
from hmmscope.training.schedules import learning_rate, sample_numbers
from hmmscope.training.signals import Interrupted, deferred_signals
from hmmscope.training.spec import TrainingSpec
from hmmscope.training.state import resolve_device, restore_weights, save_state
from hmmscope.training.trainer import Lessons
from hmmscope.training.updates import autocast, make_optimiser

#: Steps whose samples and labels are made at once, at most (a power of two), and numbers in their labels.
MAX_AHEAD, MAX_LABELS = 16, 2**20


@dataclass(eq=False)
class Member:
    """One training of a pack.

    Attributes:
        model: its parameters are the start of a new run.
        corpus: training samples.
        held_out: corpus of the evaluation loss.
        run: holds the lock; receives metrics and checkpoints. None for one that is finished and only keeps its place.
        step: steps taken.
        error: why it stopped before the last step, or None.
    """

    model: SequenceModel
    corpus: Corpus
    held_out: Corpus
    run: RunDir | None
    step: int = field(default=0, init=False)
    error: NonFiniteError | None = field(default=None, init=False)


class Ahead:
    """The samples of a training and their labels, made for several steps at once, which for small ones is much faster.

    A call that samples, or filters, costs something whatever the number of samples, and a step of a small model has few.
    Which steps are made together is a function of the step alone: so are the bits.

    Args:
        lessons: the batches as functions of the step.
        corpus: the samples at full length.
        spec: the recipe.
    """

    def __init__(self, lessons: Lessons, corpus: Corpus, spec: TrainingSpec) -> None:
        self._lessons, self._corpus, self._spec = lessons, corpus, spec
        self._made: dict[int, tuple[Tensor, Labels]] = {}
        self._epoch, self._order = -1, np.empty(0, np.int32)

    def at(self, step: int) -> tuple[Tensor, Labels, Target]:
        """Tokens, or vectors, of the samples of a step, what they are compared with, and what is asked."""
        corpus, target = self._lessons.at(step)
        if step not in self._made:
            steps = self._together(step, target)
            numbers = [self._numbers(one) for one in steps]
            batch = corpus[np.concatenate(numbers)]
            counts = [len(one) for one in numbers]
            tokens, labels = batch.tokens.split(counts), target.labels(batch).split(counts)
            self._made = dict(zip(steps, zip(tokens, labels, strict=True), strict=True))
        return *self._made[step], target

    def _together(self, step: int, target: Target) -> list[int]:
        """Steps that are made together with this one: neighbours of the same length."""
        spec = self._spec
        each = spec.batch_size * len(target.columns) * target.num_outputs
        count = min(MAX_AHEAD, 1 << max(0, (MAX_LABELS // each).bit_length() - 1))
        begin = step // count * count
        block = range(begin, min(begin + count, spec.num_steps))
        return [one for one in block if self._lessons.at(one)[1] is target]

    def _numbers(self, step: int) -> NDArray[np.int64]:
        """`sample_numbers`, keeping a whole epoch of a fixed set: members have orders of their own."""
        spec, seed = self._spec, self._corpus.seed
        if not spec.num_trajectories:
            return sample_numbers(spec, seed, step)
        epoch, within = divmod(step, spec.steps_per_epoch)
        if epoch != self._epoch:
            first = epoch * spec.steps_per_epoch
            parts = [sample_numbers(spec, seed, first + one).astype(np.int32) for one in range(spec.steps_per_epoch)]
            self._epoch, self._order = epoch, np.concatenate(parts)
        part: NDArray[np.int64] = self._order[within * spec.batch_size : (within + 1) * spec.batch_size].astype(
            np.int64
        )
        return part


def train_pack(
    members: Sequence[Member],
    spec: TrainingSpec,
    *,
    target: str = "observation",
    quiet: bool = True,
) -> None:
    """Train all members from their newest checkpoints, or fresh weights, to the last step, in one program.

    Member k computes what `train_model` computes for it, to rounding: the sums of batched products have another order.
    On one thread of a processor its bits are those it has in any other pack, of one member or many, where batch times
    width fills whole vector registers (a multiple of 32 does); else the last few numbers of a tensor may differ in the
    last bit. On a GPU the order of a batched product may depend on the number of members, and so may the bits.
    Killed and resumed with the same members, a pack gives the same bits. Members whose checkpoints are of different
    steps catch up first.

    Args:
        members: models of one shape; their corpora may differ in process and seed, not in sizes and layout.
        spec: the recipe of all.
        target: what is asked.
        quiet: no progress.

    A loss or gradient that is not finite stops its member, whose `error` says so; earlier checkpoints stay.

    Raises:
        InputError: an architecture or option that has no packed form.
        Interrupted: SIGINT or SIGTERM; all finish the current step and are saved first.
        ResourceError: the disk does not take a checkpoint.
    """
    check_packed(spec)
    device = torch.device(resolve_device(spec.device))
    engine = PackEngine(members, spec, target, device)
    for member in members:
        if member.run is not None:
            restored = restore_weights(member.model, member.run)
            restored.into(member.model, engine.optimiser)
            member.step = restored.step
    records = _Records(members, spec, target, engine)
    training = [member for member in members if member.run is not None]
    per_step = float(spec.batch_size * members[0].corpus.layout.num_columns * len(training))
    progress = Progress(spec.num_steps, f"training {len(training)}", unit="tokens", per_step=per_step, quiet=quiet)
    with deferred_signals() as received, progress:
        while active := _next(training, spec):
            step = active[0].step
            losses, norms = engine.update(active, step)
            for member, loss, norm in zip(active, losses, norms, strict=True):
                if member.error is None:
                    records.keep(member, loss, norm, save=bool(received))
            progress.update(step + 1, f"loss {min(losses):.3f} to {max(losses):.3f}")
            if received and _next(training, spec):
                name = signal.Signals(received[0]).name
                raise Interrupted(f"pack stopped by {name} after step {step + 1}; go on with --resume", received[0])


def _next(members: Sequence[Member], spec: TrainingSpec) -> list[Member]:
    """The members that take the next step: those that are furthest behind; none at the end."""
    waiting = [member for member in members if member.error is None and member.step < spec.num_steps]
    least = min((member.step for member in waiting), default=0)
    return [member for member in waiting if member.step == least]


def check_packed(spec: TrainingSpec) -> None:
    """InputError if a recipe has no packed form."""
    if spec.compile:
        raise InputError("training.compile: a pack is not compiled; set it to false, or train the runs one by one")
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise InputError("packed training: is the work of one process; start it without torchrun")


class PackEngine:
    """The updates of a pack.

    Args:
        members: of one shape; their models move to the device.
        spec: the recipe.
        target: what is asked.
        device: of the models and of their samples.

    Attributes:
        pack: the models as one.
        optimiser: of the parameters of all members.
        num_tokens: that each member read in the last step.
    """

    def __init__(self, members: Sequence[Member], spec: TrainingSpec, target: str, device: torch.device) -> None:
        self.members, self.spec, self.device = members, spec, device
        for member in members:
            member.model.to(device).train()
        self.pack = Pack([member.model for member in members])
        self.optimiser = make_optimiser(nn.ModuleList(member.model for member in members), spec)
        self.num_tokens = 0
        self._ahead = {}
        for member in members:
            corpus = member.corpus.on(device)
            self._ahead[member] = Ahead(Lessons(corpus, target, spec), corpus, spec)

    def update(self, active: Sequence[Member], step: int) -> tuple[list[float], list[float]]:
        """Take a step for some members, where loss and gradient are finite; their losses and norms before it.

        A member whose numbers are not finite is left as it is, and its `error` says why.
        """
        spec, numbers = self.spec, [self.members.index(member) for member in active]
        own = {member: self._ahead[member].at(step) for member in active}
        place = own[active[0]]  # what a member that takes no step computes is of no account
        given = [own.get(member, place) for member in self.members]
        tokens, labels = [one[0] for one in given], [one[1] for one in given]
        losses_K = pack_gradients(self.pack, tokens, labels, place[2], spec, step)
        self.num_tokens = tokens[0].shape[0] * tokens[0].shape[1]
        norms_K = self._norms()
        sizes, norms = torch.stack([losses_K, norms_K]).tolist()
        taken = [False] * len(self.members)
        for number, member in zip(numbers, active, strict=True):
            taken[number] = abs(sizes[number]) < float("inf") and norms[number] < float("inf")
            if not taken[number]:
                member.error = self._not_finite(number, sizes[number])
        self._take(taken, norms_K, learning_rate(spec, step))
        for number, member in zip(numbers, active, strict=True):
            member.step += taken[number]
        return [sizes[number] for number in numbers], [norms[number] for number in numbers]

    def _norms(self) -> Float[Tensor, "member"]:
        """Norm of each member's gradient."""
        each = [torch.linalg.vector_norm(_gradient(stack).flatten(1), dim=1) for stack, _ in self.pack.stacks]
        return torch.linalg.vector_norm(torch.stack(each, 1), dim=1)

    def _take(self, taken: Sequence[bool], norms_K: Tensor, rate: float) -> None:
        """Clip and step: the members' gradients become views of the pack's, or none for those that take no step."""
        if not any(taken):
            return
        clip = self.spec.gradient_clip
        factor_K = (clip / (norms_K + 1e-6)).clamp(max=1.0)
        for stack, parameters in self.pack.stacks:
            gradient = _gradient(stack)
            if clip:
                gradient.mul_(factor_K.view(-1, *[1] * (stack.ndim - 1)))
            for parameter, own, takes in zip(parameters, gradient.unbind(), taken, strict=True):
                parameter.grad = own if takes else None
        for group in self.optimiser.param_groups:
            group["lr"] = rate
        self.optimiser.step()

    def _not_finite(self, number: int, size: float) -> NonFiniteError:
        member = self.members[number]
        names = {parameter: name for name, parameter in member.model.named_parameters()}
        bad = [names[own[number]] for stack, own in self.pack.stacks if not _gradient(stack)[number].isfinite().all()]
        gradient = f"gradient of {bad[0] if bad else 'all together'}"
        what = gradient if abs(size) < float("inf") else "loss"
        path = "" if member.run is None else f"{member.run.path}: "
        rule = "the step was not taken, lower learning_rate"
        return NonFiniteError(f"{path}step {member.step + 1}: {what} is not finite (loss {size}); {rule}")


class _Records:
    """Metrics, evaluations and checkpoints of the members of a pack."""

    def __init__(self, members: Sequence[Member], spec: TrainingSpec, target: str, engine: PackEngine) -> None:
        self._spec, self._engine, self._num_members = spec, engine, len(members)
        self._evaluations = {
            member: Evaluation(member.held_out, target, spec)
            for member in members
            if spec.evaluate_every and member.run is not None
        }
        self._begun = time.monotonic()
        self._tokens = dict.fromkeys(members, 0)

    def keep(self, member: Member, loss: float, norm: float, *, save: bool) -> None:
        """What is to be kept of the step that a member has just taken."""
        spec, step, run, device = self._spec, member.step, member.run, self._engine.device
        assert run is not None
        self._tokens[member] += self._engine.num_tokens
        rate = learning_rate(spec, step - 1)
        record: dict[str, Any] = {"step": step, "loss": loss, "learning_rate": rate, "gradient_norm": norm}
        done = step == spec.num_steps
        if member in self._evaluations and (step % spec.evaluate_every == 0 or done):
            record |= self._evaluations[member](member.model, device)
        run.metrics.append(record)
        if step % spec.checkpoint_every == 0 or save or done:
            save_state(member.model, self._engine.optimiser, run, step)
            run.timing.append(self._timing(member))

    def _timing(self, member: Member) -> dict[str, Any]:
        """How fast this member went since the loop began; there are `members` of them at once."""
        seconds = time.monotonic() - self._begun
        record: dict[str, Any] = {"step": member.step, "seconds": seconds}
        record["tokens_per_second"] = self._tokens[member] / max(seconds, 1e-9)
        record["members"] = self._num_members
        if self._engine.device.type == "cuda":
            record["peak_memory_bytes"] = torch.cuda.max_memory_allocated(self._engine.device)
        return record


def pack_gradients(
    pack: Pack, tokens: Sequence[Tensor], labels: Sequence[Labels], target: Target, spec: TrainingSpec, step: int
) -> Float[Tensor, "member"]:
    """Leave the gradient of each member's mean loss in the pack's parameters, and return those losses.

    Args:
        pack: the members as one.
        tokens: of each member's samples.
        labels: of each member's samples.
        target: what is asked; that of any member, because only sizes and columns are read.
        spec: the recipe.
        step: number of the step.
    """
    pack.zero_grad(set_to_none=True)
    count = len(tokens[0])
    size = -(-count // spec.num_grains)
    total_K = torch.zeros(len(tokens), device=tokens[0].device)
    for number, begin in enumerate(range(0, count, size)):
        rows = slice(begin, begin + size)
        part = torch.cat([own[rows] for own in tokens])
        asked = torch.stack([own[rows] for own in labels])
        pack.set_step(step, number)
        with autocast(spec, part.device):
            outputs = judged_outputs(
                pack,
                Batch(part, part, part, None),  # of which only the tokens are read
                target,
                block_length=spec.block_length,
                block_algorithm=spec.block_algorithm,
            )
            losses_K = member_losses(outputs, asked, target)
        if asked.shape[1] != count:
            losses_K = losses_K * (asked.shape[1] / count)
        losses_K.sum().backward()
        total_K = total_K + losses_K.detach()
    return total_K


def member_losses(
    outputs: Float[Tensor, "rows judged output"], labels: Tensor, target: Target
) -> Float[Tensor, "member"]:
    """`Target.loss` of each member's rows; labels (member, batch, judged) or (member, batch, judged, output)."""
    members = len(labels)
    if target.kind == "vector":
        squared = (outputs.float() - labels.flatten(0, 1).float()).square()
        return squared.view(members, -1).mean(1)
    flat = labels.flatten(0, 2)
    terms = F.cross_entropy(
        outputs.flatten(0, 1).float(), flat.float() if flat.is_floating_point() else flat, reduction="none"
    )
    return terms.view(members, -1).mean(1)


def _gradient(stack: nn.Parameter) -> Tensor:
    assert stack.grad is not None
    return stack.grad
