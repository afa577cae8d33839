"""Numbers by default of public functions, and public constants, are those that were; a change of one is one for users."""

import importlib
import inspect
import json
import pkgutil
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from hmmscope import analysis, datasets, inference, processes, runs, sequences, storage, training
from hmmscope.lab import evidence

DEFAULTS = Path(__file__).with_name("defaults.json")
NUMBERS = re.compile(r"(?!'|.*np\.)[-+.,() {}:\w']*\d[-+.,() {}:\w']*")
PACKAGES = (analysis, inference, datasets, sequences, processes, runs, training, storage, evidence)


def defaults() -> dict[str, object]:
    """Numbers by default of all public functions, classes and methods of the core, and its constants, where first met."""
    found, constants = dict[str, object](), dict[tuple[str, str], str]()
    for package in PACKAGES:
        for one in pkgutil.iter_modules(package.__path__):
            module = importlib.import_module(f"{package.__name__}.{one.name}")
            for name, value in sorted(vars(module).items()):
                if getattr(value, "__module__", "") == module.__name__ and not name.startswith("_"):
                    found |= {f"{module.__name__}.{path}": numbers for path, numbers in _numbers(name, value)}
                elif name.isupper() and name[0] != "_" and NUMBERS.fullmatch(repr(value)):
                    constants.setdefault((name, repr(value)), module.__name__)
    return found | {f"{module}.{name}": value for (name, value), module in constants.items()}


def _numbers(name: str, one: object) -> Iterator[tuple[str, dict[str, float]]]:
    methods = vars(one).items() if inspect.isclass(one) else ()
    called = [(f"{name}.{key}", getattr(value, "__func__", value)) for key, value in methods if key[0] != "_"]
    for path, function in [(name, one), *called]:
        own = inspect.isclass(function) and getattr(function, "__module__", "") == getattr(one, "__module__", "")
        if inspect.isfunction(function) or own:
            with suppress(ValueError, TypeError):  # a class whose signature nobody knows
                given = {p.name: p.default for p in inspect.signature(function).parameters.values()}
                if numbers := {key: value for key, value in given.items() if type(value) in (int, float, bool)}:
                    yield path, numbers


def test_numbers_by_default_are_those_that_were() -> None:
    """To change a default, run `python tests/test_defaults.py` and list the change in the changelog."""
    kept = json.loads(DEFAULTS.read_text())
    now = defaults()
    assert {name: now[name] for name in kept if name in now} == {name: kept[name] for name in kept if name in now}
    assert len(kept) > 190


if __name__ == "__main__":
    DEFAULTS.write_text(json.dumps(defaults(), indent=1) + "\n")
