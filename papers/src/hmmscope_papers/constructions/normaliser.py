"""Division of a vector x by its sum, with O(log T) layers: the second half of [Limits] Theorem 5.3.

Each of T observations divides the sum of x >= 0 by at most C, so the sum is in [C^-T, 1]. Part 1 scales x to a sum in
[1, 3], in K = ceil(log2(T log2 C)) stages:

    x <- C^T x
    for k = 0, .., K - 1:   D = C^(T / 2^(k+1))
        v = sum(x);   q = p(v - D);   x <- (q / D + 1 - q) x          p(z) = ReLU(1 - ReLU(1 - z))

Part 2 is a geometric series:

    c = 1 - v / 3;   S = prod_{i < κ} (1 + c^(2^i));   result x S / 3;   κ = ceil(log2((T + ln 3) / ln(3/2)))

Source: [Limits] Appendix E, Theorem 5.3, with two corrections. With the paper's exponents floor(T / 2^(k+1))
(`exponents="floor"`) the series diverges. Equation E.53 misprints p(z) as ReLU(1 - ReLU(-z)).
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from hmmscope.reprs import Shown
from hmmscope.schema import require

Exponents = Literal["real", "floor"]


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """Stages of the network that divides x by its sum, for up to `length` observations.

    Attributes:
        length: Number of observations T.
        bound: Number C; one observation divides the sum of x by at most C.
        exponents: "real", or the paper's misprint "floor".

    Raises:
        InputError: The length is below 1, or the bound is not finite and above 1.
    """

    length: int
    bound: float
    exponents: Exponents = "real"

    def __post_init__(self) -> None:
        require(self.length >= 1, "length", "must be at least 1", self.length)
        require(1 < self.bound < math.inf, "bound", "must be finite and above 1", self.bound)
        require(self.exponents in ("real", "floor"), "exponents", "must be real or floor", self.exponents)

    @cached_property
    def powers(self) -> tuple[float, ...]:
        if self.exponents == "floor":
            stages = math.ceil(math.log2(self.length)) + 1
            return tuple(float(self.length // 2 ** (k + 1)) for k in range(stages))
        stages = max(0, math.ceil(math.log2(self.length * math.log2(self.bound))))
        return tuple(self.length / 2 ** (k + 1) for k in range(stages))

    @property
    def num_stages(self) -> int:
        return len(self.powers)

    @property
    def num_doublings(self) -> int:
        return math.ceil(math.log2((self.length + math.log(3)) / math.log(1.5)))

    @property
    def truncation(self) -> float:
        """Return the bound 3 (2/3)^(2^κ) <= e^-T on the truncation error."""
        return 3 * (2 / 3) ** (2**self.num_doublings)

    @property
    def log_largest(self) -> float:
        return self.length * math.log(self.bound)


@runtime_checkable
class Arithmetic(Protocol):
    """Interface of the operations that a number type needs besides + - * / and clip."""

    def power(self, base: float, exponent: float) -> Any: ...

    def multiply(self, left: Any, right: Any, largest: Any) -> Any:
        """Return left * right, where 0 <= left <= 1 and 0 <= right <= largest."""
        ...


@dataclass(frozen=True, repr=False)
class ExactProducts(Shown):
    """Products computed by the processor, not by GeLU neurons.

    Attributes:
        one: The number 1 in the type of the products.
    """

    one: Any = 1.0

    def power(self, base: float, exponent: float) -> Any:
        return (self.one * base) ** (self.one * exponent)

    def multiply(self, left: Any, right: Any, largest: Any) -> Any:
        return left * right


LONG_DOUBLE = ExactProducts(np.longdouble(1))


def largest_log(kind: type = np.longdouble) -> float:
    return float(np.log(np.finfo(kind).max))


@dataclass(frozen=True, repr=False)
class Normalised(Shown):
    """Result of a normaliser.

    Attributes:
        values: Approximation of x / sum(x) (..., state).
        sums: Sums of x before each stage of part 1 and after the last, v_0 .. v_K.
        scaled: Vector x after part 1.
    """

    values: Any
    sums: list[Any]
    scaled: Any


def normalise(vectors: Any, schedule: Schedule, arithmetic: Arithmetic) -> Normalised:
    base, largest = schedule.bound, arithmetic.power(schedule.bound, float(schedule.length))
    x = vectors * largest
    sums, largest = [x.sum(-1)], largest + 1
    for exponent in schedule.powers:
        threshold = arithmetic.power(base, exponent)
        q = gate(sums[-1] - threshold)
        x = arithmetic.multiply((q / threshold + (1 - q))[..., None], x, largest)
        sums.append(x.sum(-1))
        largest = threshold + 1
    c = 1 - sums[-1] / 3
    series = 1 + 0 * c
    for _ in range(schedule.num_doublings):
        series = series + arithmetic.multiply(c, series, 3)
        c = arithmetic.multiply(c, c, 1)
    return Normalised(arithmetic.multiply((x / 3), series[..., None], 3), sums, x)


def gate(z: Any) -> Any:
    """Return p(z) = ReLU(1 - ReLU(1 - z)), which is z clipped to [0, 1]."""
    return (1 - (1 - z).clip(min=0)).clip(min=0)


# ---------------------------------------------------------------------------------------------------------------------
# The same as a multilayer perceptron


@dataclass(frozen=True, repr=False)
class DenseLayer(Shown):
    """The layer activation(weight h + bias): ReLU for the first `num_relu` neurons, else GeLU; identity if `linear`."""

    weight: NDArray[np.float64]
    bias: NDArray[np.float64]
    num_relu: int
    linear: bool = False


def dense_layers(schedule: Schedule, num_states: int, gelu_scale: float) -> list[DenseLayer]:
    """Build the normaliser as a perceptron: 3 `num_stages` + `num_doublings` + 1 hidden layers and a linear layer.

    Args:
        schedule: Stages; C^T must fit in float64.
        num_states: Number of states n.
        gelu_scale: Number λ by which `gelu_product` divides its factors.

    Raises:
        InputError: C^T overflows.

    Source: [Limits] Theorem 5.3 (O(log T) layers, O(n) width), Lemmas D.1 to D.3.
    """
    require_range(schedule, np.float64)
    n, largest = num_states, schedule.bound**schedule.length
    signs = np.array([[1, 1], [-1, -1], [1, -1], [-1, 1]]) / gelu_scale
    outs = math.sqrt(2 * math.pi) * gelu_scale**2 / 8 * np.array([1.0, 1.0, -1.0, -1.0])

    def products(left: NDArray[np.float64], right: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.concatenate([signs @ np.stack(pair) for pair in zip(left, right, strict=True)])

    layers: list[DenseLayer] = []

    def add(rows: NDArray[np.float64], num_relu: int) -> None:
        layers.append(DenseLayer(rows[:, :-1], rows[:, -1], num_relu))

    x = _with_bias(largest * np.eye(n))
    largest += 1
    for exponent in schedule.powers:
        threshold = schedule.bound**exponent
        add(np.concatenate([x, -x, _constant(x, 1 + threshold) - x.sum(0, keepdims=True)]), 2 * n + 1)
        x, rest = _kept(n, 2 * n + 1), _row(2 * n + 1, {2 * n: 1.0})  # rest = ReLU(1 + D - v)
        one = _constant(rest, 1.0)
        add(np.concatenate([x, -x, one - rest, rest, rest - one]), 2 * n + 3)  # q, and two parts of 1 - q
        x, gain = _kept(n, 2 * n + 3), _row(2 * n + 3, {2 * n: 1 / threshold, 2 * n + 1: 1.0, 2 * n + 2: -1.0})
        add(products(np.repeat(gain, n, 0), x / largest), 0)
        x, largest = _with_bias(np.kron(np.eye(n), outs * largest).astype(np.float64)), threshold + 1
    c = _constant(x, 1.0) - x.sum(0, keepdims=True) / 3
    series = _constant(x, 1.0)
    for _ in range(schedule.num_doublings):
        add(np.concatenate([x, -x, series, -series, products(c, c), products(c, series / 3)]), 2 * n + 2)
        width = 2 * n + 10
        x, c = _kept(n, width), _row(width, dict(enumerate(outs, 2 * n + 2)))
        series = _row(width, {2 * n: 1.0, 2 * n + 1: -1.0} | dict(enumerate(3 * outs, 2 * n + 6)))
    add(products(x / 3, np.repeat(series / 3, n, 0)), 0)
    last = np.kron(np.eye(n), 3 * outs).astype(np.float64)
    layers.append(DenseLayer(last, np.zeros(n), 0, linear=True))
    return layers


def _with_bias(matrix: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.concatenate([matrix, np.zeros((len(matrix), 1))], 1)


def _constant(like: NDArray[np.float64], value: float) -> NDArray[np.float64]:
    return _row(like.shape[1] - 1, {-1: value})


def _row(width: int, entries: dict[int, float]) -> NDArray[np.float64]:
    weights = np.zeros((1, width + 1))
    for column, value in entries.items():
        weights[0, column] = value
    return weights


def _kept(count: int, width: int) -> NDArray[np.float64]:
    eye = np.eye(count)
    return np.concatenate([eye, -eye, np.zeros((count, width - 2 * count + 1))], 1)


def require_range(schedule: Schedule, kind: type) -> None:
    most = largest_log(kind) - 2
    rule = f"must have T ln C below {most:.0f} in {np.dtype(kind).name} (1/C: `least`, by default the least entry)"
    require(schedule.log_largest < most, "length", rule, f"T = {schedule.length}, T ln C = {schedule.log_largest:.0f}")
