"""Compare the docstrings of a git revision with those of this checkout; exit with 1 if documented facts were lost.

    python scripts/compare_docstrings.py REV

A fact is a parameter, attribute, return value, raised error or cited source that the docstring of a public object documents.
No file may gain comment lines. Objects that were removed or renamed since REV are listed separately and are not losses.
"""

import argparse
import ast
import io
import re
import subprocess
import sys
import tarfile
import tokenize
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
#: Folders of source packages.
FOLDERS = ("src", "papers/src", "studies/src")
_SECTION = re.compile(r"(Args|Arguments|Returns|Yields|Raises|Attributes|Source)s?(?: \([^)]*\))?:")
_CITED = re.compile(
    r"\[(?:Limits|MultiTask)\][^\[\n]*?(?:§ ?[\w.]+"
    r"|(?:Theorem|Lemma|Fig|Figure|Table|Eq|App|Appendix|Section|Alg|Algorithm)s?\.? ?\(?[A-Z]?[\w.]*\d?)"
)


@dataclass(frozen=True)
class Documented:
    """Docstrings of a tree.

    Attributes:
        facts: Facts by dotted name of each public object.
        names: Parameters of each function, and names defined in each class.
        comments: Number of comments by module.
        words: Words in all docstrings.
    """

    facts: Mapping[str, frozenset[str]]
    names: Mapping[str, frozenset[str]]
    comments: Mapping[str, int]
    words: int


def facts_of(docstring: str) -> frozenset[str]:
    """Return the facts of a docstring, such as ``Args: length`` and ``Raises: InputError``."""
    found: set[str] = set()
    section, entry_depth = "", 0
    for line in filter(str.strip, docstring.splitlines()):
        text, depth = line.strip(), len(line) - len(line.lstrip())
        heading = _SECTION.match(text) if depth == 0 else None
        if heading:
            section, entry_depth = heading[1], 0
            if section in ("Returns", "Yields", "Source"):
                found.add(section)
        elif depth == 0:
            section = ""
        elif section in ("Args", "Arguments", "Raises", "Attributes"):
            entry_depth = entry_depth or depth
            entry = re.match(r"([`*\w., ]+?)(?: \([^)]*\))?:", text) if depth == entry_depth else None
            if entry:
                found |= {f"{section}: {one.strip(' `*')}" for one in entry[1].split(",") if one.strip()}
    return frozenset(found) | {f"cites {' '.join(one.split())}" for one in _CITED.findall(" ".join(docstring.split()))}


def public_objects(body: list[ast.stmt], prefix: str) -> Iterator[tuple[str, ast.ClassDef | ast.FunctionDef]]:
    """Yield public classes, functions and methods with their dotted names."""
    for node in body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_"):
            yield f"{prefix}.{node.name}", node
            if isinstance(node, ast.ClassDef):
                yield from public_objects(node.body, f"{prefix}.{node.name}")


def documented(sources: Mapping[str, str]) -> Documented:
    """Read the docstrings and comments of modules, given as text by path."""
    facts, names, comments, words = {}, {}, {}, 0
    for path, text in sources.items():
        tree, name = ast.parse(text), path.partition("src/")[2].removesuffix(".py").replace("/", ".")
        tokens = tokenize.generate_tokens(io.StringIO(text).readline)
        comments[name] = sum(token.type == tokenize.COMMENT for token in tokens)
        holders = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        words += sum(
            len((ast.get_docstring(node) or "").split()) for node in ast.walk(tree) if isinstance(node, holders)
        )
        for dotted, node in [(name, tree), *public_objects(tree.body, name)]:
            facts[dotted] = facts_of(ast.get_docstring(node) or "")
            names[dotted] = names_of(node)
    return Documented(facts, names, comments, words)


def names_of(node: ast.AST) -> frozenset[str]:
    """Return the parameters of a function, or all names in a class."""
    if isinstance(node, ast.ClassDef):
        inside = list(ast.walk(node))
        own = {one.name for one in inside if isinstance(one, ast.FunctionDef)}
        attributes = {one.attr for one in inside if isinstance(one, ast.Attribute)}
        return frozenset(own | attributes | {one.id for one in inside if isinstance(one, ast.Name)})
    if isinstance(node, ast.FunctionDef):
        return frozenset(one.arg for one in ast.walk(node.args) if isinstance(one, ast.arg))
    return frozenset()


def lost(before: Documented, after: Documented) -> list[str]:
    """List facts missing from objects of both trees, and modules with more comments than before.

    Parameters and attributes that were removed from the code are not losses.
    """
    gone = [
        f"{name}: {fact}"
        for name, own in before.facts.items()
        if name in after.facts
        for fact in sorted(own - after.facts[name])
        if not fact.startswith(("Args", "Attributes")) or fact.partition(": ")[2] in after.names[name]
    ]
    grown = [
        f"{name}: {count} -> {after.comments[name]} comments"
        for name, count in before.comments.items()
        if after.comments.get(name, 0) > count
    ]
    return gone + grown


def here() -> dict[str, str]:
    """Read the modules of this checkout."""
    files = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
    return {str(path.relative_to(ROOT)): path.read_text("utf-8") for path in files}


def at(revision: str) -> dict[str, str]:
    """Read the modules of a git revision."""
    packed = subprocess.run(["git", "archive", revision], cwd=ROOT, check=True, capture_output=True).stdout
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        names = [name for name in archive.getnames() if name.startswith(FOLDERS) and name.endswith(".py")]
        return {name: file.read().decode() for name in names if (file := archive.extractfile(name)) is not None}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("revision", metavar="REV", help="a commit, branch or tag")
    before, after = documented(at(parser.parse_args().revision)), documented(here())
    losses = lost(before, after)
    removed = sorted(name for name, own in before.facts.items() if own and name not in after.facts)
    print("\n".join([*losses, *(f"removed or renamed: {name}" for name in removed)]))
    print(f"{len(losses)} losses; words of docstrings: {before.words} -> {after.words}")
    return int(bool(losses))


if __name__ == "__main__":
    sys.exit(main())
