"""[Limits] Theorem 5.1, run: a ReLU RNN of width n·m that follows a deterministic HMM without error."""

from typing import Any

import torch

from hmmscope import registry
from hmmscope.constructions.deterministic_rnn import limits_theorem5_1, smallest_scale
from hmmscope.evidence.figures import Figure, Lines
from hmmscope.experiments.experiment import Experiment, Finding, Measured, Tables
from hmmscope.experiments.panels import series_of
from hmmscope.experiments.slopes import driven_samples, largest_error, power_slopes, slope_row, spread
from hmmscope.processes.make import make_process
from hmmscope.runs.pipeline import Run

SCALES: dict[str, dict[str, Any]] = {
    "smoke": {
        **{"instances": 2, "sequences": 2, "lengths": [10, 30, 100], "norms": [0.25, 1.0, 4.0]},
        **{"num_states": [3, 5], "scale_factors": [1.8, 1.95, 2.0, 4.0], "scale_length": 30},
    },
    "small": {
        **{"instances": 12, "sequences": 16, "lengths": [10, 30, 100, 300, 1000]},
        **{"norms": [0.25, 0.5, 1.0, 2.0, 4.0, 16.0, 64.0], "num_states": [2, 3, 5, 8, 12]},
        **{"scale_factors": [1.0, 1.5, 1.8, 1.9, 1.95, 1.99, 2.0, 2.5, 3.0, 4.0], "scale_length": 300},
    },
    "gpu": {
        **{"instances": 24, "sequences": 32, "lengths": [10, 30, 100, 300, 1000, 3000]},
        **{"norms": [0.25, 0.5, 1.0, 2.0, 4.0, 16.0, 64.0, 256.0], "num_states": [2, 3, 5, 8, 12, 16]},
        **{"scale_factors": [1.0, 1.5, 1.8, 1.9, 1.95, 1.99, 2.0, 2.5, 3.0, 4.0], "scale_length": 1000},
    },
    "paper": {
        **{"instances": 24, "sequences": 64, "lengths": [10, 30, 120, 300, 1000, 3000, 10000]},
        **{"norms": [0.25, 0.5, 1.0, 2.0, 4.0, 16.0, 64.0, 256.0], "num_states": [2, 3, 5, 8, 12, 16]},
        **{"scale_factors": [1.0, 1.5, 1.8, 1.9, 1.95, 1.99, 2.0, 2.5, 3.0, 4.0], "scale_length": 1000},
    },
}

#: Processes, with the numbers that their specs need beside the seed.
FAMILIES: dict[str, dict[str, Any]] = {
    "cyclic-det": {},
    "random-automaton": {},
    "word-problem": {"group": "S3", "num_generators": 3},
    "matmul": {},
}
DTYPES = {"float64": torch.float64, "float32": torch.float32}
#: What rounding may leave of an exact construction, for orthogonal matrices and 1000 steps in float64.
ROUNDING_BOUND = 1e-12
#: An error above this is a failure and no rounding.
FAILURE = 1e-3
#: Beyond this the vectors grow without bound, and how far they come depends on the length alone.
DIVERGED = 1e3


@registry.experiment("limits-theorem5.1")
class Theorem51(Experiment):
    """See the module."""

    title = "A ReLU RNN of width n·m follows a deterministic HMM exactly"
    summary = (
        "Theorem 5.1 of [Limits] gives the weights of a one-layer ReLU RNN whose hidden state holds the belief state of a "
        "deterministic HMM, or a product of orthogonal matrices, without error. The weights are built into torch.nn.RNN "
        "and run; the exact answer comes from the filter."
    )
    intervals = "Intervals are 95 % bootstrap intervals over instances of the process; bands are their whole range."
    groups = {
        "errors": ("errors", "error-slopes"),
        "scale": ("scale", "start"),
        "weights": ("weights", "weight-slopes"),
    }

    def measurements(self, scale: str) -> dict[str, Any]:
        return dict(SCALES[scale])

    def measure(self, runs: dict[str, Run], group: str, sizes: dict[str, Any]) -> Measured:
        match group:
            case "errors":
                return _errors(sizes)
            case "scale":
                return {"scale": _scale_rows(sizes), "start": _start_rows(sizes)}
        return _weights(sizes)

    def figures(self, tables: Tables) -> list[Figure]:
        return [_error_figure(tables["errors"]), _scale_figure(tables["scale"]), _weight_figure(tables["weights"])]

    def findings(self, tables: Tables) -> list[Finding]:
        return [
            _exact_finding(tables["errors"]),
            _orthogonal_finding(tables),
            _weight_finding(tables),
            _scale_finding(tables["scale"]),
            _start_finding(tables["start"]),
        ]


# ---------------------------------------------------------------------------------------------------------------------
# Measurements


