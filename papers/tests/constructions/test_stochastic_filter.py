"""Theorem 5.3 of [Limits] in floats: the matrices, the normaliser, the network, and where hardware floats fail."""

import math

import numpy as np
import pytest
import torch

import hmmscope as hs
import oracles
from hmmscope.analysis.curves import evaluate
from hmmscope.datasets.layouts import SequenceLayout
from hmmscope.errors import InputError
from hmmscope_papers.constructions import limits_theorem5_3
from hmmscope_papers.constructions.normaliser import (
    LONG_DOUBLE,
    ExactProducts,
    Schedule,
    dense_layers,
    gate,
    normalise,
    require_range,
)
from hmmscope_papers.constructions.prefix_parts import layers_needed
from hmmscope_papers.constructions.stochastic_filter import UNIT, MixedLayer, belief_operators, log_leak
from strategies import as_labelled, dense, with_zeros

#: Long double without a wider exponent than float64 has no room for C^T.
WIDE = np.finfo(np.longdouble).maxexp > 2000
wide_only = pytest.mark.skipif(not WIDE, reason="long double is float64 on this machine")


def ran_hmm(seed, size=5, law="dirichlet"):
    return hs.make_process("ran-hmm", num_states=size, num_symbols=size, law=law, seed=seed)


def samples(hmm, length, count=16, seed=0):
    """Tokens with the placeholder first, and the exact beliefs after 1 .. length observations."""
    batch = hs.ProcessDataset(hmm, layout=SequenceLayout(length=length, placeholder=True), seed=seed)[0:count]
    return batch.tokens, hs.filter_beliefs(hmm, batch.observations).beliefs


def error_of(net, tokens, exact):
    with torch.no_grad():
        return float((net(tokens)[:, 1:].double() - exact).abs().max())


# ---------------------------------------------------------------------------------------------------------------------
# The normaliser


def random_vectors(rng, schedule, count=40):
    """Vectors with sums from C^-T to 1, uniform in the logarithm, both ends among them, in long double."""
    logs = np.concatenate([[0.0, 1.0], rng.random(count)]) * -schedule.length * math.log(schedule.bound)
    shape = rng.dirichlet(np.ones(int(rng.integers(1, 6))), len(logs)).astype(np.longdouble)
    return shape * np.exp(logs.astype(np.longdouble))[:, None]


def some_schedules(rng, count):
    for _ in range(count):
        bound = float(np.exp(rng.uniform(math.log(2), math.log(1e6))))
        length = int(rng.integers(1, max(2, min(1000, int((600 if not WIDE else 10000) / math.log(bound))))))
        yield Schedule(length=length, bound=bound)


def test_sums_stay_within_the_invariant_and_end_in_one_to_three() -> None:
    rng = np.random.default_rng(0)
    for schedule in some_schedules(rng, 200):
        vectors = random_vectors(rng, schedule)
        found = normalise(vectors, schedule, LONG_DOUBLE)
        assert len(found.sums) == schedule.num_stages + 1
        floor = np.minimum(found.sums[0], 1)
        for sums, exponent in zip(found.sums, [schedule.length, *schedule.powers], strict=True):
            upper = np.longdouble(schedule.bound) ** np.longdouble(exponent) + 1
            assert (sums >= floor * (1 - 1e-12)).all()
            assert (sums <= upper * (1 + 1e-12)).all()
        assert found.sums[-1].min() >= 1 - 1e-12
        assert found.sums[-1].max() <= 3
        direct = vectors / vectors.sum(1, keepdims=True)
        np.testing.assert_allclose(found.scaled / found.sums[-1][:, None], direct, rtol=1e-15)
        assert np.abs(found.values - direct).max() <= schedule.truncation + 1e-15
        assert schedule.truncation <= math.exp(-schedule.length)


