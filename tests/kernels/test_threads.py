"""Parts on threads: each once, in any order, errors from wherever they are, and no thread for a little work."""

import threading

import pytest

from hmmscope.kernels import threads
from hmmscope.kernels.threads import on_threads


def test_a_little_work_starts_no_thread(monkeypatch):
    monkeypatch.setattr(threads, "WORTH", 1e9)
    done = []
    on_threads(lambda part: done.append((part, threading.get_ident())), range(20), 4)
    assert done == [(part, threading.get_ident()) for part in range(20)]
    on_threads(done.append, [], 4)
    assert len(done) == 20


def test_much_work_is_shared(monkeypatch):
    monkeypatch.setattr(threads, "WORTH", 0.0)
    done: list[tuple[int, int]] = []
    meet = threading.Barrier(3)

    def run(part: int) -> None:
        if part in (1, 2, 3):  # three threads are there at once
            meet.wait(60)
        done.append((part, threading.get_ident()))

    on_threads(run, range(20), 3)
    assert sorted(part for part, _ in done) == list(range(20))
    assert len({who for _, who in done}) == 3


@pytest.mark.parametrize("bad", [0, 1, 7, 11])
@pytest.mark.parametrize("worth", [0.0, 1e9])
def test_an_error_of_any_part_is_raised(monkeypatch, bad, worth):
    monkeypatch.setattr(threads, "WORTH", worth)

    def run(part: int) -> None:
        if part == bad:
            raise ValueError(f"part {part}")

    with pytest.raises(ValueError, match=f"^part {bad}$"):
        on_threads(run, range(12), 2)
