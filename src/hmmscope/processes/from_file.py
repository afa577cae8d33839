"""A user's own HMM, or a shipped one, as the process of a configuration."""

from dataclasses import dataclass

from hmmscope import registry
from hmmscope.processes.files import load_process
from hmmscope.processes.hmm import HMM


@registry.process("file")
@dataclass(frozen=True, kw_only=True)
class FileSpec:
    """An HMM from a file (.json, .npz, .safetensors), or a shipped one by name."""

    path: str
    allow_drop_tiny: bool = False

    def build(self) -> HMM:
        return load_process(self.path, allow_drop_tiny=self.allow_drop_tiny)
