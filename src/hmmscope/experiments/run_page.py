"""A single training run described like an experiment, so that the same report shows it."""

from datetime import date

from hmmscope import __version__
from hmmscope.evidence.figures import Figure
from hmmscope.experiments.experiment import Finding
from hmmscope.experiments.panels import curves_panel, training_figure
from hmmscope.experiments.running import run_facts
from hmmscope.machine import machine_line
from hmmscope.runs.pipeline import Run
from hmmscope.storage import store
from hmmscope.storage.rundir import read_journal

_ASKED = {"observation": "The next observation", "belief": "The belief about the hidden state"}

#: Title and unit of each measure; the loss and the excess have the unit of the target.
_PANELS = {
    "accuracy": ("Accuracy", "accuracy"),
    "loss": ("Loss", None),
    "excess": ("Excess over the optimum", None),
    "total_variation": ("Total variation to the optimum", "total variation"),
    "distance": ("Distance to the optimum", "Euclidean distance"),
}


def describe_run(run: Run, command: str = "hmmscope train") -> None:
    """Write experiment.json, findings.json and figures into the folder of a finished run that `command` made."""
    assert run.summary is not None
    rows = store.read_table(run.path / "evaluation.jsonl")
    records = read_journal(run.path / "metrics.jsonl")
    training = [record | {"training_floor": run.summary["training_floor"]} for record in records]
    axis = "demonstrations" if len({r["x"] for r in rows if r["axis"] == "demonstrations"}) > 1 else "positions"
    along = [row for row in rows if row["axis"] == axis]
    label = {"demonstrations": "demonstrations before the sequence", "positions": "position in the sequence"}[axis]
    target = run.target
    shown = {"law": ("accuracy", "loss", "excess", "total_variation"), "vector": ("loss", "excess", "distance")}
    panels = [
        curves_panel(along, metric, title=_PANELS[metric][0], x_label=label, y_label=_PANELS[metric][1] or target.unit)
        for metric in shown[target.kind]
        if any(row["metric"] == metric for row in along)
    ]
    predictions = Figure(
        name="predictions",
        title="Answers beside the optimum" if target.exact else "Answers beside n-grams",
        caption=f"{_ASKED[run.config.target]}: the model"
        + (", the exact answer" if target.exact else ", the filter that is told the HMM")
        + (" and in-context n-grams." if run.config.target == "observation" and target.kind == "law" else "."),
        panels=tuple(panels),
    )
    store.make_folder(run.path / "figures")
    for number, figure in enumerate((predictions, training_figure(training, target.unit)), 1):
        store.write_json(run.path / "figures" / f"{number:02d}-{figure.name}.json", figure.to_data())
    store.write_json(run.path / "findings.json", [vars(_distance_finding(run.summary, target.kind))])
    title = getattr(run.process, "title", "") or repr(run.process)
    description = {
        "experiment": "train",
        "title": f"{run.config.model.name} on {title}",
        "summary": f"A model trained for {_ASKED[run.config.target].lower()}, beside "
        + ("the exact answer of the same process." if target.exact else "n-grams, because no exact answer is known."),
        "scale": "own",
        "version": __version__,
        "command": command,
        "created": date.today().isoformat(),
        "facts": [*run_facts({"model": run}), {"name": "measured on", "value": machine_line()}],
        "invalid": run.summary["invalid"],
        "config": run.config.to_data(),
        "intervals": "Intervals are 95 % bootstrap intervals over samples (1000 resamples).",
    }
    store.write_json(run.path / "experiment.json", description)


def _distance_finding(summary: dict, kind: str) -> Finding:
    if summary["bayes_loss"] is None:
        return Finding(
            title="Beside n-grams",
            text=(
                f"No optimum is known here ({summary['no_optimum']}). The model's loss is {summary['loss']:.4f}; the best "
                f"n-gram ({summary['baseline']}) has {summary['baseline_loss']:.4f}."
            ),
            verdict="found",
            value=summary["loss"] - summary["baseline_loss"],
            low=None,
            high=None,
            unit="nats per answer",
        )
    unit = {"law": "nats per answer", "vector": "mean squared error"}[kind]
    measure = {"law": "mean KL divergence from", "vector": "mean squared distance, per coordinate, to"}[kind]
    share = (
        f", {100 * summary['excess'] / summary['bayes_loss']:.1f} % of its loss" if summary["bayes_loss"] > 0 else ""
    )
    text = (
        f"The model's {measure} the Bayes optimum is {summary['excess']:.4f}{share}; on the same samples the losses are "
        f"{summary['loss']:.4f} (model) and {summary['bayes_loss']:.4f} (optimum)."
    )
    return Finding(
        title="How far from the optimum",
        text=text,
        verdict="found",
        value=summary["excess"],
        low=summary["excess_low"],
        high=summary["excess_high"],
        unit=unit,
    )
