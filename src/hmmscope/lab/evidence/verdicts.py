"""From effects to verdicts: the five rules by which claims are judged, and the gates before them.

A rule says which effects bear a claim out, and which are evidence for the contrary. Between the two the claim is open. The
smallest effect that would matter is fixed with the rule: an effect that is surely smaller counts as none.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, get_args

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
#: Verdicts that say something of what is claimed.
DECIDED: tuple[Verdict, ...] = VERDICTS[:4]
#: Those that bear a claim out, and those that deny it.
CONFIRMED: tuple[Verdict, ...] = VERDICTS[:2]
DENIED: tuple[Verdict, ...] = VERDICTS[2:4]
#: Verdicts of questions, which claim nothing.
OF_QUESTIONS: tuple[Verdict, ...] = ("answered", "open")


def answer(low: float | None, high: float | None) -> Verdict:
    """The verdict of a question: open where the interval holds zero, or where there is none."""
    return "open" if low is None or high is None or rounded(low) <= 0 <= rounded(high) else "answered"


#: Verdicts of several effects that must all hold: the first of these decides.
_SEVERITY: tuple[Verdict, ...] = ("not reproduced", "inconclusive", "reproduced in sign", "reproduced")
#: Nats by which the loss may still change in the last quarter of a training that counts as flat.
FLAT = 0.01
#: No more seeds than this are thought of when a number of seeds is named that would decide.
MOST_SEEDS = 200


class Rule(ABC):
    """Decision rule of an effect; subclasses are frozen dataclasses of numbers.

    Attributes:
        name: in records and protocols. It never changes, whatever the class is called.
    """

    name: ClassVar[str]
    bound: float

    @abstractmethod
    def decide(self, low: float, value: float, high: float) -> Verdict:
        """The verdict of an effect with an interval."""

    @abstractmethod
    def __str__(self) -> str:
        """``above 0 by 0.1 or more``: as a reader needs it."""

    def verdict(self, effect: Effect) -> Verdict:
        """The verdict of an effect.

        Without an interval, from a single seed, and where seeds lack the number nothing is decided.
        """
        if effect.low is None or effect.high is None or effect.num_seeds < 2 or effect.num_missing:
            return "inconclusive"
        return self.decide(rounded(effect.low), rounded(effect.value), rounded(effect.high))

    def p_value(self, effect: Effect) -> float | None:
        """Return the two-sided p-value of an effect at the bound; None where its distribution is not over seeds."""
        return effect.p_value(self.bound)

    def holds_by_sign(self, effect: Effect) -> bool:
        """Return whether the bound of the sign test, which assumes no distribution, is on the claimed side."""
        return False

    def seeds_needed(self, effect: Effect) -> int | None:
        """The least number of seeds of the same mean and spread that would decide; None if no number up to 200 would."""
        counts = range(2, MOST_SEEDS + 1)
        return next((n for n in counts if self.verdict(effect.with_seeds(n)) != "inconclusive"), None)


@dataclass(frozen=True)
class Above(Rule):
    """The effect is above a bound, by as much as matters.

    Reproduced if the whole interval is at least `smallest_effect` above the bound; in sign, if it is above the bound and an
    effect that would not matter lies in it. Not reproduced if the whole interval stays below bound + matters: the effect is
    of the other sign, or too small to matter.
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
        return f"above {self.bound:g}" + (f", by at least {self.smallest_effect:g}" if self.smallest_effect else "")


@dataclass(frozen=True)
class Below(Rule):
    """The effect is below a bound, by as much as matters; `Above` turned round."""

    name: ClassVar[str] = "below"

    bound: float = 0.0
    smallest_effect: float = field(default=0.0, metadata={"stored": "matters"})

    def decide(self, low: float, value: float, high: float) -> Verdict:
        return Above(-self.bound, self.smallest_effect).decide(-high, -value, -low)

    def holds_by_sign(self, effect: Effect) -> bool:
        return effect.sign_high is not None and rounded(effect.sign_high) < self.bound

    def __str__(self) -> str:
        return f"below {self.bound:g}" + (f", by at least {self.smallest_effect:g}" if self.smallest_effect else "")


