"""A rule is known by what it does: its acts on frozen tables are those of its version, and what changes them is noticed."""

from dataclasses import replace

import pytest

from golden_verdicts import act, altered, altered_probe, complaint, complaints, entry, experiments, probe, read
from hmmscope import registry
from hmmscope.lab.evidence.claim import Claim
from hmmscope.lab.evidence.records import RuleParameters
from hmmscope.lab.evidence.verdicts import Above
from reach import numbers_of


@pytest.mark.drawn(8)
@pytest.mark.parametrize("experiment", experiments())
def test_rules_do_what_their_versions_did(experiment: str) -> None:
    """If this fails: raise the versions, or undo the change; see the head of golden_verdicts.py."""
    assert complaints(experiment) == {}


def test_every_rule_has_acts() -> None:
    kept = {name for experiment in experiments() for name in read("golden_verdicts", experiment)}
    assert kept == set(registry.entries("claim"))


def test_acts_are_no_errors() -> None:
    """On the tables as they are every rule comes to something."""
    for experiment in experiments():
        for name, kept in read("golden_verdicts", experiment).items():
            assert "raises" not in kept["acts"]["0"], name
            assert sum("raises" in one for one in kept["acts"].values()) < len(kept["acts"]) * 2 / 3, name


# ---------------------------------------------------------------------------------------------------------------------
# When a version has to be raised

GROWS = "limits-fit-length-grows"


@pytest.fixture(scope="module")
def grows() -> tuple[Claim, dict, dict]:
    """A claim with two tables of its own: itself, what is kept of it, its acts."""
    claim: Claim = registry.lookup("claim", GROWS)
    tables, _ = probe(claim.experiment)
    now = {str(number): act(claim, altered(tables, number)) for number in (0, 7)}
    return claim, {"version": claim.version, "entry": entry(claim), "reaches": numbers_of(claim), "acts": now}, now


def test_a_version_is_raised_when_and_only_when_acts_change(grows: tuple[Claim, dict, dict]) -> None:
    claim, kept, now = grows
    assert complaint(claim, kept, now) is None
    raised = replace(claim, version=claim.version + 1)
    said = complaint(raised, kept, now)
    assert said.endswith("do not raise the version")
    for changed in (replace(claim, rule=Above(0, smallest_effect=0.1001)), replace(claim, level=0.051)):
        tables = probe(claim.experiment)[0]
        other = {str(number): act(changed, altered(tables, number)) for number in (0, 7)}
        said = complaint(changed, kept, other)
        assert said.endswith("raise the version")
        assert "do not" not in said
        said = complaint(replace(changed, version=claim.version + 1), kept, other)
        assert said.endswith("keep what it does")
    said = complaint(claim, {**kept, "reaches": [0.123, *kept["reaches"]]}, now)
    assert said is not None
    assert "reaches other numbers ([0.123] gone, [] new), which no act shows" in said
    assert complaint(claim, kept, {**now, "9": {}}) == f"{GROWS}: other alterations are looked at; keep what it does"
    assert complaint(claim, None, now) == f"{GROWS}: is new; keep what it does"


def test_words_are_no_part_of_a_rule_and_numbers_may_move_into_its_record(grows: tuple[Claim, dict, dict]) -> None:
    claim, kept, now = grows
    assert complaint(replace(claim, claim_text="Otherwise said.", operationalization="As well."), kept, now) is None
    assert complaint(replace(claim, parameters=RuleParameters(claim.parameters, one_more=1.0)), kept, now) is None
    before = {**kept, "entry": {**kept["entry"], "numbers": {**claim.parameters, "one_more": 1.0}}}
    assert complaint(claim, before, now) is not None  # it is gone
    assert complaint(replace(claim, parameters=RuleParameters(claim.parameters, one_more=2.0)), before, now) is not None


def test_numbers_are_compared_within_a_billionth(grows: tuple[Claim, dict, dict]) -> None:
    claim, kept, now = grows

    def with_factor(factor: float) -> dict:
        first, *others = now["0"]["decides"]
        return {**now, "0": {**now["0"], "decides": [first * factor, *others]}}

    assert complaint(claim, kept, with_factor(1 + 1e-10)) is None
    assert complaint(claim, kept, with_factor(1 + 1e-8)) is not None


def test_alterations_are_the_same_everywhere() -> None:
    tables, _ = probe("limits-fig3")
    assert altered(tables, 0) == tables
    assert altered(tables, 3) == altered(tables, 3) != tables
    assert len({str(altered(tables, number)) for number in range(8)}) == 8
    assert altered_probe("limits-fig3", 3) == altered(tables, 3)
