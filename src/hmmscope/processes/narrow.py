"""A process as the kind that a caller needs, for code that reads the matrices of that kind itself."""

from hmmscope.errors import InputError
from hmmscope.processes.composed_cycles import ComposedCycles
from hmmscope.processes.hmm import HMM
from hmmscope.processes.linear_gaussian import LinearGaussian
from hmmscope.processes.mixture import Mixture
from hmmscope.processes.process import Process


def as_hmm(process: Process, field: str = "process") -> HMM:
    """The same process, whose states emit symbols; InputError, of that field, for another kind."""
    if not isinstance(process, HMM):
        raise InputError(f"{field}: must be an HMM, whose states emit, got {type(process).__name__}")
    return process


def as_mixture(process: Process) -> Mixture:
    """The same process, a mixture; InputError for another kind."""
    if not isinstance(process, Mixture):
        raise InputError(f"process: must be a Mixture, got {type(process).__name__}")
    return process


def as_pairs(process: Process) -> ComposedCycles | None:
    """The same process, a pool of pairs of parts; None for another kind."""
    return process if isinstance(process, ComposedCycles) else None


def as_linear(process: Process) -> LinearGaussian:
    """The same process, a linear system; InputError for another kind."""
    if not isinstance(process, LinearGaussian):
        raise InputError(f"process: must be a LinearGaussian, got {type(process).__name__}")
    return process
