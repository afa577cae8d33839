"""Who may import whom, no cycles, short modules, and a command line that starts without torch."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import hmmscope
import hmmscope.lab
from script_modules import script

house = script("check_architecture")
RINGS = ("hmmscope", "hmmscope_papers", "hmmscope_studies")
MAY_IMPORT = house.MAY_IMPORT

#: Third-party packages that a module may import when it is itself imported; extras only inside functions.
CORE = {"torch", "numpy", "numba", "safetensors", "yaml", "rich", "matplotlib", "jinja2", "markupsafe", "jaxtyping"}
CORE |= {"llvmlite"}  # numba's own compiler
#: Packages that exist for a library that is an extra, and import it.
FOR_EXTRAS = {"sklearn": {"sklearn"}}


def imports(path: str, text: str, *, at_import: bool = False) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of what a module imports; with `at_import` only what runs when the module is imported."""
    return ((one.line, one.name) for one in house.read(path, text).imports if one.at_import or not at_import)


def unit(path: str) -> str:
    """The package, or the module at the top, that a line of the table is about."""
    return unit_of(house.module_name(path))


def unit_of(name: str) -> str:
    """The same of a dotted name."""
    first, *parts = name.split(".")
    if first != "hmmscope":
        return f"{first}.{parts[0]}" if parts[:1] in (["constructions"], ["benchmark"]) else first
    return ".".join(parts[:2]) if parts[:1] == ["lab"] else parts[0] if parts else "hmmscope"


def forbidden(modules: dict[str, str]) -> list[str]:
    """``path:line: what`` for each import that the table does not allow; the papers may import what is public, too."""
    found = []
    public = house.public(house.sources())
    for path, text in modules.items():
        if path in ("__init__.py", "lab/__init__.py"):  # front doors
            continue
        if unit(path) not in MAY_IMPORT:
            found.append(f"{path}:1: {unit(path)} has no line in the table")
            continue
        for line, name in imports(path, text):
            of = unit_of(name)
            if name.split(".")[0] not in RINGS or of in ("hmmscope", "__version__", unit(path)):
                continue
            if unit(path) in RINGS and name in public:
                continue
            if of not in MAY_IMPORT[unit(path)]:
                found.append(f"{path}:{line}: {unit(path)} imports {of}")
    return found


def extras(modules: dict[str, str]) -> list[str]:
    """``path:line: package`` for each import, at module level, of a package that is not a core dependency."""
    known = CORE | set(sys.stdlib_module_names) | set(RINGS)
    return [
        f"{path}:{line}: {name.split('.')[0]}"
        for path, text in modules.items()
        for line, name in imports(path, text, at_import=True)
        if name.split(".")[0] not in known | FOR_EXTRAS.get(unit(path), set())
    ]


def private(modules: dict[str, str]) -> list[str]:
    """``path:line: name`` where a module uses a name of another one that begins with a single underscore."""
    own = {house.module_name(path) for path in modules}
    found = []
    for path, text in modules.items():
        known = {}
        for one in house.read(path, text).imports:
            *base, last = one.name.split(".")
            if base[:1] == ["hmmscope"] and is_private(last):
                found.append(f"{path}:{one.line}: {one.name}")
            # ``import a.b`` makes the name a known, ``import a.b as c`` and ``from a import b`` all of it
            known[one.known_as] = one.known_as if one.name.startswith(f"{one.known_as}.") else one.name
        for line, of, name in house.read(path, text).attributes:
            first = of.split(".")[0]
            if known.get(first, "") + of[len(first) :] in own:
                found.append(f"{path}:{line}: {of}.{name}")
    return found


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


# --------------------------------------------------------------------------------------------------------------------


def test_imports_follow_the_table() -> None:
    assert forbidden(house.sources()) == []


def test_no_circles_even_by_late_imports() -> None:
    assert house.circles(house.sources()) == []


def test_counts_of_the_house_are_within_their_limits() -> None:
    modules = house.sources()
    assert list(house.above({section: section.find(modules) for section in house.SECTIONS})) == []


def test_the_way_to_the_first_step_is_followed() -> None:
    """Each turn lies on it, and what is asked beside it does not."""
    own = {
        f"hmmscope.{name}" for name in ("runs.training", "runs.config", "datasets.process_dataset", "training.updates")
    }
    assert own <= set(house.rooms({}))
    assert {"hmmscope.training.progress", "hmmscope.system_info"} <= set(house.rooms_beside({}))


def test_names_that_nothing_defines_are_found_beside_axes_of_tensors() -> None:
    text = 'Float = {}\ndef f(a: Float["time"], b: Float["batch time"]):\n    print(f"{c}", nothing, a)\n'
    assert house.undefined({"models/some.py": text}) == [
        "models/some.py:3: Undefined name `c`",
        "models/some.py:3: Undefined name `nothing`",
    ]


