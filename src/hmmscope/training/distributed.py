"""Several processes that train one model: who they are, what they tell each other, and how all of them end.

torchrun starts the processes and says in the environment who is who. Process 0 leads: it alone reads and writes the run
folder, evaluates and prints. Whatever ends one process ends all: the first to fail says why, in one line, and the
others leave with the same exit code and say nothing.
"""

import atexit
import ipaddress
import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from types import FrameType
from typing import Any, Literal, NoReturn

import torch
import torch.distributed as dist

from hmmscope.axes import Tensor
from hmmscope.errors import InputError, RefusedError, ResourceError

#: Seconds between signs of life, signs missed until a process counts as dead, and seconds to wait for all at the start.
PERIOD, MISSED, START = 1.0, 45, 120.0

_LAST_WORDS = 10.0  # seconds that the others give the one that speaks
_CODES = ((KeyboardInterrupt, 130), (MemoryError, 5), (OSError, 5))
_joined_before = False


class World:
    """The processes of one training; this class is the one without others.

    Attributes:
        rank: number of this process.
        size: how many there are.
    """

    rank, size = 0, 1

    @property
    def leader(self) -> bool:
        """Whether this process reads and writes the run folder, evaluates and prints."""
        return self.rank == 0

    def device(self, kind: Literal["cpu", "cuda"]) -> torch.device:
        """The device of this process: the processor, or the GPU of its number on the machine."""
        return torch.device(kind)

    def share(self, value: Any) -> Any:
        """The leader's `value`, which JSON can hold, in all processes."""
        return value

    def share_tensor(self, tensor: Tensor) -> Tensor:
        """`tensor`, on the processor, with the leader's numbers in all processes."""
        return tensor

    def largest(self, number: int) -> int:
        """The largest of the numbers of all processes."""
        return number

    def agree(self, number: int) -> bool:
        """Whether all processes have the same number."""
        return self.largest(number) == -self.largest(-number)

    def dismiss(self) -> None:
        """The common work is done: the leader returns and is alone, the others end here with exit code 0."""


@contextmanager
def joined(kind: Literal["cpu", "cuda"]) -> Iterator[World]:
    """The world that torchrun's environment describes, while a training lasts; without torchrun, one process.

    Only the leader comes out of the block: the others end their process in `World.dismiss`, or when the leader fails.
    An error on one process is raised there, and ends the others silently with its exit code. A process that dies is
    noticed by its closed connections, within a second, or after `MISSED` seconds without a sign of life.

    Args:
        kind: of the devices: messages go by gloo on the processor, and by nccl between GPUs.

    Raises:
        InputError: an environment that does not say who is who, or an address on the public internet (messages are not
            encrypted, and whoever can connect may send them).
        RefusedError: a second training in one launch of torchrun.
        ResourceError: a process that does not come within two minutes, or that has ended.
    """
    size = _number("WORLD_SIZE", 1)
    if size == 1:
        yield World()
        return
    world = _Several(size, kind)
    try:
        world.connect()
        yield world
    except SystemExit:
        world.close()
        raise
    except BaseException as error:
        world.leave(error)
    finally:
        world.close()


