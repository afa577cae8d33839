"""Parameter arrays of hidden Markov models."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import torch

from hmmscope.axes import Float64, Int64, Tensor
from hmmscope.reprs import Shown
from hmmscope.system_info import require_memory

#: Rounding tolerance for sums and signs of signed params; smaller probabilities count as zero.
ROUNDING = 1e-12

#: Maps distributions of the next emitting state (component, batch, state), and symbols, to P(symbol, state).
Absorb = Callable[[Tensor, Tensor], Tensor]


class HMMParams(Shown, ABC):
    """Parameter arrays of one or several HMMs over the same states and symbols.

    Attributes:
        digest_name: fixed name of the class in `Process.params_digest` (default: the class name).
        file_arrays: names of the arrays in files.
        initial_MS: distribution of the state at time 0; if transitions emit, of the state before observation 0.
        states_emit: True if states emit, False if transitions do.
        signed: True if entries may be negative, see `GeneralisedHMM`.
    """

    digest_name: ClassVar[str] = "Law"
    file_arrays: ClassVar[tuple[str, ...]]
    states_emit: ClassVar[bool]
    signed: ClassVar[bool] = False

    initial_MS: Float64[Tensor, "component state"]
    # defined by one of the forms only
    transition_MSS: Float64[Tensor, "component state state"]
    emission_MSV: Float64[Tensor, "component state symbol"]
    labelled_MVSS: Float64[Tensor, "component symbol state state"]

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "digest_name" not in vars(cls):
            cls.digest_name = cls.__name__

    @abstractmethod
    def rows(self) -> tuple[Tensor, ...]:
        """Return the initial distribution and the other arrays, with distributions along the last axis."""

    @abstractmethod
    def symbols(self) -> Float64[Tensor, "component state symbol"]:
        """Return P(next symbol | state about to emit)."""

    @abstractmethod
    def transitions(self) -> Float64[Tensor, "component state state"]:
        """Return P(next state | state)."""

    @abstractmethod
    def after(self, beliefs: Float64[Tensor, "component batch state"]) -> Float64[Tensor, "component batch state"]:
        """Map beliefs after an observation to the distribution of the next emitting state."""

    @abstractmethod
    def transition(self, beliefs: Float64[Tensor, "*batch state"]) -> Float64[Tensor, "*batch state"]:
        """Apply `after` of the first component to beliefs of any batch shape."""

    @abstractmethod
    def predictive(self) -> Float64[Tensor, "component state symbol"]:
        """Return P(next symbol | state after an observation)."""

    @abstractmethod
    def predictive_in(self, component: int) -> Float64[Tensor, "state symbol"]:
        """Return `predictive` of one component."""

    @abstractmethod
    def steps(self) -> Float64[Tensor, "symbol state state"]:
        """Return `[v, i, j]` = P(symbol v, then state j | state i) of the first component."""

    @abstractmethod
    def arrivals(self) -> Float64[Tensor, "symbol state state"]:
        """Return `[v, i, j]` = P(observation v, state j | previous state i) of the first component."""

    @abstractmethod
    def tables(self, component: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return P(observation 0, state 0) (V, S), the transition matrix (1, S, S) and emissions (V, S).

        If transitions emit, the second are the labelled matrices (V, S, S), and the third is empty.
        """

    def all_tables(self) -> tuple[Tensor, Tensor, Tensor]:
        each = [self.tables(component) for component in range(len(self.initial_MS))]
        first, steps, after = (torch.stack(part) for part in zip(*each, strict=True))
        return first, steps, after

    @abstractmethod
    def absorber(self) -> Absorb:
        """Return an `Absorb` function for shared symbols (1, batch), or symbols (component, 1)."""

    @abstractmethod
    def factors(
        self, components: Int64[Tensor, " row"], symbols: Int64[Tensor, " row"]
    ) -> tuple[Float64[Tensor, "row state state"], Float64[Tensor, "row state"]]:
        """Return A and f with belief ∝ (previous belief @ A) * f, for each pair of component and symbol."""

    @abstractmethod
    def from_each_state(self) -> "HMMParams":
        """Return parameters with S components; component i predicts what follows state i."""

    @abstractmethod
    def contractions(self, memory_length: int) -> tuple[Float64[Tensor, "matrix state state"], int]:
        """Return the matrices A, and the exponent of c, in the bound of `memory_certificate`."""

    @abstractmethod
    def with_gaps(self) -> "HMMParams":
        """Return parameters with an additional symbol V for missing observations, never predicted."""

    @property
    def num_symbols(self) -> int:
        return self.symbols().shape[2]

    def arrays(self) -> dict[str, Tensor]:
        arrays = (getattr(self, field.name) for field in fields(self))  # type: ignore[arg-type]
        return dict(zip(self.file_arrays, arrays, strict=True))

    def _made(self, *arrays: Tensor) -> "HMMParams":
        return type(self)(*arrays)

    def with_initial(self, initial_MS: Float64[Tensor, "component state"]) -> "HMMParams":
        return self._made(initial_MS, *list(self.arrays().values())[1:])

    def select(self, components: Int64[Tensor, " chosen"]) -> "HMMParams":
        return self._made(*(array[components] for array in self.arrays().values()))

    def to(self, device: torch.device) -> "HMMParams":
        return self._made(*(array.to(device) for array in self.arrays().values()))


