"""Reordering of inputs and known states, given in the rows of a table, to the order of the table's sequences."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from hmmscope.schema import require
from hmmscope.sequences.columns import is_frame, to_plain
from hmmscope.sequences.data import SequenceData

#: Options that change the order of a table's rows.
MOVING = ("group", "time", "sort", "every", "gap", "duplicates")


def in_table_order(name: str, values: Any, source: Any, reading: Mapping[str, Any]) -> Any:
    """Return `values`, one per row of a table, in the order of the table's `SequenceData`: a list per sequence.

    A time step without a row has None. Without options that reorder rows, `values` is returned.
    """
    if values is None:
        return None
    frame = is_frame(source)
    if frame and hasattr(values, "iloc") and hasattr(source, "iloc"):
        own, rows = values.index, source.index
        moved_rows = not own.equals(rows) and own.sort_values().equals(rows.sort_values())
        rule = "must have the rows of the source in the same order; use .loc[source.index]"
        require(not moved_rows, name, rule, "another order")
    moved = {key: reading[key] for key in MOVING if reading.get(key)}
    flat = to_plain(values)
    if not moved or not (frame or isinstance(source, Mapping)) or np.ndim(_scalars(flat)) != 1:
        return values
    numbers, place = np.arange(len(flat)), "row number"
    keys = list(source.columns if frame else source)
    if len(source[keys[0]]) != len(flat):
        return values
    table = source.assign(**{place: numbers}) if hasattr(source, "assign") else {key: source[key] for key in keys}
    table = table if hasattr(source, "assign") else table | {place: numbers}
    order = SequenceData(table, column=place, **moved)
    own = [None if n == order.num_symbols or n >= len(flat) else flat[n] for n in order.flat.tolist()]
    ends = np.cumsum(order.lengths.numpy()).tolist()
    return [own[begin:end] for begin, end in zip([0, *ends[:-1]], ends, strict=True)]


def _scalars(values: Any) -> Any:
    return values if not isinstance(values, list | tuple) or all(np.ndim(one) == 0 for one in values) else [[0]]


def from_one_hot(inputs: Any, lengths: Sequence[int]) -> tuple[Any, Any]:
    """Convert one-hot rows to (input numbers, names or number of inputs); return other formats as (`inputs`, None)."""
    names = tuple(map(str, inputs.columns)) if is_frame(inputs) and hasattr(inputs, "to_numpy") else None
    parts = [inputs.to_numpy()] if names else inputs if isinstance(inputs, list | tuple) else [inputs]
    if not all(isinstance(part, np.ndarray | torch.Tensor) for part in parts):
        return inputs, None
    arrays: list[Any] = [np.asarray(part) for part in parts]
    arrays = list(arrays[0]) if len(arrays) == 1 and arrays[0].ndim == 3 else arrays
    shapes = {one.shape[1:] for one in arrays}
    if (
        len(shapes) != 1
        or len(shape := shapes.pop()) != 1
        or shape[0] < 2
        or arrays[0].shape == (len(lengths), max(lengths))
    ):
        return inputs, None
    rows = np.concatenate(arrays)
    if rows.dtype.kind not in "biuf" or not (np.isin(rows, (0, 1)).all() and (rows.sum(1) == 1).all()):
        return inputs, None
    return np.split(rows.argmax(1), np.cumsum([len(one) for one in arrays])[:-1]), names or shape[0]
