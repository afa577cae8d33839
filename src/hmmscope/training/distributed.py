"""Process groups that train one model together.

Process 0 is the leader, which alone uses the run folder, evaluates and prints. If one process fails, all end with the
same exit code.
"""

import atexit
import ipaddress
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from types import FrameType
from typing import Any, Literal, NoReturn

import torch
import torch.distributed as dist

from hmmscope.axes import Tensor
from hmmscope.errors import HmmscopeError, InputError, RefusedError, ResourceError
from hmmscope.training.watch import LAST_WORDS, ProcessMonitor, comes, end_undisturbed

#: Seconds within which all processes must connect.
START = 120.0

_CODES = ((KeyboardInterrupt, 130), (MemoryError, 5), (OSError, 5))
_joined_before = False


class ProcessGroup:
    """The processes of one training; this base class is the group of a single process.

    Attributes:
        rank: Index of this process, from 0.
        size: Number of processes.
    """

    rank, size = 0, 1

    @property
    def leader(self) -> bool:
        return self.rank == 0

    def device(self, kind: Literal["cpu", "cuda"]) -> torch.device:
        return torch.device(kind)

    def share(self, value: Any) -> Any:
        return value

    def share_tensor(self, tensor: Tensor) -> Tensor:
        return tensor

    def largest(self, number: int) -> int:
        return number

    def total(self, number: int) -> int:
        return number

    def meet(self) -> None:
        self.largest(0)

    def agree(self, number: int) -> bool:
        return self.largest(number) == -self.largest(-number)

    def dismiss(self) -> None:
        """Return in the leader process; end the other processes with exit code 0."""


@contextmanager
def joined(device: Literal["auto", "cpu", "cuda"]) -> Iterator[ProcessGroup]:
    """Yield the group of the processes that torchrun started, or of one process without torchrun.

    Only the leader runs the code after the ``with`` block.
    """
    size = _number("WORLD_SIZE", 1)
    if size == 1:
        yield ProcessGroup()
        return
    try:
        world = _TorchProcessGroup(size, "cuda" if device != "cpu" and torch.cuda.is_available() else "cpu")
    except HmmscopeError as error:  # all see the same environment, so one reports the error
        rank = os.environ.get("RANK", "")
        if rank.isdecimal() and 0 < int(rank) < size:
            raise SystemExit(error.exit_code) from None
        raise
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


class _TorchProcessGroup(ProcessGroup):
    def __init__(self, size: int, kind: Literal["cpu", "cuda"]) -> None:
        global _joined_before
        self.size, self.rank = size, _number("RANK")
        if not 0 <= self.rank < size:
            raise InputError(f"RANK: must be in [0, WORLD_SIZE = {size}), got {self.rank}")
        if dist.is_initialized():
            raise InputError("torch.distributed: is already initialised; let hmmscope initialise it")
        if _joined_before:
            raise RefusedError("torchrun: only one training per launch, because the other processes end after it")
        _joined_before = True
        self._address, self._port, self._kind = _checked_address(), _number("MASTER_PORT"), kind
        self._hosted = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"  # by process 0, not by torchrun
        self._watch: ProcessMonitor | None = None
        self._dismissed = False

    def connect(self) -> None:
        store = self._store(host=self._hosted and self.rank == 0)
        self._watch = ProcessMonitor(self._store(host=False), store, self.rank, self.size, self._hosted)
        self._watch.beat()
        if not comes(store, [f"sign/{rank}" for rank in range(self.size)], START):
            missing = [str(rank) for rank in range(self.size) if not store.check([f"sign/{rank}"])]
            raise ResourceError(
                f"torchrun: rank {', '.join(missing)} of {self.size} did not connect within {START:.0f} s"
            )
        self._watch.start()
        if self._kind == "cuda":
            torch.cuda.set_device(self.device("cuda"))
        backend = "gloo" if self._kind == "cpu" else "cpu:gloo,cuda:nccl"
        _keep_inside(self.size)
        dist.init_process_group(
            backend,
            store=dist.PrefixStore("group", store),
            rank=self.rank,
            world_size=self.size,
            timeout=timedelta(days=7),  # the monitor notices dead processes; process 0 may evaluate for long
        )
        self.meet()

    def _store(self, *, host: bool) -> dist.Store:
        timeout = timedelta(seconds=START)
        store = dist.TCPStore(self._address, self._port, None, host, timeout, wait_for_workers=False)
        return dist.PrefixStore(f"hmmscope/{_number('TORCHELASTIC_RESTART_COUNT', 0)}", store)

    def device(self, kind: Literal["cpu", "cuda"]) -> torch.device:
        if kind == "cpu":
            return torch.device("cpu")
        local = _number("LOCAL_RANK")
        count = torch.cuda.device_count()
        if local >= count:
            rule = f"start at most {count} processes on it"
            raise ResourceError(f"torchrun: process {local} of this machine has no GPU; {rule}")
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

    def total(self, number: int) -> int:
        held = torch.tensor(number)
        dist.all_reduce(held)
        return int(held)

    def dismiss(self) -> None:
        self.meet()
        self._dismissed = True
        self.close()
        if not self.leader:
            raise SystemExit(0)
        self.size = 1

    def close(self) -> None:
        if self._watch is not None:
            self._watch.ended.set()
        if dist.is_initialized() and (self._kind == "cpu" or self._dismissed):  # nccl would wait for the dead
            dist.destroy_process_group()

    def leave(self, error: BaseException) -> NoReturn:
        code = exit_code(error)
        if self._watch is None or self._dismissed:
            raise error
        _ignore_termination()  # sent by torchrun when the first process ends
        if not self._watch.ends_here():  # otherwise the monitor ends this process and reports why
            time.sleep(3 * LAST_WORDS)
        stderr = _mute()  # torch writes to stderr about each closed connection
        if not self._watch.speaks(code):
            end_undisturbed()
            raise SystemExit(self._watch.silence()) from None
        if _is_lost_connection(error):
            error = ResourceError(self._watch.obituary())
        os.dup2(stderr, 2)
        os.close(stderr)
        atexit.register(self._watch.fall_silent)
        if isinstance(error, HmmscopeError):
            error.speaks_for_all = True
        raise error


