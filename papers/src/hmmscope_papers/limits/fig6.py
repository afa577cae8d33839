"""[Limits] Figure 6: training on growing prefixes, and on whole sequences from the start."""

import math
from collections.abc import Callable
from itertools import combinations
from typing import Any

from hmmscope import Run, fit_length, lab, registry
from hmmscope.analysis import crossing_length
from hmmscope.ties import smallest
from hmmscope.training.recipes import doubling_curriculum
from hmmscope_papers.limits.tables import (
    EPOCHS,
    each,
    each_task,
    epochs_of,
    layers_of,
    mean_change,
    model_name,
    never_fitting,
    over_seeds,
    task_title,
    told,
)
from hmmscope_papers.limits.trainings import depths, grid, identity, label_of, limits_config

_WITHOUT = ", no curriculum"
_WITH = ", curriculum"
_SIZES = {"error_rate": 0.1, "definition": "prefix", "last_epochs": 3}


@registry.experiment("limits-fig6")
class LimitsFig6(lab.Experiment):
    """Transformers and the RNN, trained with and without the curriculum."""

    title = "Effect of a curriculum of prefixes that double in length"
    in_paper = (
        "[Limits] Fig. 6",
        "The convergence of 0.1-fit length for curriculum training is consistently faster than vanilla training.",
    )
    summary = (
        "Transformers are trained with a curriculum of prefixes that double in length, from length 2^layers on, and "
        "without curriculum, on whole sequences for the same number of steps. The experiment compares fit lengths "
        "during and after training, and training costs. " + EPOCHS
    )
    num_seeds = lab.Experiment.NUM_SEEDS
    run_columns = ("task", "layers", "curriculum")
    sizes = dict.fromkeys(lab.Experiment.NUM_SEEDS, _SIZES)
    measure_per_run = True
    groups = {"epochs": ("epochs", "fit-lengths")}

    def choices(self, scale: str) -> dict[str, Any]:
        tasks = ["cyclic-det"] if scale == "smoke" else ["cyclic-det", "matmul"]
        return {"tasks": tasks, "layers": [n for n in depths(scale) if n == 1 or _num_stages(scale, n) > 1]}

    def plan(self, scale: str, **choices: Any) -> dict[str, dict[str, Any]]:
        wanted = (scale, choices["tasks"], choices["layers"])
        without = {f"{label}{_WITHOUT}": data for label, data in grid(*wanted, curriculum=False).items()}
        lessons = grid(*wanted, curriculum=True)
        recurrent = grid(scale, choices["tasks"], [0])
        taught = {f"{label}{_WITH}": _taught(data) for label, data in recurrent.items()}
        return lessons | without | recurrent | taught

    def measure(self, runs: dict[str, Run], group: str, sizes: dict[str, Any]) -> lab.MeasuredTables:
        tables: lab.MeasuredTables = {"epochs": [], "fit-lengths": []}
        for run in runs.values():
            for name, rows in _rows(run, sizes).items():
                tables[name] += rows
        return tables

    def figures(self, tables: lab.Tables) -> list[lab.Figure]:
        return [_against_depth(tables), _against_epoch(tables)]

    def without_training(self, tables: lab.Tables) -> lab.Tables:
        return {**tables, **{name: never_fitting(tables[name]) for name in ("epochs", "fit-lengths")}}


def _num_stages(scale: str, num_layers: int) -> int:
    return len(set(limits_config(scale, "cyclic-det", num_layers, curriculum=True)["training"]["curriculum"]))


def _taught(data: dict[str, Any]) -> dict[str, Any]:
    length = data["layout"]["length"]
    lessons = doubling_curriculum(1, length, deepest=math.ceil(math.log2(length)))
    return data | {"training": data["training"] | {"curriculum": list(lessons)}}


