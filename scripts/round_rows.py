"""Kept numbers with as many digits as networks in float32 have, which takes half of the room.

    python scripts/round_rows.py results/medium/limits-fig2 epochs distances
    python scripts/round_rows.py results/paper/multitask-fig7 offsets value

A number is an average over samples of what a network in float32 says: its seventh digit is the last that says anything.
In parts.jsonl and in the seal stands when it was done.
"""

import argparse
from pathlib import Path
from typing import Any

from add_rows import Change, rewrite

DIGITS = 7


def shorter(value: Any) -> Any:
    """A number, or a list of numbers, with so many digits; anything else as it is."""
    if isinstance(value, list):
        return [shorter(one) for one in value]
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value


def rounded(table: str, column: str) -> Change:
    """A change that rounds what stands in a column of a table."""
    return lambda plan, seed, part: {table: [row | {column: shorter(row[column])} for row in part[table]]}


def main() -> None:
    """See above."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    parser.add_argument("table", metavar="TABLE")
    parser.add_argument("column", metavar="COLUMN")
    given = parser.parse_args()
    rewrite(given.folder, rounded(given.table, given.column), "rounded")


if __name__ == "__main__":
    main()
