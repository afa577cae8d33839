"""How many layers a Transformer needs, against the rank of the hidden transition."""

from typing import Any

from hmmscope import registry
from hmmscope.evidence.figures import Figure, Heatmap, Lines
from hmmscope.evidence.pooling import pool_rows
from hmmscope.experiments.experiment import NUM_SEEDS, SEED_INTERVALS, Experiment, Measured, Tables
from hmmscope.experiments.multitask_studies import curve, end_rows, of, prompt_config
from hmmscope.runs.pipeline import Run

#: Each scale: states (and symbols), of which the largest rank is as many.
_STATES = {"smoke": 3, "small": 6, "gpu": 8, "paper": 16}


@registry.experiment("multitask-rank")
class Rank(Experiment):
    """See the module."""

    title = "Layers against the rank of the hidden transition"
    summary = (
        "[MultiTask] assumes a transition of low rank d, on which its errors depend and its number of layers does not. "
        "Decoders of several depths are trained on prompts from pools of HMMs whose transitions have rank 1, 2, ... up to "
        "the number of states, and judged over the test sequence beside the exact Bayes mixture of their own pool."
    )
    intervals = SEED_INTERVALS
    num_seeds = NUM_SEEDS
    groups = {"end of the prompt": ("end",)}

    def choices(self, scale: str) -> dict[str, Any]:
        ranks = {"smoke": [1, 3], "small": [1, 2, 6], "gpu": [1, 2, 4, 8], "paper": [1, 2, 4, 8, 16]}
        layers = {"smoke": [1, 2], "small": [1, 2, 3], "gpu": [1, 2, 3, 4], "paper": [1, 2, 4, 8, 16]}
        return {"ranks": ranks[scale], "layers": layers[scale]}

    def plan(self, scale: str, **choices: Any) -> dict[str, dict[str, Any]]:
        size = _STATES[scale]
        process = {"name": "low-rank-mixture", "num_states": size, "num_symbols": size}
        steps = {"num_steps": 300} if scale == "small" else {}
        return {
            f"rank {rank}, {n} layer{'s' * (n != 1)}": prompt_config(
                scale, process=process | {"rank": rank}, model={"num_layers": n}, training=steps
            )
            for rank in choices["ranks"]
            for n in choices["layers"]
        }

    def measurements(self, scale: str) -> dict[str, Any]:
        return {"samples": {"smoke": 16, "small": 512, "gpu": 1024, "paper": 512}[scale]}

    def measure(self, runs: dict[str, Run], group: str, sizes: dict[str, Any]) -> Measured:
        rows = []
        for run in runs.values():
            setting = {"rank": run.config.process.rank, "layers": run.config.model.num_layers}
            rows += [setting | row for row in end_rows(run, sizes["samples"])]
        return {"end": rows}

    def figures(self, tables: Tables) -> list[Figure]:
        rows = of(tables["end"], metric="excess")
        ranks, layers = (sorted({row[key] for row in rows}) for key in ("rank", "layers"))
        pooled = {
            (row["rank"], row["layers"]): row["value"]
            for row in pool_rows(of(rows, predictor="model"), ["rank", "layers"])
        }
        panels: list[Lines | Heatmap] = []
        for rank in (ranks[0], ranks[-1]):
            here = of(rows, rank=rank)
            shown = {
                "model": ("model", "model"),
                "order-1": ("in-context n-gram, order 1", "baseline"),
                "order-0": ("most frequent token", "baseline"),
                "untrained": ("model before training", "control"),
            }
            series = tuple(curve(of(here, predictor=key), "layers", *names) for key, names in shown.items())
            title = f"Transition of rank {rank}"
            panels.append(Lines(title=title, x_label="layers", y_label="excess, nats per observation", series=series))
        heat = Heatmap(
            title="Excess of the model",
            x_label="layers",
            y_label="rank",
            z_label="nats per observation",
            x=tuple(layers),
            y=tuple(ranks),
            z=tuple(tuple(pooled.get((rank, n)) for n in layers) for rank in ranks),
        )
        return [
            Figure(
                name="rank",
                title="Layers needed, by rank",
                caption=(
                    "Excess over the Bayes mixture (which is zero here) over the test sequence, by the number of layers, "
                    "for the lowest and the highest rank, and for all (mean over seeds). Bands are 95 % intervals."
                ),
                panels=(*panels, heat),
            )
        ]
