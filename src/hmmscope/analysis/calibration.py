"""Calibration: a sequential test of whether supposedly exact probabilities fit the outcomes.

For the exact probabilities p_t of observation y_t and any other probabilities q_t, both given the past,

    E[ q_t(y_t) / p_t(y_t) | past ] <= 1,

so the product of ratios exceeds 1/δ with probability at most δ (Markov's inequality). The alternatives q (bets) are p
to a power, p with changed odds of one symbol, and averages of p with uniform, previous or n-gram predictions.
"""

import math
from collections import defaultdict
from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray

from hmmscope.axes import Float64, Int64, Tensor
from hmmscope.ties import largest

#: Largest probability of a false alarm per evaluation.
FALSE_ALARM = 1e-6
#: p^power is flatter (power < 1) or sharper than p.
POWERS = (0.25, 0.5, 0.75, 0.9, 1.1, 1.5, 2.0, 4.0)
#: Factors by which the odds of a symbol are changed.
ODDS = (0.5, 0.8, 1.25, 2.0)

#: Log winnings of each bet, by name.
Winnings = dict[str, float]


def bet(
    law: Float64[Tensor, "batch judged outcome"],
    happened: Int64[Tensor, "batch judged"],
    positions: NDArray[np.int64],
    others: Mapping[str, Float64[Tensor, "batch judged outcome"]] | None = None,
    *,
    in_order: bool = True,
) -> Winnings:
    """Return the log winnings of each bet q: log(q(outcome) / p(outcome)) summed over the batch."""
    log_BJV = law.log()
    seen_BJ = log_BJV.gather(2, happened[..., None])[..., 0]
    if bool(torch.isinf(seen_BJ).any()):
        return {"an outcome of probability zero": math.inf}
    gains: dict[str, Tensor] = {}
    for power in POWERS:
        what = f"the optimum's probabilities to the power of {power:g}"
        gains[what] = (power - 1) * seen_BJ - (power * log_BJV).logsumexp(2)
    mixed = {"uniform probabilities": torch.full_like(law, 1 / law.shape[2]), **(others or {})}
    if in_order:
        mixed["the previous prediction"] = torch.cat([law[:, :1], law[:, :-1]], 1)
    for name, other in mixed.items():
        ratio_BJ = other.gather(2, happened[..., None])[..., 0] / seen_BJ.exp()
        gains[name] = torch.log1p((ratio_BJ - 1) / 2)  # half of the stake on each
    won: Winnings = defaultdict(float)
    places = _places(positions) if in_order else {f" at column {j}": np.array([j]) for j in range(len(positions))}
    for where, columns in places.items():
        for name, gain_BJ in gains.items():
            won[f"{name}{where}"] += float(gain_BJ[:, columns].sum())
        won |= _on_symbols(law[:, columns], happened[:, columns], where)
    return dict(won)


def _places(positions: NDArray[np.int64]) -> dict[str, NDArray[np.int64]]:
    octave = np.frexp(positions)[1]
    found = {f" at positions {2**k // 2} to {2**k - 1}": np.flatnonzero(octave == k) for k in np.unique(octave)}
    return {"": np.arange(len(positions))} | found


def _on_symbols(probs: Tensor, happened: Tensor, where: str) -> Winnings:
    counts_V = torch.bincount(happened.flatten(), minlength=probs.shape[2]).double()
    won = {}
    for odds in ODDS:
        gain_V = math.log(odds) * counts_V - torch.log1p(probs * (odds - 1)).sum((0, 1))
        for symbol, gain in enumerate(gain_V.tolist()):
            won[f"the odds of symbol {symbol} times {odds:g}{where}"] = gain
    return won


def miscalibrated(won: Winnings, spare: float = 0.0) -> str | None:
    """Return why the tested probabilities cannot be exact, or None if they may be.

    Args:
        won: log winnings of each bet on all samples.
        spare: nats by which log winnings may exceed the threshold log(len(won) / `FALSE_ALARM`).
    """
    best = largest(won, won.__getitem__) if won else None
    if best is None or not won[best] - spare > math.log(len(won) / FALSE_ALARM):
        return None
    if math.isinf(won[best]):
        return "the optimum gives probability zero to an observed outcome, so the optimum is wrong"
    return (
        f"the optimum is not calibrated: another prediction ({best}) makes the outcomes e^{won[best]:.0f} times as "
        f"likely, a factor that an exact optimum reaches less than once in {1 / FALSE_ALARM:,.0f} evaluations"
    )
