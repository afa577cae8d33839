"""Running any module on tokens: its logits, and what its named layers hold."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from hmmscope.axes import Float, Int64, Tensor
from hmmscope.errors import InputError

#: Samples in one forward pass of an instrument.
BATCH = 64


@contextmanager
def inference_mode(model: nn.Module) -> Iterator[torch.device]:
    """The model in evaluation mode without gradients; yields its device and puts its mode back."""
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield next((p.device for p in model.parameters()), torch.device("cpu"))
    finally:
        model.train(was_training)


def model_logits(
    model: nn.Module, tokens: Int64[Tensor, "batch time"], num_symbols: int
) -> Float[Tensor, "batch time symbol"]:
    """Logits over the symbols of any module: a tensor, or an object with ``.logits`` as of Hugging Face models.

    Outputs beyond `num_symbols` (a delimiter) are cut off: probabilities are then given that a symbol follows.
    """
    output = model(tokens)
    logits = getattr(output, "logits", output)
    if isinstance(logits, tuple):
        logits = logits[0]
    if not isinstance(logits, Tensor) or logits.ndim != 3 or logits.shape[:2] != tokens.shape:
        found = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        raise InputError(f"model: must map tokens {tuple(tokens.shape)} to logits (batch, time, symbol), got {found}")
    if logits.shape[2] < num_symbols:
        raise InputError(f"model: gives {logits.shape[2]} logits, the corpus has {num_symbols} symbols")
    return logits[..., :num_symbols]


def residual_layers(model: nn.Module) -> list[str]:
    """Names of the residual stream after the embedding and after each layer.

    Models of this library have taps ``residual.0``, ``residual.1``, ...; for any other, pass names of its modules.
    """
    names = [name for name, _ in model.named_modules() if name.startswith("residual.")]
    if not names:
        known = [name for name, module in model.named_modules() if name.count(".") <= 2 and name][:12]
        raise InputError(f"layers: the model has no residual taps; name its modules, such as {', '.join(known)}")
    return names


def capture(
    model: nn.Module,
    names: Iterable[str],
    tokens: Int64[Tensor, "batch time"],
    select: Callable[[Tensor], Tensor] = lambda activation: activation,
    **inputs: Any,
) -> dict[str, Tensor]:
    """Outputs of the named modules on `tokens`, each reduced by `select` as soon as it is made."""
    modules = dict(model.named_modules())
    found: dict[str, Tensor] = {}
    handles = []
    names = list(names)
    unknown = [name for name in names if name not in modules]
    if unknown:
        raise InputError(f"layers: no module named {unknown[0]!r} in the model")
    for name in names:

        def keep(module: nn.Module, args: Any, output: Any, name: str = name) -> None:
            activation = output[0] if isinstance(output, tuple) else output
            found[name] = select(activation.detach())

        handles.append(modules[name].register_forward_hook(keep))
    try:
        model(tokens, **inputs)
    finally:
        for handle in handles:
            handle.remove()
    return found
