"""Who may import whom, no cycles, short modules, and a command line that starts without torch."""

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import hmmscope
import hmmscope.lab
from script_modules import script

house = script("check_architecture")
RINGS = ("hmmscope", "hmmscope_papers", "hmmscope_studies")

#: The contracts of import-linter, without what ignores imports of single modules.
CONTRACTS = re.sub(
    r"^ignore_imports = \[.*?\]\n", "", (house.ROOT / "pyproject.toml").read_text(), flags=re.MULTILINE | re.DOTALL
)
#: Third-party packages that a module may import when it is itself imported; extras only inside functions.
CORE = {"torch", "numpy", "numba", "safetensors", "yaml", "rich", "matplotlib", "jinja2", "markupsafe", "jaxtyping"}
CORE |= {"llvmlite"}  # numba's own compiler
#: Packages that exist for a library that is an extra, and import it.
FOR_EXTRAS = {"sklearn": {"sklearn"}}


def imports(path: str, text: str) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of what a module imports when it is itself imported: not in functions, not for type checkers."""
    left: list[ast.AST] = [ast.parse(text)]
    while left:
        node = left.pop()
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield node.lineno, node.module or ""
        elif not isinstance(node, ast.FunctionDef | ast.Lambda) and not (
            isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        ):
            left += ast.iter_child_nodes(node)


def extras(modules: dict[str, str]) -> list[str]:
    """``path:line: package`` for each import, at module level, of a package that is not a core dependency."""
    known = CORE | set(sys.stdlib_module_names) | set(RINGS)
    return [
        f"{path}:{line}: {name.split('.')[0]}"
        for path, text in modules.items()
        for line, name in imports(path, text)
        if name.split(".")[0] not in known | FOR_EXTRAS.get(path.partition("/")[0], set())
    ]


def private(path: str, text: str) -> list[str]:
    """``path:line: name`` where a module uses a name of another one that begins with a single underscore."""
    known, found, tree = set[str](), [], ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            own = isinstance(node, ast.Import) or node.level or str(node.module).startswith("hmmscope")
            for alias in node.names:
                name = f"{node.module}.{alias.name}" if isinstance(node, ast.ImportFrom) else alias.name
                if own and is_private(alias.name):
                    found.append(f"{path}:{node.lineno}: {name}")
                if own and name.startswith("hmmscope"):
                    known.add(alias.asname or (name if isinstance(node, ast.Import) else alias.name))
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and is_private(node.attr) and ast.unparse(node.value) in known:
            found.append(f"{path}:{node.lineno}: {ast.unparse(node)}")
    return found


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


# --------------------------------------------------------------------------------------------------------------------


def test_a_quantity_above_its_limit_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """`make test` runs the script on the source itself."""
    monkeypatch.setattr(
        house, "SECTIONS", {"long modules": (house.long_modules, 0), "lines": (house.of_ring("lab"), 500)}
    )
    wrong = house.above({"lab/one.py": "x\n" * 501})
    assert [line.split("  ")[0] for line in wrong] == ["long modules", "", "lines"]
    assert house.above({"lab/one.py": "x\n"}) == []


def test_ways_are_followed_and_no_module_is_entered_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each turn lies on it, and what is asked beside it does not."""
    own = {
        f"hmmscope.{name}" for name in ("runs.training", "runs.config", "datasets.process_dataset", "training.updates")
    }
    way = set().union(*house.ways("train"))
    assert own <= way
    assert not {"hmmscope.progress", "hmmscope.system_info"} & way
    monkeypatch.setattr(house, "ways", lambda door: [("a", "b", "a")] if door == "fit" else [("a", "b")])
    assert house.entered_twice({}) == ["fit: a"]
    assert len(house.unlisted_ways({})) == 3


@pytest.mark.long
def test_extras_are_not_needed_to_import() -> None:
    assert extras(house.sources()) == []


def test_private_names_stay_in_their_module() -> None:
    assert [place for path, text in house.sources().items() for place in private(path, text)] == []


def test_every_module_was_looked_at() -> None:
    modules = house.sources()
    assert {
        "lab/cli.py",
        "models/base.py",
        "kernels/cpu.py",
        "lab/report/page.py",
        "hmmscope_papers/limits/fig2.py",
    } <= set(modules)
    assert sum(1 for path, text in modules.items() for _ in imports(path, text)) > 300
    assert {house.ring(path) for path in modules} == {"library", "lab", "papers", "studies"}


@pytest.mark.drawn(2)
@pytest.mark.parametrize(
    "path, line",
    [
        ("models/bad.py", "from hmmscope.processes.hmm import HMM"),
        ("training/bad.py", "from hmmscope.analysis.curves import evaluate"),
        ("lab/report/bad.py", "def f():\n    from hmmscope.analysis.curves import Score"),
        ("hmmscope_papers/limits/bad.py", "from hmmscope.models.base import HookPoint"),
        ("lab/verbs/bad.py", "from hmmscope_papers.limits.fig2 import Figure2"),
        ("kernels/bad.py", "from hmmscope.kernels.worse import x"),
        ("novelty/__init__.py", "import math"),
    ],
)
def test_planted_import_breaks_a_contract(path: str, line: str, tmp_path: Path) -> None:
    """A copy of the packages' files without their code but this line, under the contracts of pyproject.toml."""
    for name in [*house.sources(), path, "kernels/worse.py"]:
        package = name.partition("/")[0] if name.startswith("hmmscope_") else "hmmscope"
        place = tmp_path / (name if package != "hmmscope" else f"hmmscope/{name}")
        for folder in place.relative_to(tmp_path).parents[:-1]:
            (tmp_path / folder).mkdir(exist_ok=True)
            (tmp_path / folder / "__init__.py").touch()
        place.write_text(line if name == path else "from hmmscope.kernels.bad import x" if "worse" in name else "")
    (tmp_path / "pyproject.toml").write_text(CONTRACTS)
    words = [sys.executable, "-c", "from importlinter.cli import lint_imports_command as c; c()", "--no-cache"]
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 1
    assert "broken" in done.stdout


