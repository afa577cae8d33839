"""[Limits] Theorem 5.3: a Transformer of depth ceil(log2 T) and a normaliser that compute the beliefs of an HMM."""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import nn

from hmmscope.axes import Float, Float64, Int64, Tensor
from hmmscope.constructions.driven import DrivenSystem, check_tokens, only_tokens
from hmmscope.constructions.normaliser import (
    LONG_DOUBLE,
    DenseLayer,
    Exponents,
    Normalised,
    Schedule,
    dense_layers,
    normalise,
    require_range,
)
from hmmscope.constructions.prefix_parts import (
    OffsetHead,
    PrefixLayer,
    ProductMLP,
    best_gelu_scale,
    frozen,
    gelu,
    layers_needed,
)
from hmmscope.constructions.residual import LayerNote, Subspaces, explanation
from hmmscope.models.base import Ports, SequenceModel, Tap
from hmmscope.processes.base import integer_weights
from hmmscope.processes.hmm import HMM
from hmmscope.processes.labelled import LabelledHMM
from hmmscope.schema import require, unknown_name

Variant = Literal["disjoint", "residual"]
Product = Literal["bilinear", "gelu"]
Division = Literal["mlp", "division"]

MAX_LENGTH = 4096

#: Denominator of the entries of `BeliefOperators.numerators_VSS`: two quantised probabilities are multiplied.
UNIT = 2**64


@dataclass(frozen=True, eq=False)
class BeliefOperators:
    """belief after o_1 .. o_t  =  read (M_{o_t} .. M_{o_1} start) / sum,   exact rational numbers.

    M_o[s', s] = P(s' | s) P(o | s') (columns are states before, rows states after), which is diag(emission[:, o]) times
    the transposed transition matrix. The sum of M_{o_t} .. M_{o_1} start is P(o_1 .. o_t).

    In [Limits] the chain starts in a known state one step before the first observation. `start` is that state if the
    initial law is a row of the transition matrix. Otherwise the chain gets a start state of its own, the last one, that
    leads to state s with the initial law, and that nothing leads back to; `read` shows it as the initial law. A labelled
    HMM starts with its initial law.

    Attributes:
        numerators_VSS: M_o in units of 2^-64, Python integers.
        start_S: the vector before the first observation, in units of 2^-64.
        read_OS: matrix from the chain's states to the outputs, floats.
        initial_O: law of the state of the first observation (of the start, for a labelled HMM), before it is seen.
    """

    numerators_VSS: NDArray[np.object_]
    start_S: NDArray[np.object_]
    read_OS: NDArray[np.float64]
    initial_O: NDArray[np.float64]

    @cached_property
    def least_entry(self) -> float:
        """c: the least entry of the matrices, apart from the row of a start state."""
        return float(self.numerators_VSS[:, : len(self.read_OS)].min()) / UNIT

    @property
    def num_states(self) -> int:
        return len(self.start_S)


def belief_operators(hmm: HMM | LabelledHMM) -> BeliefOperators:
    """The matrices of an HMM's filter."""
    initial_O, weights_S = hmm.initial_S.numpy(), integer_weights(hmm.initial_S).astype(object)
    eye = np.eye(hmm.num_states)
    if isinstance(hmm, LabelledHMM):
        numerators = integer_weights(hmm.labelled_VSS).astype(object).transpose(0, 2, 1) * 2**32
        return BeliefOperators(numerators, weights_S * 2**32, eye, initial_O)
    transition_SS, emission_SV = (integer_weights(rows).astype(object) for rows in (hmm.transition_SS, hmm.emission_SV))
    numerators = emission_SV.T[:, :, None] * transition_SS.T[None]
    same = (hmm.transition_SS == hmm.initial_S).all(1).nonzero()[:, 0].tolist()
    if same:
        return BeliefOperators(numerators, _unit_vector(hmm.num_states, same[0]), eye, initial_O)
    size = hmm.num_states + 1
    larger = np.full((hmm.num_symbols, size, size), 0, dtype=object)
    larger[:, :-1, :-1] = numerators
    larger[:, :-1, -1] = emission_SV.T * weights_S
    read_OS = np.concatenate([eye, initial_O[:, None]], 1)
    return BeliefOperators(larger, _unit_vector(size, size - 1), read_OS, initial_O)


def _unit_vector(size: int, index: int) -> NDArray[np.object_]:
    vector = np.full(size, 0, dtype=object)
    vector[index] = UNIT
    return vector


