"""Theorem 5.1 as weights: exact on 0/1 maps, rounding only on orthogonal matrices, and what its misprints do."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import hmmscope as hs
from hmmscope.analysis.activations import capture_activations, residual_layers
from hmmscope.errors import InputError
from hmmscope_papers.constructions import limits_theorem5_1
from hmmscope_papers.constructions.driven import driven_system
from hmmscope_papers.theorems import driven_samples

DETERMINISTIC = {
    "cycles": ("cyclic-det", {}),
    "automaton": ("random-automaton", {}),
    "many states": ("random-automaton", {"num_states": 9, "num_symbols": 3}),
    "group": ("word-problem", {"group": "S3", "num_generators": 3}),
}


def error_of(net, tokens, exact):
    return float((net(tokens).double() - exact).abs().max())


@pytest.mark.drawn(6)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("name", DETERMINISTIC)
@pytest.mark.parametrize("seed", range(2))
def test_no_error_at_all_on_deterministic_processes(name, seed, dtype):
    family, fields = DETERMINISTIC[name]
    process = hs.make_process(family, seed=seed, **fields)
    tokens, exact = driven_samples(process, 1000, 2, seed)
    net = limits_theorem5_1(process, dtype=dtype)
    assert error_of(net, tokens, exact) == 0.0
    assert set(exact.unique().tolist()) == {0.0, 1.0}
    assert exact.argmax(2).unique().numel() > 1


@pytest.mark.parametrize("seed", range(3))
def test_rounding_only_on_orthogonal_matrices(seed):
    process = hs.make_process("matmul", seed=seed)
    tokens, exact = driven_samples(process, 1000, 4, seed)
    in_64, in_32 = (
        error_of(limits_theorem5_1(process, dtype=t), tokens, exact) for t in (torch.float64, torch.float32)
    )
    assert 0 < in_64 <= 1e-12
    assert 1e-7 < in_32 <= 1e-4  # reference: 2e-5
    assert error_of(limits_theorem5_1(process), tokens[:, :121], exact[:, :121]) <= 3e-14  # reference: 6e-15


@given(data=st.data())
@settings(max_examples=30)
def test_any_maps_and_any_start(data):
    """Maps need not be invertible, and a start spread over the states piles up."""
    n, m = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 4))
    after = data.draw(st.lists(st.lists(st.integers(0, n - 1), min_size=n, max_size=n), min_size=m, max_size=m))
    start = data.draw(st.lists(st.integers(-8, 8), min_size=n, max_size=n).filter(any))
    symbols = data.draw(st.lists(st.integers(0, m), min_size=1, max_size=12))
    matrices = np.zeros((m, n, n))
    for symbol, row in enumerate(after):
        matrices[symbol, row, np.arange(n)] = 1
    net = limits_theorem5_1(matrices, initial=[x / 8 for x in start])
    vector, expected = np.array(start) / 8, []
    for symbol in symbols:
        vector = vector if symbol == m else matrices[symbol] @ vector
        expected.append(vector)
    np.testing.assert_allclose(net(torch.tensor([symbols]))[0].numpy(), expected, rtol=0, atol=1e-13)
    np.testing.assert_array_equal(net.system.vectors(torch.tensor([symbols]))[0].numpy(), expected)


def test_labelled_matrices_are_transposed():
    process = hs.make_process("random-automaton", num_states=4, num_symbols=3, seed=3)
    matrices = driven_system(process).matrices_VSS
    for symbol, before in np.ndindex(3, 4):
        after = int(process.labelled[symbol, before].argmax())
        assert matrices[symbol, after, before] == 1
    assert torch.equal(matrices.sum(1), torch.ones(3, 4, dtype=torch.float64))
    tokens, exact = driven_samples(process, 20, 2, 0)
    assert error_of(limits_theorem5_1(matrices.mT.contiguous(), scale=40.0), tokens, exact) >= 1


@pytest.mark.parametrize("seed", range(3))
def test_alpha_of_twice_the_norm_is_enough_and_a_little_less_is_not(seed):
    process = hs.make_process("matmul", seed=seed)
    tokens, exact = driven_samples(process, 1000, 16, seed)
    assert limits_theorem5_1(process).scale == 4
    assert driven_system(process).smallest_scale == 2
    assert error_of(limits_theorem5_1(process, scale=2.0), tokens, exact) <= 1e-12
    assert error_of(limits_theorem5_1(process, scale=1.9), tokens, exact) >= 1e-2
    cycles = hs.make_process("cyclic-det", seed=seed)
    tokens, exact = driven_samples(cycles, 100, 2, seed)
    assert error_of(limits_theorem5_1(cycles, scale=2.0), tokens, exact) == 0.0
    assert error_of(limits_theorem5_1(cycles, scale=1.9), tokens, exact) >= 1


def test_maps_that_pile_up_mass_need_the_one_norm():
    constant = [[[1.0] * 8] + [[0.0] * 8] * 7]
    start = [1 / 8] * 8
    tokens = torch.tensor([[1, 0, 0, 1, 0]])
    net = limits_theorem5_1(constant, initial=start)
    assert net.scale == 4
    assert error_of(net, tokens, net.system.vectors(tokens)) == 0
    by_two_norm = limits_theorem5_1(constant, initial=start, scale=4 / 8**0.5)
    assert error_of(by_two_norm, tokens, net.system.vectors(tokens)) > 0.1


@pytest.mark.parametrize("family", ["cyclic-det", "matmul"])
def test_initial_hidden_state_as_printed_is_wrong(family):
    process = hs.make_process(family, seed=0)
    tokens, exact = driven_samples(process, 3, 2, 0)
    net = limits_theorem5_1(process)
    net.start[:5] = net.system.initial_S - net.scale / 2
    assert error_of(net, tokens, exact) > 1


def test_it_is_a_torch_rnn_with_these_weights():
    process = hs.make_process("matmul", seed=1, dimension=3, num_symbols=4)
    net = limits_theorem5_1(process, placeholder=False)
    assert (type(net.rnn), net.rnn.nonlinearity, net.rnn.num_layers) == (torch.nn.RNN, "relu", 1)
    assert (net.rnn.input_size, net.rnn.hidden_size, net.vocab_size, net.num_symbols) == (4, 12, 4, 3)
    matrices = process.matrices
    for i, j in np.ndindex(4, 4):
        block = net.rnn.weight_hh_l0[3 * i : 3 * i + 3, 3 * j : 3 * j + 3]
        assert torch.equal(block, matrices[i])
    assert torch.equal(net.rnn.weight_ih_l0, 4 * torch.eye(4, dtype=torch.float64).repeat_interleave(3, 0))
    assert torch.equal(net.rnn.bias_ih_l0, torch.full((12,), -2.0, dtype=torch.float64))
    torch.testing.assert_close(net.rnn.bias_hh_l0, -2 * matrices.sum(2).flatten(), rtol=0, atol=1e-15)
    assert not any(parameter.requires_grad for parameter in net.parameters())
    assert limits_theorem5_1(process).rnn.hidden_size == 3 * 5
    symbols = hs.ProcessDataset(process, length=50)[0:3].observations
    assert error_of(net, symbols, process.vectors(symbols)) <= 1e-14


@pytest.mark.parametrize("norm", [0.25, 1.0, 3.0, 100.0])
@pytest.mark.parametrize("n", [2, 3, 5, 9])
@pytest.mark.parametrize("family", ["cyclic-det", "matmul"])
def test_weights_are_bounded_by_the_norm_of_the_start(family, n, norm):
    process = hs.make_process(family, **{"num_states" if family == "cyclic-det" else "dimension": n})
    net = limits_theorem5_1(process, initial=[0.0] * (n - 1) + [norm])
    bound = max(2 * n**0.5 * norm * max(1, 2 / n**0.5), 1.0)
    assert net.largest_weight() <= bound * (1 + 1e-12)
    assert net.largest_weight() <= net.weight_bound() * (1 + 1e-12)
    doubled = limits_theorem5_1(process, initial=[0.0] * (n - 1) + [2 * norm])
    assert doubled.largest_weight() == pytest.approx(2 * net.largest_weight(), rel=1e-12)


def test_hidden_state_holds_the_vector_in_the_block_of_the_token():
    process = hs.make_process("cyclic-det", seed=2)
    tokens, exact = driven_samples(process, 30, 3, 0)
    net = limits_theorem5_1(process)
    assert residual_layers(net) == ["residual.0", "residual.1"]
    found = capture_activations(net, ["residual.0", "residual.1"], tokens)
    assert torch.equal(found["residual.0"], torch.nn.functional.one_hot(tokens, 6).double())
    hidden = found["residual.1"].unflatten(2, (6, 5))
    for block in range(6):
        there = tokens == block
        assert torch.equal(hidden[:, :, block][there], exact[there] + 2)
        assert not hidden[:, :, block][~there].any()
    assert torch.equal(found["residual.1"], net.exact_hidden(tokens))


def test_notes_and_explanation_carry_the_measured_error():
    process = hs.make_process("matmul", seed=0)
    tokens, _ = driven_samples(process, 50, 2, 0)
    net = limits_theorem5_1(process)
    assert net.notes()[0].error is None
    assert 0 < net.notes(tokens)[0].error < 1e-13
    text = net.explain(tokens)
    assert "Theorem 5.1" in text
    assert "placeholder" in text
    assert "measured error" in text
    assert net.outputs == "law"
    assert (net.model_io.num_outputs, net.model_io.vocab_size) == (5, 6)


def test_other_matrices_need_a_scale_and_then_are_right_too():
    contraction = [[[0.5, -0.25], [0.25, 0.75]], [[0.0, 0.5], [1.5, 0.0]]]
    with pytest.raises(InputError, match=r"^scale: must be given unless matrices are 0/1 maps or orthogonal"):
        limits_theorem5_1(contraction)
    net = limits_theorem5_1(contraction, scale=16.0)
    tokens = torch.tensor([[2, 0, 1, 1, 0, 0, 1, 0]])
    assert error_of(net, tokens, net.system.vectors(tokens)) <= 1e-14


@pytest.mark.parametrize(
    "process, options, message",
    [
        (("cyclic-rnd", {}), {}, r"^process: must be deterministic: one next state"),
        (
            ("random-hmm", {"num_states": 3, "num_symbols": 3}),
            {},
            r"^process: HMM has no driving matrices; supported by LabelledHMM, MatrixProduct$",
        ),
        (("cyclic-det", {}), {"scale": 0.0}, r"^scale: must be a positive number, got 0.0"),
        (("cyclic-det", {}), {"scale": float("nan")}, r"^scale: must be a finite number, got nan"),
        (("cyclic-det", {}), {"initial": [1.0, 0.0]}, r"^initial: must have 5 numbers"),
        (("matmul", {}), {"initial": [0.0] * 5}, r"^initial: must be finite and not zero"),
    ],
)
def test_what_cannot_work_is_refused_in_one_line(process, options, message):
    with pytest.raises(InputError, match=message) as error:
        limits_theorem5_1(hs.make_process(process[0], **process[1]), **options)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("matrices", [[[1.0, 0.0]], [[[1.0, 0.0]]], [[[float("nan")]]]])
def test_wrong_matrices_are_refused(matrices):
    with pytest.raises(InputError, match=r"^process: must (be|have shape)"):
        limits_theorem5_1(matrices, scale=1.0)


def test_symbols_that_tell_about_the_state_need_a_known_start():
    """P(symbol) depends on the state here, so the belief from two possible starts is not linear in them."""
    labelled = [[[0.0, 0.75], [0.0, 0.25]], [[0.25, 0.0], [0.75, 0.0]]]
    with pytest.raises(InputError, match=r"^initial: must have one nonzero entry \(a known state\), because symbol"):
        limits_theorem5_1(hs.LabelledHMM([0.5, 0.5], labelled))
    process = hs.LabelledHMM([1.0, 0.0], labelled)
    tokens, exact = driven_samples(process, 30, 2, 0)
    assert error_of(limits_theorem5_1(process), tokens, exact) == 0


def test_tokens_and_extras_are_checked():
    net = limits_theorem5_1(hs.make_process("cyclic-det"))
    with pytest.raises(InputError, match=r"^tokens: must be in \[0, 6\), got 0 to 6"):
        net(torch.tensor([[0, 6]]))
    with pytest.raises(InputError, match=r"^feedback: must be left out"):
        net(torch.tensor([[0, 1]]), feedback=torch.zeros(1, 2, 1))
    with pytest.raises(InputError, match=r"^cache: must be left out"):
        net(torch.tensor([[0, 1]]), cache={})
