"""[Limits] Theorem 5.2 in p-bit arithmetic: the number of bits that it needs, and number types with enough bits."""

import math
from typing import Any

import torch

from hmmscope import Run, lab, make_process, registry
from hmmscope_papers.constructions import limits_theorem5_2, rounding_errors
from hmmscope_papers.theorems import INTERVALS, band, by_scale, driven_samples, largest_error, plain, slope

NAME = "limits-precision"
LENGTHS = [8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384]
LONG = [256, 512, 768, 1024, 1088, 1152, 1216, 1280, 1408, 1536]
SHORT = list(range(2, 21))

#: Gadgets for products, each with a process of three states and symbols.
PRODUCTS = {"relu01": "cyclic-det", "bilinear": "matmul", "gelu": "matmul"}
NAMES = {
    "relu01": "ReLU, cycles",
    "bilinear": "exact product, orthogonal matrices",
    "gelu": "GeLU, λ = 2^(p/3), orthogonal matrices",
}
#: Significand bits of number types, with the lengths at which they are tried.
TYPES = {"bfloat16": (8, "short_lengths"), "float16": (11, "short_lengths"), "float32": (24, "long_lengths")}
#: Largest error of a correct network, measured as the paper's evaluation loss.
TOLERANCE = 0.05
#: Doublings of the length needed to distinguish a logarithm from a power.
DOUBLINGS = 4.0


@registry.experiment(NAME)
class Precision(lab.Experiment):
    """The network of Theorem 5.2 with every elementary operation rounded to p significand bits."""

    title = "How many bits the log-depth Transformer needs"
    summary = (
        "Theorem 5.2 of [Limits] needs numbers of O(log T) bits. The network runs with every elementary operation "
        "rounded to p significand bits, and the smallest p with a small error is found. Attention scores must resolve "
        "neighbouring positions, which needs 2 log2 T + 4 bits. This number determines which lengths T float32, "
        "float16 and bfloat16 can handle."
    )
    intervals = INTERVALS
    groups = {"precision": ("errors", "smallest"), "types": ("types",)}
    sizes = by_scale(
        instances=(2, 6, 8, 8),
        lengths=([8, 12, 16, 24], LENGTHS, [*LENGTHS, 512], [*LENGTHS, 512, 768, 1024]),
        least_bits=(4, 4, 4, 4),
        most_bits=(26, 26, 26, 26),
        short_lengths=([2, 4, 8, 16], SHORT, SHORT, [*SHORT, 21, 22, 23, 24]),
        long_lengths=([64], [256, 512, 768, 1024, 1280, 1536], LONG, LONG),
        type_instances=(1, 3, 3, 5),
    )

    def measure(self, runs: dict[str, Run], group: str, sizes: dict[str, Any]) -> lab.MeasuredTables:
        return _precision(sizes) if group == "precision" else {"types": _types(sizes)}

    def figures(self, tables: lab.Tables) -> list[lab.Figure]:
        return [_smallest_figure(tables["smallest"]), _error_figure(tables["errors"]), _type_figure(tables["types"])]


# ---------------------------------------------------------------------------------------------------------------------
# Measurements


def _samples(product: str, length: int, instances: int) -> tuple[list, torch.Tensor, torch.Tensor]:
    family = PRODUCTS[product]
    size = {"cyclic-det": "num_states", "matmul": "dimension"}[family]
    processes = [make_process(family, num_symbols=3, seed=seed, **{size: 3}) for seed in range(instances)]
    pairs = [driven_samples(process, length, 1, seed) for seed, process in enumerate(processes)]
    tokens, exact = (torch.cat(parts) for parts in zip(*pairs, strict=True))
    return processes, tokens, exact


def smallest_precision(errors: torch.Tensor, bits: list[int], tolerance: float = TOLERANCE) -> int | None:
    """Return the fewest bits from which on errors are at most `tolerance`; None if the largest number of bits fails."""
    found = None
    for p, error in zip(reversed(bits), reversed(errors.tolist()), strict=True):
        if not error <= tolerance:
            break
        found = p
    return found


