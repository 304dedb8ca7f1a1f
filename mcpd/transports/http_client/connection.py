"""One persistent connection to an HTTP/1.1 server: a request, its response, then the next of both."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import AsyncIterator, Callable

import httpx
import trio

from mcpd.support.reader import LINGER, is_readable, traffic, unwatch, watch
from mcpd.support.suspend_detection import boottime
from mcpd.transports.http_client.dial import BROKEN, beneath
from mcpd.wire.http1 import BadResponse, Http1Response

JOINED = 1 << 16
"""A body up to this leaves with its headers in one write."""
_WRITE_TIMEOUT = 30.0
_IDLE_FOR = 60.0
"""Seconds; most servers and proxies close what is idle for longer."""
_READ_SMALL, _READ_LARGE = 1 << 16, 1 << 20

Then = Callable[[httpx.Response | httpx.TransportError], None]
HangUp = Callable[[], None]


class NothingLeft(Exception):
    """The connection was closed before a byte of the request left."""


class Connection:
    """One stream; `ask` or `begin` is called when the last response is over, which `give_back` has told."""

    def __init__(self, stream: trio.abc.Stream, give_back: Callable[[Connection], None]) -> None:
        self._stream = stream
        self._give_back = give_back
        self._socket = beneath(stream)
        self._plain = isinstance(stream, trio.SocketStream)
        self.fd = self._socket.fileno()
        self._expires = 0.0
        self._size = _READ_SMALL
        self._then: Then | None = None
        self._begun = Http1Response()
        self._begun_at = 0.0
        self._prompt = False
        """Whether the last answer came so soon that looking on for the next is worth it."""

    def is_usable(self) -> bool:
        """An idle connection on which something can be read has been closed, or is out of step."""
        return boottime() < self._expires and not is_readable(self.fd)

    def close(self) -> None:
        """At once, without a word."""
        if self._then is not None:
            self._then = None
            unwatch(self)
        self._socket.close()

    # ── without a task ──────────────────────────────────────────────────────────────────────────

    def begin(self, method: str, request: bytes, then: Then) -> HangUp:
        """See `Engine.begin`. Raises NothingLeft, also when not all of it can leave at once."""
        try:
            sent = os.write(self.fd, request)
        except OSError as error:
            raise NothingLeft(str(error)) from error
        if sent < len(request):  # never seen; half a request is none, when the connection ends in it
            raise NothingLeft("not all at once")
        self._begun, self._then = Http1Response(method), then
        watch(self)
        self._begun_at = time.monotonic()
        if self._prompt:
            traffic.more_expected = True

        def hang_up() -> None:
            if self._then is then:  # else it is over, and the connection may be another request's
                self.close()

        return hang_up

    def on_readable(self) -> bool:
        """Part of the response: its head, most of the time all of it."""
        then, response = self._then, self._begun
        if then is None:
            return False
        try:
            parts = self._take(self._read_now(), response)
        except BlockingIOError:
            return True
        except (OSError, httpx.TransportError) as error:
            self.close()
            failed = error if isinstance(error, httpx.TransportError) else httpx.ReadError(str(error))
            failed.__cause__ = failed.__cause__ or error
            then(failed)
            return False
        if not response.status:
            return True
        self._prompt = time.monotonic() - self._begun_at < LINGER
        self._then = None
        unwatch(self)
        if response.complete:
            self._over(response)
        then(_httpx(response, Body(self, response, parts)))
        return self._then is not None  # the next request may have been sent from within

    async def ask(self, method: str, head: bytes, body: bytes) -> httpx.Response:
        """The response as soon as its head is there. Raises NothingLeft, httpx.TransportError."""
        response = Http1Response(method)
        try:
            if len(body) <= JOINED:
                await self._send(head + body)
            else:
                await self._send(head)
                await self._send(memoryview(body))
            parts = await self.more(response)
            while not response.status:
                parts = await self.more(response)
        except BaseException:
            self.close()
            raise
        return _httpx(response, Body(self, response, parts))

    async def more(self, response: Http1Response) -> list[bytes]:
        """Read once. The connection is given back with the end of the response, or closed."""
        parts = self._take(await self._receive(), response)
        if response.complete:
            self._over(response)
        return parts

    def _take(self, data: bytes, response: Http1Response) -> list[bytes]:
        try:
            if data:
                return response.feed(data)
            response.end()
        except BadResponse as error:
            self.close()
            raise httpx.RemoteProtocolError(str(error)) from error
        return []

    def _over(self, response: Http1Response) -> None:
        if not response.reusable:
            self.close()
            return
        kept = (
            _IDLE_FOR
            if response.keep_alive_timeout is None
            else min(response.keep_alive_timeout - 1, _IDLE_FOR)
        )
        self._expires = boottime() + kept
        self._give_back(self)

    # ── bytes ───────────────────────────────────────────────────────────────────────────────────

    async def _send(self, data: bytes | memoryview) -> None:
        """What does not arrive any more is no error here: the server may have answered before it closed."""
        sent = 0
        if self._plain:  # at once, without a trip through the scheduler
            try:
                sent = os.write(self.fd, data)
            except BlockingIOError:
                pass
            except OSError as error:
                if isinstance(data, bytes):  # with the head: the server cannot know of it
                    raise NothingLeft(str(error)) from error
                return
        if sent < len(data):
            try:
                with trio.fail_after(_WRITE_TIMEOUT):
                    await self._stream.send_all(memoryview(data)[sent:])
            except trio.TooSlowError as error:
                words = f"the server has not read its request for {_WRITE_TIMEOUT:g} s"
                raise httpx.WriteTimeout(words) from error
            except BROKEN:
                pass

    async def _receive(self) -> bytes:
        try:
            if self._plain:
                while True:
                    await trio.lowlevel.wait_readable(self.fd)
                    try:
                        return self._read_now()
                    except BlockingIOError:
                        continue
            return bytes(await self._stream.receive_some(_READ_SMALL))
        except BROKEN as error:
            self.close()
            raise httpx.ReadError(str(error) or type(error).__name__) from error

    def _read_now(self) -> bytes:
        data = os.read(self.fd, self._size)
        self._size = _READ_LARGE if len(data) == self._size else _READ_SMALL
        return data


def _httpx(response: Http1Response, body: Body) -> httpx.Response:
    return httpx.Response(
        response.status,
        headers=response.headers,
        stream=body,
        extensions={"http_version": b"HTTP/1.1", "reason_phrase": response.reason},
    )


class Body(httpx.AsyncByteStream):
    """A response's body, undecoded, as it comes. Closed early, it takes its connection with it."""

    def __init__(self, connection: Connection, response: Http1Response, parts: list[bytes]) -> None:
        self._connection = connection
        self._response = response
        self._parts = deque(parts)

    def whole(self) -> bytes | None:
        """All of it, when it is there already."""
        return b"".join(self._parts) if self._response.complete else None

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        while not self._parts:
            if self._response.complete:
                raise StopAsyncIteration
            try:
                self._parts.extend(await self._connection.more(self._response))
            except BaseException:
                self._connection.close()
                raise
        return self._parts.popleft()

    async def aclose(self) -> None:
        if not self._response.complete:
            self._connection.close()
