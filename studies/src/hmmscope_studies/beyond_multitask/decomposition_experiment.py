"""[MultiTask] Theorem 1: the error decomposed into parts, and an upper bound."""

from typing import Any

import numpy as np

from hmmscope import Run, lab, registry
from hmmscope.analysis import bootstrap_ratio
from hmmscope_papers.multitask.independent_windows import (
    FITTED_ERRORS,
    bound_row,
    convergence_tables,
    instance_rows,
    part_rows,
    scaling_tables,
)
from hmmscope_papers.theorems import always, by_scale, plain

NAME = "multitask-decomposition"
SAMPLES = [100, 1000, 10000, 100000]
STEPS = [1, 2, 5, 10, 20, 40, 80, 160, 320]
SCALING = [400, 800, 1600, 3200, 6400, 12800]


@registry.experiment(NAME)
class ErrorDecomposition(lab.Experiment):
    """Exact errors of the linear prediction of [MultiTask] Theorem 1, for one fixed and many random processes."""

    title = "Four sources of error of in-context least squares"
    summary = (
        "The prediction of [MultiTask] Theorem 1 is linear in the last L observations, fitted to n demonstrations by T "
        "steps of gradient descent. Its squared distance from the exact distribution of the next observation is the "
        "sum of the errors from a short memory, from the linear form of the prediction, and from n samples and T "
        "steps. These errors are computed by enumeration, their decay in n and T is measured, and a bound with "
        "explicit constants is tested on random processes."
    )
    intervals = (
        "Intervals are 95 % intervals over processes; bands are 95 % bootstrap intervals over sets of demonstrations."
    )
    groups = {
        "parts": ("parts", "instances"),
        "generalisation": ("scaling", "slopes"),
        "optimisation": ("convergence", "rates"),
        "bound": ("bound",),
    }
    #: `histories`: enumerated observations; `instances`: random processes besides the reference.
    sizes = by_scale(
        histories=(4, 6, 7, 8),
        memory_lengths=([1, 2], [1, 2, 3], [1, 2, 3], [1, 2, 3, 4]),
        samples=([50, 800], SAMPLES, SAMPLES, SAMPLES),
        steps=([1, 5, 20, 80], STEPS, STEPS, [*STEPS, 640]),
        draws=(4, 32, 64, 128),
        instances=(2, 35, 35, 35),
        scaling_samples=([100, 400, 1600], SCALING, [*SCALING, 25600], [*SCALING, 25600]),
        scaling_draws=(40, 200, 400, 1000),
        bound_instances=(20, 200, 1000, 5000),
    )

    def measure(self, runs: dict[str, Run], group: str, sizes: dict[str, Any]) -> lab.MeasuredTables:
        match group:
            case "parts":
                return {"parts": part_rows(sizes), "instances": instance_rows(sizes)}
            case "generalisation":
                return scaling_tables(sizes)
            case "optimisation":
                return convergence_tables(sizes)
        return {"bound": [bound_row(number) for number in range(sizes["bound_instances"])]}

    def figures(self, tables: lab.Tables) -> list[lab.Figure]:
        return [
            _parts_figure(tables["parts"]),
            _stopping_figure(tables["parts"]),
            _scaling_figure(tables["scaling"]),
            _convergence_figure(tables["convergence"]),
            _bound_figure(tables["bound"]),
        ]


# ---------------------------------------------------------------------------------------------------------------------
# Figures

ERROR = "mean squared distance"


def _parts_figure(rows: lab.Rows) -> lab.Figure:
    roles: dict[str, lab.Role] = {"estimation": "baseline", "memory": "ceiling", "misspecification": "optimum"}

    def panel(length: int) -> lab.Panel:
        found = rows.where(memory_length=length, steps="all")
        parts = [name for name in roles if min(row[name] for row in found) > 1e-12]
        return lab.lines(
            f"Memory of {length}",
            plain(found, "samples", "total", "model", y="total"),
            *(_bare(found, name, roles[name]) for name in parts),
            x_label="samples n",
            y_label=ERROR,
            log_x=True,
            log_y=True,
        )

    return lab.Figure(
        name="error-parts",
        title="Error of in-context least squares, and its three parts",
        caption=(
            "Curves show the squared Euclidean distance of the least-squares prediction from the exact distribution of the "
            "next observation, averaged over all histories, and its three parts, which add up to it. The process has "
            "four hidden states and four symbols. Bands are 95 % intervals over sets of demonstrations. Parts that are zero "
            "are omitted."
        ),
        panels=tuple(panel(length) for length in sorted(rows.values("memory_length"))[:3]),
    )


