"""[Limits] Figure 3: how long a sequence Transformers fit, against their depth."""

from typing import Any

from hmmscope import registry
from hmmscope.analysis.fit_length import evaluation_losses, fit_length, fit_start
from hmmscope.evidence.figures import Figure
from hmmscope.experiments.experiment import NUM_SEEDS, SEED_INTERVALS, Experiment, Measured, Tables
from hmmscope.experiments.limits_fig3_figures import figures
from hmmscope.experiments.limits_models import TASKS, grid
from hmmscope.experiments.limits_tables import EPOCHS, all_layers, epochs_of, identity
from hmmscope.inference.window import linear_window_errors, window_errors
from hmmscope.processes.hmm import HMM
from hmmscope.processes.linear_gaussian import LinearGaussian
from hmmscope.runs.pipeline import Run

_TASKS = {
    "smoke": ["ran-hmm", "cyclic-det", "cyclic-hard"],
    "small": list(TASKS),
    "gpu": list(TASKS),
    "paper": list(TASKS),
}
_SIZES = {
    "smoke": {"samples": 64, "least_count": 8, "window_samples": 32},
    "small": {"samples": 4096, "least_count": 256, "window_samples": 1000},
    "gpu": {"samples": 8192, "least_count": 512, "window_samples": 1000},
    "paper": {"samples": 8192, "least_count": 512, "window_samples": 1000},
}


@registry.experiment("limits-fig3")
class LimitsFig3(Experiment):
    """See the module."""

    title = "How long a sequence a Transformer fits, against its depth"
    summary = (
        "The fit length of a model is the number of positions, from the first on, at which its answer is within an error "
        "rate of the exact one, in the last epochs of training. It is measured for Transformers of growing depth and for a "
        "one-layer RNN, on processes that forget quickly, on cycles and products that never forget, and on Cyclic-HARD, "
        "where the state is rarely asked for. Beside them stand predictors that know little: their fit length is what a "
        "fit length is worth. " + EPOCHS
    )
    num_seeds = NUM_SEEDS
    intervals = SEED_INTERVALS
    groups = {"losses": ("positions", "fit-lengths"), "windows": ("windows",)}

    def choices(self, scale: str) -> dict[str, Any]:
        return {"tasks": list(_TASKS[scale]), "layers": all_layers(scale)}

    def plan(self, scale: str, **choices: Any) -> dict[str, dict[str, Any]]:
        return grid(scale, choices["tasks"], choices["layers"])

    def measurements(self, scale: str) -> dict[str, Any]:
        return {
            "error_rates": [0.05, 0.1],
            "definition": "prefix",
            "last_epochs": 3,
            **_SIZES[scale],
            "windows": [0, 1, 2, 4],
        }

    def measure(self, runs: dict[str, Run], group: str, sizes: dict[str, Any]) -> Measured:
        if group == "windows":
            of_task = {identity(label)["task"]: run for label, run in runs.items()}
            return {"windows": [row for task, run in of_task.items() for row in _windows(task, run, sizes)]}
        tables: Measured = {"positions": [], "fit-lengths": []}
        for label, run in runs.items():
            rows = _final(run, identity(label)["task"], sizes)
            tables["positions"] += [identity(label) | row for row in rows]
            tables["fit-lengths"] += [identity(label) | row for row in _fit_lengths(run, rows, sizes)]
        return tables

    def figures(self, tables: Tables) -> list[Figure]:
        return figures(tables)


def _final(run: Run, task: str, sizes: dict[str, Any]) -> list[dict]:
    """The evaluation loss of the trained model at every position, on fresh samples."""
    return evaluation_losses(
        run.model,
        run.corpus("probe"),
        num_samples=sizes["samples"],
        target=TASKS[task][1],
        least_count=sizes["least_count"],
        block_length=run.config.training.block_length,
    )


def _fit_lengths(run: Run, final: list[dict], sizes: dict[str, Any]) -> list[dict]:
    """Fit lengths from the last epochs, and from the final samples; of the constant predictor the latter only."""
    found = epochs_of(run)
    by_epoch = [row["distances"] for row in found.rows]
    sources: list[tuple[str, str, list[list[float | None]], int]] = [
        ("model", "epochs", by_epoch, sizes["last_epochs"]),
        *[(name, "final", [_column(final, name, found.positions)], 1) for name in ("model", "constant")],
    ]
    rows = []
    for predictor, by, losses, last in sources:
        for rate in sizes["error_rates"]:
            length = fit_length(losses, found.positions, rate, last=last, definition=sizes["definition"])
            rows.append(
                {
                    "predictor": predictor,
                    "by": by,
                    "definition": sizes["definition"],
                    "error_rate": rate,
                    "value": length,
                    "fits_from": fit_start(losses, found.positions, rate, last=last),
                    "longest": found.positions[-1],
                }
            )
    return rows


def _column(rows: list[dict], predictor: str, positions: list[int]) -> list[float | None]:
    found = {row["position"]: row["value"] for row in rows if row["predictor"] == predictor}
    return [found.get(position) for position in positions]


def _windows(task: str, run: Run, sizes: dict[str, Any]) -> list[dict]:
    """Exact filters that keep a window of the last observations, where windows tell something.

    Of Cyclic-RND every window gives the uniform law; of the other cycles and of MatMul it tells nothing at all.
    """
    process, windows, count = run.process, sizes["windows"], sizes["window_samples"]
    positions = [int(p) for p in run.target.positions if p > 0]
    keys = ("window", "position", "value", "low", "high")
    found: list[tuple[int, int, float, float, float]] = []
    if isinstance(process, LinearGaussian):
        for position in positions:
            kept = [window for window in windows if window <= position]
            if not kept:
                continue
            errors = linear_window_errors(process, kept, position, num_samples=count)
            found += [(w, position, *_numbers(errors, i)) for i, w in enumerate(kept)]
    elif isinstance(process, HMM) or task == "cyclic-rnd":
        kept = windows if isinstance(process, HMM) else windows[:1]
        errors = window_errors(process, kept, positions, num_samples=count)  # type: ignore[arg-type]
        found = [(w, t, *_numbers(errors, (i, j))) for i, w in enumerate(kept) for j, t in enumerate(positions)]
    return [{"task": task, "samples": count} | dict(zip(keys, row, strict=True)) for row in found]


def _numbers(errors: Any, index: Any) -> tuple[float, float, float]:
    return float(errors.mean[index]), float(errors.low[index]), float(errors.high[index])
