"""Server-sent events, without I/O and with a bound: bytes in any portions → events.

The rules are those of the HTML standard, applied to bytes, so `data` keeps its bytes. Events without data are
returned too: servers send them to set the id to resume from, or the delay before resuming.
"""

from __future__ import annotations

import re
from io import BytesIO

import msgspec

from mcpd.wire.limits import COUNTED_FROM, StructureCounter, TooMuchStructure

_BOM = b"\xef\xbb\xbf"
_MAX_FIELD_PREFIX = len(b"retry: ")
_MAX_ID = 4096
_USABLE_ID = re.compile(r"(?! )[^\x00-\x1f\x7f]*(?<! )")
"""Other ids are ignored, because they could not be sent back in a header."""
_MAX_RETRY_DIGITS = 18
"""Enough for any delay; `int` rejects numbers with thousands of digits."""


class EventTooLong(ValueError):
    """An event exceeds a limit, which the message names. The rest of the stream is not read."""


class SseEvent(msgspec.Struct, frozen=True, gc=False):
    """One event, up to a blank line."""

    event: str
    """`message` if the server did not name it."""
    data: bytes
    """The lines of the event joined by `\\n`; empty for an event that only sets an id or a delay."""
    id: str | None
    """The last id of the stream up to this event, to resume from. None if there is none, or if an empty `id:`
    reset it."""
    retry: int | None
    """Milliseconds to wait before resuming, if this event sets them."""


class SseDecoder:
    """The decoder of one stream. Use a new one for a resumed stream.

    An event that is incomplete at the end of the stream is dropped, as the standard requires, unless `end`
    finds that only its blank line is missing.
    """

    def __init__(self, limit: int) -> None:
        """`limit`: bytes of data in one event. It also bounds its structure (`wire/limits.py`)."""
        self.overhead = 0
        """Bytes since the last event that are not data: comments, blank lines, and fields without data."""
        self._limit = limit
        self._start = b""
        self._started = False
        self._after_cr = False
        self._line = BytesIO()  # the open line, searched only once; its portions may have one byte each
        self._open = 0
        self._id: str | None = None
        self._clear()

    def _clear(self) -> None:
        self._has_fields = False
        self._event = ""
        self._data: bytes | bytearray | None = None  # an array from its second line on
        self._size = 0
        self._counter: StructureCounter | None = None
        """Counts the data once it is long."""
        self._retry: int | None = None

    def feed(self, data: bytes) -> list[SseEvent]:
        """Take what was read; return the events that it completed.

        Raises EventTooLong; do not use the decoder afterwards.
        """
        if not self._started:
            data = self._without_bom(data)
        if self._after_cr and data:
            self._after_cr = False
            data = data.removeprefix(b"\n")  # the second half of CRLF
        if not data:
            return []
        if b"\r" in data:
            self._after_cr = data.endswith(b"\r")
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        lines = data.split(b"\n")  # `splitlines` takes three times as long
        rest = lines.pop()
        events = []
        if lines and self._open and (event := self._take_long_line(lines.pop(0))) is not None:
            events.append(event)
        events += [event for line in lines if (event := self._take_line(line)) is not None]
        if rest:
            self._extend_line(rest)
        return events

    def end(self) -> list[SseEvent]:
        """Take the end of the stream. Return its last event if that is not ended by a blank line, as some
        servers forget it, but has a whole JSON text."""
        events = self.feed(b"\n\n")
        try:
            for event in events:
                msgspec.json.decode(event.data, type=msgspec.Raw)
        except (ValueError, RecursionError):
            return []
        return events

    def _without_bom(self, data: bytes) -> bytes:
        self._start += data
        if len(self._start) < len(_BOM) and _BOM.startswith(self._start):
            return b""  # it may become a byte order mark
        self._started = True
        start, self._start = self._start, b""
        return start.removeprefix(_BOM)

    def _extend_line(self, rest: bytes) -> None:
        self._open += self._line.write(rest)
        size = self._size + self._open
        if size > self._limit + _MAX_FIELD_PREFIX:
            raise EventTooLong(f"more than {self._limit} bytes")
        if size > COUNTED_FROM:
            self._count(rest)

    def _take_long_line(self, last: bytes) -> SseEvent | None:
        self._line.write(last)
        if self._counter is not None:
            self._count(last)
        line = self._line.getvalue()
        self._line = BytesIO()
        self._open = 0
        return self._take_line(line, is_counted=self._counter is not None)

    def _count(self, portion: bytes) -> None:
        """Count what was added to the data or to the open line."""
        if self._counter is None:
            self._counter = StructureCounter(self._limit)
            portion = bytes(self._data or b"") + self._line.getvalue()
        try:
            self._counter.feed(portion)
        except TooMuchStructure as error:
            raise EventTooLong(str(error)) from None

    def _take_line(self, line: bytes, *, is_counted: bool = False) -> SseEvent | None:
        if not line:
            if self._has_fields:
                return self._finish_event()
            self.overhead += 1
            return None
        if line.startswith(b"data:"):  # the most frequent and longest lines, copied only once
            self._take_data(line[6 if line[5:6] == b" " else 5 :], is_counted=is_counted)
            return None
        name, _, text = line.partition(b":")
        text = text.removeprefix(b" ")
        if name == b"data":
            self._take_data(text, is_counted=is_counted)
        else:
            self.overhead += len(line) + 1
            self._take_field(name, text)
        return None

    def _take_data(self, text: bytes, *, is_counted: bool) -> None:
        self._has_fields = True
        if self._data is None:
            self._data = text
        else:
            if isinstance(self._data, bytes):
                self._data = bytearray(self._data)
            self._data += b"\n"
            self._data += text
        self._size = len(self._data)
        if self._size > self._limit:
            raise EventTooLong(f"more than {self._limit} bytes")
        if self._size > COUNTED_FROM and not is_counted:
            self._count(text)

    def _take_field(self, name: bytes, text: bytes) -> None:
        """Take another field than `data`. Comments and unknown fields are ignored."""
        if name == b"event":
            self._has_fields = True
            self._event = text.decode("utf-8", "replace")
        elif name == b"id":
            id = text.decode("utf-8", "replace")
            if len(text) <= _MAX_ID and _USABLE_ID.fullmatch(id):
                self._has_fields = True
                self._id = id or None
        elif name == b"retry" and text.isdigit() and len(text) <= _MAX_RETRY_DIGITS:
            self._has_fields = True
            self._retry = int(text)

    def _finish_event(self) -> SseEvent:
        event = SseEvent(self._event or "message", bytes(self._data or b""), self._id, self._retry)
        self._clear()
        self.overhead = 0
        return event
