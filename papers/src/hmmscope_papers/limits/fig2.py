"""[Limits] Figure 2: evaluation loss at one position while the RNN and Transformers train."""

import math
from collections.abc import Callable, Mapping
from functools import partial
from statistics import fmean
from typing import Any, NamedTuple

from hmmscope import Run, lab, registry
from hmmscope.analysis import crossing_length, evaluation_losses
from hmmscope.schema import require
from hmmscope_papers.limits.lengths import rarely_asked
from hmmscope_papers.limits.planned import GridExperiment
from hmmscope_papers.limits.tables import (
    EPOCHS,
    HARD,
    all_layers,
    each_task,
    epochs_of,
    layers_of,
    mean_change,
    model_name,
    over_seeds,
    task_title,
    titles,
    told,
)
from hmmscope_papers.limits.trainings import TASKS, grid, identity, is_deep

#: The four tasks of the figure; the paper does not name them.
FOUR = ("cyclic-hard", "cyclic-det", "matmul", "ran-hmm")


def _sizes(samples: int, hard: int, det: int, matmul: int, hmm: int, rnd: int, lds: int) -> dict[str, int]:
    positions = {"cyclic_hard": hard, "cyclic_det": det, "matmul": matmul, "ran_hmm": hmm, "cyclic_rnd": rnd}
    return {"samples": samples} | {f"position_{task}": at for task, at in (positions | {"ran_lds": lds}).items()}


@registry.experiment("limits-fig2")
class LimitsFig2(GridExperiment):
    """Learning curves on the grid of trainings that Figure 3 and Table 3 also use."""

    title = "Learning curves of RNNs and Transformers"
    in_paper = "[Limits] §4.3", "RNN consistently converges faster than all Transformers."
    summary = (
        "A one-layer RNN and Transformers of growing depth learn hidden Markov processes whose exact answers are known. "
        "The evaluation loss is the mean distance of a model's answers at one position from the exact answers: half "
        "the L1 distance of distributions, or the Euclidean distance of vectors. " + EPOCHS
    )
    num_seeds = lab.Experiment.NUM_SEEDS
    run_columns = ("task", "layers")
    sizes = {
        "smoke": _sizes(64, 2, 3, 2, 4, 3, 3),
        "small": _sizes(1024, 8, 12, 6, 16, 12, 15),
        "medium": _sizes(4096, 8, 16, 16, 32, 16, 31),
        "gpu": _sizes(4096, 8, 24, 16, 64, 24, 63),
        "paper": _sizes(16384, 10, 30, 30, 120, 30, 119),  # 10, 30, 30 and 120 of 120 in the paper
    }
    measure_per_run = True
    groups = {"epochs": ("epochs",), "references": ("references",)}

    def choices(self, scale: str) -> dict[str, Any]:
        return {"tasks": list(FOUR[:2] if scale == "smoke" else FOUR), "layers": all_layers(scale)}

    def plan(self, scale: str, **choices: Any) -> dict[str, dict[str, Any]]:
        return grid(scale, choices["tasks"], choices["layers"])

    def measure(self, runs: dict[str, Run], group: str, sizes: dict[str, Any]) -> lab.MeasuredTables:
        if group == "epochs":
            return {"epochs": [row for run in runs.values() for row in _epoch_rows(run, sizes)]}
        of_task = {identity(run)["task"]: run for run in runs.values() if not is_deep(run)}
        return {"references": [row for task, run in of_task.items() for row in _references(task, run, sizes)]}

    def figures(self, tables: lab.Tables) -> list[lab.Figure]:
        return [_shown(tables), _explorer(tables["epochs"])]

    def without_training(self, tables: lab.Tables) -> lab.Tables:
        nothing = {
            key: fmean(row["value"] for row in own) for key, own in tables["references"].by("task", "position").items()
        }
        epochs = tables["epochs"].with_columns(
            value=lambda row: nothing.get((row["task"], row["position"])),
            distances=lambda row: [nothing.get((row["task"], position)) for position in row["positions"]],
        )
        return {**tables, "epochs": epochs}


