"""Each headline of docs/findings.toml has the answer and numbers of its rows, and the page is made from it."""

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from hmmscope import registry
from hmmscope.errors import InputError
from hmmscope.lab.evidence.answers import scope_of
from hmmscope.lab.evidence.verdicts import ANSWERS, CONFIRMED, DECIDED, OF_QUESTIONS, VERDICTS, answer_of
from script_modules import script

ROOT = Path(__file__).parents[1]
LEDGER = {row["claim"]: row for row in json.loads((ROOT / "results" / "ledger" / "ledger.json").read_text())}
TEXTS = tomllib.loads((ROOT / "docs" / "findings.toml").read_text())
PAPERS = [value for value in TEXTS.values() if isinstance(value, dict)]
HEADLINES: list[dict[str, Any]] = [entry for paper in PAPERS for entry in paper["headline"]]
ENTRIES = HEADLINES + [entry for paper in PAPERS for entry in paper.get("question", [])]
#: A number with decimals; 10^5.2 is none of its own.
_NUMBER = re.compile(r"(?<![\w.^])-?\d+\.\d+")
_INTERVAL = re.compile(r"(-?\d+(?:\.\d+)?) [\[(](-?\d+(?:\.\d+)?)(?:,| to) (-?\d+(?:\.\d+)?)[\])]")
#: Numbers of tables that the text of no row has, by the first claim of the headline: none may be added without its table.
FROM_TABLES = {
    "multitask-upper-layers-ignore-places": {
        "0.70",
        "0.96",
        "0.76",
        "0.67",
        "0.45",
    },  # by layer, before and after training
    "multitask-layers-by-rank": {"0.30", "0.004", "0.04"},  # excess by rank and layers
    "multitask-more-heads": {"0.36"},  # excess of one layer
    "limits-constant-depth": {"0.05", "0.113", "0.119", "0.091", "0.116"},  # largest error on RanLDS by depth and seed
    "limits-hard-no-depth": {"6.6", "9.1", "8.2"},  # limits-hard-rare, fit lengths by seed
}
#: Intervals of tables and of smaller scales, in the same way.
INTERVALS_FROM_TABLES = {
    "limits-fit-length-grows": {
        ("0.0", "0.4", "0.9")
    },  # limits-depth, doublings of the sequences sooner, one layer more
    "limits-depth-saturates": {("0.0", "0.4", "0.9")},
    "limits-curriculum-det": {("0.06", "0.10", "0.14"), ("0.21", "0.26", "0.31")},  # without its sign; at T = 16
}


def named(entry: dict[str, Any]) -> list[str]:
    """The claims that a headline rests on."""
    return [*entry["rows"], *entry.get("also", [])]


def intervals(text: str) -> list[tuple[str, ...]]:
    """Numbers with an interval, without their signs: a page may say the other side."""
    return [tuple(sorted((number.lstrip("-") for number in found), key=float)) for found in _INTERVAL.findall(text)]


def is_rounded(said: tuple[str, ...], known: tuple[str, ...]) -> bool:
    """Whether a page has rounded the numbers of a row."""
    pairs = zip(said, known, strict=True)
    return all(abs(float(a) - float(b)) <= 0.501 * 10.0 ** -len(a.partition(".")[2]) for a, b in pairs)


def said_of(name: str) -> str:
    """What the ledger says of a claim."""
    row = LEDGER[name]
    effect = "" if row["low"] is None else f"{row['value']:f} [{row['low']:f}, {row['high']:f}]"
    told = (row["text"], row["reading"], row["says"])
    return " ".join([effect, *row.get("parts", ()), *told, *(gate["text"] for gate in row["gates"])])


def test_the_page_is_made_from_the_sentences_and_the_ledger() -> None:
    assert (ROOT / "docs" / "findings.md").read_text() == script("write_findings").page()


def test_every_headline_and_every_decided_row_is_named_once() -> None:
    headlines = (ROOT / "tests" / "evidence" / "headlines.txt").read_text().split()
    deciding = [name for entry in HEADLINES for name in entry["rows"]]
    assert sorted(deciding) == sorted(set(deciding))
    of_papers = [name for key in ("MultiTask", "Limits") for entry in TEXTS[key]["headline"] for name in entry["rows"]]
    assert sorted(of_papers) == sorted(headlines)
    told = {name for entry in ENTRIES for name in named(entry)}
    assert {name for name, row in LEDGER.items() if row["verdict"] in DECIDED} <= told