def test_sums_slightly_below_the_least_are_not_made_smaller() -> None:
    """An approximate vector may have a sum a little below C^-T."""
    schedule = Schedule(length=40, bound=30.0)
    vectors = np.array([[0.4, 0.5], [0.09, 0.01]], np.longdouble) * np.longdouble(30) ** -40
    found = normalise(vectors, schedule, LONG_DOUBLE)
    for sums in found.sums:
        np.testing.assert_allclose(sums.astype(float), [0.9, 0.1], rtol=1e-12)


def test_gate_is_a_clipped_line() -> None:
    z = np.array([-1e30, -1.0, 0.0, 0.25, 1.0, 2.0, 1e30])
    np.testing.assert_array_equal(gate(z), [0, 0, 0, 0.25, 1, 1, 1])
    printed = (1 - (-z).clip(min=0)).clip(min=0)  # E.53
    assert printed[2] == 1


@pytest.mark.parametrize("length", [7, 16, 60, 120])
def test_printed_exponents_leave_powers_of_the_bound_and_the_series_diverges(length: int) -> None:
    """floor(T / 2^(k+1)) add up to T minus the ones of T in binary; the paper says that sums end below 3/2."""
    bound = 50.0
    one = np.array([[0.25, 0.75]], np.longdouble)
    printed = normalise(one, Schedule(length=length, bound=bound, exponents="floor"), LONG_DOUBLE)
    left = bound ** length.bit_count()
    assert printed.sums[-1][0] == pytest.approx(left, rel=1e-9)
    assert np.abs(printed.values - one).max() > 1e3
    right = normalise(one, Schedule(length=length, bound=bound), LONG_DOUBLE)
    assert np.abs(right.values - one).max() <= math.exp(-length) + 1e-15


def test_stages_and_terms_are_logarithmic_in_the_length() -> None:
    bound = 20.0
    found = {n: Schedule(length=n, bound=bound) for n in (8, 16, 32, 120, 512)}
    assert {n: one.num_stages for n, one in found.items()} == {8: 6, 16: 7, 32: 8, 120: 10, 512: 12}
    assert {n: one.num_doublings for n, one in found.items()} == {8: 5, 16: 6, 32: 7, 120: 9, 512: 11}
    for n, one in found.items():
        fewer = 3 * (2 / 3) ** (2 ** (one.num_doublings - 1))
        assert fewer > math.exp(-n) >= one.truncation
        assert one.bound ** (n / 2**one.num_stages) <= 2
        assert one.bound ** (n / 2 ** (one.num_stages - 1)) > 2


@pytest.mark.parametrize(
    "num_states, length, bound", [(1, 3, 4.0), (2, 1, 20.0), (2, 5, 6.0), (3, 4, 9.0), (5, 2, 30.0)]
)
def test_perceptron_agrees_with_the_stages(num_states: int, length: int, bound: float) -> None:
    rng = np.random.default_rng(length)
    schedule = Schedule(length=length, bound=bound)
    layers = dense_layers(schedule, num_states, 2.0**18)
    assert len(layers) == 3 * schedule.num_stages + schedule.num_doublings + 2  # the last one is linear
    assert len(layers) - 1 <= 4 * schedule.num_stages + 2 * schedule.num_doublings
    assert max(len(layer.bias) for layer in layers) <= max(4 * num_states, 2 * num_states + 10)
    sums = bound ** (-length * rng.random(20))
    vectors = rng.dirichlet(np.ones(num_states), 20) * sums[:, None]
    hidden = torch.from_numpy(vectors)
    for layer in layers:
        hidden = MixedLayer(layer, torch.float64)(hidden)
    wanted = normalise(vectors, schedule, ExactProducts()).values
    # An error of the gadget of λ 2^-53, against numbers of C^-T in the first stage; a few such errors add up.
    allowed = 8 * 2.0 ** (18 - 53) * bound**length
    assert allowed < 1e-5
    np.testing.assert_allclose(hidden.numpy(), wanted, rtol=0, atol=allowed)


