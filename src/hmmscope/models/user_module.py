"""User modules and functions as models."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from hmmscope import registry
from hmmscope.axes import Float, Tensor
from hmmscope.errors import InputError
from hmmscope.models.adapted import (
    CONFIGS,
    adapt,
    call_on_tokens,
    class_name_of,
    described_output,
    named_module,
    raw_logits,
    shells,
)
from hmmscope.models.base import ModelIO, SequenceModel
from hmmscope.models.weight_names import matched
from hmmscope.schema import shown
from hmmscope.seeds import derived_seed


def logits_of(
    output: Any, inputs: Tensor, num_outputs: int, *, whole: bool = False
) -> Float[Tensor, "batch time output"]:
    """Check and return the logits in a module's output, cut to `num_outputs` unless `whole` is true."""
    logits, (batch, time) = raw_logits(output), inputs.shape[:2]
    if not isinstance(logits, Tensor) or logits.ndim != 3 or logits.shape[:2] != (batch, time):
        found = described_output(output)
        rule = f"model: must map tokens {tuple(inputs.shape)} to logits (batch, time, symbol), got {found}"
        if isinstance(logits, Tensor) and logits.ndim == 3 and logits.shape[:2] == (time, batch):
            rule += "; batch and time are swapped, so return logits.transpose(0, 1)"
        elif isinstance(logits, Tensor) and logits.ndim == 3 and (logits.shape[0], logits.shape[2]) == (batch, time):
            rule += "; time is the last axis instead of symbols, so return logits.transpose(1, 2)"
        elif isinstance(logits, Tensor) and logits.ndim == 3 and logits.shape[:2] == (batch, 1):
            rule += "; it returns only the last position; nanoGPT returns all positions if given targets: "
            rule += "hs.adapt(model, targets=lambda tokens: tokens)"
        raise InputError(rule)
    if not logits.is_floating_point():
        kind = str(logits.dtype).removeprefix("torch.")
        raise InputError(f"model: must return logits of a real floating-point dtype, got {kind}; return them unrounded")
    if logits.shape[2] < num_outputs:
        raise InputError(f"model: returns {logits.shape[2]} logits, but the dataset has {num_outputs} symbols")
    if isinstance(output, tuple | list) and logits.shape[2] != num_outputs > 1 and not whole:
        fits = [at for at, one in enumerate(output) if getattr(one, "shape", None) == (batch, time, num_outputs)]
        if fits:
            rule = f"a tuple with tensors of shapes {tuple(logits.shape)} and {(batch, time, num_outputs)}"
            raise InputError(f"model: returns {rule}; name the logits: hs.adapt(model, output={fits[0]})")
    return logits if whole else logits[..., :num_outputs]


def as_module(model: Any) -> nn.Module:
    return model if isinstance(model, nn.Module) else adapt(model)


class UserModule(SequenceModel):
    """A user's module, trained in place; its dropout depends on the run's seed and step.

    Args:
        module: map from tokens (batch, time), or vectors, to logits; see `logits_of`.
        seed: seed of dropout and other random numbers of the module.
    """

    def __init__(self, module: nn.Module, model_io: ModelIO, seed: int) -> None:
        super().__init__()
        self.model_io, self.num_symbols, self.vocab_size = model_io, model_io.num_outputs, model_io.vocab_size
        self.module, self.residual, self._seed = named_module(module), nn.ModuleList(), seed
        self.__dict__["adapted"] = module  # not a part, so that names have no prefix of a wrapper
        self.set_step(0)

    def set_step(self, step: int, stream: int = 0) -> None:
        self.step_seed = derived_seed(self._seed, f"given/{stream}", step)

    def train(self, mode: bool = True) -> "UserModule":
        for shell in shells(self.adapted):
            shell.training = mode
        super().train(mode)
        return self

    def forward(
        self,
        inputs: Tensor,
        positions: Tensor | None = None,
        *,
        feedback: Tensor | None = None,
        cache: dict[str, Any] | None = None,
    ) -> Float[Tensor, "batch time output"]:
        if feedback is not None or cache is not None:
            raise InputError("model: a user module cannot read its own predictions; train with block_length = 0")
        if not self.training or torch.compiler.is_compiling():  # training seeds the generators of a compiled model
            return logits_of(call_on_tokens(self.adapted, inputs), inputs, self.model_io.num_outputs)
        devices = [inputs.device] if inputs.device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices):
            torch.manual_seed(self.step_seed)  # noqa: TID251 - put back at the end
            return logits_of(call_on_tokens(self.adapted, inputs), inputs, self.model_io.num_outputs)


