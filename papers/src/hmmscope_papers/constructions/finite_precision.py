"""[Limits] Theorem 5.2 in arithmetic with p significand bits."""

import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from hmmscope.axes import Float64, Int64, Tensor
from hmmscope.schema import require, require_count, require_known
from hmmscope_papers.constructions.constructed import check_first
from hmmscope_papers.constructions.driven import check_tokens, driven_system
from hmmscope_papers.constructions.prefix_parts import PRODUCTS, Product, layers_needed, tight_gain

#: With more bits than these, rounding a float64 result can differ from rounding the exact result.
MAX_BITS = 26

Array = NDArray[np.float64]


class Rounding:
    """Rounding of float64 to p significand bits (float32 has 24), to nearest, ties to even.

    Entry i along an array's first axis is rounded to `bits[i]` bits.

    Args:
        bits: Precisions p.

    Raises:
        InputError: A precision is outside [2, 26].
    """

    def __init__(self, bits: Sequence[int]) -> None:
        require(len(bits) > 0, "bits", "must have at least one precision", list(bits))
        require(all(2 <= p <= MAX_BITS for p in bits), "bits", f"must be in [2, {MAX_BITS}]", list(bits))
        self.bits = np.array(bits, np.int64)
        self._shift = 53 - self.bits
        self._almost_half = (np.int64(1) << (self._shift - 1)) - 1
        self._mask = ~((np.int64(1) << self._shift) - 1)

    def __call__(self, x: Array) -> Array:
        shape = (len(self.bits),) + (1,) * (x.ndim - 1)
        pattern = x.view(np.int64)
        rounded = pattern >> self._shift.reshape(shape)
        rounded &= 1  # ties go to even
        rounded += self._almost_half.reshape(shape)
        rounded += pattern
        rounded &= self._mask.reshape(shape)
        return rounded.view(np.float64)

    def constant(self, value: float | Array) -> Array:
        return self(np.repeat(np.asarray(value, np.float64)[None], len(self.bits), 0))

    def total(self, terms: list[Array]) -> Array:
        sum_so_far = terms[0]
        for term in terms[1:]:
            sum_so_far = self(sum_so_far + term)
        return sum_so_far


def rounded_vectors(
    processes: Sequence[object],
    tokens: Int64[Tensor, "batch time"],
    length: int,
    bits: Sequence[int],
    *,
    product: Product,
    eta: float | None = None,
    gelu_scale: float | None = None,
) -> Float64[Tensor, "precision batch time state"]:
    """Run the Transformer of Theorem 5.2 with every elementary operation rounded to p bits.

    Args:
        processes: One process per sequence, with equal numbers of states and symbols; see `driven_system`.
        tokens: The placeholder and up to `length` symbols of each sequence.
        length: Largest number of symbols T.
        bits: Precisions p.
        product: "gelu", "relu01" or "bilinear", see `limits_theorem5_2`.
        eta: Tolerated attention error, which sets the attention gain γ (default: 2^-p).
        gelu_scale: Divisor λ of GeLU's inputs in `gelu_product` (default: 2^round(p/3)).

    Raises:
        InputError: A value is out of range, or the processes have different sizes.

    Source: [Limits] §5.2 (precision of O(log T) bits) and E.2; the arithmetic model is not in the paper.
    """
    require_known("product", product, PRODUCTS)
    require_count("length", length)
    systems = [driven_system(process) for process in processes]
    rule = f"must have {len(tokens)} entries, one for each sequence"
    require(len(systems) == len(tokens), "processes", rule, len(systems))
    sizes = sorted({tuple(system.matrices_VSS.shape) for system in systems})
    require(len(sizes) == 1, "processes", "must have matrices (symbol, n, n) of one shape", sizes)
    boolean = all(system.kind in ("permutation", "map") for system in systems)
    require(boolean or product != "relu01", "product", "must be gelu or bilinear unless matrices are 0/1 maps", product)
    check_tokens(tokens, systems[0].num_symbols + 1)
    check_first(tokens, systems[0].num_symbols)
    most = length + 1
    require(tokens.shape[1] <= most, "tokens", f"must have at most {most} positions (length + 1)", tokens.shape[1])
    rnd = Rounding(bits)
    n = systems[0].num_states
    start = [system.with_identity[row] for system, row in zip(systems, tokens, strict=True)]
    current = rnd.constant(torch.stack(start).numpy())
    gains = np.array([tight_gain(length, 2.0**-p if eta is None else eta) for p in bits])
    scales = np.array([2.0 ** round(p / 3) if gelu_scale is None else gelu_scale for p in bits])
    previous = np.zeros_like(current)
    for layer in range(layers_needed(length)):
        pattern = _attention_pattern(rnd, tokens.shape[1], length, 2**layer, gains)
        gathered = _weighted_sums(rnd, pattern, current.reshape(*current.shape[:3], n * n)).reshape(current.shape)
        previous = rnd(previous + gathered)
        current, previous = _multiplied(rnd, current, previous, product, scales)
    initial = np.stack([system.initial_S.numpy() for system in systems])
    initial_PBS = rnd.constant(initial)
    terms = [rnd(current[..., j] * initial_PBS[:, :, None, j, None]) for j in range(n)]
    return torch.from_numpy(rnd.total(terms))


