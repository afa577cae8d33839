"""Analysis over training: an instrument applied to every stored checkpoint."""

from collections.abc import Callable
from typing import Any

from hmmscope import registry
from hmmscope.analysis.devices import about_of
from hmmscope.datasets.process_dataset import ProcessDataset
from hmmscope.reprs import ResultTable
from hmmscope.runs.pipeline import Run
from hmmscope.schema import require

#: An instrument maps a model and a dataset to the rows of a table.
Instrument = Callable[..., list[dict[str, Any]]]


def over_training(
    run: Run, instrument: str | Instrument, *, dataset: ProcessDataset | None = None, **options: Any
) -> ResultTable:
    """Return the rows of an instrument at every stored checkpoint, including step 0.

    Args:
        run: Run trained with ``training.num_log_checkpoints``.
        instrument: Name of an instrument, or a function (model, dataset) -> rows.
        dataset: Samples for the instrument, for every checkpoint the same (default: ``run.dataset("probe")``).
        options: Options of the instrument, such as ``device``.

    Returns:
        The rows, each with its training ``step``; ``plot()`` draws them over the steps.

    Raises:
        InputError: `run` is no run, or has no stored checkpoints, or the instrument is unknown.
        DamagedError: A checkpoint of a finished run is missing.
    """
    require(isinstance(run, Run), "run", "must be a run, such as hmmscope.load_run(FOLDER)", run)
    tool = registry.lookup("instrument", instrument) if isinstance(instrument, str) else instrument
    samples = run.dataset("probe") if dataset is None else dataset

    steps = run.checkpoint_steps()
    tables = [tool(run.model_at(step), samples, **options) for step in steps]
    rows = [{"step": step} | row for step, table in zip(steps, tables, strict=True) for row in table]
    last = tables[-1]
    if isinstance(last, ResultTable):
        title, y, by, only = last.title, last.y, (last.x, *last.by), last.only
    else:
        numbers = [name for row in rows[:1] for name, value in row.items() if isinstance(value, int | float)]
        title, y, by, only = getattr(tool, "__name__", "instrument"), [*numbers, "value"][1], (), ()
    found = ResultTable(rows, f"{title} over training", x="step", y=y, by=by, only=only)
    found.about = getattr(last, "about", None) or about_of(run.model, samples, None)
    found.warnings = tuple(dict.fromkeys(line for table in tables for line in getattr(table, "warnings", ())))
    return found
