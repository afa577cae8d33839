"""Batches of sequences of different lengths, padded at the end."""

from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence

from hmmscope.axes import Bool, Float64, Int64, Tensor
from hmmscope.errors import InputError
from hmmscope.processes.observations import as_batch, as_counts, as_vectors, checked, whole_batch
from hmmscope.processes.params import any_missing
from hmmscope.processes.process import Process
from hmmscope.schema import require
from hmmscope.sequences.data import SequenceData
from hmmscope.sequences.encoding import Alphabet
from hmmscope.sequences.gaps import MISSING


def check_ragged(
    observations: object, alphabet: Alphabet, reset_mask: object, lengths: object
) -> tuple[Int64[Tensor, "batch time"], Bool[Tensor, " time"], Bool[Tensor, "batch time"]]:
    """Check a batch; return its symbols, sequence starts and a mask of entries other than padding.

    Padding becomes symbol 0, and a missing observation becomes V.

    Args:
        observations: Symbols in [0, V) or `MISSING` (batch, time); see `as_batch`.
        alphabet: Alphabet of V symbols.
        reset_mask: See `check_observations`.
        lengths: Length of each sequence (batch,); observations in one column or row are cut into these lengths.
    """
    was_read = isinstance(observations, SequenceData)
    observations, known = as_batch(observations, alphabet, lengths)
    if known is not None and lengths is not None and (was_read or len(known) > 1):
        raise InputError("lengths: must be omitted, because these observations already have lengths")
    lengths = known if lengths is None else lengths
    if lengths is None or observations.ndim != 2:
        found, mask = checked(observations, alphabet, reset_mask, gaps=True)
        return found, mask, torch.ones_like(found, dtype=torch.bool)
    batch, time = observations.shape
    counts = as_counts(lengths).to(observations.device)
    if counts.numel() == 0:
        counts = counts.to(torch.int64)  # from an empty list
    whole = not (counts.dtype.is_floating_point or counts.dtype.is_complex or counts.dtype == torch.bool)
    if whole and 1 in (batch, time) and reset_mask is None and counts.ndim == 1 and len(counts) != batch:
        sizes = counts.tolist()
        if min(sizes, default=-1) >= 0 and sum(sizes) == batch * time:
            observations = pad_sequence(list(observations.flatten().split(sizes)), batch_first=True)
            batch, time = observations.shape
    if not whole or counts.shape != (batch,) or bool(((counts < 0) | (counts > time)).any()):
        column = f", or sum to {batch * time}, the length of the only {'column' if time == 1 else 'row'}"
        column = column if 1 in (batch, time) else ""
        raise InputError(f"lengths: must be {batch} integers in [0, {time}]{column}")
    inside = torch.arange(time, device=counts.device) < counts.to(torch.int64)[:, None]
    found, mask = checked(observations.where(inside, torch.zeros_like(observations)), alphabet, reset_mask, gaps=True)
    return found, mask, inside


def integers_of(field: str, values: object, count: int, below: int | None = None) -> Int64[Tensor, " batch"]:
    try:
        found = torch.as_tensor(values)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        found = torch.empty(0)
    whole = not (found.is_floating_point() or found.is_complex() or found.dtype == torch.bool)
    good = whole and found.shape == (count,) and not bool((found < 0).any())
    good = good and (below is None or bool((found < below).all()))
    rule = "nonnegative integers" if below is None else f"integers in [0, {below})"
    require(good, field, f"must be {count} {rule}", values)
    return found.to(torch.int64)


def given_again(
    observations: object, alphabet: Alphabet, reset_mask: object, lengths: object
) -> tuple[Int64[Tensor, "batch time"], dict[str, Any], Bool[Tensor, "batch time"]]:
    checked, mask, inside = check_ragged(observations, alphabet, reset_mask, lengths)
    given = checked.masked_fill(checked == (alphabet.count or 0), MISSING)
    return given, {"reset_mask": mask, "lengths": counted(inside)}, inside


def check_own(
    process: Process, observations: object, lengths: object = None
) -> tuple[Tensor, Bool[Tensor, "batch time"]]:
    """Check observations of any process; return them, NaN in padding, and a mask that is false there."""
    if not process.real_valued:
        if lengths is not None:
            raise InputError(f"lengths: must be omitted for a {type(process).__name__}; pass sequences of equal length")
        batch = whole_batch(observations, process.alphabet)
        return batch, torch.ones(batch.shape[:2], dtype=torch.bool)
    vectors, known = as_vectors(observations, process.num_symbols, lengths, process.read_options)
    counts = torch.full(vectors.shape[:1], vectors.shape[1]) if known is None else known
    return vectors, torch.arange(vectors.shape[1]) < counts[:, None]


def counted(inside_BT: Bool[Tensor, "batch time"]) -> Int64[Tensor, " batch"]:
    whole = bool(inside_BT[:, -1:].all())
    return inside_BT.new_full(inside_BT.shape[:1], inside_BT.shape[1], dtype=torch.int64) if whole else inside_BT.sum(1)


def silent(
    terms_BT: Float64[Tensor, "batch time"], observations_BT: Int64[Tensor, "batch time"], num_symbols: int
) -> Float64[Tensor, "batch time"]:
    if not any_missing(observations_BT, num_symbols):
        return terms_BT
    return terms_BT.masked_fill((observations_BT == num_symbols) & (terms_BT > -torch.inf), 0.0)


def seen_terms(
    predicted_BTV: Float64[Tensor, "batch time symbol"], observations_BT: Int64[Tensor, "batch time"]
) -> Float64[Tensor, "batch time"]:
    """Return the log-probability of each observation given the past.

    A missing observation has log-probability zero, or -inf after an impossible prefix.
    """
    num_symbols = predicted_BTV.shape[2]
    terms_BT = predicted_BTV.gather(2, observations_BT.clamp(max=num_symbols - 1)[..., None])[..., 0].log()
    if not any_missing(observations_BT, num_symbols):
        return terms_BT
    return torch.where(observations_BT == num_symbols, predicted_BTV.any(2).double().log(), terms_BT)


def blank(values: Tensor, inside_BT: Bool[Tensor, "batch time"], padding: float = 0) -> Tensor:
    if bool(inside_BT.all()):
        return values
    inside = inside_BT.view(*inside_BT.shape, *[1] * (values.ndim - 2))
    return torch.where(inside, values, torch.full((), padding, dtype=values.dtype, device=values.device))
