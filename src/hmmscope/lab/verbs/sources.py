"""Inputs of verbs: processes from names or files, and observations from files."""

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from numpy.typing import NDArray

from hmmscope import registry
from hmmscope.axes import Tensor
from hmmscope.errors import InputError
from hmmscope.lab.verbs.output_paths import HMM_FILES
from hmmscope.processes.files import load_process, shipped_processes
from hmmscope.processes.make import built
from hmmscope.processes.process import Process
from hmmscope.runs.given_rows import given_rows
from hmmscope.schema import unknown_name
from hmmscope.sequences.data import SequenceData
from hmmscope.sequences.vector_data import read_vectors
from hmmscope.text import in_brief
from hmmscope.ties import descending, steady

#: Number of probabilities of a process from which a warning is printed before the process is built.
_LARGE = 2**24


def find_process(source: str, overrides: Mapping[str, str] | None = None, *, allow_drop_tiny: bool = False) -> Process:
    """Return a registered process, with fields changed by `overrides`, or the process in a file."""
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
            f"building {sizes[0]:,} HMMs of {sizes[1]} states takes about {8 * numbers / 2**30:.1f} GiB; fewer, "
            "such as --num_components 100, need less memory",
            stacklevel=3,
        )


def likeliest(law: list[float], names: tuple[str, ...] | None, count: int = 5) -> str:
    order = descending(law)[:count]
    shown = ", ".join(f"{in_brief(names[i]) if names else i} {steady(law[i]):.6f}" for i in order if law[i] > 0)
    return shown + (", ..." if len(law) > count else "")


class Observations(NamedTuple):
    """The sequences of a file, as symbols or vectors.

    Attributes:
        sequences: symbols (1, time) or vectors (1, time, coordinate) of each sequence.
        about: description of what was read.
        names: names of the sequences, or None.
        labels: time stamps or labels of each sequence's observations, or None.
        inputs: inputs to the HMM for each sequence, or None.
    """

    sequences: list[Tensor]
    about: str
    names: tuple[Any, ...] | None
    labels: list[NDArray[Any]] | None
    inputs: Sequence[Tensor] | None = None


def read_observations(path: Path, process: Process, inputs: str | None = None, **reading: Any) -> Observations:
    if process.real_valued:
        if reading.get("unit") is not None:
            raise InputError(f"unit: applies to symbols, but {path.name} is read as numbers; leave --unit out")
        asked = {name: value for name, value in reading.items() if name != "unit"}
        found = read_vectors(path, symbols_from=process.read_options, width=process.num_symbols, **asked)
        if found.rows.shape[1] != process.num_symbols:
            rule = f"has {found.rows.shape[1]} coordinates, but the process has {process.num_symbols}"
            raise InputError(
                f"{path.name}: {rule}" + "; choose the columns to read with --column" * (found.columns is not None)
            )
        rows = [one[None] for one in found.rows.split(found.lengths.tolist())]
        return Observations(rows, found.describe(), found.names, found.index)
    data = SequenceData(path, symbols_from=process, **reading)
    rows = [sequence[None] for sequence in data]
    given = None
    if process.num_inputs is not None or inputs is not None:
        asked = {name: value for name, value in reading.items() if value not in (None, False)}
        given = given_rows(process, path, inputs=inputs, **asked)
    return Observations(rows, data.describe(), data.names, data.index, None if given is None else given.inputs)
