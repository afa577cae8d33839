"""Registries of processes, models, instruments and experiments by name.

Another package registers objects through entry points. Modules in the group "hmmscope" are imported at the first
lookup, modules in "hmmscope.experiments" when experiments or claims are needed:

    [project.entry-points.hmmscope]
    my-lab = "my_lab.hmms"

    [project.entry-points."hmmscope.experiments"]
    papers = "hmmscope_papers.experiments"
"""

import dataclasses
import functools
import hashlib
import importlib
import importlib.metadata
import importlib.util
import inspect
import pkgutil
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

from hmmscope.errors import InputError
from hmmscope.progress import shows_progress
from hmmscope.reprs import ResultTable
from hmmscope.schema import (
    UnknownNameError,
    by_field,
    check_options,
    known_keys,
    parse_spec,
    path_of,
    shown,
    stored_key,
    unknown_name,
)

T = TypeVar("T")

#: Folders with the registered objects of each kind.
_FOLDERS = {
    "process": ("processes", "emissions"),
    "emission": ("emissions",),
    "density": ("datasets",),
    "layout": ("datasets",),
    "model": ("models",),
    "instrument": ("analysis",),
    "adapter": ("interop",),
    "rehearsal": ("analysis",),
}
#: Groups of entry points of other packages: one for any registered object, one for experiments with claims.
PLUGINS, EXPERIMENTS = "hmmscope", "hmmscope.experiments"
#: Distributions of this project that register experiments and verbs.
SEPARATE = ("hmmscope-papers", "hmmscope-studies")
_GROUPS = {"experiment": EXPERIMENTS, "claim": EXPERIMENTS, "page": "hmmscope.pages", "folder": "hmmscope.folders"}
#: Method that a registered class of each kind must have.
_BUILT = {"process": "build()", "layout": "", "model": "build(model_io, generator)"}
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*(\.[0-9][A-Za-z0-9_-]*)*")
_found: dict[str, dict[str, Any]] = {kind: {} for kind in (*_FOLDERS, *_GROUPS)}
#: Names by stored names, for each kind.
_stored: dict[str, dict[str, str]] = {kind: {} for kind in _FOLDERS}
_sizes: dict[str, "Size"] = {}
_scanned: set[str] = set()


@dataclasses.dataclass(frozen=True)
class Size:
    """A named size of a registered model: values for some of its fields.

    Attributes:
        model: Name of the registered model.
        fields: Values of the model's fields, by name.
        about: One-line description.
    """

    model: str
    fields: dict[str, Any]
    about: str


class Entries(dict[str, Any]):
    """Registered objects of one kind, found by name or `stored` name (see `process`)."""

    def __init__(self, found: dict[str, Any], stored: dict[str, str]) -> None:
        super().__init__(sorted(found.items()))
        self._stored = stored

    def __missing__(self, name: str) -> Any:
        if name in self._stored:
            return self[self._stored[name]]
        raise KeyError(name)

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name) or name in self._stored

    def get(self, name: str, default: Any = None) -> Any:
        return super().get(self._stored.get(name, name), default)


def _register(kind: str, name: str, stored: str | None = None) -> Callable[[T], T]:
    require_name(kind, name)
    if stored is not None:
        require_name(kind, stored)
    known = _stored.get(kind, {})

    def decorate(entry: T) -> T:
        for one in {name, stored or name}:
            other = known.get(one, one)
            if other != name and other in _found[kind]:
                raise InputError(f"{kind} {one!r}: is already a name of {other!r}; choose another name")
        if name in _found[kind] and not _is_again(_found[kind][name], entry):
            raise InputError(
                f"{kind} {name!r}: is already registered by {_found[kind][name].__module__}; choose another name"
            )
        if kind in _BUILT and not (
            isinstance(entry, type) and dataclasses.is_dataclass(entry) and _builds(kind, entry)
        ):
            with_build = f" with {_BUILT[kind]}" if _BUILT[kind] else ""
            raise InputError(f"{kind} {name!r}: must be a dataclass{with_build}, got {shown(entry)}")
        _found[kind][name] = entry
        if stored is not None:
            known[stored] = name
        if isinstance(entry, type) and dataclasses.is_dataclass(entry):
            setattr(entry, "name", stored or name)  # noqa: B010 - the spec classes have no such field
        return entry

    return decorate


def require_name(kind: str, name: object) -> None:
    """Raise InputError for a name that could be a path or that the library already uses."""
    if not (isinstance(name, str) and _NAME.fullmatch(name)):
        raise InputError(
            f"{kind} {shown(name)}: must consist of letters, digits, - and _, so that it cannot be taken for a file name"
        )
    if kind == "process" and (Path(__file__).parent / "data" / f"{name}.json").exists():
        raise InputError(f"process {name!r}: is the name of a process of hmmscope; choose another name")


