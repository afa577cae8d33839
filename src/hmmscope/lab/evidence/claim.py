"""Claims: a claim is a statement of a paper with a function that measures it and a rule that decides it.

    @claim("limits-fit-length-grows")
    def grows(tables: Tables, numbers: RuleParameters) -> Measurement:
        effects = {task: Effect.pooled(list(...)) for task in REMEMBERING}
        return Measurement(effects, text="...", required=REMEMBERING, gates=(Gate.converged(...),))

The function returns measured effects; the decision rule is in the claim's record, see `hmmscope.lab.evidence.records`.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from hmmscope import registry
from hmmscope.errors import InputError
from hmmscope.lab.evidence.cases import Case, Judged, parts_of
from hmmscope.lab.evidence.effects import Effect, at_level
from hmmscope.lab.evidence.finding import Finding, TaskVerdict
from hmmscope.lab.evidence.power import Power, Redrawn, power_of
from hmmscope.lab.evidence.records import About, ClaimRecord, folder_of
from hmmscope.lab.evidence.records import record as stored_record
from hmmscope.lab.evidence.rows import Rows, as_tables, identical_seeds
from hmmscope.lab.evidence.verdicts import Above, Below, Gate, Verdict, answer


@dataclass(frozen=True)
class Measurement:
    """The result of a claim's function: effects, and preconditions of a verdict.

    Attributes:
        effects: one effect, or effects by name that must all confirm the claim; None if nothing was measured.
        text: sentences about the result.
        gates: preconditions of a verdict.
        required: names of the effects without which the claim counts as not tested.
        last_doubling_change: change of each effect over the last doubling of training, for `Gate.converged_by_rule`.
        compute_used: training budget by unit, such as tokens (default: the largest in the table "runs").
        resampled: function that simulates an effect that is no mean over seeds, see `power.Redrawn`.
        parts: further effects; their verdicts are shown but do not decide the claim.
    """

    effects: Effect | Mapping[str, Effect] | None
    text: str
    gates: Sequence[Gate] = ()
    required: Sequence[str] = ()
    last_doubling_change: Mapping[str, float | None] | float | None = None
    compute_used: Mapping[str, float] = field(default_factory=dict)
    resampled: Redrawn | None = field(default=None, compare=False, repr=False)
    parts: Mapping[str, Effect] = field(default_factory=dict)

    def by_name(self) -> dict[str, Effect]:
        """Return the effects by name; a single effect has the empty name."""
        if self.effects is None:
            return {}
        return {"": self.effects} if isinstance(self.effects, Effect) else dict(self.effects)

    def changes_by_name(self, sign: int = 1) -> dict[str, float | None]:
        """Return the change of each effect over the last doubling of training, times `sign`."""
        drifts = (
            self.last_doubling_change
            if isinstance(self.last_doubling_change, Mapping)
            else {"": self.last_doubling_change}
        )
        return {name: None if drift is None else sign * drift for name, drift in drifts.items()}


@dataclass(frozen=True, kw_only=True)
class Claim(ClaimRecord):
    """A claim and its decision rule.

    Attributes:
        name: name of the claim in the ledger.
        experiment: name of the experiment that measures the claim.
        source: paper and place in it; `OURS` for a question of this project.
        claim_text: the statement, exactly as strong as in the paper, or the question.
        operationalization: how the claim is measured, and when it holds.
        rule: decision rule; None for a question.
        about: subject of the claim: "training", "construction" (network with weights from a theorem) or "process".
        proved: whether a constructed network must confirm the claim, because a theorem proves it.
        measure: function of the tables (and the record's parameters) that returns a `Measurement`.
    """

    measure: Callable[..., Measurement] = field(repr=False)

    @property
    def is_question(self) -> bool:
        return self.rule is None

    def evaluate(self, tables: Mapping[str, Any], *, mirrored: bool = False, power: bool = True) -> Finding:
        """Measure the claim in tables, and return the finding.

        Args:
            tables: lists of rows by name of the table.
            mirrored: whether to reflect each effect about the bound of the rule (for tests).
            power: whether verdicts for or against the claim need enough statistical power.
        """
        return self.finding(self.measured(tables), mirrored=mirrored, power=power)

    def measured(self, tables: Mapping[str, Any]) -> Measurement:
        takes = len(inspect.signature(self.measure).parameters) > 1
        with at_level(self.level):
            known = as_tables(tables)
            seen = self.measure(known, *([self.parameters] if takes else []))
        twins = identical_seeds(known) if self.about == "training" else None
        if twins is not None:
            text = f"seeds {twins[0]} and {twins[1]} have identical rows; seeds must be independent"
            seen = replace(seen, gates=(Gate("seeds", False, text), *seen.gates))
        if seen.compute_used:
            return seen
        runs = Rows(tables.get("runs", ()))
        spent = {name: [row[name] for row in runs if row.get(name) is not None] for name in ("sequences", "tokens")}
        return replace(seen, compute_used={name: max(found) for name, found in spent.items() if found})

    def finding(self, seen: Measurement, *, mirrored: bool = False, power: bool = True) -> Finding:
        with at_level(self.level):
            return self._finding(seen, mirrored, power)

    def _finding(self, seen: Measurement, mirrored: bool, power: bool) -> Finding:
        effects, parts = seen.by_name(), dict(seen.parts)
        if mirrored and self.rule is not None:
            effects, parts = (
                {name: effect.mirrored(self.rule.bound) for name, effect in known.items()} for known in (effects, parts)
            )
        if self.rule is None:
            name = next(iter(effects), "")
            judged = Judged(_answer(effects.get(name), self.about), name, tuple(seen.gates))
            return self._written(judged, effects, seen.text)
        case = self._case(effects, seen, mirrored, power)
        names = tuple(dict.fromkeys((*seen.required, *effects)))
        each = case.each(names) if len(names) > 1 else {}
        beside = replace(case, effects=parts, redrawn=None).each(tuple(parts))
        judged = case.together(names, each)
        shown = [*parts_of(each, effects), *parts_of(beside, parts)]
        return self._written(judged, effects, judged.said(seen.text), shown)

    def _case(
        self, effects: Mapping[str, Effect], seen: Measurement, mirrored: bool = False, power: bool = True
    ) -> Case:
        drifts = None if seen.last_doubling_change is None else seen.changes_by_name(-1 if mirrored else 1)
        return Case(self, effects, seen.gates, seen.compute_used, drifts, seen.resampled, power)

    def _written(
        self, judged: "Judged", effects: Mapping[str, Effect], text: str, parts: Sequence[TaskVerdict] = ()
    ) -> Finding:
        effect = effects.get(judged.decides)
        finding: dict[str, Any] = {}
        if effect is not None:
            unit = ", ".join(part for part in (effect.unit, judged.decides) if part)
            finding = {"value": effect.value, "low": effect.low, "high": effect.high, "unit": unit}
            finding["num_seeds"] = effect.num_seeds
            if self.rule is not None:
                finding["p"] = self.rule.p_value(effect)
                finding["seeds_needed"] = self.rule.seeds_needed(effect) if judged.verdict == "inconclusive" else None
                finding["bimodal"] = effect.bimodal
                if not isinstance(self.rule, Below):
                    finding["sign_low"] = _short(effect.sign_low)
                if not isinstance(self.rule, Above):
                    finding["sign_high"] = _short(effect.sign_high)
        return Finding(
            title=self.claim_text,
            text=text,
            verdict=judged.verdict,
            claim=self.name,
            source=self.source,
            operationalization=self.operationalization,
            gates=judged.gates,
            parts=tuple(parts),
            budget=judged.budget,
            rule_version=self.version,
            **finding,
        )

    def power(self, seen: Measurement) -> Power | None:
        """Return the statistical power of the rule, given the number of seeds and their spread; None if unknown."""
        if self.rule is None:
            return None
        effects = seen.by_name()
        with at_level(self.level):
            case, names = self._case(effects, seen), tuple(dict.fromkeys((*seen.required, *effects)))
            found = case.together(names, case.each(names) if len(names) > 1 else {}).power
            return (
                power_of(self.rule, effects, self.aim, self.effect_if_false, seen.resampled) if found is None else found
            )


def _short(bound: float | None) -> float | None:
    return None if bound is None else float(f"{bound:.4g}")


def _answer(effect: Effect | None, about: About) -> Verdict:
    if about != "training" and (effect is None or effect.low is None):
        return "answered"
    return answer(None, None) if effect is None else answer(effect.low, effect.high)


def claim(record: str | ClaimRecord) -> Callable[[Callable[..., Measurement]], Claim]:
    """Register a function as a claim, or as a question if its record has no rule.

    Args:
        record: record of the claim, or its name in the folder "claims" next to the module of the function.

    Raises:
        InputError: there is no such record.
    """

    def decorate(measure: Callable[..., Measurement]) -> Claim:
        made = record
        if isinstance(made, str):
            folder = folder_of(measure.__module__)
            if folder is None:
                raise InputError(
                    f"claim {made}: module {measure.__module__} has no file, so no folder claims/; pass a ClaimRecord"
                )
            made = stored_record(folder, made)
        return registry.claim(made.name)(Claim(**vars(made), measure=measure))

    return decorate


def claims_of(experiment: str) -> list[Claim]:
    return [entry for entry in registry.in_order("claim") if entry.experiment == experiment]
