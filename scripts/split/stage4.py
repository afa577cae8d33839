"""Stage 4: HMM-bench is of the studies: a verb, and two kinds of folder that `check` knows, by entry points."""

import re

import tables
from stage1 import with_import
from tree import Tree, cells, dotted, rename

OLD, NEW = "hmmscope.lab.benchmark", "hmmscope_studies.benchmark"
PLACE = f"{tables.STUDIES_SRC}/benchmark"

INIT = '''\
"""HMM-bench: frozen tasks with exact optima, and submissions that anyone can score again."""

from typing import TYPE_CHECKING

from hmmscope.facade import lazily

if TYPE_CHECKING:
    from hmmscope_studies.benchmark.checking import check_submission as check_submission
    from hmmscope_studies.benchmark.submission import benchmark as benchmark

__getattr__, __dir__, __all__ = lazily(__name__)
'''
FOLDERS = '''\
"""Folders of HMM-bench that `hmmscope check` verifies: submissions, and boards of submissions or cards."""

from pathlib import Path

from hmmscope import registry
from hmmscope.lab.verbs.folder_kind import FolderKind
from hmmscope_studies.benchmark.board import check_board, holds_cards, is_board
from hmmscope_studies.benchmark.checking import check_submission
from hmmscope_studies.benchmark.submission import ENTRY

registry.folder("board")(FolderKind(is_one=is_board, holds=holds_cards, check=check_board))
registry.folder("submission")(
    FolderKind(
        is_one=lambda folder: (Path(folder) / ENTRY).is_file(),
        check_model=lambda folder, run: check_submission(folder, run=run),
    )
)
'''
KIND = '''\
"""Kinds of folders of other packages that `check` verifies."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from hmmscope.storage.seals import SealReport


def _nothing(names: Iterable[str]) -> bool:
    return False


@dataclass(frozen=True)
class FolderKind:
    """A kind of folder, registered by `hmmscope.registry.folder`.

    Attributes:
        is_one: Returns whether a folder is of this kind.
        holds: Returns whether names of files in a folder show that it is of this kind.
        check: Verifies a folder without a seal, and returns a description and its files.
        check_model: Verifies a sealed folder, with a model file or None, and returns a description.
    """

    is_one: Callable[[Path], bool]
    holds: Callable[[Iterable[str]], bool] = _nothing
    check: Callable[[Path], tuple[str, SealReport]] | None = None
    check_model: Callable[[str, str | None], str] | None = None
'''
VERBS = '''

@functools.cache
def verbs() -> dict[str, type]:
    """Return the option records of all verbs in the order of the help; those of other packages come before the last.

    A package names the record of a verb in the group "hmmscope.verbs" of its entry points. The class variable `function` of the
    record is the function of the verb, "module:function".
    """
    found = {}
    for point in sorted(importlib.metadata.entry_points(group="hmmscope.verbs"), key=lambda point: point.name):
        try:
            found[point.name] = point.load()
        except Exception as error:
            raise InputError(f"plugin {point.name} ({point.value}): {type(error).__name__}: {error}") from error
    *names, last = VERBS
    return {name: VERBS[name] for name in names} | found | {last: VERBS[last]}
'''


def run(tree: Tree) -> None:
    _move(tree)
    _imports(tree)
    _verb(tree)
    _folders(tree)
    _checks(tree)
    _tests(tree)


def _move(tree: Tree) -> None:
    tree.move("src/hmmscope/lab/benchmark", PLACE)
    tree.move("src/hmmscope/lab/verbs/benchmark.py", f"{PLACE}/verb.py")
    tree.write(f"{PLACE}/__init__.py", INIT)
    tree.move("results/hmm-bench", "studies/results/hmm-bench")
    for name in ("benchmark_cases.py", "test_benchmark.py", "test_benchmark_trial.py", "test_model_files.py"):
        source, target = f"tests/verbs/{name}", f"studies/tests/verbs/{name}"
        tree.move(source, target)
        tree.replace({r"(Path\(__file__\)(?:\.resolve\(\))?)\.parents\[2\]": r"\1.parents[3]"}, [target])


