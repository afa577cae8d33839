"""What rules do: effects, intervals, p, gates and verdicts on frozen tables. The identity of a rule, beside its entry.

    tests/evidence/fixtures/<experiment>.json.xz    frozen tables with the columns of the kept ones, and which alterations of
                                                  them are looked at
    tests/evidence/golden_verdicts/<experiment>.json.xz      what each rule did with them, its version and the numbers of
    its entry

An alteration is a number, from which random changes of the tables follow: rows that fall away, networks that change places,
columns that are scaled, spread or made quiet. Those numbers are kept that show a verdict, a side of a gate or a number of
a rule that the others do not show.

Beside the acts stand the numbers that the rule reaches in code, without names and places: a change that no act shows is
noticed too.

    python tests/evidence/golden_verdicts.py                      compare, as the test does
    python tests/evidence/golden_verdicts.py --raise [CLAIM ...]  raise the versions of rules that do other things than was
    kept python tests/evidence/golden_verdicts.py --keep [CLAIM ...]   keep what rules do, of those with another version and
    of new ones
"""

import argparse
import json
import lzma
import math
import random
import re
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from hmmscope import registry
from hmmscope.lab.evidence.claim import Claim, claims_of
from hmmscope.lab.evidence.effects import Effect, at_level
from hmmscope.lab.evidence.protocol import entry_of
from hmmscope.lab.evidence.records import folder_of
from hmmscope.lab.evidence.rows import Rows, Tables
from hmmscope.lab.evidence.verdicts import Rule
from hmmscope.lab.experiments.experiment import experiment_named
from hmmscope.ties import alike as same
from reach import numbers_of

HERE = Path(__file__).parent
#: Each distribution keeps what is frozen of its experiments; in the order of dependency.
_OUTER = {"hmmscope_papers": "papers", "hmmscope_studies": "studies"}
HOMES = (HERE, *(HERE.parents[1] / name / "tests" / "evidence" for name in _OUTER.values()))


def place(kind: str, experiment: str) -> Path:
    """The file of an experiment: "fixtures" or "golden_verdicts"."""
    files = [home / kind / f"{experiment}.json.xz" for home in HOMES]
    package = type(experiment_named(experiment)).__module__.partition(".")[0]
    own = HERE.parents[1] / _OUTER.get(package, "") / "tests" / "evidence" / kind / f"{experiment}.json.xz"
    return next((file for file in files if file.is_file()), own)


#: What a column is where a row has none.
_ABSENT: dict[str, Any] = {}
_BROKEN = (LookupError, TypeError, ValueError, ArithmeticError, AttributeError, AssertionError)


def read(kind: str, experiment: str) -> Any:
    """What is kept of an experiment: "fixtures" or "golden_verdicts"."""
    return json.loads(lzma.decompress(place(kind, experiment).read_bytes()))


def write(kind: str, experiment: str, data: Any) -> None:
    """Keep it, the same bytes for the same data."""
    text = json.dumps(data, separators=(",", ":"), sort_keys=True).encode()
    file = place(kind, experiment)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(lzma.compress(text, preset=9))


