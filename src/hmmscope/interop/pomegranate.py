"""Conversion of pomegranate HMMs with `Categorical` distributions and end probabilities.

In pomegranate, a sequence ends after state i with the end probability e_i. A model of S states built without end
probabilities has e_i = 1/S and transition rows that sum to one; in a fitted model, row i sums to 1 - e_i.
"""

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from hmmscope.errors import InputError
from hmmscope.interop.numbers import attribute, numbers, rescaled, source_of
from hmmscope.processes.hmm import HMM
from hmmscope.schema import require_known

#: pomegranate stores float32 logarithms.
_TOLERANCE = 1e-5
_HINT = "pass a pomegranate DenseHMM or SparseHMM with distributions, starts and edges"
_WAYS = ("refuse", "symbol", "continue")

#: The name of the symbol after the last one, if sequences end.
END = "end"


def from_pomegranate(
    model: Any, *, ends: Literal["refuse", "symbol", "continue"] = "refuse", allow_drop_tiny: bool = False
) -> HMM:
    """Convert a pomegranate HMM over symbols with end probabilities e_i to an HMM P:

    - If transition rows sum to one, end probabilities are ignored. If all e_i = e, pomegranate's log-likelihood is log
    P(o_0..o_{T-1}) + log e.
    - If rows sum to 1 - e, they are divided by 1 - e, unless `ends` is "symbol".
    P_pomegranate(o_0..o_{T-1}) = P(o_0..o_{T-1}) (1 - e)^{T-1} e.
    - If rows sum to 1 - e_i with unequal e_i, no HMM is exact for sequences of a given length; set `ends`.

    Args:
        model: object with `distributions` (each with `probs` (1, symbol)), and log probabilities `starts` (state,),
            `edges` (state, state) or the three edge lists of a SparseHMM, and `ends` (state,) or None.
        ends: if row i sums to 1 - e_i, "symbol" adds an absorbing state with the symbol "end" (exact), and "continue"
            divides row i by 1 - e_i; "refuse" does so for equal e_i, but raises an error for unequal e_i.
        allow_drop_tiny: see `hmmscope.HMM`.

    Raises:
        InputError: distributions are not categorical, end probabilities differ (see `ends`), or matrices are invalid.
    """
    require_known("ends", ends, _WAYS)
    initial = rescaled(np.exp(numbers(model, "starts", 1, _HINT)), _TOLERANCE)
    transition, emission = _edges(model, len(initial)), _emission(model)
    stop = np.exp(numbers(model, "ends", 1, _HINT)) if getattr(model, "ends", None) is not None else 0 * initial
    names = None
    sums = transition.sum(1)
    if np.abs(sums - 1).max() > _TOLERANCE and np.abs(sums + stop - 1).max() <= _TOLERANCE:
        if ends == "symbol":
            initial, transition, emission = _with_end_symbol(initial, transition, emission, stop)
            names = [*map(str, range(emission.shape[1] - 1)), END]
        elif ends == "continue" or np.ptp(stop) <= _TOLERANCE:
            if (sums <= 0).any():
                raise InputError(
                    f"edges[{int(np.argmin(sums))}]: the sequence always ends after this state; pass ends='symbol'"
                )
            transition = transition / sums[:, None]
        else:
            raise InputError(
                f"ends: end probabilities differ ({stop.min():.6g} to {stop.max():.6g}), so sequences of one length "
                "follow no HMM; pass ends='symbol' (exact, with an end symbol) or ends='continue' (endless sequences)"
            )
    return HMM(
        initial,
        rescaled(transition, _TOLERANCE),
        rescaled(emission, _TOLERANCE),
        symbols=names,
        source=source_of(model, "pomegranate"),
        allow_drop_tiny=allow_drop_tiny,
    )


def _edges(model: Any, size: int) -> NDArray[np.float64]:
    if getattr(model, "_edge_log_probs", None) is None:
        return np.exp(numbers(model, "edges", 2, _HINT))
    origin, target, log_probability = (
        numbers(model, name, 1, _HINT) for name in ("_edge_idx_starts", "_edge_idx_ends", "_edge_log_probs")
    )
    transition = np.zeros((size, size))
    np.add.at(transition, (origin.astype(int), target.astype(int)), np.exp(log_probability))
    return transition


def _emission(model: Any) -> NDArray[np.float64]:
    laws = [
        numbers(law, "probs", 2, "distributions must be Categorical to emit symbols")
        for law in attribute(model, "distributions", _HINT)
    ]
    shapes = sorted({law.shape for law in laws})
    if len(shapes) != 1 or shapes[0][0] != 1:
        raise InputError(f"distributions: probs must all have one shape (1, symbols), got {shapes}")
    return np.concatenate(laws)


def _with_end_symbol(
    initial: NDArray[np.float64],
    transition: NDArray[np.float64],
    emission: NDArray[np.float64],
    stop: NDArray[np.float64],
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    size, symbols = emission.shape
    longer = np.zeros((size + 1, size + 1))
    longer[:size, :size], longer[:size, size], longer[size, size] = transition, stop, 1
    emits = np.zeros((size + 1, symbols + 1))
    emits[:size, :symbols], emits[size, symbols] = emission, 1
    return np.append(initial, 0.0), longer, emits
