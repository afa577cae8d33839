"""What docs/findings.md says of a headline is what the ledger says: the verdict, and every number with an interval."""

import json
import re
from pathlib import Path

import pytest

from hmmscope.lab.evidence.verdicts import VERDICTS

ROOT = Path(__file__).parents[1]
LEDGER = json.loads((ROOT / "results" / "ledger.json").read_text())
#: Rows of the tables of headlines, and what they rest on.
ROWS = [line for line in (ROOT / "docs" / "findings.md").read_text().splitlines() if "](experiments/" in line]
HEADLINES = [line for line in ROWS if line.count(" | ") >= 4]
_NUMBER = r"(-?\d+(?:\.\d+)?)"
_INTERVAL = re.compile(rf"{_NUMBER} [\[(]{_NUMBER}(?:,| to) {_NUMBER}[\])]")
#: Numbers of tables and of smaller scales, which no row of the ledger has; none may be added without its table.
FROM_TABLES = {
    ("0.0", "0.4", "0.9"),  # limits-depth, doublings of the sequences sooner, one layer more
    ("0.06", "0.10", "0.14"),  # limits-fig6, Cyclic-DET, the cost without its sign
    ("0.21", "0.26", "0.31"),  # the same at T = 16
}


def of(line: str) -> list[dict]:
    """The rows of the ledger that a headline rests on."""
    names = re.findall(r"\(experiments/([\w.-]+)\.md\)", line)
    return [row for row in LEDGER if row["experiment"] in names]


def intervals(text: str) -> list[tuple[str, ...]]:
    """Numbers with an interval, without their signs: a page may say the other side."""
    return [tuple(sorted((number.lstrip("-") for number in found), key=float)) for found in _INTERVAL.findall(text)]


def is_rounded(said: tuple[str, ...], known: tuple[str, ...]) -> bool:
    """Whether a page has rounded the numbers of a row."""
    pairs = zip(said, known, strict=True)
    return all(abs(float(a) - float(b)) <= 0.501 * 10.0 ** -len(a.partition(".")[2]) for a, b in pairs)


@pytest.mark.parametrize("line", HEADLINES, ids=lambda line: line[2:60])
def test_every_interval_of_a_headline_is_in_its_rows(line: str) -> None:
    known = [one for row in of(line) for one in intervals(row.get("text", ""))]
    known += intervals(
        "".join(f"{r['value']:f} [{r['low']:f}, {r['high']:f}]" for r in of(line) if r.get("low") is not None)
    )
    wrong = [one for one in intervals(line) if one not in FROM_TABLES and not any(is_rounded(one, k) for k in known)]
    assert wrong == []


@pytest.mark.parametrize("line", HEADLINES, ids=lambda line: line[2:60])
def test_the_verdict_of_a_headline_is_in_its_rows(line: str) -> None:
    said = line.split(" | ")[1]
    known = {row.get("verdict") for row in of(line)}
    named = [verdict for verdict in sorted(VERDICTS, key=len, reverse=True) if verdict in said]
    assert named or "question" in said, said
    assert not named or known & set(named), f"{said}: the ledger has {known}"
    if re.search(r"(?<!not )reproduced(?! in sign)", said):  # the whole word
        assert "reproduced" in known, said


def test_every_verdict_on_training_names_its_budget() -> None:
    for row in LEDGER:
        if row.get("budget") and row["verdict"] in ("reproduced", "reproduced in sign", "not at this budget"):
            assert re.match(r"at [\d,]+ (sequences|tokens) \(the paper: ([\d,]+|not stated)\)", row["budget"]), row[
                "claim"
            ]
        assert row["verdict"] != "not reproduced" or not row.get("budget"), row["claim"]


def test_the_test_reads_the_page() -> None:
    assert len(HEADLINES) > 40
    assert sum("| differs in |" in line for line in (ROOT / "docs" / "findings.md").read_text().splitlines()) == 3
