"""Semi-Markov chains: likelihoods against sums over all visits, durations that are drawn, and families of numbers."""

import itertools
import math

import pytest
import torch

import hmmscope as hs
from hmmscope.errors import InputError
from hmmscope.processes.semi_markov import with_durations

INITIAL, MOVES = [0.75, 0.25], [[0.25, 0.75], [1.0, 0.0]]
DURATIONS = [[0.5, 0.0, 0.5], [0.25, 0.75, 0.0]]
EMISSION = [[0.75, 0.25], [0.125, 0.875]]


def by_visits(symbols: list[int]) -> float:
    """P(symbols): over all states and lengths of visits, the last of which may go on."""

    def after(time: int, chances: list[float]) -> float:
        total = 0.0
        for state, steps in itertools.product(range(2), range(1, 4)):
            own = symbols[time : time + steps]
            seen = chances[state] * DURATIONS[state][steps - 1] * math.prod(EMISSION[state][symbol] for symbol in own)
            total += seen * (after(time + steps, MOVES[state]) if time + steps < len(symbols) and seen else 1.0)
        return total

    return after(0, INITIAL)


def test_likelihoods_are_sums_over_visits() -> None:
    chain = with_durations(INITIAL, MOVES, DURATIONS)
    assert list(zip(chain.states.tolist(), chain.left.tolist(), strict=True)) == [
        (0, 1),
        (0, 2),
        (0, 3),
        (1, 1),
        (1, 2),
    ]
    hmm = hs.HMM(chain.initial, chain.transition, torch.tensor(EMISSION).double()[chain.states])
    words = torch.tensor(list(itertools.product(range(2), repeat=5)))
    exact = torch.tensor([by_visits(word) for word in words.tolist()], dtype=torch.float64)
    torch.testing.assert_close(hs.log_likelihood(hmm, words).exp(), exact, rtol=1e-12, atol=0)
    numbers = hs.GaussianHMM(*chain[:2], torch.tensor([0.0, 50.0])[chain.states], torch.ones(5), "spherical")
    path = hs.most_likely_states(numbers, torch.tensor([[0.0], [0.0], [0.0], [50.0], [50.0], [0.0]])).states[0]
    assert chain.states[path].tolist() == [0, 0, 0, 1, 1, 0]
    assert chain.left[path].tolist()[:5] == [3, 2, 1, 2, 1]


def test_durations_are_those_that_were_asked_for() -> None:
    process = hs.make_process("semi-markov", num_states=2, longest=4, noise=0.0)
    symbols = hs.ProcessDataset(process, length=2000)[0:1].observations[0]
    values, runs = torch.unique_consecutive(symbols, return_counts=True)
    for state, chance in ((0, 1 / 3), (1, 2 / 3)):
        lengths = runs[1:-1][values[1:-1] == state]
        law = torch.distributions.Binomial(3, torch.tensor(chance)).log_prob(torch.arange(4.0)).exp()
        drawn = torch.bincount(lengths - 1, minlength=4) / len(lengths)
        assert float((drawn - law).abs().max()) < 4 * 0.5 / len(lengths) ** 0.5


def test_bad_parts_are_named() -> None:
    with pytest.raises(InputError, match=r"^durations: must have shape 2 x any, got 1 x 2"):
        with_durations(INITIAL, MOVES, [[0.5, 0.5]])
    with pytest.raises(InputError, match=r"longest: must be in \[1, 2048\], which is 4096 divided by num_states"):
        hs.make_process("semi-markov", num_states=2, longest=5000)
