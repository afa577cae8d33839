"""Diagnosis of failing model calls."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

import torch
from torch import nn

from hmmscope.axes import Tensor
from hmmscope.errors import HmmscopeError, InputError
from hmmscope.models.adapted import (
    CONFIGS,
    TOKENS,
    AdaptedModule,
    innermost,
    named_module,
    parts_of,
    require_signature,
    title_of,
)

#: Attribute names for the largest number of positions.
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
#: Attribute names for the length of a training sample.
TRAINED_LENGTHS = ("trained_length", "train_length", "training_length", "train_seq_len", "train_context_length")
_WRAPPED = ("module", "model", "_orig_mod", "original_model")


@contextmanager
def explained(model: nn.Module, inputs: Tensor) -> Iterator[None]:
    """Replace an index error in a model call by an InputError that explains it; leave other errors unchanged.

    Raises:
        InputError: an index is out of range; the message names the module and its size, or the unknown token.
    """
    _require_known(model, inputs)
    try:
        yield
    except IndexError as error:
        if not any(words in str(error) for words in ("out of range", "out of bounds")):
            raise
        raise _failure(model, inputs, error) from error


def failure(model: nn.Module, inputs: Tensor, error: Exception, call: Callable[[Tensor], Any]) -> Exception:
    """Return the error to raise after a failed model call; `call` runs the model without hooks."""
    if isinstance(error, HmmscopeError | MemoryError | torch.OutOfMemoryError | ModuleNotFoundError):
        return error
    found = _failure(model, inputs, error)
    if inputs.is_cuda or not isinstance(found, _Unexplained):
        return found
    return InputError(f"{found}{_smaller(inputs, call)}")


class _Unexplained(InputError):
    """A failure of unknown cause."""


def _require_known(model: nn.Module, inputs: Tensor) -> None:
    if inputs.is_floating_point() or inputs.numel() == 0:
        return
    largest, config = int(inputs.max()), getattr(model, "config", None)
    known = getattr(model, "vocab_size", None) if hasattr(model, "model_io") else getattr(config, "vocab_size", None)
    if isinstance(known, int) and largest >= known:
        raise InputError(
            f"model: does not know token {largest} of the samples; its vocabulary has {known} tokens but needs "
            f"{largest + 1} or more (dataset.vocab_size)"
        )


def _failure(model: nn.Module, inputs: Tensor, error: Exception) -> InputError:
    part, local = _innermost(model, error.__traceback__)
    indices = local.get("input")
    if isinstance(part, nn.Embedding) and isinstance(indices, Tensor) and indices.numel() and _outside(part, indices):
        return embedding_failure(model, part, indices, inputs)
    where = _name_of(model, part)
    inside = f" in its module {where}" if where else ""
    reason = ": ".join(filter(None, (type(error).__name__, " ".join(str(error).split())[:200])))
    return _Unexplained(
        f"model: {title_of(model)} fails on {described_inputs(inputs)}{inside}: {reason}{_dictionary(model, error)}"
    )


def _outside(part: nn.Embedding, indices: Tensor) -> bool:
    return not indices.is_floating_point() and bool(((indices < 0) | (indices >= part.num_embeddings)).any())


def _dictionary(model: nn.Module, error: Exception) -> str:
    if isinstance(error, RuntimeError | ValueError) and "dtype" in str(error) and re.search("int64|Long", str(error)):
        call = "lambda model, tokens: model(one_hot(tokens, N).float())"
        return f"; if the model takes one-hot vectors, pass hs.adapt(model, {call}), with N = dataset.vocab_size"
    texts = ("too many indices for tensor", "only integers, slices", "argument after ** must be a mapping")
    named = isinstance(error, AttributeError) and "'Tensor' object has no attribute" in str(error)
    if named and (name := getattr(error, "name", "")) in TOKENS:
        return f"; pass hs.adapt(model, lambda model, tokens: model(types.SimpleNamespace({name}=tokens)))"
    keyed = isinstance(error, IndexError | TypeError) and any(text in str(error) for text in texts)
    if not (named or keyed):
        return ""
    code = getattr(getattr(innermost(model), "forward", None), "__code__", None)
    key = next((one for one in TOKENS if code is not None and one in code.co_consts), "input_ids")
    return f"; if the model takes a dictionary, pass hs.adapt(model, lambda model, tokens: model({{{key!r}: tokens}}))"


def described_inputs(inputs: Tensor) -> str:
    return f"{'vectors' if inputs.is_floating_point() else 'tokens'} {tuple(inputs.shape)}"


def embedding_failure(model: nn.Module, part: nn.Embedding, indices: Tensor, inputs: Tensor) -> InputError:
    where, size = _name_of(model, part), part.num_embeddings
    own = f"its embedding {where}" if where else "this embedding"
    low, high = (int(end) for end in indices.aminmax())
    odd = high if high >= size else low
    if indices.numel() == inputs.numel() and torch.equal(indices.flatten().sort()[0], inputs.flatten().sort()[0]):
        return InputError(
            f"model: does not know token {odd} of the samples; {own} has {size} entries but needs "
            f"{odd + 1} or more (dataset.vocab_size)"
        )
    time = inputs.shape[1]
    counted = indices.ndim > 0 and indices.shape[-1] == time and bool((indices.diff(dim=-1) == 1).all())
    if counted and time > size and odd >= size:
        return InputError(
            f"model: has {size} positions ({own}) but the samples have {time} tokens; use samples with length <= {size}"
        )
    return InputError(f"model: {own} has {size} entries, got index {odd} on {described_inputs(inputs)}")


def _innermost(model: nn.Module, trace: TracebackType | None) -> tuple[nn.Module | None, dict[str, Any]]:
    members = {id(part) for part in parts_of(model)}
    found: tuple[nn.Module | None, dict[str, Any]] = (None, {})
    while trace is not None:
        code, local = trace.tb_frame.f_code, trace.tb_frame.f_locals
        part = local.get("self")
        if code.co_name == "forward" and isinstance(part, nn.Module) and id(part) in members:
            found = part, local
        trace = trace.tb_next
    return found


def _name_of(model: nn.Module, part: nn.Module | None) -> str:
    model = named_module(model)
    name = next((name for name, one in model.named_modules() if one is part), "")
    if isinstance(model, AdaptedModule):
        return name
    for wrapper in ("_orig_mod.", "module.", "model."):
        own = getattr(model, wrapper[:-1], None)
        if isinstance(own, nn.Module) and type(model).__module__.startswith(("hmmscope.", "torch.")):
            name = name.removeprefix(wrapper)
    return name if name not in ("module", "_orig_mod", "model") else ""


def _smaller(inputs: Tensor, call: Callable[[Tensor], Any]) -> str:
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
            tokens = "only token 0" if known == 0 else f"tokens up to {known}"
            return f"; the model runs on {tokens}, not on token {largest}; build it for dataset.vocab_size tokens"
    most = _most(lambda length: runs(inputs[:, :length]), 1, time)
    if most is None:
        return ""
    return f"; the model runs on {most} tokens per sample but not on {time}; use samples with length <= {most}"


def _most(runs: Callable[[int], bool], low: int, high: int) -> int | None:
    if high <= low or not runs(low):
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if runs(middle) else (low, middle)
    return low


def require_callable_on_tokens(model: nn.Module) -> None:
    require_values(model)
    require_signature(model)


def require_values(model: nn.Module) -> None:
    """Raise InputError for a module with weights or buffers that are lazy or on the meta device."""
    for where, weight in (*model.named_parameters(), *model.named_buffers()):
        if nn.parameter.is_lazy(weight):
            rule = f"has lazy modules with uninitialized weights ({where}); specify the sizes of these modules"
            raise InputError(f"model: {title_of(model)} {rule}")
        if weight.is_meta:
            fix = "load its weights" if isinstance(weight, nn.Parameter) else "build the model on another device"
            raise InputError(f"model: {where} of {title_of(model)} is on the meta device, without values; {fix}")


def read_number(model: Any, names: tuple[str, ...]) -> tuple[str, int] | None:
    owners = [model, *(own for name in _WRAPPED if isinstance(own := getattr(model, name, None), nn.Module))]
    for owner in owners:
        for where in (owner, *(config for name in CONFIGS if (config := getattr(owner, name, None)) is not None)):
            for name in names:
                value = where.get(name) if isinstance(where, dict) else getattr(where, name, None)
                if type(value) is int and value > 0:
                    return name, value
    return None
