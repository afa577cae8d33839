"""Scores of a model, of the Bayes-optimal predictor ("optimum") and of baselines."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from html import escape
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from hmmscope import registry
from hmmscope.analysis.activations import BATCH, target_probs
from hmmscope.analysis.autoregression import AUTOREGRESSION, AutoRegression
from hmmscope.analysis.calibration import FALSE_ALARM, Winnings, bet, miscalibrated
from hmmscope.analysis.devices import about_of, takes_device
from hmmscope.analysis.intervals import bootstrap_means, bootstrap_ratio, least_z
from hmmscope.analysis.layer_curves import Curves
from hmmscope.analysis.measures import Measures, mean_of_asked
from hmmscope.analysis.ngrams import TREE, UNTUNED, TunedNgrams, is_ngram, other_samples
from hmmscope.analysis.rehearsing import rehearsed, rising
from hmmscope.analysis.trained_ngrams import TrainedNgrams
from hmmscope.axes import Float64, Tensor
from hmmscope.datasets.process_dataset import Batch, ProcessDataset, check_dataset
from hmmscope.datasets.targets import PADDING, Labels, NextObservation, RecordedNextObservation, Target, make_target
from hmmscope.datasets.vector_targets import NextDensity
from hmmscope.errors import InputError
from hmmscope.inference.mixture_posterior import filter_known_component
from hmmscope.inference.stable_argmax import stable_argmax
from hmmscope.models.rehearsal import is_of_library, leak_in
from hmmscope.models.user_module import as_module
from hmmscope.processes.process import Process
from hmmscope.processes.recorded_sequences import JUDGING
from hmmscope.progress import shows_progress
from hmmscope.reprs import html_rows, plot_rows
from hmmscope.schema import options_of, require, require_count
from hmmscope.ties import TOLERANCE, smallest

#: Differences of mean losses that rounding explains, nats.
ROUNDING = 1e-9

MAX_ORDER = 3

#: Most probabilities of one predictor in memory at once, for recorded sequences.
_LAWS = 2**23
#: Explanation of a loss below the optimum.
_WRONG = "either the model reads later tokens, or the optimum is wrong"
METRICS = ("accuracy", "loss", "excess", "total_variation", "distance")

#: Probabilities or vectors at the evaluated positions, by predictor.
Laws = dict[str, Tensor]


def is_baseline(predictor: str) -> bool:
    return is_ngram(predictor) or predictor.startswith(AUTOREGRESSION)


@dataclass(frozen=True, repr=False)
class Score(Measures):
    """Metrics of several predictors on the same samples and positions.

    Attributes:
        measures: arrays (sample, position), ``measures[predictor][metric]``; NaN marks padding.
            For distributions: ``accuracy`` of the most likely symbol or state (the lowest index in ties);
                ``loss``, the cross-entropy, and ``excess``, KL(optimum || predictor), in nats; ``total_variation``,
                half the L1 distance from the optimum.
            For vectors: ``loss``, the mean squared distance to the observation; ``excess``, the mean squared distance
                to the optimum; ``distance``, the Euclidean distance to the optimum, for linear processes divided by
                max(1, norm of the optimum).
            For densities: ``loss``, -log density in nats; ``excess``, the loss minus the optimum's loss; ``distance``
                from the optimum's mean, in standard deviations.
            The evaluation loss of [Limits] is ``total_variation`` or ``distance``.
        demonstrations: number of earlier sequences in the sample (position,).
        positions: number of earlier observations in the sequence (position,).
        invalid: reason why the scores cannot be right (the model sees later tokens, its loss is below the optimum, or
            the optimum is miscalibrated), or None.
        no_optimum: reason why the optimum is unknown, or None.
        length: number of observations per sample.
        warnings: problems found in a user's model.
        about: settings of the measurement.
    """

    invalid: str | None
    no_optimum: str | None = None
    length: int | None = None
    warnings: tuple[str, ...] = ()
    about: Mapping[str, Any] = field(default_factory=dict)

    @property
    def loss(self) -> float:
        """Mean ``loss`` of the model (see `measures`)."""
        return float(np.nanmean(self.measures["model"]["loss"]))

    @property
    def bayes_loss(self) -> float | None:
        """Mean loss of the Bayes-optimal predictor, a lower bound on `loss` up to sampling error; None if unknown."""
        return float(np.nanmean(self.measures["optimum"]["loss"])) if "optimum" in self.measures else None

    @property
    def baseline(self) -> tuple[str, float] | None:
        """Name and mean loss of the best n-gram or autoregression baseline; None without baselines."""
        losses = {name: float(np.nanmean(of["loss"])) for name, of in self.measures.items() if is_baseline(name)}
        if not losses:
            return None
        best = smallest(losses, losses.__getitem__)
        return best, losses[best]

    @property
    def excess(self) -> tuple[float, float | None, float | None] | None:
        """Mean ``excess`` of the model (see `measures`), and its 95 % interval.

        The result is None if the optimum is unknown, and (mean, None, None) for a single sample.
        """
        if "excess" not in self.measures["model"]:
            return None
        values = self.measures["model"]["excess"]
        asked = ~np.isnan(values)
        if asked.any(1).sum() < 2:
            return float(np.nanmean(values)), None, None
        if not asked.all():  # sequences of different lengths: every observation has the same weight, as in `loss`
            own = asked.any(1)
            return bootstrap_ratio(np.nansum(values, 1)[own], asked.sum(1)[own].astype(np.float64))
        mean, low, high = bootstrap_means(mean_of_asked(values))
        return float(mean), float(low), float(high)

    def plot(self, *, ax: Any = None) -> Any:
        """Plot losses by number of demonstrations if samples have them, else by position."""
        axis = "demonstrations" if len(set(self.demonstrations.tolist())) > 1 else "positions"
        rows = [row | {axis: row["x"]} for row in self.rows(axis) if row["metric"] == "loss"]
        title = "Loss, INVALID" if self.invalid else "Loss"
        return plot_rows(rows, title, x=axis, y="value", by=("predictor",), ax=ax)

    def __repr__(self) -> str:
        samples, columns = self.measures["model"]["loss"].shape
        beside = "optimum unknown" if self.bayes_loss is None else f"optimum {self.bayes_loss:.4f}"
        invalid = f", INVALID: {self.invalid}" if self.invalid else ""
        length = "" if self.length is None else f", length {self.length}"
        told = "".join(f"; warning: {line}" for line in self.warnings)
        return f"Score(loss {self.loss:.4f}, {beside}, {samples} samples of {columns} positions{length}{invalid}{told})"

    def _repr_html_(self) -> str:
        told = "".join(f"<p>warning: {escape(line)}</p>" for line in self.warnings)
        return html_rows("Score" if self.length is None else f"Score, length {self.length}", self.table()) + told


@dataclass(frozen=True, kw_only=True)
class EvaluateOptions:
    """Options of `evaluate`.

    Attributes:
        first: Index of the first sample.
        block_length: If positive, the model reads its own prediction after every `block_length` positions.
        ngram_order: Longest context, in symbols, of baselines fitted to the training part of recorded sequences.
        ngrams: Tuned n-gram baselines (default: baselines tuned on other samples).

    Raises:
        InputError: An option is out of range.
    """

    first: int = 0
    block_length: int = 0
    ngram_order: int = MAX_ORDER
    ngrams: TunedNgrams | None = None

    def __post_init__(self) -> None:
        for name in ("first", "block_length", "ngram_order"):
            require_count(name, getattr(self, name), 0)


@shows_progress("evaluate")
@takes_device
def evaluate(
    model: nn.Module | Callable[[Tensor], Any],
    dataset: ProcessDataset,
    *,
    num_samples: int = 256,
    baselines: bool = True,
    target: str | Target = "observation",
    observers: Mapping[str, Process] | None = None,
    options: EvaluateOptions | None = None,
) -> Score:
    """Score a model, the Bayes optimum and baselines on the same samples.

    Predictors:
        ``model``;
        ``optimum``: the Bayes-optimal predictor, which knows the process or the prior over processes;
        ``known-component``: for next symbols of mixtures, the filter that knows the component;
        ``order-0``, ..., ``context-tree``: n-gram baselines with counts from the sample itself (`TunedNgrams.tuned`);
        ``trained-order-0``, ..., ``trained-context-tree``, or for vectors ``autoregression-0``, ...: baselines fitted
        to the training part of recorded sequences, if the held-out part is scored.

    Args:
        model: map from tokens (batch, time) or vectors to outputs (batch, time, output).
        dataset: samples to score.
        num_samples: number of samples; held-out recorded sequences have at most one per window.
        baselines: True adds n-gram baselines.
        target: "observation", "belief" or a `Target`.
        observers: further processes that predict next observations, by name.
        options: see `EvaluateOptions`.

    Raises:
        InputError: outputs have a wrong shape, the process has no such target, or an observer has an unequal number of
            symbols or the name of another predictor.
    """
    check_dataset(dataset)
    options = options_of(options, EvaluateOptions)
    first, block_length = options.first, options.block_length
    model = as_module(model)
    num_samples = dataset.different(num_samples)
    asked = make_target(target, dataset.process, dataset.layout) if isinstance(target, str) else target
    require(isinstance(asked, Target), "target", "must be the name of a target, or a Target", target)
    if asked is not target:  # a target from the caller already has its device
        asked.device = next((p.device for p in model.parameters()), None)
    require(
        len(asked.token_positions) > 0, "layout", "must have an observation for the model to predict", dataset.layout
    )
    believed = _checked(observers or {}, dataset.process, asked)
    warnings = () if block_length else rehearsed(model, dataset, asked)
    given = isinstance(asked, RecordedNextObservation)
    batch_size = max(1, min(BATCH, _LAWS // (asked.num_outputs * len(asked.token_positions)))) if given else BATCH
    beside = _predictors(dataset, asked, believed, baselines, options.ngram_order, options.ngrams)
    parts = []
    won: Winnings = {}
    for i in range(first, first + num_samples, batch_size):
        batch = dataset[i : min(i + batch_size, first + num_samples)]
        found = {"model": target_probs(model, batch, asked, block_length)}
        for answers in beside:
            found |= answers(batch)
        parts.append(_measure(found, asked.labels(batch), asked))
        for name, gain in _against_the_optimum(found, batch, asked).items():
            won[name] = won.get(name, 0.0) + gain
    measures = {
        name: {metric: np.concatenate([part[name][metric] for part in parts]) for metric in parts[0][name]}
        for name in parts[0]
    }
    invalid = _why_invalid(measures, won, dataset.process, asked, num_samples) or leak_in(model, warnings)
    if not is_of_library(model):
        floor = measures["optimum"]["loss"] if "optimum" in measures else None
        warnings += rising(measures["model"]["loss"], floor, asked.positions)
    length = int(dataset.layout.num_observations)
    about = about_of(model, dataset, num_samples)
    return Score(measures, asked.sequences, asked.positions, invalid, asked.no_optimum_reason, length, warnings, about)


def _predictors(
    dataset: ProcessDataset,
    asked: Target,
    believed: Mapping[str, Process],
    baselines: bool,
    ngram_order: int,
    ngrams: TunedNgrams | None,
) -> list[Callable[[Batch], Laws]]:
    found: list[Callable[[Batch], Laws]] = []
    if asked.exact:
        found.append(lambda batch: {"optimum": asked.optimum(batch)})
    if (
        baselines and dataset.process.data is not None and dataset.stream_name in JUDGING
    ):  # not on its own training part
        if isinstance(asked, NextDensity):
            train, least = dataset.process.part("train"), asked.head.process.least_variances
            regressions = AutoRegression(train.padded(), ngram_order, least, dataset.process.chains)  # type: ignore[attr-defined]
            found.append(lambda batch: _kept(regressions.predictions(batch.observations), asked))
        else:
            trained = TrainedNgrams(dataset.process, ngram_order)
            found.append(lambda batch: trained.predictions(batch.observations, asked.positions))
    if isinstance(asked, NextDensity):
        found.append(lambda batch: {name: asked.answer_of(process, batch) for name, process in believed.items()})
    if isinstance(asked, NextObservation | RecordedNextObservation):
        found.append(lambda batch: _of_known_component(dataset, batch))
        if baselines:
            found.append(partial((ngrams or _tuned(dataset)).probs, dataset))
        found.append(lambda batch: {name: asked.answer_of(process, batch) for name, process in believed.items()})
    return found


def _kept(answers: Laws, asked: NextDensity) -> Laws:
    return {name: answer[:, asked.kept] for name, answer in answers.items()}


def _of_known_component(dataset: ProcessDataset, batch: Batch) -> Laws:
    known = known_component_probs(dataset, batch)
    return {} if known is None else {"known-component": known}


def _tuned(dataset: ProcessDataset) -> TunedNgrams:
    others = other_samples(dataset)
    return UNTUNED if others is None else TunedNgrams.tuned(others)


def _why_invalid(
    measures: Mapping[str, Mapping[str, Curves]], won: Winnings, process: Process, asked: Target, num_samples: int
) -> str | None:
    floor = "optimum" if asked.exact else "known-component"
    if floor not in measures:
        return None
    part = math.log(1.0 if process.prior is None else 1 / process.prior.weight)
    invalid = miscalibrated(won, num_samples * part)
    in_order = isinstance(asked, NextObservation | RecordedNextObservation)
    invalid = invalid or _invalid(measures["model"]["loss"], measures[floor]["loss"], floor, part, in_order)
    if invalid is not None and isinstance(asked, RecordedNextObservation):
        return f"the sequences do not come from the process given with them: {invalid}"
    return invalid


def _checked(observers: Mapping[str, Process], process: Process, asked: Target) -> dict[str, Process]:
    taken = {"model", "optimum", "known-component"}
    for name, believed in observers.items():
        if not isinstance(asked, NextObservation | RecordedNextObservation | NextDensity):
            raise InputError(
                f"observers: {name!r} predicts the next observation; the target must be observation or density"
            )
        free = name not in taken and not is_baseline(name)
        require(free, "observers", "must not have the name of another predictor", name)
        rule = f"must have {process.num_symbols} symbols"
        require(believed.num_symbols == process.num_symbols, f"observers.{name}", rule, believed.num_symbols)
    return dict(observers)


def known_component_probs(dataset: ProcessDataset, batch: Batch) -> Float64[Tensor, "batch judged symbol"] | None:
    """Compute the next-symbol probabilities of the filter that knows the mixture component.

    The result is None without components, or if a header (HMM parameters before the sequence) states them.
    """
    process, components = dataset.process, batch.components
    pool = None if components is None or dataset.layout.header_format else process.select_components(components)
    if pool is None:
        return None
    reset_mask = torch.from_numpy(dataset.layout.reset_mask)
    told = filter_known_component(pool[0], batch.observations, pool[1], reset_mask=reset_mask)
    return told.predicted_observation[:, dataset.layout.predicted_observations]


def _measure(answers: dict[str, torch.Tensor], labels: Labels, asked: Target) -> dict[str, dict[str, np.ndarray]]:
    optimum = answers.get("optimum")
    padding = torch.zeros((), dtype=torch.bool) if labels.is_floating_point() else labels == PADDING
    labels = labels.double() if labels.is_floating_point() else labels
    measured = {}
    for name, answer in answers.items():
        metrics = {"loss": asked.loss_terms(answer, labels)}
        if asked.kind == "law":
            metrics["accuracy"] = _right(answer, optimum, labels)
        if optimum is not None and name not in ("optimum", "known-component"):
            distances = _against(answer, optimum, asked)
            metrics |= {metric: values.masked_fill(padding, torch.nan) for metric, values in distances.items()}
        measured[name] = {metric: metrics[metric].numpy() for metric in METRICS if metric in metrics}
    return measured


def _right(probs: torch.Tensor, optimum: torch.Tensor | None, labels: Labels) -> torch.Tensor:
    chosen = stable_argmax(probs)
    if not labels.is_floating_point():
        return (chosen == labels).double().where(labels != PADDING, torch.nan)
    assert optimum is not None
    return (optimum.gather(2, chosen[..., None])[..., 0] >= (1 - TOLERANCE) * optimum.amax(-1)).double()


def _against(answer: torch.Tensor, optimum: torch.Tensor, asked: Target) -> dict[str, torch.Tensor]:
    if asked.kind == "law":
        entropy = torch.special.entr(optimum).sum(-1)
        cross_entropy = -(optimum * answer.log().where(optimum > 0, 0.0)).sum(-1)
        return {"excess": cross_entropy - entropy, "total_variation": asked.distance_terms(answer, optimum)}
    above = (optimum - answer)[..., 0] if asked.kind == "density" else (answer - optimum).square().mean(-1)
    return {"excess": above, "distance": asked.distance_terms(answer, optimum)}


def _against_the_optimum(found: dict[str, torch.Tensor], batch: Batch, asked: Target) -> Winnings:
    happened = asked.happened(batch)
    if happened is None or "optimum" not in found:
        return {}
    counted = {
        f"the n-gram baseline {name}": probs
        for name, probs in found.items()
        if name == TREE or name.startswith("order-")
    }
    in_order = isinstance(asked, NextObservation | RecordedNextObservation)
    return bet(found["optimum"], happened, asked.positions, counted, in_order=in_order)


def _invalid(
    loss: NDArray[np.float64],
    floor: NDArray[np.float64],
    of_whom: str = "optimum",
    part: float = 0.0,
    in_order: bool = True,
) -> str | None:
    if np.isinf(floor).any():
        return "the loss of the Bayes optimum is not finite, so the optimum is wrong"
    whose = {
        "optimum": "the loss of the Bayes optimum",
        "known-component": "the loss of the filter that knows the HMM",
    }[of_whom]
    if in_order:
        won = float(np.nansum(floor - loss)) - part * len(loss)
        if won > -math.log(FALSE_ALARM):
            rare = f"which happens to a valid model at most once in {1 / FALSE_ALARM:,.0f} evaluations"
            return f"the model's loss is below {whose} by {won:.4g} nats in total, {rare}; {_WRONG}"
        return None
    difference = mean_of_asked(loss - floor)
    difference = difference[~np.isnan(difference)]
    if not np.isfinite(difference).all():
        return None  # an infinite loss is above any optimum
    error = difference.std(ddof=1) / np.sqrt(len(difference)) if len(difference) > 1 else np.inf
    below = -difference.mean() - part / loss.shape[1]
    if below > max(least_z(len(difference), FALSE_ALARM) * error, ROUNDING):
        size = f"{below / error:.1f} standard errors" if error > 0 else f"{below:.3g} nats in every sample"
        return f"the model's loss is below {whose} by {size}; {_WRONG}"
    return None


@registry.instrument("curves", x="x", by=("predictor",), only=("axis", "metric"))
def curves(
    model: nn.Module,
    dataset: ProcessDataset,
    *,
    num_samples: int = 256,
    first: int = 0,
    target: str = "observation",
    block_length: int = 0,
) -> list[dict]:
    """Tabulate the metrics of `evaluate` by position and by number of demonstrations.

    Args:
        model: see `evaluate`.
        dataset: samples to score.
        num_samples: number of samples.
        target: "observation" or "belief".
        first, block_length: see `EvaluateOptions`.

    Returns:
        Rows of `Score.rows`.
    """
    score = evaluate(
        model,
        dataset,
        num_samples=num_samples,
        options=EvaluateOptions(first=first, block_length=block_length),
        target=target,
    )
    return score.rows("demonstrations") + score.rows("positions")
