"""The session of an editor across restarts of the daemon, without descriptors."""

from __future__ import annotations

import json
import math
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.bridge.world import CHANGED, HELLO, META, SUBSCRIPTION, World
from tests.sampling import scaled


def test_session_state_is_restored(world: World) -> None:
    """Handshake, log level and subscriptions. The editor only gets change notifications."""
    world.begin()
    world.say("logging/setLevel", {"level": "debug"}, 1)
    world.say("resources/subscribe", {"uri": "file:///a"}, 2)
    world.say("resources/subscribe", {"uri": "file:///b"}, 3)
    world.say("resources/unsubscribe", {"uri": "file:///a"}, 4)
    world.settle()
    world.got.clear()
    world.restart()
    daemon = world.daemon
    assert (daemon.hello, daemon.initialized, daemon.level) == (HELLO, True, "debug")
    assert daemon.subscribed == {"file:///b"}
    assert world.methods() == [*CHANGED, "notifications/resources/updated"]
    assert all("method" in message for message in world.got)
    assert world.got[-1]["params"] == {"uri": "file:///b"}


def test_uninitialized_editor_gets_no_notifications(world: World) -> None:
    """MCP allows none before `notifications/initialized`."""
    world.come()
    world.say("initialize", HELLO, 1)
    world.settle()
    world.restart()
    assert world.methods() == []
    assert world.daemon.hello == HELLO
    assert not world.daemon.initialized
    world.say("notifications/initialized")
    world.settle()
    assert world.daemon.initialized


STOPPING = {"code": -32000, "message": "mcpd is stopping", "data": {"may_have_run": False, "stopping": True}}


@pytest.mark.parametrize("method", ["tools/call", "tools/list"])
def test_request_refused_by_a_stopping_daemon_is_sent_to_the_next_one(world: World, method: str) -> None:
    """The daemon says that no server has seen it. Later requests wait too, without being sent."""
    world.begin()
    world.daemon.refuse[method] = STOPPING
    world.say(method, {"name": "pay", "arguments": {"n": 1}}, 5)
    world.settle()
    world.say("tools/call", {"name": "pay", "arguments": {"n": 2}}, 6)
    world.say("prompts/list", {}, 7)
    world.say("tools/call", {"name": "pay", "arguments": {"n": 3}}, 8)
    world.say("notifications/cancelled", {"requestId": 8})
    world.settle()
    assert [world.answers(key) for key in (5, 6, 7)] == [[], [], []]
    world.restart()
    assert all("result" in world.answers(key)[0] for key in (5, 6, 7))
    assert world.ran == dict.fromkeys((1, 2) if method == "tools/call" else (2,), 1)
    world.say("tools/call", {"name": "pay", "arguments": {"n": 4}}, 9)
    world.settle()
    assert world.ran[4] == 1


def test_server_error_that_mentions_stopping_reaches_the_editor(world: World) -> None:
    """Only mcpd's own member counts."""
    world.begin()
    refusal = {"code": -32000, "message": 'the engine is "stopping"', "data": ["stopping"]}
    world.daemon.refuse["tools/call"] = refusal
    world.say("tools/call", {"name": "pay", "arguments": {"n": 1}}, 5)
    world.settle()
    assert world.answers(5)[0]["error"] == refusal


def test_unwritten_response_is_not_mistaken_for_a_call(world: World) -> None:
    """The daemon and the editor may use the same ids."""
    world.begin()
    world.say("tools/call", {"name": "pay", "arguments": {"n": 1}}, 1)
    world.deliver()
    world.hear({"jsonrpc": "2.0", "id": 1, "method": "roots/list"})
    question = world.got[-1]["id"]
    world.send(json.dumps({"jsonrpc": "2.0", "id": question, "result": {"roots": []}}))
    world.kill(unwritten=1)
    [answer] = world.answers(1)
    assert answer["error"]["data"]["may_have_run"] is True
    world.come()
    world.settle()
    assert len(world.answers(1)) == 1
    assert world.ran == {1: 1}


def test_subscription_waits_for_a_daemon(world: World) -> None:
    """It does not make the bridge start one."""
    world.come()
    world.say("subscriptions/listen", {"notifications": {"toolsListChanged": True}, "_meta": META}, 1)
    world.settle()
    world.kill()
    world.now = 10_000.0
    world.books.tick(world.now)
    assert not world.books.pending.has_unsent
    assert not world.books.pending.has_open
    assert world.answers(1) == []


