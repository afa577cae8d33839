"""Gaussian autoregressions: baselines for recorded sequences of vectors."""

import math
from collections.abc import Sequence

import torch

from hmmscope.axes import Float64, Int64, Tensor
from hmmscope.datasets.density_heads import joined
from hmmscope.emissions.densities import with_least
from hmmscope.processes.recorded_vectors import successive

#: Prefix of the names of predictors.
AUTOREGRESSION = "autoregression-"
#: Ridge, as a fraction of the variances of the data.
_RIDGE = 1e-9


class AutoRegression:
    """Gaussian vector autoregressions of orders 0 to `order`, fitted by least squares.

    Order k predicts the vector o_t = b + A_1 o_{t-1} + .. + A_k o_{t-k} + N(0, noise). Lower orders predict the
    first k vectors after a sequence start or a missing entry. Symbols have a Markov chain of order 0 or 1 each.

    Args:
        sequences: vectors (batch, time, coordinate), padded with NaN.
        order: largest order; orders with too few data are omitted.
        least: least allowed noise variances, as fractions of the variances of the data.
        chains: see `RecordedVectors.chains`.

    Attributes:
        num_parameters: number of parameters of each order.
    """

    def __init__(
        self,
        sequences: Float64[Tensor, "batch time coordinate"],
        order: int,
        least: Float64[Tensor, " coordinate"],
        chains: Sequence[Tensor] = (),
    ) -> None:
        self.order, self._chains, size = order, chains, sequences.shape[2] - len(chains)
        sequences, least = sequences[..., :size], least[:size]
        rows = sequences[~sequences.isnan().any(-1)]
        self.centre, self.width = rows.mean(0), rows.std(0, correction=0).clamp_min(torch.finfo(torch.float64).tiny)
        values, past, run = self._lags(sequences)
        self._maps: list[tuple[Tensor, Tensor]] = []
        for k in range(order + 1):
            used = (run >= k) & ~values.isnan().any(-1)
            x, y = torch.cat(past[: k + 1], -1)[used], values[used]
            if len(x) <= 2 * (x.shape[1] + size):
                break
            gram = x.T @ x / len(x) + _RIDGE * torch.eye(x.shape[1], dtype=x.dtype)
            weights = torch.cholesky_solve(x.T @ y / len(x), torch.linalg.cholesky(gram))
            left = y - x @ weights
            self._maps.append((weights, with_least((left.T @ left / len(x))[None], least)[0]))
        noise, sizes = size * (size + 1) // 2, [len(chain) - 1 for chain in chains]
        free = [noise + sum((n if k else 1) * (n - 1) for n in sizes) for k in range(order + 1)]
        self.num_parameters = [weights.numel() + own for (weights, _), own in zip(self._maps, free, strict=False)]

    def _lags(self, sequences: Tensor) -> tuple[Tensor, list[Tensor], Int64[Tensor, "batch time"]]:
        values = (sequences - self.centre) / self.width
        past = [
            torch.nn.functional.pad(values, (0, 0, k, 0), value=torch.nan)[:, : values.shape[1]]
            for k in range(1, self.order + 1)
        ]
        known = torch.stack([torch.ones_like(values[..., 0]), *(~one.isnan().any(-1) for one in past)]).long()
        return values, [torch.ones_like(values[..., :1]), *past], known.cumprod(0).sum(0) - 1

    def predictions(self, sequences: Float64[Tensor, "batch time coordinate"]) -> dict[str, Tensor]:
        """Return [log density, mean] of each vector given the past (last axis), for each ``autoregression-<order>``."""
        symbols = sequences[..., len(self.width) :].unbind(-1)
        pairs = [successive(own, len(chain) - 1) for own, chain in zip(symbols, self._chains, strict=True)]
        values, past, run = self._lags(sequences[..., : len(self.width)])
        mean, log, found = torch.zeros_like(values), torch.zeros_like(values[..., 0]), {}
        for k, (weights, noise) in enumerate(self._maps):
            own = torch.cat(past[: k + 1], -1).nan_to_num() @ weights
            factor = torch.linalg.cholesky(noise)
            away = torch.linalg.solve_triangular(factor, (values - own)[..., None], upper=False)[..., 0]
            constant = float((factor.diagonal() * self.width).log().sum()) + 0.5 * len(self.width) * math.log(
                2 * math.pi
            )
            mean = own.where((run >= k)[..., None], mean)
            log = (-0.5 * away.square().sum(-1) - constant).where(run >= k, log)
            logs = [chain[before if k else -1, now] for chain, (before, now) in zip(self._chains, pairs, strict=True)]
            means = torch.nn.functional.pad(self.centre + self.width * mean, (0, len(symbols)))
            found[f"{AUTOREGRESSION}{k}"] = joined(sum(logs, log), means)
        return found
