"""Random HMMs, one per sample; a sample's header (first tokens) contains the HMM's exact probabilities as integers."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from hmmscope import registry
from hmmscope.axes import Int64, Tensor
from hmmscope.errors import InputError
from hmmscope.kernels.quantise import UNIT, quantise_rows
from hmmscope.kernels.random_arrays import dirichlet_rows, random_permutations, uniforms
from hmmscope.processes.capabilities import HeaderFormat
from hmmscope.processes.hmm_per_sample import HMMPerSample
from hmmscope.processes.mixture import Mixture
from hmmscope.processes.params import StateEmissionParams
from hmmscope.schema import require, require_known
from hmmscope.seeds import check_seed, philox_key

#: Matrices (component, state, outcome), before they are rounded.
Matrices = NDArray[np.float64]
#: Regions of parameter space that training may exclude, to test on them.
REGIONS: dict[str, Callable[[Matrices, Matrices], NDArray[np.bool_]]] = {
    "slow": lambda transition, emission: np.einsum("...ss->...", transition) >= 0.75 * transition.shape[-1],
    "sharp": lambda transition, emission: (transition.max(-1).mean(-1) + emission.max(-1).mean(-1)) / 2 >= 0.875,
}
#: Largest number of draws until an HMM lies outside the excluded regions.
_ATTEMPTS = 2**12


class HeaderHMMs(HMMPerSample):
    """A new HMM for each sample, with a uniform initial state and other probabilities in multiples of 1/denominator.

    A header lists all but the last numerator of each row. Exact predictions need the dataset layout `header`.
    """

    stored_name = "ToldHMMs"

    no_optimum_reason: ClassVar[str | None] = (
        "the integral over all HMMs of the prior has no closed form; use the layout header, which encodes the HMM"
    )
    file_format = "hmmscope-told-hmms"

    def __init__(self, spec: "HeaderSpec") -> None:
        super().__init__(spec)
        self.denominator = spec.denominator
        self._initial_S = torch.from_numpy(uniform(spec.num_states))
        entries = self.num_states * (self.num_states + self.num_symbols - 2)
        self.header_format = HeaderFormat(entries, self.denominator + 1)

    def encode_header(self, components: Int64[Tensor, " batch"]) -> Int64[Tensor, "batch entry"]:
        _, *matrices = self.spec.components(components.cpu().numpy())
        parts = [(matrix[..., :-1] * self.denominator).round().long().flatten(1) for matrix in matrices]
        return torch.cat(parts, 1).to(components.device)

    def decode_header(self, entries: Int64[Tensor, "batch entry"]) -> Mixture:
        """Decode headers into a mixture of HMMs.

        Raises:
            InputError: the number of entries is wrong, or they encode no distributions.
        """
        assert self.header_format is not None
        if entries.ndim != 2 or entries.shape[1] != self.header_format.num_entries:
            raise InputError(
                f"header: must have {self.header_format.num_entries} entries, got {tuple(entries.shape[1:])}"
            )
        cut = self.num_states * (self.num_states - 1)
        matrices = []
        for part, outcomes in ((entries[:, :cut], self.num_states), (entries[:, cut:], self.num_symbols)):
            rows = part.cpu().unflatten(1, (self.num_states, outcomes - 1))
            last = self.denominator - rows.sum(-1, keepdim=True)
            wrong = ((rows < 0).any(-1, keepdim=True) | (last < 0)).nonzero()
            if len(wrong):
                sample, state = wrong[0, :2].tolist()
                rule = f"must have entries >= 0 that sum to at most {self.denominator}"
                raise InputError(
                    f"header[{sample}]: the row of state {state} {rule}, got {rows[sample, state].tolist()}"
                )
            matrices.append(torch.cat([rows, last], -1).double() / self.denominator)
        initial = self._initial_S.expand(len(entries), -1)
        return Mixture.from_law(np.full(len(entries), 1 / len(entries)), StateEmissionParams(initial, *matrices))


def uniform(count: int) -> NDArray[np.float64]:
    probs: NDArray[np.float64] = quantise_rows(np.full(count, 1 / count)) / UNIT
    return probs


def round_rows(rows: Matrices, denominator: int, least: int = 0) -> NDArray[np.int64]:
    spare = denominator - least * rows.shape[-1]
    exact = rows / rows.sum(-1, keepdims=True) * spare
    found = np.floor(exact).astype(np.int64)
    rank = np.argsort(np.argsort(found - exact, axis=-1, kind="stable"), axis=-1, kind="stable")
    found += rank < (spare - found.sum(-1, keepdims=True))
    return found + least


@dataclass(frozen=True, kw_only=True)
class HeaderSpec:
    """A family of numbered HMMs; all probabilities have the same denominator.

    Attributes:
        num_states: number of states S.
        num_symbols: number of symbols V.
        denominator: denominator of all probabilities, a power of two.
        least: smallest allowed numerator.
        seed: seed of the HMMs; component m depends on (seed, m) only.
    """

    num_states: int = 2
    num_symbols: int = 2
    denominator: int = 16
    least: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        check_seed(self.seed)
        for field in ("num_states", "num_symbols"):
            require(2 <= getattr(self, field) <= 64, field, "must be in [2, 64]", getattr(self, field))
        power = 2 <= self.denominator <= 2**16 and self.denominator & (self.denominator - 1) == 0
        require(power, "denominator", "must be a power of two in [2, 65536]", self.denominator)
        most = self.denominator // max(self.num_states, self.num_symbols)
        size = max(self.num_states, self.num_symbols)
        rule = f"must be in [0, {most}], because up to {size} entries of a row sum to denominator"
        require(0 <= self.least <= most, "least", rule, self.least)

    def draw(self, numbers: NDArray[np.int64]) -> tuple[Matrices, Matrices]:
        """Draw transition matrices (component, S, S) and emission matrices (component, S, V)."""
        raise AssertionError("subclasses define draw")

    def components(self, numbers: NDArray[np.int64]) -> tuple[Tensor, Tensor, Tensor]:
        initial = torch.from_numpy(uniform(self.num_states)).expand(len(numbers), -1)
        rounded = (round_rows(rows, self.denominator, self.least) / self.denominator for rows in self.draw(numbers))
        transition, emission = (torch.from_numpy(rows) for rows in rounded)
        return initial, transition, emission

    def build(self) -> HeaderHMMs:
        return HeaderHMMs(self)

    def dirichlet(
        self, purpose: str, numbers: NDArray[np.int64], concentration: float, attempts: int = 1
    ) -> NDArray[np.float64]:
        outcomes = self.num_states if purpose == "transition" else self.num_symbols
        key = philox_key(self.seed, purpose)
        return dirichlet_rows(key, numbers, attempts * self.num_states, outcomes, concentration)

    def lean(
        self, purpose: str, numbers: NDArray[np.int64], choices: NDArray[np.int64], least: float
    ) -> NDArray[np.float64]:
        """Draw rows share * one_hot(`choices`) + (1 - share) * Dirichlet(1/2), with uniform share in [least, 1]."""
        rest = self.dirichlet(purpose, numbers, 0.5)
        column = 0 if purpose == "transition" else 1
        drawn = uniforms(philox_key(self.seed, "lean"), numbers, self.num_states, 2)[..., column, None]
        share = least + (1 - least) * drawn
        rows: NDArray[np.float64] = share * np.eye(rest.shape[-1])[choices] + (1 - share) * rest
        return rows


def _check_shares(spec: object, *fields: str) -> None:
    for field in fields:
        require(0 <= getattr(spec, field) <= 1, field, "must be in [0, 1]", getattr(spec, field))


@registry.process("told-hmms")
@dataclass(frozen=True, kw_only=True)
class HeaderHMMsSpec(HeaderSpec):
    """A new HMM with Dirichlet rows for each sample, with probabilities in multiples of 1/denominator.

    Attributes:
        transition_concentration, emission_concentration: concentrations of the Dirichlet rows.
        without: excluded HMMs: "slow" (mean P(self-transition) >= 3/4), "sharp" (largest entry
            of a row, averaged over the rows of both matrices, >= 7/8).

    Source: after Agarwal, Dalal and Misra (2025), arXiv 2512.22471, who use multiples of 0.01 that are >= 0.05.
    """

    transition_concentration: float = 0.5
    emission_concentration: float = 0.5
    without: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        for field in ("transition_concentration", "emission_concentration"):
            require(1e-9 <= getattr(self, field) <= 1e6, field, "must be in [1e-9, 1e6]", getattr(self, field))
        for region in self.without:
            require_known("without", region, REGIONS)

    def draw(self, numbers: NDArray[np.int64]) -> tuple[Matrices, Matrices]:
        attempts = 16 if self.without else 1
        while True:
            transition, emission = (
                self.dirichlet(purpose, numbers, concentration, attempts).reshape(
                    len(numbers), attempts, self.num_states, -1
                )
                for purpose, concentration in (
                    ("transition", self.transition_concentration),
                    ("emission", self.emission_concentration),
                )
            )
            kept = np.ones(transition.shape[:2], np.bool_)
            for region in self.without:
                kept &= ~REGIONS[region](transition, emission)
            if kept.any(1).all():
                chosen = np.arange(len(numbers)), kept.argmax(1)
                return transition[chosen], emission[chosen]
            attempts *= 16
            if attempts > _ATTEMPTS:
                raise InputError(
                    f"without: {', '.join(self.without)} exclude nearly all HMMs of this family; exclude fewer regions"
                )


@registry.process("told-sparse-hmms")
@dataclass(frozen=True, kw_only=True)
class HeaderSparseHMMsSpec(HeaderSpec):
    """A new sparse HMM for each sample, with probabilities in multiples of 1/denominator.

    Attributes:
        support: largest number of nonzero entries in a row.
    """

    support: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.least == 0, "least", "must be 0, because entries outside the support are 0", self.least)
        most = min(self.num_states, self.num_symbols)
        require(1 <= self.support <= most, "support", f"must be in [1, {most}]", self.support)

    def draw(self, numbers: NDArray[np.int64]) -> tuple[Matrices, Matrices]:
        drawn = []
        for purpose in ("transition", "emission"):
            rows = self.dirichlet(purpose, numbers, 1.0)
            places = random_permutations(
                philox_key(self.seed, f"{purpose}-places"), numbers, self.num_states, rows.shape[-1]
            )
            rows = rows * (places < self.support)
            drawn.append(rows / rows.sum(-1, keepdims=True))
        return drawn[0], drawn[1]


@registry.process("told-cycles")
@dataclass(frozen=True, kw_only=True)
class HeaderCyclesSpec(HeaderSpec):
    """A new HMM with a noisy cycle for each sample, with probabilities in multiples of 1/denominator.

    Attributes:
        follow: the weight of the cycle's next state in each transition row is uniform on [follow, 1].
        show: the weight of the state's symbol in each emission row is uniform on [show, 1].
    """

    follow: float = 0.75
    show: float = 0.75

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_shares(self, "follow", "show")

    def draw(self, numbers: NDArray[np.int64]) -> tuple[Matrices, Matrices]:
        order = random_permutations(philox_key(self.seed, "cycle"), numbers, 2, self.num_states)
        following = np.empty_like(order[:, 0])
        np.put_along_axis(following, order[:, 0], np.roll(order[:, 0], -1, 1), 1)
        emission = self.lean("emission", numbers, order[:, 1] % self.num_symbols, self.show)
        return self.lean("transition", numbers, following, self.follow), emission


@registry.process("told-sharp-hmms")
@dataclass(frozen=True, kw_only=True)
class HeaderSharpHMMsSpec(HeaderSpec):
    """A new nearly deterministic HMM for each sample, with probabilities in multiples of 1/denominator.

    Attributes:
        sharp: the weight of one entry of each row is uniform on [sharp, 1].
    """

    sharp: float = 0.875

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_shares(self, "sharp")

    def draw(self, numbers: NDArray[np.int64]) -> tuple[Matrices, Matrices]:
        key = philox_key(self.seed, "choices")
        drawn = uniforms(key, numbers, self.num_states, 2)
        chosen = [(drawn[..., i] * size).astype(np.int64) for i, size in enumerate((self.num_states, self.num_symbols))]
        return (
            self.lean("transition", numbers, chosen[0], self.sharp),
            self.lean("emission", numbers, chosen[1], self.sharp),
        )


@registry.process("told-slow-hmms")
@dataclass(frozen=True, kw_only=True)
class HeaderSlowHMMsSpec(HeaderSpec):
    """A new slowly mixing HMM for each sample, with probabilities in multiples of 1/denominator.

    Attributes:
        stay: the weight of the self-transition in each row is uniform on [stay, 1].
        emission_concentration: concentration of the Dirichlet emission rows.
    """

    stay: float = 0.875
    emission_concentration: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_shares(self, "stay")
        field = "emission_concentration"
        require(
            1e-9 <= self.emission_concentration <= 1e6, field, "must be in [1e-9, 1e6]", self.emission_concentration
        )

    def draw(self, numbers: NDArray[np.int64]) -> tuple[Matrices, Matrices]:
        own = np.broadcast_to(np.arange(self.num_states), (len(numbers), self.num_states))
        emission = self.dirichlet("emission", numbers, self.emission_concentration)
        return self.lean("transition", numbers, own, self.stay), emission
