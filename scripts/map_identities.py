"""Write into the records of claims which marks of older files stand for which version. Run once, when versions began.

Until 0.2 the mark of a rule and of a measurement was a digest of syntax. It told moved lines from changed numbers no better
than chance, so it is no identity. But files have such marks, and they say what was fixed before the data. This script asks a
checkout of that time for the digests of its own code, and notes them as ``once`` in src/hmmscope/experiments/claims:

    git worktree add /tmp/before f8663e6
    PYTHONPATH=/tmp/before/src python scripts/map_identities.py

A rule does what it did then, so its digest of then stands for version 1. Of measurements the digest of then stands for the
present version; other digests that parts in results/ have are of versions before it, in the order of the days on which they
measured. A mark that is in no record stands for nothing: nobody can name the rule or the measurement any more.
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
    """The marks that kept parts of an experiment have, the oldest first."""
    found: dict[str, str] = {}
    for index in sorted(ROOT.glob(f"results/*/{experiment}/parts.jsonl")):
        for line in index.read_text().splitlines():
            row = json.loads(line)
            found[row["code"]] = min(row["created"], found.get(row["code"], "9999"))
    return sorted(found, key=lambda mark: found[mark])


def table(marks: dict[str, int]) -> str:
    """A mapping in one line of TOML."""
    return "{ " + ", ".join(f'"{mark}" = {version}' for mark, version in marks.items()) + " }"


def measurement(experiment: str) -> str:
    """The section on what an experiment measures."""
    present = measurement_code(experiment_named(experiment))
    older = [mark for mark in marks_of_parts(experiment) if mark != present]
    once = {mark: number for number, mark in enumerate([*older, present], 1)}
    return f"[measurement]\nversion = {len(once)}\nonce = {table(once)}\n"


def main() -> None:
    """Add the marks to each file."""
    rules = {claim.name: claim.rule_version for claim in registry.in_order("claim")}
    for path in sorted(CLAIMS.glob("*.toml")):
        text = re.sub(r"\[measurement\]\n(?:\w.*\n)*", lambda _, name=path.stem: measurement(name), path.read_text())
        for name, mark in rules.items():
            old = f'["{name}"]' if "." in name else f"[{name}]"
            text = text.replace(f"\n{old}\nversion = 1\n", f"\n{old}\nversion = 1\nonce = {table({mark: 1})}\n")
        path.write_text(text)


if __name__ == "__main__":
    main()
