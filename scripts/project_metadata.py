"""Copy the owner's metadata (repository, authors, DOI, contact) from one place into every file that states it.

    python scripts/project_metadata.py             print each empty field, and each file that differs
    python scripts/project_metadata.py --write     write the fields of [tool.hmmscope.owner] in pyproject.toml into
                                                   the three pyproject.toml, CITATION.cff, README.md, CODE_OF_CONDUCT.md,
                                                   docs/index.md

Exits with 1 if a file differs. Empty fields are listed, are no failure and get no substitute.
"""

import argparse
import re
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
#: Fields, with an example.
ASKED = {
    "authors": '["Ada Lovelace <ada@example.org>"]',
    "repository": '"https://github.com/OWNER/hmmscope"',
    "documentation": '"https://OWNER.github.io/hmmscope"',
    "doi": '"10.5281/zenodo.NUMBER"',
    "contact": '"conduct@example.org"',
}
PROJECTS = ("pyproject.toml", "papers/pyproject.toml", "studies/pyproject.toml")
FALLBACK = "the private report of the repository that you obtained hmmscope from"


def owner(root: Path) -> dict[str, Any]:
    """Return the checked table of the owner."""
    table = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["tool"]["hmmscope"]["owner"]
    odd = sorted(set(table) ^ set(ASKED))
    if odd:
        raise SystemExit(
            f"pyproject.toml: tool.hmmscope.owner.{odd[0]}: must be one of {', '.join(ASKED)}, and each must occur once"
        )
    for name in ("repository", "documentation"):
        if table[name] and not table[name].startswith("https://"):
            raise SystemExit(
                f"pyproject.toml: tool.hmmscope.owner.{name}: must begin with https://, got {table[name]!r}"
            )
    if table["doi"] and not re.fullmatch(r"10\.\d{4,9}/\S+", table["doi"]):
        raise SystemExit(
            f"pyproject.toml: tool.hmmscope.owner.doi: must look like 10.5281/zenodo.1, got {table['doi']!r}"
        )
    return table


def missing(table: dict[str, Any]) -> list[str]:
    """Return a line for each empty field."""
    return [
        f"pyproject.toml: tool.hmmscope.owner.{name}: not filled in; such as {name} = {example}"
        for name, example in ASKED.items()
        if not table[name]
    ]


def _people(table: dict[str, Any]) -> list[tuple[str, str]]:
    found = [re.fullmatch(r"\s*([^<>]+?)\s*(?:<([^<>]+)>)?\s*", one) for one in table["authors"]]
    return [(one[1], one[2] or "") for one in found if one] or [("The hmmscope authors", "")]


def _between(text: str, begin: str, end: str, new: str) -> str:
    pattern = re.compile(rf"({re.escape(begin)}\n).*?({re.escape(end)})", re.DOTALL)
    if not pattern.search(text):
        raise SystemExit(f"no {begin!r} ... {end!r}")
    return pattern.sub(lambda found: found[1] + new + found[2], text, count=1)


def filled(root: Path, table: dict[str, Any]) -> dict[str, str]:
    """Return the files that name the owner, with the table's values."""
    people = _people(table)
    links = {"Repository": table["repository"], "Documentation": table["documentation"]}
    links |= {"DOI": f"https://doi.org/{table['doi']}" if table["doi"] else ""}
    texts = {
        name: (root / name).read_text("utf-8")
        for name in (*PROJECTS, "CITATION.cff", "README.md", "CODE_OF_CONDUCT.md", "docs/index.md")
    }
    named = ", ".join(
        f'{{ name = "{name}"{f", email = {chr(34)}{mail}{chr(34)}" if mail else ""} }}' for name, mail in people
    )
    urls = "".join(f'{name} = "{link}"\n' for name, link in links.items() if link)
    for project in PROJECTS:
        toml = re.sub(r"(?m)^authors = \[\{.*\}\]$", f"authors = [{named}]", texts[project], count=1)
        texts[project] = _between(toml, "# owner", "# end", urls)
    cff = "".join(f"  - name: {name}\n" for name, _ in people)
    cff = f"authors:\n{cff}" + (f"repository-code: {table['repository']}\n" if table["repository"] else "")
    cff += f"doi: {table['doi']}\n" if table["doi"] else ""
    texts["CITATION.cff"] = _between(texts["CITATION.cff"], "# owner", "# end", cff)
    said = " · ".join(f"[{name}]({link})" for name, link in links.items() if link)
    for name in ("README.md", "docs/index.md"):
        texts[name] = _between(texts[name], "<!-- owner -->", "<!-- end -->", f"{said}\n" if said else "")
    contact = f"{table['contact'] or FALLBACK}\n"
    texts["CODE_OF_CONDUCT.md"] = _between(texts["CODE_OF_CONDUCT.md"], "<!-- owner -->", "<!-- end -->", contact)
    return texts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--root", type=Path, default=ROOT, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    table = owner(asked.root)
    stale = {
        name: text for name, text in filled(asked.root, table).items() if text != (asked.root / name).read_text("utf-8")
    }
    for name, text in stale.items():
        if asked.write:
            (asked.root / name).write_text(text, "utf-8")
        print(f"{name}: {'written' if asked.write else 'differs from the owner table; run with --write'}")
    print("\n".join(missing(table)) or "all is filled in")
    return int(bool(stale) and not asked.write)


if __name__ == "__main__":
    raise SystemExit(main())
