"""[Limits] Figure 5: effect of width, heads and learning rate on Transformers and the RNN."""

from collections.abc import Callable
from typing import Any

from hmmscope import Run, lab, registry
from hmmscope.analysis import evaluation_losses
from hmmscope.schema import require, require_known
from hmmscope.ties import smallest
from hmmscope_papers.limits.tables import (
    WHILE_TRAINING,
    drift,
    each,
    equal_budgets,
    fit_length_of,
    over_seeds,
    relabelled,
    training_rows,
    while_training,
)
from hmmscope_papers.limits.trainings import TASKS, is_deep, limits_config, shortened

_PAPER = {"head_counts": [1, 2, 4, 8, 16], "steps": 0, "rates": [0.0002, 0.001, 0.005]}


@registry.experiment("limits-fig5")
class Figure5(lab.Experiment):
    """Transformers of several widths and numbers of heads; several learning rates of one Transformer and the RNN."""

    title = "Effect of width, number of heads and learning rate on the loss"
    in_paper = "[Limits] App. C.1, on model sizes", "We choose the best configuration for the remaining of the tasks."
    summary = (
        "Transformers with different widths of the residual stream and different numbers of heads are trained with the "
        "same recipe. The paper chose 8 heads and width 512 among several sizes, and does not report results of the "
        "other sizes. A Transformer and the RNN are also trained with several learning rates."
    )
    num_seeds = {"smoke": 2, "small": 3, "medium": 9, "gpu": 3, "paper": 3}
    run_columns = ("layers", "width", "heads", "rate")
    #: Choices of the plan: heads are varied at `width`, widths at `heads`; steps 0 means the steps of the scale.
    shapes: dict[str, dict[str, Any]] = {
        "smoke": {"tasks": ["cyclic-det"], "layers": [1], "widths": [4, 8], "head_counts": [1, 2]}
        | {"width": 8, "heads": 2, "steps": 12, "rates": [0.001, 0.004]},
        "small": {"tasks": ["cyclic-det"], "layers": [2], "widths": [16, 32, 64, 128], "head_counts": [1, 2, 4, 8]}
        | {"width": 64, "heads": 4, "steps": 1100, "rates": [0.0005, 0.002, 0.008]},
        "medium": {"tasks": ["cyclic-det"], "layers": [2], "widths": [16, 64, 128], "head_counts": [1, 4, 8]}
        | {"width": 64, "heads": 4, "steps": 5000, "rates": [0.0005, 0.002, 0.008]},
        "gpu": _PAPER
        | {"tasks": ["cyclic-det", "matmul"], "layers": [2, 3], "widths": [32, 64, 128, 256, 512]}
        | {"width": 256, "heads": 8, "steps": 2500},
        "paper": _PAPER
        | {"tasks": ["cyclic-det", "matmul"], "layers": [3, 4, 5], "widths": [64, 128, 256, 512]}
        | {"width": 512, "heads": 8},
    }
    sizes = {
        "smoke": {"samples": 32},
        "small": {"samples": 1024},
        "medium": {"samples": 1024},
        "gpu": {"samples": 4096},
        "paper": {"samples": 4096},
    }
    groups = {"errors": ("errors", WHILE_TRAINING)}

    def choices(self, scale: str) -> dict[str, Any]:
        return dict(self.shapes[scale])

    def plan(self, scale: str, **choices: Any) -> dict[str, dict[str, Any]]:
        for task in choices["tasks"]:
            require_known("plan.tasks", task, TASKS)
        pairs = [(width, choices["heads"]) for width in choices["widths"]]
        pairs += [(choices["width"], heads) for heads in choices["head_counts"]]
        for width, heads in pairs:
            rule = f"must be a multiple of the number of heads {heads}"
            require(heads >= 1 and width % heads == 0, "plan.widths", rule, width)
        training, usual = shortened(choices["steps"]), (choices["width"], choices["heads"])
        plan = {}
        for task in choices["tasks"]:
            for layers in choices["layers"]:
                for width, heads in pairs:
                    model = {"width": width, "num_heads": heads}
                    plan[_label(task, layers, width, heads)] = limits_config(
                        scale, task, layers, model=model, training=training
                    )
            for layers in (choices["layers"][0], 0):
                model = {"width": usual[0], "num_heads": usual[1]} if layers else {}
                for rate in choices["rates"]:
                    own = shortened(choices["steps"]) | {"learning_rate": rate}
                    plan[_label(task, layers, *usual, rate)] = limits_config(
                        scale, task, layers, model=model, training=own
                    )
        return plan

    def measure(self, runs: dict[str, Run], group: str, sizes: dict[str, Any]) -> lab.MeasuredTables:
        sized = [(run.config.model.width, run.config.model.num_heads) for run in runs.values() if is_deep(run)]
        common = {"width": _most_varied(sized), "heads": _most_varied([(heads, width) for width, heads in sized])}
        usual = _usual_rates(runs)
        tables: lab.MeasuredTables = {"errors": [], WHILE_TRAINING: []}
        for run in runs.values():
            facts = _facts(run, common, usual)
            tables["errors"] += _rows(run, facts, sizes["samples"])
            tables[WHILE_TRAINING] += training_rows(run, [0.05], facts)
        return tables

    def figures(self, tables: lab.Tables) -> list[lab.Figure]:
        return [_figure(own, task) for task, own in tables["errors"].by("task").items()]

    def without_training(self, tables: lab.Tables) -> lab.Tables:
        return {**tables, "errors": relabelled(tables["errors"], "untrained")}


