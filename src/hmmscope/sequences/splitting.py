"""Assignment of sequences to training, validation and test parts by a hash of their contents."""

import hashlib
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from hmmscope.seeds import check_seed

#: Number of blocks of long sequences, shortest length of a block, and fewest pieces of which a tenth makes a test part.
_BLOCKS, _SHORTEST_BLOCK, _FEW_PIECES = 50, 16, 30


def hashes_of(sequences: Iterable[bytes], seed: int) -> list[bytes]:
    start = f"{check_seed(seed)}/".encode()
    return [hashlib.sha256(start + sequence).digest() for sequence in sequences]


def parts_of_hashes(keys: list[bytes], train: float = 0.8, validation: float = 0.1) -> NDArray[np.int64]:
    order = sorted(set(keys))
    num_validation, num_test = (max(1, round(share * len(order))) for share in (validation, 1 - train - validation))
    num_train = max(1, len(order) - num_validation - num_test)
    part_of = {key: (k >= num_train) + (k >= num_train + num_validation) for k, key in enumerate(order)}
    return np.array([part_of[key] for key in keys])


def block_length(num_steps: int) -> int:
    return -(-num_steps // max(1, min(_BLOCKS, num_steps // _SHORTEST_BLOCK)))


def piece_length(lengths: Iterable[int], length: int) -> int:
    counts = list(lengths)
    few = sum(-(-count // length) for count in counts) < _FEW_PIECES
    return min(length, block_length(sum(counts))) if few else length