@dataclass(frozen=True, eq=False, repr=False)
class StateEmissionParams(HMMParams):
    """Parameters of HMMs with emitting states.

    state_0 ~ initial, state_{t+1} ~ transition[state_t], observation_t ~ emission[state_t]
    """

    digest_name: ClassVar[str] = "StateEmitting"
    file_arrays: ClassVar[tuple[str, ...]] = ("initial", "transition", "emission")
    states_emit: ClassVar[bool] = True

    initial_MS: Float64[Tensor, "component state"]
    transition_MSS: Float64[Tensor, "component state state"]
    emission_MSV: Float64[Tensor, "component state symbol"]

    def rows(self) -> tuple[Tensor, ...]:
        return self.initial_MS, self.transition_MSS, self.emission_MSV

    def symbols(self) -> Float64[Tensor, "component state symbol"]:
        return self.emission_MSV

    def transitions(self) -> Float64[Tensor, "component state state"]:
        return self.transition_MSS

    def after(self, beliefs: Float64[Tensor, "component batch state"]) -> Float64[Tensor, "component batch state"]:
        return torch.bmm(beliefs, self.transition_MSS)

    def transition(self, beliefs: Float64[Tensor, "*batch state"]) -> Float64[Tensor, "*batch state"]:
        return beliefs @ self.transition_MSS[0]

    def predictive(self) -> Float64[Tensor, "component state symbol"]:
        return self.transition_MSS @ self.symbols()

    def predictive_in(self, component: int) -> Float64[Tensor, "state symbol"]:
        return self.transition_MSS[component] @ self.symbols()[component]

    def with_gaps(self) -> HMMParams:
        ones_MS1 = torch.ones_like(self.emission_MSV[..., :1])
        return _StatesWithGaps(self.initial_MS, self.transition_MSS, torch.cat([self.emission_MSV, ones_MS1], 2))

    def steps(self) -> Float64[Tensor, "symbol state state"]:
        num_states, num_symbols = self.emission_MSV.shape[1:]
        require_memory("steps", 8 * num_symbols * num_states**2)
        return self.emission_MSV[0].T[:, :, None] * self.transition_MSS[0]

    def arrivals(self) -> Float64[Tensor, "symbol state state"]:
        return self.transition_MSS[0] * self.emission_MSV[0].T[:, None]

    def tables(self, component: int) -> tuple[Tensor, Tensor, Tensor]:
        emission_VS = self.emission_MSV[component].T
        return self.initial_MS[component] * emission_VS, self.transition_MSS[component][None], emission_VS

    def all_tables(self) -> tuple[Tensor, Tensor, Tensor]:
        emission_MVS = self.emission_MSV.transpose(1, 2)
        return self.initial_MS[:, None] * emission_MVS, self.transition_MSS[:, None], emission_MVS

    def absorber(self) -> Absorb:
        emission_MVS = self.emission_MSV.transpose(1, 2).contiguous()
        component_M1 = torch.arange(len(emission_MVS), device=emission_MVS.device)[:, None]
        return lambda following, symbols_MB: following * emission_MVS[component_M1, symbols_MB]

    def factors(self, components: Int64[Tensor, " row"], symbols: Int64[Tensor, " row"]) -> tuple[Tensor, Tensor]:
        return self.transition_MSS[components], self.emission_MSV[components, :, symbols]

    def from_each_state(self) -> "StateEmissionParams":
        size = self.initial_MS.shape[1]
        transition_SSS, emission_SSV = (rows.expand(size, -1, -1) for rows in (self.transition_MSS, self.emission_MSV))
        return StateEmissionParams(self.transition_MSS[0], transition_SSS, emission_SSV)

    def contractions(self, memory_length: int) -> tuple[Float64[Tensor, "matrix state state"], int]:
        return self.transition_MSS[:1], memory_length


