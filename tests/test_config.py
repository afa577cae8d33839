"""Configurations: what is written is what is read, and anything else is one line that names the field."""

import dataclasses
import json
import math
import random
import sys
import typing
from pathlib import Path
from typing import Any

import pytest
import yaml

from hmmscope import registry
from hmmscope.config import RunConfig, config_from_data, load_config, read_yaml
from hmmscope.errors import InputError
from hmmscope.processes.from_file import FileSpec
from hmmscope.schema import parse_spec, parse_value, spec_to_data
from hmmscope.training.spec import TrainingSpec

KINDS = ("process", "layout", "model")
NAMED = [(kind, name) for kind in KINDS for name in registry.entries(kind)]


def assert_one_line(error: InputError) -> None:
    text = str(error)
    assert text.isprintable(), repr(text)
    assert 10 < len(text) < 900


def section(kind: str, name: str) -> dict[str, Any]:
    """A registered spec with its defaults, as data."""
    required = {"path": "umbrella"} if name == "file" else {}
    return {"name": name, **spec_to_data(registry.build_spec(kind, {"name": name, **required}, kind))}


# --------------------------------------------------------------------------------------------------------------------
# Round trips


def test_defaults_round_trip() -> None:
    config = RunConfig()
    assert config_from_data(config.to_data()) == config
    assert config_from_data(json.loads(json.dumps(config.to_data()))) == config
    assert config_from_data({}) == config


@pytest.mark.parametrize("kind, name", NAMED)
def test_every_registered_spec_round_trips(kind: str, name: str, tmp_path: Path) -> None:
    config = config_from_data({kind: section(kind, name), "seed": 7})
    assert getattr(config, kind).name == name
    data = config.to_data()
    assert config_from_data(data) == config
    for text in (json.dumps(data, indent=1), yaml.safe_dump(data), yaml.safe_dump(data, default_flow_style=True)):
        (tmp_path / "config.yaml").write_text(text)
        assert load_config(tmp_path / "config.yaml") == config


def test_specs_and_data_are_the_same() -> None:
    training = TrainingSpec(num_steps=5, betas=(0.5, 0.6))
    config = RunConfig(process=FileSpec(path="umbrella"), training=training, seed=2)
    data = {
        "process": {"name": "file", "path": "umbrella"},
        "training": {"num_steps": 5, "betas": [0.5, 0.6]},
        "seed": 2,
    }
    assert RunConfig(**data) == config == config_from_data(data)
    assert config.to_data()["training"]["betas"] == [0.5, 0.6]


def test_data_is_not_changed_by_reading() -> None:
    data = {"process": {"name": "random-hmm"}, "training": {"num_steps": 3}}
    before = json.dumps(data)
    config_from_data(data, {"training.num_steps": "4", "process.name": "even", "model.width": "8"})
    assert json.dumps(data) == before


# --------------------------------------------------------------------------------------------------------------------
# Overrides


def test_overrides() -> None:
    base = {"process": {"name": "random-hmm", "num_states": 3}, "training": {"num_steps": 10}}
    overrides = {
        "process.num_symbols": "4",
        "training.learning_rate": "1e-2",
        "training.betas": "0.5,0.75",
        "training.device": "cpu",
        "model.width": "32",
        "layout.length": "9",
        "seed": "5",
    }
    config = config_from_data(base, overrides)
    assert (config.process.num_states, config.process.num_symbols) == (3, 4)
    assert config.training == TrainingSpec(num_steps=10, learning_rate=0.01, betas=(0.5, 0.75), device="cpu")
    assert dataclasses.replace(config.model, width=64) == RunConfig().model  # its other fields are not forgotten
    assert (config.model.width, config.layout.length, config.seed) == (32, 9, 5)


def test_override_of_a_name_begins_with_its_defaults() -> None:
    data = {"process": {"name": "random-hmm", "num_states": 3}}
    assert config_from_data(data, {"process.name": "markov-chain"}).process.num_states != 3
    assert config_from_data(data, {"process.name": "random-hmm"}).process.num_states == 3


