"""What records of claims, findings, figures and protocols refuse, with the place that is wrong."""

from pathlib import Path
from typing import Any

import pytest

from hmmscope.errors import DamagedError, InputError
from hmmscope.lab.evidence import records
from hmmscope.lab.evidence.claim import claim
from hmmscope.lab.evidence.effects import false_discovery
from hmmscope.lab.evidence.figure import Figure
from hmmscope.lab.evidence.finding import Finding
from hmmscope.lab.evidence.ledger import read_about
from hmmscope.lab.evidence.protocol import FORMAT, read_protocol
from hmmscope.lab.evidence.rows import Rows
from hmmscope.lab.evidence.verdicts import Printed
from hmmscope.storage import store

FINDING = {"title": "t", "text": "x", "verdict": "reproduced"}
CURVES = {"kind": "curves", "title": "t", "x_label": "x", "y_label": "y", "series": []}


@pytest.mark.parametrize(
    ("data", "error"),
    [
        ([], r"finding: must be a mapping"),
        (FINDING | {"colour": "red"}, r"finding: unknown 'colour'"),
        (FINDING | {"verdict": "great"}, r"verdict: unknown 'great'"),
        (FINDING | {"title": 5}, r"finding\.title: must be text"),
        (FINDING | {"value": True}, r"finding\.value: must be a number"),
        (FINDING | {"p": "small"}, r"finding\.p: must be a number"),
        (FINDING | {"rule_version": True}, r"finding\.rule_version: must be an integer"),
        ({"title": "t", "text": "x"}, r"finding: must have the key verdict"),
        (FINDING | {"gates": 1}, r"finding\.gates: must be a list"),
        (FINDING | {"gates": [{"name": "n"}]}, r"finding\.gates\[0\]: must have exactly the keys name, is_open"),
        (FINDING | {"gates": [{"name": "n", "is_open": 1, "text": ""}]}, r"finding\.gates\[0\]: must have"),
        (FINDING | {"value": 1.0, "low": 0.5}, r"low: must be given together with high"),
        (FINDING | {"low": 0.5, "high": 1.0}, r"value: must be given together with low and high"),
    ],
)
def test_findings(data: Any, error: str) -> None:
    with pytest.raises(InputError, match=error):
        Finding.from_data(data)


@pytest.mark.parametrize(
    ("data", "error"),
    [
        ([], r"figure: must be a mapping with the key panels"),
        ({"name": "a", "panels": "all"}, r"figure: must be a mapping with the key panels"),
        ({"name": "a", "title": "", "caption": "", "panels": []}, r"panels: must have at least one"),
        ({"name": "-a", "title": "", "caption": "", "panels": []}, r"name: must be 1 to 100 letters"),
        ({"name": "a", "panels": [{"kind": "cake"}]}, r"figure\.panels\[0\]\.kind: unknown 'cake'"),
        ({"name": "a", "panels": [5]}, r"figure\.panels\[0\]\.kind: unknown None"),
    ],
)
def test_figures(data: Any, error: str) -> None:
    with pytest.raises(InputError, match=error):
        Figure.from_data(data)


EXPLORER = {"kind": "explorer", "title": "", "x_label": "x", "y_label": "y", "choices": ["task", "model"]}
CURVE = {"values": ["parity", "rnn"], "x": [1.0], "y": [2.0]}


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({}, ""),
        ({"choices": []}, r"choices: must have 1 to 5 names"),
        ({"choices": ["task", "task"]}, r"choices: must be distinct"),
        ({"overlay": "models"}, r"overlay: unknown 'models'.*did you mean 'model'"),
        ({"curves": []}, r"curves: must have at least one"),
        ({"curves": [CURVE | {"values": ["parity"]}]}, r"curves\[0\]\.values: must have 2 values"),
        ({"curves": [CURVE | {"values": ["parity", ""]}]}, r"curves: model: at least one curve must have a value"),
        ({"curves": [CURVE, CURVE]}, r"curves: two curves must not share values, name and role"),
        ({"curves": [CURVE | {"x": []}]}, r"x: must have at least one value"),
        ({"curves": [CURVE | {"x": [1.0, 2.0]}]}, r"x: must have 1 values"),
        ({"curves": [CURVE | {"low": [1.0]}]}, r"low: must be given together with high"),
        ({"curves": [CURVE | {"role": "king"}]}, r"role: unknown 'king'"),
        ({"curves": [CURVE | {"y": [float("inf")]}]}, r"y\[0\]: must be finite"),
    ],
)
def test_explorers(change: dict[str, Any], error: str) -> None:
    data = {"name": "a", "title": "", "caption": "", "panels": [EXPLORER | {"curves": [CURVE]} | change]}
    if error:
        with pytest.raises(InputError, match=error):
            Figure.from_data(data)
    else:
        assert Figure.from_data(data).to_data()["panels"][0]["overlay"] == "model"


def _folder(path: Path, text: str) -> Path:
    path.mkdir(parents=True)
    (path / "x.toml").write_text(text)
    return path


