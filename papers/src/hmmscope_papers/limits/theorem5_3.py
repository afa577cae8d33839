"""[Limits] Theorem 5.3: beliefs of a stochastic HMM from a Transformer and a normaliser, in p-bit and float arithmetic."""

import itertools
import math
from typing import Any, Literal

import numpy as np
import torch

from hmmscope import (
    HMM,
    ProcessDataset,
    Run,
    SequenceLayout,
    filter_beliefs,
    lab,
    make_process,
    registry,
    require_process_type,
)
from hmmscope.ties import largest
from hmmscope_papers.constructions import (
    FilterInBits,
    limits_theorem5_3,
)
from hmmscope_papers.theorems import INTERVALS, always, band, by_scale, plain, slope

NAME = "limits-theorem5.3"
FLOAT_LENGTHS = [4, 6, 8, 10, 12, 16, 20, 24, 32, 40, 48, 64, 96, 120]
GELU_LENGTHS = [4, 6, 8, 10, 12, 16, 24]
#: HMMs small enough for simulated arithmetic; rows are softmaxes of Gaussian numbers.
SMALL = {"num_states": 2, "num_symbols": 2, "law": "softmax"}
#: Fractions of the recommended bits per observation.
SHARES = (1.0, 0.5)
#: Arrangements for which the needed bits are measured; `arbitrary_precision` derives their rates from ln C and h.
ARRANGEMENTS: dict[str, tuple[Literal["gelu", "exact"], Literal["disjoint", "residual"]]] = {
    "GeLU products": ("gelu", "residual"),
    "exact products, residual": ("exact", "residual"),
    "exact products, own slot": ("exact", "disjoint"),
}
EXPONENTS: tuple[Literal["real", "floor"], ...] = ("real", "floor")
DTYPES = {"float64": torch.float64, "float32": torch.float32}
#: Values λ = 2^k tried for the gadget in floats.
GELU_POWERS = {"float64": range(8, 20), "float32": range(2, 12)}


@registry.experiment(NAME)
class Theorem53(lab.Experiment):
    """Networks with the theorem's weights, in simulated p-bit arithmetic, float64 and float32."""

    title = "With O(T) bits, a Transformer and an MLP compute beliefs after T observations with errors below e^-T"
    in_paper = (
        "[Limits] Theorem 5.3, where T-precision means O(T) bits",
        "there exists a T-precision Transformer approximating the belief state sequence of length T",
    )
    summary = (
        "Theorem 5.3 of [Limits] gives the weights of a Transformer of depth ceil(log2 T) that multiplies the matrices "
        "of an HMM, and of an MLP of depth O(log T), the normaliser, that divides the result by its sum. The network "
        "runs in p-bit arithmetic, where the error bound e^-T holds if p is proportional to T, and in float64 and "
        "float32, where it cannot hold for long sequences. Exact answers come from integer arithmetic and the filter."
    )
    intervals = INTERVALS
    groups = {
        "precision": ("precision",),
        "bits": ("bits", "bit-slopes"),
        "floats": ("floats",),
        "normaliser": ("normaliser", "normaliser-ends"),
    }
    sizes = by_scale(
        instances=(2, 36, 36, 36),
        lengths=([2, 6], [2, 4, 8, 16, 32], [2, 4, 8, 16, 32], [2, 4, 8, 16, 32, 64]),
        bit_instances=(2, 6, 10, 20),
        bit_lengths=([2, 4], [4, 8, 16, 32], [4, 8, 16, 32], [4, 8, 16, 32, 64]),
        float_instances=(2, 5, 10, 20),
        float_lengths=([4, 16, 48], FLOAT_LENGTHS, FLOAT_LENGTHS, [*FLOAT_LENGTHS, 240]),
        gelu_lengths=([10], GELU_LENGTHS, GELU_LENGTHS, [*GELU_LENGTHS, 32]),
        sequences=(2, 32, 64, 128),
        normaliser_instances=(2, 36, 36, 36),
        normaliser_length=(60, 120, 120, 120),
    )

    def measure(self, runs: dict[str, Run], group: str, sizes: dict[str, Any]) -> lab.MeasuredTables:
        with torch.no_grad():
            return {"precision": _precision, "bits": _bits, "floats": _floats, "normaliser": _normaliser}[group](sizes)

    def figures(self, tables: lab.Tables) -> list[lab.Figure]:
        return [
            _precision_figure(tables["precision"]),
            _bits_figure(tables),
            _floats_figure(tables["floats"]),
            _normaliser_figure(tables["normaliser"]),
        ]


