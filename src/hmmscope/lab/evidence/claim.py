"""A claim: what a paper says, what is measured for it, and the rule by which tables decide it.

    @claim("limits-fit-length-grows")
    def grows(tables: Tables, numbers: Numbers) -> Seen:
        effects = {task: Effect.pooled(list(...)) for task in REMEMBERING}
        return Seen(effects, text="...", wanted=REMEMBERING, gates=(Gate.converged(...),))

What is claimed, the rule and every number stand in a record, see `hmmscope.lab.evidence.records`: a file beside the module,
or the arguments of `claim`. The function measures; it never judges. All verdicts are made here, from the effects, by the
rule.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from hmmscope import registry
from hmmscope.errors import InputError
from hmmscope.lab.evidence.cases import Case, Judged, parts_of
from hmmscope.lab.evidence.effects import ALPHA, Effect, at_level
from hmmscope.lab.evidence.finding import Finding, Part
from hmmscope.lab.evidence.power import Power, Redrawn, power_of
from hmmscope.lab.evidence.records import About, Record, RuleParameters, folder_of, judged_by, record
from hmmscope.lab.evidence.rows import Rows, as_tables, identical_seeds
from hmmscope.lab.evidence.verdicts import Above, Below, Gate, Rule, Verdict, answer


@dataclass(frozen=True)
class Measurement:
    """What the function of a claim has measured.

    Attributes:
        effects: the effect, or several by name that must all bear the claim out; None where it was not measured.
        text: what was seen, in sentences.
        gates: what must hold before anything is judged.
        required: names of `effects` that the claim is about; if one is missing, the claim is not tested.
        compute_used: budget that the effects are of, by currency; where none is given, the most that a model was trained
        on, by the
            table of runs.
        last_doubling_change: by name like `effects`, how much each has changed over the last doubling of the training; a
        claim that has
            them is judged only if one more doubling would not turn it, see `verdicts.converged_by_rule`.
        resampled: simulated effects, where their law is not that of seeds, see `power.Redrawn`.
        parts: effects by name that are judged beside those of the claim, and do not decide it: such as one of each task
            where the claim is about a mean over tasks.
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
        """The effects by name; a single one has no name."""
        if self.effects is None:
            return {}
        return {"": self.effects} if isinstance(self.effects, Effect) else dict(self.effects)

    def changes_by_name(self, sign: int = 1) -> dict[str, float | None]:
        """The drifts by name, like the effects."""
        drifts = (
            self.last_doubling_change
            if isinstance(self.last_doubling_change, Mapping)
            else {"": self.last_doubling_change}
        )
        return {name: None if drift is None else sign * drift for name, drift in drifts.items()}


