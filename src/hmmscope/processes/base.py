"""What every process offers: exact sampling by (seed, purpose, sample), sizes, and a digest."""

import dataclasses
import hashlib
from abc import ABC, abstractmethod
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from hmmscope.axes import Int64, Tensor
from hmmscope.errors import InputError
from hmmscope.kernels import cpu
from hmmscope.kernels.alias import alias_tables
from hmmscope.kernels.philox import MAX_SAMPLES
from hmmscope.kernels.quantise import UNIT, quantise_rows
from hmmscope.seeds import philox_key

#: How far from one a row may sum before it is refused.
ROW_SUM_TOLERANCE = 1e-6


class Paths(NamedTuple):
    """Sampled hidden and visible paths."""

    observations: Int64[Tensor, "batch time"]
    states: Int64[Tensor, "batch time"]
    components: Int64[Tensor, "batch"] | None


@dataclasses.dataclass(frozen=True, eq=False)
class AliasTables:
    """Alias tables of a family of HMMs, component first: (M', ), (M, S'), (M, S, S'), (M, S, V'), primes powers of two."""

    component: NDArray[np.uint32]
    initial: NDArray[np.uint32]
    transition: NDArray[np.uint32]
    emission: NDArray[np.uint32]


class Process(ABC):
    """A law of observation sequences whose every probability is an integer multiple of 2^-32."""

    num_states: int
    num_symbols: int

    @property
    def num_components(self) -> int | None:
        """Number of mixture components; None for a single process."""
        return None

    @abstractmethod
    def weights(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Float64 probabilities, component first: (M,), (M, S), (M, S, S), (M, S, V)."""

    @cached_property
    def alias_tables(self) -> AliasTables:
        """Integer tables of `weights`, built on first use."""
        return AliasTables(*(alias_tables((w.numpy() * UNIT).astype(np.int64)) for w in self.weights()))

    @cached_property
    def digest(self) -> str:
        """sha256 of sizes and integer weights, little-endian."""
        sha = hashlib.sha256(f"hmmscope-process/1/{self.num_states}/{self.num_symbols}".encode())
        for w in self.weights():
            sha.update((w.numpy() * UNIT).astype("<i8").tobytes())
        return sha.hexdigest()

    def sample_components(self, indices: NDArray[np.int64], seed: int, stream: str) -> NDArray[np.int64]:
        """Component (B,) of each sample index (B,); zeros for a single process."""
        return cpu.sample_components(philox_key(seed, stream), indices, self.alias_tables.component)

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
        tables, key = self.alias_tables, philox_key(seed, stream)
        components = self.sample_components(indices, seed, stream)
        observations, states = cpu.sample_paths(
            key,
            indices,
            components,
            starts,
            tables.initial,
            tables.transition,
            tables.emission,
            num_threads=torch.get_num_threads(),
        )
        return Paths(
            torch.from_numpy(observations),
            torch.from_numpy(states),
            None if self.num_components is None else torch.from_numpy(components),
        )


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
    array = _as_float64(name, rows)
    if array.ndim != len(shape) or any(want not in (None, got) for want, got in zip(shape, array.shape, strict=True)):
        wanted = " x ".join("any" if size is None else str(size) for size in shape)
        raise InputError(
            f"{name}: must have shape {wanted}, got {' x '.join(map(str, array.shape)) or 'a single number'}"
        )
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


def _as_float64(name: str, rows: object) -> NDArray[np.float64]:
    if isinstance(rows, torch.Tensor):
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