@pytest.mark.parametrize("politely", [True, False])
def test_subscription_survives_a_daemon_that_stops(world: World, politely: bool) -> None:
    """The editor's subscription continues with the next daemon."""
    world.come()
    world.say("subscriptions/listen", {"notifications": {"toolsListChanged": True}, "_meta": META}, 1)
    world.settle()
    world.got.clear()
    if politely:
        received = {"requestId": 1, "reason": "mcpd stops"}
        world.hear({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": received})
    world.hear({"jsonrpc": "2.0", "id": 1, "result": {"resultType": "complete"}})
    world.daemon.listens.clear()
    assert world.got == []
    world.now += 1.0
    world.books.tick(world.now)  # it still lives, so it is asked again
    world.settle()
    assert world.daemon.listens == {1}
    assert world.methods() == ["notifications/tools/list_changed"]


def test_partly_granted_subscription_is_completed(world: World) -> None:
    """A daemon that has just started does not know the resources of its servers yet."""
    world.come()
    wanted = {"toolsListChanged": True, "resourceSubscriptions": ["file:///a", "file:///b"]}
    world.say("subscriptions/listen", {"notifications": wanted, "_meta": META}, 1)
    world.settle()
    world.got.clear()
    world.kill()
    world.come()
    world.daemon.unknown = {"file:///b"}
    world.settle()
    assert world.methods() == ["notifications/tools/list_changed", "notifications/resources/updated"]
    world.got.clear()
    for moment in range(1, 4):
        if moment == 3:
            world.daemon.unknown.clear()
        world.now = world.books.next_at()
        world.books.tick(world.now)
        world.settle()
    assert [(m["method"], m["params"]["uri"]) for m in world.got] == [
        ("notifications/resources/updated", "file:///b")
    ]
    assert world.daemon.listens == {1}
    assert world.books.next_at() == math.inf


def test_refused_legacy_subscription_is_retried(world: World) -> None:
    """Unless the client has unsubscribed meanwhile."""
    world.begin()
    for key, uri in enumerate(["file:///a", "file:///b"]):
        world.say("resources/subscribe", {"uri": uri}, key)
    world.settle()
    world.kill()
    world.come()
    world.daemon.unknown = {"file:///a", "file:///b"}
    world.settle()
    world.got.clear()
    world.daemon.unknown.clear()
    world.say("resources/unsubscribe", {"uri": "file:///b"}, 2)
    world.settle()
    world.now = world.books.next_at()
    world.books.tick(world.now)
    world.settle()
    assert world.daemon.subscribed == {"file:///a"}
    assert [m["params"]["uri"] for m in world.got if "method" in m] == ["file:///a"]


def test_open_server_requests_are_cancelled_after_a_restart(world: World) -> None:
    """A late response must not answer a request of the next daemon."""
    world.begin()
    world.hear({"jsonrpc": "2.0", "id": 1, "method": "roots/list"})
    first = world.got[-1]["id"]
    world.restart()
    assert {"requestId": first, "reason": "mcpd closed the connection"} in [
        m.get("params") for m in world.got
    ]
    world.hear({"jsonrpc": "2.0", "id": 1, "method": "elicitation/create", "params": {"message": "sure?"}})
    second = world.got[-1]["id"]
    assert first != second
    world.send(json.dumps({"jsonrpc": "2.0", "id": first, "result": {"roots": []}}))
    assert not world.wire
    world.send(json.dumps({"jsonrpc": "2.0", "id": second, "result": {"action": "accept"}}))
    assert json.loads(world.wire[0]) == {"jsonrpc": "2.0", "id": 1, "result": {"action": "accept"}}


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("call"), st.just(0)),
        st.tuples(st.sampled_from(["level", "subscribe", "unsubscribe"]), st.integers(0, 2)),
        st.tuples(st.sampled_from(["deliver", "answer"]), st.integers(1, 3)),
        st.tuples(st.just("kill"), st.integers(0, 3)),
        st.tuples(st.sampled_from(["come", "listen", "list", "initialized"]), st.just(0)),
    ),
    max_size=40,
)


@settings(max_examples=scaled(300), deadline=None)
@given(STEPS)
def test_any_restart_answers_each_request_once_and_runs_no_call_twice(
    steps: list[tuple[str, int]],
) -> None:
    """The daemon can exit at every point of a session."""
    world = World()
    world.say("initialize", HELLO, "hello")
    keys: list[object] = ["hello"]
    calls: list[int] = []
    listens: list[object] = []
    for number, (step, amount) in enumerate(steps):
        match step:
            case "call":
                calls.append(number)
                world.say("tools/call", {"name": "pay", "arguments": {"n": number}}, number)
            case "level":
                world.say("logging/setLevel", {"level": f"level-{number}"}, number)
            case "subscribe" | "unsubscribe":
                world.say(f"resources/{step}", {"uri": f"file:///{amount}"}, number)
            case "list":
                world.say("tools/list", {}, number)
            case "listen":
                listens.append(number)
                wanted = {"notifications": {"toolsListChanged": True}, "_meta": META}
                world.say("subscriptions/listen", wanted, number)
            case "initialized":
                world.say("notifications/initialized")
            case "deliver":
                world.deliver(amount)
            case "answer":
                world.answer(amount)
            case "kill" if world.books.connected:
                world.kill(amount)
            case "come" if not world.books.connected and not world.wire:
                world.come()
        if step in ("call", "level", "subscribe", "unsubscribe", "list"):
            keys.append(number)
    if not world.books.connected and not world.wire:
        world.come()
    world.settle()

    for key in keys:
        assert len(world.answers(key)) == 1, key
    for number in calls:
        [answer] = world.answers(number)
        if "result" in answer:
            assert world.ran[number] == 1
        else:
            assert world.ran[number] <= answer["error"]["data"]["may_have_run"]
    acknowledged = Counter(
        m["params"]["_meta"][SUBSCRIPTION] for m in world.got if m.get("method", "").endswith("acknowledged")
    )
    for key in listens:
        assert acknowledged[key] + len(world.answers(key)) == 1
    assert world.daemon.listens == set(acknowledged)
    assert not any(str(m.get("id", "")).startswith("mcpctl-bridge") for m in world.got)