def _process(family: str, seed: int, **fields: Any) -> Any:
    return make_process(family, seed=seed, **(FAMILIES[family] | fields))


@torch.no_grad()
def _errors(sizes: dict[str, Any]) -> Measured:
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
    slopes = []
    for name in DTYPES:
        kept = [row for row in rows if row["family"] == "matmul" and row["numbers"] == name]
        found_slopes = power_slopes(kept, "length", "error")
        slopes.append(slope_row(found_slopes, quantity="error of matmul against length", numbers=name))
    return {"errors": rows, "error-slopes": slopes}


@torch.no_grad()
def _scale_rows(sizes: dict[str, Any]) -> list[dict]:
    """Error when α is a multiple of the norm of b_0, in float64."""
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
    """Error of the first three vectors with the initial hidden state as printed, and with its sign corrected."""
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


def _weights(sizes: dict[str, Any]) -> Measured:
    """Largest weight against the norm of b_0, beside 2√n‖b_0‖ max(1, 2/√n)."""
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
                            "num_symbols": net.num_tokens,
                            "hidden_width": net.rnn.hidden_size,
                            "instance": seed,
                            "norm": norm,
                            "scale": 2 * smallest_scale(net.system),
                            "largest": net.largest_weight(),
                            "bound": max(2 * n**0.5 * norm * max(1.0, 2 / n**0.5), 1.0),
                        }
                    )
    slopes = []
    for family in ("cyclic-det", "matmul"):
        for n in sizes["num_states"]:
            kept = [row for row in rows if row["family"] == family and row["num_states"] == n]
            slopes.append(slope_row(power_slopes(kept, "norm", "largest"), family=family, num_states=n))
    return {"weights": rows, "weight-slopes": slopes}


# ---------------------------------------------------------------------------------------------------------------------
# Figures


def _error_figure(rows: list[dict]) -> Figure:
    def panel(numbers: str) -> Lines:
        kept = [row for row in rows if row["numbers"] == numbers and row["family"] == "matmul"]
        series = [series_of(spread(kept, ("length",)), "products of orthogonal matrices", "model", x="length")]
        if numbers == "float64":
            required = [{"length": row["length"], "value": ROUNDING_BOUND} for row in kept if row["instance"] == 0]
            series.append(series_of(required, f"required, {ROUNDING_BOUND:g}", "ceiling", x="length"))
        return Lines(
            title=numbers,
            x_label="symbols read, t",
            y_label="largest error up to t",
            series=tuple(series),
            log_x=True,
            log_y=True,
        )

    return Figure(
        name="error-by-length",
        title="Rounding is all the error there is",
        caption=(
            "Largest error of any coordinate up to each step, for products of random orthogonal 5 x 5 matrices (median, "
            "with the range over instances). For cyclic-det, random-automaton and word-problem the error is exactly zero, "
            "in both number types and at every length: it has no place on this axis."
        ),
        panels=(panel("float64"), panel("float32")),
    )


def _scale_figure(rows: list[dict]) -> Figure:
    orthogonal = [row | {"error": DIVERGED} if row["diverges"] else row for row in rows if row["family"] == "matmul"]
    series = []
    for family, label in (("matmul", "orthogonal matrices"), ("cyclic-det", "cycles")):
        kept = [row | {"wrong": float(_fails(row))} for row in rows if row["family"] == family]
        found = [{"factor": row["factor"], "value": row["mean"]} for row in spread(kept, ("factor",), "wrong")]
        series.append(series_of(found, label, "model", x="factor"))
    return Figure(
        name="error-by-scale",
        title="How large α has to be",
        caption=(
            "Left: error against the constant α of the construction, in float64 (median, with the range over instances). "
            f"Right: share of instances with an error above {FAILURE:g}. The theorem takes 4 ‖b_0‖; 2 ‖b_0‖ is enough. From "
            "there on the error on cycles is exactly zero; below, it grows without bound."
        ),
        panels=(
            Lines(
                title="Orthogonal matrices",
                x_label="α / ‖b_0‖",
                y_label="largest error",
                series=(series_of(spread(orthogonal, ("factor",)), "orthogonal matrices", "model", x="factor"),),
                log_y=True,
            ),
            Lines(
                title="Networks that fail",
                x_label="α / ‖b_0‖",
                y_label="share of instances",
                series=tuple(series),
                y_min=-0.02,
                y_max=1.02,
            ),
        ),
    )


