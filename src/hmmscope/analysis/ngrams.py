"""Counting at its best, in the prompt alone: n-grams with a strength for each order, and the mixture of all context trees.

Both predict an observation from the earlier ones of its sample. What they are free to choose is chosen on prompts of the
training pool: strengths, orders, pseudo-count, weight, and whether contexts reach back over the beginning of a sequence.
A model that has learned something does better than both, in nats and in accuracy.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hmmscope.analysis.activations import BATCH
from hmmscope.analysis.measures import Measures, mean_of_asked
from hmmscope.axes import Float64, Tensor
from hmmscope.datasets.layouts import Layout
from hmmscope.datasets.process_dataset import Batch, ProcessDataset, check_dataset
from hmmscope.datasets.targets import PADDING, NextObservation, RecordedNextObservation, make_target
from hmmscope.errors import InputError
from hmmscope.kernels.context_counts import backed_off_loss, context_counts, context_tree_laws, ngram_laws
from hmmscope.reprs import html_rows
from hmmscope.schema import require, require_count
from hmmscope.ties import largest, smallest

#: Name of the mixture of context trees among predictors; n-grams are ``order-<k>``.
TREE = "context-tree"
#: Longest context that is tried, nats by which a longer one must be better to be taken, and how many longer ones that are
#: no better end the search.
MAX_ORDER, MARGIN, PATIENCE = 8, 1e-3, 3
#: Prompts that are tuned on by default: so many observations, between these numbers of prompts.
OBSERVATIONS, FEWEST, MOST = 2**12, 16, 256

#: Base-2 logarithms between which strengths, pseudo-counts and prior odds of a leaf are looked for, and steps of the search.
STRENGTHS, PSEUDO_COUNTS, ODDS, STEPS = (-8.0, 12.0), (-10.0, 12.0), (-12.0, 12.0), (2.0, 1.0, 0.5)
#: Counts that are held at once.
_COUNTS = 2**22


@dataclass(frozen=True)
class TunedNgrams:
    """What was chosen on prompts of the training pool.

    Attributes:
        strengths: of the n-gram of each order, from 0 on, those of the orders up to it, chosen together, see `ngram_laws`.
        order: of the best n-gram: the least whose loss on these prompts is within `MARGIN` of the best.
        ngram_reaches: whether its contexts reach back over the beginning of a sequence.
        depth, pseudo_count, weight: of the context trees, see `context_tree_laws`.
        tree_reaches: whether their contexts reach back over the beginning of a sequence.
        num_samples: prompts that it was tuned on.
    """

    strengths: tuple[tuple[float, ...], ...]
    order: int
    ngram_reaches: bool
    depth: int
    pseudo_count: float
    weight: float
    tree_reaches: bool
    num_samples: int

    @classmethod
    def tuned(
        cls,
        dataset: ProcessDataset,
        *,
        num_samples: int | None = None,
        orders: int = 3,
        asked: NDArray[np.bool_] | None = None,
    ) -> "TunedNgrams":
        """Choose what counting may choose, by the mean loss on samples 0 to `num_samples` - 1 of a corpus.

        Args:
            dataset: prompts of the training pool, such as the stream "counting"; not those that will be judged.
            num_samples: how many; by default about `OBSERVATIONS` observations.
            orders: n-grams of orders up to this have strengths, also if a lower order is better.
            asked: observations that the loss is taken over (judged,), all that are predicted by default.

        Raises:
            InputError: a process whose observations are vectors, or numbers out of range.
        """
        check_dataset(dataset)
        target = make_target("observation", dataset.process, dataset.layout)
        if not isinstance(target, NextObservation | RecordedNextObservation):
            raise InputError("dataset: counting needs symbols, and its observations are vectors")
        layout, size = dataset.layout, dataset.num_symbols
        require(0 <= orders <= MAX_ORDER, "orders", f"must be in [0, {MAX_ORDER}]", orders)
        if num_samples is None:
            num_samples = min(MOST, max(FEWEST, OBSERVATIONS // layout.num_observations))
        require_count("num_samples", num_samples)
        num_samples = dataset.different(num_samples)
        batch = dataset[0:num_samples]
        seen = batch.observations.cpu().numpy()
        kept = (target.labels(batch) != PADDING).cpu().numpy()
        kept = kept if asked is None else kept & asked
        require(bool(kept.any()), "asked", "must hold an observation that is predicted", 0)
        where = (slice(None), layout.predicted_observations)
        reaches = (False, True) if len(layout.sequence_lengths) > 1 else (False,)
        longest = min(MAX_ORDER, layout.num_observations - 1)
        ngrams, trees = [], []
        for reaches_over in reaches:
            reach = _reach(layout, reaches_over)
            seen_ND, total_ND = _examples(seen, reach, size, longest, layout.predicted_observations, kept)
            strengths, losses = tuned_ngrams(seen_ND, total_ND, size, min(orders, longest))
            order = least_within_margin(losses)
            shown = max(order, min(orders, longest))
            ngrams.append((losses[order], strengths[: shown + 1], order, reaches_over))

            def tree_loss(depth: int, pseudo: float, odds: float, reach: NDArray[np.int64] = reach) -> float:
                weight = 1 / (1 + 2.0**-odds)
                found = context_tree_laws(seen, reach, size, depth, 2.0**pseudo, weight, of_seen=True)
                return float(-np.log(found[where][..., 0][kept]).mean())

            trees.append((*_tuned_tree(tree_loss, longest), reaches_over))
        _, strengths, order, ngram_reaches = smallest(ngrams, lambda found: found[0])
        _, depth, pseudo, odds, tree_reaches = smallest(trees, lambda found: found[0])
        return cls(
            tuple(strengths), order, ngram_reaches, depth, 2.0**pseudo, 1 / (1 + 2.0**-odds), tree_reaches, num_samples
        )

    @staticmethod
    def best(values: Mapping[str, Any], metric: str = "loss") -> str:
        """Of predictors that count, the name of the one with the least mean loss, or the greatest mean accuracy.

        Raises:
            InputError: none of the predictors counts.
        """
        means = {name: float(np.nanmean(found)) for name, found in values.items() if is_ngram(name)}
        require(len(means) > 0, "predictors", "must have one that counts", sorted(values))
        return smallest(means, means.__getitem__) if metric == "loss" else largest(means, means.__getitem__)

    @property
    def ngram(self) -> str:
        """Name of the best n-gram."""
        return f"order-{self.order}"

    def probs(self, dataset: ProcessDataset, batch: Batch) -> dict[str, Float64[Tensor, "batch judged symbol"]]:
        """P(observation) at the predicted observations by ``order-<k>`` for each k that has strengths, and `TREE`."""
        layout, size, seen = dataset.layout, dataset.num_symbols, batch.observations.cpu().numpy()
        counts = context_counts(seen, _reach(layout, self.ngram_reaches), size, len(self.strengths) - 1)
        counts = counts[:, layout.predicted_observations]
        found = {
            f"order-{order}": torch.from_numpy(ngram_laws(counts[:, :, : order + 1], strengths)[:, :, order])
            for order, strengths in enumerate(self.strengths)
        }
        reach = _reach(layout, self.tree_reaches)
        tree = context_tree_laws(seen, reach, size, self.depth, self.pseudo_count, self.weight)
        return found | {TREE: torch.from_numpy(tree[:, layout.predicted_observations])}


#: Where there are no other samples: one strength, and the numbers of Willems, Shtarkov and Tjalkens.
UNTUNED = TunedNgrams(tuple((1.0,) * (order + 1) for order in range(4)), 3, False, 3, 0.5, 0.5, False, 0)


def other_samples(dataset: ProcessDataset) -> ProcessDataset | None:
    """Samples of the same process, or of its prior, laid out alike, that no other stream has: the stream "counting".

    Of given sequences these are windows of the training part, or samples of the process that stands beside them; None of
    sequences that are too few to have a training part.
    """
    process = dataset.process if dataset.process.prior is None else dataset.process.prior.process
    others = ProcessDataset(process, layout=dataset.layout, seed=dataset.seed, stream="counting")
    try:
        others[0:1]
    except InputError:
        return None
    return others


def plain_ngrams(
    dataset: ProcessDataset, batch: Batch, max_order: int
) -> dict[str, Float64[Tensor, "batch judged symbol"]]:
    """P(observation) by n-grams ``order-0`` to ``order-<max_order>`` of strength 1, whose contexts stay in their sequence.

    They say what is in a sample, as a target or a way of behaving. What a model must beat is `TunedNgrams`.
    """
    layout = dataset.layout
    seen = batch.observations.cpu().numpy()
    counts = context_counts(seen, layout.position_in_sequence, dataset.num_symbols, max_order)[
        :, layout.predicted_observations
    ]
    laws = torch.from_numpy(ngram_laws(counts, [1.0] * (max_order + 1)))
    return {f"order-{order}": laws[:, :, order] for order in range(max_order + 1)}


def is_ngram(predictor: str) -> bool:
    """Whether a predictor of this name counts, in the sample or in a training part: an n-gram or the context trees."""
    name = predictor.removeprefix("trained-")
    return name == TREE or name.startswith("order-")


# ---------------------------------------------------------------------------------------------------------------------
# Tuning


def _reach(layout: Layout, over_beginnings: bool) -> NDArray[np.int64]:
    """Symbols before each observation that may be its context (time,)."""
    return np.arange(layout.num_observations) if over_beginnings else layout.position_in_sequence


def _examples(
    seen: NDArray[np.int64],
    reach: NDArray[np.int64],
    num_symbols: int,
    max_order: int,
    predicted: NDArray[np.int64],
    kept: NDArray[np.bool_],
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Counts (example, order) of what was observed after each context, and of the context."""
    own, totals = [], []
    rows = max(1, _COUNTS // (seen.shape[1] * (max_order + 1) * num_symbols))
    for begin in range(0, len(seen), rows):
        part = seen[begin : begin + rows]
        counts = context_counts(part, reach, num_symbols, max_order)[:, predicted]
        chosen = np.take_along_axis(counts, np.maximum(part, 0)[:, predicted, None, None], 3)[..., 0]
        own.append(chosen[kept[begin : begin + rows]])
        totals.append(counts.sum(-1)[kept[begin : begin + rows]])
    return np.concatenate(own), np.concatenate(totals)


def tuned_ngrams(
    seen_ND: NDArray[np.float64], total_ND: NDArray[np.float64], num_symbols: int, orders: int
) -> tuple[list[tuple[float, ...]], list[float]]:
    """Strengths of the n-gram of each order, and its loss; each search begins at the strengths of the order below."""
    found: list[tuple[float, ...]] = []
    losses: list[float] = []
    start: list[float] = []
    for order in range(seen_ND.shape[1]):
        if order > orders and _at_rest(losses):
            break
        seen, total = np.ascontiguousarray(seen_ND[:, : order + 1]), np.ascontiguousarray(total_ND[:, : order + 1])

        def loss(logs: Sequence[float], seen: Any = seen, total: Any = total) -> float:
            return float(backed_off_loss(seen, total, 2.0 ** np.array(logs), num_symbols))

        start, least = descend(loss, [*start, 0.0], [STRENGTHS] * (order + 1))
        found.append(tuple(2.0**log for log in start))
        losses.append(least)
    return found, losses


def _tuned_tree(loss: Callable[[int, float, float], float], longest: int) -> tuple[float, int, float, float]:
    """Loss, depth, and base-2 logarithms of pseudo-count and prior odds."""
    losses: list[float] = []
    places = [[-3.0, -3.0]]
    for depth in range(longest + 1):
        if _at_rest(losses):
            break

        def own(logs: Sequence[float], depth: int = depth) -> float:
            return loss(depth, logs[0], logs[1])

        place, least = descend(own, places[-1], [PSEUDO_COUNTS, ODDS])
        losses.append(least)
        places.append(place)
    depth = least_within_margin(losses)
    pseudo, odds = places[depth + 1]
    return losses[depth], depth, pseudo, odds


def _at_rest(losses: Sequence[float]) -> bool:
    """Whether the last `PATIENCE` losses are no better than the best before them."""
    return len(losses) > PATIENCE and min(losses[-PATIENCE:]) > min(losses[:-PATIENCE]) - MARGIN


def least_within_margin(losses: Sequence[float]) -> int:
    """The least number whose loss is within `MARGIN` of the best."""
    return next(number for number, loss in enumerate(losses) if loss <= min(losses) + MARGIN)


def descend(
    loss: Callable[[Sequence[float]], float], start: Sequence[float], bounds: Sequence[tuple[float, float]]
) -> tuple[list[float], float]:
    """Where a loss is least, number by number, with ever smaller steps, and the loss there."""
    place = list(start)
    least = loss(place)
    for step in STEPS:
        moved = True
        while moved:
            moved = False
            for number, (low, high) in enumerate(bounds):
                for by in (step, -step):
                    while low <= place[number] + by <= high:
                        tried = [*place[:number], place[number] + by, *place[number + 1 :]]
                        value = loss(tried)
                        if value >= least - 1e-9:
                            break
                        place, least, moved = tried, value, True
    return place, least


# ---------------------------------------------------------------------------------------------------------------------
# Judging


@dataclass(frozen=True, repr=False)
class NgramScores(Measures):
    """What counting reaches on samples of a corpus: accuracy and loss, nats, of each n-gram and of the context trees.

    Attributes:
        ngrams: what was chosen on prompts of the training pool.
        trained_order: of the best n-gram that counts in a training part, of given sequences; None elsewhere.
    """

    ngrams: TunedNgrams
    trained_order: int | None = None

    def __repr__(self) -> str:
        parts = []
        means = {row["predictor"]: row for row in self.table()}
        shown = [(self.ngrams.ngram, f"n-gram of {self.ngrams.ngram}"), (TREE, "context trees")]
        if self.trained_order is not None:
            ngram, where = f"order-{self.trained_order}", "of the training part"
            shown = [(f"trained-{ngram}", f"n-gram of {ngram} {where}"), (f"trained-{TREE}", f"context trees {where}")]
        for name, called in shown:
            found = means[name]
            parts.append(f"{called} {found['loss']:.4f} nats, accuracy {found['accuracy']:.4f}")
        samples, columns = self.measures[TREE]["loss"].shape
        return f"NgramScores({'; '.join(parts)}; {samples} samples of {columns} answers)".replace("order-", "order ")

    def _repr_html_(self) -> str:
        return html_rows("Counted", self.table())


def evaluate_ngrams(
    ngrams: TunedNgrams,
    dataset: ProcessDataset,
    num_samples: int,
    others: Callable[[Batch], Mapping[str, Tensor]] | None = None,
) -> NgramScores:
    """Accuracy and loss of counting as it was tuned, on samples 0 to `num_samples` - 1 of a corpus.

    Args:
        ngrams: as it was tuned.
        dataset: what is judged.
        num_samples: how many.
        others: more laws of a batch, by name, which are judged alike.
    """
    target = make_target("observation", dataset.process, dataset.layout)
    num_samples = dataset.different(num_samples)
    require_count("num_samples", num_samples)
    parts: dict[str, dict[str, list[NDArray[np.float64]]]] = {}
    for begin in range(0, num_samples, BATCH):
        batch = dataset[begin : min(begin + BATCH, num_samples)]
        labels = target.labels(batch).cpu()
        asked = labels != PADDING
        laws = ngrams.probs(dataset, batch) | dict(others(batch) if others is not None else {})
        for name, law in laws.items():
            chosen = law.gather(2, labels.clamp_min(0)[..., None])[..., 0]
            own = parts.setdefault(name, {"accuracy": [], "loss": []})
            right = (law.argmax(-1) == labels).double()
            own["accuracy"].append(right.where(asked, torch.nan).numpy())
            own["loss"].append((-chosen.log()).where(asked, torch.nan).numpy())
    measures = {name: {k: np.concatenate(v) for k, v in metrics.items()} for name, metrics in parts.items()}
    return NgramScores(measures, target.sequences, target.positions, ngrams)


def gain_over_ngrams(
    found: Measures, predictor: str = "model", kept: NDArray[np.bool_] | None = None
) -> dict[str, NDArray[np.float64]]:
    """How much better than the better of n-grams and context trees a predictor is, sample by sample (sample,).

    Args:
        found: measures of the predictor and of those that count, see `is_ngram`.
        predictor: its name.
        kept: judged columns that count, all by default.

    Returns:
        ``loss``, nats: that of the counting predictor with the least mean loss less its own; ``accuracy``: its own less
        that of the counting predictor with the greatest.
    """
    kept = np.ones(len(found.positions), bool) if kept is None else kept
    gains = {}
    for metric, sign in (("loss", 1), ("accuracy", -1)):
        means = {name: mean_of_asked(values[metric][:, kept]) for name, values in found.measures.items()}
        gains[metric] = sign * (means[TunedNgrams.best(means, metric)] - means[predictor])
    return gains
