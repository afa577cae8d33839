"""Figures of the experiment on [Limits] Theorem 5.3, from its tables."""

import math
from collections.abc import Callable

from hmmscope.evidence.figures import Figure, Lines, Series
from hmmscope.experiments.experiment import Tables
from hmmscope.experiments.panels import series_of
from hmmscope.experiments.slopes import spread


def figures_of(tables: Tables) -> list[Figure]:
    return [
        _precision_figure(tables["precision"]),
        _bits_figure(tables),
        _floats_figure(tables["floats"]),
        _normaliser_figure(tables["normaliser"]),
    ]


def _bound(lengths: list[int]) -> Series:
    return Series(name="e^-T", role="ceiling", x=tuple(lengths), y=tuple(math.exp(-n) for n in lengths))


def _precision_figure(rows: list[dict]) -> Figure:
    def curve(share: float, name: str, role: str) -> Series:
        return series_of(spread([row for row in rows if row["share"] == share], ("length",)), name, role, x="length")

    lengths = sorted({row["length"] for row in rows})
    return Figure(
        name="error-in-bits",
        title="Below e^-T with bits in proportion to T",
        caption=(
            "Largest error of a belief of the whole construction in p-bit arithmetic: softmax attention, GeLU products and "
            "the normaliser, for random HMMs of 2 states and 2 symbols (median, with the range over instances and over a "
            "sampled and the least likely sequence). p = T(1 + ln C)/ln 2 + 24, or half of the first term + 24."
        ),
        panels=(
            Lines(
                title="",
                x_label="length T (observations)",
                y_label="largest error of a probability",
                series=(
                    curve(1.0, "recommended bits", "model"),
                    curve(0.5, "half the rate", "control"),
                    _bound(lengths),
                ),
                log_y=True,
            ),
        ),
    )


def _bits_figure(tables: Tables) -> Figure:
    bits, slopes = tables["bits"], tables["bit-slopes"]
    names = list(dict.fromkeys(row["arrangement"] for row in bits))
    curves = [
        series_of(
            spread([row for row in bits if row["arrangement"] == name], ("length",), "bits"),
            name,
            "model" if name == names[0] else "other",
            x="length",
        )
        for name in names
    ]
    allowed = spread([row for row in bits if row["arrangement"] == names[0]], ("length",), "recommended")
    rates = [
        series_of(
            [row for row in slopes if row["arrangement"] == name],
            name,
            "model" if name == names[0] else "other",
            x="derived",
            y="slope",
        )
        for name in names
    ]
    ends = [pick(row["derived"] for row in slopes) for pick in (min, max)]
    return Figure(
        name="bits-by-length",
        title="How many bits it takes",
        caption=(
            "Left: fewest bits with an error of at most e^-T on the least likely sequence (median, with the range over "
            "instances), and T(1 + ln C)/ln 2 + 24. Right: slope of these bits in T for each instance, against the rate "
            "that the accuracy of the arithmetic implies, with h = -ln P of that sequence per observation: "
            "(3/2)(1 + max(ln C / 2, h))/ln 2 with GeLU products, (1 + h/2)/ln 2 for the residual update with exact "
            "products, 1/ln 2 with a slot of its own."
        ),
        panels=(
            Lines(
                title="Bits",
                x_label="length T (observations)",
                y_label="significand (bits)",
                series=(*curves, series_of(allowed, "recommended", "ceiling", x="length")),
            ),
            Lines(
                title="Rate",
                x_label="derived (bits per observation)",
                y_label="measured (bits per observation)",
                series=(*rates, Series(name="equal", role="optimum", x=tuple(ends), y=tuple(ends))),
            ),
        ),
    )


def _floats_figure(rows: list[dict]) -> Figure:
    def panel(numbers: str) -> Lines:
        series = []
        for name in dict.fromkeys(row["arrangement"] for row in rows):
            kept = [row for row in rows if (row["numbers"], row["arrangement"]) == (numbers, name)]
            kept = [row for row in kept if row["error"] is not None and row["error"] > 0]
            if kept:
                role = "model" if name == "exact products, own slot" else "other"
                series.append(series_of(spread(kept, ("length",)), name, role, x="length"))
        lengths = sorted({row["length"] for row in rows if row["numbers"] == numbers})
        shown = {"title": numbers, "x_label": "length T (observations)", "y_label": "largest error of a probability"}
        return Lines(**shown, series=(*series, _bound(lengths)), y_min=1e-17, y_max=1e4, log_y=True)  # type: ignore[arg-type]

    return Figure(
        name="error-in-floats",
        title="Hardware floats do not reach the bound",
        caption=(
            "Largest error over sampled sequences of RanHMM, 5 states and 5 symbols (median, with the range over "
            "instances). Own slot: the product is written to a slot of its own, and the normaliser divides. Residual: the "
            "theorem's update, and GeLU products with the best λ, both with a true division. Where a sum is zero there is "
            "no number to show; errors above one are of answers that are no probabilities. In float32 the own slot ends "
            "where the probability of the observations underflows."
        ),
        panels=(panel("float64"), panel("float32")),
    )


def _normaliser_figure(rows: list[dict]) -> Figure:
    def panel(exponents: str, title: str) -> Lines:
        kept = [row for row in rows if row["exponents"] == exponents]
        series = (
            series_of(_extreme(kept, "log10_high", max), "largest sum", "model", x="stage"),
            series_of(_extreme(kept, "log10_low", min), "smallest sum", "other", x="stage"),
            series_of(_extreme(kept, "log10_bound", max), "bound C^(T / 2^k) + 1", "ceiling", x="stage"),
        )
        return Lines(title=title, x_label="stage k", y_label="log10 of the sum", series=series, y_min=-2.0, y_max=40.0)

    return Figure(
        name="normaliser-sums",
        title="Gates bring any sum into [1, 3]",
        caption=(
            "Largest and smallest sum of the scaled vector after each gate, over sampled sequences, positions and instances "
            "of RanHMM (5 states, 5 symbols), in long double; sums of 10^40 and more are cut off. With the exponents "
            "floor(T / 2^(k+1)) of the paper the last sums stay far above 3, and the series that follows diverges."
        ),
        panels=(panel("real", "Exponents T / 2^(k+1)"), panel("floor", "As printed, rounded down")),
    )


def _extreme(rows: list[dict], value: str, pick: Callable[..., float]) -> list[dict]:
    """The largest or smallest value at each stage."""
    stages = sorted({row["stage"] for row in rows})
    return [{"stage": k, "value": pick(row[value] for row in rows if row["stage"] == k)} for k in stages]
