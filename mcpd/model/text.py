"""Quoting untrusted text in messages and logs."""

from __future__ import annotations


def shorten(data: bytes | str, limit: int = 120) -> str:
    """Return `data` in at most `limit` printable characters, plus `…` where it was cut.

    Unprintable characters and invalid UTF-8 become U+FFFD.
    """
    text = data.decode("utf-8", "replace") if isinstance(data, bytes) else data
    text = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text[: limit + 1])
    return text if len(text) <= limit else text[:limit] + "…"
