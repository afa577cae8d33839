"""What holds for every claim at once, on the tables that are kept in results/.

- swap: with untrained networks in the place of the trained ones no claim on training is reproduced;
- construction: with a theorem's network there, what the theorem proves of it is reproduced;
- mirror: with every effect turned to the other side, what was reproduced is not;
- seeds in another order change nothing.
"""

import random
from functools import lru_cache

import kept_results
import pytest

from hmmscope import registry
from hmmscope.lab.evidence.claim import Claim, claims_of
from hmmscope.lab.evidence.controls import constructed
from hmmscope.lab.evidence.effects import Effect
from hmmscope.lab.evidence.finding import OURS
from hmmscope.lab.evidence.ledger import read_tables
from hmmscope.lab.evidence.rows import Rows, Tables
from hmmscope.lab.evidence.verdicts import CONFIRMED, DECIDED, DENIED, OF_QUESTIONS, Above, Always, Below
from hmmscope.lab.experiments.experiment import experiment_named

#: Whose sentences claims repeat.
SOURCES = ("[Limits] ", "[MultiTask] ", "[Induction] ", "[Beliefs] ", "[Constrained] ", "[Factored] ")
SOURCES += ("[Quantum] ", "[TaskVectors] ", "[ICL-HMM] ", "[WindTunnels] ")
RESULTS = kept_results.RESULTS / "small"
CLAIMS: list[Claim] = registry.in_order("claim")
FOLDERS = sorted(path.name for path in RESULTS.iterdir())


@lru_cache
def tables_of(folder: str) -> tuple[str, Tables]:
    """Name of the experiment and its tables."""
    about, tables = read_tables(RESULTS / folder)
    return about["experiment"], tables


def judged(folder: str) -> list[tuple[Claim, Tables]]:
    experiment, tables = tables_of(folder)
    return [(claim, tables) for claim in claims_of(experiment)]


def test_every_claim_says_what_is_claimed_and_how_it_is_read() -> None:
    for claim in CLAIMS:
        assert experiment_named(claim.experiment).title, claim.name
        for sentence in (claim.claim_text, claim.operationalization):
            assert sentence.endswith((".", "?")), claim.name
        assert claim.source.startswith(SOURCES) or claim.is_question, claim.name
        assert claim.is_question or claim.source != OURS, claim.name
        assert not (claim.proved and claim.is_question), claim.name
        assert claim in claims_of(claim.experiment), claim.name
    assert len({claim.claim_text for claim in CLAIMS}) == len(CLAIMS)  # the page and the ledger tell them apart


def test_every_experiment_decides_something() -> None:
    assert [name for name in registry.entries("experiment") if not claims_of(name)] == []


def test_every_experiment_of_a_paper_has_results() -> None:
    kept = {tables_of(folder)[0] for folder in FOLDERS}
    demo, fetched = "quickstart", "pretrained"  # whose model is not here: a command fetches it first
    only_at_medium = {"multitask-own-process", "limits-hard-rare"}
    assert {claim.experiment for claim in CLAIMS} - kept <= {demo, fetched, *only_at_medium}


@pytest.mark.drawn(16)
@pytest.mark.parametrize("folder", FOLDERS)
def test_findings_are_whole(folder: str) -> None:
    for claim, tables in judged(folder):
        finding = claim.evaluate(tables)
        assert finding.text.endswith((".", ")", "?")), claim.name
        assert (finding.verdict in OF_QUESTIONS) == claim.is_question, claim.name
        if finding.verdict in DECIDED:
            assert finding.low is not None, claim.name
            assert finding.high is not None, claim.name
            assert finding.low < finding.high, claim.name
            assert all(gate.is_open for gate in finding.gates), claim.name
        if finding.verdict == "not tested":
            assert finding.text.startswith("Undecided: "), claim.name


@pytest.mark.parametrize("folder", FOLDERS)
def test_swap(folder: str) -> None:
    """Networks that were not trained say nothing of what training does."""
    experiment, tables = tables_of(folder)
    about_training = [claim for claim in claims_of(experiment) if claim.about == "training" and not claim.is_question]
    if not about_training:
        return
    swapped = experiment_named(experiment).without_training(tables)
    assert swapped is not None, f"{experiment} has no control of its claims on training"
    passed = [claim.name for claim in about_training if claim.evaluate(swapped).verdict in DECIDED]
    assert passed == []


@pytest.mark.parametrize("folder", FOLDERS)
def test_construction(folder: str) -> None:
    """What a theorem proves of its network holds of the rows of that network, though few instances may show too little."""
    experiment, tables = tables_of(folder)
    for claim in claims_of(experiment):
        if claim.proved:
            rows = constructed(tables) or tables  # a table without trained rows is of the network alone
            found = claim.evaluate(rows)
            closed = [gate.name for gate in found.gates if not gate.is_open]
            if closed == ["power"] or found.verdict == "reproduced in sign":  # few instances have low power
                effects = claim.measured(rows).by_name().values()
                assert {claim.rule.verdict(effect) for effect in effects} == {"reproduced"}, claim.name  # type: ignore[union-attr]
            else:
                assert found.verdict == "reproduced", claim.name


@pytest.mark.drawn(8)
@pytest.mark.parametrize("folder", FOLDERS)
def test_mirror(folder: str) -> None:
    """Reproduced turns into not reproduced, and back unless the effect was merely too small to matter.

    Or low power alone closed it, which closes no denial.
    """
    for claim, tables in judged(folder):
        if not isinstance(claim.rule, Above | Below) or isinstance(claim.rule, Always):
            continue
        found, mirrored = claim.evaluate(tables), claim.evaluate(tables, mirrored=True)
        verdict, turned = found.verdict, mirrored.verdict
        if [gate.name for gate in found.gates if not gate.is_open] == ["power"] and verdict == "not tested":
            continue
        if verdict in DENIED and turned in CONFIRMED:
            continue
        if verdict == "reproduced":
            assert turned in ("not reproduced", "not at this budget", "not tested"), claim.name
        elif verdict in ("inconclusive", "not tested"):
            assert "reproduced" not in turned.split(" in ") or verdict == "inconclusive", claim.name


@pytest.mark.drawn(8)
@pytest.mark.parametrize("folder", FOLDERS)
def test_order_of_seeds_and_rows_changes_nothing(folder: str) -> None:
    for claim, tables in judged(folder):
        found = claim.evaluate(tables)
        again = claim.evaluate({name: _shuffled_seeds(rows) for name, rows in tables.items()})
        assert again.verdict == found.verdict, claim.name
        for one, other in ((found.value, again.value), (found.low, again.low), (found.high, again.high)):
            assert one == other or one == pytest.approx(other, rel=1e-9, abs=1e-12), claim.name


def _shuffled_seeds(rows: Rows) -> Rows:
    """The rows of the seeds in another order."""
    seeds = rows.seeds()
    random.Random(1).shuffle(seeds)
    return Rows(row for seed in seeds for row in rows if row.get("seed") == seed)


def test_the_swap_is_no_empty_test() -> None:
    """A claim that asks only whether a curve rises, trained or not, would be caught."""
    caught = []
    for folder in FOLDERS:
        experiment, tables = tables_of(folder)
        swapped = experiment_named(experiment).without_training(tables)
        if swapped is not None:
            caught.append(swapped != tables)
    assert caught
    assert all(caught)
    assert Above().verdict(Effect(value=1.0, low=0.5, high=1.5, num_seeds=3)) == "reproduced"
