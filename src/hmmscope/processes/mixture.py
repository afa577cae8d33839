"""Mixtures of hidden Markov models."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch

from hmmscope.axes import Tensor
from hmmscope.errors import InputError
from hmmscope.processes.capabilities import BELIEFS, COMPONENTS, FORECASTS, GAPS, PATHS, PREDICTIONS, SMOOTHING
from hmmscope.processes.hmm import HMM, check_names, texts
from hmmscope.processes.labelled import LabelledHMM
from hmmscope.processes.params import EdgeEmissionParams, HMMParams, StateEmissionParams, stack
from hmmscope.processes.probability_rows import Quantiser, as_tensor, stochastic_rows
from hmmscope.processes.process import Process


class Mixture(Process):
    """A mixture of HMMs: each sample draws a component with the given weights, then observations from this component.

    Attributes:
        component_weights: probabilities of the components.
        params: stacked parameters of the components.
        symbols, states: names that all components share, or None.

    Args:
        weights: probabilities of the components (M,).
        components: M `HMM` or M `LabelledHMM` objects of equal sizes.
        title, source: free text.

    Raises:
        InputError: there are no components, or their sizes or symbol names differ.
    """

    stored_name = "Mixture"

    uses_hmm_inference = frozenset({PREDICTIONS, BELIEFS, SMOOTHING, PATHS, COMPONENTS, FORECASTS, GAPS})
    suggestion = (
        "use hmmscope.filter_mixture for the mixture, or one HMM of it: mixture[0] in Python, --component 0 in a shell"
    )
    file_format = "hmmscope-mixture"
    file_arrays: ClassVar[tuple[str, ...]] = ("weights", "initial")
    file_fields: ClassVar[tuple[str, ...]] = (
        "transition",
        "emission",
        "labelled",
        "symbols",
        "states",
        "title",
        "source",
    )

    def __init__(
        self, weights: object, components: Sequence[HMM | LabelledHMM], *, title: str = "", source: str = ""
    ) -> None:
        if not components:
            raise InputError("components: a mixture needs at least one HMM")
        kinds = {(type(hmm).__name__, hmm.num_states, hmm.num_symbols) for hmm in components}
        if len(kinds) > 1:
            raise InputError(f"components: must have the same (kind, states, symbols), got {sorted(kinds)}")
        alphabets = {hmm.symbols for hmm in components}
        if len(alphabets - {None}) > 1:
            listed = " and ".join(", ".join(names[:8]) for names in sorted(alphabets - {None})[:2])  # type: ignore[index, type-var]
            raise InputError(f"components: must have the same symbol names, got {listed}")
        self._set(weights, stack([hmm.params for hmm in components]))
        states = {hmm.states for hmm in components}
        self.symbols = alphabets.pop() if len(alphabets) == 1 else None
        self.states = states.pop() if len(states) == 1 else None
        self.title, self.source = title, source

    @classmethod
    def from_law(
        cls,
        weights: object,
        law: HMMParams,
        *,
        symbols: Sequence[str] | None = None,
        states: Sequence[str] | None = None,
        title: str = "",
        source: str = "",
    ) -> "Mixture":
        """Build a mixture from stacked arrays, without checking that they are multiples of 2^-32."""
        mixture = cls.__new__(cls)
        mixture._set(weights, law)
        mixture.symbols = check_names("symbols", symbols, mixture.num_symbols)
        mixture.states = check_names("states", states, mixture.num_states)
        mixture.title, mixture.source = title, source
        return mixture

    def _set(self, weights: object, law: HMMParams) -> None:
        self.component_weights, _ = stochastic_rows("weights", weights, (len(law.initial_MS),))
        self.params = law
        self.num_states = law.initial_MS.shape[1]
        self.num_symbols = law.num_symbols

    def file_tensors(self) -> dict[str, Tensor]:
        return {"weights": self.component_weights, **self.params.arrays()}

    @classmethod
    def from_file(cls, data: Mapping[str, Any], *, allow_drop_tiny: bool = False) -> "Mixture":
        """Build a mixture from file data; memory-mapped rows that need no rounding are not copied."""
        quantiser = Quantiser("Mixture", allow_drop_tiny=allow_drop_tiny)
        initial = quantiser.exact("initial", data["initial"], (None, None))
        count, size = initial.shape
        params: HMMParams
        if "labelled" in data:
            labelled = as_tensor("labelled", data["labelled"], (count, None, size, size))
            by_state = quantiser.exact("labelled (by state)", labelled.transpose(1, 2).flatten(2), (count, size, None))
            params = EdgeEmissionParams(initial, by_state.unflatten(2, (-1, size)).transpose(1, 2))
        else:
            for name in ("transition", "emission"):
                if name not in data:
                    raise InputError(f"{name} is missing")
            transition = quantiser.exact("transition", data["transition"], (count, size, size))
            params = StateEmissionParams(
                initial, transition, quantiser.exact("emission", data["emission"], (count, size, None))
            )
        quantiser.finish()
        return cls.from_law(data["weights"], params, **texts(data))

    @property
    def num_components(self) -> int:
        return len(self.component_weights)

    def __len__(self) -> int:
        return self.num_components

    def __getitem__(self, component: int) -> HMM | LabelledHMM:
        if not 0 <= component < self.num_components:
            raise IndexError(f"component must be in [0, {self.num_components}), got {component}")
        names: dict[str, Any] = {"symbols": self.symbols, "states": self.states}
        kind = HMM if self.params.states_emit else LabelledHMM
        return kind(*(array[component] for array in self.params.arrays().values()), **names)

    def component(self, number: int) -> HMM | LabelledHMM:
        return self[number]

    def select_components(self, components: Tensor) -> tuple[Process, Tensor]:
        return self, components

    def subsample_components(self, count: int) -> "Mixture":
        return self.first(min(count, len(self)))

    def first(self, count: int) -> "Mixture":
        """Return the mixture of the first `count` components with equal weights."""
        if not 1 <= count <= self.num_components:
            raise InputError(f"count: must be in [1, {self.num_components}], got {count}")
        params = self.params.select(torch.arange(count))
        return Mixture.from_law([1 / count] * count, params, symbols=self.symbols, states=self.states)

    def __repr__(self) -> str:
        sizes = f"num_states={self.num_states}, num_symbols={self.num_symbols}"
        title = f", title={self.title!r}" if self.title else ""
        return f"Mixture(num_components={self.num_components}, {sizes}{title})"
