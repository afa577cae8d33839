"""The memory and the disk that a training takes, before it is begun."""

from hmmscope.machine import require_memory
from hmmscope.models.base import Ports, cost_of
from hmmscope.runs.config import RunConfig

#: What takes less of a disk.
ADVICE = "lower training.milestones or the size of the model, or choose another --out"


def disk_bytes(config: RunConfig, ports: Ports) -> int:
    """Of the folder of a training: checkpoints of weights and two moments, one more while it is written, and journals."""
    spec, cost = config.training, cost_of(config.model, ports, config.layout.num_columns)
    kept = len({spec.num_steps, 1}.union(spec.milestone_steps)) + 1
    return 200 * spec.num_steps + (0 if cost is None else 12 * cost.parameters * kept)


def require_memory_for(config: RunConfig, ports: Ports) -> None:
    """ResourceError if a training step on the processor cannot fit into its free memory."""
    spec = config.training
    grain = spec.batch_size // spec.num_grains
    cost = cost_of(config.model, ports, config.layout.num_columns, device=spec.device)
    if cost is not None and spec.device == "cpu":
        require_memory(
            "a training step", cost.step_bytes(grain), "lower training.batch_size, or raise training.num_grains"
        )
