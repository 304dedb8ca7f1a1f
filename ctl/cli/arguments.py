"""The values of arguments: `TOOL@SERVER`, a tool's arguments, files, durations and times."""

from __future__ import annotations

import errno
import json
import math
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from io import FileIO
from pathlib import Path
from typing import Any

import click
from click.decorators import FC

from ctl.cli.errors import UsageError
from ctl.cli.json_text import mapping, objects, strings
from mcpd.files.regular import UnusableFile, read_regular_file, read_up_to

_MAX_FILE_SIZE = 64 * 1024 * 1024
"""Bytes of a file with arguments."""


surface_option = click.option(
    "--surface",
    type=click.Choice(["auto", "full", "search"]),
    help="What to list: all tools, or tools to find them. [default: by client and size]",
)


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
    elif rest and not is_argument(rest[0]):
        server, name, rest = first, rest[0], rest[1:]
    else:
        raise UsageError(f"'{first}' does not name a server", hint=f"write {first}@SERVER, or SERVER {first}")
    if not server or not name:
        raise UsageError(f"invalid {what} '{first}'", hint=f"write {what.upper()}@SERVER")
    return server, name, list(rest)


def is_argument(word: str) -> bool:
    return "=" in word or word.startswith("{")


def needs_schema(words: Sequence[str]) -> bool:
    """Return whether the tool's schema decides what these arguments mean."""
    return any("=" in word and ":=" not in word for word in words)


def parse_arguments(
    words: Sequence[str], schema: Mapping[str, object], base: dict[str, object]
) -> dict[str, object]:
    """Return `base` updated with a tool's arguments, which can be written in three ways.

    `key=text` has the type that the JSON Schema `schema` asks for, if the text can be read as that type and
    the schema does not allow text; otherwise it is text. `key:=json` and `{"key": json}` are JSON. Raises
    UsageError for anything else, and for NaN and infinities, which JSON does not have (RFC 8259, section 6).
    """
    values = dict(base)
    properties = mapping(schema.get("properties"))
    _refuse_repeated(words)
    for word in words:
        if word.startswith("{"):
            values |= parse_json_object(word)
            continue
        values = parse_pairs([word], values)
        key, _, text = word.partition("=")
        if not key.endswith(":"):
            values[key] = _typed(text, properties.get(key))
    try:
        json.dumps(values, allow_nan=False)
    except ValueError:
        hint = "pass null, a finite number, or text"
        raise UsageError("an argument is NaN or infinite, which JSON does not have", hint=hint) from None
    return values


def _types(schema: object) -> set[str]:
    """Return the JSON types that a schema allows; empty if it does not say."""
    shape = mapping(schema)
    if "type" in shape:
        found = shape["type"]
        return set(strings(found)) if isinstance(found, list) else {str(found)}
    alternatives = objects(shape.get("anyOf")) or objects(shape.get("oneOf"))
    types = [_types(each) for each in alternatives]
    return set().union(*types) if all(types) else set()


def _typed(text: str, schema: object) -> object:
    """Return text as the type that a schema asks for; the text itself if that is possible or nothing fits."""
    types = _types(schema)
    if not types or "string" in types:
        return text
    try:
        value = json.loads(text)
    except ValueError:
        return text
    kinds = {
        type(None): "null",
        bool: "boolean",
        int: "integer",
        float: "number",
        list: "array",
        dict: "object",
    }
    kind = kinds.get(type(value), "string")
    return value if kind in types or (kind == "integer" and "number" in types) else text


def parse_pairs(words: Sequence[str], base: dict[str, object]) -> dict[str, object]:
    """Return `base` updated with `key=text` and `key:=json` arguments. Raises UsageError for any other."""
    values = dict(base)
    _refuse_repeated(words)
    for word in words:
        key, equals, text = word.partition("=")
        if not equals or key in ("", ":"):
            hint = "write KEY=VALUE, KEY:=JSON, or all of them as one JSON object"
            raise UsageError(f"invalid argument {word}", hint=hint)
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


def _refuse_repeated(words: Sequence[str]) -> None:
    """Raise UsageError if two of the arguments have the same key: the second would replace the first."""
    seen: set[str] = set()
    for key in (word.partition("=")[0].removesuffix(":") for word in words if not word.startswith("{")):
        if key in seen:
            raise UsageError(f"{key} is given twice", hint=f"for a list, write {key}:='[1, 2]'")
        seen.add(key)


def parse_json_object(source: str) -> dict[str, object]:
    """Return the object in `--args` or an argument: JSON, `@FILE`, or `-` for stdin. Raises UsageError."""
    if source == "-":
        text, where = read_file("-"), "stdin"
    elif source.startswith("@"):
        text, where = read_file(source[1:]), source[1:]
    else:
        text, where = source, "the JSON text"
    try:
        value = json.loads(text)
    except ValueError as error:
        raise UsageError(f"{where} is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise UsageError(f'{where} must be a JSON object such as {{"path": "/tmp"}}')
    return value


def read_file(path: str) -> str:
    """Return the text of a file, or of stdin for `-`. Raises UsageError if it cannot be read."""
    try:
        return read_named_file(path, _MAX_FILE_SIZE).decode("utf-8")
    except OSError as error:
        message = f"cannot read {'stdin' if path == '-' else path}: {error.strerror}"
        raise UsageError(message, hint="check the path, and the permissions of the file") from None
    except UnicodeDecodeError:
        message = f"cannot read {'stdin' if path == '-' else path}: not UTF-8 text"
        raise UsageError(message, hint="save it as UTF-8") from None


def read_named_file(name: str, max_size: int) -> bytes:
    """Return the content of a file, or of stdin for `-`. Raises OSError, UnusableFile if it is too large.

    A FIFO or a device is refused without waiting for it. A descriptor of this process, as from a shell's
    `<(command)`, is read to its end.
    """
    if name == "-":
        data = sys.stdin.buffer.read(max_size + 1)
        if len(data) > max_size:
            raise UnusableFile(errno.EFBIG, f"it has more than {max_size} bytes", "stdin")
        return data
    if name == "/dev/stdin" or name.startswith(("/dev/fd/", "/proc/self/fd/")):
        with FileIO(name) as file:
            return read_up_to(file, max_size, name)
    return read_regular_file(Path(name).expanduser(), max_size)


_SPAN = re.compile(r"(?=\d)(?:(\d{1,6})d)?(?:(\d{1,6})h)?(?:(\d{1,6})m)?(?:(\d{1,6})s)?")


class SecondsType(click.FloatRange):
    """A finite number of seconds. JSON has no NaN and no infinities, so they cannot be sent to the daemon."""

    def convert(
        self,
        value: Any,  # noqa: ANN401 # text or a default
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> float:
        seconds: float = super().convert(value, param, ctx)
        if not math.isfinite(seconds):
            self.fail(f"{value!r} is not a number of seconds", param, ctx)
        return seconds


def seconds_option(name: str, default: float, help: str) -> Callable[[FC], FC]:
    return click.option(
        name, metavar="SECONDS", type=SecondsType(min=0), default=default, show_default=True, help=help
    )


def parse_duration(text: str) -> timedelta:
    """Parse `90s`, `30m`, `2h` or `1d12h`. Raises BadParameter."""
    found = _SPAN.fullmatch(text)
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups()) if found else (0,) * 4
    length = timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)
    if not length:
        raise click.BadParameter(f"{text!r} is not a duration such as 90s, 30m, 2h or 1d12h")
    return length


def rfc3339(when: datetime) -> str:
    return when.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
