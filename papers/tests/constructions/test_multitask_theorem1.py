"""[MultiTask] Theorem 1: the Transformer is gradient descent in context, layer by layer."""

import math

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings

from hmmscope.analysis.activations import capture_activations
from hmmscope.analysis.curves import evaluate
from hmmscope.analysis.shuffle import attention_taps
from hmmscope.datasets.layouts import PromptLayout
from hmmscope.datasets.process_dataset import ProcessDataset
from hmmscope.errors import InputError
from hmmscope.processes.hmm import HMM
from hmmscope_papers.constructions import MultiTaskOptions, multitask_attention
from hmmscope_papers.constructions.multitask import multitask_theorem1
from multitask_cases import (
    SIZES,
    all_windows,
    gather_error,
    one_hot_window,
    plain_descent,
    prompt_of,
    random_demonstrations,
    random_prompts,
    samples_of,
    weights_error,
)
from multitask_cases import build_theorem1 as build
from multitask_cases import prompts_of as prompts

# ---------------------------------------------------------------------------------------------------------------------
# Sizes


@pytest.mark.parametrize("sizes", SIZES)
def test_layers_heads_and_width(sizes: tuple[int, ...]) -> None:
    num_symbols, memory_length, _, _, num_steps, width, layers = sizes
    net = build(sizes)
    assert (net.width, net.num_layers) == (width, layers)
    assert (
        net.width
        == net.layout.width_formula
        == (num_symbols + 1) * (memory_length + 1) + 4 + (num_symbols**2 * memory_length + num_symbols)
    )
    gathering = math.ceil(math.log2(memory_length)) + 1
    assert net.num_layers == gathering + num_steps + 1
    assert net.heads_per_layer == [1] * gathering + [2 * num_symbols] * (num_steps + 1)
    assert len(net.residual) == layers + 1
    assert [note.layer for note in net.notes()] == list(range(1, layers + 1))
    slots = build(sizes, positions="slot")
    assert (slots.width, slots.num_layers) == (width + 2 * memory_length, layers)
    assert slots.width == slots.layout.width_formula <= 2 * num_symbols**2 * (memory_length + 1) + 2 * memory_length


@pytest.mark.parametrize("memory_length", [1, 2, 3, 4, 5, 8, 9, 16])
def test_history_takes_log2_layers(memory_length: int) -> None:
    sizes = (2, memory_length, 3, memory_length + 1, 2)
    net = build(sizes, test_length=memory_length)
    assert net.num_layers == math.ceil(math.log2(memory_length)) + 2 + 2
    assert gather_error(net, prompts(sizes, test_length=memory_length)) == 0
    causal = build(sizes, test_length=memory_length, causal=True)
    assert causal.num_layers == math.ceil(math.log2(memory_length + 1)) + 2 + 1


# ---------------------------------------------------------------------------------------------------------------------
# Gathering


@pytest.mark.parametrize(
    "sizes, test_length, errors",
    [
        ((4, 5, 15, 5), 9, {10: 1.82e-4, 20: 8.24e-9, 30: 3.74e-13, 40: 1.70e-17}),
        ((3, 8, 11, 10), 11, {10: 2.72e-4, 20: 1.24e-8, 30: 5.61e-13, 40: 2.5e-17}),
    ],
)
def test_gathering_errors(sizes: tuple[int, ...], test_length: int, errors: dict[int, float]) -> None:
    sizes = (*sizes[:3], max(sizes[3], sizes[1] + 1), 1)
    if sizes[3] == 6:
        sizes, test_length = (4, 5, 13, 6, 1), 8  # 100 columns with demonstrations of 6
    net = build(sizes, test_length)
    assert net.prompt.num_columns == {5: 100, 8: 133}[sizes[1]]
    tokens = prompts(sizes, 1, test_length)
    assert gather_error(net, tokens) == 0
    ones = max(bin(slot).count("1") for slot in range(sizes[1]))
    for gap, expected in errors.items():
        loose = build(sizes, test_length, gap=float(gap))
        found = gather_error(loose, tokens)
        assert found == pytest.approx(expected, rel=0.01)  # the digits that are given
        assert 0.9 * ones * loose.leak <= found <= ones * loose.leak * (1 + 1e-6)
    assert build(sizes, test_length, gap=20.0).leak == pytest.approx(4.12e-9, rel=2e-3)