def test_order_of_overrides_does_not_matter() -> None:
    words = [("process.num_states", "3"), ("process.name", "markov-chain"), ("process.num_symbols", "3")]
    found = {config_from_data({}, dict(order)).process for order in (words, words[::-1], words[1:] + words[:1])}
    assert len(found) == 1
    assert found.pop().num_states == 3


@pytest.mark.parametrize(
    "path, text, message",
    [
        ("trainin.num_steps", "3", "trainin: unknown 'trainin'; did you mean 'training'?"),
        ("training.num_step", "3", "training.num_step: unknown 'num_step'; did you mean 'num_steps'?"),
        ("training.nothing_like_it", "3", "training.nothing_like_it: unknown 'nothing_like_it' (known: batch_size,"),
        ("sed", "3", "sed: unknown 'sed'; did you mean 'seed'?"),
        ("seed.x", "3", "seed.x: this section has no fields"),
        ("seed", "three", "seed: must be an integer, got 'three'"),
        ("seed", "-1", "seed: must be an integer in [0, 4294967295], got -1"),
        ("training", "3", "training: must be a mapping of fields, got '3'"),
        ("model", "roformer", "model: must be a registered model or a mapping with its name, got 'roformer'"),
        ("model.name", "roforme", "model.name: unknown 'roforme'; did you mean 'roformer'?"),
        ("process.name", "random-hm", "process.name: unknown 'random-hm'; did you mean 'random-hmm'?"),
        ("process.name", "file", "process.path: is required"),
        ("model.num_layers.x", "3", "model.num_layers.x: unknown 'num_layers.x'; did you mean 'num_layers'?"),
        ("training.betas", "0.5", "training.betas: must be two numbers in [0, 1), got (0.5,)"),
        ("training.betas", "0.5,x", "training.betas[1]: must be a number, got 'x'"),
        ("training.device", "gpu", "training.device: unknown 'gpu'"),
        ("training.num_steps", "", "training.num_steps: must be an integer, got ''"),
        ("training.num_steps", "1e3", "training.num_steps: must be an integer, got '1e3'"),
        ("training.num_steps", " 5", "training.num_steps: must be an integer, got ' 5'"),
        ("training.num_steps", "٣", "training.num_steps: must be an integer"),
        ("training.learning_rate", "0", "training.learning_rate: must be positive, got 0.0"),
        ("training.weight_decay", "-0.1", "training.weight_decay: must be at least 0, got -0.1"),
        ("training.final_fraction", "1.5", "training.final_fraction: must be in [0, 1], got 1.5"),
        ("layout.length", "1", "layout: must have a column to read and one to predict, got 1"),
        ("training.batch_size", "1000000000", "training.num_steps: times batch_size must be at most 2^40 samples"),
    ],
)
def test_wrong_override(path: str, text: str, message: str) -> None:
    with pytest.raises(InputError) as refused:
        config_from_data({}, {path: text})
    assert str(refused.value).startswith(message)
    assert_one_line(refused.value)