def _bare(rows: lab.Rows, column: str, role: lab.Role) -> lab.Series | None:
    return plain(lab.Rows({"x": row["samples"], "value": row[column]} for row in rows), "x", column, role)


def _stopping_figure(rows: lab.Rows) -> lab.Figure:
    def panel(samples: int) -> lab.Panel:
        found = lab.Rows(row for row in rows.where(samples=samples) if row["steps"] != "all")
        memories = sorted(found.values("memory_length"))
        return lab.lines(
            f"{samples:,} samples",
            *(plain(found.where(memory_length=n), "steps", f"L = {n}", "model", y="total") for n in memories),
            x_label="gradient steps T",
            y_label=ERROR,
            log_x=True,
            log_y=True,
        )

    return lab.Figure(
        name="early-stopping",
        title="Error by number of gradient steps, for each memory length",
        caption=(
            "Curves show the total error of gradient descent from zero against the number of steps, for each memory "
            "length L. With few samples the error rises again after many steps, because early stopping regularises. "
            "Bands are 95 % intervals over sets of demonstrations."
        ),
        panels=tuple(panel(pick(rows.values("samples"))) for pick in (min, max)),
    )


def _scaling_figure(rows: lab.Rows) -> lab.Figure:
    labels = rows.values("instance")[:4]
    relative = lab.Rows(
        {"instance": row["instance"], "samples": row["samples"], "value": row["estimation"] / row["predicted"]}
        | {end: row[end] / row["predicted"] for end in ("low", "high")}
        for row in rows
    )
    first = lab.Rows({"x": row["samples"], "value": row["predicted"]} for row in rows.where(instance=labels[0]))
    return lab.Figure(
        name="generalisation",
        title="Squared error from the finite sample, by number of samples",
        caption=(
            "Curves show the mean squared distance of the least-squares prediction from the best linear prediction with a "
            "memory of 2 observations, for the reference process and random processes. The line “predicted” is σ² r / n, "
            "without a fit: σ² is the residual variance of the best linear prediction of the reference process, r the rank "
            "of E[x xᵀ] over windows x, n the number of samples. Bands are 95 % intervals over sets of demonstrations."
        ),
        panels=(
            lab.lines(
                "Error from the sample",
                *(plain(rows.where(instance=one), "samples", one, "model", y="estimation") for one in labels),
                plain(first, "x", "predicted", "optimum"),
                x_label="samples n",
                y_label=ERROR,
                log_x=True,
                log_y=True,
            ),
            lab.lines(
                "Relative to σ² rank / n",
                *(plain(relative.where(instance=one), "samples", one, "model") for one in labels),
                x_label="samples n",
                y_label="ratio",
                log_x=True,
            ),
        ),
    )


def _convergence_figure(rows: lab.Rows) -> lab.Figure:
    names: dict[str, tuple[str, lab.Role]] = {
        "error": ("mean over windows", "model"),
        "worst": ("worst window", "baseline"),
    }
    names |= {"bound": ("bound", "ceiling")}
    return lab.Figure(
        name="optimisation",
        title="Distance from least squares, by number of gradient steps",
        caption=(
            "Curves show the Euclidean distance of the prediction after T steps of size 1/λ from the least-squares "
            "prediction, for 1000 samples and a memory of 2 observations: its root mean square over windows, and that of "
            "the worst window. The “bound” falls by a factor of 1 - α/λ per step, where α is the smallest non-zero "
            "eigenvalue of the sample covariance and λ the largest one."
        ),
        panels=tuple(
            lab.lines(
                label,
                *(plain(rows.where(instance=label), "steps", *look, y=column) for column, look in names.items()),
                x_label="gradient steps T",
                y_label="distance to least squares",
                log_y=True,
            )
            for label in rows.values("instance")[:2]
        ),
    )


def _bound_figure(rows: lab.Rows) -> lab.Figure:
    def panel(title: str, value: str, bound: str) -> lab.Panel:
        ordered = sorted((row for row in rows if row[value] > 1e-12), key=lambda row: row[bound])
        places = tuple(range(1, len(ordered) + 1))
        return lab.lines(
            title,
            lab.Series(name="bound", role="ceiling", x=places, y=tuple(row[bound] for row in ordered)),
            lab.Series(name="measured", role="other", x=places, y=tuple(row[value] for row in ordered)),
            x_label="random process, sorted by its bound",
            y_label="distance",
            log_y=True,
        )

    return lab.Figure(
        name="bound",
        title="Errors and their bounds on random processes",
        caption=(
            "Points show Euclidean distances and their bounds for random processes with 2 to 5 states, 2 to 4 symbols, "
            "memories of 1 to 3, 10 to 10,000 samples and 0 to 199 steps; means over the random next observations are "
            "exact. The errors from the sample and from the steps are maxima over windows in the span of the sampled "
            "ones. Distances below 1e-12 are omitted."
        ),
        panels=(
            panel("Total error", "total", "bound"),
            panel("Error from the sample", "worst_generalisation", "generalisation_bound"),
            panel("Error from the steps", "worst_optimisation", "optimisation_bound"),
        ),
    )


