"""Measure the architecture from the source; with ``--check``, fail where a quantity exceeds its limit.

    python scripts/check_architecture.py [--check] [--write]

``--write`` writes the generated parts of CONTRIBUTING.md from the tables here.

A section is a function from modules to places, with the largest number allowed; its docstring defines the quantity. Add a
section to `SECTIONS`.
"""

import argparse
import ast
import inspect
import io
import json
import re
import subprocess
import sys
import tempfile
import tokenize
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import FrameType

ROOT = Path(__file__).resolve().parents[1]
PACKAGE, PAPERS = ROOT / "src" / "hmmscope", ROOT / "papers" / "src" / "hmmscope_papers"
STUDIES = ROOT / "studies" / "src" / "hmmscope_studies"
#: Distributions beside the library.
OUTER = (PAPERS, STUDIES)
#: Packages of them that build on the modules of the library themselves.
BUILDING = (f"{PAPERS.name}/constructions/", f"{STUDIES.name}/benchmark/")
CONTRIBUTING = ROOT / "CONTRIBUTING.md"

#: Text of every module by its path: ``models/base.py`` of hmmscope, and ``hmmscope_papers/limits/fig2.py``.
Modules = Mapping[str, str]


def sources() -> dict[str, str]:
    """Read every module of the three rings."""
    own = {str(path.relative_to(PACKAGE)): path.read_text() for path in sorted(PACKAGE.rglob("*.py"))}
    return own | {
        str(path.relative_to(package.parent)): path.read_text()
        for package in OUTER
        for path in sorted(package.rglob("*.py"))
    }


def module_name(path: str) -> str:
    """Return ``hmmscope.models.base`` for ``models/base.py``."""
    parts = path.removesuffix(".py").split("/")
    package = [] if parts[0] in (PAPERS.name, STUDIES.name) else ["hmmscope"]
    return ".".join([*package, *parts[: -1 if parts[-1] == "__init__" else None]])


def ring(path: str) -> str:
    """Return the ring of a module: papers, lab or library."""
    first = path.partition("/")[0]
    return {PAPERS.name: "papers", STUDIES.name: "studies", "lab": "lab"}.get(first, "library")


def of_ring(name: str) -> Callable[[Modules], list[str]]:
    """Return a function for the lines of a ring."""

    def lines(modules: Modules) -> list[str]:
        return [line for path, text in modules.items() if ring(path) == name for line in text.splitlines()]

    return lines


def outward(modules: Modules) -> list[str]:
    """List imports from a ring of one further out; only the two front doors may name the lab."""
    order = ("library", "lab", "papers", "studies")
    found = []
    for path, text in modules.items():
        own = order.index(ring(path))
        for one in read(path, text).imports:
            target = ring(one.name.replace(".", "/").removeprefix("hmmscope/"))
            if order.index(target) > own and path not in ("__init__.py", "__main__.py"):
                found.append(f"{path}:{one.line}: {one.name}")
    return found


def paper_names(modules: Modules) -> list[str]:
    """List names of library and lab that the papers use: imports, and attributes of imported modules."""
    doors = {module_name(path) for path in modules}
    return sorted({name for path, text in modules.items() if experiments(path) for name in used(path, text, doors)})


def experiments(path: str) -> bool:
    """Whether a module is of the papers or the studies; what builds on modules of the library is not."""
    return ring(path) in ("papers", "studies") and not path.startswith(BUILDING)


def private_paper_names(modules: Modules) -> list[str]:
    """List names in `paper_names` that are not public."""
    return sorted(set(paper_names(modules)) - public(modules))


def public(modules: Modules) -> set[str]:
    """Return public names: those in ``__init__.py`` of ``hmmscope``, ``hmmscope.lab`` and their packages and modules.

    Names of `hmmscope.facade` are left out.
    """
    found: set[str] = set()
    left, doors = ["hmmscope", "hmmscope.lab"], {module_name(path): path for path in modules}
    while left:
        door = left.pop()
        path, text = doors[door], modules[doors[door]]
        names = [one.name for one in read(path, text).imports if one.name.split(".")[0] == "hmmscope"]
        names = [name for name in names if not name.startswith("hmmscope.facade.")]
        if not path.endswith("__init__.py"):
            found |= {f"{door}.{name}" for name in read(path, text).defined if not name.startswith("_")}
            continue
        left += [name for name in names if name in doors]
        found |= {f"{door}.{name.rpartition('.')[2]}" for name in names if name not in doors}
    return found


