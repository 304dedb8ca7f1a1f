"""How classes of the configuration are written: the names, aliases, limits and descriptions of their fields.

One declaration of a field serves the parser (`read`), the JSON Schema (`object_schema`), suggestions for
misspelled names, and the test of the reference page.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Mapping
from types import NoneType
from typing import Any, Literal, NewType, TypeVar, get_args, get_origin

import attrs
import msgspec
from cattrs import BaseValidationError, ClassValidationError, Converter

from mcpd.model.codec import (
    Hook,
    Invalid,
    converter,
    locate,
    problems_of,
    require_object,
    step_of,
    wrong_type,
)
from mcpd.model.errors import Problem
from mcpd.model.json_path import closest_match
from mcpd.model.text import shorten

T = TypeVar("T")
Shape = Mapping[str, object]
"""A JSON Schema."""
_KEY = "written"


class Written(msgspec.Struct, frozen=True, kw_only=True):
    """How a field is written."""

    description: str
    name: str
    """Empty: the attribute's name in camel case."""
    aliases: tuple[str, ...]
    """Names in other products that mean exactly the same."""
    minimum: int | None
    may_be_empty: bool
    shape: Shape | None
    """The JSON Schema; None for the one of the type."""


def field(
    description: str,
    default: object = None,
    *,
    name: str = "",
    aliases: tuple[str, ...] = (),
    minimum: int | None = None,
    may_be_empty: bool = False,
    shape: Shape | None = None,
) -> Any:  # noqa: ANN401  # the type is the one of the annotation
    """Declare a field of a class that is part of the configuration."""
    written = Written(
        description=description,
        name=name,
        aliases=aliases,
        minimum=minimum,
        may_be_empty=may_be_empty,
        shape=shape,
    )
    return attrs.field(default=default, metadata={_KEY: written})


def written_fields(kind: type) -> dict[str, tuple[str, Written]]:
    """Return the fields of a class: name as written → name of the attribute, and the declaration."""
    found = {}
    for attribute in attrs.fields(kind):
        written: Written = attribute.metadata[_KEY]
        first, *rest = attribute.name.split("_")
        found[written.name or first + "".join(map(str.title, rest))] = (attribute.name, written)
    return found


def spellings(kind: type) -> dict[str, str]:
    """Return every name and alias of the fields of a class → the name."""
    return {
        spelling: name
        for name, (_, written) in written_fields(kind).items()
        for spelling in (name, *written.aliases)
    }


def read(value: object, kind: type[T], path: str, problems: list[Problem]) -> T:
    """Structure the object at `path`. Members with errors are left out, and added to `problems`."""
    try:
        return converter.structure(value, kind)
    except BaseValidationError as error:
        problems += problems_of(error, path)
        invalid = {step_of(each) for each in error.exceptions}
        assert isinstance(value, dict)
        return converter.structure({key: value[key] for key in value if key not in invalid}, kind)
    except Invalid as error:
        problems += problems_of(error, path)
        return kind()


def set_members(value: object) -> dict[str, Any]:
    """Return the attributes of a written class that are not None."""
    members = attrs.asdict(value, recurse=False)  # type: ignore[arg-type]  # each is a class of attrs
    return {name: member for name, member in members.items() if member is not None}


def unknown_member(key: str, known: list[str]) -> Invalid:
    match = closest_match(key, known)
    fix = f"did you mean '{match}'?" if match else f"known fields: {', '.join(sorted(known))}"
    return Invalid(f"unknown field '{shorten(key, 64)}'", fix)


# ── types of fields ─────────────────────────────────────────────────────────────────────────────

_shapes: dict[object, Shape] = {
    str: {"type": "string"},
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"type": "number"},
    object: {},
}


def register(kind: object, parse: Callable[[object], object], shape: Shape) -> None:
    """Define how values of a type are read; `parse` raises Invalid. `shape` is their JSON Schema."""
    converter.register_structure_hook_func(lambda wanted: wanted is kind, lambda value, _: parse(value))
    _shapes[kind] = shape


def text(value: object) -> str:
    """Return the value if it is a string that is not empty. Raises Invalid."""
    if not isinstance(value, str):
        raise wrong_type("a string", value)
    if not value:
        raise Invalid("is empty", "give it a value, or remove it")
    return value


def _positive(value: object) -> float:
    number = converter.structure(value, float)
    if not 0 < number < float("inf"):
        raise Invalid(f"must be more than 0, not {number:g}", "write a number in that range")
    return number