def test_wrong_rotation_gathers_the_wrong_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the matrix transposed, history layers would look into the future."""
    net = build(SIZES[1])
    tokens = prompts(SIZES[1])
    heads = net.blocks[0].attention.groups[0]
    heads.query.data[0, :, net.layout.rows("position")] = heads.query[0, :, net.layout.rows("position")].T.clone()
    assert gather_error(net, tokens) == 1


@pytest.mark.parametrize("sizes", SIZES)
def test_both_position_layouts_are_the_same(sizes: tuple[int, ...]) -> None:
    tokens = prompts(sizes)
    column, slot = build(sizes), build(sizes, positions="slot")
    assert gather_error(slot, tokens) == 0
    assert float((column(tokens) - slot(tokens)).abs().max()) < 1e-14  # sums of another order
    shifts = [block.attention.groups[0].query for block in slot.blocks[: math.ceil(math.log2(sizes[1]))]]
    for query in shifts:  # one and the same rotation in every history layer
        rotation = query[query != 0].view(2, 2)
        assert torch.equal(rotation, shifts[0][shifts[0] != 0].view(2, 2))


# ---------------------------------------------------------------------------------------------------------------------
# Gradient descent


@pytest.mark.parametrize("sizes", SIZES)
def test_is_gradient_descent(sizes: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    num_symbols, memory_length, number, length, num_steps = sizes[:5]
    demonstrations = random_demonstrations(rng, [length] * number, num_symbols)
    test = rng.integers(num_symbols, size=12).tolist()
    net, tokens = build(sizes, 12), prompt_of(demonstrations, test, num_symbols)
    wanted = plain_descent(samples_of(demonstrations, num_symbols, memory_length), 1 / memory_length, num_steps)
    assert np.abs(net.learned_weights(tokens)[:, 0].numpy() - np.array(wanted)).max() < 1e-15
    assert weights_error(net, tokens) < 1e-15  # in every column
    law = net(tokens)[0]
    for end in range(memory_length, len(test) + 1):
        column = net.prompt.first_test_column + end - 1
        assert column in net.predicting_columns
        predicted = wanted[-1] @ one_hot_window(test[end - memory_length : end], num_symbols)
        assert np.abs(law[column].numpy() - predicted).max() < 1e-14
    weights_BTQF = net.weights_of(net.stream(tokens)[-2])
    assert float((weights_BTQF - weights_BTQF[:, :1]).abs().max()) < 1e-15


@pytest.mark.parametrize("causal", [False, True])
def test_without_a_step_nothing_is_learned(causal: bool) -> None:
    """A curve over depth begins with W = 0: the prediction is zero, which `evaluate` reads as the uniform law."""
    net = multitask_theorem1(
        3, 2, 0, num_demonstrations=4, demonstration_length=4, test_length=4, options=MultiTaskOptions(causal=causal)
    )
    layout = PromptLayout(num_demonstrations=4, demonstration_length=4, test_length=4)
    dataset = ProcessDataset(HMM([1.0], [[1.0]], [[0.7, 0.2, 0.1]]), layout=layout)
    assert net.num_layers == 3
    assert not net(dataset[0:2].tokens).any()
    assert evaluate(net, dataset, num_samples=4).loss == pytest.approx(math.log(3))


def test_finite_gap_leaks_through_the_mask() -> None:
    """The error is proportional to mask exp(-gap)."""
    sizes, tokens = SIZES[1], prompts(SIZES[1], 1)
    expected = {15: 3.9e-3, 20: 2.6e-5, 25: 1.7e-7, 30: 1.2e-9, 40: 5e-14}
    found = {gap: weights_error(build(sizes, gap=float(gap)), tokens) for gap in expected}
    for gap, value in expected.items():  # of other tokens
        assert value / 2 < found[gap] < value * 2
    slope = np.polyfit([20, 25, 30], np.log([found[20], found[25], found[30]]), 1)[0]
    assert slope == pytest.approx(-1, abs=0.02)
    small = weights_error(build(sizes, gap=20.0, mask=100.0), tokens)
    assert found[20] / small == pytest.approx(100, rel=0.1)


@pytest.mark.parametrize(
    "num_symbols, memory_length, num_steps, true, other",
    [
        (2, 3, 4, 0.7276234568, 0.2098765432),
        (3, 2, 5, 0.6881858711, 0.0900634431),
        (4, 2, 10, 0.7886149392, 0.0516905154),
    ],
)
def test_full_factorial(num_symbols: int, memory_length: int, num_steps: int, true: float, other: float) -> None:
    """Every window once, followed by its most recent symbol."""
    demonstrations = [[*window, window[-1]] for window in all_windows(num_symbols, memory_length)]
    sizes = (num_symbols, memory_length, len(demonstrations), memory_length + 1, num_steps)
    test = [0, 1] * memory_length
    law = build(sizes, len(test))(prompt_of(demonstrations, test, num_symbols))[0, -1]
    wanted = torch.full((num_symbols,), other, dtype=torch.float64)
    wanted[test[-1]] = true
    assert float((law - wanted).abs().max()) < 1e-10
    assert float(law.sum()) == pytest.approx(1 - (1 - 1 / num_symbols) ** num_steps, abs=1e-12)


def test_xor_is_not_linear_but_tabular() -> None:
    demonstrations = [[a, b, a ^ b] for a, b in all_windows(2, 2)]
    tokens = prompt_of(demonstrations, [0, 1], 2)
    linear = build((2, 2, 4, 3, 6), 2, learning_rate=0.5)(tokens)[0, -1]
    assert linear.tolist() == pytest.approx([0.4921875, 0.4921875], abs=1e-14)
    tabular = build((2, 2, 4, 3, 3), 2, learning_rate=1.0, features="tabular")(tokens)[0, -1]
    assert tabular.tolist() == pytest.approx([0, 0.578125], abs=1e-14)


def test_bigram() -> None:
    demonstrations = [[0, 1], [0, 1], [0, 2], [1, 2], [1, 1], [2, 0]]
    net = build((3, 1, 6, 2, 5), 1, learning_rate=1.0)
    law = net(prompt_of(demonstrations, [0], 3))[0, -1]
    frequency = 0.5
    assert law.tolist() == pytest.approx([0, 2 / 3 * (1 - frequency**5), 1 / 3 * (1 - frequency**5)], abs=1e-15)
    assert law.tolist() == pytest.approx([0, 0.6458333, 0.3229167], abs=1e-7)


def test_tabular_is_the_shrunk_l_gram() -> None:
    """y_T = P(. | window) (1 - (1 - rate f_w)^T), f_w the share of the window."""
    rng = np.random.default_rng(3)
    demonstrations = random_demonstrations(rng, [6] * 12, 3)
    net = build((3, 2, 12, 6, 7), 8, features="tabular", learning_rate=0.9)
    test = rng.integers(3, size=8).tolist()
    tokens = prompt_of(demonstrations, test, 3)
    law = net(tokens)[0]
    found = [(tuple(d[i : i + 2]), d[i + 2]) for d in demonstrations for i in range(4)]
    for end in range(2, 9):
        window = tuple(test[end - 2 : end])
        counts = np.array([sum(sample == (window, symbol) for sample in found) for symbol in range(3)])
        share = counts.sum() / len(found)
        wanted = counts / max(counts.sum(), 1) * (1 - (1 - 0.9 * share) ** 7)
        assert law[net.prompt.first_test_column + end - 1].tolist() == pytest.approx(wanted.tolist(), abs=1e-14)


# ---------------------------------------------------------------------------------------------------------------------
# Variants


@pytest.mark.parametrize("ridge", [0.0, 0.05])
def test_causal_regresses_on_the_samples_to_the_left(ridge: float) -> None:
    rng = np.random.default_rng(1)
    demonstrations = random_demonstrations(rng, [5] * 8, 3)
    test = rng.integers(3, size=6).tolist()
    net = build((3, 2, 8, 5, 15), 6, causal=True, ridge=ridge, learning_rate=0.4)
    tokens = prompt_of(demonstrations, test, 3)
    law, stream = net(tokens)[0], net.stream(tokens)
    assert net.num_layers == 2 + 15 + 1
    column = 0
    for number, demonstration in enumerate(demonstrations):
        for end in range(1, 6):
            column += 1
            seen = samples_of([*demonstrations[:number], demonstration[:end]], 3, 2)
            if not seen:
                continue
            rate = 0.4 * len(seen) / net.num_samples  # the gradient is divided by the number of all samples
            wanted = plain_descent(seen, rate, 15, ridge * net.num_samples / len(seen))[-1]
            weights = net.weights_of(stream[-2])[0, column].numpy()
            assert np.abs(weights - wanted).max() < 1e-12
            if end >= 2:
                predicted = wanted @ one_hot_window(demonstration[end - 2 : end], 3)
                assert np.abs(law[column].numpy() - predicted).max() < 5e-12
        column += 1
    prefix = net(tokens[:, :20])
    assert float((prefix - law[None, :20]).abs().max()) < 1e-12


def test_ridge_head_follows_its_recursion() -> None:
    rng = np.random.default_rng(2)
    demonstrations = random_demonstrations(rng, [4] * 24, 4)
    net = build((4, 3, 24, 4, 30), 8, ridge=0.1)
    assert net.heads_per_layer[3] == 2 * 4 + 1
    tokens = prompt_of(demonstrations, [0] * 8, 4)
    wanted = plain_descent(samples_of(demonstrations, 4, 3), 1 / 3.1, 30, ridge=0.1)
    assert np.abs(net.learned_weights(tokens)[:, 0].numpy() - np.array(wanted)).max() < 2e-15


def test_float32() -> None:
    """At 1201 columns gathering is still exact, and W within single precision."""
    sizes = (3, 2, 296, 3, 3)
    net = build(sizes, 16, dtype=torch.float32, gap=110.0, mask=100.0)
    tokens = prompts(sizes, 0, 16)[:1]
    assert net.prompt.num_columns == 1201
    assert net(tokens).dtype == torch.float32
    assert gather_error(net, tokens) == 0
    assert weights_error(net, tokens) < 3e-7


def test_dense_and_factored_weights_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    """X W_QK X^T and V act(S) X with D x D matrices give the layers' outputs; so does one head at a time."""
    net = build((3, 2, 6, 4, 3), 4)
    tokens = random_prompts(0, [4] * 6, 4, 3)
    stream, whole = net.stream(tokens), net(tokens)
    for layer, block in enumerate(net.blocks):
        x_BTD = stream[layer]
        for group in block.attention.groups:
            scores = x_BTD[:, None] @ group.dense_query_key @ x_BTD[:, None].mT
            written = group.activate(scores) @ (x_BTD[:, None] @ group.dense_value.mT)
            x_BTD = x_BTD + written.sum(1)
        assert float((x_BTD - stream[layer + 1]).abs().max()) < 1e-14
    with monkeypatch.context() as patch:
        patch.setattr(multitask_attention, "SCORE_BYTES", 1)
        assert float((net(tokens) - whole).abs().max()) < 1e-15


