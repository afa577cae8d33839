"""The ledger: claims by experiment, their verdicts from folders, and what it is written as."""

import json
from pathlib import Path

import pytest

from hmmscope import registry
from hmmscope.claims.old import Claim, Judgement, is_above
from hmmscope.cli import main
from hmmscope.errors import DamagedError, InputError
from hmmscope.evidence.claims import claims_of
from hmmscope.evidence.ledger import ledger
from hmmscope.evidence.pooling import Pooled, by_seed
from hmmscope.experiments.experiment import experiment_named
from hmmscope.storage import store

CLAIMS = registry.in_order("claim")


@pytest.fixture
def rising(monkeypatch: pytest.MonkeyPatch) -> Claim:
    """A claim that only these tests know."""

    def judge(tables: dict) -> Judgement:
        effect = by_seed(tables["curve"], lambda rows: rows[-1]["value"] - rows[0]["value"])
        assert effect is not None
        return is_above(effect, f"It rises by {effect.value:.2f}.", "accuracy")

    made = Claim(
        name="it-rises", source="[Test] Fig. 1", statement="It | rises.", experiment="test-rising", judge=judge
    )
    entries = registry.in_order("claim")
    monkeypatch.setattr(registry, "in_order", lambda kind: [*entries, made])
    return made


def folder(path: Path, values: dict[int, tuple[float, ...]], **about: object) -> Path:
    """The folder of an experiment that ended."""
    (path / "tables").mkdir(parents=True)
    config = {"seeds": list(values), "measurements": {}}
    store.write_json(
        path / "experiment.json", {"experiment": "test-rising", "scale": "small", "config": config} | about
    )
    store.write_json(path / "findings.json", [])
    rows = [{"seed": seed, "x": x, "value": value} for seed, found in values.items() for x, value in enumerate(found)]
    store.write_table(path / "tables" / "curve.jsonl", rows)
    return path


def test_every_claim_belongs_to_an_experiment() -> None:
    for claim in CLAIMS:
        assert experiment_named(claim.experiment).title
        assert claim.statement.endswith((".", "?"))
        assert claim.source
        assert claim in claims_of(claim.experiment)


def test_findings_of_an_experiment_begin_with_its_claims() -> None:
    statements = [claim.statement for claim in CLAIMS]
    assert len(set(statements)) == len(statements)  # the page and the ledger tell them apart


@pytest.mark.parametrize(
    ("values", "verdict"),
    [
        ({0: (0.1, 0.5), 1: (0.1, 0.52), 2: (0.1, 0.49)}, "reproduced"),
        ({0: (0.5, 0.1), 1: (0.52, 0.1), 2: (0.49, 0.1)}, "not reproduced"),
        ({0: (0.1, 0.5), 1: (0.5, 0.1), 2: (0.1, 0.2)}, "inconclusive"),
    ],
)
def test_verdicts(rising: Claim, tmp_path: Path, values: dict, verdict: str) -> None:
    (entry,) = ledger([folder(tmp_path / "run", values, created="2026-11-21")])
    assert entry.finding is not None
    assert (entry.finding.verdict, entry.scale, entry.num_seeds, entry.created) == (verdict, "small", 3, "2026-11-21")


def test_written_ledgers(rising: Claim, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    run = folder(tmp_path / "run", {0: (0.1, 0.5), 1: (0.1, 0.52)}, invalid="a leak")
    assert main(["claims", str(run), "--out", str(tmp_path / "ledger.md")]) == 0
    printed = capsys.readouterr().out
    assert "it-rises" in printed
    assert "INVALID: a leak" in printed
    table = (tmp_path / "ledger.md").read_text()
    assert "It \\| rises." in table
    assert "INVALID (a leak)" in table
    assert main(["claims", str(run), "-q", "--out", str(tmp_path / "ledger.json")]) == 0
    (row,) = json.loads((tmp_path / "ledger.json").read_text())
    assert row["value"] == pytest.approx(0.41)
    assert row["verdict"] == "reproduced"
    assert main(["claims", "--out", str(tmp_path / "ledger.md")]) == 3


def test_listed_claims(rising: Claim, capsys: pytest.CaptureFixture) -> None:
    assert main(["claims"]) == 0
    printed = capsys.readouterr().out
    assert "It | rises." in printed
    assert f"{len(CLAIMS) + 1} claims" in printed


def test_what_the_ledger_refuses(rising: Claim, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="not the folder of a finished experiment"):
        ledger([tmp_path])
    other = folder(tmp_path / "other", {0: (1.0,)}, experiment="test-other")
    with pytest.raises(InputError, match="decides no claim"):
        ledger([other])
    bad = folder(tmp_path / "bad", {0: (1.0,)})
    store.write_table(bad / "tables" / "curve.jsonl", [{"seed": 0, "x": 0}])
    with pytest.raises(DamagedError, match="it-rises"):
        ledger([bad])
    assert is_above(Pooled(1.0, 0.5, 1.5), "", "", above=2.0).verdict == "not reproduced"
