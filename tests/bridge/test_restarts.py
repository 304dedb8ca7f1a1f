"""The books of a bridge, without descriptors: who is told what when a daemon goes and another comes."""

from __future__ import annotations

import json
import math
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.bridge.world import CHANGED, HELLO, META, SUBSCRIPTION, World
from tests.sampling import scaled


def test_a_new_daemon_hears_what_the_old_one_was_told(world: World) -> None:
    """Handshake, level and subscriptions; nothing of it reaches the editor, which is told to look again."""
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


def test_an_editor_that_is_not_initialized_yet_hears_nothing_unasked(world: World) -> None:
    """The specification: no notifications before `notifications/initialized`."""
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


def test_initialized_said_while_no_daemon_was_there_reaches_the_next(world: World) -> None:
    """The editor says it once."""
    world.come()
    world.say("initialize", HELLO, 1)
    world.settle()
    world.kill()
    world.say("notifications/initialized")
    world.come()
    world.settle()
    assert world.daemon.initialized


def test_a_call_that_may_have_run_is_never_sent_again(world: World) -> None:
    """The editor's model has to look before it repeats it."""
    world.begin()
    world.say("tools/call", {"name": "pay", "arguments": {"n": 1}}, 5)
    world.deliver()
    world.restart()
    [answer] = world.answers(5)
    assert answer["error"]["data"]["may_have_run"] is True
    assert answer["error"]["data"]["retryable"] is True
    assert "may have run" in answer["error"]["message"]
    assert world.ran == {1: 1}


def test_a_call_that_surely_did_not_leave_is_sent_to_the_next_daemon(world: World) -> None:
    """Its bytes were still ours."""
    world.begin()
    world.say("tools/call", {"name": "pay", "arguments": {"n": 1}}, 5)
    world.kill(unwritten=1)
    assert world.answers(5) == []
    world.come()
    world.settle()
    assert world.answers(5)[0]["result"] == {"content": []}
    assert world.ran == {1: 1}


def test_an_answer_that_did_not_leave_is_not_taken_for_a_call_of_the_same_id(world: World) -> None:
    """The daemon numbers its questions much as editors number their requests."""
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


@pytest.mark.parametrize("method", ["tools/list", "resources/read", "server/discover"])
def test_a_list_or_a_read_is_asked_again_but_not_for_ever(world: World, method: str) -> None:
    """Asking twice does nothing twice; a request that kills daemons must not kill them all."""
    world.begin()
    world.say(method, {"uri": "file:///a"}, 6)
    world.deliver()
    world.restart()
    assert "result" in world.answers(6)[0]
    world.say(method, {"uri": "file:///a"}, 7)
    for _ in range(2):
        world.deliver()
        world.kill()
        world.come()
        world.deliver()
        world.answer(1)  # the handshake's, which sends the rest
    assert "error" in world.answers(7)[0]


def test_subscriptions_are_opened_again_under_their_ids(world: World) -> None:
    """The editor sees one acknowledgement, and then that everything may have changed."""
    world.come()
    wanted = {"toolsListChanged": True, "promptsListChanged": False, "resourceSubscriptions": ["file:///a"]}
    world.say("subscriptions/listen", {"notifications": wanted, "_meta": META}, "L1")
    world.settle()
    assert world.methods() == ["notifications/subscriptions/acknowledged"]
    world.got.clear()
    world.restart()
    assert world.daemon.listens == {"L1"}
    assert world.methods() == ["notifications/tools/list_changed", "notifications/resources/updated"]
    assert all(m["params"]["_meta"] == {SUBSCRIPTION: "L1"} for m in world.got)
    assert world.got[1]["params"]["uri"] == "file:///a"


def test_a_subscription_waits_as_long_as_there_is_no_daemon(world: World) -> None:
    """And does not make the bridge start one: nobody waits for an answer."""
    world.come()
    world.say("subscriptions/listen", {"notifications": {"toolsListChanged": True}, "_meta": META}, 1)
    world.settle()
    world.kill()
    world.now = 10_000.0
    world.books.tick(world.now)
    assert not world.books.has_unsent_requests
    assert not world.books.has_open_requests
    assert world.answers(1) == []


@pytest.mark.parametrize("politely", [True, False])
def test_a_daemon_that_ends_its_subscriptions_before_it_stops_does_not_end_ours(
    world: World, politely: bool
) -> None:
    """It says goodbye because *it* goes; the editor's subscription goes on with the next one."""
    world.come()
    world.say("subscriptions/listen", {"notifications": {"toolsListChanged": True}, "_meta": META}, 1)
    world.settle()
    world.got.clear()
    if politely:
        told = {"requestId": 1, "reason": "mcpd stops"}
        world.hear({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": told})
    world.hear({"jsonrpc": "2.0", "id": 1, "result": {"resultType": "complete"}})
    world.daemon.listens.clear()
    assert world.got == []
    world.now += 1.0
    world.books.tick(world.now)  # it still lives, so it is asked again
    world.settle()
    assert world.daemon.listens == {1}
    assert world.methods() == ["notifications/tools/list_changed"]


def test_a_subscription_that_a_young_daemon_honours_in_part_becomes_whole_again(world: World) -> None:
    """It does not know its servers' resources yet. The editor hears of each thing once, when it is back."""
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


def test_a_subscription_that_a_young_daemon_refuses_is_asked_for_again(world: World) -> None:
    """The same for a legacy client; one that it gave up meanwhile is not."""
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


def test_a_subscription_that_cannot_be_opened_again_ends(world: World) -> None:
    """With the daemon's own words."""
    world.come()
    world.say("subscriptions/listen", {"notifications": {"toolsListChanged": True}, "_meta": META}, 1)
    world.settle()
    world.kill()
    world.come()
    world.daemon.refuse["subscriptions/listen"] = {"code": -32602, "message": "no such server"}
    world.settle()
    assert world.answers(1)[0]["error"]["message"] == "no such server"


def test_questions_of_a_daemon_that_has_gone_are_taken_back(world: World) -> None:
    """A late answer to the old one's question 1 must not become the answer to the new one's."""
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
def test_wherever_it_restarts_every_request_is_answered_once_and_no_call_runs_twice(
    steps: list[tuple[str, int]],
) -> None:
    """Every point of a conversation is a point at which the daemon can go."""
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


@settings(max_examples=scaled(300), deadline=None)
@given(STEPS.filter(lambda steps: any(step == "kill" for step, _ in steps)))
def test_wherever_it_restarts_the_last_daemon_knows_what_was_granted(steps: list[tuple[str, int]]) -> None:
    """Level, subscriptions, handshake: as if there had been one daemon all the time."""
    world = World()
    world.begin()
    level, subscribed = None, set()
    for step, amount in steps:
        key = len(world.got) + 1000
        if step == "level":
            level = f"level-{amount}"
            world.say("logging/setLevel", {"level": level}, key)
        elif step == "subscribe":
            subscribed.add(f"file:///{amount}")
            world.say("resources/subscribe", {"uri": f"file:///{amount}"}, key)
        elif step == "unsubscribe":
            subscribed.discard(f"file:///{amount}")
            world.say("resources/unsubscribe", {"uri": f"file:///{amount}"}, key)
        elif step == "kill":
            world.restart()
        world.settle()
    assert (world.daemon.hello, world.daemon.initialized) == (HELLO, True)
    assert (world.daemon.level, world.daemon.subscribed) == (level, subscribed)
