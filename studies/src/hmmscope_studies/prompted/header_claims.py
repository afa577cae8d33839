"""Claims of header-filtering, most of which use log2 of the ratio of two excess losses."""

import math
from collections.abc import Iterable, Mapping
from functools import partial
from statistics import fmean
from typing import Any

from hmmscope import lab
from hmmscope.ties import largest, smallest
from hmmscope_studies.prompted.filtering_measures import BEYOND, HERE
from hmmscope_studies.prompted.filtering_models import title

#: Size, architecture and steps of a network.
Which = tuple[int, str, int]
#: An estimate for each seed.
Seeds = Mapping[Any, lab.EstimateWithError | None]


def _sized(size: int) -> str:
    return f"{size} states"


def _longest(rows: lab.Rows, *names: str) -> int:
    known = [set(rows.where(architecture=name).values("steps")) for name in names]
    return max(set.intersection(*known), default=0)


def _after(rows: lab.Rows, name: str, steps: int) -> Seeds:
    return rows.where(architecture=name, steps=steps).estimates()


def in_pairs(one: Seeds, other: Seeds, measure: Any) -> lab.PerSeed[lab.EstimateWithError | None]:
    """Apply `measure` to the two estimates of each seed; None for seeds that lack one."""
    found: lab.PerSeed[lab.EstimateWithError | None] = lab.PerSeed()
    for seed in {**one, **other}:
        pair = one.get(seed), other.get(seed)
        found[seed] = None if None in pair else measure(*pair)
    return found


def ratio(one: lab.EstimateWithError, other: lab.EstimateWithError) -> lab.EstimateWithError:
    relative = math.hypot(one.error / one.value, other.error / other.value)
    return lab.EstimateWithError(one.value / other.value, relative * one.value / other.value)


def _doublings(one: lab.EstimateWithError, other: lab.EstimateWithError) -> lab.EstimateWithError:
    found = ratio(one, other)
    return lab.EstimateWithError(math.log2(found.value), found.error / found.value / math.log(2))


def _change(before: Seeds, after: Seeds) -> float | None:
    changes = [None if (then := before.get(seed)) is None else now.value - then.value for seed, now in _known(after)]
    known = [change for change in changes if change is not None]
    return fmean(known) if known and len(known) == len(after) else None


def _known(seeds: Seeds) -> list[tuple[Any, lab.EstimateWithError]]:
    return [(seed, one) for seed, one in seeds.items() if one is not None]


def _counting(tables: lab.Tables, size: int, name: str) -> Seeds:
    return tables["places"].where(size=size, architecture=name, place=HERE, predictor="counting").estimates()


def _learned(tables: lab.Tables, networks: Iterable[Which], numbers: lab.Numbers = None) -> lab.Gate:
    leads: dict[Which, lab.Effect | None] = {}
    for size, name, steps in networks:
        rows = tables["learning"].where(size=size)
        lead = in_pairs(_counting(tables, size, name), _after(rows, name, steps), lambda one, other: one - other)
        leads[size, name, steps] = lead.effect("nats")
    if not leads:
        said = "none of the compared networks was trained here"
        return lab.Gate("learned", False, said, (0.0, lab.parameter(numbers, "learned")))
    unknown = [which for which, lead in leads.items() if lead is None]
    known = {which: lead.value for which, lead in leads.items() if lead is not None}
    least = unknown[0] if unknown else smallest(known, lambda which: known[which])
    said = f"the best n-gram baseline ({title(least[1])}, {_sized(least[0])}, {least[2]:,} steps)"
    return lab.Gate.learned(leads[least], lab.parameter(numbers, "learned"), said)


def _said(tables: lab.Tables) -> str:
    found = []
    for size, own in tables["learning"].by("size").items():
        names = own.values("architecture")
        steps = _longest(own, *names)
        means = (
            f"{title(name)} {fmean(one.value for _, one in _known(_after(own, name, steps))):.3g}" for name in names
        )
        if steps:
            found.append(f"{_sized(size)}, {steps:,} steps: {', '.join(means)}")
    return f"Mean nats per symbol above the exact filter: {'; '.join(found) or 'not measured'}."


def _spent(tables: lab.Tables, networks: Iterable[Which]) -> dict[str, float]:
    found = [
        row["sequences"]
        for size, name, steps in networks
        for row in tables["learning"].where(size=size, architecture=name, steps=steps)
    ]
    return {"sequences": max(found)} if found else {}


# ---------------------------------------------------------------------------------------------------------------------
# One network compared with n-grams


