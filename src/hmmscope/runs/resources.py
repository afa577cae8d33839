"""The memory, the disk and the time that a training takes, before it is begun."""

import warnings

from hmmscope.models.base import ModelIO, cost_of
from hmmscope.runs.config import RunConfig
from hmmscope.system_info import require_memory
from hmmscope.training.engines import torch_seconds

#: Parameters of a model from which on a training on the processor says what it takes.
LARGE = 20_000_000
#: What takes less of a disk.
ADVICE = "lower training.num_log_checkpoints or the size of the model, or choose another --out"


def disk_bytes(config: RunConfig, model_io: ModelIO) -> int:
    """Of the folder of a training: checkpoints of weights and two moments, one more while it is written, and journals."""
    spec, cost = config.training, cost_of(config.model, model_io, config.layout.context_length)
    kept = len({spec.num_steps, 1}.union(spec.log_checkpoint_steps)) + 1
    return 200 * spec.num_steps + (0 if cost is None else 12 * cost.parameters * kept)


def warn_if_large(config: RunConfig, model_io: ModelIO) -> None:
    """A warning with size, memory and time if a model of more than `LARGE` parameters is to be trained on the processor."""
    spec, columns = config.training, config.layout.context_length
    cost = cost_of(config.model, model_io, columns, device=spec.device)
    if cost is None or spec.device != "cpu" or cost.parameters <= LARGE:
        return
    memory = cost.step_bytes(spec.batch_size // spec.accumulation_steps) / 2**30
    seconds = torch_seconds(config.model, model_io, spec, columns) / max(1, spec.num_threads)
    warnings.warn(
        f"model: {config.model.name} has {cost.parameters:,} parameters here; a training step takes about {memory:.1f} GiB "
        f"of memory, and {spec.num_steps:,} steps take about {duration(seconds)} on this processor; "
        "model.num_layers and model.width make it smaller",
        stacklevel=4,
    )


def require_memory_for(config: RunConfig, model_io: ModelIO) -> None:
    """ResourceError if a training step on the processor cannot fit into its free memory."""
    spec = config.training
    grain = spec.batch_size // spec.accumulation_steps
    cost = cost_of(config.model, model_io, config.layout.context_length, device=spec.device)
    if cost is not None and spec.device == "cpu":
        require_memory(
            "a training step", cost.step_bytes(grain), "lower training.batch_size, or raise training.accumulation_steps"
        )


def duration(seconds: float) -> str:
    """In the largest unit of which there are two."""
    for size, unit in ((86400.0, "days"), (3600.0, "hours"), (60.0, "minutes")):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} seconds"