_KIND = "class Process: ...\nclass Odd(Process): ...\nclass Odder(base.Odd): ...\n"


@pytest.mark.parametrize(
    "line",
    [
        "isinstance(x, Odder)",
        "issubclass(type(x), (int, Odd))",
        "isinstance(x, int | processes.Odd)",
        "match x:\n    case Odd(): ...",
        "type(x) is Odd",
        "type(x).__name__ == 'Odd'",
        "type(x) in (int, Odd)",
        "hasattr(self.process, 'law')",
        "hasattr(hmm, 'emission')",
    ],
)
def test_planted_test_of_a_kind_is_found(line: str) -> None:
    modules = {"processes/process.py": _KIND, "lab/verbs/one.py": f"{line}\n"}
    assert [place.split(":")[0] for place in house.kind_tests(modules)] == ["lab/verbs/one.py"]
    elsewhere, _ = house.SECTIONS["  outside of processes and kernels"]
    assert elsewhere(modules) == house.kind_tests(modules)
    assert elsewhere({"processes/process.py": _KIND + line}) == []


@pytest.mark.parametrize("line", ["isinstance(x, int)", "x == 'Odd'", "hasattr(model, 'law')", "Odd()", "x is None"])
def test_what_asks_for_no_kind_passes(line: str) -> None:
    assert house.kind_tests({"processes/process.py": _KIND, "lab/verbs/one.py": f"{line}\n"}) == []


def test_planted_closed_dictionary_is_found() -> None:
    kinds = '@registry.emission("a")\nclass One: ...\n@registry.emission("b", stored="c")\n@other\nclass Two: ...\n'
    for line in ('X = {"a": f, "b": g}', "X = {One.file_format: f, Two.file_format: g}", "X = {1: One, 2: base.Two}"):
        assert house.closed_dictionaries({"emissions/a.py": kinds, "runs/b.py": line}) == ["runs/b.py:1"]
    for line in ('X = {"a": 1, "b": 2}', 'X = {"a": f, "z": g}', "X = [One, Two]"):
        assert house.closed_dictionaries({"emissions/a.py": kinds, "runs/b.py": line}) == []
    assert house.closed_dictionaries({"emissions/a.py": kinds, "hmmscope_papers/b.py": 'X = {"a": f, "b": g}'}) == []


def test_planted_extra_and_planted_length_are_found() -> None:
    assert extras({"a.py": "import hmmlearn\n"}) == ["a.py:1: hmmlearn"]
    assert extras({"a.py": "def f():\n    import hmmlearn\n"}) == []
    assert house.long_modules({"a.py": "x\n" * 451, "b.py": "x\n" * 450}) == ["a.py: 451 lines"]


def test_planted_long_function_is_found() -> None:
    body = "    x = 1\n" * 79
    assert house.long_functions({"a.py": f"def f():\n{body}"}) == []
    assert house.long_functions({"a.py": f"async def f():\n{body}    y = 2\n"}) == ["a.py:1: f, 81 lines"]


@pytest.mark.parametrize(
    "line",
    [
        "from hmmscope.models.base import _hidden",
        "from hmmscope.models.base import Tap, _hidden as shown",
        "def f():\n    from .base import _hidden",
        "from hmmscope.models import base\nbase._hidden",
        "from hmmscope.models import base as other\nother._hidden()",
        "import hmmscope.models.base\nhmmscope.models.base._hidden = 1",
        "import hmmscope.models.base as b\nb._hidden",
    ],
)
def test_planted_private_name_is_found(line: str) -> None:
    (found,) = private("models/one.py", line + "\n")
    assert found.startswith("models/one.py:")


def test_names_of_ones_own_and_of_objects_pass() -> None:
    text = "from hmmscope.models import base\nimport torch\n_own = base.Tap()\n_own._x\nself._y\ntorch._C\n"
    assert private("models/one.py", text + "from hmmscope import __version__\n") == []


HEAVY = ("torch", "numpy", "numba", "matplotlib", "jinja2", "yaml", "rich")


@pytest.mark.parametrize("statement", ["import hmmscope", "from hmmscope.lab.cli import build_parser; build_parser()"])
def test_starts_without_torch(statement: str) -> None:
    code = f"import sys; {statement}; print([name for name in {HEAVY} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=True)
    assert done.stdout == "[]\n"


def test_public_names_are_there() -> None:
    for name in hmmscope.__all__:
        assert getattr(hmmscope, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        hmmscope.nothing  # noqa: B018
    for name in hmmscope.lab.__all__:  # the others: tests/test_reference.py
        assert getattr(hmmscope.lab, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        hmmscope.lab.nothing  # noqa: B018
