"""[Limits] Theorem 5.2 in arithmetic of p bits: how many the Transformer needs, and what that says of number types."""

import math
from typing import Any

import torch

from hmmscope import registry
from hmmscope.constructions.driven import driven_system
from hmmscope.constructions.finite_precision import bits_for_attention, rounding_errors, smallest_precision
from hmmscope.constructions.prefix_product import limits_theorem5_2
from hmmscope.evidence.figures import Figure, Heatmap, Lines
from hmmscope.experiments.experiment import Experiment, Finding, Measured, Tables
from hmmscope.experiments.panels import series_of
from hmmscope.experiments.slopes import driven_samples, largest_error, point_slope_row, spread
from hmmscope.processes.make import make_process
from hmmscope.runs.pipeline import Run

SCALES: dict[str, dict[str, Any]] = {
    "smoke": {
        **{"instances": 2, "lengths": [8, 12, 16, 24], "least_bits": 4, "most_bits": 26},
        **{"short_lengths": [2, 4, 8, 16], "long_lengths": [64], "type_instances": 1},
    },
    "small": {
        **{"instances": 4, "lengths": [8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384]},
        **{"least_bits": 4, "most_bits": 26},
        **{"short_lengths": list(range(2, 21)), "long_lengths": [256, 512, 768, 1024, 1280, 1536], "type_instances": 3},
    },
    "gpu": {
        **{"instances": 8, "lengths": [8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512]},
        **{"least_bits": 4, "most_bits": 26},
        **{"short_lengths": list(range(2, 21)), "type_instances": 3},
        **{"long_lengths": [256, 512, 768, 1024, 1088, 1152, 1216, 1280, 1408, 1536]},
    },
    "paper": {
        **{"instances": 8, "lengths": [8, 12, 16, 24, 32, 48, 64, 96, 120, 192, 256, 384, 512, 768]},
        **{"least_bits": 4, "most_bits": 26},
        **{"short_lengths": list(range(2, 25)), "type_instances": 5},
        **{"long_lengths": [256, 512, 768, 1024, 1088, 1152, 1216, 1280, 1408, 1536]},
    },
}

#: Product gadgets and the processes they are run on; three states and symbols.
PRODUCTS = {"relu01": "cyclic-det", "bilinear": "matmul", "gelu": "matmul"}
NAMES = {
    "relu01": "ReLU, cycles",
    "bilinear": "exact product, orthogonal matrices",
    "gelu": "GeLU, λ = 2^(p/3), orthogonal matrices",
}
#: Significand bits of number types, with the lengths at which they are tried.
TYPES = {"bfloat16": (8, "short_lengths"), "float16": (11, "short_lengths"), "float32": (24, "long_lengths")}
#: The largest error with which the network counts as right, as an evaluation loss of the paper.
TOLERANCE = 0.05
#: How far a measured precision, and a measured slope, may be from the stated one.
CLOSE_BITS, CLOSE_SLOPE = 1.0, 0.15


@registry.experiment("limits-precision")
class Precision(Experiment):
    """See the module."""

    title = "How many bits the log-depth Transformer needs"
    summary = (
        "Theorem 5.2 of [Limits] needs numbers of O(log T) bits. The network is run with every elementary operation rounded "
        "to p significand bits, and the fewest bits are found with which it stays right; what is needed is the resolution "
        "of neighbouring positions by the attention scores, 2 log2 T + 4 bits. That settles which lengths float32, float16 "
        "and bfloat16 can do."
    )
    intervals = (
        "Intervals of slopes are 95 % bootstrap intervals over lengths; bands are the whole range over instances."
    )
    groups = {"precision": ("errors", "smallest", "precision-slopes"), "types": ("types",)}

    def measurements(self, scale: str) -> dict[str, Any]:
        return dict(SCALES[scale])

    def measure(self, runs: dict[str, Run], group: str, sizes: dict[str, Any]) -> Measured:
        return _precision(sizes) if group == "precision" else {"types": _types(sizes)}

    def figures(self, tables: Tables) -> list[Figure]:
        return [_smallest_figure(tables["smallest"]), _error_figure(tables["errors"]), _type_figure(tables["types"])]

    def findings(self, tables: Tables) -> list[Finding]:
        types = [_type_finding(tables["types"], name) for name in TYPES]
        return [_resolution_finding(tables["smallest"]), _slope_finding(tables["precision-slopes"]), *types]


# ---------------------------------------------------------------------------------------------------------------------
# Measurements


def _samples(product: str, length: int, instances: int) -> tuple[list, torch.Tensor, torch.Tensor]:
    """A system, tokens and exact vectors for each instance."""
    family = PRODUCTS[product]
    size = {"cyclic-det": "num_states", "matmul": "dimension"}[family]
    processes = [make_process(family, num_symbols=3, seed=seed, **{size: 3}) for seed in range(instances)]
    pairs = [driven_samples(process, length, 1, seed) for seed, process in enumerate(processes)]
    tokens, exact = (torch.cat(parts) for parts in zip(*pairs, strict=True))
    return processes, tokens, exact