def _rows(run: Run, sizes: dict[str, Any]) -> lab.MeasuredTables:
    found, spec = epochs_of(run), run.config.training
    of_run = identity(run) | {"curriculum": bool(spec.curriculum)}
    of_run |= {"stages": len(set(spec.curriculum)) or 1, "longest": found.positions[-1]}
    rate, definition = sizes["error_rate"], sizes["definition"]

    def fitted(losses: list[list[float | None]], last: int) -> dict[str, float]:
        whole = fit_length(losses, found.positions, rate, last=last, definition=definition)
        return {"value": whole, "length": crossing_length(losses, found.positions, rate, last=last)}

    keys = ("epoch", "step", "sequences", "tokens")
    epochs = [of_run | {key: row[key] for key in keys} | fitted([row["distances"]], 1) for row in found.rows]
    end = {"error_rate": rate, **fitted(found.distances, sizes["last_epochs"]), "tokens": found.rows[-1]["tokens"]}
    return {"epochs": epochs, "fit-lengths": [of_run | end]}


# ---------------------------------------------------------------------------------------------------------------------
# Figures


def _deep(rows: lab.Rows) -> lab.Rows:
    return lab.Rows(row for row in rows if row["layers"] > 0)


def _against_depth(tables: lab.Tables) -> lab.Figure:
    rows, panels = _deep(tables["fit-lengths"]), []
    for task, own in rows.by("task").items():
        ends = (layers_of(own)[0], layers_of(own)[-1])
        both = (
            lab.curve(own.where(curriculum=True), "layers", "with curriculum", "model"),
            lab.curve(own.where(curriculum=False), "layers", "without curriculum", "control"),
            lab.level(own[0]["longest"], ends, "sequence length", "ceiling"),
        )
        panels.append(lab.lines(task_title(task), *both, x_label="layers", y_label="fit length", y_min=0.0))
    return lab.Figure(
        name="fit-length-by-depth",
        title="Fit length by number of layers, with and without curriculum",
        caption=(
            "The fit length is the length of the longest prefix on which the evaluation loss is below "
            f"{rows[0]['error_rate']:g} (at each of the last evaluations). Bands are 95 % intervals over seeds."
        ),
        panels=tuple(panels),
    )


def _against_epoch(tables: lab.Tables) -> lab.Figure:
    panels = []
    for task, of_task in _deep(tables["epochs"]).by("task").items():
        for n in layers_of(of_task):
            own = of_task.where(layers=n)
            both = (
                lab.curve(own.where(curriculum=True), "epoch", "with curriculum", "model"),
                lab.curve(own.where(curriculum=False), "epoch", "without curriculum", "control"),
            )
            title = f"{task_title(task)}, {model_name(n)}"
            panels.append(lab.lines(title, *both, x_label="epoch", y_label="fit length", y_min=0.0))
    return lab.Figure(
        name="fit-length-by-epoch",
        title="Fit length during training, with and without curriculum",
        caption=(
            "Curves show the fit length after each epoch. Both trainings use equally many sequences, but with the "
            "curriculum the first sequences are shorter. Bands are 95 % intervals over seeds."
        ),
        panels=tuple(panels),
    )


# ---------------------------------------------------------------------------------------------------------------------
# Claims

#: Smallest lengthening of the fit that matters, in doublings.
DOUBLINGS = 0.1
#: Noise of log2 of a ratio of times; twice this has to fit between the planned ratio and the margin.
TIMES = 0.5
#: Smallest difference of fit lengths that matters, as a fraction of the sequence.
LONGER = 0.03


def share(row: dict[str, Any]) -> float:
    return float(row.get("length", row["value"]) / row["longest"])


def doublings(row: dict[str, Any]) -> float:
    return math.log2(max(row.get("length", row["value"]), 1.0))


def lead(rows: lab.Rows, number: Callable[[dict[str, Any]], float] = share) -> float | None:
    """Return the mean over depths of `number` with the curriculum minus `number` without it."""
    differences = []
    for n in sorted(rows.where(curriculum=True).values("layers")):
        both = [[number(row) for row in rows.where(layers=n, curriculum=kept)] for kept in (True, False)]
        if all(both) and rows.where(layers=n, curriculum=True)[0]["stages"] > 1:
            differences.append(math.fsum(both[0]) / len(both[0]) - math.fsum(both[1]) / len(both[1]))
    return math.fsum(differences) / len(differences) if differences else None


