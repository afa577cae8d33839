"""What the tests of corpus share."""

import math

import numpy as np
import pytest
import torch

import hmmscope as hs
from comparing import refuses
from hmmscope.datasets.layouts import MAX_COLUMNS
from hmmscope.kernels.philox import KIND_COMPONENT, KIND_PATH
from strategies import rows

# ---------------------------------------------------------------------------------------------------------------------
# A third sampler, in NumPy: as simple as the plain one and fast enough for a million tokens


def numpy_philox(c0, c1, c2, c3, key):
    words = [np.asarray(c, np.uint64) for c in np.broadcast_arrays(c0, c1, c2, c3)]
    k0, k1 = key
    low, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    for _ in range(10):
        left, right = words[0] * np.uint64(0xD2511F53), words[2] * np.uint64(0xCD9E8D57)
        words = [
            (right >> half) ^ words[1] ^ np.uint64(k0),
            right & low,
            (left >> half) ^ words[3] ^ np.uint64(k1),
            left & low,
        ]
        k0, k1 = (k0 + 0x9E3779B9) % 2**32, (k1 + 0xBB67AE85) % 2**32
    return words


def numpy_draw(tables, words):
    """One draw from each table (n, 2^c) with each word (n,)."""
    bits = tables.shape[1].bit_length() - 1
    column = (words >> np.uint64(32 - bits)).astype(np.int64)
    remainder = words & np.uint64(2 ** (32 - bits) - 1)
    entry = tables[np.arange(len(words)), column].astype(np.uint64)
    alias = (entry & np.uint64(2**bits - 1)).astype(np.int64)
    return np.where(remainder < entry >> np.uint64(bits), column, alias)


def numpy_components(key, samples, table):
    words = numpy_philox(0, KIND_COMPONENT, samples & 0xFFFFFFFF, samples >> 32, key)
    return numpy_draw(np.broadcast_to(table, (len(samples), len(table))), words[0])


