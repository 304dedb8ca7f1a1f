"""The books of a bridge, without descriptors: who is told what when a daemon goes and another comes."""

from __future__ import annotations

import json
import math
from collections import Counter, deque
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ctl.bridge import conversation as books
from ctl.bridge.conversation import Conversation
from ctl.bridge.envelope import Error

Json = dict[str, Any]
META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
}
SUBSCRIPTION = "io.modelcontextprotocol/subscriptionId"
HELLO = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "ed", "version": "1"}}
PROMISED = {
    "tools": {"listChanged": True},
    "prompts": {"listChanged": False},
    "resources": {"listChanged": True},
}
CHANGED = ["notifications/tools/list_changed", "notifications/resources/list_changed"]


class OneDaemon:
    """A life of the daemon: what it was told, and what it answers."""

    def __init__(self, ran: Counter[object]) -> None:
        self.ran = ran
        """Calls by their argument, over all lives."""
        self.hello: Json | None = None
        self.initialized = False
        self.level: str | None = None
        self.subscribed: set[str] = set()
        self.listens: set[object] = set()
        self.seen: list[Json] = []
        self.refuse: dict[str, Json] = {}
        self.unknown: set[str] = set()
        """URIs of servers that are not there yet."""
        self.version = "2025-11-25"

    def take(self, line: bytes) -> list[Json]:
        message = json.loads(line)
        self.seen.append(message)
        method, key = message.get("method"), message.get("id")
        params = message.get("params", {})
        if method in self.refuse:
            return [{"jsonrpc": "2.0", "id": key, "error": self.refuse[method]}]
        if method == "resources/subscribe" and params["uri"] in self.unknown:
            return [{"jsonrpc": "2.0", "id": key, "error": {"code": -32002, "message": "no such resource"}}]
        result: Json = {}
        match method:
            case "initialize":
                self.hello = params
                result = {"protocolVersion": self.version, "capabilities": PROMISED, "serverInfo": {}}
            case "notifications/initialized":
                self.initialized = True
            case "logging/setLevel":
                self.level = params["level"]
            case "resources/subscribe":
                self.subscribed.add(params["uri"])
            case "resources/unsubscribe":
                self.subscribed.discard(params["uri"])
            case "notifications/cancelled":
                self.listens.discard(params["requestId"])
            case "tools/call":
                self.ran[params["arguments"]["n"]] += 1
                result = {"content": []}
            case "subscriptions/listen":
                assert key not in self.listens
                self.listens.add(key)
                asked = params["notifications"]
                uris = [uri for uri in asked.get("resourceSubscriptions", []) if uri not in self.unknown]
                told = {
                    "notifications": {**asked, "resourceSubscriptions": uris},
                    "_meta": {SUBSCRIPTION: key},
                }
                method = "notifications/subscriptions/acknowledged"
                return [{"jsonrpc": "2.0", "method": method, "params": told}]
        return [{"jsonrpc": "2.0", "id": key, "result": result}] if method and "id" in message else []


