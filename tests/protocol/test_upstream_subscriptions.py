"""Subscriptions and log levels: sent to the server in its era's way, and its notifications reach the
clients."""

from __future__ import annotations

import itertools
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import attrs
import pytest
import trio
from trio.testing import MockClock

from mcpd.protocol import listen_stream
from mcpd.protocol.negotiate import negotiate
from mcpd.protocol.upstream_session import Hooks, NotificationInterests, ServerNotification, Upstream
from tests.transports.peer import Json, Peer, connected

EVERYTHING = {"tools": {"listChanged": True}, "resources": {"subscribe": True}, "logging": {}}
ID = "io.modelcontextprotocol/subscriptionId"
A, B = "file:///a", "file:///b"


@attrs.define(eq=False)
class Talk:
    peer: Peer
    upstream: Upstream
    interests: NotificationInterests
    changed: list[str]
    heard: list[ServerNotification]
    logged: list[str]

    @property
    def updated(self) -> list[str]:
        return [said.uri for said in self.heard if said.method == "notifications/resources/updated"]

    async def until(self, is_so: Callable[[], Any]) -> None:
        with trio.fail_after(30):
            while not is_so():  # noqa: ASYNC110 - a test's wait
                await trio.sleep(0.005)


def legacy(capabilities: Json) -> dict[str, Any]:
    agreed = {"protocolVersion": "2025-11-25", "capabilities": capabilities, "serverInfo": {"name": "p"}}
    refused = {"error": {"code": -32601, "message": "no"}}
    done: Json = {"result": {}}
    return {
        "server/discover": refused,
        "initialize": {"result": agreed},
        "resources/subscribe": done,
        "resources/unsubscribe": done,
        "logging/setLevel": done,
    }


def modern(capabilities: Json) -> dict[str, Any]:
    return {
        "server/discover": {"result": {"supportedVersions": ["2026-07-28"], "capabilities": capabilities}}
    }


@asynccontextmanager
async def talking(
    script: dict[str, Any], interests: NotificationInterests | None = None, asked: Any = None
) -> AsyncIterator[Talk]:
    changed: list[str] = []
    heard: list[ServerNotification] = []
    logged: list[str] = []
    hooks = Hooks(changed.append, logged.append, on_notification=heard.append, on_request=asked)
    if interests is not None:
        hooks.interests = interests
    async with connected(script) as peer, trio.open_nursery() as nursery:
        with trio.fail_after(30):
            upstream = await negotiate(peer.link, hooks, "auto", 5, lambda *_: None)
        assert upstream.run_subscriptions is not None
        nursery.start_soon(upstream.run_subscriptions)
        yield Talk(peer, upstream, hooks.interests, changed, heard, logged)
        nursery.cancel_scope.cancel()


def uris_of(peer: Peer, method: str) -> list[str]:
    return [message["params"]["uri"] for message in peer.heard if message.get("method") == method]


async def acknowledge(peer: Peer, listen: Json, honoured: Json | None = None) -> None:
    wanted = listen["params"]["notifications"] if honoured is None else honoured
    params = {"notifications": wanted, "_meta": {ID: listen["id"]}}
    await peer.say({"jsonrpc": "2.0", "method": "notifications/subscriptions/acknowledged", "params": params})


async def update(peer: Peer, uri: str, listen: Json | None = None) -> None:
    meta = {} if listen is None else {"_meta": {ID: listen["id"]}}
    params = {"uri": uri, **meta}
    await peer.say({"jsonrpc": "2.0", "method": "notifications/resources/updated", "params": params})


# ── interests alone ──────────────────────────────────────────────────────────────────────────────


def test_interests_are_the_union_of_all_holders() -> None:
    """All resources, and the most verbose level; a holder that leaves removes only its own."""
    interests = NotificationInterests()
    interests.follow_resources("x", [A, B])
    interests.follow_resources("y", [B])
    interests.set_log_level("x", "warning")
    interests.set_log_level("y", "debug")
    assert (interests.resources, interests.log_level) == (frozenset({A, B}), "debug")
    interests.forget("y")
    assert (interests.resources, interests.log_level) == (frozenset({A, B}), "warning")
    interests.follow_resources("x", [])
    interests.set_log_level("x", None)
    assert not interests.resources
    assert interests.log_level is None
    with pytest.raises(ValueError, match="loud"):
        interests.set_log_level("x", "loud")


def test_refusal_is_forgotten_on_a_new_request_or_connection() -> None:
    """The resource may exist by now, and another process may decide differently."""
    interests = NotificationInterests()
    interests.follow_resources("x", [A, B])
    interests.reject(A, "no such file")
    interests.reject(B, "no such file")
    assert interests.subscribe_result(A) == "no such file"
    interests.follow_resources("y", [A])
    assert interests.subscribe_result(A) is None
    assert interests.subscribe_result(B) == "no such file"
    interests.on_disconnected()
    assert interests.subscribe_result(B) is None