def _imports(tree: Tree) -> None:
    modules = {
        f"{OLD}.{name}": f"{NEW}.{name}"
        for name in ("board card checking entries frozen recompute scoring submission tasks trial").split()
    } | {OLD: NEW, "hmmscope.lab.verbs.benchmark": f"{NEW}.verb"}
    names = dotted(modules)
    line = "from hmmscope_studies import benchmark as hmmbench\n"

    def front(text: str) -> str:
        return with_import(text, r"(?<![\w.\"'`])(?:hs|hmmscope)\.(benchmark|check_submission)\b", r"hmmbench.\1", line)

    for name in tree.texts(".py"):
        before = tree.read(name)
        after = rename(modules, before)
        after = front(after) if not name.startswith(("src/", "studies/src/", "papers/src/")) else after
        if after != before:
            tree.write(name, after)
    front_names = {"hmmscope.benchmark": f"{NEW}.submission.benchmark", "hmmscope.check_submission": f"{NEW}.checking.check_submission"}
    for name in tree.texts(".md", ".toml", ".sh", "Makefile"):
        before = tree.read(name)
        after = dotted(front_names)(names(before)) if name == "docs/reference.md" else names(before)
        if name.endswith(".md"):
            after = re.sub(r"^```.*?^```$", lambda found: front(found[0]), after, flags=re.MULTILINE | re.DOTALL)
            after = re.sub(r"`hs\.(benchmark|check_submission)\b", rf"`{NEW}.\1", after)
        if after != before:
            tree.write(name, after)
    for name in tree.texts(".ipynb"):
        before = tree.read(name)
        if re.search(r"hs\.(benchmark|check_submission)\b", before) and (after := cells(before, front)) != before:
            tree.write(name, after)
    paths = {
        r"src/hmmscope/lab/benchmark/": f"{PLACE}/",
        r"(?<![\w./-])hmmscope/lab/benchmark/": "hmmscope_studies/benchmark/",
        r"(?<![\w/])results/hmm-bench\b": "studies/results/hmm-bench",
    }
    tree.replace(paths, tree.texts(".py", ".md", ".sh", ".toml"))
    tree.replace({r'(ROOT) / "results" / "hmm-bench"': r'\1 / "studies" / "results" / "hmm-bench"'}, tree.texts(".py"))
    tree.replace({r'"lab/benchmark/': '"../hmmscope_studies/benchmark/'}, [one for one in tree.texts(".py") if "injected_faults" in one])


def _verb(tree: Tree) -> None:
    path = "src/hmmscope/lab/verbs/options.py"
    text = tree.read(path)
    found = re.search(r"@dataclass\(frozen=True, kw_only=True\)\nclass BenchmarkOptions\(OverrideOptions\):\n(?:    .*\n|\n(?=    ))+\n\n", text)
    if found:
        record = found[0].rstrip() + "\n"
        head = record.index('"""\n', record.index('"""') + 3) + 4
        record = record[:head] + f'\n    function: ClassVar[str] = "{NEW}.verb:benchmark"\n' + record[head:]
        tree.write(
            f"{PLACE}/options.py",
            '"""The options of the verb `benchmark`. Imports nothing heavy."""\n\n'
            "from dataclasses import dataclass\nfrom typing import ClassVar\n\n"
            f"from hmmscope.lab.verbs.options import OverrideOptions, given, said\n\n\n{record}",
        )
        text = text.replace(found[0], "").replace('    "benchmark": BenchmarkOptions,\n', "")
        text = text.replace("from dataclasses import dataclass, field, fields\nfrom typing import Any\n", "import functools\nimport importlib.metadata\nfrom dataclasses import dataclass, field, fields\nfrom typing import Any\n\nfrom hmmscope.errors import InputError\n", 1)
        text = text.replace("#: Verbs as users type them, in the order of the help.", "#: Verbs of this package as users type them, in the order of the help.")
        tree.write(path, text.rstrip("\n") + "\n" + VERBS)
    tree.edit(f"{PLACE}/verb.py", "from hmmscope.lab.verbs.options import BenchmarkOptions\n", f"from {NEW}.options import BenchmarkOptions\n")
    path = "src/hmmscope/lab/cli.py"
    tree.edit(path, "from hmmscope.lab.verbs.options import VERBS, OverrideOptions\n", "from hmmscope.lab.verbs.options import OverrideOptions, verbs\n")
    tree.edit(path, "    verbs = parser.add_subparsers(", "    below_verb = parser.add_subparsers(")
    tree.edit(path, "sub = verbs.add_parser(", "sub = below_verb.add_parser(")
    tree.replace({r"\bVERBS\b": "verbs()"}, [path])
    tree.edit(
        path,
        'function = getattr(importlib.import_module(f"hmmscope.lab.verbs.{arguments.verb}"), arguments.verb)\n',
        'own = f"hmmscope.lab.verbs.{arguments.verb}:{arguments.verb}"\n'
        '    module, _, name = str(getattr(record, "function", own)).partition(":")\n'
        "    function = getattr(importlib.import_module(module), name)\n",
    )
    path = "studies/pyproject.toml"
    if "hmmscope.verbs" not in tree.read(path):
        tree.edit(
            path,
            "[tool.hatch.build",
            f'[project.entry-points."hmmscope.verbs"]\nbenchmark = "{NEW}.options:BenchmarkOptions"\n\n'
            f'[project.entry-points."hmmscope.folders"]\nbenchmark = "{NEW}.folders"\n\n[tool.hatch.build',
        )
    path = "src/hmmscope/__init__.py"
    tree.edit_re(path, rf"^    from {re.escape(NEW)}\.(checking|submission) import .*\n", "") if f"from {NEW}." in tree.read(path) else None
    tree.edit(
        path,
        '_MOVED = {"constructions": ("hmmscope_papers.constructions", "hmmscope-papers")}\n',
        "_MOVED = {\n"
        '    "benchmark": ("hmmscope_studies.benchmark.benchmark", "hmmscope-studies"),\n'
        '    "check_submission": ("hmmscope_studies.benchmark.check_submission", "hmmscope-studies"),\n'
        '    "constructions": ("hmmscope_papers.constructions", "hmmscope-papers"),\n'
        "}\n",
    )


