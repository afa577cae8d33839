"""How many heads a Transformer needs to learn HMMs in context."""

from typing import Any

from hmmscope import registry
from hmmscope.evidence.figures import Figure
from hmmscope.experiments.experiment import NUM_SEEDS, SEED_INTERVALS, Experiment, Measured, Tables
from hmmscope.experiments.multitask_studies import end_rows, prompt_config, setting_lines
from hmmscope.runs.pipeline import Run


@registry.experiment("multitask-heads")
class Heads(Experiment):
    """See the module."""

    title = "The number of heads at a fixed width"
    summary = (
        "The construction of Theorem 1 of [MultiTask] uses 2p heads a layer for p symbols, two for each row of the matrix "
        "that it estimates in context. The same decoder is trained with 1, 2, 4, ... heads of the same total width, and "
        "judged over the test sequence beside the exact Bayes mixture."
    )
    intervals = SEED_INTERVALS
    num_seeds = NUM_SEEDS
    groups = {"end of the prompt": ("end",)}

    def choices(self, scale: str) -> dict[str, Any]:
        heads = {"smoke": [1, 2], "small": [1, 2, 4, 8], "gpu": [1, 2, 4, 8, 16], "paper": [1, 2, 4, 8, 16, 32]}
        return {"heads": heads[scale]}

    def plan(self, scale: str, **choices: Any) -> dict[str, dict[str, Any]]:
        return {f"{n} head{'s' * (n != 1)}": prompt_config(scale, model={"num_heads": n}) for n in choices["heads"]}

    def measurements(self, scale: str) -> dict[str, Any]:
        return {"samples": {"smoke": 16, "small": 512, "gpu": 1024, "paper": 512}[scale]}

    def measure(self, runs: dict[str, Run], group: str, sizes: dict[str, Any]) -> Measured:
        rows = []
        for run in runs.values():
            setting = {"heads": run.config.model.num_heads, "symbols": run.process.num_symbols}
            rows += [setting | row for row in end_rows(run, sizes["samples"])]
        return {"end": rows}

    def figures(self, tables: Tables) -> list[Figure]:
        rows, x_label = tables["end"], "heads"
        return [
            Figure(
                name="heads",
                title="What heads are worth",
                caption=(
                    "Excess over the optimum, loss and accuracy, averaged over the test sequence, by the number of heads "
                    "that share the same width. Theorem 1 has 2p heads a layer for p symbols "
                    f"(here {2 * rows[0]['symbols']}). Bands are 95 % intervals over seeds."
                ),
                panels=tuple(
                    setting_lines(rows, "heads", metric, x_label=x_label, log_x=True)
                    for metric in ("excess", "loss", "accuracy")
                ),
            )
        ]
