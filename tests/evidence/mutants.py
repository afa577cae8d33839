"""Changes of one number that verdicts depend on, to see which rules are marked: literals, constants of modules, records.

python tests/evidence/mutants.py [EXPERIMENT ...]           which numbers no act of a rule depends on
python tests/evidence/mutants.py --search [EXPERIMENT ...]  add alterations of the frozen tables on which one does
"""

import argparse
import ast
import inspect
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from acts import act, altered, altered_probe, probe, read, same, write
from hmmscope import registry
from hmmscope.evidence import effects
from hmmscope.evidence.claims import Claim, claims_of
from hmmscope.evidence.records import Numbers
from hmmscope.evidence.rows import Tables

#: Whose functions a rule is made of.
_FOLLOWED = ("hmmscope.experiments", "hmmscope.evidence", "hmmscope.analysis")
#: Instruments and pages: what they have in common with rules is that they import each other.
_NOT_FOLLOWED = ("hmmscope.evidence.figures", "hmmscope.evidence.panels", "hmmscope.evidence.ledger")


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
    line: int
    value: Any

    def __str__(self) -> str:
        short = self.module.removeprefix("hmmscope.")
        return f"{short}:{self.line} {self.function or self.place} {self.value!r}"


def other(value: Any) -> Any:
    """Another value of the same kind."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    if isinstance(value, float):
        return value * 1.25 if value else 0.125
    if isinstance(value, Mapping):
        first = next(iter(value))
        return {**value, first: other(value[first])}
    if isinstance(value, tuple | list):
        return value[:-1] if len(value) > 1 else value * 2
    raise TypeError(type(value))


def _is_constant(value: Any) -> bool:
    if isinstance(value, bool):
        return False
    if isinstance(value, Mapping):
        return bool(value) and all(_is_constant(one) for one in value.values())
    if isinstance(value, tuple | list):
        return bool(value) and all(isinstance(one, int | float | str) for one in value)
    return isinstance(value, int | float)


# ---------------------------------------------------------------------------------------------------------------------
# Where numbers are


@cache
def _tree(module: str) -> ast.Module:
    return ast.parse(inspect.getsource(sys.modules[module]))


@cache
def _node(module: str, qualname: str) -> ast.FunctionDef | None:
    body: list[ast.stmt] = _tree(module).body
    for part in qualname.split("."):
        found = [one for one in body if isinstance(one, ast.FunctionDef | ast.ClassDef) and one.name == part]
        if not found:
            return None
        last = found[-1]
        body = last.body
    return last if isinstance(last, ast.FunctionDef) else None


def _literals(node: ast.AST) -> list[ast.Constant]:
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


def _functions(value: Any) -> list[types.FunctionType]:
    """What a name of a module stands for: a function, or the methods of a class."""
    if isinstance(value, Claim):
        value = value.measure
    value = inspect.unwrap(value) if callable(value) and not isinstance(value, type) else value
    if isinstance(value, types.FunctionType):
        return [value]
    if isinstance(value, type):
        return [
            f
            for one in vars(value).values()
            for f in _functions(one.fget if isinstance(one, property) else one)
            if isinstance(one, types.FunctionType | property)
        ]
    return []


@cache
def reached(measure: Callable[..., Any]) -> tuple[dict[str, types.FunctionType], dict[tuple[str, str], Any]]:
    """Functions by qualified name and constants by (module, name) that a rule's function reaches."""
    functions: dict[str, types.FunctionType] = {}
    constants: dict[tuple[str, str], Any] = {}
    left = _functions(measure)
    while left:
        one = left.pop()
        key = f"{one.__module__}:{one.__qualname__}"
        if key in functions or not one.__module__.startswith(_FOLLOWED) or one.__module__.startswith(_NOT_FOLLOWED):
            continue
        functions[key] = one
        for name in _names(one.__code__):
            value = one.__globals__.get(name)
            if _is_constant(value):
                constants[_home(one.__module__, name), name] = value
            else:
                left += _functions(value)
    return functions, constants


def _home(module: str, name: str) -> str:
    """The module that a name of a module was defined in."""
    for node in _tree(module).body:
        if isinstance(node, ast.ImportFrom) and node.module in sys.modules:
            for alias in node.names:
                if (alias.asname or alias.name) == name and node.module.startswith("hmmscope"):
                    return _home(node.module, alias.name)
    return module


def laws() -> list[types.FunctionType]:
    """The functions of every verdict, whichever rule asks for them."""
    from hmmscope.evidence import rows, verdicts

    found: list[types.FunctionType] = []
    for module in (effects, verdicts, rows):
        for value in vars(module).values():
            if getattr(value, "__module__", None) == module.__name__:
                found += _functions(value)
    return found


def sites(claims: list[Claim]) -> dict[Site, list[Claim]]:
    """The numbers that rules reach, each with the rules; not those of the laws of verdicts, see `law_sites`."""
    found: dict[Site, list[Claim]] = {}
    own = {f"{one.__module__}:{one.__qualname__}" for one in laws()}
    for claim in claims:
        functions, constants = reached(claim.measure)
        for key in sorted(functions):
            module, function = key.split(":")
            node = _node(module, function) if key not in own else None
            for place, literal in enumerate(_literals(node) if node else ()):
                found.setdefault(Site(module, function, place, literal.lineno, literal.value), []).append(claim)
        for (module, name), value in sorted(constants.items()):
            if not module.startswith(("hmmscope.evidence.effects", "hmmscope.evidence.verdicts")):
                line = next(
                    (
                        n.lineno
                        for n in _tree(module).body
                        if isinstance(n, ast.Assign | ast.AnnAssign) and name in ast.unparse(n).split("=")[0]
                    ),
                    0,
                )
                frozen = tuple(value) if isinstance(value, list) else value
                site = Site(module, "", name, line, str(frozen) if isinstance(frozen, Mapping) else frozen)
                found.setdefault(site, []).append(claim)
    return found