@dataclass(frozen=True, eq=False, repr=False)
class EdgeEmissionParams(HMMParams):
    """Parameters of HMMs with emitting transitions: (observation_t, state_t) ~ labelled[:, state_{t-1}].

    ``labelled[m, v, i, j]`` = P(emit v and go to j given i). State t follows observation t.
    """

    digest_name: ClassVar[str] = "EdgeEmitting"
    file_arrays: ClassVar[tuple[str, ...]] = ("initial", "labelled")
    states_emit: ClassVar[bool] = False

    initial_MS: Float64[Tensor, "component state"]
    labelled_MVSS: Float64[Tensor, "component symbol state state"]

    def rows(self) -> tuple[Tensor, ...]:
        return self.initial_MS, self.labelled_MVSS.transpose(1, 2).flatten(2)

    @property
    def num_symbols(self) -> int:
        return self.labelled_MVSS.shape[1]

    def symbols(self) -> Float64[Tensor, "component state symbol"]:
        return self.labelled_MVSS.sum(-1).transpose(1, 2)

    def transitions(self) -> Float64[Tensor, "component state state"]:
        return self.labelled_MVSS.sum(1)

    def after(self, beliefs: Float64[Tensor, "component batch state"]) -> Float64[Tensor, "component batch state"]:
        return beliefs

    def transition(self, beliefs: Float64[Tensor, "*batch state"]) -> Float64[Tensor, "*batch state"]:
        return beliefs

    def predictive(self) -> Float64[Tensor, "component state symbol"]:
        return self.symbols()

    def predictive_in(self, component: int) -> Float64[Tensor, "state symbol"]:
        return self.symbols()[component]

    def steps(self) -> Float64[Tensor, "symbol state state"]:
        return self.labelled_MVSS[0]

    def arrivals(self) -> Float64[Tensor, "symbol state state"]:
        return self.labelled_MVSS[0]

    def tables(self, component: int) -> tuple[Tensor, Tensor, Tensor]:
        labelled_VSS = self.labelled_MVSS[component]
        first_VS = (self.initial_MS[component][:, None] * labelled_VSS).sum(1)
        return first_VS, labelled_VSS, first_VS[:0]

    def absorber(self) -> Absorb:
        def absorb(following: Tensor, symbols_MB: Tensor) -> Tensor:
            if len(symbols_MB) == len(self.labelled_MVSS) and symbols_MB.shape[1] == 1:
                component_M = torch.arange(len(symbols_MB), device=symbols_MB.device)
                chosen_MSS = self.labelled_MVSS[component_M, symbols_MB[:, 0]]
                return torch.bmm(following, chosen_MSS)
            joint = torch.empty_like(following)
            for symbol in symbols_MB[0].unique().tolist():
                rows = (symbols_MB[0] == symbol).nonzero()[:, 0]
                joint[:, rows] = torch.bmm(following[:, rows], self.labelled_MVSS[:, symbol])
            return joint

        return absorb

    def factors(self, components: Int64[Tensor, " row"], symbols: Int64[Tensor, " row"]) -> tuple[Tensor, Tensor]:
        chosen = self.labelled_MVSS[components, symbols]
        return chosen, torch.ones_like(chosen[:, 0])

    def from_each_state(self) -> HMMParams:
        size = self.initial_MS.shape[1]
        eye = torch.eye(size, dtype=torch.float64)
        return self._made(eye, self.labelled_MVSS.expand(size, -1, -1, -1))

    def contractions(self, memory_length: int) -> tuple[Float64[Tensor, "matrix state state"], int]:
        return self.labelled_MVSS[0], memory_length - 1

    def with_gaps(self) -> HMMParams:
        kind = _SignedWithGaps if self.signed else _EdgesWithGaps
        summed_M1SS = self.labelled_MVSS.sum(1, keepdim=True)
        return kind(self.initial_MS, torch.cat([self.labelled_MVSS, summed_M1SS], 1))


class SignedParams(EdgeEmissionParams):
    """Edge-emission parameters that may be negative; see `GeneralisedHMM`."""

    digest_name: ClassVar[str] = "Signed"
    signed: ClassVar[bool] = True


class _StatesWithGaps(StateEmissionParams):
    digest_name: ClassVar[str] = "_StatesWithGaps"

    def symbols(self) -> Float64[Tensor, "component state symbol"]:
        return self.emission_MSV[..., :-1]


class _EdgesWithGaps(EdgeEmissionParams):
    digest_name: ClassVar[str] = "_EdgesWithGaps"

    @property
    def num_symbols(self) -> int:
        return self.labelled_MVSS.shape[1] - 1

    def symbols(self) -> Float64[Tensor, "component state symbol"]:
        return self.labelled_MVSS[:, :-1].sum(-1).transpose(1, 2)

    def transitions(self) -> Float64[Tensor, "component state state"]:
        return self.labelled_MVSS[:, -1]


class _SignedWithGaps(_EdgesWithGaps):
    digest_name: ClassVar[str] = "_SignedWithGaps"
    signed: ClassVar[bool] = True


def seeing(law: HMMParams, observations: Int64[Tensor, "*batch"]) -> HMMParams:
    return law.with_gaps() if any_missing(observations, law.num_symbols) else law


def any_missing(observations: Int64[Tensor, "*batch"], num_symbols: int) -> bool:
    return observations.numel() > 0 and int(observations.max()) == num_symbols


def symbol_probs(law: HMMParams) -> Float64[Tensor, "component state symbol"]:
    return law.symbols()


def stack(laws: list[HMMParams]) -> HMMParams:
    first = type(laws[0])
    assert all(type(law) is first for law in laws)
    return first(*(torch.cat(parts) for parts in zip(*(law.arrays().values() for law in laws), strict=True)))
