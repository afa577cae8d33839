"""Input checks for observations."""

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.utils.rnn import pad_sequence

from hmmscope.axes import Bool, Float, Float64, Int, Int64, Tensor
from hmmscope.errors import InputError
from hmmscope.schema import listed, refuse_masked, shown
from hmmscope.sequences.columns import categories_of, is_frame, is_indices, own_rows, to_plain, writable
from hmmscope.sequences.data import SequenceData
from hmmscope.sequences.encoding import Alphabet, index_rule, warn_of_numbers
from hmmscope.sequences.gaps import MISSING, Missing, is_nothing
from hmmscope.sequences.read_options import ReadOptions
from hmmscope.sequences.vector_data import VectorData, read_vectors


@runtime_checkable
class Columns(Protocol):
    """A frame or table with named columns."""

    def __getitem__(self, name: Any, /) -> Any: ...


#: Sequences of symbols: a batch, one sequence, a `SequenceData`, or anything that `SequenceData` accepts.
Symbols = (
    Int[Tensor, "batch time"]
    | Int[Tensor, "time"]
    | SequenceData
    | NDArray[Any]
    | Sequence[Any]
    | Columns
    | os.PathLike[str]
)

#: Symbols, or vectors of real-valued processes: a batch, one sequence, or one sequence with a single coordinate.
Observations = (
    Symbols
    | Float[Tensor, "batch time coordinate"]
    | Float[Tensor, "row coordinate"]
    | Float[Tensor, "row"]
    | VectorData
)


def as_counts(lengths: Any) -> Tensor:
    refuse_masked("lengths", lengths)
    try:
        counts = lengths if isinstance(lengths, Tensor) else torch.as_tensor(writable(np.asarray(lengths)))
        whole = counts.is_floating_point() and bool((counts == counts.floor()).all()) and bool((counts < 2**53).all())
        return counts.to(torch.int64) if whole and counts.numel() else counts
    except (TypeError, ValueError, RuntimeError):
        raise InputError(f"lengths: must be integers, got {shown(lengths)}") from None


def as_batch(
    observations: Any, alphabet: Alphabet, lengths: object = None, field: str = "observations"
) -> tuple[Tensor, Int64[Tensor, " batch"] | None]:
    """Return unchecked symbols (batch, time), and the lengths of the sequences or None.

    Tensors are (batch, time); other input is read as `SequenceData` does. A 1-d array, a column (time, 1) or a list of
    names is one sequence. Masked entries become `MISSING`. `field` names the observations in warnings.
    """
    observations, own = own_rows(observations, lengths)
    indices = is_indices(observations)
    if lengths is None and own is not None:
        observations = SequenceData(observations, symbols_from=alphabet, title="observations")
    if isinstance(observations, Tensor) and not observations.is_nested:
        return (observations[None] if observations.ndim == 1 else observations), None
    if _is_named(observations):
        observations = _read(observations, alphabet, symbols_from=alphabet)
    observations = observations if isinstance(observations, SequenceData) else to_plain(observations)
    if isinstance(observations, np.ndarray) and observations.ndim == 2 and observations.shape[1] == 1:
        observations = observations.T
    elif _is_column(observations):
        if lengths is None:
            count, how = len(observations), "hmmscope.SequenceData(rows, axis=0)"
            raise InputError(
                f"observations: {count} lists of one symbol can be read in two ways: pass {how} for one sequence of "
                f"{count} symbols, or axis=1 for {count} sequences of one symbol"
            )
        observations = [row[0] for row in observations]
    elif isinstance(observations, list | tuple) and observations:
        rows = [to_plain(row) for row in observations]
        if all(isinstance(row, np.ndarray) for row in rows):
            alike = {(type(row), row.shape) for row in rows}
            same = len(alike) == 1 and type(rows[0]) is np.ndarray and rows[0].ndim < 2
            observations = np.stack(rows) if same else _read(observations, alphabet)
        elif any(one is np.ma.masked for row in rows for one in (row if isinstance(row, list | tuple) else [row])):
            observations = _read(observations, alphabet)
    if isinstance(observations, np.ma.MaskedArray):
        observations = Missing().marked(observations)
    if not isinstance(observations, SequenceData):
        try:
            if isinstance(observations, np.ndarray):
                small = observations.dtype in (np.uint16, np.uint32)  # which torch cannot compare
                observations = writable(observations.astype(np.int64) if small else observations)
            found = torch.as_tensor(observations)
            below = bool((found < (alphabet.count or 0)).all())
        except (ValueError, TypeError, RuntimeError):
            observations = _read(observations, alphabet)
        else:
            if not indices and below:
                warn_of_numbers(alphabet.names, field)
            return (found[None] if found.ndim == 1 else found), None
    return _coded(observations, alphabet).padded()


