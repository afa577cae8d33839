"""Decision rules, which map effects to verdicts, and gates (preconditions of verdicts)."""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, get_args

from hmmscope.errors import InputError
from hmmscope.lab.evidence.effects import Effect, level
from hmmscope.lab.evidence.rows import Rows, Tables
from hmmscope.ties import rounded

Verdict = Literal[
    "reproduced",
    "reproduced in sign",
    "not reproduced",
    "not at this budget",
    "inconclusive",
    "not tested",
    "answered",
    "open",
]
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
#: Verdicts that decide a claim.
DECIDED: tuple[Verdict, ...] = VERDICTS[:4]
#: Verdicts that confirm a claim, and that deny it.
CONFIRMED: tuple[Verdict, ...] = VERDICTS[:2]
DENIED: tuple[Verdict, ...] = VERDICTS[2:4]
#: Verdicts of questions.
OF_QUESTIONS: tuple[Verdict, ...] = ("answered", "open")


#: The answer that each verdict of a claim gives; pages and the terminal print it, files keep the verdict.
ANSWERS: dict[Verdict, str] = {
    "reproduced": "supported",
    "reproduced in sign": "supported in sign",
    "not reproduced": "contradicted",
    "not at this budget": "contradicted at this budget",
    "inconclusive": "undecided",
    "not tested": "undecided",
    "answered": "answered",
    "open": "open",
}


def answer_of(verdict: str) -> str:
    if verdict not in ANSWERS:
        raise InputError(f"verdict: unknown {verdict!r} (known: {', '.join(ANSWERS)})")
    return ANSWERS[verdict]


def answer(low: float | None, high: float | None) -> Verdict:
    return "open" if low is None or high is None or rounded(low) <= 0 <= rounded(high) else "answered"


#: Order of the verdicts on several required effects: the first that occurs decides.
_SEVERITY: tuple[Verdict, ...] = ("not reproduced", "inconclusive", "reproduced in sign", "reproduced")
#: Largest change of the loss, in nats, in the last quarter of a converged training.
FLAT = 0.01
#: Most seeds considered for `Rule.seeds_needed`.
MOST_SEEDS = 200


class Rule(ABC):
    """Decision rule for an effect.

    Attributes:
        name: id in records and protocols; it never changes.
    """

    name: ClassVar[str]
    bound: float

    @abstractmethod
    def decide(self, low: float, value: float, high: float) -> Verdict:
        """Return the verdict for the interval [low, high]."""

    @abstractmethod
    def __str__(self) -> str:
        """Format the rule for a reader, as ``the effect must be above 0``."""

    def verdict(self, effect: Effect) -> Verdict:
        if effect.low is None or effect.high is None or effect.num_seeds < 2 or effect.num_missing:
            return "inconclusive"
        return self.decide(rounded(effect.low), rounded(effect.value), rounded(effect.high))

    def p_value(self, effect: Effect) -> float | None:
        return effect.p_value(self.bound)

    def holds_by_sign(self, effect: Effect) -> bool:
        return False

    def seeds_needed(self, effect: Effect) -> int | None:
        """Return the least number of seeds (up to 200) that decides a claim at this effect and spread, or None."""
        counts = range(2, MOST_SEEDS + 1)
        return next((n for n in counts if self.verdict(effect.with_seeds(n)) != "inconclusive"), None)


@dataclass(frozen=True)
class Above(Rule):
    """The effect exceeds a bound by at least the smallest effect that matters.

    The verdict is reproduced if the interval is above bound + `smallest_effect`, reproduced in sign if it is above the
    bound, and not reproduced if it is below bound + `smallest_effect`.
    """

    name: ClassVar[str] = "above"

    bound: float = 0.0
    smallest_effect: float = field(default=0.0, metadata={"stored": "matters"})

    def decide(self, low: float, value: float, high: float) -> Verdict:
        least = self.bound + self.smallest_effect
        if high < least or (high == least == self.bound):
            return "not reproduced"
        if low <= self.bound:
            return "inconclusive"
        return "reproduced" if low >= least else "reproduced in sign"

    def holds_by_sign(self, effect: Effect) -> bool:
        return effect.sign_low is not None and rounded(effect.sign_low) > self.bound

    def __str__(self) -> str:
        at_least = f"at least {self.bound + self.smallest_effect:g} (above {self.bound:g} for support in sign only)"
        return f"the effect must be {at_least if self.smallest_effect else f'above {self.bound:g}'}"