def test_what_contributing_says_of_the_house_is_made_from_its_table(tmp_path: Path) -> None:
    page = tmp_path / "CONTRIBUTING.md"
    page.write_text(house.CONTRIBUTING.read_text("utf-8").replace("| `models` |", "| `model` |"), "utf-8")
    assert [place.split(":")[0] for place in house.parts_that_differ({}, page)] == ["layout"]
    house.write_parts(page)
    assert house.parts_that_differ({}, page) == []
    assert page.read_text("utf-8") == house.CONTRIBUTING.read_text("utf-8")


def test_extras_are_not_needed_to_import() -> None:
    assert extras(house.sources()) == []


def test_private_names_stay_in_their_module() -> None:
    assert private(house.sources()) == []


def test_the_table_itself_has_an_order() -> None:
    """A chain of allowed imports never comes back to where it began."""
    for name in MAY_IMPORT:
        reached, frontier = set(), set(MAY_IMPORT[name])
        while frontier:
            reached |= frontier
            frontier = set().union(*(MAY_IMPORT[other] for other in frontier)) - reached
        assert name not in reached
        assert reached <= set(MAY_IMPORT)


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


@pytest.mark.parametrize(
    "path, line",
    [
        ("models/bad.py", "from hmmscope.processes.hmm import HMM"),
        ("models/bad.py", "from hmmscope import processes"),
        ("models/bad.py", "import hmmscope.inference.filtering"),
        ("models/bad.py", "from ..datasets import process_dataset"),
        ("models/bad.py", "from .. import datasets"),
        ("models/bad.py", "def f():\n    from hmmscope.datasets.process_dataset import Corpus"),
        ("kernels/bad.py", "from hmmscope.schema import require"),
        ("kernels/bad.py", "from hmmscope import seeds"),
        ("engine/bad.py", "from hmmscope.models.decoder import Decoder"),
        ("processes/bad.py", "from hmmscope.datasets.process_dataset import Corpus"),
        ("processes/bad.py", "from hmmscope.models.base import Tap"),
        ("inference/bad.py", "from hmmscope.models.base import Tap"),
        ("training/bad.py", "from hmmscope.analysis.curves import evaluate"),
        ("training/bad.py", "if TYPE_CHECKING:\n    from hmmscope.inference.optimal import optimal_predictions"),
        ("analysis/bad.py", "from hmmscope.training.trainer import move"),
        ("analysis/bad.py", "from hmmscope.storage import store"),
        ("lab/experiments/bad.py", "from hmmscope.lab.report.page import write_page"),
        ("lab/report/bad.py", "from hmmscope.analysis.curves import Score"),
        ("lab/report/bad.py", "from hmmscope.lab.experiments.experiment import Finding"),
        ("storage/bad.py", "from hmmscope.runs import config"),
        ("lab/cli.py", "from hmmscope.runs.pipeline import train"),
        ("lab/verbs/bad.py", "from hmmscope_papers.limits.fig2 import Figure2"),
        ("runs/bad.py", "from hmmscope.lab.evidence.rows import Rows"),
        ("hmmscope_papers/limits/bad.py", "from hmmscope.lab.report.page import write_page"),
        ("novelty/new.py", "import math"),
    ],
)
def test_planted_violation_is_found(path: str, line: str) -> None:
    found = forbidden({path: f"import math\n{line}\n"})
    assert len(found) == 1
    assert found[0].startswith(f"{path}:")


@pytest.mark.parametrize(
    "path, line",
    [
        ("models/good.py", "from hmmscope.models.base import Tap"),
        ("models/good.py", "from .base import Tap"),
        ("models/good.py", "from hmmscope import __version__, registry"),
        ("processes/good.py", "from hmmscope.kernels import cpu"),
        ("runs/pipeline.py", "from hmmscope.analysis.curves import evaluate"),
    ],
)
def test_what_is_allowed_passes(path: str, line: str) -> None:
    assert forbidden({path: line}) == []


@pytest.mark.parametrize(
    "line",
    [
        "import hmmscope.models.one",
        "from . import one",
        "def f():\n    from hmmscope.models.one import x",
        "def f():\n    return importlib.import_module('hmmscope.models.one')",
        "def f():\n    return __import__('hmmscope.models.one')",
        "class A:\n    def f(self):\n        if x:\n            from .one import y",
    ],
)
def test_planted_circle_is_found(line: str) -> None:
    one = {"models/one.py": "from hmmscope.models.two import x", "models/two.py": "from hmmscope.models import three"}
    assert house.circles(one | {"models/three.py": f"{line}\n"}) == ["models.one <-> models.three <-> models.two"]