def _nan_for_nothing(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_nan_for_nothing(one) for one in value]
    return torch.nan if is_nothing(value) else value


def _is_named(source: object) -> bool:
    return is_frame(source) or isinstance(source, Mapping | os.PathLike | str) or categories_of(source) is not None


def _is_column(rows: object) -> bool:
    return (
        isinstance(rows, list | tuple)
        and len(rows) > 1
        and all(isinstance(r, list | tuple) and len(r) == 1 for r in rows)
    )


def _read(rows: object, alphabet: Alphabet, **how: Any) -> SequenceData:
    rows = rows.tolist() if isinstance(rows, np.ndarray) and not is_frame(rows) else rows
    try:
        return SequenceData(rows, title="observations", **(how or {"symbols": alphabet.names or alphabet.count}))
    except InputError as error:
        said = re.sub(r"pass (missing=.+) \(--missing .*\)", r"pass hmmscope.SequenceData(X, \1)", str(error))
        fix = "" if "SequenceData" in said else "; pass symbols (batch, time), or rows that SequenceData reads"
        raise InputError(f"observations: {said.removeprefix('observations: ')}{fix}") from None


def _coded(data: SequenceData, alphabet: Alphabet) -> SequenceData:
    if data.symbols is None and data.of_numbers:
        warn_of_numbers(alphabet.names, "observations")
    if data.symbols is None or alphabet.names is None or data.symbols == alphabet.names:
        return data
    unknown = [name for name in data.symbols if name not in alphabet.names]
    if unknown:
        raise InputError(f"observations: {shown(unknown[0])} is not one of the symbols {listed(alphabet.names)}")
    return data.renamed(alphabet.names)


def check_observations(
    observations: object, alphabet: Alphabet, reset_mask: object = None, *, gaps: bool = False
) -> tuple[Int64[Tensor, "batch time"], Bool[Tensor, " time"]]:
    """Return int64 observations (see `as_batch`) and the reset mask; with `gaps`, missing ones become the symbol V."""
    return checked(whole_batch(observations, alphabet), alphabet, reset_mask, gaps=gaps)


def whole_batch(observations: object, alphabet: Alphabet) -> Tensor:
    batch, lengths = as_batch(observations, alphabet)
    if lengths is not None and bool((lengths < batch.shape[1]).any()):
        raise InputError(
            "observations: must have sequences of equal length here; hmmscope.filter_beliefs accepts any lengths"
        )
    return batch


def checked(
    observations: Tensor, alphabet: Alphabet, reset_mask: object = None, *, gaps: bool = False
) -> tuple[Int64[Tensor, "batch time"], Bool[Tensor, " time"]]:
    if observations.ndim != 2:
        raise InputError(f"observations: must have shape (batch, time), got {tuple(observations.shape)}")
    if observations.dtype.is_floating_point and not observations.numel():
        raise InputError("observations: must not be empty, unless they are an integer array of shape (batch, 0)")
    if observations.dtype.is_floating_point and bool(observations.isnan().any()):
        b, t = observations.isnan().nonzero()[0].tolist()
        how = "hmmscope.SequenceData(X, missing='nan', axis=1) reads NaN as a missing observation"
        raise InputError(f"observations[{b}, {t}]: is NaN; {how}")
    if observations.dtype.is_floating_point and torch.equal(observations, observations.round()):
        observations = observations.double().clamp(-(2.0**62), 2.0**62).to(torch.int64)
    if observations.dtype.is_complex:
        raise InputError(f"observations: must be integers, got {observations.dtype}; pass X.real if all X.imag are 0")
    if observations.dtype.is_floating_point:
        how = "real numbers need a real-valued process, such as hmmscope.fit(X, 2, emission='gaussian').hmm"
        raise InputError(f"observations: must be integers, got {observations.dtype}; {how}")
    observations, num_symbols = observations.to(torch.int64), alphabet.count or 0
    lowest, highest = map(int, observations.aminmax()) if observations.numel() else (0, -1)
    if lowest == MISSING:
        missing = observations == MISSING
        if not gaps:
            b, t = missing.nonzero()[0].tolist()
            raise InputError(f"observations[{b}, {t}]: is missing, but this function accepts no missing observations")
        seen = observations[~missing]
        lowest = int(seen.amin()) if seen.numel() else 0
        if lowest >= 0 and highest < num_symbols:
            observations = observations.masked_fill(missing, num_symbols)
    if lowest < 0 or highest >= num_symbols:
        bad = ((observations < 0) | (observations >= num_symbols)) & (observations != MISSING)
        b, t = bad.nonzero()[0].tolist()
        value = observations[b, t].item()
        hint = "; write a missing observation as hmmscope.MISSING" if value < 0 else ""
        hint += f"; {named}" if (named := index_rule(alphabet.names)) else ""
        raise InputError(f"observations[{b}, {t}]: symbol {value} is not in [0, {num_symbols}){hint}")
    return observations, _starts(reset_mask, observations.shape[1])


