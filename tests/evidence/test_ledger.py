"""The ledger: claims by experiment, their verdicts from folders, and what it is written as."""

import hashlib
import json
import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import kept_results
import pytest

from hmmscope import registry
from hmmscope.errors import DamagedError, InputError
from hmmscope.lab.cli import main
from hmmscope.lab.evidence.claim import Claim, Measurement, claim
from hmmscope.lab.evidence.effects import Effect
from hmmscope.lab.evidence.ledger import as_text, ledger, recorded_claim, rules_of
from hmmscope.lab.evidence.protocol import FORMAT, entry_of
from hmmscope.lab.evidence.records import ClaimRecord, RuleParameters
from hmmscope.lab.evidence.rows import Tables
from hmmscope.lab.evidence.verdicts import Above, Gate
from hmmscope.lab.experiments.derived_findings import derive_again
from hmmscope.lab.experiments.experiment import Experiment
from hmmscope.storage import seals, store

ROOT = Path(__file__).parents[2]


@pytest.fixture
def rising(monkeypatch: pytest.MonkeyPatch) -> Claim:
    """A claim that only these tests know."""
    monkeypatch.setitem(registry._found, "claim", dict(registry.entries("claim")))

    @claim(
        ClaimRecord(
            name="it-rises",
            experiment="test-rising",
            source="[Test] Fig. 1",
            claim_text="It | rises.",
            operationalization="The last value less the first is above zero.",
            rule=Above(smallest_effect=0.1),
            about="process",
        )
    )
    def measure(tables: Tables) -> Measurement:
        rises = tables["curve"].per_seed(lambda rows: rows[-1]["value"] - rows[0]["value"])
        effect = Effect.pooled(list(rises.values()), "accuracy")
        return Measurement(
            effect,
            f"It rises by {effect.value:.2f}.",
            gates=[Gate.headroom(1 - tables["curve"][0]["value"], 0.2, "it")],
        )

    return measure


def folder(path: Path, values: dict[int, tuple[float, ...]], **about: object) -> Path:
    """The folder of an experiment that ended."""
    (path / "tables").mkdir(parents=True)
    config = {"seeds": list(values), "measurements": {}}
    about = {"experiment": "test-rising", "scale": "small", "config": config} | about
    store.write_json(path / "experiment.json", about)
    store.write_json(path / "findings.json", [])
    rows = [{"seed": seed, "x": x, "value": value} for seed, found in values.items() for x, value in enumerate(found)]
    store.write_table(path / "tables" / "curve.jsonl", rows)
    return path


RISES = {0: (0.1, 0.5), 1: (0.1, 0.52), 2: (0.1, 0.49)}


@pytest.mark.parametrize(
    ("values", "verdict"),
    [
        (RISES, "reproduced"),
        ({0: (0.5, 0.1), 1: (0.52, 0.1), 2: (0.49, 0.1)}, "not reproduced"),
        ({0: (0.1, 0.15), 1: (0.1, 0.16), 2: (0.1, 0.15)}, "not reproduced"),  # surely less than would matter
        ({0: (0.1, 0.5), 1: (0.5, 0.1), 2: (0.1, 0.2)}, "inconclusive"),
        ({0: (0.1, 0.5)}, "inconclusive"),
        ({0: (0.1, 0.5), 1: (0.1, 0.5)}, "inconclusive"),  # no spread, no interval
        ({0: (0.9, 0.5), 1: (0.9, 0.52)}, "not tested"),  # no room
    ],
)
def test_verdicts(rising: Claim, tmp_path: Path, values: dict, verdict: str) -> None:
    (entry,) = ledger([folder(tmp_path / "run", values, created="2026-11-21")])
    assert (entry.finding.verdict, entry.scale, entry.seeds) == (verdict, "small", len(values))
    assert entry.created == "2026-11-21"


