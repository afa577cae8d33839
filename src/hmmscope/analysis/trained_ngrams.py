"""N-gram baselines fitted to the training part of recorded sequences."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hmmscope.analysis.ngrams import (
    ODDS,
    PSEUDO_COUNTS,
    TREE,
    NgramScores,
    TunedNgrams,
    descend,
    evaluate_ngrams,
    least_within_margin,
    tuned_ngrams,
)
from hmmscope.axes import Float64, Int64, Tensor
from hmmscope.datasets.layouts import SequenceLayout
from hmmscope.datasets.process_dataset import ProcessDataset, check_dataset
from hmmscope.errors import InputError
from hmmscope.processes.process import Process
from hmmscope.processes.recorded_sequences import RecordedSequences
from hmmscope.schema import require
from hmmscope.sequences.data import read_as
from hmmscope.sequences.gaps import MISSING

#: Most observations used for tuning, evenly spread over the training part.
_TUNED_ON = 2**14
#: Longest window of recorded sequences.
_WINDOW = 256


@dataclass(frozen=True)
class _Level:
    contexts: NDArray[np.int64]
    symbols: NDArray[np.int64]
    nodes: NDArray[np.int64]
    counts: NDArray[np.int64]
    longer: NDArray[np.int64]

    @cached_property
    def begins(self) -> NDArray[np.int64]:
        return np.searchsorted(self.nodes, np.arange(len(self.contexts) + 1))

    @cached_property
    def totals(self) -> NDArray[np.int64]:
        return np.add.reduceat(self.counts, self.begins[:-1])

    def find(self, contexts: NDArray[np.int64]) -> NDArray[np.int64]:
        place = np.minimum(np.searchsorted(self.contexts, contexts), len(self.contexts) - 1)
        return np.where(self.contexts[place] == contexts, place, len(self.contexts))


class TrainedNgrams:
    """Back-off n-grams and context trees with fixed counts from the training part of recorded sequences.

    The hyperparameters of `ngram_laws` and `context_tree_laws` are chosen to minimise the leave-one-out loss.

    Args:
        process: recorded sequences; the counts come from their training part.
        max_order: length of the longest context; reduced if there would be more than 2^62 contexts.

    Attributes:
        strengths: prior strength of the n-gram of each order.
        order: lowest order with a loss within `MARGIN` of the smallest loss.
        depth, pseudo_count: hyperparameters of the context trees.
        shares: posterior probability that a context in the tree is a leaf, by context length.
    """

    def __init__(self, process: Process, max_order: int) -> None:
        self.num_symbols = process.num_symbols
        data = process.part("train")
        flat = data.flat.astype(np.int64)
        place, made = data.steps_since_gap, np.flatnonzero(data.steps_since_gap >= 0)
        events = made[np.unique(np.linspace(0, len(made) - 1, min(len(made), _TUNED_ON)).astype(np.int64))]
        own, totals = np.zeros((2, len(events), 0))
        self._levels: list[_Level] = []
        nodes: list[NDArray[np.int64]] = []
        context = np.zeros(len(flat), np.int64)
        for order in range(max_order + 1):
            inside = place >= order
            if self.num_symbols ** (order + 1) >= 2**62 or not inside.any():
                break
            if order:  # the symbols before, the oldest first
                context[order:] += flat[:-order] * self.num_symbols ** (order - 1)
            level, pair = _counted(
                context[inside] * self.num_symbols + flat[inside], place[inside] > order, self.num_symbols
            )
            self._levels.append(level)
            pairs = np.full(len(flat), -1)
            pairs[inside] = pair
            chosen = pairs[events]
            here = chosen >= 0
            node = np.where(here, level.nodes[chosen], -1)
            nodes.append(node)
            seen = np.where(here, level.counts[chosen] - 1, 0)
            own = np.column_stack([own, seen])
            totals = np.column_stack([totals, np.where(here, level.totals[node] - 1, 0)])
        longest = len(self._levels) - 1
        self.strengths, losses = tuned_ngrams(own, totals, self.num_symbols, longest)
        self.order = least_within_margin(losses)
        self._tune_trees(own, totals, np.column_stack(nodes))

    def _tune_trees(self, own: NDArray[np.float64], totals: NDArray[np.float64], nodes: NDArray[np.int64]) -> None:
        found, start = [], [-3.0, -3.0]
        for depth in range(len(self._levels)):

            def loss(logs: Sequence[float], depth: int = depth) -> float:
                pseudo, odds = 2.0 ** logs[0], logs[1] * math.log(2)
                shares = self.posterior(depth, pseudo, odds)
                law = np.empty(len(own))
                for k in range(depth, -1, -1):
                    here, node = nodes[:, k] >= 0, nodes[:, k]
                    estimate = (own[:, k] + pseudo) / (totals[:, k] + pseudo * self.num_symbols)
                    ends = here if k == depth else here & (nodes[:, k + 1] < 0)
                    law[ends] = estimate[ends]
                    inner = here & ~ends
                    share = shares[k][node[inner]]
                    law[inner] = share * estimate[inner] + (1 - share) * law[inner]
                return float(-np.log(law).mean())

            start, least = descend(loss, start, [PSEUDO_COUNTS, ODDS])
            found.append((least, start))
        self.depth = least_within_margin([least for least, _ in found])
        pseudo, odds = found[self.depth][1]
        self.pseudo_count = 2.0**pseudo
        self.shares = self.posterior(self.depth, self.pseudo_count, odds * math.log(2))

    def posterior(self, depth: int, pseudo: float, odds: float) -> list[NDArray[np.float64]]:
        """Compute P(context is a leaf | the tree contains it), by context length.

        D is the log Dirichlet-multinomial probability of the symbols after a context, and D' that without contexts at
        a sequence start. A leaf has prior log odds `odds` and prior probability w; W is the probability of the
        symbols under the context tree. Sums and products are over contexts longer by one symbol:

            log odds of a leaf = odds + D' - sum log W,   log W = log(w e^D + (1 - w) e^{D - D'} prod W)
        """
        shares: list[NDArray[np.float64]] = []
        log_leaf, log_inner = -np.logaddexp(0.0, -odds), -np.logaddexp(0.0, odds)
        below = np.zeros(0)
        for k in range(depth, -1, -1):
            level = self._levels[k]
            every = self._evidence(level, level.counts, pseudo)
            if k == depth:
                shares.insert(0, np.ones(len(level.contexts)))
                below = every
                continue
            deeper = self._levels[k + 1].contexts % self.num_symbols**k
            inner = np.bincount(level.find(deeper), below, len(level.contexts))
            longer = self._evidence(level, level.longer, pseudo)
            shares.insert(0, 1 / (1 + np.exp(np.clip(inner - longer - odds, -700, 700))))
            below = np.logaddexp(log_leaf + every, log_inner + every - longer + inner)
        return shares

    def _evidence(self, level: _Level, counts: NDArray[np.int64], pseudo: float) -> NDArray[np.float64]:
        totals = np.add.reduceat(counts, level.begins[:-1])
        whole = pseudo * self.num_symbols
        found = np.add.reduceat(_log_gamma(counts, pseudo), level.begins[:-1])
        return found - _log_gamma(totals, whole)

    def predictions(
        self, observations: Int64[Tensor, "batch time"], positions: NDArray[np.int64]
    ) -> dict[str, Float64[Tensor, "batch judged symbol"]]:
        seen, size = np.maximum(observations.numpy(), 0), self.num_symbols
        reach = _reach(observations.numpy() == MISSING, positions)
        context = np.zeros((len(seen), len(positions)), np.int64)
        nodes = []
        for order, level in enumerate(self._levels):
            if order:
                inside = positions >= order
                context[:, inside] += seen[:, positions[inside] - order] * size ** (order - 1)
            found = level.find(context)
            found[reach < order] = -1
            nodes.append(found)
        laws = {}
        for order, strengths in enumerate(self.strengths):
            law = np.full((*context.shape, size), 1 / size)
            for k in range(order + 1):
                counts, totals = self._at(k, nodes[k])
                law = (counts + strengths[k] * law) / (totals + strengths[k])[..., None]
            laws[f"trained-order-{order}"] = torch.from_numpy(law)
        law = np.full((*context.shape, size), 1 / size)
        for k in range(self.depth, -1, -1):
            counts, totals = self._at(k, nodes[k])
            estimate = (counts + self.pseudo_count) / (totals + self.pseudo_count * size)[..., None]
            ends = reach == k
            share = np.append(self.shares[k], 1.0)[nodes[k]]  # all trees agree after a context that never occurred
            share[ends] = 1.0
            law = np.where((reach >= k)[..., None], share[..., None] * estimate + (1 - share)[..., None] * law, law)
        return laws | {f"trained-{TREE}": torch.from_numpy(law)}

    def _at(self, order: int, nodes: NDArray[np.int64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        level = self._levels[order]
        many = len(level.contexts)
        own = np.where(nodes < 0, many, nodes).ravel()
        begins = np.append(level.begins, level.begins[-1])
        size = begins[own + 1] - begins[own]
        row = np.repeat(np.arange(len(own)), size)
        entry = np.arange(len(row)) - np.repeat(np.cumsum(size) - size, size) + np.repeat(begins[own], size)
        counts = np.zeros((len(own), self.num_symbols))
        counts[row, level.symbols[entry]] = level.counts[entry]
        totals = np.append(level.totals, 0)[own].astype(np.float64)
        return counts.reshape(*nodes.shape, -1), totals.reshape(nodes.shape)


def _reach(gaps: NDArray[np.bool_], positions: NDArray[np.int64]) -> NDArray[np.int64]:
    steps = np.arange(gaps.shape[1])
    last = np.maximum.accumulate(np.where(gaps, steps, -1), axis=1)  # the last gap at or before each step
    before = np.concatenate([np.full((len(gaps), 1), -1), last], 1)[:, positions]
    return positions - 1 - before


def _counted(
    codes: NDArray[np.int64], is_longer: NDArray[np.bool_], num_symbols: int
) -> tuple[_Level, NDArray[np.int64]]:
    pairs, pair, counts = np.unique(codes, return_inverse=True, return_counts=True)
    contexts, nodes = np.unique(pairs // num_symbols, return_inverse=True)
    longer = np.bincount(pair[is_longer], minlength=len(pairs))
    return _Level(contexts, pairs % num_symbols, nodes, counts, longer), pair


def _log_gamma(counts: NDArray[np.int64], start: float) -> NDArray[np.float64]:
    different, where = np.unique(counts, return_inverse=True)
    table = np.array([math.lgamma(start + count) for count in different.tolist()]) - math.lgamma(start)
    return table[where]


# Evaluation


def ngram_baselines(
    train: Any, test: ProcessDataset | None = None, *, num_samples: int = 256, orders: int = 3, **reading: Any
) -> NgramScores:
    """Score n-gram baselines on `test`, tuned on `train`.

    The baselines count in the sample's earlier observations. Without `test`, the test part of recorded sequences
    is scored, also by baselines fitted to the training part: ``trained-order-<k>`` and ``trained-context-tree``.

    Args:
        train: dataset of training prompts; or, without `test`, anything that `SequenceData` reads.
        test: dataset to score, with the same layout.
        num_samples: number of samples or windows to score.
        orders: order up to which n-grams are scored; in-context n-grams also up to `TunedNgrams.order`.
        reading: options of `SequenceData`, such as `column` or `missing`.

    Raises:
        InputError: the datasets differ in symbols or layout, or have the same samples; `test` is missing; or there are
            too few sequences.
    """
    if test is None and not isinstance(train, ProcessDataset):
        return _count_data(train, num_samples, orders, reading)
    check_dataset(train)
    require(
        test is not None,
        "test",
        "must be a dataset with the layout of train; only for recorded sequences it may be omitted",
        test,
    )
    check_dataset(test)
    if reading:
        raise InputError(f"{next(iter(reading))}: applies to recorded sequences only, but train is a dataset")
    assert test is not None
    require(train.num_symbols == test.num_symbols, "train", f"must have {test.num_symbols} symbols", train.num_symbols)
    require(train.layout == test.layout, "train", "must have the same layout as test", train.layout)
    same = (train.process.digest, train.seed, train.stream_name) == (test.process.digest, test.seed, test.stream_name)
    if same:
        raise InputError("train: has the same samples as test; use another stream, such as stream='counting'")
    return evaluate_ngrams(TunedNgrams.tuned(train, orders=orders), test, num_samples)


def _count_data(source: Any, num_samples: int, orders: int, read_options: dict[str, Any]) -> NgramScores:
    process = RecordedSequences(read_as(source, read_options).chunks(_WINDOW))
    layout = SequenceLayout(length=max(2, process.data.longest), placeholder=True)
    tuning, judged = (ProcessDataset(process, layout=layout, stream=stream) for stream in ("counting", "test"))
    trained = TrainedNgrams(process, orders)
    found = evaluate_ngrams(
        TunedNgrams.tuned(tuning, orders=orders),
        judged,
        num_samples,
        lambda batch: trained.predictions(batch.observations, layout.predicted_observations),
    )
    return replace(found, trained_order=trained.order)
