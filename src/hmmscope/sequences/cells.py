"""Cells of a table in a file, and columns of a frame."""

import csv
import io
import re
from typing import Any, NamedTuple

import numpy as np
import torch

from hmmscope.errors import InputError

#: Characters of a text, and of a cell: a cell may be a gene.
MAX_TEXT = 1 << 30


class TableCells(NamedTuple):
    """The rows of a table that hold something, of which an empty cell is something, and their numbers from 1 on."""

    cells: list[list[str]]
    numbers: list[int]


def read_cells(text: str, what: str, delimiter: str) -> TableCells:
    """The cells of a table without the spaces around them.

    In a table of one column a blank line is an empty cell, but at the end.

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
    """Whole numbers or truths in a column of a frame as an array, whatever labels its rows have; anything else as it is."""
    kind = str(getattr(source, "dtype", ""))
    plain = isinstance(source, np.ndarray | torch.Tensor) or getattr(source, "ndim", None) != 1
    return source if plain or not re.fullmatch(r"u?int(8|16|32|64)|bool", kind) else np.asarray(source)
