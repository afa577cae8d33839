"""Mutants of the core: what is drawn, and which tests run the line. Run as a script it makes the maps:

    build/mutants/tests.<folder>.<file>.json    for each line of each module, the tests of a file that run it; see `covering`

A mutant is one change of one place: another comparison, operator, constant or truth value, a statement left out, `break` for
`continue`. Left alone are what is no code (annotations, texts, docstrings), how objects print, loops that are compiled, and
`strict` of `zip`, which asserts what the lines above it have made so.
"""

import ast
import difflib
import hashlib
import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
SRC, TESTS, MAPS = ROOT / "src" / "hmmscope", ROOT / "tests", ROOT / "build" / "mutants"
#: Where the tests are that are asked of each line, whichever package it is in.
ASKED = (
    "storage",
    "sequences",
    "datasets",
    "runs",
    "evidence",
    "processes",
    "inference",
    "training",
    "engine",
    "analysis",
)
ASKED += (
    "emissions",
    "model_page",
    "kernels/test_device_implementations.py",
    "interop/test_interop.py",
    "interop/test_library_models.py",
)
ASKED += ("experiments/test_header_filtering.py", "experiments/test_causal.py", "experiments/test_beliefs.py")
ASKED += (
    "verbs/test_exact_verbs.py",
    "verbs/test_verbs.py",
    "test_defaults.py",
    "../quality/test_surviving_mutants.py",
)
#: Mutants that change nothing that anyone can see, by file and the line as it reads, each with its reason.
EQUIVALENT: dict[tuple[str, str], str] = {
    (
        "sequences/encoding.py",
        "known = names if names is not None else tuple(map(str, range(alphabet.count or 0)))",
    ): "names are None only where a count is given; the 0 is for the checker of types",
    (
        "storage/mapped.py",
        "array: NDArray[Any] = np.lib.format.read_array(stream, allow_pickle=False)",
    ): "what holds objects was refused before: a second wall, which nothing reaches",
    (
        "analysis/strategy_weights.py",
        "if np.abs(np.where(w > 1e-9, rise - 1, np.maximum(rise - 1, 0))).max() < _TOLERANCE:",
    ): "when to stop: the steps that follow stay where it has converged",
    (
        "analysis/strategy_weights.py",
        "while size > 1e-12 and _value(q_N, p_KN, w + size * step) > here + 1e-4 * size * slope + 1e-16:",
    ): "a search on a line: where two sums are equal to the last bit the step is halved once more, within the tolerance",
    **dict.fromkeys(
        (
            ("datasets/layouts.py", 'raise AssertionError("a layout must define has_delimiter")'),
            ("datasets/layouts.py", 'raise AssertionError("a layout must define sequence_lengths")'),
            ("training/compiled_steps.py", "raise AssertionError"),
            ("processes/header_hmms.py", 'raise AssertionError("subclasses define draw")'),
        ),
        "what every kind overrides: for the checker of types, and never reached",
    ),
    (
        "runs/timings.py",
        "taker.take(moments, batch, target, rounds + 1)",
    ): "whose rate is taken, of steps that are timed",
    (
        "processes/observations.py",
        'hint = "; write a missing observation as hmmscope.MISSING" if value < 0 else ""',
    ): "of what is no symbol: 0 is one",
    ("lab/evidence/effects.py", "least = 1.0"): "no p is above 1, so that the first product already is not",
    (
        "analysis/header_inside.py",
        "chosen = (drawn + 2 * (apart >= 0.25) + apart / 8).argmax(1)",
    ): "more than all that is added",
    (
        "analysis/logistic.py",
        "searching = searching & (trial > value + _ARMIJO * step * slope + rounding)",
    ): "a search on a line: another step is taken, to the same minimum",
    (
        "runs/dry_run.py",
        "while steps < 1 or (steps < 50 and time.perf_counter() - begun < _SECONDS):",
    ): "a clock that stands at the limit to the last bit",
    (
        "inference/pools.py",
        "*(self.largest.reshape(-1), self.total.reshape(-1), self.mixed.reshape(-1, num_symbols)),",
    ): "NumPy reads every negative number of a shape alike",
    (
        "inference/loop_inputs.py",
        "many = process.num_states > FEW_FOR_SUMS and len(work.rows) >= SEQUENCES_FOR_SUMS",
    ): "which of two loops is faster; both give the numbers",
    ("processes/hmm_per_sample.py", "_ENTRIES = 2**20"): "how many are drawn together: time and memory, and no number",
}
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
        statement: first and last line of the statement that it is in, or of the head of one that has others in it.
        on_import: whether it is in no function's body: numbers of modules and classes, and what functions get by default.
    """

    file: str
    line: int
    what: str
    source: str
    statement: tuple[int, int]
    on_import: bool


def places(tree: ast.Module) -> Iterator[tuple[ast.AST, ast.AST, str, int | None]]:
    """Each place that can be changed: its parent, the node, the field of the parent, and the place in it."""
    waiting: list[ast.AST] = [tree]
    while waiting:
        parent = waiting.pop()
        if isinstance(parent, ast.FunctionDef):
            compiled = any("jit" in ast.unparse(one) or "overload" in ast.unparse(one) for one in parent.decorator_list)
            if parent.name in _SKIPPED or compiled:
                continue
        if isinstance(parent, ast.keyword) and parent.arg == "strict":
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
        source, what = ast.unparse(ast.fix_missing_locations(tree)), f"{before[:90]} -> {after[:90]}"
        mutants.append(Mutant(path.relative_to(SRC).as_posix(), line, what, source, *_place_of(ast.parse(text), line)))
    return mutants


def _place_of(tree: ast.Module, line: int) -> tuple[tuple[int, int], bool]:
    """The lines of the innermost statement around a line, without statements in it; whether no function's body has it."""
    around = [
        one for one in ast.walk(tree) if isinstance(one, ast.stmt) and one.lineno <= line <= (one.end_lineno or 0)
    ]
    inner = max(around, key=lambda one: (one.lineno, -(one.end_lineno or 0)))
    bodies = [one.body[0].lineno for one in around if isinstance(one, ast.FunctionDef)]
    last = inner.body[0].lineno - 1 if hasattr(inner, "body") else inner.end_lineno or line
    return (inner.lineno, max(inner.lineno, last)), not any(first <= line for first in bodies)


