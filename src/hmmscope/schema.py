"""Strict conversion between frozen dataclasses (specs) and plain data.

A wrong key, type or value raises an InputError with the field's path. A field may have another key in files:
``field(default=1, metadata={"stored": "accumulation_steps"})``. Reading accepts both keys.
"""

import dataclasses
import difflib
import errno
import functools
import math
import numbers
import os
import re
import sys
import types
import typing
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from hmmscope.errors import InputError, too_long
from hmmscope.synonyms import suggestion

_T = TypeVar("_T")

#: Text accepted as a number: decimal digits 0 to 9, no underscores.
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?|[+-]?(inf|nan)")


def shown(value: object) -> str:
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # an integer of thousands of digits, or deep nesting
        text = f"a huge {type(value).__name__}"
    text = " ".join(text.split("\n"))  # the text of an array has lines
    return text if len(text) <= 100 else text[:97] + "..."


def path_of(where: str, key: object) -> str:
    word = key if isinstance(key, str) and key.isprintable() and 0 < len(key) <= 100 else shown(key)
    return f"{where}.{word}" if where else word


#: Maximum characters of a list of names in a message, and of one name.
_LIST, _NAME = 240, 60


def listed(names: Iterable[object]) -> str:
    words: list[str] = []
    length = rest = 0
    for name in names:
        word = " ".join(str(name).split("\n"))
        word = word if len(word) <= _NAME else word[: _NAME - 3] + "..."
        length += len(word) + 2
        if rest or (words and length > _LIST):
            rest += 1
        else:
            words.append(word)
    return ", ".join(words) + (f" and {rest} more" if rest else "")


class UnknownNameError(InputError):
    """Error for a name that is not in a list of known names.

    Attributes:
        name, known: The unknown name, and the known names.
    """

    def __init__(self, message: str, name: object, known: Iterable[str]) -> None:
        super().__init__(message)
        self.name, self.known = name, tuple(known)


def unknown_name(field: str, name: object, known: Iterable[str], meant: str | None = None) -> UnknownNameError:
    options = sorted(known)
    text = name[:100] if isinstance(name, str) else ""
    near = difflib.get_close_matches(text, [option[:200] for option in options], n=5, cutoff=0.5)
    meant = (
        meant or suggestion(text, options) or (near[0] if near and difflib.get_close_matches(text, near[:1]) else None)
    )
    hint = f"; did you mean {shown(meant)}?" if meant else ""
    if len(listed(options)) < len(", ".join(options)):  # a shortened list starts with similar names
        options.sort(key=lambda option: option not in near)
    return UnknownNameError(f"{field}: unknown {shown(name)}{hint} (known: {listed(options) or 'none'})", name, options)


def require_known(field: str, value: object, known: Collection[Any]) -> None:
    if not isinstance(value, str | int | tuple | None) or value not in known:
        raise unknown_name(field, value, known)


def stored_key(field: dataclasses.Field) -> str:
    key: str = field.metadata.get("stored", field.name)
    return key


def known_keys(cls: type) -> Mapping[str, str]:
    fields = [field for field in dataclasses.fields(cls) if field.init]
    return {field.name: field.name for field in fields} | {stored_key(field): field.name for field in fields}


def by_field(cls: type, data: Mapping[str, Any], where: str = "") -> dict[str, Any]:
    known, found = known_keys(cls), {}
    for key, value in data.items():
        name = known.get(key, key) if isinstance(key, str) else key
        if name in found:
            raise InputError(f"{path_of(where, key)}: is given twice, the second time as {name}; give it once")
        found[name] = value
    return found


def to_stored(record: Any) -> dict[str, Any]:
    return {stored_key(field): getattr(record, field.name) for field in dataclasses.fields(record)}


