"""Opens listening sockets or adopts them from systemd, accepts clients within limits, and detects HTTP."""

from __future__ import annotations

import errno
import ipaddress
import logging
import os
import socket as sockets
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Protocol

import trio

from mcpd.config.http import Address
from mcpd.model.errors import Overloaded
from mcpd.privacy.logs import FROM_OUTSIDE
from mcpd.process.instance_lock import peer_credentials, remove_stale_socket
from mcpd.process.port_store import PortStore
from mcpd.wire import message as wire

MAX_ESTABLISHED = 256
MAX_PER_PROCESS = 224
"""Connections of one process to the Unix socket, so that no program can take the place of all others."""
MAX_PROVISIONAL = {"unix": 32, "tcp": 128}
"""Connections that are not established: see `ConnectionLimit`."""


class Evictable(Protocol):
    """A connection that may be closed to make room for another."""

    @property
    def idle_since(self) -> float | None:
        """`trio.current_time()` of its last message; None while it has a request in progress."""

    def evict(self, reason: str) -> None:
        """Close it soon. Does not wait."""


class Slot:
    """The place of one connection among those of its listener, from `ConnectionLimit.open` to `close`."""

    def __init__(self, limit: ConnectionLimit, pid: int) -> None:
        self.pid = pid
        """The process of the client; 0 if it is unknown."""
        self.is_established = False
        self._limit = limit
        self._connection: Evictable | None = None
        self._reason = ""
        """Why the connection must close, if that was decided before `held_by`."""

    @contextmanager
    def held_by(self, connection: Evictable) -> Iterator[None]:
        """Make `connection` evictable while the block runs; at once if its place was needed meanwhile."""
        self._connection = connection
        if self._reason:
            connection.evict(self._reason)
        try:
            yield
        finally:
            self._connection = None

    def authenticate(self) -> bool:
        """The client has proved who it is. Return False if it must be refused because of too many others.

        On the Unix socket, a provisional connection is not refused.
        """
        return self.is_established or self._limit.authenticate(self)

    @property
    def idle_since(self) -> float | None:
        return None if self._connection is None else self._connection.idle_since

    def evict(self, reason: str) -> None:
        self._reason = reason
        if self._connection is not None:
            self._connection.evict(reason)


class ConnectionLimit:
    """The connections of one listener. Each listener has its own, so none can close another's connections.

    Established connections are closed for others only while they are idle. A connection is provisional before
    that, and while too many others are established. A new connection always gets a provisional place, even if
    the oldest provisional connection has to be closed in the middle of a request. So a client that asks for
    little, such as `mcpctl daemon stop`, is served however many connections others hold.

    `family` is "unix", where every client is the user's own and is established at once if there is room, or
    "tcp", where a client is established by its first authenticated request.
    """

    def __init__(self, family: str) -> None:
        self._is_unix = family == "unix"
        self._max_provisional = MAX_PROVISIONAL[family]
        self._provisional: dict[Slot, None] = {}
        """Oldest first."""
        self._established: dict[Slot, None] = {}

    def __len__(self) -> int:
        return len(self._provisional) + len(self._established)

    def open(self, pid: int) -> Slot | str:
        """Return the place of a new connection, or the reason why it is refused.

        The caller calls `close` when the connection has ended.
        """
        slot = Slot(self, pid)
        if self._is_unix:
            of_process = [each for each in self._all() if each.pid == pid]
            if len(of_process) >= MAX_PER_PROCESS and not self._evict_idlest(of_process):
                return f"a process may have {MAX_PER_PROCESS} connections that are in use; close one"
        self._provisional[slot] = None
        if not (self._is_unix and self._establish(slot)):
            self._close_oldest_provisional()
        return slot

    def close(self, slot: Slot) -> None:
        """The connection has ended. On a Unix socket, its place goes to the oldest provisional one."""
        self._forget(slot)
        if self._is_unix and self._provisional and len(self._established) < MAX_ESTABLISHED:
            self._establish(next(iter(self._provisional)))

    def authenticate(self, slot: Slot) -> bool:
        """See `Slot.authenticate`."""
        return self._establish(slot) or self._is_unix

    def _establish(self, slot: Slot) -> bool:
        """Make a provisional connection one that is closed only while it is idle, if there is room."""
        if slot not in self._provisional:
            return False  # it is being closed
        if len(self._established) >= MAX_ESTABLISHED and not self._evict_idlest(self._established):
            return False
        del self._provisional[slot]
        self._established[slot] = None
        slot.is_established = True
        return True

    def _close_oldest_provisional(self) -> None:
        if len(self._provisional) > self._max_provisional:
            oldest = next(iter(self._provisional))
            self._forget(oldest)
            if self._is_unix:
                reason = (
                    f"{MAX_ESTABLISHED} connections are in use, and {self._max_provisional} newer ones came"
                )
            else:
                reason = (
                    f"{self._max_provisional} newer connections came before its first authenticated request"
                )
            oldest.evict(reason)

    def _evict_idlest(self, among: Iterable[Slot]) -> bool:
        """Close the connection that has been idle longest. Return False if none is idle."""
        idle = [(since, each) for each in among if (since := each.idle_since) is not None]
        if not idle:
            return False
        _, slot = min(idle, key=lambda entry: entry[0])
        self._forget(slot)
        slot.evict("it was idle, and its place was needed")
        return True

    def _all(self) -> Iterator[Slot]:
        yield from self._established
        yield from self._provisional

    def _forget(self, slot: Slot) -> None:
        self._provisional.pop(slot, None)
        self._established.pop(slot, None)


