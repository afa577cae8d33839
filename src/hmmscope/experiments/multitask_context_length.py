"""How the error of a trained model falls with the number of observations that it sees."""

from typing import Any

from hmmscope import registry
from hmmscope.evidence.figures import Figure, Lines
from hmmscope.evidence.pooling import by_seed
from hmmscope.experiments.experiment import NUM_SEEDS, SEED_INTERVALS, Experiment, Finding, Measured, Tables
from hmmscope.experiments.multitask_studies import curve, of, window_config
from hmmscope.experiments.multitask_windows import exact_rate, histories_of, window_rows
from hmmscope.processes.hmm import HMM
from hmmscope.runs.pipeline import Run


@registry.experiment("multitask-context-length")
class ContextLength(Experiment):
    """See the module."""

    title = "How many observations a Transformer has to see"
    summary = (
        "Lemma 1 of [MultiTask]: what is lost by keeping only the last k observations falls exponentially in k. A decoder "
        "is trained for each k on windows of one stationary HMM, to predict what follows. Its error against the filter of "
        "the whole past stands beside the exact error of a memory of the same k observations."
    )
    intervals = SEED_INTERVALS
    num_seeds = NUM_SEEDS
    groups = {"memory": ("errors", "rates")}

    def choices(self, scale: str) -> dict[str, Any]:
        lengths = {"smoke": [1, 2, 3], "small": [1, 2, 3, 4, 6, 8], "gpu": [1, 2, 3, 4, 5, 6, 8, 10, 12]}
        return {"lengths": lengths["gpu" if scale == "paper" else scale]}

    def plan(self, scale: str, **choices: Any) -> dict[str, dict[str, Any]]:
        return {f"memory {k}": window_config(scale, k) for k in choices["lengths"]}

    def measurements(self, scale: str) -> dict[str, Any]:
        return {"histories": {"smoke": 64, "small": 8192, "gpu": 32768, "paper": 32768}[scale]}

    def measure(self, runs: dict[str, Run], group: str, sizes: dict[str, Any]) -> Measured:
        memories = {run.config.layout.num_columns - 1: run for run in runs.values()}
        first = next(iter(memories.values()))
        histories = histories_of(first, max(max(memories), 4), sizes["histories"])
        assert isinstance(first.process, HMM)
        spec = first.config.process
        rate = {"observability": spec.observability, "rank": spec.rank}
        rate |= exact_rate(histories, first.process, [1, 2, 3, 4])
        return {
            "errors": [row for k, run in memories.items() for row in window_rows(run, histories, k)],
            "rates": [rate],
        }

    def figures(self, tables: Tables) -> list[Figure]:
        return [
            Figure(
                name="context-length",
                title="Error against the observations seen",
                caption=(
                    "Excess over the filter of the whole past, and total variation from it, by the number k of observations "
                    "seen. The best from k observations is exact; excess = memory + learning, so the model's learning part "
                    "(dotted among others) is what training left. Straight lines are exponential decay. Bands are 95 % "
                    "intervals over seeds, each with its own HMM."
                ),
                panels=(
                    _panel(tables["errors"], "excess", "Excess", "nats per observation"),
                    _panel(tables["errors"], "total_variation", "Distance", "total variation"),
                ),
            )
        ]

    def notes(self, tables: Tables) -> list[Finding]:
        rate, mixing = (by_seed(tables["rates"], lambda rows, key=key: rows[0][key]) for key in ("rate", "mixing"))  # type: ignore[misc]
        if rate is None or mixing is None:
            return []
        gamma = tables["rates"][0]["observability"]
        text = (
            f"The exact memory error decays by {rate.value:.2f} nats with each observation, the hidden chain by itself by "
            f"{mixing.value:.2f}. The lemma guarantees c gamma^4 with an unknown c; gamma^4 is {gamma**4:.3f} here "
            f"(gamma = {gamma:g})."
        )
        return [
            Finding(
                title="How fast the exact memory error decays",
                text=text,
                verdict="found",
                value=rate.value,
                low=rate.low,
                high=rate.high,
                unit="nats per observation",
            )
        ]


def _panel(rows: list[dict], metric: str, title: str, unit: str) -> Lines:
    names = {
        "memory": ("best from k observations", "optimum"),
        "model": ("model", "model"),
        "stationary": ("nothing seen", "baseline"),
        "untrained": ("model before training", "control"),
    }
    series = [curve(of(rows, predictor=key, metric=metric), "memory", *name) for key, name in names.items()]
    if metric == "excess":
        series.append(curve(of(rows, predictor="model", metric="learning"), "memory", "model, learning part", "other"))
    return Lines(title=title, x_label="observations seen", y_label=unit, series=tuple(series), log_y=True)
