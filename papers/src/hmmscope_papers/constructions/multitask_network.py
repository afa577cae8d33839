"""The network of [MultiTask] Theorems 1 and 2."""

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import nn

from hmmscope.axes import Cache, Feedback, Float, Inputs, Int64, Positions, Tensor
from hmmscope.models.base import ModelIO
from hmmscope.schema import require, require_count, require_known, require_real
from hmmscope_papers.constructions.constructed import Constructed, check_tokens, frozen, only_tokens, require_floats
from hmmscope_papers.constructions.gradient_steps import prediction_bound
from hmmscope_papers.constructions.multitask_attention import ConstructedBlock
from hmmscope_papers.constructions.multitask_exact import ExactBlockValues
from hmmscope_papers.constructions.multitask_layout import Prompt, ResidualLayout
from hmmscope_papers.constructions.multitask_positions import PositionCode
from hmmscope_papers.constructions.residual import LayerNote

Readout = Literal["joint", "next"]


@dataclass(frozen=True, kw_only=True)
class Descent:
    """Constants of the in-context regression and of the weights that compute it.

    Attributes:
        num_steps: Number of gradient steps T.
        learning_rate, ridge, gap, mask, num_heads, dtype: See `MultiTaskOptions`.
    """

    num_steps: int
    learning_rate: float | None
    ridge: float
    gap: float
    mask: float
    num_heads: int | None
    dtype: torch.dtype

    def heads(self, layout: ResidualLayout) -> int:
        return 2 * layout.num_labels if self.num_heads is None else self.num_heads

    def rate(self, layout: ResidualLayout) -> float:
        largest = (1 if layout.features == "tabular" else layout.memory_length) + self.ridge
        return 1 / largest if self.learning_rate is None else float(self.learning_rate)

    def check(self, layout: ResidualLayout) -> None:
        require_count("num_steps", self.num_steps, 0)
        for field in ("ridge", "mask", "gap"):
            require_real(field, getattr(self, field))
        require(self.ridge >= 0, "ridge", "must be at least 0", self.ridge)
        if self.learning_rate is not None:
            require_real("learning_rate", self.learning_rate)
        rate, most = self.rate(layout), 2 * layout.num_labels
        require(rate > 0, "learning_rate", "must be positive", self.learning_rate)
        require_count("num_heads", self.heads(layout), most=most)
        least = 1 + prediction_bound(layout, rate, self.num_steps)
        require(least < self.mask, "mask", f"must be above {least:.4g} for {self.num_steps} gradient steps", self.mask)
        require(1 <= self.gap <= 1e6, "gap", "must be in [1, 1e6]", self.gap)
        require_floats(self.dtype)


