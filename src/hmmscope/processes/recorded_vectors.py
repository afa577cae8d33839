"""Recorded sequences of numbers as a process with windows as samples."""

import hashlib
from collections.abc import Mapping
from functools import cached_property
from typing import Any, ClassVar

import torch

from hmmscope.axes import Float64, Tensor
from hmmscope.errors import InputError
from hmmscope.processes.capabilities import PREDICTIONS
from hmmscope.processes.recorded_sequences import JUDGING, TRAINING, RecordedSequences
from hmmscope.processes.vector_process import VectorProcess
from hmmscope.schema import require, require_count, require_real
from hmmscope.sequences.read_options import ReadOptions
from hmmscope.sequences.splitting import block_length, hashes_of, parts_of_hashes, piece_length
from hmmscope.sequences.vector_data import VectorData, joined

#: Limits of the default `min_variance`.
LEAST, MOST = 1e-6, 0.5
#: Values at most this far apart, in standard deviations, count as equal.
_SAME = 1e-9


class RecordedVectors(RecordedSequences, VectorProcess):
    """Windows of recorded numbers as samples; streams and windows are chosen as in `RecordedSequences`.

    In place of a missing entry, networks read the last known entry of the coordinate, or its mean if there is none.

    Args:
        data: recorded sequences.
        split_seed: seed of the split into parts.
        title: free text.
        min_variance: least variance of a predicted density, as a fraction of the coordinate's variance. Default:
            gap²/12 (rounding) clipped to [1e-6, 0.5]; gap: least difference of distinct values in standard deviations.
    """

    stored_name = "RecordedVectors"

    default_target, num_mixture_components = "density", 5
    file_format = "hmmscope-vectors"
    file_arrays: ClassVar[tuple[str, ...]] = ("rows", "lengths")
    file_fields: ClassVar[tuple[str, ...]] = ("title", "split_seed", "columns", "reading", "min_variance")

    def __init__(
        self, data: VectorData, *, split_seed: int = 0, title: str = "", min_variance: float | None = None
    ) -> None:
        if min_variance is not None:
            require_real("min_variance", min_variance)
            require(0 < min_variance < 1, "min_variance", "must be in (0, 1), a fraction of the variance", min_variance)
        self.data, self.num_symbols, self.split_seed = data, data.rows.shape[1], split_seed
        self.min_variance = min_variance
        self.title, self.read_options = title or data.how, data.read_options
        self.sizes = torch.tensor([len(names) for names in data.alphabets.values()], dtype=torch.int64)
        self.density = "mixed" if data.alphabets else "gaussian"
        self._pieces = {}

    def in_pieces(self, length: int | None = None) -> "RecordedVectors":
        """Cut sequences into pieces of at most `length` steps; by default three or more sequences stay whole."""
        lengths = self.data.lengths.tolist()
        if length is None:
            size = max(lengths) if len(lengths) >= 3 else block_length(sum(lengths))
        else:
            require_count("length", length)
            size = piece_length(lengths, length)
        pieces = [piece for one in self.data.sequences for piece in one.split(size)]
        cut = joined(pieces, self.data.how, self.data.read_options)
        return RecordedVectors(
            VectorData(cut.rows, cut.lengths, self.data.columns, cut.how, cut.read_options),
            split_seed=self.split_seed,
            title=self.title,
            min_variance=self.min_variance,
        )

    @cached_property
    def parts(self) -> tuple[VectorData, VectorData, VectorData]:
        known = [one for one in self.data.sequences if not bool(one.isnan().all())]
        keys = hashes_of((one.numpy().astype("<f8").tobytes() for one in known), self.split_seed)
        if len(set(keys)) < 3:
            raise InputError(
                f"{self.title or 'source'}: has {len(set(keys))} different sequences, but three parts need at least 3"
            )
        parts, data = parts_of_hashes(keys), self.data
        chosen = (joined([one for one, own in zip(known, parts, strict=True) if own == part]) for part in range(3))
        about = {"columns": data.columns, "read_options": data.read_options}
        train, validation, test = (VectorData(one.rows, one.lengths, **about) for one in chosen)
        return train, validation, test

    def part(self, stream: str) -> VectorData:  # type: ignore[override]
        if stream in TRAINING:
            return self.parts[0]
        return self.parts[2] if stream == "test" else self.parts[1] if stream in JUDGING else self.data

    def _padding(self, *shape: int) -> Tensor:
        return torch.full((*shape, self.num_symbols), torch.nan, dtype=torch.float64)

    @cached_property
    def scale(self) -> tuple[Float64[Tensor, " coordinate"], Float64[Tensor, " coordinate"]]:
        rows = self.parts[0].rows
        centre = rows.nanmean(0)
        width = (rows - centre).square().nanmean(0).sqrt()
        return centre.nan_to_num(), torch.where(width > 0, width, 1.0)

    @cached_property
    def chains(self) -> list[Float64[Tensor, "previous symbol"]]:
        """log P(symbol | preceding symbol, in the last row missing) of each column of names."""
        rows, found = self.parts[0].padded()[..., self.num_symbols - len(self.sizes) :], []
        for symbols, size in zip(rows.unbind(-1), self.sizes.tolist(), strict=True):
            counts = torch.zeros(size + 1, size + 1, dtype=torch.float64)
            counts.index_put_(successive(symbols, size), torch.ones((), dtype=torch.float64), accumulate=True)
            share = (counts.sum(0)[:size] + 1) / (counts[:, :size].sum() + size)
            probs = counts[:, :size] + share  # one observation more, with the frequencies of the symbols
            probs[size] = share
            found.append(torch.nn.functional.pad((probs / probs.sum(1, keepdim=True)).log(), (0, 1)))
        return found

    @property
    def shares(self) -> list[Float64[Tensor, " symbol"]]:
        return [chain[-1, :-1].exp() for chain in self.chains]

    @cached_property
    def least_variances(self) -> Float64[Tensor, " coordinate"]:
        if self.min_variance is not None:
            return torch.full((self.num_symbols,), self.min_variance, dtype=torch.float64)
        rows = ((self.parts[0].rows - self.scale[0]) / self.scale[1]).T
        gaps = [column[~column.isnan()].unique().diff() for column in rows]
        rounding = [float(one[one > _SAME].min()) ** 2 / 12 if bool((one > _SAME).any()) else 0.0 for one in gaps]
        return torch.tensor(rounding, dtype=torch.float64).clamp(LEAST, MOST)

    def standardize(
        self, observations: Float64[Tensor, "batch time coordinate"]
    ) -> Float64[Tensor, "batch time coordinate"]:
        found = super().standardize(observations)
        times = torch.arange(found.shape[1], device=found.device)[:, None]
        last = times.where(~found.isnan(), -1).cummax(1).values
        return found.gather(1, last.clamp_min(0)).where(last >= 0, 0.0)

    def following(self, beliefs: Float64[Tensor, "*batch state"]) -> Float64[Tensor, "*batch coordinate"]:
        raise self.missing_capability_error(PREDICTIONS)

    @cached_property
    def digest(self) -> str:
        sha = hashlib.sha256(f"{self.file_format}/1/{len(self.data)}/{self.num_symbols}/{self.split_seed}".encode())
        for part in (self.data.lengths.numpy().astype("<i8"), self.data.rows.numpy().astype("<f8")):
            sha.update(part.tobytes())
        if self.min_variance is not None:
            sha.update(f"/{self.min_variance!r}".encode())
        return sha.hexdigest()

    @property
    def params_digest(self) -> str:
        return self.digest

    def file_tensors(self) -> dict[str, Tensor]:
        return {"rows": self.data.rows, "lengths": self.data.lengths}

    def file_texts(self) -> dict[str, Any]:
        reading = {} if self.read_options is None else {"reading": self.read_options.to_data()}
        names = {} if self.data.columns is None else {"columns": list(self.data.columns)}
        bound = {} if self.min_variance is None else {"min_variance": self.min_variance}
        return {"title": self.title, "split_seed": self.split_seed} | names | reading | bound

    @classmethod
    def from_file(cls, data: Mapping[str, Any], *, allow_drop_tiny: bool = False) -> "RecordedVectors":
        rows = torch.as_tensor(data["rows"], dtype=torch.float64)
        lengths, names = torch.as_tensor(data["lengths"], dtype=torch.int64), data.get("columns")
        columns = None if names is None else tuple(map(str, names))
        found = VectorData(rows, lengths, columns, read_options=ReadOptions.of_file(data))
        given = {name: data[name] for name in ("split_seed", "title", "min_variance") if name in data}
        return cls(found, **given)

    def __repr__(self) -> str:
        return f"RecordedVectors({self.data!r})"


def successive(symbols: Float64[Tensor, "batch time"], size: int) -> tuple[Tensor, Tensor]:
    now = symbols.nan_to_num(size).long()
    return torch.nn.functional.pad(now, (1, 0), value=size)[:, :-1], now
