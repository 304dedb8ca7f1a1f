"""Cached results: who gets which, for how long, and what ends them."""

from __future__ import annotations

import itertools
from typing import Any

import attrs
import pytest
import trio
import trio.testing

from mcpd.calls import engine
from mcpd.protocol.upstream_session import ServerNotification
from mcpd.supervision.result_cache import MAX_ENTRY, MAX_SIZE, ResultCache
from mcpd.wire.message import ABSENT
from tests.calls.test_engine import put, sent
from tests.gateway.mcp_client import MODERN, meta
from tests.gateway.model import LEGACY, Json, Recorder, User, World, make_catalog, world

Clock = trio.testing.MockClock
URI = "file:///a"


_ids = itertools.count(1000)


def read(user: User, uri: str = URI, **params: Any) -> Recorder:
    received = Recorder(user)
    declared = meta(user.capabilities) if user.kind == "modern" else {}
    params["_meta"] = {**declared, **params.get("_meta", {})}
    received.say({"id": next(_ids), "method": "resources/read", "params": {"uri": uri, **params}})
    return received


def answer(w: World, request: Json, ttl: float = 60_000, scope: str = "public", text: str = "x") -> None:
    contents = [{"uri": URI, "text": text}]
    result = {"resultType": "complete", "contents": contents, "ttlMs": ttl, "cacheScope": scope}
    w._say({"id": request["id"], "result": result})


def updated(w: World, uri: str) -> None:
    """The server reports that a resource has changed."""
    method = "notifications/resources/updated"
    w.gateway.on_notification(w.server, ServerNotification(method, ABSENT, None, uri))


def result(received: Recorder) -> Any:
    (message,) = received.answers
    return message["result"]


def text(received: Recorder) -> str:
    found: str = result(received)["contents"][0]["text"]
    return found


async def settled() -> None:
    await trio.testing.wait_all_tasks_blocked()


async def test_public_result_is_used_for_all_clients_while_it_is_fresh(autojump_clock: Clock) -> None:
    """A modern client gets the remaining lifetime, and a legacy client none."""
    async with world(version=MODERN) as w:
        first, other, old = w.user("modern"), w.user("modern"), w.user("legacy")
        asked = read(first)
        (request,) = sent(w)
        answer(w, request)
        assert result(asked)["ttlMs"] == 60_000
        await trio.sleep(20)
        assert result(read(other))["ttlMs"] == 40_000
        assert "ttlMs" not in result(read(old))
        assert sent(w) == []
        assert (w.server.results.hits, w.server.results.misses) == (2, 1)
        await trio.sleep(40)
        again = read(other)
        (request,) = sent(w)
        answer(w, request, text="new")
        assert text(again) == "new"


async def test_private_result_is_used_for_the_same_client_only() -> None:
    async with world(version=MODERN) as w:
        one, other = w.user("modern"), w.user("modern")
        mine = read(one)
        (request,) = sent(w)
        answer(w, request, scope="private", text="one")
        theirs = read(other)
        (request,) = sent(w)
        answer(w, request, scope="private", text="other")
        assert [text(each) for each in (mine, read(one), theirs, read(other))] == [
            "one",
            "one",
            "other",
            "other",
        ]
        assert sent(w) == []


@pytest.mark.parametrize(("scope", "requests"), [("public", 1), ("private", 8)])
async def test_equal_requests_share_one_request_to_the_server(scope: str, requests: int) -> None:
    """100 reads by 8 clients; a private result is requested once for each of them."""
    async with world(version=MODERN) as w:
        users = [w.user("modern") for _ in range(8)]
        reads = [read(users[number % 8]) for number in range(100)]
        total = 0
        while pending := sent(w):
            total += len(pending)
            for request in pending:
                caller = w.wire._pending[b"%d" % request["id"]].caller  # type: ignore[attr-defined]
                answer(w, request, scope=scope, text=str([each.session for each in users].index(caller)))
            await settled()
        if scope == "public":
            assert {text(each) for each in reads} == {"0"}
        else:
            assert [text(each) for each in reads] == [str(number % 8) for number in range(100)]
        assert total == requests


@pytest.mark.parametrize("how", ["cancelled", "error", "no lifetime"])
async def test_others_do_not_depend_on_the_request_they_wait_for(how: str) -> None:
    async with world(version=MODERN) as w:
        one, other = w.user("modern"), w.user("modern")
        first = read(one)
        waiting = [read(other), read(w.user("modern"))]
        (request,) = sent(w)
        if how == "cancelled":
            one.leave()
        elif how == "error":
            w._say({"id": request["id"], "error": {"code": -32603, "message": "no"}})
        else:
            answer(w, request, ttl=0)
        assert len(first.answers) == (how != "cancelled")
        await settled()
        while pending := [each for each in sent(w) if each["method"] == "resources/read"]:
            for each in pending:
                answer(w, each, text="theirs")
            await settled()
        assert [text(each) for each in waiting] == ["theirs"] * 2
        assert w.server.results.pending == {}