class MultiTaskTransformer(Constructed):
    """An attention-only Transformer that learns from the demonstrations in its prompt.

    The network maps tokens to W x, the predicted probabilities of the next `num_futures` symbols (batch, position,
    V^num_futures), or of the next symbol with the readout "next". While gradient descent has not converged, entries can
    be negative (see `clip_law`, `simplex_law`). Inputs may be prefixes of the prompt.

    Attributes:
        num_symbols, vocab_size: Number V of symbols; number V + 1 of tokens, with the delimiter.
        layout, prompt, code: Stream layout, prompt layout, position vectors.
        subspaces: Named blocks of the residual stream.
        num_steps: Number of gradient steps T. learning_rate, ridge, num_samples, mask, gap: Constants, see `Descent`.
        num_layers: Number of attention layers.
        heads_per_layer: Number of heads of each layer.
        width: Width of the residual stream.
    """

    def __init__(
        self,
        layout: ResidualLayout,
        prompt: Prompt,
        code: PositionCode,
        descent: Descent,
        layers: list[tuple[ConstructedBlock, list[LayerNote]]],
        *,
        readout: Readout,
        theorem: str,
    ) -> None:
        ports = ModelIO(num_outputs=num_outputs(layout, readout), vocab_size=layout.num_symbols + 1)
        super().__init__(ports, num_symbols=layout.num_symbols, num_layers=len(layers))
        self.layout, self.prompt, self.code, self.descent, self.theorem = layout, prompt, code, descent, theorem
        self.subspaces, dtype = layout.subspaces, descent.dtype
        self.num_steps, self.learning_rate, self.ridge = descent.num_steps, descent.rate(layout), descent.ridge
        self.mask, self.gap = descent.mask, descent.gap
        self.num_samples = prompt.num_samples(layout.memory_length, layout.num_futures)
        token_VD, column_ND = embeddings(layout, prompt)
        self.embedding, self.columns = frozen(token_VD, dtype), frozen(column_ND, dtype)
        self.positions = frozen(code.table, dtype)
        marginal_QV = torch.eye(layout.num_symbols, dtype=torch.float64).repeat_interleave(
            layout.num_labels // layout.num_symbols, dim=0
        )
        self.readout = frozen(marginal_QV, dtype) if readout == "next" else None
        self.blocks = nn.ModuleList(block for block, _ in layers)
        self._notes = [replace(note, layer=layer) for layer, (_, notes) in enumerate(layers, 1) for note in notes]

    @property
    def title(self) -> str:
        sizes = f"{self.num_symbols} symbols, memory {self.layout.memory_length}, {self.num_steps} gradient steps"
        return f"[MultiTask] {self.theorem}: {sizes}"

    @property
    def width(self) -> int:
        return self.subspaces.width

    @property
    def num_layers(self) -> int:
        return len(self.blocks)

    @property
    def heads_per_layer(self) -> list[int]:
        return [block.attention.num_heads for block in self.blocks if isinstance(block, ConstructedBlock)]

    @property
    def leak(self) -> float:
        """Return a bound on the total softmax weight of wrong positions in a copying head."""
        return self.code.leak(self.gap)

    @property
    def predicting_columns(self) -> range:
        """Return the positions whose window lies inside the test sequence."""
        first = self.prompt.first_test_column + self.layout.memory_length - 1
        return range(first, self.prompt.num_columns)

    def embed(
        self, tokens: Int64[Tensor, "batch time"], positions: Int64[Tensor, "*batch time"] | None = None
    ) -> Float[Tensor, "batch time row"]:
        time, columns = tokens.shape[1], self.prompt.num_columns
        least = 1 if self.layout.causal else self.prompt.first_test_column
        rule = f"must have {least} to {columns} positions"
        require(least <= time <= columns, "tokens", rule, time)
        check_tokens(tokens, self.vocab_size)
        self.prompt.check_delimiters(tokens, self.vocab_size - 1)
        x_BTD = self.embedding[tokens] + self.columns[:time]
        if positions is None:
            positions = torch.arange(time, device=tokens.device)
        low, high = int(positions.min()), int(positions.max())
        require(0 <= low <= high < columns, "positions", f"must be in [0, {columns - 1}]", (low, high))
        x_BTD[..., self.subspaces["position"]] = self.positions[positions]
        return x_BTD

    def forward(
        self, inputs: Inputs, positions: Positions = None, *, feedback: Feedback = None, cache: Cache = None
    ) -> Float[Tensor, "batch time label"]:
        """Predict the next symbols.

        Raises:
            InputError: Tokens, positions or delimiters do not fit the prompt, or feedback or a cache is passed.
        """
        only_tokens(inputs, feedback, cache)
        law_BTQ = self.through(self.embed(inputs, positions))[..., self.subspaces["prediction"]]
        return law_BTQ if self.readout is None else law_BTQ @ self.readout

    @torch.no_grad()
    def stream(self, tokens: Int64[Tensor, "batch time"]) -> list[Tensor]:
        """Return the residual stream after the embedding and each layer, each (batch, time, row)."""
        found: list[Tensor] = []
        handles = [tap.register_forward_hook(lambda _, __, output: found.append(output)) for tap in self.residual]
        try:
            self(tokens)
        finally:
            for handle in handles:
                handle.remove()
        return found

    def weights_of(self, x_BTD: Float[Tensor, "batch time row"]) -> Float[Tensor, "batch time label feature"]:
        """Return the regression weights W stored at each position."""
        return x_BTD[..., self.subspaces["weights"]].unflatten(-1, (self.layout.num_labels, self.layout.num_features))

    def learned_weights(self, tokens: Int64[Tensor, "batch time"]) -> Float[Tensor, "step batch label feature"]:
        """Return the regression weights W^(0), .., W^(T) at the last position."""
        return torch.stack([self.weights_of(x_BTD)[:, -1] for x_BTD in self.stream(tokens)[-2 - self.num_steps : -1]])

    def exact(self, tokens: Int64[Tensor, "batch time"]) -> ExactBlockValues:
        return ExactBlockValues(self.layout, self.prompt, tokens, self.learning_rate, self.num_samples, self.ridge)

    def notes(self, tokens: Int64[Tensor, "batch time"] | None = None) -> list[LayerNote]:
        if tokens is None:
            return list(self._notes)
        exact, stream = self.exact(tokens), self.stream(tokens)
        weights = exact.weights(self.num_steps)
        notes, step = [], 0
        for note in self._notes:
            x_BTD, error = stream[note.layer].double(), 0.0
            step += note.writes == ("weights",)
            for name in note.writes:
                if name == "weights":
                    wanted = weights[step].flatten(2)
                elif name == "prediction":
                    wanted = exact.prediction(weights[-1])
                else:
                    wanted = exact.block(name, self.code.table)
                error = max(error, float((x_BTD[..., self.subspaces[name]] - wanted).abs().max()))
            notes.append(replace(note, error=error))
        return notes


def num_outputs(layout: ResidualLayout, readout: Readout) -> int:
    require_known("readout", readout, ("joint", "next"))
    return layout.num_labels if readout == "joint" else layout.num_symbols


def embeddings(layout: ResidualLayout, prompt: Prompt) -> tuple[Tensor, Tensor]:
    token_VD = torch.zeros(layout.num_symbols + 1, layout.subspaces.width, dtype=torch.float64)
    token_VD[:, layout.subspaces["slot-0"]] = torch.eye(layout.num_symbols + 1, dtype=torch.float64)
    column_ND = torch.zeros(prompt.num_columns, layout.subspaces.width, dtype=torch.float64)
    column_ND[:, layout.subspaces["one"]] = 1
    column_ND[prompt.first_test_column :, layout.subspaces["test"]] = 1
    return token_VD, column_ND


def clip_law(vectors: Float[Tensor, "*batch label"]) -> Float[Tensor, "*batch label"]:
    """Set negative entries to zero and renormalise; raise InputError if no entry is positive."""
    kept = vectors.clamp(min=0)
    total = kept.sum(-1, keepdim=True)
    require(bool((total > 0).all()), "vectors", "must each have a positive entry", "a vector without")
    return kept / total


def simplex_law(vectors: Float[Tensor, "*batch label"]) -> Float[Tensor, "*batch label"]:
    ordered = vectors.sort(-1, descending=True).values
    excess = ordered.cumsum(-1) - 1
    counts = torch.arange(1, vectors.shape[-1] + 1, device=vectors.device)
    kept = (ordered * counts > excess).sum(-1, keepdim=True)
    return (vectors - excess.gather(-1, kept - 1) / kept).clamp(min=0)
