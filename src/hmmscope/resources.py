"""Whether a request fits in memory, asked before anything is allocated."""

from pathlib import Path

from hmmscope.errors import ResourceError


def free_memory() -> int | None:
    """Bytes that can be allocated without swapping; None where the system does not say."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        return None


def require_memory(what: str, num_bytes: int, advice: str = "ask for less at once") -> None:
    """ResourceError if `num_bytes` is more than the memory that is free."""
    free = free_memory()
    if free is not None and num_bytes > free:
        needed, have = num_bytes / 2**30, free / 2**30
        raise ResourceError(f"{what}: needs {needed:.1f} GiB and {have:.1f} GiB are free; {advice}")
