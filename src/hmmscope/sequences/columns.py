"""Arrays and columns of other libraries, as NumPy arrays or lists."""

from collections.abc import Collection, Mapping, Sequence
from datetime import UTC
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hmmscope.errors import InputError


def to_plain(source: Any) -> Any:
    """Convert a tensor, array or column to a NumPy array, masked array or list; return other objects unchanged.

    Arrays get native byte order, positive strides and a dtype that torch supports; columns with nulls become lists.
    """
    if isinstance(source, torch.Tensor):
        if source.is_nested:
            raise InputError("observations: must not be a nested tensor; pass a list of tensors, list(x.unbind())")
        dense = (source.to_dense() if source.layout != torch.strided else source).detach().cpu()
        return (dense.float() if dense.dtype == torch.bfloat16 else dense).resolve_conj().resolve_neg().numpy()
    if isinstance(source, np.ndarray):
        return _native(source)
    if isinstance(source, str | bytes | bytearray | list | tuple | Mapping | Path) or is_frame(source):
        return source
    if hasattr(source, "dims") and hasattr(source, "values"):  # xarray
        return _native(np.asarray(source.values))
    dtype = str(getattr(source, "dtype", getattr(source, "type", "")))
    if dtype.startswith("datetime64["):
        return source.to_list() if "," in dtype else _native(np.asarray(source))
    if getattr(source, "ndim", None) == 1 and dtype in _NUMPY:
        return _native(np.asarray(source))
    method = next((m for m in ("to_pylist", "as_py", "to_list", "tolist") if hasattr(source, m)), None)
    if method is None:
        return list(source) if isinstance(source, Sequence) else source
    try:
        values = getattr(source, method)()
    except LookupError:  # Python has no database of time zones
        return [one and one.replace(tzinfo=UTC) for one in np.asarray(source).astype("datetime64[us]").tolist()]
    if isinstance(values, list) and values and all(type(value) in (bool, int, float) for value in values):
        found = np.asarray(values)
        return found if found.dtype.kind in "iufb" else values
    return values


def is_indices(source: Any) -> bool:
    """Return whether numbers are known to be indices of symbols: in tensors, and arrays from this library."""
    if isinstance(source, list | tuple):
        return bool(source) and all(map(is_indices, source))
    return isinstance(source, torch.Tensor) or (isinstance(source, np.ndarray) and hasattr(source, "to_pandas"))


def own_rows(source: Any, lengths: Any = None) -> tuple[Any, Any]:
    """Return a source, or a sample's observations, and `lengths`, by default those of an array from this library."""
    if isinstance(source, tuple) and hasattr(source, "observations"):
        source = source.observations
    own = getattr(source, "lengths", ()) if isinstance(source, np.ndarray) and is_indices(source) else ()
    known = lengths is None and (len(own) > 1 or (len(own) == 1 and source.ndim == 2 and source.dtype.kind == "f"))
    return source, ([count for count in own if count] or None) if known else lengths


_NUMPY = {f"{kind}{size}" for kind in ("int", "uint") for size in (8, 16, 32, 64)} | {"bool", "float32", "float64"}


def _native(array: NDArray[Any]) -> NDArray[Any]:
    kind, size = array.dtype.kind, array.dtype.itemsize
    if type(array) is not np.ndarray and not isinstance(array, np.ma.MaskedArray):
        array = np.asarray(array)
    if kind == "f" and size not in (4, 8):
        return array.astype(np.float64 if size > 8 else np.float32)
    if kind in "iuf" and not array.dtype.isnative:
        return array.astype(array.dtype.newbyteorder("="))
    dates = kind in "mM" and isinstance(array, np.ma.MaskedArray)
    if kind == "T":  # variable-width text
        return array.astype(object)
    if dates or (kind == "O" and any(isinstance(one, np.datetime64 | np.timedelta64) for one in array.flat)):
        return array.astype(str)  # float() would read dates as day numbers
    return array.copy() if any(stride < 0 for stride in array.strides) else array


def writable(array: NDArray[Any]) -> NDArray[Any]:
    """Return the array, or a copy if it is read-only, so that torch can share its memory without a warning."""
    return array if array.flags.writeable else array.copy()


def is_frame(source: Any) -> bool:
    if isinstance(source, np.ndarray):
        return source.dtype.names is not None
    if isinstance(source, torch.Tensor | str | list | tuple):
        return False
    if hasattr(source, "collect_schema"):  # polars warns of `columns` of a lazy frame
        return True
    names = getattr(source, "column_names", None)
    names = getattr(source, "columns", None) if names is None else names
    named = names is not None and not callable(names)
    return (named and (hasattr(source, "__getitem__") or isinstance(names, Mapping))) or hasattr(source, "data_vars")


def categories_of(column: Any) -> list[Any] | None:
    """Return the categories of a column, or None; ordered numbers are names, as text, unless they are 0, 1, ..."""
    dtype = getattr(column, "dtype", getattr(column, "type", None))
    if str(dtype) == "category":
        found = list(getattr(column, "cat", column).categories)
    elif type(dtype).__name__ == "Enum" and hasattr(dtype, "categories"):  # polars
        found = list(getattr(dtype, "categories", ()))
    elif type(dtype).__name__ == "DictionaryType" and getattr(dtype, "ordered", False):  # pyarrow
        one = column.unify_dictionaries().chunk(0) if hasattr(column, "unify_dictionaries") else column
        found = one.dictionary.to_pylist()
    else:
        return None
    whole = all(isinstance(one, int) for one in found) and found != list(range(len(found)))
    return list(map(str, found)) if whole and getattr(dtype, "ordered", False) else found


def listed_columns(column: Any) -> list[str] | None:
    if isinstance(column, Collection) and not isinstance(column, str):
        return list(map(str, column))
    return None if column is None else [str(column)]  # columns of frames may be numbers


def as_labels(index: Any) -> NDArray[Any]:
    found = np.asarray(index)
    return found.astype("datetime64[us]") if found.dtype.kind == "M" else found


def labels_of(source: Any) -> Any:
    index = getattr(source, "index", None)
    if hasattr(source, "indexes") and len(getattr(source, "dims", ())) == 1:
        index = next(iter(source.indexes.values()), None)
    if index is None or callable(index) or not hasattr(index, "dtype") or not hasattr(index, "is_unique"):
        return None
    return None if type(index).__name__ == "RangeIndex" and (index.start, index.step) == (0, 1) else index
