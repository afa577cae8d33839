"""Stage 1: papers and studies are distributions of their own, with what theorems construct; imports follow."""

import re
import tomllib

import tables
from tree import Tree, cells, dotted, rename

PAPERS, STUDIES = tables.PAPERS_SRC, tables.STUDIES_SRC

PAPERS_TOML = """\
[build-system]
requires = ["hatchling>=1.26"]
build-backend = "hatchling.build"

[project]
name = "hmmscope-papers"
version = "VERSION"
description = "The figures, tables, theorems and constructions of [Limits] and [MultiTask], as experiments of hmmscope"
license = "Apache-2.0"
requires-python = ">=3.11"
authors = [{ name = "The hmmscope authors" }]
dependencies = ["hmmscope==VERSION"]

[project.entry-points."hmmscope.experiments"]
papers = "hmmscope_papers.experiments"

[project.urls]
# owner
# end
"Paper [Limits]" = "https://arxiv.org/abs/2406.04089"
"Paper [MultiTask]" = "https://arxiv.org/abs/2506.01919"

[tool.hatch.build.targets.wheel]
packages = ["src/hmmscope_papers"]
"""
STUDIES_TOML = """\
[build-system]
requires = ["hatchling>=1.26"]
build-backend = "hatchling.build"

[project]
name = "hmmscope-studies"
version = "VERSION"
description = "Experiments of hmmscope on questions beyond the papers [Limits] and [MultiTask]"
license = "Apache-2.0"
requires-python = ">=3.11"
authors = [{ name = "The hmmscope authors" }]
dependencies = ["hmmscope==VERSION", "hmmscope-papers==VERSION"]

[project.entry-points."hmmscope.experiments"]
studies = "hmmscope_studies.experiments"

[tool.hatch.build.targets.wheel]
packages = ["src/hmmscope_studies"]
"""

PAPERS_INIT = '''\
"""The two papers, [Limits] and [MultiTask]: a module for each figure, table and theorem, and the networks constructed.

Nothing is registered by importing the package; its entry point is `hmmscope_papers.experiments`.
"""
'''
STUDIES_INIT = '''\
"""Questions beyond the papers, as experiments with claims.

Nothing is registered by importing the package; its entry point is `hmmscope_studies.experiments`.
"""
'''
REGISTERING = '''\
"""Registers every experiment and claim of the package: its entry point imports this module."""

from hmmscope import registry

for _package in ({packages}):
    registry.import_all(f"{{__package__}}.{{_package}}")
'''

MOVED = '''\
_get, __dir__, _names = lazily(__name__)
__all__ = ["__version__", *_names]

#: Public names of earlier versions that other distributions have now: module and distribution.
_MOVED = {"constructions": ("hmmscope_papers.constructions", "hmmscope-papers")}


def __getattr__(name: str) -> Any:
    if name in _MOVED:
        module, distribution = _MOVED[name]
        raise AttributeError(f"module 'hmmscope' has no attribute {name!r}: it is {module}, in the package {distribution}")
    return _get(name)
'''


def run(tree: Tree) -> None:
    modules = tables.modules()
    _packages(tree)
    _claims(tree)
    _imports(tree, modules)
    _library(tree)
    _checks(tree)
    _tests(tree)
    _settings(tree)
    _documents(tree)


def _packages(tree: Tree) -> None:
    """The modules."""
    tree.move("src/hmmscope_papers", PAPERS)
    tree.move("src/hmmscope/constructions", f"{PAPERS}/constructions")
    for package, sources in tables.STUDIES.items():
        tree.write(f"{STUDIES}/{package}/__init__.py", f'"""{tables.ABOUT[package]}"""\n')
        for old, names in sources.items():
            for name in names:
                tree.move(f"{PAPERS}/{old}/{name}.py", f"{STUDIES}/{package}/{name}.py")
    for old in ("beliefs", "header", "language"):
        tree.remove(f"{PAPERS}/{old}/__init__.py")
    version = re.search(r'^__version__ = "(.*)"', tree.read("src/hmmscope/__init__.py"), re.MULTILINE)[1]
    tree.write("papers/pyproject.toml", PAPERS_TOML.replace("VERSION", version))
    tree.write("studies/pyproject.toml", STUDIES_TOML.replace("VERSION", version))
    tree.write(f"{PAPERS}/__init__.py", PAPERS_INIT)
    tree.write(f"{STUDIES}/__init__.py", STUDIES_INIT)
    for place, packages in ((PAPERS, ("limits", "multitask")), (STUDIES, (*tables.STUDIES,))):
        words = ", ".join(f'"{name}"' for name in packages)
        tree.write(f"{place}/experiments.py", REGISTERING.format(packages=words))
        tree.write(f"{place}/py.typed", "")


