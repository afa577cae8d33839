"""Claims as records: what is claimed, by which rule it is judged, and every number that the verdict depends on.

A folder "claims" beside the modules that measure has one file an experiment, ``limits-fig3.toml``:

    experiment = "limits-fig3"
    level = 0.05                                   # share of the law outside of an interval
    scope = { medium = "at T = 32 and width 64" }  # that a verdict is about, by scale; a claim may have one of its own
    budget = { sequences = 5e8 }                   # that a model of the paper was trained on; none where it is not known

    [measurement]
    version = 2                                    # of what the experiment measures, see `hmmscope.lab.experiments.parts`
    once = { "65f11fa56661" = 2 }                  # marks that older files have of a version

    [limits-fit-length-grows]
    version = 1                                    # of the rule: raised when what it does changes, never otherwise
    source = "[Limits] §4.3, Fig. 3"
    says = "On Cyclic-DET, Cyclic-RND and MatMul the fit length of Transformers grows with depth."
    reading = "The 0.1-fit length grows by a tenth of a doubling a layer or more on each of the three."
    rule = { name = "above", bound = 0.0, matters = 0.1 }
    more_budget_could_help = true                  # of claims on training: only then "not at this budget" may be said
    printed = 1.0                                  # the effect that the paper prints, where it does
    printed_in = "§4.3: the exponential 2^L scaling, as evident in the figure"
    numbers = { rate = 0.1 }                       # what the function that measures asks for: ``parameter("rate")``

The version is the identity of a rule. What a rule does is kept in `tests/evidence/golden_verdicts`: effects, gates and
verdicts on frozen tables. A test says when a version has to be raised, and when it must not be.
"""

import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from hmmscope.errors import InputError
from hmmscope.lab.evidence.effects import ALPHA
from hmmscope.lab.evidence.verdicts import RULES, Always, Rule
from hmmscope.schema import by_field, known_keys, parse_spec, require, unknown_name
from hmmscope.storage import store

#: What a claim is about, see `hmmscope.lab.evidence.claim.Claim`.
About = Literal["training", "construction", "process"]
_ABOUT = ("training", "construction", "process")
#: Power below which what a rule bears out counts in sign alone, unless a record has another.
LEAST_POWER = 0.5
#: The table, beside the claims, of what differs from the paper.
_DEVIATIONS = "deviations.toml"
_HEAD = ("experiment", "level", "measurement", "budget", "scope")


class RuleParameters(dict[str, Any]):
    """Numbers by name, read as ``numbers.rate``."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise unknown_name("numbers", name, self) from None


_JUDGED: ContextVar[Mapping[str, Any] | None] = ContextVar("judged", default=None)


@contextmanager
def judged_by(numbers: Mapping[str, Any]) -> Iterator[None]:
    """The numbers of a record are those that `parameter` gives in here."""
    before = _JUDGED.set(numbers)
    try:
        yield
    finally:
        _JUDGED.reset(before)


def parameter(name: str, outside: Any = None) -> Any:
    """A number of the record that judges here and now, such as a threshold of a gate that several claims share.

    Args:
        name: in the record.
        outside: what it is where nothing is judged, such as in a figure; None if it is asked for in a judgement alone.

    Raises:
        InputError: the record has none of that name, or nothing is judged.
    """
    known = _JUDGED.get()
    if known is None and outside is not None:
        return outside
    if known is None or name not in known:
        raise unknown_name("numbers", name, known or ())
    return known[name]


@dataclass(frozen=True, kw_only=True)
class Record:
    """An entry of a file of claims; see above.

    Attributes:
        version: of the rule, from 1 on.
        level: share of the law outside of the intervals of the effects.
        printed: the effect that the paper prints, where it prints one; see `hmmscope.lab.evidence.power`.
        printed_in: where the paper prints it.
        effect_if_true, effect_if_false: the effects at which its power is asked, where the paper prints none, and where
        twice what matters and
            the bound are not the right ones.
        least_power: share of simulated experiments about the paper's effect below which "reproduced" is said of the sign
            alone, see `hmmscope.lab.evidence.power`.
        scope: what the verdict is about, by scale, or by "any": ``on composed cycles at width 64``; no part of the rule.
        more_budget_could_help: whether what is claimed, and not seen, may be seen after more training; None of claims that
            are not about training, and where nothing says so.
        budget: that a model of the paper was trained on, by currency (a column of the table "runs").
        parameters: what the function that measures asks for, see `parameter`.
        once: versions by the marks that older files have of them.
        stands: of attacks that may leave the claim decided, why, by their names; see `tests/evidence/adversarial_tables.py`.
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
        """Return whether the verdict depends on power; questions and rules for every instance do not."""
        return self.rule is not None and not isinstance(self.rule, Always)

    def scope_at(self, scale: str) -> str:
        """Return the scope of a verdict at a scale, in words."""
        return self.scope.get(scale, self.scope.get("any", ""))

    @property
    def aim(self) -> float | None:
        """The effect at which the power is asked; None where it is twice what matters."""
        return self.effect_if_true if self.printed is None else self.printed

    def __post_init__(self) -> None:
        if self.about not in _ABOUT:
            raise unknown_name("about", self.about, _ABOUT)
        require(self.version >= 1, "version", "must be a whole number from 1 on", self.version)
        require(0 < self.level < 1, "level", "must be between 0 and 1", self.level)
        require(0 < self.least_power < 1, "least_power", "must be between 0 and 1", self.least_power)
        require(
            self.printed is None or bool(self.printed_in), "printed_in", "must say where it is printed", self.printed_in
        )


