"""Quoting untrusted text in messages and logs."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable

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


_IGNORED = re.compile("[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u3164\ufe00-\ufe0f\U000e0100-\U000e01ef]")
"""Invisible characters that Python calls printable (Unicode, Default_Ignorable_Code_Point)."""


def fold(name: str) -> str:
    """Return the same text for names that a tolerant reader may take for each other."""
    if name.isascii() and name.isprintable():
        return name.casefold().strip()
    normal = unicodedata.normalize("NFKC", name).casefold()
    return "".join(each for each in _IGNORED.sub("", normal) if each.isprintable()).strip()


_MAX_COMPARED = 64
"""Characters of a name that are compared."""
_MAX_COMPARISONS = 130_000
"""Pairs of characters that are compared, which takes 15 ms at most."""


def similar_names(name: str, known: Iterable[str], count: int = 2, cutoff: float = 0.6) -> list[str]:
    """Return the names that `name` is probably a misspelling of, the most similar first.

    Only names of up to 64 characters are compared, and not all of them if there are very many.
    """
    name = name[:_MAX_COMPARED]
    left = _MAX_COMPARISONS
    compared = []
    for each in known:
        if 0 < len(each) <= _MAX_COMPARED:
            left -= len(each) * len(name)
            if left < 0:
                break
            compared.append(each)
    import difflib  # imported only when there is an error, to keep the idle daemon small

    return difflib.get_close_matches(name, compared, n=count, cutoff=cutoff)
