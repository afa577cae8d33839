"""Random orthogonal matrices."""

import hashlib

import numpy as np
import torch

from hmmscope.axes import Float64, Tensor
from hmmscope.kernels.fixed_order import orthonormalise
from hmmscope.kernels.quantise import UNIT
from hmmscope.kernels.random_arrays import standard_normals


def haar_orthogonal(key: tuple[int, int], count: int, size: int) -> Float64[Tensor, "matrix row column"]:
    """Independent orthogonal matrices from Haar's (the uniform) law; matrix i depends on (key, size, i) alone.

    Q of the QR decomposition of independent N(0, 1) numbers, with the signs that make the diagonal of R positive; the same
    bits on every processor, for samples follow from them.

    Source: Mezzadri (2007), "How to generate random matrices from the classical compact groups".
    """
    matrices = standard_normals(key, np.arange(count), size, size)
    orthonormalise(matrices)
    return torch.from_numpy(matrices)


def float_digest(header: str, *matrices: Float64[Tensor, "..."]) -> str:
    """sha256 of a header and of matrices rounded to multiples of 2^-32, little-endian.

    Rounded, because the last bits of floats differ between platforms.
    """
    sha = hashlib.sha256(header.encode())
    for matrix in matrices:
        sha.update((matrix * UNIT).round().to(torch.int64).numpy().astype("<i8").tobytes())
    return sha.hexdigest()
