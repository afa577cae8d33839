"""A single training run described like an experiment, so that the same report shows it."""

from hmmscope import __version__, store
from hmmscope.experiments.experiment import Finding, run_facts
from hmmscope.experiments.panels import curves_panel, training_figure
from hmmscope.figures import Figure
from hmmscope.pipeline import Run
from hmmscope.rundir import read_journal


def describe_run(run: Run) -> None:
    """Write experiment.json, findings.json and figures into the folder of a finished run."""
    assert run.summary is not None
    rows = store.read_table(run.path / "evaluation.jsonl")
    records = read_journal(run.path / "metrics.jsonl")
    training = [record | {"training_floor": run.summary["training_floor"]} for record in records]
    axis = "demonstrations" if len({r["x"] for r in rows if r["axis"] == "demonstrations"}) > 1 else "positions"
    along = [row for row in rows if row["axis"] == axis]
    label = {"demonstrations": "demonstrations before the sequence", "positions": "position in the sequence"}[axis]
    predictions = Figure(
        name="predictions",
        title="Predictions beside the optimum",
        caption="Next-observation accuracy and loss of the model, the exact Bayes predictor and in-context n-grams.",
        panels=(
            curves_panel(along, "accuracy", title="Accuracy", x_label=label, y_label="accuracy"),
            curves_panel(along, "loss", title="Loss", x_label=label, y_label="nats per observation"),
            curves_panel(
                along, "excess", title="Excess over the optimum", x_label=label, y_label="nats per observation"
            ),
        ),
    )
    store.make_folder(run.path / "figures")
    for number, figure in enumerate((predictions, training_figure(training)), 1):
        store.write_json(run.path / "figures" / f"{number:02d}-{figure.name}.json", figure.to_data())
    store.write_json(run.path / "findings.json", [vars(_distance_finding(run.summary))])
    title = getattr(run.process, "title", "") or repr(run.process)
    description = {
        "experiment": "train",
        "title": f"{run.config.model.name} on {title}",
        "summary": "A model trained to predict the next observation, beside the exact Bayes predictor of the same process.",
        "scale": "own",
        "version": __version__,
        "command": "hmmscope train",
        "facts": run_facts({"model": run}),
        "invalid": run.summary["invalid"],
        "config": run.config.to_data(),
        "intervals": "Intervals are 95 % bootstrap intervals over samples (1000 resamples).",
    }
    store.write_json(run.path / "experiment.json", description)


def _distance_finding(summary: dict) -> Finding:
    share = summary["excess"] / summary["bayes_loss"] if summary["bayes_loss"] > 0 else 0.0
    text = (
        f"The model's mean KL divergence from the Bayes optimum is {summary['excess']:.4f} nats per observation, "
        f"{100 * share:.1f} % of the optimum's loss; on the same samples the losses are {summary['loss']:.4f} (model) and "
        f"{summary['bayes_loss']:.4f} (optimum)."
    )
    return Finding(
        title="How far from the optimum",
        text=text,
        verdict="found",
        value=summary["excess"],
        low=summary["excess_low"],
        high=summary["excess_high"],
        unit="nats per observation",
    )
