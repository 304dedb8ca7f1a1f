"""Quoting untrusted text in messages and logs."""

from __future__ import annotations

_PORTION = 1 << 18


def shorten(data: bytes | str, limit: int = 120) -> str:
    """Return `data` in at most `limit` printable characters, plus `…` where it was cut.

    Unprintable characters and invalid UTF-8 become U+FFFD.
    """
    if isinstance(data, bytes):
        data = data[: 4 * (limit + 1)].decode("utf-8", "replace")  # a character has at most four bytes
    text = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in data[: limit + 1])
    return text if len(text) <= limit else text[:limit] + "…"


def count_up_to(data: bytes, part: bytes, limit: int) -> int:
    """Return how often `part` occurs. Stops soon after `limit`, so a huge text full of it costs little."""
    count = 0
    for start in range(0, len(data), _PORTION):
        count += data.count(part, start, start + _PORTION + len(part) - 1)
        if count > limit:
            break
    return count
