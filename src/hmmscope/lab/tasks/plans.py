"""Descriptions of planned work in one line, which are printed before the work starts."""

import re
from collections.abc import Collection


def in_words(seeds: Collection[int]) -> str:
    """Describe seeds in one line: ``3 seeds, 0 to 2`` or ``2 seeds, 5, 7``."""
    rows = sorted(seeds)
    consecutive = len(rows) > 2 and rows == list(range(rows[0], rows[0] + len(rows)))
    named = f"{rows[0]} to {rows[-1]}" if consecutive else ", ".join(map(str, rows[:20])) + ", ..." * (len(rows) > 20)
    return f"seed {named}" if len(rows) == 1 else f"{len(rows)} seeds, {named}"


def as_written_now(command: str) -> str:
    """Rewrite a command stored by an older version: ``--seeds 5`` becomes ``--num-seeds 5``."""
    return re.sub(r"--seeds (\d+)(?= |$)", r"--num-seeds \1", command)
