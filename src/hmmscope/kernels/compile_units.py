"""Functions with annotated argument types, each compiled for float32 and float64."""

import ctypes
import functools
import hashlib
import inspect
import types as python
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

import llvmlite.binding
import numpy as np
from llvmlite import ir
from numba import extending, njit, types
from numba.core import cgutils, sigutils
from numba.core.ccallback import CFunc
from numba.core.errors import TypingError
from numba.np.arrayobj import populate_array
from numba.np.numpy_support import from_dtype
from numpy.typing import DTypeLike

from hmmscope.kernels.compiling import alone, keep

#: Argument types with their number of axes: float32 or float64 (X), indices (I), float64 (D); `Row` is an array of any
#: shape, read as one row.
X0 = Annotated[Any, "number", 0]
X1 = Annotated[Any, "number", 1]
X2 = Annotated[Any, "number", 2]
X3 = Annotated[Any, "number", 3]
X4 = Annotated[Any, "number", 4]
I1 = Annotated[Any, "index", 1]
I2 = Annotated[Any, "index", 2]
D1 = Annotated[Any, "double", 1]
Row = Annotated[Any, "row", 1]

intrinsic: Any = extending.intrinsic
_PLAIN = {int: types.int64, float: types.float64, bool: types.boolean, python.NoneType: types.void}


@functools.cache
def _text(folder: Path) -> str:
    digest = hashlib.sha256()
    for file in sorted(folder.glob("*.py")):
        digest.update(file.read_bytes())
    return digest.hexdigest()


def _kept(function: Any, source: Callable[..., Any]) -> Any:
    if not keep(function):
        return function
    folders = {Path(file).parent for file in (__file__, inspect.getfile(source))}
    function._cache._cache_file._source_stamp = "".join(_text(folder) for folder in sorted(folders))
    return function


def _number_of(dtype: Any) -> Any:
    return from_dtype(np.dtype(dtype))


def _typed(kind: Any, number: Any) -> Any:
    if kind in _PLAIN:
        return _PLAIN[kind]
    if hasattr(kind, "_fields"):
        fields = get_type_hints(kind, include_extras=True)
        return types.BaseTuple.from_types([_typed(fields[name], number) for name in kind._fields], kind)
    _, of, axes = get_args(kind)
    element = {"index": types.int64, "double": types.float64}.get(of, number)
    return types.Array(element, axes, "C") if axes else element


def _numbers(kind: Any, given: Any) -> Iterator[Any]:
    if hasattr(kind, "_fields"):
        fields = get_type_hints(kind, include_extras=True)
        for name, field in zip(kind._fields, given.types, strict=True):
            yield from _numbers(fields[name], field)
    elif isinstance(given, types.Array) and get_args(kind)[1] in ("number", "row"):
        yield given.dtype


class _Compiled:
    def __init__(self, function: Callable[..., Any], options: dict[str, Any]) -> None:
        self.function, self.options = function, {"error_model": "numpy", **options}
        self.hints = get_type_hints(function, include_extras=True)
        self.kinds = [self.hints[name] for name in inspect.signature(function).parameters]
        self.held: dict[Any, Any] = {}

    def signature(self, number: Any) -> Any:
        return _typed(self.hints["return"], number)(*(_typed(kind, number) for kind in self.kinds))

    def ready(self, number: Any) -> Any:
        if number not in self.held:
            for name in self.function.__code__.co_names:
                called: Any = self.function.__globals__.get(name)
                if hasattr(called, "phase"):
                    called.phase.ready(number)
                elif hasattr(called, "late"):
                    called.late.place(number)
            self.held[number] = self.make(self.signature(number), number)
        return self.held[number]

    def make(self, signature: Any, number: Any) -> Any:
        raise AssertionError


