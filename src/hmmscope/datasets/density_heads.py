"""Density heads: functions from network outputs to a mixture density of the next vector.

For each of K mixture components, the network outputs a log weight and the parameters of a density.
"""

import math
from abc import ABC, abstractmethod

import torch

from hmmscope import registry
from hmmscope.axes import Float, Float64, Tensor
from hmmscope.errors import InputError
from hmmscope.processes.vector_process import VectorProcess
from hmmscope.schema import require

_LOG_2PI = math.log(2 * math.pi)
#: Largest default number of components.
MOST_LAWS = 16


class DensityHead(ABC):
    """A mixture density with K components.

    Attributes:
        num_mixture_components: number of mixture components K.
        num_outputs: number of network outputs, K * (1 + parameters per component).
    """

    def __init__(self, process: VectorProcess, num_laws: int) -> None:
        require(1 <= num_laws <= 1024, "target", "must have 1 to 1024 mixture components", num_laws)
        self.process, self.num_mixture_components = process, num_laws
        self.centre, self.width = process.scale
        self.num_coordinates = process.num_symbols

    @property
    @abstractmethod
    def numbers(self) -> int:
        """Number of parameters of a mixture component."""

    @property
    def num_outputs(self) -> int:
        return self.num_mixture_components * (1 + self.numbers)

    @abstractmethod
    def each(self, numbers: Tensor, vectors: Tensor) -> Tensor:
        """Return log densities of vectors under each mixture component (..., component)."""

    @abstractmethod
    def centres(self, numbers: Tensor) -> Tensor:
        """Return the means of the mixture components (..., component, coordinate)."""

    def log_density(
        self, outputs: Float[Tensor, "*batch output"], vectors: Float[Tensor, "*batch coordinate"]
    ) -> Float[Tensor, "*batch"]:
        """Compute log sum_k weight_k density_k(vector) in nats."""
        parts = outputs.unflatten(-1, (self.num_mixture_components, -1))
        return torch.logsumexp(parts[..., 0].log_softmax(-1) + self.each(parts[..., 1:], vectors), -1)

    def mean(self, outputs: Float[Tensor, "*batch output"]) -> Float[Tensor, "*batch coordinate"]:
        parts = outputs.unflatten(-1, (self.num_mixture_components, -1))
        return (parts[..., 0].softmax(-1)[..., None] * self.centres(parts[..., 1:])).sum(-2)


@registry.density("gaussian")
class GaussianHead(DensityHead):
    """Gaussian components N(mean, (AᵀA)^-1) of standardised vectors z, with a lower triangular matrix A.

    The network outputs the mean, a number output_y per coordinate y = 1 .. Y, and A's entries below the diagonal.

    log density = sum_y log A_yy - |A (z - mean)|^2 / 2 - Y/2 log 2 pi - sum_y log width_y
    z = (vector - centre) / width, where centre and width are `process.scale`
    A_yy^-2 = exp(-2 output_y) + `process.least_variances[y]`
    """

    @property
    def numbers(self) -> int:
        return self.num_coordinates * (self.num_coordinates + 3) // 2

    def each(self, numbers: Tensor, vectors: Tensor) -> Tensor:
        count, like = self.num_coordinates, numbers
        centre, width, least = (own[:count] for own in (self.centre, self.width, self.process.least_variances))
        scaled = (vectors - centre.to(vectors)) / width.to(vectors)
        away = scaled.to(like)[..., None, :] - numbers[..., :count]
        logs, below = numbers[..., count : 2 * count], numbers[..., 2 * count :]
        rows, columns = torch.tril_indices(count, count, -1, device=like.device)
        if bool(least.any()):
            logs = -torch.logaddexp(-2 * logs, least.to(like).log()) / 2
        turned = away * logs.exp()
        if len(rows):
            turned = turned.index_add(-1, rows, below * away[..., columns])
        constant = 0.5 * count * _LOG_2PI + float(width.log().sum())
        return logs.sum(-1) - 0.5 * turned.square().sum(-1) - constant

    def centres(self, numbers: Tensor) -> Tensor:
        count = self.num_coordinates
        return self.centre[:count].to(numbers) + self.width[:count].to(numbers) * numbers[..., :count]


