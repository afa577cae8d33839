"""The code behind a number, without its sentences: what the versions of rules and of measurements are digests of."""

import ast
import functools
import inspect
import textwrap
import types
from collections.abc import Callable
from typing import Any


def code_behind(function: Callable[..., Any], follow: Callable[[str], bool]) -> str:
    """The syntax of a function and of the functions that it reaches by name, without docstrings and sentences.

    Args:
        function: of a module, or a method, whose class is searched for names too.
        follow: whether functions of a module of that name are reached.
    """
    owner = getattr(function, "__self__", None)
    found: dict[str, types.FunctionType] = {}
    left: list[Any] = [inspect.unwrap(getattr(function, "__func__", function))]
    while left:
        one = left.pop()
        key = f"{one.__module__}.{one.__qualname__}"
        if key in found:
            continue
        found[key] = one
        for name in _names(one.__code__):
            other = one.__globals__.get(name, vars(type(owner)).get(name))
            if isinstance(other, types.FunctionType) and follow(other.__module__):
                left.append(other)
    return "\n".join(_syntax(found[key]) for key in sorted(found))


def _names(code: types.CodeType) -> set[str]:
    inner = (const for const in code.co_consts if isinstance(const, types.CodeType))
    return set(code.co_names).union(*(_names(const) for const in inner))


@functools.cache
def _syntax(function: types.FunctionType) -> str:
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, SyntaxError):  # no source, as in a console
        return function.__code__.co_code.hex()
    return ast.dump(_Bare().visit(tree))


class _Bare(ast.NodeTransformer):
    """Removes what is only said."""

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.AST:
        return ast.Constant(value="")

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        return ast.Constant(value="") if isinstance(node.value, str) and " " in node.value else node
