"""Which calls must wait for others at the same server, and when they may go.

A legacy server that cannot say for whom it asks gets the calls of one client at a time, of those that
could be asked, until it has shown that it never asks (DESIGN D6). A server that loses overlapping
updates gets one call at a time, if its definition says so.
"""

from __future__ import annotations

import functools

from mcpd.gateway.asker import Request
from mcpd.gateway.relay import MAY_ASK, Relay
from mcpd.model.errors import McpdError
from mcpd.supervision.server import ManagedServer
from mcpd.wire import message as wire
from mcpd.wire.message import BadFrame


def enter(relay: Relay, request: Request) -> bool:
    """Whether the relay may be submitted at once; else that is done when its turn has come."""
    server = relay.server
    owner: object = None
    if server.spec.concurrency != "free" and must_be_alone(server, request.method, _name(relay)):
        owner = relay
    elif (
        relay.asker.may_be_asked
        and request.method in MAY_ASK
        and not relay.translation.from_modern
        and not relay.upstream.link.tells_apart
        and not server.curiosity.is_quiet
        and not (request.method == "tools/call" and _reads_only(server, _name(relay)))
    ):
        owner = relay.session
    if owner is None:
        return True
    relay.lined = True
    return server.line.enter(relay, owner, lambda: _go(relay))


def leave(relay: Relay) -> None:
    """It is over."""
    relay.lined = False
    if relay.asker.may_be_asked:
        relay.server.curiosity.called()
    relay.server.line.leave(relay)


def must_be_alone(server: ManagedServer, method: str, tool: str) -> bool:
    """Whether the server's definition keeps other calls away from this one."""
    if method != "tools/call" or server.spec.concurrency == "free":
        return False
    return server.spec.concurrency == "serial" or not _reads_only(server, tool)


def _go(relay: Relay) -> None:
    request = relay.request
    if request is None:
        leave(relay)
        return
    try:
        upstream = relay.server.upstream
        if upstream is None:
            raise relay.session.gateway.core.not_ready(relay.server)
        relay.upstream = upstream
        relay.session.submit(relay)
    except McpdError as error:
        relay.session.refuse(request, error, relay)


def _name(relay: Relay) -> str:
    try:
        return str(wire.value(wire.members(relay.params).get("name", b"null")))
    except BadFrame:
        return ""


def _reads_only(server: ManagedServer, tool: str) -> bool:
    catalog = server.catalog
    item = catalog.tool(tool) if catalog is not None else None
    return item is not None and says_it_reads_only(item.raw)


@functools.lru_cache(maxsize=1024)
def says_it_reads_only(tool: bytes) -> bool:
    """The server's own word, `annotations.readOnlyHint`."""
    try:
        annotations = wire.value(wire.members(tool).get("annotations", b"null"))
    except BadFrame:
        return False
    return isinstance(annotations, dict) and annotations.get("readOnlyHint") is True
