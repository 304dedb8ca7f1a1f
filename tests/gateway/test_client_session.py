"""What one client does, or leaves undone, does not affect others and leaves nothing behind."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, cast

import attrs
import msgspec
import pytest
import trio
import trio.testing
from msgspec import Raw

from mcpd.api.mcp.frames import BatchReply
from mcpd.calls.call import CallState
from mcpd.calls.client_context import ClientIdentity, ClientRequest, Responder
from mcpd.calls.questions.router import ANSWER_TIMEOUT, MAX_OPEN_REQUESTS
from mcpd.gateway.client_facts import SessionFacts
from mcpd.gateway.gateway import METHODS
from mcpd.gateway.subscriptions import MAX_SUBSCRIPTIONS
from mcpd.gateway.views import SingleServer
from mcpd.model.errors import LinkLost, McpdError, Overloaded, UnknownResource
from mcpd.wire import message as wire
from tests.gateway.mcp_client import MODERN, meta
from tests.gateway.model import Json, Recorder, User, World, make_catalog, world

Clock = trio.testing.MockClock


@pytest.fixture
async def w() -> AsyncIterator[World]:
    async with world() as made:
        made.server.upstream.capabilities["resources"] = {"subscribe": True}
        yield made


def call(key: object, **more: Any) -> Json:
    return {"id": key, "method": "tools/call", "params": {"name": "t", "arguments": {"tag": "u0"}, **more}}


def follow(key: object, uri: str) -> Json:
    return {"id": key, "method": "resources/subscribe", "params": {"uri": uri}}


def cancel(key: object) -> Json:
    return {"method": "notifications/cancelled", "params": {"requestId": key}}


async def test_cancelled_request_in_a_batch_does_not_delay_the_others(w: World) -> None:
    """2025-03-26: the responses leave as one batch once all others are done."""
    user = w.user("legacy", {})
    sent: list[list[Json]] = []
    stream = SimpleNamespace(finish=lambda frame: sent.append(json.loads(frame)))
    reply = BatchReply(3, cast("Responder", stream))
    for key in (90, 91, 92):
        user.session.receive(wire.parse(json.dumps({"jsonrpc": "2.0", **call(key)}).encode()), reply)
    w.hear()
    first, _, third = w.work.values()
    w.end(first)
    user.say(cancel(91))
    w.end(third)
    (array,) = sent
    assert [each["id"] for each in array] == [90, 92]


async def test_requests_wait_until_long_lists_are_ready(
    autojump_clock: trio.testing.MockClock, w: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other requests do not wait, and a request that is cancelled meanwhile is not forwarded."""

    async def prepare(view: SingleServer) -> None:
        await trio.sleep(5)

    monkeypatch.setattr(SingleServer, "must_prepare", True)
    monkeypatch.setattr(SingleServer, "prepare", prepare)
    received = Recorder(w.user("legacy", {}))
    for key, method in ((90, "tools/call"), (91, "tools/call"), (92, "ping")):
        params = {"name": "t", "arguments": {"tag": str(key)}, "_meta": {"progressToken": key}}
        received.say({"id": key, "method": method, "params": params})
    received.say(cancel(91))
    await trio.sleep(4)
    w.hear()
    assert [answer["id"] for answer in received.answers] == [92]
    assert not w.work
    await trio.sleep(2)
    w.hear()
    assert [working.tag for working in w.work.values()] == ["90"]


async def test_request_without_a_method_is_refused(w: World) -> None:
    received = Recorder(w.user("legacy", {}))
    received.say({"id": 5, "method": ""})
    (answer,) = received.answers
    assert answer["id"] == 5
    assert answer["error"]["code"] == -32600


@pytest.mark.parametrize("key", [None, True, [], {"a": 1}])
async def test_null_and_structured_ids_are_refused(w: World, key: object) -> None:
    received = Recorder(w.user("legacy", {}))
    received.say(call(key))
    (answer,) = received.answers
    assert answer["id"] is None
    assert answer["error"]["code"] == -32600
    w.hear()
    assert not w.work


async def test_no_notification_is_sent_before_the_handshake_response(autojump_clock: Clock, w: World) -> None:
    """A starting server may report its lists while the client's first request waits for it."""
    w.lose()
    heard: list[bytes] = []
    session = w.gateway.open_session(
        w.gateway.view("srv"), ClientIdentity(via="socket"), heard.append, w.spawn
    )
    received = Recorder(SimpleNamespace(session=session, take=heard.append))  # type: ignore[arg-type]
    received.say({"id": 1, "method": "initialize", "params": {"protocolVersion": "2025-11-25"}})
    w.gateway.list_changes.notify(w.server, "tools")
    assert heard == []
    assert received.answers == []
    w.connect()
    await trio.testing.wait_all_tasks_blocked()
    assert len(received.answers) == 1
    w.gateway.list_changes.notify(w.server, "tools")
    assert len(heard) == 1


