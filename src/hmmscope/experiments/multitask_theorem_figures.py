"""Figures and findings that the experiments on [MultiTask] Theorems 1 and 2 share."""

from dataclasses import replace
from typing import Any

import numpy as np

from hmmscope.evidence.figures import Figure, Heatmap, Lines, Series
from hmmscope.experiments.experiment import Finding, Tables
from hmmscope.experiments.panels import curves_panel, series_of
from hmmscope.experiments.slopes import slope_row, spread

#: Rates within this share of the stated one count as equal to it.
RATE_TOLERANCE = 0.05
#: As many rounding errors of a sum as a network's answer may have.
ROUNDING = 1e-11


def _median(rows: list[dict], x: str, y: str, name: str, role: Any) -> Series:
    """Median over instances, with the range."""
    return series_of(spread(rows, (x,), y), name, role, x=x)


def steps_figure(tables: Tables) -> Figure:
    """Distance to least squares after each gradient layer, beside the bound."""
    rows = tables["steps"]
    rates = [row for row in tables["step-rates"] if "measured" in row]
    shown = {"x_label": "gradient layers T", "log_y": True}
    panels = [
        Lines(
            title="Error and bound",
            y_label="largest ||(Ŵ − W(T)) x||",
            series=(
                _median(rows, "steps", "error", "Transformer", "model"),
                _median(rows, "steps", "bound", "bound", "ceiling"),
            ),
            **shown,  # type: ignore[arg-type]
        )
    ]
    if rates:
        stated = [row["stated"] for row in rates]
        ends = (min(stated) * 0.9, max(stated) * 1.1)
        panels.append(
            Lines(
                title="Rate",
                x_label="stated rate, −ln(1 − η α₊), nats per layer",
                y_label="measured rate, nats per layer",
                series=(
                    Series(name="equal", role="optimum", x=ends, y=ends),
                    Series(
                        name="Transformer", role="model", x=tuple(stated), y=tuple(row["measured"] for row in rates)
                    ),
                ),
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


def _mean_square(rows: list[dict], key: str) -> list[dict]:
    """Root mean square over draws for each number of samples."""
    return [
        {"x": count, "value": float(np.sqrt(np.mean([row[key] ** 2 for row in rows if row["samples"] == count])))}
        for count in sorted({row["samples"] for row in rows})
    ]


def sample_figure(tables: Tables) -> Figure:
    """Errors against the number of samples, beside the bounds."""
    rows = [row for row in tables["samples"] if row["covered"]]
    roads = {road: [row for row in rows if row["road"] == road] for road in ("Transformer", "algebra")}

    def panel(title: str, key: str, bound: str, y_label: str, limit: bool) -> Lines:
        series = [
            series_of(_mean_square(roads["Transformer"], key), "Transformer", "model"),
            series_of(_mean_square(roads["algebra"], key), "same weights by algebra", "other"),
            series_of(_mean_square(rows, bound), "bound", "ceiling"),
        ]
        if limit:
            series.append(series_of(_mean_square(rows, "generalisation"), "least squares (endless steps)", "optimum"))
            series.append(series_of(_mean_square(rows, "expected"), "σ √(r/n)", "baseline"))
        kept = tuple(one for one in series if one.x)
        return Lines(title=title, x_label="samples n", y_label=y_label, series=kept, log_x=True, log_y=True)

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
            panel("Estimation", "estimation", "estimation_bound", "||(W(T) − W_L) x||, r.m.s.", True),
            panel("Total", "total", "bound", "||P − W(T) x||, r.m.s.", False),
        ),
    )


def memory_figure(rows: list[dict]) -> Figure:
    """Error against memory, in its parts."""
    count = rows[0]["network_samples"]
    curved = [row for row in rows if row["misspecification"] > ROUNDING]
    series = [
        _median(rows, "memory_length", "network_total", f"Transformer, {count} samples", "model"),
        _median(
            rows, "memory_length", "total", f"same weights by algebra, {rows[0]['total_samples']} samples", "other"
        ),
        _median(rows, "memory_length", "limit", "endless samples and steps", "optimum"),
        _median(rows, "memory_length", "memory", "memory: best with L symbols", "baseline"),
        _median(rows, "memory_length", "certificate", "certificate of the memory", "ceiling"),
    ]
    if curved:  # one symbol is always linear in its one-hot
        series.append(_median(curved, "memory_length", "misspecification", "not linear in one-hots", "control"))
    return Figure(
        name="memory",
        title="A longer memory, and what linearity leaves of it",
        caption=(
            "Root mean square distance from the exact law of the next symbols, over all histories, against the memory L; "
            "median and range over processes. Endless samples leave the memory error and what is not linear in one-hots; "
            "with few samples a longer window costs more than it brings."
        ),
        panels=(
            Lines(title="", x_label="memory L, symbols", y_label="error, r.m.s.", series=tuple(series), log_y=True),
        ),
    )