def test_torch_numpy_and_long_double_agree() -> None:
    rng = np.random.default_rng(5)
    schedule = Schedule(length=12, bound=25.0)
    vectors = rng.dirichlet(np.ones(4), 30) * 25.0 ** (-12 * rng.random(30))[:, None]
    wide = normalise(vectors.astype(np.longdouble), schedule, LONG_DOUBLE).values.astype(np.float64)
    np.testing.assert_allclose(normalise(vectors, schedule, ExactProducts()).values, wide, rtol=0, atol=1e-14)
    found = normalise(torch.from_numpy(vectors), schedule, ExactProducts()).values
    np.testing.assert_allclose(found.numpy(), wide, rtol=0, atol=1e-14)


def test_schedules_refuse_what_they_cannot_do(unchecked: None) -> None:
    with pytest.raises(InputError, match=r"^length: must be at least 1, got 0$"):
        Schedule(length=0, bound=4.0)
    for bound in (1.0, 0.5, math.inf, math.nan):
        with pytest.raises(InputError, match=r"^bound: must be finite and above 1"):
            Schedule(length=4, bound=bound)
    with pytest.raises(InputError, match=r"^exponents: "):
        Schedule(length=4, bound=4.0, exponents="ceil")
    with pytest.raises(InputError, match=r"^length: must have T ln C below 708 in float64"):
        require_range(Schedule(length=120, bound=1e4), np.float64)
    with pytest.raises(InputError, match=r"T ln C below 708"):
        dense_layers(Schedule(length=120, bound=1e4), 2, 2.0**18)


# ---------------------------------------------------------------------------------------------------------------------
# The matrices


def starts_of(rng):
    """The same chain with each kind of start: a known state before, a law of its own, edges that emit."""
    plain = dense(rng, 3, 2)
    yield plain._replace(initial=plain.transition[1]), 3
    yield plain, 4


def test_matrices_give_the_probability_and_the_belief_exactly() -> None:
    rng = np.random.default_rng(3)
    for _ in range(5):
        for matrices, size in starts_of(rng):
            hmm = hs.HMM(*matrices)
            operators = belief_operators(hmm)
            assert operators.num_states == size
            symbols = rng.integers(0, 2, 6).tolist()
            answer = oracles.by_enumeration(oracles.exact(matrices), symbols)
            vector = operators.start_S
            for t, symbol in enumerate(symbols):
                vector = operators.numerators_VSS[symbol] @ vector
                total = int(vector.sum())
                assert oracles.Fraction(total, UNIT ** (t + 2)) == answer.prefix[t]
                assert [oracles.Fraction(int(mass), total) for mass in vector[:3]] == answer.belief[t]
                assert not vector[3:].any()


def test_least_entry_is_of_the_chain_and_not_of_its_start() -> None:
    rng = np.random.default_rng(4)
    for matrices, _ in starts_of(rng):
        operators = belief_operators(hs.HMM(*matrices))
        products = [np.outer(matrices.emission[:, v], np.ones(3)) * matrices.transition.T for v in range(2)]
        least = min(product.min() for product in products)
        if operators.num_states == 4:
            least = min(least, (matrices.emission.T * matrices.initial).min())
        assert operators.least_entry == pytest.approx(least, rel=1e-12)


def test_attention_may_leak_less_than_the_least_probability() -> None:
    """The printed η lacks the factor C^-T, without which it is above C^-T always (C >= 4 > e)."""
    for length in (4, 16, 64):
        leak = log_leak(2, length, 4.0)
        assert leak < -length * (1 + math.log(4.0))
        printed = -4 * length - (layers_needed(length) + 1) * math.log(16)
        assert leak + length * math.log(4.0) < -length
        assert printed + length * math.log(60.0) > -length - (layers_needed(length) + 1) * math.log(16)


# ---------------------------------------------------------------------------------------------------------------------
# The network


