"""Division of streamed data into parts; each part is fitted once."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from hmmscope.errors import InputError
from hmmscope.seeds import numpy_generator
from hmmscope.sequences.data import SequenceData
from hmmscope.sequences.streaming import SequenceStream


def parts_of(
    source: Any, seed: int, reading: dict[str, Any]
) -> tuple[Iterable[SequenceData], SequenceStream | SequenceData | None]:
    """Return the parts of a source, and the whole source (None for an iterable of parts)."""
    if isinstance(source, SequenceStream):
        return source, source
    if hasattr(source, "__fspath__") or isinstance(source, str):
        whole = SequenceStream(source, **reading)
        return whole, whole
    if isinstance(source, SequenceData):
        order = numpy_generator(seed, "shuffled-sequences").permutation(len(source))
        count = -(-source.num_observations // 2**22)
        return (source[chosen] for chosen in np.array_split(order, min(count, len(source)))), source
    if not isinstance(source, Iterable):
        raise InputError("source: a stream needs a path, SequenceData, or an iterable of parts of the data")
    return (part if isinstance(part, SequenceData) else SequenceData(part, **reading) for part in source), None