def _is_again(before: Any, entry: Any) -> bool:
    one, other = ((getattr(x, "__module__", None), getattr(x, "__qualname__", None)) for x in (before, entry))
    return one == other and None not in one


def _builds(kind: str, entry: type) -> bool:
    return not _BUILT[kind] or callable(getattr(entry, "build", None))


def process(name: str, *, stored: str | None = None) -> Callable[[T], T]:
    """Register a frozen dataclass with `build() -> Process`.

    Args:
        name: Name in code and on the command line.
        stored: Name in files and run names, if it differs from `name`; lookups accept both.
    """
    return _register("process", name, stored)


def layout(name: str, *, stored: str | None = None) -> Callable[[T], T]:
    """Register a dataclass that inherits from `Layout`; see `process` for `stored`."""
    return _register("layout", name, stored)


def emission(name: str) -> Callable[[T], T]:
    """Register a subclass of `EmissionHMM`, a family of emission distributions."""
    if name == "symbols":
        raise InputError("emission 'symbols': is reserved for HMMs with symbols; choose another name")

    def decorate(entry: T) -> T:
        if not (isinstance(entry, type) and hasattr(entry, "m_step")):
            raise InputError(f"emission {name!r}: must be a subclass of hmmscope.EmissionHMM, got {shown(entry)}")
        return _register("emission", name)(entry)

    return decorate


def density(name: str) -> Callable[[T], T]:
    """Register a subclass of `DensityHead`."""
    return _register("density", name)


def model(name: str, *, stored: str | None = None) -> Callable[[T], T]:
    """Register a frozen dataclass with `build(model_io, generator) -> nn.Module`; see `process` for `stored`."""
    return _register("model", name, stored)


def named_size(name: str, model: str, about: str, **fields: Any) -> None:
    """Register a name for a model with the given values of fields (a `Size`)."""
    require_name("size", name)
    if name in _sizes and _sizes[name].model != model:
        raise InputError(f"size {name!r}: is already a size of {_sizes[name].model}; choose another name")
    _sizes[name] = Size(model, fields, about)


def sizes() -> dict[str, Size]:
    entries("model")
    return dict(sorted(_sizes.items()))


def instrument(
    name: str, *, x: str = "layer", y: str = "value", by: tuple[str, ...] = (), only: tuple[str, ...] = ()
) -> Callable[[T], T]:
    """Register a function (model, dataset, ...) -> rows, wrapped to take `device` and return a `ResultTable`."""

    def decorate(function: T) -> T:
        signature = inspect.signature(cast("Callable[..., Any]", function))
        parameters = signature.parameters

        @functools.wraps(cast("Callable[..., Any]", function))
        def measure(model: Any, dataset: Any, *, device: Any = None, **options: Any) -> Any:
            check_options(parameters, options)
            layers, controls = options.get("layers"), options.get("controls")
            if isinstance(controls, type) or (callable(controls) and not hasattr(controls, "forward")):
                options["controls"] = lambda: adapted(controls(), layers)

            def call() -> Any:
                rows = cast("Callable[..., Any]", function)(adapted(model, layers), dataset, **options)
                return ResultTable(rows, name, x=x, y=y, by=by, only=only) if type(rows) is list else rows

            for rehearse in entries("rehearsal").values():
                call = functools.partial(rehearse, model, dataset, call, device)
            found = shows_progress(name)(call)()
            seed = options.get("seed", getattr(parameters.get("seed"), "default", None))
            if isinstance(found, ResultTable) and found.about and isinstance(seed, int):
                found.about = {**found.about, "seed": seed}
            return found

        added = inspect.Parameter("device", inspect.Parameter.KEYWORD_ONLY, default=None, annotation="str | None")
        measure.__signature__ = signature.replace(parameters=[*parameters.values(), added])  # type: ignore[attr-defined]
        return cast("T", _register("instrument", name)(measure))

    return decorate


def adapted(model: Any, layers: Any = None) -> Any:
    """Return the model with hook points."""
    for adapt in entries("adapter").values():
        model = adapt(model, layers)
    return model


def adapter(name: str) -> Callable[[T], T]:
    """Register a function (model, layers) that returns the model with hook points, or unchanged if it has them."""
    return _register("adapter", name)


def rehearsal(name: str) -> Callable[[T], T]:
    """Register a function (model, dataset, measure, device) that tests the model, then returns the rows `measure()`."""
    return _register("rehearsal", name)


def experiment(name: str) -> Callable[[T], T]:
    """Register an experiment: a class with `plan`, `measure` and `figures`."""
    return _register("experiment", name)


def page(name: str) -> Callable[[T], T]:
    """Register a function (run, output path or None) that makes an HTML page, such as "look" for `Run.look`."""
    return _register("page", name)


