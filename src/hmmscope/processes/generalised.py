"""Generalised hidden Markov models."""

import cmath
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hmmscope import registry
from hmmscope.axes import Float64, Tensor
from hmmscope.errors import InputError
from hmmscope.kernels.linear import generalised_paths
from hmmscope.kernels.random_arrays import uniforms
from hmmscope.processes.capabilities import BELIEFS, FORECASTS, MEMORY, PREDICTIONS, WORDS
from hmmscope.processes.hmm import texts
from hmmscope.processes.orthogonal import float_digest
from hmmscope.processes.params import ROUNDING, SignedParams
from hmmscope.processes.probability_rows import as_float64, require_shape
from hmmscope.processes.process import Process, SampledPaths, check_samples
from hmmscope.schema import require
from hmmscope.seeds import philox_key

#: Largest number of sequences of one length whose probabilities are checked.
_MOST_WORDS = 20_000


class GeneralisedHMM(Process):
    """A process defined like a `LabelledHMM`, but with matrices that may have negative entries:

        P(o_0 .. o_T) = initial · labelled[o_0] ··· labelled[o_T] · (1, .., 1)

    The predictive vector, initial · labelled[o_0] ··· labelled[o_t] scaled to the sum 1, replaces the belief.

    Attributes:
        initial, labelled: float64 arrays.

    Args:
        initial: predictive vector before the first symbol (state,).
        labelled: matrix of each symbol (symbol, state, state); for each i, the entries `[:, i, :]` sum to one.
        title, source: free text.

    Raises:
        InputError: shapes or sums are wrong, or a sequence of a length L with num_symbols^L <= 20,000 has a
            negative probability.

    Source: Upper (1997); the observable operator models of Jaeger (2000).
    """

    stored_name = "GeneralisedHMM"

    uses_hmm_inference = frozenset({PREDICTIONS, BELIEFS, MEMORY, WORDS, FORECASTS})
    file_format = "hmmscope-generalised-hmm"
    file_arrays = ("initial", "labelled")
    file_fields = ("title", "source")

    def __init__(self, initial: object, labelled: object, *, title: str = "", source: str = "") -> None:
        first, matrices = as_float64("initial", initial), as_float64("labelled", labelled)
        require_shape("initial", first, (None,))
        require_shape("labelled", matrices, (None, len(first), len(first)))
        if not (np.isfinite(first).all() and np.isfinite(matrices).all() and matrices.size):
            raise InputError("initial and labelled: must be finite numbers for at least one symbol and one state")
        totals = {"initial": first.sum()} | {f"labelled[:, {i}]": row for i, row in enumerate(matrices.sum((0, 2)))}
        for name, total in totals.items():
            require(abs(total - 1) < 1e-9, name, "must sum to 1 within 1e-09", float(total))
        self.initial, self.labelled = torch.from_numpy(first), torch.from_numpy(matrices)
        self.num_symbols, self.num_states = matrices.shape[:2]
        self.params = SignedParams(self.initial[None], self.labelled[None])
        self.title, self.source = title, source
        words = self.initial[None]
        while len(words) * self.num_symbols <= _MOST_WORDS:
            words = torch.einsum("bi,vij->bvj", words, self.labelled).flatten(0, 1)
            least = float(words.sum(1).min())
            require(least > -ROUNDING, "labelled", "must give every symbol sequence a probability >= 0", least)
            if self.num_symbols == 1:
                break

    @classmethod
    def in_frame(cls, start: Tensor, step: Tensor, end: Tensor, frame: Tensor, **named: str) -> "GeneralisedHMM":
        """Build the process with P(o_0 .. o_T) = start · step[o_0] ··· step[o_T] · end in the basis `frame`.

        Args:
            start, end: vectors (S,).
            step: matrix of each symbol (V, S, S).
            frame: basis (S, S) of independent rows with row · end = 1.
            named: the fields `title` and `source`.
        """
        back = torch.linalg.pinv(frame)
        return cls(start @ back, frame @ step @ back, **named)

    @cached_property
    def params_digest(self) -> str:
        header = f"hmmscope-process/1/GeneralisedHMM/{self.num_states}/{self.num_symbols}"
        return float_digest(header, self.initial, self.labelled)

    def file_tensors(self) -> dict[str, Tensor]:
        return {"initial": self.initial, "labelled": self.labelled}

    @classmethod
    def from_file(cls, data: Mapping[str, Any], *, allow_drop_tiny: bool = False) -> "GeneralisedHMM":
        return cls(data["initial"], data["labelled"], **texts(data))

    def sample_paths(
        self, indices: NDArray[np.int64], reset_mask: NDArray[np.bool_], seed: int, stream: str = "corpus"
    ) -> SampledPaths:
        """Draw symbols by inverting their cumulative conditional distribution; all returned states are zero."""
        check_samples(indices)
        drawn = uniforms(philox_key(seed, stream), indices, len(reset_mask), 1)[..., 0]
        symbols = generalised_paths(self.initial.numpy(), self.labelled.numpy(), drawn, reset_mask, ROUNDING)
        return SampledPaths(torch.from_numpy(symbols), torch.zeros(symbols.shape, dtype=torch.int64), None)

    def __repr__(self) -> str:
        title = f", title={self.title!r}" if self.title else ""
        return f"GeneralisedHMM(num_states={self.num_states}, num_symbols={self.num_symbols}{title})"


def without_rounding(law: Float64[Tensor, "*batch symbol"]) -> Float64[Tensor, "*batch symbol"]:
    """Set probabilities up to 1e-12 (`ROUNDING`) to zero, as sampling does."""
    return law.masked_fill(law <= ROUNDING, 0.0)


