"""The ledger: each claim of the papers, the experiment whose tables decide it, and the verdict found.

A claim is a function from tables to a `Judgement`, registered with where it stands in the papers:

    @claim(
        "limits-rnn-fits",
        source="[Limits] §4.2, Fig. 3",
        statement="The RNN fits the whole length on every task.",
        experiment="limits-fig3",
    )
    def rnn_fits(tables: Tables) -> Judgement: ...
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hmmscope import registry
from hmmscope.errors import DamagedError, InputError
from hmmscope.evidence.findings import Finding, Verdict, verdict_of
from hmmscope.evidence.pooling import Pooled
from hmmscope.storage import store

Tables = dict[str, list[dict[str, Any]]]


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """What the tables say of a claim.

    Attributes:
        verdict: reproduced, not reproduced or inconclusive; "found" where the papers leave the question open.
        text: what was seen, with its numbers.
        value, low, high: the effect that decides, with its 95 % interval over seeds and samples.
        unit: of the effect.
    """

    verdict: Verdict
    text: str
    value: float | None = None
    low: float | None = None
    high: float | None = None
    unit: str = ""


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A claim and how it is decided.

    Attributes:
        source: paper and place.
        statement: a sentence.
        experiment: the one whose tables decide.
        judge: from tables to a judgement.
    """

    name: str
    source: str
    statement: str
    experiment: str
    judge: Callable[[Tables], Judgement]

    def finding(self, tables: Tables) -> Finding:
        """The judgement as a finding of the experiment."""
        found = self.judge(tables)
        return Finding(
            title=self.statement,
            text=found.text,
            verdict=found.verdict,
            value=found.value,
            low=found.low,
            high=found.high,
            unit=found.unit,
            source=self.source,
        )


def claim(
    name: str, *, source: str, statement: str, experiment: str
) -> Callable[[Callable[[Tables], Judgement]], Claim]:
    """Register a function as a claim."""

    def decorate(judge: Callable[[Tables], Judgement]) -> Claim:
        made = Claim(name=name, source=source, statement=statement, experiment=experiment, judge=judge)
        return registry.claim(name)(made)

    return decorate


def verdict_above(effect: Pooled, above: float = 0.0) -> Verdict:
    """Of the claim that an effect is above a bound, by its interval; without one nothing is decided."""
    return verdict_of(effect.low, effect.high, above=above) if effect.decides else "inconclusive"


def is_above(effect: Pooled, text: str, unit: str, *, above: float = 0.0) -> Judgement:
    """Of a claim that holds if the effect is above a bound; the interval decides, and without one nothing does."""
    verdict = verdict_above(effect, above)
    text = text if effect.decides else f"{text} (One seed has this number, so there is no interval.)"
    return Judgement(verdict=verdict, text=text, value=effect.value, low=effect.low, high=effect.high, unit=unit)


def claims_of(experiment: str) -> list[Claim]:
    """The claims that an experiment decides, in the order of the file that states them."""
    return [entry for entry in registry.in_order("claim") if entry.experiment == experiment]


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A line of the ledger: a claim and what a folder says of it.

    Attributes:
        claim: see `Claim`.
        finding: None where no folder was given that decides it.
        scale, created, version: of the experiment.
        num_seeds: of the experiment; None where it trains no model.
        invalid: why its numbers cannot be right, or None.
    """

    claim: Claim
    finding: Finding | None = None
    scale: str = ""
    created: str = ""
    version: str = ""
    num_seeds: int | None = None
    invalid: str | None = None


def ledger(folders: Sequence[Path]) -> list[Entry]:
    """The claims that the experiments in `folders` decide, in the order of the folders.

    Raises:
        InputError: a folder is not that of a finished experiment, or of one that decides no claim.
        DamagedError: its files are not as they were written.
    """
    entries: list[Entry] = []
    for folder in folders:
        about, tables = _read(Path(folder))
        name, config = about["experiment"], about.get("config", {})
        found = claims_of(name)
        if not found:
            raise InputError(f"{folder}: the experiment {name} decides no claim; see hmmscope claims")
        for one in found:
            try:
                finding = one.finding(tables)
            except (KeyError, IndexError, TypeError, ValueError) as error:
                rule = "its tables are not those of this version"
                raise DamagedError(f"{folder}: {one.name}: {rule} ({type(error).__name__}: {error})") from error
            seeds = config.get("seeds")
            entries.append(
                Entry(
                    claim=one,
                    finding=finding,
                    scale=str(about.get("scale", "")),
                    created=str(about.get("created", "")),
                    version=str(about.get("version", "")),
                    num_seeds=None if seeds is None else len(seeds),
                    invalid=about.get("invalid"),
                )
            )
    return entries


def _read(folder: Path) -> tuple[dict[str, Any], Tables]:
    """experiment.json and the tables."""
    path = folder / "experiment.json"
    if not os.path.lexists(path) or not os.path.lexists(folder / "findings.json"):
        raise InputError(f"{folder}: not the folder of a finished experiment")
    about = store.read_json(path, own=True)
    if not isinstance(about, dict) or not isinstance(about.get("experiment"), str):
        raise DamagedError(f"{path}: must be a mapping with the name of an experiment")
    names = sorted((folder / "tables").glob("*.jsonl"))
    return about, {table.stem: store.read_table(table) for table in names}
