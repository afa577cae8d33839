"""The article: what it cites and tells of rows is there, and every undecided headline says what would decide it."""

import json
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
import article  # noqa: E402

SOURCE = (ROOT / "docs" / "article" / "article.tex").read_text()
LEDGER = {row["claim"]: row for row in json.loads((ROOT / "results" / "ledger" / "ledger.json").read_text())}


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    return [LEDGER[name] for name in article.HEADLINES.read_text().split()]


def test_every_undecided_headline_says_what_would_decide_it(rows: list[dict[str, Any]]) -> None:
    written = article.deciding(rows).replace(r"\allowbreak{}", "")
    undecided = [row["claim"] for row in rows if row["verdict"] not in article.DECIDED]
    assert undecided
    assert [name for name in undecided if name not in written] == []
    nobody = rows[0] | {"claim": "of-nobody", "verdict": "not tested"}
    with pytest.raises(SystemExit, match="has no plan that would decide of-nobody"):
        article.deciding([*rows, nobody])


def test_plans_name_headlines_once_and_as_many_seeds_as_their_rows() -> None:
    plans = tomllib.loads(article.PLANS.read_text())["plans"]
    names = [name for plan in plans.values() for name in plan["headlines"]]
    assert sorted(names) == sorted(set(names) & set(article.HEADLINES.read_text().split()))
    for plan in plans.values():
        for name in plan["headlines"]:
            asked = re.search(r"(\d+) seeds would do", LEDGER[name]["text"])
            if asked and "folder" in plan and LEDGER[name]["verdict"] not in article.DECIDED:
                assert plan["seeds"] >= int(asked[1]), name
            needed = LEDGER[name]["seeds_needed"]
            if needed and "folder" in plan and plan.get("sure", True):
                assert plan["seeds"] >= needed, name


def test_the_appendix_has_effect_power_and_what_changes_each_headline(rows: list[dict[str, Any]]) -> None:
    whole = article.headline(next(row for row in rows if row["fragile"] and row["power"]), None)
    for word in ("Measured:", "Rule:", "Effect:", "Power:", "Changes with:", "Differs:"):
        assert word in whole
    assert "Would be decided by:" in article.headline(rows[0] | {"verdict": "not tested"}, ("This.", "one core"))


def test_what_the_article_cites_and_tells_is_there() -> None:
    cited = set(re.findall(r"\\cite\{(\w+)\}", SOURCE))
    assert cited == set(re.findall(r"\\bibitem\{(\w+)\}", SOURCE))
    told = re.findall(r"\\told\{([\w.-]+)\}", SOURCE)
    assert len(told) > 8
    assert [name for name in told if name not in LEDGER] == []
    assert set(re.findall(r"\\ref\{(\w+)\}", SOURCE)) <= set(re.findall(r"\\label\{(\w+)\}", SOURCE))
