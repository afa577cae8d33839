"""Batches of sequences of different lengths, padded at the end."""

import torch
from torch.nn.utils.rnn import pad_sequence

from hmmscope.axes import Bool, Int64, Tensor
from hmmscope.errors import InputError
from hmmscope.processes.observations import as_observations, check_observations


def check_ragged(
    observations: Tensor, num_symbols: int, starts: object, lengths: object
) -> tuple[Int64[Tensor, "batch time"], Bool[Tensor, "time"], Bool[Tensor, "batch time"]]:
    """Observations with padding replaced by symbol 0, starts as a mask, and where the observations are (not padding).

    Padding may hold any number, so nothing after this line can depend on it.

    Args:
        observations: (batch, time), symbols in [0, V) except beyond the lengths.
        num_symbols: V.
        starts: as in `check_observations`.
        lengths: number of observations of each sequence (batch,), in [0, time]; None if all are complete. As in hmmlearn,
            lengths that sum to the time of one column (time, 1) are those of the sequences that it is cut into.

    Raises:
        InputError: as `check_observations`; lengths of another shape, type or range.
    """
    observations = as_observations(observations)
    if lengths is None or observations.ndim != 2:
        checked, mask = check_observations(observations, num_symbols, starts)
        return checked, mask, torch.ones_like(checked, dtype=torch.bool)
    batch, time = observations.shape
    counts = torch.as_tensor(lengths, device=observations.device)
    if counts.numel() == 0:
        counts = counts.to(torch.int64)  # an empty list
    whole = not (counts.dtype.is_floating_point or counts.dtype.is_complex or counts.dtype == torch.bool)
    if whole and time == 1 and starts is None and counts.ndim == 1 and len(counts) != batch:
        sizes = counts.tolist()
        if min(sizes, default=-1) >= 0 and sum(sizes) == batch:
            observations = pad_sequence(list(observations[:, 0].split(sizes)), batch_first=True)
            batch, time = observations.shape
    if not whole or counts.shape != (batch,) or bool(((counts < 0) | (counts > time)).any()):
        column = f", or sum to {batch}, the length of the column" if time == 1 else ""
        raise InputError(f"lengths: must be {batch} integers in [0, {time}]{column}")
    inside = torch.arange(time, device=counts.device) < counts.to(torch.int64)[:, None]
    checked, mask = check_observations(observations.where(inside, torch.zeros_like(observations)), num_symbols, starts)
    return checked, mask, inside


def counted(inside_BT: Bool[Tensor, "batch time"]) -> Int64[Tensor, "batch"]:
    """How many observations each sequence has; where all have the whole time, nothing is added up."""
    whole = bool(inside_BT[:, -1:].all())
    return inside_BT.new_full(inside_BT.shape[:1], inside_BT.shape[1], dtype=torch.int64) if whole else inside_BT.sum(1)


def blank(values: Tensor, inside_BT: Bool[Tensor, "batch time"], padding: float = 0) -> Tensor:
    """Values (batch, time, ...) with `padding` beyond the end of each sequence."""
    if bool(inside_BT.all()):
        return values
    inside = inside_BT.view(*inside_BT.shape, *[1] * (values.ndim - 2))
    return torch.where(inside, values, torch.full((), padding, dtype=values.dtype, device=values.device))
