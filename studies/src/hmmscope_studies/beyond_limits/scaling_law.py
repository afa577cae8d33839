"""Scaling law of the fit length on Cyclic-DET with the amount of training, by depth.

All budgets branch from one training with a constant learning rate, after 400, 800, 1600, ... steps; in each branch the
learning rate decreases linearly to zero over a fifth as many steps.
"""

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from statistics import fmean
from typing import Any

from hmmscope import Run, lab, registry
from hmmscope_papers.limits.lengths import final_losses, fit_lengths, length_of
from hmmscope_papers.limits.tables import layers_of, log2_length, model_name, relabelled
from hmmscope_papers.limits.trainings import identity, label_of, limits_config

TASK = "cyclic-det"
#: Learning rates by sequence length and layers (0 is the RNN), chosen for this schedule:
#: scripts/choose_rates.py chose among three by the mean evaluation loss of annealed budgets, with seed 100.
RATES: dict[int, dict[int, float]] = {32: {0: 0.008, 1: 0.004, 2: 0.004, 3: 0.004, 5: 0.004}}


@registry.experiment("limits-law")
class LimitsLaw(lab.Experiment):
    """Networks of several depths on Cyclic-DET, trained with annealed learning rates to growing budgets."""

    title = "Scaling law of the fit length in the number of training sequences, by depth"
    summary = (
        "Transformers of growing depth and the RNN track five states under two permutations that generate A5. Each "
        "model is trained at a constant learning rate, and copies of it are annealed at budgets that double, so that "
        "each point is a finished training. All depths and budgets use the same instances of the process. Two laws for "
        "the fit length, one linear in the logarithm of the number of sequences and one that saturates, are fitted to "
        "all budgets but the largest, and tested on the largest. Then they are extrapolated to the paper's budget; the "
        "interval is the union of the intervals of both laws."
    )
    num_seeds = lab.Experiment.NUM_SEEDS
    run_columns = ("layers", "longest", "steps")
    sizes = {
        scale: {"samples": samples, "least_count": count, "error_rates": [0.05, 0.1], "definition": "prefix"}
        | {"last_epochs": 1}
        for scale, samples, count in (("smoke", 64, 8), *((scale, 4096, 256) for scale in ("small", "medium", "gpu")))
    }
    groups = {"losses": ("positions", "fit-lengths")}
    shapes: dict[str, dict[str, Any]] = {
        "smoke": {"length": 4, "layers": [0, 1, 2], "first": 12, "doublings": 3},
        "small": {"length": 16, "layers": [0, 1, 2, 3], "first": 480, "doublings": 4},
        "medium": {"length": 32, "layers": [0, 1, 2, 3, 5], "first": 480, "doublings": 7},
        "gpu": {"length": 120, "layers": [0, 1, 3, 7], "first": 9000, "doublings": 4},
    }

    def choices(self, scale: str) -> dict[str, Any]:
        return dict(self.shapes[scale])

    def plan(self, scale: str, **choices: Any) -> dict[str, dict[str, Any]]:
        return {
            f"{_chain(choices['length'], layers)}, {steps} steps": _config(
                scale, choices["length"], layers, steps, choices
            )
            for layers in choices["layers"]
            for steps in (choices["first"] * 2**k for k in range(choices["doublings"]))
        }

    def cells(self, labels: list[str]) -> dict[str, list[str]]:
        chains: dict[str, list[str]] = {}
        for label in labels:
            chains.setdefault(label.rpartition(", ")[0], []).append(label)
        return chains

    def measure(self, runs: dict[str, Run], group: str, sizes: dict[str, Any]) -> lab.MeasuredTables:
        tables: lab.MeasuredTables = {"positions": [], "fit-lengths": []}
        for run in runs.values():
            training = run.config.training
            budget = {"steps": training.num_steps, "sequences": training.num_steps * training.batch_size}
            rows = final_losses(run, TASK, sizes)
            facts = identity(run) | budget | {"longest": max(row["position"] for row in rows)}
            tables["positions"] += [facts | row for row in rows]
            tables["fit-lengths"] += [facts | row for row in fit_lengths(run, rows, sizes) if row["by"] == "final"]
        return tables

    def figures(self, tables: lab.Tables) -> list[lab.Figure]:
        return [_figure(tables["fit-lengths"], growth.parameters)]

    def without_training(self, tables: lab.Tables) -> lab.Tables:
        return {name: relabelled(rows, "constant") for name, rows in tables.items()}


