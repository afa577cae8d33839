"""Compiled functions, cached on disk; if Python processes start together, one compiles and the others wait."""

import gc
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numba
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import CompilerBase, DefaultPassBuilder
from numba.core.compiler_lock import global_compiler_lock
from numba.core.compiler_machinery import register_pass
from numba.core.typed_passes import NativeLowering

from hmmscope.storage import disk

_at_work: list[Path] = []


@contextmanager
def alone(function: Any) -> Iterator[None]:
    """Hold a lock on the source file of `function`, so that one process compiles and all others read the cache."""
    file = Path(function.__wrapped__.__code__.co_filename)
    with global_compiler_lock:
        if file in _at_work:  # compiled because another function calls it
            yield
            return
        _at_work.append(file)
        collecting = gc.isenabled()
        gc.disable()
        try:
            with disk.one_at_a_time(file):
                yield
        finally:
            _at_work.remove(file)
            if collecting:
                gc.enable()


def keep(made: Any) -> bool:
    try:
        made.enable_caching()
    except RuntimeError as error:
        if "cannot cache" not in str(error):
            raise
        if not _warned:
            _warned.append(True)
            warnings.warn(
                "cannot cache compiled functions, so every process compiles them again: neither the installation nor HOME "
                "can be written; set the environment variable NUMBA_CACHE_DIR to a writable folder",
                stacklevel=2,
            )
        return False
    file = made._cache._cache_file
    file._load_index = partial(_index_or_empty, file._load_index)
    return True


def _index_or_empty(load: Callable[[], dict[Any, Any]]) -> dict[Any, Any]:
    try:
        return load()
    except OSError:
        raise
    except Exception:  # whatever unpickling may raise
        return {}


_warned: list[bool] = []


def kernel(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """Return a decorator like `numba.njit(**options)` that also caches on disk and releases the GIL."""

    def make(function: Callable[..., Any]) -> Any:
        made = numba.njit(nogil=True, **options)(function)
        keep(made)
        compiled = made.compile

        def compile_alone(signature: Any) -> Any:
            with alone(made):
                return compiled(signature)

        made.compile = compile_alone
        return made

    return make


def compiled_signatures(made: Any) -> list[Any]:
    file, found = getattr(made._cache, "_cache_file", None), list(made.overloads)
    if file is None:
        return found
    own = made._cache._index_key(None, made.targetctx.codegen())[1:]
    try:
        return found + [key[0] for key in file._load_index() if key[1:] == own]
    except OSError:
        return found


class _Unfinished(JITCodeLibrary):
    def _optimize_final_module(self) -> None:
        pass

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()
        self._finalized = True


@register_pass(mutates_CFG=True, analysis_only=False)
class _Unfinishing(NativeLowering):
    _name = "unfinishing"

    def run_pass(self, state: Any) -> bool:
        state.library = _Unfinished(state.targetctx.codegen(), state.func_id.func_qualname)
        state.flags.no_compile = True
        super().run_pass(state)
        # numba requires a separate handle; this one fails if called
        handle = {}.popitem  # type: ignore[var-annotated]
        state.targetctx.insert_user_function(handle, state["cr"].fndesc, [state.library])
        state["cr"] = state["cr"]._replace(cfunc=handle)
        return True


class _PartCompiler(CompilerBase):
    def define_pipelines(self) -> list[Any]:
        passes = DefaultPassBuilder.define_nopython_pipeline(self.state)
        passes.passes = [(_Unfinishing if one is NativeLowering else one, why) for one, why in passes.passes]
        passes.finalize()
        return [passes]


def part(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    options = {"nogil": True, "no_cpython_wrapper": True, "no_cfunc_wrapper": True, **options}
    return numba.njit(pipeline_class=_PartCompiler, **options)
