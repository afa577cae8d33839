"""Heartbeats of training processes, and the choice of the process that reports an error."""

import os
import signal
import sys
import threading
import time
from contextlib import suppress

import torch.distributed as dist

from hmmscope.errors import ResourceError

#: Seconds between heartbeats, how many may be missed, and seconds that the reporting process gets.
PERIOD, MISSED, LAST_WORDS = 1.0, 45, 10.0


class ProcessMonitor(threading.Thread):
    """Thread that sends this process's heartbeats and watches those of all other processes."""

    def __init__(self, table: dist.Store, words: dist.Store, rank: int, size: int, hosted: bool) -> None:
        super().__init__(daemon=True, name="hmmscope-watch")
        self._table, self._words = table, words  # two connections: heartbeats continue while waiting for words
        self._rank, self._size, self._hosted = rank, size, hosted
        self._signs = [f"sign/{other}" for other in range(size)]
        self._seen: dict[int, bytes] = {}
        self._missed = dict.fromkeys(range(size), 0)
        self._count = 0
        self._dead: set[int] = set()
        self._gone = False  # the table
        self.ended = threading.Event()  # monitoring is over
        self.leaving = threading.Event()  # the main thread is ending the process
        self._ending = threading.Lock()  # held by the thread that ends this process

    def beat(self) -> None:
        self._count += 1
        self._table.set(self._signs[self._rank], str(self._count))

    def run(self) -> None:
        while not self.ended.wait(PERIOD):
            try:
                self._look()
                told = self._table.check(["code"])
            except RuntimeError:
                self._end_alone("the first process, to which all others connect,")
                return
            self._dead = {other for other, missed in self._missed.items() if missed >= MISSED}
            if self._dead or told:
                self._end_alone(self._names())

    def _look(self) -> None:
        self.beat()
        for other, sign in enumerate(self._table.multi_get(self._signs)):
            self._missed[other] = self._missed[other] + 1 if self._seen.get(other) == sign else 0
            self._seen[other] = sign

    def _end_alone(self, who: str) -> None:
        if self.leaving.is_set() or self.leaving.wait(5 * PERIOD) or self.ended.is_set():
            return
        if not self.ends_here():
            return
        code = ResourceError.exit_code
        if self.speaks(code):
            sys.stderr.write(f"error[{code}] {_gone(who)}\n")
            sys.stderr.flush()
            self.fall_silent()
        else:
            code = self.silence()
        sys.stdout.flush()
        os._exit(code)

    def ends_here(self) -> bool:
        """Return True only to the first thread that calls this method; this thread may end the process."""
        return self._ending.acquire(blocking=False)

    def speaks(self, code: int) -> bool:
        self.leaving.set()
        try:
            asked = self._rank and comes(self._words, ["code"], 2 * PERIOD)
            if asked or self._words.add("speakers", 1) > 1:
                return False
            self._words.set("code", str(code))
            return True
        except RuntimeError:  # the store ended with its process
            self._gone = True
            self.ended.set()
            return self._rank == (1 if self._hosted else 0)

    def silence(self) -> int:
        code = ResourceError.exit_code
        with suppress(RuntimeError):
            if comes(self._words, ["code"], LAST_WORDS):
                code = int(self._words.get("code"))
            comes(self._words, ["spoken"], LAST_WORDS)
        self.ended.set()
        with suppress(RuntimeError):
            self._words.set(f"left/{self._rank}", "")
        return code

    def fall_silent(self) -> None:
        end_undisturbed()
        if self._gone:
            return
        with suppress(RuntimeError):
            self._words.set("spoken", "")
            others = set(range(self._size)) - {self._rank} - self._dead
            comes(self._words, [f"left/{other}" for other in sorted(others)], LAST_WORDS)

    def obituary(self) -> str:
        """Return a text that names the processes without a recent heartbeat."""
        if self._gone:
            self._dead = {0} if self._hosted else set()
            return _gone(self._names())
        with suppress(RuntimeError):
            before = self._words.multi_get(self._signs)
            time.sleep(3 * PERIOD)
            after = self._words.multi_get(self._signs)
            self._dead = {other for other in range(self._size) if before[other] == after[other]}
        return _gone(self._names())

    def _names(self) -> str:
        dead = ", ".join(map(str, sorted(self._dead)))
        return f"rank {dead} of {self._size}" if dead else f"one of {self._size} processes"


def end_undisturbed() -> None:
    with suppress(ValueError):  # not the main thread
        signal.signal(signal.SIGTERM, signal.SIG_IGN)


def comes(table: dist.Store, keys: list[str], seconds: float) -> bool:
    end = time.monotonic() + seconds
    while keys and not table.check(keys):
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def _gone(who: str) -> str:
    return f"torchrun: {who} has ended or does not answer; continue from the last checkpoint with --resume"