def _precision(sizes: dict[str, Any]) -> Measured:
    rows, smallest = [], []
    for product in PRODUCTS:
        for length in sizes["lengths"]:
            bits = _bits_around(length, sizes)
            processes, tokens, _ = _samples(product, length, sizes["instances"])
            systems = [driven_system(process) for process in processes]
            errors = rounding_errors(systems, tokens, length, bits, product=product)  # type: ignore[arg-type]
            for seed in range(sizes["instances"]):
                names = {"product": product, "instance": seed, "length": length}
                rows += [
                    names | {"bits": p, "error": float(error)} for p, error in zip(bits, errors[:, seed], strict=True)
                ]
                found = smallest_precision(errors[:, seed], bits, tolerance=TOLERANCE)
                smallest.append(names | {"bits": found, "needed": bits_for_attention(length)})
    slopes = []
    for product in PRODUCTS:
        kept = [row for row in smallest if row["product"] == product and row["bits"] is not None]
        points = [(math.log2(row["length"]), row["mean"]) for row in spread(kept, ("length",), "bits")]
        if len(points) > 2:
            slopes.append(point_slope_row(points, product=product))
    return {"errors": rows, "smallest": smallest, "precision-slopes": slopes}


def _bits_around(length: int, sizes: dict[str, Any]) -> list[int]:
    """The precisions that are tried: from 4 below to 6 above what attention needs."""
    middle = round(bits_for_attention(length))
    return list(range(max(sizes["least_bits"], middle - 4), min(sizes["most_bits"], middle + 6) + 1))


@torch.no_grad()
def _types(sizes: dict[str, Any]) -> list[dict]:
    """Error of the ReLU network with the bits of each number type; for float32 also of the network itself."""
    rows = []
    for name, (p, lengths) in TYPES.items():
        for length in sizes[lengths]:
            processes, tokens, exact = _samples("relu01", length, sizes["type_instances"])
            systems = [driven_system(process) for process in processes]
            errors = rounding_errors(systems, tokens, length, [p], product="relu01")[0]
            for seed, process in enumerate(processes):
                row = {"type": name, "bits": p, "length": length, "instance": seed, "error": float(errors[seed])}
                if name == "float32":
                    net = limits_theorem5_2(process, length, product="relu01", dtype=torch.float32)
                    row["measured"] = largest_error(net(tokens[seed : seed + 1]), exact[seed : seed + 1])
                rows.append(row)
    return rows


# ---------------------------------------------------------------------------------------------------------------------
# Figures


def _smallest_figure(rows: list[dict]) -> Figure:
    series = []
    for product, label in NAMES.items():
        kept = [row for row in rows if row["product"] == product and row["bits"] is not None]
        if kept:
            series.append(series_of(spread(kept, ("length",), "bits"), label, "model", x="length"))
    needed = [{"length": length, "value": bits_for_attention(length)} for length in sorted({r["length"] for r in rows})]
    return Figure(
        name="smallest-precision",
        title="Two bits for every doubling of the length",
        caption=(
            f"Fewest significand bits p from which on the error stays at or below {TOLERANCE:g}, every operation rounded to "
            "p bits (median, with the range over instances; three states). The curves of the first two nearly coincide. "
            "Attention tells neighbouring positions apart from 2 log2 T + 4 bits on."
        ),
        panels=(
            Lines(
                title="",
                x_label="length T",
                y_label="significand bits",
                series=(*series, series_of(needed, "2 log2 T + 4", "ceiling", x="length")),
                log_x=True,
            ),
        ),
    )


