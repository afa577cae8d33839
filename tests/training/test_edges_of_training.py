"""Fields of a recipe at their edges, schedules by hand, and what several processes do, as threads with a post."""

import copy
import os
import signal
import threading
from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.distributed import HashStore

import hmmscope as hs
from hmmscope import progress
from hmmscope.datasets.targets import PADDING, make_target
from hmmscope.errors import DamagedError, InputError, NonFiniteError, ResourceError
from hmmscope.models.base import make_model
from hmmscope.models.decoder import DecoderSpec
from hmmscope.models.recurrent import RNNSpec
from hmmscope.training import compiled_steps, distributed, engines, parallel, state, trainer, updates, watch
from hmmscope.training.distributed import ProcessGroup
from hmmscope.training.evaluation import mean_where
from hmmscope.training.recipes import doubling_curriculum, limits_recipe, multitask_recipe
from hmmscope.training.schedules import learning_rate, sample_numbers, training_tokens
from hmmscope.training.signals import SignalState, WorkAbandoned, deferred_signals
from hmmscope.training.spec import TrainingSpec
from hmmscope.training.trackers import FailSafeTracker
from hmmscope.training.watch import ProcessMonitor, comes

INT = 2**31


@pytest.mark.parametrize(
    ("field", "good", "bad", "beside"),
    [
        *((field, [1, INT - 1], [0, INT], {}) for field in ("checkpoint_every", "evaluate_samples", "halve_every")),
        ("num_steps", [1, INT - 1], [0, INT], {"batch_size": 1}),
        ("batch_size", [1, INT - 1], [0, INT], {"num_steps": 1}),
        ("batch_size", [2**20], [2**20 + 1], {"num_steps": 2**20}),
        ("num_threads", [1, 1024], [0, 1025], {}),
        *((field, [0], [-1], {}) for field in ("warmup_steps", "evaluate_every")),
        *((field, [0.0], [-0.1], {}) for field in ("weight_decay", "warmup_from", "gradient_clip")),
        *((field, [0, INT - 1], [-1, INT], {}) for field in ("epoch_steps", "block_length")),
        ("num_trajectories", [0, 2**27], [-1, 2**27 + 1], {}),
        ("epoch_steps", [0], [1], {"num_trajectories": 1}),
        ("num_log_checkpoints", [0, 2, 1000], [-1, 1, 1001], {}),
        ("learning_rate", [1e-9], [0.0], {}),
        ("epsilon", [1e-30], [0.0], {}),
        ("final_fraction", [0.0, 1.0], [-0.1, 1.1], {}),
        ("betas", [(0.0, 0.0), (0.999, 0.999)], [(0.9,), (0.9, 0.9, 0.9), (1.0, 0.9), (0.9, -0.1)], {}),
        ("curriculum", [(), (1,), (1, 2)], [(0,), (1, 2, 3)], {"num_steps": 2}),
        ("curriculum", [(1, 2)], [(1, 2, 3)], {"num_steps": 4, "epoch_steps": 2}),
        ("accumulation_steps", [1, 4, 32], [0, 3, 64], {}),
    ],
)
def test_a_field_of_a_recipe_is_taken_up_to_its_edge(
    field: str, good: list[Any], bad: list[Any], beside: dict[str, Any]
) -> None:
    for value in good:
        assert getattr(TrainingSpec(**beside, **{field: value}), field) == value
    for value in bad:
        with pytest.raises(InputError, match=rf"^({field}|num_steps): "):
            TrainingSpec(**beside, **{field: value})


