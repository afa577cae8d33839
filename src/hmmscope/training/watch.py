"""Signs of life of the processes of a training, and who says why all end."""

import os
import signal
import sys
import threading
import time
from contextlib import suppress

import torch.distributed as dist

from hmmscope.errors import ResourceError

#: Seconds between signs of life, how many may be missed, and seconds that the others give the one that speaks.
PERIOD, MISSED, LAST_WORDS = 1.0, 45, 10.0


class ProcessMonitor(threading.Thread):
    """Signs of life of all processes, and who speaks for them when they end.

    Every process counts up its own sign once a second. A process whose sign has not changed during `MISSED` of our own
    counts as dead; so a stopped and continued group of processes accuses nobody.
    """

    def __init__(self, table: dist.Store, words: dist.Store, rank: int, size: int, hosted: bool) -> None:
        super().__init__(daemon=True, name="hmmscope-watch")
        self._table, self._words = table, words  # two connections: signs go on while words are waited for
        self._rank, self._size, self._hosted = rank, size, hosted
        self._signs = [f"sign/{other}" for other in range(size)]
        self._seen: dict[int, bytes] = {}
        self._missed = dict.fromkeys(range(size), 0)
        self._count = 0
        self._dead: set[int] = set()
        self._gone = False  # the table
        self.ended = threading.Event()  # nothing to watch any more
        self.leaving = threading.Event()  # the main thread knows
        self._ending = threading.Lock()  # held by the thread that ends this process

    def beat(self) -> None:
        """Give a sign of life."""
        self._count += 1
        self._table.set(self._signs[self._rank], str(self._count))

    def run(self) -> None:
        while not self.ended.wait(PERIOD):
            try:
                self._look()
                told = self._table.check(["code"])
            except RuntimeError:
                self._end_alone("the process that the others were connected to")
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
        """End this process, unless its main thread finds out by itself or is leaving; it may wait inside the library."""
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
        """Whether the thread that asks is the one to end this process: the first that does."""
        return self._ending.acquire(blocking=False)

    def speaks(self, code: int) -> bool:
        """Whether this process is the one to say why all end; the leader is asked first."""
        self.leaving.set()
        try:
            asked = self._rank and comes(self._words, ["code"], 2 * PERIOD)
            if asked or self._words.add("speakers", 1) > 1:
                return False
            self._words.set("code", str(code))
            return True
        except RuntimeError:  # the table has gone with the process that held it
            self._gone = True
            self.ended.set()
            return self._rank == (1 if self._hosted else 0)

    def silence(self) -> int:
        """Wait until the one that speaks has spoken; the exit code of all."""
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
        """The line is written: the others may end, and this one after them (torchrun would stop them half-way)."""
        end_undisturbed()
        if self._gone:
            return
        with suppress(RuntimeError):
            self._words.set("spoken", "")
            others = set(range(self._size)) - {self._rank} - self._dead
            comes(self._words, [f"left/{other}" for other in sorted(others)], LAST_WORDS)

    def obituary(self) -> str:
        """Who has ended, as seen from the signs of life of the next seconds; whoever waits for us still gives them."""
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
    """Ignore SIGTERM from here to the end, which would change the exit code."""
    with suppress(ValueError):  # not the main thread
        signal.signal(signal.SIGTERM, signal.SIG_IGN)


def comes(table: dist.Store, keys: list[str], seconds: float) -> bool:
    """Whether all keys are there in time; torch's own waiting writes to the standard error when it is in vain."""
    end = time.monotonic() + seconds
    while keys and not table.check(keys):
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def _gone(who: str) -> str:
    return f"torchrun: {who} has ended or does not answer; go on from the last checkpoint with --resume"
