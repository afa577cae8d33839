"""A hidden Markov model whose states emit symbols."""

from collections.abc import Sequence

from hmmscope.errors import InputError
from hmmscope.processes.base import Process, stochastic_rows
from hmmscope.processes.laws import StateEmitting


class HMM(Process):
    """A state-emitting hidden Markov model, quantised to multiples of 2^-32 (the quantised process is the process).

    state_0 ~ initial;  state_{t+1} ~ transition[state_t];  observation_t ~ emission[state_t]

    Attributes:
        initial_S: law of state 0, float64.
        transition_SS: `[i, j]` = P(next j given now i).
        emission_SV: `[i, v]` = P(symbol v given state i).
        quantisation_change: largest absolute change of a probability by quantisation (below 2^-32).
        symbols, states: names, or None.
        title, source: free text.

    Args:
        initial: (S,), sums to 1.
        transition: (S, S), rows sum to 1.
        emission: (S, V), rows sum to 1.
        symbols: V names, if the symbols have names.
        states: S names, if the states have names.
        title, source: what it is and where it comes from.
        allow_drop_tiny: round positive probabilities below 2^-32 instead of refusing them.

    Raises:
        InputError: see `stochastic_rows`; names that are empty, double or of the wrong number.
    """

    def __init__(
        self,
        initial: object,
        transition: object,
        emission: object,
        *,
        symbols: Sequence[str] | None = None,
        states: Sequence[str] | None = None,
        title: str = "",
        source: str = "",
        allow_drop_tiny: bool = False,
    ) -> None:
        self.initial_S, change_0 = stochastic_rows("initial", initial, (None,), allow_drop_tiny=allow_drop_tiny)
        size = len(self.initial_S)
        self.transition_SS, change_1 = stochastic_rows(
            "transition", transition, (size, size), allow_drop_tiny=allow_drop_tiny
        )
        self.emission_SV, change_2 = stochastic_rows(
            "emission", emission, (size, None), allow_drop_tiny=allow_drop_tiny
        )
        self.num_states, self.num_symbols = self.emission_SV.shape
        self.weights_M = self.initial_S.new_ones(1)
        self.law = StateEmitting(self.initial_S[None], self.transition_SS[None], self.emission_SV[None])
        self.quantisation_change = max(change_0, change_1, change_2)
        self.symbols = check_names("symbols", symbols, self.num_symbols)
        self.states = check_names("states", states, self.num_states)
        self.title, self.source = title, source

    def __repr__(self) -> str:
        title = f", title={self.title!r}" if self.title else ""
        return f"HMM(num_states={self.num_states}, num_symbols={self.num_symbols}{title})"

    def save(self, path: object) -> None:
        """Write to `path`, as JSON, NPZ or safetensors by its ending; refused if it exists."""
        from hmmscope.processes.files import save_hmm

        save_hmm(self, path)


def check_names(field: str, names: Sequence[str] | None, count: int) -> tuple[str, ...] | None:
    """The names as a tuple; InputError unless they are `count` different non-empty texts."""
    if names is None:
        return None
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) and name for name in names):
        raise InputError(f"{field}: must be a list of non-empty texts, got {names!r}")
    if len(names) != count or len(set(names)) != count:
        raise InputError(f"{field}: must be {count} different names, got {len(names)} ({len(set(names))} different)")
    return tuple(names)
