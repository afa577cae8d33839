"""The network of [Limits] Theorem 5.3, computed with numbers of p significand bits and unbounded exponents.

For T observations, p grows linearly in T (the theorem's "T-precision"); hardware floats cannot reach the error bound
e^-T.

Let h = -ln P(o_1 .. o_T) / T and C = 1 / (least product of a transition and an emission probability). To leading order,
an error of e^-T needs this number of bits per observation, p / T, by `product` and `variant` of `FilterInBits`:

    "gelu"                  (3/2) (1 + max(ln C / 2, h)) / ln 2
    "exact", "residual"     (1 + h / 2) / ln 2
    "exact", "disjoint"     1 / ln 2
"""

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from hmmscope.axes import Int64, Tensor
from hmmscope.processes.hmm import HMM
from hmmscope.processes.labelled import LabelledHMM
from hmmscope.reprs import Shown
from hmmscope.schema import require
from hmmscope_papers.constructions.normaliser import Exponents, Schedule, normalise
from hmmscope_papers.constructions.prefix_parts import layers_needed
from hmmscope_papers.constructions.stochastic_filter import (
    UNIT,
    BeliefOperators,
    Variant,
    belief_operators,
    bound_of,
    log_leak,
)

Product = Literal["gelu", "exact"]

MAX_LENGTH = 256
MIN_BITS, MAX_BITS = 8, 65536


@dataclass(frozen=True, repr=False)
class PreciseBeliefs(Shown):
    """Beliefs computed with p-bit numbers, and their errors.

    Attributes:
        beliefs: Beliefs (position, state), rounded to float64; position 0 is before o_1, see `BeliefOperators`.
        errors: Largest absolute error of the belief (position,).
        window_errors: Largest error in products of up to 2^l matrices, divided by the product's exact sum (layer l,).
        sums: Sum of the unnormalised belief, after its scaling to [1, 3] (position,).
        log_likelihoods: ln P(o_1 .. o_t) (position,).
        bits: Number of bits p.
        error_bound: The theorem's bound e^-T.
    """

    beliefs: NDArray[np.float64]
    errors: NDArray[np.float64]
    window_errors: NDArray[np.float64]
    sums: NDArray[np.float64]
    log_likelihoods: NDArray[np.float64]
    bits: int
    error_bound: float

    @property
    def error(self) -> float:
        return float(self.errors.max())


class Bits:
    """p-bit arithmetic on arrays; implements `Arithmetic`."""

    def __init__(self, bits: int, product: Product) -> None:
        import mpmath  # type: ignore[import-untyped]

        require(MIN_BITS <= bits <= MAX_BITS, "bits", f"must be in [{MIN_BITS}, {MAX_BITS}]", bits)
        self.context = mpmath.MPContext()
        self.context.prec = bits
        self.product = product
        self.gelu_scale = self.context.ldexp(1, round(bits / 3))
        self.root = self.context.sqrt(2)
        self.factor = self.context.sqrt(2 * self.context.pi) * self.gelu_scale**2 / 8
        self.exp = np.frompyfunc(self.context.exp, 1, 1)
        self.erf = np.frompyfunc(self.context.erf, 1, 1)

    def ratio(self, numerators: NDArray[np.object_], denominator: int) -> NDArray[np.object_]:
        convert = np.frompyfunc(lambda number: self.context.mpf(number) / denominator, 1, 1)
        return convert(numerators)

    def floats(self, values: NDArray[np.float64]) -> NDArray[np.object_]:
        return np.frompyfunc(self.context.mpf, 1, 1)(values.astype(object))

    def power(self, base: float, exponent: float) -> Any:
        return self.context.power(self.context.mpf(base), self.context.mpf(exponent))

    def gelu(self, x: NDArray[np.object_]) -> NDArray[np.object_]:
        return x * (1 + self.erf(x / self.root)) / 2

    def multiply(self, left: Any, right: Any, largest: Any = 1) -> Any:
        """Return left * right, exactly or by four GeLU neurons ([Limits] Lemma D.1)."""
        if self.product == "exact":
            return left * right
        scaled = right / largest if largest != 1 else right
        total, difference = (left + scaled) / self.gelu_scale, (left - scaled) / self.gelu_scale
        value = self.gelu(total) + self.gelu(-total) - self.gelu(difference) - self.gelu(-difference)
        return value * (self.factor * largest)


