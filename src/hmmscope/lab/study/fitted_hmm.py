"""Description of a fitted HMM for the page of a study: emissions, transitions, and a decoded path."""

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

#: Maximum states shown (by occupancy), symbols per state, and observations of the path.
STATES, SYMBOLS, LENGTH = 8, 5, 128


def fitted_hmm(
    hmms: Mapping[int, HMM], data: SequenceData, sizes: Sequence[Mapping[str, Any]], best: int
) -> dict[str, Any]:
    """Return the contents of fitted.json for the chosen HMM.

    Returns:
        For each state its name, occupancy and most likely symbols; transitions; the symbols of a piece, "?" where
        missing, with its most likely path (-1 for a state that is not shown) and the posterior of each state (time,
        state).
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
        + ("the number with the smallest BIC." if sizes else "the best predictor."),
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
