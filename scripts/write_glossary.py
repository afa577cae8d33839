"""Write the tables of docs/glossary.md from src/hmmscope/synonyms.py.

python scripts/write_glossary.py
"""

import re
from pathlib import Path

from hmmscope.synonyms import TERMS, Term

PAGE = Path(__file__).parents[1] / "docs" / "glossary.md"
_PART = re.compile(r"(?<=<!-- terms: made by scripts/write_glossary.py -->\n).*?(?=<!-- end -->)", re.DOTALL)


def section(title: str, terms: tuple[Term, ...]) -> str:
    """Return one section: a heading, the index entries and a table."""
    words = sorted({word for term in terms for word in (term.name, *term.synonyms)}, key=str.lower)
    rows = [
        f"| {term.name} | {', '.join(f'`{name}`' for name in term.code)} | {term.meaning} | {', '.join(term.synonyms)} |"
        for term in terms
    ]
    index = "```{index} " + ", ".join(words) + "\n```"
    return "\n".join(
        [f"\n## {title}\n", index, "", "| term | in code | meaning | also called |", "|---|---|---|---|", *rows, ""]
    )


def written(page: str) -> str:
    """Return the text of the page with its tables made again."""
    return _PART.sub(lambda _: "".join(section(*item) for item in TERMS.items()) + "\n", page)


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text("utf-8")), "utf-8")
