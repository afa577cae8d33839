"""Division of a vector by its sum with ReLU, products and O(log T) layers: the second half of [Limits] Theorem 5.3.

x (n numbers >= 0) has a sum in [C^-T, 1]. Part 1 brings it into [1, 3] by K stages, each a gate and n products:

    x <- C^T x
    for k = 0 .. K - 1:   D = C^(T / 2^(k+1))
        v = sum(x);   q = p(v - D);   x <- (q / D + 1 - q) x          p(z) = ReLU(1 - ReLU(1 - z)), z clipped to [0, 1]

    invariant: min(v_0, 1) <= v_k <= C^(T / 2^k) + 1;   K = ceil(log2(T log2 C)), so that v_K is in [1, 3]

A gate multiplies all of x by one number, so that its errors leave x / sum(x) as it is. Part 2 is a geometric series:

    c = 1 - v / 3;   S = prod_{i < kappa} (1 + c^(2^i)) = sum_{j < 2^kappa} c^j;   result x S / 3
    truncation <= 3 (2/3)^(2^kappa) <= e^-T   for   kappa = ceil(log2((T + ln 3) / ln(3/2)))

Source: [Limits] App. E, Theorem 5.3, with two corrections. The paper's exponents floor(T / 2^(k+1)) leave a factor of up
to C, with which the series diverges (`exponents="floor"` shows it); its p clips nothing above zero (E.53).

C^T is beyond float64 from T ln C = 709 on. The numbers here are therefore of any kind: float64 or long double arrays,
torch tensors, or arrays of arbitrary-precision numbers, with an `Arithmetic` that knows powers and products.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from hmmscope.schema import require

Exponents = Literal["real", "floor"]


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """The stages of a normaliser for sequences of at most `length` observations.

    Attributes:
        length: T.
        bound: C; one observation divides the sum by at most this.
        exponents: "real", or the paper's "floor".

    Raises:
        InputError: length below 1, or a bound that is not above 1 and finite.
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
        """log_C of the threshold D of each stage."""
        if self.exponents == "floor":
            stages = math.ceil(math.log2(self.length)) + 1
            return tuple(float(self.length // 2 ** (k + 1)) for k in range(stages))
        stages = max(0, math.ceil(math.log2(self.length * math.log2(self.bound))))
        return tuple(self.length / 2 ** (k + 1) for k in range(stages))

    @property
    def num_stages(self) -> int:
        """K."""
        return len(self.powers)

    @property
    def num_doublings(self) -> int:
        """kappa."""
        return math.ceil(math.log2((self.length + math.log(3)) / math.log(1.5)))

    @property
    def truncation(self) -> float:
        """What cutting the series off can cost at most, where part 1 ends in [1, 3]: 3 (2/3)^(2^kappa) <= e^-T."""
        return 3 * (2 / 3) ** (2**self.num_doublings)

    @property
    def log_largest(self) -> float:
        """Natural logarithm of the largest number that occurs, C^T."""
        return self.length * math.log(self.bound)


class Arithmetic(Protocol):
    """What a kind of numbers must know besides + - * / and clip."""

    def power(self, base: float, exponent: float) -> Any:
        """base^exponent as one number."""
        ...

    def multiply(self, left: Any, right: Any, largest: Any) -> Any:
        """left * right, both >= 0, with left <= 1 and right <= largest."""
        ...


@dataclass(frozen=True)
class ExactProducts:
    """Products as the hardware makes them, in the type of `one`; powers too large for it are infinite.

    Attributes:
        one: the number 1: ``np.longdouble(1)``, or 1.0 for float64 arrays and tensors.
    """

    one: Any = 1.0

    def power(self, base: float, exponent: float) -> Any:
        return (self.one * base) ** (self.one * exponent)

    def multiply(self, left: Any, right: Any, largest: Any) -> Any:
        return left * right


LONG_DOUBLE = ExactProducts(np.longdouble(1))


def largest_log(kind: type = np.longdouble) -> float:
    """Natural logarithm of the largest number of a NumPy type."""
    return float(np.log(np.finfo(kind).max))


@dataclass(frozen=True)
class Normalised:
    """What a normaliser does to vectors.

    Attributes:
        values: x / sum(x), approximately (..., state).
        sums: v_0 .. v_K, each (...), in the arithmetic's numbers.
        scaled: x after part 1 (..., state).
    """

    values: Any
    sums: list[Any]
    scaled: Any


def normalise(vectors: Any, schedule: Schedule, arithmetic: Arithmetic) -> Normalised:
    """Run the two parts on vectors (..., state); see the module."""
    base = schedule.bound
    x = vectors * arithmetic.power(base, schedule.length)
    sums = [x.sum(-1)]
    largest = arithmetic.power(base, schedule.length) + 1
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
    """p(z) = ReLU(1 - ReLU(1 - z)): 0 below 0, z in between, 1 above 1."""
    return (1 - (1 - z).clip(min=0)).clip(min=0)


# ---------------------------------------------------------------------------------------------------------------------
# The same as a multilayer perceptron


@dataclass(frozen=True)
class DenseLayer:
    """h <- activation(weight h + bias), the first `num_relu` neurons ReLU, the others GeLU; none where it is linear."""

    weight: NDArray[np.float64]
    bias: NDArray[np.float64]
    num_relu: int
    linear: bool = False


def dense_layers(schedule: Schedule, num_states: int, gelu_scale: float) -> list[DenseLayer]:
    """Weights of the normaliser as a perceptron on x (num_states); the last layer is linear.

    A stage of part 1 is three layers, the first two for the gate and the third for the products: 2n + 1, 2n + 1 and 4n
    neurons. A doubling of part 2 is one layer of 2n + 10, and the last product has 4n: 3 K + kappa + 1 hidden layers.
    Products are four GeLU neurons each, and numbers pass ReLU layers as ReLU(x) - ReLU(-x).

    Args:
        schedule: of which C^T must be within float64.
        num_states: n.
        gelu_scale: lambda of the product gadget.

    Raises:
        InputError: C^T overflows.

    Source: [Limits] Theorem 5.3 (O(log T) layers, O(n) width), Lemmas D.1 to D.3.
    """
    require_range(schedule, np.float64)
    n, eye = num_states, np.eye(num_states)
    factor = math.sqrt(2 * math.pi) * gelu_scale**2 / 8
    signs = np.array([[1, 1], [-1, -1], [1, -1], [-1, 1]]) / gelu_scale
    outs = factor * np.array([1.0, 1.0, -1.0, -1.0])

    def neurons(left: NDArray, right: NDArray) -> NDArray:
        """Rows of four neurons from two affine rows."""
        return signs @ np.stack([left, right])

    layers: list[DenseLayer] = []
    read = schedule.bound**schedule.length * eye  # x as a linear map of the last hidden layer
    offset = np.zeros(n)

    def add(rows: NDArray, biases: NDArray, num_relu: int) -> None:
        layers.append(DenseLayer(rows, biases, num_relu))

    largest = schedule.bound**schedule.length + 1
    for exponent in schedule.powers:
        threshold = schedule.bound**exponent
        rows = np.concatenate([read, -read, -read.sum(0, keepdims=True)])
        add(rows, np.concatenate([offset, -offset, [1 + threshold - offset.sum()]]), 2 * n + 1)
        rows = np.zeros((2 * n + 1, 2 * n + 1))
        rows[:n, :n], rows[:n, n : 2 * n] = eye, -eye
        rows[n : 2 * n] = -rows[:n]
        rows[2 * n, 2 * n] = -1
        add(rows, np.concatenate([np.zeros(2 * n), [1.0]]), 2 * n + 1)
        gain = np.zeros(2 * n + 2)  # 1 - (1 - 1/D) q; the last column is the bias
        gain[2 * n], gain[-1] = -(1 - 1 / threshold), 1.0
        affine = np.concatenate([rows[:n], np.zeros((n, 1))], 1) / largest
        products = np.concatenate([neurons(gain, row) for row in affine])
        add(products[:, :-1], products[:, -1], 0)
        read, offset = np.kron(eye, outs * largest), np.zeros(n)
        largest = threshold + 1
    return _series_layers(layers, read, schedule, neurons, outs)


def _series_layers(
    layers: list[DenseLayer], read: NDArray, schedule: Schedule, neurons: Any, outs: NDArray
) -> list[DenseLayer]:
    """Part 2: hidden neurons x, -x, S, -S (ReLU), then the products c c and c S / 3."""
    n = len(read)
    width = read.shape[1]
    x = np.concatenate([read, np.zeros((n, 1))], 1)  # affine maps of the hidden layer, bias last
    one = np.zeros(width + 1)
    one[-1] = 1.0
    c, series = one - x.sum(0) / 3, one
    for _ in range(schedule.num_doublings):
        kept = np.concatenate([x, -x, series[None], -series[None]])
        rows = np.concatenate([kept, neurons(c, c), neurons(c, series / 3)])
        layers.append(DenseLayer(rows[:, :-1], rows[:, -1], 2 * n + 2))
        width = len(rows)
        x, c, series = np.zeros((n, width + 1)), np.zeros(width + 1), np.zeros(width + 1)
        x[:, :n], x[:, n : 2 * n] = np.eye(n), -np.eye(n)
        c[2 * n + 2 : 2 * n + 6] = outs
        series[2 * n], series[2 * n + 1], series[2 * n + 6 : 2 * n + 10] = 1.0, -1.0, 3 * outs
    rows = np.concatenate([neurons(row / 3, series / 3) for row in x])
    layers.append(DenseLayer(rows[:, :-1], rows[:, -1], 0))
    weight = np.kron(np.eye(n), 3 * outs)
    layers.append(DenseLayer(weight, np.zeros(n), 0, linear=True))
    return layers


def require_range(schedule: Schedule, kind: type) -> None:
    """InputError unless C^T is within a NumPy type."""
    most = largest_log(kind) - 2
    rule = f"must have T ln C below {most:.0f} for {np.dtype(kind).name}, where C is 1 / the least entry"
    require(schedule.log_largest < most, "length", rule, f"T = {schedule.length}, T ln C = {schedule.log_largest:.0f}")