def in_columns(rows: Iterable[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Rows by column."""
    kept = list(rows)
    names = dict.fromkeys(name for row in kept for name in row)
    return {name: [row.get(name, _ABSENT) for row in kept] for name in names}


def in_rows(columns: Mapping[str, list[Any]]) -> Rows:
    """`in_columns` turned round."""
    return Rows(
        {name: value for name, value in zip(columns, values, strict=True) if value != _ABSENT}
        for values in zip(*columns.values(), strict=True)
    )


@cache
def probe(experiment: str) -> tuple[Tables, tuple[int, ...]]:
    """The frozen tables of an experiment, and the alterations that are looked at; 0 is none."""
    found = read("fixtures", experiment)
    return {name: in_rows(columns) for name, columns in found["tables"].items()}, tuple(found["alterations"])


# ---------------------------------------------------------------------------------------------------------------------
# Alterations

_BUDGETS = ("sequences", "tokens", "flops", "steps", "processor_seconds")


def altered(tables: Tables, number: int) -> Tables:
    """The tables with the random changes that follow from a number; as they are for 0."""
    if number == 0:
        return tables
    draw = random.Random(f"alteration {number}")
    only = draw.random() < 0.5  # the same change in all tables, or in one
    chosen = draw.choice(sorted(tables))
    seeds = draw.choice((None, None, None, 1, 2))
    made = {}
    for name in sorted(tables):
        rows = tables[name]
        if seeds is not None:
            rows = rows.where(seed=rows.seeds()[:seeds]) if rows.seeds() != [None] else rows
        made[name] = rows if only and name != chosen else _changed(rows, random.Random(f"{number} {name}"))
    return {name: made[name] for name in tables}


def _changed(rows: Rows, draw: random.Random) -> Rows:
    if not rows:
        return rows
    columns = sorted({name for row in rows for name in row})
    keys = [name for name in columns if name != "seed" and 1 < len(_distinct(rows, name)) <= 40]
    numbers = [name for name in columns if any(_is_number(row.get(name)) for row in rows)]
    if keys and draw.random() < 0.3:  # two kinds of rows change places
        key = draw.choice(keys)
        one, other = draw.sample(_distinct(rows, key), 2)
        turned = {one: other, other: one}
        rows = Rows(row | ({key: turned.get(row[key], row[key])} if key in row else {}) for row in rows)
    if keys and draw.random() < 0.15:  # rows fall away
        key = draw.choice(keys)
        gone = draw.choice(_distinct(rows, key))
        rows = Rows(row for row in rows if row.get(key) != gone)
    for _ in range(draw.choice((0, 1, 1, 2, 3))):
        if numbers:
            rows = _scaled(rows, draw, draw.sample(numbers, min(len(numbers), draw.choice((1, 1, 2, 9)))), keys)
    noise = draw.choice((0.0, 0.0, 0.03, 0.3))
    return Rows(_times(row, numbers, math.exp(noise * draw.gauss(0, 1))) for row in rows) if noise else rows


def _scaled(rows: Rows, draw: random.Random, names: list[str], keys: list[str]) -> Rows:
    """Columns multiplied, shifted, made small, or their intervals widened, in all rows or those of one kind."""
    key = draw.choice([None, *keys])
    wanted = draw.choice(_distinct(rows, key)) if key is not None and _distinct(rows, key) else None
    factor, turn = 2 ** draw.uniform(-4, 4), draw.choice((False, False, False, True))
    budget = draw.choice((True, False))
    made = Rows()
    for row in rows:
        if wanted is None or (key is not None and row.get(key) == wanted):
            own = [name for name in names if budget or name not in _BUDGETS]
            row = _times(row, own, factor)
            if turn:
                row |= {name: 1 - row[name] for name in own if isinstance(row.get(name), float) and 0 <= row[name] <= 1}
                if (
                    isinstance(row.get("low"), float)
                    and isinstance(row.get("high"), float)
                    and row["low"] > row["high"]
                ):
                    row |= {"low": row["high"], "high": row["low"]}
        made.append(row)
    return made


def _times(row: Mapping[str, Any], names: Iterable[str], factor: float) -> dict[str, Any]:
    return {**row, **{name: _product(row[name], factor, name in _BUDGETS) for name in names if name in row}}


def _product(value: Any, factor: float, is_budget: bool) -> Any:
    if isinstance(value, list):
        return [_product(one, factor, is_budget) for one in value]
    if isinstance(value, float):
        return value * factor
    return int(value * factor) if is_budget and isinstance(value, int) else value


def _distinct(rows: Rows, name: str) -> list[Any]:
    """The values of a column of names, whole numbers or truth values; none of a column of numbers or lists."""
    if any(isinstance(row.get(name), list | dict) for row in rows):
        return []
    return [value for value in rows.values(name) if not _is_number(value)]


def _is_number(value: Any) -> bool:
    if isinstance(value, list):
        return any(isinstance(one, float) for one in value)
    return isinstance(value, float)


# ---------------------------------------------------------------------------------------------------------------------
# Acts


def entry(claim: Claim) -> dict[str, Any]:
    """The numbers of a claim's record."""
    numbers = {key: value for key, value in entry_of(claim).items() if key not in ("version", "says", "reading")}
    return numbers | {"about": claim.about, "proved": claim.proved}


def act(claim: Claim, tables: Tables) -> dict[str, Any]:
    """What a rule makes of tables: numbers to twelve digits."""
    try:
        with at_level(claim.level), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # altered tables have numbers that no measurement gives
            seen = claim.measured(tables)
            effects = seen.by_name()
            finding = claim.finding(seen)
            found = {
                "effects": {name: _effect(effect, claim.rule) for name, effect in effects.items()},
                "beside": {name: _beside(effect) for name, effect in (*effects.items(), *seen.parts.items())},
                "drifts": {} if seen.last_doubling_change is None else seen.changes_by_name(),
                "gates": [[gate.name, gate.is_open, *gate.seen, *gate.of] for gate in finding.gates],
                "verdict": finding.verdict,
                "parts": {part.name: part.verdict for part in finding.parts},
                "wanted": list(seen.required),
                "decides": [
                    finding.value,
                    finding.low,
                    finding.high,
                    finding.p,
                    finding.num_seeds,
                    finding.seeds_needed,
                ],
            }
    except _BROKEN as error:
        return {"raises": type(error).__name__}
    rounded: dict[str, Any] = _rounded(found)
    return rounded


def _effect(effect: Effect, rule: Rule | None) -> list[Any]:
    p = None if rule is None else rule.p_value(effect)
    return [effect.value, effect.low, effect.high, effect.error, p, effect.num_seeds, effect.num_missing]


def _beside(effect: Effect) -> list[Any]:
    return [effect.value, effect.low, effect.high, effect.sign_low, effect.sign_high, effect.bimodal]


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _rounded(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(one) for one in value]
    if isinstance(value, float):
        return float(f"{value:.12g}") if math.isfinite(value) else str(value)
    return value.item() if hasattr(value, "item") else value


def acts(claim: Claim) -> dict[str, Any]:
    """What a rule does with every alteration of the frozen tables of its experiment."""
    return {str(number): act(claim, altered_probe(claim.experiment, number)) for number in probe(claim.experiment)[1]}


@cache
def altered_probe(experiment: str, number: int) -> Tables:
    """`altered` of the frozen tables."""
    return altered(probe(experiment)[0], number)


def complaint(claim: Claim, kept: Mapping[str, Any] | None, now: Mapping[str, Any]) -> str | None:
    """What has to be done with the version of a rule, or None.

    Args:
        claim: as it is now.
        kept: its version, entry and acts as they were kept; None of a new one.
        now: its acts.
    """
    if kept is None:
        return f"{claim.name}: is new; keep what it does"
    common = kept["acts"].keys() & now.keys()
    known = {number: {key: now[number].get(key) for key in kept["acts"][number]} for number in common}
    changed = not all(same(kept["acts"][number], known[number]) for number in common) or not _holds(
        _asked(claim, kept["entry"]), _rounded(entry(claim))
    )
    reaches = numbers_of(claim)
    if changed and claim.version == kept["version"]:
        return f"{claim.name}: does other things than version {claim.version} did; raise the version"
    if changed:
        return f"{claim.name}: version {claim.version} is new; keep what it does"
    if claim.version != kept["version"]:
        return f"{claim.name}: does what version {kept['version']} did; do not raise the version"
    if kept.get("reaches", []) != reaches:
        gone, new = (
            list((Counter(a) - Counter(b)).elements())
            for a, b in ((kept.get("reaches", []), reaches), (reaches, kept.get("reaches", [])))
        )
        said = f"{claim.name}: reaches other numbers ({gone} gone, {new} new), which no act shows"
        return f"{said}; raise the version if it does something else, and keep what it does"
    if kept["acts"].keys() != now.keys() or any(known[number].keys() != now[number].keys() for number in common):
        return f"{claim.name}: other alterations are looked at; keep what it does"
    return None


def _asked(claim: Claim, entry: Mapping[str, Any]) -> dict[str, Any]:
    """The numbers of an entry but those that the rule does not ask for."""
    return {key: value for key, value in entry.items() if key != "least_power" or claim.asks_power}


def _holds(kept: Any, now: Any) -> bool:
    """Whether all numbers that were kept are as they were; more of them may have moved into the record."""
    if isinstance(kept, dict) and isinstance(now, dict):
        return all(key in now and _holds(one, now[key]) for key, one in kept.items())
    return bool(kept == now)  # numbers of records are as they were written, tiny ones too


def complaints(experiment: str) -> dict[str, str]:
    """By claim, see `complaint`."""
    kept = kept_acts(experiment)
    found = {claim.name: complaint(claim, kept.get(claim.name), acts(claim)) for claim in claims_of(experiment)}
    return {name: said for name, said in found.items() if said is not None}


def kept_acts(experiment: str) -> dict[str, Any]:
    """By claim: version, entry and acts; nothing of a new experiment."""
    return read("golden_verdicts", experiment) if place("golden_verdicts", experiment).is_file() else {}


def experiments() -> list[str]:
    """Those with frozen tables."""
    return sorted(path.name.removesuffix(".json.xz") for home in HOMES for path in home.glob("fixtures/*.json.xz"))


def keep(experiment: str, names: Iterable[str]) -> None:
    """Keep what these claims do."""
    found = kept_acts(experiment)
    claims = {claim.name: claim for claim in claims_of(experiment)}
    for name in names:
        one = claims[name]
        found[name] = {
            "version": one.version,
            "entry": _rounded(entry(one)),
            "reaches": numbers_of(one),
            "acts": acts(one),
        }
    write("golden_verdicts", experiment, {name: found[name] for name in claims if name in found})


def raise_version(claim: Claim) -> None:
    """Write the next version into the record of a claim."""
    folder = folder_of(claim.measure.__module__)
    path = folder / f"{claim.experiment}.toml"
    head = re.escape(claim.name)
    text, count = re.subn(
        rf'(?m)^(\["?{head}"?\]\nversion = )\d+$', rf"\g<1>{claim.version + 1}", path.read_text(), count=1
    )
    assert count == 1, f"{path}: {claim.name} has no version"
    path.write_text(text)


def main() -> None:
    """See above."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--raise", dest="raised", action="store_true")
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("claims", nargs="*")
    options = parser.parse_args()
    for experiment in experiments():
        wanted = {c.name: c for c in claims_of(experiment) if not options.claims or c.name in options.claims}
        found = {name: said for name, said in complaints(experiment).items() if name in wanted}
        print("".join(f"{said}\n" for said in found.values()), end="", flush=True)
        for name, said in found.items():
            if options.raised and said.endswith("; raise the version"):
                raise_version(wanted[name])
        new = [name for name, said in found.items() if said.endswith("keep what it does")]
        if options.keep and new:
            keep(experiment, new)
    left = {claim.experiment for claim in registry.in_order("claim")} - set(experiments())
    print(f"no frozen tables: {', '.join(sorted(left))}" if left else "all experiments have frozen tables")


if __name__ == "__main__":
    main()