@dataclass(frozen=True, kw_only=True)
class MeasurementVersion:
    """What an experiment measures: its version, and versions by the marks that older files have of them."""

    version: int = 1
    once: Mapping[str, int] = field(default_factory=dict)

    def of(self, part: Mapping[str, Any]) -> int | None:
        """The version that measured a part; None if nothing tells it."""
        found = part.get("measurement", self.once.get(part.get("code", "")))
        return found if isinstance(found, int) else None


def record(folder: Path, name: str) -> Record:
    """The entry of that name in a folder of claims.

    Raises:
        InputError: no such entry, or one with a key or value that does not belong.
    """
    known = _entries(folder)
    if name not in known:
        raise unknown_name(f"{folder}: claim", name, known)
    return known[name]


def present(once: Mapping[str, int], mark: Any) -> Any:
    """The version that a mark of an older file stands for; the mark itself where it stands for none."""
    return once.get(mark, mark) if isinstance(mark, str) else mark


def measured(folder: Path, experiment: str) -> MeasurementVersion | None:
    """What an experiment measures, by its file in a folder of claims; None without a file."""
    path = folder / f"{experiment}.toml"
    if not path.is_file():
        return None
    found = _read(path).get("measurement", {})
    has_version = isinstance(found, dict) and isinstance(found.get("version"), int)
    require(has_version, f"{path}: measurement", "must have a version", found)
    return MeasurementVersion(**by_field(MeasurementVersion, found))


@cache
def deviations(folder: Path, experiment: str, scale: str, claim: str = "") -> tuple[str, ...]:
    """What differs from the paper in an experiment at a scale: facts of the table "deviations.toml" in a folder of claims.

    With those of a claim, whatever the scale.

    Raises:
        InputError: the table names a fact that it does not have.
    """
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
    """The folder of claims beside the file of a module."""
    import sys

    file = getattr(sys.modules.get(module or ""), "__file__", None)
    return None if file is None else Path(file).parent / "claims"


@cache
def _entries(folder: Path) -> Mapping[str, Record]:
    found: dict[str, Record] = {}
    for path in sorted(set(folder.glob("*.toml")) - {folder / _DEVIATIONS}):
        data = _read(path)
        head = {key: data[key] for key in ("experiment", "level", "budget", "scope") if key in data}
        for name in data:
            if name in _HEAD:
                continue
            require(name not in found, f"{path}: {name}", "must be in one file", name)
            try:
                found[name] = _record(name, head | data[name])
            except InputError as error:
                raise InputError(f"{path}: {name}: {error}") from None
    return MappingProxyType(found)


def _record(name: str, data: dict[str, Any]) -> Record:
    known = known_keys(Record).keys() - {"name"}
    unknown = next((key for key in data if key not in known), None)
    if unknown is not None:
        raise unknown_name("key", unknown, known)
    missing = next((key for key in ("experiment", "source", "says", "reading", "version") if key not in data), None)
    require(missing is None, str(missing), "is required", "none")
    made = data | {"rule": rule_of(data.get("rule")), "numbers": RuleParameters(data.get("numbers", {}))}
    if data.get("about", "training") == "training" and data.get("rule") is not None:
        helps = data.get("more_budget_could_help")
        require(
            isinstance(helps, bool), "more_budget_could_help", "must be true or false of a claim on training", helps
        )
    return Record(name=name, **by_field(Record, made))


def rule_of(data: Mapping[str, Any] | None) -> Rule | None:
    """``{name = "above", bound = 0.0, matters = 0.1}`` as a rule; None of a question."""
    if data is None:
        return None
    name = data.get("name")
    if name not in RULES:
        raise unknown_name("rule.name", name, RULES)
    rule: Rule = parse_spec(RULES[name], {key: value for key, value in data.items() if key != "name"}, "rule")
    return rule


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(store.read_text(path, limit=1 << 20))
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{path}: {error}") from None
