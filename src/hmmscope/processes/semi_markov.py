"""Semi-Markov chains with bounded durations, as exact HMMs."""

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
    """A Markov chain of pairs (state, remaining steps).

    Attributes:
        initial, transition: (pair,) and (pair, pair).
        states: state of each pair (pair,).
        left: remaining steps, this one included (pair,).
    """

    initial: Float64[Tensor, "pair"]
    transition: Float64[Tensor, "pair next_pair"]
    states: Int64[Tensor, "pair"]
    left: Int64[Tensor, "pair"]


def with_durations(initial: object, transition: object, durations: object) -> Durations:
    """Build the chain in which a visit of state i lasts d steps with probability durations[i, d - 1].

    (i, d) -> (i, d - 1) surely;  (i, 1) -> (j, d) with transition[i, j] durations[j, d - 1]

    A sequence starts with a new visit. Unreachable pairs are left out.

    Source: Yu (2010), "Hidden semi-Markov models"; as an HMM: Johnson (2005).

    Args:
        initial: of the first state (S,).
        transition: between visits (S, S).
        durations: distributions of the lengths 1 to D (S, D).

    Raises:
        InputError: invalid rows, or a wrong shape.

    Cost: up to S D pairs.
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
    """States with random durations, so that the observer must track time as well as the state.

    A visit of state i takes 1 + Binomial(longest - 1, p_i) steps, with p_i from 1 / (S + 1) to S / (S + 1); another state
    follows, by Dirichlet(1) rows.

    Source: after Yu (2010).

    Attributes:
        num_states: S, also the number of symbols.
        longest: longest visit; 1 for no durations.
        noise: probability of a uniform symbol instead of the state.
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
