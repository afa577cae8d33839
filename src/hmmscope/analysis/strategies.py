"""Which predictor a model behaves like, and at which step of training it leaves one for another.

In training models pass through predictors that use more and more of what they read: the law of single symbols, that of
pairs, then the exact answer. Here the distance to each of them is measured, at one step or at all that were kept.
"""

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


@registry.instrument("strategies")
def strategies(model: nn.Module, dataset: ProcessDataset, *, num_samples: int = 256, max_order: int = 2) -> list[dict]:
    """How far the predictions of a model are from those of simple predictors and of the optimum.

    Predictors: ``uniform``; of one sequence of a known HMM ``window-k``, the exact law of the next observation given the
    last k (k = 0: the stationary law of an observation); else ``order-k``, in-context n-grams with back-off; and
    ``optimum``, where there is one. A predictor gives D(predictor, model), averaged over judged columns: KL divergence in
    nats, and total variation. A model that says zero where a predictor does not has no rows of the KL divergence.

    Args:
        model: tokens (batch, time) to logits (batch, time, symbol).
        dataset: samples.
        num_samples: how many; of given sequences at most as many as there are different windows.
        max_order: largest k.

    Returns:
        Rows (predictor, metric, value, low, high, samples), intervals 95 % over samples.

    Raises:
        InputError: an HMM without a unique stationary law; a process of numbers, which no predictor counts.

    Source: Edelman et al. (2024), "The evolution of statistical induction heads", for in-context Markov chains.
    """
    require_count("num_samples", num_samples, 2)
    require_count("max_order", max_order, 0)
    if dataset.process.real_valued:
        raise InputError(
            "dataset: predictors count symbols, and this one has numbers; hmmscope.evaluate has its optimum"
        )
    num_samples = dataset.different(num_samples)
    parts: dict[tuple[str, str], list[Tensor]] = {}
    target = make_target("observation", dataset.process, dataset.layout)
    for begin in range(0, num_samples, BATCH):
        batch = dataset[begin : min(begin + BATCH, num_samples)]
        found, asked = _law(model, dataset, batch), target.evaluated(batch)
        for name, law in _predictors(dataset, batch, max_order).items():
            for metric, distance in DISTANCES.items():
                parts.setdefault((name, metric), []).append(means_of_asked(distance(law, found), asked))
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
        law = with_prior(process)
        found["window-0"] = (law.initial_MS @ symbol_probs(law)[0]).expand(shape)
        for order in range(1, max_order + 1):
            known = memory_beliefs(process, batch.observations, order)
            found[f"window-{order}"] = predicted_before(known.first_observation, known.next_observation)[:, judged]
    else:
        found |= plain_ngrams(dataset, batch, max_order)
    return found | ({"optimum": target.optimum(batch)} if target.exact else {})


# ---------------------------------------------------------------------------------------------------------------------
# Over training


class LevelCrossing(NamedTuple):
    """Where a curve over training passes a level.

    Attributes:
        log2_step: base-2 logarithm of the step.
        error: standard error that the errors of the two values around it give it.
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
        """Where a curve rises above a level and stays there, linear in the logarithm of the step; None where it does not.

        Step 0 stands half a step before step 1. None also where the curve is above the level from the beginning.

        Args:
            steps: ascending.
            values: one a step.
            errors: their standard errors.
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
        """The step from which on a model stays nearer to one predictor than to another.

        Args:
            rows: of `strategies` with a column ``step``, of one model.
            before, after: names of predictors.
            metric: of the distance.
        """
        found = {(row["predictor"], row["step"]): row for row in rows if row["metric"] == metric}
        steps = sorted(step for name, step in found if name == before and (after, step) in found)
        require(len(steps) >= 2, "rows", f"must have two steps with {before} and {after}", steps)
        pairs = [(found[before, step], found[after, step]) for step in steps]
        gains = [left["value"] - right["value"] for left, right in pairs]
        errors = [math.hypot(*((row["high"] - row["low"]) / 3.92 for row in pair)) for pair in pairs]
        return cls.of(steps, gains, errors)
