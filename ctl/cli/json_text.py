"""JSON as text that is not rewritten, and untyped JSON values.

What a server sent is shown as it was sent: parsing and serializing it again would turn `1.10` into `1.1` and
drop duplicate keys.
"""

from __future__ import annotations

from collections.abc import Mapping

TYPE_CHECKING = False  # type checkers know the name; importing `typing` for it costs 3 ms on every run
if TYPE_CHECKING:
    from collections.abc import Callable
    from json import JSONDecoder as _Options

    def make_scanner(options: object) -> Callable[[str, int], tuple[object, int]]: ...
else:
    try:
        # `json` compiles regular expressions that its C code does not need: half the time of `mcpctl status`.
        from _json import make_scanner

        class _Options:
            """What `json.JSONDecoder` passes to its scanner by default."""

            strict = True
            object_hook = object_pairs_hook = array_hook = None
            parse_float, parse_int = float, int
            parse_constant = {name: float(name) for name in ("NaN", "Infinity", "-Infinity")}.__getitem__

    except ImportError:  # another implementation of Python
        from json import JSONDecoder as _Options
        from json.scanner import make_scanner

_scan = make_scanner(_Options())
"""Parses the JSON value that begins at an index, and returns it and the index of its end."""


def split_message(line: str) -> tuple[dict[str, object], str]:
    """Parse one JSON-RPC message. Returns it and the exact text of its `result` or `params`.

    Raises ValueError if the line is not a JSON object.
    """
    message: dict[str, object] = {}
    body = "{}"
    at = _skip(line, 0)
    if line[at : at + 1] != "{":
        raise ValueError("not a JSON object")
    at = _skip(line, at + 1)
    while line[at : at + 1] != "}":
        key, at = _read_value(line, at)
        at = _skip(line, at)
        if not isinstance(key, str) or line[at : at + 1] != ":":
            raise ValueError("not a member of a JSON object")
        start = _skip(line, at + 1)
        message[key], end = _read_value(line, start)
        if key in ("result", "params"):
            body = line[start:end]
        at = _skip(line, end)
        if line[at : at + 1] == ",":
            at = _skip(line, at + 1)
        elif line[at : at + 1] != "}":
            raise ValueError("unterminated JSON object")
    return message, body


def _read_value(text: str, at: int) -> tuple[object, int]:
    """Return the JSON value at an index and the index of its end. Raises ValueError or RecursionError."""
    try:
        return _scan(text, at)
    except StopIteration:
        raise ValueError("no JSON value") from None


def _skip(text: str, at: int) -> int:
    while text[at : at + 1] in (" ", "\t", "\r", "\n"):
        at += 1
    return at


def escape(text: str) -> str:
    """Replace every unprintable character of JSON text by `\\uXXXX`.

    JSON has non-ASCII characters inside strings only, so this needs no parser and changes no value.
    """
    if text.isprintable():
        return text
    import json

    return "".join(c if c.isprintable() or c == "\n" else json.dumps(c)[1:-1] for c in text)


def indent(text: str) -> str:
    """Indent JSON text without parsing it: numbers, key order and duplicates survive."""
    import re

    out: list[str] = []
    depth = 0
    for piece in re.findall(r'"(?:[^"\\]|\\.)*"|[\[\]{},:]|[^\s\[\]{},:"]+', text, re.DOTALL):
        if piece in "]}":
            depth -= 1
            opened = out[-1] in "[{"
            out.append(piece if opened else "\n" + "  " * depth + piece)
            continue
        if out and out[-1] in ("[", "{", ","):
            out.append("\n" + "  " * depth)
        out.append(": " if piece == ":" else piece)
        depth += piece in "[{"
    return "".join(out)


def objects(value: object) -> list[Mapping[str, object]]:
    """Return the objects in a list; nothing if `value` is not a list."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def strings(value: object) -> list[str]:
    """Return the items of a list as text; nothing if `value` is not a list."""
    return [str(item) for item in value] if isinstance(value, list) else []


def mapping(value: object) -> Mapping[str, object]:
    """Return `value` if it is an object, otherwise an empty one."""
    return value if isinstance(value, dict) else {}
