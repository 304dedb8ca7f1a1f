"""The end of a connection: its calls may still start tasks."""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import trio

from mcpd.api.http.connection import BodyBudget, HttpServerConnection, SpawnTask
from mcpd.api.http.exchange import HttpExchange, ServeRequest
from mcpd.api.http.parser import MAX_BODY, Admission, Head
from mcpd.api.listeners import ConnectionLimit, Slot
from mcpd.api.socket_connection import SocketConnection
from mcpd.state.clients import ClientRegistry

BOUND = 60.0


async def serve(
    make: Callable[[socket.socket], SocketConnection | HttpServerConnection], said: bytes
) -> None:
    """Serve one client that sends this data, reads, and leaves."""
    near, far = socket.socketpair()
    near.setblocking(False)
    far.setblocking(False)
    with near, far, trio.fail_after(BOUND):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(make(near).run)
            far.send(said)
            await trio.lowlevel.wait_readable(far)
            assert far.recv(65536)
            far.close()  # closing a socket with unread data resets the connection


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
    await serve(lambda near: SocketConnection(gateway, near, 7, Slot(ConnectionLimit("unix"), 0)), said)
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

    await serve(make, b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
    assert closed == ["the client left"]
