"""The ledger as one HTML page, whole in a single file."""

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from hmmscope.lab.evidence.ledger import LedgerRow, place, scaling_law_of, summary
from hmmscope.lab.evidence.verdicts import VERDICTS
from hmmscope.lab.report.page import policy, resource, template


@dataclass(frozen=True)
class Page:
    """An experiment whose page the ledger leads to; `link` is None while there is none, `error` says why."""

    name: str
    title: str
    link: str | None
    error: str | None


def render_ledger(entries: Sequence[LedgerRow], pages: Sequence[Page] = ()) -> str:
    """The page as text: a claim each, with its rule, what was seen, and the gates before it; to be filtered by verdict."""
    links = {page.name: page.link for page in pages}
    script = resource("ledger.js")
    rows = []
    for entry in entries:
        finding = entry.finding
        row = {"text": "", "gates": (), "verdict": "", "exploratory": None, "invalid": None, **entry.row()}
        row |= {"number": "", "law": "", "place": place(entry)}
        row["link"] = links.get(entry.claim.experiment)
        if finding is not None:
            row |= {"number": finding.number(), "law": scaling_law_of(finding)}
        rows.append(row)
    return template("ledger.html.j2").render(
        rows=rows,
        pages=pages,
        summary=summary(entries),
        verdicts=[verdict for verdict in VERDICTS if any(row["verdict"] == verdict for row in rows)],
        script=Markup(script),
        policy=policy([script]),
    )
