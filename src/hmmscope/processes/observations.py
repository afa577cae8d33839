"""Observations as they are given: checked once, before any filter sees them."""

import torch

from hmmscope.axes import Bool, Float64, Int, Int64, Tensor
from hmmscope.errors import InputError
from hmmscope.schema import shown

#: Symbols, or vectors of real-valued processes.
Observations = Int[Tensor, "batch time"] | Float64[Tensor, "batch time coordinate"]


def as_observations(observations: object) -> Tensor:
    """Anything that torch reads as numbers; InputError for names and for rows of different lengths."""
    try:
        return torch.as_tensor(observations)
    except (ValueError, TypeError, RuntimeError):
        how = "hmmscope.SequenceData(rows, symbols=hmm.symbols).padded() gives observations and lengths"
        raise InputError(
            f"observations: must be integers (batch, time), got {shown(observations)}; of names, and of rows of "
            f"different lengths, {how}"
        ) from None


def check_observations(
    observations: Tensor, num_symbols: int, starts: object = None
) -> tuple[Int64[Tensor, "batch time"], Bool[Tensor, "time"]]:
    """The observations as int64, where they are, and the starts as a mask on the processor.

    InputError names the first wrong entry.
    """
    observations = as_observations(observations)
    if observations.ndim != 2:
        raise InputError(f"observations: must have shape (batch, time), got {tuple(observations.shape)}")
    if observations.dtype.is_floating_point or observations.dtype.is_complex or observations.dtype == torch.bool:
        raise InputError(f"observations: must be integers, got {observations.dtype}")
    observations = observations.to(torch.int64)
    lowest, highest = map(int, observations.aminmax()) if observations.numel() else (0, -1)
    if lowest < 0 or highest >= num_symbols:
        bad = ((observations < 0) | (observations >= num_symbols)).nonzero()
        b, t = bad[0].tolist()
        value = observations[b, t].item()
        raise InputError(f"observations[{b}, {t}]: symbol {value} is not in [0, {num_symbols})")
    time = observations.shape[1]
    if starts is None:
        mask = torch.zeros(time, dtype=torch.bool)
        mask[:1] = True
    else:
        mask = torch.as_tensor(starts).cpu()
        if mask.shape != (time,) or mask.dtype != torch.bool or (time and not mask[0]):
            raise InputError(f"starts: must be {time} truth values of which the first is true")
    return observations, mask
