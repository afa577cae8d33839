"""Random orthogonal matrices."""

import hashlib

import numpy as np
import torch

from hmmscope.axes import Float64, Tensor
from hmmscope.kernels.fixed_order import orthonormalise
from hmmscope.kernels.quantise import UNIT
from hmmscope.kernels.random_arrays import standard_normals


def haar_orthogonal(key: tuple[int, int], count: int, size: int) -> Float64[Tensor, "matrix row column"]:
    """Draw independent orthogonal matrices from Haar measure; matrix i depends on (key, size, i) only.

    A matrix is the factor Q in the QR decomposition of a matrix of N(0, 1) numbers, where R has a positive diagonal.
    The bits are the same on every CPU.

    Source: Mezzadri (2007).
    """
    matrices = standard_normals(key, np.arange(count), size, size)
    orthonormalise(matrices)
    return torch.from_numpy(matrices)


def float_digest(header: str, *matrices: Float64[Tensor, "..."]) -> str:
    """Return the SHA-256 of a header and of matrices rounded to multiples of 2^-32."""
    sha = hashlib.sha256(header.encode())
    for matrix in matrices:
        sha.update((matrix * UNIT).round().to(torch.int64).numpy().astype("<i8").tobytes())
    return sha.hexdigest()
