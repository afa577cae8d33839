"""Observations in labelled rows, the input of a fitted model's methods."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hmmscope.axes import Tensor
from hmmscope.errors import InputError, warn
from hmmscope.inference.known_states import as_allowed
from hmmscope.processes.observations import as_vectors
from hmmscope.processes.process import Process
from hmmscope.reprs import Shown
from hmmscope.runs.row_values import RowValues
from hmmscope.runs.table_order import from_one_hot, in_table_order
from hmmscope.schema import require
from hmmscope.sequences.columns import as_labels, is_frame, is_indices, labels_of, own_rows
from hmmscope.sequences.data import SequenceData
from hmmscope.sequences.gaps import FOR_NUMBERS, IF_MISSING
from hmmscope.sequences.read_options import ReadOptions
from hmmscope.sequences.sources import OBSERVATIONS
from hmmscope.sequences.vector_data import VectorData, read_vectors

#: Most entries and most sequences of a padded batch.
MOST_ENTRIES, MOST_SEQUENCES = 2**21, 4096


@dataclass(frozen=True, repr=False)
class GivenRows(Shown):
    """Sequences of observations with row labels.

    Attributes:
        sequences: Symbols (time,) or numbers (time, coordinate).
        index: Label of each row of all sequences, or None.
        columns: Names of the coordinates, or empty.
        inputs: Inputs of each sequence (time,), or None.
        names: Names of the sequences, or empty.
        allowed: Allowed states of each sequence (time, state), or None.
        moved: True if groups or times reordered the rows of a table.
    """

    sequences: Sequence[Tensor]
    index: Any = None
    columns: tuple[str, ...] = ()
    inputs: Sequence[Tensor] | None = None
    names: tuple[Any, ...] = ()
    allowed: Sequence[Tensor] | None = None
    moved: bool = False

    def with_warning(self) -> "GivenRows":
        """Return the rows; warn if they are in another order than in the table."""
        if self.moved:
            said = "rows: groups or times reordered the rows of the table; match results by the index of .to_pandas()"
            warn(f"{said}{' without its level sequence' * (len(self.names) > 1)}")
        return self

    @cached_property
    def lengths(self) -> tuple[int, ...]:
        return tuple(map(len, self.sequences))

    def values(self, values: Any, names: Sequence[str]) -> RowValues:
        return RowValues.of(values, self.lengths, names, self.index, self.names)

    def batches(self) -> Iterator[tuple[Tensor, dict[str, Any], list[int]]]:
        order = sorted(range(len(self.lengths)), key=self.lengths.__getitem__)
        while order:
            longest, chosen = 2 * max(1, self.lengths[order[0]]), list[int]()
            for number in order[:MOST_SEQUENCES]:
                if self.lengths[number] > longest or (
                    (len(chosen) + 1) * self.lengths[number] > MOST_ENTRIES and chosen
                ):
                    break
                chosen.append(number)
            order = order[len(chosen) :]
            some = [self.sequences[number] for number in chosen]
            padding = torch.nan if some[0].is_floating_point() else 0
            padded = torch.nn.utils.rnn.pad_sequence(some, batch_first=True, padding_value=padding)
            options: dict[str, Any] = {"lengths": torch.tensor([len(one) for one in some])}
            for name, own, filler in (("inputs", self.inputs, 0), ("known_states", self.allowed, True)):
                if own is not None:
                    given = [own[number] for number in chosen]
                    options[name] = torch.nn.utils.rnn.pad_sequence(given, batch_first=True, padding_value=filler)
            yield padded, options, chosen


def given_rows(hmm: Process, source: Any, *, lengths: Any = None, inputs: Any = None, **reading: Any) -> GivenRows:
    """Read the sequences of a source with the alphabet of a model.

    Args:
        hmm: The model.
        source: Any source that `hmmscope.fit` reads; an array (time, coordinate) is one sequence.
        lengths: Lengths of the sequences in consecutive rows.
        inputs: Inputs of an `InputOutputHMM`, see `read_inputs`.
        reading: Options of `SequenceData`, or of `read_vectors`.
    """
    if isinstance(source, GivenRows):
        return source
    kept = hmm.read_options or ReadOptions()
    if hmm.num_inputs is None and inputs is not None:
        raise InputError(f"inputs: needs a model with inputs, got {hmm!r}; fit with inputs=")
    if hmm.num_inputs is not None and inputs is None:
        inputs = kept.inputs
        if inputs is None:
            raise InputError("inputs: is missing; the model needs the input of each row of x")
    if hasattr(source, "iloc") and source.ndim == 1 and (kept.time or reading.get("time")):
        source = source.to_frame(kept.column or OBSERVATIONS)
    source, lengths = own_rows(source, lengths)
    if not hmm.real_valued:
        data = SequenceData(source, symbols_from=hmm, lengths=lengths, **reading)
        found = of_symbols(data, row_labels(source) if data.index is None else labels_as_given(data, source))
        if inputs is None:
            return found
        again = {name: own for name, own in kept.to_data().items() if name not in ("unit", "column", "inputs")}
        alphabet = hmm.input_alphabet  # type: ignore[attr-defined]
        read = read_inputs(inputs, source, found.lengths, again | reading | {"lengths": lengths}, alphabet)
        return replace(found, inputs=list(read))
    if isinstance(source, RowValues):
        source = np.asarray(source)
    if reading or isinstance(source, str | Path | VectorData | Mapping) or is_frame(source):
        vectors = read_vectors(source, lengths=lengths, symbols_from=kept, width=hmm.num_symbols, **reading)
        return of_vectors(vectors, labels_as_given(vectors, source))
    numbers, counts = as_vectors(source, hmm.num_symbols, lengths, kept)
    counts = torch.full(numbers.shape[:1], numbers.shape[1]) if counts is None else counts
    if 0 in counts:
        field, place = "observations" if lengths is None else "lengths", counts.tolist().index(0) + 1
        raise InputError(f"{field}: sequence {place} is empty; leave it out")
    parts = [row[:count] for row, count in zip(numbers, counts.tolist(), strict=True)]
    return _labelled(GivenRows(parts, columns=column_names(source)), row_labels(source))


def with_known_states(
    hmm: Process, x: Any, known_states: Any, reading: Mapping[str, Any], rows: GivenRows | None = None
) -> GivenRows:
    """Set `allowed` of `rows` (default: the rows of `x`) to the states that `known_states` allows."""
    found = given_rows(hmm, x, **reading) if rows is None else rows
    if known_states is None:
        return found
    lengths = torch.tensor(found.lengths)
    inside = torch.arange(int(lengths.max())) < lengths[:, None]
    names = hmm.states if hmm.visits is None else hmm.visits.names
    own = in_table_order("known_states", known_states, x, reading)
    allowed = as_allowed(own, hmm.num_states if hmm.visits is None else len(hmm.visits.names), inside, names)
    return replace(found, allowed=[row[:count] for row, count in zip(allowed, found.lengths, strict=True)])


def read_inputs(
    inputs: Any, source: Any, lengths: Sequence[int], reading: Mapping[str, Any], alphabet: Any = None
) -> SequenceData:
    try:
        found = _as_read(inputs, source, lengths, reading, alphabet)
    except InputError as error:
        said = str(error).removeprefix("inputs: ")
        said, *advice = re.split(f"; (?:{IF_MISSING}|{re.escape(FOR_NUMBERS)})", said, maxsplit=1)
        rule = "; every observation needs an input, which is a name or a whole number" if advice else ""
        raise InputError(f"inputs: {said}{rule}") from None
    if found.lengths.tolist() != list(lengths):
        if sum(found.lengths.tolist()) == sum(lengths) and len(found) == len(lengths):
            where = next(k for k, (a, b) in enumerate(zip(found.lengths.tolist(), lengths, strict=True)) if a != b)
            raise InputError(f"inputs[{where}]: must have {lengths[where]} entries, one per observation")
        count, total = len(found), sum(found.lengths.tolist())
        rule = f"must have one entry per observation ({len(lengths)} sequences, {sum(lengths)} entries)"
        raise InputError(f"inputs: {rule}, got {count} sequences, {total} entries")
    if found.num_missing:
        place = int(np.flatnonzero(found.flat == found.num_symbols)[0])
        raise InputError(
            f"inputs: entry {place} is missing; every observation needs an input, even a missing observation"
        )
    return found


def _as_read(
    inputs: Any, source: Any, lengths: Sequence[int], reading: Mapping[str, Any], alphabet: Any
) -> SequenceData:
    if isinstance(inputs, str):
        isolated = {name: value for name, value in reading.items() if name not in ("symbols", "column", "symbols_from")}
        if isinstance(source, SequenceData | GivenRows | list | tuple | np.ndarray | Tensor):
            raise InputError(f"{inputs!r} names a column, but the source has no columns; pass one input per row")
        found = SequenceData(source, column=inputs, symbols=_symbols_of(alphabet), title="inputs", **isolated)
    elif isinstance(inputs, SequenceData):
        found = SequenceData(inputs, symbols_from=alphabet, title="inputs") if alphabet is not None else inputs
    else:
        inputs, own = from_one_hot(inputs, lengths)
        count = own if alphabet is None else _symbols_of(alphabet)
        good = own is None or alphabet is None or own in (alphabet.count, alphabet.names)
        require(good, "one-hot rows", f"must have a column for each of the inputs {count}", own)
        if own is not None and not isinstance(count, int):
            inputs = [np.array(count)[part] for part in inputs]
        flat = inputs[0] if own is not None and len(inputs) == 1 else inputs
        rows: Any = in_table_order("inputs", flat, source, reading)
        flat = np.asarray(rows if hasattr(rows, "dtype") or hasattr(rows, "iloc") else _scalars(rows))
        whole = flat.shape == (len(lengths), max(lengths))
        flat = flat.ravel() if flat.shape == (sum(lengths), 1) and not whole else flat
        if flat.ndim == 1 and len(flat) == sum(lengths):
            rows = np.split(flat, np.cumsum(lengths)[:-1])
            rows = [torch.as_tensor(part) if is_indices(inputs) else part.tolist() for part in rows]
        axis = 1 if max(lengths) == 1 or whole else None
        found = SequenceData(rows, axis=axis, symbols=count, title="inputs")
    return found


def of_vectors(data: VectorData, index: Any = None, columns: tuple[str, ...] = ()) -> GivenRows:
    index = row_labels(data) if index is None else index
    columns = columns or data.columns or ()
    return _labelled(GivenRows(data.rows.split(data.lengths.tolist()), columns=columns), index, data)


def of_symbols(data: SequenceData, index: Any = None, inputs: SequenceData | None = None) -> GivenRows:
    index = row_labels(data) if index is None else index
    return _labelled(GivenRows(list(data), inputs=None if inputs is None else list(inputs)), index, data)


def labels_as_given(data: SequenceData | VectorData, source: Any) -> Any:
    own, read = row_labels(source), row_labels(data)
    same = read is None or (own is not None and hasattr(own, "dtype") and np.array_equal(as_labels(own), read))
    return own if same else read


def row_labels(source: Any) -> Any:
    if isinstance(source, SequenceData | VectorData):
        return None if source.index is None else np.concatenate(source.index)
    index = getattr(source, "index", None)
    return labels_of(source) if callable(index) or index is None else index


def column_names(source: Any) -> tuple[str, ...]:
    columns = getattr(source, "columns", None)
    if columns is not None and not callable(columns):
        return tuple(map(str, columns))
    name = getattr(source, "name", None)
    return (name,) if isinstance(name, str) and hasattr(source, "iloc") else ()


def _symbols_of(alphabet: Any) -> Any:
    return None if alphabet is None else alphabet.names or alphabet.count


def _scalars(rows: Any) -> Any:
    return rows if isinstance(rows, list | tuple) and all(np.ndim(one) == 0 for one in rows) else []


def _labelled(found: GivenRows, index: Any, data: SequenceData | VectorData | None = None) -> GivenRows:
    if isinstance(index, list):  # an array for each sequence
        index = np.concatenate(index)
    if data is not None:
        found = replace(found, names=data.names or (), moved=data.moved)
    if index is None or sum(found.lengths) != len(index):
        return found
    return replace(found, index=index)
