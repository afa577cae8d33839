"""Executor for a Slurm cluster: it submits job arrays with submitit."""

import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import astuple
from pathlib import Path
from typing import Any

from hmmscope.errors import InputError, ResourceError
from hmmscope.lab.tasks.local import ForkServer, Job
from hmmscope.lab.tasks.task import GRACE, Outcome, Task
from hmmscope.schema import require

_QUEUED = 1_000_000
_SECONDS_BETWEEN_LOOKS = 5.0
_SECONDS_FOR_A_RESULT = 60.0


class SlurmWorker:
    """The code of a Slurm job: it runs a worker, which saves before the job is preempted or reaches its time limit."""

    def __init__(self, heartbeat_timeout: float | None = None) -> None:
        self._job: Job | None = None
        self._silence = heartbeat_timeout

    def __call__(self, task: Task) -> tuple[str, int, str]:
        self._job = Job(ForkServer(), task, self._silence)
        while (outcome := self._job.poll()) is None:
            time.sleep(0.2)
        return astuple(outcome)

    def checkpoint(self, task: Task) -> Any:
        from submitit.helpers import DelayedSubmission

        if self._job is not None:
            self._job.terminate()
            self._job.wait(GRACE)
        return DelayedSubmission(SlurmWorker(self._silence), task)


class SlurmExecutor:
    """Executor that runs tasks as Slurm jobs, which outlive this process; the same command, run again, waits for them.

    The task folder must be on a file system shared by all nodes, with working locks (flock).

    Args:
        out: Folder of the tasks; submitit's files are in OUT/slurm.
        jobs: Largest number of jobs of an array that run at once.
        gpus, heartbeat_timeout: See `ExecutorOptions`.
        parameters: Options of sbatch, such as ``{"partition": "gpu", "time": "120", "account": "a"}``.
        cluster: "slurm", or submitit's substitutes "local" and "debug", which need no Slurm.

    Raises:
        InputError: submitit is not installed, or does not know a parameter.
        ResourceError: Slurm is not available.
    """

    def __init__(
        self,
        out: Path,
        jobs: int | None = None,
        *,
        gpus: float = 0,
        parameters: Mapping[str, str] | None = None,
        cluster: str = "slurm",
        heartbeat_timeout: float | None = None,
    ) -> None:
        try:
            import submitit
        except ImportError:
            raise InputError("executor: submitit is not installed; pip install 'hmmscope[slurm]'") from None
        require(jobs is None or 1 <= jobs <= 10_000, "jobs", "must be in [1, 10000]", jobs)
        require(gpus == int(gpus) and 0 <= gpus <= 64, "gpus", "must be a whole number in [0, 64] for Slurm", gpus)
        self._out, self._cluster, self._silence = out.absolute(), cluster, heartbeat_timeout
        options: dict[str, Any] = {"name": "hmmscope", "tasks_per_node": 1, "cpus_per_task": 1, "timeout_min": 60}
        if gpus:
            options["gpus_per_node"] = int(gpus)
        if cluster == "slurm":
            options["slurm_array_parallelism"] = jobs or 1000
            options |= {f"slurm_{key}": _number(value) for key, value in (parameters or {}).items()}
        try:
            self._executor = submitit.AutoExecutor(
                folder=self._out / "slurm", cluster=cluster, slurm_max_num_timeout=1000
            )
            self._executor.update_parameters(**options)
        except (NameError, TypeError, ValueError) as error:
            raise InputError(f"slurm: {' '.join(str(error).split())}") from error
        except RuntimeError as error:  # no srun
            raise ResourceError(f"executor: {' '.join(str(error).split())}") from error
        self._jobs: dict[Task, Any] = {}
        self._missing: dict[Task, float] = {}
        self._looked = 0.0

    @property
    def active(self) -> int:
        return len(self._jobs)

    @property
    def free(self) -> int:
        return _QUEUED - len(self._jobs)

    def submit(self, tasks: Sequence[Task]) -> None:
        try:
            jobs = self._executor.map_array(SlurmWorker(self._silence), list(tasks))
        except Exception as error:  # FailedJobError, and any other failure of sbatch
            raise ResourceError(f"executor: sbatch refused: {' '.join(str(error).split())[:300]}") from error
        self._jobs |= dict(zip(tasks, jobs, strict=True))

    def finished(self) -> list[Outcome]:
        lost = self._lost()
        outcomes: list[Outcome] = []
        for task, job in list(self._jobs.items()):
            has_result = job.paths.result_pickle.exists()
            if not has_result and task not in lost and (self._cluster == "slurm" or not job.done()):
                continue
            del self._jobs[task]
            self._missing.pop(task, None)
            outcomes.append(self._outcome(task, None if task in lost else job))
        return outcomes

    def _outcome(self, task: Task, job: Any | None) -> Outcome:
        reason = _LOST
        try:
            if job is not None:
                return Outcome(*job.result())
        except Exception as error:
            said = str(error).strip().splitlines()
            reason = f"the Slurm job failed ({said[-1] if said else type(error).__name__})"
        return task.outcome(70, reason)

    def _lost(self) -> set[Task]:
        if self._cluster != "slurm" or time.monotonic() - self._looked < _SECONDS_BETWEEN_LOOKS:
            return set()
        self._looked = time.monotonic()
        listed = _listed()
        if listed is None:
            return set()
        for task, job in self._jobs.items():
            if job.job_id in listed:
                self._missing.pop(task, None)
            else:
                self._missing.setdefault(task, self._looked)
        return {task for task, since in self._missing.items() if self._looked - since > _SECONDS_FOR_A_RESULT}

    def stop(self) -> None:
        for job in self._jobs.values():
            with suppress(Exception):
                job.cancel(check=False)
        ours = {job.job_id for job in self._jobs.values()}
        deadline = time.monotonic() + GRACE
        while ours and self._cluster == "slurm" and time.monotonic() < deadline:
            time.sleep(0.5)
            ours &= _listed() or set()
        self._jobs.clear()


def _listed() -> set[str] | None:
    command = ["squeue", "--me", "--noheader", "--array", "--format=%i"]
    try:
        return set(subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.split())
    except (OSError, subprocess.SubprocessError):
        return None


_LOST = "the Slurm job ended without a result (killed, or its node was lost)"


def _number(text: str) -> Any:
    return int(text) if text.isdecimal() else text
