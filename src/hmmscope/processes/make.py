"""Processes by name."""

from typing import Any

from hmmscope import registry
from hmmscope.processes.base import Process


def make_process(name: str, **fields: Any) -> Process:
    """Build a registered process, ``make_process("random-mixture", num_components=256, seed=0)``.

    Raises:
        InputError: an unknown name or field (the message gives the nearest known one), or a value out of range.
    """
    process: Process = registry.build_spec("process", {"name": name, **fields}, "process").build()
    return process
