"""Stage 2: tests of papers and studies stand with them; fixtures, helpers and the frozen data are found by all."""

import re
from pathlib import PurePosixPath

import tables
from tree import Tree

SHARED = '''\
"""Fixtures of tests on tables that are made up, for the folders of experiments of every distribution."""
'''
CONFTEST = '''\
"""Tables of these tests are made up, of few seeds with any spread: their rules are judged without asking for power."""

from made_up_tables import whatever_its_power, whichever_seeds_are_alike  # noqa: F401 - fixtures
'''
HOMES = '''\
HERE = Path(__file__).parent
#: Each distribution keeps what is frozen of its experiments; in the order of dependency.
_OUTER = {"hmmscope_papers": "papers", "hmmscope_studies": "studies"}
HOMES = (HERE, *(HERE.parents[1] / name / "tests" / "evidence" for name in _OUTER.values()))


def place(kind: str, experiment: str) -> Path:
    """The file of an experiment: "fixtures" or "golden_verdicts"."""
    files = [home / kind / f"{experiment}.json.xz" for home in HOMES]
    package = type(experiment_named(experiment)).__module__.partition(".")[0]
    own = HERE.parents[1] / _OUTER.get(package, "") / "tests" / "evidence" / kind / f"{experiment}.json.xz"
    return next((file for file in files if file.is_file()), own)
'''


def run(tree: Tree) -> None:
    moved = _move(tree)
    _conftest(tree)
    _frozen(tree)
    _helpers(tree, moved)
    _named(tree, moved)


def _target(tree: Tree, path: str) -> str | None:
    """The distribution that a test belongs to; None: it stays."""
    short = path.removeprefix("tests/")
    for package, names in tables.TESTS.items():
        if short in names:
            return package
    if short.partition("/")[0] not in tables.FOLLOWING or not path.rpartition("/")[2].startswith("test_"):
        return None
    text = tree.read(path)
    return next((one for one in ("studies", "papers") if re.search(rf"\bhmmscope_{one}\b", text)), None)


def _move(tree: Tree) -> dict[str, str]:
    """Where tests went, by where they were, below tests/."""
    moved = {}
    for path in [name for name in tree.listed() if name.startswith("tests/") and name.endswith(".py")]:
        if (package := _target(tree, path)) is None:
            continue
        target = f"{package}/{path}"
        tree.move(path, target)
        text = tree.read(target)
        made = re.sub(r"(Path\(__file__\)(?:\.resolve\(\))?)\.parents\[2\]", r"\1.parents[3]", text)
        if made != text:
            tree.write(target, made)
        moved[path.removeprefix("tests/")] = target
    if not moved:  # it was done: by what is there
        for name in tree.listed():
            if found := re.fullmatch(r"(?:papers|studies)/tests/(.*\.py)", name):
                moved[found[1]] = name
    return moved


def _conftest(tree: Tree) -> None:
    """One conftest.py for all, at the root."""
    tree.move("tests/conftest.py", "conftest.py")
    path = "tests/experiments/conftest.py"
    text = tree.read(path)
    if "made_up_tables" not in text:
        body = text.partition('"""\n')[2]
        tree.write("tests/made_up_tables.py", SHARED + body)
        tree.write(path, CONFTEST)
    for package in ("papers", "studies"):
        tree.write(f"{package}/tests/experiments/conftest.py", CONFTEST)


