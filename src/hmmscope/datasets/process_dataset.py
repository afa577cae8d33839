"""Process datasets, with bit-identical samples on every device."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from hmmscope.axes import Float64, Int64, Tensor
from hmmscope.datasets.batches import ProcessStream
from hmmscope.datasets.layouts import Layout, SequenceLayout, check_layout
from hmmscope.errors import InputError, ResourceError
from hmmscope.kernels.philox import CORPUS_VERSION, MAX_SAMPLES
from hmmscope.processes.make import as_process
from hmmscope.processes.process import Process
from hmmscope.reprs import Shown, html_table
from hmmscope.schema import require, require_known, shown, spec_to_data
from hmmscope.seeds import STREAMS, check_seed
from hmmscope.sequences.data import SequenceData
from hmmscope.sequences.gaps import MISSING

Index = int | slice | Sequence[int] | NDArray[np.integer] | Tensor


@dataclass(frozen=True, repr=False)
class Batch(Shown):
    """A batch of samples of a dataset.

    Attributes:
        tokens: model input (batch, column); for vectors, standardised vectors (batch, column, coordinate).
        observations: symbols or vectors without delimiters (batch, time).
        states: hidden states (batch, time).
        components: mixture components (batch,), or None.
    """

    tokens: Int64[Tensor, "batch column"] | Float64[Tensor, "batch column observed"]
    observations: Int64[Tensor, "batch time"] | Float64[Tensor, "batch time observed"]
    states: Int64[Tensor, "batch time"] | Float64[Tensor, "batch time hidden"]
    components: Int64[Tensor, " batch"] | None


@dataclass(frozen=True, repr=False)
class LabelledBatch(Batch):
    """A batch with training labels.

    Attributes:
        labels: labels of a target, see `Target.labels`.
    """

    labels: Tensor


#: Example for other training loops.
_LOADED = "DataLoader(dataset.stream(batch_size=64), batch_size=None)"


class ProcessDataset:
    """Numbered samples 0, 1, 2, ... (up to 2^40) of a process, generated on demand.

    Args:
        process: process or recorded sequences, or their name or path.
        length: number of observations per sample (default for recorded sequences: that of the longest, at most 256).
        seed: seed in [0, 2^32).
        layout: `Layout`, instead of `length`.
        stream: "corpus", "train", "evaluate", "probe", "test" or "counting", each with different samples.
        device: device of the batches; it does not change the samples.

    ``dataset[0:1024]``, ``dataset[[5, 3]]`` and ``dataset[7]`` return a `Batch`; ``dataset.stream(64)`` returns an
    endless stream of batches.

    Attributes:
        stream_name: name of the random stream.
    """

    __iter__ = None  # a dataset is infinite

    def __init__(
        self,
        process: Process | SequenceData | str | Path,
        length: int | None = None,
        seed: int = 0,
        *,
        layout: Layout | None = None,
        stream: str = "corpus",
        device: torch.device | str = "cpu",
    ) -> None:
        if length is not None and layout is not None:
            raise InputError("length: cannot be combined with layout; give only one of them")
        check_seed(seed)
        require_known("stream", stream, STREAMS)
        if layout is not None:
            check_layout(layout)
        self.process, self.seed, self.stream_name = as_process(process), seed, stream
        if length is None and layout is None:
            length = self.process.window
            if length is None:
                raise InputError("length: is missing; pass a length or a layout")
        self.device = _device(device)
        self.layout = SequenceLayout(length=length) if layout is None else layout.of(self.process)  # type: ignore[arg-type]
        if has_gaps(self.process) and not isinstance(self.layout, SequenceLayout):
            raise InputError("layout: must be SequenceLayout for sequences with missing observations")

    @property
    def num_symbols(self) -> int:
        return self.process.num_symbols

    @property
    def vocab_size(self) -> int:
        """Vocabulary size, including the delimiter and the missing-value token if used."""
        return vocab_size(self.process, self.layout)

    def __repr__(self) -> str:
        return f"ProcessDataset({self.process!r}, {self.layout!r}, seed={self.seed}, stream={self.stream_name!r})"

    def different(self, num_samples: int) -> int:
        """Return `num_samples`, at most the number of different samples (finite for recorded held-out sequences)."""
        different = self.process.num_different(self.stream_name, self.layout.num_observations)
        return num_samples if different is None else min(num_samples, different)

    def _repr_html_(self) -> str:
        facts = {
            "process": repr(self.process),
            "layout": repr(self.layout),
            "seed": self.seed,
            "stream": self.stream_name,
        }
        return html_table("ProcessDataset", facts | {"tokens per sample": self.layout.context_length})

    def on(self, device: torch.device | str) -> "ProcessDataset":
        """Return this dataset with its batches on another device."""
        return ProcessDataset(self.process, seed=self.seed, layout=self.layout, stream=self.stream_name, device=device)

    def stream(
        self,
        batch_size: int | None = None,
        rank: int = 0,
        world: int = 1,
        *,
        num_samples: int | None = None,
        first: int = 0,
        exact: bool = True,
    ) -> ProcessStream:
        """Return a stream of batches with exact beliefs and predictions, see `ProcessStream`."""
        return ProcessStream(self, batch_size, rank, world, num_samples=num_samples, first=first, exact=exact)

    def __len__(self) -> int:
        raise TypeError(f"a process dataset is infinite; use {_LOADED}, or select samples with dataset[0:1024]")

    def __bool__(self) -> bool:
        return True

    def __getitem__(self, index: Index) -> Batch:
        if self.device.type == "cpu":
            paths = self.process.sample_paths(_indices(index), self.layout.reset_mask, self.seed, self.stream_name)
        else:
            samples = _indices_on(index, self.device)
            paths = self.process.sample_paths_on(samples, self.layout.reset_mask, self.seed, self.stream_name)
        if not (self.process.real_valued or self.process.data is not None):
            self._check_drawn(paths.observations)
        told = paths.components if self.layout.header_format else None
        header = None if told is None else self.process.encode_header(told)
        tokens = self.layout.tokens(self.process.standardize(paths.observations), self.num_symbols, header)
        if has_gaps(self.process):
            tokens = tokens.masked_fill(tokens == MISSING, self.vocab_size - 1)
        return Batch(tokens, *paths)

    def _check_drawn(self, observations: Tensor) -> None:
        if self.process.has_custom_sampler and observations.numel():
            low, high = (int(end) for end in observations.aminmax())
            inside = low >= 0 and high < self.num_symbols
            require(inside, "sample_paths", f"must draw symbols in [0, {self.num_symbols})", (low, high))

    def digest(self, num_samples: int) -> str:
        """Return the SHA-256 of `num_samples` samples and the dataset's definition."""
        header = f"hmmscope-corpus/{CORPUS_VERSION}/{self.process.params_digest}/{self.layout.digest_name}"
        sha = hashlib.sha256(f"{header}/{self._layout_data}/{self.seed}/{self.stream_name}/{num_samples}".encode())
        for first in range(0, num_samples, 4096):
            batch = self[first : min(first + 4096, num_samples)]
            for part in (batch.observations, batch.states, batch.components):
                if part is not None:
                    sha.update(part.cpu().numpy().astype("<f8" if part.is_floating_point() else "<i8").tobytes())
        return sha.hexdigest()

    @property
    def _layout_data(self) -> dict:
        return {field: value for field, value in spec_to_data(self.layout).items() if value is not False}


