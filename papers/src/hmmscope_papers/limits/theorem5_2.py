"""[Limits] Theorem 5.2: a Transformer of depth ceil(log2 T) that multiplies all matrices up to each position."""

import math
from typing import Any

import torch

from hmmscope import Run, lab, make_process, registry
from hmmscope.seeds import torch_generator
from hmmscope.ties import largest, smallest
from hmmscope_papers.constructions import gelu_product, limits_theorem5_2, rounded_gelu_product
from hmmscope_papers.theorems import (
    INTERVALS,
    always,
    band,
    by_scale,
    driven_samples,
    largest_error,
    plain,
    power_slopes,
    ranges,
)

NAME = "limits-theorem5.2"
BITS = list(range(8, 27))
LENGTHS = [8, 16, 32, 64, 128, 256, 512]
#: Lengths need not be powers of two.
DEPTH_LENGTHS = [3, 4, 8, 16, 31, 32, 64, 100, 120, 128, 256]

#: Networks by name: process, options, number types.
PAPER = {"product": "gelu", "temperature": "paper", "gelu_scale": "paper"}
VARIANTS: dict[str, tuple[str, dict[str, Any], tuple[str, ...]]] = {
    "ReLU, cycles": ("cyclic-det", {"product": "relu01"}, ("float64", "float32")),
    "exact product, orthogonal": ("matmul", {"product": "bilinear"}, ("float64", "float32")),
    "GeLU, cycles": ("cyclic-det", {"product": "gelu"}, ("float64", "float32")),
    "GeLU, orthogonal": ("matmul", {"product": "gelu"}, ("float64", "float32")),
    "GeLU with λ = 2^10, cycles": ("cyclic-det", {"product": "gelu", "gelu_scale": 2.0**10}, ("float64",)),
    "GeLU with λ = 2^10, orthogonal": ("matmul", {"product": "gelu", "gelu_scale": 2.0**10}, ("float64",)),
    "paper's constants, cycles": ("cyclic-det", PAPER, ("float64",)),
    "paper's constants, orthogonal": ("matmul", PAPER, ("float64",)),
}
DTYPES = {"float64": torch.float64, "float32": torch.float32}
SIZE = {"cyclic-det": "num_states", "matmul": "dimension"}


@registry.experiment(NAME)
class Theorem52(lab.Experiment):
    """Networks with the theorem's weights and three ways to multiply, in float64, float32 and simulated arithmetic."""

    title = "A Transformer of ceil(log2 T) layers computes beliefs of deterministic HMMs"
    in_paper = (
        "[Limits] Theorem 5.2, where log T-precision means O(log T) bits",
        "there exists a log T-precision Transformer approximating the belief state sequence of length T",
    )
    summary = (
        "Theorem 5.2 of [Limits] gives the weights of a Transformer with ceil(log2 T) layers that follows a "
        "deterministic HMM, or a product of orthogonal matrices, up to an error of poly(1/T) with weights of poly(T). "
        "The network is built and run. The experiment measures its error by length, the number of layers that it needs, "
        "the size of its weights, and the error of the units that compute products. Exact answers come from the filter."
    )
    intervals = INTERVALS
    groups = {
        "errors": ("errors",),
        "depth": ("depth", "depth-errors"),
        "weights": ("weights",),
        "trade-off": ("trade-off", "best-scales"),
    }
    sizes = by_scale(
        instances=(2, 12, 24, 24),
        paper_instances=(2, 18, 24, 24),
        sequences=(2, 4, 8, 8),
        num_states=(3, 3, 3, 5),
        lengths=([8, 16, 32], LENGTHS, [*LENGTHS, 1024], [8, 15, 30, 60, 120, 240, 480, 960]),
        depth_instances=(2, 36, 36, 36),
        depth_lengths=([4, 7, 16], DEPTH_LENGTHS, [*DEPTH_LENGTHS, 512], [8, 16, 30, 60, 120, 240]),
        weight_lengths=([4, 8, 16], [4, *LENGTHS[:-1]], [4, *LENGTHS, 1024], [8, 15, 30, 60, 120, 240]),
        weight_states=([2, 3], [2, 3, 4, 5], [2, 3, 4, 5, 6], [2, 3, 4, 5, 6]),
        bits=([9, 12, 15, 18], BITS, BITS, BITS),
        points=(200, 4000, 20000, 20000),
    )

    def measure(self, runs: dict[str, Run], group: str, sizes: dict[str, Any]) -> lab.MeasuredTables:
        measured = {"errors": _errors, "depth": _depth, "weights": _weights, "trade-off": _trade_off}[group]
        with torch.no_grad():
            return measured(sizes)

    def figures(self, tables: lab.Tables) -> list[lab.Figure]:
        return [
            _error_figure(tables["errors"]),
            _depth_figure(tables),
            _weight_figure(tables["weights"]),
            _scale_figure(tables),
        ]


