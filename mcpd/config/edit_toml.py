"""TOML, changed in place: the tables of one server put in or taken out, every other line kept.

Where a server has no table of its own (an inline table, dotted keys) None is answered, and the caller
lets tomlkit rewrite the file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from mcpd.config.lines import append, content

_HEADER = re.compile(r"\s*(\[\[?)[^\[\]]*?(\]\]?)\s*(?:#.*)?$")


def add(text: str, slot: tuple[str, ...], listed: bool, name: str, definition: Mapping[str, object]) -> str:
    """The server as a table of its own at the end of the file."""
    import tomlkit

    table = tomlkit.table()
    for key, value in ({"name": name} | dict(definition) if listed else definition).items():
        table[key] = value
    outer: object = table
    if listed:
        array = tomlkit.aot()
        array.append(table)
        outer = array
    for key in reversed(slot if listed else (*slot, name)):
        parent = tomlkit.table(is_super_table=True)
        parent[key] = outer
        outer = parent
    return append(text, tomlkit.dumps(outer))  # type: ignore[arg-type]  # the loop ran at least once


def remove(text: str, slot: tuple[str, ...], listed: bool, name: str, index: int) -> str | None:
    """Without the tables of the server: `[…name]` and those below it, or the list's table at `index`."""
    lines = text.splitlines(keepends=True)
    target = slot if listed else (*slot, name)
    element, inside = -1, False
    cut: set[int] = set()
    for number, line in enumerate(lines):
        path = _header(line)
        if path is not None:
            if listed and path == target and line.lstrip().startswith("[["):
                element += 1
            inside = path[: len(target)] == target and (not listed or element == index)
        if inside:
            cut.add(number)
    return _without(lines, cut) if cut else None


def _without(lines: list[str], cut: set[int]) -> str:
    """The lines but those in `cut`; remarks at a block's end stay, one blank line before it goes too."""
    for number in sorted(cut, reverse=True):
        if number + 1 not in cut and not content(lines[number]):
            cut.discard(number)
    for number in sorted(cut):
        if number - 1 not in cut:
            if number and not lines[number - 1].strip():
                cut.add(number - 1)
            break
    kept = "".join(line for number, line in enumerate(lines) if number not in cut)
    at_end = len(lines) - 1 in cut and not lines[-1].endswith("\n")
    return kept.removesuffix("\n").removesuffix("\r") if at_end else kept


def _header(line: str) -> tuple[str, ...] | None:
    """The path that a `[table]` line names, or None for any other line."""
    if not _HEADER.match(line):
        return None
    import tomllib

    try:
        value: object = tomllib.loads(line)
    except tomllib.TOMLDecodeError:
        return None
    path: list[str] = []
    while value:
        if isinstance(value, list):
            value = value[0]
        elif isinstance(value, dict):
            key, value = next(iter(value.items()))
            path.append(key)
    return tuple(path)
