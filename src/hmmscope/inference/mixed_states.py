"""Mixed-state presentation: all beliefs reachable by observations, and the transitions between them."""

from bisect import bisect_left, insort
from dataclasses import dataclass

import torch

from hmmscope.axes import Bool, Float64, Int64, Tensor
from hmmscope.errors import InputError
from hmmscope.inference.memory import with_prior
from hmmscope.processes.capabilities import WORDS
from hmmscope.processes.params import ROUNDING
from hmmscope.processes.process import Process
from hmmscope.reprs import Shown
from hmmscope.schema import require, require_count
from hmmscope.system_info import require_memory


@dataclass(frozen=True, repr=False)
class MixedStates(Shown):
    """Reachable beliefs in breadth-first order, and the edges between them.

    A mixed state is the distribution of the next emitting state given an observed word.

    Attributes:
        beliefs: Mixed states (node, state); the first is the root, before any observation.
        depth: Length of the shortest word that leads to each node (node,).
        expanded: True for nodes whose successors were computed (node,).
        probability: P(symbol | node) (node, symbol).
        successor: Next node (node, symbol); -1 if impossible or not computed.
        complete: True if all nodes were expanded.
        stopped_by: Limit that ended the search: "max_states", "max_depth", or "" for none.
        largest_merge: Largest L1 distance between a belief and the node into which it was merged.
    """

    beliefs: Float64[Tensor, "node state"]
    depth: Int64[Tensor, " node"]
    expanded: Bool[Tensor, " node"]
    probability: Float64[Tensor, "node symbol"]
    successor: Int64[Tensor, "node symbol"]
    complete: bool
    stopped_by: str
    largest_merge: float

    def labelled(self) -> Float64[Tensor, "symbol node node"]:
        """Return `[v, n, m]` = P(emit v and go to node m given node n); raise InputError unless complete."""
        if not self.complete:
            raise InputError(
                f"mixed states: the list is not complete (stopped by {self.stopped_by}); increase {self.stopped_by}"
            )
        num_nodes, num_symbols = self.successor.shape
        labelled_VNN = torch.zeros(num_symbols, num_nodes, num_nodes, dtype=torch.float64)
        node, symbol = (self.successor >= 0).nonzero().unbind(1)
        labelled_VNN[symbol, node, self.successor[node, symbol]] = self.probability[node, symbol]
        return labelled_VNN


def mixed_states(
    hmm: Process,
    *,
    prior: object = None,
    max_states: int = 10_000,
    max_depth: int | None = None,
    tolerance: float = 1e-12,
) -> MixedStates:
    """Enumerate the beliefs that observations can lead to, up to given limits.

    next(belief, v) ∝ belief @ step[v];  P(v | belief) = sum(belief @ step[v]);  step[v][i, j] = P(emit v, go to j | i)

    Source: Blackwell (1957); Crutchfield, Riechers and Ellison (2016).

    Args:
        hmm: HMM with S states and V symbols.
        prior: Distribution of the root (state,) (default: the stationary distribution).
        max_states: Largest number of nodes.
        max_depth: Largest number of observations before a node.
        tolerance: L1 distance below which beliefs are merged.

    Raises:
        InputError: The default prior is not unique, or a limit is out of range.
        ResourceError: `max_states` beliefs do not fit in memory.
    """
    require_count("max_states", max_states)
    require(max_depth is None or max_depth >= 0, "max_depth", "must be at least 0", max_depth)
    require(0 <= tolerance < 1, "tolerance", "must be in [0, 1)", tolerance)
    hmm.require_capability(WORDS)
    require_memory("mixed_states", 8 * max_states * (2 * hmm.num_states + 2 * hmm.num_symbols + 12))
    steps_VSS, least = hmm.params.steps(), ROUNDING if hmm.params.signed else 0.0
    nodes = _Nodes(tolerance)
    nodes.find(with_prior(hmm, prior).initial_MS[0])
    depth, expanded, successor = [0], [False], [[-1] * hmm.num_symbols]
    stopped_by = ""
    at = 0
    while at < len(nodes.beliefs) and not stopped_by:
        if max_depth is not None and depth[at] >= max_depth:
            stopped_by = "max_depth"
            break
        joint_VS = torch.einsum("i,vij->vj", nodes.beliefs[at], steps_VSS)
        for v, total in enumerate(joint_VS.sum(1).tolist()):
            if total <= least:
                continue
            node = nodes.find(joint_VS[v] / total, may_add=len(nodes.beliefs) < max_states)
            if node is None:
                stopped_by = "max_states"
                continue
            if node == len(depth):
                depth.append(depth[at] + 1)
                expanded.append(False)
                successor.append([-1] * hmm.num_symbols)
            successor[at][v] = node
        expanded[at] = not stopped_by
        at += 1
    beliefs_NS = torch.stack(nodes.beliefs)
    probability_NV = beliefs_NS @ steps_VSS.sum(2).T
    return MixedStates(
        beliefs=beliefs_NS,
        depth=torch.tensor(depth),
        expanded=torch.tensor(expanded),
        probability=probability_NV.masked_fill(probability_NV <= least, 0.0),
        successor=torch.tensor(successor),
        complete=all(expanded),
        stopped_by=stopped_by,
        largest_merge=nodes.largest_merge,
    )


class _Nodes:
    def __init__(self, tolerance: float) -> None:
        self.tolerance, self.largest_merge = tolerance, 0.0
        self.beliefs: list[Tensor] = []
        self.keys: list[tuple[float, int]] = []

    def find(self, belief_S: Tensor, *, may_add: bool = True) -> int | None:
        weights = (0.6180339887498949 * torch.arange(1, len(belief_S) + 1, dtype=torch.float64)) % 1
        key, reach = float(belief_S @ weights), self.tolerance + 1e-14
        low, high = bisect_left(self.keys, (key - reach, -1)), bisect_left(self.keys, (key + reach, len(self.keys)))
        for node in sorted(number for _, number in self.keys[low:high]):
            distance = float((self.beliefs[node] - belief_S).abs().sum())
            if distance <= self.tolerance:
                self.largest_merge = max(self.largest_merge, distance)
                return node
        if not may_add:
            return None
        insort(self.keys, (key, len(self.beliefs)))
        self.beliefs.append(belief_S)
        return len(self.beliefs) - 1
