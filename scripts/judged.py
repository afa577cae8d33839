"""Ten headlines of the papers, drawn by a seed, on a sheet for somebody who judges them and has seen nothing else.

    python scripts/judged.py             the sheet of docs/judged.toml, docs/judged.md, by the ledger as it is now
    python scripts/judged.py --draw 41   the names that another seed draws

docs/judged.toml has the seed, the sentences of the papers, and what was answered. The draw takes the headlines of which the
digest of the seed and the name is least, so that a headline more changes one of the ten at most.
"""

import argparse
import hashlib
import json
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
HEADLINES = ROOT / "tests" / "evidence" / "headlines.txt"
SHEET, SENTENCES = ROOT / "docs" / "judged.md", ROOT / "docs" / "judged.toml"
LEDGER = ROOT / "results" / "ledger.json"
COUNT = 10
_HEAD = """# Ten headlines, judged

Ten of the {all} headlines of both papers, drawn by `python scripts/judged.py --draw {seed}`; the sheet is made of the
[ledger](ledger.md) by `python scripts/judged.py`. Each has the sentence of the paper, what is measured for it and by which
rule, what differs from the paper, and the row. The question of each: **does what the row says follow from what stands on
this sheet, and would a reader of the paper's sentence be misled by it?** Who answers has seen nothing else of this project.
"""
_OPEN = "*not judged yet*"


def drawn(seed: int) -> list[str]:
    """The names of the headlines that a seed draws."""
    names = HEADLINES.read_text().split()
    return sorted(names, key=lambda name: hashlib.sha256(f"{seed} {name}".encode()).hexdigest())[:COUNT]


def sheet(asked: dict[str, Any], ledger: dict[str, dict[str, Any]]) -> str:
    """The page."""
    parts = [_HEAD.format(all=len(HEADLINES.read_text().split()), seed=asked["seed"])]
    for number, name in enumerate(drawn(asked["seed"]), 1):
        said = asked["headlines"][name]
        parts.append(section(number, ledger[name], said["sentence"], said.get("answer", "")))
    return "\n".join(parts)


def section(number: int, row: dict[str, Any], sentence: str, answer: str) -> str:
    """One headline."""
    has_interval = row["low"] is not None
    effect = f"{row['value']:.3g} [{row['low']:.3g}, {row['high']:.3g}] {row['unit'] or ''}" if has_interval else "none"
    seeds = "instances or exact" if row["seeds"] is None else f"{row['seeds']} seeds"
    gates = [f"{gate['name']} ({'open' if gate['is_open'] else 'closed'}): {gate['text']}" for gate in row["gates"]]
    lines = {
        "The paper": f"“{sentence}” ({row['source']})",
        "In our words": row["says"],
        "Measured": row["reading"],
        "Rule": row["rule"],
        "Gates": "; ".join(gates) or "none",
        "Differs from the paper": "; ".join(row["differs"]) or "nothing",
        "Budget": row["budget"] or "no training, or a law that reaches the budget of the paper",
        "Effect": f"{effect}, {seeds}, scale {row['scale']}",
        "Standing": "; ".join(
            [
                f"exploratory ({row['exploratory']})" if row["exploratory"] else "not exploratory",
                f"fragile: turns with {', '.join(row['fragile'])}" if row["fragile"] else "not fragile",
                power(row["power"]),
            ]
        ),
        "Seen": row["text"],
        "**Verdict**": f"**{row['verdict']}**",
        "**Answer**": answer or _OPEN,
    }
    told = "\n".join(f"* {what}: {text}" for what, text in lines.items())
    return f"\n## {number}. `{row['claim']}`\n\n{told}\n"


def power(found: list[float] | None) -> str:
    """What simulation says of the rule."""
    if found is None:
        return "power not known"
    return f"power {found[0]:.2f} of the paper's effect and {found[1]:.2f} of none"


def main() -> None:
    """See above."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draw", type=int, metavar="SEED")
    options = parser.parse_args()
    if options.draw is not None:
        print("\n".join(drawn(options.draw)))
        return
    rows = {row["claim"]: row for row in json.loads(LEDGER.read_text())}
    SHEET.write_text(sheet(tomllib.loads(SENTENCES.read_text()), rows))


if __name__ == "__main__":
    main()
