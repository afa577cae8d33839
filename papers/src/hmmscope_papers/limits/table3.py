"""[Limits] Table 3: final losses of the RNN and of Transformers, compared with the smallest possible losses."""

import math
from dataclasses import replace
from typing import Any

from hmmscope import EvaluateOptions, Run, evaluate, lab, registry
from hmmscope.ties import largest
from hmmscope_papers.limits.paper_values import (
    LEAST_SHARE,
    TABLE_3,
    paper_floors,
    printed_gap,
    said_floor,
)
from hmmscope_papers.limits.planned import GridExperiment
from hmmscope_papers.limits.tables import (
    FORGETTING,
    REMEMBERING,
    WHILE_TRAINING,
    WIDTH,
    all_layers,
    drift,
    each_task,
    epochs_of,
    equal_budgets,
    layers_of,
    model_name,
    task_title,
    titles,
    told,
    training_rows,
    trivial_loss,
    while_training,
)
from hmmscope_papers.limits.trainings import TASKS, by_task, grid, identity, label_of, length_of

#: Prefix of the labels of runs on a fixed training set.
_FIXED = "fixed, "
#: A smaller excess is rounding.
_LEAST = 1e-12
#: Fewest passes over a training set for the claim about overfitting; the paper makes a hundred.
_PASSES = 50
_COMMON = {"backward": [0.01]}


@registry.experiment("limits-table3")
class LimitsTable3(GridExperiment):
    """Losses on the grid of Figures 2 and 3, and lower bounds at the paper's sizes."""

    title = "Final losses of the RNN and of Transformers, with lower bounds"
    in_paper = (
        "[Limits] App. C.3",
        "the fitting ability of Transformers on the MatMul, Cyclic-DET and Cyclic-RND model is much worse than RNNs",
    )
    summary = (
        "The final losses of a one-layer RNN and of Transformers, on training samples and on fresh ones, are compared "
        "with the lower bound for any predictor: the entropy of the exact answers, or the variance of the next "
        "observation (RanLDS). The losses that the paper prints are compared with lower bounds at the paper's sizes."
    )
    num_seeds = lab.Experiment.NUM_SEEDS
    run_columns = ("task", "layers")
    sizes = {
        "smoke": {"samples": 32, "floor_samples": 40, "floor_instances": 2, **_COMMON},
        "small": {"samples": 4096, "floor_samples": 400, "floor_instances": 10, **_COMMON},
        "medium": {"samples": 4096, "floor_samples": 400, "floor_instances": 10, **_COMMON},
        "gpu": {"samples": 8192, "floor_samples": 1000, "floor_instances": 10, **_COMMON},
        "paper": {"samples": 8192, "floor_samples": 1000, "floor_instances": 30, **_COMMON},
    }
    groups = {"losses": ("losses", WHILE_TRAINING), "fixed": ("fixed",), "floors": ("paper-floors",)}

    def choices(self, scale: str) -> dict[str, Any]:
        tasks = ["cyclic-rnd", "ran-lds"] if scale == "smoke" else list(TASKS)
        return {"tasks": tasks, "layers": all_layers(scale), "fixed_sets": int(scale != "paper")}

    def cells(self, labels: list[str]) -> dict[str, list[str]]:
        return by_task(labels)

    def plan(self, scale: str, **choices: Any) -> dict[str, dict[str, Any]]:
        plan = grid(scale, choices["tasks"], choices["layers"])
        short = sorted(set(short_depths(length_of(scale)))) if choices["fixed_sets"] else []
        for label in [label_of(task, layers) for task in REMEMBERING for layers in short]:
            if label in plan:
                spec = plan[label]["training"]
                epochs = 5 if scale == "medium" else 1
                again = {"epoch_steps": 0, "num_trajectories": epochs * spec["epoch_steps"] * spec["batch_size"]}
                plan[f"{_FIXED}{label}"] = plan[label] | {"training": spec | again}
        return plan

    def measure(self, runs: dict[str, Run], group: str, sizes: dict[str, Any]) -> lab.MeasuredTables:
        if group == "losses":
            fresh = [run for label, run in runs.items() if not label.startswith(_FIXED)]
            rows = [row for run in fresh for row in training_rows(run, [0.1], identity(run))]
            return {"losses": [_losses(run, sizes) for run in fresh], WHILE_TRAINING: rows}
        if group == "fixed":
            return {"fixed": [_losses(run, sizes) for label, run in runs.items() if label.startswith(_FIXED)]}
        seed, count = next(iter(runs.values())).config.seed, sizes["floor_samples"]
        tasks = [run.config.process.name for run in runs.values()]
        found = paper_floors(
            tasks, seed, num_samples=count, backward=sizes["backward"], instances=sizes["floor_instances"]
        )
        return {"paper-floors": found}

    def figures(self, tables: lab.Tables) -> list[lab.Figure]:
        return [_losses_figure(tables["losses"]), _excess_figure(tables["losses"])]

    def without_training(self, tables: lab.Tables) -> lab.Tables:
        most = {
            task: max(row.get("trivial", row["loss"]) - row["floor"] for row in own)
            for task, own in tables["losses"].by("task").items()
        }

        def constant(row: dict[str, Any]) -> float:
            return float(row["floor"] + most[row["task"]])

        excess = {name: lambda row: most[row["task"]] for name in ("excess", "low", "high")}
        losses = {name: constant for name in ("loss", "training_loss", "trivial")}
        found = [name for name in ("losses", "fixed") if name in tables]
        return {**tables, **{name: tables[name].with_columns(**excess, **losses) for name in found}}


