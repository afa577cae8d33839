"""Run any module on tokens, and capture its logits and activations."""

import difflib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from hmmscope import registry
from hmmscope.analysis.devices import on_device
from hmmscope.axes import Bool, Float, Float64, Int64, Tensor
from hmmscope.datasets.process_dataset import Batch, ProcessDataset
from hmmscope.datasets.targets import Target
from hmmscope.errors import InputError, NonFiniteError
from hmmscope.models.adapted import call_on_tokens, called_title, dtype_of, run_eagerly, shown_model
from hmmscope.models.base import evaluating
from hmmscope.models.block_cot import block_outputs
from hmmscope.models.failing import explained, failure
from hmmscope.models.kept_state import undisturbed
from hmmscope.models.rehearsal import failure_on_few, is_of_library
from hmmscope.models.user_module import logits_of
from hmmscope.models.weight_names import plain_name
from hmmscope.progress import count_pass
from hmmscope.schema import require, require_names

#: Samples per forward pass.
BATCH = 64
_ALL_AT_ONCE = "pass a model, or a call= of hs.adapt, that computes all positions at once, without padding or a cache"


def require_module(model: Any) -> None:
    if not isinstance(model, nn.Module):
        raise InputError(f"model: must be a torch module, got {shown_model(model)}")


@contextmanager
def inference_mode(model: nn.Module) -> Iterator[torch.device]:
    """Put a model in evaluation mode without gradients; yield its device.

    Raises:
        InputError: `model` is not a module.
    """
    require_module(model)
    count_pass()
    with evaluating(model), torch.no_grad():
        yield next((p.device for p in model.parameters()), torch.device("cpu"))


def model_outputs(
    model: nn.Module,
    inputs: Int64[Tensor, "batch time"] | Float[Tensor, "batch time observed"],
    num_outputs: int,
    *,
    kind: str = "law",
    block_length: int = 0,
) -> Float[Tensor, "batch time output"]:
    """Run a module and return its output, or the attribute ``.logits`` of its output.

    Only the first `num_outputs` outputs of each position are returned. If `block_length` is positive, the
    model reads its own prediction after every `block_length` positions (see `block_outputs`).
    """
    count_pass()
    with explained(model, inputs):
        if block_length:
            output = block_outputs(model, inputs, kind=kind, block_length=block_length)
        else:
            output = call_on_tokens(model, inputs)
    return logits_of(output, inputs, num_outputs)


def to_probs(model: nn.Module, outputs: Float[Tensor, "*batch symbol"]) -> Float64[Tensor, "*batch symbol"]:
    """Convert outputs to next-symbol probabilities on the CPU.

    Logits are passed through a softmax. If the module's attribute ``outputs`` is "law", outputs are probabilities:
    negative values become zero, then each position is normalised. All-zero positions become uniform.
    """
    outputs = outputs.cpu().double()
    if getattr(model, "outputs", "logits") != "law":
        return outputs.softmax(-1)
    positive = outputs.clamp_min(0)
    total = positive.sum(-1, keepdim=True)
    return torch.where(total == 0, 1 / outputs.shape[-1], positive / total.where(total != 0, 1.0))


def model_probs(
    model: nn.Module,
    tokens: Int64[Tensor, "sample time"],
    num_symbols: int,
    columns: Int64[Tensor, " asked"] | slice = slice(None),
    *,
    at_once: int | None = None,
) -> Float64[Tensor, "sample asked symbol"]:
    """Compute a model's next-symbol probabilities at given positions."""
    with inference_mode(model) as device:
        passes = (model_outputs(model, some.to(device), num_symbols) for some in tokens.split(at_once or len(tokens)))
        probs = torch.cat([to_probs(model, outputs[:, columns]) for outputs in passes])
    require_numbers(probs)
    return probs


def require_numbers(
    answers: Float64[Tensor, "sample asked output"], asked: Bool[Tensor, "sample asked"] | None = None
) -> None:
    bad = answers.isnan().any(-1)
    bad = bad if asked is None else bad & asked.to(bad.device)
    if bad.any():
        sample, place = bad.nonzero()[0].tolist()
        rule = f"first in sample {sample} of the batch, at evaluated position {place}"
        raise NonFiniteError(f"model: its outputs are NaN, {rule}")


