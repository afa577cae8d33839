"""Rows of probabilities as multiples of 2^-32: what is accepted, and what has to move."""

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hmmscope.axes import Float64, Tensor
from hmmscope.errors import InputError
from hmmscope.kernels.quantise import UNIT, quantise_rows
from hmmscope.schema import refuse_masked, require

_TENSOR_TYPES = {torch.float32, torch.float64, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64}

#: Rows may sum to one up to this without being divided by their sum: what is read back has the same bits.
_ROUNDING = 1e-13
#: How far from one a row may sum before it is refused, and how much of a row may move to keep what is possible possible.
ROW_SUM_TOLERANCE = 1e-6
#: Nats a step from the given law, above which a process says so.
FAR = 1e-6


class Quantiser:
    """Reads the rows of one process, moves them to the nearest law of multiples of 2^-32, and says once what that moved.

    Exact zeros stay zero and what is possible stays possible: a positive entry below 2^-32 becomes 2^-32, and its row's
    largest entry gives up the difference. All other entries move by less than 2^-32 (largest remainder).

    Args:
        what: the kind of process, for the warning.
        allow_drop_tiny: round entries below 2^-32 like all others instead, most of them to zero, without a word.

    Attributes:
        change: the largest change of an entry so far.
        distance: at most so many nats a step does the law of paths differ: over all arrays so far the sum of the largest
            KL(quantised row | given row), which no law of the states can exceed.
    """

    def __init__(self, what: str, *, allow_drop_tiny: bool = False) -> None:
        self.what, self.allow_drop_tiny, self.change, self.distance = what, allow_drop_tiny, 0.0, 0.0
        self._raised, self._moved, self._first = 0, 0.0, ""

    def rows(self, name: str, rows: object, shape: tuple[int | None, ...]) -> Tensor:
        """Rows checked and quantised.

        Args:
            name: the matrix, for messages.
            rows: anything NumPy reads as numbers.
            shape: required shape; None for any size of at least one.

        Raises:
            InputError: wrong shape; an entry that is NaN, infinite, negative; a row that does not sum to one within
                1e-6; a row in which so many entries lie below 2^-32 that more than 1e-6 would have to move.
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
        """As `rows`; what holds multiples of 2^-32 already, with sums of one, is returned as it is and not copied."""
        tensor = as_tensor(name, rows, shape)
        if all(_is_exact(part) for part in tensor.split(max(1, _CHUNK // max(1, tensor[0].numel())))):
            return tensor
        return self.rows(name, tensor, shape)

    def _keep_possible(self, name: str, wanted: NDArray[np.float64], weights: NDArray[np.int64]) -> None:
        """Give every positive entry a weight of at least one, at the cost of the largest of its row, in place."""
        tiny = (wanted > 0) & (wanted * UNIT < 1)
        if not tiny.any():
            return
        raised = np.where(tiny, 1 - weights, 0)
        moved = np.where(tiny, 1 / UNIT - wanted, 0.0).sum(-1)
        if moved.max() > ROW_SUM_TOLERANCE:
            row = np.unravel_index(int(moved.argmax()), moved.shape)
            raise InputError(
                f"{name}{_indices(row)}: {int(tiny[row].sum())} entries are positive but below 2^-32; to keep them "
                f"possible would move {moved[row]:.2g} of the row, more than {ROW_SUM_TOLERANCE:g}; set them to 0 or pass "
                "allow_drop_tiny"
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
        """`change`, after one warning if entries were raised, and one if the law of paths has moved far."""
        if self._raised:
            several = self._raised > 1
            warnings.warn(
                f"{self.what}: {self._raised} positive {'entries' if several else 'entry'} below 2^-32 "
                f"{'are' if several else 'is'} 2^-32 now (first {self._first}); this moved at most {self._moved:.2g} of a "
                "row; allow_drop_tiny rounds to zero instead",
                stacklevel=3,
            )
        if self.distance > FAR:
            warnings.warn(
                f"{self.what}: on the grid of 2^-32 its law is up to {self.distance:.2g} nats a step from the given one, "
                f"more than {FAR:g}; entries below 2^-32 that are to be impossible should be 0",
                stacklevel=3,
            )
        return self.change


def _divergence(quantised: NDArray[np.float64], wanted: NDArray[np.float64]) -> float:
    """The largest KL(quantised row | wanted row), nats: sum of q log(q / p) - q + p, whose terms are all at least 0.

    Where p is not small a term is at most (q - p)^2 / p, and that is taken: below 2^-44.
    """
    away = quantised - wanted
    small = wanted < 2.0**-20
    terms = np.divide(away * away, wanted, out=np.zeros_like(wanted), where=~small)
    q, p = quantised[small], wanted[small]
    both = (q > 0) & (p > 0)
    terms[small] = np.where(both, q * np.log(np.where(both, q, 1.0) / np.where(both, p, 1.0)), 0.0) - q + p
    return float(terms.sum(-1).max())


#: Numbers that are checked at once.
_CHUNK = 2**22


def _is_exact(rows: Tensor) -> bool:
    weights = rows * UNIT
    within = bool(((weights >= 0) & (weights <= UNIT) & (weights == weights.floor())).all())
    return within and bool((weights.sum(-1) == UNIT).all())  # sums of up to 2^20 integers below 2^33 are exact


def as_tensor(name: str, rows: object, shape: tuple[int | None, ...]) -> Tensor:
    """Real numbers of that shape as float64; a float64 tensor is returned as it is. InputError for anything else."""
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
    """One array of rows, quantised by a `Quantiser` of its own, and the largest change that this made."""
    quantiser = Quantiser(name, allow_drop_tiny=allow_drop_tiny)
    quantised = quantiser.rows(name, rows, shape)
    return quantised, quantiser.finish()


def laws_of(name: str, rows: object, shape: tuple[int | None, ...]) -> Float64[Tensor, "*row outcome"]:
    """Laws in floats, divided by their sums where these are not one; InputError unless every row is one within 1e-6."""
    array = numbers_of(name, rows, shape)
    require(bool((array >= 0).all()), name, "must not be negative", float(array.min()))
    sums = array.sum(-1, keepdim=True)
    worst = float((sums - 1).abs().max())
    require(worst <= ROW_SUM_TOLERANCE, name, f"must have rows that sum to 1 within {ROW_SUM_TOLERANCE:g}", worst + 1)
    return torch.where((sums - 1).abs() > _ROUNDING, array / sums, array)


def numbers_of(name: str, numbers: object, shape: tuple[int | None, ...]) -> Float64[Tensor, "..."]:
    """Finite numbers of that shape, None for any size of at least one; InputError for anything else."""
    array = as_float64(name, numbers)
    require_shape(name, array, shape)
    if array.size == 0:
        raise InputError(f"{name}: is empty; a process has at least one state and one coordinate")
    require(bool(np.isfinite(array).all()), name, "must be finite", "a number that is not")
    return torch.from_numpy(np.ascontiguousarray(array))


def _indices(where: Sequence[Any]) -> str:
    return "".join(f"[{i}]" for i in where)


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