@pytest.mark.parametrize(
    "data, message",
    [
        (None, "config: must be a mapping of sections, got None"),
        ([], "config: must be a mapping of sections, got []"),
        ({1: 2}, "1: unknown 1 (known:"),
        ({None: 2}, "None: unknown None (known:"),
        ({("a",): 2}, "('a',): unknown ('a',) (known:"),
        ({"a\nb": 2}, "'a\\nb': unknown 'a\\nb' (known:"),
        ({"training": None}, "training: must be a mapping of fields, got None"),
        ({"training": [1]}, "training: must be a mapping of fields, got [1]"),
        ({"training": {1: 2}}, "training.1: unknown 1 (known:"),
        ({"training": {"num_steps": True}}, "training.num_steps: must be an integer, got True"),
        ({"training": {"num_steps": 3.0}}, "training.num_steps: must be an integer, got 3.0"),
        ({"training": {"num_steps": None}}, "training.num_steps: must be an integer, got None"),
        ({"training": {"learning_rate": 10**400}}, "training.learning_rate: must be a number, got 1000"),
        ({"training": {"learning_rate": b"1"}}, "training.learning_rate: must be a number, got b'1'"),
        ({"training": {"learning_rate": math.nan}}, "training.learning_rate: must be finite, got nan"),
        ({"training": {"betas": 0.5}}, "training.betas: must be a list, got 0.5"),
        ({"training": {"betas": {0.5, 0.6}}}, "training.betas: must be a list, got {"),
        ({"training": {"device": ["cpu"]}}, "training.device: unknown ['cpu']"),
        ({"seed": True}, "seed: must be an integer, got True"),
        ({"seed": 10**5000}, "seed: must be an integer in [0, 4294967295], got a huge int"),
        ({"process": {}}, "process.name: unknown None (known:"),
        ({"process": {"name": ["even"]}}, "process.name: unknown ['even'] (known:"),
        ({"process": "even"}, "process: must be a registered process or a mapping with its name, got 'even'"),
        ({"process": {"name": "os.system"}}, "process.name: unknown 'os.system' (known:"),
        ({"process": {"name": "file", "path": 3}}, "process.path: must be text, got 3"),
        ({"process": {"name": "file", "path": "x", "allow_drop_tiny": 1}}, "process.allow_drop_tiny: must be true or"),
        ({"training": {"x" * 5000: 1}}, "training.'xxxx"),
        ({"training": {"num_steps": "9" * 5000}}, "training.num_steps: must be an integer, got '999"),
    ],
)
def test_wrong_data(data: Any, message: str) -> None:
    with pytest.raises(InputError) as refused:
        config_from_data(data)
    assert str(refused.value).startswith(message)
    assert_one_line(refused.value)


def test_deep_data_is_named_and_not_printed() -> None:
    deep: list = []
    for _ in range(5000):
        deep = [deep]
    for data in (deep, {"training": deep}, {"seed": deep}, {"model": deep}):
        with pytest.raises(InputError) as refused:
            config_from_data(data)
        assert_one_line(refused.value)


def test_config_of_python_objects_is_checked_too() -> None:
    for wrong in ({"process": 3}, {"model": FileSpec(path="x")}, {"layout": None}, {"seed": 1.0}, {"training": 3}):
        with pytest.raises(InputError) as refused:
            RunConfig(**wrong)  # type: ignore[arg-type]
        assert str(refused.value).startswith(next(iter(wrong)))


# --------------------------------------------------------------------------------------------------------------------
# YAML


def read(text: str | bytes, folder: Path) -> object:
    path = folder / "config.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_yaml(path)


def test_yaml_keeps_text(tmp_path: Path) -> None:
    """Only mappings, lists, truth values, nothing and text; the schema makes numbers of text."""
    text = (
        "a: 012\nb: 1:30\nc: no\nd: 2001-01-01\ne: 1e-3\nf: true\ng: null\nh:\ni: [1, ~]\nj: 'true'\nk: 0x10\n"
        "l: Yes\nm: '#'\nn: .inf\no: 1_000\np: NULL\nq: \"\\u0041\"\n"
    )
    assert read(text, tmp_path) == {
        **{"a": "012", "b": "1:30", "c": "no", "d": "2001-01-01", "e": "1e-3", "f": True, "g": None, "h": None},
        **{"i": ["1", None], "j": "true", "k": "0x10", "l": "Yes", "m": "#", "n": ".inf", "o": "1_000", "p": "NULL"},
        "q": "A",
    }


@pytest.mark.parametrize(
    "text", ["1:30", "0x10", "0o17", "0b1", "1_000", "2001-01-01", ".inf", "1.0", "1e2", "yes", "~"]
)
def test_yaml_confusions_are_not_numbers(text: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="seed: must be an integer"):
        config_from_data(read(f"seed: {text}", tmp_path))