#: Asked of what is run on import too: it reads what functions get that are told nothing.
_ON_IMPORT = {"tests/test_defaults.py::test_numbers_by_default_are_those_that_were": 1.0}


def tests_of(mutant: Mutant) -> dict[str, float]:
    """The tests that run its statement, with their seconds, of its package first; of what is run on import, of its module.

    After them come the others of their files: what a fixture runs for a whole file stands with the first test of it alone.
    """
    found: dict[str, float] = {}
    beside: dict[str, float] = {}
    anywhere: dict[str, float] = {}
    for about in _maps():
        if mutant.file in about["lines"]:
            lines, seconds = about["lines"][mutant.file], about["seconds"]
            now, (first, last) = (SRC / mutant.file).read_text(), mutant.statement
            then = [str(_line_then(about["texts"][mutant.file], now, line)) for line in range(first, last + 1)]
            runs = {name: seconds[name] for line in then for name in lines.get(line, ())}
            found |= runs
            beside |= seconds if runs else {}
            anywhere |= {name: seconds[name] for names in lines.values() for name in names}
    asked = anywhere | _ON_IMPORT if mutant.on_import or not found else found
    own = f"tests/{Path(mutant.file).parent.name}/"  # of its package, which are likeliest to notice it
    first = {name for name in beside | asked if own in name} | _ON_IMPORT.keys()
    return dict(sorted((beside | asked).items(), key=lambda one: (one[0] not in asked, one[0] not in first, one[1])))


@cache
def _maps() -> list[dict[str, Any]]:
    return [json.loads(path.read_bytes()) for path in sorted(MAPS.glob("*.json"))]


@cache
def _line_then(then: str, now: str, line: int) -> int | None:
    """Which line of an older text this one was, if it is in both."""
    if then == now:
        return line
    for one in difflib.SequenceMatcher(None, now.splitlines(), then.splitlines(), autojunk=False).get_matching_blocks():
        if one.a < line <= one.a + one.size:
            return line - one.a + one.b
    return None


def write_maps(folder: str) -> None:
    """Run those tests of a folder under coverage.py that are new or others since their map was made."""
    MAPS.mkdir(parents=True, exist_ok=True)
    place = (TESTS / folder).resolve()
    stale = []
    for path in [place] if place.is_file() else sorted(place.rglob("test_*.py")):
        kept = MAPS / (path.relative_to(ROOT).as_posix().replace("/", ".") + ".json")
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        if not kept.exists() or json.loads(kept.read_bytes())["digest"] != digest:
            stale.append(str(path))
    if stale:
        print(folder, len(stale), flush=True)
        words = [sys.executable, "-m", "pytest", "-n", "0", "-q", "-p", "covering", "--no-header", *stale]
        paths = [str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = os.environ | {"OMP_NUM_THREADS": "1", "MAPS": str(MAPS), "PYTHONPATH": os.pathsep.join(paths)}
        if subprocess.run(words, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL).returncode > 1:
            sys.exit(f"{folder}: its tests could not be run")


if __name__ == "__main__":
    for one in sys.argv[1:] or ASKED:
        write_maps(one)