@pytest.mark.parametrize("entry", HEADLINES, ids=lambda entry: entry["claim"][:50])
def test_rows_of_a_headline_agree_on_its_answer_and_have_a_scope(entry: dict[str, Any]) -> None:
    assert len({answer_of(LEDGER[name]["verdict"]) for name in entry["rows"]}) == 1
    assert all(scope_of(LEDGER[name]) for name in entry["rows"])
    assert answer_of(LEDGER[entry["rows"][0]]["verdict"]) not in ("answered", "open")


def test_the_first_tables_fit_on_one_screen_each() -> None:
    """Forty lines, at 45 characters a cell."""
    page = (ROOT / "docs" / "findings.md").read_text()
    tables = re.findall(r"(?m)(?:^\|.*\n)+", page.partition("## Rules and scope")[0])
    assert len(tables) == 2
    for table in tables:
        cells = [max(len(cell) for cell in line.split(" | ")) for line in table.splitlines()]
        assert sum(-(-longest // 45) for longest in cells) <= 40


def test_what_the_rules_decided_is_decided() -> None:
    assert all(LEDGER[name]["verdict"] in DECIDED for name in [*TEXTS["rules"], *TEXTS["data"]])


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry["claim"][:50])
def test_every_number_of_a_headline_is_that_of_a_claim_that_it_names(entry: dict[str, Any]) -> None:
    names, seen = named(entry), entry["seen"]
    known = " ".join(said_of(name) for name in names)
    free = INTERVALS_FROM_TABLES.get(names[0], set())
    found = [one for one in intervals(seen) if one not in free]
    assert [one for one in found if not any(is_rounded(one, of_row) for of_row in intervals(known))] == []
    plain = {
        number for number in _NUMBER.findall(_INTERVAL.sub("", seen)) if number not in FROM_TABLES.get(names[0], ())
    }
    numbers = re.findall(r"-?\d+(?:\.\d+)?(?:e-?\d+)?", known)
    assert {
        one for one in plain if not any(is_rounded((one.lstrip("-"),), (of_row.lstrip("-"),)) for of_row in numbers)
    } == set()


def test_answers_are_three() -> None:
    assert {answer.partition(" ")[0] for verdict, answer in ANSWERS.items() if verdict not in OF_QUESTIONS} == {
        "supported",
        "contradicted",
        "undecided",
    }
    assert tuple(ANSWERS) == VERDICTS
    with pytest.raises(InputError, match="verdict: unknown 'perhaps'"):
        answer_of("perhaps")


def test_every_verdict_on_training_names_its_budget() -> None:
    for row in LEDGER.values():
        if row.get("budget") and row["verdict"] in ("reproduced", "reproduced in sign", "not at this budget"):
            told = re.match(r"at [\d,]+ (sequences|tokens) \(the paper: ([\d,]+|not stated)\)", row["budget"])
            assert told, row["claim"]
        if row["verdict"] == "not reproduced" and row.get("budget"):
            assert registry.lookup("claim", row["claim"]).more_budget_could_help is False, row["claim"]


def counted_as_none(row: dict[str, Any]) -> list[str]:
    """Things of which a row found none: ``induction head`` of ``0 induction heads in 5 seeds``."""
    return re.findall(r"(?<![\d.,])0 ([a-z-]+(?: [a-z-]+)?)s in \d+ seeds", row.get("text") or "")


def test_no_row_bears_out_things_of_which_it_counted_none() -> None:
    """Nor does a sentence of the page say that there are some."""
    found = {name: counted_as_none(row) for name, row in LEDGER.items() if counted_as_none(row)}
    assert "induction head" in found["statistical-induction-heads"]
    wrong = [
        n for n, of in found.items() if LEDGER[n]["verdict"] in CONFIRMED and any(o in LEDGER[n]["says"] for o in of)
    ]
    assert wrong == []
    for entry in ENTRIES:
        for name in named(entry):
            for thing in found.get(name, ()):
                heard = [one for one in re.split(r"[.;]", entry["seen"]) if thing.split()[-1] in one]
                assert all(re.search(r"\b(none|no|not)\b", one) for one in heard), entry


#: Numbers of the front page that no page has: what scripts/draw_first_picture.py writes.
PICTURE = json.loads((ROOT / "docs" / "img" / "first-picture.json").read_text())


def prose(page: Path) -> list[str]:
    """The paragraphs and items of a page, without blocks of code and comments."""
    text = re.sub(r"(?s)^```.*?^```$|<!--.*?-->", "", page.read_text(), flags=re.MULTILINE)
    return [one for one in re.split(r"\n\s*\n|\n(?=- )", text) if one.strip()]


def untold(paragraph: str, pages: dict[str, str]) -> list[Any]:
    """Numbers with decimals and intervals of a paragraph that neither the pages that it names have nor the ledger."""
    named_pages = re.findall(r"\]\(([\w./-]+\.md)", paragraph)
    plain = re.sub(r"\]\([^)]*\)|`[^`]*`|arXiv [\d.]+|Apache-2.0|(Python|Version) [\d.]+", "", paragraph)
    known = " ".join(pages.get(name, "") for name in named_pages)
    if any(name.endswith("findings.md") for name in named_pages):
        known += " ".join(map(said_of, LEDGER))
    if "draw_first_picture" in paragraph:
        known += " ".join("{} [{}, {}]".format(*one) if isinstance(one, list) else f"{one}" for one in PICTURE.values())
    of_rows = intervals(known)
    found: list[Any] = [one for one in intervals(plain) if not any(is_rounded(one, of_row) for of_row in of_rows)]
    numbers = re.findall(r"\d+\.\d+", known)
    alone = _NUMBER.findall(_INTERVAL.sub("", plain))
    return found + [one for one in alone if not any(is_rounded((one.lstrip("-"),), (number,)) for number in numbers)]


@pytest.mark.parametrize("page", [ROOT / "README.md", ROOT / "docs" / "index.md"], ids=lambda page: page.name)
def test_every_number_of_a_front_page_stands_in_a_page_that_it_names(page: Path) -> None:
    linked = {str(one.relative_to(page.parent)): one.read_text() for one in (ROOT / "docs").glob("*.md")}
    assert {paragraph[:60]: missing for paragraph in prose(page) if (missing := untold(paragraph, linked))} == {}
    assert not any(re.search(rf"\b{verdict}\b", paragraph) for verdict in DECIDED for paragraph in prose(page))


def test_a_front_page_may_not_have_a_number_of_its_own() -> None:
    pages = {"docs/study.md": "It gains 0.031 [0.025, 0.036] nats."}
    assert untold("It gains 0.03 [0.02, 0.04]: [the story](docs/study.md).", pages) == []
    assert untold("It gains 0.05 [0.02, 0.04] and 1.7 of 1.81: [the story](docs/study.md).", pages) != []
    assert untold("It gains 0.031 [0.025, 0.036], and 0.7: no page is named.", pages) == [
        ("0.025", "0.031", "0.036"),
        "0.7",
    ]
    drawn = "It adds {} [{}, {}] (`scripts/draw_first_picture.py`).".format(*PICTURE["beyond controls"])
    assert untold(drawn, pages) == []
    assert untold(drawn.replace("draw_", ""), pages) != []


def test_a_number_of_another_row_is_no_number_of_this_one() -> None:
    """The interval of the growth with depth is not that of the least power."""
    known = intervals(said_of("limits-fit-length-power"))
    (own,) = intervals("0.93 [0.82, 1.04]")
    (other,) = intervals("{value:.3f} [{low:.3f}, {high:.3f}]".format(**LEDGER["limits-fit-length-grows"]))
    assert any(is_rounded(own, one) for one in known)
    assert not any(is_rounded(other, one) for one in known)


def test_the_sheet_of_those_who_judge_has_what_its_seed_draws() -> None:
    judged = script("headline_review")
    asked = tomllib.loads(judged.SENTENCES.read_text())
    names = judged.drawn(asked["seed"])
    assert len(names) == 10
    assert set(asked["headlines"]) == set(names)
    assert re.findall(r"^## \d+\. `(.*)`$", judged.SHEET.read_text(), re.MULTILINE) == names
    written = judged.sheet(asked, LEDGER)
    for name, said in asked["headlines"].items():
        assert said["sentence"] in judged.SHEET.read_text(), name
        assert said.get("answer", "not reviewed yet") in written, name
