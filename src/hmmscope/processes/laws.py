"""The arrays of a family of hidden Markov models, component first, in the two forms that processes come in."""

from dataclasses import dataclass

import torch

from hmmscope.axes import Float64, Int64, Tensor
from hmmscope.reprs import Shown


@dataclass(frozen=True, eq=False, repr=False)
class StateEmitting(Shown):
    """States emit: state_0 ~ initial, state_{t+1} ~ transition[state_t], observation_t ~ emission[state_t].

    Every entry is a multiple of 2^-32 and rows sum to one.
    """

    initial_MS: Float64[Tensor, "component state"]
    transition_MSS: Float64[Tensor, "component state state"]
    emission_MSV: Float64[Tensor, "component state symbol"]

    def rows(self) -> tuple[Tensor, ...]:
        """The arrays, each stochastic along its last axis."""
        return self.initial_MS, self.transition_MSS, self.emission_MSV

    def select(self, components: Int64[Tensor, "chosen"]) -> "StateEmitting":
        """The family of the chosen components."""
        return StateEmitting(*(rows[components] for rows in self.rows()))


@dataclass(frozen=True, eq=False, repr=False)
class EdgeEmitting(Shown):
    """Transitions emit: from a start state drawn from initial, (observation_t, state_t) ~ labelled[:, state_{t-1}].

    ``labelled[m, v, i, j]`` = P(emit v and go to j given i) in component m; multiples of 2^-32; for each i the entries
    over (v, j) sum to one. State t is the state after observation t; the start state is not among them.
    """

    initial_MS: Float64[Tensor, "component state"]
    labelled_MVSS: Float64[Tensor, "component symbol state state"]

    def rows(self) -> tuple[Tensor, ...]:
        """Initial law, and for each state its law over (symbol, next state), symbol-major."""
        return self.initial_MS, self.labelled_MVSS.transpose(1, 2).flatten(2)

    def select(self, components: Int64[Tensor, "chosen"]) -> "EdgeEmitting":
        """The family of the chosen components."""
        return EdgeEmitting(self.initial_MS[components], self.labelled_MVSS[components])


Law = StateEmitting | EdgeEmitting


def signed(law: Law) -> bool:
    """Whether numbers of the law are below zero, as only those of generalised HMMs are: then sums can cancel."""
    return any(bool((part < 0).any()) for part in law.rows())


def symbol_law(law: Law) -> Float64[Tensor, "component state symbol"]:
    """P(next symbol | state that is about to emit)."""
    return law.emission_MSV if isinstance(law, StateEmitting) else law.labelled_MVSS.sum(-1).transpose(1, 2)


def stack(laws: list[Law]) -> Law:
    """Families of one form as one family."""
    edges = [law for law in laws if isinstance(law, EdgeEmitting)]
    if edges:
        assert len(edges) == len(laws)
        initial, labelled = (law.initial_MS for law in edges), (law.labelled_MVSS for law in edges)
        return EdgeEmitting(torch.cat(list(initial)), torch.cat(list(labelled)))
    return StateEmitting(*(torch.cat(parts) for parts in zip(*(law.rows() for law in laws), strict=True)))
