"""One word for one thing: docs/glossary.md rules words out, and no message uses one of them."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
GLOSSARY = ROOT / "docs" / "glossary.md"
SOURCES = {str(path.relative_to(ROOT / "src")): path.read_text("utf-8") for path in sorted(ROOT.glob("src/**/*.py"))}

#: What says something to a user: errors, warnings, rules, and the texts of the command line.
_SAYS = {"InputError", "RefusedError", "DamagedError", "ResourceError", "NonFiniteError", "Interrupted"}
_SAYS |= {"require", "warn", "verb", "say_beside"}


def rows() -> list[list[str]]:
    """The cells of the glossary's tables: term, name in the code, meaning, words that are not used."""
    lines = [line for line in GLOSSARY.read_text("utf-8").splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [row for row in cells if row[0] != "term" and set(row[0]) != {"-"}]


def ruled_out() -> dict[str, str]:
    """The term that is used for each word that is not."""
    return {word: row[0] for row in rows() for word in row[3].split(", ")}


def messages(text: str) -> Iterator[tuple[int, str]]:
    """(line, text) of what a module says to a user."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            said = [*node.args, *(k.value for k in node.keywords)] if called in _SAYS else []
            said += [k.value for k in node.keywords if k.arg == "help"]
            for one in (part for value in said for part in ast.walk(value)):
                if isinstance(one, ast.Constant) and isinstance(one.value, str):
                    yield one.lineno, one.value


def breaches(sources: dict[str, str]) -> list[str]:
    """``path:line: word (say ...)`` for each word in a message that the glossary rules out."""
    words = ruled_out()
    pattern = re.compile(rf"(?<![\w-])({'|'.join(map(re.escape, words))})(?:s|es)?(?![\w-])", re.IGNORECASE)
    return [
        f"{path}:{line}: {found[1]} (say {words[found[1].lower()]})"
        for path, text in sources.items()
        for line, message in messages(text)
        for found in pattern.finditer(message)
    ]


def test_messages_use_the_words_of_the_glossary() -> None:
    assert breaches(SOURCES) == []


@pytest.mark.parametrize(
    "line",
    [
        "raise InputError(f'{path}: no such directory')",
        "require(x > 0, 'tasks', f'must be one of {n} Tasks', x)",
        "parser.add_argument('--out', help='a new directory')",
        "verb('fit', 'an HMM for a time series')",
        "warnings.warn('the vocabulary is small', stacklevel=2)",
        "raise RefusedError('a ' + ('snapshot' if x else 'run'))",
    ],
)
def test_planted_word_is_found(line: str) -> None:
    found = breaches({"a.py": line})
    assert found[0].startswith("a.py:1: ")


@pytest.mark.parametrize(
    "line", ["raise InputError('task-patching: no component')", "x = 'a directory'", '"""The directory."""']
)
def test_names_and_what_nobody_reads_pass(line: str) -> None:
    assert breaches({"a.py": line}) == []


def test_the_glossary_is_of_the_code() -> None:
    """Each name that it gives stands in the library, no term stands twice, and no term is ruled out."""
    library = "\n".join(SOURCES.values())
    names = [name for row in rows() for name in re.findall(r"`([^`]+)`", row[1]) if not name.startswith("[")]
    assert [name for name in names if re.split(r"[\[(/]", name)[0] not in library] == []
    terms = [row[0] for row in rows()]
    assert len(terms) == len(set(terms)) > 40
    assert set(terms) & set(ruled_out()) == set()
