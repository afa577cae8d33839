"""Observations and laws of an estimator as the compiled loops take them."""

import functools
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from hmmscope.axes import Int64, Tensor
from hmmscope.errors import InputError
from hmmscope.inference.loop_inputs import Tables
from hmmscope.processes.capabilities import OF_STATES
from hmmscope.processes.params import StateEmissionParams
from hmmscope.processes.process import Process

Array = NDArray[np.float64]

#: Numbers of laws that are known again by their bytes.
SMALL = 4096


class UnroundedHMM(Process):
    """States that emit, with laws in floats as they are given: no row is rounded to the grid of 2^-32.

    Args:
        initial: (S,).
        transition: (S, S), rows sum to one or zero.
        emission: (S, V), likelihoods of V symbols; where a symbol stands for one observation, up to a factor each.
    """

    stored_name = "UnroundedHMM"

    uses_hmm_inference = OF_STATES

    def __init__(self, initial: Array, transition: Array, emission: Array) -> None:
        rows = (
            torch.from_numpy(np.ascontiguousarray(part, np.float64))[None] for part in (initial, transition, emission)
        )
        self.params = StateEmissionParams(*rows)
        self.num_states, self.num_symbols = emission.shape

    @functools.cached_property
    def logarithms(self) -> Tables:
        """Tables of logarithms, the last state first, with the bits that hmmlearn compares paths by.

        There ties go to the highest state, and at the end of a sequence to the lowest.
        """
        initial, transition = (libm_log(part[0].numpy()) for part in self.params.rows()[:2])
        with np.errstate(divide="ignore"):
            emission_VS = np.log(np.ascontiguousarray(self.params.rows()[2][0].numpy().T))
        found = (initial + emission_VS, transition[None, ::-1], emission_VS)
        return Tables(*(np.ascontiguousarray(part[..., ::-1]) for part in found))


def _of_bytes(*parts: tuple[bytes, tuple[int, ...]]) -> UnroundedHMM:
    return UnroundedHMM(*(np.frombuffer(values).reshape(shape).copy() for values, shape in parts))


_kept = functools.lru_cache(maxsize=8)(_of_bytes)


def unrounded(initial: Array, transition: Array, emission: Array) -> UnroundedHMM:
    """The process of these laws; of a small one what is worked out of it is kept for the next question."""
    parts = tuple(np.asarray(part, np.float64) for part in (initial, transition, emission))
    if sum(part.size for part in parts) > SMALL:
        return UnroundedHMM(*parts)
    return _kept(*((part.tobytes(), part.shape) for part in parts))


class EncodedObservations(NamedTuple):
    """Observations as the compiled loops take them.

    Attributes:
        process: with the law of each symbol.
        symbols: of the process, one sequence after the other (N,).
        lengths: of the sequences (n,).
    """

    process: UnroundedHMM
    symbols: NDArray[np.int64]
    lengths: NDArray[np.int64]

    def batches(self) -> Iterator["PaddedBatch"]:
        """The sequences that have observations, those of about one length together."""
        if len(self.lengths) == 1:
            yield PaddedBatch(
                torch.from_numpy(self.symbols[None]),
                torch.from_numpy(self.lengths),
                np.ones((1, len(self.symbols)), np.bool_),
                slice(None),
            )
            return
        starts = self.lengths.cumsum() - self.lengths
        order = np.argsort(self.lengths, kind="stable")
        order = order[self.lengths[order] > 0]
        while len(order):
            near = int(np.searchsorted(self.lengths[order], 2 * self.lengths[order[0]], side="right"))
            chosen, order = order[:near], order[near:]
            counts = self.lengths[chosen]
            inside = np.arange(counts[-1]) < counts[:, None]
            places = starts[chosen, None] + np.arange(counts[-1]) * inside
            rows = places[inside]
            if bool((np.diff(rows) == 1).all()):  # a part of the column as it stands
                rows = slice(int(rows[0]), int(rows[-1]) + 1)
            yield PaddedBatch(torch.from_numpy(self.symbols[places]), torch.from_numpy(counts), inside, rows)


class PaddedBatch(NamedTuple):
    """Sequences side by side.

    Attributes:
        observations: padded (batch, time).
        lengths: (batch,).
        inside: where there is no padding (batch, time).
        places: the rows of X that stand there.
    """

    observations: Int64[Tensor, "batch time"]
    lengths: Int64[Tensor, "batch"]
    inside: NDArray[np.bool_]
    places: NDArray[np.int64] | slice

    def padded(self) -> Int64[Tensor, "batch"] | None:
        """The lengths, or None where no sequence is padded."""
        return None if bool(self.inside.all()) else self.lengths

    def within(self, values: NDArray[Any]) -> NDArray[Any]:
        """Values (batch, time, ...) where there is no padding (row, ...)."""
        whole = bool(self.inside.all())
        return values.reshape(-1, *values.shape[2:]) if whole else values[self.inside]


def libm_log(values: Array) -> Array:
    """Logarithms by the C library, whose last bits are not those of NumPy's vectors."""
    return np.array([math.log(value) if value > 0 else -math.inf for value in values.ravel()]).reshape(values.shape)


def unmasked(X: Any) -> Any:
    """Return X with NaN where an entry of `numpy.ma` is masked; scikit-learn drops masks. All else is returned as it is.

    Raises:
        InputError: masked entries that are no numbers.
    """
    if isinstance(X, list | tuple) and any(isinstance(row, np.ma.MaskedArray | list | tuple) for row in X):
        rows = [unmasked(row) for row in X]
        return X if all(new is old for new, old in zip(rows, X, strict=True)) else rows
    if isinstance(X, list | tuple) and any(entry is np.ma.masked for entry in X):
        return [np.nan if entry is np.ma.masked else entry for entry in X]
    if not isinstance(X, np.ma.MaskedArray):
        return X
    if not np.ma.is_masked(X):
        return X.data
    try:
        return np.ma.filled(X.astype(np.float64), np.nan)
    except (TypeError, ValueError):
        raise InputError(f"X: must be numbers where entries are masked, got {X.dtype}") from None