def test_the_papers_recipes() -> None:
    """[Limits] App. C.1, [MultiTask] App. B.1."""
    found = limits_recipe(4)
    assert found == {
        "num_steps": 100 * 9766,  # 5,000,000 / 512, and what is left over
        "batch_size": 512,
        "num_trajectories": 5_000_000,
        "schedule": "halving",
        "learning_rate": 1e-3,
        "warmup_steps": 4000,
        "warmup_from": 1e-7,
        "halve_every": 20,
        "betas": [0.9, 0.999],
        "weight_decay": 0.01,
        "gradient_clip": 0.0,
        "curriculum": [16, 32, 64, 120],
    }
    assert [limits_recipe(layers)["batch_size"] for layers in (None, 1, 3, 5, 6, 7)] == [256, 1024, 1024, 512, 256, 256]
    assert limits_recipe(8, curriculum=False)["batch_size"] == 256
    assert limits_recipe(None)["curriculum"] == limits_recipe(4, curriculum=False)["curriculum"] == []
    assert [len(doubling_curriculum(layers, 120)) for layers in (1, 7)] == [7, 1]
    for layers in (0, 8):
        with pytest.raises(InputError, match=rf"num_layers: must be in \[1, 7\], got {layers}"):
            doubling_curriculum(layers, 120)
    assert multitask_recipe() == {
        "num_steps": 4096,
        "batch_size": 32,
        "epoch_steps": 64,
        "schedule": "cosine",
        "learning_rate": 3e-4,
        "warmup_steps": 200,
        "final_fraction": 0.05,
        "betas": [0.9, 0.98],
        "weight_decay": 0.01,
        "gradient_clip": 1.0,
    }
    assert [multitask_recipe(width=width)["learning_rate"] for width in (128, 129)] == [1e-3, 3e-4]


def test_schedules_by_their_formulas() -> None:
    halving = TrainingSpec(
        num_steps=24,
        epoch_steps=4,
        schedule="halving",
        learning_rate=1.0,
        warmup_steps=2,
        warmup_from=0.5,
        halve_every=2,
    )
    assert [learning_rate(halving, step) for step in (0, 1, 2, 7, 8, 15, 16)] == [0.5, 0.75, 1, 1, 0.5, 0.5, 0.25]
    assert learning_rate(TrainingSpec(schedule="halving", warmup_steps=0, warmup_from=0.5), 0) == pytest.approx(
        1e-3, rel=1e-12
    )
    wsd = TrainingSpec(num_steps=12, schedule="wsd", learning_rate=1.0, warmup_steps=2)
    assert [learning_rate(wsd, step) for step in (0, 1, 2, 9)] == [0.5, 1, 1, 1]
    assert [learning_rate(wsd, step) for step in (10, 11)] == pytest.approx([2 / 3, 1 / 3])
    assert (wsd.decay_step, TrainingSpec(num_steps=12, num_log_checkpoints=3, schedule="wsd").log_checkpoint_steps) == (
        10,
        (1, 3, 10, 12),
    )
    assert TrainingSpec(num_steps=64, num_log_checkpoints=3).log_checkpoint_steps == (1, 8, 64)
    constant = TrainingSpec(schedule="constant", learning_rate=2.0, warmup_steps=2)
    assert [learning_rate(constant, step) for step in (0, 1, 2, 9)] == [1, 2, 2, 2]


def test_samples_and_stages_of_a_step() -> None:
    fixed = TrainingSpec(num_steps=9, batch_size=4, num_trajectories=10)
    assert (fixed.steps_per_epoch, fixed.num_epochs) == (3, 3)
    epochs = [np.concatenate([sample_numbers(fixed, 0, 3 * epoch + k) for k in range(3)]) for epoch in range(3)]
    assert all(sorted(one) == list(range(10)) for one in epochs)
    assert len({one.tobytes() for one in epochs}) == 3
    assert len(sample_numbers(fixed, 0, 2)) == 2
    assert sample_numbers(TrainingSpec(batch_size=4), 0, 3).tolist() == [12, 13, 14, 15]
    assert [parallel.num_samples(fixed, step) for step in range(4)] == [4, 4, 2, 4]
    grow = TrainingSpec(num_steps=7, batch_size=2, curriculum=(2, 4, 9))
    assert [grow.stage_length(step, 8) for step in range(7)] == [2, 2, 4, 4, 8, 8, 8]
    assert training_tokens(grow, 10, 8) == 2 * (2 + 2 + 4 + 4 + 8 * 3 + 7 * 2)
    assert training_tokens(TrainingSpec(num_steps=7, batch_size=2), 10, 8) == 140
    epochal = TrainingSpec(num_steps=6, epoch_steps=2, curriculum=(2, 4))
    assert [epochal.stage_length(step, 8) for step in range(6)] == [2, 2, 4, 4, 4, 4]


