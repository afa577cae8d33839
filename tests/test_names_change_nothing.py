"""Names of classes, fields, functions and modules, and prose, are free: none of them is part of stored data."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

import hmmscope as hs
from hmmscope import registry
from hmmscope.corpora.layouts import Layout
from hmmscope.lab.benchmark import board, checking
from hmmscope.lab.benchmark.card import as_text
from hmmscope.lab.benchmark.frozen import WORDS
from hmmscope.lab.benchmark.tasks import TASKS, tasks_of
from hmmscope.processes.laws import Law
from hmmscope.storage import store

ROOT = Path(__file__).parents[1]


def below(kind: type) -> Iterator[type]:
    """The classes of the library below a class."""
    for one in kind.__subclasses__():
        if one.__module__.startswith("hmmscope"):
            yield one
        yield from below(one)


@contextmanager
def renamed(*classes: type) -> Iterator[None]:
    """Classes called otherwise in here, as after an edit of their modules."""
    before = [(one, one.__name__, one.__qualname__) for one in classes]
    try:
        for one, name, path in before:
            one.__name__, one.__qualname__ = f"{name}Renamed", f"{path}Renamed"
        yield
    finally:
        for one, name, path in before:
            one.__name__, one.__qualname__ = name, path


@pytest.mark.parametrize("layout", [hs.Sequences(length=3), hs.Prompts(num_demonstrations=1, demonstration_length=2)])
def test_a_renamed_layout_leaves_the_digests_of_corpora(layout: Layout) -> None:
    corpus = hs.Corpus("umbrella", layout=layout)
    before = corpus.digest(2)
    with renamed(type(layout)):
        assert corpus.digest(2) == before


def test_every_layout_of_the_library_has_a_name_for_digests_and_others_have_their_own() -> None:
    registry.entries("layout")
    kinds = list(below(Layout))
    assert len(kinds) >= 4
    assert all("digest_name" in vars(kind) for kind in kinds)

    class Own(hs.Sequences):
        pass

    assert Own.digest_name == "Own"


@pytest.mark.parametrize("name", ["random-hmm", "mess3", "bloch-walk", "told-hmms"])
def test_renamed_forms_of_laws_leave_the_digests_of_processes(name: str) -> None:
    before = hs.make_process(name).law_digest
    with renamed(*below(Law)):
        assert hs.make_process(name).law_digest == before


def test_every_law_of_the_library_has_a_name_for_digests() -> None:
    registry.entries("process")
    assert {kind.digest_name for kind in below(Law)} >= {"StateEmitting", "EdgeEmitting", "Signed"}
    assert all("digest_name" in vars(kind) for kind in below(Law))


def test_a_task_of_the_bench_that_is_worded_better_is_the_same_task() -> None:
    parity = tasks_of("light", ["parity"])[0]
    worded = replace(parity, kind="other words", about="Other words.")
    worded.require_frozen()
    assert worded.digest == parity.digest != replace(parity, reads=True).digest
    assert worded.frozen_kind == "state tracking"
    assert all(WORDS[task.name] == (task.frozen_kind, task.frozen_fields()["about"]) for task in TASKS)


def test_the_card_in_lines_and_leaderboards_are_compared_without_their_words() -> None:
    tasks = tasks_of("light", ["parity", "told"])
    card = store.read_json(next((ROOT / "results" / "hmm-bench").glob("gru-*.json")))
    text = as_text(card)
    assert "what a constant leaves is solved" in text
    worded = text.replace("what a constant leaves is solved", "the gap is closed").replace("Card(", "Score(")
    assert checking._without_words(worded, tasks) == checking._without_words(text, tasks)
    row = next(line for line in text.splitlines() if line.startswith("told "))
    for forged in (
        text.replace(row, row.replace(".", "1.", 1)),
        text.replace("gru", "lstm"),
        text.replace("17,", "16,"),
    ):
        assert checking._without_words(forged, tasks) != checking._without_words(text, tasks)
    for page in (board.markdown([card]), board.page([card])):
        assert board._cells(page.replace("Solved:", "Closed:").replace("counting, no", "n-grams, no")) == board._cells(
            page
        )
        assert board._cells(page.replace("gru", "lstm")) != board._cells(page)
        assert len(board._cells(page)) == 2