# ---------------------------------------------------------------------------------------------------------------------
# Measurements


def ran_hmm(seed: int, **options: Any) -> HMM:
    """Build a random HMM (default: as in the paper, with five states, five symbols and uniform rows)."""
    process = require_process_type(make_process("ran-hmm", seed=seed, **options), HMM)
    return process


def recommended_rate(log_c: float) -> float:
    return (1 + log_c) / math.log(2)


def derived_rate(arrangement: str, log_c: float, information: float) -> float:
    """Return the significand bits needed per observation, by module `arbitrary_precision`; `information` is its h."""
    product, variant = ARRANGEMENTS[arrangement]
    if product == "gelu":
        return 1.5 * (1 + max(log_c / 2, information)) / math.log(2)
    return (1 + (information / 2 if variant == "residual" else 0)) / math.log(2)


def _precision(sizes: dict[str, Any]) -> lab.MeasuredTables:
    rows = []
    for seed, length in itertools.product(range(sizes["instances"]), sizes["lengths"]):
        hmm = ran_hmm(seed, **SMALL)
        construction = FilterInBits(hmm)
        sampled = ProcessDataset(hmm, length=length, seed=seed)[0:1].observations[0]
        for kind, symbols in (("sampled", sampled), ("least likely", construction.unlikely_observations(length))):
            names = {"instance": seed, "log_C": construction.log_bound, "length": length, "sequence": kind}
            for share in SHARES:
                found = construction.beliefs(symbols, construction.recommended_bits(length, share=share))
                measured = {"bits": found.bits, "error": found.error, "bound": found.error_bound}
                sums = {"sum_low": float(found.sums.min()), "sum_high": float(found.sums.max())}
                information = {"nats_per_observation": -float(found.log_likelihoods[-1]) / length}
                rows.append(names | {"share": share} | measured | information | sums)
    return {"precision": rows}


def _bits(sizes: dict[str, Any]) -> lab.MeasuredTables:
    rows: list[dict] = []
    slopes: list[dict] = []
    for seed in range(sizes["bit_instances"]):
        hmm = ran_hmm(seed, **SMALL)
        plain = FilterInBits(hmm)
        log_c, unlikely = plain.log_bound, {n: plain.unlikely_observations(n) for n in sizes["bit_lengths"]}
        longest = unlikely[max(unlikely)]
        information = -float(filter_beliefs(hmm, longest[None]).log_likelihood) / len(longest)
        for arrangement, (product, variant) in ARRANGEMENTS.items():
            construction = FilterInBits(hmm, product=product, variant=variant)
            found = {length: construction.smallest_bits(symbols) for length, symbols in unlikely.items()}
            names = {"arrangement": arrangement, "instance": seed}
            for length, bits in found.items():
                rows.append(names | {"length": length, "bits": bits, "recommended": plain.recommended_bits(length)})
            derived = {"derived": derived_rate(arrangement, log_c, information), "recommended": recommended_rate(log_c)}
            about = {"log_C": log_c, "nats_per_observation": information, "slope": slope(found, found.values())}
            slopes.append(names | about | derived)
    return {"bits": rows, "bit-slopes": slopes}


