"""The setting of a claim on trained models: what is recorded, and which gates it opens."""

from pathlib import Path
from typing import Any

import pytest

from hmmscope.lab.evidence.rows import Rows
from hmmscope.lab.evidence.verdicts import Gate
from hmmscope.lab.experiments.seeded import last_quarter
from hmmscope.runs.config import config_from_data
from hmmscope.runs.training import train
from hmmscope_papers.multitask.training_setting import (
    beyond_counting,
    few_prompts,
    gates,
    gates_of_the_hmm,
    in_regime,
    large_pool,
    not_from_counts,
    of_cycles,
    right_beyond_counting,
    setting_rows,
)
from hmmscope_studies.beyond_multitask.studies import prompt_config
from multitask_tables import CLOSED, setting


def test_the_last_quarter_is_from_three_quarters_of_the_steps_on() -> None:
    records = [{"step": step, "loss": 9.0, "evaluation_loss": 10.0 - step} for step in (25, 50, 75, 100)]
    records.append({"step": 80, "loss": 9.0})
    assert last_quarter(records) == pytest.approx(-25)
    assert last_quarter([row | {"evaluation_loss": None} for row in records]) is None
    assert last_quarter(records[-2:-1]) is None  # nothing before the end
    assert last_quarter([]) is None


@pytest.mark.parametrize(
    "row, is_open",
    [
        ({"last_quarter": 0.002, "excess": 0.5}, True),
        ({"last_quarter": -0.02, "excess": 0.5}, False),
        ({"last_quarter": None, "excess": 0.5}, False),
        ({"last_quarter": None, "excess": 0.002}, True),  # so near to the floor that it could not change by more
        ({"excess": 0.002}, True),
        ({"last_quarter": 0.5, "excess": -0.4}, False),  # below the floor is no convergence
        ({}, False),
    ],
)
def test_flat(row: dict[str, Any], is_open: bool) -> None:
    runs = Rows([{"label": "a", "seed": 0} | row, {"label": "b", "seed": 0, "last_quarter": 0.0}])
    assert Gate.flat({"runs": runs}).is_open is is_open
    assert Gate.flat({"runs": runs}, label="b").is_open
    assert not Gate.flat({}).is_open


def test_equal_tokens() -> None:
    rows = [{"label": label, "seed": seed, "tokens": 100} for label in ("a", "b") for seed in (0, 1)]
    assert Gate.equal_tokens({"runs": Rows(rows)}).is_open
    assert not Gate.equal_tokens({"runs": Rows([*rows, {"label": "c", "seed": 0, "tokens": 200}])}).is_open
    assert not Gate.equal_tokens({}).is_open


def test_all_gates_are_open_in_the_papers_regime() -> None:
    of_accuracy, of_the_hmm = gates(setting()), gates_of_the_hmm(setting())
    assert [gate.name for gate in of_accuracy] == ["regime", "regime", "learned", "learned", "converged"]
    assert [gate.name for gate in of_the_hmm] == ["regime", *(gate.name for gate in of_accuracy)]
    assert all(gate.is_open for gate in of_the_hmm)


def test_hmms_that_symbol_counts_name_close_what_is_said_of_their_recognition_alone() -> None:
    """Those of the paper's own family are: of 1,024, 0.59 to 0.92 after 256 symbols, at every concentration tried."""
    named = setting(counted=0.6)
    assert all(gate.is_open for gate in gates(named))
    assert [gate.is_open for gate in gates_of_the_hmm(named)].count(False) == 1


@pytest.mark.parametrize("changed, word", CLOSED)
def test_each_fault_closes_one_gate(changed: dict[str, float], word: str) -> None:
    closed = [gate for gate in gates_of_the_hmm(setting(**changed)) if not gate.is_open]
    assert len(closed) == 1
    assert word in closed[0].text


def test_what_was_not_recorded_closes_its_gate() -> None:
    for gate in (few_prompts({}), large_pool({}), not_from_counts({}), beyond_counting({}), right_beyond_counting({})):
        assert not gate.is_open
        assert "not recorded" in gate.text


def test_chance_counts_for_symbol_counts() -> None:
    """Of two HMMs half are named by chance: 0.6 says little, 0.7 more than a quarter of the way."""
    for value, is_open in ((0.6, True), (0.7, False)):
        row = {"quantity": "component from symbol counts", "value": value, "chance": 0.5}
        rows = Rows({"seed": seed} | row for seed in (0, 1))
        assert not_from_counts({"setting": rows}).is_open is is_open


def test_the_setting_of_a_run(tmp_path: Path) -> None:
    run = train(config_from_data(prompt_config("smoke")), tmp_path / "run")
    rows = {row["quantity"]: row for row in setting_rows(run)}
    assert rows["prompts per HMM"]["value"] == 10 * 8 / 4
    assert rows["HMMs in the pool"]["value"] == 4
    counted = rows["component from symbol counts"]
    assert counted["chance"] <= counted["value"] <= 1
    assert rows["gain over the best n-gram"]["value"] < 0  # ten steps do not beat counting
    assert rows["gain over the best n-gram"]["low"] < rows["gain over the best n-gram"]["high"]
    twins = {name: rows[f"{name} over the best n-gram, untrained twins"] for name in ("gain", "accuracy")}
    assert all(row["value"] < 0 and row["samples"] == 10 * 8 for row in twins.values())


def test_claims_are_about_the_cycles_that_separate() -> None:
    """Of 16/8 beside 12/6 nothing is judged, of 16/8 alone all is."""
    rows = [
        row
        | {"cycles": cycles, "label": f"{cycles}, K = {k}"}
        | ({"value": 512 / k} if "prompts" in row["quantity"] else {})
        for row in setting()["setting"]
        for cycles, k in (("16/8", 32), ("12/6", 16), ("12/6", 64))
    ]
    tables = {"setting": Rows(rows)}
    assert of_cycles(tables)["setting"].values("label") == ["12/6, K = 16", "12/6, K = 64"]
    assert in_regime(tables)["setting"].values("label") == ["12/6, K = 16"]
    alone = {"setting": tables["setting"].where(cycles="16/8")}
    assert in_regime(alone) == alone