class _Phase(_Compiled):
    def __init__(self, function: Callable[..., Any], options: dict[str, Any]) -> None:
        super().__init__(function, options)
        self.places: dict[Any, ctypes.c_void_p] = {}

    def symbol(self, number: Any) -> str:
        return f"{self.function.__module__}.{self.function.__qualname__}.{number}"

    def place(self, number: Any) -> ctypes.c_void_p:
        if number not in self.places:
            self.places[number] = ctypes.c_void_p()
            llvmlite.binding.add_symbol(f"{self.symbol(number)}.place", ctypes.addressof(self.places[number]))
        return self.places[number]

    def make(self, signature: Any, number: Any) -> Any:
        made = _kept(CFunc(self.function, sigutils.normalize_signature(signature), {}, self.options), self.function)
        with alone(made):
            made.compile()
        llvmlite.binding.add_symbol(self.symbol(number), made.address)
        self.place(number).value = made.address
        return made

    def callee(self, builder: Any, kind: ir.FunctionType, number: Any, late: bool) -> Any:
        if not late:
            return cgutils.get_or_insert_function(builder.module, kind, self.symbol(number))
        name = f"{self.symbol(number)}.place"
        found = builder.module.globals.get(name)
        return builder.load(ir.GlobalVariable(builder.module, kind.as_pointer(), name) if found is None else found)


def compile_unit(**options: Any) -> Callable[[Callable[..., Any]], Any]:

    def make(function: Callable[..., Any]) -> Any:
        compiled = _Phase(function, options)
        called = _called(compiled, late=False)
        called.phase = compiled
        return called

    return make


def lazy_compile_unit(called: Any) -> Any:
    found = _called(called.phase, late=True)
    found.late = called.phase
    return found


def load_late(dtype: DTypeLike, *called: Any) -> None:
    for one in called:
        one.late.ready(_number_of(dtype))


def _called(compiled: _Phase, *, late: bool) -> Any:
    function = compiled.function

    def definition(typing: Any, *given: Any) -> Any:
        number = next(n for kind, one in zip(compiled.kinds, given, strict=True) for n in _numbers(kind, one))
        (compiled.place if late else compiled.ready)(number)
        declared = compiled.signature(number)
        rows = [get_args(kind)[1:] == ("row", 1) for kind in compiled.kinds]
        taken = []
        for one, want, row in zip(given, declared.args, rows, strict=True):
            taken.append(one if row else want)
            if isinstance(one, types.Array) and one != want and not (row and one == one.copy(number, layout="C")):
                raise TypingError(f"{function.__name__}: got an argument of type {one}, expected {want}")

        def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            values = [
                row_of(context, builder, one, value) if row else value
                for one, value, row in zip(signature.args, arguments, rows, strict=True)
            ]
            kind = ir.FunctionType(
                context.get_value_type(declared.return_type), [context.get_value_type(t) for t in declared.args]
            )
            return builder.call(compiled.callee(builder, kind, number, late), values)

        return declared.return_type(*taken), emit

    shape = inspect.signature(function)
    first = inspect.Parameter("typing", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    plain = [p.replace(annotation=inspect.Parameter.empty) for p in shape.parameters.values()]
    definition.__signature__ = inspect.Signature([first, *plain])  # type: ignore[attr-defined]
    definition.__name__, definition.__doc__ = function.__name__, function.__doc__
    return intrinsic(definition)


class CompiledFunction(_Compiled):
    """Compiled function that Python can call."""

    def __init__(self, function: Callable[..., Any], options: dict[str, Any]) -> None:
        super().__init__(function, options)
        self.called = _kept(njit(**self.options, nogil=True)(function), function)

    def make(self, signature: Any, number: Any) -> Any:
        self.called.disable_compile(False)
        with alone(self.called):
            self.called.compile(signature.args)
        self.called.disable_compile()
        return self.called

    def load(self, dtype: DTypeLike) -> Callable[..., Any]:
        return self.ready(_number_of(dtype))


def entry(**options: Any) -> Callable[[Callable[..., Any]], CompiledFunction]:
    return lambda function: CompiledFunction(function, options)


def row_of(context: Any, builder: Any, kind: Any, array: Any) -> Any:
    row_kind = types.Array(kind.dtype, 1, "C")
    whole = context.make_array(kind)(context, builder, array)
    row = context.make_array(row_kind)(context, builder)
    populate_array(row, whole.data, [whole.nitems], [whole.itemsize], whole.itemsize, None)
    return row._getvalue()
