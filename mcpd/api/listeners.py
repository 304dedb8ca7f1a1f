"""Where clients come in: the Unix socket and a port of this machine, made by us or handed over by systemd."""

from __future__ import annotations

import errno
import ipaddress
import logging
import os
import socket as sockets
import struct
from collections.abc import Awaitable, Callable

import trio

from mcpd.api.connection_limit import MAX_CLIENTS, LruConnectionLimit
from mcpd.config.settings import Address

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


def bind_tcp(address: Address) -> sockets.socket:
    """A listening socket at a loopback address. Raises OSError."""
    listener = sockets.socket(sockets.AF_INET6 if ":" in address.host else sockets.AF_INET)
    try:
        listener.setsockopt(sockets.SOL_SOCKET, sockets.SO_REUSEADDR, 1)
        # Inherited by what is accepted: an answer must not wait for the acknowledgement of the one before.
        listener.setsockopt(sockets.IPPROTO_TCP, sockets.TCP_NODELAY, 1)
        listener.bind((address.host, address.port))
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        advice = (
            "choose another port, or end the program that has it" if error.errno == errno.EADDRINUSE else ""
        )
        message = f"cannot listen on {address} for HTTP: {error.strerror}{advice and f' ({advice})'}"
        raise OSError(error.errno, message) from None
    return listener


def adopt_fd(fd: int) -> sockets.socket:
    """A listening socket that systemd opened. Raises OSError for a port that others can reach."""
    listener = sockets.socket(fileno=fd)
    if listener.family != sockets.AF_UNIX:
        host = str(listener.getsockname()[0])
        if not ipaddress.ip_address(host).is_loopback:
            listener.close()
            raise PermissionError(errno.EPERM, f"systemd was told to listen on {host}; only loopback is safe")
        listener.setsockopt(sockets.IPPROTO_TCP, sockets.TCP_NODELAY, 1)
    return listener


async def serve(
    listener: sockets.socket,
    handle: Callable[[sockets.socket, int], Awaitable[None]],
    clients: trio.Nursery,
    limit: LruConnectionLimit,
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Accept until cancelled; `handle(connection, peer's pid)` runs in `clients` and owns the connection.

    A peer of another user is refused before a byte is read; of a port's peer we know nothing, and its pid
    is 0. With all seats taken, the client that has been idle longest has to go; while all are busy, new ones
    wait.
    """
    slots = trio.CapacityLimiter(MAX_CLIENTS)
    listener.setblocking(False)

    async def served(connection: sockets.socket, pid: int) -> None:
        try:
            await handle(connection, pid)
        finally:
            connection.close()
            slots.release_on_behalf_of(connection)

    with listener:
        task_status.started()
        while True:
            await trio.lowlevel.wait_readable(listener)
            try:
                while True:  # all who wait: coming back for each would serve the last one late
                    connection, _ = listener.accept()
                    pid = _accept_peer(connection)
                    if pid is None:
                        continue
                    if not slots.available_tokens:
                        limit.evict_idlest()
                        await slots.acquire_on_behalf_of(connection)
                    else:
                        slots.acquire_on_behalf_of_nowait(connection)
                    clients.start_soon(served, connection, pid, name=f"client {pid}")
            except BlockingIOError:
                continue
            except OSError as error:
                # Out of descriptors, most likely. Accepting again at once would spin.
                log.error("cannot accept a client: %s", error.strerror or error)
                await trio.sleep(0.1)


def _accept_peer(connection: sockets.socket) -> int | None:
    """The peer's pid; None when it is another user's, and the connection is closed."""
    connection.setblocking(False)
    if connection.family != sockets.AF_UNIX:
        return 0
    pid, uid = peer_credentials(connection)
    if uid == os.getuid():
        return pid
    log.warning("refused a client of uid %d (pid %d): this socket is for uid %d", uid, pid, os.getuid())
    connection.close()
    return None


def peer_credentials(connection: sockets.socket) -> tuple[int, int]:
    """The pid and uid of the process at the other end, as the kernel knows them."""
    data = connection.getsockopt(sockets.SOL_SOCKET, sockets.SO_PEERCRED, _SO_PEERCRED_SIZE)
    pid, uid, _ = struct.unpack("3i", data)
    return pid, uid