def _doublings(tables: lab.Tables, table: str, task: str) -> lab.Effect | None:
    return over_seeds(_deep(tables[table].where(task=task)), lambda own: lead(own, doublings), "doublings")


def _resolution(rows: lab.Rows) -> int:
    return 0 if all("length" in row for row in rows) else 1


def _said(tables: lab.Tables, task: str) -> str:
    said = []
    for n, own in _deep(tables["fit-lengths"]).where(task=task).by("layers").items():
        both = [row["value"] for kept in (True, False) for row in own.where(curriculum=kept).pool("layers")]
        said += [f"{both[0]:.3g} and {both[1]:.3g} ({model_name(n)})"] if len(both) == 2 else []
    return f"Mean fit length in whole positions, with and without curriculum: {', '.join(said) or 'none'}."


def _gates(tables: lab.Tables, task: str, deep: bool = True, numbers: lab.Numbers = None) -> tuple[lab.Gate, lab.Gate]:
    rows = tables["fit-lengths"].where(task=task)
    ends = _deep(rows) if deep else rows.where(layers=0)
    lengths = ends.with_columns(length=lambda row: share(row) * row["longest"])
    fits = {
        (n, kept): effect
        for kept in (True, False)
        for n, effect in each(lengths.where(curriculum=kept), "layers", _mean_length, resolution=1).items()
    }
    least = smallest(fits.values(), lambda one: one.value) if fits else None
    seen = {
        "with" if kept else "without": {"sequences": float(max(own.values("sequences")))}
        for kept, own in _deep(tables["epochs"].where(task=task)).by("curriculum").items()
    }
    gate = lab.Gate.learned(least, lab.parameter(numbers, "learned"), "a constant answer, which fits no position,")
    return gate, lab.Gate.matched(seen)


def _drift(tables: lab.Tables, task: str, measure: Callable[[lab.Rows], float | None]) -> float | None:
    half, end = (rows.per_seed(measure) for rows in _at_half_and_end(tables, task))
    return mean_change(half, end)


