"""[Limits] Table 4: training loss of the deepest Transformer, and whether it has converged."""

import math
from functools import partial
from typing import Any

from hmmscope import Run, lab, registry
from hmmscope.ties import smallest
from hmmscope_papers.limits.paper_values import TABLE_3, TABLE_4, TABLE_4_EPOCHS, floors, paper_floors, said_floor
from hmmscope_papers.limits.planned import GridExperiment
from hmmscope_papers.limits.tables import (
    EPOCHS,
    REMEMBERING,
    each_task,
    epochs_of,
    mean_change,
    model_name,
    over_seeds,
    task_title,
    titles,
    told,
    trivial_loss,
)
from hmmscope_papers.limits.trainings import by_task, depths, grid, identity, label_of, limits_config

CYCLES = ("cyclic-det", "cyclic-rnd")
#: Fractions of the training at which the paper prints losses.
SHARES = (0.6, 0.7, 0.8, 0.9, 1.0)
_COMMON = {"backward": [0.01, 0.03, 0.05]}


@registry.experiment("limits-table4")
class LimitsTable4(GridExperiment):
    """The deepest Transformers of the grid of Figure 3; at scale paper also MatMul trained twice as long."""

    title = "Has the training of the deepest Transformer converged?"
    in_paper = "[Limits] Table 4", "The training for MatMul converges much slower than the other two tasks."
    summary = (
        "The training loss of the deepest Transformer in the last part of its training, on cycles and on products of "
        "matrices, is compared with its lower bound and with the loss of a constant predictor. " + EPOCHS
    )
    num_seeds = lab.Experiment.NUM_SEEDS
    run_columns = ("task", "layers", "long")
    sizes = {
        "smoke": {"samples": 64, "floor_samples": 40, "floor_instances": 2, **_COMMON},
        "small": {"samples": 2048, "floor_samples": 400, "floor_instances": 10, **_COMMON},
        "medium": {"samples": 2048, "floor_samples": 400, "floor_instances": 10, **_COMMON},
        "gpu": {"samples": 4096, "floor_samples": 1000, "floor_instances": 10, **_COMMON},
        "paper": {"samples": 4096, "floor_samples": 1000, "floor_instances": 30, **_COMMON},
    }
    groups = {"losses": ("losses", "references"), "floors": ("paper-floors",)}

    def choices(self, scale: str) -> dict[str, Any]:
        longer = 2 if scale == "paper" else 1
        return {"tasks": ["cyclic-det", "cyclic-rnd", "matmul"], "layers": depths(scale)[-1], "long_factor": longer}

    def cells(self, labels: list[str]) -> dict[str, list[str]]:
        return by_task(labels)

    def plan(self, scale: str, **choices: Any) -> dict[str, dict[str, Any]]:
        plan = grid(scale, choices["tasks"], [choices["layers"]])
        label = label_of("matmul", choices["layers"])
        if choices["long_factor"] > 1 and label in plan:
            steps = plan[label]["training"]["num_steps"] * choices["long_factor"]
            plan[f"long, {label}"] = limits_config(scale, "matmul", choices["layers"], training={"num_steps": steps})
        return plan

    def measure(self, runs: dict[str, Run], group: str, sizes: dict[str, Any]) -> lab.MeasuredTables:
        if group == "floors":
            seed, count = next(iter(runs.values())).config.seed, sizes["floor_samples"]
            instances, backward = sizes["floor_instances"], sizes["backward"]
            tasks = [run.config.process.name for run in runs.values()]
            found = paper_floors(tasks, seed, num_samples=count, backward=backward, instances=instances)
            return {"paper-floors": found}
        shortest: dict[str, int] = {}
        for run in runs.values():
            task, steps = run.config.process.name, run.config.training.num_steps
            shortest[task] = min(steps, shortest.get(task, steps))
        tables: lab.MeasuredTables = {"losses": [], "references": []}
        for run in runs.values():
            long = run.config.training.num_steps > shortest[run.config.process.name]
            facts = identity(run) | {"long": long}
            tables["losses"] += [facts | row for row in _losses(run)]
            floor = float(run.target.lower_bound_terms(run.dataset("probe")[0 : sizes["samples"]]).mean())
            trivial = trivial_loss(run, sizes["samples"])
            tables["references"].append(facts | {"floor": floor, "trivial": trivial, "unit": run.target.unit})
        return tables

    def figures(self, tables: lab.Tables) -> list[lab.Figure]:
        return [_figure(tables)]

    def without_training(self, tables: lab.Tables) -> lab.Tables:
        trivial = {(row["task"], row.get("seed")): row["trivial"] for row in tables["references"]}
        losses = {
            name: lambda row: trivial[row["task"], row.get("seed")] for name in ("training_loss", "evaluation_loss")
        }
        return {**tables, "losses": tables["losses"].with_columns(**losses)}


