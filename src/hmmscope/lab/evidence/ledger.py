"""The ledger: the list of claims with their findings in folders of experiments."""

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import Any

from hmmscope.errors import DamagedError, InputError
from hmmscope.lab.evidence.claim import Claim, claims_of
from hmmscope.lab.evidence.effects import false_discovery
from hmmscope.lab.evidence.finding import Finding, asked_by
from hmmscope.lab.evidence.power import Power
from hmmscope.lab.evidence.protocol import PROTOCOL, read_protocol
from hmmscope.lab.evidence.records import deviations, folder_of, present
from hmmscope.lab.evidence.rows import Rows, Tables
from hmmscope.lab.evidence.sensitivity import sensitivity
from hmmscope.lab.evidence.verdicts import ANSWERS, DECIDED, answer_of
from hmmscope.schema import to_stored
from hmmscope.storage import packed, seals, store

#: Scales, ascending.
SCALES = ("smoke", "small", "medium", "gpu", "paper")
#: Deviation from the paper that every claim about a proved construction has.
PROVED = (
    "the weights come from the proof of the statement, so the row checks the proof and the code (nothing is trained)"
)
#: Scales whose results were known while the rules were written, so that their verdicts are exploratory.
EXPLORATORY = ("smoke", "small")


@dataclass(frozen=True, kw_only=True)
class RecordedClaim:
    """The words and rule of a claim, as stored for a ledger; see `Claim`."""

    name: str
    experiment: str
    source: str
    claim_text: str = field(metadata={"stored": "says"})
    operationalization: str = field(metadata={"stored": "reading"})
    rule: str | None

    @property
    def is_question(self) -> bool:
        return self.rule is None


def recorded_claim(claim: Claim) -> RecordedClaim:
    rule = None if claim.rule is None else str(claim.rule)
    names = ("name", "experiment", "source", "claim_text", "operationalization")
    return RecordedClaim(**{name: getattr(claim, name) for name in names}, rule=rule)


@dataclass(frozen=True, kw_only=True)
class LedgerRow:
    """A claim and its finding in one folder.

    Attributes:
        claim: the claim.
        finding: the finding; None if the claim was not measured.
        folder: name of the folder of the experiment.
        scale, created, version: scale and date of the experiment, and version of hmmscope.
        seeds: number of seeds with complete runs; None if not recorded.
        finished: whether all planned seeds are complete.
        exploratory: reason why the verdict is exploratory; None if it is confirmatory.
        invalid: reason why the numbers cannot be right, or None.
        sealed: whether the folder has checksums (a seal).
        differs: deviations of the experiment from the paper.
        scope: conditions under which the verdict holds, in words.
        sensitivity: choices that would change the verdict; None if not computed.
        power: statistical power of the rule; None if not computed or unknown.
        one_of_several: whether the ledger has several rows of this claim.
    """

    claim: Claim | RecordedClaim
    finding: Finding | None = None
    folder: str = ""
    scale: str = ""
    created: str = ""
    version: str = ""
    seeds: int | None = None
    finished: bool = True
    exploratory: str | None = None
    invalid: str | None = None
    sealed: bool = True
    differs: tuple[str, ...] = ()
    scope: str = ""
    sensitivity: tuple[str, ...] | None = None
    power: Power | None = None
    one_of_several: bool = False

    def where(self) -> str:
        return self.scale if self.seeds is None else f"{self.scale}, {self.seeds} seed{'s' * (self.seeds != 1)}"

    def row(self) -> dict[str, Any]:
        claim, finding = self.claim, self.finding
        row: dict[str, Any] = {"claim": claim.name, "source": claim.source, "says": claim.claim_text}
        row |= {"reading": claim.operationalization, "rule": None if claim.rule is None else str(claim.rule)}
        row |= {"experiment": claim.experiment}
        if finding is None:
            return row
        known = to_stored(finding)
        row |= {key: known[key] for key in ("verdict", "value", "low", "high", "unit", "p", "q", "text")}
        row |= {"seeds_needed": finding.seeds_needed, "gates": [gate.to_data() for gate in finding.gates]}
        row |= {"folder": self.folder, "scale": self.scale, "seeds": self.seeds, "exploratory": self.exploratory}
        row |= {"budget": finding.budget, "differs": list(self.differs)} | ({"scope": self.scope} if self.scope else {})
        row |= {
            "fragile": None if self.sensitivity is None else list(self.sensitivity),
            "power": self.power and list(self.power),
        }
        row |= {"parts": [part.to_data() for part in finding.parts]} if finding.parts else {}
        row |= {"bimodal": True} if finding.bimodal else {}
        row |= {"created": self.created, "version": self.version, "invalid": self.invalid}
        return row if self.sealed else row | {"sealed": False}


