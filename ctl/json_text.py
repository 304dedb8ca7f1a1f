"""JSON as text, looked at without being rewritten: numbers, key order and duplicate keys survive.

What a server sent is shown as it was sent; parsing and writing it again would turn `1.10` into `1.1`.
"""

from __future__ import annotations

import json

_decoder = json.JSONDecoder()


def split_message(line: str) -> tuple[dict[str, object], str]:
    """Parse one JSON-RPC message, and keep the text of `result` or `params` exactly as it was written.

    That text is what `--json` prints. Raises ValueError for what is no JSON object.
    """
    message: dict[str, object] = {}
    body = "{}"
    at = _skip(line, 0)
    if line[at : at + 1] != "{":
        raise ValueError("not an object")
    at = _skip(line, at + 1)
    while line[at : at + 1] != "}":
        key, at = _decoder.raw_decode(line, at)
        at = _skip(line, at)
        if not isinstance(key, str) or line[at : at + 1] != ":":
            raise ValueError("not a member of an object")
        start = _skip(line, at + 1)
        message[key], end = _decoder.raw_decode(line, start)
        if key in ("result", "params"):
            body = line[start:end]
        at = _skip(line, end)
        if line[at : at + 1] == ",":
            at = _skip(line, at + 1)
        elif line[at : at + 1] != "}":
            raise ValueError("an object that does not end")
    return message, body


def _skip(text: str, at: int) -> int:
    while text[at : at + 1] in (" ", "\t", "\r", "\n"):
        at += 1
    return at


def escape(text: str) -> str:
    """JSON text with every character that could harm a terminal as `\\uXXXX`.

    JSON has non-ASCII characters inside strings only, so this needs no parser and changes no value.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\n" else json.dumps(c)[1:-1] for c in text)


def indent(text: str) -> str:
    """JSON text laid out for reading, without parsing it: numbers, key order and duplicates survive."""
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