def _left(tables: lab.Tables, name: str, numbers: lab.Numbers = None) -> lab.Measurement:
    effects, drifts, used = {}, {}, []
    for size, own in tables["learning"].where(architecture=name).by("size").items():
        steps, counting = _longest(own, name), _counting(tables, size, name)
        now, half = (in_pairs(_after(own, name, at), counting, ratio) for at in (steps, steps // 2))
        effect = now.effect("of the n-gram baseline's excess")
        if effect is not None:
            effects[_sized(size)], drifts[_sized(size)] = effect, _change(half, now)
            used.append((size, name, steps))
    gates = (_learned(tables, used, numbers),)
    return lab.Measurement(
        effects or None, _said(tables), gates, ("2 states", "3 states"), drifts, _spent(tables, used)
    )


@lab.claim("header-lstm-fails")
def lstm_fails(tables: lab.Tables, numbers: lab.RuleParameters) -> lab.Measurement:
    return _left(tables, "lstm", numbers)


@lab.claim("header-transformer-filters")
def transformer_filters(tables: lab.Tables, numbers: lab.RuleParameters) -> lab.Measurement:
    return _left(tables, "transformer", numbers)


# ---------------------------------------------------------------------------------------------------------------------
# Two networks


def _ahead(tables: lab.Tables, behind: str, ahead: str, numbers: lab.Numbers = None) -> lab.Measurement:
    effects, drifts, used, budgets = {}, {}, [], {}
    for size, own in tables["learning"].by("size").items():
        steps = _longest(own, behind, ahead)
        if not (steps and lab.parameter(numbers, "least") <= size <= lab.parameter(numbers, "most")):
            continue
        now, half = (
            in_pairs(_after(own, behind, at), _after(own, ahead, at), _doublings) for at in (steps, steps // 2)
        )
        effect = now.effect(f"doublings from the excess of the {title(ahead)} to that of the {title(behind)}")
        if effect is not None:
            effects[_sized(size)], drifts[_sized(size)] = effect, _change(half, now)
            used += [(size, name, steps) for name in (behind, ahead)]
    for name in (behind, ahead):
        budgets[title(name)] = _spent(tables, [one for one in used if one[1] == name])
    gates = (_learned(tables, used, numbers), lab.Gate.matched(budgets))
    return lab.Measurement(effects or None, _said(tables), gates, tuple(effects), drifts, _spent(tables, used))


def _seconds(rows: lab.Rows) -> list[float]:
    return [row["processor_seconds"] for row in rows if row.get("processor_seconds") is not None]


def _at_time(rows: lab.Rows, seconds: float) -> tuple[lab.PerSeed[lab.EstimateWithError | None], set[int]]:
    found: lab.PerSeed[lab.EstimateWithError | None] = lab.PerSeed()
    steps = set()
    for seed, own in rows.by("seed").items():
        timed = sorted(
            (row for row in own if row.get("processor_seconds") is not None), key=lambda row: row["processor_seconds"]
        )
        below = [row for row in timed if row["processor_seconds"] <= seconds]
        above = [row for row in timed if row["processor_seconds"] >= seconds]
        if not below or not above:
            found[seed] = None
            continue
        left, right = below[-1], above[0]
        steps |= {left["steps"], right["steps"]}
        place = 0.0
        if right["processor_seconds"] > left["processor_seconds"]:
            place = math.log(seconds / left["processor_seconds"])
            place /= math.log(right["processor_seconds"] / left["processor_seconds"])
        value = left["value"] * (right["value"] / left["value"]) ** place
        relative = max(row["error"] / row["value"] for row in (left, right))
        found[seed] = lab.EstimateWithError(value, relative * value)
    return found, steps


def _ahead_in_time(tables: lab.Tables, behind: str, ahead: str, numbers: lab.Numbers = None) -> lab.Measurement:
    effects, drifts, used, budgets = {}, {}, [], dict[str, dict[str, float]]()
    for size, own in tables["learning"].by("size").items():
        both = [own.where(architecture=name) for name in (behind, ahead)]
        if not all(map(_seconds, both)) or not lab.parameter(numbers, "least") <= size <= lab.parameter(
            numbers, "most"
        ):
            continue
        most = min(min(max(_seconds(seed)) for seed in rows.by("seed").values() if _seconds(seed)) for rows in both)
        (one, steps_one), (other, steps_other) = (_at_time(rows, most) for rows in both)
        one_half, other_half = (_at_time(rows, most / 2)[0] for rows in both)
        now, half = in_pairs(one, other, _doublings), in_pairs(one_half, other_half, _doublings)
        effect = now.effect(f"doublings from the excess of the {title(ahead)} to that of the {title(behind)}")
        if effect is not None:
            effects[_sized(size)], drifts[_sized(size)] = effect, _change(half, now)
            used += [(size, behind, steps) for steps in steps_one] + [(size, ahead, steps) for steps in steps_other]
            for name in (behind, ahead):
                budgets.setdefault(title(name), {})[f"processor seconds at {_sized(size)}"] = most
    gates = (_learned(tables, sorted(used), numbers), lab.Gate.matched(budgets))
    return lab.Measurement(effects or None, _said(tables), gates, tuple(effects), drifts, _spent(tables, used))


@lab.claim("header-transformer-ahead")
def transformer_ahead(tables: lab.Tables, numbers: lab.RuleParameters) -> lab.Measurement:
    return _ahead(tables, "lstm", "transformer", numbers)


@lab.claim("header-transformer-ahead-of-two")
def transformer_ahead_of_two(tables: lab.Tables, numbers: lab.RuleParameters) -> lab.Measurement:
    return _ahead(tables, "lstm", "transformer", numbers)


@lab.claim("header-transformer-ahead-in-time")
def transformer_ahead_in_time(tables: lab.Tables, numbers: lab.RuleParameters) -> lab.Measurement:
    return _ahead_in_time(tables, "lstm", "transformer", numbers)


@lab.claim("header-rnn-ahead")
def rnn_ahead(tables: lab.Tables, numbers: lab.RuleParameters) -> lab.Measurement:
    return _ahead(tables, "transformer", "rnn", numbers)


@lab.claim("header-rnn-ahead-in-time")
def rnn_ahead_in_time(tables: lab.Tables, numbers: lab.RuleParameters) -> lab.Measurement:
    return _ahead_in_time(tables, "transformer", "rnn", numbers)


# ---------------------------------------------------------------------------------------------------------------------
# A Transformer beyond its training length, and inside


@lab.claim("header-transformer-longer")
def transformer_longer(tables: lab.Tables, numbers: lab.RuleParameters) -> lab.Measurement:
    effects, used = {}, []
    for size, own in tables["places"].where(architecture="transformer", predictor="model").by("size").items():
        here, beyond = (own.where(place=place).estimates() for place in (HERE, BEYOND))
        effect = in_pairs(beyond, here, _doublings).effect(
            "doublings from the excess up to the training length to that beyond it"
        )
        if effect is not None:
            effects[_sized(size)] = effect
            used.append((size, "transformer", own[0]["steps"]))
    said = []
    for name, own in tables["places"].where(predictor="model", place=BEYOND).by("architecture").items():
        means = (f"{fmean(one['value'] for one in rows):.3g} ({_sized(size)})" for size, rows in own.by("size").items())
        said.append(f"{title(name)} {', '.join(means)}")
    text = (
        f"Mean nats per symbol above the exact filter beyond the training length: {'; '.join(said) or 'not measured'}."
    )
    return lab.Measurement(
        effects or None,
        text,
        (_learned(tables, used, numbers),),
        ("2 states", "3 states"),
        compute_used=_spent(tables, used),
    )


@lab.claim("header-belief-linear")
def belief_linear(tables: lab.Tables, numbers: lab.RuleParameters) -> lab.Measurement:
    effects, used = {}, []
    for size, own in tables["belief"].where(architecture="transformer").by("size").items():
        shares = list(own.per_seed(partial(_best_share, numbers=numbers)).values())
        if any(share is not None for share in shares):
            effects[_sized(size)] = lab.Effect.pooled(shares, "of the variance unexplained by untrained controls")
            used.append((size, "transformer", own[0]["steps"]))
    said = "; ".join(f"{name} {effect.short()}" for name, effect in effects.items())
    text = "Training explains this fraction of the belief's variance that untrained controls leave unexplained: "
    text += f"{said or 'not identifiable'}."
    return lab.Measurement(
        effects or None, text, (_learned(tables, used, numbers),), tuple(effects), compute_used=_spent(tables, used)
    )


def _best_share(own: lab.Rows, numbers: lab.Numbers = None) -> lab.EstimateWithError | None:
    best = largest(own, lambda row: row["fitted"])
    if best["share"] is None:
        return None
    return lab.EstimateWithError(
        best["share"], (best["share_high"] - best["share_low"]) / lab.parameter(numbers, "width")
    )
