"""What every process offers: exact sampling by (seed, purpose, sample), sizes, and a digest."""

import hashlib
from abc import ABC
from dataclasses import fields
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from hmmscope.axes import Float64, Int64, Tensor
from hmmscope.errors import InputError
from hmmscope.kernels import cpu
from hmmscope.kernels.alias import alias_tables
from hmmscope.kernels.device import DeviceSampler, device_sampler
from hmmscope.kernels.philox import MAX_SAMPLES
from hmmscope.kernels.quantise import UNIT, quantise_rows
from hmmscope.processes.laws import Law, StateEmitting
from hmmscope.seeds import philox_key

_TENSOR_TYPES = {torch.float32, torch.float64, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64}

#: How far from one a row may sum before it is refused.
ROW_SUM_TOLERANCE = 1e-6


class Paths(NamedTuple):
    """Sampled hidden and visible paths: symbols and state numbers, or vectors of a linear process."""

    observations: Int64[Tensor, "batch time"] | Float64[Tensor, "batch time observed"]
    states: Int64[Tensor, "batch time"] | Float64[Tensor, "batch time hidden"]
    components: Int64[Tensor, "batch"] | None


class Prior(NamedTuple):
    """What the ideal observer of a process believes instead of the process itself.

    Attributes:
        process: where samples come from as far as anybody can know.
        share: probability under it that a sample comes from the part that is observed.
    """

    process: "Process"
    share: float


class Process(ABC):
    """A law of observation sequences whose every probability is an integer multiple of 2^-32.

    Attributes:
        num_states: S.
        num_symbols: V.
        weights_M: law of the component, (1,) for a single process.
        law: initial law and transitions of every component.
        evaluated_after: the symbol after which alone predictions of the next observation are evaluated, or None.
        prior: what the optimum believes where that is not this process, or None.
    """

    num_states: int
    num_symbols: int
    weights_M: Float64[Tensor, "component"]
    law: Law
    evaluated_after: int | None = None
    prior: Prior | None = None

    @property
    def num_components(self) -> int | None:
        """Number of mixture components; None for a single process."""
        return None

    @cached_property
    def alias_tables(self) -> tuple[NDArray[np.uint32], ...]:
        """Integer tables of the component, of the initial law and of the rest of `law.rows`, built on first use."""
        return tuple(alias_tables(integer_weights(rows)) for rows in (self.weights_M, *self.law.rows()))

    @cached_property
    def _laws(self) -> dict[torch.device, Law]:
        return {}

    @cached_property
    def _samplers(self) -> dict[torch.device, DeviceSampler]:
        return {}

    def law_on(self, device: torch.device) -> Law:
        """The law with its arrays on a device, where they stay."""
        if device.type == "cpu":
            return self.law
        if device not in self._laws:
            arrays = (getattr(self.law, field.name).to(device) for field in fields(self.law))
            self._laws[device] = type(self.law)(*arrays)
        return self._laws[device]

    @cached_property
    def digest(self) -> str:
        """sha256 of form, sizes and integer weights, little-endian."""
        form = type(self.law).__name__
        sha = hashlib.sha256(f"hmmscope-process/1/{form}/{self.num_states}/{self.num_symbols}".encode())
        for rows in (self.weights_M, *self.law.rows()):
            sha.update(integer_weights(rows).astype("<i8").tobytes())
        return sha.hexdigest()

    def sample_components(self, indices: NDArray[np.int64], seed: int, stream: str) -> NDArray[np.int64]:
        """Component (B,) of each sample index (B,); zeros for a single process."""
        return cpu.sample_components(philox_key(seed, stream), indices, self.alias_tables[0])

    def sample_paths(
        self, indices: NDArray[np.int64], starts: NDArray[np.bool_], seed: int, stream: str = "corpus"
    ) -> Paths:
        """Sample number `indices[b]` of the stream, the same bits on every device, in any order and batch.

        Args:
            indices: sample numbers (B,) in [0, 2^40).
            starts: (T,), true where a new sequence of the same component begins; `starts[0]` is true.
            seed: in [0, 2^32).
            stream: a purpose of `seeds.PURPOSES`; streams of one seed are independent.
        """
        if indices.size and (indices.min() < 0 or indices.max() >= MAX_SAMPLES):
            raise InputError(f"indices: samples are numbered from 0 to 2^40 - 1, got {indices.min()}..{indices.max()}")
        components = self.sample_components(indices, seed, stream)
        sample = cpu.sample_paths if isinstance(self.law, StateEmitting) else cpu.sample_edges
        observations, states = sample(
            philox_key(seed, stream),
            indices,
            components,
            starts,
            *self.alias_tables[1:],
            num_states=self.num_states,
            num_threads=torch.get_num_threads(),
        )
        return Paths(
            torch.from_numpy(observations),
            torch.from_numpy(states),
            None if self.num_components is None else torch.from_numpy(components),
        )

    def sample_paths_on(
        self, samples: Int64[Tensor, "batch"], starts: NDArray[np.bool_], seed: int, stream: str = "corpus"
    ) -> Paths:
        """`sample_paths` on the device of the sample numbers, the same bits: nothing is copied from the host.

        The tables go to the device at the first call and stay. Processes with a sampler of their own (vectors, a fresh
        HMM for every sample) draw on the processor and are copied.

        Args:
            samples: sample numbers (B,) in [0, 2^40), which is not checked on a GPU.
            starts: as in `sample_paths`.
            seed: as in `sample_paths`.
            stream: as in `sample_paths`.
        """
        device = samples.device
        if device.type == "cpu" or type(self).sample_paths is not Process.sample_paths:
            paths = self.sample_paths(samples.cpu().numpy(), starts, seed, stream)
            components_there = None if paths.components is None else paths.components.to(device)
            return Paths(paths.observations.to(device), paths.states.to(device), components_there)
        if device not in self._samplers:
            sizes = {"num_states": self.num_states, "num_symbols": self.num_symbols}
            self._samplers[device] = device_sampler(self.alias_tables, **sizes, device=device)
        observations, states, components = self._samplers[device](philox_key(seed, stream), samples, starts)
        return Paths(observations, states, None if self.num_components is None else components)


