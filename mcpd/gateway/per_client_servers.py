"""Dedicated servers: one instance for each client, or for each root, instead of one shared by all (`share`).

The definition's own server remains, for lists and for the shell. A dedicated server starts with its first
call and ends with its last client; a root's lingers for a while, since windows are closed and reopened.

A shared server gets a spare instance while a client does not answer a question and others wait
(`calls.waiting_calls`). It ends when it has not been used for a while.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Container, Sequence
from functools import partial
from typing import Protocol
from urllib.parse import unquote, urlsplit

import attrs
import msgspec
import trio
from msgspec import Raw

from mcpd.calls.call import Spawn
from mcpd.calls.client_context import ClientContext, ClientIdentity
from mcpd.daemon_operations import Operations
from mcpd.model.errors import NotReady
from mcpd.model.server_spec import StdioSpec
from mcpd.model.status import ServerState
from mcpd.supervision.managed_server import ManagedServer
from mcpd.support.linger import Linger
from mcpd.wire import message as wire

LINGER_SECONDS = 60.0
"""Seconds that a root's server keeps running without a client."""
MAX_SPARES = 2
"""Spare instances of one server: each may in turn be blocked by a question."""
SPARE_RETRY = 300.0
"""Seconds for which no spare instance is started after one has failed to connect."""
_UNUSED = "its last client left"
_Key = tuple[str, object]
"""(name of the server, the client or root it is for, or the number of a spare)."""


class ServerUser(Protocol):
    """A client's session. Compared by identity."""

    client: ClientIdentity
    context: ClientContext
    declared_to_own_servers: ClientContext
    roots: tuple[Raw, ...]

    @property
    def is_anonymous(self) -> bool: ...
    def effective_roots(self) -> Sequence[Raw]: ...


class _Instance(msgspec.Struct, eq=False):
    server: ManagedServer
    users: dict[ServerUser, None] = msgspec.field(default_factory=dict)
    used_at: float = msgspec.field(default_factory=trio.current_time)
    """When a spare was last chosen for a call."""
    stands_in_for: ManagedServer | None = None
    """For a spare: the server whose calls it takes."""


