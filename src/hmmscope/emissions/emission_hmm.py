"""HMM with vector emissions of any family."""

import copy
import hashlib
import json
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray

from hmmscope import registry
from hmmscope.axes import Bool, Float64, Int64, Tensor, Vectors
from hmmscope.emissions.chain import draw_states, filter_states, smooth_states, viterbi_states
from hmmscope.emissions.conjugate import Conjugate
from hmmscope.emissions.states import MarkovChainParams
from hmmscope.errors import InputError
from hmmscope.inference.free_parameters import restricted
from hmmscope.processes.capabilities import ObserverOutput
from hmmscope.processes.hmm import check_names
from hmmscope.processes.matrices import as_html, as_text, brief_names, probability_text
from hmmscope.processes.observations import as_vectors
from hmmscope.processes.probability_rows import laws_of
from hmmscope.processes.process import SampledPaths, check_samples
from hmmscope.processes.stationary import stationary_law
from hmmscope.processes.vector_process import VectorProcess
from hmmscope.sequences.read_options import ReadOptions
from hmmscope.text import in_a_line, in_brief
from hmmscope.ties import descending, steady

#: Number of first observations over which network inputs are standardized.
_HORIZON = 64


class EmissionHMM(VectorProcess):
    """HMM with vector emissions; base class of the emission families.

    state_0 ~ initial;  state_{t+1} ~ transition[state_t];  observation_t ~ emission of state_t

    A family is a subclass that defines `file_arrays` (array names), `probability_arrays` (names of arrays of
    distributions), `num_symbols` (number of coordinates) and the abstract methods. Probabilities are not rounded.

    Attributes:
        chain: Initial distribution and transition matrix.
        initial, transition, states, title, source: See `Args`.

    Args:
        initial, transition: Initial distribution (state,) and `[i, j]` = P(next state j | state i).
        states: Names of the states.
        title, source: Description and origin.

    Raises:
        InputError: A row is not a distribution, or names are invalid.
    """

    stored_name = "EmittingHMM"

    group, default_target = "EmissionHMM", "density"
    #: Uniform numbers per observation.
    num_draws: int
    #: Options of `hmmscope.fit` that the family accepts: keyword arguments of `initialize`.
    fit_options: tuple[str, ...] = ()
    #: Arrays of probabilities, whose zeros a fit preserves.
    probability_arrays: tuple[str, ...] = ("initial", "transition")
    _allowed_BTS: Bool[Tensor, "batch time state"] | None = None

    def __init__(
        self,
        initial: object,
        transition: object,
        *,
        states: Sequence[str] | None = None,
        title: str = "",
        source: str = "",
    ) -> None:
        self.initial = laws_of("initial", initial, (None,))
        size = len(self.initial)
        self.transition = laws_of("transition", transition, (size, size))
        self.num_states, self.chain = size, MarkovChainParams(self.initial, self.transition)
        self.states = check_names("states", list(states) if states is not None else None, size)
        self.title, self.source = title, source

    # -- defined by a family

    @abstractmethod
    def log_likelihoods(self, observations: Float64[Tensor, "*batch coordinate"]) -> Float64[Tensor, "*batch state"]:
        """Compute log P(o_t | state) or the log density, in nats."""

    @abstractmethod
    def emit(
        self, states: Int64[Tensor, "*batch"], uniforms: Float64[Tensor, "*batch draw"]
    ) -> Float64[Tensor, "*batch coordinate"]:
        """Sample an observation for each entry of `states`."""

    @property
    @abstractmethod
    def means(self) -> Float64[Tensor, "state coordinate"]:
        """Mean E[o | state] of each coordinate."""

    @property
    @abstractmethod
    def variances(self) -> Float64[Tensor, "state coordinate"]:
        """Variance Var[o | state] of each coordinate."""

    @abstractmethod
    def num_free(self, positive: Mapping[str, Bool[Tensor, "..."]]) -> dict[str, int]:
        """Count the free parameters of each emission array.

        Args:
            positive: Masks of the probabilities that may be positive, by array name.
        """

    @classmethod
    @abstractmethod
    def initialize(
        cls, observations: Vectors, num_states: int, random: np.random.Generator, *, min_variance: Tensor
    ) -> Self:
        """Draw a model that starts EM: random emissions, and uniform initial and transition probabilities.

        Args:
            observations: Vectors (row, coordinate), NaN where missing.
            num_states: Number of states S.
            random: Random generator.
            min_variance: Least allowed variances (coordinate,).
        """

    @abstractmethod
    def m_step(
        self, observations: Vectors, occupancy: Float64[Tensor, "row state"], min_variance: Tensor
    ) -> dict[str, Any]:
        """Fit the emission arrays to observations, weighted by P(state | all observations).

        Args:
            observations, min_variance: See `initialize`.
            occupancy: P(state | all observations) of each row (row, state).
        """

    @classmethod
    def checked(cls, observations: Float64[Tensor, "*batch coordinate"]) -> Float64[Tensor, "*batch coordinate"]:
        """Return observations; raise InputError if the family cannot emit them."""
        return observations

    @classmethod
    def conjugate(cls, observations: Vectors, **options: Any) -> Conjugate:
        """Return a weak conjugate prior of the emission parameters; options depend on the family.

        Raises:
            InputError: The family has no conjugate prior.
        """
        none, families = EmissionHMM.conjugate.__func__, registry.entries("emission").values()  # type: ignore[attr-defined]
        *having, last = sorted(one.__name__ for one in families if one.conjugate.__func__ is not none)
        raise InputError(f"posterior: {cls.__name__} has no conjugate prior; {', '.join(having)} and {last} have one")

    @property
    def variance_floor_hits(self) -> Float64[Tensor, "state coordinate"]:
        """Variances (state, coordinate) that fits compare with `min_variance`; infinite in families without it."""
        return torch.full((self.num_states, self.num_symbols), torch.inf, dtype=torch.float64)

    @property
    def options(self) -> dict[str, Any]:
        """Options of `initialize` that reproduce the array shapes of this model."""
        return {}

    @property
    def num_mixture_components(self) -> int:
        """Number of mixture components of an observation's density."""
        return self.num_states

    # -- common to all families

    @property
    def num_parameters(self) -> int:
        """Number of free emission parameters."""
        return sum(self.num_free({}).values())

    @property
    def positive(self) -> dict[str, Bool[Tensor, "..."]]:
        """Masks of positive probabilities, by array name."""
        tensors = self.file_tensors()
        return {name: tensors[name] > 0 for name in self.probability_arrays}

    def rows_of(self, name: str, array: Tensor) -> Sequence[Tensor]:
        """Split a probability array into parts with rows that sum to one."""
        return [array]

    def restricted(self, positive: Mapping[str, Bool[Tensor, "..."]]) -> Self:
        """Return the process with zeros where `positive` is False."""
        tensors, found = self.file_tensors(), {}
        for name, allowed in positive.items():
            if bool((~allowed & (tensors[name] > 0)).any()):
                pairs = zip(self.rows_of(name, tensors[name]), self.rows_of(name, allowed), strict=True)
                parts = [torch.from_numpy(restricted(own.numpy(), where.numpy())) for own, where in pairs]
                found[name] = torch.cat(parts, -1)
        return self.replaced(**found) if found else self

    def replaced(self, **arrays: Any) -> Self:
        """Return a copy with new `arrays`."""
        texts = {name: text for name, text in self.file_texts().items() if name not in ("evaluated_after", "reading")}
        return type(self)(**(self.file_tensors() | arrays | texts))

    @property
    def num_coordinates(self) -> int:
        """Number of coordinates of an observation."""
        return self.num_symbols

    def vectors_of(self, observations: object) -> Float64[Tensor, "batch time coordinate"]:
        """Check observations (batch, time, coordinate) or (time, coordinate); NaN marks a missing entry."""
        return self.checked(as_vectors(observations, self.num_symbols, read_options=self.read_options)[0])

    def given_states(self, allowed_BTS: Bool[Tensor, "batch time state"]) -> Self:
        """Return a copy of the process whose inference is restricted to the allowed states."""
        found = copy.copy(self)
        found._allowed_BTS = allowed_BTS
        return found

    def _logs(self, observations: Tensor) -> Float64[Tensor, "batch time state"]:
        logs = self.log_likelihoods(self.vectors_of(observations))
        return logs if self._allowed_BTS is None else logs.masked_fill(~self._allowed_BTS, -torch.inf)

    def observe(self, observations: Tensor, *, reset_mask: object = None) -> ObserverOutput:
        """Run the forward filter; predictions are means of the next observation."""
        logs = self._logs(observations)
        found = filter_states(self.chain, logs, reset_mask=reset_mask)
        ahead, terms = self.following(found.beliefs), found.log_likelihood_terms
        return ObserverOutput(found.predicted @ self.means, ahead, terms, {"belief": found.beliefs})

    def following(self, beliefs: Tensor) -> Tensor:
        return beliefs @ self.transition @ self.means

    def smooth(self, observations: Tensor, *, reset_mask: object = None) -> Float64[Tensor, "batch time state"]:
        return smooth_states(self.chain, self._logs(observations), reset_mask=reset_mask)

    def viterbi(self, observations: Tensor, *, reset_mask: object = None) -> tuple[Tensor, Tensor]:
        found = viterbi_states(self.chain, self._logs(observations), reset_mask=reset_mask)
        return found.states, found.log_probability

    def sample_posterior_paths(
        self, observations: Tensor, *, num_paths: int, seed: int, reset_mask: object = None
    ) -> Tensor:
        logs = self._logs(observations)
        return draw_states(self.chain, logs, num_paths=num_paths, seed=seed, reset_mask=reset_mask)

    def sample_paths(
        self, indices: NDArray[np.int64], reset_mask: NDArray[np.bool_], seed: int, stream: str = "corpus"
    ) -> SampledPaths:
        """Sample paths; vectors differ between platforms by rounding errors."""
        drawn_BTK = torch.from_numpy(
            self.uniforms(check_samples(indices), len(reset_mask), seed, stream, 1 + self.num_draws)
        )
        states_BT = torch.zeros(drawn_BTK.shape[:2], dtype=torch.int64)
        first_S, moves_SS = self.initial.cumsum(0), self.transition.cumsum(1)
        last_S = (moves_SS < moves_SS[:, -1:]).sum(1)  # the last reachable state
        for t, begins in enumerate(reset_mask):
            rows = first_S if begins else moves_SS[states_BT[:, t - 1]]
            most = (first_S < first_S[-1]).sum() if begins else last_S[states_BT[:, t - 1]]
            states_BT[:, t] = torch.minimum((rows <= drawn_BTK[:, t, :1]).sum(1), most)
        return SampledPaths(self.emit(states_BT, drawn_BTK[..., 1:]), states_BT, None)

    @cached_property
    def occupancy(self) -> Float64[Tensor, " state"]:
        """Expected fraction of the first 64 observations in each state."""
        probs = [self.initial]
        for _ in range(_HORIZON - 1):
            probs.append(probs[-1] @ self.transition)
        return torch.stack(probs).mean(0)

    @cached_property
    def _scale(self) -> tuple[Tensor, Tensor]:
        visits_S = self.occupancy
        mean_Y = visits_S @ self.means
        return mean_Y, (visits_S @ (self.variances + (self.means - mean_Y).square())).sqrt()

    @property
    def scale(self) -> tuple[Float64[Tensor, " coordinate"], Float64[Tensor, " coordinate"]]:
        """Mean and standard deviation of each coordinate under the model, over the first 64 observations."""
        return self._scale

    @cached_property
    def params_digest(self) -> str:
        shape = {name: getattr(self, name) for name in ("covariance_type",) if name in self.file_fields}
        header = [self.file_format, self.num_states, self.num_symbols, shape]
        sha = hashlib.sha256(f"hmmscope-process/1/{json.dumps(header)}".encode())
        for tensor in self.file_tensors().values():
            mantissa, exponent = np.frexp(tensor.numpy())
            sha.update(np.rint(mantissa * 2.0**40).astype("<i8").tobytes() + exponent.astype("<i4").tobytes())
        return sha.hexdigest()

    @classmethod
    def from_file(cls, data: Mapping[str, Any], *, allow_drop_tiny: bool = False) -> Self:
        names = {name: data[name] for name in cls.file_fields if name != "reading" and data.get(name) is not None}
        found = cls(**{name: data[name] for name in cls.file_arrays}, **names)
        found.read_options = ReadOptions.of_file(data)
        return found

    # -- descriptions

    def describe(self) -> str:
        count = self.num_symbols
        said = f"{self.num_states:,} state{'s' * (self.num_states != 1)}, {count} coordinate{'s' * (count != 1)}"
        return f"{self.title}, {said}" if self.title else said

    def __repr__(self) -> str:
        title = f", title={self.title!r}" if self.title else ""
        return f"{type(self).__name__}(num_states={self.num_states}, num_coordinates={self.num_symbols}{title})"

    def card(self) -> list[str]:
        states = tuple(map(in_brief, self.states or (f"state {s}" for s in range(self.num_states))))
        lines = []
        for s, state in enumerate(states):
            order = descending(self.transition[s].tolist())[:3]
            then = ", ".join(
                f"{states[j]} {probability_text(float(self.transition[s, j]))}"
                for j in order
                if self.transition[s, j] > 0
            )
            starts = f"starts {probability_text(float(self.initial[s]))}"
            lines.append(f"  {state:<16} {starts}; emits {self.emission_text(s)}; then {then}")
        return lines

    def emission_text(self, state: int) -> str:
        """Describe the emissions of a state in one line."""
        pairs = zip(self.means[state].tolist(), self.variances[state].sqrt().tolist(), strict=True)
        said = [f"{steady(mean):.4g} ± {steady(deviation):.3g}" for mean, deviation in pairs]
        return ", ".join(said[:6]) + ", ..." * (len(said) > 6)

    def _tables(self) -> list[tuple[str, list[str], list[str], Tensor]]:
        states = brief_names(self.states, self.num_states, "state ")
        return [("starts in", [""], states, self.initial[None]), ("from, to", states, states, self.transition)]

    def __str__(self) -> str:
        lines = [line for table in self._tables() for line in as_text(*table)]
        states = brief_names(self.states, self.num_states, "state ")
        wide = max(map(len, ("emits", *states)))
        emitted = [f"  {state:<{wide}}  {self.emission_text(s)}" for s, state in enumerate(states[:40])]
        more = [f"  and {self.num_states - 40} more states"] * (self.num_states > 40)
        return "\n".join([in_a_line(repr(self)), *lines, "  emits (mean ± standard deviation)", *emitted, *more])

    def _repr_html_(self) -> str:
        return "".join([super()._repr_html_(), *(as_html(*table) for table in self._tables())])

    def facts(self) -> list[tuple[str, str]]:
        """Return the chain's stationary distribution and second eigenvalue, as pairs (name, text)."""
        said = []
        try:
            law = ", ".join(f"{steady(share):z.6f}" for share in stationary_law(self.transition)[:8].tolist())
            said.append(("stationary law", law + ", ..." * (self.num_states > 8)))
        except InputError:
            said.append(("stationary law", "not unique"))
        if self.num_states > 1:
            second = float(torch.linalg.eigvals(self.transition).abs().sort().values[-2])
            said.append(("2nd eigenvalue", f"{steady(second):z.6f} (second-largest eigenvalue modulus of transition)"))
        return said
