"""Replaces the running daemon by the installed version: what goes over, and when.

1. The new version is started on trial, with all that it would take over. If it does not say in time that it
   can, nothing happens.
2. This process becomes the new version. While that starts, a child of it serves everybody (`replacement`).
3. Calls that cannot go over, such as those to remote servers, get time to finish. Everybody else works on.
4. Nothing more is read from clients, what is nearly finished finishes, and the new version goes on.
"""

from __future__ import annotations

import logging
import os
import socket as sockets
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, NoReturn, Protocol

import attrs
import msgspec
import trio

from mcpd import __version__
from mcpd.api.listeners import ConnectionLimit, Slot, serve_again
from mcpd.api.socket_connection import Arrival, ClientState, SocketConnection
from mcpd.calls.call import Call
from mcpd.calls.questions.router import OpenRequest
from mcpd.config.check_document import LoadedConfig
from mcpd.deferred import DeferredHttp
from mcpd.gateway.gateway import Gateway
from mcpd.gateway.handover import can_go_on, go_on_asking
from mcpd.io import reader
from mcpd.model.api import UpgradeResult
from mcpd.model.errors import LinkLost, NotUpgraded
from mcpd.model.server_spec import StdioSpec
from mcpd.process import replacement
from mcpd.process.guardian import Guardian, GuardianState
from mcpd.process.port_store import PortStore
from mcpd.process.replacement import CannotReplace, Predecessor, Successor, TrialAnswer
from mcpd.supervision.managed_server import end_running
from mcpd.supervision.supervisor import Supervisor
from mcpd.supervision.supervisor_context import RunningServer, SupervisorContext

if TYPE_CHECKING:
    from mcpd.api.http.routes import HttpPort

log = logging.getLogger("mcpd")

_PATIENCE = 30.0
"""Seconds for calls that cannot go over. The others do not notice."""
_LONG = 0.1
"""Seconds after which a call is not expected to finish in the next moment."""
_QUIET_TIME = 0.25
"""Seconds in which nothing is read from clients, so that what is nearly finished finishes."""
_POLL_INTERVAL = 0.005
_SAVE_TIMEOUT = 0.1
_SERVERS_TIMEOUT = 2.0


class OpenConnection(msgspec.Struct, eq=False):
    """A connection on which nothing is in progress."""

    fd: int
    pid: int


class OwnDescriptors(msgspec.Struct, frozen=True):
    """What shows that this is the daemon."""

    instance: str
    lock: int
    record: int
    is_own_socket: bool


class DaemonState(msgspec.Struct, kw_only=True):
    """Everything that the next version takes over."""

    version: str
    instance: str
    lock: int
    record: int
    claim: int
    """See `StateFile.claimed`."""
    listeners: dict[str, int]
    """By name, as systemd passes them."""
    is_own_socket: bool
    """Whether mcpd has created the Unix socket, and removes it in the end."""
    guardian: GuardianState
    secrets: list[str]
    next_child: int
    servers: list[RunningServer]
    disconnected: list[str]
    asking: dict[str, list[OpenRequest]]
    """By the label of the server."""
    clients: list[ClientState]
    connections: list[OpenConnection]
    problems: list[str]
    """Of the configuration in effect."""
    held_at: float
    """`time.monotonic()` when the clients were read for the last time."""

    def renumber(self, number: Callable[[int], int]) -> None:
        """Replace each descriptor by `number` of it, always in the same order."""
        self.lock, self.record = number(self.lock), number(self.record)
        self.claim = number(self.claim) if self.claim >= 0 else -1
        self.guardian.stdin = number(self.guardian.stdin)
        self.listeners = {name: number(fd) for name, fd in self.listeners.items()}
        for server in self.servers:
            if server.pipes is None:
                continue
            child = server.pipes.child
            child.stdin, child.stdout = number(child.stdin), number(child.stdout)
            child.stderr = number(child.stderr)
        for client in self.clients:
            client.fd = number(client.fd)
        for each in self.connections:
            each.fd = number(each.fd)

    def descriptors(self) -> list[int]:
        found: list[int] = []

        def note(fd: int) -> int:
            found.append(fd)
            return fd

        self.renumber(note)
        return found


class Saved(Protocol):
    """What writes to the disk some time later."""

    async def flush(self) -> None: ...


