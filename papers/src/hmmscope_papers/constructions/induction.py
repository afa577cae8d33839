"""The induction circuit with hand-written weights."""

from itertools import pairwise

import torch

from hmmscope.models.base import SequenceModel, make_model
from hmmscope.schema import require_count, require_real

#: Margin of the attention logits of the target positions.
_SHARP = 60.0


def induction_network(num_symbols: int, vocab_size: int, num_columns: int, *, gain: float = 1.5) -> SequenceModel:
    """Build a two-layer attention network that predicts the symbols that followed the current symbol earlier.

    The stream is [token, position, previous symbol, next-symbol frequencies]. Head 0 of layer 1 writes the previous
    symbol, head 0 of layer 2 the next-symbol frequencies; head 1 of both layers writes nothing.

    Args:
        num_symbols: Number of symbols V.
        vocab_size: Number of tokens: V, or more with a placeholder or delimiter.
        num_columns: Number of positions of the longest input.
        gain: Factor from frequencies to logits.

    Source: the circuit of Olsson et al., 2022.
    """
    for field, value in (("num_symbols", num_symbols), ("vocab_size", vocab_size), ("num_columns", num_columns)):
        require_count(field, value)
    require_real("gain", gain)
    ends = torch.tensor([0, vocab_size, num_columns, num_symbols, num_symbols]).cumsum(0).tolist()
    token, place, before, after = (slice(begin, end) for begin, end in pairwise(ends))
    size = max(vocab_size, num_columns, (ends[-1] + 1) // 2)
    spec = {"num_layers": 2, "num_heads": 2, "width": 2 * size, "attention_only": True, "norm": "none", "dropout": 0.0}
    spec |= {"input_features": False, "scale_attention": False}
    model = make_model("decoder", num_symbols=num_symbols, vocab_size=vocab_size, max_length=num_columns, **spec)
    one, symbols = torch.eye(2 * size), slice(token.start, token.start + num_symbols)
    weights = {name: torch.zeros_like(value) for name, value in model.state_dict().items()}
    weights["embedding.weight"][:, token] = torch.eye(vocab_size)
    weights["positions"][:, place] = torch.eye(num_columns)
    back = torch.eye(num_columns).roll(-1, 0)  # the query of column t is the key of t - 1
    for layer, (query, key, out) in enumerate(
        ((back @ one[place], one[place], before), (one[symbols], one[before], after))
    ):
        read = weights[f"blocks.{layer}.attention.qkv.weight"].view(3, 2, size, 2 * size)[:, 0]
        read[0, : len(query)], read[1, : len(key)], read[2, :num_symbols] = _SHARP * query, key, one[symbols]
        weights[f"blocks.{layer}.attention.out.weight"][out, :num_symbols] = torch.eye(num_symbols)
    weights["head.weight"][:, after] = gain * torch.eye(num_symbols)
    model.load_state_dict(weights)
    return model.eval()
