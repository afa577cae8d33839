"""HMM with Poisson emissions."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
import torch

from hmmscope import registry
from hmmscope.axes import Float64, Int64, Tensor, Vectors
from hmmscope.emissions.conjugate import GammaRates, refuse_others
from hmmscope.emissions.densities import coordinate_sums, scattered_centres
from hmmscope.emissions.emission_hmm import EmissionHMM
from hmmscope.emissions.gaussian import completed
from hmmscope.errors import InputError
from hmmscope.processes.probability_rows import numbers_of
from hmmscope.schema import require

#: Mean count above which log-probabilities use deviances, and samples a normal expansion.
LARGE = 1e6


@registry.emission("poisson")
class PoissonHMM(EmissionHMM):
    """HMM with Poisson emissions.

    observation_t[y] ~ Poisson(rates[state_t, y]), independently for each coordinate y

    Source: Zucchini, MacDonald and Langrock (2016).

    Attributes:
        rates: Mean counts (state, coordinate).

    Args:
        initial, transition: See `EmissionHMM`.
        rates: Positive mean counts (state, coordinate), or (state,) for one coordinate.
        states, title, source: See `EmissionHMM`.

    Raises:
        InputError: The shape is wrong, or a rate is out of range.
    """

    stored_name = "PoissonHMM"

    density = "poisson"
    file_format = "hmmscope-poisson-hmm"
    file_arrays = ("initial", "transition", "rates")
    file_fields = ("states", "title", "source", "reading")

    def __init__(
        self,
        initial: object,
        transition: object,
        rates: Any,
        *,
        states: Sequence[str] | None = None,
        title: str = "",
        source: str = "",
    ) -> None:
        super().__init__(initial, transition, states=states, title=title, source=source)
        flat = np.ndim(rates) == 1
        found = numbers_of("rates", rates, (self.num_states,) if flat else (self.num_states, None))
        self.rates = found[:, None] if flat else found
        require(bool((self.rates > 0).all()), "rates", "must be positive", float(self.rates.min()))
        self.num_symbols = self.num_draws = self.rates.shape[1]

    @property
    def means(self) -> Float64[Tensor, "state coordinate"]:
        return self.rates

    @property
    def variances(self) -> Float64[Tensor, "state coordinate"]:
        return self.rates

    @property
    def variance_floor_hits(self) -> Float64[Tensor, "state coordinate"]:
        return self.rates

    def num_free(self, positive: Mapping[str, Tensor]) -> dict[str, int]:
        return {"rates": self.rates.numel()}

    @classmethod
    def checked(cls, observations: Float64[Tensor, "*batch coordinate"]) -> Float64[Tensor, "*batch coordinate"]:
        bad = (observations < 0) | (observations != observations.floor()) & ~observations.isnan()
        if bool(bad.any()):
            value = float(observations[bad][0])
            raise InputError(f"observations: must be counts (nonnegative integers), got {value:g}")
        return observations

    def log_likelihoods(self, observations: Float64[Tensor, "*batch coordinate"]) -> Float64[Tensor, "*batch state"]:
        """Compute log P(o_t | state) = sum_y (o_y log rate_y - rate_y - log o_y!)."""
        rows_NY = observations.reshape(-1, self.num_symbols)
        if bool((self.rates > LARGE).any()):
            seen_NSY = _log_probs(rows_NY[:, None], self.rates).where(~rows_NY[:, None].isnan(), 0.0)
            return seen_NSY.sum(-1).view(*observations.shape[:-1], len(self.rates))
        found_NS = coordinate_sums(rows_NY, -self.rates, slopes=self.rates.log())
        found_NS -= _log_factorials(rows_NY.nan_to_num(0.0))
        return found_NS.view(*observations.shape[:-1], len(self.rates))

    def emit(
        self, states: Int64[Tensor, "*batch"], uniforms: Float64[Tensor, "*batch draw"]
    ) -> Float64[Tensor, "*batch coordinate"]:
        found = torch.empty(uniforms.shape, dtype=torch.float64)
        for state, rates in enumerate(self.rates.tolist()):
            here = states == state
            for y, rate in enumerate(rates):
                if rate > LARGE:
                    z = torch.special.ndtri(uniforms[..., y][here].clamp(1e-300, 1 - 2**-53))
                    found[..., y][here] = (rate + math.sqrt(rate) * z + (z.square() - 1) / 6 + 0.5).floor().clamp_min(0)
                    continue
                least = max(0, int(rate - 12 * math.sqrt(rate)) - 20)  # smaller counts have probability below 2^-53
                counts = torch.arange(least, int(rate + 12 * math.sqrt(rate)) + 40, dtype=torch.float64)
                cumulated = (counts * math.log(rate) - rate - torch.lgamma(counts + 1)).exp().cumsum(0)
                chosen = torch.searchsorted(cumulated, uniforms[..., y][here].contiguous(), right=True)
                found[..., y][here] = (chosen + least).double().clamp(max=float(counts[-1]))
        return found

    @classmethod
    def initialize(
        cls, observations: Vectors, num_states: int, random: np.random.Generator, *, min_variance: Tensor
    ) -> Self:
        filled = completed(observations)[0].sqrt()
        centres = scattered_centres(filled, num_states, torch.from_numpy(random.random(num_states)))
        uniform = torch.full((num_states, num_states), 1 / num_states, dtype=torch.float64)
        return cls(uniform[0], uniform, torch.maximum(centres.square(), _least(observations, min_variance)))

    def m_step(
        self, observations: Vectors, occupancy: Float64[Tensor, "row state"], min_variance: Tensor
    ) -> dict[str, Any]:
        weight = occupancy.T @ (~observations.isnan()).double()
        mean = occupancy.T @ observations.nan_to_num(0.0) / weight.where(weight > 0, 1.0)
        return {"rates": torch.maximum(mean.where(weight > 0, self.rates), _least(observations, min_variance))}

    @classmethod
    def conjugate(cls, observations: Vectors, *, prior_strength: float = 1.0, **others: Any) -> GammaRates:
        refuse_others(others, ("prior_strength",))
        return GammaRates(observations.nanmean(0), prior_strength)


def _least(observations: Tensor, min_variance: Tensor) -> Tensor:
    positive = observations.where(observations > 0, torch.inf)
    return torch.minimum(min_variance, positive.amin(0) / 10)


def _log_probs(counts: Tensor, rates: Tensor) -> Tensor:
    """Return log P(count | rate), by a formula without cancellation.

    Source: Loader (2000).
    """
    seen = counts.clamp_min(1)
    away = (rates - seen) / seen
    series = away.square() * (0.5 - away * (1 / 3 - away * (0.25 - away / 5)))
    deviance = seen * torch.where(away.abs() < 1e-4, series, away - torch.log1p(away))
    stirling = (seen + 0.5) * seen.log() - seen + math.log(2 * math.pi) / 2
    error = torch.where(seen < 16, torch.lgamma(seen + 1) - stirling, (1 - 1 / (30 * seen.square())) / (12 * seen))
    return torch.where(counts < 1, -rates, -deviance - error - (2 * math.pi * seen).log() / 2)


def _log_factorials(counts: Vectors) -> Float64[Tensor, "row 1"]:
    largest = float(counts.max()) if counts.numel() else 0.0
    if largest > counts.numel():
        logs = torch.lgamma(counts + 1)
    else:
        logs = torch.lgamma(torch.arange(1.0, largest + 2, dtype=torch.float64))[counts.long()]
    return sum(logs.unbind(1), torch.zeros(len(logs), dtype=torch.float64))[:, None]
