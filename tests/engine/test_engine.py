"""The compiled engine computes the loss and the gradients that autograd computes, for every option that it covers."""

import math

import numpy as np
import pytest
import torch
from numba import njit
from numba.core.errors import TypingError

from engine_cases import DECODER, MIXTURE, PROMPTS, RNN, VECTORS, config, gradients, parts, worst
from hmmscope.engine import functions, layout
from hmmscope.engine.layout import pieces, plan
from hmmscope.engine.sizes import Sizes, unfit
from hmmscope.engine.tiles import transpose
from hmmscope.errors import InputError
from hmmscope.kernels.products import FLAGS, LANES, product
from hmmscope.training import compiled_steps as compiled
from hmmscope.training.compiled_steps import Compiled
from hmmscope.training.parallel import SingleProcess

LENGTHS = [2, 3, 4, 5, 6, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128]


def check(run, batch: int, dtype: torch.dtype = torch.float64, tolerance: float = 1e-12) -> None:
    loss, ours = gradients(Compiled, run, batch, dtype)
    expected, theirs = gradients(SingleProcess, run, batch, dtype)
    assert math.isclose(loss, expected, rel_tol=tolerance)
    assert worst(ours, theirs) < tolerance


@pytest.mark.drawn(2)
@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("model", [DECODER, RNN], ids=["decoder", "rnn"])
def test_lengths(model: dict, length: int) -> None:
    check(config(model, length=length), 6)


@pytest.mark.parametrize("batch", [1, 2, 7, 15, 16, 17, 33, 63, 64, 65, 130])
@pytest.mark.parametrize("model", [DECODER, RNN], ids=["decoder", "rnn"])
def test_batches(model: dict, batch: int) -> None:
    check(config(model, batch=batch), batch)


@pytest.mark.parametrize("positions", ["learned", "rotary"])
@pytest.mark.parametrize("heads, batch, lanes", [(16, 1, 1), (8, 1, 2), (8, 2, 2), (4, 3, 4), (2, 7, 8), (1, 3, 16)])
def test_few_samples_share_a_register_with_those_of_other_heads(
    heads: int, batch: int, lanes: int, positions: str
) -> None:
    model = {**DECODER, "width": 128 if heads == 16 else 64, "num_heads": heads, "positions": positions}
    run = config(model, batch=batch, length=6)
    sizes = Sizes(inputs=5, outputs=5, layers=1, width=model["width"], heads=heads, hidden=256)
    assert LANES < 16 or plan(sizes, 7, batch, 1, 8).lanes == lanes
    check(run, batch)


@pytest.mark.parametrize(
    "options",
    [
        *({"positions": name} for name in ("learned", "sinusoidal", "rotary", "none")),
        {"input_features": False},
        {"positions": "none", "input_features": False},
        {"norm": "none"},
        {"attention_only": True},
        {"attention_only": True, "norm": "none", "num_layers": 2},
        {"scale_attention": False},
        {"mlp_ratio": 1},
        {"mlp_ratio": 3},
        {"num_layers": 3},
        {"num_heads": 1},
        {"width": 32, "num_heads": 4},
        {"width": 48, "num_heads": 2},
        {"width": 80, "num_heads": 2, "num_layers": 2},
        {"width": 96, "num_heads": 4, "positions": "rotary"},
        {"width": 128, "num_heads": 8},
    ],
    ids=str,
)
def test_options_of_the_decoder(options: dict) -> None:
    check(config({**DECODER, **options}, length=9), 6)


@pytest.mark.parametrize("nonlinearity", ["relu", "tanh"])
@pytest.mark.parametrize("num_layers", [1, 2, 3])
@pytest.mark.parametrize("learn_initial", [False, True])
@pytest.mark.parametrize("width", [16, 80])
def test_options_of_the_rnn(nonlinearity: str, num_layers: int, learn_initial: bool, width: int) -> None:
    model = {"name": "rnn", "nonlinearity": nonlinearity, "num_layers": num_layers, "learn_initial": learn_initial}
    check(config({**model, "width": width}, length=7), 19)


@pytest.mark.parametrize("model", [DECODER, {**DECODER, "num_layers": 2}, RNN], ids=["decoder", "two layers", "rnn"])
@pytest.mark.parametrize(
    "asked",
    [
        {"target": "belief"},
        {"target": "belief", "layout": {"name": "sequences", "length": 6, "placeholder": True}},
        {"process": MIXTURE, "layout": PROMPTS},
        {"process": {"name": "cyclic-rnd"}, "target": "belief"},
        {"process": VECTORS},
        {"process": {"name": "matmul"}, "target": "belief"},
        {"num_grains": 3},
        {"num_grains": 2, "target": "belief"},
    ],
    ids=str,
)
def test_what_is_asked(model: dict, asked: dict) -> None:
    check(config(model, **asked), 6)


