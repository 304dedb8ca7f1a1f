"""Who wants to hear of which resource: many clients, one wish to each server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import trio

from mcpd.supervision.managed_server import ManagedServer

if TYPE_CHECKING:
    from mcpd.gateway.call_tasks import Spawn
    from mcpd.gateway.session import Session

EVERY = 0.1
"""Seconds between two words about the same resource."""
_Watched = dict[tuple[bytes, str], tuple[ManagedServer, str]]
"""(subscription's id, empty for a legacy client's own; the URI as the client says it) → (server, its URI)."""


class Subscriptions:
    """Of all clients. What a client no longer wants, and nobody else does, the server is told to forget."""

    def __init__(self, spawn: Spawn) -> None:
        self._spawn = spawn
        self._of: dict[Session, _Watched] = {}
        self._told: dict[tuple[ManagedServer, str], bool] = {}
        """What was told just now, and whether it was said again since."""

    def of(self, session: Session) -> int:
        """How many that client has."""
        return len(self._of.get(session, ()))

    def add(self, session: Session, listen: bytes, uri: str, server: ManagedServer, own: str) -> bool:
        """Whether it was there before."""
        watched = self._of.setdefault(session, {})
        known = (listen, uri) in watched
        watched[listen, uri] = (server, own)
        self._wish(session, server)
        return known

    def drop(self, session: Session, listen: bytes, uri: str) -> None:
        found = self._of.get(session, {}).pop((listen, uri), None)
        if found is not None:
            self._wish(session, found[0])

    def ended(self, session: Session, listen: bytes) -> None:
        """That subscription is over."""
        for key, uri in [key for key in self._of.get(session, {}) if key[0] == listen]:
            self.drop(session, key, uri)

    def left(self, session: Session) -> None:
        """That client is gone."""
        for server in {server for server, _ in self._of.pop(session, {}).values()}:
            server.interests.forget(session)

    def renew(self, server: ManagedServer) -> None:
        """A definition has a new server: what was followed on the one before is followed on it."""
        for session, watched in self._of.items():
            for key, (owner, own) in watched.items():
                if owner is not server and owner.is_over and owner.spec.name == server.spec.name:
                    watched[key] = (server, own)
            self._wish(session, server)

    def updated(self, server: ManagedServer, uri: str) -> None:
        """Tell those who follow it: at once, and while it goes on changing every EVERY seconds. It only says
        that there is something to read; a hundred thousand times so would cost clients their connections."""
        if (server, uri) in self._told:
            self._told[server, uri] = True
        elif self._tell(server, uri):
            if not self._told:
                self._spawn(self._tell_on)
            self._told[server, uri] = False

    async def _tell_on(self) -> None:
        try:
            while self._told:
                await trio.sleep(EVERY)
                told, self._told = self._told, {}
                for (server, uri), again in told.items():
                    if again and self._tell(server, uri):
                        self._told[server, uri] = False
        finally:
            self._told.clear()

    def _tell(self, server: ManagedServer, uri: str) -> bool:
        """Whether anybody follows it."""
        concerned = list(self._concerned(server, uri))
        for session, listen, public in concerned:
            session.updated(listen, public)
        return bool(concerned)

    def _concerned(self, server: ManagedServer, uri: str) -> Iterator[tuple[Session, bytes, str]]:
        """Who follows `uri`, or something that it is a part of: (client, subscription, URI to be told)."""
        for session, watched in list(self._of.items()):
            for (listen, public), (owner, own) in watched.items():
                if owner is server and (uri == own or uri.startswith(own.rstrip("/") + "/")):
                    yield session, listen, public + uri[len(own) :]

    def _wish(self, session: Session, server: ManagedServer) -> None:
        followed = {own for owner, own in self._of.get(session, {}).values() if owner is server}
        server.interests.follow_resources(session, followed)
