"""Import of HMMER profile HMMs through pyhmmer; silent delete states are summed out.

A profile of M match states has paths B -> (M_1 | I_0 | D_1) -> ... -> E; only match states M_k and insert states I_k
emit. Row k of `transition_probabilities` has seven entries:

M_k -> M_{k+1}, I_k, D_{k+1};   I_k -> M_{k+1}, I_k;   D_k -> M_{k+1}, D_{k+1};   M_{M+1} = D_{M+1} = E, M_0 = B

The distribution enter[k] of the first emitting state, or E, after the delete state D_k is

enter[k] = P(M_{k+1} | D_k) delta(M_{k+1}) + P(D_{k+1} | D_k) enter[k+1],    delta(s) = point mass at state s.

The resulting HMM is the core model, without local alignment and flanking states.

Source: Durbin, Eddy, Krogh and Mitchison (1998), chapter 5; the HMMER User's Guide.
"""

from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from hmmscope.errors import DamagedError, HmmscopeError, InputError, ResourceError
from hmmscope.interop.numbers import attribute, numbers, rescaled
from hmmscope.processes.hmm import HMM
from hmmscope.schema import require_known
from hmmscope.storage import disk

_HINT = "pass a pyhmmer.plan7.HMM"
#: Largest accepted file; Titin, with 35 000 positions, has 25 MB.
_MOST_BYTES = 1 << 28
_ENDS = ("symbol", "repeat")

#: Files hold logarithms with five decimals; HMMER itself accepts rows this far from one.
_TOLERANCE = 1e-4

#: The symbol after the last residue.
END_SYMBOL = "*"


def from_pyhmmer(hmm: Any, *, end: Literal["symbol", "repeat"] = "symbol", allow_drop_tiny: bool = False) -> HMM:
    """Convert a HMMER profile to an HMM with states M_k and I_k, and an end state if `end` is "symbol".

    Args:
        hmm: `pyhmmer.plan7.HMM`, or an object with `M`, `alphabet.symbols`, `alphabet.K`, `match_emissions` (M+1, K),
            `insert_emissions` (M+1, K) and `transition_probabilities` (M+1, 7) in the order MM MI MD IM II DM DD.
        end: With "symbol" the end state emits `*` forever, so P(sequence x followed by `*`) is the core model's P(x).
            With "repeat" the profile starts again after its end.
        allow_drop_tiny: see `hmmscope.HMM`.

    Raises:
        InputError: `hmm` is not a profile, or its probabilities do not sum to 1, for example because of too few digits.
    """
    require_known("end", end, _ENDS)
    size = int(attribute(hmm, "M", _HINT))
    residues = str(attribute(hmm, "alphabet.symbols", _HINT))[: int(attribute(hmm, "alphabet.K", _HINT))]
    match, insert = (numbers(hmm, f"{kind}_emissions", 2, _HINT) for kind in ("match", "insert"))
    steps = numbers(hmm, "transition_probabilities", 2, _HINT)
    if steps.shape != (size + 1, 7) or match.shape != insert.shape or match.shape != (size + 1, len(residues)):
        raise InputError(
            f"profile: {size} nodes need transitions {(size + 1, 7)} and emissions {(size + 1, len(residues))}, got "
            f"transitions {steps.shape}, match emissions {match.shape} and insert emissions {insert.shape}"
        )
    emission = np.concatenate([_stochastic("match", match)[1:], _stochastic("insert", insert)])
    initial, transition = _fold_deletes(_stochastic_steps(steps), size)
    symbols, states = list(residues), [f"M{k}" for k in range(1, size + 1)] + [f"I{k}" for k in range(size + 1)]
    if end == "symbol":
        emission = np.pad(emission, ((0, 1), (0, 1)))
        emission[-1, -1] = 1
        symbols, states = [*symbols, END_SYMBOL], [*states, "end"]
    else:
        initial, transition = _begin_anew(initial, transition)
    name, accession, description = (_text(hmm, field) for field in ("name", "accession", "description"))
    about = ", ".join(part for part in (name, accession, description) if part)
    return HMM(
        initial,
        transition,
        emission,
        symbols=symbols,
        states=states,
        title=f"profile {name}".strip(),
        source=f"imported from HMMER ({about})",
        allow_drop_tiny=allow_drop_tiny,
    )


