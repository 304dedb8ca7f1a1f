"""Dedicated servers: one instance for each client, or for each root, instead of one shared by all (`share`).

The definition's own server remains, for lists and for the shell. A dedicated server starts with its first
call and ends with its last client; a root's lingers for a while, since windows are closed and reopened.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Protocol
from urllib.parse import unquote, urlsplit

import attrs
import trio
from msgspec import Raw

from mcpd.calls.client_context import ClientContext, ClientIdentity
from mcpd.calls.engine import Spawn
from mcpd.daemon_operations import Operations
from mcpd.model.server_spec import StdioSpec
from mcpd.model.status import ServerState
from mcpd.supervision.managed_server import ManagedServer
from mcpd.wire import message as wire

LINGER_SECONDS = 60.0
"""Seconds that a root's server keeps running without a client."""
_UNUSED = "its last client left"
_Key = tuple[str, object]
"""(definition name, the client or root it is for)."""


class ServerUser(Protocol):
    """A client's session. Compared by identity."""

    client: ClientIdentity
    context: ClientContext
    roots: tuple[Raw, ...]

    @property
    def is_anonymous(self) -> bool: ...
    def effective_roots(self) -> Sequence[Raw]: ...


@attrs.define(eq=False)
class _Instance:
    server: ManagedServer
    users: dict[ServerUser, None] = attrs.field(factory=dict)


class DedicatedServers:
    """All dedicated servers. `spawn` must run tasks that outlive clients."""

    def __init__(self, core: Operations, spawn: Spawn) -> None:
        self._core = core
        self._spawn = spawn
        self._instances: dict[_Key, _Instance] = {}

    def server_for(self, session: ServerUser, server: ManagedServer) -> ManagedServer:
        """Return the server that this client uses: its dedicated one, or `server` if it is shared."""
        owner: object = session
        if server.spec.share == "all" or server.original is not None or session.is_anonymous:
            return server
        if server.state is ServerState.DISABLED:
            return server  # it refuses the call and says how to enable it
        if server.spec.share == "root":
            owner = root = working_directory(session)
            if not root:
                return server
        key = (server.spec.name, owner)
        found = self._instances.get(key)
        if found is None or self._core.supervisor.is_ending(found.server):
            found = self._instances[key] = self._start(server, owner)
        if session not in found.users:
            found.users[session] = None
            if session.context.log_level and not session.context.modern:
                found.server.interests.set_log_level(session, session.context.log_level)
        return found.server

    def on_disabled(self, server: ManagedServer) -> None:
        """A disabled definition disables its dedicated servers, too."""
        for key, instance in list(self._instances.items()):
            if instance.server.original is server:
                self._end(key, instance, "it was disabled")

    def used_by(self, session: ServerUser) -> list[ManagedServer]:
        """Return the dedicated servers that this client uses."""
        return [each.server for each in self._instances.values() if session in each.users]

    def users(self, server: ManagedServer) -> list[ServerUser]:
        """Return the clients of a dedicated server."""
        return [user for each in self._instances.values() if each.server is server for user in each.users]

    def on_session_closed(self, session: ServerUser) -> None:
        for key, instance in list(self._instances.items()):
            if instance.users.pop(session, self) is None and not instance.users:
                if key[1] is session:
                    self._end(key, instance, _UNUSED)
                else:
                    self._spawn(lambda key=key, instance=instance: self._linger(key, instance))  # type: ignore[misc]

    async def _linger(self, key: _Key, instance: _Instance) -> None:
        await trio.sleep(LINGER_SECONDS)
        if not instance.users and self._instances.get(key) is instance:
            self._end(key, instance, _UNUSED)

    def _start(self, server: ManagedServer, owner: object) -> _Instance:
        spec = attrs.evolve(server.spec, name=self._name_for(server), lazy=True)
        if isinstance(spec, StdioSpec) and isinstance(owner, str) and spec.cwd is None:
            spec = attrs.evolve(spec, cwd=owner)
        return _Instance(self._core.supervisor.start_instance(server, spec))

    def _name_for(self, server: ManagedServer) -> str:
        """Reuse free numbers: each name has a log file, and clients come and go while the daemon runs."""
        used_names = {instance.spec.name for instance in self._core.supervisor.instances()}
        names = (f"{server.spec.name}~{number}" for number in itertools.count(1))
        return next(name for name in names if name not in used_names)

    def _end(self, key: _Key, instance: _Instance, reason: str) -> None:
        del self._instances[key]
        self._core.supervisor.stop_instance(instance.server, reason)


def working_directory(session: ServerUser) -> str:
    """Return the directory a client works in: its first file root, else where its bridge was started."""
    for root in session.roots:
        parts = urlsplit(wire.string_or(wire.members_or_empty(root), "uri"))
        if parts.scheme == "file" and parts.path:
            return unquote(parts.path)
    return session.client.cwd
