"""The text of one configuration file → plain values, by its suffix; a syntax error is shown with its line."""

from __future__ import annotations

import re
from pathlib import Path

from mcpd.config.json_path import is_too_large, join_path
from mcpd.config.jsonc import JsoncSyntaxError, JsonObject
from mcpd.config.jsonc import parse_jsonc as parse_json
from mcpd.config.masking import quote_line
from mcpd.model.errors import BadSpec, Problem
from mcpd.model.text import shorten

SUFFIXES = {
    ".json": "JSON",
    ".jsonc": "JSON",
    ".toml": "TOML",
    ".yaml": "YAML",
    ".yml": "YAML",
}
"""In the order in which the default places are looked at."""

MAX_FILE_SIZE = 4 * 1024 * 1024
"""Bytes. A configuration beyond this is some other file."""


def decode_utf8(data: bytes, source: str, largest: int = MAX_FILE_SIZE) -> str:
    """The text of a file; a byte order mark is dropped. Raises BadSpec when it is not UTF-8."""
    if len(data) > largest:
        message = f"the file has {len(data)} bytes; a configuration has at most {largest}"
        raise BadSpec([Problem("$", message, "is this the right file?")], source)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        problem = Problem(
            f"{source}:{line}", f"byte {error.start} is not UTF-8", "save the file in the UTF-8 encoding"
        )
        raise BadSpec([problem], source) from None


def format_of(path: Path, source: str) -> str:
    """`JSON`, `TOML` or `YAML`. Raises BadSpec for a suffix that says none of them."""
    kind = SUFFIXES.get(path.suffix.lower())
    if kind is None:
        message = f"cannot tell the format of {path.name!r}"
        raise BadSpec([Problem("$", message, f"give it one of the suffixes {', '.join(SUFFIXES)}")], source)
    return kind


def parse_text(text: str, kind: str, source: str, *, foreign: bool = False) -> object:
    """Plain values of a document in format `kind`. Raises BadSpec naming file, line and column.

    `foreign`: another program's file, which may be long, and where a key written twice is its business.
    """
    try:
        readers = {"JSON": parse_json, "TOML": _toml, "YAML": _yaml}
        value = readers[kind](text)
        if is_too_large(value, max_values=20_000_000 if foreign else 200_000):
            raise RecursionError
        twice = [] if foreign else _duplicate_keys(value, "$")
        if twice:
            raise BadSpec(twice, source)
        return value
    except JsoncSyntaxError as fault:
        lines = text.splitlines()
        line = lines[fault.line - 1] if 0 < fault.line <= len(lines) else ""
        quote = f", in `{quote_line(line)}`" if line.strip() else ""
        place = f"{source}:{fault.line}:{fault.column}"
        raise BadSpec(
            [Problem(place, f"not valid {kind}: {fault.message}{quote}", "mend the syntax there")], source
        ) from None
    except RecursionError:
        raise BadSpec(
            [Problem("$", f"this {kind} is nested too deeply, or in itself", "flatten it")], source
        ) from None


def _toml(text: str) -> object:
    import tomllib

    try:
        return tomllib.loads(text.replace("\r\n", "\n"))
    except tomllib.TOMLDecodeError as error:
        message = str(error)
        place = re.search(r" \(at line (\d+), column (\d+)\)$", message)
        if place:
            raise JsoncSyntaxError(message[: place.start()], int(place[1]), int(place[2])) from None
        raise JsoncSyntaxError.at_offset(message, text, len(text.rstrip())) from None


def _yaml(text: str) -> object:
    from ruamel.yaml import YAML  # 6 MB: loaded only for a YAML file
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    try:
        value = YAML(typ="safe", pure=True).load(text)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
        message = (error.problem or error.context or "cannot be read").split(" with value ")[0]
        raise JsoncSyntaxError(message, line, column) from None
    except (YAMLError, ValueError) as error:
        raise JsoncSyntaxError(shorten(str(error).splitlines()[0]), 1, 1) from None
    return {} if value is None else value


def _duplicate_keys(value: object, place: str) -> list[Problem]:
    found: list[Problem] = []
    if isinstance(value, JsonObject):
        for key in value.duplicates:
            found.append(
                Problem(join_path(place, key), f"'{shorten(key, 64)}' is written more than once", "keep one")
            )
        for key, inner in value.items():
            found += _duplicate_keys(inner, join_path(place, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            found += _duplicate_keys(inner, join_path(place, index))
    return found