@pytest.mark.parametrize("judged", [[0], [2], [0, 3], [1, 2, 4]])
@pytest.mark.parametrize("model", [DECODER, RNN], ids=["decoder", "rnn"])
def test_judged_columns(model: dict, judged: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Only some columns are judged, and what comes after the last of them is not computed."""
    run = config(model, length=8)
    _, _, target = parts(run, torch.float64)
    kept, labels = target.token_positions[judged], type(target).labels
    monkeypatch.setattr(type(target), "labels", lambda self, batch: labels(self, batch)[:, judged])
    init = type(target).__init__

    def fewer(self, process, layout) -> None:  # type: ignore[no-untyped-def]
        init(self, process, layout)
        self.token_positions = kept

    monkeypatch.setattr(type(target), "__init__", fewer)
    check(run, 6)


@pytest.mark.parametrize("model", [DECODER, {**DECODER, "width": 64, "num_heads": 8, "num_layers": 2}, RNN], ids=str)
@pytest.mark.parametrize("target", ["observation", "belief"])
def test_in_float32_to_rounding(model: dict, target: str) -> None:
    run = config(model, length=17, target=target)
    exact = gradients(SingleProcess, run, 21, torch.float64)[1]
    ours = gradients(Compiled, run, 21, torch.float32)[1]
    chain = 21 * 17  # terms of a sum, one after the other, each rounded
    assert worst({name: g.double() for name, g in ours.items()}, exact) < math.sqrt(chain) * 2**-23


@pytest.mark.parametrize("threads", [2, 3])
@pytest.mark.parametrize("model", [DECODER, RNN], ids=["decoder", "rnn"])
def test_threads(model: dict, threads: int) -> None:
    run = config(model, batch=50, length=6, num_threads=threads)
    check(run, 50)
    once, again = (gradients(Compiled, run, 50, torch.float32)[1] for _ in range(2))
    assert all(torch.equal(once[name], again[name]) for name in once)


@pytest.mark.parametrize("model", [DECODER, RNN], ids=["decoder", "rnn"])
def test_the_bits_do_not_depend_on_where_arrays_lie(model: dict, monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrays right behind each other, or far apart, at any number of bytes: the same bits."""
    run = config(model, batch=20)
    net, dataset, target = parts(run, torch.float32)
    first = Compiled(net, run.training).gradients(dataset[0:20], target, 0).item()
    pool, used = np.empty(2**25, np.uint8), 0

    def behind(shape, dtype, poison=False):  # type: ignore[no-untyped-def]
        nonlocal used
        size = int(np.prod(shape)) * dtype.itemsize
        begin = used + (-(pool.ctypes.data + used)) % step
        used = begin + size
        return pool[begin:used].view(dtype).reshape(shape)

    for module in (compiled, layout):
        monkeypatch.setattr(module, "empty", behind)
    found = {}
    for step in (4, 8, 16, 64):
        used = 0
        net, dataset, target = parts(run, torch.float32)
        engine = Compiled(net, run.training)
        assert engine.gradients(dataset[0:20], target, 0).item() == first
        found[step] = torch.cat([p.grad.flatten() for p in net.parameters()]).clone()
    assert all(torch.equal(found[4], other) for other in found.values())


def test_a_wrong_gradient_is_seen() -> None:
    _, found = gradients(SingleProcess, config(DECODER), 6, torch.float64)
    wrong = {name: gradient.clone() for name, gradient in found.items()}
    wrong["head.bias"][0] += 1e-9
    assert worst(wrong, found) > 1e-12
    wrong["head.bias"][0] = torch.nan
    assert math.isnan(worst(wrong, found))


# --------------------------------------------------------------------------------------------------------------------


@njit
def _transposed(rows, cols, source, result):  # type: ignore[no-untyped-def]
    transpose(rows, cols, source, 0, cols, result, 0, rows)


@njit
def _multiplied(rows, cols, terms, a, b, c, add, bias):  # type: ignore[no-untyped-def]
    product(rows, cols, 1, terms, a, 0, terms, 1, 0, b, 0, cols, 0, c, 0, cols, add, bias, 0)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_products_and_transpositions(dtype: type) -> None:
    generator = np.random.default_rng(0)
    for rows in (*range(1, 14), 64):
        for cols in (16, 32, 48, 64, 80, 112, 128):
            for terms in (1, 3, 16):
                a, b, c = (generator.normal(size=s).astype(dtype) for s in ((rows, terms), (terms, cols), (rows, cols)))
                bias = generator.normal(size=rows).astype(dtype)
                product = a.astype(float) @ b + bias[:, None]
                for add in (False, True):
                    found = c.copy()
                    _multiplied(rows, cols, terms, a, b, found, add, bias)
                    np.testing.assert_allclose(found, product + add * c, rtol=1e-5, atol=1e-5)
    source, result = generator.normal(size=(32, 64)).astype(dtype), np.zeros((64, 32), dtype)
    _transposed(32, 64, source, result)
    np.testing.assert_array_equal(result, source.T)


@njit(fastmath=FLAGS)
def _of_all(x, raised, bent, slope, turned):  # type: ignore[no-untyped-def]
    for i in range(len(x)):
        raised[i], turned[i] = functions.exponential(x[i]), functions.tangent(x[i])
        bent[i], slope[i] = functions.gelu(x[i])


def test_functions_in_float32() -> None:
    """Two units in the last place, and numbers that are not finite stay so. The plain forms are in float64."""
    x = np.linspace(-20, 20, 40001).astype(np.float32)
    found = [np.empty_like(x) for _ in range(4)]
    _of_all(x, *found)
    exact = [np.array([f(float(v)) for v in x]) for f in (functions.exponential, functions.tangent)]
    bent, slope = np.array([functions.gelu(float(v)) for v in x]).T
    np.testing.assert_allclose(found[0], exact[0], rtol=2.5e-7)
    np.testing.assert_allclose(found[3], exact[1], rtol=2.5e-7)
    near = x > -10  # below, the value is under 1e-22
    np.testing.assert_allclose(found[1][near], bent[near], rtol=1e-6, atol=1e-12)
    np.testing.assert_allclose(found[2], slope, atol=3e-7)
    inputs = torch.from_numpy(x.astype(float)).requires_grad_()
    outputs = torch.nn.functional.gelu(inputs)
    outputs.sum().backward()
    np.testing.assert_allclose(bent, outputs.detach().numpy(), rtol=1e-12, atol=1e-15)
    np.testing.assert_allclose(slope, inputs.grad.numpy(), rtol=1e-10, atol=1e-15)
    _of_all(np.full(1, np.nan, np.float32), *(f[:1] for f in found))
    assert all(np.isnan(f[0]) for f in found)


def test_plans_cover_each_sample_once() -> None:
    sizes = Sizes(inputs=5, outputs=5, layers=4, width=64, heads=8, hidden=256)
    for steps in (2, 17, 128, 1000):
        for batch in (1, 5, 16, 63, 64, 65, 1000):
            for threads in (1, 2, 7):
                made = plan(sizes, steps, batch, threads, 4)
                assert [n for first, count in made.chunks for n in range(first, first + count)] == list(range(batch))
                assert made.lanes % LANES == 0 or LANES % made.lanes == 0
                assert made.steps * made.lanes % LANES == 0
                assert steps <= made.steps < steps + max(2, LANES // made.lanes)
                assert max(count for _, count in made.chunks) <= made.lanes <= 64
                assert len(made.chunks) >= min(threads, -(-batch // LANES))


def test_what_is_left_over_is_a_piece_of_its_own_where_that_leaves_fewer_lanes_idle() -> None:
    sizes = Sizes(inputs=5, outputs=5, layers=4, width=64, heads=8, hidden=256)
    of_one_head = Sizes(inputs=5, outputs=5, layers=4, width=64, heads=1, hidden=256)
    for batch in range(1, 4 * LANES):
        found = pieces(sizes, batch)
        assert [n for piece in found for n in range(piece.start, piece.stop)] == list(range(batch))
        assert sum(plan(sizes, 32, p.stop - p.start, 1, 4).lanes for p in found) < batch + LANES // 2
        assert pieces(of_one_head, batch) == [slice(0, batch)]


def test_sizes_are_checked_at_the_door() -> None:
    assert unfit(64, 8) is None
    assert "width: must be a multiple of 16" in unfit(72, 0)
    assert "multiple of 8" in unfit(64, 16)
    with pytest.raises(InputError, match="width: must be a multiple of 16"):
        Sizes(inputs=5, outputs=5, layers=1, width=20)
    run = config(RNN)
    model, dataset, target = parts(run, torch.float64)
    engine = Compiled(model, run.training)
    batch = dataset[0:6]
    batch.tokens[0, 0] = 99
    with pytest.raises(InputError, match="do not fit a model of 5 inputs"):
        engine.gradients(batch, target, 0)


@njit
def _of_another_layout(x, result):  # type: ignore[no-untyped-def]
    transpose(16, 16, x, 0, 16, result, 0, 16)


def test_nothing_is_compiled_for_another_layout() -> None:
    x = np.zeros((32, 32), np.float32)
    with pytest.raises(TypingError, match=r"transpose: got an argument of type"):
        _of_another_layout(x[:, ::2], x)
    run = config(RNN)
    model, _, _ = parts(run, torch.float32)
    engine = Compiled(model, run.training)
    with pytest.raises(TypeError, match="No matching definition"):
        engine._norm_of(x[0, ::2])
