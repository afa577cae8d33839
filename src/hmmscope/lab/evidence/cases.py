"""Verdicts on a claim: for each measured effect alone, and for all together."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from hmmscope.lab.evidence.effects import Effect
from hmmscope.lab.evidence.finding import TaskVerdict
from hmmscope.lab.evidence.power import Power, Redrawn, powered
from hmmscope.lab.evidence.records import ClaimRecord
from hmmscope.lab.evidence.verdicts import CONFIRMED, DECIDED, DENIED, Gate, Verdict, all_of, at_budget


@dataclass(frozen=True)
class Judged:
    """A verdict with its reasons.

    Attributes:
        decides: name of the deciding effect.
        gates: checked preconditions.
        why: reason of the verdict "not tested", or a caveat on another verdict; "" if there is none.
        budget: the training budget in words; "" if it is at least the paper's budget.
        power: statistical power of the rule; None if not computed.
    """

    verdict: Verdict
    decides: str
    gates: tuple[Gate, ...]
    why: str = ""
    budget: str = ""
    power: Power | None = None

    def said(self, text: str) -> str:
        if self.verdict == "not tested":
            return f"Undecided: {self.why}. {text}".strip()
        return f"{text} ({self.why})" if self.why else text


@dataclass(frozen=True)
class Case:
    """The inputs of the verdicts on a claim.

    Attributes:
        claim: record of the claim.
        effects, gates: measured effects by name; preconditions of a verdict.
        spent: training budget by unit, such as tokens.
        drifts: change of each effect over the last doubling of training; None if not recorded.
        redrawn: see `Measurement.resampled`.
        power: see `Claim.evaluate`.
    """

    claim: ClaimRecord
    effects: Mapping[str, Effect]
    gates: Sequence[Gate]
    spent: Mapping[str, float]
    drifts: Mapping[str, float | None] | None
    redrawn: Redrawn | None
    power: bool

    def each(self, names: Sequence[str]) -> dict[str, Judged]:
        return {name: self._judged((name,)) for name in names}

    def together(self, names: Sequence[str], each: Mapping[str, Judged]) -> Judged:
        able = [name for name in names if name in each and not _closed(each[name])]
        if 0 < len(able) < len(names):
            found = self._judged(tuple(able))
            if found.verdict in DENIED:
                return found
        found = self._judged(tuple(names) or ("",))
        if found.verdict in DENIED and each and not any(one.verdict in DENIED for one in each.values()):
            none = next(one for one in each.values() if one.verdict == "not tested")
            return replace(found, verdict="not tested", gates=none.gates, why=none.why)
        return found

    def _judged(self, names: tuple[str, ...]) -> Judged:
        rule = self.claim.rule
        assert rule is not None
        known = {name: self.effects[name] for name in names if name in self.effects}
        gates = tuple(gate for gate in self.gates if gate.concerns(names))
        if self.drifts is not None:
            drifts = {name: self.drifts.get(name) for name in known}
            gates += (Gate.converged_by_rule(rule, known, drifts),)
        verdict, decides, missing = all_of(rule, known, tuple(name for name in names if name))
        why = self._untested(verdict, missing, gates)
        if why:
            return self._at_budget(Judged("not tested", decides, gates, why))
        if verdict in DECIDED and self.power and self.claim.asks_power:
            able, shares, limited = powered(
                rule,
                known,
                verdict,
                effect_if_true=self.claim.aim,
                effect_if_false=self.claim.effect_if_false,
                least=self.claim.least_power,
                redrawn=self.redrawn,
            )
            gates += (able,)
            if not able.is_open:
                return self._at_budget(Judged("not tested", decides, gates, f"power: {able.text}", power=shares))
            low = limited in CONFIRMED and shares is not None and shares.power < self.claim.least_power
            why = "The power is low, so the size of the effect is uncertain." if low else ""
            return self._at_budget(Judged(limited, decides, gates, why, power=shares))
        return self._at_budget(Judged(verdict, decides, gates, _undecided(verdict, known.get(decides))))

    def _untested(self, verdict: Verdict, missing: Sequence[str], gates: Sequence[Gate]) -> str:
        closed = next((gate for gate in gates if not gate.is_open), None)
        if closed is not None:
            return closed.text
        if verdict == "not tested":
            return f"{', '.join(missing) or 'the effect of this claim'} {'were' if len(missing) > 1 else 'was'} not measured"
        about_training = self.claim.about == "training"
        if verdict == "not reproduced" and about_training and all(gate.name != "learned" for gate in gates):
            return "the gain of the trained model over untrained controls is not recorded"
        return ""

    def _at_budget(self, judged: Judged) -> Judged:
        if self.claim.about != "training":
            return judged
        helps = self.claim.more_budget_could_help
        verdict, budget = at_budget(judged.verdict, self.spent, self.claim.budget, helps)
        return replace(judged, verdict=verdict, budget=budget)


def parts_of(judged: Mapping[str, Judged], effects: Mapping[str, Effect]) -> list[TaskVerdict]:
    """Return the verdict on each effect; [] if all effects fail the same precondition."""
    made: list[TaskVerdict] = []
    for name, one in judged.items():
        known = effects.get(name)
        closed = next((gate.name for gate in one.gates if not gate.is_open), "")
        why = "" if one.verdict != "not tested" else closed or ("not measured" if known is None else "learned")
        made.append(TaskVerdict(name, one.verdict, "" if known is None else str(replace(known, unit="")), why))
    closed_alike = {(part.verdict, part.why) for part in made} if made and made[0].verdict == "not tested" else ()
    return [] if len(closed_alike) == 1 else made


def _closed(one: Judged) -> bool:
    return one.verdict == "not tested" and not any(gate.name == "power" for gate in one.gates)


def _undecided(verdict: Verdict, effect: Effect | None) -> str:
    if verdict != "inconclusive" or effect is None:
        return ""
    if effect.num_seeds < 2:
        return "One seed is not enough for a verdict."
    if effect.num_missing:
        return f"Only {effect.num_seeds} of {effect.num_seeds + effect.num_missing} seeds have a value of this effect."
    return ""