@wide_only
def test_beliefs_of_all_kinds_of_hmms_to_rounding() -> None:
    """Own slot and exact products: e^-T of the series, or rounding, whichever is larger."""
    rng = np.random.default_rng(6)
    kinds = [hs.HMM(*matrices) for matrices, _ in starts_of(rng)]
    initial, labelled = as_labelled(dense(rng, 2, 3))
    kinds += [hs.LabelledHMM(initial, labelled), hs.HMM([1.0], [[1.0]], [[1.0]]), hs.HMM([1.0], [[1.0]], [[0.5, 0.5]])]
    for hmm in kinds:
        for length in (1, 2, 3, 7, 16, 33, 64):
            given = {} if isinstance(hmm, hs.HMM) else {"least": float(labelled[labelled > 0].min())}
            net = limits_theorem5_3(hmm, length, **given)
            tokens, exact = samples(hmm, length)
            assert error_of(net, tokens, exact) <= math.exp(-length) + 2e-15
            assert torch.equal(net(tokens)[:, 0], hmm.initial.expand(len(tokens), -1)) or length < 33
            assert float((net(tokens)[:, 0] - hmm.initial).abs().max()) <= math.exp(-length) + 2e-15
            assert float((net.exact_beliefs(tokens)[:, 1:] - exact).abs().max()) < 1e-13
            assert len(net.blocks) == layers_needed(length)


@wide_only
def test_shorter_sequences_and_an_hmm_with_zeros() -> None:
    net = limits_theorem5_3(ran_hmm(1), 64)
    tokens, exact = samples(ran_hmm(1), 64)
    for columns in (1, 2, 9, 50):
        close = net(tokens[:, :columns])
        assert (
            (close[:, 1:] - exact[:, : columns - 1]).abs().amax(dim=None) < 1e-15
            if columns > 1
            else close.shape[1] == 1
        )
    matrices = with_zeros(np.random.default_rng(11), 3, 3)
    hmm = hs.HMM(*matrices)
    with pytest.raises(
        InputError, match=r"^hmm: must have positive probabilities only .*or give `least`, got 'a zero'$"
    ):
        limits_theorem5_3(hmm, 20)
    tokens, exact = samples(hmm, 40)
    assert error_of(limits_theorem5_3(hmm, 40, least=1e-4), tokens, exact) < 1e-15


@wide_only
def test_instruments_judge_it_like_a_trained_network() -> None:
    hmm = ran_hmm(0)
    dataset = hs.ProcessDataset(hmm, layout=SequenceLayout(length=40, placeholder=True), seed=3)
    score = evaluate(limits_theorem5_3(hmm, 40), dataset, num_samples=64, target="belief")
    assert score.invalid is None
    assert np.abs(score.measures["model"]["excess"]).max() < 1e-12
    assert score.measures["model"]["total_variation"].max() < 1e-14
    worse = evaluate(limits_theorem5_3(ran_hmm(1), 40), dataset, num_samples=64, target="belief")
    assert worse.measures["model"]["excess"].mean() > 0.01


def test_attention_looks_back_by_powers_of_two_and_is_named() -> None:
    hmm, length = ran_hmm(0), 12
    net = limits_theorem5_3(hmm, length, division="division")
    heard = {}
    for name, module in net.named_modules():
        if name.startswith("residual.") or name.endswith((".pattern", ".logits")):
            module.register_forward_hook(lambda _m, _i, out, name=name: heard.__setitem__(name, out))
    tokens, exact = samples(hmm, length, 3)
    assert error_of(net, tokens, exact) < 1e-14
    assert {name for name in heard if name.startswith("residual.")} == {f"residual.{i}" for i in range(5)}
    for layer in range(4):
        pattern = heard[f"blocks.{layer}.attention.pattern"]
        assert pattern.shape == (3, 2, 13, 13)
        wanted = torch.zeros(13, 13, dtype=torch.float64)
        wanted[torch.arange(13), (torch.arange(13) - 2**layer).clamp_min(0)] = 1
        assert (pattern[:, 0] - wanted).abs().max() < math.exp(log_leak(5, length, net.schedule.bound))
        windows = net.exact_windows(tokens, layer)
        slot = heard[f"residual.{layer}"][..., net.subspaces[net.slots[layer]]]
        torch.testing.assert_close(slot, windows.flatten(2), rtol=1e-13, atol=0)


