"""Write a sheet of ten randomly drawn headlines for a reviewer who knows nothing else of the project.

    python scripts/headline_review.py             write docs/headline-review.md from docs/headline-review.toml and the ledger
    python scripts/headline_review.py --draw 41   print the names that another seed draws

docs/headline-review.toml has the seed and, for each headline, the paper's sentence, the necessary terms, the reviewer's
answer, the reviewer if not an outsider, and the reviewed verdict. The draw takes the headlines with the smallest digests of
seed and name, so that an added headline changes at most one of the ten.
"""

import argparse
import hashlib
import json
import tomllib
from pathlib import Path
from typing import Any

from hmmscope.lab.evidence.verdicts import DECIDED, answer_of

ROOT = Path(__file__).parents[1]
HEADLINES = ROOT / "tests" / "evidence" / "headlines.txt"
SHEET, SENTENCES = ROOT / "docs" / "headline-review.md", ROOT / "docs" / "headline-review.toml"
LEDGER = ROOT / "results" / "ledger" / "ledger.json"
COUNT = 10
_HEAD = """# Ten headlines, reviewed

This sheet has ten of the {all} headlines (main claims) of two papers, drawn by
`python scripts/headline_review.py --draw {seed}`; `python scripts/headline_review.py` writes it from the
[ledger](ledger.md). Reviewers answer for each headline: **does the verdict follow from this sheet, and would it mislead a
reader of the paper's sentence?** Reviewers saw only this sheet; where the reviewer knew more, the answer names the reviewer.

The papers are *On Limitation of Transformer for Learning HMMs* ([Limits]) and *Transformers as Multi-task Learners:
Decoupling Features in Hidden Markov Models* ([MultiTask]). Both study Transformers that read observations of a hidden
Markov model (HMM).

* **Effect**: value [lower and upper end of its 95 % interval over independently trained seeds, or over instances]. If
  a claim has several effects, all must satisfy the rule, and the sheet shows the worst.
* **Rule**: the decision rule, with the smallest effect that matters. *At least 0.1 (above 0 for support in sign only)*:
  **supported** if the whole interval is at least 0.1; **supported in sign** if it is above 0 but includes values below
  0.1; **contradicted** if it stays below 0.1; **undecided** otherwise. *At most* is the reverse. *Between 0.95 and
  1.05*: **supported** if the whole interval is in this range. *Every instance*: one counterexample refutes the claim,
  and a few instances without a counterexample are not enough to confirm it.
* **Gates**: preconditions, open if they hold and closed if they fail. One closed gate makes the answer **undecided**
  (in files: *not tested*), whatever the effect; it is evidence neither for nor against the paper. *Learned*: the
  models are better than a control that learned nothing. *Matched*: the compared models had equal budgets.
  *Converged*: longer training is not expected to change the answer. *Regime*: the setting matches the paper's statement.
* **Power**: the fraction of 1000 simulated experiments, with the real number of seeds, in which the rule gives
  *supported* if the true effect is the paper's (or twice the smallest effect that matters, if the paper prints none).
  The simulations also give the rates of two errors: denying this true effect, and confirming an effect of zero. An
  answer against a claim requires a rate of at most 0.05 for the first error, and an answer for a claim requires this
  rate for the second. With a power below 0.5 the size of the effect is uncertain, and the answer is at most
  *supported in sign*.
* **Budget**: models trained for less than the paper's get the answer **contradicted at this budget** if more training could
  still confirm the claim.
* **Differs**: our setting, with the paper's setting in brackets. T is the length of the sequences.
* **Standing**: *exploratory* means that the rule was written or changed after its data were seen, or that the scale is
  small (minutes, small models; medium takes hours); new data must confirm such a verdict. *Fragile* means that the
  verdict changes if the smallest effect that matters (the margin) is halved or doubled, if the measured quantity is
  defined differently, or if one of the seeds is left out.
"""
_OPEN = "*not reviewed yet*"


def drawn(seed: int) -> list[str]:
    """Return the names of the headlines that a seed draws."""
    names = HEADLINES.read_text().split()
    return sorted(names, key=lambda name: hashlib.sha256(f"{seed} {name}".encode()).hexdigest())[:COUNT]


def sheet(asked: dict[str, Any], ledger: dict[str, dict[str, Any]]) -> str:
    parts = [_HEAD.format(all=len(HEADLINES.read_text().split()), seed=asked["seed"])]
    for number, name in enumerate(drawn(asked["seed"]), 1):
        said = asked["headlines"][name]
        parts.append(section(number, ledger[name], said))
    return "\n".join(parts)


def section(number: int, row: dict[str, Any], said: dict[str, str]) -> str:
    """Return the section of one headline."""
    has_interval = row["low"] is not None
    effect = f"{row['value']:.3g} [{row['low']:.3g}, {row['high']:.3g}] {row['unit'] or ''}" if has_interval else "none"
    trains = row["seeds"] is not None
    scale = f"{row['seeds']} seeds, scale {row['scale']}" if trains else f"no training, scale {row['scale']}"
    gates = [f"{gate['name']} ({'open' if gate['is_open'] else 'closed'}): {gate['text']}" for gate in row["gates"]]
    answer = said.get("answer", _OPEN)
    if "by" in said:
        answer += f" (Reviewed by {said['by']}.)"
    if answer_of(said.get("verdict", row["verdict"])) != answer_of(row["verdict"]):
        answer += f" (Reviewed when the verdict was {answer_of(said['verdict'])}.)"
    lines = {
        "The paper": f"“{said['sentence']}” ({row['source']})",
        "Terms": said["words"],
        "In our words": row["says"],
        "Measured": row["reading"],
        "Rule": row["rule"],
        "Gates": "; ".join(dict.fromkeys(gates)) or "none",
        "Differs from the paper": "; ".join(row["differs"]) or "nothing is trained; processes and sizes are our choice",
        "Budget": row["budget"] or ("extrapolated to the paper's by a scaling law" if trains else "no training"),
        "Effect": f"{effect}; {scale}",
        "Standing": "; ".join(
            [
                f"exploratory ({row['exploratory']})" if row["exploratory"] else "not exploratory",
                *fragile(row),
                power(row["power"]),
            ]
        ),
        "Result": row["text"],
        "**Verdict**": f"**{answer_of(row['verdict'])}**",
        "**Answer**": answer,
    }
    told = "\n".join(f"* {what}: {text}" for what, text in lines.items())
    return f"\n## {number}. `{row['claim']}`\n\n{told}\n"


def fragile(row: dict[str, Any]) -> list[str]:
    """Return a line with the changes that alter a decided verdict; none if the verdict is not decided."""
    if row["fragile"]:
        return [f"fragile: changes with {', '.join(row['fragile'])}"]
    return ["not fragile"] if row["verdict"] in DECIDED else []


def power(found: list[float] | None) -> str:
    if found is None:
        return "power unknown"
    return f"power {found[0]:.2f}, false denials {found[1]:.2f}, false confirmations {found[2]:.2f}"


def main() -> None:
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
