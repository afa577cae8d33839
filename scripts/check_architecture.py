"""Measure the source where neither ruff, mypy nor import-linter can; with ``--check``, fail above a limit.

Layers of imports are contracts of import-linter in pyproject.toml.
A quantity is a function from modules to places; its docstring defines it.
"""

import ast
import inspect
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
#: Folders of source by distribution.
FOLDERS = {"hmmscope": "src", "hmmscope_papers": "papers/src", "hmmscope_studies": "studies/src"}
MAX_LINES, MAX_FUNCTION = 450, 80

#: Text of every module by its path: ``models/base.py``, ``hmmscope_papers/limits/fig2.py``.
Modules = Mapping[str, str]


def sources() -> dict[str, str]:
    """Read every module of the three distributions."""
    found = {}
    for package, folder in FOLDERS.items():
        for path in sorted((ROOT / folder / package).rglob("*.py")):
            found[path.relative_to(ROOT / folder).as_posix().removeprefix("hmmscope/")] = path.read_text("utf-8")
    return found


def ring(path: str) -> str:
    """Return the part of a module: library, lab, papers or studies."""
    first = path.partition("/")[0]
    return "lab" if first == "lab" else first.removeprefix("hmmscope_") if first in FOLDERS else "library"


def of_ring(name: str) -> Callable[[Modules], list[str]]:
    """Return a function that returns the lines of a part."""
    return lambda modules: [line for path, text in modules.items() if ring(path) == name for line in text.splitlines()]


def lines_of_tests(modules: Modules) -> list[str]:
    """Return the lines of all tests but those in quality/."""
    folders = [ROOT / name for name in ("tests", "papers/tests", "studies/tests")]
    return [line for folder in folders for path in folder.rglob("*.py") for line in path.read_text().splitlines()]


def docstring_words(modules: Modules) -> list[str]:
    """Return the words of all docstrings."""
    kinds = ast.Module | ast.ClassDef | ast.FunctionDef
    nodes = (node for text in modules.values() for node in ast.walk(parsed(text)) if isinstance(node, kinds))
    return [word for node in nodes for word in (ast.get_docstring(node) or "").split()]


parsed = cache(ast.parse)


