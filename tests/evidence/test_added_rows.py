"""Rows that need no training are added to kept tables: on the same samples, and gains over counting by means."""

from dataclasses import replace
from pathlib import Path
from types import ModuleType

import kept_results
import pytest

import script_modules
from hmmscope.lab.evidence.rows import Rows
from hmmscope.lab.experiments.planning import ExperimentPlan
from hmmscope.storage import packed, store

ROOT = Path(__file__).parents[2]
COT = kept_results.RESULTS / "small" / "limits-fig4-cot"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return script_modules.script("add_rows")


def test_the_kept_constant_answer_is_what_is_measured_again(script: ModuleType) -> None:
    about, index = store.read_json(COT / "experiment.json"), store.read_table(COT / packed.INDEX)
    part = packed.by_part(index, packed.read_tables(COT), COT)[0]
    assert index[0]["added"]["constant"] == 2
    plan = ExperimentPlan.from_data(about["experiment"], about["scale"], about["config"])
    plan = replace(plan, configs={label: plan.configs[label] for label in ("cyclic-det, without",)})
    kept = Rows(part["errors"]).where(predictor="constant", task="Cyclic-DET", block_length=0)
    without = {"errors": [row for row in part["errors"] if row["predictor"] != "constant"]}
    again = Rows(script.constant_rows(plan, index[0]["seed"], without)["errors"]).where(predictor="constant")
    assert script.same(kept, again, "position")
    other = [row | {"value": row["value"] * 1.001} for row in without["errors"]]
    with pytest.raises(ValueError, match="the samples differ from the stored ones"):
        script.constant_rows(plan, index[0]["seed"], {"errors": other})


@pytest.mark.slow
@pytest.mark.parametrize("name", ["multitask-heads", "multitask-positions", "multitask-rank", "in-context"])
def test_kept_counting_is_what_counts_at_its_best_on_the_same_prompts(script: ModuleType, name: str) -> None:
    folder = kept_results.RESULTS / "small" / name
    about, index = store.read_json(folder / "experiment.json"), store.read_table(folder / packed.INDEX)
    part = packed.by_part(index, packed.read_tables(folder), folder)[0]
    plan = ExperimentPlan.from_data(about["experiment"], about["scale"], about["config"])
    plan = replace(plan, configs={label: plan.configs[label] for label in list(plan.configs)[:1]})
    change, what = script.ALONE[name]
    assert what in index[0]["added"]
    again = change(plan, index[0]["seed"], part)
    for table, rows in again.items():
        axis = next(key for key in ("value", "excess") if key in rows[0])
        assert [row[axis] for row in rows] == pytest.approx([row[axis] for row in part[table]], rel=1e-6), table
    column = "predictor" if "predictor" in part[next(iter(again))][0] else "network"
    first = next(iter(again))
    assert {"order-0", "context-tree"} <= {row[column] for row in again[first]}
    other = {**part, first: [row | {"value": row["value"] * 1.001} for row in part[first]]}
    with pytest.raises(ValueError, match="differ from the stored ones"):
        change(plan, index[0]["seed"], other)


def test_a_gain_is_over_the_best_that_counts_with_the_interval_of_unpaired_means(script: ModuleType) -> None:
    def rows(predictor: str, metric: str, *values: float) -> Rows:
        ends = lambda value: {"low": value - 0.3, "high": value + 0.3}  # noqa: E731
        about = {"predictor": predictor, "metric": metric, "samples": 8}
        return Rows({"x": x, "value": value, **about, **ends(value)} for x, value in enumerate(values))

    right = (
        rows("model", "accuracy", 0.8, 0.6),
        Rows([*rows("order-1", "accuracy", 0.3, 0.5), *rows("context-tree", "accuracy", 0.6, 0.4)]),
    )
    found = script.gain(*right, 1)
    assert found["value"] == pytest.approx(0.2)
    assert found["high"] - found["value"] == pytest.approx(0.3 * 2**0.5)
    lost = (
        rows("model", "loss", 1.0, 1.0),
        Rows([*rows("order-1", "loss", 1.3, 1.5), *rows("context-tree", "loss", 1.2, 1.2)]),
    )
    assert script.gain(*lost, -1)["value"] == pytest.approx(0.2)


def test_other_rows_stand_where_the_old_ones_stood(script: ModuleType) -> None:
    rows = Rows({"name": name} for name in "abba")
    assert [row["name"] for row in script.replaced(rows, lambda row: row["name"] == "b", [{"name": "c"}])] == [
        "a",
        "c",
        "a",
    ]
