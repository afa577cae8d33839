"""Diagnosis of a model call that fails: the module that failed, and the inputs on which the model runs."""

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

import torch
from torch import nn

from hmmscope.axes import Tensor
from hmmscope.errors import HmmscopeError, InputError

#: Attributes of a module or of its configuration that hold the largest number of positions.
POSITION_LIMITS = (
    *(
        "block_size",
        "n_positions",
        "max_position_embeddings",
        "n_ctx",
        "context_length",
        "context_size",
        "context_window",
    ),
    *("max_seq_len", "max_seq_length", "max_sequence_length", "max_context", "seq_len", "seq_length", "max_len"),
)
#: The same for the length of a training sample.
TRAINED_LENGTHS = ("trained_length", "train_length", "training_length", "train_seq_len", "train_context_length")
_CONFIGS = ("config", "cfg", "args", "hparams", "ports")
_WRAPPED = ("module", "model", "_orig_mod", "original_model")


@contextmanager
def explained(model: nn.Module, inputs: Tensor) -> Iterator[None]:
    """Name the token or the embedding where a call of the model fails with an index; other errors stay as they are.

    Raises:
        InputError: names the module that failed and its size, or the token that the model does not know.
    """
    _require_known(model, inputs)
    try:
        yield
    except IndexError as error:
        if not any(words in str(error) for words in ("out of range", "out of bounds")):
            raise
        raise _failure(model, inputs, error) from error


def failure(model: nn.Module, inputs: Tensor, error: Exception, call: Callable[[Tensor], Any]) -> Exception:
    """Return the error for a call that failed: an InputError with its cause, as far as smaller inputs show one.

    Args:
        model: the module that was called.
        inputs: tokens (batch, time) or vectors on which it failed.
        error: what it raised.
        call: calls the model again, without traces.
    """
    if isinstance(error, HmmscopeError | MemoryError | torch.OutOfMemoryError | ModuleNotFoundError):
        return error
    found = _failure(model, inputs, error)
    if inputs.is_cuda or not isinstance(found, _Unexplained):
        return found
    return InputError(f"{found}{_smaller(inputs, call)}")


class _Unexplained(InputError):
    """A failure whose cause the traceback does not show."""


def _require_known(model: nn.Module, inputs: Tensor) -> None:
    """InputError for a token beyond the vocabulary of a model of this library, or of a configuration with vocab_size."""
    if inputs.is_floating_point() or inputs.numel() == 0:
        return
    largest, config = int(inputs.max()), getattr(model, "config", None)
    known = getattr(model, "vocab_size", None) if hasattr(model, "model_io") else getattr(config, "vocab_size", None)
    if isinstance(known, int) and largest >= known:
        raise InputError(
            f"model: knows no token {largest}, which the samples hold; it knows {known} tokens: give it "
            "corpus.vocab_size of them"
        )


def _failure(model: nn.Module, inputs: Tensor, error: Exception) -> InputError:
    """The error with the module that raised it; of an embedding its size and the index that it lacks."""
    part, local = _innermost(model, error.__traceback__)
    if isinstance(part, nn.Embedding) and isinstance(indices := local.get("input"), Tensor) and indices.numel():
        return embedding_failure(model, part, indices, inputs)
    where = _name_of(model, part)
    inside = f" in its module {where}" if where else ""
    reason = " ".join(str(error).split())[:200]
    return _Unexplained(
        f"model: {type(model).__name__} fails on {described_inputs(inputs)}{inside}: {type(error).__name__}: {reason}"
    )


def described_inputs(inputs: Tensor) -> str:
    """``tokens (2, 5)`` or ``vectors (2, 5, 3)``."""
    return f"{'vectors' if inputs.is_floating_point() else 'tokens'} {tuple(inputs.shape)}"


def embedding_failure(model: nn.Module, part: nn.Embedding, indices: Tensor, inputs: Tensor) -> InputError:
    """Return the error for an embedding that lacks an index: it names the embedding, its size and the remedy."""
    where, size = _name_of(model, part), part.num_embeddings
    own = f"its embedding {where}" if where else "this embedding"
    low, high = (int(end) for end in indices.aminmax())
    odd = high if high >= size else low
    if indices.numel() == inputs.numel() and torch.equal(indices.flatten().sort()[0], inputs.flatten().sort()[0]):
        return InputError(
            f"model: knows no token {odd}, which the samples hold; {own} has {size} entries: give it corpus.vocab_size "
            "of them"
        )
    time = inputs.shape[1]
    counted = indices.ndim > 0 and indices.shape[-1] == time and bool((indices.diff(dim=-1) == 1).all())
    if counted and time > size and odd >= size:
        return InputError(
            f"model: has {size} positions ({own}) and the samples have {time} tokens; choose shorter samples, length={size} "
            "or less"
        )
    return InputError(f"model: {own} has {size} entries and was asked for entry {odd} on {described_inputs(inputs)}")


