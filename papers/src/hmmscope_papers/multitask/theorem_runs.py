"""Figures and claims that [MultiTask] Theorems 1 and 2 share, about steps, samples, memory and depth."""

import math
from typing import Any

import numpy as np

from hmmscope import lab
from hmmscope_papers.theorems import always, band, plain, power_slopes

#: Largest rounding error of a network's output.
ROUNDING = 1e-11
#: Layers per unit of condition number until the error falls geometrically, by a factor of 10^5.
LAYERS_TO_SEE = 12


def steps_figure(tables: lab.Tables) -> lab.Figure:
    rates = lab.Rows(row for row in tables["step-rates"] if "measured" in row)
    panels = [
        lab.lines(
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
            lab.lines(
                "Rate",
                lab.Series(name="equal", role="optimum", x=ends, y=ends),
                lab.Series(name="Transformer", role="model", x=stated, y=measured),
                x_label="stated rate, −ln(1 − α/λ_max), nats per layer",
                y_label="measured rate, nats per layer",
            )
        )
    return lab.Figure(
        name="gradient-layers",
        title="Distance from least squares, by gradient layer",
        caption=(
            "Left: distance of the regression weights in the residual stream from least squares after each gradient layer, "
            "for the window with the largest distance. The step size is 1/λ_max, where λ_max is the largest eigenvalue of "
            "the sample covariance. Lines are medians and bands are ranges over processes. Right: decay rate of this "
            "distance (one point per process) against the stated rate -ln(1 - α/λ_max), where α is the smallest non-zero "
            "eigenvalue."
        ),
        panels=tuple(panels),
    )


def _root_mean_square(rows: lab.Rows, column: str) -> float:
    return float(np.sqrt(np.mean([row[column] ** 2 for row in rows])))


def sample_figure(tables: lab.Tables) -> lab.Figure:
    rows = lab.Rows(row for row in tables["samples"] if row["covered"])

    def over_draws(kept: lab.Rows, column: str, name: str, role: Any) -> lab.Series | None:
        counts = sorted(kept.by("samples").items())
        values = lab.Rows({"x": count, "value": _root_mean_square(group, column)} for count, group in counts)
        return plain(values, "x", name, role)

    def panel(title: str, key: str, bound: str, y_label: str, *more: lab.Series | None) -> lab.Panel:
        return lab.lines(
            title,
            over_draws(rows.where(road="Transformer"), key, "Transformer", "model"),
            over_draws(rows.where(road="algebra"), key, "plain gradient descent", "other"),
            over_draws(rows, bound, "bound", "ceiling"),
            *more,
            x_label="samples n",
            y_label=y_label,
            log_x=True,
            log_y=True,
        )

    limits = (
        over_draws(rows, "generalisation", "least squares (infinitely many steps)", "optimum"),
        over_draws(rows, "expected", "σ √(r/n)", "baseline"),
    )
    return lab.Figure(
        name="samples",
        title="Error by number of demonstrations",
        caption=(
            "Curves show root mean square errors over processes and sets of demonstrations, for one query per set, "
            "after the last gradient layer. Left: distance from the best linear prediction, with its bound and its "
            "limit for infinitely many steps; it would be σ √(r/n) if the noise (variance σ²) of n samples of rank r "
            "were independent. Right: distance from the exact distribution given the whole history, and its bound; "
            "with many samples the errors from the short memory and the linear form remain. Sets of demonstrations "
            "whose windows do not span all windows of the process are omitted."
        ),
        panels=(
            panel("Estimation", "estimation", "estimation_bound", "||(W(T) − W_L) x||, r.m.s.", *limits),
            panel("Total", "total", "bound", "||P − W(T) x||, r.m.s."),
        ),
    )


def memory_figure(rows: lab.Rows) -> lab.Figure:
    few, many = rows[0]["network_samples"], rows[0]["total_samples"]
    curved = lab.Rows(row for row in rows if row["misspecification"] > ROUNDING)  # one symbol is linear in its one-hot
    return lab.Figure(
        name="memory",
        title="Error by length of the memory",
        caption=(
            "Curves show the root mean square distance from the exact distribution of the next symbols, over all histories, "
            "against the memory L; lines are medians and bands are ranges over processes. With infinitely many samples the "
            "errors from the short memory and from the linear form of the prediction remain; with few samples a longer "
            "window can increase the error."
        ),
        panels=(
            lab.lines(
                "",
                band(rows, "memory_length", f"Transformer, {few} samples", "model", y="network_total"),
                band(rows, "memory_length", f"plain gradient descent, {many} samples", "other", y="total"),
                band(rows, "memory_length", "infinitely many samples and steps", "optimum", y="limit"),
                band(rows, "memory_length", "best prediction from L symbols", "baseline", y="memory"),
                band(rows, "memory_length", "upper bound of the memory error", "ceiling", y="certificate"),
                band(curved, "memory_length", "error of the linear form", "control", y="misspecification"),
                x_label="memory L, symbols",
                y_label="error, r.m.s.",
                log_y=True,
            ),
        ),
    )


def depth_figure(rows: lab.Rows, x: str = "memory_length", x_label: str = "memory L, symbols") -> lab.Figure:
    series = []
    for steps in sorted(rows.values("steps")):
        kept = rows.where(steps=steps)
        series.append(plain(kept, x, f"built, T = {steps}", "model" if steps == 1 else "other", y="layers"))
        series.append(plain(kept, x, f"stated, T = {steps}", "optimum", y="stated"))
    return lab.Figure(
        name="depth",
        title="Number of layers, by size of the gathered window",
        caption=(
            "Curves show the number of attention layers of the constructed networks, all of which gather their window "
            "exactly, and the number that the theorem states."
        ),
        panels=(lab.lines("", *series, x_label=x_label, y_label="attention layers", y_min=0.0),),
    )


# ---------------------------------------------------------------------------------------------------------------------
# Claims


def claims_of_theorem(number: int) -> None:
    """Register the claims that Theorems 1 and 2 share, for the experiment multitask-theoremNUMBER."""
    shared = {"descent": _descent, "steps": _steps, "bounds": _bounds, "samples": _samples, "memory": _memory}
    for name, measure in shared.items():
        lab.claim(f"multitask-theorem{number}-{name}")(measure)


def _weakly_revealing(tables: lab.Tables, numbers: lab.Numbers = None) -> list[lab.Gate]:
    rows = tables.get("observability")
    if not rows:
        return []
    blind = max(row["upper"] for row in rows.where(futures=1))
    seeing = min(row["lower"] for row in rows.where(futures=2))
    return [
        lab.Gate.regime(blind, 0.0, lab.parameter(numbers, "blind"), "the observability coefficient of single symbols"),
        lab.Gate.regime(
            seeing, lab.parameter(numbers, "seeing"), 1.0, "the observability coefficient of pairs of symbols"
        ),
    ]


def _descent(tables: lab.Tables, numbers: lab.RuleParameters) -> lab.Measurement:
    rows = tables["equality"]
    exact = lab.Rows(row for row in rows if row["variant"] not in ("softmax gap 20", "float32", "causal"))

    def same(row: dict[str, Any]) -> bool:
        return row["gather_error"] == 0 and max(row["weights_error"], row["prediction_error"]) < lab.parameter(
            numbers, "rounding", ROUNDING
        )

    others = {
        name: max(row["prediction_error"] for row in group)
        for name, group in rows.by("variant").items()
        if name in ("softmax gap 20", "float32", "causal")
    }
    weights, law = (max(row[column] for row in exact) for column in ("weights_error", "prediction_error"))
    text = (
        f"In {len(exact)} networks the regression weights after every layer differ from plain gradient descent by at "
        f"most {weights:.1e} at every position, and predictions by {law:.1e}. Predictions of variants differ from "
        f"plain gradient descent by at most {', '.join(f'{value:.0e} ({name})' for name, value in others.items())}."
    )
    kinds = ("instance", "memory_length", "futures")
    return lab.Measurement(always(exact, same, *kinds, unit="fraction of processes and windows"), text)


def _steps(tables: lab.Tables, numbers: lab.RuleParameters) -> lab.Measurement:
    most = max(tables["steps"].values("steps")) / lab.parameter(numbers, "layers_to_see", LAYERS_TO_SEE)
    rates = lab.Rows(row for row in tables["step-rates"] if row["condition"] <= most)
    text = (
        f"With {max(tables['steps'].values('steps'))} gradient layers the rate can be measured in processes with a "
        f"condition number of at most {most:.1f}: {len(rates)} of {len(tables['step-rates'])} processes."
    )
    if not rates:
        return lab.Measurement(None, text)
    ratios = [row["measured"] / row["stated"] if "measured" in row else None for row in rates]
    if all(ratio is None for ratio in ratios):
        return lab.Measurement(None, f"{text} There are too few layers to fit a rate.")
    return lab.Measurement(lab.Effect.pooled(ratios, "times the stated rate"), text, _weakly_revealing(tables, numbers))


def _bounds(tables: lab.Tables, numbers: lab.RuleParameters) -> lab.Measurement:
    steps = lab.Rows(row for row in tables["steps"] if row["error"] > lab.parameter(numbers, "rounding", ROUNDING))
    draws = lab.Rows(row for row in tables["samples"] if row["covered"])
    parts = {"generalisation": "generalisation_bound", "estimation": "estimation_bound", "total": "bound"}
    shares = lab.Rows(
        {"process": process}
        | {part: _root_mean_square(group, part) / _root_mean_square(group, bound) for part, bound in parts.items()}
        for (process, _), group in draws.by("process", "samples").items()
    )
    effects = {
        "steps": always(steps, lambda row: row["error"] <= row["bound"], "instance", unit="fraction of processes"),
        "samples": always(shares, lambda row: max(row[p] for p in parts) <= 1, "process", unit="fraction of processes"),
    }
    largest = {part: max(row[part] for row in shares) for part in parts}
    text = (
        "After every layer the distance from least squares is at most "
        f"{max(row['error'] / row['bound'] for row in steps):.2f} of its bound. Root mean square errors over sets of "
        f"demonstrations are at most these fractions of their bounds: generalisation {largest['generalisation']:.2f}, "
        f"generalisation and optimisation together {largest['estimation']:.2f}, total {largest['total']:.2f}."
    )
    return lab.Measurement(effects, text)


def _samples(tables: lab.Tables, numbers: lab.RuleParameters) -> lab.Measurement:
    rows = tables["samples"]
    by_process = [
        _mean(power_slopes(group, "samples", "generalisation", "draw"))
        for group in rows.where(road="algebra").by("process").values()
    ]
    differ = max(row["difference"] for row in rows.where(road="Transformer"))
    text = (
        f"The exponent of the sample size n is averaged over {len(by_process)} processes. The weights of the "
        f"Transformer differ from the weights of plain gradient descent by at most {differ:.1e}."
    )
    return lab.Measurement(lab.Effect.pooled(by_process, "exponent of n"), text, _weakly_revealing(tables, numbers))


def _mean(values: list[float | None]) -> float | None:
    found = [value for value in values if value is not None]
    return sum(found) / len(found) if len(found) == len(values) else None


def _memory(tables: lab.Tables, numbers: lab.RuleParameters) -> lab.Measurement:
    rows, rates = tables["memory"], tables["memory-rates"]
    ends = [rows.where(memory_length=pick(rows.values("memory_length"))) for pick in (min, max)]
    limits, few = ([float(np.median([row[c] for row in part])) for part in ends] for c in ("limit", "network_total"))
    within = sum(row["memory"] <= row["certificate"] for row in rows)
    text = (
        f"The memory error stays within a factor of {math.exp(max(row['residual'] for row in rates)):.2f} of an "
        f"exponential, and below its computed upper bound in {within} of {len(rows)} cases. With infinitely many samples "
        f"and steps the total error of the linear prediction falls from {limits[0]:.4f} to {limits[1]:.4f} as L grows "
        f"from {ends[0][0]['memory_length']} to {ends[1][0]['memory_length']}; with {rows[0]['network_samples']} samples "
        f"the error changes from {few[0]:.3f} to {few[1]:.3f}."
    )
    return lab.Measurement(
        lab.Effect.pooled([row["rate"] for row in rates], "nats per symbol of memory"),
        text,
        _weakly_revealing(tables, numbers),
    )