async def test_subscription_cancelled_immediately_leaves_nothing(autojump_clock: Clock, w: World) -> None:
    """Both arrive in one write; the server must not be asked for it."""
    received = Recorder(w.user("legacy"))
    received.say(follow(1, "a:1"))
    received.say(cancel(1))
    await trio.sleep(20)
    assert w.server.interests.resources == frozenset()
    assert received.answers == []
    assert received.dropped == 1

    received.say(follow(2, "a:2"))
    await trio.sleep(1)
    assert w.server.interests.resources == {"a:2"}
    received.say(cancel(2))
    await trio.sleep(20)
    assert w.server.interests.resources == frozenset()

    received.say(follow(3, "a:3"))
    await trio.sleep(20)
    assert len(received.answers) == 1
    received.say(follow(4, "a:3"))
    received.say(cancel(4))
    await trio.sleep(20)
    assert w.server.interests.resources == {"a:3"}


async def test_subscriptions_per_client_are_limited(autojump_clock: Clock, w: World) -> None:
    received = Recorder(w.user("legacy"))
    for n in range(MAX_SUBSCRIPTIONS + 1):
        received.say(follow(n, f"a:{n}"))
    await trio.sleep(20)
    refused = [answer for answer in received.answers if "error" in answer]
    assert [answer["error"]["data"]["code"] for answer in refused] == ["overloaded"]
    assert len(received.answers) == MAX_SUBSCRIPTIONS + 1


async def test_open_server_requests_are_limited(w: World) -> None:
    """They would end in front of a person, or in a client's memory."""
    user = w.user("legacy")
    user.call()
    w.hear()
    (working,) = w.work.values()
    for _ in range(10 * MAX_OPEN_REQUESTS):
        w.ask(working)
    w.hear()
    assert len(user.questions) == MAX_OPEN_REQUESTS
    assert len(working.heard) == 9 * MAX_OPEN_REQUESTS
    w.end(working)
    assert w.empty() == []