def residual_layers(model: nn.Module) -> list[str]:
    """Return the names ``residual.0``, ``residual.1``, ... of a model's residual-stream layers.

    Raises:
        InputError: no layers are found in the model.
    """
    require_module(model)
    model = registry.adapted(model)
    names = [name for name, _ in model.named_modules() if name.startswith("residual.")]
    if not names:
        known = ", ".join([name for name, _ in model.named_modules() if name.count(".") <= 2 and name][:12])
        named = f"name modules, such as {known}" if known else "it has no modules inside"
        raise InputError(f"layers: found no residual stream in the model{failure_on_few(model)}; {named}")
    return names


def layers_read(model: nn.Module, layers: Sequence[str] | None) -> list[str]:
    names = residual_layers(model) if layers is None else require_names("layers", layers)
    require(len(names) > 0, "layers", "must have at least one name", layers)
    return names


def check_layers(model: nn.Module, names: Sequence[str], *, field: str = "layers") -> None:
    require_module(model)
    modules_named(registry.adapted(model, names), names, field=field)


def modules_named(model: nn.Module, names: Iterable[str], *, field: str = "layers") -> dict[str, nn.Module]:
    names = require_names(field, names)
    known = dict(model.named_modules())  # "" is the model itself
    known = {plain_name(name): part for name, part in known.items()} | known
    for _ in range(2):  # hook points around a wrapper
        own = {name for prefix in ("model.", "module.") for name in known if name.startswith(prefix)}
        known = {name.partition(".")[2]: known[name] for name in own} | known
    found = {name: known[name] for name in names if name in known}
    unknown = next((name for name in names if name not in known), None)
    if unknown is None:
        return found
    looks = re.fullmatch(r"blocks\.\d+\.attention\.(logits|pattern)", str(unknown))
    if looks and not any(name.endswith(f".attention.{looks[1]}") for name in known):
        raise InputError(f"{field}: found no softmax attention in {called_title(model)}, so there is no {unknown!r}")
    near = difflib.get_close_matches(str(unknown), list(known), 1)
    hint = f"; did you mean {near[0]}?" if near else ""
    failing = failure_on_few(model) if not near and str(unknown).startswith(("residual.", "blocks.")) else ""
    raise InputError(f"{field}: no module named {unknown!r} in the model{failing}{hint}")


def capture_activations(
    model: nn.Module,
    names: Iterable[str],
    tokens: Int64[Tensor, "batch time"] | Float[Tensor, "batch time input"],
    select: Callable[[Tensor], Tensor] = lambda activation: activation,
    *,
    device: Any = None,
    **inputs: Any,
) -> dict[str, Tensor]:
    """Run a model in evaluation mode, and return `select(output)` of each named module.

    Args:
        model: any module.
        names: names of activations (``residual.1``, ``blocks.0.attention.pattern``) or of modules.
        tokens: tokens (batch, time), or vectors (batch, time, input).
        select: function applied to each activation.
        device: device on which the model runs.
        inputs: further keyword arguments of the model.

    Raises:
        InputError: a name is unknown, or the model fails.
    """
    require_module(model)
    names = require_names("layers", names)
    require(isinstance(tokens, Tensor), "tokens", "must be a tensor", tokens)
    model = registry.adapted(model, names)
    found: dict[str, Tensor] = {}
    lengths: dict[str, list[int]] = {name: [] for name in names}
    handles, reading = [], False
    for name, module in modules_named(model, names).items():

        def keep(module: nn.Module, args: Any, output: Any, name: str = name) -> None:
            activation = output[0] if isinstance(output, tuple) else output
            if not isinstance(activation, Tensor):
                kind = type(activation).__name__
                raise InputError(f"layers: module {name!r} must return a tensor, got {kind}; name a module inside it")
            lengths[name] += activation.shape[1:2] if activation.ndim == 3 else ()
            nonlocal reading
            reading = True
            found[name] = select(activation.detach())
            reading = False

        handles.append(module.register_forward_hook(keep))
    try:
        with on_device(model, device), explained(model, tokens), evaluating(model), run_eagerly(model):
            tokens = tokens.to(next((p.device for p in model.parameters()), tokens.device))
            call_on_tokens(model, tokens, given=inputs)
    except Exception as error:
        if reading:  # an error of `select`
            raise
        raise failure(model, tokens, error, lambda fewer: call_on_tokens(model, fewer, given=inputs)) from error
    finally:
        for handle in handles:
            handle.remove()
    silent = next((name for name in names if name not in found), None)
    if silent is not None:
        raise InputError(f"layers: module {silent} did not run on tokens {tuple(tokens.shape)}; name another module")
    for name, parts in lengths.items():
        if len(parts) > 1 and sum(parts) == tokens.shape[1]:
            raise InputError(
                f"layers: {name} runs {len(parts)} times, on parts of the {sum(parts)} positions; {_ALL_AT_ONCE}"
            )
    return found


