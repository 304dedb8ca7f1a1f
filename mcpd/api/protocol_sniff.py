"""The Unix socket's first byte chooses the language: a capital letter begins HTTP, all else is lines."""

from __future__ import annotations

import socket as sockets

import trio

from mcpd.api.connection_limit import socket_limit


class _UndecidedConnection:
    """A connection that has said nothing yet, and may lose its seat."""

    def __init__(self) -> None:
        self.idle_since: float | None = trio.current_time()
        self.scope = trio.CancelScope()

    def evict(self, reason: str) -> None:
        self.scope.cancel(reason=reason)


async def speaks_http(connection: sockets.socket) -> bool | None:
    """Wait for the first byte, and leave it there. None: the client is gone, or had to go."""
    undecided = _UndecidedConnection()
    with undecided.scope, socket_limit.held_by(undecided):
        while True:
            try:
                first = connection.recv(1, sockets.MSG_PEEK)
            except BlockingIOError:
                await trio.lowlevel.wait_readable(connection)
            except OSError:
                return None
            else:
                return b"A" <= first <= b"Z" if first else None
    return None
