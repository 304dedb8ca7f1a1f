"""Server-sent events, without I/O and with a bound: bytes in any portions → events.

The rules are those of the HTML standard, on bytes: what is in `data` goes on as it came. An event is
also reported when it has no data. Such an event is no message; servers send it to give the stream an
id to resume from, or a time to wait before doing so.
"""

from __future__ import annotations

import re

import msgspec

_BOM = b"\xef\xbb\xbf"
_MAX_FIELD_PREFIX = len(b"retry: ")
_MAX_ID = 4096
_USABLE_ID = re.compile(r"(?! )[^\x00-\x1f\x7f]*(?<! )")
"""Any other id, or a longer one, could not be sent back in a header: it is no id."""
_MAX_RETRY_DIGITS = 18
"""Digits. `int` refuses thousands of them, and nobody waits for as long as these say."""


class EventTooLong(ValueError):
    """An event passed the limit before its end came; the rest of the stream cannot be framed."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"a server-sent event is longer than the limit of {limit} bytes")
        self.limit = limit


class SseEvent(msgspec.Struct, frozen=True, gc=False):
    """What came up to one blank line."""

    event: str
    """`message` where the server named none."""
    data: bytes
    """Its lines joined by `\\n`. Empty: no message, only an id or a time to remember."""
    id: str | None
    """The stream's last id as of this event, whether or not this event brought it: what to resume from.
    None: there is none so far, or the server has taken it back (`id:` with nothing)."""
    retry: int | None
    """Milliseconds to wait before resuming, when this event said so."""


class SseDecoder:
    """The decoder of one stream; a resumed stream is another one, with a decoder of its own.

    What the end of the stream leaves unfinished is no event, as the standard wants it.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        """Bytes of data one event may have."""
        self._start = b""
        self._started = False
        self._after_cr = False
        self._parts: list[bytes] = []  # of the open line; searched once, joined once
        self._open = 0
        self._id: str | None = None
        self._clear()

    def _clear(self) -> None:
        self._has_fields = False
        self._event = ""
        self._data: bytes | bytearray | None = None  # an array from its second line on
        self._size = 0
        self._retry: int | None = None

    def feed(self, data: bytes) -> list[SseEvent]:
        """Take what was read; return the events it completed. Raises EventTooLong, after which
        the decoder is of no more use."""
        if not self._started:
            data = self._without_bom(data)
        if self._after_cr and data:
            self._after_cr = False
            data = data.removeprefix(b"\n")  # the second half of CRLF: that line has been taken already
        if not data:
            return []
        if b"\r" in data:
            self._after_cr = data.endswith(b"\r")
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        lines = data.split(b"\n")  # `splitlines` looks at each byte by itself: three times the time
        rest = lines.pop()
        if lines and self._parts:
            self._parts.append(lines[0])
            lines[0] = b"".join(self._parts)
            self._parts.clear()
            self._open = 0
        events = [event for line in lines if (event := self._take_line(line)) is not None]
        if rest:
            self._parts.append(rest)
            self._open += len(rest)
            if self._size + self._open > self._limit + _MAX_FIELD_PREFIX:
                raise EventTooLong(self._limit)
        return events

    def _without_bom(self, data: bytes) -> bytes:
        self._start += data
        if len(self._start) < len(_BOM) and _BOM.startswith(self._start):
            return b""  # it may become one
        self._started = True
        start, self._start = self._start, b""
        return start.removeprefix(_BOM)

    def _take_line(self, line: bytes) -> SseEvent | None:
        if not line:
            return self._finish_event() if self._has_fields else None
        if line.startswith(b"data:"):  # nearly all of them, and the long ones: copied once
            name, text = b"data", line[6 if line[5:6] == b" " else 5 :]
        else:
            name, _, text = line.partition(b":")
            text = text.removeprefix(b" ")
        if name == b"data":
            self._has_fields = True
            self._append_data(text)
        elif name == b"event":
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
        return None  # what is left is a comment, which has no name, or a field nobody knows

    def _append_data(self, text: bytes) -> None:
        if self._data is None:
            self._data = text
        else:
            if isinstance(self._data, bytes):
                self._data = bytearray(self._data)
            self._data += b"\n"
            self._data += text
        self._size = len(self._data)
        if self._size > self._limit:
            raise EventTooLong(self._limit)

    def _finish_event(self) -> SseEvent:
        event = SseEvent(self._event or "message", bytes(self._data or b""), self._id, self._retry)
        self._clear()
        return event
