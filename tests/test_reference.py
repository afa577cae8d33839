"""The reference of the interface is complete, and everything in it exists."""

import importlib
import re
import runpy
from pathlib import Path
from types import ModuleType

import pytest

import hmmscope as hs
import hmmscope.lab
from hmmscope_papers import constructions

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "reference.md").read_text()
DOCUMENTED = re.findall(r"^\.\. auto(\w+):: (hmmscope[\w.]*)\n((?:   :.*\n)*)", PAGE, re.MULTILINE)


def found(name: str) -> object:
    """What a dotted name stands for; AttributeError or ImportError if for nothing."""
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        try:
            thing: object = importlib.import_module(".".join(parts[:count]))
        except ModuleNotFoundError:
            continue
        for part in parts[count:]:
            thing = getattr(thing, part)
        return thing
    raise ImportError(name)


@pytest.mark.parametrize("door", [hs, hmmscope.lab, hs.analysis, hs.inference, constructions], ids=lambda m: m.__name__)
def test_every_public_name_is_in_the_reference(door: ModuleType) -> None:
    documented = [found(name) for _, name, _ in DOCUMENTED]
    public = {name: getattr(door, name) for name in door.__all__ if name != "__version__"}
    modules = {module.__name__ for module in documented if isinstance(module, ModuleType)}
    missing = [
        name
        for name, thing in public.items()
        if not isinstance(thing, ModuleType)
        and f":: {door.__name__}.{name}\n" not in PAGE
        and not any(thing is other for other in documented)
        and getattr(thing, "__module__", "") not in modules
    ]
    assert ", ".join(missing) == ""
    for name, thing in public.items():
        assert not isinstance(thing, ModuleType) or thing.__name__ in PAGE, name


@pytest.mark.parametrize("kind, name, options", DOCUMENTED, ids=[name for _, name, _ in DOCUMENTED])
def test_every_documented_name_exists(kind: str, name: str, options: str) -> None:
    thing = found(name)
    assert thing.__doc__ or kind == "data"
    members = re.search(r":members: (.+)", options)
    fields = getattr(thing, "__dataclass_fields__", {})
    for member in members[1].split(", ") if members else ():
        assert hasattr(thing, member) or member in fields, f"{name}.{member}"


def test_each_object_has_a_page_that_its_synonyms_find() -> None:
    """docs/conf.py makes a page for each directive, and a table of all."""
    pages = runpy.run_path(str(ROOT / "docs" / "conf.py"))
    sections = pages["by_section"](PAGE)
    names = [name for _, own in sections for name in own]
    assert sorted(names) == sorted({name for _, name, _ in DOCUMENTED})
    assert all(f":: {name}\n" in lines for _, own in sections for name, lines in own.items())
    assert (
        ":members: left_to_right, banded"
        in dict(kv for _, own in sections for kv in own.items())["hmmscope.Constraints"]
    )
    assert "forward algorithm" in pages["also_called"]("hmmscope.filter_beliefs")
    assert pages["first_line"]("hmmscope.fit").endswith(".")
    source = [PAGE]
    pages["list_api"](None, "reference", source)
    assert all(f"(generated/api/{name}.md)" in source[0] for name in names)
    assert "{eval-rst}" not in source[0]
