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
from hmmscope.processes.capabilities import WORDS
from hmmscope.processes.hmm import HMM
from hmmscope.processes.integer_rows import integer_weights
from hmmscope.processes.labelled import LabelledHMM
from hmmscope.processes.make import as_process
from hmmscope.reprs import Shown
from hmmscope.schema import require, require_count, require_known, require_real
from hmmscope_papers.constructions.constructed import check_tokens, frozen, only_tokens, require_floats
from hmmscope_papers.constructions.driven import DrivenSystem
from hmmscope_papers.constructions.normaliser import (
    LONG_DOUBLE,
    DenseLayer,
    Exponents,
    Normalised,
    Schedule,
    dense_layers,
    normalise,
    require_range,
)
from hmmscope_papers.constructions.prefix_parts import best_gelu_scale, gelu, layers_needed
from hmmscope_papers.constructions.prefix_transformer import PrefixTransformer
from hmmscope_papers.constructions.residual import LayerNote

Variant = Literal["disjoint", "residual"]
Product = Literal["bilinear", "gelu"]
Division = Literal["mlp", "division"]

MAX_LENGTH = 4096

#: Denominator of `BeliefOperators.numerators_VSS`: 2^32 for each of two quantised probabilities.
UNIT = 2**64


@dataclass(frozen=True, eq=False, repr=False)
class BeliefOperators(Shown):
    """Exact rational matrices of the filter: beliefs are read_OS b / sum(b), with b = M_{o_t} ⋯ M_{o_1} start_S.

    M_o[s', s] = P(s' | s) P(o | s'). As in [Limits], start_S is one-hot at a state from which transitions have the
    initial distribution; if the HMM has no such state, one is added. A labelled HMM has M_o[s', s] = P(o, s' | s) and
    starts from its initial distribution.

    Attributes:
        numerators_VSS: Matrices M_o in units of 2^-64, as Python integers.
        start_S: Vector before the first observation, in units of 2^-64.
        read_OS: Map from states, including an added one, to the HMM's states.
        initial_O: Initial distribution of the HMM.
    """

    numerators_VSS: NDArray[np.object_]
    start_S: NDArray[np.object_]
    read_OS: NDArray[np.float64]
    initial_O: NDArray[np.float64]

    @cached_property
    def least_entry(self) -> float:
        """Return c, the least entry of the matrices M_o without the added state's row."""
        return float(self.numerators_VSS[:, : len(self.read_OS)].min()) / UNIT

    @property
    def num_states(self) -> int:
        return len(self.start_S)


def belief_operators(hmm: HMM | LabelledHMM | str) -> BeliefOperators:
    """Build the matrices of an HMM's filter.

    Raises:
        InputError: The process is not an HMM.
    """
    process = as_process(hmm)
    process.require_capability(WORDS)
    params = process.params
    require(not params.signed, "hmm", "must have nonnegative matrices", process)
    initial_S = params.initial_MS[0]
    initial_O, weights_S = initial_S.numpy(), integer_weights(initial_S).astype(object)
    eye = np.eye(process.num_states)
    if not params.states_emit:
        numerators = integer_weights(params.labelled_MVSS[0]).astype(object).transpose(0, 2, 1) * 2**32
        return BeliefOperators(numerators, weights_S * 2**32, eye, initial_O)
    transition_SS, emission_SV = (
        integer_weights(rows[0]).astype(object) for rows in (params.transition_MSS, params.emission_MSV)
    )
    numerators = emission_SV.T[:, :, None] * transition_SS.T[None]
    same = (params.transition_MSS[0] == initial_S).all(1).nonzero()[:, 0].tolist()
    if same:
        return BeliefOperators(numerators, _unit_vector(process.num_states, same[0]), eye, initial_O)
    size = process.num_states + 1
    larger = np.full((process.num_symbols, size, size), 0, dtype=object)
    larger[:, :-1, :-1] = numerators
    larger[:, :-1, -1] = emission_SV.T * weights_S
    read_OS = np.concatenate([eye, initial_O[:, None]], 1)
    return BeliefOperators(larger, _unit_vector(size, size - 1), read_OS, initial_O)


def _unit_vector(size: int, index: int) -> NDArray[np.object_]:
    vector = np.full(size, 0, dtype=object)
    vector[index] = UNIT
    return vector


