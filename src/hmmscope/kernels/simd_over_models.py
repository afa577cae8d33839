"""Expected counts of the same sequences under eight models of one shape, with one model per SIMD lane.

Tables are flattened, with the lane as last axis. Formulas are those of `hmmscope.kernels.simd_over_sequences`.
"""

import math

import numpy as np

from hmmscope.kernels.compiling import kernel
from hmmscope.kernels.vectors import filled, fused, load, over, plus, put, times, where_positive

#: A tuple with one entry per lane.
BESIDE = (0,) * 8

#: Steps between divisions, smallest safe entry, and terms per partial sum.
_EVERY, _SMALLEST, _TERMS = 8, 1e-100, 1024


@kernel()
def forward(  # type: ignore[no-untyped-def]
    beside, first, step, emission, symbols, beliefs, norms, law, following, product, logs, doubtful
):
    """Filter one sequence; add its log-likelihoods to `logs`.

    Args:
        beside: The constant `BESIDE`, one entry per lane.
        first: P(o_0 = v, state 0 = s), shape (V, S, lane).
        step, emission: Transition (S, S, lane) and emission probabilities (V, S, lane).
        symbols: Observed symbols (T,).
        law, following, product: Work arrays (S, lane), (S, lane), (lane,).
        logs: Sums of log-likelihoods (lane,).
        doubtful: Underflow-risk mask (lane,), set by a belief below 1e-100 or an impossible symbol.
    """
    lanes = len(beside)
    size = len(law) // lanes
    last = filled(beside, 1.0)
    product[:] = 1.0
    for t in range(len(symbols)):
        row = symbols[t] * size * lanes
        norm = filled(beside, 0.0)
        for j in range(size):
            if t == 0:
                now = load(beside, first, row + j * lanes)
            else:
                now = times(load(beside, law, 0), load(beside, step, j * lanes))
                for i in range(1, size):
                    now = fused(load(beside, law, i * lanes), load(beside, step, (i * size + j) * lanes), now)
                now = times(now, load(beside, emission, row + j * lanes))
            put(beside, now, following, j * lanes)
            norm = plus(norm, now)
        inverse = over(filled(beside, 1.0), norm)
        place = t * size * lanes
        for j in range(size):
            put(beside, times(load(beside, following, j * lanes), inverse), beliefs, place + j * lanes)
        put(beside, over(norm, last), norms, t * lanes)
        last = norm
        if t % _EVERY == _EVERY - 1 or t + 1 == len(symbols):
            last = filled(beside, 1.0)
            put(beside, times(load(beside, product, 0), norm), product, 0)
            for lane in range(lanes):
                if not product[lane] > 0.0:
                    doubtful[lane] = True
                elif product[lane] < 1e-100:
                    logs[lane] += math.log(product[lane])
                    product[lane] = 1.0
            for j in range(size):
                for lane in range(lanes):
                    entry = beliefs[place + j * lanes + lane]
                    law[j * lanes + lane] = entry
                    doubtful[lane] |= 0.0 < entry < _SMALLEST
        else:
            law, following = following, law
    for lane in range(lanes):
        logs[lane] += math.log(product[lane]) if product[lane] > 0.0 else -np.inf


@kernel()
def backward(  # type: ignore[no-untyped-def]
    beside, step, emission, symbols, beliefs, norms, ahead, weight, sums, firsts, pairs, visits
):
    """Add the expected counts of one sequence, after `forward`.

    Args:
        beside, step, emission, symbols, beliefs, norms: Arguments and results of `forward`.
        ahead, weight, sums: Work arrays (S, lane), (S, lane), (S, S, lane).
        firsts, visits: Expected counts of first states (S, lane), and of symbols and states (V, S, lane).
        pairs: Sums of belief_t(i) weight_{t+1}(j) (S, S, lane); see `simd_over_sequences.backward`.
    """
    lanes = len(beside)
    size = len(ahead) // lanes
    one = filled(beside, 1.0)
    sums[:] = 0.0
    for t in range(len(symbols) - 1, -1, -1):
        place, row = t * size * lanes, symbols[t] * size * lanes
        whole = filled(beside, 0.0)
        for i in range(size):
            now = load(beside, beliefs, place + i * lanes)
            mean = one
            if t + 1 < len(symbols):
                mean = filled(beside, 0.0)
                for j in range(size):
                    entry, other = (i * size + j) * lanes, load(beside, weight, j * lanes)
                    mean = fused(load(beside, step, entry), other, mean)
                    put(beside, fused(now, other, load(beside, sums, entry)), sums, entry)
                mean = where_positive(now, mean)
            put(beside, mean, ahead, i * lanes)
            whole = fused(now, mean, whole)
        scale = over(one, whole)  # renormalise, so that rounding errors do not accumulate
        inverse = over(scale if t % _EVERY == 0 and t + 1 < len(symbols) else one, load(beside, norms, t * lanes))
        for i in range(size):
            mean, entry = load(beside, ahead, i * lanes), i * lanes
            joint = times(times(load(beside, beliefs, place + entry), mean), scale)
            put(beside, plus(load(beside, visits, row + entry), joint), visits, row + entry)
            if t == 0:
                put(beside, plus(load(beside, firsts, entry), joint), firsts, entry)
            put(beside, times(times(mean, inverse), load(beside, emission, row + entry)), weight, entry)
        if t % _TERMS == 0:
            for place in range(len(sums)):
                pairs[place] += sums[place]
            sums[:] = 0.0


@kernel()
def counts(  # type: ignore[no-untyped-def]
    beside, first, step, emission, symbols, offsets, lengths, room, small, firsts, pairs, visits, logs, doubts
):
    """Compute expected counts and log-likelihoods of sequences in a flat array.

    Other arguments are those of `forward` and `backward`.

    Args:
        offsets, lengths: Offset and length of each sequence (n,).
        room: Work array (longest, S + 1, lane).
        small: Work array (S + 2, S, lane).
        doubts: 1 for lanes with underflow risk, else 0 (lane,).
    """
    lanes = len(beside)
    size = len(firsts) // lanes
    law, following = small[: size * lanes], small[size * lanes : 2 * size * lanes]
    sums = small[2 * size * lanes :]
    product = np.empty(lanes)
    doubtful = np.zeros(lanes, np.bool_)
    longest = len(room) // ((size + 1) * lanes)
    beliefs, norms = room[: longest * size * lanes], room[longest * size * lanes :]
    for n in range(len(offsets)):
        own = symbols[offsets[n] : offsets[n] + lengths[n]]
        forward(beside, first, step, emission, own, beliefs, norms, law, following, product, logs, doubtful)
        backward(beside, step, emission, own, beliefs, norms, law, following, sums, firsts, pairs, visits)
    for lane in range(lanes):
        doubts[lane] = 1.0 if doubtful[lane] else 0.0
