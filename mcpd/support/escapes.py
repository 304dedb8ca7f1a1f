"""Reading a text without its backslashes, so that one search finds a secret however often it was escaped."""

from __future__ import annotations

import bisect
import re

_ESCAPE = r"\\+(?:u([0-9a-fA-F]{4})|x([0-9a-fA-F]{2})|([bfnrt]))?"
_CONTROLS = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}


class Unescaped:
    """A text in which every escape sequence, of any number of backslashes, is its character.

    JSON, JSON inside JSON, and Python's `repr` of a text are equal in this form, and so is the text itself.
    """

    def __init__(self, source: str) -> None:
        parts: list[str] = []
        size = end = 0
        self._starts, self._origins, self._made = [0], [0], [False]
        for found in re.finditer(_ESCAPE, source):
            digits = found[1] or found[2]
            character = chr(int(digits, 16)) if digits else _CONTROLS.get(found[3], "")
            parts += (source[end : found.start()], character)
            size += found.start() - end + len(character)
            end = found.end()
            self._starts.append(size)
            self._origins.append(end)
            self._made.append(bool(character))
        self.text = "".join((*parts, source[end:]))

    def origin(self, position: int) -> int:
        """Return the index in the source that a boundary between two characters of `text` stems from.

        Backslashes without a character of their own count to the character after them.
        """
        at = bisect.bisect_left(self._starts, position)
        if at == len(self._starts) or self._starts[at] != position or not (self._made[at] or at == 0):
            at -= 1
        return self._origins[at] + position - self._starts[at]


def unescape(text: str) -> str:
    return Unescaped(text).text if "\\" in text else text
