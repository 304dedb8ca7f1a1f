"""Clients of revision 2026-07-28: `_meta`, discovery and listen streams."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import attrs
import pytest

from mcpd.calls.client_context import ClientContext, ClientRequest
from mcpd.gateway.modern import apply_request_meta
from mcpd.model.errors import UnsupportedRevision
from mcpd.wire.message import BadFrame
from tests.gateway.mcp_client import MODERN, P, meta
from tests.gateway.model import LEGACY, Json, Recorder, World, make_upstream, world

MINE = json.dumps(meta()).encode()


@pytest.fixture
async def w() -> AsyncIterator[World]:
    async with world() as made:
        yield made


def applied(params: bytes) -> ClientRequest:
    request = ClientRequest(b"1", "tools/call", params, None, ClientContext(LEGACY))  # type: ignore[arg-type]
    apply_request_meta(request)
    return request


@pytest.mark.parametrize(
    ("params", "seen", "token", "modern", "has_no_meta"),
    [
        (b'{"_meta":%b,"a" : 1}' % MINE, b'{"a" : 1}', b"", True, True),
        (b'{"a" : 1,"_meta":%b}' % MINE, b'{"a":1}', b"", True, True),
        (b'{"_meta":%b}' % MINE, b"{}", b"", True, True),
        (
            b'{"_meta":{"progressToken":5},"_meta2":{"_meta":1}}',
            b'{"_meta2":{"_meta":1}}',
            b"5",
            False,
            False,
        ),
        (b'{"_meta":{"v":1},"a" : 1}', b'{"_meta":{"v":1},"a" : 1}', b"", False, False),
        (b'{"_meta":{"io.modelcontextprotocol/x":1}}', b"{}", b"", False, True),
    ],
)
def test_meta_for_mcpd_is_read_and_removed(
    params: bytes, seen: bytes, token: bytes, modern: bool, has_no_meta: bool
) -> None:
    """If nothing else is in it, the other bytes stay as they are."""
    for _ in range(2):  # the second time from the cache
        request = applied(params)
        assert (request.params, request.progress_token) == (seen, token)
        assert (request.context.modern, request.has_no_meta) == (modern, has_no_meta)


@pytest.mark.parametrize(
    ("members", "error"),
    [
        ({f"{P}protocolVersion": "2099-01-01"}, UnsupportedRevision),
        ({f"{P}protocolVersion": 5}, BadFrame),
        ({f"{P}clientCapabilities": None}, BadFrame),
        ({f"{P}logLevel": "loud"}, BadFrame),
    ],
)
def test_malformed_meta_is_refused(members: Json, error: type[Exception]) -> None:
    with pytest.raises(error):
        applied(json.dumps({"_meta": {**meta(), **members}}).encode())
    without = {k: v for k, v in meta().items() if k != f"{P}clientCapabilities"}
    with pytest.raises(BadFrame):
        applied(json.dumps({"_meta": without}).encode())


def ask(w: World, method: str, **params: object) -> tuple[Recorder, Any]:
    user = w.user("modern")
    heard: list[Json] = []
    user.take = lambda frame: heard.append(json.loads(frame))  # type: ignore[method-assign]
    received = Recorder(user)
    received.say({"id": 5, "method": method, "params": {**params, "_meta": meta()}})
    return received, heard


@pytest.mark.parametrize("instructions", ["", "Use it."])
async def test_discovery(w: World, instructions: str) -> None:
    upstream = w.server.upstream
    upstream.info = attrs.evolve(upstream.info, instructions=instructions)
    received, _ = ask(w, "server/discover")
    result = received.answers[0]["result"]
    assert result.get("instructions", "") == instructions
    assert ("instructions" in result) is bool(instructions)
    assert (result["resultType"], result["ttlMs"], result["cacheScope"]) == ("complete", 0, "private")
    assert result["_meta"][f"{P}serverInfo"]["title"] == "srv through mcpd"


@pytest.mark.parametrize(
    ("wanted", "accepted"),
    [
        ({}, {}),
        ({"toolsListChanged": True, "promptsListChanged": True}, {"toolsListChanged": True}),
        ({"toolsListChanged": 1}, {}),
        ({"resourceSubscriptions": []}, {}),
        ({"resourceSubscriptions": "a:1"}, {}),
        ({"resourceSubscriptions": ["a:1"]}, {"resourceSubscriptions": ["a:1"]}),
    ],
)
async def test_listen_stream_acknowledges_what_will_be_reported(
    w: World, wanted: Json, accepted: Json
) -> None:
    w.server.upstream = make_upstream(w.wire, tools={}, resources={"subscribe": True})
    received, heard = ask(w, "subscriptions/listen", notifications=wanted)
    (acknowledged,) = heard
    assert acknowledged["params"]["notifications"] == accepted
    assert acknowledged["params"]["_meta"] == {f"{P}subscriptionId": 5}
    (session,) = w.gateway.sessions
    assert hash(session.listen_streams[b"5"])
    session.notify_list_changed("tools")
    session.notify_list_changed("resources")
    assert len(heard) == 1 + bool(accepted.get("toolsListChanged"))
    w.gateway.end_subscriptions()
    assert received.answers[0]["result"]["resultType"] == "complete"


@pytest.mark.parametrize("wanted", [None, [], {"resourceSubscriptions": ["a:1", 5]}])
async def test_malformed_subscription_is_refused(w: World, wanted: object) -> None:
    received, heard = ask(w, "subscriptions/listen", notifications=wanted)
    assert received.answers[0]["error"]["code"] == -32602
    assert heard == []


async def test_resource_of_a_modern_server_without_subscriptions_is_left_out(w: World) -> None:
    w.server.upstream = make_upstream(w.wire, MODERN, resources={})
    _, (acknowledged,) = ask(w, "subscriptions/listen", notifications={"resourceSubscriptions": ["a:1"]})
    assert acknowledged["params"]["notifications"] == {}
