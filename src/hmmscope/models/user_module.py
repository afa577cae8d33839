"""User modules and functions as models."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from hmmscope import registry
from hmmscope.axes import Float, Tensor
from hmmscope.errors import InputError
from hmmscope.models.base import ModelIO, SequenceModel
from hmmscope.schema import shown
from hmmscope.seeds import derived_seed


def raw_logits(output: Any) -> Any:
    """Return the logits in a module's output: a tensor, the first of a tuple, or ``logits`` of an object or dict."""
    logits = output["logits"] if isinstance(output, dict) and "logits" in output else getattr(output, "logits", output)
    return logits[0] if isinstance(logits, tuple) and logits else logits


def logits_of(output: Any, inputs: Tensor, num_outputs: int) -> Float[Tensor, "batch time output"]:
    """Return the checked logits in a module's output, cut to `num_outputs`.

    Raises:
        InputError: no tensor (batch, time, output), or fewer outputs than symbols.
    """
    logits, (batch, time) = raw_logits(output), inputs.shape[:2]
    if not isinstance(logits, Tensor) or logits.ndim != 3 or logits.shape[:2] != (batch, time):
        found = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        rule = f"model: must map tokens {tuple(inputs.shape)} to logits (batch, time, symbol), got {found}"
        if isinstance(logits, Tensor) and logits.ndim == 3 and logits.shape[:2] == (time, batch):
            rule += ": batch and time are swapped; return logits.transpose(0, 1)"
        elif isinstance(logits, Tensor) and logits.ndim == 3 and (logits.shape[0], logits.shape[2]) == (batch, time):
            rule += ": time is the last axis instead of symbols; return logits.transpose(1, 2)"
        raise InputError(rule)
    if logits.shape[2] < num_outputs:
        raise InputError(f"model: returns {logits.shape[2]} logits, but the dataset has {num_outputs} symbols")
    return logits[..., :num_outputs]


class Function(nn.Module):
    """A function from tokens to logits, as a module."""

    stored_name = "hmmscope.models.user_module.Function"

    def __init__(self, function: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, inputs: Tensor) -> Any:
        return self.function(inputs)


def as_module(model: Any) -> nn.Module:
    """Return a module unchanged, or wrap a function of tokens as a module.

    Raises:
        InputError: neither.
    """
    if isinstance(model, nn.Module):
        return model
    if not callable(model) or isinstance(model, type):
        raise InputError(f"model: must be a torch module or a function of tokens, got {shown(model)}")
    return Function(model)


class UserModule(SequenceModel):
    """A user module, trained in place; its dropout depends on the run's seed and step.

    Args:
        module: maps tokens (batch, time), or vectors, to logits; see `logits_of`.
        model_io: input and output sizes.
        seed: of its randomness.
    """

    def __init__(self, module: nn.Module, model_io: ModelIO, seed: int) -> None:
        super().__init__()
        self.model_io, self.num_symbols, self.vocab_size = model_io, model_io.num_outputs, model_io.vocab_size
        self.module, self.residual, self._seed, self._step = module, nn.ModuleList(), seed, (0, 0)

    def set_step(self, step: int, stream: int = 0) -> None:
        self._step = (step, stream)

    def forward(
        self,
        inputs: Tensor,
        positions: Tensor | None = None,
        *,
        feedback: Tensor | None = None,
        cache: dict[str, Any] | None = None,
    ) -> Float[Tensor, "batch time output"]:
        if feedback is not None or cache is not None:
            raise InputError("model: a user module takes no feedback; train it without block_length")
        if not self.training:
            return logits_of(self.module(inputs), inputs, self.model_io.num_outputs)
        step, stream = self._step
        devices = [inputs.device] if inputs.device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices):
            torch.manual_seed(derived_seed(self._seed, f"given/{stream}", step))  # noqa: TID251 - put back at the end
            return logits_of(self.module(inputs), inputs, self.model_io.num_outputs)


def unwrapped(model: nn.Module) -> nn.Module:
    """Return the user's module."""
    return model.module if isinstance(model, UserModule) else model


@registry.model("given")
@dataclass(frozen=True, kw_only=True)
class UserModuleSpec:
    """A user module. A configuration stores its class and shapes, a run its first weights.

    Attributes:
        class_name: class with its package.
        shapes: ``name 3x4`` of each parameter.
    """

    class_name: str
    shapes: tuple[str, ...]
    module: Any = field(default=None, init=False, compare=False, repr=False)

    @classmethod
    def of(cls, module: nn.Module) -> "UserModuleSpec":
        name = vars(type(module)).get("stored_name") or f"{type(module).__module__}.{type(module).__qualname__}"
        if any(nn.parameter.is_lazy(one) for one in module.parameters()):
            raise InputError("model: has lazy modules with unknown shapes; give their sizes")
        shapes = tuple(f"{key} {'x'.join(map(str, p.shape)) or 1}" for key, p in module.named_parameters())
        spec = cls(class_name=name, shapes=shapes)
        object.__setattr__(spec, "module", module)
        return spec

    def with_module(self, module: nn.Module) -> "UserModuleSpec":
        """Return the spec with this module attached.

        Raises:
            InputError: its parameters differ.
        """
        other = UserModuleSpec.of(module)
        if other.shapes != self.shapes:
            odd = next(iter(set(self.shapes) ^ set(other.shapes)), "their order")
            raise InputError(f"model: does not match the {self.class_name} of the run; parameters differ: {shown(odd)}")
        object.__setattr__(other, "class_name", self.class_name)
        return other

    def refusal(self, path: Any) -> str:
        """Return one line on how to load a run that needs its module."""
        name = model_name(self)
        return (
            f"{path}: its model is a user module, {name}; load it in Python with run = hs.load_run({str(path)!r}, "
            f"model={name}(...)), then call run.report(), hs.probe(run.model, run.dataset('probe'), ...) or another "
            f"instrument; on the command line run hmmscope look FILE.py:{name} {path}"
        )

    def build(self, model_io: ModelIO, generator: torch.Generator) -> UserModule:
        if self.module is None:
            raise InputError(f"model: was a {self.class_name} object and is not stored; pass the object again")
        return UserModule(self.module, model_io, int(torch.randint(2**32, (), generator=generator)))


def model_name(spec: Any) -> str:
    """Return the registered name, or the class name of a user module."""
    name: str = spec.class_name.rpartition(".")[2] if isinstance(spec, UserModuleSpec) else spec.name
    return name
