"""Error of trained models as a function of the number of observations that they see."""

import math
from typing import Any

from hmmscope import HMM, Run, lab, registry, require_process_type
from hmmscope_studies.beyond_multitask.studies import untrained_answers, window_config
from hmmscope_studies.beyond_multitask.windows import (
    LOOKS,
    by_memory,
    decay_rate,
    exact_rate,
    exponential_rather,
    histories_of,
    window_rows,
)

_LENGTHS = [1, 2, 3, 4, 5, 6, 8, 10, 12]
_FEW = [1, 2, 3, 4, 6, 8]


@registry.experiment("multitask-context-length")
class ContextLength(lab.Experiment):
    """One decoder for each number of observations, compared with the best predictor from the same observations."""

    title = "How many observations does a Transformer need?"
    summary = (
        "By Lemma 1 of [MultiTask], the error from keeping only the last k observations falls exponentially in k. A "
        "decoder is trained for each k on windows of one stationary HMM, to predict the next observation. The "
        "decoder's distance from the filter of the whole past is compared with the best predictor's for the same k."
    )
    num_seeds = lab.Experiment.NUM_SEEDS
    groups = {"memory": ("errors", "rates")}
    sizes = {
        "smoke": {"histories": 64},
        "small": {"histories": 8192},
        "medium": {"histories": 8192},
        "gpu": {"histories": 32768},
        "paper": {"histories": 32768},
    }

    def choices(self, scale: str) -> dict[str, Any]:
        return {"lengths": {"smoke": [1, 2, 3], "small": _FEW, "medium": _FEW}.get(scale, _LENGTHS)}

    def plan(self, scale: str, **choices: Any) -> dict[str, dict[str, Any]]:
        return {f"memory {k}": window_config(scale, k) for k in choices["lengths"]}

    def measure(self, runs: dict[str, Run], group: str, sizes: dict[str, Any]) -> lab.MeasuredTables:
        memories = {run.config.layout.context_length - 1: run for run in runs.values()}
        first = next(iter(memories.values()))
        histories = histories_of(first, max(max(memories), 4), sizes["histories"])
        spec = first.config.process
        rate = {"observability": spec.observability, "rank": spec.rank}
        rate |= exact_rate(histories, require_process_type(first.process, HMM), [1, 2, 3, 4])
        return {
            "errors": [row for k, run in memories.items() for row in window_rows(run, histories, k)],
            "rates": [rate],
        }

    def figures(self, tables: lab.Tables) -> list[lab.Figure]:
        return [
            lab.Figure(
                name="context-length",
                title="Error against the number of observations",
                caption=(
                    "Curves show the excess loss over the filter of the whole past (left), and the total variation "
                    "from this filter (right), against the number k of observations seen. The best predictor from k "
                    "observations is computed exactly. A model's excess is the excess of this predictor (memory part) "
                    "plus the error that training left (learning part). Straight lines mean exponential decay. Bands "
                    "are 95 % intervals over seeds, each with its own HMM."
                ),
                panels=(
                    _panel(tables["errors"], "excess", "Excess", "nats per observation"),
                    _panel(tables["errors"], "total_variation", "Distance", "total variation"),
                ),
            )
        ]

    def without_training(self, tables: lab.Tables) -> lab.Tables | None:
        return untrained_answers(tables, "errors")


def _panel(rows: lab.Rows, metric: str, title: str, unit: str) -> lab.Panel:
    series = [lab.curve(rows.where(predictor=name, metric=metric), "memory", *look) for name, look in LOOKS.items()]
    if metric == "excess":
        series.append(
            lab.curve(rows.where(predictor="model", metric="learning"), "memory", "model, learning part", "other")
        )
    return lab.lines(title, *series, x_label="observations seen", y_label=unit, log_y=True)


# ---------------------------------------------------------------------------------------------------------------------
# Claims


@lab.claim("multitask-memory-decay")
def memory_decay(tables: lab.Tables, numbers: lab.RuleParameters) -> lab.Measurement:
    def errors(own: lab.Rows) -> dict[int, float]:
        return by_memory(own, "memory", "total_variation")

    rows, rates = tables["errors"], tables["rates"]
    decay = rows.per_seed(lambda own: decay_rate(errors(own), numbers)).effect("nats per observation")
    better = rows.per_seed(lambda own: exponential_rather(errors(own), numbers)).effect("nats closer to an exponential")
    if decay is None or better is None:
        return lab.Measurement(None, "Fewer than three memory lengths have an error above rounding.")
    gamma = rates[0]["observability"]
    text = (
        f"The memory error is multiplied by {math.exp(-decay.value):.2f} with each additional observation. For k "
        f"observations, a line in k fits ln(error) better than a line in ln(k), by {better.short()} nats. Over the "
        f"first four observations the decay rate is {rates.effect('rate')}, the mixing rate of the hidden chain "
        f"{rates.effect('mixing')}. Lemma 1 guarantees the rate c gamma^4 with an unknown c; the observability gamma "
        f"is {gamma:g}, so gamma^4 is {gamma**4:.3f}."
    )
    return lab.Measurement({"decay": decay, "exponential or power law": better}, text)
