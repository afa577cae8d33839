"""Products of matrices that uniform random symbols choose."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from hmmscope import registry
from hmmscope.axes import Float64, Int, Tensor
from hmmscope.errors import InputError
from hmmscope.processes.hmm import texts
from hmmscope.processes.orthogonal import float_digest, haar_orthogonal
from hmmscope.processes.params import EdgeEmissionParams
from hmmscope.processes.probability_rows import as_float64, stochastic_rows
from hmmscope.processes.process import Process
from hmmscope.schema import refuse_masked, require
from hmmscope.seeds import check_seed, philox_key


class MatrixProduct(Process):
    """Uniform random symbols; each multiplies a vector by its matrix, and models predict the vector.

    vector_t = matrices[observation_t] @ vector_{t-1}, where vector_{-1} is the first unit vector

    Attributes:
        matrices: float64 array.
        dimension: number of coordinates of the vector.

    Args:
        matrices: matrix of each symbol (symbol, dimension, dimension).
        title, source: free text.

    Raises:
        InputError: the shape is wrong, or a number is not finite.
    """

    stored_name = "MatrixProduct"

    default_target = "belief"
    num_states = 1
    file_format = "hmmscope-matrix-product"
    file_arrays = ("matrices",)
    file_fields = ("title", "source")

    def __init__(self, matrices: object, *, title: str = "", source: str = "") -> None:
        refuse_masked("matrices", matrices)
        self.matrices = torch.as_tensor(matrices, dtype=torch.float64)
        shape = tuple(self.matrices.shape)
        if len(shape) != 3 or shape[1] != shape[2] or 0 in shape:
            raise InputError(f"matrices: must have shape (symbols, n, n), got {shape}")
        if not bool(self.matrices.isfinite().all()):
            raise InputError("matrices: must be finite")
        self.num_symbols, self.dimension = shape[:2]
        uniform_1V, _ = stochastic_rows("symbols", [[1 / self.num_symbols] * self.num_symbols], (1, None))
        self.params = EdgeEmissionParams(self.component_weights[None], uniform_1V[:, :, None, None])
        self.title, self.source = title, source

    def file_tensors(self) -> dict[str, Tensor]:
        return {"matrices": self.matrices}

    @classmethod
    def from_file(cls, data: Mapping[str, Any], *, allow_drop_tiny: bool = False) -> "MatrixProduct":
        return cls(as_float64("matrices", data["matrices"]), **texts(data))

    @cached_property
    def params_digest(self) -> str:
        return float_digest(f"hmmscope-process/1/MatrixProduct/{tuple(self.matrices.shape)}", self.matrices)

    def vectors(
        self, observations: Int[Tensor, "batch time"], *, reset_mask: object = None
    ) -> Float64[Tensor, "batch time dimension"]:
        """Return the vector after each observation; the vector restarts where `reset_mask` (time,) is True.

        Raises:
            InputError: a symbol is outside [0, V).
        """
        if observations.numel() and not 0 <= int(observations.min()) <= int(observations.max()) < self.num_symbols:
            raise InputError(f"observations: must be symbols in [0, {self.num_symbols})")
        matrices_VDD = self.matrices.to(observations.device)
        unit_D = torch.eye(self.dimension, dtype=torch.float64, device=observations.device)[0]
        refuse_masked("starts", reset_mask)
        anew = (
            torch.zeros(observations.shape[1], dtype=torch.bool) if reset_mask is None else torch.as_tensor(reset_mask)
        )
        vectors = torch.empty(*observations.shape, self.dimension, dtype=torch.float64, device=observations.device)
        vector_BD = unit_D.expand(len(observations), -1)
        for t in range(observations.shape[1]):
            before_BD = unit_D.expand(len(observations), -1) if anew[t] else vector_BD
            vector_BD = (matrices_VDD[observations[:, t]] * before_BD[:, None, :]).sum(-1)
            vectors[:, t] = vector_BD
        return vectors

    def driving_matrices(
        self,
    ) -> tuple[Float64[Tensor, "symbol dimension dimension"], Float64[Tensor, " dimension"], bool]:
        return self.matrices, torch.eye(self.dimension, dtype=torch.float64)[0], False

    def __repr__(self) -> str:
        return f"MatrixProduct(dimension={self.dimension}, num_symbols={self.num_symbols})"


@registry.process("matmul")
@dataclass(frozen=True, kw_only=True)
class MatmulSpec:
    """Products of random orthogonal matrices (Haar measure) that uniform random symbols choose.

    Source: [Limits] §2.2 and Appendix C (MatMul).
    """

    dimension: int = 5
    num_symbols: int = 5
    seed: int = 0

    def __post_init__(self) -> None:
        check_seed(self.seed)
        require(1 <= self.dimension <= 1024, "dimension", "must be in [1, 1024]", self.dimension)
        require(1 <= self.num_symbols <= 4096, "num_symbols", "must be in [1, 4096]", self.num_symbols)
        numbers = self.dimension**2 * self.num_symbols
        require(numbers <= 2**26, "dimension", "dimension^2 * num_symbols must be at most 2^26", numbers)

    def build(self) -> MatrixProduct:
        matrices = haar_orthogonal(philox_key(self.seed, "matrix"), self.num_symbols, self.dimension)
        title = f"MatMul, {self.num_symbols} orthogonal matrices in {self.dimension} dimensions"
        return MatrixProduct(matrices, title=title, source="[Limits], MatMul")
