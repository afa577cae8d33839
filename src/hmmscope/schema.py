"""Specs are frozen dataclasses; this reads them from plain data, strictly, and writes them back.

A wrong key, type or value is one InputError that names the field by its path and, for a wrong key, the nearest one.
"""

import dataclasses
import difflib
import math
import types
import typing
from collections.abc import Iterable, Mapping
from typing import Any

from hmmscope.errors import InputError


def unknown_name(field: str, name: object, known: Iterable[str]) -> InputError:
    """The error for a name that is not in a closed list."""
    options = sorted(known)
    near = difflib.get_close_matches(str(name), options, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return InputError(f"{field}: unknown {name!r}{hint} (known: {', '.join(options)})")


def parse_spec(cls: type, data: Any, where: str) -> Any:
    """An instance of the dataclass `cls` from a mapping of its fields; `where` begins the path in errors."""
    if not isinstance(data, Mapping):
        raise InputError(f"{where}: must be a mapping of fields, got {data!r}")
    hints = typing.get_type_hints(cls)
    fields = {field.name: field for field in dataclasses.fields(cls) if field.init}
    values = {}
    for key, value in data.items():
        if key not in fields:
            raise unknown_name(f"{where}.{key}" if where else str(key), key, fields)
        values[key] = parse_value(hints[key], value, f"{where}.{key}" if where else key)
    for name, field in fields.items():
        required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if required and name not in values:
            raise InputError(f"{where}.{name}: is required")
    try:
        return cls(**values)
    except InputError as error:
        raise InputError(f"{where}.{error}" if where else str(error)) from None


def parse_value(kind: Any, value: Any, where: str) -> Any:
    """`value` as the annotated type `kind`; text is read as a number or truth value only where the type asks for one."""
    origin = typing.get_origin(kind)
    if origin in (typing.Union, types.UnionType):
        if value is None or value == "none":
            if type(None) in typing.get_args(kind):
                return None
            raise InputError(f"{where}: must not be empty")
        options = [option for option in typing.get_args(kind) if option is not type(None)]
        return parse_value(options[0], value, where)
    if origin is typing.Literal:
        if value not in typing.get_args(kind):
            raise unknown_name(where, value, map(str, typing.get_args(kind)))
        return value
    if origin is tuple:
        items = value.split(",") if isinstance(value, str) else value
        if not isinstance(items, list | tuple):
            raise InputError(f"{where}: must be a list, got {value!r}")
        return tuple(parse_value(typing.get_args(kind)[0], item, f"{where}[{i}]") for i, item in enumerate(items))
    if dataclasses.is_dataclass(kind):
        cls = typing.cast(type, kind)
        return value if isinstance(value, cls) else parse_spec(cls, value, where)
    return _parse_scalar(kind, value, where)


def _parse_scalar(kind: type, value: Any, where: str) -> Any:
    if kind is bool:
        if isinstance(value, bool):
            return value
        if value in ("true", "false"):
            return value == "true"
        raise InputError(f"{where}: must be true or false, got {value!r}")
    if kind in (int, float) and not isinstance(value, bool):
        try:
            number = kind(value) if isinstance(value, str) else value
        except ValueError:
            raise InputError(f"{where}: must be {_article(kind)}, got {value!r}") from None
        if isinstance(number, int) or (kind is float and isinstance(number, float)):
            if kind is float and not math.isfinite(number):
                raise InputError(f"{where}: must be finite, got {value!r}")
            return kind(number)
        raise InputError(f"{where}: must be {_article(kind)}, got {value!r}")
    if kind is str and isinstance(value, str):
        return value
    raise InputError(f"{where}: must be {_article(kind)}, got {value!r}")


def _article(kind: type) -> str:
    return {int: "an integer", float: "a number", bool: "true or false", str: "text"}.get(kind, kind.__name__)


def spec_to_data(spec: Any) -> Any:
    """Plain data of a spec, for JSON."""
    if dataclasses.is_dataclass(spec) and not isinstance(spec, type):
        return {field.name: spec_to_data(getattr(spec, field.name)) for field in dataclasses.fields(spec) if field.init}
    if isinstance(spec, tuple | list):
        return [spec_to_data(item) for item in spec]
    return spec


def require(condition: bool, field: str, rule: str, value: object) -> None:
    """InputError naming `field`, the rule and the value received, unless `condition`."""
    if not condition:
        raise InputError(f"{field}: {rule}, got {value!r}")
