"""Parts of the [Limits] Theorem 5.2 Transformer: constants, look-back heads and products."""

import math
from typing import Literal

import torch
import torch.nn.functional as F
from torch import nn

from hmmscope.axes import Float, Tensor
from hmmscope.models.base import HookPoint
from hmmscope.schema import require, require_count, require_known
from hmmscope_papers.constructions.constructed import frozen
from hmmscope_papers.constructions.driven import DrivenSystem
from hmmscope_papers.constructions.residual import Subspaces

Product = Literal["gelu", "relu01", "bilinear"]
PRODUCTS = ("gelu", "relu01", "bilinear")

#: Bound on the absolute entries of factors A - I, if those of A are at most 1.
LARGEST_FACTOR = 2.0


# --------------------------------------------------------------------------------------------------------------------
# Constants of the proof


def layers_needed(length: int) -> int:
    """Return the number of layers for prefix products of `length` factors, ceil(log2 length)."""
    require_count("length", length)
    return (length - 1).bit_length()


def paper_eta(num_states: int, num_layers: int, length: int) -> float:
    """Return the attention error η = 1 / ((8n)^(L+1) T) for n states, L layers and length T ([Limits] E.18)."""
    return (8.0 * num_states) ** -(num_layers + 1) / length


def paper_gain(length: int, eta: float) -> float:
    """Return the paper's attention gain γ = 4√2 T log(2T/η) / π ([Limits] E.18)."""
    return 4 * math.sqrt(2) * length * math.log(2 * length / eta) / math.pi


def tight_gain(length: int, eta: float) -> float:
    """Return γ = √(log(2(T+1)/η) / (1 - cos(π/4T))), for which softmax and a one-hot have l1 distance at most η."""
    return math.sqrt(math.log(2 * (length + 1) / eta) / (2 * math.sin(math.pi / (8 * length)) ** 2))


def best_gelu_scale(dtype: torch.dtype) -> float:
    """Return the λ that balances errors of `gelu_product`: the power of two nearest to 2^(p/3), for p significand bits."""
    bits = 1 - math.log2(torch.finfo(dtype).eps)
    return 2.0 ** round(bits / 3)


def paper_gelu_scale(num_states: int, eta: float) -> float:
    """Return the λ of `gelu_product` for factors up to M = 2: the least power of two >= M² sqrt(2n/(3η)).

    Source: [Limits] Lemma D.1; the paper's "small λ" is a misprint.
    """
    return 2.0 ** math.ceil(math.log2(LARGEST_FACTOR**2 * math.sqrt(2 * num_states / (3 * eta))))


def error_bounds(system: DrivenSystem, num_layers: int, *, eta: float, gadget_error: float = 0.0) -> list[float]:
    """Compute the proof's bounds ε_l on the errors of matrix products after layers l = 0 .. num_layers.

    ε_l <= ε_{l-1} (c + nδ) + r δ + n ε',   δ = (1 + η) ε_{l-1} + η

    n is the number of states; r and c bound row and column sums of matrix products (`system.sums`); `gadget_error` ε' is
    the error of a product of two numbers.
    Source: [Limits] E.42 with Lemma D.6, including the residual connection.
    """
    n, (rows, columns) = system.num_states, system.sums
    bounds = [0.0]
    for _ in range(num_layers):
        gathered = (1 + eta) * bounds[-1] + eta
        bounds.append(bounds[-1] * (columns + n * gathered) + rows * gathered + n * gadget_error)
    return bounds


def gelu_error(scale: float, largest: float = LARGEST_FACTOR) -> float:
    """Return 2M^4/(3λ²), the largest error of `gelu_product` on [-M, M] to leading order."""
    return 2 * largest**4 / (3 * scale**2)


def gelu(x: Tensor) -> Tensor:
    """Return x · ½ (1 + erf(x/√2)), more accurately than PyTorch's fused float32 kernel."""
    return 0.5 * x * (1 + torch.erf(x * math.sqrt(0.5)))


def gelu_product(a: Tensor, b: Tensor, scale: float) -> Tensor:
    """Multiply with four GeLU neurons; the result is ab - ab(a² + b²)/(3λ²) + O(λ^-4).

    f(a, b) = (√(2π) λ²/8) [g((a+b)/λ) + g(-(a+b)/λ) - g((a-b)/λ) - g((b-a)/λ)],   g(x) = x Φ(x)

    Source: [Limits] Lemma D.1, with prefactor √(2π)·λ²/8 and large λ.
    """
    total, difference = (a + b) / scale, (a - b) / scale
    gates = gelu(total) + gelu(-total) - gelu(difference) - gelu(-difference)
    return gates * (math.sqrt(2 * math.pi) * scale**2 / 8)


def gain_of(temperature: str | float, length: int, eta: float) -> float:
    """Return the attention gain γ for "tight" (`tight_gain`), "paper" (`paper_gain`) or a number.

    Raises:
        InputError: The name is unknown, or the number is not positive.
    """
    if isinstance(temperature, str):
        rules = {"tight": tight_gain, "paper": paper_gain}
        require_known("temperature", temperature, rules)
        return rules[temperature](length, eta)
    good = not isinstance(temperature, bool) and 0 < temperature < math.inf
    require(good, "temperature", "must be tight, paper or a positive number", temperature)
    return float(temperature)


