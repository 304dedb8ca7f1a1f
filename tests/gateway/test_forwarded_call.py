"""One forwarded call: its response, its progress, and errors of mcpd's own."""

from __future__ import annotations

import json
import math
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec import Raw

from mcpd.gateway import url_elicitation
from mcpd.gateway.client_context import ClientContext, ClientRequest
from mcpd.gateway.forwarded_call import ForwardedCall, error_response, tool_name
from mcpd.gateway.revision_translation import translation
from mcpd.model.errors import LinkLost, McpdError
from mcpd.support.pipe_reader import traffic
from mcpd.wire import message as wire
from tests.gateway.mcp_client import MODERN
from tests.gateway.model import LEGACY, Json, Stub, make_server


class Client:
    """Session, responder and connection of a call; `log` holds what was done with it."""

    def __init__(self, *, handles_input: bool = False) -> None:
        self.log: list[tuple[object, ...]] = []
        self.frames: list[Json] = []
        self.handles_input = handles_input

    def finish_call(self, call: object, frame: bytes, code: int = 0) -> None:
        self.frames.append(json.loads(frame))
        self.log.append(("finish", code))

    def send(self, frame: bytes) -> None:
        self.frames.append(json.loads(frame))

    def poll_task(self, call: object, created: Raw) -> None:
        self.log.append(("poll", bytes(created)))

    def handle_input_required(self, *_: object) -> bool:
        self.log.append(("input",))
        return self.handles_input

    def retry_call(self, call: object, wait: object) -> None:
        self.log.append(("retry",))

    def message_prefix(self, name: str) -> str:
        return ""

    def refuse_request(self, request: object, error: McpdError, call: object) -> None:
        self.log.append(("refuse", error.message))

    @property
    def gateway(self) -> Any:
        return SimpleNamespace(
            suspended_calls=SimpleNamespace(
                on_answered=lambda call, message: self.log.append(("kept", bytes(message.result))),
                on_failed=lambda call, error: self.log.append(("kept", error.message)),
            ),
            url_elicitations=SimpleNamespace(
                record=lambda session, server, params: self.log.append(
                    ("url", json.loads(bytes(params))["url"])
                ),
                next_completion=lambda: None,
            ),
        )


def make_call(
    client: Client, versions: tuple[str, str] = (LEGACY, LEGACY), method: str = "tools/call", **more: Any
) -> ForwardedCall:
    """Return a call of a client that speaks the first of `versions`, to a server that speaks the second."""
    context = ClientContext(versions[0], capabilities={"elicitation": {"url": {}}})
    request = ClientRequest(b"7", method, b"{}", client, context, b'"tok"')  # type: ignore[arg-type]
    link = SimpleNamespace(
        cancel=lambda call, reason: client.log.append(("cancel", reason)),
        submit=lambda call, method, params, *, plain: client.log.append((method, bytes(params), plain)),
    )
    call = ForwardedCall(
        session=client,  # type: ignore[arg-type]
        context=context,
        request=request,
        upstream=Stub(link=link),  # type: ignore[arg-type]
        server=make_server(),
        params=b"{}",
        translation=translation(*versions),
    )
    call.method = method
    for name, value in more.items():
        setattr(call, name, value)
    return call


def answer(call: ForwardedCall, **members: object) -> None:
    traffic.more_expected = False
    call.answered(wire.parse(json.dumps({"jsonrpc": "2.0", "id": 1, **members}).encode()))
    assert traffic.more_expected, "the next message will come soon"


def test_new_call_is_in_no_special_state() -> None:
    call = make_call(Client())
    assert call.alias is None
    assert [call.as_task, call.is_suspended, call.resumed_after_url, call.holds_turn] == [False] * 4
    assert (call.open_questions, call.rounds, call.progress_base) == (0, 0, 0.0)
    assert call.progress_high == -math.inf