def _frozen(tree: Tree) -> None:
    """Frozen tables, verdicts and measurements, each with its experiment."""
    for folder in ("evidence/fixtures", "evidence/golden_verdicts", "experiments/measured"):
        names = [one for one in tree.listed() if one.startswith(f"tests/{folder}/") and one.endswith(".json.xz")]
        for package in ("papers", "studies"):
            own = [one for one in names if tables.package_of(PurePosixPath(one).name.removesuffix(".json.xz")) == package]
            tree.move_into(own, f"{package}/tests/{folder}")
    path = "tests/evidence/golden_verdicts.py"
    if "def place(" not in tree.read(path):
        tree.edit(path, "HERE = Path(__file__).parent\n", HOMES)
        tree.edit(path, '(HERE / kind / f"{experiment}.json.xz").read_bytes()', "place(kind, experiment).read_bytes()")
        tree.edit(
            path,
            '    (HERE / kind).mkdir(exist_ok=True)\n    (HERE / kind / f"{experiment}.json.xz").write_bytes(',
            "    file = place(kind, experiment)\n    file.parent.mkdir(parents=True, exist_ok=True)\n    file.write_bytes(",
        )
        tree.edit(
            path,
            '(HERE / "golden_verdicts" / f"{experiment}.json.xz").is_file()',
            'place("golden_verdicts", experiment).is_file()',
        )
        tree.edit(
            path,
            'sorted(path.name.removesuffix(".json.xz") for path in (HERE / "fixtures").glob("*.json.xz"))',
            'sorted(path.name.removesuffix(".json.xz") for home in HOMES for path in home.glob("fixtures/*.json.xz"))',
        )
        if "experiment_named" not in (text := tree.read(path)).partition("HERE =")[0]:
            line = "from hmmscope.lab.experiments.experiment import experiment_named\n"
            tree.write(path, text.replace("from hmmscope.ties", line + "from hmmscope.ties", 1))
    tree.edit_re(
        "tests/evidence/mutants.py",
        r'sorted\(path\.name\.removesuffix\("\.json\.xz"\) for path in \(Path\(__file__\)\.parent / "fixtures"\)\.glob\("\*\.json\.xz"\)\)',
        "experiments()",
    )
    text = tree.read("tests/evidence/mutants.py")
    if not re.search(r"^from golden_verdicts import .*\bexperiments\b", text, re.MULTILINE):
        tree.edit_re("tests/evidence/mutants.py", r"^from golden_verdicts import (.*)$", r"from golden_verdicts import experiments, \1")
    if "Path(" not in text and "from pathlib import Path\n" in text:
        tree.edit("tests/evidence/mutants.py", "from pathlib import Path\n", "")
    path = "tests/experiments/measured.py"
    if "def place(" not in tree.read(path):
        tree.edit(
            path,
            'HERE = Path(__file__).parent / "measured"\n',
            "#: Each distribution keeps what is frozen of its experiments.\n"
            '_OUTER = {"hmmscope_papers": "papers", "hmmscope_studies": "studies"}\n\n\n'
            "def place(name: str) -> Path:\n"
            '    """The file of an experiment."""\n'
            '    package = type(experiment_named(name)).__module__.partition(".")[0]\n'
            '    root = Path(__file__).parents[2] / _OUTER.get(package, "")\n'
            '    return root / "tests" / "experiments" / "measured" / f"{name}.json.xz"\n\n\n',
        )
        tree.edit(path, 'path = HERE / f"{name}.json.xz"', "path = place(name)")
        tree.edit(path, "    HERE.mkdir(exist_ok=True)\n", "    place(name).parent.mkdir(parents=True, exist_ok=True)\n")
        tree.edit(path, '(HERE / f"{name}.json.xz").write_bytes', "place(name).write_bytes")
    pages = [one for one in tree.texts(".py", ".md") if not one.startswith(("papers/src", "studies/src"))]
    words = {
        r"(?<![\w/*])tests/evidence/(fixtures|golden_verdicts)(?=/)": r"{papers,studies}/tests/evidence/\1",
        r"(?<![\w/*])tests/experiments/measured/": "{papers,studies}/tests/experiments/measured/",
    }
    tree.replace(words, [one for one in pages if one not in ("tests/evidence/golden_verdicts.py", "tests/experiments/measured.py")])


def _helpers(tree: Tree, moved: dict[str, str]) -> None:
    """Folders of modules that tests in other folders import are on the path, as is the root of what is common."""
    homes = {}
    for name in tree.listed():
        place = PurePosixPath(name)
        if name.endswith(".py") and "tests" in place.parts and not place.name.startswith(("test_", "conftest", "__")):
            homes[place.stem] = place.parent.as_posix()
    needed = set()
    for name in moved.values():
        for word in re.findall(r"^(?:from|import) (\w+)", tree.read(name), re.MULTILINE):
            home = homes.get(word, "tests")
            if home not in ("tests", PurePosixPath(name).parent.as_posix()):
                needed.add(home)
    needed |= {homes[PurePosixPath(name).stem] for name in moved.values() if PurePosixPath(name).stem in homes}
    words = ", ".join(f'"{one}"' for one in (".", "scripts", "tests", *sorted(needed)))
    tree.edit_re("pyproject.toml", r'^pythonpath = \[.*\]', f"pythonpath = [{words}]")
    tree.edit("pyproject.toml", 'testpaths = ["tests"]', 'testpaths = ["tests", "papers/tests", "studies/tests"]')
    tree.edit_re(
        "pyproject.toml",
        r'^src = \[".", "src", "papers/src", "studies/src", "tests", "tests/\*"\]',
        'src = [".", "src", "papers/src", "studies/src", "tests", "tests/*", "papers/tests/*", "studies/tests/*"]',
    )
    tree.edit("pyproject.toml", '"tests/*" = ["F811"]', '"**/tests/*" = ["F811"]')
    tree.edit_re("Makefile", r"(ruff (?:format|check)[^\n]*src papers studies bench tests scripts)(?! conftest)", r"\1 conftest.py")
    tree.edit_re(
        "Makefile",
        r"pytest -rs tests/interop tests/models tests/sequences (?!papers)",
        "pytest -rs tests/interop tests/models tests/sequences papers/tests/models studies/tests/interop ",
    ) if tree.has("studies/tests/interop") and tree.has("papers/tests/models") else None
    tree.edit(
        "tests/adversarial/__main__.py",
        "(HERE, TESTS, *(TESTS / name for name in FOLDERS))",
        '(HERE, ROOT, ROOT / "scripts", TESTS, *(TESTS / name for name in FOLDERS))',
    )


def _named(tree: Tree, moved: dict[str, str]) -> None:
    """Names of tests in lists of faults, pages and scripts."""
    longest = sorted((old for old in moved if "/" in old), key=len, reverse=True)
    pages = [one for one in tree.texts(".py", ".md", ".sh", "Makefile") if one not in moved.values()]
    pairs = {rf"(?<![\w/])tests/{re.escape(old)}": moved[old] for old in longest}
    pairs |= {rf"(?<=[\"'`]){re.escape(old)}(?=::|`)": f"../{moved[old]}" for old in longest}
    tree.replace(pairs, pages)