def _losses(run: Run, sizes: dict[str, Any]) -> dict:
    facts, last, spec = identity(run), epochs_of(run).rows[-1], run.config.training
    score = evaluate(
        run.model,
        run.dataset("probe"),
        num_samples=sizes["samples"],
        baselines=False,
        target=TASKS[facts["task"]][1],
        options=EvaluateOptions(block_length=spec.block_length),
    )
    assert score.excess is not None
    excess, low, high = score.excess
    passes = spec.num_steps * spec.batch_size / spec.num_trajectories if spec.num_trajectories else 1.0
    found = {"length": run.config.layout.num_observations, "unit": run.target.unit}
    found |= {"training_loss": last["training_loss"], "loss": score.loss, "floor": score.bayes_loss}
    found |= {"trivial": trivial_loss(run, sizes["samples"]), "passes": passes}
    return facts | found | {"excess": excess, "low": low, "high": high, "samples": sizes["samples"]}


# ---------------------------------------------------------------------------------------------------------------------
# Figures


def _losses_figure(rows: lab.Rows) -> lab.Figure:
    shown: tuple[tuple[str, str, lab.Role], ...] = (
        ("training_loss", "training samples", "control"),
        ("loss", "fresh samples", "model"),
        ("floor", "lower bound", "optimum"),
    )
    panels = []
    for task, own in rows.by("task").items():
        models = layers_of(own)
        series = [lab.bar(own, "layers", models, name, role, y=column) for column, name, role in shown]
        known = TABLE_3.get(task, {})
        ends = [end for one in series if one is not None for end in one.high or one.y]
        axis = {"y_label": own[0]["unit"], "y_min": 0.0, "y_max": 1.05 * max(*ends, *known.values(), _LEAST)}
        panels.append(lab.bars(task_title(task), *series, categories=map(model_name, models), **axis))
        if known:
            printed = lab.Series(name="printed in [Limits]", y=tuple(known.values()), role="baseline")
            panels.append(lab.bars(f"{task_title(task)}, as printed", printed, categories=known, **axis))
    return lab.Figure(
        name="final-losses",
        title="Final losses",
        caption=(
            "Bars show the loss on the training samples of the last epoch and the loss on fresh samples, averaged over "
            "positions. The line across a group is the loss of the exact answer on the fresh samples. Training samples are "
            "seen once (at scale paper they are a fixed set). “Printed” marks final training losses of the paper, for "
            "length 120; CT means a Transformer with curriculum. Intervals are 95 % intervals over seeds."
        ),
        panels=tuple(panels),
    )