@attrs.frozen(eq=False)
class Upgrade:
    """Replaces the daemon that has these parts."""

    own: OwnDescriptors
    context: SupervisorContext
    gateway: Gateway
    guardian: Guardian
    http: DeferredHttp
    clients: Collection[SocketConnection]
    undecided: Collection[OpenConnection]
    """Connections that have not sent anything yet."""
    saved: Sequence[Saved]
    listeners: Callable[[], dict[str, int]]
    """See `DaemonState.listeners`."""
    in_progress: trio.Lock = attrs.field(factory=trio.Lock)

    async def run(self) -> None:
        """Become the installed version; returns only by an exception. Raises NotUpgraded."""
        if self.in_progress.locked():
            raise NotUpgraded("another upgrade is in progress")
        async with self.in_progress:
            command = replacement.own_command()
            try:
                trial = msgspec.msgpack.encode(self._state(0.0))
                version = await replacement.try_out(command, __version__, trial)
                log.info("upgrading from %s to %s", __version__, version)
                await self._save()
                with trio.CancelScope(shield=True):  # the client that wants the upgrade may leave
                    await self._become(command)
            except CannotReplace as error:
                problem = f"mcpd was not upgraded, and {__version__} goes on: the installed version {error}"
                problem = problem.replace("version it ", "version ")
                log.error("%s", problem)
                raise NotUpgraded(self.context.redactor.mask(problem)) from None

    async def _become(self, command: Sequence[str]) -> None:
        try:
            successor = await replacement.start(command)
        except OSError as error:
            raise CannotReplace(f"it cannot be started: {error.strerror or error}") from None
        try:
            for server in self.gateway.core.supervisor.everything():
                if server.child is not None:
                    server.child.on_forked()
            await successor.wait_ready()
            await self._wait_finished()
            await self._hand_over(successor)
        except BaseException:
            successor.end()
            log.warning("mcpd has another process id now: %d", os.getpid())
            raise

    async def _wait_finished(self) -> None:
        """Wait until nothing long is in progress that cannot go over, and until servers have started."""
        with trio.move_on_after(_PATIENCE):
            for server in self.gateway.core.supervisor.everything():
                await server.wait_settled()
            while self._has_unfinished(_LONG):  # noqa: ASYNC110 - nothing reports the end of each call
                await trio.sleep(_LONG)

    async def _hand_over(self, successor: Successor) -> None:
        held_at = time.monotonic()
        reader.hold(clients_only=True)
        try:
            with trio.move_on_after(_QUIET_TIME):
                while self._has_unfinished(0.0):
                    await trio.sleep(_POLL_INTERVAL)
                    reader.hold(clients_only=True)
            with trio.move_on_after(_SAVE_TIMEOUT):
                await self._save()
            reader.hold(clients_only=False)
            self._refuse_rest()
            state = self._state(held_at)
            data = msgspec.msgpack.encode(state)
            successor.hand_over(__version__, data, state.descriptors())
        finally:
            if (http := self.http.loaded) is not None:
                http.go_on()
            reader.release()

    async def _save(self) -> None:
        for each in self.saved:
            await each.flush()

    def _refuse_rest(self) -> None:
        """Answer what cannot go over."""
        error = LinkLost("mcpd was upgraded before this was answered", may_have_run=True)
        for client in list(self.clients):
            client.refuse_to_go_on(error)
        for session in list(self.gateway.sessions):
            for call in list(session.calls.values()):
                if session.client.via == "http" and call.request is not None:
                    self.gateway.calls.fail(call, error)
        if (http := self.http.loaded) is not None:
            http.suspend("mcpd was upgraded")

    def _has_unfinished(self, age: float) -> bool:
        """Return whether something is in progress for longer than `age` that cannot go over."""
        now = trio.current_time()
        if (http := self.http.loaded) is not None and http.is_receiving(age):
            return True
        if age and len(self.gateway.calls.questions.suspended):
            return True
        return any(not can_go_on(call) and now - call.arrived_at >= age for call in self._calls())

    def _calls(self) -> Iterator[Call]:
        for session in self.gateway.sessions:
            yield from session.calls.values()
        for client in self.clients:
            yield from client.calls()

    def _state(self, held_at: float) -> DaemonState:
        servers = self.gateway.core.supervisor.everything()
        asking = self.gateway.calls.questions.requests.open_requests
        running = [each for server in servers if (each := server.running()) is not None]
        guardian = self.guardian.state()
        if guardian is None:
            raise CannotReplace("it would have no guardian: that is being replaced, so try again")
        own = self.own
        return DaemonState(
            version=__version__,
            instance=own.instance,
            lock=own.lock,
            record=own.record,
            claim=self.context.store.claimed,
            is_own_socket=own.is_own_socket,
            listeners=self.listeners(),
            guardian=guardian,
            secrets=self.context.redactor.secrets(),
            next_child=next(self.context.child_numbers),
            servers=running,
            asking={each.label: asking(each.link) for each in servers if each.link is not None},
            disconnected=[server.spec.name for server in servers if server.is_disconnected],
            clients=[found for client in self.clients if (found := client.describe()) is not None],
            connections=[*self.undecided, *self._idle_connections()],
            problems=[str(each) for each in self.gateway.core.config.loaded.problems],
            held_at=held_at,
        )

    def _idle_connections(self) -> Iterator[OpenConnection]:
        http = self.http.loaded
        for fd, pid in () if http is None else http.idle_connections():
            with sockets.socket(fileno=os.dup(fd)) as connection:
                if connection.getsockname():  # otherwise it is a part of this process, behind TLS
                    yield OpenConnection(fd, pid)