def bits_for_attention(length: int) -> float:
    """Return 2 log2(`length`) + 4, the bits below which attention scores do not distinguish neighbouring positions."""
    return 2 * math.log2(length) + 4


def _precision(sizes: dict[str, Any]) -> lab.MeasuredTables:
    rows, smallest = [], []
    for product in PRODUCTS:
        for length in sizes["lengths"]:
            bits = _bits_around(length, sizes)
            processes, tokens, _ = _samples(product, length, sizes["instances"])
            errors = rounding_errors(processes, tokens, length, bits, product=product)  # type: ignore[arg-type]
            for seed in range(sizes["instances"]):
                names = {"product": product, "instance": seed, "length": length}
                rows += [
                    names | {"bits": p, "error": float(error)} for p, error in zip(bits, errors[:, seed], strict=True)
                ]
                found = smallest_precision(errors[:, seed], bits)
                smallest.append(names | {"bits": found, "needed": bits_for_attention(length)})
    return {"errors": rows, "smallest": smallest}


def _bits_around(length: int, sizes: dict[str, Any]) -> list[int]:
    middle = round(bits_for_attention(length))
    return list(range(max(sizes["least_bits"], middle - 4), min(sizes["most_bits"], middle + 6) + 1))


@torch.no_grad()
def _types(sizes: dict[str, Any]) -> list[dict]:
    rows = []
    for name, (p, lengths) in TYPES.items():
        for length in sizes[lengths]:
            processes, tokens, exact = _samples("relu01", length, sizes["type_instances"])
            errors = rounding_errors(processes, tokens, length, [p], product="relu01")[0]
            for seed, process in enumerate(processes):
                row = {"type": name, "bits": p, "length": length, "instance": seed, "error": float(errors[seed])}
                if name == "float32":
                    net = limits_theorem5_2(process, length, product="relu01", dtype=torch.float32)
                    row["measured"] = largest_error(net(tokens[seed : seed + 1]), exact[seed : seed + 1])
                rows.append(row)
    return rows


# ---------------------------------------------------------------------------------------------------------------------
# Figures


def _smallest_figure(rows: lab.Rows) -> lab.Figure:
    found = lab.Rows(row for row in rows if row["bits"] is not None)
    needed = lab.Rows({"length": n, "value": bits_for_attention(n)} for n in sorted(rows.values("length")))
    return lab.Figure(
        name="smallest-precision",
        title="Fewest bits for a small error, by sequence length",
        caption=(
            "Curves show the smallest number p of significand bits from which on the error stays at or below "
            f"{TOLERANCE:g}, if every operation is rounded to p bits (median, with the range over instances; three "
            "states). The curves of ReLU and exact products nearly coincide. Attention needs 2 log2 T + 4 bits to "
            "distinguish neighbouring positions."
        ),
        panels=(
            lab.lines(
                "",
                *(band(found.where(product=one), "length", label, "model", y="bits") for one, label in NAMES.items()),
                plain(needed, "length", "2 log2 T + 4", "ceiling"),
                x_label="length T",
                y_label="significand bits",
                log_x=True,
            ),
        ),
    )


