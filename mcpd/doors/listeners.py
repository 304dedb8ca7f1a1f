"""Where clients come in: the Unix socket, made by us or handed over by systemd, for our own user only."""

from __future__ import annotations

import logging
import os
import socket as sockets
import struct
from collections.abc import Awaitable, Callable

import trio

from mcpd.doors.seats import MAX_CLIENTS, seats

log = logging.getLogger("mcpd.listeners")

_BACKLOG = 128
_SO_PEERCRED_SIZE = struct.calcsize("3i")


def bind_unix(path: str) -> sockets.socket:
    """A listening socket at `path`, mode 0600. Whoever calls has made sure that nobody else listens."""
    listener = sockets.socket(sockets.AF_UNIX, sockets.SOCK_STREAM)
    old = os.umask(0o177)
    try:
        listener.bind(path)
    except OSError:
        listener.close()
        raise
    finally:
        os.umask(old)
    listener.listen(_BACKLOG)
    return listener


def adopt_fd(fd: int) -> sockets.socket:
    """A listening socket that systemd opened."""
    return sockets.socket(fileno=fd)


async def serve(
    listener: sockets.socket,
    handle: Callable[[sockets.socket, int], Awaitable[None]],
    clients: trio.Nursery,
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Accept until cancelled; `handle(connection, peer's pid)` runs in `clients` and owns the connection.

    A peer of another user is refused before a byte is read. With all seats taken, the client that has
    been idle longest has to go; while all are busy, new ones wait.
    """
    room = trio.CapacityLimiter(MAX_CLIENTS)
    listener.setblocking(False)

    async def served(connection: sockets.socket, pid: int) -> None:
        try:
            await handle(connection, pid)
        finally:
            connection.close()
            room.release_on_behalf_of(connection)

    with listener:
        task_status.started()
        while True:
            await trio.lowlevel.wait_readable(listener)
            try:
                while True:  # all who wait: coming back for each would serve the last one late
                    connection, _ = listener.accept()
                    pid = _admitted(connection)
                    if pid is None:
                        continue
                    if not room.available_tokens:
                        seats.free_one()
                        await room.acquire_on_behalf_of(connection)
                    else:
                        room.acquire_on_behalf_of_nowait(connection)
                    clients.start_soon(served, connection, pid, name=f"client {pid}")
            except BlockingIOError:
                continue
            except OSError as error:
                # Out of descriptors, most likely. Accepting again at once would spin.
                log.error("cannot accept a client: %s", error.strerror or error)
                await trio.sleep(0.1)


def _admitted(connection: sockets.socket) -> int | None:
    """The peer's pid; None when it is another user's, and the connection is closed."""
    connection.setblocking(False)
    pid, uid = peer(connection)
    if uid == os.getuid():
        return pid
    log.warning("refused a client of uid %d (pid %d): this socket is for uid %d", uid, pid, os.getuid())
    connection.close()
    return None


def peer(connection: sockets.socket) -> tuple[int, int]:
    """The pid and uid of the process at the other end, as the kernel knows them."""
    data = connection.getsockopt(sockets.SOL_SOCKET, sockets.SO_PEERCRED, _SO_PEERCRED_SIZE)
    pid, uid, _ = struct.unpack("3i", data)
    return pid, uid
