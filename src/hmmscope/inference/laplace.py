"""How wide the posterior of a fitted HMM is: a normal law around its mode, and the evidence that follows."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hmmscope.inference.climbing import Model, counts_of, counts_of_several
from hmmscope.inference.counts import Counts
from hmmscope.inference.loop_inputs import Sequences
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
    own = [np.maximum(part, 1 / UNIT) for part in Model.of(start)]
    mode, before = Model(*(part / part.sum(-1, keepdims=True) for part in own)), -math.inf
    for _ in range(STEPS):
        counts = counts_of(mode, work, num_threads)
        reached = float(counts.logs.sum()) + sum(float(np.log(law).sum()) for law in mode)
        if reached - before < GAIN:
            break
        before = reached
        raised = [count + UNIFORM for count in (counts.first, counts.transitions, counts.visits.T)]
        mode = Model(*(part / part.sum(-1, keepdims=True) for part in raised))
    logits = [
        np.repeat(np.log(law).reshape(1, *shape), 2 * len(places), 0) for law, shape in zip(mode, shapes, strict=True)
    ]
    for number, (part, row, k) in enumerate(places):
        logits[part][2 * number : 2 * number + 2, row, k] += (_STEP, -_STEP)
    initial, step, emission = map(_softmax, logits)
    moved = Model(initial[:, 0], step, emission)
    slopes = _slopes(moved, counts_of_several(moved, work, num_threads))
    curved = (slopes[1::2] - slopes[::2]) / (2 * _STEP)
    values, vectors = np.linalg.eigh((curved + curved.T) / 2)
    values = np.maximum(values, _FLAT)
    log, size = float(counts_of(mode, work, num_threads).logs.sum()), start.num_states
    rows = mode.initial[None], mode.transition, mode.emission
    prior = sum(len(law) * math.lgamma(law.shape[1]) + float(np.log(law).sum()) for law in rows)
    volume = (len(places) * math.log(2 * math.pi) - float(np.log(values).sum())) / 2
    return Laplace(rows, log + prior + volume + math.lgamma(size + 1), vectors / np.sqrt(values))


def _softmax(logits: Array) -> Array:
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    found: Array = weights / weights.sum(-1, keepdims=True)
    return found


def _slopes(models: Model, counts: Counts) -> Array:
    """Of the log-posterior under each model by the logits, those of the last entries left out (model, parameter)."""
    parts = []
    for law, count in zip(models, (counts.first, counts.transitions, counts.visits.swapaxes(1, 2)), strict=True):
        raised = count + UNIFORM
        slope = raised - raised.sum(-1, keepdims=True) * law
        parts.append(slope[..., :-1].reshape(len(law), -1))
    return np.concatenate(parts, 1)