def _label(task: str, layers: int, width: int, heads: int, rate: float | None = None) -> str:
    sized = f"{layers} layer{'s' * (layers > 1)}, width {width}, {heads} head{'s' * (heads > 1)}" if layers else "RNN"
    return f"{task}, {sized}" + ("" if rate is None else f", learning rate {rate:g}")


def _most_varied(pairs: list[tuple[int, int]]) -> int:
    return max(dict(pairs), key=lambda first: len({second for one, second in pairs if one == first}))


def _usual_rates(runs: dict[str, Run]) -> dict[str, float]:
    rates: dict[str, list[float]] = {}
    for run in runs.values():
        if is_deep(run):
            rates.setdefault(run.config.process.name, []).append(run.config.training.learning_rate)
    return {task: max(found, key=found.count) for task, found in rates.items()}


def _facts(run: Run, common: dict[str, int], usual: dict[str, float]) -> dict[str, Any]:
    model, rate = run.config.model, run.config.training.learning_rate
    heads = getattr(model, "num_heads", 0)
    varied = is_deep(run) and rate == usual[run.config.process.name]
    at_centre = (model.width, heads) == (common["width"], common["heads"]) or not is_deep(run)
    return {
        "task": TASKS[run.config.process.name][2],
        "layers": model.num_layers if is_deep(run) else 0,
        "width": model.width,
        "heads": heads,
        "rate": rate,
        "vary_width": varied and heads == common["heads"],
        "vary_heads": varied and model.width == common["width"],
        "vary_rate": at_centre,
    }


def _rows(run: Run, facts: dict[str, Any], num_samples: int) -> list[dict]:
    shared = facts | {"parameters": (run.summary or {})["parameters"], "fit_length": fit_length_of(run, 0.05)}
    values: dict[str, list[float]] = {}
    for name, network in {"model": run.model, "untrained": run.untrained()}.items():
        found = evaluation_losses(network, run.dataset(), num_samples=num_samples, target=run.config.target)
        for row in found:
            known = row["predictor"] if name == "model" else name
            if name == "model" or row["predictor"] == "model":
                values.setdefault(known, []).append(row["value"])
    return [
        shared | {"predictor": name, "value": sum(found) / len(found), "samples": num_samples}
        for name, found in values.items()
    ]


def _figure(rows: lab.Rows, task: str) -> lab.Figure:
    def panel(axis: str, label: str, varied: str) -> lab.Panel:
        kept = rows.where(**{varied: True})
        series = (
            lab.curve(kept.where(predictor="model"), axis, "Transformer", "model"),
            lab.level(0.0, sorted(kept.values(axis)), "exact answer", "optimum"),
            lab.curve(kept.where(predictor="constant"), axis, "constant answer", "baseline"),
            lab.curve(kept.where(predictor="untrained"), axis, "before training", "control"),
        )
        return lab.lines("", *series, x_label=label, y_label="mean evaluation loss", log_x=True)

    depths = ", ".join(str(n) for n in sorted(n for n in rows.values("layers") if n))
    heads = min(rows.where(vary_width=True).values("heads"))
    width = min(rows.where(vary_heads=True).values("width"))
    return lab.Figure(
        name=f"width-and-heads-{task.lower()}",
        title=f"Loss by width and by number of heads, {task}",
        caption=(
            f"Curves show the evaluation loss after training, averaged over positions, of models with {depths} layers. "
            f"Left: against the width, with {heads} heads. Right: against the number of heads, at width {width}. Lines are "
            "means over seeds (and over depths if there are several); bands are 95 % intervals over seeds."
        ),
        panels=(panel("width", "width of the residual stream", "vary_width"), panel("heads", "heads", "vary_heads")),
    )


# ---------------------------------------------------------------------------------------------------------------------
# Claims


def _mean(own: lab.Rows) -> float:
    return sum(row["value"] for row in own) / len(own)


