"""Findings: the verdicts on claims, with the effects behind them."""

import re
from dataclasses import dataclass, field
from typing import Any

from hmmscope.errors import InputError
from hmmscope.lab.evidence.effects import Effect
from hmmscope.lab.evidence.verdicts import VERDICTS, Gate, Verdict, answer, answer_of
from hmmscope.schema import by_field, known_keys, require, require_known, to_stored, unknown_name

#: Scale of tests that only run the code; its numbers get no verdict.
UNJUDGED = "smoke"
#: Value of `source` for a question of this project, which no paper asks.
OURS = "ours"


def asked_by(source: str) -> str:
    return "A question of this project" if source == OURS else source


@dataclass(frozen=True)
class TaskVerdict:
    """The verdict on one effect of a claim.

    Attributes:
        name: name of the effect, such as a task.
        verdict: one of `verdicts.VERDICTS`.
        number: the effect with its interval, such as ``0.54 [0.48, 0.60]``, or "".
        why: name of the failed precondition, or "not measured"; else "".
    """

    name: str
    verdict: Verdict
    number: str = ""
    why: str = ""

    def __str__(self) -> str:
        return self._line(answer_of(self.verdict))

    def to_data(self) -> str:
        return self._line(self.verdict)

    def _line(self, word: str) -> str:
        why, number = f" ({self.why})" if self.why else "", f", {self.number}" if self.number else ""
        return f"{self.name}: {word}{why}{number}"


#: Pattern of a `TaskVerdict` in a file.
_PART = re.compile(
    rf"(?P<name>.+): (?P<verdict>{'|'.join(sorted(VERDICTS, key=len, reverse=True))})"
    r"(?: \((?P<why>[^)]*)\))?(?:, (?P<number>.+))?"
)