def ledger(
    folders: Sequence[Path], known: Sequence[RecordedClaim] = (), source: str = "", *, examined: bool = False
) -> list[LedgerRow]:
    """Return rows for the claims that the experiments in `folders` measure, with q-values over all rows.

    Each claim keeps its best folders: complete before incomplete, several seeds before one, larger scale before smaller.

    Args:
        folders: folders of experiments.
        known: claims whose findings are read from a folder if code with digest `source` computed them.
        source: SHA-256 of the present code.
        examined: whether to also compute the sensitivity and power of each finding.

    Raises:
        InputError: a folder is not a finished experiment, or the experiment has no claims.
        DamagedError: a file differs from its checksum.
    """
    paths = [Path(folder) for folder in folders]
    twice = len({path.name for path in paths}) < len(paths)
    found = [
        (path, replace(one, folder=str(path)) if twice else one)
        for path in paths
        for one in _entries(path, known, source)
    ]
    largest: dict[str, tuple[bool, bool, int]] = {}
    for _, entry in found:
        largest[entry.claim.name] = max(largest.get(entry.claim.name, (False, False, -1)), _size(entry))
    kept = [(path, entry) for path, entry in found if _size(entry) == largest[entry.claim.name]]
    entries = [_examined(entry, path) if examined else entry for path, entry in kept]
    lines = Counter(entry.claim.name for entry in entries)
    entries = [replace(entry, one_of_several=lines[entry.claim.name] > 1) for entry in entries]
    tested = {
        str(number): entry.finding.p
        for number, entry in enumerate(entries)
        if entry.finding is not None and entry.finding.p is not None
    }
    q = false_discovery(tested)
    return [
        replace(entry, finding=replace(entry.finding, q=q.get(str(number)))) if entry.finding is not None else entry
        for number, entry in enumerate(entries)
    ]


def _examined(entry: LedgerRow, path: Path) -> LedgerRow:
    claim = entry.claim
    if not isinstance(claim, Claim) or claim.is_question:
        return entry
    _, tables = read_tables(path)
    return replace(entry, sensitivity=tuple(sensitivity(claim, tables)), power=claim.power(claim.measured(tables)))


def _size(entry: LedgerRow) -> tuple[bool, bool, int]:
    return entry.finished, entry.seeds != 1, SCALES.index(entry.scale) if entry.scale in SCALES else -1


def _entries(folder: Path, known: Sequence[RecordedClaim], source: str) -> list[LedgerRow]:
    about, seal = _opened(folder)
    seeds = about.get("whole_seeds", about.get("config", {}).get("seeds"))
    return [
        LedgerRow(
            claim=one,
            finding=finding,
            folder=folder.name,
            scale=str(about.get("scale", "")),
            created=str(about.get("created", "")),
            version=str(about.get("version", "")),
            seeds=None if seeds is None else len(seeds),
            finished="whole_seeds" not in about,
            exploratory=_exploratory(one, finding, about, folder),
            invalid=about.get("invalid"),
            sealed=seal is not None,
            differs=_differs(one, about),
            scope=one.scope_at(str(about.get("scale", ""))) if isinstance(one, Claim) else "",
        )
        for one, finding in _sealed(folder, about, seal, known, source) or _judged(folder, about)
    ]


def _differs(claim: Claim | RecordedClaim, about: Mapping[str, Any]) -> tuple[str, ...]:
    folder = folder_of(claim.measure.__module__) if isinstance(claim, Claim) else None
    if folder is None or not isinstance(claim, Claim):
        return ()
    scale = str(about.get("scale", "")) if claim.about == "training" else ""  # no training, at any scale
    known = deviations(folder, claim.experiment, scale, claim.name)
    return (PROVED, *known) if claim.proved and claim.about == "construction" else known


