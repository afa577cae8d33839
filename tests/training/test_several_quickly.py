"""What several processes say and do when they differ or end, by one process with a table in its memory."""

import os
import sys
from typing import Any

import pytest
import torch
from torch.distributed import HashStore, Store

from hmmscope.errors import ResourceError
from hmmscope.training import distributed, watch
from hmmscope.training.distributed import ProcessGroup
from hmmscope.training.state import Moments, save_state
from hmmscope.training.watch import ProcessMonitor


class Differing(ProcessGroup):
    """Two processes whose weights are the same, or not."""

    size = 2

    def __init__(self, same: bool) -> None:
        self.same = same

    def agree(self, number: int) -> bool:
        return self.same


def test_processes_that_have_come_to_different_weights_save_nothing() -> None:
    model = torch.nn.Linear(2, 2)
    save_state(model, Moments(), None, 3, Differing(same=True))
    with pytest.raises(ResourceError, match="step 3: the processes have different weights"):
        save_state(model, Moments(), None, 3, Differing(same=False))
    save_state(model, Moments(), None, 3)  # one process differs from nobody


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "PERIOD", 0.0)
    monkeypatch.setattr(watch, "LAST_WORDS", 0.01)
    monkeypatch.setattr(watch, "end_undisturbed", lambda: None)

    def leave(code: int) -> None:
        raise SystemExit(code)

    monkeypatch.setattr(os, "_exit", leave)


def watching(words: Store, rank: int) -> ProcessMonitor:
    return ProcessMonitor(HashStore(), words, rank, 2, hosted=True)


def told(**values: str) -> Store:
    words = HashStore()
    for key, value in values.items():
        words.set(key, value)
    return words


@pytest.mark.usefixtures("at_once")
def test_one_process_says_why_all_end(capsys: pytest.CaptureFixture[str]) -> None:
    words = told()
    with pytest.raises(SystemExit) as ended:
        watching(words, 0)._end_alone("rank 1 of 2")
    assert ended.value.code == 5
    assert capsys.readouterr().err.startswith("error[5] ")
    assert (words.get("code"), words.get("spoken")) == (b"5", b"")


@pytest.mark.usefixtures("at_once")
def test_the_others_end_with_its_code_and_say_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    words = told(code="7", spoken="")
    with pytest.raises(SystemExit) as ended:
        watching(words, 1)._end_alone("rank 0 of 2")
    assert (ended.value.code, capsys.readouterr().err) == (7, "")
    assert words.check(["left/1"])


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("what", ["leaving", "ended"])
def test_who_leaves_already_is_not_ended(what: str, capsys: pytest.CaptureFixture[str]) -> None:
    one = watching(told(), 0)
    getattr(one, what).set()
    one._end_alone("rank 1 of 2")
    assert capsys.readouterr().err == ""


def test_a_sign_that_stays_the_same_is_missed() -> None:
    one = watching(told(), 0)
    one._table = table = told(**{"sign/0": "0", "sign/1": "1"})
    for _ in range(3):
        one._look()
    assert one._missed == {0: 0, 1: 2}
    table.set("sign/1", "2")
    one._look()
    assert one._missed == {0: 0, 1: 0}


def test_what_was_written_is_out_before_the_error_stream_is_turned_off(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[Any] = []

    class Stream:
        def flush(self) -> None:
            done.append("flush")

    monkeypatch.setattr(sys, "stderr", Stream())
    monkeypatch.setattr(os, "dup", lambda number: done.append(("dup", number)) or 77)
    monkeypatch.setattr(os, "open", lambda *_: 78)
    monkeypatch.setattr(os, "dup2", lambda *numbers: done.append(("dup2", *numbers)))
    monkeypatch.setattr(os, "close", lambda number: done.append(("close", number)))
    before = distributed._mute()
    monkeypatch.undo()
    assert before == 77
    assert done == ["flush", ("dup", 2), ("dup2", 78, 2), ("close", 78)]
