"""[Limits] Figure 4, left: one depth, processes that forget at different speeds."""

from typing import Any

import torch

from hmmscope import registry
from hmmscope.analysis.fit_length import evaluation_losses
from hmmscope.analysis.intervals import bootstrap_means
from hmmscope.evidence.figures import Figure, Lines, Series
from hmmscope.evidence.pooling import pool_rows
from hmmscope.experiments.experiment import SEED_INTERVALS, Experiment, Measured, Tables
from hmmscope.experiments.limits_models import limits_config
from hmmscope.experiments.limits_studies import shortened
from hmmscope.experiments.panels import series_of
from hmmscope.runs.pipeline import Run, untrained_twin

#: Backward probabilities of the paper.
PROBABILITIES = [0.01, 0.03, 0.05, 0.1, 0.15]

#: What shapes the plan. Steps 0: those of the scale.
CHOICES: dict[str, dict[str, Any]] = {
    "smoke": {"probabilities": [0.01, 0.1, 0.15], "layers": 1, "length": 6, "steps": 12},
    "small": {"probabilities": PROBABILITIES, "layers": 2, "length": 24, "steps": 1200},
    "gpu": {"probabilities": PROBABILITIES, "layers": 4, "length": 64, "steps": 0},
    "paper": {"probabilities": PROBABILITIES, "layers": 4, "length": 120, "steps": 0},
}
SAMPLES = {"smoke": 32, "small": 2048, "gpu": 4096, "paper": 4096}


@registry.experiment("limits-fig4-mixing")
class Figure4Mixing(Experiment):
    """See the module."""

    title = "The middle of the sequence is hardest where mixing is of middling speed"
    summary = (
        "Transformers of one depth infer the belief of Cyclic-RND with five backward probabilities, from never mixing to "
        "mixing within the sequence. Symbols say nothing about the state, so a predictor that sees a window only can do no "
        "better than the uniform law, whose error stands beside the model's, on the same samples."
    )
    num_seeds = {"smoke": 2, "small": 3, "gpu": 3, "paper": 1}
    intervals = SEED_INTERVALS
    groups = {"errors": ("errors",)}

    def choices(self, scale: str) -> dict[str, Any]:
        return dict(CHOICES[scale])

    def plan(self, scale: str, **choices: Any) -> dict[str, dict[str, Any]]:
        return {
            f"backward {probability:g}": limits_config(
                scale,
                "cyclic-rnd",
                choices["layers"],
                length=choices["length"],
                process={"backward_probability": probability},
                training=shortened(choices["steps"]),
            )
            for probability in choices["probabilities"]
        }

    def measurements(self, scale: str) -> dict[str, Any]:
        return {"samples": SAMPLES[scale]}

    def measure(self, runs: dict[str, Run], group: str, sizes: dict[str, Any]) -> Measured:
        return {"errors": [row for run in runs.values() for row in _error_rows(run, sizes["samples"])]}

    def figures(self, tables: Tables) -> list[Figure]:
        return [_together(tables["errors"]), _one_by_one(tables["errors"])]


def _error_rows(run: Run, num_samples: int) -> list[dict]:
    """Errors by position of the model, before and after training, and of the uniform law on the same samples."""
    shared = {"probability": run.config.process.backward_probability, "layers": run.config.model.num_layers}
    rows = []
    for name, model in {"model": run.model, "untrained": untrained_twin(run)}.items():
        found = evaluation_losses(model, run.corpus(), num_samples=num_samples, target="belief")
        rows += [shared | row | {"predictor": name} for row in found if row["predictor"] == "model"]
    uniform = uniform_errors(run, num_samples)
    for position, mean, low, high in zip(run.target.positions.tolist(), *bootstrap_means(uniform.numpy()), strict=True):
        if position >= 1:
            value = {"value": float(mean), "low": float(low), "high": float(high)}
            rows.append(shared | {"predictor": "uniform", "position": position} | value | {"samples": num_samples})
    return rows


def uniform_errors(run: Run, num_samples: int) -> torch.Tensor:
    """Half the L1 distance of the exact belief from the uniform law (sample, judged), on the run's evaluation samples.

    For Cyclic-RND that is the exact predictor that has seen the last observations only: the uniform law is stationary, and
    symbols are independent of the state.
    """
    beliefs = run.target.optimum(run.corpus()[0:num_samples])
    return 0.5 * (beliefs - 1 / beliefs.shape[-1]).abs().sum(-1)


def _pooled(rows: list[dict]) -> list[dict]:
    return pool_rows(rows, ["predictor", "probability", "position"])


def _together(rows: list[dict]) -> Figure:
    pooled = _pooled(rows)

    def panel(predictor: str, title: str) -> Lines:
        probabilities = sorted({row["probability"] for row in pooled})
        series = tuple(
            series_of(
                [r for r in pooled if r["predictor"] == predictor and r["probability"] == p],
                f"backward {p:g}",
                "other",
                x="position",
            )
            for p in probabilities
        )
        shown: dict[str, Any] = {"x_label": "position t", "y_label": "evaluation loss", "y_min": 0.0, "y_max": 1.0}
        return Lines(title=title, series=series, **shown)

    layers = rows[0]["layers"]
    return Figure(
        name="errors-by-position",
        title="Error by position, for five speeds of mixing",
        caption=(
            f"Half the L1 distance from the exact belief (the optimum is at 0), against the number of observations: a "
            f"Transformer of {layers} layer{'s' * (layers > 1)} (left), and the uniform law (right), which is all that a "
            "window of observations tells about the state. Means over seeds, bands are 95 % intervals."
        ),
        panels=(panel("model", "Transformer"), panel("uniform", "Uniform law")),
    )


def _one_by_one(rows: list[dict]) -> Figure:
    pooled = _pooled(rows)

    def panel(probability: float) -> Lines:
        def series(predictor: str, name: str, role: str) -> Series:
            kept = [r for r in pooled if r["probability"] == probability and r["predictor"] == predictor]
            return series_of(kept, name, role, x="position")

        model = series("model", "Transformer", "model")
        exact = Series(name="exact belief", x=model.x, y=(0.0,) * len(model.x), role="optimum")
        return Lines(
            title=f"backward {probability:g}",
            x_label="position t",
            y_label="evaluation loss",
            series=(
                model,
                exact,
                series("uniform", "uniform law", "baseline"),
                series("untrained", "before training", "control"),
            ),
            y_min=-0.02,
            y_max=1.0,
        )

    return Figure(
        name="errors-beside-the-uniform-law",
        title="Each process beside what a window can know",
        caption=(
            "The model's error by position beside that of the uniform law and of the model before training, on the same "
            "samples. Means over seeds, bands are 95 % intervals."
        ),
        panels=tuple(panel(probability) for probability in sorted({row["probability"] for row in pooled})),
    )
