"""Packs: the members' own numbers, whoever the companions are, whatever interrupts them."""

import json
import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from hmmscope.bench import packed as bench
from hmmscope.corpora.corpus import Corpus
from hmmscope.corpora.targets import make_target
from hmmscope.errors import InputError, NonFiniteError, RefusedError
from hmmscope.models.base import Ports, SequenceModel
from hmmscope.models.block_cot import block_outputs
from hmmscope.models.make import build_model, make_model
from hmmscope.models.packed import Pack
from hmmscope.packing import PackStopped, train_packed
from hmmscope.registry import build_spec
from hmmscope.runs.config import RunConfig, config_from_data
from hmmscope.runs.pipeline import load_run, train
from hmmscope.storage.rundir import RunDir, read_journal
from hmmscope.training import packed
from hmmscope.training.schedules import sample_numbers
from hmmscope.training.signals import Interrupted
from hmmscope.training.trainer import Lessons

MODELS: dict[str, dict[str, Any]] = {
    "decoder": {"name": "decoder", "num_layers": 2, "num_heads": 2, "width": 16, "dropout": 0.2},
    "bare": {
        "name": "decoder",
        "num_layers": 1,
        "num_heads": 2,
        "width": 16,
        "attention_only": True,
        "norm": "none",
        "positions": "sinusoidal",
        "input_features": False,
    },
    "roformer": {"name": "roformer", "num_layers": 2, "num_heads": 2, "width": 16},
    "linear-attention": {"name": "linear-attention", "num_layers": 1, "num_heads": 2, "width": 16},
    "rnn": {"name": "rnn", "num_layers": 2, "width": 16},
    "tanh": {"name": "rnn", "nonlinearity": "tanh", "width": 16},
    "lstm": {"name": "lstm", "width": 16},
    "gru": {"name": "gru", "num_layers": 2, "width": 16},
}
COLUMNS = 9


def member(name: str, seed: int, *, width: int = 16, feedback: int = 0) -> SequenceModel:
    ports = Ports(num_outputs=5, num_tokens=3, max_length=COLUMNS, feedback_width=feedback)
    spec = build_spec("model", MODELS[name] | {"width": width}, "model")
    return build_model(spec, ports, seed).train()