def _folders(tree: Tree) -> None:
    tree.write("src/hmmscope/lab/verbs/folder_kind.py", KIND)
    tree.write(f"{PLACE}/folders.py", FOLDERS)
    path = "src/hmmscope/registry.py"
    tree.edit(path, '"page": "hmmscope.pages"}', '"page": "hmmscope.pages", "folder": "hmmscope.folders"}')
    if "def folder(" not in tree.read(path):
        tree.edit(
            path,
            "def claim(name: str)",
            'def folder(name: str) -> Callable[[T], T]:\n    """Register a kind of folder for `hmmscope check`, see `hmmscope.lab.verbs.folder_kind`."""\n'
            '    return _register("folder", name)\n\n\ndef claim(name: str)',
        )
    path = "src/hmmscope/lab/verbs/check.py"
    tree.edit_re(path, rf"^from {re.escape(NEW)}\.(board|checking|submission) import .*\n", "") if f"from {NEW}" in tree.read(path) else None
    tree.edit(path, "from hmmscope.errors import InputError\n", "from hmmscope import registry\nfrom hmmscope.errors import InputError\n")
    tree.edit(
        path,
        "    submissions = [folder for folder in options.folders if (Path(folder) / ENTRY).is_file()]\n",
        '    kinds = list(registry.entries("folder").values()) if options.folders else []\n'
        "    entered = {\n"
        "        folder: kind\n        for folder in options.folders\n        for kind in kinds\n"
        "        if kind.check_model and kind.is_one(Path(folder))\n    }\n"
        "    submissions = list(entered)\n",
    )
    tree.edit(
        path,
        "    boards = [folder for folder in others if is_board(Path(folder))]\n"
        "    checked = (check_submission(folder, run=options.run) for folder in submissions)\n",
        "    boards = {folder: kind for folder in others for kind in kinds if kind.check and kind.is_one(Path(folder))}\n"
        "    checked = (kind.check_model(folder, options.run) for folder, kind in entered.items())\n",
    )
    tree.edit(
        path,
        '*(f"{folder}: {check_board(Path(folder))[0]}" for folder in boards)',
        '*(f"{folder}: {kind.check(Path(folder))[0]}" for folder, kind in boards.items())',
    )
    tree.replace({r"`hmmscope\.lab\.verbs\.verify\.verify`, `check_submission` and `check_board`": "`hmmscope.lab.verbs.verify.verify` and `FolderKind`"}, [path])
    path = "src/hmmscope/lab/verbs/verify.py"
    tree.edit_re(path, rf"^from {re.escape(NEW)}\.(board|checking) import .*\n", "") if f"from {NEW}" in tree.read(path) else None
    tree.edit(path, "from hmmscope.analysis.curves import evaluate\n", "from hmmscope import registry\nfrom hmmscope.analysis.curves import evaluate\n")
    tree.edit(
        path,
        "    if not sealed and is_board(folder):\n        return check_board(folder)\n",
        '    for one in () if sealed else registry.entries("folder").values():\n'
        "        if one.check and one.is_one(folder):\n            return cast(tuple[str, seals.SealReport], one.check(folder))\n",
    )
    tree.edit(path, "*_CHECKS[kind](folder), str(found)]", "*_checked(kind, folder), str(found)]")
    tree.edit(
        path,
        "    found, ours = [], {seals.SEAL, *_KINDS} - {\"config.json\"}\n",
        "    found, ours = [], {seals.SEAL, *_KINDS} - {\"config.json\"}\n"
        '    kinds = registry.entries("folder").values()\n',
    )
    tree.edit(path, "or holds_cards(names):", "or any(one.holds(names) for one in kinds):")
    tree.edit(path, '    "submission": lambda folder: [check_submission(folder).partition(": ")[2]],\n', "")
    if "def _checked(" not in tree.read(path):
        tree.edit(
            path,
            "def _files(folder: Path)",
            "def _checked(kind: str, folder: Path) -> list[str]:\n"
            "    if kind in _CHECKS:\n        return _CHECKS[kind](folder)\n"
            '    return [str(registry.lookup("folder", kind).check_model(folder, None)).partition(": ")[2]]\n\n\n'
            "def _files(folder: Path)",
        )
    text = tree.read(path)
    if "import Any\n" in text and "cast" not in text.partition("import Any")[0][-20:] and "import Any, cast" not in text:
        tree.edit(path, "from typing import Any\n", "from typing import Any, cast\n")


