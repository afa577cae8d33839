"""What the experiments on [MultiTask] Theorems 1 and 2 show and claim alike: steps, samples, memory, depth."""

import math
from typing import Any

import numpy as np

from hmmscope.lab import Effect, Figure, Gate, Measurement, Panel, Rows, Series, Tables, claim, lines, parameter
from hmmscope_papers.theorems import always, band, plain, power_slopes

#: As many rounding errors of a sum as a network's answer may have.
ROUNDING = 1e-11
#: Layers for a unit of the condition number that it takes until the error falls geometrically and by a factor of 10^5.
LAYERS_TO_SEE = 12


def steps_figure(tables: Tables) -> Figure:
    """Distance to least squares after each gradient layer, beside the bound."""
    rates = Rows(row for row in tables["step-rates"] if "measured" in row)
    panels = [
        lines(
            "Error and bound",
            band(tables["steps"], "steps", "Transformer", "model"),
            band(tables["steps"], "steps", "bound", "ceiling", y="bound"),
            x_label="gradient layers T",
            y_label="largest ||(Ŵ − W(T)) x||",
            log_y=True,
        )
    ]
    if rates:
        stated, measured = (tuple(row[column] for row in rates) for column in ("stated", "measured"))
        ends = (min(stated) * 0.9, max(stated) * 1.1)
        panels.append(
            lines(
                "Rate",
                Series(name="equal", role="optimum", x=ends, y=ends),
                Series(name="Transformer", role="model", x=stated, y=measured),
                x_label="stated rate, −ln(1 − η α₊), nats per layer",
                y_label="measured rate, nats per layer",
            )
        )
    return Figure(
        name="gradient-layers",
        title="Each layer is a gradient step: the error falls geometrically",
        caption=(
            "Left: distance of the weights in the residual stream from least squares, the largest over the windows that "
            "were seen, after each gradient layer; median and range over processes, step size 1/λ_max. Right: slope of its "
            "logarithm, one point a process, against the stated rate from the smallest non-zero eigenvalue α₊."
        ),
        panels=tuple(panels),
    )


def _root_mean_square(rows: Rows, column: str) -> float:
    return float(np.sqrt(np.mean([row[column] ** 2 for row in rows])))


def sample_figure(tables: Tables) -> Figure:
    """Errors against the number of samples, beside the bounds."""
    rows = Rows(row for row in tables["samples"] if row["covered"])

    def over_draws(kept: Rows, column: str, name: str, role: Any) -> Series | None:
        counts = sorted(kept.by("samples").items())
        values = Rows({"x": count, "value": _root_mean_square(group, column)} for count, group in counts)
        return plain(values, "x", name, role)

    def panel(title: str, key: str, bound: str, y_label: str, *more: Series | None) -> Panel:
        return lines(
            title,
            over_draws(rows.where(road="Transformer"), key, "Transformer", "model"),
            over_draws(rows.where(road="algebra"), key, "same weights by algebra", "other"),
            over_draws(rows, bound, "bound", "ceiling"),
            *more,
            x_label="samples n",
            y_label=y_label,
            log_x=True,
            log_y=True,
        )

    limits = (
        over_draws(rows, "generalisation", "least squares (endless steps)", "optimum"),
        over_draws(rows, "expected", "σ √(r/n)", "baseline"),
    )
    return Figure(
        name="samples",
        title="More demonstrations: the error falls as the root of their number",
        caption=(
            "Root mean square error over processes and draws of demonstrations, one window each, after the last gradient "
            "layer. Left: distance from the best linear prediction, with the bound, with what endless steps would leave, "
            "and with what independent noise gives. Right: distance from the exact law given the whole history, with the "
            "whole bound; it ends at what the memory and linearity leave. Draws whose windows do not span all windows are "
            "left out."
        ),
        panels=(
            panel("Estimation", "estimation", "estimation_bound", "||(W(T) − W_L) x||, r.m.s.", *limits),
            panel("Total", "total", "bound", "||P − W(T) x||, r.m.s."),
        ),
    )