def _epoch_rows(run: Run, sizes: dict[str, Any]) -> list[dict]:
    found, facts = epochs_of(run), identity(run)
    name = f"position_{facts['task'].replace('-', '_')}"
    at, last = sizes[name], found.positions[-1]
    require(at in found.positions, f"measurements.{name}", f"must be in [{found.positions[0]}, {last}]", at)
    index = found.positions.index(at)
    return [
        {**facts, "epoch": row["epoch"], "step": row["step"], "sequences": row["sequences"]}
        | {"position": at, "value": row["distances"][index]}
        | {"positions": found.positions, "distances": row["distances"]}
        for row in found.rows
    ]


def _references(task: str, run: Run, sizes: dict[str, Any]) -> list[dict]:
    rows = evaluation_losses(run.model, run.dataset("probe"), num_samples=sizes["samples"], target=TASKS[task][1])
    return [{"task": task} | row for row in rows if row["predictor"] == "constant"]


# ---------------------------------------------------------------------------------------------------------------------
# Figures


def _shown(tables: lab.Tables) -> lab.Figure:
    panels = []
    for task, own in tables["epochs"].by("task").items():
        at = own[0]["position"]
        ends = (min(own.values("sequences")), max(own.values("sequences")))
        nothing = [row["value"] for row in tables["references"].where(task=task, position=at)]
        series = [lab.curve(own.where(layers=n), "sequences", model_name(n), "model") for n in layers_of(own)]
        series.append(lab.level(0.0, ends, "exact filter", "optimum"))
        series.append(lab.level(fmean(nothing), ends, "constant answer") if nothing else None)
        shown: dict[str, Any] = {"x_label": "sequences seen", "y_label": "evaluation loss", "y_min": 0.0, "log_x": True}
        panels.append(lab.lines(f"{task_title(task)}, position {at}", *series, **shown))
    return lab.Figure(
        name="evaluation-loss",
        title="Evaluation loss at one position, by number of training sequences",
        caption=(
            "Curves show the distance of a model's answer from the exact answer, at the position in the panel's title, "
            "against the number of training sequences. All models of a task see equally many sequences. At the scales "
            "smoke and paper, Transformers are trained on prefixes that double in length. On Cyclic-HARD, the distance is a "
            "mean over the samples with a label of the state at this position. Bands are 95 % intervals over seeds."
        ),
        panels=tuple(panels),
    )


def _explorer(rows: lab.Rows) -> lab.Figure:
    curves = []
    for task, of_task in rows.by("task").items():
        for n in layers_of(of_task):
            own = of_task.where(layers=n)
            positions, shown_first = own[0]["positions"], own[0]["position"]
            for i, position in sorted(enumerate(positions), key=lambda pair: pair[1] != shown_first):
                at = lab.Rows(row | {"value": row["distances"][i]} for row in own)
                found = lab.curve(at, "sequences", "", "model")
                if found is not None:
                    curves.append(found.choice(task_title(task), model_name(n), str(position)))
    panel = lab.Explorer(
        title="",
        x_label="sequences seen",
        y_label="evaluation loss",
        choices=("task", "model", "position"),
        curves=tuple(curves),
        y_min=0.0,
        log_x=True,
    )
    return lab.Figure(
        name="every-position",
        title="Evaluation loss in training, for a choice of task, model and position",
        caption="Curves show the loss against the number of training sequences. Bands are 95 % intervals over seeds.",
        panels=(panel,),
    )


# ---------------------------------------------------------------------------------------------------------------------
# Claims

#: A model has converged at a position once its evaluation loss stays below this.
CONVERGED = 0.1
#: Number of epochs averaged at the end of a training.
LAST = 3
#: First fraction of a training, left out by the paper's curves: the learning rate is still rising.
FIRST = 0.1


