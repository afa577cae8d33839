"""What a model predicts beside the optimum and the baselines, by position and by number of demonstrations."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from hmmscope import registry
from hmmscope.analysis.activations import BATCH, inference_mode, model_logits
from hmmscope.analysis.intervals import bootstrap_means
from hmmscope.corpora.corpus import Batch, Corpus
from hmmscope.inference.mixture import filter_known_component
from hmmscope.inference.optimal import optimal_predictions
from hmmscope.kernels.ngram import ngram_predictions
from hmmscope.processes.mixture import Mixture
from hmmscope.schema import require

#: A model whose loss is below the optimum by more than this many standard errors is leaking, or the optimum is wrong.
INVALID_Z = -5.0

#: Differences of mean losses that rounding explains, nats.
ROUNDING = 1e-9

MAX_ORDER = 3
METRICS = ("accuracy", "loss", "excess", "total_variation")


@dataclass(frozen=True)
class Score:
    """Per-observation measures of several predictors on the same samples.

    Attributes:
        measures: by predictor, then by metric, (sample, predicted observation).
            ``accuracy``: 1 where the likeliest symbol (lowest among equals) is the one observed;
            ``loss``: -log probability of the observed symbol, nats;
            ``excess``: KL(optimum || predictor), nats; ``total_variation``: half the L1 distance to the optimum.
        demonstrations: number of earlier sequences in the sample, of each predicted observation (predicted,).
        positions: position within its sequence (predicted,).
        invalid: why the scores cannot be right, or None.
    """

    measures: dict[str, dict[str, NDArray[np.float64]]]
    demonstrations: NDArray[np.int64]
    positions: NDArray[np.int64]
    invalid: str | None

    @property
    def loss(self) -> float:
        """Mean loss of the model, nats per observation."""
        return float(self.measures["model"]["loss"].mean())

    @property
    def bayes_loss(self) -> float:
        """Mean loss of the optimum on the same samples: the floor of `loss`."""
        return float(self.measures["optimum"]["loss"].mean())

    @property
    def excess(self) -> tuple[float, float, float]:
        """Mean KL divergence of the model from the optimum, nats per observation, with its 95 % interval."""
        mean, low, high = bootstrap_means(self.measures["model"]["excess"].mean(1))
        return float(mean), float(low), float(high)

    def rows(self, axis: str, kept: NDArray[np.bool_] | None = None) -> list[dict]:
        """A table (axis, x, predictor, metric, value, low, high, samples) along "demonstrations" or "positions".

        Intervals are 95 % bootstrap intervals over samples; `kept` selects predicted observations (all by default).
        """
        kept = np.ones(len(self.positions), bool) if kept is None else kept
        along = (self.demonstrations if axis == "demonstrations" else self.positions)[kept]
        xs, column = np.unique(along, return_inverse=True)
        average = np.zeros((len(along), len(xs)))
        average[np.arange(len(along)), column] = 1 / np.bincount(column)[column]
        rows = []
        for predictor, metrics in self.measures.items():
            for metric, values in metrics.items():
                mean, low, high = bootstrap_means(values[:, kept] @ average)
                rows += [
                    {
                        "axis": axis,
                        "x": int(x),
                        "predictor": predictor,
                        "metric": metric,
                        "value": float(mean[i]),
                        "low": float(low[i]),
                        "high": float(high[i]),
                        "samples": len(values),
                    }
                    for i, x in enumerate(xs)
                ]
        return rows


def evaluate(
    model: nn.Module, corpus: Corpus, *, num_samples: int = 256, first: int = 0, baselines: bool = True
) -> Score:
    """Score any module on samples first .. first + num_samples - 1 of a corpus, beside the exact optimum.

    Predictors: ``model``; ``optimum`` (the Bayes predictor that knows the process); ``known-component`` (for mixtures,
    the filter that is told the component: a ceiling); with `baselines` also ``order-0`` (the frequencies so far: its
    likeliest symbol is the most frequent one) to ``order-3`` in-context n-grams with back-off.

    Args:
        model: tokens (batch, time) to logits (batch, time, symbols).
        corpus: of a process with an exact filter.
        num_samples: how many.
        first: number of the first sample.
        baselines: whether to add the n-grams.

    Raises:
        InputError: the model's output has the wrong shape, or the process has no exact filter.
    """
    require(num_samples >= 1, "num_samples", "must be at least 1", num_samples)
    require(len(corpus.layout.predicted) > 0, "layout", "must have an observation to predict", corpus.layout)
    batches = [corpus[i : min(i + BATCH, first + num_samples)] for i in range(first, first + num_samples, BATCH)]
    parts = [_measure(_predictions(model, corpus, batch, baselines), batch, corpus) for batch in batches]
    measures = {
        name: {metric: np.concatenate([part[name][metric] for part in parts]) for metric in parts[0][name]}
        for name in parts[0]
    }
    layout = corpus.layout
    return Score(
        measures,
        layout.sequence_index[layout.predicted],
        layout.position_in_sequence[layout.predicted],
        _invalid(measures["model"]["loss"], measures["optimum"]["loss"]),
    )


def _predictions(model: nn.Module, corpus: Corpus, batch: Batch, baselines: bool) -> dict[str, torch.Tensor]:
    """P(observation) by each predictor, (batch, predicted, symbol), float64."""
    layout, kept = corpus.layout, corpus.layout.predicted
    starts = torch.from_numpy(layout.starts)
    with inference_mode(model) as device:
        columns = layout.columns[kept] - 1
        logits = model_logits(model, batch.tokens[:, : int(columns[-1]) + 1].to(device), corpus.num_symbols)
        found = {"model": logits[:, columns].cpu().double().softmax(-1)}
    found["optimum"] = optimal_predictions(corpus.process, batch.observations, starts=starts).predicted_observation
    if isinstance(corpus.process, Mixture) and batch.components is not None:
        known = filter_known_component(corpus.process, batch.observations, batch.components, starts=starts)
        found["known-component"] = known.predicted_observation
    if baselines:
        orders = ngram_predictions(
            batch.observations.numpy(), layout.position_in_sequence, corpus.num_symbols, MAX_ORDER, 1.0
        )
        for order in range(MAX_ORDER + 1):
            found[f"order-{order}"] = torch.from_numpy(orders[:, :, order])
    return {name: p if name == "model" else p[:, kept] for name, p in found.items()}


def _measure(predictions: dict[str, torch.Tensor], batch: Batch, corpus: Corpus) -> dict[str, dict[str, np.ndarray]]:
    observed = batch.observations[:, corpus.layout.predicted]
    optimum = predictions["optimum"]
    entropy = torch.special.entr(optimum).sum(-1)
    measured = {}
    for name, p in predictions.items():
        log_p = p.log()
        metrics = {
            "accuracy": (p.argmax(-1) == observed).double(),
            "loss": -log_p.gather(2, observed[..., None])[..., 0],
        }
        if name not in ("optimum", "known-component"):
            metrics["excess"] = -(optimum * log_p.where(optimum > 0, 0.0)).sum(-1) - entropy
            metrics["total_variation"] = 0.5 * (p - optimum).abs().sum(-1)
        measured[name] = {metric: values.numpy() for metric, values in metrics.items()}
    return measured


def _invalid(loss: NDArray[np.float64], floor: NDArray[np.float64]) -> str | None:
    difference = (loss - floor).mean(1)
    error = difference.std(ddof=1) / np.sqrt(len(difference)) if len(difference) > 1 else np.inf
    below = -difference.mean()
    if below > max(-INVALID_Z * error, ROUNDING):
        size = f"{below / error:.1f} standard errors" if error > 0 else f"{below:.3g} nats in every sample"
        return f"the model's loss is below the Bayes optimum by {size}: a leak, or a wrong optimum"
    return None


@registry.instrument("curves")
def curves(model: nn.Module, corpus: Corpus, *, num_samples: int = 256, first: int = 0) -> list[dict]:
    """Accuracy, loss and excess of a model beside the optimum and the baselines: `evaluate` as a table.

    Args:
        model: tokens (batch, time) to logits (batch, time, symbols).
        corpus: of a process with an exact filter.
        num_samples: how many.
        first: number of the first sample.

    Returns:
        Rows of `Score.rows`, along "demonstrations" and along "positions".
    """
    score = evaluate(model, corpus, num_samples=num_samples, first=first)
    return score.rows("demonstrations") + score.rows("positions")
