"""Strategies: a model's distances from simple predictors, and training steps at which the closest predictor changes."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

from hmmscope import registry
from hmmscope.analysis.activations import BATCH, model_probs
from hmmscope.analysis.belief_interventions import DISTANCES
from hmmscope.analysis.intervals import mean_row
from hmmscope.analysis.measures import means_of_asked
from hmmscope.analysis.ngrams import plain_ngrams
from hmmscope.axes import Float64, Tensor
from hmmscope.datasets.process_dataset import Batch, ProcessDataset
from hmmscope.datasets.targets import make_target
from hmmscope.errors import InputError
from hmmscope.inference.memory import memory_beliefs, with_prior
from hmmscope.inference.mixture_posterior import predicted_before
from hmmscope.processes.capabilities import STATES
from hmmscope.processes.params import symbol_probs
from hmmscope.schema import require, require_count


@registry.instrument("strategies", x="predictor", only=("metric",))
def strategies(model: nn.Module, dataset: ProcessDataset, *, num_samples: int = 256, max_order: int = 2) -> list[dict]:
    """Compute how far a model's predictions are from simple predictors and the optimum.

    The predictors are ``uniform``; ``window-k``, exact predictions from the last k observations, for single sequences
    of a known HMM; ``order-k``, in-context n-grams, for other datasets; and ``optimum``, if known. The value is
    KL(predictor || model) in nats or the total variation, by `metric`; infinite values are omitted.

    Args:
        model: map from tokens to logits, see `evaluate`.
        dataset: samples.
        num_samples: number of samples; fewer if recorded held-out sequences have fewer different samples.
        max_order: largest k of ``window-k`` and ``order-k``.

    Returns:
        Rows (predictor, metric, value, low, high, samples); the 95 % interval is over samples.

    Raises:
        InputError: the stationary distribution is not unique, or observations are vectors.

    Source: Edelman et al. (2024), for in-context Markov chains.
    """
    require_count("num_samples", num_samples, 2)
    require_count("max_order", max_order, 0)
    if dataset.process.real_valued:
        raise InputError(
            "dataset: must have symbols, got a real-valued process; use hmmscope.evaluate for real-valued processes"
        )
    num_samples = dataset.different(num_samples)
    parts: dict[tuple[str, str], list[Tensor]] = {}
    target = make_target("observation", dataset.process, dataset.layout)
    for begin in range(0, num_samples, BATCH):
        batch = dataset[begin : min(begin + BATCH, num_samples)]
        found, asked = _law(model, dataset, batch), target.evaluated(batch)
        for name, probs in _predictors(dataset, batch, max_order).items():
            for metric, distance in DISTANCES.items():
                parts.setdefault((name, metric), []).append(means_of_asked(distance(probs, found), asked))
    means = {key: torch.cat(values) for key, values in parts.items()}
    return [
        {"predictor": name, "metric": metric} | mean_row(values.numpy())
        for (name, metric), values in means.items()
        if values.isfinite().all()
    ]


def _law(model: nn.Module, dataset: ProcessDataset, batch: Batch) -> Float64[Tensor, "batch judged symbol"]:
    columns = torch.from_numpy(dataset.layout.token_positions[dataset.layout.predicted_observations] - 1)
    return model_probs(model, batch.tokens, dataset.num_symbols, columns)


def _predictors(
    dataset: ProcessDataset, batch: Batch, max_order: int
) -> dict[str, Float64[Tensor, "batch judged symbol"]]:
    process, judged = dataset.process, dataset.layout.predicted_observations
    target = make_target("observation", process, dataset.layout)
    shape = (len(batch.tokens), len(judged), dataset.num_symbols)
    found = {"uniform": torch.full(shape, 1 / dataset.num_symbols, dtype=torch.float64)}
    if STATES in process.uses_hmm_inference and dataset.layout.reset_mask.sum() == 1:
        params = with_prior(process)
        found["window-0"] = (params.initial_MS @ symbol_probs(params)[0]).expand(shape)
        for order in range(1, max_order + 1):
            known = memory_beliefs(process, batch.observations, order)
            found[f"window-{order}"] = predicted_before(known.first_observation, known.next_observation)[:, judged]
    else:
        found |= plain_ngrams(dataset, batch, max_order)
    return found | ({"optimum": target.optimum(batch)} if target.exact else {})


# During training


class LevelCrossing(NamedTuple):
    """The step at which a training curve passes a level.

    Attributes:
        log2_step: base-2 logarithm of the step.
        error: standard error of `log2_step`.
    """

    log2_step: float
    error: float

    @property
    def step(self) -> float:
        return 2.0**self.log2_step

    @classmethod
    def of(
        cls, steps: Sequence[int], values: Sequence[float], errors: Sequence[float] | None = None, *, level: float = 0.0
    ) -> "LevelCrossing | None":
        """Return the step (interpolated in log step) from which a curve stays above a level, or None.

        Step 0 counts as 0.5 in the logarithm. A curve that is above the level from the start gives None.

        Args:
            steps: training steps, ascending.
            values: value of the curve at each step.
            errors: standard error of each value.
        """
        places = [math.log2(max(step, 0.5)) for step in steps]
        above = [value > level for value in values]
        if above[0] or not above[-1]:
            return None
        last = max(i for i, flag in enumerate(above) if not flag)
        rise = values[last + 1] - values[last]
        share, width = (level - values[last]) / rise, places[last + 1] - places[last]
        error = 0.0
        if errors is not None:
            error = width / rise * math.hypot((1 - share) * errors[last], share * errors[last + 1])
        return cls(places[last] + share * width, error)

    @classmethod
    def between(
        cls, rows: Iterable[Mapping[str, Any]], before: str, after: str, *, metric: str = "kl"
    ) -> "LevelCrossing | None":
        """Return the step from which a model stays closer to the predictor `after` than to `before`.

        Args:
            rows: rows of `strategies` with an added column ``step``.
            before, after: names of two predictors.
            metric: metric of the distance.
        """
        found = {(row["predictor"], row["step"]): row for row in rows if row["metric"] == metric}
        steps = sorted(step for name, step in found if name == before and (after, step) in found)
        require(len(steps) >= 2, "rows", f"must contain at least two training steps with {before} and {after}", steps)
        pairs = [(found[before, step], found[after, step]) for step in steps]
        gains = [left["value"] - right["value"] for left, right in pairs]
        errors = [math.hypot(*((row["high"] - row["low"]) / 3.92 for row in pair)) for pair in pairs]
        return cls.of(steps, gains, errors)
