"""How annotations of shapes and types are executed while tests run."""

import dataclasses
import functools
import inspect
import types
import typing
from collections.abc import Callable
from typing import Any

import beartype
import jaxtyping

_jaxtyped = jaxtyping.jaxtyped
_in_a_scope = _jaxtyped("context")
_once = beartype.beartype(conf=beartype.BeartypeConf(violation_type=jaxtyping.TypeCheckError))


def executed(annotated: Any = None, **_: Any) -> Any:
    """Takes the place of `jaxtyping.jaxtyped`: arguments are checked once and not twice, and bound where shapes are named.
    What checks them is made at the first call: most functions are never called in the process at hand.

    Not of a function inside another one, which would be compiled anew each time it is made.
    """
    if annotated is None:
        return executed
    if isinstance(annotated, type):
        if dataclasses.is_dataclass(annotated) and "__init__" in vars(annotated):
            annotated.__init__ = _checked(annotated.__init__)
        return annotated
    return annotated if "<locals>" in annotated.__qualname__ else _checked(annotated)


def _checked(function: Callable[..., Any]) -> Callable[..., Any]:
    if inspect.isgeneratorfunction(function):  # its body, where beartype checks, runs in the scopes of others
        return _jaxtyped(function, typechecker=_once)

    @functools.cache
    def checking() -> tuple[Callable[..., Any], bool]:
        hints = _hints(function)
        return _once(_with(function, hints)), any(map(_names_shapes, hints.values()))

    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        if jaxtyping.config.jaxtyping_disable:
            return function(*args, **kwargs)
        check, scoped = checking()
        if not scoped:
            return check(*args, **kwargs)
        with _in_a_scope:
            return check(*args, **kwargs)

    return wrapped


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    """Annotations, resolved; those that only a type checker can resolve are anything."""
    hints = {}
    for name, hint in function.__annotations__.items():
        lone = types.SimpleNamespace(__annotations__={name: hint}, __module__=function.__module__)
        try:
            hints |= typing.get_type_hints(lone, function.__globals__, include_extras=True)
        except NameError:
            hints[name] = Any
    return hints


def _with(function: Any, hints: dict[str, Any]) -> Callable[..., Any]:
    """The same function under other annotations."""
    twin = types.FunctionType(
        function.__code__, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    twin.__kwdefaults__, twin.__annotations__ = function.__kwdefaults__, hints
    twin.__qualname__, twin.__module__ = function.__qualname__, function.__module__
    return twin


def _names_shapes(hint: Any) -> bool:
    return getattr(hint, "__module__", "") == "jaxtyping" or any(map(_names_shapes, typing.get_args(hint)))