def _claims(tree: Tree) -> None:
    """Records of claims beside the modules that measure, and the deviations of each package from its paper."""
    for package, names in tables.EXPERIMENTS.items():
        olds = (*tables.STUDIES[package],)
        for name in names:
            source = next((f"{PAPERS}/{old}/claims/{name}.toml" for old in olds if tree.has(f"{PAPERS}/{old}/claims/{name}.toml")), "")
            if source:
                tree.move(source, f"{STUDIES}/{package}/claims/{name}.toml")
            elif not tree.has(f"{STUDIES}/{package}/claims/{name}.toml"):
                tree.by_hand.append(f"claims of {name}: not found")
    for old, package in (("beliefs", "beliefs"), ("header", "prompted"), ("language", "language")):
        if tree.has(f"{PAPERS}/{old}/claims/deviations.toml"):
            tree.move(f"{PAPERS}/{old}/claims/deviations.toml", f"{STUDIES}/{package}/claims/deviations.toml")
    for old, packages in (("limits", ("architectures", "beyond_limits")), ("multitask", ("beyond_multitask",))):
        path = f"{PAPERS}/{old}/claims/deviations.toml"
        text = tree.read(path)
        for package in packages:
            if (part := _deviations(text, set(tables.EXPERIMENTS[package]), keep=True)) is not None:
                tree.write(f"{STUDIES}/{package}/claims/deviations.toml", part)
        moved = {name for package in packages for name in tables.EXPERIMENTS[package]}
        tree.write(path, _deviations(text, moved, keep=False) or text)


def _deviations(text: str, names: set[str], *, keep: bool) -> str | None:
    """A table of deviations with only these experiments, or without them, and the facts that they need; None if none is left."""
    data = tomllib.loads(text)
    lines, section, made, needed = text.splitlines(), "", [], set()
    for key, facts in data.get("experiments", {}).items():
        if (key.partition("/")[2].partition("@")[0] in names) is keep:
            needed |= set(facts)
    if not needed:
        return None
    if not keep:
        needed |= {fact for facts in data.get("claims", {}).values() for fact in facts}
    for line in lines:
        if head := re.fullmatch(r"\[(\w+)\]", line):
            section = head[1]
        elif section and "=" in line:
            key = line.partition(" =")[0].strip('"')
            own = (key.partition("/")[2].partition("@")[0] in names) is keep
            if (section == "facts" and key not in needed) or (section == "experiments" and not own):
                continue
            if section == "claims" and keep:
                continue
        made.append(line)
    found = "\n".join(made) + "\n"
    return found.replace("[claims]\n\n", "") if keep else found


def _imports(tree: Tree, modules: dict[str, str]) -> None:
    """Imports and dotted names everywhere."""
    names = dotted(modules)
    for name in tree.texts(".py"):
        before = tree.read(name)
        after = _from_front_door(rename(modules | {"hmmscope.constructions": "hmmscope_papers.constructions"}, before))
        if name.endswith(("multitask/fig2.py", "multitask/fig3b.py", "multitask/fig7.py")):
            after = after.replace(
                "from hmmscope_studies.beyond_multitask.construction_vs_trained import construct\n",
                "from hmmscope_papers.multitask.side_by_side import construct\n",
            )
        if after != before:
            tree.write(name, after)
    for name in tree.texts(".md", ".toml", ".sh", ".yml", ".txt", "Makefile"):
        before = tree.read(name)
        after = names(before)
        if name.endswith(".md"):
            after = re.sub(r"^```.*?^```$", lambda found: _from_front_door(found[0]), after, flags=re.MULTILINE | re.DOTALL)
        if after != before:
            tree.write(name, after)
    for name in tree.texts(".ipynb"):
        before = tree.read(name)
        if "constructions" in before and (after := cells(before, lambda text: _from_front_door(names(text)))) != before:
            tree.write(name, after)
    paths = {re.escape(old.replace(".", "/")) + r"(?=\.py|/)": new.replace(".", "/") for old, new in modules.items()}
    paths = {r"(?<![\w/])src/" + old: _place(new) for old, new in paths.items()} | paths
    paths[r"(?<!papers/)src/hmmscope_papers/"] = f"{PAPERS}/"
    tree.replace(paths, tree.texts(".py", ".md", ".toml", ".sh"))


