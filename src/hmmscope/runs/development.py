"""Analysis over training: an instrument applied to every stored checkpoint."""

from collections.abc import Callable
from typing import Any

from torch import nn

from hmmscope import registry
from hmmscope.datasets.process_dataset import ProcessDataset
from hmmscope.runs.pipeline import Run
from hmmscope.schema import require

#: An instrument maps a model and a dataset to the rows of a table.
Instrument = Callable[..., list[dict[str, Any]]]


def over_training(
    run: Run, instrument: str | Instrument, *, dataset: ProcessDataset | None = None, **options: Any
) -> list[dict[str, Any]]:
    """Return the rows of an instrument at every stored checkpoint, including step 0.

    Args:
        run: Run trained with ``training.num_log_checkpoints``.
        instrument: Name of an instrument, or a function (model, dataset) -> rows.
        dataset: Samples, the same at every step; by default the run's stream "probe".
        options: Options of the instrument.

    Returns:
        The rows, each with its ``step``.

    Raises:
        InputError: Not a run, an unknown instrument, or a run without stored checkpoints.
        DamagedError: A checkpoint of a finished run is missing.
    """
    require(isinstance(run, Run), "run", "must be a run, such as hmmscope.load_run(FOLDER)", run)
    tool = registry.lookup("instrument", instrument) if isinstance(instrument, str) else instrument
    samples = run.dataset("probe") if dataset is None else dataset

    def at(step: int) -> list[dict[str, Any]]:
        model: nn.Module = run.model_at(step)
        return [{"step": step} | row for row in tool(model, samples, **options)]

    return [row for step in run.checkpoint_steps() for row in at(step)]