def _starts(reset_mask: object, time: int) -> Bool[Tensor, " time"]:
    if reset_mask is None:
        mask = torch.zeros(time, dtype=torch.bool)
        mask[:1] = True
        return mask
    refuse_masked("reset_mask", reset_mask)
    try:
        mask = torch.as_tensor(reset_mask).cpu()
    except (TypeError, ValueError, RuntimeError):
        mask = torch.zeros(0)
    if mask.shape != (time,) or mask.dtype != torch.bool or (time and not mask[0]):
        raise InputError(f"reset_mask: must be {time} booleans, the first of them True")
    return mask


def as_vectors(
    observations: Any, num_coordinates: int, lengths: object = None, read_options: ReadOptions | None = None
) -> tuple[Float64[Tensor, "batch time coordinate"], Int64[Tensor, " batch"] | None]:
    """Return vectors (batch, time, coordinate), padded with NaN, and the lengths of the sequences or None.

    NaN marks a missing entry. Observations are an array (time, coordinate), or (time,) for one coordinate; a list of
    arrays; rows that `lengths` split as in hmmlearn; or tables and files, which `read_vectors` reads with the process's
    `read_options`.
    """
    observations, lengths = own_rows(observations, lengths)
    if _is_named(observations) or (isinstance(observations, VectorData) and lengths is None):
        observations = read_vectors(observations, lengths=lengths, symbols_from=read_options, width=num_coordinates)
        lengths = None
    if isinstance(observations, VectorData):
        if observations.rows.shape[1] != num_coordinates:
            raise InputError(
                f"observations: must have {num_coordinates} coordinates, got {observations.rows.shape[1]}; choose columns "
                "with hmmscope.read_vectors(source, column=...)"
            )
        if lengths is not None:
            raise InputError("lengths: must be omitted, because these observations already have lengths")
        return observations.padded(), observations.lengths
    observations = to_plain(observations)
    if isinstance(observations, list | tuple):
        rows = [to_plain(one) for one in observations]
        uneven = len({len(one) for one in rows if isinstance(one, list | tuple)}) > 1
        if uneven or any(is_frame(one) or (isinstance(one, np.ndarray) and one.ndim) for one in rows):
            each = [as_vectors(one, num_coordinates, None, read_options)[0][0] for one in rows]
            if lengths is not None:
                raise InputError("lengths: must be omitted, because each array of the list is one sequence")
            return pad_sequence(each, batch_first=True, padding_value=torch.nan), torch.tensor(list(map(len, each)))
        observations = _nan_for_nothing(rows)
    try:  # torch would convert lists to float32
        if isinstance(observations, np.ma.MaskedArray):
            observations = np.ma.filled(observations.astype(np.float64), np.nan)
        if not isinstance(observations, Tensor):
            array = np.asarray(observations)
            observations = torch.as_tensor(writable(array.astype(np.float64) if array.dtype.kind in "buO" else array))
        found = observations
    except (ValueError, TypeError, RuntimeError):
        raise InputError(
            f"observations: must be numbers (batch, time, coordinate), got {shown(observations)}"
        ) from None
    if found.is_complex():
        raise InputError(f"observations: must be numbers, got {found.dtype}")
    found = found.to(torch.float64)
    if found.ndim == 1 and num_coordinates == 1:
        found = found[:, None]
    if found.ndim not in (2, 3) or found.shape[-1] != num_coordinates:
        of = f"(batch, time, {num_coordinates}), or (time, {num_coordinates}) for one sequence"
        also = "; pass X[..., None] if X is (sequence, time)" if found.ndim == 2 and num_coordinates == 1 else ""
        raise InputError(f"observations: must have shape {of}, got {tuple(found.shape)}{also}")
    if bool(found.isinf().any()):
        where = found.isinf().nonzero()[0].tolist()
        raise InputError(f"observations{where[:-1]}: must be finite; use NaN for a missing entry")
    if lengths is None:
        return (found[None] if found.ndim == 2 else found), None
    counts = as_counts(lengths)
    whole = counts.ndim == 1 and not counts.is_floating_point() and bool((counts >= 0).all())
    if found.ndim == 2:
        if not whole or int(counts.sum()) != len(found):
            raise InputError(f"lengths: must be integers >= 0 that sum to the {len(found)} rows")
        return pad_sequence(list(found.split(counts.tolist())), batch_first=True, padding_value=torch.nan), counts
    if not whole or counts.shape != found.shape[:1] or bool((counts > found.shape[1]).any()):
        raise InputError(f"lengths: must be {len(found)} integers in [0, {found.shape[1]}]")
    outside = torch.arange(found.shape[1]) >= counts[:, None]
    return found.masked_fill(outside[..., None], torch.nan), counts