# ---------------------------------------------------------------------------------------------------------------------
# Measurements


def _errors(sizes: dict[str, Any]) -> lab.MeasuredTables:
    n, rows = sizes["num_states"], []
    for variant, (family, options, types) in VARIANTS.items():
        for seed in range(sizes["paper_instances" if options is PAPER else "instances"]):
            process = make_process(family, seed=seed, num_symbols=n, **{SIZE[family]: n})
            for length in sizes["lengths"]:
                tokens, exact = driven_samples(process, length, sizes["sequences"], seed)
                for numbers in types:
                    net = limits_theorem5_2(process, length, dtype=DTYPES[numbers], **options)
                    measured = {
                        "error": largest_error(net(tokens), exact),
                        "bound": 1 / length,
                        "layers": len(net.blocks),
                        "largest_weight": net.largest_weight(),
                    }
                    names = {"variant": variant, "numbers": numbers, "instance": seed, "length": length}
                    rows.append(names | measured)
    return {"errors": rows}


def _depth(sizes: dict[str, Any]) -> lab.MeasuredTables:
    rows, by_position = [], []
    longest = max(sizes["depth_lengths"])
    for length in sizes["depth_lengths"]:
        needed = math.ceil(math.log2(length))
        samples = [
            (process, *driven_samples(process, length, sizes["sequences"], seed))
            for seed, process in enumerate(make_process("cyclic-det", seed=s) for s in range(sizes["depth_instances"]))
        ]
        depths = range(needed + 1) if length == longest else (needed - 1, needed)
        for layers in depths:
            wrong_T = torch.zeros(length + 1, dtype=torch.float64)
            for seed, (process, tokens, exact) in enumerate(samples):
                net = limits_theorem5_2(process, length, product="relu01", num_layers=layers)
                wrong_BT = (net(tokens) - exact).abs().amax(2) > 0.5
                wrong_T += wrong_BT.double().mean(0) / len(samples)
                first = wrong_BT.any(0).nonzero()
                if layers >= needed - 1:
                    predicted = None if layers == needed else 2**layers + 1
                    found = {"first_wrong": int(first[0]) if len(first) else None, "predicted": predicted}
                    found["all_wrong_there"] = None if predicted is None else bool(wrong_BT[:, predicted].all())
                    rows.append({"length": length, "instance": seed, "layers": layers, "needed": needed} | found)
            if length == longest:
                by_position += [
                    {"layers": layers, "position": t, "wrong": float(wrong_T[t])} for t in range(1, length + 1)
                ]
    return {"depth": rows, "depth-errors": by_position}


def _weights(sizes: dict[str, Any]) -> lab.MeasuredTables:
    rows = []
    for n in sizes["weight_states"]:
        process = make_process("matmul", dimension=n, num_symbols=2)
        for length in sizes["weight_lengths"]:
            net = limits_theorem5_2(process, length, product="gelu", temperature="paper", gelu_scale="paper")
            rows.append(
                {
                    "num_states": n,
                    "length": length,
                    "layers": len(net.blocks),
                    "eta": net.eta,
                    "gain": net.gain,
                    "gelu_scale": net.gelu_scale,
                    "largest": net.largest_weight(),
                }
            )
    return {"weights": rows}