# --------------------------------------------------------------------------------------------------------------------
# Parts


class OffsetHead(nn.Module):
    """Causal attention with one head that looks `offset` positions back, and one head that writes nothing.

    score_ij = γ² cos(π (j - i + offset) / 4T),  j <= i

    Hook points: ``logits`` and ``pattern`` (batch, head, query, key).

    Args:
        subspaces: Named subspaces of the stream, including "sin" and "cos".
        offset: Number of positions to look back.
        length: Largest number of symbols T.
        gain: Attention gain γ.
        read, write: Names of the subspaces that the head reads and writes, of equal size.

    Source: [Limits] E.15-E.19 and E.26-E.29.
    """

    def __init__(
        self, subspaces: Subspaces, *, offset: int, length: int, gain: float, read: str, write: str, dtype: torch.dtype
    ) -> None:
        super().__init__()
        self.subspaces, self.offset, self.read, self.write = subspaces, offset, read, write
        angle = math.pi * offset / (4 * length)
        cos, sin = math.cos(angle), math.sin(angle)
        self.query = frozen(gain * torch.tensor([[cos, sin], [-sin, cos]], dtype=torch.float64), dtype)
        self.key = frozen(gain * torch.eye(2, dtype=torch.float64), dtype)
        self.logits, self.pattern = HookPoint(), HookPoint()

    def forward(self, x_BTD: Tensor) -> Tensor:
        features = torch.cat([x_BTD[..., self.subspaces["sin"]], x_BTD[..., self.subspaces["cos"]]], -1)
        if bool((features == features[:1]).all()):
            features = features[:1]  # shared pattern
        logits_BTU = (features @ self.query) @ (features @ self.key).mT
        time = x_BTD.shape[1]
        future_TU = torch.ones(time, time, dtype=torch.bool, device=x_BTD.device).triu(1)
        logits_BTU = logits_BTU.masked_fill(future_TU, -torch.inf)
        if self.logits.is_hooked or self.pattern.is_hooked:
            silent = torch.zeros_like(logits_BTU).masked_fill(future_TU, -torch.inf)
            logits_BHTU = torch.stack([logits_BTU, silent], 1).expand(len(x_BTD), -1, -1, -1)
            pattern_BTU = self.pattern(self.logits(logits_BHTU).softmax(-1))[:, 0]
        else:
            pattern_BTU = logits_BTU.softmax(-1)
        update = torch.zeros_like(x_BTD)
        update[..., self.subspaces[self.write]] = pattern_BTU @ x_BTD[..., self.subspaces[self.read]]
        return update

    def dense(self) -> tuple[Tensor, Tensor, Tensor]:
        width = self.subspaces.width
        rows = [self.subspaces["sin"].start, self.subspaces["cos"].start]
        query, key = self.query.new_zeros(2, width, 2), self.query.new_zeros(2, width, 2)
        query[0, rows], key[0, rows] = self.query, self.key
        value = self.query.new_zeros(2, width, width)
        size = torch.arange(self.subspaces.size(self.read))
        value[0, self.subspaces[self.read].start + size, self.subspaces[self.write].start + size] = 1
        return query, key, value


