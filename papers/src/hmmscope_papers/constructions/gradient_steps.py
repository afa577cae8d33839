"""ReLU attention that takes one gradient step of least squares, and attention that applies the resulting weights.

[MultiTask] §4, after Bai et al., 2023, Theorem 4. Position c holds a sample: window x_c and label y_c. Position r
stores weights W(r), with row W_a for label entry a. Each a and sign s = +1, -1 has a head (n: number of samples):

    score[r, c] = s (W_a(r) . x_c - y_(c,a)) - mask * invalid_c;     value[c] = -s (rate / n) x_c, added to W_a(r)

invalid_c is the number of delimiters in x_c and y_c, plus one if c is in the test sequence. `mask` must
exceed |W_a . x_c - y_(c,a)|; 1 + `prediction_bound` suffices.
"""

import math

import torch

from hmmscope.axes import Tensor
from hmmscope_papers.constructions.multitask_attention import AttentionHeads
from hmmscope_papers.constructions.multitask_layout import ResidualLayout
from hmmscope_papers.constructions.multitask_positions import PositionCode


def prediction_bound(layout: ResidualLayout, learning_rate: float, num_steps: int) -> float:
    """Bound |W_a . x| after T steps by ‖x‖ sqrt(rate T), if rate <= n / (largest eigenvalue of sum_c x_c x_c^T)."""
    size = 1 if layout.features == "tabular" else layout.memory_length
    return math.sqrt(size * learning_rate * num_steps)


def _weight_rows(layout: ResidualLayout) -> Tensor:
    return torch.tensor(layout.rows("weights")).view(layout.num_labels, layout.num_features)


def _empty(num_heads: int, width: int, value_width: int, rows: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    shapes = ((width, rows), (width, rows), (value_width, rows), (rows, value_width))
    query, key, value, output = (torch.zeros(num_heads, *shape, dtype=torch.float64) for shape in shapes)
    return query, key, value, output


def _signs(layout: ResidualLayout, num_heads: int) -> list[tuple[int, float]]:
    return [(head % layout.num_labels, -1.0 if head < layout.num_labels else 1.0) for head in range(num_heads)]


def gradient_heads(
    layout: ResidualLayout, num_samples: int, learning_rate: float, mask: float, num_heads: int, dtype: torch.dtype
) -> AttentionHeads:
    """Build the heads of one gradient step; the full gradient needs a head for each label entry a and sign s."""
    weights_QF, x_rows, y_rows = _weight_rows(layout), layout.sample_rows, layout.label_rows
    features = torch.arange(layout.num_features)
    query, key, value, output = _empty(num_heads, len(features) + 1, len(features), layout.subspaces.width)
    for head, (a, sign) in enumerate(_signs(layout, num_heads)):
        query[head, features, weights_QF[a]] = sign
        query[head, -1, layout.rows("one")] = 1
        key[head, features, x_rows] = 1
        key[head, -1, y_rows[a]] = -sign
        key[head, -1, layout.invalid_rows] = -mask
        value[head, features, x_rows] = 1
        output[head, weights_QF[a], features] = -sign * learning_rate / num_samples
    return AttentionHeads("relu", query, key, value, output, dtype)


def _own_column(layout: ResidualLayout, code: PositionCode, margin: float) -> tuple[Tensor, Tensor]:
    factor = margin / code.closeness
    rows = [*layout.rows("position"), *layout.rows("one")]
    key = torch.zeros(len(rows), layout.subspaces.width, dtype=torch.float64)
    key[torch.arange(len(rows)), rows] = 1
    query = factor * key
    query[-1] = -query[-1]
    return query, key


def ridge_head(
    layout: ResidualLayout, code: PositionCode, learning_rate: float, ridge: float, dtype: torch.dtype
) -> AttentionHeads:
    """Build the head that subtracts the penalty's gradient: W <- W - rate ridge W."""
    rows = layout.rows("weights")
    size, one = len(rows), layout.rows("one")
    query, key, value, output = _empty(1, 1, size, layout.subspaces.width)
    query[0, 0, one], key[0, 0, one] = 1, 1
    value[0, torch.arange(size), rows] = 1
    output[0, rows, torch.arange(size)] = -learning_rate * ridge
    if not layout.causal:
        return AttentionHeads("mean relu", query, key, value, output, dtype)
    own_query, own_key = _own_column(layout, code, margin=2.0)
    return AttentionHeads(
        "relu", torch.cat([query, own_query[None]], 1), torch.cat([key, own_key[None]], 1), value, output, dtype
    )


def prediction_heads(layout: ResidualLayout, code: PositionCode, bound: float, dtype: torch.dtype) -> AttentionHeads:
    """Build a head for each label entry a and sign s; together they write W x for the window x of each position.

    not causal: score[r, c] = s W_a(c) . x_r, averaged over all c, which store the same W;                  value[c] = s
    causal:     score[r, c] = s W_a(r) . x_c if c = r, else negative (requires |W_a . x_c| <= 2 `bound`);  value[c] = s
    """
    weights_QF, x_rows = _weight_rows(layout), layout.query_rows
    features, num_heads = torch.arange(layout.num_features), 2 * layout.num_labels
    query, key, value, output = _empty(num_heads, len(features), 1, layout.subspaces.width)
    for head, (a, sign) in enumerate(_signs(layout, num_heads)):
        window, weights = (key, query) if layout.causal else (query, key)
        window[head, features, x_rows] = sign
        weights[head, features, weights_QF[a]] = 1
        value[head, 0, layout.rows("one")] = 1
        output[head, layout.rows("prediction")[a], 0] = sign
    if not layout.causal:
        return AttentionHeads("mean relu", query, key, value, output, dtype)
    own_query, own_key = (part.expand(num_heads, -1, -1) for part in _own_column(layout, code, 1 + 2 * bound))
    return AttentionHeads("relu", torch.cat([query, own_query], 1), torch.cat([key, own_key], 1), value, output, dtype)
