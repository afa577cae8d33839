"""Figures of `multitask-decomposition`, from its tables."""

from hmmscope.evidence.figures import Figure, Lines, Series
from hmmscope.experiments.panels import series_of

ERROR = "mean squared distance"


def parts_figure(rows: list[dict]) -> Figure:
    """The parts of the error of least squares against the number of samples, one panel a memory length."""
    panels = []
    for length in sorted({row["memory_length"] for row in rows})[:3]:
        found = [row for row in rows if row["memory_length"] == length and row["steps"] == "all"]
        names = {"estimation": "baseline", "memory": "ceiling", "misspecification": "optimum"}
        series = [series_of(found, "total", "model", x="samples", y="total")]
        for name, role in names.items():
            if min(row[name] for row in found) > 1e-12:
                series.append(_plain(found, name, role))
        panels.append(
            Lines(
                title=f"Memory of {length}",
                x_label="samples n",
                y_label=ERROR,
                series=tuple(series),
                log_x=True,
                log_y=True,
            )
        )
    return Figure(
        name="error-parts",
        title="What the error is made of",
        caption=(
            "Squared Euclidean distance of the least-squares prediction from the exact law of the next observation, "
            "averaged over all histories, and its three parts, which add up. Four hidden states behind four symbols; the "
            "band is a 95 % interval over sets of demonstrations. Parts that vanish are left out."
        ),
        panels=tuple(panels),
    )


def stopping_figure(rows: list[dict]) -> Figure:
    """Total error against gradient steps, with few and with many samples."""
    panels = []
    for samples in (min(row["samples"] for row in rows), max(row["samples"] for row in rows)):
        found = [row for row in rows if row["samples"] == samples and row["steps"] != "all"]
        series = [
            series_of([row for row in found if row["memory_length"] == n], f"L = {n}", "model", x="steps", y="total")
            for n in sorted({row["memory_length"] for row in found})
        ]
        panels.append(
            Lines(
                title=f"{samples:,} samples",
                x_label="gradient steps T",
                y_label=ERROR,
                series=tuple(series),
                log_x=True,
                log_y=True,
            )
        )
    return Figure(
        name="early-stopping",
        title="More steps and a longer memory help only with enough samples",
        caption=(
            "Total error of gradient descent from zero with step 1/L, by memory length L. With few samples the error rises "
            "again: stopping early regularises. Bands are 95 % intervals over sets of demonstrations."
        ),
        panels=tuple(panels),
    )


def scaling_figure(rows: list[dict]) -> Figure:
    """Estimation error against the number of samples for each process, and relative to its prediction."""
    labels = list(dict.fromkeys(row["instance"] for row in rows))[:4]
    by_label = [(label, [row for row in rows if row["instance"] == label]) for label in labels]
    measured = [series_of(found, label, "model", x="samples", y="estimation") for label, found in by_label]
    first = by_label[0][1]
    relative = [
        {"x": row["samples"]}
        | {name: row[of] / row["predicted"] for name, of in (("value", "estimation"), ("low", "low"), ("high", "high"))}
        | {"label": label}
        for label, found in by_label
        for row in found
    ]
    return Figure(
        name="generalisation",
        title="The error of the sample falls as 1/n",
        caption=(
            "Mean squared distance of the least-squares prediction from the best linear one, memory of 2 observations, for "
            "the reference process and random ones. The line is σ² rank / n of the reference, nothing fitted. Bands "
            "are 95 % intervals over sets of demonstrations."
        ),
        panels=(
            Lines(
                title="Error of the sample",
                x_label="samples n",
                y_label=ERROR,
                series=(*measured, _plain(first, "predicted", "optimum")),
                log_x=True,
                log_y=True,
            ),
            Lines(
                title="Relative to σ² rank / n",
                x_label="samples n",
                y_label="ratio",
                series=tuple(
                    series_of([row for row in relative if row["label"] == label], label, "model") for label in labels
                ),
                log_x=True,
            ),
        ),
    )


def convergence_figure(rows: list[dict]) -> Figure:
    """Distance of the gradient iterates from least squares, beside the bound."""
    panels = []
    for label in list(dict.fromkeys(row["instance"] for row in rows))[:2]:
        found = [row for row in rows if row["instance"] == label]
        series = (
            series_of(found, "mean over windows", "model", x="steps", y="error"),
            series_of(found, "worst window", "baseline", x="steps", y="worst"),
            series_of(found, "bound", "ceiling", x="steps", y="bound"),
        )
        panels.append(
            Lines(
                title=label, x_label="gradient steps T", y_label="distance to least squares", series=series, log_y=True
            )
        )
    return Figure(
        name="optimisation",
        title="Gradient descent comes near to least squares geometrically",
        caption=(
            "Euclidean distance of the prediction after T steps of size 1/L from that of least squares; 1000 samples, "
            "memory of 2 observations. Mean: root mean square over windows. The bound falls by 1 - alpha_+ / L each step, "
            "alpha_+ the smallest non-zero eigenvalue of the sample covariance."
        ),
        panels=tuple(panels),
    )


def bound_figure(rows: list[dict]) -> Figure:
    """Measured errors of random instances in ascending order of their bounds."""

    def panel(title: str, value: str, bound: str) -> Lines:
        ordered = sorted((row for row in rows if row[value] > 1e-12), key=lambda row: row[bound])
        places = tuple(range(1, len(ordered) + 1))
        series = (
            Series(name="bound", role="ceiling", x=places, y=tuple(row[bound] for row in ordered)),
            Series(name="measured", role="other", x=places, y=tuple(row[value] for row in ordered)),
        )
        return Lines(title=title, x_label="random process, by its bound", y_label="distance", series=series, log_y=True)

    return Figure(
        name="bound",
        title="The bound, held against random processes",
        caption=(
            "Euclidean distances for random processes with 2 to 5 states, 2 to 4 symbols, memories of 1 to 3, 10 to 10,000 "
            "samples and 0 to 199 steps; in expectation over labels, which is computed exactly. Sample and steps: the worst "
            "window in the range of the sample covariance. Differences below 1e-12 are left out."
        ),
        panels=(
            panel("Total", "total", "bound"),
            panel("From the sample", "worst_generalisation", "generalisation_bound"),
            panel("From the steps", "worst_optimisation", "optimisation_bound"),
        ),
    )


def _plain(rows: list[dict], name: str, role: str) -> Series:
    """A column without an interval, against samples."""
    return series_of([{"x": row["samples"], "value": row[name]} for row in rows], name, role)