#: Corners (1, x, z) of a triangle around the unit circle, which contains the Bloch vectors.
_TRIANGLE: Float64[Tensor, "3 3"] = torch.tensor(
    [[1.0, 2 * math.cos(turn), 2 * math.sin(turn)] for turn in (math.pi / 2, 7 * math.pi / 6, 11 * math.pi / 6)],
    dtype=torch.float64,
)


@registry.process("bloch-walk")
@dataclass(frozen=True, kw_only=True)
class BlochWalkSpec:
    """A qubit under weak measurements along two axes; no finite HMM generates this process.

    The Kraus operators are (alpha I ± beta σ) / √(4 (alpha² + beta²)) with the Pauli matrices σ = σ_z (symbols 0, 1)
    and σ_x (symbols 2, 3).

    Source: Riechers, Elliott and Shai (2025), who use alpha = 1 and beta = √51.
    """

    alpha: float = 1.0
    beta: float = 3.0

    def __post_init__(self) -> None:
        for name in ("alpha", "beta"):
            require(getattr(self, name) > 0, name, "must be positive", getattr(self, name))

    def build(self) -> GeneralisedHMM:
        both = self.alpha**2 + self.beta**2
        shrink, turn = (self.alpha**2 - self.beta**2) / both, 2 * self.alpha * self.beta / both
        steps = torch.zeros(4, 3, 3, dtype=torch.float64)  # on (1, x, z): the measured axis mixes with 1
        for symbol, (axis, sign) in enumerate(((2, 1), (2, -1), (1, 1), (1, -1))):
            steps[symbol].fill_diagonal_(1.0)
            steps[symbol, 3 - axis, 3 - axis] = shrink
            steps[symbol, 0, axis] = steps[symbol, axis, 0] = sign * turn
        one = torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64)
        source = "Riechers, Elliott and Shai (2025)"
        return GeneralisedHMM.in_frame(one, steps / 4, one, _TRIANGLE, title="Bloch walk", source=source)


@registry.process("post-quantum")
@dataclass(frozen=True, kw_only=True)
class PostQuantumSpec:
    """A process of dimension three that no finite-dimensional quantum model generates.

    After the first 0 the predictive vector is proportional to (x, 1, ln x), x > 0. Symbols 1 and 2 multiply x by `grow`
    and `shrink`; symbol 0, of unnormalized probability x - 1 - ln x, resets x to 1.

    Source: after Fanizza, Lumbreras and Winter (2024); ln(`grow`) / ln(`shrink`) must be irrational.
    """

    grow: float = 2.0
    shrink: float = 0.2

    def __post_init__(self) -> None:
        require(1 < self.grow <= 100, "grow", "must be in (1, 100]", self.grow)
        require(0.01 <= self.shrink < 1, "shrink", "must be in [0.01, 1)", self.shrink)

    def build(self) -> GeneralisedHMM:
        again, weight = (torch.tensor(row, dtype=torch.float64) for row in ([1.0, 1.0, 0.0], [1.0, -1.0, -1.0]))
        steps = [torch.outer(weight, again)]
        for factor in (self.grow, self.shrink):
            matrix = torch.diag(torch.tensor([factor, 1.0, 1.0], dtype=torch.float64))
            matrix[1, 2] = math.log(factor)
            steps.append(matrix)
        step = torch.stack(steps)
        largest, end = _leading(step.sum(0))
        _, start = _leading(step.sum(0).T)
        curve = torch.tensor([[x, 1.0, math.log(x)] for x in (self.grow, 1.0, self.shrink)], dtype=torch.float64)
        frame = curve / (curve @ end)[:, None]
        named = {"title": "post-quantum process", "source": "Fanizza, Lumbreras and Winter (2024)"}
        return GeneralisedHMM.in_frame(start / (start @ end), step / largest, end, frame, **named)


def _leading(matrix: Tensor) -> tuple[float, Tensor]:
    values, vectors = np.linalg.eig(matrix.numpy())
    first = int(values.real.argmax())
    return float(values[first].real), torch.from_numpy(np.ascontiguousarray(vectors[:, first].real))


@registry.process("probability-clock")
@dataclass(frozen=True, kw_only=True)
class ProbabilityClockSpec:
    """A process of dimension three that no finite HMM generates if `angle` / 2π is irrational.

    Symbol 1 rotates a vector by `angle` (radians) and multiplies it by `damping`; symbol 0 resets it. After a reset,
    P(next n symbols are 1) = damping^n (1 + height cos(n angle)) / (1 + height).

    Source: the probability clock of Jaeger (2000).
    """

    angle: float = 1.0
    damping: float = 0.5
    height: float = 0.5

    def __post_init__(self) -> None:
        require(0 < self.damping < 1, "damping", "must be in (0, 1)", self.damping)
        most = (1 - self.damping) / abs(1 - self.damping * cmath.exp(1j * self.angle))
        require(0 < self.height <= most, "height", f"must be in (0, {most:.4g}]", self.height)

    def build(self) -> GeneralisedHMM:
        c, s = math.cos(self.angle), math.sin(self.angle)
        turn = torch.tensor([[1, 0, 0], [0, c, -s], [0, s, c]], dtype=torch.float64)
        ones = self.damping * turn
        # Weight of the state after n ones: damping^n (1 + height cos(n angle)); symbol 0 has the remaining probability.
        end = torch.tensor([1.0, 1.0, 0.0], dtype=torch.float64)
        start = torch.tensor([1.0, self.height, 0.0], dtype=torch.float64) / (1 + self.height)
        step = torch.stack([torch.outer(end - ones @ end, start), ones])
        frame = torch.tensor([[1 - x, x, y] for x, y in ((0.0, 1.0), (0.5, 0.0), (0.0, -1.0))], dtype=torch.float64)
        return GeneralisedHMM.in_frame(start, step, end, frame, title="probability clock", source="Jaeger (2000)")
