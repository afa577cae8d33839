"""Softmax layers that copy neighbouring tokens to every position, and a map to joint one-hots of several tokens.

By [MultiTask] §4, ceil(log2 L) layers gather the last L tokens. Slot i holds the token i positions earlier. If slots
0 .. s - 1 are filled, one head copies them from position r - s to slots s, s + 1, .. of position r:

    score[r, c] = beta v_(r-s) . v_c;     v_r: position vector, beta: inverse temperature
"""

import torch

from hmmscope.axes import Tensor
from hmmscope_papers.constructions.multitask_attention import AttentionHeads, TokenMap
from hmmscope_papers.constructions.multitask_layout import ResidualLayout
from hmmscope_papers.constructions.multitask_positions import PositionCode
from hmmscope_papers.constructions.regression import joint_index
from hmmscope_papers.constructions.residual import LayerNote


def doublings(present: int, wanted: int) -> list[tuple[int, int]]:
    """Return for each layer the number of slots filled before it, and the number that it fills."""
    layers: list[tuple[int, int]] = []
    while present < wanted:
        layers.append((present, min(present, wanted - present)))
        present += layers[-1][1]
    return layers


def copying_head(
    layout: ResidualLayout,
    code: PositionCode,
    gap: float,
    dtype: torch.dtype,
    *,
    read_position: str,
    shift: int,
    copies: list[tuple[str, str]],
) -> AttentionHeads:
    """Build a softmax head that copies blocks from position p - `shift`; block `read_position` holds p's vector."""
    width = layout.subspaces.width
    own, read = layout.rows("position"), layout.rows(read_position)
    query, key = (torch.zeros(1, len(own), width, dtype=torch.float64) for _ in range(2))
    query[0, :, read] = code.inverse_temperature(gap) * code.shift(shift)
    key[0, :, own] = torch.eye(len(own), dtype=torch.float64)
    sources = [row for source, _ in copies for row in layout.rows(source)]
    targets = [row for _, target in copies for row in layout.rows(target)]
    order = torch.arange(len(sources))
    value = torch.zeros(1, len(sources), width, dtype=torch.float64)
    output = torch.zeros(1, width, len(sources), dtype=torch.float64)
    value[0, order, sources] = 1
    output[0, targets, order] = 1
    return AttentionHeads("softmax", query, key, value, output, dtype)


def history_layers(
    layout: ResidualLayout, code: PositionCode, gap: float, dtype: torch.dtype
) -> list[tuple[AttentionHeads, LayerNote]]:
    layers: list[tuple[AttentionHeads, LayerNote]] = []
    for present, extra in doublings(1, layout.num_slots):
        copies = [(f"slot-{i}", f"slot-{present + i}") for i in range(extra)]
        read, shift = "position", present
        if layout.positions == "slot":  # the oldest slot carries its own position: always shift by one
            oldest = present - 1
            read, shift = (f"position-{oldest}" if oldest else "position"), 1
            own = ["position", *(f"position-{i}" for i in range(1, extra))]
            copies += [(own[i], f"position-{present + i}") for i in range(extra)]
        head = copying_head(layout, code, gap, dtype, read_position=read, shift=shift, copies=copies)
        equation = f"slot-(i+{present}) of column r <- slot-i of column r - {present}, i = 0 .. {extra - 1}"
        layers.append((head, _note("gather history", read, copies, equation)))
    return layers


def future_layers(
    layout: ResidualLayout, code: PositionCode, gap: float, dtype: torch.dtype
) -> list[tuple[AttentionHeads, LayerNote]]:
    """Build the 1 + ceil(log2 k) layers that gather the next k tokens; none if attention is causal."""
    if layout.num_copied_futures == 0:
        return []
    carried = layout.positions == "slot"
    copies = [("slot-0", "future-1")] + ([("position", "future-position-1")] if carried else [])
    head = copying_head(layout, code, gap, dtype, read_position="position", shift=-1, copies=copies)
    equation = "future-1 of column r <- slot-0 of column r + 1"
    layers = [(head, _note("gather future", "position", copies, equation))]
    for present, extra in doublings(1, layout.num_copied_futures):
        copies = [(f"future-{i}", f"future-{present + i}") for i in range(1, extra + 1)]
        read, shift = "position", -present
        if carried:
            read, shift = f"future-position-{present}", 0
            copies += [(f"future-position-{i}", f"future-position-{present + i}") for i in range(1, extra + 1)]
        head = copying_head(layout, code, gap, dtype, read_position=read, shift=shift, copies=copies)
        equation = f"future-(i+{present}) of column r <- future-i of column r + {present}, i = 1 .. {extra}"
        layers.append((head, _note("gather future", read, copies, equation)))
    return layers


def _note(stage: str, read: str, copies: list[tuple[str, str]], equation: str) -> LayerNote:
    reads = (read, *(source for source, _ in copies if source != read))
    return LayerNote(stage=stage, reads=reads, writes=tuple(to for _, to in copies), equation=equation)


def joint_map(layout: ResidualLayout, dtype: torch.dtype) -> tuple[TokenMap, LayerNote] | None:
    """Build the token-wise map to joint one-hots of windows and labels; None if the layout has none.

        joint[a_1 .. a_k] = ReLU(sum_m block_m[a_m] - (k - 1)),   block_m: one-hot of symbol m; a_1 most significant

    Source: [MultiTask] §5 ("one-hot mapping"); the ReLU form is not in the paper.
    """
    wanted = []
    if layout.joint_labels:
        wanted.append(("label", layout.label_blocks))
    if layout.features == "tabular":
        wanted.append(("sample-window", layout.sample_blocks))
        if layout.causal:
            wanted.append(("query-window", layout.query_blocks))
    if not wanted:
        return None
    hidden, bias, output = [], [], []
    for target, blocks in wanted:
        part = _joint_units(layout, blocks)
        hidden.append(part)
        bias.append(torch.full((len(part),), 1.0 - len(blocks), dtype=torch.float64))
        into = torch.zeros(layout.subspaces.width, len(part), dtype=torch.float64)
        into[layout.subspaces[target]] = torch.eye(len(part), dtype=torch.float64)
        output.append(into)
    note = LayerNote(
        stage="joint one-hots (token-wise)",
        reads=tuple(dict.fromkeys(block for _, blocks in wanted for block in blocks)),
        writes=tuple(target for target, _ in wanted),
        equation="joint[a_1 .. a_k] = ReLU(sum_m block_m[a_m] - (k - 1))",
    )
    return TokenMap(torch.cat(hidden), torch.cat(bias), torch.cat(output, 1), dtype), note


def _joint_units(layout: ResidualLayout, blocks: list[str]) -> Tensor:
    size = layout.num_symbols
    tuples = torch.cartesian_prod(*[torch.arange(size)] * len(blocks)).view(-1, len(blocks))
    assert torch.equal(joint_index(tuples, size), torch.arange(len(tuples)))
    units = torch.zeros(len(tuples), layout.subspaces.width, dtype=torch.float64)
    for m, block in enumerate(blocks):
        rows = torch.tensor(layout.symbol_rows([block]))
        units[torch.arange(len(tuples)), rows[tuples[:, m]]] = 1
    return units
