"""Adapters: call any module on tokens with the arguments it expects, and read the logits in its output."""

import inspect
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import nn

from hmmscope.axes import Tensor
from hmmscope.errors import InputError
from hmmscope.schema import shown

#: Argument names that take the tokens.
TOKENS = ("input_ids", "tokens", "token_ids", "idx", "ids", "inputs", "input", "src", "x")
#: Functions that compute optional arguments from the tokens.
FOLLOWING: dict[str, Callable[[Tensor, torch.dtype], Any]] = {
    "attention_mask": lambda tokens, dtype: _filled(tokens, 1),
    **dict.fromkeys(("token_type_ids", "segment_ids"), lambda tokens, dtype: _filled(tokens, 0)),
    **dict.fromkeys(("key_padding_mask", "src_key_padding_mask"), lambda tokens, dtype: _filled(tokens, 0).bool()),
    **dict.fromkeys(("attn_mask", "src_mask", "tgt_mask"), lambda tokens, dtype: _causal(tokens, dtype)),
    **dict.fromkeys(("position_ids", "positions"), lambda tokens, dtype: _places(tokens).expand(len(tokens), -1)),
    **dict.fromkeys(("input_pos", "cache_position"), lambda tokens, dtype: _places(tokens)),
    **dict.fromkeys(("lengths", "seq_lens"), lambda tokens, dtype: torch.full((len(tokens),), tokens.shape[1])),
    **dict.fromkeys(("past_key_values", "cache", "hidden", "state", "states"), lambda tokens, dtype: None),
    **dict.fromkeys(("is_causal", "causal"), lambda tokens, dtype: True),
    **dict.fromkeys(("use_cache", "start_pos"), lambda tokens, dtype: 0),
}
#: Names of attributes that hold a configuration.
CONFIGS = ("config", "cfg", "args", "hparams", "ports")
#: Attributes in which wrappers of torch and Lightning Fabric keep the module.
_WRAPPED = ("_orig_mod", "_fsdp_wrapped_module", "_original_module")
_PARALLEL = ("DataParallel", "DistributedDataParallel", "FullyShardedDataParallel")

#: Calls a model on tokens.
Call = Callable[[Any, Tensor], Any]


class AdaptedModule(nn.Module):
    """A wrapper that calls a module or function through `call`.

    Args:
        model: any module, or a function.
        call: function (model, tokens) that returns logits, or an output that contains them.
    """

    stored_name = "hmmscope.models.user_module.Function"  # of a function

    def __init__(self, model: Any, call: Call) -> None:
        super().__init__()
        self.__dict__["adapted"], self.__dict__["call"] = model, call
        if isinstance(model, nn.Module):
            own = innermost(model)
            for name in ("_parameters", "_buffers", "_modules"):  # shared, so that names have no prefix
                self.__dict__[name] = own.__dict__[name]

    def forward(self, tokens: Tensor) -> Any:
        output = self.call(self.adapted, tokens)
        logits = raw_logits(output)
        sizes = (
            {one.shape for one in output if isinstance(one, Tensor) and one.ndim == 3} if type(output) is tuple else ()
        )
        return output if len(sizes) > 1 else logits  # callers know the number of symbols

    @property
    def training(self) -> bool:
        model = self.__dict__.get("adapted")
        return model.training if isinstance(model, nn.Module) else bool(self.__dict__.get("_training", True))

    @training.setter
    def training(self, mode: bool) -> None:
        self.__dict__["_training"] = mode
        for part in shells(self.__dict__.get("adapted")):
            part.training = mode

    def train(self, mode: bool = True) -> "AdaptedModule":
        self.training = mode
        if isinstance(self.adapted, nn.Module):
            self.adapted.train(mode)
        return self

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            model = self.__dict__.get("adapted")
            if isinstance(model, nn.Module) and not name.startswith("__"):
                return getattr(innermost(model), name)
            raise

    def _apply(self, fn: Any, recurse: bool = True) -> "AdaptedModule":
        if isinstance(self.adapted, nn.Module):
            innermost(self.adapted)._apply(fn, recurse)
        return self

    def state_dict(self, *args: Any, **options: Any) -> Any:
        model = self.adapted
        return innermost(model).state_dict(*args, **options) if isinstance(model, nn.Module) else {}

    def _load_from_state_dict(self, *args: Any) -> None:
        if isinstance(self.adapted, nn.Module):
            innermost(self.adapted)._load_from_state_dict(*args)

    def _get_name(self) -> str:
        return f"adapted {title_of(self)}"