def _trade_off(sizes: dict[str, Any]) -> lab.MeasuredTables:
    rows, best = [], []
    for seed in range(sizes["instances"]):
        generator = torch_generator(seed, "points")
        a, b = 2 * torch.rand(2, sizes["points"], generator=generator, dtype=torch.float64) - 1
        for exponent in range(1, 28):
            scale = 2.0**exponent
            rounded = rounded_gelu_product(a, b, sizes["bits"], [scale] * len(sizes["bits"]))
            products = {**dict(zip(sizes["bits"], rounded, strict=True)), 53: gelu_product(a, b, scale)}
            rows += [
                {"instance": seed, "bits": p, "log2_scale": exponent, "error": largest_error(product, a * b)}
                for p, product in products.items()
            ]
        for p in (*sizes["bits"], 53):
            kept = [row for row in rows if row["instance"] == seed and row["bits"] == p]
            best.append(smallest(kept, lambda row: row["error"]))
    return {"trade-off": rows, "best-scales": best}


# ---------------------------------------------------------------------------------------------------------------------
# Figures


def _error_figure(rows: lab.Rows) -> lab.Figure:
    bound = sorted({(row["length"], row["bound"]) for row in rows})
    x, y = zip(*bound, strict=True)

    def panel(title: str, variants: list[str], numbers: str, *more: lab.Series) -> lab.Panel:
        positive = lab.Rows(row for row in rows.where(numbers=numbers) if row["error"] > 0)
        series = [band(positive.where(variant=name), "length", name, "model") for name in variants]
        return lab.lines(title, *series, *more, x_label="length T", y_label="largest error", log_x=True, log_y=True)

    gadgets = ["GeLU, cycles", "GeLU, orthogonal", "exact product, orthogonal"]
    truncated = [f"GeLU with λ = 2^10, {kind}" for kind in ("cycles", "orthogonal")]
    paper = [f"paper's constants, {kind}" for kind in ("cycles", "orthogonal")]
    return lab.Figure(
        name="error-by-length",
        title="The error of the network is proportional to the sequence length",
        caption=(
            "Curves show the largest error over positions and coordinates of the network with ceil(log2 T) layers (median, "
            "with the range over instances). λ is the scale of the GeLU units that compute products. Unless the legend "
            "gives λ, it is 2^(p/3), the best value for numbers of p significand bits. The ReLU network has no error on "
            "cycles, so it has no curve. Right: the paper's constants (E.18) in float64 and the theorem's bound 1/T."
        ),
        panels=(
            panel("float64", gadgets + truncated, "float64"),
            panel("float32", gadgets, "float32"),
            panel("Paper's constants", paper, "float64", lab.Series(name="bound 1/T", x=x, y=y, role="ceiling")),
        ),
    )


def _depth_figure(tables: lab.Tables) -> lab.Figure:
    rows = tables["depth-errors"]
    longest, deepest = max(rows.values("position")), max(rows.values("layers"))
    shown = sorted({t for k in range(deepest + 1) for t in (2**k, 2**k + 1) if t <= longest} | {longest})
    fewer = lab.Rows(row for row in tables["depth"] if None not in (row["predicted"], row["first_wrong"]))
    measured, predicted = (ranges(fewer, "length", value=column) for column in ("first_wrong", "predicted"))
    return lab.Figure(
        name="depth",
        title="ceil(log2 T) layers give the right states, and one layer fewer does not",
        caption=(
            f"Left: fraction of sequences with a wrong state, by layers and position (2^k and 2^k + 1), "
            f"for length {longest} and random cycles of five states. Right: first wrong position (equal in all "
            "instances) with L - 1 layers, where L = ceil(log2 T), and the predicted position 2^(L-1) + 1."
        ),
        panels=(
            lab.heatmap(
                "Wrong states",
                rows.where(position=shown),
                "position",
                "layers",
                x_label="position",
                y_label="layers",
                z_label="fraction of sequences",
                z="wrong",
                z_min=0.0,
                z_max=1.0,
            ),
            lab.bars(
                "One layer too few",
                lab.Series(name="measured", y=tuple(row["value"] for row in measured), role="model"),
                lab.Series(name="2^(L-1) + 1", y=tuple(row["value"] for row in predicted), role="ceiling"),
                categories=[f"T = {row['length']}" for row in measured],
                y_label="first wrong position",
            ),
        ),
    )


def _with_formula(rows: lab.Rows) -> lab.Rows:
    return rows.with_columns(formula=lambda row: (8.0 * row["num_states"]) ** (row["layers"] + 1) * row["length"])


