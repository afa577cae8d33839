"""Linear programs, solved by SciPy, for the observability coefficient gamma(E) of an emission matrix E."""

import importlib
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hmmscope.errors import ResourceError
from hmmscope.ties import smallest

Vector = NDArray[np.float64]


def ratio(v: Vector, emission: NDArray[np.float64]) -> float:
    return float(np.abs(v @ emission).sum() / np.abs(v).sum())


def programs(emission: NDArray[np.float64]) -> Callable[[Vector], Vector]:
    """Return a solver that maximizes signs @ v over vectors v with sum(v) = 0 and ||v E||_1 <= 1."""
    # The dual has a constraint per state only: maximize t over |z_i| <= 1 and c with E z + c 1 = t signs.
    linprog = _linprog()
    num_states, num_symbols = emission.shape
    cost = np.append(np.zeros(num_symbols + 1), -1.0)
    bounds = [(-1, 1)] * num_symbols + [(None, None)] * 2

    def solve(signs: NDArray[np.float64]) -> NDArray[np.float64]:
        equal = np.column_stack([emission, np.ones(num_states), -signs])
        found = linprog(cost, A_eq=equal, b_eq=np.zeros(num_states), bounds=bounds, method="highs")
        assert found.status == 0, found.message
        best: NDArray[np.float64] = found.eqlin.marginals - found.eqlin.marginals.mean()
        return best / np.abs(best).sum()

    return solve


def enumerate_signs(emission: NDArray[np.float64]) -> tuple[float, Vector]:
    """Compute gamma(E) and a vector v that attains it, with one linear program for each sign pattern of v."""
    solve = programs(emission)
    patterns = itertools.islice(itertools.product((1.0, -1.0), repeat=len(emission) - 1), 1, None)
    solved = (solve(np.array([1.0, *pattern])) for pattern in patterns)
    return smallest(((ratio(v, emission), v) for v in solved), lambda pair: pair[0])


def alternate(emission: NDArray[np.float64], starts: list[Vector]) -> tuple[float, Vector]:
    """Compute an upper bound on gamma(E) by optimizing the vector v and its signs in turn."""
    solve = programs(emission)
    best = smallest(starts, lambda v: ratio(v, emission))
    for v in starts:
        while ratio(better := solve(np.where(v >= 0, 1.0, -1.0)), emission) < ratio(v, emission) - 1e-12:
            v = better
        best = smallest((best, v), lambda v: ratio(v, emission))
    return ratio(best, emission), best


def certificate(emission: NDArray[np.float64]) -> float:
    """Compute a lower bound on gamma(E) by one linear program."""
    from scipy import sparse

    linprog = _linprog()
    num_states, num_symbols = emission.shape
    pairs = list(itertools.combinations(range(num_symbols), 2))
    eye = sparse.identity(num_states)
    # Unknowns: G (symbol-major), c, |G_i - G_j| for each pair, t.
    equal = sparse.hstack(
        [sparse.kron(emission, eye), sparse.kron(np.ones((num_states, 1)), eye),
         sparse.csr_matrix((num_states**2, len(pairs) * num_states + 1))]
    )  # fmt: skip
    differences = np.zeros((len(pairs), num_symbols))
    for row, (i, j) in enumerate(pairs):
        differences[row, i], differences[row, j] = 1, -1
    wide = sparse.kron(sparse.csr_matrix(differences), eye)
    absolute = sparse.identity(len(pairs) * num_states)
    no_c = sparse.csr_matrix((len(pairs) * num_states, num_states))
    no_t = sparse.csr_matrix((len(pairs) * num_states, 1))
    sums = sparse.kron(sparse.identity(len(pairs)), np.ones((1, num_states)) / 2)
    limits = sparse.vstack(
        [
            sparse.hstack([wide, no_c, -absolute, no_t]),
            sparse.hstack([-wide, no_c, -absolute, no_t]),
            sparse.hstack(
                [sparse.csr_matrix((len(pairs), (num_symbols + 1) * num_states)), sums, -np.ones((len(pairs), 1))]
            ),
        ]
    )
    num_unknowns = limits.shape[1]
    cost = np.zeros(num_unknowns)
    cost[-1] = 1
    free = (num_symbols + 1) * num_states
    found = linprog(
        cost, A_ub=limits.tocsr(), b_ub=np.zeros(limits.shape[0]), A_eq=equal.tocsr(), b_eq=np.eye(num_states).ravel(),
        bounds=[(None, None)] * free + [(0, None)] * (num_unknowns - free), method="highs",
    )  # fmt: skip
    if found.status != 0:
        return 0.0
    inverse = found.x[: num_symbols * num_states].reshape(num_symbols, num_states)
    growth = max(float(np.abs(inverse[i] - inverse[j]).sum()) / 2 for i, j in pairs)
    # The solver's residual in E G + 1 c = I moves v = (v E) G by at most its largest entry per state.
    constant = found.x[num_symbols * num_states : free]
    residual = float(np.abs(emission @ inverse + constant - np.eye(num_states)).sum(1).max())
    return max(0.0, (1 - residual) / growth)


def _linprog() -> Any:
    try:
        return importlib.import_module("scipy.optimize").linprog
    except ImportError:
        raise ResourceError("observability: needs SciPy; run pip install 'hmmscope[hmm]'") from None
