"""Number of layers that a Transformer needs, by the rank of the transition matrix."""

from typing import Any

from hmmscope import Run, registry
from hmmscope.lab import PREDICTORS, Figure, Gate, Measurement, Panel, PerSeed, Tables, claim, curve, heatmap, lines
from hmmscope_studies.beyond_multitask.studies import (
    CYCLES,
    PromptStudy,
    depth_matters,
    excess_by,
    listed,
    prompt_config,
)

#: Numbers of HMMs in a pool and of symbols, by scale; the latter divides every rank.
_SIZES = {"smoke": (4, 2), "small": (32, 4), "gpu": (256, 8), "paper": (8192, 16)}


@registry.experiment("multitask-rank")
class Rank(PromptStudy):
    """Decoders of several depths on HMMs with several ranks of the transition matrix."""

    title = "Does a transition matrix of higher rank need more layers?"
    summary = (
        "[MultiTask] assumes a transition matrix of low rank d. The error in Lemma 1 depends on d, but the number of "
        "layers in Theorem 1 does not. Decoders of several depths are trained on prompts from pools of noisy cycles, "
        "which differ in the number of states but not of symbols. The rank of a cycle is its number of states. The "
        "decoders are compared with the exact Bayes mixture over their pool, in the test sequence."
    )
    varied = {
        "smoke": {"ranks": [2, 4], "layers": [1, 2]},
        "small": {"ranks": [8, 12, 16], "layers": [1, 2, 3]},
        "gpu": {"ranks": [8, 16, 32], "layers": [1, 2, 3, 4]},
        "paper": {"ranks": [16, 32, 64, 128], "layers": [1, 2, 4, 8, 16]},
    }

    def plan(self, scale: str, **choices: Any) -> dict[str, dict[str, Any]]:
        components, symbols = _SIZES[scale]
        process = {"name": CYCLES, "num_components": components, "num_symbols": symbols}
        return {
            f"rank {rank}, {n} layer{'s' * (n != 1)}": prompt_config(
                scale, process=process | {"num_states": rank}, model={"num_layers": n}
            )
            for rank in choices["ranks"]
            for n in choices["layers"]
        }

    def setting(self, run: Run) -> dict[str, Any]:
        return {"rank": run.config.process.num_states, "layers": run.config.model.num_layers}

    def figures(self, tables: Tables) -> list[Figure]:
        rows = tables["end"].where(metric="excess")
        ranks = sorted(rows.values("rank"))
        labels = {"x_label": "layers", "y_label": "rank", "z_label": "nats per observation"}
        heat = heatmap("Excess of the model", rows.where(predictor="model"), "layers", "rank", **labels)
        shown = ("model", "order-1", "order-0", "untrained")

        def panel(rank: int) -> Panel:
            own = rows.where(rank=rank)
            series = [curve(own.where(predictor=name), "layers", *PREDICTORS[name]) for name in shown]
            return lines(
                f"Transition of rank {rank}", *series, x_label="layers", y_label="excess, nats per observation"
            )

        return [
            Figure(
                name="rank",
                title="Excess loss by number of layers, for each rank",
                caption=(
                    "Curves show the excess over the Bayes optimum (which is at zero), averaged over the test sequence, "
                    "against the number of layers, for the lowest and the highest rank; another panel has all ranks (means "
                    "over seeds). Bands are 95 % intervals."
                ),
                panels=(panel(ranks[0]), panel(ranks[-1]), heat),
            )
        ]


@claim("multitask-layers-by-rank")
def layers_by_rank(tables: Tables) -> Measurement:
    rows = tables["end"].where(predictor="model", metric="excess")
    ranks, layers = (sorted(rows.values(key)) for key in ("rank", "layers"))

    def gain(rank: int) -> PerSeed[Any]:
        return (
            rows.where(rank=rank, layers=layers[0]).estimates() - rows.where(rank=rank, layers=layers[-1]).estimates()
        )

    unit = f"nats more gain of {layers[-1]} layers over {layers[0]} at rank {ranks[-1]} than at rank {ranks[0]}"
    high, low = gain(ranks[-1]), gain(ranks[0])
    effect = (high - low).effect(unit)
    each = "; at ".join(f"rank {rank}: {listed(excess_by(tables, 'layers', rank=rank))}" for rank in ranks)
    text = (
        f"Excess over the optimum in nats, by number of layers, at {each}. The deepest model gains {high.effect()} "
        f"nats over the shallowest at rank {ranks[-1]} and {low.effect()} nats at rank {ranks[0]}."
    )
    return Measurement(
        effect, text, gates=(Gate.equal_tokens(tables), Gate.flat(tables), depth_matters(tables, "rank"))
    )
