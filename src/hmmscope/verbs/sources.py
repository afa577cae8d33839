"""What verbs read: processes by name or file, observations from files; and where they may write."""

import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch

from hmmscope import registry
from hmmscope.axes import Tensor
from hmmscope.errors import InputError, RefusedError
from hmmscope.processes.base import Process
from hmmscope.processes.files import load_process, read_npz, shipped_processes
from hmmscope.processes.linear_gaussian import LinearGaussian
from hmmscope.schema import unknown_name
from hmmscope.storage import store

HMM_FILES = (".json", ".npz", ".safetensors")
#: Endings of files with an array `observations`, as `hmmscope sample --out` writes them.
ARRAY_FILES = (".jsonl", ".npz", ".safetensors")


def find_process(source: str, overrides: Mapping[str, str] | None = None, *, allow_drop_tiny: bool = False) -> Process:
    """A registered process by name with fields changed, a shipped one, or one from a file (HMMER profiles too)."""
    fields = {key.removeprefix("process."): value for key, value in (overrides or {}).items()}
    if source in registry.entries("process"):
        built: Process = registry.build_spec("process", {"name": source, **fields}, "process").build()
        return built
    if Path(source).suffix not in (*HMM_FILES, ".hmm") and source not in shipped_processes():
        raise unknown_name("process", source, [*registry.entries("process"), *shipped_processes()])
    if fields:
        raise InputError(f"--{next(iter(fields))}: unknown option; only a registered process has fields to change")
    if Path(source).suffix == ".hmm":
        from hmmscope.interop.hmmer import load_hmmer

        return load_hmmer(source, allow_drop_tiny=allow_drop_tiny)
    return load_process(source, allow_drop_tiny=allow_drop_tiny)


def new_file(out: str, endings: tuple[str, ...] | None = None) -> None:
    """Refuse, before any work, a file that exists or cannot be made."""
    path = Path(out)
    if endings and path.suffix not in endings:
        listed = f"{', '.join(endings[:-1])} or {endings[-1]}" if len(endings) > 1 else endings[0]
        raise InputError(f"out: must end in {listed}, got {out!r}")
    if os.path.lexists(path):
        raise RefusedError(f"{path}: exists; choose another --out")
    if not os.path.isdir(path.parent):
        raise InputError(f"out: there is no folder {path.parent}")


def likeliest(law: list[float], names: tuple[str, ...] | None, count: int = 5) -> str:
    """The largest entries of a law, by name, those above zero."""
    order = sorted(range(len(law)), key=lambda i: -law[i])[:count]
    shown = ", ".join(f"{names[i] if names else i} {law[i]:.6f}" for i in order if law[i] > 0)
    return shown + (", ..." if len(law) > count else "")


def read_observations(path: Path, process: Process) -> list[Tensor]:
    """Sequences from a text file (symbols) or from a file of arrays (symbols, or vectors of a linear system).

    Each is (1, time), or (1, time, observed) for vectors; the filters check what is in it.
    """
    if path.suffix in ARRAY_FILES:
        return _read_arrays(path, process)
    if isinstance(process, LinearGaussian):
        raise InputError(f"{path}: vectors are read from files ending in {', '.join(ARRAY_FILES)}, not from text")
    return [torch.tensor([sequence]) for sequence in read_sequences(path, process)]


def _read_arrays(path: Path, process: Process) -> list[Tensor]:
    if path.suffix == ".jsonl":
        rows = [row.get("observations") for row in store.read_table(path)]
    else:
        arrays = read_npz(path) if path.suffix == ".npz" else store.read_tensors(path)
        if "observations" not in arrays:
            raise InputError(f"{path}: holds no array 'observations' but {', '.join(sorted(arrays)[:10]) or 'nothing'}")
        rows = list(arrays["observations"])
    vectors = isinstance(process, LinearGaussian)
    sequences = []
    for number, row in enumerate(rows):
        try:
            values = np.asarray(row)
        except ValueError:
            raise InputError(f"{path}: sequence {number}: rows have different lengths") from None
        if values.ndim != (2 if vectors else 1) or values.dtype.kind not in ("iuf" if vectors else "iu"):
            wanted = f"vectors of {process.num_symbols} numbers" if vectors else "whole numbers"
            raise InputError(f"{path}: sequence {number}: must be a list of {wanted}")
        if len(values):
            sequences.append(torch.from_numpy(values.astype(np.float64 if vectors else np.int64))[None])
    if not sequences:
        raise InputError(f"{path}: holds no sequence")
    return sequences


def read_sequences(path: Path, process: Process) -> list[list[int]]:
    """Sequences of symbol numbers from a text file, one a line; blank lines are passed over.

    Symbols are names if the process names them, else numbers, apart by spaces or commas; if every name is one character,
    a line may also be the characters themselves.
    """
    names: tuple[str, ...] | None = getattr(process, "symbols", None)
    codes = {name: v for v, name in enumerate(names or map(str, range(process.num_symbols)))}
    sequences = []
    for number, line in enumerate(read_lines(path), 1):
        words = line.replace(",", " ").split() if "," not in codes else line.split()
        if names and all(len(name) == 1 for name in names) and len(words) == 1:
            words = list(words[0])
        unknown = [word for word in words if word not in codes]
        if unknown:
            known = ", ".join(list(codes)[:30])
            column = words.index(unknown[0]) + 1
            raise InputError(f"{path.name}: line {number}, symbol {column}: {unknown[0]!r} is not one of {known}")
        if words:
            sequences.append([codes[word] for word in words])
    if not sequences:
        raise InputError(f"{path}: holds no sequence")
    return sequences


def read_lines(path: Path) -> list[str]:
    """The lines of a UTF-8 text file."""
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise InputError(f"{path}: is not UTF-8 text") from None