def _place(module: str) -> str:
    return f"{'papers' if module.startswith('hmmscope_papers') else 'studies'}/src/{module}"


def _from_front_door(text: str) -> str:
    """``hs.constructions`` and ``from hmmscope import constructions`` of a module, a block or a cell."""
    line = "from hmmscope_papers import constructions\n"
    text = re.sub(r"^from hmmscope import constructions$\n?", line, text, flags=re.MULTILINE)
    return with_import(text, r"(?<![\w.\"'])(?:hs|hmmscope)\.constructions\b(?!\w)", "constructions", line)


def with_import(text: str, pattern: str, name: str, line: str) -> str:
    """Replace a pattern by a name, and import it in a module, a block or a cell where it is used."""
    used = re.sub(pattern, name, text)
    if used == text or line in used:
        return used
    lines = used.splitlines(keepends=True)
    heads = [at for at, one in enumerate(lines) if re.match(r"(import|from) \w[\w.]*( import [^(\n]*)?( as \w+)?$", one)]
    if not heads:
        at = 1 if used.startswith("```") else 0
        while at < len(lines) and not lines[at].strip():
            at += 1
        return "".join([*lines[:at], line, "\n", *lines[at:]])
    return "".join([*lines[: heads[-1] + 1], line, *lines[heads[-1] + 1 :]])


def _library(tree: Tree) -> None:
    """The library knows neither: its error names the package."""
    path = "src/hmmscope/__init__.py"
    tree.edit_re(path, r"^    from hmmscope_papers import constructions as constructions\n", "")
    tree.edit_re(path, r"^    from hmmscope import constructions as constructions\n", "") if "import constructions as" in tree.read(path) else None
    tree.edit(path, "from typing import TYPE_CHECKING\n", "from typing import TYPE_CHECKING, Any\n")
    tree.edit(path, '__getattr__, __dir__, _names = lazily(__name__)\n__all__ = ["__version__", *_names]\n', MOVED)
    tree.edit(
        "src/hmmscope/models/rehearsal.py",
        'return all(_package(part) in ("hmmscope", "hmmscope_papers", "torch") for part in model.modules())',
        'return all(_package(part).startswith(("hmmscope", "torch")) for part in model.modules())',
    )
    tree.edit("src/hmmscope/registry.py", '    papers = "hmmscope_papers"\n', '    papers = "hmmscope_papers.experiments"\n')


