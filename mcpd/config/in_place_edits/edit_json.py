"""Edits JSON with comments in place: adds, removes or changes one member and keeps every other character.

Positions come from the text with its comments blanked, so they are also valid in the original text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

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


def add(text: str, key_path: tuple[str, ...], listed: bool, name: str, definition: object) -> str:
    """Append an entry to the object (or list) at `key_path`, which is created if missing."""
    eol = "\r\n" if "\r\n" in text else "\n"
    if not to_standard_json(text).strip():
        text = f"{text}{'' if not text or text.endswith(eol) else eol}{{}}{eol}"
    bare = to_standard_json(text)
    at, path = _skip(bare, 0), list(key_path)
    while path:
        found = next((entry for entry in entries(bare, at) if entry.key == path[0]), None)
        if found is None:
            break
        at = found.value
        del path[0]
    element = {"name": name, **definition} if listed and isinstance(definition, Mapping) else definition
    value: object = [element] if listed else {name: element}
    if path:
        for key in reversed(path[1:]):
            value = {key: value}
        return _insert(text, bare, at, path[0], value, eol)
    if bare.startswith("null", at):
        return text[:at] + _dump(value, _indent(text, at), _unit(text), eol) + text[at + len("null") :]
    return _insert(text, bare, at, None if listed else name, element, eol)


def change(text: str, path: tuple[str, ...], value: object) -> str:
    """Set the member at `path` to `value`; an existing member keeps its position."""
    bare = to_standard_json(text)
    if not bare.strip():
        return add(text, path[:-1], False, path[-1], value)
    at, entry = _skip(bare, 0), None
    for key in path:
        entry = next((entry for entry in entries(bare, at) if entry.key == key), None)
        if entry is None:
            return add(text, path[:-1], False, path[-1], value)
        at = entry.value
    assert entry is not None
    old = json.loads(bare[entry.value : entry.end])
    if (
        isinstance(old, list)
        and isinstance(value, list)
        and (edited := _edit_string_list(text, path, old, value))
    ):
        return edited
    eol = "\r\n" if "\r\n" in text else "\n"
    new = _dump(value, _indent(text, entry.start), _unit(text), eol)
    return text[: entry.value] + new + text[entry.end :]


def _edit_string_list(text: str, path: tuple[str, ...], old: list[object], new: list[object]) -> str | None:
    """If strings were only appended or only removed, keep the other elements as written. Else None."""
    if not old or not all(isinstance(item, str) for item in (*old, *new)):
        return None
    if new[: len(old)] == old:
        for item in new[len(old) :]:
            text = add(text, path, True, "", item)
        return text
    if new and new == [item for item in old if item in new]:
        for item in old:
            text = text if item in new else remove(text, path, True, str(item))
        return text
    return None


def remove(text: str, key_path: tuple[str, ...], listed: bool, name: str) -> str:
    """Remove the entry, its comma and the line that contained nothing else."""
    bare = to_standard_json(text)
    at = _skip(bare, 0)
    for key in key_path:
        at = next(entry for entry in entries(bare, at) if entry.key == key).value
    every = entries(bare, at)
    index = next(i for i, entry in enumerate(every) if entry.key == name)
    entry = every[index]
    start, end = entry.start, _after_comma(text, entry.end)
    own_line = text[_line_start(text, start) : start].isspace() or _line_start(text, start) == start
    rest = _line_end(text, end)
    if own_line and not bare[end:rest].strip():
        start, end = _before_line(text, start), rest
    elif index + 1 < len(every):
        follows = every[index + 1].start
        end = end if text[end:follows].strip() else follows  # keep a comment in between
    elif index:
        comma = bare.index(",", every[index - 1].end)
        between = text[comma + 1 : start]  # keep a comment here, too
        return text[:comma] + (between if between.strip() else "") + text[entry.end :]
    if index and index + 1 == len(every):
        if "," in text[entry.end : _after_comma(text, entry.end)]:
            return text[:start] + text[end:]  # keep the trailing comma if the file uses them
        comma = bare.index(",", every[index - 1].end)
        return text[:comma] + text[comma + 1 : start] + text[end:]
    return _without_only_entry(text, bare, at, start, end) if len(every) == 1 else text[:start] + text[end:]


def _without_only_entry(text: str, bare: str, at: int, start: int, end: int) -> str:
    """Remove what is between `start` and `end`, and the white space of an object that has nothing else."""
    closing = _skip(bare, end)
    if text[at + 1 : start].strip() or text[end:closing].strip():
        return text[:start] + text[end:]
    return text[: at + 1] + text[closing:]


def insert(
    text: str, key_path: tuple[str, ...], index: int, item: Mapping[str, object], comment: str
) -> str | None:
    """Insert an object before the element `index` of the list at `key_path`, or append it.

    Inserts the comment only if the text has comments already, because other programs may read it, such as jq.
    """
    if blank_comments(text) == text:
        comment = ""
    bare = to_standard_json(text)
    at = _skip(bare, 0)
    for key in key_path:
        at = next(entry for entry in entries(bare, at) if entry.key == key).value
    every = entries(bare, at)
    eol = "\r\n" if "\r\n" in text else "\n"
    if index == len(every):
        return _insert(text, bare, at, None, dict(item), eol)
    start = every[index].start
    line = _line_start(text, start)
    indent = text[line:start]
    new = json.dumps(item, ensure_ascii=False)
    if indent.strip():  # the others are on one line
        above = f"/* {comment.replace('*/', '* /')} */ " if comment else ""
        return f"{text[:start]}{above}{new}, {text[start:]}"
    while line and text[_line_start(text, line - 1) : line].lstrip().startswith("//"):
        line = _line_start(text, line - 1)
    above = f"{indent}// {comment}{eol}" if comment else ""
    return f"{text[:line]}{above}{indent}{new},{eol}{text[line:]}"


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


def _before_line(text: str, at: int) -> int:
    """Return the end of the previous line, so that a cut includes the line break before `at`."""
    start = _line_start(text, at)
    return start - (2 if text[start - 2 : start] == "\r\n" else 1) if start else 0


def _indent(text: str, at: int) -> str:
    found = re.match(r"[ \t]*", text[_line_start(text, at) :])
    return found[0] if found else ""


def _unit(text: str) -> str:
    found = re.search(r"\n([ \t]+)\S", text)
    return found[1] if found else "  "
