"""A connection that is over is gone: no circle keeps it, and all it was made of, until the collector comes.

Clients come and go by the thousand, a shell's prompt among them. What they left was not looked at before
there were twenty thousand objects of it: megabytes that had to be there for nothing.
"""

from __future__ import annotations

import gc
import socket
import weakref
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from mcpd.api.http_server.connection import HttpServerConnection, SpawnTask
from mcpd.api.http_server.http_exchange import HttpExchange
from mcpd.api.http_server.parser import Head
from mcpd.api.listeners import LruConnectionLimit
from mcpd.api.socket_connection import SocketConnection
from mcpd.client_registry import ClientRegistry

BOUND = 60.0


@pytest.fixture(autouse=True)
def _no_collector() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


async def ended(make: Callable[[socket.socket], Any], said: bytes, *, reads: bool = True) -> Any:
    """What is left of a connection whose client said this, waited for an answer or not, and left."""
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
            far.close()  # with something unread it is a reset
    await trio.lowlevel.checkpoint()
    return seen[0]()


class Talk:
    """A session as a connection sees it: it holds what it was given."""

    is_busy = False
    accepts_batches = False

    def __init__(self, tell: Callable[[bytes], None], spawn: object) -> None:
        self.tell = tell
        self.spawn = spawn

    def receive(self, message: object, reply: object) -> None:
        self.tell(b"{}\n")

    def close(self, reason: str) -> None:
        """Nothing is under way."""


@pytest.mark.parametrize("reads", [True, False])
@pytest.mark.parametrize("method", ["mcpd/nonsense", "initialize"])
async def test_closed_socket_connection_is_freed_immediately(method: str, reads: bool) -> None:
    """Whatever it spoke, and whether it left in order or in the middle of an answer."""
    gateway: Any = SimpleNamespace(
        core=SimpleNamespace(clients=ClientRegistry()),
        view=lambda: SimpleNamespace(single=None),
        open_session=lambda view, client, tell, spawn: Talk(tell, spawn),
    )
    said = b'{"jsonrpc":"2.0","id":1,"method":"%b"}\n' % method.encode()
    assert (
        await ended(lambda near: SocketConnection(gateway, near, 7, LruConnectionLimit()), said, reads=reads)
        is None
    )


class Handler:
    """Holds on to its connection, and each reply to its request."""

    def __init__(self, spawn: SpawnTask) -> None:
        self.spawn = spawn

    def admit(self, head: Head) -> None:
        """All are let in."""

    def handle(self, head: Head, body: bytes, exchange: HttpExchange) -> None:
        Reply(exchange).finish()

    def closed(self, reason: str) -> None:
        """Nothing is under way."""


class Reply:
    def __init__(self, exchange: HttpExchange) -> None:
        self.exchange = exchange
        exchange.on_hang_up = self.hung_up
        exchange.on_quiet = exchange.end

    def finish(self) -> None:
        self.exchange.respond(200, b"yes")

    def hung_up(self, reason: str) -> None:
        """Nothing to be done."""


@pytest.mark.parametrize("reads", [True, False])
@pytest.mark.parametrize(
    "said",
    [b"GET / HTTP/1.1\r\nHost: h\r\n\r\n", b"GET / HTTP/1.0\r\n\r\n", b"nonsense\r\n\r\n"],
    ids=["keeps it open", "one request", "not HTTP"],
)
async def test_closed_http_connection_is_freed_immediately(said: bytes, reads: bool) -> None:
    """Whether it would have gone on, and whether it waited."""

    def make(near: socket.socket) -> HttpServerConnection:
        return HttpServerConnection(near, Handler, "a test", LruConnectionLimit())

    assert await ended(make, said, reads=reads) is None
