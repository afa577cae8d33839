"""[Limits] Theorem 5.1: a ReLU RNN of width n·m that follows a deterministic HMM without error."""

from typing import Any

import torch

from hmmscope import Run, lab, make_process, registry
from hmmscope_papers.constructions import limits_theorem5_1
from hmmscope_papers.theorems import (
    INTERVALS,
    always,
    band,
    by_scale,
    driven_samples,
    largest_error,
    power_slopes,
    ranges,
)

NAME = "limits-theorem5.1"
#: Processes, with the fields that their specs need besides the seed.
FAMILIES: dict[str, dict[str, Any]] = {
    "cyclic-det": {},
    "random-automaton": {},
    "word-problem": {"group": "S3", "num_generators": 3},
    "matmul": {},
}
DTYPES = {"float64": torch.float64, "float32": torch.float32}
#: Largest rounding error of an exact construction, for orthogonal matrices and 1000 steps in float64.
ROUNDING_BOUND = 1e-12
#: A larger error is a failure, not rounding.
FAILURE = 1e-3
#: Beyond this, vectors grow without bound, and their size depends on the length only.
DIVERGED = 1e3
LENGTHS = [10, 30, 100, 300, 1000]
NORMS = [0.25, 0.5, 1.0, 2.0, 4.0, 16.0, 64.0, 256.0]
FACTORS = [1.0, 1.5, 1.8, 1.9, 1.95, 1.99, 2.0, 2.5, 3.0, 4.0]


@registry.experiment(NAME)
class Theorem51(lab.Experiment):
    """Networks with the theorem's weights for cycles, random automata, word problems and orthogonal matrices."""

    title = "A ReLU RNN of width n·m follows a deterministic HMM exactly"
    in_paper = "[Limits] Theorem 5.1, on an RNN", "approximating the belief state sequence of length T with no error."
    summary = (
        "Theorem 5.1 of [Limits] gives the weights of a one-layer ReLU RNN whose hidden state (width n·m for n states and "
        "m symbols) contains the belief state of a deterministic HMM, or a product of orthogonal matrices, without error. "
        "The experiment runs torch.nn.RNN with these weights. Exact answers come from the filter or matrix products."
    )
    intervals = INTERVALS
    groups = {"errors": ("errors",), "scale": ("scale", "start"), "weights": ("weights",)}
    sizes = by_scale(
        instances=(2, 36, 36, 36),
        sequences=(2, 16, 32, 64),
        lengths=([10, 30, 100], LENGTHS, [*LENGTHS, 3000], [10, 30, 120, 300, 1000, 3000, 10000]),
        norms=([0.25, 1.0, 4.0], [0.25, 0.5, 1.0, 2.0, 4.0, 16.0, 64.0], NORMS, NORMS),
        num_states=([3, 5], [2, 3, 5, 8, 12], [2, 3, 5, 8, 12, 16], [2, 3, 5, 8, 12, 16]),
        scale_factors=([1.8, 1.95, 2.0, 4.0], FACTORS, FACTORS, FACTORS),
        scale_length=(30, 300, 1000, 1000),
    )

    def measure(self, runs: dict[str, Run], group: str, sizes: dict[str, Any]) -> lab.MeasuredTables:
        match group:
            case "errors":
                return {"errors": _errors(sizes)}
            case "scale":
                return {"scale": _scale_rows(sizes), "start": _start_rows(sizes)}
        return {"weights": _weights(sizes)}

    def figures(self, tables: lab.Tables) -> list[lab.Figure]:
        return [_error_figure(tables["errors"]), _scale_figure(tables["scale"]), _weight_figure(tables["weights"])]


# ---------------------------------------------------------------------------------------------------------------------
# Measurements


def _process(family: str, seed: int, **fields: Any) -> Any:
    return make_process(family, seed=seed, **(FAMILIES[family] | fields))


@torch.no_grad()
def _errors(sizes: dict[str, Any]) -> list[dict]:
    rows = []
    for family in FAMILIES:
        for seed in range(sizes["instances"]):
            process = _process(family, seed)
            tokens, exact = driven_samples(process, max(sizes["lengths"]), sizes["sequences"], seed)
            for name, dtype in DTYPES.items():
                found = limits_theorem5_1(process, dtype=dtype)(tokens)
                rows += [
                    {
                        "family": family,
                        "numbers": name,
                        "instance": seed,
                        "length": length,
                        "error": largest_error(found[:, : length + 1], exact[:, : length + 1]),
                    }
                    for length in sizes["lengths"]
                ]
    return rows