@dataclass(frozen=True)
class Within(Rule):
    """The effect equals the bound up to a margin: reproduced if all of the interval does, not reproduced if none does."""

    name: ClassVar[str] = "within"

    margin: float
    bound: float = 0.0

    def decide(self, low: float, value: float, high: float) -> Verdict:
        if low > self.bound - self.margin and high < self.bound + self.margin:
            return "reproduced"
        return "not reproduced" if low > self.bound + self.margin or high < self.bound - self.margin else "inconclusive"

    def p_value(self, effect: Effect) -> float | None:
        """Return the p-value of an effect at least a margin from the bound: two one-sided tests.

        Source: Schuirmann 1987, Journal of Pharmacokinetics and Biopharmaceutics 15.
        """
        found = [effect.one_sided(self.bound - side * self.margin, side) for side in (1, -1)]
        return max((one for one in found if one is not None), default=None)

    def holds_by_sign(self, effect: Effect) -> bool:
        least, most = self.bound - self.margin, self.bound + self.margin
        return Above(least).holds_by_sign(effect) and Below(most).holds_by_sign(effect)

    def __str__(self) -> str:
        return f"within {self.margin:g} of {self.bound:g}"


@dataclass(frozen=True)
class Printed(Rule):
    """A number that the paper prints of one instance lies where one more instance of ours would (`Effect.predicted`).

    Args:
        bound: the printed number.
        margin: half-width from which on the interval is too wide to say anything.
    """

    name: ClassVar[str] = "printed"

    bound: float
    margin: float

    def decide(self, low: float, value: float, high: float) -> Verdict:
        if not low <= self.bound <= high:
            return "not reproduced"
        return "reproduced" if (high - low) / 2 <= self.margin else "inconclusive"

    def seeds_needed(self, effect: Effect) -> int | None:
        """None: a prediction interval does not shrink to nothing with more instances."""
        return None

    def __str__(self) -> str:
        return f"the printed {self.bound:g} inside the prediction interval, narrower than ±{self.margin:g}"


@dataclass(frozen=True)
class Always(Rule):
    """Something holds in every instance (`Effect.share`): one counterexample refutes it, and few instances decide nothing.

    Args:
        least: the lower end of the interval has to be above it; 0.9 takes 36 instances without a counterexample.
    """

    name: ClassVar[str] = "always"

    least: float = 0.9
    bound: float = 1.0

    def decide(self, low: float, value: float, high: float) -> Verdict:
        if value < 1:
            return "not reproduced"
        return "reproduced" if low > self.least else "inconclusive"

    def seeds_needed(self, effect: Effect) -> int | None:
        """The instances without a counterexample whose lower end is above `least`."""
        return math.ceil(math.log(level() / 2) / math.log(self.least)) if effect.value == 1 else None

    def __str__(self) -> str:
        return f"in every instance, of enough to exclude a share below {self.least:g}"


#: The rules by the names that records have for them.
RULES: dict[str, type[Rule]] = {rule.name: rule for rule in (Above, Below, Within, Printed, Always)}