def bound_of(operators: BeliefOperators, least: float | None) -> float:
    """Return C = 1 / `least` (see `limits_theorem5_3`); by default, `least` is the least entry.

    Raises:
        InputError: The least entry is zero and `least` is missing, or `least` is outside (0, 1).
    """
    if least is None:
        rule = "must have positive probabilities only (Theorem 5.3 divides by their least product), or give `least`"
        require(operators.least_entry > 0, "hmm", rule, "a zero")
        least = min(operators.least_entry, 0.5)  # one state, one symbol: 1
    require_real("least", least)
    require(0 < least < 1, "least", "must be above 0 and below 1", least)
    return 1 / least


def log_leak(num_states: int, length: int, bound: float) -> float:
    """Return ln η, where η = e^-T C^-T / ((8n)^(L+1) T) bounds the attention of L layers to wrong positions.

    Source: [Limits] Theorem 5.3, Appendix E, where the factor C^-T is missing.
    """
    layers = layers_needed(length)
    return -length * (1 + math.log(bound)) - (layers + 1) * math.log(8 * num_states) - math.log(length)


class StochasticFilter(PrefixTransformer):
    """The network that `limits_theorem5_3` builds.

    Attributes:
        operators: Exact matrices.
        variant, division: Arguments of `limits_theorem5_3`.
        schedule: Stages of the normaliser.
    """

    letters = ("W", "M")

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
        numerators, start = operators.numerators_VSS, operators.start_S
        matrices, vector = (torch.from_numpy((array / UNIT).astype(np.float64)) for array in (numerators, start))
        n, slots = len(vector), ("current",) if variant == "residual" else ("current", "next")
        # The leak is below the theorem's by the machine epsilon, so that only arithmetic limits accuracy.
        log_eta = log_leak(n, length, schedule.bound) + math.log(torch.finfo(dtype).eps)
        half_gap = 2 * math.sin(math.pi / (8 * length)) ** 2  # 1 - cos(π/4T)
        super().__init__(
            DrivenSystem(matrices, vector),
            length,
            num_outputs=len(operators.read_OS),
            product=product,
            gain=math.sqrt((math.log(2 * (length + 1)) - log_eta) / half_gap),
            gelu_scale=gelu_scale,
            slots=[slots[layer % len(slots)] for layer in range(layers_needed(length) + 1)],
            sizes={"previous": n * n, "placeholder": 1, "empty": 2, **dict.fromkeys(slots, n * n)},
            dtype=dtype,
        )
        self.operators, self.schedule, self.variant, self.division = operators, schedule, variant, division
        read_OS = torch.from_numpy(operators.read_OS)
        self.read = frozen(read_OS, dtype)
        self.start = frozen(torch.from_numpy(operators.initial_O) - read_OS @ vector, dtype)
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
        """Return the belief after t observations at position t.

        Raises:
            InputError: A token or position is out of range, a placeholder is misplaced, or feedback or cache is passed.
        """
        only_tokens(inputs, feedback, cache)
        x_BTD = self.stream(inputs, positions)
        return self.divide(x_BTD @ self.decoder) @ self.read.mT + x_BTD[..., self.subspaces["placeholder"]] * self.start

    def embed(self, tokens: Tensor, positions: Tensor | None = None) -> Tensor:
        placeholder = self.vocab_size - 1
        good = bool((tokens[:, :1] == placeholder).all()) and not bool((tokens[:, 1:] == placeholder).any())
        rule = f"must have the placeholder, token {placeholder}, at position 0 and nowhere else"
        require(good, "tokens", rule, tokens[:1])
        return super().embed(tokens, positions)

    def divide(self, vectors: Tensor) -> Tensor:
        if self.division == "division":
            return vectors / vectors.sum(-1, keepdim=True)
        if self.product == "bilinear":
            return torch.as_tensor(np.asarray(self.normalised(vectors).values)).to(vectors)
        hidden = vectors
        for layer in self.normaliser:
            hidden = layer(hidden)
        return hidden

    def normalised(self, vectors: Tensor) -> Normalised:
        wide = vectors.detach().cpu().numpy().astype(np.longdouble)
        with np.errstate(over="ignore", invalid="ignore"):
            found = normalise(wide, self.schedule, LONG_DOUBLE)
            return Normalised(found.values.astype(np.float64), found.sums, found.scaled)

    def exact_beliefs(self, tokens: Int64[Tensor, "batch time"]) -> Float64[Tensor, "batch time state"]:
        check_tokens(tokens, self.vocab_size)
        matrices = self.system.with_identity.to(tokens.device)
        vector = self.system.initial_S.to(tokens.device).expand(len(tokens), -1)
        beliefs = []
        for t in range(tokens.shape[1]):
            vector = (matrices[tokens[:, t]] * vector[:, None, :]).sum(-1)
            vector = vector / vector.sum(-1, keepdim=True)
            beliefs.append(vector @ self.read.double().mT + (self.start.double() if t == 0 else 0.0))
        return torch.stack(beliefs, 1)

    def notes(self, tokens: Int64[Tensor, "batch time"] | None = None) -> list[LayerNote]:
        error = None
        if tokens is not None:
            with torch.no_grad():
                error = float((self(tokens).double() - self.exact_beliefs(tokens)).abs().max())
        text = "division"
        if self.division == "mlp":
            text = f"{self.schedule.num_stages} gates and a series of 2^{self.schedule.num_doublings} terms"
        note = LayerNote(
            layer=len(self.blocks) + 1,
            stage="divide",
            reads=(self.slots[-1],),
            writes=("output",),
            equation=f"W b_0 over its sum, by {text}",
            error=error,
        )
        return [*super().notes(tokens), note]

    def deviation(
        self, windows: Float64[Tensor, "batch time state state"], exact: Float64[Tensor, "batch time state state"]
    ) -> float:
        totals = exact.sum((-1, -2), keepdim=True)
        return float(((windows - exact).abs() / totals)[totals[..., 0, 0] > 0].max())

    def largest_weight(self) -> float:
        return max(float(weight.abs().max()) for name, weight in self.named_parameters() if "normaliser" not in name)

    @property
    def title(self) -> str:
        return (
            f"[Limits] Theorem 5.3: {len(self.blocks)} layers for T = {self.length}, n = {self.system.num_states}, "
            f"m = {self.system.num_symbols}, C = {self.schedule.bound:.4g}, {self.num_neurons} hidden neurons, "
            f"γ = {self.gain:.6g}; variant {self.variant}, product {self.product}"
        )


