"""Changed numbers of rules, gates and intervals require a new version of the rule; rewritten code does not."""

import ast
import importlib.util
import random
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import kept_results
import pytest

import hmmscope
import hmmscope_papers
import hmmscope_studies
from golden_verdicts import act, altered_probe, complaint, entry, experiments, kept_acts, probe, same
from hmmscope import registry
from hmmscope.lab.evidence.claim import Claim, claims_of
from hmmscope.lab.evidence.ledger import read_tables
from hmmscope.lab.evidence.records import RuleParameters
from hmmscope.lab.evidence.rows import Tables
from hmmscope.lab.evidence.verdicts import Above
from hmmscope.system_info import source_digest
from hmmscope_papers.limits import fig2 as limits_fig2
from hmmscope_papers.multitask import fig3a as multitask_fig3a
from mutants import changed, of_record
from reach import Site, law_sites, literals, node_of, reached, sites

RESULTS = kept_results.RESULTS
#: Packages whose constants and functions rules use.
OUTER = ("hmmscope_papers.", "hmmscope_studies.")
#: Experiments with rules that take less than a tenth of a second on their frozen tables.
QUICK = (
    "limits-fig2",
    "limits-table3",
    "limits-hard-dose",
    "belief-geometry",
    "multitask-pool-size",
    "limits-precision",
)


def marked(claim: Claim) -> bool:
    """Return whether the rule, as it is now, requires a new version."""
    kept = kept_acts(claim.experiment)[claim.name]
    for number, before in kept["acts"].items():
        now = act(claim, altered_probe(claim.experiment, int(number)))
        if not same(before, now):
            return True
    return complaint(claim, kept, kept["acts"]) is not None


# ---------------------------------------------------------------------------------------------------------------------
# Numbers that a verdict depends on


@contextmanager
def set_to(module: ModuleType, name: str, value: Any) -> Iterator[None]:
    """Give a constant another value in every module that imports it."""
    before = vars(module)[name]
    places = [
        m for m in list(sys.modules.values()) if vars(m).get(name) is before and m.__name__.startswith("hmmscope")
    ]
    with pytest.MonkeyPatch.context() as patch:
        for place in places:
            patch.setattr(place, name, value)
        yield


@contextmanager
def sign_of_the_mean() -> Iterator[None]:
    def decide(self: Above, low: float, value: float, high: float) -> str:
        return "reproduced" if value > self.bound else "not reproduced"

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Above, "decide", decide)
        yield


CHANGES: dict[str, tuple[Callable[[], AbstractContextManager[None]], tuple[str, ...], tuple[str, ...]]] = {
    "four tasks without RanHMM": (
        lambda: set_to(limits_fig2, "FOUR", tuple(one for one in limits_fig2.FOUR if one != "ran-hmm")),
        ("limits-rnn-converges-faster", "limits-rnn-final-accuracy", "limits-rnn-fits-longer"),
        ("limits-cot-cost", "multitask-pool-size"),
    ),
    "the sign of the mean": (
        sign_of_the_mean,
        ("limits-rnn-final-accuracy", "limits-fit-length-grows", "belief-geometry"),
        ("limits-precision-logarithmic", "limits-cot-cost"),
    ),
}


def claims_named(names: tuple[str, ...]) -> list[Claim]:
    """Return claims by name; the name of an experiment stands for its first claim with a rule."""
    known = registry.entries("claim")
    return [known[n] if n in known else next(c for c in claims_of(n) if c.rule or len(claims_of(n)) < 4) for n in names]


@pytest.mark.drawn(1)
@pytest.mark.parametrize("name", CHANGES)
def test_what_turns_verdicts_marks_the_rules_that_reach_it_and_no_other(name: str) -> None:
    change, reached, others = CHANGES[name]
    with change():
        assert [claim.name for claim in claims_named(reached) if not marked(claim)] == []
        assert [claim.name for claim in claims_named(others) if marked(claim)] == []
    assert [claim.name for claim in claims_named(reached) if marked(claim)] == []


@pytest.mark.drawn(1, of="numbers of records")
def test_every_number_of_a_record_is_a_part_of_its_rule() -> None:
    """This includes the level of the intervals."""
    for claim in registry.in_order("claim"):
        kept = kept_acts(claim.experiment)[claim.name]
        for name, other in of_record(claim).items():
            assert complaint(other, kept, kept["acts"]) is not None, (claim.name, name)


#: Constants that change no verdict or are no choice: tasks, names, values in the papers' tables, widths of laws, rounding.
NO_CHOICES = {
    "WIDTH", "_SEEN", "TASKS", "TABLE_3", "COMPARED", "CYCLES", "FAST", "STAGES", "PAPER_LENGTH", "LEAST_SHARE", "PAPER_CAP",
    "SHOWN", "FOUR", "FORGETTING", "REMEMBERING", "ARRANGEMENTS", "MAX_DISTANCE", "NGRAMS", "PROCESSES", "FACTORS",
    "NUM_TASKS", "SEPARATES", "_SHORT", "_LOOKS", "FITTED_ERRORS", "_LEAST", "ERROR_RATES", "SPENT", "LOOKS", "COUNTING",
}  # fmt: skip