def _at_half_and_end(tables: lab.Tables, task: str) -> tuple[lab.Rows, lab.Rows]:
    rows = tables["epochs"].where(task=task)
    last = max(rows.values("epoch"), default=0)
    return rows.where(epoch=max(1, last // 2)), rows.where(epoch=last)


def _mean_length(own: lab.Rows) -> float:
    return math.fsum(row["length"] for row in own) / len(own)


@lab.claim("limits-curriculum-det")
def curriculum_det(tables: lab.Tables, numbers: lab.RuleParameters) -> lab.Measurement:
    rows = _deep(tables["fit-lengths"].where(task="cyclic-det"))
    effect = over_seeds(
        rows, lead, "of the sequence length", resolution=_resolution(rows) / rows[0]["longest"] if rows else 0
    )
    moved = _drift(tables, "cyclic-det", lambda own: lead(_deep(own)))
    return lab.Measurement(
        effect,
        _said(tables, "cyclic-det"),
        gates=_gates(tables, "cyclic-det", numbers=numbers),
        last_doubling_change=moved,
    )


@lab.claim("limits-curriculum-matmul")
def curriculum_matmul(tables: lab.Tables, numbers: lab.RuleParameters) -> lab.Measurement:
    effect = _doublings(tables, "fit-lengths", "matmul")
    moved = _drift(tables, "matmul", lambda own: lead(_deep(own), doublings))
    return lab.Measurement(
        effect, _said(tables, "matmul"), gates=_gates(tables, "matmul", numbers=numbers), last_doubling_change=moved
    )


@lab.claim("limits-curriculum-faster")
def curriculum_faster(tables: lab.Tables, numbers: lab.RuleParameters) -> lab.Measurement:
    found = {task_title(task): _doublings(tables, "epochs", task) for task in ("cyclic-det", "matmul")}
    shown = told({name: one for name, one in found.items() if one})
    text = f"Doublings of the fit length gained by the curriculum, mean over epochs and depths: {shown}."
    return lab.Measurement(found["MatMul"], text, gates=_gates(tables, "matmul", numbers=numbers))


@lab.claim("limits-curriculum-shortens")
def curriculum_shortens(tables: lab.Tables, numbers: lab.RuleParameters) -> lab.Measurement:
    runs, ends = tables.get("runs", lab.Rows()), _deep(tables["fit-lengths"]).where(curriculum=True)
    effects, tokens = {}, []
    for (task, n), own in ends.by("task", "layers").items():
        stages, label = own[0]["stages"], label_of(task, n)
        if stages < 2:
            continue
        pairs = [
            [runs.where(label=name, seed=row.get("seed")) for name in (label, f"{label}{_WITHOUT}")] for row in own
        ]
        name = f"{task_title(task)}, {model_name(n)}"
        ratios = [_ratio(pair, "processor_seconds") for pair in pairs]
        if any(ratios):
            values = [None if ratio is None else math.log2(ratio * stages) for ratio in ratios]
            effects[name] = lab.Effect.pooled(values, "log2(stages * training time with / without curriculum)")
        read = [ratio for ratio in (_ratio(pair, "tokens") for pair in pairs) if ratio is not None]
        tokens += [f"{name} {math.fsum(read) / len(read):.3f} ({stages} stages)"] if read else []
    text = f"Training tokens with curriculum divided by tokens without: {'; '.join(tokens) or 'not recorded'}."
    text += f" log2(stages * training time with / without curriculum): {told(effects)}." if effects else ""
    stages = max((row["stages"] for row in ends), default=1)
    planned = math.log2(2 - 2.0 ** (1 - stages))  # stages of equally many steps, each twice as long as the one before
    gate = lab.Gate.headroom(
        1 - planned,
        lab.parameter(numbers, "times", TIMES) / 2,
        "log2(stages * planned training tokens with / without curriculum)",
    )
    return lab.Measurement(effects, text, gates=(gate,))


def _ratio(pair: list[lab.Rows], column: str) -> float | None:
    values = [row.get(column) for rows in pair for row in rows]
    return values[0] / values[1] if len(values) == 2 and None not in values else None  # type: ignore[operator]


@lab.claim("limits-curriculum-rnn")
def curriculum_rnn(tables: lab.Tables, numbers: lab.RuleParameters) -> lab.Measurement:

    def more(rows: lab.Rows) -> Callable[[lab.Rows], float | None]:
        chance = {n: _between_seeds(own.where(curriculum=False)) for n, own in rows.by("layers").items()}

        def of_seed(own: lab.Rows) -> float | None:
            found = {}
            for n, one in own.by("layers").items():
                both = [row for kept in (True, False) for row in one.where(curriculum=kept)]
                if len(both) == 2 and both[0]["stages"] > 1:
                    found[n] = abs(share(both[0]) - share(both[1])) - chance[n]
            recurrent = found.pop(0, None)
            return math.fsum(found.values()) / len(found) - recurrent if found and recurrent is not None else None

        return of_seed

    by_task = tables["fit-lengths"].by("task")
    effects: dict[str, lab.Effect] = {}
    for task, own in by_task.items():
        effects |= each_task(own, (task,), more(own), "of the sequence length")
    gates = [gate for task in by_task for deep in (True, False) for gate in _gates(tables, task, deep, numbers)]
    drifts = {
        task_title(task): mean_change(*(rows.per_seed(more(rows)) for rows in _at_half_and_end(tables, task)))
        for task in by_task
    }
    text = (
        "The influence of the curriculum is the absolute change of the fit length (as a fraction of the sequence) that it "
        "causes, minus the mean absolute difference between seeds without curriculum. "
        f"Influence on Transformers minus influence on the RNN: {told(effects)}."
    )
    return lab.Measurement(effects, text, gates=gates, last_doubling_change=drifts)


def _between_seeds(rows: lab.Rows) -> float:
    pairs = list(combinations(map(share, rows), 2))
    return math.fsum(abs(one - other) for one, other in pairs) / len(pairs) if pairs else 0.0
