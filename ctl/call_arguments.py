"""Parsing of `TOOL@SERVER` and of `key=value` arguments on the command line."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from ctl.errors import UsageError


def split_target(words: Sequence[str], what: str) -> tuple[str, str, list[str]]:
    """Split `NAME@SERVER …`, `SERVER/NAME …`, `SERVER::NAME …` or `SERVER NAME …`.

    Returns server, name and remaining words. `NAME@SERVER` is split at the last `@`, `SERVER/NAME` and
    `SERVER::NAME` at the first separator; `SERVER NAME` allows any name.
    """
    if not words:
        raise UsageError(f"which {what}?", hint=f"write {what.upper()}@SERVER")
    first, *rest = words
    if "@" in first:
        name, _, server = first.rpartition("@")
    elif "::" in first:
        server, _, name = first.partition("::")
    elif "/" in first:
        server, _, name = first.partition("/")
    elif rest and "=" not in rest[0]:
        server, name, rest = first, rest[0], rest[1:]
    else:
        raise UsageError(f"'{first}' does not name a server", hint=f"write {first}@SERVER, or SERVER {first}")
    if not server or not name:
        raise UsageError(f"invalid {what} '{first}'", hint=f"write {what.upper()}@SERVER")
    return server, name, list(rest)


def parse_pairs(words: Sequence[str], base: dict[str, object]) -> dict[str, object]:
    """Return `base` updated with `key=text` and `key:=json` arguments. Raises UsageError for any other."""
    values = dict(base)
    for word in words:
        key, equals, text = word.partition("=")
        if not equals or key in ("", ":"):
            raise UsageError(f"invalid argument {word}", hint="write KEY=TEXT, or KEY:=JSON for other types")
        if not key.endswith(":"):
            values[key] = text
            continue
        try:
            values[key[:-1]] = json.loads(text)
        except ValueError as error:
            raise UsageError(
                f"invalid JSON after := in '{word}': {error}", hint=f"for text, write {key[:-1]}={text}"
            ) from None
    return values


def parse_json_object(source: str) -> dict[str, object]:
    """Return the object in `--args`: JSON, `@FILE`, or `-` for stdin. Raises UsageError."""
    if source == "-":
        text, where = sys.stdin.read(), "stdin"
    elif source.startswith("@"):
        text, where = read_file(source[1:]), source[1:]
    else:
        text, where = source, "--args"
    try:
        value = json.loads(text)
    except ValueError as error:
        raise UsageError(f"{where} is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise UsageError(f'{where} must be a JSON object such as {{"path": "/tmp"}}')
    return value


def read_file(path: str) -> str:
    """Return the text of a file. Raises UsageError if it cannot be read."""
    try:
        return Path(path).expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise UsageError(f"cannot read {path}: {reason}") from None
