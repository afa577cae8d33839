"""How a position is told to a Transformer that learns HMMs in context: rotary, learned, sinusoidal, or not at all."""

from typing import Any

from hmmscope import Run, registry
from hmmscope.lab import Figure, Gate, Measurement, Tables, claim
from hmmscope.ties import smallest
from hmmscope_papers.multitask.studies import (
    PromptStudy,
    better,
    deepest,
    depth_matters,
    excess_by,
    excess_less,
    listed,
    prompt_config,
    setting_bars,
)

_KINDS = {"positions": ["rotary", "learned", "sinusoidal", "none"]}


@registry.experiment("multitask-positions")
class Positions(PromptStudy):
    """Four ways to tell positions."""

    title = "Rotary, learned, sinusoidal or no positions"
    summary = (
        "[MultiTask] uses rotary positions, whose attention depends on distances only, and its construction gathers the "
        "last observations by a rotation. The same decoder is trained with four ways to tell positions, on the same "
        "prompts, and judged over the test sequence beside the exact Bayes mixture. A model of one layer shows that the "
        "task asks for more than one."
    )
    varied = {"smoke": _KINDS, "small": _KINDS, "gpu": _KINDS, "paper": _KINDS}

    def plan(self, scale: str, **choices: Any) -> dict[str, dict[str, Any]]:
        plan = {kind: prompt_config(scale, model={"positions": kind}) for kind in choices["positions"]}
        alone = {"positions": choices["positions"][0], "num_layers": 1}
        return plan | {"1 layer": prompt_config(scale, model=alone)}

    def setting(self, run: Run) -> dict[str, Any]:
        return {"positions": run.config.model.positions, "layers": run.config.model.num_layers}

    def figures(self, tables: Tables) -> list[Figure]:
        """Excess, loss and accuracy by kind."""
        rows = deepest(tables)["end"]
        kinds = rows.values("positions")
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
                    setting_bars(rows, "positions", metric, kinds) for metric in ("excess", "loss", "accuracy")
                ),
            )
        ]


@claim("multitask-rotary")
def rotary(tables: Tables) -> Measurement:
    deep = deepest(tables)
    kinds = excess_by(deep, "positions")
    others = [kind for kind in kinds if kind != "rotary"]
    text = f"Excess over the optimum in nats: {listed(kinds)}."
    if "rotary" not in kinds or not others:
        return Measurement(None, f"{text} There is nothing to compare.")
    best = smallest(others, lambda kind: kinds[kind].value)
    effect = excess_less(
        deep, {"positions": best}, {"positions": "rotary"}, f"excess of {best} less that of rotary, nats"
    )
    text = f"{text} {better(effect, 'Rotary', f'the best other ({best})')}"
    return Measurement(
        effect, text, gates=(Gate.equal_tokens(tables), Gate.flat(tables), depth_matters(tables, "positions"))
    )
