"""The ledger as one HTML page, whole in a single file."""

from collections.abc import Sequence

from markupsafe import Markup

from hmmscope.evidence.ledger import Entry, law_of, summary
from hmmscope.evidence.verdicts import VERDICTS
from hmmscope.report.page import policy, resource, template


def render_ledger(entries: Sequence[Entry]) -> str:
    """The page as text: a claim each, with its rule, what was seen, and the gates before it; to be filtered by verdict."""
    script = resource("ledger.js")
    rows = []
    for entry in entries:
        finding = entry.finding
        row = {"text": "", "gates": (), "verdict": "", "exploratory": None, "invalid": None, **entry.row()}
        row |= {"number": "", "law": "", "place": entry.where()}
        if finding is not None:
            row |= {"number": finding.number(), "law": law_of(finding)}
        rows.append(row)
    return template("ledger.html.j2").render(
        rows=rows,
        summary=summary(entries),
        verdicts=[verdict for verdict in VERDICTS if any(row["verdict"] == verdict for row in rows)],
        script=Markup(script),
        policy=policy([script]),
    )
