"""One delta-rule layer that computes parity, using a negative eigenvalue.

The symbol 1 flips the sign of the stored value (b_t = 2 in `DeltaRuleSpec`).

Source: Grazzi et al. 2025 (arXiv:2411.12537), Theorem 1; the weights are original.
"""

from typing import Any

import torch
from torch import nn

from hmmscope.models.base import ModelIO
from hmmscope.models.decoder import Decoder
from hmmscope.models.delta_rule import DeltaRule, DeltaRuleSpec
from hmmscope_papers.constructions.constructed import check_first

#: A logit that saturates sigmoid and softmax.
LARGE = 60.0


@torch.no_grad()
def delta_rule_parity(*, dtype: torch.dtype = torch.float32) -> Decoder:
    """Build a one-layer, one-head ``delta-rule`` model of parity.

    Args:
        dtype: Number type of the weights.

    Returns:
        A model of the placeholder 2, then bits. Its outputs are the logits of an even and an odd number of ones. It
        raises InputError if the first token is not the placeholder.
    """
    spec = DeltaRuleSpec(num_layers=1, num_heads=1, width=8, mlp_ratio=1, gated=False, negative=True)
    model = spec.build(ModelIO(num_outputs=2, vocab_size=3), torch.Generator().manual_seed(0)).to(dtype)
    # Orthogonal vectors with mean zero and variance one, invariant under layer norm.
    signs = torch.tensor([[1.0, -1.0]], dtype=dtype)
    ones = signs.abs()
    even, odd, first, parity = (
        torch.kron(torch.kron(a, b), c)[0]
        for a, b, c in [(ones, ones, signs), (ones, signs, ones), (signs, ones, ones), (signs, signs, signs)]
    )
    for parameter in model.parameters():
        if parameter.ndim == 2:
            parameter.zero_()
    mixer = model.get_submodule("blocks.0.attention")
    assert isinstance(mixer, DeltaRule)
    assert isinstance(model.embedding, nn.Embedding)
    model.embedding.weight.copy_(torch.stack([even, odd, first]))
    mixer.qkv.bias.view(3, 8)[:2, 0] = 1.0  # all queries and keys are the first coordinate
    mixer.qkv.weight.view(3, 8, 8)[2, 0] = first / 8  # the placeholder stores 1, with b = 1
    mixer.write.weight.copy_(LARGE * (odd - even)[None] / 8)  # b = 2 on odd tokens, 0 on even ones
    mixer.out.weight[:, 0] = parity
    model.head.weight.copy_(LARGE * torch.stack([parity, -parity]) / 8)
    model.register_forward_pre_hook(_check_begin, with_kwargs=True)
    return model


def _check_begin(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    inputs = args[0] if args else kwargs["inputs"]
    if not kwargs.get("cache"):
        check_first(inputs, 2)
