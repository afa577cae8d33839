"""Automata from predictions: prefixes that foretell the same futures are one state.

The law of words may be exact or that of a model, so nothing is asked of hidden states. Of exact laws of a process with
finitely many mixed states the automaton is their graph with equal futures merged, and its recurrent states are counted.
"""

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
    """States found in the order of a breadth-first search, the first after no symbol at all.

    Attributes:
        prefixes: the word that each state was found by.
        labelled: `[v, n, m]` = P(emit v and go to m given n) (symbol, node, node).
        recurrent: states that are never left for good, of the one or several closed classes.
        complete: whether the search ended by itself; if not, unexplored states keep what they emit to themselves.
    """

    prefixes: tuple[tuple[int, ...], ...]
    labelled: Float64[Tensor, "symbol node node"]
    recurrent: tuple[int, ...]
    complete: bool


#: Probability of a symbol up to which it is taken for zero.
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
    """Merge prefixes whose laws of the next `futures` symbols are within a tolerance in total variation.

    Each new prefix goes to the nearest state that there is, if near enough, and else founds one. Symbols that a state gives
    up to `rare` are not followed.

    Args:
        law: probabilities of words, such as `Operators.of(hmm).probabilities`.
        num_symbols: V.
        futures: symbols ahead that are compared.
        tolerance: total variation up to which futures are the same.
        rare: probability of a symbol up to which it is taken for zero, and the others are divided by their sum.
        max_states: states to make at most.
        max_depth: states at this depth are not followed further.

    Raises:
        InputError: options out of range, or more futures than can be enumerated.

    Source: merging of histories by their futures, as in Crutchfield and Young (1989) and Shalizi and Klinkner (2004).
    """
    require_count("futures", futures)
    require(0 < tolerance < 1, "tolerance", "must be in (0, 1)", tolerance)
    require(0 <= rare < 1 / num_symbols, "rare", f"must be in [0, 1/{num_symbols})", rare)
    ahead = all_sequences(num_symbols, futures)

    def foretold(prefix: tuple[int, ...]) -> Float64[Tensor, "future"]:
        start = torch.tensor(prefix, dtype=torch.int64).expand(len(ahead), -1)
        joint = law(torch.cat([start, ahead], 1))
        return joint / joint.sum()

    prefixes: list[tuple[int, ...]] = [()]
    laws, edges, complete, node = [foretold(())], {}, True, 0
    while node < len(prefixes):
        emitted = laws[node].view(num_symbols, -1).sum(1)
        emitted = torch.where(emitted > rare, emitted, 0.0)
        emitted = emitted / emitted.sum()
        for symbol in emitted.nonzero()[:, 0].tolist():
            target = node
            if len(prefixes[node]) >= max_depth:
                complete = False
            else:
                prefix = (*prefixes[node], symbol)
                found = foretold(prefix)
                apart = 0.5 * (torch.stack(laws) - found).abs().sum(1)
                target = int(apart.argmin())
                if float(apart[target]) > tolerance:
                    if len(prefixes) < max_states:
                        target = len(prefixes)
                        prefixes.append(prefix)
                        laws.append(found)
                    else:
                        complete = False
            edges[symbol, node, target] = float(emitted[symbol])
        node += 1
    labelled = torch.zeros(num_symbols, len(prefixes), len(prefixes), dtype=torch.float64)
    for place, probability in edges.items():
        labelled[place] = probability
    recurrent = sorted(state for members in closed_classes(labelled.sum(0)) for state in members)
    return Automaton(tuple(prefixes), labelled, tuple(recurrent), complete)