def test_every_constant_that_a_verdict_depends_on_is_in_the_records() -> None:
    """The record has it under the same name; its value in the record is the one in use."""
    missing = []
    for claim in registry.in_order("claim"):
        if claim.is_question:
            continue
        for (module, name), value in reached(claim.measure)[1].items():
            if module.startswith(OUTER) and name not in NO_CHOICES and not isinstance(value, str):
                known = {"CONVERGED": "rate"}.get(name, name.lower().strip("_"))
                if known not in claim.parameters:
                    missing.append((claim.name, module, name))
    assert missing == []


#: Functions of rules with numbers that are no choices: conditions for a law to exist, facts of the papers, names of layers,
#: rounding of a share of the training.
NO_THRESHOLDS = {
    "limits.table3:log_excess", "limits.tables:_at_share", "limits.fig4_cot:_drifts", "limits.theorem5_2:_with_formula",
    "multitask.lemma1:power_of_gamma", "beyond_multitask.windows:exponential_rather",
    "beyond_multitask.construction_vs_trained:_estimate",
}  # fmt: skip
#: Module with the plan of the paper's own trainings.
_PLAN = "limits.trainings:"
#: Positions of the arguments of gates that are thresholds. `_ENDS` are natural bounds of a range, not choices.
GATES = {"learned": (1,), "room": (1,), "converged": (1,), "flat": (1,), "regime": (1, 2)}
_ENDS = (0, 1.0)


def ruled() -> dict[str, Any]:
    """Return the functions of the papers and studies that rules call, by name."""
    found: dict[str, Any] = {}
    for claim in registry.in_order("claim"):
        if not claim.is_question:
            found |= reached(claim.measure)[0]
    return {key.partition(".")[2]: one for key, one in found.items() if key.startswith(OUTER)}


def test_no_threshold_of_a_verdict_stands_in_code() -> None:
    """Thresholds belong into the record, where readers find them and protocols refer to them."""
    plain = {}
    for name, one in ruled().items():
        node = node_of(one.__module__, one.__qualname__)
        own = {literal.value for literal in literals(node)} if node else set()
        if name not in NO_THRESHOLDS and not name.startswith(_PLAN):
            plain[name] = own - {0, 1, 2, 0.5}
    assert {name: own for name, own in plain.items() if own} == {}


def _is_gate(called: ast.expr) -> bool:
    owner = called.value if isinstance(called, ast.Attribute) else None  # Gate.regime or lab.Gate.regime
    return "Gate" in (getattr(owner, "id", ""), getattr(owner, "attr", ""))


def test_no_gate_has_its_threshold_in_code() -> None:
    found, gates = [], 0
    for name, one in ruled().items():
        node = node_of(one.__module__, one.__qualname__)
        for call in ast.walk(node) if node else ():
            kind = call.func.attr if isinstance(call, ast.Call) and _is_gate(call.func) else ""
            places = GATES.get(kind, ())
            gates += bool(places)
            for place in places:
                given = call.args[place : place + 1]
                if not given and kind == "flat":
                    found.append((name, "flat without a margin"))
                ends = _ENDS if kind == "regime" else ()
                found += [(name, a.value) for a in given if isinstance(a, ast.Constant) and a.value not in ends]
    assert found == []
    assert gates > 30


class Asked(RuleParameters):
    """Parameters of a rule that record which of them were read."""

    def __init__(self, numbers: RuleParameters) -> None:
        super().__init__(numbers)
        self.asked: set[str] = set()

    def __getitem__(self, name: str) -> Any:
        self.asked.add(name)
        return super().__getitem__(name)


@pytest.mark.drawn(1, of="numbers of records")
def test_every_number_of_a_record_is_asked_for() -> None:
    """Some table, original or altered, makes the rule read each number; an unread number would not belong to the rule."""
    idle = []
    for claim in registry.in_order("claim"):
        numbers = Asked(claim.parameters)
        asking = replace(claim, parameters=numbers)
        for number in probe(claim.experiment)[1]:
            if numbers.asked >= set(numbers):
                break
            act(asking, altered_probe(claim.experiment, number))
        idle += [(claim.name, name) for name in set(numbers) - numbers.asked]
    assert idle == []


def test_the_level_of_intervals_is_in_every_record_and_moves_them() -> None:
    for claim in registry.in_order("claim"):
        assert entry(claim)["level"] == 0.05, claim.name
    claim = registry.lookup("claim", "limits-fit-length-grows")
    wide, narrow = (act(one, probe(claim.experiment)[0])["decides"] for one in (claim, of_record(claim)["level"]))
    assert wide[0] == narrow[0]
    assert wide[2] - wide[1] > narrow[2] - narrow[1]


def drawn(count: int, experiments: tuple[str, ...]) -> list[Site]:
    """Draw numbers of rules at random, seeded by the digest of the source."""
    found = sorted({site for name in experiments for site in sites(claims_of(name))}, key=str)
    return random.Random(source_digest()).sample(found, count)