def unwrapped(model: nn.Module) -> nn.Module:
    return model.module if isinstance(model, UserModule) else model


@registry.model("given")
@dataclass(frozen=True, kw_only=True)
class UserModuleSpec:
    """Spec of a user's module. Configurations store the class and shapes; runs also store the initial weights.

    Attributes:
        class_name: name of the class, with its package.
        shapes: name and shape of each parameter, such as ``name 3x4``.
        heads: attributes that hold numbers of heads, such as ``h.*.attn.n_head=4``, where ``*`` stands for the layer.
    """

    class_name: str
    shapes: tuple[str, ...]
    heads: tuple[str, ...] = field(default=(), metadata={"absent": True})
    module: Any = field(default=None, init=False, compare=False, repr=False)

    @classmethod
    def of(cls, module: nn.Module) -> "UserModuleSpec":
        if any(nn.parameter.is_lazy(one) for one in module.parameters()):
            raise InputError("model: has lazy modules with unknown shapes; specify the sizes of these modules")
        parameters = list(named_module(module).named_parameters())
        if any(key.endswith("_flat_param") for key, _ in parameters):
            raise InputError("model: FSDP has flattened its weights; pass use_orig_params=True, or use fully_shard")
        shapes = tuple(f"{key} {'x'.join(map(str, p.shape)) or 1}" for key, p in parameters)
        spec = cls(class_name=class_name_of(module), shapes=shapes, heads=_heads(module))
        object.__setattr__(spec, "module", module)
        return spec

    def with_module(self, module: nn.Module, *, strict: bool = True) -> "UserModuleSpec":
        """Return the spec with this module attached.

        Args:
            module: user's module.
            strict: False accepts other numbers of heads.

        Raises:
            InputError: the module's parameters, or (with `strict`) numbers of heads, differ from the spec's.
        """
        other = UserModuleSpec.of(module)
        own, found = ({one.rpartition(" ")[0]: one.rpartition(" ")[2] for one in spec.shapes} for spec in (other, self))
        names = matched(own, found) or {}
        if not names or any(own[name] != found[there] for name, there in names.items()):
            odd = next(iter(set(self.shapes) ^ set(other.shapes)), "their order")
            raise InputError(
                f"model: must have the parameters of the run's {self.class_name}, but differs in {shown(odd)}"
            )
        here, there = ({one.rpartition(".")[2] for one in spec.heads} for spec in (other, self))
        if strict and self.heads and here != there:
            odd, wanted = (", ".join(sorted(one)) or "none of them" for one in (here - there, there - here))
            raise InputError(f"model: has {odd}, but the run has {wanted}; load the weights anyway with strict=False")
        object.__setattr__(other, "class_name", self.class_name)
        object.__setattr__(other, "heads", self.heads)
        return other

    def refusal(self, path: Any) -> str:
        name = model_name(self)
        return (
            f"{path}: its model is a user module, {name}; load it in Python with run = hs.load_run({str(path)!r}, "
            f"model={name}(...)), then call run.report(), hs.probe(run.model, run.dataset('probe'), ...) or another "
            f"instrument; on the command line run hmmscope look FILE.py:{name} {path}"
        )

    def build(self, model_io: ModelIO, generator: torch.Generator) -> UserModule:
        if self.module is None:
            raise InputError(f"model: pass the {self.class_name} object of the run again, because it is not stored")
        return UserModule(self.module, model_io, int(torch.randint(2**32, (), generator=generator)))


def _heads(module: nn.Module) -> tuple[str, ...]:
    found = set()
    for where, part in named_module(module).named_modules():
        path = "".join(f"{'*' if piece.isdigit() else piece}." for piece in where.split(".") if piece)
        for name, value in vars(part).items():
            if "head" in name and type(value) is int:
                found.add(f"{path}{name}={value}")
    config = next((one for name in CONFIGS if (one := getattr(module, name, None)) is not None), None)
    if not found and config is not None:  # heads that only a configuration counts
        stated = config if isinstance(config, Mapping) else getattr(config, "__dict__", {})
        found = {f"config.{name}={value}" for name, value in stated.items() if "head" in name and type(value) is int}
    return tuple(sorted(found))


def model_name(spec: Any) -> str:
    name: str = spec.class_name.rpartition(".")[2] if isinstance(spec, UserModuleSpec) else spec.name
    return name
