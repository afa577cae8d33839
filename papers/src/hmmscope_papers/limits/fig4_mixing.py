"""[Limits] Figure 4, left: models of one depth on processes that forget at different speeds."""

from itertools import pairwise
from typing import Any

import torch

from hmmscope import Run, lab, registry
from hmmscope.analysis import bootstrap_means, evaluation_losses
from hmmscope.ties import largest, smallest
from hmmscope_papers.limits.tables import (
    WHILE_TRAINING,
    drift,
    each,
    equal_budgets,
    losses_at_rest,
    over_seeds,
    relabelled,
    sampled,
    told,
    training_rows,
    while_training,
)
from hmmscope_papers.limits.trainings import is_deep, limits_config, shortened

#: Backward probabilities of the paper.
PROBABILITIES = [0.01, 0.03, 0.05, 0.1, 0.15]


@registry.experiment("limits-fig4-mixing")
class Figure4Mixing(lab.Experiment):
    """A Transformer and the RNN at each backward probability of Cyclic-RND, after equally many sequences."""

    title = "Intermediate mixing speeds make the middle of the sequence hardest"
    in_paper = (
        "[Limits] §4.3",
        "the states of late steps are easier to predict since they have converged to a fixed stationary distribution.",
    )
    summary = (
        "Transformers of one depth infer the belief of Cyclic-RND with five probabilities of a backward step, from no "
        "mixing to mixing within the sequence. Symbols are uninformative about the state, so a predictor that sees only "
        "the last observations does no better than the uniform distribution, whose error is shown on the same samples. The "
        "RNN is trained on equally many sequences."
    )
    num_seeds = {"smoke": 2, "small": 3, "gpu": 3, "paper": 1}
    run_columns = ("probability", "predictor", "network")
    #: Choices of the plan; steps 0 means the steps of the scale.
    shapes: dict[str, dict[str, Any]] = {
        "smoke": {"probabilities": [0.01, 0.1, 0.15], "layers": 1, "length": 6, "steps": 12},
        "small": {"probabilities": PROBABILITIES, "layers": 2, "length": 24, "steps": 4000},
        "gpu": {"probabilities": PROBABILITIES, "layers": 4, "length": 64, "steps": 0},
        "paper": {"probabilities": PROBABILITIES, "layers": 4, "length": 120, "steps": 0},
    }
    sizes = {"smoke": {"samples": 32}, "small": {"samples": 2048}, "gpu": {"samples": 4096}, "paper": {"samples": 4096}}
    groups = {"errors": ("errors", WHILE_TRAINING)}

    def choices(self, scale: str) -> dict[str, Any]:
        return dict(self.shapes[scale])

    def plan(self, scale: str, **choices: Any) -> dict[str, dict[str, Any]]:
        return {
            _label(probability, layers): limits_config(
                scale,
                "cyclic-rnd",
                layers,
                length=choices["length"],
                process={"backward_probability": probability},
                training=shortened(choices["steps"]),
            )
            for layers in (choices["layers"], 0)
            for probability in choices["probabilities"]
        }

    def measure(self, runs: dict[str, Run], group: str, sizes: dict[str, Any]) -> lab.MeasuredTables:
        depth = max(run.config.model.num_layers for run in runs.values() if is_deep(run))
        tables: lab.MeasuredTables = {"errors": [], WHILE_TRAINING: []}
        for run in runs.values():
            facts = {"probability": run.config.process.backward_probability, "layers": depth}
            network = "model" if is_deep(run) else "rnn"
            tables["errors"] += [facts | row for row in _error_rows(run, network, sizes["samples"])]
            tables[WHILE_TRAINING] += training_rows(run, [ERROR_RATE], facts | {"network": network})
        return tables

    def figures(self, tables: lab.Tables) -> list[lab.Figure]:
        return [_together(tables["errors"]), _one_by_one(tables["errors"])]

    def without_training(self, tables: lab.Tables) -> lab.Tables:
        errors = relabelled(relabelled(tables["errors"], "untrained"), "untrained", "rnn")
        return {**tables, "errors": errors}


def _label(probability: float, layers: int) -> str:
    return f"backward {probability:g}" + ("" if layers else ", RNN")


def _error_rows(run: Run, network: str, num_samples: int) -> list[dict]:
    models = {network: run.model} | ({"untrained": run.untrained()} if network == "model" else {})
    rows = []
    for name, model in models.items():
        found = evaluation_losses(model, run.dataset(), num_samples=num_samples, target="belief")
        rows += [row | {"predictor": name} for row in found if row["predictor"] == "model"]
    if network == "model":
        uniform = bootstrap_means(uniform_errors(run, num_samples).numpy())
        for position, mean, low, high in zip(run.target.positions.tolist(), *uniform, strict=True):
            if position >= 1:
                value = {"value": float(mean), "low": float(low), "high": float(high)}
                rows.append({"predictor": "uniform", "position": position} | value | {"samples": num_samples})
    return rows


