"""A request and its response, which is sent whole or as a stream, at any later time."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from email.utils import formatdate
from http import HTTPStatus
from typing import Protocol

import msgspec
import trio

from mcpd.api.http.parser import Head

JSON = b"application/json"
TEXT = b"text/plain; charset=utf-8"
_REASONS = {status.value: status.phrase.encode() for status in HTTPStatus}
_LARGE = 1 << 20
"""Bytes of a body that is not copied to join it with what surrounds it."""
ServeUpgraded = Callable[[trio.abc.Stream], Awaitable[None]]
"""Serves an upgraded connection until it returns."""


class ResponseChannel(Protocol):
    """The connection that carries a response."""

    is_last: bool
    """This is the last response of the connection; it is sent with `Connection: close`."""

    def put(self, data: bytes) -> None: ...
    def upgrade(self, serve: ServeUpgraded) -> None: ...
    def ended(self, exchange: HttpExchange) -> None: ...


class HttpExchange(msgspec.Struct, eq=False):
    """A complete request and its response: call `respond` once, or `stream`, `write` and `end`.

    The methods do not block or raise, and do nothing once the client has disconnected or the response has
    ended. To respond later, set `on_hang_up`, and `on_quiet` to send keep-alive data.
    """

    _channel: ResponseChannel
    head: Head
    is_finished: bool = False
    is_streaming: bool = False
    """Whether the head of a streamed response was sent, so that the status is final."""
    on_hang_up: Callable[[str], None] | None = None
    """Called once, with the reason, if the connection ends before the response."""
    on_quiet: Callable[[], None] | None = None
    """Called after `connection.QUIET_INTERVAL` without output."""

    def respond(
        self, status: int, body: bytes = b"", content_type: bytes = JSON, headers: bytes = b""
    ) -> None:
        """Send the whole response. `headers`: complete lines, each with its CRLF."""
        if self.is_finished or self.is_streaming:
            return
        self._finish()
        channel, is_head = self._channel, self.head.method == "HEAD"
        if len(body) > _LARGE and not is_head:
            channel.put(self._head_of(status, body, content_type, headers))
            channel.put(body)
        elif status == 200 and not headers and not channel.is_last and not is_head:
            channel.put(
                b"HTTP/1.1 200 OK\r\n%bContent-Type: %b\r\nContent-Length: %d\r\n\r\n%b"
                % (_common_headers(), content_type, len(body), body)
            )
        else:
            head = self._head_of(status, body, content_type, headers)
            channel.put(head + (b"" if is_head else body))
        channel.ended(self)

    def _head_of(self, status: int, body: bytes, content_type: bytes, headers: bytes) -> bytes:
        """Return the head of a response with this body, with the empty line at its end."""
        length = b"" if status == 204 else b"Content-Length: %d\r\n" % len(body)
        typed = b"Content-Type: %b\r\n" % content_type if body else b""
        start = _status_line(status) + _common_headers()
        return start + typed + length + headers + self._connection_header() + b"\r\n"

    def redirect(self) -> None:
        """Ask the client to send the same request again, on a new connection."""
        self._channel.is_last = True
        query = f"?{self.head.query}" if self.head.query else ""
        self.respond(307, headers=f"Location: {self.head.path}{query}\r\n".encode("latin-1"))

    def stream(self, content_type: bytes, headers: bytes = b"") -> None:
        """Start a response of unknown length, with status 200. No-op if it was started already."""
        if self.is_finished or self.is_streaming:
            return
        self.is_streaming = True
        if self.head.is_11:
            headers += b"Transfer-Encoding: chunked\r\n"
        else:
            self._channel.is_last = True
        head = b"HTTP/1.1 200 OK\r\n%bContent-Type: %b\r\n" % (_common_headers(), content_type)
        self._channel.put(head + headers + self._connection_header() + b"\r\n")

    def write(self, data: bytes) -> None:
        """Send a part of the stream; `data` must not be empty."""
        if not self.is_finished and self.head.method != "HEAD":
            self._channel.put(b"%x\r\n%b\r\n" % (len(data), data) if self.head.is_11 else data)

    def upgrade(self, serve: ServeUpgraded) -> None:
        """Switch protocols: `serve` sends the response and owns the stream until it returns.

        Then the connection ends; `serve` may close the stream, but need not.
        """
        if not self.is_finished and not self.is_streaming:
            self.is_streaming = True
            self._channel.upgrade(serve)

    def end(self) -> None:
        """End the stream."""
        if not self.is_finished:
            self._finish()
            if self.is_streaming and self.head.is_11 and self.head.method != "HEAD":
                self._channel.put(b"0\r\n\r\n")
            self._channel.ended(self)

    def hang_up(self, reason: str) -> None:
        """Called by the connection when the client has disconnected."""
        if not self.is_finished:
            on_hang_up = self.on_hang_up
            self._finish()
            if on_hang_up is not None:
                on_hang_up(reason)

    def _finish(self) -> None:
        self.is_finished = True
        self.on_hang_up = self.on_quiet = None  # breaks the reference cycle of each request

    def _connection_header(self) -> bytes:
        return b"Connection: close\r\n" if self._channel.is_last else b""


ServeRequest = Callable[[bytes, HttpExchange], None]
"""Responds to a request with this body, now or later. Must not block or raise."""


def _status_line(status: int) -> bytes:
    return b"HTTP/1.1 %d %b\r\n" % (status, _REASONS.get(status, b""))


def continue_line() -> bytes:
    """Return the interim response to `Expect: 100-continue`."""
    return _status_line(100) + b"\r\n"


_second = 0
_headers = b""


def _common_headers() -> bytes:
    """Return the headers of every response. They are cached for a second, since formatting `Date` is slow."""
    global _second, _headers
    now = int(time.time())
    if now != _second:
        _second = now
        _headers = b"Date: %b\r\nCache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\n" % (
            formatdate(now, usegmt=True).encode()
        )
    return _headers
