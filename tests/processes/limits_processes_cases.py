"""What the tests of limits processes share."""

import itertools

import numpy as np

import hmmscope as hs
from hmmscope.inference.floors import belief_floor, next_observation_floor
from strategies import rows


def chi_square(counts):
    counts = np.asarray(counts, float)
    return float(((counts - counts.mean()) ** 2 / counts.mean()).sum())


# ---------------------------------------------------------------------------------------------------------------------
# Cyclic processes

CYCLIC = {
    "det": ("cyclic-det", {}),
    "rnd": ("cyclic-rnd", {"backward_probability": 0.1}),
    "hard": ("cyclic-hard", {"prediction_rate": 0.25}),
    "small": ("cyclic-hard", {"num_states": 2, "num_symbols": 1, "prediction_rate": 1.0}),
}


def moore_hard(cycles, rate):
    """Cyclic-HARD as an HMM whose states emit, written from its definition: (s, a, 0), (s, 1), (s, 2)."""
    m, n = cycles.shape
    index = {(s, a, 0): s * m + a for s in range(n) for a in range(m)}
    index |= {(s, None, stage): n * m + (stage - 1) * n + s for s in range(n) for stage in (1, 2)}
    transition, emission = np.zeros((len(index),) * 2), np.zeros((len(index), m + 1 + n))
    for (s, a, stage), i in index.items():
        emission[i, {0: a, 1: m, 2: m + 1 + s}[stage]] = 1
        if stage == 1:
            transition[i, index[s, None, 2]] = 1
        for action in range(m) if stage != 1 else ():
            after = index[int(cycles[action, s]), action, 0]
            transition[i, after] += (1 - rate if stage == 0 else 1) / m
        if stage == 0:
            transition[i, index[s, None, 1]] += rate
    initial = np.zeros(len(index))
    for action in range(m):
        initial[index[int(cycles[action, 0]), action, 0]] = (1 - rate) / m
    initial[index[0, None, 1]] = rate
    return hs.HMM(initial, transition, emission)


def ran_hmm_floors(law, num_instances, num_steps=120):
    processes = [hs.make_process("ran-hmm", law=law, seed=seed) for seed in range(num_instances)]
    beliefs = [float(belief_floor(p, num_steps, num_samples=100).mean) for p in processes]
    following = [float(next_observation_floor(p, num_steps, num_samples=100).mean) for p in processes]
    return np.mean(beliefs), np.mean(following)


#: Law of the rows: belief entropy, its standard deviation over instances, the same for the next observation.
RAN_HMM = {
    "dirichlet": (1.257, 0.1, 1.532, 0.055),
    "softmax": (1.287, 0.11, 1.539, 0.045),
    "uniform": (1.421, 0.065, 1.577, 0.025),
}


# ---------------------------------------------------------------------------------------------------------------------
# From input-driven systems to HMMs: exhaustive enumeration


def dyadic_mdp(seed, num_states=3, num_actions=2):
    """A kernel `[a, i, j]` of multiples of 2^-16, so that nothing is rounded."""
    rng = np.random.default_rng(seed)
    return np.stack([rows(rng, num_states, num_states) for _ in range(num_actions)])


def mdp_law(kernels, num_steps):
    """P(s_0, a_1, s_1, .., a_t, s_t) by walking through all of them, from state 0."""
    m, n, _ = kernels.shape
    law = {((0,),): 1.0}
    for _ in range(num_steps):
        law = {
            (*path, (a, s)): p * kernels[a, path[-1][-1], s] / m
            for path, p in law.items()
            for a in range(m)
            for s in range(n)
        }
    return {tuple(itertools.chain(*path)): p for path, p in law.items()}


def chain_law(hmm, num_steps):
    """P(pair_0, .., pair_{t-1}) of the hidden pairs of an augmented HMM."""
    initial, transition = hmm.initial.tolist(), hmm.transition.tolist()
    law = {(pair,): p for pair, p in enumerate(initial)}
    for _ in range(num_steps - 1):
        law = {(*path, j): p * transition[path[-1]][j] for path, p in law.items() for j in range(len(initial))}
    return law


def discrepancy(one, other):
    return max(abs(one.get(key, 0.0) - other.get(key, 0.0)) for key in {*one, *other})


def general_system():
    rng = np.random.default_rng(0)
    spread = rng.normal(size=(2, 3, 3))
    noise = [m @ m.T + 0.1 * np.eye(3) for m in spread]
    return hs.LinearGaussian(
        rng.normal(size=(3, 3)) / 3,
        rng.normal(size=(2, 3)),
        initial=rng.normal(size=3),
        state_noise=noise[0],
        output_noise=noise[1][:2, :2],
    )


# ---------------------------------------------------------------------------------------------------------------------
# Refusals

BAD = [
    ("ran-hmm", {"law": "normal"}, "law"),
    ("ran-hmm", {"num_states": 0}, r"num_states: must be in \[1, 4096\]"),
    ("cyclic-det", {"num_states": 1}, r"num_states: must be in \[2, 1024\]"),
    ("cyclic-det", {"num_states": 3, "num_symbols": 3, "distinct": True}, "at most 2, the number of distinct cycles"),
    ("cyclic-det", {"num_states": 1024, "num_symbols": 65}, "num_symbols: must be at most 64"),
    ("cyclic-rnd", {"backward_probability": 1.5}, r"backward_probability: must be in \[0, 1\]"),
    ("cyclic-hard", {"prediction_rate": 0.0}, r"prediction_rate: must be in \(0, 1\]"),
    ("cyclic-hard", {"num_states": 200}, "at most 65536 pairs"),
    ("matmul", {"dimension": 0}, r"dimension: must be in \[1, 1024\]"),
    ("matmul", {"dimension": 1024, "num_symbols": 100}, r"must be at most 2\^26"),
    ("ran-lds", {"seed": -1}, "seed: must be an integer"),
    ("ran-lds", {"dimensions": 3}, "did you mean 'dimension'"),
]


EYE = np.eye(2)
BAD_SYSTEMS = [
    ((EYE[:1], EYE), {}, "transition: must have shape 1 x 1"),
    ((EYE, np.eye(3)), {}, "output: must have shape any x 2"),
    ((EYE * np.nan, EYE), {}, "transition: must be finite"),
    ((EYE, EYE), {"initial": [1.0]}, "initial: must have shape 2"),
    ((EYE, EYE), {"state_noise": -EYE}, "state_noise: must be a symmetric positive semidefinite"),
    ((EYE, EYE), {"output_noise": [[1.0, 0.5], [0.0, 1.0]]}, "output_noise: must be a symmetric"),
]
