"""Memory, disk and time of a training run, estimated before it starts."""

import warnings

from hmmscope.models.base import ModelIO, cost_of
from hmmscope.runs.config import RunConfig
from hmmscope.system_info import require_memory
from hmmscope.training.engines import torch_seconds

#: Number of parameters above which training on the processor warns of its cost.
LARGE = 20_000_000
#: Advice for saving disk space.
ADVICE = "reduce training.num_log_checkpoints or the size of the model, or choose another --out"


def disk_bytes(config: RunConfig, model_io: ModelIO) -> int:
    spec, cost = config.training, cost_of(config.model, model_io, config.layout.context_length)
    kept = len({spec.num_steps, 1}.union(spec.log_checkpoint_steps)) + 1
    return 200 * spec.num_steps + (0 if cost is None else 12 * cost.parameters * kept)


def warn_if_large(config: RunConfig, model_io: ModelIO) -> None:
    spec, columns = config.training, config.layout.context_length
    cost = cost_of(config.model, model_io, columns, device=spec.device)
    if cost is None or spec.device != "cpu" or cost.parameters <= LARGE:
        return
    memory = cost.step_bytes(spec.batch_size // spec.accumulation_steps) / 2**30
    seconds = torch_seconds(config.model, model_io, spec, columns) / max(1, spec.num_threads)
    warnings.warn(
        f"model: {config.model.name} has {cost.parameters:,} parameters; a training step takes about {memory:.1f} GiB "
        f"of memory, and {spec.num_steps:,} steps take about {duration(seconds)} on this processor; "
        "reduce model.num_layers or model.width",
        stacklevel=4,
    )


def require_memory_for(config: RunConfig, model_io: ModelIO) -> None:
    """Raise ResourceError if a training step on the CPU does not fit into free memory."""
    spec = config.training
    grain = spec.batch_size // spec.accumulation_steps
    cost = cost_of(config.model, model_io, config.layout.context_length, device=spec.device)
    if cost is not None and spec.device == "cpu":
        require_memory(
            "a training step", cost.step_bytes(grain), "lower training.batch_size, or raise training.accumulation_steps"
        )


def duration(seconds: float) -> str:
    for size, unit in ((86400.0, "days"), (3600.0, "hours"), (60.0, "minutes")):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} seconds"
