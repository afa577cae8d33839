"""Names of classes, fields, functions and modules, and prose, are free: none of them is part of stored data."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

import hmmscope as hs
from hmmscope import registry
from hmmscope.corpora.layouts import Layout
from hmmscope.processes.laws import Law


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
