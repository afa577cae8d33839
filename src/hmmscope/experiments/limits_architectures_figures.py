"""Figures of `limits_architectures`."""

from typing import Any

from hmmscope.evidence.figures import Bars, Figure, Lines, Series
from hmmscope.evidence.pooling import pool_rows
from hmmscope.experiments.panels import series_of

TITLES = {
    "cyclic-det": "Cyclic-DET (cycles of 5 states)",
    "cyclic-rnd": "Cyclic-RND",
    "matmul": "MatMul",
    "ran-hmm": "RanHMM (forgets)",
    "word-problem": "Word problem of S3",
    "word-problem-z60": "Word problem of Z60",
    "word-problem-a5": "Word problem of A5",
    "mess3": "Mess3 (forgets)",
}
#: Short, to stand under bars; the number of layers follows.
NAMES = {
    "rnn": "RNN",
    "rnn-tanh": "RNN tanh",
    "lstm": "LSTM",
    "gru": "GRU",
    "transformer": "Transf.",
    "transformer-nope": "Tr. no pos.",
    "transformer-learned": "Tr. learned",
    "linear-attention": "Lin. att.",
    "mamba": "Mamba",
    "mamba2": "Mamba-2",
    "gated-deltanet": "Gated Δ",
}


def errors_figure(rows: list[dict[str, Any]]) -> Figure:
    """Error by position, to twice the training length, a panel a task; of each architecture the deepest."""
    deepest = {row["architecture"]: 0 for row in rows}
    for row in rows:
        deepest[row["architecture"]] = max(deepest[row["architecture"]], row["layers"])
    rows = [row for row in rows if row["layers"] == deepest[row["architecture"]]]
    pooled = pool_rows(rows, ["task", "predictor", "architecture", "layers", "position"])
    reference = pool_rows(rows, ["task", "predictor", "position"])
    trained_on = max(row["position"] for row in rows if not row["beyond"])
    panels = []
    for task in dict.fromkeys(row["task"] for row in pooled):
        models = [row for row in pooled if row["task"] == task and row["predictor"] == "model"]
        known = dict.fromkeys((row["architecture"], row["layers"]) for row in models)
        series = [
            series_of(
                [row for row in models if (row["architecture"], row["layers"]) == which],
                name_of(*which),
                "model",
                x="position",
            )
            for which in known
        ]
        xs = tuple(sorted({row["position"] for row in models}))
        series.append(Series(name="exact answer", x=xs, y=(0.0,) * len(xs), role="optimum"))
        for predictor, name, role in (
            ("constant", "constant answer", "baseline"),
            ("untrained", "before training, mean of all", "control"),
        ):
            found = [row for row in reference if row["task"] == task and row["predictor"] == predictor]
            series.append(series_of(found, name, role, x="position"))
        panels.append(
            Lines(
                title=TITLES.get(task, task),
                x_label=f"position t (trained to {trained_on})",
                y_label="evaluation loss",
                series=tuple(series),
                y_min=0.0,
            )
        )
    return Figure(
        name="error-by-position",
        title="Error by position, to beyond the training length",
        caption=(
            f"Evaluation loss by position, of each architecture with the most layers (their number is named); the models "
            f"were trained on {trained_on} observations, and read on up to twice as many (those with learned positions "
            "cannot be). Means over seeds, bands are 95 % intervals."
        ),
        panels=tuple(panels),
    )


def fit_figure(rows: list[dict[str, Any]]) -> Figure:
    """Fit length by architecture, a panel a task."""
    pooled = pool_rows(rows, ["task", "architecture", "layers"], "fit_0.1")
    length = pool_rows(rows, ["task"], "length")
    panels = []
    for task in dict.fromkeys(row["task"] for row in pooled):
        found = [row for row in pooled if row["task"] == task]
        whole = next(row["length"] for row in length if row["task"] == task)
        bounds = {side: tuple(min(max(row[side], 0.0), whole) for row in found) for side in ("low", "high")}
        panels.append(
            Bars(
                title=TITLES.get(task, task),
                y_label="0.1-fit length",
                categories=tuple(name_of(row["architecture"], row["layers"]) for row in found),
                series=(
                    Series(name="trained model", y=tuple(row["fit_0.1"] for row in found), role="model", **bounds),
                    Series(name="training length", y=(float(whole),) * len(found), role="ceiling"),
                ),
            )
        )
    return Figure(
        name="fit-lengths",
        title="How far each architecture follows the state",
        caption=(
            "Number of positions from the first on with an evaluation loss below 0.1 in the last three evaluations of the "
            "training. Means over seeds with 95 % intervals, cut to what is possible."
        ),
        panels=tuple(panels),
    )


def name_of(architecture: str, layers: int) -> str:
    """As in legends and under bars; recurrent networks have one layer, which is not said."""
    name = NAMES.get(architecture, architecture)
    return name if architecture in ("rnn", "rnn-tanh", "lstm", "gru") else f"{name} {layers}"
