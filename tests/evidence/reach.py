"""Which numbers a rule reaches: literals of its functions, constants of their modules, the laws that all verdicts have."""

import ast
import inspect
import sys
import types
from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from hmmscope.lab.evidence import effects
from hmmscope.lab.evidence.claim import Claim

#: What rules have in common with pages and with each other, which is no part of one.
_LAWS = "hmmscope.lab.evidence."


@dataclass(frozen=True)
class Site:
    """A number in the code of rules.

    Attributes:
        module: where it stands.
        function: qualified name of the function; empty of a constant of the module.
        place: number of the literal in the function, or the name of the constant.
        line: for a reader.
        value: as it is.
    """

    module: str
    function: str
    place: int | str
    line: int = field(compare=False)
    value: Any = field(compare=False)

    def __str__(self) -> str:
        short = self.module.removeprefix("hmmscope.")
        return f"{short}:{self.line} {self.function or self.place} {self.value!r}"


def is_constant(value: Any) -> bool:
    if isinstance(value, bool):
        return False
    if isinstance(value, Mapping):
        return bool(value) and all(is_constant(one) for one in value.values())
    if isinstance(value, tuple | list):
        return bool(value) and all(isinstance(one, int | float | str) for one in value)
    return isinstance(value, int | float)


# ---------------------------------------------------------------------------------------------------------------------
# Where numbers are


@cache
def _tree(module: str) -> ast.Module:
    return ast.parse(inspect.getsource(sys.modules[module]))


@cache
def node_of(module: str, qualname: str) -> ast.FunctionDef | None:
    body: list[ast.stmt] = _tree(module).body
    for part in qualname.split("."):
        found = [one for one in body if isinstance(one, ast.FunctionDef | ast.ClassDef) and one.name == part]
        if not found:
            return None
        last = found[-1]
        body = last.body
    return last if isinstance(last, ast.FunctionDef) else None


def literals(node: ast.AST) -> list[ast.Constant]:
    """Numbers of a function; not in what is only said, nor places in a list."""
    found: list[ast.Constant] = []
    left: list[ast.AST] = [node]
    while left:
        one = left.pop()
        if isinstance(one, ast.JoinedStr):
            continue
        if isinstance(one, ast.Constant) and type(one.value) in (int, float):
            found.append(one)
        skipped = {"decorator_list", "returns", "annotation"} | ({"slice"} if isinstance(one, ast.Subscript) else set())
        for name, child in ast.iter_fields(one):
            if name not in skipped:
                children = child if isinstance(child, list) else [child]
                left += [each for each in children if isinstance(each, ast.AST)]
    return sorted(found, key=lambda one: (one.lineno, one.col_offset))


def _names(code: types.CodeType) -> set[str]:
    inner = (const for const in code.co_consts if isinstance(const, types.CodeType))
    return {*code.co_names, *code.co_freevars}.union(*(_names(const) for const in inner))


def functions_of(value: Any, named: Container[str] | None = None) -> list[types.FunctionType]:
    """What a name of a module stands for: a function, or the methods of a class.

    Of static and class methods only those that are `named`; all by default.
    """
    if isinstance(value, Claim):
        value = value.measure
    value = value.__func__ if isinstance(value, staticmethod | classmethod) else value
    value = inspect.unwrap(value) if callable(value) and not isinstance(value, type) else value
    if isinstance(value, types.FunctionType):
        return [value]
    if isinstance(value, type):
        found = []
        for name, one in vars(value).items():
            if isinstance(one, types.FunctionType | property):
                found += functions_of(one.fget if isinstance(one, property) else one)
            elif isinstance(one, staticmethod | classmethod) and (named is None or name in named):
                found += [f for f in functions_of(one) if f.__module__ == value.__module__]
        return found
    return []