class _Several(World):
    """Two or more processes; messages that are not gradients go by gloo and are JSON or numbers, never pickled."""

    def __init__(self, size: int, kind: Literal["cpu", "cuda"]) -> None:
        global _joined_before
        self.size, self.rank = size, _number("RANK")
        if not 0 <= self.rank < size:
            raise InputError(f"RANK: must be in [0, WORLD_SIZE = {size}), got {self.rank}")
        if dist.is_initialized():
            raise InputError("torch.distributed: is initialised already; leave that to the training")
        if _joined_before:
            raise RefusedError("torchrun: one training a launch; the other processes have ended with the first")
        _joined_before = True
        self._address, self._port, self._kind = _checked_address(), _number("MASTER_PORT"), kind
        self._hosted = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"  # by process 0, not by torchrun
        self._watch: _Watch | None = None
        self._dismissed = False

    def connect(self) -> None:
        """Meet the others; then begin to watch them."""
        if self._kind == "cuda":
            torch.cuda.set_device(self.device("cuda"))
        store = self._store(host=self._hosted and self.rank == 0)
        self._watch = _Watch(self._store(host=False), store, self.rank, self.size, self._hosted)
        self._watch.beat()
        if not _comes(store, [f"sign/{rank}" for rank in range(self.size)], START):
            missing = [str(rank) for rank in range(self.size) if not store.check([f"sign/{rank}"])]
            raise ResourceError(f"torchrun: rank {', '.join(missing)} of {self.size} has not come within {START:.0f} s")
        self._watch.start()
        backend = "gloo" if self._kind == "cpu" else "cpu:gloo,cuda:nccl"
        _keep_inside(self.size)
        dist.init_process_group(
            backend,
            store=dist.PrefixStore("group", store),
            rank=self.rank,
            world_size=self.size,
            timeout=timedelta(days=7),  # the watch notices the dead: process 0 may evaluate for long while others wait
        )
        self.largest(0)

    def _store(self, *, host: bool) -> dist.Store:
        """A connection to the table through which the processes find each other; of this attempt, if torchrun restarts."""
        timeout = timedelta(seconds=START)
        store = dist.TCPStore(self._address, self._port, None, host, timeout, wait_for_workers=False)
        return dist.PrefixStore(f"hmmscope/{_number('TORCHELASTIC_RESTART_COUNT', 0)}", store)

    def device(self, kind: Literal["cpu", "cuda"]) -> torch.device:
        if kind == "cpu":
            return torch.device("cpu")
        local = _number("LOCAL_RANK")
        count = torch.cuda.device_count()
        if local >= count:
            raise ResourceError(f"torchrun: process {local} of this machine has no GPU; there are {count}")
        return torch.device("cuda", local)

    def share(self, value: Any) -> Any:
        text = json.dumps(value).encode() if self.leader else b""
        length = self.share_tensor(torch.tensor(len(text)))
        letters = (
            torch.tensor(list(text), dtype=torch.uint8) if self.leader else torch.empty(int(length), dtype=torch.uint8)
        )
        return json.loads(bytes(self.share_tensor(letters).tolist()))

    def share_tensor(self, tensor: Tensor) -> Tensor:
        tensor = tensor.detach().cpu().contiguous().clone()
        dist.broadcast(tensor, src=0)
        return tensor

    def largest(self, number: int) -> int:
        held = torch.tensor(number)
        dist.all_reduce(held, op=dist.ReduceOp.MAX)
        return int(held)

    def dismiss(self) -> None:
        self.largest(0)
        self._dismissed = True
        self.close()
        if not self.leader:
            raise SystemExit(0)
        self.size = 1

    def close(self) -> None:
        """Close the connections, so that those who wait for this process know."""
        if self._watch is not None:
            self._watch.ended.set()
        if dist.is_initialized() and (self._kind == "cpu" or self._dismissed):  # nccl would wait for the dead
            dist.destroy_process_group()

    def leave(self, error: BaseException) -> NoReturn:
        """End all processes: one raises its error, the others SystemExit with the same code."""
        code = exit_code(error)
        if self._watch is None:
            raise error
        _ignore_termination()  # torchrun sends it when the first of them has ended
        stderr = _mute()  # torch tells the standard error about each connection that closes
        if not self._watch.speaks(code):
            raise SystemExit(self._watch.silence()) from None
        if _is_lost_connection(error):
            error = ResourceError(self._watch.obituary())
        os.dup2(stderr, 2)
        os.close(stderr)
        atexit.register(self._watch.fall_silent)
        raise error


