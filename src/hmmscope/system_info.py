"""Properties of this machine: versions that affect numbers and timings, free memory and disk."""

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
    """Return the versions and settings that may change the results of a run, without host, user or path."""
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
    package_root, source = Path(__file__).parent, hashlib.sha256()
    for file in sorted(package_root.rglob("*.py")):
        source.update(f"{file.relative_to(package_root).as_posix()}\0".encode() + file.read_bytes() + b"\0")
    return source.hexdigest()


#: Instruction sets that affect the speed of arithmetic.
INSTRUCTIONS = (
    *("avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512_vnni", "avx512_bf16", "avx512_fp16"),
    *("amx_tile", "amx_bf16", "amx_int8", "asimd", "asimdhp", "asimddp", "bf16", "sve", "sve2"),
)


def processor(path: str = "/proc/cpuinfo") -> dict[str, Any]:
    """Return the processor's name, family, model, stepping and fast instruction sets; None for unknown values."""
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
    """Return date, processor, cores, versions and GPU, as context of timings; unknown or absent ones are None."""
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
    found = machine()
    which = f", {found['processor_model']}" if found["processor_model"] else ""
    where = f"{found['processor']} ({found['cores']} cores{which})"
    return f"{where}{', ' + found['gpu'] if found['gpu'] else ''}, torch {found['torch']}"


def free_memory() -> int | None:
    """Return the bytes available to this container without swapping; None if unknown."""
    found = []
    with suppress(OSError, StopIteration):
        lines = Path("/proc/meminfo").read_text().splitlines()
        found.append(next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")))
    with suppress(OSError, ValueError):  # "max" is not a number
        limit, used = (int(Path(f"/sys/fs/cgroup/memory.{name}").read_text()) for name in ("max", "current"))
        found.append(max(0, limit - used))
    return min(found, default=None)


def require_disk(what: str, folder: Path, num_bytes: int, advice: str) -> None:
    place = next(one for one in (folder.absolute(), *folder.absolute().parents) if os.path.isdir(one))
    free = shutil.disk_usage(place).free
    if num_bytes > free:
        raise ResourceError(
            f"{what}: needs {num_bytes / 2**30:.1f} GiB on the disk of {place}, "
            f"but only {free / 2**30:.1f} GiB are free; {advice}"
        )


def require_memory(what: str, num_bytes: int, advice: str = "request less at once") -> None:
    free = free_memory()
    if free is not None and num_bytes > free:
        needed, have = num_bytes / 2**30, free / 2**30
        raise ResourceError(f"{what}: needs {needed:.1f} GiB, but only {have:.1f} GiB are free; {advice}")


def free_on(device: Any) -> int:
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
    if device.type == "cpu":
        require_memory(what, num_bytes)
    elif num_bytes > free_on(device):
        needed, have = num_bytes / 2**30, free_on(device) / 2**30
        raise ResourceError(
            f"{what}: needs {needed:.1f} GiB, but only {have:.1f} GiB are free on {device}; request less at once"
        )