def test_confirmation_says_whether_changes_may_have_been_missed() -> None:
    interests = NotificationInterests()
    interests.follow_resources("x", [A])
    assert not interests.confirm(A)
    interests.on_disconnected()
    assert interests.confirm(A)
    assert not interests.confirm(B), "nobody follows it"


# ── 2024-11-05 to 2025-11-25 ────────────────────────────────────────────────────────────────────


async def test_legacy_server_gets_only_the_changes() -> None:
    """One subscription per resource for all holders, and one unsubscription."""
    async with talking(legacy(EVERYTHING)) as talk:
        talk.interests.follow_resources("x", [A])
        talk.interests.follow_resources("y", [A, B])
        with trio.fail_after(30):
            assert [await talk.interests.wait_subscribed(uri) for uri in (A, B)] == ["", ""]
        talk.interests.follow_resources("x", [])
        talk.interests.follow_resources("y", [A])
        await talk.peer.hear("resources/unsubscribe")
        assert sorted(uris_of(talk.peer, "resources/subscribe")) == [A, B]
        assert uris_of(talk.peer, "resources/unsubscribe") == [B]
        await update(talk.peer, A)
        await talk.until(lambda: talk.updated)
        assert talk.updated == [A]
        assert json.loads(bytes(talk.heard[0].params)) == {"uri": A}


async def test_subscriptions_leave_room_for_client_requests() -> None:
    """While thousands of resources are being subscribed, or unsubscribed, which takes few tasks."""
    script = legacy(EVERYTHING)
    waiting: list[int] = []

    def hold(request: Json) -> None:
        waiting.append(request["id"])

    script["resources/subscribe"] = hold
    script["tools/list"] = {"result": {"tools": []}}
    uris = [f"file:///{number}" for number in range(500)]
    async with talking(script) as talk:
        tasks = trio.lowlevel.current_statistics().tasks_living
        talk.interests.follow_resources("x", uris)
        await talk.until(lambda: len(waiting) == 8)
        await trio.testing.wait_all_tasks_blocked(0.01)
        assert talk.peer.link.requests.in_flight == len(waiting) == 8
        assert trio.lowlevel.current_statistics().tasks_living < tasks + 20
        talk.peer.script["resources/subscribe"] = {"result": {}}
        for key in tuple(waiting):
            await talk.peer.say({"jsonrpc": "2.0", "id": key, "result": {}})
        with trio.fail_after(30):
            await talk.upstream.request("tools/list", timeout=30)
            for uri in uris:
                assert await talk.interests.wait_subscribed(uri) == ""
        del waiting[:]
        talk.peer.script["resources/unsubscribe"] = hold
        talk.interests.forget("x")
        await talk.until(lambda: len(waiting) == 8)
        await trio.testing.wait_all_tasks_blocked(0.01)
        assert trio.lowlevel.current_statistics().tasks_living < tasks + 20


@pytest.mark.parametrize("capabilities", [{}, {"resources": {"subscribe": False}}])
@pytest.mark.parametrize("answers", [True, False])
async def test_legacy_server_decides_about_undeclared_subscriptions(
    capabilities: Json, answers: bool
) -> None:
    """Servers on the Python SDK 1.x answer `resources/subscribe` although they declare `subscribe: false`."""
    script = legacy(capabilities)
    if not answers:
        script["resources/subscribe"] = {"error": {"code": -32601, "message": "Method not found"}}
    async with talking(script) as talk:
        talk.interests.follow_resources("x", [A])
        with trio.fail_after(30):
            outcome = await talk.interests.wait_subscribed(A)
        assert ("Method not found" in outcome) is not answers
        if answers:
            await update(talk.peer, A)
            await talk.until(lambda: talk.updated)


async def test_modern_server_without_capabilities_gets_no_requests() -> None:
    """Holders learn immediately that it has no subscriptions."""
    async with talking(modern({"resources": {}})) as talk:
        talk.interests.follow_resources("x", [A])
        talk.interests.set_log_level("x", "debug")
        with trio.fail_after(30):
            assert "does not support resource subscriptions" in await talk.interests.wait_subscribed(A)
        assert not {"resources/subscribe", "logging/setLevel", "subscriptions/listen"} & set(
            talk.peer.methods
        )