def _losses(run: Run) -> list[dict]:
    rows = epochs_of(run).rows
    keys = ("epoch", "step", "training_loss", "evaluation_loss")
    return [{key: row[key] for key in keys} | {"share": row["epoch"] / len(rows)} for row in rows]


def _title(task: str, long: bool) -> str:
    return f"{task_title(task)}, longer" if long else task_title(task)


def _each_run(rows: lab.Rows) -> list[tuple[str, bool, lab.Rows]]:
    found = rows.by("task").items()
    return [(task, long, own.where(long=long)) for task, own in found for long in sorted(own.values("long"))]


def _figure(tables: lab.Tables) -> lab.Figure:
    panels = []
    for task, long, own in _each_run(tables["losses"]):
        known = tables["references"].where(task=task, long=long)
        over = lab.Rows(row | {"epoch": epoch} for row in known for epoch in (own[0]["epoch"], own[-1]["epoch"]))
        panels.append(
            lab.lines(
                f"{_title(task, long)}, {model_name(own[0]['layers'])}",
                lab.curve(own, "epoch", "training", "model", y="training_loss"),
                lab.curve(own, "epoch", "evaluation", "control", y="evaluation_loss"),
                lab.curve(over, "epoch", "lower bound", "optimum", y="floor"),
                lab.curve(over, "epoch", "constant answer", "baseline", y="trivial"),
                lab.Series(name="printed in [Limits]", x=TABLE_4_EPOCHS[: len(TABLE_4[task])], y=TABLE_4[task]),
                x_label="epoch",
                y_label=known[0]["unit"],
                y_min=0.0,
            )
        )
    return lab.Figure(
        name="training-loss",
        title="Training loss of the deepest Transformer",
        caption=(
            "Curves show the mean loss over each epoch of training, the loss on held-out samples, the smallest possible "
            "loss, and the loss of a constant answer (the mean of the exact answers). “Printed” marks losses of the paper, "
            "for 7 layers and length 120. Bands are 95 % intervals over seeds."
        ),
        panels=tuple(panels),
    )


# ---------------------------------------------------------------------------------------------------------------------
# Claims

#: A task is learned when the loss is below this fraction of the constant answer's loss.
LEARNED = 0.1
#: Largest half-width of an interval of lower bounds that can explain a printed loss, in nats.
AT_FLOOR = 0.05


def of_trivial(tables: lab.Tables) -> lab.Rows:
    known = tables["references"].where(long=False)
    trivial = {(row["task"], row.get("seed")): row["trivial"] for row in known}
    rows = tables["losses"].where(long=False)
    return rows.with_columns(level=lambda row: row["training_loss"] / trivial[row["task"], row.get("seed")])


def level_at(own: lab.Rows, share: float) -> float:
    return float(min(own, key=lambda row: abs(row["share"] - share))["level"])


def late_share(own: lab.Rows, numbers: lab.Numbers = None) -> float | None:
    """Return which fraction of the loss decrease happens late in training; None if the loss decreased little."""
    way = 1 - level_at(own, 1.0)
    return (
        (level_at(own, lab.parameter(numbers, "late")) - level_at(own, 1.0)) / way
        if way > lab.parameter(numbers, "least_way")
        else None
    )


def _learned(rows: lab.Rows, tasks: tuple[str, ...], margin: float) -> lab.Gate:
    found = each_task(rows, tasks, lambda own: 1 - level_at(own, 1.0), "of its loss")
    least = smallest(found.values(), lambda one: one.value) if found else None
    return lab.Gate.learned(least, margin, "a constant answer")


@lab.claim("limits-matmul-slower")
def matmul_slower(tables: lab.Tables, numbers: lab.RuleParameters) -> lab.Measurement:
    rows = of_trivial(tables)
    steps = {task_title(task): {"steps": max(own.values("step"))} for task, own in rows.by("task").items()}

    effects: dict[str, lab.Effect] = {}
    for task in CYCLES:

        def later(own: lab.Rows, task: str = task) -> float | None:
            slow, other = (
                late_share(own.where(task=one), numbers) if own.where(task=one) else None for one in ("matmul", task)
            )
            return None if slow is None or other is None else slow - other

        found = over_seeds(rows.where(task=["matmul", task]), later, "of the total decrease of the loss")
        effects |= {task_title(task): found} if found else {}
    shares = each_task(rows, REMEMBERING, partial(late_share, numbers=numbers), "")
    text = f"Fraction of the decrease of the training loss that falls into the last two fifths of training: {told(shares)}."
    return lab.Measurement(
        effects,
        text,
        gates=(lab.Gate.matched(steps), _learned(rows, REMEMBERING, lab.parameter(numbers, "learned", LEARNED))),
        required=titles(CYCLES),
    )


