"""What the tests of config share."""

import dataclasses
import math
import random
import typing
from pathlib import Path
from typing import Any

from hmmscope import registry
from hmmscope.errors import InputError
from hmmscope.runs.config import RunConfig, read_yaml
from hmmscope.schema import spec_to_data
from hmmscope.training.spec import TrainingSpec

KINDS = ("process", "layout", "model")
NAMED = [(kind, name) for kind in KINDS for name in registry.entries(kind)]


def assert_one_line(error: InputError) -> None:
    text = str(error)
    assert text.isprintable(), repr(text)
    assert 10 < len(text) < 900


def section(kind: str, name: str) -> dict[str, Any]:
    """A registered spec with its defaults, as data."""
    required = {
        ("process", "file"): {"path": "umbrella"},
        ("process", "random-mixture"): {"num_components": 8},  # one of 8192, built for a header, takes many seconds
        ("process", "data"): {"path": "a.txt"},
        ("process", "given"): {"kind": "HMM", "digest": "0" * 64},
        ("model", "given"): {"class_name": "Net", "shapes": ["weight 3x4"]},
    }.get((kind, name), {})
    return {"name": name, **spec_to_data(registry.build_spec(kind, {"name": name, **required}, kind))}


# --------------------------------------------------------------------------------------------------------------------
# YAML


def read(text: str | bytes, folder: Path) -> object:
    path = folder / "config.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_yaml(path)


