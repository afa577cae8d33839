"""[Limits] Figure 6: training on growing prefixes, and on whole sequences from the start."""

from typing import Any

from hmmscope import registry
from hmmscope.analysis.fit_length import fit_length
from hmmscope.evidence.figures import Figure, Lines, Series
from hmmscope.evidence.pooling import pool_rows
from hmmscope.experiments.experiment import NUM_SEEDS, SEED_INTERVALS, Experiment, Finding, Measured, Tables
from hmmscope.experiments.limits_models import depths, grid, limits_config
from hmmscope.experiments.limits_tables import (
    EPOCHS,
    epochs_of,
    identity,
    layers_of,
    model_name,
    pooled_series,
    present,
    task_title,
    tasks_of,
)
from hmmscope.runs.pipeline import Run

_WITHOUT = ", no curriculum"
_NAMES = {True: "with curriculum", False: "without"}


@registry.experiment("limits-fig6")
class LimitsFig6(Experiment):
    """See the module."""

    title = "What the doubling curriculum is worth"
    summary = (
        "Transformers are trained on prefixes that double in length, from 2^layers on, and the same Transformers on whole "
        "sequences for as many steps. Fit lengths at the end and over training are compared, and what the training costs. "
        + EPOCHS
    )
    num_seeds = NUM_SEEDS
    intervals = SEED_INTERVALS
    groups = {"epochs": ("epochs", "fit-lengths")}

    def choices(self, scale: str) -> dict[str, Any]:
        tasks = ["cyclic-det"] if scale == "smoke" else ["cyclic-det", "matmul"]
        return {"tasks": tasks, "layers": [n for n in depths(scale) if n == 1 or _num_stages(scale, n) > 1]}

    def plan(self, scale: str, **choices: Any) -> dict[str, dict[str, Any]]:
        wanted = (scale, choices["tasks"], choices["layers"])
        without = {f"{label}{_WITHOUT}": data for label, data in grid(*wanted, curriculum=False).items()}
        return grid(*wanted) | without

    def measurements(self, scale: str) -> dict[str, Any]:
        return {"error_rate": 0.1, "definition": "prefix", "last_epochs": 3}

    def measure(self, runs: dict[str, Run], group: str, sizes: dict[str, Any]) -> Measured:
        tables: Measured = {"epochs": [], "fit-lengths": []}
        for label, run in runs.items():
            for name, rows in _rows(label, run, sizes).items():
                tables[name] += rows
        return tables

    def figures(self, tables: Tables) -> list[Figure]:
        return [_against_depth(tables), _against_epoch(tables)]

    def notes(self, tables: Tables) -> list[Finding]:
        return [_cost(tables["fit-lengths"])]


def _num_stages(scale: str, num_layers: int) -> int:
    """Different lengths that a Transformer of so many layers is trained on."""
    return len(set(limits_config(scale, "cyclic-det", num_layers)["training"]["curriculum"]))


def _rows(label: str, run: Run, sizes: dict[str, Any]) -> Measured:
    """Fit lengths after each epoch, and of the last epochs together."""
    found, spec = epochs_of(run), run.config.training
    of_run = identity(label.removesuffix(_WITHOUT)) | {"curriculum": not label.endswith(_WITHOUT)}
    of_run |= {"stages": len(set(spec.curriculum)) or 1, "longest": found.positions[-1]}
    by_epoch = [row["distances"] for row in found.rows]
    rate, definition = sizes["error_rate"], sizes["definition"]

    def fitted(losses: list[list[float | None]], last: int) -> int:
        return fit_length(losses, found.positions, rate, last=last, definition=definition)

    keys = ("epoch", "step", "sequences", "tokens")
    epochs = [
        of_run | {key: row[key] for key in keys} | {"value": fitted(by_epoch[: i + 1], 1)}
        for i, row in enumerate(found.rows)
    ]
    end = {"error_rate": rate, "value": fitted(by_epoch, sizes["last_epochs"]), "tokens": found.rows[-1]["tokens"]}
    return {"epochs": epochs, "fit-lengths": [of_run | end]}


def _against_depth(tables: Tables) -> Figure:
    rows, panels = tables["fit-lengths"], []
    for task in tasks_of(rows):
        own = [row for row in rows if row["task"] == task]
        both = [
            pooled_series([row for row in own if row["curriculum"] is kept], name, _role(kept), x="layers")
            for kept, name in _NAMES.items()
        ]
        ends = (layers_of(own)[0], layers_of(own)[-1])
        longest = own[0]["longest"]
        whole = Series(name="whole length", role="ceiling", x=ends, y=(longest, longest))
        panels.append(
            Lines(
                title=task_title(task), x_label="layers", y_label="fit length", series=present(*both, whole), y_min=0.0
            )
        )
    return Figure(
        name="fit-length-by-depth",
        title="Fit length against depth, with and without curriculum",
        caption=(
            f"Positions, from the first on, with an evaluation loss below {rows[0]['error_rate']:g} in each of the last "
            "epochs. Bands are 95 % intervals over seeds."
        ),
        panels=tuple(panels),
    )


def _role(curriculum: bool) -> str:
    return "model" if curriculum else "control"


def _against_epoch(tables: Tables) -> Figure:
    rows, panels = tables["epochs"], []
    for task in tasks_of(rows):
        for n in layers_of(rows, task):
            own = [row for row in rows if (row["task"], row["layers"]) == (task, n)]
            both = [
                pooled_series([row for row in own if row["curriculum"] is kept], name, _role(kept), x="epoch")
                for kept, name in _NAMES.items()
            ]
            title = f"{task_title(task)}, {model_name(n)}"
            panels.append(Lines(title=title, x_label="epoch", y_label="fit length", series=present(*both), y_min=0.0))
    return Figure(
        name="fit-length-by-epoch",
        title="Fit length while training",
        caption=(
            "Fit length after each epoch, judged by that epoch alone. Both see as many sequences; with the curriculum they "
            "are shorter at first. Bands are 95 % intervals over seeds."
        ),
        panels=tuple(panels),
    )


def _cost(rows: list[dict]) -> Finding:
    """Tokens of the curriculum as a share of those without."""
    tokens = {key: row["tokens"] for row in pool_rows(rows, ("task", "layers", "curriculum", "stages"), "tokens")
              for key in [(row["task"], row["layers"], row["curriculum"], row["stages"])]}  # fmt: skip
    said = []
    for (task, n, with_it, stages), count in tokens.items():
        whole = tokens.get((task, n, False, 1))
        if with_it and whole:
            said.append(f"{task_title(task)}, {model_name(n)}: {count / whole:.3f} with {stages} lengths")
    text = (
        f"Tokens with the curriculum over tokens without, at equal steps: {'; '.join(said)}. The paper says proportional to "
        "one over the number of stages."
    )
    return Finding(title="What the curriculum saves", text=text, verdict="found")
