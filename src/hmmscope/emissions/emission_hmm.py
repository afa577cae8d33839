"""A hidden Markov chain whose states emit vectors of numbers, by any family of laws."""

import hashlib
import json
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray

from hmmscope.axes import Bool, Float64, Int64, Tensor
from hmmscope.emissions.chain import draw_states, filter_states, smooth_states, viterbi_states
from hmmscope.emissions.conjugate import Conjugate
from hmmscope.emissions.states import MarkovChainParams
from hmmscope.errors import InputError
from hmmscope.inference.free_parameters import restricted
from hmmscope.processes.capabilities import ObserverOutput
from hmmscope.processes.hmm import check_names
from hmmscope.processes.matrices import as_html, as_text, brief_names
from hmmscope.processes.observations import as_vectors
from hmmscope.processes.probability_rows import laws_of
from hmmscope.processes.process import SampledPaths, check_samples
from hmmscope.processes.stationary import stationary_law
from hmmscope.processes.vector_process import VectorProcess
from hmmscope.sequences.read_options import ReadOptions
from hmmscope.text import in_a_line, in_brief
from hmmscope.ties import descending, steady

#: Observations over which inputs of networks are centred and scaled.
_HORIZON = 64


class EmissionHMM(VectorProcess):
    """state_0 ~ initial;  state_{t+1} ~ transition[state_t];  observation_t ~ the law of state_t

    A family of laws is a subclass. It names its arrays in `file_arrays` after "initial" and "transition", keeps them as
    attributes of these names, and says

        num_symbols          coordinates of an observation
        log_likelihoods      log P(o_t | state) or log density; an entry that is NaN is missing, and is summed out
        emit, num_draws      an observation of each state, from so many uniform numbers
        means, variances     of an observation in each state
        begun, improved      laws to begin a fit with, and those that explain weighted observations best
        num_free             free numbers of each array of the laws
        probability_arrays   arrays whose rows are laws, besides those of the chain

    Everything else is here, and the same for all families: filter, smoother, paths, sampling, files, pictures. Probabilities
    are floats as they are given; nothing is rounded to a grid.

    Attributes:
        initial: law of state 0 (state,).
        transition: `[i, j]` = P(next j given now i) (state, state).
        chain: the two.
        states: names, or None.
        title, source: free text.

    Args:
        initial: (S,), sums to 1.
        transition: (S, S), rows sum to 1.
        states: S names, if the states have names.
        title, source: what it is and where it comes from.

    Raises:
        InputError: rows that are no laws; names that are empty, double or of the wrong number.
    """

    stored_name = "EmittingHMM"

    group, default_target = "EmissionHMM", "density"
    #: Uniform numbers that an observation takes.
    num_draws: int
    #: Arrays of probabilities: a fit keeps their zeros.
    probability_arrays: tuple[str, ...] = ("initial", "transition")

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

    # -- what a family says

    @abstractmethod
    def log_likelihoods(self, observations: Float64[Tensor, "*batch coordinate"]) -> Float64[Tensor, "*batch state"]:
        """log P(o_t | state), or the log density, nats; of what is not missing."""

    @abstractmethod
    def emit(
        self, states: Int64[Tensor, "*batch"], uniforms: Float64[Tensor, "*batch draw"]
    ) -> Float64[Tensor, "*batch coordinate"]:
        """An observation of each state."""

    @property
    @abstractmethod
    def means(self) -> Float64[Tensor, "state coordinate"]:
        """E[o | state]."""

    @property
    @abstractmethod
    def variances(self) -> Float64[Tensor, "state coordinate"]:
        """Var[o | state], of each coordinate."""

    @abstractmethod
    def num_free(self, positive: Mapping[str, Bool[Tensor, "..."]]) -> dict[str, int]:
        """Count the free numbers of each array of the laws, the chain apart.

        Args:
            positive: where arrays of probabilities may be positive, see `positive`; everywhere for a name that is left out.
        """

    @classmethod
    @abstractmethod
    def initialize(
        cls,
        observations: Float64[Tensor, "row coordinate"],
        num_states: int,
        random: np.random.Generator,
        *,
        min_variance: Float64[Tensor, "coordinate"],
    ) -> Self:
        """Random laws to begin a fit with; the chain is uniform. A family may take options besides.

        Args:
            observations: NaN where an entry is missing.
            num_states: S.
            random: what is random is drawn from.
            min_variance: least variances.
        """

    @abstractmethod
    def m_step(
        self,
        observations: Float64[Tensor, "row coordinate"],
        occupancy: Float64[Tensor, "row state"],
        min_variance: Tensor,
    ) -> dict[str, Any]:
        """The laws, by the names of `file_arrays`, that explain observations best, each weighed by the visits of a state.

        Args:
            observations: NaN where an entry is missing.
            occupancy: P(state | all observations).
            min_variance: least variance of each coordinate (coordinate,).
        """

    @classmethod
    def checked(cls, observations: Float64[Tensor, "*batch coordinate"]) -> Float64[Tensor, "*batch coordinate"]:
        """The observations; InputError for what the family cannot emit."""
        return observations

    @classmethod
    def conjugate(cls, observations: Float64[Tensor, "row coordinate"], **options: Any) -> Conjugate:
        """A weak prior of the laws, from which `Fit.posterior` draws given observations; `options` are of the family.

        Raises:
            InputError: a family that has none.
        """
        having = "GaussianHMM, PoissonHMM and MultichannelHMM have one"
        raise InputError(f"posterior: {cls.__name__} has no conjugate prior; {having}")

    @property
    def variance_floor_hits(self) -> Float64[Tensor, "state coordinate"]:
        """What a floor of a fit keeps from falling: least variances of a state; of other families nothing does."""
        return torch.full((self.num_states, self.num_symbols), torch.inf, dtype=torch.float64)

    @property
    def options(self) -> dict[str, Any]:
        """Options of `initialize` that give laws of the same shape."""
        return {}

    @property
    def num_mixture_components(self) -> int:
        """Laws whose mixture is that of an observation."""
        return self.num_states

    # -- what all families have

    @property
    def num_parameters(self) -> int:
        """Free numbers of all laws together, the chain apart."""
        return sum(self.num_free({}).values())

    @property
    def positive(self) -> dict[str, Bool[Tensor, "..."]]:
        """Return the mask of positive entries of each array of probabilities."""
        tensors = self.file_tensors()
        return {name: tensors[name] > 0 for name in self.probability_arrays}

    def rows_of(self, name: str, array: Tensor) -> Sequence[Tensor]:
        """Split an array of probabilities into parts whose rows sum to one."""
        return [array]

    def restricted(self, positive: Mapping[str, Bool[Tensor, "..."]]) -> Self:
        """Return the same with zeros wherever `positive` is false; an array that loses nothing keeps its bits."""
        tensors, found = self.file_tensors(), {}
        for name, allowed in positive.items():
            if bool((~allowed & (tensors[name] > 0)).any()):
                pairs = zip(self.rows_of(name, tensors[name]), self.rows_of(name, allowed), strict=True)
                parts = [torch.from_numpy(restricted(own.numpy(), where.numpy())) for own, where in pairs]
                found[name] = torch.cat(parts, -1)
        return self.replaced(**found) if found else self

    def replaced(self, **arrays: Any) -> Self:
        """The same with other arrays."""
        texts = {name: text for name, text in self.file_texts().items() if name not in ("evaluated_after", "reading")}
        return type(self)(**(self.file_tensors() | arrays | texts))

    @property
    def num_coordinates(self) -> int:
        """Coordinates of an observation, which every process calls `num_symbols`."""
        return self.num_symbols

    def vectors_of(self, observations: object) -> Float64[Tensor, "batch time coordinate"]:
        """Observations (batch, time, coordinate), or one sequence (time, coordinate), checked; NaN is missing."""
        return self.checked(as_vectors(observations, self.num_symbols)[0])

    def observe(self, observations: Tensor, *, reset_mask: object = None) -> ObserverOutput:
        """By the forward filter: the law "belief" of the states; of an observation the mean is predicted."""
        logs = self.log_likelihoods(self.vectors_of(observations))
        found = filter_states(self.chain, logs, reset_mask=reset_mask)
        ahead = self.following(found.beliefs)
        return ObserverOutput(
            found.predicted @ self.means, ahead, found.log_likelihood_terms, {"belief": found.beliefs}
        )

    def following(self, beliefs: Tensor) -> Tensor:
        return beliefs @ self.transition @ self.means

    def smooth(self, observations: Tensor, *, reset_mask: object = None) -> Float64[Tensor, "batch time state"]:
        return smooth_states(self.chain, self.log_likelihoods(self.vectors_of(observations)), reset_mask=reset_mask)

    def viterbi(self, observations: Tensor, *, reset_mask: object = None) -> tuple[Tensor, Tensor]:
        found = viterbi_states(self.chain, self.log_likelihoods(self.vectors_of(observations)), reset_mask=reset_mask)
        return found.states, found.log_probability

    def sample_posterior_paths(
        self, observations: Tensor, *, num_paths: int, seed: int, reset_mask: object = None
    ) -> Tensor:
        logs = self.log_likelihoods(self.vectors_of(observations))
        return draw_states(self.chain, logs, num_paths=num_paths, seed=seed, reset_mask=reset_mask)

    def sample_paths(
        self, indices: NDArray[np.int64], reset_mask: NDArray[np.bool_], seed: int, stream: str = "corpus"
    ) -> SampledPaths:
        """As for every process, from 1 + `num_draws` uniform numbers an observation; floats, whose last bits are the
        platform's."""
        drawn_BTK = torch.from_numpy(
            self.uniforms(check_samples(indices), len(reset_mask), seed, stream, 1 + self.num_draws)
        )
        states_BT = torch.zeros(drawn_BTK.shape[:2], dtype=torch.int64)
        first_S, moves_SS = self.initial.cumsum(0), self.transition.cumsum(1)
        last_S = (moves_SS < moves_SS[:, -1:]).sum(1)  # the last state that can be reached
        for t, begins in enumerate(reset_mask):
            rows = first_S if begins else moves_SS[states_BT[:, t - 1]]
            most = (first_S < first_S[-1]).sum() if begins else last_S[states_BT[:, t - 1]]
            states_BT[:, t] = torch.minimum((rows <= drawn_BTK[:, t, :1]).sum(1), most)
        return SampledPaths(self.emit(states_BT, drawn_BTK[..., 1:]), states_BT, None)

    @cached_property
    def occupancy(self) -> Float64[Tensor, "state"]:
        """Share of the first 64 observations that each state emits."""
        laws = [self.initial]
        for _ in range(_HORIZON - 1):
            laws.append(laws[-1] @ self.transition)
        return torch.stack(laws).mean(0)

    @cached_property
    def _scale(self) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation of a coordinate over the first observations."""
        visits_S = self.occupancy
        mean_Y = visits_S @ self.means
        return mean_Y, (visits_S @ (self.variances + (self.means - mean_Y).square())).sqrt()

    @property
    def scale(self) -> tuple[Float64[Tensor, "coordinate"], Float64[Tensor, "coordinate"]]:
        """Mean and standard deviation of each coordinate over the first 64 observations."""
        return self._scale

    @cached_property
    def params_digest(self) -> str:
        """sha256 of the kind, its sizes and its numbers, each to 40 bits: the last ones are the platform's."""
        header = [self.file_format, self.num_states, self.num_symbols, self._shape_texts()]
        sha = hashlib.sha256(f"hmmscope-process/1/{json.dumps(header)}".encode())
        for tensor in self.file_tensors().values():
            mantissa, exponent = np.frexp(tensor.numpy())
            sha.update(np.rint(mantissa * 2.0**40).astype("<i8").tobytes() + exponent.astype("<i4").tobytes())
        return sha.hexdigest()

    def _shape_texts(self) -> dict[str, Any]:
        """Texts of a file that say what the arrays are."""
        return {}

    @classmethod
    def from_file(cls, data: Mapping[str, Any], *, allow_drop_tiny: bool = False) -> Self:
        names = {name: data[name] for name in cls.file_fields if name != "reading" and data.get(name) is not None}
        found = cls(**{name: data[name] for name in cls.file_arrays}, **names)
        found.read_options = ReadOptions.of_file(data)
        return found

    # -- what is said of it

    def describe(self) -> str:
        count = self.num_symbols
        said = f"{self.num_states:,} state{'s' * (self.num_states != 1)}, {count} coordinate{'s' * (count != 1)}"
        return f"{self.title}, {said}" if self.title else said

    def __repr__(self) -> str:
        title = f", title={self.title!r}" if self.title else ""
        return f"{type(self).__name__}(num_states={self.num_states}, num_coordinates={self.num_symbols}{title})"

    def card(self) -> list[str]:
        """What each state does: how often it starts, what it emits, and where it goes."""
        states = tuple(map(in_brief, self.states or (f"state {s}" for s in range(self.num_states))))
        lines = []
        for s, state in enumerate(states):
            order = descending(self.transition[s].tolist())[:3]
            then = ", ".join(
                f"{states[j]} {steady(float(self.transition[s, j])):.3f}" for j in order if self.transition[s, j] > 0
            )
            starts = f"starts {steady(float(self.initial[s])):.3f}"
            lines.append(f"  {state:<16} {starts}; emits {self._emits(s)}; then {then}")
        return lines

    def _emits(self, state: int) -> str:
        """The mean of each coordinate and its standard deviation, of the first six."""
        pairs = zip(self.means[state].tolist(), self.variances[state].sqrt().tolist(), strict=True)
        said = [f"{steady(mean):.4g} ± {steady(deviation):.3g}" for mean, deviation in pairs]
        return ", ".join(said[:6]) + ", ..." * (len(said) > 6)

    def _tables(self) -> list[tuple[str, list[str], list[str], Tensor]]:
        states = brief_names(self.states, self.num_states, "state ")
        return [("starts in", [""], states, self.initial[None]), ("from, to", states, states, self.transition)]

    def __str__(self) -> str:
        """The line of `repr`, the chain, and what each state emits."""
        lines = [line for table in self._tables() for line in as_text(*table)]
        states = brief_names(self.states, self.num_states, "state ")
        wide = max(map(len, ("emits", *states)))
        emitted = [f"  {state:<{wide}}  {self._emits(s)}" for s, state in enumerate(states[:40])]
        more = [f"  and {self.num_states - 40} more states"] * (self.num_states > 40)
        return "\n".join([in_a_line(repr(self)), *lines, "  emits (mean ± standard deviation)", *emitted, *more])

    def _repr_html_(self) -> str:
        return "".join([super()._repr_html_(), *(as_html(*table) for table in self._tables())])

    def facts(self) -> list[tuple[str, str]]:
        """The stationary law, where there is one, and how fast the chain alone forgets."""
        said = []
        try:
            law = ", ".join(f"{steady(share):z.6f}" for share in stationary_law(self.transition)[:8].tolist())
            said.append(("stationary law", law + ", ..." * (self.num_states > 8)))
        except InputError:
            said.append(("stationary law", "not unique"))
        if self.num_states > 1:
            second = float(torch.linalg.eigvals(self.transition).abs().sort().values[-2])
            said.append(("2nd eigenvalue", f"{steady(second):z.6f} in modulus, of the transitions"))
        return said
