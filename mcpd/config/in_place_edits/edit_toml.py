"""Edits TOML in place: adds or removes the tables of one entry and keeps every other line.

If an entry has no table of its own (an inline table, dotted keys), the functions return None and the caller
lets tomlkit rewrite the file.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping

import tomlkit

from mcpd.config.in_place_edits.insert_text import (
    append_block,
    has_content,
)

_HEADER = re.compile(r"\s*(\[\[?)[^\[\]]*?(\]\]?)\s*(?:#.*)?$")


def add(text: str, key_path: tuple[str, ...], listed: bool, name: str, entry: Mapping[str, object]) -> str:
    """Append the entry as a table at the end of the file."""
    table = tomlkit.table()
    for key, value in ({"name": name} | dict(entry) if listed else entry).items():
        table[key] = value
    outer: object = table
    if listed:
        array = tomlkit.aot()
        array.append(table)
        outer = array
    for key in reversed(key_path if listed else (*key_path, name)):
        parent = tomlkit.table(is_super_table=True)
        parent[key] = outer
        outer = parent
    return append_block(text, tomlkit.dumps(outer))  # type: ignore[arg-type]  # the loop ran at least once


def remove(text: str, key_path: tuple[str, ...], listed: bool, name: str) -> str | None:
    """Remove the tables of the entry: `[…name]` and its subtables."""
    lines = text.splitlines(keepends=True)
    target = (*key_path, name)
    inside = False
    cut: set[int] = set()
    for number, line in enumerate(lines):
        if (path := _header(line)) is not None:
            inside = path[: len(target)] == target
        if inside:
            cut.add(number)
    return _without(lines, cut) if cut and not listed else None


def change(text: str, path: tuple[str, ...], value: object) -> str | None:
    """Set the boolean at `path`: on its existing line, or on a new line in its table."""
    lines = text.splitlines(keepends=True)
    written = str(value).lower() if isinstance(value, bool) else None
    first = next((n for n, line in enumerate(lines) if _header(line) == path[:-1]), None)
    if written is None or first is None or lines[first].lstrip().startswith("[["):
        return None
    end = next((n for n in range(first + 1, len(lines)) if _header(lines[n]) is not None), len(lines))
    pattern = re.compile(
        rf"(\s*(?:{re.escape(path[-1])}|\"{re.escape(path[-1])}\")\s*=\s*)(true|false)(?=\s*(#|$))"
    )
    for number in range(first + 1, end):
        if found := pattern.match(lines[number]):
            lines[number] = found[1] + written + lines[number][found.end() :]
            return "".join(lines)
    last = next((n for n in range(end - 1, first, -1) if has_content(lines[n])), first)
    eol = "\r\n" if "\r\n" in text else "\n"
    if not lines[last].endswith("\n"):
        lines[last] += eol
        return "".join(lines) + f"{path[-1]} = {written}"
    return "".join([*lines[: last + 1], f"{path[-1]} = {written}{eol}", *lines[last + 1 :]])


def insert(text: str, key_path: tuple[str, ...], index: int, item: Mapping[str, object]) -> str | None:
    """Insert a table before the element `index` of an array of tables; or append it."""
    lines = text.splitlines(keepends=True)
    elements = [
        number
        for number, line in enumerate(lines)
        if _header(line) == key_path and line.lstrip().startswith("[[")
    ]
    if not 0 < len(elements) >= index:
        return None
    members = [f"{key} = {_inline(value)}" for key, value in item.items()]
    head = lines[elements[min(index, len(elements) - 1)]].partition("#")[0].rstrip()
    if index == len(elements):
        return append_block(text, "\n".join([head, *members]))
    first = elements[index]
    while first and lines[first - 1].lstrip().startswith("#"):
        first -= 1
    eol = "\r\n" if "\r\n" in text else "\n"
    new = [head, *members, ""]
    return "".join([*lines[:first], *(line + eol for line in new), *lines[first:]])


def _inline(value: object) -> str:
    """Return a value as TOML on one line."""
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{key} = {_inline(inner)}' for key, inner in value.items())}}}"
    return str(tomlkit.item(value).as_string())


def _without(lines: list[str], cut: set[int]) -> str:
    """Drop the lines in `cut`. Comments at the end of a block stay; one blank line before it goes."""
    for number in sorted(cut, reverse=True):
        if number + 1 not in cut and not has_content(lines[number]):
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
    """Return the key path of a `[table]` line, or None for any other line."""
    if not _HEADER.match(line):
        return None
    try:
        value: object = tomllib.loads(line)
    except tomllib.TOMLDecodeError:
        return None
    path: list[str] = []
    while isinstance(value, (list, dict)) and value:
        if isinstance(value, list):
            value = value[0]
        else:
            key, value = next(iter(value.items()))
            path.append(key)
    return tuple(path)
