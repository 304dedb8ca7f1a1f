"""Repairs common encoding errors in JSON text. Used by the daemon and by the bridge."""

from __future__ import annotations

import re

_BOM = b"\xef\xbb\xbf"
_ESCAPE = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(u[dD][89a-fA-F][0-9a-fA-F]{2})|.)"
)
"""Matches all escapes, so that an escaped backslash does not begin one. Group 1: an unpaired surrogate."""


def repair_json(text: bytes) -> bytes:
    """Remove a byte order mark, and replace invalid UTF-8 and unpaired surrogates by U+FFFD.

    Node writes unpaired surrogates (`"\\ud83d"`) when it cuts a string inside an emoji. Valid text is
    returned unchanged.
    """
    text = text.removeprefix(_BOM)
    if not text.isascii():
        text = text.decode("utf-8", "replace").encode()
    if b"\\ud" in text or b"\\uD" in text:
        text = _ESCAPE.sub(lambda escape: b"\\ufffd" if escape[1] else escape[0], text)
    return text
