"""What every process offers: exact sampling by (seed, purpose, sample), sizes, and a digest."""

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
from hmmscope.reprs import html_table
from hmmscope.seeds import philox_key
from hmmscope.sequences.encoding import Alphabet
from hmmscope.sequences.read_options import ReadOptions
from hmmscope.text import in_brief

#: Of files of processes, and what in them is no part of the law.
FILE_VERSION = 1
_TITLES = ("title", "source", "symbols", "states")
_kinds: dict[str, type["Process"]] = {}


class SampledPaths(NamedTuple):
    """Sampled hidden and visible paths: symbols and state numbers, or vectors of a linear process."""

    observations: Int64[Tensor, "batch time"] | Float64[Tensor, "batch time observed"]
    states: Int64[Tensor, "batch time"] | Float64[Tensor, "batch time hidden"]
    components: Int64[Tensor, "batch"] | None


class Process(ABC):
    """A probability distribution over observation sequences.

    A subclass defines `num_states`, `num_symbols` and `file_format`, and either `params`, from which it is sampled and
    `hmmscope.inference` computes what `uses_hmm_inference` lists, or `sample_paths`, and `observe` if its predictions are
    known. The methods below (`smooth`, `viterbi`, ...) are optional capabilities; a missing one raises an error that lists
    the processes that have it. `file_tensors` and `from_file` save and load it.

    Attributes:
        num_states, num_symbols: S and V; V is the number of coordinates of real-valued observations.
        uses_hmm_inference: capabilities that inference computes from `params`.
        group: the name in errors of classes with the same capabilities.
        real_valued: whether observations are real vectors instead of symbols.
        default_target: the target of training by default: "observation" or "belief".
        no_optimum_reason, suggestion: why the optimal predictions are unknown, and what to use instead; for errors.
        data: the recorded sequences that samples are windows of, or None.
        component_weights: probabilities of the components, (1,) for a single process.
        params: initial distribution and transitions of every component, multiples of 2^-32.
        evaluated_after: the only symbol after which predictions are evaluated, or None.
        prior, header_format: the process that the optimum assumes, if another; the format of headers; or None.
        symbols, states: names, or None.
        title, about, source: short name, description and origin; not part of any digest.
        read_options: how the sequences of a fitted process were read, or None; "reading" in files; not part of any digest.
        file_format: the format name in files; `hmmscope.load_process` reads files of each subclass that defines one.
        stored_name: the fixed name of this class in configurations; by default the name of the class.
        file_arrays, file_fields: the required arrays and optional fields of such a file.
    """

    file_format: ClassVar[str] = ""
    stored_name: ClassVar[str] = "Process"
    file_arrays: ClassVar[tuple[str, ...]] = ()
    file_fields: ClassVar[tuple[str, ...]] = ("symbols", "states", "title", "source", "evaluated_after")
    uses_hmm_inference: ClassVar[frozenset[str]] = frozenset()
    group: ClassVar[str] = ""
    real_valued: ClassVar[bool] = False
    default_target: ClassVar[str] = "observation"
    no_optimum_reason: ClassVar[str | None] = None
    suggestion: ClassVar[str] = ""

    num_states: int
    num_symbols: int
    data: Any = None
    evaluated_after: int | None = None
    prior: PriorProcess | None = None
    header_format: HeaderFormat | None = None
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
                raise InputError(f"file_format: {name!r} is that of {other.__name__} already; choose another name")
            _kinds[name] = cls  # defined again, as in a notebook

    @cached_property
    def component_weights(self) -> Float64[Tensor, "component"]:
        return torch.ones(1, dtype=torch.float64)

    @cached_property
    def params(self) -> HMMParams:
        """The arrays of finitely many states; InputError where a process has none."""
        raise InputError(f"process: a {type(self).__name__} has no matrices of finitely many states")

    @classmethod
    def capabilities(cls) -> frozenset[str]:
        """What is known exactly: from the law, or by methods of its own."""
        methods = {n for n, names in OWN.items() if any(getattr(cls, m) is not getattr(Process, m) for m in names)}
        return cls.uses_hmm_inference | methods

    def require_capability(self, capability: str, option: str = "") -> None:
        """InputError with the kinds that know what is asked for, unless it is answered; `option` is what needs it."""
        if capability not in self.capabilities():
            raise self.missing_capability_error(capability, option)

    def missing_capability_error(self, capability: str, option: str = "") -> InputError:
        """The error that says what it does not know, and which kinds do; or that inference has it from the law."""
        if capability in self.uses_hmm_inference:
            function = BY_PARAMS.get(capability, "hmmscope.inference")
            return InputError(f"process: of {type(self).__name__} {capability} come from its law: {function}")
        kinds()
        named = (kind for kind in _below(Process) if vars(kind).get("file_format") and kind.__name__[0] != "_")
        having = sorted({kind.group or kind.__name__ for kind in named if capability in kind.capabilities()})
        which = f"; {', '.join(having)} {'has' if len(having) == 1 else 'have'}" if having else ""
        why = f" ({self.no_optimum_reason})" if self.no_optimum_reason and capability == PREDICTIONS else ""
        instead = f"; {self.suggestion}" if self.suggestion else ""
        needed = f"{option} needs {capability}, and " if option else ""
        what = "none" if option else f"no {capability}"
        return InputError(f"process: {needed}{type(self).__name__} has {what}{why}{which}{instead}")

    def observe(self, observations: Tensor, *, reset_mask: object = None) -> ObserverOutput:
        """What the observer knows who knows the process, but not what is hidden.

        `hmmscope.observe` asks it of kinds that have no law of finitely many states, and answers itself for the others.

        Args:
            observations: symbols (batch, time), checked to be of this process, or vectors (batch, time, coordinate).
            reset_mask: mask (time,), true where a new sequence begins, or None; the first is true.
        """
        raise self.missing_capability_error(PREDICTIONS)

    def smooth(self, observations: Tensor, *, reset_mask: object = None) -> Float64[Tensor, "batch time state"]:
        """P(state t | all observations)."""
        raise self.missing_capability_error(SMOOTHING)

    def viterbi(self, observations: Tensor, *, reset_mask: object = None) -> tuple[Tensor, Tensor]:
        """The likeliest states (batch, time), and their joint log-probability with the observations (batch,), nats."""
        raise self.missing_capability_error(PATHS)

    def sample_posterior_paths(
        self, observations: Tensor, *, num_paths: int, seed: int, reset_mask: object = None
    ) -> Tensor:
        """Draws of the hidden states given all observations (path, batch, time)."""
        raise self.missing_capability_error(PATHS)

    def fixed_memory_predictions(self, observations: Tensor, memory_length: int) -> ObserverOutput:
        """`observe` by an observer who keeps the last `memory_length` observations."""
        raise self.missing_capability_error(MEMORY)

    def mixing_time(self) -> float:
        """Steps after which an observer has forgotten where it began."""
        raise self.missing_capability_error(MIXING)

    def vectors(self, observations: Tensor, *, reset_mask: object = None) -> Float64[Tensor, "batch time dimension"]:
        """The vector that the observations have driven so far."""
        raise self.missing_capability_error(VECTORS)

    def driving_matrices(
        self,
    ) -> tuple[Float64[Tensor, "symbol dimension dimension"], Float64[Tensor, "dimension"], bool]:
        """One matrix a symbol that acts on columns, the vector before the first, and whether symbols tell where it is."""
        raise self.missing_capability_error(DRIVING)

    def card(self) -> list[str]:
        """What it is made of, in lines for readers; `hmmscope show` prints them."""
        return []

    def facts(self) -> list[tuple[str, str]]:
        """(name, value) of what follows without data, for readers; `hmmscope infer` prints it."""
        return []

    def facts_data(self) -> dict[str, Any]:
        """The same as plain data, for files."""
        return dict(self.facts())

    def component(self, number: int) -> "Process":
        """A component, as a process of its own."""
        raise self.missing_capability_error(COMPONENTS)

    def select_components(self, components: Tensor) -> "tuple[Process, Tensor] | None":
        """A mixture that holds these components of samples, and their numbers in it; None where samples draw none."""
        return None

    def subsample_components(self, count: int) -> "Process | None":
        """A mixture of at most `count` of the components that samples draw; None where they draw none."""
        return None

    def encode_header(self, components: Tensor) -> Int64[Tensor, "batch entry"]:
        """The header of each of these components; `decode_header` is its inverse."""
        raise self.missing_capability_error(HEADERS)

    def decode_header(self, entries: Tensor) -> "Process":
        """What headers (batch, entry) tell, as a mixture of one component a sample."""
        raise self.missing_capability_error(HEADERS)

    def standardize(self, observations: Tensor) -> Tensor:
        """Observations as networks read them: as they are."""
        return observations

    def part(self, stream: str) -> Any:
        """The sequences that a stream takes its windows from; None for a process that draws them."""
        return None

    @property
    def window(self) -> int | None:
        """Observations of a sample where nobody says how many; None if somebody has to."""
        return None

    def num_different(self, stream: str, length: int) -> int | None:
        """How many samples of a stream differ; None for no end."""
        return None

    @property
    def num_components(self) -> int | None:
        """Number of mixture components; None for a single process."""
        return None

    @cached_property
    def alias_tables(self) -> tuple[NDArray[np.uint32], ...]:
        """Integer tables of the component, of the initial law and of the rest of `params.rows`, built on first use."""
        return tuple(alias_tables(drawn_weights(rows)) for rows in (self.component_weights, *self.params.rows()))

    @property
    def has_custom_sampler(self) -> bool:
        """Whether it draws otherwise than by `params`."""
        return type(self).sample_paths is not Process.sample_paths

    @property
    def alphabet(self) -> Alphabet:
        """The symbols as readers and checks take them."""
        return Alphabet(self.symbols, self.num_symbols)

    @cached_property
    def _laws(self) -> dict[torch.device, HMMParams]:
        return {}

    @cached_property
    def _samplers(self) -> dict[torch.device, DeviceSampler]:
        return {}

    def params_on(self, device: torch.device) -> HMMParams:
        """The law with its arrays on a device, where they stay."""
        if device.type == "cpu":
            return self.params
        if device not in self._laws:
            self._laws[device] = self.params.to(device)
        return self._laws[device]

    @cached_property
    def digest(self) -> str:
        """sha256 of the law, and of the names of symbols and states if there are any. Titles are no part of it."""
        names = {key: getattr(self, key) for key in ("symbols", "states") if getattr(self, key) is not None}
        if not names:
            return self.params_digest
        text = json.dumps(names, ensure_ascii=False, separators=(",", ":"))
        return hashlib.sha256(f"hmmscope-names/1/{self.params_digest}/{text}".encode()).hexdigest()

    @cached_property
    def params_digest(self) -> str:
        """sha256 of form, sizes and integer weights, little-endian: what the numbers of a sample depend on.

        Of a kind without a law, of what its files hold.
        """
        if "params" not in vars(self) and type(self).params is Process.params:
            texts = {name: text for name, text in self.file_texts().items() if name not in _TITLES}
            header = json.dumps([self.file_format, self.num_states, self.num_symbols, texts], ensure_ascii=False)
            return float_digest(f"hmmscope-process/1/{header}", *self.file_tensors().values())
        sizes = f"{self.num_states}/{self.num_symbols}"
        sha = hashlib.sha256(f"hmmscope-process/1/{self.params.digest_name}/{sizes}".encode())
        for rows in (self.component_weights, *self.params.rows()):
            sha.update(integer_weights(rows).astype("<i8").tobytes())
        return sha.hexdigest()

    def file_texts(self) -> dict[str, Any]:
        """What a file holds beside the arrays: names, texts and other plain data that differ from their defaults."""
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
        """The arrays that a file of this process holds, by name: its attributes called as `file_arrays` says.

        Raises:
            InputError: a kind of process that has no file.
        """
        if not self.file_format:
            raise InputError(f"path: a {type(self).__name__} cannot be saved")
        return {name: getattr(self, name) for name in self.file_arrays}

    @classmethod
    def from_file(cls, data: Mapping[str, Any], *, allow_drop_tiny: bool = False) -> "Process":
        """The process from the arrays, names and texts of a file: made of the arrays, in the order of `file_arrays`."""
        return cls(*(torch.as_tensor(data[name]) for name in cls.file_arrays))

    def save(self, path: object) -> None:
        """Write to `path`, as JSON, NPZ or safetensors by its ending; refused if it exists.

        `hmmscope.load_process` finds the same bits again.
        """
        header = {"format": self.file_format, "version": FILE_VERSION, **self.file_texts()}
        write_file(Path(str(path)), header | ({"about": self.about} if self.about else {}), self.file_tensors())

    def describe(self) -> str:
        """A line for readers: the title, and how many components, states and symbols there are."""
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
        """Component (B,) of each sample index (B,); zeros for a single process."""
        if self.num_components is None:
            return np.zeros(len(indices), np.int64)
        return cpu.sample_components(philox_key(seed, stream), indices, self.alias_tables[0])

    def uniforms(
        self, indices: NDArray[np.int64], time: int, seed: int, stream: str = "corpus", count: int = 1
    ) -> NDArray[np.float64]:
        """Uniform numbers (batch, time, count) in [0, 1) by (seed, stream, sample, time): what a sampler is made of.

        Raises:
            InputError: sample numbers outside [0, 2^40).
        """
        return uniforms(philox_key(seed, stream), check_samples(indices), time, count)

    def sample_paths(
        self, indices: NDArray[np.int64], reset_mask: NDArray[np.bool_], seed: int, stream: str = "corpus"
    ) -> SampledPaths:
        """Sample number `indices[b]` of the stream, the same bits on every device, in any order and batch.

        Args:
            indices: sample numbers (B,) in [0, 2^40).
            reset_mask: (T,), true where a new sequence of the same component begins; `reset_mask[0]` is true.
            seed: in [0, 2^32).
            stream: a purpose of `seeds.PURPOSES`; streams of one seed are independent.
        """
        check_samples(indices)
        components = self.sample_components(indices, seed, stream)
        observations, states = self.params.sample(
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
        self, samples: Int64[Tensor, "batch"], reset_mask: NDArray[np.bool_], seed: int, stream: str = "corpus"
    ) -> SampledPaths:
        """`sample_paths` on the device of the sample numbers, the same bits: nothing is copied from the host.

        The tables go to the device at the first call and stay. Processes with a sampler of their own (vectors, a fresh
        HMM for every sample) draw on the processor and are copied.

        Args:
            samples: sample numbers (B,) in [0, 2^40), which is not checked on a GPU.
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
    """The numbers of samples; InputError unless they are in [0, 2^40)."""
    if indices.size and (indices.min() < 0 or indices.max() >= MAX_SAMPLES):
        raise InputError(f"indices: samples are numbered from 0 to 2^40 - 1, got {indices.min()}..{indices.max()}")
    return indices


def kinds() -> dict[str, type[Process]]:
    """The kinds of process that have files, by what these call themselves: ours, and those of other packages."""
    registry.entries("process")  # imports the modules that define them
    return dict(sorted(_kinds.items()))


def _below(kind: type[Process]) -> Iterator[type[Process]]:
    for one in kind.__subclasses__():
        yield one
        yield from _below(one)