def memory_figure(rows: Rows) -> Figure:
    """Error against memory, in its parts."""
    few, many = rows[0]["network_samples"], rows[0]["total_samples"]
    curved = Rows(row for row in rows if row["misspecification"] > ROUNDING)  # one symbol is linear in its one-hot
    return Figure(
        name="memory",
        title="A longer memory, and what linearity leaves of it",
        caption=(
            "Root mean square distance from the exact law of the next symbols, over all histories, against the memory L; "
            "median and range over processes. Endless samples leave the memory error and what is not linear in one-hots; "
            "with few samples a longer window costs more than it brings."
        ),
        panels=(
            lines(
                "",
                band(rows, "memory_length", f"Transformer, {few} samples", "model", y="network_total"),
                band(rows, "memory_length", f"same weights by algebra, {many} samples", "other", y="total"),
                band(rows, "memory_length", "endless samples and steps", "optimum", y="limit"),
                band(rows, "memory_length", "memory: best with L symbols", "baseline", y="memory"),
                band(rows, "memory_length", "certificate of the memory", "ceiling", y="certificate"),
                band(curved, "memory_length", "not linear in one-hots", "control", y="misspecification"),
                x_label="memory L, symbols",
                y_label="error, r.m.s.",
                log_y=True,
            ),
        ),
    )


def depth_figure(rows: Rows, x: str = "memory_length", x_label: str = "memory L, symbols") -> Figure:
    """Attention layers of the networks that were built."""
    series = []
    for steps in sorted(rows.values("steps")):
        kept = rows.where(steps=steps)
        series.append(plain(kept, x, f"built, T = {steps}", "model" if steps == 1 else "other", y="layers"))
        series.append(plain(kept, x, f"stated, T = {steps}", "optimum", y="stated"))
    return Figure(
        name="depth",
        title="Depth grows as the logarithm of what is gathered",
        caption="Attention layers of the networks, all of which gather exactly, and the number that the theorem states.",
        panels=(lines("", *series, x_label=x_label, y_label="attention layers", y_min=0.0),),
    )


# ---------------------------------------------------------------------------------------------------------------------
# Claims


def claims_of_theorem(number: int) -> None:
    """Register what Theorem 1 or 2 claims as the other one does, of the experiment multitask-theoremNUMBER."""
    shared = {"descent": _descent, "steps": _steps, "bounds": _bounds, "samples": _samples, "memory": _memory}
    for name, measure in shared.items():
        claim(f"multitask-theorem{number}-{name}")(measure)


def _weakly_revealing(tables: Tables) -> list[Gate]:
    """Of processes whose observability was measured: one symbol leaves states alike, two tell them apart."""
    rows = tables.get("observability")
    if not rows:
        return []
    blind = max(row["upper"] for row in rows.where(futures=1))
    seeing = min(row["lower"] for row in rows.where(futures=2))
    return [
        Gate.regime(blind, 0.0, parameter("blind"), "the observability of one symbol"),
        Gate.regime(seeing, parameter("seeing"), 1.0, "the observability of two symbols together"),
    ]


def _descent(tables: Tables) -> Measurement:
    rows = tables["equality"]
    exact = Rows(row for row in rows if row["variant"] not in ("softmax gap 20", "float32", "causal"))

    def same(row: dict[str, Any]) -> bool:
        return row["gather_error"] == 0 and max(row["weights_error"], row["prediction_error"]) < parameter(
            "rounding", ROUNDING
        )

    others = {
        name: max(row["prediction_error"] for row in group)
        for name, group in rows.by("variant").items()
        if name in ("softmax gap 20", "float32", "causal")
    }
    weights, law = (max(row[column] for row in exact) for column in ("weights_error", "prediction_error"))
    text = (
        f"In {len(exact)} networks the weights after every layer differ from plain gradient descent by at most "
        f"{weights:.1e} in every column, and predictions by {law:.1e}. Variants that compute in another way: "
        f"{', '.join(f'{name} {value:.0e}' for name, value in others.items())}."
    )
    kinds = ("instance", "memory_length", "futures")
    return Measurement(always(exact, same, *kinds, unit="share of processes and windows"), text)