@dataclass(frozen=True, kw_only=True)
class Finding:
    """The verdict on a claim, with the measured effect.

    Attributes:
        title: statement of the claim.
        text: sentences on the result.
        verdict: one of `verdicts.VERDICTS`.
        claim: name of the claim.
        source: paper and place in it, or "ours".
        operationalization: how the claim was measured, and when it holds.
        value, low, high: the deciding effect with its interval.
        unit: unit of the effect.
        p: p-value of the hypothesis that the effect equals the rule's bound (rule `Within`: differs by its margin).
        q: false discovery rate of `p` among the rows of a ledger (Benjamini and Hochberg), or None.
        num_seeds: number of values behind the effect, such as seeds.
        seeds_needed: number of seeds that would decide an inconclusive claim, or None.
        gates: preconditions that were checked.
        parts: verdict on each effect, if there are several.
        sign_low, sign_high: lower and upper bound of the median from the sign test, or None.
        bimodal: whether the values of the seeds fall into two groups.
        budget: training budget in words; "" if it is at least the paper's budget.
        rule_version: version of the decision rule; a digest of the rule in older files.
    """

    title: str
    text: str
    verdict: Verdict
    claim: str = ""
    source: str = ""
    operationalization: str = field(default="", metadata={"stored": "reading"})
    value: float | None = None
    low: float | None = None
    high: float | None = None
    unit: str = ""
    p: float | None = None
    q: float | None = None
    num_seeds: int = 0
    seeds_needed: int | None = None
    gates: tuple[Gate, ...] = ()
    parts: tuple[TaskVerdict, ...] = ()
    sign_low: float | None = None
    sign_high: float | None = None
    bimodal: bool = False
    budget: str = ""
    rule_version: int | str = ""

    def __post_init__(self) -> None:
        require_known("verdict", self.verdict, VERDICTS)
        require((self.low is None) == (self.high is None), "low", "must be given together with high", self.low)
        require(
            self.low is None or self.value is not None, "value", "must be given together with low and high", self.value
        )

    def at(self, scale: str) -> "Finding":
        """Return this finding; at scale "smoke", which only tests code, a finding "not tested" without numbers."""
        if scale != UNJUDGED:
            return self
        kept = {
            name: getattr(self, name) for name in ("title", "claim", "source", "operationalization", "rule_version")
        }
        return Finding(text="Undecided: scale smoke only tests that the code runs.", verdict="not tested", **kept)

    def number(self) -> str:
        """Format the effect with its interval and unit, as ``0.54 [0.48, 0.60] layers``; "" without an effect."""
        if self.value is None:
            return ""
        return str(Effect(value=self.value, low=self.low, high=self.high, unit=self.unit))

    def to_data(self) -> dict[str, Any]:
        """Return plain data for JSON without empty fields."""
        empty = (None, "", (), False)
        data = {key: x for key, x in to_stored(self).items() if x != "" and not any(x is one for one in empty)}
        lists = {name: [one.to_data() for one in getattr(self, name)] for name in ("gates", "parts")}
        return {key: x for key, x in data.items() if key not in lists} | {key: x for key, x in lists.items() if x}

    @classmethod
    def from_data(cls, data: Any, where: str = "finding") -> "Finding":
        """Read a finding from the data of `to_data`.

        Raises:
            InputError: an invalid key or value.
        """
        if not isinstance(data, dict):
            raise InputError(f"{where}: must be a mapping")
        unknown = next((key for key in data if key not in known_keys(cls)), None)
        if unknown is not None:
            raise unknown_name(where, unknown, cls.__dataclass_fields__)
        texts = ("title", "text", "verdict", "claim", "source", "reading", "unit", "budget")
        for name in texts:
            require(isinstance(data.get(name, ""), str), f"{where}.{name}", "must be text", data.get(name))
        for name in ("value", "low", "high", "p", "q", "num_seeds", "seeds_needed", "sign_low", "sign_high"):
            value = data.get(name)
            is_number = value is None or (isinstance(value, int | float) and not isinstance(value, bool))
            require(is_number, f"{where}.{name}", "must be a number", value)
        version = data.get("rule_version", "")
        known = isinstance(version, str) or (isinstance(version, int) and not isinstance(version, bool))
        require(known, f"{where}.rule_version", "must be an integer", version)
        missing = next((name for name in ("title", "text", "verdict") if name not in data), None)
        require(missing is None, where, f"must have the key {missing}", "none")
        gates = data.get("gates", ())
        require(isinstance(gates, list | tuple), f"{where}.gates", "must be a list", gates)
        data = data | {"text": re.sub("^Not tested: ", "Undecided: ", data["text"])}  # before version 0.3
        if data["verdict"] == "found":  # written before 2026-11-25
            data = data | {"verdict": answer(data.get("low"), data.get("high"))}
        require(
            isinstance(data.get("bimodal", False), bool),
            f"{where}.bimodal",
            "must be true or false",
            data.get("bimodal"),
        )
        parts = data.get("parts", ())
        require(isinstance(parts, list | tuple), f"{where}.parts", "must be a list", parts)
        data = data | {"gates": tuple(_gate(gate, f"{where}.gates[{i}]") for i, gate in enumerate(gates))}
        data = data | {"parts": tuple(_part(part, f"{where}.parts[{i}]") for i, part in enumerate(parts))}
        return cls(**by_field(cls, data, where))


def _gate(data: Any, where: str) -> Gate:
    right = (
        isinstance(data, dict)
        and data.keys() == {"name", "is_open", "text"}
        and isinstance(data["is_open"], bool)
        and all(isinstance(data[key], str) for key in ("name", "text"))
    )
    require(right, where, "must have exactly the keys name, is_open (true or false) and text", data)
    return Gate(name=data["name"], is_open=data["is_open"], text=data["text"])


def _part(data: Any, where: str) -> TaskVerdict:
    found = _PART.fullmatch(data) if isinstance(data, str) else None
    require(found is not None, where, "must be NAME: VERDICT, NUMBER", data)
    assert found is not None
    return TaskVerdict(**{key: value or "" for key, value in found.groupdict().items()})  # type: ignore[arg-type]
