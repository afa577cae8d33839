"""What a model costs to train, from its spec alone: floating-point operations, parameters, memory of a step."""

from typing import Any

from hmmscope.models.base import ModelSpec, Ports
from hmmscope.models.blocked import MAX_BLOCKED_LENGTH, num_blocks
from hmmscope.models.decoder import DecoderSpec
from hmmscope.models.linear_attention import CHUNK, LinearAttentionSpec
from hmmscope.models.recurrent import GRUSpec, LSTMSpec, RNNSpec
from hmmscope.models.roformer import RoFormerSpec

_GATES: dict[type, int] = {RNNSpec: 1, LSTMSpec: 4, GRUSpec: 3}

#: Numbers kept for the backward pass, for each position and coordinate of a layer's state; measured.
_KEPT: dict[type, int] = {RNNSpec: 2, LSTMSpec: 17, GRUSpec: 8}


def training_flops(spec: ModelSpec, ports: Ports, columns: int) -> float | None:
    """Floating-point operations of forward and backward pass for one sample of `columns` positions.

    Products of matrices only; a product of m × k by k × n counts 2mkn, and the backward pass twice the forward one.
    For a decoder of width d with MLPs of 4d the forward pass is

        24 d^2 + 2 columns d      for each position and layer; causal attention counts for half of the square

    and what reads and writes besides. None for the architectures of transformers, which are not counted.
    """
    d, layers = getattr(spec, "width", 0), getattr(spec, "num_layers", 0)
    decoder = _decoder(spec)
    if decoder is not None:
        mixed = 4.0 * columns * d * (0.5 if decoder.causal else 1.0)
        if isinstance(spec, LinearAttentionSpec):
            chunk, k = min(CHUNK, columns), d // spec.num_heads
            mixed = spec.num_heads * (2.0 * chunk * (2 * k + 1) + 4.0 * k * (k + 1))
        mlp = 0 if decoder.attention_only else 4 * decoder.mlp_ratio * d**2
        read = 2 * d * (3 * decoder.input_features + ports.feedback_width + (ports.input_width or 0))
        each = layers * (8 * d**2 + mlp + mixed) + read
    elif type(spec) in _GATES:
        widths = [ports.read_width + ports.feedback_width] + [d] * (layers - 1)
        each = sum(2.0 * _GATES[type(spec)] * d * (width + d) for width in widths)
    else:
        return None
    return 3.0 * columns * (each + 2 * d * ports.num_outputs)


def parameter_total(spec: ModelSpec, ports: Ports) -> int | None:
    """Number of trainable numbers, without building the model. None for the architectures of transformers.

    A block of a decoder with MLPs of four times the width has 12 d^2 + 13 d.
    """
    d, layers = getattr(spec, "width", 0), getattr(spec, "num_layers", 0)
    head = (d + 1) * ports.num_outputs
    decoder = _decoder(spec)
    if decoder is not None:
        norm = 2 * d if decoder.norm == "pre" else 0
        hidden = decoder.mlp_ratio * d
        mlp = 0 if decoder.attention_only else 2 * d * hidden + hidden + d + norm
        reads = (ports.read_width + (ports.input_width is not None) + ports.feedback_width) * d
        placed = 3 * d * decoder.input_features + (ports.max_length or 0) * d * (decoder.positions == "learned")
        return layers * (4 * d**2 + 4 * d + norm + mlp) + reads + placed + norm + head
    if type(spec) in _GATES:
        widths = [ports.read_width + ports.feedback_width] + [d] * (layers - 1)
        cells = sum(_GATES[type(spec)] * d * (width + d + 2) for width in widths)
        states = (2 if isinstance(spec, LSTMSpec) else 1) * layers * d * bool(getattr(spec, "learn_initial", False))
        return cells + states + head
    return None


def training_memory_bytes(
    spec: ModelSpec, ports: Ports, columns: int, batch_size: int, *, number_bytes: int = 4, device: str = "cpu"
) -> int | None:
    """Bytes that a training step needs: weights, gradients, two moments of AdamW, and what the backward pass keeps.

    An estimate, for refusing what cannot fit; what is kept is within a third of what torch keeps (tests measure it).
    None for the architectures of transformers.
    """
    weights = parameter_total(spec, ports)
    kept = kept_numbers(spec, ports, columns, device=device)
    if weights is None or kept is None:
        return None
    return 4 * weights * 4 + batch_size * kept * number_bytes


def kept_numbers(spec: ModelSpec, ports: Ports, columns: int, *, device: str = "cpu") -> int | None:
    """Numbers that the forward pass of one sample keeps for the backward pass, and logits with their loss.

    A block of a decoder keeps, for each position: the stream twice, two norms, queries, keys, values, what attention
    mixed, the MLP's hidden layer before and after its nonlinearity, and the patterns where attention is computed in
    blocks (short inputs on a processor).
    """
    d, layers = getattr(spec, "width", 0), getattr(spec, "num_layers", 0)
    decoder = _decoder(spec)
    outputs = 3 * ports.num_outputs
    if decoder is not None:
        normed = decoder.norm == "pre"
        each: float = d + normed * d
        if isinstance(spec, LinearAttentionSpec):
            each += 10 * d + 2 * spec.num_heads * min(CHUNK, columns)
        elif device == "cpu" and decoder.causal and columns <= MAX_BLOCKED_LENGTH:
            blocks = num_blocks(columns)
            each += 4 * d + decoder.num_heads * columns * (blocks + 1) / (2 * blocks)
        else:
            each += (6 if decoder.positions == "rotary" else 4) * d
        if not decoder.attention_only:
            each += (1 + normed) * d + 2 * decoder.mlp_ratio * d
        each += (1 if decoder.attention_only else 2) * d * (decoder.dropout > 0)
        return round(columns * (layers * each + d * (1 + normed + (decoder.dropout > 0)) + outputs))
    if type(spec) in _KEPT:
        reads = ports.read_width + ports.feedback_width
        return columns * (layers * _KEPT[type(spec)] * d + 2 * reads + outputs)
    return None


def _decoder(spec: Any) -> DecoderSpec | None:
    """The options of the decoder, for what is one."""
    if isinstance(spec, RoFormerSpec | LinearAttentionSpec):
        return spec.decoder
    return spec if isinstance(spec, DecoderSpec) else None
