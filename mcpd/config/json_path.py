"""Where in a document something stands, as the JSON path that a complaint shows."""

from __future__ import annotations

import re
from collections.abc import Mapping

from mcpd.model.text import shorten

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")


def join_path(path: str, key: str | int) -> str:
    """`place` one step deeper: `$.mcpServers` and `git` → `$.mcpServers.git`; odd keys are quoted."""
    if isinstance(key, int):
        return f"{path}[{key}]"
    if _PLAIN.fullmatch(key):
        return f"{path}.{key}"
    return f'{path}["{shorten(key, 64)}"]'


def is_too_large(value: object, max_depth: int = 64, max_values: int = 200_000) -> bool:
    """Whether walking through `value` would not end well: nested deeply, in itself, or without measure."""
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
    """The known word that `word` was probably meant to be, or None."""
    folded = {re.sub(r"[^a-z0-9]", "", name.lower()): name for name in known}
    same = folded.get(re.sub(r"[^a-z0-9]", "", word.lower()))
    if same is not None:
        return same
    import difflib  # only when there is something to complain about: the daemon's idle memory

    close = difflib.get_close_matches(word.lower(), [name.lower() for name in known], n=1, cutoff=0.7)
    return next((name for name in known if close and name.lower() == close[0]), None)


def type_name(value: object) -> str:
    """The kind of a parsed value, in a configuration writer's words."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true or false"
    if isinstance(value, (int, float)):
        return "a number"
    if isinstance(value, str):
        return "a string"
    if isinstance(value, list):
        return "a list"
    if isinstance(value, dict):
        return "an object"
    return f"a {type(value).__name__}"
