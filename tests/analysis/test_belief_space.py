"""The space of the belief, on networks that hold it where we put it."""

import pytest
import torch
from torch import nn

import hmmscope as hs
from hmmscope.analysis.belief_space import belief_space
from hmmscope.errors import InputError
from hmmscope.models.base import HookPoint
from hmmscope.processes.factored import factor_beliefs

PAIR = hs.make_process("factored-mess3", emission=0.85, switch=0.15)


class Holds(nn.Module):
    """A filter whose stream is a linear function of the belief: of its factors apart, or of the joint one."""

    def __init__(self, kind: str, width: int = 20) -> None:
        super().__init__()
        self.kind, self.residual = kind, nn.ModuleList([HookPoint()])
        frame = torch.linalg.qr(torch.randn(width, 9, generator=torch.Generator().manual_seed(0)).double())[0].T
        self.map_ = {"joint": frame, "apart": frame[:6], "mixed": torch.cat([frame[:3], frame[:3]])}[kind]

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        belief = hs.filter_beliefs(PAIR, tokens).beliefs
        held = belief if self.kind == "joint" else torch.cat(factor_beliefs(belief, 2), -1)
        self.residual[0]((held @ self.map_).float())
        return torch.zeros(*tokens.shape, 9)


def quantities(kind: str) -> dict[str, float]:
    rows = belief_space(Holds(kind), hs.ProcessDataset(PAIR, length=8, stream="probe"), num_samples=300, num_factors=2)
    return {row["quantity"]: row["value"] for row in rows}


def test_sum_and_product_are_told_apart() -> None:
    apart, joint = quantities("apart"), quantities("joint")
    assert apart["joint"] == joint["joint"] == 8
    assert apart["sum"] == joint["sum"] == 4
    assert apart["dimension"] == pytest.approx(4, abs=0.1)
    assert joint["dimension"] > 6
    assert apart["moved"] == pytest.approx(1, abs=1e-5)  # the ridge of the regression
    assert apart["factored"] == pytest.approx(1, abs=1e-5)  # the ridge of the regression
    assert joint["factored"] < 0.8


def test_orthogonal_spaces_and_spaces_that_are_one() -> None:
    apart, mixed = quantities("apart"), quantities("mixed")
    assert apart["overlap"] < 1e-9
    assert mixed["overlap"] == pytest.approx(1, abs=1e-9)
    assert apart["random overlap"] == pytest.approx(2 / 20)


def test_random_streams_have_the_overlap_of_random_spaces() -> None:
    model = hs.make_model("roformer", num_symbols=9, num_layers=1, width=48, num_heads=2)
    rows = belief_space(model, hs.ProcessDataset(PAIR, length=6, stream="probe"), num_samples=200, num_factors=2)
    found = {row["quantity"]: row["value"] for row in rows if row["layer"] == 0}
    assert found["dimension"] > 6  # symbols are embedded as pairs, not by factors
    assert found["factored"] < 0.9


def test_what_is_refused() -> None:
    with pytest.raises(InputError, match=r"num_factors: must be n with 9 = k\^n states"):
        belief_space(Holds("joint"), hs.ProcessDataset(PAIR, length=4), num_samples=16, num_factors=3)
