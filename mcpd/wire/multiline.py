"""A message that was written over several lines, put together again: no line of it is a message alone."""

from __future__ import annotations

MAX_JOINED = 4 * 1024 * 1024


class MultilineJoiner:
    """Feed it the lines that are no messages; now and then it gives a text that may be one, on one line.

    Indented JSON begins with a line of nothing but `{` and ends with one of nothing but `}`, neither
    indented. The standard forbids it on stdio; nothing is kept for a server that keeps to that.
    """

    def __init__(self, limit: int) -> None:
        self._limit = min(limit, MAX_JOINED)
        self._lines: list[bytes] = []
        self._size = 0

    def feed(self, line: bytes) -> bytes | None:
        """At a `}`: the lines from the last `{` on, joined."""
        line = line.rstrip()
        if line == b"{":
            self._lines, self._size = [], 0
        elif not self._lines:
            return None
        self._lines.append(line)
        self._size += len(line) + 1
        if line != b"}" and self._size <= self._limit:
            return None
        whole = b" ".join(self._lines)
        self._lines, self._size = [], 0
        return whole if line == b"}" else None
