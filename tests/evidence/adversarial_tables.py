"""Attacks on claims: tables in which some of the networks learned nothing, or in which labels mean nothing any more.

    one side      networks that learned nothing in the place of those with one value of a column that tells networks
                  apart (`Experiment.networks`), or of all others; and in the place of all
    constant      the same with a predictor that always gives the same answer, where the table has one
    counting      the best that counts in the place of the networks
    depths        depths permuted, in each seed otherwise, so that each stands as often in the place of each other one
    seeds         the seeds of one side permuted, so that no pair is one any more

A claim on training falls if it is decided, and its effects are neither those of the tables as they are (the attack hit
what it does not read) nor those without the networks that learned nothing (it left them out). Of permuted depths it falls
if it is borne out: where depths mean nothing, what is said of depths is rightly denied. Permuted seeds leave every mean
over seeds as it is; a claim falls if it says the contrary, or is decided where it was not by another value. A record that
has a reason (`ClaimRecord.stands`: of one attack, or of what stands before a comma or an equals sign) does not fall.
"""

import random
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, NamedTuple

import kept_results

from hmmscope.lab.evidence.claim import Claim, Measurement, claims_of
from hmmscope.lab.evidence.ledger import read_tables
from hmmscope.lab.evidence.rows import Rows, Tables
from hmmscope.lab.evidence.verdicts import DECIDED
from hmmscope.lab.experiments.experiment import Experiment, experiment_named
from hmmscope.ties import rounded

RESULTS = kept_results.RESULTS
#: Columns of predictors, their names of what was trained, and of what gives the same answer whatever it reads.
_PREDICTORS, _TRAINED = ("predictor", "network", "model"), ("model", "trained", "rnn")
_CONSTANT = ("constant", "uniform", "unigram", "stationary", "order-0")
#: Columns of depth.
_DEPTHS = ("layers", "layer", "depth", "layer_name")
#: Permutations of depths that are tried.
_DRAWS = 5
#: "Layers" of networks that have no depth: RNNs, where they stand beside Transformers.
_RECURRENT = 0
_BROKEN = (LookupError, TypeError, ValueError, ArithmeticError, AttributeError, AssertionError)


@dataclass(frozen=True)
class Attack:
    """Tables under an attack.

    Attributes:
        name: ``layers = 0``, as records name it.
        tables: as a claim sees them.
        without: those without the networks that learned nothing; None where nothing would be left.
        keeps: whether what was decided may still be, because what each network learned is as it was.
        denies: whether what is claimed may be denied.
    """

    name: str
    tables: Callable[[], Tables]
    without: Callable[[], Tables] | None = None
    keeps: bool = False
    denies: bool = False


class Judged(NamedTuple):
    """What a claim made of tables."""

    verdict: str
    effects: dict[str, tuple[Any, ...]]
    gates: tuple[Any, ...]
    shut: frozenset[str] = frozenset()

    @property
    def deciding(self) -> dict[str, tuple[Any, ...]]:
        """The effects but those behind a gate, which decide nothing."""
        return {name: effect for name, effect in self.effects.items() if name not in self.shut}


