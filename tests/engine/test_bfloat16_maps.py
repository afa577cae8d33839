"""Products of pairs of bfloat16 numbers, and the models that are trained with them."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numba import njit
from torch import nn

from engine_cases import DECODER, MIXTURE, PROMPTS, RNN, config, gradients, parts, worst
from hmmscope.errors import InputError
from hmmscope.kernels import pairs
from hmmscope.kernels.pairs import Pairs, pairs_in_rows, pairs_of_rows, product_of_pairs
from hmmscope.kernels.products import LANES, stripe_of
from hmmscope.training.compiled_steps import Compiled
from hmmscope.training.parallel import SingleProcess
from hmmscope.training.state import Moments

#: Numbers whose rounding is told apart by the last bit that is kept, and ones that are not finite.
TIES = [1.00390625, 1.01171875, -1.00390625, 1.0039063, 3.3895314e38, 3.4e38, 0.0, -0.0, np.inf, -np.inf, np.nan, 1e-30]


class Widened(Pairs):
    at_once = False


_widened = stripe_of(1, Widened)


@njit
def _made(rows, cols, terms, a, b, left, right):  # type: ignore[no-untyped-def]
    pairs_in_rows(rows * terms // 2, a, 0, left, 0)
    pairs_of_rows(terms // 2, cols, b, 0, cols, right, 0, cols)


@njit
def _multiplied(rows, cols, half, left, right, c, add, bias):  # type: ignore[no-untyped-def]
    product_of_pairs(rows, cols, 1, half, left, 0, half, 1, 0, right, 0, cols, 0, c, 0, cols, add, bias, 0)


@njit
def _by_widening(rows, half, left, right, c, bias):  # type: ignore[no-untyped-def]
    _widened(rows, 1, half, left, 0, half, 1, 0, right, 0, LANES, 0, c, 0, LANES, False, bias, 0)


def rounded(numbers: np.ndarray) -> np.ndarray:
    """By torch, whose rounding is to the nearest, ties to even."""
    return torch.from_numpy(numbers).bfloat16().float().numpy()


def test_numbers_are_rounded_as_by_torch() -> None:
    numbers = np.array([*TIES, *np.random.default_rng(0).normal(size=52)], np.float32)
    left, right = np.zeros(32, np.float32), np.zeros(32, np.float32)
    _made(1, 32, 2, numbers, numbers, np.zeros(32, np.float32), right)  # B is (2, 32): pairs of its two rows
    _made(32, 1, 2, numbers, numbers, left, np.zeros(32, np.float32))
    for found, first, second in ((left, numbers[::2], numbers[1::2]), (right, numbers[:32], numbers[32:])):
        halves = np.stack([found.view(np.uint32) << 16, found.view(np.uint32) & 0xFFFF0000]).view(np.float32)
        np.testing.assert_array_equal(halves, np.stack([rounded(first), rounded(second)]))


def test_products_of_pairs() -> None:
    generator = np.random.default_rng(1)
    for rows in (*range(1, 14), 64):
        for cols in (LANES, 2 * LANES, 3 * LANES, 4 * LANES, 7 * LANES):
            for terms in (2, 6, 32):
                a, b, c = (
                    generator.normal(size=size).astype(np.float32)
                    for size in ((rows, terms), (terms, cols), (rows, cols))
                )
                bias = generator.normal(size=rows).astype(np.float32)
                left, right = np.zeros((rows, terms // 2), np.float32), np.zeros((terms // 2, cols), np.float32)
                _made(rows, cols, terms, a.ravel(), b.ravel(), left.ravel(), right.ravel())
                product = rounded(a).astype(float) @ rounded(b) + bias[:, None]
                for add in (False, True):
                    found = c.copy()
                    _multiplied(rows, cols, terms // 2, left.ravel(), right.ravel(), found.ravel(), add, bias)
                    np.testing.assert_allclose(found, product + add * c, rtol=1e-5, atol=1e-5)


@pytest.mark.skipif(not pairs.AT_ONCE, reason="this processor widens halves in any case")
def test_widened_halves_give_the_bits_of_the_instruction() -> None:
    generator = np.random.default_rng(2)
    a, b = (generator.normal(size=size).astype(np.float32) for size in ((13, 64), (64, LANES)))
    left, right = np.zeros((13, 32), np.float32), np.zeros((32, LANES), np.float32)
    _made(13, LANES, 64, a.ravel(), b.ravel(), left.ravel(), right.ravel())
    at_once, widened = np.zeros((13, LANES), np.float32), np.zeros((13, LANES), np.float32)
    _multiplied(13, LANES, 32, left.ravel(), right.ravel(), at_once.ravel(), False, np.zeros(13, np.float32))
    _by_widening(13, 32, left.ravel(), right.ravel(), widened.ravel(), np.zeros(13, np.float32))
    np.testing.assert_array_equal(at_once, widened)


# --------------------------------------------------------------------------------------------------------------------
# A decoder, and a recurrent network


class _RoundedMap(torch.autograd.Function):
    """A linear map that multiplies bfloat16 numbers, forward and back, and sums in float32."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        short, of = x.bfloat16().float(), weight.bfloat16().float()
        ctx.save_for_backward(short, of)
        return short @ of.mT + bias

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, ...]:
        (dy,), (x, weight) = grads, ctx.saved_tensors
        short = dy.bfloat16().float()
        return short @ weight, short.flatten(0, -2).mT @ x.flatten(0, -2), dy.flatten(0, -2).sum(0)


