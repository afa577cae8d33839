"""Training as an axis: any instrument on the weights of every step whose checkpoint has stayed."""

from collections.abc import Callable
from typing import Any

from torch import nn

from hmmscope import registry
from hmmscope.datasets.process_dataset import ProcessDataset
from hmmscope.runs.pipeline import Run
from hmmscope.schema import require

#: An instrument: from a model and a corpus to the rows of a table.
Instrument = Callable[..., list[dict[str, Any]]]


def over_training(
    run: Run, instrument: str | Instrument, *, dataset: ProcessDataset | None = None, **options: Any
) -> list[dict[str, Any]]:
    """The rows of an instrument at every step that was kept, the first weights included.

    Args:
        run: trained with ``training.num_log_checkpoints``.
        instrument: its name, or a function of a model and a corpus that returns rows.
        dataset: samples; by default those of the run's stream "probe", the same at every step.
        options: of the instrument.

    Returns:
        Its rows, each with the ``step``.

    Raises:
        InputError: no run, an unknown instrument, or a run that kept no checkpoints.
        DamagedError: see `checkpoint_steps`.
    """
    require(isinstance(run, Run), "run", "must be a run, as hmmscope.load_run(FOLDER) gives it", run)
    tool = registry.lookup("instrument", instrument) if isinstance(instrument, str) else instrument
    samples = run.dataset("probe") if dataset is None else dataset

    def at(step: int) -> list[dict[str, Any]]:
        model: nn.Module = run.model_at(step)
        return [{"step": step} | row for row in tool(model, samples, **options)]

    return [row for step in run.checkpoint_steps() for row in at(step)]
