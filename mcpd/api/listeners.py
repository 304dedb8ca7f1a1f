"""Listening sockets: bind or adopt from systemd, accept clients, tell HTTP from JSON lines."""

from __future__ import annotations

import errno
import ipaddress
import logging
import os
import socket as sockets
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

import trio

from mcpd.config.settings import Address
from mcpd.support.instance_lock import peer_credentials

log = logging.getLogger("mcpd.listeners")

_BACKLOG = 128


def bind_unix(path: str) -> sockets.socket:
    """Listen on a Unix socket at `path` (mode 0600). The caller holds the instance lock. Raises OSError."""
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
    """Listen on a loopback address. Raises OSError with a message that names the address."""
    listener = sockets.socket(sockets.AF_INET6 if ":" in address.host else sockets.AF_INET)
    try:
        listener.setsockopt(sockets.SOL_SOCKET, sockets.SO_REUSEADDR, 1)
        # Accepted sockets inherit this: a response must not wait for the previous one's acknowledgement.
        listener.setsockopt(sockets.IPPROTO_TCP, sockets.TCP_NODELAY, 1)
        listener.bind((address.host, address.port))
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        message = f"cannot listen on {address} for HTTP: {error.strerror}"
        if error.errno == errno.EADDRINUSE:
            message += " (choose another port, or end the program that uses it)"
        raise OSError(error.errno, message) from None
    return listener


def adopt_fd(fd: int) -> sockets.socket:
    """Return the listening socket that systemd opened. Raises OSError unless it is Unix or loopback."""
    listener = sockets.socket(fileno=fd)
    if listener.family != sockets.AF_UNIX:
        host = str(listener.getsockname()[0])
        if not ipaddress.ip_address(host).is_loopback:
            listener.close()
            raise PermissionError(
                errno.EPERM, f"the systemd socket listens on {host}; mcpd accepts loopback only"
            )
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
    """Accept until cancelled; run `handle(connection, peer's pid)` in `clients` and close the connection.

    A peer of another user is refused before anything is read. TCP peers have pid 0. When MAX_CLIENTS are
    connected, the one idle longest is evicted; while all are busy, new clients wait.
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
                while True:  # accept all pending clients before yielding to other tasks
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
                # Most likely out of descriptors. Accepting again immediately would spin.
                log.error("cannot accept a client: %s", error.strerror or error)
                await trio.sleep(0.1)


def _accept_peer(connection: sockets.socket) -> int | None:
    """Return the peer's pid, or close the connection and return None if it is another user's."""
    connection.setblocking(False)
    if connection.family != sockets.AF_UNIX:
        return 0
    pid, uid = peer_credentials(connection)
    if uid == os.getuid():
        return pid
    log.warning("refused a client of uid %d (pid %d): this socket belongs to uid %d", uid, pid, os.getuid())
    connection.close()
    return None


class _UndecidedConnection:
    """A connection that has not sent anything yet. Evictable."""

    def __init__(self) -> None:
        self.idle_since: float | None = trio.current_time()
        self.scope = trio.CancelScope()

    def evict(self, reason: str) -> None:
        self.scope.cancel(reason=reason)


async def speaks_http(connection: sockets.socket, limit: LruConnectionLimit) -> bool | None:
    """Wait for the first byte without consuming it: a capital letter starts HTTP, anything else JSON lines.

    Returns None if the client left or was evicted.
    """
    undecided = _UndecidedConnection()
    with undecided.scope, limit.held_by(undecided):
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


MAX_CLIENTS = 256


class Evictable(Protocol):
    """A connection that may be closed to make room for another."""

    @property
    def idle_since(self) -> float | None:
        """`trio.current_time()` of its last message; None while it has a request in progress."""

    def evict(self, reason: str) -> None:
        """Close it soon. Does not wait."""


class LruConnectionLimit:
    """The connections of one listener. Each listener has its own, so none can evict another's clients."""

    def __init__(self) -> None:
        self._connections: set[Evictable] = set()

    @contextmanager
    def held_by(self, connection: Evictable) -> Iterator[None]:
        """Make `connection` evictable while the block runs."""
        self._connections.add(connection)
        try:
            yield
        finally:
            self._connections.discard(connection)

    def evict_idlest(self) -> None:
        """Evict the connection that has been idle longest, if any is idle."""
        idle = [(since, each) for each in self._connections if (since := each.idle_since) is not None]
        if idle:
            _, connection = min(idle, key=lambda entry: entry[0])
            self._connections.discard(connection)
            connection.evict("evicted: too many connections are open")