def used(path: str, text: str, doors: set[str]) -> set[str]:
    """Return dotted names of library and lab that a module uses, including attributes of imported modules.

    A module that is passed on, or whose attributes are looked up by string, is a name itself. `doors` are all modules.
    """
    found, known = set[str](), dict[str, str]()
    for one in read(path, text).imports:
        if one.name.split(".")[0] != "hmmscope":
            continue
        if one.name in doors and one.known_as:
            # ``import a.b`` makes the name a known, ``import a.b as c`` and ``from a import b`` all of it
            known[one.known_as] = "hmmscope" if one.known_as == "hmmscope" else one.name
        else:
            found.add(one.name)
    for first, *attributes in (chain.split(".") for chain in read(path, text).chains):
        if first in known:
            name = known[first]
            while attributes and name in doors:
                name = f"{name}.{attributes.pop(0)}"
            found.add(name)
    return found


def twice(modules: Modules) -> list[str]:
    """List module names that occur more than once."""
    names = [path.rpartition("/")[2] for path in modules if not path.endswith("__init__.py")]
    return sorted({name for name in names if names.count(name) > 1})


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
        f"{path}:{line}: {name}, {length} lines"
        for path, text in modules.items()
        for line, name, length in read(path, text).functions
        if length > MAX_FUNCTION
    ]


MAX_LINES, MAX_FUNCTION = 450, 80


def undefined(modules: Modules) -> list[str]:
    """List undefined names, as found by ruff (F821), except in strings, which name axes of tensors."""
    with tempfile.TemporaryDirectory() as folder:
        for path, text in modules.items():
            place = Path(folder, path)
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(text)
        words = ["check", "--isolated", "--exit-zero", "--select", "F821", "--output-format", "json", "."]
        found = json.loads(
            subprocess.run([sys.executable, "-m", "ruff", *words], cwd=folder, check=True, capture_output=True).stdout
        )
        places = [
            (Path(one["filename"]).relative_to(Path(folder).resolve()).as_posix(), one["location"], one["message"])
            for one in found
        ]
    return [
        f"{path}:{at['row']}: {said}"
        for path, at, said in places
        if (at["row"], at["column"] - 1) not in _texts(modules[path])
    ]


@cache
def _texts(text: str) -> frozenset[tuple[int, int]]:
    literal = (one for one in tokenize.generate_tokens(io.StringIO(text).readline) if one.type == tokenize.STRING)
    return frozenset(
        (row, column)
        for one in literal
        if "f" not in one.string[: one.string.find(one.string[-1])].lower()
        for row in range(one.start[0], one.end[0] + 1)
        for column in range(
            one.start[1] if row == one.start[0] else 0, one.end[1] if row == one.end[0] else MAX_COLUMNS
        )
    )


#: Above the length of any line.
MAX_COLUMNS = 200


# ---------------------------------------------------------------------------------------------------------------------
# Layout

#: Small top-level modules that every module may import.
SMALL = {"errors", "synonyms", "facade", "schema", "registry", "seeds", "axes", "text", "ties"}
PROBABILITY = {"kernels", "processes", "inference", "emissions", "datasets", "sequences"}
COMPONENTS = PROBABILITY | {"models", "training", "analysis"}
#: Packages that the experiment framework and the papers may import.
LABORATORY = SMALL | COMPONENTS | {"runs", "storage", "system_info", "interop", "reprs"}

