"""Who wants to hear of which resource: many clients, one wish to each server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from mcpd.supervision.server import ManagedServer

if TYPE_CHECKING:
    from mcpd.gateway.session import Session

_Watched = dict[tuple[bytes, str], tuple[ManagedServer, str]]
"""(subscription's id, empty for a legacy client's own; the URI as the client says it) → (server, its URI)."""


class Subscriptions:
    """Of all clients. What a client no longer wants, and nobody else does, the server is told to forget."""

    def __init__(self) -> None:
        self._of: dict[Session, _Watched] = {}

    def add(self, session: Session, listen: bytes, uri: str, server: ManagedServer, own: str) -> None:
        self._of.setdefault(session, {})[listen, uri] = (server, own)
        self._wish(session, server)

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
            server.wishes.forget(session)

    def renew(self, server: ManagedServer) -> None:
        """A definition has a new server: what was followed on the one before is followed on it."""
        for session, watched in self._of.items():
            for key, (owner, own) in watched.items():
                if owner is not server and owner.is_over and owner.spec.name == server.spec.name:
                    watched[key] = (server, own)
            self._wish(session, server)

    def concerned(self, server: ManagedServer, uri: str) -> Iterator[tuple[Session, bytes, str]]:
        """Who follows `uri`, or something that it is a part of: (client, subscription, URI to be told)."""
        for session, watched in list(self._of.items()):
            for (listen, public), (owner, own) in watched.items():
                if owner is server and (uri == own or uri.startswith(own.rstrip("/") + "/")):
                    yield session, listen, public + uri[len(own) :]

    def _wish(self, session: Session, server: ManagedServer) -> None:
        followed = {own for owner, own in self._of.get(session, {}).values() if owner is server}
        server.wishes.follow_resources(session, followed)