class _Watch(threading.Thread):
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
        code = ResourceError.exit_code
        if self.speaks(code):
            sys.stderr.write(f"error[{code}] {_gone(who)}\n")
            sys.stderr.flush()
            self.fall_silent()
        else:
            code = self.silence()
        sys.stdout.flush()
        os._exit(code)

    def speaks(self, code: int) -> bool:
        """Whether this process is the one to say why all end; the leader is asked first."""
        self.leaving.set()
        try:
            asked = self._rank and _comes(self._words, ["code"], 2 * PERIOD)
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
            if _comes(self._words, ["code"], _LAST_WORDS):
                code = int(self._words.get("code"))
            _comes(self._words, ["spoken"], _LAST_WORDS)
        self.ended.set()
        with suppress(RuntimeError):
            self._words.set(f"left/{self._rank}", "")
        return code

    def fall_silent(self) -> None:
        """The line is written: the others may end. The process that holds the table waits for those that live."""
        if self._gone:
            return
        with suppress(RuntimeError):
            self._words.set("spoken", "")
            alive = [f"left/{other}" for other in range(1, self._size) if other not in self._dead]
            if self._hosted and self._rank == 0 and alive:
                _comes(self._words, alive, _LAST_WORDS)

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


def exit_code(error: BaseException) -> int:
    """The exit code that the command line gives an error."""
    code = getattr(error, "exit_code", None)
    if code is not None:
        return int(code)
    if _is_lost_connection(error) or "out of memory" in str(error):
        return 5
    return next((code for kind, code in _CODES if isinstance(error, kind)), 70)


def _is_lost_connection(error: BaseException) -> bool:
    """Whether torch says that another process cannot be reached; it has no class for that."""
    words = ("gloo", "NCCL", "Connection closed by peer", "Connection reset by peer", "Broken pipe")
    known = isinstance(error, RuntimeError) and any(word in str(error) for word in words)
    return known or isinstance(error, dist.DistError)


def _gone(who: str) -> str:
    return f"torchrun: {who} has ended or does not answer; go on from the last checkpoint with --resume"


def _mute() -> int:
    """Turn the standard error off; returns a descriptor of what it was."""
    sys.stderr.flush()
    before, nothing = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 2)
    os.close(nothing)
    return before


def _ignore_termination() -> None:
    """Ignore SIGTERM for as long as last words may take."""
    begun = time.monotonic()

    def later(signum: int, frame: FrameType | None) -> None:
        if time.monotonic() - begun > 2 * _LAST_WORDS:
            signal.signal(signum, signal.SIG_DFL)
            signal.raise_signal(signum)

    with suppress(ValueError):  # not the main thread
        signal.signal(signal.SIGTERM, later)


def _comes(table: dist.Store, keys: list[str], seconds: float) -> bool:
    """Whether all keys are there in time; torch's own waiting writes to the standard error when it is in vain."""
    end = time.monotonic() + seconds
    while not table.check(keys):
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def _number(name: str, default: int | None = None) -> int:
    """A whole number of the environment."""
    text = os.environ.get(name, "")
    if not text and default is not None:
        return default
    if not text.isdecimal():
        rule = "start with torchrun, or unset WORLD_SIZE to train with one process"
        raise InputError(f"{name}: must be a number in the environment of {_size_text()} processes; {rule}")
    return int(text)


def _size_text() -> str:
    return os.environ.get("WORLD_SIZE", "several")[:20]


def _checked_address() -> str:
    """Where the processes meet: this machine or a private network."""
    address = os.environ.get("MASTER_ADDR", "")
    if not address:
        raise InputError("MASTER_ADDR: is not set; start with torchrun, or unset WORLD_SIZE to train with one process")
    for found in _addresses(address):
        if ipaddress.ip_address(found).is_global:
            rule = "processes talk without encryption; use a private network or one machine"
            raise InputError(f"MASTER_ADDR: {address} is a public address; {rule}")
    return address


def _addresses(name: str) -> set[str]:
    """The numbers of a host."""
    try:
        return {str(entry[4][0]).partition("%")[0] for entry in socket.getaddrinfo(name, None)}
    except OSError:
        raise InputError(f"MASTER_ADDR: {name[:100]} is not a host that is known here") from None


def _keep_inside(size: int) -> None:
    """Where all processes are on this machine, let gloo make connections that other machines cannot reach."""
    loopback = [name for _, name in socket.if_nameindex() if name in ("lo", "lo0")]
    if _number("LOCAL_WORLD_SIZE", 0) == size and loopback:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback[0])