def parse_spec(cls: type, data: Any, where: str) -> Any:
    if not isinstance(data, Mapping):
        raise InputError(f"{where}: must be a mapping of fields, got {shown(data)}")
    hints = typing.get_type_hints(cls)
    fields = {field.name: field for field in dataclasses.fields(cls) if field.init}
    known, values = known_keys(cls), {}
    for key in data:
        if not isinstance(key, str) or key not in known:
            raise unknown_name(path_of(where, key), key, fields)
    by_field(cls, data, where)
    for key, value in data.items():
        value = fields[known[key]].metadata.get("read", lambda given: given)(value)
        values[known[key]] = parse_value(hints[known[key]], value, path_of(where, key))
    for name, field in fields.items():
        required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if required and name not in values:
            raise InputError(f"{path_of(where, name)}: is required")
    try:
        return cls(**values)
    except InputError as error:
        raise InputError(f"{where}.{error}" if where else str(error)) from None


def require_path(field: str, value: object) -> Path:
    """Return a path; raise InputError naming `field` for another type, or a name that no file can have."""
    if not isinstance(value, str | os.PathLike):
        raise InputError(f"{field}: must be a path, got {shown(value)}")
    try:
        os.lstat(value)
    except ValueError:  # a zero byte, half a surrogate pair
        raise InputError(f"{field}: must be a name that a file can have, got {shown(value)}") from None
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise InputError(f"{field}: {too_long(value)}") from None
    return Path(value)


def require_kinds(spec: Any) -> None:
    """Raise InputError for the first field whose value does not have the annotated type."""
    for name, kind in _hints(type(spec)).items():  # type: ignore[arg-type]
        value = getattr(spec, name)
        if isinstance(value, numbers.Real) and not isinstance(value, int | float):  # of NumPy
            value = int(value) if isinstance(value, numbers.Integral) else float(value)
        if parse_value(kind, value, name) != (tuple(value) if isinstance(value, list) else value):
            raise InputError(f"{name}: must not be text, got {shown(value)}")


@functools.cache
def _hints(cls: type) -> dict[str, Any]:
    return {field.name: typing.get_type_hints(cls)[field.name] for field in dataclasses.fields(cls)}


def parse_value(kind: Any, value: Any, where: str) -> Any:
    """Parse `value` as the annotated type `kind`; text such as "3" is converted if `kind` is a number or bool."""
    origin = typing.get_origin(kind)
    if origin in (typing.Union, types.UnionType):
        if value is None or (isinstance(value, str) and value == "none"):
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
            raise InputError(f"{where}: must be a list, got {shown(value)}")
        return tuple(parse_value(typing.get_args(kind)[0], item, f"{where}[{i}]") for i, item in enumerate(items))
    if origin is dict:
        items = value.items() if isinstance(value, Mapping) else parse_value(dict, value, where)
        return {name: parse_value(typing.get_args(kind)[1], item, f"{where}.{name}") for name, item in items}
    if dataclasses.is_dataclass(kind):
        cls = typing.cast(type, kind)
        return value if isinstance(value, cls) else parse_spec(cls, value, where)
    return _parse_scalar(kind, value, where)


def _parse_scalar(kind: type, value: Any, where: str) -> Any:
    if kind is bool:
        if isinstance(value, bool):
            return value
        if isinstance(value, str) and value in ("true", "false"):
            return value == "true"
        raise InputError(f"{where}: must be true or false, got {shown(value)}")
    wrong = InputError(f"{where}: must be {_article(kind)}, got {shown(value)}")
    if kind in (int, float) and not isinstance(value, bool):
        if isinstance(value, str) and not _NUMBER.fullmatch(value):
            raise wrong
        try:
            number = kind(value) if isinstance(value, str) or kind is float else value
        except (ValueError, TypeError, OverflowError):  # OverflowError: an integer beyond all floats
            raise wrong from None
        if not isinstance(value, str | int | float) or not isinstance(number, kind):
            raise wrong
        if kind is float and not math.isfinite(number):
            raise InputError(f"{where}: must be finite, got {shown(value)}")
        return number
    if kind is str and isinstance(value, str):
        return value
    raise wrong


def _article(kind: type) -> str:
    return {int: "an integer", float: "a number", bool: "true or false", str: "text"}.get(kind, kind.__name__)


