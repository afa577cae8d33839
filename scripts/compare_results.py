"""Compares what is kept in results/ with what an earlier revision kept: every row, finding, figure and verdict.

Run from the root of the repository:

    python scripts/compare_results.py REVISION            prints the differences, and ends with 1 if there is one
    python scripts/compare_results.py REVISION --out compared.md

The marks by which findings know their rules are left out. Figures that either side does not keep are drawn of its tables by
the experiments as they are now.
"""

import argparse
import subprocess
import sys
import tempfile
from collections import Counter
from datetime import date
from pathlib import Path
from typing import Any

from hmmscope.lab.evidence.derived import figures_of
from hmmscope.lab.evidence.rows import as_tables
from hmmscope.storage import packed, store

RESULTS = Path("results")


def checked_out(revision: str, place: Path) -> Path:
    """The folder results/ of a revision, in `place`."""
    archive = subprocess.run(["git", "archive", revision, "results"], check=True, capture_output=True).stdout
    subprocess.run(["tar", "-x", "-C", str(place)], input=archive, check=True)
    return place / "results"


def figures(folder: Path, tables: dict[str, list[dict]]) -> list[Any]:
    """The data of all figures of a folder, kept or drawn."""
    if (folder / "figures").is_dir():
        return [store.read_json(path) for path in sorted((folder / "figures").glob("*.json"))]
    name = store.read_json(folder / "experiment.json")["experiment"]
    drawn = figures_of(name, as_tables(tables))
    return [store.parse(store.json_bytes(figure.to_data(), "figure"), "figure") for figure in drawn]


def compare(before: Path, now: Path, counts: Counter[str]) -> list[str]:
    """What differs between two folders of one experiment and scale; what is compared is counted."""
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
    """The findings of a folder, without the marks of their rules; None without findings."""
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
        old = checked_out(options.revision, Path(place))
        names = sorted(
            {path.parent.relative_to(root) for root in (old, RESULTS) for path in root.glob("*/*/experiment.json")}
        )
        for name in names:
            there = [(root / name).is_dir() for root in (old, RESULTS)]
            differ = (
                compare(old / name, RESULTS / name, counts)
                if all(there)
                else ["only " + ("before" if there[0] else "now")]
            )
            lines += [f"{name}: {', '.join(differ)}"] if differ else []
        ledgers = [store.read_json(next(root.rglob("ledger.json"))) for root in (old, RESULTS)]
    counts["rows of the ledger"] = len(ledgers[0])
    lines += [
        f"ledger: {one['claim'] if one else other['claim']}"
        for one, other in zip(*(by_claim(each, ledgers) for each in ledgers), strict=True)
        if one != other
    ]
    compared = ", ".join(f"{count:,} {what}" for what, count in counts.items())
    said = [f"Compared with {options.revision} on {date.today()}: {compared}.", f"{len(lines)} differences.", *lines]
    print("\n".join(said))
    if options.out is not None:
        command = f"`python scripts/compare_results.py {options.revision}`"
        text = ["# What is kept, compared", "", f"{command} prints:", "", "```text", *said, "```", ""]
        store.write_text(options.out, "\n".join(text))
    return 1 if lines else 0


def by_claim(ledger: list[dict], both: list[list[dict]]) -> list[dict | None]:
    """The rows of one ledger, in the order of all claims of both."""
    own = {(row["claim"], row.get("scale")): row for row in ledger}
    return [own.get(key) for key in dict.fromkeys((row["claim"], row.get("scale")) for one in both for row in one)]


if __name__ == "__main__":
    sys.exit(main())
