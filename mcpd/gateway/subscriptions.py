"""Resource subscriptions of all clients, combined into one subscription per server and resource."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

import trio

from mcpd.calls.call import Spawn
from mcpd.io.turns import TurnLimit
from mcpd.supervision.managed_server import ManagedServer

SUBSCRIBE_TIMEOUT = 10.0
"""Seconds to wait for a server to confirm a subscription; afterwards it may still confirm."""
MAX_SUBSCRIPTIONS = 1000
"""Subscriptions of one client, on all its streams together."""
MAX_URI = 4096
"""Characters of a URI that clients can subscribe to. Each subscription is kept, and compared with updates."""
UPDATE_INTERVAL = 0.1
"""Minimum seconds between two notifications about the same resource."""
_SubscribedResources = dict[tuple[bytes, str], tuple[ManagedServer, str]]
"""(id of the listen request, empty for a legacy client; the URI the client uses) → (server, its own URI)."""
_Followers = dict[tuple["Subscriber", bytes, str], str]
"""(client, stream, the URI the client uses) → the server's own URI."""


class Subscriber(Protocol):
    """A client's session. Compared by identity."""

    def may_use_resource(self, server: ManagedServer, uri: str) -> bool:
        """Return whether policies let the client know of it."""

    def notify_resource_updated(self, listen: bytes, uri: str) -> None: ...


class ClientSubscriptions:
    """The subscriptions of all clients. A server is unsubscribed when the last client is."""

    def __init__(self, spawn: Spawn) -> None:
        self._spawn = spawn
        self._by_session: dict[Subscriber, _SubscribedResources] = {}
        self._by_uri: dict[ManagedServer, dict[str, _Followers]] = {}
        """The same by server and by its own URI without trailing slashes, since each update looks them up."""
        self._recent_updates: dict[tuple[ManagedServer, str], bool] = {}
        """Updates reported within the last interval, and whether each has been repeated since."""

    def count(self, session: Subscriber) -> int:
        return len(self._by_session.get(session, ()))

    def of(self, session: Subscriber) -> _SubscribedResources:
        return self._by_session.get(session, {})

    def uris(self, session: Subscriber) -> list[str]:
        """Return what a legacy client is subscribed to."""
        return [uri for stream, uri in self._by_session.get(session, ()) if not stream]

    def add(self, session: Subscriber, stream: bytes, uri: str, server: ManagedServer, own: str) -> bool:
        """Add a subscription. Returns whether it already existed."""
        known = (stream, uri) in self._by_session.get(session, ())
        self.add_all(session, stream, [(uri, server, own)])
        return known

    def add_all(
        self, session: Subscriber, stream: bytes, resources: Iterable[tuple[str, ManagedServer, str]]
    ) -> None:
        """Add the subscriptions of one stream: the client's URI of each, its server, and the server's URI."""
        known = self._by_session.setdefault(session, {})
        servers: dict[ManagedServer, None] = {}
        for uri, server, own in resources:
            if (stream, uri) in known:
                servers[self._forget(session, stream, uri)] = None
            known[stream, uri] = (server, own)
            self._follow(session, stream, uri)
            servers[server] = None
        for server in servers:
            self._update_interest(session, server)

    def drop(self, session: Subscriber, stream: bytes, uri: str) -> None:
        self.drop_all(session, stream, [uri])

    def drop_all(self, session: Subscriber, stream: bytes, uris: Iterable[str]) -> None:
        """End subscriptions of one stream. Those that do not exist are ignored."""
        known = self._by_session.get(session, {})
        ended = [uri for uri in uris if (stream, uri) in known]
        for server in {self._forget(session, stream, uri): None for uri in ended}:
            self._update_interest(session, server)

    def on_stream_closed(self, session: Subscriber, stream: bytes) -> None:
        known = list(self._by_session.get(session, ()))
        self.drop_all(session, stream, [uri for of_stream, uri in known if of_stream == stream])

    def on_session_closed(self, session: Subscriber) -> None:
        for server in {self._forget(session, *key): None for key in list(self._by_session.get(session, ()))}:
            server.interests.forget(session)
        self._by_session.pop(session, None)

    def on_server_replaced(self, server: ManagedServer) -> None:
        """A definition has a new server: move subscriptions from the old one to it."""
        for session, resources in self._by_session.items():
            for key, (owner, own) in list(resources.items()):
                if owner is not server and owner.is_closed and owner.spec.name == server.spec.name:
                    self._forget(session, *key)
                    resources[key] = (server, own)
                    self._follow(session, *key)
            self._update_interest(session, server)

    def _follow(self, session: Subscriber, stream: bytes, uri: str) -> None:
        server, own = self._by_session[session][stream, uri]
        followers = self._by_uri.setdefault(server, {}).setdefault(own.rstrip("/"), {})
        followers[session, stream, uri] = own

    def _forget(self, session: Subscriber, stream: bytes, uri: str) -> ManagedServer:
        """Remove a subscription; return its server."""
        server, own = self._by_session[session].pop((stream, uri))
        of_server, key = self._by_uri[server], own.rstrip("/")
        del of_server[key][session, stream, uri]
        if not of_server[key]:
            del of_server[key]
        if not of_server:
            del self._by_uri[server]
        return server

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
                turns = TurnLimit()
                for server, uri in list(self._recent_updates):
                    await turns.pause()
                    if self._recent_updates.pop((server, uri)) and self._notify_subscribers(server, uri):
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
        of_server = self._by_uri.get(server)
        if of_server is None:
            return
        for key in _with_parents(uri):
            for (session, stream, public), own in tuple(of_server.get(key, {}).items()):
                if (uri == own or uri.startswith(f"{key}/")) and session.may_use_resource(server, uri):
                    yield session, stream, public + uri[len(own) :]

    def _update_interest(self, session: Subscriber, server: ManagedServer) -> None:
        followed = {own for owner, own in self._by_session.get(session, {}).values() if owner is server}
        server.interests.follow_resources(session, followed)


def _with_parents(uri: str) -> Iterator[str]:
    """Yield the URI and its parents without trailing slashes, as far as clients can subscribe to them."""
    whole = uri.rstrip("/")
    if len(whole) <= MAX_URI:
        yield whole
    end = min(len(whole), MAX_URI + 1)
    at = uri.find("/", 0, end)
    while at >= 0:
        if uri[at - 1 : at] != "/":
            yield uri[:at]
        at = uri.find("/", at + 1, end)
