"""JSON paths for error messages, and small helpers that describe parsed values."""

from __future__ import annotations

import re
from collections.abc import Mapping

from mcpd.model.text import shorten, similar_names

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")


def join_path(path: str, key: str | int) -> str:
    """Append one step: `$.mcpServers` and `git` → `$.mcpServers.git`. Unusual keys are quoted."""
    if isinstance(key, int):
        return f"{path}[{key}]"
    if _PLAIN.fullmatch(key):
        return f"{path}.{key}"
    return f'{path}["{shorten(key, 64)}"]'


def split_path(path: str) -> tuple[str, str]:
    """Return the path of the value that contains this one, and the last step as text."""
    if path.endswith('"]'):
        parent, _, key = path.partition('["')
        return parent, key[:-2]
    parent, _, key = path.rpartition(".")
    return parent, key


def is_within(path: str, part: str) -> bool:
    """Return whether `path` is `part` or a place inside it."""
    return path == part or path.startswith((f"{part}.", f"{part}["))


def is_too_large(value: object, max_depth: int = 64, max_values: int = 200_000) -> bool:
    """Return whether `value` is nested too deeply (or in itself, as YAML allows) or has too many values."""
    waiting = [(value, 0)]
    seen = 0
    while waiting:
        inner, depth = waiting.pop()
        seen += 1
        if depth > max_depth or seen > max_values:
            return True
        if isinstance(inner, Mapping):
            waiting += [(item, depth + 1) for item in inner.values()]
        elif isinstance(inner, list):
            waiting += [(item, depth + 1) for item in inner]
    return False


def closest_match(word: str, known: list[str]) -> str | None:
    """Return the known word that `word` is probably a misspelling of, or None."""
    folded = {re.sub(r"[^a-z0-9]", "", name.lower()): name for name in known}
    same = folded.get(re.sub(r"[^a-z0-9]", "", word.lower()))
    if same is not None:
        return same
    close = similar_names(word.lower(), [name.lower() for name in known], count=1, cutoff=0.7)
    return next((name for name in known if close and name.lower() == close[0]), None)


def type_name(value: object) -> str:
    """Describe the type of a parsed value for an error message: "a list", "true or false"."""
    names = {bool: "true or false", int: "a number", float: "a number", str: "a string"}
    if value is None:
        return "null"
    if isinstance(value, (list, dict)):
        return "a list" if isinstance(value, list) else "an object"
    return names.get(type(value), f"a {type(value).__name__}")


def merge_patch(target: object, patch: object) -> dict[str, object]:
    """Return the object `target` with the changes of a JSON Merge Patch (RFC 7396). Changes neither."""
    merged = dict(target) if isinstance(target, Mapping) else {}
    for name, value in patch.items() if isinstance(patch, Mapping) else ():
        if value is None:
            merged.pop(name, None)
        elif isinstance(value, Mapping):
            merged[name] = merge_patch(merged.get(name), value)
        else:
            merged[name] = value
    return merged