def law_sites() -> list[Site]:
    """The numbers of the laws of verdicts: of intervals, rules and gates."""
    found = []
    for function in laws():
        node = _node(function.__module__, function.__qualname__)
        for place, literal in enumerate(_literals(node) if node else ()):
            found.append(Site(function.__module__, function.__qualname__, place, literal.lineno, literal.value))
    return sorted(set(found), key=str)


# ---------------------------------------------------------------------------------------------------------------------
# Changing one


def _function(site: Site) -> types.FunctionType:
    value: Any = sys.modules[site.module]
    for part in site.function.split("."):
        value = vars(value)[part]
        value = value.fget if isinstance(value, property) else value
    return _functions(value)[0]


@contextmanager
def changed(site: Site) -> Iterator[None]:
    """The number is another one in here."""
    effects._quantile.cache_clear()
    if isinstance(site.place, str):
        before = vars(sys.modules[site.module])[site.place]
        places = [
            m
            for name, m in list(sys.modules.items())
            if name.startswith("hmmscope") and vars(m).get(site.place) is before
        ]
        for module in places:
            setattr(module, site.place, other(before))
        try:
            yield
        finally:
            for module in places:
                setattr(module, site.place, before)
            effects._quantile.cache_clear()
        return
    function = _function(site)
    node = _node(site.module, site.function)
    assert node is not None
    literal = _literals(node)[site.place]
    code, defaults, keywords = function.__code__, function.__defaults__, function.__kwdefaults__
    literal.value, kept = other(literal.value), node.decorator_list
    try:
        node.decorator_list = []
        made: dict[str, Any] = {}
        exec(compile(ast.Module([node], []), site.module, "exec"), function.__globals__, made)
        new = made[node.name]
        function.__code__, function.__defaults__, function.__kwdefaults__ = (
            new.__code__,
            new.__defaults__,
            new.__kwdefaults__,
        )
        yield
    finally:
        literal.value, node.decorator_list = site.value, kept
        function.__code__, function.__defaults__, function.__kwdefaults__ = code, defaults, keywords
        effects._quantile.cache_clear()


def of_record(claim: Claim) -> dict[str, Claim]:
    """The claim with each number of its record changed, by the name of the number."""
    found = {
        name: replace(claim, numbers=Numbers(claim.numbers, **{name: other(value)}))
        for name, value in claim.numbers.items()
        if _is_constant(value)
    }
    if claim.rule is not None:
        found["level"] = replace(claim, level=claim.level * 2)
        for name, value in vars(claim.rule).items():
            found[f"rule.{name}"] = replace(claim, rule=replace(claim.rule, **{name: other(float(value))}))
    return found


def notices(claim: Claim, numbers: list[int], kept: list[dict[str, Any]]) -> bool:
    """Whether an act of a rule on these alterations is not the one kept, in the order in which that is soonest seen."""
    return any(
        not same(one, act(claim, altered_probe(claim.experiment, number)))
        for number, one in zip(numbers, kept, strict=True)
    )


def unnoticed(experiment: str) -> dict[Site, list[Claim]]:
    """The numbers of which no act of any rule of an experiment depends."""
    found = {}
    numbers = list(probe(experiment)[1])
    claims = claims_of(experiment)
    now = {one.name: [act(one, altered_probe(experiment, number)) for number in numbers] for one in claims}
    for site, own in sites(claims).items():
        with changed(site):
            blind = [one for one in own if not notices(one, numbers, now[one.name])]
        if len(blind) == len(own):
            found[site] = blind
    return found


def search(experiment: str, tries: int = 40) -> list[int]:
    """Alterations on which a number is noticed that the present ones do not show; added to the frozen tables."""
    tables, numbers = probe(experiment)
    left, chosen = unnoticed(experiment), list(numbers)
    for number in range(1, tries):
        if not left:
            break
        if number in chosen:
            continue
        one_more: Tables = altered(tables, number)
        now = {claim.name: act(claim, one_more) for claim in claims_of(experiment)}
        seen = []
        for site, own in left.items():
            with changed(site):
                if any("raises" not in now[c.name] and not same(now[c.name], act(c, one_more)) for c in own):
                    seen.append(site)
        if seen:
            chosen.append(number)
            left = {site: own for site, own in left.items() if site not in seen}
    data = read("probes", experiment)
    write("probes", experiment, data | {"alterations": sorted(chosen)})
    print(f"{experiment}: {sorted(chosen)}; not noticed: {', '.join(map(str, left)) or 'none'}", flush=True)
    return sorted(chosen)


def main() -> None:
    """See above."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--search", action="store_true")
    parser.add_argument("experiments", nargs="*")
    options = parser.parse_args()
    kept = sorted(path.name.removesuffix(".json.xz") for path in (Path(__file__).parent / "probes").glob("*.json.xz"))
    for experiment in options.experiments or kept:
        registry.entries("claim")
        if options.search:
            search(experiment)
        else:
            blind = unnoticed(experiment)
            print(
                f"{experiment}: {len(sites(claims_of(experiment)))} numbers, not noticed {len(blind)}: "
                f"{'; '.join(map(str, blind))}",
                flush=True,
            )


if __name__ == "__main__":
    main()