def load_hmmer(path: object, *, end: Literal["symbol", "repeat"] = "symbol", allow_drop_tiny: bool = False) -> HMM:
    """Load the profile in a HMMER file (.hmm) as an HMM; see `from_pyhmmer`.

    Raises:
        ResourceError: pyhmmer is not installed.
        InputError: the file does not exist, or has no or several profiles.
        DamagedError: the file is not a HMMER file.
    """
    try:
        from pyhmmer.plan7 import HMMFile
    except ImportError:
        raise ResourceError(f"{path}: reading HMMER files needs pyhmmer; pip install 'hmmscope[hmmer]'") from None
    try:
        with disk.reading(Path(str(path)), managed=False, limit=_MOST_BYTES) as stream, HMMFile(stream) as file:
            profiles = [profile for profile, _ in zip(file, range(2), strict=False)]
    except HmmscopeError:
        raise
    except Exception as error:  # pyhmmer raises EOFError, ValueError and errors of its own
        raise DamagedError(f"{path}: must be a HMMER file ({' '.join(str(error).split())[:200]})") from None
    if len(profiles) != 1:
        count = "more than one profile; extract one with hmmfetch" if profiles else "no profile"
        raise InputError(f"{path}: holds {count}")
    return from_pyhmmer(profiles[0], end=end, allow_drop_tiny=allow_drop_tiny)


def _text(hmm: Any, field: str) -> str:
    value = getattr(hmm, field, None) or ""
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def _stochastic(name: str, rows: NDArray[np.float64]) -> NDArray[np.float64]:
    rows = rescaled(rows, _TOLERANCE)
    if not (np.abs(rows.sum(-1) - 1) <= 1e-12).all():
        row = int(np.argmax(np.abs(rows.sum(-1) - 1)))
        raise InputError(
            f"profile: {name} row {row} sums to {rows[row].sum():.6g}; it must sum to 1 within {_TOLERANCE:g}"
        )
    return rows


def _stochastic_steps(steps: NDArray[np.float64]) -> NDArray[np.float64]:
    parts = zip(("match transitions", "insert transitions", "delete transitions"), (0, 3, 5), (3, 5, 7), strict=True)
    return np.concatenate([_stochastic(name, steps[:, a:b]) for name, a, b in parts], 1)


def _fold_deletes(steps: NDArray[np.float64], size: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    end = 2 * size + 1

    def match(node: int) -> int:
        return node - 1 if node <= size else end

    enter = np.zeros((size + 2, end + 1))
    enter[size + 1, end] = 1
    for node in range(size, 0, -1):
        enter[node] = steps[node, 6] * enter[node + 1]
        enter[node, match(node + 1)] += steps[node, 5]
    transition = np.zeros((end + 1, end + 1))
    initial = transition[end]  # filled as the row of B, and replaced below
    for node in range(size + 1):
        to_match, to_insert, to_delete, insert_to_match, insert_to_insert = steps[node, :5]
        row = transition[node - 1] if node else initial
        row += to_delete * enter[node + 1]
        row[match(node + 1)] += to_match
        row[size + node] += to_insert
        transition[size + node, match(node + 1)] += insert_to_match
        transition[size + node, size + node] += insert_to_insert
    initial = initial.copy()
    transition[end] = 0
    transition[end, end] = 1
    return initial, transition


def _begin_anew(
    initial: NDArray[np.float64], transition: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    if initial[-1] >= 1:
        raise InputError("profile: never emits a symbol; at least one path must emit a symbol")
    first = initial[:-1] / (1 - initial[-1])
    return first, transition[:-1, :-1] + transition[:-1, -1:] * first