#: Content of each package and top-level module, and what it may import besides itself.
LAYOUT: dict[str, tuple[str, set[str]]] = {
    "errors": ("errors with exit codes, each one line", set()),
    "synonyms": ("terms of the glossary with their synonyms", set()),
    "facade": ("packages whose names are imported on first use", {"synonyms"}),
    "axes": ("legend of the letters of shapes", set()),
    "text": ("text that fits on one line", set()),
    "ties": ("choices among equal values that do not depend on rounding", set()),
    "schema": ("typed specifications from plain data", {"errors", "synonyms"}),
    "registry": ("lookup by name, also of user packages", {"errors", "schema"}),
    "seeds": ("named random streams", {"errors", "schema"}),
    "system_info": ("memory, disk and versions of this machine", {"errors"}),
    "storage": ("reading and writing of files; a run on disk", {"errors", "system_info"}),
    "kernels": (
        "Philox, alias tables, loops of sampling, n-grams and inference, each plain and compiled",
        {"errors", "axes", "storage"},
    ),
    "sequences": (
        "user sequences: reading, encoding, streaming",
        SMALL - {"registry"} | {"storage", "system_info", "reprs"},
    ),
    "processes": ("sources of sequences", SMALL | {"kernels", "sequences", "storage", "system_info", "reprs"}),
    "models": ("maps from tokens to logits; they import no process", SMALL | {"reprs"}),
    "inference": (
        "exact inference in float64",
        SMALL - {"registry"} | {"kernels", "processes", "sequences", "system_info", "reprs"},
    ),
    "emissions": (
        "emission families of numbers, their filter and fit",
        SMALL | {"kernels", "processes", "inference", "sequences", "reprs"},
    ),
    "datasets": (
        "samples as tokens, and their targets",
        SMALL | {"kernels", "processes", "inference", "sequences", "reprs"},
    ),
    "engine": ("compiled training loops", {"errors", "kernels"}),
    "training": (
        "objective, schedule, loop",
        SMALL - {"registry"} | {"models", "datasets", "storage", "engine", "reprs"},
    ),
    "reprs": ("printed form of objects", {"errors"}),
    "analysis": ("instruments; they import no trainer", SMALL | PROBABILITY | {"models", "reprs"}),
    "runs": (
        "runs, from a configuration or a folder",
        SMALL | COMPONENTS | {"storage", "system_info", "reprs"},
    ),
    "sklearn": (
        "estimators of scikit-learn",
        {"errors", "schema", "axes", "kernels", "processes", "inference", "emissions"},
    ),
    "interop": (
        "HMMs and models of other libraries",
        SMALL - {"facade", "ties", "seeds"} | {"processes", "emissions", "models", "datasets", "storage", "reprs"},
    ),
    "lab.evidence": (
        "rows, effects, rules, gates, claims, ledger, panels",
        {"errors", "schema", "registry", "storage", "ties"},
    ),
    "lab.model_file": ("user model files, executed from the hashed bytes", {"errors", "storage"}),
    "lab.tasks": (
        "tasks, and executors: this process, forked workers, Ray, Slurm",
        {"errors", "schema", "storage", "training"},
    ),
    "lab.sweeps": (
        "grids of runs, local or on a cluster",
        SMALL - {"registry", "axes"} | {"training", "runs", "storage", "system_info", "lab.tasks"},
    ),
    "lab.experiments": (
        "experiment framework: plan, parts, pool, execution",
        LABORATORY | {"lab.evidence", "lab.tasks", "lab.sweeps"},
    ),
    "lab.worker": (
        "the worker process and its fork server",
        {"errors", "text", "system_info", "lab.tasks", "lab.sweeps", "lab.experiments"},
    ),
    "lab.study": (
        "studies of sequences without a known process",
        SMALL | COMPONENTS | {"runs", "storage", "system_info", "reprs", "lab.evidence", "lab.experiments"},
    ),
    "lab.model_page": (
        "the page of one model",
        SMALL | COMPONENTS | {"runs", "storage", "reprs", "lab.experiments", "lab.report"},
    ),
    "lab.report": (
        "pages from files; imports no model or trainer",
        {"errors", "schema", "storage", "ties", "text", "lab.evidence", "lab.tasks"},
    ),
    "lab.verbs": (
        "one function per verb",
        SMALL
        | COMPONENTS
        | {"interop", "runs", "storage", "system_info"}
        | {
            "lab.model_file",
            "lab.tasks",
            "lab.sweeps",
            "lab.evidence",
            "lab.experiments",
            "lab.study",
            "lab.model_page",
            "lab.report",
        },
    ),
    "lab.cli": ("the command line", {"errors", "synonyms", "text", "schema", "lab.verbs"}),
    "hmmscope_papers.constructions": (
        "weights from theorems",
        SMALL | {"models", "processes", "system_info", "reprs"},
    ),
    "hmmscope_papers": (
        "figures, tables and theorems, one file each, with claims in `claims/`; public names only",
        LABORATORY | {"lab.evidence", "lab.experiments", "hmmscope_papers.constructions"},
    ),
    "hmmscope_studies.benchmark": (
        "HMM-bench: frozen tasks and submissions; a verb and two kinds of folder",
        SMALL
        | COMPONENTS
        | {"runs", "storage", "reprs", "lab.tasks", "lab.model_file", "lab.experiments", "lab.verbs"},
    ),
    "hmmscope_studies": (
        "questions beyond the papers, with claims in `claims/`; public names only",
        LABORATORY | {"lab.evidence", "lab.experiments", "hmmscope_papers", "hmmscope_papers.constructions"},
    ),
    "__main__": ("`python -m hmmscope`", {"lab.cli", "text"}),
}

