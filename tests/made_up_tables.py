"""Fixtures of tests on tables that are made up, for the folders of experiments of every distribution."""

import pytest

from hmmscope.lab.evidence.verdicts import Gate

#: Those that make tables as an experiment would have them.
WITH_POWER = ("test_limits_law",)


@pytest.fixture(autouse=True)
def whatever_its_power(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """What closes a row for its power is tested in `tests/evidence/test_power.py`."""
    if request.module.__name__.rpartition(".")[2] not in WITH_POWER:
        able = Gate("power", True, "not asked of tables that are made up")
        monkeypatch.setattr(
            "hmmscope.lab.evidence.cases.powered", lambda rule, effects, verdict, **named: (able, None, verdict)
        )


@pytest.fixture(autouse=True)
def whichever_seeds_are_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seeds of tables that are made up may have the same rows; that such are refused is tested in test_error_rates.py."""
    monkeypatch.setattr("hmmscope.lab.evidence.claim.identical_seeds", lambda tables: None)