def uniform_errors(run: Run, num_samples: int) -> torch.Tensor:
    beliefs = run.target.optimum(run.dataset()[0:num_samples])
    return 0.5 * (beliefs - 1 / beliefs.shape[-1]).abs().sum(-1)


# ---------------------------------------------------------------------------------------------------------------------
# Figures


def _together(rows: lab.Rows) -> lab.Figure:
    probabilities = sorted(rows.values("probability"))
    shown: dict[str, Any] = {"x_label": "position t", "y_label": "evaluation loss", "y_min": 0.0, "y_max": 1.0}
    panels = [
        lab.lines(
            title,
            *(
                lab.curve(rows.where(predictor=predictor, probability=p), "position", f"backward {p:g}")
                for p in probabilities
            ),
            **shown,
        )
        for predictor, title in (("model", "Transformer"), ("uniform", "Uniform distribution"))
    ]
    layers = rows[0]["layers"]
    return lab.Figure(
        name="errors-by-position",
        title="Error by position, for five mixing speeds",
        caption=(
            "Curves show half the L1 distance from the exact belief (the optimum is at 0) against the number of "
            f"observations. Left: a Transformer of {layers} layer{'s' * (layers > 1)}. Right: the uniform distribution, "
            "which is the best prediction of the state from a window of observations. Lines are means over seeds; bands are "
            "95 % intervals."
        ),
        panels=tuple(panels),
    )


def _one_by_one(rows: lab.Rows) -> lab.Figure:
    panels = []
    for probability in sorted(rows.values("probability")):
        own = rows.where(probability=probability)
        series = (
            lab.curve(own.where(predictor="model"), "position", "Transformer", "model"),
            lab.level(0.0, sorted(own.values("position")), "exact belief", "optimum"),
            lab.curve(own.where(predictor="uniform"), "position", "uniform distribution", "baseline"),
            lab.curve(own.where(predictor="untrained"), "position", "before training", "control"),
            lab.curve(own.where(predictor="rnn"), "position", "RNN"),
        )
        shown: dict[str, Any] = {"x_label": "position t", "y_label": "evaluation loss", "y_min": -0.02, "y_max": 1.0}
        panels.append(lab.lines(f"backward {probability:g}", *series, **shown))
    return lab.Figure(
        name="errors-beside-the-uniform-law",
        title="Error by position, compared with a predictor that sees only the last observations",
        caption=(
            "Curves show the error by position, on the same samples, of the Transformer before and after training, of the "
            "RNN, and of the uniform distribution (the best answer of a predictor that sees only the last observations). "
            "There is a panel for each backward probability. Lines are means over seeds; bands are 95 % intervals."
        ),
        panels=tuple(panels),
    )


# ---------------------------------------------------------------------------------------------------------------------
# Claims

#: A process forgets within the sequence if a windowed predictor's final error is below this.
FORGOTTEN = 0.1
#: A smaller error counts as none: the smaller error rate of [Limits].
ERROR_RATE = 0.05


def _forgets(rows: lab.Rows, numbers: lab.Numbers = None) -> list[float]:
    last = max(rows.values("position"))
    ends = rows.where(predictor="uniform", position=last).pool("probability")
    return sorted(row["probability"] for row in ends if row["value"] < lab.parameter(numbers, "forgotten", FORGOTTEN))


def _at(rows: lab.Rows, position: int) -> lab.EstimateWithError:
    return sampled(rows.one(position=position))


def _learned(rows: lab.Rows, trained: str = "model", numbers: lab.Numbers = None) -> lab.Gate:
    def lead(own: lab.Rows) -> float | None:
        errors = [[row["value"] for row in own.where(predictor=name)] for name in ("uniform", trained)]
        return sum(errors[0]) / len(errors[0]) - sum(errors[1]) / len(errors[1]) if all(errors) else None

    found = each(rows, "probability", lead)
    least = smallest(found.values(), lambda one: one.value) if found else None
    return lab.Gate.learned(
        least,
        lab.parameter(numbers, "error_rate", ERROR_RATE) / 2,
        f"the uniform distribution (model: {'RNN' if trained == 'rnn' else 'Transformer'})",
    )


def _at_rest(tables: lab.Tables, *networks: str, numbers: lab.Numbers = None, **only: Any) -> lab.Gate:
    return losses_at_rest(while_training(tables, network=list(networks), **only), numbers)


