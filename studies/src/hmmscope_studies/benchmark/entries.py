"""Entries: functions that build a module for a task, from a file, an object or a registered name."""

import copy
import hashlib
import inspect
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from hmmscope.analysis.initialization import FIX
from hmmscope.analysis.untrained_controls import draw_controls
from hmmscope.errors import InputError
from hmmscope.lab.model_file import ModelFile, as_script, split_name
from hmmscope.models.base import ModelIO
from hmmscope.registry import entries
from hmmscope.schema import parse_spec, require, shown, unknown_name
from hmmscope.seeds import derived_seed
from hmmscope_studies.benchmark.only_sizes import only_sizes
from hmmscope_studies.benchmark.rates import SEARCH_SEED

#: Fields of the training recipe that an entry may choose; the benchmark sets steps and samples.
FREE = (
    *("learning_rate", "warmup_steps", "schedule", "final_fraction", "betas", "epsilon", "weight_decay"),
    *("gradient_clip", "engine"),
)


@dataclass(frozen=True, kw_only=True)
class Declared:
    """Declared costs of an entry, shown with the measured costs.

    Attributes:
        parameters: Number of weights of the largest model; 0 if not declared.
        seconds: Seconds on one core, for all tasks and one seed; 0 if not declared.
    """

    parameters: int = 0
    seconds: float = 0.0

    def __post_init__(self) -> None:
        for name in ("parameters", "seconds"):
            require(getattr(self, name) >= 0, name, "must be at least 0", getattr(self, name))


@dataclass(frozen=True, kw_only=True)
class BenchmarkEntry:
    """A model entered in the benchmark.

    Attributes:
        name: Name in the leaderboard.
        make: Function (`ModelIO`, seed) -> module, or a registered name with its fields.
        training: Fields of the training recipe that the entry sets.
        layers: Modules from which beliefs are regressed; None means the residual stream.
        declared: Declared costs.
        source: Bytes of the model file, or None.
        build: Name of the function or class in `source` that builds the model.
        fields: Fields of a registered model that the entry sets.
    """

    name: str
    make: Callable[[ModelIO, int], Any]
    training: Mapping[str, Any] = field(default_factory=dict)
    layers: tuple[str, ...] | None = None
    declared: Declared = field(default_factory=Declared)
    source: bytes | None = None
    build: str = "build"
    fields: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        require(is_name(self.name), "NAME", "must be one line of at most 60 characters", self.name)
        for key in self.training:
            if key not in FREE:
                raise unknown_name(f"TRAINING.{key}", key, FREE)

    @property
    def digest(self) -> str:
        return "" if self.source is None else hashlib.sha256(self.source).hexdigest()


def is_name(name: Any) -> bool:
    return isinstance(name, str) and bool(name) and name.isprintable() and len(name) <= 60


def entry_of(model: Any, *, name: str | None = None) -> BenchmarkEntry:
    """Return the entry of a module, a class or function, a registered name (or its fields), or a file path.

    A class or function is called with the arguments that it accepts among ``vocab_size``, ``num_outputs``,
    ``max_length`` (longest sample) and, for vectors, ``input_width`` instead of ``vocab_size``. A module is copied for
    every task and must fit the largest vocabulary and output; further seeds reinitialize its weights.

    Raises:
        InputError: `model` is none of these, or the file has no such function.
    """
    if isinstance(model, BenchmarkEntry):
        return model
    if isinstance(model, nn.Module):
        return BenchmarkEntry(name=name or type(model).__name__, make=_copies(model))
    if isinstance(model, str | Path) and split_name(str(model))[0].endswith(".py"):
        path, attribute = split_name(str(model))
        model = ModelFile.read(Path(path), attribute or "build")
    if isinstance(model, ModelFile):
        return _from_file(model, name)
    if isinstance(model, str | Mapping):
        return _registered({"name": model} if isinstance(model, str) else model, name)
    if callable(model):
        return BenchmarkEntry(name=str(name or getattr(model, "__name__", "model")), make=_calls(model))
    rule = "must be a module, a class or function that returns one, a registered name, or a file that ends in .py"
    raise InputError(f"model: {rule}, got {shown(model)}")


