"""Which connection a client's calls use, if a server speaks both eras (see `supervision.legacy_companion`).

A client of the legacy era that can be asked something uses the server's companion, which is opened when such
a client comes, and closed hours after the last one has left. All other clients use the server's own
connection. So each client gets what it would get if it connected directly.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable
from contextlib import suppress
from functools import partial

import trio

from mcpd.calls.call import INTERACTIVE_METHODS, Call, Spawn
from mcpd.calls.client_context import ClientContext
from mcpd.io.linger import Linger
from mcpd.model.errors import NotReady, Overloaded
from mcpd.model.server_spec import StdioSpec
from mcpd.model.status import ServerState
from mcpd.operations import Operations
from mcpd.protocol.upstream_session import Upstream
from mcpd.supervision.legacy_companion import LegacyCompanion, may_have_companion
from mcpd.supervision.managed_server import ManagedServer

LINGER_SECONDS = 12 * 3600.0
"""Seconds that a companion stays open without a client: a server takes seconds to start, and people come back
on the same day."""
_UNUSED = "its last client left"
_FAILED = (ServerState.FAILED, ServerState.NEEDS_AUTH)

log = logging.getLogger("mcpd.calls")


class LegacyCompanions:
    """The companions of all servers and their clients. `spawn` must run tasks that outlive clients."""

    def __init__(self, operations: Operations, spawn: Spawn) -> None:
        self._operations = operations
        self._linger = Linger(LINGER_SECONDS, spawn)
        self._users: dict[LegacyCompanion, dict[object, None]] = {}
        """By companion, from its first client until it is closed."""

    def choose(
        self, client: object, context: ClientContext, server: ManagedServer, *, may_open: bool = True
    ) -> ManagedServer:
        """Return the connection for this client's requests to `server`: `server` itself or its companion.

        The answer may change once that is connected. `may_open`: whether this request is a reason to open the
        companion, and to make the client one of its users.
        """
        if not context.prefers_legacy:
            return server
        companion = server.companion
        if not may_have_companion(server):
            if isinstance(companion, LegacyCompanion):
                self._stop(companion, "it is no longer needed")
            return server
        if companion is None or self._operations.supervisor.instances.is_ending(companion):
            if not may_open:
                return server
            try:
                companion = self._operations.supervisor.instances.start_companion(server)
            except NotReady:  # it stops
                return server
            self._users = {each: users for each, users in self._users.items() if not each.is_closed}
        assert isinstance(companion, LegacyCompanion)
        if companion.refusal:
            self._give_up(companion, companion.refusal)
            return server
        users = self._users.setdefault(companion, {})
        if client not in users:
            if not may_open:
                return server
            users[client] = None
            if context.log_level:
                companion.interests.set_log_level(client, context.log_level)
        return companion

    def open_for(self, client: object, context: ClientContext, servers: Iterable[ManagedServer]) -> None:
        """Start the second processes that a client will need, so that its first call does not wait."""
        for server in servers if context.prefers_legacy else ():
            if isinstance(server.spec, StdioSpec) and server.upstream is not None:
                self.choose(client, context, server)

    async def wait_connected(
        self, client: object, context: ClientContext, server: ManagedServer, *, may_open: bool = True
    ) -> ManagedServer:
        """Wait until the connection for this client is there, and return it: `server` or its companion.

        If the companion does not work, clients are served over the server's own connection. Raises NotReady.
        """
        server = server.original if isinstance(server, LegacyCompanion) else server
        server = await self._operations.supervisor.wait_replaced(server)
        while isinstance(
            companion := self.choose(client, context, server, may_open=may_open), LegacyCompanion
        ):
            await self._wait_tried(companion)
            if self.choose(client, context, server, may_open=may_open) is companion:
                if companion.upstream is not None:
                    return companion
                await self._operations.wait_ready(server)
                return server
        await self._operations.wait_ready(server)
        if self.choose(client, context, server, may_open=may_open) is server:
            return server
        return await self.wait_connected(client, context, server, may_open=may_open)

    async def _wait_tried(self, companion: LegacyCompanion) -> None:
        """Wait until the companion is connected, or does not get connected in time.

        If its first attempt failed, the server speaks only the modern era, or runs only once: no other
        attempt is made while the server's own connection lasts.
        """
        if companion.has_been_connected:
            with suppress(NotReady):
                await self._operations.wait_ready(companion)
            return
        with trio.move_on_after(companion.spec.timeouts.connect):
            await companion.wait_tried()
        if companion.state in _FAILED:
            failure = companion.status().last_error
            self._give_up(companion, failure.summary if failure is not None else "it failed")

    def _give_up(self, companion: LegacyCompanion, reason: str) -> None:
        server = companion.original
        if server.companion is not companion or server.companion_refusal:
            return
        server.companion_refusal = reason
        server.trace.add_step("connection 2", f"not possible: {reason}", 0.0)
        log.info("%s: no second connection for clients of the legacy era: %s", server.spec.name, reason)
        self._stop(companion, "it cannot be used")

    def _stop(self, companion: LegacyCompanion, reason: str) -> None:
        for client in self._users.pop(companion, ()):
            companion.interests.forget(client)
        self._operations.supervisor.instances.stop(companion, reason)

    # ── its clients ─────────────────────────────────────────────────────────────────────────────────

    def used_by(self, client: object) -> list[LegacyCompanion]:
        """Return the companions that this client uses."""
        return [companion for companion, users in self._users.items() if client in users]

    def users(self, companion: LegacyCompanion) -> Collection[object]:
        """Return the clients of a companion."""
        return self._users.get(companion, ())

    def on_client_left(self, client: object) -> None:
        for companion, users in self._users.items():
            if users.pop(client, self) is None and not users:
                self._linger.begin(companion, partial(self._stop_unused, companion))

    def _stop_unused(self, companion: LegacyCompanion) -> None:
        if self._users.get(companion) == {}:
            self._stop(companion, _UNUSED)


class ConnectingCalls:
    """The calls that wait until their server is connected; `maxQueued` in its definition limits them."""

    def __init__(self) -> None:
        self._calls: dict[ManagedServer, set[Call]] = {}

    def add(self, call: Call) -> None:
        """Raise Overloaded if too many calls wait for the server: each holds memory."""
        server = call.server
        if len(self._calls.get(server, ())) >= server.spec.max_queued:
            name, limit = server.spec.name, server.spec.max_queued
            raise Overloaded(
                f"{name}: {limit} calls are already waiting until it is connected (`maxQueued` in its "
                "definition sets the limit); nothing was sent, try again later",
                server=name,
            )
        self._calls.setdefault(server, set()).add(call)

    def remove(self, call: Call) -> None:
        """The call no longer waits. Does nothing if it did not wait."""
        if (calls := self._calls.get(call.server)) is not None:
            calls.discard(call)
            if not calls:
                del self._calls[call.server]

    def __len__(self) -> int:
        return sum(map(len, self._calls.values()))


class Connections:
    """Which connection each call uses, and the calls that wait for theirs."""

    def __init__(self, operations: Operations, spawn: Spawn) -> None:
        self._operations = operations
        self.companions = LegacyCompanions(operations, spawn)
        self._waiting = ConnectingCalls()

    def __len__(self) -> int:
        return len(self._waiting)

    def upstream(self, server: ManagedServer) -> Upstream:
        """Return the connection of a server. Raises NotReady."""
        if server.upstream is None:
            raise self._operations.not_ready_error(server)
        return server.upstream

    def choose(
        self, client: object, context: ClientContext, server: ManagedServer, method: str
    ) -> ManagedServer:
        """Return the connection for a request of a legacy client that can be asked something."""
        upstream = server.upstream
        if upstream is not None and upstream.asks_by_request:
            return server
        return self.companions.choose(client, context, server, may_open=method in INTERACTIVE_METHODS)

    def add(self, call: Call) -> None:
        """The call waits for its connection. Raises Overloaded if too many do."""
        self._waiting.add(call)

    def remove(self, call: Call) -> None:
        """The call no longer waits. Does nothing if it did not wait."""
        self._waiting.remove(call)

    async def wait_connected(self, call: Call) -> ManagedServer:
        """Return the connection for the call once it is there. Raises NotReady."""
        may_open = call.route.method in INTERACTIVE_METHODS
        return await self.companions.wait_connected(call.caller, call.context, call.server, may_open=may_open)
