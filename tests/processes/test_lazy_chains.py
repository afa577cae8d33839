"""Lazy noisy chains: two numbers say how fast they mix and how clearly they speak."""

import numpy as np
import pytest
import torch

import hmmscope as hs
from hmmscope.errors import InputError


def test_the_two_numbers_are_what_they_say() -> None:
    still = hs.make_process("lazy-chain", num_states=3, stay=1.0, noise=0.0)
    assert torch.equal(still.transition, torch.eye(3, dtype=torch.float64))
    assert torch.equal(still.emission, torch.eye(3, dtype=torch.float64))
    rates, times = [], []
    for stay, noise in ((0.5, 0.1), (0.9, 0.1), (0.5, 0.8)):
        chain = hs.make_process("lazy-chain", stay=stay, noise=noise, seed=3)
        assert (chain.transition.diagonal() >= stay - 1e-9).all()
        assert (chain.emission.diagonal() >= 1 - noise - 1e-9).all()
        rates.append(hs.entropy_rate(chain, num_samples=50).value)
        times.append(hs.mixing_time(chain, num_samples=50).time)
    assert times[1] > times[0]
    assert rates[2] > rates[0] > rates[1]


def test_fresh_chains_are_drawn_within_their_bounds() -> None:
    fresh = hs.make_process("fresh-lazy-chains", least_stay=0.6, most_stay=0.7, most_noise=0.2, seed=1)
    mixture = fresh.mixture(np.arange(50))
    stays = torch.stack([mixture[m].transition.diagonal().min() for m in range(50)])
    assert 0.6 - 1e-9 <= stays.min() < stays.max()
    assert min(mixture[m].emission.diagonal().min() for m in range(50)) >= 0.8 - 1e-9
    again = fresh.mixture(np.array([7]))[0]
    assert torch.equal(again.transition, mixture[7].transition)


@pytest.mark.parametrize(
    ("name", "fields", "error"),
    [
        ("lazy-chain", {"stay": 1.5}, r"stay: must be in \[0, 1\]"),
        (
            "fresh-lazy-chains",
            {"least_noise": 0.5, "most_noise": 0.4},
            r"most_noise: must be in \[least_noise, 1\] = \[0.5, 1\]",
        ),
    ],
)
def test_numbers_out_of_range_are_refused(name: str, fields: dict, error: str) -> None:
    with pytest.raises(InputError, match=error):
        hs.make_process(name, **fields)
