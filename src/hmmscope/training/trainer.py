"""The training loop. State is (weights, AdamW moments, step); data and learning rate are functions of the step."""

import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Literal

import torch

from hmmscope.corpora.corpus import Batch, Corpus
from hmmscope.errors import DamagedError, HmmscopeError, NonFiniteError, ResourceError
from hmmscope.models.base import SequenceModel
from hmmscope.rundir import RunDir
from hmmscope.training.objectives import next_observation_loss
from hmmscope.training.progress import Progress
from hmmscope.training.schedules import learning_rate
from hmmscope.training.spec import TrainingSpec


class Interrupted(HmmscopeError):
    """A signal asked to stop; a checkpoint was saved first."""

    def __init__(self, message: str, signum: int) -> None:
        super().__init__(message)
        self.exit_code = 128 + signum


def train_model(
    model: SequenceModel,
    corpus: Corpus,
    spec: TrainingSpec,
    run: RunDir,
    *,
    held_out: Corpus | None = None,
    floor: float | None = None,
    quiet: bool = False,
) -> None:
    """Train `model` in place from the newest checkpoint of `run`, or from its fresh weights, to the last step.

    A run that was killed at any instant and resumed ends with the same weights and metrics, bit for bit, on the same
    machine type and torch build: nothing depends on when it was interrupted.

    Args:
        model: its parameters are the start of a new run.
        corpus: training samples.
        spec: the recipe.
        run: holds the lock; receives metrics (step, loss, learning_rate, gradient_norm; and evaluation_loss) and
            checkpoints.
        held_out: corpus of the evaluation loss during training.
        floor: Bayes-optimal loss of the evaluation samples, shown beside the loss.
        quiet: no progress.

    Raises:
        NonFiniteError: a loss or gradient is not finite; the step is not taken, and earlier checkpoints stay.
        Interrupted: SIGINT or SIGTERM; the current step is finished and saved first.
        ResourceError: the disk does not take a checkpoint.
    """
    device = torch.device(resolve_device(spec.device))
    model.to(device).train()
    betas = (spec.betas[0], spec.betas[1])
    optimiser = torch.optim.AdamW(
        model.parameters(), lr=spec.learning_rate, betas=betas, weight_decay=spec.weight_decay, fused=True
    )
    first_step = _restore(model, optimiser, run, device)
    evaluation = held_out[0 : spec.evaluate_samples] if held_out is not None and spec.evaluate_every else None
    tokens_per_step = float(spec.batch_size * corpus.layout.num_columns)
    progress = Progress(spec.num_steps, "training", unit="tokens", per_step=tokens_per_step, quiet=quiet)
    beside = f" (Bayes floor {floor:.3f})" if floor is not None else ""
    shown = ""
    with _deferred_signals() as received, progress:
        begun = time.monotonic()
        for step in range(first_step, spec.num_steps):
            batch = move(corpus[step * spec.batch_size : (step + 1) * spec.batch_size], device)
            rate = learning_rate(spec, step)
            loss, norm = _step(model, optimiser, batch, corpus, rate, spec.gradient_clip, step)
            record = {"step": step + 1, "loss": loss, "learning_rate": rate, "gradient_norm": norm}
            done = step + 1 == spec.num_steps
            if evaluation is not None and ((step + 1) % spec.evaluate_every == 0 or done):
                record["evaluation_loss"] = evaluation_loss(model, evaluation, corpus, device)
                shown = f"evaluation {record['evaluation_loss']:.3f}{beside}"
            run.metrics.append(record)
            stop = done or bool(received)
            if (step + 1) % spec.checkpoint_every == 0 or stop:
                save_state(model, optimiser, run, step + 1)
                run.timing.append({"step": step + 1, "seconds": time.monotonic() - begun})
            progress.update(step + 1, f"loss {loss:.3f}  {shown or beside}")
            if received and not done:
                name = signal.Signals(received[0]).name
                raise Interrupted(
                    f"{run.path}: stopped by {name} after step {step + 1}; go on with --resume", received[0]
                )


def _step(
    model: SequenceModel,
    optimiser: torch.optim.Optimizer,
    batch: Batch,
    corpus: Corpus,
    rate: float,
    clip: float,
    step: int,
) -> tuple[float, float]:
    """One update; loss and gradient norm before it."""
    for group in optimiser.param_groups:
        group["lr"] = rate
    optimiser.zero_grad(set_to_none=True)
    loss = next_observation_loss(model, batch, corpus.layout)
    loss.backward()
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    norm = torch.nn.utils.get_total_norm(list(gradients.values()))
    if not (torch.isfinite(loss) and torch.isfinite(norm)):
        bad = next((name for name, gradient in gradients.items() if not gradient.isfinite().all()), "all together")
        what = f"gradient of {bad}" if torch.isfinite(loss) else "loss"
        raise NonFiniteError(
            f"step {step + 1}: {what} is not finite (loss {loss.item()}); the step was not taken, lower learning_rate"
        )
    torch.nn.utils.clip_grads_with_norm_(model.parameters(), clip, norm)
    optimiser.step()
    return loss.item(), norm.item()


