"""Prediction of the claims that a plan can decide, made before any training.

Stored tables of earlier runs show which models each claim needs, and how its effect varies over seeds.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from hmmscope.lab.evidence.claim import Claim, Measurement, claims_of
from hmmscope.lab.evidence.effects import Effect, at_level
from hmmscope.lab.evidence.finding import UNJUDGED
from hmmscope.lab.evidence.ledger import SCALES, read_about, read_tables
from hmmscope.lab.evidence.power import PLANNED, chances, seeds_enough
from hmmscope.lab.evidence.rows import Rows, Tables
from hmmscope.lab.evidence.verdicts import Always, Gate
from hmmscope.lab.experiments.planning import ExperimentPlan
from hmmscope.storage.seals import open_sealed

#: Folder of stored tables, in <scale>/<experiment> and <scale>/<experiment>@<setting>.
RESULTS = Path("results")
#: Fraction of simulated experiments that a plan must decide, with either the paper's effect or none.
LIKELY = 0.5
#: Names of gates (preconditions of a verdict) whose numbers follow from a plan alone.
_RATIOS = ("regime", "room", "matched")
#: Exceptions that the measurement of a claim raises if tables lack rows or columns.
_LACKING = (LookupError, TypeError, ValueError, ArithmeticError, AttributeError, AssertionError)


@dataclass(frozen=True)
class Outlook:
    """Prediction of whether a plan can decide a claim.

    Attributes:
        gates: preconditions of the verdict that follow from the plan alone.
        pending: names of preconditions that depend on the measured data.
        covered, missing: effects of the claim that the plan measures, and those that it does not.
    """

    claim: Claim
    gates: tuple[Gate, ...]
    pending: tuple[str, ...]
    covered: tuple[str, ...]
    missing: tuple[str, ...]

    @property
    def decides(self) -> bool:
        return not self._closed() or bool(self.parts)

    @property
    def parts(self) -> tuple[str, ...]:
        closed = self._closed()
        if not closed or any(not gate.of for gate in closed):
            return ()
        return tuple(name for name in self.covered if not any(name in gate.of for gate in closed))

    def _closed(self) -> list[Gate]:
        return [gate for gate in self.gates if not gate.is_open]

    def lines(self) -> Iterator[str]:
        yield f"{self.claim.name}: {self.answer()}"
        for gate in self.gates:
            about = f" ({', '.join(gate.of)})" if gate.of else ""
            yield f"  {gate.name:<10} {'open' if gate.is_open else 'closed':<7} {gate.text}{about}"
        for name in self.pending:
            yield f"  {name:<10} {'?':<7} depends on the data"

    def answer(self) -> str:
        word = "answer" if self.claim.is_question else "decide"
        missing = [f"the plan does not measure {', '.join(self.missing)}"] * bool(self.missing)
        other = [gate.text for gate in self._closed() if gate.name != "measured" or not gate.of]
        reasons = "; ".join([*missing, *other])
        if not reasons:
            return f"can {word}"
        return f"can {word} only {', '.join(self.parts)}: {reasons}" if self.parts else f"cannot {word}: {reasons}"


def outlooks(plan: ExperimentPlan, kept: Sequence[Path] | None = None) -> list[Outlook]:
    folders = kept_folders(plan) if kept is None else list(kept)
    return [_outlook(plan, claim, folders) for claim in claims_of(plan.experiment.name)]


def kept_folders(plan: ExperimentPlan) -> list[Path]:
    scales = sorted(SCALES, key=lambda scale: (scale != plan.scale, -SCALES.index(scale)))
    name = plan.experiment.name
    found = [
        [*(RESULTS / scale).glob(pattern), *Path().glob(f"*/{RESULTS}/{scale}/{pattern}")]
        for scale in scales
        for pattern in (name, f"{name}@*")
    ]
    return [folder for some in found for folder in sorted(some) if (folder / "findings.json").is_file()]


def decision_lines(plan: ExperimentPlan, kept: Sequence[Path] | None = None) -> Iterator[str]:
    folders = kept_folders(plan) if kept is None else list(kept)
    found = outlooks(plan, folders)
    if not found:
        return
    yield f"decides      {sum(one.decides for one in found)} of {len(found)} claims and questions, in whole or in part:"
    if not folders:
        unknown = "so this list checks neither the statistical power nor whether the plan trains all needed models"
        yield f"  found no stored tables of {plan.experiment.name} in {RESULTS}/, {unknown}"
    for one in found:
        yield from one.lines()


def warning_of(plan: ExperimentPlan) -> str | None:
    """Return a warning if the plan can decide none of its claims, else None."""
    if plan.scale == UNJUDGED:
        return None
    found = outlooks(plan)
    if not found or any(one.decides for one in found):
        return None
    why = f"{found[0].claim.name}: {found[0].answer()}"
    return f"warning: this plan can decide none of its {len(found)} claims ({why}); add --dry-run to see preconditions"


def _outlook(plan: ExperimentPlan, claim: Claim, folders: Sequence[Path]) -> Outlook:
    whole, effects, covered, missing = _measured(plan, claim, folders)
    with at_level(claim.level):
        fixed = list(plan.experiment.planned_gates(plan.configs, claim)) if plan.configs else []
    gates = [*_of_scale(plan), *_of_seeds(plan, claim), *fixed]
    gates += [Gate("measured", False, f"the plan does not measure {name}").about(name) for name in missing]
    if folders and whole and not missing and not effects and plan.configs:
        gates.append(Gate("measured", False, "the plan lacks models that are needed to compute the effect"))
    if plan.seeds is not None and len(plan.seeds) > 1 and effects:
        gates += _of_power(claim, effects, len(plan.seeds))
    names = {gate.name for gate in gates}
    gates += [gate for gate in _of_same_plan(plan, claim, folders) if gate.name not in names]
    names = {gate.name for gate in gates}
    seen = dict.fromkeys(gate.name for one in whole for gate in one.gates)
    pending = [name for name in seen if name not in names or name == "learned"]
    if claim.about == "training" and claim.rule is not None:
        pending += [name for name in ("learned", "converged") if name not in pending]
    return Outlook(claim, tuple(gates), tuple(pending), covered, missing)


def _measured(
    plan: ExperimentPlan, claim: Claim, folders: Sequence[Path]
) -> tuple[list[Measurement], dict[str, Effect], tuple[str, ...], tuple[str, ...]]:
    whole, effects, parts = [], dict[str, Effect](), dict[str, None]()
    names, told = dict[str, None](), dict[str, None]()
    for folder in folders:
        tables = _tables(folder)
        seen = _seen(claim, _of_two_seeds(folder))
        if seen is None:
            continue
        whole.append(seen)
        names |= dict.fromkeys((*seen.required, *(name for name in seen.by_name() if name)))
        told |= dict.fromkeys(
            (*seen.parts, *(name for gate in seen.gates if gate.name == "learned" for name in gate.of))
        )
        own = seen if not plan.configs else _seen(claim, plan.experiment.planned_rows(tables, plan.configs))
        if own is not None:
            effects = own.by_name() | effects
            parts |= dict.fromkeys(own.parts)
        if effects and effects.keys() >= names.keys() and (names or not told.keys() - parts.keys()):
            break
    if names:
        return whole, effects, tuple(n for n in names if n in effects), tuple(n for n in names if n not in effects)
    if parts:
        return whole, effects, tuple(parts), tuple(name for name in told if name not in parts)
    return whole, effects, (), ()


@cache
def _tables(folder: Path) -> Tables:
    open_sealed(folder)
    return read_tables(folder)[1]


@cache
def _of_two_seeds(folder: Path) -> Tables:
    tables = _tables(folder)
    seeds = {row["seed"] for row in tables.get("runs", ()) if "seed" in row}
    kept = {None, *sorted(seeds)[:2]}
    return {name: Rows(row for row in rows if row.get("seed") in kept) for name, rows in tables.items()}


def _seen(claim: Claim, tables: Tables | None) -> Measurement | None:
    try:
        return None if tables is None else claim.measured(tables)
    except _LACKING:
        return None


def _of_scale(plan: ExperimentPlan) -> Iterator[Gate]:
    if plan.scale == UNJUDGED:
        yield Gate("regime", False, f"scale {UNJUDGED} only checks that everything runs, so it gives no verdicts")


def _of_seeds(plan: ExperimentPlan, claim: Claim) -> Iterator[Gate]:
    if plan.seeds is None or isinstance(claim.rule, Always):
        return
    count = len(plan.seeds)
    if claim.about == "training":
        yield Gate("seeds", count > 1, f"{count} seeds" if count > 1 else "one seed is not enough for a verdict")


def _of_same_plan(plan: ExperimentPlan, claim: Claim, folders: Sequence[Path]) -> list[Gate]:
    same = next((folder for folder in folders if plan.configs and _trainings(folder) == plan.to_data()["runs"]), None)
    seen = None if same is None else _seen(claim, _of_two_seeds(same))
    return [] if seen is None else [gate for gate in seen.gates if gate.name in _RATIOS]


@cache
def _trainings(folder: Path) -> Any:
    return read_about(folder).get("config", {}).get("runs")


def _of_power(claim: Claim, effects: dict[str, Effect], count: int) -> Iterator[Gate]:
    if claim.rule is None or not claim.asks_power:
        return
    for name, effect in effects.items():
        with at_level(claim.level):
            found = chances(claim.rule, {name: effect.with_seeds(count)}, claim.aim, claim.effect_if_false)
            if found is None:
                continue
            few = max(found) < PLANNED
            enough = (
                seeds_enough(claim.rule, {name: effect.with_seeds(2)}, claim.aim, claim.effect_if_false)
                if few
                else None
            )
        text = (
            f"if the effect varies over seeds as in the stored tables, {count} seeds confirm the paper's effect in a "
            f"fraction {found[0]:.2f} of simulated experiments, and deny a false claim in a fraction {found[1]:.2f}"
        )
        text += f"; {enough} seeds would raise the first fraction to {PLANNED:g}" if enough and enough > count else ""
        gate = Gate("power", max(found) >= LIKELY, text, (*found, LIKELY))
        yield gate.about(name) if name else gate
