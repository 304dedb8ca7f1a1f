"""The session of an editor, without descriptors: requests, responses, cancellations and batches."""

from __future__ import annotations

import json

import pytest

from ctl.bridge import pending_requests
from ctl.bridge.editor_session import EditorSession
from ctl.bridge.error_replies import ErrorObject
from tests.bridge.world import HELLO, Json, World


def test_responses_reach_the_matching_server_request(world: World) -> None:
    """Two requests are open, and the second one is answered first."""
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


def test_cancelled_server_request_uses_the_bridge_id(world: World) -> None:
    """The editor knows no other id."""
    world.begin()
    world.hear({"jsonrpc": "2.0", "id": "q", "method": "roots/list"})
    ours = world.got[-1]["id"]
    cancelled = {"requestId": "q", "reason": "over"}
    world.hear({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": cancelled})
    assert world.got[-1]["params"] == {"requestId": ours, "reason": "over"}


def test_request_cancelled_while_waiting_is_never_sent(world: World) -> None:
    """It is not answered either."""
    world.say("tools/call", {"name": "pay", "arguments": {"n": 1}}, 5)
    world.say("notifications/cancelled", {"requestId": 5})
    world.come()
    world.settle()
    assert (world.answers(5), world.ran) == ([], {})


def test_handshake_is_answered_in_time(world: World) -> None:
    """Editors wait ten seconds, and then show the server as broken without a reason."""
    world.say("initialize", HELLO, 1)
    world.books.down_reason = "mcpd is not running at /x"
    world.now = pending_requests.HANDSHAKE_TIMEOUT
    world.books.tick(world.now)
    assert world.answers(1)[0]["error"]["message"].startswith("mcpd is not running at /x")
    world.come()
    world.settle()
    world.say("initialize", HELLO, 2)
    world.deliver()
    world.now += pending_requests.HANDSHAKE_TIMEOUT + pending_requests.DAEMON_RESPONSE_TIMEOUT
    world.books.tick(world.now)
    assert "did not answer" in world.answers(2)[0]["error"]["message"]
    world.answer()
    assert len(world.answers(2)) == 1, "the late answer must not follow the error"


def test_waiting_request_fails_after_the_timeout(world: World) -> None:
    """A restart takes a second, and an editor must not hang forever."""
    world.say("tools/call", {"name": "pay", "arguments": {"n": 1}}, 5)
    world.now = pending_requests.DAEMON_WAIT_TIMEOUT - 0.1
    world.books.tick(world.now)
    assert world.answers(5) == []
    world.now = world.books.next_at()
    world.books.tick(world.now)
    data = world.answers(5)[0]["error"]["data"]
    assert (data["may_have_run"], data["code"]) == (False, "daemon_unreachable")


def test_refused_attach_fails_requests_immediately(world: World) -> None:
    """The daemon's own error is passed on."""
    world.say("initialize", HELLO, 1)
    refusal = ErrorObject(-32602, "there is no server 'gti'")
    world.books.daemon_unreachable(refusal, 0.0)
    world.books.tick(0.0)
    error = world.answers(1)[0]["error"]
    assert (error["code"], error["message"]) == (-32602, "there is no server 'gti'")
    assert error["data"] == {"may_have_run": False}


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
        (b'{"jsonrpc":"2.0","id":"%b","method":"ping"}' % (b"x" * 1023), -32600, None),
        (b"\x00\x01\x02", -32700, None),
        ("Content-Length: 40\r", -32700, None),
    ],
)
def test_invalid_line_is_answered_and_the_next_one_is_served(
    world: World, line: str | bytes, code: int, key: object
) -> None:
    """A bug of an editor must not cost it all tools."""
    world.come()
    world.send(line)
    [answer] = world.got
    assert (answer["error"]["code"], answer["id"]) == (code, key)
    world.say("ping", key="next")
    assert "result" in world.answers("next")[0]
    assert not world.wire


@pytest.mark.parametrize("line", ["", "  ", "\r", '{"jsonrpc":"2.0","id":77,"result":{}}'])
def test_line_that_needs_no_response_gets_none(world: World, line: str) -> None:
    """Blank lines, and responses to unknown requests."""
    world.come()
    world.send(line)
    assert (world.got, list(world.wire)) == ([], [])


def test_lone_surrogate_is_replaced(world: World) -> None:
    """Node writes it for a string that was cut, and JSON parsers reject it."""
    world.come()
    world.send(b'{"jsonrpc":"2.0","id":1,"method":"x","params":{"text":"cut: \\ud83d"}}')
    assert json.loads(world.wire[0])["params"] == {"text": "cut: \N{REPLACEMENT CHARACTER}"}


def test_messages_pass_byte_for_byte(world: World) -> None:
    """Spacing, escapes, big numbers and member order are kept."""
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


def test_duplicate_request_id_is_refused(world: World) -> None:
    """Two responses with one id could not be told apart."""
    world.begin()
    world.say("tools/call", {"name": "pay", "arguments": {"n": 1}}, 5)
    world.say("tools/call", {"name": "pay", "arguments": {"n": 2}}, 5)
    assert world.answers(5)[0]["error"]["code"] == -32600
    world.settle()
    assert world.ran == {1: 1}


def test_waiting_requests_are_bounded(world: World) -> None:
    """An editor that keeps sending without a daemon must not exhaust the memory."""
    for key in range(pending_requests.MAX_OPEN + 10):
        world.say("tools/list", key=key)
    refused = [m for m in world.got if "error" in m]
    assert len(refused) == 10
    assert refused[0]["error"]["data"]["may_have_run"] is False
    big = World()
    for key in range(10):
        big.say("tools/call", {"name": "x", "arguments": {"text": "y" * 1024 * 1024}}, key)
    assert [m["error"]["data"]["code"] for m in big.got] == ["overloaded"] * 3


def test_batch_is_split_and_answered_with_one_array(world: World) -> None:
    """Only in MCP 2025-03-26."""
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
