"""Streams of batches for training loops outside this library."""

from collections.abc import Iterator
from itertools import islice
from typing import Any

import torch
from torch.utils.data import IterableDataset, get_worker_info

from hmmscope.axes import Tensor
from hmmscope.errors import InputError
from hmmscope.inference.mixture_posterior import filter_mixture
from hmmscope.inference.optimal import observe
from hmmscope.processes.capabilities import COMPONENTS, PREDICTIONS
from hmmscope.schema import require, require_count

#: Samples generated at once for single-sample streams.
_AT_ONCE = 64


class ProcessStream(IterableDataset[dict[str, Tensor]]):
    """Batches, or single samples, of a dataset in order; each iteration starts at sample `first`.

        for batch in dataset.stream(64): ...
        DataLoader(dataset.stream(64), batch_size=None, num_workers=2)   # the same batches in the same order
        DataLoader(dataset.stream(), batch_size=64)                      # the same, without workers

    Each item is a dictionary; single samples have no batch axis:

        tokens         model input (batch, column)
        observations   symbols without delimiters (batch, time)
        beliefs        belief state after each observation, if known (batch, time, state)
        posterior      P(component) after each observation, for mixtures (batch, time, component)
        optimum        Bayes-optimal probabilities of the next observation (batch, time, symbol)

    In distributed training, process `rank` of `world` processes gets an equal part of each batch.

    Args:
        dataset: dataset of the samples.
        batch_size: number of samples per batch, over all processes; None for single samples.
        rank, world: index of this process, and number of processes.
        num_samples: number of samples (default: endless; for held-out recorded sequences, all from `first` on).
        first: index of the first sample.
        exact: True adds beliefs, posterior and optimum where they are known.

    Raises:
        InputError: the batch size is not a multiple of `world`, or the rank is invalid.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = None,
        rank: int = 0,
        world: int = 1,
        *,
        num_samples: int | None = None,
        first: int = 0,
        exact: bool = True,
    ) -> None:
        require_count("world", world)
        require(0 <= rank < world, "rank", f"must be in [0, {world})", rank)
        require(batch_size is None or batch_size >= 1, "batch_size", "must be at least 1", batch_size)
        rule = f"must be a multiple of world = {world}, so that every process receives the same number of samples"
        require(batch_size is None or batch_size % world == 0, "batch_size", rule, batch_size)
        require_count("first", first, 0)
        require(num_samples is None or num_samples >= 1, "num_samples", "must be at least 1", num_samples)
        self.dataset, self.batch_size, self.rank, self.world = dataset, batch_size, rank, world
        self.first, self.exact, process = first, exact, dataset.process
        self._end = None if num_samples is None else first + num_samples
        if num_samples is None and process.data is not None:
            self._end = process.num_different(dataset.stream_name, dataset.layout.num_observations)
        self._known = exact and process.data is None and PREDICTIONS in process.capabilities()

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        worker = get_worker_info()
        number, count = (0, 1) if worker is None else (worker.id, worker.num_workers)
        if self.batch_size is None:
            own = self._numbers(self.rank + self.world * number, self.world * count)
            while chosen := list(islice(own, _AT_ONCE)):
                batch = self._batch(chosen)
                yield from ({key: values[row] for key, values in batch.items()} for row in range(len(chosen)))
            return
        part = self.batch_size // self.world
        for begin in self._numbers(self.batch_size * number, self.batch_size * count):
            own_first = begin + self.rank * part
            last = own_first + part if self._end is None else min(own_first + part, self._end)
            if last > own_first:
                yield self._batch(list(range(own_first, last)))

    def _numbers(self, begin: int, step: int) -> Iterator[int]:
        sample = self.first + begin
        while self._end is None or sample < self._end:
            yield sample
            sample += step

    def _batch(self, numbers: list[int]) -> dict[str, Tensor]:
        batch = self.dataset[numbers]
        found = {"tokens": batch.tokens, "observations": batch.observations}
        return found | (self._answers(batch.observations) if self._known else {})

    def _answers(self, observations: Tensor) -> dict[str, Tensor]:
        process, reset_mask = self.dataset.process, torch.from_numpy(self.dataset.layout.reset_mask)
        if COMPONENTS in process.uses_hmm_inference:
            mixed = filter_mixture(process, observations, reset_mask=reset_mask)
            return {"posterior": mixed.component_posterior, "optimum": mixed.next_observation}
        observed = observe(process, observations, reset_mask=reset_mask)
        beliefs = {} if observed.belief is None else {"beliefs": observed.belief}
        return beliefs | {"optimum": observed.next_observation}

    def __getitem__(self, index: Any) -> dict[str, Tensor]:
        raise InputError("stream: can be iterated but not indexed; use dataset[5] for sample 5")
