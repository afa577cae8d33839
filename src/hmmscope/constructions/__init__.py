"""Networks whose weights a theorem gives, to be run, measured and looked into like trained ones."""

import importlib
from typing import TYPE_CHECKING, Any

_HOME = {
    "limits_theorem5_1": "deterministic_rnn",
    "limits_theorem5_2": "prefix_product",
    "limits_theorem5_3": "stochastic_filter",
    "multitask_theorem1": "multitask",
    "multitask_theorem2": "multitask",
}

__all__ = [*_HOME]

if TYPE_CHECKING:
    from hmmscope.constructions.deterministic_rnn import limits_theorem5_1 as limits_theorem5_1
    from hmmscope.constructions.multitask import multitask_theorem1 as multitask_theorem1
    from hmmscope.constructions.multitask import multitask_theorem2 as multitask_theorem2
    from hmmscope.constructions.prefix_product import limits_theorem5_2 as limits_theorem5_2
    from hmmscope.constructions.stochastic_filter import limits_theorem5_3 as limits_theorem5_3


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