def bound_of(operators: BeliefOperators, least: float | None) -> float:
    """C = 1 / c, with the least entry or a given lower bound of what an observation can multiply the sum by.

    Raises:
        InputError: a least entry of zero and no bound given, or a bound outside (0, 1).
    """
    if least is None:
        rule = (
            "must have positive probabilities only (Theorem 5.3 divides by the least product of two); or give `least`"
        )
        require(operators.least_entry > 0, "hmm", rule, "a zero")
        least = min(operators.least_entry, 0.5)  # a single state and symbol have 1
    require(0 < least < 1, "least", "must be above 0 and below 1", least)
    return 1 / least


def log_leak(num_states: int, length: int, bound: float) -> float:
    """ln η, η = e^-T C^-T / ((8n)^(L+1) T): the share of attention that may go to wrong positions.

    Source: [Limits] App. E, Theorem 5.3, where the factor C^-T is missing.
    """
    layers = layers_needed(length)
    return -length * (1 + math.log(bound)) - (layers + 1) * math.log(8 * num_states) - math.log(length)


class StochasticFilter(SequenceModel):
    """The network of Theorem 5.3; see `limits_theorem5_3`.

    Attributes:
        operators: the exact matrices.
        system: the same in float64.
        length: T; tokens are at most T + 1, the placeholder first.
        variant, product, division: as asked for.
        bound: C.
        gain: γ of the attention.
        gelu_scale: λ of the product gadget.
        schedule: stages of the normaliser.
        subspaces: layout of the stream.
    """

    outputs = "law"
    num_tokens: int

    def __init__(
        self,
        operators: BeliefOperators,
        length: int,
        *,
        variant: Variant,
        product: Product,
        division: Division,
        schedule: Schedule,
        gelu_scale: float,
        dtype: torch.dtype,
    ) -> None:
        super().__init__()
        numerators, start = operators.numerators_VSS, operators.start_S
        matrices, vector = (torch.from_numpy((array / UNIT).astype(np.float64)) for array in (numerators, start))
        self.system = DrivenSystem(matrices, vector)
        self.operators, self.length, self.schedule = operators, length, schedule
        self.variant, self.product, self.division, self.gelu_scale = variant, product, division, gelu_scale
        n, num_tokens, num_layers = len(vector), len(matrices) + 1, layers_needed(length)
        self.num_symbols, self.num_tokens = len(operators.read_OS), num_tokens
        self.ports = Ports(num_outputs=self.num_symbols, num_tokens=num_tokens, max_length=length + 1)
        slots = ("current",) if variant == "residual" else ("current", "next")
        sizes = {"previous": n * n, "placeholder": 1, "empty": 2, **dict.fromkeys(slots, n * n)}
        self.subspaces = Subspaces({**sizes, "sin": 1, "cos": 1, "one": 1})

        #: Where the windows stand after each layer; two slots take turns.
        self.slots = [slots[layer % len(slots)] for layer in range(num_layers + 1)]
        encoder = torch.zeros(num_tokens + 3, self.subspaces.width, dtype=torch.float64)
        encoder[:num_tokens, self.subspaces["current"]] = self.system.with_identity.flatten(1)
        encoder[num_tokens - 1, self.subspaces["placeholder"]] = 1.0
        encoder[num_tokens:, self.subspaces.width - 3 :] = torch.eye(3, dtype=torch.float64)
        self.encoder = frozen(encoder, dtype)
        decoder = torch.zeros(self.subspaces.width, n, dtype=torch.float64)
        decoder[self.subspaces[self.slots[-1]]] = torch.kron(torch.eye(n, dtype=torch.float64), vector[:, None])
        self.decoder = frozen(decoder, dtype)
        read_OS = torch.from_numpy(operators.read_OS)
        self.read = frozen(read_OS, dtype)
        self.start = frozen(torch.from_numpy(operators.initial_O) - read_OS @ vector, dtype)

        # The attention of the theorem leaks e^-T C^-T / ((8n)^(L+1) T); here it leaks less by the machine's epsilon, so
        # that what goes wrong is the arithmetic.
        log_eta = log_leak(n, length, schedule.bound) + math.log(torch.finfo(dtype).eps)
        half_gap = 2 * math.sin(math.pi / (8 * length)) ** 2  # 1 - cos(π/4T)
        self.gain = math.sqrt((math.log(2 * (length + 1)) - log_eta) / half_gap)
        blocks = []
        for layer in range(num_layers):
            now, then = self.slots[layer], self.slots[layer + 1]
            head = OffsetHead(
                self.subspaces, offset=2**layer, length=length, gain=self.gain, read=now, write="previous", dtype=dtype
            )
            mlp = ProductMLP(
                self.subspaces, n, product=product, scale=gelu_scale, current=now, target=then, dtype=dtype
            )
            blocks.append(PrefixLayer(head, mlp))
        self.blocks = nn.ModuleList(blocks)
        self.residual = nn.ModuleList(Tap() for _ in range(num_layers + 1))
        self.normaliser = nn.ModuleList()
        if division == "mlp" and product == "gelu":
            self.normaliser = nn.ModuleList(MixedLayer(one, dtype) for one in dense_layers(schedule, n, gelu_scale))

    def forward(
        self,
        inputs: Int64[Tensor, "batch time"],
        positions: Int64[Tensor, "*batch time"] | None = None,
        *,
        feedback: Tensor | None = None,
        cache: dict[str, Any] | None = None,
    ) -> Float[Tensor, "batch time state"]:
        """The belief after t observations, in column t; in column 0, under the placeholder, the initial law.

        Raises:
            InputError: a token outside the vocabulary, a placeholder elsewhere than in column 0, more than T + 1 columns
                or a position above T; feedback or a cache.
        """
        only_tokens(feedback, cache)
        x_BTD = self.stream(inputs, positions)
        return self.divide(x_BTD @ self.decoder) @ self.read.mT + x_BTD[..., self.subspaces["placeholder"]] * self.start

    def stream(self, tokens: Tensor, positions: Tensor | None = None) -> Tensor:
        """The residual stream after the last layer."""
        x_BTD = self.residual[0](self.embed(tokens, positions))
        for block, tap in zip(self.blocks, self.residual[1:], strict=True):
            x_BTD = tap(block(x_BTD))
        return x_BTD

    def embed(self, tokens: Tensor, positions: Tensor | None = None) -> Tensor:
        """The stream before the first layer: [one-hot(token), sin(πt/4T), cos(πt/4T), 1] @ encoder."""
        check_tokens(tokens, self.num_tokens)
        placeholder = self.num_tokens - 1
        good = bool((tokens[:, :1] == placeholder).all()) and not bool((tokens[:, 1:] == placeholder).any())
        require(good, "tokens", f"must have the placeholder, token {placeholder}, first and only there", tokens[:1])
        if positions is None:
            positions = torch.arange(tokens.shape[1], device=tokens.device)
        last = int(positions.max()) if positions.numel() else 0
        require(last <= self.length, "tokens", f"must end at position {self.length} or before (length)", last)
        angle = positions.double() * (math.pi / (4 * self.length))
        features = torch.stack([angle.sin(), angle.cos(), torch.ones_like(angle)], -1).to(self.encoder.dtype)
        return self.encoder[: self.num_tokens][tokens] + features @ self.encoder[self.num_tokens :]

    def divide(self, vectors: Tensor) -> Tensor:
        """Vectors (..., state) over their sums, by the normaliser, or by division where that was asked for."""
        if self.division == "division":
            return vectors / vectors.sum(-1, keepdim=True)
        if self.product == "bilinear":
            return torch.as_tensor(np.asarray(self.normalised(vectors).values)).to(vectors)
        hidden = vectors
        for layer in self.normaliser:
            hidden = layer(hidden)
        return hidden

    def normalised(self, vectors: Tensor) -> Normalised:
        """The normaliser on vectors, with what it does on the way; in long double, for C^T is beyond float64.

        Where `vectors` are wrong (negative), the series diverges, and what comes out may be infinite or NaN.
        """
        wide = vectors.detach().cpu().numpy().astype(np.longdouble)
        with np.errstate(over="ignore", invalid="ignore"):
            found = normalise(wide, self.schedule, LONG_DOUBLE)
            return Normalised(found.values.astype(np.float64), found.sums, found.scaled)

    def exact_windows(self, tokens: Tensor, layer: int) -> Float64[Tensor, "batch time state state"]:
        """Products of the matrices of tokens max(i - 2^layer + 1, 0) .. i, the latest on the left, in float64."""
        windows = self.system.with_identity.to(tokens.device)[tokens]
        for step in range(layer):
            windows = windows @ windows[:, self._sources(tokens, step)]
        return windows

    def _sources(self, tokens: Tensor, step: int) -> Tensor:
        """Where position i looks in layer step + 1: i - 2^step, or 0."""
        return (torch.arange(tokens.shape[1], device=tokens.device) - 2**step).clamp_min(0)

    def exact_beliefs(self, tokens: Int64[Tensor, "batch time"]) -> Float64[Tensor, "batch time state"]:
        """The beliefs by the recursion, divided by the sum at every step, in float64."""
        check_tokens(tokens, self.num_tokens)
        matrices = self.system.with_identity.to(tokens.device)
        vector = self.system.initial_S.to(tokens.device).expand(len(tokens), -1)
        beliefs = []
        for t in range(tokens.shape[1]):
            vector = (matrices[tokens[:, t]] * vector[:, None, :]).sum(-1)
            vector = vector / vector.sum(-1, keepdim=True)
            beliefs.append(vector @ self.read.double().mT + (self.start.double() if t == 0 else 0.0))
        return torch.stack(beliefs, 1)

    def notes(self, tokens: Int64[Tensor, "batch time"] | None = None) -> list[LayerNote]:
        """What each layer does; with tokens, how far what it writes is from the exact value.

        Errors of windows are relative to the sum of the exact one, for those sums fall like C^-t.
        """
        with torch.no_grad():
            x_BTD = None if tokens is None else self.embed(tokens)
            equation = "W_0 at i = M of the token at i, the identity for the placeholder"
            notes = [self._note(0, "embed", ("token",), "current", equation, self._window_error(x_BTD, tokens, 0, 0))]
            for layer, block in enumerate(self.blocks):
                assert isinstance(block, PrefixLayer)
                now, then, offset = self.slots[layer], self.slots[layer + 1], 2**layer
                x_BTD = None if x_BTD is None else x_BTD + block.attention(x_BTD)
                equation = f"previous at i = W_{layer} at max(i - {offset}, 0), by γ² cos(π(j - i + {offset})/4T)"
                error = self._window_error(x_BTD, tokens, layer, offset)
                notes.append(self._note(layer + 1, "gather", ("sin", "cos", now), "previous", equation, error))
                x_BTD = None if x_BTD is None else x_BTD + block.mlp(x_BTD)
                change = f"{now} + {now} (previous - I)" if now == then else f"{now} previous; {now} = 0"
                equation = f"{then} = W_{layer + 1} = {change}, by {self.product}; previous = 0"
                error = self._window_error(x_BTD, tokens, layer + 1, 0)
                notes.append(self._note(layer + 1, "multiply", ("previous", now, "one"), then, equation, error))
            equation = f"W b_0 over its sum, by {self._division_text()}"
            error = None if tokens is None else float((self(tokens).double() - self.exact_beliefs(tokens)).abs().max())
            notes.append(self._note(len(self.blocks) + 1, "divide", (self.slots[-1],), "output", equation, error))
        return notes

    def _division_text(self) -> str:
        if self.division == "division":
            return "division"
        schedule = self.schedule
        return f"{schedule.num_stages} gates and a series of 2^{schedule.num_doublings} terms"

    def _note(
        self, layer: int, stage: str, reads: tuple[str, ...], writes: str, equation: str, error: float | None
    ) -> LayerNote:
        return LayerNote(layer=layer, stage=stage, reads=reads, writes=(writes,), equation=equation, error=error)

    def _window_error(self, x_BTD: Tensor | None, tokens: Tensor | None, layer: int, offset: int) -> float | None:
        """Of the windows after `layer` layers, or of those gathered from `offset` back."""
        if x_BTD is None or tokens is None:
            return None
        exact = self.exact_windows(tokens, layer)
        exact = exact[:, self._sources(tokens, layer)] if offset else exact
        got = x_BTD[..., self.subspaces["previous" if offset else self.slots[layer]]].double().view(exact.shape)
        totals = exact.sum((-1, -2), keepdim=True)
        return float(((got - exact).abs() / totals)[totals[..., 0, 0] > 0].max())

    def largest_weight(self) -> float:
        """Largest absolute entry of all matrices of the Transformer."""
        return max(float(weight.abs().max()) for name, weight in self.named_parameters() if "normaliser" not in name)

    def explain(self, tokens: Int64[Tensor, "batch time"] | None = None) -> str:
        """Layout and layers as a text; with tokens, with the measured errors."""
        width = self.blocks[0].mlp.num_neurons if self.blocks else 0  # type: ignore[union-attr]
        title = (
            f"[Limits] Theorem 5.3: {len(self.blocks)} layers for T = {self.length}, n = {self.system.num_states}, "
            f"m = {self.system.num_symbols}, C = {self.schedule.bound:.4g}, {width} hidden neurons, "
            f"γ = {self.gain:.6g}; variant {self.variant}, product {self.product}"
        )
        return explanation(title, self.subspaces, self.notes(tokens))


