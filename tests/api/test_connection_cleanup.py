"""The end of a connection on the socket: its calls may still start tasks."""

from __future__ import annotations

import socket
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import trio

from mcpd.api.listeners import ConnectionLimit, Slot
from mcpd.api.socket_connection import SocketConnection
from mcpd.state.clients import ClientRegistry


async def test_session_is_closed_while_its_calls_can_still_start_tasks() -> None:
    """A server's response may arrive in the last round of the scheduler, and its call may need a task."""
    closed: list[str] = []

    def open_session(view: object, client: object, tell: Callable[[bytes], None], spawn: Any) -> Any:
        def close(reason: str) -> None:
            spawn(trio.lowlevel.checkpoint)
            closed.append(reason)

        def receive(message: object, reply: object) -> None:
            tell(b"{}\n")

        return SimpleNamespace(is_busy=False, accepts_batches=False, receive=receive, close=close)

    gateway: Any = SimpleNamespace(
        core=SimpleNamespace(clients=ClientRegistry()),
        calls=SimpleNamespace(
            cancel_all=lambda calls, reason: None, on_caller_left=lambda caller: closed.append("control")
        ),
        view=lambda: SimpleNamespace(single=None),
        open_session=open_session,
    )
    near, far = socket.socketpair()
    near.setblocking(False)
    far.setblocking(False)
    with near, far, trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(SocketConnection(gateway, near, 7, Slot(ConnectionLimit("unix"), 0)).run)
            far.send(b'{"jsonrpc":"2.0","id":1,"method":"initialize"}\n')
            await trio.lowlevel.wait_readable(far)
            assert far.recv(65536)
            far.close()  # closing a socket with unread data resets the connection
    assert closed == ["control", "the client left"]
