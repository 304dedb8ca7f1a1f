"""Listening sockets: opened or adopted from systemd; clients are accepted, and HTTP told from JSON lines."""

from __future__ import annotations

import errno
import ipaddress
import logging
import os
import socket as sockets
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress

import trio

from mcpd.api.connection_limit import MAX_ESTABLISHED, MAX_PROVISIONAL, ConnectionLimit, Slot
from mcpd.config.settings import Address
from mcpd.model.errors import Overloaded
from mcpd.support.instance_lock import peer_credentials, remove_stale_socket
from mcpd.support.logs import FROM_OUTSIDE
from mcpd.wire import message as wire

log = logging.getLogger("mcpd.listeners")

_BACKLOG = 1024
"""Clients that may wait to be accepted; a further one on the Unix socket gets EAGAIN."""
_MAX_ACCEPTED = 16
"""Clients that are accepted before other tasks run."""
_MAX_CLOSING = 64
"""Connections that may be open in addition to those in the limit, because they are just being closed."""
_MAX_REFUSALS = 32
_REFUSAL_TIMEOUT = 1.0


def open_listeners(
    socket: str,
    inherited: Iterable[int],
    stack: ExitStack,
    *,
    http_option: Address | None,
    http_setting: Address | None,
) -> tuple[sockets.socket, list[sockets.socket], str]:
    """Return the Unix socket, the HTTP ports, and a warning or nothing. `stack` closes them.

    `inherited` are the descriptors of sockets that systemd passes, which are used instead of new ones.

    The caller holds the instance lock. Raises AlreadyRunning or OSError, also if the port of `http_option`
    cannot be opened. If that of `http_setting` cannot be opened, the daemon runs without HTTP, and the
    warning says why: clients of the Unix socket must not be affected.
    """
    adopted = [stack.enter_context(adopt_fd(fd)) for fd in inherited]
    unix = next((each for each in adopted if each.family == sockets.AF_UNIX), None)
    if unix is None:
        unix = stack.enter_context(bind_unix(socket))
    ports = [each for each in adopted if each.family != sockets.AF_UNIX]
    warning = ""
    address = http_option or http_setting
    if address is not None and not ports:
        try:
            ports.append(stack.enter_context(bind_tcp(address)))
        except OSError as error:
            if http_option is not None:
                raise
            warning = f"{error.strerror}, then run `mcpctl daemon restart`"
    return unix, ports, warning


@contextmanager
def bind_unix(path: str) -> Iterator[sockets.socket]:
    """Listen on a Unix socket at `path` (mode 0600), and remove it at the end unless the path names something
    else by then. Raises AlreadyRunning or OSError.
    """
    remove_stale_socket(path)
    with sockets.socket(sockets.AF_UNIX, sockets.SOCK_STREAM) as listener:
        old = os.umask(0o177)
        try:
            listener.bind(path)
        finally:
            os.umask(old)
        listener.listen(_BACKLOG)
        own = os.lstat(path)
        try:
            yield listener
        finally:
            with suppress(OSError):
                if os.path.samestat(os.lstat(path), own):
                    os.unlink(path)


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
            message += "; choose another port, or end the program that uses it"
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
    handle: Callable[[sockets.socket, Slot], Awaitable[None]],
    clients: trio.Nursery,
    limit: ConnectionLimit,
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Accept until cancelled; run `handle(connection, slot)` in `clients` and close the connection.

    A peer of another user is refused before anything is read. `slot.pid` is 0 for TCP peers. `limit` decides
    which connections are closed or refused if there are too many.
    """
    descriptors = trio.CapacityLimiter(MAX_ESTABLISHED + max(MAX_PROVISIONAL.values()) + _MAX_CLOSING)
    refusals = trio.CapacityLimiter(_MAX_REFUSALS)
    listener.setblocking(False)

    async def served(connection: sockets.socket, slot: Slot) -> None:
        try:
            await handle(connection, slot)
        finally:
            connection.close()
            limit.close(slot)
            descriptors.release_on_behalf_of(connection)

    with listener:
        task_status.started()
        while True:
            await trio.lowlevel.wait_readable(listener)
            try:
                # A few at a time: what they have sent already is read before more of them come.
                for _ in range(_MAX_ACCEPTED):
                    connection, _ = listener.accept()
                    pid = _accept_peer(connection)
                    if pid is None:
                        continue
                    slot = limit.open(pid)
                    if isinstance(slot, Slot):
                        await descriptors.acquire_on_behalf_of(connection)
                        clients.start_soon(served, connection, slot, name=f"client {pid}")
                    elif refusals.available_tokens:
                        refusals.acquire_on_behalf_of_nowait(connection)
                        clients.start_soon(_refuse, connection, slot, limit, refusals)
                    else:
                        connection.close()
            except BlockingIOError:
                continue
            except OSError as error:
                # Most likely out of descriptors. Accepting again immediately would spin.
                log.error("cannot accept a client: %s", error.strerror or error, extra=FROM_OUTSIDE)
                await trio.sleep(0.1)


async def _refuse(
    connection: sockets.socket, reason: str, limit: ConnectionLimit, refusals: trio.CapacityLimiter
) -> None:
    """Send the error that the client's protocol has for it, and close the connection."""
    slot = Slot(limit, 0)
    with connection, suppress(OSError), trio.move_on_after(_REFUSAL_TIMEOUT):
        http = await speaks_http(connection, slot)
        if http is not None:
            text = f"{reason}\n".encode()
            head = b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nContent-Type: text/plain\r\n"
            body = wire.error_body(Overloaded.rpc, reason, Overloaded(reason).data())
            connection.send(
                head + b"Content-Length: %d\r\n\r\n%b" % (len(text), text)
                if http
                else wire.error(b"null", body)
            )
            connection.shutdown(sockets.SHUT_WR)
            while True:  # a reset would overtake the error
                await trio.lowlevel.wait_readable(connection)
                if not connection.recv(1 << 16):
                    break
    refusals.release_on_behalf_of(connection)


def _accept_peer(connection: sockets.socket) -> int | None:
    """Return the peer's pid, or close the connection and return None if it is another user's."""
    connection.setblocking(False)
    if connection.family != sockets.AF_UNIX:
        return 0
    pid, uid = peer_credentials(connection)
    if uid == os.getuid():
        return pid
    message = "refused a client of uid %d (pid %d): this socket belongs to uid %d"
    log.warning(message, uid, pid, os.getuid(), extra=FROM_OUTSIDE)
    connection.close()
    return None


class _UndecidedConnection:
    """A connection that has not sent anything yet. Evictable."""

    def __init__(self) -> None:
        self.idle_since: float | None = trio.current_time()
        self.scope = trio.CancelScope()

    def evict(self, reason: str) -> None:
        self.scope.cancel(reason=reason)


async def speaks_http(connection: sockets.socket, slot: Slot) -> bool | None:
    """Wait for the first byte without consuming it: a capital letter starts HTTP, anything else JSON lines.

    Returns None if the client left or was evicted.
    """
    undecided = _UndecidedConnection()
    with undecided.scope, slot.held_by(undecided):
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