class MixedLayer(nn.Module):
    """activation(weight h + bias), the first neurons ReLU and the others GeLU, or linear as a last layer."""

    def __init__(self, layer: DenseLayer, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight, self.bias = (frozen(torch.from_numpy(array), dtype) for array in (layer.weight, layer.bias))
        self.num_relu, self.linear = layer.num_relu, layer.linear

    def forward(self, hidden: Tensor) -> Tensor:
        affine = F.linear(hidden, self.weight, self.bias)
        if self.linear:
            return affine
        return torch.cat([affine[..., : self.num_relu].relu(), gelu(affine[..., self.num_relu :])], -1)


def limits_theorem5_3(
    hmm: HMM | LabelledHMM,
    length: int,
    *,
    variant: Variant = "disjoint",
    product: Product = "bilinear",
    division: Division = "mlp",
    exponents: Exponents = "real",
    gelu_scale: float | None = None,
    least: float | None = None,
    dtype: torch.dtype = torch.float64,
) -> StochasticFilter:
    """The network of [Limits] Theorem 5.3, with its weights: beliefs of an HMM whose probabilities are all positive.

    b_t = M_{o_t} .. M_{o_1} b_0 / sum,   M_o[s', s] = P(s' | s) P(o | s')

    The Transformer of Theorem 5.2 multiplies the matrices, and a normaliser of O(log T) layers divides by the sum
    (`hmmscope.constructions.normaliser`). Tokens are a placeholder (token V) and up to T observations, as
    `Sequences(placeholder=True)` lays them out; column t of the output is the belief after t observations, column 0 the
    initial law.

    The theorem's error bound e^-T needs significands of O(T) bits: `hmmscope.constructions.arbitrary_precision` has them.
    In hardware floats, with errors of normalised beliefs growing like u / P(o_1 .. o_t) for rounding u, it fails:

    - "residual", the theorem's update cur + cur (prev - I), has an absolute error of about u: with 5 states, 5 symbols
      and float64 it is above e^-T from T about 20 on, and beliefs are lost from T about 50 on;
    - "gelu" products have an absolute error of about u^(2/3): above e^-T from T about 10, lost from T = 16 on;
    - "disjoint", which writes the product to a slot of its own and clears the factors, with exact ("bilinear") products
      keeps the relative accuracy, and is good to rounding until P underflows. This is the variant to use.

    Args:
        hmm: n states; the least product of a transition and an emission probability is c = 1/C.
        length: T, at least 1.
        variant: "disjoint" or "residual".
        product: "bilinear", exact, which no MLP is, or "gelu" (Lemma D.1) in the Transformer and in the normaliser.
        division: "mlp", the normaliser, or "division" in its place.
        exponents: of the normaliser; "floor" is the paper's misprint, with which it diverges.
        gelu_scale: λ; by default the best of the number type, 2^(p/3).
        least: lower bound of the factor by which an observation shrinks the sum, instead of c; needed if the HMM has
            zeros.
        dtype: of the weights and the arithmetic; the exact normaliser is in long double.

    Raises:
        InputError: an HMM with zeros, a value out of range, or C^T beyond long double (beyond `dtype` for "gelu").

    Source: [Limits] Theorem 5.3 and App. E, with the corrections that `normaliser` and `log_leak` state.
    """
    require(isinstance(length, int) and 1 <= length <= MAX_LENGTH, "length", f"must be in [1, {MAX_LENGTH}]", length)
    for field, value, known in (
        ("variant", variant, ("disjoint", "residual")),
        ("product", product, ("bilinear", "gelu")),
        ("division", division, ("mlp", "division")),
        ("exponents", exponents, ("real", "floor")),
    ):
        if value not in known:
            raise unknown_name(field, value, known)
    require(dtype in (torch.float64, torch.float32), "dtype", "must be torch.float64 or torch.float32", dtype)
    scale = best_gelu_scale(dtype) if gelu_scale is None else float(gelu_scale)
    require(0 < scale < math.inf, "gelu_scale", "must be a positive number", gelu_scale)
    operators = belief_operators(hmm)
    schedule = Schedule(length=length, bound=bound_of(operators, least), exponents=exponents)
    if division == "mlp":
        wide = np.longdouble if product == "bilinear" else {torch.float64: np.float64, torch.float32: np.float32}[dtype]
        require_range(schedule, wide)
    return StochasticFilter(
        operators,
        length,
        variant=variant,
        product=product,
        division=division,
        schedule=schedule,
        gelu_scale=scale,
        dtype=dtype,
    )