def _steps(tables: Tables) -> Measurement:
    most = max(tables["steps"].values("steps")) / parameter("layers_to_see", LAYERS_TO_SEE)
    rates = Rows(row for row in tables["step-rates"] if row["condition"] <= most)
    text = (
        f"{len(rates)} of {len(tables['step-rates'])} processes have a condition number of at most {most:.1f}, so that "
        f"{max(tables['steps'].values('steps'))} layers are enough to see the rate."
    )
    if not rates:
        return Measurement(None, text)
    ratios = [row["measured"] / row["stated"] if "measured" in row else None for row in rates]
    if all(ratio is None for ratio in ratios):
        return Measurement(None, f"{text} There are too few layers to fit a rate.")
    return Measurement(Effect.pooled(ratios, "times the stated rate"), text, _weakly_revealing(tables))


def _bounds(tables: Tables) -> Measurement:
    steps = Rows(row for row in tables["steps"] if row["error"] > parameter("rounding", ROUNDING))
    draws = Rows(row for row in tables["samples"] if row["covered"])
    parts = {"generalisation": "generalisation_bound", "estimation": "estimation_bound", "total": "bound"}
    shares = Rows(
        {"process": process}
        | {part: _root_mean_square(group, part) / _root_mean_square(group, bound) for part, bound in parts.items()}
        for (process, _), group in draws.by("process", "samples").items()
    )
    effects = {
        "steps": always(steps, lambda row: row["error"] <= row["bound"], "instance", unit="share of processes"),
        "samples": always(shares, lambda row: max(row[p] for p in parts) <= 1, "process", unit="share of processes"),
    }
    largest = {part: max(row[part] for row in shares) for part in parts}
    text = (
        f"After a number of layers the distance from least squares is at most "
        f"{max(row['error'] / row['bound'] for row in steps):.2f} of its bound. In the mean over draws the generalisation "
        f"error is at most {largest['generalisation']:.2f} of its own, with the steps that are missing "
        f"{largest['estimation']:.2f}, and the total error {largest['total']:.2f} of the whole bound."
    )
    return Measurement(effects, text)


def _samples(tables: Tables) -> Measurement:
    rows = tables["samples"]
    by_process = [
        _mean(power_slopes(group, "samples", "generalisation", "draw"))
        for group in rows.where(road="algebra").by("process").values()
    ]
    differ = max(row["difference"] for row in rows.where(road="Transformer"))
    text = f"Of {len(by_process)} processes. Weights of the Transformer and of plain algebra differ by {differ:.1e} at most."
    return Measurement(Effect.pooled(by_process, "exponent of n"), text, _weakly_revealing(tables))


def _mean(values: list[float | None]) -> float | None:
    found = [value for value in values if value is not None]
    return sum(found) / len(found) if len(found) == len(values) else None


def _memory(tables: Tables) -> Measurement:
    rows, rates = tables["memory"], tables["memory-rates"]
    ends = [rows.where(memory_length=pick(rows.values("memory_length"))) for pick in (min, max)]
    limits, few = ([float(np.median([row[c] for row in part])) for part in ends] for c in ("limit", "network_total"))
    within = sum(row["memory"] <= row["certificate"] for row in rows)
    text = (
        f"The fall is straight within a factor of {math.exp(max(row['residual'] for row in rates)):.2f}, and the error "
        f"below its certificate in {within} of {len(rows)} cases. What endless samples and steps can reach goes from "
        f"{limits[0]:.4f} to {limits[1]:.4f} as L goes from {ends[0][0]['memory_length']} to {ends[1][0]['memory_length']}, "
        f"with linearity in one-hots in the way; with {rows[0]['network_samples']} samples it goes from {few[0]:.3f} to "
        f"{few[1]:.3f}."
    )
    return Measurement(
        Effect.pooled([row["rate"] for row in rates], "nats per symbol of memory"), text, _weakly_revealing(tables)
    )