def test_taps_show_what_is_used() -> None:
    net, tokens = build((3, 2, 6, 4, 3), 4), random_prompts(0, [4] * 6, 4, 3)
    names = attention_taps(net, "logits") + attention_taps(net, "pattern")
    assert names[:2] == ["blocks.0.attention.logits", "blocks.1.attention.logits"]
    found = capture_activations(net, names, tokens)
    time = tokens.shape[1]
    for layer, heads in enumerate(net.heads_per_layer):
        logits, pattern = (found[f"blocks.{layer}.attention.{what}"] for what in ("logits", "pattern"))
        assert logits.shape == pattern.shape == (2, heads, time, time)
        wanted = logits.softmax(-1) if heads == 1 else logits.relu() / (time if layer == net.num_layers - 1 else 1)
        assert torch.equal(pattern, wanted)


def test_prefixes_without_the_last_columns() -> None:
    """All that evaluation cuts off is the end of the test sequence."""
    net, tokens = build(SIZES[1]), prompts(SIZES[1])
    whole = net(tokens)
    first = net.prompt.first_test_column
    for time in (first, first + 3, tokens.shape[1] - 1):
        cut = net(tokens[:, :time])
        if time > first:
            assert float((cut[:, first:] - whole[:, first:time]).abs().max()) < 1e-14
    with pytest.raises(InputError, match="must have"):
        net(tokens[:, : first - 1])


