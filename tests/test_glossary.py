"""docs/glossary.md: every term exists, every synonym is found, and messages use standard terms."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import hmmscope as hs
from hmmscope import lab
from hmmscope.errors import InputError
from hmmscope.lab.cli import main
from hmmscope.lab.verbs.options import verbs
from hmmscope.schema import unknown_name
from hmmscope.synonyms import RENAMED, TERMS, Term, find_term, suggestion
from script_modules import script

ROOT = Path(__file__).parents[1]
GLOSSARY = (ROOT / "docs" / "glossary.md").read_text("utf-8")
SOURCES = {
    path.as_posix().rpartition("/src/")[2]: path.read_text("utf-8")
    for path in sorted([*ROOT.glob("src/**/*.py"), *ROOT.glob("*/src/**/*.py")])
}
ALL = [term for terms in TERMS.values() for term in terms]

#: Words that earlier versions used, and the standard term.
RETIRED = {
    "twin": "untrained control",
    "corpus": "dataset",
    "corpora": "datasets",
    "likeliest": "most likely",
    "counting": "n-gram baseline",
    "judged": "evaluated",
    "law": "distribution",
    "is told": "is given",
    "beside": "compared with",
}
#: Calls whose strings a user reads.
_SAYS = {
    "InputError",
    "RefusedError",
    "DamagedError",
    "ResourceError",
    "NonFiniteError",
    "require",
    "warn",
    "said",
    "given",
}


def messages(text: str) -> Iterator[tuple[int, str]]:
    """(line, text) of the errors, warnings and option helps of a module."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            shown = [*node.args, *(k.value for k in node.keywords)] if called in _SAYS else []
            shown += [k.value for k in node.keywords if k.arg == "help"]
            for part in (part for value in shown for part in ast.walk(value)):
                if isinstance(part, ast.Constant) and isinstance(part.value, str):
                    yield part.lineno, part.value


def retired_words(sources: dict[str, str]) -> list[str]:
    """``path:line: word (standard term)`` for each retired word in a message."""
    pattern = re.compile(rf"(?<![\w\"'./-])({'|'.join(map(re.escape, RETIRED))})(s?)(?![\w\"'.=-])", re.IGNORECASE)
    return [
        f"{path}:{line}: {found[0]} ({RETIRED[found[1].lower()]})"
        for path, text in sources.items()
        for line, message in messages(text)
        for found in pattern.finditer(message.replace("scaling law", ""))
        if found[0].lower() not in ("besides", message)  # a message of one word is the name of a field
    ]


def test_messages_use_standard_terms() -> None:
    assert retired_words(SOURCES) == []


@pytest.mark.parametrize(
    "line",
    [
        "raise InputError(f'{path}: the corpus is empty')",
        "require(x > 0, 'tasks', f'must be one of {n} Laws', x)",
        "parser.add_argument('--out', help='a page beside the others')",
        "warnings.warn('no twins', stacklevel=2)",
    ],
)
def test_a_planted_word_is_found(line: str) -> None:
    assert retired_words({"a.py": line})[0].startswith("a.py:1: ")


@pytest.mark.parametrize(
    "line", ["raise InputError('stream corpus-x: no scaling law')", "x = 'a corpus'", '"""Twins."""']
)
def test_names_and_strings_of_no_message_pass(line: str) -> None:
    assert retired_words({"a.py": line}) == []


def test_the_page_has_the_table_of_synonyms() -> None:
    """`python scripts/write_glossary.py` writes it, with an entry of the index for each word."""
    assert script("write_glossary").written(GLOSSARY) == GLOSSARY
    indexed = [word for line in re.findall(r"^```\{index\} (.+)$", GLOSSARY, re.MULTILINE) for word in line.split(", ")]
    assert sorted(indexed) == sorted(word for term in ALL for word in (term.name, *term.synonyms))


def exists(code: str) -> bool:
    """Whether a name in code is of `hmmscope`, of `hmmscope.lab`, of the command line, or a field of the library."""
    verb, _, option = code.partition(" ")
    if option:
        return option.removeprefix("--").replace("-", "_") in verbs()[verb].__dataclass_fields__
    known = {*hs.__all__, *lab.__all__, *verbs()}
    return code in known or any(
        re.search(rf"\b{code.rpartition('.')[2]}\b\s*[:=(\"]", text) for text in SOURCES.values()
    )


@pytest.mark.parametrize("term", ALL, ids=lambda term: term.name)
def test_each_term_is_in_the_code_and_each_synonym_finds_it(term: Term) -> None:
    assert [code for code in term.code if not exists(code)] == []
    assert [word for word in (term.name, *term.synonyms) if find_term(word) is not term] == []
    assert find_term(term.name.upper().replace(" ", "_")) is term


def test_no_word_stands_for_two_terms() -> None:
    words = [word.lower() for term in ALL for word in (term.name, *term.synonyms)]
    assert sorted({word for word in words if words.count(word) > 1}) == []
    assert not exists("nowhere_at_all")
    assert find_term("nowhere at all") is None


@pytest.mark.parametrize(
    "word, name",
    [
        ("viterbi", "most_likely_states"),
        ("posterior", "filter_beliefs"),
        ("dataset", "ProcessDataset"),
        ("run_with_cache", "capture_activations"),
        ("oracle", "optimal_predictions"),
        ("Corpus", "ProcessDataset"),
    ],
)
def test_the_package_names_what_a_synonym_stands_for(word: str, name: str) -> None:
    with pytest.raises(AttributeError, match=f"has no attribute '{word}'; did you mean '{name}'"):
        getattr(hs, word)


@pytest.mark.parametrize(
    "line, printed",
    [
        ("decode", "verb: unknown 'decode'; did you mean 'infer'"),
        ("ask umbrella", "verb: unknown 'ask'; did you mean 'infer'"),
        ("infer umbrella --gamma", "did you mean '--smooth'"),
        ("train umbrella --begin x", "did you mean '--warm-start'"),
        (
            "train umbrella --training.backend torch --out x",
            "training.backend: unknown 'backend'; did you mean 'engine'",
        ),
        ("show viterbi", "most likely states: the state path"),
        ("show hidden-units", "state: the hidden variable"),
    ],
)
def test_the_command_line_finds_synonyms(line: str, printed: str, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(line.split())
    shown = capsys.readouterr()
    assert printed in shown.out + shown.err
    assert code == (0 if line.startswith("show") else 2)


def test_names_of_earlier_versions_are_those_of_the_migration_page() -> None:
    page = (ROOT / "docs" / "migration.md").read_text("utf-8")
    rows = re.findall(r"^\| `([^`]+)` \| `([^`]+)` \|$", page, re.MULTILINE)
    new = {was.rpartition(" ")[2].removeprefix("--training."): one.rpartition(" ")[2] for was, one in rows}
    assert {was: one for was, one in RENAMED.items() if new.get(was, "").removeprefix("--training.") != one} == {}
    assert str(unknown_name("x", "unigram", ["ngram_baselines"])).startswith(
        "x: unknown 'unigram'; did you mean 'ngram"
    )
    assert isinstance(unknown_name("x", "y", []), InputError)
    assert suggestion("viterbi", ["train"]) is None
    verbs = {"predict": "infer", "evaluate": "analyse", "simulate": "sample", "figure": "report", "test": "check"}
    assert {word: suggestion(word, [*verbs.values(), "fit"]) for word in verbs} == verbs
    assert suggestion("likeliest_path", ["likeliest", "most_likely_states"]) == "most_likely_states"
