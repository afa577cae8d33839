"""Figures of `limits_fig3`."""

from hmmscope.evidence.figures import Explorer, ExplorerCurve, Figure, Lines, Series
from hmmscope.experiments.experiment import Tables
from hmmscope.experiments.limits_tables import layers_of, model_name, pooled_series, present, task_title, tasks_of


def figures(tables: Tables) -> list[Figure]:
    """Fit lengths against depth, the losses behind them, and every curve to choose from."""
    return [_fit_lengths(tables["fit-lengths"]), _positions(tables), _explorer(tables)]


def _fit_lengths(rows: list[dict]) -> Figure:
    panels = []
    for task in tasks_of(rows):
        own = [row for row in rows if row["task"] == task]
        depths, longest = [n for n in layers_of(own) if n > 0], own[0]["longest"]
        ends = (float(min(depths, default=0)), float(max(depths, default=1)))
        series = []
        for rate in sorted({row["error_rate"] for row in own}):
            chosen = [row for row in own if row["error_rate"] == rate]
            of_model = [row for row in chosen if (row["predictor"], row["by"]) == ("model", "epochs")]
            deep = [row for row in of_model if row["layers"] > 0]
            series.append(pooled_series(deep, f"Transformer, error rate {rate:g}", "model", x="layers"))
            recurrent = [row for row in of_model if row["layers"] == 0]
            series.append(_flat(recurrent, f"RNN, error rate {rate:g}", "other", ends))
        largest = max(row["error_rate"] for row in own)
        trivial = [row for row in own if row["predictor"] == "constant" and row["error_rate"] == largest]
        series.append(_flat(trivial, f"always the same answer, error rate {largest:g}", "baseline", ends))
        series.append(Series(name="whole length", role="ceiling", x=ends, y=(longest, longest)))
        if depths:
            powers = tuple(float(min(2**n, longest)) for n in depths)
            series.append(Series(name="2^layers", role="control", x=tuple(depths), y=powers))
        panels.append(
            Lines(
                title=task_title(task),
                x_label="layers",
                y_label="fit length",
                series=present(*series),
                y_min=0.0,
                y_max=1.08 * longest,
            )
        )
    definition = rows[0]["definition"]
    rule = "all positions up to it are fitted" if definition == "prefix" else "it is fitted, whatever is before it"
    return Figure(
        name="fit-length",
        title="Fit length against depth",
        caption=(
            f"The largest position such that {rule}: evaluation loss below the error rate in each of the last epochs. The "
            "constant predictor always gives the mean exact answer. 2^layers is cut at the whole length. Bands are 95 % "
            "intervals over seeds."
        ),
        panels=tuple(panels),
    )


def _flat(rows: list[dict], name: str, role: str, ends: tuple[float, float]) -> Series | None:
    return pooled_series([row | {"at": at} for row in rows for at in ends], name, role, x="at")


def _baselines(tables: Tables, task: str) -> list[Series | None]:
    """What knowing nothing, and exact filters with a window, lose by position."""
    constant = [row for row in tables["positions"] if (row["task"], row["predictor"]) == (task, "constant")]
    windows = [row for row in tables["windows"] if row["task"] == task]
    return [
        pooled_series(constant, "always the same answer", "baseline", x="position"),
        *[
            pooled_series([row for row in windows if row["window"] == w], _window_name(w), "baseline", x="position")
            for w in sorted({row["window"] for row in windows})
        ],
    ]


def _window_name(window: int) -> str:
    return "stationary law" if window == 0 else f"exact, last {window} observation{'s' * (window > 1)}"


def _positions(tables: Tables) -> Figure:
    rows = [row for row in tables["positions"] if row["predictor"] == "model"]
    panels = []
    for task in tasks_of(rows):
        own = [row for row in rows if row["task"] == task]
        models = [
            pooled_series([row for row in own if row["layers"] == n], model_name(n), "model", x="position")
            for n in layers_of(own)
        ]
        panels.append(
            Lines(
                title=task_title(task),
                x_label="position",
                y_label="evaluation loss",
                series=present(*models, *_baselines(tables, task)),
                y_min=0.0,
            )
        )
    fewest = min(row["samples"] for row in rows)
    return Figure(
        name="loss-by-position",
        title="Evaluation loss by position after training",
        caption=(
            f"On fresh samples, at least {fewest:,} that count at each position. Baselines know nothing, or keep a window "
            "of observations and are exact within it. Bands are 95 % intervals over seeds."
        ),
        panels=tuple(panels),
    )


def _explorer(tables: Tables) -> Figure:
    """Losses by position of every task and model."""
    rows = [row for row in tables["positions"] if row["predictor"] == "model"]
    curves = []
    for task in tasks_of(rows):
        for n in layers_of(rows, task):
            own = [row for row in rows if (row["task"], row["layers"]) == (task, n)]
            curve = pooled_series(own, model_name(n), "model", x="position")
            assert curve is not None
            curves.append(_curve(curve, (task_title(task), model_name(n))))
        curves += [_curve(one, (task_title(task), ""), one.name) for one in present(*_baselines(tables, task))]
    panel = Explorer(
        title="",
        x_label="position",
        y_label="evaluation loss",
        choices=("task", "model"),
        curves=tuple(curves),
        y_min=0.0,
    )
    return Figure(
        name="every-model",
        title="Every task and model",
        caption="As above: choose the task and the model. Baselines stay. Bands are 95 % intervals over seeds.",
        panels=(panel,),
    )


def _curve(series: Series, values: tuple[str, str], name: str = "") -> ExplorerCurve:
    return ExplorerCurve(
        values=values, x=series.x, y=series.y, low=series.low, high=series.high, role=series.role, name=name
    )
