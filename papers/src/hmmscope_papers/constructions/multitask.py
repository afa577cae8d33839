"""[MultiTask] Theorems 1 and 2 as networks."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from hmmscope.schema import options_of, require
from hmmscope.system_info import require_memory
from hmmscope_papers.constructions.gradient_steps import gradient_heads, prediction_bound, prediction_heads, ridge_head
from hmmscope_papers.constructions.history import future_layers, history_layers, joint_map
from hmmscope_papers.constructions.multitask_attention import (
    SCORE_BYTES,
    AttentionHeads,
    ConstructedAttention,
    ConstructedBlock,
)
from hmmscope_papers.constructions.multitask_layout import Positions, Prompt, ResidualLayout
from hmmscope_papers.constructions.multitask_network import Descent, MultiTaskTransformer, Readout
from hmmscope_papers.constructions.multitask_positions import PositionCode, absolute_vectors, rotating_pair
from hmmscope_papers.constructions.regression import Features
from hmmscope_papers.constructions.residual import LayerNote


@dataclass(frozen=True, kw_only=True)
class MultiTaskOptions:
    """Variants of `multitask_theorem1` and `multitask_theorem2`.

    Attributes:
        learning_rate: Step size (default, always stable: 1 / (memory length + ridge), or 1 / (1 + ridge) with tabular
            features).
        gap: Margin of the target position's attention logit; from 750 (float64) or 105 (float32) on, copies are exact.
        mask: Attention-score penalty of invalid positions.
        causal: True for decoder-only attention, where each position regresses on the samples to its left.
        ridge: Weight of the penalty (ridge / 2) ‖W‖².
        features: "window" (concatenated one-hots) or "tabular" (one-hot of the window).
        positions: "column": (cos, sin) of an angle proportional to the position; "slot": same, copied with tokens;
            "absolute": random vectors (Theorem 1 only).
        position_width, position_seed: Size and seed of absolute vectors.
        num_heads: Number of heads of a gradient layer (default: two per label entry); fewer omit part of the gradient.
        dtype: torch.float64 or torch.float32.
    """

    learning_rate: float | None = None
    gap: float = 800.0
    mask: float = 1e4
    causal: bool = False
    ridge: float = 0.0
    features: Features = "window"
    positions: Positions = "column"
    position_width: int = 2
    position_seed: int = 0
    num_heads: int | None = None
    dtype: torch.dtype = torch.float64

    def layout(self, num_symbols: int, memory_length: int, **fields: Any) -> ResidualLayout:
        variant: dict[str, Any] = {"causal": self.causal, "features": self.features, "positions": self.positions}
        return ResidualLayout(num_symbols=num_symbols, memory_length=memory_length, **variant, **fields)

    def descent(self, num_steps: int) -> Descent:
        names = ("learning_rate", "ridge", "gap", "mask", "num_heads", "dtype")
        return Descent(num_steps=num_steps, **{name: getattr(self, name) for name in names})


def multitask_theorem1(
    num_symbols: int,
    memory_length: int,
    num_steps: int,
    *,
    num_demonstrations: int,
    demonstration_length: int | Sequence[int],
    test_length: int,
    options: MultiTaskOptions | None = None,
) -> MultiTaskTransformer:
    """Build the Transformer of [MultiTask] Theorem 1, which predicts the next symbol in context.

        1  ceil(log2 L) softmax layers of one head     gather the last L tokens                    `history`
        2  one softmax layer of one head               gathers the next token                      `history`
        3  T ReLU layers of 2V heads                   take one gradient step each                 `gradient_steps`
        4  one ReLU layer of 2V heads                  predicts W^(T) x                            `gradient_steps`

    W^(T) is the T-th iterate of gradient descent from zero on all demonstration windows without delimiter; x is the
    last window.

    Source: [MultiTask] Theorem 1 and its sketch in §4; constants, prediction layer and variants are our additions.

    Args:
        num_symbols: Number of symbols V >= 2; the delimiter is token V.
        memory_length: Number of symbols per window L >= 1.
        num_steps: Number of gradient steps T >= 0.
        num_demonstrations, demonstration_length, test_length: Sizes of the prompt; give unequal lengths as a list.
        options: Variants of the construction.

    Raises:
        InputError: A size is out of range, all demonstrations are too short, or the dtype cannot distinguish positions.
        ResourceError: The weights, or one prompt, exceed memory.
    """
    options = options_of(options, MultiTaskOptions)
    layout = options.layout(num_symbols, memory_length, position_width=options.position_width)
    prompt = Prompt.of(num_demonstrations, demonstration_length, test_length)
    descent, seed = options.descent(num_steps), options.position_seed
    return _build(layout, prompt, descent, position_seed=seed, readout="joint", theorem="Theorem 1")


def multitask_theorem2(
    num_symbols: int,
    memory_length: int,
    num_steps: int,
    *,
    num_futures: int,
    num_demonstrations: int,
    demonstration_length: int | Sequence[int],
    test_length: int,
    readout: Readout = "joint",
    options: MultiTaskOptions | None = None,
) -> MultiTaskTransformer:
    """Build the Transformer of [MultiTask] Theorem 2, which predicts the next `num_futures` symbols jointly.

    It differs from `multitask_theorem1` (see there for other arguments): 1 + ceil(log2 k) layers gather the next k
    symbols, and an MLP forms their joint one-hot. P(a_1 .. a_k) is the output at index sum_m a_m V^(k-m).

    Source: [MultiTask] Theorem 2.

    Args:
        num_futures: Number of predicted symbols k >= 1.
        readout: "joint", or "next" for the marginal distribution of the next symbol.
    """
    options = options_of(options, MultiTaskOptions)
    layout = options.layout(num_symbols, memory_length, num_futures=num_futures, joint_labels=True)
    require(options.positions != "absolute", "positions", "must be column or slot", options.positions)
    prompt = Prompt.of(num_demonstrations, demonstration_length, test_length)
    return _build(layout, prompt, options.descent(num_steps), position_seed=0, readout=readout, theorem="Theorem 2")


def _build(
    layout: ResidualLayout, prompt: Prompt, descent: Descent, *, position_seed: int, readout: Readout, theorem: str
) -> MultiTaskTransformer:
    descent.check(layout)
    memory_length, gap, dtype, rate = layout.memory_length, descent.gap, descent.dtype, descent.rate(layout)
    rule = f"must be at least {memory_length} (memory_length)"
    require(prompt.test_length >= memory_length, "test_length", rule, prompt.test_length)
    num_samples = prompt.num_samples(memory_length, layout.num_futures)
    rule = f"must be at least {memory_length + layout.num_futures} (memory_length + num_futures)"
    require(num_samples > 0, "demonstration_length", rule, prompt.demonstration_lengths)
    code = _positions(layout, prompt, position_seed)
    rule = f"must give a prompt whose positions {dtype} can distinguish; use fewer, or float64"
    require(code.closeness > 8 * torch.finfo(dtype).eps, "num_demonstrations", rule, f"{prompt.num_columns} positions")
    _require_memory(layout, prompt, dtype)

    def block(*groups: AttentionHeads) -> ConstructedBlock:
        return ConstructedBlock(ConstructedAttention(groups, layout.causal))

    gathering = [*history_layers(layout, code, gap, dtype), *future_layers(layout, code, gap, dtype)]
    layers = [(block(head), [note]) for head, note in gathering]
    joint = joint_map(layout, dtype)
    if joint is not None:
        layers[-1][0].mlp = joint[0]
        layers[-1][1].append(joint[1])
    step = [gradient_heads(layout, num_samples, rate, descent.mask, descent.heads(layout), dtype)]
    equation = "W <- W - rate (1/n) sum over samples of (W x - y) x^T"
    if descent.ridge > 0:
        step.append(ridge_head(layout, code, rate, descent.ridge, dtype))
        equation += " - rate ridge W"
    sample, query = _sources(layout)
    reads = ("weights", *sample)
    note = LayerNote(stage="gradient step", reads=reads, writes=("weights",), equation=equation)
    layers += [(block(*step), [note]) for _ in range(descent.num_steps)]  # shared weights
    bound = prediction_bound(layout, rate, descent.num_steps)
    note = LayerNote(stage="predict", reads=("weights", *query), writes=("prediction",), equation="prediction <- W x")
    layers.append((block(prediction_heads(layout, code, bound, dtype)), [note]))
    return MultiTaskTransformer(layout, prompt, code, descent, layers, readout=readout, theorem=theorem)


def _sources(layout: ResidualLayout) -> tuple[tuple[str, ...], tuple[str, ...]]:
    tabular = layout.features == "tabular"
    label = ("label",) if layout.joint_labels else tuple(layout.label_blocks)
    sample = ("sample-window",) if tabular else tuple(layout.sample_blocks)
    query = ("query-window" if layout.causal else "sample-window",) if tabular else tuple(layout.query_blocks)
    return (*sample, *label), query


def _positions(layout: ResidualLayout, prompt: Prompt, seed: int) -> PositionCode:
    if layout.positions == "absolute":
        return absolute_vectors(prompt.num_columns, layout.position_width, seed)
    require(layout.position_width == 2, "position_width", 'must be 2 for "column" and "slot"', layout.position_width)
    return rotating_pair(prompt.num_columns, max(layout.num_slots, layout.num_futures))


def _require_memory(layout: ResidualLayout, prompt: Prompt, dtype: torch.dtype) -> None:
    width, columns, heads = layout.subspaces.width, prompt.num_columns, 2 * layout.num_labels
    weights = heads * width * (2 * (layout.num_features + 1) + 2 * layout.num_features + 2 * layout.num_features + 2)
    prompt_size = columns * (4 * width + 4 * (layout.num_features + 1)) + 3 * columns**2
    num_bytes = (weights + prompt_size) * dtype.itemsize + SCORE_BYTES
    require_memory("construction", num_bytes, "use fewer symbols, futures or positions")
