"""Clients of the revisions before 2026-07-28: handshake, log level, subscriptions, roots."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import pytest
import trio
import trio.testing
from msgspec import Raw

from mcpd.calls.client_context import ClientIdentity
from tests.gateway.mcp_client import MODERN
from tests.gateway.model import LEGACY, Json, Recorder, User, World, make_upstream, world

Clock = trio.testing.MockClock


@pytest.fixture
async def w() -> AsyncIterator[World]:
    async with world() as made:
        made.server.upstream.capabilities["resources"] = {"subscribe": True}
        yield made


def connect(w: World) -> Recorder:
    """Open a session without a handshake."""
    user: User = User.__new__(User)
    heard: list[bytes] = []
    user.take = heard.append  # type: ignore[method-assign, assignment]
    user.session = w.gateway.open_session(
        w.gateway.view("srv"), ClientIdentity(via="socket"), heard.append, w.spawn
    )
    return Recorder(user)


def ask(received: Recorder, method: str, **params: object) -> Json:
    received.say({"id": 1, "method": method, **({"params": params} if params else {})})
    return received.answers.pop()


@pytest.mark.parametrize(
    ("offered", "version"),
    [("2024-11-05", "2024-11-05"), (LEGACY, LEGACY), ("2026-07-28", LEGACY), (5, LEGACY)],
)
async def test_handshake(w: World, offered: object, version: str) -> None:
    received = connect(w)
    session = received.user.session
    assert not session.is_initialized
    capabilities: Json = {"sampling": {}}
    info = {"name": "n" * 99, "version": "1", "title": "x"}
    result = ask(received, "initialize", protocolVersion=offered, capabilities=capabilities, clientInfo=info)[
        "result"
    ]
    assert result["protocolVersion"] == version == session.version == session.context.version
    assert "instructions" not in result
    assert session.is_initialized
    assert session.peer == "n" * 80 + " 1"
    assert session.context.accepts_server_requests


async def test_log_level_is_set_at_the_server(w: World) -> None:
    received = connect(w)
    assert ask(received, "logging/setLevel")["error"]["code"] == -32602
    assert ask(received, "logging/setLevel", level="loud")["error"]["code"] == -32602
    assert w.server.interests.log_level is None
    assert ask(received, "logging/setLevel", level="error")["result"] == {}
    assert w.server.interests.log_level == "error"
    ask(received, "initialize", protocolVersion=LEGACY)
    assert received.user.session.context.log_level == "error"
    assert ask(received, "ping")["result"] == {}


@pytest.mark.parametrize(
    ("outcome", "subscribable", "error"),
    [("", True, None), ("refused: no", True, "unsupported"), ("", False, "unsupported")],
)
async def test_subscription(
    autojump_clock: Clock, w: World, outcome: str, subscribable: bool, error: str | None
) -> None:
    version = LEGACY if subscribable else MODERN  # a legacy server is asked, whatever it declares
    w.server.upstream = make_upstream(w.wire, version, resources={})
    received = connect(w)
    received.say({"id": 1, "method": "resources/subscribe", "params": {"uri": "a:1"}})
    await trio.testing.wait_all_tasks_blocked()
    w.server.interests._set_result("a:1", outcome)
    await trio.sleep(1)
    (answer,) = received.answers
    assert (answer["error"]["data"]["code"] if "error" in answer else None) == error
    assert (w.server.interests.resources == {"a:1"}) is (error is None)
    received.answers.clear()
    assert ask(received, "resources/unsubscribe", uri="a:1")["result"] == {}
    assert not w.server.interests.resources
    assert "uri" in ask(received, "resources/unsubscribe")["error"]["message"]
    assert "uri" in ask(received, "resources/subscribe")["error"]["message"]


@pytest.mark.parametrize(
    ("answer", "roots"),
    [
        ({"result": {"roots": [{"uri": "file:///a"}]}}, [{"uri": "file:///a"}]),
        ({"result": {}}, []),
        ({"result": {"roots": 5}}, None),
        ({"result": 5}, None),
        ({"error": {"code": 1, "message": "no"}}, None),
        ({"result": {"roots": [{}] * 101}}, [{}] * 100),
    ],
)
async def test_roots_are_fetched_when_they_change(w: World, answer: Json, roots: object) -> None:
    """What is malformed changes nothing."""
    user = w.user("legacy", {"roots": {}})
    session = user.session
    changes: list[object] = []
    w.gateway.on_roots_changed = changes.append  # type: ignore[method-assign, assignment]
    session.roots = (Raw(b"1"),)
    user.say({"method": "notifications/roots/list_changed"})
    (question,) = user.questions
    assert not session.knows_roots
    user.say({"id": question["id"], **answer})
    assert len(user.questions) == 1, "asked once"
    found = [json.loads(bytes(root)) for root in session.roots]
    assert found == ([1] if roots is None else roots)
    assert len(changes) == (roots is not None)
    assert session.knows_roots
