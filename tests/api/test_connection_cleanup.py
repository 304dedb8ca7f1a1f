"""A closed connection is freed by reference counting, without the garbage collector.

Thousands of clients connect and disconnect, for example from a shell prompt. If each left a reference cycle,
megabytes would stay allocated until the collector runs.
"""

from __future__ import annotations

import gc
import socket
import weakref
from collections.abc import Awaitable, Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from mcpd.api.http.connection import BodyBudget, HttpServerConnection, SpawnTask
from mcpd.api.http.exchange import HttpExchange, ServeRequest
from mcpd.api.http.parser import MAX_BODY, Admission, Head
from mcpd.api.listeners import ConnectionLimit, Slot
from mcpd.api.socket_connection import SocketConnection
from mcpd.client_registry import ClientRegistry

BOUND = 60.0


@pytest.fixture(autouse=True)
def _no_collector() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


async def ended(make: Callable[[socket.socket], Any], said: bytes, *, reads: bool = True) -> Any:
    """Serve one client that sends this data, and return the objects left of its connection afterwards."""
    near, far = socket.socketpair()
    near.setblocking(False)
    far.setblocking(False)
    seen: list[weakref.ref[Any]] = []

    async def serve() -> None:
        connection = make(near)
        seen.append(weakref.ref(connection))
        await connection.run()
        near.close()

    with trio.fail_after(BOUND):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve)
            far.send(said)
            await trio.lowlevel.wait_readable(far)
            if reads:
                assert far.recv(65536)
            far.close()  # closing a socket with unread data resets the connection
    await trio.lowlevel.checkpoint()
    return seen[0]()


class Talk:
    """A session as a connection sees it: it keeps what it was given."""

    is_busy = False
    accepts_batches = False

    def __init__(self, tell: Callable[[bytes], None], spawn: object) -> None:
        self.tell = tell
        self.spawn = spawn

    def receive(self, message: object, reply: object) -> None:
        self.tell(b"{}\n")

    def close(self, reason: str) -> None:
        """Do nothing: there is no call in flight."""


@pytest.mark.parametrize("reads", [True, False])
@pytest.mark.parametrize("method", ["mcpd/nonsense", "initialize"])
async def test_closed_socket_connection_is_freed_immediately(method: str, reads: bool) -> None:
    """For each method, whether the client disconnects between requests or during a response."""
    gateway: Any = SimpleNamespace(
        core=SimpleNamespace(clients=ClientRegistry()),
        calls=SimpleNamespace(cancel_all=lambda calls, reason: None),
        view=lambda: SimpleNamespace(single=None),
        open_session=lambda view, client, tell, spawn: Talk(tell, spawn),
    )
    said = b'{"jsonrpc":"2.0","id":1,"method":"%b"}\n' % method.encode()
    assert (
        await ended(
            lambda near: SocketConnection(gateway, near, 7, Slot(ConnectionLimit("unix"), 0)),
            said,
            reads=reads,
        )
        is None
    )


class Handler:
    """A handler that keeps its connection, and each exchange of its request."""

    def __init__(self, spawn: SpawnTask) -> None:
        self.spawn = spawn

    def admit(self, head: Head) -> Admission:
        return Admission(MAX_BODY, True)

    def route(self, head: Head) -> ServeRequest:
        return self.serve

    def serve(self, body: bytes, exchange: HttpExchange) -> None:
        Reply(exchange).finish()

    def closed(self, reason: str) -> None:
        """Do nothing: there is no call in flight."""


class Reply:
    def __init__(self, exchange: HttpExchange) -> None:
        self.exchange = exchange
        exchange.on_hang_up = self.hung_up
        exchange.on_quiet = exchange.end

    def finish(self) -> None:
        self.exchange.respond(200, b"yes")

    def hung_up(self, reason: str) -> None:
        """Do nothing."""


@pytest.mark.parametrize("reads", [True, False])
@pytest.mark.parametrize(
    "said",
    [b"GET / HTTP/1.1\r\nHost: h\r\n\r\n", b"GET / HTTP/1.0\r\n\r\n", b"nonsense\r\n\r\n"],
    ids=["keep-alive", "connection close", "invalid request"],
)
async def test_closed_http_connection_is_freed_immediately(said: bytes, reads: bool) -> None:
    """For a persistent, a closing and an invalid connection, whether the client reads the response or not."""

    def make(near: socket.socket) -> HttpServerConnection:
        return HttpServerConnection(near, Handler, "a test", Slot(ConnectionLimit("unix"), 0), BodyBudget())

    assert await ended(make, said, reads=reads) is None


async def nothing() -> None:
    """Work of a call."""


async def test_session_is_closed_while_its_calls_can_still_start_tasks() -> None:
    """A server's response may arrive in the last round of the scheduler, and its call may need a task."""
    closed: list[str] = []

    class Starting(Talk):
        spawn: Callable[[Callable[[], Awaitable[None]]], None]

        def close(self, reason: str) -> None:
            self.spawn(nothing)
            closed.append(reason)

    gateway: Any = SimpleNamespace(
        core=SimpleNamespace(clients=ClientRegistry()),
        calls=SimpleNamespace(cancel_all=lambda calls, reason: None),
        view=lambda: SimpleNamespace(single=None),
        open_session=lambda view, client, tell, spawn: Starting(tell, spawn),
    )
    said = b'{"jsonrpc":"2.0","id":1,"method":"initialize"}\n'
    await ended(lambda near: SocketConnection(gateway, near, 7, Slot(ConnectionLimit("unix"), 0)), said)
    assert closed == ["the client left"]


async def test_handler_is_closed_while_its_calls_can_still_start_tasks() -> None:
    """As with sessions on the socket."""
    closed: list[str] = []

    class Starting(Handler):
        def closed(self, reason: str) -> None:
            self.spawn(nothing)
            closed.append(reason)

    def make(near: socket.socket) -> HttpServerConnection:
        return HttpServerConnection(near, Starting, "a test", Slot(ConnectionLimit("unix"), 0), BodyBudget())

    await ended(make, b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
    assert closed == ["the client left"]