class DedicatedServers:
    """All dedicated servers. `spawn` must run tasks that outlive clients."""

    def __init__(self, core: Operations, spawn: Spawn) -> None:
        self._core = core
        self._spawn = spawn
        self._linger = Linger(LINGER_SECONDS, spawn)
        self._instances: dict[_Key, _Instance] = {}
        self._no_spare_before: weakref.WeakKeyDictionary[ManagedServer, float] = weakref.WeakKeyDictionary()
        """When a spare may be started again (`trio.current_time()`), for servers whose spare has failed."""

    def server_for(self, session: ServerUser, server: ManagedServer) -> ManagedServer:
        """Return the server that this client uses: its dedicated one, or `server` if it is shared."""
        owner: object = session
        if server.spec.share == "all" or server.original is not None or session.is_anonymous:
            return server
        if server.state is ServerState.DISABLED:
            return server  # it refuses the call and says how to enable it
        if server.spec.share != "client":
            owner = root = declared_directory(session) or (
                session.client.cwd if server.spec.share == "root" else ""
            )
            if not root:
                return server
        key = (server.spec.name, owner)
        found = self._instances.get(key)
        if found is None or self._core.supervisor.is_ending(found.server):
            own_only = owner is session and session.context.prefers_legacy
            found = self._instances[key] = self._start(server, owner, prefers_legacy=own_only)
        _add_user(found, session)
        return found.server

    def find_spare(
        self, session: ServerUser, server: ManagedServer, is_free: Callable[[ManagedServer], bool]
    ) -> ManagedServer | None:
        """Return a connected spare instance of a server for which `is_free` is true; None if there is none.
        Then one is started, if there may be one, and a later call returns it.
        """
        if server.spec.has_no_spare or server.state is not ServerState.CONNECTED:
            return None
        for number in range(MAX_SPARES):
            key = (server.spec.name, number)
            spare = self._instances.get(key)
            if spare is None or self._core.supervisor.is_ending(spare.server):
                if trio.current_time() >= self._no_spare_before.get(server, 0.0):
                    self._start_spare(key, server)
                return None
            if spare.server.state is not ServerState.CONNECTED:
                return None
            if is_free(spare.server):
                spare.used_at = trio.current_time()
                _add_user(spare, session)
                return spare.server
        return None

    def _start_spare(self, key: _Key, server: ManagedServer) -> None:
        try:
            spare = self._start(server, None)
        except NotReady:
            return  # the definition has changed: everything of it is stopping
        spare.stands_in_for = server
        self._instances[key] = spare
        spare.server.request_start()
        server.log.add_line(
            f"[mcpd] a client does not answer a question of {server.spec.name} while others wait: "
            f"{spare.server.spec.name} is started for them"
        )
        self._spawn(lambda: self._run_spare(key, spare, server))

    async def _run_spare(self, key: _Key, spare: _Instance, server: ManagedServer) -> None:
        """End the spare when it cannot connect, and when it is no longer used."""
        await spare.server.wait_settled()
        if not spare.server.is_closed and spare.server.state is not ServerState.CONNECTED:
            self._no_spare_before[server] = trio.current_time() + SPARE_RETRY
            self._end(key, spare, "it does not start")
            return
        # Seldom, and only while there are spares; otherwise every response would have to check here.
        while not spare.server.is_closed and (  # noqa: ASYNC110
            spare.server.status().in_flight or trio.current_time() - spare.used_at < LINGER_SECONDS
        ):
            await trio.sleep(LINGER_SECONDS / 4)
        self._end(key, spare, "it is no longer needed")

    def on_disabled(self, server: ManagedServer) -> None:
        """A disabled definition disables its dedicated servers, too."""
        for key, instance in list(self._instances.items()):
            if instance.server.original is server:
                self._end(key, instance, "it was disabled")

    def used_by(self, session: ServerUser) -> list[ManagedServer]:
        """Return the dedicated servers that this client uses."""
        return [each.server for each in self._instances.values() if session in each.users]

    def spares(self, servers: Container[ManagedServer]) -> list[ManagedServer]:
        """Return the spare instances of these servers."""
        return [each.server for each in self._instances.values() if each.stands_in_for in servers]

    def stands_in_for(self, server: ManagedServer) -> ManagedServer | None:
        """Return the server that `server` is a spare of; None if it is no spare."""
        found = (each.stands_in_for for each in self._instances.values() if each.server is server)
        return next(found, None)

    def users(self, server: ManagedServer) -> list[ServerUser]:
        """Return the clients of a dedicated server."""
        return [user for each in self._instances.values() if each.server is server for user in each.users]

    def on_session_closed(self, session: ServerUser) -> None:
        for key, instance in list(self._instances.items()):
            if instance.users.pop(session, self) is None and not instance.users:
                if instance.stands_in_for is not None:
                    continue  # it ends by itself
                if key[1] is session:
                    self._end(key, instance, _UNUSED)
                else:
                    self._linger.begin(instance, partial(self._end_unused, key, instance))

    def _end_unused(self, key: _Key, instance: _Instance) -> None:
        if not instance.users and self._instances.get(key) is instance:
            self._end(key, instance, _UNUSED)

    def _start(self, server: ManagedServer, owner: object, *, prefers_legacy: bool = False) -> _Instance:
        """Start an instance for `owner`. An instance has no spares of its own.

        `prefers_legacy`: whether its only client is of the legacy era and can be asked (`ClientContext`).
        """
        spec = attrs.evolve(server.spec, name=self._name_for(server), lazy=True, has_no_spare=True)
        if prefers_legacy and spec.era == "auto" and isinstance(spec, StdioSpec):
            spec = attrs.evolve(spec, era="legacy-first")  # the era that its client would use directly
        if isinstance(spec, StdioSpec) and isinstance(owner, str) and spec.cwd is None:
            spec = attrs.evolve(spec, cwd=owner)
        return _Instance(self._core.supervisor.start_instance(server.original or server, spec))

    def _name_for(self, server: ManagedServer) -> str:
        """Reuse free numbers: each name has a log file, and clients come and go while the daemon runs."""
        used_names = {instance.spec.name for instance in self._core.supervisor.instances()}
        names = (f"{server.spec.name}~{number}" for number in itertools.count(1))
        return next(name for name in names if name not in used_names)

    def _end(self, key: _Key, instance: _Instance, reason: str) -> None:
        if self._instances.get(key) is instance:
            del self._instances[key]
        self._core.supervisor.stop_instance(instance.server, reason)


def _add_user(instance: _Instance, session: ServerUser) -> None:
    if session not in instance.users:
        instance.users[session] = None
        if session.context.log_level and not session.context.modern:
            instance.server.interests.set_log_level(session, session.context.log_level)


def declared_directory(session: ServerUser) -> str:
    """Return the first directory among the roots that a client declares; empty if there is none."""
    for root in session.roots:
        parts = urlsplit(wire.string_or(wire.members_or_empty(root), "uri"))
        if parts.scheme == "file" and parts.path:
            return unquote(parts.path)
    return ""
