"""Specs of processes that come from files or are given as objects."""

from dataclasses import dataclass, field
from typing import Any, ClassVar

from hmmscope import registry
from hmmscope.errors import DamagedError, InputError
from hmmscope.processes.files import load_process
from hmmscope.processes.process import Process


@registry.process("file")
@dataclass(frozen=True, kw_only=True)
class FileSpec:
    """A process from a file (.json, .npz, .safetensors), or shipped with the library.

    Attributes:
        path: path of the file, or name of a shipped process.
        allow_drop_tiny: see `HMM`.
        digest: required digest of the process; empty for any process.
    """

    #: A run stores a copy of the process in its folder.
    keeps_copy: ClassVar[bool] = True

    path: str
    allow_drop_tiny: bool = False
    digest: str = ""

    def build(self) -> Process:
        process = load_process(self.path, allow_drop_tiny=self.allow_drop_tiny)
        if self.digest and process.digest != self.digest:
            found = f"{process.digest[:12]}, not {self.digest[:12]}"
            raise DamagedError(f"{self.path}: the process in this file has changed (its digest is now {found})")
        return process


@registry.process("given")
@dataclass(frozen=True, kw_only=True)
class ObjectSpec:
    """A process given as a Python object; a run stores a copy.

    Attributes:
        kind: class name of the process, such as HMM or Mixture.
        digest: digest of the process.
    """

    keeps_copy: ClassVar[bool] = True

    kind: str
    digest: str
    process: Any = field(default=None, init=False, compare=False, repr=False)

    @classmethod
    def of(cls, process: Process) -> "ObjectSpec":
        spec = cls(kind=process.stored_name, digest=process.digest)
        object.__setattr__(spec, "process", process)
        return spec

    def build(self) -> Process:
        if self.process is None:
            raise InputError(
                f"process: the {self.kind} object with digest {self.digest[:12]} is not in this configuration; pass it "
                "again, or save it and pass its path"
            )
        process: Process = self.process
        return process
