"""Arithmetic of p bits is what it says, and the Transformer of Theorem 5.2 needs 2 log2 T + 4 of them."""

import math

import numpy as np
import pytest
import torch

import hmmscope as hs
from hmmscope.errors import InputError
from hmmscope.seeds import numpy_generator, torch_generator
from hmmscope_papers.constructions import limits_theorem5_2
from hmmscope_papers.constructions.driven import driven_system
from hmmscope_papers.constructions.finite_precision import (
    Rounding,
    rounded_gelu_product,
    rounded_vectors,
    rounding_errors,
)
from hmmscope_papers.theorems import driven_samples
from hmmscope_studies.beyond_limits.precision import bits_for_attention, smallest_precision

BITS = list(range(4, 27))


def samples(kind, length, instances=3):
    """Systems of three states, tokens and exact vectors."""
    fields = {"cycles": ("cyclic-det", {"num_states": 3}), "orthogonal": ("matmul", {"dimension": 3})}[kind]
    processes = [hs.make_process(fields[0], num_symbols=3, seed=seed, **fields[1]) for seed in range(instances)]
    pairs = [driven_samples(process, length, 1, seed) for seed, process in enumerate(processes)]
    return [driven_system(process) for process in processes], *(torch.cat(part) for part in zip(*pairs, strict=True))


def plainly(x, p):
    """Round half to even, by frexp and ldexp."""
    mantissa, exponent = math.frexp(x)
    return math.ldexp(round(math.ldexp(mantissa, p)), exponent - p)  # Python rounds half to even


def test_rounding_is_to_nearest_with_ties_to_even():
    rng = numpy_generator(0, "rounding")
    x = np.concatenate(
        [rng.normal(size=200), rng.normal(size=200) * 2.0 ** rng.integers(-60, 60, 200), [0.0, 1.0, -1.0]]
    )
    ties = np.array([(2 * k + 1) * 2.0**-11 for k in range(1024, 1040)])  # halfway between numbers of 11 bits
    x = np.concatenate([x, ties, -ties, 1 + 2.0**-11 + np.array([2.0**-50, 0, -(2.0**-50)])])
    precisions = [2, 3, 8, 11, 24, 26]
    found = Rounding(precisions)(np.repeat(x[None], len(precisions), 0))
    for row, p in zip(found, precisions, strict=True):
        np.testing.assert_array_equal(row, [plainly(value, p) for value in x])
    np.testing.assert_array_equal(found[4], x.astype(np.float32).astype(np.float64))
    small = np.abs(x) < 60000
    normal = small & ((np.abs(x) > 1e-4) | (x == 0))
    np.testing.assert_array_equal(found[3][normal], x[normal].astype(np.float16).astype(np.float64))
    tie = Rounding([11])(np.array([[1 + 2.0**-11, 1 + 3 * 2.0**-11]]))
    assert tie.tolist() == [[1.0, 1 + 4 * 2.0**-11]]


def test_rounding_leaves_its_argument_and_is_idempotent():
    x = numpy_generator(1, "rounding").normal(size=(2, 50))
    before = x.copy()
    rnd = Rounding([5, 12])
    once = rnd(x)
    np.testing.assert_array_equal(x, before)
    np.testing.assert_array_equal(rnd(once), once)
    assert (np.abs(once - x) <= np.abs(x) * 2.0 ** -np.array([[5], [12]])).all()
    assert (once[0] != x[0]).all()
    np.testing.assert_array_equal(rnd(x[:, ::2]), once[:, ::2])
    terms = [np.array([[1.0], [1.0]]), np.array([[2.0**-6], [2.0**-6]])] + [np.array([[2.0**-6], [2.0**-6]])] * 3
    assert rnd.total(terms)[:, 0].tolist() == [1.0, 1.0625]  # with 5 bits each small term is lost


