"""What every decided row of the ledger has, and what none rests on: warm-up, one position, another regime of the data."""

import json
import random
from pathlib import Path
from typing import Any

import pytest

from adversarial_tables import Judged, folders, judged, kept, on_training
from hmmscope import registry
from hmmscope.lab.evidence.claim import Claim
from hmmscope.lab.evidence.rows import Rows, Tables
from hmmscope.lab.evidence.verdicts import DECIDED, DENIED, Above, Always, Below, Within
from hmmscope.system_info import source_digest

ROOT = Path(__file__).parents[2]
LEDGER = json.loads((ROOT / "results" / "ledger" / "ledger.json").read_text())
ROWS = [row for row in LEDGER if row["verdict"] in DECIDED]
#: Columns of what was measured.
MEASURED = ("value", "low", "high", "length", "loss", "training_loss", "excess", "accuracy")


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["claim"])
def test_a_decided_row_has_its_power_its_whole_interval_and_its_sensitivity(row: dict[str, Any]) -> None:
    claim: Claim = registry.lookup("claim", row["claim"])
    rule, low, high = claim.rule, row["low"], row["high"]
    assert rule is not None
    there, denied_falsely, confirmed_falsely = row["power"]
    assert (denied_falsely if row["verdict"] in DENIED else confirmed_falsely) <= 0.05
    assert there >= claim.least_power == 0.5 or row["verdict"] != "reproduced" or isinstance(rule, Always)
    assert isinstance(row["fragile"], list)
    assert low < high
    if row["verdict"] == "reproduced in sign":
        assert rule.bound < low or high < rule.bound
        return
    denied = row["verdict"] != "reproduced"
    match rule:
        case Always():
            assert row["value"] < 1 if denied else low > rule.least
        case Within():
            inside = (rule.bound - rule.margin < low, high < rule.bound + rule.margin)
            assert (
                not any(inside) or (low > rule.bound + rule.margin or high < rule.bound - rule.margin)
                if denied
                else all(inside)
            )
        case Above():
            least = rule.bound + rule.smallest_effect
            assert high < rule.bound + rule.smallest_effect or high == rule.bound if denied else low >= least
        case Below():
            most = rule.bound - rule.smallest_effect
            assert low > rule.bound - rule.smallest_effect or low == rule.bound if denied else high <= most


# ---------------------------------------------------------------------------------------------------------------------
# A gate belongs to the data

HARD, ASKED = ("cyclic-hard", "Cyclic-HARD"), "after which the model must predict the state"
SHOWN = "each HMM was shown"


def _moved(tables: Tables, **fields: Any) -> Tables:
    """What was measured of some rows is other."""

    def own(row: dict[str, Any]) -> bool:
        return all(row.get(name) in values for name, values in fields.items())

    return {
        name: Rows(
            row | {key: row[key] * 1.3 for key in MEASURED if isinstance(row.get(key), float)} if own(row) else row
            for row in rows
        )
        for name, rows in tables.items()
    }


OF_CYCLES = [
    folder for folder in folders() if folder.partition("/")[2] in ("limits-fig2", "limits-fig3", "limits-fig4-cot")
]


@pytest.mark.drawn(1)
@pytest.mark.parametrize("folder", OF_CYCLES)
def test_every_claim_that_rests_on_rarely_asked_states_asks_how_rarely(folder: str) -> None:
    """Whatever it says of them, welcome or not."""
    experiment, tables = kept(folder)
    moved = _moved(tables, task=HARD)
    assert moved != tables
    resting = [
        claim for claim in on_training(experiment.name) if judged(claim, moved).effects != judged(claim, tables).effects
    ]
    gates = {claim.name: [gate.text for gate in claim.evaluate(tables, power=False).gates] for claim in resting}
    assert [name for name, own in gates.items() if not any(ASKED in text for text in own)] == []
    assert gates


@pytest.mark.drawn(2)
@pytest.mark.parametrize("folder", [folder for folder in folders() if "/multitask-fig" in folder])
def test_every_claim_on_prompts_of_a_pool_asks_how_often_its_hmms_were_shown(folder: str) -> None:
    experiment, tables = kept(folder)
    gates = {claim.name: claim.evaluate(tables, power=False).gates for claim in on_training(experiment.name)}
    assert [name for name, own in gates.items() if not any(SHOWN in gate.text for gate in own)] == []
    assert gates


# ---------------------------------------------------------------------------------------------------------------------
# Nothing from the warm-up, nothing from one position

#: Tables that follow a training, and the columns along which.
CURVES, ALONG = ("lengths-by-epoch", "training", "epochs", "curves"), ("share", "epoch", "sequences")
OF_LIMITS = [row for row in ROWS if row["budget"] and row["experiment"].startswith("limits-")]


def _before(row: dict[str, Any]) -> Judged:
    _, tables = kept(row["folder"].partition("results/")[2])
    return judged(registry.lookup("claim", row["claim"]), tables)


@pytest.mark.drawn(3)
@pytest.mark.parametrize("row", OF_LIMITS, ids=lambda row: row["claim"])
def test_no_decided_row_rests_on_the_warm_up(row: dict[str, Any]) -> None:
    """Of losses along a training those of its first tenth may be anything."""
    _, tables = kept(row["folder"].partition("results/")[2])
    along = {
        name: next((one for one in ALONG if rows.values(one)), "") for name, rows in tables.items() if name in CURVES
    }
    changed = dict(tables)
    for name, column in along.items():
        last = 0.1 * max(tables[name].values(column))
        changed |= _moved({name: tables[name]}, **{column: {one for one in tables[name].values(column) if one <= last}})
    if changed == tables:
        pytest.skip("no table follows the training")
    assert judged(registry.lookup("claim", row["claim"]), changed).verdict == _before(row).verdict


@pytest.mark.drawn(3)
@pytest.mark.parametrize("row", OF_LIMITS, ids=lambda row: row["claim"])
def test_no_decided_row_rests_on_one_position(row: dict[str, Any]) -> None:
    """One of the positions of all networks, another whenever the source has changed, may be as the one before it.

    Unless the claim is about it, which its record says.
    """
    if "position" in registry.lookup("claim", row["claim"]).stands:
        pytest.skip("about every position")
    _, tables = kept(row["folder"].partition("results/")[2])
    places = sorted({place for rows in tables.values() for place in rows.values("position") if isinstance(place, int)})
    if len(places) < 5:
        pytest.skip("no positions")
    place = random.Random(source_digest()).choice(places[1:])
    before = places[places.index(place) - 1]
    changed = {
        name: Rows(
            [
                *(one for one in rows if one.get("position") != place),
                *(one | {"position": place} for one in rows if one.get("position") == before),
            ]
        )
        for name, rows in tables.items()
    }
    assert judged(registry.lookup("claim", row["claim"]), changed).verdict == _before(row).verdict
