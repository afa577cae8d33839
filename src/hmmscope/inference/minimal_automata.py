"""Automata from predictions: prefixes with equal distributions of future symbols become one state."""

from dataclasses import dataclass

import torch

from hmmscope.axes import Float64, Tensor
from hmmscope.inference.memory import all_sequences
from hmmscope.inference.spectral import WordLaw
from hmmscope.processes.stationary import closed_classes
from hmmscope.reprs import Shown
from hmmscope.schema import require, require_count


@dataclass(frozen=True, repr=False)
class Automaton(Shown):
    """Probabilistic automaton, with states in breadth-first order from the empty prefix.

    Attributes:
        prefixes: Word that first reached each state.
        labelled: `[v, n, m]` = P(emit v and go to state m given state n) (symbol, state, state).
        recurrent: Indices of the states in closed communicating classes.
        complete: True if the search reached no limit. States at `max_depth` are absorbing; prefixes beyond `max_states`
            join the nearest state.
    """

    prefixes: tuple[tuple[int, ...], ...]
    labelled: Float64[Tensor, "symbol node node"]
    recurrent: tuple[int, ...]
    complete: bool


#: Probability below which a symbol counts as impossible.
RARE = 0.02


def extract_automaton(
    law: WordLaw,
    num_symbols: int,
    *,
    futures: int = 3,
    tolerance: float = 0.05,
    rare: float = RARE,
    max_states: int = 64,
    max_depth: int = 8,
) -> Automaton:
    """Build an automaton that merges prefixes with similar distributions of the next `futures` symbols.

    A prefix joins the nearest state if their total variation is at most `tolerance`; otherwise it becomes a new state.

    Source: Crutchfield and Young (1989); Shalizi and Klinkner (2004).

    Args:
        law: Function from words to their probabilities, such as `Operators.of(hmm).probabilities`.
        num_symbols: Number of symbols V.
        futures: Number of future symbols in the compared distributions.
        tolerance: Largest total variation between a prefix and its state.
        rare: Symbols of at most this probability after a prefix are ignored.
        max_states: Largest number of states.
        max_depth: Length of the longest prefix.

    Raises:
        InputError: An option is out of range, or there are too many future words.
    """
    require_count("futures", futures)
    require(0 < tolerance < 1, "tolerance", "must be in (0, 1)", tolerance)
    require(0 <= rare < 1 / num_symbols, "rare", f"must be in [0, 1/{num_symbols})", rare)
    ahead = all_sequences(num_symbols, futures)

    def foretold(prefix: tuple[int, ...]) -> Float64[Tensor, " future"]:
        start = torch.tensor(prefix, dtype=torch.int64).expand(len(ahead), -1)
        joint = law(torch.cat([start, ahead], 1))
        return joint / joint.sum()

    prefixes: list[tuple[int, ...]] = [()]
    probs, edges, complete, node = [foretold(())], {}, True, 0
    while node < len(prefixes):
        emitted = probs[node].view(num_symbols, -1).sum(1)
        emitted = torch.where(emitted > rare, emitted, 0.0)
        emitted = emitted / emitted.sum()
        for symbol in emitted.nonzero()[:, 0].tolist():
            target = node
            if len(prefixes[node]) >= max_depth:
                complete = False
            else:
                prefix = (*prefixes[node], symbol)
                found = foretold(prefix)
                apart = 0.5 * (torch.stack(probs) - found).abs().sum(1)
                target = int(apart.argmin())
                if float(apart[target]) > tolerance:
                    if len(prefixes) < max_states:
                        target = len(prefixes)
                        prefixes.append(prefix)
                        probs.append(found)
                    else:
                        complete = False
            edges[symbol, node, target] = float(emitted[symbol])
        node += 1
    labelled = torch.zeros(num_symbols, len(prefixes), len(prefixes), dtype=torch.float64)
    for place, probability in edges.items():
        labelled[place] = probability
    recurrent = sorted(state for members in closed_classes(labelled.sum(0)) for state in members)
    return Automaton(tuple(prefixes), labelled, tuple(recurrent), complete)
