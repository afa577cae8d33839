"""Likeness of representations, and shares of change explained."""

import math

import pytest
import torch

from hmmscope.analysis.similarity import explained_change, linear_cka
from hmmscope.errors import InputError


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def test_equal_up_to_rotation_scale_and_shift() -> None:
    x = random(3, 50, 6)
    rotation = torch.linalg.qr(random(6, 6, seed=1))[0]
    found = linear_cka(x, 2.5 * x @ rotation + 7)
    assert found.shape == (3, 3)
    assert found.diagonal() == pytest.approx(torch.ones(3), abs=1e-12)
    assert (found - torch.diag(found.diagonal())).max() < 0.9


def test_cka_by_the_kernels() -> None:
    """HSIC of the centred kernels, written out."""
    x, y = random(1, 20, 4), random(1, 20, 3, seed=2)
    h = torch.eye(20, dtype=torch.float64) - 1 / 20
    kernels = [h @ part[0] @ part[0].T @ h for part in (x, y)]

    def hsic(i: int, j: int) -> float:
        return float((kernels[i] * kernels[j]).sum())

    expected = hsic(0, 1) / math.sqrt(hsic(0, 0) * hsic(1, 1))
    assert linear_cka(x, y).item() == pytest.approx(expected, rel=1e-12)


def test_independent_features_are_unlike() -> None:
    assert linear_cka(random(1, 20000, 5), random(1, 20000, 5, seed=3)).item() < 0.01


def test_a_constant_layer_has_no_likeness() -> None:
    assert linear_cka(torch.ones(1, 9, 2, dtype=torch.float64), random(1, 9, 2)).isnan().all()


def test_other_examples_are_refused() -> None:
    with pytest.raises(InputError, match="right: must have the 5 examples of left, got 6"):
        linear_cka(random(1, 5, 2), random(1, 6, 2))


def test_a_linear_cause_explains_all_and_noise_nothing() -> None:
    causes = random(400, 3)
    change = causes @ random(3, 7, seed=1) + 5
    train = torch.arange(400) < 300
    wrong, spread = explained_change(change, causes, train, ridge=1e-12)
    assert wrong.shape == spread.shape == (100,)
    assert wrong.mean() / spread.mean() < 1e-20
    wrong, spread = explained_change(change, random(400, 3, seed=9), train)
    assert 0.95 < wrong.mean() / spread.mean() < 1.1


def test_half_of_the_variance() -> None:
    causes, noise = random(40000, 1), random(40000, 1, seed=1)
    wrong, spread = explained_change(causes + noise, causes, torch.arange(40000) < 20000)
    assert 1 - float(wrong.mean() / spread.mean()) == pytest.approx(0.5, abs=0.02)