@torch.no_grad()
def evaluation_loss(model: SequenceModel, batch: Batch, corpus: Corpus, device: torch.device) -> float:
    """Mean loss of fixed samples, 64 at a time, in nats per observation."""
    model.eval()
    total, count = 0.0, len(batch.tokens)
    for begin in range(0, count, 64):
        part = slice(begin, begin + 64)
        samples = Batch(batch.tokens[part], batch.observations[part], batch.states[part], None)
        total += next_observation_loss(model, move(samples, device), corpus.layout).item() * len(samples.tokens)
    model.train()
    return total / count


def save_state(model: SequenceModel, optimiser: torch.optim.Optimizer, run: RunDir, step: int) -> None:
    """A checkpoint of weights and AdamW moments, by parameter name."""
    moments = {}
    for name, parameter in model.named_parameters():
        state = optimiser.state[parameter]
        moments[f"exp_avg.{name}"], moments[f"exp_avg_sq.{name}"] = state["exp_avg"], state["exp_avg_sq"]
    run.save_checkpoint(step, {"model": dict(model.state_dict()), "optimiser": moments}, {})


def _restore(model: SequenceModel, optimiser: torch.optim.Optimizer, run: RunDir, device: torch.device) -> int:
    """Load the newest checkpoint, cut the metrics to its length, and return its step; 0 if there is none."""
    found = run.load_checkpoint()
    if found is None:
        run.metrics.truncate(0)
        return 0
    step, tensors, state = found
    load_weights(model, tensors.get("model", {}))
    moments = {f"{m}.{n}": p for n, p in model.named_parameters() for m in ("exp_avg", "exp_avg_sq")}
    _check_names_and_shapes("optimiser.safetensors", moments, tensors.get("optimiser", {}))
    for name, parameter in model.named_parameters():
        optimiser.state[parameter] = {
            "step": torch.tensor(float(step), device=device),
            "exp_avg": tensors["optimiser"][f"exp_avg.{name}"].to(device),
            "exp_avg_sq": tensors["optimiser"][f"exp_avg_sq.{name}"].to(device),
        }
    run.metrics.truncate(state["journal_length"])
    return step


def load_weights(model: torch.nn.Module, weights: dict[str, torch.Tensor]) -> None:
    """Copy weights by name; a missing, surplus or wrongly shaped one is a DamagedError that names it."""
    _check_names_and_shapes("model.safetensors", model.state_dict(), weights)
    model.load_state_dict(weights)


def _check_names_and_shapes(file: str, own: Mapping[str, torch.Tensor], found: Mapping[str, torch.Tensor]) -> None:
    for name in [*own, *found]:
        if name not in found or name not in own or own[name].shape != found[name].shape:
            raise DamagedError(f"{file}: {name} is missing, unknown or of another shape than the config says")


def resolve_device(device: Literal["auto", "cpu", "cuda"]) -> Literal["cpu", "cuda"]:
    """ "auto" as cuda where there is one; ResourceError if cuda is asked for and absent."""
    available = torch.cuda.is_available()
    if device == "cuda" and not available:
        raise ResourceError("training.device: cuda was asked for and no CUDA device is present; use cpu or auto")
    if device == "auto":
        return "cuda" if available else "cpu"
    return device


def move(batch: Batch, device: torch.device) -> Batch:
    """The batch on a device."""
    components = None if batch.components is None else batch.components.to(device)
    return Batch(batch.tokens.to(device), batch.observations.to(device), batch.states.to(device), components)


@contextmanager
def _deferred_signals() -> Iterator[list[int]]:
    """Collect SIGINT and SIGTERM instead of dying in the middle of a step; a second one ends the process at once."""
    received: list[int] = []

    def remember(signum: int, frame: FrameType | None) -> None:
        if received:
            signal.signal(signum, signal.SIG_DFL)
            signal.raise_signal(signum)
        received.append(signum)

    try:
        before = {signum: signal.signal(signum, remember) for signum in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:  # not the main thread: leave signals alone
        yield received
        return
    try:
        yield received
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