def test_yaml_numbers(tmp_path: Path) -> None:
    data = read("seed: 12\ntraining: {learning_rate: 1e-3, num_steps: +5, betas: [.5, 0.25]}\n", tmp_path)
    config = config_from_data(data)
    assert (config.seed, config.training.num_steps, config.training.learning_rate) == (12, 5, 0.001)
    assert config.training.betas == (0.5, 0.25)
    assert read('{"seed": 12, "process": {"name": "even"}}', tmp_path) == {"seed": "12", "process": {"name": "even"}}


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
    "double key": ("seed: 1\ntraining: {}\nseed: 2\n", "line 3: key 'seed' is there twice"),
    "double key inside": ("training:\n  num_steps: 1\n  'num_steps': 2\n", "line 3: key 'num_steps' is there twice"),
    "list as a key": ("? [a]\n: 1\n", "line 1: a key must be text"),
    "truth as a key": ("true: 1\n", "line 1: a key must be text"),
    "nothing as a key": ("? \n: 1\n", "a key must be text"),
    "deep lists": ("[" * 20_000, "nested too deeply"),
    "deep mappings": ("{a: " * 10_000, "nested too deeply"),
    "deep dashes": ("- " * 20_000, "nested too deeply"),
    "2 MiB": (b"# " + b"x" * 2**21, "larger than 64 KiB"),
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


