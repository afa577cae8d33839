"""[Limits] Theorem 5.1: a ReLU RNN that computes the state of a deterministic HMM exactly."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from hmmscope.axes import Float, Int64, Tensor
from hmmscope.models.base import ModelIO
from hmmscope.schema import require, require_real
from hmmscope_papers.constructions.constructed import Constructed, check_tokens, only_tokens, require_floats
from hmmscope_papers.constructions.driven import DrivenSystem, driven_system
from hmmscope_papers.constructions.residual import LayerNote, Subspaces


class DeterministicRNN(Constructed):
    """The RNN of Theorem 5.1; see `limits_theorem5_1`.

    Attributes:
        system: Initial vector, and a matrix per symbol.
        scale: Number α; hidden states contain vector_t + α/2.
        num_blocks: Number of different tokens.
        rnn: One-layer ReLU `torch.nn.RNN`.
        decoder: Map from the hidden state to the system's vector.
        start: Initial hidden state.
        residual: Hook points on the one-hot tokens and the hidden state.
        subspaces: Blocks of the hidden state, one per token.
    """

    def __init__(self, system: DrivenSystem, *, scale: float, placeholder: bool, dtype: torch.dtype) -> None:
        n, matrices = system.num_states, system.with_identity if placeholder else system.matrices_VSS
        m = len(matrices)
        super().__init__(ModelIO(num_outputs=n, vocab_size=m))
        self.system, self.scale, self.num_blocks = system, scale, m
        names = [f"symbol {v}" for v in range(system.num_symbols)] + ["placeholder"] * placeholder
        self.subspaces = Subspaces(dict.fromkeys(names, n))
        half = scale / 2
        self.rnn = nn.RNN(m, n * m, nonlinearity="relu", batch_first=True, dtype=dtype)
        self.decoder = nn.Linear(n * m, n, dtype=dtype)
        start = torch.zeros(n * m, dtype=torch.float64)
        start[:n] = system.initial_S + half  # [corrected] the paper subtracts α/2
        weights = {
            "weight_ih_l0": scale * torch.eye(m, dtype=torch.float64).repeat_interleave(n, 0),
            "bias_ih_l0": torch.full((n * m,), -half, dtype=torch.float64),
            "weight_hh_l0": matrices.reshape(n * m, n).repeat(1, m),
            "bias_hh_l0": -half * matrices.sum(2).flatten(),
        }
        with torch.no_grad():
            for name, weight in weights.items():
                getattr(self.rnn, name).copy_(weight)
            self.decoder.weight.copy_(torch.eye(n, dtype=torch.float64).repeat(1, m))
            self.decoder.bias.fill_(-half)
        self.start = nn.Parameter(start.to(dtype))
        self.requires_grad_(False)

    def forward(
        self,
        inputs: Int64[Tensor, "batch time"],
        positions: Int64[Tensor, "*batch time"] | None = None,
        *,
        feedback: Tensor | None = None,
        cache: dict[str, Any] | None = None,
    ) -> Float[Tensor, "batch time state"]:
        """Return the vector of `system` after each token; `positions` are ignored.

        Raises:
            InputError: A token is outside the vocabulary, or feedback or a cache is passed.
        """
        only_tokens(inputs, feedback, cache)
        return self.decoder(self.residual[1](self.hidden(inputs)))

    def hidden(self, tokens: Tensor) -> Tensor:
        """Return hidden states (batch, time, width): vector_t + α/2 in the current token's block, zero elsewhere."""
        check_tokens(tokens, self.vocab_size)
        inputs = self.residual[0](F.one_hot(tokens, self.vocab_size).to(self.start.dtype))
        start = self.start.expand(1, len(tokens), -1).contiguous()
        hidden: Tensor = self.rnn(inputs, start)[0]
        return hidden

    def exact_hidden(self, tokens: Int64[Tensor, "batch time"]) -> Float[Tensor, "batch time width"]:
        shifted = self.system.vectors(tokens) + self.scale / 2
        return (F.one_hot(tokens, self.vocab_size)[..., None] * shifted[..., None, :]).flatten(2)

    def weight_bound(self) -> float:
        """Return max(α, (α/2) r, 1), a bound on the weights; r is the bound on row sums in `DrivenSystem.sums`."""
        rows = self.system.sums[0]
        return max(self.scale, self.scale / 2 * rows, 1.0)

    def notes(self, tokens: Int64[Tensor, "batch time"] | None = None) -> list[LayerNote]:
        error = None
        if tokens is not None:
            with torch.no_grad():
                error = float((self.hidden(tokens).double() - self.exact_hidden(tokens)).abs().max())
        blocks = tuple(self.subspaces)
        equation = "block o = ReLU(A_o vector_(t-1) + α (1[o = o_t] - 1/2)) = vector_t + α/2 if o = o_t, else 0"
        return [LayerNote(layer=1, stage="recurrence", reads=blocks, writes=blocks, equation=equation, error=error)]

    @property
    def title(self) -> str:
        system = self.system
        return (
            f"[Limits] Theorem 5.1: ReLU RNN, n = {system.num_states}, m = {system.num_symbols}, α = {self.scale:g}, "
            f"largest weight {self.largest_weight():.3g}"
        )


def limits_theorem5_1(
    process: object,
    *,
    scale: float | None = None,
    initial: object = None,
    placeholder: bool = True,
    dtype: torch.dtype = torch.float64,
) -> DeterministicRNN:
    """Build the [Limits] Theorem 5.1 RNN.

    h_t = ReLU(W_ih x_t + b_ih + W_hh h_{t-1} + b_hh),   vector_t = W_dec h_t + b_dec,   x_t one-hot

    W_hh[i, j] = A_i for all j,  b_hh[i] = -(α/2) A_i 1,  W_ih[i] = α 1 e_i^T,  b_ih = -(α/2) 1,
    h_0 = [vector_0 + (α/2) 1, 0, ..],  W_dec = [I, .., I],  b_dec = -(α/2) 1

    Token i has the n × n matrix A_i and block i of h_t; 1 is the vector of ones, e_i a unit vector. The RNN is exact
    if no coordinate of A_i vector_t exceeds α/2 in absolute value. Misprints in Equation E.8 and in h_0 are corrected.

    Args:
        process: See `driven_system`.
        scale: Scale α (default: twice `DrivenSystem.smallest_scale`).
        initial: vector_0 (default: see `driven_system`).
        placeholder: True adds a placeholder, token m after the m symbols, that starts sequences (width n(m + 1)).
        dtype: Number type of the weights.

    Raises:
        InputError: The process is not deterministic, the scale is not positive, or is missing and has no default.
    """
    system = driven_system(process, initial)
    if scale is None:
        scale = 2 * system.smallest_scale
    require_real("scale", scale)
    require(scale > 0, "scale", "must be a positive number", scale)
    require_floats(dtype)
    return DeterministicRNN(system, scale=float(scale), placeholder=placeholder, dtype=dtype)
