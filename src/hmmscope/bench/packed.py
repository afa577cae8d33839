"""Many small trainings: together in one program, against one after the other, at the shapes of the [Limits] grid."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from hmmscope.bench.contest import Contest
from hmmscope.corpora.corpus import Corpus
from hmmscope.corpora.targets import make_target
from hmmscope.models.attention import Attention
from hmmscope.models.base import SequenceModel
from hmmscope.processes.base import Process
from hmmscope.runs.config import RunConfig, config_from_data
from hmmscope.runs.pipeline import fresh_model
from hmmscope.training.packed import MAX_AHEAD, Ahead, Member, PackEngine
from hmmscope.training.state import move
from hmmscope.training.trainer import Lessons, train_step
from hmmscope.training.updates import make_optimiser

#: Sizes of the packs.
MEMBERS = (1, 2, 4, 8, 16)


@dataclass(frozen=True, kw_only=True)
class Shape:
    """One training of which many are to be done.

    Attributes:
        model: plain configuration.
        length: observations of a sample; there is a placeholder before them.
        batch: samples a step.
    """

    model: dict[str, Any]
    length: int
    batch: int


def _decoder(num_layers: int) -> Shape:
    model = {"name": "decoder", "num_layers": num_layers, "num_heads": 4, "width": 64, "dropout": 0.0}
    return Shape(model=model, length=16, batch=64)


def _recurrent(name: str, length: int) -> Shape:
    return Shape(model={"name": name, "width": 64}, length=length, batch=128)


SHAPES = {
    "decoder-1": _decoder(1),
    "decoder-4": _decoder(4),
    "rnn-16": _recurrent("rnn", 16),
    "rnn-120": _recurrent("rnn", 120),
    "lstm-16": _recurrent("lstm", 16),
    "gru-16": _recurrent("gru", 16),
}


def contests(
    *,
    peers: bool,
    device: str = "cpu",
    shapes: tuple[str, ...] = (),
    members: tuple[int, ...] = MEMBERS,
) -> list[Contest]:
    """A contest for each shape and number of members: tokens a second of all of them, with samples and exact beliefs.

    Runs of Cyclic-DET, 5 states and 2 symbols, with an instance and a seed each. "One after the other" is the step of
    a run by itself, "on labels at hand" the same without samples and beliefs, as far as the packed product alone could
    be better. The peer, for decoders, is torch's own way: ``vmap`` of the model over stacked weights, on labels at hand.

    Args:
        peers: whether to add it.
        device: "cpu" or "cuda".
        shapes: names of SHAPES; all if empty.
        members: sizes of the packs.
    """
    chosen = shapes or tuple(SHAPES)
    return [_contest(name, count, peers, device) for name in chosen for count in members]


def _contest(name: str, count: int, peers: bool, device: str) -> Contest:
    shape = SHAPES[name]
    data = {
        "process": {"name": "cyclic-det", "num_states": 5, "num_symbols": 2},
        "layout": {"name": "sequences", "length": shape.length, "placeholder": True},
        "target": "belief",
        "model": shape.model,
        "training": {"num_steps": 2**20, "batch_size": shape.batch, "device": device},
    }
    first = config_from_data(data)
    configs = [replace(first, process=replace(first.process, seed=seed), seed=seed) for seed in range(count)]
    processes = [config.process.build() for config in configs]
    tokens = count * shape.batch * first.layout.num_columns
    contest = Contest(f"packed training, {name}, {count} members", "tokens")
    contest.add("together", _together(configs, processes, device), MAX_AHEAD * tokens)
    contest.add("one after the other", _in_turn(configs, processes, device), tokens)
    contest.add("one after the other, on labels at hand", _at_hand(configs, processes, device), tokens)
    if peers and shape.model["name"] == "decoder":
        contest.add("torch.func.vmap, on labels at hand", _vmap(configs, processes, device), tokens)
    return contest


def _together(configs: list[RunConfig], processes: list[Process], device: str) -> Callable[[], None]:
    """As many steps of a pack as share the making of their samples and labels."""
    members = []
    for config, process in zip(configs, processes, strict=True):
        corpus = Corpus(process, layout=config.layout, seed=config.seed, stream="train")
        members.append(Member(fresh_model(config, process), corpus, corpus, None))
    engine = PackEngine(members, configs[0].training, configs[0].target, torch.device(device))

    def step() -> None:
        for _ in range(MAX_AHEAD):
            engine.update(members, members[0].step)

    return step


def _in_turn(configs: list[RunConfig], processes: list[Process], device: str) -> Callable[[], None]:
    """Step after step of runs by themselves."""
    steps = [_alone(config, process, device) for config, process in zip(configs, processes, strict=True)]

    def step() -> None:
        for one in steps:
            one()

    return step


def _alone(config: RunConfig, process: Process, device: str) -> Callable[[], None]:
    spec, model = config.training, fresh_model(config, process).to(device).train()
    optimiser = make_optimiser(model, spec)
    corpus = Corpus(process, layout=config.layout, seed=config.seed, stream="train")
    target = make_target(config.target, process, config.layout)
    state = {"step": 0}

    def step() -> None:
        begin = state["step"] * spec.batch_size
        batch = move(corpus[begin : begin + spec.batch_size], torch.device(device))
        train_step(model, optimiser, batch, target, spec, state["step"])
        state["step"] += 1

    return step


def _at_hand(configs: list[RunConfig], processes: list[Process], device: str) -> Callable[[], None]:
    """Runs by themselves without samples and beliefs: forward pass, backward pass, clipping and AdamW."""
    spec = configs[0].training
    models = [fresh_model(config, process).to(device) for config, process in zip(configs, processes, strict=True)]
    optimisers = [make_optimiser(model, spec) for model in models]
    given = [_lesson(config, process, device) for config, process in zip(configs, processes, strict=True)]

    def step() -> None:
        for model, optimiser, (tokens, labels) in zip(models, optimisers, given, strict=True):
            optimiser.zero_grad(set_to_none=True)
            _loss(model(tokens), labels).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), spec.gradient_clip)
            optimiser.step()

    return step


def _vmap(configs: list[RunConfig], processes: list[Process], device: str) -> Callable[[], None]:
    """``vmap`` of the model over stacked weights. Attention is that of listeners: the blocked form has no such rule."""
    from torch.func import functional_call, stack_module_state, vmap

    spec = configs[0].training
    models: list[SequenceModel] = [
        fresh_model(config, process).to(device) for config, process in zip(configs, processes, strict=True)
    ]
    for module in models[0].modules():
        if isinstance(module, Attention):
            module.pattern.register_forward_hook(lambda *_: None)
    stacked, _ = stack_module_state(models)
    weights = {name: nn.Parameter(weight.detach()) for name, weight in stacked.items()}
    optimiser = make_optimiser(nn.ParameterList(weights.values()), spec)
    given = [_lesson(config, process, device) for config, process in zip(configs, processes, strict=True)]
    tokens_KBT, labels_KBTO = torch.stack([one[0] for one in given]), torch.stack([one[1] for one in given])

    def loss(own: Any, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return _loss(functional_call(models[0], own, (tokens,)), labels)

    def step() -> None:
        optimiser.zero_grad(set_to_none=True)
        vmap(loss)(weights, tokens_KBT, labels_KBTO).sum().backward()
        gradients = [weight.grad for weight in weights.values() if weight.grad is not None]
        each = torch.stack([torch.linalg.vector_norm(gradient.flatten(1), dim=1) for gradient in gradients], 1)
        factor = (spec.gradient_clip / (torch.linalg.vector_norm(each, dim=1) + 1e-6)).clamp(max=1.0)
        for gradient in gradients:
            gradient.mul_(factor.view(-1, *[1] * (gradient.ndim - 1)))
        optimiser.step()

    return step


def _lesson(config: RunConfig, process: Process, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens and labels of the first step."""
    corpus = Corpus(process, layout=config.layout, seed=config.seed, stream="train", device=device)
    tokens, labels, _ = Ahead(Lessons(corpus, config.target, config.training), corpus, config.training).at(0)
    return tokens, labels


def _loss(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(outputs.flatten(0, 1), labels.flatten(0, 1).float())
