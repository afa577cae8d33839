"""n-grams counted in the training part of given sequences: what a model must beat where no optimum is known."""

import numpy as np
import torch
from numpy.typing import NDArray

from hmmscope.axes import Float64, Int64, Tensor
from hmmscope.processes.given_sequences import GivenSequences


class TrainedNgrams:
    """Interpolated n-grams. After the context c, the k symbols before, with n(c, v) occurrences of v after it,

    P_k(v | c) = (n(c, v) + P_{k-1}(v | c without its oldest symbol)) / (n(c) + 1),   P_{-1} uniform

    so that what was never seen has the law of the shorter context. Near the beginning of a window the context is what
    there is.

    Args:
        process: its stream "train" is counted.
        max_order: longest context; lowered until contexts are numbers below 2^62.
    """

    def __init__(self, process: GivenSequences, max_order: int) -> None:
        self.num_symbols = process.num_symbols
        data = process.part("train")
        flat = data.flat.astype(np.int64)
        place = np.concatenate([np.arange(count) for count in data.lengths.tolist()])
        self._pairs: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = []
        context = np.zeros(len(flat), np.int64)
        for order in range(max_order + 1):
            if self.num_symbols ** (order + 1) >= 2**62:
                break
            if order:  # the symbols before, the oldest first: c = o_{t-k} V^{k-1} + ... + o_{t-1}
                context[order:] += flat[:-order] * self.num_symbols ** (order - 1)
            inside = place >= order
            self._pairs.append(np.unique(context[inside] * self.num_symbols + flat[inside], return_counts=True))

    def predictions(
        self, observations: Int64[Tensor, "batch time"], positions: NDArray[np.int64]
    ) -> dict[str, Float64[Tensor, "batch judged symbol"]]:
        """P(observation t | those before) at each t of `positions`, by ``trained-order-<k>``."""
        seen = observations.numpy()
        law = np.full((len(seen), len(positions), self.num_symbols), 1 / self.num_symbols)
        found: dict[str, Float64[Tensor, "batch judged symbol"]] = {}
        context = np.zeros(law.shape[:2], np.int64)
        for order, (pairs, counts) in enumerate(self._pairs):
            inside = positions >= order
            if order:
                context[:, inside] += seen[:, positions[inside] - order] * self.num_symbols ** (order - 1)
            law = law.copy()
            law[:, inside] = self._interpolated(law[:, inside], context[:, inside], pairs, counts)
            found[f"trained-order-{order}"] = torch.from_numpy(law)
        return found

    def _interpolated(
        self,
        shorter: NDArray[np.float64],
        context: NDArray[np.int64],
        pairs: NDArray[np.int64],
        counts: NDArray[np.int64],
    ) -> NDArray[np.float64]:
        """The law after each context (batch, judged), from that after the shorter one."""
        low = np.searchsorted(pairs, context.ravel() * self.num_symbols)
        high = np.searchsorted(pairs, (context.ravel() + 1) * self.num_symbols)
        size = high - low
        row = np.repeat(np.arange(len(size)), size)
        entry = np.arange(len(row)) - np.repeat(np.cumsum(size) - size, size) + np.repeat(low, size)
        law = shorter.reshape(-1, self.num_symbols).copy()
        law[row, pairs[entry] % self.num_symbols] += counts[entry]
        return (law / law.sum(1, keepdims=True)).reshape(shorter.shape)
