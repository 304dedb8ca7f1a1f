"""Log messages of servers, sent to the clients that they may be for."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec
from msgspec import Raw

from mcpd.calls.call import INTERACTIVE_METHODS, Call
from mcpd.calls.client_context import ClientContext
from mcpd.gateway.client_session import ClientSession
from mcpd.protocol.upstream_session import LEVELS, ServerNotification
from mcpd.supervision.managed_server import ManagedServer
from mcpd.transports.outgoing_request import Exchange
from mcpd.wire import message as wire
from mcpd.wire.message import BadFrame, strip_reserved

_Receiver = tuple[ClientContext, Callable[[bytes], None]]
"""The context of a client, and how to send to it."""


def forward_log_message(
    server: ManagedServer, notification: ServerNotification, levels_set: Iterable[ClientSession]
) -> None:
    """Send a log message to the clients that it may be for and whose log level admits it; mcpd logs it
    anyway. `levels_set`: the legacy clients of the server that have set a log level.

    Streamable HTTP names the call (see `Inbound`). Otherwise it may belong to any call in flight, so each
    client with one gets it, once. Outside of calls it is for `levels_set`, since a log level applies to a
    whole session (MCP 2025-11-25, logging).
    """
    if notification.exchange is not None:
        receivers = _receivers([notification.exchange])
    elif server.upstream is None:
        return
    elif calls := [e for e in server.upstream.link.outstanding() if e.method in INTERACTIVE_METHODS]:
        receivers = _receivers(calls)
    else:
        receivers = [(session.context, session.send) for session in levels_set]
    frame = b""
    for context, send in receivers:
        if not _wants(context.log_level, context.modern, notification.params):
            continue
        if not frame:
            try:
                members = wire.members(notification.params)
            except BadFrame:
                return  # no client could read it
            strip_reserved(members)
            frame = wire.notification("notifications/message", msgspec.json.encode(members))
        send(frame)


def _receivers(exchanges: Iterable[Exchange]) -> list[_Receiver]:
    """Return each client that waits for one of these. Of several calls of one client, the one with the most
    verbose log level counts."""
    found: dict[object, tuple[int, ClientContext, Callable[[bytes], None]]] = {}
    for call in exchanges:
        if not isinstance(call, Call) or call.request is None or call.caller.scope.is_control:
            continue  # the control API has no log messages
        context = call.context
        verbosity = -LEVELS.index(context.log_level) if context.log_level else -len(LEVELS)
        if call.caller not in found or found[call.caller][0] < verbosity:
            found[call.caller] = verbosity, context, call.request.responder.send
    return [(context, send) for _, context, send in found.values()]


def _wants(level: str, modern: bool, params: Raw) -> bool:
    """Return whether a client with log level `level` gets this message."""
    if not level:
        return not modern  # a legacy client that set none gets everything
    try:
        message_level = msgspec.json.decode(wire.members(params).get("level", Raw(b'"info"')), type=str)
    except (BadFrame, msgspec.MsgspecError):
        return False
    return message_level in LEVELS and LEVELS.index(message_level) >= LEVELS.index(level)