def integer_weights(rows: Float64[Tensor, "*row outcome"]) -> NDArray[np.int64]:
    """Probabilities that are multiples of 2^-32 as integers."""
    return (rows.numpy() * UNIT).astype(np.int64)


def stochastic_rows(
    name: str, rows: object, shape: tuple[int | None, ...], *, allow_drop_tiny: bool = False
) -> tuple[Tensor, float]:
    """Rows checked and quantised to multiples of 2^-32 (largest remainder), and the largest change that this made.

    Args:
        name: the matrix, for messages.
        rows: anything NumPy reads as numbers.
        shape: required shape; None for any size of at least one.
        allow_drop_tiny: round positive probabilities below 2^-32, which sampling cannot express, instead of refusing.

    Raises:
        InputError: wrong shape; an entry that is NaN, infinite, negative; a row that does not sum to one within 1e-6;
            a positive entry below 2^-32 (unless allowed).
    """
    array = as_float64(name, rows)
    require_shape(name, array, shape)
    if array.size == 0:
        raise InputError(f"{name}: is empty; a process has at least one state and one symbol")
    _refuse_first(name, array, ~np.isfinite(array), "is not a finite number")
    _refuse_first(name, array, array < 0, "is negative")
    sums = array.sum(-1)
    if not (good := np.abs(sums - 1) <= ROW_SUM_TOLERANCE).all():
        row = tuple(np.argwhere(~good)[0])
        where = f"{name}{''.join(f'[{i}]' for i in row)}"
        raise InputError(f"{where}: row sums to {sums[row]:.9g}; each row must sum to 1 within {ROW_SUM_TOLERANCE:g}")
    if not allow_drop_tiny:
        tiny = (array > 0) & (array * UNIT < 1)
        _refuse_first(name, array, tiny, "is positive but below 2^-32; set it to 0 or pass allow_drop_tiny")
    quantised = quantise_rows(array) / UNIT
    change = float(np.abs(quantised - array / sums[..., None]).max())
    return torch.from_numpy(quantised), change


def require_shape(name: str, array: NDArray[np.float64], shape: tuple[int | None, ...]) -> None:
    """InputError unless the array has that shape; None stands for any size."""
    if array.ndim != len(shape) or any(want not in (None, got) for want, got in zip(shape, array.shape, strict=True)):
        wanted = " x ".join("any" if size is None else str(size) for size in shape)
        found = " x ".join(map(str, array.shape)) or "a single number"
        raise InputError(f"{name}: must have shape {wanted}, got {found}")


def as_float64(name: str, rows: object) -> NDArray[np.float64]:
    """Lists, arrays or tensors of real numbers in 32 bits or more, as an array; InputError for anything else."""
    if isinstance(rows, torch.Tensor):
        if rows.dtype not in _TENSOR_TYPES:
            raise InputError(f"{name}: must hold real numbers in 32 bits or more, got {rows.dtype}")
        rows = rows.detach().cpu().numpy()
    try:
        array = np.asarray(rows)
    except ValueError:
        raise InputError(f"{name}: rows have different lengths") from None
    if array.dtype.kind not in "iuf" or array.dtype == np.float16:
        raise InputError(f"{name}: must hold real numbers in 32 bits or more, got {array.dtype}")
    return array.astype(np.float64)


def _refuse_first(name: str, array: NDArray[np.float64], bad: NDArray[np.bool_], what: str) -> None:
    if bad.any():
        where = tuple(np.argwhere(bad)[0])
        raise InputError(f"{name}{''.join(f'[{i}]' for i in where)}: {array[where]!s} {what}")
