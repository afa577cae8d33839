"""Cells of tables, and columns of frames."""

import csv
import io
import re
from typing import Any, NamedTuple

import numpy as np
import torch

from hmmscope.errors import InputError

#: Most characters of a text, and of a cell.
MAX_TEXT = 1 << 30


class TableCells(NamedTuple):
    """The nonempty rows of a table, and their row numbers from 1."""

    cells: list[list[str]]
    numbers: list[int]


def read_cells(text: str, what: str, delimiter: str) -> TableCells:
    """Return the stripped cells of a table.

    A blank line in a table of one column is an empty cell, except at the end.

    Raises:
        InputError: not CSV.
    """
    limit = csv.field_size_limit(MAX_TEXT)
    try:
        rows = list(csv.reader(io.StringIO(text), delimiter=delimiter, strict=True))
    except csv.Error as error:
        raise InputError(f"{what}: not CSV ({error})") from None
    finally:
        csv.field_size_limit(limit)
    while rows and not rows[-1]:
        rows.pop()
    one_column = any(rows) and len(next(filter(None, rows))) == 1
    numbers = [number for number, row in enumerate(rows, 1) if row or one_column]
    return TableCells([[cell.strip() for cell in rows[number - 1]] or [""] for number in numbers], numbers)


def as_row(source: Any) -> Any:
    """Convert an integer or boolean column of a data frame to an array; return anything else unchanged."""
    kind = str(getattr(source, "dtype", ""))
    plain = isinstance(source, np.ndarray | torch.Tensor) or getattr(source, "ndim", None) != 1
    return source if plain or not re.fullmatch(r"u?int(8|16|32|64)|bool", kind) else np.asarray(source)