def alike(rows: lab.Rows) -> lab.Rows:
    most = {
        task: min(max(one.values("sequences")) for one in own.by("layers").values())
        for task, own in rows.by("task").items()
    }
    return lab.Rows(row for row in rows if row["sequences"] <= most[row["task"]])


def _matched(rows: lab.Rows) -> tuple[lab.Gate, ...]:
    return tuple(
        lab.Gate.matched(
            {model_name(n): {"sequences": max(one.values("sequences"))} for n, one in own.by("layers").items()}
        ).about(task_title(task))
        for task, own in rows.by("task").items()
    )


class ConvergenceInterval(NamedTuple):
    """Bounds, from two evaluations, on the number of sequences seen until the loss stays below `CONVERGED`."""

    after: float
    until: float | None


def crossing(rows: lab.Rows, numbers: lab.Numbers = None) -> ConvergenceInterval | None:
    known = sorted((row["sequences"], row["value"]) for row in rows if row["value"] is not None)
    if not known:
        return None
    after, until = 0.0, None
    for sequences, value in known:
        if value >= lab.parameter(numbers, "rate", CONVERGED):
            after, until = sequences, None
        elif until is None:
            until = sequences
    return ConvergenceInterval(after, until)


def advantage(rows: lab.Rows, numbers: lab.Numbers = None) -> tuple[float | None, float | None]:
    """Bound log2(sequences until the fastest Transformer converges / sequences until the RNN does): (lower, upper)."""
    found = {n: crossing(own, numbers) for n, own in rows.by("layers").items()}
    recurrent = found.pop(0, None)
    others = [one for one in found.values() if one is not None]
    if recurrent is None or not others:
        return None, None
    after = min(one.after for one in others)
    until = min((one.until for one in others if one.until is not None), default=None)
    least = None if recurrent.until is None or after == 0 else math.log2(after / recurrent.until)
    most = None if until is None or recurrent.after == 0 else math.log2(until / recurrent.after)
    return least, most


def doublings(bounds: tuple[float | None, float | None]) -> float | None:
    """Return the middle of lower and upper bound, or the only one if it shows the value's sign, else None."""
    least, most = bounds
    if least is not None and most is not None:
        return (least + most) / 2
    if least is not None:
        return least if least > 0 else None
    return most if most is not None and most < 0 else None


@lab.claim("limits-rnn-converges-faster")
def converges_faster(tables: lab.Tables, numbers: lab.RuleParameters) -> lab.Measurement:
    rows = alike(tables["epochs"])
    first = {
        task: lab.parameter(numbers, "first", FIRST) * max(own.values("sequences"))
        for task, own in rows.by("task").items()
    }
    rows = lab.Rows(row for row in rows if row["sequences"] > first[row["task"]])
    effects, sooner = {}, []
    for task in FOUR:
        bounds = list(rows.where(task=task).per_seed(partial(advantage, numbers=numbers)).values())
        values = [doublings(one) for one in bounds]
        known = [value for value in values if value is not None]
        if known:
            widths = [most - least for least, most in bounds if least is not None and most is not None]
            resolution = fmean(widths) if widths else 0.0
            effects[task_title(task)] = lab.Effect.pooled(
                values, "doublings of the sequences to convergence from RNN to Transformer", resolution=resolution
            )
            sooner.append(f"{task_title(task)} {sum(value > 0 for value in known)} of {len(known)}")
    text = f"log2(sequences until the fastest Transformer converges / sequences until the RNN converges): {told(effects)}. "
    text += f"Seeds in which the RNN converges first: {', '.join(sooner) or 'none'}."
    return lab.Measurement(effects, text, gates=_gates(tables, rows, numbers), required=titles(FOUR))


def _at_end(rows: lab.Rows, numbers: lab.Numbers = None) -> float | None:
    known = sorted((row["sequences"], row["value"]) for row in rows if row["value"] is not None)
    return fmean(value for _, value in known[-lab.parameter(numbers, "last", LAST) :]) if known else None


