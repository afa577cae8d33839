"""Gibbs sampling of HMM parameters under Dirichlet priors."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray

from hmmscope.errors import InputError
from hmmscope.inference.chains import matching, relabelled
from hmmscope.inference.em import unheard
from hmmscope.inference.loop_inputs import PackedSequences
from hmmscope.kernels.state_draws import symbol_chain
from hmmscope.reprs import Shown
from hmmscope.schema import require
from hmmscope.seeds import numpy_generator
from hmmscope.system_info import require_memory

Array = NDArray[np.float64]

#: Fraction of the counts from which later chains draw their start, which is wider than the posterior.
SPREAD = 0.1
#: Sweeps between two calls of the callback.
PIECE = 50


class ChainsStopped(Exception):
    """Raised when the callback ends the chains early."""


@dataclass(frozen=True, kw_only=True)
class DirichletPrior:
    """Concentrations of symmetric Dirichlet priors; a concentration of 1 is the uniform prior.

    Attributes:
        initial, transition, emission: Concentration of each parameter array, in [0.01, 1000].
    """

    initial: float = 1.0
    transition: float = 1.0
    emission: float = 1.0

    def __post_init__(self) -> None:
        for name in ("initial", "transition", "emission"):
            value = getattr(self, name)
            good = isinstance(value, int | float | np.number) and bool(0.01 <= value <= 1000)
            require(good, name, "must be in [0.01, 1000]", value)


@dataclass(frozen=True, eq=False, repr=False)
class Draws(Shown):
    """Posterior samples of HMM parameters, with state labels matched to one fitted model.

    Attributes:
        arrays: Parameters by name (chain, draw, ...).
        log_likelihood: log P(all observations) (chain, draw), in nats.
        relabelled_fraction: Fraction of the samples with state labels permuted to match the fitted model.
    """

    arrays: dict[str, Array]
    log_likelihood: Array
    relabelled_fraction: float


@dataclass(frozen=True, kw_only=True)
class Chains:
    """Settings of the Gibbs sampler's Markov chains.

    Attributes:
        num_draws: Number of samples per chain.
        num_chains: Number of independent chains.
        warm_up: Number of discarded sweeps per chain.
        every: Number of sweeps per sample.
        seed: Seed in [0, 2^32).
        callback: Function called from several threads with the number of new sweeps; chains end if it returns True.
    """

    num_draws: int = 500
    num_chains: int = 4
    warm_up: int = 250
    every: int = 1
    seed: int = 0
    callback: Callable[[int], object] = field(default=unheard, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name, least in {"num_draws": 4, "num_chains": 1, "warm_up": 0, "every": 1}.items():
            require(getattr(self, name) >= least, name, f"must be at least {least}", getattr(self, name))

    def longer(self) -> "Chains":
        return replace(self, warm_up=2 * self.warm_up, every=2 * self.every)

    @property
    def num_sweeps(self) -> int:
        return self.num_chains * (self.warm_up + self.every * (self.num_draws - 1) + 1)

    def pieces(self) -> Iterator[tuple[int, int, int]]:
        """Yield (discarded sweeps, first draw, end of draws) for each part of a chain between callbacks."""
        burn, draws = self.warm_up, max(1, PIECE // self.every)
        while burn > PIECE:
            burn -= PIECE
            yield PIECE - 1, 0, 1
        for begin in range(0, self.num_draws, draws):
            yield (self.every - 1 if begin else burn), begin, min(begin + draws, self.num_draws)

    def run(self, chain: Callable[[int, np.random.Generator], Sequence[Array]]) -> list[Array]:
        """Run the chains on threads; return arrays (chain, draw, ...), with fewer draws after an early end.

        Raises:
            ChainsStopped: The chains ended before four draws.
        """

        def one(number: int) -> Sequence[Array]:
            return chain(number, numpy_generator(self.seed, "gibbs", number))

        with ThreadPoolExecutor(max(1, min(torch.get_num_threads(), self.num_chains))) as pool:
            found = list(pool.map(one, range(self.num_chains)))
        found.sort(key=lambda parts: -len(parts[0]))  # stable: whole chains keep their order
        sizes = [len(parts[0]) for parts in found]
        most = max(range(len(found)), key=lambda number: (number + 1) * sizes[number])
        if sizes[most] < 4:
            raise ChainsStopped
        return [np.stack([part[: sizes[most]] for part in parts]) for parts in zip(*found[: most + 1], strict=True)]


def symbol_draws(
    work: PackedSequences,
    start: Sequence[Array],
    reference: NDArray[np.int64],
    prior: DirichletPrior,
    chains: Chains,
    counts: Sequence[Array] | None = None,
    allowed: Mapping[str, NDArray[np.bool_]] | None = None,
    orders: NDArray[np.int64] | None = None,
) -> Draws:
    """Sample initial, transition and emission probabilities given symbol sequences.

    path ~ P(path | parameters, o);  row ~ Dirichlet(concentration + counts of the row along the path)

    The first chain starts from `start`; with `counts`, the others start from Dirichlet(concentration + counts / 10).

    Source: Scott (2002); labels: Marin, Mengersen and Robert (2005).

    Args:
        work: Packed sequences, with the symbol V for missing observations.
        start: Initial (S,), transition (S, S) and emission probabilities (S, V).
        reference: State path (N,) to which state labels are matched; an empty array keeps the labels.
        prior: Concentrations of the Dirichlet priors of rows.
        chains: Settings of the Markov chains.
        counts: Expected counts of a fit, or None.
        allowed: Masks of the entries that may be positive, by array.
        orders: Permutations of the states that relabelling may use (order, state); None for all.

    Raises:
        InputError: A sequence has probability zero under `start`, or SciPy is missing.
        ResourceError: The samples do not fit in memory.
    """
    size, num_symbols = start[2].shape
    shapes = {"initial": (size,), "transition": (size, size), "emission": (size, num_symbols)}
    drawn = chains.num_chains * chains.num_draws * size * (2 + 2 * size + num_symbols)
    require_memory(
        "posterior", 8 * (2 * drawn + min(chains.num_chains, torch.get_num_threads()) * len(work.symbols) * size)
    )
    masks = allowed or {}
    priors = tuple(np.full(shape, getattr(prior, name)) * masks.get(name, True) for name, shape in shapes.items())

    def chain(number: int, random: np.random.Generator) -> Sequence[Array]:
        begin = [np.array(part) for part in start]
        if number and counts is not None:
            begin = [dirichlet_rows(of + SPREAD * count, random) for of, count in zip(priors, counts, strict=True)]
        kept = tuple(np.empty((chains.num_draws, *shape)) for shape in (*shapes.values(), (), (size, size)))
        data = work.symbols, work.offsets, work.lengths
        for burn, first, end in chains.pieces():
            part = tuple(own[first:end] for own in kept)
            if not symbol_chain(*begin, priors, *data, random, burn, chains.every, reference, part):
                raise InputError("start: a sequence has probability zero under this model; make zero entries positive")
            if chains.callback(burn + 1 + chains.every * (end - first - 1)) is True:
                return tuple(own[: end if first or burn < PIECE - 1 else 0] for own in kept)
        return kept

    *parts, logs, agreement = chains.run(chain)
    arrays = dict(zip(shapes, parts, strict=True))
    return matched(arrays, logs, agreement if len(reference) else None, orders=orders)


def dirichlet_rows(concentrations: Array, random: np.random.Generator) -> Array:
    drawn = random.standard_gamma(concentrations)
    found: Array = drawn / drawn.sum(-1, keepdims=True)
    return found


def matched(
    arrays: dict[str, Array],
    logs: Array,
    agreement: Array | None,
    free: Sequence[str] = (),
    orders: NDArray[np.int64] | None = None,
) -> Draws:
    """Match the state labels of posterior samples to the reference model.

    Args:
        arrays: Samples by name (chain, draw, S, ...); "transition" has two state axes.
        logs: Log-likelihoods (chain, draw).
        agreement: Overlaps with the reference path, see `hmmscope.inference.chains.matching`; None keeps labels.
        free: Names of the arrays without a state axis.
        orders: See `symbol_draws`.
    """
    if agreement is None:
        return Draws(arrays, logs, 0.0)
    own = matching(agreement, orders)
    axes = {name: 0 if name in free else 1 + (name == "transition") for name in arrays}
    found = {name: relabelled(values, own, axes[name]) for name, values in arrays.items()}
    return Draws(found, logs, float((own != np.arange(own.shape[-1])).any(-1).mean()))