def given(members: int, batch: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens and labels of each member, made of its number."""
    tokens = torch.arange(members * batch * COLUMNS).view(members, batch, COLUMNS)
    return (tokens * tokens // 7) % 3, (tokens * 3 // 2) % 5


def gradients(model: SequenceModel, tokens: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, dict]:
    """Outputs and gradients of a model by itself, at training step 3."""
    model.set_step(3)
    outputs = model(tokens)
    nn.functional.cross_entropy(outputs.flatten(0, 1), labels.flatten()).backward()
    return outputs.detach(), {name: p.grad for name, p in model.named_parameters()}


def packed_gradients(pack: Pack, tokens: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, list[dict]]:
    """The same of the members of a pack."""
    pack.train()
    pack.set_step(3)
    outputs = pack(tokens.flatten(0, 1))
    terms = nn.functional.cross_entropy(outputs.flatten(0, 1), labels.flatten(), reduction="none")
    terms.view(len(tokens), -1).mean(1).sum().backward()
    names = [{parameter: name for name, parameter in one.named_parameters()} for one in pack.members]
    own: list[dict] = [{} for _ in pack.members]
    for stack, parameters in pack.stacks:
        assert stack.grad is not None
        for k, parameter in enumerate(parameters):
            own[k][names[k][parameter]] = stack.grad[k]
    return outputs.detach().view(*tokens.shape, -1), own


# --------------------------------------------------------------------------------------------------------------------
# Models


@pytest.mark.parametrize("batch, width", [(4, 16), (3, 12)])
@pytest.mark.parametrize("name", MODELS)
def test_a_pack_computes_what_its_members_compute(name: str, batch: int, width: int) -> None:
    tokens, labels = given(3, batch)
    outputs, own = packed_gradients(Pack([member(name, seed, width=width) for seed in range(3)]), tokens, labels)
    for k in range(3):
        expected, alone = gradients(member(name, k, width=width), tokens[k], labels[k])
        torch.testing.assert_close(outputs[k], expected, rtol=1e-5, atol=1e-5)  # float32, sums in another order
        assert own[k].keys() == alone.keys()
        for key, gradient in alone.items():
            torch.testing.assert_close(own[k][key], gradient, rtol=1e-4, atol=1e-5 * float(gradient.abs().max()))


@pytest.mark.parametrize("name", MODELS)
def test_companions_change_no_bit(name: str) -> None:
    tokens, labels = given(5, 4)
    reference = packed_gradients(Pack([member(name, 2)]), tokens[2:3], labels[2:3])
    for first, last in ((0, 5), (1, 3), (2, 4)):
        pack = Pack([member(name, seed) for seed in range(first, last)])
        outputs, own = packed_gradients(pack, tokens[first:last], labels[first:last])
        assert torch.equal(outputs[2 - first], reference[0][0])
        for key, gradient in reference[1][0].items():
            assert torch.equal(own[2 - first][key], gradient), key


@pytest.mark.parametrize("name", ["roformer", "rnn", "lstm", "gru"])
def test_gradients_in_double_precision(name: str) -> None:
    """The backward passes that are written by hand, against torch's own layers without rounding in the way."""
    tokens, labels = given(2, 4)
    members = [member(name, seed).double() for seed in range(2)]
    outputs, own = packed_gradients(Pack(members), tokens, labels)
    for k in range(2):
        expected, alone = gradients(member(name, k).double(), tokens[k], labels[k])
        torch.testing.assert_close(outputs[k], expected, rtol=1e-12, atol=1e-12)
        for key, gradient in alone.items():
            torch.testing.assert_close(own[k][key], gradient, rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("name", MODELS)
def test_a_pack_hears_its_own_answers(name: str) -> None:
    """Caches: the two-phase form of block chain-of-thought reads in pieces, the naive one does not."""
    pack = Pack([member(name, seed, feedback=6) for seed in range(2)]).eval()
    tokens = given(2, 3)[0].flatten(0, 1)
    pieces = block_outputs(pack, tokens, kind="law", block_length=3)
    whole = block_outputs(pack, tokens, kind="law", block_length=3, algorithm="naive")
    torch.testing.assert_close(pieces, whole, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(pieces, pack(tokens))


def test_members_are_views() -> None:
    members = [member("rnn", seed) for seed in range(2)]
    before = [p.detach().clone() for p in members[0].parameters()]
    pack = Pack(members)
    assert all(torch.equal(a, b) for a, b in zip(before, members[0].parameters(), strict=True))
    with torch.no_grad():
        for stack, _ in pack.stacks:
            stack[1] += 1.0
    assert all(torch.equal(a, b) for a, b in zip(before, members[0].parameters(), strict=True))
    fresh = member("rnn", 1)
    assert all(torch.equal(a + 1.0, b) for a, b in zip(fresh.parameters(), members[1].parameters(), strict=True))


def test_what_cannot_be_packed_is_refused() -> None:
    with pytest.raises(InputError, match=r"^members: must be at least one model"):
        Pack([])
    with pytest.raises(InputError, match=r"^members\[1\]: must have the class and shapes of members\[0\]"):
        Pack([member("rnn", 0), member("rnn", 1, width=8)])
    with pytest.raises(InputError, match=r"^model: Recurrent has no packed form with these options"):
        Pack([make_model("rnn", num_symbols=3, learn_initial=True)])
    with pytest.raises(InputError, match=r"^inputs: must have equally many rows for 2 members"):
        Pack([member("rnn", 0), member("rnn", 1)])(torch.zeros(3, 4, dtype=torch.int64))
    with pytest.raises(InputError, match=r"^positions: "):
        Pack([member("rnn", 0)])(torch.zeros(1, 4, dtype=torch.int64), torch.arange(4))


@pytest.mark.parametrize("name", ["decoder", "rnn", "lstm", "gru"])
def test_bfloat16(name: str) -> None:
    """Autocast reaches the layers with a backward pass of their own; gradients come in float32."""
    pack = Pack([member(name, seed) for seed in range(2)])
    with torch.autocast("cpu", torch.bfloat16):
        outputs = pack(given(2, 3)[0].flatten(0, 1))
    assert outputs.dtype == torch.bfloat16
    outputs.float().square().sum().backward()
    for stack, _ in pack.stacks:
        assert stack.grad is not None
        assert stack.grad.dtype == torch.float32


# --------------------------------------------------------------------------------------------------------------------
# Samples, labels and losses

DATA: dict[str, Any] = {
    "process": {"name": "cyclic-det", "num_states": 5, "num_symbols": 2},
    "layout": {"name": "sequences", "length": 8, "placeholder": True},
    "target": "belief",
    "model": MODELS["rnn"],
    "training": {
        "num_steps": 24,
        "batch_size": 4,
        "learning_rate": 0.01,
        "warmup_steps": 4,
        "evaluate_every": 10,
        "evaluate_samples": 8,
        "checkpoint_every": 7,
        "device": "cpu",
    },
}
LAST = 24


def config(seed: int, model: str = "rnn", **training: Any) -> RunConfig:
    data = DATA | {"model": MODELS[model], "training": DATA["training"] | training, "seed": seed}
    return config_from_data(data | {"process": DATA["process"] | {"seed": seed + 1}})


@pytest.mark.parametrize("training", [{}, {"curriculum": [2, 5, 8]}, {"num_trajectories": 30}, {"batch_size": 1}])
def test_samples_made_ahead_are_those_of_each_step(training: dict[str, Any]) -> None:
    one = config(3, **training)
    corpus = Corpus(one.process.build(), layout=one.layout, seed=3, stream="train")
    lessons = Lessons(corpus, one.target, one.training)
    ahead = packed.Ahead(lessons, corpus, one.training)
    for step in [*range(LAST), 5, 23, 0]:  # also out of order
        batch, target = lessons.batch(step, slice(None))
        tokens, labels, asked = ahead.at(step)
        assert torch.equal(tokens, batch.tokens)
        assert torch.equal(labels, target.labels(batch))
        assert asked is target
    assert len(sample_numbers(one.training, 3, 7)) == len(ahead.at(7)[0])


@pytest.mark.parametrize(
    "process, target", [("cyclic-det", "belief"), ("cyclic-det", "observation"), ("ran-lds", "observation")]
)
def test_member_losses_are_the_losses_of_the_target(process: str, target: str) -> None:
    data = DATA | {"process": {"name": process}, "target": target}
    one = config_from_data(data | {"training": {"device": "cpu"}})
    built = one.process.build()
    asked = make_target(target, built, one.layout)
    batch = Corpus(built, layout=one.layout, seed=0)[0:6]
    labels = asked.labels(batch)
    outputs = torch.linspace(-2, 3, 6 * len(asked.columns) * asked.num_outputs).sin().view(6, len(asked.columns), -1)
    found = packed.member_losses(outputs, labels.view(2, 3, *labels.shape[1:]), asked)
    expected = torch.stack([asked.loss(outputs[:3], labels[:3]), asked.loss(outputs[3:], labels[3:])])
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=0)


# --------------------------------------------------------------------------------------------------------------------
# Runs


class Stop(BaseException):
    """Ends a pack as abruptly as an exception can."""


def content(path: Path) -> dict[str, bytes]:
    """Everything that the configuration fixes in a finished run."""
    last = path / "checkpoints" / f"step-{LAST:09d}"
    files = [*last.iterdir(), *(path / name for name in ("metrics.jsonl", "evaluation.jsonl", "done.json"))]
    return {str(file.relative_to(path)): file.read_bytes() for file in sorted(files)}


def pack_into(folder: Path, seeds: tuple[int, ...] = (0, 1, 2), model: str = "rnn", **training: Any) -> list[Path]:
    """Train a pack, from wherever its runs stand."""
    outs = [folder / str(seed) for seed in seeds]
    train_packed([config(seed, model, **training) for seed in seeds], outs, resume=True, num_samples=16)
    return outs


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """A pack that nothing interrupted."""
    return pack_into(tmp_path_factory.mktemp("whole"))


def at_step(monkeypatch: pytest.MonkeyPatch, number: int, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Puts a function in place of the members' losses at their n-th computation."""
    losses, calls = packed.member_losses, 0

    def changed(*args: Any) -> torch.Tensor:
        nonlocal calls
        calls += 1
        return change(losses(*args)) if calls == number else losses(*args)

    monkeypatch.setattr(packed, "member_losses", changed)


def stop(losses: torch.Tensor) -> torch.Tensor:
    raise Stop


def same_summaries(found: dict | None, expected: dict | None) -> None:
    """To rounding, and the packed one says that it is."""
    assert found is not None
    assert expected is not None
    assert found.keys() == {*expected, "packed"}
    assert found["packed"] is True
    assert found["invalid"] == expected["invalid"]
    numbers = [key for key in expected if key != "invalid"]
    assert [found[key] for key in numbers] == pytest.approx([expected[key] for key in numbers], rel=1e-3)


@pytest.mark.parametrize(
    "model, training",
    [
        ("rnn", {}),
        ("decoder", {"curriculum": [2, 5, 8], "num_grains": 2, "gradient_clip": 0.1}),
        pytest.param("lstm", {"num_trajectories": 30, "gradient_clip": 0.0}, marks=pytest.mark.soak),
        pytest.param("roformer", {"block_length": 3}, marks=pytest.mark.soak),
    ],
)
def test_a_packed_run_is_the_run(model: str, training: dict[str, Any], tmp_path: Path) -> None:
    outs = pack_into(tmp_path, (0, 1), model, **training)
    for seed, out in enumerate(outs):
        single = train(config(seed, model, **training), tmp_path / f"single-{seed}", num_samples=16)
        names = [{file.name for file in path.rglob("*")} for path in (out, single.path)]
        assert names[0] == names[1]
        left, right = read_journal(out / "metrics.jsonl"), read_journal(single.path / "metrics.jsonl")
        assert len(left) == len(right) == LAST
        for found, expected in zip(left, right, strict=True):
            by_position = [record.pop("distances", []) for record in (found, expected)]
            assert by_position[0] == pytest.approx(by_position[1], rel=1e-4)  # as below
            assert found == pytest.approx(expected, rel=1e-4)  # AdamW divides rounding errors by small gradients
        same_summaries(load_run(out).summary, single.summary)
        assert RunDir.open(out).checkpoint_steps() == RunDir.open(single.path).checkpoint_steps()


@pytest.mark.parametrize("seeds", [(1,), (3, 2, 1, 0)])
def test_companions_change_no_bit_of_a_run(seeds: tuple[int, ...], whole: list[Path], tmp_path: Path) -> None:
    outs = pack_into(tmp_path, seeds)
    assert content(outs[seeds.index(1)]) == content(whole[1])
    assert content(whole[0]) != content(whole[1])


@pytest.mark.parametrize("number", [1, 20])
def test_stopped_and_resumed(number: int, whole: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    at_step(monkeypatch, number, stop)
    with pytest.raises(Stop):
        pack_into(tmp_path)
    monkeypatch.undo()
    assert [content(path) for path in pack_into(tmp_path)] == [content(path) for path in whole]


def test_stopped_between_the_checkpoints_of_two_members(
    whole: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save, calls = packed.save_state, 0

    def dies(*args: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == 5:  # the second member's second checkpoint
            raise Stop
        save(*args)

    monkeypatch.setattr(packed, "save_state", dies)
    with pytest.raises(Stop):
        pack_into(tmp_path)
    assert [RunDir.open(tmp_path / str(seed)).checkpoint_steps() for seed in range(3)] == [[7, 14], [7], [7]]
    monkeypatch.undo()
    assert [content(path) for path in pack_into(tmp_path)] == [content(path) for path in whole]


def test_signal(whole: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def told(losses: torch.Tensor) -> torch.Tensor:
        os.kill(os.getpid(), signal.SIGTERM)
        return losses

    at_step(monkeypatch, 9, told)
    with pytest.raises(Interrupted, match="stopped by SIGTERM after step 9; go on with --resume"):
        pack_into(tmp_path)
    monkeypatch.undo()
    assert [RunDir.open(tmp_path / str(seed)).checkpoint_steps()[-1] for seed in range(3)] == [9, 9, 9]
    assert [content(path) for path in pack_into(tmp_path)] == [content(path) for path in whole]


@pytest.mark.parametrize("planted", [float("nan"), pytest.param(float("inf"), marks=pytest.mark.soak)])
def test_a_number_that_is_not_finite_stops_its_member_only(
    planted: float, whole: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_step(monkeypatch, 17, lambda losses: losses * torch.tensor([1.0, planted, 1.0]))
    with pytest.raises(
        PackStopped, match=r"^1 of 3 runs stopped, .* step 17: loss is not finite .* not taken"
    ) as error:
        pack_into(tmp_path)
    monkeypatch.undo()
    outs = [tmp_path / str(seed) for seed in range(3)]
    assert f"{outs[1]}: " in str(error.value)
    assert "\n" not in str(error.value)
    assert isinstance(error.value, NonFiniteError)
    assert [run is None for run in error.value.runs] == [False, True, False]
    assert [reason is None for reason in error.value.errors] == [True, False, True]
    assert [content(outs[k]) for k in (0, 2)] == [content(whole[k]) for k in (0, 2)]
    assert RunDir.open(outs[1]).done is None
    assert RunDir.open(outs[1]).checkpoint_steps() == [7, 14]
    assert len(read_journal(outs[1] / "metrics.jsonl")) == 16
    assert [content(path) for path in pack_into(tmp_path)] == [content(path) for path in whole]


def test_a_gradient_that_is_not_finite_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gradients_of = packed.pack_gradients

    def spoilt(pack: Pack, *args: Any) -> torch.Tensor:
        losses = gradients_of(pack, *args)
        gradient = pack.network.head.bias.grad
        gradient[0, 2] = float("nan")
        return losses

    monkeypatch.setattr(packed, "pack_gradients", spoilt)
    with pytest.raises(PackStopped, match=r"step 1: gradient of head\.bias is not finite \(loss 1\.[0-9]+\)"):
        pack_into(tmp_path, (0, 1))
    assert RunDir.open(tmp_path / "1").done is not None


def test_finished_runs_are_kept_and_loaded(whole: list[Path]) -> None:
    before = [content(path) for path in whole]
    runs = train_packed([config(seed) for seed in range(3)], whole, resume=True)
    assert [content(path) for path in whole] == before
    assert [run.summary for run in runs] == [json.loads((path / "done.json").read_text()) for path in whole]
    assert torch.equal(runs[0].model.head.weight, load_run(whole[0]).model.head.weight)  # type: ignore[arg-type]


@pytest.mark.soak
def test_vectors(tmp_path: Path) -> None:
    """A linear system: vectors in, vectors out."""
    data = DATA | {"process": {"name": "ran-lds"}, "target": "observation"}
    configs = [config_from_data(data | {"seed": seed}) for seed in range(2)]
    runs = train_packed(configs, [tmp_path / "a", tmp_path / "b"], num_samples=16)
    same_summaries(runs[1].summary, train(configs[1], tmp_path / "single", num_samples=16).summary)


# --------------------------------------------------------------------------------------------------------------------
# Refusals


@pytest.mark.parametrize(
    "other, message",
    [
        (
            {"training": {"learning_rate": 0.02}},
            r"^configs\[1\]: training\.learning_rate: 0\.01 -> 0\.02; the runs of a pack",
        ),
        ({"process": {"num_states": 4}}, r"^configs\[1\]: process\.num_states: 5 -> 4; "),
        ({"model": {"width": 8}}, r"^configs\[1\]: model\.width: 16 -> 8; "),
    ],
)
def test_runs_that_differ_in_more_than_seeds_are_refused(other: dict, message: str, tmp_path: Path) -> None:
    first = config(0)
    data = first.to_data()
    for section, changes in other.items():
        data[section] |= changes
    with pytest.raises(InputError, match=message):
        train_packed([first, config_from_data(data)], [tmp_path / "a", tmp_path / "b"])
    assert list(tmp_path.iterdir()) == []


def test_other_refusals(tmp_path: Path, whole: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    one, out = config(0), tmp_path / "a"
    with pytest.raises(InputError, match=r"^configs: must be at least one"):
        train_packed([], [])
    with pytest.raises(InputError, match=r"^outs: must be a folder for each of 1 runs"):
        train_packed([one], [])
    with pytest.raises(InputError, match=r"^outs: must be different folders"):
        train_packed([one, one], [out, out])
    with pytest.raises(InputError, match=r"^training\.compile: "):
        train_packed([replace(one, training=replace(one.training, compile=True))], [out])
    with pytest.raises(RefusedError, match="exists"):
        train_packed([one, config(5)], [whole[0], out])
    with pytest.raises(RefusedError, match="holds a run with another configuration"):
        train_packed([config(1)], [whole[0]], resume=True)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(InputError, match=r"^packed training: is the work of one process"):
        train_packed([one], [out])
    assert list(tmp_path.iterdir()) == []


# --------------------------------------------------------------------------------------------------------------------


@pytest.mark.soak
def test_contests() -> None:
    (contest,) = bench.contests(peers=True, shapes=("decoder-1",), members=(2,))
    rows = contest.rows(repeats=1, threads=1)
    assert [row["who"] for row in rows][:2] == ["together", "one after the other"]
    assert len(rows) == 4
    assert all(row["rate"] > 0 for row in rows)
    (contest,) = bench.contests(peers=True, shapes=("rnn-16",), members=(1,))
    assert len(contest.contenders) == 3
