"""Conversion of the observations and parameters of estimators for the compiled loops."""

import functools
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from hmmscope.axes import Int64, Tensor
from hmmscope.errors import InputError
from hmmscope.inference.loop_inputs import StateSets, Tables
from hmmscope.inference.weights import as_weights
from hmmscope.processes.capabilities import OF_STATES
from hmmscope.processes.params import StateEmissionParams
from hmmscope.processes.process import Process
from hmmscope.schema import refuse_masked, require, shown
from hmmscope.sequences.columns import is_frame, is_indices, own_rows, to_plain, writable
from hmmscope.sequences.data import SequenceData
from hmmscope.sequences.encoding import Alphabet, warn_of_numbers, whole_lengths
from hmmscope.sequences.gaps import is_nothing
from hmmscope.sequences.number_cells import NumberMarkers
from hmmscope.sequences.tables import table_of
from hmmscope.sequences.vector_data import VectorData, read_vectors

Array = NDArray[np.float64]

#: Largest number of parameters of a process that is cached.
SMALL = 4096


class UnroundedHMM(Process):
    """HMM whose states emit symbols, with probabilities not rounded to multiples of 2^-32.

    Args:
        initial, transition, emission: Probabilities (S,), (S, S) and (S, V).
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
        """Log probabilities, bitwise equal to hmmlearn's; states are reversed so that the last state wins ties."""
        initial, transition = (libm_log(part[0].numpy()) for part in self.params.rows()[:2])
        with np.errstate(divide="ignore"):
            emission_VS = np.log(np.ascontiguousarray(self.params.rows()[2][0].numpy().T))
        found = (initial + emission_VS, transition[None, ::-1], emission_VS)
        return Tables(*(np.ascontiguousarray(part[..., ::-1]) for part in found))


def _of_bytes(*parts: tuple[bytes, tuple[int, ...]]) -> UnroundedHMM:
    return UnroundedHMM(*(np.frombuffer(values).reshape(shape).copy() for values, shape in parts))


_kept = functools.lru_cache(maxsize=8)(_of_bytes)


def unrounded(initial: Array, transition: Array, emission: Array) -> UnroundedHMM:
    parts = tuple(np.asarray(part, np.float64) for part in (initial, transition, emission))
    if sum(part.size for part in parts) > SMALL:
        return UnroundedHMM(*parts)
    return _kept(*((part.tobytes(), part.shape) for part in parts))