@pytest.mark.parametrize(
    ("code", "modern", "sent"),
    [
        (-32000, True, -32603),
        (-32019, True, -32603),
        (-31999, True, -31999),
        (-32020, True, -32020),
        (-32000, False, -32000),
        (-32019, False, -32019),
    ],
)
def test_modern_clients_get_no_code_that_their_revision_reserves(code: int, modern: bool, sent: int) -> None:
    error = LinkLost("gone", may_have_run=True)
    error.rpc = code  # type: ignore[misc]
    body = json.loads(error_response(b"1", error, modern=modern))["error"]
    assert (body["code"], body["message"]) == (sent, "gone")
    assert json.loads(error_response(b"1", error))["error"]["code"] == code


@pytest.mark.parametrize(
    ("params", "name"), [(b'{"name":"a"}', "a"), (b'{"name":5}', ""), (b"{}", ""), (b"", ""), (b"[]", "")]
)
def test_name_of_the_called_tool(params: bytes, name: str) -> None:
    assert tool_name(params) == name


@pytest.mark.parametrize(
    ("versions", "result", "seen"),
    [
        ((LEGACY, LEGACY), {"resultType": "x"}, {"resultType": "x"}),
        ((MODERN, LEGACY), {"a": 1}, {"resultType": "complete", "a": 1}),
        ((LEGACY, MODERN), {"resultType": "complete", "a": 1}, {"a": 1}),
    ],
)
def test_result_is_translated_unless_both_revisions_are_equal(
    versions: tuple[str, str], result: Json, seen: Json
) -> None:
    client = Client()
    answer(make_call(client, versions), result=result)
    assert client.frames == [{"jsonrpc": "2.0", "id": 7, "result": seen}]


@pytest.mark.parametrize(
    ("versions", "method", "result", "asked"),
    [
        ((LEGACY, MODERN), "tools/call", {"resultType": "input_required"}, True),
        ((MODERN, MODERN), "prompts/get", {"resultType": "input_required"}, True),
        ((LEGACY, MODERN), "completion/complete", {"resultType": "input_required"}, False),
        ((LEGACY, MODERN), "tools/call", {"resultType": "complete"}, False),
        ((MODERN, LEGACY), "tools/call", {"resultType": "input_required"}, False),
    ],
)
@pytest.mark.parametrize("handled", [True, False])
def test_modern_server_may_require_input(
    versions: tuple[str, str], method: str, result: Json, asked: bool, handled: bool
) -> None:
    """If that is not what the result means, it is passed on."""
    client = Client(handles_input=handled)
    answer(make_call(client, versions, method), result=result)
    assert (("input",) in client.log) is asked
    assert (len(client.frames) == 0) is (asked and handled)


def test_result_of_a_required_task_is_polled() -> None:
    client = Client()
    answer(make_call(client, as_task=True), result={"task": 1})
    assert client.log == [("poll", b'{"task": 1}')]


@pytest.mark.parametrize(
    ("contents", "seen"),
    [
        ([{"uri": "a:1"}, {"uri": "b:1"}, 5], [{"uri": "mcpd://two/a:1"}, {"uri": "b:1"}, 5]),
        ({"uri": "a:1"}, {"uri": "a:1"}),
    ],
)
def test_resource_is_returned_under_the_uri_that_was_asked_for(contents: object, seen: object) -> None:
    client = Client()
    call = make_call(client, method="resources/read", alias=("a:1", "mcpd://two/a:1"))
    answer(call, result={"contents": contents, "x": 1})
    assert client.frames[0]["result"] == {"contents": seen, "x": 1}


def test_result_without_contents_keeps_no_alias() -> None:
    client = Client()
    answer(make_call(client, alias=("a:1", "b:1")), result={"x": 1})
    assert client.frames[0]["result"] == {"x": 1}


URL: Json = {
    "code": -32042,
    "message": "sign in",
    "data": {"elicitations": [{"message": "m", "url": "https://a/b", "elicitationId": "1"}]},
}


