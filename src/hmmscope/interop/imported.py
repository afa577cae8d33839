"""Import of GPT-2 or GPT-NeoX as a decoder, without transformers."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from hmmscope.axes import Tensor
from hmmscope.errors import DamagedError
from hmmscope.interop.families import EPSILON, FAMILIES, GPT2, TransformersMapping
from hmmscope.models.base import ModelIO, SequenceModel, build_model
from hmmscope.models.decoder import DecoderSpec
from hmmscope.schema import require, shown


def as_decoder(
    config: Mapping[str, Any], tensors: Mapping[str, Tensor], num_symbols: int | None = None
) -> SequenceModel | None:
    """Return the decoder with the same logits as a GPT-2 or GPT-NeoX, or None if `Decoder` lacks a part of it.

    `Decoder` requires exact GELU, attention before the MLP (not in parallel), biases, no dropout in attention, and
    any rotary positions over the full head width.
    """
    family = next((family for family in FAMILIES if family.model_type == config.get("model_type")), None)
    fields = None if family is None else _fields(family, config)
    if family is None or fields is None:
        return None
    found = _TensorsByName(tensors)
    embedding = found[f"{family.embedding}.weight"]
    if embedding.shape[-1] != fields["width"]:
        shapes = f"shape {tuple(embedding.shape)}, but the configuration has width {fields['width']}"
        raise DamagedError(f"model.safetensors: {family.embedding}.weight has {shapes}")
    tied = "lm_head.weight" not in tensors and config.get("tie_word_embeddings", family is GPT2)
    head = embedding if tied else found["lm_head.weight"]
    ours = config.get("hmmscope") or {}
    num_outputs = ours.get("num_outputs", len(head)) if num_symbols is None else num_symbols
    num_tokens = ours.get("num_tokens", len(embedding))
    require(1 <= num_outputs <= len(head), "num_symbols", f"must be in [1, {len(head)}]", num_outputs)
    require(1 <= num_tokens <= len(embedding), "num_tokens", f"must be in [1, {len(embedding)}]", num_tokens)
    table = found[f"{family.positions}.weight"] if family.positions else None
    max_length = ours.get("max_length")
    if table is None:
        fields["positions"] = "rotary"
    elif table.any():
        fields["positions"], max_length = "learned", len(table)
    else:
        fields["positions"] = "none"
    hidden = _hidden_width(family, found, fields["num_layers"])
    if hidden == 0:
        fields["attention_only"] = True
    elif hidden % fields["width"] == 0:
        fields["mlp_ratio"] = hidden // fields["width"]
    else:
        return None
    factor = 1.0
    if ours.get("scale_attention") is False and fields.setdefault("scale_attention", True):
        fields["scale_attention"], factor = False, (fields["width"] // fields["num_heads"]) ** -0.5
    ports = ModelIO(num_outputs=num_outputs, vocab_size=num_tokens, max_length=max_length)
    model = build_model(DecoderSpec(input_features=False, **fields), ports).to(head)
    weights = {"embedding.weight": embedding[:num_tokens], "head.weight": head[:num_outputs]}
    weights |= {"norm.weight": found[f"{family.norm}.weight"], "norm.bias": found[f"{family.norm}.bias"]}
    weights["head.bias"] = torch.zeros_like(head[:num_outputs, 0])
    if fields["positions"] == "learned" and table is not None:
        weights["positions"] = table
    for layer in range(fields["num_layers"]):
        for ours_name, theirs in family.parts.items():
            if hidden == 0 and ours_name.startswith("mlp"):
                continue
            for kind in ("weight", "bias"):
                tensor = found[f"{family.blocks}.{layer}.{theirs}.{kind}"]
                name = f"blocks.{layer}.{ours_name}.{kind}"
                weights[name] = _from_family(tensor, ours_name, family, fields["num_heads"], factor)
    _load(model, weights)
    return model.eval()


class _TensorsByName:
    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self.tensors = tensors

    def __getitem__(self, name: str) -> Tensor:
        if name not in self.tensors:
            raise DamagedError(f"model.safetensors: {name} is missing, but the configuration needs it")
        return self.tensors[name]


def _fields(family: TransformersMapping, config: Mapping[str, Any]) -> dict[str, Any] | None:
    given = {key: value for key, value in config.items() if value is not None}
    if family is GPT2:
        read = given.get
        sizes = {"num_layers": read("n_layer", 12), "num_heads": read("n_head", 12), "width": read("n_embd", 768)}
        same = (
            read("activation_function", "gelu_new") == "gelu"
            and read("layer_norm_epsilon", EPSILON) == EPSILON
            and not read("scale_attn_by_inverse_layer_idx", False)
            and not read("add_cross_attention", False)
            and read("attn_pdrop", 0.1) == 0
            and read("resid_pdrop", 0.1) == read("embd_pdrop", 0.1)
        )
        rest = {"dropout": read("resid_pdrop", 0.1), "scale_attention": read("scale_attn_weights", True)}
    else:
        read, rope = given.get, given.get("rope_parameters") or {}
        sizes = {
            "num_layers": read("num_hidden_layers", 44),
            "num_heads": read("num_attention_heads", 64),
            "width": read("hidden_size", 6144),
        }
        same = (
            read("hidden_act", "gelu") == "gelu"
            and read("layer_norm_eps", EPSILON) == EPSILON
            and read("use_parallel_residual", True) is False
            and read("attention_bias", True) is True
            and read("attention_dropout", 0.0) == 0
            and read("rope_scaling", None) is None
            and rope.get("rope_type", "default") == "default"
            and rope.get("partial_rotary_factor", read("rotary_pct", 0.25)) == 1
        )
        base = float(rope.get("rope_theta", read("rotary_emb_base", 10000)))
        rest = {"dropout": read("hidden_dropout", 0.0), "rotary_base": base}
    if not same:
        return None
    for name, value in sizes.items():
        if not isinstance(value, int) or isinstance(value, bool):
            raise DamagedError(f"config.json: {name} must be an integer, got {shown(value)}")
    return sizes | rest


def _hidden_width(family: TransformersMapping, found: _TensorsByName, num_layers: int) -> int:
    hidden, out = family.parts["mlp.hidden"], family.parts["mlp.out"]
    width = found[f"{family.blocks}.0.{hidden}.bias"].numel()
    if width > 1:
        return width
    names = [
        f"{family.blocks}.{layer}.{part}.{kind}"
        for layer in range(num_layers)
        for part in (hidden, out)
        for kind in ("weight", "bias")
    ]
    silent = not any(found[name].any() for name in names)
    return 0 if silent else width


def _from_family(tensor: Tensor, part: str, family: TransformersMapping, num_heads: int, factor: float) -> Tensor:
    if family.transposed and tensor.ndim == 2:
        tensor = tensor.T
    if part != "attention.qkv":
        return tensor
    if len(tensor) % (3 * num_heads):
        raise DamagedError(
            f"model.safetensors: {family.parts[part]} has {len(tensor)} rows, not a multiple of {3 * num_heads}"
        )
    if family.fused_by_head:
        by_what = tensor.unflatten(0, (num_heads, 3, -1)).transpose(0, 1).clone()
    else:
        by_what = tensor.unflatten(0, (3, num_heads, -1)).clone()
    by_what[0] *= factor
    return by_what.flatten(0, 2)


def _load(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    own = model.state_dict()
    assert own.keys() == weights.keys(), own.keys() ^ weights.keys()
    for name, tensor in own.items():
        if tensor.shape != weights[name].shape:
            shapes = f"{tuple(weights[name].shape)} instead of {tuple(tensor.shape)}"
            raise DamagedError(f"model.safetensors: the tensor for {name} has shape {shapes}")
    model.load_state_dict(dict(weights))