class EncodedObservations(NamedTuple):
    """Observations for the compiled loops.

    Attributes:
        process: HMM that emits the symbols.
        symbols: Symbols of all sequences, one after the other (N,).
        lengths: Lengths of the sequences (sequence,).
        sets: If some states are known, the distinct pairs (symbol, allowed states), indexed by `symbols`; else None.
    """

    process: UnroundedHMM
    symbols: NDArray[np.int64]
    lengths: NDArray[np.int64]
    sets: StateSets | None = None

    def batches(self) -> Iterator["PaddedBatch"]:
        if len(self.lengths) == 1:
            yield PaddedBatch(
                torch.from_numpy(self.symbols[None]),
                torch.from_numpy(self.lengths),
                np.ones((1, len(self.symbols)), np.bool_),
                slice(None),
                np.zeros(1, np.int64),
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
            if bool((np.diff(rows) == 1).all()):  # a slice of the column
                rows = slice(int(rows[0]), int(rows[-1]) + 1)
            yield PaddedBatch(torch.from_numpy(self.symbols[places]), torch.from_numpy(counts), inside, rows, chosen)


class PaddedBatch(NamedTuple):
    """A batch of padded sequences.

    Attributes:
        observations: Symbols (batch, time).
        lengths: Lengths of the sequences (batch,).
        inside: True where an entry is not padding (batch, time).
        places: Row in X of each entry that is not padding.
        numbers: Index of each sequence in X (batch,).
    """

    observations: Int64[Tensor, "batch time"]
    lengths: Int64[Tensor, " batch"]
    inside: NDArray[np.bool_]
    places: NDArray[np.int64] | slice
    numbers: NDArray[np.int64]

    def padded(self) -> Int64[Tensor, " batch"] | None:
        """Return the lengths of the sequences, or None if no sequence is padded."""
        return None if bool(self.inside.all()) else self.lengths

    def within(self, values: NDArray[Any]) -> NDArray[Any]:
        whole = bool(self.inside.all())
        return values.reshape(-1, *values.shape[2:]) if whole else values[self.inside]


def libm_log(values: Array) -> Array:
    """Compute logarithms with the C library, so that they equal those of hmmlearn bit by bit."""
    return np.array([math.log(value) if value > 0 else -math.inf for value in values.ravel()]).reshape(values.shape)


class _TypeOfEntryError(InputError, TypeError):
    """An entry of X that is no number; scikit-learn expects a TypeError."""


def as_rows(X: Any) -> Any:
    """Convert arrays, lists and tables to rows for scikit-learn; frames keep column names.

    A 1-d array becomes a column, and None and masked entries become NaN.
    """
    if isinstance(X, np.ndarray) and X.dtype.names is not None:
        X = {name: X[name] for name in X.dtype.names}
    if hasattr(X, "toarray"):  # sparse, which validate_data refuses
        return X
    if isinstance(X, Mapping):
        return np.column_stack([np.asarray(as_rows(column), np.float64) for column in X.values()])
    X = unmasked(to_plain(X))
    if isinstance(X, list | tuple):
        try:
            found = np.array(X)
            X = found if found.dtype.kind != "U" else np.array(X, object)
        except ValueError:
            raise InputError("X: must have rows of equal length; concatenate sequences and pass lengths=") from None
    if isinstance(X, np.ndarray) and X.ndim == 1:
        X = X[:, None]
    table = table_of(X, "X") if is_frame(X) else None
    cells, columns = (X, [X]) if table is None else (np.asarray(X), map(table.raw, table.names))
    if (dates := next((one for one in map(np.asarray, columns) if one.dtype.kind in "mM"), None)) is not None:
        raise InputError(f"X: must be numbers, got {dates.dtype}")
    if isinstance(cells, np.ndarray) and cells.dtype.kind in "OUS" and cells.size:
        entries, number = cells.ravel().tolist(), NumberMarkers([]).number
        odd = [one for one in entries if number(one) is None or (cells is X and isinstance(one, str | bytes))]
        if odd:
            is_text = isinstance(odd[0], str | bytes)
            said = f"X: must be numbers, got {shown(odd[0])}{'; encode names with OrdinalEncoder' * is_text}"
            raise InputError(said) if is_text else _TypeOfEntryError(said)
        if cells is not X:
            return X
        X = np.array([np.nan if is_nothing(one) else one for one in entries], np.float64).reshape(X.shape)
    return writable(X) if isinstance(X, np.ndarray) else X


def with_lengths(X: Any, lengths: Any, *, symbols: bool, alphabet: Alphabet | None) -> tuple[Any, Any, Alphabet | None]:
    """Return rows, lengths and the alphabet of X, or None; read files, and lists of tables or of unequal rows."""
    if hasattr(X, "collect_schema") and hasattr(X, "collect"):  # a lazy frame
        X = X.collect()
    X, lengths = own_rows(X, lengths)
    several = _are_sequences(X)
    if symbols and (several or isinstance(X, str | Path | SequenceData)):
        X = SequenceData(X, symbols_from=alphabet, missing="none" if several else None)
    elif several or isinstance(X, str | Path):
        X = read_vectors(X)
    if not isinstance(X, SequenceData | VectorData):
        if alphabet is not None and not is_indices(X):
            warn_of_numbers(alphabet.names, "X")
        return X, lengths, None
    if lengths is not None:
        raise InputError("lengths: apply to arrays and tables only; this X already has lengths")
    if isinstance(X, VectorData):
        X = X.with_boolean_numbers()
        require(not X.alphabets, "X", "must be numbers, but has columns of names; fit it with hmmscope.fit", X.columns)
        return X.rows.numpy(), X.lengths.numpy(), None
    flat = X.flat.astype(np.float64)
    return np.where(flat == X.num_symbols, np.nan, flat)[:, None], X.lengths.numpy(), X.alphabet if symbols else None


def _are_sequences(X: Any) -> bool:
    first = X[0] if isinstance(X, list | tuple) and len(X) else None
    if isinstance(first, str | bytes) or not hasattr(first, "__len__") or getattr(first, "ndim", 1) == 0:
        return False
    lists = isinstance(first, list | tuple) and any(np.ndim(one) for one in first[:1])
    tables = lists or is_frame(first) or getattr(first, "ndim", 1) == 2
    return tables or len({len(one) if hasattr(one, "__len__") else -1 for one in X}) > 1


def unmasked(X: Any) -> Any:
    """Replace masked entries by NaN."""
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
        raise InputError(f"X: a masked array must have a numeric dtype, got {X.dtype}") from None


def rows_of(name: str, value: Any, shape: tuple[int | None, ...]) -> Array:
    refuse_masked(name, value)
    found = np.asarray(value, np.float64)
    if found.ndim != len(shape) or any(want not in (None, size) for want, size in zip(shape, found.shape, strict=True)):
        raise InputError(f"{name}: must have the shape {shape}, got {found.shape}")
    if not (_known_laws if found.size <= SMALL else _are_laws)(found.tobytes(), found.shape):
        raise InputError(f"{name}: must have nonnegative rows that sum to 1")
    return value if found is value else found


def _are_laws(values: bytes, shape: tuple[int, ...]) -> bool:
    found = np.frombuffer(values).reshape(shape)
    return bool((found >= 0).all() and (np.abs(found.sum(-1) - 1) <= 1e-5).all())


_known_laws = functools.lru_cache(maxsize=64)(_are_laws)


def weighted_parts(
    X: NDArray[Any], lengths: NDArray[np.int64], weights: Any, allowed: NDArray[np.bool_] | None
) -> tuple[NDArray[Any], NDArray[np.int64], Array | None, NDArray[np.bool_] | None]:
    found = as_weights(weights, len(lengths))
    if found is None or (found > 0).all():
        return X, lengths, found, allowed
    kept = found > 0
    rows = np.repeat(kept, lengths)
    return X[rows], lengths[kept], found[kept], None if allowed is None else allowed[rows]


def lengths_of(lengths: Any, count: int) -> NDArray[np.int64]:
    if lengths is None:
        return np.array([count])
    found = whole_lengths(lengths)
    if sum(found.tolist()) != count:
        raise InputError(f"lengths: must sum to the {count} rows of X, got {shown(lengths)}")
    return found
