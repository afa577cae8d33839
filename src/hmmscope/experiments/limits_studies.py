"""What the smaller studies of [Limits] share: shorter trainings, and what their evaluations say."""

from typing import Any

from hmmscope.analysis.fit_length import fit_length
from hmmscope.runs.pipeline import Run
from hmmscope.schema import require
from hmmscope.storage import rundir

#: Evaluations of a shortened training.
EVALUATIONS = 20


def shortened(steps: int, evaluations: int = EVALUATIONS) -> dict[str, Any]:
    """Changes to the section ``training`` for a run of that many steps of fresh samples; none for 0 steps.

    Epochs, halvings of the learning rate and evaluations keep their places relative to the whole.

    Raises:
        InputError: a negative number of steps.
    """
    require(steps >= 0, "plan.steps", "must be at least 0 (as many as the scale has)", steps)
    if steps == 0:
        return {}
    epoch = max(1, steps // evaluations)
    return {
        "num_steps": steps,
        "num_trajectories": 0,
        "epoch_steps": epoch,
        "halve_every": max(1, evaluations // 5),
        "warmup_steps": min(300, max(1, steps // 10)),
        "evaluate_every": epoch,
        "checkpoint_every": max(1, steps // 4),
    }


def evaluations_of(run: Run) -> tuple[list[int], list[int], list[list[float | None]]]:
    """The evaluations of a run's training: steps, positions from 1 on, and the evaluation loss by step and position."""
    records = [row for row in rundir.read_journal(run.path / "metrics.jsonl") if "distances" in row]
    judged = run.target.positions.tolist()
    kept = [column for column, position in enumerate(judged) if position >= 1]
    losses = [[row["distances"][column] for column in kept] for row in records]
    return [row["step"] for row in records], [judged[column] for column in kept], losses


def fit_length_of(run: Run, error_rate: float) -> int:
    """Fit length of a run by the last evaluations of its training, see `hmmscope.analysis.fit_length`."""
    _, positions, losses = evaluations_of(run)
    return fit_length(losses, positions, error_rate)
