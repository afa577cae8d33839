"""Vectors multiplied by one matrix per symbol: the setting of [Limits] Theorems 5.1 and 5.2."""

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch

from hmmscope.axes import Float64, Int64, Tensor
from hmmscope.errors import InputError
from hmmscope.processes.make import as_process
from hmmscope.reprs import Shown
from hmmscope.schema import require, shown
from hmmscope_papers.constructions.constructed import check_tokens

#: Largest entry of |A^T A - I| for which A counts as orthogonal.
ORTHOGONAL_TOLERANCE = 1e-10

Kind = Literal["permutation", "map", "orthogonal", "general"]


@dataclass(frozen=True, eq=False, repr=False)
class DrivenSystem(Shown):
    """A vector that is multiplied by one matrix per symbol.

    vector_t = matrices[symbol_t] @ vector_{t-1},  vector_0 = initial

    The placeholder, token `num_symbols`, leaves the vector unchanged.

    Attributes:
        matrices_VSS: One matrix per symbol, applied to column vectors.
        initial_S: Vector before the first symbol.

    Source: [Limits] E.1.
    """

    matrices_VSS: Float64[Tensor, "symbol state state"]
    initial_S: Float64[Tensor, " state"]

    @property
    def num_symbols(self) -> int:
        return len(self.matrices_VSS)

    @property
    def num_states(self) -> int:
        return len(self.initial_S)

    @cached_property
    def with_identity(self) -> Float64[Tensor, "token state state"]:
        eye = torch.eye(self.num_states, dtype=torch.float64)
        return torch.cat([self.matrices_VSS, eye[None]])

    @cached_property
    def kind(self) -> Kind:
        matrices = self.matrices_VSS
        if bool(((matrices == 0) | (matrices == 1)).all()) and bool((matrices.sum(1) <= 1).all()):
            return "permutation" if bool((matrices.sum(1) == 1).all() & (matrices.sum(2) == 1).all()) else "map"
        gram = matrices.mT @ matrices - torch.eye(self.num_states, dtype=torch.float64)
        return "orthogonal" if float(gram.abs().max()) <= ORTHOGONAL_TOLERANCE else "general"

    @cached_property
    def sums(self) -> tuple[float, float]:
        """Return a bound on absolute row sums, and one on column sums, of products of the matrices.

        Raises:
            InputError: The matrices are neither 0/1 maps nor orthogonal.
        """
        n = self.num_states
        if self.kind == "general":
            raise InputError("process: matrices must be 0/1 maps or orthogonal; products of others have no known bound")
        return {"permutation": (1.0, 1.0), "map": (float(n), 1.0), "orthogonal": (n**0.5, n**0.5)}[self.kind]

    @property
    def smallest_scale(self) -> float:
        """Return 2‖vector_0‖ (1-norm for 0/1 maps, else 2-norm), a scale that makes Theorem 5.1 exact on all sequences.

        Raises:
            InputError: The matrices are neither 0/1 maps nor orthogonal.
        """
        require(self.kind != "general", "scale", "must be given unless matrices are 0/1 maps or orthogonal", None)
        return 2 * float(torch.linalg.vector_norm(self.initial_S, 2 if self.kind == "orthogonal" else 1))

    def vectors(self, tokens: Int64[Tensor, "batch time"]) -> Float64[Tensor, "batch time state"]:
        check_tokens(tokens, self.num_symbols + 1)
        matrices = self.with_identity.to(tokens.device)
        vectors = torch.empty(*tokens.shape, self.num_states, dtype=torch.float64, device=tokens.device)
        vector_BS = self.initial_S.to(tokens.device).expand(len(tokens), -1)
        for t in range(tokens.shape[1]):
            vector_BS = (matrices[tokens[:, t]] * vector_BS[:, None, :]).sum(-1)
            vectors[:, t] = vector_BS
        return vectors


def driven_system(process: object, initial: object = None) -> DrivenSystem:
    """Return the driven system of a process, or of matrices.

    A deterministic `LabelledHMM` has A_v[j, i] = 1 if symbol v leads from state i to state j, else 0.

    Args:
        process: Deterministic `LabelledHMM`, `MatrixProduct`, name of one, matrices (symbol, n, n), or `DrivenSystem`.
        initial: Vector before the first symbol (default: an HMM's initial distribution, else the first unit vector).

    Raises:
        InputError: The process is of another type, not deterministic, or has a random initial state; or a matrix or
            vector has a wrong shape or is not finite.
    """
    if isinstance(process, DrivenSystem) and initial is None:
        return process
    if isinstance(process, str):
        process = as_process(process)
    driving = getattr(process, "driving_matrices", None)
    if driving is not None:  # a process
        matrices, default, told = driving()
        start = default if initial is None else _vector(initial)
        unit = int((start != 0).sum()) == 1
        rule = "must have one nonzero entry (a known state), because symbol probabilities depend on the state"
        require(unit or not told, "initial", rule, shown(start.tolist()))
    else:
        matrices = _numbers("process", process)
        shape = tuple(matrices.shape)
        good = len(shape) == 3 and shape[1] == shape[2] and 0 not in shape
        require(good, "process", "must have shape (symbols, n, n)", shape)
        require(bool(matrices.isfinite().all()), "process", "must be finite", matrices)
        default = torch.eye(shape[1], dtype=torch.float64)[0]
    start = default if initial is None else _vector(initial)
    shape = tuple(start.shape)
    require(shape == (matrices.shape[1],), "initial", f"must have {matrices.shape[1]} numbers", shape)
    require(bool(start.isfinite().all()) and bool((start != 0).any()), "initial", "must be finite and not zero", start)
    return DrivenSystem(matrices, start)


def _vector(initial: object) -> Tensor:
    return _numbers("initial", initial)


def _numbers(field: str, values: object) -> Tensor:
    try:
        return torch.as_tensor(values, dtype=torch.float64)
    except (TypeError, ValueError, RuntimeError):
        raise InputError(f"{field}: must be numbers, got {shown(values)}") from None