def kept_megabytes(modules: Modules) -> list[str]:
    """Return one place for each started megabyte (1000 kB) of results/."""
    folders = [ROOT / name / "results" for name in ("", "papers", "studies")]
    size = sum(path.stat().st_size for folder in folders for path in folder.rglob("*") if path.is_file())
    return ["results/"] * -(-size // 1_000_000)


def long_modules(modules: Modules) -> list[str]:
    """List modules of more than 450 lines."""
    lengths = {path: len(text.splitlines()) for path, text in modules.items()}
    return [f"{path}: {length} lines" for path, length in lengths.items() if length > MAX_LINES]


def long_functions(modules: Modules) -> list[str]:
    """List functions of more than 80 lines."""
    return [
        f"{path}:{node.lineno}: {node.name}, {length} lines"
        for path, text in modules.items()
        for node in ast.walk(parsed(text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if (length := (node.end_lineno or node.lineno) - node.lineno + 1) > MAX_FUNCTION
    ]


ANY_KIND = "*"


def _kinds_asked_for(node: ast.AST) -> frozenset[str]:
    """Return class names that a node tests for, if it tests a type."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and len(node.args) >= 2:
        if node.func.id in ("isinstance", "issubclass"):
            return _names(node.args[1])
        if node.func.id == "hasattr":
            of = ast.unparse(node.args[0]).rpartition(".")[2].removesuffix("()")
            return frozenset({ANY_KIND} if of in ("process", "hmm", "mixture", "law") else ())
    if isinstance(node, ast.MatchClass):
        return _names(node.cls)
    if isinstance(node, ast.Compare):
        sides = [node.left, *node.comparators]
        texts = {side.value for side in sides if isinstance(side, ast.Constant) and isinstance(side.value, str)}
        if not any(ast.unparse(side).startswith("type(") for side in sides if texts):
            texts = set()
        return frozenset(texts).union(
            *(_names(side) for side in sides if isinstance(side, ast.Name | ast.Attribute | ast.Tuple))
        )
    return frozenset()


def _names(node: ast.AST) -> frozenset[str]:
    return frozenset(getattr(one, "id", getattr(one, "attr", "")) for one in ast.walk(node))


def kind_tests(modules: Modules) -> list[str]:
    """List type tests of processes: `isinstance`, `issubclass`, `hasattr`, `match`, comparisons of a type or its name."""
    nodes = [(path, node) for path, text in modules.items() for node in ast.walk(parsed(text))]
    bases = {
        node.name: {ast.unparse(base).rpartition(".")[2] for base in node.bases}
        for _, node in nodes
        if isinstance(node, ast.ClassDef)
    }
    kinds = {"Process", "StateEmitting", "EdgeEmitting"} & set(bases)
    while more := {name for name, of in bases.items() if of & kinds} - kinds:
        kinds |= more
    lines = {path: text.splitlines() for path, text in modules.items()}
    return [
        f"{path}:{node.lineno}: {lines[path][node.lineno - 1].strip()}"
        for path, node in nodes
        if _kinds_asked_for(node) & (kinds | {ANY_KIND})
    ]


#: Kinds of registered objects for which dictionaries of their names elsewhere are counted.
OPEN_KINDS = ("process", "layout", "model", "emission", "density", "adapter", "experiment", "page")


def closed_dictionaries(modules: Modules) -> list[str]:
    """List dictionaries of library and lab with two or more registered names of a kind as keys, or registered classes."""
    pattern = re.compile(r'^@registry\.(\w+)\("([^"]+)".*\n(?:@.*\n)*(?:class|def) (\w+)', re.MULTILINE)
    known: dict[str, set[str]] = {kind: set() for kind in OPEN_KINDS}
    for text in modules.values():
        for kind, name, entry in pattern.findall(text):
            known.get(kind, set()).update((repr(name), entry))
    found = []
    for path, text in modules.items():
        for node in ast.walk(parsed(text)) if ring(path) in ("library", "lab") else ():
            if isinstance(node, ast.Dict) and not all(isinstance(value, ast.Constant) for value in node.values):
                keys = [ast.unparse(key).removesuffix(".file_format") for key in node.keys if key]
                entries = [ast.unparse(value).rpartition(".")[2] for value in node.values]
                if any(len(own & set(keys)) > 1 or len(own & set(entries)) > 1 for own in known.values()):
                    found.append(f"{path}:{node.lineno}")
    return found


#: Largest number of parameters of a public function; rarer ones belong in its object of options.
MOST_PARAMETERS = 9


def long_signatures(modules: Modules) -> list[str]:
    """List functions of the public interface and instruments with more than `MOST_PARAMETERS` parameters besides ``**``."""
    import hmmscope
    import hmmscope.lab
    import hmmscope_papers.constructions

    doors = [hmmscope, hmmscope.lab, hmmscope_papers.constructions]
    doors += filter(inspect.ismodule, (getattr(hmmscope, name) for name in hmmscope.__all__))
    found = {f"instrument {name}": one for name, one in hmmscope.registry.entries("instrument").items()}
    for door in doors:
        names = getattr(door, "__all__", [name for name in vars(door) if not name.startswith("_")])
        found |= {f"{door.__name__}.{name}": getattr(door, name) for name in names}
    own = {
        name: one for name, one in found.items() if inspect.isfunction(one) and one.__module__.startswith("hmmscope")
    }
    counts = {
        name: sum(one.kind is not one.VAR_KEYWORD for one in inspect.signature(function).parameters.values())
        for name, function in own.items()
    }
    return [f"{name}: {count} parameters" for name, count in counts.items() if count > MOST_PARAMETERS]


#: Functions on the way from each entry point, some with a required local value of the call; the last does the work.
TURNS: dict[str, dict[tuple[str, str], tuple[str, object] | None]] = {
    "train": {
        ("hmmscope.registry", "build_spec"): ("kind", "process"),
        ("hmmscope.processes.textbook", "Mess3Spec.build"): None,
        ("hmmscope.models.base", "EncodedModel.__init__"): None,
        ("hmmscope.processes.process", "Process.sample_paths"): ("stream", "train"),
        ("torch.optim.adamw", "adamw"): None,
        ("hmmscope.datasets.target_base", "Target.loss"): None,
    },
    "fit": {("hmmscope.inference.one_block", "OneBlock.counts"): None},
    "look": {("hmmscope.analysis.activations", "model_outputs"): None},
}


def _through(door: str, folder: str) -> None:
    import torch

    import hmmscope

    if door == "train":
        training = {"engine": "torch", "batch_size": 2, "num_grains": 1, "device": "cpu", "evaluate_samples": 2}
        hmmscope.train("mess3", f"{folder}/run", length=4, num_steps=1, training=training)
    elif door == "fit":
        options = hmmscope.FitOptions(num_restarts=1, max_iterations=1, quiet=True)
        hmmscope.fit([[0, 1, 1, 0]] * 3, 2, options=options)
    else:
        hmmscope.look(torch.nn.Embedding(4, 3), "mess3", length=4, num_samples=2)


@cache
def ways(door: str) -> tuple[tuple[str, ...], ...]:
    """Return the modules of the call stack at each of an entry point's `TURNS`, from the entry point down."""
    import hmmscope

    found, top = dict[tuple[str, str], tuple[str, ...]](), getattr(hmmscope, door)

    def note(frame: Any, event: str, _: object) -> None:
        turn = frame.f_globals.get("__name__", ""), frame.f_code.co_qualname
        wanted = TURNS[door].get(turn) or ("", None)
        if event != "call" or turn not in TURNS[door] or frame.f_locals.get(wanted[0]) != wanted[1]:
            return
        modules, above = list[str](), frame
        while above is not None and above.f_code is not top.__code__:
            modules.insert(0, above.f_globals.get("__name__", ""))
            above = above.f_back
        if above is not None and turn not in found:
            own = [name for name in (top.__module__, *modules) if name.startswith("hmmscope.")]
            found[turn] = tuple(name for name, _ in groupby(own))
        if len(found) == len(TURNS[door]):
            sys.setprofile(None)
            raise GeneratorExit

    with tempfile.TemporaryDirectory() as folder, suppress(GeneratorExit):
        sys.setprofile(note)
        try:
            _through(door, folder)
        finally:
            sys.setprofile(None)
    return tuple(found[turn] for turn in TURNS[door])


def entered_twice(modules: Modules) -> list[str]:
    """List modules that are left and entered again on the way from an entry point to its work."""
    return [f"{door}: {name}" for door in TURNS for name, count in Counter(ways(door)[-1]).items() if count > 1]


def unlisted_ways(modules: Modules) -> list[str]:
    """List ways from an entry point to its work that are missing in CONTRIBUTING.md."""
    lines = {door: ", ".join(f"`{name.removeprefix('hmmscope.')}`" for name in ways(door)[-1]) for door in TURNS}
    rows = [f"| `hs.{door}` | {line} |" for door, line in lines.items()]
    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    return [row for row in rows if row not in text]


#: Quantities with their places and limits. Sizes are those of 2026-11-28; a change that needs more raises the limit.
SECTIONS: dict[str, tuple[Callable[[Modules], list[str]], int]] = {
    "lines of the library": (of_ring("library"), 57_646),
    "lines of the lab": (of_ring("lab"), 15_660),
    "lines of the papers": (of_ring("papers"), 14_220),
    "lines of the studies": (of_ring("studies"), 10_260),
    "lines of tests": (lines_of_tests, 67_673),
    "words of docstrings": (docstring_words, 80_000),
    "modules of more than 450 lines": (long_modules, 0),
    "functions of more than 80 lines": (long_functions, 0),
    "public functions of > 9 parameters": (long_signatures, 0),
    "modules from train to its first step": (lambda modules: sorted(set().union(*ways("train"))), 12),
    "modules entered twice on a way": (entered_twice, 0),
    "ways missing in CONTRIBUTING.md": (unlisted_ways, 0),
    "megabytes in results/": (kept_megabytes, 16),
    "closed dictionaries of kinds": (closed_dictionaries, 0),
    "type tests of processes": (kind_tests, 20),
    "  outside of processes and kernels": (
        lambda modules: [one for one in kind_tests(modules) if not one.startswith(("processes/", "kernels/"))],
        0,
    ),
}


def above(modules: Modules, *, quiet: bool = True) -> list[str]:
    """List the quantities above their limits, each with its places unless they are lines or words."""
    wrong = []
    for name, (find, most) in SECTIONS.items():
        places = find(modules)
        line = f"{name:<36} {len(places):>7,}   at most {most:,}"
        if not quiet:
            print(line, flush=True)
        if len(places) > most:
            wrong += [line, *(f"  {place}" for place in places if most < 100)]
    return wrong


if __name__ == "__main__":
    wrong = above(sources(), quiet=False)
    print("\n".join(wrong), file=sys.stderr, end="\n" if wrong else "")
    sys.exit(bool(wrong) and "--check" in sys.argv)
