"""Our decoder as tensors and configuration of GPT-2 or GPT-NeoX, and back. Nothing of transformers is needed."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from hmmscope.axes import Float, Float64, Tensor
from hmmscope.errors import DamagedError, InputError
from hmmscope.models.attention import Attention
from hmmscope.models.base import Ports, SequenceModel
from hmmscope.models.decoder import Decoder, DecoderSpec, input_features, sinusoids
from hmmscope.models.make import build_model
from hmmscope.schema import require, shown

#: What both layouts and `torch.nn.LayerNorm` add to a variance.
EPSILON = 1e-5

#: Positions that a model without a limit is given in a configuration that has to name one.
DEFAULT_LENGTH = 2048

#: A folded bias may move a logit by this many units of rounding, relative to max(1, largest logit of a zero stream).
_FOLD_ROUNDINGS = 64


@dataclass(frozen=True)
class Family:
    """Where an architecture of transformers keeps what our decoder has.

    Attributes:
        model_type: of its configuration.
        architecture: class of the causal language model.
        title: for people.
        embedding: of tokens.
        positions: table of positions, or None if they are rotary.
        blocks: list of blocks.
        norm: the last one.
        parts: of a block: our name -> theirs.
        transposed: linear maps are stored as (in, out).
        fused_by_head: rows of the fused map are (head, what, head width), where what is query, key, value; ours are
            (what, head, head width).
    """

    model_type: str
    architecture: str
    title: str
    embedding: str
    positions: str | None
    blocks: str
    norm: str
    parts: Mapping[str, str]
    transposed: bool
    fused_by_head: bool


GPT2 = Family(
    model_type="gpt2",
    architecture="GPT2LMHeadModel",
    title="GPT-2",
    embedding="transformer.wte",
    positions="transformer.wpe",
    blocks="transformer.h",
    norm="transformer.ln_f",
    parts={
        "attention_norm": "ln_1",
        "attention.qkv": "attn.c_attn",
        "attention.out": "attn.c_proj",
        "mlp_norm": "ln_2",
        "mlp.hidden": "mlp.c_fc",
        "mlp.out": "mlp.c_proj",
    },
    transposed=True,
    fused_by_head=False,
)

GPT_NEOX = Family(
    model_type="gpt_neox",
    architecture="GPTNeoXForCausalLM",
    title="GPT-NeoX",
    embedding="gpt_neox.embed_in",
    positions=None,
    blocks="gpt_neox.layers",
    norm="gpt_neox.final_layer_norm",
    parts={
        "attention_norm": "input_layernorm",
        "attention.qkv": "attention.query_key_value",
        "attention.out": "attention.dense",
        "mlp_norm": "post_attention_layernorm",
        "mlp.hidden": "mlp.dense_h_to_4h",
        "mlp.out": "mlp.dense_4h_to_h",
    },
    transposed=False,
    fused_by_head=True,
)

FAMILIES = (GPT2, GPT_NEOX)


@dataclass(frozen=True)
class Exported:
    """A model in the layout of a family.

    Attributes:
        family: the layout.
        config: what config.json holds.
        tensors: by the names of model.safetensors.
    """

    family: Family
    config: dict[str, Any]
    tensors: dict[str, Tensor]


def check_decoder(model: nn.Module) -> Decoder:
    """The model, if it is a decoder that reads tokens through softmax attention and hears no feedback.

    Raises:
        InputError: it is not; one line names the field.
    """
    if not isinstance(model, Decoder):
        raise InputError(
            f"model: {type(model).__name__} has no counterpart among the causal models of transformers; "
            "decoder and roformer have"
        )
    if not all(isinstance(block.attention, Attention) for block in model.blocks):
        raise InputError("model: only softmax attention has a counterpart among the causal models of transformers")
    if model.ports.num_tokens is None:
        raise InputError("input_width: the model reads vectors; causal language models read tokens")
    if model.feedback is not None:
        raise InputError("feedback_width: block chain-of-thought has no counterpart in causal language models")
    return model


@torch.no_grad()
def as_exported(model: nn.Module, *, max_length: int | None = None) -> Exported:
    """Configuration and tensors of the causal language model with the same logits.

    Learned, sinusoidal or no positions: GPT-2; its table of positions is the sum of all that our model adds to a
    position (features, vectors, sines). Rotary positions: GPT-NeoX. What has no place there is folded:

    * The head's bias c, into that of the last norm: b' with W b' = c, by least squares.
    * Unscaled attention with rotary positions: queries are multiplied by sqrt(head width).
    * No MLP: an MLP with one hidden unit and weights of zero.

    Args:
        model: a decoder.
        max_length: positions of the table, for a model that has no limit of its own (default: its ports' max_length).

    Raises:
        InputError: the model has something that the layout has no place for; one line names the field.
    """
    decoder = check_decoder(model)
    if isinstance(decoder.norm, nn.Identity):
        raise InputError("norm: 'none' has no place in the GPT-2 and GPT-NeoX layouts; train with norm pre")
    if not decoder.causal:
        raise InputError("causal: the GPT-2 and GPT-NeoX layouts look at the past only")
    if decoder.rotary is not None and decoder.features is not None:
        raise InputError("input_features: have no place in the GPT-NeoX layout, which rotary positions need")
    family = GPT2 if decoder.rotary is None else GPT_NEOX
    length = _length(decoder, max_length, family)
    ports, dtype = decoder.ports, decoder.head.weight.dtype
    assert ports.num_tokens is not None
    vocabulary = max(ports.num_tokens, ports.num_outputs)
    tensors = {
        f"{family.embedding}.weight": _with_rows(_table(decoder.embedding), vocabulary),
        f"{family.norm}.weight": decoder.norm.weight,
        f"{family.norm}.bias": folded_bias(decoder.head, decoder.norm.bias),
        "lm_head.weight": _with_rows(decoder.head.weight, vocabulary),
    }
    if family.positions is not None:
        tensors[f"{family.positions}.weight"] = position_table(decoder, length).to(dtype)
    for layer, block in enumerate(decoder.blocks):
        for name, tensor in _block_tensors(block, family).items():
            tensors[f"{family.blocks}.{layer}.{name}"] = tensor
    tensors = {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in tensors.items()}
    return Exported(family, _config(decoder, family, vocabulary, length, dtype), tensors)


def position_table(decoder: Decoder, length: int) -> Float64[Tensor, "position width"]:
    """All that the decoder adds to the stream at positions 0 .. length - 1."""
    width = decoder.head.in_features
    positions = torch.arange(length)
    table = torch.zeros(length, width, dtype=torch.float64)
    if decoder.features is not None:
        found = input_features(positions, decoder.ports.max_length or 0, torch.float64)
        table += found @ decoder.features.weight.detach().cpu().double().T
    if decoder.positions is not None:
        table += decoder.positions.detach()[:length].cpu().double()
    if decoder.sinusoidal:
        table += sinusoids(positions, width, torch.float64)
    return table


def folded_bias(head: nn.Linear, bias: Float[Tensor, "width"]) -> Float[Tensor, "width"]:
    """Bias of the norm before `head` that stands for the head's own too: bias + b' with W b' = c, b' the smallest.

    Raises:
        InputError: no b' does that to rounding: there are more outputs than coordinates, or W has not full rank.
    """
    weight, wanted = head.weight.detach().cpu().double(), head.bias.detach().cpu().double()
    before = bias.detach().cpu().double()
    shift = torch.linalg.lstsq(weight, wanted[:, None], driver="gelsd").solution[:, 0]
    folded = (before + shift).to(bias.dtype)
    exact = weight @ before + wanted
    scale = max(1.0, exact.abs().max().item())
    gap = (weight @ folded.double() - exact).abs().max().item()
    if not gap <= _FOLD_ROUNDINGS * torch.finfo(bias.dtype).eps * scale:
        rows, width = weight.shape
        why = f"num_outputs = {rows} is above width = {width}" if rows > width else "its weights do not span it"
        raise InputError(
            "head.bias: has no place in the GPT-2 and GPT-NeoX layouts and cannot be folded into the last norm "
            f"({why}; a logit would move by {gap:.2g})"
        )
    return folded


def as_decoder(
    config: Mapping[str, Any], tensors: Mapping[str, Tensor], num_symbols: int | None = None
) -> SequenceModel | None:
    """The decoder with the same logits as a GPT-2 or GPT-NeoX, or None if ours has not all of its parts.

    Ours has: exact GELU, sequential blocks, biases, dropout of the stream only, rotation of whole heads at one base.
    Logits beyond the symbols are left out.

    Args:
        config: what config.json holds.
        tensors: the weights by name.
        num_symbols: outputs that are kept; by default as exported, or else the whole vocabulary.

    Raises:
        InputError: more symbols than logits.
        DamagedError: a tensor is missing or of another shape than the configuration says.
    """
    family = next((family for family in FAMILIES if family.model_type == config.get("model_type")), None)
    fields = None if family is None else _fields(family, config)
    if family is None or fields is None:
        return None
    found = _Found(tensors)
    embedding = found[f"{family.embedding}.weight"]
    head = tensors.get("lm_head.weight", embedding)
    ours = config.get("hmmscope") or {}
    num_outputs = num_symbols or ours.get("num_outputs") or len(head)
    num_tokens = ours.get("num_tokens") or len(embedding)
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
    ports = Ports(num_outputs=num_outputs, num_tokens=num_tokens, max_length=max_length)
    model = build_model(DecoderSpec(input_features=False, **fields), ports).to(head.dtype)
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
                weights[f"blocks.{layer}.{ours_name}.{kind}"] = _from_family(
                    tensor, ours_name, family, fields["num_heads"]
                )
    _load(model, weights)
    return model.eval()


# ---------------------------------------------------------------------------------------------------------------------
# Out


def _length(decoder: Decoder, max_length: int | None, family: Family) -> int:
    """Positions that the configuration names."""
    own = decoder.ports.max_length
    require(max_length is None or max_length >= 1, "max_length", "must be at least 1", max_length)
    if own is not None and (decoder.positions is not None or decoder.features is not None):
        require(max_length is None or max_length <= own, "max_length", f"the model has {own} positions", max_length)
    found = max_length or own
    if found is None and family is GPT2:
        raise InputError("max_length: the GPT-2 layout has a table of positions; say how many it shall have")
    return found or DEFAULT_LENGTH


def _config(decoder: Decoder, family: Family, vocabulary: int, length: int, dtype: torch.dtype) -> dict[str, Any]:
    width, block, rate = decoder.head.in_features, decoder.blocks[0], float(decoder.dropout.rate)
    ports = decoder.ports
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
            "num_tokens": ports.num_tokens,
            "max_length": ports.max_length,
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
            "scale_attn_weights": _is_scaled(block.attention),
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


def _block_tensors(block: nn.Module, family: Family) -> dict[str, Tensor]:
    """The tensors of one block by their names there."""
    found = {}
    for ours, theirs in family.parts.items():
        if block.mlp is None and ours.startswith("mlp"):
            modules: nn.Module = _no_mlp(ours, block.attention.out.weight)
        else:
            modules = block.get_submodule(ours)
        for kind in ("weight", "bias"):
            found[f"{theirs}.{kind}"] = _to_family(getattr(modules, kind), ours, family, block.attention)
    return found


def _no_mlp(part: str, like: Tensor) -> nn.Module:
    """A part of an MLP that writes zero."""
    width, options = len(like), {"dtype": like.dtype, "device": like.device}
    if part == "mlp_norm":
        return nn.LayerNorm(width, **options)
    empty: nn.Linear = nn.utils.skip_init(nn.Linear, *((width, 1) if part == "mlp.hidden" else (1, width)), **options)
    nn.init.zeros_(empty.weight)
    nn.init.zeros_(empty.bias)
    return empty


def _is_scaled(attention: Attention) -> bool:
    head_width = attention.out.in_features // attention.num_heads
    return head_width == 1 or attention.scale != 1.0


def _to_family(tensor: Tensor, part: str, family: Family, attention: Attention) -> Tensor:
    if family.fused_by_head and part == "attention.qkv":
        by_what = tensor.unflatten(0, (3, attention.num_heads, -1)).clone()
        if not _is_scaled(attention):
            by_what[0] *= math.sqrt(by_what.shape[2])
        tensor = by_what.transpose(0, 1).flatten(0, 2)
    return tensor.T if family.transposed and tensor.ndim == 2 else tensor


def _with_rows(table: Tensor, count: int) -> Tensor:
    """The table with rows of zeros below."""
    return torch.cat([table, table.new_zeros(count - len(table), table.shape[1])])


def _table(embedding: nn.Module) -> Tensor:
    assert isinstance(embedding, nn.Embedding)
    return embedding.weight


# ---------------------------------------------------------------------------------------------------------------------
# In


class _Found:
    """Tensors by name; a missing one is an error of one line."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self.tensors = tensors

    def __getitem__(self, name: str) -> Tensor:
        if name not in self.tensors:
            raise DamagedError(f"model.safetensors: {name} is missing, which the configuration asks for")
        return self.tensors[name]


def _fields(family: Family, config: Mapping[str, Any]) -> dict[str, Any] | None:
    """Fields of our spec but those of positions and MLP, or None if the architecture has other parts than ours.

    What a configuration leaves out has the default of its class in transformers.
    """
    given = {key: value for key, value in config.items() if value is not None}
    if family is GPT2:
        read: Callable[[str, Any], Any] = given.get
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


def _hidden_width(family: Family, found: _Found, num_layers: int) -> int:
    """Hidden units of the MLPs; 0 if they are the one unit of zero weights that stands for none."""
    width = found[f"{family.blocks}.0.{family.parts['mlp.hidden']}.bias"].numel()
    names = [f"{family.blocks}.{layer}.{family.parts[part]}" for layer in range(num_layers) for part in ("mlp.hidden", "mlp.out")]  # fmt: skip
    silent = width == 1 and not any(found[f"{name}.{kind}"].any() for name in names for kind in ("weight", "bias"))
    return 0 if silent else width


def _from_family(tensor: Tensor, part: str, family: Family, num_heads: int) -> Tensor:
    if family.transposed and tensor.ndim == 2:
        tensor = tensor.T
    if family.fused_by_head and part == "attention.qkv":
        if len(tensor) % (3 * num_heads):
            raise DamagedError(f"model.safetensors: {family.parts[part]} has {len(tensor)} rows for {num_heads} heads")
        return tensor.unflatten(0, (num_heads, 3, -1)).transpose(0, 1).flatten(0, 2)
    return tensor


def _load(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    own = model.state_dict()
    assert own.keys() == weights.keys(), own.keys() ^ weights.keys()
    for name, tensor in own.items():
        if tensor.shape != weights[name].shape:
            shapes = f"{tuple(weights[name].shape)} instead of {tuple(tensor.shape)}"
            raise DamagedError(f"model.safetensors: what becomes {name} has the shape {shapes}")
    model.load_state_dict(dict(weights))
