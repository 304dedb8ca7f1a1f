"""A connection that speaks MCP to one server, unrenamed: what `mcpd/attach` turns a connection into.

What belongs to a hop (handshake, ping, discovery) is answered here; everything else is relayed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec

from mcpd.core import Core
from mcpd.gateway import legacy, modern
from mcpd.gateway.relay import Relay, Send, may_call, progress_token, refused, tool_name
from mcpd.model.errors import McpdError, UnknownTool
from mcpd.supervision.server import ManagedServer
from mcpd.wire import message as wire
from mcpd.wire.message import ABSENT, BadFrame, Message
from mcpd.wire.meta import may_have_meta

_OF_THIS_HOP = {**legacy.ANSWERS, **modern.ANSWERS}
_INVALID_REQUEST, _INVALID_PARAMS = -32600, -32602
Spawn = Callable[[Callable[[], Awaitable[None]]], None]


class Attached:
    """One client's view of one server. `receive` never blocks; `close` cancels what is under way."""

    def __init__(self, core: Core, server: ManagedServer, send: Send, spawn: Spawn) -> None:
        self._core = core
        self._server = server
        self._send = send
        self._spawn = spawn
        self._open: dict[bytes, Relay] = {}
        self._waiting: set[bytes] = set()
        """Ids of requests that go out once the server is there."""

    def receive(self, message: Message) -> None:
        method, server = message.method, self._server
        if message.id is ABSENT or not method:
            if method == "notifications/cancelled":
                self._cancelled(message)
            return  # other notifications are this hop's own, and we have asked for no response
        local = _OF_THIS_HOP.get(method)
        key = bytes(message.id)
        if local is not None:
            self._send(local(message, server))
        elif key in self._open or key in self._waiting:
            words = "a request with this id is under way: its answer could not be told from this one's"
            self._send(wire.error(key, wire.error_body(_INVALID_REQUEST, words)))
        elif server.upstream is not None:
            self._relay(message, key)
        else:
            self._waiting.add(key)
            self._spawn(lambda: self._relay_when_ready(message, key))

    @property
    def is_at_work(self) -> bool:
        """Whether answers are still to come."""
        return bool(self._open or self._waiting)

    def close(self, reason: str) -> None:
        """The client is gone."""
        relays, self._open = list(self._open.values()), {}
        if self._server.upstream is not None:
            for started in relays:
                self._server.upstream.link.cancel(started, reason)

    def _relay(self, message: Message, key: bytes) -> None:
        server = self._server
        try:
            if server.upstream is None:
                raise self._core.not_ready(server)
            spec = server.spec
            if (spec.exclude_tools or spec.include_tools is not None) and self._filtered(message):
                return
            params = bytes(message.params)
            plain = not may_have_meta(params)
            times, method = spec.timeouts, message.method
            idle = times.call
            if times.tools and method == "tools/call":
                idle = times.tools.get(tool_name(message.params), idle)
            token = b"" if plain else progress_token(params)
            relay = Relay(key, self._send, self._open, token, idle=idle, limit=times.call_max)
            server.upstream.link.submit(relay, method, params, plain=plain)
            self._open[key] = relay
        except McpdError as error:
            self._send(refused(key, error))
        except BadFrame as error:
            self._send(wire.error(key, wire.error_body(_INVALID_PARAMS, f"params: {error}")))

    async def _relay_when_ready(self, message: Message, key: bytes) -> None:
        try:
            await self._core.ready(self._server)
        except McpdError as error:
            if key in self._waiting:
                self._send(refused(key, error))
        else:
            if key in self._waiting:  # not cancelled meanwhile
                self._relay(message, key)
        finally:
            self._waiting.discard(key)

    def _cancelled(self, message: Message) -> None:
        try:
            members = wire.members(message.params)
        except BadFrame:
            return
        key = bytes(members.get("requestId", b""))
        self._waiting.discard(key)
        started = self._open.pop(key, None)
        if started is not None and self._server.upstream is not None:
            self._server.upstream.link.cancel(started, "the client cancelled it")

    def _filtered(self, message: Message) -> bool:
        """Whether the definition's filters had the last word on this request. Raises UnknownTool."""
        name = self._server.spec.name
        if message.method == "tools/call" and not may_call(self._server, message.params):
            raise UnknownTool(f"{name}: this tool is excluded by the server's definition", server=name)
        if message.method != "tools/list":
            return False
        catalog = self._server.catalog
        tools = [msgspec.Raw(tool.raw) for tool in catalog.tools] if catalog else []
        self._send(
            wire.result(message.key, msgspec.json.encode({**modern.complete(message), "tools": tools}))
        )
        return True
