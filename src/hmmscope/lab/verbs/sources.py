"""Inputs of verbs: processes by name or file, and observations from files."""

import math
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hmmscope import registry
from hmmscope.axes import Tensor
from hmmscope.errors import InputError
from hmmscope.lab.verbs.output_paths import HMM_FILES
from hmmscope.processes.files import load_process, shipped_processes
from hmmscope.processes.make import built
from hmmscope.processes.process import Process
from hmmscope.runs.vector_files import TABLES, read_number_file
from hmmscope.schema import unknown_name
from hmmscope.sequences.data import SequenceData
from hmmscope.sequences.gaps import Missing
from hmmscope.storage import store
from hmmscope.storage.mapped import read_npz
from hmmscope.text import in_brief
from hmmscope.ties import descending, steady

#: Number of probabilities from which a warning precedes the building of a process.
_LARGE = 2**24
#: Endings of files with an array `observations`, as written by `hmmscope sample --out`.
ARRAY_FILES = (".jsonl", ".npz", ".safetensors")


def find_process(source: str, overrides: Mapping[str, str] | None = None, *, allow_drop_tiny: bool = False) -> Process:
    """Return a process by registered name (with changed fields), by file (also HMMER profiles), or from the package."""
    fields = {key.removeprefix("process."): value for key, value in (overrides or {}).items()}
    if source in registry.entries("process"):
        spec = registry.build_spec("process", {"name": source, **fields}, "process")
        _warn_of_a_large_build(spec)
        return built(spec)
    if Path(source).suffix not in (*HMM_FILES, ".hmm") and source not in shipped_processes():
        if Path(source).is_file():
            raise InputError(
                f"process: {source} is a file of sequences; give a process first, such as one made by hmmscope fit {source}"
            )
        raise unknown_name("process", source, [*registry.entries("process"), *shipped_processes()])
    if fields:
        raise InputError(
            f"--{next(iter(fields))}: unknown option; only registered processes have fields that can be changed"
        )
    if Path(source).suffix == ".hmm":
        from hmmscope.interop.hmmer import load_hmmer

        return load_hmmer(source, allow_drop_tiny=allow_drop_tiny)
    return load_process(source, allow_drop_tiny=allow_drop_tiny)


def _warn_of_a_large_build(spec: object) -> None:
    sizes = [getattr(spec, name, 0) for name in ("num_components", "num_states", "num_symbols")]
    numbers = sizes[0] * sizes[1] * (sizes[1] + sizes[2])
    if numbers >= _LARGE:
        warnings.warn(
            f"building {sizes[0]:,} HMMs of {sizes[1]} states, about {8 * numbers / 2**30:.1f} GiB; a smaller pool, such as "
            "--num_components 100, needs less",
            stacklevel=3,
        )


def likeliest(law: list[float], names: tuple[str, ...] | None, count: int = 5) -> str:
    """Format the largest positive entries of a distribution with their names."""
    order = descending(law)[:count]
    shown = ", ".join(f"{in_brief(names[i]) if names else i} {steady(law[i]):.6f}" for i in order if law[i] > 0)
    return shown + (", ..." if len(law) > count else "")


def read_observations(path: Path, process: Process, **reading: Any) -> tuple[list[Tensor], str]:
    """Read sequences (1, time) of symbols or (1, time, observed) of vectors from a file, and describe them.

    Args:
        path: Any file that `SequenceData` reads.
        process: Process with the alphabet; reading options stored with a fit are the defaults.
        reading: `unit`, `column`, `group`, `axis` and `missing`, as for `SequenceData`.
    """
    if process.real_valued and (path.suffix.lower() in (*TABLES, ".npy") or _is_plain(path, process, reading)):
        return _read_numbers(path, process, reading)
    if process.real_valued:
        other = next((name for name in reading if name != "missing" and reading[name] is not None), None)
        if other is not None:
            raise InputError(f"{other}: applies to symbols, but {path.name} is read as vectors; leave it out")
        vectors = _read_vectors(path, process.num_symbols, Missing.of(reading.get("missing")))
        return vectors, f"{path.name}: {len(vectors)} sequences of vectors"
    data = SequenceData(path, symbols_from=process, **reading)
    return [sequence[None] for sequence in data], data.describe()


def _is_plain(path: Path, process: Process, reading: Mapping[str, Any]) -> bool:
    if path.suffix.lower() != ".npz":
        return False
    names, kept = read_npz(path).keys(), process.read_options
    own = kept is not None and kept.column in names
    return own or reading.get("column") is not None or "observations" not in names or "lengths" in names


def _read_numbers(path: Path, process: Process, reading: Mapping[str, Any]) -> tuple[list[Tensor], str]:
    if reading.get("unit") is not None:
        raise InputError(f"unit: applies to symbols, but {path.name} is read as numbers; leave it out")
    asked = {name: reading.get(name) for name in ("column", "group", "missing", "axis")}
    (rows, lengths), how, _ = read_number_file(path, symbols_from=process.read_options, **asked)
    if rows.shape[1] != process.num_symbols:
        rule = f"has {rows.shape[1]} coordinates, but the process has {process.num_symbols}"
        raise InputError(f"{path.name}: {rule}; choose the columns to read with --column")
    return [
        one[None] for one in rows.split(lengths.tolist())
    ], f"{how}: {len(lengths)} sequence{'s' * (len(lengths) != 1)} of vectors"


def _read_vectors(path: Path, num_coordinates: int, missing: Missing) -> list[Tensor]:
    if path.suffix not in ARRAY_FILES:
        raise InputError(
            f"{path}: cannot read vectors from text; use a file ending in {', '.join((*ARRAY_FILES, *TABLES, '.npy'))}"
        )
    rows: list[Any]
    if path.suffix == ".jsonl":
        rows = [row.get("observations") for row in store.read_table(path, managed=False)]
    else:
        arrays: Mapping[str, Any] = read_npz(path) if path.suffix == ".npz" else store.read_tensors(path)
        if "observations" not in arrays:
            raise InputError(
                f"{path}: has no array 'observations'; it contains {', '.join(sorted(arrays)[:10]) or 'nothing'}"
            )
        rows = list(arrays["observations"])
    sequences = []
    for number, row in enumerate(rows):
        try:
            values = np.asarray(_filled(row, num_coordinates) if isinstance(row, list) else row)
        except ValueError:
            raise InputError(f"{path}: sequence {number}: rows have different lengths") from None
        if values.dtype.kind == "f" and np.isnan(values).any() and not missing.takes_nothing:
            place = int(np.argwhere(np.isnan(values))[0][0])
            raise InputError(f"{path}: sequence {number}, observation {place}: is not a number; {missing.advice(None)}")
        if values.ndim != 2 or values.dtype.kind not in "iuf":
            raise InputError(f"{path}: sequence {number}: must be a list of vectors of {num_coordinates} numbers")
        if len(values):
            sequences.append(torch.from_numpy(values.astype(np.float64))[None])
    if not sequences:
        raise InputError(f"{path}: holds no sequence")
    return sequences


def _filled(rows: list[Any], num_coordinates: int) -> list[Any]:
    whole = [math.nan] * num_coordinates
    return [
        whole if row is None else [math.nan if v is None else v for v in row] if isinstance(row, list) else row
        for row in rows
    ]