def _lead(rows: lab.Rows, numbers: lab.Numbers = None) -> float | None:
    found = {n: _at_end(own, numbers) for n, own in rows.by("layers").items()}
    recurrent = found.pop(0, None)
    others = [value for value in found.values() if value is not None]
    return min(others) - recurrent if recurrent is not None and others else None


def _gates(tables: lab.Tables, rows: lab.Rows, numbers: lab.Numbers = None) -> tuple[lab.Gate, ...]:
    deep = [n for n in layers_of(rows) if n]
    whole = lab.Rows({"task": row["task"], "position": row["positions"][-1]} for row in rows)
    return (
        *_learned(tables, rows, [0], numbers),
        *_learned(tables, rows, deep, numbers),
        *_matched(rows),
        *rarely_asked(whole, numbers),
    )


def _learned(
    tables: lab.Tables, rows: lab.Rows, layers: list[int], numbers: lab.Numbers = None
) -> tuple[lab.Gate, ...]:
    def lead(own: lab.Rows) -> float | None:
        nothing = tables["references"].where(task=own[0]["task"], position=own[0]["position"], seed=own[0].get("seed"))
        ends = [_at_end(own.where(layers=n), numbers) for n in layers]
        known = [end for end in ends if end is not None]
        return fmean(row["value"] for row in nothing) - min(known) if known and nothing else None

    leads = each_task(rows, FOUR, lead, "")
    who = "Transformer" if any(layers) else "RNN"
    return tuple(
        lab.Gate.learned(
            leads.get(task), lab.parameter(numbers, "rate", CONVERGED), f"a constant answer ({who}, {task})"
        ).about(task)
        for task in titles(one for one in FOUR if rows.where(task=one))
    )


def _drift(rows: lab.Rows, measure: Callable[[lab.Rows], float | None]) -> float | None:
    until = max(rows.values("sequences"), default=0) / 2
    half = lab.Rows(row for row in rows if row["sequences"] <= until)
    return mean_change(half.per_seed(measure), rows.per_seed(measure))


@lab.claim("limits-rnn-final-accuracy")
def final_accuracy(tables: lab.Tables, numbers: lab.RuleParameters) -> lab.Measurement:
    rows = alike(tables["epochs"])
    effects = each_task(
        rows, FOUR, partial(_lead, numbers=numbers), "loss of the best Transformer minus loss of the RNN"
    )
    seen = []
    for task, own in rows.by("task").items():
        ends = {n: over_seeds(own.where(layers=n), partial(_at_end, numbers=numbers)) for n in layers_of(own)}
        shown = ", ".join(f"{model_name(n)} {one.value:.4f}" for n, one in ends.items() if one is not None)
        seen.append(f"{task_title(task)} ({max(own.values('sequences')):,} sequences) {shown}")
    text = f"Mean evaluation loss after equal training: {'; '.join(seen)}. "
    text += "If the RNN is trained on more sequences than this, its learning rate is not yet final here."
    drifts = {task_title(task): _drift(own, partial(_lead, numbers=numbers)) for task, own in rows.by("task").items()}
    return lab.Measurement(
        effects, text, gates=_gates(tables, rows, numbers), required=titles(FOUR), last_doubling_change=drifts
    )


