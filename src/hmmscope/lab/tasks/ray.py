"""Executor for several machines: it runs tasks on a Ray cluster, or starts Ray on this machine."""

import os
import time
from collections.abc import Sequence
from typing import Any

from hmmscope.errors import InputError, ResourceError
from hmmscope.lab.tasks.local import attend
from hmmscope.lab.tasks.task import GRACE, Outcome, Task
from hmmscope.schema import require

_QUEUED = 1_000_000  # no limit: Ray queues tasks


class RayExecutor:
    """Executor that runs each task in a worker process inside a Ray task with one processor and `gpus` GPUs.

    All machines need hmmscope and access to the task folders at the same paths.

    Args:
        jobs: Number of processors of a Ray cluster started on this machine; only without `address`.
        address: Address of a running cluster, such as "auto" or "ray://host:10001" (default: start one here).
        gpus, heartbeat_timeout: See `ExecutorOptions`.

    Raises:
        InputError: Ray is not installed.
        ResourceError: There is no cluster at `address`.
    """

    def __init__(
        self,
        jobs: int | None = None,
        *,
        address: str | None = None,
        gpus: float = 0.0,
        heartbeat_timeout: float | None = None,
    ) -> None:
        try:
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
            import ray
        except ImportError:
            raise InputError("executor: ray is not installed; pip install 'hmmscope[ray]'") from None
        require(
            address is None or jobs is None, "jobs", "is determined by the cluster at --address; leave it out", jobs
        )
        require(jobs is None or 1 <= jobs <= 1024, "jobs", "must be in [1, 1024]", jobs)
        require(0 <= gpus <= 64, "gpus", "must be in [0, 64]", gpus)
        self._ray, self._silence = ray, heartbeat_timeout
        options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
        if address is None:
            processors = jobs if jobs is not None else len(os.sched_getaffinity(0))
            options |= {"address": "local", "num_cpus": processors, "include_dashboard": False}
        else:
            options["address"] = address
        try:
            ray.init(**options)
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise ResourceError(f"executor: Ray does not start: {' '.join(str(error).split())}") from error
        # The driver counts attempts, and a lost task is an outcome.
        self._attend = ray.remote(num_cpus=1, num_gpus=gpus, max_retries=0, max_calls=0)(attend)
        self._tasks: dict[Any, Task] = {}

    @property
    def active(self) -> int:
        return len(self._tasks)

    @property
    def free(self) -> int:
        return _QUEUED - len(self._tasks)

    def submit(self, tasks: Sequence[Task]) -> None:
        for task in tasks:
            self._tasks[self._attend.remote(task, self._silence)] = task

    def finished(self) -> list[Outcome]:
        if not self._tasks:
            return []
        ended, _ = self._ray.wait(list(self._tasks), num_returns=len(self._tasks), timeout=0, fetch_local=False)
        return [self._outcome(reference) for reference in ended]

    def _outcome(self, reference: Any) -> Outcome:
        task = self._tasks.pop(reference)
        try:
            return Outcome(*self._ray.get(reference))
        except self._ray.exceptions.TaskCancelledError:
            code, reason = 130, "cancelled"
        except self._ray.exceptions.RayTaskError as error:  # for example, hmmscope is not installed there
            lines = [line.strip() for line in str(error).splitlines() if line.strip()]
            code, reason = 70, f"the Ray task failed ({lines[-1][:200]})"
        except self._ray.exceptions.RayError as error:
            code, reason = 70, f"the Ray task was lost ({type(error).__name__})"
        return task.outcome(code, reason)

    def stop(self) -> None:
        for reference in self._tasks:
            self._ray.cancel(reference, force=False)
        deadline = time.monotonic() + GRACE
        while self._tasks and time.monotonic() < deadline:
            self.finished()
            time.sleep(0.05)
        self._tasks.clear()
        if self._ray.is_initialized():
            self._ray.shutdown()
