"""Named random streams: every random number of a run derives from (seed, purpose, index)."""

import hashlib

import numpy as np
import torch

from hmmscope.errors import InputError
from hmmscope.schema import shown

MAX_SEED = 2**32 - 1

#: Purposes of the counter-based streams. The codes are part of the dataset format: append only, never renumber.
PURPOSES = {
    "initial": 1,
    "transition": 2,
    "emission": 3,
    "cycle": 4,
    "matrix": 5,
    "pairs": 6,
    "transition-places": 7,
    "emission-places": 8,
    "lean": 9,
    "choices": 10,
    "left-factor": 14,
    "right-factor": 15,
    "corpus": 16,
    "train": 17,
    "evaluate": 18,
    "probe": 19,
    "shuffle": 20,
    "test": 21,
    "counting": 22,
    "monte-carlo": 32,
}
#: Streams of samples; the others draw processes, estimates and permutations.
STREAMS = ("corpus", "train", "evaluate", "probe", "test", "counting")

#: Names hashed into the seeds of weights, draws and intervals. Frozen: another string changes the random numbers, so renamed
#: code keeps its string here. A number follows names that end in "-" or "/".
NAMES = (
    "absolute-positions",
    "automaton",
    "baum-welch",
    "baum-welch-",
    "bootstrap",
    "bound-instance",
    "component-continued",
    "component-of-gaps",
    "component-of-paths",
    "continuations",
    "controls",
    "dropout/",
    "emission-fit",
    "emission-fit-",
    "entry",
    "epoch-order",
    "evidence",
    "forecast",
    "generators",
    "gibbs",
    "ginc",
    "given/",
    "header-edits",
    "held-out",
    "input-output",
    "input-output-fit",
    "language-twin",
    "lazy-chain",
    "mess3-mixture",
    "missing-observations",
    "names",
    "points",
    "probe",
    "process",
    "semi-markov-fit",
    "shuffle",
    "shuffled-labels",
    "shuffled-sequences",
    "shuffled-weights",
    "state-paths",
    "tiny-language-model",
    "twin",
    "weights",
)


def check_seed(seed: int, field: str = "seed") -> int:
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or not 0 <= int(seed) <= MAX_SEED:
        raise InputError(f"{field}: must be an integer in [0, {MAX_SEED}], got {shown(seed)}")
    return int(seed)


def philox_key(seed: int, purpose: str) -> tuple[int, int]:
    """Return the two 32-bit key words of the Philox stream for (seed, purpose)."""
    if purpose not in PURPOSES:
        raise InputError(f"stream: unknown purpose {purpose!r}; known: {', '.join(PURPOSES)}")
    return check_seed(seed), PURPOSES[purpose]


def derived_seed(seed: int, purpose: str, index: int = 0) -> int:
    """Return a 63-bit seed for library generators, a hash of (seed, purpose, index)."""
    digest = hashlib.sha256(f"{check_seed(seed)}/{purpose}/{index}".encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1


def torch_generator(seed: int, purpose: str, index: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(derived_seed(seed, purpose, index))


def numpy_generator(seed: int, purpose: str, index: int = 0) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(derived_seed(seed, purpose, index)))
