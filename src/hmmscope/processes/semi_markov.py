"""Semi-Markov chains with bounded durations, as exact HMMs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from hmmscope import registry
from hmmscope.axes import Float64, Int64, Tensor
from hmmscope.kernels.random_arrays import dirichlet_rows
from hmmscope.processes.capabilities import OF_STATES
from hmmscope.processes.hmm import HMM, check_names, texts
from hmmscope.processes.probability_rows import laws_of
from hmmscope.processes.process import Process
from hmmscope.schema import require
from hmmscope.seeds import check_seed, philox_key
from hmmscope.sequences.read_options import ReadOptions


class Durations(NamedTuple):
    """A Markov chain of pairs (state, remaining steps).

    Attributes:
        initial, transition: probabilities (pair,) and (pair, pair).
        states: state of each pair (pair,).
        left: remaining steps of each pair, including the current step (pair,).
    """

    initial: Float64[Tensor, " pair"]
    transition: Float64[Tensor, "pair next_pair"]
    states: Int64[Tensor, " pair"]
    left: Int64[Tensor, " pair"]


def with_durations(initial: object, transition: object, durations: object) -> Durations:
    """Build the chain in which a visit of state i lasts d steps with probability durations[i, d - 1].

    (i, d) -> (i, d - 1) with probability 1; (i, 1) -> (j, d) with transition[i, j] durations[j, d - 1]

    A sequence starts with a new visit. Unreachable pairs are omitted.

    Source: Yu (2010); as an HMM: Johnson (2005).

    Args:
        initial: distribution of the first state (S,).
        transition: P(state of the next visit | state of this visit) (S, S).
        durations: distribution of a visit's length, 1 to D, for each state (S, D).

    Raises:
        InputError: a row is not a distribution, or a shape is wrong.

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


class Visits(NamedTuple):
    """Names and arrays of a `SemiMarkovHMM` by state, and the state `of` each pair (state, remaining steps)."""

    names: tuple[str, ...]
    of: Int64[Tensor, " pair"]
    transition: Float64[Tensor, "state state"]
    durations: Float64[Tensor, "state step"]
    emission: Float64[Tensor, "state symbol"]


class SemiMarkovHMM(Process):
    """Hidden semi-Markov model: a visit of state i lasts d steps with probability durations[i, d - 1].

    `num_states` is the number of pairs (state, remaining steps); `predict`, `predict_proba`, `state_table` and `plot`
    return results for the S states.

    Attributes:
        initial, transition, durations, emission: Arrays (state,), (state, state), (state, duration), (state, symbol).
        visits: The S states and their names.
        symbols, states: Names of the symbols and of the pairs, or None.

    Args:
        initial, transition, durations: As in `with_durations`.
        emission: Emission probabilities (state, symbol); rows sum to 1.
        symbols, title, source: See `HMM`.
        states: Names of the S states.

    Raises:
        InputError: See `with_durations`.
    """

    stored_name = "SemiMarkovHMM"
    uses_hmm_inference = OF_STATES
    file_format = "hmmscope-semi-markov-hmm"
    file_arrays = ("initial", "transition", "durations", "emission")
    file_fields = ("symbols", "title", "source", "names", "reading")

    def __init__(
        self,
        initial: object,
        transition: object,
        durations: object,
        emission: object,
        *,
        symbols: Sequence[str] | None = None,
        states: Sequence[str] | None = None,
        title: str = "",
        source: str = "",
    ) -> None:
        chain = with_durations(initial, transition, durations)
        self.initial = laws_of("initial", initial, (None,))
        size = len(self.initial)
        self.transition = laws_of("transition", transition, (size, size))
        self.durations = laws_of("durations", durations, (size, None))
        self.emission = laws_of("emission", emission, (size, None))
        self.names = check_names("states", states, size)
        names = self.names or tuple(f"state {s}" for s in range(size))
        self.visits = Visits(names, chain.states, self.transition, self.durations, self.emission)
        pairs = [f"{names[s]}, {left} left" for s, left in zip(chain.states.tolist(), chain.left.tolist(), strict=True)]
        rows = self.emission[chain.states]
        hmm = HMM(chain.initial, chain.transition, rows, symbols=symbols, states=pairs, allow_drop_tiny=True)
        self.params, self.symbols, self.states = hmm.params, hmm.symbols, hmm.states
        self.num_states, self.num_symbols = hmm.num_states, hmm.num_symbols
        self.title, self.source = title, source

    def replaced(self, **arrays: Any) -> "SemiMarkovHMM":
        """Return a copy with new `arrays`."""
        return SemiMarkovHMM(**self.file_tensors() | arrays, symbols=self.symbols, states=self.names)

    @classmethod
    def from_file(cls, data: Mapping[str, Any], *, allow_drop_tiny: bool = False) -> "SemiMarkovHMM":
        hmm = cls(*(data[name] for name in cls.file_arrays), states=data.get("names"), **texts(data))
        hmm.read_options = ReadOptions.of_file(data)
        return hmm

    def __repr__(self) -> str:
        size, longest = self.durations.shape
        title = f", title={self.title!r}" if self.title else ""
        return f"SemiMarkovHMM(states={size}, longest={longest}, num_symbols={self.num_symbols}{title})"


@registry.process("semi-markov")
@dataclass(frozen=True, kw_only=True)
class SemiMarkovSpec:
    """A random semi-Markov chain; predictors must count the steps in the current state.

    Visits of state i last 1 + Binomial(longest - 1, (i + 1) / (S + 1)) steps;
    transition rows over the other states are Dirichlet(1).

    Source: after Yu (2010).

    Attributes:
        num_states: number of states S, and of symbols.
        longest: longest visit in steps; with 1 the chain is a Markov chain.
        noise: probability of emitting a uniform symbol instead of the state.
        seed: seed of the rows.
    """

    num_states: int = 3
    longest: int = 6
    noise: float = 0.2
    seed: int = 0

    def __post_init__(self) -> None:
        check_seed(self.seed)
        require(2 <= self.num_states <= 1024, "num_states", "must be in [2, 1024]", self.num_states)
        rule = f"must be in [1, {4096 // self.num_states}], which is 4096 divided by num_states"
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
        pairs = zip(found.states.tolist(), found.left.tolist(), strict=True)
        names = [f"{state}, {left} left" for state, left in pairs]
        return HMM(
            found.initial,
            found.transition,
            emission[found.states],
            states=names,
            title="semi-Markov chain",
            allow_drop_tiny=True,
        )