@dataclass(frozen=True)
class Below(Rule):
    """The effect is below a bound, by the mirrored rule of `Above`."""

    name: ClassVar[str] = "below"

    bound: float = 0.0
    smallest_effect: float = field(default=0.0, metadata={"stored": "matters"})

    def decide(self, low: float, value: float, high: float) -> Verdict:
        return Above(-self.bound, self.smallest_effect).decide(-high, -value, -low)

    def holds_by_sign(self, effect: Effect) -> bool:
        return effect.sign_high is not None and rounded(effect.sign_high) < self.bound

    def __str__(self) -> str:
        at_most = f"at most {self.bound - self.smallest_effect:g} (below {self.bound:g} for support in sign only)"
        return f"the effect must be {at_most if self.smallest_effect else f'below {self.bound:g}'}"


@dataclass(frozen=True)
class Within(Rule):
    """The effect equals the bound up to a margin."""

    name: ClassVar[str] = "within"

    margin: float
    bound: float = 0.0

    def decide(self, low: float, value: float, high: float) -> Verdict:
        if low > self.bound - self.margin and high < self.bound + self.margin:
            return "reproduced"
        return "not reproduced" if low > self.bound + self.margin or high < self.bound - self.margin else "inconclusive"

    def p_value(self, effect: Effect) -> float | None:
        """Return the larger p-value of two one-sided tests.

        Source: Schuirmann 1987.
        """
        found = [effect.one_sided(self.bound - side * self.margin, side) for side in (1, -1)]
        return max((one for one in found if one is not None), default=None)

    def holds_by_sign(self, effect: Effect) -> bool:
        least, most = self.bound - self.margin, self.bound + self.margin
        return Above(least).holds_by_sign(effect) and Below(most).holds_by_sign(effect)

    def __str__(self) -> str:
        return f"the effect must be between {self.bound - self.margin:g} and {self.bound + self.margin:g}"


@dataclass(frozen=True)
class Printed(Rule):
    """The paper's printed number is in the prediction interval (`Effect.predicted`).

    Args:
        bound: the printed number.
        margin: largest half-width of an interval that confirms the claim.
    """

    name: ClassVar[str] = "printed"

    bound: float
    margin: float

    def decide(self, low: float, value: float, high: float) -> Verdict:
        if not low <= self.bound <= high:
            return "not reproduced"
        return "reproduced" if (high - low) / 2 <= self.margin else "inconclusive"

    def seeds_needed(self, effect: Effect) -> int | None:
        return None

    def __str__(self) -> str:
        return f"a prediction interval of half-width at most {self.margin:g} must contain the paper's {self.bound:g}"


@dataclass(frozen=True)
class Always(Rule):
    """A property holds in every instance (`Effect.share`).

    Args:
        least: fraction that the interval must exceed; exceeding 0.9 takes at least 36 instances.
    """

    name: ClassVar[str] = "always"

    least: float = 0.9
    bound: float = 1.0

    def decide(self, low: float, value: float, high: float) -> Verdict:
        if value < 1:
            return "not reproduced"
        return "reproduced" if low > self.least else "inconclusive"

    def seeds_needed(self, effect: Effect) -> int | None:
        """Return the number of instances that would confirm the claim; None after a counterexample."""
        return math.ceil(math.log(level() / 2) / math.log(self.least)) if effect.value == 1 else None

    def __str__(self) -> str:
        return (
            f"all instances must meet the criterion, and the interval of their fraction must lie above {self.least:g}"
        )


#: Rules by their names in records.
RULES: dict[str, type[Rule]] = {rule.name: rule for rule in (Above, Below, Within, Printed, Always)}