def rounding_errors(
    processes: Sequence[object],
    tokens: Int64[Tensor, "batch time"],
    length: int,
    bits: Sequence[int],
    *,
    product: Product,
    eta: float | None = None,
    gelu_scale: float | None = None,
) -> Float64[Tensor, "precision batch"]:
    """Compute the largest absolute error of `rounded_vectors` over positions and coordinates."""
    systems = [driven_system(process) for process in processes]
    found = rounded_vectors(systems, tokens, length, bits, product=product, eta=eta, gelu_scale=gelu_scale)
    exact = torch.cat([system.vectors(row[None]) for system, row in zip(systems, tokens, strict=True)])
    return (found - exact).abs().amax((2, 3))


# --------------------------------------------------------------------------------------------------------------------


def _attention_pattern(rnd: Rounding, time: int, length: int, offset: int, gains: Array) -> Array:
    angles = np.arange(time) * (math.pi / (4 * length))
    features = rnd.constant(np.stack([np.sin(angles), np.cos(angles)]))
    turn = math.pi * offset / (4 * length)
    turned = np.array([[math.cos(turn), math.sin(turn)], [-math.sin(turn), math.cos(turn)]])
    weights = rnd(gains[:, None, None] * turned)
    query = [
        rnd(rnd(features[:, 0] * weights[:, 0, d, None]) + rnd(features[:, 1] * weights[:, 1, d, None])) for d in (0, 1)
    ]
    gain = rnd(gains)
    key = [rnd(features[:, d] * gain[:, None]) for d in (0, 1)]
    scores = rnd(rnd(query[0][:, :, None] * key[0][:, None, :]) + rnd(query[1][:, :, None] * key[1][:, None, :]))
    future = np.triu(np.ones((time, time), bool), 1)
    scores[:, future] = -np.inf
    weights = rnd(np.exp(rnd(scores - scores.max(2, keepdims=True))))
    weights[:, future] = 0
    sums = weights[:, :, 0].copy()
    for j in range(1, time):
        sums[:, j:] = rnd(sums[:, j:] + weights[:, j:, j])
    return rnd(weights / sums[:, :, None])


def _weighted_sums(rnd: Rounding, pattern: Array, values: Array) -> Array:
    sums = np.zeros_like(values)
    for j in range(values.shape[2]):
        terms = rnd(pattern[:, None, j:, j, None] * values[:, :, j, None, :])
        sums[:, :, j:] = rnd(sums[:, :, j:] + terms)
    return sums


def _multiplied(rnd: Rounding, current: Array, previous: Array, product: Product, scales: Array) -> tuple[Array, Array]:
    n = current.shape[-1]
    eye = np.eye(n)
    if product == "bilinear":
        factor = rnd(previous - eye)
        update = rnd.total([rnd(current[..., :, k, None] * factor[..., None, k, :]) for k in range(n)])
        return rnd(current + update), np.zeros_like(previous)
    if product == "relu01":
        neurons = [np.maximum(rnd(rnd(current[..., :, k, None] + previous[..., None, k, :]) - 1), 0) for k in range(n)]
        update = rnd.total([*neurons, -current])
        return rnd(current + update), np.zeros_like(previous)
    inverse, write = _gadget_weights(rnd, scales, 4)
    left, right, shift = rnd(current * inverse), rnd(previous * inverse), inverse * eye
    terms = []
    for k in range(n):
        terms += _gadget_terms(rnd, left[..., :, k, None], right[..., None, k, :], shift[..., k, None, :], write)
    cleared = rnd(_gelu(rnd, -previous) - _gelu(rnd, previous))
    return rnd(current + rnd.total(terms)), rnd(previous + cleared)


def rounded_gelu_product(
    a: Float64[Tensor, " point"], b: Float64[Tensor, " point"], bits: Sequence[int], scales: Sequence[float]
) -> Float64[Tensor, "precision point"]:
    """Compute `gelu_product` with every operation rounded; row i uses `bits[i]` and `scales[i]`."""
    rnd = Rounding(bits)
    require(len(scales) == len(bits), "scales", f"must be {len(bits)} numbers, one for each precision", len(scales))
    inverse, write = _gadget_weights(rnd, np.asarray(scales, np.float64), 1)
    left, right = rnd(rnd.constant(a.numpy()) * inverse), rnd(rnd.constant(b.numpy()) * inverse)
    return torch.from_numpy(rnd.total(_gadget_terms(rnd, left, right, np.zeros(1), write)))


def _gadget_weights(rnd: Rounding, scales: Array, num_axes: int) -> tuple[Array, Array]:
    shape = (-1,) + (1,) * num_axes
    return rnd(1 / scales).reshape(shape), rnd(math.sqrt(2 * math.pi) / 8 * scales**2).reshape(shape)


def _gadget_terms(rnd: Rounding, left: Array, right: Array, shift: Array, write: Array) -> list[Array]:
    terms = []
    for sign, other in ((1, 1), (-1, -1), (1, -1), (-1, 1)):
        neuron = _gelu(rnd, rnd(rnd(sign * left + other * right) - other * shift))
        terms.append(rnd(sign * other * write * neuron))
    return terms


def _gelu(rnd: Rounding, x: Array) -> Array:
    inner = rnd(x * rnd.constant(math.sqrt(0.5)).reshape((-1,) + (1,) * (x.ndim - 1)))
    erf = rnd(torch.special.erf(torch.from_numpy(inner)).numpy())
    return rnd(x * rnd(0.5 * rnd(1 + erf)))
