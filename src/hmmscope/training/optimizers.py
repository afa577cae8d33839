"""Torch optimisers by name or factory, parameter groups, and auxiliary losses."""

import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from hmmscope.axes import Float, Tensor
from hmmscope.errors import InputError
from hmmscope.models.adapted import AdaptedModule
from hmmscope.models.user_module import UserModule, unwrapped
from hmmscope.schema import require, require_known, shown
from hmmscope.training.state import Moments

if TYPE_CHECKING:
    from hmmscope.training.spec import TrainingSpec

#: Makes one or several optimisers of a model.
Factory = Callable[[nn.Module], Any]
#: Returns a scalar, given the model, the batch and the model's output.
AuxiliaryLoss = Callable[[nn.Module, Any, Any], Tensor]

_NEEDS_MORE = ("lbfgs", "sparseadam")  # a closure; sparse gradients
_GIVEN = ("params", "lr", "betas", "weight_decay")  # by other fields
_NORM = re.compile(r"Norm(\dd)?$")


def check_optimizer(spec: "TrainingSpec") -> None:
    if "." in spec.optimizer:
        rule = "cannot be combined with an optimizer factory; set the options in the factory"
        return require(not spec.optimizer_options, "optimizer_options", rule, spec.optimizer_options)
    _made(spec, [nn.Parameter(torch.zeros(1, 1))])


def make_optimizer(model: nn.Module, spec: "TrainingSpec", factory: Factory | None = None) -> Moments:
    plain = _without_decay(unwrapped(model)) if spec.weight_decay_on == "matrices" else frozenset()
    if factory is None and spec.optimizer == "adamw" and not spec.optimizer_options:
        return Moments(plain)
    if factory is None:
        trained = [p for p in model.parameters() if p.requires_grad]
        groups: list[Any] = [{"params": [p for p in trained if p not in plain]}]
        if plain:
            groups.append({"params": [p for p in trained if p in plain], "weight_decay": 0.0})
        return Moments(plain, [_made(spec, [group for group in groups if group["params"]])])
    return Moments(plain, _given(factory, unwrapped(model)))


def _made(spec: "TrainingSpec", parameters: list[Any]) -> torch.optim.Optimizer:
    known = {
        name.lower(): one
        for name, one in vars(torch.optim).items()
        if isinstance(one, type) and issubclass(one, torch.optim.Optimizer) and one is not torch.optim.Optimizer
    }
    names = known.keys() - set(_NEEDS_MORE)
    require_known("optimizer", spec.optimizer, names)
    taken = inspect.signature(known[spec.optimizer].__init__).parameters
    fixed: dict[str, Any] = {"lr": spec.learning_rate, "weight_decay": spec.weight_decay, "betas": tuple(spec.betas)}
    fixed |= {"eps": spec.epsilon} if "betas" in taken else {}
    options = dict(_option(text) for text in spec.optimizer_options)
    own = [name for name in taken if name not in ("self", *_GIVEN) and name not in fixed]
    for name in options:
        require_known("optimizer_options", name, own)
    if spec.weight_decay_on == "matrices" and "weight_decay" not in taken:
        raise InputError(f"weight_decay_on: {spec.optimizer} has no weight decay; omit weight_decay_on")
    try:
        return known[spec.optimizer](
            parameters, **{name: value for name, value in fixed.items() if name in taken}, **options
        )
    except (TypeError, ValueError) as error:
        raise InputError(f"optimizer: {spec.optimizer} does not accept this model or option: {error}") from None


def _option(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    require(bool(equals), "optimizer_options", "must be NAME=VALUE, such as momentum=0.9", text)
    words = {"true": True, "false": False, "none": None}
    if value.strip() in words or not re.fullmatch(r"[-+0-9.eE\s]+", value):
        return name.strip(), words.get(value.strip(), value.strip())
    try:
        numbers = tuple(int(one) if re.fullmatch(r"[-+]?\d+", one) else float(one) for one in value.split())
    except ValueError:
        numbers = ()
    require(bool(numbers), "optimizer_options", "must be NAME=VALUE, such as momentum=0.9", text)
    return name.strip(), numbers if len(numbers) > 1 else numbers[0]


def _given(factory: Factory, model: nn.Module) -> Sequence[torch.optim.Optimizer]:
    remedy = "pass a function of the model, such as lambda model: torch.optim.SGD(model.parameters(), lr=0.1)"
    if not callable(factory) or isinstance(factory, type):
        raise InputError(f"optimizer: got {shown(factory)}; {remedy}")
    try:
        made = factory(model)
    except (TypeError, ValueError) as error:
        raise InputError(f"optimizer: the factory fails: {error}; {remedy}") from error
    found = list(made) if isinstance(made, list | tuple) else [made]
    if not found or not all(isinstance(one, torch.optim.Optimizer) for one in found):
        raise InputError(f"optimizer: the factory returned {shown(made)}, not a torch optimizer; {remedy}")
    held = [p for one in found for group in one.param_groups for p in group["params"]]
    own = set(model.parameters())
    if any(p not in own for p in held):
        raise InputError(
            "optimizer: has a parameter that does not belong to the model; use only parameters of the given model"
        )
    if len(set(held)) < len(held):
        raise InputError(
            "optimizer: two of the optimizers have the same parameter; give each parameter to one optimizer only"
        )
    for one in found:
        closure = inspect.signature(type(one).step).parameters.get("closure")
        if (closure is not None and closure.default is closure.empty) or isinstance(one, torch.optim.LBFGS):
            raise InputError(
                f"optimizer: {type(one).__name__} needs a closure; use an optimizer whose step() takes no closure"
            )
        for group in one.param_groups:
            group.setdefault("initial_lr", group["lr"])
    return found


def _without_decay(model: nn.Module) -> frozenset[Tensor]:
    # those of norms, biases, and others with one axis
    return frozenset(
        parameter
        for module in model.modules()
        for name, parameter in module.named_parameters(recurse=False)
        if parameter.ndim < 2 or name.startswith("bias") or _NORM.search(type(module).__name__)
    )


class AuxiliaryLosses:
    """Scalars, by name, that training adds to the loss."""

    def __init__(self, losses: Mapping[str, AuxiliaryLoss], model: nn.Module) -> None:
        self._losses, self._model, self._output = losses, unwrapped(model), None
        called: Any = model.adapted if isinstance(model, UserModule) else model
        inside = called.adapted if isinstance(called, AdaptedModule) else called
        self._heard: nn.Module = inside if isinstance(inside, nn.Module) else called

    @contextmanager
    def listening(self) -> Iterator[None]:
        def keep(module: nn.Module, args: tuple, output: Any) -> None:
            self._output = output

        handle = self._heard.register_forward_hook(keep)
        try:
            yield
        finally:
            handle.remove()

    def terms(self, loss: Float[Tensor, ""], batch: Any) -> Float[Tensor, " term"]:
        output, self._output = self._output, None
        found = [loss]
        for name, function in self._losses.items():
            value = function(self._model, batch, output)
            scalar = isinstance(value, Tensor) and value.numel() == 1
            what = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
            require(scalar, f"auxiliary_losses[{name!r}]", "must return a scalar tensor", what)
            found.append(value.reshape(()).to(loss))
        return torch.stack(found)
