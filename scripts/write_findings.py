"""Write docs/findings.md from docs/findings.toml, the ledger and protocols/undecided.toml.

    python scripts/write_findings.py            print what would be written
    python scripts/write_findings.py --write    write it

The sentences stand in docs/findings.toml; answers, scopes, effects, rules, verdicts and closed gates come from the ledger,
and the next tests from protocols/undecided.toml.
"""

import argparse
import importlib.util
import json
import re
import tomllib
from collections import Counter
from html import escape
from pathlib import Path
from typing import Any

from hmmscope.lab.evidence.answers import MEANINGS, effect_sentence, scope_of
from hmmscope.lab.evidence.verdicts import DECIDED, answer_of
from hmmscope.storage import store
from hmmscope.text import in_digits

ROOT = Path(__file__).parents[1]
TEXTS, PAGE, LEDGER = (
    ROOT / "docs" / "findings.toml",
    ROOT / "docs" / "findings.md",
    ROOT / "results" / "ledger" / "ledger.json",
)
PLANS = ROOT / "protocols" / "undecided.toml"
#: Changes of a rule, in words.
CHANGES = {
    "margin × ½": "the margin were half as large",
    "margin × 2": "the margin were twice as large",
    "rate 0.05": "fit lengths had the error rate 0.05 instead of 0.1",
}
#: Deciding cases, in words.
CASES = {
    "noisy less clear": "the noisiest chains minus the least noisy ones",
    "90 % of the maximum": "the onset is the first layer with 90 % of the maximum",
    "width n·m": "the width n·m",
    "fall of 1 back": "the fall of the accuracy for the token one step back",
    "4 back": "the token four steps back",
    "counting": "n-grams and context trees",
    "used": "the prediction after a belief is written",
    "read": "the belief decoded from a layer",
    "bigrams": "the bigram distribution",
    "trained": "the trained network",
    "1 in 128": "one label per 128 actions",
    "(0.03, 0.03)": "concentrations 0.03 of transitions and emissions",
    "exponential or power law": "exponential decay compared with a power law",
    "worst depth": "the worst depth",
    "backward 0.15": "backward probability 0.15",
    "no error": "zero error",
    "steps": "the number of steps",
    "exact products, residual": "exact products in the residual stream",
    "conditional factors": "factors coupled through observations",
    "random subspaces": "compared with random subspaces",
    "from 0.1 to 0.15": "from backward probability 0.1 to 0.15",
    "MatMul b = 30": "MatMul with blocks of 30",
    "6 layers of 64": "6 layers, sequences of 64",
}
#: Further differences of a headline from the paper.
DIFFERS = {
    "measure": "The paper does not define the measured quantity, so we defined it.",
    "varied rates": "This experiment compares learning rates; the paper chooses the best one.",
    "several rates": "In Cyclic-HARD one in 8 to 32 actions is followed by a label of the state (the paper: one in 120).",
    "supervision rate": "In Cyclic-HARD one in 32 actions is followed by a label of the state (the paper: one in 120).",
}
#: Why verdicts at scale "small" are exploratory.
SEEN = "data at scale `small` were known when the rules were written"
#: Columns of the tables of answers.
COLUMNS = ("supported", "contradicted", "undecided")

_HEAD = """# Which claims of the papers hold

<!-- python scripts/write_findings.py --write makes this page from docs/findings.toml and the ledger. -->

The two papers together make 100 headline claims that a measurement or a computation can decide:
{counts}. Most undecided claims need longer training or longer sequences than we could
afford. The [ledger](ledger.md) of {made} lists all answers; `make article` typesets a report of them as PDF.

## How to read the answers

{meanings}
This page uses four more terms. The **fit length** of a model is the number of positions, counted from the first,
up to which the model's error stays below 0.1. A **doubling** is a factor of two: a growth of 0.11 doublings per layer is
a growth of 8 % per layer. A **pool** is the set of HMMs from which training prompts come. A **seed** is one independent
training.

## The answers

{tables}
## Rules and scope

If a claim covers several cases, such as tasks, the case with the weakest support decides. The *margin* of a rule is the
smallest effect that matters; for a rule without such an effect, it is the bound of the rule. A test is fair only if its
*preconditions* hold: *regime* (process and data are like those of the paper), *learned* (the model is better than its
control), *converged* (the answer would stay the same if another doubling of the training changed the effect as much
as the last doubling did), *power* (the rule seldom errs in simulations with this number of seeds), and *room* (the
largest effect that the setting allows exceeds a minimum). An answer is *exploratory* if its rule was written or changed
after we saw data; new data can confirm it.

Each answer is followed by its scope: the models and sizes for which it holds. Square brackets contain 95 % intervals over
seeds (or processes). We changed [the decision rules](experiments.md#the-ledger) on 2026-11-25 and 2026-11-28 ([list of
changes](experiments/ledger-changes.md)). The folded text *Reasons* under a headline defines the effect of each claim, and
shows the rule, the measured number, the failed preconditions and the next test.

All trained models differ from those of the papers in size, budget and data. In this paragraph, numbers in parentheses
are the papers' values. Our models for [MultiTask] have width 64 to 128 (1024), and our pools consist of composed
cycles: HMMs that combine a noisy cycle of states with an emission matrix in which equally many states share each
symbol. Our models for [Limits] have shorter sequences than the paper, width 64 (512), 2 actions that generate A5 (5
actions), no dropout (0.1), no curriculum except in figure 6, and learning rates chosen on Cyclic-DET only. *Reasons*
lists further differences.

"""