def _registered(given: Mapping[str, Any], name: str | None) -> BenchmarkEntry:
    model, fields = given.get("name"), {key: value for key, value in given.items() if key != "name"}
    if not isinstance(model, str) or model not in entries("model"):
        raise unknown_name("model", model, [*entries("model"), "a file that ends in .py"])
    spec = parse_spec(entries("model")[model], fields, "model")
    chosen = {key: getattr(spec, key) for key in fields}
    return BenchmarkEntry(name=name or model, make=lambda ports, seed: {"name": model, **chosen}, fields=chosen)


def _from_file(file: ModelFile, name: str | None) -> BenchmarkEntry:
    path = file.path
    with file.imports_nothing_beside():
        module = file.run()
    build = getattr(module, file.name, None)
    if not callable(build):
        raise InputError(
            f"{path}: must define a function {file.name}(vocab_size, num_outputs, max_length) that returns a module"
        )
    layers, training = getattr(module, "LAYERS", None), getattr(module, "TRAINING", {})
    require(isinstance(training, Mapping), f"{path}: TRAINING", "must be a mapping", training)
    named = layers is None or (isinstance(layers, list | tuple) and all(isinstance(one, str) for one in layers))
    require(named, f"{path}: LAYERS", "must be a list of module names", layers)
    return BenchmarkEntry(
        name=name or str(getattr(module, "NAME", path.stem if file.name == "build" else file.name)),
        make=_copies(build) if isinstance(build, nn.Module) else _calls(build, path),
        training=dict(training),
        layers=None if layers is None else tuple(layers),
        declared=parse_spec(Declared, getattr(module, "DECLARED", {}), f"{path}: DECLARED"),
        source=file.source,
        build=file.name,
    )


def _calls(build: Callable[..., Any], path: Path | None = None) -> Callable[[ModelIO, int], Any]:
    named = inspect.signature(build).parameters
    takes_all = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in named.values())

    def make(ports: ModelIO, seed: int) -> Any:
        sizes = {
            "vocab_size": ports.vocab_size,
            "num_tokens": ports.vocab_size,  # its name in submissions of version 1
            "num_outputs": ports.num_outputs,
            "max_length": ports.max_length,
            "input_width": ports.input_width,
        }
        if ports.vocab_size is None and not (takes_all or "input_width" in named):
            raise InputError("build: must accept the argument input_width, because the task's observations are vectors")
        given = {key: size for key, size in sizes.items() if key in named or (takes_all and key != "num_tokens")}
        with torch.random.fork_rng(devices=[]), nullcontext() if path is None else as_script(path):
            torch.manual_seed(derived_seed(seed, "entry"))  # noqa: TID251 - restored at the end
            with only_sizes():
                made = build(**given)
        if not isinstance(made, nn.Module | str | Mapping):
            raise InputError(f"build: must return a module or a registered model, got {shown(made)}")
        return made

    return make


def _copies(module: nn.Module) -> Callable[[ModelIO, int], Any]:
    def make(ports: ModelIO, seed: int) -> nn.Module:
        if ports.vocab_size is None:
            raise InputError(
                "model: reads tokens, but this task has vectors; submit a function build(input_width, num_outputs)"
            )
        if seed in (0, SEARCH_SEED):
            return copy.deepcopy(module)
        twins = draw_controls(module, seed=seed)
        if not twins.models:
            reason = (
                twins.reason.removeprefix("not identifiable: ").removesuffix(f"; {FIX}").removesuffix(f", or {FIX}")
            )
            raise InputError(f"seeds: {reason}; submit a function that builds the model, or use one seed")
        return twins.models[0]

    return make
