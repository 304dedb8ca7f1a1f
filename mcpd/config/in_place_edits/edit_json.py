"""JSON with comments, changed in place: one member put in or taken out, every other character kept.

Positions come from the text with its comments blanked, so they are those of the text itself.
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
    """A member of an object, or an element of a list: `text[start:end]`, its value from `value` on."""

    key: str
    start: int
    value: int
    end: int


def add(text: str, slot: tuple[str, ...], listed: bool, name: str, definition: object) -> str:
    """`text` with one more entry, last in the object (or list) at `slot`, which is made if need be."""
    eol = "\r\n" if "\r\n" in text else "\n"
    if not to_standard_json(text).strip():
        text = f"{text}{'' if not text or text.endswith(eol) else eol}{{}}{eol}"
    bare = to_standard_json(text)
    at, path = _skip(bare, 0), list(slot)
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
    return _insert(text, bare, at, None if listed else name, element, eol)


def change(text: str, path: tuple[str, ...], value: object) -> str:
    """`text` with the member at `path` being `value`, in its old place when it is there already."""
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
    """A list of texts that became longer at its end, or lost some of them: the others stay as written."""
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


def remove(text: str, slot: tuple[str, ...], listed: bool, name: str) -> str:
    """`text` without the entry, its comma and the rest of a line that was its own."""
    bare = to_standard_json(text)
    at = _skip(bare, 0)
    for key in slot:
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
        end = end if text[end:follows].strip() else follows  # a remark may stand there
    elif index:
        comma = bare.index(",", every[index - 1].end)
        between = text[comma + 1 : start]  # here, too
        return text[:comma] + (between if between.strip() else "") + text[entry.end :]
    if index and index + 1 == len(every) and "," in text[entry.end : _after_comma(text, entry.end)]:
        return text[:start] + text[end:]  # a trailing comma stays the habit of this file
    if index and index + 1 == len(every):
        comma = bare.index(",", every[index - 1].end)
        return text[:comma] + text[comma + 1 : start] + text[end:]
    if len(every) == 1 and not text[at + 1 : start].strip():
        closing = _skip(bare, end)
        if not text[end:closing].strip():
            return text[: at + 1] + text[closing:]
    return text[:start] + text[end:]


def entries(bare: str, at: int) -> list[JsonEntry]:
    """What the object or list at `at` holds; an element's key is its `name`, or the text that it is.

    `bare` is valid JSON.
    """
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
    """Put a member (or, without a key, an element) behind the last one of the object at `at`."""
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
    if before.strip():  # the others stand on one line, so this one joins them
        plain = f"{head}{json.dumps(value, ensure_ascii=False)}"
        return f"{text[: last.end]}, {plain}{text[last.end :]}"
    new = f"{eol}{before}{head}{_dump(value, before, unit, eol)}{trailing}"
    line_end = _line_end(text, comma)
    put = line_end if not bare[comma:line_end].strip() else comma
    needed = "" if trailing else ","
    return text[: last.end] + needed + text[last.end : put] + new + text[put:]


def _dump(value: object, indent: str, unit: str, eol: str) -> str:
    """Objects over several lines, lists on one: as people write these files."""
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
    """Just behind the comma that follows `end`, trailing or not; `end` itself when there is none."""
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
    """Where the line ends, before its line break."""
    end = text.find("\n", at)
    if end < 0:
        return len(text)
    return end - 1 if end > at and text[end - 1] == "\r" else end


def _before_line(text: str, at: int) -> int:
    """The end of the line before, so that a cut takes the line break in front of it."""
    start = _line_start(text, at)
    return start - (2 if text[start - 2 : start] == "\r\n" else 1) if start else 0


def _indent(text: str, at: int) -> str:
    found = re.match(r"[ \t]*", text[_line_start(text, at) :])
    return found[0] if found else ""


def _unit(text: str) -> str:
    found = re.search(r"\n([ \t]+)\S", text)
    return found[1] if found else "  "
