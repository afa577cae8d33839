"""Tests of `tests/inference` on small inputs, run through the loops over sequences that large inputs take."""

import pytest
import torch

import test_forward
import test_long_sequences
from hmmscope.inference.loop_inputs import over_lanes


def test_tiny_entries() -> None:
    with over_lanes():
        test_forward.test_tiny_entries_equal_the_exact_forward_recursion()


@pytest.mark.parametrize("family", test_long_sequences.FAMILIES)
def test_hundred_thousand_observations(family: str) -> None:
    with over_lanes():
        test_long_sequences.test_hundred_thousand_observations(family, torch.float64)