def _excess_figure(rows: lab.Rows) -> lab.Figure:
    panels = []
    for task, own in rows.by("task").items():
        depths = [n for n in layers_of(own) if n > 0] or [0, 1]
        recurrent = lab.Rows(row | {"layers": n} for row in own.where(layers=0) for n in (depths[0], depths[-1]))
        both = (_geometric(own.where(layers=depths), "Transformer", "model"), _geometric(recurrent, "RNN", "other"))
        panels.append(
            lab.lines(task_title(task), *both, x_label="layers", y_label=f"excess, {own[0]['unit']}", log_y=True)
        )
    return lab.Figure(
        name="excess",
        title="Excess of the loss over the smallest possible loss, by number of layers",
        caption=(
            "Curves show the Kullback-Leibler divergence of the answers from the exact ones (or the squared distance), "
            "averaged over positions of fresh samples. Lines are geometric means over seeds; bands are 95 % intervals of "
            "the logarithm."
        ),
        panels=tuple(panels),
    )


def _geometric(rows: lab.Rows, name: str, role: lab.Role) -> lab.Series | None:
    found = lab.curve(
        rows.with_columns(log=lambda row: math.log(max(row["excess"], _LEAST))), "layers", name, role, y="log"
    )
    if found is None:
        return None
    sides = (found.y, found.low or (), found.high or ())
    y, low, high = (tuple(math.exp(value) for value in side if value is not None) for side in sides)
    return replace(found, y=y, low=low, high=high)


# ---------------------------------------------------------------------------------------------------------------------
# Claims

#: Models that close a smaller fraction of the gap have learned nothing.
FALLEN_BEHIND = 0.1
#: Largest scatter of a mean for a comparison with a lower bound: a third of the printed models' difference.
AT_FLOOR = 0.01


def short_depths(length: int) -> tuple[int, int]:
    needed = math.ceil(math.log2(length))
    return max(1, needed - 2), max(1, needed - 1)


def log_excess(row: dict[str, Any]) -> lab.EstimateWithError:
    excess = max(row["excess"], _LEAST)
    return lab.EstimateWithError(math.log10(excess), (row["high"] - row["low"]) / WIDTH / excess / math.log(10))


def _ratio(own: lab.Rows, layers: tuple[int, ...]) -> lab.EstimateWithError | None:
    recurrent, others = own.where(layers=0), own.where(layers=layers)
    if not recurrent or not others:
        return None
    return min(log_excess(row) for row in others) - log_excess(recurrent[0])


def _shown(rows: lab.Rows, layers: tuple[int, ...]) -> str:
    said = []
    for task, own in rows.where(layers=[0, *layers]).by("task").items():
        known = sorted(own.pool("layers", value="excess"), key=lambda row: row["layers"])
        said.append(
            f"{task_title(task)} " + ", ".join(f"{model_name(row['layers'])} {row['excess']:.2g}" for row in known)
        )
    return f"Mean excess of the loss over the smallest possible loss: {'; '.join(said) or 'none'}."


def _fair(tables: lab.Tables, tasks: tuple[str, ...], layers: tuple[int, ...]) -> list[lab.Gate]:
    known = [task for task in tasks if task in tables["losses"].values("task")]
    return [
        equal_budgets(tables, {model_name(n): label_of(task, n) for n in (0, *layers)}).about(task_title(task))
        for task in known
    ]