def adapt(
    model: Any,
    call: Call | None = None,
    *,
    tokens: str | None = None,
    output: str | int | Callable[[Any], Tensor] | None = None,
    **arguments: Any,
) -> AdaptedModule:
    """Return a module that maps tokens to logits by calling `model` with the arguments that `model` expects.

    Layers and weights keep their names. On the command line, pass the result as FILE.py:NAME, where FILE.py assigns
    it to NAME. Examples::

        hs.adapt(model, mask=lambda tokens: causal_mask(tokens.shape[1]))
        hs.adapt(model, lambda model, tokens: model({"input_ids": tokens})["scores"])

    Args:
        model: any module, or a function.
        call: function (model, tokens) that returns the logits, or an output that contains them.
        tokens: name of the model's argument for tokens (default: the first argument).
        output: field, key or index of the logits in the output, or a function from output to logits.
        arguments: other arguments of `model`: values, or functions of the tokens.

    Raises:
        InputError: `model` is not a module or function, or `call` is passed together with arguments.
    """
    if not callable(model) or isinstance(model, type):
        raise InputError(f"model: must be a torch module or a function of tokens, got {shown_model(model)}")
    if call is not None and (tokens is not None or arguments):
        raise InputError("call: cannot be combined with tokens= or other arguments; pass these arguments inside call")
    if call is not None and not callable(call):
        raise InputError(f"call: must be a function of the model and the tokens, got {shown(call)}")
    return AdaptedModule(model, _Call(call, tokens, output, arguments))


def shown_model(model: Any) -> str:
    hint = f"; pass an instance, {model.__name__}(...)" if isinstance(model, type) else ""
    if isinstance(model, str | os.PathLike):
        hint = f"; for a run pass hs.load_run({shown(str(model))}).model"
    elif isinstance(getattr(model, "model", None), nn.Module):
        hint = "; pass its .model"
    elif isinstance(model, Mapping) and any(isinstance(value, Tensor) for value in model.values()):
        return f"weights ({type(model).__name__}); pass a module that has loaded these weights (module.load_state_dict)"
    return f"{shown(model)}{hint}"


class _Call:
    def __init__(self, call: Call | None, tokens: str | None, output: Any, arguments: Mapping[str, Any]) -> None:
        self._call, self._tokens, self._output, self._arguments = call, tokens, output, dict(arguments)

    def __call__(self, model: Any, tokens: Tensor) -> Any:
        if self._call is not None:
            found = self._call(model, tokens)
        else:
            given = {
                name: value(tokens) if callable(value) and not isinstance(value, nn.Module) else value
                for name, value in self._arguments.items()
            }
            found = call_on_tokens(model, tokens, self._tokens, given)
        return found if self._output is None else _chosen(found, self._output)


def _chosen(output: Any, which: Any) -> Any:
    if callable(which):
        return which(output)
    try:
        return output[which] if isinstance(which, int) or isinstance(output, Mapping) else getattr(output, which)
    except (AttributeError, KeyError, IndexError, TypeError):
        raise InputError(f"output: the model's output has no {which!r}; it is {_described(output)}") from None


