"""How annotations of shapes and types are executed while tests run."""

from collections.abc import Callable
from typing import Any

import beartype


def executed(function: Callable[..., Any]) -> Callable[..., Any]:
    """Checked at each call; not a function inside another one, which would be compiled anew each time it is made."""
    return function if "<locals>" in function.__qualname__ else beartype.beartype(function)
