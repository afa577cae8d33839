"""Position encodings for a Transformer that learns HMMs in context: rotary, learned, sinusoidal, none."""

from typing import Any

from hmmscope import Run, registry
from hmmscope.lab import Figure, Gate, Measurement, Tables, claim
from hmmscope.ties import smallest
from hmmscope_studies.beyond_multitask.studies import (
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
    """The same model with each of four position encodings."""

    title = "Effect of rotary, learned, sinusoidal or no positions"
    summary = (
        "[MultiTask] uses rotary positions, so that attention depends on distances only, and its construction gathers "
        "the last observations by a rotation. The same decoder is trained with four position encodings on the same "
        "prompts, and compared with the exact Bayes mixture over the test sequence. A one-layer model tests whether "
        "the task needs several layers."
    )
    varied = {"smoke": _KINDS, "small": _KINDS, "gpu": _KINDS, "paper": _KINDS}

    def plan(self, scale: str, **choices: Any) -> dict[str, dict[str, Any]]:
        plan = {kind: prompt_config(scale, model={"positions": kind}) for kind in choices["positions"]}
        alone = {"positions": choices["positions"][0], "num_layers": 1}
        return plan | {"1 layer": prompt_config(scale, model=alone)}

    def setting(self, run: Run) -> dict[str, Any]:
        return {"positions": run.config.model.positions, "layers": run.config.model.num_layers}

    def figures(self, tables: Tables) -> list[Figure]:
        rows = deepest(tables)["end"]
        kinds = rows.values("positions")
        return [
            Figure(
                name="positions",
                title="Excess, loss and accuracy by position encoding",
                caption=(
                    "Bars show the excess over the optimum, the loss and the accuracy, averaged over the test sequence, for "
                    "each position encoding. The optimum knows the pool but not the HMM of the prompt; the filter of the "
                    "known HMM is an upper bound; n-grams use the prompt alone. Values are means over seeds."
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
        return Measurement(None, f"{text} Rotary positions and another encoding were not both measured.")
    best = smallest(others, lambda kind: kinds[kind].value)
    effect = excess_less(
        deep,
        {"positions": best},
        {"positions": "rotary"},
        f"nats more excess with {best} positions than with rotary ones",
    )
    text = f"{text} {better(effect, 'Rotary', f'the best other encoding ({best})')}"
    return Measurement(
        effect, text, gates=(Gate.equal_tokens(tables), Gate.flat(tables), depth_matters(tables, "positions"))
    )
