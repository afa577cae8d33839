"""Cyclic-HARD at different supervision rates, for Transformers and the RNN."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

from hmmscope import Run, lab, registry
from hmmscope_papers.limits.lengths import RARELY, RATE, claimed_length, final_losses, length_of, log2, slope
from hmmscope_papers.limits.tables import (
    HARD,
    WHILE_TRAINING,
    drift,
    each,
    layers_of,
    model_name,
    never_fitting,
    over_seeds,
    relabelled,
    told,
    training_rows,
)
from hmmscope_papers.limits.trainings import grid, identity, label_of, limits_config, shortened
from hmmscope_papers.limits.trainings import length_of as length_of_scale

#: Mean number of samples that an evaluation while training supervises at each position, if not 64. At medium the rarest
#: rate is that of the experiments on [Limits], whose runs are shared.
_ASKED = {"medium": 128}


@registry.experiment("limits-hard-dose")
class LimitsHardDose(lab.Experiment):
    """Cyclic-HARD at one sequence length, with growing numbers of actions per label of the state."""

    title = "Effect of the number of actions per label of the state"
    summary = (
        "In Cyclic-HARD an action is followed by a label of the state only with a probability, the supervision rate "
        "alpha. The paper has alpha = 1/120 and finds that no Transformer fits even a constant length, while the RNN "
        "does. This experiment lowers alpha at a fixed sequence length; at each alpha, the RNN sees as many sequences "
        "as the Transformers. The paper's alpha, length of 120 and 5·10⁸ sequences are out of reach of two cores."
    )
    num_seeds = lab.Experiment.NUM_SEEDS
    run_columns = ("actions", "layers")
    sizes = {
        "smoke": {"samples": 64, "least_count": 4},
        "small": {"samples": 4096, "least_count": 128},
        "medium": {"samples": 4096, "least_count": 256},
        "gpu": {"samples": 8192, "least_count": 512},
    }
    measure_per_run = True
    groups = {"losses": ("positions", WHILE_TRAINING)}
    #: Choices of the plan: actions between two questions, and layers (0 for the RNN).
    shapes: dict[str, dict[str, Any]] = {
        "smoke": {"actions": [2, 4], "layers": [0, 1]},
        "small": {"actions": [4, 16, 64], "layers": [0, 2]},
        "medium": {"actions": [8, 16, 32], "layers": [0, 1, 2, 3, 4, 5]},
        "gpu": {"actions": [8, 32, 128], "layers": [0, 2, 4]},
    }

    def choices(self, scale: str) -> dict[str, Any]:
        return dict(self.shapes[scale])

    def plan(self, scale: str, **choices: Any) -> dict[str, dict[str, Any]]:
        found = {}
        for actions in choices["actions"]:
            changes: dict[str, Any] = {"process": {"prediction_rate": 1 / actions}, "curriculum": False}
            changes["training"] = {"evaluate_samples": _ASKED.get(scale, 64) * actions}
            if scale == "small":  # fewer than the grid: three rates in ten minutes
                changes["training"] |= {"num_steps": 2000, "epoch_steps": 100, "evaluate_every": 100}
            elif scale == "medium" and actions != length_of_scale(scale):  # equally many answers at each rate
                whole = limits_config(scale, HARD, 0)["training"]["num_steps"]
                changes["training"] |= shortened(whole * actions // length_of_scale(scale))
            runs = grid(scale, [HARD], choices["layers"], **changes)
            for label, data in runs.items():
                most = runs[label_of(HARD, choices["layers"][-1])]["training"]
                data["training"] |= {key: most[key] for key in ("num_steps", "halve_every", "checkpoint_every")}
                found[f"1 in {actions}, {label}"] = data
        return found

    def measure(self, runs: dict[str, Run], group: str, sizes: dict[str, Any]) -> lab.MeasuredTables:
        tables: lab.MeasuredTables = {"positions": [], WHILE_TRAINING: []}
        for run in runs.values():
            facts = {"layers": identity(run)["layers"], "actions": round(1 / run.config.process.prediction_rate)}
            tables["positions"] += [facts | row for row in final_losses(run, HARD, sizes)]
            tables[WHILE_TRAINING] += training_rows(run, [RATE], facts)
        return tables

    def figures(self, tables: lab.Tables) -> list[lab.Figure]:
        rows = tables["positions"]
        models = rows.where(predictor="model")
        longest, doses = max(rows.values("position")), [float(actions) for actions in rows.values("actions")]
        lengths = lab.Rows(
            {"layers": n, "actions": actions, "seed": seed, "value": length_of(own, RATE).value}
            for (n, actions, seed), own in models.by("layers", "actions", "seed").items()
        )
        series: list[lab.Series | None] = [
            lab.curve(lengths.where(layers=n), "actions", model_name(n), "model" if n else "other")
            for n in layers_of(lengths)
        ]
        series.append(lab.level(longest, (min(doses), max(doses)), "end of the sequence", "ceiling"))
        shown: dict[str, Any] = {"x_label": "actions per label of the state", "y_label": "fit length", "y_min": 0.0}
        caption = (
            f"Curves show the interpolated position at which the evaluation loss after training crosses {RATE:g}. The "
            "loss is measured at labels of the state only. All models of a supervision rate see equally many sequences. "
            "Bands are 95 % intervals over seeds."
        )
        panel = lab.lines(f"Sequences of {longest}", *series, log_x=True, y_max=1.08 * longest, **shown)
        return [
            lab.Figure(
                name="dose",
                title="Fit length by the number of actions per label of the state",
                caption=caption,
                panels=(panel,),
            )
        ]

    def without_training(self, tables: lab.Tables) -> lab.Tables:
        rows = relabelled(tables["positions"], "constant")
        return {**tables, "positions": rows, WHILE_TRAINING: never_fitting(tables[WHILE_TRAINING])}


# ---------------------------------------------------------------------------------------------------------------------
# Claims


def _then(own: lab.Rows, numbers: lab.Numbers = None) -> lab.EstimateWithError:
    return lab.EstimateWithError(own[0]["length"])


def _lengths(
    own: lab.Rows,
    recurrent: bool,
    length: Callable[..., lab.EstimateWithError] = claimed_length,
    numbers: lab.Numbers = None,
) -> dict[int, lab.EstimateWithError]:
    found = {}
    for actions, rows in own.by("actions").items():
        kept = [log2(length(one, numbers)) for n, one in rows.by("layers").items() if (n == 0) == recurrent]
        if kept:
            found[actions] = max(kept)
    return found


def _behind(own: lab.Rows, numbers: lab.Numbers = None) -> lab.EstimateWithError | None:
    deep, flat = (_lengths(own, recurrent, numbers=numbers) for recurrent in (False, True))
    return next((flat[actions] - deep[actions] for actions in deep if actions in flat), None)


def _models(tables: lab.Tables) -> lab.Rows:
    return tables["positions"].where(predictor="model")


@lab.claim("limits-hard-dose-slope")
def dose_slope(tables: lab.Tables, numbers: lab.RuleParameters) -> lab.Measurement:
    rows = _models(tables)

    def fall(own: lab.Rows, recurrent: bool, length: Any = claimed_length) -> lab.EstimateWithError | None:
        points = [(math.log2(actions), one) for actions, one in _lengths(own, recurrent, length, numbers).items()]
        return slope(points) if len(points) > 1 else None

    def difference(own: lab.Rows, length: Any = claimed_length) -> lab.EstimateWithError | None:
        deep, flat = fall(own, False, length), fall(own, True, length)
        return None if deep is None or flat is None else deep - flat

    parts = {
        "Transformer": over_seeds(rows, lambda own: fall(own, False)),
        "RNN": over_seeds(rows, lambda own: fall(own, True)),
    }
    slopes = told({k: v for k, v in parts.items() if v})
    text = f"Slope of log2 of the fit length over log2 of the number of actions per label: {slopes}."
    asked = lab.Gate.regime(
        1 / max(rows.values("actions")),
        0,
        lab.parameter(numbers, "rarely", RARELY),
        "the smallest fraction of actions after which the model must predict the state",
    )
    gates = [asked, lab.Gate.matched(_budgets(tables))]
    for who, depths in {"RNN": [0], "Transformer": [n for n in layers_of(rows) if n]}.items():
        lead = over_seeds(tables["positions"].where(layers=depths), partial(_lead, numbers=numbers), resolution=1.0)
        gates.append(
            lab.Gate.learned(lead, lab.parameter(numbers, "learned"), f"a constant answer in fit length ({who})")
        )
    moved = drift(tables[WHILE_TRAINING], lambda own: difference(own, _then), numbers)
    return lab.Measurement(
        over_seeds(rows, difference, "doublings of the fit length per doubling of the actions per label"),
        text,
        gates=gates,
        last_doubling_change=moved,
    )


def _lead(own: lab.Rows, numbers: lab.Numbers = None) -> float:
    rarest = own.where(actions=max(own.values("actions"))).by("layers").values()
    model, constant = (
        max(claimed_length(one.where(predictor=name), numbers).value for one in rarest)
        for name in ("model", "constant")
    )
    return model - constant


def _budgets(tables: lab.Tables) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    for n, own in tables[WHILE_TRAINING].by("layers").items():
        found[model_name(n)] = {"sequences": float(max(own.values("sequences")))}
    return found


def dose_threshold(tables: lab.Tables, numbers: lab.Numbers = None) -> lab.Measurement:
    rows = _models(tables)
    found = each(
        rows, "actions", partial(_behind, numbers=numbers), "doublings of the RNN's fit length above the Transformer's"
    )
    effects = {f"1 in {actions}": found[actions] for actions in sorted(found, reverse=True)}
    deep = each(
        rows, "actions", lambda own: max(claimed_length(one, numbers).value for n, one in own.by("layers").items() if n)
    )
    flat = each(rows.where(layers=0), "actions", lambda own: claimed_length(own, numbers).value)
    said = "; ".join(
        f"1 in {actions}: {deep[actions].value:.3g} and {flat[actions].value:.3g}"
        for actions in deep
        if actions in flat
    )
    failing = [actions for actions in deep if actions in flat and deep[actions].value < 1 <= flat[actions].value / 2]
    text = f"Mean fit length (loss below 0.1), best Transformer and RNN, by labels per action: {said or 'none'}. "
    rates = ", ".join(f"1 in {a}" for a in failing) or "none"
    text += f"Label rates at which no Transformer fits even the first position, and the RNN fits at least two: {rates}."
    return lab.Measurement(effects, text)