async def test_bug_while_routing_refuses_the_server_request_once(
    w: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> bytes:
        raise KeyError("a bug")

    user = w.user("legacy")
    user.call()
    w.hear()
    (working,) = w.work.values()
    monkeypatch.setattr(user.session.client_requests, "send_request", broken)
    w.ask(working)
    w.hear()
    assert [heard["error"]["code"] for heard in working.heard] == [-32601]
    assert "an error in mcpd itself" in caplog.text
    w.end(working)
    w.hear()
    assert w.late == []
    assert w.empty() == []
    caplog.clear()


@pytest.mark.parametrize("error", [LinkLost("gone", may_have_run=False), Overloaded("full", server="srv")])
async def test_call_lost_in_a_later_round_may_have_run(
    autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch, error: McpdError
) -> None:
    """The later round could not be sent, but an earlier one was."""

    def fail(*_: object, **__: object) -> None:
        raise error

    async with world(version=MODERN) as w:
        asked = w.user("legacy").call()
        w.hear()
        (working,) = w.work.values()
        w.end(working, result={"resultType": "input_required", "requestState": "again"})
        monkeypatch.setattr(w.wire, "submit", fail)
        await trio.sleep(1)
        assert asked.done is not None
        assert "may have partly run" in asked.done["error"]["message"]
        assert asked.done["error"]["data"]["may_have_run"]


async def test_unanswered_question_of_a_modern_server_times_out(autojump_clock: Clock, w: World) -> None:
    user = w.user("legacy")
    request = ClientRequest(b"1", "tools/call", b"{}", Recorder(user), user.session.context)
    waiting: Any = SimpleNamespace(server=w.server, request=request)
    params = Raw(json.dumps({"message": "u0: who?", "requestedSchema": {}}).encode())
    began = trio.current_time()
    answer = await user.session.ask(waiting, "elicitation/create", params)
    assert json.loads(bytes(answer)) == {"action": "cancel"}
    assert trio.current_time() - began == pytest.approx(ANSWER_TIMEOUT)
    assert user.questions == []  # taken back


@pytest.mark.parametrize("when", ["at once", "later"])
async def test_bug_fails_only_the_request_that_hits_it(
    w: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, when: str
) -> None:
    """The client's other requests on the same connection continue."""

    def broken(session: Any, request: ClientRequest) -> None:
        async def work() -> None:
            await trio.lowlevel.checkpoint()
            raise KeyError("a bug")

        if when == "later":
            session.spawn_request(request, work)
        else:
            raise KeyError("a bug")

    user = w.user("legacy")
    user.session._methods = msgspec.structs.replace(METHODS, answer_list=broken)
    received = Recorder(user)
    received.say(call(1))
    received.say({"id": 2, "method": "tools/list"})
    await trio.testing.wait_all_tasks_blocked()
    (answer,) = received.answers
    assert answer["id"] == 2
    assert answer["error"]["code"] == -32603
    assert "an error in mcpd itself" in caplog.text
    w.hear()
    (working,) = w.work.values()
    w.end(working)
    assert [each["id"] for each in received.answers] == [2, 1]
    caplog.clear()


def say(user: User, key: object, method: str, params: object = None) -> Recorder:
    received = Recorder(user)
    received.say({"id": key, "method": method, **({} if params is None else {"params": params})})
    return received


@pytest.mark.parametrize("held_by", ["a call", "a task", "a listen stream"])
async def test_id_in_use_is_refused(w: World, held_by: str) -> None:
    """The first request continues."""
    user = w.user("modern" if held_by == "a listen stream" else "legacy", {})
    if held_by == "a call":
        say(user, 7, "tools/call", {"name": "t", "arguments": {"tag": "u0"}})
    elif held_by == "a task":
        w.lose()
        say(user, 7, "tools/call", {"name": "t"})
    else:
        user.take = lambda frame: None  # type: ignore[method-assign]
        say(user, 7, "subscriptions/listen", {"notifications": {}, "_meta": meta({})})
    assert user.session.is_busy is (held_by != "a listen stream")
    (answer,) = say(user, 7, "ping", {"_meta": meta({})} if user.kind == "modern" else None).answers
    assert answer["error"]["code"] == -32600
    assert say(user, 8, "ping").answers[0]["id"] == 8


@pytest.mark.parametrize(
    ("kind", "method", "code", "forwarded"),
    [
        ("legacy", "server/discover", -32601, False),
        ("modern", "ping", -32601, False),
        ("legacy", "vendor/x", None, True),
        ("modern", "vendor/x", -32601, False),
        ("legacy", "notifications/x", -32601, False),
    ],
)
async def test_method_of_another_revision_is_unknown(
    w: World, kind: str, method: str, code: int | None, forwarded: bool
) -> None:
    """An unknown method goes to a single server of the same revision."""
    user = w.user(kind, {})
    received = say(user, 7, method, {"_meta": meta({})} if kind == "modern" else None)
    assert [answer["error"]["code"] for answer in received.answers] == ([] if code is None else [code])
    assert len(w.wire.frames) == forwarded


async def test_unknown_method_is_not_forwarded_to_several_servers(w: World) -> None:
    user = w.user("legacy", {})
    user.session.view = w.gateway.view()
    assert say(user, 7, "vendor/x").answers[0]["error"]["code"] == -32601


async def test_modern_method_without_a_version_is_explained(w: World) -> None:
    user = w.user("modern")
    (answer,) = say(user, 7, "server/discover").answers
    assert answer["error"]["code"] == -32602
    assert "requires a version in `_meta`" in answer["error"]["message"]


@pytest.mark.parametrize(
    ("kind", "method", "code"),
    [
        ("legacy", "resources/read", -32002),
        ("modern", "resources/read", -32602),
        ("legacy", "tools/call", -32602),
    ],
)
async def test_unknown_resource_has_the_code_of_the_revision(
    w: World, monkeypatch: pytest.MonkeyPatch, kind: str, method: str, code: int
) -> None:
    def refuse(*_: object) -> None:
        raise UnknownResource("no such resource", "a:1")

    user = w.user(kind, {})
    monkeypatch.setattr(user.session, "forward", refuse)
    params: Json = {"uri": "a:1", "name": "t"}
    received = say(user, 7, method, {**params, "_meta": meta({})} if kind == "modern" else params)
    assert received.answers[0]["error"]["code"] == code


async def test_closing_is_idempotent_and_cancels_what_is_in_flight(autojump_clock: Clock, w: World) -> None:
    user = w.user("legacy", {})
    user.call()
    (call,) = user.session.calls.values()
    w.hear()
    received = say(user, 7, "resources/subscribe", {"uri": "a:1"})
    for _ in range(2):
        user.session.close("left")
    assert call.state is CallState.DONE
    w.hear()
    assert w.work == {}, "cancelled at the server"
    await trio.sleep(1)
    assert received.answers == []
    assert received.dropped == 0, "nobody is there to be told"


@pytest.mark.parametrize(
    ("lazy", "known", "connected", "waits"),
    [
        (False, False, True, False),
        (False, True, False, True),
        (True, True, False, False),
        (True, False, False, True),
        (False, False, False, True),
    ],
)
async def test_handshake_waits_for_a_starting_server(
    autojump_clock: Clock, w: World, lazy: bool, known: bool, connected: bool, waits: bool
) -> None:
    """For a while; a lazy server that is known is not started for it."""
    w.server.spec = attrs.evolve(w.server.spec, lazy=lazy)
    w.server.catalog = make_catalog() if known else None
    if not connected:
        w.lose()
    user = w.user("modern")
    received = say(user, 7, "server/discover", {"_meta": meta({})})
    assert (len(received.answers) == 0) is waits
    await trio.sleep(9)
    assert (len(received.answers) == 0) is waits
    await trio.sleep(2)
    assert len(received.answers) == 1
    assert user.session.request_tasks == {}


async def test_client_is_connected_until_its_session_or_its_connection_ends(w: World) -> None:
    session = w.user("legacy", {}).session
    assert session.is_connected
    session.has_connection = lambda: False
    assert not session.is_connected
    session.has_connection = lambda: True
    session.close("left")
    assert not session.is_connected


def test_client_may_use_twenty_names() -> None:
    """Each is compared with the rules, so they are limited."""
    facts = SessionFacts(ClientIdentity(via="http", name="zed"), None)
    for number in range(19):
        assert facts.known_by(f"zed {number}") is facts.known_by(f"zed {number}")
    with pytest.raises(Overloaded):
        facts.known_by("another")
