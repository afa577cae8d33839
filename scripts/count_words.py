"""Count the words of the documentation that people write, page by page.

    python scripts/count_words.py

Words in tables count; fenced code, output and generated parts do not.
"""

import json
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
#: Generated pages: findings, the gallery, the review of ten headlines, the laboratory, renamed names, the interface.
MADE = {"findings.md", "gallery.md", "headline-review.md", "laboratory.md", "migration.md", "papers.md", "reference.md"}
#: Limits on words: of all pages under docs/ together, and of two other files.
MOST_DOCS, MOST_CHANGELOG, MOST_CONTRIBUTING = 30_000, 900, 1_500


def prose(text: str) -> str:
    """Return a page without fenced code and generated parts."""
    text = re.sub(r"<!-- [\w -]+: made by .*? -->.*?<!-- end -->", "", text, flags=re.DOTALL)
    return re.sub(r"^(`{3,}|:{3,})[^\n]*\n.*?^\1\s*$", "", text, flags=re.MULTILINE | re.DOTALL)


def num_words(text: str) -> int:
    """Count words and numbers, without the rules and bars of tables."""
    return sum(re.search(r"\w", word) is not None for word in prose(text).split())


def notebook_text(text: str) -> str:
    """Return the Markdown cells of a notebook."""
    return "\n\n".join("".join(cell["source"]) for cell in json.loads(text)["cells"] if cell["cell_type"] == "markdown")


def toml_text(text: str) -> str:
    """Return the sentences of docs/findings.toml, without names of claims."""
    text = re.sub(r'^\s*(?:(?:of|rows|also|rules|data) = .*|"[^"]*".*|\]|#.*|\[.*)$', "", text, flags=re.MULTILINE)
    return re.sub(r"^\w+ = ", "", text, flags=re.MULTILINE)


def latex_text(text: str) -> str:
    """Return the sentences of a LaTeX file, without preamble, commands and references."""
    text = text.partition(r"\begin{document}")[2].partition(r"\begin{thebibliography}")[0]
    text = re.sub(r"\\begin\{verbatim\}.*?\\end\{verbatim\}", "", text, flags=re.DOTALL)
    text = re.sub(r"(?<!\\)%.*", "", text)
    text = re.sub(r"\\(begin|end|cite|ref|label|input)\{[^}]*\}", "", text)
    return re.sub(r"\\[a-zA-Z]+|[{}\\~$]", " ", text)


def words_by_page() -> dict[str, int]:
    """Count the words of every page under docs/ that people write, by its path."""
    texts = {page: page.read_text("utf-8") for page in DOCS.glob("*.md") if page.name not in MADE}
    texts |= {page: page.read_text("utf-8") for page in (DOCS / "experiments" / "notes").glob("*.md")}
    texts |= {page: page.read_text("utf-8") for page in (DOCS / "notebooks").glob("*.md")}
    texts |= {page: notebook_text(page.read_text("utf-8")) for page in (DOCS / "notebooks").glob("*.ipynb")}
    texts |= {page: toml_text(page.read_text("utf-8")) for page in DOCS.glob("findings.toml")}
    texts |= {page: latex_text(page.read_text("utf-8")) for page in (DOCS / "article").glob("*.tex")}
    return {str(page.relative_to(ROOT)): num_words(text) for page, text in sorted(texts.items())}


if __name__ == "__main__":
    counts = words_by_page()
    for name, count in sorted(counts.items(), key=lambda item: -item[1]):
        print(f"{count:6} {name}")
    print(f"{sum(counts.values()):6} docs/, of at most {MOST_DOCS}")
    for name, most in (("CHANGELOG.md", MOST_CHANGELOG), ("CONTRIBUTING.md", MOST_CONTRIBUTING)):
        print(f"{num_words((ROOT / name).read_text('utf-8')):6} {name}, of at most {most}")
    print(f"{num_words((ROOT / 'README.md').read_text('utf-8')):6} README.md")
