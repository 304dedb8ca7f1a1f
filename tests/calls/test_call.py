"""The states of a call, its progress, and what its client gets as the response."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import trio.testing
from msgspec import Raw

from mcpd.calls.call import Call, CallState, Progress
from mcpd.calls.responses import restore_alias
from mcpd.io.reader import traffic
from mcpd.model.errors import LinkLost
from tests.gateway.mcp_client import MODERN, meta
from tests.gateway.model import LEGACY, Json, Recorder, Stub, User, World, world

Clock = trio.testing.MockClock


def make_call(state: CallState = CallState.PREPARING) -> Call:
    return Call(
        **dict.fromkeys(("caller", "request", "context", "server", "route")),  # type: ignore[arg-type]
        handler=Stub(),
        params=b"{}",
        state=state,
    )


def test_progress_increases_over_all_rounds() -> None:
    """A report that does not increase is dropped: the protocol forbids it."""
    progress = Progress()

    def report(**members: object) -> Json | None:
        raw = {name: Raw(json.dumps(value).encode()) for name, value in members.items()}
        if not progress.advance(raw):
            return None
        return {name: json.loads(bytes(value)) for name, value in raw.items()}

    assert report(progress=1, total=9) == {"progress": 1, "total": 9}
    assert report(progress=1) is None
    assert report(progress=0.5) is None
    assert report(progress="2") is None
    assert report() is None
    assert report(progress=2) == {"progress": 2}
    progress.start_round()
    assert progress.base == 2.0
    assert report(progress=0) is None
    assert report(progress=1, total="x") is None
    assert report(progress=1, total=3) == {"progress": 3, "total": 5}
    assert report(progress=2) == {"progress": 4}


@pytest.mark.parametrize(
    ("result", "seen"),
    [
        (
            {"contents": [{"uri": "a:1"}, {"uri": "b:1"}, 5], "x": 1},
            {"contents": [{"uri": "mcpd://two/a:1"}, {"uri": "b:1"}, 5], "x": 1},
        ),
        ({"contents": {"uri": "a:1"}}, {"contents": {"uri": "a:1"}}),
        ({"x": 1}, {"x": 1}),
        ([], []),
    ],
)
def test_resource_is_returned_under_the_uri_that_was_asked_for(result: object, seen: object) -> None:
    raw = Raw(json.dumps(result).encode())
    assert json.loads(bytes(restore_alias(raw, "a:1", "mcpd://two/a:1"))) == seen


# ── in a session ────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
async def w() -> AsyncIterator[World]:
    async with world() as made:
        yield made


def send(user: User, params: Json | None = None, method: str = "tools/call") -> Recorder:
    received = Recorder(user)
    body: Json = {"name": "t", **(params or {})}
    if user.kind == "modern":
        body["_meta"] = {**meta(user.capabilities), **body.get("_meta", {})}
    received.say({"id": 7, "method": method, "params": body})
    return received


def respond(w: World, **members: object) -> None:
    """Answer the only request at the server."""
    (call,) = w.wire.requests.outstanding()
    traffic.more_expected = False
    w._say({"id": int(call.key), **members})
    assert traffic.more_expected, "the next message will come soon"


@pytest.mark.parametrize(
    ("kind", "version", "result", "seen"),
    [
        ("legacy", LEGACY, {"resultType": "x"}, {"resultType": "x"}),
        ("modern", LEGACY, {"a": 1}, {"resultType": "complete", "a": 1}),
        ("legacy", MODERN, {"resultType": "complete", "a": 1}, {"a": 1}),
        ("legacy", MODERN, {"a": 1, "resultType": "complete"}, {"a": 1}),
        ("modern", MODERN, {"resultType": "other"}, {"resultType": "other"}),
    ],
)
async def test_result_is_translated_unless_both_revisions_are_equal(
    kind: str, version: str, result: Json, seen: Json
) -> None:
    async with world(version=version) as w:
        received = send(w.user(kind, {}))
        respond(w, result=result)
        assert received.answers == [{"jsonrpc": "2.0", "id": 7, "result": seen}]


@pytest.mark.parametrize(
    ("kind", "code", "sent"),
    [
        ("modern", -32000, -32603),
        ("modern", -32019, -32603),
        ("modern", -31999, -31999),
        ("modern", -32020, -32020),
        ("legacy", -32000, -32000),
        ("legacy", -32019, -32019),
    ],
)
async def test_modern_clients_get_no_code_that_their_revision_reserves(
    w: World, kind: str, code: int, sent: int
) -> None:
    received = send(w.user(kind, {}))
    (call,) = w.wire.requests.outstanding()
    error = LinkLost("gone", may_have_run=True)
    error.rpc = code  # type: ignore[misc]
    call.failed(error)
    (answer,) = received.answers
    assert (answer["error"]["code"], answer["error"]["message"]) == (sent, "gone")


@pytest.mark.parametrize("with_token", [True, False])
async def test_progress_carries_the_clients_token(w: World, *, with_token: bool) -> None:
    user = w.user("legacy", {})
    send(user, {"_meta": {"progressToken": "u0"}} if with_token else None)
    (call,) = w.wire.requests.outstanding()
    frames: list[Json] = []
    user.take = lambda frame: frames.append(json.loads(frame))  # type: ignore[method-assign]
    params: Json = {
        "progressToken": int(call.key),
        "progress": 1,
        "_meta": {"io.modelcontextprotocol/x": 1, "v": 1},
    }
    w._say({"method": "notifications/progress", "params": params})
    seen = [{"progressToken": "u0", "progress": 1, "_meta": {"v": 1}}] if with_token else []
    assert [frame["params"] for frame in frames] == seen


async def test_params_are_translated_between_revisions() -> None:
    for version, params in ((LEGACY, {"name": "t", "task": {}}), ("2025-06-18", {"name": "t"})):
        async with world(version=version) as w:
            send(w.user("legacy", {}), {"task": {}})
            (frame,) = w.wire.frames
            sent: Any = json.loads(frame)["params"]
            del sent["_meta"]
            assert sent == params


async def test_cancelled_call_ends_where_it_is(autojump_clock: Clock, w: World) -> None:
    """At its server, or in the task that works on it."""
    user = w.user("legacy", {})
    for lost in (False, True):
        if lost:
            w.lose()
        asked = user.call()
        w.hear()
        (call,) = user.session.calls.values()
        assert call.state == (CallState.PREPARING if lost else CallState.SENT)
        user.cancel(asked)
        assert call.state is CallState.DONE  # type: ignore[comparison-overlap]
        assert user.session.calls == {}
    w.connect()
    await trio.testing.wait_all_tasks_blocked()
    w.hear()
    assert w.work == {}
    assert w.empty() == []