def call_on_tokens(model: Any, tokens: Tensor, name: str | None = None, given: Mapping[str, Any] | None = None) -> Any:
    first, options = _arguments(model, name, given or {})
    tokens = tokens if tokens.is_floating_point() else tokens.contiguous()  # for models that call tokens.view
    if options:
        kind = dtype_of(model) if isinstance(model, nn.Module) else torch.get_default_dtype()
        options = {key: FOLLOWING[key](tokens, kind) if value is _FOLLOWS else value for key, value in options.items()}
        padding = next((key for key in options if key.endswith("key_padding_mask")), "")
        if isinstance(model, nn.Module) and padding and options.keys() & {"attn_mask", "src_mask", "tgt_mask"}:
            torchs = any(isinstance(part, nn.MultiheadAttention) for part in parts_of(model))
            options[padding] = options[padding].to(kind) if torchs else options[padding]  # which wants one type
    try:
        return model(tokens, **options) if first is None else model(**{first: tokens}, **options)
    except SystemExit as end:
        raise InputError(f"model: the model's code called sys.exit (SystemExit: {end}); let it return instead") from end


_FOLLOWS = object()


def _arguments(model: Any, name: str | None, given: Mapping[str, Any]) -> tuple[str | None, dict[str, Any]]:
    try:
        found = list(inspect.signature(_function(model)).parameters.values())
    except (TypeError, ValueError):  # a function in C
        return name, dict(given)
    takes_all = any(one.kind is one.VAR_KEYWORD for one in found)
    odd = {*given, *([] if name is None else [name])} - {one.name for one in found}
    if odd and not takes_all:
        own = ", ".join(one.name for one in found)
        raise InputError(
            f"model: the forward of {title_of(model)} has no argument {min(odd)!r}; it has {own or 'none'}"
        )
    positional = [one for one in found if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    free = [one.name for one in positional if one.name not in FOLLOWING and one.name not in given]
    only = [one for one in found if one.kind is one.KEYWORD_ONLY]
    first = name
    free.sort(key=lambda one: one not in TOKENS)  # stable
    if name is None and positional and (not free or free[0] == positional[0].name):
        taken = positional[0].name
    elif name is None and free:
        first = taken = free[0]
    elif name is None and any(one.kind is one.VAR_POSITIONAL for one in found):
        taken = ""
    elif name is None:
        needed = [one.name for one in only if one.default is one.empty and one.name not in {*FOLLOWING, *given}]
        known = [one for one in TOKENS if takes_all or one in {other.name for other in only}]
        first = taken = next(iter(needed[:1] if len(needed) == 1 else known), "")
        if not first:
            raise InputError(f"model: {title_of(model)}'s forward takes no tokens; pass hs.adapt(model, call=function)")
    else:
        taken = name
    rest = [one.name for one in (*positional, *only) if one.default is one.empty and one.name not in {taken, *given}]
    unknown = [one for one in rest if one not in FOLLOWING]
    if unknown:
        ways = ", ".join(f"{one}=..." for one in unknown)
        raise InputError(
            f"model: {title_of(model)} needs more arguments than the tokens ({', '.join(unknown)}); pass "
            f"hs.adapt(model, {ways}), where each argument is a value or a function of the tokens"
        )
    return first, {one: _FOLLOWS for one in rest} | dict(given)


def _function(model: Any) -> Any:
    if isinstance(model, nn.Module) and "adapted" in vars(model):
        return model.forward
    return innermost(model).forward if isinstance(model, nn.Module) else model


def require_signature(model: Any) -> None:
    """Raise InputError if a module requires arguments besides tokens whose values are not given."""
    inside = getattr(model, "adapted", None)
    if not isinstance(model, AdaptedModule):
        _arguments(model, None, {})
    elif isinstance(model.call, _Call) and model.call._call is None:
        _arguments(inside, model.call._tokens, model.call._arguments)


def raw_logits(output: Any) -> Any:
    """Return the logits in a module's output: a tensor, the attribute or key ``logits``, or an element of a tuple.

    In a tuple the logits are the first element, or the second after a loss (a number or None).
    """
    if isinstance(output, Mapping):
        output = output.get("logits", output)
    else:
        output = getattr(output, "logits", output)
    if isinstance(output, tuple | list) and output:
        first = output[0]
        is_loss = first is None or (isinstance(first, Tensor) and first.ndim == 0)
        return output[1] if is_loss and len(output) > 1 else first
    return output


def described_output(output: Any) -> str:
    """Describe an output without logits for an error message."""
    logits = raw_logits(output)
    if isinstance(logits, Tensor):
        return str(tuple(logits.shape))
    logits = output if logits is None else logits
    names = sorted(named := _tensors(logits), key=lambda name: named[name].ndim != 3)
    way = f"; name the logits: hs.adapt(model, output={names[0]!r})" if names else ""
    return f"{_described(logits)}{way}"


def _described(output: Any) -> str:
    named = _tensors(output)
    kind = type(output).__name__
    return f"{kind} with {', '.join(map(str, named))}" if named else kind


def _tensors(output: Any) -> dict[Any, Tensor]:
    if isinstance(output, Mapping):
        items = list(output.items())
    elif is_dataclass(output):
        items = [(field.name, getattr(output, field.name)) for field in fields(output)]
    else:
        items = list(enumerate(output)) if isinstance(output, tuple | list) else []
    return {name: value for name, value in items if isinstance(value, Tensor)}


def shells(model: Any) -> Iterator[nn.Module]:
    while isinstance(model, nn.Module):
        yield model
        held = dict(vars(model).get("_modules", {}).items())
        inside = next((held[name] for name in _WRAPPED if isinstance(held.get(name), nn.Module)), None)
        if inside is None and any(cls.__name__ in _PARALLEL for cls in type(model).__mro__):
            inside = held.get("module")
        if inside is None:
            inside = vars(model).get("adapted")
        model = inside


def parts_of(model: nn.Module) -> list[nn.Module]:
    inside = (shell for part in model.modules() if isinstance(part, AdaptedModule) for shell in shells(part))
    return list(dict.fromkeys([*model.modules(), *inside]))


def innermost(model: nn.Module) -> nn.Module:
    return list(shells(model))[-1]


def named_module(model: nn.Module) -> nn.Module:
    return next((shell for shell in shells(model) if isinstance(shell, AdaptedModule)), innermost(model))


@contextmanager
def run_eagerly(model: nn.Module) -> Iterator[None]:
    """Run parts compiled by torch.compile uncompiled in the ``with`` block, because compiled code ignores new hooks."""
    compiled = any("_orig_mod" in part._modules or part._compiled_call_impl for part in parts_of(model))
    stance: Any = torch.compiler.set_stance
    with stance("force_eager") if compiled and not torch.compiler.is_compiling() else nullcontext():
        yield


def dtype_of(model: nn.Module) -> torch.dtype:
    return next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)


