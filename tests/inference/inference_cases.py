"""What the tests of inference share."""

import functools
import math

import numpy as np
import torch

import hmmscope as hs
import oracles
from comparing import close, floats  # noqa: F401 - for who imports this
from strategies import KINDS, Matrices, rows, small_hmm, small_labelled, some_starts

#: 4 T S 2^-53 for the largest case here (T = 6, S = 4) is 1.1e-14; the promise is 1e-12.
RELATIVE = 1e-12


def close_logs(computed, exact):
    """As `close` for logarithms, where a probability near one leaves only its absolute error: S T 2^-53 is 3e-15."""
    computed = computed.numpy()
    exact = np.asarray(exact, dtype=np.float64)
    assert computed.shape == exact.shape
    assert not np.isnan(computed).any()
    finite = np.isfinite(exact)
    np.testing.assert_array_equal(computed[~finite], exact[~finite])
    np.testing.assert_allclose(computed[finite], exact[finite], rtol=RELATIVE, atol=1e-14)


def per_token_logs(prefix):
    """log P(o_t | o_0..o_{t-1}) from P(o_0..o_t); minus infinity from the first impossible prefix on."""
    before = [1, *prefix[:-1]]
    return [oracles.log_of(p / q) if q else -math.inf for p, q in zip(prefix, before, strict=True)]


def first_zero(prefix):
    return next((t for t, p in enumerate(prefix) if p == 0), -1)


def shifted(first, following):
    return [first, *following[:-1]]


def symbols(rng, batch, time, num_symbols):
    return torch.from_numpy(rng.integers(0, num_symbols, (batch, time)))


# ---------------------------------------------------------------------------------------------------------------------
# Against enumeration


def single_cases(seed, count):
    """Random HMMs with three random sequences each, half of them with restarts; many sequences are impossible."""
    rng = np.random.default_rng(seed)
    for _ in range(count):
        matrices = small_hmm(rng)
        time = int(rng.integers(1, 7 if len(matrices.initial) < 4 else 6))
        starts = some_starts(rng, time) if rng.random() < 0.5 else None
        yield matrices, symbols(rng, 3, time, matrices.emission.shape[1]), starts


SINGLE = list(single_cases(0, 250))


@functools.cache
def single_answers(number):
    """The answer by enumeration for each sequence of a case."""
    matrices, observations, starts = SINGLE[number]
    return [oracles.by_enumeration(oracles.exact(matrices), sequence, starts) for sequence in observations.tolist()]


def random_mixture(rng, zeros=0.3):
    num_components, num_states, num_symbols = (int(rng.integers(1, high)) for high in (5, 4, 4))
    weights = rows(rng, 1, num_components, zeros)[0]
    parts = [KINDS[rng.integers(len(KINDS))](rng, num_states, num_symbols) for _ in range(num_components)]
    return weights, parts


def mixture_cases(seed, count):
    rng = np.random.default_rng(seed)
    for _ in range(count):
        weights, parts = random_mixture(rng)
        time = int(rng.integers(1, 6))
        starts = some_starts(rng, time) if rng.random() < 0.6 else None
        yield weights, parts, symbols(rng, 3, time, parts[0].emission.shape[1]), starts


def path_cases(seed, count):
    """(process, observations, starts, paths): processes of either form with three sequences each, many of them impossible,
    sometimes restarts, and every hidden path of each sequence with its probability."""
    rng = np.random.default_rng(seed)
    for number in range(count):
        if number % 2:
            matrices = small_hmm(rng)
            hmm, enumerate_paths = hs.HMM(*matrices), oracles.enumerate_hidden_paths
        else:
            matrices = small_labelled(rng)
            hmm, enumerate_paths = hs.LabelledHMM(*matrices), oracles.enumerate_labelled_paths
        time = int(rng.integers(1, 6))
        starts = some_starts(rng, time) if rng.random() < 0.4 else None
        observations = symbols(rng, 3, time, hmm.num_symbols)
        yield (
            hmm,
            observations,
            starts,
            [enumerate_paths(oracles.exact(matrices), sequence, starts)[-1] for sequence in observations.tolist()],
        )


# ---------------------------------------------------------------------------------------------------------------------
# Metamorphic relations


def random_cases(seed, count=40, time=12):
    rng = np.random.default_rng(seed)
    for _ in range(count):
        matrices = KINDS[rng.integers(len(KINDS))](rng, int(rng.integers(2, 6)), int(rng.integers(2, 5)))
        yield rng, matrices, symbols(rng, 4, time, matrices.emission.shape[1])


def filtered(matrices, observations, **options):
    return hs.filter_beliefs(hs.HMM(*matrices), observations, **options)


