"""How many heads a Transformer needs to learn HMMs in context."""

from typing import Any

from hmmscope import Run, registry
from hmmscope.lab import Figure, Gate, Measurement, Tables, claim
from hmmscope_studies.beyond_multitask.studies import (
    PromptStudy,
    better,
    deepest,
    depth_matters,
    excess_by,
    excess_less,
    listed,
    prompt_config,
    setting_lines,
)


@registry.experiment("multitask-heads")
class HeadCountExperiment(PromptStudy):
    """Models with 1, 2, 4, ... heads at a fixed total width."""

    title = "Effect of the number of heads at a fixed width"
    summary = (
        "The construction of Theorem 1 of [MultiTask] uses 2p heads per layer for p symbols, two for each row of the "
        "matrix that it estimates in context. The same decoder is trained with 1, 2, 4, ... heads of the same total "
        "width, and compared with the exact Bayes mixture over the test sequence. A one-layer model tests whether the "
        "task needs several layers."
    )
    varied = {
        "smoke": {"heads": [1, 2]},
        "small": {"heads": [1, 2, 4, 8]},
        "gpu": {"heads": [1, 2, 4, 8, 16]},
        "paper": {"heads": [1, 2, 4, 8, 16, 32]},
    }

    def plan(self, scale: str, **choices: Any) -> dict[str, dict[str, Any]]:
        plan = {f"{n} head{'s' * (n != 1)}": prompt_config(scale, model={"num_heads": n}) for n in choices["heads"]}
        alone = {"num_heads": choices["heads"][-1], "num_layers": 1}
        return plan | {"1 layer": prompt_config(scale, model=alone)}

    def setting(self, run: Run) -> dict[str, Any]:
        model = run.config.model
        return {"heads": model.num_heads, "layers": model.num_layers, "symbols": run.process.num_symbols}

    def figures(self, tables: Tables) -> list[Figure]:
        rows, metrics = deepest(tables)["end"], ("excess", "loss", "accuracy")
        return [
            Figure(
                name="heads",
                title="Excess, loss and accuracy by number of heads",
                caption=(
                    "Curves show the excess over the optimum, the loss and the accuracy, averaged over the test sequence, "
                    "against the number of heads at a fixed width. Theorem 1 has 2p heads per layer for p symbols (here "
                    f"{2 * rows[0]['symbols']}). Bands are 95 % intervals over seeds."
                ),
                panels=tuple(setting_lines(rows, "heads", metric, x_label="heads", log_x=True) for metric in metrics),
            )
        ]


@claim("multitask-more-heads")
def more_heads(tables: Tables) -> Measurement:
    deep = deepest(tables)
    counts = excess_by(deep, "heads")
    fewest, most, symbols = min(counts), max(counts), tables["end"][0]["symbols"]
    unit = f"nats more excess with the fewest heads ({fewest}) than with the most ({most})"
    effect = excess_less(deep, {"heads": fewest}, {"heads": most}, unit)
    text = (
        f"Excess over the optimum in nats, by number of heads: {listed(counts)}; Theorem 1 uses {2 * symbols} heads "
        f"per layer for {symbols} symbols. {better(effect, f'The model with {most} heads', f'that with {fewest}')}"
    )
    return Measurement(
        effect, text, gates=(Gate.equal_tokens(tables), Gate.flat(tables), depth_matters(tables, "heads"))
    )