def _floats(sizes: dict[str, Any]) -> lab.MeasuredTables:
    rows: list[dict] = []
    lengths = sorted({*sizes["float_lengths"], *sizes["gelu_lengths"]})
    for seed, length in itertools.product(range(sizes["float_instances"]), lengths):
        hmm = ran_hmm(seed)
        batch = ProcessDataset(hmm, layout=SequenceLayout(length=length, placeholder=True), seed=seed)[
            0 : sizes["sequences"]
        ]
        exact = filter_beliefs(hmm, batch.observations).beliefs
        for numbers, (name, (product, variant)) in itertools.product(DTYPES, ARRANGEMENTS.items()):
            gelu = product == "gelu"
            if length not in sizes["gelu_lengths" if gelu else "float_lengths"]:
                continue
            errors = []
            for scale in [2.0**k for k in GELU_POWERS[numbers]] if gelu else [None]:
                options: dict[str, Any] = {"product": "gelu" if gelu else "bilinear", "variant": variant}
                options["division"] = "mlp" if variant == "disjoint" else "division"
                net = limits_theorem5_3(hmm, length, gelu_scale=scale, dtype=DTYPES[numbers], **options)
                errors.append(float((net(batch.tokens)[:, 1:].double() - exact).abs().max()))
            best = min(filter(math.isfinite, errors), default=None)
            names = {"arrangement": name, "numbers": numbers, "instance": seed, "length": length}
            rows.append(names | {"error": best, "bound": math.exp(-length)})
    return {"floats": rows}


def _normaliser(sizes: dict[str, Any]) -> lab.MeasuredTables:
    rows, ends = [], []
    length = sizes["normaliser_length"]
    for seed in range(sizes["normaliser_instances"]):
        hmm = ran_hmm(seed)
        batch = ProcessDataset(hmm, layout=SequenceLayout(length=length, placeholder=True), seed=seed)[
            0 : sizes["sequences"]
        ]
        exact = filter_beliefs(hmm, batch.observations).beliefs
        for exponents in EXPONENTS:
            names = {"exponents": exponents, "instance": seed}
            net = limits_theorem5_3(hmm, length, exponents=exponents)
            found, schedule = net.normalised(net.stream(batch.tokens) @ net.decoder), net.schedule
            base = math.log10(schedule.bound)
            for stage, (sums, power) in enumerate(zip(found.sums, [length, *schedule.powers], strict=True)):
                low, high = float(np.log10(sums.min())), float(np.log10(sums.max()))
                bound = power * base + math.log10(1 + 10 ** -(power * base))
                rows.append(names | {"stage": stage, "log10_low": low, "log10_high": high, "log10_bound": bound})
            error, last = float((torch.from_numpy(found.values[:, 1:]) - exact).abs().max()), found.sums[-1]
            about = {"log_C": math.log(schedule.bound), "log10_largest": schedule.log_largest / math.log(10)}
            about |= {"stages": schedule.num_stages, "terms": 2**schedule.num_doublings}
            sums = {"sum_low": float(last.min()), "sum_high": float(last.max())}
            ends.append(names | about | sums | {"error": error if math.isfinite(error) else None})
    return {"normaliser": rows, "normaliser-ends": ends}


# ---------------------------------------------------------------------------------------------------------------------
# Figures


def _bound(lengths: list[int]) -> lab.Series:
    return lab.Series(name="e^-T", role="ceiling", x=tuple(lengths), y=tuple(math.exp(-n) for n in lengths))


def _precision_figure(rows: lab.Rows) -> lab.Figure:
    half: tuple[float, str, lab.Role] = (0.5, "half as many bits per symbol", "control")
    shares: list[tuple[float, str, lab.Role]] = [(1.0, "recommended bits", "model"), half]
    series = [band(rows.where(share=share), "length", name, role) for share, name, role in shares]
    series.append(_bound(sorted(rows.values("length"))))
    return lab.Figure(
        name="error-in-bits",
        title="Error of the belief, if the number of bits is proportional to T",
        caption=(
            "Curves show the largest error of a belief if the whole construction (softmax attention, GeLU products and the "
            "normaliser) runs in p-bit arithmetic, for random HMMs of 2 states and 2 symbols. Lines are medians; bands are "
            "ranges over instances and over two sequences, a sampled one and the least likely one. The recommended number "
            "of bits is p = T(1 + ln C)/ln 2 + 24, where 1/C is the least product of a transition and an emission "
            "probability; “half as many bits per symbol” halves the first term."
        ),
        panels=(
            lab.lines(
                "", *series, x_label="length T (observations)", y_label="largest error of a probability", log_y=True
            ),
        ),
    )