@pytest.mark.parametrize("variant", ["residual", "disjoint"])
def test_layers_agree_with_their_dense_matrices(variant: str) -> None:
    hmm = ran_hmm(2, size=2)
    net = limits_theorem5_3(hmm, 8, variant=variant, product="gelu", division="division")
    x = fast = net.embed(samples(hmm, 8)[0])
    for block in net.blocks:
        fast, x = block(fast), block.dense_forward(x)
        torch.testing.assert_close(fast, x, rtol=0, atol=1e-9)  # the gadget sums terms of λ² 2^-53 in another order
    assert net.blocks[0].mlp.num_neurons == 4 * 2**3 + (2 if variant == "residual" else 4) * 2**2
    assert net.subspaces.width == (2 if variant == "residual" else 3) * 4 + 6
    assert net.largest_weight() >= 2.0**30


def test_all_of_it_as_a_network_of_neurons() -> None:
    """GeLU in the Transformer and in the normaliser, with weights in float64, where C^T leaves room for it."""
    for seed in (0, 1):
        hmm, length = ran_hmm(seed, size=2, law="softmax"), 4
        net = limits_theorem5_3(hmm, length, variant="residual", product="gelu")
        assert isinstance(net.normaliser[0], MixedLayer)
        assert not any(weight.requires_grad for weight in net.parameters())
        tokens, exact = samples(hmm, length)
        assert 1e-7 < error_of(net, tokens, exact) <= math.exp(-length)


def test_notes_measure_what_each_layer_writes() -> None:
    hmm = ran_hmm(0)
    tokens, exact = samples(hmm, 16)
    net = limits_theorem5_3(hmm, 16, variant="residual", product="gelu", division="division")
    notes = net.notes(tokens)
    assert [note.stage for note in notes] == ["embed", *["gather", "multiply"] * 4, "divide"]
    windows = [note.error for note in notes if note.stage == "multiply"]
    assert windows == sorted(windows)  # relative errors grow while sums fall
    assert windows[-1] > 1e3 * windows[0]
    assert notes[-1].error == pytest.approx(error_of(net, tokens, exact), rel=1e-6)
    assert all(note.error is None for note in net.notes())
    good = limits_theorem5_3(hmm, 16, division="division")
    assert max(note.error for note in good.notes(tokens)) < 1e-13
    text = good.explain(tokens)
    assert "[Limits] Theorem 5.3: 4 layers for T = 16, n = 5, m = 5" in text
    assert "next" in text
    assert "measured error" in text


# ---------------------------------------------------------------------------------------------------------------------
# Hardware floats


def worst(length, count=5, **settings):
    """Largest error of each instance."""
    return [
        error_of(limits_theorem5_3(hmm, length, **settings), *samples(hmm, length))
        for hmm in map(ran_hmm, range(count))
    ]


def test_residual_form_loses_the_beliefs_in_float64() -> None:
    """Exact products: about 3.5e-11 at T = 16, 1e-6 to 1e-5 at T = 32, and no number at T = 120."""
    settings = {"variant": "residual", "division": "division"}
    assert 1e-12 < max(worst(16, **settings)) < 1e-9
    assert 1e-7 < max(worst(32, **settings)) < 1e-3
    assert all(math.isnan(error) for error in worst(120, **settings))


@wide_only
def test_own_slot_keeps_the_relative_accuracy_in_float64() -> None:
    assert max(worst(120)) < 1e-15
    for seed in range(5):
        net = limits_theorem5_3(ran_hmm(seed), 120)
        tokens, _ = samples(ran_hmm(seed), 120)
        sums = net.normalised(net.stream(tokens) @ net.decoder).sums
        assert 400 < float(np.log10(sums[0].max())) < 700  # C^T is beyond float64
        assert sums[-1].min() >= 1
        assert sums[-1].max() <= 2.01


