"""The machine at hand: what may change a run, what a reader of its figures should know, and how much memory is free."""

import hashlib
import os
import platform
import shutil
import sys
from contextlib import suppress
from datetime import date
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from hmmscope import __version__
from hmmscope.errors import ResourceError


def environment() -> dict[str, Any]:
    """What may change the numbers of a run. A closed list: no host, user, path or environment variable."""
    versions: dict[str, str | None] = {}
    for package in ("torch", "numpy", "numba", "safetensors"):
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = None
    return {
        "hmmscope": __version__,
        "python": platform.python_version(),
        **versions,
        "system": sys.platform,
        "machine": platform.machine(),
        "num_cpu": os.cpu_count(),
        "source_sha256": source_digest(),
    }


@cache
def source_digest() -> str:
    """SHA-256 of the names and contents of all modules of this package, as this process first found them."""
    package_root, source = Path(__file__).parent, hashlib.sha256()
    for file in sorted(package_root.rglob("*.py")):
        source.update(f"{file.relative_to(package_root).as_posix()}\0".encode() + file.read_bytes() + b"\0")
    return source.hexdigest()


#: Instruction sets that decide how fast arithmetic is.
INSTRUCTIONS = (
    *("avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512_vnni", "avx512_bf16", "avx512_fp16"),
    *("amx_tile", "amx_bf16", "amx_int8", "asimd", "asimdhp", "asimddp", "bf16", "sve", "sve2"),
)


def processor(path: str = "/proc/cpuinfo") -> dict[str, Any]:
    """Name, family, model, stepping and those of `INSTRUCTIONS` that it has; None for what the system does not say.

    The name alone can stand for chips of several generations.
    """
    facts: dict[str, str] = {}
    try:
        with open(path) as lines:
            for line in lines:
                key, _, value = line.partition(":")
                facts.setdefault(key.strip(), value.strip())
    except (OSError, UnicodeDecodeError):
        pass
    numbers = {
        name: facts.get(key) for name, key in (("family", "cpu family"), ("model", "model"), ("stepping", "stepping"))
    }
    has = set((facts.get("flags") or facts.get("Features") or "").split())
    return {
        "processor": facts.get("model name") or platform.processor() or platform.machine(),
        "processor_model": " ".join(f"{name} {number}" for name, number in numbers.items() if number) or None,
        "instructions": " ".join(name for name in INSTRUCTIONS if name in has) or None,
    }


def machine() -> dict[str, Any]:
    """What timings depend on, with the day; "instructions" and "gpu" are None where they are not known or there is none."""
    import torch

    return {
        "date": date.today().isoformat(),
        **processor(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "hmmscope": __version__,
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }


def machine_line() -> str:
    """The machine and torch in a few words."""
    found = machine()
    which = f", {found['processor_model']}" if found["processor_model"] else ""
    where = f"{found['processor']} ({found['cores']} cores{which})"
    return f"{where}{', ' + found['gpu'] if found['gpu'] else ''}, torch {found['torch']}"


def free_memory() -> int | None:
    """Bytes that can be allocated without swapping, in the container that this is in; None where nothing says it."""
    found = []
    with suppress(OSError, StopIteration):
        lines = Path("/proc/meminfo").read_text().splitlines()
        found.append(next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")))
    with suppress(OSError, ValueError):  # "max" is no number
        limit, used = (int(Path(f"/sys/fs/cgroup/memory.{name}").read_text()) for name in ("max", "current"))
        found.append(max(0, limit - used))
    return min(found, default=None)


def require_disk(what: str, folder: Path, num_bytes: int, advice: str) -> None:
    """ResourceError if `num_bytes` is more than is free on the disk where `folder` is or will be."""
    place = next(one for one in (folder.absolute(), *folder.absolute().parents) if os.path.isdir(one))
    free = shutil.disk_usage(place).free
    if num_bytes > free:
        raise ResourceError(
            f"{what}: needs {num_bytes / 2**30:.1f} GiB on the disk of {place}, where {free / 2**30:.1f} are free; {advice}"
        )


def require_memory(what: str, num_bytes: int, advice: str = "ask for less at once") -> None:
    """ResourceError if `num_bytes` is more than the memory that is free."""
    free = free_memory()
    if free is not None and num_bytes > free:
        needed, have = num_bytes / 2**30, free / 2**30
        raise ResourceError(f"{what}: needs {needed:.1f} GiB and {have:.1f} GiB are free; {advice}")


def free_on(device: Any) -> int:
    """Bytes that can be allocated on a device of torch, those that it keeps for later among them."""
    import torch

    if device.type == "cuda":
        return (
            torch.cuda.mem_get_info(device)[0]
            + torch.cuda.memory_reserved(device)
            - torch.cuda.memory_allocated(device)
        )
    free = free_memory()
    return 2**32 if free is None else free


def require_memory_on(device: Any, what: str, num_bytes: int) -> None:
    """ResourceError if `num_bytes` is more than what is free where the result will be."""
    if device.type == "cpu":
        require_memory(what, num_bytes)
    elif num_bytes > free_on(device):
        needed, have = num_bytes / 2**30, free_on(device) / 2**30
        raise ResourceError(
            f"{what}: needs {needed:.1f} GiB and {have:.1f} GiB are free on {device}; ask for less at once"
        )
