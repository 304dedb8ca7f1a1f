"""Finds tokens in a text by their prefixes, in little memory, however many logins there are.

Each spelling of a token is represented by its first characters, its start. All starts have the same length.
They are kept sorted in one byte string, without an object for each. A bitmap of their hashes excludes most
places of a text at which no token begins.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable, Iterator

from mcpd.support.spellings import spellings

LENGTH = 16
"""Characters of a start. A shorter token cannot be found here."""
HEAD = 24
"""Characters of a token that decide its starts in all spellings."""
_TOKEN = re.compile(r"[A-Za-z0-9._~+/=-]+")
"""A token (RFC 6750, 2.1)."""
_RUN = re.compile(rf"[A-Za-z0-9._~+/=%-]{{{LENGTH},}}")
"""Where a token may be, also if it is percent-encoded."""
_BITS = 1 << 16


def is_token(secret: str) -> bool:
    """Return whether a secret can be found by its start."""
    return len(secret) >= LENGTH and _TOKEN.fullmatch(secret) is not None


class TokenIndex:
    """Contains the heads of tokens: their first `HEAD` characters.

    Other threads may search while one adds or removes. They see the state before or after.
    """

    def __init__(self) -> None:
        self._starts = b""
        """Sorted, each of `LENGTH` bytes."""
        self._uses = array("I")
        """How often each start was added."""
        self._bitmap = bytes(_BITS // 8)
        """A set bit for each start, and possibly for some that were removed."""

    def __len__(self) -> int:
        """Return the number of starts."""
        return len(self._starts) // LENGTH

    def add(self, heads: Iterable[str]) -> None:
        """Find these tokens from now on, to their ends. Tokens that are added twice must be removed twice."""
        starts, bitmap = bytearray(self._starts), bytearray(self._bitmap)
        for start in _starts_of(heads):
            at = _place(starts, start)
            if starts[at : at + LENGTH] == start:
                self._uses[at // LENGTH] += 1
                continue
            starts[at:at] = start
            self._uses.insert(at // LENGTH, 1)
            bit = _bit(start.decode())
            bitmap[bit >> 3] |= 1 << (bit & 7)
        self._bitmap, self._starts = bytes(bitmap), bytes(starts)

    def remove(self, heads: Iterable[str]) -> None:
        """Stop finding these tokens, which were added together."""
        starts = bytearray(self._starts)
        for start in _starts_of(heads):
            at = _place(starts, start)
            self._uses[at // LENGTH] -= 1
            if not self._uses[at // LENGTH]:
                del self._uses[at // LENGTH]
                del starts[at : at + LENGTH]
        self._starts = bytes(starts)
        if not starts:
            self._bitmap = bytes(_BITS // 8)

    def find(self, text: str) -> list[tuple[int, int]]:
        """Return where tokens begin and end. Takes time in proportion to the length of the text."""
        return list(self._places(text))

    def _places(self, text: str) -> Iterator[tuple[int, int]]:
        starts, bitmap = self._starts, self._bitmap
        for run in _RUN.finditer(text):
            for here in range(run.start(), run.end() - LENGTH + 1):
                found = text[here : here + LENGTH]
                bit = hash(found)  # as `_bit`, without the call
                if bitmap[bit >> 3 & _BITS // 8 - 1] >> (bit & 7) & 1:
                    start = found.encode()
                    at = _place(starts, start)
                    if starts[at : at + LENGTH] == start:
                        yield here, run.end()
                        break

    def find_cut(self, text: str, least: int) -> int | None:
        """Return the index of the longest suffix of `text` that begins a start; None if there is none.

        It has at least `least` characters, and fewer than a start.
        """
        starts = self._starts
        for here in range(max(0, len(text) - LENGTH + 1), len(text) - least + 1):
            rest = text[here:].encode("utf-8", "replace")
            at = _place(starts, rest)
            if starts[at : at + len(rest)] == rest:
                return here
        return None


def _starts_of(heads: Iterable[str]) -> set[bytes]:
    return {spelled[:LENGTH].encode() for head in heads for spelled in spellings(head)}


def _place(starts: bytes | bytearray, start: bytes) -> int:
    """Return the index of the first one that is not less than `start`."""
    low, high = 0, len(starts) // LENGTH
    while low < high:
        middle = (low + high) // 2
        if starts[middle * LENGTH : (middle + 1) * LENGTH] < start:
            low = middle + 1
        else:
            high = middle
    return low * LENGTH


def _bit(start: str) -> int:
    return hash(start) % _BITS
