"""Figures of `multitask-lemma1`, from its tables."""

from collections.abc import Callable, Mapping

from hmmscope.evidence.figures import Figure, Lines, Series
from hmmscope.experiments.experiment import Tables
from hmmscope.experiments.panels import series_of

#: Curves in a panel, so that the legend stays short.
MAX_CURVES = 4


def memory_figure(rows: list[dict], shown: Mapping[str, str]) -> Figure:
    """Mean error against memory length; `shown` gives the instance to draw of each family."""
    panels = []
    for family, instance in shown.items():
        found = [row for row in rows if (row["family"], row["instance"]) == (family, instance)]
        gammas = spread({row["observability"] for row in found})
        series = [_curve([row for row in found if row["observability"] == gamma], gamma) for gamma in gammas]
        first = [row for row in found if row["observability"] == gammas[0]]
        series.append(series_of(first, "bound, every history", "ceiling", x="memory_length", y="certificate"))
        panels.append(
            Lines(
                title=f"{family} ({instance})",
                x_label="memory length (observations)",
                y_label="mean total variation",
                series=tuple(series),
                log_y=True,
            )
        )
    return Figure(
        name="memory-error",
        title="What a short memory loses",
        caption=(
            "Total variation between the prediction from the last observations and the exact one, averaged over all "
            "histories by enumeration, for channels of observability γ. The bound (contraction in Hilbert's metric) holds "
            "for every single history; it does not depend on γ."
        ),
        panels=tuple(panels),
    )


def rate_figure(rows: list[dict], families: tuple[str, ...]) -> Figure:
    """Rates against observability, as means over the instances of a family."""

    def curves(quantity: str) -> list[Series]:
        found = [row for row in rows if row["quantity"] == quantity and row["low"] > 0]
        by_family = [[row for row in found if row["family"] == family] for family in families]
        return [series_of(one, one[0]["family"], "model", x="observability") for one in by_family if len(one) > 1]

    gammas = tuple(sorted({row["observability"] for row in rows}))
    guides = (
        Series(name="γ²", role="optimum", x=gammas, y=tuple(gamma**2 for gamma in gammas)),
        Series(name="γ⁴ (the guarantee)", role="ceiling", x=gammas, y=tuple(gamma**4 for gamma in gammas)),
    )
    return Figure(
        name="decay-rate",
        title="How the rate of forgetting grows with observability",
        caption=(
            "Left: rate at which the memory error falls. Right: the same less the rate at which the hidden chain forgets by "
            "itself, -ln of its second eigenvalue, for families where this is positive. The guarantee of the lemma grows as "
            "γ⁴, up to a constant that is not stated. Means over processes; bands are 95 % intervals over them."
        ),
        panels=(
            Lines(
                title="The rate",
                x_label="observability γ",
                y_label="nats per observation",
                series=tuple(curves("rate")),
                y_min=0.0,
            ),
            Lines(
                title="Above the mixing of the chain",
                x_label="observability γ",
                y_label="nats per observation",
                series=(*curves("excess"), *guides),
                log_x=True,
                log_y=True,
            ),
        ),
    )


def held_figure(tables: Tables, exact: Callable[[int], float]) -> Figure:
    """The held bit: error against memory length, and the memory that is needed; `exact` is the error at γ = 0."""
    rows = tables["held-bit"]
    series = []
    for gamma in spread({row["observability"] for row in rows}):
        found = [row for row in rows if row["observability"] == gamma and row["low"] > 1e-8]
        series.append(_curve(found, gamma))
    lengths = tuple(sorted({row["memory_length"] for row in rows}))
    series.append(Series(name="γ = 0, exact", role="optimum", x=lengths, y=tuple(map(exact, lengths))))
    panels = [
        Lines(
            title="A bit that is shown now and then",
            x_label="memory length (observations)",
            y_label="mean total variation",
            series=tuple(series),
            log_y=True,
            y_min=1e-7,
        )
    ]
    if tables["held-bit-memory"]:
        needed = series_of(tables["held-bit-memory"], "memory needed", "model", x="observability", y="value")
        panels.append(
            Lines(
                title="Memory for a tenth of the error",
                x_label="observability γ",
                y_label="memory length (observations)",
                series=(needed,),
                y_min=0.0,
            )
        )
    return Figure(
        name="near-singular",
        title="Where observations hardly tell states apart, memory has to be long",
        caption=(
            "A bit is shown by a clear symbol every twenty observations on average, and in between through a channel of "
            "observability γ. Right: memory that brings the error to a tenth of that of one observation. Sampled "
            "histories; bands are 95 % intervals over independent sets of them."
        ),
        panels=tuple(panels),
    )


def _curve(rows: list[dict], gamma: float) -> Series:
    return series_of(rows, f"γ = {gamma:g}", "model", x="memory_length", y="total_variation")


def spread(values: set[float]) -> list[float]:
    """At most `MAX_CURVES` of the values, ascending, with the first and the last."""
    ordered = sorted(values)
    if len(ordered) <= MAX_CURVES:
        return ordered
    return [ordered[round(k * (len(ordered) - 1) / (MAX_CURVES - 1))] for k in range(MAX_CURVES)]
