"""What several processes do together, as threads in one: they meet, share, agree and end; and the gradients of replicas."""

import copy
import os
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import distributed as dist
from torch import nn

import hmmscope as hs
from hmmscope.datasets.targets import make_target
from hmmscope.errors import InputError, ResourceError
from hmmscope.models.base import make_model
from hmmscope.training import distributed, parallel
from hmmscope.training.distributed import ProcessGroup, _TorchProcessGroup
from hmmscope.training.schedules import sample_numbers
from hmmscope.training.spec import TrainingSpec
from test_edges_of_training import Post


class Machine(Post):
    """Two processes of torchrun in threads, and what they asked of torch."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.table, self.asked, self.begun = dist.HashStore(), [], False

    PrefixStore, ReduceOp, DistError = dist.PrefixStore, dist.ReduceOp, dist.DistError

    def TCPStore(self, *given: Any, **options: Any) -> Any:  # noqa: N802 - torch's name
        self.asked.append((*given[:2], given[3], options["wait_for_workers"]))
        return self.table

    def is_initialized(self) -> bool:
        return self.begun

    def init_process_group(self, backend: str, **options: Any) -> None:
        self.asked.append((backend, options["rank"], options["world_size"], options["timeout"].days))
        self.begun = True

    def destroy_process_group(self) -> None:
        self.asked.append("destroyed")

    def broadcast(self, tensor: torch.Tensor, src: int) -> None:
        tensor.copy_(self.exchange(tensor.clone())[src])

    def all_reduce(self, tensor: torch.Tensor, op: Any = dist.ReduceOp.SUM) -> None:
        found = torch.stack(self.exchange(tensor.clone()))
        tensor.copy_(found.amax(0) if op == dist.ReduceOp.MAX else found.sum(0))


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine(2)
    monkeypatch.setattr(distributed, "dist", made)
    monkeypatch.setattr(distributed.ProcessMonitor, "start", lambda _: None)
    monkeypatch.setattr(distributed, "_keep_inside", lambda _: None)
    for name, value in {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29511", "TORCHELASTIC_RESTART_COUNT": "3"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("TORCHELASTIC_USE_AGENT_STORE", raising=False)
    return made


def joining(rank: int, monkeypatch: pytest.MonkeyPatch) -> _TorchProcessGroup:
    monkeypatch.setenv("RANK", str(rank))
    monkeypatch.setattr(distributed, "_joined_before", False)
    return _TorchProcessGroup(2, "cpu")


def test_processes_meet_share_and_agree(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    worlds = [joining(rank, monkeypatch) for rank in (0, 1)]
    assert distributed._joined_before

    def work(world: ProcessGroup) -> Any:
        several = worlds[world.rank]
        several.connect()
        found = several.share({"a": [several.rank, "é"]})
        largest = several.largest(several.rank - 5)
        agreed = several.agree(7), several.agree(several.rank)
        tensor = several.share_tensor(torch.full((2,), float(several.rank + 1)))
        try:
            several.dismiss()
        except SystemExit as ended:
            return found, largest, agreed, tensor.tolist(), several.size, ended.code
        return found, largest, agreed, tensor.tolist(), several.size, None

    told = {"a": [0, "é"]}
    assert machine.run(work) == [(told, -4, (True, False), [1, 1], 1, None), (told, -4, (True, False), [1, 1], 2, 0)]
    hosts = sorted(one[2] for one in machine.asked if one[0] == "127.0.0.1")
    assert hosts == [False, False, False, True]  # the table is held by the first one, once
    assert next(one for one in machine.asked if one[0] == "127.0.0.1")[:2] == ("127.0.0.1", 29511)
    assert {one for one in machine.asked if one[0] == "gloo"} == {("gloo", 0, 2, 7), ("gloo", 1, 2, 7)}
    assert machine.asked.count("destroyed") == 2
    assert machine.table.check(["hmmscope/3/sign/1"])
    assert all(world._watch is not None and world._watch.ended.is_set() for world in worlds)


def test_the_table_may_be_torchruns(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    monkeypatch.setattr(distributed, "comes", lambda *_: False)
    with pytest.raises(ResourceError, match=r"torchrun: rank 1 of 2 did not connect within 120 s"):
        joining(0, monkeypatch).connect()
    assert [one[2] for one in machine.asked] == [False, False]
    machine.begun = True
    with pytest.raises(InputError, match=r"torch\.distributed: is already initialised"):
        joining(0, monkeypatch)


@pytest.mark.parametrize("speaks", [True, False])
@pytest.mark.parametrize("lost", [True, False])
def test_one_says_why_all_end(speaks: bool, lost: bool, machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[Any] = []
    world = joining(0, monkeypatch)
    error: BaseException = RuntimeError("gloo: Connection closed by peer") if lost else InputError("x: is wrong")
    with pytest.raises(type(error)):
        world.leave(error)  # it has met nobody
    world._watch = SimpleNamespace(  # type: ignore[assignment]
        ends_here=lambda: True,
        speaks=lambda code: done.append(code) or speaks,
        silence=lambda: 9,
        obituary=lambda: "rank 1 has ended",
        fall_silent=lambda: done.append("silent"),
        ended=SimpleNamespace(set=lambda: done.append("ended")),
    )
    monkeypatch.setattr(distributed, "_mute", lambda: 77)
    monkeypatch.setattr(distributed, "_ignore_termination", lambda: done.append("ignored"))
    monkeypatch.setattr(distributed, "end_undisturbed", lambda: done.append("undisturbed"))
    monkeypatch.setattr(distributed.atexit, "register", lambda work: work())
    monkeypatch.setattr(os, "dup2", lambda *numbers: done.append(("dup2", *numbers)))
    monkeypatch.setattr(os, "close", lambda number: done.append(("close", number)))
    with pytest.raises(BaseException) as ended:
        world.leave(error)
    monkeypatch.undo()
    code = 5 if lost else 2
    if not speaks:
        assert isinstance(ended.value, SystemExit)
        assert ended.value.code == 9
        assert done == ["ignored", code, "undisturbed"]
        return
    assert done == ["ignored", code, ("dup2", 77, 2), ("close", 77), "silent"]
    assert isinstance(ended.value, ResourceError if lost else InputError)
    assert str(ended.value) == ("rank 1 has ended" if lost else "x: is wrong")
    assert ended.value.speaks_for_all


def test_what_happens_in_a_world_is_told_to_it(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Any] = []
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setattr(distributed, "_joined_before", False)
    for name in ("connect", "close"):
        monkeypatch.setattr(_TorchProcessGroup, name, lambda _, name=name: told.append(name))

    def leave(_: ProcessGroup, error: BaseException) -> None:
        told.append(error)
        raise error

    monkeypatch.setattr(_TorchProcessGroup, "leave", leave)
    with distributed.joined("cpu") as world:
        assert (world.rank, world.size, world.leader) == (0, 2, True)
    assert told == ["connect", "close"]
    for error in (ValueError("x"), SystemExit(3)):
        told.clear()
        monkeypatch.setattr(distributed, "_joined_before", False)
        with pytest.raises(type(error)), distributed.joined("cpu"):
            raise error
        assert told == (["connect", "close", "close"] if isinstance(error, SystemExit) else ["connect", error, "close"])


class Wrapped(nn.Module):
    """What torch's wrapper is called as; it exchanges nothing."""

    def __init__(self, module: nn.Module, **options: Any) -> None:
        super().__init__()
        self.module, self.apart, self.called = module, 0, 0
        assert options["device_ids"] is None

    def forward(self, *given: Any) -> Any:
        self.called += 1
        return self.module(*given)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        self.apart += 1
        yield


