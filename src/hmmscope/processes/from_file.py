"""A user's own process, or a shipped one, as the process of a configuration: from a file, or handed over as it is."""

from dataclasses import dataclass, field
from typing import Any, ClassVar

from hmmscope import registry
from hmmscope.errors import DamagedError, InputError
from hmmscope.processes.files import load_process
from hmmscope.processes.process import Process


@registry.process("file")
@dataclass(frozen=True, kw_only=True)
class FileSpec:
    """A process of any kind from a file (.json, .npz, .safetensors), or a shipped one by name.

    Attributes:
        path: the file, or the name.
        allow_drop_tiny: round positive probabilities below 2^-32, most of them to zero.
        digest: what the process must have, or empty.
    """

    #: A run keeps a copy of the process in its folder.
    keeps_copy: ClassVar[bool] = True

    path: str
    allow_drop_tiny: bool = False
    digest: str = ""

    def build(self) -> Process:
        process = load_process(self.path, allow_drop_tiny=self.allow_drop_tiny)
        if self.digest and process.digest != self.digest:
            found = f"{process.digest[:12]}, not {self.digest[:12]}"
            raise DamagedError(f"{self.path}: the process has changed (its digest is {found})")
        return process


@registry.process("given")
@dataclass(frozen=True, kw_only=True)
class ObjectSpec:
    """A process that was handed over as an object. The folder of a run keeps a copy; a configuration has its digest only.

    Attributes:
        kind: HMM, Mixture, ...
        digest: of the process.
    """

    keeps_copy: ClassVar[bool] = True

    kind: str
    digest: str
    process: Any = field(default=None, init=False, compare=False, repr=False)

    @classmethod
    def of(cls, process: Process) -> "ObjectSpec":
        """The spec of an object."""
        spec = cls(kind=process.stored_name, digest=process.digest)
        object.__setattr__(spec, "process", process)
        return spec

    def build(self) -> Process:
        if self.process is None:
            raise InputError(
                f"process: is a {self.kind} that was handed over ({self.digest[:12]}); hand it over again, or save it and "
                "name the file"
            )
        process: Process = self.process
        return process