def _bits_figure(tables: lab.Tables) -> lab.Figure:
    bits, slopes = tables["bits"], tables["bit-slopes"]
    roles: dict[str, lab.Role] = {name: "other" if n else "model" for n, name in enumerate(bits.values("arrangement"))}
    first = bits.where(arrangement=next(iter(roles)))
    ends = tuple(pick(slopes.values("derived")) for pick in (min, max))
    return lab.Figure(
        name="bits-by-length",
        title="Fewest bits for an error of at most e^-T",
        caption=(
            "Left: fewest bits with an error of at most e^-T on the least likely sequence (median, with the range over "
            "instances), and the recommended T(1 + ln C)/ln 2 + 24, where 1/C is the least product of a transition and "
            "an emission probability. Right: slope of the fewest bits over T for each instance, against the rate that "
            "rounding errors imply. This rate is (3/2)(1 + max(ln C / 2, h))/ln 2 with GeLU products, (1 + h/2)/ln 2 "
            "with exact products in the residual stream, and 1/ln 2 with exact products in coordinates of their own. "
            "Here h is -ln(probability of the sequence) per observation."
        ),
        panels=(
            lab.lines(
                "Bits",
                *(band(bits.where(arrangement=name), "length", name, role, y="bits") for name, role in roles.items()),
                band(first, "length", "recommended", "ceiling", y="recommended"),
                x_label="length T (observations)",
                y_label="significand (bits)",
            ),
            lab.lines(
                "Rate",
                *(plain(slopes.where(arrangement=n), "derived", n, role, y="slope") for n, role in roles.items()),
                lab.Series(name="equal", role="optimum", x=ends, y=ends),
                x_label="derived (bits per observation)",
                y_label="measured (bits per observation)",
            ),
        ),
    )


def _floats_figure(rows: lab.Rows) -> lab.Figure:
    def panel(numbers: str) -> lab.Panel:
        kept = rows.where(numbers=numbers)
        finite = lab.Rows(row for row in kept if row["error"])
        series = [
            band(finite.where(arrangement=n), "length", n, "model" if n == "exact products, own slot" else "other")
            for n in rows.values("arrangement")
        ]
        series.append(_bound(sorted(kept.values("length"))))
        shown: dict[str, Any] = {"x_label": "length T (observations)", "y_label": "largest error of a probability"}
        return lab.lines(numbers, *series, **shown, y_min=1e-17, y_max=1e4, log_y=True)

    return lab.Figure(
        name="error-in-floats",
        title="With hardware floats the error exceeds the bound e^-T",
        caption=(
            "Curves show the largest error over sampled sequences of RanHMM with 5 states and 5 symbols (median, with "
            "the range over instances). “Own slot” writes exact products to separate coordinates of the stream, and an "
            "MLP (the normaliser) divides beliefs by their sum. The other networks update the residual stream as the "
            "theorem does, with exact products or GeLU products (of the best scale), and divide without an MLP. No "
            "point is shown if beliefs sum to zero. Errors above one belong to answers that are not probabilities. In "
            "float32, “own slot” fails once the probability of the observations underflows."
        ),
        panels=(panel("float64"), panel("float32")),
    )


def _normaliser_figure(rows: lab.Rows) -> lab.Figure:
    def panel(exponents: str, title: str) -> lab.Panel:
        stages = rows.where(exponents=exponents).by("stage").items()

        def ends(column: str, pick: Any, name: str, role: lab.Role) -> lab.Series | None:
            found = lab.Rows({"stage": stage, "value": pick(row[column] for row in group)} for stage, group in stages)
            return plain(found, "stage", name, role)

        series = [
            ends("log10_high", max, "largest sum", "model"),
            ends("log10_low", min, "smallest sum", "other"),
            ends("log10_bound", max, "bound C^(T / 2^k) + 1", "ceiling"),
        ]
        return lab.lines(title, *series, x_label="stage k", y_label="log10 of the sum", y_min=-2.0, y_max=40.0)

    return lab.Figure(
        name="normaliser-sums",
        title="Sum of the scaled vector after each gate of the normaliser",
        caption=(
            "Curves show the largest and the smallest sum of the scaled vector after each gate of the normaliser, over "
            "sampled sequences, positions and instances of RanHMM (5 states, 5 symbols), in long double. Sums of 10^40 "
            "and more are cut off. Gate k divides large sums by C^(T / 2^(k+1)), with C as above; after the last gate, "
            "sums lie in [1, 3]. With the exponents as printed, floor(T / 2^(k+1)), sums stay far above 3, so that the "
            "series by which the network divides diverges."
        ),
        panels=(panel("real", "Exponents T / 2^(k+1)"), panel("floor", "As printed, rounded down")),
    )