MAY_IMPORT = {name: allowed for name, (_, allowed) in LAYOUT.items()}


def layout_part() -> str:
    """Return the table of packages for CONTRIBUTING."""
    small = ", ".join(f"`{name}`" for name in LAYOUT if name in SMALL)
    lines = [f"*Small* modules: {small}.", "", "| | holds | may import |", "|---|---|---|"]
    for name, (holds, allowed) in LAYOUT.items():
        words = [f"`{other}`" for other in LAYOUT if other in allowed]
        if len(SMALL - allowed) <= 1:
            but = "".join(f" but `{other}`" for other in SMALL - allowed)
            words = [f"small{but}", *(f"`{other}`" for other in LAYOUT if other in allowed - SMALL)]
        lines.append(f"| `{name}` | {holds} | {', '.join(words) or 'nothing'} |")
    return "\n".join(lines)


def limits_part() -> str:
    """Return the table of limits for CONTRIBUTING."""
    lines, above = ["| quantity | limit |", "|---|---|"], ""
    for section in SECTIONS:
        inner = section.name.startswith(" ")
        name = f"{above}, {section.name.strip()}" if inner else section.name
        above = above if inner else section.name
        if section.most is not None:
            lines.append(f"| {name} | {section.most} |")
    return "\n".join(lines)


#: Generated parts of CONTRIBUTING between ``<!-- name: ... -->`` and ``<!-- end -->``.
PARTS = {"layout": layout_part, "limits": limits_part}


def _part(name: str) -> re.Pattern[str]:
    return re.compile(
        rf"(?<=<!-- {name}: made by scripts/check_architecture.py --write -->\n\n).*?(?=\n\n<!-- end -->)", re.DOTALL
    )


def parts_that_differ(modules: Modules, page: Path = CONTRIBUTING) -> list[str]:
    """List outdated parts of CONTRIBUTING."""
    text = page.read_text("utf-8")
    found = {name: _part(name).search(text) for name in PARTS}
    return [
        f"{name}: run python scripts/check_architecture.py --write"
        for name, made in PARTS.items()
        if (here := found[name]) is None or here[0] != made()
    ]


def write_parts(page: Path = CONTRIBUTING) -> None:
    """Write the generated parts of CONTRIBUTING."""
    text = page.read_text("utf-8")
    for name, made in PARTS.items():
        part = _part(name).search(text)
        assert part is not None, f"CONTRIBUTING has no place for {name}"
        text = text[: part.start()] + made() + text[part.end() :]
    page.write_text(text, "utf-8")


# ---------------------------------------------------------------------------------------------------------------------
# Reading of a module, all at once because parsing is slow