def _checks(tree: Tree) -> None:
    """scripts/check_architecture.py, and what scripts say of places."""
    path = "scripts/check_architecture.py"
    tree.edit(
        path,
        'PACKAGE, PAPERS = ROOT / "src" / "hmmscope", ROOT / "src" / "hmmscope_papers"\n',
        'PACKAGE, PAPERS = ROOT / "src" / "hmmscope", ROOT / "papers" / "src" / "hmmscope_papers"\n'
        'STUDIES = ROOT / "studies" / "src" / "hmmscope_studies"\n'
        "#: Distributions beside the library.\n"
        "OUTER = (PAPERS, STUDIES)\n",
    )
    tree.edit(
        path,
        "    return own | {str(path.relative_to(PAPERS.parent)): path.read_text() for path in sorted(PAPERS.rglob(\"*.py\"))}\n",
        "    return own | {\n"
        "        str(path.relative_to(package.parent)): path.read_text()\n"
        "        for package in OUTER\n"
        "        for path in sorted(package.rglob(\"*.py\"))\n"
        "    }\n",
    )
    tree.edit(path, "[] if parts[0] == PAPERS.name else", "[] if parts[0] in (PAPERS.name, STUDIES.name) else")
    tree.edit(
        path,
        'return {PAPERS.name: "papers", "lab": "lab"}.get(first, "library")',
        'return {PAPERS.name: "papers", STUDIES.name: "studies", "lab": "lab"}.get(first, "library")',
    )
    tree.edit(path, 'order = ("library", "lab", "papers")', 'order = ("library", "lab", "papers", "studies")')
    tree.edit(
        path,
        'target = "papers" if one.name.startswith(PAPERS.name) else "lab" if lab(one.name) else "library"',
        'target = ring(one.name.replace(".", "/").removeprefix("hmmscope/"))',
    )
    tree.edit_re(
        path,
        r'        \{name for path, text in modules\.items\(\) if ring\(path\) == "papers" for name in used\(path, text, doors\)\}\n',
        "        {name for path, text in modules.items() if experiments(path) for name in used(path, text, doors)}\n",
    )
    tree.edit(
        path,
        "def private_paper_names(",
        "def experiments(path: str) -> bool:\n"
        '    """Whether a module is of the papers or the studies; constructions build on the library itself."""\n'
        f'    return ring(path) in ("papers", "studies") and not path.startswith(f"{{PAPERS.name}}/constructions/")\n\n\n'
        "def private_paper_names(",
    )
    if "def lab(name" in (text := tree.read(path)):  # no longer asked
        if text.count("lab(one.name)") == 0:
            tree.edit_re(path, r'^def lab\(name: str\) -> bool:\n(?:    .*\n)+\n\n', "")
    tree.edit_re(path, r'^LABORATORY = (.*)"constructions", ', r"LABORATORY = \1")
    tree.edit_re(path, r'^    "constructions": \(.*\),\n', "")
    tree.edit(path, 'SMALL | COMPONENTS | {"constructions", "storage", "system_info", "reprs"},', 'SMALL | COMPONENTS | {"storage", "system_info", "reprs"},')
    tree.edit_re(
        path,
        r'^    "hmmscope_papers": \(\n(.*\n)        LABORATORY \| \{"lab\.evidence", "lab\.experiments"\},\n    \),\n',
        '    "hmmscope_papers.constructions": (\n        "weights from theorems",\n'
        '        SMALL | {"models", "processes", "system_info", "reprs"},\n    ),\n'
        '    "hmmscope_papers": (\n'
        '        "figures, tables and theorems, one file each, with claims in `claims/`; public names only",\n'
        '        LABORATORY | {"lab.evidence", "lab.experiments", "hmmscope_papers.constructions"},\n    ),\n'
        '    "hmmscope_studies": (\n'
        '        "questions beyond the papers, with claims in `claims/`; public names only",\n'
        '        LABORATORY | {"lab.evidence", "lab.experiments", "hmmscope_papers", "hmmscope_papers.constructions"},\n    ),\n',
    )
    tree.edit(
        path,
        '    Section("lines of the papers", of_ring("papers")),\n',
        '    Section("lines of the papers", of_ring("papers")),\n    Section("lines of the studies", of_ring("studies")),\n',
    )


