"""Resource subscriptions of all clients, combined into one subscription per server and resource."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import trio

from mcpd.calls.engine import Spawn
from mcpd.supervision.managed_server import ManagedServer

SUBSCRIBE_TIMEOUT = 10.0
"""Seconds to wait for a server to confirm a subscription; afterwards it may still confirm."""
UPDATE_INTERVAL = 0.1
"""Minimum seconds between two notifications about the same resource."""
_SubscribedResources = dict[tuple[bytes, str], tuple[ManagedServer, str]]
"""(id of the listen request, empty for a legacy client; the URI the client uses) → (server, its own URI)."""


class Subscriber(Protocol):
    """A client's session. Compared by identity."""

    def notify_resource_updated(self, listen: bytes, uri: str) -> None: ...


class ClientSubscriptions:
    """The subscriptions of all clients. A server is unsubscribed when the last client is."""

    def __init__(self, spawn: Spawn) -> None:
        self._spawn = spawn
        self._by_session: dict[Subscriber, _SubscribedResources] = {}
        self._recent_updates: dict[tuple[ManagedServer, str], bool] = {}
        """Updates reported within the last interval, and whether each has been repeated since."""

    def count(self, session: Subscriber) -> int:
        return len(self._by_session.get(session, ()))

    def add(self, session: Subscriber, stream: bytes, uri: str, server: ManagedServer, own: str) -> bool:
        """Add a subscription. Returns whether it already existed."""
        resources = self._by_session.setdefault(session, {})
        known = (stream, uri) in resources
        resources[stream, uri] = (server, own)
        self._update_interest(session, server)
        return known

    def drop(self, session: Subscriber, stream: bytes, uri: str) -> None:
        found = self._by_session.get(session, {}).pop((stream, uri), None)
        if found is not None:
            self._update_interest(session, found[0])

    def on_stream_closed(self, session: Subscriber, stream: bytes) -> None:
        for key, uri in [key for key in self._by_session.get(session, {}) if key[0] == stream]:
            self.drop(session, key, uri)

    def on_session_closed(self, session: Subscriber) -> None:
        for server in {server for server, _ in self._by_session.pop(session, {}).values()}:
            server.interests.forget(session)

    def on_server_replaced(self, server: ManagedServer) -> None:
        """A definition has a new server: move subscriptions from the old one to it."""
        for session, resources in self._by_session.items():
            for key, (owner, own) in resources.items():
                if owner is not server and owner.is_closed and owner.spec.name == server.spec.name:
                    resources[key] = (server, own)
            self._update_interest(session, server)

    def on_resource_updated(self, server: ManagedServer, uri: str) -> None:
        """Notify subscribers immediately, then at most every UPDATE_INTERVAL seconds: the notification only
        says that there is something new to read, and a flood of them would cost clients their connections."""
        if (server, uri) in self._recent_updates:
            self._recent_updates[server, uri] = True
        elif self._notify_subscribers(server, uri):
            if not self._recent_updates:
                self._spawn(self._send_repeats)
            self._recent_updates[server, uri] = False

    async def _send_repeats(self) -> None:
        try:
            while self._recent_updates:
                await trio.sleep(UPDATE_INTERVAL)
                updates, self._recent_updates = self._recent_updates, {}
                for (server, uri), repeated in updates.items():
                    if repeated and self._notify_subscribers(server, uri):
                        self._recent_updates[server, uri] = False
        finally:
            self._recent_updates.clear()

    def _notify_subscribers(self, server: ManagedServer, uri: str) -> bool:
        """Return whether anybody is subscribed."""
        concerned = list(self._subscribers(server, uri))
        for session, stream, public in concerned:
            session.notify_resource_updated(stream, public)
        return bool(concerned)

    def _subscribers(self, server: ManagedServer, uri: str) -> Iterator[tuple[Subscriber, bytes, str]]:
        """Yield (client, subscription, URI to report) for `uri` and for subscribed parents of it."""
        for session, resources in list(self._by_session.items()):
            for (stream, public), (owner, own) in resources.items():
                if owner is server and (uri == own or uri.startswith(own.rstrip("/") + "/")):
                    yield session, stream, public + uri[len(own) :]

    def _update_interest(self, session: Subscriber, server: ManagedServer) -> None:
        followed = {own for owner, own in self._by_session.get(session, {}).values() if owner is server}
        server.interests.follow_resources(session, followed)
