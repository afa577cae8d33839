"""Compare stored results with those of an earlier revision: every row, finding, figure and verdict.

Run from the root of the repository:

    python scripts/compare_results.py REVISION            print the differences; exit with 1 if there are any
    python scripts/compare_results.py REVISION --out compared.md

Marks that identify rules are ignored. If a revision does not store a figure, the present code draws it from its tables.
"""

import argparse
import subprocess
import sys
import tempfile
from collections import Counter
from datetime import date
from pathlib import Path
from typing import Any

from kept_results import OUTER, Kept

from hmmscope.lab.evidence.derived import figures_of
from hmmscope.lab.evidence.rows import as_tables
from hmmscope.storage import packed, store

RESULTS = Kept(Path())


def checked_out(revision: str, place: Path) -> Kept:
    """Extract the folders results/ of a revision into `place`."""
    folders = ["results", *(f"{outer}/results" for outer in OUTER.values())]
    names = subprocess.run(["git", "ls-tree", "--name-only", revision, *folders], check=True, capture_output=True)
    archive = subprocess.run(
        ["git", "archive", revision, *names.stdout.decode().split()], check=True, capture_output=True
    ).stdout
    subprocess.run(["tar", "-x", "-C", str(place)], input=archive, check=True)
    return Kept(place)


def folders_of(kept: Kept) -> dict[str, Path]:
    """Return the folders of experiments by scale and name, wherever a distribution stores them."""
    return {"/".join(path.parts[-3:-1]): path.parent for path in kept.glob("*/*/experiment.json")}


def rows_of(kept: Kept) -> list[dict]:
    """Return the rows of the ledger; the folder in each row starts with the scale."""
    rows = store.read_json(next(kept.rglob("ledger.json")))
    return [row | {"folder": row["folder"].rpartition("results/")[2]} if row.get("folder") else row for row in rows]


def figures(folder: Path, tables: dict[str, list[dict]]) -> list[Any]:
    """Return the data of all figures of a folder, stored or drawn."""
    if (folder / "figures").is_dir():
        return [store.read_json(path) for path in sorted((folder / "figures").glob("*.json"))]
    name = store.read_json(folder / "experiment.json")["experiment"]
    drawn = figures_of(name, as_tables(tables))
    return [store.parse(store.json_bytes(figure.to_data(), "figure"), "figure") for figure in drawn]


def compare(before: Path, now: Path, counts: Counter[str]) -> list[str]:
    """List differences between two folders of an experiment and scale; `counts` gets the numbers of compared parts."""
    old, new = packed.read_tables(before), packed.read_tables(now)
    found = [f"table {name}" for name in sorted(old.keys() | new.keys()) if old.get(name) != new.get(name)]
    counts["tables"] += len(old)
    counts["rows"] += sum(map(len, old.values()))
    findings = [judged(one) for one in (before, now)]
    if findings[0] is not None:
        counts["findings"] += len(findings[0])
        found += ["findings"] if findings[0] != findings[1] else []
        drawn = figures(before, old), figures(now, new)
        counts["figures"] += len(drawn[0])
        before_by, now_by = ({one["name"]: one for one in data} for data in drawn)
        found += [f"figure {name}" for name, one in before_by.items() if one != now_by.get(name)]
        found += [f"a new figure, {name}" for name in now_by.keys() - before_by.keys()]
    return found


def judged(folder: Path) -> list[dict] | None:
    """Return the findings of a folder without the marks of their rules, or None."""
    if not (folder / "findings.json").exists():
        return None
    return [{k: v for k, v in one.items() if k != "rule_version"} for one in store.read_json(folder / "findings.json")]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("revision")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    counts, lines = Counter[str](), []
    with tempfile.TemporaryDirectory() as place:
        kept = checked_out(options.revision, Path(place)), RESULTS
        old, new = map(folders_of, kept)
        for name in sorted(old.keys() | new.keys()):
            if name in old and name in new:
                differ = compare(old[name], new[name], counts)
            else:
                differ = ["only " + ("before" if name in old else "now")]
            lines += [f"{name}: {', '.join(differ)}"] if differ else []
        ledgers = [rows_of(each) for each in kept]
    counts["rows of the ledger"] = len(ledgers[0])
    lines += [
        f"ledger: {one['claim'] if one else other['claim']}"
        for one, other in zip(*(by_claim(each, ledgers) for each in ledgers), strict=True)
        if one != other
    ]
    compared = ", ".join(f"{count:,} {what}" for what, count in counts.items())
    said = [
        f"Compared with revision {options.revision} on {date.today()}: {compared}.",
        f"{len(lines)} differences.",
        *lines,
    ]
    print("\n".join(said))
    if options.out is not None:
        command = f"`python scripts/compare_results.py {options.revision}`"
        text = ["# Comparison of stored results", "", f"{command} prints:", "", "```text", *said, "```", ""]
        store.write_text(options.out, "\n".join(text))
    return 1 if lines else 0


def by_claim(ledger: list[dict], both: list[list[dict]]) -> list[dict | None]:
    """Return the rows of one ledger, in an order of claims that is common to both ledgers."""
    own = {(row["claim"], row.get("scale")): row for row in ledger}
    return [own.get(key) for key in dict.fromkeys((row["claim"], row.get("scale")) for one in both for row in one)]


if __name__ == "__main__":
    sys.exit(main())