@torch.no_grad()
def _scale_rows(sizes: dict[str, Any]) -> list[dict]:
    rows = []
    for family in ("cyclic-det", "matmul"):
        for seed in range(sizes["instances"]):
            process = _process(family, seed)
            tokens, exact = driven_samples(process, sizes["scale_length"], sizes["sequences"], seed)
            for factor in sizes["scale_factors"]:
                net = limits_theorem5_1(process, scale=factor)
                error = largest_error(net(tokens), exact)
                diverges = not error <= DIVERGED
                measured = {"error": None if diverges else error, "diverges": diverges}
                rows.append({"family": family, "instance": seed, "factor": factor} | measured)
    return rows


@torch.no_grad()
def _start_rows(sizes: dict[str, Any]) -> list[dict]:
    rows = []
    for family in ("cyclic-det", "matmul"):
        for seed in range(sizes["instances"]):
            process = _process(family, seed)
            tokens, exact = driven_samples(process, 3, sizes["sequences"], seed)
            net = limits_theorem5_1(process)
            right = largest_error(net(tokens), exact)
            net.start[: net.system.num_states] -= net.scale
            rows.append(
                {
                    "family": family,
                    "instance": seed,
                    "corrected": right,
                    "as_printed": largest_error(net(tokens), exact),
                }
            )
    return rows


def _weights(sizes: dict[str, Any]) -> list[dict]:
    rows = []
    for family in ("cyclic-det", "matmul"):
        for n in sizes["num_states"]:
            for seed in range(sizes["instances"]):
                fields = {"dimension": n} if family == "matmul" else {"num_states": n}
                process = _process(family, seed, **fields)
                for norm in sizes["norms"]:
                    initial = torch.zeros(n, dtype=torch.float64)
                    initial[0] = norm
                    net = limits_theorem5_1(process, initial=initial, placeholder=False)
                    rows.append(
                        {
                            "family": family,
                            "num_states": n,
                            "num_symbols": net.vocab_size,
                            "hidden_width": net.rnn.hidden_size,
                            "instance": seed,
                            "norm": norm,
                            "scale": 2 * net.system.smallest_scale,
                            "largest": net.largest_weight(),
                            "bound": max(2 * n**0.5 * norm * max(1.0, 2 / n**0.5), 1.0),
                        }
                    )
    return rows


# ---------------------------------------------------------------------------------------------------------------------
# Figures


def _error_figure(rows: lab.Rows) -> lab.Figure:
    orthogonal, label = rows.where(family="matmul"), "products of orthogonal matrices"
    required = lab.level(ROUNDING_BOUND, rows.values("length"), f"required, {ROUNDING_BOUND:g}", "ceiling")
    axes: dict[str, Any] = {
        "x_label": "symbols read, t",
        "y_label": "largest error up to t",
        "log_x": True,
        "log_y": True,
    }
    return lab.Figure(
        name="error-by-length",
        title="The network for MatMul has only rounding errors",
        caption=(
            "Curves show the largest error of any coordinate up to each step, when the network multiplies random "
            "orthogonal 5 x 5 matrices (MatMul), in float64 (left) and float32 (right). Lines are medians; bands are "
            "ranges over instances. For cyclic-det, random-automaton and word-problem the error is exactly zero in both "
            "number types at every length, so it has no curve."
        ),
        panels=(
            lab.lines("float64", band(orthogonal.where(numbers="float64"), "length", label, "model"), required, **axes),
            lab.lines("float32", band(orthogonal.where(numbers="float32"), "length", label, "model"), **axes),
        ),
    )


def _scale_figure(rows: lab.Rows) -> lab.Figure:
    error = rows.where(family="matmul").with_columns(error=lambda row: DIVERGED if row["diverges"] else row["error"])

    def wrong(family: str, label: str) -> Any:
        found = rows.where(family=family).with_columns(wrong=lambda row: float(_fails(row)))
        return lab.curve(
            ranges(found, "factor", value="wrong"), "factor", label, "model", y="mean", pool=False, bands=False
        )

    return lab.Figure(
        name="error-by-scale",
        title="Error of the network, by its constant α",
        caption=(
            "The constant α of the construction is shown relative to the norm of the initial vector b_0. Left: error in "
            "float64 (median, with the range over instances). Right: fraction of instances with an error above "
            f"{FAILURE:g}. The theorem uses α = 4 ‖b_0‖, but α = 2 ‖b_0‖ is enough: with this or a larger α the error "
            "on cycles is exactly zero; with a smaller α the error grows without bound."
        ),
        panels=(
            lab.lines(
                "Orthogonal matrices",
                band(error, "factor", "orthogonal matrices", "model"),
                x_label="α / ‖b_0‖",
                y_label="largest error",
                log_y=True,
            ),
            lab.lines(
                "Networks that fail",
                wrong("matmul", "orthogonal matrices"),
                wrong("cyclic-det", "cycles"),
                x_label="α / ‖b_0‖",
                y_label="fraction of instances",
                y_min=-0.02,
                y_max=1.02,
            ),
        ),
    )