@lab.claim("limits-mixing-hump")
def hump(tables: lab.Tables, numbers: lab.RuleParameters) -> lab.Measurement:
    rows = tables["errors"]
    last = max(rows.values("position"))
    model = rows.where(predictor="model", probability=_forgets(rows, numbers))

    def height(own: lab.Rows) -> lab.EstimateWithError:
        top = largest((sampled(row) for row in own), lambda one: one.value)
        return top - max(_at(own, 1), _at(own, last))

    found = each(model, "probability", height, "largest error minus the larger error of the first and last position")
    effects = {f"backward {p:g}": effect for p, effect in sorted(found.items())}
    shown = []
    for p, own in sorted(model.by("probability").items()):
        means = {row["position"]: row["value"] for row in own.pool("position")}
        top = largest(means, means.__getitem__)
        shown.append(f"{p:g}: {means[top]:.3f} at position {top}, {means[last]:.3f} at position {last}")
    text = "Mean error by backward probability, at its largest and at the last position: "
    text += f"{'; '.join(shown) or 'none forgets within the sequence'}."
    rest = _at_rest(tables, "model", probability=_forgets(rows, numbers), numbers=numbers)
    return lab.Measurement(effects, text, gates=(_learned(rows, numbers=numbers), rest, _room(rows, numbers)))


def _room(rows: lab.Rows, numbers: lab.Numbers = None) -> lab.Gate:
    known = rows.where(predictor="uniform", probability=_forgets(rows, numbers))
    reach, last = 2 ** rows[0]["layers"], max(rows.values("position"))
    heights = [
        max(row["value"] for row in means if row["position"] > reach) - means.one(position=last)["value"]
        for own in known.by("probability").values()
        if (means := own.pool("position"))
    ]
    return lab.Gate.headroom(
        min(heights, default=0.0),
        lab.parameter(numbers, "room"),
        "the decrease of the uniform distribution's error from its maximum after position 2^L (L layers) to the end",
    )


@lab.claim("limits-mixing-end")
def end_falls(tables: lab.Tables, numbers: lab.RuleParameters) -> lab.Measurement:
    rows = tables["errors"]
    ends = rows.where(position=max(rows.values("position")))
    effects: dict[str, lab.Effect] = {}
    for slower, faster in pairwise(sorted(ends.where(predictor="model").values("probability"))):

        def fall(own: lab.Rows, slower: float = slower, faster: float = faster) -> lab.EstimateWithError:
            return sampled(own.one(probability=slower)) - sampled(own.one(probability=faster))

        found = over_seeds(ends.where(predictor="model"), fall, "decrease of the error at the last position")
        effects |= {f"from {slower:g} to {faster:g}": found} if found else {}
    both = {name: each(ends.where(predictor=name), "probability", _value) for name in ("model", "uniform")}
    shown = [", ".join(f"{p:g} {one.value:.3f}" for p, one in sorted(both[name].items())) for name in both]
    text = (
        f"Mean error at the last position by backward probability: {shown[0]}; for the uniform distribution {shown[1]}."
    )
    return lab.Measurement(
        effects, text, gates=(_learned(rows, numbers=numbers), _at_rest(tables, "model", numbers=numbers))
    )


def _value(own: lab.Rows) -> float:
    return float(own[0]["value"])


@lab.claim("limits-mixing-rnn")
def mixing_rnn(tables: lab.Tables, numbers: lab.RuleParameters) -> lab.Measurement:
    rows = tables["errors"]
    slow, fast = min(rows.values("probability")), max(rows.values("probability"))

    def rise(own: lab.Rows, network: str) -> float | None:
        both = [[row["value"] for row in own.where(predictor=network, probability=p)] for p in (slow, fast)]
        return sum(both[0]) / len(both[0]) - sum(both[1]) / len(both[1]) if all(both) else None

    def more(own: lab.Rows) -> float | None:
        deep, recurrent = rise(own, "model"), rise(own, "rnn")
        return None if deep is None or recurrent is None else deep - recurrent

    networks = {"Transformer": "model", "RNN": "rnn"}
    parts = {who: over_seeds(rows, lambda own, name=name: rise(own, name)) for who, name in networks.items()}  # type: ignore[misc]
    shown = told({name: one for name, one in parts.items() if one})
    text = f"Mean error at backward probability {slow:g} minus mean error at {fast:g}: {shown}."
    labels = {name: _label(slow, layers) for name, layers in (("Transformer", 1), ("RNN", 0))}
    gates = (equal_budgets(tables, labels), _learned(rows, "rnn", numbers), _learned(rows, numbers=numbers))
    then = while_training(tables).with_columns(predictor=lambda row: row["network"], value=lambda row: row["loss"])
    return lab.Measurement(
        over_seeds(rows, more, "the Transformer's rise of the error by slow mixing minus the RNN's"),
        text,
        gates=gates,
        last_doubling_change=drift(then, more, numbers),
    )
