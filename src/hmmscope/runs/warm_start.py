"""Warm starts: reuse the checkpoint of a shorter run.

Runs that differ only in the number of steps are equal until the shorter one ends or, with the schedule "wsd", until its
learning rate starts to decay.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hmmscope.errors import InputError
from hmmscope.runs.config import RunConfig, config_from_data
from hmmscope.storage.rundir import RunDir, config_difference, read_journal
from hmmscope.training.schedules import learning_rate
from hmmscope.training.spec import TrainingSpec

#: Fields that may differ if the shared steps are the same.
FREE = (
    "num_steps",
    "schedule",
    "epoch_steps",
    "halve_every",
    "final_fraction",
    "checkpoint_every",
    "milestones",
    "engine",
)


@dataclass(frozen=True, eq=False)
class SharedPrefix:
    """The training steps that are the same in a shorter and a longer run.

    Attributes:
        shorter: The existing run.
        step: Step of the reused checkpoint.
        num_log_checkpoints: Steps of the longer run's permanent checkpoints (a tuple).
    """

    shorter: RunDir
    step: int
    num_log_checkpoints: tuple[int, ...]

    @classmethod
    def of(cls, path: Path, config: RunConfig) -> "SharedPrefix":
        """Find the last checkpoint of the run in `path` that a run with `config` would also have.

        Raises:
            InputError: The runs share no step with a checkpoint.
            DamagedError: `path` is damaged.
        """
        shorter = RunDir.open(path)
        own = config_from_data(shorter.config)
        difference = config_difference(_fixed(own), _fixed(config))
        if difference:
            said = f"{path} has another configuration ({'; '.join(difference[:4])})"
            raise InputError(f"warm_start: {said}; only {', '.join(FREE)} may differ")
        both, length = (own.training, config.training), config.layout.num_observations
        shortest = min(spec.num_steps for spec in both)
        apart = next((step for step in range(shortest) if _differ(both, step, length)), None)
        last = shortest - 1 if apart is None else apart
        steps = [step for step in shorter.checkpoint_steps() if step <= last]
        if not steps:
            kept = f"with checkpoints of steps {', '.join(map(str, shorter.checkpoint_steps())) or 'none'}"
            raise InputError(
                f"warm_start: {path} ({kept}) shares only the first {last} steps; train without warm_start"
            )
        return cls(shorter, steps[-1], config.training.log_checkpoint_steps)

    def hand_over(self, folder: RunDir) -> None:
        """Copy the shared checkpoint and earlier metrics to a run without a checkpoint."""
        found = self.shorter.load_checkpoint(self.step)
        assert found is not None  # missing steps were refused above
        _, tensors, state = found
        folder.metrics.truncate(0)
        for record in read_journal(self.shorter.path / "metrics.jsonl"):
            if record["step"] <= self.step:
                folder.metrics.append(record)
        del state["journal_length"]
        folder.save_checkpoint(self.step, tensors, state, milestones=self.num_log_checkpoints)


def _fixed(config: RunConfig) -> dict[str, Any]:
    data = config.to_data()
    return data | {"training": {key: value for key, value in data["training"].items() if key not in FREE}}


def _differ(specs: tuple[TrainingSpec, TrainingSpec], step: int, length: int) -> bool:
    one, other = ((learning_rate(spec, step), spec.stage_length(step, length)) for spec in specs)
    return one != other
