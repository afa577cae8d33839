"""Draw mutants of the source and find the tests that run their lines. Run as a script, it writes the maps:

    build/mutants/tests.<folder>.<file>.json    for each line of each module, the tests of a file that run it; see `covering`

A mutant is one small change of the source: another comparison, operator, constant or truth value, a removed statement, or
`break` in place of `continue`. Annotations, texts, docstrings, methods that print objects, and compiled loops are not
changed. Neither is `strict` of `zip`, because it only asserts what the lines above it ensure, nor is the 1 of `reshape(-1)`,
because NumPy treats every negative size alike.
"""

import ast
import difflib
import hashlib
import json
import os
import random
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
SRC, TESTS, MAPS = ROOT / "src" / "hmmscope", ROOT / "tests", ROOT / "build" / "mutants"
#: Folders and files below tests/ with the tests that are mapped, for lines in any package.
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
    "../quality/test_limits.py",
    "../quality/test_small_cases.py",
    "../quality/test_small_inference.py",
    "../quality/test_surviving_mutants.py",
    "../quality/test_drawn_plots.py",
    "../quality/test_kept_answers.py",
)
#: Lines with mutants that change no result (equivalent mutants), by file and text of the line, with the reason.
EQUIVALENT: dict[tuple[str, str], str] = {
    (
        "sequences/encoding.py",
        "known = names if names is not None else tuple(map(str, range(alphabet.count or 0)))",
    ): "names are None only if a count is given; the 0 is there for the type checker",
    (
        "storage/mapped.py",
        "array: NDArray[Any] = np.lib.format.read_array(stream, allow_pickle=False)",
    ): "arrays of objects are refused earlier, so this second check is never reached",
    (
        "analysis/strategy_weights.py",
        "if np.abs(np.where(w > 1e-9, rise - 1, np.maximum(rise - 1, 0))).max() < _TOLERANCE:",
    ): "a stopping rule: further steps do not move from the minimum",
    (
        "analysis/strategy_weights.py",
        "while size > 1e-12 and _value(q_N, p_KN, w + size * step) > here + 1e-4 * size * slope + 1e-16:",
    ): "a line search: if two sums are equal to the last bit, one more halving stays within the tolerance",
    (
        "analysis/initialization.py",
        "if trained and changes[0][0] * inner <= 0:",
    ): "a change of zero is the smaller one, which is always allowed",
    (
        "analysis/ngrams.py",
        "others[0:1]",
    ): "only whether samples can be drawn is asked, so their number does not matter",
    (
        "inference/fit_durations.py",
        "return best if _score(best, counts) > _score(before, counts) else before",
    ): "if both are equally likely to the last bit, either is a maximum",
    (
        "inference/constraints.py",
        "kept = np.where(gone, -1, self.groups)",
    ): "the next line numbers the groups again, and marks all others by -1",
    (
        "analysis/strategy_weights.py",
        "w = 0.99 * start + 0.01 / len(start)",
    ): "where the search for the minimum of a convex function begins; it reaches the minimum from any start",
    **dict.fromkeys(
        (
            ("datasets/layouts.py", 'raise AssertionError("a layout must define has_delimiter")'),
            ("datasets/layouts.py", 'raise AssertionError("a layout must define sequence_lengths")'),
            ("training/compiled_steps.py", "raise AssertionError"),
            ("processes/header_hmms.py", 'raise AssertionError("subclasses define draw")'),
        ),
        "every subclass overrides it; it is there for the type checker and never reached",
    ),
    (
        "runs/timings.py",
        "taker.take(moments, batch, target, rounds + 1)",
    ): "the step number sets the learning rate, and only the time of the step is used",
    (
        "processes/observations.py",
        'hint = "; write a missing observation as hmmscope.MISSING" if value < 0 else ""',
    ): "the hint is about values that are not symbols, and 0 is a symbol",
    (
        "lab/evidence/effects.py",
        "least = 1.0",
    ): "the first product is a p-value, which is at most 1",
    (
        "analysis/header_inside.py",
        "chosen = (drawn + 2 * (apart >= 0.25) + apart / 8).argmax(1)",
    ): "the constant only has to exceed the sum of the other terms",
    (
        "analysis/logistic.py",
        "searching = searching & (trial > value + _ARMIJO * step * slope + rounding)",
    ): "a line search: another step reaches the same minimum",
    (
        "runs/dry_run.py",
        "while steps < 1 or (steps < 50 and time.perf_counter() - begun < _SECONDS):",
    ): "differs only if the clock equals the limit to the last bit",
    (
        "inference/pools.py",
        "*(self.largest.reshape(-1), self.total.reshape(-1), self.mixed.reshape(-1, num_symbols)),",
    ): "NumPy treats every negative size in a shape alike",
    (
        "inference/ragged.py",
        "lengths, num_symbols = known if lengths is None else lengths, alphabet.count or 0",
    ): "the alphabet of a process has a count; the 0 is there for the type checker",
    **dict.fromkeys(
        (
            ("inference/fit_inputs.py", "_MOST_PAIRS = 2**22"),
            ("analysis/curves.py", "_LAWS = 2**23"),
            ("analysis/ngrams.py", "_COUNTS = 2**22"),
            (
                "analysis/curves.py",
                "batch_size = max(1, min(BATCH, _LAWS // (asked.num_outputs * len(asked.token_positions)))) "
                "if given else BATCH",
            ),
        ),
        "the number of entries computed at once changes time and memory, not results",
    ),
    (
        "inference/loop_inputs.py",
        "many = process.num_states > FEW_FOR_SUMS and len(work.rows) >= SEQUENCES_FOR_SUMS",
    ): "selects the faster of two loops with equal results",
    (
        "analysis/logistic.py",
        "_STEPS_BEFORE_BLOCKS, _MAX_BLOCK_NUMBERS = 5, 2**22",
    ): "they select a faster way to the same minimum",
    (
        "inference/loop_inputs.py",
        "return process.num_states <= FEW_STATES and side_by_side(process, work)",
    ): "selects the faster of two loops with equal results",
    (
        "runs/compile_ahead.py",
        'spec, device="cpu", engine="compiled", batch_size=1, accumulation_steps=1, num_trajectories=0, curriculum=()',
    ): "the step only compiles the loops, which any recipe does",
    (
        "runs/compile_ahead.py",
        "engine.take(moments, dataset[0:1], target, 0)",
    ): "the step only compiles the loops, and its number sets the learning rate",
    (
        "inference/counts.py",
        "each = 8 * process.num_states * int(work.lengths.max(initial=1))",
    ): "the number of sequences counted at once changes time and memory, not results",
    (
        "analysis/belief_space.py",
        "_, sizes, directions = torch.linalg.svd(moved, full_matrices=False)",
    ): "the next line cuts off the further directions",
    (
        "processes/hmm_per_sample.py",
        "_ENTRIES = 2**20",
    ): "the number of entries drawn at once changes time and memory, not results",
    (
        "inference/device.py",
        "a_component = batch * (4 * size * states + time * (8 + size + size * symbols) + 8 * 4 + 16 * symbols)",
    ): "an estimate of memory; it only changes how many components are filtered at once",
    (
        "inference/mixture_posterior.py",
        "log_weight_MB = torch.where(possible_B, log_weight_MB - total_B.where(possible_B, 0.0), -torch.inf)",
    ): "where the observations are impossible, the outer `where` replaces the difference",
    (
        "inference/count_mixtures.py",
        "logs, means, block = np.empty(len(factors)), np.empty_like(factors), max(1, BLOCK // len(self.norms))",
    ): "the number of models that are weighed at once changes the time, not the result",
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
    """The source of a file with one change.

    Attributes:
        file: Path below src/hmmscope.
        line: Changed line.
        what: The code before and after the change.
        source: The whole file with the change.
        statement: First and last line of the changed statement; of its head if it contains other statements.
        on_import: Whether the code runs on import, such as constants of modules and classes, and default arguments.
    """

    file: str
    line: int
    what: str
    source: str
    statement: tuple[int, int]
    on_import: bool


def places(tree: ast.Module) -> Iterator[tuple[ast.AST, ast.AST, str, int | None]]:
    """Yield each node that can be changed: its parent, the node, the field of the parent, and the index in the field."""
    waiting: list[ast.AST] = [tree]
    sizes: set[int] = set()
    while waiting:
        parent = waiting.pop()
        if isinstance(parent, ast.FunctionDef):
            compiled = any("jit" in ast.unparse(one) or "overload" in ast.unparse(one) for one in parent.decorator_list)
            if parent.name in _SKIPPED or compiled:
                continue
        if isinstance(parent, ast.keyword) and parent.arg == "strict":
            continue
        if isinstance(parent, ast.UnaryOp) and id(parent) in sizes:
            continue
        if isinstance(parent, ast.Call) and getattr(parent.func, "attr", "") == "reshape":
            sizes |= {id(one) for one in parent.args}
        for field, value in ast.iter_fields(parent):
            if field in ("annotation", "returns", "decorator_list", "type_params"):
                continue
            for at, node in enumerate(value) if isinstance(value, list) else ((None, value),):
                if isinstance(node, ast.AST):
                    waiting.append(node)
                    if _changed(node, random.Random(0)) is not None:
                        yield parent, node, field, at


def _changed(node: ast.AST, rng: random.Random) -> ast.AST | None:
    """Return a replacement of the node, or None if it is not changed."""
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
    """Draw mutants of a package, uniformly over all nodes that can be changed."""
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
    """Return the lines of the innermost statement around a line, and whether they are outside of all function bodies."""
    around = [
        one for one in ast.walk(tree) if isinstance(one, ast.stmt) and one.lineno <= line <= (one.end_lineno or 0)
    ]
    inner = max(around, key=lambda one: (one.lineno, -(one.end_lineno or 0)))
    bodies = [one.body[0].lineno for one in around if isinstance(one, ast.FunctionDef)]
    last = inner.body[0].lineno - 1 if hasattr(inner, "body") else inner.end_lineno or line
    return (inner.lineno, max(inner.lineno, last)), not any(first <= line for first in bodies)


#: Test that also runs on mutants of code that runs on import, because it reads the default arguments of functions.
_ON_IMPORT = {"tests/test_defaults.py::test_numbers_by_default_are_those_that_were": 1.0}


def tests_of(mutant: Mutant) -> dict[str, float]:
    """Return the tests that run the changed statement, with their seconds; those of the package and of quality/ come first.

    For code that runs on import, these are all tests that use the module. The other tests of the same files follow, because
    the lines of a shared fixture are recorded for the first test only.
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
    own = f"tests/{Path(mutant.file).parent.name}/"  # tests of its package, the most likely to detect it
    first = {name for name in beside | asked if own in name or name.startswith("quality/")} | _ON_IMPORT.keys()
    return dict(sorted((beside | asked).items(), key=lambda one: (one[0] not in asked, one[0] not in first, one[1])))


@cache
def _maps() -> list[dict[str, Any]]:
    return [json.loads(path.read_bytes()) for path in sorted(MAPS.glob("*.json"))]


@cache
def _line_then(then: str, now: str, line: int) -> int | None:
    """Return the number of a line in an older text, or None if the line is not in it."""
    if then == now:
        return line
    for one in difflib.SequenceMatcher(None, now.splitlines(), then.splitlines(), autojunk=False).get_matching_blocks():
        if one.a < line <= one.a + one.size:
            return line - one.a + one.b
    return None


def run_heavy_tests(plugins: Iterable[object]) -> None:
    """Let pytest run all tests in tests/heavy.txt, not only those that the commit draws."""
    for plugin in plugins:
        if hasattr(plugin, "HEAVY"):
            plugin.HEAVY = 1


def write_maps(folder: str) -> None:
    """Run the test files of a folder that are new or have changed since their map was written, under coverage.py."""
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