@dataclass(frozen=True)
class Import:
    """One imported name.

    Attributes:
        line: Line number.
        name: Dotted name; names in ``from package import name`` are appended.
        known_as: Name in the module.
        at_import: Whether it runs at import: not in a function, not for type checkers.
        at_all: Whether it ever runs: not for type checkers.
    """

    line: int
    name: str
    known_as: str
    at_import: bool
    at_all: bool = True


@dataclass(frozen=True)
class Reading:
    """Facts of a module that the sections use.

    Attributes:
        imports: Imports, by statement and by `import_module` of a literal.
        attributes: (line, object, name) of attributes with a leading underscore.
        chains: Dotted names, ``a.b.c``.
        defined: Top-level functions and classes.
        functions: (line, name, lines) of all functions.
        bases: Last parts of the base names of each class.
        asked: (line, names) of each type test; `ANY_KIND` for attributes that only some types have.
    """

    imports: tuple[Import, ...]
    attributes: tuple[tuple[int, str, str], ...]
    chains: frozenset[str]
    defined: tuple[str, ...]
    functions: tuple[tuple[int, str, int], ...]
    bases: Mapping[str, frozenset[str]]
    asked: tuple[tuple[int, frozenset[str]], ...]


ANY_KIND = "*"


@cache
def read(path: str, text: str) -> Reading:
    """Parse a module."""
    tree = ast.parse(text)
    imports: list[Import] = []
    attributes: list[tuple[int, str, str]] = []
    chains: set[str] = set()
    functions: list[tuple[int, str, int]] = []
    bases: dict[str, frozenset[str]] = {}
    asked: list[tuple[int, frozenset[str]]] = []
    left: list[tuple[ast.AST, bool, bool]] = [(tree, True, True)]
    while left:
        node, at_import, at_all = left.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            at_import = False
            if not isinstance(node, ast.Lambda):
                functions.append((node.lineno, node.name, (node.end_lineno or node.lineno) - node.lineno + 1))
        elif isinstance(node, ast.If):
            at_all = at_all and "TYPE_CHECKING" not in ast.unparse(node.test)
            at_import = at_import and at_all
        elif isinstance(node, ast.ClassDef):
            bases[node.name] = frozenset(ast.unparse(base).rpartition(".")[2] for base in node.bases)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            imports += [Import(*of, at_import, at_all) for of in _imported(path, node)]
        elif isinstance(node, ast.Name | ast.Attribute):
            parts = _dotted(node).split(".")
            named = parts[0] != NAMELESS  # or what is inside has its turn
            for at in range(1 if named else len(parts) - 1, len(parts)):
                if parts[at].startswith("_") and not parts[at].startswith("__"):
                    attributes.append((node.lineno, ".".join(parts[:at]), parts[at]))
            if named:
                chains.add(".".join(parts))
                continue
        elif isinstance(node, ast.Call) and _dotted(node.func).endswith(("import_module", "__import__")):
            texts = [one.value for one in node.args[:1] if isinstance(one, ast.Constant)]
            imports += [Import(node.lineno, str(name), "", at_import, at_all) for name in texts]
        if names := _kinds_asked_for(node):
            asked.append((getattr(node, "lineno", 1), names))
        left += [(child, at_import, at_all) for child in ast.iter_child_nodes(node)]
    imports.sort(key=lambda one: one.line)
    defined = tuple(node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef))
    return Reading(tuple(imports), tuple(attributes), frozenset(chains), defined, tuple(functions), bases, tuple(asked))


#: Start of an attribute chain that does not begin with a name.
NAMELESS = "()"


def _dotted(node: ast.AST) -> str:
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else NAMELESS


