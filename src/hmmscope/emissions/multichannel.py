"""HMM with one symbol per channel."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

import numpy as np
import torch

from hmmscope import registry
from hmmscope.axes import Float64, Int64, Tensor
from hmmscope.emissions.conjugate import DirichletRows, refuse_others
from hmmscope.emissions.emission_hmm import EmissionHMM
from hmmscope.errors import InputError
from hmmscope.inference.free_parameters import SMALLEST, num_free
from hmmscope.processes.input_output import InputOutputHMM
from hmmscope.processes.policies import policy_rows
from hmmscope.processes.probability_rows import laws_of, numbers_of
from hmmscope.schema import is_count, require, shown


@registry.emission("channels")
class MultichannelHMM(EmissionHMM):
    """HMM with one symbol per channel.

    Channel c emits a symbol in 0..sizes[c] - 1; channels are independent given the state. NaN marks a missing symbol.

    Attributes:
        emissions: Emission matrix of each channel, `[i, v]` = P(symbol v given state i).
        sizes: Number of symbols of each channel.

    Args:
        initial, transition: See `EmissionHMM`.
        emissions: Emission matrix (state, symbol) of each channel, or these matrices joined along the symbol axis.
        sizes: See above; needed if `emissions` is one matrix.
        states, title, source: See `EmissionHMM`.

    Raises:
        InputError: A shape is wrong, or a row is not a distribution.
    """

    stored_name = "ChannelsHMM"

    density = "symbols"
    probability_arrays = ("initial", "transition", "emissions")
    fit_options: tuple[str, ...] = ("sizes",)
    file_format = "hmmscope-channels-hmm"
    file_arrays: ClassVar[tuple[str, ...]] = ("initial", "transition", "emissions", "sizes")
    file_fields: ClassVar[tuple[str, ...]] = ("states", "title", "source", "reading")

    def __init__(
        self,
        initial: object,
        transition: object,
        emissions: Any,
        sizes: Any = None,
        *,
        states: Sequence[str] | None = None,
        title: str = "",
        source: str = "",
    ) -> None:
        super().__init__(initial, transition, states=states, title=title, source=source)
        if sizes is not None:
            counts = [int(size) for size in numbers_of("sizes", sizes, (None,)).tolist()]
            together = numbers_of("emissions", emissions, (self.num_states, None))
            require(
                min(counts) >= 1 and sum(counts) == together.shape[1],
                "sizes",
                f"must sum to {together.shape[1]}",
                sizes,
            )
            emissions = together.split(counts, 1)
        elif not isinstance(emissions, list | tuple) or not len(emissions):
            raise InputError(f"emissions: must be a list of matrices, one for each channel, got {shown(emissions)}")
        self.channels = [
            laws_of(f"emissions[{channel}]", matrix, (self.num_states, None))
            for channel, matrix in enumerate(emissions)
        ]
        self.emissions = torch.cat(self.channels, 1)
        self.sizes = torch.tensor([channel.shape[1] for channel in self.channels])
        self.num_symbols = self.num_draws = len(self.channels)

    @property
    def alphabets(self) -> Mapping[str, Sequence[str]]:
        """Names of the symbols of each channel."""
        known = self.read_options.alphabets if self.read_options else None
        return known or {f"channel {c}": tuple(map(str, range(size))) for c, size in enumerate(self.sizes.tolist())}

    @classmethod
    def of_inputs(cls, hmm: InputOutputHMM, policy: Any, *, first: Any = None, one_hot: bool = False) -> Self:
        """Return the process of vectors (input, observation) under a policy, see `policy_rows`.

        The result's states are pairs (input, state), or triples (input, state, observation) if the policy depends on
        the observation or `one_hot` is true. With `one_hot` the vectors concatenate the one-hot input and
        observation.
        """
        count, size, num_seen = hmm.emission.shape
        rows_UVU, first_U = policy_rows(policy, first, count, num_seen)
        held = num_seen if np.ndim(policy) == 3 or one_hot else 1
        emits = hmm.emission if held > 1 else torch.ones(count, size, 1, dtype=torch.float64)
        initial = torch.einsum("x,t,xth->xth", first_U, hmm.initial, emits).flatten()
        moves = torch.einsum("ugx,xst,xth->usgxth", rows_UVU[:, :held], hmm.transition, emits)
        inputs = torch.eye(count, dtype=torch.float64).repeat_interleave(size * held, 0)
        seen = hmm.emission.flatten(0, 1) if held == 1 else torch.eye(held).double().repeat(count * size, 1)
        channels = [inputs, seen]
        if one_hot:
            channels = [torch.stack([1 - own, own], 1) for own in torch.cat(channels, 1).T]
        return cls(initial, moves.reshape(len(initial), -1), channels, title=hmm.title)

    @property
    def means(self) -> Float64[Tensor, "state coordinate"]:
        """E[symbol number | state] of each channel."""
        return self._moments(1)

    def _moments(self, power: int) -> Float64[Tensor, "state channel"]:
        codes = [torch.arange(probs.shape[1], dtype=torch.float64) ** power for probs in self.channels]
        return torch.stack([probs @ own for probs, own in zip(self.channels, codes, strict=True)], 1)

    @property
    def variances(self) -> Float64[Tensor, "state coordinate"]:
        return (self._moments(2) - self._moments(1).square()).clamp_min(1e-12)

    @property
    def shares(self) -> list[Float64[Tensor, " symbol"]]:
        """Expected symbol frequencies of each channel in the first 64 observations."""
        return [(self.occupancy @ probs).clamp_min(SMALLEST) for probs in self.channels]

    def num_free(self, positive: Mapping[str, Tensor]) -> dict[str, int]:
        allowed = positive.get("emissions", torch.ones_like(self.emissions))
        return {"emissions": sum(num_free(own.numpy()) for own in self.rows_of("emissions", allowed))}

    def rows_of(self, name: str, array: Tensor) -> Sequence[Tensor]:
        return array.split(self.sizes.tolist(), 1) if name == "emissions" else [array]

    @property
    def options(self) -> dict[str, Any]:
        return {"sizes": self.sizes.tolist()}

    def emission_text(self, state: int) -> str:
        return "; ".join(
            f"{name}: {symbols[int(law[state].argmax())]} {float(law[state].max()):.3f}"
            for law, (name, symbols) in zip(self.channels, self.alphabets.items(), strict=True)
        )

    def vectors_of(self, observations: object) -> Float64[Tensor, "batch time coordinate"]:
        found = super().vectors_of(observations)
        symbols = MultichannelHMM.checked(found[..., -len(self.channels) :])
        for channel, size in enumerate(self.sizes.tolist()):
            if bool((symbols[..., channel] >= size).any()):
                most = float(symbols[..., channel].nan_to_num(0.0).max())
                raise InputError(f"observations: symbols of channel {channel} must be in [0, {size}), got {most:g}")
        return found

    @classmethod
    def checked(cls, observations: Float64[Tensor, "*batch coordinate"]) -> Float64[Tensor, "*batch coordinate"]:
        bad = (observations < 0) | (observations != observations.floor()) & ~observations.isnan()
        if bool(bad.any()):
            value = float(observations[bad][0])
            raise InputError(f"observations: must be symbols (nonnegative integers), got {value:g}")
        return observations

    def log_likelihoods(self, observations: Float64[Tensor, "*batch coordinate"]) -> Float64[Tensor, "*batch state"]:
        total = observations.new_zeros((*observations.shape[:-1], self.num_states))
        for channel, probs in enumerate(self.channels):
            symbols = observations[..., channel]
            each = probs.T.log()[symbols.nan_to_num(0.0).long()]
            total = total + each.masked_fill(symbols.isnan()[..., None], 0.0)
        return total

    def emit(
        self, states: Int64[Tensor, "*batch"], uniforms: Float64[Tensor, "*batch draw"]
    ) -> Float64[Tensor, "*batch coordinate"]:
        drawn = []
        for channel, probs in enumerate(self.channels):
            cumulated = probs.cumsum(1)
            most = (cumulated < cumulated[:, -1:]).sum(1)[states]
            drawn.append(torch.minimum((cumulated[states] <= uniforms[..., channel, None]).sum(-1), most))
        return torch.stack(drawn, -1).double()

    @classmethod
    def initialize(
        cls,
        observations: Float64[Tensor, "row coordinate"],
        num_states: int,
        random: np.random.Generator,
        *,
        sizes: Sequence[int] | None = None,
        min_variance: Float64[Tensor, " coordinate"],
    ) -> Self:
        counts = _sizes_of(observations) if sizes is None else sizes
        good = np.ndim(counts) == 1 and len(counts) == observations.shape[1] and all(map(is_count, counts))
        rule = f"must be a list of {observations.shape[1]} whole numbers, the number of symbols of each channel"
        require(good, "sizes", rule, sizes)
        for channel, (count, seen) in enumerate(zip(counts, _sizes_of(observations), strict=True)):
            require(seen <= count, "sizes", f"must be at least {seen} for channel {channel}", count)
        uniform = np.full((num_states, num_states), 1 / num_states)
        return cls(uniform[0], uniform, [random.dirichlet(np.ones(count), num_states) for count in counts])

    def m_step(
        self,
        observations: Float64[Tensor, "row coordinate"],
        occupancy: Float64[Tensor, "row state"],
        min_variance: Tensor,
    ) -> dict[str, Any]:
        found = []
        for channel, probs in enumerate(self.channels):
            seen = ~observations[:, channel].isnan()
            counts = torch.zeros(probs.shape[1], self.num_states, dtype=torch.float64)
            counts.index_add_(0, observations[seen, channel].long(), occupancy[seen])
            total = counts.sum(0)[:, None]
            share = torch.where(total > 0, counts.T / total.where(total > 0, 1.0), probs)
            share = share.where(share >= SMALLEST, 0.0)
            found.append(share / share.sum(1, keepdim=True))
        return {"emissions": torch.cat(found, 1)}

    @classmethod
    def conjugate(
        cls,
        observations: Float64[Tensor, "row coordinate"],
        *,
        sizes: Sequence[int] | None = None,
        prior_strength: float = 1.0,
        **others: Any,
    ) -> DirichletRows:
        refuse_others(others, ("prior_strength",))
        return DirichletRows(tuple(sizes or _sizes_of(observations)), prior_strength)


def _sizes_of(observations: Float64[Tensor, "row coordinate"]) -> list[int]:
    return [int(most) + 1 for most in observations.nan_to_num(0.0).amax(0).tolist()]
