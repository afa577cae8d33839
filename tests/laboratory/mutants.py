"""Mutants of the core: what is drawn, and which tests run the line. `python tests/laboratory/mutants.py` makes the maps.

    build/mutants/<package>.json    for each file of a package and each line of it, the tests that run it

A mutant is one change of one place: another comparison, operator, constant or truth value, a statement left out, `break` for
`continue`. Left alone are what is no code (annotations, texts, docstrings), how objects print, and loops that are compiled.
"""

import ast
import json
import os
import random
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).parents[2]
SRC, TESTS, MAPS = ROOT / "src" / "hmmscope", ROOT / "tests", ROOT / "build" / "mutants"
#: Packages of the core, and the folders of tests that are asked of each line.
PACKAGES: dict[str, tuple[str, ...]] = {
    "analysis": ("analysis",),
    "runs": ("runs",),
    "storage": ("storage",),
    "sequences": ("sequences",),
    "inference": ("inference",),
    "processes": ("processes",),
    "corpora": ("corpora",),
    "training": ("training", "engine"),
    "lab/evidence": ("evidence",),
}
#: Mutants that change nothing that anyone can see, by file and the line as it reads, each with its reason.
EQUIVALENT: dict[tuple[str, str], str] = {}
_SWAPS: dict[type[ast.AST], type[ast.AST]] = {
    **{ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq},
    **{ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And},
    **{
        ast.Add: ast.Sub,
        ast.Sub: ast.Add,
        ast.Mult: ast.Div,
        ast.Div: ast.Mult,
        ast.FloorDiv: ast.Mult,
        ast.Pow: ast.Mult,
    },
    **{ast.Break: ast.Continue, ast.Continue: ast.Break},
}
_SKIPPED = ("__repr__", "_repr_html_", "__str__", "plot")


@dataclass(frozen=True)
class Mutant:
    """One change of one place.

    Attributes:
        file: below src/hmmscope.
        line: where.
        what: the line as it reads, and what it becomes.
        source: the whole file with the change.
    """

    file: str
    line: int
    what: str
    source: str


def places(tree: ast.Module) -> Iterator[tuple[ast.AST, ast.AST, str, int | None]]:
    """Each place that can be changed: its parent, the node, the field of the parent, and the place in it."""
    waiting: list[ast.AST] = [tree]
    while waiting:
        parent = waiting.pop()
        if isinstance(parent, ast.FunctionDef):
            compiled = any("jit" in ast.unparse(one) or "overload" in ast.unparse(one) for one in parent.decorator_list)
            if parent.name in _SKIPPED or compiled:
                continue
        for field, value in ast.iter_fields(parent):
            if field in ("annotation", "returns", "decorator_list", "type_params"):
                continue
            for at, node in enumerate(value) if isinstance(value, list) else ((None, value),):
                if isinstance(node, ast.AST):
                    waiting.append(node)
                    if _changed(node, random.Random(0)) is not None:
                        yield parent, node, field, at


def _changed(node: ast.AST, rng: random.Random) -> ast.AST | None:
    """Another node in its place, or None where nothing is changed."""
    if type(node) in _SWAPS:
        return _SWAPS[type(node)]()
    if isinstance(node, ast.Constant) and isinstance(node.value, bool):
        return ast.Constant(not node.value)
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        return ast.Constant(rng.choice([node.value + 1, node.value * 2 or 1]))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub):
        return node.operand
    is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    if isinstance(node, ast.Expr | ast.AugAssign | ast.Raise) and not is_text:
        return ast.Pass()
    return None


def drawn(package: str, number: int, rng: random.Random) -> list[Mutant]:
    """So many mutants of a package, each place being as likely."""
    found: list[tuple[Path, int]] = []
    for path in sorted((SRC / package).glob("*.py")):
        found += [(path, at) for at, _ in enumerate(places(ast.parse(path.read_text())))]
    mutants = []
    for path, at in rng.sample(found, min(number, len(found))):
        text = path.read_text()
        tree = ast.parse(text)
        parent, node, field, place = list(places(tree))[at]
        shown = node if hasattr(node, "lineno") else parent
        line = shown.lineno  # type: ignore[attr-defined]
        new = _changed(node, rng)
        assert new is not None
        before = ast.unparse(parent if not isinstance(node, ast.stmt) else node).splitlines()[0]
        if place is None:
            setattr(parent, field, new)
        else:
            getattr(parent, field)[place] = new
        after = ast.unparse(parent if not isinstance(node, ast.stmt) else new).splitlines()[0]
        source = ast.unparse(ast.fix_missing_locations(tree))
        mutants.append(Mutant(path.relative_to(SRC).as_posix(), line, f"{before[:90]} -> {after[:90]}", source))
    return mutants


def tests_of(package: str, mutant: Mutant) -> list[str]:
    """The tests that run its line, as the map of the package says; of a place that is run on import, those of its file."""
    lines: dict[str, list[str]] = json.loads((MAPS / f"{package.replace('/', '-')}.json").read_bytes()).get(
        mutant.file, {}
    )
    return lines.get(str(mutant.line)) or sorted({one for tests in lines.values() for one in tests})


def write_map(package: str) -> None:
    """Run the tests of a package once under coverage.py, and write down which of them run which line."""
    import coverage

    MAPS.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as place:
        rc = Path(place) / "rc"
        rc.write_text(f"[run]\nsource = {SRC / package}\ndynamic_context = test_function\ndata_file = {place}/data\n")
        words = [sys.executable, "-m", "coverage", "run", f"--rcfile={rc}", "-m", "pytest", "-n", "0", "-q"]
        words += [*(str(TESTS / name) for name in PACKAGES[package]), "--basetemp", f"{place}/tests"]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        words += ["--junitxml", f"{place}/x.xml"]
        ended = subprocess.run(words, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL)
        if ended.returncode > 1:
            sys.exit(f"{package}: its tests could not be run")
        cases = ElementTree.parse(f"{place}/x.xml").iter("testcase")
        failed = {case.attrib["name"].partition("[")[0] for case in cases if case.find("failure") is not None}
        data = coverage.CoverageData(f"{place}/data")
        data.read()
        files = {path.stem: path.relative_to(ROOT).as_posix() for path in TESTS.rglob("test_*.py")}
        found: dict[str, dict[str, list[str]]] = defaultdict(dict)
        for file in data.measured_files():
            for line, contexts in data.contexts_by_lineno(file).items():
                named = (context.split(".") for context in contexts if context)
                tests = {
                    f"{files[parts[0]]}::{parts[-1]}"
                    for parts in named
                    if parts[0] in files and parts[-1] not in failed
                }
                found[Path(file).relative_to(SRC).as_posix()][str(line)] = sorted(tests)
    (MAPS / f"{package.replace('/', '-')}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    for one in sys.argv[1:] or PACKAGES:
        if not (MAPS / f"{one.replace('/', '-')}.json").exists():
            print(one, flush=True)
            write_map(one)
