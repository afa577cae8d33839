"""The ledger (a list of all claims with their results) as one self-contained HTML page."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from hmmscope.lab.evidence.answers import MEANINGS
from hmmscope.lab.evidence.ledger import LedgerRow, place, statistics_of, summary
from hmmscope.lab.evidence.verdicts import answer_of
from hmmscope.lab.report.page import policy, resource, template

#: The three answers to claims.
_WORDS = ("supported", "contradicted", "undecided")


@dataclass(frozen=True)
class Page:
    """The page of an experiment that the ledger links to; a missing page has an `error` and no `link`."""

    name: str
    title: str
    link: str | None
    error: str | None


def render_ledger(entries: Sequence[LedgerRow], pages: Sequence[Page] = ()) -> str:
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
    counts = Counter(row["answer"] for row in rows if row["answer"])
    answers = [answer for answer in MEANINGS if counts[answer]]
    rows.sort(key=lambda row: answers.index(row["answer"]) if row["answer"] else len(answers))
    claims = sum(counts[answer] for answer in answers if answer not in ("answered", "open"))
    words = {word: sum(number for answer, number in counts.items() if answer.startswith(word)) for word in _WORDS}
    return template("ledger.html.j2").render(
        rows=rows,
        counts=counts,
        meanings=MEANINGS,
        found=f"{claims} claims: {', '.join(f'{number} {word}' for word, number in words.items())}.",
        pages=pages,
        summary=summary(entries),
        answers=answers,
        script=Markup(script),
        policy=policy([script]),
    )
