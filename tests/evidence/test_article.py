"""The article and the sheet of ten headlines say what the ledger says, the article in characters that it can typeset."""

import json
import re
import sys
import tomllib
from pathlib import Path

import pytest

from hmmscope.lab.evidence.verdicts import answer_of

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
import article  # noqa: E402
import headline_review  # noqa: E402


@pytest.fixture(scope="module")
def generated(tmp_path_factory):
    """All of it but what takes reading every table: figures, and the list of what was run."""
    out = tmp_path_factory.mktemp("article")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(article, "figures", lambda paper, out: "")
        patch.setattr(article, "runs", lambda rows: ("", "", 0.0))
        article.generate(out)
    return out


@pytest.mark.slow
def test_what_was_run_is_told_with_its_core_hours():
    ledger = {row["claim"]: row for row in json.loads(article.LEDGER.read_text())}
    rows = [ledger[name] for name in article.HEADLINES.read_text().split()]
    told, _, hours = article.runs(rows)
    assert hours > 1
    assert all(article.code(folder.name) in told for folder in article.folders(rows))


@pytest.mark.long
def test_every_headline_stands_in_it_with_its_verdict_and_its_interval(generated):
    ledger = {row["claim"]: row for row in json.loads(article.LEDGER.read_text())}
    whole = (generated / "appendix.tex").read_text()
    for name in article.HEADLINES.read_text().split():
        own = whole.split(rf"\paragraph{{\texttt{{{name}}}}}", 1)[1].split(r"\paragraph", 1)[0]
        verdict = ledger[name]["verdict"]
        assert rf"\textbf{{{answer_of(verdict)}}}" in own
        if ledger[name]["low"] is not None:
            assert article.number(ledger[name]["low"]) in own
    told = dict(re.findall(r"\\newcommand\{\\(\w+)\}\{(.*)\}", (generated / "numbers.tex").read_text()))
    kinds = ("Reproduced", "InSign", "Denied", "Budget", "NotTested", "Inconclusive")
    assert sum(int(told[kind]) for kind in kinds) == int(told["Headlines"])
    assert not any("U+" in file.read_text() for file in generated.glob("*.tex"))  # every character has its LaTeX


def test_the_source_includes_what_is_generated_and_nothing_else(generated):
    source = article.SOURCE.read_text()
    included = set(re.findall(r"\\input\{([a-z-]+)\}", source))
    assert included == {file.stem for file in generated.glob("*.tex")} - {"article"}
    assert not re.search(r"(?<![\d.])\d+ (?:headlines|core-hours|rows)", source)  # numbers are generated


def test_without_pdflatex_one_line_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["article.py", "--out", str(tmp_path / "out")])
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SystemExit, match=r"^article: needs pdflatex; on Debian: apt install [a-z -]+$"):
        article.main()
    assert not (tmp_path / "out").exists()


def test_the_sheet_of_ten_headlines_is_of_the_ledger_as_it_is() -> None:
    ledger = {row["claim"]: row for row in json.loads(headline_review.LEDGER.read_text())}
    assert headline_review.SHEET.read_text() == headline_review.sheet(
        tomllib.loads(headline_review.SENTENCES.read_text()), ledger
    )
