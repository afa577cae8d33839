"""Numbers by default of public functions are those that were; a change of one is a change for users."""

import importlib
import inspect
import json
import pkgutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from hmmscope import analysis, datasets, inference, processes, runs, sequences, storage, training
from hmmscope.lab import evidence

DEFAULTS = Path(__file__).with_name("defaults.json")
PACKAGES = (analysis, inference, datasets, sequences, processes, runs, training, storage, evidence)


def defaults() -> dict[str, dict[str, float]]:
    """Numbers by default of all public functions, classes and methods of the core."""
    found = {}
    for package in PACKAGES:
        for module in (
            importlib.import_module(f"{package.__name__}.{one.name}") for one in pkgutil.iter_modules(package.__path__)
        ):
            for name, one in sorted(vars(module).items()):
                if getattr(one, "__module__", "") == module.__name__ and not name.startswith("_"):
                    for path, numbers in _numbers(name, one):
                        found[f"{module.__name__}.{path}"] = numbers
    return found


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