@pytest.mark.parametrize(("size", "grains"), [(2, 4), (2, 1), (4, 4)])
def test_replicas_have_the_gradient_of_one_process_as_their_mean(
    size: int, grains: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first step is rehearsed once; all parts but the last of a step are apart; who has no sample counts nothing."""
    dataset = hs.ProcessDataset("rrxor", 6, stream="train")
    target = make_target("observation", dataset.process, dataset.layout)
    first = make_model("rnn", num_symbols=2, width=5)
    spec = TrainingSpec(num_steps=2, batch_size=8, num_trajectories=11, accumulation_steps=grains, parallel="ddp")
    machine = Machine(size)
    monkeypatch.setattr(parallel, "dist", machine)
    monkeypatch.setattr(parallel, "_DDPModule", Wrapped)

    def work(world: ProcessGroup) -> tuple[list[Any], Wrapped]:
        replica = parallel.DDPUpdates(copy.deepcopy(first), spec, world)
        found = []
        for step in (0, 1):
            batch = dataset[sample_numbers(spec, 0, step)[replica.rows(step)]]
            loss = replica.gradients(batch, target, step)
            found.append([loss, *(p.grad.clone() for p in replica.model.parameters())])
            replica.model.zero_grad()
        return found, replica.forward

    each = machine.run(work)
    single = parallel.SingleProcess(copy.deepcopy(first), spec)
    for step in (0, 1):
        loss = single.gradients(dataset[sample_numbers(spec, 0, step)], target, step)
        exact = [loss, *(p.grad for p in single.model.parameters())]
        for place, one in enumerate(exact):
            mean = torch.stack([found[step][place] for found, _ in each]).mean(0)
            torch.testing.assert_close(mean, one)
        single.model.zero_grad()
    for _, wrapped in each:
        assert wrapped.called - wrapped.apart == 3  # passes, one more than steps
