"""A mixture of hidden Markov models over the same states and symbols: one component a sample."""

from collections.abc import Sequence

import torch

from hmmscope.errors import InputError
from hmmscope.processes.base import Process, stochastic_rows
from hmmscope.processes.hmm import HMM
from hmmscope.processes.labelled import LabelledHMM
from hmmscope.processes.laws import EdgeEmitting, Law, StateEmitting, stack


class Mixture(Process):
    """component ~ weights, drawn once a sample (a sequence, or a whole prompt); then the process of that component.

    Attributes:
        weights_M: law of the component.
        law: the components, stacked, float64, multiples of 2^-32.

    Args:
        weights: (M,), sums to 1.
        components: M HMMs, or M labelled HMMs, with equal numbers of states and symbols.
    """

    def __init__(self, weights: object, components: Sequence[HMM | LabelledHMM]) -> None:
        if not components:
            raise InputError("components: a mixture needs at least one HMM")
        kinds = {(type(hmm).__name__, hmm.num_states, hmm.num_symbols) for hmm in components}
        if len(kinds) > 1:
            raise InputError(f"components: must have equal (kind, states, symbols), got {sorted(kinds)}")
        self._set(weights, stack([hmm.law for hmm in components]))

    @classmethod
    def from_law(cls, weights: object, law: Law) -> "Mixture":
        """A mixture from stacked arrays that are already multiples of 2^-32 (not checked again)."""
        mixture = cls.__new__(cls)
        mixture._set(weights, law)
        return mixture

    def _set(self, weights: object, law: Law) -> None:
        self.weights_M, _ = stochastic_rows("weights", weights, (len(law.initial_MS),))
        self.law = law
        self.num_states = law.initial_MS.shape[1]
        self.num_symbols = law.emission_MSV.shape[2] if isinstance(law, StateEmitting) else law.labelled_MVSS.shape[1]

    @property
    def num_components(self) -> int:
        return len(self.weights_M)

    def __len__(self) -> int:
        return self.num_components

    def __getitem__(self, component: int) -> HMM | LabelledHMM:
        if not 0 <= component < self.num_components:
            raise IndexError(f"component must be in [0, {self.num_components}), got {component}")
        if isinstance(self.law, EdgeEmitting):
            return LabelledHMM(self.law.initial_MS[component], self.law.labelled_MVSS[component])
        return HMM(*(rows[component] for rows in self.law.rows()))

    def first(self, count: int) -> "Mixture":
        """The first `count` components, equally likely."""
        if not 1 <= count <= self.num_components:
            raise InputError(f"count: must be in [1, {self.num_components}], got {count}")
        return Mixture.from_law([1 / count] * count, self.law.select(torch.arange(count)))

    def __repr__(self) -> str:
        sizes = f"num_states={self.num_states}, num_symbols={self.num_symbols}"
        return f"Mixture(num_components={self.num_components}, {sizes})"
