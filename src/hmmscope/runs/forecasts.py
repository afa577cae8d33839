"""Forecasts with intervals, from posterior draws of the parameters."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from hmmscope.axes import Float64, Tensor
from hmmscope.inference.continuations import MAX_STEPS, forecast
from hmmscope.processes.capabilities import FORECASTS
from hmmscope.processes.observations import as_vectors, whole_batch
from hmmscope.reprs import Shown, Tabular
from hmmscope.schema import require, require_count
from hmmscope.seeds import numpy_generator

#: Random values drawn for each model and step, and least number for each step from all models together.
DRAWN, LEAST_DRAWN = 50, 4000


@dataclass(frozen=True, repr=False)
class Forecasts(Shown, Tabular):
    """Marginal distributions of the observations at the next steps.

    For symbols, `mean` and [low, high] are the posterior mean and 95 % interval of each symbol's probability; channels
    have outcomes "channel=symbol". For numbers, they are those of the observation under the posterior predictive
    distribution.

    Attributes:
        mean, low, high: See above, of shape (step, symbol) or (step, coordinate).
        names: Names of the symbols or coordinates, or empty.
        index: Time stamp of each step, or None.
    """

    mean: Float64[Tensor, "step outcome"]
    low: Float64[Tensor, "step outcome"]
    high: Float64[Tensor, "step outcome"]
    names: tuple[str, ...] = field(default=(), repr=False)
    index: Any = field(default=None, repr=False)

    def table(self) -> list[dict[str, Any]]:
        return [
            ({"step": step + 1} if self.index is None else {"step": step + 1, "time": self.index[step]})
            | {"outcome": self.names[outcome] if self.names else outcome}
            | {name: float(getattr(self, name)[step, outcome]) for name in ("mean", "low", "high")}
            for step, outcome in np.ndindex(*self.mean.shape)
        ]


def forecast_with(models: Sequence[Any], observed: Any, steps: int, seed: int = 0) -> Forecasts:
    """Average the forecasts of equally likely models.

    Args:
        models: HMMs drawn from the posterior.
        observed: One sequence: symbols (time,) or names, or numbers (time, coordinate); NaN or `MISSING` if missing.
        steps: Number of steps, 1 to 2^20.

    Raises:
        InputError: `steps` out of range, observations with zero probability, or a wrong shape.
    """
    require_count("steps", steps, most=MAX_STEPS)
    of_symbols = FORECASTS in models[0].uses_hmm_inference
    if of_symbols:
        past = whole_batch(observed, models[0].alphabet)
    else:
        past = as_vectors(observed, models[0].num_symbols, read_options=models[0].read_options)[0]
    require(len(past) == 1, "observed", "must be one sequence", tuple(past.shape))
    ends = torch.tensor([0.025, 0.975], dtype=torch.float64)
    if of_symbols:
        probs = torch.stack([forecast(model, past, steps).observations[0] for model in models])
        low, high = probs.quantile(ends, dim=0)
        return Forecasts(probs.mean(0), low, high)
    means, drawn = [], []
    numbers = models[0].num_symbols - len(models[0].sizes)
    count = max(DRAWN, LEAST_DRAWN // len(models))
    for number, model in enumerate(models):
        random = numpy_generator(seed, "forecast", number)
        belief, symbols = model.observe(past).belief[0, -1], [model.emissions] if len(model.sizes) else []
        table = torch.cat([model.means[:, :numbers], *symbols], 1)
        for _ in range(steps):
            belief = belief @ model.transition
            means.append(belief @ table)
            states = torch.from_numpy(random.choice(len(belief), count, p=(belief / belief.sum()).numpy()))
            drawn.append(model.emit(states, torch.from_numpy(random.random((count, model.num_draws))))[:, :numbers])
    found = torch.stack(means).unflatten(0, (len(models), steps))
    values = torch.stack(drawn).unflatten(0, found.shape[:2]).transpose(1, 2).flatten(0, 1)
    parts = [part.quantile(ends, dim=0) for part in (values, found[..., numbers:]) if part.numel()]
    low, high = torch.cat(parts, -1)
    return Forecasts(found.mean(0), low, high)
