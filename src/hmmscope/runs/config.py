"""Configuration of a run: process, layout, model and training recipe."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, is_dataclass, replace
from inspect import signature
from pathlib import Path
from typing import Any

import torch

from hmmscope import registry
from hmmscope.datasets.layouts import Layout, SequenceLayout
from hmmscope.datasets.process_dataset import ProcessDataset
from hmmscope.datasets.targets import check_target
from hmmscope.errors import InputError
from hmmscope.models.adapted import shown_model
from hmmscope.models.decoder import RoFormerSpec
from hmmscope.models.user_module import UserModuleSpec
from hmmscope.processes.make import is_process, process_data, process_spec
from hmmscope.processes.process import Process
from hmmscope.processes.random_hmm import RandomHMMSpec
from hmmscope.processes.recorded_sequences import DataSpec, RecordedSequences
from hmmscope.processes.recorded_vectors import RecordedVectors
from hmmscope.reprs import changed, html_table
from hmmscope.schema import known_keys, parse_value, path_of, require, shown, spec_to_data, unknown_name
from hmmscope.seeds import check_seed
from hmmscope.sequences.data import READING_OPTIONS, SequenceData, read_as
from hmmscope.sequences.number_cells import looks_like_numbers
from hmmscope.sequences.vector_data import VectorData, read_vectors
from hmmscope.storage import store
from hmmscope.training.spec import TrainingSpec

_REGISTERED = {"process": "process", "layout": "layout", "model": "model"}
_MAX_CONFIG_BYTES = 2**16


@dataclass(frozen=True, kw_only=True, repr=False)
class RunConfig:
    """The configuration of a run: every value that determines its results.

    `process`, `layout` and `model` are registered specs (such as `RoFormerSpec`), names of specs, or mappings with the
    key ``name`` and the spec's fields. A process may also be a `Process`, `SequenceData` or a file path. A model may be
    any `nn.Module` that maps tokens to logits.

    Attributes:
        process: Data-generating process.
        layout: Arrangement of samples as tokens: ``sequences``, ``prompts`` or ``header``; see `datasets.layouts`.
        model: The architecture.
        target: Prediction target: "observation" (the next), "belief" (filtered posterior of the state) or "density".
        training: The training recipe.
        seed: Seed of weights and training samples; the process has its own seed.
    """

    process: Any = field(default_factory=RandomHMMSpec)
    layout: Any = field(default_factory=SequenceLayout)
    model: Any = field(default_factory=lambda: RoFormerSpec(num_layers=2, num_heads=4, width=64))
    target: str = "observation"
    training: TrainingSpec = field(default_factory=TrainingSpec)
    seed: int = 0

    def __post_init__(self) -> None:
        check_seed(self.seed)
        check_target(str(self.target))
        for name, kind in _REGISTERED.items():
            value = _as_spec(name, getattr(self, name))
            object.__setattr__(self, name, value)
            if isinstance(value, dict):
                if any(hasattr(one, "is_meta") for one in value.values()):  # a state_dict
                    raise InputError(f"{name}: must be a torch module, got {shown_model(value)}")
                object.__setattr__(self, name, registry.build_spec(kind, value, name))
            elif type(value) not in registry.entries(kind).values():
                module = "a torch module, " if name == "model" else ""
                rule = f"must be {module}a registered {kind} or a mapping with the key name"
                hint = f"; pass an instance, {value.__name__}(...)" if isinstance(value, type) else ""
                raise InputError(f"{name}: {rule}, got {shown(value)}{hint}")
        if not isinstance(self.training, TrainingSpec):
            object.__setattr__(self, "training", parse_value(TrainingSpec, self.training, "training"))
        assert isinstance(self.layout, Layout)
        if self.layout.needs_process:
            object.__setattr__(self, "layout", self.layout.of(self.process.build()))
        columns = self.layout.context_length
        require(
            columns >= 2,
            "layout",
            "must have at least 2 positions, because the model reads one and predicts the next",
            columns,
        )
        if self.training.curriculum:
            plain = isinstance(self.layout, SequenceLayout)
            require(
                plain, "training.curriculum", "needs samples of one sequence; use the layout sequences", self.layout
            )

    def _facts(self) -> dict[str, str]:
        sections = {name: changed(getattr(self, name)) for name in (*_REGISTERED, "training")}
        return sections | {"target": repr(self.target), "seed": str(self.seed)}

    def __repr__(self) -> str:
        return f"RunConfig({', '.join(f'{name}={value}' for name, value in self._facts().items())})"

    def _repr_html_(self) -> str:
        return html_table("RunConfig", self._facts())

    def to_data(self) -> dict[str, Any]:
        """Return plain data for JSON; `config_from_data` is the inverse."""
        data: dict[str, Any] = {}
        for name in _REGISTERED:
            spec = getattr(self, name)
            data[name] = {"name": spec.name, **spec_to_data(spec)}
        training = spec_to_data(self.training)
        if training["engine"] == "auto":  # omit undecided fields
            del training["engine"]
        return data | {"target": self.target, "training": training, "seed": self.seed}


def _as_spec(section: str, value: Any) -> Any:
    if section == "process":
        return process_spec(value)
    if section == "model" and isinstance(value, torch.nn.Module):
        return UserModuleSpec.of(value)
    return {"name": value} if isinstance(value, str) else value


def configure(
    source: Any,
    *,
    model: Any = None,
    target: str | None = None,
    layout: Any = None,
    length: int | None = None,
    num_steps: int | None = None,
    training: Any = None,
    seed: int | None = None,
    read_options: Mapping[str, Any] | None = None,
) -> RunConfig:
    """Build the configuration of a training run; arguments that are left out keep their defaults.

    Args:
        source: A process, its name or file, a `ProcessDataset`, a `RunConfig` to change, or data for `SequenceData`.
        model: A model's name or spec, or a module that maps tokens to logits; see `RunConfig`.
        target: Prediction target, "observation", "belief" or "density" (default: `default_target` of the process).
        layout, length: Layout of samples, or number of observations per sample (default for data: the length of the
            longest sequence, at most 256).
        num_steps: Number of training steps; it replaces the number in `training`.
        training: The training recipe, or a mapping of its fields.
        seed: Seed of weights and training samples.
        read_options: Options of `SequenceData` for reading `source`.

    Raises:
        InputError: Invalid argument, `layout` with `length`, or `read_options` for a source that is no file or table.
    """
    if layout is not None and length is not None:
        raise InputError("length: cannot be combined with layout; give only one of them")
    source = _read(source, read_options or {})
    if isinstance(source, RunConfig):
        config = source
    elif isinstance(source, ProcessDataset):
        config = RunConfig(process=source.process, layout=source.layout, seed=source.seed)
    else:
        if isinstance(source, str | Path):
            source = registry.build_spec("process", process_data(str(source)), "process")
        if isinstance(source, SequenceData):
            source = RecordedSequences(source.in_blocks())
        built = source.build() if isinstance(source, DataSpec) else source
        if isinstance(source, DataSpec) and built.data.in_blocks() is not built.data:
            source = replace(source, cut=built.data.block_length)
            built = source.build()
        known: Any = None if is_dataclass(built) else built  # a spec must be built first
        window = getattr(known, "window", None)
        config = RunConfig(process=source, layout=SequenceLayout() if window is None else SequenceLayout(length=window))
        config = replace(config, target=getattr(built, "default_target", config.target))
    changes: dict[str, Any] = {"model": model, "target": target, "layout": layout, "seed": seed, "training": training}
    if length is not None:
        changes["layout"] = SequenceLayout(length=length)
    config = replace(config, **{name: value for name, value in changes.items() if value is not None})
    if num_steps is not None:
        config = replace(config, training=replace(config.training, num_steps=num_steps))
    return config


def _unknown_option(name: str) -> InputError:
    if name in known_keys(TrainingSpec):
        return InputError(f"{name}: is a field of training; give training={{{name!r}: ...}}")
    taken = [one for one in signature(configure).parameters if one not in ("read_options", "source")]
    return unknown_name("option", name, [*taken, *READING_OPTIONS])


def _may_be_numbers(source: Any) -> bool:
    return not (
        isinstance(source, RunConfig | ProcessDataset | SequenceData) or is_process(source) or is_dataclass(source)
    )


def _read(source: Any, read_options: Mapping[str, Any]) -> Any:
    for name in read_options:
        if name not in READING_OPTIONS:
            raise _unknown_option(name)
    if isinstance(source, VectorData) or (_may_be_numbers(source) and looks_like_numbers(source, read_options)):
        return RecordedVectors(read_vectors(source, **read_options)).in_pieces()
    ready = isinstance(source, RunConfig | ProcessDataset) or is_process(source) or is_dataclass(source)
    named = isinstance(source, str | Path) and "\n" not in str(source)
    if read_options and named and not os.path.exists(source):
        ready = process_data(str(source))["name"] != "data"
    readable = named or any(
        hasattr(source, name) for name in ("__len__", "__iter__", "collect_schema")
    )  # lazy data frames
    ready = ready or not readable
    if ready and read_options:
        raise InputError(
            f"{next(iter(read_options))}: needs a source that is a file or table of sequences, got {shown(source)}"
        )
    return source if ready or (named and not read_options) else read_as(source, read_options)


def config_from_data(data: object, overrides: dict[str, str] | None = None) -> RunConfig:
    """Build a RunConfig from plain data after applying overrides such as ``{"training.num_steps": "100"}``.

    Raises:
        InputError: Unknown section or field, or a value of the wrong type or range.
    """
    if not isinstance(data, dict):
        raise InputError(f"config: must be a mapping of sections, got {shown(data)}")
    require(isinstance(overrides, dict | None), "overrides", "must be a mapping of field names to text", overrides)
    merged: dict[str, Any] = {key: dict(value) if isinstance(value, dict) else value for key, value in data.items()}
    named_first = sorted((overrides or {}).items(), key=lambda item: ("." in item[0], not item[0].endswith(".name")))
    for path, text in named_first:
        section, _, key = path.partition(".")
        if key:
            inside = merged.setdefault(section, {} if section == "training" else RunConfig().to_data().get(section, {}))
            if section in ("model", "layout") and isinstance(inside, str):
                inside = merged[section] = {"name": inside}
            if not isinstance(inside, dict):
                raise InputError(f"{path_of('', path)}: {section} is a single value, without fields")
            if key == "name" and not _is_same(section, inside.get("name"), text):
                inside.clear()  # another type has other defaults
            _leave_out_aliases(section, inside, key)
            inside[key] = text
        else:
            merged[section] = text
    known = {*_REGISTERED, "target", "training", "seed"}
    for key in merged:
        for section, spec in (("training", TrainingSpec), ("layout", SequenceLayout)):
            if key in known_keys(spec):
                raise InputError(f"{key}: is a field of {section}; write --{section}.{key}, or put it into {section}:")
        if key not in known:
            raise unknown_name(path_of("", key), key, known)
    if "seed" in merged:
        merged["seed"] = parse_value(int, merged["seed"], "seed")
    return RunConfig(**merged)


def _is_same(section: str, one: Any, other: str) -> bool:
    known = registry.entries(_REGISTERED[section]) if section in _REGISTERED else {}
    return bool(one == other or (isinstance(one, str) and one in known and known[one] is known.get(other)))


def _leave_out_aliases(section: str, inside: dict[str, Any], key: str) -> None:
    cls = TrainingSpec if section == "training" else None
    if section in _REGISTERED and isinstance(inside.get("name"), str):
        cls = registry.entries(_REGISTERED[section]).get(inside["name"])
    known = {} if cls is None else known_keys(cls)
    for other in [other for other in inside if other != key and other in known and known[other] == known.get(key)]:
        del inside[other]


def pinned(config: RunConfig, process: Process | None = None) -> RunConfig:
    """Return the configuration with the SHA-256 digest of the process in its file; pass `process` if already read."""
    spec: Any = config.process
    if not hasattr(spec, "path") or getattr(spec, "digest", None) != "":
        return config
    return replace(config, process=replace(spec, digest=(process or spec.build()).digest))


def load_config(path: Path, overrides: dict[str, str] | None = None) -> RunConfig:
    return config_from_data(read_yaml(path), overrides)


def read_yaml(path: Path) -> object:
    """Read plain data from a small YAML or JSON file without aliases, tags or duplicate keys.

    Numbers and dates are returned as text.
    """
    import yaml

    class Loader(yaml.SafeLoader):
        yaml_implicit_resolvers: dict = {}

        def compose_node(self, parent: Any, index: Any) -> Any:
            event = self.peek_event()
            if isinstance(event, yaml.AliasEvent) or getattr(event, "tag", None) is not None:
                line = event.start_mark.line + 1
                raise InputError(
                    f"{path.name}: line {line}: aliases (*name) and tags (!name) must be replaced by values"
                )
            return super().compose_node(parent, index)

        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            seen: set[str] = set()
            for key_node, _ in node.value:
                line = key_node.start_mark.line + 1
                if key_node.tag != "tag:yaml.org,2002:str":
                    raise InputError(f"{path.name}: line {line}: a key must be text")
                if key_node.value in seen:
                    raise InputError(f"{path.name}: line {line}: key {shown(key_node.value)} appears twice")
                seen.add(key_node.value)
            return super().construct_mapping(node, deep)

    Loader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile(r"(true|false)\Z"), ["t", "f"])
    Loader.add_implicit_resolver("tag:yaml.org,2002:null", re.compile(r"(~|null|)\Z"), ["~", "n", ""])
    text = store.read_text(path, limit=_MAX_CONFIG_BYTES)
    try:
        loader = Loader(text)
        try:
            return loader.get_single_data()
        finally:
            loader.dispose()
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}: " if mark else ""
        reason = " ".join(str(getattr(error, "problem", None) or error).split())
        raise InputError(f"{path.name}: {where}not YAML ({reason})") from None
    except RecursionError:
        raise InputError(f"{path.name}: nested too deeply") from None
