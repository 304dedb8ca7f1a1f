"""A client's MCP request passed to one server, and its answer passed back: ids changed, bytes kept."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from msgspec import Raw

from mcpd.model.errors import McpdError
from mcpd.supervision.catalog import allowed
from mcpd.supervision.server import ManagedServer
from mcpd.support.reader import traffic
from mcpd.transports.exchange import Exchange
from mcpd.wire import message as wire
from mcpd.wire.message import ABSENT, BadFrame, Message

Send = Callable[[bytes], None]


class Relay(Exchange):
    """One request under way. The client gets exactly one response, unless it cancelled."""

    client_key: bytes
    send: Send
    open: dict[bytes, Relay]
    """Where it stands under the client's id until it is over."""
    token: bytes
    """The client's progress token as JSON; empty for none."""

    def answered(self, message: Message) -> None:
        key = self.client_key
        self.open.pop(key, None)
        traffic.more_expected = True
        if message.error is not ABSENT:
            self.send(wire.error(key, message.error))
        else:
            self.send(wire.result(key, message.result))

    def progressed(self, params: Raw) -> None:
        if not self.token:
            return
        members = {**wire.members(params), "progressToken": Raw(self.token)}
        self.send(wire.notification("notifications/progress", msgspec.json.encode(members)))

    def failed(self, error: McpdError) -> None:
        self.open.pop(self.client_key, None)
        self.send(refused(self.client_key, error))


def refused(key: bytes, error: McpdError) -> bytes:
    """Our own error as a response line."""
    return wire.error(key, wire.error_body(error.rpc, error.message, error.data()))


def may_call(server: ManagedServer, params: Raw) -> bool:
    """Whether the definition's filters let this `tools/call` through."""
    spec = server.spec
    if spec.include_tools is None and not spec.exclude_tools:
        return True
    return allowed(spec, tool_name(params))


def progress_token(params: bytes) -> bytes:
    try:
        meta = wire.members(params).get("_meta")
        return b"" if meta is None else bytes(wire.members(meta).get("progressToken", b""))
    except BadFrame:
        return b""


def tool_name(params: Raw) -> str:
    try:
        return msgspec.json.decode(wire.members(params).get("name", Raw(b'""')), type=str)
    except (BadFrame, msgspec.MsgspecError):
        return ""