def _weight_figure(rows: lab.Rows) -> lab.Figure:
    n = max(rows.values("num_states"))

    def panel(family: str, title: str) -> Any:
        kept = rows.where(family=family, num_states=n)
        return lab.lines(
            f"{title}, n = {n}",
            band(kept, "norm", "largest weight", "model", y="largest"),
            band(kept, "norm", "bound 2√n ‖b_0‖ max(1, 2/√n)", "ceiling", y="bound"),
            x_label="‖b_0‖",
            y_label="largest weight",
            log_x=True,
            log_y=True,
        )

    return lab.Figure(
        name="largest-weight",
        title="Largest weight of the network, by the norm of the initial belief vector",
        caption=(
            "Curves show the largest absolute weight, bias or initial hidden unit, against the norm of the initial vector "
            "b_0 (median, with the range over instances). The bound follows from the largest row sum of an orthogonal n x "
            "n matrix (at most √n) or of a permutation (1)."
        ),
        panels=(panel("matmul", "Orthogonal matrices"), panel("cyclic-det", "Cycles")),
    )


# ---------------------------------------------------------------------------------------------------------------------
# Claims


@lab.claim("limits-theorem5.1-exact")
def exact(tables: lab.Tables) -> lab.Measurement:
    kept = tables["errors"].where(family=[family for family in FAMILIES if family != "matmul"])
    widths = tables["weights"].where(family="cyclic-det")
    worst, longest = max(row["error"] for row in kept), max(kept.values("length"))
    effects = {
        "no error": always(kept, lambda row: row["error"] == 0, "family", "instance", unit="fraction of processes"),
        "width n·m": always(
            widths,
            lambda row: row["hidden_width"] == row["num_states"] * row["num_symbols"],
            "num_states",
            "instance",
            unit="fraction of networks",
        ),
    }
    text = (
        f"The largest error on {effects['no error'].num_seeds} processes (cycles, random automata, word problems; "
        f"float64 and float32) over {longest} symbols is {worst:g}."
    )
    return lab.Measurement(effects, text)


@lab.claim("limits-theorem5.1-orthogonal")
def orthogonal(tables: lab.Tables, numbers: lab.RuleParameters) -> lab.Measurement:
    kept = tables["errors"].where(family="matmul")
    double = kept.where(numbers="float64")
    worst = {name: max(row["error"] for row in rows) for name, rows in kept.by("numbers").items()}
    growth = lab.Effect.pooled(power_slopes(double, "length", "error"))
    text = (
        f"Over {max(kept.values('length'))} symbols the largest error is {worst['float64']:.1e} in float64 and "
        f"{worst['float32']:.1e} in float32. In float64 it grows with the number of symbols to the power "
        f"{growth.short()}, like rounding errors."
    )
    return lab.Measurement(
        always(
            double,
            lambda row: row["error"] <= lab.parameter(numbers, "rounding_bound", ROUNDING_BOUND),
            "instance",
            unit="fraction of instances",
        ),
        text,
    )


@lab.claim("limits-theorem5.1-weights")
def weights(tables: lab.Tables, numbers: lab.RuleParameters) -> lab.Measurement:
    rows = tables["weights"]
    within = always(
        rows,
        lambda row: row["largest"] <= row["bound"] * (1 + lab.parameter(numbers, "rounding")),
        "family",
        "num_states",
        "instance",
        unit="fraction of networks",
    )
    growth = lab.Effect.pooled(power_slopes(rows, "norm", "largest", "family", "num_states", "instance"))
    text = f"Over {within.num_seeds} networks the largest weight grows as ‖b_0‖ to the power {growth.value:.3f}."
    return lab.Measurement(within, text)


def _fails(row: dict[str, Any]) -> bool:
    return bool(row["diverges"] or row["error"] > FAILURE)


@lab.claim("limits-theorem5.1-start")
def start(tables: lab.Tables) -> lab.Measurement:
    rows = tables["start"]
    least, right = min(row["as_printed"] for row in rows), max(row["corrected"] for row in rows)
    text = (
        f"With b_0 - α/2 in h_0, as printed, the error over three observations is at least {least:.2g} in every "
        f"instance. With b_0 + α/2, the error is at most {right:.1e}."
    )
    return lab.Measurement(lab.Effect(value=least, unit="smallest error over instances"), text)