def _weight_figure(rows: lab.Rows) -> lab.Figure:
    states = sorted(rows.values("num_states"))
    series = [plain(rows.where(num_states=n), "length", f"n = {n}", "model", y="largest") for n in states]
    bound = _with_formula(rows.where(num_states=states[-1]))
    series.append(plain(bound, "length", f"1/η = (8n)^(L+1) T, n = {states[-1]}", "ceiling", y="formula"))
    return lab.Figure(
        name="largest-weight",
        title="The largest weight is polynomial in the sequence length T",
        caption=(
            "Curves show the largest weight with the constants of the paper, for each number n of states. It is the output "
            "weight √(2π)λ²/8 of the GeLU units that compute products with scale λ. λ² is proportional to "
            "1/η = (8n)^(L+1) T (E.18). With L = log2 T layers, the weight thus grows as T to the power 1 + log2(8n)."
        ),
        panels=(lab.lines("", *series, x_label="length T", y_label="largest weight", log_x=True, log_y=True),),
    )


def _scale_figure(tables: lab.Tables) -> lab.Figure:
    rows = tables["trade-off"].with_columns(scale=lambda row: 2.0 ** row["log2_scale"])
    bits = sorted(rows.values("bits"))
    shown = [*bits[:-1][:: max(1, (len(bits) - 1) // 4)][:4], bits[-1]]
    best = lab.Rows(row for row in tables["best-scales"] if row["bits"] != 53)
    theory = lab.Rows({"bits": p, "value": 2 ** (-2 * p / 3)} for p in bits[:-1])
    of_scale = [band(rows.where(bits=p), "scale", f"{p} bits", "model") for p in shown]
    of_bits = [band(best, "bits", "best λ", "model"), plain(theory, "bits", "2^(-2p/3)", "ceiling")]
    return lab.Figure(
        name="gadget-scale",
        title="Error of one GeLU product, by the scale λ of its units",
        caption=(
            "Small λ cause truncation errors, and large λ cause cancellation. Left: largest error of one GeLU product over "
            "random factors in [-1, 1], against λ, in simulated arithmetic of p bits and in float64 (53 bits). Right: the "
            "same error at the best λ, against p. Lines are medians; bands are ranges over sets of factors."
        ),
        panels=(
            lab.lines("", *of_scale, x_label="λ", y_label="error of a product", log_x=True, log_y=True),
            lab.lines("", *of_bits, x_label="significand bits p", y_label="error at the best λ", log_y=True),
        ),
    )


# ---------------------------------------------------------------------------------------------------------------------
# Claims


@lab.claim("limits-theorem5.2-error")
def error(tables: lab.Tables) -> lab.Measurement:
    kept = lab.Rows(row for row in tables["errors"] if row["variant"].startswith("paper"))
    worst = largest(kept, lambda row: row["error"] / row["bound"])
    text = f"Over {len(kept)} networks the error is closest to its bound 1/T at T = {worst['length']}: {worst['error']:.1e}."
    below = always(kept, lambda row: row["error"] <= row["bound"], "variant", "instance", unit="fraction of processes")
    return lab.Measurement(below, text)


@lab.claim("limits-theorem5.2-depth")
def depth(tables: lab.Tables) -> lab.Measurement:
    enough = lab.Rows(row for row in tables["depth"] if row["layers"] == row["needed"])
    right = always(enough, lambda row: row["first_wrong"] is None, "instance", unit="fraction of processes")
    good = sum(row["first_wrong"] is None for row in enough)
    text = f"{good} of {len(enough)} networks with ceil(log2 T) layers are right at all positions."
    return lab.Measurement(right, text)


@lab.claim("limits-theorem5.2-weights")
def weights(tables: lab.Tables) -> lab.Measurement:
    rows = _with_formula(tables["weights"])
    measured, formula = (power_slopes(rows, "length", column, "num_states") for column in ("largest", "formula"))
    off = [None if a is None or b is None else a - b for a, b in zip(measured, formula, strict=True)]
    powers = ", ".join(f"{a:.2f} (n = {n})" for a, n in zip(measured, rows.values("num_states"), strict=True))
    text = f"The largest weight grows as T to the power {powers}; rounding of λ can change this power by up to 1/3."
    return lab.Measurement(lab.Effect.pooled(off, "measured exponent of T minus the stated exponent"), text)
