"""Converts between JSON and attrs classes, strictly: parameters of the control API, and the configuration.

cattrs is lenient by default (`"false"` becomes True, a string becomes a list of letters). Here, every
primitive must have the right type, unknown keys are refused, and all errors are reported together.
`config/structuring.py` adds how classes of the configuration are written.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from types import UnionType
from typing import Literal, TypeVar, cast, get_args, get_origin

import attrs
import msgspec
from cattrs import BaseValidationError, Converter, IterableValidationError
from cattrs.errors import AttributeValidationNote, ForbiddenExtraKeysError, IterableValidationNote
from cattrs.gen import make_dict_structure_fn
from cattrs.v import format_exception

from mcpd.model.errors import Problem
from mcpd.model.json_path import join_path, type_name
from mcpd.model.json_text import encode_json
from mcpd.model.text import shorten

T = TypeVar("T")
Hook = Callable[[object, object], object]
HookFactory = Callable[[type, Converter], Hook]


class ShapeError(ValueError):
    """A value does not match the expected type; `problems` lists every deviation."""

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__("; ".join(map(str, problems)))
        self.problems = problems


class Invalid(ValueError):
    """Raised by a hook for one value: why it cannot be used, and what to write instead."""

    def __init__(self, message: str, fix: str = "") -> None:
        super().__init__(message)
        self.fix = fix


def structure(value: object, into: type[T]) -> T:
    """Convert plain JSON values to `into`. Raises ShapeError with all errors."""
    try:
        return converter.structure(value, into)
    except (BaseValidationError, ValueError, TypeError, KeyError) as error:
        raise ShapeError(list(problems_of(error, "$"))) from None


def decode(data: bytes, into: type[T]) -> T:
    """Like `structure`, for JSON text. Raises ShapeError for invalid JSON, too."""
    try:
        value = msgspec.json.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ShapeError([Problem("$", f"not valid JSON: {error}")]) from None
    return structure(value, into)


def unstructure(value: object) -> object:
    """Convert to plain JSON values (dicts, lists, primitives, `msgspec.Raw`)."""
    return converter.unstructure(value)


def encode(value: object) -> bytes:
    """Return one line of JSON without the newline. `msgspec.Raw` members are copied unchanged."""
    return encode_json(converter.unstructure(value))


def problems_of(error: BaseException, path: str) -> Iterator[Problem]:
    """Return every error that structuring the value at `path` has found, each with its own path."""
    if isinstance(error, BaseValidationError):
        for inner in error.exceptions:
            step = step_of(inner)
            yield from problems_of(inner, path if step is None else join_path(path, step))
    elif isinstance(error, ForbiddenExtraKeysError):
        names = ", ".join(sorted(error.extra_fields))
        yield Problem(path, f"unknown member{'s' if len(error.extra_fields) > 1 else ''}: {names}")
    elif isinstance(error, KeyError):
        yield Problem(path, f"required member missing: {error.args[0]}")
    elif isinstance(error, Invalid):
        yield Problem(path, str(error), error.fix)
    else:
        yield Problem(path, format_exception(error, None))


def step_of(error: BaseException) -> int | str | None:
    """Return the member or the index at which an error inside a group is; None for the whole."""
    for note in getattr(error, "__notes__", ()):
        if isinstance(note, IterableValidationNote):
            return note.index
        if isinstance(note, AttributeValidationNote):
            return note.name
    return None


def locate(error: Exception, step: int | str) -> Exception:
    """Return the error with the note that it is at this member or index."""
    error.__notes__ = [*getattr(error, "__notes__", []), IterableValidationNote(f"at {step}", step, object)]
    return error


def wrong_type(wanted: str, value: object) -> Invalid:
    """Return the error for a value that is not `wanted`, such as "a string"."""
    fix = f"write {wanted}"
    if wanted == "a list" and isinstance(value, str):
        fix = f'write ["{value}"]' if len(value) <= 20 and value.isalnum() else 'write ["…"]'
    elif wanted == "an object":
        fix = 'write {"name": value, …}'
    elif wanted == "a string" and isinstance(value, bool | int | float):
        fix = f'write "{str(value).lower() if isinstance(value, bool) else value}", in quotes'
    elif isinstance(value, str) and (
        value in ("true", "false")
        if wanted == "true or false"
        else "number" in wanted and value.isascii() and value.isdigit() and len(value) < 20
    ):
        fix = f"write {value} without quotes"
    return Invalid(f"must be {wanted}, not {type_name(value)}", fix)


def require_object(value: object) -> dict[str, object]:
    if not isinstance(value, dict):
        raise wrong_type("an object", value)
    if not all(isinstance(key, str) for key in value):
        raise Invalid("has a key that is not a string", "put it in quotes")
    return value


_TYPE_NAMES = {str: "a string", bool: "true or false", int: "a whole number", float: "a number"}


def _strict(wanted: type) -> Hook:
    def check(value: object, _: object) -> object:
        if isinstance(value, wanted) and not (wanted is not bool and isinstance(value, bool)):
            return value
        if wanted is float and isinstance(value, int) and not isinstance(value, bool):
            try:
                return float(value)
            except OverflowError:  # an integer of more than 308 digits
                return math.inf
        raise wrong_type(_TYPE_NAMES[wanted], value)

    return check


def _union_hook(kind: type, _: Converter) -> Hook:
    """Structure a union of primitives such as `bool | float`."""
    checks = [_strict(primitive) for primitive in get_args(kind)]

    def check(value: object, into: object) -> object:
        for each in checks:
            with suppress(Invalid):
                return each(value, into)
        raise wrong_type(" or ".join(_TYPE_NAMES[primitive] for primitive in get_args(kind)), value)

    return check


def _choice_hook(kind: type, _: Converter) -> Hook:
    """Structure a Literal or an Enum of strings."""
    if get_origin(kind) is Literal:
        options: dict[str, object] = {each: each for each in get_args(kind)}
    else:
        options = {each.value: each for each in cast("type[enum.Enum]", kind)}

    def choose(value: object, _: object) -> object:
        if not isinstance(value, str):
            raise wrong_type("a string", value)
        if value not in options:
            raise Invalid(f"unknown value '{shorten(value, 40)}'", f"write one of {', '.join(options)}")
        return options[value]

    return choose


def _tuple_hook(kind: type, converter: Converter) -> Hook:
    """Structure `tuple[X, ...]` from a list only, not from a string."""
    element = get_args(kind)[0]
    inner = converter.get_structure_hook(element)

    def structure_tuple(value: object, _: object) -> object:
        if not isinstance(value, list):
            raise wrong_type("a list", value)
        return tuple(_each(inner, element, enumerate(value), kind).values())

    return structure_tuple


def _mapping_hook(kind: type, converter: Converter) -> Hook:
    element = get_args(kind)[1]
    inner = converter.get_structure_hook(element)
    return lambda value, _: _each(inner, element, iter(require_object(value).items()), kind)


def _each(inner: Hook, element: object, items: Iterator[tuple[T, object]], kind: type) -> dict[T, object]:
    """Structure all items of a list or an object. Raises the errors of all of them."""
    found: dict[T, object] = {}
    errors: list[Exception] = []
    for step, item in items:
        try:
            found[step] = inner(item, element)
        except Exception as error:
            errors.append(locate(error, cast("int | str", step)))
    if errors:
        raise IterableValidationError("while structuring the items", errors, kind)
    return found


def _class_hook(kind: type, converter: Converter) -> Hook:
    fields: Hook = make_dict_structure_fn(kind, converter, _cattrs_forbid_extra_keys=True)  # type: ignore[assignment]  # the value is checked
    return lambda value, into: fields(require_object(value), into)


def _is_choice(kind: object) -> bool:
    if get_origin(kind) is Literal:
        return all(isinstance(each, str) for each in get_args(kind))
    return isinstance(kind, type) and issubclass(kind, enum.Enum)


def _make_converter() -> Converter:
    made = Converter(forbid_extra_keys=True, detailed_validation=True)
    for primitive in (str, bool, int, float):
        made.register_structure_hook(primitive, _strict(primitive))
    made.register_structure_hook_func(lambda kind: kind is object, lambda value, _: value)
    made.register_unstructure_hook(msgspec.Raw, lambda value: value)
    factories: list[tuple[Callable[[object], bool], HookFactory]] = [
        (lambda kind: isinstance(kind, type) and attrs.has(kind), _class_hook),
        (lambda kind: get_origin(kind) is tuple, _tuple_hook),
        (lambda kind: get_origin(kind) in (Mapping, dict), _mapping_hook),
        (lambda kind: get_origin(kind) is UnionType and _TYPE_NAMES.keys() >= {*get_args(kind)}, _union_hook),
        (_is_choice, _choice_hook),
    ]
    for predicate, factory in factories:
        made.register_structure_hook_factory(predicate, factory)
    return made


converter = _make_converter()
