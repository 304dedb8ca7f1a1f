"""Converts between JSON and attrs classes, strictly. The only module that uses cattrs.

cattrs is lenient by default (`"false"` becomes True, a string becomes a list of letters). Here, every
primitive must have the right type, unknown keys are refused, and all errors are reported together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from types import UnionType
from typing import TypeVar, cast, get_args, get_origin

import attrs
import msgspec
from cattrs import ClassValidationError, Converter, IterableValidationError
from cattrs.errors import ForbiddenExtraKeysError, IterableValidationNote
from cattrs.gen import make_dict_structure_fn, mapping_structure_factory
from cattrs.v import format_exception, transform_error

from mcpd.model.errors import Problem
from mcpd.model.json_text import encode_json

T = TypeVar("T")
Hook = Callable[[object, object], object]
HookFactory = Callable[[type, Converter], Hook]


class ShapeError(ValueError):
    """A value does not match the expected type; `problems` lists every deviation."""

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__("; ".join(map(str, problems)))
        self.problems = problems


def structure(value: object, into: type[T]) -> T:
    """Convert plain JSON values to `into`. Raises ShapeError with all errors."""
    try:
        return _converter.structure(value, into)
    except (ClassValidationError, IterableValidationError) as error:
        lines = transform_error(error, format_exception=_describe)
        raise ShapeError([_problem(line) for line in lines]) from None
    except (ValueError, TypeError, KeyError) as error:
        raise ShapeError([Problem("$", _describe(error, into))]) from None


def decode(data: bytes, into: type[T]) -> T:
    """Like `structure`, for JSON text. Raises ShapeError for invalid JSON, too."""
    try:
        value = msgspec.json.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ShapeError([Problem("$", f"not valid JSON: {error}")]) from None
    return structure(value, into)


def unstructure(value: object) -> object:
    """Convert to plain JSON values (dicts, lists, primitives, `msgspec.Raw`)."""
    return _converter.unstructure(value)


def encode(value: object) -> bytes:
    """Return one line of JSON without the newline. `msgspec.Raw` members are copied unchanged."""
    return encode_json(_converter.unstructure(value))


def _problem(line: str) -> Problem:
    message, _, path = line.rpartition(" @ ")
    return Problem(path, message)


def _describe(error: BaseException, wanted: type[object] | None) -> str:
    if isinstance(error, ForbiddenExtraKeysError):
        names = ", ".join(sorted(error.extra_fields))
        return f"unknown member{'s' if len(error.extra_fields) > 1 else ''}: {names}"
    if isinstance(error, KeyError):
        return f"required member missing: {error.args[0]}"
    if isinstance(error, _WrongType):
        return str(error)
    return format_exception(error, wanted)


class _WrongType(TypeError):
    pass


_TYPE_NAMES = {str: "a string", bool: "true or false", int: "a whole number", float: "a number"}


def _strict(wanted: type) -> Hook:
    def check(value: object, _: object) -> object:
        if isinstance(value, wanted) and not (wanted is not bool and isinstance(value, bool)):
            return value
        if wanted is float and isinstance(value, int) and not isinstance(value, bool):
            return float(value)
        raise _WrongType(f"must be {_TYPE_NAMES[wanted]}, not {_type_name(value)}")

    return check


def _union_hook(kind: type, _: Converter) -> Hook:
    """Structure a union of primitives such as `bool | float`."""
    checks = [_strict(primitive) for primitive in get_args(kind)]

    def check(value: object, into: object) -> object:
        for each in checks:
            with suppress(_WrongType):
                return each(value, into)
        wanted = " or ".join(_TYPE_NAMES[primitive] for primitive in get_args(kind))
        raise _WrongType(f"must be {wanted}, not {_type_name(value)}")

    return check


def _type_name(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "a list"
    return _TYPE_NAMES.get(type(value), type(value).__name__)


def _require_type(container: type, name: str, value: object) -> None:
    if not isinstance(value, container):
        raise _WrongType(f"must be {name}, not {_type_name(value)}")


def _tuple_hook(kind: type, converter: Converter) -> Hook:
    """Structure `tuple[X, ...]` from a list only, not from a string."""
    element = get_args(kind)[0]
    inner = converter.get_structure_hook(element)

    def structure_tuple(value: object, _: object) -> object:
        _require_type(list, "a list", value)
        items, errors = [], []
        for index, item in enumerate(cast("list[object]", value)):
            try:
                items.append(inner(item, element))
            except Exception as error:
                error.__notes__ = [
                    *getattr(error, "__notes__", []),
                    IterableValidationNote(f"item {index}", index, element),
                ]
                errors.append(error)
        if errors:
            raise IterableValidationError("while structuring a list", errors, kind)
        return tuple(items)

    return structure_tuple


def _mapping_hook(kind: type, converter: Converter) -> Hook:
    plain: Hook = mapping_structure_factory(kind, converter)  # type: ignore[assignment]  # the value is checked

    def structure_mapping(value: object, into: object) -> object:
        _require_type(dict, "an object", value)
        return plain(value, into)

    return structure_mapping


def _class_hook(kind: type, converter: Converter) -> Hook:
    fields: Hook = make_dict_structure_fn(kind, converter, _cattrs_forbid_extra_keys=True)  # type: ignore[assignment]  # ditto

    def structure_class(value: object, into: object) -> object:
        _require_type(dict, "an object", value)
        return fields(value, into)

    return structure_class


def _make_converter() -> Converter:
    converter = Converter(forbid_extra_keys=True, detailed_validation=True)
    for primitive in (str, bool, int, float):
        converter.register_structure_hook(primitive, _strict(primitive))
    converter.register_structure_hook_func(lambda kind: kind is object, lambda value, _: value)
    converter.register_unstructure_hook(msgspec.Raw, lambda value: value)
    factories: list[tuple[Callable[[object], bool], HookFactory]] = [
        (lambda kind: isinstance(kind, type) and attrs.has(kind), _class_hook),
        (lambda kind: get_origin(kind) is tuple, _tuple_hook),
        (lambda kind: get_origin(kind) is Mapping, _mapping_hook),
        (lambda kind: get_origin(kind) is UnionType and _TYPE_NAMES.keys() >= {*get_args(kind)}, _union_hook),
    ]
    for predicate, factory in factories:
        converter.register_structure_hook_factory(predicate, factory)
    return converter


_converter = _make_converter()
