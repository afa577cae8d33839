"""Figures of `multitask_fig1`."""

from hmmscope.evidence.figures import Figure, Lines, Series
from hmmscope.evidence.pooling import pool_rows
from hmmscope.experiments.experiment import Tables
from hmmscope.experiments.panels import series_of

#: How each predictor is called and drawn; those of Theorem 1 follow.
_PREDICTORS = {
    "optimum": ("Bayes mixture over the pool (optimum)", "optimum"),
    "known-component": ("Bayes filter, HMM known", "ceiling"),
    "model": ("model", "model"),
    "retrieval": ("Bayes mixture over the pool, smoothed", "other"),
    "order-0": ("most frequent token", "baseline"),
    "order-1": ("in-context n-gram, order 1", "baseline"),
    "order-2": ("in-context n-gram, order 2", "baseline"),
    "order-3": ("in-context n-gram, order 3", "baseline"),
}
#: Roles whose curves have bands; ten of them would hide each other.
_BANDS = ("model", "optimum", "ceiling")
_POOLS = {"pool": "HMMs of the pool", "unseen": "HMMs never seen"}
_AXES = {"demonstrations": "demonstrations before the sequence", "positions": "observations of the sequence seen"}
_BY = {"demonstrations": "demonstrations", "positions": "position"}
_THEOREM = "theorem1-"


def figures(tables: Tables) -> list[Figure]:
    return [_accuracy(tables), _loss(tables), _excess(tables)]


def _accuracy(tables: Tables) -> Figure:
    return Figure(
        name="accuracy",
        title="Accuracy in context",
        caption=(
            f"Accuracy of the next observation on fresh prompts. Left: against the number of demonstrations, at the later "
            f"positions of a sequence ({_positions(tables)}). Right: along the test sequence, after all demonstrations. "
            "Top: HMMs of the pool, where the Bayes mixture over the pool is the optimum. Bottom: HMMs of the same prior "
            "that the model never saw; the mixture over the pool, smoothed as suits it best, is what retrieval gives there. "
            "The ceiling is told the HMM. N-grams and the network of Theorem 1 know the prompt only; the latter speaks where"
            f" its window lies inside the sequence. {_intervals(tables)}"
        ),
        panels=_panels(tables, "accuracy", "accuracy"),
    )


def _loss(tables: Tables) -> Figure:
    return Figure(
        name="loss",
        title="Loss in context",
        caption=(
            "Negative log-likelihood of the next observation, as in the figure on accuracy. The network of Theorem 1 has "
            f"none: its vector, clipped to a law, gives zeros. {_intervals(tables)}"
        ),
        panels=_panels(tables, "loss", "nats per observation"),
    )


def _panels(tables: Tables, metric: str, y_label: str) -> tuple[Lines, ...]:
    """Both pools, along both axes."""
    return tuple(
        Lines(
            title=f"{_POOLS[pool]}, by {_BY[axis]}",
            x_label=_AXES[axis],
            y_label=y_label,
            series=_curves(tables[axis], pool, metric),
        )
        for pool in _POOLS
        for axis in _AXES
    )


def _excess(tables: Tables) -> Figure:
    return Figure(
        name="excess",
        title="Distance to the optimum",
        caption=(
            "KL divergence from the Bayes mixture over the pool, which is zero for the optimum itself; HMMs of the pool, "
            f"positions and conditions as in the figure on accuracy. {_intervals(tables)}"
        ),
        panels=tuple(
            Lines(
                title=f"By {_BY[axis]}",
                x_label=_AXES[axis],
                y_label="nats above the optimum",
                series=_with_zero(_curves(tables[axis], "pool", "excess")),
                y_min=0.0,
            )
            for axis in _AXES
        ),
    )


def _curves(rows: list[dict], pool: str, metric: str) -> tuple[Series, ...]:
    """One curve a predictor, means over seeds."""
    chosen = [row for row in rows if row["pool"] == pool and row["metric"] == metric]
    memories = dict.fromkeys(row["predictor"] for row in rows if row["predictor"].startswith(_THEOREM))
    looks = _PREDICTORS | {
        name: (f"network of Theorem 1, memory {name.removeprefix(_THEOREM)}", "other") for name in memories
    }
    series = []
    for predictor, (label, role) in looks.items():
        pooled = pool_rows([row for row in chosen if row["predictor"] == predictor], ["x"])
        if pooled:
            shown = pooled if role in _BANDS else [{"x": row["x"], "value": row["value"]} for row in pooled]
            series.append(series_of(shown, label, role))
    return tuple(series)


def _with_zero(series: tuple[Series, ...]) -> tuple[Series, ...]:
    name, role = _PREDICTORS["optimum"]
    return (Series(name=name, role=role, x=series[0].x, y=(0.0,) * len(series[0].x)), *series)  # type: ignore[arg-type]


def _positions(tables: Tables) -> str:
    """The positions that the left panels average over, in words."""
    last = max(row["x"] for row in tables["positions"])
    return f"{tables['effects'][0]['first_position']} to {last} observations of it seen"


def _intervals(tables: Tables) -> str:
    seeds = len({row["seed"] for row in tables["positions"]})
    over = f"{seeds} seeds" if seeds > 1 else "prompts"
    return f"Bands of model, optimum and ceiling are 95 % intervals over {over}; the tables have those of all curves."