def test_means_of_what_counts() -> None:
    values = torch.tensor([[1.0, torch.nan, 3.0], [2.0, 5.0, torch.nan]], dtype=torch.float64)
    counted = torch.tensor([[True, False, False], [True, True, False]])
    assert mean_where(values, counted) == [1.5, 5.0, None]


# --------------------------------------------------------------------------------------------------------------------
# Several processes


class Post:
    """What `torch.distributed` is for threads: each sends and receives what all have sent."""

    def __init__(self, size: int) -> None:
        self.size, self.slots, self.barrier = size, [None] * size, threading.Barrier(size, timeout=20)
        self.own = threading.local()

    def exchange(self, value: Any) -> list[Any]:
        self.slots[self.own.rank] = value
        self.barrier.wait()
        found = list(self.slots)
        self.barrier.wait()
        return found

    def all_to_all_single(self, received: Any, sent: Any, to_receive: list[int], to_send: list[int]) -> None:
        assert sum(to_send) == len(sent)
        parts = [given.split(sizes)[self.own.rank] for given, sizes in self.exchange((sent.clone(), to_send))]
        assert [len(part) for part in parts] == to_receive
        received.copy_(torch.cat(parts))

    def all_gather(self, received: list[Any], sent: Any) -> None:
        for place, given in zip(received, self.exchange(sent.clone()), strict=True):
            place.copy_(given)

    def run(self, work: Callable[[ProcessGroup], Any]) -> list[Any]:
        """What the work gives in each process."""
        found: list[Any] = [None] * self.size

        def one(rank: int) -> None:
            self.own.rank, world = rank, ProcessGroup()
            world.rank, world.size = rank, self.size
            world.total = lambda number: sum(self.exchange(number))  # type: ignore[method-assign]
            try:
                found[rank] = work(world)
            except BaseException as error:
                found[rank] = error
                self.barrier.abort()

        threads = [threading.Thread(target=one, args=(rank,)) for rank in range(self.size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for error in found:
            if isinstance(error, BaseException):
                raise error
        return found


@pytest.mark.parametrize("size", [2, 4])
def test_several_processes_have_the_gradient_of_one_to_the_bit(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of whole steps, and of the last one of an epoch, where some have nothing to do; in buckets of few numbers."""
    dataset = hs.ProcessDataset("rrxor", 6, stream="train")
    target = make_target("observation", dataset.process, dataset.layout)
    first = make_model("rnn", num_symbols=2, width=5)
    spec = TrainingSpec(num_steps=2, batch_size=8, num_trajectories=11, accumulation_steps=4)
    post = Post(size)
    monkeypatch.setattr(parallel, "dist", post)
    monkeypatch.setattr(parallel, "BUCKET", 30)
    for step, count in ((0, 8), (1, 3)):
        numbers = sample_numbers(spec, 0, step)
        assert len(numbers) == count

        def grads(world: ProcessGroup, step: int = step, numbers: Any = numbers) -> tuple[Any, ...]:
            model = copy.deepcopy(first)
            one = (
                parallel.BitExactParallel(model, spec, world) if world.size > 1 else parallel.SingleProcess(model, spec)
            )
            loss = one.gradients(dataset[numbers[one.rows(step)]], target, step)
            return loss, *(p.grad for p in model.parameters())

        alone = grads(ProcessGroup())
        for found in post.run(grads):
            assert all(torch.equal(a, b) for a, b in zip(found, alone, strict=True)), step


def test_buckets_hold_neighbours_of_one_type(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "BUCKET", 4)
    sizes = [(3, torch.float32), (1, torch.float32), (1, torch.float32), (9, torch.float32), (1, torch.float64)]
    given = [torch.nn.Parameter(torch.zeros(size, dtype=kind)) for size, kind in sizes]
    assert list(parallel._buckets(given)) == [[0, 1], [2], [3], [4]]
    assert list(parallel._buckets([])) == []


def test_more_processes_than_samples_are_refused() -> None:
    spec = TrainingSpec(batch_size=4, accumulation_steps=4, parallel="ddp")
    parallel.check_processes(spec, 4)
    with pytest.raises(InputError, match=r"training\.batch_size: must be at least 5, the number of processes, got 4"):
        parallel.check_processes(spec, 5)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """No time passes but what is slept."""
    now, slept = [0.0], []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        now[0] += seconds

    monkeypatch.setattr(watch.time, "sleep", sleep)
    monkeypatch.setattr(watch.time, "monotonic", lambda: now[0])
    return slept


def test_keys_are_waited_for_until_the_time_is_over(quick: list[float]) -> None:
    table = HashStore()
    table.set("a", "1")
    assert comes(table, [], 1.0)
    assert comes(table, ["a"], 0.0)
    assert quick == []
    assert not comes(table, ["a", "b"], 1.0)
    assert sum(quick) == pytest.approx(1.0, abs=0.05)


def test_the_dead_are_named_by_their_signs(quick: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    """Who gives no sign in three periods; who goes on giving them is not named."""
    words = HashStore()
    for rank in range(3):
        words.set(f"sign/{rank}", "1")
    one = ProcessMonitor(HashStore(), words, 0, 3, hosted=True)
    sleep = watch.time.sleep

    def live(seconds: float) -> None:
        sleep(seconds)
        for rank in (0, 2):
            words.set(f"sign/{rank}", "2")

    monkeypatch.setattr(watch.time, "sleep", live)
    said = "torchrun: rank 1 of 3 has ended or does not answer; continue from the last checkpoint with --resume"
    assert one.obituary() == said
    assert quick == [3 * watch.PERIOD]
    for hosted, said in ((True, "rank 0 of 3"), (False, "one of 3 processes")):
        gone = ProcessMonitor(HashStore(), words, 1, 3, hosted=hosted)
        gone._gone = True
        assert said in gone.obituary()


def test_who_has_spoken_waits_for_the_living(quick: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "end_undisturbed", lambda: None)
    words = HashStore()
    one = ProcessMonitor(HashStore(), words, 0, 3, hosted=True)
    one._dead = {2}
    words.set("left/1", "")
    one.fall_silent()
    assert (words.get("spoken"), quick) == (b"", [])
    one._dead = set()
    one.fall_silent()  # the third one never leaves
    assert sum(quick) == pytest.approx(watch.LAST_WORDS, abs=0.05)
    one._gone = True
    quick.clear()
    one.fall_silent()
    assert quick == []


def test_one_of_them_speaks(quick: list[float], unchecked: None) -> None:
    """The leader at once; another one after two periods, unless somebody has; who cannot ask, by its number."""
    words = HashStore()
    table = HashStore()
    leader, other, last = (ProcessMonitor(table, words, rank, 3, hosted=True) for rank in range(3))
    assert leader.speaks(7)
    assert leader.leaving.is_set()
    assert (words.get("code"), quick) == (b"7", [])
    assert not other.speaks(5)
    assert not leader.speaks(5)
    words.set("spoken", "")
    assert (last.silence(), last.ended.is_set()) == (7, True)
    assert words.check(["left/2"])
    assert quick == []
    alone = ProcessMonitor(table, HashStore(), 1, 3, hosted=True)
    assert alone.speaks(5)
    assert sum(quick) == pytest.approx(2 * watch.PERIOD, abs=0.05)

    class Gone:
        def __getattr__(self, name: str) -> Any:
            raise RuntimeError("the table has gone")

    for rank, hosted, speaks in (
        (0, True, False),
        (1, True, True),
        (2, True, False),
        (0, False, True),
        (1, False, False),
    ):
        one = ProcessMonitor(table, Gone(), rank, 3, hosted=hosted)  # type: ignore[arg-type]
        assert one.speaks(5) is speaks
        assert one._gone
        assert one.silence() == 5
    leader.beat()
    leader.beat()
    assert table.get("sign/0") == b"2"


def test_one_thread_ends_a_process() -> None:
    one = ProcessMonitor(HashStore(), HashStore(), 0, 2, hosted=True)
    assert [one.ends_here() for _ in range(2)] == [True, False]


def test_sigterm_is_ignored_for_as_long_as_last_words_take(monkeypatch: pytest.MonkeyPatch) -> None:
    handlers: dict[int, Any] = {}
    raised: list[int] = []
    now = [0.0]
    monkeypatch.setattr(distributed.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(distributed.signal, "signal", lambda number, handler: handlers.update({number: handler}))
    monkeypatch.setattr(distributed.signal, "raise_signal", raised.append)
    distributed._ignore_termination()
    later = handlers[signal.SIGTERM]
    now[0] = 2 * distributed.LAST_WORDS
    later(signal.SIGTERM, None)
    assert raised == []
    now[0] += 0.1
    later(signal.SIGTERM, None)
    assert raised == [signal.SIGTERM]
    assert handlers[signal.SIGTERM] == signal.SIG_DFL
    watch.end_undisturbed()
    assert handlers[signal.SIGTERM] == signal.SIG_IGN


def test_where_all_are_on_one_machine_nobody_else_is_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "GLOO_SOCKET_IFNAME"
    monkeypatch.setattr(distributed.socket, "if_nameindex", lambda: [(1, "eth0"), (2, "lo")])
    for size, found in (("1", None), ("2", "lo")):
        monkeypatch.setenv(name, "x")
        monkeypatch.delenv(name)
        monkeypatch.setenv("LOCAL_WORLD_SIZE", size)
        distributed._keep_inside(2)
        assert os.environ.get(name) == found
    monkeypatch.setenv(name, "mine")
    distributed._keep_inside(2)
    assert os.environ[name] == "mine"


def test_codes_of_what_ends_a_training() -> None:
    for error, code in (
        (RuntimeError("CUDA out of memory"), 5),
        (RuntimeError("NCCL error"), 5),
        (ConnectionResetError("Connection reset by peer"), 5),
        (torch.distributed.DistError("x"), 5),
        (ValueError("gloo"), 70),
        (NonFiniteError("x"), 6),
    ):
        assert distributed.exit_code(error) == code


def test_gpus_that_are_not_there_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    several = distributed._TorchProcessGroup.__new__(distributed._TorchProcessGroup)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    for local in ("0", "1"):
        monkeypatch.setenv("LOCAL_RANK", local)
        assert str(several.device("cuda")) == f"cuda:{local}"
    monkeypatch.setenv("LOCAL_RANK", "2")
    with pytest.raises(ResourceError, match="process 2 of this machine has no GPU; start at most 2 processes on it"):
        several.device("cuda")
    assert str(several.device("cpu")) == "cpu"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert (state.resolve_device("auto"), state.resolve_device("cpu")) == ("cpu", "cpu")
    with pytest.raises(ResourceError, match="cuda was requested but no CUDA device is present"):
        state.resolve_device("cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert (state.resolve_device("auto"), state.resolve_device("cuda")) == ("cuda", "cuda")
    assert state.resolve_device("auto", "compiled") == "cpu"  # which is an engine of the processor


# --------------------------------------------------------------------------------------------------------------------
# State, engines, signals, progress


def test_weights_of_another_model_are_damage() -> None:
    model = torch.nn.Linear(2, 1)
    own = {name: value.clone() for name, value in model.state_dict().items()}
    state.load_weights(model, own)
    for change in ({"weight": torch.zeros(1, 3)}, {"more": torch.zeros(1)}):
        with pytest.raises(DamagedError, match=f"{next(iter(change))} is missing, unknown or has another shape"):
            state.load_weights(model, own | change)
    with pytest.raises(DamagedError, match=r"model\.safetensors: bias is missing"):
        state.load_weights(model, {"weight": own["weight"]})


def test_moments_go_on_where_they_were() -> None:
    model = torch.nn.Linear(2, 1)
    named = dict(model.named_parameters())
    given = {
        f"{kind}.{name}": torch.full_like(p, 2.0) for kind in ("exp_avg", "exp_avg_sq") for name, p in named.items()
    }
    moments = state.Moments()
    state.Restored(0, {}).into(model, moments)
    assert not moments.state
    state.Restored(7, given).into(model, moments)
    assert [float(moments.state[p]["step"]) for p in model.parameters()] == [7, 7]
    assert all(torch.equal(moments.state[p]["exp_avg_sq"], torch.full_like(p, 2.0)) for p in model.parameters())


def test_bits_of_any_number_of_bytes_are_added() -> None:
    """Eight, four, or one at a time."""
    for count in (1, 2, 3, 4, 8, 12):
        one = torch.arange(1, count + 1, dtype=torch.uint8)
        for place in range(count):
            other = one.clone()
            other[place] += 1
            assert state._sum_of_bits({"a": one}) != state._sum_of_bits({"a": other})
    assert state._sum_of_bits({"a": torch.tensor([2, 3], dtype=torch.int64)}) == 5
    assert state._sum_of_bits({"a": torch.tensor([2**62 - 1, 3], dtype=torch.int64)}) == 2


def test_where_gradients_are_not_finite_the_first_of_them_is_named() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(1, 1), torch.nn.Linear(1, 1))
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    spec = TrainingSpec(gradient_clip=0.0)
    said = {"1.weight": "gradient of 1.weight", None: "loss"}
    for name, what in said.items():
        loss = torch.tensor(1.0 if name else float("nan"))
        if name:
            dict(model.named_parameters())[name].grad.fill_(float("inf"))  # type: ignore[union-attr]
        before = copy.deepcopy(model.state_dict())
        with pytest.raises(NonFiniteError, match=f"^step 5: {what} is not finite"):
            updates.update(model, state.Moments(), spec, loss, 4)
        assert all(torch.equal(value, model.state_dict()[key]) for key, value in before.items())
    two = [p for p in model.parameters() if p.grad is not None]
    for p in two:
        p.grad.fill_(3e38)  # type: ignore[union-attr]
    with pytest.raises(NonFiniteError, match="gradient of all parameters is not finite"):
        updates.update(model, state.Moments(), spec, torch.tensor(1.0), 0)


@pytest.mark.parametrize("clip", [0.0, 0.5, 100.0])
def test_the_norm_is_that_of_before_and_no_larger_after(clip: float) -> None:
    model = torch.nn.Linear(2, 1, bias=False)
    model.weight.grad = torch.tensor([[3.0, 4.0]])
    assert updates.update(model, state.Moments(), TrainingSpec(gradient_clip=clip), torch.tensor(2.0), 0) == (2.0, 5.0)
    assert float(model.weight.grad.norm()) == pytest.approx(min(5.0, clip or 5.0), rel=1e-4)


def test_which_engine_is_faster() -> None:
    assert engines.Timing(compiled=1.0, torch=2.0, samples=4).faster() == ("compiled", 2.0)
    assert engines.Timing(compiled=2.0, torch=1.0, samples=4).faster() == ("torch", 2.0)
    assert engines.Timing(compiled=1.0, torch=1.0, samples=4).faster() == ("torch", 1.0)
    assert str(engines.Timing(compiled=1e-3, torch=2e-3, samples=4)) == (
        "compiled is 2.00 times as fast on this machine: 1 ms compiled, 2 ms with torch per step of 4 samples"
    )


@pytest.mark.parametrize(
    ("model", "changes", "processes", "why"),
    [
        (RNNSpec(width=16), {}, 1, None),
        (RNNSpec(width=16), {"device": "cuda"}, 1, "training.device = cuda"),
        (RNNSpec(width=16), {}, 2, "2 processes"),
        (RNNSpec(width=16), {"compile": True}, 1, "training.compile = true"),
        (RNNSpec(width=16), {"block_length": 1}, 1, "training.block_length = 1"),
        (RNNSpec(width=16), {"precision": "bfloat16"}, 1, None),
        (DecoderSpec(dropout=0.0), {"precision": "bfloat16"}, 1, None),
        (DecoderSpec(dropout=0.1), {}, 1, "model.dropout = 0.1"),
        (DecoderSpec(dropout=0.0, causal=False), {}, 1, "model.causal = false"),
        (SimpleNamespace(name="gru", width=16), {}, 1, "model.name = gru"),
    ],
)
def test_what_the_compiled_engine_does_not_cover(
    model: Any, changes: dict[str, Any], processes: int, why: Any, unchecked: None
) -> None:
    found = engines.uncovered(model, None, TrainingSpec(**changes), processes)  # type: ignore[arg-type]
    assert found is None if why is None else str(found).startswith(why)


@pytest.mark.parametrize(
    ("asked", "fixed", "seconds", "timing", "engine", "reason"),
    [
        ("torch", "compiled", 99.0, None, "torch", "as requested"),
        ("compiled", "torch", 0.0, None, "compiled", "as requested"),
        ("auto", "compiled", 0.0, None, "compiled", "HMMSCOPE_ENGINE is compiled"),
        ("auto", "torch", 99.0, None, "torch", "HMMSCOPE_ENGINE is torch"),
        ("auto", "unmeasured", 15.0, None, "compiled", "HMMSCOPE_ENGINE is unmeasured"),
        ("auto", "unmeasured", 14.9, None, "torch", "about 15 s of training"),
        ("auto", "", 20.0, None, "torch", "about 20 s of training"),
        ("auto", "", 20.0, (1.1, 1.0), "compiled", "torch is 1.10 times"),
        ("auto", "", 20.0, (1.11, 1.0), "torch", "torch is 1.11 times"),
    ],
)
def test_the_engine_is_the_one_that_is_covered_and_pays(
    asked: Any,
    fixed: str,
    seconds: float,
    timing: Any,
    engine: str,
    reason: str,
    monkeypatch: pytest.MonkeyPatch,
    unchecked: None,
) -> None:
    monkeypatch.setenv(engines.FIXED, fixed)
    monkeypatch.setattr(engines, "torch_seconds", lambda *_: seconds)
    measured = None if timing is None else engines.Timing(*timing, samples=4)
    given = (RNNSpec(width=16), None, TrainingSpec(engine=asked), 8, 1, lambda _: measured)
    found = engines.choose_engine(*given)  # type: ignore[arg-type]
    assert (found.engine, found.timing) == (engine, measured)
    assert found.reason.startswith(reason)


def test_signals_are_kept_and_leave_what_may_be_left() -> None:
    received = SignalState()
    received.remember(signal.SIGTERM, None)
    assert received == [signal.SIGTERM]
    with pytest.raises(WorkAbandoned), received.at_once():
        raise AssertionError("it came before")
    with received.at_once(possible=False):
        pass
    fresh = SignalState()
    with pytest.raises(WorkAbandoned), fresh.at_once():
        fresh.remember(signal.SIGINT, None)
    fresh = SignalState()
    with fresh.at_once():
        fresh.hold()
        fresh.remember(signal.SIGINT, None)
    assert fresh == [signal.SIGINT]
    seen: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: seen.append(number))
    try:
        with deferred_signals() as kept:
            signal.raise_signal(signal.SIGTERM)
            assert (kept, seen) == ([signal.SIGTERM], [])
        assert seen == [signal.SIGTERM]  # the one that nobody answered
        with deferred_signals():
            pass
        assert len(seen) == 1
    finally:
        signal.signal(signal.SIGTERM, before)


def test_work_is_spoken_of_now_and_then(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A line after twenty seconds, and at the end of what took longer than one."""
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(progress, "live_console", lambda: None)
    monkeypatch.setattr(progress, "notebook_cell", lambda: None)
    with progress.Progress(12, "fit", unit="steps", per_step=3.0) as shown:
        for step, seconds in ((2, 1.0), (3, 1.0), (7, 18.0), (8, 0.5), (12, 4.0)):
            now[0] += seconds
            shown.update(step, "x")
    lines = capsys.readouterr().err.splitlines()
    assert lines == ["fit 8/12  0:13 left  1 steps/s  x", "fit 12/12  0:00 left  1 steps/s  x"]
    for seconds, count in ((1.0, 0), (1.1, 1)):
        with progress.Progress(2, "fit", unit="", per_step=1.0) as shown:
            now[0] += seconds
            shown.update(2)
        assert len(capsys.readouterr().err.splitlines()) == count
    assert progress._left(90, 3, 4.0) == "2:00 left  "
    assert progress._left(90, 0, 4.0) == ""


def test_a_tracker_that_fails_is_asked_no_more(unchecked: None) -> None:
    class Broken:
        asked = 0

        def log(self, step: int, record: dict[str, float]) -> None:
            self.asked += 1
            raise OSError("it is\nfull")

    broken = Broken()
    quietly = FailSafeTracker(broken)  # type: ignore[arg-type]
    with pytest.warns(UserWarning, match="tracker: OSError: it is full; training continues untracked"):
        quietly.log({"step": 3, "loss": 1, "name": "x"})
    quietly.log({"step": 4})
    quietly.close()
    assert broken.asked == 1
    kept: list[Any] = []
    FailSafeTracker(SimpleNamespace(log=lambda *given: kept.append(given))).log({"step": 3, "loss": 1, "name": "x"})  # type: ignore[arg-type]
    assert kept == [(3, {"loss": 1.0})]


def asked(
    tokens: Any = ((0, 1), (1, 1)), ids: Any = ((0, 1), (1, PADDING)), values: Any = None, vectors: Any = None
) -> Any:
    none = np.zeros((0, 0), np.int64), np.zeros((0, 0, 0))
    return compiled_steps.StepInputs(
        tokens=none[0] if vectors is not None else np.array(tokens),
        vectors=none[1] if vectors is None else np.array(vectors, float),
        ids=none[0] if values is not None else np.array(ids),
        values=none[1] if values is None else np.array(values, float),
        columns=np.arange(2),
        weight=1.0,
        kind=0,
    )


@pytest.mark.parametrize(
    ("given", "fits"),
    [
        ({}, True),
        ({"tokens": [[0, 2], [1, 1]]}, False),
        ({"tokens": [[0, -1], [1, 1]]}, False),
        ({"tokens": [[0, 1]]}, False),
        ({"tokens": [[0, 1, 1], [0, 1, 1]]}, False),
        ({"ids": [[0, 3], [0, 0]]}, False),
        ({"ids": [[0, 2], [0, 0]]}, True),
        ({"ids": [[0, -1], [0, 0]]}, False),
        ({"ids": [[0], [0]]}, False),
        ({"values": np.ones((2, 2, 3))}, True),
        ({"values": np.ones((2, 2, 2))}, False),
        ({"values": np.ones((1, 2, 3))}, False),
        ({"vectors": np.ones((2, 2, 2))}, True),
        ({"vectors": np.ones((2, 2, 3))}, False),
    ],
)
def test_the_door_of_the_engine(given: dict[str, Any], fits: bool) -> None:
    """Two samples of two columns, two inputs and three outputs: compiled loops follow these numbers without looking."""
    sizes = compiled_steps.Sizes(inputs=2, outputs=3, layers=1, width=16)
    with nullcontext() if fits else pytest.raises(InputError, match="do not fit a model of 2 inputs and 3 outputs"):
        compiled_steps._check(asked(**given), sizes, 2)


def test_what_has_no_compiled_form_is_refused() -> None:
    for name in ("gru", "lstm"):
        with pytest.raises(InputError, match=r"training\.engine: compiled does not support this model"):
            compiled_steps._cells(make_model(name, num_symbols=2, width=4), {}, False)
    with pytest.raises(InputError, match="compiled needs parameters of one dtype on the CPU"):
        compiled_steps._flattened([torch.zeros(1), torch.zeros(1, dtype=torch.float64)])
    assert compiled_steps._flattened([torch.ones(2, 2), torch.zeros(1)]).tolist() == [1, 1, 1, 1, 0]


def test_a_step_is_long_by_six_operations_for_each_parameter_and_token(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = TrainingSpec(num_steps=1, batch_size=4)
    dataset = hs.ProcessDataset(
        hs.make_process("random-hmm", num_states=2, num_symbols=3), layout=hs.SequenceLayout(length=5)
    )
    model = make_model("rnn", num_symbols=3, width=4)
    operations = 6.0 * sum(one.numel() for one in model.parameters()) * 4 * dataset.layout.context_length
    monkeypatch.setattr(trainer, "LONG_STEP", operations)
    assert not trainer._long_steps(model, spec, dataset)
    monkeypatch.setattr(trainer, "LONG_STEP", operations - 1)
    assert trainer._long_steps(model, spec, dataset)


def test_a_silent_process_is_given_up_after_forty_five_seconds_and_looked_at_each_second() -> None:
    assert (watch.PERIOD, watch.PERIOD * watch.MISSED) == (1.0, 45.0)
