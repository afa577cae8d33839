"""The base class of processes."""

import hashlib
import json
from abc import ABC
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from hmmscope import registry
from hmmscope.axes import Float64, Int64, Tensor
from hmmscope.errors import InputError
from hmmscope.kernels import cpu
from hmmscope.kernels.alias import alias_tables
from hmmscope.kernels.device_samplers import DeviceSampler, device_sampler
from hmmscope.kernels.philox import MAX_SAMPLES
from hmmscope.kernels.random_arrays import uniforms
from hmmscope.processes.capabilities import (
    BY_PARAMS,
    COMPONENTS,
    DRIVING,
    HEADERS,
    MEMORY,
    MIXING,
    OWN,
    PATHS,
    PREDICTIONS,
    SMOOTHING,
    VECTORS,
    HeaderFormat,
    ObserverOutput,
    PriorProcess,
)
from hmmscope.processes.formats import write_file
from hmmscope.processes.integer_rows import drawn_weights, integer_weights
from hmmscope.processes.orthogonal import float_digest
from hmmscope.processes.params import HMMParams
from hmmscope.processes.state_methods import StateMethods
from hmmscope.reprs import html_table
from hmmscope.seeds import philox_key
from hmmscope.sequences.encoding import Alphabet
from hmmscope.sequences.read_options import ReadOptions
from hmmscope.text import in_brief

#: Version of process files, and the texts that are not hashed into digests.
FILE_VERSION = 1
_TITLES = ("title", "source", "symbols", "states")
_kinds: dict[str, type["Process"]] = {}


class SampledPaths(NamedTuple):
    """Sampled observations (symbols or vectors), hidden states, and each sample's component of a mixture."""

    observations: Int64[Tensor, "batch time"] | Float64[Tensor, "batch time observed"]
    states: Int64[Tensor, "batch time"] | Float64[Tensor, "batch time hidden"]
    components: Int64[Tensor, " batch"] | None