def test_what_an_open_claim_says(rising: Claim, tmp_path: Path) -> None:
    (open_,) = ledger([folder(tmp_path / "open", {0: (0.1, 0.5), 1: (0.1, 0.2), 2: (0.1, 0.25)})])
    assert open_.finding.seeds_needed > 3
    (closed,) = ledger([folder(tmp_path / "closed", {0: (0.9, 0.5), 1: (0.9, 0.52)})])
    assert closed.finding.text.startswith("Undecided: it allows an effect of at most 0.1 (required: 0.2). ")


def test_the_smallest_scale_has_no_verdicts(rising: Claim, tmp_path: Path) -> None:
    """What was hardly trained neither bears a claim out nor refutes it, and no number of it is kept."""
    (entry,) = ledger([folder(tmp_path / "smoke", RISES, scale="smoke")])
    found = entry.finding.to_data()
    assert (found["verdict"], found["text"][:22]) == ("not tested", "Undecided: scale smoke")
    assert not {"value", "low", "high", "p", "q", "gates"} & found.keys()
    assert found["rule_version"] == rising.version
    printed = "\n".join(as_text([entry]))
    assert "undecided, smoke, 3 seeds" in printed
    assert "0.4" not in printed


LATE = "the decision rule was written after the data were seen"


def test_marks_of_before_protocols_say_which_rules_were_fixed(
    rising: Claim, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def exploratory(name: str, known: Claim, **about: object) -> str | None:
        monkeypatch.setitem(registry._found["claim"], "it-rises", known)
        (entry,) = ledger([folder(tmp_path / name, RISES, **about)])
        return entry.exploratory

    older, known = {"it-rises": "0123456789ab"}, replace(rising, once={"0123456789ab": 1})
    assert exploratory("small", known, rules=older) == "scale small"
    assert exploratory("known", known, scale="medium", rules=older) is None
    assert exploratory("none", known, scale="medium") == LATE
    assert exploratory("other", known, scale="medium", rules={"another": "0123456789ab"}) == LATE
    assert exploratory("unknown", rising, scale="medium", rules=older) == LATE
    assert exploratory("changed", replace(known, version=2), scale="medium", rules=older) == LATE
    monkeypatch.setitem(registry._found["claim"], "it-rises", known)
    now = rules_of("test-rising")
    assert now == {"it-rises": 1}  # what a run notes of itself is no protocol
    assert (
        exploratory("noted", known, scale="medium", rules=now)
        == "no protocol fixed the decision rule before the data were collected"
    )


def with_protocol(path: Path, claim: Claim, **changes: object) -> Path:
    """The folder of an experiment whose two parts were measured by a protocol."""
    rules = {claim.name: entry_of(claim)}
    protocol: dict[str, object] = {"format": FORMAT, "experiment": "test-rising", "scale": "medium", "plan": {}}
    protocol |= {"measurement": 1, "rules": rules}
    data = store.json_bytes(protocol, "protocol")
    digest = hashlib.sha256(data).hexdigest()
    made = folder(path, RISES, scale="medium", protocol=digest, begun="2026-11-21T00:00:00+00:00")
    (made / "protocol.json").write_bytes(data)
    part = {"seed": 0, "part": "all", "measurement": 1, "protocol": digest, "rows": {"curve": 2}}
    store.write_table(made / "parts.jsonl", [part | {"seed": seed} | changes.get(str(seed), {}) for seed in RISES])
    return made


def test_a_verdict_confirms_if_its_data_carry_a_protocol_that_names_its_rule_as_it_is_now(
    rising: Claim, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def exploratory(name: str, now: Claim, **changes: object) -> str | None:
        monkeypatch.setitem(registry._found["claim"], "it-rises", now)
        (entry,) = ledger([with_protocol(tmp_path / name, rising, **changes)])
        return entry.exploratory

    assert exploratory("same", rising) is None
    assert exploratory("said", replace(rising, claim_text="It climbs.")) is None
    given = replace(rising, parameters=RuleParameters(first=0), measure=lambda tables, numbers: rising.measure(tables))
    assert exploratory("moved", given) is None  # the number stood in the function before
    said = "the decision rule changed after the protocol was fixed (from version 1 to 2)"
    assert exploratory("version", replace(rising, version=2)) == said
    assert exploratory("number", replace(rising, rule=Above(smallest_effect=0.2))) == (
        "the protocol has matters = 0.1; the current value is 0.2"
    )
    assert exploratory("level", replace(rising, level=0.1)) == "the protocol has level = 0.05; the current value is 0.1"
    assert exploratory("name", replace(rising, name="it-climbs")) == "the protocol does not contain the decision rule"
    other = "1 of 3 stored parts come from other code or another protocol"
    assert exploratory("part", rising, **{"1": {"protocol": None}}) == other
    assert exploratory("measured", rising, **{"2": {"measurement": 2}}) == other
    made = with_protocol(tmp_path / "altered", rising)
    (made / "protocol.json").write_bytes((made / "protocol.json").read_bytes().replace(b"0.1", b"0.2"))
    with pytest.raises(
        DamagedError, match=r"protocol\.json: differs from the protocol with which the experiment started"
    ):
        ledger([made])


def test_the_audit_asks_the_history_when_a_protocol_was_committed(
    rising: Claim, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    made = with_protocol(tmp_path / "repository" / "results", rising)
    experiment = type("Rising", (Experiment,), {"measure": None, "figures": None})
    monkeypatch.setitem(registry._found["experiment"], "test-rising", experiment)
    for name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"):
        monkeypatch.delenv(name, raising=False)

    def audit() -> tuple[int, str]:
        code = main(["claims", "--audit", str(made)])
        printed = capsys.readouterr()
        return code, printed.out + printed.err

    def commit(when: str) -> None:
        who = {f"GIT_{role}_{what}": "a@b.c" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
        at = {"GIT_AUTHOR_DATE": when, "GIT_COMMITTER_DATE": when, "GIT_CONFIG_GLOBAL": os.devnull}
        for command in (["init", "-q"], ["add", "fixed.json"], ["commit", "-qm", "Fixed"]):
            subprocess.run(["git", *command], cwd=repository, check=True, env={**os.environ, **who, **at})

    repository = tmp_path / "repository"
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    assert "but its git history is unavailable" in audit()[1]
    shutil.copyfile(made / "protocol.json", repository / "fixed.json")
    commit("2026-11-21T00:00:01+00:00")
    code, said = audit()
    assert code == 4
    assert "committed 2026-11-21T00:00:01+00:00, but data collection had already begun" in said
    shutil.rmtree(repository / ".git")
    commit("2026-11-20T23:59:59+00:00")
    code, said = audit()
    assert code == 0
    assert "1 verdicts: 1 confirmatory, 0 exploratory" in said
    assert ", committed 2026-11-20: it-rises" in said
    assert "3 measurements: 3 from the present version of the measuring code" in said
    (repository / "fixed.json").write_text("Another one.")
    shutil.rmtree(repository / ".git")
    commit("2026-11-20T23:59:59+00:00")
    code, said = audit()
    assert code == 4
    assert "in no commit" in said


def test_an_experiment_that_goes_on_is_judged_by_whole_seeds_and_after_finished_ones(
    rising: Claim, tmp_path: Path
) -> None:
    small = folder(tmp_path / "small", RISES)
    seeds = list(RISES)
    begun = folder(tmp_path / "medium", RISES, scale="medium", whole_seeds=seeds[:2])
    assert [entry.scale for entry in ledger([small, begun])] == ["small"]
    (alone,) = ledger([begun])
    assert alone.exploratory == f"only 2 of {len(seeds)} seeds are complete"
    assert alone.finding.num_seeds == 2


def test_largest_scale_counts_and_q_is_over_the_ledger(rising: Claim, tmp_path: Path) -> None:
    small = folder(tmp_path / "small", RISES)
    medium = folder(tmp_path / "medium", {0: (0.5, 0.1), 1: (0.5, 0.12), 2: (0.5, 0.1)}, scale="medium")
    (entry,) = ledger([small, medium])
    assert (entry.folder, entry.finding.verdict) == ("medium", "not reproduced")  # type: ignore[union-attr]
    again = folder(tmp_path / "again", {0: (0.1, 0.5), 1: (0.1, 0.6), 2: (0.1, 0.55)})
    first, second = (found.finding for found in ledger([small, again]))
    assert first.p < second.p  # type: ignore[operator]
    assert first.q == pytest.approx(min(2 * first.p, second.p))  # type: ignore[operator]
    assert second.q == pytest.approx(second.p)
    assert [line.rpartition(", in ")[2] for line in as_text(ledger([small, again])) if "->" in line] == [
        "small",
        "again",
    ]
    assert ", in " not in "\n".join(as_text(ledger([small])))
    newer = folder(tmp_path / "newer", RISES, format="hmmscope-experiment/2")
    with pytest.raises(DamagedError, match="if newer, upgrade hmmscope"):
        ledger([newer])
    twin = folder(tmp_path / "other" / "small", RISES)
    assert [entry.folder for entry in ledger([small, twin])] == [str(small), str(twin)]


def test_one_seed_at_a_larger_scale_counts_only_where_there_are_not_several(rising: Claim, tmp_path: Path) -> None:
    several = folder(tmp_path / "small", RISES)
    one = folder(tmp_path / "paper", {0: (0.5, 0.1)}, scale="paper")
    assert [entry.scale for entry in ledger([several, one])] == ["small"]
    assert [entry.scale for entry in ledger([one])] == ["paper"]


def test_verdicts_that_this_code_sealed_are_taken_as_they_are(rising: Claim, tmp_path: Path) -> None:
    run = folder(tmp_path / "run", RISES)
    (judged,) = ledger([run])
    store.write_json(run / "findings.json", [judged.finding.to_data() | {"text": "As sealed."}])
    seals.write_seal(run, "experiment", {"measured_by": {"source_sha256": "this"}})
    (taken,) = ledger([run], [recorded_claim(rising)], "this")
    assert (taken.finding.text, taken.sealed) == ("As sealed.", True)
    assert taken.row() | {"sealed": False} == judged.row() | {"text": "As sealed."}
    for known, source in (
        ([recorded_claim(rising)], "other"),
        ([], "this"),
        ([replace(recorded_claim(rising), name="more")], "this"),
    ):
        (again,) = ledger([run], known, source)
        assert again.finding.text == judged.finding.text
    store.write_json(run / "findings.json", [judged.finding.to_data() | {"verdict": "not reproduced"}])
    with pytest.raises(DamagedError, match=r"findings\.json"):
        ledger([run], [recorded_claim(rising)], "this")


def test_written_ledgers(rising: Claim, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    run = folder(tmp_path / "run", {0: (0.1, 0.5), 1: (0.1, 0.52), 2: (0.1, 0.51)}, invalid="a leak")
    assert main(["claims", str(run), "--out", str(tmp_path / "ledger.md")]) == 0
    printed = capsys.readouterr().out
    assert "it-rises" in printed
    assert "INVALID (a leak)" in printed
    table = (tmp_path / "ledger.md").read_text()
    assert "It \\| rises." in table
    assert "INVALID (a leak)" in table
    assert main(["claims", str(run), "-q", "--out", str(tmp_path / "ledger.json")]) == 0
    (row,) = json.loads((tmp_path / "ledger.json").read_text())
    assert row["value"] == pytest.approx(0.41)
    assert (row["verdict"], row["exploratory"], row["seeds"]) == ("reproduced", "scale small", 3)
    assert row["p"] == row["q"] < 0.05
    room, power = row["gates"]
    assert room == {"name": "room", "is_open": True, "text": "it allows an effect of at most 0.9 (required: 0.2)"}
    assert (power["name"], power["is_open"]) == ("power", True)
    assert power["text"].startswith("the rule confirms the expected effect in 0.9")
    assert main(["claims", str(run), "-q", "--out", str(tmp_path / "ledger.html")]) == 0
    page = (tmp_path / "ledger.html").read_text()
    assert "It | rises." in page
    assert "a leak" in page
    assert main(["claims", "--out", str(tmp_path / "ledger.md")]) == 3


def test_a_reader_can_ask_for_the_power_of_a_rule_and_for_what_turns_it(
    rising: Claim, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    run = folder(tmp_path / "run", {0: (0.1, 0.5), 1: (0.1, 0.52), 2: (0.1, 0.49)})
    assert main(["claims", str(run)]) == 0
    assert "power" not in capsys.readouterr().out
    assert main(["claims", "--sensitivity", str(run)]) == 0
    printed = capsys.readouterr().out
    assert "     power 0.88; false denials 0.00, false confirmations 0.00\n" in printed
    assert "0 fragile" in printed
    weak = folder(tmp_path / "weak", {0: (0.1, 0.5), 1: (0.1, 0.9), 2: (0.1, 0.6)})
    assert main(["claims", "--sensitivity", str(weak)]) == 0
    printed = capsys.readouterr().out
    assert "-> undecided, 0.6 [" in printed
    assert "does not confirm the sign, or needs more seeds" in printed
    assert main(["claims", "--sensitivity"]) == 2
    assert "claims --sensitivity: give folders of experiments" in capsys.readouterr().err


def test_listed_claims(rising: Claim, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "has_plugins", lambda: True)  # somebody else registered it
    assert main(["claims"]) == 0
    printed = capsys.readouterr().out
    assert "It | rises." in printed
    assert f"{len(registry.in_order('claim'))} claims" in printed


def test_what_has_no_whole_seed_is_left_out(rising: Claim, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    whole, begun = folder(tmp_path / "whole", {0: (1.0,), 1: (1.1,)}), folder(tmp_path / "begun", {0: (1.0,)})
    (begun / "findings.json").unlink()
    (begun / "parts.jsonl").write_text("")
    assert main(["claims", str(whole), str(begun)]) == 0
    printed = capsys.readouterr()
    assert "begun: left out, because no seed is complete yet" in printed.err
    assert "-> " in printed.out
    assert main(["claims", str(begun)]) == 2
    assert "not the folder of a finished experiment" in capsys.readouterr().err


def test_what_the_ledger_refuses(rising: Claim, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="not the folder of a finished experiment"):
        ledger([tmp_path])
    other = folder(tmp_path / "other", {0: (1.0,)}, experiment="test-other")
    with pytest.raises(InputError, match="decides no claim"):
        ledger([other])
    bad = folder(tmp_path / "bad", {0: (1.0,)})
    for rows in ([{"seed": 0, "x": 0}], []):
        store.write_table(bad / "tables" / "curve.jsonl", rows)
        with pytest.raises(DamagedError, match="it-rises"):
            ledger([bad])


@pytest.mark.parametrize(("factor", "stays"), [(1 + 1e-13, True), (1 + 1e-6, False)])
def test_findings_that_differ_by_rounding_stay_as_they_are(tmp_path: Path, factor: float, stays: bool) -> None:
    """Processors add in different orders: what is kept in the history does not change with the machine that judges it."""
    folder = tmp_path / "limits-table1"
    shutil.copytree(kept_results.RESULTS / "small/limits-table1", folder)
    derive_again(folder)  # the sentences may be newer than the stored ones
    with seals.unsealed(folder) as seal:
        findings = store.read_json(folder / "findings.json")
        changed = [finding | {"value": finding["value"] * factor} for finding in findings if finding["value"]]
        store.write_json(folder / "findings.json", changed)
        seals.write_seal(folder, "experiment", seal.bound if seal else {})
    before = (folder / "findings.json").read_bytes()
    derive_again(folder)
    assert ((folder / "findings.json").read_bytes() == before) is stays
