"""Packages whose names are imported on first use, so that the command line starts without torch."""

import difflib
import importlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any


def lazily(
    package: str, home: Mapping[str, str], modules: Mapping[str, str] | None = None
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a package.

    Args:
        package: its `__name__`.
        home: the module, within the package, of each name.
        modules: names that are whole modules of the package.
    """
    whole = modules or {}

    def get(name: str) -> Any:
        if name in whole:
            return importlib.import_module(f"{package}.{whole[name]}")
        if name not in home:
            # What tools ask every module for, whether it is there, gets no guess.
            near = [] if name.startswith("_") else difflib.get_close_matches(name, [*home, *whole], 1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise AttributeError(f"module {package!r} has no attribute {name!r}{hint}")
        return getattr(importlib.import_module(f"{package}.{home[name]}"), name)

    names: Iterable[str] = {*home, *whole}
    return get, lambda: sorted(names)
