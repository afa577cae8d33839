"""How findings are printed."""

from pathlib import Path

from hmmscope.evidence.findings import Finding
from hmmscope.storage import store
from hmmscope.text import say


def print_findings(folder: Path) -> None:
    """The sentences of findings.json."""
    for data in store.read_json(folder / "findings.json", own=True):
        finding = Finding.from_data(data)
        number = finding.number()
        say(f"* {finding.title} ({finding.verdict}): {finding.text}{f' ({number})' if number else ''}")
    invalid = store.read_json(folder / "experiment.json", own=True)["invalid"]
    if invalid:
        say(f"INVALID: {invalid}")
