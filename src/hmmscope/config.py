"""A run's configuration: what generates, how it is laid out, what learns, and how it is trained."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hmmscope import registry
from hmmscope.corpora.layouts import Layout, Sequences
from hmmscope.errors import InputError
from hmmscope.models.roformer import RoFormerSpec
from hmmscope.processes.random_hmm import RandomHMMSpec
from hmmscope.schema import parse_value, spec_to_data, unknown_name
from hmmscope.seeds import check_seed
from hmmscope.training.spec import TrainingSpec

_REGISTERED = {"process": "process", "layout": "layout", "model": "model"}
_MAX_CONFIG_BYTES = 2**20


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """Everything that fixes the numbers of a run.

    Each of `process`, `layout` and `model` is a registered spec or a mapping with its ``name`` and fields.

    Attributes:
        process: what generates.
        layout: how samples become tokens (plain ``sequences``, or ``prompts``).
        model: the architecture.
        training: the recipe.
        seed: of weights and training samples (a process has a seed of its own).
    """

    process: Any = field(default_factory=RandomHMMSpec)
    layout: Any = field(default_factory=Sequences)
    model: Any = field(default_factory=lambda: RoFormerSpec(num_layers=2, num_heads=4, width=64))
    training: TrainingSpec = field(default_factory=TrainingSpec)
    seed: int = 0

    def __post_init__(self) -> None:
        check_seed(self.seed)
        for name, kind in _REGISTERED.items():
            value = getattr(self, name)
            if isinstance(value, dict):
                object.__setattr__(self, name, registry.build_spec(kind, value, name))
            elif type(value) not in registry.entries(kind).values():
                raise InputError(f"{name}: must be a registered {kind} or a mapping with its name, got {value!r}")
        if not isinstance(self.training, TrainingSpec):
            object.__setattr__(self, "training", parse_value(TrainingSpec, self.training, "training"))
        assert isinstance(self.layout, Layout)

    def to_data(self) -> dict[str, Any]:
        """Plain data for JSON; `config_from_data` is the inverse."""
        data: dict[str, Any] = {}
        for name in _REGISTERED:
            spec = getattr(self, name)
            data[name] = {"name": spec.name, **spec_to_data(spec)}
        return data | {"training": spec_to_data(self.training), "seed": self.seed}


def config_from_data(data: object, overrides: dict[str, str] | None = None) -> RunConfig:
    """A RunConfig from plain data, with ``{"training.num_steps": "100"}`` overrides applied first.

    Raises:
        InputError: an unknown section or field (with the nearest known one), or a value of the wrong type or range.
    """
    if not isinstance(data, dict):
        raise InputError(f"config: must be a mapping of sections, got {data!r}")
    merged: dict[str, Any] = {key: dict(value) if isinstance(value, dict) else value for key, value in data.items()}
    for path, text in (overrides or {}).items():
        section, _, key = path.partition(".")
        if key:
            inside = merged.setdefault(section, {} if section == "training" else RunConfig().to_data().get(section, {}))
            if not isinstance(inside, dict):
                raise InputError(f"{path}: {section} has no fields")
            if key == "name" and inside.get("name") != text:
                inside.clear()  # another kind of thing: its own defaults
            inside[key] = text
        else:
            merged[section] = text
    known = {*_REGISTERED, "training", "seed"}
    for key in merged:
        if key not in known:
            raise unknown_name(str(key), key, known)
    if "seed" in merged:
        merged["seed"] = parse_value(int, merged["seed"], "seed")
    return RunConfig(**merged)


def load_config(path: Path, overrides: dict[str, str] | None = None) -> RunConfig:
    """A RunConfig from a YAML or JSON file."""
    return config_from_data(read_yaml(path), overrides)


def read_yaml(path: Path) -> object:
    """Plain data from a small YAML (or JSON) file by the safe loader; aliases and double keys are refused."""
    import yaml

    class Loader(yaml.SafeLoader):
        def compose_node(self, parent: Any, index: Any) -> Any:
            if self.check_event(yaml.AliasEvent):
                raise InputError(f"{path.name}: line {self.peek_event().start_mark.line + 1}: aliases are not read")
            return super().compose_node(parent, index)

        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            keys = [self.construct_object(key, deep=True) for key, _ in node.value]
            for key in keys:
                if not isinstance(key, str) or keys.count(key) > 1:
                    line = node.start_mark.line + 1
                    raise InputError(f"{path.name}: line {line}: key {key!r} is double or is not text")
            return super().construct_mapping(node, deep)

    try:
        if path.stat().st_size > _MAX_CONFIG_BYTES:
            raise InputError(f"{path}: larger than 1 MiB, so not a configuration")
        text = path.read_text(encoding="utf-8")
        loader = Loader(text)
        try:
            return loader.get_single_data()
        finally:
            loader.dispose()
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise InputError(f"{path}: is not UTF-8 text") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}: " if mark else ""
        raise InputError(f"{path.name}: {where}not YAML ({getattr(error, 'problem', None) or error})") from None
    except RecursionError:
        raise InputError(f"{path.name}: nested too deeply") from None
