"""Compiled functions that are kept, and that processes which start together compile once between them."""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numba
from numba.core.compiler_lock import global_compiler_lock

from hmmscope.storage import disk

_at_work: list[Path] = []


@contextmanager
def alone(function: Any) -> Iterator[None]:
    """Be the one process that compiles into the folder of `function`: who waited reads what the other has kept.

    Meanwhile no garbage is collected: with as many objects as a compiler makes, looking for it takes much of the time.
    """
    folder = Path(function._cache.cache_path)
    with global_compiler_lock:
        if folder in _at_work:  # it is compiled because another calls it
            yield
            return
        _at_work.append(folder)
        collecting = gc.isenabled()
        gc.disable()
        try:
            with disk.one_at_a_time(folder):
                yield
        finally:
            _at_work.remove(folder)
            if collecting:
                gc.enable()


def kernel(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """`numba.njit` of a function without Python objects, kept on disk; `options` are further ones of numba."""

    def make(function: Callable[..., Any]) -> Any:
        made = numba.njit(cache=True, nogil=True, **options)(function)
        compiled = made.compile

        def compile_alone(signature: Any) -> Any:
            with alone(made):
                return compiled(signature)

        made.compile = compile_alone
        return made

    return make
