"""One layer of attention on Mess3, compared with the prediction of constrained belief updating."""

from functools import partial
from typing import Any

from hmmscope import Run, constrained_updates, lab, registry

#: Mess3 by the decay factor of its slowest mode, 1 - 3 `switch`.
PROCESSES = {
    "Mess3, ζ = 0.85": {"switch": 0.05, "emission": 0.85},
    "Mess3, ζ = 0.7": {"switch": 0.1, "emission": 0.75},
    "Mess3, ζ = 0.55": {"switch": 0.15, "emission": 0.6},
}


@registry.experiment("constrained-updates")
class ConstrainedUpdates(lab.Experiment):
    """RoFormers of one layer and one head on Mess3 with second eigenvalue 0.85, 0.7 or 0.55."""

    title = "How one layer of attention approximates a filter"
    summary = (
        "Attention sees all symbols at once, so one layer can only add up the evidence of each symbol alone. The "
        "resulting approximation of the belief is called the constrained belief. In theory it determines the value "
        "vector of each symbol, and attention decays with distance at the rate at which the process forgets. Models of "
        "one layer and one head are trained on Mess3 with three rates of forgetting, and compared with this theory; "
        "the control is the same model before training."
    )
    num_seeds = {"smoke": 2, "small": 5, "gpu": 5, "paper": 5}
    run_columns = ("process",)
    sizes = {
        "smoke": {"samples": 24, "distances": 3},
        "small": {"samples": 512, "distances": 5},
        "gpu": {"samples": 4096, "distances": 6},
        "paper": {"samples": 4096, "distances": 6},
    }
    measure_per_run = True
    groups = {"updates": ("updates",)}

    def plan(self, scale: str, **choices: Any) -> dict[str, dict[str, Any]]:
        steps, length = {"smoke": (8, 6), "small": (600, 12), "gpu": (5000, 16), "paper": (20000, 16)}[scale]
        width = {"smoke": 16, "small": 32, "gpu": 64, "paper": 64}[scale]
        training = {"num_steps": steps, "batch_size": 8 if scale == "smoke" else 32, "learning_rate": 5e-3}
        training |= {"evaluate_every": max(1, steps // 4), "checkpoint_every": steps}
        return {
            name: {
                "process": {"name": "mess3", **numbers},
                "layout": {"name": "sequences", "length": length, "placeholder": True},
                "model": {"name": "roformer", "width": width, "num_layers": 1, "num_heads": 1},
                "training": dict(training),
            }
            for name, numbers in PROCESSES.items()
        }

    def measure(self, runs: dict[str, Run], group: str, sizes: dict[str, Any]) -> lab.MeasuredTables:
        rows = []
        for name, run in runs.items():
            for network, model in run.compare_with_untrained():
                options = {"num_samples": sizes["samples"], "num_distances": sizes["distances"]}
                found = constrained_updates(model, run.dataset("probe"), **options)
                rows += [{"process": name, "network": network} | row for row in found]
        return {group: rows}

    def figures(self, tables: lab.Tables) -> list[lab.Figure]:
        rows = tables["updates"]
        names = rows.values("process")

        def pattern(name: str) -> lab.Panel:
            own = rows.where(process=name, quantity="attention")
            trained, untrained = (own.where(network=network) for network in ("trained", "untrained"))
            series = (
                lab.curve(own, "key", "predicted", "optimum", y="predicted", bands=False),
                lab.curve(trained, "key", "trained", "model"),
                lab.curve(untrained, "key", "before training", "control"),
            )
            return lab.lines(name, *series, x_label="distance", y_label="attention relative to distance 1", y_min=0.0)

        def readings(quantity: str, title: str, y_label: str) -> lab.Panel:
            own = rows.where(quantity=quantity)
            trained, untrained = (own.where(network=network) for network in ("trained", "untrained"))
            series = (
                lab.bar(trained, "process", names, "trained", "model"),
                lab.bar(untrained, "process", names, "before training", "control"),
                lab.bar(own, "process", names, "predicted", "optimum", y="predicted"),
            )
            return lab.bars(title, *series, categories=names, y_label=y_label)

        return [
            lab.Figure(
                name="pattern",
                title="Decay of attention with distance",
                caption=(
                    "Curves show the mean attention at each distance, divided by that at distance one, for queries "
                    "late in the sequence. The predicted values are powers of the second eigenvalue ζ of the "
                    "transition matrix. Bands are 95 % intervals over seeds."
                ),
                panels=tuple(pattern(name) for name in names),
            ),
            lab.Figure(
                name="beliefs",
                title="Value vectors of symbols, and beliefs decoded after attention",
                caption=(
                    "Left: cosine between each symbol's value vector and the predicted one (mean over symbols). "
                    "Middle: R² of an affine map from the stream between attention and MLP to the constrained belief. "
                    "Right: R² of an affine map from the same stream to the filter's belief; the predicted value is R² "
                    "of such a map from the constrained belief. Intervals are 95 % intervals over seeds."
                ),
                panels=(
                    readings("values", "Values of symbols", "cosine"),
                    readings("constrained", "Constrained belief", "held-out R²"),
                    readings("exact", "Exact belief", "held-out R²"),
                ),
            ),
        ]


def _by_process(rows: lab.Rows, measure: Any, unit: str) -> dict[str, lab.Effect]:
    return {
        name: lab.Effect.pooled(list(own.per_seed(measure).values()), unit) for name, own in rows.by("process").items()
    }


def _mean(rows: lab.Rows, network: str, column: str = "value") -> float:
    own = rows.where(network=network)
    return sum(row[column] for row in own) / len(own)


def _said(effects: dict[str, lab.Effect]) -> str:
    return "; ".join(f"{name} {effect.short()}" for name, effect in effects.items())


@lab.claim("attention-decays-as-predicted")
def decays(tables: lab.Tables, numbers: lab.RuleParameters) -> lab.Measurement:
    rows = tables["updates"].where(quantity="rate")
    wanted = tuple(PROCESSES)
    effects = _by_process(
        rows,
        lambda own: _mean(own, "trained") - _mean(own, "trained", "predicted"),
        "measured decay factor minus the predicted one",
    )
    held = _by_process(rows, lambda own: _mean(own, "trained"), "")
    return lab.Measurement(
        effects,
        f"Measured factor that multiplies attention with each step of distance: {_said(held)}.",
        (lab.Gate.flat(tables, lab.parameter(numbers, "settled")),),
        wanted,
    )


@lab.claim("layer-holds-constrained-belief")
def holds(tables: lab.Tables, numbers: dict[str, float]) -> lab.Measurement:
    rows, wanted = tables["updates"].where(quantity="constrained"), tuple(PROCESSES)

    def gain(own: lab.Rows) -> float:
        before = _mean(own, "untrained")
        return (_mean(own, "trained") - before) / (1 - before)

    effects = _by_process(rows, gain, "of the variance unexplained by untrained networks is explained")
    held, before = (_by_process(rows, partial(_mean, network=network), "") for network in ("trained", "untrained"))
    least = min((1 - effect.value for effect in before.values()), default=0.0)
    told = lab.Gate.headroom(least, numbers["least_left"], "the R² of untrained networks")
    return lab.Measurement(
        effects,
        f"R² of the constrained belief after attention: trained {_said(held)}; untrained {_said(before)}.",
        (lab.Gate.flat(tables, lab.parameter(numbers, "settled")), told),
        wanted,
    )
