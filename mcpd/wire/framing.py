"""Newline framing with a bound: bytes in any portions → lines."""

from __future__ import annotations

from io import BytesIO

from mcpd.wire.limits import COUNTED_FROM, DroppedMessage, StructureCounter, TooMuchStructure


class LineTooLong(ValueError):
    """A line passed the limit before its newline came."""

    def __init__(self, limit: float) -> None:
        super().__init__(f"a line is longer than the limit of {limit} bytes")
        self.limit = limit


class LineSplitter:
    """Splits a byte stream into lines, without their newline. Empty lines are left out.

    Only `\\n` ends a line: U+2028 is legal inside JSON. The open line is never searched twice, so a long line
    costs its length once (searching again from the start made 32 MiB cost 354 ms instead of 13). It is kept
    in one piece, because hundreds of portions would fragment the heap, and becomes the line without being
    copied, because that would take 20 ms.

    A line over `limit` raises LineTooLong. If `longest` is greater than `limit`, such a line is dropped up to
    its newline, and raises LineTooLong only if it is over `longest`. With `limit_structure`, a line with too
    much structure (`wire/limits.py`) is dropped, too. What is known of each dropped line is added to
    `dropped`, which the caller empties.
    """

    def __init__(self, limit: int, *, longest: float = 0, limit_structure: bool = False) -> None:
        self.dropped: list[DroppedMessage] = []
        self._limit_structure = limit_structure
        self._counter: StructureCounter | None = None
        """Counts the open line once it is long."""
        self._dropping: DroppedMessage | None = None
        """The open line, if it is being dropped."""
        self._limit = limit
        self._longest = max(limit, longest)
        self._open = BytesIO()
        self.size = 0
        """Bytes of the open line that are kept."""

    def feed(self, portion: bytes) -> list[bytes]:
        """Take what was read; return the lines that it completed. Raises LineTooLong."""
        first, newline, rest = portion.partition(b"\n")
        if self._dropping is not None:
            self._drop(first, has_ended=bool(newline))
            lines: list[bytes] = []
        elif self.size + len(first) > self._limit:
            self.drop_open_line(self._excess)
            self._drop(first, has_ended=bool(newline))
            lines = []
        elif not newline:
            self._open.write(portion)
            self.size += len(portion)
            if self.size > COUNTED_FROM and self._limit_structure:
                self._count(portion)
            return []
        elif self.size:
            self._open.write(first)
            lines = [self._open.getvalue()]
            self.clear()
        else:
            lines = [first] if first else []
        if rest:
            more = rest.split(b"\n")
            self.size = self._open.write(more.pop())
            if len(rest) > self._limit:
                more = self._without_long(more)
            lines += filter(None, more)
        return lines

    def rest(self) -> bytes:
        """Return the open line, which no newline has ended yet."""
        return self._open.getvalue()

    @property
    def is_dropping(self) -> bool:
        """Whether the open line is being dropped."""
        return self._dropping is not None

    def clear(self) -> None:
        self._open = BytesIO()
        self.size = 0
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
            self.drop_open_line(str(error))

    @property
    def _excess(self) -> str:
        return f"more than {self._limit} bytes"

    def _without_long(self, lines: list[bytes]) -> list[bytes]:
        """Drop the long ones of these complete lines; return the others."""
        kept = []
        for line in lines:
            if len(line) <= self._limit:
                kept.append(line)
            else:
                self._dropping = DroppedMessage(self._excess)
                self._drop(line, has_ended=True)
        return kept

    def drop_open_line(self, reason: str) -> None:
        """Drop the open line, up to its newline. `reason`: as in `DroppedMessage`."""
        self._dropping = DroppedMessage(reason)
        self._dropping.add(self._open.getvalue())  # not a copy
        self.clear()

    def _drop(self, portion: bytes, *, has_ended: bool) -> None:
        """Take the next portion of a line that is being dropped. Raises LineTooLong."""
        line = self._dropping
        assert line is not None
        line.add(portion)
        if line.size > self._longest:
            self._dropping = None
            raise LineTooLong(self._longest)
        if has_ended:
            self._dropping = None
            self.dropped.append(line)