Milliseconds = NewType("Milliseconds", float)
"""Written in milliseconds; in seconds here."""
Seconds = NewType("Seconds", float)
register(Milliseconds, lambda value: _positive(value) / 1000, {"type": "number", "exclusiveMinimum": 0})
register(Seconds, _positive, {"type": "number", "exclusiveMinimum": 0})

Url = NewType("Url", str)


def _url(value: object) -> str:
    found = text(value)
    if not found.startswith(("https://", "http://")):
        raise Invalid("is not a URL", "write https://…")
    return found


register(Url, _url, {"type": "string"})

Duration = NewType("Duration", float)
_DURATION = re.compile(r"([1-9][0-9]{0,5})([smh])")
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}


def _duration(value: object) -> float:
    written = text(value)
    found = _DURATION.fullmatch(written)
    if found is None:
        raise Invalid(f"{shorten(written, 40)!r} is not a duration", 'write "60s", "5m" or "1h"')
    return int(found[1]) * _UNITS[found[2]]


register(Duration, _duration, {"type": "string"})


def _hook(kind: type, structures: Converter) -> Hook:
    """Structure a class whose fields are declared with `field`. Null is the same as a missing member."""
    attrs.resolve_types(kind)
    types = {attribute.name: _without_none(attribute.type) for attribute in attrs.fields(kind)}
    fields = written_fields(kind)
    names = spellings(kind)
    hooks = {name: structures.get_structure_hook(each) for name, each in types.items()}

    def member(name: str, written: Written, value: object) -> object:
        found: object = hooks[name](value, types[name])
        if found == "" and not written.may_be_empty:
            raise Invalid("is empty", "give it a value, or remove it")
        if written.minimum is not None and isinstance(found, int) and found < written.minimum:
            raise Invalid(f"must be {written.minimum} or more, not {found}", "write a larger number")
        return found

    def structure(value: object, _: object) -> object:
        members: dict[str, object] = {}
        spelled: dict[str, str] = {}
        errors: list[Exception] = []
        for key, inner in require_object(value).items():
            try:
                if key not in names:
                    raise unknown_member(key, list(fields))
                if inner is None:
                    continue
                name, written = fields[names[key]]
                if name in spelled:
                    raise Invalid(f"'{spelled[name]}' and '{key}' mean the same", "keep one")
                spelled[name] = key
                members[name] = member(name, written, inner)
            except Exception as error:
                errors.append(locate(error, key))
        if errors:
            raise ClassValidationError("while structuring an object", errors, kind)
        return kind(**members)

    return structure


def _without_none(kind: object) -> object:
    options = [each for each in get_args(kind) if each is not NoneType]
    return options[0] if NoneType in get_args(kind) and len(options) == 1 else kind


def _is_written(kind: object) -> bool:
    return (
        isinstance(kind, type)
        and attrs.has(kind)
        and any(_KEY in each.metadata for each in attrs.fields(kind))
    )


converter.register_structure_hook_factory(_is_written, _hook)


# ── JSON Schema ─────────────────────────────────────────────────────────────────────────────────


def object_schema(kind: type, *, closed: bool = True) -> dict[str, Any]:
    """Return the JSON Schema of a class whose fields are declared with `field`."""
    attrs.resolve_types(kind)
    types = {attribute.name: attribute.type for attribute in attrs.fields(kind)}
    properties = {
        spelling: {
            **(written.shape or _type_schema(types[name], written)),
            "description": written.description,
        }
        for title, (name, written) in written_fields(kind).items()
        for spelling in (title, *written.aliases)
    }
    return {"type": "object", "properties": properties} | ({"additionalProperties": False} if closed else {})


def _type_schema(kind: object, written: Written | None = None) -> Shape:
    kind = _without_none(kind)
    if kind in _shapes:
        minimum = None if written is None else written.minimum
        return _shapes[kind] if minimum is None else {**_shapes[kind], "minimum": minimum}
    if get_origin(kind) is Literal:
        return {"enum": list(get_args(kind))}
    if get_origin(kind) is tuple:
        return {"type": "array", "items": _type_schema(get_args(kind)[0])}
    if get_origin(kind) in (Mapping, dict):
        return {"type": "object", "additionalProperties": _type_schema(get_args(kind)[1])}
    assert isinstance(kind, type)
    if issubclass(kind, enum.Enum):
        return {"enum": [each.value for each in kind]}
    return object_schema(kind)