class World:
    """An editor, its bridge's books, and one daemon after the other."""

    def __init__(self) -> None:
        self.got: list[Json] = []
        """What the editor was sent."""
        self.wire: deque[bytes] = deque()
        """On the way to the daemon."""
        self.back: deque[Json] = deque()
        self.ran: Counter[object] = Counter()
        self.daemon = OneDaemon(self.ran)
        self.logged: list[str] = []
        self.now = 0.0
        self.books = Conversation(
            lambda line: self.got.append(json.loads(line)), self.wire.append, self.logged.append
        )

    def say(self, method: str, params: Json | None = None, key: object = None) -> None:
        message: Json = {"jsonrpc": "2.0", "method": method}
        if key is not None:
            message["id"] = key
        if params is not None:
            message["params"] = params
        self.send(json.dumps(message))

    def send(self, line: str | bytes) -> None:
        self.books.from_editor((line if isinstance(line, bytes) else line.encode()) + b"\n", self.now)

    def deliver(self, count: int = 1000) -> None:
        """The daemon takes so many lines."""
        for _ in range(min(count, len(self.wire))):
            self.back += self.daemon.take(self.wire.popleft())

    def answer(self, count: int = 1000) -> None:
        """So many of its lines arrive."""
        for _ in range(min(count, len(self.back))):
            self.hear(self.back.popleft())

    def hear(self, message: Json) -> None:
        self.books.from_daemon(json.dumps(message).encode() + b"\n", self.now)

    def settle(self) -> None:
        while self.wire or self.back:
            self.deliver()
            self.answer()

    def kill(self, unwritten: int = 0) -> None:
        """The daemon dies; the last `unwritten` lines had not left yet, others it may have read or not."""
        left = [self.wire[index] for index in range(len(self.wire))][-unwritten:] if unwritten else []
        for _ in left:
            self.wire.pop()
        self.deliver()  # it may well have run them, at the last moment
        self.wire.clear()
        self.back.clear()
        self.books.link_lost("mcpd closed the connection", left, self.now)

    def come(self) -> None:
        """Another one lets us in."""
        self.daemon = OneDaemon(self.ran)
        self.books.link_up()

    def restart(self) -> None:
        self.kill()
        self.come()
        self.settle()

    def begin(self) -> None:
        """A legacy handshake, all through."""
        if not self.books.up:
            self.come()
        self.say("initialize", HELLO, "hello")
        self.settle()
        self.say("notifications/initialized")
        self.settle()

    def answers(self, key: object) -> list[Json]:
        return [m for m in self.got if m.get("id") == key and "method" not in m]

    def methods(self) -> list[str]:
        return [m["method"] for m in self.got if "method" in m]


@pytest.fixture
def world() -> World:
    return World()


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
    assert not world.books.waits
    assert not world.books.is_at_work
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


def test_each_question_is_answered_for_itself(world: World) -> None:
    """Two at once, the second one first."""
    world.begin()
    for theirs in ("a", 7):
        world.hear({"jsonrpc": "2.0", "id": theirs, "method": "roots/list"})
    first, second = (message["id"] for message in world.got[-2:])
    world.send(json.dumps({"jsonrpc": "2.0", "id": second, "error": {"code": -1, "message": "no"}}))
    world.send(json.dumps({"jsonrpc": "2.0", "id": first, "result": {"roots": []}}))
    assert [json.loads(line) for line in world.wire] == [
        {"jsonrpc": "2.0", "id": 7, "error": {"code": -1, "message": "no"}},
        {"jsonrpc": "2.0", "id": "a", "result": {"roots": []}},
    ]