def title_of(model: Any) -> str:
    inside = innermost(model) if isinstance(model, nn.Module) else model
    inside = getattr(inside, getattr(type(inside), "wraps", ""), inside)
    if isinstance(inside, AdaptedModule):
        inside = inside.adapted
    if isinstance(inside, nn.Module):
        return _class_of(inside).__name__
    return getattr(inside, "__name__", type(inside).__name__)


def called_title(model: nn.Module) -> str:
    own = False
    for shell in (named_module(model), getattr(model, "module", None), getattr(model, "call", None)):
        own |= isinstance(shell, AdaptedModule) and isinstance(shell.call, _Call) and shell.call._call is not None
    needed = " (attention is found if the call of hs.adapt computes all positions at once, without padding or a cache)"
    return title_of(model) + needed * own


def class_name_of(model: nn.Module) -> str:
    cls = _class_of(innermost(model))
    return vars(cls).get("stored_name") or f"{cls.__module__}.{cls.__qualname__}"


def _class_of(module: nn.Module) -> type:
    cls = type(module)
    return cls.__mro__[2] if cls.__mro__[1].__name__ == "FSDPModule" and len(cls.__mro__) > 2 else cls


def _filled(tokens: Tensor, value: int) -> Tensor:
    return torch.full(tokens.shape[:2], value, dtype=torch.int64, device=tokens.device)


def _causal(tokens: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.full((tokens.shape[1],) * 2, -torch.inf, dtype=dtype, device=tokens.device).triu(1)


def _places(tokens: Tensor) -> Tensor:
    return torch.arange(tokens.shape[1], device=tokens.device)
