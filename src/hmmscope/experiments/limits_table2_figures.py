"""Figures of `limits_table2`."""

from typing import Any

from hmmscope.evidence.figures import Figure, Lines, Series
from hmmscope.experiments.panels import series_of


def cost_figure(rows: list[dict[str, Any]]) -> Figure:
    """Operations of a training pass against block length, by task."""
    return Figure(
        name="operations",
        title="Operations of a training pass",
        caption=(
            "Floating-point operations of forward and backward pass, counted, as a multiple of those without "
            "chain-of-thought (the line at 1). The naive algorithm needs ceil(T / b) passes; two phases give the same "
            "gradients."
        ),
        panels=tuple(_panel(rows, task, "flops_ratio", "operations, without = 1") for task in _tasks(rows)),
    )


def times_figure(rows: list[dict[str, Any]], printed: dict[str, dict[int, int]]) -> Figure:
    """Times of a training pass against block length, by task, with those of the paper."""
    panels = []
    for task, numbers in zip(_tasks(rows), _printed_of(rows, printed), strict=True):
        panel = _panel(rows, task, "to_plain", "time, without = 1")
        if numbers:
            blocks = sorted(b for b in numbers if b)
            known = Series(
                name="naive, as printed in [Limits]",
                x=tuple(blocks),
                y=tuple(numbers[b] / numbers[0] for b in blocks),
                role="baseline",
            )
            panel = Lines(**(vars(panel) | {"series": (*panel.series, known)}))
        panels.append(panel)
    return Figure(
        name="times",
        title="Time of a training pass",
        caption=(
            "Time of forward and backward pass as a multiple of that without chain-of-thought, median over interleaved "
            "rounds with 95 % intervals over rounds, beside ceil(T / b) and the seconds an epoch of Table 2 (four GPUs)."
        ),
        panels=tuple(panels),
    )


def _tasks(rows: list[dict[str, Any]]) -> list[str]:
    return list(dict.fromkeys(row["task"] for row in rows))


def _printed_of(rows: list[dict[str, Any]], printed: dict[str, dict[int, int]]) -> list[dict[int, int]]:
    """The paper's numbers of each task; none where the length is another."""
    keys = {"Cyclic-DET": "cyclic-det", "MatMul": "matmul"}
    same = all(row["length"] == 60 for row in rows)
    return [printed.get(keys.get(task, ""), {}) if same else {} for task in _tasks(rows)]


def _panel(rows: list[dict[str, Any]], task: str, column: str, label: str) -> Lines:
    kept = [row for row in rows if row["task"] == task and row["block_length"]]
    length = kept[0]["length"]
    blocks = sorted({row["block_length"] for row in kept})
    series = [
        series_of([_renamed(row, column) for row in kept if row["algorithm"] == name], name, role, x="block_length")
        for name, role in (("naive", "other"), ("two-phase", "model"))
    ]
    passes = tuple(float(-(-length // b)) for b in blocks)
    series.append(Series(name="ceil(T / b)", x=tuple(blocks), y=passes, role="baseline"))
    series.append(Series(name="without", x=tuple(blocks), y=(1.0,) * len(blocks), role="control"))
    return Lines(title=task, x_label="block length b", y_label=label, series=tuple(series), log_x=True, log_y=True)


def _renamed(row: dict[str, Any], column: str) -> dict[str, Any]:
    found = {"block_length": row["block_length"], "value": row[column]}
    bounds = {side: row[f"{column}_{side}"] for side in ("low", "high") if f"{column}_{side}" in row}
    return found | bounds