# ---------------------------------------------------------------------------------------------------------------------
# Claims


@lab.claim("limits-theorem5.3-error")
def error(tables: lab.Tables) -> lab.Measurement:
    kept = tables["precision"].where(share=1.0)
    worst = largest(kept.where(length=max(kept.values("length"))), lambda row: row["error"])
    falls = []
    for rows in kept.by("instance").values():
        errors = {length: max(row["error"] for row in group) for length, group in rows.by("length").items()}
        falls.append(-slope(errors, [math.log(value) for value in errors.values()]))
    text = (
        f"Over {len(kept)} runs (softmax attention, GeLU products, normaliser) the largest error at T = "
        f"{worst['length']} is {worst['error']:.1e} with {worst['bits']} bits; e^-T is {worst['bound']:.1e}. The error's "
        f"logarithm falls by {lab.Effect.pooled(falls).short()} per observation. With half the bits per observation, "
        f"{_all_fail(tables['precision'].where(share=0.5))}."
    )
    return lab.Measurement(
        always(kept, lambda row: row["error"] <= row["bound"], "instance", unit="fraction of processes"), text
    )


def _all_fail(rows: lab.Rows) -> str:
    lengths = sorted(rows.values("length"))
    first = next((n for n in lengths if all(row["error"] > row["bound"] for row in rows.where(length=n))), None)
    return "some errors stay below e^-T at every T" if first is None else f"all errors exceed e^-T from T = {first} on"


@lab.claim("limits-theorem5.3-bits")
def bits(tables: lab.Tables) -> lab.Measurement:
    rows = tables["bit-slopes"].with_columns(ratio=lambda row: row["slope"] / row["derived"])
    groups = rows.by("arrangement")
    effects = {
        name: lab.Effect.pooled([row["ratio"] for row in group], "times the implied rate")
        for name, group in groups.items()
    }
    gelu = groups["GeLU products"]
    above = sum(row["slope"] > row["recommended"] for row in gelu)
    means = ", ".join(f"{np.mean([row['slope'] for row in group]):.2f} ({name})" for name, group in groups.items())
    text = (
        f"Needed bits per observation, mean over instances: {means}. With GeLU products this number is at most "
        f"{max(row['slope'] / row['recommended'] for row in gelu):.2f} times (1 + ln C)/ln 2, where 1/C is the least "
        f"product of a transition and an emission probability. The number exceeds (1 + ln C)/ln 2 in {above} of "
        f"{len(gelu)} instances, where T(1 + ln C)/ln 2 bits are too few at large T."
    )
    return lab.Measurement(effects, text, required=tuple(ARRANGEMENTS))


@lab.claim("limits-theorem5.3-normaliser")
def normaliser(tables: lab.Tables, numbers: lab.RuleParameters) -> lab.Measurement:
    real, printed = (tables["normaliser-ends"].where(exponents=kind) for kind in ("real", "floor"))
    low, high = min(row["sum_low"] for row in real), max(row["sum_high"] for row in real)
    wrong = sum(row["error"] is None or row["error"] > 1 for row in printed)
    errors = [math.inf if row["error"] is None else row["error"] for row in real]
    text = (
        f"With exponents rounded down as printed, final sums reach {max(row['sum_high'] for row in printed):.3g}, and "
        f"division by the paper's series is wrong in {wrong} of {len(printed)} processes. With exact exponents and "
        f"ceil(log2(T log2 C)) gates, final sums are {low:.4g} to {high:.4g}; errors are at most {max(errors):.1e}."
    )
    return lab.Measurement(
        always(
            printed,
            lambda row: row["sum_high"] <= lab.parameter(numbers, "most"),
            "instance",
            unit="fraction of processes",
        ),
        text,
    )
