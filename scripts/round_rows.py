"""Round stored numbers to the digits of float32 networks, which halves their size.

    python scripts/round_rows.py papers/results/medium/limits-fig2 epochs distances
    python scripts/round_rows.py papers/results/paper/multitask-fig7 offsets value

Numbers are averages over samples of float32 outputs, so seven digits are enough. parts.jsonl and the seal record the
rounding.
"""

import argparse
from pathlib import Path
from typing import Any

from add_rows import Change, rewrite

DIGITS = 7


def shorter(value: Any) -> Any:
    """Round a number or list of numbers; return any other value unchanged."""
    if isinstance(value, list):
        return [shorter(one) for one in value]
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value


def rounded(table: str, column: str) -> Change:
    """Return a change that rounds a column of a table."""
    return lambda plan, seed, part: {table: [row | {column: shorter(row[column])} for row in part[table]]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    parser.add_argument("table", metavar="TABLE")
    parser.add_argument("column", metavar="COLUMN")
    given = parser.parse_args()
    rewrite(given.folder, rounded(given.table, given.column), "rounded")


if __name__ == "__main__":
    main()