# ---------------------------------------------------------------------------------------------------------------------
# Claims


@lab.claim("multitask-decomposition-parts")
def parts(tables: lab.Tables, numbers: lab.RuleParameters) -> lab.Measurement:
    rows = tables["instances"]
    gap = max(row["gap"] for row in [*rows, *tables["parts"]])
    full = tables["parts"].where(memory_length=max(tables["parts"].values("memory_length")), steps="all")
    row = full[-1]
    text = (
        f"The largest relative gap between the total error and the sum of its parts is {gap:.0e}. With a memory of "
        f"{row['memory_length']} observations and {row['samples']:,} samples the parts are {row['memory']:.2e} "
        f"(memory), {row['misspecification']:.2e} (misspecification) and {row['estimation']:.2e} (estimation)."
    )
    return lab.Measurement(
        always(
            rows, lambda row: row["gap"] < lab.parameter(numbers, "rounding"), "instance", unit="fraction of processes"
        ),
        text,
    )


@lab.claim("multitask-decomposition-samples")
def samples(tables: lab.Tables) -> lab.Measurement:
    slopes, ratios = ([row[column] for row in tables["slopes"]] for column in ("slope", "ratio"))
    text = (
        f"The squared error from the finite sample is {lab.Effect.pooled(ratios).short()} times the predicted σ² r / n."
    )
    return lab.Measurement(lab.Effect.pooled(slopes, "exponent of n"), text)


@lab.claim("multitask-decomposition-steps")
def steps(tables: lab.Tables) -> lab.Measurement:
    kept = lab.Rows(row for row in tables["convergence"] if row["error"] > FITTED_ERRORS[0])
    share = max(row["worst"] / row["bound"] for row in kept)
    ratios = [row["ratio"] for row in tables["rates"]]
    return lab.Measurement(
        lab.Effect.pooled(ratios, "times the stated rate"),
        f"The error of a window after any number of steps is at most {share:.2f} of its bound.",
    )


@lab.claim("multitask-decomposition-bound")
def bound(tables: lab.Tables, numbers: lab.RuleParameters) -> lab.Measurement:
    rows = tables["bound"]
    pairs = {
        "total": "bound",
        "worst_generalisation": "generalisation_bound",
        "worst_optimisation": "optimisation_bound",
    }
    share = {value: max(row[value] / row[limit] for row in rows) for value, limit in pairs.items()}
    typical = float(np.median([row["total"] / row["bound"] for row in rows]))
    text = (
        f"On {len(rows)} processes the total error is at most {share['total']:.2f} of its bound (median "
        f"{typical:.2f}), the part from the finite sample at most {share['worst_generalisation']:.2f} of its bound, "
        f"and the part from the gradient steps at most {share['worst_optimisation']:.2f} of its bound."
    )
    held = always(
        rows,
        lambda row: all(
            row[value] <= (1 + lab.parameter(numbers, "rounding")) * row[limit] for value, limit in pairs.items()
        ),
        "instance",
        unit="fraction of processes",
    )
    return lab.Measurement(held, text)


@lab.claim("multitask-decomposition-covariance")
def covariance(tables: lab.Tables) -> lab.Measurement:
    rows = tables["bound"]
    several = lab.Rows(row for row in rows if row["memory_length"] > 1)
    within = sum(
        row["rank"] <= row["largest_rank"] and row["zero_eigenvalues"] >= row["memory_length"] - 1 for row in rows
    )
    off = max(row["sum_error"] for row in rows)
    text = (
        "Each of the L one-hot blocks of a window sums to one, so that at least L - 1 eigenvalues are zero, and the rank is "
        f"at most L (V - 1) + 1 for V symbols. This holds in {within} of {len(rows)} samples. Other claims use the smallest "
        f"non-zero eigenvalue. Predictions of windows in the covariance's range sum to one (up to {off:.0e})."
    )
    return lab.Measurement(
        always(several, lambda row: not row["zero_eigenvalues"], "instance", unit="fraction of samples"), text
    )


def _ratio(draws: list[float], of: list[float], unit: str) -> lab.Effect:
    value, low, high = bootstrap_ratio(np.array(draws), np.array(of))
    return lab.Effect(value=value, low=low, high=high, num_seeds=len(draws), unit=unit)
