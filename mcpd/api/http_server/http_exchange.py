"""One request's response: whole, or as a stream; written by whoever has the answer, whenever it is there."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from email.utils import formatdate
from http import HTTPStatus
from typing import Protocol

import trio

from mcpd.api.http_server.parser import Head

JSON = b"application/json"
TEXT = b"text/plain; charset=utf-8"
_REASONS = {status.value: status.phrase.encode() for status in HTTPStatus}
Serve = Callable[[trio.abc.Stream], Awaitable[None]]
"""What has a connection to itself, for as long as it runs."""


class Line(Protocol):
    """The connection, as a response sees it."""

    is_last: bool
    """Nothing will be read after this response, and the client is told so."""

    def put(self, data: bytes) -> None: ...
    def upgrade(self, serve: Serve) -> None: ...
    def ended(self, exchange: Exchange) -> None: ...


class Exchange:
    """A request that has come whole, and its response: `respond` once, or `stream`, `write`…, `end`.

    All of it is synchronous, never raises, and does nothing once the client has hung up or the response
    has ended. The one who answers later sets `on_hang_up`, and `on_quiet` for what keeps a client patient.
    """

    __slots__ = ("_chunked", "_is_head", "_line", "_streams", "head", "is_over", "on_hang_up", "on_quiet")

    def __init__(self, line: Line, head: Head) -> None:
        self._line = line
        self._is_head = head.method == "HEAD"
        self._streams = False
        self._chunked = False
        self.head = head
        self.is_over = False
        self.on_hang_up: Callable[[str], None] | None = None
        """Called once, with the reason, when the connection ended before the response did."""
        self.on_quiet: Callable[[], None] | None = None
        """Called when nothing was written for a while (`connection.QUIET`)."""

    @property
    def streams(self) -> bool:
        """The head of a stream has been written: the status cannot change any more."""
        return self._streams

    def respond(self, status: int, body: bytes = b"", kind: bytes = JSON, headers: bytes = b"") -> None:
        """`headers`: whole lines, each with its end."""
        if self.is_over or self._streams:
            return
        self._over()
        line = self._line
        if status == 200 and not headers and not line.is_last and not self._is_head:
            line.put(
                b"HTTP/1.1 200 OK\r\n%bContent-Type: %b\r\nContent-Length: %d\r\n\r\n%b"
                % (_common(), kind, len(body), body)
            )
        else:
            length = b"" if status in (204, 304) else b"Content-Length: %d\r\n" % len(body)
            typed = b"Content-Type: %b\r\n" % kind if body else b""
            common = _common() if b"Cache-Control:" not in headers else _common().replace(_NOT_KEPT, b"")
            head = _status_line(status) + common + typed + length + headers + self._farewell()
            line.put(head + b"\r\n" + (b"" if self._is_head else body))
        line.ended(self)

    def stream(self, kind: bytes, headers: bytes = b"") -> None:
        """Begin a response of unknown length, with status 200."""
        if self.is_over or self._streams:
            return
        self._streams = True
        self._chunked = self.head.is_11
        if self._chunked:
            headers += b"Transfer-Encoding: chunked\r\n"
        else:
            self._line.is_last = True
        head = b"HTTP/1.1 200 OK\r\n%bContent-Type: %b\r\n" % (_common(), kind)
        self._line.put(head + headers + self._farewell() + b"\r\n")

    def write(self, data: bytes) -> None:
        """A part of the stream; must not be empty."""
        if not self.is_over and not self._is_head:
            self._line.put(b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data)

    def upgrade(self, serve: Serve) -> None:
        """Give the connection away: `serve` answers on its stream, in the protocol that was offered.

        When it returns, the connection ends; the stream may be closed by then, or not.
        """
        if not self.is_over and not self._streams:
            self._streams = True
            self._line.upgrade(serve)

    def end(self) -> None:
        """The stream is complete."""
        if not self.is_over:
            self._over()
            if self._chunked and not self._is_head:
                self._line.put(b"0\r\n\r\n")
            self._line.ended(self)

    def hang_up(self, reason: str) -> None:
        """For the connection: there is nobody left to answer."""
        if not self.is_over:
            on_hang_up = self.on_hang_up
            self._over()
            if on_hang_up is not None:
                on_hang_up(reason)

    def _over(self) -> None:
        self.is_over = True
        self.on_hang_up = self.on_quiet = None  # whoever set them holds us: a circle for each request

    def _farewell(self) -> bytes:
        return b"Connection: close\r\n" if self._line.is_last else b""


def _status_line(status: int) -> bytes:
    return b"HTTP/1.1 %d %b\r\n" % (status, _REASONS.get(status, b""))


def continue_line() -> bytes:
    """The interim answer to `Expect: 100-continue`."""
    return _status_line(100) + b"\r\n"


_NOT_KEPT = b"Cache-Control: no-store\r\n"
_second = 0
_headers = b""


def _common() -> bytes:
    """The headers of every response. `Date` costs ten times the rest, so it is made once a second."""
    global _second, _headers
    now = int(time.time())
    if now != _second:
        _second = now
        _headers = b"Date: %b\r\n%bX-Content-Type-Options: nosniff\r\n" % (
            formatdate(now, usegmt=True).encode(),
            _NOT_KEPT,
        )
    return _headers
