"""Data on a fitted HMM for the page of a study: emissions, transitions, and a decoded state path."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from hmmscope.inference.paths import most_likely_states
from hmmscope.inference.smoothing import smooth_beliefs
from hmmscope.runs.state_answers import channels_of
from hmmscope.sequences.data import SequenceData
from hmmscope.sequences.gaps import MISSING
from hmmscope.sequences.vector_data import VectorData
from hmmscope.text import in_brief
from hmmscope.ties import descending, steady

#: Most states (by occupancy), most symbols of a state, and most observations of the path that are shown.
STATES, SYMBOLS, LENGTH = 8, 5, 128


def fitted_hmm(
    hmms: Mapping[int, Any], data: SequenceData | VectorData, sizes: Sequence[Mapping[str, Any]], best: int
) -> dict[str, Any]:
    """Return the contents of fitted.json for the chosen HMM.

    Returns:
        A mapping: "states" has the name, occupancy and most likely symbols (for numbers, mean ± standard deviation) of
        each state; "moves" the transition matrix; "symbols" the start of the longest sequence ("?" where missing);
        "path" its most likely states (-1: not shown); "beliefs" its smoothed state posterior (time, state).
    """
    chosen = next((row["num_states"] for row in sizes if row["chosen"]), best)
    hmm = hmms[chosen]
    tokens = data.padded() if isinstance(data, VectorData) else data.padded()[0]
    visits_S = smooth_beliefs(hmm, tokens, lengths=data.lengths).sum((0, 1))
    share_S = (visits_S / visits_S.sum().clamp_min(1e-300)).tolist()
    shown = sorted(descending(share_S)[:STATES])
    states = hmm.states or [f"state {s}" for s in range(hmm.num_states)]
    longest = data[int(data.lengths.argmax())][None, :LENGTH]
    path, beliefs_TS = most_likely_states(hmm, longest).states[0].tolist(), smooth_beliefs(hmm, longest)[0]
    place = {state: number for number, state in enumerate(shown)}
    if isinstance(data, VectorData):
        names = data.columns if data.columns and len(data.columns) > 1 else [""] * hmm.num_symbols
        channels = channels_of(hmm, names)
        count = len(names) - len(channels)
        each = zip(hmm.means[:, :count], hmm.variances.sqrt()[:, :count], strict=True)
        pairs = [zip(names[:count], *one, strict=True) for one in each]
        emits: list[Any] = [
            [[f"{name} {steady(m):.4g} ± {steady(d):.2g}".strip(), None] for name, m, d in one] for one in pairs
        ]
        for name, symbols, law in channels:
            for own, row in zip(emits, law.tolist(), strict=True):
                own += [
                    [f"{in_brief(f'{name} {symbols[v]}', 20)} {steady(row[v]):.2f}", None] for v in descending(row)[:1]
                ]
        known = [None] * count + [symbols for _, symbols, _ in channels]
        said = ["?" if row.isnan().all() else ", ".join(map(_said, row.tolist(), known)) for row in longest[0]]
    else:
        symbols = [in_brief(name, 12) for name in hmm.symbols or map(str, range(hmm.num_symbols))]
        emits = [[[symbols[v], steady(row[v])] for v in descending(row)[:SYMBOLS]] for row in hmm.emission.tolist()]
        said = ["?" if v == MISSING else symbols[v] for v in longest[0].tolist()]
    return {
        "why": f"This HMM has {chosen} state{'s' * (chosen != 1)}; "
        + ("this number of states has the smallest BIC." if sizes else "it is the best predictor."),
        "num_states": hmm.num_states,
        "states": [
            {"name": in_brief(states[s], 14), "share": steady(share_S[s]), "emits": emits[s][:SYMBOLS]} for s in shown
        ],
        "moves": [[steady(p) for p in row] for row in hmm.transition[shown][:, shown].tolist()],
        "symbols": said,
        "path": [place.get(s, -1) for s in path],
        "beliefs": torch.round(beliefs_TS[:, shown], decimals=3).tolist(),
    }


def _said(value: float, symbols: Sequence[str] | None) -> str:
    return f"{value:.4g}" if symbols is None else symbols[int(value)] if value == value else "?"