@lab.claim("limits-rnn-better-throughout")
def better_throughout(tables: lab.Tables, numbers: lab.RuleParameters) -> lab.Measurement:
    rows = alike(tables["epochs"])
    nothing = {key: fmean(one.values("value")) for key, one in tables["references"].by("task", "position").items()}

    def least(own: lab.Rows) -> float | None:
        leads, most = [], nothing.get((own[0]["task"], own[0]["position"]), math.inf)
        begin = lab.parameter(numbers, "first", FIRST) * max(own.values("sequences"))
        for one in lab.Rows(row for row in own if row["sequences"] > begin).by("sequences").values():
            values = {row["layers"]: min(row["value"], most) for row in one if row["value"] is not None}
            recurrent = values.pop(0, None)
            if recurrent is not None and values:
                leads.append(min(values.values()) - recurrent)
        return min(leads, default=None)

    unit = "least difference over evaluations between the best Transformer's loss and the RNN's"
    effects = each_task(rows, FOUR, least, unit)
    text = f"Loss of the best Transformer minus loss of the RNN, smallest over evaluations: {told(effects)}."
    return lab.Measurement(effects, text, gates=_gates(tables, rows, numbers), required=titles(FOUR))


@lab.claim("limits-rnn-fits-longer")
def fits_longer(tables: lab.Tables, numbers: lab.RuleParameters) -> lab.Measurement:
    rows = alike(tables["epochs"])

    def length(own: lab.Rows) -> float:
        last = sorted(own, key=lambda row: row["sequences"])[-lab.parameter(numbers, "last", LAST) :]
        return crossing_length(
            [row["distances"] for row in last],
            own[0]["positions"],
            lab.parameter(numbers, "rate", CONVERGED),
            last=len(last),
            definition=lab.parameter(numbers, "definition", "prefix"),
        )

    def longer(own: lab.Rows) -> float | None:
        found = {n: math.log2(max(length(one), 1.0)) for n, one in own.by("layers").items()}
        recurrent = found.pop(0, None)
        return recurrent - max(found.values()) if recurrent is not None and found else None

    most = max(
        (row["positions"][-1] for row in rows), default=2
    )  # longer fits are impossible, so lengths differ by a position or more
    resolution = math.log2(most / (most - 1))
    unit = "doublings from the best Transformer's fit length to the RNN's"
    effects = each_task(rows, FOUR, longer, unit, resolution=resolution)
    drifts = {task_title(task): _drift(own, longer) for task, own in rows.by("task").items()}
    text = f"log2(fit length of the RNN / fit length of the best Transformer), at error rate 0.1: {told(effects)}."
    return lab.Measurement(
        effects, text, gates=_gates(tables, rows, numbers), required=titles(FOUR), last_doubling_change=drifts
    )


@lab.claim("limits-supervision-rnn")
def supervision_rnn(tables: lab.Tables, numbers: lab.RuleParameters) -> lab.Measurement:
    rows = alike(tables["epochs"].where(task=[HARD, "cyclic-det"])).with_columns(value=_over_positions)
    deepest = max(layers_of(rows), default=0)

    def harm(layers: int) -> Callable[[lab.Rows], float | None]:
        def of_seed(own: lab.Rows) -> float | None:
            hard, easy = (_at_end(own.where(task=task, layers=layers), numbers) for task in (HARD, "cyclic-det"))
            return None if hard is None or easy is None else hard - easy

        return of_seed

    def difference(own: lab.Rows) -> float | None:
        deep, recurrent = harm(deepest)(own), harm(0)(own)
        return None if deep is None or recurrent is None else deep - recurrent

    parts = {model_name(n): over_seeds(rows, harm(n)) for n in (deepest, 0)}
    shown = told({name: one for name, one in parts.items() if one})
    text = f"Evaluation loss on Cyclic-HARD minus evaluation loss on Cyclic-DET: {shown}."
    compared = rows.where(layers=[0, deepest])
    effect = over_seeds(rows, difference, "the deepest Transformer's loss increase by rare labels minus the RNN's")
    own = alike(tables["epochs"].where(task=[HARD, "cyclic-det"], layers=[0, deepest]))
    return lab.Measurement(
        effect, text, gates=_gates(tables, own, numbers), last_doubling_change=_drift(compared, difference)
    )


def _over_positions(row: Mapping[str, Any]) -> float | None:
    known = [loss for loss in row["distances"] if loss is not None]
    return fmean(known) if known else None
