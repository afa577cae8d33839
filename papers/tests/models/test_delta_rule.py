"""The delta rule is its recurrence, however it is cut into chunks; and with negative eigenvalues it can keep a parity."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from hmmscope.datasets.layouts import SequenceLayout
from hmmscope.datasets.process_dataset import ProcessDataset
from hmmscope.models.base import ModelIO
from hmmscope.models.delta_rule import OPEN, DeltaRule, DeltaRuleSpec
from hmmscope.processes.make import make_process
from hmmscope_papers.constructions.parity import delta_rule_parity

WIDTH, HEADS = 12, 3
NOISE = torch.Generator().manual_seed(0)


def mixer(gated: bool, negative: bool, chunk: int) -> DeltaRule:
    spec = DeltaRuleSpec(width=WIDTH, num_heads=HEADS, gated=gated, negative=negative)
    made = DeltaRule(spec, chunk).double()
    for parameter in made.parameters():
        nn.init.normal_(parameter, 0.0, 0.5, generator=NOISE)
    return made


def inputs(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, WIDTH, dtype=torch.float64, generator=NOISE)


def recurrence(of: DeltaRule, x_BTD: torch.Tensor) -> torch.Tensor:
    """Position after position, as the rule is written."""
    batch, time, width = x_BTD.shape
    size = width // HEADS
    q, k, v = of.qkv(x_BTD).view(batch, time, 3, HEADS, size).unbind(2)
    q, k = F.normalize(q, dim=-1), F.normalize(k, dim=-1)
    b = of.largest * of.write(x_BTD).sigmoid()
    a = torch.ones_like(b) if of.keep is None else (of.keep(x_BTD) + OPEN).sigmoid()
    state, read = x_BTD.new_zeros(batch, HEADS, size, size), []
    for t in range(time):
        key = k[:, t, :, :, None]
        turned = torch.eye(size, dtype=x_BTD.dtype) - b[:, t, :, None, None] * key @ key.transpose(2, 3)
        state = a[:, t, :, None, None] * turned @ state + b[:, t, :, None, None] * key @ v[:, t, :, None]
        read.append((state.transpose(2, 3) @ q[:, t, :, :, None])[..., 0].reshape(batch, width))
    return of.out(torch.stack(read, 1))


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("negative", [False, True])
@pytest.mark.parametrize("chunk", [1, 5, 64])
def test_chunks_are_the_recurrence(gated: bool, negative: bool, chunk: int) -> None:
    of = mixer(gated, negative, chunk)
    x_BTD = inputs(2, 13).requires_grad_()
    found, wanted = of(x_BTD), recurrence(of, x_BTD)
    assert torch.allclose(found, wanted, atol=1e-12, rtol=0)
    weights = [x_BTD, *of.parameters()]
    slopes = [torch.autograd.grad(y.square().sum(), weights) for y in (found, wanted)]
    assert all(torch.allclose(one, other, atol=1e-11, rtol=0) for one, other in zip(*slopes, strict=True))


def test_what_was_read_comes_in_any_pieces() -> None:
    of, x_BTD = mixer(True, True, 4), inputs(2, 11)
    past = of.empty_past()
    pieces = [of(part, None, past) for part in x_BTD.split([3, 1, 7], 1)]
    assert torch.allclose(torch.cat(pieces, 1), of(x_BTD), atol=1e-12, rtol=0)


def test_strong_forgetting_is_finite() -> None:
    of = mixer(True, False, 64)
    of.keep.bias.data.fill_(-800.0)
    x_BTD = inputs(1, 64).requires_grad_()
    of(x_BTD).sum().backward()
    assert x_BTD.grad.isfinite().all()


def test_eigenvalues_are_negative_only_if_asked_for() -> None:
    """A key that is written to again and again: a half of it is left, or it is turned and a half is left."""
    for negative, sign in ((False, 1.0), (True, -1.0)):
        of = mixer(False, negative, 1)
        of.write.weight.data.zero_()
        of.write.bias.data.fill_(0.0 if not negative else torch.tensor(0.75).logit().item())
        of.qkv.weight.data.zero_()
        of.qkv.bias.data.zero_().view(3, HEADS, -1)[:2, :, 0] = 1.0  # the same key and query everywhere, values 0
        past = of.empty_past()
        size = WIDTH // HEADS
        past.state = torch.zeros(1, HEADS, size, size, dtype=torch.float64)
        past.state[..., 0, 0] = 1.0
        of(inputs(1, 1), None, past)
        assert past.state[..., 0, 0].tolist() == [pytest.approx([sign / 2] * HEADS)]


@pytest.mark.parametrize("dtype, near", [(torch.float64, 1e-15), (torch.float32, 1e-6)])
def test_constructed_weights_keep_a_parity_at_any_length(dtype: torch.dtype, near: float) -> None:
    process = make_process("word-problem", group="Z2")
    batch = ProcessDataset(process, layout=SequenceLayout(length=3000, placeholder=True), seed=1)[0:4]
    law = delta_rule_parity(dtype=dtype)(batch.tokens).softmax(-1)[:, 1:]
    exact = F.one_hot(batch.observations.cumsum(1) % 2, 2)
    assert (law - exact).abs().max() < near
    assert exact.double().mean() == pytest.approx(0.5, abs=0.05)


def test_the_construction_has_the_registered_architecture() -> None:
    spec = DeltaRuleSpec(num_layers=1, num_heads=1, width=8, mlp_ratio=1, gated=False, negative=True)
    fresh = spec.build(ModelIO(num_outputs=2, vocab_size=3), torch.Generator().manual_seed(1))
    fresh.load_state_dict(delta_rule_parity().state_dict())
    tokens = torch.tensor([[2, 1, 1, 0, 1]])
    assert fresh(tokens).argmax(-1).tolist() == [[0, 1, 0, 0, 1]]