def _error_figure(rows: list[dict]) -> Figure:
    lengths = sorted({row["length"] for row in rows})
    shown = lengths[:: max(1, -(-len(lengths) // 5))]

    def panel(product: str, label: str) -> Lines:
        series = []
        for length in shown:
            kept = [r for r in rows if r["product"] == product and r["length"] == length and r["error"] > 0]
            if kept:
                series.append(series_of(spread(kept, ("bits",)), f"T = {length}", "model", x="bits"))
        return Lines(
            title=label, x_label="significand bits p", y_label="largest error", series=tuple(series), log_y=True
        )

    return Figure(
        name="error-by-precision",
        title="Below the threshold it fails at once, above it the gadget sets the error",
        caption=(
            "Largest error against the precision (median, with the range over instances). Where attention mistakes a "
            "position the error is of order one. Above that the error of the ReLU network is zero and not shown, that of "
            "the exact product falls as 2^-p and that of the GeLU gadget as 2^(-2p/3)."
        ),
        panels=tuple(panel(product, label.split(",")[0]) for product, label in NAMES.items()),
    )


def _type_figure(rows: list[dict]) -> Figure:
    def panel(names: tuple[str, ...], title: str) -> Heatmap:
        kept = [row for row in rows if row["type"] in names]
        lengths = sorted({row["length"] for row in kept})
        labels = list(names)
        z = [[_worst(kept, name, length) for length in lengths] for name in names]
        if "float32" in names:
            labels = ["simulated", "run"]
            z.append([_worst(kept, "float32", length, "measured") for length in lengths])
        return Heatmap(
            title=title,
            x_label="length T",
            y_label="numbers",
            z_label="largest error",
            x=tuple(f"{length}" for length in lengths),
            y=tuple(labels),
            z=tuple(tuple(row) for row in z),
            z_min=0.0,
            z_max=1.0,
        )

    return Figure(
        name="number-types",
        title="Which lengths a number type can do",
        caption=(
            "Largest error of the ReLU network on cycles of three states, over instances, with as many significand bits as "
            "the type has (8, 11, 24) and no bounds on the exponent; for float32 also of the network as it runs in torch."
        ),
        panels=(panel(("bfloat16", "float16"), "16 bits, simulated"), panel(("float32",), "float32")),
    )


# ---------------------------------------------------------------------------------------------------------------------
# Findings


def _worst(rows: list[dict], name: str, length: int, key: str = "error") -> float:
    return max(row[key] for row in rows if (row["type"], row["length"]) == (name, length))


def _resolution_finding(rows: list[dict]) -> Finding:
    def off(products: tuple[str, ...]) -> list[float]:
        return [row["bits"] - row["needed"] for row in found if row["product"] in products]

    found = [row for row in rows if row["bits"] is not None]
    attention, gelu = off(("relu01", "bilinear")), off(("gelu",))
    close = len(found) == len(rows) and all(abs(difference) <= CLOSE_BITS for difference in attention)
    more = (
        "" if len(found) == len(rows) else f" In {len(rows) - len(found)} cases more bits are needed than were tried."
    )
    return Finding(
        title="2 log2 T + 4 bits",
        text=(
            f"With exact gadgets the fewest bits are {min(attention):+.1f} to {max(attention):+.1f} from 2 log2 T + 4, in "
            f"{len(attention)} cases (a bit more or less depends on the order of summation); with GeLU {min(gelu):+.1f} to "
            f"{max(gelu):+.1f}.{more}"
        ),
        verdict="reproduced" if close else "not reproduced",
        value=max(attention, key=abs),
        unit="bits, largest difference",
    )


def _slope_finding(rows: list[dict]) -> Finding:
    named = {row["product"]: row for row in rows}
    row = named["relu01"]
    agree = [one["low"] <= 2 <= one["high"] or abs(one["value"] - 2) <= CLOSE_SLOPE for one in rows]
    others = ", ".join(
        f"{NAMES[one['product']].split(',')[0]} {one['value']:.2f} ({one['low']:.2f} to {one['high']:.2f})"
        for one in rows
        if one is not row
    )
    return Finding(
        title="O(log T) bits",
        text=(
            f"The fewest bits grow by {row['value']:.2f} ({row['low']:.2f} to {row['high']:.2f}) for every doubling of T "
            f"with the ReLU gadget; {others}. A resolution of 1/T² needs 2."
        ),
        verdict="reproduced" if all(agree) else "not reproduced",
        value=row["value"],
        low=row["low"],
        high=row["high"],
        unit="bits per doubling of T",
    )


def _type_finding(rows: list[dict], name: str) -> Finding:
    kept = [row for row in rows if row["type"] == name]
    lengths = sorted({row["length"] for row in kept})
    simulated, run = (
        _longest(kept, name, lengths, key) for key in ("error", "measured" if "measured" in kept[0] else "error")
    )
    works, fails = simulated
    text = f"With the {kept[0]['bits']} significand bits of {name} the network is "
    text += "wrong at the shortest length tried" if works is None else f"right up to T = {works}"
    text += (
        ", the longest tried."
        if fails is None
        else f"; it fails at T = {fails} (error {_worst(kept, name, fails):.2g})."
    )
    if name == "float32":
        same = "does the same" if run == simulated else f"is right up to T = {run[0]}"
        text += f" The network in torch.float32 {same}."
    return Finding(title=f"Lengths in {name}", text=text, verdict="found", value=works, unit="length T")


def _longest(rows: list[dict], name: str, lengths: list[int], key: str) -> tuple[int | None, int | None]:
    """The longest length up to which all are right, and the first that is not."""
    fails = next((length for length in lengths if not _worst(rows, name, length, key) <= TOLERANCE), None)
    return max((length for length in lengths if fails is None or length < fails), default=None), fails
