"""Parses one HTTP/1.1 response, without I/O: bytes in any portions → its head and its raw body.

The parser is llhttp (through httptools), which Node's `fetch` uses. This module adds what it leaves to its
user: bounds, the end of a body without a length, interim responses, and whether the connection can be reused.
"""

from __future__ import annotations

import re

from httptools.parser.errors import HttpParserCallbackError, HttpParserError
from httptools.parser.parser import HttpResponseParser

Header = tuple[bytes, bytes]

MAX_HEAD = 100 * 1024
"""Bytes of a status line with its headers, and of the data between two chunks."""
_MAX_HEADERS = 1000
"""Header lines."""
_KEEP_ALIVE_TIMEOUT = re.compile(rb"timeout=(\d{1,6})")
_CONTROLS = re.compile(rb"[\x00\v\f\r]")
_STATUSES_WITHOUT_BODY = (204, 304)
_SWITCHING = 101


class BadResponse(ValueError):
    """The response is not HTTP or incomplete. The connection cannot be used again."""


class Http1Response:
    """The response to one request. Call `feed` with what arrives, and `end` at the end of the stream."""

    def __init__(self, method: str = "GET") -> None:
        self.status = 0
        """0 until the head is complete. Interim responses (1xx) are skipped."""
        self.reason = b""
        self.headers: list[Header] = []
        """Unchanged and in order."""
        self.complete = False
        self.reusable = False
        """Whether the connection may carry another request; valid once `complete`."""
        self.keep_alive_timeout: float | None = None
        """Seconds for which the server keeps the connection, if it sent `Keep-Alive`."""
        self._parser = HttpResponseParser(self)
        # RFC 9112: a bare LF ends a header too (2.2), and chunks override a length beside them (6.3).
        # Some servers send spaces after the size of a chunk.
        self._parser.set_dangerous_leniencies(
            lenient_optional_cr_before_lf=True,
            lenient_chunked_length=True,
            lenient_spaces_after_chunk_size=True,
        )
        self._method = method
        self._body: list[bytes] = []
        self._overhead = 0
        """Bytes of the head, or since the last byte of the body."""
        self._ends_at_close = False
        """Whether the body ends with the connection."""

    def feed(self, data: bytes) -> list[bytes]:
        """Take what was read; return the body in it. Raises BadResponse."""
        if self.complete:
            self.reusable = self.reusable and not data
            return []
        self._overhead += len(data)
        try:
            self._parser.feed_data(data)
        except HttpParserCallbackError as error:
            if not isinstance(error.__context__, _UnexpectedData):
                raise error.__context__ or error from None
            self.reusable = False
        except HttpParserError as error:
            if not self.complete:  # otherwise the error is in what follows
                raise BadResponse(f"not HTTP/1.1: {error}") from None
            self.reusable = False
        if self._overhead > MAX_HEAD and not self.complete:
            raise BadResponse("the headers are too long")
        body, self._body = self._body, []
        return body

    def end(self) -> None:
        """Note that the connection was closed. Raises BadResponse if the response is incomplete."""
        if not self.status:
            when = "in the middle of its headers" if self._overhead else "without sending a response"
            raise BadResponse(f"the server disconnected {when}")
        if not self.complete and not self._ends_at_close:
            raise BadResponse("the server disconnected before its response was complete")
        self.complete, self.reusable = True, False

    # ── called by httptools ─────────────────────────────────────────────────────────────────────

    def on_message_begin(self) -> None:
        if self.complete:
            raise _UnexpectedData

    def on_status(self, portion: bytes) -> None:
        self.reason += portion

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.status:
            return  # a trailer
        self.headers.append((name, value.strip(b" \t")))
        if len(self.headers) > _MAX_HEADERS:
            raise BadResponse("the headers are too long")

    def on_headers_complete(self) -> None:
        parser = self._parser
        status = parser.get_status_code()
        if status == _SWITCHING:
            raise BadResponse("the server switched to another protocol without being asked to")
        if _CONTROLS.search(self.reason):
            raise BadResponse("not HTTP/1.1: control characters in the reason")
        if status < 200:
            self.headers, self.reason = [], b""
            return
        self.status = status
        coded = sized = False
        for name, value in self.headers:
            match name.lower():
                case b"transfer-encoding":
                    if coded or value.lower() != b"chunked":
                        raise BadResponse("the response has an unsupported transfer encoding")
                    coded = True
                    parser.set_dangerous_leniencies(lenient_optional_cr_before_lf=False)  # not in chunks
                case b"content-length":
                    sized = True
                case b"keep-alive" if found := _KEEP_ALIVE_TIMEOUT.search(value.lower()):
                    self.keep_alive_timeout = float(found[1])
        self.complete = self._method == "HEAD" or status in _STATUSES_WITHOUT_BODY
        self._ends_at_close = not (coded or sized or self.complete)
        self.reusable = parser.should_keep_alive() and parser.get_http_version() == "1.1"

    def on_body(self, portion: bytes) -> None:
        if self.complete:
            raise _UnexpectedData
        self._body.append(portion)
        self._overhead = 0

    def on_message_complete(self) -> None:
        self.complete = self.status != 0


class _UnexpectedData(Exception):
    """More data follows a complete response."""
