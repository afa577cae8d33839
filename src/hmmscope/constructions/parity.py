"""One layer of the delta rule that keeps a parity, which needs a negative eigenvalue.

A token whose symbol is odd turns the sign of what the layer has stored, any other leaves it. To turn a sign is a transition
with the eigenvalue -1, that is b_t = 2 in `DeltaRuleSpec`. With eigenvalues in (0, 1) no weights of finite precision keep a
parity at every length, whatever the depth: after enough odd tokens the state moves by less than a rounding.

Source: Grazzi et al. 2025 (arXiv:2411.12537), Theorem 1; the weights are ours.
"""

from typing import Any

import torch
from torch import nn

from hmmscope.constructions.constructed import check_first
from hmmscope.models.base import ModelIO
from hmmscope.models.decoder import Decoder
from hmmscope.models.delta_rule import DeltaRule, DeltaRuleSpec

#: A sigmoid of it is 1 to all digits; a logit of it leaves nothing to the other state.
LARGE = 60.0


@torch.no_grad()
def delta_rule_parity(*, dtype: torch.dtype = torch.float32) -> Decoder:
    """The weights, in the architecture ``delta-rule`` with one layer and one head.

    Args:
        dtype: of the weights.

    Returns:
        A model that reads the tokens 0 (even), 1 (odd) and 2 (the placeholder, which comes first), and gives logits of an
        even and of an odd sum so far. It raises InputError for sequences that begin with another token.
    """
    spec = DeltaRuleSpec(num_layers=1, num_heads=1, width=8, mlp_ratio=1, gated=False, negative=True)
    model = spec.build(ModelIO(num_outputs=2, vocab_size=3), torch.Generator().manual_seed(0)).to(dtype)
    # Orthogonal, of mean zero and variance one, as layer norms leave them: the three tokens, and what is read.
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
    mixer.qkv.bias.view(3, 8)[:2, 0] = 1.0  # every query and key is the first coordinate
    mixer.qkv.weight.view(3, 8, 8)[2, 0] = first / 8  # the placeholder stores 1, with b = 1
    mixer.write.weight.copy_(LARGE * (odd - even)[None] / 8)  # b = 2 on odd tokens, 0 on even ones
    mixer.out.weight[:, 0] = parity
    model.head.weight.copy_(LARGE * torch.stack([parity, -parity]) / 8)
    model.register_forward_pre_hook(_check_begin, with_kwargs=True)
    return model


def _check_begin(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Refuse sequences without the placeholder, whose stored sign is missing; a cache that has one goes on after it."""
    inputs = args[0] if args else kwargs["inputs"]
    if not kwargs.get("cache"):
        check_first(inputs, 2)