def affected(claim: Claim, tables: Tables, before: dict[str, Any]) -> bool:
    return not same(before, act(claim, tables))


def unmarked(experiment: str, chosen: list[Site]) -> list[str]:
    """Return rows of the ledger that change with a number although no new version of the rule is required."""
    known = [path for name in (experiment, f"{experiment}@*") for path in RESULTS.glob(f"*/{name}")]
    folders = [path for path in known if (path / "findings.json").is_file()]
    kept = [read_tables(folder)[1] for folder in folders]
    found = []
    for site, claims in sites(claims_of(experiment)).items():
        if site not in chosen:
            continue
        before = [(claim, tables, act(claim, tables)) for claim in claims for tables in kept]
        with changed(site):
            rows = [claim for claim, tables, one in before if affected(claim, tables, one)]
            found += [f"{claim.name}: {site}" for claim in rows if not marked(claim)]
    return found


@pytest.mark.drawn(3)
@pytest.mark.parametrize("experiment", QUICK)
def test_no_row_of_the_ledger_changes_unmarked(experiment: str) -> None:
    """Two numbers of each experiment; the slow test has all of them."""
    assert unmarked(experiment, drawn(2, (experiment,))) == []


@pytest.mark.slow
@pytest.mark.parametrize("experiment", experiments())
def test_no_row_of_the_ledger_changes_unmarked_whatever_the_number(experiment: str) -> None:
    assert unmarked(experiment, list(sites(claims_of(experiment)))) == []


@pytest.mark.slow
@pytest.mark.parametrize("site", law_sites(), ids=str)
def test_no_row_of_the_ledger_changes_unmarked_by_a_law_of_verdicts(site: Site) -> None:
    """On the rows of three experiments, which together use every rule and gate."""
    rows = [(claim, read_tables(RESULTS / "small" / name)[1]) for name in QUICK[:3] for claim in claims_of(name)]
    before = [act(claim, tables) for claim, tables in rows]
    with changed(site):
        found = [c for (c, tables), one in zip(rows, before, strict=True) if affected(c, tables, one)]
        assert [claim.name for claim in found if not marked(claim)] == []


# ---------------------------------------------------------------------------------------------------------------------
# Rewritten code


class Renamed(ast.NodeTransformer):
    """Rename local variables."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        stored = {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        given = {one.arg for n in ast.walk(node) if isinstance(n, ast.arguments) for one in (*n.args, *n.kwonlyargs)}
        outer = given | {name for n in ast.walk(node) if isinstance(n, ast.Nonlocal | ast.Global) for name in n.names}
        for one in ast.walk(node):
            if isinstance(one, ast.Name) and one.id in stored - outer:
                one.id = f"{one.id}_as_it_is_called_now"
        return node


def rewritten(module: ModuleType, folder: Path) -> ModuleType:
    """Load a copy of a module under another name, with renamed locals, reversed imports and other formatting."""
    assert module.__file__ is not None
    tree = ast.parse(Path(module.__file__).read_text())
    head = [one for one in tree.body if isinstance(one, ast.Import | ast.ImportFrom)]
    rest = [one for one in tree.body if not isinstance(one, ast.Import | ast.ImportFrom)]
    tree.body = [*head[::-1], *[Renamed().visit(one) for one in rest]]
    path = folder / "moved_away.py"
    path.write_text(re.sub("^    ", "        ", ast.unparse(ast.fix_missing_locations(tree)), count=0))
    shutil.copytree(Path(module.__file__).parent / "claims", folder / "claims")
    spec = importlib.util.spec_from_file_location("elsewhere.moved_away", path)
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = made
    spec.loader.exec_module(made)
    return made


@pytest.mark.parametrize("module", [limits_fig2, multitask_fig3a], ids=lambda module: module.__name__.split(".")[-1])
def test_how_a_rule_is_written_changes_nothing(
    module: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {claim.name: claim for claim in registry.in_order("claim") if claim.measure.__module__ == module.__name__}
    for kind in ("claim", "experiment"):
        monkeypatch.setitem(registry._found, kind, {})
    try:
        (folder := tmp_path / module.__name__).mkdir()
        made = rewritten(module, folder)
        found = {one.name: one for one in registry._found["claim"].values()}
        assert found.keys() == before.keys()
        for name, claim in found.items():
            assert claim.measure.__module__ == made.__name__
            assert claim.measure.__code__.co_varnames != before[name].measure.__code__.co_varnames
            assert claim.version == before[name].version
            assert not marked(claim), name
    finally:
        sys.modules.pop("elsewhere.moved_away", None)


def test_no_version_is_a_digest() -> None:
    """No module of the packages reads the source of a rule or a measurement."""
    package = Path(hmmscope.__file__).parent
    readers = (package / "lab", *(Path(str(one.__file__)).parent for one in (hmmscope_papers, hmmscope_studies)))
    paths = [path for folder in readers for path in folder.rglob("*.py")]
    assert len(paths) > 100
    found = [path for path in paths if "inspect.getsource" in path.read_text()]
    assert found == []
