"""Edge-emitting processes of computational mechanics, with stationary starts."""

from dataclasses import dataclass

import torch

from hmmscope import registry
from hmmscope.axes import Tensor
from hmmscope.kernels.fixed_order import total
from hmmscope.processes.labelled import LabelledHMM
from hmmscope.processes.stationary import stationary_law
from hmmscope.schema import require


def labelled_from_edges(
    states: str, edges: list[tuple[str, int, str, float]], *, title: str, source: str
) -> LabelledHMM:
    num_symbols = 1 + max(symbol for _, symbol, _, _ in edges)
    labelled_VSS = torch.zeros(num_symbols, len(states), len(states), dtype=torch.float64)
    for origin, symbol, target, probability in edges:
        labelled_VSS[symbol, states.index(origin), states.index(target)] += probability
    return stationary_start(labelled_VSS, states=list(states), title=title, source=source)


def stationary_start(labelled_VSS: Tensor, **names: object) -> LabelledHMM:
    transition_SS = torch.from_numpy(total(labelled_VSS.numpy()))
    return LabelledHMM(stationary_law(transition_SS), labelled_VSS, allow_drop_tiny=True, **names)  # type: ignore[arg-type]


@registry.process("mess3")
@dataclass(frozen=True, kw_only=True)
class Mess3Spec:
    """Mess3: no finite past reveals which of three states the process is in; the beliefs form a fractal.

    The state changes to each other state with probability `switch`; a transition to state j emits symbol j with
    probability `emission`.

    Source: Marzen and Crutchfield (2017); values from Shai et al. 2024.
    """

    switch: float = 0.05
    emission: float = 0.85

    def __post_init__(self) -> None:
        require(0 <= self.switch <= 0.5, "switch", "must be in [0, 0.5]", self.switch)
        require(0 <= self.emission <= 1, "emission", "must be in [0, 1]", self.emission)

    def build(self) -> LabelledHMM:
        eye = torch.eye(3, dtype=torch.float64)
        transition_SS = self.switch + (1 - 3 * self.switch) * eye
        emission_SV = (1 - self.emission) / 2 + (self.emission - (1 - self.emission) / 2) * eye
        labelled_VSS = transition_SS * emission_SV.T[:, None, :]
        return stationary_start(labelled_VSS, states=list("ABC"), title="Mess3", source="Marzen and Crutchfield (2017)")


@registry.process("rrxor")
@dataclass(frozen=True, kw_only=True)
class RRXORSpec:
    """Random-random-XOR: two fair bits, then their XOR, repeated.

    Source: Crutchfield and Feldman (2003).
    """

    def build(self) -> LabelledHMM:
        first = [("S", 0, "A", 0.5), ("S", 1, "B", 0.5)]
        second = [("A", 0, "X", 0.5), ("A", 1, "Y", 0.5), ("B", 0, "Y", 0.5), ("B", 1, "X", 0.5)]
        edges = [*first, *second, ("X", 0, "S", 1.0), ("Y", 1, "S", 1.0)]
        return labelled_from_edges("SABXY", edges, title="RRXOR", source="Crutchfield and Feldman (2003)")


@registry.process("golden-mean")
@dataclass(frozen=True, kw_only=True)
class GoldenMeanSpec:
    """The golden mean process: no two zeros in a row.

    The entropy rate is (2/3) ln 2 if `zero_probability`, P(0 after 1), is 1/2.

    Source: Crutchfield and Feldman (2003).
    """

    zero_probability: float = 0.5

    def __post_init__(self) -> None:
        require(0 < self.zero_probability < 1, "zero_probability", "must be in (0, 1)", self.zero_probability)

    def build(self) -> LabelledHMM:
        p = self.zero_probability
        edges = [("A", 1, "A", 1 - p), ("A", 0, "B", p), ("B", 1, "A", 1.0)]
        return labelled_from_edges("AB", edges, title="golden mean process", source="Crutchfield and Feldman (2003)")


@registry.process("even")
@dataclass(frozen=True, kw_only=True)
class EvenSpec:
    """The even process: blocks of ones have even length.

    The entropy rate is (2/3) ln 2 if `zero_probability`, P(0 after an even block), is 1/2.

    Source: Crutchfield and Feldman (2003).
    """

    zero_probability: float = 0.5

    def __post_init__(self) -> None:
        require(0 < self.zero_probability < 1, "zero_probability", "must be in (0, 1)", self.zero_probability)

    def build(self) -> LabelledHMM:
        p = self.zero_probability
        edges = [("A", 0, "A", p), ("A", 1, "B", 1 - p), ("B", 1, "A", 1.0)]
        return labelled_from_edges("AB", edges, title="even process", source="Crutchfield and Feldman (2003)")


@registry.process("z1r")
@dataclass(frozen=True, kw_only=True)
class Z1RSpec:
    """The symbols zero, one and a random bit, repeated; the entropy rate is (1/3) ln 2.

    Source: Shai et al. 2024.
    """

    def build(self) -> LabelledHMM:
        edges = [("Z", 0, "O", 1.0), ("O", 1, "R", 1.0), ("R", 0, "Z", 0.5), ("R", 1, "Z", 0.5)]
        return labelled_from_edges("ZOR", edges, title="zero-one-random process", source="Shai et al. (2024)")


@registry.process("simple-nonunifilar")
@dataclass(frozen=True, kw_only=True)
class SimpleNonunifilarSpec:
    """The simple non-unifilar source: a zero does not reveal the next state.

    Source: Crutchfield (1994); Marzen and Crutchfield (2015).
    """

    leave: float = 0.5
    reset: float = 0.5

    def __post_init__(self) -> None:
        require(0 < self.leave < 1, "leave", "must be in (0, 1)", self.leave)
        require(0 < self.reset < 1, "reset", "must be in (0, 1)", self.reset)

    def build(self) -> LabelledHMM:
        p, q = self.leave, self.reset
        edges = [("A", 0, "A", 1 - p), ("A", 0, "B", p), ("B", 0, "B", 1 - q), ("B", 1, "A", q)]
        return labelled_from_edges("AB", edges, title="simple non-unifilar source", source="Crutchfield (1994)")