@pytest.mark.parametrize("cause", ["resources", "updated", "reconnect", "definition", "cleared"])
@pytest.mark.parametrize("late", [True, False])
async def test_change_ends_a_result(cause: str, *, late: bool) -> None:
    """Also one that is still on its way when the change is reported."""
    async with world(version=MODERN) as w:
        user = w.user("modern")
        read(user)
        (request,) = sent(w)
        if not late:
            answer(w, request, text="old")
        if cause == "updated":
            updated(w, URI)
        elif cause == "reconnect":
            w.server.results.clear()  # as `ManagedServer` does
            w.lose()
            w.connect()
        elif cause == "definition":
            w.server.results.clear()
            w.server.spec = attrs.evolve(w.server.spec, description="new")
        else:
            w.server.results.forget("resources")
        if late and cause != "reconnect":
            answer(w, request, text="old")
        again = read(user)
        (request,) = sent(w)
        answer(w, request, text="new")
        assert text(again) == "new"


@pytest.mark.parametrize(
    "params",
    [
        {"uri": "file:///b"},
        {"_meta": {"tenant": 1}},
        {"inputResponses": {}},
        {"more": "x" * 20_000},
    ],
    ids=lambda params: next(iter(params)),
)
async def test_other_request_is_not_answered_with_it(params: Json) -> None:
    async with world(version=MODERN) as w:
        user = w.user("modern")
        read(user)
        (request,) = sent(w)
        answer(w, request)
        received = read(user, **{"uri": URI, **params})
        assert received.answers == []
        assert len(sent(w)) == 1


async def test_trace_context_does_not_make_requests_differ() -> None:
    async with world(version=MODERN) as w:
        user = w.user("modern")
        read(user, _meta={"traceparent": "00-1"})
        (request,) = sent(w)
        answer(w, request)
        assert text(read(user, _meta={"traceparent": "00-2", "progressToken": 5})) == "x"


READ_ONLY = {"name": "search", "annotations": {"readOnlyHint": True}, "inputSchema": {"type": "object"}}
WRITES = {"name": "write", "inputSchema": {"type": "object"}}


@pytest.mark.parametrize("version", [LEGACY, MODERN])
async def test_tools_are_cached_as_defined_if_they_only_read(autojump_clock: Clock, version: str) -> None:
    async with world(version=version) as w:
        w.server.spec = attrs.evolve(w.server.spec, cache={"search": 60.0, "write": 60.0})
        w.server.catalog = make_catalog([READ_ONLY, WRITES, {**READ_ONLY, "name": "other"}])
        one, other = w.user("legacy", {}), w.user("legacy", {})
        for name, requests in ("search", 1), ("write", 2), ("other", 2):
            for user in one, other:
                received = put(user, name=name, arguments={"q": 1})
                for request in sent(w):
                    requests -= 1
                    w._say(
                        {
                            "id": request["id"],
                            "result": {"resultType": "complete", "content": [], "n": requests},
                        }
                    )
                assert result(received)["content"] == []
            assert requests == 0, name
        await trio.sleep(60)
        put(one, name="search", arguments={"q": 1})
        (request,) = sent(w)
        w._say({"id": request["id"], "result": {"content": [], "isError": True}})
        put(one, name="search", arguments={"q": 1})
        assert len(sent(w)) == 1


async def test_nothing_is_cached_if_the_definition_says_so() -> None:
    async with world(version=MODERN) as w:
        w.server.spec = attrs.evolve(w.server.spec, cache=None)
        user = w.user("modern")
        for _ in range(2):
            read(user)
            (request,) = sent(w)
            answer(w, request)


def test_cache_is_bounded_by_bytes() -> None:
    before, cache = ResultCache.total, ResultCache()
    for number in range(100):
        cache.put("tools", (b"%d" % number, 0), b"x" * (MAX_SIZE // 10), 10.0, 0)
        assert cache._size <= MAX_SIZE
    cache.put("tools", (b"large", 0), b"x" * MAX_ENTRY, 10.0, 0)
    assert cache.get("tools", (b"large", 0), 0.0) is None
    assert cache.get("tools", (b"99", 0), 0.0) is not None
    assert cache.get("tools", (b"1", 0), 0.0) is None
    assert cache.get("tools", (b"99", 0), 10.0) is None
    assert cache.clear() == 8
    assert ResultCache.total == before


def test_caches_of_all_servers_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mcpd.supervision.result_cache.MAX_TOTAL", ResultCache.total + 10_000)
    one, other = ResultCache(), ResultCache()
    for number in range(20):
        one.put("tools", (b"%d" % number, 0), b"x" * 1000, 10.0, 0)
    other.put("tools", (b"0", 0), b"x" * 1000, 10.0, 0)
    assert other.get("tools", (b"0", 0), 0.0) is None
    one.clear()
    other.put("tools", (b"0", 0), b"x" * 1000, 10.0, 0)
    assert other.get("tools", (b"0", 0), 0.0) is not None
    other.clear()


async def test_request_cancelled_while_it_is_prepared_keeps_no_equal_one_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The cancellation arrives together with what the task of the request waited for."""
    async with world(version=MODERN) as w:
        one, other = w.user("modern"), w.user("modern")
        w.lose()
        read(one)
        (key,) = one.session.calls

        async def take_turn(of: object) -> None:
            await trio.lowlevel.checkpoint()
            one.session.cancel(key, "the client cancelled it")

        monkeypatch.setattr(engine, "take_turn", take_turn)
        w.connect()
        await settled()
        assert one.session.calls == w.server.results.pending == {}
        asked = read(other)
        (request,) = sent(w)
        answer(w, request)
        assert text(asked) == "x"
