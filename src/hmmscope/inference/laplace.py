"""How wide the posterior of a fitted HMM is: a normal law around its mode, and the evidence that follows."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hmmscope.inference.counts import Counts, add_counts
from hmmscope.inference.loop_inputs import Sequences, Tables
from hmmscope.kernels.quantise import UNIT
from hmmscope.processes.hmm import HMM
from hmmscope.reprs import Shown
from hmmscope.seeds import numpy_generator

Array = NDArray[np.float64]

#: Concentration of the uniform Dirichlet law, which is the prior of every row.
UNIFORM = 1.0
#: Steps of expectation maximisation towards the mode, and the gain in nats at which they end.
STEPS, GAIN = 100, 1e-4
#: How far logits are moved for second derivatives, and the least curvature of a direction, that of hardly any prior.
_STEP, _FLAT = 1e-3, 1e-2
#: More free parameters are not looked at: every one takes two steps of expectation.
MOST = 100


@dataclass(frozen=True, eq=False, repr=False)
class Laplace(Shown):
    """The posterior of an HMM under uniform rows, as a normal law of the logits of its rows, around its mode there.

    Attributes:
        rows: initial (1, S), transition (S, S) and emission (S, V) at the mode.
        log_evidence: log P(all observations | number of states), nats: over all labellings of the states.
        root: (parameter, parameter), root @ root.T is the covariance of the logits less that of the last entry of each row.
    """

    rows: tuple[Array, Array, Array]
    log_evidence: float
    root: Array

    def draws(self, count: int, seed: int = 0) -> tuple[Array, Array, Array]:
        """Rows drawn from that law (draw, ...)."""
        normals = numpy_generator(seed, "laplace").standard_normal((count, len(self.root)))
        moved, begin, found = normals @ self.root.T, 0, []
        for law in self.rows:
            size = law[:, 1:].size
            logits = np.log(law) + np.pad(
                moved[:, begin : begin + size].reshape(count, len(law), -1), ((0, 0), (0, 0), (0, 1))
            )
            begin += size
            found.append(_softmax(logits))
        return found[0], found[1], found[2]


def laplace(work: Sequences, start: HMM, num_threads: int | None = None) -> Laplace | None:
    """The normal approximation near a fit; None if there are more than `MOST` free parameters.

    log evidence = log P(o | mode) + log prior density of the logits + d/2 log(2 pi) - log det(-Hessian) / 2 + log S!

    In logits the mode under Dirichlet(1) rows is where every expected count gets one more; the slope is what counts and one
    are above the total times the law, and the Hessian comes from its differences.

    Source: MacKay (1998), "Choice of basis for Laplace approximation"; Fisher's identity for the slope.

    Args:
        work: packed sequences; the symbol V is a missing one.
        start: a fitted HMM.
        num_threads: of the steps of expectation; as many as torch has, if not said.

    Cost: up to 100 steps of expectation, and two for each free parameter.
    """
    shapes = (1, start.num_states), (start.num_states,) * 2, (start.num_states, start.num_symbols)
    places = [
        (part, row, k) for part, (rows, size) in enumerate(shapes) for row in range(rows) for k in range(size - 1)
    ]
    if len(places) > MOST:
        return None
    rows = [
        np.maximum(np.atleast_2d(part.numpy()), 1 / UNIT)
        for part in (start.initial_S, start.transition_SS, start.emission_SV)
    ]
    rows, before = [law / law.sum(1, keepdims=True) for law in rows], -math.inf
    for _ in range(STEPS):
        counts, log = expected(rows, work, num_threads)
        reached = log + sum(float(np.log(law).sum()) for law in rows)
        if reached - before < GAIN:
            break
        before = reached
        rows = [(count + UNIFORM) / (count + UNIFORM).sum(1, keepdims=True) for count in counts]
    curved = np.empty((len(places), len(places)))
    for number, (part, row, k) in enumerate(places):
        slopes = []
        for step in (_STEP, -_STEP):
            moved = [np.log(law) for law in rows]
            moved[part][row, k] += step
            slopes.append(_slope([_softmax(logits) for logits in moved], work, num_threads))
        curved[number] = (slopes[1] - slopes[0]) / (2 * _STEP)
    values, vectors = np.linalg.eigh((curved + curved.T) / 2)
    values = np.maximum(values, _FLAT)
    log, size = expected(rows, work, num_threads)[1], start.num_states
    prior = sum(len(law) * math.lgamma(law.shape[1]) + float(np.log(law).sum()) for law in rows)
    volume = (len(places) * math.log(2 * math.pi) - float(np.log(values).sum())) / 2
    found = rows[0], rows[1], rows[2]
    return Laplace(found, log + prior + volume + math.lgamma(size + 1), vectors / np.sqrt(values))


def expected(rows: list[Array], work: Sequences, num_threads: int | None = None) -> tuple[list[Array], float]:
    """Expected counts of initial law (1, S), transitions (S, S) and emissions (S, V), and the log-likelihood, nats."""
    initial, step, emission = rows
    size, num_symbols = emission.shape
    gaps = int(work.symbols.max(initial=0)) == num_symbols
    table = np.ascontiguousarray(np.pad(emission, ((0, 0), (0, int(gaps))), constant_values=1.0).T)
    counts = Counts(np.zeros(size), np.zeros((size, size)), np.zeros_like(table), np.zeros(len(work.rows)))
    add_counts(Tables(initial[0] * table, np.ascontiguousarray(step[None]), table), work, counts, num_threads)
    return [counts.first[None], counts.transitions, counts.visits[:num_symbols].T], float(counts.logs.sum())


def _softmax(logits: Array) -> Array:
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    found: Array = weights / weights.sum(-1, keepdims=True)
    return found


def _slope(rows: list[Array], work: Sequences, num_threads: int | None) -> Array:
    """Of the log-posterior by the logits, those of the last entries left out."""
    counts, _ = expected(rows, work, num_threads)
    parts = [
        count + UNIFORM - (count + UNIFORM).sum(1, keepdims=True) * law for count, law in zip(counts, rows, strict=True)
    ]
    return np.concatenate([part[:, :-1].ravel() for part in parts])