def numpy_paths(key, samples, components, starts, initial, transition, emission):
    observations, states = [], []
    for t, start in enumerate(starts):
        words = numpy_philox(t // 2, KIND_PATH, samples & 0xFFFFFFFF, samples >> 32, key)
        tables = initial[components] if start else transition[components, states[-1]]
        states.append(numpy_draw(tables, words[2 * (t % 2)]))
        observations.append(numpy_draw(emission[components, states[-1]], words[2 * (t % 2) + 1]))
    return np.stack(observations, 1), np.stack(states, 1)


# ---------------------------------------------------------------------------------------------------------------------
# Processes


def random_hmm(seed, num_states, num_symbols, zeros=0.0):
    rng = np.random.default_rng(seed)
    return hs.HMM(
        rows(rng, 1, num_states, zeros)[0],
        rows(rng, num_states, num_states, zeros),
        rows(rng, num_states, num_symbols, zeros),
    )


def random_mixture(seed, num_components, num_states, num_symbols, zeros=0.0):
    weights = rows(np.random.default_rng(seed), 1, num_components, zeros)[0]
    return hs.Mixture(weights, [random_hmm(seed + m, num_states, num_symbols, zeros) for m in range(num_components)])


PROCESSES = {
    "1x1": lambda: random_hmm(0, 1, 1),
    "1x5": lambda: random_hmm(1, 1, 5),
    "2x1": lambda: random_hmm(2, 2, 1),
    "3x4-zeros": lambda: random_hmm(3, 3, 4, 0.5),
    "5x3": lambda: random_hmm(4, 5, 3),
    "17x16": lambda: random_hmm(5, 17, 16, 0.3),
    "128x16": lambda: random_hmm(6, 128, 16),
    "mixture-1x2x2": lambda: random_mixture(7, 1, 2, 2),
    "mixture-3x4x3": lambda: random_mixture(8, 3, 4, 3, 0.4),
    "mixture-50x9x7": lambda: random_mixture(100, 50, 9, 7),
}

LAYOUTS = {
    "one": hs.SequenceLayout(length=1),
    "odd": hs.SequenceLayout(length=7),
    "even": hs.SequenceLayout(length=64),
    "no-demonstration": hs.PromptLayout(num_demonstrations=0, demonstration_length=1, test_length=3),
    "prompts": hs.PromptLayout(num_demonstrations=3, demonstration_length=4, test_length=5),
    "short-prompts": hs.PromptLayout(num_demonstrations=5, demonstration_length=1, test_length=1),
}


@pytest.fixture(scope="module", params=PROCESSES)
def process(request):
    return PROCESSES[request.param]()


def tables_of(process):
    return process.alias_tables[1:]


def same_paths(one, other):
    np.testing.assert_array_equal(one[0], other[0])
    np.testing.assert_array_equal(one[1], other[1])


#: Lanes are eight samples, thread blocks are made of lanes, and sample numbers go beyond 32 bits.
SAMPLES = np.array([0, 1, 2, 8, 5, 5, 2**32 - 1, 2**32, 2**32 + 1, 2**40 - 1, 77])


# ---------------------------------------------------------------------------------------------------------------------
# Any part equals the whole


def same_batch(batch, whole, chosen):
    for field in ("tokens", "observations", "states", "components"):
        part, full = getattr(batch, field), getattr(whole, field)
        assert (part is None) == (full is None)
        if part is not None:
            assert part.dtype == torch.int64
            assert torch.equal(part, full[chosen])


# ---------------------------------------------------------------------------------------------------------------------
# Pinned bits: a change of any of these is a new CORPUS_VERSION. All numbers are dyadic, so no library function enters


def coin():
    return hs.HMM([1.0], [[1.0]], [[0.5, 0.5]])


def weather():
    return hs.HMM(
        [0.5, 0.25, 0.25], [[0.5, 0.5, 0], [0, 0.75, 0.25], [0.125, 0, 0.875]], [[0.75, 0.25], [0, 1], [0.5, 0.5]]
    )


def cycle():
    matrix = np.roll(np.eye(5), 1, axis=1)
    return hs.HMM(np.eye(5)[2], matrix, np.eye(5))


def pair():
    other = hs.HMM([0, 0, 1], [[0, 1, 0], [0, 0, 1], [0.5, 0.5, 0]], [[0.0625, 0.9375], [1, 0], [0.5, 0.5]])
    return hs.Mixture([0.75, 0.25], [weather(), other])


PROMPTS = hs.PromptLayout(num_demonstrations=2, demonstration_length=3, test_length=4)

GOLDEN = {
    "coin": (
        lambda: hs.ProcessDataset(coin(), length=16, seed=0),
        "1100010100100011 0101110101111010 1110001011110100",
        "bd07f59c3f003f9c19651aa6aa90d666d20fba2d4d9bb748dc59f19fbc228fa3",
    ),
    "weather": (
        lambda: hs.ProcessDataset(weather(), length=9, seed=2**32 - 1, stream="train"),
        "111110100 000001000 111110110",
        "4a9b21ec5a87fff057b2e52e4a635ecbd4cf6642381ce2be16d97a8b2b7b5c3c",
    ),
    "cycle": (
        lambda: hs.ProcessDataset(cycle(), length=7, seed=5),
        "2340123 2340123 2340123",
        "2284b110b7c3f7be8489531dc87a95e470b41944b80d9decb95d917082d6c034",
    ),
    "pair": (
        lambda: hs.ProcessDataset(pair(), seed=1, layout=PROMPTS),
        "2011200121110 2010201020111 2111211020011",
        "aeef2b813391ea433131de4620bf674e5c5eada34bb7617b1681bafcb5fc295c",
    ),
}


# ---------------------------------------------------------------------------------------------------------------------
# Law of the samples

FALSE_ALARM = 1e-9


def follows(draws, law) -> bool:
    """Whether independent draws follow `law`, by the DKW bound on the distribution function and by exact zeros.

    False alarm at most 1e-9 (2 exp(-2 n e^2)). With n = 10^5 draws e = 0.0104, with 2 * 10^4 draws 0.0232: a
    distribution function that is wrong by twice that somewhere is missed with the same small probability.
    """
    counts = np.bincount(draws, minlength=len(law))
    bound = math.sqrt(math.log(2 / FALSE_ALARM) / (2 * len(draws)))
    law = np.asarray(law, dtype=float)
    return not counts[law == 0].any() and np.abs(np.cumsum(counts / len(draws) - law)).max() < bound


# ---------------------------------------------------------------------------------------------------------------------
# Refusals: one line that begins with the field


def refused(field, call):
    message = refuses(call)
    assert message.startswith(field), message


BAD_INDICES = [-1, 2**40, 0.5, "a", True, None, [0, -1], [0.5], [[0, 1]], [0, 10**30], [True, False]]
BAD_INDICES += [slice(0, None), slice(-3, 5), slice(0, -1), slice(5, 0, -1), slice(0, 2**62)]
BAD_INDICES += [slice(2**40 - 1, 2**40 + 1), np.array([0.0]), torch.tensor([-2])]


LENIENT = [slice(0.5, 3), slice(0, 2.5), slice("a", 3)]


BAD_CORPORA = {
    "length": [
        dict(),
        dict(length=0),
        dict(length=-1),
        dict(length=MAX_COLUMNS + 1),
        dict(length=2.2),
        dict(length=True),
        dict(length="4"),
        dict(length=3, layout=hs.SequenceLayout()),
    ],
    "seed": [dict(length=3, seed=-1), dict(length=3, seed=2**32), dict(length=3, seed=0.5), dict(length=3, seed=True)],
    "stream": [*(dict(length=3, stream=name) for name in ("Corpus", "", "transition", 5))],
}
