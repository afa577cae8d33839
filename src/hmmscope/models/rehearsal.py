"""Rehearsal: calls of a user's model on a few samples, which detect errors before training or analysis.

A rehearsal restores the model's state, the random generators and the hooks.
"""

import copy
import warnings
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from hmmscope.axes import Bool, Float, Int64, Tensor
from hmmscope.errors import InputError
from hmmscope.models.adapted import AdaptedModule, call_on_tokens, named_module, parts_of, raw_logits, title_of
from hmmscope.models.base import SequenceModel, seeded_generators
from hmmscope.models.failing import described_inputs, embedding_failure, failure, require_callable_on_tokens
from hmmscope.models.kept_state import KeptState, undisturbed
from hmmscope.models.user_module import UserModule, logits_of
from hmmscope.reprs import Shown

#: Samples to pass; the number used differs from the numbers of positions and outputs.
SAMPLES = 7
#: Tolerance for changed outputs, relative to the largest one, and at least in units of the type's epsilon.
ROUNDING, EPSILONS = 1e-4, 8.0
#: Relative tolerance for 8-bit modules, which round by the largest value of a batch.
_QUANTIZED_ROUNDING = 0.03
#: Tolerance for rows that sum to one.
_SUMS = 1e-3
#: First words of the warning about a model that sees later tokens.
_NOT_CAUSAL = "the model is not causal"
#: Fraction of predictions equal to the current token, above which the outputs seem shifted.
_ECHOES = 0.98


@dataclass(frozen=True, kw_only=True, repr=False)
class Asked(Shown):
    """The outputs that a rehearsal expects of a model.

    Attributes:
        num_outputs: least number of outputs per position.
        columns: positions of evaluated outputs (position,); None for all.
        is_law: True if outputs are logits of a probability distribution.
        next_symbols: True if outputs predict the next symbol.
        strict: True raises an error, False warns, if the model does not return logits (batch, time, output).
    """

    num_outputs: int = 1
    columns: Int64[Tensor, " asked"] | None = None
    is_law: bool = True
    next_symbols: bool = False
    strict: bool = True


def is_of_library(model: nn.Module) -> bool:
    model = unwrapped(model)
    if isinstance(model, AdaptedModule) or not _package(model).startswith("hmmscope"):
        return False
    if isinstance(model, SequenceModel) and model.spec is not None:
        return True
    return all(_package(part).startswith(("hmmscope", "torch")) for part in model.modules())


def _package(thing: object) -> str:
    return type(thing).__module__.partition(".")[0]


def rehearse(model: nn.Module, inputs: Tensor, asked: Asked) -> tuple[str, ...]:
    """Call a model on a few samples and return warnings, one line each.

    Args:
        model: map from tokens (batch, time), or vectors, to logits (batch, time, output).
        inputs: tokens (sample, time) or vectors (sample, time, coordinate).
        asked: outputs that are expected.
    """
    model = unwrapped(model)
    require_callable_on_tokens(model)
    device = next((p.device for p in model.parameters()), inputs.device)
    with ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings(action="ignore"))  # the measurement repeats the model's own
        if device.type == "cuda":  # an index out of range makes the device unusable
            stack.enter_context(_checked_embeddings(model, inputs))
        kept = stack.enter_context(undisturbed(model))
        rehearsed = _Rehearsed(model, inputs.to(device), asked, kept)
        return rehearsed.warnings()


