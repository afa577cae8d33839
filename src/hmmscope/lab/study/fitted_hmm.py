"""What the page of a study shows of a fitted HMM: what its states emit, where they lead, and the path through a piece."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from hmmscope.inference.paths import most_likely_states
from hmmscope.inference.smoothing import smooth_beliefs
from hmmscope.processes.hmm import HMM
from hmmscope.sequences.data import SequenceData
from hmmscope.sequences.gaps import MISSING
from hmmscope.text import in_brief
from hmmscope.ties import descending, steady

#: States that are shown, those most visited, symbols of each, and observations of the path.
STATES, SYMBOLS, LENGTH = 8, 5, 128


def fitted_hmm(
    hmms: Mapping[int, HMM], data: SequenceData, sizes: Sequence[Mapping[str, Any]], best: int
) -> dict[str, Any]:
    """The content of fitted.json: of the HMM with the number of states that the sequences speak for.

    Args:
        hmms: by their number of states, with the symbols of the data.
        data: pieces that they were not fitted to: how often states are visited is of these, and the path of the longest.
        sizes: rows of the table `states`; none of a study that was begun before there was one.
        best: states of the HMM that predicts best, which is shown then.

    Returns:
        Of each state that is shown its name, the share of time that is spent in it, and the symbols it emits most often;
        moves between them; the symbols of a piece, "?" where one is missing, with its likeliest path (-1 for a state that
        is not shown) and the belief about each state given all of the piece (time, state).
    """
    chosen = next((row["num_states"] for row in sizes if row["chosen"]), best)
    hmm = hmms[chosen]
    tokens, lengths = data.padded()
    visits_S = smooth_beliefs(hmm, tokens, lengths=lengths).sum((0, 1))
    share_S = (visits_S / visits_S.sum().clamp_min(1e-300)).tolist()
    shown = sorted(descending(share_S)[:STATES])
    states = hmm.states or [f"state {s}" for s in range(hmm.num_states)]
    symbols = [in_brief(name, 12) for name in hmm.symbols or map(str, range(hmm.num_symbols))]
    longest = data[int(data.lengths.argmax())][None, :LENGTH]
    path, beliefs_TS = most_likely_states(hmm, longest).states[0].tolist(), smooth_beliefs(hmm, longest)[0]
    place = {state: number for number, state in enumerate(shown)}
    emission = hmm.emission.tolist()
    return {
        "why": f"The HMM of {chosen} state{'s' * (chosen != 1)}, "
        + ("the number with the smallest BIC." if sizes else "which predicts best."),
        "num_states": hmm.num_states,
        "states": [
            {
                "name": in_brief(states[s], 14),
                "share": steady(share_S[s]),
                "emits": [[symbols[v], steady(emission[s][v])] for v in descending(emission[s])[:SYMBOLS]],
            }
            for s in shown
        ],
        "moves": [[steady(p) for p in row] for row in hmm.transition[shown][:, shown].tolist()],
        "symbols": ["?" if v == MISSING else symbols[v] for v in longest[0].tolist()],
        "path": [place.get(s, -1) for s in path],
        "beliefs": torch.round(beliefs_TS[:, shown], decimals=3).tolist(),
    }
