"""Records of claims: a statement, its decision rule, and every number that the verdict depends on.

The folder "claims" next to the modules that measure claims has one file for each experiment:

    experiment = "limits-fig3"
    level = 0.05                                   # error probability of intervals
    scope = { medium = "at T = 32 and width 64" }  # where verdicts hold, by scale
    budget = { sequences = 5e8 }                   # training budget of the paper's models

    [measurement]
    version = 2                                    # raised if measured rows change
    once = { "65f11fa56661" = 2 }                  # version of the code with this digest

    [limits-fit-length-grows]
    version = 1                                    # raised if and only if the rule's behaviour changes
    source = "[Limits] §4.3, Fig. 3"
    says = "The fit length grows with depth."
    reading = "The 0.1-fit length grows by at least 0.1 doublings per layer."
    rule = { name = "above", bound = 0.0, matters = 0.1 }
    more_budget_could_help = true                  # allows the verdict "not at this budget"
    printed = 1.0                                  # the effect that the paper prints
    printed_in = "§4.3"
    numbers = { rate = 0.1 }                       # for ``parameter(numbers, "rate")``
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from hmmscope.errors import InputError
from hmmscope.lab.evidence.effects import ALPHA
from hmmscope.lab.evidence.verdicts import RULES, Always, Rule
from hmmscope.schema import by_field, known_keys, parse_spec, require, require_known, unknown_name
from hmmscope.storage import store

#: Subject of a claim; `hmmscope.lab.evidence.claim.Claim` explains the values.
About = Literal["training", "construction", "process"]
_ABOUT = ("training", "construction", "process")
#: Default power below which "reproduced" becomes "reproduced in sign".
LEAST_POWER = 0.5
#: Name of the file, in a folder of claims, with deviations from the paper.
_DEVIATIONS = "deviations.toml"
_HEAD = ("experiment", "level", "measurement", "budget", "scope")


class RuleParameters(dict[str, Any]):
    """Numbers of a claim's record by name; ``numbers.rate`` is the number `rate`."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise unknown_name("numbers", name, self) from None


#: Numbers of a claim's record while the claim is evaluated, else None.
Numbers = Mapping[str, Any] | None


def parameter(numbers: Numbers, name: str, outside: Any = None) -> Any:
    """Return a number from the record of a claim.

    Args:
        numbers: numbers of the record; None outside the evaluation of a claim.
        name: name of the number.
        outside: value to return if `numbers` is None.

    Raises:
        InputError: the record has no such number.
    """
    if numbers is None and outside is not None:
        return outside
    if numbers is None or name not in numbers:
        raise unknown_name("numbers", name, numbers or ())
    return numbers[name]


@dataclass(frozen=True, kw_only=True)
class ClaimRecord:
    """An entry of a file of claims.

    Attributes:
        version: version of the decision rule.
        level: error probability of intervals.
        printed: the effect that the paper prints, or None.
        printed_in: place in the paper of the printed effect.
        effect_if_true, effect_if_false: effects to simulate for the power (default: see `power.targets`).
        least_power: power below which "reproduced" becomes "reproduced in sign".
        scope: conditions under which the verdict holds, by scale; "any" stands for other scales.
        more_budget_could_help: whether more training could confirm a denied claim; None if training plays no role.
        budget: training budget of the paper's models, by column of the table "runs".
        parameters: numbers that the function of the claim reads with `parameter`.
        once: rule version by digest of the rule, which older folders store.
        stands: reasons why a test's change of tables may keep the verdict, by name of the change.
    """

    name: str
    experiment: str
    source: str
    claim_text: str = field(metadata={"stored": "says"})
    operationalization: str = field(metadata={"stored": "reading"})
    rule: Rule | None = None
    about: About = "training"
    proved: bool = False
    version: int = 1
    level: float = ALPHA
    printed: float | None = None
    printed_in: str = ""
    effect_if_true: float | None = field(default=None, metadata={"stored": "there"})
    effect_if_false: float | None = field(default=None, metadata={"stored": "none"})
    least_power: float = LEAST_POWER
    more_budget_could_help: bool | None = None
    budget: Mapping[str, float] = field(default_factory=dict)
    scope: Mapping[str, str] = field(default_factory=dict)
    parameters: RuleParameters = field(default_factory=RuleParameters, metadata={"stored": "numbers"})
    once: Mapping[str, int] = field(default_factory=dict)
    stands: Mapping[str, str] = field(default_factory=dict)

    @property
    def asks_power(self) -> bool:
        """True if the verdict depends on the power of the rule."""
        return self.rule is not None and not isinstance(self.rule, Always)

    def scope_at(self, scale: str) -> str:
        """Return the conditions under which the verdict holds at a scale."""
        return self.scope.get(scale, self.scope.get("any", ""))

    @property
    def aim(self) -> float | None:
        """The effect to simulate if the claim is true; None means the default of `power.targets`."""
        return self.effect_if_true if self.printed is None else self.printed

    def __post_init__(self) -> None:
        require_known("about", self.about, _ABOUT)
        require(self.version >= 1, "version", "must be an integer >= 1", self.version)
        require(0 < self.level < 1, "level", "must be between 0 and 1", self.level)
        require(0 < self.least_power < 1, "least_power", "must be between 0 and 1", self.least_power)
        require(
            self.printed is None or bool(self.printed_in),
            "printed_in",
            "must name the place in the paper that prints the effect",
            self.printed_in,
        )


