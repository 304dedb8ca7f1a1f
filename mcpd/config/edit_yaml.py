"""YAML, changed in place: the lines of one server put in or taken out, every other line kept.

Where a server has no lines of its own (a flow mapping, a list) None is answered, and the caller lets
ruamel rewrite the file.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from typing import Protocol, cast

from mcpd.config.lines import append, content


class _Mark(Protocol):
    line: int
    column: int


class _Node(Protocol):
    """What ruamel composes; the library leaves it untyped."""

    id: str
    start_mark: _Mark
    end_mark: _Mark


def add(
    text: str, slot: tuple[str, ...], listed: bool, name: str, definition: Mapping[str, object]
) -> str | None:
    """The server behind the last one of the block mapping at `slot`, or that mapping at the file's end."""
    root = _compose(text)
    if listed or (root is not None and not _block(root)):
        return None
    path = [] if root is None else _walk(root, slot)
    if not path and len(slot) == 1:
        return append(text, _yaml(name, definition, 2, slot))
    if len(path) < len(slot):
        return None
    key, value = path[-1]
    lines = text.splitlines(keepends=True)
    if _block(value) and _pairs(value):
        column = _pairs(value)[0][0].start_mark.column
        last = _last_content(lines, value.start_mark.line, value.end_mark.line)
    elif getattr(value, "value", None) == "" and value.start_mark.line == key.start_mark.line:
        column, last = key.start_mark.column + _step(text), key.start_mark.line
    else:
        return None
    eol = "\r\n" if "\r\n" in text else "\n"
    block = _yaml(name, definition, _step(text), (), indent=column).replace("\n", eol)
    if not lines[last].endswith("\n"):
        return text + eol + block.rstrip("\r\n")
    return "".join([*lines[: last + 1], block, *lines[last + 1 :]])


def remove(text: str, slot: tuple[str, ...], listed: bool, name: str) -> str | None:
    """Without the lines of the server's key and value; remarks behind it belong to the next one."""
    root = _compose(text)
    path = [] if listed or root is None else _walk(root, (*slot, name))
    if len(path) <= len(slot):
        return None
    key, value = path[-1]
    lines = text.splitlines(keepends=True)
    first = key.start_mark.line
    end = value.end_mark.line
    last = _last_content(lines, first, end) if _block(value) else min(end, len(lines) - 1)
    kept = "".join([*lines[:first], *lines[last + 1 :]])
    at_end = last == len(lines) - 1 and not lines[last].endswith("\n")
    return kept.removesuffix("\n").removesuffix("\r") if at_end else kept


def _compose(text: str) -> _Node | None:
    from ruamel.yaml import YAML

    return cast("_Node | None", YAML(typ="rt").compose(io.StringIO(text + "\n")))


def _walk(node: _Node, path: tuple[str, ...]) -> list[tuple[_Node, _Node]]:
    """The (key, value) nodes along `path`, as far as there are block mappings that have them."""
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
    """The last line of a block mapping with something on it that is no remark.

    Its end mark stands at the token that follows, so remarks and blank lines in between are not its own.
    """
    last = min(end, len(lines)) - 1
    while last > first and not content(lines[last]):
        last -= 1
    return max(first, last)


def _block(node: _Node) -> bool:
    return node.id == "mapping" and not getattr(node, "flow_style", True)


def _yaml(
    name: str, definition: Mapping[str, object], step: int, slot: tuple[str, ...], indent: int = 0
) -> str:
    from ruamel.yaml import YAML

    value: object = {name: dict(definition)}
    for key in reversed(slot):
        value = {key: value}
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
