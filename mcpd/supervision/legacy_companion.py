"""The second connection of a server that speaks both eras, for clients of the legacy era that it may ask.

Tools that are written in the ordinary way of the SDKs ask the client with a request (`elicitation/create`,
`sampling/createMessage`, `roots/list`). The modern era has no such requests, so these tools fail on a modern
connection, whichever client calls them. A legacy client that connects directly gets a legacy session, in
which they work; through mcpd it gets the same with a legacy connection.
"""

from __future__ import annotations

import logging

import attrs
import trio

from mcpd.model.events import EventKind
from mcpd.model.server_spec import InvalidSpec, ServerSpec
from mcpd.protocol.upstream_session import FEATURES, ServerNotification, Upstream
from mcpd.supervision.catalog import Catalog
from mcpd.supervision.managed_server import ManagedServer, ServerClients
from mcpd.supervision.message_tap import ServerTaps
from mcpd.supervision.server_log import ServerLog
from mcpd.supervision.supervisor_context import SupervisorContext
from mcpd.wire.message import ABSENT


class LegacyCompanion(ManagedServer):
    """A connection to `original` in the legacy era, with its own process or session.

    It runs like any server, and is switched on, off and reconnected together with `original`. For users it is
    a part of `original`: it has the same name, log and statistics, and its own status is never announced.
    """

    original: ManagedServer

    def __init__(self, original: ManagedServer, context: SupervisorContext, clients: ServerClients) -> None:
        self.original = original
        self.refusal = ""
        """Why the server cannot ask anything on this connection, so that it must not be used."""
        super().__init__(_companion_spec(original.spec), context, original, clients)

    def update_spec(self, spec: ServerSpec) -> None:
        super().update_spec(_companion_spec(spec))

    @property
    def has_been_connected(self) -> bool:
        return self._tracker.connections > 0

    async def wait_tried(self) -> None:
        """Wait until the first attempt to connect has succeeded or failed. The caller bounds the wait."""
        while not (
            self.has_been_connected or self.refusal or self.is_closed or self._tracker.state.is_settled
        ):
            await self._tracker.wait_changed()

    async def _become_ready(self, upstream: Upstream, lists: bytes = b"") -> None:
        self.refusal = _why_unusable(upstream)
        if self.refusal:
            self._tracker.notify()
            await trio.sleep_forever()  # until it is closed
        await super()._become_ready(upstream, lists)
        self.original.note_legacy_works()
        theirs = self.original.catalog or Catalog()
        for feature in FEATURES:
            if self.catalog is not None and self.catalog.names(feature) != theirs.names(feature):
                self._list_changed(feature, "")

    @property
    def label(self) -> str:
        return f"{self.spec.name} (legacy connection)"

    def _failure_level(self, level: int) -> int:
        """A server that speaks only the modern era is no reason for a warning."""
        return level if self.has_been_connected else logging.DEBUG

    def _open_log(self, context: SupervisorContext) -> ServerLog:
        shared = self.original.log
        return ServerLog(shared.path, context.redactor, shared)

    def _make_taps(self, context: SupervisorContext) -> ServerTaps:
        return ServerTaps(self.spec.name, context.redactor.mask, self.original.taps)

    def _publish(self, kind: EventKind, message: str) -> None:
        if kind is EventKind.STATUS and not self.original.is_closed:
            self.original.publish_status()

    def _list_changed(self, feature: str, summary: str) -> None:
        """Notify the clients, which see these lists (`catalog_for_legacy`). What users see are those of the
        original."""
        self._context.changes.value += 1
        if self._tracker.state.is_settled:  # `_become_ready` compares the lists of a new connection
            self.notifications(ServerNotification(f"notifications/{feature}/list_changed", ABSENT))


def catalog_for_legacy(server: ManagedServer) -> Catalog | None:
    """Return the lists for clients that use the server's companion: its own, once it has been connected."""
    companion = server.companion
    if isinstance(companion, LegacyCompanion) and companion.has_been_connected:
        return companion.catalog
    return server.catalog


def may_have_companion(server: ManagedServer) -> bool:
    """Return whether a second connection is acceptable for the definition, and possible as far as is known.

    Not with an `era` in the definition, which decides, and not where a second process might do harm (see
    `ServerSpec.is_single_process`).
    """
    upstream = server.upstream
    if upstream is None:
        if server.companion is None:
            return False
    elif upstream.asks_by_request:
        return False
    spec = server.spec
    return (
        server.original is None
        and spec.era == "auto"
        and not spec.is_single_process
        and not server.companion_refusal
        and not isinstance(spec, InvalidSpec)
    )


def _why_unusable(upstream: Upstream) -> str:
    """Return why a server cannot ask anything on this connection; empty if it can."""
    if not upstream.asks_by_request:
        return f"it speaks {upstream.version} only"
    if upstream.link.session == "":
        return f"its {upstream.version} has no session, without which it cannot ask"
    return ""


def _companion_spec(spec: ServerSpec) -> ServerSpec:
    return attrs.evolve(spec, era="legacy", lazy=False)
