"""Figures of `limits_fig4_cot`."""

from typing import Any

from hmmscope.evidence.figures import Figure, Lines, Series
from hmmscope.evidence.pooling import pool_rows
from hmmscope.experiments.panels import series_of


def training_figure(rows: list[dict[str, Any]]) -> Figure:
    """Error at the chosen position over training, a panel a task."""
    pooled = pool_rows(rows, ["task", "block_length", "epoch"])
    panels = tuple(
        Lines(
            title=task,
            x_label="epoch",
            y_label=f"evaluation loss at position {rows[0]['chosen_position']}",
            series=tuple(
                series_of(_of(pooled, task, block), _name(block), _role(block), x="epoch")
                for block in _blocks(pooled, task)
            ),
            y_min=0.0,
        )
        for task in _tasks(pooled)
    )
    return Figure(
        name="error-over-training",
        title="The last position over training",
        caption=(
            "Evaluation loss at one position against the epoch (a twentieth of the training at reduced scales), by block "
            "length b; the exact belief is at 0. Means over seeds, bands are 95 % intervals."
        ),
        panels=panels,
    )


def blocks_figure(rows: list[dict[str, Any]]) -> Figure:
    """Error by position at the end, a panel a task."""
    pooled = pool_rows([row for row in rows if row["predictor"] == "trained"], ["task", "block_length", "position"])
    control = pool_rows(
        [row for row in rows if row["predictor"] == "untrained" and row["block_length"] == 0], ["task", "position"]
    )
    panels = []
    for task in _tasks(pooled):
        series = [
            series_of(_of(pooled, task, block), _name(block), _role(block), x="position")
            for block in _blocks(pooled, task)
        ]
        untrained = [row for row in control if row["task"] == task]
        if untrained:
            series.append(series_of(untrained, "before training", "control", x="position"))
        exact = series[0].x
        series.append(Series(name="exact answer", x=exact, y=(0.0,) * len(exact), role="optimum"))
        panels.append(
            Lines(title=task, x_label="position t", y_label="evaluation loss", series=tuple(series), y_min=0.0)
        )
    return Figure(
        name="error-by-position",
        title="How far each block length reaches",
        caption=(
            "Evaluation loss by position after training, by block length b, and of the model before training. The model "
            "hears its own answers. Means over seeds, bands are 95 % intervals."
        ),
        panels=tuple(panels),
    )


def final_figure(rows: list[dict[str, Any]]) -> Figure:
    """Fit length and final error against block length."""

    def panel(column: str, label: str, role_of_plain: str) -> Lines:
        pooled = pool_rows(rows, ["task", "block_length"], column)
        series = []
        for task in _tasks(pooled):
            found = [row for row in pooled if row["task"] == task]
            told = [row for row in found if row["block_length"]]
            if told:
                series.append(series_of(told, task, "other", x="block_length", y=column))
            plain = [row for row in found if row["block_length"] == 0]
            if plain and told:
                xs = (min(r["block_length"] for r in told), max(r["block_length"] for r in told))
                series.append(
                    Series(name=f"{task}, without", x=xs, y=(plain[0][column],) * len(xs), role=role_of_plain)  # type: ignore[arg-type]
                )
        return Lines(title="", x_label="block length b", y_label=label, series=tuple(series), log_x=True)

    position = rows[0]["chosen_position"]
    return Figure(
        name="block-length",
        title="How short a block has to be",
        caption=(
            f"Fit length at error rate 0.05 and evaluation loss at position {position} against the block length, with the "
            "values without chain-of-thought as lines. Means over seeds, bands are 95 % intervals."
        ),
        panels=(
            panel("fit_0.05", "0.05-fit length", "baseline"),
            panel("error", f"evaluation loss at position {position}", "baseline"),
        ),
    )


def _tasks(rows: list[dict[str, Any]]) -> list[str]:
    return list(dict.fromkeys(row["task"] for row in rows))


def _blocks(rows: list[dict[str, Any]], task: str) -> list[int]:
    return sorted({row["block_length"] for row in rows if row["task"] == task})


def _of(rows: list[dict[str, Any]], task: str, block: int) -> list[dict[str, Any]]:
    return [row for row in rows if row["task"] == task and row["block_length"] == block]


def _name(block: int) -> str:
    return f"b = {block}" if block else "without"


def _role(block: int) -> str:
    return "other" if block else "baseline"
