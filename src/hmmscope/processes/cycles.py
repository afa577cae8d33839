"""Random cycles of states, and processes with uniform random actions."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from hmmscope.axes import Float64, Int64, Tensor
from hmmscope.errors import InputError
from hmmscope.kernels.random_arrays import random_permutations
from hmmscope.processes.labelled import LabelledHMM
from hmmscope.schema import require
from hmmscope.seeds import check_seed, philox_key

#: Largest number of draws to find a group of the required order.
_DRAWS = 100


@dataclass(frozen=True, kw_only=True)
class CyclesSpec:
    """Fields of `cyclic-det`, `cyclic-hard` and `cyclic-rnd`: each action has a cycle through all states.

    Attributes:
        num_states: number of states.
        num_symbols: number of actions.
        distinct: True: all actions have different cycles.
        group_order: required order of the group that the cycles generate (60 for A5); 0 for any order.
        seed: seed of the cycles.
    """

    num_states: int = 5
    num_symbols: int = 5
    distinct: bool = False
    group_order: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        check_seed(self.seed)
        most = 100_000
        require(0 <= self.group_order <= most, "group_order", f"must be in [0, {most}]", self.group_order)
        require(2 <= self.num_states <= 1024, "num_states", "must be in [2, 1024]", self.num_states)
        require(1 <= self.num_symbols <= 4096, "num_symbols", "must be in [1, 4096]", self.num_symbols)
        edges = self.num_states * self.num_symbols
        require(edges <= 65536, "num_symbols", f"must be at most {65536 // self.num_states}", self.num_symbols)
        if self.distinct and self.num_states < 9:
            most = math.factorial(self.num_states - 1)
            rule = f"must be at most {most}, the number of distinct cycles of {self.num_states} states"
            require(self.num_symbols <= most, "num_symbols", rule, self.num_symbols)

    def cycles(self) -> Int64[Tensor, "action state"]:
        """Return `[a, s]` = the state after s under action a."""
        count = self.num_symbols
        if not self.group_order:
            return random_cycles(self.seed, self.num_states, count, distinct=self.distinct)
        drawn = random_cycles(self.seed, self.num_states, _DRAWS * count)
        for cycles in drawn.view(_DRAWS, count, self.num_states):
            if self.distinct and len(cycles.unique(dim=0)) < count:
                continue
            if _generate(cycles, self.group_order):
                return cycles
        raise InputError(
            f"group_order: {count} random cycles of {self.num_states} states never generated a group of {self.group_order} "
            f"elements in {_DRAWS} draws; choose another group_order, or 0 for any group"
        )

    @property
    def actions(self) -> tuple[str, ...]:
        return tuple(f"a{a}" for a in range(self.num_symbols))


def random_cycles(
    seed: int, num_states: int, num_actions: int, *, distinct: bool = False
) -> Int64[Tensor, "action state"]:
    """Draw one uniform random cycle per action; if `distinct` is true, no two are equal.

    cycle[order[j]] = order[(j + 1) mod num_states] for a uniform permutation `order`
    """
    key = philox_key(seed, "cycle")
    cycles: list[tuple[int, ...]] = []
    num_drawn = num_actions
    while True:
        cycles.clear()
        for order in random_permutations(key, np.array([0]), num_drawn, num_states)[0]:
            following = np.empty(num_states, np.int64)
            following[order] = np.roll(order, -1)
            cycle = tuple(following.tolist())
            if not (distinct and cycle in cycles):
                cycles.append(cycle)
        if len(cycles) >= num_actions:
            return torch.tensor(cycles[:num_actions])
        num_drawn *= 2


def group_order(permutations_AS: Int64[Tensor, "action state"], *, limit: int = 10**6) -> int:
    generators = [tuple(row) for row in permutations_AS.tolist()]
    identity = tuple(range(permutations_AS.shape[1]))
    if any(tuple(sorted(generator)) != identity for generator in generators):
        raise InputError("permutations: each row must contain each state once")
    found, new = {identity}, [identity]
    while new:
        products = {tuple(generator[s] for s in element) for element in new for generator in generators}
        new = list(products - found)
        found |= products
        if len(found) > limit:
            raise InputError(f"permutations: must generate a group of at most {limit} elements")
    return len(found)


def _generate(permutations_AS: Int64[Tensor, "action state"], order: int) -> bool:
    try:
        return group_order(permutations_AS, limit=order) == order
    except InputError:  # larger
        return False


def never_meeting_pairs(cycles_AS: Int64[Tensor, "action state"]) -> list[tuple[int, int]]:
    """Return pairs of states from which two copies never meet, given equal actions but free to step backward."""
    num_states = cycles_AS.shape[1]
    moves = [(cycle, cycle.argsort()) for cycle in cycles_AS]
    meeting_SS = torch.eye(num_states, dtype=torch.bool)
    while True:
        before = meeting_SS.clone()
        for one, other in ((one, other) for move in moves for one in move for other in move):
            meeting_SS |= meeting_SS[one][:, other]
        if torch.equal(before, meeting_SS):
            break
    return [(i, j) for i, j in (~meeting_SS).nonzero().tolist() if i < j]


def driven(
    kernels_ASS: Float64[Tensor, "action state state"],
    *,
    symbols: Sequence[str] | None = None,
    states: Sequence[str] | None = None,
    title: str = "",
    source: str = "",
) -> LabelledHMM:
    """Build an HMM that starts in state 0 and moves by uniform random actions.

    labelled[a] = kernels[a] / num_actions

    Args:
        kernels_ASS: `[a, i, j]` = P(next state j given action a in state i).
    """
    initial_S = torch.eye(kernels_ASS.shape[1], dtype=torch.float64)[0]
    labelled_VSS = kernels_ASS / len(kernels_ASS)
    return LabelledHMM(initial_S, labelled_VSS, symbols=symbols, states=states, title=title, source=source)


def permutation_matrices(permutations_AS: Int64[Tensor, "action state"]) -> Float64[Tensor, "action state state"]:
    return torch.nn.functional.one_hot(permutations_AS, permutations_AS.shape[1]).to(torch.float64)


@dataclass(frozen=True)
class Edge:
    state: int
    symbol: int
    next_state: int
    probability: float


def transition_edges(process: LabelledHMM) -> list[Edge]:
    """List the transitions of positive probability, as in [Limits] Fig. 1."""
    found = process.labelled.transpose(0, 1).nonzero().tolist()
    return [Edge(i, v, j, float(process.labelled[v, i, j])) for i, v, j in found]
