"""A mixture of hidden Markov models over the same states and symbols: one component a sample."""

from collections.abc import Sequence

from hmmscope.axes import Tensor
from hmmscope.errors import InputError
from hmmscope.processes.base import Process, stochastic_rows
from hmmscope.processes.hmm import HMM


class Mixture(Process):
    """component ~ weights, drawn once a sample (a sequence, or a whole prompt); then the HMM of that component.

    Attributes:
        weights_M: law of the component.
        initial_MS, transition_MSS, emission_MSV: the components, stacked, float64, multiples of 2^-32.

    Args:
        weights: (M,), sums to 1.
        components: M HMMs with equal numbers of states and symbols.
    """

    def __init__(self, weights: object, components: Sequence[HMM]) -> None:
        import torch

        if not components:
            raise InputError("components: a mixture needs at least one HMM")
        sizes = {(hmm.num_states, hmm.num_symbols) for hmm in components}
        if len(sizes) > 1:
            raise InputError(f"components: must have equal (states, symbols), got {sorted(sizes)}")
        self._stack(
            weights,
            torch.stack([hmm.initial_S for hmm in components]),
            torch.stack([hmm.transition_SS for hmm in components]),
            torch.stack([hmm.emission_SV for hmm in components]),
        )

    @classmethod
    def from_stacked(
        cls, weights: object, initial_MS: Tensor, transition_MSS: Tensor, emission_MSV: Tensor
    ) -> "Mixture":
        """A mixture from stacked arrays that are already multiples of 2^-32 (not checked again)."""
        mixture = cls.__new__(cls)
        mixture._stack(weights, initial_MS, transition_MSS, emission_MSV)
        return mixture

    def _stack(self, weights: object, initial_MS: Tensor, transition_MSS: Tensor, emission_MSV: Tensor) -> None:
        self.weights_M, _ = stochastic_rows("weights", weights, (len(initial_MS),))
        self.initial_MS, self.transition_MSS, self.emission_MSV = initial_MS, transition_MSS, emission_MSV
        self.num_states, self.num_symbols = emission_MSV.shape[1:]

    @property
    def num_components(self) -> int:
        return len(self.weights_M)

    def __len__(self) -> int:
        return self.num_components

    def __getitem__(self, component: int) -> HMM:
        if not 0 <= component < self.num_components:
            raise IndexError(f"component must be in [0, {self.num_components}), got {component}")
        return HMM(self.initial_MS[component], self.transition_MSS[component], self.emission_MSV[component])

    def first(self, count: int) -> "Mixture":
        """The first `count` components, equally likely."""
        if not 1 <= count <= self.num_components:
            raise InputError(f"count: must be in [1, {self.num_components}], got {count}")
        stacked = (self.initial_MS, self.transition_MSS, self.emission_MSV)
        return Mixture.from_stacked([1 / count] * count, *(part[:count] for part in stacked))

    def __repr__(self) -> str:
        sizes = f"num_states={self.num_states}, num_symbols={self.num_symbols}"
        return f"Mixture(num_components={self.num_components}, {sizes})"

    def weights(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return self.weights_M, self.initial_MS, self.transition_MSS, self.emission_MSV