@dataclass(frozen=True, kw_only=True)
class Claim(Record):
    """A claim and how it is decided.

    Attributes:
        name: in the ledger.
        experiment: the one whose tables decide.
        source: paper, section, and figure, table or theorem; `OURS` of a question of our own.
        claim_text: what the paper says, a sentence, as weak or as strong as there; of a question what is asked.
        operationalization: what is measured for it and when it holds, one sentence.
        rule: how the effect decides; None of a question, which is answered or open.
        about: "training" of what training does to a model (an effect of trained less untrained models, or behind the gate
            `learned`); "construction" of networks with weights from a theorem; "process" of processes and exact answers.
        proved: the theorem proves it of its network, so that the rows of that network must bear it out.
        measure: from tables, and the numbers of the record where it takes them, to what was seen; what it calls may ask for
            them, see `records.number`.
    """

    measure: Callable[..., Measurement] = field(repr=False)

    @property
    def is_question(self) -> bool:
        """Whether nothing was claimed."""
        return self.rule is None

    def evaluate(self, tables: Mapping[str, Any], *, mirrored: bool = False, power: bool = True) -> Finding:
        """The verdict of tables.

        Args:
            tables: lists of rows by name.
            mirrored: turn every effect to the other side of the rule's bound, to test the rule.
            power: whether the rule has to show that it could have come out either way.
        """
        return self.finding(self.measured(tables), mirrored=mirrored, power=power)

    def measured(self, tables: Mapping[str, Any]) -> Measurement:
        """What the function measures on tables, by the numbers of the record."""
        takes = len(inspect.signature(self.measure).parameters) > 1
        with self.measuring():
            known = as_tables(tables)
            seen = self.measure(known, *([self.parameters] if takes else []))
        twins = identical_seeds(known) if self.about == "training" else None
        if twins is not None:
            text = f"seeds {twins[0]} and {twins[1]} have the same rows, so that they are one"
            seen = replace(seen, gates=(Gate("seeds", False, text), *seen.gates))
        if seen.compute_used:
            return seen
        runs = Rows(tables.get("runs", ()))
        spent = {name: [row[name] for row in runs if row.get(name) is not None] for name in ("sequences", "tokens")}
        return replace(seen, compute_used={name: max(found) for name, found in spent.items() if found})

    @contextmanager
    def measuring(self) -> Iterator[None]:
        """Intervals and numbers are those of the record in here, for figures that draw what a claim asks."""
        with at_level(self.level), judged_by(self.parameters):
            yield

    def finding(self, seen: Measurement, *, mirrored: bool = False, power: bool = True) -> Finding:
        """The verdict of what was seen, see `evaluate`."""
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
        self, judged: "Judged", effects: Mapping[str, Effect], text: str, parts: Sequence[Part] = ()
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
        """Of the rule, at the spread and seeds of what was seen, see `hmmscope.lab.evidence.power`; None of a question."""
        if self.rule is None:
            return None
        effects = seen.by_name()
        with self.measuring():
            case, names = self._case(effects, seen), tuple(dict.fromkeys((*seen.required, *effects)))
            found = case.together(names, case.each(names) if len(names) > 1 else {}).power
            return (
                power_of(self.rule, effects, self.aim, self.effect_if_false, seen.resampled) if found is None else found
            )


def _short(bound: float | None) -> float | None:
    """A bound that is told and decides nothing, to four digits."""
    return None if bound is None else float(f"{bound:.4g}")


def _answer(effect: Effect | None, about: About) -> Verdict:
    """See `answer`; exact numbers, which have no interval, answer what is not about training."""
    if about != "training" and (effect is None or effect.low is None):
        return "answered"
    return answer(None, None) if effect is None else answer(effect.low, effect.high)


def claim(
    name: str,
    *,
    experiment: str = "",
    source: str = "",
    claim_text: str = "",
    operationalization: str = "",
    rule: Rule | None = None,
    about: About = "training",
    proved: bool = False,
    version: int = 1,
    level: float = ALPHA,
    effect_if_true: float | None = None,
    effect_if_false: float | None = None,
    more_budget_could_help: bool | None = None,
    parameters: Mapping[str, Any] | None = None,
) -> Callable[[Callable[..., Measurement]], Claim]:
    """Register a function as a claim, see `Claim`; without a rule as a question.

    With the name alone the rest is read from the record of that name in the folder "claims" beside the function's module.

    Raises:
        InputError: there is no such record.
    """

    def decorate(measure: Callable[..., Measurement]) -> Claim:
        if any((experiment, source, claim_text, operationalization)):
            made = Record(
                name=name,
                experiment=experiment,
                source=source,
                claim_text=claim_text,
                operationalization=operationalization,
                rule=rule,
                about=about,
                proved=proved,
                version=version,
                level=level,
                effect_if_true=effect_if_true,
                effect_if_false=effect_if_false,
                more_budget_could_help=more_budget_could_help,
                parameters=RuleParameters(parameters or {}),
            )
        else:
            folder = folder_of(measure.__module__)
            if folder is None:
                raise InputError(f"claim {name}: give experiment, source, says, reading and rule")
            made = record(folder, name)
        return registry.claim(name)(Claim(**vars(made), measure=measure))

    return decorate


def claims_of(experiment: str) -> list[Claim]:
    """The claims that an experiment decides, in the order of the file that states them."""
    return [entry for entry in registry.in_order("claim") if entry.experiment == experiment]
