"""Generalised HMMs and factored processes, each against a road of its own."""

import itertools
import math

import numpy as np
import pytest
import torch

import hmmscope as hs
from hmmscope.errors import InputError
from hmmscope.inference.spectral import Operators, learn_operators
from hmmscope.processes.factored import factor_beliefs
from hmmscope.processes.generalised import GeneralisedHMM

NAMES = ("bloch-walk", "post-quantum", "probability-clock")


def words(num_symbols: int, length: int) -> torch.Tensor:
    return torch.tensor(list(itertools.product(range(num_symbols), repeat=length)))


def test_the_bloch_walk_is_that_of_density_matrices() -> None:
    alpha, beta = 1.0, 2.0
    process = hs.make_process("bloch-walk", alpha=alpha, beta=beta)
    assert (process.labelled < 0).any()  # in this frame no HMM
    paulis = np.array([[1, 0], [0, -1]]), np.array([[0, 1], [1, 0]])
    kraus = [
        (alpha * np.eye(2) + sign * beta * one) / 2 / math.hypot(alpha, beta) for one in paulis for sign in (1, -1)
    ]
    every = words(4, 4)
    told = Operators.of(process).probabilities(every)
    for word, probability in zip(every.tolist(), told.tolist(), strict=True):
        density = np.eye(2) / 2
        for symbol in word:
            density = kraus[symbol] @ density @ kraus[symbol]
        assert np.trace(density) == pytest.approx(probability, abs=1e-14)


def test_the_post_quantum_process_weighs_its_curve() -> None:
    """After a reset, k growths and n shrinkages, a zero has weight x - 1 - ln x, with x = 3^k / 2^n."""
    process = hs.make_process("post-quantum", grow=3.0, shrink=0.5)
    law = Operators.of(process).probabilities
    runs = {(k, n): [0] + [1] * k + [2] * n + [0] for k in range(4) for n in range(4) if k + n == 3}
    weights = {(k, n): 3.0**k / 2**n - 1 - math.log(3.0**k / 2**n) for k, n in runs}
    found = {key: law(torch.tensor([word])).item() for key, word in runs.items()}
    ratio = found[3, 0] / weights[3, 0]
    assert all(found[key] == pytest.approx(ratio * weights[key], rel=1e-9) for key in runs)
    assert abs(law(torch.tensor([[0, 0]])).item()) < 1e-12  # x = 1 has no weight
    drawn = hs.ProcessDataset(process, length=64)[0:200].observations
    assert not ((drawn[:, 1:] == 0) & (drawn[:, :-1] == 0)).any()


@pytest.mark.parametrize("name", NAMES)
def test_samples_have_the_law_and_the_filter_is_that_of_operators(name: str) -> None:
    process = hs.make_process(name)
    dataset = hs.ProcessDataset(process, length=3, seed=1)
    every, count = words(process.num_symbols, 3), 40_000
    exact = Operators.of(process).probabilities(every)
    assert exact.sum().item() == pytest.approx(1, abs=1e-12)
    powers = process.num_symbols ** torch.arange(2, -1, -1)
    seen = torch.bincount((dataset[0:count].observations * powers).sum(1), minlength=len(every)) / count
    assert ((seen - exact).abs() < 5 * (exact.clamp_min(0) / count).sqrt() + 1e-9).all()
    long = hs.ProcessDataset(process, length=20)[0:50].observations
    told = hs.filter_beliefs(process, long)
    assert (told.next_observation - Operators.of(process).next_observation(long)).abs().max() < 1e-12
    assert (told.beliefs.sum(-1) - 1).abs().max() < 1e-12
    assert len(learn_operators(Operators.of(process).probabilities, process.num_symbols, length=2).start) == 3


def test_files_and_what_is_refused(tmp_path) -> None:
    process = hs.make_process("bloch-walk")
    process.save(tmp_path / "bloch.json")
    same = hs.load_process(tmp_path / "bloch.json")
    assert same.digest == process.digest
    assert torch.equal(same.labelled, process.labelled)
    with pytest.raises(InputError, match=r"labelled: must give every symbol sequence a probability >= 0, got -0\.2"):
        GeneralisedHMM([0.5, 0.5], [[[1.2, 0.0], [0.0, 1.2]], [[-0.2, 0.0], [0.0, -0.2]]])
    with pytest.raises(InputError, match=r"labelled\[:, 1\]: must sum to 1"):
        GeneralisedHMM([0.5, 0.5], [[[1.0, 0.0], [0.0, 0.9]]])
    with pytest.raises(InputError, match=r"height: must be in \(0, 0.59"):
        hs.make_process("probability-clock", height=0.7)
    with pytest.raises(InputError, match="grow: must be in"):
        hs.make_process("post-quantum", grow=1.0)


@pytest.mark.parametrize("coupling", ["independent", "conditional", "hidden"])
def test_beliefs_of_factors_multiply_unless_they_share_hidden_states(coupling: str) -> None:
    process = hs.make_process("factored-mess3", coupling=coupling)
    beliefs = hs.filter_beliefs(process, hs.ProcessDataset(process, length=10)[0:60].observations).beliefs
    one, two = factor_beliefs(beliefs, 2)
    off = (torch.einsum("bti,btj->btij", one, two).flatten(2) - beliefs).abs().max()
    assert (off > 0.05) if coupling == "hidden" else (off < 1e-7)  # probabilities are rounded to 2^-32
    alone = hs.make_process("mess3", emission=0.75)
    first = hs.filter_beliefs(alone, hs.ProcessDataset(process, length=10)[0:60].observations // 3).beliefs
    assert ((one - first).abs().max() < 1e-6) == (coupling != "hidden")


def test_three_factors() -> None:
    process = hs.make_process("factored-mess3", num_factors=3, coupling="conditional")
    assert process.num_states == process.num_symbols == 27
    beliefs = hs.filter_beliefs(process, hs.ProcessDataset(process, length=6)[0:20].observations).beliefs
    one, two, three = factor_beliefs(beliefs, 3)
    product = torch.einsum("bti,btj,btk->btijk", one, two, three).flatten(2)
    assert (product - beliefs).abs().max() < 1e-7
