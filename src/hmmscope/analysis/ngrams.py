"""N-gram baselines with counts from the prompt: back-off n-grams and context trees, tuned on training prompts."""

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

#: Predictor name of the context tree mixture; n-grams are ``order-<k>``.
TREE = "context-tree"
#: Longest context tried, least improvement in nats for a longer one, and number of failures that end the search.
MAX_ORDER, MARGIN, PATIENCE = 8, 1e-3, 3
#: Observations used for tuning by default, and bounds on the number of prompts.
OBSERVATIONS, FEWEST, MOST = 2**12, 16, 256

#: Search ranges of strengths, pseudo-counts and prior odds of a leaf (base-2 logarithms), and search steps.
STRENGTHS, PSEUDO_COUNTS, ODDS, STEPS = (-8.0, 12.0), (-10.0, 12.0), (-12.0, 12.0), (2.0, 1.0, 0.5)
#: Most counts in memory at once.
_COUNTS = 2**22


@dataclass(frozen=True)
class TunedNgrams:
    """Hyperparameters of the n-gram baselines.

    Attributes:
        strengths: prior strength of the n-gram of each order, see `ngram_laws`.
        order: lowest order with a loss within `MARGIN` of the smallest loss.
        ngram_reaches: True if n-gram contexts extend across sequence starts.
        depth, pseudo_count, weight: hyperparameters of the context trees, see `context_tree_laws`.
        tree_reaches: True if tree contexts extend across sequence starts.
        num_samples: number of prompts used for tuning.
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
        """Choose the hyperparameters by the mean loss on samples 0 to `num_samples` - 1.

        Args:
            dataset: prompts for tuning.
            num_samples: number of prompts (default: enough for `OBSERVATIONS` observations).
            orders: order up to which n-grams are always tuned; higher orders follow while the loss falls.
            asked: mask of the predicted observations that the loss includes (predicted,).

        Raises:
            InputError: observations are vectors, or a number is out of range.
        """
        check_dataset(dataset)
        target = make_target("observation", dataset.process, dataset.layout)
        if not isinstance(target, NextObservation | RecordedNextObservation):
            raise InputError("dataset: must have symbols for n-gram baselines, but its observations are vectors")
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
        require(bool(kept.any()), "asked", "must include a predicted observation", 0)
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
        """Return the name of the n-gram baseline with the best mean of `values`, losses or accuracies.

        Raises:
            InputError: there is no n-gram baseline.
        """
        means = {name: float(np.nanmean(found)) for name, found in values.items() if is_ngram(name)}
        require(len(means) > 0, "predictors", "must include an n-gram baseline", sorted(values))
        return smallest(means, means.__getitem__) if metric == "loss" else largest(means, means.__getitem__)

    @property
    def ngram(self) -> str:
        return f"order-{self.order}"

    def probs(self, dataset: ProcessDataset, batch: Batch) -> dict[str, Float64[Tensor, "batch judged symbol"]]:
        """Return next-symbol probabilities of the n-gram of each order and of the context tree."""
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


#: Defaults without tuning samples: strength 1, and for trees the values of Willems, Shtarkov and Tjalkens.
UNTUNED = TunedNgrams(tuple((1.0,) * (order + 1) for order in range(4)), 3, False, 3, 0.5, 0.5, False, 0)


def other_samples(dataset: ProcessDataset) -> ProcessDataset | None:
    """Return a dataset of other samples of the process, or of its `prior` if it has one.

    For recorded sequences, samples are windows of the training part; without a training part the result is None.
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
    """Compute next-symbol probabilities by n-grams of orders 0 to `max_order`, with prior strength 1."""
    layout = dataset.layout
    seen = batch.observations.cpu().numpy()
    counts = context_counts(seen, layout.position_in_sequence, dataset.num_symbols, max_order)[
        :, layout.predicted_observations
    ]
    probs = torch.from_numpy(ngram_laws(counts, [1.0] * (max_order + 1)))
    return {f"order-{order}": probs[:, :, order] for order in range(max_order + 1)}


def is_ngram(predictor: str) -> bool:
    name = predictor.removeprefix("trained-")
    return name == TREE or name.startswith("order-")


# Tuning


def _reach(layout: Layout, over_beginnings: bool) -> NDArray[np.int64]:
    return np.arange(layout.num_observations) if over_beginnings else layout.position_in_sequence


def _examples(
    seen: NDArray[np.int64],
    reach: NDArray[np.int64],
    num_symbols: int,
    max_order: int,
    predicted: NDArray[np.int64],
    kept: NDArray[np.bool_],
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
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
    """Tune the prior strengths of n-grams; return the strengths and the loss of each order."""
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
    return len(losses) > PATIENCE and min(losses[-PATIENCE:]) > min(losses[:-PATIENCE]) - MARGIN


def least_within_margin(losses: Sequence[float]) -> int:
    return next(number for number, loss in enumerate(losses) if loss <= min(losses) + MARGIN)


def descend(
    loss: Callable[[Sequence[float]], float], start: Sequence[float], bounds: Sequence[tuple[float, float]]
) -> tuple[list[float], float]:
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


# Evaluation


@dataclass(frozen=True, repr=False)
class NgramScores(Measures):
    """Accuracy and loss, in nats, of the n-gram baselines.

    Attributes:
        ngrams: tuned hyperparameters.
        trained_order: order chosen for n-grams fitted to the training part; None without them.
    """

    ngrams: TunedNgrams
    trained_order: int | None = None

    def __repr__(self) -> str:
        parts = []
        means = {row["predictor"]: row for row in self.table()}
        shown = [(self.ngrams.ngram, f"n-gram of {self.ngrams.ngram}"), (TREE, "context trees")]
        if self.trained_order is not None:
            ngram, where = f"order-{self.trained_order}", "fitted to the training part"
            shown = [(f"trained-{ngram}", f"n-gram of {ngram} {where}"), (f"trained-{TREE}", f"context trees {where}")]
        for name, called in shown:
            found = means[name]
            parts.append(f"{called} {found['loss']:.4f} nats, accuracy {found['accuracy']:.4f}")
        samples, columns = self.measures[TREE]["loss"].shape
        return f"NgramScores({'; '.join(parts)}; {samples} samples of {columns} positions)".replace("order-", "order ")

    def _repr_html_(self) -> str:
        return html_rows("N-gram baselines", self.table())


def evaluate_ngrams(
    ngrams: TunedNgrams,
    dataset: ProcessDataset,
    num_samples: int,
    others: Callable[[Batch], Mapping[str, Tensor]] | None = None,
) -> NgramScores:
    """Compute accuracy and loss of n-gram baselines on samples 0 to `num_samples` - 1.

    Args:
        ngrams: tuned baselines.
        dataset: samples to evaluate.
        num_samples: number of samples.
        others: function from a batch to probabilities of further predictors, by name.
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
    """Compute a predictor's gain over the best n-gram baseline, by metric.

    Args:
        found: metrics of the predictor and of the baselines.
        predictor: name of the predictor.
        kept: mask of the positions to average over.

    Returns:
        Decrease of ``loss`` in nats, and increase of ``accuracy`` (sample,).
    """
    kept = np.ones(len(found.positions), bool) if kept is None else kept
    gains = {}
    for metric, sign in (("loss", 1), ("accuracy", -1)):
        means = {name: mean_of_asked(values[metric][:, kept]) for name, values in found.measures.items()}
        gains[metric] = sign * (means[TunedNgrams.best(means, metric)] - means[predictor])
    return gains
