"""Type checks for code that needs a specific class of process."""

from typing import TypeVar

from hmmscope.errors import InputError
from hmmscope.processes.composed_cycles import ComposedCycles
from hmmscope.processes.process import Process
from hmmscope.schema import require

P = TypeVar("P", bound=Process)


def require_process_type(process: Process, kind: type[P], field: str = "process") -> P:
    """Return the process; raise InputError about `field` unless the process has type `kind`."""
    require(isinstance(kind, type), "kind", "must be a subclass of Process", kind)
    if not isinstance(process, kind):
        raise InputError(f"{field}: must be a {kind.__name__}, got a {type(process).__name__}")
    return process


def as_composed_cycles(process: Process) -> ComposedCycles | None:
    """Return the process if it is a `ComposedCycles`, else None."""
    return process if isinstance(process, ComposedCycles) else None
