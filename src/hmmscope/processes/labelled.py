"""The edge-emitting hidden Markov model."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from hmmscope.axes import Float64, Tensor
from hmmscope.processes.capabilities import OF_STATES
from hmmscope.processes.hmm import asked_after, check_names, texts
from hmmscope.processes.params import EdgeEmissionParams
from hmmscope.processes.policies import policy_rows
from hmmscope.processes.probability_rows import Quantiser, as_float64, require_shape
from hmmscope.processes.process import Process
from hmmscope.schema import require


class LabelledHMM(Process):
    """An edge-emitting hidden Markov model, with labelled transition matrices.

    start ~ initial;  (observation_t, state_t) ~ labelled[:, state_{t-1}, :]

    Attributes:
        initial, labelled: float64; `labelled[v, i, j]` = P(emit v and go to j given i).
        quantisation_change: largest change of a probability by rounding.
        symbols, states, title, source: see the arguments.

    Args:
        initial: distribution of the state before observation 0 (state,).
        labelled: labelled transition matrices (symbol, state, state); entries `[:, i, :]` sum to 1 for each state i.
        symbols, states, title, source, allow_drop_tiny: see `HMM`.

    Raises:
        InputError: see `Quantiser`.
    """

    stored_name = "LabelledHMM"

    uses_hmm_inference = OF_STATES
    file_format = "hmmscope-labelled-hmm"
    file_arrays = ("initial", "labelled")

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
        quantiser = Quantiser("LabelledHMM", allow_drop_tiny=allow_drop_tiny)
        self.initial = quantiser.rows("initial", initial, (None,))
        self.num_states = len(self.initial)
        array = as_float64("labelled", labelled)
        require_shape("labelled", array, (None, self.num_states, self.num_states))
        labelled_VSS = torch.from_numpy(array)
        self.num_symbols = len(labelled_VSS)
        by_state = labelled_VSS.transpose(0, 1).flatten(1)
        rows = quantiser.rows("labelled (by state)", by_state, (self.num_states, None))
        self.labelled = rows.view(self.num_states, self.num_symbols, self.num_states).transpose(0, 1).contiguous()
        self.quantisation_change = quantiser.finish()
        self.params = EdgeEmissionParams(self.initial[None], self.labelled[None])
        self.symbols = check_names("symbols", symbols, self.num_symbols)
        self.states = check_names("states", states, self.num_states)
        self.title, self.source = title, source

    def with_initial(self, initial: object) -> "LabelledHMM":
        """Return the process with another initial distribution, without names of states and symbols."""
        return LabelledHMM(initial, self.labelled, allow_drop_tiny=True)

    def with_policy(self, policy: Any, *, first: Any = None) -> "LabelledHMM":
        """Treat symbols as actions, as in [Limits], and return the process with another distribution of actions.

        labelled[a, i, j] = P(a | i) * P(j | i, a), where `policy` replaces the factor P(a | i)

        Args:
            policy, first: See `hmmscope.processes.policies.policy_rows`; the axis `seen` is the last state.

        Raises:
            InputError: An action is impossible in a state, or `policy` or `first` is invalid.
        """
        shares = self.labelled.sum(2, keepdim=True)
        require(bool((shares > 0).all()), "process", "must allow every action in every state", repr(self))
        size, count, kernels = self.num_states, self.num_symbols, self.labelled / shares
        rows_ASA, first_A = policy_rows(policy, first, count, size)
        if np.ndim(policy) == 1 and first is None:
            labelled = kernels * first_A[:, None, None]
            return LabelledHMM(self.initial, labelled, symbols=self.symbols, states=self.states, title=self.title)
        # states: s before the first action, then pairs (last action, s)
        labelled = torch.zeros(count, (1 + count) * size, (1 + count) * size, dtype=torch.float64)
        for a in range(count):
            here = slice((1 + a) * size, (2 + a) * size)
            labelled[a, :size, here] = first_A[a] * kernels[a]
            labelled[a, size:, here] = (rows_ASA[..., a, None] * kernels[a]).flatten(0, 1)
        initial = torch.cat([self.initial, torch.zeros(count * size, dtype=torch.float64)])
        return LabelledHMM(initial, labelled, symbols=self.symbols, title=self.title, allow_drop_tiny=True)

    def driving_matrices(self) -> tuple[Float64[Tensor, "symbol state state"], Float64[Tensor, " state"], bool]:
        """Return `Process.driving_matrices`: A_v[j, i] = 1 if symbol v moves state i to j, else 0.

        Raises:
            InputError: the process is not deterministic.
        """
        matrices = (self.labelled > 0).mT.to(torch.float64).contiguous()
        most = int(matrices.sum(1).max())
        require(most == 1, "process", "must be deterministic: one next state per state and symbol", most)
        emitted_VS = self.labelled.sum(2)
        return matrices, self.initial, bool((emitted_VS - emitted_VS[:, :1]).abs().max() > 1e-8)

    def __repr__(self) -> str:
        title = f", title={self.title!r}" if self.title else ""
        return f"LabelledHMM(num_states={self.num_states}, num_symbols={self.num_symbols}{title})"

    def file_tensors(self) -> dict[str, Tensor]:
        return {"initial": self.initial, "labelled": self.labelled}

    @classmethod
    def from_file(cls, data: Mapping[str, Any], *, allow_drop_tiny: bool = False) -> "LabelledHMM":
        hmm = cls(data["initial"], data["labelled"], **texts(data), allow_drop_tiny=allow_drop_tiny)
        hmm.evaluated_after = asked_after(data, hmm.num_symbols)
        return hmm