def _innermost(model: nn.Module, trace: TracebackType | None) -> tuple[nn.Module | None, dict[str, Any]]:
    """The innermost module of the model in whose forward an error was raised, with the variables there."""
    members = {id(part) for part in model.modules()}
    found: tuple[nn.Module | None, dict[str, Any]] = (None, {})
    while trace is not None:
        code, local = trace.tb_frame.f_code, trace.tb_frame.f_locals
        part = local.get("self")
        if code.co_name == "forward" and isinstance(part, nn.Module) and id(part) in members:
            found = part, local
        trace = trace.tb_next
    return found


def _name_of(model: nn.Module, part: nn.Module | None) -> str:
    """The dotted name of a part in the model as it was handed over; empty for the model itself."""
    name = next((name for name, one in model.named_modules() if one is part), "")
    for wrapper in ("_orig_mod.", "module.", "model."):
        own = getattr(model, wrapper[:-1], None)
        if isinstance(own, nn.Module) and type(model).__module__.startswith(("hmmscope.", "torch.")):
            name = name.removeprefix(wrapper)
    return name if name not in ("module", "_orig_mod", "model") else ""


def _smaller(inputs: Tensor, call: Callable[[Tensor], Any]) -> str:
    """The part of a message that says on which smaller inputs the model runs; empty where it runs on none."""

    def runs(some: Tensor) -> bool:
        try:
            call(some)
        except Exception:
            return False
        return True

    time = inputs.shape[1]
    if not inputs.is_floating_point() and (largest := int(inputs.max()) if inputs.numel() else 0):
        known = _most(lambda most: runs(inputs.clamp(max=most)), 0, largest)
        if known is not None:
            tokens = "token 0 alone" if known == 0 else f"tokens up to {known}"
            return (
                f"; it runs where the samples hold {tokens}, and these hold {largest}: give it corpus.vocab_size tokens"
            )
    most = _most(lambda length: runs(inputs[:, :length]), 1, time)
    if most is None:
        return ""
    return f"; it runs on {most} tokens a sample and not on {time}: choose shorter samples, length={most} or less"


def _most(runs: Callable[[int], bool], low: int, high: int) -> int | None:
    """The largest number in [low, high) for which it runs, by bisection, as `high` fails; None if `low` fails too."""
    if high <= low or not runs(low):
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if runs(middle) else (low, middle)
    return low


def require_callable_on_tokens(model: nn.Module) -> None:
    """InputError for a module that no call with tokens alone can run.

    It has weights without numbers (the meta device, lazy modules), or needs a second argument.
    """
    name = type(model).__name__
    for where, weight in model.named_parameters():
        if nn.parameter.is_lazy(weight):
            raise InputError(
                f"model: {name} has lazy modules, whose weights ({where}) are not made yet; give their sizes"
            )
        if weight.is_meta:
            raise InputError(
                f"model: {where} of {name} is on the meta device, which holds no numbers; load its weights"
            )
    try:
        arguments = inspect.signature(getattr(model, "function", model.forward)).parameters.values()
    except (TypeError, ValueError):  # of a function in C
        return
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    needed = [one.name for one in arguments if one.default is one.empty and one.kind in kinds]
    only = [one.name for one in arguments if one.default is one.empty and one.kind is one.KEYWORD_ONLY]
    if len(needed) > 1 or only:
        rest = ", ".join([*needed[1:], *only])
        raise InputError(
            f"model: {name} needs more than the tokens ({rest}); give a module whose forward takes the tokens alone, or "
            f"defaults for {rest}"
        )


def read_number(model: Any, names: tuple[str, ...]) -> tuple[str, int] | None:
    """Return the first of these attributes that a model, its configuration, or a module that it wraps has, and its value."""
    owners = [model, *(own for name in _WRAPPED if isinstance(own := getattr(model, name, None), nn.Module))]
    for owner in owners:
        for where in (owner, *(config for name in _CONFIGS if (config := getattr(owner, name, None)) is not None)):
            for name in names:
                value = where.get(name) if isinstance(where, dict) else getattr(where, name, None)
                if type(value) is int and value > 0:
                    return name, value
    return None