def _counted(axis: str, value: int) -> str:
    return f"{axis} {value}" if axis == "width" else f"{value} head{'s' * (value != 1)}"


def _along(rows: lab.Rows, axis: str) -> lab.Measurement:
    values = sorted(rows.values(axis))
    found = each(rows, axis, _mean)
    listed = "; ".join(f"{found[value].value:.3f} with {_counted(axis, value)}" for value in values)
    if len(values) < 2:
        return lab.Measurement(None, f"Only one value was trained: the mean evaluation loss is {listed}.")
    effect = over_seeds(
        rows,
        lambda own: _mean(own.where(**{axis: values[0]})) - _mean(own.where(**{axis: values[-1]})),
        f"mean loss with {_counted(axis, values[0])} minus mean loss with {_counted(axis, values[-1])}",
    )
    assert effect is not None
    clear = effect.low is not None and effect.high is not None and not effect.low <= 0 <= effect.high
    seen = (
        f"{'falls' if effect.value > 0 else 'rises'} with the {'number of ' * (axis == 'heads')}{axis}"
        if clear
        else f"does not clearly depend on the {'number of ' * (axis == 'heads')}{axis}"
    )
    best = _counted(axis, smallest(found, lambda value: found[value].value))
    return lab.Measurement(effect, f"The mean evaluation loss {seen}: {listed}. It is smallest with {best}.")


@lab.claim("limits-fig5-width")
def width_matters(tables: lab.Tables) -> lab.Measurement:
    return _along(tables["errors"].where(predictor="model", vary_width=True), "width")


@lab.claim("limits-fig5-heads")
def heads_matter(tables: lab.Tables) -> lab.Measurement:
    return _along(tables["errors"].where(predictor="model", vary_heads=True), "heads")


@lab.claim("limits-rnn-tuning")
def rnn_tuning(tables: lab.Tables, numbers: lab.RuleParameters) -> lab.Measurement:
    rows = tables["errors"].where(predictor="model", vary_rate=True)
    deep = min((n for n in rows.values("layers") if n), default=0)
    later = while_training(tables, vary_rate=True, layers=[0, deep])
    effects, drifts = {}, {}
    for task, own in rows.by("task").items():
        values = list(own.per_seed(_wider("value", deep)).values())
        if any(value is not None for value in values):
            effects[task] = lab.Effect.pooled(
                values, "the Transformer's range of losses over learning rates minus the RNN's"
            )
            drifts[task] = drift(later.where(task=task), _wider("loss", deep), numbers)
    shown = [
        f"{task}, {'RNN' if n == 0 else f'{n} layers'}, {rate:g}: {_mean(own):.3f}"
        for (task, n, rate), own in rows.where(layers=[0, deep]).by("task", "layers", "rate").items()
    ]
    recurrent, others = (tables["errors"].where(layers=n, vary_rate=True) for n in (0, deep))
    gates = (
        equal_budgets(tables, _budget_labels(rows, deep)),
        lab.Gate.learned(
            over_seeds(recurrent, _best_lead), lab.parameter(numbers, "learned"), "the constant answer (RNN)"
        ),
        lab.Gate.learned(
            over_seeds(others, _best_lead), lab.parameter(numbers, "learned"), "the constant answer (Transformer)"
        ),
    )
    text = f"Mean evaluation loss by learning rate: {'; '.join(shown) or 'only one rate was trained'}."
    return lab.Measurement(effects, text, gates=gates, last_doubling_change=drifts)


def _wider(column: str, deep: int) -> Callable[[lab.Rows], float | None]:
    def of_seed(own: lab.Rows) -> float | None:
        both = [own.where(layers=layers) for layers in (deep, 0)]
        rates = set(both[0].values("rate")) & set(both[1].values("rate"))
        if len(rates) < 2:
            return None
        losses = [one.where(rate=list(rates)).values(column) for one in both]
        return (max(losses[0]) - min(losses[0])) - (max(losses[1]) - min(losses[1]))

    return of_seed


def _best_lead(own: lab.Rows) -> float:
    leads = []
    for one in own.by("task").values():
        least = {name: min(row["value"] for row in one.where(predictor=name)) for name in ("constant", "model")}
        leads.append(least["constant"] - least["model"])
    return min(leads)


def _budget_labels(rows: lab.Rows, deep: int) -> dict[str, str]:
    names = {title: task for task, (_, _, title) in TASKS.items()}
    found = {}
    for layers in (deep, 0):
        own = rows.where(layers=layers)
        if own:
            row = min(own, key=lambda one: one["rate"])
            task = names[row["task"]]
            found["RNN" if layers == 0 else "Transformer"] = _label(
                task, layers, row["width"], row["heads"], row["rate"]
            )
    return found