async def test_legacy_server_gets_the_log_level_and_its_messages_are_forwarded() -> None:
    """Byte for byte, and also into the server's log."""
    async with talking(legacy(EVERYTHING)) as talk:
        talk.interests.set_log_level("x", "error")
        assert (await talk.peer.hear("logging/setLevel"))["params"] == {"level": "error"}
        talk.interests.set_log_level("y", "debug")
        assert (await talk.peer.hear("logging/setLevel", 2))["params"] == {"level": "debug"}
        await talk.peer.say(
            b'{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info", "data":1E400}}\n'
        )
        await talk.until(lambda: talk.heard)
        [said] = talk.heard
        assert (said.method, bytes(said.params)) == (
            "notifications/message",
            b'{"level":"info", "data":1E400}',
        )
        assert said.exchange is None
        assert talk.logged == ["[info] 1E400"]


async def test_new_connection_is_subscribed_again_and_reports_updates() -> None:
    """Nobody knows what happened to the resource meanwhile."""
    interests = NotificationInterests()
    interests.follow_resources("x", [A])
    async with talking(legacy(EVERYTHING), interests) as talk:
        with trio.fail_after(30):
            await interests.wait_subscribed(A)
        assert talk.updated == []
    interests.on_disconnected()
    interests.follow_resources("y", [B])
    for script in (legacy, modern):
        async with talking(script(EVERYTHING), interests) as talk:
            if script is modern:
                await acknowledge(talk.peer, await talk.peer.hear("subscriptions/listen"))
            with trio.fail_after(30):
                await interests.wait_subscribed(A)
                await interests.wait_subscribed(B)
            assert talk.updated == ([A] if script is legacy else [A, B])
        interests.on_disconnected()


# ── 2026-07-28 ──────────────────────────────────────────────────────────────────────────────────


async def test_listen_stream_is_replaced_without_a_gap() -> None:
    """The new one is acknowledged before the old one is closed, and notifications of both count."""
    async with talking(modern(EVERYTHING)) as talk:
        first = await talk.peer.hear("subscriptions/listen")
        assert first["params"]["notifications"] == {"toolsListChanged": True}
        await acknowledge(talk.peer, first)
        talk.interests.follow_resources("x", [B, A])
        second = await talk.peer.hear("subscriptions/listen", 2)
        assert second["params"]["notifications"] == {
            "toolsListChanged": True,
            "resourceSubscriptions": [A, B],
        }
        assert "notifications/cancelled" not in talk.peer.methods
        note = {"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}
        await talk.peer.say(note | {"params": {"_meta": {ID: first["id"]}}})
        await talk.until(lambda: talk.changed)
        await acknowledge(talk.peer, second)
        cancelled = await talk.peer.hear("notifications/cancelled")
        assert cancelled["params"]["requestId"] == first["id"]
        await update(talk.peer, A, first)  # too late
        await update(talk.peer, B, second)
        await talk.until(lambda: talk.updated)
        assert talk.updated == [B]
        assert talk.changed == ["tools"]
        assert talk.interests.subscribe_result(A) == talk.interests.subscribe_result(B) == ""
        talk.interests.forget("x")
        third = await talk.peer.hear("subscriptions/listen", 3)
        assert third["params"]["notifications"] == {"toolsListChanged": True}


async def test_listen_stream_cancelled_by_the_server_is_reopened(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """That is how a server ends one on stdio. It gets no cancellation in return."""
    monkeypatch.setattr(listen_stream, "FIRST_RETRY_DELAY", 0.01)
    async with talking(modern(EVERYTHING)) as talk:
        await acknowledge(talk.peer, await talk.peer.hear("subscriptions/listen"))
        talk.interests.follow_resources("x", [A])
        listen = await talk.peer.hear("subscriptions/listen", 2)
        await acknowledge(talk.peer, listen)
        await talk.peer.hear("notifications/cancelled")  # of the first, which has been replaced
        params = {"requestId": listen["id"], "reason": "restarting"}
        await talk.peer.say({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params})
        again = await talk.peer.hear("subscriptions/listen", 3)
        await acknowledge(talk.peer, again)
        await talk.until(lambda: talk.updated)
        assert talk.updated == [A]  # nobody listened for a moment
        assert "tools" in talk.changed
        assert talk.peer.methods.count("notifications/cancelled") == 1


async def test_unstable_listen_stream_is_reopened_with_backoff(autojump_clock: MockClock) -> None:
    """Between five seconds and a minute, with jitter."""
    script = modern(EVERYTHING)
    asked_at: list[float] = []

    def end(request: Json) -> Json:
        asked_at.append(trio.current_time())
        return {"result": {"resultType": "complete"}}

    script["subscriptions/listen"] = end
    async with talking(script):
        while len(asked_at) < 7:  # noqa: ASYNC110 - virtual time
            await trio.sleep(1)
    pauses = [later - earlier for earlier, later in itertools.pairwise(asked_at)]
    for pause, usual in zip(pauses, (5, 10, 20, 40, 60, 60), strict=True):
        assert usual * 0.5 <= pause <= usual * 1.5 + 0.01
