"""Export of decoders to GPT-2 or GPT-NeoX, without transformers."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from hmmscope.axes import Float, Float64, Tensor
from hmmscope.errors import InputError
from hmmscope.interop.families import EPSILON, GPT2, GPT_NEOX, TransformersMapping
from hmmscope.models.attention import Attention
from hmmscope.models.decoder import Decoder, input_features, sinusoids
from hmmscope.schema import require

#: Positions in the configuration of a model without a limit.
DEFAULT_LENGTH = 2048

#: Tolerance of a folded bias in units of rounding, relative to max(1, largest logit of a zero stream).
_FOLD_ROUNDINGS = 64


@dataclass(frozen=True, repr=False)
class Exported:
    """A model's configuration and weights in the layout of GPT-2 or GPT-NeoX.

    Attributes:
        family: names of the parts in the target architecture.
        config: content of config.json.
        tensors: content of model.safetensors.
    """

    family: TransformersMapping
    config: dict[str, Any]
    tensors: dict[str, Tensor]

    def __repr__(self) -> str:
        count = sum(tensor.numel() for tensor in self.tensors.values())
        return f"Exported({self.family.model_type}, {len(self.tensors)} tensors, {count:,} numbers)"


def check_decoder(model: nn.Module) -> Decoder:
    """Return the model; raise InputError unless it is a softmax-attention token decoder without chain-of-thought."""
    if not isinstance(model, Decoder):
        raise InputError(
            f"model: must be a decoder or roformer to be exported to transformers, got {type(model).__name__}"
        )
    if not all(isinstance(block.attention, Attention) for block in blocks_of(model)):
        raise InputError("model: must have softmax attention to be exported to transformers")
    if model.model_io.vocab_size is None:
        raise InputError("input_width: the model reads vectors, but causal language models of transformers read tokens")
    if model.feedback is not None:
        raise InputError("feedback_width: block chain-of-thought has no counterpart in causal language models")
    return model


def blocks_of(decoder: Decoder) -> list[Any]:
    return list(decoder.blocks)


@torch.no_grad()
def as_exported(model: nn.Module, *, max_length: int | None = None) -> Exported:
    """Return the configuration and tensors of a GPT-2 or GPT-NeoX with the same logits.

    Decoders with rotary positions become GPT-NeoX, other decoders GPT-2 with a position table. The head's bias c is
    replaced by a term b' in the bias of the last norm, where W b' = c for the head's weights W. Queries of unscaled
    attention are multiplied by sqrt(head width); a missing MLP gets zero weights.
    """
    decoder = check_decoder(model)
    norm: Any = decoder.norm
    if isinstance(norm, nn.Identity):
        raise InputError("norm: must be pre, as in GPT-2 and GPT-NeoX, got none; train with norm pre")
    if not decoder.causal:
        raise InputError("causal: must be true, because GPT-2 and GPT-NeoX are causal")
    if decoder.rotary is not None and decoder.features is not None:
        raise InputError("input_features: must be false, because GPT-NeoX has no input features")
    family: TransformersMapping = GPT2 if decoder.rotary is None else GPT_NEOX
    length = _length(decoder, max_length, family)
    ports, dtype = decoder.model_io, decoder.head.weight.dtype
    assert ports.vocab_size is not None
    vocabulary = max(ports.vocab_size, ports.num_outputs)
    tensors = {
        f"{family.embedding}.weight": _with_rows(_table(decoder.embedding), vocabulary),
        f"{family.norm}.weight": norm.weight,
        f"{family.norm}.bias": folded_bias(decoder.head, norm.bias),
        "lm_head.weight": _with_rows(decoder.head.weight, vocabulary),
    }
    if family.positions is not None:
        tensors[f"{family.positions}.weight"] = position_table(decoder, length).to(dtype)
    for layer, block in enumerate(blocks_of(decoder)):
        for name, tensor in _block_tensors(block, family).items():
            tensors[f"{family.blocks}.{layer}.{name}"] = tensor
    tensors = {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in tensors.items()}
    return Exported(family, _config(decoder, family, vocabulary, length, dtype), tensors)


def position_table(decoder: Decoder, length: int) -> Float64[Tensor, "position width"]:
    """Return all that a decoder adds to token embeddings: position embeddings and input features."""
    width = decoder.head.in_features
    positions = torch.arange(length)
    table = torch.zeros(length, width, dtype=torch.float64)
    if decoder.features is not None:
        found = input_features(positions, decoder.model_io.max_length or 0, torch.float64)
        table += found @ decoder.features.weight.detach().cpu().double().T
    if decoder.positions is not None:
        table += decoder.positions.detach()[:length].cpu().double()
    if decoder.sinusoidal:
        table += sinusoids(positions, width, torch.float64)
    return table


def folded_bias(head: nn.Linear, bias: Float[Tensor, " width"]) -> Float[Tensor, " width"]:
    """Return the norm's bias plus the smallest b' with W b' = c, where W and c are the head's weights and bias."""
    weight, wanted = head.weight.detach().cpu().double(), head.bias.detach().cpu().double()
    before = bias.detach().cpu().double()
    shift = torch.linalg.lstsq(weight, wanted[:, None], driver="gelsd").solution[:, 0]
    folded = (before + shift).to(bias.dtype)
    exact = weight @ before + wanted
    scale = max(1.0, exact.abs().max().item())
    gap = (weight @ folded.double() - exact).abs().max().item()
    if not gap <= _FOLD_ROUNDINGS * torch.finfo(bias.dtype).eps * scale:
        rows, width = weight.shape
        why = f"num_outputs = {rows} is above width = {width}" if rows > width else "its weights cannot represent it"
        raise InputError(
            "head.bias: GPT-2 and GPT-NeoX have no bias in the head, and it cannot be folded into the last norm "
            f"({why}; a logit would change by {gap:.2g})"
        )
    return folded


def _length(decoder: Decoder, max_length: int | None, family: TransformersMapping) -> int:
    own = decoder.model_io.max_length
    require(max_length is None or max_length >= 1, "max_length", "must be at least 1", max_length)
    if own is not None and (decoder.positions is not None or decoder.features is not None):
        require(max_length is None or max_length <= own, "max_length", f"must be at most {own}", max_length)
    found = max_length or own
    if found is None and family is GPT2:
        raise InputError("max_length: is missing; pass the number of positions for GPT-2's position table")
    return found or DEFAULT_LENGTH


def _config(
    decoder: Decoder, family: TransformersMapping, vocabulary: int, length: int, dtype: torch.dtype
) -> dict[str, Any]:
    width, block, rate = decoder.head.in_features, blocks_of(decoder)[0], float(decoder.dropout.rate)
    ports = decoder.model_io
    hidden = 1 if block.mlp is None else block.mlp.hidden.out_features
    common = {
        "architectures": [family.architecture],
        "model_type": family.model_type,
        "dtype": str(dtype).removeprefix("torch."),
        "vocab_size": vocabulary,
        "tie_word_embeddings": False,
        "tie_last_hidden_states": False,  # the last hidden state is the stream, not its norm
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
        "hmmscope": {
            "num_outputs": ports.num_outputs,
            "num_tokens": ports.vocab_size,
            "max_length": ports.max_length,
            "scale_attention": is_scaled(block.attention),
        },
    }
    if family is GPT2:
        return common | {
            "n_positions": length,
            "n_embd": width,
            "n_layer": len(decoder.blocks),
            "n_head": block.attention.num_heads,
            "n_inner": hidden,
            "activation_function": "gelu",
            "resid_pdrop": rate,
            "embd_pdrop": rate,
            "attn_pdrop": 0.0,
            "layer_norm_epsilon": EPSILON,
            "scale_attn_weights": True,
        }
    assert decoder.rotary is not None
    base = float(decoder.rotary.base)
    return common | {
        "max_position_embeddings": length,
        "hidden_size": width,
        "num_hidden_layers": len(decoder.blocks),
        "num_attention_heads": block.attention.num_heads,
        "intermediate_size": hidden,
        "hidden_act": "gelu",
        "hidden_dropout": rate,
        "attention_dropout": 0.0,
        "layer_norm_eps": EPSILON,
        "use_parallel_residual": False,
        "attention_bias": True,
        "rotary_pct": 1.0,
        "rotary_emb_base": base,
        "rope_parameters": {"rope_type": "default", "rope_theta": base, "partial_rotary_factor": 1.0},
    }


def _block_tensors(block: Any, family: TransformersMapping) -> dict[str, Tensor]:
    found = {}
    for ours, theirs in family.parts.items():
        if block.mlp is None and ours.startswith("mlp"):
            modules = _no_mlp(ours, block.attention.out.weight)
        else:
            modules = block.get_submodule(ours)
        for kind in ("weight", "bias"):
            found[f"{theirs}.{kind}"] = _to_family(getattr(modules, kind), ours, family, block.attention)
    return found


def _no_mlp(part: str, like: Tensor) -> nn.Module:
    width = len(like)
    if part == "mlp_norm":
        return nn.LayerNorm(width).to(like)
    sizes = (width, 1) if part == "mlp.hidden" else (1, width)
    empty: nn.Linear = nn.utils.skip_init(nn.Linear, *sizes).to(like)
    nn.init.zeros_(empty.weight)
    nn.init.zeros_(empty.bias)
    return empty


def is_scaled(attention: Attention) -> bool:
    head_width = attention.out.in_features // attention.num_heads
    return head_width == 1 or attention.scale != 1.0


def _to_family(tensor: Tensor, part: str, family: TransformersMapping, attention: Attention) -> Tensor:
    if part == "attention.qkv":
        by_what = tensor.unflatten(0, (3, attention.num_heads, -1)).clone()
        if not is_scaled(attention):
            by_what[0] *= math.sqrt(by_what.shape[2])
        tensor = (by_what.transpose(0, 1) if family.fused_by_head else by_what).flatten(0, 2)
    return tensor.T if family.transposed and tensor.ndim == 2 else tensor


def _with_rows(table: Tensor, count: int) -> Tensor:
    return torch.cat([table, table.new_zeros(count - len(table), table.shape[1])])


def _table(embedding: nn.Module) -> Tensor:
    assert isinstance(embedding, nn.Embedding)
    return embedding.weight