def same_likelihood(one, other):
    assert torch.equal(one.impossible_at, other.impossible_at)
    close_logs(one.log_likelihood_terms, other.log_likelihood_terms)


def all_sequences(num_symbols, time):
    return torch.cartesian_prod(*[torch.arange(num_symbols)] * time).reshape(-1, time)


# ---------------------------------------------------------------------------------------------------------------------
# Underflow is not impossibility


def naive_filter_dies(matrices, observations):
    """Whether the recursion without logarithms ends at zero."""
    initial, transition, emission = matrices
    belief = initial * emission[:, observations[0]]
    for symbol in observations[1:]:
        total = belief.sum()
        if total == 0:
            return True
        belief = (belief / total) @ transition * emission[:, symbol]
    return belief.sum() == 0


def revived(num_quiet=60):
    """Two states that never mix. Symbol 0 is likely from state 0 and nearly impossible from 1; 2 comes from 1 only."""
    emission = np.array([[0.5, 0.5, 0.0], [2**-32, 0.0, 1 - 2**-32]])
    return Matrices(np.array([0.5, 0.5]), np.eye(2), emission), [0] * num_quiet + [2] * 3


def wandering(seed):
    """Two decoupled dense pairs of states, the second with emissions near 2^-32 of what the first says."""
    rng = np.random.default_rng(seed)
    transition = np.zeros((4, 4))
    transition[:2, :2], transition[2:, 2:] = rows(rng, 2, 2), rows(rng, 2, 2)
    rare = np.array([[1, 2, 2**32 - 3], [3, 1, 2**32 - 4]]) / 2**32
    emission = np.vstack([np.column_stack([rows(rng, 2, 2), np.zeros(2)]), rare])
    observations = [*rng.integers(0, 2, 70).tolist(), 2, 2, 0, 2, *rng.integers(0, 2, 20).tolist(), 2]
    return Matrices(rows(rng, 1, 4)[0], transition, emission), observations


def decoupled(rng, first, second):
    """One HMM that is, from the start and for ever, one or the other."""
    zeros = np.zeros((len(first.initial), len(second.initial)))
    return Matrices(
        rows(rng, 1, len(first.initial) + len(second.initial))[0],
        np.block([[first.transition, zeros], [zeros.T, second.transition]]),
        np.vstack([first.emission, second.emission]),
    )


NO_TIME = [(0, 0), (3, 0)]


# ---------------------------------------------------------------------------------------------------------------------
# Refusals


BAD_OBSERVATIONS = [
    (torch.tensor([[0, 1], [1, 2]]), r"^observations\[1, 1\]: symbol 2 is not in \[0, 2\)$"),
    (torch.tensor([[0, -1]]), r"^observations\[0, 1\]: symbol -1 "),
    (torch.tensor([[2**40]]), r"^observations\[0, 0\]: symbol 1099511627776 "),
    (torch.tensor(0), r"^observations: must have shape"),
    (torch.zeros(1, 2, 3, dtype=torch.int64), r"^observations: must have shape"),
    (torch.tensor([[0.0, 2.0]]), r"^observations\[0, 1\]: symbol 2 is not in \[0, 2\)$"),
    (torch.tensor([[0.0, 1e30]]), r"^observations\[0, 1\]: symbol 4611686018427387904 is not in \[0, 2\)$"),
    (
        torch.tensor([[0.5, 1.0]]),
        r"^observations: must be integers, got torch.float32; real numbers need a real-valued process",
    ),
    (torch.tensor([[0j, 1j]]), r"^observations: must be integers, got torch.complex64; pass X.real if"),
]


BAD_STARTS = [[True], [True] * 4, [False, True, True], [1, 0, 0], torch.ones(1, 3, dtype=torch.bool), np.zeros(3, bool)]


# ---------------------------------------------------------------------------------------------------------------------
# Planted states, well apart


def planted_hmm(num_states, num_symbols):
    """Each state stays with probability 0.9 and shows its own symbol with 0.88; the rest is shared equally."""
    transition = np.full((num_states, num_states), 0.1 / max(1, num_states - 1))
    np.fill_diagonal(transition, 0.9 if num_states > 1 else 1.0)
    emission = np.full((num_states, num_symbols), 0.12 / (num_symbols - 1))
    np.fill_diagonal(emission, 0.88)
    return hs.HMM(np.full(num_states, 1 / num_states), transition, emission)


def planted(num_states, num_symbols, *, count=10, length=100, seed=0):
    """Sequences of `planted_hmm` in one flat array, and their lengths."""
    observations = hs.ProcessDataset(planted_hmm(num_states, num_symbols), length=length, seed=seed)[
        0:count
    ].observations
    return observations.flatten().numpy(), np.full(count, length)