def target_probs(
    model: nn.Module, batch: Batch, asked: Target, block_length: int
) -> Float64[Tensor, "batch judged output"]:
    inputs = batch.tokens[:, : int(asked.token_positions[-1]) + 1]
    with inference_mode(model) as device:
        if inputs.is_floating_point():
            inputs = inputs.to(next((p.dtype for p in model.parameters()), torch.float64))
        outputs = model_outputs(model, inputs.to(device), asked.num_outputs, kind=asked.kind, block_length=block_length)
        outputs = outputs[:, asked.token_positions_on(outputs.device)]
        if asked.kind == "density":
            answers = asked.answer(outputs.cpu(), asked.labels(batch))
        else:
            answers = to_probs(model, outputs) if asked.kind == "law" else outputs.cpu().double()
    require_numbers(answers, asked.evaluated(batch))
    return answers


def read_stream(
    model: nn.Module,
    dataset: ProcessDataset,
    times: NDArray[np.int64],
    names: Sequence[str],
    num_samples: int,
    *,
    first: int = 0,
    stay: bool = False,
) -> Float[Tensor, "layer example feature"]:
    """Return activations at given times of each sample; examples are pairs (sample, time), ordered by sample.

    Args:
        model: any module.
        dataset: samples.
        times: observation indices (time,).
        names: names of modules, one per layer; activations are padded with zeros to equal width.
        num_samples: number of samples.
        first: index of the first sample.
        stay: True keeps activations on the model's device; otherwise they are moved to the CPU.
    """
    columns = torch.from_numpy(dataset.layout.token_positions[times])
    features: list[Tensor] = []
    kind = dtype_of(model)
    with inference_mode(model) as device:
        for begin in range(first, first + num_samples, BATCH):
            tokens = dataset[begin : min(begin + BATCH, first + num_samples)].tokens.to(device)
            tokens = tokens.to(kind) if tokens.is_floating_point() else tokens  # vectors, in the dtype of the weights
            found = capture_activations(model, names, tokens, lambda x, like=tokens: _at(x, like, columns))  # type: ignore[misc]
            widest = max(x.shape[1] for x in found.values())
            padded = [nn.functional.pad(found[name], (0, widest - found[name].shape[1])) for name in names]
            if begin == first and tokens.shape[1] in {len(tokens), *(x.shape[1] for x in found.values())}:
                _require_axes(model, names, tokens)
            features.append(torch.stack(padded) if stay else torch.stack(padded).cpu())
    read = torch.cat(features, 1)
    if not read.isfinite().all():
        odd = next(name for name, layer in zip(names, read, strict=True) if not layer.isfinite().all())
        raise NonFiniteError(f"{odd}: the model's activations are NaN or infinite; check its weights")
    return read


def _require_axes(model: nn.Module, names: Sequence[str], tokens: Tensor) -> None:
    if is_of_library(model):
        return
    for time in (tokens.shape[1] - 1, tokens.shape[1]):
        few = tokens[: 2 if time == 3 else 3, :time]
        try:
            with undisturbed(model):
                shapes = capture_activations(model, names, few, lambda x: x.new_empty(0, *x.shape))
        except InputError:  # the model has one length only
            continue
        for found in shapes.values():
            _require_features_last(found.shape[1:], few)
        return


def _require_features_last(shape: tuple[int, ...], tokens: Tensor) -> None:
    if len(shape) != 3 or shape[:2] != tokens.shape[:2]:
        other = len(shape) == 3 and shape[0] == len(tokens) and shape[2] != tokens.shape[1]
        hint = f"; {_ALL_AT_ONCE}" if other else ""
        raise InputError(
            f"layers: must give (batch, time, feature) on tokens {tuple(tokens.shape)}, got {tuple(shape)}{hint}"
        )


def _at(activation: Tensor, tokens: Tensor, columns: Tensor) -> Tensor:
    _require_features_last(activation.shape, tokens)
    return activation[:, columns].flatten(0, 1).float()