def _sealed(
    folder: Path, about: Mapping[str, Any], seal: seals.Seal | None, known: Sequence[RecordedClaim], source: str
) -> list[tuple[RecordedClaim, Finding]]:
    made = None if seal is None else seal.bound.get("measured_by")
    if not known or seal is None or "judged_again" in seal.bound or "whole_seeds" in about:
        return []
    if not isinstance(made, dict) or made.get("source_sha256") != source:
        return []
    if "protocol" in about or any(isinstance(mark, str) for mark in about.get("rules", {}).values()):
        return []  # must be compared with the record of the claim
    data = store.read_json(folder / "findings.json", managed=True)
    kept = {one.claim: one for one in map(Finding.from_data, data)}
    wanted = [one for one in known if one.experiment == about["experiment"]]
    return [(one, kept[one.name]) for one in wanted] if all(one.name in kept for one in wanted) else []


def _judged(folder: Path, about: dict[str, Any]) -> list[tuple[Claim, Finding]]:
    name, scale, found = about["experiment"], str(about.get("scale", "")), []
    tables = tables_of(folder, about)
    for one in claims_of(name):
        try:
            found.append((one, one.evaluate(tables).at(scale)))
        except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError) as error:
            rule = "the tables of this folder do not match this version of hmmscope"
            raise DamagedError(f"{folder}: claim {one.name}: {rule} ({type(error).__name__}, {error})") from error
    if not found:
        raise InputError(
            f"{folder}: the experiment {name} decides no claim; the command 'hmmscope claims' lists the experiments that do"
        )
    return found


def _exploratory(claim: Claim | RecordedClaim, finding: Finding, about: dict[str, Any], folder: Path) -> str | None:
    if claim.is_question:
        return None
    if about.get("scale") in EXPLORATORY:
        return f"scale {about['scale']}"
    if "whole_seeds" in about:
        return f"only {len(about['whole_seeds'])} of {len(about['config']['seeds'])} seeds are complete"
    if "protocol" in about:
        return _against_protocol(claim, about, folder)
    noted = about.get("rules", {})
    if all(isinstance(mark, int) for mark in noted.values()) and noted:
        return "no protocol fixed the decision rule before the data were collected"
    fixed = noted.get(claim.name)  # older runs noted the marks of the rules at their start
    known = isinstance(claim, Claim) and present(claim.once, fixed) == finding.rule_version
    return None if known else "the decision rule was written after the data were seen"


def _against_protocol(claim: Claim | RecordedClaim, about: Mapping[str, Any], folder: Path) -> str | None:
    protocol = read_protocol(folder / PROTOCOL)
    if protocol.digest != about["protocol"]:
        raise DamagedError(f"{folder / PROTOCOL}: differs from the protocol with which the experiment started")
    if isinstance(claim, Claim) and (why := protocol.against(claim)) is not None:
        return why
    index = store.read_table(folder / packed.INDEX) if (folder / packed.INDEX).is_file() else []
    other = sum(
        row.get("protocol") != protocol.digest or row.get("measurement") != protocol.measurement for row in index
    )
    return f"{other} of {len(index)} stored parts come from other code or another protocol" if other else None


def rules_of(experiment: str) -> dict[str, int]:
    return {one.name: one.version for one in claims_of(experiment)}


def with_versions(findings: Sequence[Mapping[str, Any]], experiment: str) -> list[dict[str, Any]]:
    once = {one.name: one.once for one in claims_of(experiment)}
    return [
        {**one, "rule_version": present(once.get(one.get("claim", ""), {}), one["rule_version"])}
        if "rule_version" in one
        else dict(one)
        for one in findings
    ]


def read_tables(folder: Path) -> tuple[dict[str, Any], Tables]:
    about = read_about(folder)
    return about, tables_of(folder, about)


def read_about(folder: Path) -> dict[str, Any]:
    return _opened(folder)[0]


def _opened(folder: Path) -> tuple[dict[str, Any], seals.Seal | None]:
    path = folder / "experiment.json"
    if not os.path.lexists(path) or not os.path.lexists(folder / "findings.json"):
        raise InputError(f"{folder}: is not the folder of a finished experiment")
    seal = seals.open_sealed(folder)
    about: dict[str, Any] = store.read_json(path, managed=True)
    store.check_format(about, "experiment", path)
    if not isinstance(about.get("experiment"), str):
        raise DamagedError(f"{path}: must be a mapping with the key 'experiment'")
    return about, seal


def tables_of(folder: Path, about: Mapping[str, Any]) -> Tables:
    tables = {name: Rows(rows) for name, rows in packed.read_tables(folder).items()}
    if "whole_seeds" not in about:
        return tables
    return {name: rows.where(seed=about["whole_seeds"]) for name, rows in tables.items()}


# ---------------------------------------------------------------------------------------------------------------------
# Output formats