def _by_rounded_maps(model: nn.Module, spec: Any) -> SingleProcess:
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear) and name.startswith("blocks."):
            module.forward = lambda x, m=module: _RoundedMap.apply(x, m.weight, m.bias)  # type: ignore[method-assign]
    return SingleProcess(model, replace(spec, precision="float32"))  # type: ignore[arg-type]


def _rounded_cells(layer: nn.RNN, x: torch.Tensor, first: bool) -> torch.Tensor:
    """A layer from zero, which rounds its states, and what it reads unless it is the first."""
    act = torch.relu if layer.nonlinearity == "relu" else torch.tanh
    read = _RoundedMap.apply if not first else torch.nn.functional.linear
    inputs = read(x, layer.weight_ih_l0, layer.bias_ih_l0 + layer.bias_hh_l0)
    states, h, none = [], x.new_zeros(len(x), layer.hidden_size), x.new_zeros(layer.hidden_size)
    for t in range(x.shape[1]):
        h = act(inputs[:, t] + _RoundedMap.apply(h, layer.weight_hh_l0, none))
        states.append(h)
    return torch.stack(states, 1)


def _by_rounded_cells(model: nn.Module, spec: Any) -> SingleProcess:
    for number, layer in enumerate(model.layers):  # type: ignore[arg-type]
        layer.forward = lambda x, h=None, m=layer, n=number: (_rounded_cells(m, x, n == 0), None)
    return SingleProcess(model, replace(spec, precision="float32"))  # type: ignore[arg-type]


def of_both(reference: Callable[..., SingleProcess], run: Any, batch: int) -> float:
    """The largest difference of the gradients in bfloat16 from those of a reference."""
    short = replace(run, training=replace(run.training, precision="bfloat16"))
    loss, ours = gradients(Compiled, short, batch, torch.float32)
    expected, theirs = gradients(reference, run, batch, torch.float32)  # type: ignore[arg-type]
    assert loss == pytest.approx(expected, rel=1e-2)
    return worst(ours, theirs)


@pytest.mark.long
@pytest.mark.drawn(2)
@pytest.mark.parametrize("batch", [6, 33])
@pytest.mark.parametrize(
    "options",
    [{}, {"attention_only": True}, {"num_layers": 2, "width": 144, "num_heads": 2, "mlp_ratio": 2}],
    ids=["one layer", "no MLP", "two wide layers"],
)
def test_gradients_are_those_of_rounded_maps(options: dict, batch: int) -> None:
    """Without norms, whose gain is folded into what is rounded."""
    run = config({**DECODER, "norm": "none", **options}, batch=batch, length=13)
    found = of_both(_by_rounded_maps, run, batch)
    assert found < 2e-2  # a number that another order of its sum rounds the other way
    assert found < 0.5 * of_both(SingleProcess, run, batch)


@pytest.mark.long
@pytest.mark.parametrize("batch", [6, 33, 100])
@pytest.mark.parametrize("options", [{}, {"num_layers": 3, "nonlinearity": "tanh", "width": 80}], ids=["one", "three"])
def test_gradients_are_those_of_rounded_cells(options: dict, batch: int) -> None:
    run = config({**RNN, **options}, batch=batch, length=13)
    found = of_both(_by_rounded_cells, run, batch)
    assert found < 2e-2
    assert found < 0.5 * of_both(SingleProcess, run, batch)


@pytest.mark.parametrize(
    "model",
    [
        {"name": "roformer", "num_layers": 2, "width": 32, "num_heads": 2},
        {"name": "rnn", "num_layers": 2, "width": 32, "learn_initial": True},
    ],
    ids=lambda model: model["name"],
)
def test_a_whole_model_is_near_float32(model: dict) -> None:
    run = config(model, layout=PROMPTS, process=MIXTURE)
    assert 1e-4 < of_both(SingleProcess, run, 6) < 0.1


@pytest.mark.parametrize("kind", [DECODER, {**RNN, "num_layers": 2}], ids=["decoder", "rnn"])
def test_it_learns_as_in_float32(kind: dict) -> None:
    ends = {}
    for precision in ("float32", "bfloat16"):
        run = config({**kind, "width": 32}, batch=16, learning_rate=3e-3, precision=precision)
        model, dataset, target = parts(run, torch.float32)
        engine, moments = Compiled(model, run.training), Moments()
        ends[precision] = [engine.take(moments, dataset[16 * n : 16 * n + 16], target, n)[0] for n in range(40)]
    assert ends["bfloat16"][-1] < ends["bfloat16"][0] - 0.1
    assert ends["bfloat16"] != ends["float32"]
    assert ends["bfloat16"] == pytest.approx(ends["float32"], abs=0.02)


def test_what_has_no_pairs_is_refused() -> None:
    for kind in (RNN, DECODER):
        model, _, _ = parts(config(kind, precision="bfloat16"), torch.float64)
        with pytest.raises(InputError, match=r"training.precision: .*float32"):
            Compiled(model, config(kind, precision="bfloat16").training)
