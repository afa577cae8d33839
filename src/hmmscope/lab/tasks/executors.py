"""Choice of an executor by its name."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hmmscope.errors import InputError
from hmmscope.lab.tasks.driver import Executor
from hmmscope.lab.tasks.local import LocalExecutor
from hmmscope.schema import require_known

EXECUTORS = ("local", "ray", "slurm")


@dataclass(frozen=True, kw_only=True)
class ExecutorOptions:
    """Options of an executor.

    Attributes:
        name: Name of the executor: "local", "ray" or "slurm".
        jobs: Largest number of parallel workers; None for one per processor (local) or no limit (Ray, Slurm).
        gpus: Number of GPUs of a worker, which may be a fraction for Ray only.
        address: Address of a Ray cluster.
        slurm: Options of sbatch, such as ``partition=gpu``.
        heartbeat_timeout: Seconds without progress before a worker is killed and its task retried; None for no limit.
    """

    name: str = "local"
    jobs: int | None = None
    gpus: float = 0.0
    address: str | None = None
    slurm: Sequence[str] = ()
    heartbeat_timeout: float | None = None

    def __post_init__(self) -> None:
        require_known("executor", self.name, EXECUTORS)
        if self.address is not None and self.name != "ray":
            raise InputError("address: names a Ray cluster; add --executor ray")
        if self.slurm and self.name != "slurm":
            raise InputError("slurm: sets options of sbatch; add --executor slurm")
        if self.name == "local" and self.gpus:
            raise InputError(
                "gpus: the local executor uses training.device instead; add --executor ray to distribute GPUs"
            )
        if self.heartbeat_timeout is not None and not 1 <= self.heartbeat_timeout <= 1e9:
            raise InputError(f"heartbeat_timeout: must be at least 1 second, got {self.heartbeat_timeout:g}")
        pairs(self.slurm, "slurm")

    def make(self, out: Path) -> Executor:
        if self.name == "local":
            return LocalExecutor(self.jobs, heartbeat_timeout=self.heartbeat_timeout)
        if self.name == "ray":
            from hmmscope.lab.tasks.ray import RayExecutor

            return RayExecutor(
                self.jobs, address=self.address, gpus=self.gpus, heartbeat_timeout=self.heartbeat_timeout
            )
        from hmmscope.lab.tasks.slurm import SlurmExecutor

        return SlurmExecutor(
            out,
            self.jobs,
            gpus=self.gpus,
            parameters=pairs(self.slurm, "slurm"),
            heartbeat_timeout=self.heartbeat_timeout,
        )


def pairs(words: Sequence[str], field: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or not key or not value:
            raise InputError(f"{field}: must be KEY=VALUE, got {word!r}")
        if key in found:
            raise InputError(f"{field}: {key} is given twice")
        found[key] = value
    return found
