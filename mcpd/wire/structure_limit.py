"""Limits how much of a JSON text is outside of strings, while the text arrives.

Reading past a number, a bracket or a space takes up to 3.5 ns per byte, three to ten times as long as in a
string, and each message is read several times. So 32 MiB of text cost little, but 32 MiB of small values
would stop the event loop for a tenth of a second each time.
"""

from __future__ import annotations

SHARE = 4
"""Structure may take up at most this fraction (a quarter) of the maximum size of a message."""
COUNTED_FROM = 1 << 20
"""Only messages of more than this many bytes are counted; shorter ones cannot cost much."""
_DENSE = 4
"""Where quotes are fewer than this many bytes apart on average, everything counts."""


class TooMuchStructure(ValueError):
    """A message exceeds the limit; the text names the limit and its value."""

    def __init__(self, limit: int) -> None:
        super().__init__(
            f"more than {limit} bytes outside of strings, such as numbers and brackets (a quarter of the "
            "maximum size of a message)"
        )


class StructureCounter:
    """Counts the bytes of one JSON text that are outside of strings, without checking its syntax.

    Takes 1 ms per MiB of long strings, up to 10 ms per MiB otherwise.
    """

    def __init__(self, max_size: int) -> None:
        """`max_size`: bytes of the longest message."""
        self._limit = max(max_size // SHARE, COUNTED_FROM)
        self._count = 0
        self._is_inside = False
        self._is_escaped = False

    def feed(self, portion: bytes | bytearray) -> None:
        """Count the next portion of the text. Raises TooMuchStructure."""
        if not portion:
            return
        if self._is_escaped:
            portion = portion[1:]
            self._is_escaped = False
        if b"\\" in portion:
            portion = portion.replace(b"\\\\", b"").replace(b'\\"', b"")
            self._is_escaped = portion.endswith(b"\\")
        quotes = portion.count(b'"')
        if quotes * _DENSE > len(portion):
            self._count += len(portion)
        elif quotes or not self._is_inside:
            self._count += sum(map(len, portion.split(b'"')[self._is_inside :: 2]))
        self._is_inside ^= quotes % 2 == 1
        if self._count > self._limit:
            raise TooMuchStructure(self._limit)
