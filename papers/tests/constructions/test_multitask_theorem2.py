"""[MultiTask] Theorem 2: the law of the next few symbols together, learned in context."""

import math
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings

from hmmscope.analysis.curves import evaluate
from hmmscope.analysis.decomposition import Histories, Windows
from hmmscope.datasets.layouts import PromptLayout
from hmmscope.datasets.process_dataset import ProcessDataset
from hmmscope.errors import InputError
from hmmscope.processes.hmm import HMM
from hmmscope.processes.low_rank import symmetric_channel
from hmmscope_papers.constructions import MultiTaskOptions
from hmmscope_papers.constructions.multitask import multitask_theorem1, multitask_theorem2
from hmmscope_papers.constructions.multitask_network import MultiTaskTransformer
from hmmscope_papers.constructions.regression import RegressionSamples, joint_index, window_features
from hmmscope_papers.multitask.networks import (
    block_shuffle_rows,
    draw_demonstrations,
    population,
    sample_row,
    step_rows,
)
from multitask_cases import (
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


def build(sizes: tuple[int, ...], num_futures: int, test_length: int = 8, **changes: Any) -> MultiTaskTransformer:
    num_symbols, memory_length, num_demonstrations, demonstration_length, num_steps = sizes
    return multitask_theorem2(
        num_symbols,
        memory_length,
        num_steps,
        num_futures=num_futures,
        num_demonstrations=num_demonstrations,
        demonstration_length=demonstration_length,
        test_length=test_length,
        options=MultiTaskOptions(**changes),
    )


@pytest.mark.parametrize(
    "num_symbols, memory_length, num_futures", [(2, 3, 2), (2, 1, 1), (3, 2, 2), (2, 4, 3), (2, 2, 5)]
)
def test_layers_heads_and_width(num_symbols: int, memory_length: int, num_futures: int) -> None:
    length, labels = memory_length + num_futures + 1, num_symbols**num_futures
    net = build((num_symbols, memory_length, 4, length, 6), num_futures)
    gathering = math.ceil(math.log2(memory_length)) + 1 + math.ceil(math.log2(num_futures))
    assert net.num_layers == gathering + 6 + 1
    assert net.heads_per_layer == [1] * gathering + [2 * labels] * 7
    expected = (num_symbols + 1) * (memory_length + num_futures) + 4 + labels
    expected += num_symbols ** (num_futures + 1) * memory_length + labels
    assert net.width == net.layout.width_formula == expected
    assert sum(block.mlp is not None for block in net.blocks) == 1  # one token-wise map
    assert net.blocks[gathering - 1].mlp.hidden.shape == (labels, net.width)
    slots = build((num_symbols, memory_length, 4, length, 6), num_futures, positions="slot")
    assert slots.width == slots.layout.width_formula == expected + 2 * (memory_length + num_futures - 1)


def test_reference_size() -> None:
    net = build((2, 3, 24, 5, 30), 2)
    assert (net.width, net.num_layers) == (51, 35)


@pytest.mark.drawn(5)
@pytest.mark.parametrize("changes", [{}, {"positions": "slot"}, {"causal": True}, {"ridge": 0.1}])
@pytest.mark.parametrize("sizes, num_futures", [((2, 3, 24, 5, 30), 2), ((3, 2, 10, 6, 12), 2), ((2, 2, 9, 7, 10), 4)])
def test_is_gradient_descent(sizes: tuple[int, ...], num_futures: int, changes: dict[str, Any]) -> None:
    rng = np.random.default_rng(0)
    num_symbols, memory_length, number, length, num_steps = sizes
    demonstrations = random_demonstrations(rng, [length] * number, num_symbols)
    test = rng.integers(num_symbols, size=8).tolist()
    net, tokens = build(sizes, num_futures, **changes), prompt_of(demonstrations, test, num_symbols)
    assert gather_error(net, tokens) == 0
    assert all(note.error == 0 for note in net.notes(tokens) if note.stage.startswith("joint"))
    ridge = changes.get("ridge", 0.0)
    samples = samples_of(demonstrations, num_symbols, memory_length, num_futures)
    wanted = plain_descent(samples, 1 / (memory_length + ridge), num_steps, ridge)
    assert np.abs(net.learned_weights(tokens)[:, 0].numpy() - np.array(wanted)).max() < 1e-15
    assert weights_error(net, tokens) < 1e-15
    law = net(tokens)[0]
    for end in range(memory_length, 9):
        predicted = wanted[-1] @ one_hot_window(test[end - memory_length : end], num_symbols)
        found = law[net.prompt.first_test_column + end - 1].numpy()
        assert np.abs(found - predicted).max() < (5e-12 if net.layout.causal else 1e-14)


@settings(max_examples=20)
@given(
    num_symbols=st.integers(2, 3),
    memory_length=st.integers(1, 3),
    num_futures=st.integers(1, 3),
    extra=st.lists(st.integers(-3, 3), max_size=5),
    num_steps=st.integers(1, 5),
    seed=st.integers(0, 2**16),
)
def test_marginals_are_the_one_step_network(
    num_symbols: int, memory_length: int, num_futures: int, extra: list[int], num_steps: int, seed: int
) -> None:
    """Summed over all but the next symbol: Theorem 1 on the same samples, whatever the number of steps."""
    rng = np.random.default_rng(seed)
    least = memory_length + num_futures
    lengths = [least, *(max(1, least + more) for more in extra)]
    demonstrations = random_demonstrations(rng, lengths, num_symbols)
    test = rng.integers(num_symbols, size=memory_length + 2).tolist()
    sizes = (num_symbols, memory_length, num_steps)
    shape: dict[str, Any] = {"num_demonstrations": len(lengths), "test_length": len(test)}
    joint = multitask_theorem2(*sizes, num_futures=num_futures, demonstration_length=lengths, **shape)
    tokens = prompt_of(demonstrations, test, num_symbols)
    law = joint(tokens)
    # the same samples: the windows whose label is all there, so the last futures - 1 symbols go
    cut = [demonstration[: max(1, len(demonstration) - num_futures + 1)] for demonstration in demonstrations]
    single = multitask_theorem1(*sizes, demonstration_length=[len(one) for one in cut], **shape)
    wanted = single(prompt_of(cut, test, num_symbols))[0, -3:]
    summed = law.unflatten(-1, (num_symbols, -1)).sum(-1)[0, -3:]
    assert float((summed - wanted).abs().max()) < 1e-14
    readout = multitask_theorem2(*sizes, num_futures=num_futures, demonstration_length=lengths, readout="next", **shape)
    assert float((readout(tokens)[0, -3:] - wanted).abs().max()) < 1e-14
    assert readout.model_io.num_outputs == num_symbols


def test_first_symbol_is_the_most_significant() -> None:
    """A process that goes 0, 1, 2, 0, ..: after 0 come 1, 2 and not 2, 1."""
    demonstrations = [[(start + i) % 3 for i in range(6)] for start in range(3)]
    net = build((3, 1, 3, 6, 60), 2, 4)
    law = net(prompt_of(demonstrations, [1, 2, 0, 0], 3))[0, -1]
    assert int(law.argmax()) == 1 * 3 + 2
    assert float(law.max()) == pytest.approx(1, abs=1e-6)
    assert float(law[2 * 3 + 1]) == 0
    assert int(joint_index(torch.tensor([1, 2]), 3)) == 5


def test_joint_map_is_zero_where_a_delimiter_is() -> None:
    net = build((2, 2, 6, 5, 2), 3)
    tokens = random_prompts(0, [5] * 6, 8, 2)
    label = net.stream(tokens)[-3][..., net.subspaces["label"]]
    exact = net.exact(tokens)
    whole = (exact.slots(net.layout.label_blocks) < 2).all(-1)
    assert torch.equal(label.sum(-1), whole.double())
    assert set(label.unique().tolist()) == {0.0, 1.0}
    assert 0 < int(whole.sum()) < whole.numel()


def test_full_factorial_of_the_two_next_symbols() -> None:
    """Labels are the window itself in time order: linear in it only through its two marginals."""
    demonstrations = [[*window, *window] for window in all_windows(2, 2)]
    net = build((2, 2, 4, 4, 400), 2, 2, learning_rate=0.5)
    law = net(prompt_of(demonstrations, [0, 1], 2))[0, -1]
    fitted = RegressionSamples.of(torch.tensor(demonstrations), 2, 2, 2)
    x = window_features(torch.tensor([1, 0]), 2)
    wanted = fitted.problem().solution() @ x
    assert float((law - wanted).abs().max()) < 1e-12
    assert wanted.tolist() == pytest.approx([0.25, 0.75, -0.25, 0.25])  # not the law, which is no linear function
    assert float(law.sum()) == pytest.approx(1)


def test_refused() -> None:
    with pytest.raises(InputError, match="num_futures: must be at least 1"):
        build((2, 2, 4, 5, 3), 0)
    with pytest.raises(InputError, match=r"demonstration_length: must be at least 5 \(memory_length"):
        build((2, 2, 4, 4, 3), 3)
    with pytest.raises(InputError, match="positions: must be column or slot"):
        build((2, 2, 4, 5, 3), 2, positions="absolute")
    with pytest.raises(InputError, match="num_symbols: gives joint one-hots of more than"):
        build((2, 2, 4, 30, 3), 25)


@pytest.mark.usefixtures("unchecked")
def test_unknown_readout_is_refused() -> None:
    with pytest.raises(InputError, match="readout: unknown 'nothing'"):
        multitask_theorem2(
            2, 2, 3, num_futures=2, num_demonstrations=4, demonstration_length=5, test_length=8, readout="nothing"
        )


# ---------------------------------------------------------------------------------------------------------------------
# What the experiments measure with


def reference_process() -> HMM:
    left = np.array([[0.9, 0.1], [0.8, 0.2], [0.2, 0.8], [0.1, 0.9]])
    right = np.array([[0.55, 0.30, 0.10, 0.05], [0.05, 0.10, 0.30, 0.55]])
    return HMM([0.3, 0.2, 0.2, 0.3], left @ right, symmetric_channel(4, 0.6))


def hidden_cycle() -> HMM:
    transition = [[0.1, 0.8, 0.1], [0.1, 0.1, 0.8], [0.8, 0.1, 0.1]]
    return HMM([1 / 3] * 3, transition, [[0.9, 0.1], [0.5, 0.5], [0.1, 0.9]])


@pytest.mark.parametrize(
    "memory_length, total, memory, linear",
    [
        (1, 1.318006e-3, 1.318006e-3, 0),
        (2, 1.893185e-4, 1.767109e-4, 1.260753e-5),
        (3, 5.884659e-5, 2.250807e-5, 3.633853e-5),
    ],
)
def test_population_errors(memory_length: int, total: float, memory: float, linear: float) -> None:
    known = population(reference_process(), memory_length, 1, 6)
    assert known.memory**2 == pytest.approx(memory, rel=1e-6)
    assert known.misspecification**2 == pytest.approx(linear, rel=1e-6, abs=1e-18)
    assert known.total(known.problem.solution()) ** 2 == pytest.approx(total, rel=1e-6)
    assert known.estimation(known.problem.solution()) < 1e-14


@pytest.mark.parametrize("memory_length", [1, 2, 3])
def test_population_is_the_one_of_the_decomposition(memory_length: int) -> None:
    hmm, rng = reference_process(), np.random.default_rng(0)
    known = population(hmm, memory_length, 1, 5)
    windows = Windows.all(hmm, memory_length)
    weights = torch.from_numpy(rng.random((4, 4 * memory_length)))
    parts = Histories.all(hmm, 5).decompose(windows, weights)
    assert float((known.problem.solution() - windows.linear.weights).abs().max()) < 1e-9
    assert known.noise == pytest.approx(windows.noise, abs=1e-9)
    assert known.total(weights) ** 2 == pytest.approx(float(parts.total), rel=1e-9)
    assert known.memory**2 == pytest.approx(parts.memory, rel=1e-9)
    assert known.misspecification**2 == pytest.approx(parts.misspecification, rel=1e-9, abs=1e-18)
    assert known.estimation(weights) ** 2 == pytest.approx(float(parts.estimation), rel=1e-9)


def test_population_of_several_futures_is_that_of_one_summed() -> None:
    hmm = hidden_cycle()
    one, two = population(hmm, 3, 1, 6), population(hmm, 3, 2, 6)
    assert torch.allclose(two.law.unflatten(1, (2, 2)).sum(2), one.law, atol=1e-14)
    assert torch.allclose(two.history_law.unflatten(1, (2, 2)).sum(2), one.history_law, atol=1e-14)
    summed = two.problem.solution().unflatten(0, (2, 2)).sum(1)
    assert torch.allclose(summed, one.problem.solution(), atol=1e-12)
    # the second symbol is what the next step sees, one symbol later
    first, second = two.law.unflatten(1, (2, 2)).unbind(2)[0], two.law.unflatten(1, (2, 2)).sum(1)
    assert not torch.allclose(first, second, atol=1e-2)


@pytest.mark.parametrize("num_futures", [None, 2])
def test_errors_are_below_their_bounds(num_futures: int | None) -> None:
    hmm, futures = hidden_cycle(), num_futures or 1
    known = population(hmm, 2, futures, 6)
    squares = np.zeros(2)
    for draw in range(8):
        drawn = draw_demonstrations(hmm, 40, 2 + futures, 0, draw)
        by_network = sample_row(known, drawn, 2, 30, num_futures, network=True)
        by_algebra = sample_row(known, drawn, 2, 30, num_futures, network=False)
        assert by_network["difference"] < 1e-14
        assert by_network["estimation"] == pytest.approx(by_algebra["estimation"], rel=1e-9)
        squares += by_network["generalisation"] ** 2, by_network["generalisation_bound"] ** 2
        assert by_network["estimation"] <= by_network["estimation_bound"]
        assert by_network["total"] <= by_network["bound"]
    assert squares[0] <= squares[1]
    drawn = draw_demonstrations(hmm, 60, 8, 1)
    rows, summary = step_rows(drawn, 2, 2, 60, num_futures)
    assert all(row["error"] <= row["bound"] + 1e-12 for row in rows)
    assert rows[0]["error"] > 0.5
    assert summary["measured"] == pytest.approx(summary["stated"], rel=0.05)


def test_shuffling_rows() -> None:
    hmm = hidden_cycle()
    drawn, test = draw_demonstrations(hmm, 10, 5, 0), draw_demonstrations(hmm, 1, 5, 1)[0]
    net = build((2, 2, 10, 5, 3), 2, 5)
    others = torch.stack([draw_demonstrations(hmm, 10, 5, 0, draw=k) for k in (2, 3)])
    rows = block_shuffle_rows(net, drawn, test, others)
    assert min(row["content"] for row in rows if row["layer"] > 3) > 0.1
    same = block_shuffle_rows(net, drawn, test, drawn[None])
    assert max(row["content"] for row in same) == 0
    assert [row["value"] < 1e-12 for row in rows if row["layer"] in (0, 5, 7)] == [True] * 17
    assert min(row["value"] for row in rows if row["layer"] in (1, 2, 3)) > 0.5


@pytest.mark.parametrize("theorem", [1, 2])
def test_evaluates_like_a_trained_model(theorem: int) -> None:
    """Causal, every column may be judged; not causal, those of the test sequence; it learns, and beats no optimum."""
    shape: dict[str, Any] = {"num_demonstrations": 10, "demonstration_length": 10, "test_length": 10}
    dataset = ProcessDataset(reference_process(), layout=PromptLayout(**shape), seed=1)
    builders: dict[str, Any] = {"causal": {"causal": True}, "plain": {}}
    losses = {}
    for name, changes in builders.items():
        if theorem == 1:
            net = multitask_theorem1(4, 1, 8, **shape, options=MultiTaskOptions(**changes))
        else:
            net = multitask_theorem2(
                4, 1, 8, num_futures=2, readout="next", **shape, options=MultiTaskOptions(**changes)
            )
        score = evaluate(net, dataset, num_samples=8, baselines=False)
        inside = score.positions >= 1
        last = inside & (score.demonstrations == 10)
        variation = score.measures["model"]["total_variation"]
        losses[name] = float(variation[:, last].mean())
        if name == "causal":
            assert score.invalid is None
            early = inside & (score.demonstrations == 1)
            assert losses[name] < 0.5 * float(variation[:, early].mean())
    assert losses["causal"] == pytest.approx(losses["plain"], abs=1e-9)  # the same samples at the end


def test_joint_laws_are_those_of_the_process() -> None:
    """With many demonstrations W x comes near to the best linear prediction of two symbols together."""
    hmm = hidden_cycle()
    known = population(hmm, 2, 2, 6)
    errors = [sample_row(known, draw_demonstrations(hmm, n, 4, 3), 2, 80, 2, network=False) for n in (100, 10000)]
    assert errors[1]["estimation"] < 0.25 * errors[0]["estimation"]
    assert math.log(errors[0]["expected"] / errors[1]["expected"]) == pytest.approx(math.log(10))
