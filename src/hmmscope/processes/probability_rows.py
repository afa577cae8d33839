"""Validation of probability rows, and rounding to multiples of 2^-32."""

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hmmscope.axes import Float64, Tensor
from hmmscope.errors import InputError
from hmmscope.kernels.quantise import UNIT, quantise_rows
from hmmscope.schema import refuse_masked, require, require_bool

_TENSOR_TYPES = {torch.float32, torch.float64, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64}

#: Rows whose sums are this close to one are not normalized, so that stored rows keep their bits.
_ROUNDING = 1e-13
#: Tolerance of a row sum, and largest allowed change of a row that keeps its positive entries positive.
ROW_SUM_TOLERANCE = 1e-6
#: Nats per step between the given and the quantised distribution, above which a warning appears.
FAR = 1e-6


class Quantiser:
    """Rounds the rows of a process to multiples of 2^-32, and warns once about large changes.

    Zeros stay zero. Positive entries below 2^-32 become 2^-32 (without `allow_drop_tiny`), and the row's largest entry
    shrinks by the same amount.

    Args:
        what: name of the process class, used in the warning.
        allow_drop_tiny: True rounds entries below 2^-32 to the nearer of 0 and 2^-32.

    Attributes:
        change: largest change of an entry.
        distance: upper bound of KL(rounded||given) of path distributions, nats per step.
    """

    def __init__(self, what: str, *, allow_drop_tiny: bool = False) -> None:
        require_bool("allow_drop_tiny", allow_drop_tiny)
        self.what, self.allow_drop_tiny, self.change, self.distance = what, allow_drop_tiny, 0.0, 0.0
        self._raised, self._moved, self._first = 0, 0.0, ""

    def rows(self, name: str, rows: object, shape: tuple[int | None, ...]) -> Tensor:
        """Validate and quantise rows.

        Args:
            name: name of the matrix in messages.
            rows: array of real numbers.
            shape: required shape; None for any positive size.

        Raises:
            InputError: the shape is wrong, an entry is negative or not finite, a row sum is not 1 within 1e-6, or
                raised entries change a row by more than 1e-6.
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
            where = f"{name}{_indices(row)}"
            raise InputError(
                f"{where}: row sums to {sums[row]:.9g}; each row must sum to 1 within {ROW_SUM_TOLERANCE:g}"
            )
        wanted = array / sums[..., None]
        weights = quantise_rows(array)
        if not self.allow_drop_tiny:
            self._keep_possible(name, wanted, weights)
        quantised = weights / UNIT
        self.change = max(self.change, float(np.abs(quantised - wanted).max()))
        self.distance += _divergence(quantised, wanted)
        return torch.from_numpy(quantised)

    def exact(self, name: str, rows: object, shape: tuple[int | None, ...]) -> Tensor:
        tensor = as_tensor(name, rows, shape)
        if all(_is_exact(part) for part in tensor.split(max(1, _CHUNK // max(1, tensor[0].numel())))):
            return tensor
        return self.rows(name, tensor, shape)

    def _keep_possible(self, name: str, wanted: NDArray[np.float64], weights: NDArray[np.int64]) -> None:
        tiny = (wanted > 0) & (wanted * UNIT < 1)
        if not tiny.any():
            return
        raised = np.where(tiny, 1 - weights, 0)
        moved = np.where(tiny, 1 / UNIT - wanted, 0.0).sum(-1)
        if moved.max() > ROW_SUM_TOLERANCE:
            row = np.unravel_index(int(moved.argmax()), moved.shape)
            raise InputError(
                f"{name}{_indices(row)}: {int(tiny[row].sum())} positive entries are below 2^-32; raising them to 2^-32 "
                f"would change the row by {moved[row]:.2g}, more than {ROW_SUM_TOLERANCE:g}; set them to 0 or pass "
                "allow_drop_tiny=True"
            )
        weights += raised
        np.put_along_axis(
            weights,
            (largest := weights.argmax(-1)[..., None]),
            np.take_along_axis(weights, largest, -1) - raised.sum(-1, keepdims=True),
            -1,
        )
        if not self._raised:
            where = tuple(np.argwhere(tiny)[0])
            self._first = f"{name}{_indices(where)} = {wanted[where]:.3g}"
        self._raised += int(tiny.sum())
        self._moved = max(self._moved, float(moved.max()))

    def finish(self) -> float:
        """Warn if entries were raised to 2^-32 or rows changed much; return the largest change."""
        if self._raised:
            several = self._raised > 1
            warnings.warn(
                f"{self.what}: {self._raised} positive {'entries' if several else 'entry'} below 2^-32 "
                f"{'were' if several else 'was'} raised to 2^-32 (first {self._first}), which changed a row by at most "
                f"{self._moved:.2g}; pass allow_drop_tiny=True to round to the nearer of 0 and 2^-32",
                stacklevel=3,
            )
        if self.distance > FAR:
            warnings.warn(
                f"{self.what}: rounding to multiples of 2^-32 changed the distribution by a KL divergence of up to "
                f"{self.distance:.2g} nats per step, more than {FAR:g}; set entries of impossible events to 0",
                stacklevel=3,
            )
        return self.change


def _divergence(quantised: NDArray[np.float64], wanted: NDArray[np.float64]) -> float:
    away = quantised - wanted
    small = wanted < 2.0**-20
    terms = np.divide(away * away, wanted, out=np.zeros_like(wanted), where=~small)
    q, p = quantised[small], wanted[small]
    both = (q > 0) & (p > 0)
    terms[small] = np.where(both, q * np.log(np.where(both, q, 1.0) / np.where(both, p, 1.0)), 0.0) - q + p
    return float(terms.sum(-1).max())


#: Numbers per chunk of a check.
_CHUNK = 2**22


def _is_exact(rows: Tensor) -> bool:
    weights = rows * UNIT
    within = bool(((weights >= 0) & (weights <= UNIT) & (weights == weights.floor())).all())
    return within and bool((weights.sum(-1) == UNIT).all())  # sums of up to 2^20 integers below 2^33 are exact


def as_tensor(name: str, rows: object, shape: tuple[int | None, ...]) -> Tensor:
    if not (isinstance(rows, torch.Tensor) and rows.dtype == torch.float64):
        rows = torch.from_numpy(as_float64(name, rows))
    if rows.ndim != len(shape) or any(want not in (None, got) for want, got in zip(shape, rows.shape, strict=True)):
        require_shape(name, rows.numpy(), shape)
    if rows.numel() == 0:
        raise InputError(f"{name}: is empty; a process has at least one state and one symbol")
    return rows


def stochastic_rows(
    name: str, rows: object, shape: tuple[int | None, ...], *, allow_drop_tiny: bool = False
) -> tuple[Tensor, float]:
    quantiser = Quantiser(name, allow_drop_tiny=allow_drop_tiny)
    quantised = quantiser.rows(name, rows, shape)
    return quantised, quantiser.finish()


def laws_of(name: str, rows: object, shape: tuple[int | None, ...]) -> Float64[Tensor, "*row outcome"]:
    """Return normalized float distributions; raise InputError unless rows sum to one within 1e-6."""
    array = numbers_of(name, rows, shape)
    require(bool((array >= 0).all()), name, "must not be negative", float(array.min()))
    sums = array.sum(-1, keepdim=True)
    worst = float((sums - 1).abs().max())
    require(worst <= ROW_SUM_TOLERANCE, name, f"must have rows that sum to 1 within {ROW_SUM_TOLERANCE:g}", worst + 1)
    return torch.where((sums - 1).abs() > _ROUNDING, array / sums, array)


def numbers_of(name: str, numbers: object, shape: tuple[int | None, ...]) -> Float64[Tensor, "..."]:
    array = as_float64(name, numbers)
    require_shape(name, array, shape)
    if array.size == 0:
        raise InputError(f"{name}: is empty; a process has at least one state and one coordinate")
    require(bool(np.isfinite(array).all()), name, "must be finite", "NaN or infinity")
    return torch.from_numpy(np.ascontiguousarray(array))


def _indices(where: Sequence[Any]) -> str:
    return "".join(f"[{i}]" for i in where)


def require_shape(name: str, array: NDArray[np.float64], shape: tuple[int | None, ...]) -> None:
    """Raise InputError unless the array has the shape; None matches any size."""
    if array.ndim != len(shape) or any(want not in (None, got) for want, got in zip(shape, array.shape, strict=True)):
        wanted = " x ".join("any" if size is None else str(size) for size in shape)
        found = " x ".join(map(str, array.shape)) or "a single number"
        raise InputError(f"{name}: must have shape {wanted}, got {found}")


def as_float64(name: str, rows: object) -> NDArray[np.float64]:
    if isinstance(rows, torch.Tensor):
        if rows.dtype not in _TENSOR_TYPES:
            raise InputError(f"{name}: must hold real numbers in 32 bits or more, got {rows.dtype}")
        rows = rows.detach().cpu().numpy()
    refuse_masked(name, rows)
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
        raise InputError(f"{name}{_indices(where)}: {array[where]!s} {what}")
