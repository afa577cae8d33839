"""How findings are printed."""

from pathlib import Path

from hmmscope.evidence.findings import UNJUDGED, Finding
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
