"""Samples of a corpus for training loops of other people: an iterable data set with its exact answers."""

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

#: Samples that are made at once where they are given one by one.
_AT_ONCE = 64


class ProcessStream(IterableDataset[dict[str, Tensor]]):
    """Batches, or single samples, of a corpus in the order of their numbers; it can be gone through again.

        for batch in corpus.stream(64): ...
        DataLoader(corpus.stream(64), batch_size=None, num_workers=2)   # the same batches in the same order
        DataLoader(corpus.stream(), batch_size=64)                      # the same batches, without workers

    Each is a dictionary:

        tokens         what a model reads (batch, column)
        observations   the symbols, without delimiters (batch, time)
        beliefs        the exact law of the state after each observation (batch, time, state), where there is one
        posterior      of a mixture in its place the law of the component (batch, time, component)
        optimum        the exact law of the next observation, after each one (batch, time, symbol)

    and without the batch axis for single samples. The last three are left out with ``exact=False``, and of sequences whose
    law nobody knows.

    Batch k of all processes together holds samples first + k batch_size to first + (k + 1) batch_size - 1; process `rank` of
    `world` has its part of each batch, batch_size / world samples. Workers of a DataLoader take batches in turns, so that it
    gives them in this order however many there are.

    Args:
        dataset: samples.
        batch_size: of all processes together; None for single samples.
        rank, world: which process this is, of how many.
        num_samples: where it ends; by default it does not, but for given sequences with their different windows.
        first: number of the first sample; to go on after a break, that of the next one.
        exact: whether to add the exact answers.

    Raises:
        InputError: a part that is no whole number of samples, or a rank that is not below the world.
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
        rule = f"must be a multiple of world = {world}, each process has a part of a batch"
        require(batch_size is None or batch_size % world == 0, "batch_size", rule, batch_size)
        require_count("first", first, 0)
        require(num_samples is None or num_samples >= 1, "num_samples", "must be at least 1", num_samples)
        self.dataset, self.batch_size, self.rank, self.world = dataset, batch_size, rank, world
        self.first, self.exact, process = first, exact, dataset.process
        if num_samples is None and process.data is not None:
            num_samples = process.num_different(dataset.stream_name, dataset.layout.num_observations)
        self.num_samples = num_samples
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
            last = own_first + part if self.num_samples is None else min(own_first + part, self.num_samples)
            if last > own_first:
                yield self._batch(list(range(own_first, last)))

    def _numbers(self, begin: int, step: int) -> Iterator[int]:
        """first + begin, and on in steps, to the end."""
        sample = self.first + begin
        while self.num_samples is None or sample < self.num_samples:
            yield sample
            sample += step

    def _batch(self, numbers: list[int]) -> dict[str, Tensor]:
        batch = self.dataset[numbers]
        found = {"tokens": batch.tokens, "observations": batch.observations}
        return found | (self._answers(batch.observations) if self._known else {})

    def _answers(self, observations: Tensor) -> dict[str, Tensor]:
        process, starts = self.dataset.process, torch.from_numpy(self.dataset.layout.reset_mask)
        if COMPONENTS in process.uses_hmm_inference:
            mixed = filter_mixture(process, observations, reset_mask=starts)
            return {"posterior": mixed.component_posterior, "optimum": mixed.next_observation}
        observed = observe(process, observations, reset_mask=starts)
        beliefs = {} if observed.belief is None else {"beliefs": observed.belief}
        return beliefs | {"optimum": observed.next_observation}

    def __getitem__(self, index: Any) -> dict[str, Tensor]:
        raise InputError("stream: is gone through from its first sample on; corpus[5] has sample 5")
