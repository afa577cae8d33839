"""Runs that begin as a shorter one did: its checkpoint is taken over instead of trained again.

What a training is at a step depends on the steps before it alone, and these on the configuration. Two runs that differ in
their number of steps, and in nothing that comes earlier, are one up to there: with the schedule "wsd", up to the decay of
the shorter one. So budgets 600, 1200, 2400, ..., each with its own decay, cost one trunk and its branches.

The engine may be another one, from there on: its steps differ from those of the first by rounding.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hmmscope.errors import InputError
from hmmscope.runs.config import RunConfig, config_from_data
from hmmscope.storage.rundir import RunDir, config_difference, read_journal
from hmmscope.training.schedules import learning_rate
from hmmscope.training.spec import TrainingSpec

#: What may differ, as long as the steps that are taken over are the same.
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
    """What two runs have in common.

    Attributes:
        shorter: the run that has it.
        step: whose checkpoint is taken over.
        num_log_checkpoints: steps whose checkpoints stay in the longer one.
    """

    shorter: RunDir
    step: int
    num_log_checkpoints: tuple[int, ...]

    @classmethod
    def of(cls, path: Path, config: RunConfig) -> "SharedPrefix":
        """The longest one of the run in `path` and of a configuration.

        Raises:
            InputError: there is none; the message says what differs.
            DamagedError: `path` is damaged.
        """
        shorter = RunDir.open(path)
        own = config_from_data(shorter.config)
        difference = config_difference(_fixed(own), _fixed(config))
        if difference:
            raise InputError(f"warm_start: {path} begins otherwise ({'; '.join(difference[:4])})")
        both, length = (own.training, config.training), config.layout.num_observations
        apart = next(
            (step for step in range(min(spec.num_steps for spec in both)) if _differ(both, step, length)), None
        )
        last = min(spec.num_steps - 1 for spec in both) if apart is None else apart
        steps = [step for step in shorter.checkpoint_steps() if step <= last]
        if not steps:
            kept = f"it has checkpoints of {', '.join(map(str, shorter.checkpoint_steps())) or 'no step'}"
            raise InputError(f"warm_start: {path} takes the same first {last} steps, and {kept}")
        return cls(shorter, steps[-1], config.training.log_checkpoint_steps)

    def hand_over(self, folder: RunDir) -> None:
        """The checkpoint and the metrics before it, to a run that has no checkpoint."""
        found = self.shorter.load_checkpoint(self.step)
        assert found is not None  # a step that is not there is refused
        _, tensors, state = found
        folder.metrics.truncate(0)
        for record in read_journal(self.shorter.path / "metrics.jsonl"):
            if record["step"] <= self.step:
                folder.metrics.append(record)
        del state["journal_length"]
        folder.save_checkpoint(self.step, tensors, state, milestones=self.num_log_checkpoints)


def _fixed(config: RunConfig) -> dict[str, Any]:
    """What must be the same."""
    data = config.to_data()
    return data | {"training": {key: value for key, value in data["training"].items() if key not in FREE}}


def _differ(specs: tuple[TrainingSpec, TrainingSpec], step: int, length: int) -> bool:
    """Whether a step is another one in two recipes that differ in what is free."""
    one, other = ((learning_rate(spec, step), spec.stage_length(step, length)) for spec in specs)
    return one != other