def spec_to_data(spec: Any) -> Any:
    if dataclasses.is_dataclass(spec) and not isinstance(spec, type):
        fields = [field for field in dataclasses.fields(spec) if field.init]
        written = (one for one in fields if not one.metadata.get("absent") or getattr(spec, one.name) != one.default)
        return {stored_key(field): spec_to_data(getattr(spec, field.name)) for field in written}
    if isinstance(spec, tuple | list):
        return [spec_to_data(item) for item in spec]
    return spec


def is_count(value: object) -> bool:
    return isinstance(value, numbers.Integral) and not isinstance(value, bool) and int(value) >= 1


def require(condition: bool, field: str, rule: str, value: object) -> None:
    """Raise InputError with `field`, `rule` and `value` in its message unless `condition` holds."""
    if not condition:
        raise InputError(f"{field}: {rule}, got {shown(value)}")


def options_of(options: _T | None, cls: type[_T], given: Mapping[str, Any] | None = None) -> _T:
    """Return `options` or, for None, `cls()`; raise InputError if the call's keywords `given` have its fields."""
    for name in vars(cls)["__dataclass_fields__"]:
        if given and name in given:
            raise InputError(f"{name}: pass options={cls.__name__}({name}=...)")
    if options is None:
        return cls()
    require(isinstance(options, cls), "options", f"must be {cls.__name__}(...)", options)
    return options


def check_options(parameters: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    for name, value in given.items():
        kind = parameters[name].annotation if name in parameters else None
        kinds = typing.get_args(kind) if isinstance(kind, types.UnionType) else (kind,)
        if value is None and type(None) in kinds:
            continue
        if int in kinds:
            least = 1 if name in ("num_samples", "num_factors") else -sys.maxsize
            require_count(name, value, least, most=2**24 if name == "num_samples" else None)
        elif float in kinds:
            require_real(name, value)
        elif bool in kinds:
            require_bool(name, value)
        elif kinds[0] is str and set(kinds) <= {str, type(None)}:
            require(isinstance(value, str), name, "must be text", value)
        elif Sequence[str] in kinds:
            require_names(name, value)
        elif typing.get_origin(kinds[0]) is Mapping:
            require(isinstance(value, Mapping), name, "must be a mapping", value)


def require_names(field: str, value: object) -> list[str]:
    names = items_of(value)
    require(names is not None and all(isinstance(one, str) for one in names), field, "must be a list of names", value)
    return names or []


def items_of(value: object) -> list[Any] | None:
    """Return the items of a list or array; None for other objects."""
    try:
        return list(value) if isinstance(value, Iterable) and not isinstance(value, str | bytes) else None
    except TypeError:  # an array without axes
        return None


def require_bool(field: str, value: object) -> None:
    require(type(value).__name__ in ("bool", "bool_"), field, "must be True or False", value)


def refuse_masked(field: str, values: object) -> None:
    """Raise InputError that names `field` if `values` is a masked array with masked entries."""
    numpy = sys.modules.get("numpy")  # not imported: there is no such array
    if numpy is not None and (numpy.ma.is_masked(values) or _holds_masked(values, numpy.ma)):
        raise InputError(f"{field}: has masked entries; replace each by a value")


def _holds_masked(values: object, ma: Any) -> bool:
    if not isinstance(values, list | tuple):
        return False
    return any(ma.is_masked(one) if isinstance(one, ma.MaskedArray) else _holds_masked(one, ma) for one in values)


def require_real(field: str, value: Any) -> None:
    real = isinstance(value, numbers.Real) and not isinstance(value, bool)
    require(real and abs(value) <= sys.float_info.max, field, "must be a finite number", value)


def require_count(field: str, value: object, least: int = 1, why: str = "", most: int | None = None) -> None:
    require(isinstance(value, numbers.Integral) and not isinstance(value, bool), field, "must be an integer", value)
    require(int(value) >= least, field, f"must be at least {least}{why}", value)  # type: ignore[call-overload]
    require(most is None or int(value) <= most, field, f"must be at most {most}", value)  # type: ignore[call-overload]