_ENTRY = '[mine]\nsource = "s"\nsays = "s"\nreading = "r"\nversion = 1\n'


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ('experiment = "x"\n' + _ENTRY + "colour = 1\n", r"x\.toml: mine: key: unknown 'colour'"),
        (_ENTRY, r"x\.toml: mine: experiment: is required"),
        (
            'experiment = "x"\n' + _ENTRY + 'rule = {name = "abov"}\n',
            r"rule\.name: unknown 'abov'.*did you mean 'above'",
        ),
        ('experiment = "x"\n' + _ENTRY + 'about = "cake"\n', r"about: unknown 'cake'"),
        ('experiment = "x"\n' + _ENTRY + "level = 1.0\n", r"level: must be between 0 and 1"),
        ('experiment = "x"\n' + _ENTRY + "least_power = 0.0\n", r"least_power: must be between 0 and 1"),
        (
            'experiment = "x"\n' + _ENTRY + "printed = 1.0\n",
            r"printed_in: must name the place in the paper that prints the effect",
        ),
        ('experiment = "x"\n' + _ENTRY.replace("version = 1", "version = 0"), r"version: must be an integer >= 1"),
        ("= 5", r"x\.toml: Invalid statement"),
    ],
)
def test_entries(text: str, error: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=error):
        records.record(_folder(tmp_path / "claims", text), "mine")


def test_an_entry_that_is_there_and_one_that_is_not(tmp_path: Path) -> None:
    folder = _folder(tmp_path / "claims", 'experiment = "x"\n' + _ENTRY + "numbers = {rate = 0.5}\n")
    found = records.record(folder, "mine")
    assert (found.experiment, found.parameters.rate, found.rule) == ("x", 0.5, None)
    with pytest.raises(InputError, match=r"numbers: unknown 'rat'.*did you mean 'rate'"):
        _ = found.parameters.rat
    with pytest.raises(InputError, match="claim: unknown 'yours'"):
        records.record(folder, "yours")
    with pytest.raises(InputError, match="claim mine: module nowhere has no file, so no folder claims/"):
        claim("mine")(type("f", (), {"__module__": "nowhere"}))


def test_deviations_name_facts_that_are_there(tmp_path: Path) -> None:
    text = '[facts]\nsmaller = "it is smaller"\n[experiments]\n"small/x" = ["smaller"]\n"small/y" = ["larger"]\n'
    (tmp_path / "deviations.toml").write_text(text)
    assert records.deviations(tmp_path, "x", "small") == ("it is smaller",)
    assert records.deviations(tmp_path, "x", "medium") == records.deviations(tmp_path / "none", "x", "small") == ()
    with pytest.raises(InputError, match=r"deviations\.toml: fact: unknown 'larger'"):
        records.deviations(tmp_path, "y", "small")


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"format": "x"}, "not a protocol; write one with"),
        ({"plan": []}, "plan: is missing or has the wrong type for a protocol"),
        ({"measurement": "1"}, "measurement: is missing or has the wrong type for a protocol"),
        ({"rules": {"a": 1}}, "rules: is missing or has the wrong type for a protocol"),
    ],
)
def test_protocols(change: dict[str, Any], error: str, tmp_path: Path) -> None:
    whole = {"format": FORMAT, "experiment": "x", "scale": "small", "plan": {}, "measurement": 1, "rules": {}}
    store.write_json(tmp_path / "whole.json", whole)
    assert read_protocol(tmp_path / "whole.json").experiment == "x"
    store.write_json(tmp_path / "x.json", whole | change)
    with pytest.raises(DamagedError, match=error):
        read_protocol(tmp_path / "x.json")


def test_an_experiment_without_a_name_is_damaged(tmp_path: Path) -> None:
    store.write_json(tmp_path / "experiment.json", {"format": store.FORMATS["experiment"], "experiment": 5})
    store.write_json(tmp_path / "findings.json", [])
    with pytest.raises(DamagedError, match=r"experiment\.json: must be a mapping with the key 'experiment'"):
        read_about(tmp_path)


def test_a_column_that_no_row_has() -> None:
    with pytest.raises(LookupError, match="no row has a value in the column value"):
        Rows([{"seed": 0, "value": None}]).mean()


@pytest.mark.parametrize(
    ("low", "high", "verdict"), [(1.0, 1.2, "reproduced"), (0.8, 1.0, "reproduced"), (1.01, 1.2, "not reproduced")]
)
def test_a_printed_number_at_the_end_of_the_interval_is_in_it(low: float, high: float, verdict: str) -> None:
    assert Printed(bound=1.0, margin=0.2).decide(low, (low + high) / 2, high) == verdict


def test_shares_of_false_discoveries_by_hand() -> None:
    found = false_discovery({"a": 0.01, "b": 0.04, "c": None, "d": 0.03, "e": 0.9})
    assert found == {
        "a": pytest.approx(0.04),
        "b": pytest.approx(0.16 / 3),
        "c": None,
        "d": pytest.approx(0.16 / 3),
        "e": 0.9,
    }
