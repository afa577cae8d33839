"""A process as the kind that a caller needs, for code that reads the matrices of that kind itself."""

from typing import TypeVar

from hmmscope.errors import InputError
from hmmscope.processes.composed_cycles import ComposedCycles
from hmmscope.processes.process import Process

P = TypeVar("P", bound=Process)


def require_process_type(process: Process, kind: type[P], field: str = "process") -> P:
    """The same process, of that kind, such as `HMM` or `Mixture`; InputError, of that field, for another one."""
    if not isinstance(process, kind):
        raise InputError(f"{field}: must be of kind {kind.__name__}, got {type(process).__name__}")
    return process


def as_composed_cycles(process: Process) -> ComposedCycles | None:
    """The same process, a pool of pairs of parts; None for another kind."""
    return process if isinstance(process, ComposedCycles) else None
