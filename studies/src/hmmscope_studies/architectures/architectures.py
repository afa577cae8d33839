"""The tasks of [Limits] on other architectures: state tracking, depth, and sequences beyond the training length."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from hmmscope import ProcessDataset, Run, lab, registry
from hmmscope.analysis import evaluation_losses
from hmmscope.schema import require_known
from hmmscope.ties import smallest
from hmmscope_papers.constructions import delta_rule_parity
from hmmscope_papers.limits.tables import (
    WHILE_TRAINING,
    drift,
    each,
    equal_budgets,
    fit_length_of,
    loss_of,
    never_fitting,
    relabelled,
    training_rows,
    while_training,
)
from hmmscope_papers.limits.trainings import limits_config, shortened
from hmmscope_studies.architectures.architecture_models import ARCHITECTURES, DEFAULT, TASKS, name_of

_FOUR = {"tasks": ["cyclic-det", "word-problem", "matmul", "mess3"], "architectures": DEFAULT}
ERROR_RATES = (0.05, 0.1)
#: Task, architecture and layers of the constructed weights.
CONSTRUCTED = ("parity", "delta-rule-negative", 1)


@registry.experiment("limits-architectures")
class Architectures(lab.Experiment):
    """Networks of several architectures, trained on several tasks, with one layer if they are recurrent."""

    title = "State tracking by recurrent networks, attention and linear recurrences"
    summary = (
        "Several architectures train on the same tasks: recurrent networks of one layer, and Transformers of several "
        "depths with rotary positions, with linear attention, or with a gated delta rule whose eigenvalues are "
        "positive or may be negative. The option --plan.architectures adds state space models (which need "
        "`hmmscope[models]`). Up to scale medium all architectures see equally many sequences. They are evaluated up "
        "to the training length and beyond it; on parity they are compared with a network of constructed weights."
    )
    num_seeds = lab.Experiment.NUM_SEEDS
    run_columns = ("task", "architecture", "layers")
    #: Choices of the plan; all models see equally many sequences up to medium. Steps 0 means the default of the scale.
    shapes: dict[str, dict[str, Any]] = {
        "smoke": {"tasks": ["cyclic-det"], "architectures": ["rnn", "gru", "transformer", "linear-attention"]}
        | {"layers": [1], "steps": 20, "recurrent_steps": 20},
        "small": {"tasks": ["cyclic-det", "parity", "mess3"], "architectures": DEFAULT}
        | {"layers": [1, 3], "steps": 500, "recurrent_steps": 500},
        "medium": {"tasks": ["cyclic-det", "parity", "word-problem-z60", "word-problem-a5", "word-problem-s5"]}
        | {"architectures": [*DEFAULT, "transformer-learned"], "layers": [1, 4]}
        | {"steps": 3000, "recurrent_steps": 3000},
        "gpu": _FOUR | {"layers": [1, 2, 4], "steps": 0, "recurrent_steps": 0},
        "paper": _FOUR | {"layers": [1, 4, 7], "steps": 0, "recurrent_steps": 0},
    }
    sizes = {
        "smoke": {"samples": 32, "times_longer": 2},
        "small": {"samples": 1024, "times_longer": 2},
        "medium": {"samples": 1024, "times_longer": 8},
        "gpu": {"samples": 4096, "times_longer": 2},
        "paper": {"samples": 4096, "times_longer": 2},
    }
    measure_per_run = True
    groups = {"errors": ("errors", "fit", WHILE_TRAINING)}

    def choices(self, scale: str) -> dict[str, Any]:
        return dict(self.shapes[scale])

    def plan(self, scale: str, **choices: Any) -> dict[str, dict[str, Any]]:
        for key, known in (("tasks", TASKS), ("architectures", ARCHITECTURES)):
            for name in choices[key]:
                require_known(f"plan.{key}", name, known)
        return {
            _label(task, name, layers): _config(scale, task, name, layers, choices)
            for task in choices["tasks"]
            for name in choices["architectures"]
            for layers in ([1] if ARCHITECTURES[name].recurrent else choices["layers"])
        }

    def measure(self, runs: dict[str, Run], group: str, sizes: dict[str, Any]) -> lab.MeasuredTables:
        tables: lab.MeasuredTables = {"errors": [], "fit": [], WHILE_TRAINING: []}
        for label, run in runs.items():
            facts = _facts(label, run)
            tables["errors"] += [facts | row for row in _error_rows(facts, run, sizes)]
            tables["fit"].append(facts | _fit_row(run))
            tables[WHILE_TRAINING] += training_rows(run, [ERROR_RATES[1]], facts)
        return tables

    def figures(self, tables: lab.Tables) -> list[lab.Figure]:
        return [_errors_figure(tables["errors"]), _fit_figure(tables["fit"])]

    def without_training(self, tables: lab.Tables) -> lab.Tables:
        while_training_ = {WHILE_TRAINING: never_fitting(tables.get(WHILE_TRAINING, lab.Rows()))}
        return {**tables, "errors": relabelled(tables["errors"], "untrained"), **while_training_}


def _label(task: str, architecture: str, layers: int) -> str:
    return f"{task}, {architecture}, {layers} layer{'s' * (layers > 1)}"


def _facts(label: str, run: Run) -> dict[str, Any]:
    layers = run.config.model.num_layers
    for task in TASKS:
        for name in ARCHITECTURES:
            if _label(task, name, layers) == label:
                return {"task": task, "architecture": name, "layers": layers}
    raise LookupError(f"no run of the plan is called {label}")


def _config(scale: str, task: str, name: str, layers: int, choices: dict[str, Any]) -> dict[str, Any]:
    architecture, (_, process) = ARCHITECTURES[name], TASKS[task]
    steps = choices["recurrent_steps"] if architecture.recurrent else choices["steps"]
    grid_task, depth = task if not process else "cyclic-det", 0 if architecture.recurrent else layers
    config = limits_config(scale, grid_task, depth, training=shortened(steps))
    sizes = config["model"]
    kept = ["width"] if architecture.recurrent else ["num_layers", "width"] + ["num_heads"] * architecture.has_heads
    config["model"] = {**architecture.model, **{key: sizes[key] for key in kept if key in sizes}}
    return config | ({"process": dict(process)} if process else {})


def _error_rows(facts: dict[str, Any], run: Run, sizes: dict[str, Any]) -> list[dict]:
    trained_on = run.config.layout.num_observations
    times = sizes["times_longer"] if ARCHITECTURES[facts["architecture"]].any_length else 1
    layout = replace(run.config.layout, length=times * trained_on)
    dataset = ProcessDataset(run.process, layout=layout, seed=run.config.seed, stream="evaluate")
    rows = []
    models = {"model": run.model, "untrained": run.untrained()}
    if (facts["task"], facts["architecture"], facts["layers"]) == CONSTRUCTED:
        models["constructed"] = delta_rule_parity()
    for told_, model in models.items():
        found = evaluation_losses(model, dataset, num_samples=sizes["samples"], target=run.config.target)
        wanted = ("model", "constant") if told_ == "model" else ("model",)
        for row in found:
            if row["predictor"] in wanted:
                predictor = row["predictor"] if told_ == "model" else told_
                rows.append(row | {"predictor": predictor, "beyond": row["position"] > trained_on})
    return rows


def _fit_row(run: Run) -> dict:
    assert run.summary is not None
    spec = run.config.training
    shared = {"length": run.config.layout.num_observations, "parameters": run.summary["parameters"]}
    shared |= {"samples_trained": spec.num_steps * spec.batch_size}
    return shared | {f"fit_{rate:g}": fit_length_of(run, rate) for rate in ERROR_RATES}


# ---------------------------------------------------------------------------------------------------------------------
# Figures


def _errors_figure(rows: lab.Rows) -> lab.Figure:
    built = rows.where(predictor="constructed")
    deepest = {name: max(own.values("layers")) for name, own in rows.by("architecture").items()}
    rows = lab.Rows(row for row in rows if row["layers"] == deepest[row["architecture"]])
    trained_on = max(row["position"] for row in rows if not row["beyond"])
    panels = []
    for task, own in rows.by("task").items():
        models = own.where(predictor="model")
        series: list[lab.Series | None] = [
            lab.curve(one, "position", name_of(*which), "model")
            for which, one in models.by("architecture", "layers").items()
        ]
        series += [
            lab.level(0.0, sorted(models.values("position")), "exact answer", "optimum"),
            lab.curve(own.where(predictor="constant"), "position", "constant answer", "baseline"),
            lab.curve(own.where(predictor="untrained"), "position", "before training, mean over models", "control"),
            lab.curve(built.where(task=task), "position", f"constructed, {name_of(*CONSTRUCTED[1:])}", "other"),
        ]
        label = f"position t (trained to {trained_on})"
        panels.append(lab.lines(TASKS[task][0], *series, x_label=label, y_label="evaluation loss", y_min=0.0))
    return lab.Figure(
        name="error-by-position",
        title="Error by position, within and beyond the training length",
        caption=(
            "Curves show the evaluation loss by position, for the deepest model of each architecture (the legend gives its "
            f"layers). Models were trained on {trained_on} observations and also read longer sequences, except those with "
            "learned positions. Lines are means over seeds; bands are 95 % intervals."
        ),
        panels=tuple(panels),
    )


def _fit_figure(rows: lab.Rows) -> lab.Figure:
    panels = []
    for task, own in rows.by("task").items():
        found = own.pool("architecture", "layers", value="fit_0.1")
        whole = own.pool("task", value="length")[0]["length"]
        low, high = (tuple(min(max(row[end], 0.0), whole) for row in found) for end in ("low", "high"))
        panels.append(
            lab.bars(
                TASKS[task][0],
                lab.Series(
                    name="trained model", y=tuple(row["fit_0.1"] for row in found), low=low, high=high, role="model"
                ),
                lab.Series(name="training length", y=(float(whole),) * len(found), role="ceiling"),
                categories=[name_of(row["architecture"], row["layers"]) for row in found],
                y_label="0.1-fit length",
            )
        )
    return lab.Figure(
        name="fit-lengths",
        title="Fit length of each architecture",
        caption=(
            "Bars show the number of positions, counted from the first, with an evaluation loss below 0.1 in the last three "
            "evaluations of the training. Bars are means over seeds with 95 % intervals, cut to the possible range."
        ),
        panels=tuple(panels),
    )


# ---------------------------------------------------------------------------------------------------------------------
# Claims

#: Tasks without a state to track: a window of constant length gives the belief.
FORGETTING = ("ran-hmm", "mess3")
#: The smallest difference of evaluation losses that counts as learning.
LEARNED = 0.1

Which = tuple[str, int]  # architecture and layers


def _tracking(tables: lab.Tables) -> lab.Rows:
    rows = tables["errors"].where(predictor="model")
    return lab.Rows(row for row in rows if row["task"] not in FORGETTING)


def _depths(rows: lab.Rows, architecture: str) -> list[int]:
    return sorted(rows.where(architecture=architecture).values("layers"))


def _ends(rows: lab.Rows) -> tuple[Which, Which] | None:
    depths, recurrent = _depths(rows, "transformer"), _depths(rows, "rnn")
    return (("transformer", depths[-1]), ("rnn", recurrent[-1])) if depths and recurrent else None


def _less(one: Which, other: Which, *, beyond: bool = False) -> Callable[[lab.Rows], lab.EstimateWithError | None]:
    def of_seed(own: lab.Rows) -> lab.EstimateWithError | None:
        both = [own.where(architecture=name, layers=layers, beyond=beyond) for name, layers in (one, other)]
        return loss_of(both[0]) - loss_of(both[1]) if all(both) else None

    return of_seed


def _said(rows: lab.Rows, *, beyond: bool = False) -> str:
    said = []
    for task, own in rows.where(beyond=beyond).by("task").items():
        pooled = own.pool("architecture", "layers")
        losses = (f"{name_of(row['architecture'], row['layers'])}: {row['value']:.3f}" for row in pooled)
        said.append(f"{TASKS[task][0]} {', '.join(losses)}")
    where = "beyond the training length" if beyond else "up to the training length"
    return f"Mean evaluation loss {where}, by architecture and layers: {'; '.join(said) or 'none'}."


def _drifts(
    tables: lab.Tables, one: Which, other: Which, tasks: Iterable[str], numbers: lab.Numbers = None
) -> dict[str, float | None]:
    def of_seed(own: lab.Rows) -> float | None:
        both = [own.where(architecture=name, layers=layers).values("loss") for name, layers in (one, other)]
        return both[0][0] - both[1][0] if all(both) else None

    return {task: drift(while_training(tables, task=task), of_seed, numbers) for task in tasks}


def _learned(tables: lab.Tables, which: Which, tasks: Iterable[str], numbers: lab.Numbers = None) -> lab.Gate:
    def lead(own: lab.Rows) -> lab.EstimateWithError | None:
        both = [own.where(predictor=name) for name in ("constant", "model")]
        return loss_of(both[0]) - loss_of(both[1]) if all(both) else None

    rows = tables["errors"].where(architecture=which[0], layers=which[1], task=list(tasks), beyond=False)
    found = each(rows, "task", lead)
    least = smallest(found.values(), lambda one: one.value) if found else None
    return lab.Gate.learned(
        least, lab.parameter(numbers, "learned", LEARNED), f"the constant answer ({name_of(*which)})"
    )


@lab.claim("limits-architectures-recurrence")
def recurrence(tables: lab.Tables, numbers: lab.RuleParameters) -> lab.Measurement:
    rows = _tracking(tables)
    ends, tasks = _ends(rows), rows.values("task")
    if ends is None:
        return lab.Measurement(None, _said(rows))
    effects = each(rows, "task", _less(*ends), "loss of the Transformer minus that of the RNN")
    gates = [equal_budgets(tables, {name: _label(task, name, layers) for name, layers in ends}) for task in tasks]
    gates += [_learned(tables, one, tasks, numbers) for one in ends]
    return lab.Measurement(
        effects, _said(rows), gates=gates, last_doubling_change=_drifts(tables, *ends, tasks, numbers=numbers)
    )


@lab.claim("limits-architectures-depth")
def depth(tables: lab.Tables, numbers: lab.RuleParameters) -> lab.Measurement:
    rows = _tracking(tables)
    depths = _depths(rows, "transformer")
    if len(depths) < 2:
        return lab.Measurement(None, _said(rows))
    ends = (("transformer", depths[0]), ("transformer", depths[-1]))
    effects = each(
        rows, "task", _less(*ends), f"loss with {depths[0]} layer{'s' * (depths[0] > 1)} minus that with {depths[-1]}"
    )
    gates, drifts = (
        [_learned(tables, one, rows.values("task"), numbers) for one in ends],
        _drifts(tables, *ends, rows.values("task"), numbers=numbers),
    )
    return lab.Measurement(effects, _said(rows), gates=gates, last_doubling_change=drifts)


@lab.claim("limits-architectures-forgetting")
def forgetting(tables: lab.Tables, numbers: lab.RuleParameters) -> lab.Measurement:
    rows = tables["errors"].where(task=list(FORGETTING), beyond=False)
    models = rows.where(predictor="model")
    depths = _depths(models, "transformer")
    if not depths:
        return lab.Measurement(None, _said(models))

    def share(own: lab.Rows) -> lab.EstimateWithError | None:
        shallow = own.where(predictor="model", architecture="transformer", layers=depths[0])
        constant = own.where(predictor="constant")
        if not shallow or not constant:
            return None
        top, bottom = loss_of(shallow), loss_of(constant)
        return lab.EstimateWithError(top.value / bottom.value, top.error / bottom.value)

    effects = each(rows, "task", share, f"times the constant answer's loss at {depths[0]} layer{'s' * (depths[0] > 1)}")
    return lab.Measurement(
        effects, _said(models), gates=(_learned(tables, ("transformer", depths[0]), FORGETTING, numbers),)
    )


@lab.claim("limits-architectures-tracking")
def tracking(tables: lab.Tables) -> lab.Measurement:
    said = []
    for task, own in tables["fit"].by("task").items():
        rows = own.pool("architecture", "layers", value="fit_0.1")
        longest = max(own.values("length"))
        whole = [f"{row['architecture']} ({row['layers']})" for row in rows if row["fit_0.1"] == longest]
        best = max((row["fit_0.1"] for row in rows if row["fit_0.1"] < longest), default=None)
        rest = "" if best is None else f"; others fit at most {best:.1f} positions on average"
        said.append(f"{task}: {', '.join(whole) or 'none'} (of {len(rows)} networks){rest}")
    lengths = ", ".join(map(str, sorted(tables["fit"].values("length"))))
    return lab.Measurement(
        None, f"Architectures (layers) that fit all {lengths} positions in every seed: {'. '.join(said)}."
    )


@lab.claim("limits-architectures-parity")
def parity(tables: lab.Tables) -> lab.Measurement:
    """Compare delta rules by eigenvalues; parity in finite precision needs negative eigenvalues (Grazzi 2025)."""
    task, architecture, layers = CONSTRUCTED
    rows = tables["errors"].where(task=task)
    models = rows.where(predictor="model")
    effects = each(
        models,
        "task",
        _less(("delta-rule", layers), (architecture, layers), beyond=True),
        "loss beyond the training length with positive eigenvalues minus that with negative ones",
    )
    exact = rows.where(predictor="constructed")
    if not exact:
        return lab.Measurement(effects, _said(models, beyond=True))
    built = f"The loss of the constructed weights is at most {max(exact.values('value')):.2g}, up to position "
    return lab.Measurement(effects, f"{_said(models, beyond=True)} {built}{max(exact.values('position'))}.")