@pytest.mark.parametrize(
    ("versions", "error", "more", "log"),
    [
        ((LEGACY, LEGACY), URL, {}, [("url", "https://a/b"), ("finish", 0)]),
        ((LEGACY, LEGACY), {"code": 1, "message": "m"}, {}, [("finish", 0)]),
        ((MODERN, LEGACY), URL, {}, [("finish", 0)]),
        ((MODERN, LEGACY), URL, {"resumed_after_url": True}, [("retry",)]),
        ((MODERN, LEGACY), {"code": 1, "message": "m"}, {"resumed_after_url": True}, [("finish", 0)]),
        (
            (MODERN, LEGACY),
            URL,
            {"resumed_after_url": True, "rounds": url_elicitation.MAX_RETRIES},
            [("finish", 0)],
        ),
        (
            (MODERN, LEGACY),
            URL,
            {"resumed_after_url": True, "rounds": url_elicitation.MAX_RETRIES - 1},
            [("retry",)],
        ),
        (
            (MODERN, LEGACY),
            {"code": 1, "message": "m"},
            {"missing_capabilities": {"sampling": {}}},
            [("finish", -32021)],
        ),
        ((LEGACY, MODERN), URL, {}, [("finish", 0)]),
    ],
)
def test_error_responses(
    versions: tuple[str, str], error: Json, more: Json, log: list[tuple[object, ...]]
) -> None:
    client = Client()
    call = make_call(client, versions, **more)
    answer(call, error=error)
    assert client.log == log
    if log == [("retry",)]:
        assert call.rounds == more.get("rounds", 0) + 1


def test_suspended_call_keeps_its_outcome() -> None:
    client = Client()
    call = make_call(client, request=None)
    answer(call, result={"a": 1})
    call.failed(LinkLost("gone", may_have_run=True))
    assert client.log == [("kept", b'{"a": 1}'), ("kept", "gone")]
    call = make_call(client)
    call.failed(LinkLost("lost", may_have_run=True))
    assert client.log[2:] == [("refuse", "lost")]


def report(client: Client, call: ForwardedCall, **params: object) -> Json | None:
    client.frames.clear()
    call.progressed(Raw(json.dumps({"progressToken": "1", **params}).encode()))
    return client.frames[0]["params"] if client.frames else None


def test_progress_increases_and_carries_the_clients_token() -> None:
    """A report that does not increase is dropped: the protocol forbids it."""
    client = Client()
    call = make_call(client)
    assert report(client, call, progress=1, total=9, _meta={"io.modelcontextprotocol/x": 1, "v": 1}) == {
        "progressToken": "tok",
        "progress": 1,
        "total": 9,
        "_meta": {"v": 1},
    }
    assert report(client, call, progress=1) is None
    assert report(client, call, progress=0.5) is None
    assert report(client, call, progress="2") is None
    assert report(client, call, progress=2) == {"progressToken": "tok", "progress": 2}
    call.start_round()
    assert (call.rounds, call.progress_base) == (1, 2.0)
    assert report(client, call, progress=0) is None
    assert report(client, call, progress=1, total="x") is None
    assert report(client, call, progress=1, total=3) == {"progressToken": "tok", "progress": 3, "total": 5}
    assert report(client, call, progress=2) == {"progressToken": "tok", "progress": 4}


def test_round_without_progress_starts_at_zero() -> None:
    call = make_call(Client())
    call.start_round()
    assert call.progress_base == 0.0


@pytest.mark.parametrize("absent", ["token", "request"])
def test_progress_is_dropped_if_nobody_wants_it(absent: str) -> None:
    client = Client()
    call = make_call(client)
    assert call.request is not None
    call.request.progress_token = b""
    if absent == "request":
        call.request = None
    assert report(client, call, progress=1) is None


def test_submitted_params_are_translated_between_revisions() -> None:
    client = Client()
    for versions in ((LEGACY, LEGACY), (LEGACY, "2025-06-18")):
        call = make_call(client, versions, params=b'{"name":"t","task":{}}')
        assert call.request is not None
        call.request.has_no_meta = versions[0] == versions[1]
        call.submit()
    assert client.log == [
        ("tools/call", b'{"name":"t","task":{}}', True),
        ("tools/call", b'{"name":"t"}', False),
    ]


def test_abandoned_call_is_cancelled_where_it_is() -> None:
    client = Client()
    call = make_call(client)
    call.abandon("why")
    call.cancel_task = lambda reason: client.log.append(("task", reason))
    call.abandon("again")
    assert client.log == [("cancel", "why"), ("task", "again")]