def folder(name: str) -> Callable[[T], T]:
    """Register a type of result folder, with functions that recognise and verify it."""
    return _register("folder", name)


def claim(name: str) -> Callable[[T], T]:
    """Register a claim: a sentence of a paper with its decision rule."""
    return _register("claim", name)


def in_order(kind: str) -> list[Any]:
    entries(kind)
    return sorted(_found[kind].values(), key=lambda entry: str(getattr(entry, "measure", entry).__module__))


def entries(kind: str) -> Entries:
    """Return all objects of a kind by name, including those of plugins."""
    for folder in _FOLDERS.get(kind, ()):
        if folder not in _scanned:
            _scanned.add(folder)
            import_all(f"hmmscope.{folder}")
    for group in (PLUGINS, _GROUPS.get(kind, PLUGINS)):
        if group not in _scanned:
            _scanned.add(group)
            _load_plugins(group)
    return Entries(_found[kind], _stored.get(kind, {}))


def import_all(package: str) -> None:
    found = importlib.import_module(package)
    for module in pkgutil.walk_packages(getattr(found, "__path__", ()), f"{package}."):
        importlib.import_module(module.name)


def has_plugins() -> bool:
    return bool(importlib.metadata.entry_points(group=PLUGINS))


def is_installed(entry: Any) -> bool:
    groups = {*_GROUPS.values(), PLUGINS}
    points = [point for group in groups for point in importlib.metadata.entry_points(group=group)]
    return entry.__module__.partition(".")[0] in {"hmmscope", *(point.module.partition(".")[0] for point in points)}


def digest() -> str:
    sha, root = hashlib.sha256(), Path(__file__).parent
    places = [
        root / folder.replace(".", "/") for folder in sorted({one for folders in _FOLDERS.values() for one in folders})
    ]
    for point in sorted(importlib.metadata.entry_points(group=EXPERIMENTS), key=lambda point: point.name):
        spec = importlib.util.find_spec(point.module.partition(".")[0])
        places += map(Path, spec.submodule_search_locations or ()) if spec else ()
    for place in places:
        for path in sorted(place.rglob("*.py")) if place.is_dir() else [place.with_suffix(".py")]:
            found = re.findall(
                r"^ *(?:@registry\.\w+|@claim|registry\.named_size)\(\s*.*", path.read_text(), re.MULTILINE
            )
            sha.update("\n".join([path.name, *found]).encode())
        for path in sorted(place.rglob("claims/*.toml")):
            sha.update(path.name.encode() + path.read_bytes())
    return sha.hexdigest()


def _load_plugins(group: str) -> None:
    for point in importlib.metadata.entry_points(group=group):
        try:
            point.load()
        except Exception as error:
            raise InputError(f"plugin {point.name} ({point.value}): {type(error).__name__}: {error}") from error


def lookup(kind: str, name: str, field: str | None = None) -> Any:
    """Return a registered object; raise InputError if the name is unknown."""
    known = entries(kind)
    if name not in known:
        unknown = unknown_name(field or kind, name, known)
        raise not_registered(unknown) if kind == "experiment" else unknown
    return known[name]


def not_registered(unknown: UnknownNameError) -> InputError:
    absent = [name for name in SEPARATE if importlib.util.find_spec(name.replace("-", "_")) is None]
    return InputError(f"{unknown}; install {' or '.join(absent)} for more names") if absent else unknown


def build_spec(kind: str, data: dict[str, Any], where: str) -> Any:
    """Build a registered spec from its fields and the key ``name``."""
    known, named = entries(kind), sizes() if kind == "model" else {}
    name = data.get("name") if isinstance(data, dict) else data
    if not isinstance(data, dict) or not isinstance(name, str) or (name not in known and name not in named):
        raise unknown_name(f"{where}.name", name, [*known, *named])
    if name in named:
        size = named[name]
        made = lookup("model", size.model)
        data = by_field(made, size.fields) | by_field(made, data, where) | {"name": size.model}
    cls = lookup(kind, data["name"], f"{where}.name")
    fields = {key: value for key, value in data.items() if key != "name"}
    for key in fields:
        if isinstance(key, str) and key not in known_keys(cls):
            raise unknown_name(path_of(where, key), key, ["name", *cls.__dataclass_fields__])
    return parse_spec(cls, fields, where)


def stored_data(kind: str, data: dict[str, Any]) -> dict[str, Any]:
    """Return a spec's data with its name and keys as stored in files."""
    cls = lookup(kind, data["name"])
    keys = {field.name: stored_key(field) for field in dataclasses.fields(cls)}
    return {"name": cls.name} | {keys.get(key, key): value for key, value in data.items() if key != "name"}
