"""Constructions refuse prompts without the token that they were built to begin with."""

import copy
from typing import Any

import pytest
import torch

from hmmscope.errors import InputError
from hmmscope_papers.constructions import delta_rule_parity, multitask_theorem1
from hmmscope_papers.constructions.finite_precision import rounded_vectors
from multitask_cases import random_prompts


def test_delimiters_stand_where_the_network_was_built_for_them() -> None:
    net = multitask_theorem1(2, 1, 1, num_demonstrations=2, demonstration_length=4, test_length=3)
    tokens = random_prompts(0, [4] * 2, 3, 2)
    columns = net.prompt.delimiter_columns
    assert columns == [0, 5, 10]
    assert net(tokens).shape[:2] == tokens.shape
    assert net(tokens[:, :12]).shape[1] == 12
    elsewhere, more = tokens.clone(), tokens.clone()
    elsewhere[0, 5:7] = elsewhere[0, 5:7].flip(0)
    more[-1, 12] = 2
    for wrong, column in ((tokens[:, 1:], 0), (elsewhere, 5), (more, 12)):
        with pytest.raises(InputError, match=rf"must have the delimiter.* at position {column} of prompt"):
            net(wrong)


def test_the_placeholder_comes_first() -> None:
    maps = [[[0.0, 1.0], [1.0, 0.0]], [[1.0, 0.0], [0.0, 1.0]]]
    assert rounded_vectors([maps], torch.tensor([[2, 0, 1]]), 4, [12], product="relu01").shape == (1, 1, 3, 2)
    with pytest.raises(InputError, match="tokens: must begin with the placeholder, token 2, got 0"):
        rounded_vectors([maps], torch.tensor([[0, 1, 1]]), 4, [12], product="relu01")


def test_the_delta_rule_reads_its_placeholder_first() -> None:
    net = delta_rule_parity()
    tokens = torch.tensor([[2, 1, 0, 1]])
    cache: dict[str, Any] = {}
    parts = [net(tokens[:, :2], cache=cache), net(tokens[:, 2:], cache=cache)]
    assert torch.cat(parts, 1).argmax(-1).tolist() == net(tokens).argmax(-1).tolist() == [[0, 1, 1, 0]]
    for again in (net, copy.deepcopy(net)):
        with pytest.raises(InputError, match="tokens: must begin with the placeholder, token 2, got 1"):
            again(tokens[:, 1:])