def exit_code(error: BaseException) -> int:
    code = getattr(error, "exit_code", None)
    if code is not None:
        return int(code)
    if _is_lost_connection(error) or "out of memory" in str(error):
        return 5
    return next((code for kind, code in _CODES if isinstance(error, kind)), 70)


def _is_lost_connection(error: BaseException) -> bool:
    words = ("gloo", "NCCL", "Connection closed by peer", "Connection reset by peer", "Broken pipe")
    known = isinstance(error, RuntimeError) and any(word in str(error) for word in words)
    return known or isinstance(error, dist.DistError)


def _mute() -> int:
    sys.stderr.flush()
    before, nothing = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 2)
    os.close(nothing)
    return before


def _ignore_termination() -> None:
    begun = time.monotonic()

    def later(signum: int, frame: FrameType | None) -> None:
        if time.monotonic() - begun > 2 * LAST_WORDS:
            signal.signal(signum, signal.SIG_DFL)
            signal.raise_signal(signum)

    with suppress(ValueError):  # not the main thread
        signal.signal(signal.SIGTERM, later)


def _number(name: str, default: int | None = None) -> int:
    text = os.environ.get(name, "")
    if not text and default is not None:
        return default
    if not text.isdecimal():
        rule = "start with torchrun, or unset WORLD_SIZE to train with one process"
        raise InputError(f"{name}: must be a whole number if WORLD_SIZE is set; {rule}")
    return int(text)


def _checked_address() -> str:
    address = os.environ.get("MASTER_ADDR", "")
    if not address:
        raise InputError("MASTER_ADDR: is not set; start with torchrun, or unset WORLD_SIZE to train with one process")
    for found in _addresses(address):
        if ipaddress.ip_address(found).is_global:
            rule = "messages are not encrypted; use a private network or one machine"
            raise InputError(f"MASTER_ADDR: {address} is a public address; {rule}")
    return address


def _addresses(name: str) -> set[str]:
    try:
        return {str(entry[4][0]).partition("%")[0] for entry in socket.getaddrinfo(name, None)}
    except OSError:
        raise InputError(f"MASTER_ADDR: {name[:100]} is not a known host") from None


def _keep_inside(size: int) -> None:
    loopback = [name for _, name in socket.if_nameindex() if name in ("lo", "lo0")]
    if _number("LOCAL_WORLD_SIZE", 0) == size and loopback:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback[0])
