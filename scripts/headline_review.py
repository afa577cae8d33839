"""Ten headlines of the papers, drawn by a seed, on a sheet for somebody who judges them and has seen nothing else.

    python scripts/headline_review.py             write docs/headline-review.md from docs/headline-review.toml and the ledger
    python scripts/headline_review.py --draw 41   print the names that another seed draws

docs/headline-review.toml has the seed; for each headline the sentence of the paper, the words that a reader needs, the
answer, by whom if it was no stranger, and the verdict that was reviewed. The draw takes the headlines of which the digest of
the seed and the name is least, so that a headline more changes one of the ten at most.
"""

import argparse
import hashlib
import json
import tomllib
from pathlib import Path
from typing import Any

from hmmscope.lab.evidence.verdicts import DECIDED

ROOT = Path(__file__).parents[1]
HEADLINES = ROOT / "tests" / "evidence" / "headlines.txt"
SHEET, SENTENCES = ROOT / "docs" / "headline-review.md", ROOT / "docs" / "headline-review.toml"
LEDGER = ROOT / "results" / "ledger" / "ledger.json"
COUNT = 10
_HEAD = """# Ten headlines, judged

Ten of the {all} headlines of two papers, drawn by `python scripts/headline_review.py --draw {seed}`; the sheet is made of
the [ledger](ledger.md) by `python scripts/headline_review.py`. The question of each: **does the verdict follow from what
stands on this sheet, and would a reader of the paper's sentence be misled by it?** Who answers has seen nothing else of this
project, but where another is named, and no other file is needed.

The papers are *On Limitation of Transformer for Learning HMMs* ([Limits]) and *Transformers as Multi-task Learners:
Decoupling Features in Hidden Markov Models* ([MultiTask]). Both are about Transformers that read what a hidden Markov
model (HMM) emits.

* **Effect**: value [lower end, upper end of its 95 % interval], over independently trained seeds, or over instances.
  Several effects must all hold; the one that is shown is the worst.
* **Rule**, fixed with the smallest effect that would matter. *Above 0, by at least 0.1*: **reproduced** if the whole
  interval is at least 0.1; **reproduced in sign** if it is above 0, and holds something less than 0.1; **not
  reproduced** if it stays below 0.1; **inconclusive** otherwise. *Below* is the same turned round; *within 0.05 of 1*
  asks that the whole interval is. *In every instance*: one counterexample refutes it, and a few instances without one
  are not enough.
* **Gates**: conditions without which nothing is judged. One closed gate makes the verdict **not tested**, whatever the
  effect; that says nothing for or against the paper. *Learned*: the models are better than a control that learned
  nothing. *Matched*: those that are compared had equal budgets. *Converged*: training twice as long would not turn the
  verdict. *Regime*: the setting is that of which the paper speaks.
* **Power**: of 1000 simulated experiments with the seeds of the real one, the share in which the rule says *reproduced*
  if the effect is the paper's (twice what matters where it prints none); then the shares in which it is wrong: it denies
  that effect, or bears out none. A verdict needs 0.05 at most of the error that it could be. With a power below 0.5 the
  size is uncertain: the row is reproduced in sign at most.
* **Budget**: models trained on less than the paper's say **not at this budget** where more budget could help the claim.
* **Differs**: ours, and the paper's in brackets. T is the length of the sequences.
* **Standing**: *exploratory* is a verdict whose rule was written or changed after its data had been seen, or of scale
  small (minutes, small models; medium takes hours); it waits for new data. *Fragile* is one that turns with half or
  twice the margin, another definition, or without one of the seeds.
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
        parts.append(section(number, ledger[name], said))
    return "\n".join(parts)


def section(number: int, row: dict[str, Any], said: dict[str, str]) -> str:
    """One headline."""
    has_interval = row["low"] is not None
    effect = f"{row['value']:.3g} [{row['low']:.3g}, {row['high']:.3g}] {row['unit'] or ''}" if has_interval else "none"
    trains = row["seeds"] is not None
    scale = f"{row['seeds']} seeds, scale {row['scale']}" if trains else f"no training, scale {row['scale']}"
    gates = [f"{gate['name']} ({'open' if gate['is_open'] else 'closed'}): {gate['text']}" for gate in row["gates"]]
    answer = said.get("answer", _OPEN)
    if "by" in said:
        answer += f" (Judged by {said['by']}.)"
    if said.get("verdict", row["verdict"]) != row["verdict"]:
        answer += f" (Answered when the verdict was {said['verdict']}.)"
    lines = {
        "The paper": f"“{said['sentence']}” ({row['source']})",
        "Words": said["words"],
        "In our words": row["says"],
        "Measured": row["reading"],
        "Rule": row["rule"],
        "Gates": "; ".join(dict.fromkeys(gates)) or "none",
        "Differs from the paper": "; ".join(row["differs"])
        or "nothing is trained; which processes and sizes is our choice",
        "Budget": row["budget"] or ("a law of the training reaches the paper's" if trains else "no training"),
        "Effect": f"{effect}; {scale}",
        "Standing": "; ".join(
            [
                f"exploratory ({row['exploratory']})" if row["exploratory"] else "not exploratory",
                *fragile(row),
                power(row["power"]),
            ]
        ),
        "Seen": row["text"],
        "**Verdict**": f"**{row['verdict']}**",
        "**Answer**": answer,
    }
    told = "\n".join(f"* {what}: {text}" for what, text in lines.items())
    return f"\n## {number}. `{row['claim']}`\n\n{told}\n"


def fragile(row: dict[str, Any]) -> list[str]:
    """What turns a row, which is asked of those that are decided."""
    if row["fragile"]:
        return [f"fragile: turns with {', '.join(row['fragile'])}"]
    return ["not fragile"] if row["verdict"] in DECIDED else []


def power(found: list[float] | None) -> str:
    """What simulation says of the rule."""
    if found is None:
        return "power not known"
    return f"power {found[0]:.2f}, false denials {found[1]:.2f}, false confirmations {found[2]:.2f}"


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