@dataclass(frozen=True, eq=False, repr=False)
class FilterInBits(Shown):
    """The network of Theorem 5.3 for an HMM, with every operation rounded to p bits.

    Attributes:
        hmm: HMM of n states; c is the least product of a transition and an emission probability.
        product: "gelu" (the theorem) or "exact".
        variant: "residual" (the theorem) or "disjoint"; see `limits_theorem5_3`.
        exponents: Exponents of C in module `normaliser`: "real", T / 2^k, or "floor", the misprint floor(T / 2^k).
        least: Lower bound 1/C on every P(o_t | o_1 .. o_{t-1}) (default: c).

    Raises:
        InputError: The product or variant is unknown, or `least` is outside (0, 1), or c = 0 and `least` is missing.

    Source: [Limits] Theorem 5.3, Appendix E.
    """

    hmm: HMM | LabelledHMM
    product: Product = "gelu"
    variant: Variant = "residual"
    exponents: Exponents = "real"
    least: float | None = None

    def __post_init__(self) -> None:
        require(self.product in ("gelu", "exact"), "product", "must be gelu or exact", self.product)
        require(self.variant in ("residual", "disjoint"), "variant", "must be residual or disjoint", self.variant)
        self.log_bound  # noqa: B018 - raises early

    @cached_property
    def operators(self) -> BeliefOperators:
        return belief_operators(self.hmm)

    @cached_property
    def log_bound(self) -> float:
        return math.log(bound_of(self.operators, self.least))

    def recommended_bits(self, length: int, *, share: float = 1.0) -> int:
        """Return p = share T (1 + ln C) / ln 2 + 24 bits; with share = 3/2, beliefs have errors of at most e^-T."""
        return math.ceil(share * length * (1 + self.log_bound) / math.log(2)) + 24

    def beliefs(self, observations: Int64[Tensor, " time"], bits: int | None = None) -> PreciseBeliefs:
        """Compute the beliefs after 0, 1, .., T observations.

        Args:
            observations: Symbols o_1 .. o_T.
            bits: Number of bits p (default: `recommended_bits` with share = 3/2).

        Raises:
            InputError: A symbol is outside [0, V), T outside [1, 256], or `bits` outside [8, 65536].
        """
        operators, length = self.operators, len(observations)
        require(1 <= length <= MAX_LENGTH, "observations", f"must have 1 to {MAX_LENGTH} symbols", length)
        inside = bool(((observations >= 0) & (observations < self.hmm.num_symbols)).all())
        require(inside, "observations", f"must be in [0, {self.hmm.num_symbols})", observations.tolist())
        bound = bound_of(operators, self.least)
        arithmetic = Bits(self.recommended_bits(length, share=1.5) if bits is None else bits, self.product)
        symbols = observations.tolist()
        exact = ExactPass(operators, symbols)

        windows, window_errors = _windows(operators, symbols, bound, arithmetic, self.variant, exact)
        vectors = (windows * arithmetic.ratio(operators.start_S, UNIT)).sum(-1)
        normalised = normalise(vectors, Schedule(length=length, bound=bound, exponents=self.exponents), arithmetic)
        read = arithmetic.floats(operators.read_OS)
        beliefs = (normalised.values[:, None, :] * read).sum(-1)
        return PreciseBeliefs(
            beliefs=beliefs.astype(np.float64),
            errors=exact.belief_errors(beliefs),
            window_errors=np.array(window_errors),
            sums=normalised.sums[-1].astype(np.float64),
            log_likelihoods=exact.log_likelihoods,
            bits=arithmetic.context.prec,
            error_bound=math.exp(-length),
        )

    def smallest_bits(self, observations: Int64[Tensor, " time"]) -> int:
        """Find, by bisection, the smallest number of bits with belief errors of at most e^-T at all positions."""

        def enough(bits: int) -> bool:
            found = self.beliefs(observations, bits)
            return found.error <= found.error_bound

        low, high = MIN_BITS - 1, self.recommended_bits(len(observations))
        while not enough(high):
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if enough(middle) else (middle, high)
        return high

    def unlikely_observations(self, length: int) -> Int64[Tensor, " time"]:
        """Return a sequence in which every symbol is the least probable possible one, given the past."""
        vector, symbols = self.operators.start_S, []
        for _ in range(length):
            candidates = [matrix @ vector for matrix in self.operators.numerators_VSS]
            totals = [int(candidate.sum()) for candidate in candidates]
            symbols.append(totals.index(min(total for total in totals if total > 0)))
            vector = candidates[symbols[-1]]
        return torch.tensor(symbols, dtype=torch.int64)