def _drifts(
    tables: lab.Tables, tasks: tuple[str, ...], layers: tuple[int, ...], numbers: lab.Numbers = None
) -> dict[str, float | None]:
    def ratio(own: lab.Rows) -> float | None:
        logs = {row["layers"]: math.log10(max(row["loss"], _LEAST)) for row in own if row["loss"] is not None}
        return min(logs[n] for n in layers) - logs[0] if {0, *layers} <= logs.keys() else None

    return {task_title(task): drift(while_training(tables, task=task), ratio, numbers) for task in tasks}


def _learned(tables: lab.Tables, tasks: tuple[str, ...], layers: tuple[int, ...], share: float) -> tuple[lab.Gate, ...]:
    rows = tables["losses"].where(layers=list(layers))
    if not all("trivial" in row for row in rows):
        return (lab.Gate("learned", False, "the loss of the constant predictor is not recorded"),)

    def way(own: lab.Rows) -> float:
        return min((row["trivial"] - row["loss"]) / (row["trivial"] - row["floor"]) for row in own)

    found = each_task(rows, tasks, way, "of the gap to the smallest possible loss")
    who = " and ".join(model_name(n) for n in layers)
    what = "a constant answer ({}, {})"
    return tuple(lab.Gate.learned(found.get(task), share, what.format(who, task)).about(task) for task in titles(tasks))


@lab.claim("limits-remembering-worse")
def remembering_worse(tables: lab.Tables, numbers: lab.RuleParameters) -> lab.Measurement:
    rows = tables["losses"]
    short = short_depths(rows[0]["length"])
    unit = "log10(excess loss of the best Transformer / excess loss of the RNN)"
    effects = each_task(rows, REMEMBERING, lambda own: _ratio(own, short), unit)
    text = f"{_shown(rows.where(task=list(REMEMBERING)), short)} "
    text += f"{unit}: {told(effects)}."
    gates = [
        *_learned(tables, REMEMBERING, (0,), lab.parameter(numbers, "learned")),
        *_learned(tables, REMEMBERING, short, lab.parameter(numbers, "fallen_behind", FALLEN_BEHIND)),
    ]
    gates += _fair(tables, REMEMBERING, short)
    return lab.Measurement(
        effects,
        text,
        gates=gates,
        required=titles(REMEMBERING),
        last_doubling_change=_drifts(tables, REMEMBERING, short, numbers),
    )


@lab.claim("limits-forgetting-comparable")
def forgetting_comparable(tables: lab.Tables, numbers: lab.RuleParameters) -> lab.Measurement:
    rows = tables["losses"]
    unit = "log10(excess loss of the Transformer / excess loss of the RNN)"
    effects = each_task(rows, FORGETTING, lambda own: _ratio(own, (2,)), unit)
    gates = [*_learned(tables, FORGETTING, (0, 2), lab.parameter(numbers, "learned")), *_fair(tables, FORGETTING, (2,))]
    text = f"{_shown(rows.where(task=list(FORGETTING)), (2,))} "
    text += f"{unit}: {told(effects)}."
    return lab.Measurement(
        effects,
        text,
        gates=gates,
        required=titles(FORGETTING),
        last_doubling_change=_drifts(tables, FORGETTING, (2,), numbers),
    )


@lab.claim("limits-no-overfitting")
def no_overfitting(tables: lab.Tables, numbers: lab.RuleParameters) -> lab.Measurement:
    short = short_depths(tables["losses"][0]["length"])
    kept = (tables.get("fixed") or tables["losses"]).where(layers=short, task=list(REMEMBERING))

    def gap(own: lab.Rows) -> lab.EstimateWithError:
        worst = largest(own, lambda row: (row["loss"] - row["training_loss"]) / max(row["loss"] - row["floor"], _LEAST))
        excess = max(worst["loss"] - worst["floor"], _LEAST)
        return lab.EstimateWithError(
            (worst["loss"] - worst["training_loss"]) / excess, (worst["high"] - worst["low"]) / WIDTH / excess
        )

    effects = each_task(kept, REMEMBERING, gap, "of the excess loss")
    passes = [row["passes"] for row in kept if "passes" in row]
    seen = "the number of passes over the training set"
    known = (
        lab.Gate.regime(min(passes), lab.parameter(numbers, "passes", _PASSES), math.inf, seen)
        if passes
        else lab.Gate("regime", False, f"{seen} is not recorded")
    )
    gates = (known, *_learned(tables, REMEMBERING, short, lab.parameter(numbers, "learned")))
    text = f"Loss on fresh samples minus training loss, as a fraction of the excess loss: {told(effects)}. "
    text += _training_losses(tables["losses"], short)
    return lab.Measurement(effects, text, gates=gates, required=titles(REMEMBERING))