def has_gaps(process: Process) -> bool:
    return process.data is not None and not process.real_valued and process.data.num_missing > 0


def vocab_size(process: Process, layout: Layout) -> int:
    return layout.of(process).vocab_size(process.num_symbols) + has_gaps(process)


def check_dataset(dataset: object) -> None:
    if not isinstance(dataset, ProcessDataset):
        how = "use hmmscope.ProcessDataset(process, length=...); for recorded sequences add stream='evaluate'"
        raise InputError(f"dataset: must be a ProcessDataset, got {shown(dataset)}; {how}")


def _device(device: torch.device | str) -> torch.device:
    try:
        found = torch.device(device)
    except (RuntimeError, TypeError):
        raise InputError(f"device: must be cpu, cuda or cuda:NUMBER, got {device!r}") from None
    if found.type != "cuda":
        return found
    count = torch.cuda.device_count()
    number = found.index if found.index is not None else torch.cuda.current_device() if count else 0
    if number >= count:
        raise ResourceError(f"device: {found} is not available (number of CUDA devices: {count}); use cpu")
    return torch.device("cuda", number)


def _indices_on(index: Index, device: torch.device) -> Int64[Tensor, " batch"]:
    if isinstance(index, slice):
        start, stop, step = _ends(index)
        return torch.arange(start, max(start, stop), step, device=device)
    return torch.from_numpy(_indices(index)).to(device)


def _ends(index: slice) -> tuple[int, int, int]:
    ends = (index.start or 0, index.stop, index.step or 1)
    if not all(isinstance(end, int | np.integer) and end >= 0 for end in ends):
        raise InputError(
            f"index: a slice must have an end and no negative numbers, got {index.start}:{index.stop}:{index.step}"
        )
    start, stop, step = ends
    if stop > MAX_SAMPLES:
        raise InputError(f"index: must be in 0 to 2^40 - 1, got {start}..{stop - 1}")
    return int(start), int(stop), int(step)


def _indices(index: Index) -> NDArray[np.int64]:
    if isinstance(index, slice):
        return np.arange(*_ends(index), dtype=np.int64)
    if isinstance(index, Tensor):
        index = index.cpu()
    try:
        array = np.atleast_1d(np.asarray(index))
    except (ValueError, TypeError):
        array = np.array(None)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise InputError(f"index: must be a sample index, a slice or a list of indices, got {index!r}")
    if array.size and not 0 <= int(array.min()) <= int(array.max()) < MAX_SAMPLES:
        raise InputError(f"index: must be in 0 to 2^40 - 1, got {array.min()}..{array.max()}")
    return array.astype(np.int64)