@registry.density("poisson")
class PoissonHead(DensityHead):
    """Components of independent Poisson coordinates y with means `process.scale[0][y]` * exp(network output y)."""

    @property
    def numbers(self) -> int:
        return self.num_coordinates

    def each(self, numbers: Tensor, vectors: Tensor) -> Tensor:
        logs = numbers + self.centre.log().to(numbers)
        counts = vectors.to(numbers)[..., None, :]
        return (counts * logs - logs.exp() - torch.lgamma(counts + 1)).sum(-1)

    def centres(self, numbers: Tensor) -> Tensor:
        return self.centre.to(numbers) * numbers.exp()


@registry.density("symbols")
class SymbolsHead(DensityHead):
    """Mixture components of independent symbols: P(coordinate = v) ∝ (frequency of v in the process) * exp(output)."""

    def __init__(self, process: VectorProcess, num_laws: int) -> None:
        super().__init__(process, num_laws)
        self.shares: list[Tensor] = process.shares  # type: ignore[attr-defined]
        self.sizes = [len(share) for share in self.shares]

    @property
    def numbers(self) -> int:
        return sum(self.sizes)

    def _logs(self, numbers: Tensor) -> list[Tensor]:
        parts = zip(numbers.split(self.sizes, -1), self.shares, strict=True)
        return [(part + share.log().to(part)).log_softmax(-1) for part, share in parts]

    def each(self, numbers: Tensor, vectors: Tensor) -> Tensor:
        seen = vectors.nan_to_num().long().unbind(-1)  # missing symbols are not evaluated
        logs = [
            log.gather(-1, symbol[..., None, None].expand(*log.shape[:-1], 1))[..., 0]
            for log, symbol in zip(self._logs(numbers), seen, strict=True)
        ]
        return torch.stack(logs).sum(0)

    def centres(self, numbers: Tensor) -> Tensor:
        means = [log.exp() @ torch.arange(log.shape[-1]).to(log) for log in self._logs(numbers)]
        return torch.stack(means, -1)


@registry.density("mixed")
class MixedHead(GaussianHead):
    """Components of a Gaussian vector, then independent symbols."""

    def __init__(self, process: VectorProcess, num_laws: int) -> None:
        super().__init__(process, num_laws)
        self.symbols = SymbolsHead(process, num_laws)
        self.num_coordinates -= len(self.symbols.sizes)

    @property
    def numbers(self) -> int:
        return super().numbers + self.symbols.numbers

    def each(self, numbers: Tensor, vectors: Tensor) -> Tensor:
        own, count = super().numbers, self.num_coordinates
        symbols = self.symbols.each(numbers[..., own:], vectors[..., count:])
        return super().each(numbers[..., :own], vectors[..., :count]) + symbols

    def centres(self, numbers: Tensor) -> Tensor:
        return torch.cat([super().centres(numbers), self.symbols.centres(numbers[..., super().numbers :])], -1)


def laws_asked(target: str) -> int | None:
    """Return the number K of mixture components in the name ``density-K``; None for ``density``."""
    word, _, count = target.partition("-")
    if word != "density" or (count and not count.isdecimal()):
        raise InputError(f"target: must be density, or density-K for K mixture components, got {target!r}")
    return int(count) if count else None


def head_of(process: VectorProcess, num_laws: int | None = None) -> DensityHead:
    """Return the density head of a process; `num_laws` is by default the process's number of components, at most 16.

    Raises:
        InputError: the process has no density head.
    """
    heads = registry.entries("density")
    if process.density not in heads:
        raise InputError(f"target: {type(process).__name__} has no density target; use target='belief'")
    head: DensityHead = heads[process.density](
        process, min(process.num_mixture_components, MOST_LAWS) if num_laws is None else num_laws
    )
    return head


def joined(log_densities: Float64[Tensor, "*batch"], means: Float64[Tensor, "*batch coordinate"]) -> Tensor:
    return torch.cat([log_densities[..., None], means], -1)
