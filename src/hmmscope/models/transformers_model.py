"""Layers of the package transformers as models of this library."""

import importlib
import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn

from hmmscope.axes import Cache, Feedback, Float, Inputs, Positions, Tensor
from hmmscope.errors import ResourceError
from hmmscope.models.base import EncodedModel, HookPoint, ModelIO, initialise
from hmmscope.models.hooks import AttentionHookPoint, AttentionHooks, FunctionInterceptor, ModuleHooks, writing

#: Name endings of linear maps that write into the residual stream.
_WRITES = ("o_proj", "out_proj", "down_proj", "proj_down", "attention.output", "feed_forward.value")

#: Name endings of linear maps with architecture-specific initial values: step sizes and gates.
_SPECIAL = ("dt_proj", "igate_preact", "fgate_preact")


class TransformersModel(EncodedModel):
    """Layers of a model of the package transformers, between this library's embedding and head.

    Hook points: ``residual.<layer>`` and, with softmax attention, the attention hook points of `Decoder`. `initialise`
    draws the weights of linear maps; the package initializes decays, gates, convolutions and norms. The
    cache stores embedded inputs, which each call processes again.

    Args:
        name: name of the classes of the configuration (with suffix "Config") and of the layers ("Model").
        fields: fields of the configuration, without the width.
        width: width of the residual stream.
        reads_positions: True if the layers accept position numbers.
        attention: name of the attention module in a layer, if any.
        options: options passed to the layers at every call.

    Raises:
        ResourceError: transformers is not installed.
    """

    def __init__(
        self,
        name: str,
        fields: dict[str, Any],
        *,
        width: int,
        model_io: ModelIO,
        generator: torch.Generator,
        reads_positions: bool = False,
        attention: str = "",
        options: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(model_io, width)
        library = transformers()
        common = {"vocab_size": 1, "hidden_size": width, "use_cache": False, "tie_word_embeddings": False}
        ends = {"pad_token_id": None, "bos_token_id": None, "eos_token_id": None}
        settings = getattr(library, f"{name}Config")(**common, **ends, **fields)
        initialise(self, generator, num_residual_writes=1)  # the embedding
        with _lent(generator):
            layers = getattr(library, f"{name}Model")(settings)
        layers.set_input_embeddings(nn.Identity())  # inputs are vectors
        _initialise_layers(layers, generator)
        inside = layers.blocks if hasattr(layers, "blocks") else layers.layers
        self.reads_positions, self.options = reads_positions, options or {}
        self.residual = nn.ModuleList(HookPoint() for _ in range(len(inside) + 1))
        for index, tap in enumerate(self.residual[1:]):
            inside[index] = HookedLayer(inside[index], tap)
        self.layers = layers
        self.attention = attention
        attending = range(len(inside) if attention else 0)
        self.blocks = nn.ModuleList(nn.ModuleDict({"attention": AttentionHookPoint()}) for _ in attending)
        self.head = nn.Linear(width, model_io.num_outputs)
        nn.init.normal_(self.head.weight, 0.0, 0.02, generator=generator)
        nn.init.zeros_(self.head.bias)

    def forward(
        self, inputs: Inputs, positions: Positions = None, *, feedback: Feedback = None, cache: Cache = None
    ) -> Float[Tensor, "batch time output"]:
        x_BTD = self.encode(inputs, feedback)
        time = x_BTD.shape[1]
        if cache is not None:
            if positions is None:
                begin = cache["encoded"].shape[1] if cache else 0
                positions = torch.arange(begin, begin + time, device=x_BTD.device)
            positions = positions.expand(len(x_BTD), -1)
            if cache:
                x_BTD = torch.cat([cache["encoded"], x_BTD], 1)
                positions = torch.cat([cache["positions"], positions], 1)
            cache["encoded"], cache["positions"] = x_BTD, positions
        placed = dict(self.options)
        if self.reads_positions and positions is not None:
            placed["position_ids"] = positions if positions.ndim == 2 else positions[None]
        with self._heard():
            x_BTD = self.layers(inputs_embeds=self.residual[0](x_BTD), use_cache=False, **placed).last_hidden_state
        return self.head(x_BTD[:, -time:])

    @contextmanager
    def _heard(self) -> Iterator[None]:
        within: dict[nn.Module, ModuleHooks] = {}
        with ExitStack() as stack:
            layers = (module for module in self.layers.modules() if isinstance(module, HookedLayer))
            for block, layer in zip(self.blocks, layers, strict=False):
                tap: Any = block["attention"]  # type: ignore[index]
                if tap.is_hooked:
                    attention = layer.get_submodule(f"layer.{self.attention}")
                    stack.callback(attention.register_forward_hook(writing(tap)).remove)
                if tap.is_hooked_within:
                    within[layer] = AttentionHooks(tap)
            if within:
                stack.enter_context(FunctionInterceptor(within))
            yield


class HookedLayer(nn.Module):
    """A layer with a hook point on its (first) output."""

    def __init__(self, layer: nn.Module, tap: nn.Module) -> None:
        super().__init__()
        self.layer, self.tap = layer, tap

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        output = self.layer(*args, **kwargs)
        if isinstance(output, tuple):
            return (self.tap(output[0]), *output[1:])
        return self.tap(output)


def transformers() -> Any:
    """Return the package transformers; raise ResourceError with the install command if it is missing."""
    try:
        return importlib.import_module("transformers")
    except ModuleNotFoundError as error:
        if error.name != "transformers":
            raise
        raise ResourceError("model: this model needs transformers: pip install 'hmmscope[models]'") from None


@contextmanager
def _lent(generator: torch.Generator) -> Iterator[None]:
    before = torch.get_rng_state()
    torch.set_rng_state(generator.get_state())
    try:
        yield
    finally:
        generator.set_state(torch.get_rng_state())
        torch.set_rng_state(before)


@torch.no_grad()
def _initialise_layers(layers: nn.Module, generator: torch.Generator) -> None:
    linear = {name: module for name, module in layers.named_modules() if isinstance(module, nn.Linear)}
    num_writes = sum(name.endswith(_WRITES) for name in linear)
    for name, module in linear.items():
        if not name.endswith(_SPECIAL):
            std = 1 / math.sqrt(module.in_features)
            module.weight.normal_(
                0.0, std / math.sqrt(num_writes) if name.endswith(_WRITES) else std, generator=generator
            )
            if module.bias is not None:
                module.bias.zero_()