def _checks(tree: Tree) -> None:
    path = "scripts/check_architecture.py"
    tree.edit_re(path, r'^    "lab\.benchmark": \(\n(?:        .*\n)+    \),\n', "")
    tree.edit_re(path, r'^            "lab\.benchmark",\n', "")
    tree.edit(
        path,
        'and not path.startswith(f"{PAPERS.name}/constructions/")',
        'and not path.startswith(BUILDING)',
    )
    if "BUILDING =" not in tree.read(path):
        tree.edit(
            path,
            "OUTER = (PAPERS, STUDIES)\n",
            "OUTER = (PAPERS, STUDIES)\n#: Packages of them that build on the modules of the library themselves.\n"
            'BUILDING = (f"{PAPERS.name}/constructions/", f"{STUDIES.name}/benchmark/")\n',
        )
        tree.edit(
            path,
            '    "hmmscope_studies": (\n',
            '    "hmmscope_studies.benchmark": (\n        "HMM-bench: frozen tasks and submissions; a verb and two kinds of folder",\n'
            '        SMALL | COMPONENTS | {"runs", "storage", "reprs", "lab.tasks", "lab.model_file", "lab.experiments", "lab.verbs"},\n    ),\n'
            '    "hmmscope_studies": (\n',
        )
    tree.replace({r"constructions build on the library itself\.": "what builds on modules of the library is not."}, [path])


def _tests(tree: Tree) -> None:
    tree.edit("tests/test_architecture.py", 'if parts[:1] == ["constructions"] else first', 'if parts[:1] in (["constructions"], ["benchmark"]) else first')
    tree.edit("tests/test_architecture.py", 'return f"{first}.constructions" if', 'return f"{first}.{parts[0]}" if')
    for path in ("tests/test_names_change_nothing.py", "tests/test_glossary.py"):
        tree.replace(
            {
                r"^((?:.*\n)*?)from hmmscope\.lab\.verbs\.options import VERBS\n": r"\1from hmmscope.lab.verbs.options import verbs\n",
                r"(?<!`options\.)\bVERBS\b(?!`)": "verbs()",
            },
            [path],
        )
    path = "tests/test_single_writer.py"
    tree.replace({r'"lab/benchmark/(\w+)\.py"': r'"hmmscope_studies/benchmark/\1.py"'}, [path])
    tree.edit(
        path,
        "in (PACKAGE / name).read_text()",
        "in source_of(name).read_text()",
    )
    if "def source_of(" not in tree.read(path):
        tree.edit_re(
            path,
            r"^(EVERY = .*\n)",
            r"\1\n\ndef source_of(name: str) -> Path:\n"
            r'    """A module by its path below src/hmmscope or src/."""' "\n"
            r'    return next(path for path in EVERY if path.as_posix().endswith((f"/src/{name}", f"/src/hmmscope/{name}")))' "\n\n\n",
        )
    tree.edit_re("pyproject.toml", r'^(pythonpath = \[.*)\]', lambda found: found[0] if "studies/tests/verbs" in found[0] else f'{found[1]}, "studies/tests/verbs"]')