# ---------------------------------------------------------------------------------------------------------------------
# Invariants


@settings(max_examples=25)
@given(
    num_symbols=st.integers(2, 4),
    memory_length=st.integers(1, 4),
    extra=st.lists(st.integers(-2, 4), min_size=1, max_size=6),
    num_steps=st.integers(1, 6),
    seed=st.integers(0, 2**16),
)
def test_unequal_demonstrations_in_any_order(
    num_symbols: int, memory_length: int, extra: list[int], num_steps: int, seed: int
) -> None:
    """Equal to gradient descent whatever the lengths; windows that straddle a delimiter never matter."""
    rng = np.random.default_rng(seed)
    lengths = [memory_length + 1, *(max(1, memory_length + 1 + more) for more in extra)]
    demonstrations = random_demonstrations(rng, lengths, num_symbols)
    test = rng.integers(num_symbols, size=memory_length).tolist()
    wanted = plain_descent(samples_of(demonstrations, num_symbols, memory_length), 1 / memory_length, num_steps)
    laws = []
    for order in (list(range(len(lengths))), rng.permutation(len(lengths)).tolist()):
        net = multitask_theorem1(
            num_symbols,
            memory_length,
            num_steps,
            num_demonstrations=len(lengths),
            demonstration_length=[lengths[i] for i in order],
            test_length=memory_length,
        )
        tokens = prompt_of([demonstrations[i] for i in order], test, num_symbols)
        assert gather_error(net, tokens) == 0
        assert np.abs(net.learned_weights(tokens)[:, 0].numpy() - np.array(wanted)).max() < 2e-15
        laws.append(net(tokens)[0, -1])
    assert float((laws[0] - laws[1]).abs().max()) < 1e-14


