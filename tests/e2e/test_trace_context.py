"""W3C trace context (SEP-414): mcpd forwards `traceparent`, `tracestate` and `baggage` in `_meta`."""

from __future__ import annotations

import json

import pytest

from tests.e2e.conftest import Start
from tests.e2e.harness import Client, Json, fake
from tests.e2e.web import PORT, Session, http_endpoint, messages, meta, modern, request

TRACE = {
    "traceparent": "00-0af7651916cd43dd8448eb211c80319c-00f067aa0ba902b7-01",
    "tracestate": "rojo=00f067aa0ba902b7,congo=t61rcWkgMzE",
    "baggage": "userId=alice,serverNode=DF%2028,isProduction=false",
}


def traced(message: Json) -> Json:
    """Return the trace members of the `_meta`."""
    return {name: value for name, value in message.get("_meta", {}).items() if name in TRACE}


@pytest.mark.parametrize("server", ["legacy", "modern"])
@pytest.mark.parametrize("client", ["legacy", "modern"])
def test_trace_is_forwarded_in_both_directions(start: Start, client: str, server: str) -> None:
    """They go with the call to the server and with its result to the client, between any two eras."""
    daemon = start({"one": fake("--era", server)}, *PORT)
    daemon.wait_connected("one")
    path, tool = "/mcp", "one__meta"
    with http_endpoint(daemon).client() as http:
        if client == "legacy":
            session = Session(http, path)
            asked = request("tools/call", 7, name=tool, arguments={}, _meta=TRACE)
            answer = messages(session.post(asked))[-1]
        else:
            body, headers = modern("tools/call", 7, name=tool, arguments={})
            body["params"]["_meta"] = {**meta(), **TRACE}
            answer = messages(http.post(path, json=body, headers=headers))[-1]
    result = answer["result"]
    assert traced({"_meta": json.loads(result["content"][0]["text"])}) == TRACE
    assert traced(result) == TRACE


def next_of(line: Client, method: str) -> Json:
    """Return the next message with that method."""
    while (message := line.next_notification())["method"] != method:
        pass
    return message


def test_trace_is_forwarded_with_server_messages(start: Start) -> None:
    """Both a request and a notification of the server carry its trace to the client."""
    daemon = start({"one": fake("--era", "legacy", "--capabilities", "tools,logging")}, *PORT)
    daemon.wait_connected("one")
    with daemon.client() as line:
        line.request("mcpd/attach", server="one")
        line.initialize(roots={}, elicitation={})
        question = {"message": "?", "requestedSchema": {"type": "object", "properties": {}}, "_meta": TRACE}
        said = {"level": "error", "data": "x", "_meta": TRACE}
        line.request(
            "tools/call", name="notify", arguments={"method": "notifications/message", "params": said}
        )
        received = next_of(line, "notifications/message")
        steps = {"every": 0.01, "total": 0.02, "more": {"_meta": TRACE}}
        line.request("tools/call", name="progress", arguments=steps, _meta={"progressToken": 5})
        step = next_of(line, "notifications/progress")
        asking = {"method": "elicitation/create", "params": question}
        key = line.send("tools/call", name="ask", arguments=asking)
        asked = next_of(line, "elicitation/create")
        answer = {"jsonrpc": "2.0", "id": asked["id"], "result": {"action": "decline", "_meta": TRACE}}
        line.send_raw(json.dumps(answer).encode())
        came = json.loads(line.answer(key)["content"][0]["text"])
    assert traced(received["params"]) == TRACE
    assert traced(step["params"]) == TRACE
    assert traced(asked["params"]) == TRACE
    assert traced(came["result"]) == TRACE