class Process(StateMethods, ABC):
    """A probability distribution over observation sequences.

    A subclass defines `num_states`, `num_symbols` and `file_format`. It also defines either `params`, for sampling
    and inference, or `sample_paths` and, if exact predictions are known, `observe`. Other methods (`smooth`,
    `viterbi`, ...) are optional.

    Attributes:
        num_states, num_symbols: numbers S of states and V of symbols (of coordinates for real-valued observations).
        uses_hmm_inference: capabilities that `hmmscope.inference` computes from `params`.
        group: common name of related classes in error messages, or empty.
        real_valued: True if observations are real vectors.
        observes_gaps: True if `observe` accepts missing observations, which it reads as the symbol V.
        default_target: default training target, "observation", "belief" or "density".
        no_optimum_reason, suggestion: why exact predictions are unknown, and an alternative, for error messages.
        data: recorded sequences if samples are windows of them, else None.
        component_weights: probabilities of the components; (1,) for a single process.
        params: parameter arrays, whose entries are multiples of 2^-32.
        evaluated_after: the only symbol after which predictions are evaluated, or None.
        prior: `PriorProcess` that the Bayes-optimal predictor assumes, or None for this process.
        header_format: sizes of the headers that `encode_header` returns, or None.
        symbols, states: names of the symbols and states, or None.
        num_inputs: number of inputs that observations depend on, or None.
        visits: states and their durations, if the process's own states are pairs (state, remaining steps); else None.
        title, about, source: descriptions, which do not affect the digest.
        read_options: options with which the data of a fit were read, or None.
        file_format: format name in files.
        stored_name: class name in stored configurations, which never changes.
        file_arrays, file_fields: required arrays and optional fields of a file.
    """

    file_format: ClassVar[str] = ""
    stored_name: ClassVar[str] = "Process"
    file_arrays: ClassVar[tuple[str, ...]] = ()
    file_fields: ClassVar[tuple[str, ...]] = ("symbols", "states", "title", "source", "evaluated_after")
    uses_hmm_inference: ClassVar[frozenset[str]] = frozenset()
    group: ClassVar[str] = ""
    real_valued: ClassVar[bool] = False
    observes_gaps: ClassVar[bool] = False
    default_target: ClassVar[str] = "observation"
    no_optimum_reason: ClassVar[str | None] = None
    suggestion: ClassVar[str] = ""

    num_states: int
    num_symbols: int
    data: Any = None
    evaluated_after: int | None = None
    prior: PriorProcess | None = None
    header_format: HeaderFormat | None = None
    num_inputs: int | None = None
    visits: Any = None
    symbols: tuple[str, ...] | None = None
    states: tuple[str, ...] | None = None
    read_options: ReadOptions | None = None
    title: str = ""
    source: str = ""
    about: str = ""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls.stored_name = vars(cls).get("stored_name", cls.__name__)
        if name := vars(cls).get("file_format"):
            other = _kinds.setdefault(name, cls)
            if (other.__module__, other.__qualname__) != (cls.__module__, cls.__qualname__):
                raise InputError(f"file_format: {name!r} is already used by {other.__name__}; choose another name")
            _kinds[name] = cls  # redefined, as in a notebook

    @cached_property
    def component_weights(self) -> Float64[Tensor, "component"]:
        return torch.ones(1, dtype=torch.float64)

    @cached_property
    def params(self) -> HMMParams:
        """The parameter arrays; raises InputError if the process does not have finitely many states."""
        instead = f"; {self.suggestion}" if self.suggestion else ""
        raise InputError(f"process: {type(self).__name__} has no finite state matrices{instead}")

    @classmethod
    def capabilities(cls) -> frozenset[str]:
        """Return the names of the quantities that `params` or methods of the class compute exactly."""
        methods = {n for n, names in OWN.items() if any(getattr(cls, m) is not getattr(Process, m) for m in names)}
        return cls.uses_hmm_inference | methods

    def require_capability(self, capability: str, option: str = "") -> None:
        """Raise InputError if the process lacks the capability; the message names `option`."""
        if capability not in self.capabilities():
            raise self.missing_capability_error(capability, option)

    def missing_capability_error(self, capability: str, option: str = "") -> InputError:
        """Return the InputError for a missing capability; its message names alternatives."""
        if capability in self.uses_hmm_inference:
            function = BY_PARAMS.get(capability, "hmmscope.inference")
            return InputError(f"process: {type(self).__name__} cannot compute {capability} itself; call {function}")
        kinds()
        named = (kind for kind in _below(Process) if vars(kind).get("file_format") and kind.__name__[0] != "_")
        having = sorted({kind.group or kind.__name__ for kind in named if capability in kind.capabilities()})
        which = f"; supported by {', '.join(having)}" if having else ""
        why = f" ({self.no_optimum_reason})" if self.no_optimum_reason and capability == PREDICTIONS else ""
        instead = f"; {self.suggestion}" if self.suggestion else ""
        needed = f"{option} needs {capability}, but " if option else ""
        what = "none" if option else f"no {capability}"
        return InputError(f"process: {needed}{type(self).__name__} has {what}{why}{which}{instead}")

    def observe(self, observations: Tensor, *, reset_mask: object = None) -> ObserverOutput:
        """Compute the predictions and beliefs of the Bayes-optimal predictor.

        Args:
            observations: valid symbols (batch, time), or vectors (batch, time, coordinate).
            reset_mask: (time,), True where a new sequence starts (`reset_mask[0]` is True), or None.
        """
        raise self.missing_capability_error(PREDICTIONS)

    def smooth(self, observations: Tensor, *, reset_mask: object = None) -> Float64[Tensor, "batch time state"]:
        """Compute P(state t | all observations)."""
        raise self.missing_capability_error(SMOOTHING)

    def viterbi(self, observations: Tensor, *, reset_mask: object = None) -> tuple[Tensor, Tensor]:
        """Return the Viterbi path (batch, time) and its joint log-probability (batch,), nats."""
        raise self.missing_capability_error(PATHS)

    def sample_posterior_paths(
        self, observations: Tensor, *, num_paths: int, seed: int, reset_mask: object = None
    ) -> Tensor:
        """Sample hidden paths given all observations, shape (path, batch, time)."""
        raise self.missing_capability_error(PATHS)

    def fixed_memory_predictions(self, observations: Tensor, memory_length: int) -> ObserverOutput:
        """Compute predictions from the last `memory_length` observations only."""
        raise self.missing_capability_error(MEMORY)

    def mixing_time(self) -> float:
        """Return the mixing time in steps, see `hmmscope.mixing_time`."""
        raise self.missing_capability_error(MIXING)

    def vectors(self, observations: Tensor, *, reset_mask: object = None) -> Float64[Tensor, "batch time dimension"]:
        """Compute the vector after each observation, if symbols multiply a vector by matrices."""
        raise self.missing_capability_error(VECTORS)

    def driving_matrices(
        self,
    ) -> tuple[Float64[Tensor, "symbol dimension dimension"], Float64[Tensor, " dimension"], bool]:
        """Return matrices A_v (vector <- A_v @ vector), the initial vector, and True if symbols depend on the state."""
        raise self.missing_capability_error(DRIVING)

    def card(self) -> list[str]:
        """Return lines of text that describe the process."""
        return []

    def facts(self) -> list[tuple[str, str]]:
        """Return names and values of exact properties, such as the mixing time."""
        return []

    def facts_data(self) -> dict[str, Any]:
        """Return the properties of `facts` as plain data."""
        return dict(self.facts())

    def component(self, number: int) -> "Process":
        """Return one component of a mixture."""
        raise self.missing_capability_error(COMPONENTS)

    def select_components(self, components: Tensor) -> "tuple[Process, Tensor] | None":
        """Return a mixture that contains `components`, and the index of each in it; None for a single process."""
        return None

    def subsample_components(self, count: int) -> "Process | None":
        """Return a mixture of at most `count` components; None for a single process."""
        return None

    def encode_header(self, components: Tensor) -> Int64[Tensor, "batch entry"]:
        """Encode the parameters of each component as integers (a header)."""
        raise self.missing_capability_error(HEADERS)

    def decode_header(self, entries: Tensor) -> "Process":
        """Decode headers (batch, entry) into a mixture, one component for each sample."""
        raise self.missing_capability_error(HEADERS)

    def standardize(self, observations: Tensor) -> Tensor:
        """Return observations, centred and scaled for networks."""
        return observations

    def part(self, stream: str) -> Any:
        """Return the recorded sequences from which samples of `stream` are cut; None for other processes."""
        return None

    @property
    def window(self) -> int | None:
        """Default sample length; None if there is no default."""
        return None

    def num_different(self, stream: str, length: int) -> int | None:
        """Return the number of distinct samples in a stream, None if unlimited."""
        return None

    @property
    def num_components(self) -> int | None:
        """Number of mixture components; None for a single process."""
        return None

    @cached_property
    def alias_tables(self) -> tuple[NDArray[np.uint32], ...]:
        """Alias tables for sampling components and paths."""
        return tuple(alias_tables(drawn_weights(rows)) for rows in (self.component_weights, *self.params.rows()))

    @property
    def has_custom_sampler(self) -> bool:
        """True if the class overrides `sample_paths`."""
        return type(self).sample_paths is not Process.sample_paths

    @property
    def alphabet(self) -> Alphabet:
        """The alphabet of symbols."""
        return Alphabet(self.symbols, self.num_symbols, read_options=self.read_options)

    @cached_property
    def _laws(self) -> dict[torch.device, HMMParams]:
        return {}

    @cached_property
    def _samplers(self) -> dict[torch.device, DeviceSampler]:
        return {}

    def params_on(self, device: torch.device) -> HMMParams:
        """Return `params` on a device."""
        if device.type == "cpu":
            return self.params
        if device not in self._laws:
            self._laws[device] = self.params.to(device)
        return self._laws[device]

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the distribution and the names of symbols and states."""
        names = {key: getattr(self, key) for key in ("symbols", "states") if getattr(self, key) is not None}
        if not names:
            return self.params_digest
        text = json.dumps(names, ensure_ascii=False, separators=(",", ":"))
        return hashlib.sha256(f"hmmscope-names/1/{self.params_digest}/{text}".encode()).hexdigest()

    @cached_property
    def params_digest(self) -> str:
        """SHA-256 of class, sizes and 2^32 * probabilities (little-endian); without `params`, of the saved content."""
        if "params" not in vars(self) and type(self).params is Process.params:
            texts = {name: text for name, text in self.file_texts().items() if name not in (*_TITLES, "reading")}
            header = json.dumps([self.file_format, self.num_states, self.num_symbols, texts], ensure_ascii=False)
            return float_digest(f"hmmscope-process/1/{header}", *self.file_tensors().values())
        sizes = f"{self.num_states}/{self.num_symbols}"
        sha = hashlib.sha256(f"hmmscope-process/1/{self.params.digest_name}/{sizes}".encode())
        for rows in (self.component_weights, *self.params.rows()):
            sha.update(integer_weights(rows).astype("<i8").tobytes())
        return sha.hexdigest()

    def file_texts(self) -> dict[str, Any]:
        """Return the texts and other plain data to write to a file."""
        attribute = {"reading": "read_options"}
        texts = (name for name in self.file_fields if name not in self.file_tensors())
        found = {name: getattr(self, attribute.get(name, name), None) for name in texts}
        return {
            name: list(value)
            if isinstance(value, tuple)
            else value.to_data()
            if isinstance(value, ReadOptions)
            else value
            for name, value in found.items()
            if value is not None
        }

    def file_tensors(self) -> dict[str, Tensor]:
        """Return the arrays to write to a file.

        Raises:
            InputError: the process cannot be saved.
        """
        if not self.file_format:
            raise InputError(f"path: {type(self).__name__} has no file format and cannot be saved")
        return {name: getattr(self, name) for name in self.file_arrays}

    @classmethod
    def from_file(cls, data: Mapping[str, Any], *, allow_drop_tiny: bool = False) -> "Process":
        """Build the process from file data."""
        return cls(*(torch.as_tensor(data[name]) for name in cls.file_arrays))

    def save(self, path: object) -> None:
        """Write the process to a new .json, .npz or .safetensors file, which `load_process` restores bit for bit."""
        header = {"format": self.file_format, "version": FILE_VERSION, **self.file_texts()}
        write_file(Path(str(path)), header | ({"about": self.about} if self.about else {}), self.file_tensors())

    def describe(self) -> str:
        """Return title and sizes in one line."""
        counts = {"component": self.num_components, "state": self.num_states, "symbol": self.num_symbols}
        said = [f"{count:,} {name}{'s' * (count != 1)}" for name, count in counts.items() if count]
        return ", ".join([self.title, *said] if self.title else said)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(num_states={self.num_states}, num_symbols={self.num_symbols})"

    def _repr_html_(self) -> str:
        sizes = {"states": self.num_states, "components": self.num_components, "symbols": self.num_symbols}
        few = {f"names of {kind}": (getattr(self, kind) or ())[:20] for kind in ("symbols", "states")}
        names = {kind: ", ".join(map(in_brief, found)) for kind, found in few.items()}
        facts = {"kind": type(self).__name__, "title": self.title} | sizes | names | {"digest": self.digest[:12]}
        return html_table(repr(self).partition("(")[0], {k: x for k, x in facts.items() if x not in (None, "")})

    def sample_components(self, indices: NDArray[np.int64], seed: int, stream: str) -> NDArray[np.int64]:
        """Sample the component (B,) of each sample; zeros for a single process."""
        if self.num_components is None:
            return np.zeros(len(indices), np.int64)
        return cpu.sample_components(philox_key(seed, stream), indices, self.alias_tables[0])

    def uniforms(
        self, indices: NDArray[np.int64], time: int, seed: int, stream: str = "corpus", count: int = 1
    ) -> NDArray[np.float64]:
        """Return uniform numbers (batch, time, count) in [0, 1), as functions of (seed, stream, sample, time).

        Raises:
            InputError: a sample number is outside [0, 2^40).
        """
        return uniforms(philox_key(seed, stream), check_samples(indices), time, count)

    def sample_paths(
        self, indices: NDArray[np.int64], reset_mask: NDArray[np.bool_], seed: int, stream: str = "corpus"
    ) -> SampledPaths:
        """Draw the samples `indices` of a stream; a sample does not depend on device, order or batch.

        Args:
            indices: sample numbers (B,) in [0, 2^40).
            reset_mask: (T,), True where a new sequence of the same component starts; `reset_mask[0]` is True.
            seed: seed in [0, 2^32).
            stream: name in `seeds.PURPOSES`; streams of a seed are independent.
        """
        check_samples(indices)
        components = self.sample_components(indices, seed, stream)
        observations, states = cpu.sample_paths(
            philox_key(seed, stream),
            indices,
            components,
            reset_mask,
            *self.alias_tables[1:],
            num_states=self.num_states,
            num_threads=torch.get_num_threads(),
        )
        return SampledPaths(
            torch.from_numpy(observations),
            torch.from_numpy(states),
            None if self.num_components is None else torch.from_numpy(components),
        )

    def sample_paths_on(
        self, samples: Int64[Tensor, " batch"], reset_mask: NDArray[np.bool_], seed: int, stream: str = "corpus"
    ) -> SampledPaths:
        """Draw the paths of `sample_paths`, bit for bit, on the device of `samples`.

        Args:
            samples: sample numbers (B,) in [0, 2^40), unchecked on a GPU.
            reset_mask, seed, stream: as in `sample_paths`.
        """
        device = samples.device
        if device.type == "cpu" or self.has_custom_sampler:
            paths = self.sample_paths(samples.cpu().numpy(), reset_mask, seed, stream)
            components_there = None if paths.components is None else paths.components.to(device)
            return SampledPaths(paths.observations.to(device), paths.states.to(device), components_there)
        if device not in self._samplers:
            sizes = {"num_states": self.num_states, "num_symbols": self.num_symbols}
            self._samplers[device] = device_sampler(self.alias_tables, **sizes, device=device)
        observations, states, components = self._samplers[device](philox_key(seed, stream), samples, reset_mask)
        return SampledPaths(observations, states, None if self.num_components is None else components)


def check_samples(indices: NDArray[np.int64]) -> NDArray[np.int64]:
    if indices.size and (indices.min() < 0 or indices.max() >= MAX_SAMPLES):
        raise InputError(f"indices: must be in [0, 2^40), got {indices.min()}..{indices.max()}")
    return indices


def kinds() -> dict[str, type[Process]]:
    registry.entries("process")  # imports the modules that define them
    return dict(sorted(_kinds.items()))


def _below(kind: type[Process]) -> Iterator[type[Process]]:
    for one in kind.__subclasses__():
        yield one
        yield from _below(one)
