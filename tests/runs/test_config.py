"""Configurations: what is written is what is read, and anything else is one line that names the field."""

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import pytest
import yaml

from config_cases import NAMED, assert_one_line, section
from hmmscope.errors import InputError
from hmmscope.processes.from_file import FileSpec
from hmmscope.runs.config import RunConfig, config_from_data, load_config
from hmmscope.training.spec import TrainingSpec

# --------------------------------------------------------------------------------------------------------------------
# Round trips


def test_defaults_round_trip() -> None:
    config = RunConfig()
    assert config_from_data(config.to_data()) == config
    assert config_from_data(json.loads(json.dumps(config.to_data()))) == config
    assert config_from_data({}) == config


@pytest.mark.parametrize("kind, name", NAMED)
def test_every_registered_spec_round_trips(kind: str, name: str, tmp_path: Path) -> None:
    told = {"process": {"name": "told-hmms"}} if (kind, name) == ("layout", "header") else {}
    config = config_from_data({kind: section(kind, name), "seed": 7, **told})
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
        (
            "training.nothing_like_it",
            "3",
            "training.nothing_like_it: unknown 'nothing_like_it' (known: accumulation_steps, auxiliary_losses, batch_size,",
        ),
        ("sed", "3", "sed: unknown 'sed'; did you mean 'seed'?"),
        ("seed.x", "3", "seed.x: seed is a single value, without fields"),
        ("seed", "three", "seed: must be an integer, got 'three'"),
        ("seed", "-1", "seed: must be an integer in [0, 4294967295], got -1"),
        ("training", "3", "training: must be a mapping of fields, got '3'"),
        ("model", "roforme", "model.name: unknown 'roforme'; did you mean 'roformer'?"),
        ("process", "even.txtx", "process: unknown 'even.txtx'"),
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
        (
            "layout.length",
            "1",
            "layout: must have at least 2 positions, because the model reads one and predicts the next, got 1",
        ),
        ("training.batch_size", "1000000000", "training.num_steps: must be at most 2^40 divided by batch_size"),
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
        ({"process": "eve"}, "process: unknown 'eve'; did you mean 'even'?"),
        ({"layout": 3}, "layout: must be a registered layout or a mapping with the key name, got 3"),
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


def test_a_name_does_not_undo_the_fields_beside_it() -> None:
    """Wherever ``--model NAME`` stands, ``--model.width`` is of that model."""
    for overrides in ({"model": "rnn", "model.width": "8"}, {"model.width": "8", "model": "rnn"}):
        model = config_from_data({}, overrides).model
        assert (model.name, model.width) == ("rnn", 8)
    layout = config_from_data({}, {"layout.length": "12", "layout": "sequences"}).layout
    assert layout.length == 12