@lab.claim("limits-cycles-converged")
def cycles_converged(tables: lab.Tables, numbers: lab.RuleParameters) -> lab.Measurement:
    rows = of_trivial(tables)
    steps = limits_config("paper", "cyclic-det", depths("paper")[-1])["training"]["num_steps"]
    long = lab.Gate.regime(
        max(rows.values("step"), default=0) / steps,
        lab.parameter(numbers, "as_long"),
        math.inf,
        "the number of training steps divided by the paper's number",
    )
    falls = each_task(
        rows,
        CYCLES,
        lambda own: level_at(own, lab.parameter(numbers, "late")) - level_at(own, 1.0),
        "of the constant answer's loss",
    )
    text = "Decrease of the training loss in the last fifth of training, divided by the constant answer's loss: "
    text += f"{told(falls)}."
    return lab.Measurement(
        falls,
        text,
        gates=(_learned(rows, CYCLES, lab.parameter(numbers, "learned", LEARNED)), long),
        required=titles(CYCLES),
    )


@lab.claim("limits-matmul-fails")
def matmul_fails(tables: lab.Tables, numbers: lab.RuleParameters) -> lab.Measurement:
    rows = of_trivial(tables)
    ends = each_task(rows, ("matmul", "cyclic-det"), lambda own: level_at(own, 1.0), "of the constant answer's loss")
    product = rows.where(task="matmul")
    half, end = (product.per_seed(lambda own, share=share: level_at(own, share)) for share in (0.5, 1.0))  # type: ignore[misc]
    gate = _learned(rows, ("cyclic-det",), 1 - lab.parameter(numbers, "learned", LEARNED))
    text = f"Final training loss as a fraction of the constant answer's loss: {told(ends)}. "
    text += "In the paper this fraction is 0.46 on MatMul after 100 epochs, and 0.44 after 200."
    return lab.Measurement(ends.get("MatMul"), text, gates=(gate,), last_doubling_change=mean_change(half, end))


@lab.claim("limits-printed-rnd-converged")
def printed_rnd_converged(tables: lab.Tables, numbers: lab.RuleParameters) -> lab.Measurement:
    """Compute the least loss on Cyclic-RND as Proposition A.1 prints it, where actions act one step after they are seen."""
    backward = lab.parameter(numbers, "backward")
    found = floors(tables, "cyclic-rnd, first action hidden", backward)
    text = "With the printed kernel (Proposition A.1), the smallest possible loss on Cyclic-RND is "
    text += f"{said_floor(tables, 'cyclic-rnd, first action hidden', backward)} nats"
    text += f", in single instances {min(found):.4f} to {max(found):.4f}. " if found else ". "
    text += f"By the definition of the process this loss is {said_floor(tables, 'cyclic-rnd', backward)}"
    text += f", for hidden states (state, last action) {said_floor(tables, 'cyclic-rnd, augmented', backward)}"
    others = {b: floors(tables, "cyclic-rnd", b) for b in sorted(_backwards(tables)) if b != backward}
    shown = ", ".join(f"{b:g}: {math.fsum(known) / len(known):.4f}" for b, known in others.items())
    text += f"; at other backward probabilities {shown}." if shown else "."
    text += f" Table 3 prints {TABLE_3['cyclic-rnd']['6 layers']} for six layers."
    if not found:
        return lab.Measurement(None, text)
    floor = lab.Effect.predicted(found, "nats")
    width = math.inf if floor.low is None or floor.high is None else (floor.high - floor.low) / 2
    scatter = (
        "the half-width of the interval of lower bounds over instances, in nats (the paper's instance is unknown),"
    )
    return lab.Measurement(
        floor, text, gates=(lab.Gate.regime(width, 0, lab.parameter(numbers, "at_floor", AT_FLOOR), scatter),)
    )


def _backwards(tables: lab.Tables) -> set[float]:
    return {row["backward"] for row in tables["paper-floors"] if row["backward"] is not None}