def _chain(length: int, layers: int) -> str:
    return f"{label_of(TASK, layers)}, length {length}"


def _config(scale: str, length: int, layers: int, steps: int, choices: Mapping[str, Any]) -> dict[str, Any]:
    first = choices["first"] - choices["first"] // 6  # where the first branch begins
    training = {
        "num_steps": steps,
        "schedule": "wsd",
        "epoch_steps": 0,
        "warmup_steps": min(300, first // 2),
        "warmup_from": 0.0,
        "evaluate_every": first,
        "checkpoint_every": max(first, 1000),
    }
    if layers in RATES.get(length, {}):
        training["learning_rate"] = RATES[length][layers]
    return limits_config(scale, TASK, layers, curriculum=False, length=length, training=training)


# ---------------------------------------------------------------------------------------------------------------------
# The scaling law


def _lengths(
    tables: lab.Tables, layers: int | None = None, predictor: str = "model", numbers: lab.Numbers = None
) -> lab.Rows:
    rate, definition = lab.parameter(numbers, "rate"), lab.parameter(numbers, "definition")
    rows = tables["fit-lengths"].where(predictor=predictor, error_rate=rate)
    if definition != "prefix":
        facts = ("layers", "sequences", "seed", "longest")
        losses = tables["positions"].where(predictor=predictor).by(*facts)
        rows = lab.Rows(
            {**dict(zip(facts, key, strict=True)), "length": length_of(own, rate, definition, numbers).value}
            for key, own in losses.items()
        )
    return rows if layers is None else rows.where(layers=layers)


def _end(row: Mapping[str, Any], numbers: lab.Numbers = None) -> float:
    return float(lab.parameter(numbers, "ceiling") * row["longest"])


def _capped(row: Mapping[str, Any], numbers: lab.Numbers = None) -> float:
    return math.log2(min(max(row["length"], 1.0), _end(row, numbers)))


def _points(rows: lab.Rows, numbers: lab.Numbers = None) -> list[lab.ScalingLaw.BudgetPoint]:
    return [
        lab.ScalingLaw.BudgetPoint(
            math.log2(row["sequences"]), row["seed"], _capped(row, numbers), row["length"] >= _end(row, numbers)
        )
        for row in rows
    ]


def _deep(tables: lab.Tables, numbers: lab.Numbers = None) -> list[int]:
    return [n for n in layers_of(_lengths(tables, numbers=numbers)) if n > 0]


def _at_paper(points: list[lab.ScalingLaw.BudgetPoint], unit: str, numbers: lab.Numbers = None) -> lab.Effect | None:
    law = lab.ScalingLaw.of(points)
    return None if law is None else law.effect(math.log2(lab.parameter(numbers, "sequences")), unit)


#: Function (name, true value, generator) -> simulated effect.
Redrawn = Callable[[str, float, random.Random], lab.Effect | None]


def _redrawn(
    chains: Mapping[str, list[lab.ScalingLaw.BudgetPoint]],
    less: Mapping[str, float] | None = None,
    numbers: lab.Numbers = None,
) -> Redrawn:
    laws, reached = (
        {name: lab.ScalingLaw.of(points) for name, points in chains.items()},
        math.log2(lab.parameter(numbers, "sequences")),
    )

    def redrawn(name: str, aim: float, draw: random.Random) -> lab.Effect | None:
        law, shift = laws[name], (less or {}).get(name, 0.0)
        found = None if law is None else law.resampled(reached, aim + shift, draw, "")
        return None if found is None else found.shifted(-shift)

    return redrawn


def _reached(numbers: lab.Numbers = None) -> dict[str, float]:
    return {"sequences": lab.parameter(numbers, "sequences")}


def _by_budget(rows: lab.Rows, measure: Callable[[lab.Rows], float | None]) -> list[lab.ScalingLaw.BudgetPoint]:
    found = [
        (row[0]["sequences"], row[0]["seed"], value)
        for row in rows.by("sequences", "seed").values()
        if (value := measure(row)) is not None
    ]
    return [lab.ScalingLaw.BudgetPoint(math.log2(sequences), seed, value) for sequences, seed, value in found]


def _slope(own: lab.Rows, numbers: lab.Numbers = None) -> float | None:
    known = [(row["layers"], log2_length(row)) for row in own if row["length"] < _end(row, numbers)]
    if len(known) < 2:
        return None
    centre = fmean(n for n, _ in known)
    spread = math.fsum((n - centre) ** 2 for n, _ in known)
    return math.fsum((n - centre) * y for n, y in known) / spread


def _gates(
    tables: lab.Tables, chains: Mapping[str, list[lab.ScalingLaw.BudgetPoint]], numbers: lab.Numbers = None
) -> tuple[lab.Gate, ...]:
    return (_learned(tables, numbers), _foretold(chains, numbers))


def _learned(tables: lab.Tables, numbers: lab.Numbers = None) -> lab.Gate:
    nothing = {
        key: own[0]["length"]
        for key, own in _lengths(tables, predictor="constant", numbers=numbers)
        .by("layers", "sequences", "seed")
        .items()
    }
    leads = [
        lab.Effect.pooled([row["length"] - nothing[*key, row["seed"]] for row in own], "positions")
        for key, own in _lengths(tables, numbers=numbers).by("layers", "sequences").items()
    ]
    least = min(leads, key=lambda effect: effect.value, default=None)
    control = "a constant answer in fit length"
    return lab.Gate.learned(least, lab.parameter(numbers, "learned"), control)


def _foretold(chains: Mapping[str, list[lab.ScalingLaw.BudgetPoint]], numbers: lab.Numbers = None) -> lab.Gate:
    tests = [test for points in chains.values() if (test := lab.ScalingLaw.held_out(points)) is not None]
    count = sum(test.instances for test in tests)
    share = sum(test.covered for test in tests) / count if count else 0.0
    return lab.Gate.regime(
        share,
        lab.parameter(numbers, "covered"),
        1.0,
        "the fraction of instances whose largest-budget result lies in the interval predicted from smaller budgets",
    )


def _below_the_end(tables: lab.Tables, numbers: lab.Numbers = None) -> lab.Gate:
    last = math.log2(max(map(partial(_end, numbers=numbers), _lengths(tables, numbers=numbers))))
    laws = [
        _at_paper(_points(_lengths(tables, n, numbers=numbers), numbers), "", numbers) for n in _deep(tables, numbers)
    ]
    below = sum(effect is not None and effect.high is not None and effect.high < last for effect in laws)
    what = "the number of depths whose fit length at the paper's budget is predicted to be shorter than the sequences"
    return lab.Gate.regime(float(below), lab.parameter(numbers, "below_the_end"), float(max(len(laws), 2)), what)


def _said(tables: lab.Tables, numbers: lab.Numbers = None) -> str:
    parts = []
    for layers in layers_of(_lengths(tables, numbers=numbers)):
        rows = _lengths(tables, layers, numbers=numbers)
        most = max(rows.values("sequences"))
        mean = 2 ** fmean(log2_length(row) for row in rows.where(sequences=most))
        effect = _at_paper(_points(rows, numbers), "", numbers)
        ends = "" if effect is None or effect.low is None or effect.high is None else _range(effect.low, effect.high)
        parts.append(f"{model_name(layers)} {mean:.3g} at {most:,} sequences{ends}")
    longest = max(_lengths(tables, numbers=numbers).values("longest"))
    return f"Mean fit lengths (loss below 0.1) at width 64, sequences of {longest}: {'; '.join(parts)}."


def _range(low: float, high: float) -> str:
    return f", {2 ** max(low, 0.0):.3g} to {2 ** min(high, 20.0):.3g} predicted at the paper's 5·10⁸"


@lab.claim("limits-law-growth")
def growth(tables: lab.Tables, numbers: lab.RuleParameters) -> lab.Measurement:
    rows = lab.Rows(row for row in _lengths(tables, numbers=numbers) if row["layers"] > 0)
    points = _by_budget(rows, partial(_slope, numbers=numbers))
    gates = (*_gates(tables, {"slope": points}, numbers), _below_the_end(tables, numbers))
    return lab.Measurement(
        _at_paper(points, "doublings per layer", numbers),
        _said(tables, numbers),
        gates,
        compute_used=_reached(numbers),
        resampled=_redrawn({"": points}, numbers=numbers),
    )


@lab.claim("limits-law-doubles")
def doubles(tables: lab.Tables, numbers: lab.RuleParameters) -> lab.Measurement:
    return growth.measure(tables, numbers)


@lab.claim("limits-law-power")
def power(tables: lab.Tables, numbers: lab.RuleParameters) -> lab.Measurement:
    chains = {n: _points(_lengths(tables, n, numbers=numbers), numbers) for n in _deep(tables, numbers)}
    longest = max(_lengths(tables, numbers=numbers).values("longest"))
    effects = {
        model_name(n): effect.shifted(-float(n))
        for n, points in chains.items()
        if 2**n <= longest and (effect := _at_paper(points, "doublings above 2^L", numbers)) is not None
    }
    gates = _gates(tables, {model_name(n): points for n, points in chains.items()}, numbers)
    return lab.Measurement(
        effects,
        _said(tables, numbers),
        (*gates, _tells_depths(chains, longest, numbers)),
        required=tuple(effects),
        compute_used=_reached(numbers),
    )


def _tells_depths(
    chains: Mapping[int, list[lab.ScalingLaw.BudgetPoint]], longest: int, numbers: lab.Numbers = None
) -> lab.Gate:
    deepest = max((n for n in chains if 2**n <= longest), default=0)
    effect = _at_paper(chains[min(chains)], "", numbers) if chains else None
    most = math.inf if effect is None or effect.high is None else effect.high
    return lab.Gate.regime(
        most,
        0.0,
        float(deepest),
        "the upper end of log2 of the fit length predicted for the smallest depth (limit: the largest depth)",
    )


@lab.claim("limits-law-rnn")
def recurrent(tables: lab.Tables, numbers: lab.RuleParameters) -> lab.Measurement:
    rows, deepest = _lengths(tables, numbers=numbers), max(_deep(tables, numbers), default=0)
    others = {(row["sequences"], row["seed"]): row for row in rows.where(layers=deepest)}
    points = [
        lab.ScalingLaw.BudgetPoint(
            math.log2(sequences),
            seed,
            _capped(row, numbers) - _capped(other, numbers),
            row["length"] >= _end(row, numbers),
        )
        for row in rows.where(layers=0)
        if (other := others.get((sequences := row["sequences"], seed := row["seed"]))) is not None
    ]
    if points and all(point.hidden for point in points):
        return _to_the_end(tables, deepest, numbers)
    effect = _at_paper(points, f"doublings of the RNN's fit length above that of {model_name(deepest)}", numbers)
    gates = _gates(tables, {"lead": points}, numbers)
    return lab.Measurement(
        effect,
        _said(tables, numbers),
        gates,
        compute_used=_reached(numbers),
        resampled=_redrawn({"": points}, numbers=numbers),
    )


def _to_the_end(tables: lab.Tables, deepest: int, numbers: lab.Numbers = None) -> lab.Measurement:
    rows = _lengths(tables, deepest, numbers=numbers)
    chain, end = _points(rows, numbers), math.log2(max(map(partial(_end, numbers=numbers), rows)))
    law = _at_paper(
        chain, f"doublings from the fit length of {model_name(deepest)} to the end of the sequence", numbers
    )
    if law is None or law.low is None or law.high is None:
        return lab.Measurement(
            None, _said(tables, numbers), _gates(tables, {"deepest": chain}, numbers), compute_used=_reached(numbers)
        )
    low, value, high = (end - min(one, end) for one in (law.high, law.value, law.low))
    there = lab.Gate.regime(
        law.low,
        0.0,
        end - lab.parameter(numbers, "room"),
        f"log2 of the smallest fit length predicted for {model_name(deepest)}",
    )
    effect = replace(law, low=low, value=value, high=high)
    lengths = _redrawn({"": chain}, numbers=numbers)

    def redrawn(name: str, aim: float, draw: random.Random) -> lab.Effect | None:
        found = lengths(name, end - aim, draw)
        return None if found is None else found.mirrored(end / 2)

    gates = (*_gates(tables, {"deepest": chain}, numbers), there)
    return lab.Measurement(effect, _said(tables, numbers), gates, compute_used=_reached(numbers), resampled=redrawn)


@lab.claim("limits-law-rests")
def rests(tables: lab.Tables, numbers: lab.RuleParameters) -> lab.Measurement:
    effects = {}
    for layers in _deep(tables, numbers):
        moved = list(lab.ScalingLaw.last_doubling(_points(_lengths(tables, layers, numbers=numbers), numbers)).values())
        if moved:
            effects[model_name(layers)] = lab.Effect.pooled(
                moved, "doublings of the fit length per doubling of the budget"
            )
    known = {name: effect for name, effect in effects.items() if effect.low is not None and effect.high is not None}
    still = [
        name
        for name, effect in known.items()
        if max(-(effect.low or 0.0), effect.high or 0.0) < lab.parameter(numbers, "at_rest")
    ]
    said = "; ".join(f"{name} {effect.short()}" for name, effect in effects.items())
    return lab.Measurement(
        effects,
        "log2 of the factor by which the last doubling of the budget multiplies the fit length: "
        f"{said or 'all depths fit the sequence'}. Converged: {', '.join(still) or 'none'}.",
    )


# ---------------------------------------------------------------------------------------------------------------------
# Figure


def _figure(rows: lab.Rows, numbers: lab.Numbers = None) -> lab.Figure:
    own = rows.where(predictor="model", error_rate=lab.parameter(numbers, "rate"))
    longest = max(own.values("longest"))
    ends = (float(min(own.values("sequences"))), lab.parameter(numbers, "sequences"))
    series: list[lab.Series | None] = []
    for layers in layers_of(own):
        of_depth = own.where(layers=layers)
        series.append(
            lab.curve(of_depth, "sequences", model_name(layers), "model" if layers else "optimum", y="length")
        )
        series += _drawn_law(_points(of_depth, numbers), model_name(layers), longest, numbers)
    series.append(lab.level(longest, ends, "end of the sequence", "ceiling"))
    shown: dict[str, Any] = {"x_label": "sequences seen", "y_label": "fit length", "y_min": 0.0, "log_x": True}
    return lab.Figure(
        name="fit-length-law",
        title="Fit length of annealed trainings, extrapolated to the paper's number of training sequences",
        caption=(
            f"Points show the (interpolated) position at which the loss exceeds {lab.parameter(numbers, 'rate'):g}, for "
            "copies of one training that are annealed at different steps. Bands at points are 95 % intervals over "
            "instances. Bands beyond the points predict the mean over instances, up to the paper's 5·10⁸ sequences, by a "
            "linear law and by a law that saturates, both fitted to all points. Curves are cut at the sequence length."
        ),
        panels=(lab.lines(f"Cyclic-DET, sequences of {longest}, width 64", *series, **shown),),
    )


def _drawn_law(
    points: list[lab.ScalingLaw.BudgetPoint], name: str, longest: int, numbers: lab.Numbers = None
) -> list[lab.Series]:
    law = lab.ScalingLaw.of(points)
    if law is None:
        return []
    first, last = max(point.x for point in points), math.log2(lab.parameter(numbers, "sequences"))
    places = [first + (last - first) * k / 8 for k in range(9)]
    found = [law.effect(x, "") for x in places]
    return [
        lab.Series(
            name=f"{name}, law",
            role="control",
            x=tuple(2**x for x in places),
            y=tuple(min(2**effect.value, float(longest)) for effect in found),
            low=tuple(min(2 ** (effect.low or 0.0), float(longest)) for effect in found),
            high=tuple(min(2 ** min(effect.high or 0.0, 20.0), float(longest)) for effect in found),
        )
    ]
