"""Seeds in words, and conversion of older commands to present options."""

import re
from collections.abc import Collection


def in_words(seeds: Collection[int]) -> str:
    rows = sorted(seeds)
    consecutive = len(rows) > 2 and rows == list(range(rows[0], rows[0] + len(rows)))
    named = f"{rows[0]} to {rows[-1]}" if consecutive else ", ".join(map(str, rows[:20])) + ", ..." * (len(rows) > 20)
    return f"seed {named}" if len(rows) == 1 else f"{len(rows)} seeds, {named}"


def as_written_now(command: str) -> str:
    return re.sub(r"--seeds (\d+)(?= |$)", r"--num-seeds \1", command)