def test_a_question_that_the_daemon_takes_back_is_named_by_our_id(world: World) -> None:
    """The editor knows no other."""
    world.begin()
    world.hear({"jsonrpc": "2.0", "id": "q", "method": "roots/list"})
    ours = world.got[-1]["id"]
    cancelled = {"requestId": "q", "reason": "over"}
    world.hear({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": cancelled})
    assert world.got[-1]["params"] == {"requestId": ours, "reason": "over"}


def test_what_is_cancelled_while_it_waits_is_never_sent(world: World) -> None:
    """Nor answered."""
    world.say("tools/call", {"name": "pay", "arguments": {"n": 1}}, 5)
    world.say("notifications/cancelled", {"requestId": 5})
    world.come()
    world.settle()
    assert (world.answers(5), world.ran) == ([], {})


def test_a_cancellation_goes_on_to_the_daemon(world: World) -> None:
    """And the request is forgotten: no error is made up for it later."""
    world.begin()
    world.say("tools/call", {"name": "pay", "arguments": {"n": 1}}, 5)
    world.say("notifications/cancelled", {"requestId": 5})
    world.deliver()
    assert world.daemon.seen[-1]["method"] == "notifications/cancelled"
    world.restart()
    assert world.answers(5) == []


def test_a_handshake_is_answered_in_time_whatever_the_daemon_does(world: World) -> None:
    """Editors wait ten seconds for it; then they show the server as broken, without a reason."""
    world.say("initialize", HELLO, 1)
    world.books.why_down = "no mcpd is running at /x"
    world.now = books.HANDSHAKE_WITHIN
    world.books.tick(world.now)
    assert world.answers(1)[0]["error"]["message"].startswith("no mcpd is running at /x")
    world.come()
    world.settle()
    world.say("initialize", HELLO, 2)
    world.deliver()
    world.now += books.HANDSHAKE_WITHIN + books.DAEMON_WITHIN
    world.books.tick(world.now)
    assert "has not answered" in world.answers(2)[0]["error"]["message"]
    world.answer()
    assert len(world.answers(2)) == 1, "the late answer must not follow the error"


def test_a_request_waits_for_a_daemon_a_while_and_then_says_that_it_did_not_run(world: World) -> None:
    """A restart takes a second; an editor must not hang for ever."""
    world.say("tools/call", {"name": "pay", "arguments": {"n": 1}}, 5)
    world.now = books.PATIENCE - 0.1
    world.books.tick(world.now)
    assert world.answers(5) == []
    world.now = world.books.next_at()
    world.books.tick(world.now)
    data = world.answers(5)[0]["error"]["data"]
    assert (data["may_have_run"], data["code"]) == (False, "daemon_unreachable")


def test_a_refusal_is_handed_on_at_once_in_the_daemons_words(world: World) -> None:
    """There is nothing to wait for."""
    world.say("initialize", HELLO, 1)
    refusal = Error(-32602, "there is no server 'gti'")
    world.books.cannot_reach(refusal, 0.0)
    world.books.tick(0.0)
    error = world.answers(1)[0]["error"]
    assert (error["code"], error["message"]) == (-32602, "there is no server 'gti'")
    assert error["data"] == {"may_have_run": False}


def test_ping_is_answered_without_a_daemon(world: World) -> None:
    """It asks for this hop; an editor that pings must not think that we are dead."""
    world.say("ping", key=1)
    assert world.answers(1) == [{"jsonrpc": "2.0", "id": 1, "result": {}}]


@pytest.mark.parametrize(
    ("line", "code", "key"),
    [
        ("not json", -32700, None),
        ('{"jsonrpc":"2.0","id":1,"method":"tools/list"', -32700, None),
        ("3", -32600, None),
        ("[]", -32600, None),
        ('[{"jsonrpc":"2.0","id":1,"method":"ping"}]', -32600, None),
        ('{"jsonrpc":"2.0","id":1,"method":5}', -32600, 1),
        ('{"jsonrpc":"2.0","id":{},"method":"ping"}', -32600, None),
        ('{"jsonrpc":"2.0","id":null,"method":"ping"}', -32600, None),
        ('{"jsonrpc":"2.0"}', -32600, None),
        ('{"a":' * 100_000 + "1" + "}" * 100_000, -32700, None),
        ('{"jsonrpc":"2.0","id":1,"method":"mcpd/shutdown"}', -32601, 1),
        ('{"jsonrpc":"2.0","id":1,"method":"mcpd/attach","params":{}}', -32601, 1),
        (b'{"jsonrpc":"2.0","id":"\xff","method":"ping"}', -32600, None),
        (b"\x00\x01\x02", -32700, None),
    ],
)
def test_a_bad_line_is_answered_and_the_next_is_served(
    world: World, line: str | bytes, code: int, key: object
) -> None:
    """Editors have bugs too, and one of them must not cost a window its tools."""
    world.come()
    world.send(line)
    [answer] = world.got
    assert (answer["error"]["code"], answer["id"]) == (code, key)
    world.say("ping", key="next")
    assert "result" in world.answers("next")[0]
    assert not world.wire


@pytest.mark.parametrize("line", ["", "  ", "\r", '{"jsonrpc":"2.0","id":77,"result":{}}'])
def test_what_needs_no_answer_gets_none(world: World, line: str) -> None:
    """Blank lines, and answers to questions nobody asked."""
    world.come()
    world.send(line)
    assert (world.got, list(world.wire)) == ([], [])


def test_a_byte_order_mark_and_a_carriage_return_do_no_harm(world: World) -> None:
    """Windows."""
    world.send(b'\xef\xbb\xbf{"jsonrpc":"2.0","id":1,"method":"ping"}\r')
    assert "result" in world.answers(1)[0]


def test_half_an_emoji_does_no_harm(world: World) -> None:
    """Node writes it for a text that was cut; no JSON reader of ours takes it."""
    world.come()
    world.send(b'{"jsonrpc":"2.0","id":1,"method":"x","params":{"text":"cut: \\ud83d"}}')
    assert json.loads(world.wire[0])["params"] == {"text": "cut: \N{REPLACEMENT CHARACTER}"}


def test_bytes_pass_unchanged(world: World) -> None:
    """Spacing, escapes, big numbers, member order: none of it is ours."""
    world.come()
    line = b'{"params" : {"name":"x","big":1180591620717411303424, "e":"\\u0065\\/"},"id":1.0,"method":"x"}'
    world.send(line)
    assert list(world.wire) == [line + b"\n"]
    sent: list[bytes] = []
    other = Conversation(sent.append, lambda _: None, lambda _: None)
    other.link_up()
    other.from_editor(line + b"\n", 0.0)
    answer = b'{ "result":{"z":1E+400,"a":"\\ud83d\\ude00"} ,"id":1.0, "jsonrpc":"2.0"}'
    other.from_daemon(answer + b"\n", 0.0)
    assert sent == [answer + b"\n"]


def test_an_id_under_way_is_not_taken_twice(world: World) -> None:
    """Two answers with one id could not be told apart."""
    world.begin()
    world.say("tools/call", {"name": "pay", "arguments": {"n": 1}}, 5)
    world.say("tools/call", {"name": "pay", "arguments": {"n": 2}}, 5)
    assert world.answers(5)[0]["error"]["code"] == -32600
    world.settle()
    assert world.ran == {1: 1}


def test_what_waits_is_bounded(world: World) -> None:
    """An editor that goes on asking while there is no daemon cannot make us grow without end."""
    for key in range(books.MAX_OPEN + 10):
        world.say("tools/list", key=key)
    refused = [m for m in world.got if "error" in m]
    assert len(refused) == 10
    assert refused[0]["error"]["data"]["may_have_run"] is False
    big = World()
    for key in range(10):
        big.say("tools/call", {"name": "x", "arguments": {"text": "y" * 1024 * 1024}}, key)
    assert [m["error"]["data"]["code"] for m in big.got] == ["overloaded"] * 3


def test_batches_are_taken_apart_and_put_together_where_the_revision_has_them(world: World) -> None:
    """In 2025-03-26 alone; the answers come back in one array."""
    world.come()
    world.daemon.version = "2025-03-26"
    world.say("initialize", HELLO, 0)
    world.settle()
    call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"arguments": {"n": 1}}}
    note = {"jsonrpc": "2.0", "method": "notifications/initialized"}
    together: list[Json] = []
    world.books._to_editor = lambda line: together.append(json.loads(line))
    world.send(json.dumps([call, note, {"jsonrpc": "2.0", "id": 2, "method": "ping"}]))
    assert together == []
    world.settle()
    [array] = together
    assert isinstance(array, list)
    assert [message["id"] for message in array] == [2, 1]


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


@settings(max_examples=300, deadline=None)
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
            case "kill" if world.books.up:
                world.kill(amount)
            case "come" if not world.books.up and not world.wire:
                world.come()
        if step in ("call", "level", "subscribe", "unsubscribe", "list"):
            keys.append(number)
    if not world.books.up and not world.wire:
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


@settings(max_examples=300, deadline=None)
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
