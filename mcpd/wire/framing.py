"""Newline framing with a bound: bytes in any portions → lines, and messages that span several lines."""

from __future__ import annotations

from io import BytesIO

import msgspec

from mcpd.wire.structure_limit import COUNTED_FROM, StructureCounter, TooMuchStructure

MAX_JOINED = 4 * 1024 * 1024
"""Bytes of a message that spans several lines."""
_SAMPLE = 200
"""Bytes of the beginning and the end of a line that is dropped."""


class LineTooLong(ValueError):
    """A line passed the limit before its newline came."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"a line is longer than the limit of {limit} bytes")
        self.limit = limit


class _DroppedLine(msgspec.Struct):
    """A line that is being dropped: its beginning, its last bytes so far, why, and its size so far."""

    start: bytes
    end: bytes
    reason: str
    size: int


class LineSplitter:
    """Splits a byte stream into lines, without their newline. Empty lines are left out.

    Only `\\n` ends a line: U+2028 is legal inside JSON. The open line is never searched twice, so a long line
    costs its length once (searching again from the start made 32 MiB cost 354 ms instead of 13). It is kept
    in one piece, because hundreds of portions would fragment the heap, and becomes the line without being
    copied, because that would take 20 ms.

    A line over `limit` raises LineTooLong. With `skip_long`, it is dropped up to its newline, and the lines
    after it are returned as usual. With `limit_structure`, a line with too much structure
    (`wire/structure_limit.py`) is dropped in the same way. The beginning and the end of each dropped line are
    added to `dropped`, with the reason. The caller empties this list.
    """

    def __init__(self, limit: int, *, skip_long: bool = False, limit_structure: bool = False) -> None:
        self.dropped: list[tuple[bytes, str]] = []
        self._limit_structure = limit_structure
        self._counter: StructureCounter | None = None
        """Counts the open line once it is long."""
        self._dropping: _DroppedLine | None = None
        self._limit = limit
        self._skip_long = skip_long
        self._open = BytesIO()
        self._size = 0
        """Bytes of the open line."""

    def feed(self, portion: bytes) -> list[bytes]:
        """Take what was read; return the lines that it completed. Raises LineTooLong."""
        first, newline, rest = portion.partition(b"\n")
        if self._dropping is not None:
            self._drop(first, has_ended=bool(newline))
            lines: list[bytes] = []
        elif self._size + len(first) > self._limit:
            if not self._skip_long:
                self.clear()
                raise LineTooLong(self._limit)
            self._begin_drop(f"more than {self._limit} bytes", first)
            self._drop(first, has_ended=bool(newline))
            lines = []
        elif not newline:
            self._open.write(portion)
            self._size += len(portion)
            if self._size > COUNTED_FROM and self._limit_structure:
                self._count(portion)
            return []
        elif self._size:
            self._open.write(first)
            lines = [self._open.getvalue()]
            self.clear()
        else:
            lines = [first] if first else []
        if rest:
            more = rest.split(b"\n")
            self._size = self._open.write(more.pop())
            lines += filter(None, more)
        return lines

    def rest(self) -> bytes:
        """Return the open line, which no newline has ended yet."""
        return self._open.getvalue()

    def clear(self) -> None:
        """Forget the open line."""
        self._open = BytesIO()
        self._size = 0
        self._counter = None

    def _count(self, portion: bytes) -> None:
        """Count what was added to the open line; drop the line if it has too many small values."""
        try:
            if self._counter is None:
                self._counter = StructureCounter(self._limit)
                self._counter.feed(self._open.getvalue())
            else:
                self._counter.feed(portion)
        except TooMuchStructure as error:
            self._begin_drop(str(error))

    def _begin_drop(self, reason: str, portion: bytes = b"") -> None:
        """Drop the open line. `portion`: what follows it, for a line whose beginning is in there."""
        start, end = bytes(self._open.getbuffer()[:_SAMPLE]), bytes(self._open.getbuffer()[-_SAMPLE:])
        self._dropping = _DroppedLine((start + portion[:_SAMPLE])[:_SAMPLE], end, reason, self._size)
        self.clear()

    def _drop(self, portion: bytes, *, has_ended: bool) -> None:
        """Take the next portion of a line that is being dropped."""
        line = self._dropping
        assert line is not None
        line.size += len(portion)
        line.end = (line.end + portion[-_SAMPLE:])[-_SAMPLE:]
        if has_ended:
            self._dropping = None
            self.dropped.append((line.start + line.end, line.reason))
        elif line.size > self._limit and not self._skip_long:
            raise LineTooLong(self._limit)


class MultilineJoiner:
    """Joins messages that a server spread over several lines, against the rules of the stdio transport.

    `feed` takes the lines that are not messages. Indented JSON begins with a line that is only `{` and ends
    with one that is only `}`, neither indented. Nothing is kept for a server that follows the rules.
    """

    def __init__(self, limit: int) -> None:
        self._limit = min(limit, MAX_JOINED)
        self._lines: list[bytes] = []
        self._size = 0

    def feed(self, line: bytes) -> bytes | None:
        """At a `}`, return the lines since the last `{` joined into one, which may be a message."""
        line = line.rstrip()
        if line == b"{":
            self._lines, self._size = [], 0
        elif not self._lines:
            return None
        self._lines.append(line)
        self._size += len(line) + 1
        if line != b"}" and self._size <= self._limit:
            return None
        joined = b" ".join(self._lines)
        self._lines, self._size = [], 0
        return joined if line == b"}" else None