def test_what_only_type_checkers_and_the_front_door_import_is_no_circle() -> None:
    one = {"models/one.py": "from hmmscope.models.two import x"}
    assert house.circles(one | {"models/two.py": "if TYPE_CHECKING:\n    import hmmscope.models.one\n"}) == []
    assert (
        house.circles(one | {"models/two.py": "from hmmscope import x\n", "__init__.py": "import hmmscope.models.one"})
        == []
    )


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
    assert house.kind_tests_elsewhere(modules) == house.kind_tests(modules)
    assert house.kind_tests_elsewhere({"processes/process.py": _KIND + line}) == []


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
    modules = {"models/base.py": "_hidden = 1\n", "models/one.py": line + "\n"}
    (found,) = private(modules)
    assert found.startswith("models/one.py:")


def test_names_of_ones_own_and_of_objects_pass() -> None:
    text = "from hmmscope.models import base\nimport torch\n_own = base.Tap()\n_own._x\nself._y\ntorch._C\n"
    assert private({"models/base.py": "x = 1\n", "models/one.py": text + "from hmmscope import __version__\n"}) == []


DOORS = {
    "__init__.py": "from hmmscope.models.base import Tap as Tap\nfrom hmmscope import interop, registry",
    "lab/__init__.py": "from hmmscope.lab.evidence.rows import Rows as Rows",
    "interop/__init__.py": "from hmmscope.interop.hmmer import load_hmmer",
    "interop/hmmer.py": "def load_hmmer(): ...\ndef other(): ...",
    "models/__init__.py": "",
    "models/base.py": "class Tap: ...\nclass Cost: ...",
    "lab/evidence/rows.py": "class Rows: ...\nclass Effect: ...",
    "registry.py": "import torch\ndef process(): ...\ndef _hidden(): ...",
}


def test_public_names_are_those_of_the_front_doors() -> None:
    assert house.public(DOORS) == {
        "hmmscope.Tap",
        "hmmscope.interop.load_hmmer",
        "hmmscope.lab.Rows",
        "hmmscope.registry.process",
    }
    own = house.public(house.sources())
    assert {"hmmscope.seeds.numpy_generator", "hmmscope.training.recipes.limits_recipe"} <= own
    for door in (
        hmmscope,
        hmmscope.lab,
        hmmscope.analysis,
        hmmscope.inference,
        hmmscope.interop,
    ):
        named = {name for name in door.__all__ if not isinstance(getattr(door, name), ModuleType)} - {"__version__"}
        assert {name for name in own if name.rpartition(".")[0] == door.__name__} == {
            f"{door.__name__}.{name}" for name in named
        }


@pytest.mark.parametrize(
    "text, name",
    [
        ("from hmmscope import Tap", "Tap"),
        ("from hmmscope.lab import Rows as Table", "lab.Rows"),
        ("import hmmscope as hs\nhs.Tap()", "Tap"),
        ("import hmmscope\nhmmscope.lab.Rows([]).by()", "lab.Rows"),
        ("from hmmscope import lab\nx: lab.Rows", "lab.Rows"),
        ("import hmmscope as hs\nhs.interop.load_hmmer(1).law", "interop.load_hmmer"),
        ("from hmmscope import registry\n@registry.process('x')\nclass A: ...", "registry.process"),
    ],
)
def test_a_public_name_that_a_paper_uses_is_counted(text: str, name: str) -> None:
    modules = DOORS | {"hmmscope_papers/limits/one.py": text}
    assert house.paper_names(modules) == [f"hmmscope.{name}"]
    assert house.private_paper_names(modules) == []


@pytest.mark.parametrize(
    "text, name",
    [
        ("from hmmscope.models.base import Tap", "models.base.Tap"),
        ("def f():\n    from hmmscope.interop.hmmer import load_hmmer", "interop.hmmer.load_hmmer"),
        ("from hmmscope.models import base\nbase.Tap()", "models.base.Tap"),
        ("import hmmscope.models.base\nhmmscope.models.base.Tap", "models.base.Tap"),
        ("import hmmscope.lab.evidence.rows as r\nr.Rows()", "lab.evidence.rows.Rows"),
        ("from hmmscope import registry\nregistry._hidden()", "registry._hidden"),
        ("from hmmscope import lab\ngetattr(lab, 'Rows')", "lab"),
        ("from hmmscope.lab import Effect", "lab.Effect"),
        ("from hmmscope.lab import *", "lab.*"),
        ("import importlib\nimportlib.import_module('hmmscope.models.base')", "models.base"),
    ],
)
def test_a_name_that_is_not_public_is_found_in_a_paper(text: str, name: str) -> None:
    modules = DOORS | {"hmmscope_papers/limits/one.py": text}
    assert house.private_paper_names(modules) == [f"hmmscope.{name}"]
    assert house.private_paper_names(DOORS | {"lab/report/one.py": text}) == []


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