def judged(claim: Claim, tables: Tables) -> Judged:
    """The verdict with what it rests on; "broken" where the tables lack what the claim cannot do without."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            seen: Measurement = claim.measured(tables)
            finding = claim.finding(seen)
    except _BROKEN as error:
        return Judged(f"broken: {error!r}", {}, ())
    effects = {name: (one.value, one.low, one.high) for name, one in seen.by_name().items()}
    shut = frozenset(part.name for part in finding.parts or () if part.verdict == "not tested")
    return Judged(finding.verdict, effects, tuple((gate.name, gate.is_open) for gate in finding.gates), shut)


def falls(claim: Claim, before: Judged, attack: Attack) -> bool:
    """Whether a claim is decided where it must not be, see above; `before` is what it makes of the tables as they are."""
    if {attack.name.partition(sign)[0] for sign in (", ", " = ")} & claim.stands.keys():
        return False
    now = judged(claim, attack.tables())
    if now.verdict not in DECIDED:
        return False
    if attack.denies and not _borne_out(now):
        return False
    if attack.keeps:
        return _borne_out(now) != _borne_out(before) if before.verdict in DECIDED else _values(now) != _values(before)
    if now.effects == before.effects or now.deciding.items() <= before.deciding.items():
        return False
    return attack.without is None or judged(claim, attack.without()).effects != now.effects


def _borne_out(one: Judged) -> bool:
    return one.verdict.startswith("reproduced")


def _values(one: Judged) -> dict[str, Any]:
    return {name: rounded(value) for name, (value, *_) in one.effects.items()}


# ---------------------------------------------------------------------------------------------------------------------
# Which


def attacks(experiment: Experiment, tables: Tables) -> list[Attack]:
    """All of them on the tables of an experiment."""
    nothing = experiment.without_training(tables)
    assert nothing is not None, f"{experiment.name} has no control of its claims on training"
    changed = [name for name in tables if tables[name] != nothing[name]]
    known = _networks(experiment.run_columns, tables, changed)
    found = [*_sides(known, tables, nothing, "{}")]
    constant = _constant(tables, nothing)
    if constant is not None and constant != nothing:
        found += _sides(known, tables, constant, "constant: {}")
    counting = experiment.with_ngrams_only(tables)
    if counting is not None:
        found.append(Attack("counting", lambda: counting))
    for draw in range(_DRAWS):
        found.append(
            Attack(f"depths, {draw}", lambda draw=draw: _depths(experiment.run_columns, tables, draw), denies=True)
        )
    for column, value in known:
        turned = partial(_seeds, tables, changed, column, value)
        found.append(Attack(f"seeds: {column} = {value}", turned, keeps=True))
    return found


def _sides(known: list[tuple[str, Any]], tables: Tables, nothing: Tables, name: str) -> Iterator[Attack]:
    """`nothing` in the place of all networks, of those with one value of a column, and of all but those."""
    yield Attack(name.format("all"), lambda: nothing)
    changed = [table for table in tables if tables[table] != nothing[table]]
    for column, value in known:
        others = {other for one, other in known if one == column} - {value}
        for sign, values in (("=", {value}), ("!=", others)):
            if sign == "=" or len(others) > 1:
                mixed = partial(_mixed, tables, {table: nothing[table] for table in changed}, column, values)
                without = partial(_mixed, tables, dict.fromkeys(tables, Rows()), column, values)
                yield Attack(name.format(f"{column} {sign} {value}"), mixed, without)


def _networks(columns: tuple[str, ...], tables: Tables, changed: list[str]) -> list[tuple[str, Any]]:
    """Values of the columns that tell networks apart, in the tables that the control changes."""
    found: dict[tuple[str, Any], None] = {}
    for name in changed:
        rows = trained(tables[name])
        found |= dict.fromkeys((column, value) for column in columns for value in rows.values(column))
    return list(found)


def trained(rows: Rows) -> Rows:
    """The rows of networks that were trained; all rows of a table of networks alone."""
    for column in _PREDICTORS:
        own = [value for value in rows.values(column) if value in _TRAINED]
        if own:
            return rows.where(**{column: own})
    return rows


def _mixed(tables: Tables, nothing: Tables, column: str, values: set[Any]) -> Tables:
    """The rows of these networks from `nothing`, as far as it has the table, and all others as they are."""
    made = dict(tables)
    for name, other in nothing.items():
        if any(row.get(column) in values for row in tables[name]):
            kept = [row for row in tables[name] if row.get(column) not in values]
            made[name] = Rows([*kept, *(row for row in other if row.get(column) in values)])
    return made


def _constant(tables: Tables, nothing: Tables) -> Tables | None:
    """A predictor that always gives the same answer in the place of every network; None if no table has one."""
    made: dict[str, Rows] = {}
    for name, rows in tables.items():
        for column in _PREDICTORS:
            kinds = rows.values(column)
            own, answer = [one for one in kinds if one in _TRAINED], next((o for o in _CONSTANT if o in kinds), None)
            if own and answer is not None:
                others = [row for row in rows if row.get(column) not in own]
                given = [{**row, column: one} for one in own for row in rows.where(**{column: answer})]
                made[name] = Rows([*others, *given])
    return {**nothing, **made} if made else None


# ---------------------------------------------------------------------------------------------------------------------
# Labels that mean nothing


def _depths(columns: tuple[str, ...], tables: Tables, draw: int) -> Tables:
    """Depths permuted within each network that is measured at several, or within the networks of different depths.

    In every seed otherwise: the depths go round in an order that is drawn, by one place more with each seed, so that each
    has the place of each other one about as often. Permutations that are drawn freely are all the same one, now and then:
    then depths are renamed, and not without meaning.
    """
    return {name: permuted(columns, rows, draw) for name, rows in tables.items()}


def permuted(columns: tuple[str, ...], rows: Rows, draw: int) -> Rows:
    own = [column for column in _DEPTHS if rows and column in rows[0]]
    if not own:
        return rows
    seeds = sorted({row["seed"] for row in rows if row.get("seed") is not None})
    same = [c for c in (*columns, *_PREDICTORS) if c not in own]
    made = Rows(row for row in rows if row.get("layers") == _RECURRENT)
    for group, some in Rows(row for row in rows if row.get("layers") != _RECURRENT).by("seed", *same).items():
        places = list(dict.fromkeys(tuple(row.get(c) for c in own) for row in some))
        order = random.Random(f"{draw} {group[1:]}").sample(places, len(places))
        step = draw + (seeds.index(group[0]) if group[0] in seeds else 0)
        to = {place: order[(number + step) % len(order)] for number, place in enumerate(order)}
        made += [row | dict(zip(own, to[tuple(row.get(c) for c in own)], strict=True)) for row in some]
    return made


def _seeds(tables: Tables, changed: list[str], column: str, value: Any) -> Tables:
    """The rows of some networks with the next seed in the place of their own."""
    made = dict(tables)
    for name in changed:
        rows = tables[name]
        seeds = sorted({row["seed"] for row in rows})
        following = dict(zip(seeds, [*seeds[1:], seeds[0]], strict=True))
        own = {id(row) for row in trained(rows).where(**{column: value})}
        made[name] = Rows(row | {"seed": following[row["seed"]]} if id(row) in own else row for row in rows)
    return made


# ---------------------------------------------------------------------------------------------------------------------
# On what is kept


def folders() -> list[str]:
    """Kept tables of experiments with claims on training: ``small/limits-fig2``, ``medium/multitask-fig1@16-8`` and more."""
    return sorted(
        f"{scale}/{path.name}"
        for scale in ("small", "medium")
        for path in (RESULTS / scale).iterdir()
        if on_training(path.name.partition("@")[0])
        and (path / "findings.json").is_file()  # not of a campaign that is under way
    )


def on_training(experiment: str) -> list[Claim]:
    """The claims on training that have a rule."""
    return [claim for claim in claims_of(experiment) if claim.about == "training" and not claim.is_question]


@cache
def kept(folder: str) -> tuple[Experiment, Tables]:
    """An experiment and its kept tables."""
    about, tables = read_tables(RESULTS / folder)
    return experiment_named(about["experiment"]), tables
