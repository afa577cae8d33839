"""How a position is told to a Transformer that learns HMMs in context: rotary, learned, sinusoidal, or not at all."""

from typing import Any

from hmmscope import registry
from hmmscope.evidence.figures import Figure
from hmmscope.experiments.experiment import NUM_SEEDS, SEED_INTERVALS, Experiment, Measured, Tables
from hmmscope.experiments.multitask_studies import end_rows, prompt_config, setting_bars
from hmmscope.runs.pipeline import Run


@registry.experiment("multitask-positions")
class Positions(Experiment):
    """See the module."""

    title = "Rotary, learned, sinusoidal or no positions"
    summary = (
        "[MultiTask] uses rotary positions, whose attention depends on distances only, and its construction gathers the "
        "last observations by a rotation. The same decoder is trained with four ways to tell positions, on the same "
        "prompts, and judged over the test sequence beside the exact Bayes mixture."
    )
    intervals = SEED_INTERVALS
    num_seeds = NUM_SEEDS
    groups = {"end of the prompt": ("end",)}

    def choices(self, scale: str) -> dict[str, Any]:
        return {"positions": ["rotary", "learned", "sinusoidal", "none"]}

    def plan(self, scale: str, **choices: Any) -> dict[str, dict[str, Any]]:
        return {kind: prompt_config(scale, model={"positions": kind}) for kind in choices["positions"]}

    def measurements(self, scale: str) -> dict[str, Any]:
        return {"samples": {"smoke": 16, "small": 512, "gpu": 1024, "paper": 512}[scale]}

    def measure(self, runs: dict[str, Run], group: str, sizes: dict[str, Any]) -> Measured:
        return {
            "end": [{"positions": kind} | row for kind, run in runs.items() for row in end_rows(run, sizes["samples"])]
        }

    def figures(self, tables: Tables) -> list[Figure]:
        rows = tables["end"]
        labels = {kind: kind for kind in dict.fromkeys(row["positions"] for row in rows)}
        return [
            Figure(
                name="positions",
                title="What positions are worth",
                caption=(
                    "Loss, accuracy and excess over the optimum, averaged over the test sequence, by how positions are "
                    "told to the model. The optimum knows the pool, not which HMM it is; the ceiling is told; n-grams "
                    "count in the prompt. Bars are means over seeds with 95 % intervals."
                ),
                panels=tuple(
                    setting_bars(rows, "positions", metric, labels) for metric in ("excess", "loss", "accuracy")
                ),
            )
        ]