def _tests(tree: Tree) -> None:
    """Tests that name the folders of the packages."""
    path = "tests/test_architecture.py"
    tree.edit(path, 'RINGS = ("hmmscope", "hmmscope_papers")', 'RINGS = ("hmmscope", "hmmscope_papers", "hmmscope_studies")')
    tree.edit(
        path,
        '    if first != "hmmscope":\n        return first\n',
        '    if first != "hmmscope":\n        return f"{first}.constructions" if parts[:1] == ["constructions"] else first\n',
    )
    tree.edit(path, 'if unit(path) == "hmmscope_papers" and name in public:', 'if unit(path) in RINGS and name in public:')
    tree.edit_re(path, r"^        (hmmscope|constructions)(_papers)?\.?(constructions)?,\n(?=        hmmscope\.interop)", "")
    tree.edit_re(path, r"^(from hmmscope_papers import constructions\n)", "") if "from hmmscope_papers import constructions" in tree.read(path) else None
    tree.edit(
        "tests/test_planted_faults.py",
        '(PACKAGE, PACKAGE.with_name("hmmscope_papers"))',
        "(PACKAGE, *(Path(one.__file__).parent for one in (hmmscope_papers, hmmscope_studies)))",
    )
    tree.edit(
        "tests/test_planted_faults.py",
        "assert (PACKAGE / fault.file).read_text()",
        "assert source_of(fault.file).read_text()",
    )
    tree.edit(
        "tests/test_planted_faults.py",
        ".read_bytes() == (PACKAGE / fault.file).read_bytes()",
        ".read_bytes() == source_of(fault.file).read_bytes()",
    )
    tree.edit(
        "tests/test_planted_faults.py",
        "PACKAGE = Path(package_file).parent\n",
        "PACKAGE = Path(package_file).parent\n\n\n"
        "def source_of(file: str) -> Path:\n"
        '    """A file below src/hmmscope, or ``../<package>/<file>`` of another package."""\n'
        '    if not file.startswith("../"):\n        return PACKAGE / file\n'
        '    package, _, rest = file.removeprefix("../").partition("/")\n'
        "    return Path(str(importlib.import_module(package).__file__)).parent / rest\n\n",
    )
    text = tree.read("tests/test_planted_faults.py")
    if "import importlib\n" not in text:
        tree.edit_re("tests/test_planted_faults.py", r"\A(\"\"\".*?\"\"\"\n\n)", r"\1import importlib\n")
    if "import hmmscope_papers\n" not in text:
        tree.edit_re("tests/test_planted_faults.py", r"^(import pytest\n)", r"\1import hmmscope_papers\nimport hmmscope_studies\n")
    path = "tests/test_single_writer.py"
    tree.edit(
        path,
        'PAPERS = PACKAGE.with_name("hmmscope_papers")\n',
        "OUTER = [Path(str(one.__file__)).parent for one in (hmmscope_papers, hmmscope_studies)]\n"
        'EVERY = sorted(path for folder in (PACKAGE, *OUTER) for path in folder.rglob("*.py"))\n',
    )
    tree.edit(path, 'sorted([*PACKAGE.rglob("*.py"), *PAPERS.rglob("*.py")])', "EVERY", every=True)
    tree.edit(path, '[*PACKAGE.rglob("*.py"), *PAPERS.rglob("*.py")]', "EVERY")
    tree.edit(path, "str(path.relative_to(PACKAGE.parent))", 'path.as_posix().rpartition("/src/")[2]', every=True)
    if "import hmmscope_papers\n" not in tree.read(path):
        tree.edit_re(path, r"^(import hmmscope\n)", r"\1import hmmscope_papers\nimport hmmscope_studies\n")
    path = "tests/evidence/test_sensitivity.py"
    tree.edit(path, 'PAPERS = Path(__file__).parents[2] / "src" / "hmmscope_papers"\n', "ROOT = Path(__file__).parents[2]\n")
    tree.edit_re(
        path,
        r'^@pytest\.mark\.parametrize\("paper", \[.*\]\)\n(def test_every_deviation_is_a_fact_of_the_table\()paper: str',
        r'@pytest.mark.parametrize("folder", sorted(ROOT.glob("*/src/*/*/claims")), ids=lambda one: one.parent.name)\n\1folder: Path',
    )
    tree.edit(path, 'deviations(PAPERS / paper / "claims", claim.experiment, scale)', "deviations(folder, claim.experiment, scale)")
    tree.edit(path, '(PAPERS.parents[1] / "results"', '(ROOT / "results"')
    path = "tests/evidence/test_mutants.py"
    tree.edit(path, 'if module.startswith("hmmscope_papers") and', "if module.startswith(OUTER) and")
    tree.edit_re(
        path,
        r'^    return \{\n        key\.removeprefix\("hmmscope_papers\."\): one for key, one in found\.items\(\) if key\.startswith\("hmmscope_papers"\)\n    \}\n',
        '    return {key.partition(".")[2]: one for key, one in found.items() if key.startswith(OUTER)}\n',
    )
    tree.edit(
        path,
        'readers = (package / "lab", package.with_name("hmmscope_papers"))',
        "readers = (package / \"lab\", *(Path(str(one.__file__)).parent for one in (hmmscope_papers, hmmscope_studies)))",
    )
    if "OUTER =" not in tree.read(path):
        tree.edit_re(path, r"^(RESULTS = .*\n)", r'\1#: Packages whose constants and functions rules use.\nOUTER = ("hmmscope_papers.", "hmmscope_studies.")\n')
        tree.edit_re(path, r"^(import hmmscope\n)", r"\1import hmmscope_papers\nimport hmmscope_studies\n")
    names = {f'"{old.removeprefix("hmmscope_papers.")}': f'"{new.removeprefix("hmmscope_studies.")}' for old, new in tables.modules().items() if "studies" in new}
    tree.replace({re.escape(old) + r"(?=[:\"])": new for old, new in names.items()}, [path])
    tree.edit_re(
        "tests/test_names_change_nothing.py",
        r'in \(ROOT / "src"\)\.rglob\("\*\.py"\):',
        'in [one for name in ("", "papers", "studies") for one in (ROOT / name / "src").rglob("*.py")]:',
    )
    tree.replace(
        {r'line\.endswith\("-e \."\)': 'line.endswith("-e . -e papers -e studies")'},
        ["tests/test_supply_chain.py"],
    )
    tree.edit(
        "tests/evidence/reach.py",
        'packages = {"hmmscope", "hmmscope_papers", *',
        'packages = {"hmmscope", "hmmscope_papers", "hmmscope_studies", *',
    )
    tree.edit(
        "tests/conftest.py",
        '"models", "constructions", "training"',
        '"models", "training"',
    )
    tree.edit(
        "tests/conftest.py",
        'jaxtyping.install_import_hook([f"hmmscope.{package}" for package in ANNOTATED], None)',
        'jaxtyping.install_import_hook([*(f"hmmscope.{package}" for package in ANNOTATED), "hmmscope_papers.constructions"], None)',
    )
    tree.edit(
        "tests/test_glossary.py",
        'sorted(ROOT.glob("src/**/*.py"))',
        'sorted([*ROOT.glob("src/**/*.py"), *ROOT.glob("*/src/**/*.py")])',
    )
    tree.edit("tests/test_glossary.py", 'str(path.relative_to(ROOT / "src"))', 'path.as_posix().rpartition("/src/")[2]')