def _windows(
    operators: BeliefOperators,
    symbols: list[int],
    bound: float,
    arithmetic: Bits,
    variant: Variant,
    exact: "ExactPass",
) -> tuple[NDArray[np.object_], list[float]]:
    context, size, length = arithmetic.context, operators.num_states, len(symbols)
    eye = arithmetic.floats(np.eye(size))
    current = np.stack([eye, *arithmetic.ratio(operators.numerators_VSS, UNIT)[symbols]])
    log_eta = log_leak(size, length, bound)
    gap = 1 - context.cos(context.pi / (4 * length))
    gamma = context.sqrt((context.log(2 * (length + 1)) - log_eta) / gap)
    angle = context.pi / (4 * length)
    sines, cosines = (np.array([f(angle * i) for i in range(length + 1)]) for f in (context.sin, context.cos))
    window_errors = [exact.window_error(current, 1)]
    for layer in range(1, layers_needed(length) + 1):
        delta = angle * 2 ** (layer - 1)
        sine, cosine = context.sin(delta), context.cos(delta)
        query_sines = (sines * cosine - cosines * sine) * gamma
        query_cosines = (sines * sine + cosines * cosine) * gamma
        logits = np.outer(query_sines, sines * gamma) + np.outer(query_cosines, cosines * gamma)
        pattern = _causal_softmax(logits, arithmetic)
        previous = np.stack(
            [
                (row[: i + 1, None, None] * current[: i + 1]).sum(0)  # causal
                for i, row in enumerate(pattern)
            ]
        )
        factor = previous - eye if variant == "residual" else previous
        products = arithmetic.multiply(current[:, :, :, None], factor[:, None, :, :]).sum(2)
        current = current + products if variant == "residual" else products
        window_errors.append(exact.window_error(current, 2**layer))
    return current, window_errors


def _causal_softmax(logits: NDArray[np.object_], arithmetic: Bits) -> NDArray[np.object_]:
    pattern = np.full(logits.shape, arithmetic.context.zero, dtype=object)
    for i, row in enumerate(logits):
        weights = arithmetic.exp(row[: i + 1] - row[: i + 1].max())
        pattern[i, : i + 1] = weights / weights.sum()
    return pattern


class ExactPass:
    """Exact matrix products and beliefs of one sequence."""

    def __init__(self, operators: BeliefOperators, symbols: list[int]) -> None:
        self.operators, self.symbols = operators, symbols
        vector = operators.start_S
        self.vectors = [vector]
        for symbol in symbols:
            vector = operators.numerators_VSS[symbol] @ vector
            self.vectors.append(vector)
        units = [Fraction(int(vector.sum()), UNIT ** (t + 1)) for t, vector in enumerate(self.vectors)]
        self.log_likelihoods = np.array([math.log(u.numerator) - math.log(u.denominator) for u in units])

    def belief_errors(self, beliefs: NDArray[np.object_]) -> NDArray[np.float64]:
        errors = []
        for got, vector in zip(beliefs, self.vectors, strict=True):
            total = int(vector.sum())
            read = [[Fraction(number) for number in row] for row in self.operators.read_OS.tolist()]
            wanted = [
                sum((r * Fraction(int(u), total) for r, u in zip(row, vector, strict=True)), Fraction()) for row in read
            ]
            errors.append(max(abs(_fraction(a) - b) for a, b in zip(got, wanted, strict=True)))
        return np.array([_as_float(error) for error in errors])

    def window_error(self, windows: NDArray[np.object_], width: int) -> float:
        worst = Fraction()
        for i, got in enumerate(windows):
            exact, factors = np.array(np.eye(self.operators.num_states, dtype=int).tolist(), dtype=object), 0
            for symbol in self.symbols[max(i - width, 0) : i]:
                exact, factors = self.operators.numerators_VSS[symbol] @ exact, factors + 1
            total = Fraction(int(exact.sum()), UNIT**factors)
            for a, b in zip(got.ravel(), exact.ravel(), strict=True):
                worst = max(worst, abs(_fraction(a) - Fraction(int(b), UNIT**factors)) / total)
        return _as_float(worst)


def _fraction(number: Any) -> Fraction:
    sign, mantissa, exponent, _ = number._mpf_
    value = Fraction(int(mantissa)) * (Fraction(2) ** exponent)
    return -value if sign else value


def _as_float(number: Fraction) -> float:
    try:
        return float(number)
    except OverflowError:
        return math.inf