def as_text(entries: Sequence[LedgerRow]) -> list[str]:
    lines = []
    for entry in entries:
        claim, finding = entry.claim, entry.finding
        lines.append(f"{claim.name}  {asked_by(claim.source)}  ({claim.experiment})")
        lines.append(f"  {claim.claim_text}")
        if finding is not None:
            lines.append(f"  -> {', '.join(part for part in _answer(entry) if part)}")
            lines += [f"     {finding.text}", *(f"     {part}" for part in finding.parts)]
        if entry.sensitivity is not None and not claim.is_question:
            turned = f"; the answer changes with {', '.join(entry.sensitivity)}" if entry.sensitivity else ""
            lines.append(f"     power {entry.power or 'not known'}{turned}")
    return [*lines, summary(entries)]


def as_markdown(entries: Sequence[LedgerRow]) -> list[str]:
    lines = [summary(entries)]
    for (experiment, where), group in groupby(entries, lambda entry: (entry.claim.experiment, entry.where())):
        lines += ["", f"## {experiment}", "", *([f"Scale {where}.", ""] if where else [])]
        names = (
            "claim",
            "answer",
            "effect (95 % interval)",
            "measured values",
            "power",
            "fragile",
            "differs from the paper",
        )
        lines += [f"| {' | '.join(names)} |", "|---" * len(names) + "|"]
        for entry in group:
            cells = [f"{entry.claim.claim_text} ({asked_by(entry.claim.source)})", *[""] * 6]
            if entry.finding is not None:
                number, rest = entry.finding.number(), statistics_of(entry.finding)
                said = f"**{_answer(entry)[0]}**{marks(entry)}"
                each = f" By part: {'; '.join(map(str, entry.finding.parts))}." if entry.finding.parts else ""
                cells[1:4] = [said, f"{number}{'; ' * bool(rest)}{rest}", entry.finding.text + each]
                cells[4:] = [str(entry.power or ""), ", ".join(entry.sensitivity or ()), "; ".join(entry.differs)]
            lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return lines


def summary(entries: Sequence[LedgerRow]) -> str:
    counts: Counter[str] = Counter(answer_of(entry.finding.verdict) for entry in entries if entry.finding is not None)
    if not counts:
        return f"{len(entries)} claims; 'hmmscope claims FOLDER...' prints the answers from experiments"
    found = [f"{counts[one]} {one}" for one in dict.fromkeys(ANSWERS.values()) if counts[one]]
    said = f"{len(entries)} claims: {', '.join(found)}"
    late = sum(entry.exploratory is not None for entry in entries)
    said += f"; {late} exploratory" if late else ""
    if all(entry.sensitivity is None for entry in entries):
        return said
    return f"{said}; {sum(bool(entry.sensitivity) for entry in entries)} fragile (verdict changes with rule or seeds)"


def _answer(entry: LedgerRow) -> tuple[str, str, str, str]:
    finding = entry.finding
    assert finding is not None
    about = ", ".join(part for part in (entry.scope, finding.budget) if part)
    at = f" {about}" if about and finding.verdict in DECIDED else ""
    said = f"undecided: INVALID ({entry.invalid})" if entry.invalid else f"{answer_of(finding.verdict)}{at}"
    return said, finding.number(), statistics_of(finding), place(entry)


def place(entry: LedgerRow) -> str:
    """Format where a row comes from, as ``small, 3 seeds (exploratory), in FOLDER``."""
    return entry.where() + marks(entry)


def marks(entry: LedgerRow) -> str:
    words = [
        word
        for word, said in (
            ("exploratory", entry.exploratory),
            ("fragile", entry.sensitivity),
            ("unsealed", not entry.sealed),
        )
        if said
    ]
    return (f" ({', '.join(words)})" if words else "") + f", in {entry.folder}" * entry.one_of_several


def statistics_of(finding: Finding) -> str:
    parts = [f"{name} {value:.2g}" for name, value in (("p", finding.p), ("q", finding.q)) if value is not None]
    bounds = [f"{bound:.3g}" for bound in (finding.sign_low, finding.sign_high) if bound is not None]
    parts += [f"sign bound {' to '.join(bounds)}"] if bounds else []
    parts += ["bimodal: the seeds fall into two groups"] if finding.bimodal else []
    if finding.verdict == "inconclusive" and finding.value is not None:
        needed = finding.seeds_needed
        parts.append(f"{needed} seeds would decide the claim" if needed else "more seeds would not decide the claim")
    return ", ".join(parts)