@pytest.mark.parametrize("trap", TRAPS)
def test_yaml_trap(trap: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text, message = TRAPS[trap]
    with pytest.raises(InputError, match=message) as refused:
        read(text, tmp_path)
    assert_one_line(refused.value)
    assert [path.name for path in tmp_path.iterdir()] == ["config.yaml"]  # no canary


def test_aliases_would_do_harm(tmp_path: Path) -> None:
    """The gallery is not made of straw: the usual loader accepts them."""
    assert len(json.dumps(yaml.safe_load(LAUGHS))) > 1000
    assert yaml.safe_load("seed: 1\nseed: 2\n") == {"seed": 2}
    assert yaml.safe_load("seed: 012\n") == {"seed": 10}


@pytest.mark.parametrize("text, value", [("", None), ("- seed\n", ["seed"]), ("seed", "seed"), ("3", "3")])
def test_yaml_that_is_no_mapping(text: str, value: object, tmp_path: Path) -> None:
    assert read(text, tmp_path) == value
    with pytest.raises(InputError, match="config: must be a mapping of sections"):
        load_config(tmp_path / "config.yaml")


def test_files_that_are_none(tmp_path: Path) -> None:
    (tmp_path / "folder.yaml").mkdir()
    for name in ("none.yaml", "folder.yaml", "x" * 300 + ".yaml"):
        with pytest.raises(InputError) as refused:
            read_yaml(tmp_path / name)
        assert "\n" not in str(refused.value)
    with pytest.raises(InputError, match="not a regular file"):
        read_yaml(Path("/dev/zero"))


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
        if name not in {field.name for field in dataclasses.fields(spec)}:
            continue
        value = getattr(spec, name)
        if typing.get_origin(kind) is typing.Literal:
            assert value in typing.get_args(kind)
        elif typing.get_origin(kind) is tuple:
            assert isinstance(value, tuple)
            assert all(type(item) is typing.get_args(kind)[0] for item in value)
        else:
            assert type(value) is kind, (name, value, kind)
            assert kind is not float or math.isfinite(value)


def test_fuzzed_configurations() -> None:
    rng = random.Random(2024)
    accepted = refused = 0
    for _ in range(4000):
        data, overrides = fuzzed(rng)
        try:
            config = config_from_data(data, overrides)
        except InputError as error:
            assert_one_line(error)
            refused += 1
            continue
        accepted += 1
        for kind in KINDS:
            assert type(getattr(config, kind)) in registry.entries(kind).values()
            assert_equals_schema(getattr(config, kind))
        assert_equals_schema(config.training)
        assert type(config.seed) is int
        assert 0 <= config.seed < 2**32
        assert config_from_data(json.loads(json.dumps(config.to_data()))) == config
        given = {key: value for key, value in data.get("training", {}).items()} if isinstance(data, dict) else {}
        for key, value in given.items():
            if f"training.{key}" not in overrides and type(value) in (int, float) and not isinstance(value, bool):
                assert getattr(config.training, key) == type(getattr(config.training, key))(value)
    assert accepted > 300
    assert refused > 1000


def test_fuzzed_yaml(tmp_path: Path) -> None:
    """Texts with damage anywhere: read as data, or refused in one line."""
    rng = random.Random(7)
    texts = [yaml.safe_dump({kind: section(kind, name) for kind, name in NAMED if kind != "process"}) + "seed: 1\n"]
    texts += ["training: {num_steps: 3, betas: [0.9, 0.95]}\nprocess:\n  name: file\n  path: 'a b'\n", LAUGHS]
    pieces = [
        "&a ",
        "*a",
        "!!int ",
        "!",
        "? ",
        ": ",
        "- ",
        "\t",
        "[",
        "]",
        "{",
        "}",
        "|\n",
        ">",
        "'",
        '"',
        "#",
        "%",
        "---",
    ]
    pieces += ["\x00", "é", "\u2028", "<<: ", "~", "true", "\\", ",", "\r", "\n\n", "@", "`", "..."]
    read_as_data = 0
    for _ in range(1000):
        text = rng.choice(texts)
        for _ in range(1 + rng.randrange(3)):
            at = rng.randrange(len(text) + 1)
            text = text[:at] + rng.choice(pieces) + text[at + rng.randrange(4) :]
        try:
            data = read(text, tmp_path)
            read_as_data += 1
            config_from_data(data)
        except InputError as error:
            assert_one_line(error)
    assert read_as_data > 60


def test_field_names_in_messages() -> None:
    """Of wrong values in known fields, all are named by their path."""
    rng = random.Random(3)
    for kind, name in NAMED:
        cls = registry.entries(kind)[name]
        for field in dataclasses.fields(cls):
            wrong = rng.choice([object, 1j, {"a": 1}, [None]])
            with pytest.raises(InputError) as refused:
                config_from_data({kind: section(kind, name) | {field.name: wrong}})
            assert str(refused.value).startswith(f"{kind}.{field.name}")


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


def test_nested_specs() -> None:
    data = {"required": "x", "inner": {"size": "2"}, "inners": [{"size": 3}, {}], "maybe": "none", "flag": "true"}
    spec = parse_spec(Outer, data, "top")
    assert spec == Outer("x", Inner(2), (Inner(3), Inner(1)), None, True)
    assert parse_spec(Outer, spec_to_data(spec), "top") == spec
    assert parse_spec(Outer, {"required": "x", "maybe": 2}, "").maybe == 2.0
    for wrong, message in [
        ({}, "top.required: is required"),
        ({"required": "x", "inner": {"sise": 1}}, "top.inner.sise: unknown 'sise'; did you mean 'size'"),
        ({"required": "x", "inners": [{}, {"size": "a"}]}, r"top.inners\[1\].size: must be an integer, got 'a'"),
        ({"required": 3}, "top.required: must be text, got 3"),
        ({"required": "x", "flag": "yes"}, "top.flag: must be true or false, got 'yes'"),
    ]:
        with pytest.raises(InputError, match=message):
            parse_spec(Outer, wrong, "top")
    with pytest.raises(InputError, match="must not be empty"):
        parse_value(int | str, None, "x")


def test_limits_of_integers_as_text() -> None:
    assert parse_value(int, "0" * 4000 + "7", "x") == 7
    with pytest.raises(InputError):
        parse_value(int, "7" * (sys.get_int_max_str_digits() + 1), "x")