@pytest.mark.parametrize("bits", [[], [1], [27]])
def test_other_precisions_are_refused(bits):
    with pytest.raises(InputError, match=r"^bits: must"):
        Rounding(bits)


@pytest.mark.parametrize("kind, product", [("cycles", "relu01"), ("orthogonal", "bilinear"), ("orthogonal", "gelu")])
def test_with_many_bits_it_is_the_network(kind, product):
    """The difference from the network in float64 falls with p, and every output has p bits."""
    systems, tokens, exact = samples(kind, 12)
    found = rounded_vectors(systems, tokens, 12, [14, 20, 26], product=product, eta=1e-9, gelu_scale=2.0**6)
    assert found.shape == (3, 3, 13, 3)
    np.testing.assert_array_equal(Rounding([14, 20, 26])(found.numpy()), found)
    if product == "gelu":
        nets = [limits_theorem5_2(s.matrices_VSS, 12, product=product, gelu_scale=2.0**6) for s in systems]
        exact = torch.cat([net(row[None]) for net, row in zip(nets, tokens, strict=True)])
    errors = (found - exact).abs().amax((1, 2, 3)).tolist()
    assert errors[2] <= (1e-5 if product == "gelu" else 1e-6)
    assert errors[0] >= errors[1] >= errors[2]
    if kind == "orthogonal":
        assert errors[0] > 8 * errors[1] > 64 * errors[2] > 0
    torch.testing.assert_close(
        rounding_errors(systems, tokens, 12, [14], product=product, eta=1e-9, gelu_scale=2.0**6)[0],
        (found[0] - torch.cat([s.vectors(row[None]) for s, row in zip(systems, tokens, strict=True)]))
        .abs()
        .amax((1, 2)),
    )


#: Fewest bits by length, worst of three instances: ReLU, exact product, GeLU.
REFERENCE = {
    8: (10, 10, 11),
    16: (12, 12, 14),
    32: (14, 14, 14),
    64: (16, 16, 17),
    128: (18, 18, 18),
    256: (21, 21, 21),
}
PRODUCTS = (("cycles", "relu01"), ("orthogonal", "bilinear"), ("orthogonal", "gelu"))


def fewest_bits(length):
    found = []
    for kind, product in PRODUCTS:
        systems, tokens, _ = samples(kind, length)
        found.append(smallest_precision(rounding_errors(systems, tokens, length, BITS, product=product).amax(1), BITS))
    return found


@pytest.mark.parametrize("length", [8, 16, 32, 64])
def test_fewest_bits_are_those_of_the_reference(length):
    """To one bit: it depends on the order of summation."""
    found = fewest_bits(length)
    assert all(abs(p - reference) <= 1 for p, reference in zip(found, REFERENCE[length], strict=True))
    assert all(abs(p - bits_for_attention(length)) <= 1 for p in found[:2])


@pytest.mark.soak
@pytest.mark.parametrize("length", [128, 256])
def test_fewest_bits_of_long_sequences(length):
    test_fewest_bits_are_those_of_the_reference(length)


def test_two_bits_for_every_doubling():
    lengths = [8, 16, 32, 64]
    found = []
    for length in lengths:
        systems, tokens, _ = samples("cycles", length)
        found.append(smallest_precision(rounding_errors(systems, tokens, length, BITS, product="relu01").amax(1), BITS))
    assert np.polyfit(np.log2(lengths), found, 1)[0] == pytest.approx(2, abs=0.15)


def test_the_threshold_does_not_depend_on_the_temperature():
    systems, tokens, _ = samples("cycles", 32)
    found = [
        smallest_precision(rounding_errors(systems, tokens, 32, BITS, product="relu01", eta=eta).amax(1), BITS)
        for eta in (1e-4, 1e-9, 1e-20)
    ]
    assert max(found) - min(found) <= 1


