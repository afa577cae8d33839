"""Makes the frozen tables on which rules are known by what they do, from kept tables of the same columns.

    python tests/evidence/probing.py papers/results/small/limits-fig3 ...

Tables keep three seeds at most, three digits, and the columns that a claim reads. Of the alterations (see `acts.altered`)
those are kept that show a verdict or a side of a gate that those before them do not show.
"""

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from golden_verdicts import act, altered, in_columns, probe, read, same, write
from hmmscope.lab.evidence.claim import claims_of
from hmmscope.lab.evidence.ledger import read_tables
from hmmscope.lab.evidence.rows import Rows, Tables

#: Alterations that are tried, and that are kept at most before constants of rules are asked for.
TRIED, MOST = 40, 8
#: Rows beyond which a table is thinned.
MOST_ROWS = 5000


def frozen(experiment: str, tables: Tables) -> dict[str, Any]:
    """Tables as they are kept: the columns that a claim reads."""
    made: dict[str, Rows] = {}
    for name, rows in tables.items():
        kept = rows.where(seed=rows.seeds()[:3]) if rows.seeds() != [None] else rows
        made[name] = Rows({column: _short(value) for column, value in row.items()} for row in _thin(kept))
    claims = claims_of(experiment)
    now = [act(claim, made) for claim in claims]

    def matters(less: Tables) -> bool:
        return any(not same(one, act(claim, less)) for one, claim in zip(now, claims, strict=True))

    for name in list(made):
        if not matters(less := {other: rows for other, rows in made.items() if other != name}):
            made = less
            continue
        for column in sorted({column for row in made[name] for column in row} - {"seed"}):
            without = Rows({key: value for key, value in row.items() if key != column} for row in made[name])
            if not matters(less := {**made, name: without}):
                made = less
    return {name: in_columns(rows) for name, rows in made.items()}


def _thin(rows: Rows) -> Rows:
    """Every second place of the longest axis of whole numbers, as long as there are too many rows."""
    while len(rows) > MOST_ROWS:
        axes = {
            name: sorted({row[name] for row in rows})
            for name in rows[0]
            if name != "seed" and all(type(row.get(name)) is int for row in rows)
        }
        longest = max(axes, key=lambda name: len(axes[name]) if len(axes[name]) < 1000 else 0, default=None)
        if longest is None or len(axes[longest]) < 4:
            return rows
        values = axes[longest]
        rows = rows.where(**{longest: {*values[::2], values[-1]}})
    return rows


def _short(value: Any) -> Any:
    if isinstance(value, list):
        return [_short(one) for one in value]
    return float(f"{value:.3g}") if isinstance(value, float) else value


def features(experiment: str, tables: Tables) -> set[tuple[Any, ...]]:
    """What the claims show on tables: verdicts, and sides of gates."""
    found: set[tuple[Any, ...]] = set()
    for claim in claims_of(experiment):
        one = act(claim, tables)
        if "raises" in one:
            continue
        found.add((claim.name, one["verdict"], len(one["effects"]) > 0))
        found |= {(claim.name, number, gate[0], gate[1]) for number, gate in enumerate(one["gates"])}
    return found


def search(experiment: str, tables: Tables, numbers: Iterable[int]) -> list[int]:
    """Alterations that show what the others do not."""
    shown = {number: features(experiment, altered(tables, number)) for number in numbers}
    chosen, seen = [0], set(shown[0])
    while len(chosen) < MOST:
        best = max(shown, key=lambda number: len(shown[number] - seen))
        if not shown[best] - seen:
            break
        chosen.append(best)
        seen |= shown[best]
    return sorted(chosen)


def main(folders: list[str]) -> None:
    """Freeze the tables of these folders."""
    for folder in folders:
        print(folder, end=": ", flush=True)
        about, tables = read_tables(Path(folder))
        name = about["experiment"]
        write("fixtures", name, {"tables": frozen(name, tables), "alterations": [0]})
        probe.cache_clear()
        own, _ = probe(name)
        chosen = search(name, own, range(TRIED))
        write("fixtures", name, read("fixtures", name) | {"alterations": chosen})
        probe.cache_clear()
        print(chosen, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