@dataclass(frozen=True, kw_only=True)
class MeasurementVersion:
    """The version of the measuring code, and earlier versions by the digests that older folders store."""

    version: int = 1
    once: Mapping[str, int] = field(default_factory=dict)

    def of(self, part: Mapping[str, Any]) -> int | None:
        """Return the measurement version in the stored data of a part; None if unknown."""
        found = part.get("measurement", self.once.get(part.get("code", "")))
        return found if isinstance(found, int) else None


def record(folder: Path, name: str) -> ClaimRecord:
    """Return the record of a claim from a folder of claims.

    Raises:
        InputError: there is no such record, or it is invalid.
    """
    known = _entries(folder)
    require_known(f"{folder}: claim", name, known)
    return known[name]


def present(once: Mapping[str, int], mark: Any) -> Any:
    return once.get(mark, mark) if isinstance(mark, str) else mark


def measured(folder: Path, experiment: str) -> MeasurementVersion | None:
    path = folder / f"{experiment}.toml"
    if not path.is_file():
        return None
    found = _read(path).get("measurement", {})
    has_version = isinstance(found, dict) and isinstance(found.get("version"), int)
    require(has_version, f"{path}: measurement", "must have an integer version", found)
    return MeasurementVersion(**by_field(MeasurementVersion, found))


@cache
def deviations(folder: Path, experiment: str, scale: str, claim: str = "") -> tuple[str, ...]:
    path = folder / _DEVIATIONS
    if not path.is_file():
        return ()
    data = _read(path)
    facts, named = data.get("facts", {}), data.get("experiments", {}).get(f"{scale}/{experiment}", [])
    named = [*data.get("claims", {}).get(claim, []), *named]
    unknown = next((name for name in named if name not in facts), None)
    if unknown is not None:
        raise unknown_name(f"{path}: fact", unknown, facts)
    return tuple(facts[name] for name in named)


def folder_of(module: str | None) -> Path | None:
    import sys

    file = getattr(sys.modules.get(module or ""), "__file__", None)
    return None if file is None else Path(file).parent / "claims"


@cache
def _entries(folder: Path) -> Mapping[str, ClaimRecord]:
    found: dict[str, ClaimRecord] = {}
    for path in sorted(set(folder.glob("*.toml")) - {folder / _DEVIATIONS}):
        data = _read(path)
        head = {key: data[key] for key in ("experiment", "level", "budget", "scope") if key in data}
        for name in data:
            if name in _HEAD:
                continue
            require(name not in found, f"{path}: {name}", "must be defined in only one file", name)
            try:
                found[name] = _record(name, head | data[name])
            except InputError as error:
                raise InputError(f"{path}: {name}: {error}") from None
    return MappingProxyType(found)


def _record(name: str, data: dict[str, Any]) -> ClaimRecord:
    known = known_keys(ClaimRecord).keys() - {"name"}
    unknown = next((key for key in data if key not in known), None)
    if unknown is not None:
        raise unknown_name("key", unknown, known)
    missing = next((key for key in ("experiment", "source", "says", "reading", "version") if key not in data), None)
    require(missing is None, str(missing), "is required", "none")
    made = data | {"rule": rule_of(data.get("rule")), "numbers": RuleParameters(data.get("numbers", {}))}
    if data.get("about", "training") == "training" and data.get("rule") is not None:
        helps = data.get("more_budget_could_help")
        require(
            isinstance(helps, bool), "more_budget_could_help", "must be true or false for a claim about training", helps
        )
    return ClaimRecord(name=name, **by_field(ClaimRecord, made))


def rule_of(data: Mapping[str, Any] | None) -> Rule | None:
    """Return the rule for a mapping such as ``{name = "above", bound = 0.0, matters = 0.1}``; None for None."""
    if data is None:
        return None
    name = data.get("name")
    require_known("rule.name", name, RULES)
    rule: Rule = parse_spec(RULES[str(name)], {key: value for key, value in data.items() if key != "name"}, "rule")
    return rule


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(store.read_text(path, limit=1 << 20))
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{path}: {error}") from None
