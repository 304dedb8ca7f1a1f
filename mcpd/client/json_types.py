"""Finds values of a type that JSON does not have (RFC 8259, section 1), such as a set or a date.

The encoder would convert some of them, so that a server would get another value than the caller passed.
Allowed are the types of `json.dumps` with their subclasses, such as `StrEnum`. The keys of a dict must be
text.
"""

from __future__ import annotations

from collections.abc import Collection

_TEXT = frozenset((str,))
_EXACT = frozenset((str, int, float, bool, type(None)))
_SCALARS = (str, int, float, type(None))
_CONTAINERS = (dict, list, tuple)
_ALLOWED = "str, int, float, bool, None, list, tuple, or dict"


def has_only_json_types(value: object) -> bool:
    """Return whether a value consists of JSON's types. The value must not contain itself."""
    pending = [value]
    for each in pending:  # which grows
        members: Collection[object]
        if isinstance(each, dict):
            if not _TEXT.issuperset(map(type, each)) and not all(isinstance(key, str) for key in each):
                return False
            members = each.values()
        elif isinstance(each, list | tuple):
            members = each
        elif isinstance(each, _SCALARS):
            continue
        else:
            return False
        if not _EXACT.issuperset(map(type, members)):  # otherwise all are done, without a loop in Python
            pending += [member for member in members if type(member) not in _EXACT]
    return True


def describe_foreign_type(arguments: object) -> str:
    """Return which part of an object has a type that JSON does not have, and what to pass; empty if none has.

    `arguments` is an object, whose members are the arguments of a call. It may contain itself.
    """
    seen: set[int] = set()
    pending: list[tuple[str, object]] = [("", arguments)]
    while pending:
        path, value = pending.pop()
        if isinstance(value, _CONTAINERS):
            if id(value) in seen:
                continue
            seen.add(id(value))
        if isinstance(value, dict):
            for key in value:
                if not isinstance(key, str):
                    owner = f"the argument {path}" if path else "the request"
                    return (
                        f"{owner} cannot be sent as JSON: its key {key!r} is of type {_name(key)}; pass a str"
                    )
            pending += [(f"{path}.{key}" if path else str(key), each) for key, each in value.items()]
        elif isinstance(value, list | tuple):
            pending += [(f"{path}[{index}]", each) for index, each in enumerate(value)]
        elif not isinstance(value, _SCALARS):
            return (
                f"the argument {path} cannot be sent as JSON: it is of type {_name(value)}; pass a {_ALLOWED}"
            )
    return ""


def to_base_type(value: object) -> object:
    """Return an instance of a subclass of a JSON type, such as a number of numpy, as that type.

    This is for encoders, which call it with what they do not know. Raises TypeError for all other types.
    """
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int.__int__(value)
    if isinstance(value, float):
        return float.__float__(value)
    raise TypeError(f"it is of type {_name(value)}; pass a {_ALLOWED}")


def _name(value: object) -> str:
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
