"""How findings are printed, and the page that stands with them."""

import os
from pathlib import Path

from hmmscope.lab.evidence.finding import UNJUDGED, Finding
from hmmscope.lab.report.drawing import draw_folder
from hmmscope.lab.report.page import write_page
from hmmscope.storage import store
from hmmscope.text import say


def print_findings(folder: Path) -> None:
    """The sentences of findings.json."""
    about = store.read_json(folder / "experiment.json", own=True)
    for data in store.read_json(folder / "findings.json", own=True):
        finding = Finding.from_data(data)
        if about["scale"] == UNJUDGED:
            say(f"* {finding.title} (not tested: {UNJUDGED})")
            continue
        number = finding.number()
        say(f"* {finding.title} ({finding.verdict}): {finding.text}{f' ({number})' if number else ''}")
    if about["invalid"]:
        say(f"INVALID: {about['invalid']}")


def show_page(folder: Path) -> None:
    """Write the page of an experiment that was run, and print its findings.

    Where the folder cannot be written to, the page that it has stays.
    """
    page = folder / "report.html"
    if os.access(folder, os.W_OK) or not page.is_file():
        draw_folder(folder)
        write_page([folder], page)
    print_findings(folder)
    say(f"page: {page}")