def depth_figure(rows: list[dict], x: str = "memory_length", x_label: str = "memory L, symbols") -> Figure:
    """Attention layers of the networks that were built."""
    series = []
    for steps in sorted({row["steps"] for row in rows}):
        kept = [row for row in rows if row["steps"] == steps]
        series.append(series_of(kept, f"built, T = {steps}", "model" if steps == 1 else "other", x=x, y="layers"))
        series.append(series_of(kept, f"stated, T = {steps}", "optimum", x=x, y="stated"))
    return Figure(
        name="depth",
        title="Depth grows as the logarithm of what is gathered",
        caption="Attention layers of the networks, all of which gather exactly, and the number that the theorem states.",
        panels=(Lines(title="", x_label=x_label, y_label="attention layers", series=tuple(series), y_min=0.0),),
    )


def observability_figure(rows: list[dict]) -> Figure:
    """The observability coefficient of one to four observations together."""
    hand = [row for row in rows if row["instance"] == 0]
    others = [row for row in rows if row["instance"] != 0]
    series = [series_of(hand, "chosen by hand, exact", "model", x="futures", y="upper")]
    if others:
        series.append(_median(others, "futures", "lower", "random processes, lower bound", "other"))
    return Figure(
        name="observability",
        title="Several observations together tell states apart",
        caption="Observability of the law of the next k symbols given the state; median and range over processes.",
        panels=(Lines(title="", x_label="observations k", y_label="gamma_k", series=tuple(series), y_min=0.0),),
    )


def failure_figure(tables: Tables) -> Figure:
    """What happens without the two heads for each symbol, and without positions that shift."""
    heads = tables["heads"]
    full = max(row["heads"] for row in heads)
    curves = tuple(
        _median(
            [r for r in heads if r["heads"] == n], "steps", "error", f"{n} heads", "model" if n == full else "other"
        )
        for n in sorted({row["heads"] for row in heads}, reverse=True)
    )
    absolute = [row for row in tables["positions"] if row["positions"] == "absolute"]
    worst = max(row["wrong"] for row in tables["positions"] if row["positions"] == "rotating pair")
    ends = tuple(pick(row["width"] for row in absolute) for pick in (min, max))
    return Figure(
        name="failures",
        title="Where the construction fails",
        caption=(
            "Left: distance from least squares with some of the heads of each gradient layer; median and range over "
            "processes. Right: share of history slots that hold a wrong token, with random absolute position vectors and "
            "the matrix that shifts them best, against the number of their coordinates."
        ),
        panels=(
            Lines(
                title="Heads",
                x_label="gradient layers",
                y_label="distance from least squares",
                series=curves,
                log_y=True,
            ),
            Lines(
                title="Positions",
                x_label="coordinates of a position vector",
                y_label="share of wrong tokens",
                series=(
                    _median(absolute, "width", "wrong", "absolute", "other"),
                    Series(name="rotating pair (2 coordinates)", role="model", x=ends, y=(worst, worst)),
                ),
                y_min=0.0,
                y_max=1.0,
            ),
        ),
    )


def in_context_panel(rows: list[dict]) -> Figure:
    """The causal network beside the optimum and the n-grams."""
    names = {"model": "construction", "Bayes mixture (optimum)": "Bayes filter (optimum)"}

    def panel(kept: list[dict], metric: str, title: str, y_label: str) -> Lines:
        x_label = "demonstrations before the sequence"
        lines = curves_panel(kept, metric, title=title, x_label=x_label, y_label=y_label)
        return replace(lines, series=tuple(replace(one, name=names.get(one.name, one.name)) for one in lines.series))

    judged = [row for row in rows if row["predictor"] in ("model", "order-0", "order-1", "order-2")]
    return Figure(
        name="in-context",
        title="The constructed network as a predictor",
        caption=(
            "The causal variant, scored like a trained model: negative entries of its vector set to zero, the rest divided "
            "by their sum; positions whose window lies inside their sequence. The optimum knows the process. Bands are 95 % "
            "intervals over prompts."
        ),
        panels=(
            panel(rows, "accuracy", "Accuracy", "accuracy"),
            panel(judged, "total_variation", "Distance from the optimum", "total variation"),
        ),
    )