def _training_losses(rows: lab.Rows, layers: tuple[int, ...]) -> str:
    said = []
    for task, own in rows.where(task=list(REMEMBERING), layers=[0, *layers]).by("task").items():
        known = sorted(own.pool("layers", value="training_loss"), key=lambda row: row["layers"])
        models = ", ".join(f"{model_name(row['layers'])} {row['training_loss']:.2g}" for row in known)
        said.append(f"{task_title(task)} {models}, lower bound {own.pool('task', value='floor')[0]['floor']:.2g}")
    return f"Training losses on samples that are seen once: {'; '.join(said)}."


@lab.claim("limits-printed-rnd-rnn")
def printed_rnd_rnn(tables: lab.Tables, numbers: lab.RuleParameters) -> lab.Measurement:
    floor = said_floor(tables, "cyclic-rnd", lab.parameter(numbers, "backward"))
    text = f"The smallest possible loss is {floor} nats, the entropy of the exact belief. No predictor's "
    text += "cross-entropy with the exact belief is smaller, so a smaller printed loss is another quantity."
    return lab.Measurement(
        printed_gap(tables, "cyclic-rnd", TABLE_3["cyclic-rnd"]["RNN"], lab.parameter(numbers, "backward")), text
    )


@lab.claim("limits-printed-rnd-transformers")
def printed_rnd_transformers(tables: lab.Tables, numbers: lab.RuleParameters) -> lab.Measurement:
    floor = said_floor(tables, "cyclic-rnd", lab.parameter(numbers, "backward"))
    text = f"The smallest possible loss is {floor} nats over 120 positions, or {LEAST_SHARE:.4f} times this over 121, "
    text += "of which the first is known. The printed loss is 0.109 nats lower for six layers than for five."
    return lab.Measurement(
        printed_gap(tables, "cyclic-rnd", TABLE_3["cyclic-rnd"]["6 layers"], lab.parameter(numbers, "backward")), text
    )


@lab.claim("limits-printed-lds-rnn")
def printed_lds_rnn(tables: lab.Tables, numbers: lab.RuleParameters) -> lab.Measurement:
    rows = tables["paper-floors"].where(task="ran-lds")
    if not rows:
        return lab.Measurement(None, "")
    printed, floor, scatter = TABLE_3["ran-lds"]["RNN"], rows[0]["value"], rows[0]["batch_deviation"]
    averaged = "the half-width of the 95 % interval of a batch mean (the paper may print the mean loss of one batch)"
    gap = lab.Effect.pooled(
        [lab.EstimateWithError(printed - LEAST_SHARE * floor, scatter)], "printed loss minus the smallest possible loss"
    )
    text = f"The smallest possible loss is {floor:.4f} over 120 positions and {LEAST_SHARE * floor:.4f} over 121, of which "
    text += f"the first is known. The mean over one batch has standard deviation {scatter:.4f}."
    gate = lab.Gate.regime(WIDTH / 2 * scatter, 0, lab.parameter(numbers, "at_floor", AT_FLOOR), averaged)
    return lab.Measurement(
        replace(gap, num_seeds=len(rows), degrees=-1), text, gates=(gate,)
    )  # more seeds do not enlarge the batch
