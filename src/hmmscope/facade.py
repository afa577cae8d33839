"""Packages that import their names on first use, so that the command line starts without torch."""

import difflib
import importlib
import re
import sys
from collections.abc import Callable
from typing import Any

from hmmscope.synonyms import suggestion

#: Pattern of an import under ``if TYPE_CHECKING``.
_IMPORT = re.compile(r"^    from (\S+) import (\w+) as \2$", re.MULTILINE)


def lazily(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return `__getattr__`, `__dir__` and `__all__` of a package that imports its names on first use.

    The names are those that the package's source imports under ``if TYPE_CHECKING``.
    """
    spec = sys.modules[package].__spec__
    read = getattr(spec and spec.loader, "get_source", lambda name: None)
    source = read(package)
    if source is None:
        raise ImportError(
            f"{package}: __init__.py is not installed as source, so its names are unknown; reinstall the package"
        )
    home = {name: module for module, name in _IMPORT.findall(source)}
    names = sorted(home)

    def get(name: str) -> Any:
        if name not in home:
            # No suggestion for dunder names that tools probe.
            meant = None if name.startswith("_") else suggestion(name, names)
            near = [] if name.startswith("_") or meant else difflib.get_close_matches(name, names, 1)
            hint = f"; did you mean {meant or near[0]!r}?" if meant or near else ""
            raise AttributeError(f"module {package!r} has no attribute {name!r}{hint}")
        if home[name] != package:
            module = importlib.import_module(home[name])
            if hasattr(module, name):
                return getattr(module, name)
        return importlib.import_module(f"{home[name]}.{name}")

    return get, lambda: names, names