@dataclass(frozen=True)
class Gate:
    """A precondition of a verdict.

    Attributes:
        name: kind of precondition, such as "converged" or "learned".
        is_open: whether the precondition holds.
        text: a clause that follows "Undecided: ".
        seen: the measured numbers, then their thresholds.
        of: names of the effects with this precondition; empty for all.
    """

    name: Literal["converged", "learned", "matched", "measured", "regime", "room", "seeds", "power"]
    is_open: bool
    text: str
    seen: tuple[float, ...] = field(default=(), compare=False, repr=False)
    of: tuple[str, ...] = ()

    def to_data(self) -> dict[str, Any]:
        return {"name": self.name, "is_open": self.is_open, "text": self.text}

    def about(self, *names: str) -> "Gate":
        """Return the gate, restricted to the named effects."""
        return replace(self, of=names)

    def concerns(self, names: Iterable[str]) -> bool:
        """Return whether the gate applies to any of the effects `names`; "" stands for all effects."""
        return not self.of or any(name in self.of or not name for name in names)

    @staticmethod
    def converged(changes: Mapping[str, float | None], margin: float, what: str) -> "Gate":
        """Require that outcomes changed little over the last quarter of training.

        Args:
            changes: change of the outcome by run; None if not recorded.
            margin: smallest change that fails the precondition.
            what: the outcome, such as "fit length".
        """
        unknown = [name for name, change in changes.items() if change is None]
        moving = [name for name, change in changes.items() if change is not None and not abs(change) < margin]
        if unknown or not changes:
            return Gate(
                "converged",
                False,
                f"the change of the {what} in the last quarter of training is not recorded",
                (margin,),
            )
        most = (max(abs(change) for change in changes.values() if change is not None), margin)
        if moving:
            text = f"in {len(moving)} of {len(changes)} cases ({_some(moving)}) the {what} still changed by {margin:g}"
            return Gate("converged", False, f"{text} or more in the last quarter of training", most)
        return Gate(
            "converged", True, f"the {what} changed by less than {margin:g} in the last quarter of training", most
        )

    @staticmethod
    def flat(tables: Tables, margin: float = FLAT, **fields: Any) -> "Gate":
        """Require that each run's loss is near the Bayes loss, or changed little over the last quarter of training.

        Args:
            tables: tables by name, including ``runs``.
            margin: smallest change, or excess over the Bayes loss, that fails the precondition, in nats.
            fields: column values that select runs.
        """
        runs = Rows(tables.get("runs", ())).where(**fields)
        changes = {f"{row['label']}, seed {row['seed']}": _last_change(row, margin) for row in runs}
        return Gate.converged(changes, margin, "loss")

    @staticmethod
    def converged_by_rule(rule: Rule, effects: Mapping[str, Effect], drifts: Mapping[str, float | None]) -> "Gate":
        """Require that one more doubling of training would not change the verdict.

        Args:
            rule: rule of the claim.
            effects: effects by name.
            drifts: change of each effect over the last doubling of training; None if not recorded.
        """
        unknown = [name for name in effects if drifts.get(name) is None]
        if unknown or not effects:
            return Gate("converged", False, "the effect's change over the last doubling of training is not recorded")
        shifts = {name: rounded(drifts[name] or 0.0) for name in effects}
        now, _, _ = all_of(rule, effects)
        then, _, _ = all_of(rule, {name: effect.shifted(shifts[name]) for name, effect in effects.items()})
        said = ", ".join(f"{shift:+.2g} ({name})" if name else f"{shift:+.2g}" for name, shift in shifts.items())
        pace = f"the last doubling of training changed the effect by {said}"
        stays = now == then or (now, then) == ("reproduced in sign", "reproduced")
        turned = "not change the answer" if stays else f"change the answer from {answer_of(now)} to {answer_of(then)}"
        return Gate("converged", stays, f"{pace}; another such change would {turned}", tuple(shifts.values()))

    @staticmethod
    def learned(effect: Effect | None, margin: float, control: str) -> "Gate":
        """Require that a model's lead over `control` is at least `margin`, with an interval above 0."""
        if effect is None:
            return Gate("learned", False, f"whether the model is better than {control} was not measured", (0.0, margin))
        is_open = effect.low is not None and rounded(effect.low) > 0 and rounded(effect.value) >= margin
        needed = f"at least {margin:g} with an interval above 0"
        lead = f"the model's lead over {control} is {effect} (required: {needed})"
        said = f"the model is better than {control} by {effect}" if is_open else lead
        seen = (effect.value, margin) if effect.low is None else (effect.value, effect.low, margin)
        return Gate("learned", is_open, said, seen)

    @staticmethod
    def matched(budgets: Mapping[str, Mapping[str, float]], tolerance: float = 0.05) -> "Gate":
        """Require equal budgets in at least one unit, such as tokens or steps.

        Args:
            budgets: budgets by model, then by unit (sequences, tokens, FLOPs, processor seconds).
            tolerance: accepted relative difference.
        """
        rows = list(budgets.values())
        common = [name for name in (rows[0] if rows else {}) if all(name in row for row in rows)]
        known = (*(_ratio([row[name] for row in rows]) for name in common), tolerance)
        equal = [name for name in common if _ratio([row[name] for row in rows]) <= 1 + tolerance]
        if equal:
            return Gate("matched", True, f"the compared models were trained with equal {', '.join(equal)}", known)
        ratios = ", ".join(f"{name} by a factor of {_ratio([row[name] for row in rows]):.2g}" for name in common)
        differ = f"differ ({ratios})" if ratios else "are not recorded in a common unit"
        return Gate("matched", False, f"the training budgets of the compared models {differ}", known)

    @staticmethod
    def equal_tokens(tables: Tables) -> "Gate":
        """Require equal training tokens for all models."""
        runs = Rows(tables.get("runs", ()))
        return Gate.matched({label: {"tokens": own[0]["tokens"]} for label, own in runs.by("label").items()})

    @staticmethod
    def regime(value: float, low: float, high: float, what: str) -> "Gate":
        """Require that the value described by `what` is between `low` and `high`."""
        is_open = low <= value <= high
        most = f"{low:.4g} to {high:.4g}" if low else f"at most {high:.4g}"
        needed = f"at least {low:.4g}" if math.isinf(high) else most
        return Gate("regime", is_open, f"{what} is {value:.4g} (required: {needed})", (value, low, high))

    @staticmethod
    def headroom(available: float, needed: float, what: str) -> "Gate":
        """Require that the largest possible effect, `available`, is at least `needed`."""
        is_open = available >= needed
        text = f"{what} allows an effect of at most {available:.3g} (required: {needed:.3g})"
        return Gate("room", is_open, text, (available, needed))


