"""Edits YAML in place: adds or removes the lines of one entry and keeps every other line.

If an entry has no lines of its own (a flow mapping), the functions return None and the caller lets ruamel
rewrite the file.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from typing import Protocol, cast

from ruamel.yaml import YAML

from mcpd.config.in_place_edits.insert_text import (
    append_block,
    has_content,
)


class _Mark(Protocol):
    line: int
    column: int


class _Node(Protocol):
    """A node composed by ruamel, which has no types for it."""

    id: str
    flow_style: bool
    """Of mappings and sequences only."""
    start_mark: _Mark
    end_mark: _Mark


def add(
    text: str, key_path: tuple[str, ...], listed: bool, name: str, definition: Mapping[str, object]
) -> str | None:
    """Append the entry to the block mapping or list at `key_path`, or a new one at the end of the file."""
    root = _compose(text)
    path = [] if root is None else _walk(root, key_path)
    entry: object = [{"name": name, **definition}] if listed else {name: dict(definition)}
    if not path and len(key_path) == 1 and (root is None or _block(root)):
        return append_block(text, _yaml({key_path[0]: entry}, 2))
    if len(path) < len(key_path):
        return None
    key, value = path[-1]
    lines = text.splitlines(keepends=True)
    step = _step(text)
    if _items(value) if listed else _block(value) and _pairs(value):
        column = value.start_mark.column
        last = _last_content(lines, value.start_mark.line, value.end_mark.line)
    elif _nothing(value) and value.start_mark.line == key.start_mark.line:
        column, last = key.start_mark.column + step, key.start_mark.line
        if value.end_mark.line == last:  # replace an empty {} or []
            line = lines[last]
            rest = line[value.end_mark.column :]
            before = line[: value.start_mark.column]
            lines[last] = (before.rstrip() if not rest.strip() else before) + rest
    else:
        return None
    return _insert_after(lines, last, _yaml(entry, step, indent=column))


def _insert_after(lines: list[str], last: int, block: str) -> str:
    """Return the text with a block after a line. A file without a final line break stays without one."""
    eol = "\r\n" if any(line.endswith("\r\n") for line in lines) else "\n"
    block = block.replace("\n", eol)
    if not lines[last].endswith("\n"):
        return "".join(lines) + eol + block.removesuffix(eol)
    return "".join([*lines[: last + 1], block, *lines[last + 1 :]])


def remove(text: str, key_path: tuple[str, ...], listed: bool, name: str) -> str | None:
    """Remove the lines of the entry. Comments after it belong to the next entry and stay."""
    root = _compose(text)
    path = [] if root is None else _walk(root, key_path if listed else (*key_path, name))
    if len(path) < len(key_path) + (not listed):
        return None
    key, value = path[-1]
    if listed:
        found = [item for item in _items(value) if _named(item) == name]
        if len(found) != 1 or not _block(found[0]):
            return None
        key = value = found[0]
    lines = text.splitlines(keepends=True)
    first = key.start_mark.line
    end = value.end_mark.line
    if listed and not lines[first].lstrip().startswith("-"):
        return None
    last = _last_content(lines, first, end) if _block(value) else min(end, len(lines) - 1)
    kept = "".join([*lines[:first], *lines[last + 1 :]])
    at_end = last == len(lines) - 1 and not lines[last].endswith("\n")
    return kept.removesuffix("\n").removesuffix("\r") if at_end else kept


def change(text: str, path: tuple[str, ...], value: object) -> str | None:
    """Set the boolean at `path`: in its old position, or last in its mapping."""
    root = _compose(text)
    found = [] if root is None else _walk(root, path)
    if not isinstance(value, bool) or len(found) < len(path) - 1 or len(path) < 2:
        return None
    lines = text.splitlines(keepends=True)
    written = str(value).lower()
    inner = found[-1][1]
    if len(found) == len(path):
        start, end = inner.start_mark, inner.end_mark
        if inner.id != "scalar" or start.line != end.line or start.column == end.column:
            return None
        line = lines[start.line]
        lines[start.line] = line[: start.column] + written + line[end.column :]
        return "".join(lines)
    if not _block(inner) or not _pairs(inner):
        return None
    last = _last_content(lines, inner.start_mark.line, inner.end_mark.line)
    return _insert_after(lines, last, f"{' ' * inner.start_mark.column}{path[-1]}: {written}\n")


def insert(text: str, key_path: tuple[str, ...], index: int, item: Mapping[str, object]) -> str | None:
    """Insert an object before the element `index` of the list at `key_path`; or append it."""
    root = _compose(text)
    found = [] if root is None else _walk(root, key_path)
    if len(found) < len(key_path):
        return None
    items = _items(found[-1][1])
    if not 0 < len(items) >= index:
        return None
    lines = text.splitlines(keepends=True)
    eol = "\r\n" if "\r\n" in text else "\n"
    node = items[min(index, len(items) - 1)]
    first = node.start_mark.line
    before = lines[first][: node.start_mark.column]
    if before.strip() != "-":
        return None
    column = before.index("-")
    block = _yaml([dict(item)], 2, indent=column)
    if index == len(items):
        last = _last_content(lines, first, node.end_mark.line) if _block(node) else node.end_mark.line
        return _insert_after(lines, last, block)
    while lines[first - 1].lstrip().startswith("#"):
        first -= 1
    return "".join([*lines[:first], block.replace("\n", eol), *lines[first:]])


def _compose(text: str) -> _Node | None:
    return cast("_Node | None", YAML(typ="rt").compose(io.StringIO(text + "\n")))


def _walk(node: _Node, path: tuple[str, ...]) -> list[tuple[_Node, _Node]]:
    """Return the (key, value) nodes along `path`, as far as they are in block mappings."""
    found: list[tuple[_Node, _Node]] = []
    for step in path:
        pairs = _pairs(node) if _block(node) else []
        pair = next((pair for pair in pairs if getattr(pair[0], "value", None) == step), None)
        if pair is None:
            break
        found.append(pair)
        node = pair[1]
    return found


def _pairs(node: _Node) -> list[tuple[_Node, _Node]]:
    return cast("list[tuple[_Node, _Node]]", getattr(node, "value", []))


def _last_content(lines: list[str], first: int, end: int) -> int:
    """Return the last line of a block mapping that is not a comment.

    Its end mark is at the next token, so comments and blank lines before that do not belong to it.
    """
    last = min(end, len(lines)) - 1
    return next((n for n in range(last, first, -1) if has_content(lines[n])), first)


def _block(node: _Node) -> bool:
    return node.id == "mapping" and not node.flow_style


def _items(node: _Node) -> list[_Node]:
    """Return the elements of a block list; empty for anything else."""
    listed = node.id == "sequence" and not node.flow_style
    return cast("list[_Node]", getattr(node, "value", [])) if listed else []


def _named(node: _Node) -> object:
    pairs = _pairs(node) if _block(node) else []
    return next((getattr(v, "value", None) for k, v in pairs if getattr(k, "value", None) == "name"), None)


def _nothing(node: _Node) -> bool:
    return getattr(node, "value", None) in ("", [])


def _yaml(value: object, step: int, indent: int = 0) -> str:
    writer = YAML(typ="safe", pure=True)
    writer.default_flow_style = False
    writer.indent = step
    writer.sort_base_mapping_type_on_output = False  # type: ignore[assignment]  # ruamel declares it None
    writer.width = 1 << 20
    writer.allow_unicode = True
    out = io.StringIO()
    writer.dump(value, out)
    return "".join(" " * indent + line for line in out.getvalue().splitlines(keepends=True))


def _step(text: str) -> int:
    found = re.search(r"^( +)\S", text, re.M)
    return min(len(found[1]), 8) if found else 2