def _weight_figure(rows: list[dict]) -> Figure:
    def panel(family: str, title: str) -> Lines:
        n = max(row["num_states"] for row in rows)
        kept = [row for row in rows if row["family"] == family and row["num_states"] == n]
        return Lines(
            title=f"{title}, n = {n}",
            x_label="‖b_0‖",
            y_label="largest weight",
            series=(
                series_of(spread(kept, ("norm",), "largest"), "largest weight", "model", x="norm"),
                series_of(spread(kept, ("norm",), "bound"), "bound 2√n ‖b_0‖ max(1, 2/√n)", "ceiling", x="norm"),
            ),
            log_x=True,
            log_y=True,
        )

    return Figure(
        name="largest-weight",
        title="Weights grow in proportion to the norm of the start",
        caption=(
            "Largest absolute weight, bias or initial hidden unit (median, with the range over instances), and the bound: "
            "the largest row sum of an orthogonal matrix is at most √n, that of a permutation 1."
        ),
        panels=(panel("matmul", "Orthogonal matrices"), panel("cyclic-det", "Cycles")),
    )


# ---------------------------------------------------------------------------------------------------------------------
# Findings


def _exact_finding(rows: list[dict]) -> Finding:
    kept = [row for row in rows if row["family"] != "matmul"]
    worst = max(row["error"] for row in kept)
    longest = max(row["length"] for row in kept)
    runs = len({(row["family"], row["instance"], row["numbers"]) for row in kept})
    return Finding(
        title="No error on deterministic HMMs",
        text=(
            f"The largest error of {runs} networks (cycles, random automata, word problems; float64 and float32) over "
            f"{longest} symbols is {worst:g}."
        ),
        verdict="reproduced" if worst == 0 else "not reproduced",
    )


def _orthogonal_finding(tables: Tables) -> Finding:
    kept = [row for row in tables["errors"] if row["family"] == "matmul"]
    longest = max(row["length"] for row in kept)
    worst = {name: max(row["error"] for row in kept if row["numbers"] == name) for name in DTYPES}
    slopes = {row["numbers"]: row for row in tables["error-slopes"]}["float64"]
    return Finding(
        title="Rounding only on orthogonal matrices",
        text=(
            f"Over {longest} symbols the largest error is {worst['float64']:.1e} in float64 (required: at most "
            f"{ROUNDING_BOUND:g}) and {worst['float32']:.1e} in float32; in float64 it grows as t to the power "
            f"{slopes['value']:.2f} ({slopes['low']:.2f} to {slopes['high']:.2f}), as rounding errors do."
        ),
        verdict="reproduced" if worst["float64"] <= ROUNDING_BOUND else "not reproduced",
        value=slopes["value"],
        low=slopes["low"],
        high=slopes["high"],
        unit="exponent of t, of the rounding error",
    )


def _weight_finding(tables: Tables) -> Finding:
    rows, slopes = tables["weights"], tables["weight-slopes"]
    within = all(row["largest"] <= row["bound"] * (1 + 1e-12) for row in rows)
    low, high = min(row["low"] for row in slopes), max(row["high"] for row in slopes)
    proportional = all(row["low"] <= 1 + 1e-9 and row["high"] >= 1 - 1e-9 for row in slopes)
    mean = sum(row["value"] for row in slopes) / len(slopes)
    return Finding(
        title="Weights are O(‖b_0‖)",
        text=(
            f"The largest weight is {'at most' if within else 'NOT always below'} 2√n ‖b_0‖ max(1, 2/√n) in all "
            f"{len(rows)} networks, and grows as ‖b_0‖ to the power {mean:.3f}; the theorem says 1. The hidden width is "
            "n·m."
        ),
        verdict="reproduced" if within and proportional else "not reproduced",
        value=mean,
        low=low,
        high=high,
        unit="exponent of ‖b_0‖",
    )


def _fails(row: dict) -> bool:
    return bool(row["diverges"] or row["error"] > FAILURE)


def _scale_finding(rows: list[dict]) -> Finding:
    factors = sorted({row["factor"] for row in rows})
    fails = {factor: [row for row in rows if row["factor"] == factor and _fails(row)] for factor in factors}
    enough = min((factor for factor in factors if not fails[factor]), default=None)
    below = [factor for factor in factors if enough is None or factor < enough]
    text = (
        f"α = {enough:g} ‖b_0‖ is the smallest tried that is right in all instances; the theorem takes 4."
        if enough is not None
        else "No α that was tried is right in all instances."
    )
    if below:
        instances = len(rows) // len(factors)
        text += f" With {below[-1]:g} ‖b_0‖ {len(fails[below[-1]])} of {instances} networks go wrong."
    return Finding(title="How large α has to be", text=text, verdict="found", value=enough, unit="α / ‖b_0‖")


def _start_finding(rows: list[dict]) -> Finding:
    least, right = min(row["as_printed"] for row in rows), max(row["corrected"] for row in rows)
    return Finding(
        title="The initial hidden state as printed",
        text=(
            f"With h_0 = [b_0 - (α/2) 1, 0, ..] (E.10) the first vectors are wrong by at least {least:.2g} in every "
            f"instance; with the sign corrected by at most {right:.1e}."
        ),
        verdict="found",
        value=least,
        unit="least error of an instance",
    )