def test_shuffling_blocks_moves_history_logits_only() -> None:
    """Block order: logits of gather layers vary by about their size, those of ReLU layers on samples not at all."""
    sizes = (4, 3, 30, 6, 5)
    net = build(sizes, 6)
    rng = np.random.default_rng(0)
    demonstrations = random_demonstrations(rng, [6] * 30, 4)
    test = rng.integers(4, size=6).tolist()
    samples = [(d, t) for d in range(30) for t in range(2, 5)]  # windows of three that a symbol follows
    names = attention_taps(net, "logits")
    logits, laws = [], []
    for repeat in range(8):
        order = np.arange(30) if repeat == 0 else rng.permutation(30)
        tokens = prompt_of([demonstrations[i] for i in order], test, 4)
        place = np.argsort(order)
        keys = [1 + 7 * int(place[d]) + t for d, t in samples]
        found = capture_activations(net, names, tokens, lambda x, keys=keys: x[0, :, -1, keys])
        logits.append([found[name] for name in names])
        laws.append(net(tokens)[0, -1])
    for layer in range(len(names)):
        values = torch.stack([one[layer] for one in logits])
        variation = float(values.std(0, correction=0).mean() / values.abs().mean())
        if layer < 3:
            assert variation == pytest.approx(1.023, abs=0.09)  # 4 deviations over draws of 8 permutations
        else:
            assert variation < 2e-15
    assert max(float((law - laws[0]).abs().max()) for law in laws) < 1e-14
    shuffled = [rng.permutation(d).tolist() for d in demonstrations]
    assert 0.5 * float((net(prompt_of(shuffled, test, 4))[0, -1] - laws[0]).abs().sum()) > 0.02


def test_tokens_are_there_from_their_layer_on() -> None:
    """The token at distance l can be read from layer ceil(log2(l + 1)) on: 0, 1, 2, 2, 3."""
    net = build((3, 5, 8, 8, 2), 8)
    tokens = random_prompts(0, [8] * 8, 8, 3)
    stream = net.stream(tokens)
    for distance, first in enumerate([0, 1, 2, 2, 3]):
        block = net.exact(tokens).block(f"slot-{distance}", net.code.table)
        for layer, x_BTD in enumerate(stream):
            there = torch.equal(x_BTD[..., net.subspaces[f"slot-{distance}"]], block)
            assert there == (layer >= first)
