"""Reads JSON documents of strangers: metadata, registrations and tokens. All of it may be hostile."""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from mcpd.model import json_text
from mcpd.model.text import shorten

MAX_BYTES = 1 << 20
"""Bytes of a metadata document, a registration answer or a token answer."""
MAX_VALUES = 20_000
"""JSON values in such a document."""
MAX_STRING = 8192
"""Characters of a URL or another string that mcpd uses."""
_MAX_SCOPES = 1000
_SCOPE = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]+")
"""A scope token (RFC 6749, 3.3)."""


def json_object(body: bytes) -> Mapping[str, object] | None:
    """Return the JSON object in `body`, or None if it is something else or exceeds a limit. Never raises."""
    try:
        json_text.check_size(body, MAX_VALUES, MAX_BYTES)
        value = msgspec.json.decode(body)
    except (json_text.JsonTooLarge, msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return None
    return value if isinstance(value, dict) else None


def string(document: Mapping[str, object], key: str) -> str | None:
    """Return a non-empty string of printable characters, or None."""
    value = document.get(key)
    usable = isinstance(value, str) and 0 < len(value) <= MAX_STRING and value.isprintable()
    return value if usable else None  # type: ignore[return-value]


def strings(document: Mapping[str, object], key: str) -> tuple[str, ...] | None:
    """Return an array of strings without its unusable items; None if the member is not an array."""
    value = document.get(key)
    if not isinstance(value, list):
        return None
    return tuple(each for each in value if isinstance(each, str) and each and each.isprintable())


def quote(text: object) -> str:
    """Return text of a server for a message: printable and at most 200 characters."""
    return shorten(text, 200) if isinstance(text, str) else ""


def parse_scopes(value: object) -> tuple[str, ...] | None:
    """Return the scopes of a `scope` parameter, each once; None if there is no such parameter."""
    if not isinstance(value, str):
        return None
    found = dict.fromkeys(each for each in value[:65_536].split() if _SCOPE.fullmatch(each))
    return tuple(found)[:_MAX_SCOPES]