@cache
def reached(measure: Callable[..., Any]) -> tuple[dict[str, types.FunctionType], dict[tuple[str, str], Any]]:
    """Functions by qualified name and constants by (module, name) that a rule's function reaches."""
    functions: dict[str, types.FunctionType] = {}
    constants: dict[tuple[str, str], Any] = {}
    left = functions_of(measure)
    packages = {"hmmscope", "hmmscope_papers", "hmmscope_studies", *(one.__module__.partition(".")[0] for one in left)}
    while left:
        one = left.pop()
        key = f"{one.__module__}:{one.__qualname__}"
        outside = one.__module__.partition(".")[0] not in packages or one.__module__.startswith(_LAWS)
        if key in functions or outside:
            continue
        functions[key] = one
        named = _names(one.__code__)
        for module, name, value in _values_of(one, named):
            if is_constant(value):
                constants[_home(module, name), name] = value
            else:
                left += functions_of(value, named)
    return functions, constants


def _values_of(one: types.FunctionType, named: set[str]) -> Iterator[tuple[str, str, Any]]:
    """Yield module, name and value of each global that a function names, also as an attribute of a module."""
    for name in named:
        value = one.__globals__.get(name)
        if isinstance(value, types.ModuleType):
            own = value.__name__.partition(".")[0] in ("hmmscope", "hmmscope_papers", "hmmscope_studies")
            for attribute in named if own else ():
                if (found := getattr(value, attribute, None)) is not None and not isinstance(found, types.ModuleType):
                    yield value.__name__, attribute, found
        else:
            yield one.__module__, name, value


def _home(module: str, name: str) -> str:
    """The module that a name of a module was defined in."""
    for node in ast.walk(_tree(module)):  # front doors name their homes for type checkers
        if isinstance(node, ast.ImportFrom) and node.module in sys.modules:
            for alias in node.names:
                if (alias.asname or alias.name) == name and node.module in sys.modules:
                    return _home(node.module, alias.name)
    return module


def laws() -> list[types.FunctionType]:
    """The functions of every verdict, whichever rule asks for them."""
    from hmmscope.lab.evidence import rows, verdicts

    found: list[types.FunctionType] = []
    for module in (effects, verdicts, rows):
        for value in vars(module).values():
            if getattr(value, "__module__", None) == module.__name__:
                found += functions_of(value)
    return found


def sites(claims: list[Claim]) -> dict[Site, list[Claim]]:
    """The numbers that rules reach, each with the rules; not those of the laws of verdicts, see `law_sites`."""
    found: dict[Site, list[Claim]] = {}
    own = {f"{one.__module__}:{one.__qualname__}" for one in laws()}
    for claim in claims:
        functions, constants = reached(claim.measure)
        for key in sorted(functions):
            module, function = key.split(":")
            node = node_of(module, function) if key not in own else None
            for place, literal in enumerate(literals(node) if node else ()):
                found.setdefault(Site(module, function, place, literal.lineno, literal.value), []).append(claim)
        for module, name in sorted(constants):
            value = vars(sys.modules[module])[name]  # as it is now
            if not module.startswith(_LAWS):
                line = next(
                    (
                        n.lineno
                        for n in _tree(module).body
                        if isinstance(n, ast.Assign | ast.AnnAssign) and name in ast.unparse(n).split("=")[0]
                    ),
                    0,
                )
                frozen = tuple(value) if isinstance(value, list) else value
                site = Site(module, "", name, line, frozen)
                found.setdefault(site, []).append(claim)
    return found


def numbers_of(claim: Claim) -> list[float]:
    """The numbers that a rule reaches, without names and places: constants and literals that are no plain counts."""
    found: list[float] = []
    left = [site.value for site in sites([claim])]
    while left:
        one = left.pop()
        if isinstance(one, Mapping):
            left += one.values()
        elif isinstance(one, tuple | list):
            left += one
        elif isinstance(one, float) and abs(one) not in (0.0, 0.5, 1.0, 2.0):
            found.append(one)
    return sorted(found)


def law_sites() -> list[Site]:
    """The numbers of the laws of verdicts: of intervals, rules and gates."""
    found = []
    for function in laws():
        node = node_of(function.__module__, function.__qualname__)
        for place, literal in enumerate(literals(node) if node else ()):
            found.append(Site(function.__module__, function.__qualname__, place, literal.lineno, literal.value))
    return sorted(set(found), key=str)
