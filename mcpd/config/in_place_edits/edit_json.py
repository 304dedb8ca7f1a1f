"""Edits JSON with comments in place: adds, removes or changes one member and keeps every other character.

Positions come from the text with its comments blanked, so they are also valid in the original text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import cast

import attrs

from mcpd.config.jsonc import blank_comments, to_standard_json

_BLANKS = re.compile(r"[ \t\r\n]*")


@attrs.frozen
class JsonEntry:
    """A member of an object or an element of a list: `text[start:end]`. Its value starts at `value`."""

    key: str
    start: int
    value: int
    end: int


def add(text: str, key_path: tuple[str, ...], listed: bool, name: str, definition: object) -> str | None:
    """Append an entry to the object (or list) at `key_path`, which is created if missing."""
    eol = "\r\n" if "\r\n" in text else "\n"
    if not to_standard_json(text).strip():
        text = f"{text}{'' if not text or text.endswith(eol) else eol}{{}}{eol}"
    bare = to_standard_json(text)
    at, missing = _descend(bare, key_path)
    if bare[at] not in "{[":
        return None
    element = {"name": name, **definition} if listed and isinstance(definition, Mapping) else definition
    if not missing:
        return _insert(text, bare, at, None if listed else name, element, eol)
    value: object = [element] if listed else {name: element}
    for key in reversed(missing[1:]):
        value = {key: value}
    return _insert(text, bare, at, missing[0], value, eol)


def change(text: str, path: tuple[str, ...], value: object) -> str | None:
    """Set the member at `path` to `value`; an existing member keeps its position."""
    bare = to_standard_json(text)
    at, missing = _descend(bare, path) if bare.strip() else (0, path)
    if missing:
        return add(text, path[:-1], False, path[-1], value)
    eol = "\r\n" if "\r\n" in text else "\n"
    old, end = json.JSONDecoder().raw_decode(bare, at)
    lists = isinstance(old, list) and isinstance(value, list)
    if lists and (edited := _edit_string_list(text, path, old, cast("list[object]", value))):
        return edited
    return text[:at] + _dump(value, _indent(text, at), _unit(text), eol) + text[end:]


def _edit_string_list(text: str, path: tuple[str, ...], old: list[object], new: list[object]) -> str | None:
    """If strings were only appended, removed or replaced, keep the others as written. Else None."""
    if not old or not all(isinstance(item, str) for item in (*old, *new)):
        return None
    if len(new) == len(old):
        bare = to_standard_json(text)
        at, _ = _descend(bare, path)
        for entry, item in reversed([*zip(entries(bare, at), new, strict=True)]):
            if item != entry.key:
                text = text[: entry.value] + json.dumps(item, ensure_ascii=False) + text[entry.end :]
        return text
    if new[: len(old)] == old:
        for item in new[len(old) :]:
            text = add(text, path, True, "", item) or text
        return text
    if new and new == [item for item in old if item in new]:
        for item in old:
            text = text if item in new else remove(text, path, True, str(item))
        return text
    return None


def remove(text: str, key_path: tuple[str, ...], listed: bool, name: str) -> str:
    """Remove the entry, its comma and the line that contained nothing else."""
    bare = to_standard_json(text)
    at, _ = _descend(bare, key_path)
    every = entries(bare, at)
    index = next(i for i, entry in enumerate(every) if entry.key == name)
    entry, is_last = every[index], index + 1 == len(every)
    start, end = entry.start, _after_comma(text, entry.end)
    # Without a comma of its own, the last entry takes the one before it along.
    comma = bare.index(",", every[index - 1].end) if index and is_last and end == entry.end else None
    follows = _skip(bare, end) if is_last else every[index + 1].start
    if lines := _whole_lines(text, bare, start, end):
        start, end = lines
    elif comma is not None:
        start = start if text[comma + 1 : start].strip() else comma + 1  # keep a comment in between
    elif not text[end:follows].strip() and not is_last:
        end = follows
    if len(every) == 1 and not (text[at + 1 : start] + text[end:follows]).strip():
        start, end = at + 1, follows
    if comma is not None:
        return text[:comma] + text[comma + 1 : start] + text[end:]
    return text[:start] + text[end:]


def _whole_lines(text: str, bare: str, start: int, end: int) -> tuple[int, int] | None:
    """Return what to cut with `text[start:end]` if its lines contain nothing else but comments."""
    line, rest = _line_start(text, start), _line_end(text, end)
    if text[line:start].strip() or bare[end:rest].strip():
        return None
    return (line - (2 if text[line - 2 : line] == "\r\n" else 1) if line else 0), rest


def insert(text: str, key_path: tuple[str, ...], index: int, item: Mapping[str, object]) -> str | None:
    """Insert an object before the element `index` of the list at `key_path`, or append it."""
    bare = to_standard_json(text)
    at, _ = _descend(bare, key_path)
    every = entries(bare, at)
    eol = "\r\n" if "\r\n" in text else "\n"
    if index == len(every):
        return _insert(text, bare, at, None, dict(item), eol)
    start = every[index].start
    line = _line_start(text, start)
    indent = text[line:start]
    new = json.dumps(item, ensure_ascii=False)
    if indent.strip():  # the others are on one line
        return f"{text[:start]}{new}, {text[start:]}"
    while line and text[_line_start(text, line - 1) : line].lstrip().startswith("//"):
        line = _line_start(text, line - 1)
    return f"{text[:line]}{indent}{new},{eol}{text[line:]}"


def _descend(bare: str, path: tuple[str, ...]) -> tuple[int, tuple[str, ...]]:
    """Return where the value at `path` starts, or its last parent that exists, and what is missing."""
    at = _skip(bare, 0)
    for depth, key in enumerate(path):
        inner = entries(bare, at) if bare[at] in "{[" else []
        found = next((entry for entry in inner if entry.key == key), None)
        if found is None:
            return at, path[depth:]
        at = found.value
    return at, ()


def entries(bare: str, at: int) -> list[JsonEntry]:
    """Return the members of the object or list at `at`. The key of a list element is its `name`, or the
    string itself. `bare` must be valid JSON."""
    decoder = json.JSONDecoder()
    listed = bare[at] == "["
    found: list[JsonEntry] = []
    here = _skip(bare, at + 1)
    while bare[here] not in "}]":
        start, key = here, ""
        if not listed:
            key, here = decoder.raw_decode(bare, here)
            here = _skip(bare, _skip(bare, here) + 1)
        value, end = decoder.raw_decode(bare, here)
        if listed and isinstance(value, dict):
            key = str(value.get("name"))
        elif listed and isinstance(value, str):
            key = value
        found.append(JsonEntry(key, start, here, end))
        here = _skip(bare, end)
        if bare[here] == ",":
            here = _skip(bare, here + 1)
    return found


def _insert(text: str, bare: str, at: int, key: str | None, value: object, eol: str) -> str:
    """Insert a member (or an element, without a key) after the last one of the object at `at`."""
    every = entries(bare, at)
    unit = _unit(text)
    head = "" if key is None else f"{json.dumps(key, ensure_ascii=False)}: "
    if not every:
        outer = _indent(text, at)
        closing = _skip(bare, at + 1)
        inside = text[at + 1 : closing]
        new = f"{eol}{outer}{unit}{head}{_dump(value, outer + unit, unit, eol)}"
        kept = inside.rstrip() if inside.strip() else ""
        return f"{text[: at + 1]}{kept}{new}{eol}{outer}{text[closing:]}"
    last = every[-1]
    comma = _after_comma(text, last.end)
    trailing = "," if comma > last.end else ""
    before = text[_line_start(text, last.start) : last.start]
    if before.strip():  # the others are on one line: add to it
        plain = f"{head}{json.dumps(value, ensure_ascii=False)}"
        return f"{text[: last.end]}, {plain}{text[last.end :]}"
    new = f"{eol}{before}{head}{_dump(value, before, unit, eol)}{trailing}"
    line_end = _line_end(text, comma)
    put = line_end if not bare[comma:line_end].strip() else comma
    needed = "" if trailing else ","
    return text[: last.end] + needed + text[last.end : put] + new + text[put:]


def _dump(value: object, indent: str, unit: str, eol: str) -> str:
    """Format objects on several lines and lists on one, as people write these files."""
    if not isinstance(value, Mapping) or not value:
        if isinstance(value, list) and any(isinstance(item, Mapping) for item in value):
            inner = f",{eol}".join(f"{indent}{unit}{_dump(item, indent + unit, unit, eol)}" for item in value)
            return f"[{eol}{inner}{eol}{indent}]"
        return json.dumps(value, ensure_ascii=False)
    deeper = indent + unit
    members = [
        f"{deeper}{json.dumps(key, ensure_ascii=False)}: {_dump(inner, deeper, unit, eol)}"
        for key, inner in value.items()
    ]
    return "{" + eol + f",{eol}".join(members) + eol + indent + "}"


def _after_comma(text: str, end: int) -> int:
    """Return the index after the comma that follows `end`, or `end` if there is none."""
    code = blank_comments(text)
    here = _skip(code, end)
    return here + 1 if code.startswith(",", here) else end


def _skip(bare: str, at: int) -> int:
    found = _BLANKS.match(bare, at)
    assert found is not None
    return found.end()


def _line_start(text: str, at: int) -> int:
    return text.rfind("\n", 0, at) + 1


def _line_end(text: str, at: int) -> int:
    """Return the index of the line break."""
    end = text.find("\n", at)
    if end == -1:
        return len(text)
    return end - 1 if end > at and text[end - 1] == "\r" else end


def _indent(text: str, at: int) -> str:
    found = re.match(r"[ \t]*", text[_line_start(text, at) :])
    return found[0] if found else ""


def _unit(text: str) -> str:
    found = re.search(r"\n([ \t]+)\S", text)
    return found[1] if found else "  "