def shuffle_panel(rows: list[dict]) -> Figure:
    """The position-shuffle test on the construction."""
    cells = spread([row for row in rows if row["layer"] > 0], ("layer", "head"), "value")
    layers, heads = sorted({row["layer"] for row in cells}), sorted({row["head"] for row in cells})
    values = {(row["layer"], row["head"]): row["value"] for row in cells}
    return Figure(
        name="position-shuffle",
        title="Which layers look at positions",
        caption=(
            "Coefficient of variation of the attention logits from the last token to the regression samples when whole "
            "demonstrations change places; median over prompts. The gathering layers, of one head, look at positions, the "
            "gradient and prediction layers at content."
        ),
        panels=(
            Heatmap(
                title="",
                x_label="head",
                y_label="layer",
                z_label="coefficient of variation",
                x=tuple(heads),
                y=tuple(layers),
                z=tuple(tuple(values.get((layer, head)) for head in heads) for layer in layers),
                z_min=0.0,
            ),
        ),
    )


# ---------------------------------------------------------------------------------------------------------------------
# Findings


def equality_finding(rows: list[dict]) -> Finding:
    """Whether the network is gradient descent."""
    exact = [row for row in rows if row["variant"] not in ("softmax gap 20", "float32", "causal")]
    weights, law = (max(row[key] for row in exact) for key in ("weights_error", "prediction_error"))
    gather = max(row["gather_error"] for row in rows if row["variant"] != "softmax gap 20")
    others = {
        name: max(row["prediction_error"] for row in rows if row["variant"] == name)
        for name in ("causal", "float32", "softmax gap 20")
        if any(row["variant"] == name for row in rows)
    }
    more = ", ".join(f"{name} {value:.0e}" for name, value in others.items())
    text = (
        f"In {len(exact)} networks in float64 what is gathered is off by {gather:.0e}, the weights after every layer differ "
        f"from plain gradient descent by at most {weights:.1e} in every column, and predictions by {law:.1e}. Variants that "
        f"compute in another way: {more}."
    )
    good = gather == 0 and max(weights, law) < ROUNDING
    return Finding(
        title="The Transformer is gradient descent, to rounding",
        text=text,
        verdict="reproduced" if good else "not reproduced",
    )


def rate_finding(tables: Tables) -> Finding:
    """Whether the error is below its bound, and falls at the stated rate."""
    title = "Steps: below the bound, at the stated rate"
    rates = [row for row in tables["step-rates"] if "measured" in row]
    rows = [row for row in tables["steps"] if row["error"] > ROUNDING]
    share = max(row["error"] / row["bound"] for row in rows)
    if len(rates) < 2:
        text = f"Too few steps to fit a rate; the error is at most {share:.2f} of its bound."
        return Finding(title=title, text=text, verdict="inconclusive", value=share, unit="error over bound")
    ratio = slope_row([row["measured"] / row["stated"] for row in rates])
    equal = ratio["low"] >= 1 - RATE_TOLERANCE and ratio["high"] <= 1 + RATE_TOLERANCE
    text = (
        f"The distance from least squares is at most {share:.2f} of sqrt(L) ||Ŵ|| (1 − η α₊)^T, and falls at "
        f"{ratio['value']:.4f} ({ratio['low']:.4f} to {ratio['high']:.4f}) times the rate −ln(1 − η α₊), over {len(rates)} "
        f"processes with condition numbers up to {max(row['condition'] for row in rates):.0f}."
    )
    return Finding(
        title=title,
        text=text,
        verdict="reproduced" if share <= 1 and equal else "not reproduced",
        unit="measured rate over stated rate",
        **{side: ratio[side] for side in ("value", "low", "high")},
    )


def sample_finding(tables: Tables) -> Finding:
    """Whether the error is below its bound, and falls as n^(-1/2)."""
    rows = [row for row in tables["samples"] if row["covered"]]
    rate = tables["sample-rates"][0]

    def share(key: str, bound: str) -> float:
        found, limit = ({row["x"]: row["value"] for row in _mean_square(rows, name)} for name in (key, bound))
        return max(found[count] / limit[count] for count in found)

    parts = ("generalisation", "generalisation_bound"), ("estimation", "estimation_bound"), ("total", "bound")
    generalisation, estimation, total = (share(key, bound) for key, bound in parts)
    within = rate["low"] - 0.02 <= rate["stated"] <= rate["high"] + 0.02
    differences = [row["difference"] for row in tables["samples"] if "difference" in row]
    text = (
        f"The generalisation error falls as n^{rate['value']:.3f} ({rate['low']:.3f} to {rate['high']:.3f}; stated "
        f"{rate['stated']:g}). In the mean over draws it is at most {generalisation:.2f} of its bound, with the steps that "
        f"are missing {estimation:.2f}, and the total error {total:.2f} of the whole bound. Transformer and algebra differ "
        f"by {max(differences):.1e}."
    )
    return Finding(
        title="Samples: below the bound, as the root of their number",
        text=text,
        verdict="reproduced" if within and max(generalisation, estimation, total) <= 1 else "not reproduced",
        unit="exponent of n",
        **{side: rate[side] for side in ("value", "low", "high")},
    )