def at_budget(
    verdict: Verdict, spent: Mapping[str, float], papers: Mapping[str, float], could_help: bool | None = None
) -> tuple[Verdict, str]:
    """Return the verdict at the training budget `spent`, and words for the budget.

    Returns:
        the verdict, and words such as ``at 640,000 sequences (the paper: 500,000,000)``, "" if the paper's budget is
            reached. If it is not, and more training could help, "not reproduced" becomes "not at this budget".
    """
    known = [name for name in papers if name in spent] or [name for name in ("sequences", "tokens") if name in spent]
    short = [name for name in known[:1] if spent[name] < papers.get(name, math.inf)]
    if not short and papers and known:
        return verdict, ""
    own = [f"{spent[name]:,.0f} {name}" for name in short] or ["an unrecorded budget"]
    paper = f"{papers[short[0]]:,.0f}" if short and short[0] in papers else "not stated"
    verdict = "not at this budget" if verdict == "not reproduced" and could_help else verdict
    return verdict, f"at {own[0]} (the paper: {paper})"


def all_of(rule: Rule, effects: Mapping[str, Effect], wanted: Sequence[str] = ()) -> tuple[Verdict, str, list[str]]:
    """Return the verdict of a claim that needs several effects.

    Args:
        rule: rule of each effect.
        effects: effects by name.
        wanted: names that `effects` must contain.

    Returns:
        verdict, name of the deciding effect, names of missing effects.
    """
    missing = [name for name in wanted if name not in effects]
    verdicts = {name: rule.verdict(effect) for name, effect in effects.items()}

    def weight(name: str) -> tuple[int, float]:
        effect = effects[name]
        return _SEVERITY.index(verdicts[name]), _distance(rule, effect)

    decides = min(effects, key=weight, default="")
    if missing or not effects:
        return "not tested", decides, missing
    return verdicts[decides], decides, []


def severest(verdicts: Iterable[Verdict]) -> Verdict:
    return min(verdicts, key=_SEVERITY.index)


def _distance(rule: Rule, effect: Effect) -> float:
    low = effect.value if effect.low is None else effect.low
    high = effect.value if effect.high is None else effect.high
    if isinstance(rule, Below):
        return rule.bound - high
    if isinstance(rule, Within | Printed):
        return -max(abs(low - rule.bound), abs(high - rule.bound))
    return low - rule.bound


def _last_change(run: Mapping[str, Any], margin: float) -> float | None:
    if run.get("excess") is not None and 0 <= run["excess"] < margin:
        return float(run["excess"])
    return run.get("last_quarter")


def _ratio(values: Sequence[float]) -> float:
    least = min(values)
    return max(values) / least if least > 0 else math.inf


def _some(names: Sequence[str]) -> str:
    return "; ".join([*names[:3], *(["others"] if len(names) > 3 else [])])