class ProductMLP(nn.Module):
    """A two-layer network that multiplies the matrices `current` and `previous` at each position.

    With target = current:   current += current @ (previous - I),  previous -= previous
    otherwise:               target += current @ previous,  previous -= previous,  current -= current

    A product of two numbers takes four GeLU neurons, or one ReLU neuron for 0/1 factors.

    Args:
        subspaces: Named subspaces of the stream, including "one".
        size: Size n of the matrices.
        product: "gelu", "relu01" or "bilinear" (exact, without neurons).
        scale: Number λ by which "gelu" divides the two factors; a larger λ gives a smaller error of the product.
        previous, current, target: Names of subspaces of size n².

    Source: [Limits] E.22 and Lemmas D.1-D.2, with the later matrix on the left.
    """

    def __init__(
        self,
        subspaces: Subspaces,
        size: int,
        *,
        product: Product,
        scale: float,
        previous: str = "previous",
        current: str = "current",
        target: str = "current",
        dtype: torch.dtype,
    ) -> None:
        super().__init__()
        self.subspaces, self.size, self.product = subspaces, size, product
        self.previous, self.current, self.target = previous, current, target
        self.in_place = target == current
        shift = -1.0 if self.in_place else 0.0
        if product == "gelu":
            signs = torch.tensor([[1.0, 1], [-1, -1], [1, -1], [-1, 1]], dtype=torch.float64)
            read = torch.cat([signs, shift * signs[:, 1:]], 1) / scale
            write = math.sqrt(2 * math.pi) * scale**2 / 8 * torch.tensor([1.0, 1, -1, -1], dtype=torch.float64)
        else:  # ReLU(a + b - 1)
            read = torch.tensor([[1.0, 1, -1]], dtype=torch.float64)
            write = torch.ones(1, dtype=torch.float64)
        self.read, self.write = frozen(read, dtype), frozen(write, dtype)

    @property
    def num_neurons(self) -> int:
        n = self.size
        if self.product == "relu01":
            return n**3 + 2 * n**2
        return 4 * n**3 + 2 * n**2 * (1 if self.in_place else 2)

    def forward(self, x_BTD: Tensor) -> Tensor:
        current = x_BTD[..., self.subspaces[self.current]]
        previous = x_BTD[..., self.subspaces[self.previous]]
        update = torch.zeros_like(x_BTD)
        product = self.products(current.unflatten(-1, (self.size,) * 2), previous.unflatten(-1, (self.size,) * 2))
        update[..., self.subspaces[self.target]] = product.flatten(-2)
        update[..., self.subspaces[self.previous]] = self._negated(previous)
        if not self.in_place or self.product == "relu01":
            update[..., self.subspaces[self.current]] += self._negated(current)
        return update

    def products(self, current: Tensor, previous: Tensor) -> Tensor:
        """Return current @ previous, minus current if `target` is `current` and `product` is not "relu01"."""
        eye = torch.eye(self.size, dtype=current.dtype, device=current.device)
        if self.product == "bilinear":
            return current @ (previous - eye) if self.in_place else current @ previous
        total = torch.zeros_like(current)
        for k in range(self.size):  # n² neurons at a time, not n³
            a, b, diagonal = current[..., :, k, None], previous[..., None, k, :], eye[k]
            if self.product == "relu01":
                weights = self.read[0]
                total = total + self.write[0] * F.relu(weights[0] * a + weights[1] * b + weights[2])
                continue
            gates = [gelu(w[0] * a + (w[1] * b + w[2] * diagonal)) for w in self.read]
            total = total + self.write[0] * ((gates[0] + gates[1]) - (gates[2] + gates[3]))
        return total

    def _negated(self, block: Tensor) -> Tensor:
        if self.product == "bilinear":
            return -block
        return -F.relu(block) if self.product == "relu01" else gelu(-block) - gelu(block)

    def dense(self) -> tuple[Float[Tensor, "width neuron"], Float[Tensor, "neuron width"]]:
        """Return full matrices `first` and `second`, with which the update is activation(x @ first) @ second."""
        require(self.product != "bilinear", "product", "must be gelu or relu01, which have neurons", self.product)
        n, width, gates = self.size, self.subspaces.width, len(self.write)
        start = {name: self.subspaces[name].start for name in (self.previous, self.current, self.target, "one")}
        i, j, k = (index.flatten() for index in torch.meshgrid(*[torch.arange(n)] * 3, indexing="ij"))
        first, second = [], []
        for h in range(gates):
            reads, writes = self.read.new_zeros(width, n**3), self.read.new_zeros(n**3, width)
            neuron = torch.arange(n**3)
            reads[start[self.current] + i * n + k, neuron] = self.read[h, 0]
            reads[start[self.previous] + k * n + j, neuron] = self.read[h, 1]
            constant = self.read[h, 2].expand(n**3) if self.product == "relu01" else self.read[h, 2] * (k == j)
            reads[start["one"], neuron] = constant
            writes[neuron, start[self.target] + i * n + j] = self.write[h]
            first.append(reads)
            second.append(writes)
        cleared = [self.previous]
        cleared += [self.current] if not self.in_place or self.product == "relu01" else []
        for name in cleared:
            copy = torch.eye(width, dtype=self.read.dtype)[:, self.subspaces[name]]
            for sign in (1, -1) if self.product == "gelu" else (1,):
                first.append(sign * copy)
                second.append(-sign * copy.mT)
        return torch.cat(first, 1), torch.cat(second, 0)


class PrefixLayer(nn.Module):
    """A layer of attention, then a token-wise network, each added to the stream."""

    def __init__(self, attention: OffsetHead, mlp: ProductMLP) -> None:
        super().__init__()
        self.attention, self.mlp = attention, mlp

    def forward(self, x_BTD: Tensor) -> Tensor:
        x_BTD = x_BTD + self.attention(x_BTD)
        return x_BTD + self.mlp(x_BTD)

    def dense_forward(self, x_BTD: Tensor) -> Tensor:
        query, key, value = self.attention.dense()
        time = x_BTD.shape[1]
        future_TU = torch.ones(time, time, dtype=torch.bool, device=x_BTD.device).triu(1)
        for_all = x_BTD[:, None]
        scores_BHTU = ((for_all @ query) @ (for_all @ key).mT).masked_fill(future_TU, -torch.inf)
        x_BTD = x_BTD + (scores_BHTU.softmax(-1) @ (for_all @ value)).sum(1)
        first, second = self.mlp.dense()
        activation = gelu if self.mlp.product == "gelu" else F.relu
        return x_BTD + activation(x_BTD @ first) @ second


def forward_bytes(length: int, size: int, dtype: torch.dtype) -> int:
    return dtype.itemsize * (length + 1) * (2 * (length + 1) + 8 * size**3 + 8 * size**2)
