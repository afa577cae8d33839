"""The ledger as one self-contained HTML page."""

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from hmmscope.lab.evidence.answers import ANSWERS, answer_of
from hmmscope.lab.evidence.ledger import LedgerRow, place, statistics_of, summary
from hmmscope.lab.report.page import policy, resource, template


@dataclass(frozen=True)
class Page:
    """The page of an experiment, linked from the ledger; without one, `link` is None and `error` gives the reason."""

    name: str
    title: str
    link: str | None
    error: str | None


def render_ledger(entries: Sequence[LedgerRow], pages: Sequence[Page] = ()) -> str:
    """Return the ledger's HTML: each claim with rule, result and preconditions, and a filter by verdict."""
    links = {page.name: page.link for page in pages}
    script = resource("ledger.js")
    rows = []
    for entry in entries:
        finding = entry.finding
        row = {"text": "", "gates": (), "verdict": "", "exploratory": None, "invalid": None, **entry.row()}
        row |= {"number": "", "law": "", "place": place(entry)}
        row |= {
            "link": links.get(entry.claim.experiment),
            "answer": answer_of(row["verdict"]) if row["verdict"] else "",
        }
        if finding is not None:
            row |= {"number": finding.number(), "law": statistics_of(finding)}
        rows.append(row)
    return template("ledger.html.j2").render(
        rows=rows,
        pages=pages,
        summary=summary(entries),
        answers=[answer for answer in dict.fromkeys(ANSWERS.values()) if any(row["answer"] == answer for row in rows)],
        script=Markup(script),
        policy=policy([script]),
    )
