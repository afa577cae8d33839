"""Description of a training run in the form of an experiment: facts, findings and figures for its page."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from hmmscope import __version__
from hmmscope.analysis.ngrams import is_ngram
from hmmscope.errors import InputError
from hmmscope.lab.evidence.figure import Figure, Lines
from hmmscope.lab.evidence.finding import Finding
from hmmscope.lab.evidence.panels import curve, lines
from hmmscope.lab.evidence.rows import Rows
from hmmscope.lab.evidence.verdicts import answer
from hmmscope.lab.experiments.experiment import INTERVALS
from hmmscope.lab.experiments.series_styles import PREDICTORS
from hmmscope.models.user_module import UserModuleSpec, model_name
from hmmscope.runs.pipeline import Run
from hmmscope.storage import store
from hmmscope.storage.rundir import read_journal
from hmmscope.storage.seals import open_sealed
from hmmscope.training.schedules import training_tokens

_ASKED = {"observation": "The next observation", "belief": "The belief about the hidden state"}
_ASKED |= {"density": "The density of the next observation"}


def _asked(run: Run) -> str:
    return _ASKED[run.config.target.partition("-")[0]]


#: Title and unit of each metric; None means the unit of the model's target.
_PANELS = {
    "accuracy": ("Accuracy", "accuracy"),
    "loss": ("Loss", None),
    "excess": ("Excess over the optimum", None),
    "total_variation": ("Total variation to the optimum", "total variation"),
    "distance": ("Distance to the optimum", "Euclidean distance"),
}


def predictors_panel(rows: Rows, metric: str, title: str, x_label: str, y_label: str) -> Lines:
    own = rows.where(metric=metric)
    series = [curve(own.where(predictor=name), "x", *look) for name, look in PREDICTORS.items()]
    return lines(title, *series, x_label=x_label, y_label=y_label)


def training_figure(
    records: Iterable[dict[str, Any]], floor: float | None, unit: str = "nats per observation"
) -> Figure:
    """Return the figure of the losses over training.

    Args:
        records: training records, with `step`, `loss` and, at some steps, `evaluation_loss`.
        floor: Bayes loss of the evaluation samples, or None.
        unit: unit of the loss.
    """
    rows = Rows(records)
    shown = Rows(rows[:: max(1, len(rows) // 500)])
    ends = Rows({"step": row["step"], "floor": floor} for row in (rows[0], rows[-1]))
    return Figure(
        name="training",
        title="Loss over training",
        caption="The loss of training batches and of evaluation samples"
        + ("." if floor is None else ", with the Bayes loss of the evaluation samples."),
        panels=(
            lines(
                "",
                curve(ends, "step", "Bayes loss of the evaluation samples", "optimum", y="floor", pool=False),
                curve(shown, "step", "training batch", "control", y="loss", pool=False),
                curve(rows, "step", "evaluation", "model", y="evaluation_loss", pool=False),
                x_label="step",
                y_label=unit,
            ),
        ),
    )


@dataclass(frozen=True)
class Description:
    """A finished run in the form of an experiment.

    Attributes:
        about: contents of experiment.json.
        findings: one finding, on the distance to the optimum or to a baseline.
        figures: figures of the predictions and of the losses over training.
    """

    about: dict[str, Any]
    findings: tuple[Finding, ...]
    figures: tuple[Figure, ...]


def description(run: Run) -> Description:
    """Return the description of a finished run, computed from its files.

    Raises:
        InputError: the run is not finished.
    """
    own = isinstance(run.config.model, UserModuleSpec)
    goes_on = f"hs.train(..., {str(run.path)!r}, model=..., resume=True) continues it in Python"
    if not own:
        goes_on = f"hmmscope train {run.path} --out {run.path} --resume continues it"
    if run.summary is None:
        raise InputError(f"{run.path}: the run is not finished; {goes_on}")
    again = f"hmmscope train {run.path} --out NEW"
    if own:
        again = f"hs.train(..., model={model_name(run.config.model)}(...)), with the configuration below"
    open_sealed(run.path, milestones=False)
    rows = Rows(store.read_table(run.path / "evaluation.jsonl"))
    axis = "demonstrations" if len(rows.where(axis="demonstrations").values("x")) > 1 else "positions"
    along = rows.where(axis=axis)
    label = {"demonstrations": "demonstrations before the sequence", "positions": "position in the sequence"}[axis]
    target, given = run.target, run.process.data is not None
    shown = {"law": ("accuracy", "loss", "excess", "total_variation"), "vector": ("loss", "excess", "distance")}
    shown["density"] = shown["vector"]
    panels = [
        predictors_panel(along, metric, _PANELS[metric][0], label, _PANELS[metric][1] or target.unit)
        for metric in shown[target.kind]
        if any(row["metric"] == metric for row in along)
    ]
    predictions = Figure(
        name="predictions",
        title="Predictions and the optimum" if target.exact else "Predictions and baselines",
        caption=f"{_asked(run)} is predicted by the model; references are"
        + (
            " the Bayes optimum"
            if target.exact
            else " baselines fitted to the training data"
            if given
            else " the filter of the HMM"
        )
        + (" and in-context n-grams." if run.config.target == "observation" and target.kind == "law" else "."),
        panels=tuple(panels),
    )
    records = read_journal(run.path / "metrics.jsonl")
    training = training_figure(records, run.summary["training_floor"], target.unit)
    title = run.process.title or run.process.describe()
    about = {
        "format": store.FORMATS["experiment"],
        "experiment": "train",
        "title": f"{model_name(run.config.model)} on {title}",
        "summary": f"This page compares a model that predicts {_asked(run)[0].lower()}{_asked(run)[1:]} with "
        + ("the Bayes-optimal prediction." if target.exact else "simple baselines, because the optimum is unknown."),
        "scale": "own",
        "version": __version__,
        "command": again,
        "created": "",
        "facts": run_facts({"model": run}),
        "invalid": run.summary["invalid"],
        "config": run.config.to_data(),
        "intervals": INTERVALS,
    }
    return Description(about, (_distance_finding(run.summary, target.kind),), (predictions, training))


def run_facts(runs: dict[str, Run]) -> list[dict[str, str]]:
    facts = []
    for label, run in runs.items():
        prefix = f"{label}: " if len(runs) > 1 else ""
        summary, dataset = run.summary or {}, run.dataset()
        tokens = training_tokens(run.config.training, dataset.layout.context_length, dataset.layout.num_observations)
        once = "" if run.config.training.num_trajectories else ", each seen once"
        facts += [
            {"name": f"{prefix}process", "value": run.process.describe()},
            {"name": f"{prefix}tokens in a sample", "value": f"{dataset.layout.context_length:,}"},
            {
                "name": f"{prefix}model",
                "value": f"{model_name(run.config.model)}, {summary['parameters']:,} parameters",
            },
            {
                "name": f"{prefix}training",
                "value": f"{summary['steps']:,} step{'s' * (summary['steps'] != 1)}, {tokens:,} tokens{once}",
            },
        ]
        unit = run.target.unit
        if summary["bayes_loss"] is None:
            beside = f"{summary['loss']:.4f} ({summary['baseline']} {summary['baseline_loss']:.4f}) {unit}"
            facts.append({"name": f"{prefix}loss (optimum unknown)", "value": beside})
            continue
        excess, low, high = (summary[key] for key in ("excess", "excess_low", "excess_high"))
        interval = f"{excess:.4f} (one sample)" if low is None else f"{excess:.4f} ({low:.4f} to {high:.4f})"
        facts += [
            {"name": f"{prefix}loss (optimum)", "value": f"{summary['loss']:.4f} ({summary['bayes_loss']:.4f}) {unit}"},
            {"name": f"{prefix}excess over the optimum", "value": f"{interval} {unit}"},
        ]
    return facts


def _distance_finding(summary: dict, kind: str) -> Finding:
    if summary["bayes_loss"] is None:
        of_symbols = is_ngram(summary["baseline"])
        return Finding(
            title=f"Comparison with {'n-grams' if of_symbols else 'autoregressions'}",
            text=(
                f"The optimum is unknown ({summary['no_optimum']}). The losses are {summary['loss']:.4f} (model) and "
                f"{summary['baseline_loss']:.4f} ({summary['baseline']}, the best {'n-gram ' * of_symbols}baseline)."
            ),
            verdict="open",
            value=summary["loss"] - summary["baseline_loss"],
            low=None,
            high=None,
            unit="nats per answer",
        )
    unit = "mean squared error" if kind == "vector" else "nats per answer"
    measure = "mean squared distance, per coordinate, to" if kind == "vector" else "mean KL divergence from"
    share = (
        f", which is {100 * summary['excess'] / summary['bayes_loss']:.1f} % of the loss of the optimum"
        if summary["bayes_loss"] > 0
        else ""
    )
    text = (
        f"The model's {measure} the Bayes optimum is {summary['excess']:.4f}{share}; on the same samples the losses are "
        f"{summary['loss']:.4f} (model) and {summary['bayes_loss']:.4f} (optimum)."
    )
    return Finding(
        title="Distance to the optimum",
        text=text,
        verdict=answer(summary["excess_low"], summary["excess_high"]),
        value=summary["excess"],
        low=summary["excess_low"],
        high=summary["excess_high"],
        unit=unit,
    )
