"""Where numbers were made: what may change a run, and what a reader of its figures should know."""

import hashlib
import os
import platform
import sys
from datetime import date
from importlib import metadata
from pathlib import Path
from typing import Any

from hmmscope import __version__


def environment() -> dict[str, Any]:
    """What may change the numbers of a run. A closed list: no host, user, path or environment variable."""
    versions: dict[str, str | None] = {}
    for package in ("torch", "numpy", "numba", "safetensors"):
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = None
    package_root = Path(__file__).parent
    source = hashlib.sha256()
    for file in sorted(package_root.rglob("*.py")):
        source.update(f"{file.relative_to(package_root).as_posix()}\0".encode() + file.read_bytes() + b"\0")
    return {
        "hmmscope": __version__,
        "python": platform.python_version(),
        **versions,
        "system": sys.platform,
        "machine": platform.machine(),
        "num_cpu": os.cpu_count(),
        "source_sha256": source.hexdigest(),
    }


def machine() -> dict[str, Any]:
    """What timings depend on, with the day; "gpu" is None without one."""
    import torch

    model = platform.processor() or platform.machine()
    try:
        with open("/proc/cpuinfo") as lines:
            model = next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        pass
    return {
        "date": date.today().isoformat(),
        "processor": model,
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "hmmscope": __version__,
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }


def machine_line() -> str:
    """The machine and torch in a few words."""
    found = machine()
    where = f"{found['processor']} ({found['cores']} cores)"
    return f"{where}{', ' + found['gpu'] if found['gpu'] else ''}, torch {found['torch']}"
