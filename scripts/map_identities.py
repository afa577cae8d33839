"""Record which marks of older files belong to which version of claims and measurements; it ran once, for release 0.2.

Until 0.2 the mark of a rule or measurement was a digest of syntax, which cannot distinguish moved lines from changed
numbers. Stored files contain these marks as a record of what was fixed before the data. This script gets the digests from a
checkout of that time and writes them as ``once`` into src/hmmscope/experiments/claims:

    git worktree add /tmp/before f8663e6
    PYTHONPATH=/tmp/before/src python scripts/map_identities.py

The digest of a rule belongs to version 1, because rules did not change. The digest of a measurement belongs to its present
version; other digests in results/ belong to earlier versions, by date. Marks without a record belong to no version.
"""

# ruff: noqa: I001 - modules of that time
import json
import re
from pathlib import Path

from hmmscope import registry
from hmmscope.experiments.experiment import experiment_named
from hmmscope.experiments.parts import measurement_code

ROOT = Path(__file__).parents[1]
CLAIMS = ROOT / "src/hmmscope/experiments/claims"


def marks_of_parts(experiment: str) -> list[str]:
    """Return the marks of an experiment's stored parts, the oldest first."""
    found: dict[str, str] = {}
    for index in sorted(ROOT.glob(f"*/results/*/{experiment}/parts.jsonl")):
        for line in index.read_text().splitlines():
            row = json.loads(line)
            found[row["code"]] = min(row["created"], found.get(row["code"], "9999"))
    return sorted(found, key=lambda mark: found[mark])


def table(marks: dict[str, int]) -> str:
    return "{ " + ", ".join(f'"{mark}" = {version}' for mark, version in marks.items()) + " }"


def measurement(experiment: str) -> str:
    """Return the section on an experiment's measurement."""
    present = measurement_code(experiment_named(experiment))
    older = [mark for mark in marks_of_parts(experiment) if mark != present]
    once = {mark: number for number, mark in enumerate([*older, present], 1)}
    return f"[measurement]\nversion = {len(once)}\nonce = {table(once)}\n"


def main() -> None:
    rules = {claim.name: claim.rule_version for claim in registry.in_order("claim")}
    for path in sorted(CLAIMS.glob("*.toml")):
        text = re.sub(r"\[measurement\]\n(?:\w.*\n)*", lambda _, name=path.stem: measurement(name), path.read_text())
        for name, mark in rules.items():
            old = f'["{name}"]' if "." in name else f"[{name}]"
            text = text.replace(f"\n{old}\nversion = 1\n", f"\n{old}\nversion = 1\nonce = {table({mark: 1})}\n")
        path.write_text(text)


if __name__ == "__main__":
    main()
