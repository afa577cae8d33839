"""A hidden Markov model whose transitions emit symbols."""

from collections.abc import Sequence

import torch

from hmmscope.processes.base import Process, as_float64, require_shape, stochastic_rows
from hmmscope.processes.hmm import check_names
from hmmscope.processes.laws import EdgeEmitting


class LabelledHMM(Process):
    """An edge-emitting hidden Markov model, given by its labelled transition matrices.

    start ~ initial;  (observation_t, state_t) ~ labelled[:, state_{t-1}, :]

    State t is the state after observation t. Input-driven systems are of this kind: the input is the observation.

    Attributes:
        initial_S: law of the start state, float64.
        labelled_VSS: `[v, i, j]` = P(emit v and go to j given i), float64.
        quantisation_change: largest absolute change of a probability by quantisation (below 2^-32).
        symbols, states: names, or None.
        title, source: free text.

    Args:
        initial: (S,), sums to 1.
        labelled: (V, S, S); for each state i the entries `[:, i, :]` sum to 1.
        symbols, states, title, source, allow_drop_tiny: as for `HMM`.

    Raises:
        InputError: see `stochastic_rows`.
    """

    def __init__(
        self,
        initial: object,
        labelled: object,
        *,
        symbols: Sequence[str] | None = None,
        states: Sequence[str] | None = None,
        title: str = "",
        source: str = "",
        allow_drop_tiny: bool = False,
    ) -> None:
        self.initial_S, change_0 = stochastic_rows("initial", initial, (None,), allow_drop_tiny=allow_drop_tiny)
        self.num_states = len(self.initial_S)
        array = as_float64("labelled", labelled)
        require_shape("labelled", array, (None, self.num_states, self.num_states))
        labelled_VSS = torch.from_numpy(array)
        self.num_symbols = len(labelled_VSS)
        by_state = labelled_VSS.transpose(0, 1).flatten(1)
        rows, change_1 = stochastic_rows(
            "labelled (by state)", by_state, (self.num_states, None), allow_drop_tiny=allow_drop_tiny
        )
        self.labelled_VSS = rows.view(self.num_states, self.num_symbols, self.num_states).transpose(0, 1).contiguous()
        self.quantisation_change = max(change_0, change_1)
        self.weights_M = self.initial_S.new_ones(1)
        self.law = EdgeEmitting(self.initial_S[None], self.labelled_VSS[None])
        self.symbols = check_names("symbols", symbols, self.num_symbols)
        self.states = check_names("states", states, self.num_states)
        self.title, self.source = title, source

    def __repr__(self) -> str:
        title = f", title={self.title!r}" if self.title else ""
        return f"LabelledHMM(num_states={self.num_states}, num_symbols={self.num_symbols}{title})"