@dataclass(frozen=True)
class Gate:
    """What must hold before a claim may be judged.

    Attributes:
        name: converged, learned, matched, regime, room, seeds or power; of a plan also measured.
        is_open: whether it holds.
        text: what was seen, a clause that follows "not tested: ".
        seen: the numbers that opened or closed it, as exact as they are, then its thresholds.
        of: names of the effects that it is about, such as tasks; empty of all.
    """

    name: Literal["converged", "learned", "matched", "measured", "regime", "room", "seeds", "power"]
    is_open: bool
    text: str
    seen: tuple[float, ...] = field(default=(), compare=False, repr=False)
    of: tuple[str, ...] = ()

    def to_data(self) -> dict[str, Any]:
        """Plain data for JSON; what it is about stands in its text."""
        return {"name": self.name, "is_open": self.is_open, "text": self.text}

    def about(self, *names: str) -> "Gate":
        """The gate as one that closes these effects alone, and a claim that needs them."""
        return replace(self, of=names)

    def concerns(self, names: Iterable[str]) -> bool:
        """Return whether the gate is about any of these effects; the effect without a name needs all gates."""
        return not self.of or any(name in self.of or not name for name in names)

    @staticmethod
    def converged(changes: Mapping[str, float | None], margin: float, what: str) -> "Gate":
        """Whether outcomes are flat over the last quarter of training.

        Args:
            changes: change of the outcome over the last quarter, by run or by cell (mean over seeds); None where it was not
                recorded.
            margin: change from which on it is not flat, in the unit of the outcome.
            what: the outcome, such as "fit length".
        """
        unknown = [name for name, change in changes.items() if change is None]
        moving = [name for name, change in changes.items() if change is not None and not abs(change) < margin]
        if unknown or not changes:
            return Gate(
                "converged", False, f"whether the {what} was flat at the end of training is not recorded", (margin,)
            )
        most = (max(abs(change) for change in changes.values() if change is not None), margin)
        if moving:
            text = f"the {what} still changed by {margin:g} or more in the last quarter of training in {_some(moving)}"
            return Gate("converged", False, f"{text} ({len(moving)} of {len(changes)})", most)
        return Gate(
            "converged", True, f"the {what} changed by less than {margin:g} in the last quarter of training", most
        )

    @staticmethod
    def flat(tables: Tables, margin: float = FLAT, **fields: Any) -> "Gate":
        """Whether the loss of every run was flat at the end, or so near to its floor that it could not change by the margin.

        Args:
            tables: with the table ``runs``.
            margin: nats.
            fields: which of the runs.
        """
        runs = Rows(tables.get("runs", ())).where(**fields)
        changes = {f"{row['label']}, seed {row['seed']}": _last_change(row, margin) for row in runs}
        return Gate.converged(changes, margin, "loss")

    @staticmethod
    def converged_by_rule(rule: Rule, effects: Mapping[str, Effect], drifts: Mapping[str, float | None]) -> "Gate":
        """Whether a verdict would outlast training twice as long, at the pace of the last doubling of the training.

        What grows with the logarithm of the training never is flat, and need not be: the question is whether it could still
        turn the verdict. A change that comes all at once, long after nothing moved, is not foreseen.

        Args:
            rule: of the claim.
            effects: that the claim rests on, by name.
            drifts: change of each over the last doubling of the training; None where it was not recorded.
        """
        unknown = [name for name in effects if drifts.get(name) is None]
        if unknown or not effects:
            return Gate("converged", False, "what the last doubling of the training has changed is not recorded")
        shifts = {name: rounded(drifts[name] or 0.0) for name in effects}
        now, _, _ = all_of(rule, effects)
        then, _, _ = all_of(rule, {name: effect.shifted(shifts[name]) for name, effect in effects.items()})
        said = "; ".join(f"{name} {shift:+.2g}".strip() for name, shift in shifts.items())
        pace = f"the last doubling of the training has changed the effect by {said}"
        stays = now == then or (now, then) == ("reproduced in sign", "reproduced")
        turned = "not turn the verdict" if stays else f"turn {now} into {then}"
        return Gate("converged", stays, f"{pace}, and one more at that pace would {turned}", tuple(shifts.values()))

    @staticmethod
    def learned(effect: Effect | None, margin: float, control: str) -> "Gate":
        """Whether a model is better than its best control: the effect (better is positive) is above the margin.

        An effect that is None was not measured.
        """
        if effect is None:
            return Gate("learned", False, f"whether the model is better than {control} was not measured", (0.0, margin))
        is_open = effect.low is not None and rounded(effect.low) > 0 and rounded(effect.value) >= margin
        said = f"the model is better than {control} by {effect}"
        seen = (effect.value, margin) if effect.low is None else (effect.value, effect.low, margin)
        return Gate("learned", is_open, said if is_open else f"{said}, not by {margin:g} or more beyond doubt", seen)

    @staticmethod
    def matched(budgets: Mapping[str, Mapping[str, float]], tolerance: float = 0.05) -> "Gate":
        """Whether the things compared had the same budget in at least one currency.

        Args:
            budgets: by thing compared, then by currency (sequences, tokens, FLOPs, processor seconds).
            tolerance: relative difference that counts as equal.
        """
        rows = list(budgets.values())
        common = [name for name in (rows[0] if rows else {}) if all(name in row for row in rows)]
        known = (*(_ratio([row[name] for row in rows]) for name in common), tolerance)
        equal = [name for name in common if _ratio([row[name] for row in rows]) <= 1 + tolerance]
        if equal:
            return Gate("matched", True, f"equal {', '.join(equal)}", known)
        ratios = ", ".join(f"{name} {_ratio([row[name] for row in rows]):.2g} times" for name in common)
        return Gate("matched", False, f"no budget is equal ({ratios or 'none is recorded for all'})", known)

    @staticmethod
    def equal_tokens(tables: Tables) -> "Gate":
        """Whether the models of an experiment were trained on equally many tokens."""
        runs = Rows(tables.get("runs", ()))
        return Gate.matched({label: {"tokens": own[0]["tokens"]} for label, own in runs.by("label").items()})

    @staticmethod
    def regime(value: float, low: float, high: float, what: str) -> "Gate":
        """Whether the ratio that a claim depends on is in its range."""
        is_open = low <= value <= high
        inside = "inside" if is_open else "outside"
        return Gate("regime", is_open, f"{what} is {value:.4g}, {inside} {low:.4g} to {high:.4g}", (value, low, high))

    @staticmethod
    def headroom(available: float, needed: float, what: str) -> "Gate":
        """Whether the range of outcomes allows the effect."""
        is_open = available >= needed
        short = "" if is_open else f" where {needed:.3g} are needed"
        return Gate("room", is_open, f"{what} leaves {available:.3g}{short}", (available, needed))


