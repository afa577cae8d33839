"""Constrained belief updating, on a layer of attention that is built to do exactly what is predicted."""

import itertools

import pytest
import torch
from torch import nn

import hmmscope as hs
from hmmscope.analysis.constrained_updates import constrained_beliefs, constrained_updates
from hmmscope.errors import InputError
from hmmscope.models.base import HookPoint

MESS3 = hs.make_process("mess3", switch=0.15, emission=0.6)
RATE = 1 - 3 * 0.15


class Decaying(nn.Module):
    """Attention (1 - rate) rate^distance, the rest on the placeholder; symbol v writes η[v] - π, scaled back."""

    def __init__(self, rate: float, merged: bool = False) -> None:
        super().__init__()
        self.rate, self.merged = rate, merged
        attention = nn.Identity()
        attention.pattern = HookPoint()
        block = nn.Module()
        block.attention = attention
        self.blocks, self.residual = nn.ModuleList([block]), nn.ModuleList([HookPoint(), HookPoint()])

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        time = tokens.shape[1]
        apart = torch.arange(time)[:, None] - torch.arange(time)
        pattern = torch.where(apart >= 0, (1 - self.rate) * self.rate ** apart.clamp_min(0), 0.0).double()
        pattern[:, 0] = 0
        pattern[:, 0] = 1 - pattern.sum(1)
        pattern = self.blocks[0].attention.pattern(pattern.expand(len(tokens), 1, -1, -1))
        prior = torch.full((3,), 1 / 3).double()
        joint = torch.einsum("i,vij->vj", prior, MESS3.labelled)
        said = joint / joint.sum(1, keepdim=True) - prior
        if self.merged:
            said[1] = said[0]
        values = torch.cat([said, torch.zeros(1, 3)]) / (1 - self.rate)
        stream = self.residual[0](torch.zeros(*tokens.shape, 3).double())
        written = self.blocks[0].attention(pattern[:, 0] @ values.double()[tokens])
        return self.residual[1](stream + written)


def rows_of(model: nn.Module) -> dict[tuple[str, int], tuple[float, float]]:
    dataset = hs.ProcessDataset(MESS3, layout=hs.SequenceLayout(length=14, placeholder=True), stream="probe")
    rows = constrained_updates(model, dataset, num_samples=120)
    return {(row["quantity"], row["key"]): (row["value"], row["predicted"]) for row in rows}


def test_constrained_beliefs_are_sums_of_what_symbols_say() -> None:
    words = torch.tensor(list(itertools.product(range(3), repeat=3)))
    found = constrained_beliefs(MESS3, words)
    first = hs.filter_beliefs(MESS3, words).beliefs
    assert (found[:, 0] - first[:, 0]).abs().max() < 1e-8  # one symbol is no constraint
    assert (found[:, 2] - first[:, 2]).abs().max() > 0.05
    parts = first[:, 0] - 1 / 3
    assert torch.allclose(found.sum(-1), torch.ones(27, 3).double())
    said = {int(word[0]): part for word, part in zip(words, parts, strict=True)}
    for word, belief in zip(words.tolist(), found[:, 2], strict=True):
        wanted = sum(RATE ** (2 - s) * said[symbol] for s, symbol in enumerate(word))
        assert torch.allclose(belief, 1 / 3 + wanted, atol=1e-7)


def test_the_layer_that_is_predicted_is_found_to_be_so() -> None:
    found = rows_of(Decaying(RATE))
    for key, (value, predicted) in found.items():
        if key[0] != "exact":
            assert value == pytest.approx(predicted, abs=1e-4), key
    assert found["exact", 0][0] == pytest.approx(found["exact", 0][1], abs=1e-3)
    assert found["exact", 0][0] < 0.999


def test_another_layer_is_not() -> None:
    slow, merged = rows_of(Decaying(0.9)), rows_of(Decaying(RATE, merged=True))
    assert slow["rate", 0][0] == pytest.approx(0.9, abs=1e-6)
    assert slow["rate", 0][1] == pytest.approx(RATE, abs=1e-6)
    assert slow["constrained", 0][0] < 0.95
    assert merged["constrained", 0][0] < 0.9
    assert min(merged["values", symbol][0] for symbol in (0, 1)) < 0.9  # one of the symbols is not told from another


def test_what_is_refused() -> None:
    dataset = hs.ProcessDataset(MESS3, layout=hs.SequenceLayout(length=5, placeholder=True))
    with pytest.raises(InputError, match="num_distances: must be at most 4"):
        constrained_updates(Decaying(RATE), dataset, num_distances=5)
    with pytest.raises(InputError, match=r"model: must have the activations residual\.0, blocks\.0\.attention"):
        constrained_updates(hs.make_model("rnn", num_symbols=3, vocab_size=4), dataset, num_distances=2)
