"""Printing of the findings of an experiment, and writing of its page."""

import os
from collections.abc import Iterable
from pathlib import Path

from hmmscope.lab.evidence.finding import Finding
from hmmscope.lab.evidence.verdicts import answer_of
from hmmscope.lab.report.page import write_page
from hmmscope.storage import store
from hmmscope.text import say


def print_findings(findings: Iterable[Finding], *, invalid: str | None = None) -> None:
    for finding in findings:
        number, text = finding.number(), finding.text.removeprefix("Undecided: ")
        say(f"* {finding.title} ({answer_of(finding.verdict)}): {text}{f' ({number})' if number else ''}")
    if invalid:
        say(f"INVALID: {invalid}")


def print_findings_of(folder: Path) -> None:
    about = store.read_json(folder / "experiment.json", managed=True)
    found = [Finding.from_data(data) for data in store.read_json(folder / "findings.json", managed=True)]
    print_findings(found, invalid=about["invalid"])


def show_page(folder: Path) -> None:
    """Write the page of an experiment and print its findings; a read-only folder keeps its old page."""
    from hmmscope.lab.report.drawing import draw_folder  # needs matplotlib, which findings alone do not

    page = folder / "report.html"
    if os.access(folder, os.W_OK) or not page.is_file():
        draw_folder(folder)
        write_page([folder], page)
    print_findings_of(folder)
    say(f"page: {page}")
