"""Keep-alive connections to one server on a loopback address, over plain HTTP/1.1.

httpx sends everything else; see `network_transport`. This pool exists for speed. Through the daemon, on two
busy cores, one call at a time to a stub server took 0.2 ms on this pool and 1.5 ms with httpx. With 64 calls
in flight, this pool carried 6,000 calls per second and httpx 700. `send_with_callback` is worth 40% of it: on
two idle cores, a call took 0.26 ms with it and 0.43 ms with a task.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from functools import partial

import httpx
import trio

from mcpd.transports.http_client.connection import Abort, HTTP11Connection, NothingSent, OnOutcome
from mcpd.transports.http_client.dial import CONNECT_TIMEOUT, STREAM_ERRORS, open_tcp

MAX_IDLE = 64
"""Idle connections that are kept; further ones are closed."""
_MAX_IMMEDIATE_BODY = 1 << 16
"""Larger bodies may exceed the socket's buffer."""

_WATCHED_AFTER = 0.25
"""Seconds until the end of an idle connection is watched for: one in constant use need not be."""
_SHORT = 2.0
"""Seconds. A server that closes a new connection sooner keeps none that is idle."""

_TOKEN = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_LINE_ENDS = re.compile(rb"[\r\n\x00]")


class ConnectionPool:
    """A connection is opened whenever none is idle: the caller limits the number of concurrent requests.

    A request is sent once. Only if a kept connection was closed before any byte of it was sent, the request
    is sent on another connection. `head` is what `serialize_head` returns.
    """

    def __init__(self, url: httpx.URL) -> None:
        self._host, self._port = url.host, url.port or 80
        self._idle: list[HTTP11Connection] = []
        self._closed = False
        self._changed: trio.Event | None = None
        """Set when an idle connection is kept, or has ended, while `watch_idle` waits for that."""

    async def send(self, method: str, head: bytes, body: bytes) -> httpx.Response:
        """Return the response with its body unread; the caller closes it. Raises httpx.TransportError."""
        head = _add_length(method, head, body)
        while (connection := self._take_idle()) is not None:
            try:
                return await connection.send(method, head, body)
            except NothingSent:
                pass
        try:
            return await (await self._connect()).send(method, head, body)
        except NothingSent as error:
            raise httpx.ConnectError(str(error)) from error

    def send_with_callback(self, method: str, head: bytes, body: bytes, then: OnOutcome) -> Abort | None:
        """Send a request without a task, if an idle connection can take all of it immediately.

        Returns None if nothing was sent; use `send` then. `then` is called in the reader hub with the
        response, once its head has arrived, or with the error; it must not block or raise. The returned
        function aborts the request; `then` is not called after that.
        """
        if len(body) > _MAX_IMMEDIATE_BODY:
            return None
        head = _add_length(method, head, body)
        while (connection := self._take_idle()) is not None:
            try:
                return connection.send_with_callback(method, head, body, then)
            except NothingSent:
                connection.close()
        return None

    def _take_idle(self) -> HTTP11Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.is_watched:
                connection.stop_watching()
            if connection.is_available():
                return connection
            connection.close()
        return None

    async def watch_idle(self, is_busy: Callable[[], bool]) -> httpx.TransportError:
        """Return why the server cannot be connected to, once it has closed the last idle connection and
        `is_busy()` is false.

        The server may only have closed it because it was idle. Therefore another one is opened, and watched
        instead, unless the server closes such a connection immediately.
        """
        opened_at = -math.inf
        while True:
            self._changed = trio.Event()
            for connection in self._idle:
                if not connection.is_watched:
                    connection.watch_idle(partial(self._on_idle_end, connection))
            await self._changed.wait()
            await trio.sleep(_WATCHED_AFTER if self._idle else 0)
            while not self._idle and not is_busy():
                try:
                    connection = await self._connect()
                except httpx.TransportError as error:
                    if not is_busy():
                        return error
                    continue
                lasted, opened_at = trio.current_time() - opened_at, trio.current_time()
                if lasted < _SHORT:
                    connection.close()
                    break
                connection.keep()
                self._idle.append(connection)

    def _on_idle_end(self, connection: HTTP11Connection) -> None:
        if connection in self._idle:
            self._idle.remove(connection)
        self._report_change()

    def _report_change(self) -> None:
        if self._changed is not None:
            self._changed.set()
            self._changed = None

    async def _connect(self) -> HTTP11Connection:
        try:
            with trio.fail_after(CONNECT_TIMEOUT):
                return HTTP11Connection(await open_tcp(self._host, self._port), self._return)
        except trio.TooSlowError as error:
            raise httpx.ConnectTimeout(f"no connection within {CONNECT_TIMEOUT:g} s") from error
        except STREAM_ERRORS as error:
            raise httpx.ConnectError(str(error)) from error

    def _return(self, connection: HTTP11Connection) -> None:
        """Keep a connection for reuse. The oldest ones, which the server may have closed, are dropped."""
        while self._idle and not self._idle[0].is_available():
            self._idle.pop(0).close()
        if self._closed or len(self._idle) >= MAX_IDLE:
            connection.close()
        else:
            self._idle.append(connection)
            if self._changed is not None:
                self._report_change()

    def close(self) -> None:
        """Close the idle connections; others close when their response ends."""
        self._closed = True
        while self._idle:
            self._idle.pop().close()


def serialize_head(request: httpx.Request) -> bytes:
    """Return the request line and the headers, which must not state a length, without the blank line.

    Raises httpx.LocalProtocolError if a header is invalid.
    """
    raw = request.headers.raw
    lines = [b"%b %b HTTP/1.1" % (request.method.encode("ascii"), request.url.raw_path)]
    for name, value in raw:
        if not _TOKEN.fullmatch(name):
            raise httpx.LocalProtocolError(f"invalid header name: {name!r}")
        lines.append(b"%b: %b" % (name, value))
    head = b"\r\n".join(lines)
    if len(_LINE_ENDS.findall(head)) != 2 * len(raw):
        raise httpx.LocalProtocolError("a header contains a line break")
    return head + b"\r\n"


def _add_length(method: str, head: bytes, body: bytes) -> bytes:
    return head + (b"Content-Length: %d\r\n\r\n" % len(body) if body or method == "POST" else b"\r\n")
