"""Input-output HMMs: inputs (actions, controls) choose the transition and emission matrices."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from hmmscope import registry
from hmmscope.axes import Bool, Float64, Int64, Tensor
from hmmscope.errors import InputError
from hmmscope.kernels.random_arrays import dirichlet_rows
from hmmscope.processes.capabilities import OF_STATES
from hmmscope.processes.hmm import HMM, check_names, texts
from hmmscope.processes.labelled import LabelledHMM
from hmmscope.processes.observations import as_batch
from hmmscope.processes.params import EdgeEmissionParams
from hmmscope.processes.policies import policy_rows
from hmmscope.processes.probability_rows import as_float64, laws_of
from hmmscope.processes.process import Process, SampledPaths
from hmmscope.schema import refuse_masked, require, require_count
from hmmscope.seeds import check_seed, numpy_generator, philox_key
from hmmscope.sequences.columns import is_indices
from hmmscope.sequences.encoding import Alphabet, warn_of_numbers
from hmmscope.sequences.gaps import IF_MISSING
from hmmscope.sequences.read_options import ReadOptions


class InputOutputHMM(Process):
    """An HMM with a transition and an emission matrix for each input.

    state_0 ~ initial;  state_t ~ transition[input_t, state_{t-1}];  observation_t ~ emission[input_t, state_t]

    Source: Bengio and Frasconi (1995), for finitely many inputs.

    Attributes:
        initial, transition, emission: Probabilities (state,), (input, state, state) and (input, state, symbol).
        num_inputs: Number of different inputs U.
        symbols, states, inputs: Names of symbols, states and inputs, or None.

    Args:
        initial, transition, emission: Arrays with rows that sum to 1. Without the input axis, a transition or emission
            matrix applies to all inputs.
        symbols, states, title, source: See `HMM`.
        inputs: Names of the U inputs, or None.

    Raises:
        InputError: A row is not a distribution, or the shapes disagree.
    """

    stored_name = "InputOutputHMM"
    suggestion = "pass inputs=, or call `with_policy` to give the inputs a distribution"
    file_format = "hmmscope-input-output-hmm"
    file_arrays = ("initial", "transition", "emission")
    file_fields = (*Process.file_fields, "inputs", "reading")
    num_inputs: int

    def __init__(
        self,
        initial: object,
        transition: object,
        emission: object,
        *,
        symbols: Sequence[str] | None = None,
        states: Sequence[str] | None = None,
        inputs: Sequence[str] | None = None,
        title: str = "",
        source: str = "",
    ) -> None:
        self.initial = laws_of("initial", initial, (None,))
        size = len(self.initial)
        given = (as_float64(*part) for part in (("transition", transition), ("emission", emission)))
        transition, emission = (torch.from_numpy(part[None] if part.ndim == 2 else part) for part in given)
        for name, part in (("transition", transition), ("emission", emission)):
            require(part.ndim == 3, name, "must have the shape ([input,] state, outcome)", tuple(part.shape))
        counts = {len(part) for part in (transition, emission)} - {1}
        require(len(counts) <= 1, "emission", "must have as many matrices as transition", tuple(emission.shape))
        self.num_inputs = counts.pop() if counts else 1
        transition, emission = (part.expand(self.num_inputs, -1, -1) for part in (transition, emission))
        self.transition = laws_of("transition", transition, (None, size, size))
        self.emission = laws_of("emission", emission, (None, size, None))
        self.num_states, self.num_symbols = size, self.emission.shape[2]
        self.symbols = check_names("symbols", symbols, self.num_symbols)
        self.states = check_names("states", states, size)
        self.inputs = check_names("inputs", inputs, self.num_inputs)
        self.title, self.source = title, source

    def replaced(self, **arrays: Any) -> "InputOutputHMM":
        """Return a copy with new `arrays`."""
        names: dict[str, Any] = {"symbols": self.symbols, "states": self.states, "inputs": self.inputs}
        return InputOutputHMM(**self.file_tensors() | arrays, **names)

    def given_inputs(
        self, observations: Int64[Tensor, "batch time"], inputs: object, mask_T: Bool[Tensor, " time"]
    ) -> tuple[Process, Int64[Tensor, "batch time"]]:
        """Return a process whose symbols are triples (mask_T, input, observation), and the data as these symbols.

        Args:
            observations: Checked observations (batch, time); `num_symbols` where missing.
            inputs: Inputs in [0, U), with the shape of the observations.
            mask_T: True where a new sequence starts.
        """
        inputs_BT = self.checked_inputs(inputs, tuple(observations.shape))
        missing = self.num_symbols + 1
        codes = (mask_T * self.num_inputs + inputs_BT) * missing + observations
        distinct, numbers = torch.unique(codes, return_inverse=True)
        start, given = distinct // (missing * self.num_inputs) > 0, distinct // missing % self.num_inputs
        emission_UVS = torch.cat([self.emission, torch.ones_like(self.emission[..., :1])], 2).transpose(1, 2)
        arrive_CSS = torch.where(start[:, None, None], self.initial, self.transition[given])
        return _Driven(self, arrive_CSS * emission_UVS[given, distinct % missing][:, None]), numbers

    def checked_inputs(self, inputs: object, shape: tuple[int, ...]) -> Int64[Tensor, "batch time"]:
        """Check and return inputs; a single row of inputs applies to all sequences."""
        refuse_masked("inputs", inputs)
        if isinstance(inputs, np.ndarray) and inputs.shape == shape and inputs.dtype.kind in "iu":
            if not is_indices(inputs):
                warn_of_numbers(self.inputs, "inputs")
            inputs = torch.from_numpy(inputs.astype(np.int64))  # (batch, 1) is no column here
        try:
            given, _ = as_batch(inputs, self.input_alphabet, field="inputs")
            given = torch.as_tensor(given)
        except InputError as error:
            said = str(error).replace("observations", "inputs")  # no input is missing
            raise InputError(said.partition(f"; {IF_MISSING}")[0]) from None
        parts = given[given != given.floor()].tolist() if given.is_floating_point() else []
        require(not parts, "inputs", "must be whole numbers without missing values", parts[:1])
        if given.ndim == 2 and len(given) == 1:
            given = given.expand(shape[0], -1)
        require(tuple(given.shape) == tuple(shape), "inputs", f"must have the shape {tuple(shape)}", tuple(given.shape))
        given = given.to(torch.int64)
        bad = given[(given < 0) | (given >= self.num_inputs)].tolist()
        require(not bad, "inputs", f"must be in [0, {self.num_inputs})", bad[:1])
        return given

    @property
    def input_alphabet(self) -> Alphabet:
        """The alphabet of inputs."""
        return Alphabet(self.inputs, self.num_inputs)

    @property
    def input_names(self) -> tuple[str, ...]:
        """Return names of the inputs, by default `input 0`, ..."""
        return self.inputs or tuple(f"input {u}" for u in range(self.num_inputs))

    def given_input(self, number: int) -> HMM:
        """Return the HMM for the constant input `number`."""
        arrays = self.initial, self.transition[number], self.emission[number]
        return HMM(*arrays, symbols=self.symbols, states=self.states, title=self.title, allow_drop_tiny=True)

    def sample_given(self, inputs: Any, *, seed: int = 0) -> SampledPaths:
        """Sample observations and states given inputs (batch, time)."""
        shape = np.shape(inputs) if np.ndim(inputs) == 2 else (1, len(inputs))
        inputs_BT = self.checked_inputs(inputs, shape)
        uniforms = torch.from_numpy(numpy_generator(seed, "input-output").random((*shape, 2)))
        states, observations = torch.zeros_like(inputs_BT), torch.zeros_like(inputs_BT)
        for t in range(shape[1]):
            given = inputs_BT[:, t]
            rows = self.transition[given, states[:, t - 1]] if t else self.initial.expand(shape[0], -1)
            states[:, t] = _drawn(rows, uniforms[:, t, 0])
            observations[:, t] = _drawn(self.emission[given, states[:, t]], uniforms[:, t, 1])
        return SampledPaths(observations, states, None)

    def with_policy(self, policy: Any, *, first: Any = None, together: bool = False) -> Process:
        """Return the HMM that draws inputs from a policy and emits input_0, observation_0, input_1, ...

        The first U symbols are the inputs, and symbol U + v is observation v.

        Args:
            policy, first: See `hmmscope.processes.policies.policy_rows`; the axis `seen` is the last observation.
            together: True returns a `LabelledHMM` that emits input u and observation v as the symbol u * V + v.
        """
        return (_as_pairs if together else _as_tokens)(self, policy, first)

    def __repr__(self) -> str:
        sizes = f"num_inputs={self.num_inputs}, num_states={self.num_states}, num_symbols={self.num_symbols}"
        return f"InputOutputHMM({sizes}{f', title={self.title!r}' if self.title else ''})"

    @classmethod
    def from_file(cls, data: Mapping[str, Any], *, allow_drop_tiny: bool = False) -> "InputOutputHMM":
        hmm = cls(*(data[name] for name in cls.file_arrays), inputs=data.get("inputs"), **texts(data))
        hmm.read_options = ReadOptions.of_file(data)
        return hmm


class _Driven(Process):
    stored_name = "_Driven"
    uses_hmm_inference = OF_STATES

    def __init__(self, hmm: InputOutputHMM, labelled_CSS: Float64[Tensor, "code state state"]) -> None:
        anywhere = torch.zeros_like(hmm.initial)
        anywhere[0] = 1.0  # the first step goes to the initial distribution from any state
        self.params = EdgeEmissionParams(anywhere[None], labelled_CSS[None])
        self.num_states, self.num_symbols = hmm.num_states, len(labelled_CSS)


def _as_tokens(hmm: InputOutputHMM, policy: Any, first: Any) -> HMM:
    size, count, num_seen = hmm.num_states, hmm.num_inputs, hmm.num_symbols
    rows_UVU, first_U = policy_rows(policy, first, count, num_seen)
    held = num_seen if np.ndim(policy) == 3 else 1  # observations that a state holds
    # states: a first input (U), a later input after a state (U * S), an observation of a state under an input (U * S * held)
    inputs, total = count * size, count + count * size * (1 + held)
    transition = torch.zeros(total, total, dtype=torch.float64)
    emission = torch.zeros(total, count + num_seen, dtype=torch.float64)
    own = torch.eye(size, dtype=torch.float64)
    for u in range(count):
        later = slice(count + u * size, count + (u + 1) * size)
        seen = slice(count + inputs + u * size * held, count + inputs + (u + 1) * size * held)
        emission[u, u], emission[later, u] = 1.0, 1.0
        emits = hmm.emission[u] if held > 1 else torch.ones(size, 1, dtype=torch.float64)
        emission[seen, count:] = hmm.emission[u] if held == 1 else torch.eye(num_seen).double().repeat(size, 1)
        transition[u, seen] = (hmm.initial[:, None] * emits).flatten()
        transition[later, seen] = (hmm.transition[u][:, :, None] * emits).flatten(1)
        after = rows_UVU[u, :held, :, None] * own[:, None, None]  # (state, held, next input, next state)
        transition[seen, count : count + inputs] = after.flatten(2).flatten(0, 1)
    initial = torch.cat([first_U, torch.zeros(total - count, dtype=torch.float64)])
    names = [*(hmm.inputs or (f"input-{u}" for u in range(count))), *(hmm.symbols or map(str, range(num_seen)))]
    return HMM(initial, transition, emission, symbols=names, title=hmm.title, allow_drop_tiny=True)


def _as_pairs(hmm: InputOutputHMM, policy: Any, first: Any) -> LabelledHMM:
    """Return the process that emits input u and observation v as the symbol u * V + v."""
    # states: 0 starts a sequence; then S states, paired with the last input and observation if the policy needs them
    size, count, num_seen = hmm.num_states, hmm.num_inputs, hmm.num_symbols
    rows_UVU, first_U = policy_rows(policy, first, count, num_seen)
    held = (1, count, count * num_seen)[np.ndim(policy) - 1]
    arrays = torch.zeros(count, num_seen, 1 + held * size, 1 + held * size, dtype=torch.float64)
    for u, v in np.ndindex(count, num_seen):
        place = 1 + size * (0, u, u * num_seen + v)[np.ndim(policy) - 1]
        here = slice(place, place + size)
        arrays[u, v, 0, here] = first_U[u] * hmm.initial * hmm.emission[u, :, v]
        chosen = (rows_UVU[:1, :1], rows_UVU[:, :1], rows_UVU)[np.ndim(policy) - 1][..., u].flatten()
        arrays[u, v, 1:, here] = torch.kron(chosen[:, None], hmm.transition[u] * hmm.emission[u, :, v])
    inputs, symbols = hmm.inputs or range(count), hmm.symbols or range(num_seen)
    names = [f"{u}/{v}" for u in inputs for v in symbols]
    initial = torch.eye(1 + held * size, dtype=torch.float64)[0]
    return LabelledHMM(initial, arrays.flatten(0, 1), symbols=names, title=hmm.title, allow_drop_tiny=True)


def _drawn(rows: Float64[Tensor, "row outcome"], uniforms: Float64[Tensor, " row"]) -> Int64[Tensor, " row"]:
    cumulated = rows.cumsum(1)
    last = (cumulated < cumulated[:, -1:]).sum(1)  # the last possible outcome
    return torch.minimum((cumulated <= uniforms[:, None]).sum(1), last)


@registry.process("input-output")
@dataclass(frozen=True, kw_only=True)
class InputOutputSpec:
    """A random input-output HMM with random inputs; tokens alternate between inputs and observations.

    The rows of all matrices are Dirichlet(1).

    Attributes:
        num_inputs, num_states, num_symbols: Numbers U, S and V of inputs, states and symbols.
        repeat: Probability of keeping the last input; otherwise the next input is uniform.
        seed: Seed of the rows.
        together: True emits each input and its observation as one token.
    """

    num_inputs: int = 2
    num_states: int = 3
    num_symbols: int = 3
    repeat: float = 0.5
    seed: int = 0
    together: bool = False

    def __post_init__(self) -> None:
        check_seed(self.seed)
        for name in ("num_inputs", "num_states", "num_symbols"):
            require_count(name, getattr(self, name))
        total = self.num_inputs * self.num_states
        require(total <= 1024, "num_states", "must be at most 1024 / num_inputs", self.num_states)
        require(0 <= self.repeat <= 1, "repeat", "must be in [0, 1]", self.repeat)

    def build(self) -> Process:
        policy = self.repeat * torch.eye(self.num_inputs, dtype=torch.float64) + (1 - self.repeat) / self.num_inputs
        return self.hmm().with_policy(policy, together=self.together)

    def hmm(self) -> InputOutputHMM:
        numbers, size = np.arange(self.num_inputs), self.num_states
        arrays = [
            dirichlet_rows(philox_key(self.seed, name), numbers, size, width, 1.0)
            for name, width in (("transition", size), ("emission", self.num_symbols))
        ]
        title = "input-output HMM"
        return InputOutputHMM(torch.full((size,), 1 / size), *map(torch.from_numpy, arrays), title=title)