def _imported(path: str, node: ast.Import | ast.ImportFrom) -> Iterator[tuple[int, str, str]]:
    """Yield line, imported name and local name of an import."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            yield node.lineno, alias.name, alias.asname or alias.name.split(".")[0]
        return
    base = node.module or ""
    if node.level:
        own = module_name(path).split(".")
        parents = own if path.endswith("__init__.py") else own[:-1]
        base = ".".join([*parents[: len(parents) - node.level + 1], *([base] if base else [])])
    for alias in node.names:
        yield node.lineno, f"{base}.{alias.name}", alias.asname or alias.name


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
    inside = list(ast.walk(node))
    return frozenset(one.id for one in inside if isinstance(one, ast.Name)) | frozenset(
        one.attr for one in inside if isinstance(one, ast.Attribute)
    )


# ---------------------------------------------------------------------------------------------------------------------
# Import cycles


def circles(modules: Modules) -> list[str]:
    """List sets of modules that import each other, directly or not; late imports count.

    Imports for type checkers and the front door ``hmmscope/__init__.py``, which imports on first use, do not count.
    """
    names = {module_name(path) for path in modules} - {"hmmscope"}
    graph: dict[str, set[str]] = {}
    for path, text in modules.items():
        own = module_name(path)
        if own in names:
            imported = {one.name for one in read(path, text).imports if one.at_all}
            inside = {name if name in names else name.rpartition(".")[0] for name in imported}
            graph[own] = inside & names - {own}
    reached = {name: _reached(name, graph) for name in names}
    found = {tuple(sorted(b for b in reached[a] if a in reached[b])) for a in names if a in reached[a]}
    return [" <-> ".join(name.removeprefix("hmmscope.") for name in circle) for circle in sorted(found)]


def _reached(name: str, graph: Mapping[str, set[str]]) -> set[str]:
    found: set[str] = set()
    left = set(graph[name])
    while left:
        found |= left
        left = set().union(*(graph[other] for other in left)) - found
    return found


# ---------------------------------------------------------------------------------------------------------------------
# Process types

#: Packages that may test process types.
KINDS_MAY_BE_KNOWN = ("processes/", "kernels/")


def kinds_of_process(modules: Modules) -> set[str]:
    """Return the names of subclasses of `Process` and of the parameter classes."""
    bases = {name: of for path, text in modules.items() for name, of in read(path, text).bases.items()}
    found = {"Process", "StateEmitting", "EdgeEmitting"} & set(bases)
    while more := {name for name, of in bases.items() if of & found} - found:
        found |= more
    return found


def kind_tests(modules: Modules) -> list[str]:
    """List type tests of processes: `isinstance`, `issubclass`, `match`, comparisons of a type or its name.

    Also `hasattr` or `getattr` of a ``process``, ``hmm``, ``mixture`` or ``law``.
    """
    kinds = kinds_of_process(modules) | {ANY_KIND}
    return [
        f"{path}:{line}: {text.splitlines()[line - 1].strip()}"
        for path, text in modules.items()
        for line, names in read(path, text).asked
        if names & kinds
    ]


def kind_tests_elsewhere(modules: Modules) -> list[str]:
    """List type tests outside of `KINDS_MAY_BE_KNOWN`."""
    return [place for place in kind_tests(modules) if not place.startswith(KINDS_MAY_BE_KNOWN)]


#: Registries with dictionaries of their names elsewhere that would be closed.
OPEN_KINDS = ("process", "layout", "model", "emission", "density", "adapter", "experiment", "page")


def closed_dictionaries(modules: Modules) -> list[str]:
    """List dictionaries of library and lab with registered names as keys, or with registered classes, two or more of a kind.

    What another package registers is not in them, so a registry should be asked instead.
    """
    pattern = re.compile(r'^@registry\.(\w+)\("([^"]+)".*\n(?:@.*\n)*(?:class|def) (\w+)', re.MULTILINE)
    known: dict[str, set[str]] = {kind: set() for kind in OPEN_KINDS}
    for text in modules.values():
        for kind, name, entry in pattern.findall(text):
            known.get(kind, set()).update((repr(name), entry))
    found = []
    for path, text in modules.items():
        for node in ast.walk(ast.parse(text)) if ring(path) in ("library", "lab") else ():
            if isinstance(node, ast.Dict) and not all(isinstance(value, ast.Constant) for value in node.values):
                keys = [ast.unparse(key).removesuffix(".file_format") for key in node.keys if key]
                entries = [ast.unparse(value).rpartition(".")[2] for value in node.values]
                if any(len(own & set(keys)) > 1 or len(own & set(entries)) > 1 for own in known.values()):
                    found.append(f"{path}:{node.lineno}")
    return found


# ---------------------------------------------------------------------------------------------------------------------
# Parameters of public functions

#: Largest number of parameters of a public function; rarer ones belong in its object of options.
MOST_PARAMETERS = 9


def public_functions() -> dict[str, Callable[..., object]]:
    """Return functions of `hmmscope`, its packages, `hmmscope.lab` and the constructions, and registered instruments."""
    import hmmscope
    import hmmscope.lab
    import hmmscope_papers.constructions

    packages = [hmmscope, hmmscope.lab, hmmscope_papers.constructions]
    packages += filter(inspect.ismodule, (getattr(hmmscope, name) for name in hmmscope.__all__))
    found = {
        f"{package.__name__}.{name}": getattr(package, name)
        for package in packages
        for name in getattr(package, "__all__", [name for name in vars(package) if not name.startswith("_")])
    }
    found |= {f"instrument {name}": one for name, one in hmmscope.registry.entries("instrument").items()}
    return {name: one for name, one in found.items() if inspect.isfunction(one) and own(one)}


def own(function: Callable[..., object]) -> bool:
    """Return whether a function is defined in hmmscope or its companion packages."""
    return function.__module__.startswith("hmmscope")


def long_signatures(modules: Modules) -> list[str]:
    """List public functions with more than `MOST_PARAMETERS` parameters."""
    counts = {name: len(inspect.signature(one).parameters) for name, one in public_functions().items()}
    return [f"{name}: {count} parameters" for name, count in counts.items() if count > MOST_PARAMETERS]


# ---------------------------------------------------------------------------------------------------------------------
# Modules on the path from train to its first step


@dataclass
class Call:
    """A call between functions of hmmscope."""

    module: str
    function: str
    caller: "Call | None"


#: What a sequence becomes on its way, by the function that does it: its configuration, a process, a model, a batch of the
#: stream of training samples, a loss, a step of the optimiser.
TURNS = (
    ("source", "hmmscope.registry", "build_spec"),
    ("process", "hmmscope.processes.textbook", "Mess3Spec.build"),
    ("model", "hmmscope.models.base", "EncodedModel.__init__"),
    ("batch", "hmmscope.processes.process", "Process.sample_paths"),
    ("loss", "hmmscope.datasets.target_base", "Target.loss"),
    ("step", "torch.optim.adamw", "adamw"),
)


class _FirstStep(BaseException):
    """The optimiser takes its first step."""


@cache
def calls_to_first_step() -> tuple[tuple[Call, ...], tuple[Call, ...]]:
    """Trace calls within ``hmmscope.train`` before the first optimiser step, and those that are stages.

    Traces a small training by the torch engine, of a named process and the default model.
    """
    import hmmscope
    import hmmscope.runs.training as entry

    calls: list[Call] = []
    turns: list[Call] = []
    open_calls: dict[FrameType, Call] = {}

    def note(frame: FrameType, event: str, _: object) -> None:
        module, function = frame.f_globals.get("__name__", ""), frame.f_code.co_qualname
        if event != "call" or not (module.startswith("hmmscope.") or function == "adamw"):
            return
        above = frame.f_back
        while above is not None and above not in open_calls:
            above = above.f_back
        if above is None and (module, function) != (entry.__name__, "train"):
            return
        call = Call(module, function, None if above is None else open_calls[above])
        turn = next((name for name, *where in TURNS if where == [module, function]), None)
        wanted = {"source": ("kind", "process"), "batch": ("stream", "train")}.get(turn or "")
        if turn and (wanted is None or frame.f_locals.get(wanted[0]) == wanted[1]):
            turns.append(call)
        if turn == "step":
            sys.setprofile(None)
            raise _FirstStep
        open_calls[frame] = call
        calls.append(call)

    with tempfile.TemporaryDirectory() as folder, suppress(_FirstStep):
        training = {"engine": "torch", "batch_size": 2, "num_grains": 1, "device": "cpu", "evaluate_samples": 2}
        sys.setprofile(note)
        try:
            hmmscope.train("mess3", f"{folder}/run", length=4, num_steps=1, training=training)
        finally:
            sys.setprofile(None)
    assert len({(turn.module, turn.function) for turn in turns}) == len(TURNS), "a turn has another name now"
    return tuple(calls), tuple(turns)


def on_the_way() -> list[Call]:
    """Return the calls that are open at one of the stages."""
    found = {id(call): call for turn in calls_to_first_step()[1] for call in _to_the_top(turn)}
    return list(found.values())


def _to_the_top(call: "Call | None") -> Iterator[Call]:
    while call is not None:
        if call.module.startswith("hmmscope."):
            yield call
        call = call.caller


def rooms(modules: Modules) -> list[str]:
    """List modules on the path from ``hmmscope.train`` to the first optimiser step.

    The path consists of the open calls at each of `TURNS`, from `train` down. Other calls of these functions (disk, memory,
    progress, evaluation) are not on the path; `rooms_beside` lists them.
    """
    return sorted({call.module for call in on_the_way()})


def rooms_beside(modules: Modules) -> list[str]:
    """List further modules called directly from that path before the first step."""
    way = {id(call) for call in on_the_way()}
    return sorted({call.module for call in calls_to_first_step()[0] if id(call.caller) in way} - set(rooms(modules)))


# ---------------------------------------------------------------------------------------------------------------------
# Sections


@dataclass(frozen=True)
class Section:
    """A measured quantity.

    Attributes:
        name: Name of the quantity.
        find: Finds its places.
        most: Largest number allowed; None for no limit.
    """

    name: str
    find: Callable[[Modules], list[str]]
    most: int | None = None

    def line(self, count: int) -> str:
        """Format the count and its limit."""
        return f"{self.name:<34} {count:>6}" + ("" if self.most is None else f"   at most {self.most}")


SECTIONS = (
    Section("lines of the library", of_ring("library")),
    Section("lines of the lab", of_ring("lab")),
    Section("lines of the papers", of_ring("papers")),
    Section("lines of the studies", of_ring("studies")),
    Section("imports of an outer ring", outward, 0),
    Section("names that the papers use", paper_names, 120),
    Section("  that are not public", private_paper_names, 0),
    Section("module names used twice", twice, 8),
    Section("modules of more than 450 lines", long_modules, 0),
    Section("functions of more than 80 lines", long_functions, 0),
    Section(f"public functions of > {MOST_PARAMETERS} parameters", long_signatures, 0),
    Section("modules from train to its first step", rooms, 12),
    Section("  modules aside from that path", rooms_beside),
    Section("megabytes in results/", kept_megabytes, 16),
    Section("undefined names", undefined, 0),
    Section("import cycles", circles, 0),
    Section("outdated parts of CONTRIBUTING", parts_that_differ, 0),
    Section("closed dictionaries of kinds", closed_dictionaries, 0),
    Section("type tests of processes", kind_tests, 20),
    Section("  outside of processes and kernels", kind_tests_elsewhere, 0),
)


def above(found: Mapping[Section, list[str]]) -> Iterator[str]:
    """Yield a line for each section above its limit, and one for each place."""
    for section, places in found.items():
        if section.most is not None and len(places) > section.most:
            yield section.line(len(places))
            yield from (f"  {place}" for place in places)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="fail where something is above its limit")
    parser.add_argument("--write", action="store_true", help="make the parts of CONTRIBUTING.md anew")
    options, modules = parser.parse_args(), sources()
    if options.write:
        write_parts()
    found = {section: section.find(modules) for section in SECTIONS}
    print("\n".join(section.line(len(places)) for section, places in found.items()))
    wrong = list(above(found)) if options.check else []
    print("\n".join(wrong), file=sys.stderr, end="\n" if wrong else "")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
