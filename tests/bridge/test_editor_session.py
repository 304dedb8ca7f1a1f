"""The books of a bridge, without descriptors: what an editor says, asks, takes back and is answered."""

from __future__ import annotations

import json

import pytest

from ctl.bridge import pending_requests
from ctl.bridge.editor_session import EditorSession
from ctl.bridge.error_replies import ErrorObject
from tests.bridge.world import HELLO, Json, World


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
    world.books.down_reason = "no mcpd is running at /x"
    world.now = pending_requests.HANDSHAKE_TIMEOUT
    world.books.tick(world.now)
    assert world.answers(1)[0]["error"]["message"].startswith("no mcpd is running at /x")
    world.come()
    world.settle()
    world.say("initialize", HELLO, 2)
    world.deliver()
    world.now += pending_requests.HANDSHAKE_TIMEOUT + pending_requests.DAEMON_RESPONSE_TIMEOUT
    world.books.tick(world.now)
    assert "did not answer" in world.answers(2)[0]["error"]["message"]
    world.answer()
    assert len(world.answers(2)) == 1, "the late answer must not follow the error"


def test_a_request_waits_for_a_daemon_a_while_and_then_says_that_it_did_not_run(world: World) -> None:
    """A restart takes a second; an editor must not hang for ever."""
    world.say("tools/call", {"name": "pay", "arguments": {"n": 1}}, 5)
    world.now = pending_requests.DAEMON_WAIT_TIMEOUT - 0.1
    world.books.tick(world.now)
    assert world.answers(5) == []
    world.now = world.books.next_at()
    world.books.tick(world.now)
    data = world.answers(5)[0]["error"]["data"]
    assert (data["may_have_run"], data["code"]) == (False, "daemon_unreachable")


def test_a_refusal_is_handed_on_at_once_in_the_daemons_words(world: World) -> None:
    """There is nothing to wait for."""
    world.say("initialize", HELLO, 1)
    refusal = ErrorObject(-32602, "there is no server 'gti'")
    world.books.daemon_unreachable(refusal, 0.0)
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
    other = EditorSession(sent.append, lambda _: None, lambda _: None)
    other.on_connected()
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
    for key in range(pending_requests.MAX_OPEN + 10):
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
