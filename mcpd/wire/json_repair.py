"""Repairs common encoding errors in JSON text. Used by the daemon and by the bridge."""

from __future__ import annotations

import codecs
import re

MAX_INVALID = 1_000_000
"""Invalid bytes that are replaced in one text, which takes about 15 ms."""
MAX_SURROGATES = 100_000
"""Escaped surrogates, paired or not, in a text whose unpaired ones are replaced; about 20 ms."""
MAX_ESCAPES = 1_000_000
"""Backslashes in such a text; about 30 ms."""
_PORTION = 1 << 18
_BOM = b"\xef\xbb\xbf"
_HIGH, _LOW = rb"[89abAB][0-9a-fA-F]{2}", rb"[c-fC-F][0-9a-fA-F]{2}"
_UNPAIRED = rb"\\u[dD](?:%b(?!\\u[dD]%b)|(?<!\\u[dD]%b\\u[dD])%b)" % (_HIGH, _LOW, _HIGH, _LOW)
"""Matches an unpaired surrogate in a text without escaped backslashes before a `u`."""


_SAFE_CUT = re.compile(rb"[^\\]{12}")
"""Matches as many bytes as a pair of escaped surrogates has, none of which begins an escape."""


def repair_json(text: bytes) -> bytes:
    """Remove a byte order mark, and replace invalid UTF-8 and unpaired surrogates by U+FFFD.

    Node writes unpaired surrogates (`"\\ud83d"`) when it cuts a string inside an emoji. Valid text is
    returned unchanged. A text with more errors than the limits keeps them, so that it cannot be decoded.
    """
    text = text.removeprefix(_BOM)
    if not text.isascii():
        text = _replace_invalid(text)
    return _replace_surrogates(text)


def _replace_invalid(text: bytes) -> bytes:
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    repaired = []
    replaced = 0
    for start in range(0, len(text), _PORTION):
        end = start + _PORTION
        sound = decoder.decode(text[start:end], end >= len(text))
        replaced += sound.count("\N{REPLACEMENT CHARACTER}")
        if replaced > MAX_INVALID:
            return text
        repaired.append(sound.encode())
    return b"".join(repaired)


def _replace_surrogates(text: bytes) -> bytes:
    escapes = surrogates = 0
    for start in range(0, len(text), _PORTION):
        found = text.count(b"\\", start, start + _PORTION)
        if found:
            portion = text[start : start + _PORTION + 2]
            surrogates += portion.count(rb"\ud") + portion.count(rb"\uD")
        escapes += found
        if escapes > MAX_ESCAPES or surrogates > MAX_SURROGATES:
            return text
    if not surrogates:
        return text
    repaired = []
    start = 0
    while start < len(text):
        cut = _SAFE_CUT.search(text, start + _PORTION)
        end = len(text) if cut is None else cut.end()
        repaired.append(_replace_surrogates_at_once(text[start:end]))
        start = end
    return b"".join(repaired)


def _replace_surrogates_at_once(text: bytes) -> bytes:
    if b"\\" not in text:
        return text
    if rb"\\u" not in text:
        return re.sub(_UNPAIRED, rb"\\ufffd", text)
    if b"\0" in text:  # JSON has no NUL, so it can stand for a backslash
        return text
    return re.sub(_UNPAIRED, rb"\\ufffd", text.replace(rb"\\", b"\0\0")).replace(b"\0\0", rb"\\")