def _settings(tree: Tree) -> None:
    """Root pyproject.toml and Makefile."""
    path = "pyproject.toml"
    tree.edit(path, '[project.entry-points."hmmscope.experiments"]\npapers = "hmmscope_papers"\n\n', "")
    tree.edit(path, 'packages = ["src/hmmscope", "src/hmmscope_papers"]', 'packages = ["src/hmmscope"]')
    tree.edit(path, 'src = [".", "src", "tests", "tests/*"]', 'src = [".", "src", "papers/src", "studies/src", "tests", "tests/*"]')
    tree.edit(path, 'packages = ["hmmscope", "hmmscope_papers", "bench"]', 'packages = ["hmmscope", "hmmscope_papers", "hmmscope_studies", "bench"]')
    tree.edit(path, 'mypy_path = "src:."', 'mypy_path = "src:papers/src:studies/src:."')
    path = "Makefile"
    tree.edit(path, "src bench tests scripts", "src papers studies bench tests scripts", every=True)
    tree.edit(path, "\t$(PIP) --no-deps --no-build-isolation -e .\n", "\t$(PIP) --no-deps --no-build-isolation -e . -e papers -e studies\n")
    tree.edit_re(path, r'( -e "\.\[[\w,]+\]")(?! -e papers)', r"\1 -e papers -e studies")
    tree.edit_re(path, r"^\.venv/\.installed: pyproject\.toml ", ".venv/.installed: pyproject.toml papers/pyproject.toml studies/pyproject.toml ")


def _documents(tree: Tree) -> None:
    """What pages say of places."""
    if "`papers/src/hmmscope_papers/*/claims/<experiment>.toml`" in tree.read("docs/experiments.md"):
        tree.edit(
            "docs/experiments.md",
            "`papers/src/hmmscope_papers/*/claims/<experiment>.toml`",
            "`claims/<experiment>.toml` beside its module",
        )
    tree.edit_re(
        "CONTRIBUTING.md",
        r"and `hmmscope_papers` the experiments\.",
        "`papers/` (`hmmscope_papers`) the two papers, and `studies/` (`hmmscope_studies`) the questions beyond them.",
    )
