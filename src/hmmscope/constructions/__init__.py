"""Networks whose weights a theorem gives, to be run, measured and looked into like trained ones."""

import importlib
from typing import Any

_HOME = {
    "limits_theorem5_1": "deterministic_rnn",
    "limits_theorem5_2": "prefix_product",
    "limits_theorem5_3": "stochastic_filter",
    "multitask_theorem1": "multitask",
    "multitask_theorem2": "multitask",
}

__all__ = [*_HOME]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