class MixedLayer(nn.Module):
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
    hmm: HMM | LabelledHMM | str,
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
    """Build the network of [Limits] Theorem 5.3, which computes the beliefs of an HMM with positive probabilities.

    b_t = M_{o_t} ⋯ M_{o_1} b_0 / sum,   M_o[s', s] = P(s' | s) P(o | s')

    The Transformer of Theorem 5.2 multiplies matrices; a normaliser of O(log T) layers divides by the sum. Tokens are a
    placeholder (token V) and up to T observations, as in `SequenceLayout(placeholder=True)`.

    The error bound e^-T needs O(T) significand bits (module `arbitrary_precision`). In floats with unit roundoff u:

    - variant "residual": absolute error u of products, beliefs wrong from T = 50 on (five states and symbols, float64);
    - product "gelu": absolute error u^(2/3) of products, beliefs wrong from T = 16 on;
    - "disjoint" with "bilinear": accurate until P(o_1 .. o_T) underflows.

    Args:
        hmm: HMM of n states; c is the least product of a transition and an emission probability.
        length: Largest number of observations T.
        variant: Update of the blocks that hold matrix products: "disjoint", next = current @ previous, or "residual",
            current += current @ (previous - I).
        product: "bilinear", exact but not an MLP, or "gelu" (Lemma D.1).
        division: "mlp" (the normaliser), or "division" by the processor.
        exponents: "real", or the paper's misprint "floor", which diverges.
        gelu_scale: Number λ by which "gelu" divides factors (default: `best_gelu_scale`).
        least: Lower bound 1/C on every P(o_t | o_1 .. o_{t-1}) (default: c); required if c is 0.
        dtype: Number type of the weights; the normaliser for "bilinear" uses long double.

    Raises:
        InputError: c = 0 and `least` is missing, a value is out of range, or C^T is too large.

    Source: [Limits] Theorem 5.3 and Appendix E, with the corrections of `normaliser` and `log_leak`.
    """
    require_count("length", length, most=MAX_LENGTH)
    for field, value, known in (
        ("variant", variant, ("disjoint", "residual")),
        ("product", product, ("bilinear", "gelu")),
        ("division", division, ("mlp", "division")),
        ("exponents", exponents, ("real", "floor")),
    ):
        require_known(field, value, known)
    require_floats(dtype)
    scale = best_gelu_scale(dtype) if gelu_scale is None else gelu_scale
    require_real("gelu_scale", scale)
    require(scale > 0, "gelu_scale", "must be a positive number", gelu_scale)
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
        gelu_scale=float(scale),
        dtype=dtype,
    )
