"""JSON text that others wrote almost soundly, mended: for both sides of the socket."""

from __future__ import annotations

import re

_BOM = b"\xef\xbb\xbf"
_ESCAPE = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(u[dD][89a-fA-F][0-9a-fA-F]{2})|.)"
)
"""Escapes from left to right, so that an escaped backslash is none's beginning; group 1: half a pair."""


def repair_json(text: bytes) -> bytes:
    """The text without what keeps sound JSON from being read; itself when there is nothing of it.

    A byte order mark goes; what is no UTF-8, and half a surrogate pair (`"\\ud83d"`, which Node writes for
    a cut emoji), become U+FFFD.
    """
    text = text.removeprefix(_BOM)
    if not text.isascii():
        text = text.decode("utf-8", "replace").encode()
    if b"\\ud" in text or b"\\uD" in text:
        text = _ESCAPE.sub(lambda escape: b"\\ufffd" if escape[1] else escape[0], text)
    return text
