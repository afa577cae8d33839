"""[MultiTask] Theorem 1: where the construction fails, what it refuses, and how it explains itself."""

import math
from typing import Any

import pytest
import torch

from hmmscope.errors import InputError, ResourceError
from hmmscope_papers.constructions import MultiTaskOptions
from hmmscope_papers.constructions.multitask import multitask_theorem1
from hmmscope_papers.constructions.multitask_network import clip_law, simplex_law
from multitask_cases import SIZES, gather_error
from multitask_cases import build_theorem1 as build
from multitask_cases import prompts_of as prompts


def test_fewer_heads_do_not_converge() -> None:
    """Without the positive heads weights only grow; with all 2V the error falls with the steps."""
    tokens = prompts(SIZES[1])
    remaining = {}
    for num_heads in (1, 4, 6, 8):
        net = build((4, 3, 24, 4, 120), num_heads=num_heads)
        exact = net.exact(tokens)
        covariance, cross = exact.moments
        weights = net.learned_weights(tokens)[-1][:, None]
        remaining[num_heads] = float((weights @ covariance - cross).abs().max())  # the gradient that is left
    assert remaining[8] < 3e-3
    assert min(remaining[1], remaining[4], remaining[6]) > 0.02


def test_absolute_positions_cannot_be_shifted() -> None:
    sizes = (3, 2, 12, 4, 2)
    tokens = prompts(sizes, test_length=4)
    columns = tokens.shape[1]
    errors = [
        gather_error(build(sizes, 4, positions="absolute", position_width=width), tokens) for width in (2, 16, columns)
    ]
    assert errors[0] > 0.99
    assert errors[1] > 0.99
    assert errors[2] < 1e-12  # as many coordinates as columns: any map of columns is linear


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"num_symbols": 1}, "num_symbols: must be at least 2, got 1"),
        ({"memory_length": 0}, "memory_length: must be at least 1, got 0"),
        ({"num_steps": -1}, "num_steps: must be at least 0, got -1"),
        ({"demonstration_length": 2}, "demonstration_length: must be at least 3 "),
        ({"num_demonstrations": 0}, "num_demonstrations: must be at least 1, got 0"),
        ({"demonstration_length": [3, 3]}, "demonstration_length: must be a number, or 4 numbers"),
        ({"demonstration_length": [3, 0, 3, 3]}, "demonstration_length: must be at least 1"),
        ({"test_length": 1}, "test_length: must be at least 2 .*, got 1"),
        ({"gap": 0.5}, "gap: must be in"),
        ({"gap": math.nan}, "gap: must be a finite number"),
        ({"mask": 1.5}, "mask: must be above"),
        ({"mask": math.inf}, "mask: must be a finite number"),
        ({"learning_rate": 0.0}, "learning_rate: must be positive"),
        ({"ridge": -0.1}, "ridge: must be at least 0"),
        ({"num_heads": 7}, "num_heads: must be at most 6"),
        ({"num_heads": 0}, "num_heads: must be at least 1"),
        ({"dtype": torch.float16}, "dtype: must be"),
        ({"position_width": 3}, "position_width: must be 2"),
        ({"dtype": torch.float32, "num_demonstrations": 2000}, "num_demonstrations: must give a prompt whose"),
        ({"num_symbols": 64, "memory_length": 4, "features": "tabular"}, "num_symbols: gives joint one-hots"),
    ],
)
def test_refused(changes: dict[str, Any], message: str) -> None:
    sizes: dict[str, Any] = {"num_symbols": 3, "memory_length": 2, "num_steps": 3}
    sizes |= {"num_demonstrations": 4, "demonstration_length": 3, "test_length": 4}
    sizes |= {name: changes[name] for name in sizes if name in changes}
    variant = {name: value for name, value in changes.items() if name not in sizes}
    with pytest.raises(InputError, match=message) as caught:
        multitask_theorem1(**sizes, options=MultiTaskOptions(**variant))
    assert "\n" not in str(caught.value)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("field", ["features", "positions"])
def test_unknown_choices_are_refused(field: str) -> None:
    with pytest.raises(InputError, match=f"{field}: unknown 'nothing'"):
        build((3, 2, 4, 3, 3), 4, **{field: "nothing"})


def test_what_does_not_fit_is_refused_before_it_is_allocated() -> None:
    with pytest.raises(ResourceError, match="construction: needs"):
        build((64, 32, 100, 40, 2), 40)


def test_wrong_inputs_are_refused() -> None:
    net = build((3, 2, 4, 3, 3), 4)
    tokens = prompts((3, 2, 4, 3, 3), test_length=4)
    with pytest.raises(InputError, match="tokens: must be in"):
        net(tokens + 1)
    with pytest.raises(InputError, match="tokens: must have"):
        net(torch.cat([tokens, tokens], 1))
    with pytest.raises(InputError, match="positions: must be in"):
        net(tokens, torch.arange(tokens.shape[1]) + 1)
    with pytest.raises(InputError, match="cache: must be left out"):
        net(tokens, cache={})


def test_positions_move_what_is_gathered() -> None:
    """With the same numbers nothing changes; with others the copies come from elsewhere."""
    net, tokens = build(SIZES[1]), prompts(SIZES[1])
    numbers = torch.arange(tokens.shape[1])
    assert torch.equal(net(tokens, numbers), net(tokens))
    assert not torch.allclose(net(tokens, numbers.flip(0)), net(tokens), atol=1e-3)


def test_laws_from_vectors() -> None:
    vectors = torch.tensor([[0.5, -0.1, 0.4], [0.2, 0.3, 0.5], [2.0, 0.0, 0.0]], dtype=torch.float64)
    assert clip_law(vectors)[0].tolist() == pytest.approx([5 / 9, 0, 4 / 9])
    nearest = simplex_law(vectors)
    assert nearest[0].tolist() == pytest.approx([0.55, 0, 0.45])
    assert nearest[1:].tolist() == [pytest.approx([0.2, 0.3, 0.5]), [1.0, 0.0, 0.0]]
    with pytest.raises(InputError, match="must each have a positive entry"):
        clip_law(torch.zeros(1, 3, dtype=torch.float64))


def test_explains_itself() -> None:
    net = build((3, 2, 4, 3, 3), 4)
    tokens = prompts((3, 2, 4, 3, 3), test_length=4)
    text = net.explain(tokens)
    assert text.startswith("[MultiTask] Theorem 1: 3 symbols, memory 2, 3 gradient steps")
    assert "gather history: position, slot-0 -> slot-1   measured error 0.0e+00" in text
    assert text.count("gradient step") == 4  # the title, and three layers
    assert all(note.error is None for note in net.notes())