LAUGHS = "a: &a [x, x]\n" + "".join(f"{b}: &{b} [*{a}, *{a}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True))

TRAPS: dict[str, tuple[str | bytes, str]] = {
    "billion laughs": (LAUGHS, "line 2: aliases"),
    "alias": ("a: &x {b: 1}\nc: *x\n", "line 2: aliases"),
    "merge of an alias": ("a: &x {b: 1}\nc: {<<: *x}\n", "line 2: aliases"),
    "self-reference": ("&a [*a]\n", "line 1: aliases"),
    "object": ("!!python/object/apply:os.mkdir [canary]\n", "line 1: .*tags"),
    "object as a value": ("a: !!python/name:os.system\n", "line 1: .*tags"),
    "object as a key": ("? !!python/object/apply:os.mkdir [canary]\n: 1\n", "line 1: .*tags"),
    "object by its full name": ("!<tag:yaml.org,2002:python/object/new:os.mkdir> [canary]\n", "tags"),
    "tag directive": ("%TAG ! tag:yaml.org,2002:python/\n---\n!object/apply:os.mkdir [canary]\n", "tags"),
    "integer tag": ("seed: !!int foo\n", "tags"),
    "timestamp tag": ("seed: !!timestamp foo\n", "tags"),
    "truth tag": ("seed: !!bool foo\n", "tags"),
    "mapping tag on a list": ("!!map [1]\n", "tags"),
    "binary tag": ("seed: !!binary aGVsbG8=\n", "tags"),
    "set tag": ("seed: !!set {a}\n", "tags"),
    "double key": ("seed: 1\ntraining: {}\nseed: 2\n", "line 3: key 'seed' appears twice"),
    "double key inside": ("training:\n  num_steps: 1\n  'num_steps': 2\n", "line 3: key 'num_steps' appears twice"),
    "list as a key": ("? [a]\n: 1\n", "line 1: a key must be text"),
    "truth as a key": ("true: 1\n", "line 1: a key must be text"),
    "nothing as a key": ("? \n: 1\n", "a key must be text"),
    "deep lists": ("[" * 20_000, "nested too deeply"),
    "deep mappings": ("{a: " * 10_000, "nested too deeply"),
    "deep dashes": ("- " * 20_000, "nested too deeply"),
    "2 MiB": (b"# " + b"x" * 2**21, "more than the 65536 allowed"),
    "two documents": ("a: 1\n---\nb: 2\n", "line 2: not YAML"),
    "zero byte": ("a\0b: 1\n", "not YAML"),
    "control": ("a: \x01\n", "not YAML"),
    "not UTF-8": (b"\xff\xfea: 1\n", "not UTF-8"),
    "UTF-16": ("seed: 1\n".encode("utf-16"), "not UTF-8"),
    "binary": (bytes(range(256)) * 8, "not UTF-8"),
    "tabs": ("training:\n\tnum_steps: 1\n", "line 2: not YAML"),
    "unclosed": ("training: {num_steps: 1\n", "line 2: not YAML"),
    "unknown version": ("%YAML 9.9\n---\nseed: 1\n", "line 1: not YAML"),
    "lone surrogate": (b'seed: "\xed\xa0\x80"\n', "not UTF-8"),
}


# --------------------------------------------------------------------------------------------------------------------
# Fuzz

VALUES: list[Any] = [
    *(None, True, False, 0, 1, -1, 2, 3, 5, 8, 64, 10**6, 2**31, 2**32, 2**40, 10**30, -(10**30), 10**5000),
    *(0.0, -0.0, 0.5, 1.0, 1e-9, 1e308, -1.5, math.nan, math.inf, -math.inf, 1e-320),
    *("", "0", "1", "3", "-1", "2.5", "1e-3", "1e999", "nan", "inf", "true", "false", "none", "null", "no", " 1", "1 "),
    *("1_0", "٣", "0x10", "9" * 5000, "cpu", "cuda", "auto", "umbrella", "os.system", "../..", "/dev/zero", "a\nb"),
    *("\x00", "\x1b[2J", "\u202e", "\ud800", "😀", "x" * 2000, "0.9,0.95", ",", "1,2,3", "random-hmm", "roformer"),
    *([], [0.9, 0.95], [1], ["0.5", "0.5"], [[1]], (0.1, 0.2), {}, {"name": "even"}, {"a": 1}, {1: 2}, b"1", {1}),
    *(object, lambda: 1, 1j, math, TrainingSpec, TrainingSpec(), RunConfig().model),
]


def fuzzed(rng: random.Random) -> tuple[Any, dict[str, str]]:
    """A valid configuration in which up to four things are changed, and some overrides."""
    data: dict[Any, Any] = {
        kind: section(kind, rng.choice(sorted(registry.entries(kind)))) for kind in KINDS if rng.random() < 0.6
    }
    if rng.random() < 0.6:
        data["training"] = spec_to_data(TrainingSpec())
    for _ in range(rng.randrange(4)):
        where = data[rng.choice(list(data))] if data and rng.random() < 0.85 else data
        if not isinstance(where, dict):
            continue
        keys = list(where)
        choice = rng.random()
        if keys and choice < 0.6:
            where[rng.choice(keys)] = rng.choice(VALUES)
        elif keys and choice < 0.7:
            del where[rng.choice(keys)]
        elif keys and choice < 0.85:
            key = str(rng.choice(keys))
            cut = rng.randrange(len(key) + 1)
            where[key[:cut] + rng.choice(["", "x", "_", "\n", "é", "."]) + key[cut + rng.randrange(2) :]] = 1
        else:
            where[rng.choice(["seed", "name", 3, None, ("a", 1), "x" * 300, "\u202e"])] = rng.choice(VALUES)
    paths = ["seed", "training.num_steps", "model.width", "process.seed", "layout.length", "process.name", "x.y", "."]
    overrides = {
        rng.choice(paths): rng.choice([v for v in VALUES if isinstance(v, str)]) for _ in range(rng.randrange(2))
    }
    return (rng.choice(VALUES) if rng.random() < 0.02 else data), overrides


def assert_equals_schema(spec: Any) -> None:
    """Every field has the type that the class says."""
    for name, kind in typing.get_type_hints(type(spec)).items():
        if name not in {field.name for field in dataclasses.fields(spec) if field.init}:
            continue
        value = getattr(spec, name)
        if typing.get_origin(kind) is typing.Literal:
            assert value in typing.get_args(kind)
        elif typing.get_origin(kind) is tuple:
            assert isinstance(value, tuple)
            assert all(type(item) is typing.get_args(kind)[0] for item in value)
        else:
            assert type(value) in (typing.get_args(kind) or (kind,)), (name, value, kind)
            assert kind is not float or math.isfinite(value)


# --------------------------------------------------------------------------------------------------------------------
# The schema by itself


@dataclasses.dataclass(frozen=True)
class Inner:
    size: int = 1


@dataclasses.dataclass(frozen=True)
class Outer:
    required: str
    inner: Inner = dataclasses.field(default_factory=Inner)
    inners: tuple[Inner, ...] = ()
    maybe: float | None = None
    flag: bool = False
