"""Observations as they are given: checked once, before any filter sees them.

A missing observation is `MISSING` in what is given, and the symbol V in what is checked: one behind the last, of which a
law with gaps has a column (`hmmscope.processes.params.HMMParams.with_gaps`).
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.utils.rnn import pad_sequence

from hmmscope.axes import Bool, Float, Float64, Int, Int64, Tensor
from hmmscope.errors import InputError
from hmmscope.schema import listed, refuse_masked, shown
from hmmscope.sequences.cells import as_row
from hmmscope.sequences.data import SequenceData
from hmmscope.sequences.encoding import Alphabet
from hmmscope.sequences.gaps import MISSING

#: Sequences of symbols: a batch, one sequence, or what `SequenceData` is made of, by itself or already read.
Symbols = Int[Tensor, "batch time"] | Int[Tensor, "time"] | SequenceData | NDArray[Any] | Sequence[Any]

#: Symbols, or vectors of real-valued processes: a batch, one sequence, or one of a single coordinate.
Observations = Symbols | Float[Tensor, "batch time coordinate"] | Float[Tensor, "row coordinate"] | Float[Tensor, "row"]


def as_counts(lengths: Any) -> Tensor:
    """Lengths as a tensor, unchecked: of a column of a frame those in its order, whatever labels its rows have."""
    refuse_masked("lengths", lengths)
    try:
        return lengths if isinstance(lengths, Tensor) else torch.as_tensor(np.asarray(lengths))
    except (TypeError, ValueError, RuntimeError):
        raise InputError(f"lengths: must be integers, got {shown(lengths)}") from None


def as_batch(
    observations: object, alphabet: Alphabet, lengths: object = None
) -> tuple[Tensor, Int64[Tensor, "batch"] | None]:
    """Symbols (batch, time), unchecked, and the lengths of the sequences where these are known.

    Tensors are (batch, time). All else is read as `SequenceData` reads it: an array of one dimension is one sequence, and so
    is a column (time, 1) and a list of the alphabet's names; of lists of one symbol both readings are said, unless there
    are `lengths`. Masked entries of NumPy are `MISSING`.

    Raises:
        InputError: what is no batch of symbols, can be read in two ways, or has names that the alphabet has not.
    """
    observations = as_row(observations)
    if isinstance(observations, np.ndarray) and observations.ndim == 2 and observations.shape[1] == 1:
        observations = observations.T
    elif _is_column(observations):
        if lengths is None:
            count, how = len(observations), "hmmscope.SequenceData(rows, axis=0)"  # type: ignore[arg-type]
            raise InputError(
                f"observations: {count} lists of one symbol can be read in two ways: as one sequence of {count}, which "
                f"{how} is, or with axis=1 as {count} of 1"
            )
        observations = [row[0] for row in observations]  # type: ignore[attr-defined]
    elif (
        isinstance(observations, list | tuple) and observations and all(isinstance(r, np.ndarray) for r in observations)
    ):
        alike = {(type(row), row.shape) for row in observations}
        same = len(alike) == 1 and alike.pop() == (np.ndarray, (len(observations[0]),))
        observations = np.stack(observations) if same else _read(observations, alphabet)
    if isinstance(observations, np.ma.MaskedArray) and observations.dtype.kind in "iu":
        observations = np.ma.filled(observations.astype(np.int64), MISSING)
    if not isinstance(observations, SequenceData):
        try:
            found = torch.as_tensor(observations)
        except (ValueError, TypeError, RuntimeError):
            observations = _read(observations, alphabet)
        else:
            return (found[None] if found.ndim == 1 else found), None
    return _coded(observations, alphabet).padded()


def _is_column(rows: object) -> bool:
    """Whether these are several lists of one symbol."""
    return (
        isinstance(rows, list | tuple)
        and len(rows) > 1
        and all(isinstance(r, list | tuple) and len(r) == 1 for r in rows)
    )


def _read(rows: object, alphabet: Alphabet) -> SequenceData:
    """Lists that are no array; InputError says where they cannot be read, and for a text or path, which no filter reads."""
    how = "hmmscope.SequenceData(rows, symbols=hmm.symbols)"
    rows = rows.tolist() if isinstance(rows, np.ndarray) else rows
    if not isinstance(rows, list | tuple):
        raise InputError(f"observations: must be symbols (batch, time), got {shown(rows)}; {how} reads texts and files")
    if all(isinstance(name, str) and name in (alphabet.names or ()) for name in rows):
        rows = [rows]  # of names, as of numbers: one sequence
    try:
        return SequenceData(rows, symbols=alphabet.names or alphabet.count, title="observations")
    except InputError as error:
        raise InputError(f"observations: must be symbols (batch, time), or what {how} reads: {error}") from None


def _coded(data: SequenceData, alphabet: Alphabet) -> SequenceData:
    """Sequences by the numbers that the alphabet gives their names."""
    if data.symbols is None or alphabet.names is None or data.symbols == alphabet.names:
        return data
    unknown = [name for name in data.symbols if name not in alphabet.names]
    if unknown:
        raise InputError(f"observations: {shown(unknown[0])} is not one of the symbols {listed(alphabet.names)}")
    return data.renamed(alphabet.names)


def check_observations(
    observations: object, alphabet: Alphabet, reset_mask: object = None, *, gaps: bool = False
) -> tuple[Int64[Tensor, "batch time"], Bool[Tensor, "time"]]:
    """The observations as int64, where they are, and the starts as a mask on the processor.

    Args:
        observations: sequences of one length, see `as_batch`.
        alphabet: of V symbols.
        reset_mask: mask (time,), or None.
        gaps: whether missing observations can be answered for; they become the symbol V.

    Raises:
        InputError: names the first wrong entry, or the first missing one where that cannot be answered for.
    """
    return checked(whole_batch(observations, alphabet), alphabet.count or 0, reset_mask, gaps=gaps)


def whole_batch(observations: object, alphabet: Alphabet) -> Tensor:
    """`as_batch` of sequences of one length, or vectors as they are; InputError for different lengths."""
    batch, lengths = as_batch(observations, alphabet)
    if lengths is not None and bool((lengths < batch.shape[1]).any()):
        raise InputError(
            "observations: must be sequences of one length here; hmmscope.filter_beliefs takes any lengths"
        )
    return batch


def checked(
    observations: Tensor, num_symbols: int, reset_mask: object = None, *, gaps: bool = False
) -> tuple[Int64[Tensor, "batch time"], Bool[Tensor, "time"]]:
    """`check_observations` of a tensor."""
    if observations.ndim != 2:
        raise InputError(f"observations: must have shape (batch, time), got {tuple(observations.shape)}")
    if observations.dtype.is_floating_point and not observations.numel():
        raise InputError(
            "observations: hold nothing; a batch of empty sequences is an array of whole numbers (batch, 0)"
        )
    if observations.dtype.is_floating_point and bool(observations.isnan().any()):
        b, t = observations.isnan().nonzero()[0].tolist()
        how = "hmmscope.SequenceData(X, missing='nan') reads it as a missing observation"
        raise InputError(f"observations[{b}, {t}]: is NaN; {how}")
    if observations.dtype.is_floating_point or observations.dtype.is_complex or observations.dtype == torch.bool:
        how = "symbols 0, 1, ... become that by .astype(int), of a tensor by .long()"
        if observations.dtype.is_floating_point and not torch.equal(observations, observations.round()):
            how = "numbers are for processes of numbers, such as the hmm of hmmscope.fit(X, 2, emission='gaussian')"
        raise InputError(f"observations: must be integers, got {observations.dtype}; {how}")
    observations = observations.to(torch.int64)
    lowest, highest = map(int, observations.aminmax()) if observations.numel() else (0, -1)
    if lowest == MISSING:
        missing = observations == MISSING
        if not gaps:
            b, t = missing.nonzero()[0].tolist()
            raise InputError(f"observations[{b}, {t}]: is missing, and there is no exact answer with gaps here")
        seen = observations[~missing]
        lowest = int(seen.amin()) if seen.numel() else 0
        if lowest >= 0 and highest < num_symbols:
            observations = observations.masked_fill(missing, num_symbols)
    if lowest < 0 or highest >= num_symbols:
        bad = ((observations < 0) | (observations >= num_symbols)) & (observations != MISSING)
        b, t = bad.nonzero()[0].tolist()
        value = observations[b, t].item()
        hint = "; a missing observation is hmmscope.MISSING" if value < 0 else ""
        raise InputError(f"observations[{b}, {t}]: symbol {value} is not in [0, {num_symbols}){hint}")
    return observations, _starts(reset_mask, observations.shape[1])


def _starts(reset_mask: object, time: int) -> Bool[Tensor, "time"]:
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
        raise InputError(f"reset_mask: must be {time} truth values of which the first is true")
    return mask


def as_vectors(
    observations: object, num_coordinates: int, lengths: object = None
) -> tuple[Float64[Tensor, "batch time coordinate"], Int64[Tensor, "batch"] | None]:
    """Vectors (batch, time, coordinate), padded with NaN, and the lengths of the sequences where these are known.

    NaN is a missing entry. One sequence may be (time, coordinate), and of one coordinate (time,); lists of such arrays are
    sequences of any lengths. With lengths that sum to the rows of (rows, coordinate), as in hmmlearn, these are cut so.

    Raises:
        InputError: another number of coordinates; an infinite number; what is no array of numbers; bad lengths.
    """
    if isinstance(observations, np.ma.MaskedArray):
        observations = np.ma.filled(observations.astype(np.float64), np.nan)
    if isinstance(observations, np.ndarray) and not observations.flags.writeable:
        observations = observations.copy()
    if isinstance(observations, list | tuple) and any(isinstance(one, Tensor | np.ndarray) for one in observations):
        each = [as_vectors(one, num_coordinates)[0][0] for one in observations]
        if lengths is not None:
            raise InputError("lengths: are for arrays; these observations have lengths of their own")
        return pad_sequence(each, batch_first=True, padding_value=torch.nan), torch.tensor(list(map(len, each)))
    try:  # of lists torch would make float32
        found = torch.as_tensor(np.asarray(observations) if isinstance(observations, list | tuple) else observations)
    except (ValueError, TypeError, RuntimeError):
        raise InputError(
            f"observations: must be numbers (batch, time, coordinate), got {shown(observations)}"
        ) from None
    if found.is_complex() or found.dtype == torch.bool:
        raise InputError(f"observations: must be numbers, got {found.dtype}")
    found = found.detach().cpu().to(torch.float64)
    if found.ndim == 1 and num_coordinates == 1:
        found = found[:, None]
    if found.ndim not in (2, 3) or found.shape[-1] != num_coordinates:
        of = f"(batch, time, {num_coordinates}), or (time, {num_coordinates}) for one sequence"
        also = "; X[..., None] makes (sequence, time) of it" if found.ndim == 2 and num_coordinates == 1 else ""
        raise InputError(f"observations: must have shape {of}, got {tuple(found.shape)}{also}")
    if bool(found.isinf().any()):
        where = found.isinf().nonzero()[0].tolist()
        raise InputError(f"observations{where[:-1]}: is not finite; a missing entry is NaN")
    if lengths is None:
        return (found[None] if found.ndim == 2 else found), None
    counts = as_counts(lengths)
    whole = counts.ndim == 1 and not counts.is_floating_point() and bool((counts >= 0).all())
    if found.ndim == 2:
        if not whole or int(counts.sum()) != len(found):
            raise InputError(f"lengths: must be whole numbers of at least 0 that sum to the {len(found)} rows")
        return pad_sequence(list(found.split(counts.tolist())), batch_first=True, padding_value=torch.nan), counts
    if not whole or counts.shape != found.shape[:1] or bool((counts > found.shape[1]).any()):
        raise InputError(f"lengths: must be {len(found)} integers in [0, {found.shape[1]}]")
    outside = torch.arange(found.shape[1]) >= counts[:, None]
    return found.masked_fill(outside[..., None], torch.nan), counts