def test_gelu_errors_at_length_128():
    """Reference 7e-3, 1.7e-3 and 5e-4 with 20, 24 and 26 bits; here to a factor of two."""
    systems, tokens, _ = samples("orthogonal", 128)
    errors = rounding_errors(systems, tokens, 128, [20, 24, 26], product="gelu").amax(1).tolist()
    for measured, reference in zip(errors, (7e-3, 1.7e-3, 5e-4), strict=True):
        assert reference / 2 <= measured <= 2 * reference


def test_number_types():
    """bfloat16 to T = 4, float16 to T = 8 at least, float32 to T = 1024 (run in float32)."""

    def worst(length, bits):
        systems, tokens, _ = samples("cycles", length)
        return float(rounding_errors(systems, tokens, length, [bits], product="relu01").max())

    assert worst(4, 8) == 0
    assert worst(8, 8) > 0.5
    assert worst(8, 11) == 0
    assert worst(16, 11) > 0.5
    process = hs.make_process("cyclic-det", num_states=3, num_symbols=3)
    for length, right in ((1024, True), (1536, False)):
        tokens, exact = driven_samples(process, length, 1, 0)
        for eta in (1e-9, 1e-20):
            net = limits_theorem5_2(process, length, product="relu01", eta=eta, dtype=torch.float32)
            error = float((net(tokens) - exact).abs().max())
            assert error < 1e-3 if right else error > 0.5


def test_smallest_precision_asks_for_all_larger_ones():
    errors = torch.tensor([1.0, 0.01, 0.2, 0.05, 0.0, float("nan")], dtype=torch.float64)
    bits = [4, 5, 6, 7, 8, 9]
    assert smallest_precision(errors[:5], bits[:5]) == 7
    assert smallest_precision(errors[:3], bits[:3]) is None
    assert smallest_precision(errors, bits) is None
    assert smallest_precision(errors[3:5], bits[3:5]) == 7
    assert smallest_precision(errors[:5], bits[:5], tolerance=0.3) == 5


def test_best_scale_and_error_of_the_gadget_follow_the_precision():
    """Error 2^(-2p/3) at λ = 2^(p/3)."""
    a, b = 2 * torch.rand(2, 1000, generator=torch_generator(0, "points"), dtype=torch.float64) - 1
    bits = [9, 12, 15, 18, 21, 24]
    errors = torch.stack(
        [(rounded_gelu_product(a, b, bits, [2.0**e] * len(bits)) - a * b).abs().amax(1) for e in range(1, 14)], 1
    )
    best, where = errors.min(1)
    assert np.polyfit(bits, best.log2(), 1)[0] == pytest.approx(-2 / 3, abs=0.05)
    assert np.polyfit(bits, where + 1, 1)[0] == pytest.approx(1 / 3, abs=0.07)
    assert (best / 2 ** (-2 * torch.tensor(bits) / 3)).max() < 3
    with pytest.raises(InputError, match=r"^scales: must be 6 numbers"):
        rounded_gelu_product(a, b, bits, [2.0])


def test_what_cannot_work_is_refused():
    systems, tokens, _ = samples("orthogonal", 8)
    with pytest.raises(InputError, match=r"^product: must be gelu or bilinear"):
        rounded_vectors(systems, tokens, 8, [12], product="relu01")
    with pytest.raises(InputError, match=r"^processes: must have 2 entries, one for each sequence, got 3"):
        rounded_vectors(systems, tokens[:2], 8, [12], product="gelu")
    with pytest.raises(InputError, match=r"^tokens: must have at most 5 positions \(length \+ 1\), got 9"):
        rounded_vectors(systems, tokens, 4, [12], product="gelu")
    with pytest.raises(InputError, match=r"^length: must be at least 1"):
        rounded_vectors(systems, tokens, 0, [12], product="gelu")
    other = driven_system(hs.make_process("matmul"))
    with pytest.raises(InputError, match=r"^processes: must have matrices \(symbol, n, n\) of one shape"):
        rounded_vectors([*systems[:2], other], tokens, 8, [12], product="gelu")