def rehearse_training(net: UserModule, num_columns: int, target: str) -> tuple[str, ...]:
    """Rehearse a user's module before training, on samples that contain every token, or on zero vectors."""
    ports, module = net.model_io, net.module
    asked = Asked(num_outputs=ports.num_outputs, is_law=ports.vocab_size is not None and target != "density")
    if ports.vocab_size is None:
        dtype = next((p.dtype for p in module.parameters() if p.is_floating_point()), torch.float32)
        inputs = torch.zeros(SAMPLES, num_columns, ports.input_width or 1, dtype=dtype)
    else:
        rows = max(SAMPLES, -(-ports.vocab_size // num_columns))
        inputs = (torch.arange(rows * num_columns) % ports.vocab_size).view(rows, num_columns)
    _require_trainable(module)
    return (*rehearse(module, inputs, asked), *_rehearse_gradients(module, inputs[:SAMPLES]))


def _require_trainable(module: nn.Module) -> None:
    held = ((name, value) for name, value in module.state_dict().items() if isinstance(value, Tensor))
    sparse = next((name for name, value in held if value.layout is not torch.strided), None)
    if sparse is not None:
        raise InputError(
            f"model: {sparse} is a sparse tensor, which checkpoints do not store; register it with persistent=False"
        )
    for name, part in module.named_modules():
        if _is_quantized(part):
            raise InputError(
                f"model: {name or title_of(module)} is quantized and cannot be trained; train it before quantization"
            )
        odd = next((key for key, weight in part.named_parameters(recurse=False) if weight.is_complex()), None)
        if odd is not None:
            raise InputError(
                f"model: {'.'.join(filter(None, (name, odd)))} is complex; use two real parameters instead"
            )
        if getattr(part, "sparse", False) is True and any(True for _ in part.parameters(recurse=False)):
            raise InputError(f"model: {name or title_of(module)} has sparse gradients; build it with sparse=False")


def _is_quantized(part: nn.Module) -> bool:
    return ".quantized." in f"{type(part).__module__}."


def _rehearse_gradients(module: nn.Module, inputs: Tensor) -> tuple[str, ...]:
    weights = list(module.parameters())
    if any(weight.is_inference() for weight in weights):
        raise InputError(
            "model: its weights were created under torch.inference_mode(); create the module outside inference_mode()"
        )
    if not any(weight.requires_grad for weight in weights):
        raise InputError("model: has no trainable weights; set requires_grad on the weights to train")
    device = next((weight.device for weight in weights), None)
    inputs = inputs.to(device)
    with undisturbed(module), torch.enable_grad():
        module.train()  # a module may disable gradients in evaluation only

        def call() -> Any:
            with seeded_generators(0):
                return raw_logits(call_on_tokens(module, inputs))

        output = call()
        with torch.no_grad(), _moved(weights):
            call()  # fills what depends on the last call only
            before = KeptState(module)
            call()
            lost = before.outside_state()
    if isinstance(output, Tensor) and not output.requires_grad:
        raise InputError(
            "model: its output has no gradient; remove torch.no_grad(), inference_mode() or detach() from its forward"
        )
    if any(not isinstance(value, Tensor) for value in module.state_dict().values()):
        lost.append("the value of get_extra_state")
    if not lost:
        return ()
    rule = "checkpoints do not store this state, so a resumed or loaded run loses it; register it as a buffer"
    return (f"the model keeps state outside of the tensors of its state_dict ({', '.join(lost[:16])}); {rule}",)


@contextmanager
def _moved(weights: list[nn.Parameter]) -> Iterator[None]:
    moving = [weight for weight in weights if weight.is_floating_point()]
    kept = [weight.detach().clone() for weight in moving]
    try:
        for weight in moving:
            weight.mul_(1.01)
        yield
    finally:
        for weight, value in zip(moving, kept, strict=True):
            weight.copy_(value)


def unwrapped(model: nn.Module) -> nn.Module:
    return named_module(model)


def leak_in(model: nn.Module, lines: Iterable[str]) -> str | None:
    """Return why scores are invalid if outputs depend on later tokens, else None; `lines` are the model's warnings."""
    bidirectional = getattr(getattr(unwrapped(model), "spec", None), "causal", True) is False
    found = f"{_NOT_CAUSAL}: it has causal = false" if bidirectional else None
    found = next((line for line in lines if line.startswith(_NOT_CAUSAL)), found)
    return found and f"{found}, so its losses do not measure predictions; mask later tokens"


def failure_on_few(model: nn.Module) -> str:
    tokens = torch.zeros(2, 5, dtype=torch.int64, device=next((p.device for p in model.parameters()), None))
    try:
        with undisturbed(model):
            call_on_tokens(model, tokens)
    except Exception as error:
        return f", which fails on {described_inputs(tokens)} ({' '.join(str(error).split())[:200]})"
    return ""


def copied_model(model: nn.Module) -> nn.Module:
    kept = KeptState(model)
    hooked = kept.disables
    with kept.without_hooks():
        copied = copy.deepcopy(model)
    return copy.deepcopy(model) if hooked and failure_on_few(copied) else copied


class _Rehearsed:
    def __init__(self, model: nn.Module, inputs: Tensor, asked: Asked, kept: "KeptState") -> None:
        self.model, self.asked, self.kept = model, asked, kept
        self.rounding = _QUANTIZED_ROUNDING if any(map(_is_quantized, parts_of(model))) else ROUNDING
        taken = {inputs.shape[1], inputs.shape[1] - 1, asked.num_outputs, asked.num_outputs + 1}
        count = next(count for count in range(3, SAMPLES + 1) if count not in taken)
        repeated = inputs.repeat(-(-count // len(inputs)), *(1 for _ in inputs.shape[1:]))
        self.inputs, self.every = repeated[:count], inputs

    def warnings(self) -> tuple[str, ...]:
        if len(self.every) > SAMPLES:
            self._first_call(self.every)
        output = self._first_call(self.inputs)
        first = self._logits(output, self.inputs)
        if first is None:
            some = raw_logits(output)
            if not isinstance(some, Tensor) or some.shape[1:-1] == self.inputs.shape[1:2]:
                return ()
            rule = "outputs of all positions (batch, time, output), so its predictions cannot be scored"
            return (f"the model maps tokens {tuple(self.inputs.shape)} to {tuple(some.shape)} instead of {rule}",)
        self._require_symbols_last(first)
        found = [self._undefined(first), self._random(first), *self._coupled(first)]
        if self.asked.is_law and getattr(self.model, "outputs", "logits") != "law":
            found += [self._normalised(first), self._shifted(first)]
        return tuple(filter(None, found))

    def call(self, inputs: Tensor, *, seed: int = 0, again: bool = False) -> Any:
        if not again:
            self.kept.put_back()
        with seeded_generators(seed):
            return call_on_tokens(self.model, inputs)

    def _first_call(self, inputs: Tensor) -> Any:
        try:
            return self.call(inputs)
        except Exception as error:
            if self.kept.disables:  # the model may need its hooks
                self.kept.with_hooks()
                return self._first_call(inputs)
            raised = failure(self.model, inputs, error, self.call)
            if raised is error:
                raise
            raise raised from error

    def _logits(self, output: Any, inputs: Tensor) -> Float[Tensor, "batch time output"] | None:
        logits = raw_logits(output)
        if not self.asked.strict:
            shape = tuple(logits.shape) if isinstance(logits, Tensor) else ()
            batch, time = inputs.shape[:2]
            exchanged = shape[:2] == (time, batch) or (shape[:1] == (batch,) and shape[2:] == (time,))
            if len(shape) != 3 or (shape[:2] != (batch, time) and not exchanged):
                return None
        logits_of(output, inputs, self.asked.num_outputs)
        return logits

    def _require_symbols_last(self, first: Tensor) -> None:
        shorter = self.inputs[:, :-1]
        if first.shape[2] != first.shape[1] or shorter.shape[1] < 1:
            return
        try:
            output = self.call(shorter)
        except Exception:  # the model needs a fixed length
            return
        logits_of(output, shorter, 1)

    def _again(self, inputs: Tensor, **options: Any) -> Tensor | None:
        try:
            found = raw_logits(self.call(inputs, **options))
        except Exception:
            return None
        return found if isinstance(found, Tensor) else None

    def _undefined(self, first: Tensor) -> str:
        bad = (first.softmax(-1).isnan().any(-1) & self._counted(first.shape[1])).any(0).nonzero()
        return f"the model's outputs are NaN or infinite, first at position {int(bad[0])}" if len(bad) else ""

    def _random(self, first: Tensor) -> str:
        self._again(self.inputs)
        if (again := self._again(self.inputs, again=True)) is not None and self._differ(first, again).any():
            return (
                "the model's outputs change when it is called again with the same tokens, because it keeps state "
                "between calls (a hidden state or a private random generator)"
            )
        other = self._again(self.inputs, seed=1)
        if other is not None and self._differ(first, other).any():
            return "the model is random in evaluation mode, because eval() does not disable its dropout or noise"
        return ""

    def _coupled(self, first: Tensor) -> Iterator[str]:
        time = self.inputs.shape[1]
        changed, begins = self.inputs.clone(), (time - 1, time // 2)
        for sample, begin in enumerate(begins):
            changed[sample, begin:] = self._others(changed[sample, begin:])
        found = self._again(changed)
        if found is None or found.shape != first.shape:
            return
        differ = self._differ(first, found) & self._counted(time)
        for sample, begin in enumerate(begins):
            early = differ[sample, :begin].nonzero()
            if len(early):
                what = (
                    f"the token at position {begin} changes"
                    if sample == 0
                    else f"tokens from position {begin} on change"
                )
                yield f"{_NOT_CAUSAL}: its output at position {int(early[-1])} changes when {what}"
                break
        if differ[len(begins) :].any():
            yield "the model's outputs depend on other samples of the batch; check whether its inputs are (time, batch)"

    def _differ(self, one: Tensor, other: Tensor) -> Bool[Tensor, "batch time"]:
        if one.shape != other.shape:
            return torch.ones(one.shape[:2], dtype=torch.bool, device=one.device)
        finite = one.isfinite() & other.isfinite()
        size = float(torch.where(finite, one, 0).abs().max()) if one.numel() else 0.0
        rounding = torch.finfo(one.dtype).eps if one.is_floating_point() else 0.0
        apart = torch.where(finite, (one - other).abs(), 0)
        return (apart > max(self.rounding, EPSILONS * rounding) * size).any(-1)

    def _others(self, some: Tensor) -> Tensor:
        if some.is_floating_point():
            return some + 1
        size = max(int(self.inputs.max()) + 1, 1)
        return (some + 1) % size

    def _counted(self, time: int) -> Bool[Tensor, " time"]:
        if self.asked.columns is None:
            return torch.ones(time, dtype=torch.bool, device=self.inputs.device)
        counted = torch.zeros(time, dtype=torch.bool, device=self.inputs.device)
        counted[self.asked.columns[self.asked.columns < time].to(counted.device)] = True
        return counted

    def _normalised(self, first: Tensor) -> str:
        sums = first.double().sum(-1)
        if first.shape[2] < 2 or not bool((first >= 0).all()) or not bool(((sums - 1).abs() < _SUMS).all()):
            return ""
        return (
            "the model returns probabilities (nonnegative outputs that sum to one) instead of logits; return their "
            "logarithms, or set outputs = 'law' on the module"
        )

    def _shifted(self, first: Tensor) -> str:
        if not self.asked.next_symbols or self.inputs.is_floating_point():
            return ""
        tokens, following = self.inputs[:, :-1], self.inputs[:, 1:]
        probs = first[:, :-1, : self.asked.num_outputs].double().softmax(-1)
        known = (tokens < self.asked.num_outputs) & (following < self.asked.num_outputs)
        if int(known.sum()) < 8 or not bool(probs.isfinite().all()):
            return ""
        own = probs.gather(2, tokens.clamp(max=self.asked.num_outputs - 1)[..., None])[..., 0][known]
        echoes = float((probs.argmax(-1) == tokens)[known].double().mean())
        repeats, believed = float((tokens == following)[known].double().mean()), float(own.mean())
        if echoes < _ECHOES or believed - repeats < 0.1 + 1.5 / len(own) ** 0.5:
            return ""
        return (
            f"the model predicts the current token instead of the next (at {echoes:.0%} of positions, mean probability "
            f"{believed:.2f}; the two tokens are equal at {repeats:.0%}); check whether its outputs are shifted by one"
        )


@contextmanager
def _checked_embeddings(model: nn.Module, inputs: Tensor) -> Iterator[None]:
    def check(part: nn.Module, args: tuple[Any, ...]) -> None:
        indices = args[0] if args else None
        if isinstance(part, nn.Embedding) and isinstance(indices, Tensor) and indices.numel():
            low, high = (int(end) for end in indices.aminmax())
            if low < 0 or high >= part.num_embeddings:
                raise embedding_failure(model, part, indices, inputs.to(indices.device))

    parts = [part for part in model.modules() if isinstance(part, nn.Embedding)]
    handles = [part.register_forward_pre_hook(check) for part in parts]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