log = logging.getLogger("mcpd.listeners")

_BACKLOG = 1024
"""Clients that may wait to be accepted; a further one on the Unix socket gets EAGAIN."""
_MAX_ACCEPTED = 16
"""Clients that are accepted before other tasks run."""
_MAX_REFUSALS = 32
_REFUSAL_TIMEOUT = 1.0
_MAX_CLOSING = 64
"""Connections that may be open in addition to those in the limit, because they are just being closed."""


def open_listeners(
    socket: str,
    inherited: Iterable[int],
    stack: ExitStack,
    store: PortStore,
    *,
    http: Address | None,
    is_required: bool,
) -> tuple[sockets.socket, list[sockets.socket], str]:
    """Return the Unix socket, the HTTP ports, and a warning or nothing. `stack` closes them.

    `inherited` are the descriptors of sockets of the systemd socket unit, which are used instead of new ones.

    The caller holds the instance lock. Raises AlreadyRunning or OSError, also if the port `http` cannot be
    opened and `is_required`. Otherwise the daemon runs without HTTP then, and the warning says why: clients
    of the Unix socket must not be affected.
    """
    adopted = [stack.enter_context(adopt_fd(fd)) for fd in inherited]
    unix = next((each for each in adopted if each.family == sockets.AF_UNIX), None)
    if unix is None:
        unix = stack.enter_context(bind_unix(socket))
    ports = [each for each in adopted if each.family != sockets.AF_UNIX]
    store.is_kept = bool(ports)
    warning = ""
    own = None
    if http is not None and not ports:
        try:
            own = stack.enter_context(store.take(http.host, http.port) or bind_tcp(http))
            ports.append(own)
        except OSError as error:
            if is_required:
                raise
            warning = f"{error.strerror}, then run `mcpctl config reload`"
    store.keep(own)
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
        with removing(path):
            yield listener


@contextmanager
def removing(path: str) -> Iterator[None]:
    """Remove a socket that mcpd has created at the end, unless the path names something else by then."""
    own = os.lstat(path)
    try:
        yield
    finally:
        with suppress(OSError):
            if os.path.samestat(os.lstat(path), own):
                os.unlink(path)


def bind_tcp(address: Address) -> sockets.socket:
    """Listen on an address. Raises OSError with a message that names the address."""
    try:
        found = sockets.getaddrinfo(
            address.host, address.port, type=sockets.SOCK_STREAM, flags=sockets.AI_PASSIVE
        )
        family, *_, target = found[0]
    except OSError as error:
        raise OSError(error.errno, f"cannot listen on {address} for HTTP: {error.strerror}") from None
    listener = sockets.socket(family)
    try:
        listener.setsockopt(sockets.SOL_SOCKET, sockets.SO_REUSEADDR, 1)
        # Accepted sockets inherit this: a response must not wait for the previous one's acknowledgement.
        listener.setsockopt(sockets.IPPROTO_TCP, sockets.TCP_NODELAY, 1)
        listener.bind(target)
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
                        clients.start_soon(_refuse, connection, slot, refusals)
                    else:
                        connection.close()
            except BlockingIOError:
                continue
            except OSError as error:
                # Most likely out of descriptors. Accepting again immediately would spin.
                log.error("cannot accept a client: %s", error.strerror or error, extra=FROM_OUTSIDE)
                await trio.sleep(0.1)


async def serve_again(
    connection: sockets.socket,
    pid: int,
    handle: Callable[[sockets.socket, Slot], Awaitable[None]],
    limit: ConnectionLimit,
) -> None:
    """Go on with a connection that the version before this one has accepted."""
    slot = limit.open(pid)
    with connection:
        if isinstance(slot, Slot):
            try:
                await handle(connection, slot)
            finally:
                limit.close(slot)


async def _refuse(connection: sockets.socket, reason: str, refusals: trio.CapacityLimiter) -> None:
    """Send an error of the control API, and close the connection when the client has closed it."""
    body = wire.error_body(Overloaded.rpc, reason, Overloaded(reason).data())
    async with refusals:
        with connection, suppress(OSError), trio.move_on_after(_REFUSAL_TIMEOUT):
            connection.send(wire.error(b"null", body))
            connection.shutdown(sockets.SHUT_WR)
            while True:  # a client that still writes must be able to read the error
                await trio.lowlevel.wait_readable(connection)
                if not connection.recv(1 << 16):
                    break


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


class PendingConnection:
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
    undecided = PendingConnection()
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
