"""Figures of the experiment limits-theorem5.2."""

from hmmscope.evidence.figures import Bars, Figure, Heatmap, Lines, Series
from hmmscope.experiments.experiment import Tables
from hmmscope.experiments.panels import series_of
from hmmscope.experiments.slopes import spread


def error_figure(rows: list[dict]) -> Figure:
    """Error against length, by gadget, and with the paper's constants beside 1/T."""

    def panel(title: str, variants: dict[str, str], numbers: str) -> Lines:
        series = []
        for variant, label in variants.items():
            kept = [row for row in rows if row["variant"] == variant and row["numbers"] == numbers and row["error"] > 0]
            if kept:
                series.append(series_of(spread(kept, ("length",)), label, "model", x="length"))
        bound = sorted({(row["length"], row["bound"]) for row in rows})
        if title.startswith("Paper"):
            x, y = zip(*bound, strict=True)
            series.append(Series(name="bound 1/T", x=x, y=y, role="ceiling"))
        return Lines(
            title=title, x_label="length T", y_label="largest error", series=tuple(series), log_x=True, log_y=True
        )

    gadgets = {
        "GeLU, cycles": "GeLU, cycles",
        "GeLU, orthogonal": "GeLU, orthogonal",
        "exact product, orthogonal": "exact product, orthogonal",
    }
    truncated = {f"GeLU with λ = 2^10, {kind}": f"GeLU with λ = 2^10, {kind}" for kind in ("cycles", "orthogonal")}
    paper = {f"paper's constants, {kind}": f"paper's constants, {kind}" for kind in ("cycles", "orthogonal")}
    return Figure(
        name="error-by-length",
        title="The error grows in proportion to the length",
        caption=(
            "Largest error over positions and coordinates of the network with ceil(log2 T) layers (median, with the range "
            "over instances). λ is the best of the number type, 2^(p/3), unless it is named. The ReLU network on cycles "
            "has no error that this axis could show. Right: constants of E.18 in float64, beside the bound of the theorem."
        ),
        panels=(
            panel("float64", gadgets | truncated, "float64"),
            panel("float32", gadgets, "float32"),
            panel("Paper's constants", paper, "float64"),
        ),
    )


def depth_figure(tables: Tables) -> Figure:
    """Share of wrong sequences by position for each depth, and where one layer too few fails first."""
    rows = tables["depth-errors"]
    wrong = {(row["layers"], row["position"]): row["wrong"] for row in rows}
    longest, deepest = max(row["position"] for row in rows), max(row["layers"] for row in rows)
    shown = sorted({t for k in range(deepest + 1) for t in (2**k, 2**k + 1) if t <= longest} | {longest})
    depths = range(deepest + 1)
    fewer = [row for row in tables["depth"] if row["predicted"] is not None and row["first_wrong"] is not None]
    measured = spread(fewer, ("length",), "first_wrong")
    predicted = spread(fewer, ("length",), "predicted")
    return Figure(
        name="depth",
        title="ceil(log2 T) layers are enough, and one fewer is not",
        caption=(
            f"Left: share of sequences with a wrong state, for length {longest} and random cycles of five states, at the "
            "powers of two and the positions after them. Right: first wrong position with one layer fewer than "
            "ceil(log2 T), the same in all instances, and 2^(L-1) + 1."
        ),
        panels=(
            Heatmap(
                title="Wrong states",
                x_label="position",
                y_label="layers",
                z_label="share of sequences",
                x=tuple(f"{t}" for t in shown),
                y=tuple(f"{layers}" for layers in depths),
                z=tuple(tuple(wrong[layers, t] for t in shown) for layers in depths),
                z_min=0.0,
                z_max=1.0,
            ),
            Bars(
                title="One layer too few",
                y_label="first wrong position",
                categories=tuple(f"T = {row['length']}" for row in measured),
                series=(
                    Series(name="measured", y=tuple(row["value"] for row in measured), role="model"),
                    Series(name="2^(L-1) + 1", y=tuple(row["value"] for row in predicted), role="ceiling"),
                ),
            ),
        ),
    )


def weight_figure(rows: list[dict]) -> Figure:
    """Largest weight with the paper's constants."""
    series = []
    for n in sorted({row["num_states"] for row in rows}):
        kept = [row for row in rows if row["num_states"] == n]
        series.append(series_of(kept, f"n = {n}", "model", x="length", y="largest"))
    bound = [row | {"formula": (8.0 * row["num_states"]) ** (row["layers"] + 1) * row["length"]} for row in rows]
    most = max(row["num_states"] for row in rows)
    kept = [row for row in bound if row["num_states"] == most]
    series.append(series_of(kept, f"1/η = (8n)^(L+1) T, n = {most}", "ceiling", x="length", y="formula"))
    return Figure(
        name="largest-weight",
        title="Weights are polynomial in the length",
        caption=(
            "Largest weight with the constants of the paper; it is the output weight √(2π)λ²/8 of the product gadget, whose "
            "λ² is proportional to 1/η. Its power of T is 1 + log2(8n)."
        ),
        panels=(
            Lines(title="", x_label="length T", y_label="largest weight", series=tuple(series), log_x=True, log_y=True),
        ),
    )


def scale_figure(tables: Tables) -> Figure:
    """Error of the gadget against λ, and the best of it against the precision."""
    rows = tables["trade-off"]
    bits = sorted({row["bits"] for row in rows})
    shown = [*bits[:-1][:: max(1, (len(bits) - 1) // 4)][:4], bits[-1]]
    series = []
    for p in shown:
        kept = [row | {"scale": 2.0 ** row["log2_scale"]} for row in rows if row["bits"] == p]
        series.append(series_of(spread(kept, ("scale",)), f"{p} bits", "model", x="scale"))
    best = spread([row for row in tables["best-scales"] if row["bits"] != 53], ("bits",))
    theory = [{"bits": row["bits"], "value": 2 ** (-2 * row["bits"] / 3)} for row in best]
    return Figure(
        name="gadget-scale",
        title="The constant of the product gadget: truncation against cancellation",
        caption=(
            "Left: largest error of one GeLU product over random factors in [-1, 1], against λ, in simulated arithmetic of "
            "p bits and in float64 (53 bits); median, with the range over sets of factors. Right: the error at the best λ."
        ),
        panels=(
            Lines(title="", x_label="λ", y_label="error of a product", series=tuple(series), log_x=True, log_y=True),
            Lines(
                title="",
                x_label="significand bits p",
                y_label="error at the best λ",
                series=(
                    series_of(best, "best λ", "model", x="bits"),
                    series_of(theory, "2^(-2p/3)", "ceiling", x="bits"),
                ),
                log_y=True,
            ),
        ),
    )