def _article() -> Any:
    """Return scripts/article.py, which computes the cost of a plan."""
    spec = importlib.util.spec_from_file_location("article", ROOT / "scripts" / "article.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def links(rows: list[dict[str, Any]]) -> str:
    """Return links to the pages of the experiments of rows, each once."""
    names = dict.fromkeys(row["experiment"] for row in rows)
    return ", ".join(f"[{name}](experiments/{name}.md)" for name in names)


def answer(entry: dict[str, Any], ledger: dict[str, dict[str, Any]]) -> str:
    """Return the answer of a headline, on which all of its rows agree."""
    (found,) = {answer_of(ledger[name]["verdict"]) for name in entry["rows"]}
    return found


def glance(paper: dict[str, Any], ledger: dict[str, dict[str, Any]]) -> str:
    """Return the table of answers of a paper: a row for each figure, table or theorem, a column for each answer."""
    cells: dict[str, dict[str, list[str]]] = {}
    for entry in paper["headline"]:
        word, _, reserve = answer(entry, ledger).partition(" ")
        item = entry["short"] + (f" ({reserve})" if reserve else "")
        cells.setdefault(entry["of"], {}).setdefault(word, []).append(item)
    lines = [f"| | {' | '.join(COLUMNS)} |", "|---|---|---|---|"]
    lines += [f"| {of} | {' | '.join('; '.join(own.get(word, [])) for word in COLUMNS)} |" for of, own in cells.items()]
    return f"**{paper['title']}**\n\n" + "\n".join(lines) + "\n"


def sensitive(changes: list[str]) -> str:
    """Return the sentence about changes that alter a verdict."""
    seeds = [one.removeprefix("without seed ") for one in changes if one.startswith("without seed ")]
    named = [
        f"if {CHANGES[one]}" if one in CHANGES else f"under {one}" for one in changes if not one.startswith("without")
    ]
    if seeds:
        listed = f"seed {' or '.join(filter(None, [', '.join(seeds[:-1]), seeds[-1]]))}"
        named.append(f"if {listed if len(seeds) < 4 else f'any one of {len(seeds)} seeds'} were left out")
    return f"The answer would change {', or '.join(named)}."


def reasons(entry: dict[str, Any], ledger: dict[str, dict[str, Any]], plans: dict[str, str]) -> list[str]:
    """Return lines on each claim of a headline: verdict, effect, rule, number, closed gates, and what would decide it."""
    lines = []
    for name in [*entry["rows"], *entry.get("also", [])]:
        row, told = ledger[name], [ledger[name]["reading"]]
        told += [f"To support the claim, {row['rule']}."] if row["rule"] else []
        why = " because a precondition fails" if row["verdict"] == "not tested" else ""
        if row["value"] is not None and row["low"] is not None:
            case = row["unit"].partition(", ")[2]
            shown = in_digits(row["value"], row["low"], row["high"])
            seeds = None if (row["rule"] or "").startswith("all instances") else row["seeds"]
            told.append(effect_sentence(shown, row["unit"], seeds, CASES.get(case, ""), seeds=seeds))
        elif row["seeds"]:
            told.append(f"The experiment has {row['seeds']} seeds.")
        told += [sensitive(row["fragile"])] if row["fragile"] else []
        if row["exploratory"]:
            told.append(
                f"The answer is exploratory: {SEEN if row['exploratory'] == 'scale small' else row['exploratory']}."
            )
        told += [
            f"The precondition *{gate['name']}* fails: {gate['text']}." for gate in row["gates"] if not gate["is_open"]
        ]
        told += (
            [f"If the spread between seeds stays the same, about {row['seeds_needed']} seeds would decide the claim."]
            if row["seeds_needed"]
            else []
        )
        told += [plans[name]] if row["verdict"] not in DECIDED and name in plans else []
        if row["verdict"] == "not at this budget":
            told.append(f"The models were measured {row['budget']}; more training could still confirm the claim.")
        said = f"*{answer_of(row['verdict']).capitalize()}{why}* (`{name}`): {row['says']}"
        lines.append(f"{said} {' '.join(told)}")
    return lines


def section(paper: dict[str, Any], ledger: dict[str, dict[str, Any]], plans: dict[str, str]) -> str:
    """Return the section of a paper: each headline with its answer, what was measured, and folded reasons."""
    lines = [f"## {paper['title']}", "", paper["intro"].strip(), ""]
    if "before" in paper:
        lines += [paper["before"].strip(), ""]
    before = None
    for entry in paper["headline"]:
        if entry["of"] != before:
            lines += [f"### {entry['of']}", ""]
            before = entry["of"]
        rows = [ledger[name] for name in entry["rows"]]
        scopes = re.sub(r"\bT = (\d+)", r"sequence length \1", ", ".join(dict.fromkeys(map(scope_of, rows))))
        lines += [f"**{entry['claim']}** *{answer(entry, ledger).capitalize()}, {scopes}.* {entry['seen']}", ""]
        folded = reasons(entry, ledger, plans)
        differs = [DIFFERS[entry["differs"]]] if entry.get("differs") else []
        pages = links([ledger[name] for name in [*entry["rows"], *entry.get("also", [])]])
        lines += ["<details><summary>Reasons</summary>", "", f"{pages}", ""]
        lines += [f"* {escape(line, quote=False)}" for line in [*folded, *differs]] + ["", "</details>", ""]
    if paper.get("question"):
        lines += ["### Questions of this project", ""]
    for entry in paper.get("question", []):
        rows = [ledger[name] for name in entry["rows"]]
        names = ", ".join(f"`{name}`" for name in entry["rows"])
        lines += [f"**{entry['claim']}** {entry['seen']} ({links(rows)}: {names})", ""]
    if "after" in paper:
        lines += [paper["after"].strip(), ""]
    return "\n".join(lines)


def open_headlines(
    texts: dict[str, Any],
    ledger: dict[str, dict[str, Any]],
    headlines: list[str],
    plans: list[dict[str, Any]],
    article: Any,
) -> str:
    """Return the section on what the rules decided, what new data decided, and what would decide the rest."""
    lines = ["## Decided and undecided headlines", ""]
    for title, names in (
        ("The rules of 2026-11-28 decided these headlines on existing data", texts["rules"]),
        ("New data decided these headlines", texts["data"]),
    ):
        found = [f"`{name}` ({answer_of(ledger[name]['verdict'])})" for name in names]
        lines += [f"{title}: {', '.join(found) or 'none yet'}.", ""]
    lines += ["| undecided headlines | next test | cost |", "|---|---|---|"]
    for plan in plans:
        own = [name for name in plan["headlines"] if name in headlines and ledger[name]["verdict"] not in DECIDED]
        if own:
            what, cost = article.what_decides(plan, list(ledger.values()))
            lines.append(f"| {', '.join(f'`{name}`' for name in own)} | {what} | {cost} |")
    return "\n".join([*lines, ""])


def page() -> str:
    """Return docs/findings.md."""
    texts, article = tomllib.loads(TEXTS.read_text("utf-8")), _article()
    ledger = {row["claim"]: row for row in json.loads(LEDGER.read_text("utf-8"))}
    headlines = (ROOT / "tests" / "evidence" / "headlines.txt").read_text().split()
    plans = list(tomllib.loads(PLANS.read_text("utf-8"))["plans"].values())
    told = {}
    for plan in plans:
        _, cost = article.what_decides(plan, list(ledger.values()))
        sure = "" if plan.get("sure", True) else ", which may leave the claim undecided,"
        what = re.sub(r"((limits|multitask|construction)-[a-z0-9-]+)", r"`\1`", plan["what"])
        test = f"The next test{sure} is {what} (cost: {cost})."
        told |= dict.fromkeys(plan["headlines"], plan["what"] if cost == "none" else test)
    papers = {key: value for key, value in texts.items() if isinstance(value, dict)}
    counted = Counter(answer_of(ledger[name]["verdict"]) for name in headlines)
    *most, last = (f"{counted[word]} are {word}" for word in MEANINGS if counted[word])
    head = _HEAD.format(
        counts=f"{', '.join(most)}, and {last}",
        made=max(row["created"] for row in ledger.values()),
        meanings="".join(
            f"* **{word[0].upper()}{word[1:]}**: {meaning}\n"
            for word, meaning in {
                **MEANINGS,
                "INVALID": "a model is better than the exact optimum, so there is a leak or an error; no claim is decided.",
            }.items()
        ),
        tables="\n".join(glance(papers[name], ledger) for name in ("MultiTask", "Limits")),
    )
    sections = [section(paper, ledger, told) for paper in papers.values()]
    return head + "\n".join([*sections, open_headlines(texts, ledger, headlines, plans, article)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write docs/findings.md")
    if parser.parse_args().write:
        store.write_text(PAGE, page())
    else:
        print(page(), end="")


if __name__ == "__main__":
    main()
