"""Configurations in YAML: text stays text, and what is wrong is one line that names the field."""

import dataclasses
import json
import random
import sys
from pathlib import Path

import pytest
import yaml

from config_cases import (
    KINDS,
    LAUGHS,
    NAMED,
    TRAPS,
    Inner,
    Outer,
    assert_equals_schema,
    assert_one_line,
    fuzzed,
    read,
    section,
)
from hmmscope import registry
from hmmscope.errors import InputError
from hmmscope.runs.config import config_from_data, load_config, read_yaml
from hmmscope.schema import parse_spec, parse_value, spec_to_data
from hmmscope.training.spec import TrainingSpec


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


#: Fields of a training by the names that files store.
STORED = {one.metadata["stored"]: one.name for one in dataclasses.fields(TrainingSpec) if "stored" in one.metadata}


@pytest.mark.long
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
                found = getattr(config.training, STORED.get(key, key))
                assert found == type(found)(value)
    assert accepted > 300
    assert refused > 1000


def test_fuzzed_yaml(tmp_path: Path) -> None:
    """Texts with damage anywhere: read as data, or refused in one line."""
    rng = random.Random(7)
    texts = [yaml.safe_dump({kind: section(kind, name) for kind, name in NAMED if kind != "process"}) + "seed: 1\n"]
    texts += ["training: {num_steps: 3, betas: [0.9, 0.95]}\nprocess:\n  name: file\n  path: 'a b'\n", LAUGHS]
    pieces = ["&a ", "*a", "!!int ", "!", "? ", ": ", "- ", "\t", *"[]{}", "|\n", *">'\"#%", "---"]
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
