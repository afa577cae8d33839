"""Semi-Markov chains: how long a state lasts has a law of its own, up to a longest duration, so that it is an exact HMM."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from hmmscope import registry
from hmmscope.axes import Float64, Int64, Tensor
from hmmscope.kernels.random_arrays import dirichlet_rows
from hmmscope.processes.hmm import HMM
from hmmscope.processes.probability_rows import laws_of
from hmmscope.schema import require
from hmmscope.seeds import check_seed, philox_key


class Durations(NamedTuple):
    """A semi-Markov chain as a chain of pairs (state, steps that are left, this one among them).

    Attributes:
        initial, transition: laws of the pairs (pair,), (pair, pair).
        states: of which state each pair is (pair,): ``means[states]`` are rows of a family for the pairs.
        left: steps that are left (pair,).
    """

    initial: Float64[Tensor, "pair"]
    transition: Float64[Tensor, "pair next_pair"]
    states: Int64[Tensor, "pair"]
    left: Int64[Tensor, "pair"]


def with_durations(initial: object, transition: object, durations: object) -> Durations:
    """A visit of state i takes d steps with probability durations[i, d - 1], and then transition[i, j] leads to j.

    (i, d) -> (i, d - 1) for certain;  (i, 1) -> (j, d) with transition[i, j] durations[j, d - 1]

    A sequence begins with a new visit and may end within one. Pairs that no visit of their state reaches are left out. On
    the diagonal of `transition` is the probability that another visit of the same state follows.

    Source: Yu (2010), "Hidden semi-Markov models"; as an HMM: Johnson (2005), "Capacity and complexity of HMM duration
    modeling techniques".

    Args:
        initial: of the first state (S,).
        transition: from visit to visit (S, S).
        durations: laws of the lengths 1 to D of a visit (S, D).

    Raises:
        InputError: rows that are no laws; a wrong shape.

    Cost: S D pairs, and matrices of as many rows: filters take O(time S^2 D^2), or what their zeros leave of it.
    """
    first_S = laws_of("initial", initial, (None,))
    size = len(first_S)
    moves_SS = laws_of("transition", transition, (size, size))
    lasts_SD = laws_of("durations", durations, (size, None))
    kept = lasts_SD.flip(1).cumsum(1).flip(1) > 0  # a visit of so many steps or more
    states, left = kept.nonzero().T
    place_SD = torch.full(lasts_SD.shape, -1).masked_scatter(kept, torch.arange(len(states)))
    enters_SP = moves_SS[:, states] * lasts_SD[states, left]
    transition_PP = torch.zeros(len(states), len(states), dtype=torch.float64)
    ends = left == 0
    transition_PP[ends] = enters_SP[states[ends]]
    transition_PP[~ends, place_SD[states[~ends], left[~ends] - 1]] = 1.0
    return Durations(first_S[states] * lasts_SD[states, left], transition_PP, states, left + 1)


@registry.process("semi-markov")
@dataclass(frozen=True, kw_only=True)
class SemiMarkovSpec:
    """States that last a number of steps of their own, so that an observer keeps time as well as the state.

    A visit of state i takes 1 + Binomial(longest - 1, p_i) steps, p_i evenly from 1 / (S + 1) to S / (S + 1); the next state
    is another one, by rows from Dirichlet(1); a symbol names its state, but for `noise`. The uniform law begins.

    Source: ours; the kind is that of Yu (2010), "Hidden semi-Markov models".

    Attributes:
        num_states: S, also the number of symbols.
        longest: steps of the longest visit; 1 is a chain without durations.
        noise: probability that a symbol is uniform instead.
        seed: of the rows.
    """

    num_states: int = 3
    longest: int = 6
    noise: float = 0.2
    seed: int = 0

    def __post_init__(self) -> None:
        check_seed(self.seed)
        require(2 <= self.num_states <= 1024, "num_states", "must be in [2, 1024]", self.num_states)
        rule = f"must be in [1, {4096 // self.num_states}], 4096 over num_states"
        require(1 <= self.longest <= 4096 // self.num_states, "longest", rule, self.longest)
        require(0 <= self.noise <= 1, "noise", "must be in [0, 1]", self.noise)

    def build(self) -> HMM:
        size = self.num_states
        rows = dirichlet_rows(philox_key(self.seed, "transition"), np.zeros(1, np.int64), size, size - 1, 1.0)[0]
        others = torch.zeros(size, size, dtype=torch.float64)
        others[~torch.eye(size, dtype=torch.bool)] = torch.from_numpy(rows).flatten()
        chances = torch.arange(1, size + 1, dtype=torch.float64)[:, None] / (size + 1)
        steps = torch.arange(self.longest, dtype=torch.float64)
        durations = torch.distributions.Binomial(self.longest - 1, chances).log_prob(steps).exp()
        found = with_durations(torch.full((size,), 1 / size), others, durations / durations.sum(1, keepdim=True))
        emission = (1 - self.noise) * torch.eye(size, dtype=torch.float64) + self.noise / size
        names = [
            f"{state}, {left} left" for state, left in zip(found.states.tolist(), found.left.tolist(), strict=True)
        ]
        return HMM(
            found.initial,
            found.transition,
            emission[found.states],
            states=names,
            title="semi-Markov chain",
            allow_drop_tiny=True,
        )