def best(length, dtype, powers):
    """Largest error of five instances, with the best λ for all of them."""
    settings = {"variant": "residual", "product": "gelu", "division": "division", "dtype": dtype}
    return min(max(worst(length, gelu_scale=2.0**k, **settings)) for k in powers)


@pytest.mark.drawn(2)
@pytest.mark.parametrize(
    "length, low, high", [(8, 1e-6, 4e-5), (10, 2e-5, 6e-4), (12, 5e-4, 2e-2), (16, 0.02, math.inf)]
)
def test_gelu_products_in_float64_stay_below_the_bound_only_at_first(length: int, low: float, high: float) -> None:
    """Reference, best λ: 7e-6 at T = 8 (below e^-8), 1e-4 at T = 10, 3.5e-3 at 12 (above e^-12), order one from 16."""
    found = best(length, torch.float64, range(14, 19))
    assert low < found < high
    assert found < math.exp(-length) or length > 8
    assert found > math.exp(-length) or length < 12


@pytest.mark.parametrize("length, low, high", [(4, 1e-3, math.exp(-4)), (6, 8e-3, 0.5)])
def test_gelu_products_in_float32_fail_at_six(length: int, low: float, high: float) -> None:
    """Reference, best λ: 5e-3 at T = 4 (below e^-4), 8e-2 at T = 6 (above e^-6)."""
    assert low < best(length, torch.float32, range(4, 12)) < high


@wide_only
def test_printed_exponents_give_wrong_beliefs() -> None:
    hmm = ran_hmm(0)
    tokens, exact = samples(hmm, 64)
    assert error_of(limits_theorem5_3(hmm, 64), tokens, exact) < 1e-15
    assert not error_of(limits_theorem5_3(hmm, 64, exponents="floor"), tokens, exact) < 1


# ---------------------------------------------------------------------------------------------------------------------
# Refusals


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"length": 0}, r"^length: must be at least 1, got 0$"),
        ({"variant": "disjont"}, r"^variant: unknown 'disjont'; did you mean 'disjoint'"),
        ({"product": "relu01"}, r"^product: unknown 'relu01'"),
        ({"division": "exact"}, r"^division: unknown"),
        ({"exponents": "ceil"}, r"^exponents: unknown"),
        ({"gelu_scale": 0.0}, r"^gelu_scale: must be a positive number"),
        ({"least": 1.0}, r"^least: must be above 0 and below 1, got 1.0$"),
        ({"least": 0.0}, r"^least: must be above 0"),
        ({"dtype": torch.float16}, r"^dtype: "),
        ({"length": 120, "product": "gelu"}, r"^length: must have T ln C below 708 in float64"),
        ({"length": 8, "product": "gelu", "dtype": torch.float32}, r"^length: must have T ln C below 87 in float32"),
        ({"length": 4096}, r"^length: must have T ln C below"),
    ],
)
def test_refusals(unchecked: None, settings: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        limits_theorem5_3(ran_hmm(0), **({"length": 16} | settings))


def test_refuses_tokens_that_are_no_sequence() -> None:
    net = limits_theorem5_3(ran_hmm(0), 8, division="division")
    for tokens, message in (
        ([[0, 1, 2]], r"^tokens: must have the placeholder, token 5, at position 0 and nowhere else"),
        ([[5, 1, 5]], r"^tokens: must have the placeholder"),
        ([[5, 6]], r"^tokens: must be in \[0, 6\)"),
        ([[5] + [0] * 9], r"^tokens: must have a last position of at most 8"),
    ):
        with pytest.raises(InputError, match=message):
            net(torch.tensor(tokens))
    with pytest.raises(InputError, match=r"^cache: "):
        net(torch.tensor([[5, 1]]), cache={})
