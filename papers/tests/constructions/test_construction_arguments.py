"""What constructions take and refuse, in a line that names the field."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

import hmmscope as hs
from hmmscope.errors import InputError
from hmmscope_papers import constructions

PROMPT = {"num_demonstrations": 3, "demonstration_length": 4, "test_length": 4}


def theorem1(num_symbols: Any = 3, memory_length: Any = 2, num_steps: Any = 3, **fields: Any) -> Any:
    prompt = PROMPT | {name: fields.pop(name) for name in PROMPT if name in fields}
    options = constructions.MultiTaskOptions(**fields)
    return constructions.multitask_theorem1(num_symbols, memory_length, num_steps, **prompt, options=options)


def theorem2(**fields: Any) -> Any:
    prompt = PROMPT | {"num_futures": 2}
    prompt |= {name: fields.pop(name) for name in prompt if name in fields}
    return constructions.multitask_theorem2(3, 2, 3, **prompt, options=constructions.MultiTaskOptions(**fields))


def rnn(process: Any = "cyclic-det", **fields: Any) -> Any:
    return constructions.limits_theorem5_1(process, **fields)


def product(length: Any = 4, **fields: Any) -> Any:
    return constructions.limits_theorem5_2("cyclic-det", length, **fields)


def beliefs(hmm: Any = "random-hmm", length: Any = 4, **fields: Any) -> Any:
    return constructions.limits_theorem5_3(hmm, length, **fields)


MAKERS: list[Callable[..., Any]] = [theorem1, theorem2, rnn, product, beliefs]
COUNTS = [
    *(
        (theorem1, field)
        for field in ("num_symbols", "memory_length", "num_steps", *PROMPT, "num_heads", "position_width")
    ),
    *((theorem2, field) for field in ("num_futures", *PROMPT, "num_heads")),
    *((product, field) for field in ("length", "num_layers")),
    (beliefs, "length"),
]
NUMBERS = [
    *((make, field) for make in (theorem1, theorem2) for field in ("learning_rate", "ridge", "mask", "gap")),
    *((product, field) for field in ("eta", "gelu_scale")),
    *((beliefs, field) for field in ("gelu_scale", "least")),
    (rnn, "scale"),
]


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("make, field", COUNTS)
@pytest.mark.parametrize("value", [1.5, "x", True])
def test_counts_are_integers(make: Callable[..., Any], field: str, value: Any) -> None:
    with pytest.raises(InputError, match=f"^{field}: must be an integer, got "):
        make(**{field: value})


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("make, field", NUMBERS)
@pytest.mark.parametrize("value", ["x", float("nan"), [1.0]])
def test_numbers_are_finite(make: Callable[..., Any], field: str, value: Any) -> None:
    with pytest.raises(InputError, match=f"^{field}: must be a finite number, got "):
        make(**{field: value})


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("dtype", ["float32", torch.int64, None])
def test_types_are_those_of_numbers(make: Callable[..., Any], dtype: Any) -> None:
    with pytest.raises(InputError, match=r"^dtype: must be torch\.float64 or torch\.float32, got "):
        make(dtype=dtype)


@pytest.mark.usefixtures("unchecked")
def test_processes_are_taken_by_name_and_other_kinds_refused() -> None:
    tokens = torch.tensor([[3, 0, 1, 2]])
    named, made = (rnn(process) for process in ("cyclic-det", hs.make_process("cyclic-det")))
    assert torch.equal(named(tokens), made(tokens))
    with pytest.raises(InputError, match=r"^initial: must be numbers, got 'x'"):
        rnn(initial="x")
    with pytest.raises(InputError, match=r"^process: must be numbers, got "):
        rnn({})
    for process, said in (
        (5, "process: must be a process"),
        ("aliased-cycles-mixture", "has no probabilities of words"),
    ):
        with pytest.raises(InputError, match=said):
            beliefs(process)
    with pytest.raises(InputError, match=r"^hmm: must have nonnegative matrices"):
        beliefs("post-quantum", least=0.5)
