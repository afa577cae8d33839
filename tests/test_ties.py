"""What is chosen, ordered and printed does not see the last bit of a float; sums of laws are made in one order."""

import math

import numpy as np
import pytest
import torch

import hmmscope as hs
from hmmscope.errors import InputError
from hmmscope.inference.stable_argmax import stable_argmax
from hmmscope.kernels import fixed_order
from hmmscope.lab.evidence.effects import Effect
from hmmscope.lab.evidence.verdicts import Above
from hmmscope.processes.combine import noisy, uniform_noise
from hmmscope.processes.stationary import stationary_law
from hmmscope.ties import descending, largest, smallest, steady

NINTHS = [1 / 9 + bits * 2.0**-56 for bits in (0, 3, -2, 1, 0, 2, -3, 1, 0)]


def test_equal_numbers_stand_in_their_order() -> None:
    assert descending(NINTHS) == list(range(9))
    assert descending([0.1, 0.5, *NINTHS, 0.5 + 1e-16]) == [1, 11, *range(2, 11), 0]
    assert descending([-math.inf, 1.0, math.inf, 1 + 1e-16]) == [2, 1, 3, 0]
    assert descending([]) == []
    assert descending([1.0, 1.0 + 1e-6]) == [1, 0]  # a difference that means something


def test_the_first_of_the_best_is_chosen(unchecked: None) -> None:
    assert largest(range(9), lambda place: NINTHS[place]) == 0
    assert smallest(["b", "a"], {"a": 0.3, "b": 0.1 + 0.2}.__getitem__) == "b"
    assert largest([3, 1, 2], float) == 3
    assert math.isnan(largest([math.nan], float))
    with pytest.raises(ValueError):
        largest([], float)
    rows = torch.tensor([NINTHS, [0.0] * 8 + [1.0], [-math.inf] * 7 + [0.0, 1e-300]], dtype=torch.float64)
    assert stable_argmax(rows).tolist() == [0, 8, 8]
    for wrong in (0.5, rows.tolist(), rows.int(), torch.zeros(2, 0), torch.tensor(1.0)):
        with pytest.raises(InputError, match=r"^values: must be a floating-point tensor"):
            stable_argmax(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [1 / 128, 0.0, 3.5e-7, 2 / 3, -1 / 128, 12345.0000005])
def test_printed_digits_are_those_of_the_neighbours(value: float) -> None:
    beside = [value, math.nextafter(value, math.inf), math.nextafter(value, -math.inf), value + 1e-17, value - 1e-17]
    assert len({f"{steady(one):z.6f}" for one in beside}) == 1
    assert len({f"{steady(one):.6f}" for one in (math.inf, -math.inf, math.nan)}) == 3


def test_verdicts_and_sentences_do_not_see_what_is_left_of_a_difference() -> None:
    effects = [Effect(value=end, low=end, high=0.5, num_seeds=3) for end in (0.0, 1e-17, -1e-17)]
    assert {Above().verdict(effect) for effect in effects} == {"inconclusive"}
    assert len({str(effect) for effect in effects}) == 1


def test_products_and_sums_are_made_one_term_after_the_other() -> None:
    rng = np.random.default_rng(0)
    left, right = rng.random((3, 50)), rng.random((50, 2))
    for i in range(3):
        for j in range(2):
            one_by_one = 0.0
            for k in range(50):
                one_by_one += float(left[i, k]) * float(right[k, j])
            assert fixed_order.product(left, right)[i, j] == one_by_one
    in_order = np.zeros(50)
    for part in left:
        in_order += part
    assert (fixed_order.total(left) == in_order).all()


def test_a_law_has_its_bits_everywhere() -> None:
    """Nine equally likely states, and a channel: their weights are rounded sums, which once were the processor's."""
    factored, cycle = hs.make_process("factored-mess3"), hs.make_process("aliased-cycles")
    assert factored.digest.startswith("8d0378e0f571")
    assert noisy(cycle, uniform_noise(cycle.num_symbols, 0.01)).digest.startswith("58d074d7c4a7")
    law = stationary_law(factored.labelled.sum(0))
    torch.testing.assert_close(law @ factored.labelled.sum(0), law, atol=1e-15, rtol=0)