def _error_figure(rows: lab.Rows) -> lab.Figure:
    lengths = sorted(rows.values("length"))
    shown = lengths[:: max(1, -(-len(lengths) // 5))]
    positive = lab.Rows(row for row in rows if row["error"] > 0)
    return lab.Figure(
        name="error-by-precision",
        title="Largest error, by number of bits",
        caption=(
            "Curves show the largest error against the precision (median, with the range over instances). If attention "
            "mistakes a position, the error is of order one. With more bits the error of the ReLU network is zero (not "
            "shown), that of exact p-bit products falls as 2^-p, and that of GeLU products as 2^(-2p/3)."
        ),
        panels=tuple(
            lab.lines(
                label.split(",")[0],
                *(band(positive.where(product=product, length=n), "bits", f"T = {n}", "model") for n in shown),
                x_label="significand bits p",
                y_label="largest error",
                log_y=True,
            )
            for product, label in NAMES.items()
        ),
    )


def _type_figure(rows: lab.Rows) -> lab.Figure:
    def panel(title: str, series: dict[str, tuple[str, str]]) -> lab.Panel:
        worst = lab.Rows(
            {"length": length, "numbers": numbers, "value": max(row[column] for row in own)}
            for numbers, (name, column) in series.items()
            for length, own in rows.where(type=name).by("length").items()
        )
        return lab.heatmap(
            title,
            worst,
            "length",
            "numbers",
            x_label="length T",
            y_label="numbers",
            z_label="largest error",
            order=tuple(series),
            z_min=0.0,
            z_max=1.0,
        )

    return lab.Figure(
        name="number-types",
        title="Largest error, by number type and sequence length",
        caption=(
            "Colours show the largest error over instances of the ReLU network on cycles of three states. Simulated "
            "types round to the bits of bfloat16 (8), float16 (11) or float32 (24), without overflow; “run” is torch "
            "in float32."
        ),
        panels=(
            panel("16 bits, simulated", {name: (name, "error") for name in ("bfloat16", "float16")}),
            panel("float32", {"simulated": ("float32", "error"), "run": ("float32", "measured")}),
        ),
    )


def _worst(rows: lab.Rows, name: str, length: int, column: str = "error") -> float:
    return max(row[column] for row in rows.where(type=name, length=length))


# ---------------------------------------------------------------------------------------------------------------------
# Claims


@lab.claim("limits-precision-logarithmic")
def logarithmic(tables: lab.Tables, numbers: lab.RuleParameters) -> lab.Measurement:
    lengths = sorted(tables["smallest"].values("length"))
    middle = lengths[len(lengths) // 2]
    effects, rates = {}, {}
    for product, rows in tables["smallest"].by("product").items():
        growth = {
            "all": _growth(rows, lambda n: True),
            "short": _growth(rows, lambda n: n <= middle),
            "long": _growth(rows, lambda n: n >= middle),
        }
        pairs = zip(growth["long"], growth["short"], strict=True)
        change = [None if late is None or early is None else late - early for late, early in pairs]
        effects[NAMES[product]] = lab.Effect.pooled(
            change, "bits per doubling of T at long lengths minus those at short ones"
        )
        rates[NAMES[product]] = lab.Effect.pooled(growth["all"]).short()
    said = "; ".join(f"{name} {rate}" for name, rate in rates.items())
    text = (
        f"Bits per doubling of T, over all lengths: {said}. Attention scores that differ by 1/T² between neighbouring "
        "positions need 2 bits per doubling."
    )
    gates = [
        lab.Gate.headroom(
            math.log2(lengths[-1] / lengths[0]),
            lab.parameter(numbers, "doublings", DOUBLINGS),
            "the range of lengths, in doublings,",
        )
    ]
    return lab.Measurement(effects, text, gates, tuple(NAMES.values()))


def _growth(rows: lab.Rows, kept: Any) -> list[float | None]:
    found: list[float | None] = []
    for group in rows.by("instance").values():
        points = [(math.log2(row["length"]), row["bits"]) for row in group if kept(row["length"])]
        lost = len(points) < 2 or any(bits is None for _, bits in points)
        found.append(None if lost else slope(*zip(*points, strict=True)))
    return found


def longest(rows: lab.Rows, name: str, column: str = "error") -> tuple[int | None, int | None]:
    lengths = sorted(rows.where(type=name).values("length"))
    fails = next((n for n in lengths if not _worst(rows, name, n, column) <= TOLERANCE), None)
    return max((n for n in lengths if fails is None or n < fails), default=None), fails
