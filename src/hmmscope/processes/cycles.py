"""Random cycles on the states, the group that they generate, and systems that are driven by uniform symbols."""

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

#: Draws of cycles among which some must generate a group of the order that is asked for.
_DRAWS = 100


@dataclass(frozen=True, kw_only=True)
class CyclesSpec:
    """Sizes and seed of the cycles of the Cyclic processes: one cycle through all states for each action.

    Attributes:
        num_states: n, states of the automaton.
        num_symbols: m, actions.
        distinct: draw the cycles without replacement.
        group_order: elements of the group that the cycles generate (60 for A5), drawn again until they do; 0 for any.
        seed: of the instance.
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
        """`[a, s]` = the state after s under action a."""
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
            f"group_order: {_DRAWS} times {count} random cycles of {self.num_states} states never generated a group of "
            f"{self.group_order} elements"
        )

    @property
    def actions(self) -> tuple[str, ...]:
        """Names of the actions."""
        return tuple(f"a{a}" for a in range(self.num_symbols))


def random_cycles(
    seed: int, num_states: int, num_actions: int, *, distinct: bool = False
) -> Int64[Tensor, "action state"]:
    """Independent cycles, exactly uniform over the (num_states - 1)! of them; with `distinct`, without replacement.

    cycle[order[j]] = order[j + 1 mod num_states], with `order` a uniform permutation

    Cycle a is number a of an endless sequence for (seed, num_states), so more actions leave the first ones as they were;
    `distinct` passes over a cycle that was there before.
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
    """Number of elements of the group that the permutations generate; InputError beyond `limit`.

    Five random cycles of 5 states generate A_5 (order 60, not solvable) unless all are powers of one of them: with
    probability 1295/1296. Three states give Z_3, four at most S_4, both solvable.
    """
    generators = [tuple(row) for row in permutations_AS.tolist()]
    identity = tuple(range(permutations_AS.shape[1]))
    if any(tuple(sorted(generator)) != identity for generator in generators):
        raise InputError("permutations: every row must hold each state once")
    found, new = {identity}, [identity]
    while new:
        products = {tuple(generator[s] for s in element) for element in new for generator in generators}
        new = list(products - found)
        found |= products
        if len(found) > limit:
            raise InputError(f"permutations: the group has more than {limit} elements")
    return len(found)


def _generate(permutations_AS: Int64[Tensor, "action state"], order: int) -> bool:
    """Whether permutations generate a group of so many elements."""
    try:
        return group_order(permutations_AS, limit=order) == order
    except InputError:  # it has more
        return False


def never_meeting_pairs(cycles_AS: Int64[Tensor, "action state"]) -> list[tuple[int, int]]:
    """Pairs of states that stay apart for ever under any actions, if each step may go forward or back on its cycle.

    Two copies of Cyclic-RND see the same actions and slip independently. A pair that cannot meet is told apart by the
    observations for ever, so the process never forgets. With an odd number of states every pair meets. With an even one
    none does whose distance is odd, if all cycles alternate between the same two halves of the states.
    """
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
    """A system driven by uniform actions, which are the symbols; it starts in state 0.

    labelled[a] = kernels[a] / num_actions

    Args:
        kernels_ASS: `[a, i, j]` = P(next state j given action a in state i).
    """
    initial_S = torch.eye(kernels_ASS.shape[1], dtype=torch.float64)[0]
    labelled_VSS = kernels_ASS / len(kernels_ASS)
    return LabelledHMM(initial_S, labelled_VSS, symbols=symbols, states=states, title=title, source=source)


def permutation_matrices(permutations_AS: Int64[Tensor, "action state"]) -> Float64[Tensor, "action state state"]:
    """`[a, i, j]` = 1 where permutation a takes i to j."""
    return torch.nn.functional.one_hot(permutations_AS, permutations_AS.shape[1]).to(torch.float64)


@dataclass(frozen=True)
class Edge:
    """One possible step: from a state, with a symbol, to a state."""

    state: int
    symbol: int
    next_state: int
    probability: float


def transition_edges(process: LabelledHMM) -> list[Edge]:
    """The steps of positive probability: the data of a transition diagram as in [Limits] Fig. 1."""
    found = process.labelled.transpose(0, 1).nonzero().tolist()
    return [Edge(i, v, j, float(process.labelled[v, i, j])) for i, v, j in found]