def at_budget(
    verdict: Verdict, spent: Mapping[str, float], papers: Mapping[str, float], could_help: bool | None = None
) -> tuple[Verdict, str]:
    """The verdict of models that were trained on less than the paper's, and what it is about.

    No law of the outcome in the budget reaches the paper's, so that what is not seen here may be seen there: of a claim that
    more budget could help. If it would strengthen the denial, the claim is not reproduced.

    Args:
        could_help: whether more budget could help the claim; None where nothing says so, which counts as no.
        spent: most that a model was trained on, by currency.
        papers: the same of the paper; empty where it is not known.

    Returns:
        "not at this budget" in the place of "not reproduced"; ``at 640,000 sequences (the paper: 500,000,000)``, empty where
        the models had the paper's budget.
    """
    known = [name for name in papers if name in spent] or [name for name in ("sequences", "tokens") if name in spent]
    short = [name for name in known[:1] if spent[name] < papers.get(name, math.inf)]
    if not short and papers and known:
        return verdict, ""
    own = [f"{spent[name]:,.0f} {name}" for name in short] or ["a budget that is not recorded"]
    paper = f"{papers[short[0]]:,.0f}" if short and short[0] in papers else "not stated"
    verdict = "not at this budget" if verdict == "not reproduced" and could_help else verdict
    return verdict, f"at {own[0]} (the paper: {paper})"


def all_of(rule: Rule, effects: Mapping[str, Effect], wanted: Sequence[str] = ()) -> tuple[Verdict, str, list[str]]:
    """The verdict of a claim that every one of several effects must bear out.

    Args:
        rule: of each.
        effects: by what they are of, such as tasks.
        wanted: those that the claim is about; if one is missing, nothing is judged.

    Returns:
        verdict; name of the effect that decides (empty without effects); those missing.
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
    """The verdict of a claim by those of effects that must all bear it out."""
    return min(verdicts, key=_SEVERITY.index)


def _distance(rule: Rule, effect: Effect) -> float:
    """How far an effect is on the right side of its rule, by its worse end: the least decides among equals."""
    low = effect.value if effect.low is None else effect.low
    high = effect.value if effect.high is None else effect.high
    if isinstance(rule, Below):
        return rule.bound - high
    if isinstance(rule, Within | Printed):
        return -max(abs(low - rule.bound), abs(high - rule.bound))
    return low - rule.bound


def _last_change(run: Mapping[str, Any], margin: float) -> float | None:
    """Of the loss of a run over the last quarter; its excess over the floor, if that is below the margin."""
    if run.get("excess") is not None and 0 <= run["excess"] < margin:
        return float(run["excess"])
    return run.get("last_quarter")


def _ratio(values: Sequence[float]) -> float:
    least = min(values)
    return max(values) / least if least > 0 else math.inf


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
