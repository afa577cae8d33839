"""Annotations of the library are executed while tests run: a wrong shape or type cannot pass through a function unseen."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest
from jaxtyping import Float, TypeCheckError

import annotations
from hmmscope.datasets.process_dataset import Batch
from hmmscope.processes import observations
from hmmscope.processes.mess3_mixture import Mess3MixtureSpec

A, B = np.zeros((2, 3)), np.zeros((3, 4))


@annotations.executed
def product(left: Float[np.ndarray, "rows k"], right: Float[np.ndarray, "k cols"]) -> Float[np.ndarray, "rows cols"]:
    """Its right product, or of three rows what cannot be one."""
    return left @ right if len(left) < 3 else left @ right[:, :-1]


@annotations.executed
def product_of_others(left: Float[np.ndarray, "cols k"]) -> float:
    return float(product(left, B).sum())  # its names are not those of the function inside


@annotations.executed
def named(name: "str", count: "NotThere" = None) -> int:  # noqa: F821
    return name


@annotations.executed
def rows(left: Float[np.ndarray, "rows k"], right: Float[np.ndarray, "rows k"]) -> Iterator[float]:
    yield from left[:, 0]


@annotations.executed
@dataclass
class Pair:
    first: Float[np.ndarray, "rows k"]
    second: Float[np.ndarray, "rows k"]


def test_shapes_of_one_call_agree() -> None:
    assert product(A, B).shape == (2, 4)
    assert product_of_others(A) == 0
    with pytest.raises(TypeCheckError, match="dimension k"):
        product(A, A)
    with pytest.raises(TypeCheckError, match="dimension cols"):
        product(B[:, :3], B)  # what it returns
    with pytest.raises(TypeCheckError, match="right"):
        product(A, B[0])
    assert product(B[:2, :3], B).shape == (2, 4)  # nothing is left over from what was refused


def test_types_are_checked_where_no_shape_is_named() -> None:
    with pytest.raises(TypeCheckError, match="name"):
        named(3)
    with pytest.raises(TypeCheckError, match="return"):
        named("three")


def test_arguments_of_generators_and_fields_are_checked() -> None:
    assert list(rows(A, A)) == [0, 0]
    with pytest.raises(TypeCheckError, match="right"):
        list(rows(A, B))
    assert Pair(A, A).first is A
    with pytest.raises(TypeCheckError, match="dimension"):
        Pair(A, B)


def test_nothing_is_checked_for_what_a_user_sees(unchecked: None) -> None:
    assert named(3) == 3
    assert Pair(A, B).second is B
    assert list(rows(A, B)) == [0, 0]


def test_the_library_is_under_it() -> None:
    """Functions, methods, fields."""
    for owner, name in ((observations, "check_observations"), (Mess3MixtureSpec, "build"), (Batch, "__init__")):
        assert vars(owner)[name].__code__.co_filename == annotations.__file__
