"""Dedicated servers: one instance for each client, root or person, instead of one shared by all (`share`, and
if a question of the server could not be attributed to a client).

The definition's own server remains, for lists and for the shell. A dedicated server starts with its first
call and ends with its last client; a root's lingers for a while, since windows are closed and reopened.

With `person`, calls of a person use the login and the secrets of that person, and nobody else's. So do
lists: a person sees neither those of others nor those of the definition's own server, since they may be about
private things, or written to mislead.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import partial
from typing import Protocol
from urllib.parse import unquote, urlsplit

import attrs
import msgspec
from msgspec import Raw

from mcpd.calls.call import Spawn
from mcpd.calls.client_context import ClientContext, ClientIdentity
from mcpd.io.linger import Linger
from mcpd.model.errors import McpdError, Overloaded
from mcpd.model.server_spec import RemoteSpec, ServerSpec, StdioSpec
from mcpd.model.status import ServerState
from mcpd.operations import Operations
from mcpd.supervision.managed_server import ManagedServer
from mcpd.wire import message as wire

LINGER_SECONDS = 60.0
"""Seconds that the server of a root or person keeps running without a client."""
MAX_OF_PEOPLE = 1000
"""Servers of people on all definitions."""
_UNUSED = "its last client left"
_Key = tuple[str, object]
"""(name of the server, the client, root or person it is for)."""


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


class DedicatedServers:
    """All dedicated servers. `spawn` must run tasks that outlive clients."""

    def __init__(self, core: Operations, spawn: Spawn) -> None:
        self._core = core
        self._linger = Linger(LINGER_SECONDS, spawn)
        self._instances: dict[_Key, _Instance] = {}

    def server_for(self, session: ServerUser, server: ManagedServer) -> ManagedServer:
        """Return the server that this client uses: its dedicated one, or `server` if it is shared."""
        owner: object = session
        share = server.spec.share
        if share == "all" and server.elicitation_history.separates_clients:
            share = "client" if session.context.accepts_server_requests else "all"
        person = session.client.person_id
        if share == "all" or server.original is not None or (session.is_anonymous and not person):
            return server
        if share == "person" and not person:
            return server
        if share == "person" or session.is_anonymous:
            owner = _of_person(person)  # the same on all connections
        if server.state is ServerState.DISABLED:
            return server  # it refuses the call and says how to enable it
        if share not in ("client", "person"):
            owner = root = declared_directory(session) or (session.client.cwd if share == "root" else "")
            if not root:
                return server
        key = (server.spec.name, owner)
        found = self._instances.get(key)
        if found is None or self._core.supervisor.instances.is_ending(found.server):
            own_only = owner is session and session.context.prefers_legacy
            if isinstance(owner, tuple):
                self._make_room(server)
            found = self._instances[key] = self._start(server, session, owner, prefers_legacy=own_only)
        _add_user(found, session)
        return found.server

    def source(self, person: str, server: ManagedServer) -> ManagedServer | None:
        """Return the server whose lists a person sees instead of those of `server`; None if there is none."""
        if server.spec.share != "person":
            return server
        found = self._instances.get((server.spec.name, _of_person(person)))
        return found.server if found is not None and found.server.original is server else None

    def sources(self, session: ServerUser, servers: Sequence[ManagedServer]) -> Sequence[ManagedServer]:
        """Return the servers whose lists a client sees instead of those of `servers`. A person's start now,
        unless their lists are known."""
        if not session.client.person_id:
            return servers
        found = []
        for server in servers:
            own = server
            if server.spec.share == "person":
                try:
                    own = self.server_for(session, server)
                except McpdError:  # a call says what is wrong
                    continue
                if own is not server and own.catalog is None:
                    own.request_start()
            found.append(own)
        return found

    def of_people(self, name: str) -> list[ManagedServer]:
        """Return the server with this name if it is a person's."""
        servers = (each.server for each in self._instances.values())
        return [server for server in servers if server.spec.name == name and server.spec.person]

    def _make_room(self, server: ManagedServer) -> None:
        """End the oldest unused server of a person if there are too many. Raises Overloaded."""
        of_people = [item for item in self._instances.items() if isinstance(item[0][1], tuple)]
        if len(of_people) < MAX_OF_PEOPLE:
            return
        unused = next((item for item in of_people if not item[1].users), None)
        if unused is None:
            text = f"{server.spec.name}: too many people use mcpd now; nothing was sent, try again later"
            raise Overloaded(text, server=server.spec.name)
        self._end(*unused, "too many people use servers of their own")

    def describe(self, session: ServerUser) -> list[tuple[str, str, str]]:
        """Return those that this client uses: the name of the definition, its own name, and its directory."""
        return [
            (key[0], each.server.spec.name, key[1] if isinstance(key[1], str) else "")
            for key, each in self._instances.items()
            if session in each.users
        ]

    def go_on(self, session: ServerUser, server: ManagedServer, name: str, directory: str) -> None:
        """Use the server that `describe` has returned in the version before this one."""
        owner: object = directory or session
        key = (server.spec.name, owner)
        if key not in self._instances:
            own_only = owner is session and session.context.prefers_legacy
            self._instances[key] = self._start(server, session, owner, prefers_legacy=own_only, name=name)
        _add_user(self._instances[key], session)

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
                    self._linger.begin(instance, partial(self._end_unused, key, instance))

    def _end_unused(self, key: _Key, instance: _Instance) -> None:
        if not instance.users and self._instances.get(key) is instance:
            self._end(key, instance, _UNUSED)

    def _start(
        self,
        server: ManagedServer,
        session: ServerUser,
        owner: object,
        *,
        prefers_legacy: bool = False,
        name: str = "",
    ) -> _Instance:
        """Start an instance for `owner`.

        `prefers_legacy`: whether its only client is of the legacy era and can be asked (`ClientContext`).
        """
        spec = attrs.evolve(server.spec, name=name or self._name_for(server), lazy=True)
        if prefers_legacy and spec.era == "auto" and isinstance(spec, StdioSpec):
            spec = attrs.evolve(spec, era="legacy-first")  # the era that its client would use directly
        if isinstance(spec, StdioSpec) and isinstance(owner, str) and spec.cwd is None:
            spec = attrs.evolve(spec, cwd=owner)
        if spec.share == "person":
            spec = _for_person(spec, session.client)
        return _Instance(self._core.supervisor.instances.start(server.original or server, spec))

    def _name_for(self, server: ManagedServer) -> str:
        """Reuse free numbers: each name has a log file, and clients come and go while the daemon runs."""
        used_names = {instance.spec.name for instance in self._core.supervisor.instances.servers()}
        names = (f"{server.spec.name}~{number}" for number in itertools.count(1))
        return next(name for name in names if name not in used_names)

    def _end(self, key: _Key, instance: _Instance, reason: str) -> None:
        if self._instances.get(key) is instance:
            del self._instances[key]
        self._core.supervisor.instances.stop(instance.server, reason)


def _of_person(person: str) -> object:
    return ("person", person)


def _for_person(spec: ServerSpec, client: ClientIdentity) -> ServerSpec:
    """Return the definition with the login and the secrets of a person."""
    unresolved = None if spec.unresolved is None else spec.unresolved.for_person(client.person)
    spec = attrs.evolve(spec, person=client.person_id, unresolved=unresolved)
    if isinstance(spec, RemoteSpec):
        account = f"{client.person_id} ({spec.oauth.account})"
        spec = attrs.evolve(spec, oauth=attrs.evolve(spec.oauth, account=account))
    return spec


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
