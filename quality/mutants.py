"""Change single numbers in the code and records of rules, and list those whose change alters no result on the frozen tables.

A number is a literal, a constant of a module, or a value in the record of a rule.

python quality/mutants.py [EXPERIMENT ...]           list the numbers whose change alters no result of a rule
python quality/mutants.py --search [EXPERIMENT ...]  add alterations of the frozen tables on which it does
"""

import argparse
import ast
import sys
import types
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from golden_verdicts import act, altered, altered_probe, experiments, probe, read, same, write
from hmmscope import registry
from hmmscope.lab.evidence import effects
from hmmscope.lab.evidence.claim import Claim, claims_of
from hmmscope.lab.evidence.records import RuleParameters
from hmmscope.lab.evidence.rows import Tables
from reach import Site, functions_of, is_constant, literals, node_of, sites


def other(value: Any) -> Any:
    """Return a different value of the same type."""
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


# ---------------------------------------------------------------------------------------------------------------------
# Changing one number


def _function(site: Site) -> types.FunctionType:
    value: Any = sys.modules[site.module]
    for part in site.function.split("."):
        value = vars(value)[part]
        value = value.fget if isinstance(value, property) else value
    return functions_of(value)[0]


@contextmanager
def changed(site: Site) -> Iterator[None]:
    """Give the number another value inside the context."""
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
    node = node_of(site.module, site.function)
    assert node is not None
    literal = literals(node)[site.place]
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
    """Return copies of the claim with one number of its record changed, by the name of the number."""
    found = {
        name: replace(claim, parameters=RuleParameters(claim.parameters, **{name: other(value)}))
        for name, value in claim.parameters.items()
        if is_constant(value)
    }
    if claim.rule is not None:
        found["level"] = replace(claim, level=claim.level * 2)
        for name, value in vars(claim.rule).items():
            found[f"rule.{name}"] = replace(claim, rule=replace(claim.rule, **{name: other(float(value))}))
    return found


def notices(claim: Claim, numbers: list[int], kept: list[dict[str, Any]]) -> bool:
    """Return whether the result of a rule on any of these alterations differs from the stored one."""
    return any(
        not same(one, act(claim, altered_probe(claim.experiment, number)))
        for number, one in zip(numbers, kept, strict=True)
    )


def unnoticed(experiment: str) -> dict[Site, list[Claim]]:
    """Return the numbers whose change alters no result of any rule of an experiment, with their claims."""
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
    """Add alterations of the frozen tables on which changes of numbers alter a result that alter none so far."""
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
    data = read("fixtures", experiment)
    write("fixtures", experiment, data | {"alterations": sorted(chosen)})
    print(f"{experiment}: {sorted(chosen)}; numbers without effect: {', '.join(map(str, left)) or 'none'}", flush=True)
    return sorted(chosen)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--search", action="store_true")
    parser.add_argument("experiments", nargs="*")
    options = parser.parse_args()
    kept = experiments()
    for experiment in options.experiments or kept:
        registry.entries("claim")
        if options.search:
            search(experiment)
        else:
            blind = unnoticed(experiment)
            print(
                f"{experiment}: {len(sites(claims_of(experiment)))} numbers, {len(blind)} without effect: "
                f"{'; '.join(map(str, blind))}",
                flush=True,
            )


if __name__ == "__main__":
    main()
