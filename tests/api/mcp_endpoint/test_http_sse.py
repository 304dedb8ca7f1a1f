"""Sessions over HTTP+SSE in memory: their limits, and how they begin and end."""

from __future__ import annotations

import json
from typing import Any, cast

import attrs
import pytest

from mcpd.api.http.parser import Head
from mcpd.api.mcp import sse as http_sse
from mcpd.api.mcp.legacy import Principal
from mcpd.api.mcp.scope import EndpointScope
from mcpd.api.mcp.sse import SseSessions
from mcpd.calls.client_context import ClientIdentity
from mcpd.gateway.gateway import Gateway
from mcpd.state.clients import ClientRegistry
from tests.api.mcp_endpoint.line import Line
from tests.api.mcp_endpoint.test_legacy import VIEW, Conversation, Everything, StandIn

JSON_TYPE = {b"content-type": b"application/json; charset=utf-8"}
PING = b'{"jsonrpc":"2.0","id":1,"method":"ping"}'


ALL = EndpointScope()


@attrs.define(eq=False)
class World:
    gateway: StandIn
    sessions: SseSessions
    me: Principal
    somebody: Principal

    def open(self, scope: EndpointScope = ALL) -> tuple[Line, Conversation]:
        line = Line(head("GET", "/sse/caf%C3%A9"))
        self.sessions.open(line.exchange, VIEW, scope, self.me, cast("Any", None))
        return line, self.gateway.opened[-1]

    def post(
        self,
        stream: Line,
        body: bytes = PING,
        *,
        view: Any = VIEW,
        scope: EndpointScope = ALL,
        by: Principal | None = None,
        headers: dict[bytes, bytes] = JSON_TYPE,
    ) -> str:
        """Post to the stream's message endpoint. Return the status line."""
        path, _, query = endpoint(stream).partition("?")
        line = Line(head("POST", path, query, headers))
        self.sessions.receive(body, line.exchange, view, scope, by or self.me)
        return line.got.partition(b"\r\n")[0].decode().removeprefix("HTTP/1.1 ")


def head(method: str, path: str, query: str = "", headers: dict[bytes, bytes] | None = None) -> Head:
    return Head(method, path, query, headers or {}, frozenset(), False, True)


def endpoint(stream: Line) -> str:
    first = stream.events[0]
    assert first.event == "endpoint"
    return first.data.decode()


def received(stream: Line) -> list[object]:
    assert {event.event for event in stream.events[1:]} <= {"message"}
    return [json.loads(event.data) for event in stream.events[1:]]


@pytest.fixture
def world() -> World:
    gateway = StandIn(cast("Any", None))
    client = ClientRegistry().add(None)
    me, somebody = (Principal(name, ClientIdentity(via="http"), client) for name in ("me", "somebody"))
    return World(gateway, SseSessions(cast("Gateway", gateway)), me, somebody)


@pytest.mark.parametrize("end", ["hang up", "close"])
def test_session_lasts_as_long_as_its_stream(world: World, end: str) -> None:
    stream, conversation = world.open()
    if end == "hang up":
        stream.exchange.hang_up("the client left")
    else:
        world.sessions.close("mcpd is stopping")
        assert stream.over
    assert conversation.closed == ("the client left" if end == "hang up" else "mcpd is stopping")
    assert world.post(stream) == "404 Not Found"
    assert len(world.sessions) == 0


def test_silent_stream_is_kept_alive(world: World) -> None:
    stream, _ = world.open()
    assert stream.exchange.on_quiet is not None
    before = stream.got
    stream.exchange.on_quiet()
    assert stream.got.removeprefix(before).startswith(b":")


def test_session_belongs_to_one_client_and_one_endpoint(world: World) -> None:
    """The id of a session alone does not give access to it."""
    stream, conversation = world.open()
    assert world.post(stream, by=world.somebody) == "404 Not Found"
    assert world.post(stream, scope=EndpointScope("other")) == "404 Not Found"
    assert (conversation.received, conversation.closed) == ([], "")


def test_session_ends_with_its_server(world: World) -> None:
    stream, conversation = world.open()
    assert world.post(stream, view=Everything()) == "404 Not Found"
    assert conversation.closed == "the server was removed"
    assert stream.over


def test_number_of_sessions_is_limited(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_sse, "MAX_SESSIONS", 1)
    first, _ = world.open()
    refused = Line(head("GET", "/sse"))
    world.sessions.open(refused.exchange, VIEW, ALL, world.me, cast("Any", None))
    assert b"503" in refused.got
    assert b"1 HTTP+SSE sessions are open" in refused.got
    first.exchange.hang_up("left")
    world.open()