def describe_listeners(
    unix: sockets.socket, ports: Iterable[sockets.socket], store: PortStore
) -> dict[str, int]:
    """See `DaemonState.listeners`."""
    own = store.describe()
    others = {f"port.{number}": each.fileno() for number, each in enumerate(ports)}
    inherited = {name: fd for name, fd in others.items() if fd not in own.values()}
    return {"unix": unix.fileno(), **own, **inherited}


# ── in the new version ──────────────────────────────────────────────────────────────────────────────


def check(fd: int, loaded: LoadedConfig) -> None:
    """Raise CannotReplace if this version cannot use the state in this file."""
    state = _decode(replacement.read_state(fd))
    if found := [text for text in map(str, loaded.problems) if text not in state.problems]:
        raise CannotReplace(f"it refuses {loaded.source}: {found[0]}")


def scratch_environment() -> dict[str, str]:
    """Return variables for a daemon that starts on trial, beside the running one."""
    place = tempfile.mkdtemp()
    return {"MCPD_SOCKET": f"{place}/mcpd.sock", "XDG_STATE_HOME": place, "XDG_CACHE_HOME": place}


def pass_trial() -> NoReturn:
    """Say that this version works, and exit at once."""
    print(msgspec.json.encode(TrialAnswer(replacement.FORMAT, __version__)).decode(), flush=True)
    os._exit(0)


def take_over(fd: int) -> TakeOver:
    """Ask the old version for everything. Raises CannotReplace."""
    predecessor = Predecessor(fd)
    data, descriptors = predecessor.ask()
    state = _decode(data)
    new = dict(zip(state.descriptors(), descriptors, strict=True))
    state.renumber(new.__getitem__)
    return TakeOver(state, predecessor)


def _decode(state: bytes) -> DaemonState:
    try:
        return msgspec.msgpack.decode(state, type=DaemonState)
    except msgspec.MsgspecError as error:
        raise CannotReplace(f"it cannot read the state of the running daemon: {error}") from None


class ServeClient(Protocol):
    """Serves a connection to the Unix socket until it ends."""

    async def __call__(
        self, connection: sockets.socket, slot: Slot, arrival: Arrival | None = None
    ) -> None: ...


def _port_of(connection: sockets.socket, ports: Sequence[HttpPort]) -> HttpPort | None:
    own = connection.getsockname()[1]
    return next((port for port in ports if port.listener.getsockname()[1] == own), None)


@attrs.frozen(eq=False)
class TakeOver:
    """Restores the state of the previous version."""

    state: DaemonState
    predecessor: Predecessor

    def result(self) -> UpgradeResult:
        return UpgradeResult(version=__version__, previous=self.state.version, pause=self._pause())

    def _pause(self) -> float:
        return round(time.monotonic() - self.state.held_at, 3)

    async def wait_connected(self, supervisor: Supervisor) -> None:
        """Wait until the configured servers that go on are connected again."""
        for name in self.state.disconnected:
            if (server := supervisor.find(name)) is not None:
                server.disconnect()
        with trio.move_on_after(_SERVERS_TIMEOUT):
            for server in supervisor.servers():
                if server.is_handed_over and isinstance(server.spec, StdioSpec):
                    await server.wait_settled()

    async def serve_clients(
        self,
        supervisor: Supervisor,
        clients: trio.Nursery,
        ports: Sequence[HttpPort],
        serve: ServeClient,
        limit: ConnectionLimit,
    ) -> None:
        """Go on with all connections. Returns when the sessions of clients are as before."""
        gone_on, all_gone_on = [], trio.Event()
        for state in self.state.clients:
            gone_on.append(trio.Event())
            handle = partial(serve, arrival=Arrival(state, gone_on[-1], all_gone_on))
            connection = sockets.socket(fileno=state.fd)
            clients.start_soon(serve_again, connection, state.pid, handle, limit)
        for each in self.state.connections:
            connection = sockets.socket(fileno=each.fd)
            if connection.family == sockets.AF_UNIX:
                clients.start_soon(serve_again, connection, each.pid, serve, limit)
            elif (port := _port_of(connection, ports)) is not None:
                clients.start_soon(serve_again, connection, each.pid, port.serve, port.limit)
            else:
                connection.close()
        with trio.move_on_after(_SERVERS_TIMEOUT):
            for event in gone_on:
                await event.wait()
        for server in supervisor.everything():
            go_on_asking(server, self.state.asking.get(server.label, ()))
        all_gone_on.set()

    def finish(self, context: SupervisorContext) -> None:
        """End what nobody has adopted, and read again."""
        for running in context.handed_over.values():
            end_running(running)
        context.handed_over.clear()
        reader.release()
        replacement.admit_signals()
        log.info("upgraded from %s to %s in %.3f s", self.state.version, __version__, self._pause())
